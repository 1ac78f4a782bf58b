//! The record of a gSSD, the units in which flash is lent, and the needs of a request.

use crate::{Time, VssdId};
use headstart_block::saturating;
use headstart_flash::micros;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The record of a gSSD (ghost vSSD): flash that one vSSD lends to another. After figure 10 of the BlockFlex
/// paper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gssd {
    /// Number of channels that the gSSD's blocks are on: the limit of its bandwidth.
    pub bandwidth: u16,
    /// Number of flash blocks, without those that were found to be bad since the gSSD was made.
    pub capacity: u32,
    /// The time until which the lender is expected to spare the gSSD.
    #[serde(with = "micros")]
    pub expire: Time,
    /// `true` while a harvest VM has the gSSD on lease.
    pub in_use: bool,
    /// The name of the harvest VM that has the gSSD on lease; `None` if none does.
    pub vm_id: Option<String>,
    /// The vSSD that owns the gSSD's blocks.
    pub lender: VssdId,
    /// The harvest VM's vSSD that the gSSD is attached to; `None` if the gSSD is not on lease.
    pub borrower: Option<VssdId>,
}

/// The units in which flash is lent (BlockFlex paper, section 4.3.2). Amounts are rounded down to whole units, and no
/// gSSD that is smaller than one unit gets into the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grain {
    /// Number of channels in a unit.
    pub bandwidth: u16,
    /// Number of flash blocks in a unit.
    pub capacity: u32,
    /// Duration of a unit.
    pub lasts: Duration,
}

/// BlockFlex's units: one channel, 16 GiB (in blocks of 4 MiB), 30 minutes.
impl Default for Grain {
    fn default() -> Self {
        Self { bandwidth: 1, capacity: 4096, lasts: Duration::from_secs(30 * 60) }
    }
}

impl Grain {
    /// Returns the grain with a bandwidth or capacity of 0 replaced by 1. The duration is left as it is.
    #[must_use]
    pub fn sane(self) -> Self {
        Self { bandwidth: self.bandwidth.max(1), capacity: self.capacity.max(1), lasts: self.lasts }
    }

    /// Returns the number of whole units of capacity in `blocks` flash blocks. A capacity of 0 counts as 1.
    #[must_use]
    pub fn units(&self, blocks: u32) -> u32 {
        blocks / self.capacity.max(1)
    }

    /// Rounds a number of channels, a number of flash blocks and a duration down to whole units, each on its own. A
    /// unit of 0 channels counts as 1 channel, a unit of 0 blocks as 1 block, and a unit of zero duration as a
    /// microsecond.
    #[must_use]
    pub fn down(&self, bandwidth: u16, capacity: u32, lasts: Duration) -> (u16, u32, Duration) {
        let grain = self.sane();
        let bandwidth = bandwidth - bandwidth % grain.bandwidth;
        let capacity = capacity - capacity % grain.capacity;
        let grain_us = grain.lasts.as_micros().max(1);
        let whole = lasts.as_micros() / grain_us * grain_us;
        (bandwidth, capacity, Duration::from_micros(saturating(whole)))
    }
}

/// The needs of a request, to be met by one gSSD or by several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Number of channels, at least.
    pub bandwidth: u16,
    /// Number of flash blocks, at least. Compared in whole grains, rounded up.
    pub capacity: u32,
    /// The time until which the gSSDs must last.
    pub until: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_down_to_whole_grains() {
        let grain = Grain::default();
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        assert_eq!(grain.down(3, 10_000, minutes(89)), (3, 8192, minutes(60)));
        assert_eq!(grain.down(3, 4095, minutes(29)), (3, 0, minutes(0)));
        assert_eq!(grain.units(8191), 1);
        let nothing = Grain { bandwidth: 0, capacity: 0, lasts: Duration::ZERO };
        assert_eq!(nothing.down(3, 7, minutes(1)), (3, 7, minutes(1)));
    }
}
