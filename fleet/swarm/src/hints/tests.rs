//! The times of reports, and the plan that the hints make.

use super::*;
use crate::PeerKey;
use crate::tracker::{Tracker, TrackerSettings};
use proptest::prelude::*;

const IMAGE: ImageKey = ImageKey(3);
const EVERY: Duration = Duration::from_millis(100);

fn answer(version: u64, hints: &[(u32, u32, u32)]) -> HintAnswer {
    let hints =
        hints.iter().map(|(slice, disks, mean_ms)| Hint { slice: *slice, disks: *disks, mean_ms: *mean_ms });
    HintAnswer { image: IMAGE, epoch: 1, version, disks: 100, hints: hints.collect() }
}

fn items(plan: &Plan) -> Vec<(u64, u32)> {
    let Plan::List(items) = plan else { return Vec::new() };
    items.iter().map(|item| (item.block, item.mask)).collect()
}

#[test]
fn reports_go_out_every_now_and_then() {
    let ms = |ms: u64| Time(ms * 1000);
    let mut hints = Hints::new(IMAGE, EVERY);
    assert_eq!((hints.due(), hints.report(ms(5))), (None, None));
    hints.joined();
    let first = hints.report(ms(5)).unwrap();
    assert_eq!((first.joined, first.accesses.len(), first.version), (1, 0, 0));
    // For a booting disk that reads nothing, a report is due, but later.
    assert_eq!((hints.due(), hints.report(ms(404))), (Some(ms(405)), None));
    hints.read(7, Duration::from_millis(12));
    assert_eq!((hints.due(), hints.report(ms(104))), (Some(ms(105)), None));
    let second = hints.report(ms(105)).unwrap();
    assert_eq!((second.joined, second.accesses), (0, vec![SliceAccess { slice: 7, at_ms: 12 }]));
    assert!(hints.report(ms(505)).is_some());
    hints.booted();
    assert_eq!(hints.due(), None);
}

#[test]
fn the_plan_begins_with_what_most_read_first() {
    let mut hints = Hints::new(IMAGE, EVERY);
    assert_eq!(hints.plan(), Plan::Lazy);
    // 120 and 64 count as equal; 63 is fewer. Slices of a block are together if their times are close.
    assert!(
        hints.on_answer(&answer(4, &[(0, 64, 10), (320, 63, 1), (1, 120, 20), (64, 100, 15), (3200, 20, 0)]))
    );
    assert_eq!(items(&hints.plan()), [(0, 0b11), (2, 1), (10, 1), (100, 1)]);
    // A newer hint replaces an older one; an answer that was overtaken does not.
    assert!(hints.on_answer(&answer(9, &[(3200, 90, 2)])));
    assert!(!hints.on_answer(&answer(5, &[(3200, 20, 2)])) && !hints.on_answer(&answer(9, &[(3200, 91, 2)])));
    assert_eq!(items(&hints.plan())[0], (100, 1));
    hints.read(64, Duration::ZERO);
    hints.read(65, Duration::ZERO);
    let tally = hints.tally();
    assert_eq!((tally.reads, tally.foreseen, tally.hints, hints.disks()), (2, 1, 7, 100));
}

#[test]
fn memory_is_bounded() {
    let mut hints = Hints::new(IMAGE, EVERY);
    (0..10_000).for_each(|slice| hints.read(slice, Duration::MAX));
    assert_eq!(hints.tally().dropped, 10_000 - REPORT_MAX as u64);
    let many: Vec<_> = (0..100_000).map(|slice| (slice, 5, 5)).collect();
    hints.on_answer(&answer(1, &many));
    assert_eq!(hints.slices.len(), SLICES_MAX);
}

proptest! {
    /// Disks on several hosts read in one order: the last host knows it after one answer, in that order.
    #[test]
    fn reads_of_several_hosts_become_hints_for_the_next(
        order in Just((0_u32..300).collect::<Vec<_>>()).prop_shuffle(), hosts in 2_u64..8,
    ) {
        let mut tracker = Tracker::new(5, TrackerSettings::default());
        for host in 0..hosts {
            let mut hints = Hints::new(IMAGE, EVERY);
            hints.joined();
            for (n, slice) in (0..).zip(&order) {
                hints.read(*slice, Duration::from_millis(n * 10 + host));
            }
            let report = hints.report(Time(host)).unwrap();
            prop_assert!(hints.report(Time(host)).is_none());
            hints.on_answer(&tracker.report(PeerKey(1), &report));
        }
        let mut last = Hints::new(IMAGE, EVERY);
        last.joined();
        last.on_answer(&tracker.report(PeerKey(1), &last.clone().report(Time(0)).unwrap()));
        let counts = tracker.counts(IMAGE).unwrap();
        prop_assert_eq!(plan_of(&counts, TrackerSettings::default().threshold), last.plan());
        prop_assert_eq!(plan_of(&counts, Threshold::Disks(100)), Plan::Lazy);
        let plan = items(&last.plan());
        let at = |slice: u32| {
            let here = |(block, mask): &(u64, u32)| *block == u64::from(slice / 32) && mask >> (slice % 32) & 1 == 1;
            plan.iter().position(here).unwrap()
        };
        // In order, except for slices that join a block that was named a few items before.
        for two in order.windows(2) {
            prop_assert!(at(two[1]) + NEAR >= at(two[0]));
        }
        prop_assert_eq!(plan.iter().map(|(_, mask)| mask.count_ones()).sum::<u32>(), 300);
    }
}
