//! `headstart simulate`: what a plan would have been worth to boots that were recorded.

use crate::megabytes::Megabytes;
use crate::report::{Outcome, Report, count};
use crate::trace::{cancelled, len};
use clap::{Args, Subcommand, ValueEnum};
use headstart_block::{Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_pull::{Plan, Rest};
use headstart_sim::{Boot, Gatherer, Misses, Model, Preloads, Simulator, Summary};
use headstart_trace::data_set::{DataSet, Limits, Skipped};
use headstart_trace::{Creation, Trace};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of the disk that are compressed at once.
const FRAME: f64 = 32768.0;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Replay recorded boots against one disk: hit rate, accuracy, waits, bytes
    #[command(after_help = "Examples:\n  headstart simulate disk --traces /srv/fast26\n  \
                      headstart simulate disk --traces /srv/traces --policies lazy,history --bandwidth 5,10 \
                      --model real --by image")]
    Disk(Box<Disk>),
}

/// What to simulate.
#[derive(Args)]
pub(crate) struct Disk {
    /// The boots to replay: a directory of traces, a data set of the FAST'26 layout, or one trace
    #[arg(long, value_name = "TEST")]
    traces: PathBuf,
    /// Ways to preload, separated by commas
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "all")]
    policies: Vec<Policy>,
    /// Bandwidths of the link in MB/s (the paper's model counts in MiB/s, as its authors do), separated by commas
    #[arg(long, value_name = "MBPS", value_delimiter = ',', default_value = "2,4,6,8,10,30,50,70,90,150")]
    bandwidth: Vec<Megabytes>,
    /// How reads arrive and blocks are pulled
    #[arg(long, value_enum, default_value_t = ModelName::Paper)]
    model: ModelName,
    /// Round trip to the store, in the real model
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = humantime::parse_duration)]
    round_trip: Duration,
    /// What a read that misses waits for, in the real model: its bytes, with the rest of the block to follow or
    /// without, or the whole block
    #[arg(long, value_enum, default_value_t = MissName::Critical)]
    misses: MissName,
    /// What of a planned block is preloaded, in the real model
    #[arg(long, value_enum, default_value_t = PreloadName::Slices)]
    preloads: PreloadName,
    /// Take the image as compressed so many times
    #[arg(long, value_name = "TIMES", default_value = "1", value_parser = ratio)]
    compressed: f64,
    /// Fill the rest of the disk when nothing else is to be done
    #[arg(long)]
    left: bool,
    /// Take the guests as so many times as fast as they were recorded
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    faster: u32,
    /// Give the figures apart by image, or by type of image
    #[arg(long, value_enum)]
    by: Option<By>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// All of the following
    All,
    /// Nothing but what is read
    Lazy,
    /// The disk from its start to its end
    Sequential,
    /// What the boot itself will read, in that order: it knows the future
    History,
}

