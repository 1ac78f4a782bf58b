use super::*;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn links() -> Links {
    Links {
        up: 50_000_000,
        down: 50_000_000,
        round_trip: Duration::from_micros(200),
        store: 12_000_000,
        store_round_trip: Duration::from_micros(400),
        store_latency: Duration::ZERO,
        racks: None,
    }
}

fn region(len: u64) -> Region {
    Region { start: len, len, read: MIB, ahead: 1, shared: 0 }
}

fn run(hosts: u32, way: Way, pattern: Pattern) -> FleetSummary {
    let workload = Workload::pattern(hosts, 64 * MIB, region(16 * MIB), pattern);
    simulate(&FleetModel::new(hosts, links(), way), &workload).summary()
}

/// Reads of hosts that read for themselves queue at the store.
#[test]
fn independent_reads_share_the_uplink() {
    let one = run(1, Way::Independent, Pattern::SyncSame);
    let many = run(8, Way::Independent, Pattern::SyncSame);
    let uplink = 16.0 * MIB as f64 / 12e6;
    assert!(one.completion > uplink && one.completion < 1.2 * uplink, "{one:?}");
    assert!(many.completion > 8.0 * uplink && many.completion < 1.35 * 8.0 * uplink, "{many:?}");
    assert_eq!((one.incomplete, many.incomplete), (0, 0));
    // A scan is read ahead, beyond its end as well.
    assert!((8 * 16 * MIB..8 * 20 * MIB).contains(&many.store_bytes), "{many:?}");
    assert!(many.fairness > 0.98 && many.slowest > 0.7 * many.fastest, "{many:?}");
}

/// A broadcast sends the whole image, once, and then everything is local.
#[test]
fn a_broadcast_takes_the_image_over_the_uplink() {
    let tree = run(24, Way::Broadcast(2), Pattern::SyncSame);
    let image = 64.0 * MIB as f64 / 12e6;
    assert_eq!((tree.incomplete, tree.store_bytes), (0, 64 * MIB));
    assert!(tree.completion > image && tree.completion < 1.1 * image, "{tree:?}");
}

#[test]
fn patterns_are_what_they_are_called() {
    let pattern = |pattern| Workload::pattern(4, 64 * MIB, region(16 * MIB), pattern);
    let same = pattern(Pattern::SyncSame);
    assert_eq!((same.boots.len(), same.disks.len(), same.boots[0].reads().len()), (1, 4, 16));
    let shifted = pattern(Pattern::ShiftedSame(Nanos(7)));
    assert_eq!(shifted.disks.iter().map(|disk| disk.at.0).collect::<Vec<_>>(), [0, 7, 14, 21]);
    let disjoint = pattern(Pattern::SyncDisjoint);
    assert_eq!(
        disjoint.boots.iter().map(|boot| boot.reads()[0].range.offset() / MIB).collect::<Vec<_>>(),
        [16, 32, 48]
    );
    assert_eq!(disjoint.disks.iter().map(|disk| disk.boot).collect::<Vec<_>>(), [0, 1, 2, 0]);
}

#[test]
fn a_simulation_gives_the_same_result_twice() {
    let model = FleetModel {
        faults: FleetFaults {
            loss_per_million: 10_000,
            deaths: vec![Death { at: Nanos(300_000_000), per_million: 300_000, roots: false }],
            restarts: vec![Restart {
                at: Nanos(500_000_000),
                per_million: 500_000,
                away: Duration::from_millis(300),
            }],
            corrupt: 1,
            liars: 1,
            slow: 1,
            ..FleetFaults::default()
        },
        ..FleetModel::new(10, links(), Way::Swarm(Box::default()))
    };
    let workload = Workload::pattern(10, 64 * MIB, region(8 * MIB), Pattern::SyncSame);
    assert_eq!(simulate(&model, &workload), simulate(&model, &workload));
}

