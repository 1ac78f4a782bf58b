//! Any events in any order, as a driver may report them that keeps its part of the contract: numbers of wants, blobs
//! and hosts are used once. The invariants hold after each, and every want is answered once, in the end.

use crate::event::{Came, Served};
use crate::message::RequestId;
use crate::{
    Action, BlobId, BlobKey, CHUNK_SIZE, Chunks, Event, Message, Node, NodeSettings, PeerId, PeerKey,
    ReaderId, RejectReason, Role, StoreFetchId, Time, Topology, Urgency, WantId,
};
use headstart_block::random::Random;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

const CHUNKS: u32 = 24;

/// The driver of one node that talks to nothing.
struct Driver {
    random: Random,
    node: Node,
    now: Time,
    wake: Option<Time>,
    /// Wants that are to be answered, with their blobs.
    wants: Vec<(WantId, BlobId)>,
    next_want: u64,
    blobs: Vec<BlobId>,
    next_blob: u32,
    peers: Vec<PeerId>,
    next_peer: u32,
    /// Requests of the node, fetches, bytes to send, and chunks that disks are to fetch, not all of them current.
    asked: Vec<(PeerId, RequestId, Chunks)>,
    fetches: BTreeSet<StoreFetchId>,
    serves: Vec<(PeerId, Option<RequestId>, BlobId, Chunks)>,
    left: Vec<(BlobId, Chunks)>,
}

