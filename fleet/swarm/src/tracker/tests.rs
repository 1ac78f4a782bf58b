//! The tracker against a plain count, and the paper's own example.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const IMAGE: ImageKey = ImageKey(7);
const MEMBER: PeerKey = PeerKey(1);

fn report(joined: u32, accesses: &[(u32, u32)], known: (u64, u64)) -> HintReport {
    let accesses =
        accesses.iter().map(|(slice, at_ms)| SliceAccess { slice: *slice, at_ms: *at_ms }).collect();
    HintReport { image: IMAGE, joined, accesses, epoch: known.0, version: known.1 }
}

fn slices(answer: &HintAnswer) -> Vec<u32> {
    answer.hints.iter().map(|hint| hint.slice).collect()
}

/// Figure 3 of the paper: four instances, chunks A to D, a threshold of two.
#[test]
fn the_tracker_gives_the_papers_example() {
    let [a, b, c, d] = [0, 1, 2, 3];
    let mut tracker =
        Tracker::new(1, TrackerSettings { threshold: Threshold::Disks(2), ..TrackerSettings::default() });
    // All read A. Each that comes second finds a hint, which names the slice that it reads itself.
    let first: Vec<_> = (0..4).map(|n| tracker.report(MEMBER, &report(1, &[(a, n)], (0, 0)))).collect();
    assert!(first.iter().all(|answer| slices(answer).iter().all(|slice| *slice == a)));
    let known = |n: usize| (first[n].epoch, first[n].version);
    let tree = |tracker: &Tracker| {
        let tree = &tracker.images[&IMAGE].tree;
        [tree.node(a, 2), tree.node(a, 1), tree.node(c, 1)].map(|node| node.map(|(count, _)| count))
    };
    // (b): instance 1 reads B. The right half of the tree is below the threshold: it is not even there.
    tracker.report(MEMBER, &report(0, &[(b, 10)], known(0)));
    assert_eq!(tree(&tracker), [Some(5), Some(5), None]);
    // Instances 2 and 3 read C. B was read only once: no hint of it for either.
    let second = tracker.report(MEMBER, &report(0, &[(c, 11)], known(1)));
    let third = tracker.report(MEMBER, &report(0, &[(c, 12)], known(2)));
    assert!(!slices(&second).contains(&b) && !slices(&second).contains(&c) && !slices(&third).contains(&b));
    // (c): instance 4 reads D, and is told of C, not of B.
    let fourth = tracker.report(MEMBER, &report(0, &[(d, 13)], known(3)));
    assert_eq!(slices(&fourth), [c]);
    assert_eq!(fourth.hints, [Hint { slice: c, disks: 2, mean_ms: 11 }]);
    assert_eq!(tree(&tracker), [Some(8), Some(5), Some(3)]);
    // Below the left half's A only B was visited, and left out because of its count.
    let mut found = Vec::new();
    let visited = tracker.images[&IMAGE].tree.hints_since(2, 0, &mut found);
    assert_eq!((visited, found.len()), (7, 2));
    assert_eq!(tracker.images[&IMAGE].tree.hints_since(5, 0, &mut Vec::new()), 1);
}

/// Subtrees below the threshold are skipped as a whole, and so are those that are known.
#[test]
fn an_answer_visits_few_nodes_of_the_tree() {
    let mut tree = Tree::default();
    let mut version = 0;
    let mut read = |tree: &mut Tree, slice: u32| {
        version += u64::from(tree.read(SliceAccess { slice, at_ms: 1 }, 3, version + 1, 1));
    };
    (0..10_000).for_each(|n| read(&mut tree, n * 7));
    (0..50).for_each(|n| (0..3).for_each(|_| read(&mut tree, n)));
    let mut found = Vec::new();
    let visited = tree.hints_since(3, 0, &mut found);
    assert!(found.len() == 50 && visited < 250, "{visited} for {}", found.len());
    (0..3).for_each(|_| read(&mut tree, 60_000));
    found.clear();
    let visited = tree.hints_since(3, version - 1, &mut found);
    assert!(found.len() == 1 && visited < 50, "{visited}");
}

