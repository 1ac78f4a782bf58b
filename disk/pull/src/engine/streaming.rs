//! Long requests, by the rules at the head of [`super::streams`], on virtual time.

use crate::testing::wire::PIECE;
use crate::testing::{Asked, DATA, Disk, Fate, Fates, Link, MILLI, Sim, TREE, UNIT, lazy, millis};
use crate::{BackgroundSharing, BlobRange, EngineEvent, EngineSettings, Plan, PlanItem, Priority, Time};
use headstart_block::ByteRange;
use std::time::Duration;

const MB: u64 = 1_000_000;

/// A disk of 192 MiB of which the first 64 are planned, one block after the other.
fn streaming(rate: u64, round_trip: u64, settings: EngineSettings) -> Sim {
    streaming_with(rate, round_trip, settings, Box::new(|_, _, _, _| Fate::Good))
}

fn streaming_with(rate: u64, round_trip: u64, settings: EngineSettings, fates: Fates) -> Sim {
    let mut sim = Sim::new(Disk::plain(192 << 20), settings);
    sim.link = Link { rate: rate * MB, round_trip: Duration::from_millis(round_trip) };
    sim.fates = fates;
    sim.notify(EngineEvent::PlanChanged(Plan::List((0..32).map(PlanItem::whole).collect())));
    sim
}

fn streams(sim: &Sim) -> Vec<Asked> {
    sim.asked.iter().copied().filter(|asked| asked.stream).collect()
}

const LINKS: [(u64, u64); 9] =
    [(2, 1), (2, 20), (2, 50), (10, 1), (10, 20), (10, 50), (100, 1), (100, 20), (100, 50)];

#[test]
fn contiguous_plan_items_are_one_request() {
    for (rate, round_trip) in LINKS {
        let mut sim = streaming(rate, round_trip, lazy());
        sim.run(millis(80_000 / rate + 2000));
        assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)), "{rate} MB/s, {round_trip} ms");
        let trees = sim.asked.iter().filter(|asked| asked.range.blob == TREE).count();
        let data = sim.asked.len() - trees;
        assert!(data <= 2 && trees <= 2, "{data} and {trees}: {rate} MB/s, {round_trip} ms");
        let moved: u64 = sim.asked.iter().map(|asked| asked.range.len()).sum();
        assert!(moved <= (64 << 20) + (64 << 12), "{moved}: every byte once");
        // All of it at the speed of the link.
        let last = sim.asked.iter().map(|asked| asked.due).max().unwrap();
        let best = Duration::from_micros((64 << 20) / rate) + 3 * Duration::from_millis(round_trip);
        assert!(last.since(Time(0)) <= best * 102 / 100, "{last:?} of {best:?}");
    }
}

/// With 64 MiB under way, a miss waits for its own transfer, a round trip, and the bytes that were on the wire by then.
#[test]
fn no_miss_waits_behind_a_stream() {
    for sharing in [BackgroundSharing::Fill, BackgroundSharing::Strict] {
        for (rate, round_trip) in LINKS {
            let mut sim = streaming(rate, round_trip, EngineSettings { sharing, ..lazy() });
            sim.run(millis(400));
            assert!(!sim.disk.is_local(ByteRange::between(0, 64 << 20)));
            let start = sim.now;
            for n in 0..40 {
                let (at, len) = ((100 << 20) + n * (2 << 20) + 4096, 4096 << (n % 5));
                sim.read_at(start + 37 * (n as u32) * MILLI, ByteRange::between(at, at + len));
            }
            sim.run(start + Duration::from_secs(8));
            for read in sim.reads.clone() {
                let own = Duration::from_micros((read.part.len() + 2 * UNIT + 4096) / rate);
                let piece = Duration::from_micros(PIECE / rate);
                let others = sim.reads.iter().filter(|other| {
                    other.at <= read.at && other.end.as_ref().is_some_and(|(end, _)| *end > read.at)
                });
                let others: u64 = others.map(|other| other.part.len() + 3 * UNIT).sum();
                let most =
                    own + Duration::from_millis(round_trip) + piece + Duration::from_micros(others / rate);
                assert!(
                    read.wait() <= most + MILLI,
                    "{:?} of {most:?}: {rate} MB/s, {round_trip} ms",
                    read.wait()
                );
            }
            assert!(sim.counters().held > 0, "it was held");
        }
    }
}

