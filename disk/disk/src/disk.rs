//! The disk that a server exports.
//!
//! # The path of one read
//!
//! ```text
//! server -> Disk::read_local_at -> (WritableDisk ->) Base -> Stack: lookup -> ZFileReader -> CachedBlob: pread
//! ```
//!
//! On this path nothing is allocated, and no lock is taken whose holder may wait. If bytes of the blob are not on this
//! host, the read fails with `Absent`. The server then hands the read to a thread that may wait. That thread calls
//! [`BlockDevice::read_at`], which notes all absent parts, asks the pull engine for them, waits, and reads again.
//!
//! # Wrong bytes
//!
//! Bytes that a hash tree covers are right when they arrive. A read may find later, by the checksum of a frame, that
//! bytes are wrong: they were changed in the cache, or they were wrong when they arrived and their blob has no tree.
//! The bytes are then compared with the tree, dropped if they are wrong or cannot be verified, and fetched again, a few
//! times. Errors that only the blob's digest shows, once all of the blob is local, are handled by the cache; see
//! [`headstart_cache::CachedBlob::watch`].
//!
//! # Failure domains
//!
//! A disk has a pull engine, a writable layer and counters of its own. It shares with the other disks of its process
//! the cache, whose readers take no lock, and the threads that fetch, which never wait for a disk.

use crate::ahead::Ahead;
use crate::base::collect_absent;
use crate::collecting::Collecting;
use crate::preloading::Preloader;
use crate::puller::Puller;
use crate::stats::{DiskStats, SLOW, SlowCause};
use headstart_block::{BLOCK_SIZE, BlockDevice, ByteRange, Error, ErrorKind, Extent, Result};
use headstart_lsmt::Stack;
use headstart_lsmt::writable::WritableDisk;
use headstart_trace::{BootId, Op, Recorder};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The number of times that a read may find bytes gone again that were just fetched for it, before it gives up.
const ATTEMPTS_MAX: u32 = 16;

/// The attempts of a read after which the cache is bypassed, because others' bytes push out those that it waited for.
const ATTEMPTS_CACHED: u32 = 4;

/// As [`ATTEMPTS_MAX`], before a read that is larger than [`PIECE`] goes on piece by piece.
const ATTEMPTS_WHOLE: u32 = 2;

/// The number of times that a read fetches wrong bytes again.
const WRONG_TRIES: u32 = 2;

/// The pause of decoding ahead while much waits for reads.
const AHEAD_PAUSE: Duration = Duration::from_millis(2);

/// Bytes of a disk that any cache has room for at once.
const PIECE: usize = 256 << 10;

/// The device on top of an image.
pub(crate) enum Top {
    /// Nothing: the disk is read-only.
    Base(Arc<dyn BlockDevice>),
    /// A layer that takes writes.
    Writable(Arc<WritableDisk>),
}

impl Top {
    fn device(&self) -> &dyn BlockDevice {
        match self {
            Self::Base(base) => &**base,
            Self::Writable(writable) => &**writable,
        }
    }
}

/// An attached image as a block device: its merged layers, with or without a writable layer on top.
pub struct Disk {
    /// The collector of the writable layer's garbage; ends first.
    pub(crate) collecting: Option<Collecting>,
    pub(crate) top: Top,
    /// The image's layers, for the mapping of the disk to its blobs.
    pub(crate) stack: Arc<Stack>,
    /// The fetcher of absent bytes; `None` if all are on this host.
    pub(crate) puller: Option<Arc<Puller>>,
    /// The preloader, which knows the reads and preloads by them; `None` without a puller.
    pub(crate) preloader: Option<Arc<Preloader>>,
    /// `true` if a read that lacks bytes waits for all of their blocks.
    pub(crate) whole_blocks: bool,
    /// Content that is decoded before it is read.
    pub(crate) ahead: Ahead,
    pub(crate) stats: DiskStats,
    pub(crate) recorder: Option<Arc<Recorder>>,
}

impl Disk {
    /// The counters and latency distributions of the disk.
    #[must_use]
    pub fn stats(&self) -> &DiskStats {
        &self.stats
    }

