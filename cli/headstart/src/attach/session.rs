//! The attached disks of one process: opened together, served together, detached together.

use super::arguments::Attach;
use super::keep_base::{self, Copies, Kept};
use super::recording::Traces;
use headstart_agentd::disks::{Held, KeptImage, images_record};
use headstart_agentd::local::AgentSwarm;
use headstart_block::guarded::check_own;
use headstart_block::{ByteSize, Digest, Error, ErrorKind, Result};
use headstart_cache::{Cache, CacheSettings};
use headstart_disk::attach::{attach_local, attach_remote, is_local};
use headstart_disk::{
    Attached, Disk, DiskOptions, Expected, Hold, Host, KnownImage, MadeDirectory, Swarm, WritableOptions,
};
use headstart_image::manifest::Manifest;
use headstart_image::progress::Progress;
use headstart_lsmt::writable::WritableDisk;
use headstart_store::{Location, Reference, Selector, Settings, Store};
use headstart_trace::Recorder;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;

/// The attached disks, and all that they need.
pub(crate) struct Session {
    pub(crate) disks: Vec<NamedDisk>,
    /// The cache; `None` if all images are in local directories.
    pub(crate) cache: Option<Arc<Cache>>,
    /// The stores that the images come from.
    pub(crate) stores: Vec<Arc<dyn Store>>,
    /// The agent of this host, if it is asked for missing bytes.
    pub(crate) swarm: Option<Arc<AgentSwarm>>,
    /// The recordings of the disks; `None` if there are to be none, or the directory cannot be used.
    pub(crate) traces: Option<Traces>,
    /// The warnings for the user.
    pub(crate) warnings: Vec<String>,
}

/// The earlier state of the disks, if an agent looks after this process.
pub(crate) enum Before {
    /// No earlier process is known: tags are resolved by their stores.
    Nothing,
    /// A process of an earlier version served them, which did not record the digests of tags.
    Served,
    /// The disks had these images, and still have them.
    Had(Vec<KeptImage>),
}

