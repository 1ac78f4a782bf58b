//! [`Claim`]: the leases of a disk in an object store, and the tasks that write them.
//!
//! A write that ends after the removal of its lease leaves the lease there for a week. Dropping the write does not
//! prevent that, because the store may have the request already. Each write therefore holds a lock, and
//! [`Writers::end`] takes that lock before a lease is removed.

use super::{LONGEST_LOOK, LOOK};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_image::store::unprotected;
use headstart_store::bucket::PRUNING_LASTS;
use headstart_store::layout::Lease;
use headstart_store::{Reference, Store};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

/// The pauses of a renewal: after one that succeeded, one that failed, and one that was refused.
#[derive(Clone, Copy)]
pub(super) struct Pauses {
    pub(super) every: Duration,
    pub(super) again: Duration,
    pub(super) refused: Duration,
}

/// The facts when the first lease was written.
#[derive(Clone, Copy)]
pub(super) struct First {
    is_pruned: bool,
    is_there: bool,
}

/// The tasks that write the leases of a claim.
#[derive(Default)]
pub(super) struct Writers {
    /// The lock of the claim.
    is_over: Arc<Mutex<bool>>,
    tasks: Vec<AbortHandle>,
}

impl Writers {
    /// No tasks yet, with the lock of `claim`.
    pub(super) fn new(claim: &Claim) -> Self {
        Self { is_over: Arc::clone(&claim.is_over), tasks: Vec::new() }
    }

    /// Adds a task.
    pub(super) fn add<T>(&mut self, task: &JoinHandle<T>) {
        self.tasks.push(task.abort_handle());
    }

    /// Ends the tasks, after waiting for a lease that is being written. Returns `false` if the write takes longer than
    /// `limit`: the lease may come after its removal then.
    pub(super) async fn end(&self, limit: Duration) -> bool {
        let turn = timeout(limit, self.is_over.lock()).await.map(|mut is_over| *is_over = true);
        self.abort();
        turn.is_ok()
    }

