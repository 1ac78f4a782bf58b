//! The node beside the one that it replaces: both take the same events, and their actions must be the same.
//!
//! Tests use it in place of the node. With `HEADSTART_COMPARED` set to a file, each node appends the number of events
//! and of actions that were compared.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::panic,
    clippy::expect_used,
    reason = "of tests, and deleted with the old node"
)]

use crate::event::{Action, Event, PeerId, PeerKey, Role};
use crate::recent::Recent;
use crate::settings::Settings;
use crate::{Counters, Time, node, reference};
use std::io::Write;
use std::ops::Deref;

/// A node that is compared with its reference after every event.
#[derive(Debug)]
pub struct Node {
    node: node::Node,
    reference: reference::node::Node,
    events: u64,
    actions: u64,
}

impl Node {
    /// Creates both.
    #[must_use]
    pub fn new(key: PeerKey, role: Role, settings: Settings) -> Self {
        let reference = reference::node::Node::new(key, role, settings.clone());
        Self { node: node::Node::new(key, role, settings), reference, events: 0, actions: 0 }
    }

    /// Tells both an event.
    ///
    /// # Panics
    ///
    /// If they do not do the same.
    pub fn on_event(&mut self, now: Time, event: Event<'_>, actions: &mut Vec<Action>) {
        let (mut expected, before) = (Vec::new(), actions.len());
        let shown = format!("{event:?}");
        self.reference.on_event(now, event.clone(), &mut expected);
        self.node.on_event(now, event, actions);
        self.events += 1;
        self.actions += expected.len() as u64;
        assert_eq!(actions[before..], expected, "after {} events, at {now:?}: {shown}", self.events);
        assert_eq!(self.node.counters(), self.reference.counters(), "at {now:?}: {shown}");
        assert_eq!(self.node.root(), self.reference.root(), "at {now:?}: {shown}");
        assert_eq!(self.node.unmatched(), self.reference.unmatched(), "at {now:?}: {shown}");
    }

    /// The host's name on all hosts.
    #[must_use]
    pub fn key(&self) -> PeerKey {
        self.node.key()
    }

    /// The host's role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.node.role()
    }

    /// The host's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        self.node.settings()
    }

    /// The counts of its work so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.node.counters()
    }

    /// The root of which this host is an agent.
    #[must_use]
    pub fn root(&self) -> Option<PeerId> {
        self.node.root()
    }

    /// Bytes that were prefetched and not read yet, and not forgiven.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        self.node.unmatched()
    }

    /// The recent requests of agents.
    #[must_use]
    pub fn recent(&self) -> &Recent {
        assert_eq!(self.node.recent().save(), self.reference.recent().save());
        self.node.recent()
    }

    /// Sets the recent requests of both.
    pub fn set_recent(&mut self, recent: Recent) {
        self.reference.set_recent(recent.clone());
        self.node.set_recent(recent);
    }
}

impl Deref for Node {
    type Target = node::Node;

    fn deref(&self) -> &node::Node {
        &self.node
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(path) = std::env::var("HEADSTART_COMPARED") {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("a file");
            let line = format!("{} {}\n", self.events, self.actions);
            file.write_all(line.as_bytes()).expect("written");
        }
    }
}
