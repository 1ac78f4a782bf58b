//! [`Store`]: the one interface over all kinds of stores.

use crate::counters::StoreCounters;
use crate::layout::Lease;
use crate::reference::{Selector, Tag};
use crate::referrers::Referrer;
use crate::stop::Stop;
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use futures::stream::{self, BoxStream, StreamExt};
pub use headstart_block::exchange::Urgency;
use headstart_block::{ByteRange, Digest, Error, ReadAt, Result};
use std::sync::Arc;

/// A function that is called with the number of bytes of a blob copied since its last call. If it returns an
/// error, the copy ends.
pub type Copied<'a> = &'a (dyn Fn(u64) -> Result<()> + Send + Sync);

/// A source of images, which holds blobs and manifests: a directory, a web server, an object store or a
/// repository of a registry. Opening a store sends no request, and the calls do not depend on each other.
///
/// | a store that | also overrides |
/// |---|---|
/// | sends bytes as they come | [`Store::read_stream`], which by default reads the whole range into memory first |
/// | holds images of several platforms | [`Store::document`], as all stores here do |
/// | can cheaply check that a manifest is unchanged | [`Store::manifest_again`] |
/// | can be written | [`Store::prepare_to_write`], so that a store that refuses does so before data is sent |
/// | holds plans | [`Store::referrers`] and [`Store::put_referrer`], without which no plan is found |
/// | can take blobs of other stores over | [`Store::mount_blob`] |
/// | deletes blobs that no manifest names | [`Store::drops_unnamed_blobs`] |
/// | keeps leases | [`Store::keeps_leases`], [`Store::put_lease`], [`Store::remove_lease`] |
///
/// If a kind of store keeps leases, the commands `lease` and `image prune` need code for it. A method that is added to
/// this trait must also be added to its wrappers, `retry` and `stoppable`, which forward each method by hand.
///
/// # Errors
/// All calls: [`headstart_block::ErrorKind::Unavailable`] if trying again may help (time-outs, broken
/// connections, short or wrong answers), [`headstart_block::ErrorKind::Denied`] if the credentials are
/// refused, [`headstart_block::ErrorKind::NotFound`] if the blob or manifest is not there. Messages name the
/// URL, never credentials.
#[async_trait]
pub trait Store: Send + Sync {
    /// Returns the name of the store as a reference has it, such as `oci://host/repo`, without credentials.
    /// The name of an object store whose endpoint comes from the environment contains that endpoint, as in
    /// `s3://bucket@host:port/path`, which is not a reference. Callers that keep data from a store identify
    /// the store by this name.
    fn location(&self) -> String;

    /// Returns the name of the store for messages, in a form that the user can type again.
    fn name(&self) -> String {
        self.location()
    }

    /// Returns the request to stop that ends the calls to this store, so that a caller that waits between
    /// calls can observe it, too. `None` if calls cannot be stopped.
    fn stop(&self) -> Option<&Stop> {
        None
    }

    /// Checks that the store can be reached and accepts the credentials.
    async fn check(&self) -> Result<()>;

    /// Returns the digest and the bytes of an image's manifest, checked against the digest. If `selector` selects an
    /// index of several platforms' images, returns the manifest of the image for Linux on amd64. A manifest of more
    /// than [`MAX_MANIFEST_SIZE`](crate::MAX_MANIFEST_SIZE) bytes is an error.
    async fn manifest(&self, selector: &Selector) -> Result<(Digest, Bytes)>;

    /// Returns the digest and the bytes of the document that `selector` selects, checked against the digest: a manifest
    /// or, unlike [`Store::manifest`], an index as it is. A document of more than
    /// [`MAX_MANIFEST_SIZE`](crate::MAX_MANIFEST_SIZE) bytes is an error.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if the store gives manifests only.
    async fn document(&self, selector: &Selector) -> Result<(Digest, Bytes)> {
        let _ = selector;
        Err(Error::unsupported("gives manifests only"))
    }

    /// Returns the manifest that `selector` now selects; `None` if it is still the one with the digest
    /// `known`, which the caller has. Takes one small request if the store supports that.
    ///
    /// For callers that can do without the store: the call gives up after 5 s. If any try was answered with a
    /// refusal of the manifest, that error is returned, even if later tries got no answer.
    async fn manifest_again(&self, selector: &Selector, known: &Digest) -> Result<Option<(Digest, Bytes)>> {
        let _ = known;
        self.manifest(selector).await.map(Some)
    }

    /// `true` if the store can be reached but has not granted access so far, because the requested token has
    /// not come.
    fn has_let_nobody_in(&self) -> bool {
        false
    }

    /// `true` if this store may hide what it has from credentials that a pull has brought, and that end with it: that
    /// it has found nothing says nothing about the right of this host then. Access is denied only where others were
    /// tried.
    async fn may_have_refused_others(&self) -> bool {
        false
    }

    /// Reads exactly the bytes `range` of a blob. They are *not* checked against a digest; the caller must
    /// check them.
    ///
    /// The read is tried once, except for a renewed token or redirect, a hedge (a second request for a slow
    /// read) and a blob that is not there yet. The caller knows other sources and decides on retries. Waits
    /// while the store has asked for a pause.
    async fn read(&self, blob: &Digest, range: ByteRange, urgency: Urgency) -> Result<Bytes>;