/// The stream has the capacity that the misses leave: they cost it the bytes that they bring, and no round trips.
#[test]
fn misses_cost_a_stream_no_more_than_their_own_bytes() {
    let mut sim = streaming(10, 20, lazy());
    for n in 0..100 {
        let at = (100 << 20) + n * (512 << 10);
        sim.read_at(millis(300 + 50 * n), ByteRange::between(at, at + 65536));
    }
    sim.run(millis(5300));
    let brought = sim.asked.iter().filter(|asked| asked.priority == Priority::Miss);
    let missed: u64 = brought.map(|asked| asked.range.len()).sum();
    let streamed = sim.disk.local_bytes() - 100 * 65536;
    assert!(missed + streamed > 5_000_000 * 98 / 10, "{missed} and {streamed} in 5 s");
}

#[test]
fn a_read_just_ahead_of_a_stream_waits_for_it() {
    let mut sim = streaming(10, 20, lazy());
    sim.run(millis(1000));
    let come = sim.disk.local_bytes();
    sim.read(come + 100_000, 4096);
    sim.run(millis(1200));
    let misses = |sim: &Sim| sim.asked.iter().filter(|asked| asked.priority == Priority::Miss).count();
    assert_eq!(misses(&sim), 0, "it comes sooner than by a request");
    assert!(sim.reads[0].wait() < 20 * MILLI, "{:?}", sim.reads[0].wait());
    // A second ahead.
    sim.read(sim.disk.local_bytes() + 10 * MB, 4096);
    sim.run(millis(1400));
    assert_eq!((misses(&sim), sim.counters().overtaken_in_stream), (1, 1), "their page is there already");
    assert!(sim.reads[1].wait() < 45 * MILLI, "{:?}", sim.reads[1].wait());
}

/// A stream of about a round trip's worth, as rests of blocks and scans are asked for: a reader that asks for its
/// part of the stream separately has the part no sooner, and it comes twice.
#[test]
fn a_read_just_ahead_of_a_short_stream_waits_without_holding_it() {
    for sharing in [BackgroundSharing::Fill, BackgroundSharing::Strict] {
        let mut sim = streaming(50, 20, EngineSettings { sharing, ..lazy() });
        sim.run(millis(3000));
        assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)));
        let (held, streamed) = (sim.counters().held, streams(&sim).len());
        sim.notify(EngineEvent::PlanChanged(Plan::List([PlanItem { block: 40, mask: 0x3ff }].into())));
        assert_eq!(streams(&sim).len(), streamed + 1);
        sim.read((80 << 20) + (600 << 10), 4096);
        sim.read(100 << 20, 4096);
        sim.run(millis(3500));
        assert!(sim.reads[0].wait() < 50 * MILLI, "{:?}", sim.reads[0].wait());
        let misses = sim.asked.iter().filter(|asked| asked.priority == Priority::Miss);
        let misses: Vec<_> = misses.map(|asked| asked.range.range.offset() >> 20).collect();
        assert!(misses.iter().all(|at| *at == 100 || *at == 0), "{misses:?}");
        assert_eq!(sim.counters().held, held, "it is a request as any other");
    }
}

/// A reader always reads a little ahead of the stream: the stream does not bring local bytes again.
#[test]
fn a_stream_goes_on_behind_what_was_read_ahead() {
    let mut sim = streaming(2, 20, lazy());
    sim.run(millis(500));
    for n in 0..16 {
        sim.read_at(
            millis(600 + n * 10),
            ByteRange::between((4 << 20) + (n << 18), (4 << 20) + ((n + 1) << 18)),
        );
    }
    sim.run(millis(45_000));
    assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)));
    assert_eq!((streams(&sim).len(), sim.counters().cancelled), (2, 1));
    let again = &streams(&sim)[1];
    assert!(again.range.range.offset() >= 8 << 20, "{}", again.range);
    let counters = sim.counters();
    let moved = counters.miss_bytes + counters.preload_bytes;
    assert!(moved <= (64 << 20) + (2 << 20), "{moved}");
}

