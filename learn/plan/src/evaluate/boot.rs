//! The delay of a boot: a closed loop, in which a guest that waits asks later (`docs/design-learning.md`).
//!
//! # The model
//!
//! * *The guest.* When the reads that a read followed have completed, the read arrives after the same pause as in the
//!   recording. Boots mostly follow one thread, so all earlier waits delay a read. Reads that were in progress together
//!   in the recording are an exception: they form a *burst*, which delays later reads only by its longest wait. If a
//!   trace has no times of completion, only reads at the same instant are a burst. Only a read that is the first to
//!   access some slice can wait, because a slice that was waited for stays local.
//! * *The link.* It is one wire of constant bandwidth, with a round trip. Background requests are sent ahead, so that
//!   the wire is never idle while there is work. A miss is sent at once, and its first byte comes a round trip later at
//!   the earliest. Background transfers that begin before that moment are carried first.
//! * *The transfers.* Each item of the plan, a block with a mask of its slices, is one transfer. After the plan come
//!   the rests of blocks of which misses brought a part ([`Misses::RangeThenRest`]). A miss brings the whole block or
//!   only the slices of the read ([`Misses`]).
//!
//! With whole blocks, a round trip of 0 and a guest that never waits, these are the rules of [`hits`](super::hits).

use crate::bandwidth::{Bandwidth, RawNanos};
use crate::block_table::{BlockId, BlockTable};
use crate::compact_trace::{BlockAccess, CompactTrace};
use crate::slices;
use headstart_block::SLICE_SIZE;
use std::collections::VecDeque;

/// An entry of a plan: a block, and the slices (64 KiB) of it to preload. Bit `i` of the mask stands for
/// slice `i`.
pub type Item = (BlockId, u32);

/// The part of a block that a miss fetches. A read misses if it accesses a slice that no transfer was started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misses {
    /// The whole block; the read waits for all of it (the behaviour that the ThinkAhead paper describes).
    Block,
    /// The slices that are read; the rest of the block follows in the background when the plan is done.
    RangeThenRest,
    /// The slices that are read, and nothing more.
    Range,
}

/// The modelled link from the store to the host, and the bytes that misses fetch over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootLink {
    /// The bandwidth of the link; it is constant.
    pub bandwidth: Bandwidth,
    /// The time from sending a request to the arrival of its first byte, in nanoseconds.
    pub round_trip: RawNanos,
    /// The part of a block that a miss fetches.
    pub misses: Misses,
}

/// The result of replaying one boot with a plan, or several boots; all fields are sums over the boots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootScore {
    /// The number of boots that were replayed.
    pub boots: u64,
    /// The time by which waiting delays the boot, in nanoseconds. Reads that the guest sent together (a
    /// burst) delay it by the longest of their waits, and the delays of bursts add up.
    pub delay_ns: u128,
    /// The number of reads, whether or not they waited.
    pub reads: u64,
    /// The number of reads that waited for data to arrive.
    pub waits: u64,
    /// The bytes of all transfers, preloads as well as misses, that were started before the boot ended.
    pub bytes: u64,
}

impl BootScore {
    /// Adds the result of other boots.
    pub fn add(&mut self, other: &Self) {
        self.boots += other.boots;
        self.delay_ns += other.delay_ns;
        self.reads += other.reads;
        self.waits += other.waits;
        self.bytes += other.bytes;
    }

    /// Returns the average delay of a boot, in seconds; 0 without boots.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an average")]
    pub fn delay_s(&self) -> f64 {
        self.delay_ns as f64 / 1e9 / self.boots.max(1) as f64
    }
}

/// The parts of a block that are on their way, or local.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    preload: u32,
    rest: u32,
    /// Slices whose own times of arrival count, because a read missed them.
    missed: u32,
    preload_ready: RawNanos,
    rest_ready: RawNanos,
}

impl State {
    fn requested(&self) -> u32 {
        self.preload | self.rest | self.missed
    }
}

/// The closed-loop evaluator of plans: replays boots over a link, and each wait delays the reads that follow.
/// One instance serves one block table and reuses its memory.
#[derive(Clone, Debug)]
pub struct BootEvaluator {
    link: BootLink,
    /// The time that a number of slices takes, by that number.
    costs: [RawNanos; 33],
    lens: Vec<u64>,
    states: Vec<State>,
    /// The times at which missed slices arrive; the other entries mean nothing.
    ready: Vec<[RawNanos; 32]>,
    rests: VecDeque<BlockId>,
}

/// The wire, and its next transfers.
struct Wire<'a> {
    items: std::slice::Iter<'a, Item>,
    free: RawNanos,
    bytes: u64,
}

impl BootEvaluator {
    /// Makes an evaluator for traces and plans of `block_table`. Blocks that are added to the table later are
    /// ignored.
    #[must_use]
    pub fn new(block_table: &BlockTable, link: BootLink) -> Self {
        let lens: Vec<_> = (0..).take(block_table.len()).map(|id| block_table.len_of(id)).collect();
        let mut slices = 0;
        let costs = [(); 33].map(|()| {
            slices += 1;
            link.bandwidth.time_of((slices - 1) * SLICE_SIZE)
        });
        Self {
            link,
            costs,
            states: vec![State::default(); lens.len()],
            ready: vec![[0; 32]; lens.len()],
            rests: VecDeque::new(),
            lens,
        }
    }

