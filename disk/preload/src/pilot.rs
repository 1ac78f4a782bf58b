//! The pilot: the control of one boot's preloading, from the disk's creation to the boot's end. The code of a disk
//! calls it, and so does the simulator.
//!
//! The pilot changes plans as the [switcher](crate::switcher) says, counts the slices that were preloaded and those
//! that were read, and stops preloading that does harm.
//!
//! # Harm
//!
//! Preloading slows down misses: a miss may have to wait for preloaded bytes on the link, and so take twice as long at
//! worst. That is worth it only if the boot reads the preloaded slices. So a minimum share of the preloaded items must
//! be read; this share is the *accuracy*. Only items that the boot should have read by now count, because a plan is
//! preloaded as fast as the link allows, while the guest reads at its own pace, and does not read at all in the grace
//! period (the time before its first read).
//!
//! An item of the plan is *due* when all of this is true:
//!
//! * It was preloaded, or is on its way.
//! * The boot has read in a third more blocks than the plan has items up to it. Time says little here: a guest may be
//!   slow, pause, or wait for a slow link; but boots of an image read its blocks in much the same order, and the
//!   third leaves room for those that do not. Order is compared by blocks, not by slices, because a boot reads some of
//!   a block's planned slices at once and others much later.
//! * Recorded boots had read that block by now, or one that comes later in the plan. For this, the guest is taken to be
//!   [`FASTER`] times as fast as the recorded ones, or even faster if the blocks that it has read show that.
//!
//! Measured on 20 boots of ten images (boots from which no plan was made), a boot reads all due items of its image's
//! plan, from the first item to the last. Of a plan with a third of blocks that the boot leaves out, it reads 60 to 70%
//! of the due items; of the plan of an image with another system, 10 to 50% (all boots read low block numbers); of a
//! plan of blocks that no boot reads, none.
//!
//! Preloading is stopped, once and for ever, in each of these cases:
//!
//! * At least [`DUE_MIN`] items are due, and none of them was read.
//! * At least one and a half times as many items are due, and a smaller share of them than [`FLOOR`] was read.
//! * The plan names too few of the slices that the boot reads: less than a sixteenth of them once [`READ_MIN`] slices
//!   were read, less than a tenth once `2 * READ_MIN` were, less than a quarter once `8 * READ_MIN` were.
//!
//! Before it stops, the pilot looks for another group whose plan passes these tests and of whose due items at least
//! half were read. If there is one, the pilot follows that group's plan instead. A plan that was preloaded to its end
//! is not judged, because there is nothing to stop; nor is a plan of which nothing was preloaded yet.

use crate::{Switcher, Switches};
use account::Account;
use guard::Guard;
use headstart_block::{Plan, Time};
use headstart_plan::ImagePlans;
use headstart_pull::Preloading;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

mod account;
mod guard;

pub use guard::{DUE_MIN, FASTER, FLOOR, READ_MIN};

/// The final stop of preloading for a boot: its time and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The time at which preloading stopped.
    pub at: Time,
    /// The reason for the stop.
    pub why: StopReason,
}

/// The reason for which a plan is judged harmful to the boot that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The boot does not read the blocks that are preloaded for it.
    Useless {
        /// The number of preloaded items that should have been read when preloading was stopped.
        due: u64,
        /// The number of those items in whose block the boot had read.
        read: u64,
    },
    /// The plan does not name the slices (64 KiB) that the boot reads.
    Strange {
        /// The number of slices that the boot had read when preloading was stopped.
        read: u64,
        /// The number of those slices that the plan names.
        named: u64,
    },
}

/// The results of preloading so far. Byte counts are of the disk's slices (64 KiB each) that the plans name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PilotReport {
    /// Bytes of slices that were preloaded, are being fetched or next to be fetched, or were local already when the
    /// plan reached them.
    pub preloaded: u64,
    /// Bytes of preloaded slices that the guest has read, before or after they were preloaded.
    pub used: u64,
    /// Bytes of preloaded items of the current plan that the guest should have read by now, judged by its
    /// progress.
    pub due: u64,
    /// Bytes of those due items of the current plan in whose block the guest has read.
    pub due_used: u64,
    /// The numbers of switches between plans.
    pub switches: Switches,
    /// The final stop of preloading; `None` if it was not stopped.
    pub stopped: Option<Stopped>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            StopReason::Useless { due, read } => {
                write!(f, "of {due} preloaded blocks that should have been read by now {read} were")
            }
            StopReason::Strange { read, named } => {
                write!(f, "of the first {read} slices that were read the plan names {named}")
            }
        }
    }
}

