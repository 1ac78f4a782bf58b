//! The results of training a data set.

use super::{TrainConfig, Trained};
use crate::bandwidth::Bandwidth;
use crate::knowledge::{self, Knowledge, RecordedImage};
use crate::layers::{LayerMap, LayerPlans, join};
use crate::plans::{GroupPlans, ImagePlans};
use crate::policy::Objective;
use crate::preprocess::Dropped;
use crate::zero_shot::{ChoiceReason, ChoiceTiers, Metadata, select};
use headstart_block::{Digest, exact};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// The settings that a set of plans was made with, and the number of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// The name of the policy that made the plans.
    pub policy: String,
    /// The quantity that the plans optimize.
    pub objective: Objective,
    /// The bandwidths that plans were made for, in bytes a second, ascending.
    pub rates: Vec<u64>,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The settings with which the traces were learned.
    pub learning: knowledge::KnowledgeSettings,
    /// The number of traces that the plans were made from.
    pub traces: u64,
    /// The number of traces that were left out as outliers, by reason.
    pub dropped: Dropped,
}

/// The result of training: the plans of each image, and plans for images that are similar to these or share
/// layers with them.
#[derive(Clone, Debug, PartialEq)]
pub struct Plans {
    pub(crate) provenance: Provenance,
    pub(crate) images: BTreeMap<RecordedImage, Arc<ImagePlans>>,
    /// The plans of several images together.
    pub(crate) merged: Vec<Arc<[GroupPlans]>>,
    /// The tiers, by key ([`ChoiceReason::key`]): the number of traces, and the source of the plans.
    pub(crate) tiers: BTreeMap<String, (u64, Whose)>,
    pub(crate) layers: BTreeMap<Digest, LayerPlans>,
}

/// The source of a tier's plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Image(RecordedImage),
    Merged(usize),
}

/// The least share of the disk that known layers must have to be better than similar images: half.
pub(crate) const LAYERS_MIN: f64 = 0.5;

impl Plans {
    /// Returns the settings that the plans were made with, and the number of traces.
    #[must_use]
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Returns the images that were trained, with their plans. An image without usable traces has no groups.
    pub fn images(&self) -> impl ExactSizeIterator<Item = (&RecordedImage, &Arc<ImagePlans>)> {
        self.images.iter()
    }

    /// The plans of all starts of an image.
    pub(super) fn all_starts(&self, key: &RecordedImage) -> Option<Arc<ImagePlans>> {
        let starts: Vec<_> =
            self.starts_of(&key.image).filter(|(known, ..)| known.size == key.size).collect();
        match &starts[..] {
            [] => None,
            [(_, "", plans)] => Some(Arc::clone(plans)),
            _ => {
                let starts = starts.iter().map(|(_, entrypoint, plans)| (*entrypoint, Arc::clone(plans)));
                Some(Arc::new(ImagePlans::of_starts(starts)))
            }
        }
    }

    /// The keys of an image, each with its entrypoint and its plans.
    pub(super) fn starts_of<'a>(
        &'a self,
        image: &'a str,
    ) -> impl Iterator<Item = (&'a RecordedImage, &'a str, &'a Arc<ImagePlans>)> {
        let first = RecordedImage { image: image.to_owned(), size: 0 };
        let named = self.images.range(first..).take_while(move |(key, _)| key.image.starts_with(image));
        named.filter_map(move |(key, plans)| Some((key, key.entrypoint_of(image)?, plans)))
    }

    /// Returns the plans for a disk of the image and size `key` with the metadata `metadata`: the image's own plans,
    /// otherwise those of the same image on disks of other sizes or of similar images, otherwise [`ImagePlans::none`].
    #[must_use]
    pub fn choose(&self, key: &RecordedImage, metadata: &Metadata) -> Arc<ImagePlans> {
        self.choose_layered(key, metadata, None)
    }

    /// Chooses plans like [`Plans::choose`]. If `map` is given, plans can also be made from the layers of the disk.
    ///
    /// The image's own plans are preferred. Plans of layers come next if layers that have plans make up at least half
    /// of the disk's data: two disks that share a layer have the same bytes at the same offsets, which equal metadata
    /// cannot promise. Then come the same image on disks of other sizes and similar images, and last the plans of
    /// layers that make up less than half.
    #[must_use]
    pub fn choose_layered(
        &self,
        key: &RecordedImage,
        metadata: &Metadata,
        map: Option<&LayerMap>,
    ) -> Arc<ImagePlans> {
        let Ok(plans) = choose(self, key, metadata, map);
        plans
    }
}

/// The place of plans: in memory, or in a file.
pub(crate) trait PlanCatalog {
    type Error;

    /// The plans of an image of which there were traces, of all its starts together.
    fn own(&self, key: &RecordedImage) -> Result<Option<Arc<ImagePlans>>, Self::Error>;

    /// The source of a tier's plans by the tier's key, and their number of traces.
    fn tier(&self, key: &str) -> Option<(usize, u64)>;

    fn groups(&self, whose: usize) -> Result<Vec<GroupPlans>, Self::Error>;

    /// `true` if something is known of a layer.
    fn knows(&self, layer: &Digest) -> bool;

