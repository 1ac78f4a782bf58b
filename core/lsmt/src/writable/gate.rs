//! The gate of writes: a writer that would go beyond the bounds of the directory waits for the collector, or does
//! its steps.

use super::WritableDisk;
use super::collector::Collector;
use super::lack::Unmerged;
use super::policy::{Limits, Load, Space};
use super::runs::{ExtentKind, SectorExtent};
use super::view::View;
use headstart_block::{ByteSize, Error, ErrorKind, Result, SECTOR_SIZE};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest time between two looks at the condition that a writer waits for.
const LOOK: Duration = Duration::from_millis(5);

/// The longest time for which a writer retries a failing step: some two seconds.
const FAILING_MAX: Duration = Duration::from_secs(2);

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

    /// Waits for a change, but not for long; returns the time that this took at least.
    fn wait(&self) -> Duration {
        let waited = self.changed.wait_for(&mut self.lock.lock(), LOOK);
        if waited.timed_out() { LOOK } else { Duration::ZERO }
    }
}

/// Sums since the disk was opened, in bytes unless said otherwise.
#[derive(Default)]
pub(super) struct Counters {
    /// Bytes given back to the file system.
    pub(super) collected: AtomicU64,
    /// Bytes of live data written again.
    pub(super) copied: AtomicU64,
    /// Number of writes and discards of clients, in steps.
    pub(super) writes: AtomicU64,
    /// Number of those that waited.
    throttled: AtomicU64,
    /// Number of those that were refused because of too many runs.
    refused: AtomicU64,
}

/// The space that a writable disk takes now, and counts of its writes and of its garbage collector's work since the
/// disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStatus {
    /// Bytes of stored data that reads can still return. Data in pairs of files below the active one counts until it
    /// is moved out of them, even if later writes hide it.
    pub live_bytes: u64,
    /// Bytes of stored data that were overwritten or discarded and still take space, and the bytes of the
    /// log.
    pub garbage_bytes: u64,
    /// Bytes that the garbage collector has given back to the file system since the disk was opened.
    pub collected_bytes: u64,
    /// Bytes of live data that the garbage collector has written again since the disk was opened, to free the
    /// blocks that held them or to merge runs.
    pub copied_bytes: u64,
    /// Bytes of the live data that were not written by a client, but copied from the base when runs were
    /// merged.
    pub copied_up_bytes: u64,
    /// Number of writes and discards that had to wait for space since the disk was opened.
    pub throttled_writes: u64,
    /// Number of writes and discards that wait for space now.
    pub waiting_writes: u64,
    /// Number of runs (entries of the map from the disk's sectors to stored data) in memory; each takes about
    /// 50 bytes.
    pub runs: u64,
    /// Number of writes and discards since the disk was opened. One of more than 4 MiB counts as several; if the limits
    /// leave little slack, shorter ones do so, too.
    pub writes: u64,
    /// Number of writes and discards that failed since the disk was opened because the disk had too many runs
    /// and none could be merged.
    pub refused_writes: u64,
    /// The garbage in per cent of the amount at which writes begin to wait for the garbage collector; may exceed 100.
    pub garbage_percent: u64,
    /// Bytes of the files that directories of clones ([`WritableDisk::clone_to`]) have as well. These directories
    /// together take them once.
    pub shared_bytes: u64,
    /// The largest number of bytes that the directory of the disk may take ([`Limits::max`]); `None` if it
    /// has no such limit.
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

impl Demand {
    fn extent(self) -> SectorExtent {
        let kind = if self.added > 0 { ExtentKind::Data(0) } else { ExtentKind::Zero };
        SectorExtent { start: self.start, end: self.end, kind }
    }
}

/// The answer to a demand.
enum Verdict<'a> {
    Admitted(Admitted<'a>),
    /// Refused for now: wait.
    Wait,
    /// Refused until something is discarded.
    Refused(Error),
}

