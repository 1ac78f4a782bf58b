//! Lookups against a plain walk over all segments, with every set of instructions that this CPU has.

use headstart_block::ErrorKind;
use proptest::collection::vec;
use proptest::prelude::*;

use super::search::NODE;
use super::*;
use std::cell::Cell;

/// The largest end of a segment.
const DISK_END: u64 = Segment::PADDING_OFFSET;

/// The model: every segment is looked at.
fn walk(segments: &[Segment], start: u64, end: u64) -> Vec<Segment> {
    let overlaps = |segment: &&Segment| start < end && segment.offset() < end && segment.end() > start;
    segments.iter().filter(overlaps).map(|segment| segment.clip(start, end)).collect()
}

/// Segments from (gap, length, zeroed) steps, the first gap counted from sector `base`.
fn layout(base: u64, steps: &[(u64, u64, bool)]) -> Vec<Segment> {
    let (mut end, mut moffset) = (base, 8);
    let mut segments = Vec::new();
    for &(gap, len, zeroed) in steps {
        let make = if zeroed { Segment::zeroed } else { Segment::data };
        let segment = make(end + gap, len, moffset);
        (end, moffset) = (segment.end(), segment.mend() + 3);
        segments.push(segment);
    }
    segments
}

/// The same index for each set of instructions.
fn indices(segments: &[Segment]) -> Vec<Index> {
    let index = Index::new(segments.to_vec()).unwrap();
    let available = Simd::ALL.iter().copied().filter(|simd| simd.is_available());
    available
        .map(|simd| index.clone().with_simd(simd))
        .inspect(|index| assert_eq!(index.segments(), segments))
        .collect()
}

/// Compares the index with the model for ranges that begin at each of `starts`.
fn compare(segments: &[Segment], starts: &(impl Iterator<Item = u64> + Clone)) {
    for index in indices(segments) {
        for start in starts.clone() {
            for end in [start, start.saturating_add(1), start.saturating_add(8), start / 2] {
                let found: Vec<_> = index.lookup(start, end).collect();
                assert_eq!(found, walk(segments, start, end), "{:?}: [{start}, {end})", index.simd());
            }
        }
    }
}

/// The sectors at which an answer can change, and their neighbours.
fn edges(segments: &[Segment]) -> impl Iterator<Item = u64> + Clone {
    let of = |segment: &Segment| [segment.offset(), segment.end()];
    let near = |edge: u64| [edge.saturating_sub(1), edge, edge + 1];
    let ends =
        [0, (1 << 32) - 1, 1 << 32, DISK_END - 1, DISK_END, DISK_END + 1, 1 << 63, u64::MAX - 1, u64::MAX];
    segments.iter().flat_map(of).flat_map(near).chain(ends)
}

#[test]
fn every_number_of_segments_around_a_full_node_is_searched() {
    let sizes = (0..=34).chain(126..=130).chain(270..=275).chain(2047..=2049).chain([2500]);
    for size in sizes {
        // Spread evenly (buckets alone), and with an outlier far off (all others in few buckets).
        let steps: Vec<_> = (0..size).map(|i| (i % 3, 1 + i % 5, i % 7 == 0)).collect();
        let mut segments = layout(5, &steps);
        compare(&segments, &edges(&segments));
        segments.push(Segment::data(1 << 45, 8, 1 << 30));
        compare(&segments, &edges(&segments));
    }
}

#[test]
fn crowds_are_searched_wherever_they_lie() {
    // Crowds of 300 single sectors, side by side or apart, far from each other.
    let crowds = [0, 1 << 20, (1 << 32) - 150, 1 << 40, DISK_END - 700];
    let mut segments = Vec::new();
    for (base, gap) in crowds.into_iter().zip([0, 1, 0, 1, 1]) {
        segments.extend(layout(base, &[(gap, 1, false); 300]));
    }
    compare(&segments, &edges(&segments));
    for width in 1..crowds.len() {
        compare(&segments[..300 * width], &edges(&segments));
        compare(&segments[300 * width..], &edges(&segments));
    }
}

#[test]
fn the_last_sector_that_a_segment_can_name_is_found() {
    let segments = [Segment::data(0, 1, 8), Segment::data(DISK_END - 1, 1, Segment::MAX_MOFFSET)];
    compare(&segments, &edges(&segments));
    let index = Index::new(segments.to_vec()).unwrap();
    assert_eq!(index.lookup(1, u64::MAX).collect::<Vec<_>>(), segments[1..]);
    assert_eq!(index.lookup(0, u64::MAX).count(), 2);
}

