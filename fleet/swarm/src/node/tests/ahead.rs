//! Chunks that are sent ahead, requests that cross them, and the time for which chunks without urgency are waited for;
//! event by event.

use crate::event::{Came, Served};
use crate::message::RequestId;
use crate::recent::{ChunkKey, Recent, Saved, SavedChain, SavedItem};
use crate::{
    Action, BlobId, BlobKey, CHUNK_SIZE, Chunks, Event, Message, Node, NodeSettings, PeerId, PeerKey,
    RejectReason, Role, Time, Topology, Urgency, WantId,
};

pub(super) const BLOB: BlobId = BlobId(3);
pub(super) const OTHER: PeerId = PeerId(1);
const ALL: Chunks = Chunks { first: 0, count: 64 };

/// A node that knows one other host.
pub(super) struct One {
    pub(super) node: Node,
    pub(super) now: Time,
}

impl One {
    fn new(role: Role, local: &[Chunks]) -> Self {
        Self::with(role, local, 64, false)
    }

    /// A node that sends at most `push` chunks ahead, and whose agent has a store if the blob is `fetchable`.
    pub(super) fn with(role: Role, local: &[Chunks], push: u32, fetchable: bool) -> Self {
        let settings = NodeSettings { topology: Topology::Roots, push, ..NodeSettings::default() };
        let (mut one, len) =
            (Self { node: Node::new(PeerKey(1), role, settings), now: Time(0) }, 64 * CHUNK_SIZE);
        let other = if role == Role::Root { Role::Agent } else { Role::Root };
        one.tell(Event::Opened { blob: BLOB, key: BlobKey(9), len, local, fetchable });
        one.tell(Event::PeerUp { peer: OTHER, key: PeerKey(2), role: other });
        one.tell(Event::PeerShares { peer: OTHER, blob: BLOB });
        one
    }

    pub(super) fn tell(&mut self, event: Event<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.node.on_event(self.now, event, &mut actions);
        self.node.check();
        actions
    }

    pub(super) fn hears(&mut self, message: Message) -> Vec<Action> {
        self.tell(Event::Received { peer: OTHER, message })
    }

    pub(super) fn want(&mut self, want: u64, chunks: Chunks, urgency: Urgency) -> Vec<Action> {
        self.tell(Event::Want { want: WantId(want), blob: BLOB, chunks, urgency })
    }

    fn asks(&mut self, request: u32, chunk: u32, urgency: Urgency) -> Vec<Action> {
        let (request, chunks) = (RequestId(request), Chunks::one(chunk));
        self.hears(Message::Ask { request, blob: BLOB, chunks, urgency, hops: 24, no_redirect: false })
    }

    /// Lets time pass, tick by tick.
    pub(super) fn wait(&mut self, millis: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        for _ in 0..millis.div_ceil(10) {
            self.now = Time(self.now.0 + 10_000);
            actions.extend(self.tell(Event::Tick));
        }
        actions
    }
}

/// An agent that sees a root that has everything, and has asked to be its agent.
fn agent() -> One {
    let mut one = One::new(Role::Agent, &[]);
    one.wait(100);
    one.hears(Message::JoinAccepted);
    one.hears(Message::Have { blob: BLOB, runs: vec![ALL] });
    one
}

fn asked(actions: &[Action]) -> Vec<(RequestId, Chunks, Urgency)> {
    let ask = |action: &Action| match action {
        Action::Send { message: Message::Ask { request, chunks, urgency, .. }, .. } => {
            Some((*request, *chunks, *urgency))
        }
        _ => None,
    };
    actions.iter().filter_map(ask).collect()
}

fn served(actions: &[Action]) -> Vec<(Option<RequestId>, Chunks, Urgency)> {
    let serve = |action: &Action| match action {
        Action::Serve { request, chunks, urgency, .. } => Some((*request, *chunks, *urgency)),
        _ => None,
    };
    actions.iter().filter_map(serve).collect()
}

pub(super) fn is_answered(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Answer { .. }))
}

pub(super) fn is_cancelled(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Send { message: Message::Cancel { .. }, .. }))
}

