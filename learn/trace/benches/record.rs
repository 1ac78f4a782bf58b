//! The cost of recording a request, in process, and the speed at which traces are read, counted and written.
//!
//! A record is timed as a disk makes it, without reading the clock: the disk reads it for its own latencies in any
//! case. Each round fills a fresh recorder; the median round counts, and the fastest is beside it. With two threads,
//! both record into the same recorder, which is the worst case: they take turns at one cache line.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::disallowed_methods, reason = "measures time")]
#![expect(clippy::cast_precision_loss, reason = "results have three digits")]

use headstart_block::ByteRange;
use headstart_trace::file::{ReadLimits, encode, read};
use headstart_trace::stats::RequestStats;
use headstart_trace::{Op, RECORDS_MAX, Record, Recorder, Trace, WINDOW};
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUNDS: usize = 101;
/// Nanoseconds a record may take.
const TARGET: f64 = 100.0;
/// Bytes of a record in the data set.
const ROW: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    println!("                 median  fastest  target  ok");
    let mut is_slow = false;
    for threads in [1, 2] {
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round(threads)).collect();
        rounds.sort_by(f64::total_cmp);
        let (median, fastest) = (rounds[ROUNDS / 2], rounds[0]);
        let ok = if median <= TARGET { "yes" } else { "NO" };
        is_slow |= median > TARGET;
        println!("record, {threads} threads {median:6.1} {fastest:8.1} {TARGET:7.0}  {ok}   ns");
    }
    let trace = trace();
    let mut file = Vec::new();
    time("statistics", || {
        black_box(RequestStats::of(black_box(&trace.records)));
    });
    time("write Parquet", || file = encode(&trace).unwrap_or_default());
    let whole = read(&file, &ReadLimits::default())?;
    assert_eq!(whole, trace);
    time("read Parquet", || drop(black_box(read(&file, &ReadLimits::default()))));
    println!("a record takes {:.1} bytes of Parquet", file.len() as f64 / RECORDS_MAX as f64);
    if is_slow { Err("a record takes longer than its target".into()) } else { Ok(()) }
}

/// Nanoseconds of a record as its caller sees it.
fn round(threads: usize) -> f64 {
    let recorder = Recorder::new(Instant::now(), WINDOW, RECORDS_MAX);
    let each = RECORDS_MAX / threads;
    let arrived = Instant::now();
    let fill = |thread: usize| {
        let started = Instant::now();
        for n in 0..each {
            let offset = ((thread * each + n) as u64) << 12;
            let range = ByteRange::between(offset, offset + 4096);
            let boot = recorder.read_arrived(range, arrived);
            recorder.record(boot, Op::Read, range, arrived, Duration::from_micros(80));
        }
        started.elapsed().as_nanos() as f64 / each as f64
    };
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || fill(thread))).collect();
        started.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    assert_eq!(recorder.recorded(), RECORDS_MAX as u64);
    times.sort_by(f64::total_cmp);
    times.last().copied().unwrap_or(f64::INFINITY)
}

/// A full recorder's worth of reads, as boots make them: runs of some requests, here and there on 40 GiB.
fn trace() -> Trace {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut t_us, mut offset) = (0, 0);
    let records = (0..RECORDS_MAX).map(|_| {
        t_us += random(10_000);
        if random(4) == 0 {
            offset = random(40 << 18) << 12;
        }
        let len = 4096 << random(6);
        offset += len;
        let service_us = Some(50 + u32::try_from(random(100)).unwrap_or(0));
        Record { t_us, op: Op::Read, range: ByteRange::between(offset - len, offset), service_us }
    });
    Trace { records: records.collect(), ..Trace::default() }
}

fn time(what: &str, mut work: impl FnMut()) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64()
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    let bytes = (RECORDS_MAX * ROW) as f64;
    println!("{what:16} {:6.0} MB/s of records (32 bytes each)", bytes / rounds[ROUNDS / 2] / 1e6);
}
