//! The journal as the host uses it: a map becomes durable only after the pages that it names.

use super::media::Media;
use super::meta::encoded;
use headstart_block::{Error, ErrorKind, Result};
use headstart_broker::BrokerStep;
use headstart_flash::VssdId;
use headstart_flash::journal::room::RESERVE;
use headstart_flash::journal::{Journal, JournalRecord, Lsn, Rewriting};
use headstart_flash::vssd::{Change, Vssd};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Called before the journal is written: tests let a host crash there.
pub(crate) type Guard = std::sync::Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The part of a volume behind its lock.
pub(crate) struct Inner {
    pub(crate) vssd: Vssd,
    /// The last change that went to the journal.
    pub(crate) last: u64,
    /// The place of that in the journal.
    pub(crate) lsn: Lsn,
}

/// The journal, and counts of its writes.
pub(crate) struct Log {
    journal: Journal,
    guard: Option<Guard>,
    /// `true` if a map was changed since the flash was flushed last.
    maps: AtomicBool,
    records: AtomicU64,
    syncs: AtomicU64,
    rewrites: AtomicU64,
    pause: Mutex<Pause>,
    /// `true` if it was reported that its disk is full.
    full: AtomicBool,
}

/// Seconds between tries after a failure: twice as many each time.
#[derive(Debug, Default)]
struct Pause {
    whole: u32,
    left: u32,
}

/// Seconds of a pause at most.
const PAUSE_MOST: u32 = 4096;

impl Pause {
    /// Counts a second; `true` if it is time to try.
    fn is_over(&mut self) -> bool {
        let over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        over
    }

    /// Notes the result of a try; `true` if the one before had failed.
    fn tried(&mut self, well: bool) -> bool {
        let before = self.whole > 0;
        self.whole = if well { 0 } else { (self.whole * 2).clamp(2, PAUSE_MOST) };
        self.left = self.whole;
        before
    }
}

impl Log {
    pub(crate) fn new(journal: Journal, guard: Option<Guard>) -> Self {
        Self {
            journal,
            guard,
            maps: AtomicBool::new(true),
            records: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            rewrites: AtomicU64::new(0),
            pause: Mutex::default(),
            full: AtomicBool::new(false),
        }
    }

    /// Fails if the journal's disk is full: asked before work is begun that takes flash, or will. `bytes` bytes of
    /// records follow from it at once.
    pub(crate) fn may_take(&self, bytes: u64) -> Result<()> {
        self.journal.check_room(bytes, RESERVE)
    }

    /// Fails if the journal's disk is so full that the rest is for giving storage back: asked before data is moved or
    /// trimmed.
    pub(crate) fn may_tidy(&self) -> Result<()> {
        self.journal.check_room(0, RESERVE / 2)
    }

    /// Looks for room on the journal's disk again; to be called every second.
    pub(crate) fn look_for_room(&self, media: &Media) {
        if self.journal.look_for_room().is_some() {
            // Some disks show new room only to a write.
            self.sync_all(media).unwrap_or_default();
        }
        let full = self.refusal();
        let before = self.full.swap(full.is_some(), Ordering::Relaxed);
        match (full, before) {
            (Some(error), false) => tracing::warn!(%error, "nothing is written or lent"),
            (None, true) => tracing::info!("there is room for the journal again"),
            _ => {}
        }
    }

