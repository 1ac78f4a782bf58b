//! The few numbers that all processes on a cache share: the fill level, and the clock of accesses.
//!
//! The file `state.1` (1 is its version), one page, mapped:
//!
//! ```text
//!  0  8  magic: "hs-state"
//!  8  8  bytes that are local in all blobs, and of their sidecars
//! 16  8  epoch: the clock that accesses are marked with
//! 24  8  bytes inserted since the file was made
//! 32  8  the time at which an epoch was last ended by the clock, in seconds since 1970
//! 40  8  bytes of sidecars made since the file was made
//! 48 ..  0
//! ```
//!
//! Nothing depends on them being exact: a process that is killed at the wrong moment leaves the fill level a little
//! wrong, and every eviction counts again. Any content is a valid one.

use crate::mapping::Mapping;
use crate::sidecar::allocate;
use headstart_block::Result;
use headstart_block::guarded::check_own_file;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) const MAGIC: &[u8; 8] = b"hs-state";
const LEN: usize = 4096;
/// The file's name.
pub(crate) const NAME: &str = "state.1";

/// The number of epochs in which as many bytes are inserted as the size limit allows: an epoch ends after this part of
/// the limit.
const EPOCHS_PER_LIMIT: u64 = 32;
/// The longest time of an epoch in seconds: longer than a scan looks at a chunk, shorter than it takes to start a
/// machine again.
const EPOCH_SECONDS: u64 = 30;
/// The limit that stands in for none in the length of an epoch, in bytes.
const UNLIMITED: u64 = 32 << 30;

/// The shared numbers.
pub(crate) struct SharedState {
    mapping: Mapping,
    /// The number of bytes of an epoch.
    epoch_len: u64,
    /// `true` if the fill level was found in the file; otherwise it has to be counted first.
    pub(crate) was_there: bool,
}

impl SharedState {
    /// Opens or makes the file; under the directory's lock. If the disk is too full for it, this process counts alone.
    pub(crate) fn open(directory: &Path, size_limit: Option<u64>) -> Result<Self> {
        let (mapping, was_there) = match open_file(&directory.join(NAME)) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(%error, directory = %directory.display(), "the cache's shared state cannot be used");
                return Self::alone(size_limit);
            }
        };
        Ok(Self { mapping, epoch_len: epoch_len(size_limit), was_there })
    }

    /// Makes numbers that no other process shares.
    pub(crate) fn alone(size_limit: Option<u64>) -> Result<Self> {
        Ok(Self { mapping: Mapping::anonymous(LEN)?, epoch_len: epoch_len(size_limit), was_there: false })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.mapping.words(at * 8, 1)[0]
    }

    /// The number of bytes that are taken: those that are local in all blobs, and their sidecars.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.word(1).load(Ordering::Acquire)
    }

    /// The number of bytes that were inserted since the file was made, and those of sidecars.
    pub(crate) fn added_bytes(&self) -> u64 {
        [3, 5].map(|at| self.word(at).load(Ordering::Relaxed)).into_iter().fold(0, u64::wrapping_add)
    }

    /// Sets the bytes that are taken to `counted` plus the bytes that were added since
    /// [`added_bytes`](Self::added_bytes) returned `added_before`, because the count may lack them. Returns the sum.
    pub(crate) fn set_counted_bytes(&self, counted: u64, added_before: u64) -> u64 {
        // A process that adds bytes counts them as added before it counts them as taken, and this looks in the other
        // order: bytes added meanwhile count twice, not never.
        let before = self.taken_bytes();
        let taken = counted.saturating_add(self.added_bytes().wrapping_sub(added_before));
        let corrected = |now: u64| {
            Some(taken.saturating_add(now.saturating_sub(before)).saturating_sub(before.saturating_sub(now)))
        };
        let _ = self.word(1).fetch_update(Ordering::Relaxed, Ordering::Relaxed, corrected);
        taken
    }

    /// Counts `bytes` of a new sidecar as taken.
    pub(crate) fn occupy(&self, bytes: u64) {
        self.word(5).fetch_add(bytes, Ordering::Relaxed);
        self.word(1).fetch_add(bytes, Ordering::Release);
    }

    /// Counts `bytes` more as local.
    pub(crate) fn add(&self, bytes: u64) {
        let before = self.word(3).fetch_add(bytes, Ordering::Relaxed);
        self.word(1).fetch_add(bytes, Ordering::Release);
        if before / self.epoch_len != before.wrapping_add(bytes) / self.epoch_len {
            self.next_epoch();
        }
    }

    /// Counts `bytes` fewer as taken.
    pub(crate) fn subtract(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.word(1).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// The present epoch, of 30 bits.
    #[expect(clippy::cast_possible_truncation, reason = "cut on purpose")]
    pub(crate) fn epoch(&self) -> u32 {
        self.word(2).load(Ordering::Relaxed) as u32 & crate::policy::EPOCH_MASK
    }

    /// Ends the epoch if it has lasted long enough, in the process that looks first.
    #[expect(
        clippy::disallowed_methods,
        reason = "accesses of different minutes count apart; nothing else depends on it"
    )]
    pub(crate) fn tick(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let last = self.word(4).load(Ordering::Relaxed);
        if now.abs_diff(last) >= EPOCH_SECONDS
            && self.word(4).compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.next_epoch();
        }
    }

    /// Begins the next epoch: from now on an access counts again.
    pub(crate) fn next_epoch(&self) {
        self.word(2).fetch_add(1, Ordering::Relaxed);
    }
}

fn epoch_len(size_limit: Option<u64>) -> u64 {
    (size_limit.unwrap_or(UNLIMITED) / EPOCHS_PER_LIMIT).max(1)
}

fn open_file(path: &Path) -> io::Result<(Mapping, bool)> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    // No link in its place is followed, and a pipe is not waited for.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    check_own_file(&file, path).map_err(io::Error::other)?;
    let mut magic = [0; 8];
    let was_there = file.metadata()?.len() >= LEN as u64 && {
        file.read_exact_at(&mut magic, 0)?;
        magic == *MAGIC
    };
    if !was_there {
        allocate(&file, LEN as u64)?;
        file.write_all_at(MAGIC, 0)?;
    }
    Ok((Mapping::of_file(&file, LEN)?, was_there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_follow_each_other_and_begin_again_after_30_bits() {
        let state = SharedState::alone(None).unwrap();
        let next = || {
            state.next_epoch();
            state.epoch()
        };
        assert_eq!([state.epoch(), next(), next()], [0, 1, 2]);
        state.word(2).store((1 << 30) - 2, Ordering::Relaxed);
        assert_eq!([next(), next()], [(1 << 30) - 1, 0]);
    }

    #[test]
    fn bytes_added_during_a_count_are_counted() {
        let state = SharedState::alone(None).unwrap();
        state.add(100);
        let before = state.added_bytes();
        assert_eq!((state.set_counted_bytes(70, before), state.taken_bytes()), (70, 70));
        state.add(30);
        assert_eq!((state.set_counted_bytes(70, before), state.taken_bytes()), (100, 100));
        state.occupy(8);
        assert_eq!((state.set_counted_bytes(70, before), state.taken_bytes()), (108, 108));
        // The number that was there before does not matter: any content is a valid one.
        state.occupy(u64::MAX - 100);
        assert_eq!((state.set_counted_bytes(5, state.added_bytes()), state.taken_bytes()), (5, 5));
    }
}
