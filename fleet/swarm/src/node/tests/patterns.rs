//! The paper's patterns, at a fixed scale: 24 hosts at 50 MB/s, a store at 12 MB/s.

use super::world::{Rules, World};
use crate::{CHUNK_SIZE, NodeSettings, Role, Time, Topology};
use std::time::Duration;

const HOSTS: usize = 24;
const REGION: u32 = 512;

struct Outcome {
    /// Seconds until the first and the last host was done.
    first: f64,
    last: f64,
    /// Bytes from the store, in regions.
    store: f64,
    /// For each host, the bytes that were prefetched and never read.
    unread: Vec<u64>,
    /// Seconds that the store's link takes for one region.
    ideal: f64,
}

fn run(
    settings: &NodeSettings,
    rules: Rules,
    roles: &[Role],
    plans: impl Fn(usize) -> (Duration, Vec<u32>),
) -> Outcome {
    let mut world = World::new(rules, roles, settings);
    let begin = Time(200_000);
    world.run(Time(1));
    for host in 0..roles.len() {
        let (after, plan) = plans(host);
        world.start(host, begin + after, plan);
    }
    world.run(Time(4_000_000_000));
    let done = |host: usize| {
        let at = world.hosts[host].done.unwrap_or_else(|| panic!("host {host} hangs"));
        at.since(begin + plans(host).0).as_secs_f64()
    };
    let reading: Vec<usize> = (0..roles.len()).filter(|host| !plans(*host).1.is_empty()).collect();
    let times: Vec<f64> = reading.iter().map(|host| done(*host)).collect();
    let region = u64::from(REGION) * CHUNK_SIZE;
    Outcome {
        first: times.iter().copied().fold(f64::MAX, f64::min),
        last: times.iter().copied().fold(0.0, f64::max),
        store: world.store_chunks as f64 / f64::from(REGION),
        unread: world.hosts.iter().map(|host| host.node.unmatched()).collect(),
        ideal: region as f64 / world.rules.store as f64,
    }
}

fn rules() -> Rules {
    Rules { chunks: 4 * REGION, ..Rules::default() }
}

#[test]
fn reads_of_the_same_chunks_at_once_fetch_each_chunk_once() {
    for topology in [Topology::Ring, Topology::Random(4), Topology::Similar(3)] {
        let settings = NodeSettings { topology, ..NodeSettings::default() };
        let outcome = run(&settings, rules(), &[Role::Agent; HOSTS], |_| {
            (Duration::ZERO, (REGION..2 * REGION).collect())
        });
        assert!(outcome.last <= 1.7 * outcome.ideal, "{} s", outcome.last);
        assert!(outcome.store <= 1.15, "{} regions", outcome.store);
        assert!(outcome.last <= 1.1 * outcome.first, "{} to {} s", outcome.first, outcome.last);
    }
}

#[test]
fn reads_of_the_same_chunks_at_once_need_no_prefetching() {
    let rules = Rules { ahead: 0, ..rules() };
    let outcome = run(&NodeSettings::default(), rules, &[Role::Agent; HOSTS], |_| {
        (Duration::ZERO, (REGION..2 * REGION).collect())
    });
    assert!(outcome.last <= 1.7 * outcome.ideal, "{} s", outcome.last);
    assert!(outcome.store <= 1.15, "{} regions", outcome.store);
    assert!(outcome.last <= 1.1 * outcome.first, "{} to {} s", outcome.first, outcome.last);
}

#[test]
fn a_later_reader_gets_all_chunks_from_an_earlier_one() {
    let settings = NodeSettings::default();
    let outcome = run(&settings, rules(), &[Role::Agent; HOSTS], |host| {
        (Duration::from_millis(300) * host as u32, (REGION..2 * REGION).collect())
    });
    assert!(outcome.store <= 1.15, "{} regions", outcome.store);
    assert!(outcome.last <= 1.7 * outcome.ideal, "{} s", outcome.last);
}

#[test]
fn readers_of_different_chunks_do_not_disturb_each_other() {
    let plan = |host: usize| {
        let (part, host) = (REGION / 8, host as u32);
        (Duration::ZERO, (host * part..(host + 1) * part).collect())
    };
    let alone =
        NodeSettings { topology: Topology::Random(0), designated_fetchers: false, ..NodeSettings::default() };
    let alone = run(&alone, rules(), &[Role::Agent; HOSTS], plan);
    let together = run(&NodeSettings::default(), rules(), &[Role::Agent; HOSTS], plan);
    assert!(together.last <= 1.03 * alone.last, "{} s together, {} s alone", together.last, alone.last);
    let threshold = (512 << 10) + u64::from(REGION / 8) * CHUNK_SIZE / 100;
    assert!(together.unread.iter().all(|unread| *unread <= threshold), "{:?}", together.unread);
}

#[test]
fn roots_and_trees_fetch_each_chunk_once() {
    let mut roles = vec![Role::Agent; HOSTS];
    roles[..3].fill(Role::Root);
    for topology in [Topology::Roots, Topology::Tree(3)] {
        let settings = NodeSettings { topology, ..NodeSettings::default() };
        let outcome = run(&settings, rules(), &roles, |host| {
            (Duration::ZERO, if host < 3 { vec![] } else { (REGION..2 * REGION).collect() })
        });
        assert!(outcome.store <= 1.15, "{} regions", outcome.store);
        assert!(outcome.last <= 1.7 * outcome.ideal, "{} s", outcome.last);
    }
}

#[test]
fn hundreds_of_hosts_spare_the_store() {
    let rules = Rules { chunks: 4 * REGION, ..Rules::default() };
    let outcome = run(&NodeSettings::default(), rules, &[Role::Agent; 200], |_| {
        (Duration::ZERO, (REGION..2 * REGION).collect())
    });
    assert!(outcome.last <= 1.7 * outcome.ideal, "{} s", outcome.last);
    assert!(outcome.store <= 1.15, "{} regions", outcome.store);
    assert!(outcome.last <= 1.1 * outcome.first, "{} to {} s", outcome.first, outcome.last);
}
