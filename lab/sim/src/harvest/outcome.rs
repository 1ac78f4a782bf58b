//! The results of harvesting a fleet.

use super::course::Seconds;
use super::statistics::OrderedNumbers;
use super::utilisation::Utilisation;
use headstart_broker::Counters;
use serde::{Serialize, Serializer};

/// The number of leases by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Given back by a harvest VM that was done.
    pub done: u64,
    /// Taken from a harvest VM that was not done: its data was moved, or it was evicted.
    pub taken: u64,
    /// The part of those whose storage was sold.
    pub sold: u64,
}

/// All of a fleet at one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FleetPoint {
    /// The time of the step.
    pub seconds: Seconds,
    /// GB that are owned; of unsold storage, all of the servers.
    pub owned: f64,
    /// GB that owners use; of unsold storage, that are sold.
    pub used: f64,
    /// GB of the rest that harvest VMs use.
    pub harvested: f64,
}

/// The figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HarvestOutcome {
    /// Capacity of all VMs, or of all servers with unsold storage.
    pub capacity: Utilisation,
    /// The average shares of each of them, without and with harvesting.
    #[serde(skip)]
    pub averages: (OrderedNumbers, OrderedNumbers),
    /// Capacity of those that use less than 60% on average.
    pub capacity_low: Utilisation,
    /// Capacity of those with at least a fifth unused.
    pub capacity_fifth: Utilisation,
    /// Bandwidth of all VMs.
    pub bandwidth: Utilisation,
    /// Requests that were granted, at least in part.
    pub granted: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Harvest VMs that lost their storage.
    pub evicted: u64,
    /// The number of leases by their end.
    pub ended: Ended,
    /// Steps in which a home needed more than the free rest of its own storage, in sum over homes.
    pub pressed: u64,
    /// The storage that they lacked, until it came back: flash blocks times seconds.
    pub short_block_seconds: u64,
    /// GB times seconds that harvest VMs used.
    pub gain: f64,
    /// GB times seconds that harvest VMs leased, used or not.
    pub leased: f64,
    /// GB times seconds of gSSDs that were not leased.
    pub idle: f64,
    /// GB times seconds that no allocator exceeds.
    pub ceiling: f64,
    /// GB times seconds that harvest VMs asked for and would really have used.
    pub needed: f64,
    /// GB times seconds that could be lent, wanted or not.
    pub lendable: f64,
    /// The counters of the broker.
    #[serde(serialize_with = "with_ignored")]
    pub counters: Counters,
    /// The course over time: a point at regular numbers of steps.
    pub points: Vec<FleetPoint>,
}

impl HarvestOutcome {
    pub(super) fn push(&mut self, point: FleetPoint) {
        const EVERY: Seconds = 3600;
        if point.seconds.is_multiple_of(EVERY) {
            self.points.push(point);
        }
    }

    /// The share of leases that were taken from a harvest VM that was not done: early reclamations, moved or evicted.
    #[must_use]
    pub fn early(&self) -> f64 {
        share(self.ended.taken, self.counters.leases)
    }

    /// The share of leases that were lost with their data.
    #[must_use]
    pub fn lost(&self) -> f64 {
        share(self.counters.evicted_leases, self.counters.leases)
    }

    /// The share of the ceiling that was gained.
    #[must_use]
    pub fn of_ceiling(&self) -> f64 {
        self.gain / self.ceiling.max(1e-9)
    }
}

/// Serialises the counters of a broker, with the events that it ignored.
fn with_ignored<S: Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct All {
        #[serde(flatten)]
        counters: Counters,
        ignored: u64,
    }
    All { counters: *counters, ignored: counters.ignored }.serialize(serializer)
}

#[expect(clippy::cast_precision_loss, reason = "counts")]
fn share(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}
