//! [`Hold`]: a disk's claim on its image, against programs that delete images.
//!
//! In a directory the claim is a lease with a lock, taken before the image is opened. In an object store it is an
//! object that is written while the image is opened, and renewed as long as the disk is attached. Web servers cannot be
//! written to, and registries know no disks: there is nothing to claim.

mod claim;

use crate::release::{LAST_WORD, NewLease, wait_apart};
use claim::{Claim, First, Pauses, Writers, gone, is_final};
use futures::future::join_all;
use headstart_block::guarded::shell_word;
use headstart_block::{Digest, Result};
use headstart_image::manifest::Manifest;
use headstart_image::store::{HoldingDirectory, attach_id, lease_of_directory, unprotected};
use headstart_lsmt::writable::WritableDisk;
use headstart_store::layout::{HeldLease, HostId, Lease, LeaseHolder};
use headstart_store::{Reference, Store};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

/// The time between renewals of a lease in an object store, which counts for a week.
const RENEWED: Duration = Duration::from_secs(6 * 3600);

/// The time after which a renewal that failed is tried again.
const TRIED_AGAIN: Duration = Duration::from_secs(60);

/// The same for one that the store refused: its credentials may be put right meanwhile.
const REFUSED: Duration = Duration::from_secs(1800);

/// The longest time that an attach waits for its lease. After that the disk is served meanwhile.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest time that a removal waits for a lease that is being written. It is longer than an attach waits, because
/// a lease that comes later blocks prunes for a week.
const LANDS: Duration = Duration::from_secs(10);

/// The time between looks of an attach that waits for the end of a prune, at first and later.
const LOOK: Duration = Duration::from_millis(500);
const LONGEST_LOOK: Duration = Duration::from_secs(15);

/// A guard that protects an image from deletion, by a lease in its store. Dropping the guard removes the lease, unless
/// the disk is to be started again (its [`DiskOptions::record`](crate::DiskOptions::record) exists). The default
/// protects nothing.
#[derive(Default)]
pub struct Hold {
    in_directory: Mutex<Option<HeldLease>>,
    in_store: Mutex<Option<InStore>>,
}

struct InStore {
    store: Arc<dyn Store>,
    runtime: Handle,
    /// The lease of the attach.
    id: String,
    /// As long as this is there, the lease outlives the process.
    record: Option<PathBuf>,
    /// The store, as a command line names it.
    location: String,
    writers: Writers,
    /// `true` if nothing is left to be done.
    is_released: bool,
}

impl InStore {
    /// Takes the lease out. Returns a warning if it may stay.
    async fn remove(&mut self) -> Option<String> {
        self.is_released = true;
        let has_ended = self.writers.end(LANDS).await;
        let why = match timeout(STORE_TIMEOUT, self.store.remove_lease(&self.id)).await {
            Ok(Ok(())) if has_ended => return None,
            Ok(Ok(())) => may_come(LANDS),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("its store does not answer within {} s", STORE_TIMEOUT.as_secs()),
        };
        Some(stays(&self.id, "a detached disk", &self.location, &why))
    }

    fn release(mut self) {
        if let Some(warning) = self.runtime.clone().block_on(self.remove()) {
            tracing::warn!("{warning}");
        }
    }
}

impl Drop for InStore {
    fn drop(&mut self) {
        if self.is_released || is_recorded(self.record.as_deref()) {
            self.writers.abort();
            return;
        }
        match wait_apart(&self.runtime.clone(), self.remove()) {
            Some(None) => {}
            Some(Some(warning)) => tracing::warn!("{warning}"),
            None => tracing::debug!("the lease of a disk stays"),
        }
    }
}

/// `true` if a disk is to be started again.
fn is_recorded(record: Option<&Path>) -> bool {
    record.is_some_and(Path::exists)
}

/// The reason why a lease may be there after its removal: its write was waited for, for this time.
fn may_come(waited: Duration) -> String {
    format!("its store has not written it within {} s, and may do so yet", waited.as_secs())
}

/// The warning about a lease that could not be taken out.
fn stays(id: &str, of: &str, location: &str, why: &str) -> String {
    let (name, store, word) = (id.escape_debug(), shell_word(location), shell_word(id));
    format!(
        "the lease {name} of {of} stays in {location} for a week ({why}): `headstart lease release {store} \
         --id {word} --force` takes it away"
    )
}

