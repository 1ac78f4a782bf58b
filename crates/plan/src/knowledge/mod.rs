//! What is learned of a data set, image by image.

use crate::condensed::Condensed;
use crate::plans::ImagePlans;
use crate::preprocess::{self, Dropped, ImageModel};
use crate::train::Recipe;
use crate::vocabulary::Vocabulary;
use crate::zero_shot::{Metadata, Reason};
use headstart_block::{Error, ReadAt, Result};
use headstart_trace::data_set::Skipped;
use headstart_trace::{Creation, DataSet};
use std::collections::BTreeMap;
use std::io::Write;

/// What plans are made for: an image at a size of disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageKey {
    /// What tells the image from others ([`Creation::image_id`]).
    pub image: String,
    /// Bytes of the disk.
    pub size: u64,
}

impl ImageKey {
    /// Of a creation.
    #[must_use]
    pub fn of(creation: &Creation) -> Self {
        Self { image: creation.image_id().to_owned(), size: creation.size }
    }
}

/// How to learn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Outliers, categories, groups.
    pub model: preprocess::Settings,
    /// So many traces of an image make its groups; further ones join the nearest.
    pub founding: usize,
    /// Guests are taken to be so many times faster than recorded.
    pub faster: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { model: preprocess::Settings::default(), founding: 256, faster: 1 }
    }
}

/// What is learned of one image.
#[derive(Clone, Debug)]
pub struct ImageKnowledge {
    metadata: Metadata,
    vocabulary: Vocabulary,
    model: ImageModel,
    traces: u64,
}

impl ImageKnowledge {
    /// What is known of it from its creations.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its blocks.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// How many traces were learned from; without the outliers.
    #[must_use]
    pub fn traces(&self) -> u64 {
        self.traces
    }

    /// The outliers.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.model.dropped()
    }

    /// Its groups, with the traces that are kept of them. Made anew at each call: it unpacks the traces.
    #[must_use]
    pub fn model(&self) -> ImageModel {
        self.model.clone()
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pieces that are done: traces, or plans.
    pub done: u64,
    /// Of so many.
    pub all: u64,
}

/// Hears of progress, and may end it by an error.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress) -> Result<()>;

/// What became of the traces of a data set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// Traces that were read.
    pub read: u64,
    /// Traces that were known already, and not read again.
    pub known: u64,
    /// What could not be read, or had to be mended.
    pub skipped: Skipped,
}

/// What is learned of a data set; see the module's head.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    settings: Settings,
    images: BTreeMap<ImageKey, ImageKnowledge>,
}

impl Knowledge {
    /// That knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, images: BTreeMap::new() }
    }

    /// Learns from the traces of a data set that it does not know yet, on so many threads (0: as many as there are
    /// processors). The result does not depend on their number.
    ///
    /// Traces that cannot be read are skipped and counted.
    ///
    /// # Errors
    /// What `progress` reports; then nothing was learned.
    pub fn learn(&mut self, data: &DataSet, threads: usize, progress: OnProgress<'_>) -> Result<Learned> {
        let mut learned = Learned::default();
        let mut images: BTreeMap<ImageKey, (ImageKnowledge, Vec<Condensed>)> = BTreeMap::new();
        let all = data.len() as u64;
        learned.skipped = data.for_each(threads, |at, trace| {
            progress(Progress { done: at as u64 + 1, all })?;
            let Ok(trace) = trace else { return Ok(()) };
            learned.read += 1;
            let key = ImageKey::of(&trace.creation);
            let empty = || ImageKnowledge {
                metadata: Metadata::of(&trace.creation),
                vocabulary: Vocabulary::new(trace.creation.size),
                model: ImageModel::learn(Vec::new(), self.settings.model),
                traces: 0,
            };
            let (image, traces) = images.entry(key).or_insert_with(|| (empty(), Vec::new()));
            let mut condensed = Condensed::of(&trace, &mut image.vocabulary);
            if self.settings.faster > 1 {
                condensed = condensed.faster(self.settings.faster, &image.vocabulary);
            }
            traces.push(condensed);
            Ok(())
        })?;
        for (key, (mut image, traces)) in images {
            image.model = ImageModel::learn(traces, self.settings.model);
            image.traces = image.model.groups().iter().map(|group| u64::from(group.statistics.traces)).sum();
            self.images.insert(key, image);
        }
        Ok(learned)
    }

    /// How it learns.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The images, in the order of their keys.
    pub fn images(&self) -> impl Iterator<Item = (&ImageKey, &ImageKnowledge)> {
        self.images.iter()
    }

    /// One of them.
    #[must_use]
    pub fn image(&self, key: &ImageKey) -> Option<&ImageKnowledge> {
        self.images.get(key)
    }

    /// The plans for a disk that is created, by the recipe: of its own image, else of images like it
    /// ([`zero_shot`](crate::zero_shot)), else none.
    ///
    /// Training is done anew at each call; for many creations, see [`train::all`](crate::train::all) and
    /// [`Plans::choose`](crate::train::Plans::choose).
    ///
    /// # Errors
    /// As [`train::all`](crate::train::all).
    pub fn plans_for(&self, creation: &Creation, recipe: &Recipe) -> Result<ImagePlans> {
        match self.images.get(&ImageKey::of(creation)) {
            Some(image) => crate::train::image(image, recipe),
            None => Ok(ImagePlans { reason: Reason::None, groups: Vec::new() }),
        }
    }

    /// Writes it as a file.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, _out: &mut dyn Write) -> Result<()> {
        Err(Error::unsupported("is not written yet"))
    }

    /// Reads what [`Knowledge::write`] wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](headstart_block::ErrorKind) where it is damaged, `Unsupported` where it is of a newer
    /// version.
    pub fn read(_source: &dyn ReadAt) -> Result<Self> {
        Err(Error::unsupported("is not read yet"))
    }
}
