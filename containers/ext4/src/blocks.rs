//! The blocks of metadata that a layer changes, over the blocks that the parent has.
//!
//! Every structure of the file system but the content of files is edited here, block by block, as the page cache of a
//! kernel would: a block is read from the parent when it is needed first, and is changed in memory. At the end the
//! blocks that differ from the parent's are the metadata of the layer. So a layer costs what it changes, whatever
//! program made the parent, and its bytes do not depend on how much of the parent was in memory.
//!
//! # Memory
//! Changed blocks stay in memory up to [`BLOCKS_IN_MEMORY`]. Beyond that, they are moved to a temporary file without a
//! name, a block at a time in order of their numbers, and come back when they are needed again.

use crate::read::BlockReader;
use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The content of every block of a new file system.
static ZEROS: Block = [0; BLOCK_SIZE];

/// Changed blocks that stay in memory: 48 MiB.
const BLOCKS_IN_MEMORY: usize = 12 << 10;

/// A changed block.
enum Changed {
    /// The content is in memory.
    Here(Box<Block>),
    /// The content is in the temporary file, at this number of blocks from its beginning.
    Moved(u64),
}

/// Blocks of a parent, and the changes to them.
pub(crate) struct MetadataBlocks {
    /// `None` if the file system is new: all its blocks are zeros then.
    parent: Option<BlockReader>,
    changed: BTreeMap<u64, Changed>,
    /// Number of blocks of `changed` in memory.
    here: usize,
    /// The most that there may be, at least 1. When there are more, half of them are moved to the file.
    capacity: usize,
    spill: Option<Spill>,
}

/// The temporary file.
struct Spill {
    file: File,
    /// Its first block that was never used.
    end: u64,
    /// Blocks before that which are not used any more.
    free: Vec<u64>,
}

impl MetadataBlocks {
    /// Starts with the blocks of `parent`; with zeros if there is none.
    pub(crate) fn new(parent: Option<BlockReader>) -> Self {
        Self { parent, changed: BTreeMap::new(), here: 0, capacity: BLOCKS_IN_MEMORY, spill: None }
    }

    /// Changes how many changed blocks stay in memory.
    #[cfg(test)]
    pub(crate) fn limit(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
    }

    /// The parent's blocks, to read the content of its files; `None` if the file system is new.
    pub(crate) fn parent(&mut self) -> Option<&mut BlockReader> {
        self.parent.as_mut()
    }

    /// The present content of a block.
    pub(crate) fn get(&mut self, number: u64) -> Result<&Block> {
        if self.changed.contains_key(&number) {
            return self.present(number).map(|block| &*block);
        }
        match &mut self.parent {
            Some(parent) => parent.block(number),
            None => Ok(&ZEROS),
        }
    }

    /// Calls `look` with the present content of a block.
    pub(crate) fn with<T>(&mut self, number: u64, look: impl FnOnce(&Block) -> Result<T>) -> Result<T> {
        look(self.get(number)?)
    }

    /// The content of a block, to change it.
    pub(crate) fn get_mut(&mut self, number: u64) -> Result<&mut Block> {
        if !self.changed.contains_key(&number) {
            let content = match &mut self.parent {
                Some(parent) => Box::new(*parent.block(number)?),
                None => Box::new([0; BLOCK_SIZE]),
            };
            self.add(number, content)?;
        }
        self.present(number)
    }

    /// A block that was free until now, as zeros: what the parent has there is not read.
    pub(crate) fn fresh(&mut self, number: u64) -> Result<&mut Block> {
        if !self.changed.contains_key(&number) {
            self.add(number, Box::new([0; BLOCK_SIZE]))?;
        }
        let block = self.present(number)?;
        block.fill(0);
        Ok(block)
    }

    /// Forgets the changes of a block that is free now: its content does not matter any more.
    pub(crate) fn forget(&mut self, number: u64) {
        match self.changed.remove(&number) {
            Some(Changed::Here(_)) => self.here -= 1,
            Some(Changed::Moved(place)) => self.free_spilled(place),
            None => {}
        }
    }

    /// Calls `each` with the number and content of every block that differs from the parent's, in ascending order.
    pub(crate) fn changes(mut self, each: &mut dyn FnMut(u64, &Block) -> Result<()>) -> Result<()> {
        for (number, changed) in std::mem::take(&mut self.changed) {
            let content = match changed {
                Changed::Here(content) => content,
                Changed::Moved(place) => self.read_spilled(place)?,
            };
            let same = match &mut self.parent {
                Some(parent) => *parent.block(number)? == *content,
                None => content.iter().all(|&byte| byte == 0),
            };
            if !same {
                each(number, &content)?;
            }
        }
        Ok(())
    }

    /// Adds a changed block; moves others to the file if there are too many.
    fn add(&mut self, number: u64, content: Box<Block>) -> Result<()> {
        if self.here >= self.capacity {
            self.spill()?;
        }
        self.changed.insert(number, Changed::Here(content));
        self.here += 1;
        Ok(())
    }

    /// A changed block, brought back to memory if it was moved.
    fn present(&mut self, number: u64) -> Result<&mut Block> {
        if let Some(&Changed::Moved(place)) = self.changed.get(&number) {
            let content = self.read_spilled(place)?;
            self.add(number, content)?;
            self.free_spilled(place);
        }
        match self.changed.get_mut(&number) {
            Some(Changed::Here(content)) => Ok(content),
            _ => Err(Error::corrupt(format!("block {number} of the metadata was lost"))),
        }
    }

    fn read_spilled(&self, place: u64) -> Result<Box<Block>> {
        let mut content = Box::new([0; BLOCK_SIZE]);
        if let Some(spill) = &self.spill {
            spill.file.read_exact_at(&mut *content, place * BLOCK_SIZE as u64).map_err(|error| {
                Error::io("cannot read back metadata that was moved to a temporary file", error)
            })?;
        }
        Ok(content)
    }

    /// Says that a block of the file is not used any more.
    fn free_spilled(&mut self, place: u64) {
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
        let blocks = self.changed.values_mut().filter(|changed| matches!(changed, Changed::Here(_)));
        for changed in blocks.take(self.capacity.div_ceil(2)) {
            if let Changed::Here(content) = changed {
                let place = spill.free.pop().unwrap_or(spill.end);
                spill.file.write_all_at(&**content, place * BLOCK_SIZE as u64).map_err(failed)?;
                spill.end = spill.end.max(place + 1);
                *changed = Changed::Moved(place);
                self.here -= 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ReadAt;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Number of blocks of the parent.
    const BLOCKS: u64 = 12;

    fn over_parent() -> MetadataBlocks {
        let parent: Vec<u8> = (0..BLOCKS).flat_map(|number| [number.to_le_bytes()[0]; BLOCK_SIZE]).collect();
        MetadataBlocks::new(Some(BlockReader::new(Arc::new(parent) as Arc<dyn ReadAt>)))
    }

    fn changes(blocks: MetadataBlocks) -> Vec<(u64, Block)> {
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
        let mut new = MetadataBlocks::new(None);
        assert!(new.parent().is_none() && *new.get(9).unwrap() == ZEROS);
        new.get_mut(9).unwrap();
        new.fresh(2).unwrap()[1] = 1;
        assert_eq!(changes(new).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
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
        assert!(blocks.spill.as_ref().unwrap().end <= BLOCKS);
        assert!(blocks.here <= 2);
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
                prop_assert!(blocks.here <= capacity);
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
