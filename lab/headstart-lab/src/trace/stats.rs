//! `headstart-lab trace stats`: the reads of traces, one by one, by image, and in the form of the paper's figures.

use super::figures::{Creations, Traces};
use headstart_block::Result;
use headstart_block::words::count;
use headstart_command_line::date::date_of_second;
use headstart_command_line::report::Outcome;
use headstart_image::progress::Progress;
use headstart_plan::preprocess::{self, ModelSettings};
use headstart_trace::data_set::{DataSetLimits, Skipped};
use headstart_trace::stats::{self, BootCounts, Collector, CreationFigures, Figures, RequestStats};
use headstart_trace::{Creation, DataSet, Trace};
use headstart_train::traces::read_all;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The most traces that are listed one by one, for people; programs get all.
const TRACES_SHOWN: usize = 100;

/// The number of boots from which on an image's categories are counted: of fewer, every other boot is one.
const CATEGORIZED_MIN: usize = 10;

/// The statistics of traces.
#[derive(Default, Serialize)]
pub(super) struct StatsReport {
    traces: Vec<TraceStats>,
    images: Vec<ImageStats>,
    total: RequestStats,
    /// The units of the numbers of `distinct_bytes`, in bytes.
    units: [u64; stats::UNITS.len()],
    /// The upper bounds of the sizes of reads that `sizes` counts; the last has no bound.
    sizes_to: [u64; stats::SIZES.len()],
    /// The paper's figures that need only the table of creations.
    creations: CreationFigures,
    /// The figures that need the traces.
    figures: Figures,
    /// The number of images (on disks of one size, with ten boots or more) by the number of categories that training
    /// finds in their boots.
    categories: BTreeMap<usize, u64>,
    skipped: Skipped,
}

/// The rest of a trace whose requests were counted.
struct Boiled {
    creation: Creation,
    dropped: u64,
    link_samples: usize,
}

fn boiled(trace: Trace) -> Boiled {
    Boiled { creation: trace.creation, dropped: trace.dropped, link_samples: trace.link.len() }
}

#[derive(Serialize)]
struct TraceStats {
    volume: String,
    image: String,
    #[serde(skip)]
    image_id: String,
    created: String,
    /// Requests that the recorder had no room for.
    dropped: u64,
    /// Samples of the estimate of the link to the store.
    link_samples: usize,
    #[serde(flatten)]
    stats: RequestStats,
}

/// The traces of an image: the median of each number.
#[derive(Serialize)]
struct ImageStats {
    image: String,
    traces: usize,
    #[serde(flatten)]
    numbers: Numbers,
}

/// The numbers in a line of the table; each is of one trace, a median, or a sum.
#[derive(Serialize)]
struct Numbers {
    reads: u64,
    read_bytes: u64,
    distinct_bytes: [u64; stats::UNITS.len()],
    cross_block_reads: u64,
    first_us: u64,
    duration_us: u64,
}

impl StatsReport {
    pub(super) fn of(paths: &[PathBuf], progress: &dyn Progress) -> Result<Self> {
        let mut report = Self { units: stats::UNITS, sizes_to: stats::SIZES, ..Self::default() };
        let mut collector = Collector::default();
        let mut creations = Vec::new();
        let mut blocks = BTreeMap::<(String, u64), Vec<usize>>::new();
        for path in paths {
            let set = DataSet::open(path, &DataSetLimits::default())?;
            report.skipped.add(set.skipped());
            let count =
                |trace: Trace| (RequestStats::of(&trace.records), BootCounts::of(&trace), boiled(trace));
            let skipped =
                read_all(&set, ("reading traces", 0), progress, count, |_, (stats, boot, trace)| {
                    collector.add(&trace.creation, &boot);
                    let image = (trace.creation.image_id().to_owned(), trace.creation.size);
                    blocks.entry(image).or_default().push(boot.blocks.len());
                    report.add(&trace, stats);
                    creations.push(trace.creation);
                    Ok(())
                })?;
            report.skipped.add(&skipped);
        }
        report.creations = CreationFigures::of(&creations);
        report.figures = collector.finish();
        for blocks in blocks.into_values().filter(|blocks| blocks.len() >= CATEGORIZED_MIN) {
            *report
                .categories
                .entry(preprocess::categories(blocks, &ModelSettings::default()))
                .or_default() += 1;
        }
        report.summarize();
        Ok(report)
    }

