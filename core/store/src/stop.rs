//! [`Stop`]: the user's request to end a command, which ends every wait for a store.
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
use crate::store::{Copied, Store, Urgency};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// The time after which the user is told that a store has not answered: longer than the tries at a store that refuses
/// connections, because that case has its own error.
const SILENCE: Duration = Duration::from_secs(5);

/// The time between two looks at whether bytes of blobs come.
const LOOK: Duration = Duration::from_millis(250);

/// The receiving side of the request to stop. Clones share one request.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// The sending side of the request to stop.
#[derive(Debug)]
pub struct StopSender(watch::Sender<bool>);

impl StopSender {
    /// Asks all code that waits for a store with this [`Stop`] in its settings to stop. This cannot be taken back.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Returns when the request has no receivers any more: all stores that had it in their settings are gone, with
    /// the reads that held them.
    pub async fn unused(&self) {
        self.0.closed().await;
    }
}

impl Stop {
    /// Makes a request to stop that is not sent yet: both of its sides.
    #[must_use]
    pub fn new() -> (StopSender, Self) {
        let (sender, receiver) = watch::channel(false);
        (StopSender(sender), Self(receiver))
    }

    /// `true` once the request was sent.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// The result of `work`, or `None` if the request comes before the result: `work` is dropped then.
    pub async fn before<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut asked = self.0.clone();
        let stopped = async {
            if asked.wait_for(|asked| *asked).await.is_err() {
                // There is no sender any more.
                pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = stopped => None,
            done = work => Some(done),
        }
    }
}

/// The result of `asked`, which waits for a small answer of `store`. If there is none after some seconds, a warning
/// says so, and that each answer may take `limit`; but not for a store that is tried again, because that one failed,
/// and not without a `limit`.
pub async fn say_if_silent<T>(
    store: &dyn Store,
    limit: Option<Duration>,
    asked: impl Future<Output = T>,
) -> T {
    let Some(limit) = limit else { return asked.await };
    let mut asked = pin!(asked);
    let retries = store.counters().retries;
    tokio::select! {
        biased;
        answer = &mut asked => return answer,
        () = sleep(SILENCE) => {}
    }
    if store.counters().retries == retries {
        let (name, limit) = (store.name(), limit.as_secs_f64());
        tracing::warn!("{name} has not answered yet; it is given {limit} s for each answer");
    }
    asked.await
}

/// The result of `read`, which waits for bytes of blobs of `store`. If some are asked for and none come for some
/// seconds, a warning says so once, as that of [`say_if_silent`]. Bytes that a rate holds back are not asked for.
pub async fn say_if_nothing_comes<T>(
    store: &dyn Store,
    limit: Option<Duration>,
    read: impl Future<Output = T>,
) -> T {
    say_once(store, limit, &AtomicBool::new(false), read).await
}

/// The same where `has_warned` says that the warning was given.
async fn say_once<T>(
    store: &dyn Store,
    limit: Option<Duration>,
    has_warned: &AtomicBool,
    read: impl Future<Output = T>,
) -> T {
    let Some(limit) = limit else { return read.await };
    let mut read = pin!(read);
    tokio::select! {
        biased;
        done = &mut read => return done,
        () = silence(store) => {}
    }
    if !has_warned.swap(true, Ordering::Relaxed) {
        let (name, limit) = (store.name(), limit.as_secs_f64());
        tracing::warn!(
            "nothing comes from {name}; it is given {limit} s for each answer, and for more of one"
        );
    }
    read.await
}

/// Returns once reads of `store` have waited for some seconds, and nothing has come.
async fn silence(store: &dyn Store) {
    let (mut before, mut silent) = (store.counters(), Duration::ZERO);
    while silent < SILENCE {
        sleep(LOOK).await;
        let now = store.counters();
        silent = if now.is_silent_since(&before) { silent + LOOK } else { Duration::ZERO };
        before = now;
    }
}

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
        self.run(say_if_silent(&*self.store, self.limit, call)).await
    }

    /// As [`run`](Self::run), for a call that waits for bytes of a blob.
    async fn fetch<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let done = self.run(say_once(&*self.store, self.limit, &self.has_warned, call)).await;
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

    async fn check(&self) -> Result<()> {
        self.ask(self.store.check()).await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.ask(self.store.manifest(selector)).await
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

    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        say_if_silent(&*self.store, self.limit, self.store.put_manifest(media_type, bytes, tag)).await
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

    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        let put = self.store.put_referrer(subject, media_type, bytes, replaced);
        say_if_silent(&*self.store, self.limit, put).await
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
    async fn calls_end_when_it_is_asked_and_not_before() {
        let (sender, stop) = Stop::new();
        assert_eq!(stop.before(async { 1 }).await, Some(1));
        assert!(!stop.is_asked());
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.before(pending::<()>()).await }
        });
        sender.ask();
        assert_eq!(waiting.await.unwrap(), None);
        assert!(stop.is_asked());
        drop(sender);
        assert_eq!(stop.before(pending::<()>()).await, None, "it cannot be taken back");
    }

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
