//! Everything learned from a data set, image by image. It can be written to a file, and can learn more later.
//!
//! # The data that is kept of an image
//!
//! For an image these are kept: its blocks, the metadata of its creations ([`Profile`](crate::zero_shot::Profile)), and
//! fingerprints of the traces that were read. The groups of an image are determined by its first 256 traces
//! ([`founding`](KnowledgeSettings::founding)); traces with too few reads do not count. Until there are so many, all
//! traces are kept, packed ([`Packed`](crate::compact_trace::Packed)), and the groups are made again from all of them
//! whenever they are needed. Then the groups are final: each keeps its statistics and a few traces, and a further trace
//! that is no outlier joins the nearest group of its category. So:
//!
//! * The result depends only on the traces and their order. It is the same whether the traces come at once or day by
//!   day, and with any number of threads. Learning from a further day reads only the traces of that day; the earlier
//!   ones may be gone.
//! * The memory for an image is bounded, except for a fingerprint of eight bytes for each of its traces.
//! * An image that had too few traces to make groups of, or only outliers, gets groups as soon as it has enough traces.
//!
//! # Threads
//!
//! Images are learned side by side, the largest first. An image with more traces than the share of one thread is
//! learned alone, with its traces read by all threads.

mod file;
mod image;

#[cfg(test)]
mod tests;

pub use image::ImageKnowledge;

pub use crate::image_key::RecordedImage;
use crate::layers::LayerMap;
pub use crate::tasks::{OnProgress, TaskProgress};
use crate::{preprocess, tasks};
use headstart_block::{Error, Result};
use headstart_trace::data_set::Skipped;
use headstart_trace::{Creation, DataSet, Trace};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

/// The settings for learning from traces.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnowledgeSettings {
    /// The settings for leaving out outliers and for dividing traces into categories and groups.
    pub model: preprocess::ModelSettings,
    /// The number of traces of an image after which its groups are final; 0 counts as 1. Traces with too few reads do
    /// not count. Each further trace that is no outlier joins the most similar group of its category.
    pub founding: usize,
    /// The factor by which guests are assumed to be faster than when they were recorded: times between reads are
    /// divided by it. 0 and 1 change nothing.
    pub faster: u32,
}

impl Default for KnowledgeSettings {
    /// Settings with groups that are final after 256 traces, and with up to 32 traces kept in each group.
    fn default() -> Self {
        let model = preprocess::ModelSettings { kept_max: 32, ..preprocess::ModelSettings::default() };
        Self { model, founding: 256, faster: 1 }
    }
}

/// The maximum of [`KnowledgeSettings::founding`], which bounds the traces that a file of knowledge holds of
/// one image.
pub const FOUNDING_MAX: usize = 4096;

/// The maximum of [`ModelSettings::compared_max`](preprocess::ModelSettings::compared_max): the number of traces that
/// are compared with each other, pair by pair.
pub const COMPARED_MAX: usize = 2048;

/// The counts of traces, by outcome, after learning from a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// The number of traces that were read.
    pub read: u64,
    /// The number of traces that had been learned before, and were not read again.
    pub known: u64,
    /// The traces that could not be read, and those that were sorted by time before learning, by reason.
    pub skipped: Skipped,
}

/// Everything learned from the traces of a data set, image by image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knowledge {
    settings: KnowledgeSettings,
    images: BTreeMap<RecordedImage, ImageKnowledge>,
}

impl Knowledge {
    /// Makes empty knowledge. Settings above the maxima [`FOUNDING_MAX`] and [`COMPARED_MAX`] are lowered to these.
    #[must_use]
    pub fn new(mut settings: KnowledgeSettings) -> Self {
        settings.founding = settings.founding.min(FOUNDING_MAX);
        settings.model.compared_max = settings.model.compared_max.min(COMPARED_MAX);
        Self { settings, images: BTreeMap::new() }
    }

    /// Returns the settings for learning.
    #[must_use]
    pub fn settings(&self) -> &KnowledgeSettings {
        &self.settings
    }