impl Policy {
    const ALL: [Self; 3] = [Self::Lazy, Self::Sequential, Self::History];

    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Lazy => "lazy",
            Self::Sequential => "sequential",
            Self::History => "history",
        }
    }

    fn plan(self, boot: &Boot) -> Plan {
        match self {
            Self::All | Self::Lazy => Plan::Lazy,
            Self::Sequential => Plan::Sequential,
            Self::History => Plan::List(boot.recorded_order().into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum ModelName {
    /// As published: reads arrive as recorded, one stream of whole blocks, the first 3000 reads
    Paper,
    /// A guest that waits for its reads, over a link with a round trip
    Real,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum MissName {
    /// Its own bytes; the rest of the block follows in the background
    Critical,
    /// Its own bytes and nothing more
    Own,
    /// The whole block
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum PreloadName {
    /// The slices of it that are read
    Slices,
    /// All of it
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// By image and size of the disk
    Image,
    /// Public and user-defined images
    Type,
}

impl By {
    fn group(self, creation: &Creation) -> String {
        match self {
            Self::Image => format!("{} {}G", creation.image.escape_debug(), creation.size.div_ceil(1 << 30)),
            Self::Type if creation.image.starts_with("p-") => "public".to_owned(),
            Self::Type if creation.image.starts_with("m-") => "user-defined".to_owned(),
            Self::Type => "other".to_owned(),
        }
    }
}

fn ratio(text: &str) -> std::result::Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (1.0..=1000.0).contains(ratio));
    ratio.ok_or_else(|| "not a number between 1 and 1000".to_owned())
}

impl Command {
    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Disk(disk) => Ok(Box::new(disk.run(progress)?)),
        }
    }
}

/// The results of one group, in the order of the cells.
type Gathered = BTreeMap<String, Vec<Gatherer>>;

impl Disk {
    fn run(&self, progress: &dyn Progress) -> Result<DiskReport> {
        let set = DataSet::open(&self.traces, &Limits::default())?;
        let mut skipped = set.skipped().clone();
        progress.begin("simulating", set.stored_bytes());
        let cells = self.cells();
        let mut gathered = Gathered::new();
        let work = |_, trace: Trace| (self.group(&trace.creation), self.simulate(&trace, &cells));
        skipped.add(&set.map_each(0, work, |index, result| {
            cancelled(progress)?;
            progress.advance(set.path(index).map_or(0, len));
            // What is skipped is counted by the data set.
            if let Ok((group, results)) = result {
                let sums = gathered.entry(group).or_insert_with(|| vec![Gatherer::default(); results.len()]);
                sums.iter_mut().zip(&results).for_each(|(sum, result)| sum.merge(result));
            }
            Ok(())
        })?);
        let mut rows = Vec::new();
        for (group, results) in &gathered {
            for ((bandwidth, policy, _), result) in cells.iter().zip(results) {
                let group = self.by.map(|_| group.clone());
                let (bandwidth, policy) = (*bandwidth, policy.name());
                rows.push(Row { group, bandwidth, policy, summary: result.summary() });
            }
        }
        if rows.iter().all(|row| row.summary.boots == 0) {
            let mut cause = "has no boot with reads that could be replayed".to_owned();
            if !skipped.is_empty() {
                let lines = skipped.to_string();
                cause = format!("{cause}: {}", lines.lines().map(str::trim).collect::<Vec<_>>().join("; "));
            }
            return Err(Error::new(ErrorKind::NotFound, cause).about(self.traces.display()));
        }
        let real = (self.model == ModelName::Real).then_some(Real {
            round_trip_ms: self.round_trip.as_secs_f64() * 1e3,
            misses: self.misses,
            preloads: self.preloads,
        });
        let (faster, compressed, left) = (self.faster, self.compressed, self.left);
        Ok(DiskReport { model: self.model, real, faster, compressed, left, rows, skipped })
    }

    /// What each boot is replayed with.
    fn cells(&self) -> Vec<(Megabytes, Policy, Model)> {
        let all = self.policies.contains(&Policy::All);
        let wanted = |policy: &Policy| all || self.policies.contains(policy);
        let policies: Vec<_> = Policy::ALL.into_iter().filter(wanted).collect();
        let cell = |bandwidth: &Megabytes| {
            let model = self.model_at(*bandwidth);
            policies.iter().map(|policy| (*bandwidth, *policy, model.clone())).collect::<Vec<_>>()
        };
        self.bandwidth.iter().flat_map(cell).collect()
    }

    fn model_at(&self, bandwidth: Megabytes) -> Model {
        let mut model = match self.model {
            ModelName::Paper => Model::paper(bandwidth.times(1_048_576.0)),
            ModelName::Real => Model {
                misses: match self.misses {
                    MissName::Critical => Misses::Own(Rest::Block),
                    MissName::Own => Misses::Own(Rest::None),
                    MissName::Blocks => Misses::Blocks,
                },
                preloads: match self.preloads {
                    PreloadName::Slices => Preloads::Slices,
                    PreloadName::Blocks => Preloads::Blocks,
                },
                ..Model::real(bandwidth.times(1e6), self.round_trip)
            },
        };
        if self.compressed > 1.0 {
            model.stored = Some(Megabytes(FRAME / self.compressed).times(1.0));
        }
        if self.left { model.with_left() } else { model }
    }

    fn group(&self, creation: &Creation) -> String {
        self.by.map(|by| by.group(creation)).unwrap_or_default()
    }

    fn simulate(&self, trace: &Trace, cells: &[(Megabytes, Policy, Model)]) -> Vec<Gatherer> {
        let boot = Boot::faster(trace, self.faster);
        let mut simulator = Simulator::new();
        let plans: Vec<_> = Policy::ALL.iter().map(|policy| (*policy, policy.plan(&boot))).collect();
        cells
            .iter()
            .map(|(_, policy, model)| {
                let mut gatherer = Gatherer::default();
                if let Some((_, plan)) = plans.iter().find(|(known, _)| known == policy) {
                    let outcome = simulator.run(&boot, plan, model);
                    gatherer.add(&outcome, simulator.waits());
                }
                gatherer
            })
            .collect()
    }
}

/// The figures of each bandwidth and policy.
#[derive(Serialize)]
struct DiskReport {
    model: ModelName,
    #[serde(flatten)]
    real: Option<Real>,
    faster: u32,
    compressed: f64,
    left: bool,
    rows: Vec<Row>,
    skipped: Skipped,
}

/// What only the real model has.
#[derive(Serialize)]
struct Real {
    round_trip_ms: f64,
    misses: MissName,
    preloads: PreloadName,
}

#[derive(Serialize)]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// In MB/s; in the paper's model in MiB/s.
    bandwidth: Megabytes,
    policy: &'static str,
    #[serde(flatten)]
    summary: Summary,
}

impl Outcome for DiskReport {}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut group = None;
        for row in &self.rows {
            if group != Some(&row.group) {
                let start = if group.is_some() { "\n\n" } else { "" };
                let name = row.group.as_ref().map_or(String::new(), |name| format!("{name}: "));
                let (boots, reads) = (count(row.summary.boots, "boot"), count(row.summary.reads, "read"));
                write!(f, "{start}{name}{boots}, {reads}\n{HEADER}")?;
                group = Some(&row.group);
            }
            row.write(f)?;
        }
        if !self.skipped.is_empty() {
            write!(f, "\n\n{}", self.skipped)?;
        }
        Ok(())
    }
}

const HEADER: &str = concat!(
    "  MB/s policy        hits  accuracy  artifact's   P50 s   P99 s   max s  mean s  sum s/boot",
    "    slow: miss  queue  store   MB pulled  before last   last s",
);

impl Row {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { hit_rate, accuracy, accuracy_artifact, slow, .. } = &self.summary;
        let Summary { wait_p50, wait_p99, wait_max, wait_mean, wait_total, last_read, .. } = &self.summary;
        let (bytes, before) = (self.summary.bytes / 1e6, self.summary.bytes_before_last_read / 1e6);
        write!(f, "\n{:>6} {:<11}", self.bandwidth.0, self.policy)?;
        write!(f, "{hit_rate:>7.4} {accuracy:>9.4} {accuracy_artifact:>11.4}")?;
        write!(f, " {wait_p50:>7.3} {wait_p99:>7.3} {wait_max:>7.3} {wait_mean:>7.3} {wait_total:>11.3}")?;
        write!(f, " {:>13} {:>6} {:>6}", slow.miss, slow.queue, slow.store)?;
        write!(f, " {bytes:>11.1} {before:>12.1} {last_read:>8.3}")
    }
}
