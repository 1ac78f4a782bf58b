//! Blobs for programs that have no manifest of them: programs get only blobs that disks of this host have open.

use crate::{SharedBlob, Swarm};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_swarm::Urgency;
use std::sync::Arc;

impl Swarm {
    /// Opens the blob with this digest once more, without a store for this use. `None` if no disk or program of
    /// this host has the blob open, or if it cannot be opened.
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
    /// Fetches all chunks that overlap `range` into the cache, with the urgency of a read. Chunks that other hosts
    /// do not deliver come from the store that another use of the blob on this host was opened with.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the swarm does not deliver a chunk and this host has no store for the blob;
    /// otherwise the errors of fetching from the store: a fetch that fails is not repeated.
    pub async fn bring(&self, range: ByteRange) -> Result<()> {
        // Disks are other processes, and one of them may have made the files.
        self.cached.look_again();
        let from_store = self.want(range, Urgency::Demand).await;
        if from_store.is_empty() {
            return Ok(());
        }
        let range_fetcher = self.shared.as_ref().and_then(|shared| shared.blob.range_fetcher());
        let range_fetcher =
            range_fetcher.ok_or_else(|| Error::new(ErrorKind::NotFound, "it has no store here"))?;
        for run in from_store {
            let brought = range_fetcher.bring(&self.cached, run, Urgency::Demand).await;
            self.became_local(run);
            brought?;
        }
        Ok(())
    }
}
