//! Faults: hosts that die, cannot reach each other, or do harm.
//!
//! A harmful host runs the same node as the others, and a disk of its own; the data and messages that it sends are
//! tampered with, as its [`Conduct`] says. The reaction of the product's connections, beside the node's, is modelled as
//! well: a peer that sends more than a few MiB of unrequested data is dropped.

use super::content::{SentChunk, What};
use super::identity::{key, role};
use super::model::NOTICED;
use super::queue::Happening;
use super::{Fleet, FleetModel, Way};
use crate::slab::NONE;
use headstart_block::exact;
use headstart_block::random::Random;
use headstart_replay::time::Nanos;
use headstart_swarm::{CHUNK_SIZE, Event, Message, PeerId, SendClass};
use std::collections::{BTreeMap, BTreeSet};

/// The number of unrequested bytes that a host takes from a peer before it drops that peer.
const STRAYS: u64 = 9 << 20;

/// The number of chunks that an endless sender has on their way to one host at a time.
const FLOOD: u32 = 4;

/// The interval, and the number, of repeated promises of a host that promises everything.
const PROMISED_EVERY: Nanos = Nanos(400_000_000);
const PROMISES: u32 = 1000;

/// The behaviour of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    Honest,
    /// Sends wrong bytes.
    Corrupt,
    /// Announces that it has everything, and sends nothing.
    Liar,
    /// Its links are slow.
    Slow,
    /// Sends the requested chunks, and goes on sending them without end.
    Endless,
    /// Promises all requested chunks, again and again, and sends nothing.
    Promiser,
    /// Does not answer.
    Mute,
}

impl Conduct {
    /// Draws the conduct of each host.
    pub(super) fn draw(model: &FleetModel, random: &mut Random) -> Vec<Self> {
        let mut conducts = vec![Self::Honest; model.hosts as usize];
        let faults = &model.faults;
        let bad = [
            (Self::Corrupt, faults.corrupt),
            (Self::Liar, faults.liars),
            (Self::Slow, faults.slow),
            (Self::Endless, faults.endless),
            (Self::Promiser, faults.promisers),
            (Self::Mute, faults.mutes),
        ];
        let all: usize = bad.iter().map(|(_, count)| *count as usize).sum();
        let mut drawn = random.sample(all, conducts.len());
        for place in (1..drawn.len()).rev() {
            drawn.swap(place, random.below(place + 1));
        }
        let which = bad.iter().flat_map(|(conduct, count)| std::iter::repeat_n(*conduct, *count as usize));
        drawn.into_iter().zip(which).for_each(|(host, conduct)| conducts[host] = conduct);
        conducts
    }
}

/// A fault, or the moment at which it is noticed or mended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    Die(Vec<u32>),
    NoticeDeaths(Vec<u32>),
    Part,
    NoticeParting,
    Mend,
    /// Agents end.
    Stop(Vec<u32>),
    /// Others begin in their places.
    Start(Vec<u32>),
    /// A host that promises everything repeats its promise, `left` times more.
    Promise {
        from: u32,
        to: u32,
        message: Message,
        left: u32,
    },
}

/// The faults of a run, and their effects so far.
#[derive(Debug, Default)]
pub(super) struct FaultState {
    foreseen: Vec<Option<Fault>>,
    /// `true` while the halves of the fleet do not reach each other.
    parted: bool,
    /// The pairs of an endless sender and its receiver.
    floods: BTreeSet<(u32, u32)>,
    /// Unrequested bytes, by sender and receiver.
    strays: BTreeMap<(u32, u32), u64>,
}

