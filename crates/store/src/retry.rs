//! Trying again: jittered back-off with a deadline.
//!
//! `Retrying` is the outermost wrapper of a store: each new try is a whole new call, which takes its turn and its
//! tokens anew. It retries metadata calls alone; reads pass through once, since the pull engine knows other sources
//! and how long its reader waits.

use crate::counters::{Counters, Meter};
use crate::reference::{Selector, Tag};
use crate::settings::RetrySettings;
use crate::store::{Copied, Store, Urgency};
use async_trait::async_trait;
use bytes::Bytes;
use headstart_block::{ByteRange, Digest, ErrorKind, ReadAt, Result};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// [`Store::check`] gives up after this: whoever attaches waits for it, and may have all bytes already.
const CHECK_DEADLINE: Duration = Duration::from_secs(3);

impl RetrySettings {
    /// Calls `call` until it succeeds, fails in a way that trying again does not help, or the deadline has passed.
    /// `failed` hears of each failure after which it is tried again.
    ///
    /// # Errors
    /// That of the last try.
    pub async fn run<T, F, Fut>(&self, mut call: F, mut failed: impl FnMut() + Send) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
        T: Send,
    {
        let begin = Instant::now();
        let mut pause = self.first;
        loop {
            let error = match call().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => error,
                result => return result,
            };
            let wait = pause.min(self.most).mul_f64(1.0 - jitter() / 2.0);
            if begin.elapsed().saturating_add(wait) >= self.deadline {
                return Err(error);
            }
            failed();
            tracing::debug!(%error, wait_ms = wait.as_millis(), "trying again");
            sleep(wait).await;
            pause = pause.saturating_mul(2).min(self.most);
        }
    }
}

/// A number in [0, 1) that differs from call to call and from process to process. Nothing depends on it but that
/// many clients do not come back at the same moment.
fn jitter() -> f64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    // Where the program lies in memory, too: in containers all processes have the same number.
    let process = u64::from(std::process::id()) ^ (std::ptr::from_ref(&CALLS).addr() as u64 >> 12);
    // The finaliser of splitmix64.
    let mut x = (process << 32 ^ call).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let fraction = ((x ^ (x >> 31)) >> 11) as f64;
    fraction / (1u64 << 53) as f64
}

/// Retries the metadata calls of the store below.
pub(crate) struct Retrying {
    store: Arc<dyn Store>,
    settings: RetrySettings,
    meter: Meter,
}

impl Retrying {
    pub(crate) fn new(store: Arc<dyn Store>, settings: RetrySettings) -> Self {
        Self { store, settings, meter: Meter::default() }
    }

    async fn run<T, F, Fut>(&self, call: F) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
        T: Send,
    {
        self.settings.run(call, || Meter::add(&self.meter.retries, 1)).await
    }
}

#[async_trait]
impl Store for Retrying {
    fn location(&self) -> String {
        self.store.location()
    }

    async fn check(&self) -> Result<()> {
        let deadline = self.settings.deadline.min(CHECK_DEADLINE);
        let settings = RetrySettings { deadline, ..self.settings };
        settings.run(|| self.store.check(), || Meter::add(&self.meter.retries, 1)).await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        match self.run(|| self.store.manifest(selector)).await {
            // Damaged on its way, perhaps: once more, and then it is the store's own.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                Meter::add(&self.meter.retries, 1);
                tracing::debug!(%error, "trying again");
                self.run(|| self.store.manifest(selector)).await
            }
            found => found,
        }
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        self.store.read(blob, range, urgency).await
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        self.run(|| self.store.blob_len(blob)).await
    }

    async fn prepare_to_write(&self) -> Result<()> {
        self.run(|| self.store.prepare_to_write()).await
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        // What failed tries copied is not counted twice.
        let (told, now) = (AtomicU64::new(0), AtomicU64::new(0));
        let once = |bytes: u64| {
            let sum = now.fetch_add(bytes, Ordering::Relaxed) + bytes;
            let before = told.fetch_max(sum, Ordering::Relaxed);
            copied(sum.saturating_sub(before))
        };
        self.run(|| {
            now.store(0, Ordering::Relaxed);
            self.store.put_blob(digest, Arc::clone(&source), &once)
        })
        .await
    }

    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest> {
        self.run(|| self.store.put_manifest(media_type, bytes.clone(), tag)).await
    }

    async fn tags(&self) -> Result<Vec<Tag>> {
        self.run(|| self.store.tags()).await
    }

    fn drops_unnamed_blobs(&self) -> bool {
        self.store.drops_unnamed_blobs()
    }

    async fn put_referrer(&self, subject: &Digest, media_type: &str, bytes: Bytes) -> Result<Digest> {
        self.run(|| self.store.put_referrer(subject, media_type, bytes.clone())).await
    }

    fn counters(&self) -> Counters {
        self.store.counters().plus(self.meter.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::Error;

    fn unavailable() -> Result<()> {
        Err(Error::new(ErrorKind::Unavailable, "away"))
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_the_deadline_ends_them() {
        let settings = RetrySettings::default();
        let (start, mut tries, mut failed) = (Instant::now(), Vec::new(), 0);
        let call = || {
            tries.push(start.elapsed());
            async { unavailable() }
        };
        let error = settings.run(call, || failed += 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(start.elapsed() < settings.deadline, "{:?}", start.elapsed());
        assert!(start.elapsed() > settings.deadline - settings.most, "{:?}", start.elapsed());
        assert_eq!(tries.len(), failed + 1);
        let mut expected = settings.first;
        for pair in tries.windows(2) {
            let pause = pair[1] - pair[0];
            // The timer counts whole milliseconds.
            let (least, most) = (expected / 2, expected + Duration::from_millis(1));
            assert!((least..=most).contains(&pause), "{pause:?} of {expected:?}");
            expected = (expected * 2).min(settings.most);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_may_go_away_is_tried_again() {
        for kind in [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Corrupt, ErrorKind::Conflict] {
            let mut tries = 0;
            let call = || {
                tries += 1;
                async move { Err::<(), _>(Error::new(kind, "no")) }
            };
            assert_eq!(RetrySettings::default().run(call, || ()).await.unwrap_err().kind(), kind);
            assert_eq!(tries, 1);
        }
        let mut tries = 0;
        let call = || {
            tries += 1;
            let now = tries;
            async move { if now < 4 { unavailable() } else { Ok(()) } }
        };
        RetrySettings::default().run(call, || ()).await.unwrap();
        assert_eq!(tries, 4);
    }

    #[test]
    fn jitter_spreads() {
        let (sum, all) = (0..1000).fold((0.0, true), |(sum, all), _| {
            let value = jitter();
            (sum + value, all && (0.0..1.0).contains(&value))
        });
        assert!(all && (400.0..600.0).contains(&sum), "{sum}");
    }
}
