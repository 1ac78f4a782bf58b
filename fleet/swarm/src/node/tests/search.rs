//! The hosts that are asked for a chunk, one after the other, and the time for which each is waited for.

use super::ahead::{BLOB, OTHER, One, is_answered, is_cancelled};
use crate::event::Came;
use crate::message::RequestId;
use crate::{Action, Chunks, Event, Message, Offence, PeerId, PeerKey, RejectReason, Role, Urgency};

const ROOT: PeerId = OTHER;
const THIRD: PeerId = PeerId(2);

/// An agent of a root, beside another agent. Neither has advertised anything.
fn agent() -> One {
    let mut one = One::with(Role::Agent, &[], 0, true);
    one.tell(Event::PeerUp { peer: THIRD, key: PeerKey(3), role: Role::Agent });
    one.tell(Event::PeerShares { peer: THIRD, blob: BLOB });
    one.wait(100);
    one.hears(Message::JoinAccepted);
    one
}

fn third_says(one: &mut One, message: Message) -> Vec<Action> {
    one.tell(Event::Received { peer: THIRD, message })
}

/// A read waits for a chunk.
fn read(one: &mut One, chunk: u32) -> Vec<Action> {
    one.want(chunk.into(), Chunks::one(chunk), Urgency::Demand)
}

fn rejects(
    one: &mut One,
    (peer, request): (PeerId, RequestId),
    chunk: u32,
    why: RejectReason,
) -> Vec<Action> {
    let message = Message::Reject { request, chunks: Chunks::one(chunk), why, others: Vec::new() };
    one.tell(Event::Received { peer, message })
}

/// A request of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    peer: PeerId,
    hops: u8,
    no_redirect: bool,
}

impl Asked {
    const fn new(peer: PeerId, hops: u8, no_redirect: bool) -> Self {
        Self { peer, hops, no_redirect }
    }
}

/// The usual request to the root, which fetches the chunk or passes the request on.
const USUAL: Asked = Asked::new(ROOT, 24, false);

/// The only request among the actions, if there is one.
fn asked(actions: &[Action]) -> Option<(RequestId, Asked)> {
    let ask = |action: &Action| match action {
        Action::Send { peer, message: Message::Ask { request, hops, no_redirect, .. } } => {
            Some((*request, Asked::new(*peer, *hops, *no_redirect)))
        }
        _ => None,
    };
    let asks: Vec<_> = actions.iter().filter_map(ask).collect();
    assert!(asks.len() <= 1, "{asks:?}");
    asks.first().copied()
}

/// Lets a peer repeat its promise, and send nothing, until the node cancels the request. Returns the milliseconds until
/// then, and the actions at that time.
fn wait_for_promised(one: &mut One, (peer, request): (PeerId, RequestId), chunk: u32) -> (u64, Vec<Action>) {
    for waited in (0..20_000).step_by(10) {
        if waited % 400 == 0 {
            let message = Message::Pending { request, chunks: Chunks::one(chunk) };
            one.tell(Event::Received { peer, message });
        }
        let actions = one.wait(10);
        if is_cancelled(&actions) {
            return (waited + 10, actions);
        }
    }
    panic!("it is waited for without end");
}

#[test]
fn a_request_that_is_passed_on_has_a_hop_less_until_the_store_is_asked() {
    let mut one = agent();
    let mut asks = |chunk, hops| {
        let (request, chunks, urgency) = (RequestId(chunk), Chunks::one(chunk), Urgency::Demand);
        let ask = Message::Ask { request, blob: BLOB, chunks, urgency, hops, no_redirect: false };
        let actions = third_says(&mut one, ask);
        let fetches = actions.iter().any(|action| matches!(action, Action::Fetch { .. }));
        (asked(&actions).map(|(_, asked)| asked.hops), fetches)
    };
    assert_eq!(asks(1, 7), (Some(6), false));
    assert_eq!(asks(2, 2), (Some(1), false));
    assert_eq!(asks(3, 1), (None, true));
}

#[test]
fn a_peer_that_names_itself_is_asked_once_more_to_name_no_other() {
    let mut one = agent();
    let actions = read(&mut one, 5);
    let (request, first) = asked(&actions).unwrap();
    assert_eq!(first, USUAL);
    let itself = |request| Message::Reject {
        request,
        chunks: Chunks::one(5),
        why: RejectReason::Busy,
        others: vec![PeerKey(2)],
    };
    let actions = one.hears(itself(request));
    let (request, second) = asked(&actions).unwrap();
    assert_eq!(second, Asked { no_redirect: true, ..USUAL });
    let actions = one.hears(itself(request));
    assert_eq!(asked(&actions), None);
    assert!(is_answered(&actions), "the store is left");
}