impl Driver {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let topology = match random.below(5) {
            0 => Topology::Ring,
            1 => Topology::Random(2),
            2 => Topology::Similar(2),
            3 => Topology::Roots,
            _ => Topology::Tree(2),
        };
        let settings = NodeSettings {
            topology,
            designated_fetchers: random.below(4) > 0,
            stripe: 1 + random.below(6) as u32,
            threshold: [None, Some(0), Some(6 * CHUNK_SIZE), Some(u64::MAX)][random.below(4)],
            prefetch_window: [4, 64][random.below(2)] * CHUNK_SIZE,
            serve_window: [2, 128][random.below(2)] * CHUNK_SIZE,
            agents_max: [None, Some(1)][random.below(2)],
            push: [0, 4][random.below(2)],
            seed,
            ..NodeSettings::default()
        };
        let role = [Role::Root, Role::Agent][random.below(2)];
        let mut driver = Self {
            random,
            node: Node::new(PeerKey(1000), role, settings),
            now: Time(0),
            wake: None,
            wants: Vec::new(),
            next_want: 0,
            blobs: Vec::new(),
            next_blob: 0,
            peers: Vec::new(),
            next_peer: 0,
            asked: Vec::new(),
            fetches: BTreeSet::new(),
            serves: Vec::new(),
            left: Vec::new(),
        };
        (0..2).for_each(|_| driver.open());
        (0..4).for_each(|_| driver.connect());
        driver
    }

    fn tell(&mut self, event: Event<'_>) {
        let mut actions = Vec::new();
        self.node.on_event(self.now, event, &mut actions);
        self.node.check();
        for action in actions {
            match action {
                Action::Send { peer, message: Message::Ask { request, chunks, .. } } => {
                    self.asked.push((peer, request, chunks));
                }
                Action::Send { .. } => {}
                Action::Serve { peer, request, blob, chunks, .. } => {
                    self.serves.push((peer, request, blob, chunks));
                }
                Action::Fetch { fetch, .. } => {
                    self.fetches.insert(fetch);
                }
                Action::Answer { want, from_store } => {
                    let at = self.wants.iter().position(|(other, _)| *other == want);
                    let (_, blob) = self.wants.remove(at.expect("a want is answered once"));
                    self.left.extend(from_store.into_iter().map(|chunks| (blob, chunks)));
                }
                Action::Drop { peer, .. } => self.peers.retain(|other| *other != peer),
                Action::WakeAt(at) => self.wake = Some(at),
            }
        }
    }

    fn open(&mut self) {
        let blob = BlobId(self.next_blob);
        self.next_blob += 1;
        self.blobs.push(blob);
        let (first, fetchable) = (self.random.below(CHUNKS as usize) as u32, self.random.below(4) > 0);
        let local = [Chunks { first, count: self.random.below(4) as u32 }];
        let len = u64::from(CHUNKS) * CHUNK_SIZE - 100;
        let key = BlobKey(blob.0.into());
        self.tell(Event::Opened { blob, key, len, local: &local, fetchable });
        if self.random.below(3) > 0 {
            let reader = ReaderId(self.random.below(2) as u64);
            self.tell(Event::ReadBy { blob, reader });
        }
        for peer in self.peers.clone() {
            self.tell(Event::PeerShares { peer, blob });
        }
    }

    fn connect(&mut self) {
        let peer = PeerId(self.next_peer);
        self.next_peer += 1;
        self.peers.push(peer);
        let (key, role) = (self.key(), [Role::Root, Role::Agent][self.random.below(2)]);
        self.tell(Event::PeerUp { peer, key, role });
        for blob in self.blobs.clone() {
            self.tell(Event::PeerShares { peer, blob });
        }
    }

    fn key(&mut self) -> PeerKey {
        PeerKey(self.random.below(8) as u64)
    }

    fn blob(&mut self) -> BlobId {
        let at = self.random.below(self.blobs.len() + 1);
        self.blobs.get(at).copied().unwrap_or(BlobId(99))
    }

    fn peer(&mut self) -> PeerId {
        let at = self.random.below(self.peers.len() + 1);
        self.peers.get(at).copied().unwrap_or(PeerId(999))
    }

    /// A few chunks, some of them beyond the end.
    fn run(&mut self) -> Chunks {
        let first = self.random.below(CHUNKS as usize + 2) as u32;
        Chunks { first, count: self.random.below(6) as u32 }
    }

    fn urgency(&mut self) -> Urgency {
        [Urgency::Demand, Urgency::Background][self.random.below(2)]
    }

    /// A request of the node, or one that never was.
    fn request(&mut self) -> (PeerId, RequestId, Chunks) {
        let at = self.asked.len().saturating_sub(self.random.below(8) + 1);
        match self.asked.get(at) {
            Some(known) if self.random.below(10) > 0 => *known,
            _ => (self.peer(), RequestId(self.random.below(50) as u32), self.run()),
        }
    }

    fn message(&mut self) -> (PeerId, Message) {
        let (peer, blob, run) = (self.peer(), self.blob(), self.run());
        let request = RequestId(self.random.below(6) as u32);
        let message = match self.random.below(20) {
            0..5 => Message::Have { blob, runs: vec![run, self.run()] },
            5 => Message::Lost { blob, runs: vec![run] },
            6 => Message::Read { blob, runs: vec![run, self.run()] },
            7 => Message::Sketch { blob, least: vec![self.random.below(9) as u32; 64] },
            8..14 => {
                let (urgency, hops) = (self.urgency(), self.random.below(4) as u8);
                let no_redirect = self.random.below(4) == 0;
                Message::Ask { request, blob, chunks: run, urgency, hops, no_redirect }
            }
            14 => Message::Cancel { request },
            15 => Message::Join,
            16 => Message::JoinAccepted,
            17 => Message::JoinRefused,
            _ => return self.answer(),
        };
        (peer, message)
    }

    /// A promise, or a rejection.
    fn answer(&mut self) -> (PeerId, Message) {
        let (peer, request, mut chunks) = self.request();
        if self.random.below(3) == 0 {
            chunks.count = chunks.count.min(1);
        }
        let message = if self.random.below(2) == 0 {
            Message::Pending { request, chunks }
        } else {
            let why =
                [RejectReason::Missing, RejectReason::Busy, RejectReason::Failed, RejectReason::Unchecked]
                    [self.random.below(4)];
            let others = (0..self.random.below(3)).map(|_| self.key()).collect();
            Message::Reject { request, chunks, why, others }
        };
        (peer, message)
    }

    /// The end of something that the node has ordered.
    fn complete(&mut self) {
        match self.random.below(8) {
            0..4 => {
                let (peer, request, run) = self.request();
                let at = run.first + self.random.below(run.count.max(1) as usize) as u32;
                let chunks = if self.random.below(2) == 0 { run } else { Chunks::one(at) };
                let outcome = match self.random.below(30) {
                    0 => Came::Corrupt,
                    1 => Came::Failed,
                    _ => Came::Kept,
                };
                self.tell(Event::Came { peer, request, chunks, outcome });
            }
            4 => {
                let at = self.random.below(self.fetches.len().max(1));
                let Some(fetch) = self.fetches.iter().nth(at).copied() else { return };
                self.fetches.remove(&fetch);
                let ok = self.random.below(3) > 0;
                self.tell(Event::Fetched { fetch, ok });
            }
            5 | 6 if !self.serves.is_empty() => {
                let at = self.random.below(self.serves.len());
                let (peer, request, blob, chunks) = self.serves.swap_remove(at);
                let outcome = [Served::Well, Served::Well, Served::Missing, Served::Unchecked];
                let outcome = outcome[self.random.below(4)];
                self.tell(Event::Served { peer, request, blob, chunks, outcome });
            }
            _ if !self.left.is_empty() => {
                let at = self.random.below(self.left.len());
                let (blob, chunks) = self.left.swap_remove(at);
                self.tell(Event::BecameLocal { blob, chunks });
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        let wait = [0, 10, 1000, 50_000, 700_000, 12_000_000][self.random.below(6)];
        self.now = Time(self.now.0 + self.random.below(wait + 1) as u64);
        let (blob, peer, chunks) = (self.blob(), self.peer(), self.run());
        match self.random.below(60) {
            0..8 => {
                let (want, urgency) = (WantId(self.next_want), self.urgency());
                self.next_want += 1;
                self.wants.push((want, blob));
                self.tell(Event::Want { want, blob, chunks, urgency });
            }
            8 => {
                let at = self.random.below(self.wants.len().max(1));
                if at < self.wants.len() {
                    let (want, _) = self.wants.swap_remove(at);
                    self.tell(Event::Forget { want });
                }
            }
            9 | 10 => self.tell(Event::Read { blob, chunks }),
            11 => self.tell(Event::BecameLocal { blob, chunks }),
            12 | 13 => self.tell(Event::Lost { blob, chunks }),
            14 => {
                let running = self.random.below(2) == 0;
                self.tell(Event::Planned { blob, running });
            }
            15 => self.tell(Event::Warm { blob, chunks }),
            16 => {
                let holders: Vec<PeerKey> = (0..self.random.below(5)).map(|_| self.key()).collect();
                let copies = self.random.below(3) as u32;
                self.tell(Event::Pinned { blob, holders: &holders, copies });
            }
            17 => self.tell(Event::Pushed { peer, blob, chunks }),
            18 if self.blobs.len() > 1 => {
                self.blobs.retain(|other| *other != blob);
                self.wants.retain(|(_, other)| *other != blob);
                self.left.retain(|(other, _)| *other != blob);
                self.tell(Event::Closed { blob });
            }
            19 if self.blobs.len() < 3 => self.open(),
            20 => {
                self.peers.retain(|other| *other != peer);
                self.tell(Event::PeerDown { peer });
            }
            21 if self.peers.len() < 6 => self.connect(),
            22..40 => {
                let (peer, message) = self.message();
                self.tell(Event::Received { peer, message });
            }
            40..55 => self.complete(),
            _ => self.tell(Event::Tick),
        }
    }

    /// Lets time pass as the node wishes, and nothing else happen.
    fn rest(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.wake.take().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.tell(Event::Tick);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn invariants_hold_and_wants_are_answered_whatever_happens(seed in any::<u64>(), steps in 0..400_u32) {
        let mut driver = Driver::new(seed);
        (0..steps).for_each(|_| driver.step());
        let longest = driver.node.settings().longest();
        driver.rest(longest * 2);
        prop_assert!(driver.wants.is_empty(), "{} wants are not answered", driver.wants.len());
    }
}
