//! A small simulation for tests of the engine: a disk of bitmaps, a link on virtual time, and readers.
//!
//! The link is first in, first out ([`wire`]). Data comes into the cache only when its pages of the
//! hash tree are there, as in the product; until then it waits.

use crate::{
    BlobRange, BlobView, DiskBlobId, Engine, EngineAction, EngineCounters, EngineEvent, EngineSettings,
    FetchId, FetchOutcome, MissRest, Priority, ReadId, Time,
};
use headstart_block::{ByteRange, Error, ErrorKind};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod wire;

use wire::Wire;

pub(crate) const UNIT: u64 = 16 << 10;
const PAGE: u64 = 4 << 10;
/// Bytes of data that a page of the hash tree covers.
const COVERED: u64 = 1 << 20;
pub(crate) const DATA: DiskBlobId = DiskBlobId(0);
pub(crate) const TREE: DiskBlobId = DiskBlobId(1);

pub(crate) const MILLI: Duration = Duration::from_millis(1);

pub(crate) fn millis(n: u64) -> Time {
    Time(n * 1000)
}

/// Settings without the rests of blocks that had a miss.
pub(crate) fn lazy() -> EngineSettings {
    EngineSettings { miss_rest: MissRest::None, ..EngineSettings::default() }
}

/// Settings without long requests.
pub(crate) fn short(mut settings: EngineSettings) -> EngineSettings {
    (settings.stream_max, settings.stream_min) = (0, u64::MAX);
    settings
}

/// A disk whose bytes are in one blob with a hash tree.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    size: u64,
    /// The segments, in the order of the disk: its bytes, their offset in the blob, and their length there.
    segments: Vec<(ByteRange, u64, u64)>,
    data: Vec<bool>,
    tree: Vec<bool>,
}

impl Disk {
    fn new(size: u64, segments: Vec<(ByteRange, u64, u64)>) -> Self {
        let stored = segments.iter().map(|(_, at, len)| at + len).max().unwrap_or(0);
        let count = |unit| usize::try_from(stored.div_ceil(unit)).unwrap();
        Self { size, segments, data: vec![false; count(UNIT)], tree: vec![false; count(COVERED)] }
    }

    /// A disk that is stored as it is.
    pub(crate) fn plain(size: u64) -> Self {
        Self::new(size, vec![(ByteRange::between(0, size), 0, size)])
    }

    /// A disk of slices compressed to 40% and stored out of order within their block, every fifth a hole.
    pub(crate) fn scattered(slices: u64) -> Self {
        let (slice, stored) = (crate::SLICE_SIZE, crate::SLICE_SIZE * 2 / 5);
        let place = |n: u64| n / 32 * 32 + (n * 7 + 3) % 32;
        let used = (0..slices).filter(|n| n % 5 != 0);
        let range = |n: u64| ByteRange::between(n * slice, (n + 1) * slice);
        Self::new(slices * slice, used.map(|n| (range(n), place(n) * stored, stored)).collect())
    }

    fn bits(&mut self, range: BlobRange) -> (&mut Vec<bool>, usize, usize) {
        let (bits, unit) = if range.blob == DATA { (&mut self.data, UNIT) } else { (&mut self.tree, PAGE) };
        let at = |offset: u64| usize::try_from(offset).unwrap();
        (bits, at(range.range.offset() / unit), at(range.range.end().div_ceil(unit)))
    }

    /// Makes `range` local; `false` if its pages of the hash tree are not there.
    pub(crate) fn insert(&mut self, range: BlobRange) -> bool {
        let mut verifiable = true;
        self.missing(range, &mut |run| verifiable &= run.blob == range.blob);
        if verifiable {
            let (bits, start, end) = self.bits(range);
            let end = end.min(bits.len());
            bits[start..end].fill(true);
        }
        verifiable
    }

    pub(crate) fn is_local(&self, part: ByteRange) -> bool {
        let mut local = true;
        self.ranges(part, &mut |range| self.missing(range, &mut |run| local &= run.blob != range.blob));
        local
    }

