//! Room for the journal on its file system, taken before it is needed.
//!
//! To delete a vSSD frees space, but first the journal must record the deletion. So some room is always taken ahead:
//! `fallocate` beyond the end of the file, which makes the file no longer, and changes nothing for readers. A caller
//! that is about to take flash must check first ([`Journal::check_room`](super::Journal::check_room)). The caller is
//! refused while less than [`RESERVE`] is left and the file system gives no more. Work that moves or trims data may use
//! up half of the reserve. The rest is for records that give flash back, which need no check.
//!
//! The file system can refuse a write all the same: some give no room ahead (such as NFS 3), and a reserve can be used
//! up. That does no harm: the bytes of the refused write stay in memory, and are written again from the same offset.

#[cfg(any(test, feature = "testing"))]
use headstart_block::to_usize;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The number of bytes on the journal's file system that are kept allocated for records that must not fail: those
/// that free space (a deletion takes some hundred bytes), and those of the writes that are under way when the file
/// system is found to be full (hundreds of writes, of some thousand bytes for 64 pages).
pub const RESERVE: u64 = 1 << 20;
/// Bytes that are taken ahead.
const AHEAD: u64 = 2 * RESERVE;
/// The number of bytes that are left of those when more are taken.
const LOW: u64 = AHEAD - RESERVE / 2;

/// The number of bytes that are asked for at a time if all are refused.
const PART: u64 = RESERVE / 16;

/// The room that a file system has given ahead.
#[derive(Debug)]
pub(super) struct Room {
    /// The byte of the file up to which it has given room.
    until: u64,
    /// The reason that it gave no more when it was asked last.
    refused: Option<i32>,
    /// `true` if it gives no room ahead: only a refused write shows that it is full.
    is_blind: bool,
}

impl Room {
    /// The room of a file of `len` bytes, before any was asked for.
    pub(super) fn of(len: u64) -> Self {
        Self { until: len, refused: None, is_blind: false }
    }

    /// Bytes that can be written after this end.
    pub(super) fn left(&self, end: u64) -> u64 {
        match (self.is_blind, self.refused) {
            (true, None) => u64::MAX,
            (true, Some(_)) => 0,
            (false, _) => self.until.saturating_sub(end),
        }
    }

    /// The room to ask for if the file is going to end here.
    pub(super) fn wanted(&mut self, end: u64) -> Option<Wanted> {
        let to = end.saturating_add(AHEAD);
        if self.is_blind {
            return None;
        }
        if self.until >= to {
            // A larger request was refused.
            self.refused = None;
        }
        let low = self.left(end) < LOW || self.refused.is_some();
        low.then_some(Wanted { from: self.until, to })
    }

    /// Notes the outcome of a request for room.
    pub(super) fn on_outcome(&mut self, wanted: Wanted, given: &io::Result<()>) {
        match given {
            Ok(()) => (self.until, self.refused) = (self.until.max(wanted.to), None),
            Err(error) if is_full(error) => self.refused = error.raw_os_error(),
            // Writes will show if there is room.
            Err(_) => (self.is_blind, self.refused) = (true, None),
        }
    }

    /// Notes that a write was refused that was to end here. If room for it had been given, the file system
    /// does not really keep room ahead (ZFS, thin pools).
    pub(super) fn refused(&mut self, error: &io::Error, end: u64) {
        self.refused = error.raw_os_error();
        self.is_blind |= end <= self.until;
    }

    /// Notes that all was written.
    pub(super) fn written(&mut self) {
        if self.is_blind {
            self.refused = None;
        }
    }

    /// The reason that there is no more room, if that is so.
    pub(super) fn refusal(&self) -> Option<io::Error> {
        self.refused.map(io::Error::from_raw_os_error)
    }
}

/// Bytes of a file for which room is wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    from: u64,
    to: u64,
}

