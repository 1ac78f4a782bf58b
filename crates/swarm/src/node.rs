//! The node: one owner of all state, moved by events.

use crate::counters::Counters;
use crate::event::{Action, Event, PeerKey, Role};
use crate::settings::Settings;
use crate::{Chunks, Time};

/// The state machine of one host.
#[derive(Debug)]
pub struct Node {
    key: PeerKey,
    role: Role,
    settings: Settings,
    counters: Counters,
}

impl Node {
    /// A host that knows nobody yet and takes part in no blob.
    #[must_use]
    pub fn new(key: PeerKey, role: Role, settings: Settings) -> Self {
        Self { key, role, settings, counters: Counters::default() }
    }

    /// Takes note of `event`, which happened at `now`, and appends to `actions` what is to be done, in order.
    pub fn on_event(&mut self, _now: Time, event: Event<'_>, actions: &mut Vec<Action>) {
        if let Event::Want { want, chunks, .. } = event {
            let elsewhere: Vec<Chunks> = vec![chunks];
            actions.push(Action::Answer { want, elsewhere });
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Its name everywhere.
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.key
    }

    /// What it is to the others.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// How it is set.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
