//! Hosts, a network between them and a store, in memory: messages take time, get lost, come twice; links have a
//! speed; hosts die, lie, send rubbish or are slow. Each host has a disk that reads, and truth: the chunks that its
//! cache really has, by which every answer is checked.

use crate::event::{Came, Served};
use crate::message::RequestId;
use crate::node::blob::push;
use crate::{
    Action, BlobId, BlobKey, CHUNK_SIZE, Chunks, Event, Message, Node, NodeSettings, Offence, PeerId,
    PeerKey, ReaderId, RejectReason, Role, StoreFetchId, Time, Urgency, WantId,
};
use headstart_block::random::{Random, mix};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

pub(super) const BLOB: BlobId = BlobId(7);

/// The rules of a world.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) seed: u64,
    pub(super) chunks: u32,
    /// Microseconds that a message takes, and how much more at most.
    pub(super) latency: u64,
    pub(super) jitter: u64,
    /// The number of messages in a thousand that get lost, and that come twice.
    pub(super) lost: usize,
    pub(super) twice: usize,
    /// Bytes per second: of the store, and of each host in each direction.
    pub(super) store: u64,
    pub(super) host: u64,
    /// Microseconds until the store begins to answer.
    pub(super) store_latency: u64,
    /// The number of fetches in a thousand that fail.
    pub(super) store_fails: usize,
    /// The number of chunks of one read, and of those that are requested ahead of it, without urgency.
    pub(super) read: u32,
    pub(super) ahead: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            seed: 0,
            chunks: 256,
            latency: 100,
            jitter: 0,
            lost: 0,
            twice: 0,
            store: 12_000_000,
            host: 50_000_000,
            store_latency: 1000,
            store_fails: 0,
            read: 16,
            ahead: 32,
        }
    }
}

/// The behaviour of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    Honest,
    /// Advertises everything.
    Liar,
    /// Sends rubbish.
    Corrupt,
    /// Sends nothing, ever.
    Mute,
    /// Promises everything, sends nothing.
    Promiser,
    /// A hundred times slower.
    Slow,
}

#[derive(Debug)]
enum Happens {
    Say {
        from: usize,
        to: usize,
        message: Message,
    },
    /// The host's link has sent what it was sending.
    Sent(usize),
    /// A chunk has arrived at a host over the network.
    Landed {
        to: usize,
        bytes: Bytes,
    },
    /// The store has sent a chunk of the request at its head.
    StoreSent,
    StoreBegins(StoreRequest),
    Wake(usize),
    /// A host's disk goes on.
    Step(usize),
    Die(usize),
    /// A host's cache loses some of its chunks.
    Evict(usize),
    /// The first hosts cannot talk to the others, or can again.
    Cut(usize),
}

/// A chunk on its way from one host to another.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    from: usize,
    to: usize,
    request: Option<RequestId>,
    chunk: u32,
}

#[derive(Clone, Copy, Debug)]
struct StoreRequest {
    host: usize,
    /// The fetch of an agent; `None` for a disk's own.
    fetch: Option<StoreFetchId>,
    chunks: Chunks,
    sent: u32,
    urgency: Urgency,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) node: Node,
    pub(super) nature: Nature,
    pub(super) dead: bool,
    /// The chunks in its cache.
    pub(super) truth: BTreeSet<u32>,
    /// The chunks that its disk is to read, in order, and the place that it has reached.
    pub(super) plan: Vec<u32>,
    pub(super) at: usize,
    /// The want that it waits for.
    waits: Option<WantId>,
    asked_ahead: usize,
    wants: BTreeMap<WantId, (Vec<u32>, Urgency)>,
    disk_fetches: BTreeSet<u32>,
    fetches: BTreeSet<StoreFetchId>,
    next_want: u64,
    sending: Option<Bytes>,
    queues: [VecDeque<Bytes>; 2],
    down_free: u64,
    pub(super) done: Option<Time>,
    pub(super) drops: Vec<(usize, Offence)>,
    wake: Option<Time>,
    cancelled: BTreeSet<(usize, RequestId)>,
}

pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) now: Time,
    pub(super) hosts: Vec<Host>,
    heap: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Happens>,
    next: u64,
    pub(super) random: Random,
    store: VecDeque<StoreRequest>,
    store_busy: bool,
    pub(super) store_chunks: u64,
    pub(super) store_away: bool,
    /// `true` if caches have lost chunks.
    evicts: bool,
    /// The number of the first hosts that cannot talk to the others.
    cut: usize,
    pub(super) wants: u64,
    pub(super) answers: u64,
    pub(super) messages: u64,
    pub(super) fetched_by_agents: u64,
}

pub(super) fn key(host: usize) -> PeerKey {
    PeerKey(mix(host as u64 + 1))
}

fn number(host: usize) -> PeerId {
    PeerId(u32::try_from(host).unwrap())
}

fn micros(bytes: u64, rate: u64) -> u64 {
    (bytes * 1_000_000).div_ceil(rate)
}

impl World {
    /// `roles.len()` hosts that know each other and share the blob.
    pub(super) fn new(rules: Rules, roles: &[Role], settings: &NodeSettings) -> Self {
        let mut world = Self {
            now: Time(0),
            hosts: Vec::new(),
            heap: BinaryHeap::new(),
            events: BTreeMap::new(),
            next: 0,
            random: Random::new(rules.seed),
            store: VecDeque::new(),
            store_busy: false,
            store_chunks: 0,
            store_away: false,
            evicts: false,
            cut: 0,
            wants: 0,
            answers: 0,
            messages: 0,
            fetched_by_agents: 0,
            rules,
        };
        for (host, role) in roles.iter().enumerate() {
            world.hosts.push(Host {
                node: Node::new(key(host), *role, settings.clone()),
                nature: Nature::Honest,
                dead: false,
                truth: BTreeSet::new(),
                plan: Vec::new(),
                at: 0,
                waits: None,
                asked_ahead: 0,
                wants: BTreeMap::new(),
                disk_fetches: BTreeSet::new(),
                fetches: BTreeSet::new(),
                next_want: 0,
                sending: None,
                queues: [VecDeque::new(), VecDeque::new()],
                down_free: 0,
                done: None,
                drops: Vec::new(),
                wake: None,
                cancelled: BTreeSet::new(),
            });
        }
        let len = u64::from(world.rules.chunks) * CHUNK_SIZE - 100;
        for host in 0..roles.len() {
            let event = Event::Opened { blob: BLOB, key: BlobKey(99), len, local: &[], fetchable: true };
            world.tell(host, event);
            world.tell(host, Event::ReadBy { blob: BLOB, reader: ReaderId(0) });
        }
        for at in 0..roles.len() {
            for peer in (0..roles.len()).filter(|peer| *peer != at) {
                world.up(at, peer);
            }
        }
        world
    }

    fn up(&mut self, at: usize, peer: usize) {
        let role = self.hosts[peer].node.role();
        self.tell(at, Event::PeerUp { peer: number(peer), key: key(peer), role });
        self.tell(at, Event::PeerShares { peer: number(peer), blob: BLOB });
        if self.hosts[peer].nature == Nature::Liar {
            let runs = vec![Chunks { first: 0, count: self.rules.chunks }];
            self.say(peer, at, &Message::Have { blob: BLOB, runs });
        }
    }

    pub(super) fn set_nature(&mut self, host: usize, nature: Nature) {
        self.hosts[host].nature = nature;
        if nature == Nature::Liar {
            let runs = vec![Chunks { first: 0, count: self.rules.chunks }];
            for to in (0..self.hosts.len()).filter(|to| *to != host) {
                self.say(host, to, &Message::Have { blob: BLOB, runs: runs.clone() });
            }
        }
    }

    /// A host's disk begins to read these chunks at `at`.
    pub(super) fn start(&mut self, host: usize, at: Time, plan: Vec<u32>) {
        self.hosts[host].plan = plan;
        self.push(at, Happens::Step(host));
    }

    pub(super) fn kill(&mut self, host: usize, at: Time) {
        self.push(at, Happens::Die(host));
    }

