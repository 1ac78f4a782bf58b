use super::fio::{Owner, Pattern};
use super::reclaim::Meanwhile;
use super::*;

/// Random reads of 1 MiB, 32 at a time.
const READS: Pattern = Pattern { write: false, random: true, block: 1 << 20, depth: 32 };

#[test]
fn a_harvest_disk_is_as_fast_as_one_that_owns_its_channels() {
    for pattern in [READS, Pattern { write: true, random: false, ..READS }] {
        let run = |more, owner| fio::one(4, more, pattern, owner, Length::Short, 1).unwrap().0.bandwidth();
        let (home, owned, unsold) = (run(0, Owner::None), run(2, Owner::None), run(2, Owner::Unsold));
        let name = pattern.name();
        assert!(unsold >= 0.9 * owned && unsold >= 1.16 * home, "{name}: {home} {owned} {unsold}");
    }
}

/// The owner of the harvested channels uses half of their bandwidth.
#[test]
fn busy_channels_are_no_loss() {
    let writes = Pattern { write: true, random: false, ..READS };
    for pattern in [READS, writes, Pattern { random: true, block: 128 << 10, ..writes }] {
        let run = |more, owner| fio::one(4, more, pattern, owner, Length::Short, 1).unwrap().0.bandwidth();
        let (home, busy) = (run(0, Owner::None), run(2, Owner::Steady));
        assert!(busy >= 0.95 * home, "{}: {home} {busy}", pattern.name());
    }
}

#[test]
fn a_sort_beside_a_busy_store_keeps_its_pace() {
    let pair = beside::measure(Length::Short, Duration::from_micros(200), 1).unwrap();
    assert!(pair.gain() > 0.8, "{pair:?}");
}

#[test]
fn a_regular_vm_is_kept() {
    for think in [Duration::from_micros(200), Duration::ZERO] {
        let case = regular::Case { channels: 4, think, full: 0.4, aged: false };
        let row = regular::measure(case, Length::Short, SchedulerSettings::default(), 1).unwrap();
        assert!(row.is_kept(), "{row:?}");
        assert!(row.harvest.bandwidth() > 10.0, "{row:?}");
    }
}

#[test]
fn a_channel_is_erased_as_fast_as_the_papers() {
    let row = reclaim::measure(reclaim::CHANNEL / 4, Meanwhile::Idle, Length::Short, 1).unwrap();
    assert!((17.0..17.5).contains(&row.seconds) && row.erased >= 1.0, "{row:?}");
    let row = reclaim::measure(64, Meanwhile::Reads, Length::Short, 1).unwrap();
    assert!(row.loss() < 0.015 && row.erased >= 1.0, "{row:?}");
}

#[test]
fn reading_becomes_faster_as_data_is_written_anew() {
    let course = spread::measure(4, 100, Owner::Unsold, Length::Short, 1).unwrap();
    assert!(course.mean(0.0, 4.0) > 1.02 * course.mean(-2.0, 0.0), "{course:?}");
}

#[test]
fn wear_is_that_of_what_was_written() {
    let wear = wear::of_lease(1000, 900, 0);
    assert!((wear.all_written - 0.0217).abs() < 1e-4 && wear.share < 0.02, "{wear:?}");
}

#[test]
fn a_home_that_writes_in_bursts_does_not_call_back_what_it_lent() {
    // For a moment all its free blocks are taken while others are being erased: that is no shortage.
    let pattern = Pattern { write: false, random: false, block: 128 << 10, depth: 4 };
    let (_, home) = fio::one(8, 4, pattern, Owner::Bursts, Length::Full, 1).unwrap();
    assert!(home.is_some_and(|home| home.bandwidth() > 70.0));
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let run = || fio::one(2, 1, READS, Owner::Bursts, Length::Short, 7).unwrap();
    assert_eq!(run(), run());
}
