//! One run of training: earlier knowledge is read, new boots are added to it, plans are made from all of it, and the
//! plans are written and published.
//!
//! The steps are separate, because each may take long and the caller reports the time of each: [`TrainingRun::begin`],
//! [`TrainingRun::learn`], [`TrainingRun::learn_layers`], [`TrainingRun::plan`], [`TrainingRun::save`].

use crate::counted::{Counted, CountedBoots};
use crate::layer_map;
use crate::progress::reported;
use crate::published::{LeftOut, Publication, PublishedPlans, no_boots_of};
use crate::traces::nothing;
use headstart_block::exchange::ImageCounts;
use headstart_block::words::count;
use headstart_block::{Error, ErrorKind, FileSource, Result};
use headstart_image::export::OutputFile;
use headstart_image::named_image::NamedImage;
use headstart_image::progress::Progress;
use headstart_image::store_access::StoreAccess;
use headstart_plan::knowledge::{Knowledge, KnowledgeSettings, Learned};
use headstart_plan::layers::LayerMap;
use headstart_plan::train::{self, Plans, TrainConfig};
use headstart_trace::data_set::{DataSet, DataSetLimits, Skipped};
use std::path::{Path, PathBuf};

/// The boots to learn from, and the places of the results.
#[derive(Clone, Debug)]
pub struct TrainingSettings {
    /// A directory of traces, a data set of the FAST'26 layout, or one trace; `None` to learn from counts and earlier
    /// knowledge only.
    pub traces: Option<PathBuf>,
    /// The files or sockets from which the counts of trackers come. The caller reads them and gives the counts to
    /// [`TrainingRun::learn`].
    pub counts: Vec<PathBuf>,
    /// The file to write the plans to; `None` to write none.
    pub output: Option<PathBuf>,
    /// The file of knowledge: read first if it exists, and written again with the new boots added; `None` to start
    /// without knowledge and to write none.
    pub learned: Option<PathBuf>,
    /// Images whose boots are among the traces or counts. Their layers are learned too, for plans of other images.
    pub images: Vec<NamedImage>,
    /// Images with which the plans of their boots are published.
    pub publish: Vec<NamedImage>,
    /// The factor by which guests are assumed to be faster than when they were recorded; 0 and 1 change
    /// nothing.
    pub faster: u32,
    /// The settings of making plans.
    pub config: TrainConfig,
}

/// The outcome of [`TrainingRun::learn`]: the traces and counts that were learned from.
#[derive(Debug)]
pub struct LearnedBoots {
    /// The number of traces that were read.
    pub read: u64,
    /// The number of traces that had been learned before, and were not read again.
    pub known: u64,
    /// The results of learning from the counts of trackers: one for each tracker and each of the settings' images that
    /// it counted.
    pub counted: Vec<CountedBoots>,
    /// The traces that could not be read, and those that were sorted by time before learning, by reason.
    pub skipped: Skipped,
}

/// The outcome of [`TrainingRun::save`].
pub struct SavedTraining {
    /// The length of the file of plans in bytes; `None` if none was asked for.
    pub bytes: Option<u64>,
    /// The published plans.
    pub published: Vec<PublishedPlans>,
    /// The forms of images that got none.
    pub left_out: Vec<LeftOut>,
    /// The knowledge.
    pub knowledge: Knowledge,
}

/// A run of training. Its methods are called in this order: [`begin`](Self::begin), [`learn`](Self::learn),
/// [`learn_layers`](Self::learn_layers), [`plan`](Self::plan), [`save`](Self::save).
pub struct TrainingRun<'a> {
    settings: &'a TrainingSettings,
    stores: StoreAccess<'a>,
    learned_file: Option<OutputFile>,
    plans_file: Option<OutputFile>,
    targets: Vec<Publication<'a>>,
    knowledge: Knowledge,
}

