//! The recordings of boots of attached disks, and their place.
//!
//! A problem here never keeps a disk from being attached: a directory that cannot be used is a warning.

use super::arguments::Attach;
use super::session::NamedDisk;
use clap::Args;
use headstart_block::guarded::check_own;
use headstart_block::{BlockDevice, ByteSize, Error, Result, private};
use headstart_cache::Cache;
use headstart_disk::Disk;
use headstart_image::manifest::Manifest;
use headstart_plan::zero_shot::Metadata;
use headstart_trace::{
    Creation, DIGEST, DirectoryLimits, LinkSample, Pace, RECORDS_MAX, Recorder, Recording, SavedBoots, Saver,
    TraceDirectory,
};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The longest recording: times in a trace are 32 bits of microseconds.
const RECORD_TIME_MAX: Duration = Duration::from_secs(71 * 60);

/// Manifest annotation: the base image of this one, which stands for the family of images on it, if the user gives no
/// label.
const BASE_NAME: &str = "org.opencontainers.image.base.name";

/// The longest wait of detaching for a directory that takes no traces.
const PATIENCE: Duration = Duration::from_secs(5);

/// What to record.
#[derive(Clone, Args)]
pub(crate) struct RecordArgs {
    /// Record each boot's first minutes of reads and writes into this directory [default: traces in the cache's
    /// directory]
    #[arg(long, value_name = "DIR", help_heading = "Recording")]
    record: Option<PathBuf>,
    /// Record nothing
    #[arg(long, conflicts_with = "record", help_heading = "Recording")]
    no_record: bool,
    /// Time for which each boot is recorded, from its first read on; 71 minutes at most
    #[arg(long, default_value = "6m", value_parser = parse_record_time, value_name = "TIME",
          help_heading = "Recording")]
    record_time: Duration,
    /// Most bytes of all traces in the directory: the oldest are removed first
    #[arg(long, default_value = "1G", value_name = "SIZE", help_heading = "Recording")]
    record_size: ByteSize,
    /// How long traces are kept
    #[arg(long, default_value = "90d", value_parser = humantime::parse_duration, value_name = "TIME",
          help_heading = "Recording")]
    record_age: Duration,
    /// What the trace is to tell of the disk; volume, family, user and cluster have a place of their
    /// own, other keys are kept beside them (may be repeated)
    #[arg(long = "label", value_name = "KEY=VALUE", help_heading = "Recording")]
    labels: Vec<Label>,
}

fn parse_record_time(text: &str) -> Result<Duration> {
    let time = super::parse_time(text)?;
    if time > RECORD_TIME_MAX {
        return Err(Error::invalid(format!("{text} is too long")).remedy("record 71 minutes at most: 71m"));
    }
    Ok(time)
}

/// A label of the disk in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    key: String,
    value: String,
}

impl FromStr for Label {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Error::invalid(format!("`{}` is no KEY=VALUE", text.escape_debug())))?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl RecordArgs {
    /// A recorder for a disk that is being attached since `created`.
    pub(super) fn recorder(&self, created: Instant) -> Option<Arc<Recorder>> {
        (!self.no_record).then(|| Arc::new(Recorder::new(created, self.record_time, RECORDS_MAX)))
    }

    fn directory(&self, cache: Option<&PathBuf>) -> Result<TraceDirectory> {
        let cache = || cache.cloned().unwrap_or_else(Cache::default_dir);
        let dir = self.record.clone().unwrap_or_else(|| cache().join("traces"));
        let limits = DirectoryLimits { bytes_max: Some(self.record_size.0), age_max: Some(self.record_age) };
        private::make_directory(&dir).map_err(|e| Error::io("cannot be made", e).about(dir.display()))?;
        check_own(&dir)?;
        TraceDirectory::open(&dir, limits)
    }

    /// The description of a disk of an image, from the user and from the image, by which similar images are found.
    fn described(&self, manifest: &Manifest) -> Creation {
        let mut creation = Creation::default();
        if let Some(base) = manifest.annotations.get(BASE_NAME) {
            creation.family.clone_from(base);
        }
        for Label { key, value } in &self.labels {
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
    pub(super) fn metadata(&self, manifest: &Manifest) -> Metadata {
        Metadata::of(&self.described(manifest))
    }

    /// The description of a disk in its trace.
    fn creation(&self, args: &Attach, disk: &NamedDisk) -> Creation {
        let mut creation = Creation {
            image: disk.image.clone(),
            host: hostname(),
            options: options(args),
            size: disk.disk.size(),
            ..self.described(&disk.manifest)
        };
        // An optimized image has the boots of the one that it was made from: their disks are the same.
        let digest = disk.manifest.known_as(disk.digest);
        creation.labels.insert(DIGEST.to_owned(), digest.to_string());
        if creation.volume.is_empty() {
            creation.volume = Uuid::new_v4().to_string();
        } else if args.images.len() > 1 {
            // One label stands for several disks.
            creation.volume = format!("{}-{}", creation.volume, disk.name);
        }
        creation
    }
}

/// The options of the attach that affect which bytes are read, and when.
fn options(args: &Attach) -> String {
    let mut options = vec![format!("policy={}", args.policy.name())];
    if let Some(rate) = args.fill {
        options.push(format!("fill={rate}"));
    }
    options.push(format!("writable={}", args.writable.is_some()));
    options.join(";")
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The recordings of a session.
pub(crate) struct Traces {
    saver: Saver,
}

impl Traces {
    /// Starts to save the recordings of the disks; `None` if they are not to be recorded.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub(super) fn start(args: &Attach, disks: &[NamedDisk]) -> Result<Option<Self>> {
        if args.recording.no_record {
            return Ok(None);
        }
        let directory = Arc::new(args.recording.directory(args.cache.as_ref())?);
        let recordings = disks.iter().filter_map(|disk| {
            Some(Recording {
                recorder: Arc::clone(disk.recorder.as_ref()?),
                creation: args.recording.creation(args, disk),
                sample: link_sampler(&disk.disk),
            })
        });
        let saver = Saver::start(directory, recordings.collect(), Pace::default())?;
        Ok(Some(Self { saver }))
    }

    /// Saves for the last time.
    pub(super) fn stop(&self) {
        self.saver.stop(PATIENCE);
    }

    /// The counts of boots and their requests, by outcome.
    pub(super) fn saved(&self) -> SavedBoots {
        self.saver.saved()
    }

    /// Traces that were removed to keep the directory's limits.
    pub(super) fn evicted(&self) -> u64 {
        self.saver.directory().evicted()
    }

    pub(super) fn directory(&self) -> String {
        self.saver.directory().dir().display().to_string()
    }
}

/// Samples the link of a disk while the disk lives.
fn link_sampler(disk: &Arc<Disk>) -> Box<dyn Fn(u64) -> Option<LinkSample> + Send> {
    let puller = disk.puller().map_or_else(Weak::new, Arc::downgrade);
    Box::new(move |t_us| {
        let estimate = puller.upgrade()?.estimate();
        let round_trip_us = estimate.round_trip.and_then(|time| u32::try_from(time.as_micros()).ok());
        Some(LinkSample { t_us, bandwidth: estimate.bandwidth, round_trip_us })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_key() {
        let label = |text: &str| text.parse::<Label>().map(|label| (label.key, label.value));
        assert_eq!(label("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert_eq!(label("a=").unwrap(), ("a".to_owned(), String::new()));
        assert!(label("a").is_err() && label("=b").is_err());
    }
}
