//! The blocks that an image's traces name, numbered densely.
//!
//! A disk may have a million blocks, of which its boots read a few hundred. Learning gives these few hundred small
//! numbers ([`BlockId`]), so that data of blocks are stored in arrays by id. Ids are given in the order in which blocks
//! are added, and never change: adding a trace changes nothing that was learned before.

use headstart_block::{BLOCK_SIZE, Error, Result};

/// The number of a block in a [`BlockTable`], given in the order in which blocks were added. It is not the
/// block's number on the disk.
pub type BlockId = u32;

/// The blocks (2 MiB each) of a disk that the traces of its image read, numbered densely. A table belongs to
/// one image and one size of disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockTable {
    disk_size: u64,
    /// The blocks by id.
    blocks: Vec<u64>,
    /// The blocks with their ids, sorted by block.
    ids: Vec<(u64, BlockId)>,
}

impl BlockTable {
    /// Makes an empty block table for a disk of `disk_size` bytes.
    #[must_use]
    pub fn new(disk_size: u64) -> Self {
        Self { disk_size, blocks: Vec::new(), ids: Vec::new() }
    }

    /// The block_table of these blocks by id.
    pub(crate) fn of(disk_size: u64, blocks: Vec<u64>) -> Result<Self> {
        if blocks.len() >= BlockId::MAX as usize {
            return Err(Error::corrupt("has more blocks than can be counted"));
        }
        let mut ids: Vec<(u64, BlockId)> = blocks.iter().copied().zip(0..).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::corrupt("has a block twice"));
        }
        Ok(Self { disk_size, blocks, ids })
    }

    /// Returns the size of the disk, in bytes.
    #[must_use]
    pub fn disk_size(&self) -> u64 {
        self.disk_size
    }

    /// Returns the number of blocks in the table; all ids are below it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns `true` if the table has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the numbers of the blocks on the disk (offset divided by 2 MiB), indexed by [`BlockId`].
    #[must_use]
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Forgets all ids from `len` on, which were added last.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.blocks.len() {
            self.blocks.truncate(len);
            self.ids.retain(|(_, id)| (*id as usize) < len);
        }
    }

    /// Returns the id of the block that has the number `block` on the disk; `None` if it is not in the table.
    #[must_use]
    pub fn id(&self, block: u64) -> Option<BlockId> {
        let at = self.ids.binary_search_by_key(&block, |(known, _)| *known).ok()?;
        self.ids.get(at).map(|(_, id)| *id)
    }

    /// Returns the length of a block in bytes: 2 MiB, or less for the last block of the disk, and 0 for a block past
    /// the end of the disk or an unknown id.
    #[must_use]
    pub fn len_of(&self, id: BlockId) -> u64 {
        let block = self.blocks.get(id as usize).copied().unwrap_or(u64::MAX);
        let start = block.saturating_mul(BLOCK_SIZE);
        self.disk_size.saturating_sub(start).min(BLOCK_SIZE)
    }

    /// Adds those blocks of `sorted` (numbers on the disk, distinct and ascending) that are not in the table
    /// yet. New blocks get the next free ids, in this order.
    ///
    /// One pass over both lists is enough to find that nothing is new. A table has at most `u32::MAX` blocks;
    /// further ones are not added.
    pub fn add(&mut self, sorted: &[u64]) {
        let mut known = self.ids.iter().map(|(block, _)| *block).peekable();
        let mut new = Vec::new();
        for block in sorted {
            while known.peek().is_some_and(|known| known < block) {
                known.next();
            }
            if known.peek() != Some(block) && self.blocks.len() + new.len() < BlockId::MAX as usize {
                new.push(*block);
            }
        }
        if new.is_empty() {
            return;
        }
        for block in new {
            #[expect(clippy::cast_possible_truncation, reason = "bounded above")]
            self.ids.push((block, self.blocks.len() as BlockId));
            self.blocks.push(block);
        }
        self.ids.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_last_block_may_be_short() {
        let mut block_table = BlockTable::new(BLOCK_SIZE + 512);
        block_table.add(&[0, 1, 2, u64::MAX]);
        let lens: Vec<_> = (0..5).map(|id| block_table.len_of(id)).collect();
        assert_eq!(lens, [BLOCK_SIZE, 512, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn ids_are_dense_and_stay(
            batches in prop::collection::vec(prop::collection::btree_set(0_u64..60, 0..20), 0..6)
        ) {
            let mut block_table = BlockTable::new(1 << 30);
            let mut seen = BTreeSet::new();
            for batch in batches {
                let before = block_table.blocks().to_vec();
                block_table.add(&batch.iter().copied().collect::<Vec<_>>());
                let mut shorter = block_table.clone();
                shorter.truncate(before.len());
                let known = (0..60).filter(|block| shorter.id(*block).is_some()).collect::<BTreeSet<_>>();
                prop_assert_eq!((shorter.blocks(), &known), (&before[..], &seen));
                seen.extend(batch);
                prop_assert_eq!(&block_table.blocks()[..before.len()], &before[..]);
            }
            prop_assert_eq!(block_table.len(), seen.len());
            for block in 0..60 {
                let id = block_table.id(block);
                prop_assert_eq!(id.is_some(), seen.contains(&block));
                prop_assert!(id.is_none_or(|id| block_table.blocks()[id as usize] == block));
            }
        }
    }
}