/// The paper's patterns in a swarm, against independent reads and a broadcast.
#[test]
fn hosts_help_each_other() {
    let swarm = || Way::Swarm(Box::default());
    let same = run(24, swarm(), Pattern::SyncSame);
    let least = 16.0 * MIB as f64 / 12e6;
    assert!(same.completion < 1.7 * least && same.incomplete == 0, "{same:?}");
    assert!(same.store_bytes < 16 * MIB * 115 / 100, "{same:?}");
    assert!(same.slowest > 0.9 * same.fastest && same.wrong_answers == 0, "{same:?}");
    let shifted = run(24, swarm(), Pattern::ShiftedSame(Nanos(750_000_000)));
    let alone = run(24, Way::Independent, Pattern::ShiftedSame(Nanos(750_000_000)));
    assert!(shifted.took_p50 * 3.5 < alone.took_p50, "{shifted:?} {alone:?}");
}

/// Hosts that read other parts than the others leave no more unread than the threshold.
#[test]
fn hosts_that_read_other_chunks_prefetch_no_more_than_the_threshold() {
    let part = 2 * MIB;
    let region = Region { start: part, len: part, read: MIB, ahead: 1, shared: 0 };
    let workload = Workload::pattern(24, 64 * MIB, region, Pattern::SyncDisjoint);
    let disjoint = simulate(&FleetModel::new(24, links(), Way::Swarm(Box::default())), &workload).summary();
    assert!(disjoint.incomplete == 0 && disjoint.unmatched_max > 0, "{disjoint:?}");
    assert!(disjoint.unmatched_max <= (512 << 10) + part / 100, "{disjoint:?}");
}

/// Under all faults, the hosts that live read everything, at most as late as if each read for itself.
#[test]
fn faults_degrade_no_further_than_to_lazy() {
    let moment = |ms: u64| Nanos(ms * 1_000_000);
    let workload = Workload::pattern(12, 64 * MIB, region(8 * MIB), Pattern::SyncSame);
    let alone = simulate(&FleetModel::new(12, links(), Way::Independent), &workload).summary();
    let death = |roots| Death { at: moment(1500), per_million: 300_000, roots };
    let restart =
        |ms: u64| Restart { at: moment(ms), per_million: 1_000_000, away: Duration::from_millis(500) };
    let all = [
        FleetFaults { deaths: vec![death(false)], ..FleetFaults::default() },
        FleetFaults { restarts: vec![restart(800), restart(1900)], ..FleetFaults::default() },
        FleetFaults { partitions: vec![(moment(1200), moment(3000))], ..FleetFaults::default() },
        FleetFaults { corrupt: 2, ..FleetFaults::default() },
        FleetFaults { liars: 2, ..FleetFaults::default() },
        FleetFaults { loss_per_million: 50_000, ..FleetFaults::default() },
    ];
    for (n, faults) in all.into_iter().enumerate() {
        for seed in 0..3 {
            let way = Way::Swarm(Box::default());
            let model = FleetModel { faults: faults.clone(), seed, ..FleetModel::new(12, links(), way) };
            let outcome = simulate(&model, &workload).summary();
            assert!(
                outcome.incomplete == 0 && outcome.failed == 0 && outcome.wrong_answers == 0,
                "{n} {seed}: {outcome:?}"
            );
            assert!(outcome.completion < alone.completion, "{n} {seed}: {outcome:?} {alone:?}");
        }
    }
}

/// Half of the agents are restarted in the midst, then the others: disks ask the store meanwhile, and no longer.
#[test]
fn agents_that_are_restarted_cost_the_store_little() {
    let workload = Workload::pattern(24, 64 * MIB, region(16 * MIB), Pattern::SyncSame);
    let restart = |ms: u64| Restart {
        at: Nanos(ms * 1_000_000),
        per_million: 500_000,
        away: Duration::from_millis(100),
    };
    let faults = FleetFaults { restarts: vec![restart(500), restart(1000)], ..FleetFaults::default() };
    let model = FleetModel { faults, ..FleetModel::new(24, links(), Way::Swarm(Box::default())) };
    let outcome = simulate(&model, &workload).summary();
    assert_eq!((outcome.incomplete, outcome.failed, outcome.wrong_answers), (0, 0, 0), "{outcome:?}");
    assert!(outcome.completion < 4.0 * 16.0 * MIB as f64 / 12e6, "{outcome:?}");
    assert!(outcome.store_bytes < 4 * 16 * MIB, "{outcome:?}");
}

