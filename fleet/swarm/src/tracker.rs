//! The reads of an image's disks, counted while the disks boot, so that slower disks profit from the reads of faster
//! ones ("Optimizing multi-deployment on clouds by means of self-adaptive prefetching", Euro-Par 2011, section 2).
//!
//! A tracker counts, for each image, the disks that have read each slice, and their mean time after creation. Agents
//! report their disks' first accesses in batches, and every answer carries hints: the slices that at least a certain
//! share of the image's disks have read (a tenth by default, [`TrackerSettings::threshold`]). The tracker knows nothing
//! in advance: the first deployment of an image teaches itself.
//!
//! The counts are a segment tree over the disk (`tree`). Each inner node has the greatest count below it, and the
//! latest version in which a slice below it became a hint. So an answer skips whole subtrees: those below the
//! threshold, and those that the asking agent already knows.
//!
//! A slice becomes a hint when its count reaches the threshold (which rises with the number of disks), and again
//! whenever the count has doubled. So an agent's copy of the counts lags by less than a factor of two, and the hints of
//! an image cost each agent only a few messages. An agent's report says by a *version* which hints the agent has. A
//! version means something only to the tracker that gave it, so each run of a tracker has an *epoch* of its own.
//!
//! Disks come and go, and their reads change slowly: whenever 2^14 disks of an image are counted, all counts are
//! halved.
//!
//! # Memory
//!
//! A *member*, a host that reports reads, may report any image and any slices of it: no tracker can tell whether they
//! exist. So each member owns the entries that it was the first to report: images, slices, and the nodes of the tree
//! that a slice takes (`members`). There is a limit for the entries of each member, and one for all entries. A member
//! over its own limit loses its entries of the image that it has not reported for the longest time: entries that others
//! have reported as well pass to the *commons*, which no member owns, and the others are removed. If the tracker is
//! full, the owner with the most entries (a member, or the commons) loses some. So the reports of one member never
//! remove entries that only another member has reported, as long as that one owns less than the first.

use crate::PeerKey;
pub use headstart_block::exchange::{Hint, ImageCounts, ImageKey, SliceAccess};
use members::{COMMONS, Charges, Measure, Members};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tree::Tree;

mod members;
#[cfg(test)]
mod tests;
mod tree;

/// The largest number of accesses in one report; a tracker ignores those beyond it.
pub const REPORT_MAX: usize = 4096;

/// The minimum number of an image's disks that must have read a slice before the tracker sends a hint of it
/// to agents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// A share of the image's disks, from 0 to 1, rounded up to whole disks, and at least one disk.
    Share(f64),
    /// A number of disks, at least one.
    Disks(u32),
}

impl Threshold {
    /// The minimum number of disks for an image of which `disks` disks are counted; at least 1.
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

/// Settings of a tracker: the host that counts which slices (64 KiB of a disk) the disks of an image read
/// while they boot. A *member* is a host that reports reads; a limit "of one member" holds for the entries
/// that this host was the first to report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrackerSettings {
    /// The minimum number of disks that must have read a slice before agents get a hint of it.
    pub threshold: Threshold,
    /// Limit of the images that are counted, over all members.
    pub images_max: usize,
    /// Limit of the images of one member.
    pub images_member_max: usize,
    /// Limit of the slices that are counted for each image; 64 Ki slices are 4 GiB of a disk.
    pub slices_max: usize,
    /// Limit of the nodes in the segment trees of all images. A node takes 45 bytes of memory. A slice takes
    /// two nodes if its neighbours are read as well, and at most 28 on a disk of 8 TiB if not.
    pub nodes_max: usize,
    /// Limit of the tree nodes of one member.
    pub nodes_member_max: usize,
    /// Limit of the hints in one answer.
    pub hints_max: usize,
}

impl Default for TrackerSettings {
    fn default() -> Self {
        Self {
            threshold: Threshold::Share(0.1),
            images_max: 1024,
            images_member_max: 256,
            slices_max: 1 << 16,
            nodes_max: 1 << 21,
            nodes_member_max: 1 << 18,
            hints_max: 1024,
        }
    }
}

/// An agent's report to a tracker: the first reads of its disks of one image since its last report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintReport {
    /// The image that the report is about.
    pub image: ImageKey,
    /// The number of disks of the image that were created on the agent's host since its last report.
    pub joined: u32,
    /// The slices that disks read for the first time; those beyond [`REPORT_MAX`] are ignored.
    pub accesses: Vec<SliceAccess>,
    /// The epoch of the last answer that the agent received; 0 if there was none. It identifies the tracker
    /// and its run.
    pub epoch: u64,
    /// The version of the last answer that the agent received, 0 if there was none. A tracker of the same
    /// epoch omits the hints that it sent up to that version.
    pub version: u64,
}

