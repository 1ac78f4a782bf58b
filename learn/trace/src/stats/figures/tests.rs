//! Figures of small data sets whose numbers can be seen at a glance, and a check that nothing depends on the number
//! of waiting traces.

use super::super::boot::BlockUse;
use super::*;

fn boot(counts: &[(u64, u64)], first_s: u64) -> BootCounts {
    let use_ = |&(block, count): &(u64, u64)| BlockUse {
        block,
        count,
        first_us: first_s * 1_000_000,
        sum_us: count * first_s * 1_000_000,
    };
    BootCounts {
        reads_early: 3,
        requests_early: 4,
        reads: 10,
        grace_us: Some(4_000_000),
        cross: [5, 4, 3, 2, 1, 1, 0, 0],
        intervals_us: vec![100, 200, 300],
        blocks: counts.iter().map(use_).collect(),
    }
}

fn creation(image: &str, user: &str, config: &str) -> Creation {
    Creation {
        image: image.to_owned(),
        user: user.to_owned(),
        family: "f".to_owned(),
        size: 100 * super::super::BLOCK,
        options: format!("config={config}"),
        ..Creation::default()
    }
}

#[test]
fn figures_are_those_counted_by_hand() {
    let mut collector = Collector::default();
    let blocks = [(1, 2), (2, 2), (3, 4)];
    for second in [10, 20] {
        collector.add(&creation("m-a", "u", "x"), &boot(&blocks, second));
    }
    collector.add(&creation("m-b", "u", "y"), &boot(&[(2, 1), (3, 1), (4, 1)], 10));
    collector.add(&creation("m-c", "v", "y"), &boot(&[(9, 1)], 10));
    collector.add(&creation("m-d", "u", "y"), &boot(&[(2, 1), (3, 1), (4, 1)], 10));
    let (figures, curves) = collector.finish_with_curves();
    assert_eq!(figures.traces, ByKind { public: 0, user: 5, other: 0 });
    let cross: Vec<_> = figures.cross_percent.user.iter().map(|rate| rate.percent).collect();
    assert_eq!(cross, [50.0, 40.0, 30.0, 20.0, 10.0, 10.0, 0.0, 0.0]);
    assert_eq!((figures.read_percent.user.mean, figures.read_percent.public.count), (75.0, 0));
    assert_eq!((figures.access_percent.user.max, figures.access_percent.user.min), (3.0, 1.0));
    assert_eq!((figures.grace_s.user.p50, figures.interval_us.user.count), (4.0, 15));
    // Known to a sixteenth.
    assert_eq!(figures.interval_us.user.p50, 200);
    assert_eq!((figures.cosine.user.count, figures.alike_percent.user), (1, 100.0));
    assert_eq!(
        (figures.unique_blocks.count, figures.unique_blocks_of[0].blocks.as_slice()),
        (5, &[3, 3][..])
    );
    // Times of 10 and 20 s: 5 s of deviation, of 20 s at most; no other image has two traces.
    let deviation = figures.deviation;
    assert_eq!((deviation.count.max, deviation.count.count), (0.0, 1));
    assert!((deviation.first_time.p50 - 0.25).abs() < 1e-9 && (deviation.mean_time.p50 - 0.25).abs() < 1e-9);
    let tiers = figures.jaccard;
    assert_eq!((tiers.metadata.count, tiers.metadata.p50), (1, 1.0));
    assert_eq!((tiers.user.count, tiers.user.p50), (2, 0.5));
    assert_eq!((tiers.family.count, tiers.family.max), (3, 0.0));
    assert_eq!((curves.grace_s.user.last(), curves.cosine.user.len()), (Some(&(4.0, 1.0)), 1));
    assert_eq!(curves.jaccard[1], [(0.5, 0.5), (0.5, 1.0)]);
    assert_eq!(Collector::default().finish().cosine.user, Distribution::default());
}

/// Many traces are merged in parts and sampled; the deviations are those of all, the pairs those of 50.
#[test]
fn large_groups_are_merged_in_parts() {
    let mut collector = Collector::default();
    let blocks: Vec<_> = (0..1000).map(|block| (block, 3)).collect();
    for trace in 0..333 {
        collector.add(&creation("m-a", "u", "x"), &boot(&blocks, if trace % 3 == 0 { 30 } else { 0 }));
    }
    let figures = collector.finish();
    // A third at 30 s, two thirds at 0: sqrt(1/3 * 2/3) of the largest.
    let expected = (2.0_f64 / 9.0).sqrt();
    assert!((figures.deviation.first_time.p50 - expected).abs() < 1e-9);
    assert!(
        (30 * 29 / 2..=50 * 49 / 2).contains(&figures.cosine.user.count),
        "{}",
        figures.cosine.user.count
    );
    assert!((figures.cosine.user.min - 1.0).abs() < 1e-9);
}

/// Boots that differ in a known way: one in another order, one without a block, one cut off, one that reads more.
#[test]
fn disorder_is_counted() {
    let in_order = |blocks: &[u64]| {
        let use_ =
            |(rank, block): (u64, &u64)| BlockUse { block: *block, count: 1, first_us: rank, sum_us: rank };
        let mut uses: Vec<_> = (0..).zip(blocks).map(use_).collect();
        uses.sort_by_key(|use_| use_.block);
        BootCounts { blocks: uses, ..BootCounts::default() }
    };
    let all: Vec<u64> = (0..10).collect();
    let backwards: Vec<u64> = all.iter().rev().copied().collect();
    let more: Vec<u64> = (0..30).collect();
    let mut collector = Collector::default();
    for blocks in [&all[..], &all, &all, &backwards, &all[1..], &all[..2], &more] {
        collector.add(&creation("p-a", "u", "x"), &in_order(blocks));
    }
    // Too few to judge.
    collector.add(&creation("p-b", "u", "x"), &in_order(&all));
    collector.add(&creation("p-b", "u", "x"), &in_order(&more));
    let figures = collector.finish();
    let (order, lost) = (figures.order.public, figures.lost_percent.public);
    // Of 21 pairs, the backward boot is in six, and one has but one block in common; p-b has one pair.
    assert_eq!((order.count, order.min, order.p50), (21, -1.0, 1.0));
    assert!((order.mean - (15.0 - 6.0) / 21.0).abs() < 1e-9, "{order:?}");
    assert_eq!((lost.count, lost.p50, lost.max), (7, 0.0, 80.0));
    assert!((lost.mean - 90.0 / 7.0).abs() < 1e-9, "{lost:?}");
    assert!((figures.outlier_percent.public - 200.0 / 7.0).abs() < 1e-9);
    assert_eq!((figures.outlier_percent.user, figures.order.user.count), (0.0, 0));
}
