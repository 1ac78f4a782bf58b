//! The parts of a fleet: regular VMs on their servers, servers with unsold storage, requests of harvest VMs.
//!
//! Storage is counted in GB as the paper does (a channel has 64, a flash block 4 MB: powers of 1024), bandwidth in
//! channels, and use in shares of owned storage. The two halves of a fleet are not the same servers, as in the paper:
//! its traces of sold and of unsold storage come from different clouds.

use super::course::{Course, Seconds};

/// GB of a channel (section 4.3, figure 9).
pub const CHANNEL_GB: u32 = 64;
/// Channels of a server's SSD (section 4.6).
pub const SERVER_CHANNELS: u16 = 16;
/// The mean share of bandwidth that is used (section 2.1).
pub(super) const BANDWIDTH: f64 = 0.092;
/// A day.
pub const DAY: Seconds = 24 * 3600;

/// The size of a fleet, and the figures from which it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSettings {
    /// Regular VMs whose storage is sold.
    pub vms: usize,
    /// Servers of which a part is unsold.
    pub servers: usize,
    /// Requests of harvest VMs, spread evenly over the days.
    pub requests: usize,
    /// The number of days for which it is watched.
    pub days: u32,
    /// The number of days before, without harvest VMs: predictors learned from these.
    pub history: u32,
    /// The mean share of its bandwidth that a regular VM uses: figure 1 has 0.092, the fleet of figure 16 has 0.22.
    pub bandwidth: f64,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

impl Default for FleetSettings {
    /// Section 5.2's fleet over the days of its longest trace.
    fn default() -> Self {
        let bandwidth = BANDWIDTH;
        Self { vms: 4000, servers: 1400, requests: 60_000, days: 29, history: 7, bandwidth, seed: 1 }
    }
}

impl FleetSettings {
    /// A part of the fleet, with its proportions: `vms` VMs, and `days` days.
    #[must_use]
    pub fn part(vms: usize, days: u32) -> Self {
        let all = Self::default();
        let of = |count: usize| (count * vms).div_ceil(all.vms);
        let requests = (of(all.requests) * days as usize).div_ceil(all.days as usize);
        Self { vms, servers: of(all.servers), requests, days, ..all }
    }

    /// The time at which the watch begins, and the first harvest VMs arrive.
    #[must_use]
    pub fn begins(&self) -> Seconds {
        self.history * DAY
    }

    /// The time at which the watch ends.
    #[must_use]
    pub fn span(&self) -> Seconds {
        (self.history + self.days) * DAY
    }
}

/// A VM that bought its storage.
#[derive(Clone, Debug, PartialEq)]
pub struct RegularVm {
    /// The server it is on.
    pub server: u32,
    /// The channels it owns.
    pub channels: u16,
    /// The share of its bandwidth that it uses.
    pub bandwidth: Course,
    /// The share of its capacity that it uses.
    pub capacity: Course,
}

impl RegularVm {
    /// The GB it owns.
    #[must_use]
    pub fn gigabytes(&self) -> u32 {
        u32::from(self.channels) * CHANNEL_GB
    }
}

/// Storage of one VM's size that was unsold for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lot {
    /// The server it is on.
    pub server: u32,
    /// Its channels, with all that is on them.
    pub channels: u16,
    /// The time at which it became free; 0, the fleet's beginning, if it was free before.
    pub from: Seconds,
    /// The time at which it is sold. May be after the fleet's end.
    pub until: Seconds,
}

impl Lot {
    /// Its GB.
    #[must_use]
    pub fn gigabytes(&self) -> u32 {
        u32::from(self.channels) * CHANNEL_GB
    }

    /// The time for which it was free, if it became free while the fleet was watched.
    #[must_use]
    pub fn lasted(&self) -> Option<Seconds> {
        (self.from > 0).then(|| self.until - self.from)
    }
}

/// A harvest VM: storage that it asks for, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct HarvestVm {
    /// The time of its arrival.
    pub at: Seconds,
    /// The time for which it wants the storage.
    pub lasts: Seconds,
    /// GB that it asks for.
    pub gigabytes: u32,
    /// Channels that it asks for: in proportion.
    pub channels: u16,
    /// The seed of its real use: see [`HarvestVm::demand`].
    pub seed: u64,
}

/// The real use of a harvest VM, as shares of its request, by the seconds since it began.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Of the bandwidth.
    pub bandwidth: Course,
    /// Of the capacity.
    pub capacity: Course,
}

/// The input of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// The settings from which it was made.
    pub settings: FleetSettings,
    /// Servers that regular VMs are on.
    pub regular_servers: u32,
    /// VMs with sold storage, by server.
    pub vms: Vec<RegularVm>,
    /// GB of each of the [`FleetSettings::servers`] with unsold storage.
    pub server_gigabytes: u32,
    /// Unsold storage, by the time at which it became free.
    pub lots: Vec<Lot>,
    /// Harvest VMs, by the time of their arrival.
    pub requests: Vec<HarvestVm>,
}
