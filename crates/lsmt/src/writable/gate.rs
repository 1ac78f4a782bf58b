//! The gate of writes: whoever would go beyond the bounds of the directory waits for the collector, or does its steps.

use super::WritableDisk;
use super::coarsen::runs_max;
use super::policy::{Limits, Load, Space};
use super::view::View;
use headstart_block::{ByteSize, Error, ErrorKind, Result, SECTOR_SIZE};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// The longest time between two looks at what a writer waits for.
const LOOK: Duration = Duration::from_millis(5);

/// Tries of a waiting writer to punch holes that cannot be punched: some two seconds.
const FAILURES_MAX: u32 = 400;

/// Writers that wait for space.
#[derive(Default)]
pub(super) struct Gate {
    waiting: AtomicU64,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Tells waiting writers that there is more space.
    pub(super) fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for a change, but not for long.
    fn wait(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout(guard, LOOK));
    }
}

/// Sums since the disk was opened, in bytes unless said otherwise.
#[derive(Default)]
pub(super) struct Counters {
    /// Given back to the file system.
    pub(super) collected: AtomicU64,
    /// Live data written again.
    pub(super) copied: AtomicU64,
    /// Number of writes and discards of clients, in steps.
    pub(super) writes: AtomicU64,
    /// Number of those that waited.
    throttled: AtomicU64,
}

/// The space of a writable disk, and what its collector did since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStatus {
    /// Bytes of data that is read.
    pub live_bytes: u64,
    /// Bytes of data that was overwritten or discarded and still takes space, and of the log.
    pub garbage_bytes: u64,
    /// Bytes given back to the file system.
    pub collected_bytes: u64,
    /// Bytes of live data that were written again to free the blocks around them.
    pub copied_bytes: u64,
    /// Writes and discards that waited for space.
    pub throttled_writes: u64,
    /// Writes and discards that wait now.
    pub waiting_writes: u64,
    /// Runs in memory, of some 50 bytes each.
    pub runs: u64,
    /// Number of writes and discards, one of many megabytes counted as several.
    pub writes: u64,
    /// The garbage in per cent of what makes writes wait.
    pub garbage_percent: u64,
    /// Most bytes that the directory may take.
    pub max_bytes: Option<u64>,
}

/// Space that a write was admitted to take.
pub(super) struct Admitted<'a> {
    reserved: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A step of a write or discard: sectors, and the bytes it appends and takes away.
#[derive(Clone, Copy)]
struct Demand {
    start: u64,
    end: u64,
    added: u64,
    killed: u64,
}

/// The answer to a demand.
enum Verdict<'a> {
    Admitted(Admitted<'a>),
    /// Not now.
    Wait,
    /// Not before something is discarded.
    Refused(Error),
}

impl WritableDisk {
    /// Sets other bounds. What is there already stays.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for less than [`Limits::MAX_LEAST`].
    pub fn set_limits(&self, limits: Limits) -> Result<()> {
        if let Some(max) = limits.max.filter(|max| *max < Limits::MAX_LEAST) {
            let least = ByteSize(Limits::MAX_LEAST);
            return Err(Error::invalid(format!("a writable layer of {} has no room to work", ByteSize(max)))
                .remedy(format!("allow it {least} at least")));
        }
        self.view_mut().limits = limits;
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        self.view().limits
    }

    /// The space that it takes, without reading a file.
    #[must_use]
    pub fn space(&self) -> SpaceStatus {
        let view = self.view();
        let space = self.space_of(&view);
        let (runs, limits) = (view.runs.len(), view.limits);
        let frozen: usize = view.generation.frozen.iter().map(|level| level.runs.len()).sum();
        drop(view);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpaceStatus {
            live_bytes: space.live,
            garbage_bytes: space.garbage() + space.held,
            garbage_percent: limits.garbage_percent(&space),
            collected_bytes: load(&self.counters.collected),
            copied_bytes: load(&self.counters.copied),
            throttled_writes: load(&self.counters.throttled),
            waiting_writes: load(&self.gate.waiting),
            runs: (runs + frozen) as u64,
            writes: load(&self.counters.writes),
            max_bytes: limits.max,
        }
    }

