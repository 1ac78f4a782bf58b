//! [`StagedImage`]: an image that was made here on the layers of another store, as a store to copy it from.

use crate::store::Staging;
use async_trait::async_trait;
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result, to_usize};
use headstart_store::store::Copied;
use headstart_store::{Selector, Stop, Store, StoreCounters, Tag, Urgency};
use std::sync::Arc;

/// The store of the staged blobs, and behind it the store that has the rest.
pub(crate) struct StagedImage {
    pub(crate) staging: Staging,
    pub(crate) rest: Arc<dyn Store>,
    /// The image's manifest.
    pub(crate) manifest: (Digest, Bytes),
}

impl StagedImage {
    /// `true` if a blob is one of the staged ones.
    pub(crate) fn has_staged(&self, blob: &Digest) -> bool {
        self.staging.open(blob).is_ok_and(|staged| staged.is_some())
    }
}

#[async_trait]
impl Store for StagedImage {
    fn location(&self) -> String {
        self.rest.location()
    }

    fn name(&self) -> String {
        self.rest.name()
    }

    fn stop(&self) -> Option<&Stop> {
        self.rest.stop()
    }

    async fn check(&self) -> Result<()> {
        self.rest.check().await
    }

    async fn manifest(&self, _: &Selector) -> Result<(Digest, Bytes)> {
        Ok(self.manifest.clone())
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        let Some(staged) = self.staging.open(blob)? else {
            return self.rest.read(blob, range, urgency).await;
        };
        let read = move || {
            let mut bytes = vec![0; to_usize(range.len())];
            staged.read_at(&mut bytes, range.offset()).map(|()| bytes.into())
        };
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "a thread failed")))
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        match self.staging.open(blob)? {
            Some(staged) => Ok(Some(staged.len())),
            None => self.rest.blob_len(blob).await,
        }
    }

    async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
        Err(read_only())
    }

    async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
        Err(read_only())
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        Ok(Vec::new())
    }

    fn counters(&self) -> StoreCounters {
        self.rest.counters()
    }
}

fn read_only() -> Error {
    Error::new(ErrorKind::ReadOnly, "is only copied from")
}
