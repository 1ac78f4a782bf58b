//! The results of a fleet.

use headstart_replay::time::Nanos;
use headstart_replay::waits::{ReadWaits, percentile};
use serde::Serialize;

/// One disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskOutcome {
    /// Its host.
    pub host: u32,
    /// The time at which it was to be attached; the attachment is later if it waits for a broadcast.
    pub attached: Nanos,
    /// The time at which its last read was complete; [`Nanos::NEVER`] if it was not.
    pub completed: Nanos,
    /// Its reads.
    pub reads: u64,
    /// Reads that found all their bytes local.
    pub hits: u64,
    /// Reads that failed because their deadline had passed.
    pub failed: u64,
    /// Bytes that it read.
    pub bytes: u64,
    /// The sum of its waits.
    pub waited: Nanos,
    /// The longest of them.
    pub longest: Nanos,
}

impl DiskOutcome {
    /// From its attachment to its last read.
    #[must_use]
    pub fn took(&self) -> Nanos {
        if self.completed == Nanos::NEVER { Nanos::NEVER } else { self.completed.since(self.attached) }
    }

    /// Bytes a second that it read; 0 where it did not complete.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn throughput(&self) -> f64 {
        if self.completed == Nanos::NEVER { 0.0 } else { self.bytes as f64 / self.took().as_secs().max(1e-9) }
    }
}

/// One host: bytes by their source, without the overhead of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostOutcome {
    /// From the store.
    pub from_store: u64,
    /// From peers, because a reader waited.
    pub on_demand: u64,
    /// From peers ahead of need.
    pub prefetched: u64,
    /// The part of both that was not read.
    pub unread: u64,
    /// Chunks that came because others had advertised or pushed them, and were not read, in bytes.
    pub unmatched: u64,
    /// To peers.
    pub sent: u64,
    /// On its link up, with all overhead.
    pub up: u64,
    /// On its link down, with all overhead.
    pub down: u64,
    /// Of messages to peers, with all overhead: everything except chunks.
    pub talk: u64,
    /// `true` if it died.
    pub died: bool,
    /// `true` if it is slow, lies or sends wrong bytes.
    pub bad: bool,
}

/// The whole fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetOutcome {
    /// By disk, in the order of the workload.
    pub disks: Vec<DiskOutcome>,
    /// By host.
    pub hosts: Vec<HostOutcome>,
    /// All reads' waits.
    pub waits: ReadWaits,
    /// The counts of the tracker, if there is one.
    pub counts: Option<headstart_swarm::tracker::ImageCounts>,
    /// The tally of hints.
    pub hints: headstart_swarm::hints::Tally,
    /// The recent requests of each root, if roots send ahead: for a deployment that comes after this one.
    pub recent: Vec<headstart_swarm::recent::Saved>,
    /// Bytes that the store sent, without the overhead of the wire.
    pub store_bytes: u64,
    /// The part of those, approximately, that it had sent before.
    pub store_again: u64,
    /// Wants that a node answered as local when they were not: a mistake of the node's, 0.
    pub wrong_answers: u64,
    /// The number of times that a host dropped another.
    pub dropped: u64,
    /// The number of events: a measure of the work of simulating it.
    pub happenings: u64,
    /// The sum of the nodes' counters.
    pub counters: headstart_swarm::NodeCounters,
}

/// A fleet in a few figures; times in seconds, rates in bytes a second, bytes of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetSummary {
    /// Disks of hosts that did not die.
    pub disks: usize,
    /// Those of them whose reads did not complete.
    pub incomplete: usize,
    /// Reads that failed because their deadline had passed, of all disks.
    pub failed: u64,
    /// From the first attachment to the last completion.
    pub completion: f64,
    /// Half of the disks took at most this long.
    pub took_p50: f64,
    /// 99 of 100 did.
    pub took_p99: f64,
    /// All did.
    pub took_max: f64,
    /// The mean of disks' waits in sum.
    pub waited: f64,
    /// The throughput of the slowest disk.
    pub slowest: f64,
    /// Of the fastest.
    pub fastest: f64,
    /// Jain's index of the disks' throughputs: 1 if all are the same.
    pub fairness: f64,
    /// Bytes from the store, of all.
    pub store_bytes: u64,
    /// The part of those, approximately, that it had sent before.
    pub store_again: u64,
    /// Mean bytes of a host from the store.
    pub from_store: f64,
    /// From peers because a reader waited.
    pub on_demand: f64,
    /// From peers ahead of need.
    pub prefetched: f64,
    /// The part of both that was not read.
    pub unread: f64,
    /// The most of any host.
    pub unread_max: u64,
    /// The most bytes of any host that came because others had advertised or pushed them, and were not read.
    pub unmatched_max: u64,
    /// The most that a host sent to peers.
    pub sent_max: u64,
    /// Mean bytes of messages of a host, on the wire.
    pub talk: f64,
    /// Half of the disks of hosts that are neither slow nor bad took at most this long.
    pub honest_p50: f64,
    /// All of them did.
    pub honest_max: f64,
    /// Mean bytes from the store of a host that is neither: a host that all others dropped reads for itself, and is not
    /// in it.
    pub honest_from_store: f64,
    /// The number of times that a host dropped another.
    pub dropped: u64,
    /// Wants that a node answered wrongly.
    pub wrong_answers: u64,
    /// The number of events.
    pub happenings: u64,
}

