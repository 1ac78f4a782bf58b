//! The options of a conversion, and the names that follow from them.
//!
//! A layer's blob depends on the layer and all below it (their chain id), on the options and on this program: on
//! nothing else. The digest of these three is the *key* of the conversion, by which a layer that was converted before
//! is found without a database. A TurboOCI layer ([`ConvertMode::Turbo`]) also depends on how its source is compressed.

use crate::apply::ApplyLimits;
use headstart_block::{Digest, Error, FileSystemKind, Result, exact, saturating};
use headstart_image::new_layer::{Packing, describe};
use headstart_tar::TarLimits;
use std::ops::RangeInclusive;
use uuid::Uuid;

/// The version of what is written as ext4. It goes up whenever the same layers give other bytes.
pub const WRITER_VERSION: u32 = 1;

/// The version of what is written as EROFS.
pub const EROFS_WRITER_VERSION: u32 = 1;

/// The size of the disk of a converted image if nothing else is wanted: 64 GiB, as with OverlayBD. Free space takes no
/// space in an image.
pub const DEFAULT_DISK_SIZE: u64 = 64 << 30;

/// The most extents of an image if nothing else is wanted: 1,048,576. Their tables take 16 MiB for a layer that is
/// converted, 28 MiB with its data in the container's layer, and up to 37 MiB for the layers below.
pub const DEFAULT_EXTENTS: u64 = 1 << 20;

/// The sizes of disks that ext4 can have here, in bytes: 1 MiB to 16 TiB.
const SIZES: RangeInclusive<u64> = 1 << 20..=16 << 40;

/// The id of every file system: the same layers give the same bytes.
pub(crate) const FILE_SYSTEM_UUID: [u8; 16] = *b"headstart ext4\0\x01";

/// The id of every EROFS.
pub(crate) const EROFS_UUID: [u8; 16] = *b"headstart erofs\x01";

/// The seed of hashes of names in large directories.
pub(crate) const HASH_SEED: [u32; 4] = [0x6865_6164, 0x7374_6172, 0x7420_6578, 0x7434_0001];

/// The bounds on a container's layers, whose makers are not trusted. A layer beyond one of them is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertLimits {
    /// The bounds on the tar of a layer.
    pub tar: TarLimits,
    /// The bounds on the entries of a layer.
    pub apply: ApplyLimits,
    /// The most extents in the tables of an image's layers, which are in memory while the image is converted: the
    /// pieces in which layers store the disk. The default is [`DEFAULT_EXTENTS`].
    pub extents: u64,
    /// The most bytes of the tar of a layer. The default is 128 GiB: twice the default disk.
    pub tar_bytes: u64,
    /// The largest window of zstd as a power of 2, from 10 to 31: that many bytes of memory are needed. The default is
    /// 26, 64 MiB: `zstd` uses larger ones only on request (`--ultra -22`, `--long`).
    pub zstd_window_log: u32,
}

impl Default for ConvertLimits {
    fn default() -> Self {
        Self {
            tar: TarLimits::default(),
            apply: ApplyLimits::default(),
            extents: DEFAULT_EXTENTS,
            tar_bytes: 128 << 30,
            zstd_window_log: 26,
        }
    }
}

impl ConvertLimits {
    /// The names of the limits, as errors have them.
    pub const NAMES: [&str; 12] = [
        "depth",
        "entries",
        "extended_bytes",
        "extents",
        "file_bytes",
        "path_bytes",
        "sparse_extents",
        "tar_bytes",
        "total_bytes",
        "trailing_bytes",
        "xattr_bytes",
        "zstd_window_log",
    ];

    /// Changes the limit of that name. `entries` are those of a layer, in its tar and as they are applied.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there is no such limit, or it cannot have that value.
    pub fn set(&mut self, name: &str, value: u64) -> Result<()> {
        let tar = &mut self.tar;
        match name {
            "depth" => self.apply.depth = saturating(value),
            "entries" => {
                self.apply.entries = value;
                tar.entries = tar.entries.max(value);
            }
            "extended_bytes" => tar.extended_bytes = value,
            "extents" => self.extents = value,
            "file_bytes" => tar.file_bytes = value,
            "path_bytes" => tar.path_bytes = value,
            "sparse_extents" => tar.sparse_extents = value,
            "tar_bytes" => self.tar_bytes = value,
            "total_bytes" => tar.total_bytes = value,
            "trailing_bytes" => tar.trailing_bytes = value,
            "xattr_bytes" => tar.xattr_bytes = value,
            "zstd_window_log" if (10..=31).contains(&value) => {
                self.zstd_window_log = exact(value, "at most 31");
            }
            "zstd_window_log" => {
                let cause = format!("a window of 2^{value} bytes is not possible");
                return Err(Error::invalid(cause).remedy("choose a power from 10 to 31"));
            }
            _ => {
                let cause = format!("there is no limit `{}`", name.escape_debug());
                return Err(Error::invalid(cause).remedy(format!("choose one of {}", Self::NAMES.join(", "))));
            }
        }
        Ok(())
    }
}

