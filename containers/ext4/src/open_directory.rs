//! A directory of the file system that is being changed, as the blocks that `directory` works on.

use crate::BLOCK_SIZE;
use crate::Block;
use crate::directory::DirectoryBlocks;
use crate::extents::ExtentMap;
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
    map: ExtentMap,
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
        let map = state.extents(&inode)?;
        let count = State::directory_blocks(&inode)?;
        Ok(Self { state, number, inode, map, count, changed: false })
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
    fn place(&self, n: u32) -> Result<u64> {
        self.map.block(n).filter(|_| n < self.count).ok_or_else(|| {
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
        if self.map.extents.last().is_some_and(|last| last.end() > u64::from(number)) {
            return Err(Error::corrupt(format!(
                "the directory with inode {} has blocks past its end",
                self.number
            )));
        }
        self.count = number + 1;
        let place = self.state.allocator.take_metadata_block(&mut self.state.blocks)?;
        self.state.blocks.fresh(place)?;
        append_run(&mut self.map.extents, number, place..place + 1);
        let tree = std::mem::take(&mut self.map.tree_blocks);
        self.state.set_extents(&mut self.inode, &self.map.extents, &tree)?;
        self.map = self.state.extents(&self.inode)?;
        self.inode.size = u64::from(self.count) * BLOCK_SIZE as u64;
        self.changed = true;
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::empty;
    use crate::state::ROOT;
    use crate::support::blank;

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
        let (tree, extents) = (open.map.tree_blocks.len(), open.map.extents.len());
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
