//! The rules at their edges, on virtual time: what changed while a request was queued, what only nearly is a miss, and
//! the counters that become metrics.

use crate::testing::{Asked, DATA, Disk, Fate, Link, MILLI, Sim, TREE, UNIT, lazy, millis, short};
use crate::{
    BLOCK_SIZE, BackgroundSharing, BlobRange, EngineEvent, EngineSettings, Plan, PlanItem, Priority,
    SLICE_SIZE, Time,
};
use headstart_block::ByteRange;

fn plan(blocks: impl IntoIterator<Item = u64>) -> Plan {
    Plan::List(blocks.into_iter().map(PlanItem::whole).collect())
}

fn page(offset: u64) -> ByteRange {
    ByteRange::between(offset, offset + 4096)
}

/// The data that was requested from the `first` request on.
fn data_from(sim: &Sim, first: usize) -> Vec<ByteRange> {
    let data = sim.asked[first..].iter().filter(|asked| asked.range.blob == DATA);
    data.map(|asked| asked.range.range).collect()
}

#[test]
fn requested_bytes_are_counted_by_what_they_are_for() {
    for settings in [EngineSettings::default(), short(EngineSettings::default())] {
        let mut sim = Sim::new(Disk::plain(64 << 20), settings);
        sim.notify(EngineEvent::PlanChanged(plan(0..8)));
        sim.notify(EngineEvent::FillRate(Some(50_000_000)));
        sim.read(40 << 20, 4096);
        sim.run(millis(30_000));
        assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)));
        let asked = |priority| {
            let ranges = sim.asked.iter().filter(|asked| asked.priority == priority);
            ranges.map(|asked| asked.range.len()).sum::<u64>()
        };
        let expected = [Priority::Miss, Priority::Preload, Priority::Fill].map(asked);
        let counters = sim.counters();
        assert_eq!([counters.miss_bytes, counters.preload_bytes, counters.fill_bytes], expected);
        assert!(expected.iter().all(|bytes| *bytes > 0), "{expected:?}");
    }
}

#[test]
fn a_scan_is_read_on_before_the_guest_gets_there() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    for block in 7..10 {
        sim.read(block * BLOCK_SIZE, 4096);
        sim.run(sim.now + 2000 * MILLI);
    }
    assert!(sim.disk.is_local(ByteRange::between(7 * BLOCK_SIZE, 11 * BLOCK_SIZE)));
    assert_eq!((sim.disk.local_bytes(), sim.counters().rest_dropped), (4 * BLOCK_SIZE, 0));
}

#[test]
fn a_hole_beside_a_miss_asks_for_no_rest_of_its_block() {
    let mut sim = Sim::new(Disk::scattered(32 * 2), EngineSettings::default());
    let slice = |n: u64| ByteRange::between(n * SLICE_SIZE, (n + 1) * SLICE_SIZE);
    // The first slice is a hole; the other is in the second block.
    sim.read_ranges(&[slice(0), slice(33)]);
    sim.run(millis(5000));
    assert!(sim.disk.is_local(ByteRange::between(BLOCK_SIZE, 2 * BLOCK_SIZE)));
    assert!(!sim.disk.is_local(slice(1)));
}

#[test]
fn rests_that_found_no_place_are_counted() {
    let mut sim =
        Sim::new(Disk::plain(128 << 20), EngineSettings { rest_max: 1, ..EngineSettings::default() });
    sim.notify(EngineEvent::PlanChanged(plan(0..20)));
    for block in [30, 40, 50] {
        sim.read(block * BLOCK_SIZE, 4096);
    }
    assert_eq!(sim.counters().rest_dropped, 2);
}

/// Two requests of the least size are more than the link holds in a round trip.
#[test]
fn beyond_the_pipe_no_more_than_the_least_depth_is_asked_for() {
    let mut sim = Sim::new(Disk::plain(64 << 20), short(lazy()));
    sim.link = Link { rate: 10_000_000, round_trip: MILLI };
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    sim.run(millis(3000));
    let late = sim.asked.iter().filter(|asked| asked.at > millis(1000));
    let depth = |at: Time| sim.asked.iter().filter(|asked| asked.at <= at && asked.due > at).count();
    assert_eq!(late.map(|asked| depth(asked.at)).max(), Some(2));
}

/// The pages of the ranges are there, and that of the bytes between them is not.
#[test]
fn a_gap_that_is_fetched_too_brings_its_own_page_of_the_tree() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings { gap: 4 << 20, ..lazy() });
    for n in [0, 2] {
        assert!(sim.disk.insert(BlobRange { blob: TREE, range: page(n * 4096) }));
    }
    sim.read(32 << 20, 4096);
    assert_eq!(sim.counters().coalesced, 0);
    sim.read_ranges(&[page(0), page(2 << 20)]);
    assert_eq!(sim.counters().coalesced, 1);
    sim.run(millis(2000));
    assert!(sim.reads[1].wait() < 400 * MILLI, "{:?}", sim.reads[1].wait());
    assert!(sim.disk.is_local(ByteRange::between(0, (2 << 20) + 4096)));
}