    fn add(&mut self, trace: &Boiled, stats: RequestStats) {
        self.total.add(&stats);
        self.traces.push(TraceStats {
            volume: trace.creation.volume.clone(),
            image: trace.creation.image.clone(),
            image_id: trace.creation.image_id().to_owned(),
            created: date_of_second(trace.creation.created_us / 1_000_000),
            dropped: trace.dropped,
            link_samples: trace.link_samples,
            stats,
        });
    }

    fn summarize(&mut self) {
        // The key is the identity of images; the shown name is the first of theirs.
        let mut images = BTreeMap::<&str, (&str, Vec<&RequestStats>)>::new();
        for trace in &self.traces {
            let (_, traces) = images.entry(&trace.image_id).or_insert((&trace.image, Vec::new()));
            traces.push(&trace.stats);
        }
        let images = images.into_values().map(|(image, traces)| {
            let median = |number: &dyn Fn(&RequestStats) -> u64| {
                stats::median(traces.iter().map(|stats| number(stats)))
            };
            let numbers = Numbers {
                reads: median(&|stats| stats.reads),
                read_bytes: median(&|stats| stats.read_bytes),
                distinct_bytes: std::array::from_fn(|unit| median(&|stats| stats.distinct_bytes[unit])),
                cross_block_reads: median(&|stats| stats.cross_block_reads),
                first_us: median(&|stats| stats.first_us),
                duration_us: median(&|stats| stats.duration_us),
            };
            ImageStats { image: image.to_owned(), traces: traces.len(), numbers }
        });
        self.images = images.collect();
    }
}

impl Outcome for StatsReport {
    fn is_right(&self) -> bool {
        self.skipped.total() == 0
    }
}

impl Numbers {
    fn of(stats: &RequestStats) -> Self {
        Self {
            reads: stats.reads,
            read_bytes: stats.read_bytes,
            distinct_bytes: stats.distinct_bytes,
            cross_block_reads: stats.cross_block_reads,
            first_us: stats.first_us,
            duration_us: stats.duration_us,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str, width: usize) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let [pages, slices, blocks] = self.distinct_bytes.map(mb);
        let cross = self.cross_block_reads as f64 * 100.0 / self.reads.max(1) as f64;
        let seconds = |us: u64| us as f64 / 1e6;
        write!(
            f,
            "\n{:width$} {:>8} {:>8.1} {pages:>8.1} {slices:>8.1} {blocks:>8.1} {cross:>6.1}% {:>8.1} {:>8.1}",
            name.escape_debug().to_string(),
            self.reads,
            mb(self.read_bytes),
            seconds(self.first_us),
            seconds(self.duration_us),
        )
    }
}

impl fmt::Display for StatsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.traces.iter().flat_map(|trace| [trace.volume.len(), trace.image.len()]);
        let width = names.chain(["median by image".len()]).max().unwrap_or(0).min(60);
        let columns = "   reads  read MB    by 4K   by 64K    by 2M   cross  first s   span s";
        if self.traces.len() <= TRACES_SHOWN {
            write!(f, "{:width$} {columns}", "trace")?;
            for trace in &self.traces {
                Numbers::of(&trace.stats).write(f, &trace.volume, width)?;
            }
            write!(f, "\n\n")?;
        }
        write!(f, "{:width$} {columns}", "median by image")?;
        for image in &self.images {
            image.numbers.write(f, &image.image, width)?;
        }
        let traces = count(self.traces.len() as u64, "trace");
        write!(f, "\n\n{:width$} {columns}", "sum")?;
        Numbers::of(&self.total).write(f, &traces, width)?;
        let written = self.total.written_bytes / 1_000_000;
        write!(f, "\n\n{} of {written} MB in all", count(self.total.writes, "write"))?;
        let sizes = self.total.sizes.iter().enumerate().filter(|(_, reads)| **reads > 0);
        let sizes = sizes.map(|(class, reads)| format!("{reads} {}", stats::size_class(class)));
        write!(f, "\nreads by size: {}", sizes.collect::<Vec<_>>().join(", "))?;
        write!(f, "\n\n{}", Creations(&self.creations))?;
        write!(f, "\n\n{}", Traces(&self.figures))?;
        let categories = self.categories.iter();
        let categories =
            categories.map(|(number, images)| format!("{number} of {}", count(*images, "image")));
        let categories = categories.collect::<Vec<_>>().join(", ");
        if !categories.is_empty() {
            write!(f, "\n\ncategories, by boots' numbers of blocks: {categories}")?;
        }
        if !self.skipped.is_empty() {
            write!(f, "\n\n{}", self.skipped)?;
        }
        Ok(())
    }
}