/// A read waits for one chunk of a request without urgency. When that chunk has come, the others may take their time:
/// their sender is not silent.
#[test]
fn the_rest_of_what_was_promoted_comes_when_it_is_its_turn() {
    let mut one = agent();
    let sent = asked(&one.want(1, Chunks { first: 8, count: 4 }, Urgency::Background));
    let [(request, ..)] = sent[..] else { panic!("{sent:?}") };
    let promoted = asked(&one.want(2, Chunks::one(10), Urgency::Demand));
    assert_eq!(promoted, [(request, Chunks::one(10), Urgency::Demand)]);
    one.wait(50);
    let (chunks, outcome) = (Chunks::one(10), Came::Kept);
    let came = one.tell(Event::Came { peer: OTHER, request, chunks, outcome });
    assert!(is_answered(&came));
    assert!(!is_cancelled(&one.wait(4000)));
    let next = asked(&one.want(3, Chunks::one(40), Urgency::Demand));
    assert_eq!(next.len(), 1, "its root is asked as before");
    assert_eq!(one.node.counters().timeouts, 0);
}

/// The same if the chunk that a read waits for comes without a request.
#[test]
fn the_rest_of_what_was_promoted_and_came_unasked_comes_when_it_is_its_turn() {
    let mut one = agent();
    one.want(1, Chunks { first: 8, count: 4 }, Urgency::Background);
    one.want(2, Chunks::one(10), Urgency::Demand);
    one.wait(50);
    let came = one.tell(Event::Pushed { peer: OTHER, blob: BLOB, chunks: Chunks::one(10) });
    assert!(is_answered(&came));
    assert!(!is_cancelled(&one.wait(4000)));
}

/// Chunks that no read waits for are not left to the disk while their source sends other chunks, and are when it is
/// silent.
#[test]
fn background_requests_wait_as_long_as_bytes_come() {
    let mut one = agent();
    one.want(1, Chunks { first: 0, count: 2 }, Urgency::Background);
    for chunk in 10..60 {
        assert!(!is_answered(&one.wait(1000)), "after {:?}", one.now);
        one.tell(Event::Pushed { peer: OTHER, blob: BLOB, chunks: Chunks::one(chunk) });
    }
    assert!(is_answered(&one.wait(20_000)));
}

/// A root of which an agent before this one has requested 0, 2, 4 and so on.
fn root() -> One {
    let mut one = One::new(Role::Root, &[ALL]);
    let item = |n: u32| SavedItem {
        piece: ChunkKey { blob: BlobKey(9), chunk: 2 * n },
        asked: 9,
        passed: 0,
        proven: true,
        used: n,
        claim: None,
    };
    let saved = Saved { chains: vec![SavedChain { items: (0..32).map(item).collect() }] };
    one.node.set_recent(Recent::load(&saved, 1000));
    one.hears(Message::Join);
    one
}

#[test]
fn pushed_chunks_go_before_background_requests() {
    let mut one = root();
    // The driver is given a few; others wait, and among them 8, which will be requested with urgency soon.
    assert_eq!(served(&one.asks(1, 1, Urgency::Background)).len(), 1);
    (3..13).for_each(|chunk| drop(one.asks(chunk, chunk, Urgency::Background)));
    let mut order: Vec<_> = served(&one.asks(99, 0, Urgency::Demand));
    assert_eq!(order.remove(0), (Some(RequestId(99)), Chunks::one(0), Urgency::Demand));
    let mut given = vec![(Some(RequestId(1)), 1), (Some(RequestId(3)), 3)];
    given.extend([(Some(RequestId(4)), 4), (Some(RequestId(5)), 5)]);
    let mut sent = Vec::new();
    while let Some((request, chunk)) = given.pop() {
        let chunks = Chunks::one(chunk);
        let more =
            one.tell(Event::Served { peer: OTHER, request, blob: BLOB, chunks, outcome: Served::Well });
        given.extend(served(&more).into_iter().map(|(request, chunks, _)| (request, chunks.first)));
        sent.extend(served(&more));
    }
    let of = |chunk: u32| sent.iter().position(|(_, chunks, _)| chunks.first == chunk);
    assert_eq!(sent.iter().filter(|(_, chunks, _)| chunks.first == 8).count(), 1);
    assert_eq!(of(8).map(|at| sent[at].0), Some(Some(RequestId(8))), "in answer to who asked");
    assert!(of(16) < of(7) && of(8) < of(7) && of(2) < of(8), "{sent:?}");
    assert!(of(7).is_some() && of(11).is_some(), "it is sent all the same");
}