#[test]
fn a_queued_miss_asks_only_for_what_is_still_missing() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings { miss_requests: 1, ..lazy() });
    let start = 8 << 20;
    sim.read(0, 4096);
    sim.read(start, 4 * UNIT);
    sim.run(millis(1));
    sim.bring(start, start + 2 * UNIT);
    sim.run(millis(1000));
    assert!(sim.reads.iter().all(|read| read.wait() < 100 * MILLI));
    let second: Vec<_> = data_from(&sim, 0).into_iter().filter(|range| range.offset() >= start).collect();
    assert_eq!(second, [ByteRange::between(start + 2 * UNIT, start + 4 * UNIT)]);
}

#[test]
fn the_first_success_ends_the_waits_of_all() {
    let mut sim = Sim::new(Disk::plain(256 << 20), short(lazy()));
    sim.fates = Box::new(|_, now, _, _| if now < millis(20_000) { Fate::Fail } else { Fate::Good });
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    for n in 0..10 {
        sim.read_at(millis(n * 700), page((200 << 20) + (n << 20)));
    }
    sim.run(millis(40_000));
    let ends: Vec<_> = sim.reads.iter().map(|read| read.at + read.wait()).collect();
    let (first, last) = (*ends.iter().min().unwrap(), *ends.iter().max().unwrap());
    assert!(last.since(first) < 200 * MILLI, "{ends:?}");
    let preloads = sim.asked.iter().filter(|asked| asked.priority == Priority::Preload);
    let next = preloads.map(|asked| asked.at).find(|at| *at >= first).unwrap();
    assert!(next.since(first) < 100 * MILLI, "{next:?} after {first:?}");
}

#[test]
fn nothing_of_an_earlier_plan_is_asked_for() {
    let mut sim = Sim::new(Disk::plain(64 << 20), short(lazy()));
    sim.notify(EngineEvent::PlanChanged(plan(0..10)));
    sim.run(millis(300));
    let before = sim.asked.len();
    sim.notify(EngineEvent::PlanChanged(plan([20])));
    sim.run(millis(5000));
    let data = data_from(&sim, before);
    assert!(!data.is_empty() && data.iter().all(|range| range.offset() >= 20 * BLOCK_SIZE), "{data:?}");
}

/// A link on which pages of the hash tree fail until `until`, if they were asked for with one of `priorities`.
fn without_pages(sim: &mut Sim, until: Time, priorities: &'static [Priority]) {
    sim.fates = Box::new(move |_, now, range, priority| {
        let fails = range.blob == TREE && now < until && priorities.contains(&priority);
        if fails { Fate::Fail } else { Fate::Good }
    });
}

/// Data whose pages of the hash tree were given up must not count as under way for ever.
#[test]
fn data_whose_pages_were_given_up_is_fetched_again() {
    let whole = ByteRange::between(0, 4 << 20);
    let settings = EngineSettings { deadline: 30_000 * MILLI, ..lazy() };
    let mut sim = Sim::new(Disk::plain(whole.len()), settings);
    without_pages(&mut sim, millis(100_000), &[Priority::Fill]);
    sim.notify(EngineEvent::FillRate(Some(10_000_000)));
    sim.run(millis(90_000));
    assert!(sim.counters().given_up > 0 && sim.disk.local_bytes() == 0, "{:?}", sim.counters());
    sim.run(millis(400_000));
    assert!(sim.disk.is_local(whole), "{:?}", sim.engine.progress());
}

/// The pages that a read does not need itself are in a request of the background, which must rest while reads wait.
#[test]
fn a_read_of_data_that_has_arrived_brings_all_of_its_pages() {
    let settings = EngineSettings { sharing: BackgroundSharing::Strict, ..lazy() };
    let mut sim = Sim::new(Disk::plain(2 << 20), settings);
    without_pages(&mut sim, Time(u64::MAX), &[Priority::Fill, Priority::Preload]);
    sim.bring(0, UNIT);
    sim.notify(EngineEvent::FillRate(Some(50_000_000)));
    sim.run(millis(1_000));
    // A request goes from the first mebibyte into the second one, whose page fails.
    let read = ByteRange::between((1 << 20) - (32 << 10), (1 << 20) - (28 << 10));
    let holds = |asked: &&Asked| asked.range.blob == DATA && asked.range.range.intersect(read) == read;
    assert!(sim.asked.iter().find(holds).unwrap().range.range.end() > 1 << 20);
    sim.read(read.offset(), read.len());
    sim.run(millis(90_000));
    assert!(sim.reads[0].wait() < 1_000 * MILLI, "{:?}", sim.reads[0]);
}
