//! Bandwidth and round trip of the link, and the resulting limits of background requests.
//!
//! *Round trip*: the least time from asking to the last byte of a small fetch, less the time its bytes took. Only
//! fetches that were sent onto an idle link may raise it: on a busy link the wait behind other transfers would be taken
//! for distance, the pipe be filled for that distance, and the wait grow with it for ever.
//!
//! *Bandwidth*: bytes that came, by the time in which bytes were coming. A fetch is taken to bring bytes from one round
//! trip after it was sent; the union of these spans is the busy time. Neither idle time nor the wait for the first byte
//! counts, so a link that carries one small read at a time is not thought slow. Spells of less than [`SPELL_MIN`] bytes
//! say too little and are left out. The window is the last two seconds of busy time; less where the latest half second
//! of it has another bandwidth than the time before it: then the link has changed.
//!
//! A *stream* brings bytes from its first bytes on until it is held. While it is held, and until its first bytes after
//! that, it says nothing about the link: bytes may have come meanwhile that were not taken, or none. Bytes of
//! it then count only together with others on the link.
//!
//! *Pace*: a background request takes at most one round trip, and requests are started until the
//! bandwidth-delay product (and a quarter) is on the link: one more is then sent while another one is coming. While
//! reads miss, requests are a quarter of that, and started up to the product itself: a new miss waits for the bytes
//! on the link beyond the product, a round trip in calm times, a quarter of one otherwise.

use crate::{EngineSettings, Estimate, FetchId, Time};
use headstart_block::{exact, saturating};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Bytes that must come in one spell to tell the bandwidth.
const SPELL_MIN: u64 = 64 << 10;
/// The largest fetches that tell the round trip, in bytes.
const SMALL: u64 = 32 << 10;
/// Bytes that may be asked for at the same moment on a link that still counts as idle.
const IDLE_BYTES: u64 = 128 << 10;
/// The busy time of a bucket, and the number of buckets in the window.
const BUCKET: Duration = Duration::from_millis(250);
const BUCKETS: usize = 8;
/// Busy time that the last two must have to tell that the link has changed.
const RECENT: Duration = Duration::from_millis(300);
/// The age at which a bucket is closed even if the link was hardly used: later bytes are new information.
const BUCKET_AGE: Duration = Duration::from_secs(10);
/// Round trips of idle moments are minima of groups: the samples of a group, and the number of kept groups.
const GROUP: u32 = 32;
const GROUPS: usize = 8;
/// The time after which a fetch on its way has stalled: the link is not busy on its account.
const STALLED: Duration = Duration::from_secs(5);
/// The least time that a request takes, however near the store is.
const REQUEST_MIN: Duration = Duration::from_millis(5);
/// The limit of a background request before anything is known, in bytes.
const UNKNOWN: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Time,
    /// The last sign of life.
    heard: Time,
    /// `true` if the link was idle.
    alone: bool,
    flow: Flow,
}

/// The state of a fetch's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// Expected from a round trip after it was sent.
    Awaited,
    /// Coming since this time.
    Since(Time),
    /// The fetch is held: the time of its bytes is unknown.
    Held,
    /// The fetch was held: its next bytes have perhaps come long before, and tell only that bytes are coming again.
    Resumed,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    opened: Time,
    bytes: u64,
    busy: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    least: Duration,
    samples: u32,
}

/// Bytes a second.
fn rate<'a>(buckets: impl Iterator<Item = &'a Bucket>) -> Option<u64> {
    let (bytes, busy) = buckets.fold((0_u64, Duration::ZERO), |(bytes, busy), bucket| {
        (bytes.saturating_add(bucket.bytes), busy + bucket.busy)
    });
    let micros = busy.as_micros().max(1);
    (bytes > 0).then(|| saturating::<u64>(u128::from(bytes) * 1_000_000 / micros).max(1))
}

/// The limits of background requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// The largest request in bytes.
    pub(crate) request: u64,
    /// The bytes that may be on the link when one more is sent.
    pub(crate) pipe: u64,
    /// `true` if nothing is known and the next request is a small probe.
    pub(crate) probe: bool,
}

/// The estimator, which watches the transfers of a disk.
#[derive(Debug, Default)]
pub(crate) struct Estimator {
    on_link: BTreeMap<FetchId, Sent>,
    /// Bytes asked for at `last_sent`, if the link was idle before.
    idle_bytes: u64,
    last_sent: Time,
    /// The time up to which busy time is counted.
    counted_to: Time,
    spell_bytes: u64,
    spell_busy: Duration,
    buckets: VecDeque<Bucket>,
    groups: VecDeque<Group>,
    /// The round trip from large fetches; used while no small one was seen.
    rough: Option<Duration>,
    /// `true` if fetches of the background come one at a time.
    one_by_one: bool,
}

