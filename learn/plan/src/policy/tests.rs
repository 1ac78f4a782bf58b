//! The results of the policies for a small group of boots.

use super::*;
use crate::evaluate::Evaluator;
use crate::preprocess::{ImageModel, ModelSettings};
use crate::testing::{Read, trace};
use headstart_block::BLOCK_SIZE;
use proptest::prelude::*;

const SECOND: u32 = 1_000_000;

/// A boot of 20 blocks, one a tenth of a second; block 19, the last, is read 40 times.
fn boots(block_table: &mut BlockTable) -> Vec<CompactTrace> {
    let boot = |late: u32| -> Vec<Read> {
        let reads = (0..20).map(|at| (SECOND + at * 100_000 + late, u64::from(at), 0, 1));
        reads.chain((0..40).map(|at| (4 * SECOND + at * 1000 + late, 19, 0, 1))).collect()
    };
    [0, 5, 9].map(|late| trace(&boot(late), block_table)).into()
}

#[test]
fn every_policy_orders_each_block_once() {
    let mut block_table = BlockTable::new(64 * BLOCK_SIZE);
    let traces = boots(&mut block_table);
    let (statistics, traces) = (Statistics::of(&traces), traces.iter().collect::<Vec<_>>());
    let training = Training { block_table: &block_table, statistics: &statistics, traces: &traces };
    let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(4), seed: 1 };
    for name in NAMES {
        let policy = by_name(name).unwrap();
        assert_eq!(policy.name(), name);
        let order = policy.order(&training, &aim);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), order.len(), "{name}");
        assert!(order.len() == 20 || ["lazy", "leap"].contains(&name), "{name}");
        assert_eq!(policy.order(&training, &aim), order, "{name} is deterministic");
        let expected: Option<Vec<u32>> = match name {
            "random" | "dadi" | "vmt-min" => Some((0..20).collect()),
            "iocnt" => Some(std::iter::once(19).chain(0..19).collect()),
            _ => None,
        };
        assert!(expected.is_none_or(|expected| expected == order), "{name}: {order:?}");
    }
    assert!(by_name("best").err().unwrap().to_string().contains("best"));
}

#[test]
fn no_boots_give_an_empty_order() {
    let (block_table, statistics) = (BlockTable::new(0), Statistics::default());
    let training = Training { block_table: &block_table, statistics: &statistics, traces: &[] };
    let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(4), seed: 1 };
    assert!(NAMES.iter().all(|name| by_name(name).unwrap().order(&training, &aim).is_empty()));
}

#[test]
fn a_slow_link_gives_up_late_blocks_for_the_busy_one() {
    let mut block_table = BlockTable::new(64 * BLOCK_SIZE);
    let traces = boots(&mut block_table);
    let (statistics, traces) = (Statistics::of(&traces), traces.iter().collect::<Vec<_>>());
    let training = Training { block_table: &block_table, statistics: &statistics, traces: &traces };
    let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(2), seed: 1 };
    let mut judge = Judge::new(&training, &aim, &traces);
    let mut score = |name| judge.score(&by_name(name).unwrap().order(&training, &aim));
    assert!(score("thinkahead") > 3.0 * score("vmt-min"), "{} {}", score("thinkahead"), score("vmt-min"));
    // A guest that waits gets the busy block as well, and needs the others first.
    let objective = Objective::Boot { round_trip: 0, misses: Misses::Block, hot: false };
    let mut judge = Judge::new(&training, &Aim { objective, ..aim }, &traces);
    let mut score = |name| judge.score(&by_name(name).unwrap().order(&training, &Aim { objective, ..aim }));
    assert!(score("thinkahead") >= score("iocnt"));
}

/// Boots of an image whose services start in one order or another, as do half of them each, except for some that
/// scan the disk at once. Every block is read twice, every fifth ten times.
fn mixture(count: u64, block_table: &mut BlockTable) -> Vec<CompactTrace> {
    let boot = |at: u64| -> Vec<Read> {
        let services: Vec<u64> =
            if at.is_multiple_of(2) { (0..80).collect() } else { (0..80).rev().collect() };
        let scanned = if at % 10 == 3 { 400..1000 } else { 0..0 };
        let read = |(place, block): (u32, u64)| {
            let again = if block.is_multiple_of(5) { 10 } else { 2 };
            (0..again).map(move |again| (2 * SECOND + place * 250_000 + again * 9000, block, again.into(), 1))
        };
        let scan = (2 * SECOND..).step_by(1000).zip(scanned).map(|(t_us, block)| (t_us, block, 0, 1));
        let mut reads: Vec<_> = scan.chain((0..).zip(services).flat_map(read)).collect();
        reads.sort_unstable();
        reads
    };
    (0..count).map(|at| trace(&boot(at), block_table)).collect()
}

