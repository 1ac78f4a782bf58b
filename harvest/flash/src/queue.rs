//! The place at which operations wait for their channel: [`ChannelSchedulers`] that threads share, in real time.
//!
//! The queue has no thread of its own. A thread that enters waits until its operations are done. One of the waiting
//! threads is the *driver*: it sleeps until the next event at the latest, and advances the schedulers for all threads.
//! A driver whose own operations are done wakes another thread, which is the driver from then on. So there is always a
//! driver while any thread waits.
//!
//! ```
//! # use headstart_flash::device::{Geometry, FlashBlock};
//! # use headstart_flash::queue::{ChannelQueue, FlashAccess};
//! # use headstart_flash::scheduler::{ChannelSchedulers, Class, SchedulerSettings, Speed};
//! # let (geometry, zero) = (Geometry::default(), std::time::Instant::now());
//! let speed = Speed::Emulated(Default::default());
//! let schedulers = ChannelSchedulers::new(&geometry, speed, SchedulerSettings::default());
//! let queue = ChannelQueue::new(geometry, schedulers, move || zero.elapsed());
//! let bundle = [(FlashBlock(0), FlashAccess::Read { offset: 0, len: 4096 })];
//! let permit = queue.enter(Class::Regular, &bundle);
//! // Read here.
//! drop(permit);
//! ```
//!
//! On emulated flash an operation is done when [`ChannelQueue::enter`] returns. On a file or a real device, which take
//! time of their own, the operation may then start, and has ended when the [`Permit`] is dropped. If the channels of a
//! file or a device have no limit of speed, regular operations do not wait at all: they are only counted.

use crate::device::timing::{FlashOp, Work};
use crate::device::{FlashBlock, Geometry};
use crate::scheduler::{Budget, ChannelSchedulers, Class, Done, Speed, Ticket};
use headstart_block::saturating;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A clock. Its zero is a fixed moment that the implementation chooses.
pub trait Clock: Send + Sync {
    /// Returns the time since the clock's zero. It never runs backwards.
    fn now(&self) -> Duration;
}

impl<F: Fn() -> Duration + Send + Sync> Clock for F {
    fn now(&self) -> Duration {
        self()
    }
}

/// An operation on a flash block, as a thread requests it: a read or program may cover several pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashAccess {
    /// A read of a range of bytes. On emulated flash each page that the range touches is one operation; on other flash
    /// the whole read is one.
    Read {
        /// The offset of the first byte in the block.
        offset: u32,
        /// The number of bytes.
        len: u32,
    },
    /// A program of consecutive pages. On emulated flash each page is one operation; on other flash the whole program
    /// is one.
    Program {
        /// The number of pages.
        pages: u32,
    },
    /// An erasure of the block.
    Erase,
}

/// A blocking queue in front of the channels: threads wait in [`Self::enter`] until the scheduler lets them
/// use the flash.
pub struct ChannelQueue {
    geometry: Geometry,
    clock: Box<dyn Clock>,
    speed: Speed,
    /// Regular operations that passed, by channel; only if the queue is [open](Self::is_open).
    passed: Vec<Passed>,
    /// `true` if a thread waits that may go on when a regular operation has ended.
    watched: AtomicBool,
    state: Mutex<State>,
}

/// Regular operations that passed on a channel.
#[derive(Debug, Default)]
struct Passed {
    in_flight: AtomicU32,
    /// The time at which one last came or ended, in nanoseconds; 0 for never.
    last: AtomicU64,
}

struct State {
    schedulers: ChannelSchedulers,
    /// The waiting threads, by the first ticket of their bundle.
    waiters: BTreeMap<u64, Waiter>,
    tickets: u64,
    /// The thread that moves time on, by its first ticket, and the end of its sleep; `None` if it sleeps until it is
    /// woken.
    driver: Option<(u64, Option<Duration>)>,
    done: Vec<Done>,
}

struct Waiter {
    left: u64,
    condition: Arc<Condvar>,
}

/// The permission to do the operations passed to [`ChannelQueue::enter`]. On flash that takes time of its own
/// (not emulated), the caller keeps the permit until the operations have ended, because dropping it reports
/// their end.
#[must_use]
pub struct Permit<'a> {
    queue: &'a ChannelQueue,
    class: Class,
    bundle: &'a [(FlashBlock, FlashAccess)],
}

