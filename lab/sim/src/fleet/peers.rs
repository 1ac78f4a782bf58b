//! Nodes and their messages.

use super::content::{SentChunk, What};
use super::deliveries::Owner;
use super::faults::Conduct;
use super::identity::{key, role};
use super::model::SENT_AGAIN;
use super::net::{Parcel, on_wire};
use super::outbox::{Key, Known};
use super::queue::Happening;
use super::{Fleet, FleetModel, SwarmModel, Warm, Way};
use crate::slab::NONE;
use headstart_block::exact;
use headstart_block::random::mix;
use headstart_pull::{BlobRange, DiskBlobId};
use headstart_replay::time::Nanos;
use headstart_swarm::event::Served;
use headstart_swarm::recent::{Recent, Saved};
use headstart_swarm::{
    self as swarm, Action, BlobKey, CHUNK_SIZE, Chunks, Event, Message, Node, NodeCounters, PeerId, ReaderId,
    RequestId, SendClass, Urgency,
};

/// Requests that a root remembers, of a deployment before.
const RECENT: usize = 1 << 16;

/// Chunks that a host is sending to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Serving {
    host: u32,
    peer: u32,
    request: Option<RequestId>,
    blob: swarm::BlobId,
    chunks: Chunks,
    connection: u32,
    missing: bool,
    /// `true` if no reader waited for it when it was given to be sent.
    ahead: bool,
}

/// The flow of all parcels from one host to another.
fn flow(from: u32, to: u32) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}

/// The node of a host, if there is a swarm.
pub(super) fn node(model: &FleetModel, host: u32) -> Option<Box<Node>> {
    let Way::Swarm(swarm) = &model.way else { return None };
    let settings = swarm::NodeSettings { seed: model.seed, ..swarm.settings.clone() };
    let mut node = Box::new(Node::new(key(host), role(swarm.roots, host), settings));
    if let Some(recent) = swarm.recent.get(host as usize) {
        node.set_recent(Recent::load(recent, RECENT));
    }
    Some(node)
}

/// Gives a node the recent requests of the node before it on its host.
pub(super) fn remember(node: &mut Node, before: &Saved) {
    node.set_recent(Recent::load(before, RECENT));
}

/// Adds the counters of one node.
pub(super) fn add(sum: &mut NodeCounters, one: &NodeCounters) {
    sum.wants += one.wants;
    sum.not_from_peers += one.not_from_peers;
    sum.on_demand += one.on_demand;
    sum.prefetched += one.prefetched;
    sum.prefetched_read += one.prefetched_read;
    sum.from_store += one.from_store;
    sum.served += one.served;
    sum.withheld += one.withheld;
    sum.resets += one.resets;
    sum.timeouts += one.timeouts;
    sum.broken += one.broken;
    sum.corrupt += one.corrupt;
    sum.duplicate += one.duplicate;
    sum.dropped += one.dropped;
}

/// The length of a message in bytes, approximately.
fn bytes_of(message: &Message) -> u64 {
    let run = |count: usize| 4 * count as u64;
    8 + match message {
        Message::Have { runs, .. } | Message::Lost { runs, .. } | Message::Read { runs, .. } => {
            2 + run(runs.len())
        }
        Message::Ask { .. } => 10,
        Message::Reject { others, .. } => 8 + 9 * others.len() as u64,
        Message::Sketch { least, .. } => 2 + 5 * least.len() as u64,
        _ => 2,
    }
}

