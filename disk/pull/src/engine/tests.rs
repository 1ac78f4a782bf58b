//! The rules, one by one, on virtual time: a link of 10 MB/s and 20 ms unless a test says otherwise.

use crate::testing::{DATA, Disk, Fate, LINK, Link, MILLI, Sim, TREE, UNIT, lazy, millis, short};
use crate::{
    BLOCK_SIZE, BackgroundSharing, BlobRange, EngineEvent, EngineSettings, FetchId, FetchOutcome, Plan,
    PlanItem, Priority, SLICE_SIZE, Time,
};
use headstart_block::{ByteRange, ErrorKind};
use std::time::Duration;

fn seconds(n: u64) -> Time {
    Time(n * 1_000_000)
}

fn plan(items: impl IntoIterator<Item = (u64, u32)>) -> Plan {
    Plan::List(items.into_iter().map(|(block, mask)| PlanItem { block, mask }).collect())
}

fn asked(sim: &Sim, priority: Priority) -> Vec<BlobRange> {
    sim.asked.iter().filter(|asked| asked.priority == priority).map(|asked| asked.range).collect()
}

fn bytes(sim: &Sim) -> u64 {
    sim.asked.iter().map(|asked| asked.range.len()).sum()
}

#[test]
fn a_miss_takes_a_round_trip_and_its_own_bytes() {
    for settings in [lazy(), EngineSettings::default()] {
        let mut sim = Sim::new(Disk::plain(64 << 20), settings);
        sim.read(5 << 20, 4096);
        sim.run(seconds(2));
        assert!(sim.reads[0].wait() < 40 * MILLI, "{:?}", sim.reads[0].wait());
        let page = BlobRange::between(TREE, 5 * 4096, 6 * 4096);
        let first: Vec<_> = sim.asked.iter().filter(|asked| asked.at == Time(0)).collect();
        let critical: Vec<_> = first.iter().filter(|asked| asked.priority == Priority::Miss).collect();
        assert_eq!(critical.iter().map(|asked| asked.range.len()).collect::<Vec<_>>(), [4096, UNIT]);
        assert_eq!(critical[0].range, page, "the page of the hash tree is asked for in parallel");
    }
}

#[test]
fn the_rest_of_a_block_follows_its_critical_range() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    sim.read(BLOCK_SIZE + 8192, 4096);
    sim.run(seconds(2));
    assert!(sim.disk.is_local(ByteRange::between(BLOCK_SIZE, 2 * BLOCK_SIZE)));
    assert_eq!(sim.disk.local_bytes(), BLOCK_SIZE);
    assert_eq!(bytes(&sim), BLOCK_SIZE + 2 * 4096, "every byte once");
}

/// A rest that is requested together with the miss would come between its bytes on a link that connections share.
#[test]
fn the_rest_of_a_block_is_asked_for_when_the_critical_range_has_left() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    sim.read(0, 4096);
    sim.run(seconds(2));
    sim.read(BLOCK_SIZE + 8192, 4096);
    sim.run(seconds(4));
    let at = |priority: Priority| {
        let times = sim.asked.iter().filter(|asked| asked.at >= seconds(2) && asked.priority == priority);
        times.map(|asked| asked.at.since(seconds(2))).min().unwrap()
    };
    assert_eq!(at(Priority::Miss), Duration::ZERO);
    let rest = at(Priority::Preload);
    // 20 KB at 10 MB/s.
    assert!(rest > MILLI && rest < 4 * MILLI, "{rest:?}");
}

#[test]
fn the_rest_of_a_block_waits_for_the_plan() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    sim.notify(EngineEvent::PlanChanged(plan([(4, u32::MAX), (5, u32::MAX)])));
    sim.read(0, 4096);
    sim.run(seconds(5));
    let order: Vec<_> =
        asked(&sim, Priority::Preload).into_iter().filter(|range| range.blob == DATA).collect();
    let rest = order.iter().position(|range| range.range.offset() < BLOCK_SIZE).unwrap();
    assert!(order[..rest].iter().map(|range| range.len()).sum::<u64>() >= 2 * BLOCK_SIZE);
    assert_eq!(sim.disk.local_bytes(), 3 * BLOCK_SIZE);
}

