//! One boot on one disk: the event loop.
//!
//! There are three kinds of events: an answer of the store arrives; the time comes at which the engine asked to be
//! woken (a tick); a read arrives. Of events at the same time, answers come first, then ticks, then reads: if the last
//! byte of a block arrives together with a read, the read finds the block local. The loop takes the earliest event,
//! reports it to the engine, and carries out the engine's actions.
//!
//! A read all of whose bytes are local is a hit. As in the product, hits are not reported to the engine; only a bitmap
//! is looked at. A hit takes [`Model::local_read`]. A write takes no time, and its bytes need not be fetched
//! afterwards.
//!
//! If a block becomes local only as a whole (the paper's model), a read of a block that another read, its *leader*,
//! waits for already is not reported to the engine either, unless [`Model::report_all`] is set. The read completes
//! together with its leader. The result is the same, because the engine would let both wait for the same request: the
//! leader is a read within that one block, so it waits for nothing else.

use crate::boot::{Boot, BootAccess, Guest};
use crate::image::ImageMap;
use crate::link::{Answer, Came, Wire};
use crate::model::{MissPolicy, Model, PreloadUnit};
use crate::outcome::{Accuracy, BootOutcome, Bytes, SLOW};
use crate::time::Nanos;
use crate::world::Local;
use headstart_block::{ByteRange, Error, ErrorKind, to_usize};
use headstart_pull::{
    BLOCK_SIZE, BlobRange, Engine, EngineAction, EngineEvent, FetchId, FetchOutcome as Fetched, Plan,
    PlanItem, Priority, ReadId,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// No read.
const NOBODY: u32 = u32::MAX;

/// Facts about a block, for accuracies.
const READ: u8 = 1;
const FOUND: u8 = 2;
const PRELOADED: u8 = 4;
const PULLED: u8 = 8;

/// A fetch on its way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    fetch: FetchId,
    range: BlobRange,
    priority: Priority,
}

/// A policy that chooses the plan to preload and may change it as reads and answers come.
pub trait Guide {
    /// Returns the plan to preload from the disk's creation on.
    fn at_creation(&mut self) -> Plan {
        Plan::Lazy
    }

    /// Records that a read of `range` (of the disk, in bytes) arrived at `now`. If the read missed, it was reported to
    /// `engine` before, unless it follows another read that waits for the same block; the guide may use the engine's
    /// estimate of the link. Returns the plan to preload from now on, or `None` to keep the current one.
    fn on_read(&mut self, now: Nanos, range: ByteRange, engine: &Engine) -> Option<Plan>;

    /// Records that an answer of the store arrived at `now`; it was reported to `engine` before. Returns the plan
    /// to preload from now on, or `None` to keep the current one.
    fn on_answer(&mut self, _now: Nanos, _engine: &Engine) -> Option<Plan> {
        None
    }
}

/// A simulator that replays boots on one disk, one after the other. Runs share only allocated memory: each run starts
/// with a disk that was just opened, and only the bytes that were read to open it are local.
#[derive(Debug, Default)]
pub struct Simulator {
    memory: Memory,
}

/// The memory that is kept between runs for its allocations.
#[derive(Debug, Default)]
struct Memory {
    bits: Vec<u64>,
    waits: Vec<Nanos>,
    blocks: Vec<u8>,
    /// By block: the read that waits for it and was told to the engine.
    leaders: Vec<u32>,
    /// By read: the next one that follows the same leader.
    followers: Vec<u32>,
    actions: Vec<EngineAction>,
    parts: Vec<ByteRange>,
    /// The guest: the times of reads and writes.
    replayed: Guest,
    /// The image of the disk.
    image: Option<Arc<ImageMap>>,
}

impl Simulator {
    /// Creates a simulator without an image.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the image that is the disk of later runs. At the start of a run, only the bytes that were read to open the
    /// image are local. `None` (the default): the disk is stored in one blob, as the model says, and at the start no
    /// byte is local.
    pub fn set_image(&mut self, image: Option<Arc<ImageMap>>) {
        self.memory.image = image;
    }