/// With everything on the hosts, striped, the store is not needed.
#[test]
fn a_pinned_image_needs_no_store() {
    let swarm = SwarmModel { pinned: 2, ..SwarmModel::default() };
    let same = run(12, Way::Swarm(Box::new(swarm)), Pattern::SyncSame);
    assert_eq!((same.incomplete, same.store_bytes), (0, 0), "{same:?}");
}

/// Many hosts want the same chunk of its two holders at once: none is sent to the store, which is away.
#[test]
fn holders_of_a_pinned_image_redirect_a_large_fleet_to_each_other() {
    let swarm = SwarmModel { pinned: 2, ..SwarmModel::default() };
    let workload = Workload::pattern(200, 32 * MIB, region(8 * MIB), Pattern::SyncSame);
    let outcome = simulate(&FleetModel::new(200, links(), Way::Swarm(Box::new(swarm))), &workload);
    let (not_from_peers, summary) = (outcome.counters.not_from_peers, outcome.summary());
    assert_eq!((not_from_peers, summary.incomplete, summary.failed), (0, 0, 0), "{summary:?}");
    // A host's link takes a fourth of that.
    assert!(summary.completion < 8.0 * MIB as f64 / 12e6 * 1.5, "{summary:?}");
}

/// All traffic between hosts goes through the fabric; that of the store does not.
#[test]
fn a_fabric_holds_back_what_hosts_send_each_other() {
    let workload = Workload::pattern(12, 64 * MIB, region(16 * MIB), Pattern::SyncSame);
    let swarm = SwarmModel { pinned: 2, ..SwarmModel::default() };
    for way in [Way::Swarm(Box::default()), Way::Swarm(Box::new(swarm)), Way::Independent] {
        let run = |fabric| {
            let model = FleetModel { fabric, ..FleetModel::new(12, links(), way.clone()) };
            simulate(&model, &workload).summary()
        };
        let (free, wide, narrow) = (run(None), run(Some(600_000_000)), run(Some(60_000_000)));
        let exchanged = (narrow.on_demand + narrow.prefetched) * 12.0;
        assert!(wide.completion < 1.1 * free.completion, "{wide:?} {free:?}");
        if way == Way::Independent {
            assert_eq!((narrow.completion, exchanged), (free.completion, 0.0));
            continue;
        }
        assert!((1.0..1.5).contains(&(narrow.completion / (exchanged / 60e6))), "{narrow:?} {free:?}");
        assert_eq!((narrow.incomplete, narrow.failed), (0, 0), "{narrow:?}");
    }
}

/// A store that takes longer than any peer is waited for: no chunk is fetched twice because of that.
#[test]
fn a_store_slower_than_all_timeouts_is_waited_for() {
    let slow = Links { store: 240_000, ..links() };
    let region = Region { start: 5 * MIB, len: 5 * MIB, read: MIB, ahead: 1, shared: 0 };
    let workload = Workload::pattern(20, 20 * MIB, region, Pattern::SyncDisjoint);
    let run = |way| simulate(&FleetModel::new(20, slow.clone(), way), &workload).summary();
    let (alone, swarm) = (run(Way::Independent), run(Way::Swarm(Box::default())));
    assert_eq!((swarm.incomplete, swarm.failed, swarm.wrong_answers), (0, 0, 0), "{swarm:?}");
    assert!(swarm.completion < 1.1 * alone.completion, "{swarm:?} {alone:?}");
}