#[test]
fn the_rest_of_a_block_that_is_read_on_goes_before_the_plan() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    sim.notify(EngineEvent::PlanChanged(plan((4..20).map(|block| (block, u32::MAX)))));
    sim.read(SLICE_SIZE, 4096);
    sim.run(millis(100));
    sim.read(9 * SLICE_SIZE, SLICE_SIZE);
    sim.run(seconds(1));
    assert!(sim.disk.is_local(ByteRange::between(0, BLOCK_SIZE)), "a fifth of a second at 10 MB/s");
    assert!(!sim.disk.is_local(ByteRange::between(4 * BLOCK_SIZE, 20 * BLOCK_SIZE)));
    let rest: Vec<_> = asked(&sim, Priority::Preload)
        .into_iter()
        .filter(|range| range.blob == DATA && range.range.offset() < BLOCK_SIZE)
        .map(|range| range.range.offset() / SLICE_SIZE)
        .collect();
    assert_eq!(rest[0], 10, "from where the guest reads: {rest:?}");
    assert!(rest.iter().position(|slice| *slice < 9) > rest.iter().position(|slice| *slice > 28), "{rest:?}");
}

#[test]
fn a_late_plan_asks_for_no_rest() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    sim.notify(EngineEvent::PlanChanged(plan([(4, u32::MAX), (1, 0b11)])));
    for slice in 0..2 {
        sim.read(BLOCK_SIZE + slice * SLICE_SIZE, 4096);
        sim.run(millis(50 * (slice + 1)));
    }
    sim.run(seconds(5));
    assert_eq!(sim.disk.local_bytes(), BLOCK_SIZE + 2 * SLICE_SIZE);
    sim.read(BLOCK_SIZE + 2 * SLICE_SIZE, 4096);
    sim.run(seconds(10));
    assert_eq!(sim.disk.local_bytes(), 2 * BLOCK_SIZE, "what the plan does not name");
}

#[test]
fn preloads_hot_slices_in_plan_order_and_nothing_else() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    sim.notify(EngineEvent::PlanChanged(plan([(9, 0b11), (2, 1 << 31), (2, 0), (99, 1)])));
    sim.run(seconds(2));
    let data: Vec<_> =
        asked(&sim, Priority::Preload).into_iter().filter(|range| range.blob == DATA).collect();
    let slice = |block: u64, slice: u64| block * BLOCK_SIZE + slice * SLICE_SIZE;
    assert_eq!(
        data,
        [
            BlobRange::between(DATA, slice(9, 0), slice(9, 2)),
            BlobRange::between(DATA, slice(2, 31), slice(3, 0)),
        ]
    );
    assert_eq!(asked(&sim, Priority::Fill), []);
    assert_eq!(sim.counters().plan_skipped, 2);
}

#[test]
fn small_ranges_become_few_requests() {
    let mut sim = Sim::new(Disk::scattered(32 * 16), EngineSettings::default());
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    sim.run(seconds(20));
    let whole = sim.disk.local_bytes();
    assert!(sim.disk.is_local(ByteRange::between(0, 32 * 16 * SLICE_SIZE)));
    let requests = sim.asked.iter().filter(|asked| asked.range.blob == DATA).count() as u64;
    assert!(requests * 40 * 1024 < whole, "{requests} requests for {whole} bytes");
    assert!(sim.counters().coalesced > 0);
}

