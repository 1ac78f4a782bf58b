//! The cache directory, as one process has it open.

use crate::blob::CachedBlob;
use crate::earlier;
use crate::evict::{self, Evictor};
use crate::files::{self, Directory};
use crate::overlay::Overlay;
use crate::shared_state::SharedState;
use crate::sidecar::{BootId, Identity, Kind};
use crate::spec::BlobSpec;
use crate::whole;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_hash_tree::{Tree, TreeRoot, outboard_len};
use parking_lot::Mutex;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The part of the size limit that decides when to evict: an eviction is due above the limit less this part, and goes
/// down to the limit less twice this part.
const SLACK: u64 = 16;

/// The time for which a disk that takes nothing is left alone, in milliseconds.
const RETRY_AFTER_MS: u64 = 1000;

/// The time for which the warning about a disk that takes nothing is not repeated, in milliseconds.
const QUIET_MS: u64 = 60_000;

/// The longest time for which inserts find no room beside the same evictor before the disk is left alone, in
/// milliseconds: an eviction seldom takes as long, unless its process was stopped.
const CROWDED_MS: u64 = 1000;

/// The settings of a cache.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    /// The most bytes of blobs and their sidecars on disk; `None`: as many as the disk takes.
    pub size_limit: Option<u64>,
    /// The most bytes of this process's memory for bytes that the disk did not take.
    pub overlay_limit: u64,
    /// `true` if blobs without a hash tree are checked by their digest, in the background, once they are whole.
    pub check_whole: bool,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { size_limit: None, overlay_limit: 32 << 20, check_whole: true }
    }
}

/// A cache directory, shared with all processes that have it open. There is no daemon.
pub struct Cache {
    pub(crate) directory: Directory,
    pub(crate) settings: CacheSettings,
    pub(crate) state: SharedState,
    pub(crate) counts: Counts,
    pub(crate) overlay: Mutex<Overlay>,
    pub(crate) evictor: Mutex<Evictor>,
    /// Lock of the thread that checks a whole blob.
    pub(crate) checking: Mutex<()>,
    /// The blobs whose unusable files were logged.
    pub(crate) said_broken: Mutex<BTreeSet<Digest>>,
    /// The blobs whose wrong bytes were logged.
    pub(crate) said_wrong: Mutex<BTreeSet<Digest>>,
    /// `true` if the directory cannot be used: all goes through memory.
    keeps_nothing: bool,
    /// The blobs in use, by the stems of their files.
    blobs: Mutex<BTreeMap<String, Weak<CachedBlob>>>,
    next_number: AtomicU64,
    /// The time at which to try the disk again, in milliseconds since `opened`; 0: the disk takes writes.
    bypassing_until: AtomicU64,
    /// The time until which the warning about the disk is not repeated, in milliseconds since `opened`.
    quiet_until: AtomicU64,
    /// The bytes for which threads of this process have found room, and which they are about to write.
    reserved: AtomicU64,
    /// The time since which no insert found room beside an evictor, in milliseconds since `opened`; 0: inserts find
    /// room.
    crowded_since: AtomicU64,
    opened: Instant,
}

/// The counts of one process since it opened the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheCounters {
    /// Bytes inserted and written.
    pub inserted_bytes: u64,
    /// Bytes kept in memory because the disk did not take them.
    pub bypassed_bytes: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// Ranges that failed their check.
    pub corrupt_inserts: u64,
    /// Reads of the cache's files that failed.
    pub failed_reads: u64,
    /// Blobs without a hash tree that were whole and matched their digest.
    pub proven_blobs: u64,
    /// Blobs without a hash tree that were whole and did not match their digest.
    pub wrong_blobs: u64,
    /// Bytes that were right when they came, were found wrong later, and were forgotten.
    pub damaged_bytes: u64,
}

/// The counters behind [`CacheCounters`].
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) inserted_bytes: AtomicU64,
    pub(crate) bypassed_bytes: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    pub(crate) corrupt_inserts: AtomicU64,
    pub(crate) failed_reads: AtomicU64,
    pub(crate) proven_blobs: AtomicU64,
    pub(crate) wrong_blobs: AtomicU64,
    pub(crate) damaged_bytes: AtomicU64,
}

/// Room in a cache for bytes that are being written. When it is dropped, the bytes count as taken, or the write has
/// failed.
pub(crate) struct Room<'a> {
    cache: &'a Cache,
    bytes: u64,
}

