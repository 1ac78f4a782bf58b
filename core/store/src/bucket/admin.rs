//! [`Bucket`]: an object store for its operators.

use super::prune::unless_stopped;
use super::{BucketPruneOptions, BucketPruneReport, BucketRemoval, BucketStore, Look};
use crate::layout::JudgedLease;
use crate::reference::{Location, Selector};
use crate::settings::StoreSettings;
use crate::silence::say_if_silent;
use crate::stop::Stop;
use crate::store::Store;
use headstart_block::{Digest, ErrorKind, Result};
use std::time::SystemTime;

/// An object store as its operators see it: leases, removed names, unneeded blobs. Calls that fail are not
/// tried again.
pub struct Bucket {
    pub(super) store: BucketStore,
}

impl Bucket {
    /// Opens the store at `location`; `None` if that is no object store.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] where the settings make no sense.
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
        say_if_silent(&self.store, self.store.silence_limit, call).await
    }

    /// All leases, judged by the time of the store, and by the facts that `look` finds. If the store may only be
    /// read, `here` counts, the present by the clock of this host.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn leases(&self, here: SystemTime, look: Look<'_>) -> Result<Vec<JudgedLease>> {
        self.check().await?;
        let now = self.store.store_time_or(here).await?;
        self.store.judged_leases(now, look, None).await
    }

    /// Takes a lease out. An image without a name is kept as if it had lost its last one now.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn release(&self, lease: &JudgedLease) -> Result<()> {
        self.store.end_lease(lease).await
    }

    /// The digest that a selector stands for.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NotFound`] where there is no such image.
    pub async fn digest(&self, selector: &Selector) -> Result<Digest> {
        match selector {
            Selector::Digest(digest) => Ok(*digest),
            Selector::Tag(_) => self.ask(self.store.manifest(selector)).await.map(|(digest, _)| digest),
        }
    }

    /// Takes an image out of the index: the entry of a tag, or all entries of a digest. The time is that of
    /// [`leases`](Self::leases).
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::NotFound`] where there is no such image,
    /// [`headstart_block::ErrorKind::Conflict`] where a disk needs it and it has no other name, unless `force`.
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

    /// Deletes blobs that no named image and no lease needs, as far as they are old enough. This includes a store
    /// in which the first copy broke off, so that there is nothing else. Once it is asked to `stop`, it removes its
    /// mark, which keeps others out, and ends.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] where an image is being copied into the store, or another process
    /// prunes it; [`headstart_block::ErrorKind::Cancelled`] where it was asked to stop.
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
