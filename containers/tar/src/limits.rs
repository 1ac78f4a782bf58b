//! Bounds on what an archive can ask for, and the errors of exceeding them.

use headstart_block::Error;
use std::fmt;

/// Bounds on an archive and its entries. The memory of a reader is at most a small multiple of `extended_bytes` and
/// `sparse_extents`; the other limits protect those that use the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarLimits {
    /// The most bytes of a path and of a link's target. The default is 4095, the longest path of Linux.
    pub path_bytes: u64,
    /// The most bytes of one extended header (PAX records, a GNU long name) and of one map of a sparse file. The
    /// default is 1 MiB, as in Go and libarchive.
    pub extended_bytes: u64,
    /// The most bytes of all names and values of an entry's extended attributes. The default is 256 KiB: four of the
    /// largest values of Linux.
    pub xattr_bytes: u64,
    /// The most extents of a sparse file, empty ones included. The default is 262,144.
    pub sparse_extents: u64,
    /// The most entries of an archive. The default is 2^24.
    pub entries: u64,
    /// The most bytes of one file, holes included. The default is 16 TiB, the largest file of ext4.
    pub file_bytes: u64,
    /// The most bytes of all files together, holes included. The default is 64 TiB.
    pub total_bytes: u64,
    /// The most bytes behind the end of the archive. The default is 64 MiB.
    pub trailing_bytes: u64,
}

impl Default for TarLimits {
    fn default() -> Self {
        Self {
            path_bytes: 4095,
            extended_bytes: 1 << 20,
            xattr_bytes: 256 << 10,
            sparse_extents: 1 << 18,
            entries: 1 << 24,
            file_bytes: 1 << 44,
            total_bytes: 1 << 46,
            trailing_bytes: 64 << 20,
        }
    }
}

/// Refuses `actual` if it is more than `limit`. The error says that there are more bytes or items of `subject` than
/// the field `name` of [`TarLimits`] allows.
pub(crate) fn check(actual: u64, limit: u64, name: &str, subject: impl fmt::Display) -> Result<(), Error> {
    if actual <= limit {
        return Ok(());
    }
    let cause = format!("has {actual} {subject}, over the limit of {limit}");
    let remedy = format!(
        "if the archive is trusted, raise the limit `{name}`: `image convert` does by --limit {name}={actual}"
    );
    Err(Error::unsupported(cause).remedy(remedy))
}

/// The name of an entry in messages, in printable characters, and shortened if it is long.
pub(crate) fn entry_name(path: &[u8]) -> String {
    /// Bytes of a path that a message shows.
    const SHOWN: usize = 256;
    match path.split_at_checked(SHOWN) {
        Some((start, rest)) if !rest.is_empty() => format!("tar entry \"{}...\"", start.escape_ascii()),
        _ => format!("tar entry \"{}\"", path.escape_ascii()),
    }
}
