//! The writable layer: a log-structured disk in a directory, on top of an immutable base.
//!
//! # Files
//!
//! ```text
//! data, index        a pair: data appended to one file, a log of records in the other
//! data.1, index.1    a later pair, and so on
//! state.json         the disk's size and parent, the pairs that count, lowest first, and the least length of each log
//! lock               locked by the process that has the disk open
//! index.torn         the bytes that were last cut off a log, kept for people to look at
//! index.torn.1 to .3 the bytes that were cut off before
//! index.1.torn       the bytes that a repair cut off index.1, and so on
//! index.4294967295   the records that were not flushed, for the next process on this host (`pending.rs`)
//! base               a copy of the base, if the user wants one; this module does not use it
//! sealed-ahead.1     a layer in the making, and so on; this module only removes what a dead process has left of them
//! ```
//!
//! The last pair is *active* and takes the writes. Pairs below it are *frozen*: nothing is added to them; they wait to
//! be collected or committed. A read looks in the active pair first. Sectors that it does not have are read from the
//! topmost frozen pair that has them, and all others from the base.
//!
//! # How a write becomes durable
//!
//! A write reserves room at the end of the data file and writes its bytes there. Then, under a short lock, it enters
//! its *run* (the sectors of the disk and their place in the file) in the map in memory, and the run's record in the
//! list of pending ones. From then on every reader sees the write. Because both happen under one lock, the log has the
//! same order as the map, however writers overlap. A flush takes the pending records, syncs the data file, writes the
//! records as a sealed group at the end of the log, and syncs the log. So a record in the log always points at bytes
//! that are in the data file, and recovery is a replay of whole groups (`log.rs`). While the collector makes a hole in
//! the data file, the bytes of writes go to memory first, because the file system would make them wait
//! (`data_file.rs`).
//!
//! For every sector, a crash of the host leaves the last flushed content or content that was written to it later. Later
//! content is there if its whole group reached the disk. The death of this process alone loses no write or discard that
//! has returned (`pending.rs`).
//!
//! # Failures
//!
//! A failed *write* (a full disk) changes nothing: the map does not name the bytes that it wrote, and records that
//! could not be logged stay pending for the next flush. Only a write whose entry in the file of pending records fails
//! is seen nevertheless; space for that is taken before. After a failed *sync* no process can tell what is on the disk
//! (the kernel forgets the pages that failed). So all later writes and flushes fail, and only reads go on. Opening the
//! disk again recovers all flushed data.
//!
//! # Freezing, collecting, committing
//!
//! All of these run while clients read and write, and no read or write waits for a file because of them.
//!
//! * *Freeze*: a new pair is created and synced, `state.json` names it on top, and then it becomes the active one. If a
//!   writer finds, when it enters its run, that its pair was frozen meanwhile, it writes its bytes again to the new
//!   pair. The new pair may be named before it is used: it is empty.
//! * *Collect garbage*, by itself: dead blocks of the data files are punched, blocks that are partly dead are emptied
//!   by writing their live sectors again, frozen pairs are moved into the active one piece by piece, the log is
//!   written again without records that others cover, and runs are merged where there are too many. Each of these is a
//!   small step of the collector (`collector.rs` says why no crash, reader or commit meets a hole), and the time at
//!   which each is due is decided separately (`policy.rs`). Writes that would go beyond the bounds wait, or do such
//!   steps themselves (`gate.rs`). Such a step needs room for little more than a mebibyte of data, or for a log.
//! * *Copy*: where the file system has no holes, freeze, then copy the visible data of all frozen pairs into one new
//!   pair, in the order of the disk; flush; name it in their place. The copy is not mixed into the active pair,
//!   so that giving up half-way (a full disk) gives all its space back. The flush comes before
//!   `state.json`, because data that the active pair hides was not copied and must not come back after a crash.
//! * *Commit*: the runs of the active pair are set aside in memory, where they no longer change, and the disk's
//!   changes to its base are written as a layer from there (`snapshot.rs`). Nothing in the directory changes.
//! * *Clone*: freeze, then give the files of the frozen pairs names in another directory as well. As long as they have
//!   these, nothing in them may change: no hole is punched, nothing is cut off, no data is moved away (`clone.rs`).
//! * *Stack and commit*: freeze, then write the content of the frozen pairs as a layer. Once the caller has put that
//!   layer into its image for good, it calls [`WritableDisk::replace_frozen`]: one replacement of `state.json`
//!   drops the frozen pairs and names the new parent. A crash before that finds the old parent with all pairs.
//! * *Seal ahead*: data that was not written over for a while is appended to a layer before any commit comes, which
//!   then has only the rest to write (`ahead.rs`).
//!
//! # Locks
//!
//! In the order in which they are taken: `collector` (one step at a time), `maintenance` (one of copy, stack and
//! commit at a time), `snapshots` (held to set runs aside), `state` (held to change `state.json`), `flusher` (held
//! to sync the pairs), a pair's log, `commits` (the data that commits still read), `view`, `ready` (the sectors
//! that died for good), the numbers of the generations that are still in use (`Alive`), the lock of the gate, the
//! data that a data file keeps in memory.
//!
//! A reader takes only `view` and the numbers; a writer takes these and `ready`. A writer that finds too many pending
//! records flushes first, and a writer that waits at the gate does steps of the collector, with all locks that these
//! need. Below `view` there is also the lock of the positions of entries (`pending.rs`), and below that of the data in
//! memory the one of its copies. No thread waits for a file or walks all runs while it holds one of `commits`, `view`,
//! `ready`, the numbers, the positions or the gate's lock.

