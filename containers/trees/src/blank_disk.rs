//! The empty disk: an image of one layer, an ext4 without files.

use crate::tree_name::TreeName;
use headstart_block::{Error, ErrorKind, Result, private};
use headstart_convert::empty_file_system;
use headstart_file_blocks::BlockSink;
use headstart_image::disk_file::{DiskFile, DiskFormat};
use headstart_image::import::import_disk;
use headstart_image::new_layer::Packing;
use headstart_image::progress::Silent;
use headstart_image::store::{ImageStore, by_digest};
use headstart_store::{Location, Reference, Selector};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// An empty disk of a size, as an image in a directory of its own.
#[derive(Debug)]
pub struct BlankDisk {
    directory: PathBuf,
    size: u64,
    /// The image, once it is known to be there.
    known: Mutex<Option<TreeName>>,
}

impl BlankDisk {
    /// An empty disk of `size` bytes, whose image is made in `directory` when it is needed.
    #[must_use]
    pub fn new(directory: PathBuf, size: u64) -> Self {
        Self { directory, size, known: Mutex::default() }
    }

    /// The image.
    ///
    /// # Errors
    /// If it cannot be made, such as for a size that is out of range.
    pub fn image(&self) -> Result<TreeName> {
        let mut known = self.known.lock();
        if let Some(known) = &*known {
            return Ok(known.clone());
        }
        let selector = Selector::Tag(format!("ext4-{}", self.size).parse()?);
        let tagged = Reference { location: Location::Directory(self.directory.clone()), selector };
        let digest = match ImageStore::open_image(&tagged) {
            Ok((_, image)) => image.digest,
            Err(error) if error.kind() == ErrorKind::NotFound => self.make(&tagged)?,
            Err(error) => return Err(error),
        };
        let made = TreeName { image: by_digest(&tagged, digest), lowest: None, above: Vec::new() };
        *known = Some(made.clone());
        Ok(made)
    }

    fn make(&self, tagged: &Reference) -> Result<headstart_block::Digest> {
        private::make_directory(&self.directory)?;
        let raw = self.directory.with_extension("raw");
        let failed = |error| Error::io("cannot be made", error).about(raw.display());
        let file = private::options().write(true).create(true).truncate(true).open(&raw).map_err(failed)?;
        file.set_len(self.size).map_err(failed)?;
        empty_file_system(self.size).make(RawFile(file))?.finish()?;
        let disk = DiskFile { format: Some(DiskFormat::Raw), ..DiskFile::at(&raw) };
        let imported = import_disk(&disk, None, tagged, &Packing::default(), &Silent);
        fs::remove_file(&raw).map_err(failed)?;
        Ok(imported?.0.digest)
    }
}

/// A file that takes the blocks of a disk.
struct RawFile(File);

impl BlockSink for RawFile {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.0.write_all_at(bytes, offset)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::BlockDevice;
    use headstart_image::open_image::OpenImage;

    #[test]
    fn an_empty_disk_is_made_once_and_is_a_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let blank = || BlankDisk::new(dir.path().join("blank"), 1 << 30);
        let tree = blank().image().unwrap();
        assert_eq!(blank().image().unwrap(), tree);
        assert_eq!(tree.layer().0.parse::<TreeName>().unwrap(), tree);
        assert!(!dir.path().join("blank.raw").exists());
        let disk = OpenImage::open(&tree.image).unwrap().into_disk();
        let mut magic = [0; 2];
        disk.read_at(&mut magic, 1024 + 0x38).unwrap();
        assert_eq!((disk.size(), magic), (1 << 30, [0x53, 0xef]));
        assert!(BlankDisk::new(dir.path().join("small"), 4096).image().is_err());
    }
}
