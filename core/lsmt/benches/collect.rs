//! The foreground beside the collector: throughput and latency of 4 KiB writes at random places, without a collector,
//! with one, and with one that has to keep a tight bound.
//!
//! Two threads write the same places of a disk of 256 MiB for five seconds, with a flush every 256 writes, at full
//! speed and at half of the rate that was reached without a collector. The thread that collects is as in `headstart
//! attach`: a tenth of the time while clients write, more near the bound. `HEADSTART_BENCH_DIR` names the directory
//! of the files.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::disallowed_methods, reason = "measures time")]
#![expect(clippy::cast_precision_loss, reason = "rates")]

use headstart_block::BlockDevice;
use headstart_lsmt::writable::{Limits, Load, NewDisk, WritableDisk};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

const DISK: u64 = 256 << 20;
const BLOCK: usize = 4096;
const WRITERS: u64 = 2;
const TIME: Duration = Duration::from_secs(5);

/// The figures of a run.
struct Figures {
    writes_per_second: f64,
    p99: Duration,
    worst: Duration,
    taken: u64,
    throttled: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("rate        collector   slack   writes/s    P99 us  worst ms  garbage MiB  throttled");
    let idle = run(false, 1 << 50, None)?;
    show("full", "none", "-", &idle);
    show("full", "busy", "128M", &run(true, 128 << 20, None)?);
    show("full", "busy", "16M", &run(true, 16 << 20, None)?);
    let half = idle.writes_per_second / 2.0;
    show("half", "none", "-", &run(false, 1 << 50, Some(half))?);
    show("half", "busy", "128M", &run(true, 128 << 20, Some(half))?);
    show("half", "busy", "16M", &run(true, 16 << 20, Some(half))?);
    Ok(())
}

fn show(rate: &str, collector: &str, slack: &str, figures: &Figures) {
    let Figures { writes_per_second, p99, worst, taken, throttled } = figures;
    println!(
        "{rate:<10}  {collector:<10}  {slack:<5}  {writes_per_second:>9.0}  {:>8}  {:>8}  {:>11}  {throttled:>9}",
        p99.as_micros(),
        worst.as_millis(),
        taken >> 20,
    );
}

fn run(collects: bool, slack: u64, rate: Option<f64>) -> Result<Figures, Box<dyn Error>> {
    let dir = match std::env::var_os("HEADSTART_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let new = NewDisk { size: DISK, parent: String::new(), uuid: Uuid::from_u128(1) };
    let disk = WritableDisk::create(dir.path(), None, &new)?;
    disk.set_limits(Limits { slack, ..Limits::default() })?;
    disk.write_at(&vec![1; 1 << 20], 0)?;
    let (ended, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut latencies = thread::scope(|scope| {
        if collects {
            scope.spawn(|| collect(&disk, &ended));
        }
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (disk, count) = (&disk, &count);
                scope.spawn(move || write(disk, writer, rate.map(|rate| rate / WRITERS as f64), count))
            })
            .collect();
        let latencies: Vec<_> =
            writers.into_iter().filter_map(|writer| writer.join().ok()).flatten().collect();
        ended.store(true, Ordering::Relaxed);
        latencies
    });
    latencies.sort_unstable();
    let space = disk.space();
    Ok(Figures {
        writes_per_second: latencies.len() as f64 / TIME.as_secs_f64(),
        p99: latencies[latencies.len() * 99 / 100],
        worst: latencies[latencies.len() - 1],
        taken: space.garbage_bytes,
        throttled: space.throttled_writes,
    })
}

fn write(disk: &WritableDisk, writer: u64, rate: Option<f64>, count: &AtomicU64) -> Vec<Duration> {
    let (started, data) = (Instant::now(), [7; BLOCK]);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(writer + 1);
    let mut latencies = Vec::new();
    while started.elapsed() < TIME {
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(latencies.len() as f64 / rate);
            thread::sleep(due.saturating_sub(started.elapsed()));
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let place = random % (DISK / BLOCK as u64) * BLOCK as u64;
        let asked = Instant::now();
        if disk.write_at(&data, place).is_err() {
            break;
        }
        if count.fetch_add(1, Ordering::Relaxed) % 256 == 255 && disk.flush().is_err() {
            break;
        }
        latencies.push(asked.elapsed());
    }
    latencies
}

/// Collects as the thread of an attached disk does.
fn collect(disk: &WritableDisk, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let space = disk.space();
        let load = Load::of(&space, Duration::ZERO);
        let started = Instant::now();
        thread::sleep(match disk.collect(load) {
            Ok(true) => load.pause(&space, started.elapsed()),
            _ if load == Load::Pressed => Duration::from_millis(5),
            _ => Duration::from_millis(100),
        });
    }
}