impl Estimator {
    /// An estimator for a link that carries at most `depth` background fetches at a time.
    pub(crate) fn new(depth: usize) -> Self {
        Self { one_by_one: depth <= 1, ..Self::default() }
    }

    pub(crate) fn sent(&mut self, now: Time, fetch: FetchId, bytes: u64) {
        if self.on_link.is_empty() {
            (self.idle_bytes, self.last_sent) = (0, now);
        }
        let alone = self.last_sent == now && self.idle_bytes <= IDLE_BYTES;
        self.idle_bytes = self.idle_bytes.saturating_add(bytes);
        self.on_link.insert(fetch, Sent { at: now, heard: now, alone, flow: Flow::Awaited });
    }

    /// Notes that a stream is held, or goes on.
    pub(crate) fn holds(&mut self, fetch: FetchId, held: bool) {
        if let Some(sent) = self.on_link.get_mut(&fetch) {
            sent.flow = if held { Flow::Held } else { Flow::Resumed };
        }
    }

    /// Notes that a fetch failed or was cancelled: it tells nothing.
    pub(crate) fn dropped(&mut self, fetch: FetchId) {
        self.on_link.remove(&fetch);
    }

    /// Notes that all of a fetch has come, of which `bytes` were still to come.
    pub(crate) fn arrived(&mut self, now: Time, fetch: FetchId, bytes: u64) {
        let Some(sent) = self.on_link.get(&fetch).copied() else { return };
        if sent.flow == Flow::Awaited {
            self.sample_round_trip(now.since(sent.at), bytes, sent.alone);
        }
        let since = self.since(now, fetch);
        self.on_link.remove(&fetch);
        self.came(now, since, bytes);
    }

    /// Notes that the next `bytes` of a stream have come.
    pub(crate) fn progressed(&mut self, now: Time, fetch: FetchId, bytes: u64) {
        let Some(Sent { at, heard, alone, flow }) = self.on_link.get(&fetch).copied() else { return };
        if flow == Flow::Awaited {
            self.sample_round_trip(now.since(at), bytes, alone);
        }
        let since = self.since(now, fetch);
        let flow = if flow == Flow::Held { flow } else { Flow::Since(now) };
        let bytes = match (since, self.on_link.insert(fetch, Sent { at, heard: now, alone, flow })) {
            // The bytes came in the time since the last one, of which perhaps only a part is counted.
            (Some(since), Some(Sent { flow: Flow::Held | Flow::Resumed, .. })) => {
                part(bytes, now.since(since.max(self.counted_to)), now.since(heard))
            }
            _ => bytes,
        };
        self.came(now, since, bytes);
    }

    /// The time since which bytes of any fetch are coming; `None` if it is unknown or too long ago.
    fn since(&self, now: Time, fetch: FetchId) -> Option<Time> {
        let distance = self.distance();
        let begun = |sent: &Sent| match sent.flow {
            Flow::Awaited => Some(sent.at + distance),
            Flow::Since(at) => Some(at),
            Flow::Held | Flow::Resumed => None,
        };
        let lives = self.on_link.values().filter(|sent| now.since(sent.heard) < STALLED);
        let oldest = lives.filter_map(begun).min();
        let own = || self.on_link.get(&fetch).filter(|sent| sent.flow == Flow::Awaited).and_then(begun);
        oldest.or_else(own)
    }

    fn came(&mut self, now: Time, since: Option<Time>, bytes: u64) {
        let Some(since) = since else { return };
        if since > self.counted_to {
            (self.spell_bytes, self.spell_busy) = (0, Duration::ZERO);
        }
        self.spell_bytes = self.spell_bytes.saturating_add(bytes);
        self.spell_busy += now.since(since.max(self.counted_to));
        self.counted_to = now;
        if self.spell_bytes >= SPELL_MIN {
            self.count(now);
        }
    }

    /// Moves the spell into the window.
    fn count(&mut self, now: Time) {
        let full = |bucket: &Bucket| bucket.busy >= BUCKET || now.since(bucket.opened) >= BUCKET_AGE;
        if self.buckets.back().is_none_or(full) {
            self.buckets.push_back(Bucket { opened: now, bytes: 0, busy: Duration::ZERO });
            if self.buckets.len() > BUCKETS {
                self.buckets.pop_front();
            }
        }
        if let Some(bucket) = self.buckets.back_mut() {
            bucket.bytes = bucket.bytes.saturating_add(self.spell_bytes);
            bucket.busy += self.spell_busy;
        }
        (self.spell_bytes, self.spell_busy) = (0, Duration::ZERO);
        self.forget_another_link();
    }