impl Hold {
    /// A hold by a lease in a directory of this host.
    pub(crate) fn in_directory(lease: HeldLease) -> Self {
        Self { in_directory: Mutex::new(Some(lease)), in_store: Mutex::default() }
    }

    /// Removes the lease, even if the disk's record exists; to be called when the disk is detached. The lease of a
    /// writable directory stays. For a lease in an object store this waits for the store, some 13 seconds at most. If
    /// the removal fails, a warning is logged, and the lease counts for up to a week. Must not be called in async code,
    /// where it panics if the lease is in an object store.
    pub fn release(&self) {
        let in_directory = self.in_directory.lock().take();
        if let Some(held) = in_directory {
            held.release();
        }
        if let Some(held) = self.take() {
            held.release();
        }
    }

    /// Removes the lease, if it is in an object store; to be called for a disk that could not be served. If the disk is
    /// to be started again, the lease stays. In either case this waits, for a limited time, for writes to the store
    /// that are under way. A lease in a directory stays until the guard is dropped.
    pub fn give_up(&self) {
        let Some(held) = self.take() else { return };
        if is_recorded(held.record.as_deref()) {
            wait_apart(&held.runtime, held.writers.end(LANDS));
        }
    }

    fn take(&self) -> Option<InStore> {
        self.in_store.lock().take()
    }
}

/// A hold that is being taken in a store.
pub(crate) struct Leasing {
    claim: Claim,
    /// `true` if every byte of the image is on this host.
    is_whole: bool,
    begun: Begun,
}

/// The objects that an attach has written to a store before it is known to succeed. If it is dropped before that,
/// because another disk of the same command fails for example, it takes them back.
struct Begun {
    store: Arc<dyn Store>,
    runtime: Handle,
    /// The first lease, until it is waited for.
    first: Option<JoinHandle<Result<First>>>,
    writers: Writers,
    id: String,
    /// As long as this is there, that lease outlives the process.
    record: Option<PathBuf>,
    /// The lease of a directory that is removed if the attach fails.
    new_directory: Option<String>,
    /// The store, as a command line names it.
    location: String,
    /// `true` if nothing is left to be taken back.
    is_settled: bool,
}

impl Begun {
    fn new(runtime: &Handle, claim: &Claim) -> Self {
        let (first, mut writers) = (runtime.spawn(claim.clone().first()), Writers::new(claim));
        writers.add(&first);
        Self {
            store: Arc::clone(&claim.store),
            runtime: runtime.clone(),
            first: Some(first),
            writers,
            id: claim.leases[0].0.clone(),
            record: claim.record.clone(),
            new_directory: None,
            location: claim.reference.location.to_string(),
            is_settled: false,
        }
    }

    /// Starts the task that writes the leases of `claim` from now on. The receiver gets the first result.
    fn keep(&mut self, claim: Claim) -> oneshot::Receiver<Result<bool>> {
        let (tell, told) = oneshot::channel();
        if let Some(first) = self.first.take() {
            let pauses = Pauses { every: RENEWED, again: TRIED_AGAIN, refused: REFUSED };
            self.writers.add(&self.runtime.spawn(claim.keep(first, tell, pauses)));
        }
        told
    }