impl Fleet<'_> {
    /// `true` if two hosts know of each other.
    fn seen(&self, host: u32, peer: u32) -> bool {
        let Way::Swarm(swarm) = &self.model.way else { return false };
        let SwarmModel { roots, cell, .. } = **swarm;
        if host == peer || cell == 0 || (host < roots && peer < roots) {
            return host != peer;
        }
        let cell_of = |host: u32| host.saturating_sub(roots) / cell;
        let root_of = |host: u32| if host < roots { host } else { cell_of(host) % roots.max(1) };
        match (host < roots, peer < roots) {
            (false, false) => cell_of(host) == cell_of(peer),
            _ => root_of(host) == root_of(peer),
        }
    }

    /// The hosts that a host knows of.
    pub(super) fn seen_by(&self, host: u32) -> Vec<u32> {
        (0..self.model.hosts).filter(|peer| self.seen(host, *peer)).collect()
    }

    /// Introduces hosts to each other.
    pub(super) fn meet(&mut self) {
        let Way::Swarm(swarm) = &self.model.way else { return };
        let (roots, warm, pinned) = (swarm.roots, swarm.warm, swarm.pinned);
        for host in 0..self.model.hosts {
            for peer in self.seen_by(host) {
                self.notify_node(
                    host,
                    Event::PeerUp { peer: PeerId(peer), key: key(peer), role: role(roots, peer) },
                );
            }
        }
        let chunks = self.first_chunk.last().copied().unwrap_or(0);
        for host in 0..self.model.hosts {
            let words = vec![0; (chunks as usize).div_ceil(64)];
            self.hosts[host as usize].from_peers.clone_from(&words);
            self.hosts[host as usize].read = words;
            let has_all = warm == Warm::All || (warm == Warm::Roots && host < roots);
            if has_all || pinned > 0 {
                self.keep(host, has_all, pinned);
            }
            if has_all || pinned > 0 || host < roots {
                self.open(host);
            }
        }
    }

    /// Gives a host the bytes that it has from the beginning.
    fn keep(&mut self, host: u32, all: bool, pinned: u32) {
        let Way::Swarm(swarm) = &self.model.way else { return };
        let (stripe, hosts) = (swarm.settings.stripe.max(1), self.model.hosts);
        let local = &mut self.hosts[host as usize].local;
        let blobs: Vec<_> = (0..).zip(local.blobs()).collect();
        for (blob, (len, _)) in blobs {
            for chunk in 0..exact::<u32>(len.div_ceil(CHUNK_SIZE), "chunks have numbers of 32 bits") {
                let holder = (host + hosts - chunk / stripe % hosts) % hosts;
                if all || holder < pinned {
                    local.insert(local.unit_range(DiskBlobId(blob), u64::from(chunk)));
                }
            }
        }
    }

    /// Opens the image on a host, if it has not opened it yet.
    pub(super) fn open(&mut self, host: u32) {
        let known = &self.hosts[host as usize];
        if known.opened != NONE || known.node.is_none() {
            return;
        }
        self.hosts[host as usize].opened = self.opened;
        self.opened += 1;
        let Way::Swarm(swarm) = &self.model.way else { return };
        let pinned = swarm.pinned;
        let blobs: Vec<_> = (0..).zip(self.hosts[host as usize].local.blobs()).collect();
        for (n, (len, _)) in blobs {
            let blob = swarm::BlobId(n);
            let local = self.local_runs(host, n);
            let key = BlobKey(mix(u64::from(n)));
            let fetchable = pinned == 0;
            self.notify_node(host, Event::Opened { blob, key, len, local: &local, fetchable });
            if pinned > 0 {
                let holders: Vec<_> = (0..self.model.hosts).map(self::key).collect();
                self.notify_node(host, Event::Pinned { blob, holders: &holders, copies: pinned });
            }
        }
        let soon = Nanos::from_duration(self.model.links.round_trip);
        self.agenda.enter(self.now.plus(soon), Happening::Proved(host));
    }

    /// Notes that a disk of a host reads the image; all of one host count as one reader.
    pub(super) fn read_by(&mut self, host: u32) {
        for (n, _) in (0..).zip(self.first_chunk.clone().windows(2)) {
            self.notify_node(host, Event::ReadBy { blob: swarm::BlobId(n), reader: ReaderId(0) });
        }
    }

    pub(super) fn has_opened(&self, host: u32) -> bool {
        self.hosts[host as usize].opened != NONE
    }

    fn local_runs(&self, host: u32, blob: u32) -> Vec<Chunks> {
        let local = &self.hosts[host as usize].local;
        let Some((len, _)) = local.blobs().nth(blob as usize) else { return Vec::new() };
        let mut runs: Vec<Chunks> = Vec::new();
        for chunk in 0..exact::<u32>(len.div_ceil(CHUNK_SIZE), "chunks have numbers of 32 bits") {
            if local.has_unit(DiskBlobId(blob), u64::from(chunk)) {
                match runs.last_mut() {
                    Some(run) if run.numbers().end == chunk => run.count += 1,
                    _ => runs.push(Chunks::one(chunk)),
                }
            }
        }
        runs
    }

    /// Notes that a host and those that opened the image before it have proved to each other that they may read it.
    pub(super) fn proved(&mut self, host: u32) {
        let rank = self.hosts[host as usize].opened;
        for peer in self.seen_by(host) {
            if self.hosts[peer as usize].opened < rank && self.reaches(host, peer) {
                self.share(host, peer);
            }
        }
    }

    pub(super) fn share(&mut self, host: u32, peer: u32) {
        for n in 0..exact(self.first_chunk.len() - 1, "blobs have numbers of 32 bits") {
            let blob = swarm::BlobId(n);
            for (host, peer) in [(host, peer), (peer, host)] {
                self.notify_node(host, Event::PeerShares { peer: PeerId(peer), blob });
                if self.hosts[host as usize].conduct == Conduct::Liar {
                    let count = self.first_chunk[n as usize + 1] - self.first_chunk[n as usize];
                    let message = Message::Have { blob, runs: vec![Chunks { first: 0, count }] };
                    self.say(host, peer, message);
                }
            }
        }
    }

    /// Tells a node of `event`, and does what it asks for.
    pub(super) fn notify_node(&mut self, host: u32, event: Event<'_>) {
        let known = &mut self.hosts[host as usize];
        let Some(node) = known.node.as_mut().filter(|_| known.alive) else { return };
        let mut actions = self.node_actions.pop().unwrap_or_default();
        node.on_event(self.now.engine_time(), event, &mut actions);
        for action in actions.drain(..) {
            self.act(host, action);
        }
        self.node_actions.push(actions);
    }

    fn act(&mut self, host: u32, action: Action) {
        match action {
            Action::Send { peer, message } => self.say(host, peer.0, message),
            Action::Serve { peer, request, blob, chunks, urgency } => {
                let (missing, ahead, connection) = (false, false, self.connection(host, peer.0));
                let peer = peer.0;
                let serving = Serving { host, peer, request, blob, chunks, connection, missing, ahead };
                self.serve(serving, urgency);
            }
            Action::Fetch { fetch, blob, chunks, urgency } => {
                let len =
                    self.hosts[host as usize].local.blobs().nth(blob.0 as usize).map_or(0, |(len, _)| len);
                let range = BlobRange { blob: DiskBlobId(blob.0), range: chunks.bytes(len) };
                // A repeated fetch is more urgent; to the store all are the same.
                if !self.agents.contains_key(&(host, fetch.0)) {
                    let delivery = self.bring(host, Owner::Agent(fetch), range, urgency);
                    self.agents.insert((host, fetch.0), delivery);
                }
            }
            Action::Answer { want, from_store } => self.answered(want, &from_store),
            Action::Drop { peer, .. } => self.part_from(host, peer.0),
            Action::WakeAt(time) => {
                let known = &mut self.hosts[host as usize];
                known.wake = Nanos::of_engine(time).max(self.now);
                if known.wake < known.wake_entered {
                    known.wake_entered = known.wake;
                    self.agenda.enter(known.wake, Happening::Wake(host));
                }
            }
        }
    }

    /// Wakes a node that asked for it, unless it has changed the time since.
    pub(super) fn wake(&mut self, host: u32) {
        let known = &mut self.hosts[host as usize];
        if known.wake_entered != self.now {
            return;
        }
        known.wake_entered = Nanos::NEVER;
        if known.wake <= self.now {
            known.wake = Nanos::NEVER;
            self.notify_node(host, Event::Tick);
        } else if known.wake < Nanos::NEVER {
            known.wake_entered = known.wake;
            self.agenda.enter(known.wake, Happening::Wake(host));
        }
    }

    /// The port of the rack that a host's traffic to other racks goes through.
    pub(super) fn rack_up(&self, host: u32) -> u32 {
        self.racks.get(self.hosts[host as usize].rack as usize).map_or(NONE, |rack| rack.up)
    }

    pub(super) fn rack_down(&self, host: u32) -> u32 {
        self.racks.get(self.hosts[host as usize].rack as usize).map_or(NONE, |rack| rack.down)
    }

    /// Sends something from host to host; returns the parcel's number.
    pub(super) fn send(
        &mut self,
        from: u32,
        to: u32,
        class: SendClass,
        bytes: u64,
        what: What,
        note: u32,
    ) -> u32 {
        let (sender, receiver) = (&self.hosts[from as usize], &self.hosts[to as usize]);
        let apart = sender.rack != receiver.rack;
        let [up, down] = if apart { [self.rack_up(from), self.rack_down(to)] } else { [NONE; 2] };
        let mut latency = Nanos(Nanos::from_duration(self.model.links.round_trip).0 / 2);
        let loss = u64::from(self.model.faults.loss_per_million);
        if loss > 0 && self.random.bits() % 1_000_000 < loss {
            if class == SendClass::Advert {
                return NONE;
            }
            latency = latency.plus(SENT_AGAIN);
        }
        let parcel = Parcel {
            what,
            bytes: on_wire(bytes),
            class: class as usize,
            flow: flow(from, to),
            way: [sender.up, up, self.fabric, down, receiver.down],
            latency,
            note,
        };
        self.net.send(self.now, parcel.packed(), &mut self.agenda)
    }

    pub(super) fn say(&mut self, from: u32, to: u32, message: Message) {
        let (class, bytes) = (message.class(), bytes_of(&message));
        self.hosts[from as usize].talk += u64::from(on_wire(bytes));
        let connection = self.connection(from, to);
        self.send(from, to, class, bytes, What::Message { from, to, connection, message }, NONE);
    }

    pub(super) fn on_message(&mut self, from: u32, to: u32, message: Message) {
        if self.reaches(from, to) && !self.ignores(to, from, &message) {
            if let Message::Cancel { request } = message {
                let waiting = self.outbox.of_request(to, from, request);
                waiting.into_iter().for_each(|parcel| self.net.cancel(parcel));
            }
            self.notify_node(to, Event::Received { peer: PeerId(from), message });
        }
    }

    /// Sends chunks, each as its own parcel: a read of one need not wait for the others.
    fn serve(&mut self, serving: Serving, urgency: Urgency) {
        for chunk in serving.chunks.numbers() {
            self.serve_one(Serving { chunks: Chunks::one(chunk), ..serving }, urgency);
        }
    }

    fn serve_one(&mut self, mut serving: Serving, urgency: Urgency) {
        let Serving { host, peer, request, blob, chunks: Chunks { first: chunk, .. }, connection, .. } =
            serving;
        let conduct = self.hosts[host as usize].conduct;
        let local = &self.hosts[host as usize].local;
        let here = local.has_unit(DiskBlobId(blob.0), u64::from(chunk));
        serving.missing = !here && conduct != Conduct::Liar;
        let key = Key::new((host, peer), request, blob, chunk);
        let known = if urgency == Urgency::Demand { self.outbox.known(key) } else { Known::New };
        if let Known::Waits(parcel) = known {
            return self.net.promote(parcel, SendClass::DemandReply as usize);
        }
        if request.is_none() && urgency == Urgency::Demand {
            return; // a chunk that was sent ahead is promoted where it waits, or has gone
        }
        serving.ahead = urgency == Urgency::Background;
        let note = self.servings.insert(serving);
        if known == Known::Sent || !here || conduct == Conduct::Liar {
            return self.net.note(note);
        }
        let range = self.hosts[host as usize].local.unit_range(DiskBlobId(blob.0), u64::from(chunk));
        self.hosts[host as usize].sent += range.len();
        let corrupt = conduct == Conduct::Corrupt;
        let class = if serving.ahead { SendClass::PrefetchReply } else { SendClass::DemandReply };
        let ahead = serving.ahead;
        let sent = SentChunk { from: host, to: peer, request, blob, chunk, connection, corrupt, ahead };
        let parcel = self.send(host, peer, class, range.len() + 16, What::Chunk(sent), note);
        self.outbox.waits(key, parcel);
        if conduct == Conduct::Endless {
            self.flood(sent);
        }
    }

    /// Notes that chunks of a host no longer wait to be sent.
    pub(super) fn served(&mut self, number: u32) {
        let Some(serving) = self.servings.take(number) else { return };
        let Serving { host, peer, request, blob, chunks, connection, missing, ahead } = serving;
        if connection != self.connection(host, peer) {
            return;
        }
        self.outbox.left(Key::new((host, peer), request, blob, chunks.first), ahead);
        let outcome = if missing { Served::Missing } else { Served::Well };
        self.notify_node(host, Event::Served { peer: PeerId(peer), request, blob, chunks, outcome });
    }

    /// Counts a chunk that came from a peer, if it is new.
    fn note_came(&mut self, to: u32, blob: swarm::BlobId, chunk: u32, ahead: bool) {
        let bit = self.first_chunk.get(blob.0 as usize).map_or(NONE, |first| first + chunk);
        let known = &mut self.hosts[to as usize];
        if known.local.has_unit(DiskBlobId(blob.0), u64::from(chunk)) {
            return;
        }
        let bytes = known.local.unit_range(DiskBlobId(blob.0), u64::from(chunk)).len();
        *(if ahead { &mut known.prefetched } else { &mut known.on_demand }) += bytes;
        if let Some(word) = known.from_peers.get_mut(bit as usize / 64) {
            *word |= 1 << (bit % 64);
        }
    }

    pub(super) fn chunk_came(&mut self, sent: &SentChunk) {
        let SentChunk { from, to, request, blob, chunk, connection, corrupt, ahead } = *sent;
        if connection != self.connection(from, to) {
            return;
        }
        if !self.reaches(from, to) {
            return;
        }
        let (peer, chunks) = (PeerId(from), Chunks::one(chunk));
        if !corrupt {
            self.note_came(to, blob, chunk, ahead);
            self.became_local(to, DiskBlobId(blob.0), u64::from(chunk));
        }
        let outcome = if corrupt { swarm::event::Came::Corrupt } else { swarm::event::Came::Kept };
        match request {
            Some(request) => self.notify_node(to, Event::Came { peer, request, chunks, outcome }),
            None if corrupt => {}
            None => self.notify_node(to, Event::Pushed { peer, blob, chunks }),
        }
    }
}
