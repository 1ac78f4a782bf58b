//! The blocks of metadata that a layer changes, over the blocks that the parent has.
//!
//! Every structure of the file system but the content of files is edited here, block by block, as the page cache of a
//! kernel would: a block is read from the parent when it is needed first, and is changed in memory. At the end the
//! blocks that differ from the parent's are the metadata of the layer. So a layer costs what it changes, whatever
//! program made the parent, and its bytes do not depend on how much of the parent was in memory.
//!
//! # Memory
//! Changed blocks stay in memory up to [`BLOCKS_IN_MEMORY`]. Beyond that, they are moved to a temporary file without a
//! name, a block at a time in order of their numbers, and come back when they are needed again. A block in the file
//! takes 5 bytes of memory if those around it are there, too (`moved`): all metadata of a new file system of 64 GiB,
//! full of directories, 20 MB.

use crate::block_reader::BlockReader;
use crate::moved::MovedBlocks;
use crate::{BLOCK_SIZE, Block, BlockSink};
use headstart_block::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The content of every block of a new file system.
static ZEROS: Block = [0; BLOCK_SIZE];

/// Changed blocks that stay in memory: 12 MiB. With those of the parent, half as many, they must leave room for the
/// largest window of zstd in the 128 MiB of a conversion.
const BLOCKS_IN_MEMORY: usize = 3 << 10;

/// Blocks of a parent, and the changes to them.
pub struct ChangedBlocks {
    /// `None` if the file system is new: all its blocks are zeros then.
    parent: Option<BlockReader>,
    /// Changed blocks in memory.
    here: BTreeMap<u64, Box<Block>>,
    /// Changed blocks in the temporary file.
    moved: MovedBlocks,
    /// The most blocks in memory, at least 1. When there are more, half of them are moved to the file.
    capacity: usize,
    spill: Option<Spill>,
}

/// The temporary file.
struct Spill {
    file: File,
    /// Its first block that was never used.
    end: u32,
    /// Blocks before that which are not used any more.
    free: Vec<u32>,
}

impl ChangedBlocks {
    /// Starts with the blocks of `parent`; with zeros if there is none.
    pub fn new(parent: Option<BlockReader>) -> Self {
        Self { parent, ..Self::scratch(BLOCKS_IN_MEMORY) }
    }

    /// Starts with zeros, and keeps at most `capacity` blocks in memory.
    pub fn scratch(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { parent: None, here: BTreeMap::new(), moved: MovedBlocks::default(), capacity, spill: None }
    }

    /// Changes how many changed blocks stay in memory.
    pub fn limit(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
    }

    /// The parent's blocks, to read the content of its files; `None` if the file system is new.
    pub fn parent(&mut self) -> Option<&mut BlockReader> {
        self.parent.as_mut()
    }

    /// The present content of a block.
    pub fn get(&mut self, number: u64) -> Result<&Block> {
        if self.is_changed(number) {
            return self.present(number).map(|block| &*block);
        }
        match &mut self.parent {
            Some(parent) => parent.block(number),
            None => Ok(&ZEROS),
        }
    }

    /// Calls `look` with the present content of a block.
    pub fn with<T>(&mut self, number: u64, look: impl FnOnce(&Block) -> Result<T>) -> Result<T> {
        look(self.get(number)?)
    }

    /// The content of a block, to change it.
    pub fn get_mut(&mut self, number: u64) -> Result<&mut Block> {
        if !self.is_changed(number) {
            let content = match &mut self.parent {
                Some(parent) => Box::new(*parent.block(number)?),
                None => Box::new([0; BLOCK_SIZE]),
            };
            self.add(number, content)?;
        }
        self.present(number)
    }

    /// A block that was free until now, as zeros: what the parent has there is not read.
    pub fn fresh(&mut self, number: u64) -> Result<&mut Block> {
        if !self.is_changed(number) {
            self.add(number, Box::new([0; BLOCK_SIZE]))?;
        }
        let block = self.present(number)?;
        block.fill(0);
        Ok(block)
    }

    /// Forgets the changes of a block that is free now: its content does not matter any more.
    pub fn forget(&mut self, number: u64) {
        if self.here.remove(&number).is_none()
            && let Some(place) = self.moved.remove(number)
        {
            self.free_spilled(place);
        }
    }

    /// Calls `each` with the number and content of every block that differs from the parent's, in ascending order.
    pub fn changes(mut self, each: &mut dyn FnMut(u64, &Block) -> Result<()>) -> Result<()> {
        while let Some((number, content)) = self.pop_first()? {
            if self.differs(number, &content)? {
                each(number, &content)?;
            }
        }
        Ok(())
    }

