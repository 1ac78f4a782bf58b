//! Hosts that were away together while the gossip key changed get the list of revoked hosts, and come back.

use super::*;
use crate::credentials::revoke;

/// Two hosts that have the earlier key and are connected, one of which is to join a third that has the later list.
fn comes_back(connections_max: usize) {
    // The first host has the role of an authority; connections to it are not counted.
    let cluster = Cluster::new(&["d", "a", "b", "c", "e"]);
    let start = |credentials: Credentials, join: &[SocketAddr]| {
        let name = credentials.name().to_owned();
        let settings = SwarmSettings {
            security: Security::Tls(credentials),
            connections_max,
            ..cluster.settings(&name, join)
        };
        let started = Swarm::start(settings, cluster.cache(&name), cluster.runtime.handle().clone());
        cluster.runtime.block_on(started).unwrap()
    };
    let (a, c) = (cluster.credentials("a"), cluster.credentials("c"));
    let list = revoke(&cluster.dir.path().join("pki"), &["d".to_owned()]).unwrap().list;
    let b = start(cluster.credentials("b"), &[]);
    let e = start(cluster.credentials("e"), &[b.address()]);
    cluster.wait_until("both are connected", || b.is_connected() && e.is_connected());
    let c = start(c, &[]);
    let a = start(a, &[c.address(), b.address()]);
    let knows = |swarm: &Swarm| swarm.host.trust.current().is_some_and(|known| *known == list);
    cluster.wait_until("they know of it", || knows(&a) && knows(&c));
    if connections_max > 1 {
        let all = [&a, &b, &c, &e];
        cluster.wait_until("all are connected", || all.iter().all(|one| one.status().peers.len() == 3));
    }
}

#[test]
fn hosts_that_were_away_together_while_the_key_changed_come_back() {
    comes_back(100);
}

#[test]
fn a_host_that_there_is_no_room_for_hears_the_list_all_the_same() {
    comes_back(1);
}
