//! Disks: a guest that reads, and the engine that pulls missing bytes.
//!
//! A read all of whose bytes are local is a hit: it takes no event. So a disk whose reads are all local, and known to
//! be read, runs ahead of the others, up to its first miss: until then no other disk can see its effects.

use super::deliveries::Owner;
use super::model::DiskModel;
use super::outcome::DiskOutcome;
use super::queue::Happening;
use super::{Fleet, Way};
use crate::slab::NONE;
use headstart_block::{ByteRange, Plan};
use headstart_pull::{
    BlobRange, BlobView, Engine, EngineAction, EngineEvent, FetchId, FetchOutcome as Fetched, Priority,
    ReadId,
};
use headstart_replay::boot::Guest;
use headstart_replay::model::ReplayClock;
use headstart_replay::time::Nanos;
use headstart_replay::world::Written;
use headstart_swarm::{self as swarm, Urgency};

/// A disk.
#[derive(Debug)]
pub(super) struct Disk {
    host: u32,
    /// The time of its attachment after the beginning of the fleet, or of all broadcasts.
    pub(super) at: Nanos,
    boot: u32,
    /// The time at which it was attached; [`Nanos::NEVER`] before.
    attached: Nanos,
    /// Made at the first miss, or the first preload.
    engine: Option<Box<Engine>>,
    guest: Guest,
    written: Written,
    /// Reads that wait, and the start of each wait.
    waiting: Vec<(u32, Nanos)>,
    /// Fetches under way, and the delivery of each.
    fetches: Vec<(FetchId, u32)>,
    wake: Nanos,
    wake_entered: Nanos,
    /// A read that was taken from the guest before its time.
    taken: Option<(Nanos, u32)>,
    read_entered: Nanos,
    left: usize,
    outcome: DiskOutcome,
}

impl Disk {
    pub(super) fn new(model: &DiskModel, after: Nanos) -> Self {
        Self {
            host: model.host,
            at: model.at.plus(after),
            boot: model.boot,
            attached: Nanos::NEVER,
            engine: None,
            guest: Guest::default(),
            written: Written::default(),
            waiting: Vec::new(),
            fetches: Vec::new(),
            wake: Nanos::NEVER,
            wake_entered: Nanos::NEVER,
            taken: None,
            read_entered: Nanos::NEVER,
            left: 0,
            outcome: DiskOutcome {
                host: model.host,
                attached: model.at.plus(after),
                completed: Nanos::NEVER,
                ..DiskOutcome::default()
            },
        }
    }

    pub(super) fn outcome(&self) -> DiskOutcome {
        self.outcome
    }

    pub(super) fn is_of(&self, host: u32) -> bool {
        self.host == host
    }

    /// `true` if it has the image open.
    pub(super) fn is_attached(&self) -> bool {
        self.attached < Nanos::NEVER
    }

    /// `true` if some of its reads are not complete.
    pub(super) fn is_reading(&self) -> bool {
        self.outcome.completed == Nanos::NEVER
    }
}

