//! The model of [`hits`](super::hits), evaluated read by read. It is slower than [`Evaluator`](super::Evaluator), but
//! lets a policy decide at each read, and returns the wait of each counted read. The rules are the same; a property
//! test compares the two.

use crate::bandwidth::{Bandwidth, RawNanos};
use crate::block_table::BlockTable;
use crate::compact_trace::{BlockAccess, CompactTrace};
use crate::evaluate::hits::Score;
use headstart_block::BLOCK_SIZE;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A policy that decides during the boot, at each read, which blocks to preload.
pub trait Online {
    /// Returns the blocks (their numbers on the disk) to preload from the creation of the disk on, in order.
    fn at_creation(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Handles the arrival of a read of `blocks` (their numbers on the disk), after the misses of the read were queued.
    /// Returns the blocks to preload from now on, which replace all blocks whose preloading has not begun; `None` to go
    /// on with the earlier ones.
    fn on_read(&mut self, blocks: &[u64]) -> Option<Vec<u64>>;
}

/// A policy that preloads these blocks in their order, and decides nothing during the boot.
impl Online for &[u64] {
    fn at_creation(&mut self) -> Vec<u64> {
        self.to_vec()
    }

    fn on_read(&mut self, _: &[u64]) -> Option<Vec<u64>> {
        None
    }
}

/// The state of a block that was asked for.
#[derive(Clone, Copy)]
enum State {
    Queued,
    Ready { at: RawNanos, preloaded: bool },
}

struct Replay {
    disk_size: u64,
    bandwidth: Bandwidth,
    asked: BTreeMap<u64, State>,
    misses: VecDeque<u64>,
    preloads: VecDeque<u64>,
    /// The time at which the wire's transfer ends, or ended.
    free: RawNanos,
}

impl Replay {
    /// Lets the wire work until `now`, and begin the transfers that begin then.
    fn advance(&mut self, now: RawNanos) {
        while self.free <= now {
            let (block, preloaded) = match (self.misses.pop_front(), &mut self.preloads) {
                (Some(block), _) => (block, false),
                (None, preloads) => match preloads.pop_front() {
                    Some(block) => (block, true),
                    None => {
                        // The next transfer does not begin in the past.
                        self.free = now;
                        return;
                    }
                },
            };
            let start = block.saturating_mul(BLOCK_SIZE);
            let len = self.disk_size.saturating_sub(start).min(BLOCK_SIZE);
            if len == 0 || preloaded && self.asked.contains_key(&block) {
                continue;
            }
            self.free = self.free.saturating_add(self.bandwidth.time_of(len));
            self.asked.insert(block, State::Ready { at: self.free, preloaded });
        }
    }

    /// The time that a read of these blocks, which comes now, waits if nothing else comes: misses go first.
    fn wait(&mut self, blocks: &[u64], now: RawNanos) -> RawNanos {
        for block in blocks {
            if !self.asked.contains_key(block) {
                self.asked.insert(*block, State::Queued);
                self.misses.push_back(*block);
            }
        }
        // An idle wire takes a miss at once; a busy one, once it is free: no later miss comes before.
        let mut free = self.free.max(now);
        let mut queued = BTreeMap::new();
        for block in &self.misses {
            let len = self.disk_size.saturating_sub(block.saturating_mul(BLOCK_SIZE)).min(BLOCK_SIZE);
            free = free.saturating_add(self.bandwidth.time_of(len));
            queued.insert(*block, free);
        }
        let ready = |block: &u64| match self.asked.get(block) {
            Some(State::Ready { at, .. }) => *at,
            _ => queued.get(block).copied().unwrap_or(now),
        };
        blocks.iter().map(ready).max().unwrap_or(0).saturating_sub(now)
    }
}

/// Replays `trace`, which was made with `block_table`, over a link of bandwidth `bandwidth`, with the decisions of
/// `policy`. Returns the score, and the wait of each counted read in nanoseconds, 0 for a hit.
pub fn replay(
    policy: &mut dyn Online,
    trace: &CompactTrace,
    block_table: &BlockTable,
    bandwidth: Bandwidth,
) -> (Score, Vec<RawNanos>) {
    let mut replay = Replay {
        disk_size: block_table.disk_size(),
        bandwidth,
        asked: BTreeMap::new(),
        misses: VecDeque::new(),
        preloads: policy.at_creation().into(),
        free: 0,
    };
    let (mut score, mut waits) = (Score::default(), Vec::with_capacity(trace.counted().len()));
    let (mut found, mut read_blocks, mut end) = (BTreeSet::new(), BTreeSet::new(), 0);
    for read in trace.counted() {
        end = RawNanos::from(read.t_us) * 1000;
        replay.advance(end);
        let number = |access: &BlockAccess| block_table.blocks()[access.block as usize];
        let blocks: Vec<_> = trace.accesses(read).iter().map(number).collect();
        let is_local =
            |block: &&u64| matches!(replay.asked.get(block), Some(State::Ready { at, .. }) if *at <= end);
        found.extend(blocks.iter().filter(is_local).copied());
        read_blocks.extend(blocks.iter().copied());
        waits.push(replay.wait(&blocks, end));
        if let Some(preloads) = policy.on_read(&blocks) {
            replay.preloads = preloads.into();
        }
        // A block that was asked for at this instant goes on an idle wire at this instant.
        replay.advance(end);
    }
    score.reads = waits.len() as u64;
    score.hits = waits.iter().filter(|wait| **wait == 0).count() as u64;
    score.wait_ns = waits.iter().map(|wait| u128::from(*wait)).sum();
    score.wait_max_ns = waits.iter().max().copied().unwrap_or(0);
    for (block, state) in &replay.asked {
        if let State::Ready { at, preloaded } = state
            && *at <= end
        {
            score.pulled += 1;
            score.preloaded += u64::from(*preloaded);
            score.preloaded_read += u64::from(*preloaded && read_blocks.contains(block));
        }
    }
    score.found_local = found.len() as u64;
    (score, waits)
}