impl<'a> TrainingRun<'a> {
    /// Checks the settings, finds the images to publish with, and reads the earlier knowledge. Also starts the files of
    /// the results, which appear at their paths only in [`save`](Self::save). So faults of the settings are found
    /// before the long work.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if settings do not go together, [`ErrorKind::Conflict`] if the earlier knowledge was
    /// learned with another [`TrainingSettings::faster`]; errors of a file or a store.
    pub fn begin(settings: &'a TrainingSettings, stores: StoreAccess<'a>) -> Result<Self> {
        headstart_plan::policy::by_name(&settings.config.policy)?;
        if let (Some(learned), Some(output)) = (&settings.learned, &settings.output)
            && learned == output
        {
            return Err(Error::invalid("is named both for the knowledge and for the plans")
                .about(output.display())
                .remedy("give `--learned` and `--output` a file each"));
        }
        if !settings.counts.is_empty() && settings.images.is_empty() && settings.publish.is_empty() {
            return Err(Error::invalid("a tracker knows images by numbers that only their manifests tell")
                .remedy("name the images with --image or --publish"));
        }
        let inputs: Vec<_> = settings.traces.iter().chain(&settings.counts).map(PathBuf::as_path).collect();
        let learned: Vec<_> = settings.learned.iter().map(PathBuf::as_path).chain(inputs.clone()).collect();
        let create = |path: &Option<PathBuf>, inputs: &[&Path]| {
            path.as_deref().map(|path| OutputFile::create(path, inputs)).transpose()
        };
        // The earlier knowledge is replaced on purpose.
        let (learned_file, plans_file) =
            (create(&settings.learned, &inputs)?, create(&settings.output, &learned)?);
        let targets = settings.publish.iter().map(|image| Publication::prepare(image, stores));
        let targets = targets.collect::<Result<_>>()?;
        let knowledge = knowledge(settings)?;
        Ok(Self { settings, stores, learned_file, plans_file, targets, knowledge })
    }

    /// Learns from the traces of the settings, and from `counts`: for each tracker the path that its counts came from,
    /// which errors name, and the counts themselves. Only counts of the images of the settings are used.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no boot to learn from, or a tracker counted none of the images; errors of
    /// reading the traces or a manifest; [`ErrorKind::Cancelled`] if the user asks the command to stop.
    pub fn learn(
        &mut self,
        counts: &[(&Path, Vec<ImageCounts>)],
        progress: &dyn Progress,
    ) -> Result<LearnedBoots> {
        let counted = self.counted(counts)?;
        let (learned, skipped) = self.learn_traces(progress)?;
        let counted = counted.into_iter().map(|counted| counted.learn(&mut self.knowledge)).collect();
        if self.knowledge.images().all(|(_, image)| image.traces() == 0) {
            let source = self.settings.traces.as_ref().or(self.settings.counts.first());
            let source = source.map_or(Path::new(""), PathBuf::as_path);
            return Err(no_boots(source, &self.knowledge, &skipped));
        }
        Ok(LearnedBoots { read: learned.read, known: learned.known, counted, skipped })
    }

    /// Learns from recorded boots.
    fn learn_traces(&mut self, progress: &dyn Progress) -> Result<(Learned, Skipped)> {
        let Some(traces) = &self.settings.traces else { return Ok((Learned::default(), Skipped::default())) };
        let set = DataSet::open(traces, &DataSetLimits::default())?;
        let mut skipped = set.skipped().clone();
        let knowledge = &mut self.knowledge;
        let learned = reported(progress, "reading traces", |each| knowledge.learn(&set, 0, each))?;
        skipped.add(&learned.skipped);
        Ok((learned, skipped))
    }

    /// The counts of trackers for the named images.
    fn counted(&self, counts: &[(&Path, Vec<ImageCounts>)]) -> Result<Vec<Counted>> {
        let forms = self.forms_to_publish_with();
        let named: Vec<&NamedImage> = self.settings.images.iter().chain(&forms).collect();
        let mut all = Vec::new();
        for (place, counts) in counts {
            let found = named.iter().map(|image| Counted::find(counts, image, self.stores));
            let found: Vec<Counted> = found.filter_map(Result::transpose).collect::<Result<_>>()?;
            if found.is_empty() {
                let names: Vec<_> = named.iter().map(|image| image.reference.to_string()).collect();
                let what = format!("has nothing of {}", names.join(", "));
                return Err(Error::new(ErrorKind::NotFound, what).about(place.display()).remedy(
                    "an image's disks are counted while they are attached to a swarm with a tracker",
                ));
            }
            all.extend(found);
        }
        Ok(all)
    }

