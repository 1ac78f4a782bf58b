//! A bucket that several processes share: a small file, which stays in the page cache.
//!
//! ```text
//!  0   8  the letters HSRATE01
//!  8   8  the rate in bytes a second, a double; 0: none
//! 16   8  the bytes in the bucket, a double, negative if it is overdrawn
//! 24   8  the moment at which it was that full: nanoseconds since 1970
//! ```
//!
//! Numbers are little-endian. A process that takes from the bucket holds the file's lock meanwhile; the lock ends
//! with its process. Others wait a second for a process that is stopped just then; after that there is no limit
//! until it goes on, and a process that sets the rate writes only the rate. A wall clock that is set back adds
//! nothing, one that is set forward fills the bucket once. Nothing in the file needs to outlive the host: it is
//! never synced.

use super::{Floor, TokenFlow, most};
use headstart_block::guarded::{FileAccess, GuardedDir, Like};
use headstart_block::lock::{lock_within, try_lock};
use headstart_block::{Error, Result, private, saturating};
use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

const MAGIC: &[u8; 8] = b"HSRATE01";
const LEN: usize = 32;

/// The offset of the fields that change with each read: all behind the rate.
const FLOW: usize = 16;

/// The longest that the file's lock is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two tries to get it.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// The content of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Content {
    flow: TokenFlow,
    at_nanos: u64,
}

impl Content {
    fn decode(bytes: &[u8; LEN]) -> Option<Self> {
        let word = |at: usize| -> Option<[u8; 8]> { bytes.get(at..at + 8)?.try_into().ok() };
        if word(0)? != *MAGIC {
            return None;
        }
        let rate = f64::from_le_bytes(word(8)?);
        let bytes = f64::from_le_bytes(word(16)?);
        let sane = rate.is_finite() && rate >= 0.0 && bytes.is_finite();
        let at_nanos = u64::from_le_bytes(word(24)?);
        sane.then_some(Self { flow: TokenFlow { rate, bytes }, at_nanos })
    }

    fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let words = [
            *MAGIC,
            self.flow.rate.to_le_bytes(),
            self.flow.bytes.to_le_bytes(),
            self.at_nanos.to_le_bytes(),
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word);
        }
        bytes
    }

    fn read(file: &File) -> std::io::Result<Option<Self>> {
        let mut bytes = [0; LEN];
        match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Ok(Self::decode(&bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "processes share no other clock")]
fn now_nanos() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    saturating::<u64>(now.as_nanos())
}

/// Sets the rate limit in the file at `path` to `rate` bytes a second, for all processes that share it.
/// `None` removes the limit; a rate of 0 is treated as 1. The file is created if it does not exist. If another process,
/// perhaps a suspended one, holds the file's lock for a second, the rate is changed without the lock.
///
/// # Errors
/// Errors of creating, locking or writing the file.
pub fn set_shared_rate(path: &Path, rate: Option<u64>) -> Result<()> {
    let about = |e| Error::io("cannot keep the rate there", e).about(path.display());
    let open = || {
        let (dir, name) = GuardedDir::around(path)?;
        dir.open_or_create(name, Like::own(private::FILE_MODE))
    };
    let file = open().map_err(about)?;
    #[expect(clippy::cast_precision_loss, reason = "a rate of 53 bits is past all links")]
    let rate = rate.map_or(0.0, |rate| rate.max(1) as f64);
    let is_locked = lock_within(&file, LOCK_TIMEOUT).map_err(about)?;
    let before = Content::read(&file).map_err(about)?;
    let (bytes, at_nanos) = before
        .map_or((most(rate), now_nanos()), |content| (content.flow.bytes.min(most(rate)), content.at_nanos));
    let content = Content { flow: TokenFlow { rate, bytes }, at_nanos }.encode();
    // The holder of the lock writes the fields that follow the rate.
    let changed = if is_locked || before.is_none() { &content[..] } else { &content[..FLOW] };
    let written = file.write_all_at(changed, 0).map_err(about);
    // The lock ends with the file, too.
    let _ = file.unlock();
    written
}

/// A bucket in a file.
#[derive(Debug)]
pub(super) struct SharedBucket {
    file: Mutex<LockedFile>,
}

