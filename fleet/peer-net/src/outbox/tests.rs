//! The order in which items go out.

use super::*;
use headstart_block::{Digest, random::Random};
use headstart_cache::{BlobSpec, Cache, CacheSettings};
use headstart_swarm::{BlobId, RejectReason};

fn blob() -> Arc<Blob> {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), CacheSettings::default()).unwrap();
    let spec = BlobSpec { digest: Digest::of(b""), len: 100 << 16, tree: None, origin: None };
    Arc::new(Blob::data(BlobId(1), cache.blob(&spec).unwrap(), [0; 32], None))
}

fn serve(blob: &Arc<Blob>, request: u32, count: u32, urgency: Urgency) -> Serve {
    let (request, chunks) = (Some(RequestId(request)), Chunks { first: 0, count });
    Serve { request, blob: Arc::clone(blob), chunks, urgency }
}

fn ask(request: u32, urgency: Urgency) -> Message {
    let (request, chunks) = (RequestId(request), Chunks::one(0));
    Message::Ask { request, blob: BlobId(1), chunks, urgency, hops: 0, no_redirect: false }
}

/// The next output: the messages, and the request and number of a chunk.
fn next(outbox: &Outbox, gate: &SendGate) -> (Vec<Message>, Option<(u32, u32)>) {
    let mut buf = Vec::new();
    let chunk = match outbox.next(&mut buf, gate, 0) {
        Next::Chunk(sending) => {
            drop(gate.sending(&sending));
            (!sending.was_sent).then(|| (sending.serve.request.unwrap().0, sending.chunk))
        }
        _ => None,
    };
    let mut messages = Vec::new();
    let mut rest = &buf[..];
    while let Some((header, behind)) = rest.split_first_chunk() {
        let header = frame::Header::decode(header).unwrap();
        let (body, behind) = behind.split_at(header.len);
        messages.push(frame::decode_message(body).unwrap());
        rest = behind;
    }
    (messages, chunk)
}

#[track_caller]
fn ok(result: Result<(), Overflow>) {
    assert_eq!(result.map_err(|Overflow| "there is room"), Ok(()));
}

#[test]
fn demand_is_sent_before_background() {
    let (outbox, gate, blob) = (Outbox::default(), SendGate::default(), blob());
    let advert = Message::Have { blob: BlobId(1), runs: vec![Chunks::one(3)] };
    ok(outbox.serve(serve(&blob, 1, 1, Urgency::Background), &gate, 0));
    ok(outbox.send(ask(2, Urgency::Background)));
    ok(outbox.send(advert.clone()));
    ok(outbox.send(ask(3, Urgency::Demand)));
    ok(outbox.serve(serve(&blob, 4, 2, Urgency::Demand), &gate, 0));
    // Small urgent items go with the first urgent chunk; nothing else does.
    assert_eq!(next(&outbox, &gate), (vec![ask(3, Urgency::Demand)], Some((4, 0))));
    assert_eq!(next(&outbox, &gate), (vec![], Some((4, 1))));
    assert_eq!(next(&outbox, &gate), (vec![advert, ask(2, Urgency::Background)], None));
    assert_eq!(next(&outbox, &gate), (vec![], Some((1, 0))));
    assert!(matches!(outbox.next(&mut Vec::new(), &gate, 0), Next::Nothing { held_back: false }));
}

#[test]
fn prefetches_wait_for_who_waits_at_any_host() {
    let (one, other, gate, blob) = (Outbox::default(), Outbox::default(), SendGate::default(), blob());
    ok(one.serve(serve(&blob, 1, 1, Urgency::Demand), &gate, 0));
    ok(other.serve(serve(&blob, 1, 1, Urgency::Background), &gate, 0));
    assert!(matches!(other.next(&mut Vec::new(), &gate, 1), Next::Nothing { held_back: true }));
    // A host that takes nothing does not hold them back.
    let stalled = STALLED_MS + 1;
    assert!(matches!(other.next(&mut Vec::new(), &gate, stalled), Next::Chunk(_)));
    ok(other.serve(serve(&blob, 2, 1, Urgency::Background), &gate, 0));
    gate.progressed(stalled);
    assert!(matches!(other.next(&mut Vec::new(), &gate, stalled), Next::Nothing { held_back: true }));
    assert_eq!(next(&one, &gate).1, Some((1, 0)));
    assert_eq!(next(&other, &gate).1, Some((2, 0)));
    ok(one.serve(serve(&blob, 3, 5, Urgency::Demand), &gate, 0));
    one.close(&gate);
    ok(other.serve(serve(&blob, 4, 1, Urgency::Background), &gate, 0));
    assert_eq!(next(&other, &gate).1, Some((4, 0)));
}

