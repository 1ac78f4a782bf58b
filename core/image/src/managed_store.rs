//! [`ManagedStore`]: a directory or an object store, with the operations for people who run it: on leases and images.

use crate::reference::{Location, Selector};
use crate::store::{ImageStore, PruneOptions, PruneReport, Removal, seen};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::bucket::{BucketPruneOptions, BucketRemoval};
use headstart_store::layout::{JudgedLease, Lease, LeaseFacts, LeaseHolder};
use headstart_store::{Bucket, Stop, StoreSettings};
use std::path::PathBuf;
use std::time::SystemTime;
use tokio::runtime::Handle;

/// A store that keeps leases (a directory or an object store), for its operators: leases are listed and ended, images
/// removed and pruned. All methods block. The caller must not be in async code: there, a method that sends a request to
/// an object store panics. Such requests end with [`ErrorKind::Cancelled`] if the user wants to stop.
pub struct ManagedStore {
    place: Place,
    stop: Option<Stop>,
    runtime: Handle,
}

enum Place {
    Directory(ImageStore),
    Bucket(Box<Bucket>),
}

/// Conditions that select leases of a store. A lease is selected if it meets all of them; a field that is `None` is no
/// condition. The default selects every lease that is not damaged.
#[derive(Clone, Debug, Default)]
pub struct LeaseFilter {
    /// The digest of the manifest of the lease's image.
    pub image: Option<Digest>,
    /// The hostname of the host on which the holder of the lease is.
    pub host: Option<String>,
    /// The path of the writable directory that holds the lease. A lease is selected if its path is this one exactly as
    /// given, or the absolute path without symbolic links to which this one leads on this host. The first comparison is
    /// for directories on other hosts.
    pub writable: Option<PathBuf>,
    /// The id of the lease, which is its name in the store. Only the id selects a damaged lease, because nothing else
    /// is known of it.
    pub id: Option<String>,
}

impl ManagedStore {
    /// Opens the store at `location`. Requests to an object store run on `runtime`; none is sent yet.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a store that keeps no leases (a registry, a web server); errors of opening the
    /// store.
    pub fn open(location: &Location, settings: &StoreSettings, runtime: &Handle) -> Result<Self> {
        let place = if let Location::Directory(root) = location {
            Place::Directory(ImageStore::open(root)?)
        } else {
            let bucket = Bucket::open(location, settings)?;
            Place::Bucket(Box::new(bucket.ok_or_else(|| no_leases(location))?))
        };
        Ok(Self { place, stop: settings.stop.clone(), runtime: runtime.clone() })
    }

