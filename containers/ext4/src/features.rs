//! Features: bits of the superblock that say which structures a file system has.
//!
//! There are three words. A program that does not know a bit of *compat* may change the file system all the same; of
//! *ro compat*, may read it only; of *incompat*, must leave it alone. A converter writes, and what it writes has to
//! stay right for kernels that know the features: so it refuses every bit that it does not know, of any word, and
//! names it as `dumpe2fs` does.

use headstart_block::{Error, Result};

/// The word that a feature's bit is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// A bit of the word `compat`.
    Compat(u32),
    /// A bit of the word `incompat`.
    Incompat(u32),
    /// A bit of the word `ro_compat`.
    RoCompat(u32),
}

/// There is a journal.
pub(crate) const HAS_JOURNAL: Feature = Feature::Compat(0x4);
/// Inodes may have extended attributes.
pub(crate) const EXT_ATTR: Feature = Feature::Compat(0x8);
/// Blocks are reserved behind the descriptors, so that the file system can grow.
pub(crate) const RESIZE_INODE: Feature = Feature::Compat(0x10);
/// Large directories have an index by hashes.
pub(crate) const DIR_INDEX: Feature = Feature::Compat(0x20);
/// There are at most two backups of the superblock, in groups that the superblock names.
pub(crate) const SPARSE_SUPER2: Feature = Feature::Compat(0x200);
/// Directory entries have the kind of their file.
pub(crate) const FILETYPE: Feature = Feature::Incompat(0x2);
/// The places of a file's blocks may be stored as extents.
pub(crate) const EXTENT: Feature = Feature::Incompat(0x40);
/// Numbers of blocks have 48 or 64 bits, group descriptors 64 bytes.
pub(crate) const BITS_64: Feature = Feature::Incompat(0x80);
/// Bitmaps and inode tables may lie in other groups than their own.
pub(crate) const FLEX_BG: Feature = Feature::Incompat(0x200);
/// Backups of the superblock are in few groups.
pub(crate) const SPARSE_SUPER: Feature = Feature::RoCompat(0x1);
/// Files may have 2 GiB and more.
pub(crate) const LARGE_FILE: Feature = Feature::RoCompat(0x2);
/// Inodes count their blocks with 48 bits.
pub(crate) const HUGE_FILE: Feature = Feature::RoCompat(0x8);
/// Group descriptors have checksums, and groups may lack bitmaps until they are used: `uninit_bg`, `gdt_csum`.
pub(crate) const UNINIT_BG: Feature = Feature::RoCompat(0x10);
/// A directory may have more than 65,000 directories in it.
pub(crate) const DIR_NLINK: Feature = Feature::RoCompat(0x20);
/// The superblock says how many bytes behind the first 128 inodes use.
pub(crate) const EXTRA_ISIZE: Feature = Feature::RoCompat(0x40);

/// The names of all known features, with `true` for those that are supported.
const NAMES: &[(Feature, &str, bool)] = &[
    (Feature::Compat(0x1), "dir_prealloc", true),
    (Feature::Compat(0x2), "imagic_inodes", false),
    (HAS_JOURNAL, "has_journal", true),
    (EXT_ATTR, "ext_attr", true),
    (RESIZE_INODE, "resize_inode", true),
    (DIR_INDEX, "dir_index", true),
    (Feature::Compat(0x40), "lazy_bg", false),
    (Feature::Compat(0x100), "snapshot_bitmap", false),
    (SPARSE_SUPER2, "sparse_super2", true),
    (Feature::Compat(0x400), "fast_commit", false),
    (Feature::Compat(0x800), "stable_inodes", false),
    (Feature::Compat(0x1000), "orphan_file", false),
    (Feature::Incompat(0x1), "compression", false),
    (FILETYPE, "filetype", true),
    (Feature::Incompat(0x4), "needs_recovery", false),
    (Feature::Incompat(0x8), "journal_dev", false),
    (Feature::Incompat(0x10), "meta_bg", false),
    (EXTENT, "extent", true),
    (BITS_64, "64bit", true),
    (Feature::Incompat(0x100), "mmp", false),
    (FLEX_BG, "flex_bg", true),
    (Feature::Incompat(0x400), "ea_inode", false),
    (Feature::Incompat(0x1000), "dirdata", false),
    (Feature::Incompat(0x2000), "metadata_csum_seed", false),
    (Feature::Incompat(0x4000), "large_dir", false),
    (Feature::Incompat(0x8000), "inline_data", false),
    (Feature::Incompat(0x1_0000), "encrypt", false),
    (Feature::Incompat(0x2_0000), "casefold", false),
    (SPARSE_SUPER, "sparse_super", true),
    (LARGE_FILE, "large_file", true),
    (HUGE_FILE, "huge_file", true),
    (UNINIT_BG, "uninit_bg", true),
    (DIR_NLINK, "dir_nlink", true),
    (EXTRA_ISIZE, "extra_isize", true),
    (Feature::RoCompat(0x100), "quota", false),
    (Feature::RoCompat(0x200), "bigalloc", false),
    (Feature::RoCompat(0x400), "metadata_csum", false),
    (Feature::RoCompat(0x800), "replica", false),
    (Feature::RoCompat(0x1000), "read-only", false),
    (Feature::RoCompat(0x2000), "project", false),
    (Feature::RoCompat(0x4000), "shared_blocks", false),
    (Feature::RoCompat(0x8000), "verity", false),
    (Feature::RoCompat(0x1_0000), "orphan_present", false),
];

