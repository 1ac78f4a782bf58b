//! The attached disks of one process: opened together, served together, detached together.

use super::arguments::{Attach, NamedImage};
use super::recording::Traces;
use headstart_block::{BlockDevice, ByteSize, Error, ErrorKind, Result};
use headstart_cache::{Cache, CacheSettings};
use headstart_disk::attach::{attach_local, attach_remote, is_local};
use headstart_disk::{Attached, Disk, DiskOptions, Host, WritableOptions};
use headstart_image::progress::Progress;
use headstart_store::{Location, Settings, Store};
use headstart_trace::Recorder;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;

/// All that is attached.
pub(crate) struct Session {
    pub(crate) disks: Vec<NamedDisk>,
    /// The cache; none where all images lie in local directories.
    pub(crate) cache: Option<Arc<Cache>>,
    /// The stores that the images come from.
    pub(crate) stores: Vec<Arc<dyn Store>>,
    /// What the disks record; none where nothing is to be recorded, or the directory cannot be used.
    pub(crate) traces: Option<Traces>,
    /// What the user should know.
    pub(crate) warnings: Vec<String>,
}

/// A disk and the name of its export.
pub(crate) struct NamedDisk {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) disk: Arc<Disk>,
    pub(crate) recorder: Option<Arc<Recorder>>,
}

impl NamedDisk {
    /// Bytes of the image's blobs that are on this host, and all.
    pub(crate) fn local_bytes(&self) -> (u64, u64) {
        self.disk.puller().map_or((0, 0), |puller| puller.blobs().local_bytes())
    }
}

impl Session {
    /// Attaches all images, at the same time, unless the user stops it.
    pub(crate) fn open(
        args: &Attach,
        settings: &Settings,
        runtime: &Handle,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let created = Instant::now();
        let remote = args.images.iter().any(|image| !is_local(&image.reference.location));
        let cache = remote.then(|| open_cache(args)).transpose()?;
        let mut stores = HashMap::<Location, Arc<dyn Store>>::new();
        for image in args.images.iter().filter(|image| !is_local(&image.reference.location)) {
            if !stores.contains_key(&image.reference.location) {
                let store = headstart_store::open(&image.reference.location, settings)?;
                stores.insert(image.reference.location.clone(), store);
            }
        }
        let recorders: Vec<_> = args.images.iter().map(|_| args.recording.recorder(created)).collect();
        let attached = runtime.block_on(async {
            let attaching = args.images.iter().zip(&recorders).map(|(image, recorder)| {
                let store = stores.get(&image.reference.location).cloned();
                let host = cache.clone().map(|cache| Host {
                    runtime: runtime.clone(),
                    cache,
                    retry: settings.retry,
                });
                let recorder = recorder.clone();
                async move { attach_one(args, image, recorder, store, host).await }
            });
            tokio::select! {
                attached = futures::future::try_join_all(attaching) => attached,
                () = cancelled(progress) => Err(Error::new(ErrorKind::Cancelled, "stopped")),
            }
        })?;
        let mut warnings = Vec::new();
        let (mut disks, mut digests) = (Vec::new(), Vec::new());
        for ((image, attached), recorder) in args.images.iter().zip(attached).zip(recorders) {
            warnings.extend(attached.warnings);
            digests.push(attached.digest);
            let (name, image) = (image.name.clone(), image.reference.to_string());
            disks.push(NamedDisk { name, image, disk: attached.disk, recorder });
        }
        let traces = Traces::start(args, &disks, &digests, created).unwrap_or_else(|error| {
            warnings.push(format!("{error}: nothing is recorded"));
            None
        });
        Ok(Self { disks, cache, stores: stores.into_values().collect(), traces, warnings })
    }

    /// Ends all waiting and makes everything durable.
    pub(crate) fn close(&self) -> Result<()> {
        for disk in &self.disks {
            disk.disk.close();
        }
        let mut result = Ok(());
        for disk in &self.disks {
            let flushed = disk.disk.flush().map_err(|e| e.about(&disk.image));
            result = result.and(flushed);
        }
        if let Some(traces) = &self.traces {
            traces.stop();
        }
        if let Some(cache) = &self.cache {
            // What is lost of a cache is fetched again.
            if let Err(error) = cache.sync() {
                tracing::warn!(%error, "the cache may have lost some of what was fetched");
            }
        }
        result
    }
}

/// Returns when the user wants to stop.
async fn cancelled(progress: &dyn Progress) {
    while !progress.is_cancelled() {
        tokio::time::sleep(super::LOOK).await;
    }
}

fn open_cache(args: &Attach) -> Result<Arc<Cache>> {
    let dir = args.cache.clone().unwrap_or_else(Cache::default_dir);
    let size_limit = args.cache_size.map(|ByteSize(bytes)| bytes);
    Cache::open(&dir, CacheSettings { size_limit, ..CacheSettings::default() })
}

async fn attach_one(
    args: &Attach,
    image: &NamedImage,
    recorder: Option<Arc<Recorder>>,
    store: Option<Arc<dyn Store>>,
    host: Option<Host>,
) -> Result<Attached> {
    let options = DiskOptions {
        pull: args.pull_settings(),
        plan: args.policy.plan(),
        left_rate: args.fill.map(|rate| rate.0),
        writable: args.writable.as_ref().map(|dir| WritableOptions {
            // Several disks cannot share a directory.
            dir: if args.images.len() > 1 { dir.join(&image.name) } else { dir.clone() },
            size: args.size.map(|ByteSize(bytes)| bytes),
        }),
        recorder,
    };
    match (store, host) {
        (Some(store), Some(host)) => attach_remote(&host, store, &image.reference, &options).await,
        _ => {
            let reference = image.reference.clone();
            let opened = tokio::task::spawn_blocking(move || attach_local(&reference, &options)).await;
            opened.map_err(|e| Error::invalid("opening the image broke off").caused_by(e))?
        }
    }
}