    /// Data of frozen pairs counts as live until it is absorbed, also where upper pairs hide it.
    pub(super) fn space_of(&self, view: &View) -> Space {
        let generation = &view.generation;
        let frozen = generation.frozen.iter().map(|level| level.runs.data_sectors());
        let live = view.runs.data_sectors() + frozen.sum::<u64>();
        let (data, log) = generation
            .pairs()
            .fold((0, 0), |(data, log), pair| (data + pair.data_sectors(), log + pair.log_bytes()));
        Space {
            live: live.min(data) * SECTOR_SIZE,
            data: data * SECTOR_SIZE + self.reserved.load(Ordering::Relaxed),
            log,
            held: self.held.load(Ordering::Relaxed) * SECTOR_SIZE,
        }
    }

    /// Waits until `[start, end)` can be written.
    pub(super) fn admit_write(&self, start: u64, end: u64) -> Result<Admitted<'_>> {
        self.admit(Demand { start, end, added: (end - start) * SECTOR_SIZE, killed: 0 })
    }

    /// Waits until `[start, end)` can be discarded.
    pub(super) fn admit_zeroes(&self, start: u64, end: u64) -> Result<Admitted<'_>> {
        self.admit(Demand { start, end, added: 0, killed: (end - start) * SECTOR_SIZE })
    }

    fn admit(&self, demand: Demand) -> Result<Admitted<'_>> {
        match self.judge(demand) {
            Verdict::Admitted(admitted) => Ok(admitted),
            Verdict::Wait => self.admit_slowly(demand),
            Verdict::Refused(error) => Err(error),
        }
    }

    fn judge(&self, demand: Demand) -> Verdict<'_> {
        let Demand { start, end, added, killed } = demand;
        let view = self.view();
        let limits = &view.limits;
        let space = self.space_of(&view);
        if added > 0 && space.live + added > limits.usable() {
            let covered = view.runs.pieces(start, end).filter(|piece| piece.what.is_data());
            let covered: u64 = covered.map(|piece| piece.len() * SECTOR_SIZE).sum();
            if space.live + added > limits.usable() + covered {
                return Verdict::Refused(full(limits));
            }
        }
        if has_too_many_runs(&view) {
            return Verdict::Wait;
        }
        // Reserved first, so that of many that come at once none is overlooked.
        self.reserved.fetch_add(added, Ordering::Relaxed);
        let admitted = Admitted { reserved: &self.reserved, bytes: added };
        let with_others = self.space_of(&view);
        let data = with_others.data.saturating_sub(added);
        if limits.admits(&Space { data, ..with_others }, added, killed) {
            Verdict::Admitted(admitted)
        } else {
            Verdict::Wait
        }
    }

    #[cold]
    fn admit_slowly(&self, demand: Demand) -> Result<Admitted<'_>> {
        self.counters.throttled.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting::new(&self.gate.waiting);
        let mut failures = 0;
        loop {
            self.check_usable()?;
            match self.judge(demand) {
                Verdict::Admitted(admitted) => return Ok(admitted),
                Verdict::Refused(error) => return Err(error),
                Verdict::Wait => {}
            }
            let mut collector = match self.collector.try_lock() {
                Ok(collector) => collector,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    self.gate.wait();
                    continue;
                }
            };
            let worked = self.step(&mut collector, Load::Pressed)?;
            let has_failed = collector.take_failure().is_some();
            if has_failed && failures < FAILURES_MAX {
                // Later it may go well. It is no fault of this write.
                drop(collector);
                failures += 1;
                self.gate.wait();
                continue;
            }
            if worked && !has_failed {
                continue;
            }
            let others_end = collector.waits_for_readers() || self.reserved.load(Ordering::Relaxed) > 0;
            drop(collector);
            if others_end {
                self.gate.wait();
            } else if has_too_many_runs(&self.view()) {
                return Err(Error::new(ErrorKind::NoSpace, "it has too many small pieces")
                    .remedy("they are merged as soon as the image below can be read"));
            } else if self.limits().max.is_some() && demand.added > 0 {
                return Err(full(&self.limits()));
            } else {
                // All was given back that can be. Two frozen pairs that hide each other, say, may take more.
                self.reserved.fetch_add(demand.added, Ordering::Relaxed);
                return Ok(Admitted { reserved: &self.reserved, bytes: demand.added });
            }
        }
    }
}

/// More runs than there may be until some are merged.
fn has_too_many_runs(view: &View) -> bool {
    let max = runs_max(&view.limits, view.size);
    view.runs.len() as u64 > max + max / 4
}

fn full(limits: &Limits) -> Error {
    let max = ByteSize(limits.max.unwrap_or(0));
    Error::new(ErrorKind::NoSpace, format!("the writable layer may take no more than {max}"))
        .remedy("discard what the disk needs no more (fstrim), or attach it with a larger --writable-max")
}

/// Counts a writer while it waits.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