#[test]
fn preloading_fills_the_link() {
    for (rate, round_trip) in [(2, 20), (10, 20), (10, 100), (100, 20), (100, 100), (400, 5)] {
        let mut sim = Sim::new(Disk::plain(rate << 23), short(EngineSettings::default()));
        sim.link = Link { rate: rate * 1_000_000, round_trip: Duration::from_millis(round_trip) };
        sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
        sim.run(seconds(6));
        let start = sim.disk.local_bytes();
        sim.run(seconds(8));
        let percent = (sim.disk.local_bytes() - start) * 100 / (2 * rate * 1_000_000);
        let before: u64 =
            sim.asked.iter().filter(|asked| asked.at < seconds(1)).map(|asked| asked.range.len()).sum();
        assert!(percent >= 96, "{rate} MB/s, {round_trip} ms: {percent}%");
        assert!(before > rate * 700_000, "{rate} MB/s, {round_trip} ms: {before} bytes in the first second");
        // The bytes on the wire now are no more than enough.
        let on_wire = sim.asked.iter().filter(|asked| asked.at <= seconds(7) && asked.due > seconds(7));
        let on_wire: u64 = on_wire.map(|asked| asked.range.len()).sum();
        let pipe = rate * 1_000 * round_trip;
        assert!(on_wire <= pipe * 5 / 2 + (256 << 10), "{rate} MB/s, {round_trip} ms: {on_wire} of {pipe}");
    }
}

#[test]
fn a_miss_waits_for_no_more_than_what_is_on_the_wire() {
    let mut sim = Sim::new(Disk::plain(512 << 20), lazy());
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    for n in 0..100 {
        sim.read_at(
            millis(2000 + n * 97),
            ByteRange::between((500 << 20) - n * (2 << 20), (500 << 20) - n * (2 << 20) + 4096),
        );
    }
    sim.run(seconds(15));
    for read in &sim.reads {
        let on_wire = sim.asked.iter().filter(|asked| asked.at < read.at && asked.due > read.at);
        let on_wire: u64 = on_wire.map(|asked| asked.range.len()).sum();
        let own = LINK.round_trip + Duration::from_micros((UNIT + 4096) / 10 + 1000);
        let most = own + Duration::from_micros(on_wire / 10);
        assert!(read.wait() <= most, "{:?} with {on_wire} on the wire", read.wait());
        assert!(read.wait() < 70 * MILLI, "{:?}", read.wait());
    }
    assert!(sim.disk.local_bytes() > 120_000_000, "preloading goes on all the same");
}

#[test]
fn strict_sharing_starts_nothing_beside_a_miss() {
    let mut sim = Sim::new(
        Disk::plain(64 << 20),
        EngineSettings { sharing: BackgroundSharing::Strict, ..short(lazy()) },
    );
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    sim.run(seconds(1));
    sim.read(60 << 20, 4096);
    sim.run(seconds(2));
    let read = &sim.reads[0];
    let end = read.at + read.wait();
    assert!(
        !sim.asked
            .iter()
            .any(|asked| asked.priority != Priority::Miss && asked.at >= read.at && asked.at < end)
    );
    assert!(sim.asked.iter().any(|asked| asked.priority == Priority::Preload && asked.at == end));
}

/// The published behaviour: whole blocks, one after the other, in the plan's order and no other.
#[test]
fn without_looking_ahead_a_plan_is_followed_to_the_letter() {
    let order = [9, 8, 3, 4, 5, 0, 31, 1];
    let mut settings = EngineSettings { look_ahead: 0, background_min: BLOCK_SIZE, depth_max: 1, ..lazy() };
    (settings.depth_min, settings.background_max) = (1, BLOCK_SIZE);
    let mut sim = Sim::new(Disk::plain(64 << 20), settings);
    sim.notify(EngineEvent::PlanChanged(plan(order.map(|block| (block, u32::MAX)))));
    sim.run(seconds(10));
    let data = asked(&sim, Priority::Preload).into_iter().filter(|range| range.blob == DATA);
    let blocks: Vec<_> = data.map(|range| (range.range.offset() / BLOCK_SIZE, range.len())).collect();
    assert_eq!(blocks, order.map(|block| (block, BLOCK_SIZE)));
}

