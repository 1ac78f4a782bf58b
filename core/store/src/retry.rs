//! Trying again: jittered back-off with a deadline.
//!
//! `Retrying` wraps a whole store (only `stoppable` is further out), so each new try is a whole new call, which waits
//! for its turn and takes its bytes of the rate limit again. Metadata calls and writes are retried if the error is
//! [`ErrorKind::Unavailable`]. Reads of blobs pass through once (a missing blob is the exception, see below), because
//! the pull engine knows other sources and its reader's deadline.
//!
//! * If a server asks for a pause (`Retry-After`), the next try comes after that pause; if the pause ends after the
//!   deadline, there is one more try at the deadline. Object stores are an exception, because their library does not
//!   report the pause.
//! * No try begins after the deadline. A single try has no time limit as a whole, only the time-outs of each of its
//!   steps: a long list of tags over a slow link is no failure.
//! * A fault in a server's configuration ([`is_lasting`](headstart_block::Error::is_lasting): no ranges, a
//!   certificate of an unknown authority, a server without TLS) is tried once more, after the first pause: a balancer
//!   may have sent one request to the wrong server, and a user waits for the remedy.
//! * A check of the store has a deadline of three seconds at most.
//! * If the caller has the manifest already and only asks for a newer one, the deadline is the same, and all tries
//!   together end after five seconds. If the last try got no answer, the last refusal that the store sent before is
//!   returned, if there was one: a store that says "too many requests" and then nothing counts as reached.
//! * If the store does not have a blob that a manifest names, the read is tried twice more within a second (with the
//!   default pauses), because registries and mirrors of several places may show a manifest before its blobs. If the
//!   blob stays missing, the error is [`ErrorKind::NotFound`], which is not tried again. (A stream is tried once.) A
//!   missing length or manifest is an answer at once: the tag may be mistyped, or the blob yet to be pushed.
//! * A manifest that does not match its digest ([`ErrorKind::Corrupt`]) is asked for once more, with a new deadline.

use crate::counters::{Meter, StoreCounters};
use crate::layout::Lease;
use crate::reference::{Selector, Tag};
use crate::referrers::Referrer;
use crate::settings::RetrySettings;
use crate::store::{Copied, Store, Urgency};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use headstart_block::random::Random;
use headstart_block::{ByteRange, Digest, Error, ErrorKind, ReadAt, Result};
use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The time after which [`Store::check`] gives up: an attach waits for it, and may have all bytes already.
const CHECK_DEADLINE: Duration = Duration::from_secs(3);

/// The time after which [`Store::manifest_again`] gives up: its caller can do without the store.
const AGAIN_LIMIT: Duration = Duration::from_secs(5);

/// Pauses before a blob that is not there is asked for again, as multiples of the first pause of the settings: by
/// default 200 and 800 ms.
const ABSENT_PAUSES: [u32; 2] = [2, 8];

impl RetrySettings {
    /// Calls `call` until it succeeds or fails for good. Only failures of the kind [`ErrorKind::Unavailable`]
    /// are retried, after the pauses that these settings give, until the deadline. `failed` is called with
    /// each error after which the call is retried. If the server asks for a pause, the next try comes after that pause,
    /// but at the deadline if the pause ends later. After a lasting error ([`Error::is_lasting`]) there is one
    /// more try, and none after the second.
    ///
    /// # Errors
    /// The error of the last call.
    pub async fn run<T, F, Fut>(&self, mut call: F, mut failed: impl FnMut(Error) + Send) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
        T: Send,
    {
        let begin = Instant::now();
        let (mut pause, mut lasted) = (self.first, false);
        loop {
            let error = match call().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => error,
                result => return result,
            };
            let back_off = pause.min(self.most).mul_f64(1.0 - jitter() / 2.0);
            let left = self.deadline.saturating_sub(begin.elapsed());
            if back_off >= left || error.is_lasting() && lasted {
                return Err(error);
            }
            lasted |= error.is_lasting();
            let asked = error.asked_pause().unwrap_or_default();
            // After the time, not at it: other clients got the same answer.
            let wait = asked.saturating_add(back_off).min(left);
            tracing::debug!(%error, wait_ms = wait.as_millis(), "trying again");
            failed(error);
            sleep(wait).await;
            pause = pause.saturating_mul(2).min(self.most);
        }
    }
}

/// A number in [0, 1) that differs from call to call and from process to process. Nothing depends on it but that
/// many clients do not come back at the same moment.
pub(crate) fn jitter() -> f64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    // The program's place in memory, too: in containers all processes may have the same id.
    let process = u64::from(std::process::id()) ^ (std::ptr::from_ref(&CALLS).addr() as u64 >> 12);
    Random::new(process << 32 ^ call).unit()
}