    /// Replays `trace` while `items` are preloaded in this order, and returns the result for this boot. Each block
    /// should occur once in `items`: after one item of a block was preloaded, further items of that block are skipped.
    #[must_use]
    pub fn evaluate(&mut self, items: &[Item], trace: &CompactTrace) -> BootScore {
        self.states.fill(State::default());
        self.rests.clear();
        let mut wire = Wire { items: items.iter(), free: self.link.round_trip, bytes: 0 };
        let mut score = BootScore { boots: 1, reads: trace.reads().len() as u64, ..BootScore::default() };
        let (mut delay, mut burst): (RawNanos, RawNanos) = (0, 0);
        for fresh in &trace.fresh {
            if !fresh.joins {
                delay = delay.saturating_add(burst);
                burst = 0;
            }
            let read = trace.reads()[fresh.read as usize];
            let now = (RawNanos::from(read.t_us) * 1000).saturating_add(delay);
            let wait = self.read(&mut wire, trace.accesses(&read), now);
            score.waits += u64::from(wait > 0);
            burst = burst.max(wait);
        }
        delay = delay.saturating_add(burst);
        let last = trace.reads().last().map_or(0, |read| RawNanos::from(read.t_us) * 1000);
        self.advance(&mut wire, last.saturating_add(delay));
        score.delay_ns = u128::from(delay);
        score.bytes = wire.bytes;
        score
    }

    /// Replays several traces, each with the plan `items`, and returns the sums of their results.
    #[must_use]
    pub fn evaluate_all<'a>(
        &mut self,
        items: &[Item],
        traces: impl IntoIterator<Item = &'a CompactTrace>,
    ) -> BootScore {
        let mut sum = BootScore::default();
        traces.into_iter().for_each(|trace| sum.add(&self.evaluate(items, trace)));
        sum
    }

    /// Handles a read; returns the time that it waits.
    fn read(&mut self, wire: &mut Wire<'_>, accesses: &[BlockAccess], now: RawNanos) -> RawNanos {
        let reaches = now.saturating_add(self.link.round_trip);
        let mut last = now;
        for access in accesses {
            let at = access.block as usize;
            let Some(state) = self.states.get(at) else { continue };
            if access.mask & !state.requested() != 0 {
                // Only now is it known if it is asked for by then.
                self.advance(wire, now);
                self.miss(wire, *access, reaches);
            }
            last = last.max(self.ready_at(*access));
        }
        last - now
    }

    /// Asks for those of these slices that were not asked for.
    fn miss(&mut self, wire: &mut Wire<'_>, access: BlockAccess, reaches: RawNanos) {
        let at = access.block as usize;
        let (requested, is_first) = (self.states[at].requested(), self.states[at].missed == 0);
        let lacking = match self.link.misses {
            Misses::Block => !requested,
            Misses::RangeThenRest | Misses::Range => access.mask & !requested,
        };
        if access.mask & !requested == 0 {
            return;
        }
        wire.free = wire.free.max(reaches).saturating_add(self.send(&mut wire.bytes, at, lacking));
        self.states[at].missed |= lacking;
        for slice in slices::of(lacking) {
            self.ready[at][slice] = wire.free;
        }
        if self.link.misses == Misses::RangeThenRest && is_first {
            self.rests.push_back(access.block);
        }
    }

    /// The time at which the last of these slices is local.
    fn ready_at(&self, access: BlockAccess) -> RawNanos {
        let state = &self.states[access.block as usize];
        let mut last = 0;
        if access.mask & state.preload != 0 {
            last = state.preload_ready;
        }
        if access.mask & state.rest != 0 {
            last = last.max(state.rest_ready);
        }
        let ready = &self.ready[access.block as usize];
        slices::of(access.mask & state.missed).fold(last, |last, slice| last.max(ready[slice]))
    }

    /// Starts the background transfers that were asked for by `now`.
    fn advance(&mut self, wire: &mut Wire<'_>, now: RawNanos) {
        let reaches = now.saturating_add(self.link.round_trip);
        while wire.free <= reaches {
            if let Some((id, mask)) = wire.items.next() {
                let at = *id as usize;
                let Some(state) = self.states.get(at) else { continue };
                let mask = mask & !state.requested();
                // A block comes once in a plan; a second part of it would be taken for missed.
                if mask == 0 || state.preload != 0 {
                    continue;
                }
                wire.free = wire.free.saturating_add(self.send(&mut wire.bytes, at, mask));
                let state = &mut self.states[at];
                (state.preload, state.preload_ready) = (mask, wire.free);
            } else if let Some(id) = self.rests.pop_front() {
                let at = id as usize;
                let mask = !self.states[at].requested();
                wire.free = wire.free.saturating_add(self.send(&mut wire.bytes, at, mask));
                let state = &mut self.states[at];
                (state.rest, state.rest_ready) = (mask, wire.free);
            } else {
                return;
            }
        }
    }

    /// The time that these slices of a block take; counts their bytes.
    fn send(&self, bytes: &mut u64, at: usize, mask: u32) -> RawNanos {
        let (whole, part) = slices::measure(mask, self.lens[at]);
        let len = u64::from(whole) * SLICE_SIZE + part;
        *bytes += len;
        if part > 0 { self.link.bandwidth.time_of(len) } else { self.costs[whole as usize] }
    }
}

#[cfg(test)]
mod tests;
