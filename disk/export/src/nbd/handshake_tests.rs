//! Goal: every option gets its answer, and no bytes break the state machine. Method: sessions are written down as
//! options and fed in parts; hostile ones are random, and valid ones with a byte changed.

use super::*;
use crate::nbd::proto::{FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, OPTION_MAGIC, OPTION_REPLY_MAGIC};
use proptest::prelude::*;

fn exports() -> Vec<ExportView> {
    let export = |name: &str, read_only| ExportView {
        name: name.to_owned(),
        description: format!("about {name}"),
        size: 1 << 30,
        read_only,
        resizable: true,
        certificates: None,
    };
    vec![export("a", true), export("b", false)]
}

fn client_flags(flags: u16) -> Vec<u8> {
    u32::from(flags).to_be_bytes().to_vec()
}

fn message(option: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionHeader { option, len: u32::try_from(data.len()).unwrap() };
    [&header.encode()[..], data].concat()
}

fn named(name: &str, tail: &[u8]) -> Vec<u8> {
    [&u32::try_from(name.len()).unwrap().to_be_bytes()[..], name.as_bytes(), tail].concat()
}

fn query(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = named(name, &u32::try_from(queries.len()).unwrap().to_be_bytes());
    for query in queries {
        data.extend(named(query, &[]));
    }
    data
}

/// Feeds a session in parts of `part` bytes; returns the replies and the last step.
fn run(handshake: &mut Handshake<'_>, session: &[u8], part: usize) -> (Vec<u8>, HandshakeStep) {
    let (mut input, mut out) = (Vec::new(), Vec::new());
    for part in session.chunks(part) {
        input.extend_from_slice(part);
        loop {
            let (used, step) = handshake.advance(&input, &mut out);
            input.drain(..used);
            match step {
                HandshakeStep::More if used == 0 => break,
                HandshakeStep::More => {}
                step => return (out, step),
            }
        }
    }
    (out, HandshakeStep::More)
}

/// The kinds and data of option replies.
fn replies(mut out: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !out.is_empty() {
        let mut fields = Fields(out);
        assert_eq!(fields.u64(), Some(OPTION_REPLY_MAGIC));
        fields.u32().unwrap();
        let kind = fields.u32().unwrap();
        let len = fields.u32().unwrap();
        replies.push((kind, fields.bytes(len as usize).unwrap().to_vec()));
        out = fields.0;
    }
    replies
}

fn kinds(out: &[u8]) -> Vec<u32> {
    replies(out).into_iter().map(|reply| reply.0).collect()
}

fn session(options: &[Vec<u8>]) -> Vec<u8> {
    [client_flags(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES), options.concat()].concat()
}

#[test]
fn a_handshake_ends_at_an_export_with_the_negotiated_options() {
    let exports = exports();
    let session = session(&[
        message(option::STRUCTURED_REPLY, &[]),
        message(option::SET_META_CONTEXT, &query("b", &["base:allocation", "qemu:dirty"])),
        message(option::GO, &named("b", &[0, 1, 0, 2])),
    ]);
    for part in [1, 7, session.len()] {
        let mut handshake = Handshake::new(&exports, Encryption::Unavailable);
        let (out, step) = run(&mut handshake, &session, part);
        assert_eq!(
            step,
            HandshakeStep::Transmit(Chosen { export: 1, structured: true, base_allocation: true })
        );
        let ack = option_reply::ACK;
        let (context, fact) = (option_reply::META_CONTEXT, option_reply::INFO);
        assert_eq!(kinds(&out), [ack, context, ack, fact, fact, fact, ack]);
        assert!(replies(&out)[5].1.ends_with(b"about b"));
    }
}

#[test]
fn a_context_holds_for_its_export_alone() {
    let exports = exports();
    let session = session(&[
        message(option::STRUCTURED_REPLY, &[]),
        message(option::SET_META_CONTEXT, &query("b", &["base:allocation"])),
        message(option::GO, &named("a", &[0, 0])),
    ]);
    let mut handshake = Handshake::new(&exports, Encryption::Unavailable);
    let (_, step) = run(&mut handshake, &session, 100);
    assert_eq!(step, HandshakeStep::Transmit(Chosen { export: 0, structured: true, base_allocation: false }));
}

