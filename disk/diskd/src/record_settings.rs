//! The settings of recordings of boots, and the labels of disks.

use headstart_block::guarded::check_own;
use headstart_block::{ByteSize, Error, Result, private};
use headstart_cache::Cache;
use headstart_image::manifest::Manifest;
use headstart_plan::zero_shot::Metadata;
use headstart_trace::{Creation, DirectoryLimits, RECORDS_MAX, Recorder, TraceDirectory};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Manifest annotation: the base image of this one, which stands for the family of images on it, if the user gives no
/// label.
const BASE_NAME: &str = "org.opencontainers.image.base.name";

/// The settings for recording boots, with the user's labels of the disks.
#[derive(Clone, Debug)]
pub struct RecordSettings {
    /// `true` to record boots.
    pub enabled: bool,
    /// The directory for the recordings (traces); `None` for `traces` in the cache's directory.
    pub directory: Option<PathBuf>,
    /// The duration for which each boot is recorded, from its first read on.
    pub time: Duration,
    /// The maximum size of all traces in the directory, in bytes.
    pub size: ByteSize,
    /// The maximum age of a trace; older ones are deleted.
    pub age: Duration,
    /// The labels that are written into the disks' traces. Plans of similar images are found by them.
    pub labels: Vec<DiskLabel>,
    /// The entrypoint of the container that will start on the disk, as far as is known; empty for none. Plans for such
    /// starts are followed first.
    pub expected_entrypoint: String,
}

/// A label of a disk in its trace, written as `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskLabel {
    /// The key; not empty. The keys `volume`, `family`, `user` and `cluster` set the fields of these names in the
    /// trace. Every other key adds a label of that key to the trace.
    pub key: String,
    /// The value; may be empty.
    pub value: String,
}

impl FromStr for DiskLabel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Error::invalid(format!("`{}` is no KEY=VALUE", text.escape_debug())))?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl RecordSettings {
    /// A recorder for a disk that is being attached since `created`.
    pub(crate) fn recorder(&self, created: Instant) -> Option<Arc<Recorder>> {
        self.enabled.then(|| Arc::new(Recorder::new(created, self.time, RECORDS_MAX)))
    }

    pub(crate) fn open_directory(&self, cache: Option<&PathBuf>) -> Result<TraceDirectory> {
        let cache = || cache.cloned().unwrap_or_else(Cache::default_dir);
        let dir = self.directory.clone().unwrap_or_else(|| cache().join("traces"));
        let limits = DirectoryLimits { bytes_max: Some(self.size.0), age_max: Some(self.age) };
        private::make_directory(&dir).map_err(|e| Error::io("cannot be made", e).about(dir.display()))?;
        check_own(&dir)?;
        TraceDirectory::open(&dir, limits)
    }

    /// The description of a disk of an image, from the user and from the image, by which similar images are found.
    pub(crate) fn described(&self, manifest: &Manifest) -> Creation {
        let mut creation = Creation::default();
        if let Some(base) = manifest.annotations.get(BASE_NAME) {
            creation.family.clone_from(base);
        }
        for DiskLabel { key, value } in &self.labels {
            let field = match key.as_str() {
                "volume" => &mut creation.volume,
                "family" => &mut creation.family,
                "user" => &mut creation.user,
                "cluster" => &mut creation.cluster,
                _ => {
                    creation.labels.insert(key.clone(), value.clone());
                    continue;
                }
            };
            field.clone_from(value);
        }
        creation
    }

    /// The part of the description by which plans are chosen.
    pub(crate) fn metadata(&self, manifest: &Manifest) -> Metadata {
        Metadata::of(&self.described(manifest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_key() {
        let label = |text: &str| text.parse::<DiskLabel>().map(|label| (label.key, label.value));
        assert_eq!(label("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert_eq!(label("a=").unwrap(), ("a".to_owned(), String::new()));
        assert!(label("a").is_err() && label("=b").is_err());
    }
}