mod ahead;
mod alone;
mod batch;
mod clone;
mod coarsen;
mod collect;
mod collector;
mod commit;
mod compact;
mod copied_up;
mod data_file;
mod files;
mod gate;
mod lack;
mod left;
mod log;
mod log_ends;
mod noted;
mod pace;
mod pair;
mod pass;
mod pending;
mod policy;
mod real_directory;
mod relog;
mod runs;
mod sealed_places;
mod snapshot;
mod space;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod torn;
mod view;
mod writing;

use self::collector::{Collector, Commits};
use self::copied_up::CopiedUp;
use self::files::{Directory, refuse_content};
use self::gate::{Counters, Gate};
use self::left::Left;
use self::pair::Pair;
use self::pending::Pending;
use self::real_directory::RealDirectory;
use self::runs::{RunMap, SectorExtent};
use self::space::FileRange;
use self::state::{State, StoreError};
use self::view::{Alive, EXTENTS_AT_ONCE, Frozen, Generation, View, whole_sectors};
use crate::Segment;
use crate::stack::check_bounds;
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result, SECTOR_SIZE, to_usize};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use uuid::Uuid;

pub use self::ahead::{DataMarks, LayerAhead, SealPass, SealedShare};
pub use self::clone::ClonedDisk;
pub use self::commit::BegunCommit;
pub use self::compact::Compaction;
pub use collect::{Collected, WritableUsage};
pub use gate::SpaceStatus;
pub use noted::Repaired;
pub use policy::{Limits, Load};
pub use state::SEALED_AHEAD;

/// Records that may wait for a flush; a writer that finds more flushes first. 1 MiB of memory.
const PENDING_MAX: u64 = 1 << 16;

/// Name of the directory, within the directory of a writable disk, that may hold a copy of the disk's base
/// image.
pub const BASE_DIR: &str = "base";

/// The properties that a new writable disk gets.
#[derive(Clone, Debug)]
pub struct NewDisk {
    /// Size of the disk in bytes: a multiple of 512, and at least the size of the base.
    pub size: u64,
    /// The name of the base, for instance the digest of an image's manifest; empty if the disk has no base.
    /// To open the disk, the same name has to be given.
    pub parent: String,
    /// The id of the disk; the caller chooses a unique one.
    pub uuid: Uuid,
}