    /// The reason that nothing is written or lent, while that is so.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.may_take(0).err().filter(|error| error.kind() == ErrorKind::NoSpace)
    }

    /// Appends a change of a vSSD, under the lock under which it was made.
    pub(crate) fn change(&self, vssd: VssdId, inner: &mut Inner, change: &Change) -> Result<()> {
        let bytes = encoded(change)?;
        // Before the record: any sync that takes the record along then flushes the flash.
        self.maps.store(true, Ordering::SeqCst);
        inner.last = change.number;
        inner.lsn = self.append(&JournalRecord::Map { vssd, change: bytes })?;
        Ok(())
    }

    pub(crate) fn step(&self, step: &BrokerStep) -> Result<Lsn> {
        self.append(&JournalRecord::Broker(step.clone()))
    }

    pub(crate) fn append(&self, record: &JournalRecord) -> Result<Lsn> {
        self.records.fetch_add(1, Ordering::Relaxed);
        self.journal.append(record)
    }

    /// Makes all durable up to `lsn`. Callers of the same time share one sync.
    pub(crate) fn sync(&self, media: &Media, lsn: Lsn) -> Result<()> {
        self.journal.sync_after(lsn, || {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            self.before_written(media)
        })
    }

    /// Makes pages durable before the maps that name them.
    fn before_written(&self, media: &Media) -> Result<()> {
        if self.maps.swap(false, Ordering::SeqCst) {
            media.flush().map_err(|error| from_flash(error, "the flash cannot be flushed"))?;
        }
        self.guard.as_ref().map_or(Ok(()), |guard| guard())
    }

    /// Makes all durable.
    pub(crate) fn sync_all(&self, media: &Media) -> Result<()> {
        self.sync(media, self.journal.appended())
    }

    /// Makes all durable, and notes that the journal was closed in good order.
    pub(crate) fn close(&self, media: &Media) -> Result<()> {
        self.sync_all(media)?;
        self.guard.as_ref().map_or(Ok(()), |guard| guard())?;
        self.journal.close()
    }

    /// `true` if it is time to replace old records by snapshots; asked once a second.
    pub(crate) fn is_rewriting_due(&self) -> bool {
        self.journal.has_grown() && self.pause.lock().is_over()
    }

    /// Notes the result of replacing old records.
    pub(crate) fn rewrote(&self, result: Result<()>) {
        let failed_before = self.pause.lock().tried(result.is_ok());
        match result {
            Ok(()) if failed_before => tracing::info!("the journal could be rewritten again"),
            Ok(()) => {}
            Err(error) if failed_before => tracing::debug!(%error, "the journal still cannot be rewritten"),
            Err(error) => {
                let error = error.remedy(
                    "make room on its disk: until then it grows, and takes longer to be read at a start; it is tried \
                     again, less and less often",
                );
                tracing::warn!(%error, "the journal cannot be rewritten");
            }
        }
    }

    /// Begins to replace all records by others; see [`Journal::rewriting`].
    pub(crate) fn rewriting(&self) -> Result<Rewriting<'_>> {
        self.guard.as_ref().map_or(Ok(()), |guard| guard())?;
        self.journal.rewriting()
    }

    /// Replaces all records by these, and those that were appended meanwhile.
    pub(crate) fn replace(&self, media: &Media, new: Rewriting<'_>) -> Result<()> {
        new.finish(|| self.before_written(media))?;
        self.rewrites.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes, records, syncs, rewrites.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let [records, syncs, rewrites] =
            [&self.records, &self.syncs, &self.rewrites].map(|count| count.load(Ordering::Relaxed));
        [self.journal.size(), records, syncs, rewrites]
    }
}

/// An error of the flash as one for the caller.
pub(crate) fn from_flash(error: headstart_flash::device::FlashError, cause: &'static str) -> Error {
    match error {
        headstart_flash::device::FlashError::Failed(error) => error.about("the flash"),
        other => Error::new(ErrorKind::Io, cause).caused_by(other),
    }
}

#[cfg(test)]
mod tests {
    use super::Pause;

    #[test]
    fn failing_work_is_tried_less_and_less_often() {
        let (mut pause, mut tries) = (Pause::default(), Vec::new());
        for second in 0..20 {
            if pause.is_over() {
                tries.push((second, pause.tried(false)));
            }
        }
        assert_eq!(tries, [(0, false), (3, true), (8, true), (17, true)]);
        assert!((0..9999).any(|_| pause.is_over()) && pause.tried(true) && pause.is_over());
        assert!(!pause.tried(true));
    }
}
