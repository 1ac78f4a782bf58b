//! Free blocks and inodes, and the order in which they are taken.
//!
//! # Order
//! Blocks are taken at a *mark* that only goes up: one past the last block in use when the layer begins. So the content
//! of files lies on the disk in the order of the layer's entries, a file is one extent wherever the file system's own
//! tables leave room, and blocks that a layer frees are not used again: they cost nothing in an image, where a block
//! without data takes no space. Only where the end of the disk is reached, the search begins once more at its first
//! block. Inodes are taken in the same way.
//!
//! Blocks of directories, of extent trees and of extended attributes are taken from runs of [`METADATA_RUN`] blocks
//! that are set aside at the mark, so that directories which grow while files are written do not cut the files into
//! pieces.
//!
//! The marks are found in the parent's descriptors and bitmaps, and in nothing else: a layer depends on the parent's
//! blocks, and not on how the parent came about. Finding them reads the descriptors, one bitmap of blocks and one of
//! inodes.
//!
//! # Groups that were never used
//! With the feature `uninit_bg`, the bitmaps of such a group need not exist: the first block or inode that is taken
//! from it makes the bitmap.

use crate::Block;
use crate::bitmap;
use crate::geometry::Geometry;
use crate::group::{BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT};
use headstart_block::{Error, Result, exact};
use headstart_file_blocks::ChangedBlocks;
use std::ops::Range;

/// Blocks that are set aside at once for metadata: 1 MiB.
const METADATA_RUN: u64 = 256;

/// Bitmaps of blocks that are freed which stay in memory: 2 MiB, those of a disk of 64 GiB.
const FREED_IN_MEMORY: usize = 512;

/// Free blocks and inodes of a file system.
pub(crate) struct Allocator {
    geometry: Geometry,
    groups: Vec<GroupDescriptor>,
    /// The blocks of each group that its superblock, descriptors, bitmaps and tables of inodes take, as bits of its
    /// bitmap: in order of groups.
    tables: Vec<(u32, Range<u32>)>,
    blocks: Mark,
    inodes: Mark,
    /// Blocks before this one are the parent's, those after it are new, unless the search began again at the first.
    first_new: u64,
    /// Blocks that are set aside for metadata and still free.
    set_aside: Range<u64>,
    /// Blocks that this layer frees: for each group a block with its bits, so that there may be any number of them.
    freed: ChangedBlocks,
}

/// The place where a search for something free goes on.
struct Mark {
    next: u64,
    end: u64,
    /// `true` if the search has begun again at 0.
    wrapped: bool,
}

impl Mark {
    /// Goes on at 0 if the end was reached; `false` if that was done before.
    fn wrap(&mut self) -> bool {
        let first = !self.wrapped;
        self.wrapped = true;
        self.next = 0;
        first
    }
}

impl Allocator {
    /// Finds the marks of a file system with these descriptors, one for each group.
    ///
    /// # Errors
    /// Errors of reading the two bitmaps; [`headstart_block::ErrorKind::Corrupt`] if a descriptor contradicts the
    /// geometry.
    pub(crate) fn open(
        geometry: Geometry,
        groups: Vec<GroupDescriptor>,
        blocks: &mut ChangedBlocks,
    ) -> Result<Self> {
        let mut this = Self::unmarked(geometry, groups);
        this.blocks.next = this.end_of_used_blocks(blocks)?;
        this.first_new = this.blocks.next;
        this.inodes.next = this.end_of_used_inodes(blocks)?;
        Ok(this)
    }

    /// Starts with a new file system, whose descriptors have no bitmaps yet. The first `reserved` inodes count as used;
    /// one of them is the root directory.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if a group is too small for the tables that lie in it.
    pub(crate) fn make(
        geometry: Geometry,
        groups: Vec<GroupDescriptor>,
        reserved: u32,
        blocks: &mut ChangedBlocks,
    ) -> Result<Self> {
        let mut this = Self::unmarked(geometry, groups);
        let last = this.geometry.groups() - 1;
        for group in 0..=last {
            let used = this.blocks_of_tables(group);
            let descriptor = &mut this.groups[group as usize];
            let free = u64::from(descriptor.free_blocks).checked_sub(used).ok_or_else(|| {
                Error::invalid("the file system is too small for its own tables")
                    .remedy("choose a larger size")
            })?;
            descriptor.free_blocks = exact(free, "fewer than before");
            // The bitmap of the last group must exist: its end is no multiple of a group.
            if used > 0 || group == last {
                this.initialize_block_bitmap(blocks, group)?;
            }
        }
        for _ in 0..reserved {
            this.take_inode(blocks, false)?;
        }
        this.groups[0].used_directories = 1;
        Ok(this)
    }

