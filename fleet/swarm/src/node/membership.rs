//! The other hosts that can be reached, and this host's root or agents.
//!
//! An agent of a fleet with roots seeks one of them:
//!
//! ```text
//!                  the next one is asked                 it accepts
//!     Unattached ────────────────────────► Asking(root) ────────────► Joined(root)
//!       ▲   ▲                                    │                        │
//!       │   └────────── it refuses, is silent, or is gone ◄───────────────┘
//!       └ all have refused: they are asked again after a while
//! ```
//!
//! A root that refuses or is silent is not asked again until all others were asked. Another root that accepts without
//! having been asked last is as good.

use super::peers::Peer;
use super::timers::Alarm;
use crate::Time;
use crate::event::{PeerId, PeerKey, Role};
use crate::placement;
use crate::settings::{NodeSettings, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time for which a root counts an agent that does not repeat that it is one.
const COUNTED: Duration = Duration::from_secs(35);

/// The number of silences in a row after which an agent asks another root.
const SILENCES: u32 = 3;

/// An agent's attachment to a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Attachment {
    /// No root is asked, and none has accepted.
    #[default]
    Unattached,
    /// The root was asked, and has not answered.
    Asking(PeerId),
    /// The root has accepted this host as its agent.
    Joined(PeerId),
}

/// The next step of an agent that seeks a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seek {
    /// Nothing is to be done.
    Nothing,
    /// The root is to be asked.
    Ask(PeerId),
    /// All roots have refused: they are to be asked again after a while.
    Wait,
}

/// The reaction to the timer of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinDue {
    /// The root is to be told that this host still is its agent.
    Renew(PeerId),
    /// A root is to be sought.
    Seek,
}

/// A root's answer to a host that would be its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The host is its agent now, and was not before.
    New,
    /// The host is its agent still.
    Renewed,
    /// The root takes no more, or this host is not a root.
    Refused,
}

/// The hosts that can be reached, and the roots and agents among them.
#[derive(Debug)]
pub(super) struct Membership {
    key: PeerKey,
    role: Role,
    /// `true` if agents have roots.
    has_roots: bool,
    agents_max: Option<u32>,
    seed: u64,
    peers: BTreeMap<PeerId, Peer>,
    keys: BTreeMap<PeerKey, PeerId>,
    /// The number of roots that can be reached, whichever agents they serve.
    roots: usize,
    attachment: Attachment,
    /// The roots that are not asked until all others were.
    refused: BTreeSet<PeerId>,
    alarm: Alarm,
    /// A root's agents, and the time at which each said last that it is one.
    agents: BTreeMap<PeerId, Time>,
}

impl Membership {
    /// The membership of a host that can reach no other host.
    pub(super) fn new(key: PeerKey, role: Role, settings: &NodeSettings) -> Self {
        Self {
            key,
            role,
            has_roots: settings.topology == Topology::Roots,
            agents_max: settings.agents_max,
            seed: settings.seed,
            peers: BTreeMap::new(),
            keys: BTreeMap::new(),
            roots: 0,
            attachment: Attachment::Unattached,
            refused: BTreeSet::new(),
            alarm: Alarm::Idle,
            agents: BTreeMap::new(),
        }
    }

    /// This host's name on all hosts.
    pub(super) fn me(&self) -> PeerKey {
        self.key
    }

    /// This host's role.
    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// `true` if this host has agents, which tell it their local chunks.
    pub(super) fn is_root(&self) -> bool {
        self.has_roots && self.role == Role::Root
    }

    /// `true` if this host is an agent that has a root, or would have one if it saw any.
    pub(super) fn seeks_root(&self) -> bool {
        self.has_roots && self.role == Role::Agent
    }

    /// `true` if this is an agent that would have a root if it saw one.
    pub(super) fn is_rootless(&self) -> bool {
        self.seeks_root() && self.roots == 0
    }

    /// `true` if this is an agent, and roots can be reached.
    pub(super) fn has_roots_in_sight(&self) -> bool {
        self.seeks_root() && self.roots > 0
    }

    /// `true` if a host of this role can fetch for others. Agents do so for each other while they see no root.
    pub(super) fn can_fetch_for_others(&self, role: Role) -> bool {
        !self.has_roots || role == Role::Root || self.is_rootless()
    }

    /// All hosts that can be reached.
    #[cfg(test)]
    pub(super) fn peers(&self) -> &BTreeMap<PeerId, Peer> {
        &self.peers
    }

