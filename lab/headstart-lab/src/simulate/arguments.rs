//! The arguments of `headstart-lab simulate disk`.

use clap::{Args, ValueEnum};
use headstart_block::Result;
use headstart_command_line::duration::duration;
use headstart_command_line::megabytes::Megabytes;
use headstart_command_line::number::number;
use headstart_command_line::store_args::StoreArgs;
use headstart_command_line::training::ObjectiveName;
use headstart_image::named_image::NamedImage;
use headstart_plan::evaluate;
use headstart_plan::policy::{NAMES, Objective, by_name};
use headstart_pull::MissRest;
use headstart_replay::{Latency, LinkBandwidth, MissPolicy, Model, Nanos, PreloadUnit};
use headstart_trace::Creation;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of the disk that are compressed at once.
const FRAME: f64 = 32768.0;

/// The longest latency: more than any store's. A boot whose every read takes as long is still simulated to its end.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// The latest moment of a simulation, and the longest span: fleets are simulated for a day, and no boot lasts longer.
pub(super) const MOMENT_MAX: Duration = Duration::from_secs(24 * 3600);

/// The round trip to the store.
const ROUND_TRIP: Duration = Duration::from_millis(20);

pub(super) const AFTER_HELP: &str = "\
The figures: hits, the share of reads that found all their bytes local, the mean over boots (JSON has it over all \
reads too, as hit_rate_pooled); accuracy, preloaded blocks that were read, of those preloaded; the artifact's, blocks \
found local, of those pulled; waits of reads in seconds; the sum of a boot's waits; slow reads (over 1 s) by what took \
most of it: their own transfer, those before them, the store; millions of bytes asked for, and come before the last \
read; when the last read was complete. Hits, accuracies, bytes and sums are means over boots.

A boot that is replayed is never learned from. Plans are for each bandwidth exactly; a boot begins with the largest \
group's plan, and changes it as a disk would.

Examples:
  headstart-lab simulate disk --traces /srv/fast26
  headstart-lab simulate disk --traces /srv/fast26 --split 0.8 --by type --plot figures
  headstart-lab simulate disk --traces /srv/tuesday --train /srv/monday --model real \\
      --bandwidth 5,10
  headstart-lab simulate disk --traces /srv/traces --plans plans --model real --link series.csv
  headstart-lab simulate disk --traces boot.parquet --model real \\
      --image file:///srv/images:debian --grace 3s";

