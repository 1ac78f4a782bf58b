//! A trace reduced to the data that learning needs.
//!
//! Offsets become blocks of a [`BlockTable`] and masks of their slices; writes are dropped, because they are served
//! locally (ThinkAhead paper, section 3.2). A compact trace has its reads in the order of arrival, and three tables
//! that are made once, so that an evaluation need not walk all reads:
//!
//! * *Blocks*, in the order of their first access among the first [`READS_MAX`] reads. Only the first access of a block
//!   can cause a request for it, so an evaluation ([`hits`](crate::evaluate::hits)) visits only first accesses. With
//!   each block there are the arrival times of the reads that are in this block alone, and running sums of these times.
//!   A binary search then finds how many of these reads come before the block arrives, and how long they wait.
//! * *Wide* reads: the reads that are in several blocks. They are few, and are examined one by one.
//! * *Fresh* reads: each is the first to access some slice. A guest that waits for its reads can wait only for these.

use crate::block_table::{BlockId, BlockTable};
use headstart_block::{BLOCK_SIZE, ByteRange, SLICE_SIZE, exact, saturating};
use headstart_trace::{Op, Record, Trace};
use std::ops::Range;

/// The number of reads of a trace, counted from its start, that hit rates are computed from. The artifact
/// (the published simulator) of the ThinkAhead paper uses the same number.
pub const READS_MAX: usize = 3000;

/// The largest read that is accepted; real ones are a few MiB at most.
const READ_BYTES_MAX: u64 = 1 << 30;

/// The most accesses of blocks that a trace may have; further ones are left out.
const ACCESSES_MAX: usize = 1 << 24;

/// A read of a [`CompactTrace`]; [`CompactTrace::accesses`] returns its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactRead {
    /// The arrival of the read, in microseconds since the creation of the disk.
    pub t_us: u32,
    /// The completion of the read, in microseconds since the creation of the disk; equal to the arrival if
    /// the trace has no service times.
    pub done_us: u32,
    /// The index of its first entry in the table of accesses.
    start: u32,
    /// The index after its last entry.
    end: u32,
}

impl CompactRead {
    pub(crate) fn accesses(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A block (2 MiB) that a read overlaps, with the slices (64 KiB) of it that the read overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAccess {
    /// The id of the block in the block table that the trace was made with.
    pub block: BlockId,
    /// The slices as bits: bit `i` is set if the read overlaps slice `i` of the block (0 to 31).
    pub mask: u32,
}

/// A block in the order of first access, and the reads in it; see the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockReads {
    pub(crate) block: BlockId,
    /// The times of its first and last access by any counted read.
    pub(crate) first_us: u32,
    pub(crate) last_us: u32,
    /// Counted reads in it, wide ones included.
    pub(crate) count: u32,
    /// The range of `times` that belongs to it.
    start: u32,
    end: u32,
}

/// A read that is the first to access a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// The read's number.
    pub(crate) read: u32,
    /// `true` if it is of the same burst as the last fresh read: the guest did not wait for that one before it asked
    /// for this one.
    pub(crate) joins: bool,
}

/// The reads of one boot as blocks and slices, with tables that make evaluations fast. All learning works on
/// this form of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactTrace {
    reads: Vec<CompactRead>,
    accesses: Vec<BlockAccess>,
    pub(crate) blocks: Vec<BlockReads>,
    /// Times of reads in one block, block by block, ascending.
    times: Vec<u32>,
    /// Sums of `times` from the start of the table: one more than times.
    sums: Vec<u64>,
    /// Numbers of the counted reads in several blocks.
    pub(crate) wide: Vec<u32>,
    pub(crate) fresh: Vec<Fresh>,
    /// Distinct blocks of all reads, in the order of first access.
    order: Vec<BlockId>,
    left_out: u64,
}

impl CompactTrace {
    /// Reduces a trace to its reads, and adds the blocks that they overlap to `block_table`, the table of the disk.
    ///
    /// Takes linear time, except for sorting the blocks. Reads past the end of the disk, longer than 1 GiB,
    /// or later than 71 minutes after the creation are left out, as are all reads after 2^24 accesses of blocks;
    /// [`left_out`](Self::left_out) counts them. Writes and empty reads are ignored, and so is the time for which the
    /// disk waited for the start of its first container.
    #[must_use]
    pub fn of(trace: &Trace, block_table: &mut BlockTable) -> Self {
        Self::of_records(&trace.records_without_wait(), block_table)
    }

