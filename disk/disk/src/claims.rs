//! The bytes of a blob that are missing: their number, claiming them, and the refusal to preload them.

use headstart_block::{ByteRange, Error, ErrorKind, Result};
use headstart_cache::{CacheClaim, CachedBlob};
use std::sync::Arc;

/// The number of missing bytes of a range.
pub(crate) fn missing_bytes(blob: &CachedBlob, range: ByteRange) -> u64 {
    let mut bytes = 0;
    blob.missing(range, &mut |run| bytes += run.len());
    bytes
}

/// Claims the missing bytes of a range. If that may wait, for the disk or for another process that was stopped while it
/// changed the cache directory, it runs on a thread that may block: other fetches go on.
pub(crate) async fn claim(blob: &Arc<CachedBlob>, range: ByteRange) -> Result<CacheClaim> {
    if blob.claims_at_once() {
        return blob.claim(range);
    }
    let blob = Arc::clone(blob);
    let claimed = tokio::task::spawn_blocking(move || blob.claim(range)).await;
    claimed.map_err(|e| Error::new(ErrorKind::Io, "claiming a range broke off").caused_by(e))?
}

/// Refuses to preload while the cache's disk takes nothing: preloaded bytes would push those that reads wait for out of
/// memory.
pub(crate) fn refuse_bypassed(blob: &CachedBlob) -> Result<()> {
    if blob.is_bypassed() {
        return Err(Error::new(
            ErrorKind::NoSpace,
            "the cache's disk takes nothing at present: only what is read is fetched",
        ));
    }
    Ok(())
}