    /// Drops the older buckets if the last two have another bandwidth than all before them: the link has changed,
    /// and those are of no use any more.
    fn forget_another_link(&mut self) {
        let Some(old) = self.buckets.len().checked_sub(2).filter(|old| *old > 0) else { return };
        let (before, recent) = (rate(self.buckets.iter().take(old)), rate(self.buckets.iter().skip(old)));
        let busy: Duration = self.buckets.iter().skip(old).map(|bucket| bucket.busy).sum();
        let (Some(before), Some(recent)) = (before, recent) else { return };
        let (less, more) = (before.min(recent), before.max(recent));
        if busy >= RECENT && more - less > less / 3 {
            self.buckets.drain(..old);
        }
    }

    fn sample_round_trip(&mut self, took: Duration, bytes: u64, alone: bool) {
        let transfer = self.bandwidth().map_or(Duration::ZERO, |bandwidth| span(bytes, bandwidth));
        if bytes > SMALL {
            let least =
                if transfer.is_zero() { took / 2 } else { took.saturating_sub(transfer).max(took / 4) };
            self.rough = Some(self.rough.map_or(least, |rough| rough.min(least)));
        } else if alone {
            let least = took.saturating_sub(transfer).max(took / 2);
            match self.groups.back_mut().filter(|group| group.samples < GROUP) {
                Some(group) => (group.least, group.samples) = (group.least.min(least), group.samples + 1),
                None => self.groups.push_back(Group { least, samples: 1 }),
            }
            if self.groups.len() > GROUPS {
                self.groups.pop_front();
            }
        }
        // Nothing takes less than a round trip.
        if let Some(group) = self.groups.back_mut() {
            group.least = group.least.min(took);
        }
    }

    fn bandwidth(&self) -> Option<u64> {
        rate(self.buckets.iter())
    }

    fn round_trip(&self) -> Option<Duration> {
        self.groups.iter().map(|group| group.least).min().or(self.rough)
    }

    /// The time from asking to the first bytes. Large fetches that come one at a time, each as long as the other,
    /// do not tell the share of that in their time: no depth makes up for it either, so all of it counts as theirs.
    fn distance(&self) -> Duration {
        let known = self.groups.iter().map(|group| group.least).min();
        known.or(self.rough.filter(|_| !self.one_by_one)).unwrap_or_default()
    }

    pub(crate) fn estimate(&self) -> Estimate {
        Estimate { bandwidth: self.bandwidth(), round_trip: self.round_trip() }
    }

    /// The pace at present; `calm` is `true` if no read has missed lately.
    pub(crate) fn pace(&self, settings: &EngineSettings, calm: bool) -> Pace {
        let (request, pipe) = match (self.bandwidth(), self.round_trip()) {
            (Some(bandwidth), Some(round_trip)) => {
                let (request, pipe) =
                    (product(bandwidth, round_trip.max(REQUEST_MIN)), product(bandwidth, round_trip));
                if calm { (request, pipe.saturating_add(pipe / 4)) } else { (request / 4, pipe) }
            }
            // The first request is small: large ones cannot tell the round trip from their own time, and with a
            // round trip that is taken for too short the link is never filled.
            _ if self.on_link.is_empty() && self.groups.is_empty() && !self.one_by_one => {
                return Pace { request: settings.unit, pipe: UNKNOWN, probe: true };
            }
            _ => (UNKNOWN, UNKNOWN),
        };
        let request = request.clamp(settings.background_min, settings.background_max);
        Pace { request: (request - request % settings.unit).max(settings.unit), pipe, probe: false }
    }

    /// The time that a fetch sent now takes if `on_link` bytes, its own included, are to come; `None` if it is unknown.
    pub(crate) fn expected(&self, on_link: u64) -> Option<Duration> {
        Some(self.round_trip()?.saturating_add(span(on_link, self.bandwidth()?)))
    }
}

/// The bytes that come in `time`.
fn product(bandwidth: u64, time: Duration) -> u64 {
    saturating(u128::from(bandwidth) * time.as_micros() / 1_000_000)
}

/// The part of `bytes`, which came within `all`, that came within `counted`.
fn part(bytes: u64, counted: Duration, all: Duration) -> u64 {
    if counted >= all {
        return bytes;
    }
    exact(u128::from(bytes) * counted.as_micros() / all.as_micros().max(1), "it is a part of `bytes`")
}

