//! Bounds by relaxation that no order can beat, to compare the best found order with.
//!
//! # Hits
//!
//! The model is the ThinkAhead paper's ([`hits`](super::hits)). Let `c` be the time of a block on the wire. Number all
//! transfers from 1, preloads and misses alike. The `k`-th transfer does not start before `(k - 1)·c`. (The disk's last
//! block may be shorter; all starts are then assumed to be earlier by the saved time.)
//!
//! * *A preload starts only if no miss is queued.* When the `k`-th transfer is a preload, every block that was read
//!   before it has been requested. So if `k` blocks or more are read before `(k - 1)·c`, the `k`-th transfer is a miss.
//! * *Misses are served in the order of first access.* Consider the `i`-th block in this order. If its transfer is a
//!   miss, the transfers of the `i - 1` blocks that are read before it have started, so this transfer is the `i`-th at
//!   the earliest. It also starts after the block is read.
//!
//! So the place of a block among the transfers bounds the hits of the block's reads. To give each block a place is an
//! assignment problem, whose optimum ([`assignment`]) bounds the hits of every order. There are as many places as
//! blocks; a later transfer starts later than all of them. A read of several blocks counts for only one of them, as if
//! the others were local.
//!
//! # Delay
//!
//! In the closed loop ([`boot`](super::boot)), whatever the plan, a read completes only when all slices that this read
//! and the earlier reads access have come over the wire. That takes at least a round trip and the transfer time of
//! these bytes. If the result is later than the recorded time of the read, the boot is delayed at least by the
//! difference.

use crate::bandwidth::{Bandwidth, RawNanos};
use crate::block_table::BlockTable;
use crate::compact_trace::CompactTrace;
use crate::evaluate::BootLink;
use crate::slices;
use headstart_block::{exact, saturating};

/// A block that is read.
struct Block {
    /// The time of its first read.
    first: RawNanos,
    /// The times of its reads, ascending.
    times: Vec<RawNanos>,
    cost: RawNanos,
}

impl Block {
    /// The number of its reads that find it, if its transfer starts at `start`.
    fn hits(&self, start: RawNanos) -> i64 {
        let done = start.saturating_add(self.cost);
        let late = self.times.partition_point(|time| *time < done);
        exact(self.times.len() - late, "what memory holds is counted in 63 bits")
    }
}

/// Returns an upper bound on the hits (reads that find all their blocks local) of any preload order on
/// `trace`, over a link of bandwidth `bandwidth`. The bound counts the first 3,000 reads; the head of the module
/// derives it.
#[must_use]
pub fn hits_at_most(trace: &CompactTrace, block_table: &BlockTable, bandwidth: Bandwidth) -> u64 {
    let blocks = blocks(trace, block_table, bandwidth);
    let cost = bandwidth.time_of(headstart_block::BLOCK_SIZE);
    let lens = (0..).take(block_table.len()).map(|id| block_table.len_of(id)).filter(|len| *len > 0);
    let saved = cost.saturating_sub(bandwidth.time_of(lens.min().unwrap_or(headstart_block::BLOCK_SIZE)));
    let start = |place: usize| cost.saturating_mul(place as u64).saturating_sub(saved);
    let later: Vec<i64> = blocks.iter().map(|block| block.hits(start(blocks.len()))).collect();
    let gains = |place: usize| {
        let start = start(place);
        let read_before = blocks.partition_point(|block| block.first < start);
        let gain = |(at, block): (usize, &Block)| {
            let hits = match (read_before > place, at <= place) {
                (false, _) => block.hits(start),
                (true, true) => block.hits(start.max(block.first)),
                (true, false) => 0,
            };
            (hits - later[at]).max(0)
        };
        blocks.iter().enumerate().map(gain).collect()
    };
    let gains: Vec<Vec<i64>> = (0..blocks.len()).map(gains).collect();
    exact(later.iter().sum::<i64>() + assignment(&gains), "hits and gains are not negative")
}