    fn unmarked(geometry: Geometry, groups: Vec<GroupDescriptor>) -> Self {
        let inodes = u64::from(geometry.groups()) * u64::from(geometry.inodes_per_group());
        Self {
            tables: tables(&geometry, &groups),
            first_new: 0,
            blocks: Mark { next: 0, end: geometry.blocks(), wrapped: false },
            inodes: Mark { next: 0, end: inodes, wrapped: false },
            geometry,
            groups,
            set_aside: 0..0,
            freed: ChangedBlocks::scratch(FREED_IN_MEMORY),
        }
    }

    /// The descriptors, as they are now.
    pub(crate) fn groups(&self) -> &[GroupDescriptor] {
        &self.groups
    }

    /// `true` if the parent has the content of these blocks; `false` if this layer may have written them.
    pub(crate) fn is_of_parent(&self, run: &Range<u64>) -> bool {
        !self.blocks.wrapped && run.end <= self.first_new
    }

    /// Takes a run of at most `most` consecutive blocks for the content of a file.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if no block is free; errors of reading bitmaps.
    pub(crate) fn take_run(&mut self, blocks: &mut ChangedBlocks, most: u64) -> Result<Range<u64>> {
        let run = self.find_run(blocks, most)?;
        self.mark_used(blocks, run.clone())?;
        Ok(run)
    }

    /// Takes a block for metadata.
    ///
    /// # Errors
    /// As [`Allocator::take_run`].
    pub(crate) fn take_metadata_block(&mut self, blocks: &mut ChangedBlocks) -> Result<u64> {
        if self.set_aside.is_empty() {
            self.set_aside = self.find_run(blocks, METADATA_RUN)?;
        }
        let block = self.set_aside.start;
        self.set_aside.start += 1;
        self.mark_used(blocks, block..block + 1)?;
        Ok(block)
    }

    /// Frees consecutive blocks at the end of the layer ([`Allocator::finish`]). Until then nothing takes them, so that
    /// the layer writes no block twice.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the disk does not have the blocks, or one was freed before: two files
    /// have it.
    pub(crate) fn free_run(&mut self, run: Range<u64>) -> Result<()> {
        if run.start >= run.end || run.end > self.geometry.blocks() {
            return Err(Error::corrupt(format!("a file has blocks {run:?}, which the disk does not have")));
        }
        for (group, bits) in bits_of(&self.geometry, run) {
            let freed = self.freed.get_mut(group.into())?;
            for bit in bits {
                if !bitmap::set(freed, bit) {
                    return Err(self.in_two_files(group, bit));
                }
            }
        }
        Ok(())
    }

    fn in_two_files(&self, group: u32, bit: u32) -> Error {
        let block = self.geometry.first_block(group) + u64::from(bit);
        Error::corrupt(format!("block {block} belongs to two files, or is marked as free"))
    }

    /// Marks the freed blocks as free, and returns the descriptors.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if a block was free already: two files have it.
    pub(crate) fn finish(mut self, blocks: &mut ChangedBlocks) -> Result<Vec<GroupDescriptor>> {
        let freed = std::mem::replace(&mut self.freed, ChangedBlocks::scratch(0));
        freed.changes(&mut |group, freed| {
            let group = exact::<u32>(group, "a group's number");
            self.initialize_block_bitmap(blocks, group)?;
            let bitmap_place = self.groups[group as usize].block_bitmap;
            let content = blocks.get_mut(bitmap_place)?;
            let end = self.geometry.blocks_per_group();
            for bit in (0..end).filter(|&bit| bitmap::is_set(freed, bit)) {
                if !bitmap::clear(content, bit) {
                    return Err(self.in_two_files(group, bit));
                }
                self.groups[group as usize].free_blocks += 1;
            }
            Ok(())
        })?;
        Ok(self.groups)
    }

