//! A store over a directory that can be slow, away or wrong, and that counts.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use headstart_store::{Copied, Selector, Store, StoreCounters, Tag, Urgency};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The faults that it makes, and the requests that it saw.
#[derive(Default)]
pub(crate) struct TryingStore {
    inner: Option<Arc<dyn Store>>,
    /// The time that each request takes.
    pub(crate) delay: Mutex<Duration>,
    /// The error of every answer; `None`: answers are right.
    pub(crate) failing: Mutex<Option<ErrorKind>>,
    /// `true` if its errors may be meant for the credentials of a pull.
    pub(crate) has_offers: AtomicBool,
    /// `true` if reads of blobs never end.
    pub(crate) hanging: AtomicBool,
    /// The number of the next reads that give wrong bytes.
    pub(crate) corrupt: AtomicU64,
    /// Bytes, by their offset in a blob, with the number of times that they are wrong.
    pub(crate) wrong_at: Mutex<HashMap<u64, u64>>,
    /// The number of times that each unit of 4 KiB of each blob was given out.
    pub(crate) given: Mutex<HashMap<(Digest, u64), u64>>,
    pub(crate) requests: AtomicU64,
    /// The number of streams that were begun.
    pub(crate) streams: AtomicU64,
    /// The time that each part of a stream takes.
    pub(crate) part_delay: Mutex<Duration>,
    /// The next part of streams that breaks, counted from 1; 0: none does.
    pub(crate) breaks_after: AtomicU64,
}

/// Bytes of a part of a stream: no whole number of the units that are verified.
const PART: u64 = 13 << 12;

impl TryingStore {
    pub(crate) fn over(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner: Some(inner), ..Self::default() })
    }

    fn inner(&self) -> &Arc<dyn Store> {
        self.inner.as_ref().expect("made by `over`")
    }

    async fn pass(&self) -> Result<()> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let delay = *self.delay.lock().unwrap();
        tokio::time::sleep(delay).await;
        match *self.failing.lock().unwrap() {
            Some(kind) => Err(Error::new(kind, "the test says so")),
            None => Ok(()),
        }
    }

    /// The bytes of a range, as they are or wrong, and notes that they were given.
    async fn give(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        let mut bytes = self.inner().read(blob, range, urgency).await?;
        for (at, times) in &mut *self.wrong_at.lock().unwrap() {
            if *times > 0 && !range.intersect(ByteRange::between(*at, at + 1)).is_empty() {
                *times -= 1;
                let mut wrong = bytes.to_vec();
                wrong[(at - range.offset()) as usize] ^= 1;
                bytes = wrong.into();
            }
        }
        let left = self.corrupt.load(Ordering::Relaxed);
        if left > 0 && range.len() > 100 {
            self.corrupt.store(left - 1, Ordering::Relaxed);
            let mut wrong = bytes.to_vec();
            // In every frame.
            wrong.iter_mut().skip(50).step_by(1000).for_each(|byte| *byte ^= 1);
            return Ok(wrong.into());
        }
        let mut given = self.given.lock().unwrap();
        for unit in range.parts(4096) {
            *given.entry((*blob, unit.offset() / 4096)).or_default() += 1;
        }
        Ok(bytes)
    }
}

#[async_trait]
impl Store for TryingStore {
    fn location(&self) -> String {
        "test://store".to_owned()
    }

    async fn may_have_refused_others(&self) -> bool {
        self.has_offers.load(Ordering::Relaxed)
    }

    async fn check(&self) -> Result<()> {
        self.pass().await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.pass().await?;
        self.inner().manifest(selector).await
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        while self.hanging.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.pass().await?;
        self.give(blob, range, urgency).await
    }

    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        self.pass().await?;
        self.streams.fetch_add(1, Ordering::Relaxed);
        let (blob, start) = (*blob, range.offset());
        let parts = (0..range.len().div_ceil(PART))
            .map(move |n| ByteRange::between(start + n * PART, range.end().min(start + (n + 1) * PART)));
        let parts = stream::iter(parts).then(move |part| async move {
            let delay = *self.part_delay.lock().unwrap();
            tokio::time::sleep(delay).await;
            if self.breaks_after.load(Ordering::Relaxed) > 0
                && self.breaks_after.fetch_sub(1, Ordering::Relaxed) == 1
            {
                return Err(Error::new(ErrorKind::Unavailable, "it broke"));
            }
            self.give(&blob, part, urgency).await
        });
        Ok(parts.boxed())
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        self.inner().blob_len(blob).await
    }

    async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
        Err(Error::new(ErrorKind::ReadOnly, "not in this test"))
    }

    async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
        Err(Error::new(ErrorKind::ReadOnly, "not in this test"))
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        Ok(Vec::new())
    }

    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}
