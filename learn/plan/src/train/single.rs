//! Plans of one image alone, for the file that travels with it.

use super::{Plans, Provenance};
use crate::knowledge::{ImageKnowledge, RecordedImage};
use crate::plans::ImagePlans;
use crate::preprocess::Dropped;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Plans {
    /// The plans of the image `key` alone, under the name `name`, with their origin: `image` is the knowledge
    /// of it. The knowledge of others leaves no mark in them. `None` if there are none.
    #[must_use]
    pub fn only(&self, key: &RecordedImage, image: &ImageKnowledge, name: RecordedImage) -> Option<Self> {
        let plans = self.images.get(key).filter(|plans| !plans.groups.is_empty())?;
        let mut provenance = self.provenance.clone();
        (provenance.traces, provenance.dropped) = (image.traces(), image.dropped());
        Some(Self::alone(provenance, name, Arc::clone(plans)))
    }

    /// Plans that were chosen for an image, alone, under the name `name`; `provenance` is that of the file that they
    /// were chosen from.
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

    /// The image and its plans if they are of only one image, as in a file that travels with an image.
    #[must_use]
    pub fn sole(&self) -> Option<(&RecordedImage, &Arc<ImagePlans>)> {
        self.images.iter().next().filter(|_| self.images.len() == 1)
    }
}