impl Fleet<'_> {
    /// Enters the faults of the run. Nothing is to be drawn before it, so that the faults are the same whatever the
    /// way.
    pub(super) fn foresee_faults(&mut self) {
        let faults = &self.model.faults;
        for death in &faults.deaths {
            let hosts = self.model.hosts as usize;
            let dead: Vec<u32> = if death.roots {
                let Way::Swarm(swarm) = &self.model.way else { continue };
                (0..swarm.roots).collect()
            } else {
                let count = hosts * death.per_million as usize / 1_000_000;
                let drawn = self.random.sample(count, hosts).into_iter();
                drawn.filter_map(|host| u32::try_from(host).ok()).collect()
            };
            self.foresee(death.at, Fault::Die(dead.clone()));
            self.foresee(death.at.plus(NOTICED), Fault::NoticeDeaths(dead));
        }
        for restart in &faults.restarts {
            let hosts = self.model.hosts as usize;
            let count = hosts * restart.per_million as usize / 1_000_000;
            let drawn = self.random.sample(count, hosts).into_iter();
            let hosts: Vec<u32> = drawn.filter_map(|host| u32::try_from(host).ok()).collect();
            self.foresee(restart.at, Fault::Stop(hosts.clone()));
            self.foresee(restart.at.plus(Nanos::from_duration(restart.away)), Fault::Start(hosts));
        }
        for (from, until) in &faults.partitions {
            self.foresee(*from, Fault::Part);
            self.foresee(from.plus(NOTICED), Fault::NoticeParting);
            self.foresee(*until, Fault::Mend);
        }
    }

    fn foresee(&mut self, at: Nanos, fault: Fault) {
        let number = exact(self.fault_state.foreseen.len(), "faults have numbers of 32 bits");
        self.fault_state.foreseen.push(Some(fault));
        self.agenda.enter(at, Happening::Fault(number));
    }

    pub(super) fn fault(&mut self, n: u32) {
        let Some(fault) = self.fault_state.foreseen.get_mut(n as usize).and_then(Option::take) else {
            return;
        };
        match fault {
            Fault::Die(dead) => dead.into_iter().for_each(|host| self.die(host)),
            Fault::NoticeDeaths(dead) => {
                for peer in dead {
                    for host in self.seen_by(peer) {
                        self.notify_node(host, Event::PeerDown { peer: PeerId(peer) });
                    }
                }
            }
            Fault::Part => self.fault_state.parted = true,
            Fault::NoticeParting if self.fault_state.parted => {
                for (host, peer) in self.across() {
                    self.notify_node(host, Event::PeerDown { peer: PeerId(peer) });
                }
            }
            Fault::NoticeParting => {}
            Fault::Mend => self.mend(),
            Fault::Stop(hosts) => hosts.into_iter().for_each(|host| self.stop_agent(host)),
            Fault::Start(hosts) => hosts.into_iter().for_each(|host| self.start_agent(host)),
            Fault::Promise { from, to, message, left } => self.promise(from, to, message, left),
        }
    }

    fn die(&mut self, host: u32) {
        let known = &mut self.hosts[host as usize];
        if known.alive {
            (known.alive, known.died) = (false, true);
            self.reading -= self.disks.iter().filter(|disk| disk.is_of(host) && disk.is_reading()).count();
        }
    }

    /// Pairs of hosts of the two halves that know each other, both ways.
    fn across(&self) -> BTreeSet<(u32, u32)> {
        let half = self.model.hosts / 2;
        let all = (0..self.model.hosts)
            .flat_map(|host| self.seen_by(host).into_iter().map(move |peer| (host, peer)));
        all.filter(|(host, peer)| (*host < half) != (*peer < half)).collect()
    }

    fn mend(&mut self) {
        self.fault_state.parted = false;
        let Way::Swarm(swarm) = &self.model.way else { return };
        let roots = swarm.roots;
        let pairs = self.across();
        let pairs: Vec<_> = pairs.into_iter().filter(|(host, peer)| self.reaches(*host, *peer)).collect();
        for (host, peer) in &pairs {
            let event = Event::PeerUp { peer: PeerId(*peer), key: key(*peer), role: role(roots, *peer) };
            self.notify_node(*host, event);
        }
        for (host, peer) in pairs {
            if host < peer && self.has_opened(host) && self.has_opened(peer) {
                self.share(host, peer);
            }
        }
    }

    /// `true` if a message of one host reaches another.
    pub(super) fn reaches(&self, host: u32, peer: u32) -> bool {
        let half = self.model.hosts / 2;
        let (one, other) = (&self.hosts[host as usize], &self.hosts[peer as usize]);
        one.alive
            && other.alive
            && one.is_up
            && other.is_up
            && !(self.fault_state.parted && (host < half) != (peer < half))
            && !one.strangers.contains(&peer)
    }

    /// `true` if the tracker is lost at present.
    pub(super) fn has_no_tracker(&self) -> bool {
        let away = &self.model.faults.tracker_away;
        away.iter().any(|(from, until)| (*from..*until).contains(&self.now))
    }

    /// Breaks the connection of one host to another for good.
    pub(super) fn part_from(&mut self, host: u32, peer: u32) {
        self.dropped += 1;
        self.hosts[host as usize].strangers.push(peer);
        self.hosts[peer as usize].strangers.push(host);
        self.notify_node(host, Event::PeerDown { peer: PeerId(peer) });
        self.notify_node(peer, Event::PeerDown { peer: PeerId(host) });
    }

    /// `true` if a request to a host never comes to its node, because the host behaves badly.
    pub(super) fn ignores(&mut self, host: u32, asker: u32, message: &Message) -> bool {
        let Message::Ask { request, chunks, .. } = message else { return false };
        match self.hosts[host as usize].conduct {
            Conduct::Mute => true,
            Conduct::Promiser => {
                let message = Message::Pending { request: *request, chunks: *chunks };
                self.promise(host, asker, message, PROMISES);
                true
            }
            _ => false,
        }
    }

    fn promise(&mut self, from: u32, to: u32, message: Message, left: u32) {
        if left > 0 && self.reaches(from, to) {
            self.say(from, to, message.clone());
            self.foresee(self.now.plus(PROMISED_EVERY), Fault::Promise { from, to, message, left: left - 1 });
        }
    }

    /// Goes on sending for an endless sender that has sent the requested chunk.
    pub(super) fn flood(&mut self, sent: SentChunk) {
        if self.fault_state.floods.insert((sent.from, sent.to)) {
            (0..FLOOD).for_each(|_| self.send_junk(sent));
        }
    }

    fn send_junk(&mut self, sent: SentChunk) {
        let what = What::Junk(sent);
        self.send(sent.from, sent.to, SendClass::DemandReply, CHUNK_SIZE + 16, what, NONE);
    }

    /// Takes an unrequested chunk.
    pub(super) fn junk_came(&mut self, sent: SentChunk) {
        let (from, to) = (sent.from, sent.to);
        let strays = self.fault_state.strays.entry((from, to)).or_default();
        *strays += CHUNK_SIZE;
        let too_many = *strays > STRAYS;
        if !self.reaches(from, to) {
            self.fault_state.floods.remove(&(from, to));
        } else if too_many {
            self.part_from(to, from);
        } else {
            self.send_junk(sent);
        }
    }
}
