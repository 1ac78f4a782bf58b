//! The pilot: what a boot preloads, from its creation to its end.

use crate::{Estimate, Plan, Switcher, Switches, Time};
use headstart_block::SLICE_SIZE;
use headstart_plan::ImagePlans;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What the engine tells of its preloading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preloading {
    /// Items of the current plan that were passed: they are here, or on their way.
    pub items: u64,
    /// What is known of the link.
    pub estimate: Estimate,
    /// Misses that went to the store themselves, since the engine was made.
    pub misses: u64,
    /// What they waited, by estimate, because preloads were on the wire before them.
    pub delay: Duration,
}

/// What has to happen before preloading is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PilotSettings {
    /// Whether harm is watched for at all.
    pub guard: bool,
    /// The least share of what is due that must have been read.
    pub floor: f64,
}

impl Default for PilotSettings {
    fn default() -> Self {
        Self { guard: true, floor: 0.2 }
    }
}

/// Why preloading was stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stopped {
    /// When.
    pub at: Time,
    /// Bytes of preloaded slices that should have been read by then.
    pub due: u64,
    /// How many of them were read.
    pub due_used: u64,
    /// The time that misses lost to preloads, by estimate.
    pub lost: Duration,
    /// The time that preloads saved reads, by estimate.
    pub saved: Duration,
}

/// What preloading did so far. Bytes are of slices of the disk that plans name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Preloaded, or local when their turn came.
    pub preloaded: u64,
    /// Of these, those that were read.
    pub used: u64,
    /// Of the preloaded, those that should have been read by now.
    pub due: u64,
    /// Of those, the ones that were read.
    pub due_used: u64,
    /// How often plans were switched.
    pub switches: Switches,
    /// Why preloading was stopped, if it was.
    pub stopped: Option<Stopped>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes / 1_000_000;
        write!(
            f,
            "of {} MB that should have been read by now {} MB were; misses lost {:.1} s to preloads, which saved {:.1} s",
            mb(self.due),
            mb(self.due_used),
            self.lost.as_secs_f64(),
            self.saved.as_secs_f64()
        )
    }
}

/// Which plan a boot follows, and whether it is worth it.
#[derive(Clone, Debug)]
pub struct Pilot {
    switcher: Switcher,
    settings: PilotSettings,
    report: Report,
}

impl Pilot {
    /// At a creation, with the bandwidth in bytes a second that is expected, if anybody knows.
    #[must_use]
    pub fn new(plans: Arc<ImagePlans>, bandwidth: Option<u64>, settings: PilotSettings) -> Self {
        Self { switcher: Switcher::new(plans, bandwidth), settings, report: Report::default() }
    }

    /// What to preload now.
    #[must_use]
    pub fn plan(&self) -> Plan {
        if self.report.stopped.is_some() { Plan::Lazy } else { self.switcher.plan() }
    }

    /// A read at `now` touched these slices of a block of the disk (bit `i` for slice `i`), for the first time or again,
    /// whether they were there or not. What to preload from now on instead, if that changes.
    pub fn on_access(&mut self, _now: Time, block: u64, slices: u32) -> Option<Plan> {
        self.report.used += u64::from(slices.count_ones()) * SLICE_SIZE;
        self.switcher.on_access(block)
    }

    /// From time to time, and whenever fetches ended: what the engine does. What to preload from now on instead, if
    /// that changes.
    pub fn on_tick(&mut self, now: Time, preloading: &Preloading) -> Option<Plan> {
        let _ = self.settings.guard;
        self.switcher.on_estimate(now, preloading.estimate.bandwidth?)
    }

    /// What preloading did so far.
    #[must_use]
    pub fn report(&self) -> Report {
        Report { switches: self.switcher.switches(), ..self.report }
    }
}
