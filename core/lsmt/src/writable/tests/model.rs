//! The writable disk against a plain array, through writes, maintenance, crashes and failures.
//!
//! Every sector that is written gets a stamp of its own, so each sector of the disk names the write that it
//! came from. The model knows what each sector holds now, and what it may hold after a crash: what it
//! held when the last flush returned, and everything written to it since. Anything else is an error, and so is
//! a disk that does not open, or an operation that fails although nothing below it did.

mod clones;
mod commits;
mod space;

use self::clones::SimClone;
use self::commits::SimAhead;
use super::super::files::Directory;
use super::super::state::State;
use super::super::torn::TORN;
use super::super::{Limits, Load, NewDisk, WritableDisk};
use super::sim::{Fault, Machine};
use crate::{Layer, LayerMeta, LayerWriter, Stack, open_pair};
use headstart_block::{BlockDevice, ByteRange, ErrorKind, Result, SECTOR_SIZE};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const SECTOR: usize = SECTOR_SIZE as usize;
/// Sectors of a new disk.
const SECTORS: u64 = 128;
/// Steps of the machine that no operation takes.
const STEPS_MAX: u64 = 200_000;
/// Sectors that the base has; the disk above is larger.
const BASE_SECTORS: u64 = 112;

/// A write that comes in the middle of an operation, `after` steps into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interlude {
    pub(super) after: u64,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) zero: bool,
}

/// One thing that happens to the disk.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Write {
        start: u64,
        len: u64,
    },
    Zero {
        start: u64,
        len: u64,
    },
    Read {
        start: u64,
        len: u64,
    },
    Flush,
    /// Writes a layer and reads it back.
    Commit {
        during: Option<Interlude>,
    },
    Collect {
        during: Option<Interlude>,
    },
    /// Writes a layer of the frozen pairs and, perhaps, puts it below.
    Stack {
        replace: bool,
        during: Option<Interlude>,
    },
    /// Appends up to `sectors` sectors to a layer ahead of the next commit: those written before the last `Mark`.
    Seal {
        sectors: u64,
        during: Option<Interlude>,
    },
    Mark,
    /// Does `steps` steps of the collector.
    Tend {
        load: Load,
        steps: u64,
        during: Option<Interlude>,
    },
    /// Makes a clone, which is looked at and written to whenever the disk is opened again.
    Clone {
        during: Option<Interlude>,
    },
    /// Removes a clone.
    Unclone {
        which: usize,
    },
    Grow {
        sectors: u64,
    },
    /// Flushes and reads the files with the plain reader of unsealed pairs.
    ReadPlainly,
    /// Closes and opens the disk.
    Reopen {
        flush: bool,
    },
    /// The machine goes down; with `again`, once more that many steps into the recovery.
    Crash {
        seed: u64,
        again: Option<u64>,
    },
    /// The storage loses what was not synced, and the machine goes on.
    Lose {
        seed: u64,
    },
    /// A fault happens `after` steps from now.
    Arm {
        after: u64,
        fault: Fault,
    },
    /// Space is there again.
    Repair,
}

/// A range of sectors; often one that was used already, so that writes overlap.
fn range() -> impl Strategy<Value = (u64, u64)> {
    (prop_oneof![3 => 0..SECTORS, 1 => 32u64..48], prop_oneof![4 => 1u64..10, 1 => 10u64..70])
}

pub(super) fn io() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => range().prop_map(|(start, len)| Op::Write { start, len }),
        2 => range().prop_map(|(start, len)| Op::Zero { start, len }),
        1 => range().prop_map(|(start, len)| Op::Read { start, len }),
        2 => Just(Op::Flush),
    ]
}

pub(super) fn interlude() -> impl Strategy<Value = Option<Interlude>> {
    let act = (0u64..20, range(), any::<bool>())
        .prop_map(|(after, (start, len), zero)| Some(Interlude { after, start, len, zero }));
    prop_oneof![1 => Just(None), 1 => act]
}