/// Retries calls of the store below.
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
        self.settings.run(call, |_| Meter::add(&self.meter.retries, 1)).await
    }

    /// As [`run`](Self::run), for a call that checks what came: once more where that was wrong.
    async fn run_checked<T, F, Fut>(&self, mut call: F) -> Result<T>
    where
        F: FnMut() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
        T: Send,
    {
        match self.run(&mut call).await {
            // Damaged on its way, perhaps: once more, and then it is the store's own.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                Meter::add(&self.meter.retries, 1);
                tracing::debug!(%error, "trying again");
                self.run(call).await
            }
            found => found,
        }
    }
}

/// The last refusal of a store, while it is asked again.
#[derive(Default)]
struct LastRefusal(Mutex<Option<Error>>);

impl LastRefusal {
    /// Keeps a failure that is an answer.
    fn keep(&self, error: Error) {
        if !error.is_away() {
            *self.lock() = Some(error);
        }
    }

    /// The failure that was kept, if `error` only says that the store is away.
    fn or(&self, error: Error) -> Error {
        if error.is_away() { self.lock().take().unwrap_or(error) } else { error }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Error>> {
        self.0.lock()
    }
}

#[async_trait]
impl Store for Retrying {
    fn location(&self) -> String {
        self.store.location()
    }

    fn name(&self) -> String {
        self.store.name()
    }

    async fn may_have_refused_others(&self) -> bool {
        self.store.may_have_refused_others().await
    }

    async fn check(&self) -> Result<()> {
        let deadline = self.settings.deadline.min(CHECK_DEADLINE);
        let settings = RetrySettings { deadline, ..self.settings };
        settings.run(|| self.store.check(), |_| Meter::add(&self.meter.retries, 1)).await
    }

    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.run_checked(|| self.store.manifest(selector)).await
    }

    async fn document(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        self.run_checked(|| self.store.document(selector)).await
    }