/// Bytes before them are still to come, and a read of those waits for the stream.
#[test]
fn bytes_that_others_bring_to_the_middle_of_a_stream_do_not_move_it() {
    let mut sim = streaming(10, 20, lazy());
    sim.run(millis(1000));
    let come = sim.disk.local_bytes();
    sim.bring(40 << 20, (40 << 20) + (256 << 10));
    sim.read(come + 100_000, 4096);
    sim.run(millis(10_000));
    assert!(sim.reads[0].wait() < 20 * MILLI, "{:?}", sim.reads[0].wait());
    assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)));
    assert_eq!((streams(&sim).len(), sim.counters().miss_bytes), (1, 0));
}

#[test]
fn the_rest_of_a_broken_stream_goes_on_across_what_a_read_brought() {
    let mut breaks = true;
    let fates = Box::new(move |_, _, range: BlobRange, _| {
        let breaks = range.blob == DATA && range.len() > 4 << 20 && std::mem::take(&mut breaks);
        if breaks { Fate::Break } else { Fate::Good }
    });
    let mut sim = streaming_with(10, 20, lazy(), fates);
    sim.read_at(millis(1000), ByteRange::between(48 << 20, (48 << 20) + 4096));
    sim.run(millis(10_000));
    assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)));
    let ends: Vec<_> = streams(&sim).iter().map(|asked| asked.range.range.end() >> 20).collect();
    assert_eq!((ends, sim.counters().overtaken_in_stream), (vec![64, 64], 1));
}

#[test]
fn the_rest_of_a_broken_stream_is_requested_again() {
    let mut breaks = 3;
    let fates = Box::new(move |_, _, range: BlobRange, _| {
        if range.blob == DATA && range.len() > 4 << 20 && breaks > 0 {
            breaks -= 1;
            return Fate::Break;
        }
        Fate::Good
    });
    let mut sim = streaming_with(10, 20, lazy(), fates);
    sim.run(millis(10_000));
    assert!(sim.disk.is_local(ByteRange::between(0, 64 << 20)));
    let starts: Vec<_> = streams(&sim).iter().map(|asked| asked.range.range.offset() >> 20).collect();
    assert_eq!(starts.len(), 4, "{starts:?}");
    assert!(starts.is_sorted() && starts[1] >= 31, "half was kept each time: {starts:?}");
    assert_eq!((sim.counters().retries, sim.counters().given_up), (3, 0));
}

#[test]
fn a_stream_is_promoted_as_far_as_a_read_waits() {
    let mut sim = streaming(10, 20, lazy());
    sim.run(millis(1000));
    let come = sim.disk.local_bytes();
    let promoted = |sim: &Sim| streams(sim).iter().map(|asked| asked.promoted_upto).max().unwrap();
    assert_eq!(promoted(&sim), 0);
    sim.read(come + 100_000, 4096);
    let first = promoted(&sim);
    assert!((come + 104_096..come + 200_000).contains(&first), "{first} of {come}");
    sim.read(come + 10_000, 4096);
    assert_eq!(promoted(&sim), first);
    // A reader that bypasses it waits for nothing of it.
    sim.read(come + 10 * MB, 4096);
    assert_eq!(promoted(&sim), first);
}

#[test]
fn a_read_bypasses_a_stream_that_stalls() {
    let mut first = true;
    let fates =
        Box::new(
            move |_, _, range: BlobRange, _| {
                if range.blob == DATA && std::mem::take(&mut first) { Fate::Stall } else { Fate::Good }
            },
        );
    let mut sim = streaming_with(10, 20, lazy(), fates);
    sim.run(millis(10));
    sim.read(100_000, 4096);
    sim.run(millis(5000));
    assert!(sim.reads[0].wait() < Duration::from_millis(1100), "{:?}", sim.reads[0].wait());
    // And the rest of the plan does not wait for it either.
    let beside =
        sim.asked.iter().filter(|asked| asked.priority == Priority::Preload && asked.at > millis(500));
    assert_eq!(beside.count(), 0, "there is nothing else in the plan");
}

