//! [`BlobSource`]: a blob of a store as a [`ReadAt`], for work that goes through all of it, such as a copy.
//!
//! A disk has no use for such a source: bytes are neither cached nor checked, and all come from one store.

use crate::settings::RetrySettings;
use crate::store::{Store, Urgency};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Handle;

/// Bytes that are asked for by one request: enough to make round trips cheap, little to lose by a failure.
const REQUEST: u64 = 2 << 20;

/// Requests for one read that are under way at once.
const IN_FLIGHT: usize = 4;

/// A blob of a store, readable at any offset. Reads block until the data has come. The caller must not be in
/// async code, where a read panics.
pub struct BlobSource {
    store: Arc<dyn Store>,
    blob: Digest,
    len: u64,
    retry: RetrySettings,
    runtime: Handle,
    /// Bytes that were read.
    done: AtomicU64,
}

impl BlobSource {
    /// Makes a source that reads the blob `blob` of `len` bytes from `store`. Requests run on `runtime`;
    /// failed ones are retried according to `retry`. Nothing is requested yet.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, blob: Digest, len: u64, retry: RetrySettings, runtime: Handle) -> Self {
        Self { store, blob, len, retry, runtime, done: AtomicU64::new(0) }
    }

    /// Returns the number of bytes that successful reads have returned so far. Bytes that were read twice count twice.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    async fn read(&self, buf: &mut [u8], range: ByteRange) -> Result<()> {
        let parts: Vec<_> = range.parts(REQUEST).collect();
        let read = |part| {
            let once = move || self.store.read(&self.blob, part, Urgency::Background);
            async move { self.retry.run(once, |_| ()).await }
        };
        let mut parts = stream::iter(parts).map(read).buffered(IN_FLIGHT);
        let mut done = 0;
        while let Some(bytes) = parts.try_next().await? {
            let bytes: Bytes = bytes;
            let Some(here) = buf.get_mut(done..done + bytes.len()) else { break };
            here.copy_from_slice(&bytes);
            done += bytes.len();
        }
        if done == buf.len() {
            self.done.fetch_add(range.len(), Ordering::Relaxed);
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the store gave other bytes than asked for"))
    }
}

impl ReadAt for BlobSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = ByteRange::new(offset, buf.len() as u64).filter(|range| range.end() <= self.len);
        let Some(range) = range else {
            return Err(Error::corrupt(format!("has only {} bytes, none at {offset}", self.len))
                .about(format!("blob {} of {}", self.blob, self.store.name())));
        };
        let read = self.read(buf, range);
        self.runtime.block_on(async {
            let Some(stop) = self.store.stop() else { return read.await };
            // Also between tries.
            let stopped = || Err(Error::new(ErrorKind::Cancelled, "stopped on request"));
            stop.before(read).await.unwrap_or_else(stopped)
        })
    }
}
