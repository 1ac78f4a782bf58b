//! Directories whose machine can crash: it loses, tears and reorders all data that was not synced.
//!
//! The remains of a crash, chosen by a seed:
//!
//! * of every 4 KiB page that was written since its file was synced: its content at the sync, at any time
//!   since, or a prefix of one of these and the suffix of another (at any byte, mostly where they differ);
//! * of every file: any of the lengths it had since, filled up by zeros;
//! * of the names: the creations, renamings and removals since the directory was synced, up to any of them
//!   in order, or any subset.
//!
//! A sync that fails leaves its pages in the worst state there is: the content of memory may or may not be on
//! disk, and later syncs do not care about it any more.

mod directory;

use self::directory::{SimDirectory, is_within, prefix_of};
use super::super::files::Directory;
use super::super::pending::PENDING;
use headstart_block::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

const PAGE: usize = 4096;

/// A fault that happens at a chosen step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The machine goes down in the middle of it.
    Crash,
    /// The process dies in the middle of it; the machine goes on.
    Kill,
    /// The step fails, perhaps half-done.
    Eio,
    /// From this step on there is no space.
    Full,
}

/// The machine. Clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Machine(Arc<Mutex<World>>);

/// An action of another thread in the middle of an operation.
type Interlude = Box<dyn FnOnce() + Send>;

struct World {
    files: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes of names since the directory was synced.
    name_ops: Vec<NameOp>,
    steps: u64,
    /// The number of steps at which the present operation has to have ended.
    last_step: u64,
    fault: Option<(u64, Fault)>,
    interlude: Option<(u64, Interlude)>,
    down: bool,
    /// `true` if it is down because the process died.
    killed: bool,
    full: bool,
    faults_seen: u64,
    sync_failed: bool,
    /// `true` if its file system has space for new files.
    has_names: bool,
    /// `true` if its file system can punch holes.
    has_holes: bool,
    /// The number of next holes that cannot be punched.
    failing_holes: u64,
    /// The page of a file over which no hole can be punched.
    bad_page: Option<usize>,
    /// The number of the crash after which it runs, if its processes may know.
    boot_id: Option<u128>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_ops: Vec::new(),
            steps: 0,
            last_step: u64::MAX,
            fault: None,
            interlude: None,
            down: false,
            killed: false,
            full: false,
            faults_seen: 0,
            sync_failed: false,
            has_names: true,
            has_holes: true,
            failing_holes: 0,
            bad_page: None,
            boot_id: Some(0),
        }
    }
}

#[derive(Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// The contents of each page since it was synced.
    dirty: BTreeMap<usize, Dirty>,
    /// Lengths since the sync.
    lengths: Vec<usize>,
    /// Pages that were punched and not written since.
    holes: BTreeSet<usize>,
}

#[derive(Default)]
struct Dirty {
    versions: Vec<Vec<u8>>,
    /// `true` if a sync of the file has failed: no other will try.
    forgotten: bool,
}

#[derive(Clone)]
struct NameOp {
    kind: NameChange,
    inode: usize,
    forgotten: bool,
}

#[derive(Clone)]
enum NameChange {
    /// A new name, of a new file or of one that has names already.
    Link(String),
    Rename(String, String),
    Unlink(String),
}

impl NameOp {
    /// The name that it changes.
    fn name(&self) -> &str {
        match &self.kind {
            NameChange::Link(name) | NameChange::Rename(name, _) | NameChange::Unlink(name) => name,
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match &self.kind {
            NameChange::Link(name) => {
                names.insert(name.clone(), self.inode);
            }
            NameChange::Rename(from, to) => {
                if names.get(from) == Some(&self.inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), self.inode);
            }
            NameChange::Unlink(name) => {
                if names.get(name) == Some(&self.inode) {
                    names.remove(name);
                }
            }
        }
    }
}