    /// Reduces the records of a trace as [`of`](Self::of) does.
    #[must_use]
    pub fn of_records(records: &[Record], block_table: &mut BlockTable) -> Self {
        let reads = || records.iter().filter(|record| record.op == Op::Read && !record.range.is_empty());
        let mut blocks = Vec::with_capacity(records.len());
        for record in reads().filter(|record| is_believed(record, block_table.disk_size())) {
            let range = blocks_of(record.range);
            // Neighbouring reads are mostly in the same block.
            if blocks.last() != Some(&range.start) || range.end - range.start > 1 {
                blocks.extend(range);
            }
            if blocks.len() > ACCESSES_MAX {
                break;
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        block_table.add(&blocks);
        let mut compact = Self::default();
        let mut last = (u64::MAX, 0);
        for record in reads() {
            let fits = is_believed(record, block_table.disk_size()) && compact.accesses.len() < ACCESSES_MAX;
            let Some(t_us) = u32::try_from(record.t_us).ok().filter(|_| fits) else {
                compact.left_out += 1;
                continue;
            };
            let start = compact.accesses.len();
            for block in blocks_of(record.range) {
                if last.0 != block {
                    let Some(id) = block_table.id(block) else { continue };
                    last = (block, id);
                }
                compact.accesses.push(BlockAccess { block: last.1, mask: mask_of(record.range, block) });
            }
            let done_us = t_us.saturating_add(record.service_us.unwrap_or(0));
            compact.push_read(t_us, done_us, start);
        }
        compact.finish(block_table)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "accesses are bounded by ACCESSES_MAX and a read's own"
    )]
    fn push_read(&mut self, t_us: u32, done_us: u32, start: usize) {
        let (start, end) = (start as u32, self.accesses.len() as u32);
        self.reads.push(CompactRead { t_us, done_us, start, end });
    }

    /// Makes the tables.
    fn finish(mut self, block_table: &BlockTable) -> Self {
        if !self.reads.is_sorted_by_key(|read| read.t_us) {
            self.reads.sort_by_key(|read| read.t_us);
        }
        self.tabulate_blocks(block_table.len());
        self.tabulate_fresh(block_table.len());
        self
    }

    #[expect(clippy::cast_possible_truncation, reason = "numbers of counted reads and of their accesses")]
    fn tabulate_blocks(&mut self, block_table: usize) {
        const NONE: u32 = u32::MAX;
        let mut place = vec![NONE; block_table];
        let counted = &self.reads[..self.reads.len().min(READS_MAX)];
        for (number, read) in counted.iter().enumerate() {
            let is_wide = read.end - read.start > 1;
            if is_wide {
                self.wide.push(number as u32);
            }
            for access in &self.accesses[read.accesses()] {
                let at = &mut place[access.block as usize];
                if *at == NONE {
                    *at = self.blocks.len() as u32;
                    let (block, first_us) = (access.block, read.t_us);
                    self.blocks.push(BlockReads { block, first_us, last_us: 0, count: 0, start: 0, end: 0 });
                }
                let block = &mut self.blocks[*at as usize];
                block.last_us = read.t_us;
                block.count += 1;
                block.end += u32::from(!is_wide);
            }
        }
        let mut start = 0;
        for block in &mut self.blocks {
            (block.start, start) = (start, start + block.end);
            block.end = block.start;
        }
        self.times = vec![0; start as usize];
        for read in counted.iter().filter(|read| read.end - read.start == 1) {
            let block = &mut self.blocks[place[self.accesses[read.start as usize].block as usize] as usize];
            self.times[block.end as usize] = read.t_us;
            block.end += 1;
        }
        self.sums = Vec::with_capacity(self.times.len() + 1);
        self.sums.push(0);
        let mut sum = 0;
        self.sums.extend(self.times.iter().map(|time| {
            sum += u64::from(*time);
            sum
        }));
    }

    fn tabulate_fresh(&mut self, block_table: usize) {
        let mut seen = vec![0_u32; block_table];
        // The earliest completion since the burst began, and the burst of the last fresh read.
        let (mut earliest, mut burst, mut last_fresh) = (None, 0_u32, None);
        for (number, read) in (0..).zip(&self.reads) {
            match &mut earliest {
                Some(done) if read.t_us <= *done => *done = (*done).min(read.done_us),
                earliest => {
                    *earliest = Some(read.done_us);
                    burst += 1;
                }
            }
            let mut is_fresh = false;
            for access in &self.accesses[read.accesses()] {
                let seen = &mut seen[access.block as usize];
                if *seen == 0 {
                    self.order.push(access.block);
                }
                is_fresh |= access.mask & !*seen != 0;
                *seen |= access.mask;
            }
            if is_fresh {
                self.fresh.push(Fresh { read: number, joins: last_fresh == Some(burst) });
                last_fresh = Some(burst);
            }
        }
    }

    /// The reads, in the order of arrival.
    #[must_use]
    pub fn reads(&self) -> &[CompactRead] {
        &self.reads
    }

    /// The reads that hit rates are computed from: the first [`READS_MAX`].
    #[must_use]
    pub fn counted(&self) -> &[CompactRead] {
        &self.reads[..self.reads.len().min(READS_MAX)]
    }

    /// Returns the blocks that a read of this trace overlaps, in ascending order of their numbers on the
    /// disk.
    #[must_use]
    pub fn accesses(&self, read: &CompactRead) -> &[BlockAccess] {
        self.accesses.get(read.accesses()).unwrap_or_default()
    }

    /// Times of the counted reads in this block alone, and their sums.
    pub(crate) fn times(&self, block: &BlockReads) -> (&[u32], &[u64]) {
        let range = block.start as usize..block.end as usize;
        (&self.times[range.clone()], &self.sums[range.start..=range.end])
    }

    /// The distinct blocks of all reads, in the order of their first access.
    #[must_use]
    pub fn first_accesses(&self) -> &[BlockId] {
        &self.order
    }

    /// Returns the *grace period*: the time from the creation of the disk to its first read, in microseconds.
    /// 0 without reads.
    #[must_use]
    pub fn grace_us(&self) -> u32 {
        self.reads.first().map_or(0, |read| read.t_us)
    }

    /// Returns the time from the first read to the last, in microseconds; 0 without reads.
    #[must_use]
    pub fn duration_us(&self) -> u32 {
        self.reads.last().map_or(0, |read| read.t_us) - self.grace_us()
    }

    /// Returns the number of reads that were left out when the trace was reduced, for the reasons that
    /// [`of`](Self::of) lists.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the same boot on a faster guest: times since the first read are divided by `factor` (0 counts
    /// as 1). The grace period before the first read and the duration of each read do not change.
    /// `block_table` is the table of the trace.
    #[must_use]
    pub fn faster(&self, factor: u32, block_table: &BlockTable) -> Self {
        let factor = u64::from(factor.max(1));
        self.paced(self.grace_us(), |since| since / factor, block_table)
    }

    /// Returns the same boot as on another host: the first read comes `grace_us` microseconds after the
    /// creation, and times since the first read are multiplied by `permille` / 1000. The duration of each read
    /// does not change. `block_table` is the table of the trace.
    #[must_use]
    pub fn elsewhere(&self, grace_us: u32, permille: u32, block_table: &BlockTable) -> Self {
        self.paced(grace_us, |since| since * u64::from(permille) / 1000, block_table)
    }

    /// Returns the same boot with the block ids of another block table, `to`; `from` is the table of this trace.
    /// Blocks of the trace that `to` lacks are added to `to`. The blocks' numbers on the disk do not change.
    #[must_use]
    pub fn renumbered(&self, from: &BlockTable, to: &mut BlockTable) -> Self {
        let blocks = |id: &BlockId| from.blocks().get(*id as usize).copied();
        let mut sorted: Vec<_> = self.order.iter().filter_map(blocks).collect();
        sorted.sort_unstable();
        to.add(&sorted);
        let mut compact = Self { left_out: self.left_out, ..Self::default() };
        for read in &self.reads {
            let start = compact.accesses.len();
            for access in self.accesses(read) {
                let block = blocks(&access.block).and_then(|block| to.id(block));
                compact.accesses.extend(block.map(|block| BlockAccess { block, ..*access }));
            }
            compact.push_read(read.t_us, read.done_us, start);
        }
        compact.finish(to)
    }

    fn paced(&self, grace_us: u32, scale: impl Fn(u64) -> u64, block_table: &BlockTable) -> Self {
        let grace = self.grace_us();
        let scaled = |read: &CompactRead| {
            let since = saturating(scale(u64::from(read.t_us - grace)));
            let t_us = grace_us.saturating_add(since);
            // The time that the store took does not depend on the guest.
            CompactRead { t_us, done_us: t_us.saturating_add(read.done_us - read.t_us), ..*read }
        };
        let (reads, accesses) = (self.reads.iter().map(scaled).collect(), self.accesses.clone());
        Self { reads, accesses, left_out: self.left_out, ..Self::default() }.finish(block_table)
    }
}

fn is_believed(record: &Record, disk_size: u64) -> bool {
    record.range.end() <= disk_size && record.range.len() <= READ_BYTES_MAX
}

/// The blocks that a range, which is not empty, is in.
fn blocks_of(range: ByteRange) -> Range<u64> {
    range.offset() / BLOCK_SIZE..range.end().div_ceil(BLOCK_SIZE)
}

/// The slices of `block` that the range, which overlaps it, is in.
fn mask_of(range: ByteRange, block: u64) -> u32 {
    let start = block * BLOCK_SIZE;
    let first = range.offset().saturating_sub(start) / SLICE_SIZE;
    let end = (range.end() - start).min(BLOCK_SIZE).div_ceil(SLICE_SIZE);
    let up_to = |slice: u64| {
        let slice: u32 = exact(slice, "a block has 32 slices");
        u32::MAX.checked_shr(32 - slice).unwrap_or(0)
    };
    up_to(end) & !up_to(first)
}

mod packed;
#[cfg(test)]
mod tests;

pub use packed::Packed;
