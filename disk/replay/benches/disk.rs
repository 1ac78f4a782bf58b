//! The number of reads a second that the simulator replays on one core.
//!
//! The boots are made here: 3,000 reads of some 150 blocks on a 40 GiB disk within 30 s, most of them near the one
//! before. Alternatively, give the directory of a data set as argument. A round replays all boots at ten bandwidths,
//! with no plan and with each boot's own blocks in the order of first access; the median round counts. The target is
//! for the paper's model, over both.

#![expect(clippy::print_stdout, reason = "prints its results")]
#![expect(clippy::disallowed_methods, reason = "measures time")]
#![expect(clippy::cast_precision_loss, reason = "results have three digits")]
#![expect(clippy::cast_possible_truncation, reason = "drawn numbers are small")]

use headstart_block::ByteRange;
use headstart_pull::{BLOCK_SIZE, Plan, SLICE_SIZE};
use headstart_replay::{Boot, Model, Simulator};
use headstart_trace::data_set::{DataSet, DataSetLimits};
use headstart_trace::{Op, Record};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

const ROUNDS: usize = 11;
const RATES: [u64; 10] = [2, 4, 6, 8, 10, 30, 50, 70, 90, 150];
/// Million reads a second.
const TARGET: f64 = 3.0;

fn main() -> Result<(), Box<dyn Error>> {
    let given = std::env::args().nth(1).filter(|arg| !arg.starts_with("--"));
    let boots = match given {
        Some(path) => read(Path::new(&path))?,
        None => (0..20).map(made).collect(),
    };
    let plans: Vec<_> = boots.iter().map(|boot| Plan::List(boot.recorded_order(usize::MAX).into())).collect();
    println!("                              million reads/s   boots/s");
    let lazy = measure(&boots, |_| &Plan::Lazy, &Model::paper);
    let planned = measure(&boots, |n| &plans[n], &Model::paper);
    let both = 2.0 / (1.0 / lazy + 1.0 / planned);
    show("paper's model, lazy", lazy);
    show("paper's model, planned", planned);
    let ok = if both >= TARGET { "yes" } else { "NO" };
    println!("paper's model, both           {both:15.2}   target {TARGET}  {ok}");
    let report_all = |rate| Model { report_all: true, ..Model::paper(rate) };
    show("all misses told, lazy", measure(&boots, |_| &Plan::Lazy, &report_all));
    show("all misses told, planned", measure(&boots, |n| &plans[n], &report_all));
    let real = |rate| Model::real(rate, Duration::from_millis(20));
    show("real model, lazy", measure(&boots, |_| &Plan::Lazy, &real));
    show("real model, planned", measure(&boots, |n| &plans[n], &real));
    let sequential = measure(&boots, |_| &Plan::Sequential, &Model::paper);
    show("paper's model, sequential", sequential);
    Ok(())
}

fn show(what: &str, speed: f64) {
    println!("{what:<30}{speed:15.2}{:10.0}", speed * 1e6 / 3000.0);
}

/// Million reads a second.
fn measure<'a>(boots: &[Boot], plan: impl Fn(usize) -> &'a Plan, model: &dyn Fn(u64) -> Model) -> f64 {
    let models = RATES.map(|rate| model(rate << 20));
    let mut simulator = Simulator::new();
    let mut round = || {
        let started = Instant::now();
        let mut reads = 0;
        for (n, boot) in boots.iter().enumerate() {
            for model in &models {
                reads += simulator.run(boot, plan(n), model).reads;
            }
        }
        reads as f64 / started.elapsed().as_secs_f64() / 1e6
    };
    let mut speeds: Vec<_> = (0..ROUNDS).map(|_| round()).collect();
    speeds.sort_by(f64::total_cmp);
    speeds[ROUNDS / 2]
}

fn read(path: &Path) -> Result<Vec<Boot>, Box<dyn Error>> {
    let set = DataSet::open(path, &DataSetLimits::default())?;
    let mut boots = Vec::new();
    let skipped = set.map_each(
        0,
        |_, trace| Boot::of(&trace),
        |_, boot| {
            boots.extend(boot);
            Ok(())
        },
    )?;
    println!("{} boots, {} skipped", boots.len(), skipped.total());
    Ok(boots)
}

/// A boot drawn from `seed`.
fn made(seed: u64) -> Boot {
    let mut state = seed + 1;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let size = 40 << 30;
    let blocks: Vec<_> = (0..150).map(|_| random(size / BLOCK_SIZE)).collect();
    let (mut t_us, mut start) = (2_000_000, 0);
    let mut record = |n: u64| {
        t_us += random(20_000);
        start = match random(6) {
            0 => blocks[random((n / 18).clamp(10, 150)) as usize] * BLOCK_SIZE + random(32) * SLICE_SIZE,
            _ => start + 16384,
        };
        Record { t_us, op: Op::Read, range: ByteRange::between(start, start + 16384), service_us: None }
    };
    Boot::of_records(size, &(0..3000).map(&mut record).collect::<Vec<_>>(), 1)
}
