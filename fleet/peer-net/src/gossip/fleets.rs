//! Swarms of about as many hosts as have room in a message.

use super::inspection::{Inspection, Kind, count};
use super::run::tests::gossiper;
use super::seal::{DATAGRAM, whole};
use super::*;
use crate::tests::gossip::{fleet, naming};
use std::collections::VecDeque;

/// Most time that anything may take on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(60);

/// Waits until the library of a host holds that many runs, and has not ended.
async fn until_it_holds(running: &mut Running, runs: usize) {
    let holds = async {
        while running.handle.with_chitchat(|chitchat| chitchat.node_states().len()).await < runs {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, holds).await.is_ok(), "{runs} runs are held");
    let ended = tokio::time::timeout(Duration::ZERO, &mut running.ended).await;
    assert!(ended.is_err() && !running.noticed.is_too_long(), "{ended:?}");
}

/// The number of entries in a host's answer to a message.
async fn answer_to(message: &[u8], seal: &Seal, to: SocketAddr) -> usize {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for datagram in seal.seal(message).unwrap() {
        socket.send_to(&datagram, to).await.unwrap();
    }
    let (mut datagram, mut halves) = (vec![0; DATAGRAM], VecDeque::new());
    let none = RunId { name: String::new(), generation: 0, address: to };
    loop {
        let (len, from) =
            tokio::time::timeout(LIMIT, socket.recv_from(&mut datagram)).await.unwrap().unwrap();
        let part = seal.open(&mut datagram[..len]).unwrap();
        if let Some(bytes) = whole(&mut halves, from, part) {
            let found = Inspection::of(&bytes, &none).expect("hosts of earlier versions read it");
            assert_eq!(found.kind, Kind::SynAck);
            return count(found.entries.unwrap()).unwrap().into();
        }
    }
}

/// A host of a fleet of this many others is told of all of them, answers, and tells one that joins.
async fn is_a_fleet(hosts: u32) {
    let a = gossiper("a", Vec::new()).await;
    let b = gossiper("b", vec![a.own.address.to_string()]).await;
    let mut first = a.start(Run::new(), &[]).await.unwrap();
    for from in (0..hosts).step_by(500) {
        answer_to(&fleet(from..hosts.min(from + 500)), &a.seal, a.own.address).await;
    }
    let all = hosts as usize + 1;
    until_it_holds(&mut first, all).await;
    assert_eq!(answer_to(&naming(0..0), &a.seal, a.own.address).await, all, "{hosts}");
    let mut second = b.start(Run::new(), &[]).await.unwrap();
    until_it_holds(&mut second, all + 1).await;
    until_it_holds(&mut first, all + 1).await;
}

#[test]
fn fleets_of_as_many_hosts_as_have_room_gossip() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Around the number whose entries fill a datagram, and the most.
        for hosts in [1281, 1282, 1283, 1284, 1285, 2500] {
            is_a_fleet(hosts).await;
        }
    });
}