    /// Replays `boot` under `model` while `plan` is preloaded, and returns the results. Times that are too long to be
    /// counted end the run early: its last reads are never issued, or never answered.
    pub fn run(&mut self, boot: &Boot, plan: &Plan, model: &Model) -> BootOutcome {
        self.replay(boot, plan, None, model)
    }

    /// Replays `boot` under `model` while the plans that `guide` chooses are preloaded, and returns the
    /// results.
    pub fn run_guided(&mut self, boot: &Boot, guide: &mut dyn Guide, model: &Model) -> BootOutcome {
        let plan = guide.at_creation();
        self.replay(boot, &plan, Some(guide), model)
    }

    fn replay(
        &mut self,
        boot: &Boot,
        plan: &Plan,
        guide: Option<&mut dyn Guide>,
        model: &Model,
    ) -> BootOutcome {
        let mut run = Run::new(boot, guide, model, std::mem::take(&mut self.memory));
        run.begin(plan);
        run.play();
        let (outcome, memory) = run.finish();
        self.memory = memory;
        outcome
    }

    /// The wait of each read that the last run replayed, in the order of [`Boot::reads`]; empty before the first run.
    #[must_use]
    pub fn waits(&self) -> &[Nanos] {
        &self.memory.waits
    }
}

struct Run<'a, 'g> {
    boot: &'a Boot,
    guide: Option<&'g mut dyn Guide>,
    model: &'a Model,
    reads: &'a [BootAccess],
    engine: Engine,
    local: Local,
    wire: Wire<Flight>,
    memory: Memory,
    now: Nanos,
    wake: Nanos,
    local_read: Nanos,
    arrived: usize,
    waiting: usize,
    /// `true` if reads of awaited blocks follow their leaders.
    follow: bool,
    /// The answer that is being handled, if it came last.
    answer: Option<Answer<Flight>>,
    /// Of fetches that failed: the time of the first request.
    failed: BTreeMap<FetchId, Nanos>,
    /// Of streams: the number of bytes that have come.
    told: BTreeMap<FetchId, u64>,
    error: Arc<Error>,
    moved: u64,
    accuracy: Accuracy,
    outcome: BootOutcome,
}

impl<'a, 'g> Run<'a, 'g> {
    fn new(boot: &'a Boot, guide: Option<&'g mut dyn Guide>, model: &'a Model, mut memory: Memory) -> Self {
        let layout = model.layout(boot.disk_size());
        let reads = &boot.reads()[..boot.reads().len().min(model.reads_max)];
        let blocks = to_usize(boot.disk_size().div_ceil(BLOCK_SIZE));
        let follow = !model.report_all && model.one_stream;
        memory.waits.clear();
        memory.waits.resize(reads.len(), Nanos(0));
        memory.blocks.clear();
        memory.blocks.resize(blocks, 0);
        if follow {
            memory.leaders.clear();
            memory.leaders.resize(blocks, NOBODY);
            memory.followers.clear();
            memory.followers.resize(reads.len(), NOBODY);
        }
        memory.replayed.begin(boot, model.clock, model.reads_max, model.writes);
        let outcome = BootOutcome { reads: reads.len() as u64, ..BootOutcome::default() };
        Self {
            engine: Engine::new(model.settings()),
            local: match &memory.image {
                Some(image) => Local::opened(image, std::mem::take(&mut memory.bits)),
                None => Local::none(layout, std::mem::take(&mut memory.bits)),
            },
            wire: Wire::new(model.link.clone(), model.seed),
            now: Nanos(0),
            local_read: Nanos::from_duration(model.local_read),
            wake: Nanos::NEVER,
            arrived: 0,
            waiting: 0,
            answer: None,
            failed: BTreeMap::new(),
            told: BTreeMap::new(),
            error: Arc::new(Error::new(ErrorKind::Unavailable, "the store does not answer")),
            moved: 0,
            accuracy: Accuracy::default(),
            boot,
            guide,
            model,
            reads,
            memory,
            follow,
            outcome,
        }
    }