impl ChannelQueue {
    /// Returns the queue for flash of this layout, with the schedulers of its channels.
    pub fn new(geometry: Geometry, schedulers: ChannelSchedulers, clock: impl Clock + 'static) -> Self {
        let speed = schedulers.speed();
        let passed = (0..geometry.channels).map(|_| Passed::default()).collect();
        let state =
            State { schedulers, waiters: BTreeMap::new(), tickets: 0, driver: None, done: Vec::new() };
        let (clock, state) = (Box::new(clock), Mutex::new(state));
        Self { geometry, clock, speed, passed, watched: AtomicBool::new(false), state }
    }

    /// Gives a channel to another owner, `owner` being a vSSD's number, for operations that enter from now on. Does
    /// nothing if there is no such channel.
    pub fn set_owner(&self, channel: u16, owner: u32) {
        self.state.lock().schedulers.set_owner(channel, owner);
    }

    /// Returns the total times for which the regular operations of an owner (a vSSD's number) waited for harvest
    /// VMs: the first for reads and programs of harvest VMs, the second for their erasures. `None` if the owner
    /// has no channel.
    pub fn spent(&self, owner: u32) -> Option<[Duration; 2]> {
        self.state.lock().schedulers.budget(owner).map(Budget::spent)
    }

    /// Returns for each channel, in the order of their numbers, the time that a page program of a harvest VM takes
    /// there at present. It serves to compare channels: see
    /// [`ChannelScheduler::program_time`](crate::scheduler::ChannelScheduler::program_time).
    pub fn program_times(&self) -> Vec<Duration> {
        let now = self.clock.now();
        self.state.lock().schedulers.program_times(now)
    }

    /// Waits for a bundle of operations of one class: on emulated flash until all are done, on other flash until all
    /// may begin. Blocks that the flash does not have are skipped here: the flash refuses the operations on them later.
    /// A bundle without operations waits for nothing.
    pub fn enter<'a>(&'a self, class: Class, bundle: &'a [(FlashBlock, FlashAccess)]) -> Permit<'a> {
        let permit = Permit { queue: self, class, bundle };
        let now = self.clock.now();
        if class == Class::Regular && self.is_open() {
            self.count_passed(bundle, now, true);
            return permit;
        }
        let mut state = self.state.lock();
        self.on_passed(&mut state, now);
        let first = state.tickets;
        for (block, what) in bundle.iter().filter(|(block, _)| block.0 < self.geometry.total_blocks()) {
            let (channel, die) = (self.geometry.channel(*block), self.geometry.die(*block));
            self.each_work(*what, |work| {
                let ticket = Ticket(state.tickets);
                state.tickets += 1;
                state.schedulers.submit(now, channel, ticket, class, FlashOp { die, work });
            });
        }
        let left = state.tickets - first;
        if left > 0 {
            let condition = Arc::new(Condvar::new());
            state.waiters.insert(first, Waiter { left, condition: Arc::clone(&condition) });
            state.advance(now);
            self.wait(state, first, &condition);
        }
        permit
    }

    /// `true` if regular operations pass: flash takes its own time, and they have as much of it as there is.
    fn is_open(&self) -> bool {
        matches!(self.speed, Speed::Bucket { rate: None, .. })
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, me: u64, condition: &Condvar) {
        while state.waiters.get(&me).is_some_and(|waiter| waiter.left > 0) {
            if state.driver.is_some_and(|(driver, _)| driver != me) {
                condition.wait(&mut state);
                continue;
            }
            // First this: a regular operation that ends from now on wakes the driver, and one that ended before is
            // counted here.
            self.watched.store(true, Ordering::SeqCst);
            let now = self.clock.now();
            self.on_passed(&mut state, now);
            let next = state.schedulers.next();
            state.driver = Some((me, next));
            if next.is_none_or(|next| next > now) {
                let pause = next.map_or(IDLE, |next| next - now);
                condition.wait_for(&mut state, pause);
            }
            let now = self.clock.now();
            self.on_passed(&mut state, now);
            state.advance(now);
        }
        state.waiters.remove(&me);
        if state.driver.is_some_and(|(driver, _)| driver == me) {
            state.driver = None;
            self.watched.store(false, Ordering::SeqCst);
        }
        // A thread has to drive, and a thread drives only after it was woken.
        if state.driver.is_none()
            && let Some(next) = state.waiters.values().next()
        {
            next.condition.notify_one();
        }
    }

    /// The operations of an access: one a page on emulated flash.
    fn each_work(&self, what: FlashAccess, mut each: impl FnMut(Work)) {
        let page = self.geometry.page_size;
        let whole = !matches!(self.speed, Speed::Emulated(_));
        match what {
            FlashAccess::Erase => each(Work::Erase),
            FlashAccess::Read { len, .. } if whole => each(Work::Read(len)),
            FlashAccess::Program { pages } if whole => each(Work::Program(pages.saturating_mul(page))),
            FlashAccess::Program { pages } => {
                (0..pages.min(self.geometry.pages)).for_each(|_| each(Work::Program(page)));
            }
            FlashAccess::Read { offset, len } => {
                let (mut at, end) = (offset, offset.saturating_add(len).min(self.geometry.block_size()));
                while at < end {
                    let part = (end - at).min(page - at % page);
                    each(Work::Read(part));
                    at += part;
                }
            }
        }
    }