impl Fleet<'_> {
    pub(super) fn attach(&mut self, n: u32) {
        let disk = &self.disks[n as usize];
        let (host, at) = (disk.host, disk.at);
        if !self.hosts[host as usize].alive || disk.attached < Nanos::NEVER {
            return;
        }
        self.open(host);
        self.read_by(host);
        if at > self.now {
            return self.agenda.enter(at, Happening::Attach(n));
        }
        let Some(boot) = self.workload.boots.get(self.disks[n as usize].boot as usize) else { return };
        let disk = &mut self.disks[n as usize];
        disk.attached = self.now;
        disk.guest.begin(boot, ReplayClock::Closed, usize::MAX, true);
        disk.left = disk.guest.reads();
        if disk.left == 0 {
            disk.outcome.completed = self.now;
            self.reading -= 1;
        }
        if self.workload.plan != Plan::Lazy && !matches!(self.model.way, Way::Broadcast(_) | Way::Local) {
            self.follow_plan(n, host);
        }
        self.hints_join(n, host);
        self.look_ahead(n);
    }

    fn follow_plan(&mut self, n: u32, host: u32) {
        for (blob, _) in (0..).zip(self.first_chunk.clone().windows(2)) {
            self.notify_node(host, swarm::Event::Planned { blob: swarm::BlobId(blob), running: true });
        }
        self.follow(n, self.workload.plan.clone());
    }

    /// Gives a disk another plan.
    pub(super) fn follow(&mut self, n: u32, plan: Plan) {
        self.notify_engine(n, EngineEvent::PlanChanged(plan));
    }

    /// Enters the time of the next read.
    fn look_ahead(&mut self, n: u32) {
        let disk = &mut self.disks[n as usize];
        let Some(boot) = self.workload.boots.get(disk.boot as usize) else { return };
        let next = match disk.taken {
            Some((at, _)) => Some(at),
            None => disk.guest.next_read_at(boot).map(|at| disk.attached.plus(at)),
        };
        if let Some(at) = next.map(|at| at.max(self.now)).filter(|at| *at < disk.read_entered) {
            disk.read_entered = at;
            self.agenda.enter(at, Happening::Read(n));
        }
    }

    /// Takes the reads that are due.
    pub(super) fn read(&mut self, n: u32) {
        if self.disks[n as usize].read_entered != self.now
            || !self.hosts[self.disks[n as usize].host as usize].alive
        {
            return;
        }
        self.disks[n as usize].read_entered = Nanos::NEVER;
        while let Some((at, read)) = self.next_read(n) {
            let ahead = at > self.now;
            if ahead && !self.disks[n as usize].waiting.is_empty() {
                self.disks[n as usize].taken = Some((at, read));
                break;
            }
            if !self.arrive(n, at.max(self.now), read, ahead) {
                self.disks[n as usize].taken = Some((at, read));
                break;
            }
        }
        self.look_ahead(n);
    }

    fn next_read(&mut self, n: u32) -> Option<(Nanos, u32)> {
        let disk = &mut self.disks[n as usize];
        if let Some(taken) = disk.taken.take() {
            return Some(taken);
        }
        let boot = self.workload.boots.get(disk.boot as usize)?;
        let (at, read) = disk.guest.read_before(boot, Nanos::NEVER)?;
        Some((disk.attached.plus(at), read))
    }

    /// Takes a read that arrives, perhaps `ahead` of time; `false` if it cannot arrive yet.
    fn arrive(&mut self, n: u32, at: Nanos, read: u32, ahead: bool) -> bool {
        let disk = &mut self.disks[n as usize];
        let Some(boot) = self.workload.boots.get(disk.boot as usize) else { return true };
        let Some(range) = boot.reads().get(read as usize).map(|read| read.range) else { return true };
        while let Some(range) = disk.guest.write_before(boot, at.since(disk.attached)) {
            disk.written.write(range);
        }
        let host = &mut self.hosts[disk.host as usize];
        let (mut hit, mut news) = (true, Vec::new());
        let mut parts = Vec::new();
        disk.written.unwritten(range, |part| parts.push(part));
        let known = (&self.first_chunk, &host.read);
        for part in &parts {
            host.local.ranges(*part, &mut |range| {
                hit &= host.local.touched(range).all(|unit| host.local.has_unit(range.blob, unit));
                unread(known, range, &mut |chunk| news.push((range.blob.0, chunk)));
            });
        }
        let (disk_host, at_disk) = (disk.host, at.since(disk.attached));
        if ahead && (!(hit && news.is_empty()) || self.hints_want(n, range)) {
            return false;
        }
        self.hints_note(n, disk_host, range, at_disk);
        let disk = &mut self.disks[n as usize];
        disk.outcome.reads += 1;
        disk.outcome.bytes += range.len();
        if hit {
            disk.outcome.hits += 1;
            let wait = Nanos::from_duration(self.model.local_read);
            self.complete(n, at, wait, read);
        } else {
            disk.waiting.push((read, at));
            self.miss(n, read, &parts);
        }
        self.note_reads(disk_host, &news);
        true
    }

    fn miss(&mut self, n: u32, read: u32, parts: &[ByteRange]) {
        self.notify_engine(n, EngineEvent::Read { read: ReadId(u64::from(read)), ranges: parts });
    }

    /// Completes a read that waited `wait` up to `at`.
    fn complete(&mut self, n: u32, at: Nanos, wait: Nanos, read: u32) {
        let disk = &mut self.disks[n as usize];
        let Some(boot) = self.workload.boots.get(disk.boot as usize) else { return };
        let answered = at.plus(Nanos::from_duration(self.model.local_read));
        self.waits.add(wait);
        disk.outcome.waited = disk.outcome.waited.plus(wait);
        disk.outcome.longest = disk.outcome.longest.max(wait);
        disk.guest.answered(boot, answered.since(disk.attached), read);
        disk.left = disk.left.saturating_sub(1);
        if disk.left == 0 {
            disk.outcome.completed = answered;
            self.reading -= 1;
            let host = disk.host;
            self.hints_booted(host);
        }
    }

    /// Notes chunks that were read for the first time on a host.
    fn note_reads(&mut self, n: u32, news: &[(u32, u32)]) {
        let host = &mut self.hosts[n as usize];
        for (blob, chunk) in news {
            let bit = self.first_chunk.get(*blob as usize).map_or(NONE, |first| first + chunk);
            if let Some(word) = host.read.get_mut(bit as usize / 64) {
                *word |= 1 << (bit % 64);
            }
            match host.news.last_mut() {
                Some((last, run)) if last == blob && run.numbers().end == *chunk => run.count += 1,
                _ => host.news.push((*blob, swarm::Chunks::one(*chunk))),
            }
        }
        let Way::Swarm(swarm) = &self.model.way else { return };
        if !host.news.is_empty() && !host.is_reporting {
            host.is_reporting = true;
            self.agenda
                .enter(self.now.plus(Nanos::from_duration(swarm.report_every)), Happening::ReportReads(n));
        }
    }

    /// Tells the node which chunks its disks read.
    pub(super) fn report_reads(&mut self, host: u32) {
        let known = &mut self.hosts[host as usize];
        known.is_reporting = false;
        for (blob, chunks) in std::mem::take(&mut known.news) {
            self.notify_node(host, swarm::Event::Read { blob: swarm::BlobId(blob), chunks });
        }
    }

    pub(super) fn tick(&mut self, n: u32) {
        let disk = &mut self.disks[n as usize];
        if disk.wake_entered != self.now || !self.hosts[disk.host as usize].alive {
            return;
        }
        disk.wake_entered = Nanos::NEVER;
        if disk.wake <= self.now {
            disk.wake = Nanos::NEVER;
            self.notify_engine(n, EngineEvent::Tick);
        } else if disk.wake < Nanos::NEVER {
            disk.wake_entered = disk.wake;
            self.agenda.enter(disk.wake, Happening::Tick(n));
        }
    }

    /// Ends a fetch.
    pub(super) fn fetched(&mut self, n: u32, fetch: FetchId, outcome: Fetched) {
        let disk = &mut self.disks[n as usize];
        disk.fetches.retain(|(known, _)| *known != fetch);
        if self.hosts[disk.host as usize].alive {
            self.notify_engine(n, EngineEvent::Fetched { fetch, outcome });
            self.look_ahead(n);
        }
    }

    /// Tells a disk's engine of `event`, and does what it asks for.
    fn notify_engine(&mut self, n: u32, event: EngineEvent<'_>) {
        let disk = &mut self.disks[n as usize];
        let seed = self.model.engine.seed ^ u64::from(n);
        let settings = || headstart_pull::EngineSettings { seed, ..self.model.engine.clone() };
        let engine = disk.engine.get_or_insert_with(|| Box::new(Engine::new(settings())));
        let mut actions = std::mem::take(&mut self.engine_actions);
        let host = disk.host;
        engine.on_event(self.now.engine_time(), event, &self.hosts[host as usize].local, &mut actions);
        for action in actions.drain(..) {
            match action {
                EngineAction::Fetch { fetch, range, priority, .. } => self.fetch(n, fetch, range, priority),
                EngineAction::Cancel { fetch } => {
                    let fetches = &mut self.disks[n as usize].fetches;
                    if let Some(place) = fetches.iter().position(|(known, _)| *known == fetch) {
                        let (_, delivery) = fetches.swap_remove(place);
                        self.cancel(delivery);
                    }
                }
                EngineAction::Complete { read } => self.ended(n, read),
                EngineAction::Fail { read, .. } => {
                    self.disks[n as usize].outcome.failed += 1;
                    self.ended(n, read);
                }
                EngineAction::WakeAt(time) => {
                    let disk = &mut self.disks[n as usize];
                    disk.wake = Nanos::of_engine(time).max(self.now);
                    if disk.wake < disk.wake_entered {
                        disk.wake_entered = disk.wake;
                        self.agenda.enter(disk.wake, Happening::Tick(n));
                    }
                }
                EngineAction::Promote { fetch, upto } => {
                    let fetches = &self.disks[n as usize].fetches;
                    let delivery =
                        fetches.iter().find(|(known, _)| *known == fetch).map(|(_, number)| *number);
                    delivery.into_iter().for_each(|number| self.promote(number, upto));
                }
                // Nothing is streamed.
                EngineAction::Hold { .. } | EngineAction::Resume { .. } => {}
            }
        }
        self.engine_actions = actions;
    }

    fn fetch(&mut self, n: u32, fetch: FetchId, range: BlobRange, priority: Priority) {
        let urgency = if priority == Priority::Miss { Urgency::Demand } else { Urgency::Background };
        let delivery = self.bring(self.disks[n as usize].host, Owner::Disk(n, fetch), range, urgency);
        self.disks[n as usize].fetches.push((fetch, delivery));
    }

    /// Completes a read that waited.
    fn ended(&mut self, n: u32, read: ReadId) {
        let disk = &mut self.disks[n as usize];
        let Some(place) = disk.waiting.iter().position(|(waits, _)| u64::from(*waits) == read.0) else {
            return;
        };
        let (read, since) = disk.waiting.swap_remove(place);
        let wait = self.now.since(since).plus(Nanos::from_duration(self.model.local_read));
        self.complete(n, self.now, wait, read);
        self.look_ahead(n);
    }
}

/// The chunks of a range that were not read before.
fn unread((first, read): (&Vec<u32>, &Vec<u64>), range: BlobRange, each: &mut dyn FnMut(u32)) {
    if read.is_empty() {
        return;
    }
    let first = first.get(range.blob.0 as usize).copied().unwrap_or(NONE);
    for chunk in swarm::Chunks::touched(range.range).numbers() {
        let bit = first.saturating_add(chunk);
        if read.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 0) {
            each(chunk);
        }
    }
}
