//! Room for the journal on its file system, taken before it is needed.
//!
//! What is deleted is erased, and so makes room, only when the journal says that it is deleted. So some room is always
//! taken ahead: `fallocate` beyond the end of the file, which does not become longer by it, and is read as before. Who
//! is about to take flash asks first and is refused while there is less than [`RESERVE`] ahead and no more to be had;
//! who tidies up may have half of that; the rest is for who gives back, and does not ask.
//!
//! A write that the file system refuses all the same (it gives no room ahead, as NFS 3 does, or the reserve is used up)
//! harms nothing: what was to be written stays in memory, and is written over whatever came through of it.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes ahead that are for what gives back: a deletion takes some hundred, a write of 64 pages some thousand, and
/// hundreds of writes may be on their way when it is seen that there is no more.
pub(crate) const RESERVE: u64 = 1 << 20;
/// Bytes that are taken ahead.
const AHEAD: u64 = 2 * RESERVE;
/// Bytes that are left of those when more are taken.
const LOW: u64 = AHEAD - RESERVE / 2;

/// Bytes that are asked for at a time where all are refused.
const PART: u64 = RESERVE / 16;

/// What a file system has given ahead.
#[derive(Debug)]
pub(super) struct Room {
    /// Up to which byte of the file.
    until: u64,
    /// Why it gave no more when it was asked last.
    refused: Option<i32>,
    /// It gives no room ahead: that it is full is known when it refuses a write.
    is_blind: bool,
}

impl Room {
    /// Of a file of so many bytes, for which nothing was asked yet.
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

    /// What should be asked for where the file is going to end here.
    pub(super) fn wanted(&mut self, end: u64) -> Option<Wanted> {
        let to = end.saturating_add(AHEAD);
        if self.is_blind {
            return None;
        }
        if self.until >= to {
            // It was more that was refused.
            self.refused = None;
        }
        let low = self.left(end) < LOW || self.refused.is_some();
        low.then_some(Wanted { from: self.until, to })
    }

    /// What became of it.
    pub(super) fn asked(&mut self, wanted: Wanted, given: &io::Result<()>) {
        match given {
            Ok(()) => (self.until, self.refused) = (self.until.max(wanted.to), None),
            Err(error) if is_full(error) => self.refused = error.raw_os_error(),
            // What becomes of writes will be seen.
            Err(_) => (self.is_blind, self.refused) = (true, None),
        }
    }

    /// A write was refused that was to end here. Room that was given and is not there never was (ZFS, thin pools).
    pub(super) fn refused(&mut self, error: &io::Error, end: u64) {
        self.refused = error.raw_os_error();
        self.is_blind |= end <= self.until;
    }

    /// All was written.
    pub(super) fn written(&mut self) {
        if self.is_blind {
            self.refused = None;
        }
    }

    /// Why there is no more, if that is so.
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

/// Whether an error says that there is no room, for now.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A journal's file.
#[derive(Debug)]
pub(super) struct Medium {
    file: File,
    #[cfg(test)]
    limit: std::sync::Arc<limit::Limit>,
}

impl Medium {
    pub(super) fn of(file: File) -> Self {
        Self {
            file,
            #[cfg(test)]
            limit: limit::here(),
        }
    }

    /// Asks the file system for room.
    pub(super) fn take(&self, Wanted { from, to }: Wanted) -> io::Result<()> {
        #[cfg(test)]
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
            room.asked(wanted, &given);
            // What was taken before it was opened is there still: as much of it as is given again.
            if room.refused.is_some() {
                let parts = (1..AHEAD / PART).map(|part| Wanted { to: end + part * PART, ..wanted });
                let again = parts.take_while(|part| self.take(*part).is_ok()).last();
                room.until = again.map_or(end, |part| part.to);
            }
        }
        room
    }

    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
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

/// File systems that get full, for tests: all journals that a thread makes or opens are on the same.
#[cfg(test)]
pub(crate) mod limit {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    thread_local!(static HERE: Arc<Limit> = Arc::new(Limit::default()));

    #[derive(Debug, Default)]
    pub(crate) struct Limit {
        /// A file has what was given to it, and gets no more.
        pub(crate) is_full: AtomicBool,
        /// It gives no room ahead.
        pub(crate) is_blind: AtomicBool,
        /// It says that it gave room, and did not.
        pub(crate) is_hollow: AtomicBool,
        /// After so many writes it is full; 0: that is not known.
        pub(crate) after: AtomicU64,
    }

    /// That of this thread.
    pub(crate) fn here() -> Arc<Limit> {
        HERE.with(Arc::clone)
    }

    impl Limit {
        pub(crate) fn fill(&self, full: bool) {
            self.is_full.store(full, Ordering::SeqCst);
        }

        /// Up to where a file may be written.
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

        /// Writes what there is room for, where that is not all.
        pub(super) fn write(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
            let one_less = |left: u64| left.checked_sub(1);
            if self.after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) == Ok(1) {
                self.fill(true);
            }
            let room = usize::try_from(self.most(file)?.saturating_sub(at)).unwrap_or(usize::MAX);
            if bytes.len() <= room {
                return Ok(());
            }
            file.write_all_at(&bytes[..room], at)?;
            Err(Errno::NOSPC.into())
        }
    }
}
