//! One host in virtual time: vSSDs that VMs drive in closed loops, on channels that the product's schedulers schedule.
//!
//! Everything that decides is the product's: [`Vssd`] decides on reads, programs, copies and erasures,
//! [`ChannelSchedulers`] on the start and end of each operation. The rest is the host's work between them:
//! * a *read* is one operation per page that it touches, all at once;
//! * a *write* locks its pages; of a page that it writes in part it reads the rest first; then it places, programs and
//!   commits. Pages of a flash block are programmed in order, because its die does its queue in order;
//! * the *collector* runs while the vSSD is short of room or a write waits for it, a fixed number of steps at a time;
//! * the *journal* makes changes durable after [`JOURNAL`], on a device of its own;
//! * a request costs the host [`HOST`] besides.
//!
//! No bytes are moved. Time is `Duration` since the machine began.

use super::load::{Io, Load};
use super::tally::{Finished, Tally};
use crate::slab::Slab;
use headstart_block::{Error, Result, exact};
use headstart_flash::device::timing::{FlashOp, Speeds, Work};
use headstart_flash::device::{FlashBlock, Geometry};
use headstart_flash::scheduler::{ChannelSchedulers, Class, Done, SchedulerSettings, Speed, Ticket};
use headstart_flash::vssd::{CollectStep, Effort, Place, Placement, Vssd};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The cost of a request beside flash: a VM's exit, a thread's wake-up.
const HOST: Duration = Duration::from_micros(10);
/// The time until a record of the journal is durable: the longest that a lease may take.
const JOURNAL: Duration = Duration::from_millis(2);
/// Steps of the collector at a time, for each channel: two for each die.
const STEPS: usize = 8;
/// Erasures of a channel's reclaim that wait in its lane at a time: one for each die.
const ERASURES: usize = 4;

/// The purpose of an operation.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// Part of a read.
    Read {
        vm: usize,
        request: u32,
    },
    /// The read of the rest of a page that is written in part.
    Rest {
        vm: usize,
        write: u32,
    },
    /// The program of the first page of a block's queue.
    Program {
        vm: usize,
        block: FlashBlock,
    },
    /// The copy that goes to this page.
    Copy {
        vm: usize,
        block: FlashBlock,
        at: u32,
    },
    Erase {
        vm: usize,
        block: FlashBlock,
    },
    Reclaim {
        block: FlashBlock,
    },
}

/// An event with a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A thread asks for its next request.
    Ask { vm: usize, thread: usize },
    /// A thread issues its request.
    Issue { vm: usize, thread: usize, io: Io },
    /// The journal is durable.
    Durable { vm: usize, up_to: u64 },
}

#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    thread: usize,
    io: Io,
    issued: Duration,
    /// The number of operations and page writes to go.
    left: u32,
}

/// A page that is written.
#[derive(Clone, Copy, Debug)]
struct PageWrite {
    request: u32,
    page: u32,
    /// The number of its bytes that stay.
    rest: u32,
}

/// A page that is programmed when its turn comes.
#[derive(Debug)]
struct Queued {
    placement: Placement,
    /// The write that waits for it; `None` for the collector.
    write: Option<u32>,
    ready: bool,
    running: bool,
}

/// A virtual machine with its disk.
pub(super) struct Vm {
    pub(super) vssd: Vssd,
    pub(super) tally: Tally,
    /// Flash blocks that were ever written.
    pub(super) written: BTreeSet<FlashBlock>,
    classes: [Class; 2],
    load: Box<dyn Load>,
    requests: Slab<PendingRequest>,
    writes: Slab<PageWrite>,
    /// Pages that are being written, and the writes that wait for them.
    locks: BTreeMap<u32, VecDeque<u32>>,
    queues: BTreeMap<FlashBlock, VecDeque<Queued>>,
    /// Writes that were not placed for lack of room.
    stalled: VecDeque<u32>,
    /// The number of the collector's steps under way, the most of them, and `true` while the journal is written.
    steps: usize,
    depth: usize,
    syncing: bool,
}

