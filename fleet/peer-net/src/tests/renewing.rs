//! Requests that an authority signs over a connection, and requests that it refuses, whatever it receives.

use super::frame::{REFUSED_REQUEST, decode_refusal};
use super::*;
use crate::credentials::{HostCertificate, REQUEST_MAX, Roles, SigningRequest};
use rcgen::{CertificateParams, KeyPair, SanType};
use std::fs;

/// The authority `a`, and the host `name` that sends arbitrary frames.
fn scene(name: &str) -> (Cluster, TestHost, Rogue) {
    let cluster = Cluster::new(&["a", name, "other"]);
    let settings =
        SwarmSettings { authority: Some(cluster.dir.path().join("pki")), ..cluster.settings("a", &[]) };
    let (cache, handle) = (cluster.cache("a"), cluster.runtime.handle().clone());
    let swarm = cluster.runtime.block_on(Swarm::start(settings, Arc::clone(&cache), handle)).unwrap();
    let a = TestHost { swarm, cache };
    let rogue = Rogue::connect(&cluster, &cluster.credentials(name), ("a", a.swarm.address())).unwrap();
    (cluster, a, rogue)
}

fn ask(cluster: &Cluster, rogue: &mut Rogue, number: u32, request: &[u8]) -> (Header, Vec<u8>) {
    let mut frame = Vec::new();
    push_frame(&mut frame, FrameKind::Request, number, 0, request);
    rogue.send(cluster, &frame);
    rogue.next(cluster).expect("an answer")
}

fn key(cluster: &Cluster, name: &str) -> KeyPair {
    let pem = fs::read_to_string(cluster.dir.path().join("pki/hosts").join(name).join("host.key")).unwrap();
    KeyPair::from_pem(&pem).unwrap()
}

#[test]
fn a_member_gets_its_own_certificate_for_longer_and_no_other_whatever_it_asks_for() {
    let (cluster, a, mut rogue) = scene("plain");
    let credentials = cluster.credentials("plain");
    // A certificate that is signed in the same second would not end later.
    cluster.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1100)).await });
    let own = credentials.identity.request().unwrap();
    let (header, der) = ask(&cluster, &mut rogue, 7, &own);
    assert_eq!((header.kind, header.a), (FrameKind::Certificate, 7));
    let (before, signed) = (credentials.identity.says(), HostCertificate::parse(&der[..].into()).unwrap());
    signed.check_renews(&before).unwrap();
    // Roles and other names in the request are not in the certificate.
    let mut params = CertificateParams::new(vec!["plain".to_owned()]).unwrap();
    for role in ["root", "operator", "authority"] {
        let uri = format!("headstart:role:{role}").try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
    }
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let more = params.serialize_request(&key(&cluster, "plain")).unwrap();
    let (header, der) = ask(&cluster, &mut rogue, 8, more.der());
    assert_eq!(header.kind, FrameKind::Certificate);
    let signed = HostCertificate::parse(&der[..].into()).unwrap();
    assert_eq!((signed.name.as_str(), signed.roles), ("plain", Roles::default()));
    // Another host's name, another host's key, a new key, and malformed bytes.
    let of = |name: &str, key: &KeyPair| SigningRequest::make(name, key).unwrap().der().to_vec();
    let mut unsigned = own.clone();
    let last = unsigned.len() - 1;
    unsigned[last] ^= 1;
    let wrong = [
        of("other", &key(&cluster, "plain")),
        of("plain", &key(&cluster, "other")),
        of("other", &key(&cluster, "other")),
        of("plain", &KeyPair::generate().unwrap()),
        unsigned,
        vec![0x30; REQUEST_MAX],
    ];
    for (number, request) in (9..).zip(&wrong) {
        let (header, body) = ask(&cluster, &mut rogue, number, request);
        assert_eq!((header.kind, header.a, header.b), (FrameKind::Refused, number, REFUSED_REQUEST));
        let why = decode_refusal(&body).unwrap();
        assert!(!why.contains(cluster.dir.path().to_str().unwrap()), "{why}");
    }
    let counters = a.swarm.counters();
    assert_eq!((counters.signed_certificates, counters.refused_requests), (2, 6));
    // A request above the largest length ends the connection before it is read.
    let header = Header { kind: FrameKind::Request, len: REQUEST_MAX + 1, a: 1, b: 0 };
    rogue.send(&cluster, &header.encode());
    assert!(rogue.next(&cluster).is_none());
    cluster.wait_until("it is left alone", || a.is_connected_to(0));
}

