//! `headstart train`: recorded boots in, plans out.

use crate::agent::AgentClient;
use crate::counted::{Counted, CountedReport};
use crate::layer_map;
use crate::megabytes::Megabytes;
use crate::published::{Publication, PublishedReport, no_boots_of};
use crate::report::{Outcome, Report, count};
use crate::store_args::StoreArgs;
use clap::Args;
use headstart_block::{ByteSize, Error, ErrorKind, FileSource, Result};
use headstart_command_line::traces::nothing;
use headstart_command_line::training::{ObjectiveName, with_bar};
use headstart_diskd::NamedImage;
use headstart_image::export::OutputFile;
use headstart_image::progress::Progress;
use headstart_plan::knowledge::{ImageKnowledge, Knowledge, KnowledgeSettings, Learned, RecordedImage};
use headstart_plan::train::{self, Plans, TrainConfig};
use headstart_plan::{Bandwidth, Bin, GroupPlans};
use headstart_trace::data_set::{DataSet, DataSetLimits, Skipped};
use serde::Serialize;
use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
pub(crate) struct Train {
    /// The boots to learn from: a directory of traces, a data set of the FAST'26 layout, or one trace; not needed with
    /// --counts
    #[arg(long, value_name = "DIR", required_unless_present = "counts")]
    traces: Option<PathBuf>,
    /// Learn also from a tracker's counts: the file `tracker` of its agent's directory, or that agent's agent.sock
    /// while it runs. The reads of the disks of each image named by --image or --publish are taken as up to eight
    /// boots that together read the same (may be repeated)
    #[arg(long, value_name = "FILE|SOCK")]
    counts: Vec<PathBuf>,
    /// The file to write the plans to; an existing one is replaced. Not needed with --publish
    #[arg(long, short, value_name = "PLANS", required_unless_present = "publish")]
    output: Option<PathBuf>,
    /// The policy that orders the blocks [default: search, which boots best on boots that it has not seen]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// The measure that the plans are to be best at
    #[arg(long, value_enum, default_value_t = ObjectiveName::Boot)]
    objective: ObjectiveName,
    /// Bandwidths to plan for in MB/s, separated by commas, such as 5,10,50 [default: some of each bin]
    #[arg(long, value_name = "MBPS", value_delimiter = ',')]
    bandwidth: Vec<Megabytes>,
    /// Round trip to the store
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = humantime::parse_duration)]
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
    /// plans of the one that it was made from. NAME= if the boots call it NAME; otherwise they know it by its digest
    /// (may be repeated)
    #[arg(long, value_name = "[NAME=]IMAGE")]
    publish: Vec<NamedImage>,
    /// Run the guests this many times as fast as they were recorded
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    faster: u32,
    /// The seed of policies that draw random numbers: the same seed and boots give the same plans
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Train {
    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let config = self.config()?;
        if let (Some(learned), Some(output)) = (&self.learned, &self.output)
            && learned == output
        {
            return Err(Error::invalid("is named both for the knowledge and for the plans")
                .about(output.display())
                .remedy("give `--learned` and `--output` a file each"));
        }
        // The files are begun before the long work: a place that cannot be used is refused at once.
        let create = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::create).transpose();
        let (learned_file, plans_file) = (create(&self.learned)?, create(&self.output)?);
        let targets = self.publish.iter().map(|image| Publication::prepare(image, &self.stores));
        let targets: Vec<_> = targets.collect::<Result<_>>()?;
        let mut knowledge = self.knowledge()?;
        let start = Instant::now();
        let counted = self.counted()?;
        let (learned, skipped) = self.learn_traces(&mut knowledge, progress)?;
        let counted = counted.into_iter().map(|counted| counted.learn(&mut knowledge)).collect();
        let learning_s = start.elapsed().as_secs_f64();
        if knowledge.images().all(|(_, image)| image.traces() == 0) {
            let source = self.traces.as_deref().or(self.counts.first().map(PathBuf::as_path));
            let source = source.unwrap_or(Path::new(""));
            return Err(no_boots(source, &knowledge, &skipped));
        }
        self.learn_layers(&mut knowledge, &targets)?;
        targets.iter().try_for_each(|target| target.key(&knowledge).map(drop))?;
        let start = Instant::now();
        let plans = with_bar(progress, "making plans", |each| train::all(&knowledge, &config, each))?;
        let planning_s = start.elapsed().as_secs_f64();
        if let Some(file) = learned_file {
            file.fill(|out| knowledge.write(out))?;
        }
        let bytes = plans_file.map(|file| file.fill(|out| plans.write(out))).transpose()?;
        let publish = |target: &Publication<'_>| target.publish(&plans, &knowledge, &self.stores);
        let published = targets.iter().map(publish).collect::<Result<_>>()?;
        let images = knowledge.images().map(|(key, image)| ImageReport::of(key, image, &plans)).collect();
        Ok(Box::new(TrainReport {
            output: self.output.as_ref().map(|path| path.display().to_string()),
            bytes,
            published,
            policy: config.policy,
            objective: self.objective,
            read: learned.read,
            known: learned.known,
            counted,
            images,
            learning_s,
            planning_s,
            skipped,
        }))
    }

    /// Learns from recorded boots.
    fn learn_traces(&self, knowledge: &mut Knowledge, progress: &dyn Progress) -> Result<(Learned, Skipped)> {
        let Some(traces) = &self.traces else { return Ok((Learned::default(), Skipped::default())) };
        let set = DataSet::open(traces, &DataSetLimits::default())?;
        let mut skipped = set.skipped().clone();
        let learned = with_bar(progress, "reading traces", |each| knowledge.learn(&set, 0, each))?;
        skipped.add(&learned.skipped);
        Ok((learned, skipped))
    }

    /// The counts of trackers for the named images.
    fn counted(&self) -> Result<Vec<Counted>> {
        let named: Vec<&NamedImage> = self.image.iter().chain(&self.publish).collect();
        if !self.counts.is_empty() && named.is_empty() {
            return Err(Error::invalid("a tracker knows images by numbers that only their manifests tell")
                .remedy("name the images with --image or --publish"));
        }
        let mut all = Vec::new();
        for file in &self.counts {
            let is_socket = file.metadata().is_ok_and(|of| of.file_type().is_socket());
            let counts = if is_socket {
                AgentClient::new(Some(file))?.counts().map_err(|e| e.about(file.display()))?
            } else {
                headstart_peer_net::read_counts(file)?
            };
            let found = named.iter().map(|image| Counted::find(&counts, image, &self.stores));
            let found: Vec<Counted> = found.filter_map(Result::transpose).collect::<Result<_>>()?;
            if found.is_empty() {
                let names: Vec<_> = named.iter().map(|image| image.reference.to_string()).collect();
                let what = format!("has nothing of {}", names.join(", "));
                return Err(Error::new(ErrorKind::NotFound, what).about(file.display()).remedy(
                    "an image's disks are counted while they are attached to a swarm with a tracker",
                ));
            }
            all.extend(found);
        }
        Ok(all)
    }

    fn config(&self) -> Result<TrainConfig> {
        let mut config = TrainConfig {
            objective: self.objective.objective(self.round_trip),
            seed: self.seed,
            ..TrainConfig::default()
        };
        if let Some(policy) = &self.policy {
            config.policy.clone_from(policy);
        }
        // This comes before an hour of reading.
        headstart_plan::policy::by_name(&config.policy)?;
        if !self.bandwidth.is_empty() {
            config.rates = self.bandwidth.iter().map(|rate| Bandwidth::new(rate.times(1e6))).collect();
            config.rates.sort_unstable();
            config.rates.dedup();
        }
        Ok(config)
    }

    /// Adds the layers of the images. Those of an optimized image have no information about others.
    fn learn_layers(&self, knowledge: &mut Knowledge, targets: &[Publication<'_>]) -> Result<()> {
        let published = self.publish.iter().zip(targets).filter(|(_, target)| !target.is_optimized());
        for NamedImage { name, reference } in self.image.iter().chain(published.map(|(named, _)| named)) {
            let (key, map) = layer_map::of_image(reference, &self.stores)?;
            let image = if name.is_empty() { &key.image } else { name };
            let keys: Vec<_> =
                knowledge.images().map(|(known, _)| known).filter(|k| k.image == *image).cloned().collect();
            if keys.is_empty() {
                return Err(no_boots_of(image, reference));
            }
            keys.iter().try_for_each(|key| knowledge.set_layers(key, map.clone()))?;
        }
        Ok(())
    }

    /// The earlier knowledge.
    fn knowledge(&self) -> Result<Knowledge> {
        let settings = KnowledgeSettings { faster: self.faster, ..KnowledgeSettings::default() };
        match &self.learned {
            Some(path) if path.exists() => {
                let knowledge =
                    Knowledge::read(&FileSource::open(path)?).map_err(|e| e.about(path.display()))?;
                if knowledge.settings().faster != self.faster {
                    let before = knowledge.settings().faster;
                    return Err(Error::new(
                        ErrorKind::Conflict,
                        format!("was learned from guests taken as {before} times as fast"),
                    )
                    .about(path.display())
                    .remedy(format!("give --faster {before}, or another file")));
                }
                Ok(knowledge)
            }
            _ => Ok(Knowledge::new(settings)),
        }
    }
}