/// Describes the directory of a writable disk, as read without opening the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Size of the disk in bytes.
    pub size: u64,
    /// The name of the base, for instance the digest of an image's manifest; empty if the disk has no base.
    pub parent: String,
    /// The reference under which the base was last found, for instance an image name in a registry; `None` if
    /// none was noted.
    pub reference: Option<String>,
    /// The id of the disk.
    pub uuid: Uuid,
    /// Names of the files that hold the disk's changes to its base: each pair is a data file and its index
    /// file. The lowest pair is first, the active one, which takes the writes, last.
    pub pairs: Vec<(String, String)>,
}

/// A writable disk on top of an immutable base. See the [module](self) for its files and its guarantees.
///
/// Dropping the value does not flush: writes since the last flush are there when the disk is opened again, unless the
/// host loses power before that.
pub struct WritableDisk {
    directory: Arc<dyn Directory>,
    maintenance: Mutex<Maintenance>,
    /// Not zero while the collector may hold `maintenance` for a step.
    brief: AtomicU64,
    /// Held by a commit while it sets runs aside.
    snapshots: Mutex<()>,
    state: Mutex<State>,
    flusher: Mutex<Flusher>,
    view: RwLock<View>,
    /// Records that are not in the log yet.
    unlogged: AtomicU64,
    pending: Arc<Pending>,
    /// The number that the next pair gets: none is used twice while readers may have the old one open.
    next_number: AtomicU64,
    collector: Mutex<Collector>,
    /// Sectors on their way to the collector: they died by records that are durable, or were never named.
    ready: Mutex<Vec<FileRange>>,
    commits: Mutex<Commits>,
    /// Dead sectors that a commit still reads.
    held: AtomicU64,
    /// Bytes that writes under way were admitted to append.
    reserved: AtomicU64,
    alive: Arc<Alive>,
    gate: Gate,
    counters: Counters,
    /// The first sync that failed.
    failed: OnceLock<String>,
}

/// The state of the work that only one thread at a time may do.
struct Maintenance {
    /// A layer was written and waits for [`WritableDisk::replace_frozen`]; the size of its disk.
    awaiting: Option<u64>,
}

struct Flusher {
    /// All writes up to this one are durable ([`View::writes`]).
    durable: u64,
}

impl WritableDisk {
    /// Creates a disk in the directory `path` on top of `base`. The directory must be missing or empty, apart
    /// from a copy of the base ([`BASE_DIR`]). Without a base, bytes that were never written read as zeros.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the directory has a disk or other files in it, or is in use;
    /// [`ErrorKind::Invalid`] if the size is no multiple of 512 or smaller than the base; [`ErrorKind::Denied`] if the
    /// directory belongs to neither root nor this user; errors of the files. If this fails in a new directory, the
    /// files that were made there are removed again.
    pub fn create(path: impl AsRef<Path>, base: Option<Arc<dyn BlockDevice>>, new: &NewDisk) -> Result<Self> {
        let path = path.as_ref();
        let is_new = !path.exists();
        let directory = Arc::new(RealDirectory::create(path)?);
        let about = |e: Error| e.about(path.display());
        // A directory that holds other things is not ours to close.
        refuse_content(&*directory).map_err(about)?;
        let made = directory.close_to_others();
        let made = made.and_then(|()| Self::create_in(Arc::<RealDirectory>::clone(&directory), base, new));
        made.map_err(|error| {
            // The lock is still held, so no other process uses these files. A directory that was there before may
            // hold files of others.
            if is_new {
                Self::remove_new(path);
            }
            about(error)
        })
    }