/// A tracker's answer to a [`HintReport`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintAnswer {
    /// The image of the report.
    pub image: ImageKey,
    /// The epoch of the tracker: a number that identifies it and its run since the last restart.
    pub epoch: u64,
    /// The version that the agent's hints have reached with this answer. The agent's next report repeats it.
    pub version: u64,
    /// The number of disks of the image that the tracker has counted; 0 if it does not know the image.
    pub disks: u32,
    /// The hints that are new or changed since the version in the report; at most [`TrackerSettings::hints_max`], the
    /// rest with the next answer.
    pub hints: Vec<Hint>,
}

/// A tracker: counts which slices the disks of each image read while they boot, and answers reports with
/// hints.
#[derive(Clone, Debug)]
pub struct Tracker {
    settings: TrackerSettings,
    epoch: u64,
    images: BTreeMap<ImageKey, Image>,
    members: Members,
    /// The number of reports, to tell which image was silent for longest.
    clock: u64,
}

#[derive(Clone, Debug, Default)]
struct Image {
    disks: u32,
    tree: Tree,
    version: u64,
    last_report: u64,
    /// The slot of the member that reported it first.
    owner: u32,
    /// `true` if another member has reported it as well.
    is_shared: bool,
}

/// The number of disks of an image beyond which all count half.
const DISKS_MAX: u32 = 1 << 14;

impl Tracker {
    /// Creates a tracker without counts. `epoch` must be different for every tracker and for every restart of
    /// it.
    #[must_use]
    pub fn new(epoch: u64, settings: TrackerSettings) -> Self {
        Self { settings, epoch, images: BTreeMap::new(), members: Members::default(), clock: 0 }
    }

    /// Counts the reads in a report of the agent on host `member`, and returns the hints that are new to that agent.
    /// The caller must have checked that this agent may read the image: otherwise hints about the image leak to it.
    pub fn report(&mut self, member: PeerKey, report: &HintReport) -> HintAnswer {
        self.clock += 1;
        let (key, slot) = (report.image, self.members.slot(member));
        self.join(slot, key, report.joined);
        for access in report.accesses.iter().take(REPORT_MAX) {
            self.read(slot, key, *access);
        }
        let answer = self.answer(report);
        self.make_room(Some(key));
        self.members.close_empty();
        answer
    }

    /// Counts new disks of an image for the member in `slot`, which may be the first to name the image.
    fn join(&mut self, slot: u32, key: ImageKey, joined: u32) {
        if !self.images.contains_key(&key) {
            while self.members.held(slot, Measure::Images) >= self.settings.images_member_max.max(1) {
                let Some(oldest) = self.members.oldest_owned(slot) else { break };
                self.give_up(slot, oldest);
            }
            self.images.insert(key, Image { owner: slot, ..Image::default() });
            self.members.reassign(key, Some(slot), &BTreeMap::new(), self.clock);
        }
        self.members.on_report(slot, key, self.clock);
        let Some(image) = self.images.get_mut(&key) else { return };
        image.last_report = self.clock;
        image.is_shared |= image.owner != slot;
        if let Some(charges) = image.join(joined) {
            self.members.reassign(key, Some(image.owner), &charges, self.clock);
        }
    }

    /// Counts a slice that the member in `slot` has read, unless there is no room for it.
    fn read(&mut self, slot: u32, key: ImageKey, access: SliceAccess) {
        let Some(image) = self.images.get(&key) else { return };
        let made = image.tree.missing(access.slice);
        if made > 0 {
            let nodes_max = self.settings.nodes_member_max;
            if image.tree.len() >= self.settings.slices_max {
                return;
            }
            while self.members.held(slot, Measure::Weight) + made > nodes_max {
                // The image of this report does not give way to itself.
                let Some(oldest) = self.members.oldest(slot, Some(key)) else { return };
                self.give_up(slot, oldest);
            }
            self.members.charge(slot, key, made, self.clock);
        }
        if let Some(image) = self.images.get_mut(&key) {
            image.read(access, self.settings.threshold.of(image.disks), slot);
        }
    }

