//! [`Stoppable`]: a store whose calls end with the user's request to stop.
//!
//! A server that accepts a connection and says nothing, a rate limit of a few bytes a second: code that waits for these
//! checks no progress bar. So the request is handled in one place, around the whole store: each call ends at once with
//! [`ErrorKind::Cancelled`], and the work that it had begun is dropped. Two calls are not cut off, because
//! afterwards the caller would not know if they took effect: those that write a manifest. Stores of disks that are
//! being served have no [`Stop`] in their settings: their requests end with the disk.

use crate::counters::StoreCounters;
use crate::layout::Lease;
use crate::reference::{Selector, Tag};
use crate::referrers::Referrer;
use crate::silence::{warn_if_silent, warn_once};
use crate::stop::Stop;
use crate::store::{Copied, Store, Urgency};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A store whose calls end when the user wants to stop.
pub(crate) struct Stoppable {
    store: Arc<dyn Store>,
    stop: Stop,
    /// The time that a server has for the beginning of an answer, for the warning; none: no warning.
    limit: Option<Duration>,
    /// `true` if a read has warned, and none has succeeded since: many wait at once.
    has_warned: AtomicBool,
}

impl Stoppable {
    pub(crate) fn new(store: Arc<dyn Store>, stop: Stop, limit: Option<Duration>) -> Self {
        Self { store, stop, limit, has_warned: AtomicBool::new(false) }
    }

    /// As [`run`](Self::run), for a call that waits for a small answer.
    async fn ask<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.run(warn_if_silent(&*self.store, self.limit, call)).await
    }

    /// As [`run`](Self::run), for a call that waits for bytes of a blob.
    async fn fetch<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let done = self.run(warn_once(&*self.store, self.limit, &self.has_warned, call)).await;
        if done.is_ok() {
            self.has_warned.store(false, Ordering::Relaxed);
        }
        done
    }

    async fn run<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let stopped = || Error::new(ErrorKind::Cancelled, "stopped on request");
        self.stop.before(call).await.unwrap_or_else(|| Err(stopped()))
    }
}

#[async_trait]
impl Store for Stoppable {
    fn location(&self) -> String {
        self.store.location()
    }

    fn name(&self) -> String {
        self.store.name()
    }

    fn stop(&self) -> Option<&Stop> {
        Some(&self.stop)
    }

    async fn may_have_refused_others(&self) -> bool {
        self.store.may_have_refused_others().await
    }

    async fn check(&self) -> Result<()> {
        self.ask(self.store.check()).await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.ask(self.store.manifest(selector)).await
    }

    async fn document(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.ask(self.store.document(selector)).await
    }

    async fn manifest_again(&self, selector: &Selector, known: &Digest) -> Result<Option<(Digest, Bytes)>> {
        self.ask(self.store.manifest_again(selector, known)).await
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        self.fetch(self.store.read(blob, range, urgency)).await
    }

    /// Reads as a stream. The request to stop cuts off its beginning, not its parts.
    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        self.fetch(self.store.read_stream(blob, range, urgency)).await
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        self.ask(self.store.blob_len(blob)).await
    }

    async fn prepare_to_write(&self) -> Result<()> {
        self.ask(self.store.prepare_to_write()).await
    }

    async fn done_writing(&self) {
        self.store.done_writing().await;
    }

    fn keeps_leases(&self) -> bool {
        self.store.keeps_leases()
    }

    async fn put_lease(&self, id: &str, lease: &Lease) -> Result<bool> {
        self.run(self.store.put_lease(id, lease)).await
    }

    async fn remove_lease(&self, id: &str) -> Result<()> {
        self.run(self.store.remove_lease(id)).await
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        self.run(self.store.put_blob(digest, source, copied)).await
    }

    async fn mount_blob(&self, digest: &Digest, from: &str) -> Result<bool> {
        self.ask(self.store.mount_blob(digest, from)).await
    }

    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        warn_if_silent(&*self.store, self.limit, self.store.put_manifest(media_type, bytes, tag)).await
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        self.ask(self.store.tags()).await
    }

    fn drops_unnamed_blobs(&self) -> bool {
        self.store.drops_unnamed_blobs()
    }

    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        self.ask(self.store.referrers(subject, artifact_type)).await
    }

    async fn referrers_of_types(
        &self,
        subject: &Digest,
        artifact_types: &[&str],
    ) -> Result<Vec<Vec<Referrer>>> {
        self.ask(self.store.referrers_of_types(subject, artifact_types)).await
    }

    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        let put = self.store.put_referrer(subject, media_type, bytes, replaced);
        warn_if_silent(&*self.store, self.limit, put).await
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Location, StoreSettings};

    #[tokio::test]
    async fn a_store_without_anybody_to_ask_works_on() {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::Directory(dir.path().join("store"));
        let (sender, stop) = Stop::new();
        let open =
            |stop| crate::open(&location, &StoreSettings { stop: Some(stop), ..StoreSettings::default() });
        drop(sender);
        let store = open(stop).unwrap();
        let digest = Digest::of(b"blob");
        store.put_blob(&digest, Arc::new(b"blob".to_vec()), &|_| Ok(())).await.unwrap();
        assert_eq!(store.blob_len(&digest).await.unwrap(), Some(4));
        let (sender, stop) = Stop::new();
        let store = open(stop).unwrap();
        sender.ask();
        assert_eq!(store.blob_len(&digest).await.unwrap_err().kind(), ErrorKind::Cancelled);
    }
}
