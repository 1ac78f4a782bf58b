//! What disks of an image read, counted while they boot, so that the slower learn from the faster (Euro-Par paper,
//! section 2).
//!
//! A tracker counts, for each image, how many disks have read each slice and when, on average, after their creation.
//! Agents report their disks' first accesses in batches, and every answer carries hints: the slices that at least a
//! tenth of the image's disks have read. It knows nothing in advance: the first deployment of an image teaches
//! itself.
//!
//! The counts are a segment tree over the disk (`tree`), whose inner nodes know the greatest count below and
//! the latest version in which something below became worth telling: what is below the threshold is skipped as a
//! whole, and so is what the asker knows.
//!
//! A slice is told when its count comes to the threshold, also to one that has risen, and again whenever it has
//! doubled. Thus an agent's copy of the counts lags, by less than a factor of two, and an image's hints cost each
//! agent a few messages in all. Copies say by a version what they know; a version means something to the tracker
//! that gave it only, which is why each has an *epoch*.
//!
//! Disks come and go, and what they read changes slowly: when an image has had 2^14 disks, old and new count half.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tree::Tree;

#[cfg(test)]
mod tests;
mod tree;

/// Accesses of a report that are looked at.
pub const REPORT_MAX: usize = 4096;

/// An image, by a hash of its digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImageKey(pub u64);

/// How many of an image's disks must have read a slice before others are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// This share of all, from 0 to 1, and at least one.
    Share(f64),
    /// So many, at least one.
    Disks(u32),
}

impl Threshold {
    /// Of so many disks.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a u32, which saturates"
    )]
    pub fn of(self, disks: u32) -> u32 {
        match self {
            Self::Share(share) => (f64::from(disks) * share).ceil() as u32,
            Self::Disks(count) => count,
        }
        .max(1)
    }
}

/// A tracker's knobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Below it nothing is told.
    pub threshold: Threshold,
    /// Images that are counted: the one that was quiet for longest makes room.
    pub images_max: usize,
    /// Slices that are counted of an image (64 Ki of them are 4 GiB, and cost at most 64 MiB of memory).
    pub slices_max: usize,
    /// Slices that are counted in all: again the image that was quiet for longest makes room.
    pub slices_all_max: usize,
    /// Hints in one answer.
    pub hints_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threshold: Threshold::Share(0.1),
            images_max: 1024,
            slices_max: 1 << 16,
            slices_all_max: 1 << 19,
            hints_max: 1024,
        }
    }
}

/// A disk has read a slice for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Access {
    /// The slice's number in the disk.
    pub slice: u32,
    /// How long after the disk's creation, in milliseconds.
    pub at_ms: u32,
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Of which image.
    pub image: ImageKey,
    /// Disks of it that are new on the agent's host.
    pub joined: u32,
    /// First accesses of its disks; those beyond [`REPORT_MAX`] are ignored.
    pub accesses: Vec<Access>,
    /// Whose answer was the last.
    pub epoch: u64,
    /// And its version: what was told until then need not be told again.
    pub version: u64,
}

/// A slice that many have read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// The slice's number in the disk.
    pub slice: u32,
    /// How many disks have read it.
    pub disks: u32,
    /// When, on average, after their creation, in milliseconds.
    pub mean_ms: u32,
}

/// What a tracker answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Of which image.
    pub image: ImageKey,
    /// Whose answer this is.
    pub epoch: u64,
    /// What is told until now.
    pub version: u64,
    /// How many disks of the image have been counted.
    pub disks: u32,
    /// What is new.
    pub hints: Vec<Hint>,
}

/// What is known of an image, as plain data: to be kept over a restart, and for training.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Which image.
    pub image: ImageKey,
    /// How many disks were counted.
    pub disks: u32,
    /// Every slice that was read, ascending.
    pub slices: Vec<Hint>,
}

/// Counts what disks read.
#[derive(Clone, Debug)]
pub struct Tracker {
    settings: Settings,
    epoch: u64,
    images: BTreeMap<ImageKey, Image>,
    /// Counts reports, to tell which image was quiet for longest.
    clock: u64,
}

