//! A trace reduced to the data that learning needs.
//!
//! Offsets become blocks of a [`Vocabulary`] and masks of their slices; writes are dropped, because they are served
//! locally (paper, section 3.2). Beside the reads, in the order of arrival, there are three tables made once, so
//! that an evaluation need not walk the reads:
//!
//! * *blocks*, in the order of their first access among the first [`READS_MAX`] reads: only a first access can miss
//!   a block that nothing has asked for, so only these move the model's clock; with each, the times of the reads that
//!   are in this block alone, and the running sums of them: the number that comes before the block, and the time that
//!   they wait, are a binary search;
//! * *wide* reads, which are in several blocks: few, examined one by one;
//! * *fresh* reads, the first to touch some slice: a guest that waits for its reads can only ever wait for these.

use crate::vocabulary::{BlockId, Vocabulary};
use headstart_block::{BLOCK_SIZE, ByteRange, SLICE_SIZE};
use headstart_trace::{Op, Record, Trace};
use std::ops::Range;

/// The number of reads of a trace that count for hit rates (the paper's artifact).
pub const READS_MAX: usize = 3000;

/// The largest read that is accepted; real ones are a few MiB at most.
const READ_BYTES_MAX: u64 = 1 << 30;

/// The most touches of blocks that a trace may have; further ones are left out.
const TOUCHES_MAX: usize = 1 << 24;

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CondensedRead {
    /// The time of its arrival, in microseconds since the creation.
    pub t_us: u32,
    /// The time of its completion, if the trace tells it; otherwise that of its arrival.
    pub done_us: u32,
    /// The index of its first entry in the table of touches.
    start: u32,
    /// The index after its last entry.
    end: u32,
}

impl CondensedRead {
    pub(crate) fn touches(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// A block that a read is in, and the slices of it that it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The block.
    pub block: BlockId,
    /// Bit `i` for slice `i`.
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

/// A read that is the first to touch a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// The read's number.
    pub(crate) read: u32,
    /// `true` if it is of the same burst as the last fresh read: the guest did not wait for that one before it asked
    /// for this one.
    pub(crate) joins: bool,
}

/// A trace; see the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condensed {
    reads: Vec<CondensedRead>,
    touches: Vec<Touch>,
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

impl Condensed {
    /// Condenses a trace; its blocks are added to `vocabulary`.
    ///
    /// Linear in the trace, except for sorting its blocks. Reads past the end of the disk, of over a GiB, or later than
    /// 71 minutes after the creation are left out and counted, and empty ones have no meaning.
    #[must_use]
    pub fn of(trace: &Trace, vocabulary: &mut Vocabulary) -> Self {
        Self::of_records(&trace.records, vocabulary)
    }