    pub(crate) fn local_bytes(&self) -> u64 {
        self.data.iter().filter(|bit| **bit).count() as u64 * UNIT
    }
}

impl BlobView for Disk {
    fn disk_size(&self) -> u64 {
        self.size
    }

    fn ranges(&self, part: ByteRange, each: &mut dyn FnMut(BlobRange)) {
        for (on_disk, at, len) in &self.segments {
            let used = on_disk.intersect(part);
            if used.is_empty() {
                continue;
            }
            if *len == on_disk.len() {
                let start = at + used.offset() - on_disk.offset();
                each(BlobRange::between(DATA, start, start + used.len()));
            } else {
                // A compressed segment is read whole.
                each(BlobRange::between(DATA, *at, at + len));
            }
        }
    }

    fn missing(&self, range: BlobRange, each: &mut dyn FnMut(BlobRange)) {
        let (bits, unit) = if range.blob == DATA { (&self.data, UNIT) } else { (&self.tree, PAGE) };
        let end = range.range.end().div_ceil(unit).min(bits.len() as u64);
        let mut at = range.range.offset() / unit;
        while at < end {
            let start = at;
            while at < end && !bits[at as usize] {
                at += 1;
            }
            if at > start {
                each(BlobRange::between(range.blob, start * unit, at * unit));
                if range.blob == DATA {
                    let pages = start * UNIT / COVERED..(at * UNIT).div_ceil(COVERED);
                    self.missing(BlobRange::between(TREE, pages.start * PAGE, pages.end * PAGE), each);
                }
            }
            at += 1;
        }
    }
}

/// The fate of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Good,
    /// An error, after a round trip.
    Fail,
    /// An error that no retry helps, after a round trip.
    Permanent,
    /// Wrong bytes, after the whole transfer.
    Corrupt,
    /// No answer at all.
    Stall,
    /// Half of the bytes, if it is streamed, and then an error.
    Break,
}

/// A function that decides the fate of the `n`-th fetch.
pub(crate) type Fates = Box<dyn FnMut(u64, Time, BlobRange, Priority) -> Fate>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) rate: u64,
    pub(crate) round_trip: Duration,
}

/// 10 MB/s, 20 ms.
pub(crate) const LINK: Link = Link { rate: 10_000_000, round_trip: Duration::from_millis(20) };

#[derive(Clone, Debug)]
enum Due {
    Fails(usize),
    Read(ByteRange),
    Forget(ReadId),
}

/// A fetch that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Time,
    pub(crate) range: BlobRange,
    pub(crate) priority: Priority,
    pub(crate) fate: Fate,
    /// The time at which it came, if it did.
    pub(crate) due: Time,
    pub(crate) stream: bool,
    fetch: FetchId,
    /// The offset up to which its bytes have come, and the one up to which that was reported.
    came: u64,
    told: u64,
    held: bool,
    /// The offset up to which it was promoted; 0: it was not.
    pub(crate) promoted_upto: u64,
}

/// The course of a read.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) part: ByteRange,
    pub(crate) at: Time,
    pub(crate) end: Option<(Time, Result<(), Arc<Error>>)>,
    pub(crate) forgotten: bool,
}

impl Told {
    pub(crate) fn wait(&self) -> Duration {
        let (end, result) = self.end.as_ref().expect("the read is not answered");
        assert!(result.is_ok(), "{result:?}");
        end.since(self.at)
    }
}

/// The engine and its surroundings.
pub(crate) struct Sim {
    pub(crate) disk: Disk,
    pub(crate) engine: Engine,
    pub(crate) now: Time,
    pub(crate) link: Link,
    pub(crate) fates: Fates,
    pub(crate) reads: Vec<Told>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) log: Vec<String>,
    /// Parts read one after the other, each when the one before is there and its think time has passed.
    pub(crate) guest: VecDeque<(Duration, ByteRange)>,
    wire: Wire,
    due: BTreeMap<(Time, u64), Due>,
    sequence: u64,
    /// The index in `asked` of each fetch under way.
    on_link: BTreeMap<FetchId, usize>,
    parked: Vec<(FetchId, BlobRange)>,
    wake: Option<Time>,
}