/// The boots to simulate, and the options of the models.
#[derive(Args)]
pub(crate) struct Disk {
    /// The boots to replay: a directory of traces, a data set of the FAST'26 layout, or one trace
    #[arg(long, value_name = "TEST")]
    pub(super) traces: PathBuf,
    /// The boots to learn from; those of them that are replayed are left out
    #[arg(long, value_name = "TRAIN", group = "learning")]
    pub(super) train: Option<PathBuf>,
    /// The plans to simulate, as `headstart train` wrote them
    #[arg(long, value_name = "PLANS", group = "learning")]
    pub(super) plans: Option<PathBuf>,
    /// Learn from this share of each image's boots, the first ones in the order of their creation, and replay the
    /// others
    #[arg(long, value_name = "SHARE", group = "learning", value_parser = share)]
    pub(super) split: Option<f64>,
    /// Replay only boots of images with at least this many boots to learn from
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) min_traces: usize,
    /// For each image hide its own boots, and plan from those of images like it
    #[arg(long, conflicts_with = "plans")]
    pub(super) hide_own: bool,
    /// Ways to preload, separated by commas: all, lazy, leap, sequential, random, dadi, vmt-min, vmt-avg, iocnt,
    /// iocnt-t, iocnt-2t, thinkahead, search; history and oracle know the future
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', default_value = "all", value_parser = policy)]
    pub(super) policies: Vec<PolicyName>,
    /// Leave out a part of the learning and preloading, each by itself, beside the whole; separated by commas
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',', requires = "learning")]
    pub(super) without: Vec<Part>,
    /// The measure that plans are to be best at [default: hits in the paper's model, boot in the real one]
    #[arg(long, value_enum)]
    pub(super) objective: Option<ObjectiveName>,
    /// Bandwidths of the link in MB/s (the paper's model counts in MiB/s, as its authors do), separated by commas
    #[arg(long, value_name = "MBPS", value_delimiter = ',', default_value = "2,4,6,8,10,30,50,70,90,150")]
    pub(super) bandwidth: Vec<Megabytes>,
    /// A recorded link instead: a file of lines `seconds,MBps`, or a trace with samples of its link
    #[arg(long, value_name = "SERIES", conflicts_with = "bandwidth")]
    pub(super) link: Option<PathBuf>,
    /// The model of how reads arrive and blocks are pulled
    #[arg(long, value_enum, default_value_t = ModelName::Paper)]
    pub(super) model: ModelName,
    /// Round trip to the store, in the real model [default: 20ms]
    #[arg(long, value_name = "TIME", value_parser = latency)]
    pub(super) round_trip: Option<Duration>,
    /// The most that the store adds to the round trip, drawn for each request
    #[arg(long, value_name = "TIME", value_parser = latency)]
    pub(super) store_latency: Option<Duration>,
    /// Requests that the store fails, such as 1%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(super) store_fails: Option<u32>,
    /// The store answers nothing for this long from a moment on, such as 10s@20s; may be given again
    #[arg(long, value_name = "TIME@TIME", value_parser = away)]
    pub(super) store_away: Vec<Away>,
    /// The bytes that a read that misses waits for, in the real model: its own, with the rest of the block to follow
    /// or without, or the whole block [default: critical]
    #[arg(long, value_enum)]
    pub(super) misses: Option<MissName>,
    /// The part of a planned block that is preloaded, in the real model [default: slices]
    #[arg(long, value_enum)]
    pub(super) preloads: Option<PreloadName>,
    /// The compression ratio of the image
    #[arg(long, value_name = "TIMES", default_value = "1", value_parser = ratio)]
    pub(super) compressed: f64,
    /// The image that the boots are of, whose index and compressed frames are the simulated disk, in the real model;
    /// NAME=IMAGE if boots of several images are replayed, with the name that they use for it (may be repeated)
    #[arg(long, value_name = "[NAME=]IMAGE", conflicts_with = "compressed")]
    pub(super) image: Vec<NamedImage>,
    /// The time that a read takes although it has all its bytes: it is added to its wait
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = latency)]
    pub(super) local_read: Duration,
    /// From the creation to the first read [default: as recorded]
    #[arg(long, value_name = "TIME", value_parser = latency)]
    pub(super) grace: Option<Duration>,
    /// Fetch the rest of the disk when there is nothing else to do
    #[arg(long)]
    pub(super) left: bool,
    /// Run the guests this many times as fast as they were recorded
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = number::<u32>(1..=1000))]
    pub(super) faster: u32,
    /// Give separate figures for each image, or for each type of image
    #[arg(long, value_enum)]
    pub(super) by: Option<By>,
    /// Draw the figures into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR")]
    pub(super) plot: Option<PathBuf>,
    /// The seed of all random draws: the same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Threads [default: one a core]; the figures do not depend on it
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=256))]
    threads: Option<u16>,
    #[command(flatten)]
    pub(super) stores: StoreArgs,
}

/// A way to preload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyName {
    /// All possible policies.
    All,
    /// The disk from its start to its end.
    Sequential,
    /// The reads of the boot itself, in their order.
    History,
    /// The best order that a long search finds for the boot itself.
    Oracle,
    /// A policy that decides as reads come, without having learned anything.
    Online(&'static str),
    /// A policy that learns from traces.
    Learned(&'static str),
}

impl PolicyName {
    /// All policies, with `learned` as those that learn: the oldest first, those that know the future last.
    pub(super) fn possible(learned: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let online = NAMES.into_iter().map(Self::named).filter(|policy| matches!(policy, Self::Online(_)));
        online.chain([Self::Sequential]).chain(learned).chain([Self::History, Self::Oracle]).collect()
    }

    /// The policy of that name.
    pub(super) fn named(name: &'static str) -> Self {
        // Preloading nothing needs no traces either.
        let online = name == "lazy" || by_name(name).is_ok_and(|policy| policy.online().is_some());
        if online { Self::Online(name) } else { Self::Learned(name) }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Sequential => "sequential",
            Self::History => "history",
            Self::Oracle => "oracle",
            Self::Online(name) | Self::Learned(name) => name,
        }
    }
}