impl Vm {
    /// A VM that uses `channels` channels.
    pub(super) fn new(vssd: Vssd, regular: bool, channels: usize, load: Box<dyn Load>) -> Self {
        let classes = match regular {
            true => [Class::Regular, Class::RegularCollect],
            false => [Class::Harvest, Class::HarvestCollect],
        };
        let written = (0..vssd.pages()).filter_map(|page| vssd.locate(page).ok()?.map(|(block, _)| block));
        Self {
            written: written.collect(),
            vssd,
            tally: Tally::default(),
            classes,
            load,
            requests: Slab::default(),
            writes: Slab::default(),
            locks: BTreeMap::new(),
            queues: BTreeMap::new(),
            stalled: VecDeque::new(),
            steps: 0,
            depth: channels * STEPS,
            syncing: false,
        }
    }
}

/// The reclaim of a channel.
#[derive(Debug, Default)]
struct Reclaim {
    blocks: VecDeque<FlashBlock>,
    in_flight: usize,
    ended: Duration,
}

/// The host.
pub(super) struct Machine {
    pub(super) vms: Vec<Vm>,
    geometry: Geometry,
    schedulers: ChannelSchedulers,
    now: Duration,
    uses: Slab<Use>,
    /// By time; those of a moment in the order of entry.
    timers: BTreeMap<(Duration, u64), Timer>,
    /// The number of the next timer.
    count: u64,
    wear: Vec<u32>,
    reclaims: BTreeMap<u16, Reclaim>,
    fault: Option<Error>,
}

impl Machine {
    /// A host with new emulated flash.
    pub(super) fn new(geometry: Geometry, settings: SchedulerSettings) -> Self {
        let schedulers = ChannelSchedulers::new(&geometry, Speed::Emulated(Speeds::default()), settings);
        let blocks = geometry.total_blocks() as usize;
        Self {
            vms: Vec::new(),
            geometry,
            schedulers,
            now: Duration::ZERO,
            uses: Slab::default(),
            timers: BTreeMap::new(),
            count: 0,
            wear: vec![0; blocks],
            reclaims: BTreeMap::new(),
            fault: None,
        }
    }

    /// Adds a VM with its home channels.
    pub(super) fn add(&mut self, vm: Vm, home: impl Iterator<Item = u16>) -> usize {
        self.vms.push(vm);
        let number = exact(self.vms.len(), "there are few VMs");
        home.for_each(|channel| self.schedulers.set_owner(channel, number));
        self.vms.len() - 1
    }

    /// Starts the threads of a VM, a microsecond after one another.
    pub(super) fn start(&mut self, vm: usize) {
        for thread in 0..self.vms[vm].load.threads() {
            let after = Duration::from_micros(thread as u64);
            self.at(self.now + after, Timer::Ask { vm, thread });
        }
    }

    /// The present time.
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// Gives a VM's disk harvested blocks.
    ///
    /// # Errors
    /// If it has them already.
    pub(super) fn attach(&mut self, vm: usize, blocks: &[(FlashBlock, u32)]) -> Result<()> {
        self.vms[vm].vssd.add_slot(1, blocks).map(drop)
    }

    /// The time for which regular operations of a VM waited for harvest ones, in all; the second number is for
    /// erasures.
    pub(super) fn spent(&self, vm: usize) -> [Duration; 2] {
        let home = exact(vm + 1, "there are few VMs");
        self.schedulers.budget(home).map(headstart_flash::scheduler::Budget::spent).unwrap_or_default()
    }

    /// Erases blocks of reclaimed gSSDs, channels in parallel.
    pub(super) fn reclaim(&mut self, blocks: impl IntoIterator<Item = FlashBlock>) {
        for block in blocks {
            self.reclaims.entry(self.geometry.channel(block)).or_default().blocks.push_back(block);
        }
        let channels: Vec<_> = self.reclaims.keys().copied().collect();
        channels.into_iter().for_each(|channel| self.reclaim_more(channel));
    }

    /// The time at which the last reclaimed block was erased; `None` while some are left.
    pub(super) fn reclaimed(&self) -> Option<Duration> {
        let done = self.reclaims.values().all(|it| it.blocks.is_empty() && it.in_flight == 0);
        done.then(|| self.reclaims.values().map(|it| it.ended).max().unwrap_or_default())
    }

