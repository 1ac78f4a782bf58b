//! [`Hold`]: a disk's claim on its image, against those who delete images.
//!
//! In a directory that is a lease with a lock, taken before the image is opened. In an object store it is an object
//! that is written while the image is opened, and renewed as long as the disk is attached. Web servers cannot be
//! written to, and registries know no disks: there is nothing to claim.

use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_image::manifest::Manifest;
use headstart_image::store::{HoldingDirectory, attach_id, lease_of_directory, unprotected};
use headstart_lsmt::writable::WritableDisk;
use headstart_store::layout::{HeldLease, Holder, HostId, Lease};
use headstart_store::{Reference, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

/// The time between renewals of a lease in an object store, which counts for a week.
const RENEWED: Duration = Duration::from_secs(6 * 3600);

/// When a renewal that failed is tried again.
const TRIED_AGAIN: Duration = Duration::from_secs(60);

/// The longest time that an attach waits for its lease. After that the disk is served meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);

/// The longest time that an attach that fails takes to say so.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Keeps an image from being deleted as long as this is there. The default keeps nothing.
#[derive(Default)]
pub struct Hold {
    _in_directory: Option<HeldLease>,
    in_store: Option<InStore>,
}

struct InStore {
    store: Arc<dyn Store>,
    runtime: Handle,
    /// The lease of the attach.
    id: String,
    renewing: AbortHandle,
}

impl Drop for InStore {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Hold {
    /// By a lease in a directory of this host.
    pub(crate) fn in_directory(lease: HeldLease) -> Self {
        Self { _in_directory: Some(lease), in_store: None }
    }

    /// Gives the image up: the disk is detached. What a writable directory needs stays held. (A lease in a directory
    /// ends with this.)
    pub fn release(&self) {
        if let Some(held) = &self.in_store {
            held.renewing.abort();
            // Best effort: it counts for a week otherwise.
            let removal = async { timeout(PATIENCE, held.store.remove_lease(&held.id)).await };
            if let Ok(Err(error)) = held.runtime.block_on(removal) {
                tracing::debug!(%error, "the lease of a detached disk stays for a week");
            }
        }
    }
}

/// A hold that is being taken in a store.
pub(crate) struct Leasing {
    store: Arc<dyn Store>,
    runtime: Handle,
    reference: Reference,
    manifest: Digest,
    leases: Vec<(String, Lease)>,
    first: JoinHandle<Result<bool>>,
}

impl Leasing {
    /// Begins to write the lease of an attach, where the store keeps any.
    pub(crate) fn begin(
        runtime: &Handle,
        store: &Arc<dyn Store>,
        reference: &Reference,
        digest: Digest,
        manifest: &Manifest,
        record: Option<PathBuf>,
    ) -> Option<Self> {
        if !store.keeps_leases() {
            return None;
        }
        let id = attach_id(record.as_deref(), &digest, Uuid::new_v4());
        let blobs = manifest.blobs().map(|(digest, _)| digest).collect();
        let here = HostId::here().inspect_err(|error| tracing::warn!(%error, "no lease can be left")).ok()?;
        let lease = Lease::new(Holder::Attach { record }, digest, blobs, reference.to_string(), here);
        let (to, at, first) = (Arc::clone(store), id.clone(), lease.clone());
        let first = runtime.spawn(async move { to.put_lease(&at, &first).await });
        let (store, runtime) = (Arc::clone(store), runtime.clone());
        Some(Self {
            store,
            runtime,
            reference: reference.clone(),
            manifest: digest,
            leases: vec![(id, lease)],
            first,
        })
    }

    /// Adds the lease of a writable directory.
    pub(crate) fn add_directory(&mut self, disk: &WritableDisk, dir: &Path, manifest: &Manifest) {
        let (uuid, image, reference) = (disk.uuid(), self.manifest, &self.reference);
        let lease = (HoldingDirectory { dir, uuid, image, manifest, reference }).lease();
        match lease.and_then(|lease| Ok((lease_of_directory(uuid, dir)?, lease))) {
            Ok(lease) => self.leases.push(lease),
            Err(error) => tracing::warn!(%error, "the writable directory leaves no lease"),
        }
    }

    /// Takes the lease back: nothing was attached.
    pub(crate) async fn cancel(self) {
        self.first.abort();
        // Best effort: it counts for a week otherwise.
        let _ = timeout(LAST_WORD, self.store.remove_lease(&self.leases[0].0)).await;
    }

    /// Waits for the leases, but not for long, and has them renewed from then on. Also says what the user should know.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where the image was deleted before its lease was seen.
    pub(crate) async fn finish(self, is_away: bool) -> Result<(Hold, Option<String>)> {
        let Self { store, runtime, reference, manifest, leases, first } = self;
        let patience = if is_away { Duration::ZERO } else { PATIENCE };
        let taken = timeout(patience, async {
            let first = first.await.map_err(|e| Error::new(ErrorKind::Cancelled, "stopped").caused_by(e));
            let has_waited = first??;
            for (id, lease) in leases.iter().skip(1) {
                store.put_lease(id, lease).await?;
            }
            Ok::<_, Error>(has_waited)
        });
        let begins = match taken.await {
            Ok(Ok(false)) => RENEWED,
            Ok(Ok(true)) => {
                if store.blob_len(&manifest).await?.is_none() {
                    let _ = timeout(LAST_WORD, store.remove_lease(&leases[0].0)).await;
                    let cause = "was deleted from its store while it was being attached";
                    return Err(Error::new(ErrorKind::NotFound, cause).about(&reference));
                }
                RENEWED
            }
            Ok(Err(error)) if is_final(&error) => {
                return Ok((Hold::default(), Some(unprotected(&reference, &error))));
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "a lease could not be left yet");
                TRIED_AGAIN
            }
            // At once: what was begun may have been cut off.
            Err(_) => Duration::ZERO,
        };
        let id = leases[0].0.clone();
        let every = [RENEWED, TRIED_AGAIN];
        let renewing =
            runtime.spawn(renew(Arc::clone(&store), reference, leases, begins, every)).abort_handle();
        Ok((Hold { _in_directory: None, in_store: Some(InStore { store, runtime, id, renewing }) }, None))
    }
}

/// Writes leases again and again, first after `pause`: every so often where it succeeds, and where it does not.
async fn renew(
    store: Arc<dyn Store>,
    reference: Reference,
    leases: Vec<(String, Lease)>,
    pause: Duration,
    [every, again]: [Duration; 2],
) {
    let mut pause = pause;
    loop {
        sleep(pause).await;
        pause = every;
        for (id, lease) in &leases {
            match store.put_lease(id, lease).await {
                Ok(_) => {}
                Err(error) if is_final(&error) => {
                    tracing::warn!("{}", unprotected(&reference, &error));
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a lease could not be renewed yet");
                    pause = again;
                }
            }
        }
    }
}

/// `true` if trying again is of no use.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Denied | ErrorKind::ReadOnly | ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use headstart_block::{ByteRange, ReadAt};
    use headstart_store::{Copied, Counters, Selector, Tag, Urgency};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A store that counts leases, and gives these answers to them, the last of them for ever.
    struct Counting(AtomicU64, Vec<Option<ErrorKind>>);

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
            Ok(None)
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

        fn counters(&self) -> Counters {
            Counters::default()
        }

        fn keeps_leases(&self) -> bool {
            true
        }

        async fn put_lease(&self, _: &str, _: &Lease) -> Result<bool> {
            let call = usize::try_from(self.0.fetch_add(1, Ordering::SeqCst)).unwrap();
            match self.1.get(call).or(self.1.last()) {
                Some(Some(kind)) => Err(Error::new(*kind, "no")),
                _ => Ok(false),
            }
        }
    }

    fn lease() -> (String, Lease) {
        let host = HostId::here().unwrap();
        let holder = Holder::Attach { record: None };
        ("x".to_owned(), Lease::new(holder, Digest::of(b"i"), Vec::new(), "s3://b/:t".to_owned(), host))
    }

    /// The number of leases that were written, in `answers`, once `most` were or it ended.
    async fn renewals(answers: Vec<Option<ErrorKind>>, every: [Duration; 2], most: u64) -> u64 {
        let store = Arc::new(Counting(AtomicU64::new(0), answers));
        let of = Arc::clone(&store) as Arc<dyn Store>;
        let reference = "s3://b/:t".parse().unwrap();
        let renewing = tokio::spawn(renew(of, reference, vec![lease()], Duration::ZERO, every));
        while store.0.load(Ordering::SeqCst) < most && !renewing.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        renewing.abort();
        store.0.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn a_lease_is_renewed_and_what_fails_is_tried_again_unless_it_is_final() {
        let [soon, never] = [Duration::from_millis(1), Duration::from_secs(3600)];
        assert!(renewals(vec![None], [soon, never], 5).await >= 5);
        let away = Some(ErrorKind::Unavailable);
        assert!(renewals(vec![away, away, None], [never, soon], 3).await == 3);
        assert_eq!(renewals(vec![None, Some(ErrorKind::Denied)], [soon, soon], 9).await, 2);
    }

    #[tokio::test]
    async fn a_store_that_refuses_gives_a_warning_and_one_that_is_away_none() {
        let hold = async |answer, is_away| {
            let store: Arc<dyn Store> = Arc::new(Counting(AtomicU64::new(0), vec![answer]));
            let (id, lease) = lease();
            let (to, at, of) = (Arc::clone(&store), id.clone(), lease.clone());
            let leasing = Leasing {
                store,
                runtime: Handle::current(),
                reference: "s3://b/:t".parse().unwrap(),
                manifest: lease.image,
                leases: vec![(id, lease)],
                first: tokio::spawn(async move { to.put_lease(&at, &of).await }),
            };
            leasing.finish(is_away).await.unwrap().1
        };
        assert_eq!(hold(None, false).await, None);
        assert_eq!(hold(Some(ErrorKind::Unavailable), false).await, None);
        let warning = hold(Some(ErrorKind::Denied), false).await.unwrap();
        assert!(warning.contains("no lease can be left in s3://b/"), "{warning}");
    }
}