/// The tracker as ten lines could express it.
#[derive(Default)]
struct Plain {
    disks: u32,
    slices: BTreeMap<u32, (u32, u64)>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A new agent hears the plain counts; an agent that follows has, in the end, all slices above the threshold, and
    /// never is behind by a factor of two.
    #[test]
    fn agents_follow_the_plain_counts_of_reports(
        reports in prop::collection::vec((0_u32..3, prop::collection::vec((0_u32..200, 0_u32..1000), 0..20)), 1..60),
        share in 0.0_f64..0.6,
        hints_max in 1_usize..40,
    ) {
        let settings = TrackerSettings { threshold: Threshold::Share(share), hints_max, ..TrackerSettings::default() };
        let mut tracker = Tracker::new(9, settings);
        let (mut plain, mut copy, mut known) = (Plain::default(), BTreeMap::new(), (0, 0));
        for (joined, accesses) in reports {
            plain.disks += joined;
            for (slice, at) in &accesses {
                let entry = plain.slices.entry(*slice).or_default();
                *entry = (entry.0 + 1, entry.1 + u64::from(*at));
            }
            let answer = tracker.report(MEMBER, &report(joined, &accesses, known));
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
            let answer = tracker.report(MEMBER, &report(0, &[], known));
            copy.extend(answer.hints.iter().map(|hint| (hint.slice, hint.disks)));
            known = (answer.epoch, answer.version);
            if answer.hints.is_empty() {
                break;
            }
        }
        for (slice, (disks, _)) in plain.slices.iter().filter(|(_, (disks, _))| *disks >= threshold) {
            // A slice that crossed an earlier, higher threshold is told with its next access.
            let Some(told) = copy.get(slice) else { continue };
            prop_assert!(disks < &(told * 2), "{} {}", disks, told);
        }
        let counts = tracker.counts(IMAGE).unwrap();
        let sums: Vec<_> = counts.slices.iter().map(|hint| (hint.slice, hint.disks)).collect();
        prop_assert_eq!(sums, plain.slices.iter().map(|(slice, (disks, _))| (*slice, *disks)).collect::<Vec<_>>());
    }

