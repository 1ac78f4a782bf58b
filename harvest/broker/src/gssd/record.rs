//! The record of a gSSD, and the wants of a request.

use crate::{Time, VssdId};
use headstart_block::saturating;
use headstart_flash::micros;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A gSSD's metadata: figure 10 of BlockFlex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gssd {
    /// Channels of its blocks: the most bandwidth that it gives.
    pub bandwidth: u16,
    /// Flash blocks, without those found bad since it was made.
    pub capacity: u32,
    /// The time until which its lender can do without it, as far as is known.
    #[serde(with = "micros")]
    pub expire: Time,
    /// `true` if a harvest VM has it.
    pub in_use: bool,
    /// The harvest VM that has it.
    pub vm_id: Option<String>,
    /// The vSSD that its blocks belong to.
    pub lender: VssdId,
    /// The harvest VM's vSSD that it is a part of.
    pub borrower: Option<VssdId>,
}

/// The units in which storage is harvested (section 4.3.2): a smaller gSSD is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grain {
    /// Channels.
    pub bandwidth: u16,
    /// Flash blocks.
    pub capacity: u32,
    /// Time.
    pub lasts: Duration,
}

/// The paper's: one channel, 16 GiB (in blocks of 4 MiB), 30 minutes.
impl Default for Grain {
    fn default() -> Self {
        Self { bandwidth: 1, capacity: 4096, lasts: Duration::from_secs(30 * 60) }
    }
}

impl Grain {
    /// The grain with zeros replaced by the smallest positive number; time may be in any units.
    #[must_use]
    pub fn sane(self) -> Self {
        Self { bandwidth: self.bandwidth.max(1), capacity: self.capacity.max(1), lasts: self.lasts }
    }

    /// Whole grains of capacity in `blocks` blocks.
    #[must_use]
    pub fn units(&self, blocks: u32) -> u32 {
        blocks / self.capacity.max(1)
    }

    /// Channels, blocks and time, each rounded down to whole grains.
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

/// The wants of a request, for one gSSD or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Channels, at least.
    pub bandwidth: u16,
    /// Flash blocks, at least; matched in whole grains.
    pub capacity: u32,
    /// The time until which it must last.
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
