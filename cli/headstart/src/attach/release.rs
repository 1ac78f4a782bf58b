//! Releases the images of an agent's disk that is over and has no process: it was detached while its process was down,
//! or its first process failed. The agent knows neither the stores' options nor their credentials: this process has the
//! arguments and the environment of the disk's.

use super::keep_base;
use super::session::writable_of;
use super::{Attach, RUNTIME_THREADS};
use crate::report::{Outcome, Report, count};
use futures::future::join_all;
use headstart_agentd::disks::{KeptImage, hold_pid_file, images_record};
use headstart_block::{Error, Result};
use headstart_disk::KnownImage;
use headstart_disk::attach::is_local;
use headstart_disk::release::release_image;
use headstart_store::{Reference, Settings};
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The outcome of a release.
#[derive(Serialize)]
struct Released {
    /// Images that the disk does not hold any more.
    images: u64,
}

impl Outcome for Released {
    /// The output is read with the lines of the disk's processes.
    fn is_line(&self) -> bool {
        true
    }
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "released {}", count(self.images, "image"))
    }
}

impl Attach {
    /// Releases the images of the disk whose process had this file of process numbers.
    ///
    /// # Errors
    /// If another process has the disk, or a lease may still be there.
    pub(super) fn release(&self, pid_file: &Path) -> Result<Box<dyn Report>> {
        let images = hold_pid_file(pid_file)?.images.unwrap_or_default();
        let (record, settings) = (images_record(pid_file)?, self.store.settings_to_serve()?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .enable_all()
            .build()
            .map_err(|e| Error::io("cannot start threads", e))?;
        // A failure for one image does not prevent the release of others, and none waits for another.
        let releases = images.into_iter().map(|image| self.release_one(image, &settings, &record));
        let results = runtime.block_on(join_all(releases));
        let released = results.into_iter().try_fold(0, |released, result| result.map(|()| released + 1));
        runtime.shutdown_timeout(Duration::from_secs(1));
        Ok(Box::new(Released { images: released? }))
    }

    async fn release_one(&self, image: KeptImage, settings: &Settings, record: &Path) -> Result<()> {
        let KeptImage { name, image, digest, manifest, .. } = image;
        let mut reference: Reference = image.parse()?;
        let known = KnownImage { digest, manifest: manifest.into_bytes() };
        // A disk that reads a copy of its image holds the copy.
        let dir = writable_of(self, &name);
        if let Some(kept) = dir.and_then(|dir| keep_base::kept(&dir, &reference, Some(&known)).ok().flatten())
        {
            reference = kept.copy;
        }
        let is_remote = !is_local(&reference.location);
        let store = is_remote.then(|| headstart_store::open(&reference.location, settings)).transpose()?;
        release_image(store.as_deref(), &reference, &digest, record).await
    }
}
