//! The rules of both models, one by one.

use super::*;
use crate::link::{Failures, Latency, LinkBandwidth};
use crate::model::ReplayClock;
use crate::outcome::Slow;
use headstart_pull::MissRest;
use headstart_trace::{Op, Record};
use std::time::Duration;

const SECOND: u64 = 1_000_000;
/// A block a second.
const RATE: u64 = BLOCK_SIZE;

/// Reads of one page at `(microseconds, block)`, each in a place of its own.
fn boot(blocks: u64, reads: &[(u64, u64)]) -> Boot {
    let place = |n: u64| n % 32 * (64 << 10);
    let records: Vec<_> = (0..)
        .zip(reads)
        .map(|(n, (t_us, block))| {
            let start = block * BLOCK_SIZE + place(n);
            Record {
                t_us: *t_us,
                op: Op::Read,
                range: ByteRange::between(start, start + 4096),
                service_us: None,
            }
        })
        .collect();
    Boot::of_records(blocks * BLOCK_SIZE, &records, 1)
}

fn plan(blocks: &[u64]) -> Plan {
    Plan::List(blocks.iter().map(|block| PlanItem::whole(*block)).collect())
}

fn waits(boot: &Boot, plan: &Plan, model: &Model) -> (Vec<f64>, BootOutcome) {
    let mut simulator = Simulator::new();
    let outcome = simulator.run(boot, plan, model);
    (simulator.waits().iter().map(|wait| wait.as_secs()).collect(), outcome)
}

#[test]
fn blocks_come_one_after_the_other_from_the_creation_on() {
    let reads = [(SECOND - 1, 5), (SECOND, 5), (2 * SECOND, 3), (3 * SECOND - 1, 4), (3 * SECOND, 4)];
    let (waits, outcome) = waits(&boot(8, &reads), &plan(&[5, 3, 4]), &Model::paper(RATE));
    assert_eq!(waits, [1e-6, 0.0, 0.0, 1e-6, 0.0]);
    assert_eq!((outcome.hits, outcome.bytes.miss, outcome.bytes.preload), (3, 0, 3 * BLOCK_SIZE));
}

#[test]
fn a_miss_goes_next_after_the_block_on_the_wire() {
    let reads = [(SECOND / 2, 7), (SECOND / 2 + 1, 6), (10 * SECOND, 2)];
    let (waits, outcome) = waits(&boot(8, &reads), &plan(&[0, 1, 2]), &Model::paper(RATE));
    assert_eq!(waits, [1.5, 2.499_999, 0.0]);
    assert_eq!((outcome.slow.queue, outcome.slow.miss), (1, 1));
    // By then two preloads and the block that was read have come.
    assert_eq!(outcome.accuracy, Accuracy { preloaded: 3, read: 1, pulled: 5, found: 1 });
}

#[test]
fn a_read_of_two_blocks_waits_for_both() {
    let range = ByteRange::between(BLOCK_SIZE - 512, BLOCK_SIZE + 512);
    let record = |t_us| Record { t_us, op: Op::Read, range, service_us: None };
    let boot = Boot::of_records(8 * BLOCK_SIZE, &[record(SECOND / 2), record(5 * SECOND)], 1);
    let (waits, outcome) = waits(&boot, &plan(&[1, 2]), &Model::paper(RATE));
    assert_eq!(waits, [1.5, 0.0], "one is on the wire, the other goes next");
    assert_eq!(outcome.accuracy, Accuracy { preloaded: 2, read: 1, pulled: 3, found: 2 });
}

#[test]
fn a_short_last_block_takes_less_time() {
    let range = ByteRange::between(BLOCK_SIZE, BLOCK_SIZE + 512);
    let records = [Record { t_us: SECOND, op: Op::Read, range, service_us: None }];
    let boot = Boot::of_records(BLOCK_SIZE + BLOCK_SIZE / 4, &records, 1);
    assert_eq!(waits(&boot, &Plan::Lazy, &Model::paper(RATE)).0, [0.25]);
}

