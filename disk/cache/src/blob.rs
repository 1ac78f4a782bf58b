//! One blob in the cache: reads of local bytes, the list of missing ranges, and the blob's files.
//!
//! # Reading while others evict
//!
//! [`read_at`](ReadAt::read_at) takes no lock. It looks at the generation, then at the bits, reads the file, and looks
//! at the generation again; if that changed, it starts again. Why this never returns bytes that were given back:
//!
//! 1. An evictor clears the bits, then raises the generation, then gives the bytes back (punches a hole). An
//!    insert writes the bytes, then sets the bits; it and the punching of holes exclude each other by a lock, and
//!    under that lock the evictor looks again and spares units that were inserted again.
//! 2. Suppose the read saw a hole. The hole was punched before the read of that page, the generation raised
//!    before that: the second look, after the read, sees it raised by then. If it was raised after the first
//!    look, the two looks differ, and the reader starts again.
//! 3. If it was raised before the first look, the bits were cleared before it too, and the reader, which
//!    looks at the bits after the generation, saw them cleared, unless an insert had set them again. That
//!    insert wrote its bytes before it set the bits, and after the punching (by the lock, and because it
//!    would have been spared otherwise); so the read that follows sees the insert's bytes and no hole, or one
//!    of a later eviction, for which 2 holds.
//!
//! Nothing of this depends on which thread or process does what: bits and generation are in shared memory, and calls on
//! one file are ordered. The steps are in `presence`, whose tests try every order of them that the memory model allows.