    /// The images to publish with, and of a container's image all its forms.
    fn forms_to_publish_with(&self) -> Vec<NamedImage> {
        let forms = self.settings.publish.iter().zip(&self.targets).flat_map(|(named, target)| {
            let others = target.recorded().filter(|(_, reference)| **reference != named.reference);
            let others =
                others.map(|(_, reference)| NamedImage { name: String::new(), reference: reference.clone() });
            std::iter::once(named.clone()).chain(others)
        });
        forms.collect()
    }

    /// Learns which layer of its image each part of a disk comes from, so that plans can be made for other images that
    /// share these layers. Optimized images to publish with are left out: their layers tell nothing of other images.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if one of the images, or an image to publish with, has no boots that were learned;
    /// errors of opening an image.
    pub fn learn_layers(&mut self) -> Result<()> {
        for NamedImage { name, reference } in &self.settings.images {
            let (key, map) = layer_map::of_open(&self.stores.open(reference)?)?;
            let image = if name.is_empty() { &key.image } else { name };
            if !set_layers(&mut self.knowledge, image, &map)? {
                return Err(no_boots_of(image, reference));
            }
        }
        for target in &self.targets {
            target.check(&self.knowledge)?;
            for (name, reference) in target.recorded() {
                if self.knowledge.images().any(|(known, _)| known.entrypoint_of(name).is_some()) {
                    let (_, map) = layer_map::of_open(&self.stores.open(reference)?)?;
                    set_layers(&mut self.knowledge, name, &map)?;
                }
            }
        }
        Ok(())
    }

    /// Makes the plans of all images in the knowledge.
    ///
    /// # Errors
    /// As [`train::all`]; [`ErrorKind::Cancelled`] if the user asks the command to stop.
    pub fn plan(&self, progress: &dyn Progress) -> Result<Plans> {
        reported(progress, "making plans", |each| train::all(&self.knowledge, &self.settings.config, each))
    }

    /// Writes the knowledge and the plans to their files, and publishes the plans.
    ///
    /// # Errors
    /// Errors of writing a file, after which nothing is published; those of
    /// [`Publication::publish`](crate::published::Publication::publish) for the first image that fails. The files are
    /// then complete, and the plans of the images before it are published.
    pub fn save(self, plans: &Plans) -> Result<SavedTraining> {
        let Self { stores, learned_file, plans_file, targets, knowledge, .. } = self;
        if let Some(file) = learned_file {
            file.fill(|out| knowledge.write(out))?;
        }
        let bytes = plans_file.map(|file| file.fill(|out| plans.write(out))).transpose()?;
        let (mut published, mut left_out) = (Vec::new(), Vec::new());
        for target in &targets {
            let done = target.publish(plans, &knowledge, stores)?;
            published.extend(done.0);
            left_out.extend(done.1);
        }
        Ok(SavedTraining { bytes, published, left_out, knowledge })
    }
}

/// Notes the layers of the disk of an image that boots call so. `false` if there are no boots of that name.
fn set_layers(knowledge: &mut Knowledge, image: &str, map: &LayerMap) -> Result<bool> {
    let known = knowledge.images().map(|(known, _)| known);
    let keys: Vec<_> = known.filter(|known| known.entrypoint_of(image).is_some()).cloned().collect();
    keys.iter().try_for_each(|key| knowledge.set_layers(key, map.clone()))?;
    Ok(!keys.is_empty())
}

/// The earlier knowledge.
fn knowledge(settings: &TrainingSettings) -> Result<Knowledge> {
    let faster = settings.faster;
    let Some(path) = settings.learned.as_ref().filter(|path| path.exists()) else {
        return Ok(Knowledge::new(KnowledgeSettings { faster, ..KnowledgeSettings::default() }));
    };
    let knowledge = Knowledge::read(&FileSource::open(path)?).map_err(|e| e.about(path.display()))?;
    let before = knowledge.settings().faster;
    if before != faster {
        let cause = format!("was learned from guests taken as {before} times as fast");
        let error = Error::new(ErrorKind::Conflict, cause).about(path.display());
        return Err(error.remedy(format!("give --faster {before}, or another file")));
    }
    Ok(knowledge)
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