impl Before {
    pub(super) fn of(held: Option<Held>) -> Self {
        match held {
            Some(Held { images: Some(images), .. }) => Self::Had(images),
            Some(Held { has_served: true, .. }) => Self::Served,
            _ => Self::Nothing,
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// `true` if these are the images that the disks had, so that nothing has to be recorded.
    pub(super) fn is_noted(&self, images: &[KeptImage]) -> bool {
        matches!(self, Self::Had(noted) if noted == images)
    }

    /// The disk that a writable directory has to hold: an operator that attaches a disk may mean a new one; a start
    /// without an operator's request never does.
    fn expected(&self, name: &str, reference: &Reference) -> Result<Expected> {
        Ok(match self {
            Self::Nothing => Expected::AnyOrNone,
            Self::Served => Expected::Made,
            Self::Had(images) => {
                let id = KeptImage::find(images, name, &reference.to_string())?.writable;
                id.map_or(Expected::Made, Expected::Id)
            }
        })
    }

    /// The image to attach: a known one, or the one that the writable directory is based on, or the one that the
    /// reference stands for now.
    fn image(
        &self,
        name: &str,
        reference: &Reference,
        writable: Option<&Path>,
    ) -> Result<(Reference, Option<KnownImage>)> {
        let mut reference = reference.clone();
        let known = match self {
            Self::Had(images) => {
                let KeptImage { digest, manifest, .. } =
                    KeptImage::find(images, name, &reference.to_string())?;
                Some(KnownImage { digest: *digest, manifest: manifest.clone().into_bytes() })
            }
            Self::Served => {
                let info = writable.and_then(|dir| WritableDisk::inspect(dir).ok());
                if let Some(digest) = info.and_then(|info| info.parent.parse().ok()) {
                    reference.selector = Selector::Digest(digest);
                }
                None
            }
            Self::Nothing => None,
        };
        Ok((reference, known))
    }
}

/// The directory around several disks' writable directories, if it was not there before. It is removed again if they
/// all are.
struct Around(Mutex<Option<MadeDirectory>>);

impl Around {
    fn before(args: &Attach) -> Self {
        Self(Mutex::new(args.writable.as_deref().map(MadeDirectory::before)))
    }

    fn keep(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        let made = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        made.iter().for_each(MadeDirectory::remove_empty);
    }
}

/// A disk and the name of its export.
pub(crate) struct NamedDisk {
    pub(crate) name: String,
    /// The requested image.
    asked: String,
    /// The image that is served: it has another name than the requested one if a writable directory keeps its base.
    pub(crate) image: String,
    /// The copy in its writable directory, if the image is read from that.
    pub(super) kept_in: Option<PathBuf>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// The digest of the image's manifest, and the manifest.
    pub(super) digest: Digest,
    pub(super) manifest: Manifest,
    manifest_bytes: Vec<u8>,
    /// Its writable directory, if it was made just now and the disk was not announced yet.
    made: Mutex<Option<MadeDirectory>>,
    /// Dropped after the disk.
    around: Arc<Around>,
    /// The hold that keeps others from deleting the image.
    hold: Hold,
}

impl Drop for NamedDisk {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl NamedDisk {
    /// Removes its directory again, with the directory's lease, if the disk was never announced and nothing was written
    /// to it.
    fn take_back(&self) {
        if let Some(made) = self.take_made()
            && self.disk.stats().writes.snapshot().count() == 0
        {
            // While the image is held, leases are written again.
            self.hold.give_up();
            made.remove();
        }
    }

    fn take_made(&self) -> Option<MadeDirectory> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Bytes of the image's blobs that are on this host, and all their bytes.
    pub(crate) fn local_bytes(&self) -> (u64, u64) {
        self.disk.puller().map_or((0, 0), |puller| puller.blobs().local_bytes())
    }
}

impl Session {
    /// Attaches all images, at the same time, unless the user stops it.
    pub(crate) fn open(
        args: &Attach,
        (settings, copies): (&Settings, &Copies),
        before: &Before,
        runtime: &Handle,
        progress: &dyn Progress,
        quiet: bool,
    ) -> Result<Self> {
        check_writable(args)?;
        // The check is needed even if nothing is read from it: recordings of boots are written there.
        check_own(&args.cache_dir())?;
        let created = Instant::now();
        let around = Arc::new(Around::before(args));
        let remote = args.images.iter().any(|image| !is_local(&image.reference.location));
        let mut warnings = Vec::new();
        let cache = remote.then(|| open_cache(args, &mut warnings)).transpose()?;
        if let (None, Some(dir)) = (&cache, &args.cache) {
            Cache::check_directory(dir)?;
        }
        let mut stores = HashMap::<Location, Arc<dyn Store>>::new();
        for image in args.images.iter().filter(|image| !is_local(&image.reference.location)) {
            if !stores.contains_key(&image.reference.location) {
                let store = headstart_store::open(&image.reference.location, settings)?;
                stores.insert(image.reference.location.clone(), store);
            }
        }
        let swarm = match (&args.swarm, &cache) {
            (Some(socket), Some(cache)) => Some(runtime.block_on(AgentSwarm::start(socket, cache, runtime))?),
            _ => None,
        };
        let attached = runtime.block_on(async {
            let mut told_of = HashSet::new();
            let attaching = args.images.iter().map(|image| {
                let store = stores.get(&image.reference.location).cloned();
                // A warning is given once for each store.
                let tells = !quiet && told_of.insert(&image.reference.location);
                let host = cache.clone().map(|cache| Host {
                    runtime: runtime.clone(),
                    cache,
                    retry: settings.retry,
                    swarm: swarm.clone().map(|swarm| swarm as Arc<dyn Swarm>),
                    warn_of_silence: tells.then_some(settings.silence_limit()).flatten(),
                });
                let unnamed = Unnamed {
                    name: image.name.clone(),
                    asked: image.reference.to_string(),
                    kept: None,
                    is_taken_anew: false,
                    recorder: args.recording.recorder(created),
                    around: Arc::clone(&around),
                };
                async move {
                    let place = Place { settings, copies, store, host };
                    attach_one(args, &image.reference, before, unnamed, place, progress).await
                }
            });
            tokio::select! {
                attached = futures::future::try_join_all(attaching) => attached,
                () = cancelled(progress) => Err(Error::new(ErrorKind::Cancelled, "stopped")),
            }
        })?;
        let mut disks = Vec::new();
        for (disk, said) in attached {
            warnings.extend(said);
            disks.push(disk);
        }
        let traces = Traces::start(args, &disks).unwrap_or_else(|error| {
            warnings.push(format!("{error}: nothing is recorded"));
            None
        });
        Ok(Self { disks, cache, swarm, stores: stores.into_values().collect(), traces, warnings })
    }

    /// The images of the disks, to be held while they are attached.
    pub(super) fn images(&self) -> Vec<KeptImage> {
        let kept = |disk: &NamedDisk| KeptImage {
            name: disk.name.clone(),
            image: disk.asked.clone(),
            digest: disk.digest,
            // A manifest is JSON, and so it is text.
            manifest: String::from_utf8_lossy(&disk.manifest_bytes).into_owned(),
            writable: disk.disk.writable().map(|writable| writable.uuid()),
        };
        self.disks.iter().map(kept).collect()
    }

    /// Records that the disks are served: directories that were made for them stay.
    pub(crate) fn is_served(&self) {
        for disk in &self.disks {
            disk.take_made();
            disk.around.keep();
        }
    }

    /// Releases the images of disks that could not be served, and removes directories that were made for them.
    pub(super) fn give_up(&self) {
        self.at_once(|disk| {
            disk.hold.give_up();
            disk.take_back();
        });
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

    /// Ends all waiting and makes everything durable. The images are released if the disks end `for_good`: those of
    /// disks that an agent starts again stay held meanwhile.
    pub(crate) fn close(&self, for_good: bool) -> Result<()> {
        for disk in &self.disks {
            disk.disk.close();
        }
        let mut result = Ok(());
        for disk in &self.disks {
            let flushed = disk.disk.settle().map_err(|e| e.about(&disk.image));
            result = result.and(flushed);
        }
        if for_good {
            self.at_once(|disk| disk.hold.release());
        }
        if let Some(traces) = &self.traces {
            traces.stop();
        }
        if let Some(cache) = &self.cache {
            // Lost parts of a cache are fetched again.
            if let Err(error) = cache.sync() {
                tracing::warn!(%error, "the cache may have lost some of what was fetched");
            }
        }
        result
    }
}

/// A single disk is stored in the directory itself, several disks in directories of their names there. A user that
/// changed from one to the other would not find the earlier writes again.
fn check_writable(args: &Attach) -> Result<()> {
    let Some(dir) = &args.writable else { return Ok(()) };
    let holds_disk = WritableDisk::is_in;
    let conflict = |what: &'static str, remedy: String| {
        Err(Error::new(ErrorKind::Conflict, what).about(dir.display()).remedy(remedy))
    };
    if args.images.len() > 1 && holds_disk(dir) {
        return conflict(
            "what was written to one disk lies there itself, and several disks would each get a directory in it",
            "attach that image alone, or move its files into a directory of its name there".to_owned(),
        );
    }
    let within = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    match within.filter(|_| args.images.len() == 1 && !holds_disk(dir)).find(|within| holds_disk(within)) {
        Some(within) => conflict(
            "it holds the writable layers of several disks",
            format!("name the one that belongs to this image, such as --writable {}", within.display()),
        ),
        None => Ok(()),
    }
}

/// Returns when the user wants to stop.
async fn cancelled(progress: &dyn Progress) {
    while !progress.is_cancelled() {
        tokio::time::sleep(super::LOOK).await;
    }
}

/// Opens the cache. One whose disk fails does not prevent an attach.
fn open_cache(args: &Attach, warnings: &mut Vec<String>) -> Result<Arc<Cache>> {
    let dir = args.cache_dir();
    let size_limit = args.cache_size.map(|ByteSize(bytes)| bytes);
    let (cache, fault) =
        Cache::open_or_bypass(&dir, CacheSettings { size_limit, ..CacheSettings::default() })?;
    if let Some(error) = fault {
        warnings.push(format!("{error}: attached without a cache, what is read is fetched each time"));
    }
    Ok(cache)
}

/// The state of a disk before it is open.
struct Unnamed {
    name: String,
    asked: String,
    /// Its copy in the writable directory.
    kept: Option<Kept>,
    /// `true` if an earlier version served it, so that its image is the one that its tag stands for now.
    is_taken_anew: bool,
    recorder: Option<Arc<Recorder>>,
    around: Arc<Around>,
}

impl Unnamed {
    fn named(self, attached: Attached) -> (NamedDisk, Vec<String>) {
        let Self { name, asked, kept, is_taken_anew, recorder, around } = self;
        let Attached { disk, digest, manifest, manifest_bytes, made, hold, mut warnings } = attached;
        let made = Mutex::new(made);
        let image = kept.as_ref().map_or_else(|| asked.clone(), Kept::image);
        let kept_in = kept.as_ref().and_then(|kept| Some(kept.copy.directory().ok()?.to_owned()));
        warnings.extend(kept.and_then(|kept| kept.warning));
        if is_taken_anew {
            warnings.push(format!(
                "an earlier version served the disk and did not note its image; {asked} is {digest} now: if the tag \
                 was moved meanwhile, restart its guest"
            ));
        }
        let disk = NamedDisk {
            name,
            asked,
            image,
            kept_in,
            disk,
            recorder,
            digest,
            manifest,
            manifest_bytes,
            made,
            around,
            hold,
        };
        (disk, warnings)
    }
}

/// The place that an image is attached from.
struct Place<'a> {
    settings: &'a Settings,
    copies: &'a Copies,
    /// The store, if it is not a directory of this host.
    store: Option<Arc<dyn Store>>,
    host: Option<Host>,
}

/// The writable directory of a disk: several disks cannot share one.
pub(super) fn writable_of(args: &Attach, name: &str) -> Option<PathBuf> {
    let several = args.images.len() > 1;
    args.writable.as_ref().map(|dir| if several { dir.join(name) } else { dir.clone() })
}

async fn attach_one(
    args: &Attach,
    reference: &Reference,
    before: &Before,
    mut unnamed: Unnamed,
    place: Place<'_>,
    progress: &dyn Progress,
) -> Result<(NamedDisk, Vec<String>)> {
    let writable = writable_of(args, &unnamed.name);
    let expected = before.expected(&unnamed.name, reference)?;
    if let Some(dir) = &writable {
        // This comes before anything is made there, or requested from a store.
        expected.check(dir)?;
    }
    let (mut reference, known) = before.image(&unnamed.name, reference, writable.as_deref())?;
    let Place { settings, copies, mut store, host } = place;
    if let Some(dir) = &writable {
        keep_base::check(dir)?;
        unnamed.kept = keep_base::kept(dir, &reference, known.as_ref())?;
        if unnamed.kept.is_none() && args.keep_base {
            let (stores, deadline) = ((settings, copies), args.deadline);
            unnamed.kept = keep_base::keep(stores, &reference, dir, deadline, progress).await?;
        }
        if let Some(kept) = &unnamed.kept {
            (reference, store) = (kept.copy.clone(), None);
        }
    }
    let is_tag = matches!(reference.selector, Selector::Tag(_)) && unnamed.kept.is_none();
    unnamed.is_taken_anew = is_tag && matches!(before, Before::Served);
    let options = DiskOptions {
        pull: args.pull_settings(),
        plan: args.policy.plan(),
        plans: args.plan_source(),
        whole_blocks: args.whole_blocks,
        left_rate: args.fill.map(|rate| rate.0),
        writable: writable.map(|dir| WritableOptions {
            dir,
            size: args.size.map(|ByteSize(bytes)| bytes),
            max: args.writable_max.map(|ByteSize(bytes)| bytes),
            origin: unnamed.kept.as_ref().and_then(|kept| kept.origin.clone()),
            expected,
        }),
        recorder: unnamed.recorder.clone(),
        require_tree: args.require_tree,
        cached_although_denied: args.cached_although_denied,
        known,
        record: args.pid_file.as_deref().map(images_record).transpose()?,
    };
    match (store, host) {
        (Some(store), Some(host)) => {
            Ok(unnamed.named(attach_remote(&host, store, &reference, &options).await?))
        }
        _ => {
            // The thread goes on if another image fails meanwhile, and then cleans up.
            let open = move || attach_local(&reference, &options).map(|attached| unnamed.named(attached));
            let opened = tokio::task::spawn_blocking(open).await;
            opened.map_err(|e| Error::invalid("opening the image broke off").caused_by(e))?
        }
    }
}