#[test]
fn left_blocks_follow_the_plan_in_the_disks_order() {
    let reads = [(4 * SECOND, 0), (4 * SECOND, 1), (4 * SECOND, 3), (4 * SECOND, 5), (4 * SECOND, 2)];
    let (_, off) = waits(&boot(8, &reads), &plan(&[5, 3]), &Model::paper(RATE));
    assert_eq!(off.hits, 2);
    let (waits, on) = waits(&boot(8, &reads), &plan(&[5, 3]), &Model::paper(RATE).with_fill());
    assert_eq!(waits, [0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!((on.accuracy.preloaded, on.accuracy.pulled), (2, 4));
}

#[test]
fn both_accuracies_are_defined_for_lazy() {
    let reads = [(0, 1), (SECOND, 2), (3 * SECOND, 1)];
    let (_, outcome) = waits(&boot(8, &reads), &Plan::Lazy, &Model::paper(RATE));
    assert_eq!((outcome.hits, outcome.accuracy.ours(), outcome.accuracy.artifact()), (1, 0.0, 0.5));
}

#[test]
fn only_the_first_reads_count_for_the_paper() {
    let reads: Vec<_> = (0..4000).map(|n| (n * 1000, n % 8)).collect();
    let (waits, outcome) = waits(&boot(8, &reads), &Plan::Sequential, &Model::paper(RATE));
    assert_eq!((waits.len(), outcome.reads), (3000, 3000));
}

fn real() -> Model {
    Model::real(10_000_000, Duration::from_millis(20))
}

#[test]
fn a_guest_that_waits_gets_later() {
    let reads: Vec<_> = (0..8).map(|n| (SECOND + n * 1000, n)).collect();
    let (waits, outcome) = waits(&boot(64, &reads), &Plan::Lazy, &real());
    let waited: f64 = waits.iter().sum();
    assert!(waits.iter().all(|wait| (0.021..0.12).contains(wait)), "{waits:?}");
    assert!((outcome.last_read.as_secs() - 1.007 - waited).abs() < 1e-6, "{outcome:?}");
}

#[test]
fn critical_ranges_first_wait_less_than_whole_blocks() {
    let reads: Vec<_> = (0..20).map(|n| (SECOND + n * 300_000, n)).collect();
    let boot = boot(64, &reads);
    let total = |model: &Model| waits(&boot, &Plan::Lazy, model).0.iter().sum::<f64>();
    let (ranges, blocks) = (total(&real()), total(&real().whole_blocks()));
    assert!(ranges < blocks / 3.0, "{ranges} {blocks}");
    assert!((4.5..6.0).contains(&blocks), "20 blocks of 210 ms and a round trip: {blocks}");
}

#[test]
fn hot_slices_move_less_than_blocks() {
    let reads: Vec<_> = (0..32).map(|n| (5 * SECOND + n, n)).collect();
    let items = (0..32).map(|n| PlanItem { block: n, mask: 1 << n }).collect();
    let plan = Plan::List(items);
    let (_, hot) = waits(&boot(64, &reads), &plan, &real());
    assert_eq!((hot.hits, hot.bytes.miss, hot.bytes.preload), (32, 0, 32 * (64 << 10)));
    let (_, whole) = waits(&boot(64, &reads), &plan, &real().whole_blocks());
    assert!(whole.bytes_before_last_read > 20 * hot.bytes_before_last_read, "{whole:?}");
}

#[test]
fn compression_widens_the_link() {
    let reads: Vec<_> = (0..20).map(|n| (SECOND + n * 300_000, n)).collect();
    let whole = real().whole_blocks();
    let boot = boot(64, &reads);
    let plain = waits(&boot, &Plan::Lazy, &whole).1;
    let packed = waits(&boot, &Plan::Lazy, &Model { stored: Some(8 << 10), ..whole }).1;
    assert_eq!(packed.bytes.total() * 4, plain.bytes.total());
    assert!(packed.waited.0 * 2 < plain.waited.0);
}

#[test]
fn a_slow_store_is_the_cause_of_slow_reads() {
    let slow = Latency { least: Duration::from_secs(2), spread: Duration::from_millis(5) };
    let mut model = Model { misses: MissPolicy::Own(MissRest::None), ..real() };
    model.link.latency = slow;
    let outcome = waits(&boot(8, &[(SECOND, 1), (9 * SECOND, 2)]), &Plan::Lazy, &model).1;
    assert_eq!((outcome.slow.store, outcome.slow.total()), (2, 2));
    model.link.latency = Latency::default();
    model.link.bandwidth = LinkBandwidth::Series([(Nanos(0), 1000)].into());
    let outcome = waits(&boot(8, &[(SECOND, 1)]), &Plan::Lazy, &model).1;
    assert_eq!((outcome.slow.miss, outcome.slow.total()), (1, 1));
}

/// Changes to another plan when the link turns out to be slow, as a switch between bandwidths' bins does.
struct Switch {
    slow: Option<Plan>,
}

impl Guide for Switch {
    fn at_creation(&mut self) -> Plan {
        plan(&[0, 1, 2, 3, 4, 5, 6, 7])
    }

    fn on_read(&mut self, _: Nanos, _: ByteRange, engine: &Engine) -> Option<Plan> {
        let bandwidth = engine.estimate().bandwidth?;
        if bandwidth < 5_000_000 { self.slow.take() } else { None }
    }
}

#[test]
fn a_plan_can_change_when_the_link_does() {
    let reads: Vec<_> = [(2 * SECOND, 0), (3 * SECOND, 0), (9 * SECOND, 30), (9 * SECOND, 31)].to_vec();
    let boot = boot(64, &reads);
    let mut model = real();
    model.link.bandwidth = LinkBandwidth::Series([(Nanos(0), 1_000_000)].into());
    let mut simulator = Simulator::new();
    let slow = simulator.run_guided(&boot, &mut Switch { slow: Some(plan(&[30, 31])) }, &model);
    assert_eq!((slow.reads, slow.hits), (4, 4));
    model.link.bandwidth = LinkBandwidth::Constant(20_000_000);
    let fast = simulator.run_guided(&boot, &mut Switch { slow: Some(plan(&[30, 31])) }, &model);
    assert_eq!((fast.reads, fast.hits), (4, 2), "it stays with its plan");
}

#[test]
fn boots_without_reads_and_disks_without_data_end() {
    let mut simulator = Simulator::new();
    for model in [Model::paper(RATE), real()] {
        let nothing = simulator.run(&Boot::default(), &Plan::Sequential, &model);
        assert_eq!((nothing.reads, nothing.hit_rate()), (0, 0.0));
        let far = Record {
            t_us: 365 * 86_400 * SECOND,
            op: Op::Read,
            range: ByteRange::between(u64::MAX - 512, u64::MAX),
            service_us: Some(u32::MAX),
        };
        let near = Record { range: ByteRange::between(0, 4 << 20), ..far };
        let late = Record { t_us: u64::MAX, ..near };
        let boot = Boot::of_records(u64::MAX, &[far, near, late], 1);
        let huge = simulator.run(&boot, &Plan::Lazy, &model);
        assert_eq!((boot.reads().len(), huge.reads), (1, 1));
    }
}

/// Writes are served locally, and written bytes need no store; in the paper's model writes change nothing.
#[test]
fn written_bytes_are_read_without_the_store() {
    let record = |t_us, op, from: u64, to: u64| {
        let range = ByteRange::between(from << 10, to << 10);
        Record { t_us, op, range, service_us: None }
    };
    let records = [
        record(SECOND, Op::Write, 64, 72),
        record(SECOND, Op::Read, 64, 68),
        record(2 * SECOND, Op::Write, 128, 133),
        record(3 * SECOND, Op::Read, 129, 133),
        record(4 * SECOND, Op::Read, 129, 140),
    ];
    let boot = Boot::of_records(8 * BLOCK_SIZE, &records, 1);
    for clock in [ReplayClock::Open, ReplayClock::Closed] {
        let model = Model { clock, misses: MissPolicy::Own(MissRest::None), ..real() };
        let (times, outcome) = waits(&boot, &Plan::Lazy, &model);
        let waited = times.iter().map(|wait| *wait > 0.0).collect::<Vec<_>>();
        assert_eq!(waited, [true, false, true], "{clock:?}: not what is written beside it, nor what is not");
        assert_eq!(outcome.hits, 1, "{clock:?}");
        assert_eq!(
            waits(&boot, &Plan::Lazy, &Model { writes: false, ..model }).1.hits,
            1,
            "the third instead"
        );
    }
    assert_eq!(waits(&boot, &Plan::Lazy, &Model::paper(RATE)).1.hits, 2, "the block is there after a second");
}

/// Reads go on when the store is back, or at the next try, and their waits are counted as the store's.
#[test]
fn a_store_that_fails_is_waited_for() {
    let reads: Vec<_> = (0..40).map(|n| (4 * SECOND + n * SECOND / 2, n)).collect();
    let boot = boot(64, &reads);
    let mut model = real();
    let (_, well) = waits(&boot, &Plan::Lazy, &model);
    assert_eq!((well.slow.total(), well.failures), (0, 0));
    model.link.failures.away = vec![(Nanos(5_000_000_000), Nanos(15_000_000_000))];
    let (times, away) = waits(&boot, &Plan::Lazy, &model);
    assert_eq!((away.slow, away.failures), (Slow { store: 1, ..Slow::default() }, 0));
    assert!((9.0..11.0).contains(&times.iter().copied().fold(0.0, f64::max)), "{times:?}");
    // Longer than any request waits for an answer: it is repeated until the store is back.
    model.link.failures.away = vec![(Nanos(5_000_000_000), Nanos(45_000_000_000))];
    let (times, away) = waits(&boot, &Plan::Lazy, &model);
    assert_eq!(away.slow, Slow { store: 1, ..Slow::default() });
    assert!(
        (39.0..46.0).contains(&times.iter().copied().fold(0.0, f64::max)) && away.failures >= 2,
        "{times:?}"
    );
    model.link.failures = Failures { per_million: 300_000, ..Failures::default() };
    let (_, errors) = waits(&boot, &Plan::Lazy, &model);
    assert!(errors.failures > 5 && errors.waited > well.waited, "{errors:?}");
    assert_eq!(errors.slow.miss + errors.slow.queue, 0, "{errors:?}");
}

/// Large requests alone do not show which part of their time is the round trip; if that were estimated too short, the
/// link would never be filled.
#[test]
fn preloads_alone_fill_links_of_all_speeds() {
    let blocks: Vec<_> = (0..60).collect();
    for rate in [2, 10, 30, 90, 150, 300] {
        let seconds = 60 * BLOCK_SIZE / (rate * 1_000_000) + 1;
        // A page of the last block, when all must be there.
        let boot = boot(60, &[((seconds + 1) * SECOND * 5 / 4, 59)]);
        let (_, outcome) =
            waits(&boot, &plan(&blocks), &Model::real(rate * 1_000_000, Duration::from_millis(20)));
        assert_eq!((outcome.hits, outcome.bytes_before_last_read), (1, 60 * BLOCK_SIZE), "{rate} MB/s");
    }
}

/// With 64 MiB under way as one request, a read waits for a round trip and its own bytes, which share the link with
/// those of the stream that were on it by then.
#[test]
fn no_read_waits_behind_a_stream() {
    let reads: Vec<_> = (0..30).map(|n| (SECOND * 3 / 10 + n * 9 * SECOND / 100, 40 + n)).collect();
    let (boot, plan) = (boot(80, &reads), plan(&(0..32).collect::<Vec<_>>()));
    for (rate, round_trip) in [(2, 1), (2, 20), (2, 50), (10, 1), (10, 20), (10, 50), (20, 20)] {
        let mut model = Model::real(rate * 1_000_000, Duration::from_millis(round_trip));
        model.misses = MissPolicy::Own(MissRest::None);
        model.clock = ReplayClock::Open;
        let (waits, outcome) = waits(&boot, &plan, &model);
        assert_eq!(outcome.hits, 0);
        let own = (16_384 + 1000) as f64 / (rate * 1_000_000) as f64;
        let most = round_trip as f64 / 1e3 + 2.0 * own + 0.5e-3;
        let worst = waits.iter().copied().fold(0.0, f64::max);
        assert!(worst <= most, "{worst} of {most}: {rate} MB/s, {round_trip} ms");
        // The link is full anyway.
        let took = outcome.last_read.as_secs() - 2.0 * round_trip as f64 / 1e3;
        let moved = outcome.bytes.preload + outcome.bytes.miss;
        assert!(moved as f64 >= 0.93 * took * (rate * 1_000_000) as f64, "{moved} in {took} s");
    }
}

/// Times that cannot be counted are the end of time: a run ends there, and panics with no setting.
#[test]
fn a_run_ends_at_the_end_of_time() {
    let reads = [(SECOND, 5), (2 * SECOND, 6), (3 * SECOND, 7)];
    let boot = boot(8, &reads);
    let real = Model::real(RATE, Duration::from_millis(20));
    let slow = Model { local_read: Duration::MAX, ..real.clone() };
    let outcome = Simulator::new().run(&boot, &Plan::Lazy, &slow);
    assert_eq!((outcome.reads, outcome.last_read), (3, Nanos::NEVER));
    let mut far = real;
    far.link.round_trip = Duration::MAX;
    assert_eq!(Simulator::new().run(&boot, &Plan::Lazy, &far).hits, 0);
}