/// Figure 29, the preprocessing: the hit rates of boots of one kind by a plan from their group, and by one from all
/// boots.
#[test]
fn preprocessing_gains_where_boots_are_mixed() {
    let mut block_table = BlockTable::new(4 << 30);
    let boots = mixture(42, &mut block_table);
    let (boots, tests) = boots.split_at(40);
    let all: Vec<_> = boots.iter().collect();
    let statistics = Statistics::of(boots);
    let without = Training { block_table: &block_table, statistics: &statistics, traces: &all };
    let model: ImageModel = ImageModel::learn(boots.to_vec(), ModelSettings::default());
    let test = &tests[0];
    let is_like = |boot: &CompactTrace| boot.first_accesses()[0] == test.first_accesses()[0];
    let group = model.groups().iter().find(|group| is_like(&group.kept[0])).unwrap();
    let kept: Vec<_> = group.kept.iter().collect();
    let with = Training { block_table: &block_table, statistics: &group.statistics, traces: &kept };
    for (name, least) in [("vmt-min", 0.3), ("thinkahead", 0.15), ("search", 0.15)] {
        let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(8), seed: 1 };
        let hits = |training: &Training<'_>| {
            let order = by_name(name).unwrap().order(training, &aim);
            Evaluator::new(&block_table, aim.bandwidth).evaluate(&order, test).hit_rate()
        };
        let (with, without) = (hits(&with), hits(&without));
        assert!(with > without + least, "{name}: {with} with, {without} without");
    }
}

fn a_boot() -> impl Strategy<Value = Vec<Read>> {
    let reads = prop::collection::vec((0_u32..9 * SECOND, 0_u64..30, 0_u64..30, 1_u64..40), 0..15);
    reads.prop_map(|mut reads| {
        reads.sort_unstable();
        reads
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn every_policy_orders_each_block_of_any_traces_once_and_repeatably(
        boots in prop::collection::vec(a_boot(), 0..4),
        rate in prop::sample::select(vec![1, 2 << 20, 30_000_000, u64::MAX]),
        is_closed in any::<bool>(),
    ) {
        let mut block_table = BlockTable::new(20 * BLOCK_SIZE + 5000);
        let boots: Vec<_> = boots.iter().map(|reads| trace(reads, &mut block_table)).collect();
        let (statistics, traces) = (Statistics::of(&boots), boots.iter().collect::<Vec<_>>());
        let training =
            Training { block_table: &block_table, statistics: &statistics, traces: &traces };
        let closed = Objective::Boot { round_trip: 20_000_000, misses: Misses::RangeThenRest, hot: true };
        let objective = if is_closed { closed } else { Objective::Hits };
        let aim = Aim { objective, bandwidth: Bandwidth::new(rate), seed: 7 };
        let nothing = CompactTrace::default();
        let test = boots.first().unwrap_or(&nothing);
        let given: [Box<dyn Policy + '_>; 2] =
            [Box::new(History { test }), Box::new(Oracle { test, moves: 100 })];
        for policy in NAMES.map(|name| -> Box<dyn Policy + '_> { by_name(name).unwrap() }).iter().chain(&given) {
            let proposal = policy.propose(&training, &aim);
            let mut seen = std::collections::BTreeSet::new();
            for (id, mask) in &proposal.items {
                prop_assert!(*mask != 0 && (*id as usize) < block_table.len(), "{}", policy.name());
                prop_assert!(seen.insert(*id), "{} names a block twice", policy.name());
            }
            prop_assert_eq!(proposal.plan_items(&block_table).len(), proposal.items.len());
            prop_assert_eq!(&policy.propose(&training, &aim), &proposal, "{}", policy.name());
            let mut order: Vec<_> = policy.order(&training, &aim);
            order.retain(|id| seen.contains(id));
            prop_assert_eq!(order, proposal.items.iter().map(|item| item.0).collect::<Vec<_>>());
        }
    }
}