#[test]
fn without_bypassing_a_miss_waits_for_the_request_that_holds_its_bytes() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings { bypass_late: false, ..lazy() });
    sim.link.rate = 200_000;
    sim.notify(EngineEvent::PlanChanged(plan([(0, u32::MAX)])));
    sim.run(seconds(1));
    sim.read(128 << 10, 4096);
    sim.run(seconds(60));
    sim.reads[0].wait();
    assert_eq!((sim.counters().overtaken, sim.counters().cancelled), (0, 0));
    assert_eq!(asked(&sim, Priority::Miss), []);
}

/// The reason for `Fill` as the default: a guest that reads blocks that the plan does not name, one after the
/// other, and then blocks that it names.
#[test]
fn a_guest_that_misses_all_the_time_does_not_stop_preloading() {
    let boot = |sharing| {
        let mut sim = Sim::new(Disk::plain(128 << 20), EngineSettings { sharing, ..lazy() });
        sim.notify(EngineEvent::PlanChanged(plan((0..13).map(|block| (block, u32::MAX)))));
        let unknown = (0..150).map(|n| (64 << 20) + n * (400 << 10));
        let known = (0..400).map(|n| n << 16);
        sim.guest = unknown.chain(known).map(|at| (MILLI / 10, ByteRange::between(at, at + 4096))).collect();
        sim.run_guest()
    };
    let (fill, strict) = (boot(BackgroundSharing::Fill), boot(BackgroundSharing::Strict));
    assert!(fill < strict * 4 / 5, "fill {fill:?}, strict {strict:?}");
}

#[test]
fn one_fetch_serves_all_who_wait() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    for n in 0..32 {
        sim.read(n * 512, 4096);
    }
    sim.run(seconds(1));
    assert_eq!(bytes(&sim), 2 * UNIT + 4096);
    assert!(sim.reads.iter().all(|read| read.wait() < 40 * MILLI));
    assert!(sim.counters().joined >= 31);
}

#[test]
fn a_miss_joins_a_preload_on_the_wire() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    sim.notify(EngineEvent::PlanChanged(plan([(0, u32::MAX)])));
    sim.run(millis(5));
    sim.read(4096, 4096);
    sim.run(seconds(2));
    assert_eq!(asked(&sim, Priority::Miss), []);
    assert!(sim.counters().promoted > 0);
    assert!(sim.reads[0].wait() < 60 * MILLI);
    assert_eq!(bytes(&sim), BLOCK_SIZE + 2 * 4096);
}

#[test]
fn a_preload_that_a_miss_joins_is_promoted() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    sim.notify(EngineEvent::PlanChanged(plan([(0, 0b1111)])));
    let data = |sim: &Sim| *sim.asked.iter().find(|asked| asked.range.blob == DATA).unwrap();
    assert_eq!((data(&sim).priority, data(&sim).promoted_upto), (Priority::Preload, 0));
    sim.run(millis(1));
    sim.read(0, 4096);
    assert_eq!(data(&sim).promoted_upto, UNIT);
    // A request with waiters is not promoted again.
    sim.read(4096, 4096);
    sim.read(2 * UNIT, 4096);
    assert_eq!(data(&sim).promoted_upto, 3 * UNIT);
    let promotions = sim.log.iter().filter(|line| line.contains("Promote")).count();
    sim.run(seconds(1));
    // The data twice, and its page of the tree, which comes first and is waited for by all.
    assert_eq!((promotions, sim.counters().promoted), (3, 6));
    // A miss is urgent from the beginning.
    sim.read(32 << 20, 4096);
    sim.read(32 << 20, 4096);
    sim.run(seconds(2));
    assert_eq!(sim.log.iter().filter(|line| line.contains("Promote")).count(), promotions);
}

