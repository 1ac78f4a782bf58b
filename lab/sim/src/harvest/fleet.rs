//! What a fleet is made of: regular VMs on their servers, servers with unsold storage, requests of harvest VMs.
//!
//! Storage is counted in GB as the paper does (a channel has 64, a flash block 4 MB: powers of 1024), bandwidth in
//! channels, and what is used as shares of what is owned. The two halves of a fleet are not the same servers, as in the
//! paper: its traces of what is sold and of what is unsold come from different clouds.

use super::course::{Course, Seconds};

/// GB of a channel (section 4.3, figure 9).
pub const CHANNEL_GB: u32 = 64;
/// Channels of a server's SSD (section 4.6).
pub const SERVER_CHANNELS: u16 = 16;
/// The mean share of bandwidth that is used (section 2.1).
pub(super) const BANDWIDTH: f64 = 0.092;
/// A day.
pub const DAY: Seconds = 24 * 3600;

/// How large a fleet is, and from what it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSettings {
    /// Regular VMs whose storage is sold.
    pub vms: usize,
    /// Servers of which a part is unsold.
    pub servers: usize,
    /// Requests of harvest VMs, spread evenly over the days.
    pub requests: usize,
    /// How long it is watched.
    pub days: u32,
    /// How long it was there before, without harvest VMs: what predictors learned from.
    pub history: u32,
    /// The mean share of its bandwidth that a regular VM uses: figure 1 has 0.092, the fleet of figure 16 has 0.22.
    pub bandwidth: f64,
    /// Of everything that is drawn.
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
    /// A part of the fleet, with its proportions: so many VMs, and so many days.
    #[must_use]
    pub fn part(vms: usize, days: u32) -> Self {
        let all = Self::default();
        let of = |count: usize| (count * vms).div_ceil(all.vms);
        let requests = (of(all.requests) * days as usize).div_ceil(all.days as usize);
        Self { vms, servers: of(all.servers), requests, days, ..all }
    }

    /// When it begins to be watched, and harvest VMs to come.
    #[must_use]
    pub fn begins(&self) -> Seconds {
        self.history * DAY
    }

    /// When that ends.
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

/// Storage of one VM's size that nobody bought for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lot {
    /// The server it is on.
    pub server: u32,
    /// Its channels, with all that is on them.
    pub channels: u16,
    /// When it became free; of those that were before the fleet was watched, its beginning.
    pub from: Seconds,
    /// When it is sold. May be after the fleet's end.
    pub until: Seconds,
}

impl Lot {
    /// Its GB.
    #[must_use]
    pub fn gigabytes(&self) -> u32 {
        u32::from(self.channels) * CHANNEL_GB
    }

    /// How long it was to be had, where it became free while the fleet was watched.
    #[must_use]
    pub fn lasted(&self) -> Option<Seconds> {
        (self.from > 0).then(|| self.until - self.from)
    }
}

/// A harvest VM: storage that it asks for, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// When it comes.
    pub at: Seconds,
    /// How long it wants it.
    pub lasts: Seconds,
    /// GB that it asks for.
    pub gigabytes: u32,
    /// Channels that it asks for: in proportion.
    pub channels: u16,
    /// Of what it really uses: see [`Request::demand`].
    pub seed: u64,
}

/// What a harvest VM really uses, as shares of what it asked for, by the seconds since it began.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Of the bandwidth.
    pub bandwidth: Course,
    /// Of the capacity.
    pub capacity: Course,
}

/// All that a simulation runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// How it was made.
    pub settings: FleetSettings,
    /// Servers that regular VMs are on.
    pub regular_servers: u32,
    /// VMs whose storage is sold, by server.
    pub vms: Vec<RegularVm>,
    /// GB of each of the [`FleetSettings::servers`] with unsold storage.
    pub server_gigabytes: u32,
    /// Unsold storage, by when it became free.
    pub lots: Vec<Lot>,
    /// Harvest VMs, by when they come.
    pub requests: Vec<Request>,
}