/// Hosts that are slow, lie or send wrong bytes harm themselves; their later reads from the store are not counted as
/// the others'.
#[test]
fn bad_hosts_cost_the_others_little() {
    let workload = Workload::pattern(24, 64 * MIB, region(16 * MIB), Pattern::SyncSame);
    let alone = simulate(&FleetModel::new(24, links(), Way::Independent), &workload).summary();
    let all = [
        FleetFaults { slow: 2, ..FleetFaults::default() },
        FleetFaults { corrupt: 2, ..FleetFaults::default() },
        FleetFaults { liars: 2, ..FleetFaults::default() },
    ];
    for (faults, seed) in all.iter().flat_map(|faults| (0..3).map(move |seed| (faults.clone(), seed))) {
        let model = FleetModel { faults, seed, ..FleetModel::new(24, links(), Way::Swarm(Box::default())) };
        let outcome = simulate(&model, &workload).summary();
        assert!(outcome.honest_p50 < alone.took_p50 / 2.0, "{seed}: {outcome:?}");
        // The region, and the part that is read ahead beyond its end, once for 22 hosts.
        assert!(outcome.honest_from_store * 22.0 < 27.0 * MIB as f64, "{seed}: {outcome:?}");
    }
}

/// A root dies: its agents ask the other roots, not the store.
#[test]
fn dead_roots_cost_the_store_little() {
    let workload = Workload::pattern(24, 64 * MIB, region(16 * MIB), Pattern::SyncSame);
    for seed in 0..4 {
        let topology = headstart_swarm::Topology::Roots;
        let settings = headstart_swarm::NodeSettings { topology, ..Default::default() };
        let swarm = SwarmModel { settings, roots: 3, ..SwarmModel::default() };
        let death = Death { at: Nanos(1_000_000_000), per_million: 300_000, roots: false };
        let faults = FleetFaults { deaths: vec![death], ..FleetFaults::default() };
        let model = FleetModel { faults, seed, ..FleetModel::new(24, links(), Way::Swarm(Box::new(swarm))) };
        let outcome = simulate(&model, &workload).summary();
        assert!(outcome.incomplete == 0 && outcome.failed == 0, "{seed}: {outcome:?}");
        assert!(outcome.store_bytes < 16 * MIB * 115 / 100, "{seed}: {outcome:?}");
    }
}

/// A root with many agents sends them to each other: it need not send everything itself, and no agent gives it up.
#[test]
fn roots_with_many_agents() {
    let workload = Workload::pattern(200, 32 * MIB, region(8 * MIB), Pattern::SyncSame);
    let settings =
        headstart_swarm::NodeSettings { topology: headstart_swarm::Topology::Roots, ..Default::default() };
    for (roots, seed) in [(8, 1), (8, 4), (1, 1)] {
        let swarm = SwarmModel { settings: settings.clone(), roots, ..SwarmModel::default() };
        let model = FleetModel { seed, ..FleetModel::new(200, links(), Way::Swarm(Box::new(swarm))) };
        let outcome = simulate(&model, &workload);
        let (timeouts, summary) = (outcome.counters.timeouts, outcome.summary());
        let least = 8.0 * MIB as f64 / 12e6;
        assert!(summary.completion < 1.5 * least && timeouts == 0, "{roots} {seed}: {summary:?}");
        assert!(summary.store_bytes < 9 * MIB, "{roots} {seed}: {summary:?}");
    }
}

/// Hosts in cells, whose roots name those that hosts of other cells do not know: the store sends the image once.
#[test]
fn cells_under_a_tree_of_roots_take_the_image_from_the_store_once() {
    let workload = Workload::pattern(110, 32 * MIB, region(8 * MIB), Pattern::SyncSame);
    for topology in [headstart_swarm::Topology::Tree(2), headstart_swarm::Topology::Roots] {
        let settings = headstart_swarm::NodeSettings { topology, ..Default::default() };
        let swarm = SwarmModel { settings, roots: 10, cell: 10, ..SwarmModel::default() };
        let model = FleetModel::new(110, links(), Way::Swarm(Box::new(swarm)));
        let summary = simulate(&model, &workload).summary();
        assert!(summary.incomplete == 0 && summary.store_bytes < 9 * MIB, "{topology:?}: {summary:?}");
        assert!(summary.completion < 1.5 * 8.0 * MIB as f64 / 12e6, "{topology:?}: {summary:?}");
    }
}
