//! The attached disks of one process: opened together, served together, detached together.
//!
//! [`DiskSession::open`] performs the steps of opening one after the other, each in a function of its own: the
//! directories are checked; the cache, the stores and the swarm are opened; all disks are opened at the same time
//! (module [`disk`](crate::disk)); their recordings begin.

use crate::disk::{CreatedParent, NamedDisk, open_disk};
use crate::environment::Environment;
use crate::recording::Traces;
use crate::settings::SessionSettings;
use headstart_block::guarded::check_own;
use headstart_block::{ByteSize, Error, ErrorKind, Result};
use headstart_cache::{Cache, CacheSettings};
use headstart_disk::{DiskHost, SwarmClient};
use headstart_image::progress::Progress;
use headstart_lsmt::writable::WritableDisk;
use headstart_store::{Location, Store, StoreSettings};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which the signal to stop is checked while disks are opened.
const LOOK: Duration = Duration::from_millis(50);

/// The attached disks of a process, with the cache, the stores and the swarm that they share.
pub struct DiskSession {
    /// The attached disks, in the order of the settings.
    pub disks: Vec<NamedDisk>,
    /// The cache of fetched bytes; `None` if all images are in local directories.
    pub cache: Option<Arc<Cache>>,
    /// The stores of the images that are not in local directories, each once.
    pub stores: Vec<Arc<dyn Store>>,
    /// The swarm (other hosts) that is asked for missing bytes; `None`: only stores are asked.
    pub swarm: Option<Arc<dyn SwarmClient>>,
    /// The recordings of the disks' boots; `None` if recording is off or its directory cannot be used.
    pub traces: Option<Traces>,
    /// Warnings to show the user; empty if there are none.
    pub warnings: Vec<String>,
}

/// The stores of the images that are not in directories of this host, by location.
type Stores = HashMap<Location, Arc<dyn Store>>;

impl DiskSession {
    /// Attaches the disks of `settings`, all at the same time. The runtime must have several threads. Must not be
    /// called in async code, where it panics.
    ///
    /// # Errors
    /// Errors of the directories, the stores and the images; [`ErrorKind::Cancelled`] if the user asks to
    /// stop.
    pub fn open(settings: &SessionSettings, environment: &Environment<'_>) -> Result<Self> {
        check_directories(settings)?;
        let created = Instant::now();
        let parent = Arc::new(CreatedParent::before(settings.writable.as_deref()));
        let (cache, mut warnings) = open_cache(settings)?;
        let stores = open_stores(settings, environment.stores)?;
        let swarm = connect_swarm(cache.as_deref(), environment)?;
        let hosts = hosts(settings, environment, cache.as_ref(), swarm.as_ref());
        let disks = open_disks(settings, environment, &stores, hosts, (created, &parent), &mut warnings)?;
        let traces = Traces::start(settings, &disks).unwrap_or_else(|error| {
            warnings.push(format!("{error}: nothing is recorded"));
            None
        });
        Ok(Self { disks, cache, stores: stores.into_values().collect(), swarm, traces, warnings })
    }

    /// Records that the disks are being served. From then on, writable directories that were created for them are kept
    /// when the session is given up or dropped.
    pub fn is_served(&self) {
        self.disks.iter().for_each(NamedDisk::is_served);
    }

    /// Ends the protection of the images from deletion, and removes writable directories that were created for the
    /// disks, unless something was written to them or [`is_served`](Self::is_served) was called. To be called if the
    /// disks could not be served.
    pub fn give_up(&self) {
        self.at_once(NamedDisk::give_up);
    }

    /// Calls `act` for all disks at once, so that a silent store delays them only as long as one.
    fn at_once(&self, act: impl Fn(&NamedDisk) + Sync) {
        let act = &act;
        std::thread::scope(|scope| {
            for disk in &self.disks {
                let thread = std::thread::Builder::new().name("leases".to_owned());
                if thread.spawn_scoped(scope, move || act(disk)).is_err() {
                    act(disk);
                }
            }
        });
    }

    /// Fails all waiting reads, makes all writes durable, and saves the recordings. If the disks end
    /// `for_good`, their images are no longer protected from deletion; otherwise an agent starts the disks
    /// again, and the protection stays.
    ///
    /// # Errors
    /// The first error of making a disk's writes durable.
    pub fn close(&self, for_good: bool) -> Result<()> {
        for disk in &self.disks {
            disk.disk.close();
        }
        let mut result = Ok(());
        for disk in &self.disks {
            let flushed = disk.disk.flush_with_note().map_err(|e| e.about(&disk.image));
            result = result.and(flushed);
        }
        if for_good {
            self.at_once(NamedDisk::release);
        }
        if let Some(traces) = &self.traces {
            traces.stop();
        }
        if let Some(cache) = &self.cache {
            // Lost parts of a cache are fetched again.
            if let Err(error) = cache.sync() {
                tracing::warn!(%error, "the cache may have lost some of the fetched bytes");
            }
        }
        result
    }
}

