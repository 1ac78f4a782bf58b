//! An agent's side of hints, for one image: gathers the first reads of its disks for reports to a tracker, and makes a
//! plan for the disks from the tracker's answers.
//!
//! A *first read* is the first read of a slice by a disk. The first reads of all disks of the image on this host are
//! gathered and reported at intervals, at most 4096 in a report. Reports are also sent, less often, while a disk boots
//! and there is nothing to report: such a disk has time to preload, and so most use for hints. Reports and answers may
//! be lost: the counts are statistics, and the tracker repeats the hints of a lost answer, because each report says
//! which version of the tracker's counts the agent knows.
//!
//! The plan begins with the slices that most disks read; among slices with equal counts, those that are read earliest
//! come first. The agent's copy of the counts lags by up to a factor of two, so counts between two powers of two are
//! taken as equal; otherwise chance would decide the order of a boot in which all disks read the same slices. Only
//! disks without a plan of their own follow this plan. Reads of the guest have priority over it.

use crate::Time;
use crate::tracker::{
    Hint, HintAnswer, HintReport, ImageCounts, ImageKey, REPORT_MAX, SliceAccess, Threshold,
};
use headstart_block::{BLOCK_SIZE, Plan, PlanItem, SLICE_SIZE, saturating};
use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The number of slices in a disk's block: a plan's mask has a bit for each.
const SLICES: u32 = u32::BITS;
const _: () = assert!(BLOCK_SIZE / SLICE_SIZE == SLICES as u64);
/// The distance in a plan, in items, over which a slice joins an earlier item of the same block.
const NEAR: usize = 8;
/// The factor by which reports are rarer when nothing was read.
const IDLE: u32 = 4;
/// The number of slices whose hints are kept: 4 GiB.
const SLICES_MAX: usize = 1 << 16;

/// One host's state for one image: the first reads of its disks that the next report to the tracker will contain, and
/// the hints in the tracker's answers so far. A hint names a slice (64 KiB of a disk) that many disks of the image read
/// while they boot.
#[derive(Clone, Debug)]
pub struct Hints {
    image: ImageKey,
    every: Duration,
    /// The number of disks that boot.
    booting: u32,
    joined: u32,
    accesses: Vec<SliceAccess>,
    reported: Option<Time>,
    epoch: u64,
    version: u64,
    disks: u32,
    slices: BTreeMap<u32, SliceHint>,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct SliceHint {
    disks: u32,
    mean_ms: u32,
}

/// Counts that show how useful the hints were so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Slices that disks of this host have read for the first time; each disk counts on its own.
    pub reads: u64,
    /// First reads (see `reads`) of slices that a hint had named before the read.
    pub foreseen: u64,
    /// Hints received from trackers. A slice counts again each time that an answer repeats it.
    pub hints: u64,
    /// First reads (see `reads`) that no report contains, because the next report was full.
    pub dropped: u64,
}