#[derive(Clone, Debug, Default)]
struct Image {
    disks: u32,
    tree: Tree,
    version: u64,
    heard: u64,
}

/// Disks of an image, beyond which all count half.
const DISKS_MAX: u32 = 1 << 14;

impl Tracker {
    /// That knows nothing. No two trackers, and no two lives of one, may have the same `epoch`.
    #[must_use]
    pub fn new(epoch: u64, settings: Settings) -> Self {
        Self { settings, epoch, images: BTreeMap::new(), clock: 0 }
    }

    /// An agent reports, and is answered. The driver has made sure that it may read the image.
    pub fn report(&mut self, report: &Report) -> Answer {
        self.clock += 1;
        let image = self.images.entry(report.image).or_default();
        image.heard = self.clock;
        image.join(report.joined);
        let threshold = self.settings.threshold.of(image.disks);
        for access in report.accesses.iter().take(REPORT_MAX) {
            image.read(*access, threshold, self.settings.slices_max);
        }
        let since = if report.epoch == self.epoch { report.version } else { 0 };
        let mut hints = Vec::new();
        image.tree.worth(threshold, since, &mut hints);
        hints.sort_unstable_by_key(|(told, hint)| (*told, hint.slice));
        let left_out = hints.len() > self.settings.hints_max;
        hints.truncate(self.settings.hints_max);
        let version = match hints.last() {
            Some((told, _)) if left_out => *told,
            _ => image.version,
        };
        let answer = Answer {
            image: report.image,
            epoch: self.epoch,
            version,
            disks: image.disks,
            hints: hints.into_iter().map(|(_, hint)| hint).collect(),
        };
        self.make_room();
        answer
    }

    fn make_room(&mut self) {
        let slices =
            |images: &BTreeMap<_, Image>| images.values().map(|image| image.tree.len()).sum::<usize>();
        let mut left = slices(&self.images);
        let is_full = |images: usize, left: usize| {
            images > self.settings.images_max.max(1) || (images > 1 && left > self.settings.slices_all_max)
        };
        while is_full(self.images.len(), left) {
            let quiet = self.images.iter().min_by_key(|(_, image)| image.heard).map(|(key, _)| *key);
            let gone = quiet.and_then(|key| self.images.remove(&key));
            left -= gone.map_or(0, |gone| gone.tree.len());
        }
    }

    /// What is known of an image.
    #[must_use]
    pub fn counts(&self, image: ImageKey) -> Option<Counts> {
        let known = self.images.get(&image)?;
        Some(Counts { image, disks: known.disks, slices: known.tree.slices() })
    }

    /// The images of which something is known.
    pub fn images(&self) -> impl Iterator<Item = ImageKey> {
        self.images.keys().copied()
    }

    /// Takes what was known of an image before a restart, in place of what is known now.
    pub fn load(&mut self, counts: &Counts) {
        self.clock += 1;
        let mut image = Image { disks: counts.disks.min(DISKS_MAX), heard: self.clock, ..Image::default() };
        let threshold = self.settings.threshold.of(image.disks);
        let mut slices: Vec<_> = counts.slices.iter().take(self.settings.slices_max).copied().collect();
        // Told in the order in which boots want them, should an answer not have room for all.
        slices.sort_unstable_by_key(|hint| (hint.mean_ms, hint.slice));
        for hint in slices {
            let disks = hint.disks.min(DISKS_MAX);
            let told = if disks >= threshold { image.next_version() } else { 0 };
            image.tree.set(Hint { disks, ..hint }, told);
        }
        self.images.insert(counts.image, image);
        self.make_room();
    }
}

impl Image {
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn join(&mut self, disks: u32) {
        self.disks = self.disks.saturating_add(disks.min(DISKS_MAX));
        while self.disks > DISKS_MAX {
            self.disks /= 2;
            self.tree.halve();
        }
    }

    fn read(&mut self, access: Access, threshold: u32, slices_max: usize) {
        let told = self.version + 1;
        if self.tree.read(access, threshold, told, slices_max) {
            self.version = told;
        }
    }
}
