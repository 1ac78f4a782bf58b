//! The results of a fleet.

use headstart_replay::time::Nanos;
use headstart_replay::waits::{ReadWaits, percentile};
use serde::Serialize;

/// Results of one disk: its reads, and the durations of their waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskOutcome {
    /// The number of the host that the disk was attached to.
    pub host: u32,
    /// Virtual time at which the disk can be read according to plan: the planned end of its attachment. The attachment
    /// ends later if the disk has to wait for a broadcast.
    pub attached: Nanos,
    /// Virtual time at which the last read ended; [`Nanos::NEVER`] if not all reads did.
    pub completed: Nanos,
    /// The number of reads that the guest started.
    pub reads: u64,
    /// The number of reads that found all their bytes on the host.
    pub hits: u64,
    /// The number of reads that failed because their deadline had passed.
    pub failed: u64,
    /// The number of bytes that the guest read.
    pub bytes: u64,
    /// The sum of the waits of all reads that ended, including failed ones.
    pub waited: Nanos,
    /// The longest wait of a read that ended.
    pub longest: Nanos,
}

impl DiskOutcome {
    /// Returns the duration from [`DiskOutcome::attached`] to [`DiskOutcome::completed`]; [`Nanos::NEVER`] if
    /// a read did not end.
    #[must_use]
    pub fn took(&self) -> Nanos {
        if self.completed == Nanos::NEVER { Nanos::NEVER } else { self.completed.since(self.attached) }
    }

    /// Returns the bytes that the guest read, divided by the time from `attached` to `completed`, in bytes a second; 0
    /// if a read did not end.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn throughput(&self) -> f64 {
        if self.completed == Nanos::NEVER { 0.0 } else { self.bytes as f64 / self.took().as_secs().max(1e-9) }
    }
}

/// Bytes that one host received and sent. The overhead of the network is included where a field says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostOutcome {
    /// Bytes received from the store.
    pub from_store: u64,
    /// Bytes of chunks received from peers because a read waited for them.
    pub on_demand: u64,
    /// Bytes of chunks received from peers before any read needed them.
    pub prefetched: u64,
    /// Bytes of chunks received from peers, on demand or ahead, that no disk read; the last chunk of a blob
    /// counts as a whole one.
    pub unread: u64,
    /// Bytes of chunks that the node fetched ahead because peers had advertised or pushed them, and that no disk read.
    /// After a restart, only those of the new node count.
    pub unmatched: u64,
    /// Bytes of chunks sent to peers.
    pub sent: u64,
    /// Bytes sent over the host's link, including the overhead of the network.
    pub up: u64,
    /// Bytes received over the host's link, including the overhead of the network.
    pub down: u64,
    /// Bytes of messages that the host sent or exchanged with the tracker, without chunks. Messages to peers
    /// include the overhead of the network.
    pub talk: u64,
    /// `true` if the host died during the run.
    pub died: bool,
    /// `true` if the host was drawn for a fault of behaviour: slow links, wrong bytes, empty announcements or
    /// promises, unrequested data, or silence. Death is not counted here.
    pub bad: bool,
}

/// Results of a run of the whole fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetOutcome {
    /// The results of each disk, in the order of the workload.
    pub disks: Vec<DiskOutcome>,
    /// The results of each host, by number.
    pub hosts: Vec<HostOutcome>,
    /// Distribution of the waits of all reads that ended, on all disks; every read has equal weight.
    pub waits: ReadWaits,
    /// The tracker's counts at the end. `None`: there was no tracker, or it counted nothing.
    pub counts: Option<headstart_swarm::tracker::ImageCounts>,
    /// Counters of hints (slices that the tracker named to agents), summed over all hosts.
    pub hints: headstart_swarm::hints::Tally,
    /// The recent requests that each root remembers at the end, as input for a later run
    /// ([`SwarmModel::recent`](super::SwarmModel::recent)). Empty unless roots push chunks ahead of requests.
    pub recent: Vec<headstart_swarm::recent::Saved>,
    /// Bytes that the store sent, without the overhead of the network.
    pub store_bytes: u64,
    /// Approximate number of bytes that the store sent again, that is, bytes of chunks that it had sent to any host
    /// before.
    pub store_again: u64,
    /// The number of times that a node wrongly said that a chunk is on its host; anything but 0 is a bug in
    /// the node.
    pub wrong_answers: u64,
    /// The number of times that a host closed the connection to a peer for good because of its behaviour.
    pub dropped: u64,
    /// The number of events that were scheduled, as a measure of the cost of the simulation.
    pub happenings: u64,
    /// The counters of all nodes, added up, including nodes that were restarted.
    pub counters: headstart_swarm::NodeCounters,
}

