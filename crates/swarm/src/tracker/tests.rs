//! The tracker against a plain count, and the paper's own example.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const IMAGE: ImageKey = ImageKey(7);

fn report(joined: u32, accesses: &[(u32, u32)], known: (u64, u64)) -> Report {
    let accesses = accesses.iter().map(|(slice, at_ms)| Access { slice: *slice, at_ms: *at_ms }).collect();
    Report { image: IMAGE, joined, accesses, epoch: known.0, version: known.1 }
}

fn slices(answer: &Answer) -> Vec<u32> {
    answer.hints.iter().map(|hint| hint.slice).collect()
}

/// Figure 3 of the paper: four instances, chunks A to D, a threshold of two.
#[test]
fn the_example_of_the_paper() {
    let [a, b, c, d] = [0, 1, 2, 3];
    let mut tracker = Tracker::new(1, Settings { threshold: Threshold::Disks(2), ..Settings::default() });
    // All read A. Whoever comes second finds a hint, which names what it reads itself.
    let first: Vec<_> = (0..4).map(|n| tracker.report(&report(1, &[(a, n)], (0, 0)))).collect();
    assert!(first.iter().all(|answer| slices(answer).iter().all(|slice| *slice == a)));
    let known = |n: usize| (first[n].epoch, first[n].version);
    let tree = |tracker: &Tracker| {
        let tree = &tracker.images[&IMAGE].tree;
        [tree.node(a, 2), tree.node(a, 1), tree.node(c, 1)].map(|node| node.map(|(count, _)| count))
    };
    // (b): instance 1 reads B. The right half of the tree is below the threshold: it is not even there.
    tracker.report(&report(0, &[(b, 10)], known(0)));
    assert_eq!(tree(&tracker), [Some(5), Some(5), None]);
    // Instances 2 and 3 read C. B was read once only: no hint for either of it.
    let second = tracker.report(&report(0, &[(c, 11)], known(1)));
    let third = tracker.report(&report(0, &[(c, 12)], known(2)));
    assert!(!slices(&second).contains(&b) && !slices(&second).contains(&c) && !slices(&third).contains(&b));
    // (c): instance 4 reads D, and is told of C, not of B.
    let fourth = tracker.report(&report(0, &[(d, 13)], known(3)));
    assert_eq!(slices(&fourth), [c]);
    assert_eq!(fourth.hints, [Hint { slice: c, disks: 2, mean_ms: 11 }]);
    assert_eq!(tree(&tracker), [Some(8), Some(5), Some(3)]);
    // Below the left half's A only B was looked at, and left out for its count.
    let mut found = Vec::new();
    let looked = tracker.images[&IMAGE].tree.worth(2, 0, &mut found);
    assert_eq!((looked, found.len()), (7, 2));
    assert_eq!(tracker.images[&IMAGE].tree.worth(5, 0, &mut Vec::new()), 1);
}

/// What is below the threshold is skipped as a whole, and so is what is known.
#[test]
fn little_is_looked_at() {
    let mut tree = Tree::default();
    let mut version = 0;
    let mut read = |tree: &mut Tree, slice: u32| {
        version += u64::from(tree.read(Access { slice, at_ms: 1 }, 3, version + 1, 1 << 20));
    };
    (0..10_000).for_each(|n| read(&mut tree, n * 7));
    (0..50).for_each(|n| (0..3).for_each(|_| read(&mut tree, n)));
    let mut found = Vec::new();
    let looked = tree.worth(3, 0, &mut found);
    assert!(found.len() == 50 && looked < 250, "{looked} for {}", found.len());
    (0..3).for_each(|_| read(&mut tree, 60_000));
    found.clear();
    let looked = tree.worth(3, version - 1, &mut found);
    assert!(found.len() == 1 && looked < 50, "{looked}");
}

/// The tracker as it could be written in ten lines.
#[derive(Default)]
struct Plain {
    disks: u32,
    slices: BTreeMap<u32, (u32, u64)>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A new agent hears what a plain count says; one that follows has, in the end, all that is worth it, and never is
    /// behind by a factor of two.
    #[test]
    fn it_counts(
        reports in prop::collection::vec((0_u32..3, prop::collection::vec((0_u32..200, 0_u32..1000), 0..20)), 1..60),
        share in 0.0_f64..0.6,
        hints_max in 1_usize..40,
    ) {
        let settings = Settings { threshold: Threshold::Share(share), hints_max, ..Settings::default() };
        let mut tracker = Tracker::new(9, settings);
        let (mut plain, mut copy, mut known) = (Plain::default(), BTreeMap::new(), (0, 0));
        for (joined, accesses) in reports {
            plain.disks += joined;
            for (slice, at) in &accesses {
                let entry = plain.slices.entry(*slice).or_default();
                *entry = (entry.0 + 1, entry.1 + u64::from(*at));
            }
            let answer = tracker.report(&report(joined, &accesses, known));
            prop_assert!(answer.hints.len() <= hints_max && answer.version >= known.1);
            prop_assert_eq!(answer.disks, plain.disks);
            copy.extend(answer.hints.iter().map(|hint| (hint.slice, hint.disks)));
            for hint in &answer.hints {
                let (disks, time) = plain.slices[&hint.slice];
                prop_assert_eq!((hint.disks, u64::from(hint.mean_ms)), (disks, time / u64::from(disks)));
                prop_assert!(disks >= settings.threshold.of(plain.disks));
            }
            known = (answer.epoch, answer.version);
        }
        let threshold = settings.threshold.of(plain.disks);
        loop {
            let answer = tracker.report(&report(0, &[], known));
            copy.extend(answer.hints.iter().map(|hint| (hint.slice, hint.disks)));
            known = (answer.epoch, answer.version);
            if answer.hints.is_empty() {
                break;
            }
        }
        for (slice, (disks, _)) in plain.slices.iter().filter(|(_, (disks, _))| *disks >= threshold) {
            // One that crossed a threshold that was higher then is told with its next access.
            let Some(told) = copy.get(slice) else { continue };
            prop_assert!(disks < &(told * 2), "{} {}", disks, told);
        }
        let counts = tracker.counts(IMAGE).unwrap();
        let sums: Vec<_> = counts.slices.iter().map(|hint| (hint.slice, hint.disks)).collect();
        prop_assert_eq!(sums, plain.slices.iter().map(|(slice, (disks, _))| (*slice, *disks)).collect::<Vec<_>>());
    }

