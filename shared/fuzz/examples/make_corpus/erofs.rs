//! An EROFS with two layers.

use headstart_block::{ReadAt, Result, to_usize};
use headstart_erofs::{ErofsAttributes, ErofsFileSystem, NewErofs};
use headstart_file_blocks::{BlockSink, FileContent, NewInode};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the disk.
const DISK: usize = 1 << 20;

/// A disk in memory.
struct Disk(Vec<u8>);

impl BlockSink for Disk {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0[to_usize(offset)..to_usize(offset) + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Content of ones.
struct Ones(u64, Vec<Range<u64>>);

impl FileContent for Ones {
    fn size(&self) -> u64 {
        self.0
    }

    fn runs(&self) -> &[Range<u64>] {
        &self.1
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<()> {
        buf.fill(1);
        Ok(())
    }
}

/// A file system with files of all kinds, and a directory of two blocks.
pub(crate) fn two_layers() -> Result<Vec<u8>> {
    let plain = ErofsAttributes { mode: 0o755, ..ErofsAttributes::default() };
    let xattrs = [(b"user.name".to_vec(), b"value".to_vec())].into();
    let named = ErofsAttributes { xattrs, ..plain.clone() };
    let new = NewErofs { size: DISK as u64, uuid: [7; 16], root: plain.clone() };
    let mut fs = new.make(Disk(vec![0; DISK]))?;
    let root = fs.root();
    let dir = fs.create(root, b"dir", &NewInode::Directory, &plain)?;
    for number in 0..20 {
        let name = format!("{number}{}", "n".repeat(240));
        fs.create(dir, name.as_bytes(), &NewInode::Fifo, &plain)?;
    }
    let file = fs.create(root, b"file", &NewInode::Regular, &named)?;
    fs.write_content(file, &mut Ones(5000, std::iter::once(0..5000).collect()))?;
    fs.link(dir, b"again", file)?;
    let sparse = fs.create(root, b"sparse", &NewInode::Regular, &plain)?;
    fs.write_content(sparse, &mut Ones(20_000, std::iter::once(9000..9001).collect()))?;
    fs.create(root, b"link", &NewInode::Symlink(b"dir/again"), &plain)?;
    fs.create(root, b"long", &NewInode::Symlink(&[b'l'; 4095]), &plain)?;
    fs.create(root, b"null", &NewInode::CharDevice(1, 3), &plain)?;
    let (Disk(disk), _) = fs.finish()?;
    let parent: Arc<dyn ReadAt> = Arc::new(disk.clone());
    let mut fs = ErofsFileSystem::open(parent, Disk(disk))?;
    fs.remove(root, b"null")?;
    if let Some(dir) = fs.lookup(root, b"dir")? {
        fs.set_attributes(dir, &named)?;
    }
    let (Disk(mut disk), summary) = fs.finish()?;
    disk.truncate(DISK - to_usize(summary.free_blocks * 4096));
    Ok(disk)
}