#[test]
fn mistakes_in_a_handshake_are_answered() {
    let exports = exports();
    let cases = [
        (message(option::GO, &named("nobody", &[0, 0])), option_reply::ERR_UNKNOWN),
        // There are two exports, so no name means neither.
        (message(option::INFO, &named("", &[0, 0])), option_reply::ERR_UNKNOWN),
        (message(option::GO, &named("a", &[0, 9])), option_reply::ERR_INVALID),
        (message(option::GO, &[]), option_reply::ERR_INVALID),
        (message(option::LIST, b"x"), option_reply::ERR_INVALID),
        (message(option::STARTTLS, &[]), option_reply::ERR_POLICY),
        (message(option::SET_META_CONTEXT, &query("a", &["base:allocation"])), option_reply::ERR_INVALID),
        (message(77, b"whatever"), option_reply::ERR_UNSUP),
    ];
    for (bad, kind) in cases {
        let mut handshake = Handshake::new(&exports, Encryption::Unavailable);
        let session = session(&[bad, message(option::LIST, &[])]);
        let (out, step) = run(&mut handshake, &session, 1000);
        let server = option_reply::SERVER;
        assert_eq!((kinds(&out), step), (vec![kind, server, server, option_reply::ACK], HandshakeStep::More));
    }
}

#[test]
fn lists_contexts_by_name_space() {
    let exports = exports();
    for (queries, found) in [(&[][..], 1), (&["base:"], 1), (&["base:allocation"], 1), (&["qemu:"], 0)] {
        let mut handshake = Handshake::new(&exports, Encryption::Unavailable);
        let session = session(&[
            message(option::STRUCTURED_REPLY, &[]),
            message(option::LIST_META_CONTEXT, &query("a", queries)),
        ]);
        let (out, _) = run(&mut handshake, &session, 1000);
        assert_eq!(kinds(&out).len(), 2 + found, "{queries:?}");
    }
}

#[test]
fn an_old_client_gets_its_padding() {
    let exports = exports();
    for (flags, len) in [(FLAG_FIXED_NEWSTYLE, 10 + 124), (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES, 10)] {
        let session = [client_flags(flags), message(option::EXPORT_NAME, b"a")].concat();
        let (out, step) = run(&mut Handshake::new(&exports, Encryption::Unavailable), &session, 5);
        assert_eq!(out.len(), len);
        assert_eq!(
            step,
            HandshakeStep::Transmit(Chosen { export: 0, structured: false, base_allocation: false })
        );
    }
}

#[test]
fn tls_is_demanded_before_anything_is_told() {
    let exports = exports();
    for asked in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, 77] {
        let session = session(&[message(asked, &[])]);
        let (out, step) = run(&mut Handshake::new(&exports, Encryption::Demanded), &session, 1000);
        assert_eq!((kinds(&out), step), (vec![option_reply::ERR_TLS_REQD], HandshakeStep::More));
    }
    let by_name = session(&[message(option::EXPORT_NAME, b"a")]);
    let (out, step) = run(&mut Handshake::new(&exports, Encryption::Demanded), &by_name, 1000);
    assert!(out.is_empty() && matches!(step, HandshakeStep::Close(_)));
    let mut handshake = Handshake::new(&exports, Encryption::Demanded);
    let hello = session(&[message(option::STARTTLS, &[])]);
    let (_, step) = run(&mut handshake, &hello, 1000);
    assert_eq!(step, HandshakeStep::StartTls);
    handshake.encrypted(Vec::new());
    let (out, step) = run(&mut handshake, &message(option::LIST, &[]), 1000);
    assert_eq!((kinds(&out).len(), step), (3, HandshakeStep::More));
}

