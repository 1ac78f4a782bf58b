//! The state machine with the meaning of its numbers (blobs, hosts, wants), and the execution of its actions.

use crate::blob::{Blob, Identity};
use crate::frame::{self, FrameKind, PROOF};
use crate::host::Host;
use crate::host::link::Link;
use crate::host::pinning::{Holding, Holdings};
use crate::outbox::{Overflow, Serve};
use headstart_block::ByteRange;
use headstart_swarm::event::Served;
use headstart_swarm::{
    Action, BlobId, Chunks, Event, Message, Node, Offence, PeerId, PeerKey, RejectReason, RequestId,
    StoreFetchId, Time, Urgency, WantId,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// The time for which a dropped host is left alone.
const SHUNNED: Duration = Duration::from_secs(600);

/// The state machine and the meaning of its numbers.
pub(crate) struct Core {
    pub(crate) node: Node,
    pub(crate) actions: Vec<Action>,
    pub(crate) blobs: HashMap<BlobId, Entry>,
    pub(crate) by_identity: HashMap<Identity, BlobId>,
    pub(crate) peers: HashMap<PeerId, Peer>,
    pub(crate) by_key: HashMap<PeerKey, PeerId>,
    pub(crate) shunned: HashMap<PeerKey, Time>,
    pub(crate) wants: HashMap<WantId, oneshot::Sender<Vec<Chunks>>>,
    pub(crate) wake_at: Option<Time>,
    pub(crate) last_blob: u32,
    pub(crate) last_peer: u32,
    pub(crate) last_want: u64,
    pub(crate) last_reader: u64,
    /// Wants of the agent's own: parts of trees. The agent fetches those that the swarm does not send.
    pub(crate) own_wants: HashMap<WantId, (Arc<Blob>, Chunks)>,
    pub(crate) own_wanted: HashSet<(BlobId, Chunks)>,
    pub(crate) fetching: HashSet<StoreFetchId>,
    /// The pinned parts of blobs, open or not.
    pub(crate) holdings: Holdings,
    /// The events that actions have led to: the machine gets them after its present actions.
    pub(crate) deferred: VecDeque<Deferred>,
    pub(crate) stopped: bool,
}

/// An event that an action has led to.
pub(crate) enum Deferred {
    PeerDown(PeerId),
    Want(WantId, BlobId, Chunks, Urgency),
    /// A request that cannot be sent: the machine treats it as refused by the other host.
    NotAsked(PeerId, RequestId, Chunks),
    /// Chunks that are not sent.
    NotServed(PeerId, Option<RequestId>, BlobId, Chunks),
}

pub(crate) struct Entry {
    pub(crate) blob: Arc<Blob>,
    pub(crate) users: usize,
    /// The number of disks that preload by a plan.
    pub(crate) planned: usize,
    /// The time at which the last user went.
    pub(crate) idle_since: Time,
}

pub(crate) struct Peer {
    pub(crate) link: Arc<Link>,
    /// The proofs that it has to send to show that it may read a blob.
    pub(crate) expected: HashMap<[u8; PROOF], BlobId>,
    /// The proofs that it has sent, by its numbers, and the other way round.
    pub(crate) proofs: HashMap<u32, [u8; PROOF]>,
    pub(crate) numbers: HashMap<[u8; PROOF], u32>,
    /// The blobs that both share, by its numbers and by this host's.
    pub(crate) shared: HashMap<u32, BlobId>,
    pub(crate) shared_blobs: HashSet<BlobId>,
    /// For a root: the blobs that were named to it, and the times.
    pub(crate) announced_at: HashMap<BlobId, Time>,
}

impl Core {
    pub(crate) fn new(node: Node) -> Self {
        Self {
            node,
            actions: Vec::new(),
            blobs: HashMap::new(),
            by_identity: HashMap::new(),
            peers: HashMap::new(),
            by_key: HashMap::new(),
            shunned: HashMap::new(),
            wants: HashMap::new(),
            wake_at: None,
            last_blob: 0,
            last_peer: 0,
            last_want: 0,
            last_reader: 0,
            own_wants: HashMap::new(),
            own_wanted: HashSet::new(),
            fetching: HashSet::new(),
            holdings: Holdings::new(),
            deferred: VecDeque::new(),
            stopped: false,
        }
    }

    pub(crate) fn next_blob(&mut self) -> BlobId {
        self.last_blob += 1;
        BlobId(self.last_blob)
    }

    pub(crate) fn add(
        &mut self,
        host: &Arc<Host>,
        blob: Arc<Blob>,
        range_fetcher: Option<&Arc<headstart_disk::RangeFetcher>>,
    ) -> Arc<Blob> {
        if let Some(range_fetcher) = range_fetcher {
            blob.set_range_fetcher(range_fetcher);
        }
        let id = blob.id;
        let users = usize::from(!blob.is_outboard());
        self.by_identity.insert(blob.identity, id);
        let entry = Entry { blob: Arc::clone(&blob), users, planned: 0, idle_since: host.now() };
        self.blobs.insert(id, entry);
        let local = blob.local_chunks(ByteRange::between(0, blob.len()));
        let (key, len) = (blob.key(), blob.len());
        self.drive(
            host,
            Event::Opened { blob: id, key, len, local: &local, fetchable: range_fetcher.is_some() },
        );
        self.report_new_holding(host, &blob);
        let mut sharing = Vec::new();
        let mut full = Vec::new();
        for (name, peer) in &mut self.peers {
            let theirs = blob.proof(&peer.link.binding, peer.link.side.other());
            peer.expected.insert(theirs, id);
            if let Some(number) = peer.numbers.get(&theirs) {
                peer.shared.insert(*number, id);
                peer.shared_blobs.insert(id);
                sharing.push(*name);
            }
            let ours = blob.proof(&peer.link.binding, peer.link.side);
            if peer.link.outbox.control(FrameKind::Proof, id.0, &ours).is_err() {
                full.push(*name);
            }
        }
        for peer in sharing {
            self.drive(host, Event::PeerShares { peer, blob: id });
        }
        full.into_iter().for_each(|peer| self.disconnect(host, peer));
        self.drain_deferred(host);
        host.opened.notify_one();
        blob
    }

    /// Sends the holders of an open blob to the machine.
    pub(crate) fn report_holding(&mut self, host: &Arc<Host>, blob: BlobId, holding: Option<&Holding>) {
        let (holders, copies) = holding.map_or((&[][..], 0), |holding| (&holding.hosts[..], holding.copies));
        self.drive(host, Event::Pinned { blob, holders, copies });
    }

    /// Sends the holders of a blob that is opened just now.
    pub(crate) fn report_new_holding(&mut self, host: &Arc<Host>, blob: &Blob) {
        if let Some(holding) = self.holdings.get(&blob.identity).cloned() {
            self.report_holding(host, blob.id, Some(&holding));
        }
    }

    pub(crate) fn remove(&mut self, host: &Arc<Host>, blob: &Blob) {
        self.blobs.remove(&blob.id);
        self.by_identity.remove(&blob.identity);
        let mut full = Vec::new();
        for (name, peer) in &mut self.peers {
            peer.expected.retain(|_, id| *id != blob.id);
            peer.shared.retain(|_, id| *id != blob.id);
            peer.shared_blobs.remove(&blob.id);
            if peer.link.outbox.control(FrameKind::Withdrawn, blob.id.0, &[]).is_err() {
                full.push(*name);
            }
        }
        self.drive(host, Event::Closed { blob: blob.id });
        full.into_iter().for_each(|peer| self.disconnect(host, peer));
        self.drain_deferred(host);
    }

    /// Moves the machine, executes its actions, and feeds it the events that those led to.
    pub(crate) fn drive(&mut self, host: &Arc<Host>, event: Event<'_>) {
        self.step(host, event);
        self.drain_deferred(host);
    }

    pub(crate) fn drain_deferred(&mut self, host: &Arc<Host>) {
        while let Some(deferred) = self.deferred.pop_front() {
            match deferred {
                Deferred::PeerDown(peer) => self.step(host, Event::PeerDown { peer }),
                Deferred::Want(want, blob, chunks, urgency) if self.blobs.contains_key(&blob) => {
                    self.step(host, Event::Want { want, blob, chunks, urgency });
                }
                Deferred::Want(want, _, chunks, _) => self.answer(host, want, vec![chunks]),
                Deferred::NotAsked(peer, request, chunks) => {
                    let message =
                        Message::Reject { request, chunks, why: RejectReason::Missing, others: Vec::new() };
                    self.step(host, Event::Received { peer, message });
                }
                Deferred::NotServed(peer, request, blob, chunks) => {
                    let outcome = Served::Well;
                    self.step(host, Event::Served { peer, request, blob, chunks, outcome });
                }
            }
        }
    }

    pub(crate) fn step(&mut self, host: &Arc<Host>, event: Event<'_>) {
        let mut actions = std::mem::take(&mut self.actions);
        let now = host.now();
        tracing::trace!(at = now.0, ?event, "in");
        self.node.on_event(now, event, &mut actions);
        for action in actions.drain(..) {
            tracing::trace!(at = now.0, ?action, "out");
            self.act(host, action);
        }
        self.actions = actions;
    }

    pub(crate) fn act(&mut self, host: &Arc<Host>, action: Action) {
        match action {
            Action::Send { peer, message } => self.say(host, peer, message),
            Action::Serve { peer, request, blob, chunks, urgency } => {
                self.serve(host, peer, request, blob, chunks, urgency);
            }
            Action::Fetch { fetch, blob, chunks, urgency } => {
                let blob = self.blobs.get(&blob).map(|entry| Arc::clone(&entry.blob));
                let again = !self.fetching.insert(fetch);
                host.fetch(fetch, blob, chunks, urgency, again);
            }
            Action::Answer { want, from_store } => self.answer(host, want, from_store),
            Action::Drop { peer, offence } => self.shun(host, peer, offence, "the state machine says so"),
            Action::WakeAt(at) => {
                let earlier = self.wake_at.is_none_or(|before| at < before);
                self.wake_at = Some(at);
                if earlier {
                    host.earlier.notify_one();
                }
            }
        }
    }

    /// Sends a message of the machine, unless it is about a blob that the other host has not proved.
    pub(crate) fn say(&mut self, host: &Arc<Host>, name: PeerId, mut message: Message) {
        let Some(peer) = self.peers.get(&name) else { return };
        if let Some(blob) = blob_of(&mut message).map(|blob| *blob) {
            if !peer.shared_blobs.contains(&blob) {
                if let Message::Ask { request, chunks, .. } = message {
                    self.deferred.push_back(Deferred::NotAsked(name, request, chunks));
                }
                return;
            }
            if let (Message::Ask { request, chunks, .. }, Some(entry)) = (&message, self.blobs.get(&blob)) {
                peer.link.expect(*request, &entry.blob, *chunks);
            }
        }
        let asked = match &message {
            Message::Ask { blob, chunks, urgency, .. } => {
                let entry = self.blobs.get(blob);
                entry.map(|entry| (Arc::clone(&entry.blob), *chunks, *urgency))
            }
            _ => None,
        };
        self.send(host, name, message);
        if let Some((blob, chunks, urgency)) = asked {
            self.want_tree_of(&blob, chunks, urgency);
        }
    }

    /// Requested chunks are of no use without the pages of the tree: they are fetched at the same time.
    pub(crate) fn want_tree_of(&mut self, blob: &Blob, chunks: Chunks, urgency: Urgency) {
        let Some(tree) = &blob.tree else { return };
        for chunks in blob.missing_tree_chunks(chunks.bytes(blob.len())) {
            if self.own_wanted.insert((tree.id, chunks)) {
                self.last_want += 1;
                let want = WantId(self.last_want);
                self.own_wants.insert(want, (Arc::clone(tree), chunks));
                self.deferred.push_back(Deferred::Want(want, tree.id, chunks, urgency));
            }
        }
    }

    pub(crate) fn answer(&mut self, host: &Arc<Host>, want: WantId, from_store: Vec<Chunks>) {
        if let Some(answer) = self.wants.remove(&want) {
            // The receiver is gone only if the disk is gone.
            let _ = answer.send(from_store);
        } else if let Some((tree, wanted)) = self.own_wants.remove(&want) {
            self.own_wanted.remove(&(tree.id, wanted));
            host.fetch_own(&tree, from_store);
        }
    }

    pub(crate) fn send(&mut self, host: &Arc<Host>, name: PeerId, message: Message) {
        let Some(peer) = self.peers.get(&name) else { return };
        if split(message).into_iter().any(|message| peer.link.outbox.send(message).is_err()) {
            self.cut_off(host, name);
        }
    }

    pub(crate) fn serve(
        &mut self,
        host: &Arc<Host>,
        name: PeerId,
        request: Option<RequestId>,
        blob: BlobId,
        chunks: Chunks,
        urgency: Urgency,
    ) {
        let Some(peer) = self.peers.get(&name) else { return };
        let entry = self.blobs.get(&blob).filter(|_| peer.shared_blobs.contains(&blob) && chunks.count > 0);
        let Some(entry) = entry else {
            self.deferred.push_back(Deferred::NotServed(name, request, blob, chunks));
            return;
        };
        let serve = Serve { request, blob: Arc::clone(&entry.blob), chunks, urgency };
        if let Err(Overflow) = peer.link.outbox.serve(serve, &host.send_gate, host.now_ms()) {
            self.cut_off(host, name);
        }
    }

    /// Drops a host that does not read its frames.
    pub(crate) fn cut_off(&mut self, host: &Arc<Host>, name: PeerId) {
        self.shun(host, name, Offence::Slow, "it does not read what it is sent");
    }

    pub(crate) fn shun(&mut self, host: &Arc<Host>, name: PeerId, offence: Offence, what: &str) {
        let Some(peer) = self.peers.get(&name) else { return };
        let (link, until) = (Arc::clone(&peer.link), host.now() + SHUNNED);
        self.shunned.insert(link.key, until);
        let count = match offence {
            Offence::Corrupt => &host.counts.dropped_corrupt,
            _ => &host.counts.dropped_other,
        };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(host = %link.name, ?offence, what, "a host is left alone for ten minutes");
        self.disconnect(host, name);
    }

    /// Notifies waiting tasks after a change of the hosts that share a blob, if at most one shares it now.
    pub(crate) fn notify_of_peers(&self, host: &Host, blob: BlobId) {
        let sharers = self.peers.values().filter(|peer| peer.shared_blobs.contains(&blob));
        if sharers.take(2).count() < 2 {
            host.peers_changed.send_replace(());
        }
    }

    pub(crate) fn disconnect(&mut self, host: &Arc<Host>, name: PeerId) {
        let Some(peer) = self.peers.remove(&name) else { return };
        if self.by_key.get(&peer.link.key) == Some(&name) {
            self.by_key.remove(&peer.link.key);
        }
        peer.link.outbox.close(&host.send_gate);
        peer.link.close();
        host.remote_commands.gone(name);
        host.renewals.gone(name);
        peer.shared_blobs.iter().for_each(|blob| self.notify_of_peers(host, *blob));
        // Not at once: the caller may be executing the actions of the machine.
        self.deferred.push_back(Deferred::PeerDown(name));
    }
}

/// Splits adverts that are too long for one message.
fn split(message: Message) -> Vec<Message> {
    let parts =
        |runs: Vec<Chunks>| -> Vec<Vec<Chunks>> { runs.chunks(frame::RUNS_MAX).map(<[_]>::to_vec).collect() };
    match message {
        Message::Have { blob, runs } if runs.len() > frame::RUNS_MAX => {
            parts(runs).into_iter().map(|runs| Message::Have { blob, runs }).collect()
        }
        Message::Lost { blob, runs } if runs.len() > frame::RUNS_MAX => {
            parts(runs).into_iter().map(|runs| Message::Lost { blob, runs }).collect()
        }
        Message::Read { blob, runs } if runs.len() > frame::RUNS_MAX => {
            parts(runs).into_iter().map(|runs| Message::Read { blob, runs }).collect()
        }
        Message::Sketch { blob, mut least } => {
            least.truncate(frame::SKETCH_MAX);
            vec![Message::Sketch { blob, least }]
        }
        Message::Reject { request, chunks, why, mut others } => {
            others.truncate(frame::OTHERS_MAX);
            vec![Message::Reject { request, chunks, why, others }]
        }
        other => vec![other],
    }
}

/// The field of a message that names its blob.
pub(crate) fn blob_of(message: &mut Message) -> Option<&mut BlobId> {
    match message {
        Message::Have { blob, .. }
        | Message::Lost { blob, .. }
        | Message::Ask { blob, .. }
        | Message::Sketch { blob, .. }
        | Message::Read { blob, .. } => Some(blob),
        _ => None,
    }
}