    /// Condenses a trace's records.
    #[must_use]
    pub fn of_records(records: &[Record], vocabulary: &mut Vocabulary) -> Self {
        let reads = || records.iter().filter(|record| record.op == Op::Read && !record.range.is_empty());
        let mut blocks = Vec::with_capacity(records.len());
        for record in reads().filter(|record| is_believed(record, vocabulary.disk_size())) {
            let range = blocks_of(record.range);
            // Neighbouring reads are mostly in the same block.
            if blocks.last() != Some(&range.start) || range.end - range.start > 1 {
                blocks.extend(range);
            }
            if blocks.len() > TOUCHES_MAX {
                break;
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        vocabulary.add(&blocks);
        let mut condensed = Self::default();
        let mut last = (u64::MAX, 0);
        for record in reads() {
            let fits = is_believed(record, vocabulary.disk_size()) && condensed.touches.len() < TOUCHES_MAX;
            let Some(t_us) = u32::try_from(record.t_us).ok().filter(|_| fits) else {
                condensed.left_out += 1;
                continue;
            };
            let start = condensed.touches.len();
            for block in blocks_of(record.range) {
                if last.0 != block {
                    let Some(id) = vocabulary.id(block) else { continue };
                    last = (block, id);
                }
                condensed.touches.push(Touch { block: last.1, mask: mask_of(record.range, block) });
            }
            let done_us = t_us.saturating_add(record.service_us.unwrap_or(0));
            condensed.push_read(t_us, done_us, start);
        }
        condensed.finish(vocabulary)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "touches are bounded by TOUCHES_MAX and a read's own"
    )]
    fn push_read(&mut self, t_us: u32, done_us: u32, start: usize) {
        let (start, end) = (start as u32, self.touches.len() as u32);
        self.reads.push(CondensedRead { t_us, done_us, start, end });
    }

    /// Makes the tables.
    fn finish(mut self, vocabulary: &Vocabulary) -> Self {
        if !self.reads.is_sorted_by_key(|read| read.t_us) {
            self.reads.sort_by_key(|read| read.t_us);
        }
        self.tabulate_blocks(vocabulary.len());
        self.tabulate_fresh(vocabulary.len());
        self
    }

    #[expect(clippy::cast_possible_truncation, reason = "numbers of counted reads and of their touches")]
    fn tabulate_blocks(&mut self, vocabulary: usize) {
        const NONE: u32 = u32::MAX;
        let mut place = vec![NONE; vocabulary];
        let counted = &self.reads[..self.reads.len().min(READS_MAX)];
        for (number, read) in counted.iter().enumerate() {
            let is_wide = read.end - read.start > 1;
            if is_wide {
                self.wide.push(number as u32);
            }
            for touch in &self.touches[read.touches()] {
                let at = &mut place[touch.block as usize];
                if *at == NONE {
                    *at = self.blocks.len() as u32;
                    let (block, first_us) = (touch.block, read.t_us);
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
            let block = &mut self.blocks[place[self.touches[read.start as usize].block as usize] as usize];
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

    fn tabulate_fresh(&mut self, vocabulary: usize) {
        let mut seen = vec![0_u32; vocabulary];
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
            for touch in &self.touches[read.touches()] {
                let seen = &mut seen[touch.block as usize];
                if *seen == 0 {
                    self.order.push(touch.block);
                }
                is_fresh |= touch.mask & !*seen != 0;
                *seen |= touch.mask;
            }
            if is_fresh {
                self.fresh.push(Fresh { read: number, joins: last_fresh == Some(burst) });
                last_fresh = Some(burst);
            }
        }
    }

    /// The reads, in the order of arrival.
    #[must_use]
    pub fn reads(&self) -> &[CondensedRead] {
        &self.reads
    }

    /// The reads that count for hit rates: the first 3,000.
    #[must_use]
    pub fn counted(&self) -> &[CondensedRead] {
        &self.reads[..self.reads.len().min(READS_MAX)]
    }

    /// The blocks that a read is in, ascending on the disk.
    #[must_use]
    pub fn touches(&self, read: &CondensedRead) -> &[Touch] {
        self.touches.get(read.touches()).unwrap_or_default()
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

    /// The time from the creation to the first read, in microseconds; 0 without reads.
    #[must_use]
    pub fn grace_us(&self) -> u32 {
        self.reads.first().map_or(0, |read| read.t_us)
    }

    /// The time from the first read to the last, in microseconds.
    #[must_use]
    pub fn duration_us(&self) -> u32 {
        self.reads.last().map_or(0, |read| read.t_us) - self.grace_us()
    }

    /// The number of reads that were not accepted.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The same boot on a guest that thinks `factor` times faster: the grace period stays, the times after it shrink.
    #[must_use]
    pub fn faster(&self, factor: u32, vocabulary: &Vocabulary) -> Self {
        let factor = u64::from(factor.max(1));
        self.paced(self.grace_us(), |since| since / factor, vocabulary)
    }

    /// The same boot after another grace period, on a guest whose times are `permille` of these, as on another
    /// host.
    #[must_use]
    pub fn elsewhere(&self, grace_us: u32, permille: u32, vocabulary: &Vocabulary) -> Self {
        self.paced(grace_us, |since| since * u64::from(permille) / 1000, vocabulary)
    }

    /// The same boot in the vocabulary of another image, whose blocks are at the same places of its disk.
    #[must_use]
    pub fn renumbered(&self, from: &Vocabulary, to: &mut Vocabulary) -> Self {
        let blocks = |id: &BlockId| from.blocks().get(*id as usize).copied();
        let mut sorted: Vec<_> = self.order.iter().filter_map(blocks).collect();
        sorted.sort_unstable();
        to.add(&sorted);
        let mut condensed = Self { left_out: self.left_out, ..Self::default() };
        for read in &self.reads {
            let start = condensed.touches.len();
            for touch in self.touches(read) {
                let block = blocks(&touch.block).and_then(|block| to.id(block));
                condensed.touches.extend(block.map(|block| Touch { block, ..*touch }));
            }
            condensed.push_read(read.t_us, read.done_us, start);
        }
        condensed.finish(to)
    }

    fn paced(&self, grace_us: u32, scale: impl Fn(u64) -> u64, vocabulary: &Vocabulary) -> Self {
        let grace = self.grace_us();
        let scaled = |read: &CondensedRead| {
            let since = u32::try_from(scale(u64::from(read.t_us - grace))).unwrap_or(u32::MAX);
            let t_us = grace_us.saturating_add(since);
            // The time that the store took does not depend on the guest.
            CondensedRead { t_us, done_us: t_us.saturating_add(read.done_us - read.t_us), ..*read }
        };
        let (reads, touches) = (self.reads.iter().map(scaled).collect(), self.touches.clone());
        Self { reads, touches, left_out: self.left_out, ..Self::default() }.finish(vocabulary)
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
    let up_to = |slice: u64| u32::MAX.checked_shr(32 - u32::try_from(slice).unwrap_or(32)).unwrap_or(0);
    up_to(end) & !up_to(first)
}

mod packed;
#[cfg(test)]
mod tests;

pub use packed::Packed;
