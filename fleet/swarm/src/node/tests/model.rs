//! The paper's Algorithms 1 and 3 against a plain model of them.

use crate::Node;
use crate::event::Came;
use crate::message::RequestId;
use crate::node::chunks::{Aim, ChunkState};
use crate::{
    Action, BlobId, BlobKey, CHUNK_SIZE, Chunks, Event, Message, NodeSettings, PeerId, PeerKey, ReaderId,
    RejectReason, Role, Time, Topology, Urgency, WantId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const BLOB: BlobId = BlobId(0);
const CHUNKS: u32 = 24;
const THRESHOLD: u64 = 3 * CHUNK_SIZE;

/// The paper's states of a chunk, and `Kept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Remote,
    Prefetch,
    Local,
    Kept,
    Read,
}

impl From<ChunkState> for State {
    fn from(state: ChunkState) -> Self {
        match state {
            ChunkState::Remote | ChunkState::Pending(Aim::Needed | Aim::Warm) => Self::Remote,
            ChunkState::Pending(Aim::Prefetch) => Self::Prefetch,
            ChunkState::Unread => Self::Local,
            ChunkState::Kept => Self::Kept,
            ChunkState::Read => Self::Read,
        }
    }
}

/// The paper's rules, chunk by chunk, with nothing clever; and, beyond them, that withheld chunks are requested later
/// in the order in which they were advertised.
#[derive(Default)]
struct Model {
    state: BTreeMap<u32, State>,
    source: BTreeMap<u32, BTreeSet<u32>>,
    /// Peers that were asked in vain for a chunk that is on its way.
    tried: BTreeMap<u32, BTreeSet<u32>>,
    /// Chunks that reads wait for.
    waited: BTreeSet<u32>,
    recorded: VecDeque<u32>,
    unmatched: u64,
    withheld: u64,
    planned: bool,
}

impl Model {
    fn state(&self, chunk: u32) -> State {
        self.state.get(&chunk).copied().unwrap_or(State::Remote)
    }

    fn sources(&self, chunk: u32) -> bool {
        self.source.get(&chunk).is_some_and(|sources| !sources.is_empty())
    }

    fn advert(&mut self, peer: u32, chunk: u32) {
        self.source.entry(chunk).or_default().insert(peer);
        if self.state(chunk) == State::Remote {
            self.recorded.push_back(chunk);
        }
        self.prefetch();
    }

    fn prefetch(&mut self) {
        let asked =
            |model: &Self| model.state.values().filter(|state| **state == State::Prefetch).count() as u64;
        while !self.planned && self.unmatched + (asked(self) + 1) * CHUNK_SIZE <= THRESHOLD {
            let Some(chunk) = self.recorded.pop_front() else { return };
            if self.state(chunk) == State::Remote && !self.waited.contains(&chunk) && self.sources(chunk) {
                self.state.insert(chunk, State::Prefetch);
            }
        }
    }

    /// Notes a read; `true` if the repository has to be asked.
    fn read(&mut self, chunk: u32) -> bool {
        match self.state(chunk) {
            State::Prefetch => {
                self.state.insert(chunk, State::Remote);
                self.waited.insert(chunk);
            }
            State::Remote if self.waited.contains(&chunk) => {}
            State::Remote if self.sources(chunk) => {
                if !self.planned {
                    self.withheld += CHUNK_SIZE;
                    if self.withheld >= THRESHOLD {
                        (self.withheld, self.unmatched) = (0, 0);
                    }
                }
                self.waited.insert(chunk);
            }
            State::Remote => {
                self.state.insert(chunk, State::Read);
                return true;
            }
            State::Local => {
                self.unmatched = self.unmatched.saturating_sub(CHUNK_SIZE);
                self.state.insert(chunk, State::Read);
            }
            State::Kept | State::Read => {}
        }
        false
    }

    fn came(&mut self, chunk: u32) {
        self.tried.remove(&chunk);
        if self.waited.remove(&chunk) {
            self.state.insert(chunk, State::Read);
        } else {
            self.state.insert(chunk, State::Local);
            self.unmatched += CHUNK_SIZE;
        }
    }

    /// Notes that a peer did not have a chunk that it advertised; `true` if the repository has to be asked.
    fn missing(&mut self, peer: u32, chunk: u32) -> bool {
        self.source.entry(chunk).or_default().remove(&peer);
        let tried = self.tried.entry(chunk).or_default();
        tried.insert(peer);
        if self.source[&chunk].iter().any(|source| !tried.contains(source)) {
            return false;
        }
        self.tried.remove(&chunk);
        if self.waited.remove(&chunk) {
            self.state.insert(chunk, State::Read);
            return true;
        }
        self.state.insert(chunk, State::Remote);
        false
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Advert(u32, u32),
    Read(u32),
    /// An answer, or a refusal, to the oldest or newest of the outstanding requests.
    Answer {
        newest: bool,
        well: bool,
    },
    Planned(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3_u32, 0..CHUNKS).prop_map(|(peer, chunk)| Step::Advert(peer, chunk)),
        3 => (0..CHUNKS).prop_map(Step::Read),
        4 => (any::<bool>(), 0..5).prop_map(|(newest, n)| Step::Answer { newest, well: n > 0 }),
        1 => any::<bool>().prop_map(Step::Planned),
    ];
    prop::collection::vec(step, 0..120)
}

struct Bench {
    node: Node,
    now: u64,
    wants: u64,
    /// Requests that were sent and not answered, with the peer and the chunk.
    asked: VecDeque<(RequestId, u32, u32)>,
    from_store: BTreeSet<u32>,
}