impl FleetOutcome {
    /// The delay, in seconds, against `other` (a run of the same disks) that `percent` of 100 disks do not exceed;
    /// disks that did not complete are left out.
    #[must_use]
    pub fn later_than(&self, other: &Self, percent: u8) -> f64 {
        let both = self.disks.iter().zip(&other.disks);
        let complete = |disk: &DiskOutcome| disk.completed < Nanos::NEVER;
        let both = both.filter(|(one, other)| complete(one) && complete(other));
        let mut waits = ReadWaits::default();
        both.for_each(|(one, other)| waits.add(one.took().since(other.took())));
        waits.percentile(percent).as_secs()
    }

    /// The figures.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn summary(&self) -> FleetSummary {
        let died = |host: u32| self.hosts.get(host as usize).is_some_and(|host| host.died);
        let alive: Vec<_> = self.disks.iter().filter(|disk| !died(disk.host)).collect();
        let done: Vec<_> = alive.iter().filter(|disk| disk.completed < Nanos::NEVER).collect();
        let mut took: Vec<_> = done.iter().map(|disk| disk.took().as_secs()).collect();
        took.sort_by(f64::total_cmp);
        let bad = |host: u32| self.hosts.get(host as usize).is_some_and(|host| host.bad);
        let mut of_honest: Vec<_> =
            done.iter().filter(|disk| !bad(disk.host)).map(|disk| disk.took().as_secs()).collect();
        of_honest.sort_by(f64::total_cmp);
        let honest: Vec<_> = self.hosts.iter().filter(|host| !host.bad).collect();
        let honest_from_store = honest.iter().map(|host| host.from_store).sum::<u64>();
        let rates: Vec<_> = alive.iter().map(|disk| disk.throughput()).collect();
        let (sum, squares) =
            rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
        let hosts = self.hosts.len().max(1) as f64;
        let mean = |of: fn(&HostOutcome) -> u64| self.hosts.iter().map(of).sum::<u64>() as f64 / hosts;
        let most = |of: fn(&HostOutcome) -> u64| self.hosts.iter().map(of).max().unwrap_or(0);
        let first = alive.iter().map(|disk| disk.attached).min().unwrap_or_default();
        let last = done.iter().map(|disk| disk.completed).max().unwrap_or_default();
        FleetSummary {
            disks: alive.len(),
            incomplete: alive.len() - done.len(),
            failed: alive.iter().map(|disk| disk.failed).sum(),
            completion: last.since(first).as_secs(),
            took_p50: percentile(&took, 50),
            took_p99: percentile(&took, 99),
            took_max: percentile(&took, 100),
            waited: alive.iter().map(|disk| disk.waited.as_secs()).sum::<f64>() / alive.len().max(1) as f64,
            slowest: rates.iter().copied().reduce(f64::min).unwrap_or(0.0),
            fastest: rates.iter().copied().reduce(f64::max).unwrap_or(0.0),
            fairness: if squares > 0.0 { sum * sum / (rates.len() as f64 * squares) } else { 0.0 },
            store_bytes: self.store_bytes,
            store_again: self.store_again,
            from_store: mean(|host| host.from_store),
            on_demand: mean(|host| host.on_demand),
            prefetched: mean(|host| host.prefetched),
            unread: mean(|host| host.unread),
            unread_max: most(|host| host.unread),
            unmatched_max: most(|host| host.unmatched),
            sent_max: most(|host| host.sent),
            talk: mean(|host| host.talk),
            honest_p50: percentile(&of_honest, 50),
            honest_max: percentile(&of_honest, 100),
            honest_from_store: honest_from_store as f64 / honest.len().max(1) as f64,
            dropped: self.dropped,
            wrong_answers: self.wrong_answers,
            happenings: self.happenings,
        }
    }
}
