//! Property: whatever happens, every want is answered in time, and the answer is true.

use super::world::{Nature, Rules, World};
use crate::{NodeSettings, Role, Time, Topology};
use headstart_block::random::Random;
use proptest::prelude::*;
use std::time::Duration;

fn topology(n: usize) -> Topology {
    [Topology::Ring, Topology::Random(2), Topology::Similar(2), Topology::Roots, Topology::Tree(2)][n % 5]
}

fn plan(random: &mut Random, chunks: u32) -> Vec<u32> {
    let first = random.below(chunks as usize / 2) as u32;
    match random.below(3) {
        0 => (0..chunks / 2).collect(),
        1 => (first..chunks).collect(),
        _ => (0..40).map(|_| random.below(chunks as usize) as u32).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_want_is_answered_with_the_truth(
        seed in any::<u64>(),
        shape in 0_usize..5,
        designated_fetchers in any::<bool>(),
    ) {
        let mut random = Random::new(seed);
        let hosts = 3 + random.below(6);
        let settings = NodeSettings {
            topology: topology(shape),
            designated_fetchers,
            push: [0, 4][random.below(2)],
            threshold: [None, Some(0), Some(u64::MAX)][random.below(3)],
            stripe: 1 + random.below(8) as u32,
            seed,
            ..NodeSettings::default()
        };
        let rules = Rules {
            seed,
            chunks: 60,
            jitter: [0, 3000][random.below(2)],
            lost: [0, 30][random.below(2)],
            twice: [0, 30][random.below(2)],
            store_fails: [0, 50][random.below(2)],
            read: 1 + random.below(8) as u32,
            ahead: random.below(20) as u32,
            ..Rules::default()
        };
        let mut roles = vec![Role::Agent; hosts];
        roles[0] = Role::Root;
        roles[1] = [Role::Root, Role::Agent][random.below(2)];
        let mut world = World::new(rules, &roles, &settings);
        world.run(Time(1));
        let natures =
            [Nature::Honest, Nature::Liar, Nature::Corrupt, Nature::Mute, Nature::Promiser, Nature::Slow];
        world.set_nature(hosts - 1, natures[random.below(6)]);
        for host in 0..hosts {
            let plan = plan(&mut random, world.rules.chunks);
            world.start(host, Time(100_000 + random.below(300_000) as u64), plan);
        }
        let mut soon = || Time(100_000 + random.below(800_000) as u64);
        let (first, second, third, cut) = (soon(), soon(), soon(), soon());
        for _ in 0..random.below(4) {
            world.kill(random.below(hosts), first);
        }
        if random.below(2) == 0 {
            world.evict(random.below(hosts), second);
            world.evict(random.below(hosts), third);
        }
        if random.below(3) == 0 {
            world.cut(1 + random.below(hosts - 1), cut, cut + Duration::from_millis(500));
        }
        world.run(Time(600_000_000));
        for (number, host) in world.hosts_left() {
            prop_assert!(host.done.is_some(), "host {number} hangs at {} of {}", host.at, host.plan.len());
        }
    }
}

fn common(nature: Nature) -> World {
    let settings = NodeSettings::default();
    let mut world = World::new(Rules { chunks: 128, ..Rules::default() }, &[Role::Agent; 8], &settings);
    world.run(Time(1));
    world.set_nature(7, nature);
    (0..7).for_each(|host| world.start(host, Time(100_000), (0..128).collect()));
    world.run(Time(600_000_000));
    world
}

fn slowest(world: &World) -> f64 {
    let done = world.hosts[..7].iter().map(|host| host.done.expect("hangs").since(Time(100_000)));
    done.max().unwrap().as_secs_f64()
}

#[test]
fn bad_peers_cost_little() {
    // 8 MiB at 12 MB/s; alone, each of seven would take seven times as long.
    let lazy = 7.0 * 128.0 * 65536.0 / 12e6;
    for nature in
        [Nature::Honest, Nature::Liar, Nature::Corrupt, Nature::Mute, Nature::Promiser, Nature::Slow]
    {
        let world = common(nature);
        let took = slowest(&world);
        assert!(took < lazy * 1.2, "{nature:?}: {took} s");
    }
}

#[test]
fn a_peer_that_sends_corrupt_chunks_is_dropped_by_every_asker() {
    let world = common(Nature::Corrupt);
    assert!(world.hosts[..7].iter().any(|host| host.drops.contains(&(7, crate::Offence::Corrupt))));
    assert!(world.hosts.iter().all(|host| host.drops.iter().all(|(peer, _)| *peer == 7)), "nobody else is");
}

#[test]
fn a_swarm_that_has_everything_needs_no_store() {
    for topology in [Topology::Ring, Topology::Random(2), Topology::Roots, Topology::Tree(2)] {
        let mut roles = [Role::Agent; 8];
        roles[0] = Role::Root;
        let settings = NodeSettings { topology, ..NodeSettings::default() };
        let mut world = World::new(Rules { chunks: 64, ..Rules::default() }, &roles, &settings);
        world.run(Time(1));
        world.start(0, Time(100_000), (0..64).collect());
        world.run(Time(2_000_000));
        assert!(world.hosts[0].done.is_some());
        world.store_away = true;
        (1..8).for_each(|host| world.start(host, Time(3_000_000), (0..64).collect()));
        world.run(Time(600_000_000));
        assert!(world.hosts.iter().all(|host| host.done.is_some()), "{topology:?}");
    }
}

#[test]
fn wants_are_answered_when_a_third_of_the_hosts_dies() {
    for topology in [Topology::Ring, Topology::Random(4), Topology::Roots, Topology::Tree(3)] {
        let mut roles = [Role::Agent; 24];
        roles[..3].fill(Role::Root);
        let settings = NodeSettings { topology, ..NodeSettings::default() };
        let mut world = World::new(Rules { chunks: 256, ..Rules::default() }, &roles, &settings);
        world.run(Time(1));
        (0..24).for_each(|host| world.start(host, Time(100_000), (0..256).collect()));
        // Two of the three roots are among them; half of the deaths are not noticed.
        [1, 2, 5, 8, 11, 14, 17, 20].into_iter().for_each(|host| world.kill(host, Time(600_000)));
        world.run(Time(600_000_000));
        let done = world.hosts_left().map(|(_, host)| host.done.expect("hangs").since(Time(100_000)));
        let (took, ideal) = (done.max().unwrap().as_secs_f64(), 256.0 * 65536.0 / 12e6);
        assert!(took < 24.0 * ideal / 2.0, "{topology:?}: {took} s");
    }
}

/// All hosts read different chunks, and the store needs minutes for all that is requested at once: chunks that a
/// designated fetcher fetches are waited for, and not fetched again by another.
#[test]
fn a_store_slower_than_all_timeouts_is_waited_for() {
    const HOSTS: u32 = 20;
    let part = 80;
    for designated_fetchers in [true, false] {
        let settings = NodeSettings { designated_fetchers, ..NodeSettings::default() };
        let rules = Rules { chunks: HOSTS * part, store: 600_000, ..Rules::default() };
        let mut world = World::new(rules, &[Role::Agent; HOSTS as usize], &settings);
        world.run(Time(1));
        (0..HOSTS).for_each(|host| {
            world.start(host as usize, Time(100_000), (host * part..(host + 1) * part).collect());
        });
        world.run(Time(600_000_000));
        let late = world.hosts.iter().filter(|host| host.done.is_none()).count();
        let broken: u64 = world.hosts.iter().map(|host| host.node.counters().broken).sum();
        assert!(late == 0, "{settings:?}: {late} hosts hang, {} chunks, {broken} broken", world.store_chunks);
        let most = u64::from(HOSTS * part) * 105 / 100;
        assert!(world.store_chunks <= most, "{settings:?}: {} chunks, {broken} broken", world.store_chunks);
    }
}

/// A want asks one host for more than it sends in a moment, and no other host has it: the want waits.
#[test]
fn a_want_larger_than_a_hosts_window_is_answered() {
    let rules = Rules { chunks: 390, read: 390, ahead: 0, ..Rules::default() };
    let mut world = World::new(rules, &[Role::Agent; 3], &NodeSettings::default());
    world.run(Time(1));
    world.put(0, crate::Chunks { first: 0, count: 390 });
    world.run(Time(200_000));
    world.start(1, Time(300_000), (0..390).collect());
    world.run(Time(60_000_000));
    assert!(world.hosts[1].done.is_some());
    assert_eq!(world.store_chunks, 0);
}
