//! Roots and their agents; blobs that are pinned, warm or pushed.

use super::world::{BLOB, Rules, World, key};
use crate::{Chunks, Event, NodeSettings, PeerId, Role, Time, Topology};
use std::collections::BTreeMap;

fn fleet(roots: usize, agents: usize, rules: Rules, settings: &NodeSettings) -> World {
    let mut roles = vec![Role::Agent; roots + agents];
    roles[..roots].fill(Role::Root);
    let mut world =
        World::new(rules, &roles, &NodeSettings { topology: Topology::Roots, ..settings.clone() });
    world.run(Time(1));
    world
}

/// Lets time pass until `until`, whether hosts read or not.
fn pass(world: &mut World, until: Time) {
    world.run_all(until);
}

fn agents_of(world: &World) -> BTreeMap<PeerId, usize> {
    let mut agents = BTreeMap::new();
    for (_, host) in world.hosts_left().filter(|(_, host)| host.node.role() == Role::Agent) {
        if let Some(root) = host.node.root() {
            *agents.entry(root).or_insert(0) += 1;
        }
    }
    agents
}

#[test]
fn a_root_takes_so_many_agents_and_refuses_more() {
    let mut world =
        fleet(3, 9, Rules::default(), &NodeSettings { agents_max: Some(3), ..NodeSettings::default() });
    pass(&mut world, Time(3_000_000));
    assert_eq!(agents_of(&world), [0, 1, 2].map(|root| (PeerId(root), 3)).into());
}

#[test]
fn an_agent_that_all_roots_refuse_asks_again_later() {
    let mut world =
        fleet(1, 4, Rules::default(), &NodeSettings { agents_max: Some(3), ..NodeSettings::default() });
    pass(&mut world, Time(3_000_000));
    assert_eq!(agents_of(&world), [(PeerId(0), 3)].into());
    let mut agents = world.hosts_left().filter(|(_, host)| host.node.role() == Role::Agent);
    let lucky = agents.find(|(_, host)| host.node.root().is_some()).unwrap().0;
    drop(agents);
    // The root hears no more from it, and forgets it.
    world.kill(lucky, Time(3_100_000));
    pass(&mut world, Time(60_000_000));
    let mut left = world.hosts_left().filter(|(_, host)| host.node.role() == Role::Agent);
    assert!(left.all(|(_, host)| host.node.root() == Some(PeerId(0))));
}

#[test]
fn another_root_is_taken_when_one_dies() {
    let mut world = fleet(3, 9, Rules::default(), &NodeSettings::default());
    pass(&mut world, Time(1_000_000));
    assert_eq!(agents_of(&world).values().sum::<usize>(), 9);
    world.kill(0, Time(1_100_000));
    pass(&mut world, Time(3_000_000));
    let agents = agents_of(&world);
    assert_eq!((agents.values().sum::<usize>(), agents.get(&PeerId(0))), (9, None));
}

/// The store is asked once, not once by each agent.
#[test]
fn without_a_root_agents_are_each_others_homes() {
    let rules = || Rules { chunks: 128, ..Rules::default() };
    let plan = || (0..128).collect::<Vec<_>>();
    let mut world = fleet(0, 8, rules(), &NodeSettings::default());
    (0..8).for_each(|agent| world.start(agent, Time(100_000), plan()));
    world.run(Time(60_000_000));
    assert!(world.hosts_left().all(|(_, host)| host.done.is_some()));
    assert!(world.store_chunks <= 140, "{} chunks", world.store_chunks);
    // The only root dies, and that is noticed.
    let mut world = fleet(1, 8, rules(), &NodeSettings::default());
    world.kill(0, Time(50_000));
    (1..9).for_each(|agent| world.start(agent, Time(100_000), plan()));
    world.run(Time(60_000_000));
    assert!(world.hosts_left().all(|(_, host)| host.done.is_some()));
    assert!(world.store_chunks <= 140, "{} chunks", world.store_chunks);
}

