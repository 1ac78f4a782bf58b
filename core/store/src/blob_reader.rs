//! [`BlobReader`]: a blob of a store as a stream, for work that goes through it once, from front to back.
//!
//! A task of the runtime fetches ahead of the reader, at most `WINDOW` bytes. If the stream breaks, it goes on from
//! where it broke. The time of the retries counts from the last `PROGRESS` bytes: a blob that takes hours over a bad
//! link is read as long as it moves, and a store that sends a few bytes and breaks each time is given up.

use crate::settings::RetrySettings;
use crate::store::{Store, Urgency};
use bytes::{Buf, Bytes};
use futures::stream::TryStreamExt;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result, exact};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

/// Bytes that are fetched ahead of the reader, without the part that it reads from: 4 MiB.
const WINDOW: usize = 4 << 20;

/// Bytes after which a stream that breaks has been of use, so that all retries begin anew: 256 KiB.
const PROGRESS: u64 = 256 << 10;

/// A range of a blob of a store, read from front to back. Reads block until bytes have come. The caller must not be in
/// async code, where a read panics. Bytes are not checked against the digest.
pub struct BlobReader {
    parts: mpsc::UnboundedReceiver<Result<Bytes>>,
    /// The part that is being read.
    part: Bytes,
    window: Arc<Semaphore>,
    /// Bytes of the range that have not been received yet.
    left: u64,
    task: JoinHandle<()>,
}

impl BlobReader {
    /// Starts to fetch `range` of the blob `blob` from `store`. Requests run on `runtime`; failed ones are retried
    /// according to `retry`, whose deadline counts from the last progress. Dropping the reader ends them. Until then or
    /// the end of the range, the reader takes one of the places of the store's background reads
    /// ([`StoreSettings::background_in_flight`](crate::StoreSettings::background_in_flight)): readers that are not read
    /// hold up others.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        blob: Digest,
        range: ByteRange,
        retry: RetrySettings,
        runtime: &Handle,
    ) -> Self {
        let (sender, parts) = mpsc::unbounded_channel();
        let window = Arc::new(Semaphore::new(WINDOW));
        let offset = AtomicU64::new(range.offset());
        let fetch =
            Fetch { store, blob, end: range.end(), retry, offset, window: Arc::clone(&window), sender };
        let task = runtime.spawn(fetch.run());
        Self { parts, part: Bytes::new(), window, left: range.len(), task }
    }

    /// Receives the next part, if there is one.
    fn receive(&mut self) -> Result<()> {
        while self.part.is_empty() && self.left > 0 {
            let stopped = || Err(Error::new(ErrorKind::Cancelled, "stopped before its end"));
            self.part = self.parts.blocking_recv().unwrap_or_else(stopped)?;
            self.left = self.left.saturating_sub(self.part.len() as u64);
            self.window.add_permits(self.part.len().min(WINDOW));
        }
        Ok(())
    }
}

impl Read for BlobReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.receive()?;
        let len = self.part.len().min(buf.len());
        self.part.split_to(len).copy_to_slice(&mut buf[..len]);
        Ok(len)
    }
}

impl Drop for BlobReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task behind a reader.
struct Fetch {
    store: Arc<dyn Store>,
    blob: Digest,
    end: u64,
    retry: RetrySettings,
    /// The offset of the next byte.
    offset: AtomicU64,
    window: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Result<Bytes>>,
}

impl Fetch {
    async fn run(self) {
        let stopped = || Err(Error::new(ErrorKind::Cancelled, "stopped on request"));
        let done = match self.store.stop() {
            Some(stop) => stop.before(self.fetch()).await.unwrap_or_else(stopped),
            None => self.fetch().await,
        };
        if let Err(error) = done {
            // Without a reader there is nothing to tell.
            let _ = self.sender.send(Err(error));
        }
    }

    async fn fetch(&self) -> Result<()> {
        loop {
            let begin = self.offset();
            let stream = || async move {
                match self.stream().await {
                    Err(error)
                        if error.kind() == ErrorKind::Unavailable && self.offset() - begin >= PROGRESS =>
                    {
                        tracing::debug!(%error, offset = self.offset(), "going on with a blob");
                        Ok(false)
                    }
                    done => done.map(|()| true),
                }
            };
            if self.retry.run(stream, |_| ()).await? {
                return Ok(());
            }
        }
    }

    /// Passes on bytes until the end or a failure.
    async fn stream(&self) -> Result<()> {
        let rest = ByteRange::between(self.offset(), self.end);
        if rest.is_empty() {
            return Ok(());
        }
        let mut parts = self.store.read_stream(&self.blob, rest, Urgency::Background).await?;
        while let Some(part) = parts.try_next().await? {
            let after = self.offset().saturating_add(part.len() as u64);
            if after > self.end {
                break;
            }
            let permits = exact(part.len().min(WINDOW), "the window has fewer bytes than 2^32");
            let gone = || Error::new(ErrorKind::Cancelled, "is not read on");
            self.window.acquire_many(permits).await.map_err(|_| gone())?.forget();
            self.sender.send(Ok(part)).map_err(|_| gone())?;
            self.offset.store(after, Ordering::Relaxed);
        }
        if self.offset() == self.end {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "the store gave other bytes than asked for"))
    }

    fn offset(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }
}