    /// The merged layers of the image, without the writable layer.
    #[must_use]
    pub fn stack(&self) -> &Arc<Stack> {
        &self.stack
    }

    /// The writable layer; `None` if the disk is read-only.
    #[must_use]
    pub fn writable(&self) -> Option<&Arc<WritableDisk>> {
        match &self.top {
            Top::Base(_) => None,
            Top::Writable(writable) => Some(writable),
        }
    }

    /// The driver of the pull engine, which fetches the image's bytes; `None` if the image is in a local
    /// directory.
    #[must_use]
    pub fn puller(&self) -> Option<&Arc<Puller>> {
        self.puller.as_ref()
    }

    /// The driver of preloading; `None` if the image is in a local directory.
    #[must_use]
    pub fn preloader(&self) -> Option<&Arc<Preloader>> {
        self.preloader.as_ref()
    }

    /// Makes all writes durable. Then stores the durable length of each log of the writable layer in the description of
    /// the disk, so that a later attach fails if some of the written data is missing. Without a writable layer nothing
    /// is stored.
    ///
    /// # Errors
    /// The error of making writes durable. If the lengths cannot be stored, only a warning is logged.
    pub fn flush_with_note(&self) -> Result<()> {
        self.flush()?;
        if let Some(Err(error)) = self.writable().map(|writable| writable.note_logs()) {
            tracing::warn!(%error, "a loss of the last records of a writable layer may not be noticed");
        }
        Ok(())
    }

    /// Stops fetching: reads that need bytes from a store or another host fail from now on, waiting ones
    /// included.
    pub fn close(&self) {
        if let Some(puller) = &self.puller {
            puller.close();
        }
    }

    /// Decodes the ranges of a read-only disk, one after the other, so that reads that come soon only copy: all ranges
    /// that are on this host and were not read meanwhile. What was decoded waits for its read until
    /// [`end_ahead`](Self::end_ahead). If much waits, the rest is decoded as reads come, until `until`. Returns the
    /// number of bytes of the ranges that were gone through.
    pub fn decode_ahead(&self, ranges: impl IntoIterator<Item = ByteRange>, until: Instant) -> u64 {
        let Top::Base(base) = &self.top else { return 0 };
        self.ahead.begin();
        let whole = ByteRange::between(0, base.size());
        let (read, mut done) = (|buf: &mut [u8], offset| base.read_at(buf, offset), 0);
        for range in ranges {
            if Instant::now() >= until {
                break;
            }
            let mut rest = range.intersect(whole);
            done += rest.len();
            while let left @ 1.. = self.ahead.decode(rest, &read) {
                if Instant::now() >= until {
                    return done - left;
                }
                std::thread::sleep(AHEAD_PAUSE);
                rest = ByteRange::between(rest.end() - left, rest.end());
            }
        }
        done
    }

    /// Drops what was decoded ahead and not read.
    pub fn end_ahead(&self) {
        self.ahead.end();
    }

    /// Reads what is on this host.
    fn read_top(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let device = self.top.device();
        self.ahead.read(buf, offset, &|buf, offset| device.read_at(buf, offset))
    }

    /// Reads, waiting as often as needed.
    fn read_waiting(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let device = self.top.device();
        let is_large = buf.len() > PIECE;
        let mut wrong = 0;
        let (mut result, mut absent) = collect_absent(|| device.read_at(buf, offset));
        for attempt in 0..if is_large { ATTEMPTS_WHOLE } else { ATTEMPTS_MAX } {
            while wrong < WRONG_TRIES
                && absent.is_empty()
                && self.drops_what_is_wrong(&result, at(offset, buf))
            {
                wrong += 1;
                (result, absent) = collect_absent(|| device.read_at(buf, offset));
            }
            let Some(puller) = self.puller.as_ref().filter(|_| !absent.is_empty()) else { break };
            if attempt >= ATTEMPTS_CACHED {
                puller.blobs().bypass_for_now();
            }
            puller.wait(&self.wanted(absent))?;
            (result, absent) = collect_absent(|| device.read_at(buf, offset));
        }
        let is_wrong = |error: &Error| self.is_doubtful(error, at(offset, buf));
        if absent.is_empty() && !(is_large && result.as_ref().is_err_and(is_wrong)) {
            return result;
        }
        if is_large {
            // If the cache's disk is full, memory may have less room than all of it needs at the same time. And if many
            // bytes come wrong, fewer of them do at a time.
            let mut pieces = buf.chunks_mut(PIECE).zip((offset..).step_by(PIECE));
            return pieces.try_for_each(|(piece, offset)| self.read_waiting(piece, offset));
        }
        Err(Error::new(ErrorKind::Io, "the bytes read vanish from the cache as soon as they are there")
            .remedy("give the cache more room"))
    }