impl WritableDisk {
    /// Replaces the limits on the space and the memory of the disk. Stored data is not removed to meet them. The
    /// limits are not stored: a disk that is opened has the default ones.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if [`Limits::max`] is less than [`Limits::MAX_LEAST`].
    pub fn set_limits(&self, limits: Limits) -> Result<()> {
        if let Some(max) = limits.max.filter(|max| *max < Limits::MAX_LEAST) {
            let least = ByteSize(Limits::MAX_LEAST);
            return Err(Error::invalid(format!(
                "a writable directory of {} has no room to work",
                ByteSize(max)
            ))
            .remedy(format!("allow it {least} at least")));
        }
        self.view_mut().limits = limits;
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        self.view().limits
    }

    /// Returns the space that the disk takes and the counts of its garbage collector, without reading files.
    #[must_use]
    pub fn space(&self) -> SpaceStatus {
        let view = self.view();
        let space = self.space_of(&view);
        let (runs, limits) = (view.runs.len(), view.limits);
        let copied_up_bytes = view.copied_up.bytes().min(space.live);
        let frozen: usize = view.generation.frozen.iter().map(|level| level.runs.len()).sum();
        let shared = view.generation.pairs().filter(|pair| pair.is_shared());
        let shared_bytes = shared.map(|pair| pair.file_bytes()).sum();
        drop(view);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpaceStatus {
            live_bytes: space.live,
            garbage_bytes: space.garbage() + space.held,
            garbage_percent: limits.garbage_percent(&space),
            collected_bytes: load(&self.counters.collected),
            copied_bytes: load(&self.counters.copied),
            copied_up_bytes,
            throttled_writes: load(&self.counters.throttled),
            waiting_writes: load(&self.gate.waiting),
            runs: (runs + frozen) as u64,
            writes: load(&self.counters.writes),
            refused_writes: load(&self.counters.refused),
            shared_bytes,
            max_bytes: limits.max,
        }
    }

    /// Data of frozen pairs counts as live until it is absorbed, even if upper pairs hide it. Dead data of pairs that
    /// other directories share is held, because it cannot be given back before they are gone.
    pub(super) fn space_of(&self, view: &View) -> Space {
        let generation = &view.generation;
        let frozen = generation.frozen.iter().map(|level| level.runs.data_sectors());
        let live = view.runs.data_sectors() + frozen.sum::<u64>();
        let (data, log) = generation
            .pairs()
            .fold((0, 0), |(data, log), pair| (data + pair.data_sectors(), log + pair.log_bytes()));
        let shared: u64 =
            generation.pairs().filter(|pair| pair.is_shared()).map(|pair| pair.data_sectors()).sum();
        let named = generation.frozen.iter().filter(|level| level.pair.is_shared());
        let named: u64 = named.map(|level| level.runs.data_sectors()).sum();
        let held = self.held.load(Ordering::Relaxed) + shared.saturating_sub(named);
        Space {
            live: live.min(data) * SECTOR_SIZE,
            data: data * SECTOR_SIZE + self.reserved.load(Ordering::Relaxed),
            log,
            held: held * SECTOR_SIZE,
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
            let covered = view.runs.extents(start, end).filter(|extent| extent.kind.is_data());
            let covered: u64 = covered.map(|extent| extent.len() * SECTOR_SIZE).sum();
            let room = limits.usable() + covered;
            if space.live + added > room {
                // Frozen pairs go with the end of a commit, or what later writes hide of them when they are absorbed.
                let lower = view.generation.frozen.iter().filter(|level| level.pair.is_shared());
                let shared: u64 = lower.map(|level| level.runs.data_sectors()).sum();
                let stays = (view.runs.data_sectors() + shared) * SECTOR_SIZE;
                let may_go = !view.generation.frozen.is_empty() && stays + added <= room;
                return if may_go { Verdict::Wait } else { Verdict::Refused(full(limits)) };
            }
        }
        if needs_merging(&view, demand) {
            return Verdict::Wait;
        }
        // Reserved first, so that none of many demands that come at once is overlooked.
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
        let Limits { base_timeout, commit_timeout, .. } = self.limits();
        let (mut failing, mut lacking, mut committing) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        loop {
            self.check_usable()?;
            match self.judge(demand) {
                Verdict::Admitted(admitted) => return Ok(admitted),
                Verdict::Refused(error) => return Err(error),
                Verdict::Wait => {}
            }
            let Some(mut collector) = self.collector.try_lock() else {
                self.gate.wait();
                continue;
            };
            let (worked, failed) = self.step_for_writer(&mut collector);
            if failed.is_some() && failing < FAILING_MAX.min(base_timeout) {
                // A later try may succeed. The failure is no fault of this write.
                drop(collector);
                failing += self.gate.wait();
                continue;
            }
            match failed {
                Some(Failed::Step(error)) => return Err(error),
                None if worked => continue,
                Some(Failed::Hole) | None => {}
            }
            let others_end = collector.waits_for_readers() || self.reserved.load(Ordering::Relaxed) > 0;
            let (lacks_base, why) = (collector.pass.lack.is_waiting(), collector.pass.unmerged.clone());
            drop(collector);
            let needs_merging = needs_merging(&self.view(), demand);
            if others_end {
                self.gate.wait();
            } else if needs_merging && lacks_base && lacking < base_timeout {
                lacking += self.gate.wait();
            } else if needs_merging {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                return Err(self.too_many_runs(if lacks_base { Some(Unmerged::late()) } else { why }));
            } else if self.limits().max.is_some() && demand.added > 0 {
                if !self.is_committing() {
                    return Err(full(&self.limits()));
                }
                // The commit reads data that later writes hide, and its end gives that back.
                if committing >= commit_timeout {
                    return Err(full_for_commit(&self.limits(), commit_timeout));
                }
                committing += self.gate.wait();
            } else {
                // Everything that can be given back was. Two frozen pairs that hide each other, say, may take more.
                self.reserved.fetch_add(demand.added, Ordering::Relaxed);
                return Ok(Admitted { reserved: &self.reserved, bytes: demand.added });
            }
        }
    }

