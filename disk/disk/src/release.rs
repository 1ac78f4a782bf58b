//! Leases that are removed without a [`Hold`](crate::Hold): the lease of a writable directory that is removed because
//! its attach failed, and the lease of a disk whose process is down.

use crate::local::is_local;
use headstart_block::guarded::shell_word;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_image::store::{ImageStore, attach_id};
use headstart_store::layout::HostId;
use headstart_store::{Reference, Store};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;
use uuid::Uuid;

/// The longest time that a detach waits until its lease is gone.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest time that an attach that fails waits for an answer about its leases.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 2 });

/// Waits for the removal of a lease in a thread of its own, because the caller may be a task that drops a failed
/// attach, and a task cannot wait. `None` if the removal panics.
///
/// The caller's thread is blocked meanwhile, and the removal needs `runtime` for its timers and connections. An attach
/// must therefore not be spawned as a task of a current-thread runtime: it would deadlock.
pub(crate) fn wait_apart<T: Send>(runtime: &Handle, removal: impl Future<Output = T> + Send) -> Option<T> {
    std::thread::scope(|scope| scope.spawn(|| runtime.block_on(removal)).join().ok())
}

/// The lease in a store of a writable directory that was made for an attach. It is removed together with the directory.
pub(crate) struct NewLease {
    store: Arc<dyn Store>,
    runtime: Handle,
    id: String,
}

impl NewLease {
    pub(crate) fn new(store: Arc<dyn Store>, runtime: Handle, id: String) -> Self {
        Self { store, runtime, id }
    }

    /// Takes the lease out. Best effort: its host sees that the directory is gone.
    pub(crate) fn release(&self) {
        let removal = async { timeout(LAST_WORD, self.store.remove_lease(&self.id)).await };
        if !matches!(wait_apart(&self.runtime, removal), Some(Ok(Ok(())))) {
            tracing::debug!(lease = %self.id, "the lease of a directory that was not attached stays");
        }
    }
}

impl std::fmt::Debug for NewLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewLease").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Removes the lease that protects the image of an agent's disk from deletion. To be called after the disk was detached
/// or failed to start, and its process is gone. `image` is the digest of the image's manifest, `record` the file that
/// names the disk's images. `store` is the image's store; it may be `None` only if the image is in a directory of this
/// host, and is not used then. Does nothing if the store keeps no leases. The lease of a writable directory stays.
///
/// # Errors
/// The error that kept the lease from being removed; it names the command that removes the lease.
/// [`ErrorKind::Unavailable`] if the store does not answer within 3 seconds.
pub async fn release_image(
    store: Option<&dyn Store>,
    reference: &Reference,
    image: &Digest,
    record: &Path,
) -> Result<()> {
    let id = attach_id(Some(record), image, &HostId::here()?, Uuid::nil());
    let removed = match store.filter(|_| !is_local(&reference.location)) {
        None => ImageStore::open(reference.directory()?)?.release_attach(&id),
        Some(store) if !store.keeps_leases() => return Ok(()),
        Some(store) => {
            let silence = || Error::new(ErrorKind::Unavailable, "its store does not answer");
            timeout(STORE_TIMEOUT, store.remove_lease(&id)).await.unwrap_or_else(|_| Err(silence()))
        }
    };
    removed.map_err(|error| may_stay(&id, reference, error))
}

fn may_stay(id: &str, reference: &Reference, error: Error) -> Error {
    let location = reference.location.to_string();
    let cause = format!("its lease {} may stay in {location}", id.escape_debug());
    let (store, id) = (shell_word(&location), shell_word(id));
    Error::new(error.kind(), cause)
        .caused_by(error)
        .remedy(format!("`headstart lease release {store} --id {id} --force` takes it away"))
}