/// Small and seeded, so that a failing case is found again and shrinks.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`. Seed 0 throws nothing but zeros: the crash that loses all.
    pub(super) fn below(&mut self, n: usize) -> usize {
        if self.0 == 0 || n == 0 {
            return 0;
        }
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

impl Dice {
    /// A byte where the two pages may be torn; most places would make no difference.
    fn place_to_tear(&mut self, page: &[u8], other: &[u8]) -> usize {
        let differs = |at: &usize| page[*at] != other[*at];
        let first = (0..PAGE).find(differs).unwrap_or(0);
        let last = (0..PAGE).rfind(differs).unwrap_or(0);
        if self.below(4) == 1 { self.below(PAGE) } else { first + self.below(last - first + 1) }
    }
}

impl Machine {
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock()
    }

    /// The directory of the disk, as a process sees it.
    pub(super) fn directory(&self) -> Arc<dyn Directory> {
        self.directory_of("")
    }

    /// The directory of a clone.
    pub(super) fn directory_of(&self, clone: &str) -> Arc<dyn Directory> {
        Arc::new(SimDirectory::of(self, clone))
    }

    /// Removes the directory of a clone, durably.
    pub(super) fn remove_directory(&self, clone: &str) {
        let prefix = prefix_of(clone);
        let mut world = self.world();
        let World { names, durable_names, name_ops, .. } = &mut *world;
        names.retain(|name, _| !is_within(name, &prefix));
        durable_names.retain(|name, _| !is_within(name, &prefix));
        name_ops.retain(|op| !is_within(op.name(), &prefix));
    }

    /// Lets `fault` happen `after` steps from now.
    pub(super) fn arm(&self, after: u64, fault: Fault) {
        let mut world = self.world();
        world.fault = Some((world.steps + after, fault));
    }

    /// Panics at the step that is `steps` from now: nothing takes so many.
    pub(super) fn limit(&self, steps: u64) {
        let mut world = self.world();
        world.last_step = world.steps + steps;
    }

    /// Lets `act` be called before the step that is `after` steps from now.
    pub(super) fn interrupt(&self, after: u64, act: Interlude) {
        let mut world = self.world();
        world.interlude = Some((world.steps + after, act));
    }

    /// Forgets the action that was to be called.
    pub(super) fn uninterrupted(&self) {
        self.world().interlude = None;
    }

    /// The world, for a step: others may act before it.
    fn world_for_step(&self) -> MutexGuard<'_, World> {
        let mut world = self.world();
        if world.interlude.as_ref().is_some_and(|(step, _)| *step <= world.steps)
            && let Some((_, act)) = world.interlude.take()
        {
            drop(world);
            act();
            world = self.world();
        }
        world
    }

    /// `true` if the machine is down only because the process died; then it is up again, and everything that
    /// was written is still there.
    pub(super) fn revive(&self) -> bool {
        let mut world = self.world();
        let revived = world.killed;
        if revived {
            (world.fault, world.down, world.killed, world.full) = (None, false, false, false);
        }
        revived
    }

    /// Takes the armed fault and a lack of space away.
    pub(super) fn repair(&self) {
        let mut world = self.world();
        world.fault = None;
        world.full = false;
    }

    /// `true` if the machine went down at an armed step.
    pub(super) fn is_down(&self) -> bool {
        self.world().down
    }

    /// Steps that an armed fault let fail.
    pub(super) fn faults_seen(&self) -> u64 {
        self.world().faults_seen
    }

    /// `true` if a sync has failed since the last crash.
    pub(super) fn sync_failed(&self) -> bool {
        self.world().sync_failed
    }

    /// Steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.world().steps
    }

    /// Crashes the machine, and starts it again.
    pub(super) fn crash(&self, seed: u64) {
        let mut dice = Dice::new(seed);
        let mut world = self.world();
        for file in &mut world.files {
            file.crash(&mut dice);
        }
        let in_order = dice.below(2) == 1;
        let kept = dice.below(world.name_ops.len() + 1);
        let mut names = std::mem::take(&mut world.durable_names);
        for (number, op) in std::mem::take(&mut world.name_ops).iter().enumerate() {
            if if in_order { number < kept } else { dice.below(2) == 1 } {
                op.apply(&mut names);
            }
        }
        world.names.clone_from(&names);
        world.durable_names = names;
        (world.fault, world.interlude) = (None, None);
        (world.down, world.killed, world.full, world.sync_failed) = (false, false, false, false);
        world.boot_id = world.boot_id.map(|id| id + 1);
    }

    /// Loses what a crash would lose, while the machine runs on.
    pub(super) fn lose_writes(&self, seed: u64) {
        let boot_id = self.world().boot_id;
        self.crash(seed);
        self.world().boot_id = boot_id;
    }

    /// Leaves no space for new files from now on.
    pub(super) fn refuse_names(&self) {
        self.world().has_names = false;
    }

    /// Hides the id of its run.
    pub(super) fn hide_boot_id(&self) {
        self.world().boot_id = None;
    }

    /// Makes the file system unable to punch holes from now on.
    pub(super) fn fill_holes(&self) {
        self.world().has_holes = false;
    }

    /// Lets the punching of the next `count` holes fail.
    pub(super) fn fail_holes(&self, count: u64) {
        self.world().failing_holes = count;
    }

    /// Lets the punching of any hole over this page of a file fail.
    pub(super) fn set_bad_page(&self, page: Option<usize>) {
        self.world().bad_page = page;
    }

    /// Bytes that all files of the disk take, in whole pages. The file of pending records does not count.
    pub(super) fn taken(&self) -> u64 {
        let world = self.world();
        let own = world.names.iter().filter(|(name, _)| is_within(name, "") && *name != PENDING);
        own.map(|(_, inode)| world.files[*inode].taken()).sum()
    }

    /// The contents of a file as processes see them.
    pub(super) fn contents(&self, name: &str) -> Vec<u8> {
        let world = self.world();
        world.files[world.names[name]].now.clone()
    }

    /// Puts a file there as if it had always been.
    pub(super) fn put(&self, name: &str, contents: &[u8]) {
        let mut world = self.world();
        let file = Inode { now: contents.to_vec(), durable: contents.to_vec(), ..Inode::default() };
        world.files.push(file);
        let inode = world.files.len() - 1;
        world.names.insert(name.to_owned(), inode);
        world.durable_names.insert(name.to_owned(), inode);
    }
}

