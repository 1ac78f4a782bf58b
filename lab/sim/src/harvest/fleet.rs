//! The parts of a fleet: regular VMs on their servers, servers with unsold storage, requests of harvest VMs.
//!
//! As in the BlockFlex paper (OSDI 2022), storage is counted in GB (powers of 1024: a channel has 64 GB, a flash block
//! 4 MB), bandwidth in channels, and use in shares of owned storage. Also as in the paper, no server has both regular
//! VMs and unsold storage: the paper's traces of sold and of unsold storage come from different clouds.

use super::course::{Course, Seconds};

/// Capacity of a flash channel in GB (BlockFlex, OSDI 2022, section 4.3 and figure 9).
pub const CHANNEL_GB: u32 = 64;
/// The number of flash channels of a server's SSD (BlockFlex, OSDI 2022, section 4.6).
pub const SERVER_CHANNELS: u16 = 16;
/// The mean share of bandwidth that is used (section 2.1).
pub(super) const BANDWIDTH: f64 = 0.092;
/// Length of a day in seconds.
pub const DAY: Seconds = 24 * 3600;

/// The size of a simulated fleet of servers and VMs, and the parameters from which it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetSettings {
    /// The number of regular VMs: VMs that own the storage they bought.
    pub vms: usize,
    /// The number of servers with unsold storage; none of them has regular VMs.
    pub servers: usize,
    /// The number of harvest VMs, which borrow storage; their arrivals are spread evenly over the days.
    pub requests: usize,
    /// The number of days that are simulated with harvest VMs and counted in the results.
    pub days: u32,
    /// The number of days that are simulated before the counted ones, without harvest VMs: predictors learn
    /// from the levels of regular VMs.
    pub history: u32,
    /// The mean share of its bandwidth that a regular VM uses, 0 to 1: 0.092 in figure 1 (BlockFlex, OSDI
    /// 2022), 0.22 in the fleet of figure 16.
    pub bandwidth: f64,
    /// Seed of the random numbers from which the fleet is drawn.
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
    /// Returns the settings of a smaller fleet, with `vms` regular VMs and `days` days; servers and requests
    /// are in proportion to the default fleet.
    #[must_use]
    pub fn part(vms: usize, days: u32) -> Self {
        let all = Self::default();
        let of = |count: usize| (count * vms).div_ceil(all.vms);
        let requests = (of(all.requests) * days as usize).div_ceil(all.days as usize);
        Self { vms, servers: of(all.servers), requests, days, ..all }
    }

    /// Returns the second at which results begin to count and the first harvest VMs arrive: the end of
    /// [`FleetSettings::history`].
    #[must_use]
    pub fn begins(&self) -> Seconds {
        self.history * DAY
    }

    /// Returns the second at which the simulation ends: that of the history and the days together.
    #[must_use]
    pub fn span(&self) -> Seconds {
        (self.history + self.days) * DAY
    }
}

/// A regular VM: it bought storage, and can lend the part that it does not use.
#[derive(Clone, Debug, PartialEq)]
pub struct RegularVm {
    /// The number of the server that runs the VM, from 0.
    pub server: u32,
    /// The number of flash channels that the VM owns.
    pub channels: u16,
    /// The used share of the VM's bandwidth over time, 0 to 1.
    pub bandwidth: Course,
    /// The used share of the VM's capacity over time, 0 to 1.
    pub capacity: Course,
}

impl RegularVm {
    /// Returns the capacity that the VM owns, in GB.
    #[must_use]
    pub fn gigabytes(&self) -> u32 {
        u32::from(self.channels) * CHANNEL_GB
    }
}

/// A lot: storage of the size of one VM (an unsold VM) that is unsold for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lot {
    /// The number of the server with the storage, from 0.
    pub server: u32,
    /// The number of flash channels; all their capacity belongs to the lot.
    pub channels: u16,
    /// Second at which the storage becomes free; 0 if it was free when the simulation began.
    pub from: Seconds,
    /// Second at which the storage is sold; may be after the end of the simulation.
    pub until: Seconds,
}

impl Lot {
    /// Returns the capacity of the lot, in GB.
    #[must_use]
    pub fn gigabytes(&self) -> u32 {
        u32::from(self.channels) * CHANNEL_GB
    }

    /// Returns the duration for which the storage is unsold, in seconds. `None`: it was free when the
    /// simulation began, so its duration is unknown.
    #[must_use]
    pub fn lasted(&self) -> Option<Seconds> {
        (self.from > 0).then(|| self.until - self.from)
    }
}

/// A harvest VM: the request of a VM that borrows storage for some time.
#[derive(Clone, Debug, PartialEq)]
pub struct HarvestVm {
    /// Second at which the VM arrives and requests storage.
    pub at: Seconds,
    /// Duration for which the VM needs storage, in seconds.
    pub lasts: Seconds,
    /// Requested capacity in GB.
    pub gigabytes: u32,
    /// The requested number of channels, in proportion to the capacity.
    pub channels: u16,
    /// Seed of the random numbers for the storage that the VM really uses: see [`HarvestVm::demand`].
    pub seed: u64,
}

/// The storage that a harvest VM really uses, as shares of its request, over the seconds since its arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The used share of the requested bandwidth, 0 to 1.
    pub bandwidth: Course,
    /// The used share of the requested capacity, 0 to 1.
    pub capacity: Course,
}

/// A fleet with all events of a simulation: the input of [`simulate`](super::simulate).
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// The settings from which the fleet was drawn.
    pub settings: FleetSettings,
    /// The number of servers with regular VMs.
    pub regular_servers: u32,
    /// The regular VMs, in order of their servers.
    pub vms: Vec<RegularVm>,
    /// Capacity of each server with unsold storage, in GB.
    pub server_gigabytes: u32,
    /// The lots of unsold storage, in order of the time at which they become free.
    pub lots: Vec<Lot>,
    /// The harvest VMs, in order of arrival.
    pub requests: Vec<HarvestVm>,
}