    /// `true` while a commit reads data of this disk, or a committed layer waits to take the place of frozen pairs.
    fn is_committing(&self) -> bool {
        // Announced first: a commit that wants the lock waits for this look instead of giving up.
        let _brief = self.brief();
        self.commits.lock().count > 0 || self.try_maintain().is_none_or(|it| it.awaiting.is_some())
    }

    /// Does a step of the collector for a writer that waits. The collector's own thread reports a failure of that
    /// step later; the writer tries again.
    fn step_for_writer(&self, collector: &mut Collector) -> (bool, Option<Failed>) {
        match self.step(collector, Load::Pressed) {
            Ok(worked) => {
                let Some(error) = collector.take_failure() else { return (worked, None) };
                collector.leave_unreported(error);
                (worked, Some(Failed::Hole))
            }
            Err(error) => {
                let own = Error::new(error.kind(), error.to_string());
                collector.leave_unreported(error);
                (false, Some(Failed::Step(own)))
            }
        }
    }
}

/// A part of a step of the collector that has failed.
enum Failed {
    /// A hole could not be punched; all else was done.
    Hole,
    Step(Error),
}

/// `true` where there are so many runs that some must be merged before `demand` may make more.
fn needs_merging(view: &View, demand: Demand) -> bool {
    let max = view.limits.runs_max(view.size);
    view.runs.len() as u64 > max + max / 4 && view.runs.adds_a_run(demand.extent())
}

fn full(limits: &Limits) -> Error {
    let max = ByteSize(limits.max.unwrap_or(0));
    Error::new(ErrorKind::NoSpace, format!("the writable directory may take no more than {max}")).remedy(
        "discard data that the disk does not need (fstrim), or attach it with a larger --writable-max",
    )
}

fn full_for_commit(limits: &Limits, waited: Duration) -> Error {
    let max = ByteSize(limits.max.unwrap_or(0));
    let cause = format!(
        "the writable directory may take no more than {max}, and a commit has not given its data back for {} s",
        waited.as_secs()
    );
    Error::new(ErrorKind::NoSpace, cause)
        .remedy("wait for the commit, or end it; or attach the disk with a larger --writable-max")
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