    /// Opens the disk in the directory `path` for this process alone. `parent` is the name of `base`, and
    /// must be equal to the disk's [`parent`](WritableDisk::parent).
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the disk is in use or has a parent of another name; [`ErrorKind::NotFound`]
    /// if there is no disk; [`ErrorKind::Denied`] if the directory belongs to neither root nor this user;
    /// [`ErrorKind::Corrupt`] if its files are damaged; `Unsupported` if another program or version made them;
    /// [`ErrorKind::Invalid`] if the disk is smaller than `base`; errors of reading the files.
    pub fn open(path: impl AsRef<Path>, base: Option<Arc<dyn BlockDevice>>, parent: &str) -> Result<Self> {
        let path = path.as_ref();
        // Without this look, a directory that is not a disk would be left with a lock file.
        Self::inspect(path)?;
        let directory = RealDirectory::lock(path)?;
        directory.close_to_others()?;
        Self::open_in(Arc::new(directory), base, parent).map_err(|e| e.about(path.display()))
    }

    /// Opens the disk in the directory `path` without its base, to collect its garbage. Reads of data that is
    /// only in the base fail.
    ///
    /// # Errors
    /// Those of [`WritableDisk::open`].
    pub fn open_alone(path: impl AsRef<Path>) -> Result<Self> {
        let info = Self::inspect(&path)?;
        Self::open(path, Some(Arc::new(alone::Unknown(info.size))), &info.parent)
    }

    /// `true` if the directory `path` has a writable disk in it.
    #[must_use]
    pub fn is_in(path: &Path) -> bool {
        path.join(state::STATE).exists()
    }

    /// Removes the files of a disk that was just created in `path` and to which nothing was written. The
    /// caller must still have the disk open: without its lock, the files may be those of another process. Files
    /// that cannot be removed stay, without an error.
    pub fn remove_new(path: &Path) {
        let pair = state::PairFiles::of(0);
        for file in [state::STATE, &pair.index, &pair.data, pending::PENDING, files::LOCK] {
            let _ = std::fs::remove_file(path.join(file));
        }
    }

    /// Reads the description of the disk in the directory `path`, which another process may have open.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no disk; [`ErrorKind::Corrupt`] if its description is damaged;
    /// `Unsupported` if the description is of another version; errors of reading it.
    pub fn inspect(path: impl AsRef<Path>) -> Result<DiskInfo> {
        let state = State::load(&RealDirectory::unlocked(path.as_ref())?)?;
        let pairs = state.pairs.into_iter().map(|files| (files.data, files.index)).collect();
        let State { virtual_size: size, parent, reference, uuid, .. } = state;
        Ok(DiskInfo { size, parent, reference, uuid, pairs })
    }

    fn create_in(
        directory: Arc<dyn Directory>,
        base: Option<Arc<dyn BlockDevice>>,
        new: &NewDisk,
    ) -> Result<Self> {
        state::check_size(new.size)?;
        check_base(base.as_deref(), new.size)?;
        refuse_content(&*directory)?;
        let state = State::new(new.uuid, new.parent.clone(), new.size, &[0]);
        let pair = Pair::create(&*directory, &state, 0)?;
        directory.sync()?;
        state.store(&*directory).map_err(|e| e.error)?;
        let generation = Generation::first(Arc::new(pair), Vec::new(), base);
        Ok(Self::assemble(directory, state, generation, RunMap::default()))
    }