impl Hints {
    /// Creates the state for `image`, without reads or hints. Reports are at least `every` apart, and four
    /// times as far apart while a disk boots and there are no new reads to report.
    #[must_use]
    pub fn new(image: ImageKey, every: Duration) -> Self {
        Self {
            image,
            every,
            booting: 0,
            joined: 0,
            accesses: Vec::new(),
            reported: None,
            epoch: 0,
            version: 0,
            disks: 0,
            slices: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// Records a new disk of this image on this host: it starts to boot, and the next report counts it.
    pub fn joined(&mut self) {
        self.joined = self.joined.saturating_add(1);
        self.booting = self.booting.saturating_add(1);
    }

    /// Records a disk that starts to boot and that the tracker has already counted, such as one that this
    /// host's agent finds after a restart. No report counts it again.
    pub fn rejoined(&mut self) {
        self.booting = self.booting.saturating_add(1);
    }

    /// Records that a disk has finished its boot or was removed. When no disk boots any more, reports are
    /// sent only for disks and reads that are not reported yet.
    pub fn booted(&mut self) {
        self.booting = self.booting.saturating_sub(1);
    }

    /// Records that a disk has read `slice` (its number on the disk) for the first time, `at` after the disk was
    /// created. The next report contains the read, unless it has `REPORT_MAX` (4096) reads already.
    pub fn read(&mut self, slice: u32, at: Duration) {
        self.tally.reads += 1;
        self.tally.foreseen += u64::from(self.slices.contains_key(&slice));
        if self.accesses.len() >= REPORT_MAX {
            self.tally.dropped += 1;
            return;
        }
        self.accesses.push(SliceAccess { slice, at_ms: saturating(at.as_millis()) });
    }

    /// The time from which [`report`](Self::report) returns a report. `None` if no disk boots and nothing is
    /// left to report.
    #[must_use]
    pub fn due(&self) -> Option<Time> {
        let soon = self.joined > 0 || !self.accesses.is_empty();
        let wait = match (soon, self.booting) {
            (true, _) => self.every,
            (false, 1..) => self.every * IDLE,
            (false, 0) => return None,
        };
        Some(self.reported.map_or(Time(0), |reported| reported + wait))
    }

    /// Returns the report to be sent to the tracker, and removes its reads from this state. `None` if no
    /// report is [due](Self::due) at `now`.
    pub fn report(&mut self, now: Time) -> Option<HintReport> {
        if self.due()? > now {
            return None;
        }
        self.reported = Some(now);
        Some(HintReport {
            image: self.image,
            joined: std::mem::take(&mut self.joined),
            accesses: std::mem::take(&mut self.accesses),
            epoch: self.epoch,
            version: self.version,
        })
    }

    /// Records the hints of a tracker's answer. Returns `true` if they change the [plan](Self::plan). An answer about
    /// another image, or one whose version is below that of the last answer of the same epoch, is ignored. Hints of at
    /// most 65,536 different slices are kept; hints of further slices are only counted.
    pub fn on_answer(&mut self, answer: &HintAnswer) -> bool {
        if answer.image != self.image || (answer.epoch == self.epoch && answer.version < self.version) {
            return false;
        }
        if answer.epoch != self.epoch {
            // Another tracker, which counts for itself, or another life of this one. The hints heard so far stay until
            // it says otherwise: they were true.
            self.epoch = answer.epoch;
        }
        (self.version, self.disks) = (answer.version, answer.disks);
        self.tally.hints += answer.hints.len() as u64;
        let mut new = false;
        for Hint { slice, disks, mean_ms } in &answer.hints {
            if self.slices.len() < SLICES_MAX || self.slices.contains_key(slice) {
                let hint = SliceHint { disks: *disks, mean_ms: *mean_ms };
                let before = self.slices.insert(*slice, hint);
                new |= before.is_none_or(|before| before.rank() != hint.rank());
            }
        }
        new
    }

    /// The order in which a disk should preload the slices that hints have named: first those that most disks
    /// read (counts between two powers of two are equal), and of those the earliest read first. The plan may
    /// contain slices that are already local; the disk skips them. Without hints the result is [`Plan::Lazy`].
    #[must_use]
    pub fn plan(&self) -> Plan {
        in_order(self.slices.iter().map(|(slice, hint)| (hint.rank(), *slice)).collect())
    }

    /// The image that these hints are about.
    #[must_use]
    pub fn image(&self) -> ImageKey {
        self.image
    }

    /// The number of disks of the image that the tracker had counted when it last answered; 0 before the
    /// first answer.
    #[must_use]
    pub fn disks(&self) -> u32 {
        self.disks
    }

    /// Counts of the reads and hints so far, which show how useful the hints were.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

/// The preload plan that follows from all of a tracker's counts of an image: the plan of an agent that has received
/// every hint. Slices that fewer disks have read than `threshold` demands are left out; [`Plan::Lazy`] if no slice is
/// left. Meant for programs that make plans from recorded boots.
#[must_use]
pub fn plan_of(counts: &ImageCounts, threshold: Threshold) -> Plan {
    let least = threshold.of(counts.disks);
    let read = counts.slices.iter().filter(|hint| hint.disks >= least);
    let rank = |hint: &Hint| SliceHint { disks: hint.disks, mean_ms: hint.mean_ms }.rank();
    in_order(read.map(|hint| (rank(hint), hint.slice)).collect())
}

/// Makes a plan of slices by rank; a slice whose block was named a few items before joins that item.
fn in_order(mut slices: Vec<((u32, u32), u32)>) -> Plan {
    if slices.is_empty() {
        return Plan::Lazy;
    }
    slices.sort_unstable();
    let mut items: Vec<PlanItem> = Vec::new();
    for (_, slice) in slices {
        let (block, bit) = (u64::from(slice / SLICES), 1 << (slice % SLICES));
        let near = items.len().saturating_sub(NEAR);
        match items[near..].iter_mut().rev().find(|item| item.block == block) {
            Some(item) => item.mask |= bit,
            None => items.push(PlanItem { block, mask: bit }),
        }
    }
    Plan::List(items.into())
}

impl SliceHint {
    /// The sort key, of which the least goes first: the power of two of the number of disks, descending, then the mean
    /// time.
    fn rank(self) -> (u32, u32) {
        (self.disks.leading_zeros(), self.mean_ms)
    }
}