/// The error if nothing was learned from `source`.
fn no_boots(source: &Path, knowledge: &Knowledge, skipped: &Skipped) -> Error {
    const CAUSE: &str = "has no boot that could be learned from";
    let few = knowledge.images().fold(0_u64, |sum, (_, image)| sum.saturating_add(image.dropped().few_reads));
    if few == 0 {
        return nothing(source, CAUSE, skipped);
    }
    let (boots, least) = (count(few, "boot"), knowledge.settings().model.reads_min);
    nothing(source, &format!("{CAUSE}: {boots} with fewer than {least} reads"), skipped)
        .remedy("record whole boots: attach the disk to a guest, and let it boot before the disk is detached")
}

/// The result of training.
#[derive(Serialize)]
struct TrainReport {
    /// The file of plans; `None` if the plans were only published.
    output: Option<String>,
    /// The length of that file.
    bytes: Option<u64>,
    published: Vec<PublishedReport>,
    policy: String,
    objective: ObjectiveName,
    /// Traces that were read.
    read: u64,
    /// Traces that were known before.
    known: u64,
    /// The counts of trackers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    counted: Vec<CountedReport>,
    images: Vec<ImageReport>,
    learning_s: f64,
    planning_s: f64,
    skipped: Skipped,
}

#[derive(Serialize)]
struct ImageReport {
    image: String,
    size: u64,
    traces: u64,
    outliers: Outliers,
    groups: Vec<GroupReport>,
}