impl Bench {
    fn new() -> Self {
        let settings = NodeSettings {
            topology: Topology::Random(3),
            designated_fetchers: false,
            stripe: 1,
            threshold: Some(THRESHOLD),
            ..NodeSettings::default()
        };
        let node = Node::new(PeerKey(100), Role::Agent, settings);
        let mut bench = Self { node, now: 0, wants: 0, asked: VecDeque::new(), from_store: BTreeSet::new() };
        let len = u64::from(CHUNKS) * CHUNK_SIZE;
        bench.tell(Event::Opened { blob: BLOB, key: BlobKey(1), len, local: &[], fetchable: true });
        bench.tell(Event::ReadBy { blob: BLOB, reader: ReaderId(0) });
        for peer in 0..3 {
            bench.tell(Event::PeerUp {
                peer: PeerId(peer),
                key: PeerKey(u64::from(peer)),
                role: Role::Agent,
            });
            bench.tell(Event::PeerShares { peer: PeerId(peer), blob: BLOB });
        }
        bench
    }

    fn tell(&mut self, event: Event<'_>) {
        self.now += 10;
        let mut actions = Vec::new();
        self.node.on_event(Time(self.now), event, &mut actions);
        self.node.check();
        for action in actions {
            match action {
                Action::Send { peer, message: Message::Ask { request, chunks, .. } }
                    if !self.asked.iter().any(|other| other.0 == request) =>
                {
                    self.asked.push_back((request, peer.0, chunks.first));
                }
                Action::Answer { from_store, .. } => {
                    self.from_store.extend(from_store.iter().flat_map(|run| run.numbers()));
                }
                _ => {}
            }
        }
    }

    fn state(&self, chunk: u32) -> State {
        self.node.blobs[&BLOB].table.state(chunk).into()
    }
}

proptest! {
    #[test]
    fn the_node_reads_and_prefetches_as_the_papers_model(steps in steps()) {
        let (mut bench, mut model) = (Bench::new(), Model::default());
        for step in steps {
            let mut repository: BTreeSet<u32> = BTreeSet::new();
            match step {
                Step::Advert(peer, chunk) => {
                    let runs = vec![Chunks::one(chunk)];
                    bench.tell(Event::Received { peer: PeerId(peer), message: Message::Have { blob: BLOB, runs } });
                    model.advert(peer, chunk);
                }
                Step::Read(chunk) => {
                    let here = bench.node.blobs[&BLOB].table.is_local(chunk);
                    repository.extend(model.read(chunk).then_some(chunk));
                    if here {
                        bench.tell(Event::Read { blob: BLOB, chunks: Chunks::one(chunk) });
                    } else {
                        bench.wants += 1;
                        let (want, chunks) = (WantId(bench.wants), Chunks::one(chunk));
                        bench.tell(Event::Want { want, blob: BLOB, chunks, urgency: Urgency::Demand });
                    }
                    model.prefetch();
                }
                Step::Answer { newest, well } => {
                    let known = if newest { bench.asked.pop_back() } else { bench.asked.pop_front() };
                    let Some((request, peer, chunk)) = known else { continue };
                    let (peer, chunks) = (PeerId(peer), Chunks::one(chunk));
                    if well {
                        model.came(chunk);
                        bench.tell(Event::Came { peer, request, chunks, outcome: Came::Kept });
                    } else {
                        repository.extend(model.missing(peer.0, chunk).then_some(chunk));
                        let (why, others) = (RejectReason::Missing, Vec::new());
                        let message = Message::Reject { request, chunks, why, others };
                        bench.tell(Event::Received { peer, message });
                    }
                    model.prefetch();
                }
                Step::Planned(running) => {
                    model.planned = running;
                    model.prefetch();
                    bench.tell(Event::Planned { blob: BLOB, running });
                }
            }
            let from_store = std::mem::take(&mut bench.from_store);
            prop_assert_eq!(&from_store, &repository);
            for chunk in from_store {
                // The disk fetches it at once.
                bench.tell(Event::BecameLocal { blob: BLOB, chunks: Chunks::one(chunk) });
                bench.tell(Event::Read { blob: BLOB, chunks: Chunks::one(chunk) });
            }
            for chunk in 0..CHUNKS {
                prop_assert_eq!(bench.state(chunk), model.state(chunk), "chunk {}", chunk);
            }
            prop_assert_eq!(bench.node.unmatched(), model.unmatched);
            let on_its_way = model.state.values().filter(|state| **state == State::Prefetch).count() as u64;
            let unread = bench.node.blobs[&BLOB].unread() + on_its_way * CHUNK_SIZE;
            prop_assert!(unread <= THRESHOLD * (1 + bench.node.counters().resets), "{} bytes", unread);
            let asked: BTreeSet<u32> = bench.asked.iter().map(|other| other.2).collect();
            let prefetched = model.state.iter().filter(|(_, state)| **state == State::Prefetch).map(|(c, _)| *c);
            prop_assert_eq!(asked, prefetched.chain(model.waited.iter().copied()).collect());
        }
    }

    #[test]
    fn the_source_with_the_fewest_requests_is_asked(chunks in prop::collection::vec(0..CHUNKS, 1..40)) {
        let mut bench = Bench::new();
        bench.tell(Event::Planned { blob: BLOB, running: true });
        for peer in 0..3 {
            let runs = vec![Chunks { first: 0, count: CHUNKS }];
            bench.tell(Event::Received { peer: PeerId(peer), message: Message::Have { blob: BLOB, runs } });
        }
        for (want, chunk) in (0..).zip(chunks) {
            let chunks = Chunks::one(chunk);
            bench.tell(Event::Want { want: WantId(want), blob: BLOB, chunks, urgency: Urgency::Demand });
            let load = |peer| bench.asked.iter().filter(|other| other.1 == peer).count();
            let loads = [load(0), load(1), load(2)];
            prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1, "{:?}", loads);
        }
    }
}