impl<'a> Room<'a> {
    fn reserve(cache: &'a Cache, bytes: u64) -> Self {
        cache.reserved.fetch_add(bytes, Ordering::AcqRel);
        Self { cache, bytes }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.cache.reserved.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The result of an eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evicted {
    /// Bytes given back.
    pub bytes: u64,
    /// Bytes left.
    pub left_bytes: u64,
    /// Blobs left, outboards included.
    pub left_blobs: u64,
    /// `true` if less could be evicted than was needed: the rest is pinned or describes blobs in use, or an error kept
    /// it.
    #[serde(skip)]
    pub(crate) is_stuck: bool,
}

/// The id of the running kernel.
fn boot_id() -> Result<BootId> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let failed = |e: Error| e.about(PATH).remedy("mount /proc");
    let text = std::fs::read_to_string(PATH).map_err(|e| failed(Error::io("cannot read", e)))?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let id = u128::from_str_radix(&digits, 16).map_err(|_| failed(Error::corrupt("is not an id")))?;
    Ok(id.to_be_bytes())
}

/// The bytes that may stay in the cache when `bytes` more are to fit.
fn target_for(limit: u64, bytes: u64) -> u64 {
    (limit - limit / SLACK * 2).min(limit.saturating_sub(bytes))
}

/// The error of the operating system behind an error, if there is one.
fn errno_of(error: &Error) -> Option<Errno> {
    let io = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    io.and_then(Errno::from_io_error)
}

/// `true` if the disk takes no more, whatever the file.
pub(crate) fn takes_nothing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::ReadOnly) || errno_of(error) == Some(Errno::FBIG)
}

/// `true` if a directory cannot be used because of its disk, or of a stopped process, and not because it is the wrong
/// one.
pub(crate) fn is_fault_of_disk(error: &Error) -> bool {
    const FAULTS: [Errno; 4] = [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::STALE];
    takes_nothing(error)
        || error.kind() == ErrorKind::Conflict
        || errno_of(error).is_some_and(|errno| FAULTS.contains(&errno))
}

/// The spec and identity of a hash tree's outboard, as a blob in the cache.
fn outboard_of(tree: &Tree) -> Result<(BlobSpec, Identity)> {
    let spec = BlobSpec { digest: tree.digest, len: tree.size, tree: None, origin: None };
    // Its pages come unverified and are proven from this root at each use. Under another root they belong to another
    // blob; a manifest that names that root must neither reach nor spoil them.
    let root = *tree.root.as_bytes();
    let identity = Identity { kind: Kind::Outboard, root, ..spec.identity()? };
    Ok((spec, identity))
}

impl Cache {
    /// Opens a cache directory; makes it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the directory is not a cache and holds something else: it stays as it is. Errors of
    /// the operating system if the directory cannot be made, written or locked.
    pub fn open(dir: &Path, settings: CacheSettings) -> Result<Arc<Self>> {
        Self::open_in_boot(dir, settings, boot_id()?)
    }

    /// Opens a directory that is a cache already; makes nothing if it is none.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is not a cache, otherwise as [`open`](Self::open).
    pub fn open_existing(dir: &Path, settings: CacheSettings) -> Result<Arc<Self>> {
        if !Directory::is_there(dir)? {
            let cause = match dir.symlink_metadata() {
                Ok(_) if !dir.is_dir() => "is not a directory",
                Ok(_) => "is not a cache",
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => "there is no cache here",
                Err(e) => return Err(Error::io("cannot look for a cache", e).about(dir.display())),
            };
            return Err(Error::new(ErrorKind::NotFound, cause).about(dir.display()));
        }
        Self::open(dir, settings)
    }

    /// Refuses a directory that is not a cache and holds something else, as [`open`](Self::open) does. One that is
    /// missing passes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] there, [`ErrorKind::Denied`] if directories in it are another user's; what the operating
    /// system reports if this user may not look.
    pub fn check_directory(dir: &Path) -> Result<()> {
        Directory::check_trusted(dir)?;
        // A cache is not listed: it may have very many files.
        match Directory::is_there(dir) {
            Ok(false) => Directory::check_is_free(dir),
            _ => Ok(()),
        }
    }

    /// `true` if a directory is not a cache yet, but holds entries that disks leave in one before that, such as
    /// recorded boots.
    #[must_use]
    pub fn is_begun(dir: &Path) -> bool {
        let is_empty = std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
        !is_empty && Directory::foreign_entry(dir).is_none()
    }