/// Checks the directories of the disks, before anything is made there.
fn check_directories(settings: &SessionSettings) -> Result<()> {
    if let Some(dir) = &settings.writable {
        check_writable(dir, settings.disks.len())?;
    }
    // The check is needed even if nothing is read from it: recordings of boots are written there.
    check_own(&settings.cache_dir())
}

/// A single disk is stored in the directory itself, several disks in directories of their names there. A user that
/// changed from one to the other would not find the earlier writes again.
fn check_writable(dir: &Path, disks: usize) -> Result<()> {
    let holds_disk = WritableDisk::is_in;
    let conflict = |what: &'static str, remedy: String| {
        Err(Error::new(ErrorKind::Conflict, what).about(dir.display()).remedy(remedy))
    };
    if disks > 1 && holds_disk(dir) {
        return conflict(
            "what was written to one disk lies there itself, and several disks would each get a directory in it",
            "attach that image alone, or move its files into a directory of its name there".to_owned(),
        );
    }
    let within = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    match within.filter(|_| disks == 1 && !holds_disk(dir)).find(|within| holds_disk(within)) {
        Some(within) => conflict(
            "it holds the writable layers of several disks",
            format!("name the one that belongs to this image, such as --writable {}", within.display()),
        ),
        None => Ok(()),
    }
}

/// Opens the cache, for images that are not all in local directories; with the warnings about it. One whose disk fails
/// does not prevent an attach.
fn open_cache(settings: &SessionSettings) -> Result<(Option<Arc<Cache>>, Vec<String>)> {
    if settings.remote_locations().next().is_none() {
        settings.cache.as_deref().map(Cache::check_directory).transpose()?;
        return Ok((None, Vec::new()));
    }
    let size_limit = settings.cache_size.map(|ByteSize(bytes)| bytes);
    let cache_settings =
        CacheSettings { size_limit, page_cache: settings.page_cache, ..CacheSettings::default() };
    let (cache, fault) = Cache::open_or_bypass(&settings.cache_dir(), cache_settings)?;
    let warning = |error| format!("{error}: attached without a cache, what is read is fetched each time");
    Ok((Some(cache), fault.map(warning).into_iter().collect()))
}

/// Opens each store once.
fn open_stores(settings: &SessionSettings, of_stores: &StoreSettings) -> Result<Stores> {
    let mut stores = Stores::new();
    for location in settings.remote_locations() {
        if !stores.contains_key(location) {
            stores.insert(location.clone(), headstart_store::open(location, of_stores)?);
        }
    }
    Ok(stores)
}

fn connect_swarm(
    cache: Option<&Cache>,
    environment: &Environment<'_>,
) -> Result<Option<Arc<dyn SwarmClient>>> {
    let both = environment.swarm.zip(cache);
    both.map(|(swarm, cache)| swarm.connect(cache, environment.runtime)).transpose()
}

/// The host of each disk; `None` without a cache. A warning of silence is given once for each store.
fn hosts(
    settings: &SessionSettings,
    environment: &Environment<'_>,
    cache: Option<&Arc<Cache>>,
    swarm: Option<&Arc<dyn SwarmClient>>,
) -> Vec<Option<DiskHost>> {
    let mut warned_of = HashSet::new();
    let host = |location| {
        let warns = settings.warn_of_silence && warned_of.insert(location);
        cache.map(|cache| DiskHost {
            runtime: environment.runtime.clone(),
            cache: Arc::clone(cache),
            retry: environment.stores.retry,
            swarm: swarm.cloned(),
            warn_of_silence: warns.then_some(environment.stores.silence_limit()).flatten(),
        })
    };
    settings.disks.iter().map(|disk| &disk.image.reference.location).map(host).collect()
}

/// Opens all disks at the same time, unless the user stops it.
fn open_disks(
    settings: &SessionSettings,
    environment: &Environment<'_>,
    stores: &Stores,
    hosts: Vec<Option<DiskHost>>,
    (created, parent): (Instant, &Arc<CreatedParent>),
    warnings: &mut Vec<String>,
) -> Result<Vec<NamedDisk>> {
    let opening = settings.disks.iter().zip(hosts).map(|(request, host)| {
        let store = stores.get(&request.image.reference.location).cloned();
        let recorder = settings.recording.recorder(created);
        open_disk(settings, environment, request, store.zip(host), (recorder, Arc::clone(parent)))
    });
    let opened = environment.runtime.block_on(async {
        tokio::select! {
            opened = futures::future::try_join_all(opening) => opened,
            () = cancelled(environment.progress) => Err(Error::new(ErrorKind::Cancelled, "stopped")),
        }
    })?;
    let (disks, of_disks): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    warnings.extend(of_disks.into_iter().flatten());
    Ok(disks)
}

/// Returns when the user wants to stop.
async fn cancelled(progress: &dyn Progress) {
    while !progress.is_cancelled() {
        tokio::time::sleep(LOOK).await;
    }
}