    /// Writes every block that differs from the parent's, in ascending order, and those that cannot be compared
    /// ([`BlockSink::cannot_compare`]). Returns their number.
    pub fn write_to(mut self, sink: &mut dyn BlockSink) -> Result<u64> {
        let mut written = 0;
        while let Some((number, content)) = self.pop_first()? {
            let offset = number * BLOCK_SIZE as u64;
            if sink.cannot_compare(offset) || self.differs(number, &content)? {
                written += 1;
                sink.data(offset, &*content)?;
            }
        }
        Ok(written)
    }

    /// `true` if a block has other bytes than the parent's.
    fn differs(&mut self, number: u64, content: &Block) -> Result<bool> {
        Ok(match &mut self.parent {
            Some(parent) => parent.block(number)? != content,
            None => content.iter().any(|&byte| byte != 0),
        })
    }

    /// Takes out the changed block with the lowest number.
    fn pop_first(&mut self) -> Result<Option<(u64, Box<Block>)>> {
        match (self.here.first_key_value(), self.moved.first()) {
            (Some((here, _)), Some((moved, place))) if moved < *here => {
                self.read_moved(moved, place).map(Some)
            }
            (None, Some((moved, place))) => self.read_moved(moved, place).map(Some),
            _ => Ok(self.here.pop_first()),
        }
    }

    /// Takes a block out of the file that is not needed there any more.
    fn read_moved(&mut self, number: u64, place: u32) -> Result<(u64, Box<Block>)> {
        let content = self.read_spilled(place)?;
        self.moved.remove(number);
        Ok((number, content))
    }

    /// `true` if a block was changed.
    fn is_changed(&self, number: u64) -> bool {
        self.here.contains_key(&number) || self.moved.get(number).is_some()
    }

    /// Adds a changed block; moves others to the file if there are too many.
    fn add(&mut self, number: u64, content: Box<Block>) -> Result<()> {
        if self.here.len() >= self.capacity {
            self.spill()?;
        }
        self.here.insert(number, content);
        Ok(())
    }

    /// A changed block, brought back to memory if it was moved.
    fn present(&mut self, number: u64) -> Result<&mut Block> {
        if let Some(place) = self.moved.get(number) {
            let content = self.read_spilled(place)?;
            self.add(number, content)?;
            self.moved.remove(number);
            self.free_spilled(place);
        }
        let block = self.here.get_mut(&number).map(|content| &mut **content);
        block.ok_or_else(|| Error::corrupt(format!("block {number} of the metadata was lost")))
    }

    fn read_spilled(&self, place: u32) -> Result<Box<Block>> {
        let mut content = Box::new([0; BLOCK_SIZE]);
        if let Some(spill) = &self.spill {
            spill.file.read_exact_at(&mut *content, offset_of(place)).map_err(|error| {
                Error::io("cannot read back metadata that was moved to a temporary file", error)
            })?;
        }
        Ok(content)
    }

    /// Says that a block of the file is not used any more.
    fn free_spilled(&mut self, place: u32) {
        if let Some(spill) = &mut self.spill {
            spill.free.push(place);
        }
    }

    /// Moves the blocks with the lowest numbers in memory to the file: inodes of entries that came early.
    fn spill(&mut self) -> Result<()> {
        let failed = |error| {
            Error::io("cannot move metadata to a temporary file", error)
                .remedy("free space in TMPDIR, or name another directory by it")
        };
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => self.spill.insert(Spill {
                file: tempfile::tempfile().map_err(failed)?,
                end: 0,
                free: Vec::new(),
            }),
        };
        for _ in 0..self.capacity.div_ceil(2) {
            let Some(first) = self.here.first_entry() else { break };
            let place = spill.free.pop().unwrap_or(spill.end);
            spill.file.write_all_at(&**first.get(), offset_of(place)).map_err(failed)?;
            spill.end = spill.end.max(place.saturating_add(1));
            self.moved.insert(first.remove_entry().0, place);
        }
        Ok(())
    }
}

