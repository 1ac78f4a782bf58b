//! The file systems that disks of containers have: their words in annotations and options, and their marks on a disk.

/// The place of the superblock in both file systems, in bytes from the beginning of the disk.
pub const SUPERBLOCK_AT: u64 = 1024;

/// The number by which an EROFS is known: the first four bytes of its superblock, in little endian, and the kernel's
/// word for a mounted one.
pub const EROFS_NUMBER: u32 = 0xe0f5_e1e2;

/// The kind of a disk's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// ext4, to which containers can write.
    Ext4,
    /// EROFS, which is only read.
    Erofs,
}

impl FileSystemKind {
    /// Returns the word for the kind, as the kernel, annotations and options have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Erofs => "erofs",
        }
    }

    /// Returns the kind with this word; `None` if there is none.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        [Self::Ext4, Self::Erofs].into_iter().find(|kind| kind.name() == word)
    }

    /// Returns the kind of a superblock, by its first bytes. All that is no EROFS is taken for ext4.
    #[must_use]
    pub fn of_superblock(superblock: &[u8]) -> Self {
        if superblock.starts_with(&EROFS_NUMBER.to_le_bytes()) { Self::Erofs } else { Self::Ext4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_its_word_and_by_its_number() {
        for kind in [FileSystemKind::Ext4, FileSystemKind::Erofs] {
            assert_eq!(FileSystemKind::named(kind.name()), Some(kind));
        }
        assert_eq!(FileSystemKind::named("xfs"), None);
        assert_eq!(FileSystemKind::of_superblock(&[0xe2, 0xe1, 0xf5, 0xe0, 1]), FileSystemKind::Erofs);
        for other in [&[0xe2, 0xe1, 0xf5][..], &[0; 64]] {
            assert_eq!(FileSystemKind::of_superblock(other), FileSystemKind::Ext4);
        }
    }
}
