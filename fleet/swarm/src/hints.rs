//! An agent's side of hints: what its disks of an image read, to be reported, and what a tracker said, as a plan.
//!
//! The first reads of all disks of the host are gathered and reported every now and then; while a disk boots and
//! reads nothing, in the idle periods in which it has most use for hints, a report goes out as well, only less
//! often. Reports and answers may be lost: what is counted is statistics, and what was not heard is told again,
//! because the next report says what is known.
//!
//! The plan begins with what most disks read, and among these with what they read first. The copy of the counts
//! lags by up to a factor of two, so that counts between two powers of two are as good as equal; else chance would
//! decide the order of a boot of which all disks read all. A disk that has a plan of its own does not need this
//! one; one that has none follows it, and its engine sees to it that demand reads go first, at once.

use crate::Time;
use crate::tracker::{Access, Answer, Counts, Hint, ImageKey, REPORT_MAX, Report, Threshold};
use headstart_block::{BLOCK_SIZE, Plan, PlanItem, SLICE_SIZE};
use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// Slices of a disk's block: a plan's mask has a bit for each.
const SLICES: u32 = u32::BITS;
const _: () = assert!(BLOCK_SIZE / SLICE_SIZE == SLICES as u64);
/// How far back in a plan a slice of the same block is put, in items.
const NEAR: usize = 8;
/// How much less often is asked when nothing was read.
const IDLE: u32 = 4;
/// Slices of which hints are kept: 4 GiB.
const KNOWN_MAX: usize = 1 << 16;

/// What is gathered for reports, and what was heard, of one image on one host.
#[derive(Clone, Debug)]
pub struct Hints {
    image: ImageKey,
    every: Duration,
    /// Disks that boot.
    booting: u32,
    joined: u32,
    accesses: Vec<Access>,
    reported: Option<Time>,
    epoch: u64,
    version: u64,
    disks: u32,
    known: BTreeMap<u32, Known>,
    tally: Tally,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    disks: u32,
    mean_ms: u32,
}

/// What hints were worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// First reads of slices.
    pub reads: u64,
    /// Of these, those that a hint had named before.
    pub foreseen: u64,
    /// Hints heard; one slice may be several.
    pub hints: u64,
    /// First reads that were not reported because they were too many.
    pub dropped: u64,
}

impl Hints {
    /// Of an image, reported at most every so often.
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
            known: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// A disk of this image was created on this host.
    pub fn joined(&mut self) {
        self.joined = self.joined.saturating_add(1);
        self.booting = self.booting.saturating_add(1);
    }

    /// A disk that was counted before is back: whoever gathers has begun anew meanwhile.
    pub fn rejoined(&mut self) {
        self.booting = self.booting.saturating_add(1);
    }

    /// It has booted, or is gone: nothing is asked on its behalf any more.
    pub fn booted(&mut self) {
        self.booting = self.booting.saturating_sub(1);
    }

    /// A disk has read `slice` for the first time, so long after its creation.
    pub fn read(&mut self, slice: u32, at: Duration) {
        self.tally.reads += 1;
        self.tally.foreseen += u64::from(self.known.contains_key(&slice));
        if self.accesses.len() >= REPORT_MAX {
            self.tally.dropped += 1;
            return;
        }
        self.accesses.push(Access { slice, at_ms: u32::try_from(at.as_millis()).unwrap_or(u32::MAX) });
    }

    /// When the next report is due; `None` as long as nothing happens.
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

    /// The report, if it is due: to be sent to the tracker. It is not given again.
    pub fn report(&mut self, now: Time) -> Option<Report> {
        if self.due()? > now {
            return None;
        }
        self.reported = Some(now);
        Some(Report {
            image: self.image,
            joined: std::mem::take(&mut self.joined),
            accesses: std::mem::take(&mut self.accesses),
            epoch: self.epoch,
            version: self.version,
        })
    }

    /// A tracker's answer: whether it says anything new.
    pub fn heard(&mut self, answer: &Answer) -> bool {
        if answer.image != self.image || (answer.epoch == self.epoch && answer.version < self.version) {
            return false;
        }
        if answer.epoch != self.epoch {
            // Another tracker, which counts for itself, or another life of this one. What is known stays until it
            // says otherwise: it was true.
            self.epoch = answer.epoch;
        }
        (self.version, self.disks) = (answer.version, answer.disks);
        self.tally.hints += answer.hints.len() as u64;
        let mut new = false;
        for Hint { slice, disks, mean_ms } in &answer.hints {
            if self.known.len() < KNOWN_MAX || self.known.contains_key(slice) {
                let known = Known { disks: *disks, mean_ms: *mean_ms };
                let before = self.known.insert(*slice, known);
                new |= before.is_none_or(|before| before.rank() != known.rank());
            }
        }
        new
    }

    /// The plan for a disk: all slices of which a hint was heard, those that most disks read first, and of those the
    /// earliest read first. What is local is for the disk's engine to skip.
    #[must_use]
    pub fn plan(&self) -> Plan {
        in_order(self.known.iter().map(|(slice, known)| (known.rank(), *slice)).collect())
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> ImageKey {
        self.image
    }

    /// How many disks of the image the tracker has counted, as far as was heard.
    #[must_use]
    pub fn disks(&self) -> u32 {
        self.disks
    }

    /// What hints were worth.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

/// The plan that a tracker's counts of an image make, the same as an agent's that has heard all of it: for what
/// learns from boots.
#[must_use]
pub fn plan_of(counts: &Counts, threshold: Threshold) -> Plan {
    let least = threshold.of(counts.disks);
    let read = counts.slices.iter().filter(|hint| hint.disks >= least);
    let rank = |hint: &Hint| Known { disks: hint.disks, mean_ms: hint.mean_ms }.rank();
    in_order(read.map(|hint| (rank(hint), hint.slice)).collect())
}

/// Slices by rank; one whose block was named a few items before joins it there.
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

impl Known {
    /// The least goes first: the power of two of how many read it, backwards; then when.
    fn rank(self) -> (u32, u32) {
        (self.disks.leading_zeros(), self.mean_ms)
    }
}
