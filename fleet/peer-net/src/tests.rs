//! Several swarms over loopback: the frames that get through, and those that must not.
//!
//! Each host has a cache directory of its own; certificates are made for the test. Waits are bounded, and no test
//! depends on the duration of an operation.

use super::channel::Wire;
use super::frame::{FrameKind, HEADER, Header, Hello, VERSION, push_encoded, push_frame};
use super::*;
use crate::testing::{Cluster, LONG, Rogue, SampleBlob, TestHost, ask, sample};
use headstart_block::{ErrorKind, ReadAt};
use headstart_swarm::{CHUNK_SIZE, Message, RequestId};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(super) mod earlier;
pub(super) mod gossip;
mod hash_trees;
mod hints;
mod renewing;
mod rogues;
mod roles;
mod trust;

/// Wants `range`, all of which has to come from other hosts.
#[track_caller]
fn bring(cluster: &Cluster, shared: &SharedBlob, range: ByteRange) {
    let swarm = &shared.shared.as_ref().unwrap().swarm;
    // The parts are no larger than the queue of a host for another.
    for part in range.parts(4 << 20) {
        let want = async { tokio::time::timeout(LONG, shared.want(part, Urgency::Demand)).await };
        let from_store = cluster.runtime.block_on(want).unwrap();
        assert!(from_store.is_empty(), "{from_store:?} {:?} {:?}", swarm.counters(), swarm.node_counters());
    }
}

#[track_caller]
fn assert_same(blob: &CachedBlob, sample: &SampleBlob, range: ByteRange) {
    let mut read = vec![0; usize::try_from(range.len()).unwrap()];
    blob.read_at(&mut read, range.offset()).unwrap();
    let start = usize::try_from(range.offset()).unwrap();
    assert!(read == sample.bytes[start..start + read.len()]);
}

#[test]
fn a_blob_goes_from_host_to_host() {
    let cluster = Cluster::new(&["a", "b", "c"]);
    // The tree has three chunks, and the last chunk of the blob is short.
    let sample = sample((40 << 20) + 12345, 1);
    let a = cluster.host("a", Role::Agent, &[]);
    a.fill(&sample);
    let at_a = a.attach(&sample);
    let b = cluster.patient_host("b", &[a.swarm.address()]);
    let at_b = b.attach(&sample);
    cluster.wait_until("they share the blob", || b.shares_with(1) && b.is_connected_to(1) && b.has_heard());
    let all = ByteRange::between(0, sample.spec.len);
    let some = ByteRange::between(5 << 20, (5 << 20) + 1);
    bring(&cluster, &at_b, some);
    assert_same(at_b.blob(), &sample, ByteRange::between(5 << 20, (5 << 20) + CHUNK_SIZE));
    bring(&cluster, &at_b, all);
    assert_same(at_b.blob(), &sample, all);
    // The blob goes on from a host that has it only from the first one.
    drop(at_a);
    cluster.runtime.block_on(a.swarm.stop());
    let c = cluster.patient_host("c", &[b.swarm.address()]);
    let at_c = c.attach(&sample);
    cluster.wait_until("they share the blob", || c.shares_with(1) && c.has_heard());
    bring(&cluster, &at_c, all);
    assert_same(at_c.blob(), &sample, all);
    let counters = c.swarm.counters();
    assert!(counters.received_bytes >= sample.spec.len, "{counters:?}");
    assert_eq!((counters.dropped_corrupt, counters.dropped_other), (0, 0), "{counters:?}");
}

#[test]
fn a_stranger_gets_nothing() {
    let cluster = Cluster::new(&["a"]);
    let strangers = Cluster::new(&["b"]);
    let a = cluster.host("a", Role::Agent, &[]);
    // A certificate of another authority.
    let refused = Rogue::connect(&cluster, &strangers.credentials("b"), ("a", a.swarm.address()));
    assert!(refused.is_err());
    // No certificate, and no TLS.
    let nothing = cluster.runtime.block_on(async {
        let mut socket = TcpStream::connect(a.swarm.address()).await.unwrap();
        let mut frame = Vec::new();
        let hello =
            Hello { version: VERSION, name: "b".into(), is_root: false, is_tracker: false, nonce: [0; 32] };
        push_encoded(&mut frame, FrameKind::Hello, &hello).unwrap();
        socket.write_all(&frame).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(LONG, socket.read_to_end(&mut answer)).await.unwrap();
        read.is_err() || answer.len() < HEADER || answer[0] != 1
    });
    assert!(nothing, "a plain hello was answered");
    cluster.wait_until("both are counted", || a.swarm.counters().refused_connections >= 2);
    assert!(a.is_connected_to(0));
    // A host that gossips with another key is not connected: hosts that know no others see none.
    let b = strangers.host("b", Role::Agent, &[a.swarm.address()]);
    cluster.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1500)).await });
    assert!(a.is_connected_to(0) && b.is_connected_to(0));
}