#[test]
fn warm_chunks_come_once_through_designated_fetchers() {
    let mut world = fleet(3, 0, Rules { chunks: 64, ..Rules::default() }, &NodeSettings::default());
    (0..3).for_each(|root| {
        world.tell(root, Event::Warm { blob: BLOB, chunks: Chunks { first: 0, count: 64 } });
    });
    pass(&mut world, Time(5_000_000));
    assert!(world.hosts.iter().all(|host| host.truth.len() == 64));
    assert_eq!(world.store_chunks, 64, "once for all");
    assert!(world.hosts.iter().all(|host| host.node.unmatched() == 0));
}

#[test]
fn a_pinned_blob_comes_from_those_who_keep_it_and_the_store_is_away() {
    let rules = Rules { chunks: 64, ..Rules::default() };
    let settings =
        NodeSettings { topology: Topology::Random(1), threshold: Some(0), ..NodeSettings::default() };
    let mut world = World::new(rules, &[Role::Agent; 6], &settings);
    world.run(Time(1));
    let holders: Vec<_> = (0..4).map(key).collect();
    (0..6).for_each(|host| world.tell(host, Event::Pinned { blob: BLOB, holders: &holders, copies: 2 }));
    for place in 0..4 {
        let held: Vec<Chunks> = crate::placement::held(place, 4, 2, settings.stripe, 64).collect();
        held.into_iter().for_each(|run| world.put(place, run));
    }
    world.store_away = true;
    (0..6).for_each(|host| world.start(host, Time(100_000), (0..64).collect()));
    // One holder dies, and there are two copies of each stripe.
    world.kill(2, Time(110_000));
    world.run(Time(60_000_000));
    assert!(world.hosts_left().all(|(_, host)| host.done.is_some()));
    assert_eq!(world.store_chunks, 0);
}

/// The first holder of a stripe has lost it, and asks the second; no host waits in vain.
#[test]
fn a_holder_that_lost_its_stripe_gets_it_from_the_others() {
    for seed in 0..8 {
        let rules = Rules { chunks: 64, seed, ..Rules::default() };
        let settings =
            NodeSettings { topology: Topology::Random(1), threshold: Some(0), ..NodeSettings::default() };
        let mut world = World::new(rules, &[Role::Agent; 5], &settings);
        world.run(Time(1));
        let holders: Vec<_> = (0..5).map(key).collect();
        (0..5).for_each(|host| world.tell(host, Event::Pinned { blob: BLOB, holders: &holders, copies: 3 }));
        for place in 2..5 {
            let held: Vec<Chunks> = crate::placement::held(place, 5, 3, settings.stripe, 64).collect();
            held.into_iter().for_each(|run| world.put(place, run));
        }
        world.store_away = true;
        (0..5).for_each(|host| world.start(host, Time(100_000), (0..64).collect()));
        world.run(Time(60_000_000));
        assert!(world.hosts_left().all(|(_, host)| host.done.is_some()), "{seed}");
        assert_eq!(world.store_chunks, 0);
    }
}

/// Seconds that an agent takes after others have read the same, at 25 Mbit/s.
fn start_after_others(push: u32) -> f64 {
    let rate = 25_000_000 / 8;
    let rules =
        Rules { chunks: 400, store: rate, host: rate, read: 1, ahead: 0, latency: 5000, ..Rules::default() };
    // An order that is not the blob's, the same for all.
    let plan: Vec<u32> = (0..200).map(|n| n * 151 % 400).collect();
    let mut world = fleet(1, 3, rules, &NodeSettings { push, threshold: Some(0), ..NodeSettings::default() });
    plan.iter().for_each(|chunk| world.put(0, Chunks::one(*chunk)));
    for agent in 1..3 {
        world.start(agent, Time(1_000_000), plan.clone());
    }
    world.run(Time(100_000_000));
    world.start(3, Time(100_000_000), plan);
    world.run(Time(300_000_000));
    world.hosts[3].done.expect("hangs").since(Time(100_000_000)).as_secs_f64()
}

#[test]
fn a_root_pushes_what_comes_next() {
    let (without, with) = (start_after_others(0), start_after_others(16));
    assert!(with < without * 0.8, "{with} s with, {without} s without");
}
