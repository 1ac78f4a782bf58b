//! Inodes and names of a file system, over the parent's.
//!
//! A node is an inode, of the parent or new. One of the parent has the number that it has there; new ones are counted
//! from [`FIRST_NEW`] on, and get their numbers at the end, when it is known how much room each takes.

use crate::dirents::{self, Dirent};
use crate::inode::{HEAD, Inode, InodeContent, SLOT, record_length};
use crate::superblock::Superblock;
use crate::table::Table;
use headstart_block::{ByteRange, Error, Result, to_usize};
use headstart_file_blocks::{BLOCK_SIZE, ChangedBlocks, FileKind, blocks_for};
use std::ops::Range;

/// The first number of a new node: more than a disk has places for inodes.
pub(crate) const FIRST_NEW: u64 = 1 << 40;
/// Slots of a block.
const SLOTS: u64 = BLOCK_SIZE as u64 / SLOT;

/// The beginnings of keys in the table of changes: of inodes, of names (with the directory and the name), of new places
/// of inodes, of nodes all of whose names are among the changes, and of directories that were searched.
pub(crate) const INODE: u8 = b'i';
pub(crate) const NAME: u8 = b'n';
pub(crate) const PLACE: u8 = b'p';
pub(crate) const NAMED: u8 = b'm';
pub(crate) const SEARCHED: u8 = b's';

/// The state of a file system that is changed.
pub(crate) struct State {
    pub(crate) superblock: Superblock,
    /// The blocks of the parent, and those that are written at the end.
    pub(crate) blocks: ChangedBlocks,
    pub(crate) changes: Table,
    /// Blocks that the parent uses; 0 if there is none.
    pub(crate) parent_end: u32,
    /// Blocks of the disk.
    pub(crate) disk_blocks: u32,
    /// Number of nodes that were made.
    pub(crate) made: u64,
}

/// The key of something that a node has.
pub(crate) fn key(of: u8, node: u64) -> [u8; 9] {
    let mut key = [of; 9];
    key[1..].copy_from_slice(&node.to_be_bytes());
    key
}

/// The key of a name.
pub(crate) fn name_key(dir: u64, name: &[u8]) -> Vec<u8> {
    [&key(NAME, dir)[..], name].concat()
}

impl State {
    /// Takes the next free blocks, which follow each other.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there are not enough.
    pub(crate) fn take(&mut self, count: u64) -> Result<u32> {
        let start = self.superblock.blocks;
        let end = u64::from(start).checked_add(count).filter(|end| *end <= self.disk_blocks.into());
        let end = end.and_then(|end| u32::try_from(end).ok()).ok_or_else(|| {
            let size = u64::from(self.disk_blocks) * BLOCK_SIZE as u64;
            Error::invalid(format!("the file system is full: its disk has {size} bytes"))
                .remedy("make it larger (--size)")
        })?;
        self.superblock.blocks = end;
        Ok(start)
    }

    /// The bytes of an inode of the parent and of what follows it.
    fn record_of_parent(&mut self, node: u64) -> Result<Vec<u8>> {
        let outside = || Error::corrupt(format!("a directory leads to inode {node}, which there is not"));
        if node / SLOTS >= self.parent_end.into() {
            return Err(outside());
        }
        let mut record = vec![0; HEAD];
        self.read_old(node * SLOT, &mut record)?;
        record.resize(record_length(&record)?, 0);
        if (node * SLOT + record.len() as u64).div_ceil(BLOCK_SIZE as u64) > self.parent_end.into() {
            return Err(outside());
        }
        self.read_old(node * SLOT, &mut record)?;
        Ok(record)
    }

    /// The length of an inode of the parent with what follows it.
    pub(crate) fn old_length(&mut self, node: u64) -> Result<usize> {
        self.record_of_parent(node).map(|record| record.len())
    }

    /// Reads bytes of metadata by way of the blocks in memory.
    fn read_old(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        for part in ByteRange::between(offset, offset + buf.len() as u64).parts(BLOCK_SIZE as u64) {
            let start = to_usize(part.offset() % BLOCK_SIZE as u64);
            let len = to_usize(part.len());
            let content = self.blocks.get(part.offset() / BLOCK_SIZE as u64)?;
            buf[done..done + len].copy_from_slice(&content[start..start + len]);
            done += len;
        }
        Ok(())
    }

