//! A store whose images are removed, pruned and kept by leases: a directory or an object store.

use crate::reference::{Location, Selector};
use crate::store::{ImageStore, PruneOptions, PruneReport, Removal, seen};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::bucket::{BucketPruneOptions, BucketRemoval};
use headstart_store::layout::{JudgedLease, Lease, LeaseFacts, LeaseHolder};
use headstart_store::{Bucket, Stop, StoreSettings};
use std::path::PathBuf;
use std::time::SystemTime;
use tokio::runtime::Handle;

/// A store that keeps leases. All methods block: the caller's thread is none of the runtime's.
pub struct ManagedStore {
    place: Place,
    stop: Option<Stop>,
    runtime: Handle,
}

enum Place {
    Directory(ImageStore),
    Bucket(Box<Bucket>),
}

/// The leases to choose; fields without a value choose all.
#[derive(Clone, Debug, Default)]
pub struct LeaseFilter {
    /// The image.
    pub image: Option<Digest>,
    /// The name of the host.
    pub host: Option<String>,
    /// The writable directory, as it was typed: the directory may be one of another host.
    pub writable: Option<PathBuf>,
    /// The id of the lease. Of a damaged one, nothing else is known.
    pub id: Option<String>,
}

impl ManagedStore {
    /// Opens the store; its requests run on `runtime`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a store that keeps no leases; errors of opening it.
    pub fn open(location: &Location, settings: &StoreSettings, runtime: &Handle) -> Result<Self> {
        let place = if let Location::Directory(root) = location {
            Place::Directory(ImageStore::open(root)?)
        } else {
            let bucket = Bucket::open(location, settings)?;
            Place::Bucket(Box::new(bucket.ok_or_else(|| no_leases(location))?))
        };
        Ok(Self { place, stop: settings.stop.clone(), runtime: runtime.clone() })
    }

    /// All leases, judged from this host.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn leases(&self, now: SystemTime) -> Result<Vec<JudgedLease>> {
        match &self.place {
            Place::Directory(store) => store.leases(),
            Place::Bucket(bucket) => self.until_stopped(bucket.leases(now, &look)),
        }
    }

    /// Ends leases.
    ///
    /// # Errors
    /// Errors of the store.
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

    /// The digest of an image.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such tag; errors of the store.
    pub fn digest(&self, selector: &Selector) -> Result<Digest> {
        match (&self.place, selector) {
            (Place::Directory(_), Selector::Digest(digest)) => Ok(*digest),
            (Place::Directory(store), Selector::Tag(_)) => store.resolve(selector).map(|image| image.digest),
            (Place::Bucket(bucket), _) => self.until_stopped(bucket.digest(selector)),
        }
    }

    /// Removes a tag, or all tags of a digest, as [`ImageStore::remove_with`].
    ///
    /// # Errors
    /// As there.
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

    /// Deletes blobs that nothing needs, as [`ImageStore::prune`]. Of an object store, the number of blobs that nothing
    /// needs and that are too young to be deleted comes beside the report.
    ///
    /// # Errors
    /// As there.
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
    /// `true` if the lease is one of them.
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