#[test]
fn a_name_that_the_certificate_lacks_is_refused() {
    let cluster = Cluster::new(&["a", "b", "c"]);
    let a = cluster.host("a", Role::Agent, &[]);
    let mut false_name = cluster.credentials("b");
    false_name.name = "c".into();
    // The other end notices and hangs up, before or after this end is done.
    if let Ok(mut rogue) = Rogue::connect(&cluster, &false_name, ("a", a.swarm.address())) {
        assert!(rogue.next(&cluster).is_none());
    }
    cluster.wait_until("it is counted", || a.swarm.counters().refused_connections >= 1);
    assert!(a.is_connected_to(0));
    // A host with another name than the expected one does not get through.
    let refused = Rogue::connect(&cluster, &cluster.credentials("b"), ("c", a.swarm.address()));
    assert!(refused.is_err());
}

#[test]
fn a_peer_without_proof_of_access_gets_no_bytes() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(300_000, 2);
    let a = cluster.host("a", Role::Agent, &[]);
    a.fill(&sample);
    let _at_a = a.attach(&sample);
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let mut rogue = Rogue::connect(&cluster, &cluster.credentials("b"), ("a", a.swarm.address())).unwrap();
    // Without a proof.
    rogue.say(&cluster, &ask(1, 7, 0));
    let refused = |request| Message::Reject {
        request: RequestId(request),
        chunks: Chunks::one(0),
        why: headstart_swarm::RejectReason::Missing,
        others: Vec::new(),
    };
    assert_eq!(rogue.next_message(&cluster), Some(refused(1)));
    // With the proof for another root, another direction, another connection.
    rogue.prove(&cluster, 7, &sample.spec, &[7; 32]);
    rogue.say(&cluster, &ask(2, 7, 0));
    assert_eq!(rogue.next_message(&cluster), Some(refused(2)));
    let reflected = proof::proof(&root, &rogue.binding, proof::Side::Acceptor, &sample.spec.digest);
    let replayed = proof::proof(&root, &[9; 32], proof::Side::Dialer, &sample.spec.digest);
    for (number, proof) in [(8, reflected), (9, replayed)] {
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Proof, number, 0, proof.as_bytes());
        rogue.send(&cluster, &frame);
        rogue.say(&cluster, &ask(number, number, 0));
        assert_eq!(rogue.next_message(&cluster), Some(refused(number)));
    }
    assert!(a.shares_with(0));
    assert_eq!(a.swarm.counters().sent_bytes, 0);
    // With the right proof the rogue gets the chunk: the refusals above had no other cause.
    rogue.prove(&cluster, 10, &sample.spec, &root);
    rogue.say(&cluster, &ask(10, 10, 1));
    let came = loop {
        let (header, body) = rogue.next(&cluster).unwrap();
        if header.kind == FrameKind::Chunk {
            break (header, body);
        }
    };
    assert_eq!((came.0.a, came.0.b), (10, 1));
    assert!(came.1 == sample.bytes[65536..131072]);
}