    /// The present state of an inode.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if there is none or it is damaged; errors of reading the parent.
    pub(crate) fn inode(&mut self, node: u64) -> Result<Inode> {
        match self.changes.get(&key(INODE, node))? {
            Some(record) if record.is_empty() => {
                Err(Error::corrupt(format!("a directory leads to inode {node}, which was removed")))
            }
            Some(record) => Inode::decode(&record),
            None => Inode::decode(&self.record_of_parent(node)?),
        }
    }

    /// The inode of a directory.
    pub(crate) fn directory(&mut self, node: u64) -> Result<Inode> {
        let inode = self.inode(node)?;
        if inode.kind == FileKind::Directory {
            return Ok(inode);
        }
        Err(Error::corrupt(format!("inode {node} is not a directory")))
    }

    pub(crate) fn put_inode(&mut self, node: u64, inode: &Inode) -> Result<()> {
        self.changes.put(&key(INODE, node), &inode.encode())
    }

    /// A new node.
    pub(crate) fn make_inode(&mut self, inode: &Inode) -> Result<u64> {
        let node = FIRST_NEW + self.made;
        self.made += 1;
        self.superblock.inodes = self.superblock.inodes.saturating_add(1);
        self.put_inode(node, inode)?;
        Ok(node)
    }

    pub(crate) fn remove_inode(&mut self, node: u64) -> Result<()> {
        self.superblock.inodes = self.superblock.inodes.saturating_sub(1);
        self.changes.put(&key(INODE, node), &[])
    }

    pub(crate) fn put_name(&mut self, dir: u64, name: &[u8], node: u64, kind: u8) -> Result<()> {
        let mut value = node.to_be_bytes().to_vec();
        value.push(kind);
        self.changes.put(&name_key(dir, name), &value)
    }

    pub(crate) fn remove_name(&mut self, dir: u64, name: &[u8]) -> Result<()> {
        self.changes.put(&name_key(dir, name), &[])
    }

    /// The blocks that a directory of the parent has there.
    pub(crate) fn old_blocks(&mut self, dir: u64) -> Result<Range<u64>> {
        let inode = self.directory(dir)?;
        if dir >= FIRST_NEW || self.parent_end == 0 {
            return Ok(0..0);
        }
        let InodeContent::Blocks(start) = inode.content else {
            return Err(Error::corrupt(format!("the directory {dir} has no blocks")));
        };
        let range = u64::from(start)..u64::from(start) + blocks_for(inode.size);
        if range.end > self.parent_end.into() {
            return Err(Error::corrupt(format!("the directory {dir} has blocks that there are not")));
        }
        Ok(range)
    }

    /// The block of a directory of the parent in which a name is or would be.
    pub(crate) fn block_with(&mut self, blocks: &Range<u64>, name: &[u8]) -> Result<u64> {
        let (mut low, mut high) = (blocks.start + 1, blocks.end);
        while low < high {
            let middle = low.midpoint(high);
            if dirents::first_name(self.blocks.get(middle)?)? <= name {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low - 1)
    }

    /// The present entry with that name in a directory; `None` if there is none.
    pub(crate) fn entry(&mut self, dir: u64, name: &[u8]) -> Result<Option<Dirent>> {
        if let Some(change) = self.changes.get(&name_key(dir, name))? {
            return Ok(changed(name, &change));
        }
        let blocks = self.old_blocks(dir)?;
        if blocks.is_empty() {
            return Ok(None);
        }
        let block = self.block_with(&blocks, name)?;
        let mut entries = dirents::decode(self.blocks.get(block)?)?;
        let found = entries.binary_search_by(|entry| (*entry.name).cmp(name));
        Ok(found.ok().map(|at| entries.swap_remove(at)))
    }
}

/// A changed entry; `None` if the change is its removal.
pub(crate) fn changed(name: &[u8], change: &[u8]) -> Option<Dirent> {
    let (node, kind) = change.split_first_chunk()?;
    Some(Dirent { name: name.to_vec(), node: u64::from_be_bytes(*node), kind: *kind.first()? })
}