#[derive(Debug)]
struct LockedFile {
    file: File,
    /// The moment since which another process has the lock. Not the wall clock's time, which may be set back meanwhile.
    held_since: Option<Instant>,
}

impl SharedBucket {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let about = |e: Error| e.about(path.display());
        let open = || {
            let (dir, name) = GuardedDir::around(path)?;
            dir.open_file(name, FileAccess::ReadWrite)
        };
        let file = open().map_err(|e| about(Error::io("cannot open", e)))?;
        let content = Content::read(&file).map_err(|e| about(Error::io("cannot read", e)))?;
        content.ok_or_else(|| about(Error::corrupt("is not a shared rate")))?;
        Ok(Self { file: Mutex::new(LockedFile { file, held_since: None }) })
    }

    /// The rate at present; `None` for no limit.
    pub(super) fn rate(&self) -> Option<f64> {
        let opened = self.file.lock();
        let content = Content::read(&opened.file).ok().flatten()?;
        Some(content.flow.rate).filter(|rate| *rate > 0.0)
    }

    /// As [`TokenFlow::take`]. A file that cannot be used limits nothing.
    pub(super) fn try_take(&self, bytes: f64, floor: Floor) -> Option<Duration> {
        self.try_take_at((now_nanos(), Instant::now()), bytes, floor)
    }

    /// As [`Self::try_take`], at a time of the wall clock, which all processes share, and of this process's own,
    /// which never goes back.
    fn try_take_at(&self, (now, own): (u64, Instant), bytes: f64, floor: Floor) -> Option<Duration> {
        // Without a limit no process holds up another.
        self.rate()?;
        let mut opened = self.file.lock();
        if !try_lock(&opened.file).ok()? {
            let held = own.saturating_duration_since(*opened.held_since.get_or_insert(own));
            return (held < LOCK_TIMEOUT).then_some(LOCK_RETRY);
        }
        opened.held_since = None;
        let pause = opened.take(now, bytes, floor);
        let _ = opened.file.unlock();
        pause
    }
}

impl LockedFile {
    fn take(&self, now: u64, bytes: f64, floor: Floor) -> Option<Duration> {
        let mut content = Content::read(&self.file).ok().flatten()?;
        if content.flow.rate == 0.0 {
            return None;
        }
        let passed = Duration::from_nanos(now.saturating_sub(content.at_nanos));
        let pause = content.flow.take(passed, bytes, floor);
        content.at_nanos = now;
        // The rate may be set meanwhile, if this process was stopped for long.
        let _ = self.file.write_all_at(&content.encode()[FLOW..], FLOW as u64);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::super::RateLimit;
    use super::*;
    use crate::store::Urgency;
    use futures::FutureExt;
    use proptest::prelude::*;

    fn scene() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rate");
        (dir, path)
    }

    #[test]
    fn files_that_are_no_token_bucket_are_refused() {
        let (_dir, path) = scene();
        assert!(RateLimit::shared(&path).is_err());
        for wrong in [&b""[..], b"HSRATE01", &[0xff; LEN], b"#!/bin/sh\nexit 0\n# a longer script"] {
            std::fs::write(&path, wrong).unwrap();
            assert!(RateLimit::shared(&path).is_err(), "{wrong:?}");
        }
        set_shared_rate(&path, Some(5)).unwrap();
        assert_eq!(RateLimit::shared(&path).unwrap().rate(), Some(5));
    }

