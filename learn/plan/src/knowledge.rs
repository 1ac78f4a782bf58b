//! The knowledge of a data set, image by image; it can be written to a file, and learn more later.
//!
//! # The data that is kept of an image
//!
//! An image has its blocks, the metadata of its creations ([`Profile`](crate::zero_shot::Profile)), and
//! fingerprints of the traces that were read. The first traces of an image, 256 of them, *found* it: until then
//! they are all kept, packed ([`Packed`](crate::compact_trace::Packed)), and its groups are made again from all of them
//! whenever they are wanted. Then the groups are final: each has its statistics and a few traces, and a further
//! trace goes to the nearest group of its category. So:
//!
//! * The knowledge is a function of the traces in their order: it does not matter if they come at once or day by
//!   day, nor on how many threads they are read. A further day costs only that day's traces: the others are not
//!   read again, and need not even be there any more.
//! * Memory does not grow with the traces of an image: the data of one is bounded.
//! * An image that had too few traces to make groups of, or none but outliers, makes them as soon as it has enough.
//!
//! # Threads
//!
//! Images are learned side by side, the largest first. One that has more than its share of all traces is learned by
//! itself, while all threads read.

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

/// The settings of learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnowledgeSettings {
    /// Outliers, categories, groups.
    pub model: preprocess::ModelSettings,
    /// The number of traces of an image that make its groups; further ones join the nearest.
    pub founding: usize,
    /// The factor by which guests are taken to be faster than recorded.
    pub faster: u32,
}

impl Default for KnowledgeSettings {
    /// Settings with 256 founding traces; of these and of later ones, 32 a group are kept.
    fn default() -> Self {
        let model = preprocess::ModelSettings { kept_max: 32, ..preprocess::ModelSettings::default() };
        Self { model, founding: 256, faster: 1 }
    }
}

/// The most traces that found an image: a file of knowledge may hold that number for one image.
pub const FOUNDING_MAX: usize = 4096;

/// The most traces that are compared with each other, pair by pair.
pub const COMPARED_MAX: usize = 2048;

/// The outcome of learning the traces of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Traces that were read.
    pub read: u64,
    /// Traces that were learned before, and not read again.
    pub known: u64,
    /// Traces that could not be read, or had to be mended.
    pub skipped: Skipped,
}

/// The knowledge of a data set; see the module's head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knowledge {
    settings: KnowledgeSettings,
    images: BTreeMap<RecordedImage, ImageKnowledge>,
}

impl Knowledge {
    /// Makes empty knowledge; the settings are limited to [`FOUNDING_MAX`] and [`COMPARED_MAX`].
    #[must_use]
    pub fn new(mut settings: KnowledgeSettings) -> Self {
        settings.founding = settings.founding.min(FOUNDING_MAX);
        settings.model.compared_max = settings.model.compared_max.min(COMPARED_MAX);
        Self { settings, images: BTreeMap::new() }
    }

    /// The settings of learning.
    #[must_use]
    pub fn settings(&self) -> &KnowledgeSettings {
        &self.settings
    }

    /// Learns from the traces of a data set that it does not know yet, on `threads` threads (0: the number of
    /// processors). The result does not depend on their number.
    ///
    /// Traces that cannot be read are skipped and counted; they are tried again the next time.
    ///
    /// # Errors
    /// Errors of `progress`; then nothing was learned.
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

    /// Learns from one more boot, unless it is known. Returns `true` if it was not.
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

    /// Sets the layer that each part of an image's disk comes from, so that images with the same layers can start with
    /// the knowledge of those.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](headstart_block::ErrorKind) for an unknown image.
    pub fn set_layers(&mut self, key: &RecordedImage, layers: LayerMap) -> Result<()> {
        let image = self.images.get_mut(key);
        let image = image.ok_or_else(|| Error::new(headstart_block::ErrorKind::NotFound, "has no traces"))?;
        image.layers = Some(layers);
        Ok(())
    }

    /// The images, in the order of their keys.
    pub fn images(&self) -> impl ExactSizeIterator<Item = (&RecordedImage, &ImageKnowledge)> {
        self.images.iter()
    }

    /// The knowledge of one image.
    #[must_use]
    pub fn image(&self, key: &RecordedImage) -> Option<&ImageKnowledge> {
        self.images.get(key)
    }
}