/// The place of the data of a converted image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvertMode {
    /// In its own layers.
    #[default]
    Native,
    /// In the container's layers, as they are: the image has TurboOCI layers with metadata only. Layers in zstd, for
    /// which the format has no index, get native layers with their data in the same image.
    Turbo,
}

/// The options of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertOptions {
    /// The place of the data.
    pub mode: ConvertMode,
    /// The file system of the disk. The default is ext4.
    pub file_system: FileSystemKind,
    /// `true` to make a disk of a single layer, by itself: an EROFS with the layer's files alone, on which overlayfs
    /// puts those of the layers above. The default is `false`: disks of whole images.
    pub alone: bool,
    /// The size of the disk in bytes: 1 MiB to 16 TiB, a multiple of 4096. The default is [`DEFAULT_DISK_SIZE`].
    pub size: u64,
    /// The form in which layers are stored. Its number of threads does not count.
    pub packing: Packing,
    /// The number of threads, 1 to 256, by which layers do not change. The default is 1: the caller's. With more, one
    /// of them reads and decompresses, and the others compress what the caller's thread makes.
    pub threads: usize,
    /// The bounds on layers.
    pub limits: ConvertLimits,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            mode: ConvertMode::Native,
            file_system: FileSystemKind::Ext4,
            alone: false,
            size: DEFAULT_DISK_SIZE,
            packing: Packing::default(),
            threads: 1,
            limits: ConvertLimits::default(),
        }
    }
}

impl ConvertOptions {
    /// Checks the size of the disk, the packing of TurboOCI layers and the form of a layer by itself; the other options
    /// are checked where they are used.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if no disk can have that size, no TurboOCI layer that packing, or no
    /// layer by itself that form.
    pub fn check(&self) -> Result<()> {
        if self.mode == ConvertMode::Turbo && self.packing == Packing::Plain {
            return Err(Error::invalid("the metadata of TurboOCI layers is always compressed")
                .remedy("choose lz4 or zstd"));
        }
        if self.alone && (self.file_system, self.mode) != (FileSystemKind::Erofs, ConvertMode::Native) {
            return Err(Error::invalid(
                "only an EROFS with its data can have the files of a layer by itself",
            )
            .remedy("choose erofs, and the mode native"));
        }
        let is_possible = self.file_system == FileSystemKind::Ext4 || self.size < *SIZES.end();
        if self.size.is_multiple_of(4096) && SIZES.contains(&self.size) && is_possible {
            return Ok(());
        }
        Err(Error::invalid(format!("a file system on a disk of {} bytes is not possible", self.size))
            .remedy("choose a multiple of 4 KiB from 1 MiB to 16 TiB"))
    }

    /// Returns the options that the bytes of layers depend on, and the version of the writer, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let mode = match self.mode {
            ConvertMode::Native => "",
            ConvertMode::Turbo => ",mode=turbo",
        };
        let alone = if self.alone { ",alone" } else { "" };
        let packing = describe(&self.packing);
        let writer = match self.file_system {
            FileSystemKind::Ext4 => WRITER_VERSION,
            FileSystemKind::Erofs => EROFS_WRITER_VERSION,
        };
        let fs = self.file_system.name();
        format!("writer={writer},fs={fs}{mode}{alone},size={},{packing}", self.size)
    }

    /// Returns the key of the layer with that chain id; `source` is the digest of the container's layer as stored,
    /// which counts only if its bytes stay the data of the image.
    #[must_use]
    pub fn key(&self, chain: &Digest, source: &Digest) -> Digest {
        let source = match self.mode {
            ConvertMode::Native => String::new(),
            ConvertMode::Turbo => format!("{source}\n"),
        };
        Digest::of(format!("headstart convert\n{}\n{chain}\n{source}", self.describe()).as_bytes())
    }

    /// The packing, with the threads of the conversion.
    pub(crate) fn threaded_packing(&self) -> Packing {
        match &self.packing {
            Packing::Plain => Packing::Plain,
            Packing::ZFile(options) => {
                let mut options = options.clone();
                options.threads = self.threads;
                Packing::ZFile(options)
            }
        }
    }
}

/// Returns the chain id of a layer: the digest of its content and that of all layers below it, as the image
/// specification defines it. `below` is the chain id of the layer below, `None` for the first.
#[must_use]
pub fn chain_id(below: Option<&Digest>, diff_id: &Digest) -> Digest {
    below.map_or(*diff_id, |below| Digest::of(format!("{below} {diff_id}").as_bytes()))
}

