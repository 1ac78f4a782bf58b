//! A directory of the file system that is being changed, as the blocks that `directory` works on.
//!
//! A directory is opened for each of its names, and a name is in few of its blocks. So the place of a block is looked
//! up when the block is needed; all places are read only when the directory grows.

use crate::BLOCK_SIZE;
use crate::Block;
use crate::directory::DirectoryBlocks;
use crate::inode::Inode;
use crate::state::{State, append_run};
use headstart_block::{Error, Result};
use headstart_file_blocks::FileKind;

/// The most blocks of a directory: the size of a directory is a number of 32 bits.
const MAX_BLOCKS: u32 = u32::MAX / 4096;

/// The blocks of one directory. After changes, [`OpenDirectory::close`] stores its inode.
pub(crate) struct OpenDirectory<'a> {
    state: &'a mut State,
    number: u32,
    inode: Inode,
    count: u32,
    /// `true` if the inode must be stored: the directory has grown, or its inode was changed.
    changed: bool,
}

impl<'a> OpenDirectory<'a> {
    /// Opens the directory with this inode.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the inode is that of another kind of file; `Corrupt` if it is
    /// damaged; errors of the parent.
    pub(crate) fn open(state: &'a mut State, number: u32) -> Result<Self> {
        let inode = state.inode(number)?;
        if inode.kind()? != FileKind::Directory {
            return Err(Error::invalid(format!("the file with inode {number} is not a directory")));
        }
        let count = State::directory_blocks(&inode)?;
        Ok(Self { state, number, inode, count, changed: false })
    }

    /// `true` if the directory has an index by hashes.
    pub(crate) fn is_indexed(&self) -> bool {
        self.inode.is_indexed()
    }

    /// The directory's inode, to change it.
    pub(crate) fn inode_mut(&mut self) -> &mut Inode {
        self.changed = true;
        &mut self.inode
    }

    /// Stores the inode if the directory has grown or its inode was changed.
    ///
    /// # Errors
    /// Errors of the parent.
    pub(crate) fn close(self) -> Result<()> {
        if self.changed { self.state.put_inode(self.number, &self.inode) } else { Ok(()) }
    }

    /// The block of the disk that is block `n` of the directory.
    fn place(&mut self, n: u32) -> Result<u64> {
        let place = if n < self.count { self.state.block_of(&self.inode, n)? } else { None };
        place.ok_or_else(|| {
            Error::corrupt(format!("the directory with inode {} has no block {n}", self.number))
        })
    }
}

