//! The directory of a cache with its limits, as one process has it open: what all blobs of the cache share.
//!
//! This module knows how much is stored and whether the disk takes writes, but no blobs: `cache` has those that are in
//! use, `evict` chooses among the files, `room` decides if more bytes fit.

use crate::bypass_log::{BypassLog, BypassReason};
use crate::counts::Counts;
use crate::files::{self, Directory};
use crate::overlay::Overlay;
use crate::page_cache::{PageCache, Queue};
use crate::shared_state::SharedState;
use crate::sidecar::BootId;
use headstart_block::{Digest, Error, ErrorKind, Result, saturating};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The part of the size limit that decides when to evict: an eviction is due above the limit less this part, and goes
/// down to the limit less twice this part.
const SLACK: u64 = 16;

/// The time for which a disk that takes nothing is left alone, in milliseconds.
const RETRY_AFTER_MS: u64 = 1000;

/// The settings with which a process opens a cache.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    /// The maximum size of blobs and their sidecars on disk, in bytes; `None` (the default): no limit but the disk's
    /// space.
    pub size_limit: Option<u64>,
    /// The maximum memory of this process, in bytes, for inserted bytes that the disk did not accept. 32 MiB
    /// by default.
    pub overlay_limit: u64,
    /// `true` (the default) if blobs without a hash tree are compared with their digest, in the background, once they
    /// are complete.
    pub check_whole: bool,
    /// The treatment of pages of the kernel's page cache that hold bytes which decoders gave out.
    pub page_cache: PageCache,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { size_limit: None, overlay_limit: 32 << 20, check_whole: true, page_cache: PageCache::Auto }
    }
}

/// The storage of a cache; each blob that is in use keeps it open.
pub(crate) struct Storage {
    pub(crate) directory: Directory,
    pub(crate) settings: CacheSettings,
    pub(crate) state: SharedState,
    pub(crate) counts: Counts,
    pub(crate) overlay: Mutex<Overlay>,
    /// The chunks whose pages may be in the page cache; its lock is held by the thread that sweeps.
    pub(crate) page_queue: Mutex<Queue>,
    /// The lock file of evictors; its lock here is held by the thread of this process that evicts.
    pub(crate) evictor: Mutex<File>,
    /// Lock of the thread that checks a whole blob.
    pub(crate) checking: Mutex<()>,
    /// The blobs whose unusable files were logged.
    pub(crate) logged_broken: Mutex<BTreeSet<Digest>>,
    /// The blobs whose wrong bytes were logged.
    pub(crate) logged_wrong: Mutex<BTreeSet<Digest>>,
    /// `true` if the directory cannot be used: all goes through memory.
    keeps_nothing: bool,
    /// The time at which to try the disk again, in milliseconds since `opened`; 0: the disk takes writes.
    bypassing_until: AtomicU64,
    /// The warnings about a disk that takes nothing.
    bypass_log: Mutex<BypassLog>,
    /// The bytes for which threads of this process have found room, and which they are about to write.
    pub(crate) reserved: AtomicU64,
    /// The time since which no insert found room beside an evictor, in milliseconds since `opened`; 0: inserts find
    /// room.
    pub(crate) crowded_since: AtomicU64,
    opened: Instant,
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

impl Storage {
    /// Opens a cache directory, and makes it if it does not exist. The second value is `true` if its bytes have to be
    /// counted: no process has left their number.
    pub(crate) fn open(dir: &Path, settings: CacheSettings, boot: BootId) -> Result<(Self, bool)> {
        let directory = Directory::open(dir, boot)?;
        let changing = directory.change()?;
        let state = SharedState::open(dir, settings.size_limit)?;
        let evictor = directory.open_lock(files::EVICT_LOCK)?;
        drop(changing);
        let is_uncounted = !state.was_there;
        Ok((Self::assemble(directory, settings, state, evictor, false), is_uncounted))
    }

    /// The storage of a cache whose directory cannot be used: all bytes go through memory.
    pub(crate) fn without_directory(dir: &Path, settings: CacheSettings) -> Result<Self> {
        let directory = Directory::unusable(dir)?;
        let state = SharedState::alone(settings.size_limit)?;
        Ok(Self::assemble(directory, settings, state, files::unnamed_file()?, true))
    }

    #[expect(clippy::disallowed_methods, reason = "the one look at the clock: when to try a full disk again")]
    fn assemble(
        directory: Directory,
        settings: CacheSettings,
        state: SharedState,
        evictor: File,
        keeps_nothing: bool,
    ) -> Self {
        Self {
            directory,
            settings,
            state,
            counts: Counts::default(),
            overlay: Mutex::default(),
            page_queue: Mutex::default(),
            evictor: Mutex::new(evictor),
            checking: Mutex::default(),
            logged_broken: Mutex::default(),
            logged_wrong: Mutex::default(),
            keeps_nothing,
            bypassing_until: AtomicU64::new(0),
            bypass_log: Mutex::default(),
            reserved: AtomicU64::new(0),
            crowded_since: AtomicU64::new(0),
            opened: Instant::now(),
        }
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.directory.path
    }

    /// `true` if an eviction is due: the cache is within a 16th of its limit.
    pub(crate) fn is_crowded(&self) -> bool {
        let high = |limit: u64| limit - limit / SLACK;
        self.settings.size_limit.is_some_and(|limit| self.state.taken_bytes() > high(limit))
    }

    /// The mark down to which an eviction goes.
    pub(crate) fn low_mark(limit: u64) -> u64 {
        limit - limit / SLACK * 2
    }

    /// `true` if `bytes` more fit below the mark at which an eviction is due.
    pub(crate) fn has_free_room(&self, bytes: u64) -> bool {
        let taken = self.state.taken_bytes().saturating_add(bytes);
        self.settings.size_limit.is_none_or(|limit| taken <= limit - limit / SLACK)
    }

    /// The number of bytes that the cache can have in all: up to its limit, and at most the bytes that it has taken and
    /// those that are free on its disk. 0 if its disk cannot be used.
    pub(crate) fn room(&self) -> u64 {
        if self.keeps_nothing {
            return 0;
        }
        let disk = rustix::fs::statvfs(self.dir());
        let free = disk.map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        let room = free.saturating_add(self.state.taken_bytes());
        self.settings.size_limit.map_or(room, |limit| limit.min(room))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        saturating::<u64>(self.opened.elapsed().as_millis())
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
            self.bypass_log.lock().ended();
            tracing::info!(directory = %self.dir().display(), "the cache can be written again");
        }
    }

    /// Leaves the disk alone for a while, and logs why if that is news.
    pub(crate) fn bypass_began(&self, reason: BypassReason, error: &Error) {
        if self.is_bypassing() {
            return;
        }
        self.bypassing_until.store(self.retry_at(), Ordering::Relaxed);
        if self.bypass_log.lock().began(reason, self.now_ms()) {
            tracing::warn!(
                directory = %self.dir().display(), %error,
                "the cache cannot be written; disks go on without it, what they read is fetched again"
            );
        }
    }
}