/// `true` if an error says that there is no room, for now.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A journal's file.
#[derive(Debug)]
pub(super) struct Medium {
    file: File,
    #[cfg(any(test, feature = "testing"))]
    limit: std::sync::Arc<limit::Limit>,
}

impl Medium {
    pub(super) fn of(file: File) -> Self {
        Self {
            file,
            #[cfg(any(test, feature = "testing"))]
            limit: limit::here(),
        }
    }

    /// Asks the file system for room.
    pub(super) fn take(&self, Wanted { from, to }: Wanted) -> io::Result<()> {
        #[cfg(any(test, feature = "testing"))]
        self.limit.take(&self.file, to)?;
        loop {
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, to.saturating_sub(from)) {
                Err(Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    /// Takes room ahead for a file that ends here.
    pub(super) fn room(&self, end: u64) -> Room {
        let mut room = Room::of(end);
        if let Some(wanted) = room.wanted(end) {
            let given = self.take(wanted);
            room.on_outcome(wanted, &given);
            // Room that was taken before it was opened is still there: as much of it as is given again.
            if room.refused.is_some() {
                let parts = (1..AHEAD / PART).map(|part| Wanted { to: end + part * PART, ..wanted });
                let again = parts.take_while(|part| self.take(*part).is_ok()).last();
                room.until = again.map_or(end, |part| part.to);
            }
        }
        room
    }

    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(any(test, feature = "testing"))]
        self.limit.write(&self.file, bytes, at)?;
        self.file.write_all_at(bytes, at)
    }

    pub(super) fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// A simulated file system that gets full, for tests: all journals that a thread makes or opens are on one.
#[cfg(any(test, feature = "testing"))]
pub mod limit {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    thread_local!(static HERE: Arc<Limit> = Arc::new(Limit::default()));

    /// The simulated file system of a thread's journals.
    #[derive(Debug, Default)]
    pub struct Limit {
        /// `true` if the file system is full: files keep the space that they have, and get no more.
        pub is_full: AtomicBool,
        /// `true` if the file system does not support allocating space ahead.
        pub is_blind: AtomicBool,
        /// `true` if the file system reports space ahead as allocated without allocating it.
        pub is_hollow: AtomicBool,
        /// The position of the write that finds the file system full, among the writes from now on: 1 is the next
        /// one. 0 for none.
        pub after: AtomicU64,
    }

    /// Returns the simulated file system of the calling thread's journals.
    pub fn here() -> Arc<Limit> {
        HERE.with(Arc::clone)
    }

    impl Limit {
        /// Makes the file system full (`true`), or no longer full (`false`).
        pub fn fill(&self, full: bool) {
            self.is_full.store(full, Ordering::SeqCst);
        }

        /// The byte up to which a file may be written.
        fn most(&self, file: &File) -> io::Result<u64> {
            let file = file.metadata()?;
            let takes_ahead =
                ![&self.is_blind, &self.is_hollow].into_iter().any(|it| it.load(Ordering::SeqCst));
            Ok(match (self.is_full.load(Ordering::SeqCst), takes_ahead) {
                (false, _) => u64::MAX,
                (true, true) => file.blocks() * 512,
                (true, false) => file.len(),
            })
        }

        pub(super) fn take(&self, file: &File, to: u64) -> io::Result<()> {
            match self.is_blind.load(Ordering::SeqCst) {
                true => Err(io::ErrorKind::Unsupported.into()),
                false if to > self.most(file)? && !self.is_hollow.load(Ordering::SeqCst) => {
                    Err(Errno::NOSPC.into())
                }
                false => Ok(()),
            }
        }

        /// Writes the part that there is room for, if that is not all.
        pub(super) fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
            let one_less = |left: u64| left.checked_sub(1);
            if self.after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) == Ok(1) {
                self.fill(true);
            }
            let room = to_usize(self.most(file)?.saturating_sub(at));
            if bytes.len() <= room {
                return Ok(());
            }
            file.write_all_at(&bytes[..room], at)?;
            Err(Errno::NOSPC.into())
        }
    }
}