    /// The first `hosts` hosts cannot talk to the others from `from` to `to`.
    pub(super) fn cut(&mut self, hosts: usize, from: Time, to: Time) {
        self.push(from, Happens::Cut(hosts));
        self.push(to, Happens::Cut(0));
    }

    pub(super) fn evict(&mut self, host: usize, at: Time) {
        self.push(at, Happens::Evict(host));
    }

    /// Puts chunks into a host's cache from the beginning.
    pub(super) fn put(&mut self, host: usize, chunks: Chunks) {
        self.hosts[host].truth.extend(chunks.numbers());
        self.tell(host, Event::BecameLocal { blob: BLOB, chunks });
    }

    fn push(&mut self, at: Time, happens: Happens) {
        self.heap.push(Reverse((at, self.next)));
        self.events.insert(self.next, happens);
        self.next += 1;
    }

    fn after(&mut self, micros: u64, happens: Happens) {
        self.push(Time(self.now.0 + micros), happens);
    }

    /// Lets the next event happen, if that is not after `end`; `true` if it did.
    fn go_on(&mut self, end: Time) -> bool {
        while let Some(Reverse((at, id))) = self.heap.peek().copied() {
            if at > end {
                return false;
            }
            self.heap.pop();
            let Some(happens) = self.events.remove(&id) else { continue };
            self.now = at;
            self.happens(happens);
            return true;
        }
        false
    }

    /// Runs until no host reads any more, or until `end`.
    pub(super) fn run(&mut self, end: Time) {
        while self.go_on(end) {
            if self.hosts.iter().all(|host| host.dead || host.done.is_some() || host.plan.is_empty()) {
                break;
            }
        }
    }

    /// Runs until `end`, whether hosts read or not.
    pub(super) fn run_all(&mut self, end: Time) {
        while self.go_on(end) {}
        self.now = end;
    }

    fn happens(&mut self, happens: Happens) {
        match happens {
            Happens::Say { from, to, message } => {
                if !self.hosts[to].dead {
                    self.heard(from, to, message);
                }
            }
            Happens::Sent(host) => self.sent(host),
            Happens::Landed { to, bytes } => self.landed(to, bytes),
            Happens::StoreBegins(request) => {
                match request.urgency {
                    Urgency::Demand => self.store.push_front(request),
                    Urgency::Background => self.store.push_back(request),
                }
                self.store_next();
            }
            Happens::StoreSent => self.store_sent(),
            Happens::Wake(host) => {
                if self.hosts[host].wake == Some(self.now) && !self.hosts[host].dead {
                    self.hosts[host].wake = None;
                    self.tell(host, Event::Tick);
                }
            }
            Happens::Step(host) => self.step(host),
            Happens::Die(host) => self.die(host),
            Happens::Cut(first) => self.cut = first,
            Happens::Evict(host) => {
                if !self.hosts[host].dead {
                    let first = self.random.below(self.rules.chunks as usize) as u32;
                    let chunks = Chunks { first, count: 8 };
                    self.evicts = true;
                    self.hosts[host].truth.retain(|chunk| !chunks.numbers().contains(chunk));
                    self.tell(host, Event::Lost { blob: BLOB, chunks });
                    self.hosts[host].asked_ahead = 0;
                }
            }
        }
    }

    fn die(&mut self, host: usize) {
        self.hosts[host].dead = true;
        for at in (0..self.hosts.len()).filter(|at| *at != host) {
            // Half of the deaths are noticed, the other half is silence.
            if host.is_multiple_of(2) && !self.hosts[at].dead {
                self.tell(at, Event::PeerDown { peer: number(host) });
            }
        }
    }

    fn say(&mut self, from: usize, to: usize, message: &Message) {
        self.messages += 1;
        let apart = self.cut > 0 && (from < self.cut) != (to < self.cut);
        let times = if apart || self.random.below(1000) < self.rules.lost {
            0
        } else if self.random.below(1000) < self.rules.twice {
            2
        } else {
            1
        };
        for _ in 0..times {
            let jitter = self.random.below(usize::try_from(self.rules.jitter).unwrap() + 1) as u64;
            self.after(self.rules.latency + jitter, Happens::Say { from, to, message: message.clone() });
        }
    }