    /// Begins at the creation: the engine gets its plan.
    fn begin(&mut self, plan: &Plan) {
        self.follow_plan(plan);
        if let Some(rate) = self.model.fill_rate {
            self.notify(EngineEvent::FillRate(Some(rate)));
        }
    }

    fn follow_plan(&mut self, plan: &Plan) {
        let plan = match (plan, self.model.preloads) {
            (Plan::List(items), PreloadUnit::Blocks) if items.iter().any(|item| item.mask != u32::MAX) => {
                Plan::List(items.iter().map(|item| PlanItem::whole(item.block)).collect())
            }
            _ => plan.clone(),
        };
        self.notify(EngineEvent::PlanChanged(plan));
    }

    /// Runs until every read is complete.
    fn play(&mut self) {
        while self.arrived < self.reads.len() || self.waiting > 0 {
            let due = self.wire.next().min(self.wake);
            if let Some(read) = self.arrival_before(due) {
                self.arrive(read);
            } else if due == Nanos::NEVER {
                // Nothing happens any more, or not before the end of time. Were nothing on the wire, and no read still
                // to come, the engine would have forgotten a read.
                debug_assert!(
                    !self.wire.is_empty() || self.waiting == 0,
                    "{} reads are never answered",
                    self.waiting
                );
                return;
            } else if self.wire.next() <= self.wake {
                self.receive();
            } else {
                self.now = self.now.max(self.wake);
                self.wake = Nanos::NEVER;
                self.notify(EngineEvent::Tick);
            }
        }
    }

    /// Takes the next read if it arrives before `due`, and sets the clock to its arrival.
    fn arrival_before(&mut self, due: Nanos) -> Option<u32> {
        let (at, read) = self.memory.replayed.read_before(self.boot, due)?;
        self.now = self.now.max(at);
        Some(read)
    }

    /// Does the writes that are due by now.
    fn write(&mut self) {
        while let Some(range) = self.memory.replayed.write_before(self.boot, self.now) {
            self.local.write(range);
        }
    }

    fn arrive(&mut self, read: u32) {
        self.write();
        let range = self.reads[read as usize].range;
        let hit = self.local.is_local(range);
        self.note_blocks(range, hit);
        self.arrived += 1;
        if self.arrived == self.reads.len() {
            self.outcome.accuracy = self.accuracy;
            self.outcome.bytes_before_last_read = self.moved;
        }
        if hit {
            self.outcome.hits += 1;
            self.memory.waits[read as usize] = self.local_read;
            self.outcome.waited = self.outcome.waited.plus(self.local_read);
            self.completed(read);
        } else {
            self.miss(read, range);
        }
        let (now, engine) = (self.now, &self.engine);
        if let Some(plan) = self.guide.as_mut().and_then(|guide| guide.on_read(now, range, engine)) {
            self.follow_plan(&plan);
        }
    }

    fn miss(&mut self, read: u32, range: ByteRange) {
        self.waiting += 1;
        // Its arrival, until its wait is known.
        self.memory.waits[read as usize] = self.now;
        if self.follow && self.has_leader(read, range) {
            return;
        }
        let id = ReadId(u64::from(read));
        match self.model.misses {
            MissPolicy::Blocks => {
                let end = range.end().div_ceil(BLOCK_SIZE).saturating_mul(BLOCK_SIZE);
                let start = range.offset() / BLOCK_SIZE * BLOCK_SIZE;
                let blocks = ByteRange::between(start, end.min(self.boot.disk_size()));
                self.notify(EngineEvent::Read { read: id, ranges: &[blocks] });
            }
            MissPolicy::Own(_) => {
                let mut parts = std::mem::take(&mut self.memory.parts);
                self.local.unwritten(range, |part| parts.push(part));
                self.notify(EngineEvent::Read { read: id, ranges: &parts });
                parts.clear();
                self.memory.parts = parts;
            }
        }
    }