    #[tokio::test]
    async fn processes_that_share_a_limit_keep_to_its_rate_together() {
        let (_dir, path) = scene();
        set_shared_rate(&path, Some(1_000_000)).unwrap();
        let limits = [(); 3].map(|()| RateLimit::shared(&path).unwrap());
        let start = Instant::now();
        let taking = limits.iter().map(|limit| async {
            for n in 0..10 {
                let urgency = if n % 2 == 0 { Urgency::Demand } else { Urgency::Background };
                limit.take(50_000, urgency).await;
            }
        });
        futures::future::join_all(taking).await;
        // 1.5 MB, less the quarter that was in the bucket, and the same amount that demand may overdraw.
        let took = start.elapsed().as_secs_f64();
        assert!((0.95..60.0).contains(&took), "{took}");
        // The rate changes for processes that have the file open: without one, no read waits.
        set_shared_rate(&path, None).unwrap();
        assert!(limits[0].take(100_000_000, Urgency::Background).now_or_never().is_some());
        assert!(limits[1].take(100_000_000, Urgency::Demand).now_or_never().is_some());
        assert_eq!(limits[2].rate(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_stays_held_stops_nobody() {
        let (_dir, path) = scene();
        set_shared_rate(&path, Some(1000)).unwrap();
        let limit = RateLimit::shared(&path).unwrap();
        let stopped = File::open(&path).unwrap();
        stopped.lock().unwrap();
        let start = Instant::now();
        limit.take(1 << 20, Urgency::Demand).await;
        let first = start.elapsed();
        assert!((LOCK_TIMEOUT..LOCK_TIMEOUT + 3 * LOCK_RETRY).contains(&first), "{first:?}");
        // It was waited for once.
        limit.take(1 << 20, Urgency::Demand).await;
        assert_eq!(start.elapsed(), first);
    }

    #[test]
    fn the_rate_is_set_while_another_holds_the_lock_and_stays_set() {
        let (_dir, path) = scene();
        set_shared_rate(&path, Some(1000)).unwrap();
        let bucket = SharedBucket::open(&path).unwrap();
        let stopped = LockedFile {
            file: File::options().read(true).write(true).open(&path).unwrap(),
            held_since: None,
        };
        stopped.file.lock().unwrap();
        let before = Content::read(&stopped.file).unwrap().unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        let setting = path.clone();
        std::thread::spawn(move || done.send(set_shared_rate(&setting, Some(5000))));
        is_done.recv_timeout(LOCK_TIMEOUT * 30).expect("it waits for ever").unwrap();
        assert_eq!(bucket.rate(), Some(5000.0));
        let after = Content::read(&stopped.file).unwrap().unwrap();
        assert_eq!(after, Content { flow: TokenFlow { rate: 5000.0, ..before.flow }, ..before });
        // It goes on, and the rate stays.
        assert!(stopped.take(now_nanos(), 1.0, Floor::Overdrawn).is_none());
        assert_eq!(bucket.rate(), Some(5000.0));
    }

    #[test]
    fn a_clock_that_is_set_back_holds_nobody_up() {
        const HOUR: u64 = 3_600_000_000_000;
        let (_dir, path) = scene();
        set_shared_rate(&path, Some(1000)).unwrap();
        let bucket = SharedBucket::open(&path).unwrap();
        let stopped = File::open(&path).unwrap();
        stopped.lock().unwrap();
        let (wall, own) = (now_nanos(), Instant::now());
        let take = |wall, after| bucket.try_take_at((wall, own + after), 1.0, Floor::Overdrawn);
        assert_eq!(take(wall, Duration::ZERO), Some(LOCK_RETRY));
        assert_eq!(take(wall + HOUR, LOCK_TIMEOUT / 2), Some(LOCK_RETRY));
        assert_eq!(take(wall - HOUR, LOCK_TIMEOUT), None);
        // The next one that holds it has its own second.
        stopped.unlock().unwrap();
        assert_eq!(take(wall - HOUR, LOCK_TIMEOUT), None);
        stopped.lock().unwrap();
        assert_eq!(take(wall - HOUR, LOCK_TIMEOUT * 2), Some(LOCK_RETRY));
        assert_eq!(take(wall - HOUR, LOCK_TIMEOUT * 3), None);
    }

    proptest! {
        #[test]
        fn the_content_round_trips(rate in 0.0..1e15_f64, bytes in -1e15..1e15_f64, at_nanos in any::<u64>()) {
            let content = Content { flow: TokenFlow { rate, bytes }, at_nanos };
            prop_assert_eq!(Content::decode(&content.encode()), Some(content));
        }

        #[test]
        fn any_content_is_a_valid_bucket(bytes in any::<[u8; LEN]>(), magic in any::<bool>()) {
            let (_dir, path) = scene();
            let mut bytes = bytes;
            if magic {
                bytes[..8].copy_from_slice(MAGIC);
            }
            std::fs::write(&path, bytes).unwrap();
            if let Ok(limit) = RateLimit::shared(&path) {
                let _ = (limit.try_take(1 << 20), limit.rate());
            }
        }
    }
}