impl Sim {
    pub(crate) fn new(disk: Disk, settings: EngineSettings) -> Self {
        Self {
            disk,
            engine: Engine::new(settings),
            now: Time(0),
            link: LINK,
            fates: Box::new(|_, _, _, _| Fate::Good),
            reads: Vec::new(),
            asked: Vec::new(),
            log: Vec::new(),
            guest: VecDeque::new(),
            wire: Wire::default(),
            due: BTreeMap::new(),
            sequence: 0,
            on_link: BTreeMap::new(),
            parked: Vec::new(),
            wake: None,
        }
    }

    pub(crate) fn counters(&self) -> EngineCounters {
        self.engine.counters()
    }

    /// Schedules a read at `at`.
    pub(crate) fn read_at(&mut self, at: Time, part: ByteRange) {
        self.schedule(at, Due::Read(part));
    }

    /// Schedules that a client goes away at `at`.
    pub(crate) fn forget_at(&mut self, at: Time, read: u64) {
        self.schedule(at, Due::Forget(ReadId(read)));
    }

    /// Starts a read now.
    pub(crate) fn read(&mut self, start: u64, len: u64) {
        self.read_ranges(&[ByteRange::between(start, start + len)]);
    }

    /// Starts one read of several ranges now. Its course tells of the first range only.
    pub(crate) fn read_ranges(&mut self, ranges: &[ByteRange]) {
        let read = ReadId(self.reads.len() as u64);
        let mut told = Told { part: ranges[0], at: self.now, end: None, forgotten: false };
        if ranges.iter().all(|part| self.disk.is_local(*part)) {
            told.end = Some((self.now, Ok(())));
            self.reads.push(told);
        } else {
            self.reads.push(told);
            self.notify(EngineEvent::Read { read, ranges });
        }
    }

    /// Runs until nothing more happens before `until`, and sets the clock to it.
    pub(crate) fn run(&mut self, until: Time) {
        let mut steps_at_once = 0;
        loop {
            let due = self.due.keys().next().map(|(at, _)| *at);
            let wire = self.wire.next();
            let next = due.into_iter().chain(wire).min();
            let at = match (next, self.wake) {
                (Some(next), Some(wake)) => next.min(wake),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => break,
            };
            if at > until {
                break;
            }
            steps_at_once = if at > self.now { 0 } else { steps_at_once + 1 };
            assert!(steps_at_once < 100_000, "no progress at {:?}", self.now);
            self.now = self.now.max(at);
            if self.wake == Some(at) {
                self.wake = None;
                self.notify(EngineEvent::Tick);
            } else if wire == Some(at) {
                if let Some(part) = self.wire.step(self.now, self.link) {
                    self.came(part.asked, part.bytes);
                }
            } else if let Some((_, due)) = self.due.pop_first() {
                match due {
                    Due::Fails(asked) => self.fails(asked),
                    Due::Read(part) => self.read_ranges(&[part]),
                    Due::Forget(read) => self.forget(read),
                }
            }
        }
        self.now = self.now.max(until);
    }

    /// Gives an event to the engine and does its actions.
    pub(crate) fn notify(&mut self, event: EngineEvent<'_>) {
        let mut actions = Vec::new();
        self.engine.on_event(self.now, event, &self.disk, &mut actions);
        self.engine.check();
        for action in actions {
            self.log.push(format!("{:?} {action:?}", self.now));
            self.perform(action);
        }
    }

