//! Agents that end, and others that begin in their places, as in an upgrade: disks go on meanwhile, each for itself.

use super::identity::{key, role};
use super::peers;
use super::{Fleet, Way};
use crate::slab::NONE;
use headstart_block::{Plan, exact};
use headstart_replay::time::Nanos;
use headstart_swarm::{self as swarm, Event, PeerId, Role};

impl Fleet<'_> {
    /// The number of the present connection of two hosts, counted from 0. Parcels of an earlier connection do not
    /// arrive.
    pub(super) fn connection(&self, one: u32, other: u32) -> u32 {
        self.hosts[one as usize].restarts + self.hosts[other as usize].restarts
    }

    /// Ends the agent of a host. Its connections break off, which the others notice.
    pub(super) fn stop_agent(&mut self, host: u32) {
        let known = &mut self.hosts[host as usize];
        if !known.alive || !known.is_up {
            return;
        }
        let Some(node) = known.node.take() else { return };
        known.is_up = false;
        known.restarts += 1;
        known.news.clear();
        known.wake = Nanos::NEVER;
        peers::add(&mut known.before, &node.counters());
        // A root has written its requests down, and the next agent reads them.
        let recent = (node.role() == Role::Root).then(|| node.recent().save());
        self.resting.insert(host, recent);
        self.outbox.forget(host);
        self.agent_has_gone(host);
        for peer in self.seen_by(host) {
            self.notify_node(peer, Event::PeerDown { peer: PeerId(host) });
        }
    }

    /// Begins another agent. It connects to the hosts that it reaches, and its disks tell it what they have.
    pub(super) fn start_agent(&mut self, host: u32) {
        let Some(recent) = self.resting.remove(&host) else { return };
        let known = &self.hosts[host as usize];
        let Way::Swarm(swarm) = &self.model.way else { return };
        if !known.alive {
            return;
        }
        let roots = swarm.roots;
        let mut node = peers::node(self.model, host);
        if let (Some(node), Some(recent)) = (&mut node, &recent) {
            peers::remember(node, recent);
        }
        let opens =
            known.opened != NONE || self.disks.iter().any(|disk| disk.is_of(host) && disk.is_attached());
        let known = &mut self.hosts[host as usize];
        (known.node, known.is_up, known.opened) = (node, true, NONE);
        let peers = self.seen_by(host).into_iter().filter(|peer| self.reaches(host, *peer));
        for peer in peers.collect::<Vec<_>>() {
            for (one, other) in [(host, peer), (peer, host)] {
                let event = Event::PeerUp { peer: PeerId(other), key: key(other), role: role(roots, other) };
                self.notify_node(one, event);
            }
        }
        if opens {
            self.open(host);
        }
        let reads = self.disks.iter().any(|disk| disk.is_of(host) && disk.is_attached() && disk.is_reading());
        if reads && self.workload.plan != Plan::Lazy {
            for blob in 0..exact(self.first_chunk.len() - 1, "blobs have numbers of 32 bits") {
                self.notify_node(host, Event::Planned { blob: swarm::BlobId(blob), running: true });
            }
        }
    }
}