/// The id of the layer with that chain id, as OverlayBD's convertor chooses it: its first 16 bytes.
pub(crate) fn layer_uuid(chain: Option<&Digest>) -> Uuid {
    let first = chain.and_then(|chain| chain.as_bytes().first_chunk().copied());
    first.map_or(Uuid::nil(), Uuid::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_zfile::{Codec, ZFileOptions};

    #[test]
    fn chain_ids_are_those_of_the_specification() {
        let [a, b] = [b"a", b"b"].map(|text| Digest::of(text));
        assert_eq!(chain_id(None, &a), a);
        assert_eq!(chain_id(Some(&a), &b), Digest::of(format!("{a} {b}").as_bytes()));
        assert_eq!(layer_uuid(Some(&a)).simple().to_string(), a.hex()[..32]);
        assert!(layer_uuid(None).is_nil());
    }

    #[test]
    fn keys_differ_by_what_changes_bytes_and_by_nothing_else() {
        let chain = Digest::of(b"a");
        let plain = ConvertOptions::default();
        let threads = ConvertOptions { threads: 8, ..plain.clone() };
        let limits = ConvertLimits { tar_bytes: 5, ..ConvertLimits::default() };
        let limited = ConvertOptions { limits, ..plain.clone() };
        let threaded = ZFileOptions { threads: 3, ..ZFileOptions::default() };
        let packing = ConvertOptions { packing: Packing::ZFile(threaded), ..plain.clone() };
        for same in [threads, limited, packing] {
            assert_eq!(same.key(&chain, &chain), plain.key(&chain, &Digest::of(b"gzip")));
        }
        let larger = ConvertOptions { size: 128 << 30, ..plain.clone() };
        let lz4 = ZFileOptions { codec: Codec::Lz4, ..ZFileOptions::default() };
        let lz4 = ConvertOptions { packing: Packing::ZFile(lz4), ..plain.clone() };
        let stored = ConvertOptions { packing: Packing::Plain, ..plain.clone() };
        let turbo = ConvertOptions { mode: ConvertMode::Turbo, ..plain.clone() };
        let erofs = ConvertOptions { file_system: FileSystemKind::Erofs, ..plain.clone() };
        let alone = ConvertOptions { alone: true, ..erofs.clone() };
        assert_ne!(alone.key(&chain, &chain), erofs.key(&chain, &chain));
        for other in [larger, lz4, stored, turbo.clone(), erofs.clone(), alone] {
            assert_ne!(other.key(&chain, &chain), plain.key(&chain, &chain));
        }
        assert_ne!(plain.key(&chain, &chain), plain.key(&Digest::of(b"b"), &chain));
        assert_ne!(turbo.key(&chain, &chain), turbo.key(&chain, &Digest::of(b"gzip")));
        // Native layers are known by the keys that they had before there was another mode.
        assert_eq!(plain.describe(), "writer=1,fs=ext4,size=68719476736,zstd,frame=32768,crc");
        assert_eq!(erofs.describe(), "writer=1,fs=erofs,size=68719476736,zstd,frame=32768,crc");
    }

    #[test]
    fn every_limit_can_be_changed_by_its_name() {
        let mut seen = Vec::new();
        for name in ConvertLimits::NAMES {
            let mut limits = ConvertLimits::default();
            limits.set(name, 27).unwrap();
            assert_ne!(limits, ConvertLimits::default(), "{name}");
            assert!(!seen.contains(&limits), "{name}");
            seen.push(limits);
        }
        let error = |name, value| ConvertLimits::default().set(name, value).unwrap_err().to_string();
        assert!(error("memory", 1).contains("choose one of depth, entries,"));
        assert!(error("zstd_window_log", 32).contains("from 10 to 31"));
    }

    #[test]
    fn metadata_without_compression_is_refused() {
        let check = |mode, packing| ConvertOptions { mode, packing, ..ConvertOptions::default() }.check();
        assert!(check(ConvertMode::Turbo, Packing::default()).is_ok());
        assert!(check(ConvertMode::Native, Packing::Plain).is_ok());
        assert!(check(ConvertMode::Turbo, Packing::Plain).is_err());
    }

    #[test]
    fn a_layer_by_itself_is_an_erofs_with_its_data() {
        let check = |mode, file_system| {
            ConvertOptions { mode, file_system, alone: true, ..ConvertOptions::default() }.check()
        };
        assert!(check(ConvertMode::Native, FileSystemKind::Erofs).is_ok());
        assert!(check(ConvertMode::Native, FileSystemKind::Ext4).is_err());
        assert!(check(ConvertMode::Turbo, FileSystemKind::Erofs).is_err());
    }

    #[test]
    fn sizes_that_no_disk_has_are_refused() {
        let check = |size| ConvertOptions { size, ..ConvertOptions::default() }.check().is_ok();
        assert!(check(64 << 30) && check(1 << 20) && !check(0) && !check((1 << 30) + 512) && !check(1 << 60));
    }
}