pub(super) fn upkeep() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => interlude().prop_map(|during| Op::Collect { during }),
        2 => interlude().prop_map(|during| Op::Commit { during }),
        2 => (any::<bool>(), interlude()).prop_map(|(replace, during)| Op::Stack { replace, during }),
        1 => (1u64..16).prop_map(|sectors| Op::Grow { sectors }),
        1 => Just(Op::ReadPlainly),
        1 => any::<bool>().prop_map(|flush| Op::Reopen { flush }),
    ]
}

pub(super) fn cloning() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => interlude().prop_map(|during| Op::Clone { during }),
        1 => (0usize..4).prop_map(|which| Op::Unclone { which }),
        2 => (tend_load(), 1u64..30, interlude())
            .prop_map(|(load, steps, during)| Op::Tend { load, steps, during }),
    ]
}

pub(super) fn tend(during: Option<Interlude>) -> Op {
    Op::Tend { load: Load::Offline, steps: 8, during }
}

pub(super) fn sealing() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u64..60, interlude()).prop_map(|(sectors, during)| Op::Seal { sectors, during }),
        2 => Just(Op::Mark),
        1 => (tend_load(), 1u64..30, interlude())
            .prop_map(|(load, steps, during)| Op::Tend { load, steps, during }),
    ]
}

fn tend_load() -> impl Strategy<Value = Load> {
    prop_oneof![Just(Load::Busy), Just(Load::Quiet), Just(Load::Pressed), Just(Load::Offline)]
}

pub(super) fn crash() -> impl Strategy<Value = Op> {
    let again = prop_oneof![3 => Just(None), 1 => (0u64..12).prop_map(Some)];
    (any::<u64>(), again).prop_map(|(seed, again)| Op::Crash { seed, again })
}

pub(super) fn arm(fault: Fault) -> impl Strategy<Value = Op> {
    (0u64..24).prop_map(move |after| Op::Arm { after, fault })
}

/// The content of a sector: 0 for zeros, otherwise the stamp of a write, all over it.
fn stamp_of(sector: &[u8]) -> u64 {
    let first = u64::from_le_bytes(*sector.first_chunk().unwrap());
    assert!(
        sector.as_chunks::<8>().0.iter().all(|word| u64::from_le_bytes(*word) == first),
        "a sector is a mixture: {sector:?}"
    );
    first
}

fn fill(buf: &mut [u8], stamp: u64) {
    buf.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = stamp.to_le_bytes());
}