    /// Makes `read` follow the read that waits for its block; `false` if it is the first, and has to be told.
    fn has_leader(&mut self, read: u32, range: ByteRange) -> bool {
        let Some(leader) = one_block(range).and_then(|block| self.memory.leaders.get_mut(block)) else {
            return false;
        };
        if *leader == NOBODY {
            *leader = read;
            return false;
        }
        let first = &mut self.memory.followers[*leader as usize];
        let second = std::mem::replace(first, read);
        self.memory.followers[read as usize] = second;
        true
    }

    /// Notes that a read touched its blocks, and which of them it found local.
    fn note_blocks(&mut self, range: ByteRange, hit: bool) {
        for block in range.offset() / BLOCK_SIZE..range.end().div_ceil(BLOCK_SIZE) {
            let place = to_usize(block);
            let Some(known) = self.memory.blocks.get_mut(place).filter(|known| **known & FOUND == 0) else {
                continue;
            };
            if *known & (READ | PRELOADED) == PRELOADED {
                self.accuracy.read += 1;
            }
            *known |= READ;
            let start = block * BLOCK_SIZE;
            // Of a block that was only written no byte was pulled that a read could find.
            if *known & PULLED != 0
                && (hit
                    || self.local.is_local(range.intersect(ByteRange::between(start, start + BLOCK_SIZE))))
            {
                *known |= FOUND;
                self.accuracy.found += 1;
            }
        }
    }

    /// Takes an answer.
    fn receive(&mut self) {
        let next = self.wire.next();
        let mut answer = match self.wire.pop() {
            Some(Came::All(answer)) => answer,
            Some(Came::Part(flight, bytes)) => {
                self.now = self.now.max(next);
                return self.receive_part(flight, bytes);
            }
            None => return,
        };
        let Flight { fetch, range, priority } = answer.what;
        self.now = self.now.max(answer.end);
        if answer.failed {
            self.outcome.failures += 1;
            self.failed.entry(fetch).or_insert(answer.asked);
            let error = Arc::clone(&self.error);
            self.answered(EngineEvent::Fetched {
                fetch,
                outcome: Fetched::Failed { retry: true, corrupt: false, error },
            });
            return;
        }
        // The time since the first request counts as the store's.
        answer.asked = self.failed.remove(&fetch).unwrap_or(answer.asked);
        let told = self.told.remove(&fetch).unwrap_or(0);
        self.moved += answer.bytes.saturating_sub(told);
        self.insert(range, priority);
        self.answer = Some(answer);
        self.answered(EngineEvent::Fetched { fetch, outcome: Fetched::Done });
        self.answer = None;
    }

    /// Takes the next part of a stream: `bytes` of it have come in all.
    fn receive_part(&mut self, flight: Flight, bytes: u64) {
        let Flight { fetch, range, priority } = flight;
        let upto = range.range.offset().saturating_add(bytes);
        let told = self.told.insert(fetch, bytes).unwrap_or(0);
        self.moved += bytes.saturating_sub(told);
        self.insert(BlobRange::between(range.blob, range.range.offset(), upto), priority);
        self.answered(EngineEvent::Progress { fetch, upto });
    }

    /// Makes the range that has come local.
    fn insert(&mut self, range: BlobRange, priority: Priority) {
        self.local.insert(range);
        let (blocks, accuracy) = (&mut self.memory.blocks, &mut self.accuracy);
        self.local.blocks_of(range, &mut |block| {
            let place = to_usize(block);
            let Some(known) = blocks.get_mut(place).filter(|known| **known & PULLED == 0) else { return };
            *known |= PULLED;
            accuracy.pulled += 1;
            if priority == Priority::Preload {
                *known |= PRELOADED;
                accuracy.preloaded += 1;
                accuracy.read += u64::from(*known & READ != 0);
            }
        });
    }

    fn answered(&mut self, event: EngineEvent<'_>) {
        self.notify(event);
        let (now, engine) = (self.now, &self.engine);
        if let Some(plan) = self.guide.as_mut().and_then(|guide| guide.on_answer(now, engine)) {
            self.follow_plan(&plan);
        }
    }