    /// Reclaimed blocks that were not erased yet.
    pub(super) fn left(&self) -> u64 {
        self.reclaims.values().map(|it| (it.blocks.len() + it.in_flight) as u64).sum()
    }

    /// The number of erasures of a block.
    pub(super) fn wear_of(&self, block: FlashBlock) -> u32 {
        usize::try_from(block.0).ok().and_then(|index| self.wear.get(index)).copied().unwrap_or(0)
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// If a vSSD has no room, or contradicts itself.
    pub(super) fn run(&mut self, until: Duration) -> Result<()> {
        let mut done = Vec::new();
        loop {
            let timer = self.timers.first_key_value().map(|((at, _), _)| *at);
            let next = [timer, self.schedulers.next()].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            while let Some(timer) = self.due(next) {
                self.ring(timer);
            }
            self.schedulers.advance(self.now, &mut done);
            for Done { ticket, .. } in done.drain(..) {
                let number = exact(ticket.0, "it is the number of a use");
                if let Some(purpose) = self.uses.take(number) {
                    self.done(purpose);
                }
            }
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
        }
        self.now = until;
        Ok(())
    }

    /// The next timer that is due by then.
    fn due(&mut self, by: Duration) -> Option<Timer> {
        let due = self.timers.first_key_value().filter(|((at, _), _)| *at <= by)?;
        let key = *due.0;
        self.timers.remove(&key)
    }

    fn at(&mut self, at: Duration, timer: Timer) {
        self.count += 1;
        self.timers.insert((at, self.count), timer);
    }

    fn submit(&mut self, class: Class, block: FlashBlock, work: Work, purpose: Use) {
        let ticket = Ticket(self.uses.insert(purpose).into());
        let op = FlashOp { die: self.geometry.die(block), work };
        self.schedulers.submit(self.now, self.geometry.channel(block), ticket, class, op);
    }

    fn ring(&mut self, timer: Timer) {
        match timer {
            Timer::Ask { vm, thread } => {
                let (pause, io) = self.vms[vm].load.next(thread, self.now);
                self.at(self.now + pause + HOST, Timer::Issue { vm, thread, io });
            }
            Timer::Issue { vm, thread, io } => self.issue(vm, thread, io),
            Timer::Durable { vm, up_to } => {
                self.vms[vm].vssd.durable(up_to);
                self.vms[vm].syncing = false;
                self.go_on(vm);
            }
        }
    }

    fn done(&mut self, purpose: Use) {
        match purpose {
            Use::Read { vm, request } => self.part_done(vm, request),
            Use::Rest { vm, write } => self.place(vm, write),
            Use::Program { vm, block } => self.programmed(vm, block),
            Use::Copy { vm, block, at } => {
                let queue = self.vms[vm].queues.entry(block).or_default();
                if let Some(queued) = queue.iter_mut().find(|it| it.placement.at == at) {
                    queued.ready = true;
                }
                self.pump(vm, block);
            }
            Use::Erase { vm, block } => {
                let wear = self.worn(block);
                let result = self.vms[vm].vssd.erased(block, wear);
                self.note(result);
                self.vms[vm].steps -= 1;
                self.go_on(vm);
            }
            Use::Reclaim { block } => {
                self.worn(block);
                let channel = self.geometry.channel(block);
                let reclaim = self.reclaims.entry(channel).or_default();
                reclaim.in_flight -= 1;
                reclaim.ended = self.now;
                self.reclaim_more(channel);
            }
        }
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(fault) => {
                self.fault.get_or_insert(fault);
                None
            }
        }
    }

    fn worn(&mut self, block: FlashBlock) -> u32 {
        let found = usize::try_from(block.0).ok().and_then(|index| self.wear.get_mut(index));
        found.map_or(0, |wear| {
            *wear += 1;
            *wear
        })
    }

    fn reclaim_more(&mut self, channel: u16) {
        loop {
            let reclaim = self.reclaims.entry(channel).or_default();
            if reclaim.in_flight >= ERASURES {
                return;
            }
            let Some(block) = reclaim.blocks.pop_front() else { return };
            reclaim.in_flight += 1;
            self.submit(Class::HarvestCollect, block, Work::Erase, Use::Reclaim { block });
        }
    }