/// A host that has not checked a chunk, or could not fetch it, has told no lie.
#[test]
fn only_a_peer_that_lacks_what_it_advertised_is_dropped_as_a_liar() {
    for why in [RejectReason::Missing, RejectReason::Busy, RejectReason::Failed, RejectReason::Unchecked] {
        let mut one = agent();
        let mut is_dropped = false;
        for chunk in 0..40 {
            third_says(&mut one, Message::Have { blob: BLOB, runs: vec![Chunks::one(chunk)] });
            let actions = read(&mut one, chunk);
            let (request, asked) = asked(&actions).unwrap();
            if asked.peer == THIRD {
                assert_eq!(asked.hops, 0, "it is asked only for what it has");
                let actions = rejects(&mut one, (THIRD, request), chunk, why);
                is_dropped |= actions.contains(&Action::Drop { peer: THIRD, offence: Offence::Lies });
            }
        }
        assert_eq!(is_dropped, why == RejectReason::Missing, "{why:?}");
    }
}

/// Reads a chunk that the root refuses and the disk does not get from the store, until any host is asked. Returns the
/// first request, which is to the root.
fn fall_back(one: &mut One, chunk: u32) -> RequestId {
    let actions = read(one, chunk);
    let (request, _) = asked(&actions).unwrap();
    assert!(is_answered(&rejects(one, (ROOT, request), chunk, RejectReason::Failed)));
    assert_eq!(asked(&one.wait(1900)), None, "the disk has its time");
    let actions = one.wait(200);
    let (request, again) = asked(&actions).expect("other hosts are asked");
    assert_eq!(again, Asked::new(ROOT, 0, true));
    request
}

#[test]
fn other_hosts_are_asked_for_a_chunk_that_a_disk_does_not_get_and_then_before_the_store() {
    let mut one = agent();
    let request = fall_back(&mut one, 5);
    let actions = rejects(&mut one, (ROOT, request), 5, RejectReason::Missing);
    let (request, third) = asked(&actions).unwrap();
    assert_eq!(third, Asked::new(THIRD, 0, true));
    one.tell(Event::Came { peer: THIRD, request, chunks: Chunks::one(5), outcome: Came::Kept });
    let actions = read(&mut one, 6);
    assert_eq!(asked(&actions).unwrap().1, Asked::new(ROOT, 0, true), "the store had failed");
    one.tell(Event::BecameLocal { blob: BLOB, chunks: Chunks::one(20) });
    let actions = read(&mut one, 7);
    assert_eq!(asked(&actions).unwrap().1, USUAL, "the store has answered");
}

/// A host that has a chunk as far as is known may wait for another one that sends it; a host that was asked because any
/// may have it waits for none.
#[test]
fn a_promise_by_any_host_is_believed_half_as_long_as_one_by_a_host_that_advertised() {
    let mut one = agent();
    third_says(&mut one, Message::Have { blob: BLOB, runs: vec![Chunks::one(5)] });
    let actions = read(&mut one, 5);
    let (request, third) = asked(&actions).unwrap();
    assert_eq!(third, Asked::new(THIRD, 0, false));
    let (waited, _) = wait_for_promised(&mut one, (THIRD, request), 5);
    assert!((2400..2700).contains(&waited), "{waited} ms");
    let mut one = agent();
    let request = fall_back(&mut one, 5);
    let (waited, _) = wait_for_promised(&mut one, (ROOT, request), 5);
    assert!((1200..1500).contains(&waited), "{waited} ms");
}

#[test]
fn other_hosts_are_probed_for_chunks_that_an_upstream_promises_and_does_not_send() {
    let mut one = agent();
    // A fetch that takes long: the store is slow, so the promise is not given up for that.
    let (request, chunks, urgency) = (RequestId(1), Chunks::one(1), Urgency::Demand);
    third_says(&mut one, Message::Ask { request, blob: BLOB, chunks, urgency, hops: 1, no_redirect: false });
    let actions = read(&mut one, 5);
    let (request, root) = asked(&actions).unwrap();
    assert_eq!(root, USUAL);
    let (waited, actions) = wait_for_promised(&mut one, (ROOT, request), 5);
    assert!((5000..5600).contains(&waited), "{waited} ms");
    let (request, probed) = asked(&actions).unwrap();
    assert_eq!(probed, Asked::new(THIRD, 0, true));
    assert_eq!(one.node.counters().timeouts, 0, "the root is not blamed");
    // The other host has nothing: the root is asked again.
    let actions = rejects(&mut one, (THIRD, request), 5, RejectReason::Missing);
    assert_eq!(asked(&actions).unwrap().1, USUAL);
}