    /// Takes an inode; returns its number.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if none is free; errors of reading bitmaps.
    pub(crate) fn take_inode(&mut self, blocks: &mut ChangedBlocks, directory: bool) -> Result<u32> {
        let per_group = self.geometry.inodes_per_group();
        loop {
            if self.inodes.next >= self.inodes.end {
                if self.inodes.wrap() {
                    continue;
                }
                return Err(Error::invalid("the file system has no inode left")
                    .remedy("convert into a larger file system (--size): it has an inode for each 16 KiB"));
            }
            let group = exact::<u32>(self.inodes.next / u64::from(per_group), "a group's number");
            let from =
                exact::<u32>(self.inodes.next % u64::from(per_group), "less than the inodes of a group");
            if self.groups[group as usize].free_inodes > 0 {
                self.initialize_inode_bitmap(blocks, group)?;
                let descriptor = &mut self.groups[group as usize];
                let content = blocks.get_mut(descriptor.inode_bitmap)?;
                if let Some(bit) = bitmap::first_clear(content, from, per_group) {
                    bitmap::set(content, bit);
                    descriptor.free_inodes -= 1;
                    descriptor.used_directories += u32::from(directory);
                    descriptor.unused_inodes = descriptor.unused_inodes.min(per_group - bit - 1);
                    self.inodes.next = u64::from(group) * u64::from(per_group) + u64::from(bit) + 1;
                    return Ok(exact(self.inodes.next, "as many inodes as 32 bits count"));
                }
            }
            self.inodes.next = u64::from(group + 1) * u64::from(per_group);
        }
    }

    /// Frees an inode.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the inode is free already.
    pub(crate) fn free_inode(
        &mut self,
        blocks: &mut ChangedBlocks,
        inode: u32,
        directory: bool,
    ) -> Result<()> {
        let (group, index) = self.geometry.group_of_inode(inode)?;
        let twice = || Error::corrupt(format!("inode {inode} has a name, and is free"));
        self.initialize_inode_bitmap(blocks, group)?;
        let descriptor = &mut self.groups[group as usize];
        if !bitmap::clear(blocks.get_mut(descriptor.inode_bitmap)?, index) {
            return Err(twice());
        }
        descriptor.free_inodes += 1;
        if directory {
            descriptor.used_directories = descriptor.used_directories.checked_sub(1).ok_or_else(twice)?;
        }
        Ok(())
    }

    /// Finds a run of free blocks at the mark, and moves the mark past it.
    fn find_run(&mut self, blocks: &mut ChangedBlocks, most: u64) -> Result<Range<u64>> {
        loop {
            if self.blocks.next >= self.blocks.end {
                if self.blocks.wrap() {
                    // What was set aside and not used is free, and may be found again.
                    self.set_aside = 0..0;
                    continue;
                }
                return Err(Error::invalid("the file system is full")
                    .remedy("convert into a larger file system (--size): what is not used takes no space"));
            }
            let group = self.group_of_block(self.blocks.next);
            let first = self.geometry.first_block(group);
            let count = self.geometry.blocks_in_group(group);
            if self.groups[group as usize].free_blocks > 0 {
                self.initialize_block_bitmap(blocks, group)?;
                let from = exact::<u32>(self.blocks.next - first, "less than the blocks of a group");
                let most = exact::<u32>(most.min(u64::from(count)), "at most the blocks of a group");
                let found = blocks.with(self.groups[group as usize].block_bitmap, |content| {
                    Ok(bitmap::first_clear(content, from, count).map(|start| {
                        start..bitmap::first_set(content, start, count.min(start.saturating_add(most)))
                    }))
                })?;
                if let Some(found) = found {
                    let run = first + u64::from(found.start)..first + u64::from(found.end);
                    self.blocks.next = run.end;
                    return Ok(run);
                }
            }
            self.blocks.next = first + u64::from(count);
        }
    }

    fn mark_used(&mut self, blocks: &mut ChangedBlocks, run: Range<u64>) -> Result<()> {
        for (group, bits) in bits_of(&self.geometry, run) {
            let descriptor = &mut self.groups[group as usize];
            let content = blocks.get_mut(descriptor.block_bitmap)?;
            for bit in bits {
                if bitmap::set(content, bit) {
                    descriptor.free_blocks = descriptor.free_blocks.checked_sub(1).ok_or_else(|| {
                        Error::corrupt(format!("group {group} has more free blocks than it counts"))
                    })?;
                }
            }
        }
        Ok(())
    }