#[test]
fn requests_without_end_are_refused_unread_and_then_end_the_connection() {
    let (cluster, a, mut rogue) = scene("b");
    let request = cluster.credentials("b").identity.request().unwrap();
    let mut answers = (0, 0);
    for number in 0..40 {
        let (header, body) = ask(&cluster, &mut rogue, number, &request);
        if header.kind == FrameKind::Certificate {
            answers.0 += 1;
        } else if decode_refusal(&body).unwrap().contains("in an hour") {
            answers.1 += 1;
        }
    }
    // Some of the first may have come within the second in which its certificate was made.
    assert!(answers.0 <= 12 && answers.1 == 28, "{answers:?}");
    // A new connection has the same share.
    drop(rogue);
    // While the host still has the old connection, it refuses a second one.
    cluster.wait_until("the connection is given up", || a.is_connected_to(0));
    let mut rogue = Rogue::connect(&cluster, &cluster.credentials("b"), ("a", a.swarm.address())).unwrap();
    assert_eq!(ask(&cluster, &mut rogue, 0, &request).0.kind, FrameKind::Refused);
    let refused = (0..200).map_while(|number| {
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Request, number, 0, &request);
        rogue.send(&cluster, &frame);
        rogue.next(&cluster)
    });
    assert_eq!(refused.count(), 99);
    cluster.wait_until("it is left alone", || a.is_connected_to(0));
    assert_eq!(a.swarm.counters().dropped_other, 1);
}

#[test]
fn a_certificate_that_is_not_its_own_ends_the_connection_of_a_host() {
    let (cluster, a, rogue) = scene("b");
    drop(rogue);
    cluster.wait_until("the connection is given up", || a.is_connected_to(0));
    let credentials = cluster.credentials("b");
    let connect = || Rogue::connect(&cluster, &credentials, ("a", a.swarm.address())).unwrap();
    let others = cluster.credentials("other").identity.certificate();
    let own = credentials.identity.certificate();
    let tell = |rogue: &mut Rogue, der: &[u8]| {
        let mut frame = Vec::new();
        push_frame(&mut frame, FrameKind::Renewed, 0, 0, der);
        rogue.send(&cluster, &frame);
    };
    // The certificate that the host has already changes nothing.
    let mut rogue = connect();
    tell(&mut rogue, &own);
    let request = credentials.identity.request().unwrap();
    ask(&cluster, &mut rogue, 1, &request);
    tell(&mut rogue, &others);
    assert!(rogue.next(&cluster).is_none());
}

#[test]
fn hosts_of_an_earlier_version_are_neither_asked_nor_told() {
    // An authority that speaks version 1 is connected, and this host's certificate is due.
    let cluster = Cluster::new(&["a", "b"]);
    let b = cluster.credentials("b");
    let now = unix_now();
    let validity = credentials::Validity { not_before: now - 400, not_after: now + 100 };
    let authority = credentials::Authority::open(&cluster.dir.path().join("pki")).unwrap();
    let grant = credentials::Grant { name: "b", roles: b.roles(), added: 1, validity };
    let pem = authority
        .sign(&grant, &SigningRequest::parse(&b.identity.request().unwrap()).unwrap().key().unwrap());
    fs::write(cluster.dir.path().join("pki/hosts/b/host.pem"), pem.unwrap().pem()).unwrap();
    let host = cluster.host("b", Role::Agent, &[]);
    assert!(cluster.credentials("a").roles().authority);
    let asked = |version: u16, limit: Duration| {
        let hello = Hello {
            version,
            name: "a".to_owned(),
            is_root: false,
            is_tracker: false,
            nonce: [u8::try_from(version).unwrap(); 32],
        };
        let wire = Wire::tls_up_to(&cluster.credentials("a"), version).unwrap();
        let channel = cluster.runtime.block_on(async {
            let socket = TcpStream::connect(host.swarm.address()).await.unwrap();
            wire.connect(socket, "b", &hello).await.unwrap()
        });
        let mut rogue = Rogue { stream: channel.stream, binding: channel.binding };
        cluster.runtime.block_on(async {
            // A ping, which shows that a host is accepted, has no body.
            let first = async {
                loop {
                    let mut header = [0; HEADER];
                    rogue.stream.read_exact(&mut header).await.ok()?;
                    let kind = Header::decode(&header).unwrap().kind;
                    if kind != FrameKind::Ping {
                        return Some(kind);
                    }
                }
            };
            tokio::time::timeout(limit, first).await.ok()?
        })
    };
    assert_eq!(asked(frame::VERSION_1, Duration::from_secs(4)), None);
    assert_eq!(asked(VERSION, LONG), Some(FrameKind::Request));
}
