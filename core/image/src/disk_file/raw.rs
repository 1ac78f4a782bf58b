//! Raw disks: files with holes, and block devices.

use headstart_block::{BlockDevice, ByteRange, Error, Extent, FileSource, ReadAt, Result};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::path::Path;

/// A raw disk image, which is a file or block device that holds the disk's bytes alone. It is opened
/// read-only. Holes of a sparse file are reported as extents of zeros.
#[derive(Debug)]
pub struct RawDisk {
    file: FileSource,
}

impl RawDisk {
    /// Opens the raw disk at `path`.
    ///
    /// # Errors
    /// Errors of opening the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::of(FileSource::open(path)?))
    }

    /// Makes a raw disk of a file that is open already.
    #[must_use]
    pub fn of(file: FileSource) -> Self {
        // The reader goes front to back, so the kernel may read ahead as far as it likes.
        let _ = rustix::fs::fadvise(file.file(), 0, None, rustix::fs::Advice::Sequential);
        Self { file }
    }

    fn seek(&self, to: SeekFrom) -> Result<Option<u64>> {
        match seek(self.file.file(), to) {
            Ok(offset) => Ok(Some(offset)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(Error::io("cannot find its holes", e.into()).about(self.file.path().display())),
        }
    }
}

impl BlockDevice for RawDisk {
    fn size(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buf, offset)
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let size = self.size();
        if offset >= size {
            return Err(Error::invalid(format!(
                "offset {offset} lies past the end of the disk ({size} bytes)"
            )));
        }
        let data = match self.seek(SeekFrom::Data(offset)) {
            // A block device or a file system without holes: all of it is data.
            Err(_) => return Ok(Extent { range: ByteRange::between(offset, size), zero: false }),
            Ok(data) => data.unwrap_or(size).min(size),
        };
        if data > offset {
            return Ok(Extent { range: ByteRange::between(offset, data), zero: true });
        }
        let hole = self.seek(SeekFrom::Hole(offset))?.unwrap_or(size).min(size);
        Ok(Extent { range: ByteRange::between(offset, hole.max(offset + 1)), zero: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_zero_extents() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.raw");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[1; 65536], 1 << 20).unwrap();
        let disk = RawDisk::open(&path).unwrap();
        let (mut offset, mut data) = (0, 0);
        while offset < disk.size() {
            let extent = disk.extent_at(offset).unwrap();
            assert_eq!(extent.range.offset(), offset);
            data += if extent.zero { 0 } else { extent.range.len() };
            offset = extent.range.end();
        }
        assert_eq!((offset, data), (8 << 20, 65536));
        assert!(disk.extent_at(8 << 20).is_err());
    }
}