    /// Takes the leases back. Best effort: they count for a week otherwise.
    async fn take_back(&mut self) {
        self.is_settled = true;
        let has_ended = self.writers.end(LAST_WORD).await;
        let own = (!is_recorded(self.record.as_deref())).then_some(&self.id);
        let ids: Vec<_> = own.into_iter().chain(&self.new_directory).collect();
        let removals: Vec<_> = ids.iter().map(|id| self.store.remove_lease(id)).collect();
        let _ = timeout(LAST_WORD, join_all(removals)).await;
        if !has_ended {
            for id in ids {
                let why = may_come(LAST_WORD);
                tracing::warn!("{}", stays(id, "a disk that was not attached", &self.location, &why));
            }
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_settled && wait_apart(&self.runtime.clone(), self.take_back()).is_none() {
            tracing::debug!("the lease of a disk that was not attached stays");
        }
    }
}

impl Leasing {
    /// Begins to write the lease of an attach, if the store keeps any. `is_whole` is `true` if every byte of the image
    /// is on this host.
    pub(crate) fn begin(
        runtime: &Handle,
        store: &Arc<dyn Store>,
        reference: &Reference,
        (digest, manifest): (Digest, &Manifest),
        record: Option<PathBuf>,
        is_whole: bool,
    ) -> Option<Self> {
        if !store.keeps_leases() {
            return None;
        }
        let blobs = manifest.blobs().map(|(digest, _)| digest).chain(manifest.turbo_targets()).collect();
        let here = HostId::here().inspect_err(|error| tracing::warn!(%error, "no lease can be left")).ok()?;
        let id = attach_id(record.as_deref(), &digest, &here, Uuid::new_v4());
        let holder = LeaseHolder::Attach { record: record.clone() };
        let lease = Lease::new(holder, digest, blobs, reference.to_string(), here);
        let (store, leases) = (Arc::clone(store), vec![(id, lease)]);
        let (reference, is_over) = (reference.clone(), Arc::default());
        let claim = Claim { store, reference, image: digest, leases, record, is_over };
        let begun = Begun::new(runtime, &claim);
        Some(Self { claim, is_whole, begun })
    }

    /// Adds the lease of a writable directory; `is_new` if that was made for this attach.
    pub(crate) fn add_directory(
        &mut self,
        disk: &WritableDisk,
        dir: &Path,
        manifest: &Manifest,
        is_new: bool,
    ) {
        let (uuid, image, reference) = (disk.uuid(), self.claim.image, &self.claim.reference);
        let lease = (HoldingDirectory { dir, uuid, image, manifest, reference }).lease();
        match lease.and_then(|lease| Ok((lease_of_directory(uuid, dir)?, lease))) {
            Ok((id, lease)) => {
                self.begun.new_directory = is_new.then(|| id.clone());
                self.claim.leases.push((id, lease));
            }
            Err(error) => tracing::warn!(%error, "the writable directory leaves no lease"),
        }
    }

    /// The lease of a directory that was made for this attach.
    pub(crate) fn new_lease(&self) -> Option<NewLease> {
        let id = self.begun.new_directory.clone()?;
        Some(NewLease::new(Arc::clone(&self.begun.store), self.begun.runtime.clone(), id))
    }

    /// Takes the lease back: nothing was attached.
    pub(crate) async fn cancel(mut self) {
        self.begun.take_back().await;
    }