#[test]
fn cancelled_requests_are_not_sent() {
    let (outbox, gate, blob) = (Outbox::default(), SendGate::default(), blob());
    ok(outbox.serve(serve(&blob, 1, 3, Urgency::Demand), &gate, 0));
    ok(outbox.serve(serve(&blob, 2, 1, Urgency::Background), &gate, 0));
    assert_eq!(next(&outbox, &gate).1, Some((1, 0)));
    let left: Vec<_> = outbox.cancel(RequestId(1), &gate).into_iter().map(|serve| serve.chunks).collect();
    assert_eq!(left, [Chunks { first: 1, count: 2 }]);
    assert_eq!(next(&outbox, &gate).1, Some((2, 0)));
    // A request that was not sent yet is taken back without a message.
    ok(outbox.send(ask(5, Urgency::Background)));
    ok(outbox.send(Message::Cancel { request: RequestId(5) }));
    assert_eq!(next(&outbox, &gate), (vec![], None));
    // A request that may have been sent is not taken back.
    ok(outbox.send(ask(6, Urgency::Demand)));
    ok(outbox.send(Message::Cancel { request: RequestId(6) }));
    assert_eq!(next(&outbox, &gate).0, [Message::Cancel { request: RequestId(6) }]);
}

#[test]
fn a_chunk_is_sent_once_for_each_request() {
    let (outbox, gate, blob) = (Outbox::default(), SendGate::default(), blob());
    ok(outbox.serve(serve(&blob, 1, 2, Urgency::Background), &gate, 0));
    assert_eq!(next(&outbox, &gate).1, Some((1, 0)));
    ok(outbox.serve(serve(&blob, 1, 2, Urgency::Demand), &gate, 0));
    let sent: Vec<_> = (0..4).filter_map(|_| next(&outbox, &gate).1).collect();
    assert_eq!(sent, [(1, 1)]);
}

#[test]
fn an_outbox_is_bounded() {
    let (outbox, gate, blob) = (Outbox::default(), SendGate::default(), blob());
    let mut random = Random::new(1);
    let mut cut_off = 0;
    for _ in 0..100_000 {
        let number = random.below(5);
        let request = RequestId(1);
        let result = match number {
            0 => outbox.send(Message::Have { blob: BlobId(1), runs: vec![Chunks::one(1)] }),
            1 => outbox.send(ask(1, Urgency::Background)),
            2 => outbox.send(Message::Reject {
                request,
                chunks: Chunks::one(0),
                why: RejectReason::Missing,
                others: Vec::new(),
            }),
            3 => outbox.serve(serve(&blob, 1, 1, Urgency::Demand), &gate, 0),
            _ => outbox.control(FrameKind::Withdrawn, 1, &[]),
        };
        if result.is_err() {
            cut_off += 1;
            break;
        }
    }
    assert_eq!(cut_off, 1);
    assert!(outbox.waiting() as u64 <= (MESSAGES_MAX + ADVERTS_MAX) as u64 + CHUNKS_MAX + 1);
}

#[test]
fn a_pushed_chunk_is_promoted_by_a_request_and_sent_once() {
    let (outbox, gate, blob) = (Outbox::default(), SendGate::default(), blob());
    let pushed = |chunk, urgency| {
        let (blob, chunks) = (Arc::clone(&blob), Chunks::one(chunk));
        ok(outbox.serve(Serve { request: None, blob, chunks, urgency }, &gate, 0));
    };
    let next = || match outbox.next(&mut Vec::new(), &gate, 0) {
        Next::Chunk(sending) => {
            drop(gate.sending(&sending));
            Some((sending.serve.request, sending.chunk, sending.serve.urgency))
        }
        _ => None,
    };
    (0..3).for_each(|chunk| pushed(chunk, Urgency::Background));
    ok(outbox.serve(serve(&blob, 1, 1, Urgency::Demand), &gate, 0));
    pushed(2, Urgency::Demand);
    pushed(7, Urgency::Demand);
    let (demand, background) = (Urgency::Demand, Urgency::Background);
    assert_eq!(next(), Some((Some(RequestId(1)), 0, demand)));
    assert_eq!(next(), Some((None, 2, demand)));
    pushed(2, Urgency::Demand);
    assert_eq!([next(), next(), next()], [Some((None, 0, background)), Some((None, 1, background)), None]);
    assert_eq!(outbox.waiting(), 0);
}