    fn layer(&self, layer: &Digest) -> Result<Option<LayerPlans>, Self::Error>;
}

/// The choice of [`Plans::choose_layered`].
pub(crate) fn choose<S: PlanCatalog>(
    catalog: &S,
    key: &RecordedImage,
    metadata: &Metadata,
    map: Option<&LayerMap>,
) -> Result<Arc<ImagePlans>, S::Error> {
    if let Some(own) = catalog.own(key)?.filter(|own| own.reason == ChoiceReason::Trained) {
        return Ok(own);
    }
    let known = map.map_or(0.0, |map| map.share(|layer| catalog.knows(layer)));
    if let Some(map) = map.filter(|_| known >= LAYERS_MIN)
        && let Some(plans) = of_layers(catalog, map)?
    {
        return Ok(Arc::new(plans));
    }
    if let Some((reason, whose)) = select(&key.image, metadata, |key| catalog.tier(key)) {
        return Ok(Arc::new(ImagePlans { reason, groups: catalog.groups(whose)? }));
    }
    let layers = map.filter(|_| known > 0.0).map(|map| of_layers(catalog, map)).transpose()?.flatten();
    Ok(Arc::new(layers.unwrap_or_else(ImagePlans::none)))
}

/// The plans from the knowledge of the layers of a disk.
fn of_layers<S: PlanCatalog>(catalog: &S, map: &LayerMap) -> Result<Option<ImagePlans>, S::Error> {
    let mut known = Vec::new();
    for digest in map.layers() {
        if let Some(layer) = catalog.layer(digest)? {
            known.push((*digest, layer));
        }
    }
    let count = |number: usize| exact::<u32>(number, "the layers of a map have numbers of 32 bits");
    let reason = ChoiceReason::Layers { known: count(known.len()), all: count(map.layers().len()) };
    let group = join(map, known.iter().map(|(digest, layer)| (*digest, layer)));
    Ok(group.map(|group| ImagePlans { reason, groups: vec![group] }))
}

impl PlanCatalog for Plans {
    type Error = Infallible;

    fn own(&self, key: &RecordedImage) -> Result<Option<Arc<ImagePlans>>, Infallible> {
        Ok(self.all_starts(key))
    }

    fn tier(&self, key: &str) -> Option<(usize, u64)> {
        let (traces, whose) = self.tiers.get(key)?;
        Some(match whose {
            Whose::Image(key) => (self.images.range(..key).count(), *traces),
            Whose::Merged(at) => (self.images.len() + at, *traces),
        })
    }

    fn groups(&self, whose: usize) -> Result<Vec<GroupPlans>, Infallible> {
        let merged = || self.merged.get(whose.checked_sub(self.images.len())?).map(|groups| groups.to_vec());
        let of_image = self.images.values().nth(whose).map(|image| image.groups.clone());
        Ok(of_image.or_else(merged).unwrap_or_default())
    }

    fn knows(&self, layer: &Digest) -> bool {
        self.layers.contains_key(layer)
    }

    fn layer(&self, layer: &Digest) -> Result<Option<LayerPlans>, Infallible> {
        Ok(self.layers.get(layer).cloned())
    }
}

/// The builder of the results of training.
pub(super) struct Builder {
    plans: Plans,
    /// The merged group of each choice of images.
    choices: BTreeMap<BTreeSet<RecordedImage>, usize>,
}

impl Builder {
    pub(super) fn new(
        config: &TrainConfig,
        rates: &[Bandwidth],
        knowledge: &Knowledge,
        choices: Vec<BTreeSet<RecordedImage>>,
        merged: Vec<Option<GroupPlans>>,
    ) -> Self {
        let provenance = Provenance {
            policy: config.policy.clone(),
            objective: config.objective,
            rates: rates.iter().map(|rate| rate.bytes()).collect(),
            seed: config.seed,
            learning: *knowledge.settings(),
            traces: 0,
            dropped: Dropped::default(),
        };
        let plans = Plans {
            provenance,
            images: BTreeMap::new(),
            merged: merged.into_iter().map(|group| group.into_iter().collect()).collect(),
            tiers: BTreeMap::new(),
            layers: BTreeMap::new(),
        };
        Self { plans, choices: choices.into_iter().zip(0..).collect() }
    }

    pub(super) fn layers(&mut self) -> &mut BTreeMap<Digest, LayerPlans> {
        &mut self.plans.layers
    }

    pub(super) fn image(&mut self, key: &RecordedImage, trained: &Trained) {
        let Provenance { traces, dropped, .. } = &mut self.plans.provenance;
        *traces = traces.saturating_add(trained.traces);
        dropped.add(&trained.dropped);
        let plans = ImagePlans::of_own(trained.groups.clone());
        self.plans.images.insert(key.clone(), Arc::new(plans));
    }

    pub(super) fn finish(mut self, tiers: &ChoiceTiers) -> Plans {
        for (key, tier) in tiers.iter() {
            let whose = match (self.choices.get(&tier.images), tier.images.first()) {
                (Some(at), _) => Whose::Merged(*at),
                (None, Some(only)) => Whose::Image(only.clone()),
                (None, None) => continue,
            };
            self.plans.tiers.insert(key.clone(), (tier.traces, whose));
        }
        self.plans
    }
}
