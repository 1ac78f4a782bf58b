//! [`Bucket`]: an object store for its operators.

use super::prune::unless_stopped;
use super::{BucketPruneOptions, BucketPruneReport, BucketRemoval, BucketStore, Look};
use crate::layout::JudgedLease;
use crate::reference::{Location, Selector};
use crate::settings::StoreSettings;
use crate::silence::warn_if_silent;
use crate::stop::Stop;
use crate::store::Store;
use headstart_block::{Digest, ErrorKind, Result};
use std::time::SystemTime;

/// An object store with the operations of its operators: listing and ending leases, removing images, and
/// pruning. Failed calls are not retried.
pub struct Bucket {
    pub(super) store: BucketStore,
}

impl Bucket {
    /// Opens the object store at `location`; `None` if `location` is another kind of store. Sends no request.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the settings cannot be used, for instance because a
    /// certificate file is not valid.
    pub fn open(location: &Location, settings: &StoreSettings) -> Result<Option<Self>> {
        match location {
            Location::Bucket { scheme, bucket, path } => {
                let store = BucketStore::new(*scheme, bucket, path, settings)?;
                Ok(Some(Self { store }))
            }
            _ => Ok(None),
        }
    }

    /// Fails where the store cannot be used.
    async fn check(&self) -> Result<()> {
        self.ask(self.store.check()).await
    }

    async fn ask<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        warn_if_silent(&self.store, self.store.silence_limit, call).await
    }

    /// Returns all leases of the store, each with its state. `look` collects the facts that this host knows about a
    /// lease. The age of a lease is measured by the store's clock; `here`, the current time of this host, is used
    /// instead if this user may not write to the store, or if other processes keep asking for the store's time at the
    /// same moments.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn leases(&self, here: SystemTime, look: Look<'_>) -> Result<Vec<JudgedLease>> {
        self.check().await?;
        let now = self.store.store_time_or(here).await?;
        self.store.judged_leases(now, look, None).await
    }

    /// Removes a lease. If its image has no tag, the time for which prunes keep an untagged image starts now. A lease
    /// that is not there any more is not an error.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn release(&self, lease: &JudgedLease) -> Result<()> {
        self.store.end_lease(lease).await
    }

    /// Returns the digest of the manifest that `selector` stands for. A digest is returned without looking it
    /// up.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NotFound`] if no image has the tag; other errors of the store.
    pub async fn digest(&self, selector: &Selector) -> Result<Digest> {
        match selector {
            Selector::Digest(digest) => Ok(*digest),
            Selector::Tag(_) => self.ask(self.store.manifest(selector)).await.map(|(digest, _)| digest),
        }
    }

    /// Removes an image from the store's index: a tag selects one entry, a digest all entries of the image.
    /// The blobs stay until [`prune`](Self::prune). With `force`, an image that a disk needs is removed as
    /// well; with `dry_run`, nothing is changed and the result describes what would be removed. `here` and `look`
    /// are used as in [`leases`](Self::leases).
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NotFound`] if there is no such image;
    /// [`headstart_block::ErrorKind::Conflict`] if a lease says that a disk needs the image and no other
    /// entry of the index leads to it (unless `force`), or if other writers keep changing the index; other
    /// errors of the store.
    pub async fn remove(
        &self,
        selector: &Selector,
        force: bool,
        dry_run: bool,
        here: SystemTime,
        look: Look<'_>,
    ) -> Result<BucketRemoval> {
        self.check().await?;
        let now = self.store.store_time_or(here).await?;
        self.store.remove_image(selector, force, dry_run, now, look).await
    }

    /// Deletes the blobs that neither a tagged image nor a lease needs and that are at least
    /// [`BucketPruneOptions::older_than`] old. Also works on a store in which the very first copy broke off, so that
    /// there is no index yet. While the prune runs, an object in the store announces it, and new copies into the store
    /// are refused; a dry run is not announced. After `stop` is requested, the prune removes that object and ends.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if [`BucketPruneOptions::older_than`] is shorter than a week;
    /// [`headstart_block::ErrorKind::Conflict`] if an image is being copied into the store or another process
    /// prunes it; [`headstart_block::ErrorKind::Cancelled`] if it was stopped; other errors of the store.
    pub async fn prune(
        &self,
        options: &BucketPruneOptions,
        look: Look<'_>,
        stop: Option<&Stop>,
    ) -> Result<BucketPruneReport> {
        unless_stopped(stop, self.require_blobs()).await?;
        self.store.prune(options, look, stop).await
    }

    /// Fails where the store is neither a layout nor the beginning of one.
    async fn require_blobs(&self) -> Result<()> {
        let Err(error) = self.check().await else { return Ok(()) };
        let is_begun = error.kind() == ErrorKind::NotFound && self.store.has_beginnings().await?;
        if is_begun { Ok(()) } else { Err(error) }
    }
}