    fn issue(&mut self, vm: usize, thread: usize, io: Io) {
        let request = PendingRequest { thread, io, issued: self.now, left: 1 };
        let number = self.vms[vm].requests.insert(request);
        if io.write {
            self.issue_write(vm, number, io);
        } else {
            self.issue_read(vm, number, io);
        }
        self.part_done(vm, number);
    }

    fn issue_read(&mut self, vm: usize, request: u32, io: Io) {
        let page = self.geometry.page_size;
        let found = self.vms[vm].vssd.read(io.at, u64::from(io.length)).map(Iterator::collect::<Vec<_>>);
        for piece in self.note(found).unwrap_or_default() {
            let Some((block, mut offset)) = piece.from else { continue };
            let mut left: u32 = exact(piece.length, "a piece is within a page");
            while left > 0 {
                let bytes = left.min(page - offset % page);
                self.more(vm, request);
                let class = self.vms[vm].classes[0];
                self.submit(class, block, Work::Read(bytes), Use::Read { vm, request });
                (offset, left) = (offset + bytes, left - bytes);
            }
        }
    }

    fn issue_write(&mut self, vm: usize, request: u32, io: Io) {
        if self.vms[vm].classes[0].is_harvest() {
            let times = self.schedulers.program_times(self.now);
            let of = |channel: u16| times.get(usize::from(channel)).copied().unwrap_or_default();
            self.vms[vm].vssd.set_program_times(of);
        }
        let size = u64::from(self.geometry.page_size);
        let (mut at, end) = (io.at, io.at + u64::from(io.length));
        while at < end {
            let bytes = (end - at).min(size - at % size);
            let page = exact(at / size, "a disk's pages have numbers of 32 bits");
            let rest = exact(size - bytes, "it is less than a page");
            at += bytes;
            self.more(vm, request);
            let one = &mut self.vms[vm];
            let write = one.writes.insert(PageWrite { request, page, rest });
            match one.locks.get_mut(&page) {
                Some(waiting) => waiting.push_back(write),
                None => {
                    one.locks.insert(page, VecDeque::new());
                    self.begin_write(vm, write);
                }
            }
        }
    }

    fn more(&mut self, vm: usize, request: u32) {
        if let Some(request) = self.vms[vm].requests.get_mut(request) {
            request.left += 1;
        }
    }

    fn part_done(&mut self, vm: usize, number: u32) {
        let now = self.now;
        let one = &mut self.vms[vm];
        let Some(request) = one.requests.get_mut(number) else { return };
        request.left -= 1;
        if request.left > 0 {
            return;
        }
        let PendingRequest { thread, io, issued, .. } = *request;
        one.requests.take(number);
        let took = now - issued + HOST;
        one.tally.add(Finished { at: now, took, bytes: io.length, write: io.write });
        self.at(now, Timer::Ask { vm, thread });
    }

    /// Begins a write of a locked page: reads the rest of the page, or goes on at once.
    fn begin_write(&mut self, vm: usize, write: u32) {
        let one = &mut self.vms[vm];
        let Some(PageWrite { page, rest, .. }) = one.writes.get_mut(write).copied() else { return };
        let old = if rest > 0 { one.vssd.locate(page) } else { Ok(None) };
        let class = one.classes[0];
        match self.note(old).flatten() {
            Some((block, _)) => self.submit(class, block, Work::Read(rest), Use::Rest { vm, write }),
            None => self.place(vm, write),
        }
    }

    fn place(&mut self, vm: usize, write: u32) {
        let one = &mut self.vms[vm];
        if !one.stalled.is_empty() || !self.try_place(vm, write) {
            self.vms[vm].stalled.push_back(write);
        }
        self.collect(vm);
    }

