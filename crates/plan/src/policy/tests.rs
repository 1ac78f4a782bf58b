//! What the policies make of a small group of boots.

use super::*;
use crate::testing::{Read, trace};
use headstart_block::BLOCK_SIZE;

const SECOND: u32 = 1_000_000;

/// A boot of 20 blocks, one a tenth of a second; block 19, the last, is read 40 times.
fn boots(vocabulary: &mut Vocabulary) -> Vec<Condensed> {
    let boot = |late: u32| -> Vec<Read> {
        let reads = (0..20).map(|at| (SECOND + at * 100_000 + late, u64::from(at), 0, 1));
        reads.chain((0..40).map(|at| (4 * SECOND + at * 1000 + late, 19, 0, 1))).collect()
    };
    [0, 5, 9].map(|late| trace(&boot(late), vocabulary)).into()
}

#[test]
fn every_policy_orders_each_block_once() {
    let mut vocabulary = Vocabulary::new(64 * BLOCK_SIZE);
    let traces = boots(&mut vocabulary);
    let (statistics, traces) = (Statistics::of(&traces), traces.iter().collect::<Vec<_>>());
    let training =
        Training { vocabulary: &vocabulary, statistics: &statistics, traces: &traces, centroid: 0 };
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
fn nothing_to_learn_from_gives_nothing() {
    let (vocabulary, statistics) = (Vocabulary::new(0), Statistics::default());
    let training = Training { vocabulary: &vocabulary, statistics: &statistics, traces: &[], centroid: 0 };
    let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(4), seed: 1 };
    assert!(NAMES.iter().all(|name| by_name(name).unwrap().order(&training, &aim).is_empty()));
}

#[test]
fn a_slow_link_gives_up_late_blocks_for_the_busy_one() {
    let mut vocabulary = Vocabulary::new(64 * BLOCK_SIZE);
    let traces = boots(&mut vocabulary);
    let (statistics, traces) = (Statistics::of(&traces), traces.iter().collect::<Vec<_>>());
    let training =
        Training { vocabulary: &vocabulary, statistics: &statistics, traces: &traces, centroid: 0 };
    let aim = Aim { objective: Objective::Hits, bandwidth: Bandwidth::mib(2), seed: 1 };
    let mut judge = Judge::new(&training, &aim, &traces);
    let mut worth = |name| judge.worth(&by_name(name).unwrap().order(&training, &aim));
    assert!(worth("thinkahead") > 3.0 * worth("vmt-min"), "{} {}", worth("thinkahead"), worth("vmt-min"));
    // A guest that waits gets the busy block as well, and needs the others first.
    let objective = Objective::Boot { round_trip: 0, misses: Misses::Block, hot: false };
    let mut judge = Judge::new(&training, &Aim { objective, ..aim }, &traces);
    let mut worth = |name| judge.worth(&by_name(name).unwrap().order(&training, &Aim { objective, ..aim }));
    assert!(worth("thinkahead") >= worth("iocnt"));
}