    /// The parts that a read which lacks `absent` waits for.
    fn wanted(&self, mut absent: Vec<ByteRange>) -> Vec<ByteRange> {
        if self.whole_blocks {
            let size = self.stack.size();
            for part in &mut absent {
                let start = part.offset() - part.offset() % BLOCK_SIZE;
                *part = ByteRange::between(start, part.end().next_multiple_of(BLOCK_SIZE).min(size));
            }
        }
        absent
    }

    /// Drops the bytes that a read has found wrong; `true` if it is worth reading again.
    fn drops_what_is_wrong(&self, result: &Result<()>, range: ByteRange) -> bool {
        let (Err(error), Some(puller)) = (result, &self.puller) else { return false };
        let may_come_right = self.is_doubtful(error, range);
        if may_come_right {
            if puller.blobs().unproven(range).is_some() {
                puller.log_failed_read(error);
            }
            puller.blobs().discard_wrong(range);
        }
        may_come_right
    }

    /// `true` if bytes that a read found wrong may come right when they are fetched again.
    fn is_doubtful(&self, error: &Error, range: ByteRange) -> bool {
        let puller = self.puller.as_ref().filter(|_| error.kind() == ErrorKind::Corrupt);
        puller.is_some_and(|puller| puller.blobs().are_doubtful(range))
    }

    /// Counts a read whose bytes are on this host.
    fn hit(&self, boot: Option<BootId>, range: ByteRange, started: Instant) {
        let took = started.elapsed();
        self.stats.hits.record(took);
        if took >= SLOW {
            self.slow(SlowCause::Other);
        }
        self.read_done(boot, range, started, took);
    }

    #[cold]
    fn slow(&self, cause: SlowCause) {
        DiskStats::add(&self.stats.slow[cause as usize], 1);
    }

    /// The reason why a read waited long; `failures` is the number of failures when it began.
    #[cold]
    fn slow_cause(&self, range: ByteRange, failures: u64) -> SlowCause {
        if self.failures() != failures {
            SlowCause::Store
        } else if self.preloader.as_ref().is_some_and(|preloader| preloader.has_planned(range)) {
            SlowCause::Late
        } else {
            SlowCause::Unforeseen
        }
    }

    fn failures(&self) -> u64 {
        self.puller.as_ref().map_or(0, |puller| puller.failures())
    }

    /// Notes a read that has come. Returns the boot that it belongs to, if boots are recorded.
    fn note(&self, range: ByteRange, started: Instant) -> Option<BootId> {
        if let Some(preloader) = &self.preloader {
            preloader.accesses().note(range);
        }
        self.recorder.as_ref().map(|recorder| recorder.read_arrived(range, started))
    }

    fn read_done(&self, boot: Option<BootId>, range: ByteRange, started: Instant, took: Duration) {
        DiskStats::add(&self.stats.read_bytes, range.len());
        self.record(boot, Op::Read, range, started, took);
    }

    /// The boot that a write belongs to, if boots are recorded.
    fn boot(&self) -> Option<BootId> {
        self.recorder.as_ref().map(|recorder| recorder.boot())
    }

    /// Puts a request that succeeded into the trace.
    fn record(&self, boot: Option<BootId>, op: Op, range: ByteRange, started: Instant, took: Duration) {
        if let Some((recorder, boot)) = self.recorder.as_ref().zip(boot) {
            recorder.record(boot, op, range, started, took);
        }
    }

    /// Counts the failure of a read, write, zeroing, resize or flush.
    fn counted(&self, result: Result<()>) -> Result<()> {
        result.inspect_err(|_| DiskStats::add(&self.stats.errors, 1))
    }
}

