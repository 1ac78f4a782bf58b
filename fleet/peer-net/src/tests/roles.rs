//! A role that a host claims beyond its certificate is not accepted, and both ends know why.

use super::frame::{VERSION_1, decode_refusal};
use super::*;

/// Connects to `a` as `credentials`, which claim to be a root, a tracker, or both.
fn claim(
    cluster: &Cluster,
    credentials: &Credentials,
    a: &TestHost,
    (is_root, is_tracker): (bool, bool),
    version: u16,
) -> Rogue {
    let name = credentials.name().to_owned();
    let hello = Hello { version, name, is_root, is_tracker, nonce: [0; 32] };
    let wire = Wire::tls_up_to(credentials, version).unwrap();
    let channel = cluster.runtime.block_on(async {
        let socket = TcpStream::connect(a.swarm.address()).await.unwrap();
        wire.connect(socket, "a", &hello).await.unwrap()
    });
    assert_eq!(channel.protocol(), version);
    Rogue { stream: channel.stream, binding: channel.binding }
}

#[test]
fn a_role_that_the_certificate_does_not_give_is_refused_by_name() {
    let cluster = Cluster::new(&["a", "plain"]);
    let a = cluster.host("a", Role::Agent, &[]);
    for (claims, role) in [((true, false), "root"), ((false, true), "tracker")] {
        let mut rogue = claim(&cluster, &cluster.credentials("plain"), &a, claims, VERSION);
        let (header, body) = rogue.next(&cluster).expect("it is told why");
        assert_eq!((header.kind, header.b), (FrameKind::Refused, frame::REFUSED_CONNECTION));
        let why = decode_refusal(&body).unwrap();
        assert!(
            why.contains(&format!("`plain` says that it is a {role}")) && why.contains("swarm init"),
            "{why}"
        );
        assert!(rogue.next(&cluster).is_none());
        assert!(a.is_connected_to(0));
    }
    assert_eq!(a.swarm.counters().refused_connections, 2);
    // Without the claim the host is a member as any other.
    let _plain = claim(&cluster, &cluster.credentials("plain"), &a, (false, false), VERSION);
    cluster.wait_until("it is connected", || a.is_connected_to(1));
}

#[test]
fn a_root_of_an_earlier_version_without_the_role_is_a_plain_member() {
    let cluster = Cluster::new(&["a", "plain", "b"]);
    let a = cluster.host("a", Role::Agent, &[]);
    for (name, is_believed) in [("plain", false), ("b", true)] {
        let _rogue = claim(&cluster, &cluster.credentials(name), &a, (true, true), VERSION_1);
        cluster.wait_until("it is connected", || a.swarm.status().peers.iter().any(|peer| peer.name == name));
        let peers = a.swarm.status().peers;
        let peer = peers.iter().find(|peer| peer.name == name).unwrap();
        assert_eq!((peer.role == "root", peer.tracker), (is_believed, is_believed), "{name}");
    }
}

#[test]
fn no_host_starts_in_a_role_that_its_certificate_does_not_give() {
    let cluster = Cluster::new(&["plain"]);
    for (role, tracker, option) in
        [(Role::Root, None, "--root"), (Role::Agent, Some(cluster.dir.path().join("counts")), "--tracker")]
    {
        let settings = SwarmSettings { role, tracker, ..cluster.settings("plain", &[]) };
        let handle = cluster.runtime.handle().clone();
        let started = cluster.runtime.block_on(Swarm::start(settings, cluster.cache("plain"), handle));
        let why = started.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(why.contains(option) && why.contains("swarm init") && why.contains("plain"), "{why}");
    }
}