/// Outliers by reason.
#[derive(Serialize)]
struct Outliers {
    few_reads: u64,
    few_blocks: u64,
    many_blocks: u64,
}

impl Outliers {
    fn all(&self) -> u64 {
        self.few_reads + self.few_blocks + self.many_blocks
    }
}

#[derive(Serialize)]
struct GroupReport {
    category: u32,
    traces: u64,
    plans: Vec<PlanReport>,
}

#[derive(Serialize)]
struct PlanReport {
    /// The bandwidth, in bytes a second.
    rate: u64,
    bin: &'static str,
    blocks: usize,
    /// The bytes of its hot slices.
    bytes: u64,
    /// The value for the boots that it was made from: their hit rate, or seconds of waiting, negative.
    worth: f64,
}

impl ImageReport {
    fn of(key: &RecordedImage, image: &ImageKnowledge, plans: &Plans) -> Self {
        let dropped = image.dropped();
        let chosen = plans.choose(key, &image.metadata());
        Self {
            image: key.image.clone(),
            size: key.size,
            traces: image.traces(),
            outliers: Outliers {
                few_reads: dropped.few_reads,
                few_blocks: dropped.few_blocks,
                many_blocks: dropped.many_blocks,
            },
            groups: chosen.groups.iter().map(GroupReport::of).collect(),
        }
    }
}

impl GroupReport {
    fn of(group: &GroupPlans) -> Self {
        let plan = |plan: &headstart_plan::RatedPlan| PlanReport {
            rate: plan.rate,
            bin: Bin::of(Bandwidth::new(plan.rate)).name(),
            blocks: plan.items.len(),
            bytes: plan.hot_bytes(),
            worth: plan.score,
        };
        Self { category: group.category, traces: group.traces, plans: group.plans.iter().map(plan).collect() }
    }
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
            write!(f, "; {counted}")?;
        }
        if let (Some(output), Some(bytes)) = (&self.output, self.bytes) {
            write!(f, ": {output} ({})", ByteSize(bytes))?;
        }
        for published in &self.published {
            write!(f, "\n{published}")?;
        }
        if !self.skipped.is_empty() {
            write!(f, "\n\n{}", self.skipped)?;
        }
        Ok(())
    }
}
