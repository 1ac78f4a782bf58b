//! From what is known of images to plans.

use crate::bandwidth::{Bandwidth, Bin};
use crate::evaluate::Misses;
use crate::knowledge::{ImageKey, ImageKnowledge, Knowledge, OnProgress};
use crate::plans::ImagePlans;
use crate::policy::{Objective, by_name};
use crate::zero_shot::{Metadata, Reason};
use headstart_block::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How plans are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The policy's name ([`crate::policy::NAMES`]).
    pub policy: String,
    /// What is to be best.
    pub objective: Objective,
    /// Bandwidths to plan for.
    pub rates: Vec<Bandwidth>,
    /// Of policies that draw.
    pub seed: u64,
    /// On so many threads; 0: as many as there are processors. The plans do not depend on it.
    pub threads: usize,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            policy: "vmt-min".to_owned(),
            objective: Objective::Boot { round_trip: 20_000_000, misses: Misses::RangeThenRest, hot: true },
            rates: Bin::ALL
                .iter()
                .flat_map(|bin| bin.representatives())
                .map(|rate| Bandwidth::mb(*rate))
                .collect(),
            seed: 1,
            threads: 0,
        }
    }
}

/// The plans of one image, from its own traces.
///
/// # Errors
/// [`ErrorKind::Invalid`](headstart_block::ErrorKind) for a policy that there is none of, or that makes no plans.
pub fn image(_image: &ImageKnowledge, recipe: &Recipe) -> Result<ImagePlans> {
    by_name(&recipe.policy)?;
    Ok(ImagePlans { reason: Reason::None, groups: Vec::new() })
}

/// The plans of all images, and those for images like them.
///
/// # Errors
/// As [`image`]; what `progress` reports.
pub fn all(_knowledge: &Knowledge, recipe: &Recipe, _progress: OnProgress<'_>) -> Result<Plans> {
    by_name(&recipe.policy)?;
    Ok(Plans::default())
}

/// What training makes of a data set.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    images: BTreeMap<ImageKey, Arc<ImagePlans>>,
}

impl Plans {
    /// The images that have plans of their own.
    pub fn images(&self) -> impl Iterator<Item = (&ImageKey, &Arc<ImagePlans>)> {
        self.images.iter()
    }

    /// The plans for a disk of this image and size and with this metadata: the image's own, else those of images
    /// like it, else none.
    #[must_use]
    pub fn choose(&self, key: &ImageKey, _metadata: &Metadata) -> Arc<ImagePlans> {
        let none = || Arc::new(ImagePlans { reason: Reason::None, groups: Vec::new() });
        self.images.get(key).cloned().unwrap_or_else(none)
    }
}