use crate::blob_files::Files;
use crate::bypass_log::BypassReason;
use crate::check_state::CheckState;
use crate::claim_table::{ClaimTable, missing_of_run};
use crate::durable;
use crate::page_cache::{PageCache, PageUse};
use crate::pin_table;
use crate::policy;
use crate::presence::{self, Outcome};
use crate::room::Room;
use crate::sidecar::{CHUNK, Identity, Kind, Layout};
use crate::spec::BlobSpec;
use crate::storage::{Storage, takes_nothing};
use headstart_block::{ByteRange, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_hash_tree::pages;
use parking_lot::Mutex;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The most times that a read starts again because a part of its blob was evicted: evictions are rare.
const READ_TRIES: usize = 64;

/// The longest outboard, in bytes, that is fetched as a whole: the first page costs a round trip anyway.
const SMALL_TREE: u64 = 64 << 10;

/// The longest sidecar, in bytes, that is made before any byte of its blob came: that of a blob of 1.375 GiB. Lengths
/// come from manifests, and from orders of other hosts; nothing proves them.
const UNPROVEN_MAX: u64 = 128 << 10;

/// A callback for a change of a blob.
type Waker = Box<dyn FnOnce() + Send>;

/// An object that was derived from a blob's bytes, such as an index, and that becomes invalid if those bytes
/// were wrong.
pub trait Watcher: Send + Sync {
    /// Called after a check by this process found that `blob` was complete and did not match its digest. All bytes of
    /// `blob` have been removed from the cache.
    fn found_wrong(self: Arc<Self>, blob: &Arc<CachedBlob>);
}

/// One blob in the cache, open in this process. Dropping it leaves its bytes in the cache.
pub struct CachedBlob {
    me: Weak<Self>,
    pub(crate) storage: Arc<Storage>,
    /// The blob's number in this process: its name in the overlay.
    pub(crate) number: u64,
    spec: BlobSpec,
    identity: Identity,
    pub(crate) layout: Layout,
    tree: Option<Arc<CachedBlob>>,
    /// The two files: made at the first claim or insert, or taken into use at once if they exist.
    files: OnceLock<Files>,
    /// Held by the thread that makes the files.
    making_files: Mutex<()>,
    /// `true` if no byte that this process inserted stayed; empty files are then removed at the end.
    pub(crate) is_untouched: AtomicBool,
    /// The time before which files that could not be opened or made are not tried again, in milliseconds since the
    /// cache was opened.
    no_files_until: AtomicU64,
    /// The number of units in the overlay.
    pub(crate) units_in_memory: Arc<AtomicUsize>,
    /// `true` if something was inserted since the last sync.
    pub(crate) dirty: AtomicBool,
    /// The number of threads that write at the moment: the first takes the lock between processes, the last gives it
    /// back.
    pub(crate) writers: Mutex<usize>,
    pub(crate) claims: Mutex<ClaimTable>,
    /// Pinned ranges of chunks, each once for every pin.
    pub(crate) pins: Mutex<Vec<Range<u64>>>,
    wakers: Mutex<Vec<Waker>>,
    /// The check of the whole blob by its digest, if it has no tree.
    check: CheckState,
    /// The pages that are not needed in the kernel's page cache, once a decoder reads the blob.
    page_use: OnceLock<PageUse>,
    /// The holders of something that was made of its bytes.
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
}

impl CachedBlob {
    pub(crate) fn new(
        me: &Weak<Self>,
        storage: &Arc<Storage>,
        number: u64,
        spec: &BlobSpec,
        identity: Identity,
        tree: Option<Arc<Self>>,
    ) -> Self {
        let layout = Layout::of(&identity);
        Self {
            me: Weak::clone(me),
            storage: Arc::clone(storage),
            number,
            spec: spec.clone(),
            identity,
            layout,
            tree,
            files: OnceLock::new(),
            making_files: Mutex::default(),
            is_untouched: AtomicBool::new(true),
            no_files_until: AtomicU64::new(0),
            units_in_memory: Arc::default(),
            dirty: AtomicBool::new(true),
            writers: Mutex::default(),
            claims: Mutex::default(),
            pins: Mutex::default(),
            wakers: Mutex::default(),
            check: CheckState::default(),
            page_use: OnceLock::new(),
            watchers: Mutex::default(),
        }
    }

    /// The description with which the blob was opened.
    #[must_use]
    pub fn spec(&self) -> &BlobSpec {
        &self.spec
    }

    /// The unit of presence, in bytes: all bytes of a unit become local together. 16 KiB (a group of the hash
    /// tree) for a blob of data, 4 KiB (a page) for an outboard, the file of a hash tree.
    #[must_use]
    pub fn unit(&self) -> u64 {
        self.layout.unit
    }

    /// The outboard (the file of the blob's hash tree), as a cached blob of its own; `None` if the blob has
    /// no hash tree. Pages of the outboard are stored unverified: each use of a page checks it from the root
    /// of the tree on.
    #[must_use]
    pub fn tree(&self) -> Option<&Arc<Self>> {
        self.tree.as_ref()
    }

    /// Returns `true` if all bytes of `range` are in the cache and can be read now, also if `range` is empty. `false`
    /// if `range` extends past the blob's end.
    #[must_use]
    pub fn is_local(&self, range: ByteRange) -> bool {
        if range.end() > self.layout.len {
            return false;
        }
        let units = self.layout.units_of(range.offset(), range.end());
        range.is_empty()
            || self.files.get().is_some_and(|files| presence::all_set(files.sidecar.local(), &units))
            || (self.has_memory() && {
                let mut all = true;
                self.missing_runs(&units, &mut |_| all = false);
                all
            })
    }

    /// Calls `each` with the units that touch `range` and are not local (not in the cache), joined to ranges: aligned
    /// to units, cut at the blob's end, in ascending order and not adjacent. The part of `range` past the blob's end is
    /// ignored.
    pub fn missing(&self, range: ByteRange, each: &mut dyn FnMut(ByteRange)) {
        self.missing_units(range, &mut |run| each(self.bytes_of(&run)));
    }

    /// Calls `each` with the ranges of the outboard that are needed to verify `range` and are not local. The caller
    /// fetches them and inserts them into [`tree`](Self::tree). If the outboard has at most 64 KiB, all of its missing
    /// ranges are named. Does nothing for a blob without a hash tree.
    pub fn tree_missing(&self, range: ByteRange, each: &mut dyn FnMut(ByteRange)) {
        let Some(tree) = &self.tree else { return };
        if tree.layout.len <= SMALL_TREE {
            tree.missing(ByteRange::between(0, tree.layout.len), each);
        } else {
            pages(self.layout.len, range, &mut |run| tree.missing(run, each));
        }
    }

    /// The number of the blob's bytes that are in the cache's files; bytes that are kept in memory do not
    /// count. Each call counts the bits of a bitmap: use it for progress, not for every read.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        self.files.get().map_or(0, Files::all_local_bytes)
    }

    /// Returns `true` if the cache's disk accepts no bytes at present. Inserted bytes are then kept in memory, and only
    /// for a short time, so the caller should fetch only ranges that a read waits for.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.storage.is_bypassing()
    }

    /// For about a second from now, keeps newly inserted bytes in memory and not on disk, for all blobs of this cache,
    /// just as when the disk accepts no bytes (see [`is_bypassed`](Self::is_bypassed)). For a caller that finds that
    /// the bytes of a read were evicted several times before the read could use them, because more is read at once than
    /// the cache has room for.
    pub fn bypass_for_now(&self) {
        let cause = "bytes are evicted before they are read: more is read at once than it has room for";
        let error = Error::new(ErrorKind::NoSpace, cause).remedy("give it a larger size limit");
        self.storage.bypass_began(BypassReason::ReadTooLarge, &error);
    }

    /// Removes the units that touch `range` from the cache: they are not local from now on. The part of `range` past
    /// the blob's end is ignored.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another process keeps the blob's sidecar (the file that records the local units)
    /// locked for 10 seconds: units in the files then stay local. The error of writing the sidecar: the units may then
    /// be local again after a loss of power.
    pub fn discard(&self, range: ByteRange) -> Result<()> {
        let range = range.intersect(ByteRange::between(0, self.layout.len));
        let units = self.layout.units_of(range.offset(), range.end());
        if range.is_empty() {
            return Ok(());
        }
        if self.has_memory() {
            let mut overlay = self.storage.overlay.lock();
            units.clone().for_each(|unit| overlay.remove((self.number, unit)));
        }
        if let Some(files) = self.files.get() {
            self.storage.state.subtract(files.local_bytes(&units));
            durable::forget(files, &[units])?;
            self.is_untouched.fetch_or(files.all_local_bytes() == 0, Ordering::Relaxed);
        }
        self.notify();
        Ok(())
    }

    /// Returns `true` if all local bytes were verified: against the hash tree or, for a blob without one, the complete
    /// blob against its digest. Always `true` for an outboard, whose pages are verified at each use instead.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        !self.is_plain() || self.files.get().is_some_and(Files::is_proven)
    }

    /// Returns `true` if the cache accepts no more bytes of the blob in this process. That happens only to a blob
    /// without a hash tree, after its bytes, once complete, did not match its digest three times in a row. It ends when
    /// this process has closed the blob and opens it again.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.refusal().is_some()
    }

    /// The number of times, since this process opened the blob, that a check by this process found it complete and not
    /// matching its digest. A caller that begins to [`watch`](Self::watch) after it has read bytes compares this number
    /// before and after.
    #[must_use]
    pub fn times_wrong(&self) -> u32 {
        self.check.times_wrong()
    }

    /// Registers `watcher`, which is called each time a check by this process finds the blob complete and not matching
    /// its digest. Checks by other processes do not call `watcher`. `watcher` is never called for a blob with a hash
    /// tree, because the bytes of such a blob are verified as they are inserted.
    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
    }

    /// Opens the blob's files if another process has created them since this process opened the blob, so that the bytes
    /// in them count as local. [`claim`](Self::claim) does the same.
    pub fn look_again(&self) {
        if self.files.get().is_none() {
            self.find_files();
        }
    }

    /// Returns `true` if [`claim`](Self::claim) would return without waiting for the disk or for a process
    /// that changes the cache directory.
    #[must_use]
    pub fn claims_at_once(&self) -> bool {
        self.files.get().is_some() || self.leaves_files_alone()
    }

    /// Registers `waker` to be called once, at the next insert, discard or end of a claim of this blob in this process.
    /// A claim that owns nothing does not count, nor does an insert or a discard of an empty range or one that fails.
    /// The caller must not hold a lock that `waker` takes. To miss nothing, subscribe first and then check whether the
    /// awaited change has happened.
    pub fn subscribe(&self, waker: Box<dyn FnOnce() + Send>) {
        self.wakers.lock().push(waker);
    }

    pub(crate) fn notify(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().for_each(|waker| waker());
    }

    /// Makes the local units durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let Some(files) = self.files.get().filter(|_| self.dirty.swap(false, Ordering::AcqRel)) else {
            return Ok(());
        };
        durable::sync(files).map(drop).inspect_err(|_| self.dirty.store(true, Ordering::Release))
    }

    /// The blob's own `Arc`, unless it is being dropped.
    pub(crate) fn shared(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    pub(crate) fn watchers(&self) -> Vec<Arc<dyn Watcher>> {
        self.watchers.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// The error by which nothing of the blob is taken any more, if that is so.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.check.refusal(&self.spec.digest)
    }

    pub(crate) fn check(&self) -> &CheckState {
        &self.check
    }

    /// Fails if the cache takes nothing of the blob any more.
    pub(crate) fn check_taken(&self) -> Result<()> {
        self.refusal().map_or(Ok(()), Err)
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.identity.kind == Kind::Plain
    }

    /// The pages that are not needed in the kernel's page cache; `None` unless a decoder reads the blob.
    pub(crate) fn page_use(&self) -> Option<&PageUse> {
        self.page_use.get()
    }

    /// The blob's files, if it has any.
    pub(crate) fn present_files(&self) -> Option<&Files> {
        self.files.get()
    }

    /// Takes the blob's files into use if they exist; if they cannot be used, logs that and goes on without them.
    pub(crate) fn find_files(&self) {
        if self.leaves_files_alone() {
            return;
        }
        let _making = self.making_files.lock();
        let found = self.storage.directory.open_blob(&self.identity, false);
        if let Err(error) =
            found.and_then(|files| files.map_or(Ok(()), |files| self.use_files(files).map(drop)))
        {
            self.files_failed(&error);
        }
    }

    /// The blob's files, made if there are none; `None` if there is no room for them yet.
    fn files(&self) -> Result<Option<&Files>> {
        if let Some(files) = self.files.get() {
            return Ok(Some(files));
        }
        let _making = self.making_files.lock();
        if let Some(files) = self.files.get() {
            return Ok(Some(files));
        }
        if let Some(files) = self.storage.directory.open_blob(&self.identity, false)? {
            return self.use_files(files).map(Some);
        }
        // The files that describe the blob count as well: a manifest may name blobs of any length.
        let beside = self.layout.file_len();
        let Some(room) = Room::make(&self.storage, beside)? else { return Ok(None) };
        let made = self.storage.directory.open_blob(&self.identity, true)?;
        self.storage.state.occupy(beside);
        drop(room);
        let made = made.ok_or_else(|| Error::new(ErrorKind::Io, "cannot make cache files"))?;
        self.use_files(made).map(Some)
    }

    fn use_files(&self, files: Files) -> Result<&Files> {
        let files = self.files.get_or_init(|| files);
        pin_table::apply(files, &self.pins.lock())?;
        Ok(files)
    }

    /// The blob's files; if they cannot be opened or made, logs that and goes on without them.
    pub(crate) fn files_or_bypass(&self) -> Option<&Files> {
        match self.files.get() {
            Some(files) => Some(files),
            None if self.leaves_files_alone() => None,
            None => self.files().inspect_err(|error| self.files_failed(error)).ok().flatten(),
        }
    }

    /// The files for a claim. A claim makes only small ones, and only in room that is free: larger ones are made when
    /// the first bytes came (and were found right, if there is a tree). Until then claims hold within this process.
    pub(crate) fn files_to_claim(&self) -> Option<&Files> {
        self.look_again();
        let len = self.layout.file_len();
        match self.files.get() {
            None if len <= UNPROVEN_MAX && self.storage.has_free_room(len) => self.files_or_bypass(),
            found => found,
        }
    }

    /// Removes empty files that no process uses, unless this process filled them: a manifest may name blobs that do not
    /// exist.
    fn release_files(&self) {
        if !self.is_untouched.load(Ordering::Relaxed) {
            return;
        }
        let Some(files) = self.files.get().filter(|files| files.all_local_bytes() == 0) else { return };
        let directory = &self.storage.directory;
        let stem = self.identity.file_stem();
        match directory.change().and_then(|change| change.unlink_if_unused(&stem, files)) {
            Ok(true) => self.storage.state.subtract(self.layout.file_len()),
            Ok(false) => {}
            Err(error) => tracing::debug!(blob = %self.spec.digest, %error, "empty files stay in the cache"),
        }
    }

    /// `true` if the blob's files are not tried at present.
    fn leaves_files_alone(&self) -> bool {
        self.storage.is_bypassing() || self.storage.now_ms() < self.no_files_until.load(Ordering::Relaxed)
    }

    /// Logs that the files cannot be used; they are tried again after a while. A disk that takes nothing concerns all
    /// blobs, a damaged file only this one.
    #[cold]
    fn files_failed(&self, error: &Error) {
        if takes_nothing(error) {
            return self.storage.bypass_began(BypassReason::Refused, error);
        }
        self.no_files_until.store(self.storage.retry_at(), Ordering::Relaxed);
        if self.storage.logged_broken.lock().insert(self.spec.digest) {
            tracing::warn!(
                blob = %self.spec.digest, %error,
                "a cached blob cannot be used; disks go on without it, what they read of it is fetched again"
            );
        }
    }

    /// The units that `range` touches, within the blob.
    pub(crate) fn units_within(&self, range: ByteRange) -> Range<u64> {
        let range = range.intersect(ByteRange::between(0, self.layout.len));
        if range.is_empty() { 0..0 } else { self.layout.units_of(range.offset(), range.end()) }
    }

    /// The bytes of `units`.
    pub(crate) fn bytes_of(&self, units: &Range<u64>) -> ByteRange {
        let start = units.start * self.layout.unit;
        ByteRange::between(start, start + self.layout.bytes_of(units))
    }

    pub(crate) fn chunks_of(&self, units: &Range<u64>) -> Range<u64> {
        let per_chunk = CHUNK / self.layout.unit;
        units.start / per_chunk..units.end.div_ceil(per_chunk)
    }

    pub(crate) fn missing_units(&self, range: ByteRange, each: &mut dyn FnMut(Range<u64>)) {
        self.missing_runs(&self.units_within(range), each);
    }

    /// Names the runs of `units` that neither the file nor memory has.
    pub(crate) fn missing_runs(&self, units: &Range<u64>, each: &mut dyn FnMut(Range<u64>)) {
        let bits = self.files.get().map(|files| files.sidecar.local());
        if !self.has_memory() {
            return missing_of_run(bits, units, each);
        }
        let mut missing = Vec::new();
        missing_of_run(bits, units, &mut |run| missing.push(run));
        let overlay = self.storage.overlay.lock();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for unit in missing.into_iter().flatten().filter(|&unit| overlay.get((self.number, unit)).is_none()) {
            match runs.last_mut() {
                Some(run) if run.end == unit => run.end += 1,
                _ => runs.push(unit..unit + 1),
            }
        }
        drop(overlay);
        runs.into_iter().for_each(each);
    }

    pub(crate) fn has_unit(&self, unit: u64) -> bool {
        self.files.get().is_some_and(|files| presence::all_set(files.sidecar.local(), &(unit..unit + 1)))
    }

    fn has_memory(&self) -> bool {
        self.units_in_memory.load(Ordering::Acquire) > 0
    }

    /// Reads from the file; `true` if all of the bytes were there. The module's head says why this is right.
    pub(crate) fn read_file(&self, files: &Files, buf: &mut [u8], offset: u64) -> bool {
        let units = self.layout.units_of(offset, offset + buf.len() as u64);
        let sidecar = &files.sidecar;
        for _ in 0..READ_TRIES {
            let read = || files.data.read_exact_at(buf, offset);
            match presence::read(sidecar.local(), sidecar.generation(), &units, read) {
                Outcome::Read => return true,
                Outcome::Absent => return false,
                Outcome::Forgotten => {}
                Outcome::Failed(error) => {
                    self.read_failed(files, &units, &error);
                    return false;
                }
            }
        }
        false
    }

    /// Forgets bytes that the disk has lost, so that they are fetched again.
    #[cold]
    fn read_failed(&self, files: &Files, units: &Range<u64>, error: &std::io::Error) {
        let range = self.bytes_of(units);
        if self.storage.counts.failed_reads.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                file = %files.data_path.display(), %range, %error,
                "the cache cannot be read; it is fetched again"
            );
        }
        if let Err(error) = self.discard(range) {
            tracing::warn!(%error, "cannot forget what cannot be read");
        }
    }

    /// Marks chunks as read.
    fn touch(&self, files: &Files, units: &Range<u64>) {
        let epoch = self.storage.state.epoch();
        let access = files.sidecar.access();
        let chunks = self.chunks_of(units);
        if let Some(pages) = self.page_use.get() {
            pages.touch(&chunks);
        }
        for chunk in chunks {
            if let Some(word) = usize::try_from(chunk).ok().and_then(|at| access.get(at)) {
                policy::touch(word, epoch);
            }
        }
    }

    /// Reads bytes that the file alone does not have: unit by unit from the file and from memory.
    #[cold]
    fn read_with_memory(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::between(offset, offset + buf.len() as u64);
        let absent = || self.refusal().unwrap_or_else(|| Error::absent(range));
        if !self.has_memory() {
            return Err(absent());
        }
        let mut rest = buf;
        for part in range.parts(self.layout.unit) {
            let (unit_buf, after) = rest.split_at_mut(to_usize(part.len()));
            rest = after;
            if self.files.get().is_some_and(|files| self.read_file(files, unit_buf, part.offset())) {
                continue;
            }
            let unit = part.offset() / self.layout.unit;
            let start = to_usize(part.offset() % self.layout.unit);
            let overlay = self.storage.overlay.lock();
            let found =
                overlay.get((self.number, unit)).and_then(|bytes| bytes.get(start..start + unit_buf.len()));
            unit_buf.copy_from_slice(found.ok_or_else(absent)?);
        }
        Ok(())
    }
}

impl ReadAt for CachedBlob {
    fn len(&self) -> u64 {
        self.layout.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= self.layout.len);
        let Some(end) = end else {
            return Err(Error::corrupt(format!(
                "needs {} bytes at offset {offset}, but there are only {} in all",
                buf.len(),
                self.layout.len
            ))
            .about(self.spec.digest));
        };
        if buf.is_empty() {
            return Ok(());
        }
        if let Some(files) = self.files.get().filter(|files| self.read_file(files, buf, offset)) {
            self.touch(files, &self.layout.units_of(offset, end));
            return Ok(());
        }
        self.read_with_memory(buf, offset)
    }

    fn wants_decoded(&self) -> bool {
        let wants =
            self.identity.kind != Kind::Outboard && self.storage.settings.page_cache != PageCache::Keep;
        if wants {
            self.page_use.get_or_init(|| PageUse::new(self.layout.len));
        }
        wants
    }

    fn note_decoded(&self, range: ByteRange) {
        if let Some(pages) = self.page_use.get() {
            pages.use_up(range);
        }
    }
}

impl Drop for CachedBlob {
    fn drop(&mut self) {
        if self.has_memory() {
            self.storage.overlay.lock().remove_blob(self.number);
        }
        self.release_files();
    }
}