#[test]
fn a_pushed_chunk_that_is_requested_is_promoted_and_sent_once() {
    let mut one = root();
    let pushed = served(&one.asks(1, 0, Urgency::Demand));
    assert!(pushed.contains(&(None, Chunks::one(2), Urgency::Background)), "{pushed:?}");
    let coming = |request: u32, chunk| Action::Send {
        peer: OTHER,
        message: Message::Pending { request: RequestId(request), chunks: Chunks::one(chunk) },
    };
    let again = one.asks(2, 2, Urgency::Demand);
    assert!(served(&again).contains(&(None, Chunks::one(2), Urgency::Demand)), "{again:?}");
    assert!(again.contains(&coming(2, 2)));
    let gone =
        |chunks| Event::Served { peer: OTHER, request: None, blob: BLOB, chunks, outcome: Served::Well };
    one.tell(gone(Chunks::one(2)));
    one.wait(40);
    one.hears(Message::Have { blob: BLOB, runs: vec![Chunks::one(2)] });
    // The next one crosses the request.
    one.tell(gone(Chunks::one(4)));
    let crossing = one.asks(3, 4, Urgency::Demand);
    assert!(crossing.contains(&coming(3, 4)) && !served(&crossing).iter().any(|(_, run, _)| run.first == 4));
    // It did not come.
    one.wait(200);
    assert!(served(&one.asks(4, 4, Urgency::Demand)).contains(&(
        Some(RequestId(4)),
        Chunks::one(4),
        Urgency::Demand
    )));
}

/// The number of times that an agent passed a chunk by, as the root remembers.
fn passed(one: &One, chunk: u32) -> u16 {
    let chains = one.node.recent().save().chains;
    let mut items = chains.iter().flat_map(|chain| &chain.items);
    items.find(|item| item.piece.chunk == chunk).expect("it is remembered").passed
}

/// A chunk that an agent has was read without a request, or not at all: only its reports tell which.
#[test]
fn only_an_agent_that_reports_its_reads_passes_chunks_that_it_has() {
    for reports in [false, true] {
        let mut one = root();
        if reports {
            one.hears(Message::Read { blob: BLOB, runs: vec![Chunks::one(63)] });
        }
        one.asks(1, 0, Urgency::Demand);
        one.hears(Message::Have { blob: BLOB, runs: vec![Chunks { first: 0, count: 17 }] });
        one.asks(2, 40, Urgency::Demand);
        assert_eq!([2, 16].map(|chunk| passed(&one, chunk)), [u16::from(reports); 2], "{reports}");
        assert_eq!([18, 38].map(|chunk| passed(&one, chunk)), [1; 2], "it lacks these");
    }
}

#[test]
fn a_root_remembers_requests_of_its_own_agents_and_only_if_it_pushes() {
    for (joins, push, remembered) in [(true, 64, 1), (false, 64, 0), (true, 0, 0)] {
        let mut one = One::with(Role::Root, &[ALL], push, false);
        if joins {
            one.hears(Message::Join);
        }
        assert_eq!(served(&one.asks(1, 5, Urgency::Demand)).len(), 1);
        assert_eq!(one.node.recent().len(), remembered, "{joins} {push}");
    }
}

/// An agent that requests a chunk again could not keep it.
#[test]
fn a_chunk_that_left_in_answer_to_a_request_is_sent_again_at_the_next() {
    let mut one = root();
    let chunks = Chunks::one(1);
    let answer = |request| (Some(RequestId(request)), chunks, Urgency::Demand);
    assert!(served(&one.asks(1, 1, Urgency::Demand)).contains(&answer(1)));
    let (peer, request, blob, outcome) = (OTHER, Some(RequestId(1)), BLOB, Served::Well);
    one.tell(Event::Served { peer, request, blob, chunks, outcome });
    assert!(served(&one.asks(2, 1, Urgency::Demand)).contains(&answer(2)));
}

#[test]
fn a_chunk_that_could_not_be_sent_ahead_is_not_said_to_be_on_its_way() {
    for outcome in [Served::Missing, Served::Unchecked] {
        let mut one = root();
        let (peer, request, blob, chunks) = (OTHER, None, BLOB, Chunks::one(2));
        let pushed = served(&one.asks(1, 0, Urgency::Demand));
        assert!(pushed.contains(&(request, chunks, Urgency::Background)), "{pushed:?}");
        one.tell(Event::Served { peer, request, blob, chunks, outcome });
        let answers = one.asks(2, 2, Urgency::Demand);
        let (request, why, others) = (RequestId(2), RejectReason::Failed, Vec::new());
        let message = Message::Reject { request, chunks, why, others };
        assert!(answers.contains(&Action::Send { peer, message }), "no store has it: {answers:?}");
    }
}