/// The time that `bytes` take.
pub(crate) fn span(bytes: u64, bandwidth: u64) -> Duration {
    let micros = u128::from(bytes) * 1_000_000 / u128::from(bandwidth.max(1));
    Duration::from_micros(saturating(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link whose answers come in the order of asking, `round_trip` after it at the earliest, at `bandwidth`.
    struct Link {
        bandwidth: u64,
        round_trip: Duration,
        free_at: Time,
        next: u64,
    }

    impl Link {
        /// Sends a batch at `now`; returns when the last has come.
        fn send(&mut self, estimator: &mut Estimator, now: Time, sizes: &[u64]) -> Time {
            let first = self.next;
            for size in sizes {
                estimator.sent(now, FetchId(self.next), *size);
                self.next += 1;
            }
            for (fetch, size) in (first..).zip(sizes) {
                self.free_at = self.free_at.max(now + self.round_trip) + span(*size, self.bandwidth);
                estimator.arrived(self.free_at, FetchId(fetch), *size);
            }
            self.free_at
        }
    }

    fn link(megabytes: u64, millis: u64) -> Link {
        let bandwidth = megabytes * 1_000_000;
        Link { bandwidth, round_trip: Duration::from_millis(millis), free_at: Time(0), next: 0 }
    }

    fn near(value: Option<u64>, expected: u64, percent: u64) {
        let value = value.unwrap();
        assert!(value.abs_diff(expected) * 100 <= expected * percent, "{value}, not {expected}");
    }

    #[test]
    fn a_few_large_fetches_tell_the_bandwidth_of_a_long_fat_link() {
        let (mut link, mut estimator) = (link(100, 100), Estimator::new(64));
        let mut now = Time(5_000_000);
        for _ in 0..10 {
            now = link.send(&mut estimator, now, &[4096, 256 << 10, 256 << 10]);
        }
        near(estimator.estimate().bandwidth, 100_000_000, 10);
        near(estimator.estimate().round_trip.map(|time| time.as_micros() as u64), 100_000, 5);
        let pace = estimator.pace(&EngineSettings::default(), true);
        assert_eq!(pace.request, 1 << 20);
        near(Some(pace.pipe), 12_500_000, 15);
    }

    /// The paper's way of pulling: a block after the other, each asked for when the one before has come.
    #[test]
    fn one_large_fetch_at_a_time_tells_the_bandwidth() {
        let (mut link, mut estimator) = (link(10, 0), Estimator::new(1));
        let mut now = Time(0);
        for _ in 0..5 {
            now = link.send(&mut estimator, now, &[2 << 20]);
            near(estimator.estimate().bandwidth, 10_000_000, 1);
        }
        // Several misses at once.
        now = link.send(&mut estimator, now + Duration::from_secs(1), &[2 << 20; 4]);
        link.send(&mut estimator, now, &[2 << 20, 1 << 20]);
        near(estimator.estimate().bandwidth, 10_000_000, 1);
    }

    #[test]
    fn idle_time_and_small_reads_do_not_make_a_link_slow() {
        let (mut link, mut estimator) = (link(10, 20), Estimator::new(64));
        let mut now = Time(0);
        for _ in 0..20 {
            now = link.send(&mut estimator, now, &[16 << 10, 4 << 10]) + Duration::from_millis(50);
        }
        assert_eq!(estimator.estimate().bandwidth, None, "small reads alone say nothing");
        for _ in 0..10 {
            now = link.send(&mut estimator, now, &[200 << 10; 2]) + Duration::from_secs(2);
            now = link.send(&mut estimator, now, &[16 << 10]) + Duration::from_millis(1);
        }
        near(estimator.estimate().bandwidth, 10_000_000, 15);
        near(estimator.estimate().round_trip.map(|time| time.as_micros() as u64), 20_000, 10);
    }

    #[test]
    fn follows_a_link_that_becomes_slower() {
        let (mut link, mut estimator) = (link(80, 10), Estimator::new(64));
        let mut now = Time(0);
        for _ in 0..50 {
            now = link.send(&mut estimator, now, &[512 << 10; 4]);
        }
        near(estimator.estimate().bandwidth, 80_000_000, 10);
        link.bandwidth = 8_000_000;
        let changed = now;
        while now.since(changed) < Duration::from_millis(2500) {
            now = link.send(&mut estimator, now, &[128 << 10; 4]);
        }
        near(estimator.estimate().bandwidth, 8_000_000, 20);
    }

    #[test]
    fn the_window_is_two_seconds_of_busy_time() {
        let (mut link, mut estimator) = (link(10, 0), Estimator::new(64));
        let mut now = Time(0);
        for _ in 0..100 {
            now = link.send(&mut estimator, now, &[500_000]);
        }
        let busy: Duration = estimator.buckets.iter().map(|bucket| bucket.busy).sum();
        assert_eq!(busy, Duration::from_secs(2));
    }

    #[test]
    fn waiting_behind_others_is_not_distance() {
        let (mut link, mut estimator) = (link(10, 20), Estimator::new(64));
        let mut now = link.send(&mut estimator, Time(0), &[4096]);
        // The link is never idle again: each batch is sent while one fetch is still on it.
        estimator.sent(now, FetchId(u64::MAX), 1);
        for _ in 0..1000 {
            now = link.send(&mut estimator, now, &[200 << 10, 4096, 4096]);
        }
        near(estimator.estimate().round_trip.map(|time| time.as_micros() as u64), 20_400, 5);
    }
}
