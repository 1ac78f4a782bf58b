//! Frames of earlier versions decode, or are refused by their version: the frames that hosts exchanged when
//! `tests/fixtures` was made, and one of each variant of message, order, report and answer.

use crate::frame::{
    FrameKind, HEADER, Header, Hello, decode_answer, decode_message, decode_refusal, decode_report,
    push_encoded,
};
use crate::host::remote_commands::RemoteCommand;
use crate::order::Order;
use headstart_block::{Error, ErrorKind};
use headstart_swarm::tracker::{Hint, HintAnswer, HintReport, ImageKey, SliceAccess};
use headstart_swarm::{BlobId, Chunks, Message, PeerKey, RejectReason, RequestId, Urgency};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The frames of a recording: the header and body of each.
fn recorded(path: &Path) -> Vec<(Header, Vec<u8>)> {
    let bytes = unpacked(path);
    let (mut rest, mut frames) = (bytes.as_slice(), Vec::new());
    while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
        let header = Header::decode(header).unwrap();
        let (body, after) = after.split_at(header.len);
        frames.push((header, body.to_vec()));
        rest = after;
    }
    frames
}

fn decode(kind: FrameKind, body: &[u8]) -> Result<(), Error> {
    match kind {
        FrameKind::Hello => Hello::decode(body).map(drop),
        FrameKind::Message => decode_message(body).map(drop),
        FrameKind::Order => RemoteCommand::decode(body).map(drop),
        FrameKind::Report => decode_report(body).map(drop),
        FrameKind::Hints => decode_answer(body).map(drop),
        FrameKind::Chunk
        | FrameKind::Push
        | FrameKind::Proof
        | FrameKind::Withdrawn
        | FrameKind::Ping
        | FrameKind::Bye
        | FrameKind::Done => Ok(()),
        FrameKind::Refused => decode_refusal(body).map(drop),
        // No earlier version sends one of these.
        FrameKind::Trust | FrameKind::Request | FrameKind::Certificate | FrameKind::Renewed => Ok(()),
    }
}

/// The directories of earlier versions.
fn versions() -> impl Iterator<Item = PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
}

/// The messages of the gossip library that earlier versions sent: the version's directory, and the messages.
pub(crate) fn gossip_messages() -> impl Iterator<Item = (PathBuf, Vec<Vec<u8>>)> {
    versions().filter(|version| version.join("wire/gossip.gz").exists()).map(|version| {
        let bytes = unpacked(&version.join("wire/gossip.gz"));
        let (mut rest, mut messages) = (bytes.as_slice(), Vec::new());
        while let Some((len, after)) = rest.split_first_chunk() {
            let (message, after) = after.split_at(u32::from_le_bytes(*len) as usize);
            messages.push(message.to_vec());
            rest = after;
        }
        let kinds = messages.iter().map(|message| message[3]).collect::<BTreeSet<_>>();
        assert!(kinds.into_iter().eq(0..4u8), "all kinds of messages are in {version:?}");
        (version, messages)
    })
}

fn unpacked(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn frames_that_were_recorded_decode_or_are_refused_by_version() {
    for version in versions() {
        let mut kinds = BTreeSet::new();
        for (header, body) in recorded(&version.join("wire/swarm.gz")) {
            kinds.insert(format!("{:?}", header.kind));
            match decode(header.kind, &body) {
                // A host that is refused in its hello sends nothing else.
                Err(error) if header.kind == FrameKind::Hello && error.kind() == ErrorKind::Unsupported => {
                    assert!(error.to_string().contains("version"), "{error}");
                    return;
                }
                decoded => assert!(decoded.is_ok(), "{:?} of {version:?}: {decoded:?}", header.kind),
            }
        }
        for kind in ["Hello", "Message", "Chunk", "Proof", "Order", "Done", "Report", "Hints"] {
            assert!(kinds.contains(kind), "no {kind} in {kinds:?}");
        }
    }
}

/// The present encoding, byte by byte. A change here is a new version of the protocol.
#[test]
fn each_variant_has_the_bytes_that_version_1_gave_it() {
    let chunks = Chunks { first: 5, count: 6 };
    let runs = vec![Chunks { first: 1, count: 2 }, Chunks { first: 300, count: 1 }];
    let (request, blob) = (RequestId(7), BlobId(3));
    let messages: [(Message, &[u8]); 11] = [
        (Message::Have { blob, runs: runs.clone() }, &[0, 3, 2, 1, 2, 0xac, 2, 1]),
        (Message::Lost { blob, runs: runs.clone() }, &[1, 3, 2, 1, 2, 0xac, 2, 1]),
        (
            Message::Ask { request, blob, chunks, urgency: Urgency::Demand, hops: 2, no_redirect: true },
            &[2, 7, 3, 5, 6, 0, 2, 1],
        ),
        (Message::Pending { request, chunks }, &[3, 7, 5, 6]),
        (
            Message::Reject { request, chunks, why: RejectReason::Unchecked, others: vec![PeerKey(9)] },
            &[4, 7, 5, 6, 3, 1, 9],
        ),
        (Message::Cancel { request }, &[5, 7]),
        (Message::Join, &[6]),
        (Message::JoinAccepted, &[7]),
        (Message::JoinRefused, &[8]),
        (Message::Sketch { blob, least: vec![1, 2] }, &[9, 3, 2, 1, 2]),
        (Message::Read { blob, runs }, &[10, 3, 2, 1, 2, 0xac, 2, 1]),
    ];
    for (message, bytes) in messages {
        check(FrameKind::Message, &message, bytes, decode_message);
    }
    let report = HintReport {
        image: ImageKey(300),
        joined: 1,
        accesses: vec![SliceAccess { slice: 4, at_ms: 5 }],
        epoch: 6,
        version: 7,
    };
    check(FrameKind::Report, &report, &[0xac, 2, 1, 1, 4, 5, 6, 7], decode_report);
    let hints = vec![Hint { slice: 4, disks: 2, mean_ms: 9 }];
    let answer = HintAnswer { image: ImageKey(300), epoch: 6, version: 7, disks: 8, hints };
    check(FrameKind::Hints, &answer, &[0xac, 2, 6, 7, 8, 1, 4, 2, 9], decode_answer);
    let order = Order {
        digest: "d".to_owned(),
        len: 1,
        tree_root: "r".to_owned(),
        tree_digest: "t".to_owned(),
        tree_len: 2,
        store: "s".to_owned(),
        parts: vec![(3, 4)],
    };
    let bytes = [0, 1, b'd', 1, 1, b'r', 1, b't', 2, 1, b's', 1, 3, 4];
    check(FrameKind::Order, &RemoteCommand::Bring(order.clone()), &bytes, RemoteCommand::decode);
    let whole = Order { parts: Vec::new(), ..order };
    let bytes = [3, 1, b'd', 1, 1, b'r', 1, b't', 2, 1, b's', 0];
    check(FrameKind::Order, &RemoteCommand::Open(whole), &bytes, RemoteCommand::decode);
}

#[track_caller]
fn check<T: serde::Serialize + PartialEq + std::fmt::Debug>(
    kind: FrameKind,
    value: &T,
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Error>,
) {
    let mut out = Vec::new();
    push_encoded(&mut out, kind, value).unwrap();
    assert_eq!(out[HEADER..], *bytes, "{value:?}");
    assert_eq!(decode(bytes).unwrap(), *value);
}