    /// Learns from those traces of a data set that were not learned before, on `threads` threads (0 for the
    /// number of processors). The result does not depend on the number of threads.
    ///
    /// Traces that cannot be read are skipped and counted; the next call tries them again.
    ///
    /// # Errors
    /// Errors of `progress`, and of starting threads; nothing is learned then.
    pub fn learn(&mut self, data: &DataSet, threads: usize, progress: OnProgress<'_>) -> Result<Learned> {
        let knows = |creation: &Creation| {
            self.images.get(&RecordedImage::of(creation)).is_some_and(|image| image.knows(creation))
        };
        let new = data.filter(|_, creation| !knows(creation));
        let threads = tasks::threads(threads);
        let mut counted = TaskProgress { done: 0, all: new.len() as u64 };
        let mut groups: Vec<Range<usize>> = new.groups().collect();
        groups.sort_by_key(|group| (Reverse(group.len()), group.start));
        let large = groups.partition_point(|group| group.len() * threads > new.len());
        let mut results = Vec::with_capacity(groups.len());
        for group in &groups[..large] {
            results.push(self.learn_image(&new, group, threads, || {
                counted.done += 1;
                progress(counted)
            })?);
        }
        let rest = &groups[large..];
        results.extend(tasks::run(rest.len(), threads, counted, progress, |at, tick| {
            self.learn_image(&new, &rest[at], 1, tick)
        })?);
        let mut learned = Learned { known: (data.len() - new.len()) as u64, ..Learned::default() };
        for (key, image, skipped, read) in results {
            learned.read += read;
            learned.skipped.add(&skipped);
            self.images.insert(key, image);
        }
        Ok(learned)
    }

    /// Learns from the trace of one more boot. Returns `true` if the boot is new, even if its trace is left out as an
    /// outlier. Returns `false`, and changes nothing, if that boot was learned before. Boots are told apart by volume,
    /// host and time of creation; a boot without a volume counts as new.
    pub fn learn_one(&mut self, trace: &Trace) -> bool {
        let key = RecordedImage::of(&trace.creation);
        let new = || ImageKnowledge::new(&key, self.settings);
        let image = self.images.entry(key.clone()).or_insert_with(new);
        let is_new = !image.knows(&trace.creation);
        image.add(&trace.creation, trace);
        is_new
    }

    /// The knowledge of an image after learning these traces of it, the skipped traces, and the number of the others.
    fn learn_image(
        &self,
        data: &DataSet,
        group: &Range<usize>,
        threads: usize,
        mut tick: impl FnMut() -> Result<()>,
    ) -> Result<(RecordedImage, ImageKnowledge, Skipped, u64)> {
        let some = data.part(group.clone());
        let key = some.creations().first().map(RecordedImage::of).unwrap_or_default();
        let new = || ImageKnowledge::new(&key, self.settings);
        let mut image = self.images.get(&key).cloned().unwrap_or_else(new);
        let mut read = 0;
        let skipped = some.for_each(threads, |at, trace| {
            if let Ok(trace) = trace {
                read += 1;
                image.add(&some.creations()[at], &trace);
            }
            tick()
        })?;
        Ok((key, image, skipped, read))
    }

    /// Sets the map from the slices of an image's disk to layers. With it, plans are made for other images that have
    /// the same layers.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](headstart_block::ErrorKind) if nothing was learned of the image.
    pub fn set_layers(&mut self, key: &RecordedImage, layers: LayerMap) -> Result<()> {
        let image = self.images.get_mut(key);
        let image = image.ok_or_else(|| Error::new(headstart_block::ErrorKind::NotFound, "has no traces"))?;
        image.layers = Some(layers);
        Ok(())
    }

    /// Returns the images in the order of their keys, each with its knowledge.
    pub fn images(&self) -> impl ExactSizeIterator<Item = (&RecordedImage, &ImageKnowledge)> {
        self.images.iter()
    }

    /// Returns the knowledge of one image; `None` if nothing was learned of it.
    #[must_use]
    pub fn image(&self, key: &RecordedImage) -> Option<&ImageKnowledge> {
        self.images.get(key)
    }
}