    fn heard(&mut self, from: usize, to: usize, message: Message) {
        let nature = self.hosts[to].nature;
        if let Message::Ask { request, chunks, .. } = &message {
            let (request, chunks) = (*request, *chunks);
            match nature {
                Nature::Mute => return,
                Nature::Promiser => {
                    self.say(to, from, &Message::Pending { request, chunks });
                    return;
                }
                Nature::Liar if !chunks.numbers().all(|chunk| self.hosts[to].truth.contains(&chunk)) => {
                    let (why, others) = (RejectReason::Missing, Vec::new());
                    self.say(to, from, &Message::Reject { request, chunks, why, others });
                    let runs = vec![Chunks { first: 0, count: self.rules.chunks }];
                    self.say(to, from, &Message::Have { blob: BLOB, runs });
                    return;
                }
                _ => {}
            }
        }
        if let Message::Cancel { request } = &message {
            self.hosts[to].cancelled.insert((from, *request));
        }
        self.tell(to, Event::Received { peer: number(from), message });
    }

    pub(super) fn tell(&mut self, host: usize, event: Event<'_>) {
        let mut actions = Vec::new();
        let now = self.now;
        self.hosts[host].node.on_event(now, event, &mut actions);
        if self.rules.chunks < 400 {
            self.hosts[host].node.check();
        }
        for action in actions {
            self.act(host, action);
        }
    }

    fn act(&mut self, host: usize, action: Action) {
        match action {
            Action::Send { peer, message } => self.say(host, peer.0 as usize, &message),
            Action::Serve { peer, request, chunks, urgency, blob } => {
                assert_eq!(blob, BLOB);
                let queue = usize::from(urgency == Urgency::Background);
                let record = self.hosts[host].queues[1].iter();
                let is_it = |b: &Bytes| {
                    (b.to, b.request) == (peer.0 as usize, request) && chunks.numbers().contains(&b.chunk)
                };
                let again: Vec<Bytes> = record.copied().filter(is_it).collect();
                if !again.is_empty() && urgency == Urgency::Demand {
                    self.hosts[host].queues[1].retain(|b| !is_it(b));
                    self.hosts[host].queues[0].extend(again);
                    return;
                }
                for chunk in chunks.numbers() {
                    let bytes = Bytes { from: host, to: peer.0 as usize, request, chunk };
                    self.hosts[host].queues[queue].push_back(bytes);
                }
                self.send_next(host);
            }
            Action::Fetch { fetch, chunks, urgency, .. } => {
                if !self.hosts[host].fetches.insert(fetch) {
                    // Repeated: a read waits for it now.
                    if let Some(at) = self.store.iter().position(|r| (r.host, r.fetch) == (host, Some(fetch)))
                    {
                        self.store.swap(0, at);
                    }
                    return;
                }
                self.fetched_by_agents += u64::from(chunks.count);
                self.ask_store(StoreRequest { host, fetch: Some(fetch), chunks, sent: 0, urgency });
            }
            Action::Answer { want, from_store } => self.answered(host, want, &from_store),
            Action::Drop { peer, offence } => {
                let peer = peer.0 as usize;
                self.hosts[host].drops.push((peer, offence));
            }
            Action::WakeAt(at) => {
                assert!(at >= self.now);
                self.hosts[host].wake = Some(at);
                self.push(at, Happens::Wake(host));
            }
        }
    }

    fn ask_store(&mut self, request: StoreRequest) {
        self.after(self.rules.store_latency, Happens::StoreBegins(request));
    }

    fn store_next(&mut self) {
        if !self.store_busy && !self.store.is_empty() {
            self.store_busy = true;
            self.after(micros(CHUNK_SIZE, self.rules.store), Happens::StoreSent);
        }
    }

    fn store_sent(&mut self) {
        self.store_busy = false;
        let Some(mut request) = self.store.pop_front() else { return };
        request.sent += 1;
        self.store_chunks += 1;
        let fails = self.store_away || self.random.below(1000) < self.rules.store_fails;
        if request.sent < request.chunks.count && !fails {
            self.store.push_back(request);
        } else if !self.hosts[request.host].dead {
            self.store_done(request, !fails);
        }
        self.store_next();
    }