    fn open_in(
        directory: Arc<dyn Directory>,
        base: Option<Arc<dyn BlockDevice>>,
        parent: &str,
    ) -> Result<Self> {
        let state = State::load(&*directory)?;
        if state.parent != parent {
            let named =
                |parent: &str| if parent.is_empty() { "nothing".to_owned() } else { parent.to_owned() };
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("the writable layer is based on {}, not on {}", named(&state.parent), named(parent)),
            )
            .remedy("attach the image it belongs to, or give a new directory"));
        }
        check_base(base.as_deref(), state.virtual_size)?;
        // The names that were read must be durable before anything is cut off or removed. A name that a killed
        // process has given may be in memory only, and another log names other places of the data.
        directory.sync()?;
        let left = Left::read(&*directory, &state);
        let mut pairs = Vec::new();
        for files in &state.pairs {
            let noted = state.noted(&files.index);
            let (pair, runs) = Pair::recover(&*directory, files, noted, state.may_be_shared(files), &left)?;
            noted::check_inside(&runs, state.virtual_size).map_err(|e| e.about(&files.index))?;
            // Bytes that a killed process left may be in the page cache only. From here on they can be seen, and a
            // flush would have nothing to do for them.
            pair.sync_both()?;
            pair.log_left()?;
            pairs.push((Arc::new(pair), runs));
        }
        let Some((active, runs)) = pairs.pop() else {
            return Err(Error::corrupt("it names no pairs"));
        };
        if !active.is_sealed()? {
            return Err(Error::unsupported("its last pair was made by another program"));
        }
        if active.virtual_size()? != Some(state.virtual_size) {
            active.set_virtual_size(state.virtual_size)?;
            active.sync_both()?;
        }
        state.remove_leftovers(&*directory);
        let frozen = pairs.into_iter().rev().map(|(pair, runs)| Arc::new(Frozen { pair, runs })).collect();
        Ok(Self::assemble(directory, state, Generation::first(active, frozen, base), runs))
    }

    fn assemble(directory: Arc<dyn Directory>, state: State, generation: Generation, runs: RunMap) -> Self {
        let data_mark = generation.active.end();
        let next_number = state.numbers().into_iter().max().unwrap_or(0) + 1;
        let collector = Mutex::new(Collector::new(&generation, &runs));
        let alive = generation.alive();
        let ends = generation.log_ends();
        let pending = Arc::new(Pending::new(Arc::clone(&directory), state.uuid, ends));
        let view = View {
            size: state.virtual_size,
            limits: Limits::default(),
            dying: Vec::new(),
            copied_up: CopiedUp::noted(state.copied_up_bytes),
            generation: Arc::new(generation),
            runs,
            pending: Vec::new(),
            writes: 0,
            data_mark,
        };
        Self {
            directory,
            maintenance: Mutex::new(Maintenance { awaiting: None }),
            brief: AtomicU64::new(0),
            snapshots: Mutex::new(()),
            state: Mutex::new(state),
            flusher: Mutex::new(Flusher { durable: 0 }),
            view: RwLock::new(view),
            unlogged: AtomicU64::new(0),
            pending,
            next_number: AtomicU64::new(next_number),
            collector,
            ready: Mutex::default(),
            commits: Mutex::default(),
            held: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            alive,
            gate: Gate::default(),
            counters: Counters::default(),
            failed: OnceLock::new(),
        }
    }

    /// Makes the disk larger: `size` is the new size in bytes. The new bytes read as zeros. The change is
    /// durable when this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if `size` is smaller than the disk, no multiple of 512 or larger than the format allows;
    /// errors of the files; [`ErrorKind::Io`] if a sync failed since the disk was opened.
    pub fn grow(&self, size: u64) -> Result<()> {
        self.check_usable()?;
        state::check_size(size)?;
        let mut state = self.state.lock();
        if size < state.virtual_size {
            return Err(Error::invalid(format!(
                "a disk of {} bytes cannot become smaller ({size})",
                state.virtual_size
            ))
            .remedy("give a larger size, or import it into a new image"));
        }
        // The headers first: they are for other programs, and a size too large in them does no harm.
        let active = self.generation().active.clone();
        active.set_virtual_size(size)?;
        self.synced(active.sync_both())?;
        let grown = State { virtual_size: size, ..state.clone() };
        self.store(&mut state, grown)?;
        self.view_mut().size = size;
        Ok(())
    }

    /// The name of the base, for instance the digest of an image's manifest; empty if the disk has no base.
    #[must_use]
    pub fn parent(&self) -> String {
        self.state.lock().parent.clone()
    }

    /// The id of the disk.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.state.lock().uuid
    }

    /// Stores durably the reference under which the base can be found, for instance an image name in a
    /// registry. It comes back as [`DiskInfo::reference`].
    ///
    /// # Errors
    /// Errors of writing the description of the disk.
    pub fn note_reference(&self, reference: &str) -> Result<()> {
        let mut state = self.state.lock();
        if state.reference.as_deref() == Some(reference) {
            return Ok(());
        }
        self.check_usable()?;
        let noted = State { reference: Some(reference.to_owned()), ..state.clone() };
        self.store(&mut state, noted)
    }

    /// Flushes the records that all returned writes have put into the view.
    fn flush_with(&self, flusher: &mut Flusher) -> Result<()> {
        self.flush_listing(flusher, None)
    }

    /// As [`flush_with`](Self::flush_with); appends the new records of one pair to a list, even if it fails.
    fn flush_listing(
        &self,
        flusher: &mut Flusher,
        listed: Option<(&Arc<Pair>, &mut Vec<Segment>)>,
    ) -> Result<()> {
        self.check_usable()?;
        let (generation, pending, mut dying, writes, reached) = {
            let mut view = self.view_mut();
            let (pending, dying) = (std::mem::take(&mut view.pending), std::mem::take(&mut view.dying));
            (view.generation.clone(), pending, dying, view.writes, self.pending.position())
        };
        generation.active.log().unwritten.extend(pending);
        if let Some((pair, records)) = listed {
            records.extend(&pair.log().unwritten);
        }
        // A pair that was frozen while its flush failed goes first: its writes are the older ones.
        let flushed = generation.pairs().try_for_each(|pair| self.flush_pair(pair, reached));
        // The entries go first: what they name must stay as long as they count.
        let forgotten = flushed.and_then(|()| self.pending.forget(reached, generation.log_ends()));
        if let Err(error) = forgotten {
            self.view_mut().dying.append(&mut dying);
            return Err(error);
        }
        flusher.durable = writes;
        if !dying.is_empty() {
            self.ready.lock().append(&mut dying);
        }
        Ok(())
    }

    /// Brings the unwritten records of a pair into its log: those of all entries before `reached`.
    fn flush_pair(&self, pair: &Pair, reached: u64) -> Result<()> {
        let mut log = pair.log();
        if !log.unwritten.iter().all(|record| record.is_zeroed()) {
            pair.write_kept()?;
            self.synced(pair.sync_data())?;
        }
        while !log.unwritten.is_empty() {
            let reached = (log.unwritten.len() <= log::GROUP_MAX).then_some(reached);
            let expect = |now, next| self.pending.expect_end(pair.number, now, next, reached);
            let group = pair.write_group(&log, expect)?;
            self.synced(log.file.sync())?;
            pair.accept(&mut log, &group);
            self.unlogged.fetch_sub(group.records as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Replaces `state.json`, and then `state`.
    fn store(&self, state: &mut State, new: State) -> Result<()> {
        match new.store(&*self.directory) {
            Ok(()) => {
                *state = new;
                Ok(())
            }
            Err(StoreError { error, in_doubt: false }) => Err(error),
            Err(StoreError { error, in_doubt: true }) => self.sticky(Err(error)),
        }
    }

    /// Remembers a sync that failed: nothing written after the last flush may be trusted from then on.
    fn sticky<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            self.failed.get_or_init(|| error.to_string());
        })
    }

    /// As [`sticky`](Self::sticky), for a sync of a file: the next process must not rely on what is in memory of it.
    fn synced(&self, result: Result<()>) -> Result<()> {
        // No write is answered any more when the entries cease to count.
        self.sticky(result).inspect_err(|_| self.pending.make_void())
    }

    fn check_usable(&self) -> Result<()> {
        let Some(failure) = self.failed.get() else { return Ok(()) };
        Err(Error::new(ErrorKind::Io, format!("a sync has failed before ({failure})"))
            .remedy(
                "what was flushed before that is safe: check the storage, then detach and attach the disk",
            )
            .about(self.directory.name()))
    }

    /// Brings records into the log before more are made, if too many of them wait.
    fn bound_pending(&self) -> Result<()> {
        self.check_usable()?;
        let is_bounded =
            self.unlogged.load(Ordering::Relaxed) < PENDING_MAX && !self.pending.is_nearly_full();
        if is_bounded { Ok(()) } else { self.flush() }
    }

    /// Size of the disk, and the most bytes that are written or discarded in one step.
    fn size_and_step(&self) -> (u64, u64) {
        let view = self.view();
        (view.size, view.limits.step())
    }

    fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    fn generation(&self) -> Arc<Generation> {
        self.view().generation.clone()
    }

    fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read()
    }

    fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write()
    }
}