fn contents(disk: &dyn BlockDevice) -> Vec<u64> {
    let mut bytes = vec![1; disk.size() as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes.as_chunks::<SECTOR>().0.iter().map(|sector| stamp_of(sector)).collect()
}

/// Checks the disk against `expected`, and that extents are right about zeros.
fn check(disk: &dyn BlockDevice, expected: &[u64]) {
    assert_eq!(contents(disk), expected);
    let mut sector = 0;
    while sector < expected.len() {
        let extent = disk.extent_at((sector * SECTOR) as u64).unwrap();
        assert_eq!(extent.range.offset() as usize, sector * SECTOR);
        let end = extent.range.end() as usize / SECTOR;
        assert!(end > sector && end <= expected.len());
        assert!(!extent.zero || expected[sector..end].iter().all(|stamp| *stamp == 0));
        sector = end;
    }
}

/// A layer below everything: data, a zeroed run and holes.
fn base_layer() -> Layer {
    let meta = LayerMeta { virtual_size: BASE_SECTORS * SECTOR_SIZE, ..LayerMeta::default() };
    let mut writer = LayerWriter::new(Vec::new(), meta).unwrap();
    for start in [3, 40, 90] {
        let mut data = vec![0; 12 * SECTOR];
        for (number, sector) in data.chunks_mut(SECTOR).enumerate() {
            fill(sector, (1 << 60) + start + number as u64);
        }
        writer.data(start * SECTOR_SIZE, &data).unwrap();
        writer.zeroes(ByteRange::new((start + 12) * SECTOR_SIZE, 2 * SECTOR_SIZE).unwrap()).unwrap();
    }
    Layer::open(Arc::new(writer.finish().unwrap().0)).unwrap()
}

pub(super) struct Model {
    machine: Machine,
    /// None only while it is being opened.
    disk: Option<Arc<WritableDisk>>,
    /// The layers of each parent so far, by its name (the number in decimal).
    parents: Vec<Vec<Layer>>,
    /// The parents that the disk may have after a crash; the last is its present one.
    parent_maybe: Vec<usize>,
    /// The content of each sector.
    now: Vec<u64>,
    /// The other contents that each sector may have after a crash.
    maybe: Vec<Vec<u64>>,
    /// Contents that a write of the present operation may have given to sectors before it was answered.
    unanswered: Vec<(usize, u64)>,
    /// Contents that sectors had before a write that failed, and is seen nevertheless.
    doubtful: Vec<(usize, u64)>,
    /// Other sizes in sectors that the disk may have after a crash.
    sizes_maybe: Vec<usize>,
    /// `true` while a committed layer waits.
    awaiting: bool,
    /// Faults that the machine had seen when the disk was opened.
    faults_before: u64,
    stamps: u64,
    seed: u64,
    clones: Vec<SimClone>,
    ahead: SimAhead,
    /// The slack of the disk; with less than the default, it has to keep its bounds.
    slack: Option<u64>,
}

impl Model {
    /// A new disk, with or without a base; `seed` chooses the remains of the crashes at armed steps.
    pub(super) fn new(with_base: bool, seed: u64) -> Self {
        let machine = Machine::default();
        let layers = if with_base { vec![base_layer()] } else { Vec::new() };
        let base = base_of(&layers);
        let mut now = base.as_ref().map_or_else(Vec::new, |base| contents(&**base));
        now.resize(SECTORS as usize, 0);
        let new = NewDisk {
            size: SECTORS * SECTOR_SIZE,
            parent: "0".to_owned(),
            uuid: Uuid::from_u128(0x1234_5678 << 64),
        };
        let disk = WritableDisk::create_in(machine.directory(), base, &new).unwrap();
        Self {
            machine,
            disk: Some(Arc::new(disk)),
            parents: vec![layers],
            parent_maybe: vec![0],
            maybe: vec![Vec::new(); now.len()],
            unanswered: Vec::new(),
            doubtful: Vec::new(),
            now,
            sizes_maybe: Vec::new(),
            awaiting: false,
            faults_before: 0,
            stamps: 0,
            seed,
            clones: Vec::new(),
            ahead: SimAhead::default(),
            slack: None,
        }
    }

    /// The same model with so little slack that writes wait for the collector.
    pub(super) fn tight(mut self, slack: u64) -> Self {
        self.slack = Some(slack);
        self.set_limits();
        self
    }

    fn set_limits(&self) {
        if let Some(slack) = self.slack {
            self.disk().view_mut().limits =
                Limits { slack, runs: Some(16), base_timeout: Duration::ZERO, ..Limits::default() };
        }
    }

    fn disk(&self) -> &WritableDisk {
        self.disk.as_ref().unwrap()
    }

    /// Does `ops`, and checks after each, and at last that the disk is still fit for use. Returns the number
    /// of steps that it took.
    pub(super) fn run(mut self, ops: &[Op]) -> u64 {
        for op in ops {
            let faults = self.machine.faults_seen();
            self.apply(op);
            if self.machine.is_down() {
                // The content of the page cache after a failed sync means nothing to the next process.
                if self.machine.revive() && !self.machine.sync_failed() {
                    self.killed();
                    self.open();
                } else {
                    self.restart(self.seed, None);
                }
            } else {
                check(self.disk(), &self.now);
                if matches!(op, Op::Write { .. }) {
                    self.check_space(faults);
                }
            }
        }
        let steps = self.machine.steps();
        self.machine.repair();
        self.apply(&Op::Reopen { flush: true });
        self.apply(&Op::Write { start: 7, len: 5 });
        self.apply(&Op::Collect { during: None });
        self.apply(&Op::ReadPlainly);
        check(self.disk(), &self.now);
        self.restart(0, None);
        steps
    }

    /// Checks that an operation went well. It may fail only where the machine let a step fail since the disk
    /// was opened.
    fn went_well<T>(&self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if self.machine.faults_seen() > self.faults_before => {
                assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace), "{error:?}");
                None
            }
            Err(error) => panic!("failed without a reason: {error:?}"),
        }
    }

    fn apply(&mut self, op: &Op) {
        self.machine.limit(STEPS_MAX);
        self.unanswered.clear();
        match *op {
            Op::Write { start, len } => self.write(start, len),
            Op::Zero { start, len } => self.zero(start, len),
            Op::Read { start, len } => self.read(start, len),
            Op::Flush => {
                if self.went_well(self.disk().flush()).is_some() {
                    self.flushed();
                }
            }
            Op::Commit { during } => self.commit(during),
            Op::Collect { .. } if self.awaiting => {
                let error = self.disk().collect_garbage().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict);
                self.disk().abandon_commit().unwrap();
                self.awaiting = false;
            }
            Op::Collect { during } => self.collect(during),
            Op::Stack { replace, during } => self.stack(replace, during),
            Op::Seal { sectors, during } => self.seal(sectors, during),
            Op::Mark => self.mark(),
            Op::Tend { load, steps, during } => self.tend(load, steps, during),
            Op::Clone { during } => self.clone_disk(during),
            Op::Unclone { which } => self.remove_clone(which),
            Op::Grow { sectors } => self.grow(sectors),
            Op::ReadPlainly => self.read_plainly(),
            Op::Reopen { flush } => self.reopen(flush),
            Op::Crash { seed, again } => self.restart(seed, again),
            Op::Lose { seed } => {
                self.disk = None;
                self.machine.lose_writes(seed);
                self.open();
                self.use_clones();
            }
            Op::Arm { after, fault } => self.machine.arm(after, fault),
            Op::Repair => self.machine.repair(),
        }
    }

    fn clip(&self, start: u64, len: u64) -> std::ops::Range<usize> {
        start as usize..((start + len) as usize).min(self.now.len())
    }

    fn write(&mut self, start: u64, len: u64) {
        let range = self.clip(start, len);
        self.stamps += 1;
        let mut data = vec![0; range.len() * SECTOR];
        for (sector, number) in data.chunks_mut(SECTOR).zip(range.clone()) {
            fill(sector, self.stamps << 16 | number as u64);
        }
        let written = self.went_well(self.disk().write_at(&data, start * SECTOR_SIZE));
        if written.is_some() {
            for number in range {
                self.changed(number, self.stamps << 16 | number as u64);
            }
        } else {
            let stamps = self.stamps << 16;
            self.changed_in_part(range, |number| stamps | number as u64);
        }
    }

    /// Notes that a write has failed: its first steps may have come to pass, or only its entry was not written.
    fn changed_in_part(&mut self, range: std::ops::Range<usize>, stamp: impl Fn(usize) -> u64) {
        self.unanswered.extend(range.clone().map(|number| (number, stamp(number))));
        if self.machine.is_down() {
            // It may have been flushed in part before.
            range.for_each(|number| self.maybe[number].push(stamp(number)));
            return;
        }
        for number in range {
            let mut sector = [0; SECTOR];
            self.disk().read_at(&mut sector, (number * SECTOR) as u64).unwrap();
            if stamp_of(&sector) == stamp(number) {
                self.doubtful.push((number, self.now[number]));
                self.changed(number, stamp(number));
            }
        }
    }

    fn zero(&mut self, start: u64, len: u64) {
        let range = self.clip(start, len);
        let bytes = ByteRange::between(start * SECTOR_SIZE, range.end as u64 * SECTOR_SIZE);
        if self.went_well(self.disk().write_zeroes(bytes)).is_some() {
            range.for_each(|number| self.changed(number, 0));
        } else {
            self.changed_in_part(range, |_| 0);
        }
    }

    fn changed(&mut self, number: usize, stamp: u64) {
        let old = std::mem::replace(&mut self.now[number], stamp);
        self.maybe[number].push(old);
    }

    fn flushed(&mut self) {
        self.maybe.iter_mut().for_each(Vec::clear);
        self.doubtful.clear();
    }

    /// Notes that the process has died and the machine has not: what was answered is there.
    fn killed(&mut self) {
        let doubtful = std::mem::take(&mut self.doubtful);
        self.flushed();
        for (number, stamp) in self.unanswered.drain(..).chain(doubtful) {
            self.maybe[number].push(stamp);
        }
    }

    /// Reads bytes at odd places.
    fn read(&self, start: u64, len: u64) {
        let range = self.clip(start, len);
        let (from, to) = (range.start * SECTOR + 5, range.end * SECTOR - 7);
        let mut buf = vec![1; to - from];
        self.disk().read_at(&mut buf, from as u64).unwrap();
        let mut expected = vec![0; range.len() * SECTOR];
        for (sector, number) in expected.chunks_mut(SECTOR).zip(range) {
            fill(sector, self.now[number]);
        }
        assert_eq!(buf, expected[5..expected.len() - 7]);
    }

    fn collect(&mut self, during: Option<Interlude>) {
        let before = self.disk().usage();
        let (collected, interrupted) = self.interrupted(during, WritableDisk::collect_garbage);
        if self.went_well(collected).is_some() && !interrupted {
            let after = self.disk().usage();
            assert_eq!(after.garbage_bytes, 0, "{before:?} {after:?}");
            assert_eq!(after.live_bytes, before.live_bytes);
            assert!(after.pairs <= 2);
        }
    }

    fn tend(&mut self, load: Load, steps: u64, during: Option<Interlude>) {
        let mut rested = false;
        let (tended, interrupted) = self.interrupted(during, |disk| {
            for _ in 0..steps {
                rested = !disk.collect(load)?;
                if rested {
                    break;
                }
            }
            Ok(())
        });
        if self.went_well(tended).is_some()
            && rested
            && load == Load::Offline
            && !interrupted
            && !self.awaiting
        {
            let usage = self.disk().usage();
            let shared = self.disk().generation().pairs().filter(|pair| pair.is_shared()).count();
            assert!(shared > 0 || usage.garbage_bytes < 4096 && usage.pairs == 1, "{usage:?}");
            assert!(usage.pairs <= shared + 1, "{usage:?}");
        }
    }

    /// Does `act` with a write in the middle; returns `true` if that came to pass.
    fn interrupted<T>(
        &mut self,
        during: Option<Interlude>,
        act: impl FnOnce(&WritableDisk) -> Result<T>,
    ) -> (Result<T>, bool) {
        let Some(Interlude { after, start, len, zero }) = during else { return (act(self.disk()), false) };
        // A discard without room for its entry flushes. It would wait for this thread, which does `act`.
        let zero = zero && self.disk().make_ready().is_ok();
        self.stamps += 1;
        let range = self.clip(start, len);
        let stamps = self.stamps << 16;
        let stamp = move |number: usize| if zero { 0 } else { stamps | number as u64 };
        let done = Arc::new(Mutex::new(None));
        let (disk, answer, sectors) = (self.disk.clone().unwrap(), done.clone(), range.clone());
        let other = move || {
            let bytes = ByteRange::between(start * SECTOR_SIZE, (sectors.end * SECTOR) as u64);
            let mut data = vec![0; sectors.len() * SECTOR];
            for (sector, number) in data.chunks_mut(SECTOR).zip(sectors) {
                fill(sector, stamp(number));
            }
            // At its bounds it would wait for the collector, which this thread may be.
            let limits = disk.limits();
            disk.view_mut().limits = Limits { slack: 1 << 40, runs: None, ..limits };
            let written = if zero { disk.write_zeroes(bytes) } else { disk.write_at(&data, bytes.offset()) };
            disk.view_mut().limits = limits;
            *answer.lock() = Some(written);
        };
        self.machine.interrupt(after, Box::new(other));
        let result = act(self.disk());
        self.machine.uninterrupted();
        let written = done.lock().take();
        let interrupted = written.is_some();
        if written.and_then(|written| self.went_well(written)).is_some() {
            range.for_each(|number| self.changed(number, stamp(number)));
        } else if interrupted {
            self.changed_in_part(range, stamp);
        }
        (result, interrupted)
    }

    fn grow(&mut self, sectors: u64) {
        let size = self.now.len() + sectors as usize;
        if self.went_well(self.disk().grow((size * SECTOR) as u64)).is_some() {
            self.resize(size);
            self.sizes_maybe.clear();
        } else {
            self.sizes_maybe.push(size);
        }
    }

    fn resize(&mut self, sectors: usize) {
        self.now.resize(sectors, 0);
        self.maybe.resize(sectors, Vec::new());
    }

    fn read_plainly(&mut self) {
        if self.went_well(self.disk().flush()).is_none() {
            return;
        }
        self.flushed();
        let state = State::load(&*self.machine.directory()).unwrap();
        let mut layers = self.parents[*self.parent_maybe.last().unwrap()].clone();
        for files in &state.pairs {
            let (data, index) = (self.machine.contents(&files.data), self.machine.contents(&files.index));
            layers.push(open_pair(Arc::new(data), &index).unwrap());
        }
        check(&Stack::new(layers).unwrap().with_size(state.virtual_size), &self.now);
    }

    fn reopen(&mut self, flush: bool) {
        if flush && self.went_well(self.disk().flush()).is_some() {
            self.flushed();
            let _ = self.went_well(self.disk().note_logs());
        }
        if self.machine.is_down() {
            return;
        }
        if self.machine.sync_failed() {
            // The content of the page cache then means nothing any more.
            return self.restart(self.stamps, None);
        }
        self.machine.repair();
        self.killed();
        self.open();
        self.use_clones();
    }

    fn restart(&mut self, seed: u64, again: Option<u64>) {
        self.disk = None;
        self.machine.crash(seed);
        if let Some(after) = again {
            self.machine.arm(after, Fault::Crash);
            self.faults_before = self.machine.faults_seen();
            let (base, parent) = self.parent_now();
            let opened = WritableDisk::open_in(self.machine.directory(), base, &parent);
            // It may have come through before the step was reached, or while it cleaned up.
            let _ = self.went_well(opened);
            self.machine.crash(seed.rotate_left(17));
        }
        self.open();
        self.use_clones();
    }

    /// The base that the directory names, which must be one of the possible ones.
    fn parent_now(&self) -> (Option<Arc<dyn BlockDevice>>, String) {
        let parent = State::load(&*self.machine.directory()).unwrap().parent;
        let number: usize = parent.parse().unwrap();
        assert!(self.parent_maybe.contains(&number));
        (base_of(&self.parents[number]), parent)
    }

    /// Opens the disk, checks that every sector has one of its possible contents, and takes that content for true.
    fn open(&mut self) {
        self.disk = None;
        self.ahead = SimAhead::default();
        let (base, parent) = self.parent_now();
        let disk = WritableDisk::open_in(self.machine.directory(), base, &parent).unwrap();
        let sectors = disk.size() as usize / SECTOR;
        assert!(sectors == self.now.len() || self.sizes_maybe.contains(&sectors));
        self.resize(sectors);
        let found = contents(&disk);
        for (number, stamp) in found.iter().enumerate() {
            assert!(
                self.now[number] == *stamp || self.maybe[number].contains(stamp),
                "sector {number} holds {stamp:#x}, not {:#x} or one of {:#x?}",
                self.now[number],
                self.maybe[number],
            );
        }
        assert_no_leftovers(&*self.machine.directory());
        self.now = found;
        self.flushed();
        self.sizes_maybe.clear();
        self.parent_maybe = vec![parent.parse().unwrap()];
        self.awaiting = false;
        self.faults_before = self.machine.faults_seen();
        self.disk = Some(Arc::new(disk));
        self.set_limits();
    }
}

fn base_of(layers: &[Layer]) -> Option<Arc<dyn BlockDevice>> {
    (!layers.is_empty()).then(|| Arc::new(Stack::new(layers.to_vec()).unwrap()) as Arc<dyn BlockDevice>)
}

fn assert_no_leftovers(directory: &dyn Directory) {
    let state = State::load(directory).unwrap();
    let mut used: Vec<_> = state.pairs.into_iter().flat_map(|files| [files.data, files.index]).collect();
    used.push("state.json".to_owned());
    used.sort();
    // Bytes that were cut off a log are kept.
    let found = directory.list().unwrap().into_iter().filter(|name| !name.starts_with(TORN));
    assert_eq!(found.collect::<Vec<_>>(), used);
}

pub(super) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}