    fn group_of_block(&self, block: u64) -> u32 {
        exact(block / u64::from(self.geometry.blocks_per_group()), "a group's number")
    }

    /// The part of `tables` that lies in a group.
    fn tables_in(&self, group: u32) -> &[(u32, Range<u32>)] {
        let start = self.tables.partition_point(|(other, _)| *other < group);
        let len = self.tables[start..].partition_point(|(other, _)| *other == group);
        &self.tables[start..start + len]
    }

    /// Number of blocks of a group that its tables take.
    fn blocks_of_tables(&self, group: u32) -> u64 {
        self.tables_in(group).iter().map(|(_, bits)| u64::from(bits.end - bits.start)).sum()
    }

    /// Makes the bitmap of blocks of a group that had none.
    fn initialize_block_bitmap(&mut self, blocks: &mut ChangedBlocks, group: u32) -> Result<()> {
        if self.groups[group as usize].flags & BLOCK_UNINIT == 0 {
            return Ok(());
        }
        let content = blocks.fresh(self.groups[group as usize].block_bitmap)?;
        for bit in self.tables_in(group).iter().flat_map(|(_, bits)| bits.clone()) {
            bitmap::set(content, bit);
        }
        bitmap::pad(content, self.geometry.blocks_in_group(group));
        self.groups[group as usize].flags &= !BLOCK_UNINIT;
        Ok(())
    }

    /// Makes the bitmap of inodes of a group that had none.
    fn initialize_inode_bitmap(&mut self, blocks: &mut ChangedBlocks, group: u32) -> Result<()> {
        if self.groups[group as usize].flags & INODE_UNINIT == 0 {
            return Ok(());
        }
        let content = blocks.fresh(self.groups[group as usize].inode_bitmap)?;
        bitmap::pad(content, self.geometry.inodes_per_group());
        self.groups[group as usize].flags &= !INODE_UNINIT;
        Ok(())
    }

    /// One past the last block that a file or directory has.
    fn end_of_used_blocks(&self, blocks: &mut ChangedBlocks) -> Result<u64> {
        for group in (0..self.geometry.groups()).rev() {
            let descriptor = &self.groups[group as usize];
            let count = self.geometry.blocks_in_group(group);
            let free = u64::from(descriptor.free_blocks) + self.blocks_of_tables(group);
            if free >= u64::from(count) || descriptor.flags & BLOCK_UNINIT != 0 {
                continue;
            }
            let mut content: Block = blocks.with(descriptor.block_bitmap, |content| Ok(*content))?;
            for bit in self.tables_in(group).iter().flat_map(|(_, bits)| bits.clone()) {
                bitmap::clear(&mut content, bit);
            }
            if let Some(last) = (0..count).rev().find(|&bit| bitmap::is_set(&content, bit)) {
                return Ok(self.geometry.first_block(group) + u64::from(last) + 1);
            }
        }
        Ok(0)
    }

    /// One past the index of the last inode in use, counted over all groups.
    fn end_of_used_inodes(&self, blocks: &mut ChangedBlocks) -> Result<u64> {
        let per_group = self.geometry.inodes_per_group();
        for group in (0..self.geometry.groups()).rev() {
            let descriptor = &self.groups[group as usize];
            if descriptor.free_inodes >= per_group || descriptor.flags & INODE_UNINIT != 0 {
                continue;
            }
            let last = blocks.with(descriptor.inode_bitmap, |content| {
                Ok((0..per_group).rev().find(|&bit| bitmap::is_set(content, bit)))
            })?;
            if let Some(last) = last {
                return Ok(u64::from(group) * u64::from(per_group) + u64::from(last) + 1);
            }
        }
        Ok(0)
    }
}

/// The groups that a run of blocks touches, with the bits of their bitmaps.
fn bits_of(geometry: &Geometry, run: Range<u64>) -> impl Iterator<Item = (u32, Range<u32>)> + use<> {
    let per_group = u64::from(geometry.blocks_per_group());
    let mut next = run.start;
    std::iter::from_fn(move || {
        let group = next / per_group;
        let start = next;
        next = run.end.min((group + 1) * per_group);
        let bit = |block: u64| exact::<u32>(block - group * per_group, "at most the blocks of a group");
        (start < run.end).then(|| (exact(group, "a group's number"), bit(start)..bit(next)))
    })
}

