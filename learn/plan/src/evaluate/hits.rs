//! The ThinkAhead paper's model of pulling, on compact traces (sections 6 and 7, and the published simulator).
//!
//! # The rules
//!
//! 1. One wire of constant bandwidth carries one block at a time, whole; the last block of a disk may be short, and a
//!    block past its end is skipped. Nothing is given up once it is on the wire.
//! 2. The wire starts at the creation, `t = 0`, with the plan's first block, and follows the plan. Blocks that a miss
//!    or an earlier item of the plan has requested are skipped. After the plan's end only misses are carried: the rest
//!    of the image is not fetched (in the paper's words, the left queue is off).
//! 3. Reads arrive as recorded, regardless of waits. Only the first 3,000 count; later ones are not replayed.
//! 4. A read is a hit if all its blocks are local when it arrives. Otherwise it queues a miss for each of its blocks
//!    that nothing has requested yet. Misses go first come, first served (blocks of one read in ascending order): after
//!    the block that is on the wire, and before any preload.
//! 5. At one instant, transfers end first; the wire's next transfer begins; then reads arrive. So a block that ends at
//!    the instant of a read is local, and the next preload is already on the wire when that read misses.
//! 6. The evaluation ends when the last counted read arrives.
//!
//! # Speed
//!
//! Once the transfer of a block begins, or its miss is queued, the time of its arrival is fixed, so the state is only
//! the time at which the wire becomes free. Only the first access of a block can request it, so the walk is over
//! distinct blocks, not over reads. The reads that came before a block arrived are then counted by one binary search in
//! the times of the block's reads; no search is needed if the block was local at its first access.

use crate::bandwidth::{Bandwidth, RawNanos};
use crate::block_table::{BlockId, BlockTable};
use crate::compact_trace::{BlockReads, CompactTrace};

/// The result of replaying one trace with a preload order, or several traces. Fields of several traces are
/// sums, except for the longest wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// The number of reads that count: the first 3,000 of a trace.
    pub reads: u64,
    /// The number of counted reads whose blocks were all local when the read arrived.
    pub hits: u64,
    /// The sum of the waits of all counted reads, in nanoseconds.
    pub wait_ns: u128,
    /// The longest wait of a counted read, in nanoseconds.
    pub wait_max_ns: RawNanos,
    /// The number of blocks whose preload was complete when the last counted read arrived.
    pub preloaded: u64,
    /// The number of completely preloaded blocks that a counted read accessed.
    pub preloaded_read: u64,
    /// The number of blocks that had arrived, as preloads or as misses, when the last counted read arrived.
    pub pulled: u64,
    /// The number of distinct blocks that were local when some counted read accessed them.
    pub found_local: u64,
}

impl Score {
    /// Returns the share of counted reads that were hits, 0 to 1; 1 without reads, because nothing waited.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.reads).unwrap_or(1.0)
    }

    /// Returns the share of preloaded blocks that a counted read accessed, 0 to 1; `None` if no block was
    /// preloaded.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        share(self.preloaded_read, self.preloaded)
    }

    /// Returns the accuracy as the artifact of the ThinkAhead paper defines it: distinct blocks that a read
    /// found local, divided by all blocks that arrived. `None` if no block arrived.
    #[must_use]
    pub fn artifact_accuracy(&self) -> Option<f64> {
        share(self.found_local, self.pulled)
    }

    /// Adds the result of another trace.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.wait_ns += other.wait_ns;
        self.wait_max_ns = self.wait_max_ns.max(other.wait_max_ns);
        self.preloaded += other.preloaded;
        self.preloaded_read += other.preloaded_read;
        self.pulled += other.pulled;
        self.found_local += other.found_local;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The open-loop evaluator of preload orders: replays traces whose reads arrive as recorded, regardless of
/// waits. It serves one block table and one bandwidth, and allocates memory only when it is made.
#[derive(Clone, Debug)]
pub struct Evaluator {
    /// The time that each block takes; 0 past the end of the disk.
    costs: Vec<RawNanos>,
    /// The time at which each block is local; [`NEVER`] while it was not asked for.
    ready: Vec<RawNanos>,
}

const NEVER: RawNanos = RawNanos::MAX;

/// Microseconds of a trace in nanoseconds.
fn nanos(t_us: u32) -> RawNanos {
    RawNanos::from(t_us) * 1000
}

/// The wire, and the position in the plan.
struct Wire<'a> {
    order: std::slice::Iter<'a, BlockId>,
    free: RawNanos,
    preloaded: u64,
    last_preload: Option<BlockId>,
}