#[test]
fn a_miss_does_not_wait_for_a_preload_that_stalls() {
    let mut sim = Sim::new(Disk::plain(64 << 20), short(lazy()));
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    sim.run(seconds(1));
    let stalled = sim.asked.len() as u64;
    sim.fates = Box::new(move |n, _, _, _| if n == stalled { Fate::Stall } else { Fate::Good });
    while sim.asked.len() as u64 == stalled {
        sim.run(Time(sim.now.0 + 1000));
    }
    let range = sim.asked[stalled as usize].range.range;
    sim.read(range.offset() + 20_000, 4096);
    sim.run(seconds(3));
    assert!(sim.reads[0].wait() < 300 * MILLI, "{:?}", sim.reads[0].wait());
    assert_eq!(sim.counters().overtaken, 1);
    // Late by now: the next one asks at once.
    sim.read(range.offset() + 40_000, 4096);
    sim.run(seconds(4));
    assert!(sim.reads[1].wait() < 80 * MILLI, "{:?}", sim.reads[1].wait());
}

#[test]
fn a_failed_fetch_is_tried_again_with_growing_pauses() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    sim.fates = Box::new(|_, now, _, _| if now < seconds(30) { Fate::Fail } else { Fate::Good });
    sim.read(0, 4096);
    sim.run(seconds(60));
    assert!(sim.reads[0].wait() >= Duration::from_secs(30));
    assert!(sim.reads[0].wait() < Duration::from_secs(36));
    assert!(sim.counters().retries < 40, "{}", sim.counters().retries);
    assert!(sim.counters().retries > 10);
}

#[test]
fn the_background_rests_while_the_store_is_away_and_goes_on_when_it_is_back() {
    let mut sim = Sim::new(Disk::plain(256 << 20), short(EngineSettings::default()));
    let away = |now| (seconds(1)..seconds(31)).contains(&now);
    sim.fates = Box::new(move |_, now, _, _| if away(now) { Fate::Fail } else { Fate::Good });
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    for n in 0..50 {
        sim.read_at(
            millis(2000 + n * 100),
            ByteRange::between((200 << 20) + (n << 16), (200 << 20) + (n << 16) + 4096),
        );
    }
    sim.run(seconds(80));
    assert!(
        sim.reads
            .iter()
            .all(|read| read.end.as_ref().is_some_and(|(end, result)| result.is_ok() && *end < seconds(37)))
    );
    let tries = sim.asked.iter().filter(|asked| away(asked.at) && asked.priority != Priority::Miss).count();
    assert!(tries < 60, "{tries}");
    assert_eq!(sim.counters().given_up, 0);
    assert!(
        sim.disk.is_local(ByteRange::between(0, 256 << 20)),
        "{:?} {}",
        sim.counters(),
        sim.disk.local_bytes()
    );
}

#[test]
fn a_read_fails_at_its_deadline_with_the_cause() {
    let mut sim =
        Sim::new(Disk::plain(64 << 20), EngineSettings { deadline: Duration::from_secs(10), ..lazy() });
    sim.fates = Box::new(|_, _, _, _| Fate::Fail);
    sim.read(0, 4096);
    sim.run(seconds(20));
    let (end, result) = sim.reads[0].end.clone().unwrap();
    let error = result.unwrap_err();
    assert_eq!((end, error.kind()), (seconds(10), ErrorKind::Unavailable));
    assert!(error.to_string().contains("10 s") && error.to_string().contains("blob"), "{error}");
    assert_eq!(sim.counters().failed_deadline, 1);
}

#[test]
fn an_error_that_no_retry_helps_reaches_the_read_at_once() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    sim.fates = Box::new(|_, _, _, _| Fate::Permanent);
    sim.read(0, 4096);
    sim.run(seconds(20));
    let (end, result) = sim.reads[0].end.clone().unwrap();
    assert_eq!((end, result.unwrap_err().kind()), (millis(20), ErrorKind::NotFound));
    assert_eq!(sim.counters().failed_permanent, 1);
}

#[test]
fn a_background_failure_fails_no_read() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    let fate = |priority| if priority == Priority::Miss { Fate::Good } else { Fate::Permanent };
    sim.fates = Box::new(move |_, _, _, priority| fate(priority));
    sim.notify(EngineEvent::PlanChanged(plan([(0, u32::MAX)])));
    sim.read_at(millis(1), ByteRange::between(0, 4096));
    sim.run(seconds(2));
    assert!(sim.counters().promoted > 0, "the test is about a read that joined");
    assert!(sim.reads[0].wait() < 80 * MILLI);
    assert!(sim.counters().given_up > 0);
}

