//! Plans of one image alone, for the file that travels with it.

use super::{Plans, Provenance};
use crate::knowledge::{ImageKnowledge, RecordedImage};
use crate::plans::ImagePlans;
use crate::preprocess::Dropped;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Plans {
    /// Returns the plans of the image `key` alone, renamed to `name`, without anything learned from other images.
    /// `image` must be the knowledge that these plans were made from; the provenance of the result has the numbers of
    /// traces of this knowledge. `None` if the image has no plans from its own traces.
    #[must_use]
    pub fn only(&self, key: &RecordedImage, image: &ImageKnowledge, name: RecordedImage) -> Option<Self> {
        let plans = self.images.get(key).filter(|plans| !plans.groups.is_empty())?;
        let mut provenance = self.provenance.clone();
        (provenance.traces, provenance.dropped) = (image.traces(), image.dropped());
        Some(Self::alone(provenance, name, Arc::clone(plans)))
    }

    /// Makes a set of plans for one image alone, called `name`, from the plans that were chosen for the image.
    /// `provenance` is that of the set of plans that `chosen` comes from; the result has its settings, and the number
    /// of traces of `chosen`.
    #[must_use]
    pub fn of_chosen(chosen: ImagePlans, provenance: &Provenance, name: RecordedImage) -> Self {
        let traces = chosen.groups.iter().map(|group| group.traces).sum();
        let provenance = Provenance { traces, dropped: Dropped::default(), ..provenance.clone() };
        Self::alone(provenance, name, Arc::new(chosen))
    }

    fn alone(provenance: Provenance, name: RecordedImage, plans: Arc<ImagePlans>) -> Self {
        Self {
            provenance,
            images: BTreeMap::from([(name, plans)]),
            merged: Vec::new(),
            tiers: BTreeMap::new(),
            layers: BTreeMap::new(),
        }
    }

    /// Returns the image and its plans if the set has exactly one image, as a set that is published with an image has;
    /// otherwise `None`.
    #[must_use]
    pub fn sole(&self) -> Option<(&RecordedImage, &Arc<ImagePlans>)> {
        self.images.iter().next().filter(|_| self.images.len() == 1)
    }
}
