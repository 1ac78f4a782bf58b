//! Plans of one image alone, for the file that travels with it.

use super::{Plans, Provenance};
use crate::knowledge::{ImageKnowledge, Knowledge, RecordedImage};
use crate::plans::{GroupPlans, ImagePlans};
use crate::preprocess::Dropped;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most entrypoints of an image whose plans travel with it; those with the most traces.
const ENTRYPOINTS_MAX: usize = 16;

impl Plans {
    /// Returns the plans of the image `key` alone, of all its starts, renamed to `name`, without anything learned from
    /// other images. `knowledge` must be that from which these plans were made; the provenance of the result has the
    /// numbers of traces of this image in it. `None` if the image has no plans from its own traces.
    #[must_use]
    pub fn only(&self, key: &RecordedImage, knowledge: &Knowledge, name: &RecordedImage) -> Option<Self> {
        let starts = self.starts_of(&key.image);
        let has_plans = |(known, _, plans): &(&RecordedImage, &str, &Arc<ImagePlans>)| {
            known.size == key.size && !plans.groups.is_empty()
        };
        let mut starts: Vec<_> = starts.filter(has_plans).collect();
        let traces = |known: &RecordedImage| knowledge.image(known).map_or(0, ImageKnowledge::traces);
        starts.sort_by_key(|(known, ..)| Reverse(traces(known)));
        starts.truncate(ENTRYPOINTS_MAX);
        let mut provenance = Provenance { traces: 0, dropped: Dropped::default(), ..self.provenance.clone() };
        let mut images = BTreeMap::new();
        for (known, entrypoint, plans) in starts {
            let Some(image) = knowledge.image(known) else { continue };
            provenance.traces = provenance.traces.saturating_add(image.traces());
            provenance.dropped.add(&image.dropped());
            let name = RecordedImage::of_start(&name.image, entrypoint, name.size);
            images.insert(name, Arc::clone(plans));
        }
        (!images.is_empty()).then(|| Self::alone(provenance, images))
    }

    /// Makes a set of plans for one image alone, called `name`, from the plans that were chosen for the image.
    /// `provenance` is that of the set of plans that `chosen` comes from; the result has its settings, and the number
    /// of traces of `chosen`.
    #[must_use]
    pub fn of_chosen(chosen: ImagePlans, provenance: &Provenance, name: &RecordedImage) -> Self {
        let traces = chosen.groups.iter().map(|group| group.traces).sum();
        let provenance = Provenance { traces, dropped: Dropped::default(), ..provenance.clone() };
        let mut starts: BTreeMap<String, Vec<GroupPlans>> = BTreeMap::new();
        for mut group in chosen.groups {
            starts.entry(std::mem::take(&mut group.entrypoint)).or_default().push(group);
        }
        let named = starts.into_iter().map(|(entrypoint, groups)| {
            let plans = ImagePlans { reason: chosen.reason, groups };
            (RecordedImage::of_start(&name.image, &entrypoint, name.size), Arc::new(plans))
        });
        Self::alone(provenance, named.collect())
    }

    fn alone(provenance: Provenance, images: BTreeMap<RecordedImage, Arc<ImagePlans>>) -> Self {
        Self { provenance, images, merged: Vec::new(), tiers: BTreeMap::new(), layers: BTreeMap::new() }
    }

    /// Returns the key of the image without an entrypoint, and the plans of all its starts, if the set has exactly one
    /// image, as a set that is published with an image has; otherwise `None`.
    #[must_use]
    pub fn sole(&self) -> Option<(RecordedImage, Arc<ImagePlans>)> {
        let first = self.images.keys().next()?;
        let image = first.without_entrypoint();
        let is_same =
            |key: &RecordedImage| key.size == image.size && key.entrypoint_of(&image.image).is_some();
        if !self.images.keys().all(is_same) {
            return None;
        }
        let plans = self.all_starts(&image)?;
        Some((image, plans))
    }
}
