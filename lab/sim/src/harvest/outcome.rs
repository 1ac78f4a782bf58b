//! What came of harvesting a fleet.

use super::course::Seconds;
use super::statistics::Distribution;
use super::utilisation::Utilisation;
use headstart_harvest::broker::Counters;
use serde::{Serialize, Serializer};

/// How leases ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Given back by a harvest VM that was done.
    pub done: u64,
    /// Taken from a harvest VM that was not: its data was moved, or it was evicted.
    pub taken: u64,
    /// Of those, of storage that was sold.
    pub sold: u64,
}

/// All of a fleet at one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// When.
    pub seconds: Seconds,
    /// GB that are owned; of unsold storage, all of the servers.
    pub owned: f64,
    /// GB that owners use; of unsold storage, that are sold.
    pub used: f64,
    /// GB that harvest VMs use of the rest.
    pub harvested: f64,
}

/// The figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// Capacity of all VMs, or of all servers with unsold storage in question.
    pub capacity: Utilisation,
    /// The average shares of each of them, without and with harvesting.
    #[serde(skip)]
    pub averages: (Distribution, Distribution),
    /// Of those that use less than 60% on average.
    pub capacity_low: Utilisation,
    /// Of those with at least a fifth unused.
    pub capacity_fifth: Utilisation,
    /// Bandwidth of all VMs.
    pub bandwidth: Utilisation,
    /// Requests that got something.
    pub granted: u64,
    /// Requests that got nothing.
    pub refused: u64,
    /// Harvest VMs that lost their storage.
    pub evicted: u64,
    /// How leases ended.
    pub ended: Ended,
    /// Steps in which a home needed more than was left of its own, in sum over homes.
    pub pressed: u64,
    /// What they lacked, until it came back: flash blocks times seconds.
    pub short_block_seconds: u64,
    /// GB times seconds that harvest VMs used.
    pub gain: f64,
    /// That harvest VMs had, used or not.
    pub leased: f64,
    /// Of gSSDs that nobody had.
    pub idle: f64,
    /// That no allocator exceeds.
    pub ceiling: f64,
    /// That harvest VMs asked for and would really have used.
    pub needed: f64,
    /// That could be lent, whether anybody wants it or not.
    pub lendable: f64,
    /// The broker's.
    #[serde(serialize_with = "with_ignored")]
    pub counters: Counters,
    /// Over time: every so many steps one.
    pub points: Vec<Point>,
}

impl Outcome {
    pub(super) fn push(&mut self, point: Point) {
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

    /// What was gained of what no allocator exceeds.
    #[must_use]
    pub fn of_ceiling(&self) -> f64 {
        self.gain / self.ceiling.max(1e-9)
    }
}

/// What a broker counts, with the events that it ignored.
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
