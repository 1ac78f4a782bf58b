//! Single-flight: a missing unit is fetched once, however many threads and processes of the host want it.
//!
//! A claim is a lock on units of a blob. Between processes it is an exclusive lock on byte ranges of the sidecar, so
//! that the kernel frees it when its holder dies; the threads of a process share an open file, so a table keeps them
//! apart. A claim is advice against double work and never a condition of an insert: a process that has waited long
//! enough for another may fetch the units that the other has claimed, and both insert the same bytes.
//!
//! The order matters: lock first, then look whether the unit is still missing. A caller that has the lock and sees the
//! unit missing knows that no other process or thread fetches it, because a holder inserts before it gives the lock
//! back.

use crate::blob::CachedBlob;
use crate::claim_table::each_unclaimed;
use crate::locks;
use crate::sidecar::Locks;
use headstart_block::{ByteRange, Result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The time between two looks whether another process is done. A fetch takes a round trip at least, which is seldom
/// less.
const POLL: Duration = Duration::from_millis(2);

/// The way in which the owner of a claim waits for those units of the claimed range that other claims cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitHint {
    /// No other claim covers a missing part of the range: there is nothing to wait for.
    Nothing,
    /// Only claims of this process cover missing parts of the range: wait by [`subscribe`](CachedBlob::subscribe).
    Notified,
    /// A claim of another process covers missing parts of the range: check again after this duration.
    Poll(Duration),
}

/// The exclusive right to fetch some ranges of a blob, so that no two threads or processes of the host fetch the same
/// bytes. Dropping it releases the right. Others may be waiting for these bytes, so the owner should insert them, or
/// drop the claim, soon.
///
/// Inserted bytes are visible to others at once, not only when the claim ends.
pub struct CacheClaim {
    blob: Arc<CachedBlob>,
    units: Vec<Range<u64>>,
    owned: Vec<ByteRange>,
    wait_hint: WaitHint,
}

impl CacheClaim {
    /// The ranges that the owner of the claim has to fetch and insert: aligned to units, cut at the blob's
    /// end, in ascending order. Empty if nothing is missing or other claims cover it all.
    #[must_use]
    pub fn owned(&self) -> &[ByteRange] {
        &self.owned
    }

    /// The way to wait for the missing parts of the range that other claims cover.
    #[must_use]
    pub fn wait_hint(&self) -> WaitHint {
        self.wait_hint
    }

    /// Claims the missing units of `range` that no other claim covers.
    fn new(blob: &Arc<CachedBlob>, range: ByteRange) -> Result<Self> {
        blob.check_taken()?;
        // Where the disk takes no files, fetched bytes go to this process's memory, and other processes do not matter.
        let file = blob.files_to_claim().map(|files| &files.sidecar.file);
        let mut wait_hint = WaitHint::Nothing;
        let mut table = blob.claims.lock();
        let mut candidates = Vec::new();
        blob.missing_units(range, &mut |run| {
            if each_unclaimed(&table, run, &mut |part| candidates.push(part)) {
                wait_hint = WaitHint::Notified;
            }
        });
        let mut locked = candidates;
        if let Some(file) = file {
            let candidates = std::mem::take(&mut locked);
            let base = Locks::claim(&(0..0)).start;
            for run in candidates {
                let mut take = |part: Range<u64>| locked.push(part.start - base..part.end - base);
                match locks::lock_free_parts(file, Locks::claim(&run), &mut take) {
                    Ok(false) => {}
                    Ok(true) => wait_hint = WaitHint::Poll(POLL),
                    Err(error) => {
                        locked.into_iter().for_each(|run| unlock(Some(file), run));
                        return Err(error);
                    }
                }
            }
        }
        let mut units = Vec::new();
        for run in locked {
            let mut at = run.start;
            blob.missing_runs(&run, &mut |missing| {
                unlock(file, at..missing.start);
                at = missing.end;
                units.push(missing);
            });
            unlock(file, at..run.end);
        }
        table.extend(units.iter().map(|run| (run.start, run.end)));
        drop(table);
        let owned = units.iter().map(|run| blob.bytes_of(run)).collect();
        Ok(Self { blob: Arc::clone(blob), units, owned, wait_hint })
    }
}

impl CachedBlob {
    /// Claims the missing units of `range` that no other claim covers; the claim may be empty. If
    /// [`claims_at_once`](Self::claims_at_once) is `false`, this may wait for the disk, and for seconds if another
    /// process keeps the cache directory locked.
    ///
    /// # Errors
    /// Errors of the operating system's locks; [`ErrorKind::Corrupt`](headstart_block::ErrorKind::Corrupt) if
    /// the cache accepts no more of the blob, see [`is_refused`](Self::is_refused).
    pub fn claim(self: &Arc<Self>, range: ByteRange) -> Result<CacheClaim> {
        CacheClaim::new(self, range)
    }
}

fn unlock(file: Option<&std::fs::File>, units: Range<u64>) {
    if let Some(file) = file.filter(|_| !units.is_empty()) {
        locks::unlock(file, &Locks::claim(&units));
    }
}

impl Drop for CacheClaim {
    fn drop(&mut self) {
        // A claim that got nothing has nothing to tell, least of all to its own owner, which may have subscribed
        // already.
        if self.units.is_empty() {
            return;
        }
        let file = self.blob.present_files().map(|files| &files.sidecar.file);
        let mut table = self.blob.claims.lock();
        for run in &self.units {
            table.remove(&run.start);
            unlock(file, run.clone());
        }
        drop(table);
        self.blob.notify();
    }
}
