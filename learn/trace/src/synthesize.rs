//! Data sets that look like the published one, of any size, from a seed.
//!
//! Trying a trainer at the scale of a cloud must not need 3 GB of other people's traces. The generated data set agrees
//! with the numbers that the ThinkAhead paper publishes of its traces (sections 3 to 5; a test measures each with
//! [`stats`](crate::stats)). Where two numbers are joined by "and", the first is for public images and the second for
//! users' images:
//!
//! | property | published |
//! |---|---|
//! | disks | 80% below 64 GiB, up to 2 TiB; images fill 0.50 and 0.55 of them |
//! | users | 57.9% use only one image; 95.0% of these create one disk only |
//! | clusters | 21 for an image, up to 133; more creations at 17 o'clock than at 3; days have few images in common |
//! | reads | 84.9% and 62.3% of the requests of the first three minutes; 200 microseconds apart |
//! | blocks | 2.67% and 4.55% of the disk's are read in six minutes; 2.5% and 2.1% of reads are in two blocks |
//! | grace period | median above 4 s |
//! | likeness | 84.8% and 72.7% of the pairs of an image's traces have a cosine of 0.9 or more |
//! | pairs of images | Jaccard's index 0.87 for the same metadata, 0.82 for the same user, 0.08 for the same family |
//! | categories | an image's boots read one or two typical numbers of blocks; outliers read three times as many |
//!
//! Properties that are not published, such as the order and the lengths of reads, are chosen so that a preload policy
//! has something to find; constants in the source have the values. Reordering, loss and outliers can be raised
//! ([`SynthesisSettings`]) to test a policy on them.
//!
//! # Generation
//!
//! Each random number comes from a generator that is seeded with the data set's seed and the name of the thing that the
//! number is for. So any trace can be made by itself. Several threads make and write traces; only the list of creations
//! and the pattern of each image's boots (a few MB in all) are in memory. The same seed gives the same bytes, with any
//! number of threads.

mod boot;
mod population;
mod random;
#[cfg(test)]
mod tests;

use crate::data_set::in_order;
use crate::directory::{DirectoryLimits, TraceDirectory};
use crate::fast26::Exporter;
use crate::trace::Trace;
use boot::Template;
use headstart_block::{Error, ErrorKind, Result};
use population::Population;
use serde::Serialize;
use std::path::Path;

/// Percent of a disk's blocks that boots read, as published: public, users'.
const ACCESS_PERCENT: [f64; 2] = [2.67, 4.55];

/// The settings for a synthetic data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SynthesisSettings {
    /// The seed of all random numbers; equal settings give equal data sets.
    pub seed: u64,
    /// The number of images; each has at least one trace.
    pub images: usize,
    /// The approximate number of traces, at least the number of images.
    pub traces: usize,
    /// For images whose boots read in several orders, the share of boots, 0 to 1, that do not have the most frequent
    /// order. A third of this value is the share of the requests of every boot that later requests overtake.
    pub reordering: f64,
    /// The average share of a boot's requests, 0 to 1, that are missing from its trace.
    pub loss: f64,
    /// The share of the boots, 0 to 1, that are outliers: cut short, or with a scan of a part of the disk.
    pub outliers: f64,
}

impl Default for SynthesisSettings {
    /// Settings of a small data set (10 images, about 500 traces, the seed 1) with as much disorder as the paper's.
    fn default() -> Self {
        Self { seed: 1, images: 10, traces: 500, reordering: 0.15, loss: 0.01, outliers: 0.025 }
    }
}

/// The layout in which traces are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// The FAST'26 layout.
    #[default]
    Fast26,
    /// One Parquet file a trace.
    Parquet,
}

/// The counts of a synthetic data set that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Synthesized {
    /// The number of images.
    pub images: u64,
    /// The number of traces.
    pub traces: u64,
    /// The number of requests in these traces.
    pub records: u64,
}

/// A synthetic data set, of which each trace is made when it is needed.
pub struct Synthesizer {
    settings: SynthesisSettings,
    population: Population,
    templates: Vec<Template>,
}