impl BlockDevice for Disk {
    fn size(&self) -> u64 {
        self.top.device().size()
    }

    fn read_local_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let started = Instant::now();
        let boot = self.note(at(offset, buf), started);
        let result = self.read_top(buf, offset);
        match &result {
            Ok(()) => self.hit(boot, at(offset, buf), started),
            Err(e) if e.kind() == ErrorKind::Absent => {}
            // The bytes are to be dropped and fetched again by a thread that may wait.
            Err(e) if self.is_doubtful(e, at(offset, buf)) => {
                return Err(Error::absent(at(offset, buf)));
            }
            Err(_) => DiskStats::add(&self.stats.errors, 1),
        }
        result
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let started = Instant::now();
        let boot = self.note(at(offset, buf), started);
        match self.read_top(buf, offset) {
            Err(e) if e.kind() == ErrorKind::Absent || self.is_doubtful(&e, at(offset, buf)) => {}
            result => {
                self.counted(result)?;
                self.hit(boot, at(offset, buf), started);
                return Ok(());
            }
        }
        let failures = self.failures();
        DiskStats::add(&self.stats.waiting, 1);
        let result = self.read_waiting(buf, offset).map_err(|error| {
            let puller = self.puller.as_ref().filter(|_| error.kind() == ErrorKind::Corrupt);
            let blob = puller.and_then(|puller| puller.blobs().unproven(at(offset, buf)));
            let Some(blob) = blob else { return error };
            let error = Error::corrupt("comes wrong each time it is fetched").caused_by(error);
            let digest = blob.spec().digest;
            error.about(format!("blob {digest}")).remedy("its store gives wrong bytes: repair it there")
        });
        self.stats.waiting.fetch_sub(1, Ordering::Relaxed);
        let took = started.elapsed();
        self.stats.misses.record(took);
        if took >= SLOW {
            self.slow(self.slow_cause(at(offset, buf), failures));
        }
        self.counted(result)?;
        self.read_done(boot, at(offset, buf), started, took);
        Ok(())
    }

    fn hole_was_read(&self, range: ByteRange) {
        let now = Instant::now();
        let boot = self.note(range, now);
        self.stats.hits.record(Duration::ZERO);
        self.read_done(boot, range, now, Duration::ZERO);
    }

    fn client_came(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.client_came();
        }
    }

    fn client_left(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.client_left();
        }
    }

    fn decode_unit(&self) -> u64 {
        self.stack.decode_unit()
    }

    fn prefetch(&self, range: ByteRange) {
        if let Some(puller) = &self.puller {
            puller.prefetch(range.intersect(ByteRange::between(0, self.stack.size())));
        }
    }

    fn is_read_only(&self) -> bool {
        self.top.device().is_read_only()
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        self.top.device().extent_at(offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let (boot, started) = (self.boot(), Instant::now());
        self.counted(self.top.device().write_at(data, offset))?;
        let took = started.elapsed();
        self.stats.writes.record(took);
        DiskStats::add(&self.stats.written_bytes, data.len() as u64);
        self.record(boot, Op::Write, at(offset, data), started, took);
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        let (boot, started) = (self.boot(), Instant::now());
        self.counted(self.top.device().write_zeroes(range))?;
        let took = started.elapsed();
        self.stats.writes.record(took);
        DiskStats::add(&self.stats.written_bytes, range.len());
        // A trace knows reads and writes. For its purpose zeroing is a write: a later read of these bytes needs nothing
        // of the image.
        self.record(boot, Op::Write, range, started, took);
        Ok(())
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.counted(self.top.device().resize(size))
    }

    fn flush(&self) -> Result<()> {
        let started = Instant::now();
        self.counted(self.top.device().flush())?;
        self.stats.flushes.record(started.elapsed());
        Ok(())
    }
}

fn at(offset: u64, buf: &[u8]) -> ByteRange {
    ByteRange::between(offset, offset.saturating_add(buf.len() as u64))
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Fetches under way hold the objects that they need; without this they would go on for a disk that is gone.
        self.close();
        self.collecting = None;
        // The collector may have written records since the disk was settled.
        if let Some(writable) = self.writable() {
            let _ = writable.note_logs();
        }
    }
}
