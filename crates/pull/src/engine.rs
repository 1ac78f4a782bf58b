//! The engine (being written: the interface stands).

use crate::{Action, Counters, Estimate, Event, Progress, Settings, Time, World};

/// The pull engine of one disk.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
}

impl Engine {
    /// An engine that knows nothing yet. It does nothing before its first event.
    #[must_use]
    pub fn new(settings: Settings, world: &dyn World) -> Self {
        let _ = world;
        Self { settings: settings.sane() }
    }

    /// Takes note of `event`, which happened at `now`, and appends to `actions` what is to be done.
    pub fn on_event(&mut self, now: Time, event: Event<'_>, world: &dyn World, actions: &mut Vec<Action>) {
        let _ = (now, event, world, actions, &self.settings);
    }

    /// How far the filling of the disk is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress::default()
    }

    /// What is known of the link.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        Estimate::default()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}
