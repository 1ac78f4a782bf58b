//! Channels whose owner is busy: programs wait there, and writes go elsewhere while there is room.
//!
//! The driver measures the time for which programs are held up on each channel. If that makes them take a quarter
//! longer than on the quickest, the channel is *slow*. The protection of its owner leaves so little of it that a
//! transfer which is spread over it is slower than without: it is room, not speed. So a slow channel takes pages that
//! find no room on quick ones.

use super::{ChannelPool, Space};
use crate::vssd::map::Entry;
use headstart_block::{exact, saturating};
use std::time::Duration;

/// The cost of a quick channel.
pub(super) const WHOLE: u32 = 256;
/// Hysteresis: a channel is slow from 1.25 times the quickest one's program time on, and until 1.05 times. A slow
/// channel gets few programs, so its measurements mostly fade meanwhile.
const SLOW: [u32; 2] = [WHOLE + WHOLE / 4, WHOLE + WHOLE / 20];
/// The most times that a slow channel's cost counts when log blocks are opened: there is to be one.
pub(super) const LOG_COST: u32 = 4;

impl ChannelPool {
    /// `true` if other VMs use its channel so much that a quick one is to be preferred.
    pub(in crate::vssd) fn is_slow(&self) -> bool {
        self.cost > WHOLE
    }

    /// `true` if it has few free blocks, and others that only need to be erased: pages would be written on the other
    /// channels alone, and be read as slowly.
    pub(super) fn is_dry(&self, dies: usize) -> bool {
        let coming = self.free.len() + self.erasing as usize;
        coming < 2 * dies && (!self.dirty.is_empty() || self.dead as usize >= dies)
    }

    /// `true` if one of its blocks is to be erased. On a slow channel only as many as are used: an erasure takes long
    /// there, and a write that makes room may wait for it.
    pub(super) fn erases(&self, dies: usize, all: bool) -> bool {
        let wanted = all || self.free.len() < dies;
        !self.draining && (!self.is_slow() || self.erasing == 0 && wanted)
    }
}

impl Space {
    /// Sets the duration of a program on each channel.
    pub(in crate::vssd) fn set_program_times(&mut self, time: impl Fn(u16) -> Duration) {
        let nanos = |pool: &ChannelPool| time(pool.channel).as_nanos().max(1);
        let used = |pool: &&ChannelPool| pool.count > 0 && !pool.draining;
        let Some(least) = self.pools.iter().filter(used).map(nanos).min() else { return };
        for pool in &mut self.pools {
            let cost = nanos(pool).saturating_mul(WHOLE.into()) / least;
            let cost = saturating::<u32>(cost).min(WHOLE * WHOLE);
            pool.cost = if cost > SLOW[usize::from(pool.is_slow())] { cost } else { WHOLE };
        }
        self.recount();
    }

    /// The expected wait of a page that is placed in a block, for comparisons.
    pub(in crate::vssd) fn wait(&self, entry: Entry) -> u64 {
        self.wait_in(self.pool_of(entry))
    }

    fn wait_in(&self, pool: &ChannelPool) -> u64 {
        (u64::from(pool.placed) + u64::from(self.geometry.dies)) * u64::from(pool.cost)
    }

    /// `true` if a block is on a slow channel that has work for every die.
    pub(in crate::vssd) fn is_busy(&self, entry: Entry) -> bool {
        let pool = self.pool_of(entry);
        pool.is_slow() && pool.placed >= self.geometry.dies.into()
    }

    pub(in crate::vssd) fn is_any_slow(&self) -> bool {
        self.pools.iter().any(ChannelPool::is_slow)
    }

    pub(in crate::vssd) fn is_slow(&self, entry: Entry) -> bool {
        self.pool_of(entry).is_slow()
    }

    /// Notes that a page of a block was placed, or is copied.
    pub(in crate::vssd) fn placed(&mut self, entry: Entry) {
        let pool = usize::from(self.info(entry).pool);
        self.pools[pool].placed += 1;
    }

    /// Notes that it is through.
    pub(in crate::vssd) fn landed(&mut self, entry: Entry) {
        let pool = usize::from(self.info(entry).pool);
        self.pools[pool].placed = self.pools[pool].placed.saturating_sub(1);
    }

    /// Free blocks on channels that are not slow.
    pub(in crate::vssd) fn quick(&self) -> u32 {
        self.quick[0]
    }

    /// Blocks on channels that are not slow that are or will be free without anything being copied.
    pub(in crate::vssd) fn quick_coming(&self) -> u32 {
        // Dead blocks may be anywhere, for a moment.
        self.quick[0] + self.quick[1] + exact::<u32>(self.dead.len(), "flash blocks have numbers of 32 bits")
    }
}