impl DirectoryBlocks for OpenDirectory<'_> {
    fn count(&self) -> u32 {
        self.count
    }

    fn block(&mut self, n: u32) -> Result<&Block> {
        let place = self.place(n)?;
        self.state.blocks.get(place)
    }

    fn block_mut(&mut self, n: u32) -> Result<&mut Block> {
        let place = self.place(n)?;
        self.state.blocks.get_mut(place)
    }

    fn append(&mut self) -> Result<u32> {
        let number = self.count;
        if number >= MAX_BLOCKS {
            return Err(Error::unsupported(format!(
                "the directory with inode {} has {number} blocks, the most",
                self.number
            )));
        }
        let mut map = self.state.extents(&self.inode)?;
        if map.extents.last().is_some_and(|last| last.end() > u64::from(number)) {
            return Err(Error::corrupt(format!(
                "the directory with inode {} has blocks past its end",
                self.number
            )));
        }
        self.count = number + 1;
        let place = self.state.allocator.take_metadata_block(&mut self.state.blocks)?;
        self.state.blocks.fresh(place)?;
        append_run(&mut map.extents, number, place..place + 1);
        self.state.set_extents(&mut self.inode, &map.extents, &map.tree_blocks)?;
        self.inode.size = u64::from(self.count) * BLOCK_SIZE as u64;
        self.changed = true;
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::empty;
    use crate::file_system::FileSystem;
    use crate::format::NewFileSystem;
    use crate::state::ROOT;
    use crate::support::{Discard, blank, plain_attributes};
    use headstart_block::{ReadAt, to_usize};
    use headstart_file_blocks::BlockSink;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A disk in memory.
    struct Memory(Vec<u8>);

    impl BlockSink for Memory {
        fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.0[to_usize(offset)..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
    }

    /// A disk that counts what is read.
    struct Counted {
        bytes: Vec<u8>,
        reads: AtomicU64,
    }

    impl ReadAt for Counted {
        fn len(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.bytes.read_at(buf, offset)
        }
    }

    /// Makes a root directory of so many blocks, none of which is next to another one, and returns how many blocks of
    /// the disk are read for one of them.
    fn reads_for_a_block(count: u32) -> u64 {
        let size = 64 << 20;
        let new = NewFileSystem { size, uuid: [7; 16], hash_seed: [1; 4], root: plain_attributes(0o755) };
        let mut fs = new.make(Memory(vec![0; to_usize(size)])).unwrap();
        let mut open = OpenDirectory::open(&mut fs.state, ROOT).unwrap();
        for _ in 1..count {
            let state = &mut *open.state;
            state.allocator.take_metadata_block(&mut state.blocks).unwrap();
            open.append().unwrap();
        }
        open.close().unwrap();
        let bytes = fs.finish().unwrap().0.0;
        let disk = Arc::new(Counted { bytes, reads: AtomicU64::new(0) });
        let mut fs = FileSystem::open(disk.clone(), Discard).unwrap();
        let before = disk.reads.load(Ordering::Relaxed);
        OpenDirectory::open(&mut fs.state, ROOT).unwrap().block(count / 2).unwrap();
        disk.reads.load(Ordering::Relaxed) - before
    }

    #[test]
    fn a_block_costs_as_much_in_a_large_directory_as_in_a_small_one() {
        // The inode, two levels of the tree of extents, and the block.
        assert_eq!([1500, 3000].map(reads_for_a_block), [4, 4]);
    }

    #[test]
    fn a_directory_grows_by_blocks_of_zeros() {
        let mut state = blank(64 << 20).state;
        let mut open = OpenDirectory::open(&mut state, ROOT).unwrap();
        assert_eq!((open.count(), *open.block(0).unwrap()), (1, empty(ROOT, ROOT)));
        assert!(open.block(1).is_err());
        for number in 1..2000_u32 {
            assert_eq!(open.append().unwrap(), number);
            assert_eq!(*open.block(number).unwrap(), [0; BLOCK_SIZE]);
            open.block_mut(number).unwrap()[..4].copy_from_slice(&number.to_le_bytes());
            if number % 3 == 0 {
                // Another file takes a block, so that the directory is in many pieces.
                let state = &mut *open.state;
                state.allocator.take_metadata_block(&mut state.blocks).unwrap();
            }
        }
        open.close().unwrap();
        let mut open = OpenDirectory::open(&mut state, ROOT).unwrap();
        assert_eq!(open.count(), 2000);
        for number in 1..2000_u32 {
            assert_eq!(open.block(number).unwrap()[..4], number.to_le_bytes());
        }
        let map = open.state.extents(&open.inode).unwrap();
        let (tree, extents) = (map.tree_blocks.len(), map.extents.len());
        assert!(extents > 340 && tree < 6, "{extents} extents, {tree} blocks of their tree");
        assert_eq!(open.inode.blocks, (2000 + tree as u64) * 8);
    }

    #[test]
    fn an_inode_without_changes_is_not_stored() {
        let mut state = blank(8 << 20).state;
        let mut open = OpenDirectory::open(&mut state, ROOT).unwrap();
        open.inode.flags |= 0x10;
        open.close().unwrap();
        let mut open = OpenDirectory::open(&mut state, ROOT).unwrap();
        assert!(!open.is_indexed() && open.inode.flags & 0x10 == 0);
        open.inode_mut().flags |= 0x10;
        open.close().unwrap();
        assert!(state.inode(ROOT).unwrap().flags & 0x10 != 0);
    }

    #[test]
    fn other_files_are_refused() {
        let mut state = blank(8 << 20).state;
        for number in [0, 1, 3, 10_000] {
            assert!(OpenDirectory::open(&mut state, number).is_err());
        }
    }
}
