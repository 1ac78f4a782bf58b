//! Kinds of files, with the numbers that all file systems of Linux have for them; names and targets of links.

use headstart_block::{Error, Result};

/// Bytes of the longest name in a directory.
const MAX_NAME: usize = 255;
/// Bytes of the longest target of a symbolic link.
const MAX_TARGET: usize = 4095;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device of characters.
    CharDevice,
    /// A device of blocks.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The kinds with their bits in a mode and their numbers in directory entries.
const KINDS: [(FileKind, u16, u8); 7] = [
    (FileKind::Regular, 0o10_0000, 1),
    (FileKind::Directory, 0o4_0000, 2),
    (FileKind::CharDevice, 0o2_0000, 3),
    (FileKind::BlockDevice, 0o6_0000, 4),
    (FileKind::Fifo, 0o1_0000, 5),
    (FileKind::Socket, 0o14_0000, 6),
    (FileKind::Symlink, 0o12_0000, 7),
];

/// Bits of a mode that are the kind.
const KIND_MASK: u16 = 0o17_0000;

impl FileKind {
    /// The kind in a mode; `None` if its bits have no meaning.
    #[must_use]
    pub fn of_mode(mode: u16) -> Option<Self> {
        KINDS.iter().find(|(_, bits, _)| mode & KIND_MASK == *bits).map(|(kind, _, _)| *kind)
    }

    /// The bits of the kind in a mode.
    #[must_use]
    pub fn mode_bits(self) -> u16 {
        KINDS.iter().find(|(kind, _, _)| *kind == self).map_or(0, |(_, bits, _)| *bits)
    }

    /// The number of the kind in directory entries.
    #[must_use]
    pub fn entry_type(self) -> u8 {
        KINDS.iter().find(|(kind, _, _)| *kind == self).map_or(0, |(_, _, number)| *number)
    }
}

/// A file that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewInode<'a> {
    /// A file, empty at first.
    Regular,
    /// An empty directory.
    Directory,
    /// A symbolic link with this target: 1 to 4095 bytes without a NUL.
    Symlink(&'a [u8]),
    /// A character device with its major and minor number.
    CharDevice(u32, u32),
    /// A block device with its major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl NewInode<'_> {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        match self {
            Self::Regular => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::CharDevice(..) => FileKind::CharDevice,
            Self::BlockDevice(..) => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }
}

/// Checks the target of a symbolic link: 1 to 4095 bytes without a NUL.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if it is another one.
pub fn check_target(target: &[u8]) -> Result<()> {
    if target.is_empty() || target.len() > MAX_TARGET || target.contains(&0) {
        return Err(Error::invalid(format!(
            "the target of a symbolic link has {} bytes, not 1 to {MAX_TARGET}, or one of them is 0",
            target.len()
        )));
    }
    Ok(())
}

/// Checks the name of a file in a directory: 1 to 255 bytes without a slash and a NUL, not `.` or `..`.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if it is another one.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Error::invalid(format!("`{}` is not the name of a file", name.escape_ascii())));
    }
    if name.len() > MAX_NAME {
        return Err(Error::invalid(format!(
            "the name `{}...` has {} bytes, more than {MAX_NAME}",
            name[..32].escape_ascii(),
            name.len()
        )));
    }
    Ok(())
}