    /// Ends the tasks at once.
    pub(super) fn abort(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The leases of a disk in a store.
#[derive(Clone)]
pub(super) struct Claim {
    pub(super) store: Arc<dyn Store>,
    pub(super) reference: Reference,
    /// The digest of the image's manifest.
    pub(super) image: Digest,
    /// The first of them is that of the attach.
    pub(super) leases: Vec<(String, Lease)>,
    /// As long as this is there, that one outlives the process.
    pub(super) record: Option<PathBuf>,
    /// The lock that is held while a lease is written; `true` if none is to be written any more.
    pub(super) is_over: Arc<Mutex<bool>>,
}

impl Claim {
    /// Writes the first lease, and then checks whether the image is there.
    pub(super) async fn first(self) -> Result<First> {
        let (id, lease) = &self.leases[0];
        let is_pruned = self.put_one(id, lease).await?;
        Ok(First { is_pruned, is_there: self.is_there().await? })
    }

    /// Writes all leases, again and again while a prune goes on that may not have seen them; then `true` if the image
    /// is there. `first` is the result of the first one, if it was written already.
    async fn take(&self, first: Option<First>) -> Result<bool> {
        let begun = Instant::now();
        let mut pause = LOOK;
        let mut is_pruned = match first {
            None => self.put(&self.leases).await?,
            Some(first) => {
                let is_pruned = self.put(&self.leases[1..]).await? || first.is_pruned;
                if !is_pruned {
                    return Ok(first.is_there);
                }
                is_pruned
            }
        };
        while is_pruned && begun.elapsed() < PRUNING_LASTS {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_LOOK);
            is_pruned = self.put(&self.leases).await?;
        }
        let is_there = self.is_there().await?;
        if is_pruned && is_there {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "another process has been pruning it for a long time",
            ));
        }
        Ok(is_there)
    }

    /// Writes a lease, unless none is to be written any more. Returns `true` if a prune may not have seen it.
    async fn put_one(&self, id: &str, lease: &Lease) -> Result<bool> {
        let is_over = self.is_over.lock().await;
        if *is_over {
            return Err(Error::new(ErrorKind::Cancelled, "the leases of the disk are removed"));
        }
        self.store.put_lease(id, lease).await
    }

    /// Writes leases, all of them even if some fail; `true` if a prune goes on that may not have seen them. Of several
    /// errors, one that is final is reported.
    pub(super) async fn put(&self, leases: &[(String, Lease)]) -> Result<bool> {
        let (mut is_pruned, mut failed) = (false, None);
        for (id, lease) in leases {
            match self.put_one(id, lease).await {
                Ok(sees_prune) => is_pruned |= sees_prune,
                Err(error) if failed.as_ref().is_none_or(|failed| !is_final(failed)) => failed = Some(error),
                Err(_) => {}
            }
        }
        failed.map_or(Ok(is_pruned), Err)
    }

    async fn is_there(&self) -> Result<bool> {
        match self.store.blob_len(&self.image).await {
            // A client that may not ask for the length reads the image anyway, or fails later.
            Err(error) if is_final(&error) => Ok(true),
            len => len.map(|len| len.is_some()),
        }
    }

    /// Writes the leases for as long as the disk is attached; `first` writes the first one. The first result goes to
    /// `told`, or into the log if the receiver is gone.
    pub(super) async fn keep(
        self,
        first: JoinHandle<Result<First>>,
        told: oneshot::Sender<Result<bool>>,
        pauses: Pauses,
    ) {
        let taken = match first.await {
            Ok(Ok(first)) => self.take(Some(first)).await,
            Ok(Err(error)) => Err(error),
            Err(e) => Err(Error::new(ErrorKind::Cancelled, "stopped").caused_by(e)),
        };
        let (is_written, is_refused) = (taken.is_ok(), taken.as_ref().is_err_and(is_final));
        match told.send(taken) {
            Ok(()) | Err(Ok(true)) => {}
            Err(Ok(false)) => tracing::warn!("{}", gone(&self.reference)),
            Err(Err(error)) if is_refused => tracing::warn!("{}", unprotected(&self.reference, &error)),
            Err(Err(error)) => tracing::debug!(%error, "a lease could not be left yet"),
        }
        if !is_refused {
            self.renew(if is_written { pauses.every } else { pauses.again }, is_written, pauses).await;
        }
    }

    /// Writes the leases again and again, first after `pause`, then at the interval for success or for failure.
    /// `is_written` is `true` if they were written before. A store that refuses them then may have been given expired
    /// credentials, and is asked again; a store that never took any keeps none.
    pub(super) async fn renew(self, pause: Duration, mut is_written: bool, pauses: Pauses) {
        let (mut pause, mut was_there, mut is_refused) = (pause, true, false);
        loop {
            sleep(pause).await;
            pause = pauses.every;
            match self.take(None).await {
                Ok(is_there) => {
                    (is_written, is_refused) = (true, false);
                    if was_there && !is_there {
                        tracing::warn!("{}", gone(&self.reference));
                    }
                    was_there = is_there;
                }
                Err(error) if is_final(&error) => {
                    if !is_refused {
                        tracing::warn!("{}", unprotected(&self.reference, &error));
                    }
                    if !is_written {
                        return;
                    }
                    (pause, is_refused) = (pauses.refused, true);
                }
                Err(error) => {
                    tracing::debug!(%error, "a lease could not be renewed yet");
                    pause = pauses.again;
                }
            }
        }
    }
}

/// The error about an image that was deleted before its lease was seen.
pub(super) fn gone(reference: &Reference) -> Error {
    let cause = "was deleted from its store while it was being attached";
    Error::new(ErrorKind::NotFound, cause).about(reference)
}

/// `true` if trying again is of no use.
pub(super) fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Denied | ErrorKind::ReadOnly | ErrorKind::Unsupported)
}