    /// A host, if it can be reached.
    pub(super) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(&peer)
    }

    /// A host, to be changed, if it can be reached.
    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&peer)
    }

    /// The name of a host, if it can be reached.
    pub(super) fn key_of(&self, peer: PeerId) -> Option<PeerKey> {
        self.peers.get(&peer).map(|record| record.key)
    }

    /// A host that can be asked: it can be reached, and has not been silent lately.
    pub(super) fn usable(&self, peer: PeerId, now: Time) -> Option<&Peer> {
        self.peers.get(&peer).filter(|record| !record.is_avoided(now))
    }

    /// Adds a host that can be reached now; `true` if it is new.
    pub(super) fn add(&mut self, peer: PeerId, key: PeerKey, role: Role) -> bool {
        if key == self.key || self.peers.contains_key(&peer) {
            return false;
        }
        self.peers.insert(peer, Peer::new(key, role));
        self.keys.insert(key, peer);
        self.roots += usize::from(role == Role::Root);
        true
    }

    /// Removes a host that cannot be reached any more. Returns it, and `true` if its name means no other host by now.
    /// Its part as root or agent is ended by [`Self::detach`], and the count of roots by [`Self::root_gone`].
    pub(super) fn remove(&mut self, peer: PeerId) -> Option<(Peer, bool)> {
        let gone = self.peers.remove(&peer)?;
        let current = self.keys.get(&gone.key) == Some(&peer);
        if current {
            self.keys.remove(&gone.key);
        }
        Some((gone, current))
    }

    /// `true` if this root is the only one that can be reached.
    pub(super) fn is_first_root(&self) -> bool {
        self.roots == 1
    }

    /// Counts a root less; `true` if none is left.
    pub(super) fn root_gone(&mut self) -> bool {
        self.roots = self.roots.saturating_sub(1);
        self.roots == 0
    }

    /// Ends the part of a host that is gone; `true` if it was this host's root.
    pub(super) fn detach(&mut self, peer: PeerId) -> bool {
        self.agents.remove(&peer);
        self.refused.remove(&peer);
        let was_root = self.attachment == Attachment::Joined(peer);
        if was_root || self.attachment == Attachment::Asking(peer) {
            self.attachment = Attachment::Unattached;
        }
        was_root
    }

    /// The root of which this host is an agent.
    pub(super) fn root(&self) -> Option<PeerId> {
        match self.attachment {
            Attachment::Joined(root) => Some(root),
            Attachment::Unattached | Attachment::Asking(_) => None,
        }
    }

    /// `true` if a host is this root's agent.
    pub(super) fn has_agent(&self, peer: PeerId) -> bool {
        self.agents.contains_key(&peer)
    }

    /// This root's agents, ascending.
    pub(super) fn agents(&self) -> impl Iterator<Item = PeerId> {
        self.agents.keys().copied()
    }

    /// Notes that the timer of an agent is to be set; `true` if it was not set.
    pub(super) fn set_alarm(&mut self) -> bool {
        self.seeks_root() && self.alarm.set()
    }

    /// Notes that the timer of an agent runs. A root that was asked and is silent counts as one that refuses.
    pub(super) fn on_alarm(&mut self) -> JoinDue {
        self.alarm.ring();
        match self.attachment {
            Attachment::Joined(root) => return JoinDue::Renew(root),
            Attachment::Asking(silent) => {
                self.refused.insert(silent);
                self.attachment = Attachment::Unattached;
            }
            Attachment::Unattached => {}
        }
        JoinDue::Seek
    }

    /// Chooses the next root to ask, in an order drawn for this host.
    pub(super) fn seek(&mut self) -> Seek {
        if !self.seeks_root() || self.attachment != Attachment::Unattached {
            return Seek::Nothing;
        }
        let roots = self.peers.values().filter(|peer| peer.role == Role::Root);
        let mut roots: Vec<PeerKey> = roots.map(|peer| peer.key).collect();
        roots.sort_unstable();
        let order = placement::roots_for(self.key, &roots, self.seed);
        let mut left = order.iter().filter_map(|key| self.keys.get(key));
        match left.find(|peer| !self.refused.contains(peer)).copied() {
            Some(peer) => {
                self.attachment = Attachment::Asking(peer);
                Seek::Ask(peer)
            }
            None => {
                self.refused.clear();
                if roots.is_empty() { Seek::Nothing } else { Seek::Wait }
            }
        }
    }

    /// Notes that a root accepts this host as its agent; `true` if it had none.
    pub(super) fn on_accepted(&mut self, root: PeerId) -> bool {
        if !self.seeks_root() || self.root().is_some() {
            return false;
        }
        self.attachment = Attachment::Joined(root);
        self.refused.clear();
        true
    }

    /// Notes that a root refuses this host; `true` if another is to be sought.
    pub(super) fn on_refused(&mut self, root: PeerId) -> bool {
        if ![Attachment::Joined(root), Attachment::Asking(root)].contains(&self.attachment) {
            return false;
        }
        self.attachment = Attachment::Unattached;
        self.refused.insert(root);
        true
    }

    /// Notes that a host was silent too long: if it is this host's root, and it was not the first time, another may do
    /// better; `true` if another is to be sought.
    pub(super) fn on_silence(&mut self, peer: PeerId) -> bool {
        let often = self.peers.get(&peer).is_some_and(|record| record.silences() >= SILENCES);
        let leaves = self.attachment == Attachment::Joined(peer) && often;
        if leaves {
            self.attachment = Attachment::Unattached;
            self.refused.insert(peer);
        }
        leaves
    }

    /// Answers a host that would be this root's agent, or says that it still is.
    pub(super) fn admit(&mut self, peer: PeerId, now: Time) -> Admission {
        self.agents.retain(|_, at| now.since(*at) < COUNTED);
        let of = |role: Role| self.peers.values().filter(|peer| peer.role == role).count();
        let most = placement::agents_max(of(Role::Agent), of(Role::Root) + 1, self.agents_max);
        let is_agent = self.agents.contains_key(&peer);
        if self.role != Role::Root || !is_agent && self.agents.len() >= most {
            return Admission::Refused;
        }
        self.agents.insert(peer, now);
        if is_agent { Admission::Renewed } else { Admission::New }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(roots: u32) -> Membership {
        let settings = NodeSettings { topology: Topology::Roots, ..NodeSettings::default() };
        let mut membership = Membership::new(PeerKey(100), Role::Agent, &settings);
        (0..roots).for_each(|root| assert!(membership.add(PeerId(root), PeerKey(root.into()), Role::Root)));
        membership
    }

    fn asked(membership: &mut Membership) -> PeerId {
        let Seek::Ask(root) = membership.seek() else { unreachable!("a root is asked") };
        root
    }

    #[test]
    fn an_agent_asks_one_root_after_the_other_and_waits_when_all_have_refused() {
        let mut membership = agent(2);
        let first = asked(&mut membership);
        assert_eq!(membership.seek(), Seek::Nothing, "one is asked already");
        assert!(membership.on_refused(first));
        let second = asked(&mut membership);
        assert_ne!(first, second);
        assert!(!membership.on_refused(first), "it was not asked");
        assert!(membership.set_alarm());
        assert_eq!(membership.on_alarm(), JoinDue::Seek, "silence counts as a refusal");
        assert_eq!(membership.seek(), Seek::Wait);
        assert_eq!(asked(&mut membership), first, "from the beginning");
    }

    #[test]
    fn an_agent_has_one_root_and_leaves_it_when_it_refuses_or_is_gone() {
        let mut membership = agent(2);
        let root = asked(&mut membership);
        assert!(membership.on_accepted(root));
        assert!(!membership.on_accepted(PeerId(1 - root.0)), "it has one");
        assert_eq!(membership.root(), Some(root));
        assert_eq!(membership.on_alarm(), JoinDue::Renew(root));
        assert!(membership.on_refused(root));
        assert_eq!(membership.root(), None);
        let other = asked(&mut membership);
        assert!(membership.on_accepted(other));
        assert!(membership.remove(other).is_some_and(|(_, current)| current));
        assert!(membership.detach(other));
        assert_eq!(membership.root(), None);
    }

    #[test]
    fn the_name_of_a_host_that_is_back_stays_with_the_new_connection() {
        let mut membership = agent(0);
        assert!(membership.is_rootless());
        assert!(membership.add(PeerId(1), PeerKey(7), Role::Root));
        assert!(!membership.add(PeerId(1), PeerKey(7), Role::Root), "it is there");
        assert!(!membership.add(PeerId(2), PeerKey(100), Role::Root), "that is this host");
        assert!(membership.is_first_root() && !membership.is_rootless());
        assert!(membership.add(PeerId(3), PeerKey(7), Role::Root));
        assert!(membership.remove(PeerId(1)).is_some_and(|(_, current)| !current));
        assert!(!membership.root_gone() && membership.root_gone());
    }

    #[test]
    fn a_root_admits_so_many_agents_and_forgets_those_that_are_silent() {
        let settings =
            NodeSettings { topology: Topology::Roots, agents_max: Some(1), ..NodeSettings::default() };
        let mut root = Membership::new(PeerKey(100), Role::Root, &settings);
        (0..2).for_each(|peer| assert!(root.add(PeerId(peer), PeerKey(peer.into()), Role::Agent)));
        assert_eq!(root.admit(PeerId(0), Time(0)), Admission::New);
        assert_eq!(root.admit(PeerId(0), Time(1)), Admission::Renewed);
        assert_eq!(root.admit(PeerId(1), Time(2)), Admission::Refused);
        assert_eq!(root.admit(PeerId(1), Time(1) + COUNTED), Admission::New);
        assert!(!root.has_agent(PeerId(0)));
        assert_eq!(agent(1).admit(PeerId(0), Time(0)), Admission::Refused, "it is not a root");
    }
}