#[test]
fn another_plan_ends_the_streams_of_the_last_one() {
    let mut sim = streaming(10, 20, lazy());
    sim.run(millis(1000));
    sim.read(sim.disk.local_bytes() + 100_000, 4096);
    let plan = Plan::List((40..60).map(PlanItem::whole).collect());
    sim.notify(EngineEvent::PlanChanged(plan.clone()));
    assert_eq!(sim.counters().cancelled, 0, "somebody waits for it");
    sim.run(millis(1100));
    sim.notify(EngineEvent::PlanChanged(plan));
    assert_eq!(sim.counters().cancelled, 0, "it is the same");
    sim.notify(EngineEvent::PlanChanged(Plan::Lazy));
    assert_eq!(sim.counters().cancelled, 1);
    let local = sim.disk.local_bytes();
    sim.run(millis(3000));
    assert_eq!(sim.disk.local_bytes(), local);
}

/// Ranges that are not contiguous, or come in another order, are requested in the usual way.
#[test]
fn plan_items_out_of_order_are_not_streamed() {
    let mut sim = Sim::new(Disk::plain(192 << 20), lazy());
    sim.notify(EngineEvent::PlanChanged(Plan::List(
        (0..64).rev().map(|block| PlanItem { block, mask: 0b10 }).collect(),
    )));
    sim.run(millis(3000));
    assert!(streams(&sim).is_empty());
    // From the last block to the first: each is a run, and no two are one.
    let mut sim = Sim::new(Disk::plain(192 << 20), lazy());
    sim.notify(EngineEvent::PlanChanged(Plan::List((0..16).rev().map(PlanItem::whole).collect())));
    sim.run(millis(8000));
    let runs: Vec<_> = streams(&sim).iter().map(|asked| asked.range.range).collect();
    assert!(runs.iter().all(|run| run.len() <= 2 << 20), "{runs:?}");
}

#[test]
fn without_bypassing_nothing_is_late() {
    let mut sim = streaming(10, 20, EngineSettings { bypass_late: false, ..lazy() });
    sim.run(millis(100));
    sim.read(sim.disk.local_bytes() + 50_000, 4096);
    sim.run(millis(8000));
    assert!(sim.reads[0].wait() < 30 * MILLI);
}

/// The estimate, while a stream is under way and the guest misses at other places.
fn estimate_after(from: u64, to: u64, round_trip: u64, misses: bool, wait: Duration) -> u64 {
    let mut sim = streaming(from, round_trip, lazy());
    sim.run(millis(1500));
    sim.link.rate = to * 1000;
    let changed = sim.now;
    if misses {
        for n in 0..100 {
            let at = (100 << 20) + n * (512 << 10);
            sim.read_at(changed + 10 * (n as u32) * MILLI, ByteRange::between(at, at + 16384));
        }
    }
    sim.run(changed + wait);
    sim.engine.estimate().bandwidth.unwrap()
}

#[test]
fn follows_a_bandwidth_that_changes_in_the_middle_of_a_stream() {
    for (from, to) in [(10, 5000), (10, 1000), (30, 15_000), (30, 3000), (4, 2000), (5, 20_000), (20, 2000)] {
        for round_trip in [1, 20, 50] {
            for misses in [false, true] {
                let found = estimate_after(from, to, round_trip, misses, Duration::from_millis(990));
                let percent = found / (to * 10);
                assert!((75..=125).contains(&percent), "{percent}% of {to} kB/s, {round_trip} ms, {misses}");
            }
        }
    }
}

#[test]
fn holds_do_not_fool_the_estimator() {
    for (rate, round_trip) in LINKS {
        let mut sim = streaming(rate, round_trip, lazy());
        for n in 0..300 {
            let at = (100 << 20) + n * (256 << 10);
            sim.read_at(millis(50 + n * 7), ByteRange::between(at, at + 4096));
        }
        for n in 0..20 {
            sim.run(millis(350 + n * 100));
            let found = sim.engine.estimate().bandwidth.unwrap() * 100 / (rate * MB);
            assert!((75..=115).contains(&found), "{found}% of {rate} MB/s, {round_trip} ms at {:?}", sim.now);
        }
        assert!(sim.counters().held > 0, "{rate} MB/s, {round_trip} ms");
    }
}
