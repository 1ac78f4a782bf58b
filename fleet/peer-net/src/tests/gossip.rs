//! The harm that a holder of the gossip key can do to others is contained.

use super::*;
use crate::gossip::Seal;
use std::net::UdpSocket;

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// An entry's name, as the gossip library writes it.
fn put_id(out: &mut Vec<u8>, name: &str) {
    put_text(out, name);
    out.extend_from_slice(&1u64.to_le_bytes());
    out.extend_from_slice(&[4, 127, 0, 0, 1, 9, 0]);
}

/// The head of a message of the gossip library.
fn message(kind: u8) -> Vec<u8> {
    let mut out = 45_139u16.to_le_bytes().to_vec();
    out.extend_from_slice(&[0, kind]);
    out
}

/// Changes of an entry that end at an earlier version than one of them has.
fn contradictory() -> Vec<u8> {
    let mut changes = vec![0];
    put_id(&mut changes, "h0");
    changes.extend_from_slice(&[0; 16]);
    changes.push(1);
    put_text(&mut changes, "key");
    put_text(&mut changes, "value");
    changes.extend_from_slice(&5u64.to_le_bytes());
    changes.push(0);
    changes.push(2);
    changes.extend_from_slice(&1u64.to_le_bytes());
    let mut out = message(2);
    out.push(2);
    out.extend_from_slice(&u16::try_from(changes.len()).unwrap().to_le_bytes());
    out.extend_from_slice(&changes);
    out.push(0);
    out
}

/// A message that names hosts that are not there.
pub(crate) fn naming(hosts: std::ops::Range<u32>) -> Vec<u8> {
    let mut out = message(0);
    out.extend_from_slice(&u16::try_from(hosts.len()).unwrap().to_le_bytes());
    for host in hosts {
        put_id(&mut out, &format!("h{host}"));
        out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
    put_text(&mut out, "headstart swarm");
    out
}

/// A message that names hosts as a large fleet has them: with names of ten letters, and drawn numbers.
pub(crate) fn fleet(hosts: std::ops::Range<u32>) -> Vec<u8> {
    let mut out = message(0);
    out.extend_from_slice(&u16::try_from(hosts.len()).unwrap().to_le_bytes());
    for host in hosts {
        let drawn = blake3::hash(&host.to_le_bytes());
        let [generation, heartbeat] =
            [0, 8].map(|at| u64::from_le_bytes(drawn.as_bytes()[at..at + 8].try_into().unwrap()));
        put_text(&mut out, &format!("node-{host:05}"));
        // Microseconds, of a month, and beats since then.
        out.extend_from_slice(&(1_790_000_000_000_000 + generation % 2_600_000_000_000).to_le_bytes());
        let [_, _, high, low] = host.to_be_bytes();
        out.extend_from_slice(&[4, 127, 20, high, low, 9, 0]);
        for number in [heartbeat % 30_000_000, 0, 4] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
    put_text(&mut out, "headstart swarm");
    out
}

/// Says this of a run of the host `name`, which has the address `127.0.0.1:port`.
pub(crate) fn saying(name: &str, generation: u64, port: u16, heartbeat: u64, version: u64) -> Vec<u8> {
    let mut out = message(0);
    out.extend_from_slice(&1u16.to_le_bytes());
    put_text(&mut out, name);
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&[4, 127, 0, 0, 1]);
    out.extend_from_slice(&port.to_le_bytes());
    for number in [heartbeat, 0, version] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    put_text(&mut out, "headstart swarm");
    out
}

#[test]
fn messages_that_break_the_gossip_library_break_it_for_a_moment() {
    let cluster = Cluster::new(&["a", "b", "c"]);
    let a = cluster.host("a", Role::Agent, &[]);
    let seal = Seal::new(Some(cluster.credentials("b").gossip_key)).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |message: &[u8]| {
        for datagram in seal.seal(message).unwrap() {
            socket.send_to(&datagram, a.swarm.address()).unwrap();
        }
    };
    send(&naming(0..1));
    send(&contradictory());
    // A host that joins afterwards is found by the one that was there, every time.
    let b = cluster.host("b", Role::Agent, &[a.swarm.address()]);
    cluster.wait_until("it is heard of again", || {
        a.swarm.status().peers.iter().any(|peer| peer.name == "b") && b.is_connected_to(1)
    });
    for first in (0..10_000).step_by(500) {
        send(&naming(first..first + 500));
    }
    let c = cluster.host("c", Role::Agent, &[a.swarm.address()]);
    cluster.wait_until("they are connected", || a.is_connected_to(2) && c.is_connected_to(2));
    cluster.wait_until("what nobody claims is gone", || a.swarm.status().unconnected.len() < 300);
}