    /// Returns all leases of the store, each with its state as far as this host can tell it. `now`, the current time,
    /// serves for the ages of leases in an object store to which this user may not write; otherwise it is not used.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn leases(&self, now: SystemTime) -> Result<Vec<JudgedLease>> {
        match &self.place {
            Place::Directory(store) => store.leases(),
            Place::Bucket(bucket) => self.until_stopped(bucket.leases(now, &look)),
        }
    }

    /// Removes `leases` one after the other. A lease that is not there any more is not an error.
    ///
    /// # Errors
    /// Errors of the store; the leases before the one that failed are removed then.
    pub fn release(&self, leases: &[JudgedLease]) -> Result<()> {
        match &self.place {
            Place::Directory(store) => leases.iter().try_for_each(|lease| store.release(lease)),
            Place::Bucket(bucket) => self.until_stopped(async {
                for lease in leases {
                    bucket.release(lease).await?;
                }
                Ok(())
            }),
        }
    }

    /// Returns the digest of the manifest that `selector` stands for. A digest is returned without looking it up.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no image has the tag; errors of the store.
    pub fn digest(&self, selector: &Selector) -> Result<Digest> {
        match (&self.place, selector) {
            (Place::Directory(_), Selector::Digest(digest)) => Ok(*digest),
            (Place::Directory(store), Selector::Tag(_)) => store.resolve(selector).map(|image| image.digest),
            (Place::Bucket(bucket), _) => self.until_stopped(bucket.digest(selector)),
        }
    }

    /// Removes an image from the store's index, as [`ImageStore::remove_with`] does: a tag selects one entry, a digest
    /// all entries of the image. `now` is used as in [`leases`](Self::leases).
    ///
    /// # Errors
    /// As [`ImageStore::remove`]; errors of the store.
    pub fn remove(
        &self,
        selector: &Selector,
        force: bool,
        dry_run: bool,
        now: SystemTime,
    ) -> Result<Removal> {
        match &self.place {
            Place::Directory(store) => store.remove_with(selector, force, dry_run),
            Place::Bucket(bucket) => {
                let removed = self.until_stopped(bucket.remove(selector, force, dry_run, now, &look));
                let BucketRemoval { tags, nameless, holders } = removed?;
                Ok(Removal { tags, nameless, holders })
            }
        }
    }

    /// Deletes the blobs that nothing needs, as [`ImageStore::prune`] or [`Bucket::prune`] does. For an object store,
    /// also returns the number of blobs that nothing needs but that are too young to be deleted, and the report's
    /// counts of leftovers and of kept blobs are 0. For a directory, the second value is `None`.
    ///
    /// # Errors
    /// As [`ImageStore::prune`] for a directory, as [`Bucket::prune`] for an object store.
    pub fn prune(&self, options: &PruneOptions) -> Result<(PruneReport, Option<u64>)> {
        let PruneOptions { older_than, force, dry_run, now } = *options;
        let bucket = match &self.place {
            Place::Directory(store) => return Ok((store.prune(options)?, None)),
            Place::Bucket(bucket) => bucket,
        };
        let options = BucketPruneOptions { older_than, force, dry_run, now };
        // It ends in good order if the user wants to stop.
        let report = self.runtime.block_on(bucket.prune(&options, &look, self.stop.as_ref()))?;
        let own = PruneReport {
            blobs: report.blobs,
            bytes: report.bytes,
            images: report.images,
            untagged: report.untagged,
            ended_leases: report.ended_leases,
            ..PruneReport::default()
        };
        Ok((own, Some(report.young_blobs)))
    }

    /// Runs work in an object store, until the user wants to stop.
    fn until_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let stopped = || Err(Error::new(ErrorKind::Cancelled, "stopped on request"));
        self.runtime.block_on(async {
            match &self.stop {
                Some(stop) => stop.before(work).await.unwrap_or_else(stopped),
                None => work.await,
            }
        })
    }
}

impl LeaseFilter {
    /// `true` if the filter selects the lease. A damaged lease is selected only by its id; the other fields are then
    /// ignored.
    #[must_use]
    pub fn has(&self, judged: &JudgedLease) -> bool {
        let by_id = self.id.as_ref().is_none_or(|id| *id == judged.found.id);
        let Ok(lease) = &judged.found.lease else {
            // Only its id is known.
            return self.id.is_some() && by_id;
        };
        let dir = match &lease.holder {
            LeaseHolder::Writable { dir, .. } => Some(dir),
            LeaseHolder::Attach { .. } => None,
        };
        let is_named = |writable: &PathBuf| {
            let here = writable.canonicalize().or_else(|_| std::path::absolute(writable));
            dir == Some(writable) || (here.is_ok() && dir == here.as_ref().ok())
        };
        by_id
            && self.image.is_none_or(|image| image == lease.image)
            && self.host.as_ref().is_none_or(|host| *host == lease.host.name)
            && self.writable.as_ref().is_none_or(is_named)
    }
}

fn no_leases(location: &Location) -> Error {
    let remedy = match location {
        Location::Registry { .. } => {
            "a registry has commands and garbage collection of its own; keep a tag for each image in use"
        }
        _ => "run it where the web server has its directory, on file:///DIR",
    };
    Error::unsupported("is not a directory or object store, and keeps no leases")
        .about(location)
        .remedy(remedy)
}

/// The facts about a lease of an object store: there are no locks, and all hosts have the same facts.
fn look(lease: &Lease) -> LeaseFacts {
    seen(lease, false, false)
}