    /// The hints that are new to the agent that reported.
    fn answer(&self, report: &HintReport) -> HintAnswer {
        let (epoch, mut hints) = (self.epoch, Vec::new());
        let Some(image) = self.images.get(&report.image) else {
            return HintAnswer { image: report.image, epoch, version: 0, disks: 0, hints: Vec::new() };
        };
        let threshold = self.settings.threshold.of(image.disks);
        let since = if report.epoch == self.epoch { report.version } else { 0 };
        image.tree.hints_since(threshold, since, &mut hints);
        hints.sort_unstable_by_key(|(told, hint)| (*told, hint.slice));
        let left_out = hints.len() > self.settings.hints_max;
        hints.truncate(self.settings.hints_max);
        let version = match hints.last() {
            Some((told, _)) if left_out => *told,
            _ => image.version,
        };
        let hints = hints.into_iter().map(|(_, hint)| hint).collect();
        HintAnswer { image: report.image, epoch, version, disks: image.disks, hints }
    }

    /// Keeps all limits, at the cost of the member that holds most. The image of the last report goes last.
    fn make_room(&mut self, reported: Option<ImageKey>) {
        for (measure, most) in
            [(Measure::Images, self.settings.images_max.max(1)), (Measure::Weight, self.settings.nodes_max)]
        {
            while self.members.held_by_all(measure) > most {
                let largest = self.members.largest(measure);
                let oldest = match measure {
                    Measure::Images => self.members.oldest_owned(largest),
                    Measure::Weight => self.members.oldest(largest, reported),
                };
                let Some(oldest) = oldest.or_else(|| self.members.oldest(largest, None)) else { break };
                self.give_up(largest, oldest);
            }
        }
    }

    /// Makes the member in `slot` give up what it owns of an image.
    fn give_up(&mut self, slot: u32, key: ImageKey) {
        let Some(image) = self.images.get_mut(&key) else { return };
        let charges = image.tree.give_up(slot);
        if image.owner == slot {
            let heir = charges.keys().next().copied();
            let commons = (slot != COMMONS && image.is_shared).then_some(COMMONS);
            match commons.or(heir) {
                Some(owner) => image.owner = owner,
                None => {
                    self.images.remove(&key);
                    self.members.reassign(key, None, &charges, self.clock);
                    return;
                }
            }
        }
        let (owner, last_report) = (image.owner, image.last_report);
        self.members.reassign(key, Some(owner), &charges, last_report);
    }

    /// The counts of an image. `None` if the tracker has none: no host has reported the image, or its counts were
    /// removed to make room.
    #[must_use]
    pub fn counts(&self, image: ImageKey) -> Option<ImageCounts> {
        let record = self.images.get(&image)?;
        Some(ImageCounts { image, disks: record.disks, slices: record.tree.slices() })
    }

    /// The images for which the tracker has counts.
    pub fn images(&self) -> impl Iterator<Item = ImageKey> {
        self.images.keys().copied()
    }

    /// Sets the counts of an image to those saved before a restart. Existing counts of the image are
    /// replaced.
    pub fn load(&mut self, counts: &ImageCounts) {
        self.clock += 1;
        let disks = counts.disks.min(DISKS_MAX);
        let mut image =
            Image { disks, last_report: self.clock, owner: COMMONS, is_shared: true, ..Image::default() };
        let threshold = self.settings.threshold.of(image.disks);
        let mut slices: Vec<_> = counts.slices.iter().take(self.settings.slices_max).copied().collect();
        // Told in the order in which boots want them, in case an answer has no room for all.
        slices.sort_unstable_by_key(|hint| (hint.mean_ms, hint.slice));
        for hint in slices {
            let disks = hint.disks.min(DISKS_MAX);
            let told = if disks >= threshold { image.next_version() } else { 0 };
            image.tree.set(Hint { disks, ..hint }, told);
        }
        let charges = BTreeMap::from([(COMMONS, image.tree.nodes())]);
        self.images.insert(counts.image, image);
        self.members.reassign(counts.image, Some(COMMONS), &charges, self.clock);
        self.make_room(None);
        self.members.close_empty();
    }
}

impl Image {
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Counts disks; returns what each slot answers for, if that has changed.
    fn join(&mut self, disks: u32) -> Option<Charges> {
        self.disks = self.disks.saturating_add(disks.min(DISKS_MAX));
        let mut charges = None;
        while self.disks > DISKS_MAX {
            self.disks /= 2;
            charges = Some(self.tree.halve());
        }
        charges
    }

    fn read(&mut self, access: SliceAccess, threshold: u32, slot: u32) {
        let told = self.version + 1;
        if self.tree.read(access, threshold, told, slot) {
            self.version = told;
        }
    }
}