/// Summary of a run. Durations are in seconds, rates in bytes a second; bytes are of one host unless stated
/// otherwise. A disk is *complete* if all its reads have ended; a read that failed has ended, too. Values over no disks
/// or hosts are 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetSummary {
    /// The number of disks on hosts that did not die. The durations and rates below are of these disks.
    pub disks: usize,
    /// The number of disks, on hosts that did not die, that are not complete, because a read did not end.
    pub incomplete: usize,
    /// The number of reads that failed because their deadline had passed, on hosts that did not die.
    pub failed: u64,
    /// Seconds from the earliest planned attachment of a disk to the end of the last read of all complete disks.
    pub completion: f64,
    /// Median over the complete disks of the seconds from the planned attachment to the end of the last read.
    pub took_p50: f64,
    /// 99th percentile over the complete disks of the seconds from the planned attachment to the end of the
    /// last read.
    pub took_p99: f64,
    /// Maximum over the complete disks of the seconds from the planned attachment to the end of the last
    /// read.
    pub took_max: f64,
    /// Seconds that a disk's reads waited in total, averaged over the disks.
    pub waited: f64,
    /// Throughput of the slowest disk, in bytes a second; 0 if any disk is not complete.
    pub slowest: f64,
    /// Throughput of the fastest disk, in bytes a second.
    pub fastest: f64,
    /// Jain's fairness index of the disks' throughputs, 0 to 1: 1 if all are equal, 0 if no disk is complete. The
    /// throughput of a disk that is not complete counts as 0.
    pub fairness: f64,
    /// Bytes that the store sent to all hosts together.
    pub store_bytes: u64,
    /// Approximate number of the store's bytes that belong to chunks that it had sent before, to any host.
    pub store_again: u64,
    /// Bytes that a host received from the store, averaged over all hosts.
    pub from_store: f64,
    /// Bytes of chunks that a host received from peers because a read waited, averaged over all hosts.
    pub on_demand: f64,
    /// Bytes of chunks that a host received from peers before any read needed them, averaged over all hosts.
    pub prefetched: f64,
    /// Bytes of chunks that a host received from peers and no disk read, averaged over all hosts.
    pub unread: f64,
    /// Bytes of chunks received from peers that no disk read, on the host with most of them.
    pub unread_max: u64,
    /// Bytes of chunks fetched ahead because peers had advertised or pushed them, and never read, on the host
    /// with most of them.
    pub unmatched_max: u64,
    /// Bytes of chunks that one host sent to peers, for the host that sent most.
    pub sent_max: u64,
    /// Bytes of messages (not chunks) that a host sent, averaged over all hosts.
    pub talk: f64,
    /// Median over the complete disks of honest hosts (see [`HostOutcome::bad`]) of the seconds from the
    /// planned attachment to the end of the last read.
    pub honest_p50: f64,
    /// Maximum over the complete disks of honest hosts of the seconds from the planned attachment to the end
    /// of the last read.
    pub honest_max: f64,
    /// Bytes that an honest host received from the store, averaged over honest hosts. This leaves out bad
    /// hosts, which read everything from the store once all others have dropped them.
    pub honest_from_store: f64,
    /// The number of times that a host closed the connection to a peer for good because of its behaviour.
    pub dropped: u64,
    /// The number of times that a node wrongly said that a chunk is on its host; 0 unless the node has a bug.
    pub wrong_answers: u64,
    /// The number of events that were scheduled, as a measure of the cost of the simulation.
    pub happenings: u64,
}

impl FleetOutcome {
    /// Returns the percentile `percent` (0 to 100) of the times, in seconds, by which disks took longer in this run
    /// than in `other`, a run of the same disks. A disk that took no longer counts as 0. Disks that did not complete
    /// in both runs are left out; the result is 0 if no disk completed in both.
    #[must_use]
    pub fn later_than(&self, other: &Self, percent: u8) -> f64 {
        let both = self.disks.iter().zip(&other.disks);
        let complete = |disk: &DiskOutcome| disk.completed < Nanos::NEVER;
        let both = both.filter(|(one, other)| complete(one) && complete(other));
        let mut waits = ReadWaits::default();
        both.for_each(|(one, other)| waits.add(one.took().since(other.took())));
        waits.percentile(percent).as_secs()
    }

    /// Computes the summary of the run.
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
