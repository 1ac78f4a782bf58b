//! The results of harvesting a fleet.

use super::course::Seconds;
use super::statistics::OrderedNumbers;
use super::utilisation::Utilisation;
use headstart_broker::Counters;
use serde::{Serialize, Serializer};

/// The number of leases (loans of a gSSD to a harvest VM) by the way in which they ended. The leases in
/// `sold` are also in `taken`, once the broker has ended them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Leases that ended because the harvest VM was done.
    pub done: u64,
    /// Leases that the broker ended while the harvest VM still needed them: the data of the VM was moved, or the VM was
    /// evicted and its data was lost.
    pub taken: u64,
    /// Leases that were in use when the storage under them was sold; always 0 for storage of regular VMs.
    pub sold: u64,
}

/// The state of the whole fleet at one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FleetPoint {
    /// Second at which the step begins, since the beginning of the fleet.
    pub seconds: Seconds,
    /// Capacity, in GB, that regular VMs own; in a simulation of unsold storage, the capacity of all its servers.
    pub owned: f64,
    /// Capacity, in GB, that regular VMs use; in a simulation of unsold storage, the capacity that is sold.
    pub used: f64,
    /// Capacity, in GB, that harvest VMs use of the difference between [`owned`](Self::owned) and [`used`](Self::used).
    pub harvested: f64,
}

/// Results of a simulation of harvesting.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HarvestOutcome {
    /// Utilisation of capacity, averaged over all regular VMs or over all servers with unsold storage.
    pub capacity: Utilisation,
    /// Average used share of capacity of each regular VM or server, first without and then with harvesting.
    #[serde(skip)]
    pub averages: (OrderedNumbers, OrderedNumbers),
    /// Utilisation of capacity of those regular VMs or servers that use less than 60% on average.
    pub capacity_low: Utilisation,
    /// Utilisation of capacity of those regular VMs or servers that leave more than 20.1% unused on average.
    pub capacity_fifth: Utilisation,
    /// Utilisation of bandwidth of all regular VMs; zeros for unsold storage.
    pub bandwidth: Utilisation,
    /// The number of requests for storage that were granted, in full or in part.
    pub granted: u64,
    /// The number of requests for storage that were refused. A harvest VM requests again every 15 minutes,
    /// and each refusal counts.
    pub refused: u64,
    /// The number of evictions. In each, a harvest VM lost its gSSDs with the data on them, and then requests others.
    pub evicted: u64,
    /// The number of leases by the way in which they ended.
    pub ended: Ended,
    /// The number of steps of three minutes in which a home (lender) needed back storage that it had lent,
    /// summed over all homes.
    pub pressed: u64,
    /// Storage that homes had lent and needed back, in flash blocks times the seconds until they got it back.
    pub short_block_seconds: u64,
    /// Storage that harvest VMs used, in GB times seconds.
    pub gain: f64,
    /// Storage that harvest VMs leased, used or not, in GB times seconds.
    pub leased: f64,
    /// Storage of gSSDs that were offered and not leased, in GB times seconds.
    pub idle: f64,
    /// Upper bound of [`HarvestOutcome::gain`] for any allocator, in GB times seconds: see
    /// [`ceiling`](super::ceiling).
    pub ceiling: f64,
    /// Storage that harvest VMs would have used if they had got everything they requested, in GB times
    /// seconds.
    pub needed: f64,
    /// Storage that homes could have lent, whether or not a harvest VM needed it, in GB times seconds.
    pub lendable: f64,
    /// Counters of the product's broker at the end of the simulation.
    #[serde(serialize_with = "with_ignored")]
    pub counters: Counters,
    /// The state of the fleet over time, once for each hour.
    pub points: Vec<FleetPoint>,
}

impl HarvestOutcome {
    pub(super) fn push(&mut self, point: FleetPoint) {
        const EVERY: Seconds = 3600;
        if point.seconds.is_multiple_of(EVERY) {
            self.points.push(point);
        }
    }

    /// Returns the share of leases, 0 to 1, that the broker ended before the harvest VM was done, with the VM's data
    /// moved or lost; 0 without leases.
    #[must_use]
    pub fn early(&self) -> f64 {
        share(self.ended.taken, self.counters.leases)
    }

    /// Returns the share of leases, 0 to 1, that ended with the loss of the data on them; 0 without leases.
    #[must_use]
    pub fn lost(&self) -> f64 {
        share(self.counters.evicted_leases, self.counters.leases)
    }

    /// Returns the gain as a share of the ceiling, 0 to 1; 0 if nothing was gained.
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
