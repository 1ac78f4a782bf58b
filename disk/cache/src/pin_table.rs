//! The list of the chunks that this process has pinned, and their locks between processes.

use crate::blob_files::Files;
use crate::locks::{self, Mode};
use crate::sidecar::Locks;
use headstart_block::{Error, ErrorKind, Result};
use std::ops::Range;
use std::time::Duration;

/// The longest wait for an evictor that is at work: it holds a lock for a sync of the disk.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Locks chunks, so that no process evicts them.
pub(crate) fn lock_chunks(files: &Files, chunks: &Range<u64>) -> Result<()> {
    if locks::lock_within(&files.sidecar.file, &Locks::pin(chunks), Mode::Shared, LOCK_TIMEOUT)? {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Conflict, "another process evicts parts of this blob and does not end")
        .about(files.data_path.display())
        .remedy("find a stopped headstart process and end it"))
}

/// Locks the chunks that were pinned before there were files.
pub(crate) fn apply(files: &Files, pins: &[Range<u64>]) -> Result<()> {
    pins.iter().filter(|chunks| !chunks.is_empty()).try_for_each(|chunks| lock_chunks(files, chunks))
}

/// The parts of `chunks` that are in none of `pins`.
pub(crate) fn uncovered(pins: &[Range<u64>], chunks: Range<u64>, free: &mut Vec<Range<u64>>) {
    if chunks.is_empty() {
        return;
    }
    match pins.iter().find(|pin| pin.start < chunks.end && chunks.start < pin.end) {
        None => free.push(chunks),
        Some(pin) => {
            uncovered(pins, chunks.start..pin.start.max(chunks.start), free);
            uncovered(pins, pin.end.min(chunks.end)..chunks.end, free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_ended_pin_unlocks_the_chunks_that_no_other_covers(
            pins in prop::collection::vec((0u64..50, 0u64..50), 0..6), a in 0u64..50, b in 0u64..50,
        ) {
            let pins: Vec<_> = pins.into_iter().map(|(a, b)| a.min(b)..a.max(b)).collect();
            let chunks = a.min(b)..a.max(b);
            let mut free = Vec::new();
            uncovered(&pins, chunks.clone(), &mut free);
            let mut free: Vec<_> = free.into_iter().flatten().collect();
            free.sort_unstable();
            let expected: Vec<_> = chunks.filter(|chunk| !pins.iter().any(|pin| pin.contains(chunk))).collect();
            prop_assert_eq!(free, expected);
        }
    }
}