impl Inode {
    fn taken(&self) -> u64 {
        ((self.now.len().div_ceil(PAGE) - self.holes.len()) * PAGE) as u64
    }

    fn page(&self, number: usize) -> Vec<u8> {
        page_of(&self.now, number)
    }

    /// Remembers the present contents of the pages of `[start, end)`.
    fn touched(&mut self, start: usize, end: usize) {
        for number in start / PAGE..end.div_ceil(PAGE) {
            let page = self.page(number);
            let dirty = self.dirty.entry(number).or_default();
            dirty.versions.push(page);
            dirty.forgotten = false;
        }
        self.lengths.push(self.now.len());
    }

    fn write(&mut self, data: &[u8], offset: usize) {
        let end = offset + data.len();
        let start = offset.min(self.now.len());
        self.now.resize(self.now.len().max(end), 0);
        self.now[offset..end].copy_from_slice(data);
        self.holes.retain(|page| *page < start / PAGE || *page >= end.div_ceil(PAGE));
        self.touched(start, end);
    }

    fn set_len(&mut self, len: usize) {
        let (start, end) = (len.min(self.now.len()), len.max(self.now.len()));
        self.now.resize(len, 0);
        self.holes.retain(|page| *page < len / PAGE);
        self.touched(start, end);
    }

