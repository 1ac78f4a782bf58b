//! [`Store`]: the one interface over all kinds of stores.

use crate::counters::StoreCounters;
use crate::layout::Lease;
use crate::reference::{Selector, Tag};
use crate::referrers::Referrer;
use crate::stop::Stop;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
pub use headstart_block::exchange::Urgency;
use headstart_block::{ByteRange, Digest, Error, ReadAt, Result};
use std::sync::Arc;

/// A function that gets the number of bytes of a blob that were copied since its last call; its error ends the copy.
pub type Copied<'a> = &'a (dyn Fn(u64) -> Result<()> + Send + Sync);

/// A place that holds blobs and manifests. Opening one does no I/O; each call stands for itself.
///
/// | a store that | also overrides |
/// |---|---|
/// | sends bytes as they come | [`Store::read_stream`], which otherwise holds the whole range |
/// | knows a cheap way to ask again | [`Store::manifest_again`] |
/// | can be written | [`Store::prepare_to_write`], so that refusals come before the data |
/// | holds plans | [`Store::referrers`] and [`Store::put_referrer`], without which none is found |
/// | deletes by itself what no manifest names | [`Store::drops_unnamed_blobs`] |
/// | keeps leases | [`Store::keeps_leases`], [`Store::put_lease`] and the calls beside it |
///
/// The commands `lease` and `image prune` have to know a kind that keeps leases. A method that is added here is added
/// to the wrappers, too: `retry` and [`stop`](crate::stop) forward each by hand.
///
/// # Errors
/// All calls: [`headstart_block::ErrorKind::Unavailable`] if trying again may help (time-outs, broken
/// connections, short or wrong answers), [`headstart_block::ErrorKind::Denied`] where the credentials are refused,
/// [`headstart_block::ErrorKind::NotFound`] where the thing is not there. They name the URL, never credentials.
#[async_trait]
pub trait Store: Send + Sync {
    /// The store as a reference names it, `oci://host/repo`, with the part from the environment that distinguishes
    /// it from all others, for callers that keep data from it. A bucket at an endpoint of its own is
    /// `s3://bucket@host:port/path`, which is not a reference. Never with credentials.
    fn location(&self) -> String;

    /// The store as a reference names it: for messages, whose readers type it again.
    fn name(&self) -> String {
        self.location()
    }

    /// The request to stop that ends its calls, if there may be one: a caller that waits between calls observes it,
    /// too.
    fn stop(&self) -> Option<&Stop> {
        None
    }

    /// Checks that the store answers and takes the credentials, so that this is known before the first read.
    async fn check(&self) -> Result<()>;

    /// The manifest of an image, checked against its digest. For an index of several platforms' images, the manifest
    /// of the one for Linux on amd64. At most [`MAX_MANIFEST_SIZE`](crate::MAX_MANIFEST_SIZE) bytes.
    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)>;

    /// Asks again for a manifest that the caller has: `None` if the selector still names the one with the digest
    /// `known`, otherwise the manifest that it names now. One small request where the store allows it.
    ///
    /// For callers that can do without the store: it gives up after 5 s. An answer that refuses the manifest is the
    /// result even if the tries after it got none.
    async fn manifest_again(&self, selector: &Selector, known: &Digest) -> Result<Option<(Digest, Bytes)>> {
        let _ = known;
        self.manifest(selector).await.map(Some)
    }

    /// `true` if the store is there and has granted no access so far: the token that it asked for has not come.
    fn has_let_nobody_in(&self) -> bool {
        false
    }

    /// Reads exactly the bytes `range` of a blob. They are *not* checked against anything: the caller does.
    ///
    /// Tries once, except for a renewed token or redirect, a hedged second request and a blob that is not there yet:
    /// the caller, which knows other sources, retries a failed read. Waits while the store asks to be left alone.
    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes>;

    /// Reads exactly the bytes `range` of a blob as they come: parts of any size, in order, or an error behind the
    /// last one that came. Apart from that it is [`Store::read`], and it holds its place among the reads until it
    /// is dropped. A reader that does not ask for the next part for a while holds the sender back.
    ///
    /// # Errors
    /// As all calls, if the answer does not begin; later as an item of the stream, which ends with it.
    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        let bytes = self.read(blob, range, urgency).await?;
        Ok(stream::iter([Ok(bytes)]).boxed())
    }

    /// Length of a blob in bytes, or `None` if it is not there.
    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>>;

    /// Announces that an image is about to be written. Blobs that are found in the store from here on stay there as
    /// long as this is alive, even if nothing refers to them yet.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::ReadOnly`] where the store cannot be written.
    async fn prepare_to_write(&self) -> Result<()> {
        Ok(())
    }

    /// Announces that the image is written.
    async fn done_writing(&self) {}

    /// `true` if disks of images of this store leave leases by [`Store::put_lease`].
    fn keeps_leases(&self) -> bool {
        false
    }

    /// Writes or renews a lease. `true` if another process is deleting blobs and may not have seen it: the caller
    /// writes it again until there is no such process, and then checks that the image is still there.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] where the store keeps none.
    async fn put_lease(&self, id: &str, lease: &Lease) -> Result<bool> {
        let _ = (id, lease);
        Err(Error::unsupported("keeps no leases"))
    }

    /// Takes a lease out. It may be gone already.
    async fn remove_lease(&self, id: &str) -> Result<()> {
        let _ = id;
        Ok(())
    }

    /// Writes a blob. The content is checked against `digest` on its way; nothing is left if it does not match.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] where it does not match; [`headstart_block::ErrorKind::ReadOnly`]
    /// where the store cannot be written.
    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()>;

    /// Writes a manifest, whose blobs are there already, and points `tag` at it if one is given.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if another process changed the store meanwhile: start over.
    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest>;

    /// All tags of images.
    async fn tags(&self) -> Result<Vec<Tag>>;

    /// `true` if the store drops blobs that no manifest has as its config or a layer, as registries do: a blob that
    /// only annotations name (a hash tree) then needs an artifact of its own, written by [`Store::put_referrer`].
    fn drops_unnamed_blobs(&self) -> bool {
        false
    }

    /// The artifacts of one kind that have `subject` as their subject, in no particular order. The list's fields
    /// are not checked; nor is it sure that the artifacts are there.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] where there is a list that is none.
    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let _ = (subject, artifact_type);
        Ok(Vec::new())
    }

    /// Writes an artifact's manifest that has `subject` as its `subject`, so that it exists as long as the subject
    /// and is listed by [`Store::referrers`]. Its blobs are there already. The artifacts `replaced` are listed no
    /// longer, and removed if the store is able to; but those that a registry lists itself and does not remove
    /// stay.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] where others changed the list at the same time, again and again.
    async fn put_referrer(
        &self,
        subject: &Digest,
        media_type: &str,
        bytes: Bytes,
        replaced: &[Digest],
    ) -> Result<Digest> {
        let _ = (subject, replaced);
        self.put_manifest(media_type, bytes, None).await
    }

    /// The counters of the work so far.
    fn counters(&self) -> StoreCounters;
}
