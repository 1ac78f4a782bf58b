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
use crate::locks;
use crate::presence;
use crate::sidecar::Locks;
use headstart_block::{ByteRange, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The time between two looks whether another process is done. A fetch takes a round trip at least, which is seldom
/// less.
const POLL: Duration = Duration::from_millis(2);

/// The way to wait for units that others fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitHint {
    /// No other claim covers any of the range.
    Nothing,
    /// Only other threads of this process fetch it: [`subscribe`](CachedBlob::subscribe).
    Notified,
    /// Another process fetches it: look again after this time.
    Poll(Duration),
}

/// The units that this process has claimed: from their first to one past their last. They do not overlap.
pub(crate) type ClaimTable = BTreeMap<u64, u64>;

/// The right to fetch some runs of a blob, given back when dropped: others wait for it, so insert or drop soon.
///
/// Others see what was inserted at once, not only when the claim ends.
pub struct CacheClaim {
    blob: Arc<CachedBlob>,
    units: Vec<Range<u64>>,
    owned: Vec<ByteRange>,
    wait_hint: WaitHint,
}

impl CacheClaim {
    /// The runs of units to fetch and insert: aligned to units, cut at the blob's end, ascending.
    #[must_use]
    pub fn owned(&self) -> &[ByteRange] {
        &self.owned
    }

    /// The way to wait for parts of the range that others fetch.
    #[must_use]
    pub fn wait_hint(&self) -> WaitHint {
        self.wait_hint
    }

    /// Claims the missing units of `range` that no other claim covers.
    pub(crate) fn new(blob: &Arc<CachedBlob>, range: ByteRange) -> Result<Self> {
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

fn unlock(file: Option<&std::fs::File>, units: Range<u64>) {
    if let Some(file) = file.filter(|_| !units.is_empty()) {
        locks::unlock(file, &Locks::claim(&units));
    }
}

/// Names the parts of `run` that are not in the table; `true` if some of it is in the table.
fn each_unclaimed(table: &ClaimTable, run: Range<u64>, each: &mut dyn FnMut(Range<u64>)) -> bool {
    if run.is_empty() {
        return false;
    }
    let mut at = run.start;
    let mut others = false;
    let before = table.range(..=run.start).next_back();
    let within = table.range(run.start + 1..run.end);
    for (&start, &end) in before.into_iter().chain(within) {
        if end <= at {
            continue;
        }
        others = true;
        if start > at {
            each(at..start);
        }
        at = end.min(run.end);
    }
    if at < run.end {
        each(at..run.end);
    }
    others
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

/// Names the parts of `run` that the file does not have, by its bits; used by the blob, which then looks in memory.
pub(crate) fn missing_of_run(
    bits: Option<&[std::sync::atomic::AtomicU64]>,
    run: &Range<u64>,
    each: &mut dyn FnMut(Range<u64>),
) {
    match bits {
        Some(bits) => presence::runs(bits, run, false, each),
        None if run.is_empty() => {}
        None => each(run.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unclaimed_parts_are_what_the_table_leaves(
            ends in prop::collection::btree_set(0u64..100, 0..20), a in 0u64..100, b in 0u64..100,
        ) {
            let ends: Vec<_> = ends.into_iter().collect();
            let table: ClaimTable = ends.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let claimed = |unit: u64| table.iter().any(|(&start, &end)| (start..end).contains(&unit));
            let run = a.min(b)..a.max(b);
            let mut free = Vec::new();
            let others = each_unclaimed(&table, run.clone(), &mut |part| free.extend(part));
            let expected: Vec<_> = run.clone().filter(|&unit| !claimed(unit)).collect();
            prop_assert_eq!(others, expected.len() as u64 != run.end - run.start);
            prop_assert_eq!(free, expected);
        }
    }
}