#[test]
fn a_background_range_that_always_fails_is_left_alone() {
    let mut sim = Sim::new(Disk::plain(8 << 20), short(lazy()));
    let bad = ByteRange::between(1 << 20, (1 << 20) + UNIT);
    sim.fates = Box::new(move |_, _, range, _| {
        if range.blob == DATA && !range.range.intersect(bad).is_empty() { Fate::Fail } else { Fate::Good }
    });
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    sim.run(seconds(60));
    assert_eq!(sim.counters().given_up, 0);
    sim.run(seconds(400));
    assert_eq!(sim.counters().given_up, 1);
    assert!(sim.disk.local_bytes() > (8 << 20) - (1 << 20));
    assert!(sim.counters().retries < 120, "{}", sim.counters().retries);
}

#[test]
fn corrupt_bytes_are_asked_for_again_and_then_named() {
    for (corrupt, served) in [(1, true), (2, true), (3, false)] {
        let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
        let mut remaining = corrupt;
        sim.fates = Box::new(move |_, _, range, _| {
            if range.blob == DATA && remaining > 0 {
                remaining -= 1;
                return Fate::Corrupt;
            }
            Fate::Good
        });
        sim.read(0, 4096);
        sim.run(seconds(10));
        let (end, result) = sim.reads[0].end.clone().unwrap();
        assert_eq!(result.is_ok(), served);
        assert!(end < millis(100), "wrong bytes need no pause: {end:?}");
        assert_eq!(sim.counters().corrupt, corrupt);
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("blob 0"), "{error}");
        }
    }
}

#[test]
fn data_waits_for_its_page_of_the_tree_without_blocking_it() {
    // The least depth: two requests. Pages fail at first, so data fills the link and waits for them.
    let mut sim = Sim::new(Disk::plain(16 << 20), EngineSettings { depth_max: 2, ..lazy() });
    sim.fates = Box::new(
        |_, now, range, _| if range.blob == TREE && now < seconds(2) { Fate::Fail } else { Fate::Good },
    );
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    sim.run(seconds(30));
    assert!(sim.disk.is_local(ByteRange::between(0, 16 << 20)));
}

#[test]
fn a_read_does_not_wait_for_bytes_that_others_inserted() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    sim.read(0, 4096);
    sim.read(1 << 20, 40 << 10);
    sim.run(millis(1));
    let brought = [BlobRange::between(TREE, 0, 8192), BlobRange::between(DATA, 0, UNIT)];
    for range in brought {
        assert!(sim.disk.insert(range));
        sim.notify(EngineEvent::BecameLocal { range });
    }
    assert_eq!(sim.reads[0].wait(), MILLI);
    assert_eq!(sim.counters().cancelled, 3, "two pages and the data");
    sim.run(seconds(1));
    assert!(sim.reads[1].wait() < 40 * MILLI);
}

/// Two fetches of the same bytes wait for another process's fetch: each is over when it reports that, and takes no
/// place any more.
#[test]
fn a_fetch_that_finds_its_bytes_there_is_over() {
    let mut sim = Sim::new(Disk::plain(256 << 10), lazy());
    sim.read(0, 4096);
    sim.run(seconds(1));
    sim.fates = Box::new(|_, _, _, _| Fate::Stall);
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    let background: Vec<_> =
        sim.engine.requests.all().map(|(fetch, request)| (fetch, request.range)).collect();
    assert_eq!(background.len(), 1);
    let (first, range) = background[0];
    sim.read(range.range.offset(), range.len());
    sim.run(seconds(10));
    assert_eq!(sim.engine.requests.all().count(), 2, "it was late, and is bypassed");
    assert!(sim.disk.insert(range));
    for fetch in [first, FetchId(first.0 + 1)] {
        sim.notify(EngineEvent::Fetched { fetch, outcome: FetchOutcome::Found });
    }
    sim.reads[1].wait();
    assert_eq!((sim.engine.requests.all().count(), sim.engine.wire.bytes()), (0, 0));
    assert_eq!(sim.engine.estimate().bandwidth, None, "that says nothing of the link");
}