impl Drop for WritableDisk {
    fn drop(&mut self) {
        self.pending.close();
    }
}

impl BlockDevice for WritableDisk {
    fn size(&self) -> u64 {
        self.view().size
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = (offset.saturating_add(buf.len() as u64)).div_ceil(SECTOR_SIZE);
        let mut start = offset / SECTOR_SIZE;
        let mut extents = [SectorExtent::EMPTY; EXTENTS_AT_ONCE];
        loop {
            let (generation, count, reached) = {
                let view = self.view();
                check_bounds(offset, buf.len() as u64, view.size)?;
                let (count, reached) = view.extents(start, end, &mut extents);
                (view.generation.clone(), count, reached)
            };
            for extent in &extents[..count] {
                generation.read_extent(*extent, buf, offset)?;
            }
            if reached >= end {
                return Ok(());
            }
            start = reached;
        }
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let (generation, extent) = {
            let view = self.view();
            check_bounds(offset, 1, view.size)?;
            let extent = view.runs.extents(offset / SECTOR_SIZE, view.size / SECTOR_SIZE).next();
            (view.generation.clone(), extent.unwrap_or(SectorExtent::EMPTY))
        };
        generation.extent(extent, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let (size, step) = self.size_and_step();
        let (mut start, _) = whole_sectors(offset, data.len() as u64, size)?;
        for part in data.chunks(to_usize(step)) {
            self.write_step(part, start)?;
            start += part.len() as u64 / SECTOR_SIZE;
        }
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        let (size, step) = self.size_and_step();
        let (mut start, end) = whole_sectors(range.offset(), range.len(), size)?;
        let step = (step / SECTOR_SIZE).min(Segment::MAX_LEN);
        while start < end {
            // A range that reads as zeros needs no record, so the cost of discarding a whole large disk depends on
            // its data.
            let extent = self.extent_at(start * SECTOR_SIZE)?;
            let zero_until = if extent.zero { extent.range.end() / SECTOR_SIZE } else { start };
            if zero_until > start {
                start = zero_until;
                continue;
            }
            let stop = end.min(start + step);
            self.zero_step(start, stop)?;
            start = stop;
        }
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.grow(size)
    }

    fn flush(&self) -> Result<()> {
        let wanted = self.view().writes;
        let mut flusher = self.flusher.lock();
        if flusher.durable >= wanted {
            // The previous holder of the lock has flushed for us as well.
            return self.check_usable();
        }
        self.flush_with(&mut flusher)
    }
}

/// Checks that the disk's end cuts off nothing of the base: cut-off data would come back when the disk grows.
fn check_base(base: Option<&dyn BlockDevice>, size: u64) -> Result<()> {
    match base.map(BlockDevice::size) {
        Some(below) if below > size => {
            Err(Error::invalid(format!("a disk of {size} bytes is smaller than its base ({below} bytes)"))
                .remedy("give it at least that size"))
        }
        _ => Ok(()),
    }
}
