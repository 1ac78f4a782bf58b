//! `headstart train`: recorded boots in, plans out.

use crate::ask::answer;
use clap::{ArgGroup, Args};
use headstart_agentd::client::AgentClient;
use headstart_block::exchange::ImageCounts;
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::duration::duration;
use headstart_command_line::megabytes::Megabytes;
use headstart_command_line::number::number;
use headstart_command_line::printable;
use headstart_command_line::report::{Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_command_line::training::ObjectiveName;
use headstart_image::named_image::NamedImage;
use headstart_image::progress::Progress;
use headstart_image::store_access::StoreAccess;
use headstart_plan::Bandwidth;
use headstart_plan::policy::by_name;
use headstart_plan::train::TrainConfig;
use headstart_trace::data_set::Skipped;
use headstart_train::counted::CountedBoots;
use headstart_train::published::{LeftOut, PublishedPlans};
use headstart_train::summary::{self, TrainedImage};
use headstart_train::training::{LearnedBoots, SavedTraining, TrainingRun, TrainingSettings};
use serde::Serialize;
use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest round trip to a store that plans are made for, as in simulations.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(3600);

pub(crate) const EXAMPLES: &str = "\
Examples:
  headstart train --traces /srv/traces -o plans
  headstart train --traces /srv/fast26 --objective hits --policy thinkahead -o plans
  headstart train --traces /srv/monday --learned learned -o plans
  # Then every day, with what is new alone:
  headstart train --traces /srv/tuesday --learned learned -o plans
  # What this host recorded, published with the image, for all who attach it:
  headstart train --traces /var/cache/headstart/traces --learned learned \\
      --publish oci://registry.lan/vm/debian:12
  # What a tracker counted while the image was deployed, where nothing was recorded:
  headstart train --counts /var/lib/headstart/tracker --publish oci://registry.lan/vm/debian:12
  # The same, asked of the agent:
  headstart train --counts /run/headstart/agent.sock --publish oci://registry.lan/vm/debian:12";

/// The boots to learn from, and the options of training.
#[derive(Args)]
#[command(group = ArgGroup::new("boots").args(["traces", "counts"]).required(true).multiple(true))]
#[command(group = ArgGroup::new("result").args(["output", "publish"]).required(true).multiple(true))]
pub(crate) struct Train {
    /// The boots to learn from: a directory of traces, a data set of the FAST'26 layout, or one trace; not needed with
    /// --counts
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Learn also from a tracker's counts: the file `tracker` of its agent's directory, or that agent's agent.sock
    /// while it runs. The reads of the disks of each image named by --image or --publish are taken as up to eight
    /// boots that together read the same (may be repeated)
    #[arg(long, value_name = "FILE|SOCK")]
    counts: Vec<PathBuf>,
    /// The file to write the plans to; an existing one is replaced. Not needed with --publish
    #[arg(long, short, value_name = "PLANS")]
    output: Option<PathBuf>,
    /// The policy that orders the blocks [default: search, which boots best on boots that it has not seen]
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    policy: Option<String>,
    /// The measure that the plans are to be best at
    #[arg(long, value_enum, default_value_t = ObjectiveName::Boot)]
    objective: ObjectiveName,
    /// Bandwidths to plan for in MB/s, separated by commas, such as 5,10,50 [default: some of each bin]
    #[arg(long, value_name = "MBPS", value_delimiter = ',')]
    bandwidth: Vec<Megabytes>,
    /// Round trip to the store
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = duration(Duration::ZERO..=ROUND_TRIP_MAX))]
    round_trip: Duration,
    /// The file with earlier knowledge, to which these boots are added; made if it is not there. Boots that it knows
    /// are not read again
    #[arg(long, value_name = "FILE")]
    learned: Option<PathBuf>,
    /// An image that some of the boots are of, whose layers are learned separately: a new image that shares some of
    /// them starts with their plans. NAME= if the boots call it NAME; otherwise they know it by its digest (may be
    /// repeated)
    #[arg(long, value_name = "[NAME=]IMAGE")]
    image: Vec<NamedImage>,
    /// Publish the plans of this image with it, in place of older ones: every host that attaches it finds them. The
    /// image's digest stays as it is. Its layers are learned as with --image. An image that was optimized gets the
    /// plans of the one that it was made from; each form of a container's image, those of its own boots or of a form
    /// with the same disk. NAME= if the boots call it NAME; otherwise they know it by its digest
    /// (may be repeated)
    #[arg(long, value_name = "[NAME=]IMAGE")]
    publish: Vec<NamedImage>,
    /// Run the guests this many times as fast as they were recorded
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = number::<u32>(1..=1000))]
    faster: u32,
    /// The seed of policies that draw random numbers: the same seed and boots give the same plans
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    stores: StoreArgs,
}

fn parse_policy(text: &str) -> Result<String> {
    by_name(text).map(|_| text.to_owned())
}