    fn store_done(&mut self, request: StoreRequest, ok: bool) {
        let StoreRequest { host, fetch, chunks, .. } = request;
        if ok {
            self.hosts[host].truth.extend(chunks.numbers());
        } else if fetch.is_none() && !self.store_away {
            self.ask_store(StoreRequest { sent: 0, ..request });
            return;
        }
        match fetch {
            Some(fetch) => self.tell(host, Event::Fetched { fetch, ok }),
            None if ok => {
                self.hosts[host].disk_fetches.retain(|chunk| !chunks.numbers().contains(chunk));
                self.tell(host, Event::BecameLocal { blob: BLOB, chunks });
            }
            None => self.hosts[host].disk_fetches.retain(|chunk| !chunks.numbers().contains(chunk)),
        }
        self.check_disk(host);
    }

    fn rate(&self, host: usize) -> u64 {
        if self.hosts[host].nature == Nature::Slow { self.rules.host / 100 } else { self.rules.host }
    }

    fn send_next(&mut self, host: usize) {
        let wait = micros(CHUNK_SIZE, self.rate(host));
        let sender = &mut self.hosts[host];
        if sender.sending.is_some() || sender.dead {
            return;
        }
        let [demand, background] = &mut sender.queues;
        sender.sending = demand.pop_front().or_else(|| background.pop_front());
        if sender.sending.is_some() {
            self.after(wait, Happens::Sent(host));
        }
    }

    fn sent(&mut self, host: usize) {
        let Some(bytes) = self.hosts[host].sending.take() else { return };
        if self.hosts[host].dead {
            return;
        }
        let (to, chunk) = (bytes.to, bytes.chunk);
        let missing = !self.hosts[host].truth.contains(&chunk) && self.hosts[host].nature == Nature::Honest;
        assert!(!missing || self.evicts, "host {host} was told to send chunk {chunk}, which it has not");
        let (peer, request, chunks) = (number(to), bytes.request, Chunks::one(chunk));
        let outcome = if missing { Served::Missing } else { Served::Well };
        if !missing {
            let came = self.hosts[to].down_free.max(self.now.0) + micros(CHUNK_SIZE, self.rate(to));
            self.hosts[to].down_free = came;
            self.push(Time(came + self.rules.latency), Happens::Landed { to, bytes });
        }
        self.tell(host, Event::Served { peer, request, blob: BLOB, chunks, outcome });
        self.send_next(host);
    }

    fn landed(&mut self, to: usize, bytes: Bytes) {
        if self.hosts[to].dead || self.hosts[to].drops.iter().any(|(peer, _)| *peer == bytes.from) {
            return;
        }
        if self.cut > 0 && (to < self.cut) != (bytes.from < self.cut) {
            return;
        }
        let (peer, chunks) = (number(bytes.from), Chunks::one(bytes.chunk));
        if self.hosts[bytes.from].nature == Nature::Corrupt {
            if let Some(request) = bytes.request {
                self.tell(to, Event::Came { peer, request, chunks, outcome: Came::Corrupt });
            }
            return;
        }
        self.hosts[to].truth.insert(bytes.chunk);
        match bytes.request {
            Some(request) => self.tell(to, Event::Came { peer, request, chunks, outcome: Came::Kept }),
            None => self.tell(to, Event::Pushed { peer, blob: BLOB, chunks }),
        }
    }

    fn want(&mut self, host: usize, chunks: &[u32], urgency: Urgency) -> Vec<WantId> {
        let mut runs = Vec::new();
        chunks.iter().for_each(|chunk| push(&mut runs, *chunk));
        let mut ids = Vec::new();
        for run in runs {
            let want = WantId(self.hosts[host].next_want);
            self.hosts[host].next_want += 1;
            self.hosts[host].wants.insert(want, (run.numbers().collect(), urgency));
            self.wants += 1;
            ids.push(want);
            self.tell(host, Event::Want { want, blob: BLOB, chunks: run, urgency });
        }
        ids
    }