    /// All levels of the tree add up.
    #[test]
    fn the_tree_adds_up(accesses in prop::collection::vec((prop_oneof![0_u32..40, any::<u32>()], 0_u32..1000), 1..80)) {
        let mut tree = Tree::default();
        for (slice, at_ms) in &accesses {
            tree.read(Access { slice: *slice, at_ms: *at_ms }, 1, 1, 1 << 16);
        }
        for level in [0, 1, 3, 5] {
            let mut sums = BTreeMap::<u32, (u64, u64)>::new();
            for (slice, at_ms) in &accesses {
                let sum = sums.entry(slice >> level << level).or_default();
                *sum = (sum.0 + 1, sum.1 + u64::from(*at_ms));
            }
            for (first, sum) in sums {
                prop_assert!(tree.node(first, level).is_none_or(|node| node == sum));
            }
        }
        let all = tree.slices();
        prop_assert!(all.is_sorted_by_key(|hint| hint.slice));
        prop_assert_eq!(all.iter().map(|hint| hint.disks as usize).sum::<usize>(), accesses.len());
    }
}

/// Two runs of a deployment: what the first has counted, the second knows from its first answer on.
#[test]
fn the_second_run_knows_all_at_once() {
    let mut tracker = Tracker::new(1, Settings::default());
    for _ in 0..120 {
        tracker.report(&report(1, &[(1, 5), (2, 10), (3, 15)], (0, 0)));
    }
    tracker.report(&report(0, &[(9, 1)], (0, 0)));
    let answer = tracker.report(&report(1, &[], (0, 0)));
    assert_eq!((slices(&answer), answer.disks), (vec![1, 2, 3], 121));
    // Over a restart as well; and an agent that knew all from the life before is told again.
    let mut again = Tracker::new(2, Settings::default());
    again.load(&tracker.counts(IMAGE).unwrap());
    assert_eq!(again.counts(IMAGE), tracker.counts(IMAGE));
    assert_eq!(again.report(&report(0, &[], (1, answer.version))).hints, answer.hints);
}

#[test]
fn old_counts_fade() {
    let mut tracker = Tracker::new(1, Settings::default());
    tracker.report(&report(0, &[(5, 1)], (0, 0)));
    for _ in 0..DISKS_MAX {
        tracker.report(&report(1, &[(1, 4)], (0, 0)));
    }
    let answer = tracker.report(&report(2, &[], (0, 0)));
    let half = DISKS_MAX / 2;
    assert_eq!((answer.disks, answer.hints), (half + 1, vec![Hint { slice: 1, disks: half, mean_ms: 4 }]));
    assert_eq!(tracker.counts(IMAGE).unwrap().slices.len(), 1);
}

#[test]
fn memory_is_bounded() {
    let settings = Settings { images_max: 3, slices_max: 100, ..Settings::default() };
    let mut tracker = Tracker::new(1, settings);
    for image in 0..50 {
        let accesses = (0..300).map(|n| Access { slice: n * 1_000_003, at_ms: 1 }).collect();
        tracker.report(&Report { image: ImageKey(image), joined: 1, accesses, epoch: 0, version: 0 });
    }
    assert_eq!(tracker.images().collect::<Vec<_>>(), [47, 48, 49].map(ImageKey));
    assert_eq!(tracker.counts(ImageKey(49)).unwrap().slices.len(), 100);
    let settings = Settings { slices_all_max: 250, ..settings };
    let mut tracker = Tracker::new(1, settings);
    for image in 0..3 {
        let accesses = (0..100).map(|slice| Access { slice, at_ms: 1 }).collect();
        tracker.report(&Report { image: ImageKey(image), joined: 1, accesses, epoch: 0, version: 0 });
    }
    assert_eq!(tracker.images().collect::<Vec<_>>(), [1, 2].map(ImageKey));
    // The disks said to be new cannot make it loop or overflow.
    tracker.report(&report(u32::MAX, &[(1, u32::MAX), (u32::MAX, 0)], (1, u64::MAX)));
    assert!(tracker.counts(IMAGE).unwrap().disks <= DISKS_MAX);
    let hint = Hint { slice: u32::MAX, disks: u32::MAX, mean_ms: u32::MAX };
    tracker.load(&Counts { image: IMAGE, disks: u32::MAX, slices: vec![hint; 5] });
    assert_eq!(tracker.counts(IMAGE).unwrap().slices.len(), 1);
    assert_eq!((Threshold::Share(f64::NAN).of(9), Threshold::Share(9e99).of(9)), (1, u32::MAX));
}