    /// As [`open`](Self::open), except that the cache goes without a directory that is right but whose disk fails or
    /// takes nothing: all fetched bytes go through memory. The second value then is the reason.
    ///
    /// # Errors
    /// Errors of a directory that was not chosen well: it cannot be made, is none, belongs to another user, or holds
    /// something else.
    pub fn open_or_bypass(dir: &Path, settings: CacheSettings) -> Result<(Arc<Self>, Option<Error>)> {
        match Self::open(dir, settings.clone()) {
            Ok(cache) => Ok((cache, None)),
            Err(error) if is_fault_of_disk(&error) => {
                Ok((Self::without_directory(dir, settings)?, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a cache without a directory: all goes through memory.
    pub(crate) fn without_directory(dir: &Path, settings: CacheSettings) -> Result<Arc<Self>> {
        let directory = Directory::unusable(dir)?;
        let state = SharedState::alone(settings.size_limit)?;
        let evictor = Evictor::new(files::unnamed_file()?);
        let cache = Self::assemble(directory, settings, state, evictor);
        Ok(Arc::new(Self { keeps_nothing: true, ..cache }))
    }

    /// As [`open`](Self::open), as if in another run of the kernel.
    pub(crate) fn open_in_boot(dir: &Path, settings: CacheSettings, boot: BootId) -> Result<Arc<Self>> {
        let directory = Directory::open(dir, boot)?;
        let changing = directory.change()?;
        let state = SharedState::open(dir, settings.size_limit)?;
        let evictor = Evictor::new(directory.open_lock(files::EVICT_LOCK)?);
        drop(changing);
        let count_anew = !state.was_there;
        let cache = Self::assemble(directory, settings, state, evictor);
        if count_anew {
            evict::evict(&cache, u64::MAX)?;
        }
        Ok(Arc::new(cache))
    }

    #[expect(clippy::disallowed_methods, reason = "the one look at the clock: when to try a full disk again")]
    fn assemble(directory: Directory, settings: CacheSettings, state: SharedState, evictor: Evictor) -> Self {
        Self {
            directory,
            settings,
            state,
            counts: Counts::default(),
            overlay: Mutex::default(),
            evictor: Mutex::new(evictor),
            checking: Mutex::default(),
            said_broken: Mutex::default(),
            said_wrong: Mutex::default(),
            keeps_nothing: false,
            blobs: Mutex::default(),
            next_number: AtomicU64::new(0),
            bypassing_until: AtomicU64::new(0),
            quiet_until: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            crowded_since: AtomicU64::new(0),
            opened: Instant::now(),
        }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.directory.path
    }

    /// The settings that it was opened with.
    #[must_use]
    pub fn settings(&self) -> &CacheSettings {
        &self.settings
    }

    /// The directory to use if the user names none: `/var/cache/headstart` for root, otherwise in the user's cache.
    #[must_use]
    pub fn default_dir() -> PathBuf {
        let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if rustix::process::geteuid().is_root() {
            return PathBuf::from("/var/cache/headstart");
        }
        let user = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
        user.unwrap_or_else(|| PathBuf::from("/var/cache")).join("headstart")
    }

    /// A blob, together with its hash tree's outboard: one for each identity (digest, length, root of the tree; without
    /// a tree also the origin) as long as it is in use. Makes no files yet. Files that exist and cannot be used are no
    /// error: the blob then goes through memory. Waits for a process that changes the cache directory.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a blob of more than 1 TiB, [`ErrorKind::Corrupt`] if the tree's size
    /// is not that of such a blob.
    pub fn blob(self: &Arc<Self>, spec: &BlobSpec) -> Result<Arc<CachedBlob>> {
        let identity = spec.identity()?;
        let mut blobs = self.blobs.lock();
        let tree = match spec.tree {
            None => None,
            Some(tree) => {
                let (spec, identity) = outboard_of(&tree)?;
                Some(self.blob_of(&mut blobs, &spec, identity, None))
            }
        };
        let blob = self.blob_of(&mut blobs, spec, identity, tree);
        drop(blobs);
        earlier::take_over_tree(self, &blob);
        Ok(blob)
    }

    /// The outboard of a hash tree as version 0.1.0 cached it, if it did: that version left the root out of the
    /// identity.
    pub(crate) fn earlier_outboard(self: &Arc<Self>, tree: &Tree) -> Result<Arc<CachedBlob>> {
        let (spec, identity) = outboard_of(tree)?;
        let identity = Identity { root: [0; 32], ..identity };
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let blob = Arc::new_cyclic(|me| CachedBlob::new(me, self, number, &spec, identity, None));
        blob.find_files();
        Ok(blob)
    }

    /// The blob of a pair of files, with its hash tree, separate from the object that disks of this process use: for
    /// callers that look at the content of the files.
    pub(crate) fn blob_apart(self: &Arc<Self>, identity: &Identity) -> Result<Arc<CachedBlob>> {
        let tree = (identity.kind == Kind::Verified).then(|| Tree {
            root: TreeRoot::from_bytes(identity.root),
            digest: Digest::from_bytes(identity.outboard),
            size: outboard_len(identity.len),
        });
        let open = |spec: &BlobSpec, identity, tree| {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let blob = Arc::new_cyclic(|me| CachedBlob::new(me, self, number, spec, identity, tree));
            blob.find_files();
            blob
        };
        let outboard = match &tree {
            Some(tree) => outboard_of(tree).map(|(spec, identity)| Some(open(&spec, identity, None)))?,
            None => None,
        };
        let spec = BlobSpec { digest: identity.digest, len: identity.len, tree, origin: None };
        Ok(open(&spec, identity.clone(), outboard))
    }

    fn blob_of(
        self: &Arc<Self>,
        blobs: &mut BTreeMap<String, Weak<CachedBlob>>,
        spec: &BlobSpec,
        identity: Identity,
        tree: Option<Arc<CachedBlob>>,
    ) -> Arc<CachedBlob> {
        let stem = identity.file_stem();
        if let Some(blob) = blobs.get(&stem).and_then(Weak::upgrade) {
            return blob;
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let blob = Arc::new_cyclic(|me| CachedBlob::new(me, self, number, spec, identity, tree));
        blob.find_files();
        // The process that brought the last unit may have ended before it checked the blob.
        whole::check_if_whole(&blob);
        blobs.retain(|_, blob| blob.strong_count() > 0);
        blobs.insert(stem, Arc::downgrade(&blob));
        blob
    }

    fn blobs_in_use(&self) -> Vec<Arc<CachedBlob>> {
        self.blobs.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Makes durable what this process inserted, advances the access clock, and evicts if that is due. Meant for a
    /// background thread, every few seconds and before the end: bytes that are not synced survive the end of every
    /// process, but no loss of power.
    ///
    /// # Errors
    /// The first that a blob reports; the other blobs are synced anyway.
    pub fn sync(&self) -> Result<()> {
        self.state.tick();
        let mut result = Ok(());
        for blob in self.blobs_in_use() {
            let synced = blob.sync();
            result = result.and(synced);
        }
        if self.is_crowded() {
            let evicted = self.evict().map(drop);
            result = result.and(evicted);
        }
        result
    }

    /// `true` if the cache is so full that [`evict`](Self::evict) should be called soon: within a 16th of the limit.
    /// Inserts beyond the limit evict by themselves, which takes as long as a sync of the disk.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        let high = |limit: u64| limit - limit / SLACK;
        self.settings.size_limit.is_some_and(|limit| self.state.taken_bytes() > high(limit))
    }

    /// Evicts the least useful chunks that are not pinned, down to an 8th below the limit. Does nothing if there is no
    /// limit, or if another thread or process evicts already.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn evict(&self) -> Result<Evicted> {
        let Some(limit) = self.settings.size_limit else { return Ok(Evicted::default()) };
        Ok(evict::evict(self, limit - limit / SLACK * 2)?.unwrap_or_default())
    }

    /// The counts of this process.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheCounters {
            inserted_bytes: read(&self.counts.inserted_bytes),
            bypassed_bytes: read(&self.counts.bypassed_bytes),
            evicted_bytes: read(&self.counts.evicted_bytes),
            corrupt_inserts: read(&self.counts.corrupt_inserts),
            failed_reads: read(&self.counts.failed_reads),
            proven_blobs: read(&self.counts.proven_blobs),
            wrong_blobs: read(&self.counts.wrong_blobs),
            damaged_bytes: read(&self.counts.damaged_bytes),
        }
    }

    /// Reserves room for `bytes` more to be written, and evicts if that is necessary. `None` if there is no room
    /// because another thread or process that evicts has not made it yet, or because of bytes that other threads are
    /// writing: neither is waited for, because a read may wait for the insert.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<Option<Room<'_>>> {
        if self.is_bypassing() {
            return Err(Error::new(ErrorKind::NoSpace, "the cache's disk took nothing a moment ago"));
        }
        let Some(limit) = self.settings.size_limit else { return Ok(Some(Room::reserve(self, bytes))) };
        // No eviction makes room for more than the limit.
        if bytes > limit {
            return Err(self.is_full());
        }
        let room = Room::reserve(self, bytes);
        let taken = || self.state.taken_bytes();
        // In this order, so that bytes whose write another thread finishes meanwhile count twice, not never.
        let fits = || self.reserved.load(Ordering::Acquire).saturating_add(taken()) <= limit;
        let is_too_much = || taken().saturating_add(bytes) > limit;
        // An eviction goes down to this: below it only bytes that others are writing stand in the way.
        let low = target_for(limit, 0);
        if !fits() && (is_too_much() || taken() > low) {
            match evict::evict(self, target_for(limit, bytes))? {
                None if !fits() => return self.crowded_out(),
                None => {}
                // If it was not stuck, or gave back enough, others took the room first.
                Some(evicted) if evicted.is_stuck && evicted.bytes < bytes && is_too_much() => {
                    return Err(self.is_full());
                }
                Some(_) => self.crowded_since.store(0, Ordering::Relaxed),
            }
        }
        if !fits() {
            return Ok(None);
        }
        if self.crowded_since.load(Ordering::Relaxed) > 0 {
            self.crowded_since.store(0, Ordering::Relaxed);
        }
        Ok(Some(room))
    }

    /// Notes that an insert found no room beside an evictor; an error once that has lasted for too long.
    fn crowded_out(&self) -> Result<Option<Room<'_>>> {
        let now = self.now_ms().max(1);
        let since = self.crowded_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        if now.saturating_sub(since.map_or_else(|since| since, |_| now)) < CROWDED_MS {
            return Ok(None);
        }
        let cause = "the cache is full, and another thread or process that evicts from it does not end";
        // The warning about it names the directory.
        Err(Error::new(ErrorKind::NoSpace, cause)
            .remedy("end the program that evicts, or give the cache a larger size limit"))
    }

    /// `true` if `bytes` more fit below the mark at which an eviction is due.
    pub(crate) fn has_free_room(&self, bytes: u64) -> bool {
        let taken = self.state.taken_bytes().saturating_add(bytes);
        self.settings.size_limit.is_none_or(|limit| taken <= limit - limit / SLACK)
    }

    /// The error of a full cache of which nothing may be evicted.
    fn is_full(&self) -> Error {
        let cause = "the cache is full of what attached disks have pinned or use";
        // The warning about it names the directory.
        Error::new(ErrorKind::NoSpace, cause).remedy("give it a larger size limit")
    }

    /// The number of bytes that the cache can have in all: up to its limit, and at most the bytes that it has taken and
    /// those that are free on its disk. 0 if its disk cannot be used.
    #[must_use]
    pub fn room(&self) -> u64 {
        if self.keeps_nothing {
            return 0;
        }
        let disk = rustix::fs::statvfs(self.dir());
        let free = disk.map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        let room = free.saturating_add(self.state.taken_bytes());
        self.settings.size_limit.map_or(room, |limit| limit.min(room))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The time at which to try again what has just failed, in milliseconds since the cache was opened.
    pub(crate) fn retry_at(&self) -> u64 {
        self.now_ms().saturating_add(RETRY_AFTER_MS)
    }

    /// `true` if the disk is left alone for now.
    pub(crate) fn is_bypassing(&self) -> bool {
        let until = self.bypassing_until.load(Ordering::Relaxed);
        self.keeps_nothing || until > 0 && self.now_ms() < until
    }

    /// Notes that the disk took a write.
    pub(crate) fn bypass_ended(&self) {
        if self.bypassing_until.load(Ordering::Relaxed) > 0
            && self.bypassing_until.swap(0, Ordering::Relaxed) > 0
        {
            tracing::info!(directory = %self.dir().display(), "the cache can be written again");
        }
    }

    /// Notes that the disk refused a write. Logged once until it takes one again, and not each time if it takes and
    /// refuses by turns.
    pub(crate) fn bypass_began(&self, error: &Error) {
        if self.is_bypassing() {
            return;
        }
        if self.bypassing_until.swap(self.retry_at(), Ordering::Relaxed) == 0 && self.is_news(self.now_ms()) {
            tracing::warn!(
                directory = %self.dir().display(), %error,
                "the cache cannot be written; disks go on without it, what they read is fetched again"
            );
        }
    }

    /// `true` if the warning about a disk that takes nothing is due: a disk that is nearly full takes small writes and
    /// refuses large ones.
    pub(crate) fn is_news(&self, now_ms: u64) -> bool {
        let said = |until| (now_ms >= until).then_some(now_ms.saturating_add(QUIET_MS));
        self.quiet_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, said).is_ok()
    }
}
