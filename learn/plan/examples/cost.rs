//! The cost of training on a data set, and of choosing a plan from the result.
//!
//! `cargo run --release -p headstart-plan --example cost -- DIR [POLICY,... [hits]]`
//!
//! Learns the data set, all but its last day and then that day; writes its knowledge and reads it back; makes the
//! plans of each policy for all bandwidths; then chooses plans of the file that holds those of the last policy.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "an example"
)]

use headstart_block::FileSource;
use headstart_plan::policy::Objective;
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{Knowledge, PlanFile, TrainConfig, train};
use headstart_trace::DataSet;
use headstart_trace::data_set::DataSetLimits;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

const DAY_US: u64 = 86_400_000_000;

/// The most memory that this process had, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) >> 10
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let made = work();
    println!("{what:40} {:9.3} s   peak {:5} MiB", start.elapsed().as_secs_f64(), peak());
    made
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let data = DataSet::open(Path::new(&arguments[0]), &DataSetLimits::default()).unwrap();
    println!("{} traces", data.len());
    let path = std::env::temp_dir().join(format!("headstart-cost-{}", std::process::id()));
    let mut knowledge = Knowledge::default();
    let learned = timed("learn all", || knowledge.learn(&data, 0, &mut |_| Ok(())).unwrap());
    println!(
        "  {} images, {} read, {} skipped",
        knowledge.images().len(),
        learned.read,
        learned.skipped.total()
    );
    let last = data.creations().iter().map(|creation| creation.created_us / DAY_US).max().unwrap();
    let earlier = data.filter(|_, creation| creation.created_us / DAY_US < last);
    let mut before = Knowledge::default();
    timed("learn all but the last day", || before.learn(&earlier, 0, &mut |_| Ok(())).unwrap());
    let write = |what: &dyn Fn(&mut dyn Write)| {
        let mut out = BufWriter::new(File::create(&path).unwrap());
        what(&mut out);
        out.flush().unwrap();
    };
    timed("write it", || write(&|out| before.write(out).unwrap()));
    println!("  {} bytes", path.metadata().unwrap().len());
    drop(before);
    let mut before = timed("read it", || Knowledge::read(&FileSource::open(&path).unwrap()).unwrap());
    let learned = timed("learn the last day", || before.learn(&data, 0, &mut |_| Ok(())).unwrap());
    println!("  {} read, {} known", learned.read, learned.known);
    drop(before);
    let objective =
        if arguments.get(2).is_some() { Objective::Hits } else { TrainConfig::default().objective };
    for policy in arguments.get(1).map_or("search", String::as_str).split(',') {
        let config = TrainConfig { policy: policy.to_owned(), objective, ..TrainConfig::default() };
        let plans = timed(&format!("plans of {policy}"), || {
            train::all(&knowledge, &config, &mut |_| Ok(())).unwrap()
        });
        timed("write them", || write(&|out| plans.write(out).unwrap()));
        let groups: usize = plans.images().map(|(_, image)| image.groups.len()).sum();
        println!("  {groups} groups, {} bytes", path.metadata().unwrap().len());
    }
    choose(&path, &knowledge);
    std::fs::remove_file(&path).unwrap();
}

/// Opens the file and chooses, once for each image, and once for an unknown image of its family.
fn choose(path: &Path, knowledge: &Knowledge) {
    let mut times = [Vec::new(), Vec::new()];
    for (key, image) in knowledge.images() {
        let mut stranger = key.clone();
        stranger.image.push_str("-new");
        for (times, key) in times.iter_mut().zip([key, &stranger]) {
            let metadata: Metadata = image.metadata();
            let start = Instant::now();
            let chosen =
                PlanFile::open(FileSource::open(path).unwrap()).unwrap().choose(key, &metadata).unwrap();
            times.push(start.elapsed().as_secs_f64() * 1e6);
            assert!(!chosen.groups.is_empty(), "{key:?}: {}", chosen.reason);
        }
    }
    for (what, times) in ["its own", "zero-shot"].into_iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        println!(
            "open and choose, {what}: median {:.0} us, p99 {:.0} us, max {:.0} us",
            at(50),
            at(99),
            at(100)
        );
    }
}
