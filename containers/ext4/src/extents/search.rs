//! The place of one block of a file, found from the inode down, without the places of the others.
//!
//! A search says which block of the disk it needs next, and goes on with its content. It ends: each block that it needs
//! is one level further down, of five at most.

use crate::Block;
use crate::extents::{
    DIRECT, IN_LIST, MAX_DEPTH, RECORD, check_child, check_extent, check_listed, child_of, damaged,
    extent_of, records_of,
};
use crate::inode::{Inode, USES_EXTENTS};
use crate::little_endian::{u16_at, u32_at};
use headstart_block::{Result, exact, to_usize};

/// A search for the block of the disk that has a block of a file.
#[derive(Debug)]
pub(crate) struct BlockSearch {
    logical: u32,
    disk_end: u64,
    step: Step,
}

/// The state of a search.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The end: the place, `None` in a hole and for blocks that are not written.
    Found(Option<u64>),
    /// A node of a tree, with its depth.
    Node { block: u64, depth: u16 },
    /// A list with so many levels, and the number of the block among those below it.
    List { block: u64, levels: u32, offset: u32 },
}

impl BlockSearch {
    /// Begins the search for block `logical` of the file with this inode, on a disk of `disk_end` blocks.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the inode's part of the tree or of the lists is damaged.
    pub(crate) fn new(inode: &Inode, logical: u32, disk_end: u64) -> Result<Self> {
        let mut search = Self { logical, disk_end, step: Step::Found(None) };
        if !inode.has_blocks() {
            return Ok(search);
        }
        search.step = if inode.flags & USES_EXTENTS != 0 {
            let depth = u16_at(&inode.block, 6);
            if depth > MAX_DEPTH {
                return Err(damaged(&format!("is {depth} deep")));
            }
            search.below_node(&inode.block, depth)?
        } else {
            search.below_inode(&inode.block)?
        };
        Ok(search)
    }

    /// The block of the disk that the search needs next; `None` at its end.
    pub(crate) fn wanted(&self) -> Option<u64> {
        match self.step {
            Step::Found(_) => None,
            Step::Node { block, .. } | Step::List { block, .. } => Some(block),
        }
    }

    /// Goes on with the content of the block that is wanted.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if it leads out of the disk or is damaged otherwise.
    pub(crate) fn go_on(&mut self, content: &Block) -> Result<()> {
        self.step = match self.step {
            Step::Found(place) => Step::Found(place),
            Step::Node { depth, .. } => self.below_node(content, depth)?,
            Step::List { levels, offset, .. } => {
                let each = IN_LIST.pow(levels - 1);
                let number = u32_at(content, 4 * to_usize((offset / each).into()));
                self.at_listed(number, levels - 1, offset % each)?
            }
        };
        Ok(())
    }

    /// The result at the end of the search.
    pub(crate) fn found(&self) -> Option<u64> {
        match self.step {
            Step::Found(place) => place,
            Step::Node { .. } | Step::List { .. } => None,
        }
    }

    /// The step after a node of a tree.
    fn below_node(&self, node: &[u8], depth: u16) -> Result<Step> {
        let records = records_of(node, depth)?;
        let first_of = |record: &[u8; RECORD]| u32_at(record, 0);
        let after = records.partition_point(|record| first_of(record) <= self.logical);
        let Some(record) = after.checked_sub(1).and_then(|at| records.get(at)) else {
            return Ok(Step::Found(None));
        };
        let Some(below) = depth.checked_sub(1) else {
            let extent = extent_of(record);
            check_extent(&extent, self.disk_end)?;
            let offset = self.logical.wrapping_sub(extent.logical);
            let has_it = !extent.unwritten && offset < u32::from(extent.len);
            return Ok(Step::Found(has_it.then(|| extent.start + u64::from(offset))));
        };
        let (_, block) = child_of(record);
        check_child(block, self.disk_end)?;
        Ok(Step::Node { block, depth: below })
    }

    /// The step after the numbers in an inode.
    fn below_inode(&self, places: &[u8]) -> Result<Step> {
        let direct: u32 = exact(DIRECT, "12");
        let Some(mut offset) = self.logical.checked_sub(direct) else {
            return self.at_listed(u32_at(places, 4 * to_usize(self.logical.into())), 0, 0);
        };
        for levels in 1..=3 {
            let below = IN_LIST.pow(levels);
            if offset < below {
                let at = DIRECT + to_usize(levels.into()) - 1;
                return self.at_listed(u32_at(places, 4 * at), levels, offset);
            }
            offset -= below;
        }
        Ok(Step::Found(None))
    }

    /// The step at a number of a list: a block of content, or a list with `levels` levels.
    fn at_listed(&self, number: u32, levels: u32, offset: u32) -> Result<Step> {
        check_listed(number, self.disk_end)?;
        let block = u64::from(number);
        Ok(match (number, levels) {
            (0, _) => Step::Found(None),
            (_, 0) => Step::Found(Some(block)),
            _ => Step::List { block, levels, offset },
        })
    }
}
