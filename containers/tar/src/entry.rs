//! The metadata of an entry.

use headstart_block::ByteRange;

/// The kind of file that an entry makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TarKind {
    /// A regular file, contiguous and sparse ones included: typeflags `0`, NUL, `7` and `S`.
    Regular,
    /// Another name of a file of this or a lower layer: typeflag `1`.
    HardLink,
    /// A symbolic link: typeflag `2`.
    Symlink,
    /// A character device: typeflag `3`.
    CharDevice,
    /// A block device: typeflag `4`.
    BlockDevice,
    /// A directory: typeflag `5`, or NUL and a name that ends in a slash.
    Directory,
    /// A named pipe: typeflag `6`.
    Fifo,
}

impl TarKind {
    /// `true` if entries of the kind have content: regular files only.
    #[must_use]
    pub fn has_content(self) -> bool {
        self == Self::Regular
    }
}

/// A time stamp: seconds since the start of 1970, and the nanoseconds after that second. Earlier times have negative
/// seconds; half a second before 1970 is second -1 and 500,000,000 nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TarTime {
    /// Seconds since 1970-01-01 00:00:00 UTC, of any sign.
    pub seconds: i64,
    /// Nanoseconds from `seconds` on, from 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// The metadata of one entry. Names and targets are bytes as the archive has them: they may be absolute, may have `..`
/// in them, or may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// The name, at most [`TarLimits::path_bytes`](crate::TarLimits::path_bytes) long.
    pub path: Vec<u8>,
    /// The kind of file.
    pub kind: TarKind,
    /// The permissions and the set-user-id, set-group-id and sticky bits: at most 0o7777.
    pub mode: u32,
    /// The owner. The largest number is no id on Linux: `chown` takes it for "as it is".
    pub uid: u32,
    /// The group; as for `uid`.
    pub gid: u32,
    /// The time of the last change of the content.
    pub mtime: TarTime,
    /// The length of the file in bytes, holes included; 0 for all kinds but regular files.
    pub size: u64,
    /// The number of bytes of content that the archive stores, which is less than `size` for a file with holes.
    pub stored_size: u64,
    /// The target of a hard link or a symbolic link, at most [`TarLimits::path_bytes`](crate::TarLimits::path_bytes)
    /// long; empty for other kinds.
    pub link_target: Vec<u8>,
    /// The major and the minor number of a device; both are 0 for other kinds.
    pub device: (u32, u32),
    /// Full names (with the namespace, as in `user.name`) and values of the extended attributes, sorted by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The parts of a sparse file that have data: sorted, disjoint, not empty, inside `size`, together `stored_size`
    /// bytes. The stored bytes are theirs, one after the other; the rest of the file is zeros. `None` for a file that
    /// is stored as it is.
    pub sparse: Option<Vec<ByteRange>>,
    /// The offset of the entry's own header block in the archive: behind its extended headers.
    pub header_offset: u64,
    /// The offset of the first stored byte of content in the archive, a multiple of 512.
    pub content_offset: u64,
}
