//! The settings of the disks of one process: plain values, from a command line or another program.

use crate::plans::{PlanLocations, PlanLookup};
use crate::policy::PlanPolicy;
use crate::record_settings::RecordSettings;
use headstart_block::{ByteRate, ByteSize};
use headstart_cache::{Cache, PageCache};
use headstart_disk::attach::is_local;
use headstart_disk::{Expected, KnownImage, PlanSource};
use headstart_image::named_image::NamedImage;
use headstart_lsmt::writable::WritableDisk;
use headstart_pull::MissRest;
use headstart_store::{Location, Reference, Selector};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The longest time that a read waits for a store, if no deadline is given.
const DEADLINE: Duration = Duration::from_secs(5 * 60);

/// The image that an earlier process of the same disk served, if there was one.
#[derive(Clone, Debug)]
pub enum PriorImage {
    /// No earlier process is known: the store is asked which image a tag means.
    None,
    /// An earlier process served the disk but did not record the image's digest, because its version of the
    /// program did not.
    Unrecorded,
    /// An earlier process recorded the image, and the disk keeps it.
    Recorded {
        /// The image that the disk keeps.
        image: KnownImage,
        /// The ID of the disk in its writable directory; `None` if it was not recorded.
        writable: Option<Uuid>,
    },
}

impl PriorImage {
    /// The disk that a writable directory has to hold: an operator that attaches a disk may mean a new one; a start
    /// without an operator's request never does.
    pub(crate) fn expected(&self) -> Expected {
        match self {
            Self::None => Expected::AnyOrNone,
            Self::Unrecorded => Expected::Made,
            Self::Recorded { writable, .. } => writable.map_or(Expected::Made, Expected::Id),
        }
    }

    /// The image to attach: a known one, or the one that the writable directory is based on, or the one that the
    /// reference stands for now.
    pub(crate) fn image(
        &self,
        reference: &Reference,
        writable: Option<&Path>,
    ) -> (Reference, Option<KnownImage>) {
        let mut reference = reference.clone();
        let known = match self {
            Self::Recorded { image, .. } => Some(image.clone()),
            Self::Unrecorded => {
                let info = writable.and_then(|dir| WritableDisk::inspect(dir).ok());
                if let Some(digest) = info.and_then(|info| info.parent.parse().ok()) {
                    reference.selector = Selector::Digest(digest);
                }
                None
            }
            Self::None => None,
        };
        (reference, known)
    }
}

/// A disk to attach.
#[derive(Clone, Debug)]
pub struct DiskRequest {
    /// The image of the disk, and the name of its export.
    pub image: NamedImage,
    /// The image that an earlier process of the same disk served, if there was one.
    pub prior: PriorImage,
}

/// The settings of a session: the disks, and all that they share.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// The disks to attach.
    pub disks: Vec<DiskRequest>,
    /// The directory that takes the writes of a single disk, or that has a subdirectory for each of several
    /// disks. `None`: the disks are read-only.
    pub writable: Option<PathBuf>,
    /// `true` to copy the image into the writable directory before the disk is served, so that the disk needs
    /// no store.
    pub keep_base: bool,
    /// The size of each disk in bytes, if it is to be larger than its image. `None`: the size that the disk has in its
    /// writable directory or, for a new or read-only disk, the image's size. Not used for read-only disks.
    pub size: Option<ByteSize>,
    /// The maximum size of each writable directory, in bytes; `None`: a default that depends on its present
    /// contents.
    pub writable_max: Option<ByteSize>,
    /// The cache directory, which keeps fetched bytes; `None` for the default one.
    pub cache: Option<PathBuf>,
    /// The maximum size of the cache, in bytes; `None`: no limit but its disk's space.
    pub cache_size: Option<ByteSize>,
    /// The treatment of pages of the kernel's page cache that hold bytes of the cache which were decoded.
    pub page_cache: PageCache,
    /// The policy that chooses the preload plans.
    pub policy: PlanPolicy,
    /// The file of plans, or directory of such files, that [`PlanPolicy::Auto`] searches; `None` for `plans`
    /// in the cache directory.
    pub plans: Option<PathBuf>,
    /// The number of layers that each disk is made of, from the lowest of its image on; `None` for all.
    pub lowest: Option<usize>,
    /// The files of layers on top of those of the images, lowest first: layers of this host, which no store has.
    pub uppers: Vec<PathBuf>,
    /// `true` if a read whose bytes are not local waits for the whole block (2 MiB), and whole blocks are
    /// preloaded.
    pub whole_blocks: bool,
    /// The rate at which the rest of the image is fetched in the background; `None`: it is not.
    pub fill: Option<ByteRate>,
    /// `true` to refuse an image in a store unless hash trees verify all its bytes as they are fetched.
    pub require_tree: bool,
    /// `true` to attach an image that is completely in the cache even if its store denies access.
    pub cached_although_denied: bool,
    /// The longest time since a store let this host read an image for which that is attached without an answer of the
    /// store. `None`: an answer is waited for, and a store that is away does not limit the time.
    pub offline_limit: Option<Duration>,
    /// The maximum duration for which a read of a disk, or a read that copies an image, waits for a store. `None`: 5
    /// minutes for a read of a disk, and the time limits of the store settings for a copy.
    pub deadline: Option<Duration>,
    /// The settings for recording boots, with the user's labels of the disks.
    pub recording: RecordSettings,
    /// The file in which an agent's disk records its images. While it exists, the images stay protected from
    /// deletion. `None`: the protection ends with the process.
    pub images_record: Option<PathBuf>,
    /// `true` to log a warning when a store does not answer, once for each store.
    pub warn_of_silence: bool,
}

impl SessionSettings {
    /// The cache directory: the one of the settings, or the default.
    #[must_use]
    pub fn cache_dir(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(Cache::default_dir)
    }

    /// Returns the writable directory of the disk `name`; `None` if the disks are read-only. Of several disks
    /// each has a subdirectory of its name.
    #[must_use]
    pub fn writable_of(&self, name: &str) -> Option<PathBuf> {
        let several = self.disks.len() > 1;
        self.writable.as_ref().map(|dir| if several { dir.join(name) } else { dir.clone() })
    }

    /// The locations of the images that are not in directories of this host.
    pub(crate) fn remote_locations(&self) -> impl Iterator<Item = &Location> {
        let locations = self.disks.iter().map(|disk| &disk.image.reference.location);
        locations.filter(|location| !is_local(location))
    }

    /// Returns the settings of the pull engine that follow from these settings.
    #[must_use]
    pub fn pull(&self) -> headstart_pull::EngineSettings {
        let miss_rest = if self.whole_blocks { MissRest::None } else { MissRest::default() };
        let deadline = self.deadline.unwrap_or(DEADLINE);
        headstart_pull::EngineSettings { deadline, miss_rest, ..headstart_pull::EngineSettings::default() }
    }

    /// The lookup of plans; `None` if the policy is a plan itself.
    pub(crate) fn plan_source(&self) -> Option<Arc<dyn PlanSource>> {
        let locations = match &self.policy {
            PlanPolicy::Auto => PlanLocations::All {
                files: self.plans.clone().unwrap_or_else(|| self.cache_dir().join("plans")),
                named: self.plans.is_some(),
            },
            PlanPolicy::Plans(file) => PlanLocations::Plans(file.clone()),
            PlanPolicy::Trace(file) => PlanLocations::Trace(file.clone()),
            PlanPolicy::Fixed(_) => return None,
        };
        Some(Arc::new(PlanLookup::new(locations, &self.recording)))
    }
}