    fn punch(&mut self, start: usize, end: usize) {
        assert!(end <= self.now.len().next_multiple_of(PAGE), "a hole behind the end");
        let end = end.min(self.now.len());
        self.now[start..end].fill(0);
        self.touched(start, end);
        for page in start / PAGE..end.div_ceil(PAGE) {
            self.holes.insert(page);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        let (durable, now) = (&mut self.durable, &self.now);
        self.dirty.retain(|number, dirty| {
            if !dirty.forgotten {
                let (start, end) = ((number * PAGE).min(now.len()), ((number + 1) * PAGE).min(now.len()));
                durable[start..end].copy_from_slice(&now[start..end]);
            }
            dirty.forgotten
        });
        self.lengths.clear();
    }

    fn forget(&mut self) {
        self.dirty.values_mut().for_each(|dirty| dirty.forgotten = true);
    }

    fn crash(&mut self, dice: &mut Dice) {
        self.lengths.push(self.durable.len());
        self.lengths.reverse();
        let len = self.lengths[dice.below(self.lengths.len())];
        let mut left = std::mem::take(&mut self.durable);
        for (number, dirty) in std::mem::take(&mut self.dirty) {
            let mut versions = dirty.versions;
            versions.insert(0, page_of(&left, number));
            let mut page = versions[dice.below(versions.len())].clone();
            if dice.below(3) == 1 {
                let other = &versions[dice.below(versions.len())];
                let torn = dice.place_to_tear(&page, other);
                page[torn..].copy_from_slice(&other[torn..]);
            }
            left.resize(left.len().max((number + 1) * PAGE), 0);
            left[number * PAGE..(number + 1) * PAGE].copy_from_slice(&page);
        }
        left.resize(len, 0);
        self.lengths.clear();
        self.now.clone_from(&left);
        self.durable = left;
    }
}

/// A page of a file, as if the file went on in zeros.
fn page_of(contents: &[u8], number: usize) -> Vec<u8> {
    let start = (number * PAGE).min(contents.len());
    let mut page = contents[start..contents.len().min(start + PAGE)].to_vec();
    page.resize(PAGE, 0);
    page
}

fn failure(kind: io::ErrorKind) -> Error {
    Error::io("simulated failure", io::Error::from(kind))
}

/// The outcome of a step.
enum Step {
    Done,
    /// A failure, but some of the effect may be there.
    Half(Error),
}

impl World {
    /// Counts a step; `grows` is `true` if it needs space.
    fn step(&mut self, grows: bool) -> Result<Step> {
        if self.down {
            return Err(failure(io::ErrorKind::Other));
        }
        self.steps += 1;
        assert!(self.steps < self.last_step, "it does not end");
        let due = self.fault.filter(|(step, _)| *step < self.steps).map(|(_, fault)| fault);
        if due.is_some() {
            self.fault = None;
        }
        match due {
            Some(fault @ (Fault::Crash | Fault::Kill)) => {
                self.down = true;
                self.killed = fault == Fault::Kill;
                self.faults_seen += 1;
                return Ok(Step::Half(failure(io::ErrorKind::Other)));
            }
            Some(Fault::Eio) => {
                self.faults_seen += 1;
                return Ok(Step::Half(failure(io::ErrorKind::Other)));
            }
            Some(Fault::Full) => self.full = true,
            None => {}
        }
        if self.full && grows {
            self.faults_seen += 1;
            return Err(failure(io::ErrorKind::StorageFull));
        }
        Ok(Step::Done)
    }

    /// Makes a change of names: half-done, it may have happened anyway.
    fn change(&mut self, kind: NameChange, inode: usize, grows: bool) -> Result<()> {
        let step = self.step(grows)?;
        if matches!(step, Step::Done) || self.down || self.steps.is_multiple_of(2) {
            let op = NameOp { kind, inode, forgotten: false };
            op.apply(&mut self.names);
            self.name_ops.push(op);
        }
        step.finish()
    }

    fn inode(&self, name: &str) -> Result<usize> {
        self.names.get(name).copied().ok_or_else(|| failure(io::ErrorKind::NotFound).about(name))
    }
}

impl Step {
    fn finish(self) -> Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::Half(error) => Err(error),
        }
    }
}