    fn answered(&mut self, host: usize, want: WantId, from_store: &[Chunks]) {
        self.answers += 1;
        let Some((chunks, urgency)) = self.hosts[host].wants.remove(&want) else {
            panic!("{want:?} was answered twice, or never told");
        };
        let mut ascends = from_store.iter().zip(from_store.iter().skip(1));
        assert!(ascends.all(|(a, b)| a.numbers().end < b.first), "{from_store:?}");
        let left: BTreeSet<u32> = from_store.iter().flat_map(|run| run.numbers()).collect();
        for chunk in chunks {
            let here = self.hosts[host].truth.contains(&chunk);
            // A chunk that was lost since it came is wanted again when it is read.
            assert!(here || left.contains(&chunk) || self.evicts, "chunk {chunk} was said to be here");
        }
        for run in from_store {
            let new: Vec<u32> = run
                .numbers()
                .filter(|chunk| !self.hosts[host].truth.contains(chunk))
                .filter(|chunk| !self.hosts[host].disk_fetches.contains(chunk))
                .collect();
            self.hosts[host].disk_fetches.extend(new.iter().copied());
            let mut runs = Vec::new();
            new.into_iter().for_each(|chunk| push(&mut runs, chunk));
            for chunks in runs {
                self.ask_store(StoreRequest { host, fetch: None, chunks, sent: 0, urgency });
            }
        }
        self.check_disk(host);
    }

    /// Lets a disk go on if the chunks that it reads are local.
    fn check_disk(&mut self, host: usize) {
        let record = &self.hosts[host];
        if record.waits.is_none() {
            return;
        }
        let missing = self.reading(host);
        let wanted = |chunk: &u32| record.wants.values().any(|(chunks, _)| chunks.contains(chunk));
        if missing.iter().all(|chunk| !wanted(chunk) && !record.disk_fetches.contains(chunk)) {
            // All are local, or lost again.
            self.hosts[host].waits = None;
            self.after(0, Happens::Step(host));
        }
    }

    /// The chunks of the current read that are not local.
    fn reading(&self, host: usize) -> Vec<u32> {
        let record = &self.hosts[host];
        let end = (record.at + self.rules.read as usize).min(record.plan.len());
        record.plan[record.at..end].iter().copied().filter(|chunk| !record.truth.contains(chunk)).collect()
    }

    fn step(&mut self, host: usize) {
        if self.hosts[host].dead || self.hosts[host].done.is_some() {
            return;
        }
        loop {
            let missing = self.reading(host);
            if !missing.is_empty() {
                if self.hosts[host].waits.is_none() {
                    self.hosts[host].waits = Some(WantId(self.hosts[host].next_want));
                    self.want(host, &missing, Urgency::Demand);
                    self.want_ahead(host);
                }
                return;
            }
            self.hosts[host].waits = None;
            let (at, read) = (self.hosts[host].at, self.rules.read as usize);
            let end = (at + read).min(self.hosts[host].plan.len());
            let chunks: Vec<u32> = self.hosts[host].plan[at..end].into();
            for chunk in chunks {
                self.tell(host, Event::Read { blob: BLOB, chunks: Chunks::one(chunk) });
            }
            self.hosts[host].at = end;
            if end == self.hosts[host].plan.len() {
                self.hosts[host].done = Some(self.now);
                return;
            }
        }
    }

    fn want_ahead(&mut self, host: usize) {
        let record = &self.hosts[host];
        let from = (record.at + self.rules.read as usize).max(record.asked_ahead).min(record.plan.len());
        let to = (record.at + (self.rules.read + self.rules.ahead) as usize).min(record.plan.len());
        if from < to {
            let chunks: Vec<u32> =
                record.plan[from..to].iter().copied().filter(|chunk| !record.truth.contains(chunk)).collect();
            self.hosts[host].asked_ahead = to;
            self.want(host, &chunks, Urgency::Background);
        }
    }

    /// The hosts that live.
    pub(super) fn hosts_left(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.hosts.iter().enumerate().filter(|(_, host)| !host.dead)
    }
}