/// The blocks that superblocks, descriptors, bitmaps and tables of inodes take: groups in ascending order, and bits of
/// their bitmaps.
fn tables(geometry: &Geometry, groups: &[GroupDescriptor]) -> Vec<(u32, Range<u32>)> {
    let table = u64::from(geometry.inode_table_blocks());
    let copies = (0..geometry.groups()).map(|group| {
        let first = geometry.first_block(group);
        first..first + geometry.descriptor_blocks_at(group).min(u64::from(geometry.blocks_in_group(group)))
    });
    let places = groups.iter().flat_map(|of| {
        [
            of.block_bitmap..of.block_bitmap + 1,
            of.inode_bitmap..of.inode_bitmap + 1,
            of.inode_table..of.inode_table + table,
        ]
    });
    let mut tables: Vec<_> = copies.chain(places).flat_map(|run| bits_of(geometry, run)).collect();
    tables.sort_unstable_by_key(|(group, bits)| (*group, bits.start));
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::blank;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl Allocator {
        /// Says that a group has this number of free inodes.
        pub(crate) fn count_free_inodes(&mut self, group: u32, count: u32) {
            self.groups[group as usize].free_inodes = count;
        }
    }

    /// Bytes of a disk of three groups, the last of which is shorter.
    const SIZE: u64 = 300 << 20;

    /// The blocks of a file system that are in use, by its bitmaps.
    fn used(allocator: &Allocator, blocks: &mut ChangedBlocks) -> BTreeSet<u64> {
        let mut used = BTreeSet::new();
        for group in 0..allocator.geometry.groups() {
            let (first, count) =
                (allocator.geometry.first_block(group), allocator.geometry.blocks_in_group(group));
            let bits = if allocator.groups[group as usize].flags & BLOCK_UNINIT != 0 {
                allocator.tables_in(group).iter().flat_map(|(_, bits)| bits.clone()).collect()
            } else {
                let bitmap = blocks.get(allocator.groups[group as usize].block_bitmap).unwrap();
                (0..count).filter(|&bit| bitmap::is_set(bitmap, bit)).collect::<Vec<_>>()
            };
            used.extend(bits.into_iter().map(|bit| first + u64::from(bit)));
        }
        used
    }

    fn free_blocks(groups: &[GroupDescriptor]) -> u64 {
        groups.iter().map(|group| u64::from(group.free_blocks)).sum()
    }

    /// A request; numbers choose among what was taken.
    #[derive(Clone, Debug)]
    enum Step {
        Run(u64),
        Metadata(u16),
        Free(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1_u64..20_000).prop_map(Step::Run),
            1 => (1_u16..600).prop_map(Step::Metadata),
            2 => any::<prop::sample::Index>().prop_map(Step::Free),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn blocks_are_taken_in_ascending_order_and_freed_at_the_end(steps in proptest::collection::vec(step(), 0..20)) {
            let mut state = blank(SIZE).state;
            let before = used(&state.allocator, &mut state.blocks);
            prop_assert_eq!(before.len() as u64 + free_blocks(state.allocator.groups()), state.geometry.blocks());
            let (mut model, mut taken, mut mark) = (before, Vec::new(), 0);
            let mut freed = Vec::new();
            for step in steps {
                match step {
                    Step::Run(most) => {
                        let Ok(run) = state.allocator.take_run(&mut state.blocks, most) else { break };
                        prop_assert!(run.start < run.end && run.end - run.start <= most);
                        prop_assert!(run.start >= mark || state.allocator.blocks.wrapped);
                        mark = run.end;
                        prop_assert!(run.clone().all(|block| model.insert(block)), "a block is taken twice");
                        taken.push(run);
                    }
                    Step::Metadata(count) => {
                        for _ in 0..count {
                            let Ok(block) = state.allocator.take_metadata_block(&mut state.blocks) else { break };
                            prop_assert!(model.insert(block));
                            taken.push(block..block + 1);
                        }
                    }
                    Step::Free(index) if !taken.is_empty() => {
                        let run = taken.swap_remove(index.index(taken.len()));
                        state.allocator.free_run(run.clone()).unwrap();
                        freed.push(run);
                    }
                    Step::Free(_) => {}
                }
                if state.allocator.blocks.wrapped {
                    break;
                }
            }
            prop_assert!(used(&state.allocator, &mut state.blocks) == model);
            for run in freed {
                run.for_each(|block| prop_assert_removed(&mut model, block));
            }
            let geometry = state.geometry;
            let groups = state.allocator.finish(&mut state.blocks).unwrap();
            prop_assert_eq!(free_blocks(&groups), geometry.blocks() - model.len() as u64);
            let again = Allocator::open(geometry, groups, &mut state.blocks).unwrap();
            prop_assert!(used(&again, &mut state.blocks) == model);
            let tables: BTreeSet<_> = again
                .tables
                .iter()
                .flat_map(|(group, bits)| bits.clone().map(|bit| geometry.first_block(*group) + u64::from(bit)))
                .collect();
            let last = model.difference(&tables).last().map_or(0, |block| block + 1);
            prop_assert_eq!(again.blocks.next, last);
        }
    }

    fn prop_assert_removed(model: &mut BTreeSet<u64>, block: u64) {
        assert!(model.remove(&block));
    }

    #[test]
    fn all_blocks_of_a_disk_can_be_taken_and_no_more() {
        let mut state = blank(SIZE).state;
        let mut free = free_blocks(state.allocator.groups());
        state.allocator.take_metadata_block(&mut state.blocks).unwrap();
        free -= 1;
        while let Ok(run) = state.allocator.take_run(&mut state.blocks, 1000) {
            free -= run.end - run.start;
        }
        assert_eq!((free, free_blocks(state.allocator.groups())), (0, 0));
        assert!(state.allocator.take_metadata_block(&mut state.blocks).is_err());
        assert!(state.allocator.take_run(&mut state.blocks, 1).is_err());
        assert_eq!(used(&state.allocator, &mut state.blocks).len() as u64, state.geometry.blocks());
    }

    #[test]
    fn all_inodes_can_be_taken_and_the_mark_is_after_the_last() {
        let mut state = blank(32 << 20).state;
        let count = state.superblock.inodes_count;
        for number in 11..=count {
            assert_eq!(state.take_inode(number % 2 == 0).unwrap(), number);
        }
        assert!(state.take_inode(false).is_err());
        for number in [12, 100, count] {
            state.allocator.free_inode(&mut state.blocks, number, number % 2 == 0).unwrap();
            assert!(state.allocator.free_inode(&mut state.blocks, number, false).is_err(), "it is free");
        }
        let groups = state.allocator.groups().to_vec();
        let mut again = Allocator::open(state.geometry, groups, &mut state.blocks).unwrap();
        assert_eq!(again.inodes.next, u64::from(count) - 1);
        for number in [count, 12, 100] {
            assert_eq!(again.take_inode(&mut state.blocks, false).unwrap(), number);
        }
    }

    #[test]
    fn runs_outside_the_disk_or_freed_twice_are_errors() {
        let mut state = blank(SIZE).state;
        let end = state.geometry.blocks();
        for run in [end..end + 1, 5..5, u64::MAX - 1..u64::MAX] {
            assert!(state.allocator.free_run(run).is_err());
        }
        let run = state.allocator.take_run(&mut state.blocks, 5).unwrap();
        state.allocator.free_run(run.clone()).unwrap();
        assert!(state.allocator.free_run(run).is_err());
        // No file has it.
        state.allocator.free_run(end - 1..end).unwrap();
        assert!(state.allocator.finish(&mut state.blocks).is_err());
    }

    #[test]
    fn the_content_of_the_parent_ends_at_the_mark() {
        let mut state = blank(SIZE).state;
        let run = state.allocator.take_run(&mut state.blocks, 50).unwrap();
        let groups = state.allocator.groups().to_vec();
        let mut layer = Allocator::open(state.geometry, groups, &mut state.blocks).unwrap();
        assert!(layer.is_of_parent(&run));
        let new = layer.take_run(&mut state.blocks, 50).unwrap();
        assert!(
            new.start >= run.end && !layer.is_of_parent(&new) && !layer.is_of_parent(&(run.start..new.end))
        );
        while layer.take_run(&mut state.blocks, 50_000).is_ok() {}
        assert!(!layer.is_of_parent(&run), "new blocks may be anywhere");
    }
}
