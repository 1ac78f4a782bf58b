//! Blobs for programs without one of their own: those that disks of this host have open.

use crate::{SharedBlob, Swarm};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_swarm::Urgency;
use std::sync::Arc;

impl Swarm {
    /// Takes part once more in the blob of that digest, if this host does so already.
    #[must_use]
    pub fn find(self: &Arc<Self>, digest: &Digest) -> Option<SharedBlob> {
        let blob = self.host.data_blob(digest)?;
        match self.open(blob.cached.spec(), None) {
            Ok(shared) => Some(shared),
            Err(error) => {
                tracing::debug!(%error, blob = %digest, "a blob that is open cannot be opened once more");
                None
            }
        }
    }
}

impl SharedBlob {
    /// Returns when all of `range` is in the cache: from other hosts, and the rest from the store from which this host
    /// fetches the blob, with the urgency of a read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if this host has no store for it; otherwise the errors of fetching. There are no
    /// retries.
    pub async fn bring(&self, range: ByteRange) -> Result<()> {
        // Disks are other processes, and one of them may have made the files.
        self.cached.look_again();
        let from_store = self.want(range, Urgency::Demand).await;
        if from_store.is_empty() {
            return Ok(());
        }
        let carrier = self.shared.as_ref().and_then(|shared| shared.blob.carrier());
        let carrier = carrier.ok_or_else(|| Error::new(ErrorKind::NotFound, "it has no store here"))?;
        for run in from_store {
            let brought = carrier.bring(&self.cached, run, Urgency::Demand).await;
            self.became_local(run);
            brought?;
        }
        Ok(())
    }
}
