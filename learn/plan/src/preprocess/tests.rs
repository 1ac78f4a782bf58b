//! Outliers go, and reordered boots of equal counts get groups of their own.

use super::*;
use crate::testing::{Read, trace};
use proptest::prelude::*;

/// A boot that reads these blocks, one to three times each, a millisecond apart.
fn boot(blocks: impl IntoIterator<Item = u64>, block_table: &mut BlockTable) -> CompactTrace {
    let blocks = blocks.into_iter().flat_map(|block| (0..=block % 3).map(move |_| block));
    let reads: Vec<Read> = (1000..).step_by(1000).zip(blocks).map(|(t, block)| (t, block, 0, 1)).collect();
    trace(&reads, block_table)
}

/// Boots of two orders: the second half comes first in every other one.
fn reordered(count: usize, block_table: &mut BlockTable) -> Vec<CompactTrace> {
    let boots = (0..count as u64).map(|at| {
        let blocks: Vec<_> = if at % 2 == 0 { (0..100).collect() } else { (50..100).chain(0..50).collect() };
        // A stray each, so that no two are equal.
        boot(blocks.into_iter().chain([200 + at]), block_table)
    });
    boots.collect()
}

#[test]
fn order_groups_reordered_boots_and_counts_do_not() {
    let mut block_table = BlockTable::new(1 << 30);
    let boots = reordered(20, &mut block_table);
    let by_order: ImageModel = ImageModel::learn(boots.clone(), ModelSettings::default());
    assert_eq!((by_order.categories(), by_order.groups().len()), (1, 2));
    assert!(by_order.groups().iter().all(|group| group.statistics.traces == 10 && group.kept.len() == 10));
    for group in by_order.groups() {
        let first = group.kept[0].first_accesses()[0];
        assert!(group.kept.iter().all(|boot| boot.first_accesses()[0] == first));
    }
    let by_counts: ImageModel =
        ImageModel::learn(boots, ModelSettings { feature: Feature::Counts, ..ModelSettings::default() });
    assert_eq!(by_counts.groups().len(), 1);
}

#[test]
fn outliers_are_counted_by_reason() {
    let mut block_table = BlockTable::new(1 << 32);
    let mut boots: Vec<_> = (0..100).map(|_| boot(0..100, &mut block_table)).collect();
    boots.push(boot(0..3, &mut block_table));
    boots.push(boot(0..40, &mut block_table));
    boots.push(boot(0..1500, &mut block_table));
    let model: ImageModel = ImageModel::learn(boots, ModelSettings::default());
    assert_eq!(model.dropped(), Dropped { few_reads: 1, few_blocks: 1, many_blocks: 1 });
    assert_eq!((model.groups().len(), model.groups()[0].statistics.traces), (1, 100));
}

#[test]
fn without_preprocessing_all_is_one_group() {
    let mut block_table = BlockTable::new(1 << 32);
    let mut boots = reordered(20, &mut block_table);
    boots.extend([boot(0..3, &mut block_table), boot(0..1500, &mut block_table)]);
    let apart: ImageModel = ImageModel::learn(boots.clone(), ModelSettings::default());
    assert!(apart.groups().len() > 2);
    let model: ImageModel = ImageModel::learn(boots, ModelSettings::none());
    assert_eq!((model.groups().len(), model.groups()[0].statistics.traces), (1, 22));
}

#[test]
fn uncompared_boots_join_the_nearest_centroid() {
    let mut block_table = BlockTable::new(1 << 30);
    let boots = reordered(60, &mut block_table);
    let model: ImageModel =
        ImageModel::learn(boots, ModelSettings { compared_max: 12, kept_max: 5, ..ModelSettings::default() });
    let sizes: Vec<_> =
        model.groups().iter().map(|group| (group.statistics.traces, group.kept.len())).collect();
    assert_eq!(sizes, [(30, 5), (30, 5)]);
}

#[test]
fn adding_a_trace_changes_only_its_group() {
    let mut block_table = BlockTable::new(1 << 30);
    let boots = reordered(20, &mut block_table);
    let mut model: ImageModel = ImageModel::learn(boots.clone(), ModelSettings::default());
    let before = model.clone();
    let new = boot((0..100).chain([300]), &mut block_table);
    let group = model.add(&new).unwrap();
    let mut expected = before.groups()[group].statistics.clone();
    expected.add(&new);
    assert_eq!(model.groups()[group].statistics, expected);
    assert_eq!(model.groups()[1 - group].statistics, before.groups()[1 - group].statistics);
    assert_eq!(model.groups()[group].kept[0].first_accesses()[0], 0, "it went where it belongs");
    assert_eq!(model.add(&boot(0..2, &mut block_table)), None);
    assert_eq!(model.add(&boot(0..400, &mut block_table)), None);
    assert_eq!(model.dropped(), Dropped { few_reads: 1, few_blocks: 0, many_blocks: 1 });
    let mut empty: ImageModel = ImageModel::learn(Vec::new(), ModelSettings::default());
    assert_eq!((empty.groups().len(), empty.add(&new)), (0, None));
}

proptest! {
    #[test]
    fn no_trace_is_lost(lens in prop::collection::vec((0_u64..60, any::<bool>()), 0..80)) {
        let mut block_table = BlockTable::new(1 << 30);
        let boots: Vec<_> = lens
            .iter()
            .map(|(len, is_turned)| {
                let blocks: Vec<_> = if *is_turned { (0..*len).rev().collect() } else { (0..*len).collect() };
                boot(blocks, &mut block_table)
            })
            .collect();
        let settings = ModelSettings { compared_max: 10, ..ModelSettings::default() };
        let model: ImageModel = ImageModel::learn(boots, settings);
        let grouped: u64 = model.groups().iter().map(|group| u64::from(group.statistics.traces)).sum();
        let Dropped { few_reads, few_blocks, many_blocks } = model.dropped();
        prop_assert_eq!(grouped + few_reads + few_blocks + many_blocks, lens.len() as u64);
        for group in model.groups() {
            prop_assert_eq!(Vector::of(&group.kept[0], Feature::Order), group.centroid.clone());
        }
    }
}