#[test]
fn an_export_exists_for_the_certificates_that_it_belongs_to() {
    let mut exports = exports();
    exports[0].certificates = Some(vec!["tenant-a".to_owned(), "admin".to_owned()]);
    exports[1].certificates = Some(vec!["tenant-b".to_owned(), "admin".to_owned()]);
    // The answers for a client with these names.
    let answers = |names: &[&str], asked: &[Vec<u8>]| {
        let mut handshake = Handshake::new(&exports, Encryption::Demanded);
        let (_, step) = run(&mut handshake, &session(&[message(option::STARTTLS, &[])]), 1000);
        assert_eq!(step, HandshakeStep::StartTls);
        handshake.encrypted(names.iter().map(|name| (*name).to_owned()).collect());
        run(&mut handshake, &asked.concat(), 1000)
    };
    let list = || [message(option::LIST, &[])];
    let listed = |names: &[&str]| kinds(&answers(names, &list()).0).len() - 1;
    assert_eq!([&["tenant-a"][..], &["admin"], &["tenant-c"], &[], &["tenant"]].map(listed), [1, 2, 0, 0, 0]);
    let asks = |name: &str| {
        let (structured, go) = (message(option::STRUCTURED_REPLY, &[]), named(name, &0u16.to_be_bytes()));
        let context = message(option::SET_META_CONTEXT, &query(name, &["base:allocation"]));
        [message(option::INFO, &go), structured, context, message(option::GO, &go)]
    };
    for (name, of_others) in [("b", "a"), ("b", "nothing")] {
        // A client is told as much about exports of others as about exports that do not exist.
        let (out, step) = answers(&["tenant-b"], &asks(of_others));
        let unknown = option_reply::ERR_UNKNOWN;
        assert_eq!(
            (kinds(&out), step),
            (vec![unknown, option_reply::ACK, unknown, unknown], HandshakeStep::More)
        );
        assert!(matches!(
            answers(&["tenant-b"], &asks(name)).1,
            HandshakeStep::Transmit(Chosen { export: 1, .. })
        ));
        let by_name = |name: &str| answers(&["tenant-b"], &[message(option::EXPORT_NAME, name.as_bytes())]).1;
        assert!(matches!(by_name(name), HandshakeStep::Transmit(Chosen { export: 1, .. })));
        assert!(matches!(by_name(of_others), HandshakeStep::Close(_)));
        assert!(
            matches!(by_name(""), HandshakeStep::Transmit(Chosen { export: 1, .. })),
            "the only one that it may have"
        );
    }
    // Without TLS there are no certificates.
    let mut plain = Handshake::new(&exports, Encryption::Unavailable);
    let (out, _) = run(&mut plain, &session(&list()), 1000);
    assert_eq!(kinds(&out), [option_reply::ACK]);
}

#[test]
fn bytes_slipped_in_behind_starttls_end_it() {
    let exports = exports();
    let hello = session(&[message(option::STARTTLS, &[]), message(option::LIST, &[])]);
    let (_, step) = run(&mut Handshake::new(&exports, Encryption::Demanded), &hello, 1000);
    assert!(matches!(step, HandshakeStep::Close(_)));
}

#[test]
fn malformed_handshakes_are_closed() {
    let exports = exports();
    let long = OptionHeader { option: option::LIST, len: OPTION_LEN_MAX + 1 }.encode().to_vec();
    let bad_magic = [&(OPTION_MAGIC + 1).to_be_bytes()[..], &[0; 8]].concat();
    for bad in [session(&[long]), session(&[bad_magic]), client_flags(0), client_flags(0xff)] {
        let (_, step) = run(&mut Handshake::new(&exports, Encryption::Unavailable), &bad, 1000);
        assert!(matches!(step, HandshakeStep::Close(_)), "{bad:x?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_end_or_wait(bytes: Vec<u8>, part in 1usize..64) {
        let exports = exports();
        run(&mut Handshake::new(&exports, Encryption::Unavailable), &session(&[bytes]), part);
    }

    #[test]
    fn a_changed_session_gives_the_same_in_any_parts(
        at in 0usize..200, byte: u8, part in 1usize..64, demanded: bool,
    ) {
        let exports = exports();
        let mut bytes = session(&[
            message(option::STRUCTURED_REPLY, &[]),
            message(option::LIST, &[]),
            message(option::SET_META_CONTEXT, &query("b", &["base:allocation"])),
            message(option::INFO, &named("a", &[0, 1, 0, 1])),
            message(option::GO, &named("b", &[0, 0])),
        ]);
        let at = at % bytes.len();
        bytes[at] = byte;
        let encryption = if demanded { Encryption::Demanded } else { Encryption::Unavailable };
        let whole = run(&mut Handshake::new(&exports, encryption), &bytes, bytes.len());
        let parts = run(&mut Handshake::new(&exports, encryption), &bytes, part);
        // Only bytes slipped in behind STARTTLS are seen as such if they come at once.
        if !matches!(whole.1, HandshakeStep::Close(_)) {
            prop_assert_eq!(whole, parts);
        }
    }
}

#[test]
fn resizing_is_offered_where_it_is_allowed() {
    let offers = |resizable| {
        let exports = exports().into_iter().map(|view| ExportView { resizable, ..view }).collect::<Vec<_>>();
        let flags = Handshake::new(&exports, Encryption::Unavailable).flags(&exports[1]);
        flags & export_flag::SEND_RESIZE != 0
    };
    assert!(offers(true) && !offers(false));
}
