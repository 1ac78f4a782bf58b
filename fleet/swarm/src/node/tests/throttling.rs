//! The bytes that are prefetched and not read, whatever events come in whatever order.

use crate::Node;
use crate::event::Came;
use crate::message::RequestId;
use crate::{
    Action, BlobId, BlobKey, CHUNK_SIZE, Chunks, Event, Message, NodeSettings, PeerId, PeerKey, ReaderId,
    RejectReason, Role, Time, Topology, Urgency, WantId,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const PEERS: u32 = 3;
const CHUNKS: u32 = 64;

/// Two layers of one disk's image, one of another's, and a hash tree.
const READERS: [Option<u64>; 4] = [Some(1), Some(1), Some(2), None];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// An advert of a peer: it has these chunks of a blob.
    Advert(u32, u32, Chunks),
    /// A read of a chunk of a blob by a disk.
    Read(u32, u32),
    /// An answer, or a refusal, to the oldest or newest request.
    Answer {
        newest: bool,
        well: bool,
    },
    Evict(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let blob = 0..READERS.len() as u32;
    let runs = (0..CHUNKS, 1..32_u32).prop_map(|(first, count)| Chunks { first, count });
    let step = prop_oneof![
        3 => (0..PEERS, blob.clone(), runs).prop_map(|(peer, blob, run)| Step::Advert(peer, blob, run)),
        3 => (blob.clone(), 0..CHUNKS).prop_map(|(blob, chunk)| Step::Read(blob, chunk)),
        4 => (any::<bool>(), 0..5).prop_map(|(newest, n)| Step::Answer { newest, well: n > 0 }),
        1 => (blob, 0..CHUNKS).prop_map(|(blob, chunk)| Step::Evict(blob, chunk)),
    ];
    prop::collection::vec(step, 0..200)
}

struct Bench {
    node: Node,
    now: u64,
    wants: u64,
    /// Requests that were sent and not answered.
    asked: VecDeque<(PeerId, RequestId, BlobId, Chunks)>,
}

impl Bench {
    fn new() -> Self {
        let topology = Topology::Random(PEERS);
        let settings = NodeSettings { topology, designated_fetchers: false, ..NodeSettings::default() };
        let node = Node::new(PeerKey(100), Role::Agent, settings);
        let mut bench = Self { node, now: 0, wants: 0, asked: VecDeque::new() };
        for peer in 0..PEERS {
            let key = PeerKey(u64::from(peer));
            bench.tell(Event::PeerUp { peer: PeerId(peer), key, role: Role::Agent });
        }
        for (blob, reader) in (0..).zip(READERS) {
            let (blob, key, len) =
                (BlobId(blob), BlobKey(u64::from(blob)), u64::from(CHUNKS) * CHUNK_SIZE - 100);
            bench.tell(Event::Opened { blob, key, len, local: &[], fetchable: true });
            if let Some(reader) = reader {
                bench.tell(Event::ReadBy { blob, reader: ReaderId(reader) });
            }
            for peer in 0..PEERS {
                bench.tell(Event::PeerShares { peer: PeerId(peer), blob });
            }
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
                Action::Send { peer, message: Message::Ask { request, blob, chunks, urgency, .. } } => {
                    let ahead = urgency == Urgency::Background;
                    assert!(!ahead || READERS[blob.0 as usize].is_some(), "nobody reads what is asked for");
                    if !self.asked.iter().any(|other| other.1 == request) {
                        self.asked.push_back((peer, request, blob, chunks));
                    }
                }
                Action::Answer { from_store, want } => {
                    // The disk fetches it at once.
                    let blob = BlobId((want.0 % READERS.len() as u64) as u32);
                    for chunks in from_store {
                        self.tell(Event::BecameLocal { blob, chunks });
                        self.tell(Event::Read { blob, chunks });
                    }
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Advert(peer, blob, run) => {
                let message = Message::Have { blob: BlobId(blob), runs: vec![run] };
                self.tell(Event::Received { peer: PeerId(peer), message });
            }
            Step::Read(blob, chunk) => {
                let (id, chunks) = (BlobId(blob), Chunks::one(chunk));
                if self.node.blobs[&id].table.is_local(chunk) {
                    return self.tell(Event::Read { blob: id, chunks });
                }
                self.wants += READERS.len() as u64;
                let (want, urgency) = (WantId(self.wants + u64::from(blob)), Urgency::Demand);
                self.tell(Event::Want { want, blob: id, chunks, urgency });
            }
            Step::Answer { newest, well } => {
                let known = if newest { self.asked.pop_back() } else { self.asked.pop_front() };
                let Some((peer, request, _, chunks)) = known else { return };
                if well {
                    return self.tell(Event::Came { peer, request, chunks, outcome: Came::Kept });
                }
                let message =
                    Message::Reject { request, chunks, why: RejectReason::Missing, others: Vec::new() };
                self.tell(Event::Received { peer, message });
            }
            Step::Evict(blob, chunk) => {
                self.tell(Event::Lost { blob: BlobId(blob), chunks: Chunks::one(chunk) });
            }
        }
    }

    /// `true` if this host was told of a chunk in time to prefetch it, and did not.
    fn is_withheld(&self, blob: u32, chunk: u32) -> bool {
        let blob = &self.node.blobs[&BlobId(blob)];
        blob.table.is_news(chunk) && blob.is_advertised(chunk)
    }

    /// For each reader: bytes that are unread or on their way ahead of need, and the threshold.
    fn unread(&self) -> Vec<(u64, u64)> {
        let of = |reader| {
            let blobs =
                (0..).zip(READERS).filter(|(_, of)| *of == Some(reader)).map(|(blob, _)| BlobId(blob));
            blobs.map(|blob| self.node.blobs[&blob].unread()).sum::<u64>()
        };
        let accounts = self.node.prefetch.throttles();
        accounts.map(|(reader, known)| (of(reader.0) + known.on_its_way(), known.threshold())).collect()
    }
}

proptest! {
    /// No withheld chunk is read, as on hosts that read other chunks than their neighbours.
    #[test]
    fn never_more_than_the_threshold_is_unread(steps in steps()) {
        let mut bench = Bench::new();
        for step in steps {
            if !matches!(step, Step::Read(blob, chunk) if bench.is_withheld(blob, chunk)) {
                bench.take(step);
            }
            for (unread, threshold) in bench.unread() {
                prop_assert!(unread <= threshold, "{} of {}", unread, threshold);
            }
        }
        prop_assert_eq!(bench.node.counters().resets, 0);
    }

    #[test]
    fn once_more_for_each_threshold_that_was_withheld_and_read(steps in steps()) {
        let mut bench = Bench::new();
        let mut withheld = 0;
        for step in steps {
            withheld += u64::from(matches!(step, Step::Read(blob, chunk) if bench.is_withheld(blob, chunk)));
            bench.take(step);
            let resets = bench.node.counters().resets;
            for (unread, threshold) in bench.unread() {
                prop_assert!(unread <= threshold * (1 + resets), "{} of {}, {}", unread, threshold, resets);
            }
            prop_assert!(resets <= withheld / 8, "{} for {} reads", resets, withheld);
        }
    }
}

#[test]
fn layers_of_one_image_share_an_account_and_a_read_of_one_makes_room_for_another() {
    let mut bench = Bench::new();
    let advert = |blob| Step::Advert(0, blob, Chunks { first: 0, count: 8 });
    (0..READERS.len() as u32).for_each(|blob| bench.take(advert(blob)));
    let count = |bench: &Bench| {
        let mut chunks = [0; READERS.len()];
        bench.asked.iter().for_each(|(_, _, blob, run)| chunks[blob.0 as usize] += run.count);
        chunks
    };
    assert_eq!(count(&bench), [8, 0, 8, 0], "each disk's threshold is 8 chunks, and nobody reads the last");
    while !bench.asked.is_empty() {
        bench.take(Step::Answer { newest: false, well: true });
    }
    bench.take(Step::Read(0, 0));
    assert_eq!(count(&bench), [0, 1, 0, 0]);
}

#[test]
fn a_chunk_that_arrives_after_its_request_was_given_up_is_unread() {
    let mut bench = Bench::new();
    bench.take(Step::Advert(0, 0, Chunks::one(3)));
    bench.now += 3_600_000_000;
    bench.tell(Event::Tick);
    assert!(bench.node.blobs[&BlobId(0)].table.pending(3).is_none());
    bench.take(Step::Answer { newest: false, well: true });
    assert_eq!((bench.node.unmatched(), bench.node.counters().prefetched), (CHUNK_SIZE, 1));
}