#[test]
fn a_peer_that_sends_corrupt_chunks_is_dropped() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(1 << 20, 3);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    at_a.tree().unwrap().blob().insert(0, &sample.outboard).unwrap();
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let b = cluster.credentials("b");
    let mut rogue = Rogue::connect(&cluster, &b, ("a", a.swarm.address())).unwrap();
    rogue.prove(&cluster, 1, &sample.spec, &root);
    let all = Chunks { first: 0, count: 16 };
    rogue.say(&cluster, &Message::Have { blob: headstart_swarm::BlobId(1), runs: vec![all] });
    // It asks for advertised chunks, and gets other bytes.
    let asked = loop {
        if let Message::Ask { request, chunks, .. } = rogue.next_message(&cluster).expect("it asks") {
            break (request, chunks);
        }
    };
    let mut frame = Vec::new();
    push_frame(&mut frame, FrameKind::Chunk, asked.0.0, asked.1.first, &vec![0x55; 65536]);
    rogue.send(&cluster, &frame);
    cluster.wait_until("it is dropped", || a.swarm.counters().dropped_corrupt == 1 && a.is_connected_to(0));
    assert_eq!(at_a.blob().local_bytes(), 0);
    // The rogue may come back, but is not let in.
    if let Ok(mut again) = Rogue::connect(&cluster, &b, ("a", a.swarm.address())) {
        while let Some((header, _)) = again.next(&cluster) {
            assert_eq!(header.kind, FrameKind::Refused);
        }
    }
    assert!(a.is_connected_to(0));
}

#[test]
fn a_wrong_chunk_of_a_tree_is_found() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(40 << 20, 4);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    let tree = at_a.shared.as_ref().unwrap().blob.tree.clone().unwrap();
    let from = headstart_swarm::PeerId(1);
    let chunk = |at: usize| &sample.outboard[at << 16..sample.outboard.len().min((at + 1) << 16)];
    // Later chunks cannot be checked before the first is there; then they are, and their senders are known.
    let mut wrong = chunk(1).to_vec();
    wrong[5000] ^= 1;
    let kept = |kept: Result<blob::Kept>| match kept {
        Ok(blob::Kept::Whole(late)) => Ok((late.liars, late.right)),
        Ok(blob::Kept::TreeMissing) => unreachable!("it has no tree"),
        Err(error) => Err(error.kind()),
    };
    let other = headstart_swarm::PeerId(2);
    assert_eq!(kept(tree.keep(1, &wrong, from)), Ok((vec![], vec![])));
    assert_eq!(kept(tree.keep(2, chunk(2), other)), Ok((vec![], vec![])));
    // Until then they are not passed on.
    assert!(tree.is_unchecked(1) && tree.is_unchecked(2));
    let (liars, mut right) = kept(tree.keep(0, chunk(0), other)).unwrap();
    assert_eq!(liars, [from]);
    // The wrong chunk is gone, and now a wrong one is found at once.
    assert!(!tree.cached.is_local(tree.bytes_of(1)));
    assert_eq!(kept(tree.keep(1, &wrong, from)), Err(ErrorKind::Corrupt));
    let (liars, later) = kept(tree.keep(1, chunk(1), from)).unwrap();
    assert_eq!(liars, []);
    right.extend(later);
    assert_eq!(right, [2]);
    assert!((0..3).all(|chunk| !tree.is_unchecked(chunk)));
    let mut bytes = vec![0; sample.outboard.len()];
    tree.cached.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == sample.outboard);
}

/// The refusal is no lie, although the host had announced that it has the chunk.
#[test]
fn unchecked_chunks_are_not_served() {
    let cluster = Cluster::new(&["a", "b"]);
    let sample = sample(40 << 20, 6);
    let a = cluster.host("a", Role::Agent, &[]);
    let at_a = a.attach(&sample);
    let outboard = at_a.tree().unwrap();
    let tree = Arc::clone(&outboard.shared.as_ref().unwrap().blob);
    let chunk = |at: usize| &sample.outboard[at << 16..(at + 1) << 16];
    let keep = |at: u32| match tree.keep(at, chunk(at as usize), headstart_swarm::PeerId(9)).unwrap() {
        blob::Kept::Whole(late) => late,
        blob::Kept::TreeMissing => unreachable!("it has no tree"),
    };
    keep(1);
    outboard.became_local(tree.bytes_of(1));
    let known = sample.spec.tree.unwrap();
    let mut other = Rogue::connect(&cluster, &cluster.credentials("b"), ("a", a.swarm.address())).unwrap();
    let spec = BlobSpec { digest: known.digest, ..sample.spec.clone() };
    other.prove(&cluster, 1, &spec, known.root.as_bytes());
    other.say(&cluster, &ask(5, 1, 1));
    let why = loop {
        if let Message::Reject { why, .. } = other.next_message(&cluster).expect("it answers") {
            break why;
        }
    };
    assert_eq!(why, headstart_swarm::RejectReason::Unchecked);
    // The chunk is passed on as soon as it can be checked.
    let late = keep(0);
    assert_eq!(late.right, [1]);
    a.swarm.host.checked_late(&tree, &late);
    other.say(&cluster, &ask(6, 1, 1));
    let came = loop {
        let (header, body) = other.next(&cluster).unwrap();
        if header.kind == FrameKind::Chunk {
            break body;
        }
    };
    assert!(came == chunk(1));
}