    fn perform(&mut self, action: EngineAction) {
        match action {
            EngineAction::Fetch { fetch, range, priority, stream, .. } => {
                self.fetch(fetch, range, priority, stream);
            }
            EngineAction::Cancel { fetch } => {
                let parked = self.parked.iter().position(|(parked, _)| *parked == fetch);
                let asked = self.on_link.remove(&fetch);
                assert!(asked.is_some() || parked.is_some(), "cancelled {fetch:?}, which is not under way");
                if let Some((_, range)) = parked.map(|place| self.parked.swap_remove(place)) {
                    let mut is_local = true;
                    self.disk.missing(range, &mut |run| is_local &= run.blob != range.blob);
                    let tries = self.asked.iter_mut().rev();
                    if let Some(asked) = tries.filter(|asked| asked.fetch == fetch).find(|_| !is_local) {
                        // Its bytes were dropped.
                        asked.fate = Fate::Fail;
                    }
                }
                if let Some(asked) = asked {
                    self.wire.end(asked);
                }
            }
            EngineAction::Hold { fetch } => self.steer(fetch, true),
            EngineAction::Resume { fetch } => self.steer(fetch, false),
            EngineAction::Promote { fetch, upto } => {
                let number = *self.on_link.get(&fetch).expect("what is promoted is under way");
                let asked = &mut self.asked[number];
                let further = upto > asked.promoted_upto && upto <= asked.range.range.end();
                assert!(further && asked.priority != Priority::Miss, "{fetch:?} is promoted to {upto}");
                asked.promoted_upto = upto;
            }
            EngineAction::Complete { read } => self.end(read, Ok(())),
            EngineAction::Fail { read, error } => self.end(read, Err(error)),
            EngineAction::WakeAt(time) => self.wake = Some(time.max(self.now)),
        }
    }

    fn fetch(&mut self, fetch: FetchId, range: BlobRange, priority: Priority, stream: bool) {
        assert!(!range.is_empty());
        assert!(!stream || priority != Priority::Miss);
        let number = self.asked.len();
        let fate = (self.fates)(number as u64, self.now, range, priority);
        let start = range.range.offset();
        let due = Time(u64::MAX);
        self.asked.push(Asked {
            at: self.now,
            range,
            priority,
            fate,
            due,
            stream,
            fetch,
            came: start,
            told: start,
            held: false,
            promoted_upto: 0,
        });
        assert!(self.on_link.insert(fetch, number).is_none(), "{fetch:?} is sent twice");
        match fate {
            Fate::Stall => {}
            Fate::Good | Fate::Corrupt => self.wire.ask(self.now, self.link, number, range.len(), stream),
            Fate::Break if stream => self.wire.ask(self.now, self.link, number, range.len(), stream),
            Fate::Break | Fate::Fail | Fate::Permanent => {
                self.schedule(self.now + self.link.round_trip, Due::Fails(number));
            }
        }
    }

    fn steer(&mut self, fetch: FetchId, hold: bool) {
        let number = *self.on_link.get(&fetch).expect("what is held is under way");
        let asked = &mut self.asked[number];
        assert!(asked.stream && asked.held != hold, "{fetch:?} is held twice or goes on twice");
        asked.held = hold;
        if hold {
            self.wire.hold(self.now, self.link, number);
        } else {
            self.wire.resume(self.now, self.link, number);
        }
    }

    /// Notes that bytes have come.
    fn came(&mut self, number: usize, bytes: u64) {
        let asked = &mut self.asked[number];
        asked.came += bytes;
        let (fetch, range, fate, came) = (asked.fetch, asked.range, asked.fate, asked.came);
        let whole = came == range.range.end();
        if whole {
            asked.due = self.now;
        }
        // A cancelled fetch may share its number with a later try.
        if self.on_link.get(&fetch) != Some(&number) {
            return;
        }
        let half = came - range.range.offset() >= range.len() / 2;
        match fate {
            Fate::Corrupt if whole || asked.stream && half => self.fails(number),
            Fate::Break if half => self.fails(number),
            _ if whole => {
                self.on_link.remove(&fetch);
                let told = self.asked[number].told;
                self.notify(EngineEvent::Arrived { fetch });
                self.parked.push((fetch, BlobRange::between(range.blob, told, came)));
                self.verify_parked();
            }
            _ => self.verify_streams(),
        }
    }