impl Evaluator {
    /// Makes an evaluator for traces and orders of `block_table`. Blocks that are added to the table later
    /// are never fetched.
    #[must_use]
    pub fn new(block_table: &BlockTable, bandwidth: Bandwidth) -> Self {
        let ids = (0..).take(block_table.len());
        let costs: Vec<_> = ids.map(|id| bandwidth.time_of(block_table.len_of(id))).collect();
        Self { ready: vec![NEVER; costs.len()], costs }
    }

    /// Replays `trace` while the blocks of `order` are preloaded in this order, and returns the result. If a block
    /// occurs twice in `order`, its first position counts.
    #[must_use]
    pub fn evaluate(&mut self, order: &[BlockId], trace: &CompactTrace) -> Score {
        self.ready.fill(NEVER);
        let counted = trace.counted();
        let mut score = Score { reads: counted.len() as u64, ..Score::default() };
        let end = counted.last().map_or(0, |read| nanos(read.t_us));
        let mut wire = Wire { order: order.iter(), free: 0, preloaded: 0, last_preload: None };
        for block in &trace.blocks {
            let (at, now) = (block.block as usize, nanos(block.first_us));
            self.advance(&mut wire, now);
            let Some(ready) = self.ready.get_mut(at) else { continue };
            if *ready == NEVER {
                wire.free = wire.free.max(now).saturating_add(self.costs[at]);
                *ready = wire.free;
                score.pulled += u64::from(wire.free <= end);
            } else {
                score.preloaded_read += 1;
            }
        }
        self.advance(&mut wire, end);
        score.preloaded = wire.preloaded;
        // Only the last preload can still be on the wire.
        if let Some(last) = wire.last_preload.filter(|last| self.ready[*last as usize] > end) {
            score.preloaded -= 1;
            score.preloaded_read -= u64::from(trace.blocks.iter().any(|block| block.block == last));
        }
        score.pulled += score.preloaded;
        for block in &trace.blocks {
            self.count_reads(block, trace, &mut score);
        }
        for read in &trace.wide {
            let wait = self.wait_of(*read as usize, trace);
            score.hits += u64::from(wait == 0);
            score.wait_ns += u128::from(wait);
            score.wait_max_ns = score.wait_max_ns.max(wait);
        }
        score
    }

    /// Returns the wait of each counted read of the trace that was evaluated last, in nanoseconds and in the
    /// order of the reads; 0 for a hit. `trace` must be the one passed to [`evaluate`](Self::evaluate).
    pub fn waits(&self, trace: &CompactTrace) -> impl Iterator<Item = RawNanos> {
        (0..trace.counted().len()).map(|read| self.wait_of(read, trace))
    }

    /// Starts the preloads that start by `now`.
    fn advance(&mut self, wire: &mut Wire<'_>, now: RawNanos) {
        while wire.free <= now {
            let Some(id) = wire.order.next() else { return };
            let at = *id as usize;
            if self.ready.get(at) != Some(&NEVER) || self.costs[at] == 0 {
                continue;
            }
            wire.free = wire.free.saturating_add(self.costs[at]);
            self.ready[at] = wire.free;
            wire.preloaded += 1;
            wire.last_preload = Some(*id);
        }
    }

    /// Counts the reads in this block alone, and the block if any read found it.
    fn count_reads(&self, block: &BlockReads, trace: &CompactTrace, score: &mut Score) {
        let ready = self.ready.get(block.block as usize).copied().unwrap_or(NEVER);
        let (times, sums) = trace.times(block);
        score.found_local += u64::from(nanos(block.last_us) >= ready);
        if nanos(block.first_us) >= ready {
            score.hits += times.len() as u64;
            return;
        }
        let misses = times.partition_point(|time| nanos(*time) < ready);
        score.hits += (times.len() - misses) as u64;
        if let Some(first) = times.first().filter(|_| misses > 0) {
            let arrivals = u128::from(sums[misses] - sums[0]) * 1000;
            score.wait_ns += misses as u128 * u128::from(ready) - arrivals;
            score.wait_max_ns = score.wait_max_ns.max(ready - nanos(*first));
        }
    }

    fn wait_of(&self, read: usize, trace: &CompactTrace) -> RawNanos {
        let read = trace.reads()[read];
        let ready = |block: BlockId| self.ready.get(block as usize).copied().unwrap_or(NEVER);
        let last = trace.accesses(&read).iter().map(|access| ready(access.block)).max().unwrap_or(0);
        last.saturating_sub(nanos(read.t_us))
    }
}

#[cfg(test)]
mod tests;