impl Train {
    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let settings = self.settings();
        let report = self.stores.with_stores(|stores| self.run_on(&settings, stores, progress))?;
        Ok(Box::new(report))
    }

    fn run_on(
        &self,
        settings: &TrainingSettings,
        stores: StoreAccess<'_>,
        progress: &dyn Progress,
    ) -> Result<TrainReport> {
        let mut training = TrainingRun::begin(settings, stores)?;
        let start = Instant::now();
        let counts = self.counts.iter().map(|place| Ok((place.as_path(), counts_of(place)?)));
        let counts: Vec<_> = counts.collect::<Result<_>>()?;
        let LearnedBoots { read, known, counted, skipped } = training.learn(&counts, progress)?;
        let learning_s = start.elapsed().as_secs_f64();
        training.learn_layers()?;
        let start = Instant::now();
        let plans = training.plan(progress)?;
        let planning_s = start.elapsed().as_secs_f64();
        let SavedTraining { bytes, published, left_out, knowledge } = training.save(&plans)?;
        Ok(TrainReport {
            output: self.output.as_ref().map(|path| path.display().to_string()),
            bytes,
            published,
            left_out,
            policy: settings.config.policy.clone(),
            objective: self.objective,
            read,
            known,
            counted,
            images: summary::of_all(&knowledge, &plans),
            learning_s,
            planning_s,
            skipped,
        })
    }

    fn settings(&self) -> TrainingSettings {
        let mut config = TrainConfig {
            objective: self.objective.objective(self.round_trip),
            seed: self.seed,
            ..TrainConfig::default()
        };
        if let Some(policy) = &self.policy {
            config.policy.clone_from(policy);
        }
        if !self.bandwidth.is_empty() {
            config.rates = self.bandwidth.iter().map(|rate| Bandwidth::new(rate.times(1e6))).collect();
            config.rates.sort_unstable();
            config.rates.dedup();
        }
        TrainingSettings {
            traces: self.traces.clone(),
            counts: self.counts.clone(),
            output: self.output.clone(),
            learned: self.learned.clone(),
            images: self.image.clone(),
            publish: self.publish.clone(),
            faster: self.faster,
            config,
        }
    }
}

/// The counts of a tracker: of the file of its agent, or from that agent at its socket.
fn counts_of(place: &Path) -> Result<Vec<ImageCounts>> {
    if place.metadata().is_ok_and(|of| of.file_type().is_socket()) {
        let agent = AgentClient::new(Some(place))?;
        return answer(place, agent.counts()).map_err(|e| e.about(place.display()));
    }
    headstart_peer_net::read_counts(place)
}

/// The result of training.
#[derive(Serialize)]
struct TrainReport {
    /// The file of plans; `None` if the plans were only published.
    output: Option<String>,
    /// The length of that file.
    bytes: Option<u64>,
    published: Vec<PublishedPlans>,
    /// Forms of these images that got no plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
    policy: String,
    objective: ObjectiveName,
    /// Traces that were read.
    read: u64,
    /// Traces that were known before.
    known: u64,
    /// The counts of trackers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    counted: Vec<CountedBoots>,
    images: Vec<TrainedImage>,
    learning_s: f64,
    planning_s: f64,
    skipped: Skipped,
}

impl Outcome for TrainReport {}

impl fmt::Display for TrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.images.iter().map(|image| image.image.len()).max().unwrap_or(0).max("image".len());
        write!(f, "{:width$} {:>8} {:>7} {:>8} {:>7}", "image", "size", "traces", "outliers", "groups")?;
        write!(f, " {:>7} {:>9} {:>14}", "blocks", "MB hot", "worth")?;
        for image in &self.images {
            let size = ByteSize(image.size).to_string();
            write!(f, "\n{:width$} {size:>8}", image.image.escape_debug().to_string())?;
            write!(f, " {:>7} {:>8} {:>7}", image.traces, image.outliers.all(), image.groups.len())?;
            let Some((first, last)) = image.groups.first().and_then(|g| g.plans.first().zip(g.plans.last()))
            else {
                continue;
            };
            let megabytes = first.bytes / 1_000_000;
            let worth = format!("{:.2}..{:.2}", first.worth, last.worth);
            write!(f, " {:>7} {megabytes:>9} {worth:>14}", first.blocks)?;
        }
        let what = match self.objective {
            ObjectiveName::Boot => "seconds of waiting a boot, negative",
            ObjectiveName::Hits => "share of reads that hit",
        };
        write!(f, "\n\nblocks, MB and worth ({what}) are of the largest group's plan,")?;
        write!(f, " worth from the slowest link to the fastest, on the boots that it was made from\n\n")?;
        let known = if self.known > 0 { format!(", {} known before", self.known) } else { String::new() };
        write!(f, "{}{known}, in {:.1} s; ", count(self.read, "trace"), self.learning_s)?;
        write!(f, "plans by `{}` in {:.1} s", self.policy, self.planning_s)?;
        for counted in &self.counted {
            write_counted(f, counted)?;
        }
        if let (Some(output), Some(bytes)) = (&self.output, self.bytes) {
            write!(f, ": {output} ({})", ByteSize(bytes))?;
        }
        for published in &self.published {
            let PublishedPlans { image, subject, form, turbo, digest, generation, is_new, .. } = published;
            let what = if *is_new { "published" } else { "published before, unchanged" };
            let form = form.as_ref().map(|kind| format!(" (its {} form {subject})", kind_of(kind, *turbo)));
            write!(f, "\n{image}{}: {what}, generation {generation}, {digest}", form.unwrap_or_default())?;
        }
        for LeftOut { image, file_system, turbo, reason } in &self.left_out {
            let kind = file_system.as_ref().map(|kind| format!(" ({})", kind_of(kind, *turbo)));
            write!(f, "\n{image}{}: NOT published: {}", kind.unwrap_or_default(), printable::line(reason))?;
        }
        if !self.skipped.is_empty() {
            write!(f, "\n\n{}", self.skipped)?;
        }
        Ok(())
    }
}

/// The words for a form with that file system.
fn kind_of(file_system: &str, turbo: Option<bool>) -> String {
    let turbo = if turbo == Some(true) { ", turbo" } else { "" };
    format!("{}{turbo}", printable::line(file_system))
}

fn write_counted(f: &mut fmt::Formatter<'_>, counted: &CountedBoots) -> fmt::Result {
    let CountedBoots { image, disks, boots, new, .. } = counted;
    let (disks, known) = (count((*disks).into(), "disk"), if new == boots { "" } else { ", known before" });
    write!(f, "; {disks} of {image} that a tracker counted, as {}{known}", count(*boots as u64, "boot"))
}