/// The readers of a background request that failed bypassed it: a later read waits for its next try.
#[test]
fn a_read_waits_for_the_next_try_of_what_others_gave_up() {
    let mut sim = Sim::new(Disk::plain(256 << 10), lazy());
    sim.read(0, 4096);
    sim.run(seconds(1));
    let mut fails = true;
    sim.fates = Box::new(move |_, _, _, priority| {
        let fails = priority == Priority::Preload && std::mem::take(&mut fails);
        if fails { Fate::Fail } else { Fate::Good }
    });
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    let range = asked(&sim, Priority::Preload)[0].range;
    sim.read(range.offset(), 4096);
    while asked(&sim, Priority::Preload).len() < 2 {
        sim.run(sim.now + MILLI);
    }
    sim.read(range.end() - 4096, 4096);
    sim.run(seconds(5));
    assert!(sim.reads.iter().all(|read| read.end.is_some()), "{:?}", sim.reads);
    let last = ByteRange::between(range.end() - 4096, range.end());
    let brought = sim.asked.iter().filter(|asked| asked.fate == Fate::Good);
    assert_eq!(brought.filter(|asked| asked.range.range.intersect(last) == last).count(), 1);
}

#[test]
fn a_reader_that_goes_away_leaves_background_work() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings { miss_requests: 1, ..lazy() });
    sim.read(0, 4096);
    sim.read(8 << 20, 4096);
    sim.forget_at(millis(1), 1);
    sim.forget_at(millis(2), 7);
    sim.run(seconds(1));
    assert!(sim.reads[0].wait() < 60 * MILLI);
    assert!(sim.reads[1].end.is_none());
    assert!(sim.disk.is_local(ByteRange::between(8 << 20, (8 << 20) + 4096)));
    assert_eq!(asked(&sim, Priority::Preload).len(), 2);
    assert_eq!(sim.counters().forgotten, 1);
}

#[test]
fn another_plan_goes_on_where_something_is_missing() {
    let mut sim = Sim::new(Disk::plain(64 << 20), lazy());
    sim.notify(EngineEvent::PlanChanged(plan((0..10).map(|block| (block, u32::MAX)))));
    sim.run(millis(700));
    let before = sim.asked.len();
    sim.notify(EngineEvent::PlanChanged(plan([(0, u32::MAX), (20, u32::MAX), (9, 1)])));
    sim.run(seconds(5));
    let data = sim.asked[before..].iter().map(|asked| asked.range).filter(|range| range.blob == DATA);
    assert!(data.clone().all(|range| range.range.offset() >= 9 * BLOCK_SIZE), "what is there is skipped");
    assert!(sim.disk.is_local(ByteRange::between(20 * BLOCK_SIZE, 21 * BLOCK_SIZE)));
    assert!(!sim.disk.is_local(ByteRange::between(8 * BLOCK_SIZE, 9 * BLOCK_SIZE)));
}

#[test]
fn a_long_plan_of_local_blocks_is_passed_in_small_steps() {
    let mut sim = Sim::new(Disk::plain(8 << 20), lazy());
    sim.notify(EngineEvent::PlanChanged(Plan::Sequential));
    sim.run(seconds(5));
    let items = (0..100_000).map(|n| (n % 4, u32::MAX)).collect::<Vec<_>>();
    sim.notify(EngineEvent::PlanChanged(plan(items)));
    sim.run(seconds(6));
    assert_eq!(sim.counters().plan_skipped, 100_000);
}