    fn count_passed(&self, bundle: &[(FlashBlock, FlashAccess)], now: Duration, begins: bool) {
        let now = saturating::<u64>(now.as_nanos()).max(1);
        for (block, _) in bundle {
            let Some(passed) = self.passed.get(usize::from(self.geometry.channel(*block))) else { continue };
            passed.last.fetch_max(now, Ordering::SeqCst);
            match begins {
                true => passed.in_flight.fetch_add(1, Ordering::SeqCst),
                false => passed.in_flight.fetch_sub(1, Ordering::SeqCst),
            };
        }
    }

    /// Tells the schedulers of regular operations that passed.
    fn on_passed(&self, state: &mut State, now: Duration) {
        if !self.is_open() {
            return;
        }
        for (channel, passed) in (0..).zip(&self.passed) {
            let last = passed.last.load(Ordering::SeqCst);
            if last > 0 {
                let last = Duration::from_nanos(last).min(now);
                state.schedulers.passed(channel, last, passed.in_flight.load(Ordering::SeqCst));
            }
        }
    }
}

/// The longest sleep of a driver that expects no event.
const IDLE: Duration = Duration::from_millis(100);

impl State {
    /// Moves time on, and wakes the threads that may go on.
    fn advance(&mut self, now: Duration) {
        let mut done = std::mem::take(&mut self.done);
        self.schedulers.advance(now, &mut done);
        for Done { ticket, .. } in done.drain(..) {
            if let Some((_, waiter)) = self.waiters.range_mut(..=ticket.0).next_back() {
                waiter.left = waiter.left.saturating_sub(1);
                if waiter.left == 0 {
                    waiter.condition.notify_one();
                }
            }
        }
        self.done = done;
        // The driver would sleep too long.
        if let Some((driver, until)) = self.driver
            && let Some(next) = self.schedulers.next()
            && until.is_none_or(|until| next < until)
            && let Some(waiter) = self.waiters.get(&driver)
        {
            waiter.condition.notify_one();
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let queue = self.queue;
        if matches!(queue.speed, Speed::Emulated(_)) {
            return;
        }
        let now = queue.clock.now();
        let passes = self.class == Class::Regular && queue.is_open();
        if passes {
            queue.count_passed(self.bundle, now, false);
            if !queue.watched.load(Ordering::SeqCst) {
                return;
            }
        }
        let mut state = queue.state.lock();
        queue.on_passed(&mut state, now);
        for (block, _) in
            self.bundle.iter().filter(|(block, _)| !passes && block.0 < queue.geometry.total_blocks())
        {
            state.schedulers.ended(now, queue.geometry.channel(*block), self.class);
        }
        state.advance(now);
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what is tested happens in real time")]
mod tests {
    use super::*;
    use crate::device::timing::Speeds;
    use crate::scheduler::SchedulerSettings;
    use std::thread::{scope, sleep};
    use std::time::Instant;

    const SMALL: Geometry =
        Geometry { channels: 2, dies: 4, planes: 1, blocks: 4, pages: 8, page_size: 16 << 10 };

    /// Longer than any wait here, on a busy machine, too.
    const LONG: Duration = Duration::from_secs(60);

    fn queue(speed: Speed) -> ChannelQueue {
        queue_with(speed, SchedulerSettings::default())
    }

    fn queue_with(speed: Speed, settings: SchedulerSettings) -> ChannelQueue {
        let zero = Instant::now();
        ChannelQueue::new(SMALL, ChannelSchedulers::new(&SMALL, speed, settings), move || zero.elapsed())
    }

    fn emulated() -> ChannelQueue {
        queue(Speed::Emulated(Speeds::default()))
    }

    fn file(rate: Option<u64>) -> ChannelQueue {
        queue(Speed::Bucket { rate, burst: 64 << 10 })
    }

    fn timed(act: impl FnOnce()) -> Duration {
        let begin = Instant::now();
        act();
        begin.elapsed()
    }

    #[test]
    fn a_bundle_takes_as_long_as_on_flash() {
        let queue = emulated();
        // Two channels at once; on each, four dies fill the bus: 8 pages of 234 us, and the last one's 700.
        let bundle: Vec<_> = (0..4)
            .chain(16..20)
            .map(|block| (FlashBlock(block), FlashAccess::Program { pages: 2 }))
            .collect();
        let least = SMALL.page_size * 8 / 70 + 700;
        let took = timed(|| drop(queue.enter(Class::Regular, &bundle)));
        assert!(took >= Duration::from_micros(u64::from(least)), "{took:?}");
        let took = timed(|| drop(queue.enter(Class::HarvestCollect, &[(FlashBlock(0), FlashAccess::Erase)])));
        assert!(took >= Duration::from_micros(4200), "{took:?}");
        let across = [(FlashBlock(0), FlashAccess::Read { offset: (16 << 10) - 1, len: 2 })];
        let took = timed(|| drop(queue.enter(Class::Regular, &across)));
        assert!(took >= Duration::from_micros(140), "{took:?}");
    }

    #[test]
    fn empty_and_outside_accesses_wait_for_nothing() {
        let queue = emulated();
        let outside =
            [(FlashBlock(99), FlashAccess::Erase), (FlashBlock(0), FlashAccess::Read { offset: 0, len: 0 })];
        drop(queue.enter(Class::Regular, &outside));
        drop(queue.enter(Class::Harvest, &[]));
        assert!(queue.state.lock().waiters.is_empty());
        assert_eq!((queue.spent(0), queue.spent(1)), (Some([Duration::ZERO; 2]), None));
    }

    /// Many threads of all classes, some with channels of their own: each gets through, whichever drives.
    #[test]
    fn every_access_gets_through() {
        for queue in [emulated(), file(None), file(Some(100_000_000))] {
            queue.set_owner(1, 7);
            scope(|scope| {
                for thread in 0..8_u32 {
                    let queue = &queue;
                    scope.spawn(move || {
                        for turn in 0..25 {
                            let class = Class::ALL[(thread % 4) as usize];
                            let blocks = [(thread * 5 + turn) % 32, (thread * 7 + turn * 3) % 32];
                            let bundle = blocks.map(|block| {
                                (FlashBlock(block), FlashAccess::Read { offset: 0, len: 20_000 })
                            });
                            let many = if thread < 6 { 1 } else { 2 };
                            let permit = queue.enter(class, &bundle[..many]);
                            std::thread::yield_now();
                            drop(permit);
                        }
                    });
                }
            });
            let state = queue.state.lock();
            assert!(state.waiters.is_empty() && state.driver.is_none() && state.schedulers.next().is_none());
            assert!(queue.passed.iter().all(|passed| passed.in_flight.load(Ordering::SeqCst) == 0));
        }
    }

    #[test]
    fn a_rate_is_kept() {
        let queue = file(Some(10_000_000));
        let bundle = [(FlashBlock(0), FlashAccess::Program { pages: 8 })];
        // 1 MiB; the burst of 64 KiB and the last bundle are ahead of their time.
        let took = timed(|| (0..8).for_each(|_| drop(queue.enter(Class::Regular, &bundle))));
        assert!((Duration::from_millis(80)..Duration::from_secs(10)).contains(&took), "{took:?}");
    }

    #[test]
    fn harvest_waits_while_a_regular_operation_is_on_its_way() {
        let speed = Speed::Bucket { rate: None, burst: 64 << 10 };
        let queue =
            queue_with(speed, SchedulerSettings { bound: LONG, limit: LONG, ..SchedulerSettings::default() });
        let read = [(FlashBlock(0), FlashAccess::Read { offset: 0, len: 4096 })];
        let regular = queue.enter(Class::Regular, &read);
        scope(|scope| {
            let harvest = scope.spawn(|| timed(|| drop(queue.enter(Class::Harvest, &read))));
            while !queue.watched.load(Ordering::SeqCst) && !harvest.is_finished() {
                std::thread::yield_now();
            }
            sleep(Duration::from_millis(15));
            assert!(!harvest.is_finished());
            drop(regular);
            let took = harvest.join().unwrap();
            assert!(took < LONG / 2, "{took:?}");
        });
        // Another channel has nothing to do with it.
        let _regular = queue.enter(Class::Regular, &read);
        let other = [(FlashBlock(16), FlashAccess::Erase)];
        let took = timed(|| drop(queue.enter(Class::HarvestCollect, &other)));
        assert!(took < LONG / 2, "{took:?}");
        // And in the end it is let through.
        let queue = file(None);
        let _regular = queue.enter(Class::Regular, &read);
        let took = timed(|| drop(queue.enter(Class::Harvest, &read)));
        assert!(took >= Duration::from_millis(40), "{took:?}");
    }
}