/// The offset of a block of the temporary file.
fn offset_of(place: u32) -> u64 {
    u64::from(place) * BLOCK_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ReadAt;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Number of blocks of the parent.
    const BLOCKS: u64 = 12;

    fn over_parent() -> ChangedBlocks {
        let parent: Vec<u8> = (0..BLOCKS).flat_map(|number| [number.to_le_bytes()[0]; BLOCK_SIZE]).collect();
        ChangedBlocks::new(Some(BlockReader::new(Arc::new(parent) as Arc<dyn ReadAt>)))
    }

    fn changes(blocks: ChangedBlocks) -> Vec<(u64, Block)> {
        let mut found = Vec::new();
        blocks
            .changes(&mut |number, content| {
                found.push((number, *content));
                Ok(())
            })
            .unwrap();
        found
    }

    #[test]
    fn only_blocks_that_differ_are_changes() {
        let mut blocks = over_parent();
        blocks.get(3).unwrap();
        blocks.get_mut(4).unwrap();
        blocks.get_mut(5).unwrap()[7] = 77;
        blocks.fresh(0).unwrap();
        blocks.fresh(6).unwrap()[0] = 1;
        blocks.get_mut(7).unwrap()[7] = 77;
        blocks.forget(7);
        let mut five = [5; BLOCK_SIZE];
        five[7] = 77;
        let mut six = [0; BLOCK_SIZE];
        six[0] = 1;
        assert_eq!(changes(blocks), [(5, five), (6, six)]);
        let mut new = ChangedBlocks::new(None);
        assert!(new.parent().is_none() && *new.get(9).unwrap() == ZEROS);
        new.get_mut(9).unwrap();
        new.fresh(2).unwrap()[1] = 1;
        assert_eq!(changes(new).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
    }

    /// A list of the blocks that are written. What the parent has at `hidden` cannot be read.
    struct Written {
        hidden: u64,
        blocks: Vec<(u64, u8)>,
    }

    impl BlockSink for Written {
        fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.blocks.push((offset / BLOCK_SIZE as u64, bytes[0]));
            Ok(())
        }

        fn cannot_compare(&self, offset: u64) -> bool {
            offset / BLOCK_SIZE as u64 == self.hidden
        }
    }

    #[test]
    fn a_block_that_cannot_be_compared_is_written_without_a_read() {
        let mut blocks = over_parent();
        blocks.get_mut(4).unwrap();
        blocks.get_mut(5).unwrap()[0] = 77;
        blocks.get_mut(6).unwrap();
        // The parent has no such block: reading it would be an error.
        blocks.fresh(BLOCKS).unwrap()[0] = 1;
        let mut sink = Written { hidden: BLOCKS, blocks: Vec::new() };
        assert_eq!(blocks.write_to(&mut sink).unwrap(), 2);
        assert_eq!(sink.blocks, [(5, 77), (BLOCKS, 1)]);
        // The same bytes as the parent's are written, too, if they cannot be compared.
        let mut blocks = over_parent();
        blocks.get_mut(4).unwrap();
        blocks.get_mut(5).unwrap();
        let mut sink = Written { hidden: 4, blocks: Vec::new() };
        assert_eq!(blocks.write_to(&mut sink).unwrap(), 1);
        assert_eq!(sink.blocks, [(4, 4)]);
    }

    #[test]
    fn a_fresh_block_is_not_read() {
        let mut blocks = over_parent();
        assert!(blocks.get_mut(BLOCKS).is_err() && blocks.get(BLOCKS).is_err());
        assert_eq!(*blocks.fresh(BLOCKS).unwrap(), ZEROS);
    }

    #[test]
    fn places_of_the_temporary_file_are_used_again() {
        let mut blocks = over_parent();
        blocks.limit(2);
        for round in 0..50 {
            for number in 0..BLOCKS {
                blocks.get_mut(number).unwrap()[1] = round;
            }
        }
        assert!(u64::from(blocks.spill.as_ref().unwrap().end) <= BLOCKS);
        assert!(blocks.here.len() <= 2);
    }

    proptest! {
        #[test]
        fn blocks_are_those_of_a_list_wherever_they_are(
            capacity in 1_usize..6,
            steps in proptest::collection::vec((0..4_u8, 0..BLOCKS, any::<u8>()), 0..200),
        ) {
            let mut blocks = over_parent();
            blocks.limit(capacity);
            let parent: Vec<Block> = (0..BLOCKS).map(|number| [number.to_le_bytes()[0]; BLOCK_SIZE]).collect();
            let mut model = parent.clone();
            for (step, number, value) in steps {
                let at = usize::try_from(number).unwrap();
                match step {
                    0 => prop_assert_eq!(blocks.get(number).unwrap(), &model[at]),
                    1 => {
                        blocks.get_mut(number).unwrap()[usize::from(value)] = value;
                        model[at][usize::from(value)] = value;
                    }
                    2 => {
                        blocks.fresh(number).unwrap()[0] = value;
                        model[at] = ZEROS;
                        model[at][0] = value;
                    }
                    _ => {
                        blocks.forget(number);
                        model[at] = parent[at];
                    }
                }
                prop_assert!(blocks.here.len() <= capacity);
            }
            let expected: Vec<_> = (0..BLOCKS)
                .zip(model.into_iter().zip(parent))
                .filter(|(_, (new, old))| new != old)
                .map(|(number, (new, _))| (number, new))
                .collect();
            prop_assert!(changes(blocks) == expected);
        }
    }
}