/// Features that a file system must have, because everything that is written uses them.
const NEEDED: [Feature; 2] = [FILETYPE, EXTENT];

impl Feature {
    /// `true` if this version can change file systems with the feature.
    fn is_supported(self) -> bool {
        NAMES.iter().any(|&(feature, _, supported)| feature == self && supported)
    }

    /// The name as `dumpe2fs` prints it: for a bit without one, the letter of the word and the number of the bit.
    fn name(self) -> String {
        match NAMES.iter().find(|(feature, _, _)| *feature == self) {
            Some((_, name, _)) => (*name).to_owned(),
            None => {
                let (letter, bit) = match self {
                    Self::Compat(bit) => ('C', bit),
                    Self::Incompat(bit) => ('I', bit),
                    Self::RoCompat(bit) => ('R', bit),
                };
                format!("FEATURE_{letter}{}", bit.trailing_zeros())
            }
        }
    }
}

/// The features of one file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// The word `compat`.
    pub(crate) compat: u32,
    /// The word `incompat`.
    pub(crate) incompat: u32,
    /// The word `ro_compat`.
    pub(crate) ro_compat: u32,
}

impl Features {
    /// `true` if the file system has the feature.
    pub(crate) fn has(self, feature: Feature) -> bool {
        match feature {
            Feature::Compat(bit) => self.compat & bit != 0,
            Feature::Incompat(bit) => self.incompat & bit != 0,
            Feature::RoCompat(bit) => self.ro_compat & bit != 0,
        }
    }

    /// These features and one more.
    #[must_use]
    pub(crate) fn with(mut self, feature: Feature) -> Self {
        match feature {
            Feature::Compat(bit) => self.compat |= bit,
            Feature::Incompat(bit) => self.incompat |= bit,
            Feature::RoCompat(bit) => self.ro_compat |= bit,
        }
        self
    }

    /// All features, in order of their words and bits.
    fn all(self) -> impl Iterator<Item = Feature> {
        let bits = |word: u32| (0..u32::BITS).map(|bit| 1 << bit).filter(move |bit| word & bit != 0);
        bits(self.compat)
            .map(Feature::Compat)
            .chain(bits(self.incompat).map(Feature::Incompat))
            .chain(bits(self.ro_compat).map(Feature::RoCompat))
    }

    /// Checks that this version can change a file system with these features.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] with the names of the features that this version does not know or
    /// that the file system lacks.
    pub(crate) fn check_supported(self) -> Result<()> {
        let refused: Vec<_> =
            self.all().filter(|feature| !feature.is_supported()).map(Feature::name).collect();
        if !refused.is_empty() {
            let cause =
                format!("its file system has features that cannot be changed: {}", refused.join(", "));
            return Err(Error::unsupported(cause)
                .remedy(format!("make it without: mke2fs -O ^{}", refused.join(",^"))));
        }
        let missing: Vec<_> =
            NEEDED.iter().filter(|feature| !self.has(**feature)).map(|feature| feature.name()).collect();
        if !missing.is_empty() {
            let cause = format!("its file system lacks features that changes need: {}", missing.join(", "));
            return Err(Error::unsupported(cause).remedy("make it as ext4, not as ext2 or ext3"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