    /// Waits for the leases, but not for long, and has them renewed from then on. Also returns a warning for the user,
    /// if there is one.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NotFound`] if the image was deleted before its lease was seen, and not all of it
    /// is on this host.
    pub(crate) async fn finish(mut self, is_away: bool) -> Result<(Hold, Option<String>)> {
        let limit = if is_away { Duration::ZERO } else { STORE_TIMEOUT };
        let mut told = self.begun.keep(self.claim.clone());
        let taken = match timeout(limit, &mut told).await {
            Ok(taken) => taken.ok(),
            Err(_) => {
                // From now on the task logs its results itself. It may have sent the first one just now.
                told.close();
                told.try_recv().ok()
            }
        };
        let mut warning = None;
        match taken {
            Some(Ok(false)) if self.is_whole => {
                let reference = &self.claim.reference;
                let text = format!("{reference} is not in its store any more: all of it is in the cache");
                warning = Some(text);
            }
            Some(Ok(false)) => {
                let error = gone(&self.claim.reference);
                self.cancel().await;
                return Err(error);
            }
            Some(Err(error)) if is_final(&error) => {
                self.begun.is_settled = true;
                return Ok((Hold::default(), Some(unprotected(&self.claim.reference, &error))));
            }
            Some(Err(error)) => tracing::debug!(%error, "a lease could not be left yet"),
            Some(Ok(true)) | None => {}
        }
        self.begun.is_settled = true;
        let (claim, writers) = (self.claim, std::mem::take(&mut self.begun.writers));
        let held = InStore {
            store: claim.store,
            runtime: self.begun.runtime.clone(),
            id: self.begun.id.clone(),
            record: claim.record,
            location: claim.reference.location.to_string(),
            writers,
            is_released: false,
        };
        Ok((Hold { in_directory: Mutex::default(), in_store: Mutex::new(Some(held)) }, warning))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use headstart_block::{ByteRange, Error, ErrorKind, ReadAt};
    use headstart_store::bucket::PRUNING_LASTS;
    use headstart_store::{Copied, Selector, StoreCounters, Tag, Urgency};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use tokio::time::{Instant, sleep};

    /// A store that counts leases, and gives these answers to them, the last of them forever.
    #[derive(Default)]
    struct Counting {
        calls: AtomicU64,
        answers: Vec<Option<ErrorKind>>,
        /// The names of the leases that were written.
        written: Arc<Mutex<Vec<String>>>,
        /// The number of writes that have ended.
        ended: Arc<AtomicU64>,
        /// `true` if it is being pruned.
        is_pruned: AtomicBool,
        /// The time that it takes to write a lease. A write that was begun ends, whether it is waited for or not.
        takes: Duration,
        /// `true` if its image was deleted.
        has_lost: AtomicBool,
    }

    impl Counting {
        fn answering(answers: Vec<Option<ErrorKind>>) -> Arc<Self> {
            Arc::new(Self { answers, ..Self::default() })
        }

        fn slow(takes: Duration) -> Arc<Self> {
            Arc::new(Self { takes, ..Self::default() })
        }

        /// Waits until a write has begun.
        async fn begins(&self) {
            while self.calls.load(Ordering::SeqCst) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }

        /// Waits until all writes that were begun have ended.
        async fn rests(&self) {
            while self.ended.load(Ordering::SeqCst) < self.calls.load(Ordering::SeqCst) {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    fn none<T>() -> Result<T> {
        Err(Error::unsupported("is for leases"))
    }

    #[async_trait]
    impl Store for Counting {
        fn location(&self) -> String {
            "s3://b/".to_owned()
        }

        async fn check(&self) -> Result<()> {
            none()
        }

        async fn manifest(&self, _: &Selector) -> Result<(Digest, Bytes)> {
            none()
        }

        async fn read(&self, _: &Digest, _: ByteRange, _: Urgency) -> Result<Bytes> {
            none()
        }

        async fn blob_len(&self, _: &Digest) -> Result<Option<u64>> {
            Ok(Some(1).filter(|_| !self.has_lost.load(Ordering::SeqCst)))
        }

        async fn put_blob(&self, _: &Digest, _: Arc<dyn ReadAt>, _: Copied<'_>) -> Result<()> {
            none()
        }

        async fn put_manifest(&self, _: &str, _: Bytes, _: Option<&Tag>) -> Result<Digest> {
            none()
        }

        async fn tags(&self) -> Result<Vec<Tag>> {
            none()
        }

        fn counters(&self) -> StoreCounters {
            StoreCounters::default()
        }

        fn keeps_leases(&self) -> bool {
            true
        }

        async fn put_lease(&self, id: &str, _: &Lease) -> Result<bool> {
            let call = usize::try_from(self.calls.fetch_add(1, Ordering::SeqCst)).unwrap();
            if let Some(Some(kind)) = self.answers.get(call).or(self.answers.last()) {
                return Err(Error::new(*kind, "no"));
            }
            let (written, ended) = (Arc::clone(&self.written), Arc::clone(&self.ended));
            let (takes, id) = (self.takes, id.to_owned());
            let write = async move {
                if !takes.is_zero() {
                    sleep(takes).await;
                }
                written.lock().push(id);
                ended.fetch_add(1, Ordering::SeqCst);
            };
            if takes.is_zero() {
                write.await;
            } else {
                tokio::spawn(write).await.unwrap();
            }
            Ok(self.is_pruned.load(Ordering::SeqCst))
        }

        async fn remove_lease(&self, id: &str) -> Result<()> {
            self.written.lock().retain(|written| written != id);
            Ok(())
        }
    }

    /// A claim of leases of these names.
    fn claim(store: &Arc<Counting>, ids: &[&str]) -> Claim {
        let host = HostId::here().unwrap();
        let (holder, image) = (LeaseHolder::Attach { record: None }, Digest::of(b"i"));
        let lease = Lease::new(holder, image, Vec::new(), "s3://b/:t".to_owned(), host);
        let leases = ids.iter().map(|id| ((*id).to_owned(), lease.clone())).collect();
        let (store, is_over) = (Arc::clone(store) as Arc<dyn Store>, Arc::default());
        Claim { store, reference: "s3://b/:t".parse().unwrap(), image, leases, record: None, is_over }
    }

    fn leasing(store: &Arc<Counting>, ids: &[&str], is_whole: bool) -> Leasing {
        let claim = claim(store, ids);
        let begun = Begun::new(&Handle::current(), &claim);
        Leasing { claim, is_whole, begun }
    }

    /// The number of leases that were written for `answers`, once `most` were or the renewal ended.
    async fn renewals(answers: Vec<Option<ErrorKind>>, [every, again]: [Duration; 2], most: u64) -> u64 {
        let store = Counting::answering(answers);
        let pauses = Pauses { every, again, refused: again };
        let renewing = tokio::spawn(claim(&store, &["x"]).renew(Duration::ZERO, false, pauses));
        while store.calls.load(Ordering::SeqCst) < most && !renewing.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        renewing.abort();
        store.calls.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn a_lease_is_renewed_and_what_fails_is_tried_again_unless_none_was_ever_taken() {
        let [soon, never] = [Duration::from_millis(1), Duration::from_secs(3600)];
        assert!(renewals(vec![None], [soon, never], 5).await >= 5);
        let away = Some(ErrorKind::Unavailable);
        assert!(renewals(vec![away, away, None], [never, soon], 3).await == 3);
        let denied = Some(ErrorKind::Denied);
        assert_eq!(renewals(vec![denied, None], [soon, soon], 9).await, 1);
        assert_eq!(renewals(vec![away, denied, None], [soon, soon], 9).await, 2);
        assert!(renewals(vec![None, denied, away, denied, None], [soon, soon], 9).await >= 9);
    }

    /// Credentials that expire for a while: the store denies from then on, until they are put right.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_for_a_while_has_the_leases_again() {
        let denied = Some(ErrorKind::Denied);
        let store = Counting::answering(vec![None, denied, denied, None]);
        let hold = leasing(&store, &["x"], false).finish(false).await.unwrap();
        sleep(RENEWED + REFUSED * 2 + Duration::from_secs(1)).await;
        assert_eq!(*store.written.lock(), ["x", "x"]);
        drop(hold);
    }

    /// A refused lease keeps no other from being written.
    #[tokio::test]
    async fn all_leases_are_written_where_one_is_refused() {
        let store = Counting::answering(vec![Some(ErrorKind::Denied), None, Some(ErrorKind::Unavailable)]);
        let leases = claim(&store, &["a", "b", "c"]);
        let error = leases.put(&leases.leases).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert_eq!(*store.written.lock(), ["b"]);
    }

    #[tokio::test]
    async fn a_store_that_refuses_gives_a_warning_and_one_that_is_away_none() {
        let hold = async |answer, is_away| {
            let store = Counting::answering(vec![answer]);
            leasing(&store, &["x"], false).finish(is_away).await.unwrap().1
        };
        assert_eq!(hold(None, false).await, None);
        assert_eq!(hold(Some(ErrorKind::Unavailable), false).await, None);
        let warning = hold(Some(ErrorKind::Denied), false).await.unwrap();
        assert!(warning.contains("no lease can be left in s3://b/"), "{warning}");
    }

    /// A prune that died and left its mark: the disk is served, all its leases are there, and their renewal goes on.
    #[tokio::test(start_paused = true)]
    async fn a_prune_that_does_not_end_keeps_no_lease_from_being_written() {
        let store = Counting::answering(Vec::new());
        store.is_pruned.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        let (hold, warning) = leasing(&store, &["attach", "directory"], false).finish(false).await.unwrap();
        assert!(warning.is_none() && begun.elapsed() < STORE_TIMEOUT * 2, "{:?}", begun.elapsed());
        let has = |id: &str| store.written.lock().iter().filter(|written| *written == id).count();
        assert!(has("attach") > 1 && has("directory") > 1);
        // The renewal goes on after the end of all prunes.
        sleep(PRUNING_LASTS * 2).await;
        let before = has("directory");
        sleep(RENEWED / 2).await;
        assert!(has("directory") > before);
        drop(hold);
        let before = store.calls.load(Ordering::SeqCst);
        sleep(RENEWED * 2).await;
        assert_eq!(store.calls.load(Ordering::SeqCst), before);
    }

    /// An attach that is given up while its lease is on its way leaves none.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_attach_that_is_given_up_leaves_no_lease() {
        for has_begun in [false, true] {
            let store = Counting::slow(Duration::from_millis(100));
            let leasing = leasing(&store, &["attach"], false);
            if has_begun {
                store.begins().await;
            }
            drop(leasing);
            store.rests().await;
            assert!(!has_begun || store.calls.load(Ordering::SeqCst) == 1);
            assert!(store.written.lock().is_empty());
        }
    }

    /// A disk that is detached while its lease is on its way leaves none.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lease_that_is_being_written_is_removed_once_it_is_there() {
        for end in [Hold::release as fn(&Hold), Hold::give_up, |_| ()] {
            let store = Counting::slow(Duration::from_millis(300));
            // The store is marked as away, so that the attach does not wait.
            let hold = leasing(&store, &["attach"], false).finish(true).await.unwrap().0;
            store.begins().await;
            let ended = tokio::task::spawn_blocking(move || {
                end(&hold);
                drop(hold);
            });
            ended.await.unwrap();
            store.rests().await;
            assert_eq!(store.calls.load(Ordering::SeqCst), 1);
            assert!(store.written.lock().is_empty());
        }
    }

    /// The lease of a new directory is removed next, and must not be written again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_given_up_hold_writes_no_lease_again() {
        let record = tempfile::NamedTempFile::new().unwrap();
        let store = Counting::slow(Duration::from_millis(300));
        let mut leasing = leasing(&store, &["attach", "directory"], false);
        leasing.claim.record = Some(record.path().to_owned());
        let hold = leasing.finish(true).await.unwrap().0;
        store.begins().await;
        tokio::task::spawn_blocking(move || hold.give_up()).await.unwrap();
        let [begun, ended] = [&store.calls, &*store.ended].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(begun, ended, "a write goes on");
        assert_eq!(store.written.lock()[0], "attach");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_being_written_for_long_is_warned_of() {
        let store = Counting::slow(Duration::from_secs(3600));
        let hold = leasing(&store, &["x"], false).finish(false).await.unwrap().0;
        let begun = Instant::now();
        let warning = hold.take().unwrap().remove().await.unwrap();
        let took = begun.elapsed();
        assert!(took >= LANDS && took < LANDS + STORE_TIMEOUT, "{took:?}");
        assert!(warning.contains("has not written it within 10 s"), "{warning}");
        assert!(warning.contains("`headstart lease release s3://b/ --id x --force`"), "{warning}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_an_attach_does_not_wait_for_is_not_begun_again() {
        let store = Counting::slow(STORE_TIMEOUT * 2);
        let hold = leasing(&store, &["x", "y"], false).finish(false).await.unwrap().0;
        assert!(store.written.lock().is_empty());
        sleep(STORE_TIMEOUT * 4).await;
        assert_eq!(*store.written.lock(), ["x", "y"]);
        assert_eq!(store.calls.load(Ordering::SeqCst), 2);
        drop(hold);
        assert_eq!(*store.written.lock(), ["y"]);
    }

    /// An image that went before its lease was seen is missed, whether a prune was seen or not.
    #[tokio::test(start_paused = true)]
    async fn an_image_that_is_gone_is_missed() {
        for is_pruned in [false, true] {
            let store = Counting::answering(Vec::new());
            store.has_lost.store(true, Ordering::SeqCst);
            store.is_pruned.store(is_pruned, Ordering::SeqCst);
            let ending = Arc::clone(&store);
            tokio::spawn(async move {
                sleep(Duration::from_secs(1)).await;
                ending.is_pruned.store(false, Ordering::SeqCst);
            });
            let mut leasing = leasing(&store, &["attach", "directory"], false);
            leasing.begun.new_directory = Some("directory".to_owned());
            let error = leasing.finish(false).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(store.written.lock().is_empty(), "nothing of it stays");
        }
        // A whole image needs no store.
        let store = Counting::answering(Vec::new());
        store.has_lost.store(true, Ordering::SeqCst);
        let (_, warning) = leasing(&store, &["attach"], true).finish(false).await.unwrap();
        assert!(warning.unwrap().contains("all of it is in the cache"));
    }
}