    /// Places a write; `true` if it was placed.
    fn try_place(&mut self, vm: usize, write: u32) -> bool {
        let one = &mut self.vms[vm];
        let Some(PageWrite { page, .. }) = one.writes.get_mut(write).copied() else { return true };
        let place = one.vssd.place(page);
        match self.note(place) {
            Some(Place::At(placement)) => {
                let block = placement.block;
                let queued = Queued { placement, write: Some(write), ready: true, running: false };
                self.vms[vm].queues.entry(block).or_default().push_back(queued);
                self.pump(vm, block);
                true
            }
            Some(Place::Recall) => {
                self.note::<()>(Err(Error::invalid("it lent too much").about("vSSD")));
                true
            }
            Some(Place::Collect) => false,
            None => true,
        }
    }

    /// Programs the ready pages at the front of a block's queue. A die does the operations of a class in order.
    fn pump(&mut self, vm: usize, block: FlashBlock) {
        let Vm { queues, classes, .. } = &mut self.vms[vm];
        let Some(queue) = queues.get_mut(&block) else { return };
        if queue.is_empty() {
            queues.remove(&block);
            return;
        }
        let class = |queued: &Queued| classes[usize::from(queued.write.is_none())];
        let begun = queue.partition_point(|queued| queued.running);
        let first = class(&queue[begun.saturating_sub(1)]);
        let follows = |queued: &&mut Queued| queued.ready && class(queued) == first;
        let coming = queue.iter_mut().skip(begun).take_while(follows);
        let count = coming.map(|queued| queued.running = true).count();
        for _ in 0..count {
            self.submit(first, block, Work::Program(self.geometry.page_size), Use::Program { vm, block });
        }
    }

    fn programmed(&mut self, vm: usize, block: FlashBlock) {
        let Some(queued) = self.vms[vm].queues.get_mut(&block).and_then(VecDeque::pop_front) else { return };
        self.vms[vm].vssd.commit(queued.placement);
        self.vms[vm].written.insert(block);
        self.pump(vm, block);
        match queued.write {
            Some(write) => self.written(vm, write),
            None => self.vms[vm].steps -= 1,
        }
        self.go_on(vm);
    }

    fn written(&mut self, vm: usize, write: u32) {
        let one = &mut self.vms[vm];
        let Some(PageWrite { request, page, .. }) = one.writes.take(write) else { return };
        let next = one.locks.get_mut(&page).and_then(VecDeque::pop_front);
        if let Some(next) = next {
            self.begin_write(vm, next);
        } else {
            one.locks.remove(&page);
        }
        self.part_done(vm, request);
    }

    /// Continues writes that may have waited for an operation that ended.
    fn go_on(&mut self, vm: usize) {
        while let Some(&write) = self.vms[vm].stalled.front() {
            if !self.try_place(vm, write) {
                break;
            }
            self.vms[vm].stalled.pop_front();
        }
        self.collect(vm);
    }

    fn collect(&mut self, vm: usize) {
        loop {
            let one = &mut self.vms[vm];
            let wanted = !one.stalled.is_empty() || one.vssd.is_short();
            if !wanted || one.steps >= one.depth {
                return;
            }
            let class = one.classes[1];
            match one.vssd.collect_next(Effort::Needed) {
                Some(CollectStep::Copy { from, page: _, to }) => {
                    one.steps += 1;
                    let (block, at) = (to.block, to.at);
                    let queued = Queued { placement: to, write: None, ready: false, running: false };
                    one.queues.entry(block).or_default().push_back(queued);
                    let work = Work::Read(self.geometry.page_size);
                    self.submit(class, from, work, Use::Copy { vm, block, at });
                }
                Some(CollectStep::Erase { block }) => {
                    one.steps += 1;
                    self.submit(class, block, Work::Erase, Use::Erase { vm, block });
                }
                Some(CollectStep::Sync { up_to }) => {
                    if !one.syncing {
                        one.syncing = true;
                        self.at(self.now + JOURNAL, Timer::Durable { vm, up_to });
                    }
                    return;
                }
                None => {
                    let idle = one.steps == 0 && one.queues.is_empty() && !one.syncing;
                    if idle && !one.stalled.is_empty() {
                        self.note::<()>(Err(
                            Error::invalid("writes wait, and nothing makes room").about("vSSD")
                        ));
                    }
                    return;
                }
            }
        }
    }
}
