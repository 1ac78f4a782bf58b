//! Manifests and indexes of a bucket.

use super::BucketStore;
use crate::MAX_MANIFEST_SIZE;
use crate::layout::{self, blob_name, check_document, select};
use crate::reference::Selector;
use bytes::Bytes;
use headstart_block::{Digest, Result};

impl BucketStore {
    /// A document by its digest, checked.
    pub(super) async fn read_document(&self, digest: Digest) -> Result<Bytes> {
        let name = blob_name(&digest);
        let (bytes, _) = self.object(&name, MAX_MANIFEST_SIZE).await?;
        check_document(&digest, &bytes).map_err(|e| e.about(self.thing(&name)))?;
        Ok(bytes)
    }

    /// The document that a selector names, as it is.
    pub(super) async fn selected(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let digest = match selector {
            Selector::Digest(digest) => *digest,
            Selector::Tag(tag) => select(&self.index().await?.index, tag, &self.location)?,
        };
        Ok((digest, self.read_document(digest).await?))
    }

    /// A selector as messages show it.
    pub(super) fn name_of(&self, selector: &Selector) -> String {
        format!("{}{}", layout::name(&self.location, selector), self.at)
    }
}