impl Synthesizer {
    /// Makes a data set from `settings`: draws the creations at random, and the reads that the boots of each image have
    /// in common.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are no images, fewer traces than images, or a share outside 0 to 1.
    pub fn new(settings: SynthesisSettings) -> Result<Self> {
        let shares = [settings.reordering, settings.loss, settings.outliers];
        if !shares.iter().all(|share| (0.0..=1.0).contains(share)) {
            return Err(Error::invalid("a share is not between 0 and 1"));
        }
        if settings.images == 0 || settings.traces < settings.images {
            let SynthesisSettings { images, traces, .. } = settings;
            return Err(Error::invalid(format!("{traces} traces of {images} images cannot be made"))
                .remedy("ask for one image at least, and for one trace of each"));
        }
        let population = Population::of(&settings);
        let templates = templates(&settings, &population);
        Ok(Self { settings, population, templates })
    }

    /// Returns the number of traces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.population.disks.len()
    }

    /// Returns `true` if there are no traces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.population.disks.is_empty()
    }

    /// Makes the trace with this index; `None` if `index` is not below [`len`](Self::len).
    #[must_use]
    pub fn trace(&self, index: usize) -> Option<Trace> {
        let disk = self.population.disks.get(index)?;
        let image = self.population.images.get(disk.image)?;
        Some(boot::boot(&self.settings, image, self.templates.get(disk.image)?, disk))
    }

    /// Writes all traces into `dir`, which must be empty or not exist, on all processors. `each` is called on the
    /// calling thread after each trace; an error that it returns stops the writing. Returns the counts of the data set.
    ///
    /// # Errors
    /// Errors of `each`; [`ErrorKind::Conflict`] if `dir` is not empty; [`ErrorKind::Denied`] if the path leads through
    /// a symbolic link that belongs neither to root nor to this user; errors of the operating system.
    pub fn write(
        &self,
        dir: &Path,
        layout: Layout,
        mut each: impl FnMut() -> Result<()>,
    ) -> Result<Synthesized> {
        if dir.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(Error::new(ErrorKind::Conflict, "is not empty")
                .about(dir.display())
                .remedy("name another directory, or remove its content"));
        }
        let mut made = Synthesized { images: self.population.images.len() as u64, ..Synthesized::default() };
        let mut count = |records: usize| {
            made.traces += 1;
            made.records += records as u64;
            each()
        };
        match layout {
            Layout::Fast26 => {
                let exporter = Exporter::new(dir)?;
                let mut rows = Vec::with_capacity(self.len());
                self.each(
                    |trace| exporter.write(trace),
                    |records, row| {
                        rows.push(row);
                        count(records)
                    },
                )?;
                exporter.finish_with(rows)?;
            }
            Layout::Parquet => {
                let directory = TraceDirectory::open(dir, DirectoryLimits::default())?;
                self.each(|trace| directory.save(trace, false), |records, _| count(records))?;
            }
        }
        Ok(made)
    }

    /// Makes all traces, does `work` with each on threads, and takes the results in order on this one.
    fn each<T: Send>(
        &self,
        work: impl Fn(&Trace) -> Result<T> + Sync,
        mut take: impl FnMut(usize, T) -> Result<()>,
    ) -> Result<()> {
        let make = |index| {
            let trace = self.trace(index).unwrap_or_default();
            work(&trace).map(|made| (trace.records.len(), made))
        };
        in_order(self.len(), 0, &make, |_, made| {
            let (records, made) = made?;
            take(records, made)
        })
    }
}

/// The reads of boots, with a number of blocks at which disks are read to the published share.
///
/// The number of blocks that a boot reads is drawn, sizes of disks are dealt: together they make some share, and
/// blocks are scaled to the published one. Stripes overlap the more the more there are, so twice.
#[expect(clippy::cast_precision_loss, reason = "shares")]
fn templates(settings: &SynthesisSettings, population: &Population) -> Vec<Template> {
    let mut scales = [1.0, 1.0];
    for round in 0..3 {
        let images = population.images.iter().enumerate();
        let of = |(number, image): (usize, &population::Image)| {
            Template::of(settings, number, image, scales[usize::from(!image.public)])
        };
        let templates: Vec<_> = images.map(of).collect();
        if round == 2 {
            return templates;
        }
        let (mut sums, mut counts) = ([0.0; 2], [0.0; 2]);
        for disk in &population.disks {
            let kind = usize::from(!population.images[disk.image].public);
            let blocks = disk.size as f64 / crate::stats::BLOCK as f64;
            sums[kind] += templates[disk.image].blocks() * 100.0 / blocks;
            counts[kind] += 1.0;
        }
        for kind in [0, 1] {
            if counts[kind] > 0.0 {
                scales[kind] *= ACCESS_PERCENT[kind] / (sums[kind] / counts[kind]);
            }
        }
    }
    Vec::new()
}