/// The control of a boot's preloading: chooses the plan to follow, switches it as the boot and the link show,
/// and stops preloading that does harm.
#[derive(Clone, Debug)]
pub struct Pilot {
    switcher: Switcher,
    account: Account,
    guard: Guard,
    /// Groups whose plans did not pass.
    refused: BTreeSet<usize>,
    stopped: Option<Stopped>,
}

impl Pilot {
    /// Creates the pilot of a disk that is just being created. `bandwidth` is the expected bandwidth of its
    /// link in bytes a second; `None` if it is unknown.
    #[must_use]
    pub fn new(plans: Arc<ImagePlans>, bandwidth: Option<u64>) -> Self {
        let switcher = Switcher::new(plans, bandwidth);
        let guard = Guard::of(&switcher, switcher.group(), &Account::default());
        Self { switcher, account: Account::default(), guard, refused: BTreeSet::new(), stopped: None }
    }

    /// The plan to preload now; [`Plan::Lazy`] if there is none or preloading was stopped.
    #[must_use]
    pub fn plan(&self) -> Plan {
        if self.stopped.is_some() { Plan::Lazy } else { self.switcher.plan() }
    }

    /// Records a read at `now` that touched `slices` of the block (2 MiB) with number `block`: bit `i` stands for slice
    /// `i`, 64 KiB each. All reads must be reported, local or not. Returns the plan to preload from now on if it
    /// changes, otherwise `None`.
    pub fn on_access(&mut self, now: Time, block: u64, slices: u32) -> Option<Plan> {
        let new = self.account.read(now, block, slices);
        if new != 0 {
            self.guard.read(block, new);
        }
        let plan = self.switcher.on_access(block);
        self.changed(plan)
    }

    /// Judges the plan by the pull engine's report `preloading`. Must be called from time to time, and whenever fetches
    /// have ended. Returns the plan to preload from now on if it changes, otherwise `None`; [`Plan::Lazy`] stops
    /// preloading.
    pub fn on_tick(&mut self, now: Time, preloading: &Preloading) -> Option<Plan> {
        self.guard.preloaded(preloading, &mut self.account);
        let estimate = preloading.estimate.bandwidth;
        let plan = estimate.and_then(|bandwidth| self.switcher.on_estimate(now, bandwidth));
        let plan = self.changed(plan);
        if self.stopped.is_some() {
            return plan;
        }
        let Some(why) = self.guard.objection(now, &self.account) else { return plan };
        self.refused.insert(self.switcher.group());
        let other = self.other_group(now);
        let plan = other.map(|group| self.switcher.take(group));
        if plan.is_none() {
            self.stopped = Some(Stopped { at: now, why });
            return Some(Plan::Lazy);
        }
        self.changed(plan)
    }

    /// Notes that the boot is the start of a container with this entrypoint. Returns the plan to preload from now on if
    /// it changes, otherwise `None`: that of the largest group of such starts, unless such a group is followed.
    pub fn on_container(&mut self, entrypoint: &str) -> Option<Plan> {
        let is_of = |group: &usize| {
            self.switcher.plan_of(*group).is_some_and(|(plans, _)| plans.entrypoint == entrypoint)
        };
        if is_of(&self.switcher.group()) || self.stopped.is_some() {
            return None;
        }
        let group = (0..self.switcher.groups()).filter(|group| !self.refused.contains(group)).find(is_of)?;
        let plan = self.switcher.take(group);
        self.changed(Some(plan))
    }

    /// Another group whose plan passes.
    fn other_group(&self, now: Time) -> Option<usize> {
        let passes = |group: &usize| {
            let guard = Guard::of(&self.switcher, *group, &self.account);
            guard.would_pass(now, &self.account)
        };
        (0..self.switcher.groups()).filter(|group| !self.refused.contains(group)).find(passes)
    }

    /// Makes the guard follow the plan. A stopped plan is not begun again, and an equal one goes on.
    fn changed(&mut self, plan: Option<Plan>) -> Option<Plan> {
        let plan = plan.filter(|plan| self.stopped.is_none() && !self.guard.follows(plan))?;
        self.guard = Guard::of(&self.switcher, self.switcher.group(), &self.account);
        Some(plan)
    }

    /// The results of preloading so far.
    #[must_use]
    pub fn report(&self) -> PilotReport {
        let (due, due_used) = self.guard.due_bytes();
        PilotReport {
            preloaded: self.account.preloaded_bytes(),
            used: self.account.used_bytes(),
            due,
            due_used,
            switches: self.switcher.switches(),
            stopped: self.stopped,
        }
    }
}

#[cfg(test)]
mod tests;