fn policy(text: &str) -> std::result::Result<PolicyName, String> {
    Ok(match text.trim() {
        "all" => PolicyName::All,
        "sequential" => PolicyName::Sequential,
        "history" => PolicyName::History,
        "oracle" => PolicyName::Oracle,
        name => {
            let known = NAMES.into_iter().find(|known| *known == name);
            PolicyName::named(known.ok_or_else(|| {
                format!(
                    "there is no such policy; name all, {}, sequential, history or oracle",
                    NAMES.join(", ")
                )
            })?)
        }
    })
}

/// A part that can be left out (the paper's figure 29, and what we add to it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Part {
    /// Outliers stay, and boots are not grouped by the blocks that they read and the times of these reads
    Preprocessing,
    /// A boot keeps the plan that it began with: that of the largest group, for the bandwidth at its creation
    Switching,
    /// Images without enough boots of their own get no plan
    ZeroShot,
    /// Whole blocks are preloaded (real model)
    HotSlices,
    /// A miss waits for its whole block (real model)
    CriticalRange,
    /// Nothing is preloaded
    Selection,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Preprocessing => "preprocessing",
            Self::Switching => "switching",
            Self::ZeroShot => "zero-shot",
            Self::HotSlices => "hot-slices",
            Self::CriticalRange => "critical-range",
            Self::Selection => "selection",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum ModelName {
    /// As published: reads arrive as recorded, one stream of whole blocks, the first 3000 reads
    Paper,
    /// A guest that waits for its reads, over a link with a round trip
    Real,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum MissName {
    /// Its own bytes; the rest of the block follows in the background
    Critical,
    /// Its own bytes and nothing more
    Own,
    /// The whole block
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum PreloadName {
    /// The slices of it that are read
    Slices,
    /// All of it
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum By {
    /// By image and size of the disk
    Image,
    /// Public and user-defined images
    Type,
}

impl By {
    pub(super) fn group(self, creation: &Creation) -> String {
        match self {
            Self::Image => format!("{} {}G", creation.image.escape_debug(), creation.size.div_ceil(1 << 30)),
            Self::Type if creation.image.starts_with("p-") => "public".to_owned(),
            Self::Type if creation.image.starts_with("m-") => "user-defined".to_owned(),
            Self::Type => "other".to_owned(),
        }
    }
}

/// The time for which the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Away {
    from: Duration,
    span: Duration,
}

impl Away {
    /// The beginning and the end.
    pub(super) fn span(&self) -> (Nanos, Nanos) {
        let from = Nanos::from_duration(self.from);
        (from, from.plus(Nanos::from_duration(self.span)))
    }
}

/// A latency, or another time that each read of a boot may take.
pub(super) fn latency(text: &str) -> Result<Duration> {
    duration(Duration::ZERO..=LATENCY_MAX)(text)
}

/// A moment since the creation of a disk, or a span of moments.
pub(super) fn moment(text: &str) -> Result<Duration> {
    duration(Duration::ZERO..=MOMENT_MAX)(text)
}

pub(super) fn away(text: &str) -> std::result::Result<Away, String> {
    let wrong = || {
        let most = humantime::format_duration(MOMENT_MAX);
        format!("give a time up to {most}, `@` and the moment from which on, up to {most}, such as 10s@20s")
    };
    let (span, from) = text.split_once('@').ok_or_else(wrong)?;
    let parse = |text: &str| moment(text).map_err(|_| wrong());
    Ok(Away { from: parse(from)?, span: parse(span)? })
}

fn ratio(text: &str) -> std::result::Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (1.0..=1000.0).contains(ratio));
    ratio.ok_or_else(|| "not a number between 1 and 1000".to_owned())
}

fn share(text: &str) -> std::result::Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "not a share between 0 and 1, such as 0.8".to_owned())
}

/// A percentage, as a part of a million.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to a million")]
pub(super) fn percent(text: &str) -> std::result::Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    // If all requests fail, no boot ends.
    let number = number.filter(|number| (0.0..=90.0).contains(number));
    let number = number.ok_or_else(|| "not a percentage from 0% to 90%, such as 1%".to_owned())?;
    Ok((number * 10_000.0).round() as u32)
}