    /// Tells the engine of `event`, and does what it asks for.
    fn notify(&mut self, event: EngineEvent<'_>) {
        let mut actions = std::mem::take(&mut self.memory.actions);
        self.engine.on_event(self.now.engine_time(), event, &self.local, &mut actions);
        for action in actions.drain(..) {
            match action {
                EngineAction::Fetch { fetch, range, priority, stream, .. } => {
                    self.wire.ask(self.now, Flight { fetch, range, priority }, range.len(), stream);
                }
                EngineAction::Cancel { fetch } => {
                    self.wire.cancel(self.now, |flight| flight.fetch == fetch);
                }
                EngineAction::Hold { fetch } => {
                    self.wire.hold(self.now, true, |flight| flight.fetch == fetch);
                }
                EngineAction::Resume { fetch } => {
                    self.wire.hold(self.now, false, |flight| flight.fetch == fetch);
                }
                // Nothing overtakes anything on its link.
                EngineAction::Promote { .. } => {}
                EngineAction::Complete { read } | EngineAction::Fail { read, .. } => self.ended(read),
                EngineAction::WakeAt(time) => self.wake = Nanos::of_engine(time).max(self.now),
            }
        }
        self.memory.actions = actions;
    }

    /// Completes a read that waited, and those that follow it.
    fn ended(&mut self, read: ReadId) {
        let Ok(leader) = u32::try_from(read.0) else { return };
        let mut next = leader;
        if self.follow {
            let block = one_block(self.reads[leader as usize].range);
            let known = block.and_then(|block| self.memory.leaders.get_mut(block));
            if let Some(known) = known.filter(|known| **known == leader) {
                *known = NOBODY;
            }
        }
        while next != NOBODY {
            self.waited(next);
            self.completed(next);
            next = if self.follow { self.memory.followers[next as usize] } else { NOBODY };
        }
    }

    /// Takes note of the wait that ends now.
    fn waited(&mut self, read: u32) {
        let waited = &mut self.memory.waits[read as usize];
        let arrived = std::mem::replace(waited, self.now.since(*waited).plus(self.local_read));
        self.waiting -= 1;
        self.outcome.waited = self.outcome.waited.plus(*waited);
        if *waited > SLOW {
            let slow = &mut self.outcome.slow;
            *match self.answer.map(|answer| cause(arrived, &answer)) {
                Some(Cause::Miss) => &mut slow.miss,
                Some(Cause::Store) => &mut slow.store,
                Some(Cause::Queue) | None => &mut slow.queue,
            } += 1;
        }
    }

    fn completed(&mut self, read: u32) {
        let answered = self.now.plus(self.local_read);
        self.outcome.last_read = self.outcome.last_read.max(answered);
        self.memory.replayed.answered(self.boot, answered, read);
    }

    fn finish(mut self) -> (BootOutcome, Memory) {
        let counters = self.engine.counters();
        self.outcome.bytes =
            Bytes { miss: counters.miss_bytes, preload: counters.preload_bytes, fill: counters.fill_bytes };
        self.memory.bits = self.local.into_memory();
        (self.outcome, self.memory)
    }
}

/// The block that contains all of `range`.
fn one_block(range: ByteRange) -> Option<usize> {
    let block = range.offset() / BLOCK_SIZE;
    (range.end() <= (block + 1).saturating_mul(BLOCK_SIZE)).then(|| usize::try_from(block).ok())?
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Miss,
    Queue,
    Store,
}

/// The cause of most of a wait that began at `arrived` and ended with `answer`.
fn cause(arrived: Nanos, answer: &Answer<Flight>) -> Cause {
    let from = |moment: Nanos| moment.max(arrived);
    let store = answer.ready.since(from(answer.asked));
    let queue = answer.asked.since(arrived).plus(answer.start.since(from(answer.ready)));
    let miss = answer.end.since(from(answer.start));
    match [(miss, Cause::Miss), (queue, Cause::Queue), (store, Cause::Store)]
        .iter()
        .max_by_key(|(took, _)| *took)
    {
        Some((_, cause)) => *cause,
        None => Cause::Miss,
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
