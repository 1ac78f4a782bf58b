//! An EROFS that is the parent of a layer.

use headstart_block::{ReadAt, Result, to_usize};
use headstart_erofs::{ErofsAttributes, ErofsFileSystem, ErofsNode};
use headstart_file_blocks::{BlockSink, FileContent, FileKind};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the disk: zeros follow the input.
const DISK: usize = 1 << 20;
/// Files that are looked at.
const FILES: usize = 300;
/// Bytes that are read of a file.
const CONTENT: u64 = 10_000;

/// A sink that keeps nothing.
struct Discard;

impl BlockSink for Discard {
    fn data(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// New content for a file.
struct Ones(u64);

impl FileContent for Ones {
    fn size(&self) -> u64 {
        self.0
    }

    fn runs(&self) -> &[Range<u64>] {
        const FIRST: &[Range<u64>] = &[Range { start: 0, end: 1 }];
        if self.0 == 0 { &[] } else { FIRST }
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<()> {
        buf.fill(1);
        Ok(())
    }
}

/// A disk with an EROFS, of which everything is read, changed and removed. Its checksum, which no mutation would keep,
/// is made right first.
///
/// # Errors
/// Fails if the input is not one, or something in it is damaged.
pub fn erofs_parent(input: &[u8]) -> Result<()> {
    let mut disk = input.to_vec();
    disk.resize(DISK, 0);
    let sum = checksum(&disk[1024..4096]);
    disk[1028..1032].copy_from_slice(&sum.to_le_bytes());
    let disk: Arc<dyn ReadAt> = Arc::new(disk);
    let open = || ErofsFileSystem::open(Arc::clone(&disk), Discard);
    let found = walk(&mut open()?)?;
    let mut fs = open()?;
    let xattrs = [(b"user.grown".to_vec(), vec![7; 100])].into();
    let attributes = ErofsAttributes { mode: 0o700, xattrs, ..ErofsAttributes::default() };
    for (number, (dir, name, node, size)) in found.iter().enumerate() {
        // Later ones may be gone with earlier ones.
        let _ = match number % 4 {
            0 => fs.set_attributes(*node, &attributes),
            1 => fs.replace(*dir, name, &attributes, &mut Ones(*size)),
            2 => fs.remove(*dir, name).map(drop),
            _ => fs.link(*dir, &[&name[..name.len().min(200)], b"+"].concat(), *node),
        };
    }
    fs.finish()?;
    let mut fs = open()?;
    let root = fs.root();
    for (_, name, ..) in found.iter().filter(|(dir, ..)| *dir == root) {
        fs.remove(root, name)?;
    }
    fs.finish().map(drop)
}

/// A file: its directory, its name there, itself and its size.
type Found = (ErofsNode, Vec<u8>, ErofsNode, u64);

/// Reads some of all files.
fn walk(fs: &mut ErofsFileSystem<Discard>) -> Result<Vec<Found>> {
    let (mut found, mut pending) = (Vec::new(), vec![fs.root()]);
    while let Some(dir) = pending.pop() {
        for part in 0.. {
            let Some(names) = fs.names(dir, part)? else { break };
            for name in names {
                let Some(node) = fs.lookup(dir, &name)? else { continue };
                let status = fs.status(node)?;
                let _ = fs.xattrs(node)?;
                match status.kind {
                    FileKind::Directory => pending.push(node),
                    FileKind::Symlink => drop(fs.link_target(node)?),
                    FileKind::Regular => {
                        let mut buf = vec![0; to_usize(status.size.min(CONTENT))];
                        fs.read_content(node, status.size - buf.len() as u64, &mut buf)?;
                    }
                    _ => {}
                }
                found.push((dir, name, node, status.size.min(1 << 30)));
                if found.len() == FILES {
                    return Ok(found);
                }
            }
        }
    }
    Ok(found)
}

/// CRC-32C of a superblock and of what follows it, without its own bytes.
fn checksum(bytes: &[u8]) -> u32 {
    let own = 4..8;
    bytes.iter().enumerate().fold(u32::MAX, |sum, (at, byte)| {
        let mut sum = sum ^ u32::from(if own.contains(&at) { 0 } else { *byte });
        for _ in 0..8 {
            sum = sum >> 1 ^ if sum & 1 == 0 { 0 } else { 0x82f6_3b78 };
        }
        sum
    })
}