    async fn manifest_again(&self, selector: &Selector, known: &Digest) -> Result<Option<(Digest, Bytes)>> {
        // The same time as a check.
        let deadline = self.settings.deadline.min(CHECK_DEADLINE);
        let settings = RetrySettings { deadline, ..self.settings };
        let refusal = LastRefusal::default();
        let failed = |error| {
            Meter::add(&self.meter.retries, 1);
            refusal.keep(error);
        };
        let run = || settings.run(|| self.store.manifest_again(selector, known), failed);
        let asked = async {
            match run().await {
                // Damaged on its way, perhaps.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    failed(error);
                    run().await
                }
                answer => answer,
            }
        };
        let answer = timeout(AGAIN_LIMIT, asked).await.unwrap_or_else(|_| {
            let within = format!("within {} s", AGAIN_LIMIT.as_secs());
            Err(if self.store.has_let_nobody_in() {
                let cause = format!("asks for a token, and its token server gives none {within}");
                Error::new(ErrorKind::Unavailable, cause).answered()
            } else {
                Error::new(ErrorKind::Unavailable, format!("does not answer {within}"))
            })
        });
        answer.map_err(|error| refusal.or(error))
    }

    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes> {
        let begin = Instant::now();
        for pause in ABSENT_PAUSES.map(|multiple| self.settings.first.saturating_mul(multiple)) {
            let error = match self.store.read(blob, range, urgency).await {
                Err(error) if error.kind() == ErrorKind::NotFound => error,
                result => return result,
            };
            let pause = pause.mul_f64(1.0 - jitter() / 2.0);
            if begin.elapsed().saturating_add(pause) >= self.settings.deadline {
                return Err(error);
            }
            Meter::add(&self.meter.retries, 1);
            tracing::debug!(%error, wait_ms = pause.as_millis(), "asking once more for what is not there");
            sleep(pause).await;
        }
        self.store.read(blob, range, urgency).await
    }

    /// Reads once: streams are of preloads, which come back later anyway.
    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        self.store.read_stream(blob, range, urgency).await
    }

    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>> {
        self.run(|| self.store.blob_len(blob)).await
    }

    async fn prepare_to_write(&self) -> Result<()> {
        self.run(|| self.store.prepare_to_write()).await
    }

    async fn done_writing(&self) {
        self.store.done_writing().await;
    }

    fn keeps_leases(&self) -> bool {
        self.store.keeps_leases()
    }

    async fn put_lease(&self, id: &str, lease: &Lease) -> Result<bool> {
        self.run(|| self.store.put_lease(id, lease)).await
    }

    async fn remove_lease(&self, id: &str) -> Result<()> {
        self.run(|| self.store.remove_lease(id)).await
    }

    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()> {
        // Bytes that failed tries copied are not counted twice.
        let (reported, now) = (AtomicU64::new(0), AtomicU64::new(0));
        let once = |bytes: u64| {
            let sum = now.fetch_add(bytes, Ordering::Relaxed) + bytes;
            let before = reported.fetch_max(sum, Ordering::Relaxed);
            copied(sum.saturating_sub(before))
        };
        self.run(|| {
            now.store(0, Ordering::Relaxed);
            self.store.put_blob(digest, Arc::clone(&source), &once)
        })
        .await
    }

    async fn mount_blob(&self, digest: &Digest, from: &str) -> Result<bool> {
        self.run(|| self.store.mount_blob(digest, from)).await
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

    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        self.run(|| self.store.referrers(subject, artifact_type)).await
    }

    async fn referrers_of_types(
        &self,
        subject: &Digest,
        artifact_types: &[&str],
    ) -> Result<Vec<Vec<Referrer>>> {
        self.run(|| self.store.referrers_of_types(subject, artifact_types)).await
    }

    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        self.run(|| self.store.put_referrer(subject, media_type, bytes.clone(), replaced)).await
    }

    fn counters(&self) -> StoreCounters {
        self.store.counters().plus(self.meter.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let error = settings.run(call, |_| failed += 1).await.unwrap_err();
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
            assert_eq!(RetrySettings::default().run(call, |_| ()).await.unwrap_err().kind(), kind);
            assert_eq!(tries, 1);
        }
        let mut tries = 0;
        let call = || {
            tries += 1;
            let now = tries;
            async move { if now < 4 { unavailable() } else { Ok(()) } }
        };
        RetrySettings::default().run(call, |_| ()).await.unwrap();
        assert_eq!(tries, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn lasting_errors_are_given_up_after_a_second_try() {
        let (settings, start, mut tries) = (RetrySettings::default(), Instant::now(), 0);
        let call = || {
            tries += 1;
            async { Err::<(), _>(Error::new(ErrorKind::Unavailable, "no ranges").lasting()) }
        };
        let error = settings.run(call, |_| ()).await.unwrap_err();
        assert!(error.is_lasting() && start.elapsed() <= settings.first * 2, "{:?}", start.elapsed());
        assert_eq!(tries, 2);
        // One server of several is wrong.
        let mut tries = 0;
        let call = || {
            tries += 1;
            let now = tries;
            let wrong = Error::new(ErrorKind::Unavailable, "no ranges").lasting();
            async move {
                match now {
                    1 => unavailable(),
                    2 => Err(wrong),
                    _ => Ok(()),
                }
            }
        };
        settings.run(call, |_| ()).await.unwrap();
        assert_eq!(tries, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_wait_as_long_as_the_server_asks() {
        let settings = RetrySettings::default();
        let tries = async |pause: u64, sound: usize| {
            let (start, mut tries) = (Instant::now(), Vec::new());
            let call = || {
                tries.push(start.elapsed().as_secs_f64());
                let done = tries.len() > sound;
                let busy = Error::new(ErrorKind::Unavailable, "busy").retry_after(Duration::from_secs(pause));
                async move { if done { Ok(()) } else { Err(busy) } }
            };
            let result = settings.run(call, |_| ()).await;
            (tries, result.is_ok())
        };
        let (two, done) = tries(10, 1).await;
        assert!(done && two.len() == 2 && (10.0..10.2).contains(&two[1]), "{two:?}");
        let (three, done) = tries(10, 2).await;
        assert!(done && three.len() == 3 && (20.0..20.4).contains(&three[2]), "{three:?}");
        // Past the deadline: once more when it comes, because the server may have asked for more than it meant.
        let (last, done) = tries(3600, 100).await;
        assert!(!done && last.len() == 2 && (29.9..30.1).contains(&last[1]), "{last:?}");
    }

    /// A store with slow calls that has its blob only after some reads.
    #[derive(Default)]
    struct Slow {
        time: Duration,
        absent: AtomicU64,
        reads: Mutex<Vec<Instant>>,
        /// Its replies for its manifest in turn; the last again and again.
        replies: Mutex<Vec<Reply>>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Reply {
        Same,
        Away,
        Nothing,
        Busy,
        Damaged,
        Denied,
    }

    impl Slow {
        fn unsupported<T>() -> Result<T> {
            Err(Error::unsupported("is not part of the test"))
        }
    }

    #[async_trait]
    impl Store for Slow {
        fn location(&self) -> String {
            "slow".to_owned()
        }

        async fn check(&self) -> Result<()> {
            sleep(self.time).await;
            Ok(())
        }

        async fn manifest(&self, _: &Selector) -> Result<(Digest, Bytes)> {
            sleep(self.time).await;
            Err(Error::new(ErrorKind::NotFound, "no such tag"))
        }

        async fn manifest_again(&self, _: &Selector, _: &Digest) -> Result<Option<(Digest, Bytes)>> {
            let reply = {
                let mut replies = self.replies.lock();
                if replies.len() > 1 { replies.remove(0) } else { replies[0] }
            };
            match reply {
                Reply::Same => Ok(None),
                Reply::Away => Err(Error::new(ErrorKind::Unavailable, "away")),
                Reply::Nothing => std::future::pending().await,
                Reply::Busy => Err(Error::new(ErrorKind::Unavailable, "busy").answered()),
                Reply::Damaged => Err(Error::corrupt("damaged")),
                Reply::Denied => Err(Error::new(ErrorKind::Denied, "denied")),
            }
        }

        async fn read(&self, _: &Digest, range: ByteRange, _: Urgency) -> Result<Bytes> {
            self.reads.lock().push(Instant::now());
            let left = self.absent.load(Ordering::Relaxed);
            self.absent.store(left.saturating_sub(1), Ordering::Relaxed);
            if left > 0 {
                return Err(Error::new(ErrorKind::NotFound, "no such blob"));
            }
            Ok(vec![0; usize::try_from(range.len()).unwrap()].into())
        }

        async fn blob_len(&self, _: &Digest) -> Result<Option<u64>> {
            Ok(None)
        }

        async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
            Self::unsupported()
        }

        async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
            Self::unsupported()
        }

        async fn tags(&self) -> Result<Vec<Tag>> {
            sleep(self.time).await;
            Ok(Vec::new())
        }

        fn counters(&self) -> StoreCounters {
            StoreCounters::default()
        }
    }

    fn retrying(store: Slow) -> (Arc<Slow>, Retrying) {
        let store = Arc::new(store);
        (Arc::clone(&store), Retrying::new(store, RetrySettings::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn slow_calls_are_no_failures() {
        let (_, store) = retrying(Slow { time: Duration::from_secs(100), ..Slow::default() });
        store.check().await.unwrap();
        store.tags().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_blob_that_is_late_is_asked_for_again_a_few_times() {
        let (blob, range) = (Digest::of(b"blob"), ByteRange::between(0, 10));
        for (absent, reads, retries) in [(0, 1, 0), (1, 2, 1), (2, 3, 2), (9, 3, 2)] {
            let (slow, store) = retrying(Slow { absent: absent.into(), ..Slow::default() });
            let (start, read) = (Instant::now(), store.read(&blob, range, Urgency::Demand).await);
            assert_eq!(read.map_err(|e| e.kind()).err(), (absent == 9).then_some(ErrorKind::NotFound));
            assert_eq!(slow.reads.lock().len(), reads);
            assert_eq!(store.counters().retries, retries);
            assert!(start.elapsed() <= Duration::from_millis(1002), "{:?}", start.elapsed());
        }
        // The absence of a thing that may well be missing is reported at once.
        let (_, store) = retrying(Slow::default());
        let start = Instant::now();
        assert_eq!(store.blob_len(&blob).await.unwrap(), None);
        let missing = store.manifest(&Selector::Digest(blob)).await.unwrap_err();
        assert_eq!((missing.kind(), start.elapsed()), (ErrorKind::NotFound, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_outlives_the_silence_after_it() {
        use Reply::{Away, Busy, Damaged, Denied, Nothing, Same};
        let digest = Digest::of(b"manifest");
        let cases: [(&[Reply], &str, u64); 13] = [
            (&[Same], "", 0),
            (&[Away, Same], "", 1),
            (&[Busy, Same], "", 1),
            (&[Damaged, Same], "", 0),
            (&[Denied, Same], "denied", 0),
            (&[Away], "away", 3),
            (&[Busy], "busy", 3),
            (&[Damaged], "damaged", 0),
            (&[Nothing], "does not answer within 5 s", 5),
            (&[Busy, Nothing], "busy", 5),
            (&[Away, Busy, Away], "busy", 3),
            (&[Damaged, Nothing], "damaged", 5),
            (&[Damaged, Away], "damaged", 3),
        ];
        for (replies, expected, seconds) in cases {
            let (_, store) = retrying(Slow { replies: Mutex::new(replies.to_vec()), ..Slow::default() });
            let start = Instant::now();
            let answer = store.manifest_again(&Selector::Digest(digest), &digest).await;
            let text = answer.map_or_else(|error| error.to_string(), |_| String::new());
            assert_eq!(text, expected, "{replies:?}");
            // The timer counts whole milliseconds.
            let most = Duration::from_millis(seconds * 1000 + 2);
            assert!(start.elapsed() <= most, "{replies:?}: {:?}", start.elapsed());
        }
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
