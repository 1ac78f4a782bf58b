//! The recordings of boots of attached disks, and the directory that holds them.
//!
//! A problem with recording never keeps a disk from being attached: a directory that cannot be used only causes a
//! warning.

use crate::disk::NamedDisk;
use crate::settings::SessionSettings;
use headstart_block::{BlockDevice, Result};
use headstart_disk::Disk;
use headstart_trace::{Creation, DIGEST, LinkSample, Pace, Recording, SavedBoots, Saver};
use std::sync::{Arc, Weak};
use std::time::Duration;
use uuid::Uuid;

/// The longest wait of detaching for a directory that takes no traces.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The description of a disk in its trace.
fn creation(settings: &SessionSettings, disk: &NamedDisk) -> Creation {
    let mut creation = Creation {
        image: disk.image.clone(),
        host: hostname(),
        options: options(settings),
        size: disk.disk.size(),
        ..settings.recording.described(&disk.manifest)
    };
    // An optimized image has the boots of the one that it was made from: their disks are the same.
    let digest = disk.manifest.known_as(disk.digest);
    creation.labels.insert(DIGEST.to_owned(), digest.to_string());
    if creation.volume.is_empty() {
        creation.volume = Uuid::new_v4().to_string();
    } else if settings.disks.len() > 1 {
        // One label stands for several disks.
        creation.volume = format!("{}-{}", creation.volume, disk.name);
    }
    creation
}

/// The options of the attach that affect which bytes are read, and when.
fn options(settings: &SessionSettings) -> String {
    let mut options = vec![format!("policy={}", settings.policy.name())];
    if let Some(rate) = settings.fill {
        options.push(format!("fill={rate}"));
    }
    options.push(format!("writable={}", settings.writable.is_some()));
    options.join(";")
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The recordings of boots in a session, which are saved as traces in the background.
pub struct Traces {
    saver: Saver,
}

impl Traces {
    /// Starts to save the recordings of the disks; `None` if they are not to be recorded.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub(crate) fn start(settings: &SessionSettings, disks: &[NamedDisk]) -> Result<Option<Self>> {
        if !settings.recording.enabled {
            return Ok(None);
        }
        let directory = Arc::new(settings.recording.open_directory(settings.cache.as_ref())?);
        let recordings = disks.iter().filter_map(|disk| {
            Some(Recording {
                recorder: Arc::clone(disk.recorder.as_ref()?),
                creation: creation(settings, disk),
                sample: link_sampler(&disk.disk),
            })
        });
        let saver = Saver::start(directory, recordings.collect(), Pace::default())?;
        Ok(Some(Self { saver }))
    }

    /// Saves for the last time.
    pub(crate) fn stop(&self) {
        self.saver.stop(SAVE_TIMEOUT);
    }

    /// The numbers of boots, and of their requests, that were saved or left out.
    #[must_use]
    pub fn saved(&self) -> SavedBoots {
        self.saver.saved()
    }

    /// The number of traces that were deleted to keep the directory's limits of size and age.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.saver.directory().evicted()
    }

    /// The path of the directory that holds the traces.
    #[must_use]
    pub fn directory(&self) -> String {
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
