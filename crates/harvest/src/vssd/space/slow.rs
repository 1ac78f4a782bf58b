//! Channels whose owner is busy: how long programs wait there, and what is therefore placed elsewhere.
//!
//! The driver measures how long a program takes on each channel. One that takes more than twice as long as on the
//! quickest is *slow*, and costs that much more.

use super::{Lane, Space, Stream};
use crate::vssd::map::Entry;
use std::time::Duration;

/// The cost of a quick channel.
pub(super) const WHOLE: u32 = 256;
/// A channel is slow where a program takes more than so many times as long as on the quickest.
const SLOW: u32 = 2;
/// A slow channel's cost counts at most so many times where log blocks are opened: there is to be one.
pub(super) const LOG_COST: u32 = 4;
/// Where a program takes more than so many times as long, what could be written is not worth reading it there.
const WORTH: u32 = 8;
/// A slow channel lags with so many times the work of the quick ones before it.
const LAG: u64 = 4;

impl Lane {
    /// Whether others use its channel so much that a quick one is to be preferred.
    pub(in crate::vssd) fn is_slow(&self) -> bool {
        self.cost > WHOLE
    }

    /// Whether one of its blocks is to be erased. On a slow channel only as many as are used: an erasure takes long
    /// there, and who makes room may wait for it.
    pub(super) fn erases(&self, dies: usize, all: bool) -> bool {
        let wanted = all || self.free.len() < dies;
        !self.draining && (!self.is_slow() || self.erasing == 0 && wanted)
    }
}

impl Space {
    /// How long a program takes on each channel.
    pub(in crate::vssd) fn set_program_times(&mut self, time: impl Fn(u16) -> Duration) {
        let nanos = |lane: &Lane| time(lane.channel).as_nanos().max(1);
        let used = |lane: &&Lane| lane.count > 0 && !lane.draining;
        let Some(least) = self.lanes.iter().filter(used).map(nanos).min() else { return };
        for lane in &mut self.lanes {
            let cost = nanos(lane).saturating_mul(WHOLE.into()) / least;
            let cost = u32::try_from(cost).unwrap_or(u32::MAX).min(WHOLE * WHOLE);
            lane.cost = if cost > SLOW * WHOLE { cost } else { WHOLE };
        }
        self.recount();
    }

    /// How long a page would wait that is placed in a block, to be compared.
    pub(in crate::vssd) fn wait(&self, entry: Entry) -> u64 {
        self.wait_in(self.lane_of(entry))
    }

    fn wait_in(&self, lane: &Lane) -> u64 {
        (u64::from(lane.placed) + u64::from(self.geometry.dies)) * u64::from(lane.cost)
    }

    /// Whether a block is on a channel that has more to do, for what it can, than the others have.
    pub(in crate::vssd) fn lags(&self, entry: Entry) -> bool {
        if !self.lane_of(entry).is_slow() {
            return false;
        }
        let quick = || self.lanes.iter().filter(|lane| lane.count > 0 && !lane.draining && !lane.is_slow());
        let placed: u64 = quick().map(|lane| u64::from(lane.placed)).sum();
        let mean = placed / quick().count().max(1) as u64 + u64::from(self.geometry.dies);
        self.wait(entry) > LAG * mean * u64::from(WHOLE)
    }

    /// Whether a block is on a slow channel that has something to do for every die.
    pub(in crate::vssd) fn is_busy(&self, entry: Entry) -> bool {
        let lane = self.lane_of(entry);
        lane.is_slow() && lane.placed >= self.geometry.dies.into()
    }

    /// Whether a page in the log of a slow channel would be through before so long.
    pub(in crate::vssd) fn is_slow_sooner(&self, wait: u64) -> bool {
        let there = |lane: &&Lane| {
            lane.cost <= WORTH * WHOLE && (lane.opens[Stream::User as usize] > 0 || !lane.free.is_empty())
        };
        let slow = self.lanes.iter().filter(|lane| lane.count > 0 && !lane.draining && lane.is_slow());
        slow.filter(there).any(|lane| self.wait_in(lane) < wait)
    }

    pub(in crate::vssd) fn is_any_slow(&self) -> bool {
        self.lanes.iter().any(Lane::is_slow)
    }

    pub(in crate::vssd) fn is_slow(&self, entry: Entry) -> bool {
        self.lane_of(entry).is_slow()
    }

    /// A page of a block was placed, or is copied.
    pub(in crate::vssd) fn placed(&mut self, entry: Entry) {
        let lane = usize::from(self.info(entry).lane);
        self.lanes[lane].placed += 1;
    }

    /// It is through.
    pub(in crate::vssd) fn landed(&mut self, entry: Entry) {
        let lane = usize::from(self.info(entry).lane);
        self.lanes[lane].placed = self.lanes[lane].placed.saturating_sub(1);
    }

    /// Free blocks on channels that are not slow.
    pub(in crate::vssd) fn quick(&self) -> u32 {
        self.quick[0]
    }

    /// Blocks on channels that are not slow that are or will be free without anything being copied.
    pub(in crate::vssd) fn quick_coming(&self) -> u32 {
        // What is dead may be anywhere, for a moment.
        self.quick[0] + self.quick[1] + u32::try_from(self.dead.len()).unwrap_or(u32::MAX)
    }
}