#[test]
fn the_left_queue_keeps_its_rate_and_comes_last() {
    let mut sim = Sim::new(Disk::scattered(32 * 40), EngineSettings::default());
    sim.notify(EngineEvent::PlanChanged(plan((0..4).map(|block| (block * 3, u32::MAX)))));
    sim.notify(EngineEvent::FillRate(Some(1_000_000)));
    sim.run(seconds(15));
    let fills: Vec<_> = sim.asked.iter().filter(|asked| asked.priority == Priority::Fill).copied().collect();
    let preloaded =
        sim.asked.iter().filter(|asked| asked.priority == Priority::Preload).map(|asked| asked.at).max();
    assert!(fills[0].at >= preloaded.unwrap());
    let spent = sim.now.since(fills[0].at).as_secs_f64();
    let rate = fills.iter().map(|asked| asked.range.len()).sum::<u64>() as f64 / spent;
    assert!((950_000.0..=1_050_000.0).contains(&rate), "{rate}");
    let progress = sim.engine.progress();
    assert!((700_000..1_050_000).contains(&progress.rate), "{progress:?}");
    let eta = progress.eta.unwrap();
    sim.run(Time(sim.now.0 + eta.as_micros() as u64 * 11 / 10 + 1_000_000));
    assert_eq!(sim.engine.progress().total, Some(sim.engine.progress().local));
    assert_eq!(sim.engine.progress().eta, Some(Duration::ZERO));
    assert!(sim.disk.is_local(ByteRange::between(0, 32 * 40 * SLICE_SIZE)));
    assert_eq!(bytes(&sim), sim.disk.local_bytes() + asked_of_tree(&sim), "every byte once");
}

fn asked_of_tree(sim: &Sim) -> u64 {
    sim.asked.iter().filter(|asked| asked.range.blob == TREE).map(|asked| asked.range.len()).sum()
}

#[test]
fn the_left_queue_comes_back_to_what_was_given_up() {
    let settings = EngineSettings { deadline: Duration::from_secs(3), ..EngineSettings::default() };
    let mut sim = Sim::new(Disk::plain(8 << 20), settings);
    let bad = |range: BlobRange| range.blob == DATA && range.range.offset() < 1 << 20;
    sim.fates = Box::new(
        move |_, now, range, _| if bad(range) && now < seconds(60) { Fate::Fail } else { Fate::Good },
    );
    sim.notify(EngineEvent::FillRate(Some(5_000_000)));
    sim.run(seconds(30));
    let progress = sim.engine.progress();
    assert_eq!(progress.total, Some(8 << 20));
    assert!((6 << 20..=7 << 20).contains(&progress.local), "{progress:?}");
    sim.run(seconds(200));
    assert_eq!(sim.engine.progress().local, 8 << 20);
}

#[test]
fn the_left_queue_stops_when_told() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings::default());
    sim.notify(EngineEvent::FillRate(Some(1_000_000)));
    sim.run(seconds(2));
    sim.notify(EngineEvent::FillRate(None));
    sim.run(seconds(3));
    let before = sim.asked.len();
    sim.run(seconds(30));
    assert_eq!((sim.asked.len(), sim.engine.progress().total), (before, None));
    sim.notify(EngineEvent::FillRate(Some(50_000_000)));
    sim.run(seconds(60));
    assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)));
}

#[test]
fn too_many_reads_are_refused() {
    let mut sim = Sim::new(Disk::plain(64 << 20), EngineSettings { reads_max: 2, ..lazy() });
    for n in 0..3 {
        sim.read(n << 20, 4096);
    }
    sim.run(seconds(1));
    assert!(sim.reads[2].end.as_ref().is_some_and(|(_, result)| result.is_err()));
    assert_eq!((sim.counters().refused, sim.counters().completed), (1, 2));
}

#[test]
fn odd_reads_are_answered() {
    let mut sim = Sim::new(Disk::scattered(10), EngineSettings::default());
    // A hole, nothing at all, past the end, all of it.
    for part in [(0, 4096), (5000, 0), (u64::MAX - 1, 1), (0, u64::MAX)] {
        sim.notify(EngineEvent::Forget { read: crate::ReadId(99) });
        sim.read(part.0, part.1);
    }
    sim.run(seconds(5));
    assert!(sim.reads.iter().all(|read| read.end.as_ref().is_some_and(|(_, result)| result.is_ok())));
}
