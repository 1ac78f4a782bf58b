//! The settings of the disks of one process: plain values, from a command line or another program.

use crate::plans::{PlanLocations, PlanLookup};
use crate::policy::PlanPolicy;
use crate::record_settings::RecordSettings;
use headstart_block::{ByteRate, ByteSize, Error, Result};
use headstart_cache::Cache;
use headstart_disk::attach::is_local;
use headstart_disk::{Expected, KnownImage, PlanSource};
use headstart_lsmt::writable::WritableDisk;
use headstart_pull::MissRest;
use headstart_store::{Location, Reference, Selector};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// The longest time that a read waits for a store, if no deadline is given.
const DEADLINE: Duration = Duration::from_secs(5 * 60);

/// An image with the name of its export.
#[derive(Clone, Debug)]
pub struct NamedImage {
    /// The name of the export; empty for a single unnamed disk.
    pub name: String,
    /// The image.
    pub reference: Reference,
}

impl FromStr for NamedImage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // A scheme comes before any `=` that belongs to the reference.
        let scheme = text.find("://").unwrap_or(text.len());
        let (name, reference) = match text[..scheme].split_once('=') {
            Some((name, _)) => (name, &text[name.len() + 1..]),
            None => ("", text),
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !name.chars().all(allowed) || name.starts_with('.') || name.len() > 64 {
            return Err(Error::invalid(format!("`{}` is not a name of an export", name.escape_debug()))
                .remedy("write 1 to 64 letters, digits, `-`, `_` and `.`"));
        }
        Ok(Self { name: name.to_owned(), reference: reference.parse()? })
    }
}

/// The image that a disk had before, if an earlier process served it.
#[derive(Clone, Debug)]
pub enum PriorImage {
    /// No earlier process is known: a tag is resolved by its store.
    None,
    /// A process of an earlier version served the disk, which did not record the digest of the tag.
    Unrecorded,
    /// The disk had this image, and still has it.
    Recorded {
        /// The image.
        image: KnownImage,
        /// The id of the disk in its writable directory, if it was recorded.
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

/// A disk to open.
#[derive(Clone, Debug)]
pub struct DiskRequest {
    /// Its image, and the name of its export.
    pub image: NamedImage,
    /// The image that it had before.
    pub prior: PriorImage,
}

/// The settings of a session: of its disks, and of all that they share.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// The disks.
    pub disks: Vec<DiskRequest>,
    /// The directory that takes writes; `None` for read-only disks. Several disks have directories of their names in
    /// it.
    pub writable: Option<PathBuf>,
    /// `true` if the writable directory gets a copy of the image before the disk is served.
    pub keep_base: bool,
    /// The size of the disks in bytes, if they are to be larger than their images.
    pub size: Option<ByteSize>,
    /// The most bytes that a writable directory takes.
    pub writable_max: Option<ByteSize>,
    /// The directory of fetched bytes; `None` for the default one.
    pub cache: Option<PathBuf>,
    /// The most bytes in the cache; `None` for what its disk has room for.
    pub cache_size: Option<ByteSize>,
    /// The policy of preloading.
    pub policy: PlanPolicy,
    /// For [`PlanPolicy::Auto`]: a file of plans, or a directory of such files; `None` for the cache's own directory.
    pub plans: Option<PathBuf>,
    /// `true` if a read waits for the whole block that lacks bytes, and whole blocks are preloaded.
    pub whole_blocks: bool,
    /// The rate at which the rest of the image is fetched in the background; `None` to leave it.
    pub fill: Option<ByteRate>,
    /// `true` to refuse an image of a store that has no hash trees.
    pub require_tree: bool,
    /// `true` to attach an image that is whole in the cache although its store refuses it.
    pub cached_although_denied: bool,
    /// The time that a read waits for a store; `None` for the defaults of reads and of copies.
    pub deadline: Option<Duration>,
    /// The recording of boots, and the labels of the disks.
    pub recording: RecordSettings,
    /// The file in which an agent's disk records its images; the record of leases names it.
    pub images_record: Option<PathBuf>,
    /// `true` to log a warning, once for each store, when the store does not answer.
    pub warn_of_silence: bool,
}

impl SessionSettings {
    /// The directory of fetched bytes.
    #[must_use]
    pub fn cache_dir(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(Cache::default_dir)
    }

    /// The writable directory of the disk of this name: several disks cannot share one.
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

    /// The settings of the pull engine.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_before_the_scheme() {
        let named =
            |text: &str| text.parse::<NamedImage>().map(|image| (image.name, image.reference.to_string()));
        assert_eq!(named("file:///d:t").unwrap(), (String::new(), "file:///d:t".to_owned()));
        assert_eq!(named("a=file:///d:t").unwrap(), ("a".to_owned(), "file:///d:t".to_owned()));
        assert_eq!(named("file:///a=b:t").unwrap(), (String::new(), "file:///a=b:t".to_owned()));
        for text in ["../a=file:///d:t", "a b=file:///d:t", ".=file:///d:t", "a=b", "a"] {
            assert!(named(text).is_err(), "{text}");
        }
    }
}