    /// All levels of the tree add up.
    #[test]
    fn inner_nodes_are_the_sums_of_their_children(
        accesses in prop::collection::vec((prop_oneof![0_u32..40, any::<u32>()], 0_u32..1000), 1..80),
    ) {
        let mut tree = Tree::default();
        for (slice, at_ms) in &accesses {
            tree.read(SliceAccess { slice: *slice, at_ms: *at_ms }, 1, 1, 1);
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

/// Two runs of a deployment: the counts of the first are known to the second from its first answer on.
#[test]
fn the_second_run_knows_all_at_once() {
    let mut tracker = Tracker::new(1, TrackerSettings::default());
    for _ in 0..120 {
        tracker.report(MEMBER, &report(1, &[(1, 5), (2, 10), (3, 15)], (0, 0)));
    }
    tracker.report(MEMBER, &report(0, &[(9, 1)], (0, 0)));
    let answer = tracker.report(MEMBER, &report(1, &[], (0, 0)));
    assert_eq!((slices(&answer), answer.disks), (vec![1, 2, 3], 121));
    // The same after a restart; and an agent that knew all from the life before is told again.
    let mut again = Tracker::new(2, TrackerSettings::default());
    again.load(&tracker.counts(IMAGE).unwrap());
    assert_eq!(again.counts(IMAGE), tracker.counts(IMAGE));
    assert_eq!(again.report(MEMBER, &report(0, &[], (1, answer.version))).hints, answer.hints);
}

#[test]
fn old_counts_fade() {
    let mut tracker = Tracker::new(1, TrackerSettings::default());
    tracker.report(MEMBER, &report(0, &[(5, 1)], (0, 0)));
    for _ in 0..DISKS_MAX {
        tracker.report(MEMBER, &report(1, &[(1, 4)], (0, 0)));
    }
    let answer = tracker.report(MEMBER, &report(2, &[], (0, 0)));
    let half = DISKS_MAX / 2;
    assert_eq!((answer.disks, answer.hints), (half + 1, vec![Hint { slice: 1, disks: half, mean_ms: 4 }]));
    assert_eq!(tracker.counts(IMAGE).unwrap().slices.len(), 1);
}

#[test]
fn memory_is_bounded() {
    let settings = TrackerSettings { images_max: 3, slices_max: 100, ..TrackerSettings::default() };
    let mut tracker = Tracker::new(1, settings);
    for image in 0..50 {
        let accesses = (0..300).map(|n| SliceAccess { slice: n * 1_000_003, at_ms: 1 }).collect();
        tracker.report(
            MEMBER,
            &HintReport { image: ImageKey(image), joined: 1, accesses, epoch: 0, version: 0 },
        );
    }
    assert_eq!(tracker.images().collect::<Vec<_>>(), [47, 48, 49].map(ImageKey));
    assert_eq!(tracker.counts(ImageKey(49)).unwrap().slices.len(), 100);
    let settings = TrackerSettings { nodes_max: 500, ..settings };
    let mut tracker = Tracker::new(1, settings);
    for image in 0..3 {
        let accesses = (0..100).map(|slice| SliceAccess { slice, at_ms: 1 }).collect();
        tracker.report(
            MEMBER,
            &HintReport { image: ImageKey(image), joined: 1, accesses, epoch: 0, version: 0 },
        );
    }
    assert_eq!(tracker.images().collect::<Vec<_>>(), [1, 2].map(ImageKey));
    // The number of new disks in a report cannot make it loop or overflow.
    tracker.report(MEMBER, &report(u32::MAX, &[(1, u32::MAX), (u32::MAX, 0)], (1, u64::MAX)));
    assert!(tracker.counts(IMAGE).unwrap().disks <= DISKS_MAX);
    let hint = Hint { slice: u32::MAX, disks: u32::MAX, mean_ms: u32::MAX };
    tracker.load(&ImageCounts { image: IMAGE, disks: u32::MAX, slices: vec![hint; 5] });
    assert_eq!(tracker.counts(IMAGE).unwrap().slices.len(), 1);
    assert_eq!((Threshold::Share(f64::NAN).of(9), Threshold::Share(9e99).of(9)), (1, u32::MAX));
}

fn report_of(image: u64, slices: impl IntoIterator<Item = u32>) -> HintReport {
    let accesses = slices.into_iter().map(|slice| SliceAccess { slice, at_ms: 1 }).collect();
    HintReport { image: ImageKey(image), joined: 1, accesses, epoch: 0, version: 0 }
}

impl Tracker {
    fn memory(&self) -> usize {
        self.images.values().map(|image| image.tree.memory()).sum()
    }

    /// The read count of each slice, by image.
    fn all(&self) -> BTreeMap<(ImageKey, u32), u32> {
        let slices = |image| self.counts(image).map(|counts| counts.slices).unwrap_or_default();
        self.images()
            .flat_map(|image| slices(image).into_iter().map(move |hint| ((image, hint.slice), hint.disks)))
            .collect()
    }
}

/// A member that names as many images and slices as it can makes a tracker take at most 14 MiB, and costs others
/// nothing.
#[test]
fn one_member_takes_a_share_and_no_more() {
    let mut tracker = Tracker::new(1, TrackerSettings::default());
    let (honest, greedy) = (PeerKey(2), PeerKey(3));
    for image in 0..20 {
        tracker.report(honest, &report_of(image, 0..2000));
    }
    // The greedy member may read this one, and reports the same and more.
    tracker.report(greedy, &report_of(0, 1000..3000));
    let before = tracker.all();
    let (own, mut most) = (tracker.memory(), 0);
    for n in 0..300_u32 {
        let image = if n % 3 == 0 { u64::from(n % 20) } else { 1000 + u64::from(n) };
        let slices = (0..4096).map(|m| (n * 4096 + m).wrapping_mul(2_654_435_761));
        tracker.report(greedy, &report_of(image, slices));
        most = most.max(tracker.memory());
    }
    // Images without slices, as many as it can.
    (0..2000).for_each(|image| drop(tracker.report(greedy, &report_of(10_000 + image, []))));
    assert!(most - own < 14 << 20, "{most} bytes, {own} before");
    assert!(tracker.images().count() <= 20 + 256);
    let after = tracker.all();
    for ((image, slice), disks) in before {
        let own = image == ImageKey(0) && slice >= 2000;
        assert!(own || after.get(&(image, slice)).is_some_and(|now| *now >= disks), "{image:?} {slice}");
    }
    assert_eq!(tracker.images().filter(|image| image.0 < 20).count(), 20);
}

/// Many members that fill a tracker together make it take no more than the limit for all.
#[test]
fn all_members_together_are_bounded() {
    let mut tracker = Tracker::new(1, TrackerSettings::default());
    let mut most = 0;
    for n in 0..400_u32 {
        let slices = (0..4096).map(|m| (n * 4096 + m).wrapping_mul(2_654_435_761));
        tracker.report(PeerKey(u64::from(n % 24)), &report_of(u64::from(n), slices));
        most = most.max(tracker.memory());
    }
    assert!(tracker.images().count() > 15 && (64 << 20..100 << 20).contains(&most), "{most} bytes");
    // One more member that is small has its place.
    tracker.report(PeerKey(99), &report_of(7777, 0..1000));
    for n in 0..60 {
        tracker.report(PeerKey(n % 24), &report_of(100 + n, (0..4096).map(|m| m * 1_000_003)));
    }
    assert_eq!(tracker.counts(ImageKey(7777)).map(|counts| counts.slices.len()), Some(1000));
}

/// The remembered reads, as they could be kept without a tree: for each slice its first reader, and `true` if others
/// have read it.
type Owners = BTreeMap<(ImageKey, u32), (PeerKey, bool)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Members report in any order: the charges equal the nodes, and one member's report costs no other member entries
    /// that only that member has reported, and no member a slice that two have read.
    #[test]
    fn a_members_reports_push_out_its_own(
        reports in prop::collection::vec(
            (0_u64..4, 0_u64..9, prop::collection::vec(prop_oneof![0_u32..64, any::<u32>()], 0..12)), 1..120),
        nodes_member_max in 40_usize..400,
        images_member_max in prop_oneof![1_usize..5, Just(100)],
    ) {
        let settings = TrackerSettings {
            nodes_member_max,
            images_member_max,
            nodes_max: 100_000,
            ..TrackerSettings::default()
        };
        let mut tracker = Tracker::new(1, settings);
        let mut owners = Owners::new();
        let mut last = BTreeMap::<(PeerKey, ImageKey), usize>::new();
        for (at, (member, image, slices)) in reports.into_iter().enumerate() {
            let (member, image) = (PeerKey(member), ImageKey(image));
            let before = tracker.all();
            tracker.report(member, &report_of(image.0, slices.iter().copied()));
            let after = tracker.all();
            last.insert((member, image), at);
            for slice in slices.iter().filter(|slice| after.contains_key(&(image, **slice))) {
                let owner = owners.entry((image, *slice)).or_insert((member, false));
                owner.1 |= owner.0 != member;
            }
            let lost: Vec<_> = before.keys().filter(|key| !after.contains_key(*key)).copied().collect();
            for key in &lost {
                let (owner, is_shared) = owners.remove(key).unwrap();
                prop_assert!(owner == member && !is_shared && key.0 != image, "{:?} of {:?}", key, owner);
            }
            // Of its own entries, the oldest went first; or the oldest of the images that it named first, if these were
            // too many.
            let newest_lost = lost.iter().map(|key| last[&(member, key.0)]).max();
            let kept = owners.iter().filter(|(key, owner)| **owner == (member, false) && key.0 != image);
            let oldest_kept = kept.map(|(key, _)| last[&(member, key.0)]).min();
            if let (Some(lost), Some(kept)) = (newest_lost, oldest_kept) {
                prop_assert!(images_member_max < 9 || lost < kept, "{} {}", lost, kept);
            }
            prop_assert!(owners.keys().eq(after.keys()));
            let sum: usize = tracker.images.values().map(|image| image.tree.nodes()).sum();
            let parts = tracker.members.held_by_all(Measure::Weight) - sum;
            prop_assert!(parts <= 2 * 5 * 9, "{} beside {}", parts, sum);
            for member in 0..4 {
                let slot = tracker.members.slot(PeerKey(member));
                prop_assert!(tracker.members.held(slot, Measure::Images) <= images_member_max);
            }
            tracker.members.close_empty();
        }
    }
}