    /// Reads exactly the bytes `range` of a blob, like [`Store::read`], and returns them as they come: parts
    /// of any length in order, or an error after the last part that came. The stream counts as a running read
    /// until it is dropped. A caller that does not take the next part for a while slows the sender down.
    ///
    /// # Errors
    /// As all calls, if the answer does not begin. Later errors are the last item of the stream.
    async fn read_stream<'s>(
        &'s self,
        blob: &Digest,
        range: ByteRange,
        urgency: Urgency,
    ) -> Result<BoxStream<'s, Result<Bytes>>> {
        let bytes = self.read(blob, range, urgency).await?;
        Ok(stream::iter([Ok(bytes)]).boxed())
    }

    /// Returns the length of a blob in bytes; `None` if the store does not have the blob.
    async fn blob_len(&self, blob: &Digest) -> Result<Option<u64>>;

    /// Announces that the caller is about to write an image. In directories and object stores, no prune then
    /// deletes blobs to which nothing refers yet, until [`Store::done_writing`] is called or this store is
    /// dropped; in an object store at most for an hour after the last write. In a registry, the call does
    /// nothing.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::ReadOnly`] if the store cannot be written;
    /// [`headstart_block::ErrorKind::Conflict`] if an object store is being pruned.
    async fn prepare_to_write(&self) -> Result<()> {
        Ok(())
    }

    /// Announces that the image has been written, or that writing it was given up. In an object store, this
    /// ends the effect of [`Store::prepare_to_write`]; in a directory, that effect lasts until this store is
    /// dropped.
    async fn done_writing(&self) {}

    /// `true` if disks that use images of this store protect them by leases, which [`Store::put_lease`]
    /// writes.
    fn keeps_leases(&self) -> bool {
        false
    }

    /// Writes or renews the lease `id`. Returns `true` if another process is deleting blobs and may not have
    /// seen the lease. The caller must then write the lease again until the result is `false`, and check that
    /// the image is still there.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if the store keeps no leases.
    async fn put_lease(&self, id: &str, lease: &Lease) -> Result<bool> {
        let _ = (id, lease);
        Err(Error::unsupported("keeps no leases"))
    }

    /// Removes the lease `id`. A lease that is not there is not an error. Does nothing in a store that keeps
    /// no leases.
    async fn remove_lease(&self, id: &str) -> Result<()> {
        let _ = id;
        Ok(())
    }

    /// Writes the blob `digest` from `source`. The content is checked against `digest` while it is sent; if it does not
    /// match, no blob is left. If a registry has the blob already, nothing is sent or checked, unless
    /// [`Store::blob_len`] found before that the registry does not have the blob. `copied` is called with the progress.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the content does not match `digest`;
    /// [`headstart_block::ErrorKind::ReadOnly`] if the store cannot be written.
    async fn put_blob(&self, digest: &Digest, source: Arc<dyn ReadAt>, copied: Copied<'_>) -> Result<()>;

    /// Makes the blob `digest` of another store a blob of this one, without its bytes passing through this host. `from`
    /// is the other store's [`Store::location`]. Returns `false`, and has no effect, if these two stores cannot do
    /// that, or if the other store does not have the blob or does not let it be read: the caller then copies it. This
    /// store must not have the blob.
    async fn mount_blob(&self, digest: &Digest, from: &str) -> Result<bool> {
        let _ = (digest, from);
        Ok(false)
    }

    /// Writes a manifest, and makes `tag` refer to it if one is given. All blobs of the manifest must be in the
    /// store already. Returns the digest of the manifest.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if another process changed the store meanwhile: the caller may start
    /// over. [`headstart_block::ErrorKind::ReadOnly`] if the store cannot be written.
    async fn put_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&Tag>) -> Result<Digest>;

    /// Returns the tags of all images in the store.
    async fn tags(&self) -> Result<Vec<Tag>>;

    /// `true` if the store deletes blobs that no manifest has as its config or a layer, as registries do. A
    /// blob that only annotations name (a hash tree) then needs an artifact of its own, written by
    /// [`Store::put_referrer`].
    fn drops_unnamed_blobs(&self) -> bool {
        false
    }

    /// Returns the artifacts of one type that belong to the manifest `subject`, in no particular order; empty
    /// if there are none. The store's list is not checked: the store may lack an artifact that the list names.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the list is not valid.
    async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Referrer>> {
        let _ = (subject, artifact_type);
        Ok(Vec::new())
    }

    /// Returns the artifacts of several types that belong to the manifest `subject`, as [`Store::referrers`] does: a
    /// list for each of `artifact_types`, in their order.
    ///
    /// # Errors
    /// As [`Store::referrers`].
    async fn referrers_of_types(
        &self,
        subject: &Digest,
        artifact_types: &[&str],
    ) -> Result<Vec<Vec<Referrer>>> {
        try_join_all(artifact_types.iter().map(|kind| self.referrers(subject, kind))).await
    }

    /// Writes the manifest of an artifact that belongs to the manifest `subject`, so that the artifact is
    /// kept as long as the subject and is listed by [`Store::referrers`]. All blobs of the artifact must be in
    /// the store already. The artifacts `replaced` are removed from the list, and deleted if the store can do
    /// that; a registry that maintains the list itself may keep them. Returns the digest of the
    /// artifact's manifest.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if other writers keep changing the list at the same time.
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

    /// Returns the counters of the work of this store since it was opened.
    fn counters(&self) -> StoreCounters;
}