/// The blocks that counted reads read, in the order of first access.
fn blocks(trace: &CompactTrace, block_table: &BlockTable, bandwidth: Bandwidth) -> Vec<Block> {
    let nanos = |t_us: u32| RawNanos::from(t_us) * 1000;
    let mut places = vec![usize::MAX; block_table.len()];
    let mut blocks = Vec::with_capacity(trace.blocks.len());
    for block in &trace.blocks {
        if let Some(place) = places.get_mut(block.block as usize) {
            *place = blocks.len();
        }
        blocks.push(Block {
            first: nanos(block.first_us),
            times: trace.times(block).0.iter().map(|time| nanos(*time)).collect(),
            cost: bandwidth.time_of(block_table.len_of(block.block)),
        });
    }
    for read in &trace.wide {
        let read = trace.reads()[*read as usize];
        let place = |block: u32| places.get(block as usize).copied().filter(|place| *place < blocks.len());
        let among = trace.accesses(&read).iter().filter_map(|access| place(access.block));
        // For the block with the fewest reads: it is the least likely to be there.
        if let Some(at) = among.min_by_key(|at| blocks[*at].times.len()) {
            blocks[at].times.push(nanos(read.t_us));
        }
    }
    blocks.iter_mut().for_each(|block| block.times.sort_unstable());
    blocks
}

/// Returns the largest sum of entries if each row takes one column that no other row takes (the assignment problem).
/// `gains` has the rows. All rows must have the same length, no entry may be negative, and there must not be more rows
/// than columns. 0 without rows.
///
/// The method of Kuhn and Munkres: rows are added one by one along the cheapest augmenting path, in rows² ·
/// columns steps.
#[must_use]
pub fn assignment(gains: &[Vec<i64>]) -> i64 {
    const NONE: usize = usize::MAX;
    let columns = gains.first().map_or(0, Vec::len);
    let (mut of_row, mut of_column) = (vec![0_i64; gains.len()], vec![0_i64; columns]);
    let mut taken = vec![NONE; columns];
    let (mut slack, mut came_from, mut is_done) =
        (vec![0_i64; columns], vec![NONE; columns], vec![false; columns]);
    for row in 0..gains.len().min(columns) {
        slack.fill(i64::MAX);
        came_from.fill(NONE);
        is_done.fill(false);
        // The column whose row is examined; none for the new row.
        let mut at = NONE;
        loop {
            let current = if at == NONE { row } else { taken[at] };
            let (mut next, mut least) = (NONE, i64::MAX);
            for column in (0..columns).filter(|column| !is_done[*column]) {
                let reduced = -gains[current][column] - of_row[current] - of_column[column];
                if reduced < slack[column] {
                    (slack[column], came_from[column]) = (reduced, at);
                }
                if slack[column] < least {
                    (next, least) = (column, slack[column]);
                }
            }
            of_row[row] += least;
            for column in 0..columns {
                if is_done[column] {
                    of_row[taken[column]] += least;
                    of_column[column] -= least;
                } else {
                    slack[column] -= least;
                }
            }
            (at, is_done[next]) = (next, true);
            if taken[at] == NONE {
                break;
            }
        }
        while at != NONE {
            let from = came_from[at];
            taken[at] = if from == NONE { row } else { taken[from] };
            at = from;
        }
    }
    taken.iter().enumerate().filter(|(_, row)| **row != NONE).map(|(column, row)| gains[*row][column]).sum()
}

/// Returns a lower bound, in nanoseconds, on the delay of any plan on `trace` over `link`. The head of the
/// module derives it.
#[must_use]
pub fn delay_at_least(trace: &CompactTrace, block_table: &BlockTable, link: &BootLink) -> RawNanos {
    let (mut touched, mut bytes, mut delay) = (vec![0_u32; block_table.len()], 0_u64, 0);
    for fresh in &trace.fresh {
        let read = trace.reads()[fresh.read as usize];
        for access in trace.accesses(&read) {
            let Some(known) = touched.get_mut(access.block as usize) else { continue };
            bytes += slices::bytes(access.mask & !*known, block_table.len_of(access.block));
            *known |= access.mask;
        }
        // Rounded down, because transfers are rounded up one by one.
        let brought = u128::from(bytes) * 1_000_000_000 / u128::from(link.bandwidth.bytes());
        let done = saturating::<RawNanos>(brought).saturating_add(link.round_trip);
        if bytes > 0 {
            delay = delay.max(done.saturating_sub(RawNanos::from(read.t_us) * 1000));
        }
    }
    delay
}

#[cfg(test)]
mod tests;