    fn fails(&mut self, number: usize) {
        let Asked { fetch, fate, range, .. } = self.asked[number];
        if self.on_link.get(&fetch) != Some(&number) {
            return;
        }
        self.wire.end(number);
        self.on_link.remove(&fetch);
        let fail = |kind, retry, corrupt| {
            let error = Arc::new(Error::new(kind, "the test wants it so").about(range));
            FetchOutcome::Failed { retry, corrupt, error }
        };
        let outcome = match fate {
            Fate::Corrupt => fail(ErrorKind::Corrupt, false, true),
            Fate::Permanent => fail(ErrorKind::NotFound, false, false),
            Fate::Good | Fate::Fail | Fate::Break | Fate::Stall => fail(ErrorKind::Unavailable, true, false),
        };
        self.notify(EngineEvent::Fetched { fetch, outcome });
    }

    /// Reports the bytes of streams that have come, if their pages of the hash tree are there.
    fn verify_streams(&mut self) {
        let under_way: Vec<_> = self.on_link.values().copied().filter(|n| self.asked[*n].stream).collect();
        for number in under_way {
            let Asked { fetch, told, came, range, .. } = self.asked[number];
            if came > told && self.disk.insert(BlobRange::between(range.blob, told, came)) {
                self.asked[number].told = came;
                self.notify(EngineEvent::Progress { fetch, upto: came });
            }
        }
    }

    fn verify_parked(&mut self) {
        let mut place = 0;
        while let Some((fetch, range)) = self.parked.get(place).copied() {
            if self.disk.insert(range) {
                self.parked.remove(place);
                self.notify(EngineEvent::Fetched { fetch, outcome: FetchOutcome::Done });
                place = 0;
            } else {
                place += 1;
            }
        }
        self.verify_streams();
    }

    /// Simulates another process that brings these bytes of the blob, with their pages of the hash tree, and
    /// reports that.
    pub(crate) fn bring(&mut self, start: u64, end: u64) {
        let len = self.disk.data.len() as u64 * UNIT;
        let data = BlobRange::between(DATA, start.min(len), end.min(len));
        let tree = BlobRange::between(
            TREE,
            data.range.offset() / COVERED * PAGE,
            data.range.end().div_ceil(COVERED) * PAGE,
        );
        for range in [tree, data].into_iter().filter(|range| !range.is_empty()) {
            assert!(self.disk.insert(range));
            self.notify(EngineEvent::BecameLocal { range });
        }
        self.verify_parked();
    }

    pub(crate) fn forget(&mut self, read: ReadId) {
        if let Some(told) = self.reads.get_mut(read.0 as usize).filter(|told| told.end.is_none()) {
            told.forgotten = true;
            self.notify(EngineEvent::Forget { read });
        }
    }

    fn end(&mut self, read: ReadId, result: Result<(), Arc<Error>>) {
        let told = &mut self.reads[read.0 as usize];
        assert!(told.end.is_none() && !told.forgotten, "{read} is answered twice");
        assert!(result.is_err() || self.disk.is_local(told.part), "{read} is completed, but not local");
        told.end = Some((self.now, result));
    }

    /// Runs the guest to its end; returns the total time that it waited.
    pub(crate) fn run_guest(&mut self) -> Duration {
        let mut waited = Duration::ZERO;
        while let Some((think, part)) = self.guest.pop_front() {
            self.run(self.now + think);
            let read = self.reads.len();
            self.read_ranges(&[part]);
            while self.reads[read].end.is_none() {
                self.run(self.now + Duration::from_micros(200));
            }
            waited += self.reads[read].wait();
        }
        waited
    }

    fn schedule(&mut self, at: Time, due: Due) {
        self.due.insert((at, self.sequence), due);
        self.sequence += 1;
    }
}