#[test]
fn nonsense_ends_the_connection() {
    let cluster = Cluster::new(&["a", "b", "c", "d", "e", "f"]);
    let sample = sample(300_000, 5);
    let a = cluster.host("a", Role::Agent, &[]);
    let _at_a = a.attach(&sample);
    let root = *sample.spec.tree.unwrap().root.as_bytes();
    let header = |kind: u8, len: u32| {
        let mut bytes = [0; HEADER];
        bytes[0] = kind;
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes.to_vec()
    };
    let mut beyond = Vec::new();
    push_encoded(&mut beyond, FrameKind::Message, &ask(1, 1, 5)).unwrap();
    let garbage = [header(2, 5), vec![0xff; 5]].concat();
    let nonsense = [
        ("b", header(99, 0)),
        ("c", header(2, u32::MAX)),
        ("d", garbage),
        ("e", beyond),
        ("f", header(1, 0)),
    ];
    for (dropped, (name, bytes)) in nonsense.into_iter().enumerate() {
        let credentials = cluster.credentials(name);
        let mut rogue = Rogue::connect(&cluster, &credentials, ("a", a.swarm.address())).unwrap();
        rogue.prove(&cluster, 1, &sample.spec, &root);
        rogue.send(&cluster, &bytes);
        while rogue.next(&cluster).is_some() {}
        let expected = dropped as u64 + 1;
        cluster.wait_until("it is dropped", || a.swarm.counters().dropped_other == expected);
    }
    cluster.wait_until("none is left", || a.is_connected_to(0));
}

/// Sockets without a certificate, many more than are let in at a time, keep no host of the cluster out.
#[test]
fn strangers_do_not_keep_hosts_out() {
    let cluster = Cluster::new(&["a", "b"]);
    let a = cluster.host("a", Role::Agent, &[]);
    let credentials = cluster.credentials("b");
    let mut sockets = std::collections::VecDeque::new();
    for _ in 0..8 {
        // The sockets come again as fast as they are thrown out.
        for _ in 0..70 {
            sockets.push_back(std::net::TcpStream::connect(a.swarm.address()).unwrap());
        }
        while sockets.len() > 200 {
            sockets.pop_front();
        }
        let mut rogue = None;
        cluster.wait_until("it is let in", || {
            rogue = Rogue::connect(&cluster, &credentials, ("a", a.swarm.address())).ok();
            rogue.is_some()
        });
        drop(rogue);
    }
    assert!(a.swarm.counters().refused_connections > 0);
}

/// Sockets that are opened again as soon as they are closed, at the address of an honest host, do not keep it out.
#[test]
fn strangers_at_its_own_address_do_not_keep_a_host_out() {
    let cluster = Cluster::new(&["a", "b"]);
    let a = cluster.host("a", Role::Agent, &[]);
    let (credentials, address) = (cluster.credentials("b"), a.swarm.address());
    for _ in 0..70 {
        cluster.runtime.spawn(async move {
            loop {
                let Ok(mut socket) = TcpStream::connect(address).await else { continue };
                // The socket sends nothing, and waits until it is closed.
                let _ = socket.read(&mut [0]).await;
            }
        });
    }
    cluster.runtime.block_on(async { tokio::time::sleep(Duration::from_secs(1)).await });
    for attempt in 0..10 {
        // A host on a busy machine sometimes loses its place, and comes again.
        let is_let_in = (0..20).any(|_| Rogue::connect(&cluster, &credentials, ("a", address)).is_ok());
        assert!(is_let_in, "it is kept out at attempt {attempt}");
    }
}