impl Disk {
    /// The number of threads; 0 for one a core.
    pub(super) fn threads(&self) -> usize {
        self.threads.map_or(0, usize::from)
    }

    /// The number of bytes in a MB: the paper's artifact counts in 2^20 bytes.
    pub(super) fn unit(&self) -> f64 {
        match self.model {
            ModelName::Paper => 1_048_576.0,
            ModelName::Real => 1e6,
        }
    }

    /// The round trip to the store.
    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip.unwrap_or(ROUND_TRIP)
    }

    /// The bytes that a miss waits for.
    pub(super) fn misses(&self) -> MissName {
        self.misses.unwrap_or(MissName::Critical)
    }

    /// The part of a planned block that is preloaded.
    pub(super) fn preloads(&self) -> PreloadName {
        self.preloads.unwrap_or(PreloadName::Slices)
    }

    /// The objective of plans.
    pub(super) fn objective_name(&self) -> ObjectiveName {
        self.objective.unwrap_or(match self.model {
            ModelName::Paper => ObjectiveName::Hits,
            ModelName::Real => ObjectiveName::Boot,
        })
    }

    pub(super) fn objective(&self) -> Objective {
        let objective = self.objective_name().objective(self.round_trip());
        match objective {
            Objective::Hits => objective,
            Objective::Boot { round_trip, .. } => Objective::Boot {
                round_trip,
                misses: match self.misses() {
                    MissName::Critical => evaluate::Misses::RangeThenRest,
                    MissName::Own => evaluate::Misses::Range,
                    MissName::Blocks => evaluate::Misses::Block,
                },
                hot: self.preloads() == PreloadName::Slices,
            },
        }
    }

    /// The model over a link of this bandwidth.
    pub(super) fn model(&self, bandwidth: LinkBandwidth) -> Model {
        let mut model = match self.model {
            ModelName::Paper => Model::paper(1),
            ModelName::Real => Model {
                misses: match self.misses() {
                    MissName::Critical => MissPolicy::Own(MissRest::Block),
                    MissName::Own => MissPolicy::Own(MissRest::None),
                    MissName::Blocks => MissPolicy::Blocks,
                },
                preloads: match self.preloads() {
                    PreloadName::Slices => PreloadUnit::Slices,
                    PreloadName::Blocks => PreloadUnit::Blocks,
                },
                ..Model::real(1, self.round_trip())
            },
        };
        model.seed = self.seed;
        model.local_read = self.local_read;
        model.link.bandwidth = bandwidth;
        model.link.latency =
            Latency { least: Duration::ZERO, spread: self.store_latency.unwrap_or_default() };
        model.link.failures.per_million = self.store_fails.unwrap_or(0);
        model.link.failures.away = self.store_away.iter().map(Away::span).collect();
        if self.compressed > 1.0 {
            model.stored = Some(Megabytes(FRAME / self.compressed).times(1.0));
        }
        if self.left { model.with_fill() } else { model }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_by_what_they_need() {
        let unlearned: Vec<_> = PolicyName::possible([]).into_iter().map(PolicyName::name).collect();
        assert_eq!(unlearned, ["lazy", "leap", "sequential", "history", "oracle"]);
        assert_eq!(policy("vmt-min"), Ok(PolicyName::Learned("vmt-min")));
        assert!(policy("best").is_err_and(|e| e.contains("thinkahead")));
    }

    #[test]
    fn shares_and_times_are_parsed_strictly() {
        assert_eq!([percent("1%"), percent("0.25 %")], [Ok(10_000), Ok(2500)]);
        assert!(
            [percent("1"), percent("95%"), percent("-1%"), percent("x%")]
                .iter()
                .all(std::result::Result::is_err)
        );
        let seconds = Duration::from_secs;
        assert_eq!(away("10s@1m"), Ok(Away { from: seconds(60), span: seconds(10) }));
        let wrong = ["10s", "@", "x@10s", "25h@1s", "1s@25h"];
        assert!(wrong.iter().all(|text| away(text).is_err_and(|e| e.contains("1day"))));
        assert!(["0", "1", "1.5", "x", "NaN"].iter().all(|wrong| share(wrong).is_err()));
        assert_eq!(share("0.8"), Ok(0.8));
    }
}