#[test]
fn an_empty_index_is_one_hole() {
    assert!(Index::default().is_empty());
    compare(&[], &edges(&[]));
    assert_eq!(Index::default().lookup(0, u64::MAX).next(), None);
}

#[test]
fn a_finished_lookup_gives_no_more_segments() {
    let index = Index::new(vec![Segment::data(8, 8, 8), Segment::data(16, 8, 100)]).unwrap();
    let mut lookup = index.lookup(8, 16);
    assert_eq!((lookup.next(), lookup.next(), lookup.next()), (Some(Segment::data(8, 8, 8)), None, None));
}

#[test]
fn the_search_structure_is_small() {
    for size in [10_000, 100_000] {
        let segments = layout(0, &vec![(7, 8, false); size]);
        let bytes = Index::new(segments).unwrap().memory_bytes();
        assert!(bytes * 3 < size * 16 * 4, "{bytes} bytes for {size} segments");
    }
}

/// The number of nodes of the tree that the search for `start` looks at.
fn nodes_looked_at(index: &Index, start: u64) -> u32 {
    let nodes = Cell::new(0);
    let count_keys = |node: &[u64; NODE], start: u64| {
        nodes.set(nodes.get() + 1);
        node.iter().filter(|key| **key <= start).count()
    };
    let count_ends = |window: &[Segment; WINDOW], start: u64| {
        window.iter().filter(|segment| segment.end() <= start).count()
    };
    index.search.find(&index.padded, start, count_keys, count_ends);
    nodes.get()
}

#[test]
fn segments_that_are_spread_evenly_are_found_without_the_tree() {
    for (size, gap) in [(100, 0), (100, 56), (5_000, 0), (5_000, 3), (5_000, 500)] {
        let segments = layout(0, &vec![(gap, 8, false); size]);
        let index = Index::new(segments.clone()).unwrap();
        assert!(edges(&segments).all(|start| nodes_looked_at(&index, start) == 0), "{size} {gap}");
    }
}

#[test]
fn no_search_looks_at_more_nodes_than_the_tree_is_high() {
    // In front a crowd of single sectors, and one segment so far off that a bucket takes the whole crowd.
    for (size, height) in [(100, 1), (130, 2), (2_000, 2), (2_100, 3), (30_000, 3)] {
        let mut segments = layout(0, &vec![(1, 1, false); size]);
        segments.push(Segment::data(1 << 49, 8, 1 << 30));
        let index = Index::new(segments.clone()).unwrap();
        let most = edges(&segments).map(|start| nodes_looked_at(&index, start)).max();
        assert!(most > Some(0) && most <= Some(height), "{most:?} for {size}");
    }
}

#[test]
fn bad_tables_are_refused_by_number() {
    let empty = Segment::from_record(Segment::data(50, 0, 8).to_record());
    let past_disk = Segment::data(DISK_END - 1, 2, 8);
    let past_file = Segment::data(50, 2, Segment::MAX_MOFFSET);
    let cases = [
        (empty, "empty"),
        (Segment::data(9, 5, 8), "predecessor"),
        (past_disk, "largest disk"),
        (past_file, "largest file"),
        (Segment::PADDING, "empty"),
    ];
    for (bad, cause) in cases {
        let error = Index::new(vec![Segment::data(0, 10, 8), bad]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("record 1") && error.to_string().contains(cause), "{error}");
    }
}

/// Mostly side by side, some far apart: crowds and deserts in one disk.
fn steps() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    let gap = prop_oneof![5 => Just(0), 5 => 0u64..64, 1 => 0u64..1 << 36];
    let len = prop_oneof![9 => 1u64..64, 1 => 1..=Segment::MAX_LEN];
    vec((gap, len, any::<bool>()), 0..400)
}

proptest! {
    #[test]
    fn a_lookup_finds_what_a_walk_finds(
        base in prop_oneof![Just(0), 0u64..1 << 33, Just(1 << 49)],
        steps in steps(),
        ranges in vec((any::<prop::sample::Index>(), -80i64..80, prop_oneof![0u64..20, 0u64..2000]), 1..40),
    ) {
        let segments = layout(base, &steps);
        for index in indices(&segments) {
            for &(near, by, len) in &ranges {
                let near = if segments.is_empty() { base } else { segments[near.index(segments.len())].offset() };
                let start = near.saturating_add_signed(by);
                let found: Vec<_> = index.lookup(start, start + len).collect();
                prop_assert_eq!(found, walk(&segments, start, start + len));
            }
        }
    }
}
