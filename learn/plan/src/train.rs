//! Training: from the knowledge of images to plans.
//!
//! Each image gets plans for its largest groups: one plan for each group and each requested bandwidth. An image without
//! traces gets plans that are made from similar images ([`zero_shot`](crate::zero_shot)): the reads of these images are
//! counted together, block by block, by the block's number on the disk. Such plans are made once for each set of
//! similar images that can be chosen, so that choosing plans for a disk is only a lookup ([`Plans::choose`]).
//!
//! The same knowledge and configuration give the same plans, with any number of threads.

mod lookup;
mod merged;
mod plans;
mod single;
#[cfg(test)]
mod tests;

pub(crate) use plans::{PlanCatalog, Whose, choose};
pub use plans::{Plans, Provenance};

use crate::bandwidth::{Bandwidth, Bin};
use crate::block_table::BlockTable;
use crate::evaluate::{BootEvaluator, BootLink, Evaluator, Misses};
use crate::knowledge::{ImageKnowledge, Knowledge, OnProgress, RecordedImage, TaskProgress};
use crate::layers;
use crate::plans::{Centroid, FirstRead, GroupPlans, ImagePlans, RatedPlan, named};
use crate::policy::thinkahead::ThinkAhead;
use crate::policy::{Aim, DEFAULT, Objective, Policy, Proposal, Training, Weights, by_name};
use crate::preprocess::{Dropped, Group, ImageModel};
use crate::tasks;
use crate::zero_shot::ChoiceTiers;
use headstart_block::random::Random;
use headstart_block::{Error, Result, exact};
use merged::Summary;
use plans::Builder;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The maximum number of groups of an image that plans are made for; the largest are chosen. Groups with less than a
/// fiftieth of the image's traces get no plans either.
pub const GROUPS_MAX: usize = 8;

/// The least share of the image's traces of a group with plans: one in this number.
const SHARE_MIN: u64 = 50;

/// The number of traces on which the score of a plan is measured.
const JUDGED_MAX: usize = 10;

/// The settings for training.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainConfig {
    /// The name of the policy that makes the plans, one of [`crate::policy::NAMES`].
    pub policy: String,
    /// The quantity that the plans are to optimize.
    pub objective: Objective,
    /// The bandwidths to make plans for, at least one.
    pub rates: Vec<Bandwidth>,
    /// The seed of policies that use random numbers; the same seed gives the same plans.
    pub seed: u64,
    /// The number of threads; 0 for the number of processors. The plans do not depend on it.
    pub threads: usize,
}

impl Default for TrainConfig {
    /// Settings with the default policy ([`DEFAULT`]), for the delay of a boot over a link with a round trip of 20 ms,
    /// and for the bandwidths of all bins ([`Bin::representatives`]).
    fn default() -> Self {
        let rates = Bin::ALL.iter().flat_map(|bin| bin.representatives());
        Self {
            policy: DEFAULT.to_owned(),
            objective: Objective::Boot { round_trip: 20_000_000, misses: Misses::RangeThenRest, hot: true },
            rates: rates.map(|rate| Bandwidth::mb(*rate)).collect(),
            seed: 1,
            threads: 0,
        }
    }
}

/// Makes the plans of one image from its own traces alone, even if there are few. Without usable traces, the result
/// has no groups.
///
/// # Errors
/// [`ErrorKind::Invalid`](headstart_block::ErrorKind) if the policy is unknown or makes no plans, or if there
/// is no bandwidth to plan for.
pub fn image(image: &ImageKnowledge, config: &TrainConfig) -> Result<ImagePlans> {
    let trainer = Trainer::new(config)?;
    Ok(ImagePlans::of_own(trainer.groups(image.block_table(), &image.model())))
}

/// Makes the plans of all images in `knowledge`, and plans for further images that are similar to them. Progress
/// counts images, and sets of similar images that get common plans.
///
/// # Errors
/// Those of [`image`], and errors of `progress`.
pub fn all(knowledge: &Knowledge, config: &TrainConfig, progress: OnProgress<'_>) -> Result<Plans> {
    let trainer = Trainer::new(config)?;
    let threads = tasks::threads(config.threads);
    let mut images: Vec<_> = knowledge.images().collect();
    images.sort_by_key(|(_, image)| Reverse(image.traces()));
    let tiers = tiers(knowledge);
    let choices = choices(&tiers);
    let mut counted = TaskProgress { done: 0, all: (images.len() + choices.len()) as u64 };
    let trained = tasks::run(images.len(), threads, counted, progress, |at, tick| {
        let trained = trainer.trained(images[at].1);
        tick().map(|()| trained)
    })?;
    let trained: BTreeMap<&RecordedImage, Trained> =
        images.iter().map(|(key, _)| *key).zip(trained).collect();
    counted.done = images.len() as u64;
    let merged = tasks::run(choices.len(), threads, counted, progress, |at, tick| {
        let sources: Vec<_> = choices[at].iter().filter_map(|key| trained.get(key)).collect();
        let group = trainer.merged(&sources);
        tick().map(|()| group)
    })?;
    let mut builder = Builder::new(config, &trainer.rates, knowledge, choices, merged);
    for (key, image) in knowledge.images() {
        let Some(trained) = trained.get(key) else { continue };
        if let (Some(map), Some(group)) = (image.layers(), trained.groups.first()) {
            layers::split(group, map, builder.layers());
        }
        builder.image(key, trained);
    }
    Ok(builder.finish(&tiers))
}

/// The choices for images that have no traces.
fn tiers(knowledge: &Knowledge) -> ChoiceTiers {
    let mut tiers = ChoiceTiers::default();
    knowledge.images().for_each(|(key, image)| tiers.add(key, image.profile(), image.traces()));
    tiers
}

/// The choices of more than one image that can come up.
fn choices(tiers: &ChoiceTiers) -> Vec<BTreeSet<RecordedImage>> {
    let choices: BTreeSet<_> = tiers.iter().map(|(_, tier)| tier.images.clone()).collect();
    choices.into_iter().filter(|images| images.len() > 1).collect()
}

/// The result of training one image.
struct Trained {
    groups: Vec<GroupPlans>,
    dropped: Dropped,
    traces: u64,
    summary: Summary,
}

/// The trainer of plans by a configuration.
struct Trainer<'a> {
    config: &'a TrainConfig,
    policy: Box<dyn Policy>,
    /// The bandwidths, ascending.
    rates: Vec<Bandwidth>,
}

impl<'a> Trainer<'a> {
    fn new(config: &'a TrainConfig) -> Result<Self> {
        let policy = by_name(&config.policy)?;
        if policy.online().is_some() {
            return Err(Error::invalid(format!(
                "`{}` decides as reads come: it makes no plans",
                config.policy
            )));
        }
        let rates: BTreeSet<_> = config.rates.iter().copied().collect();
        if rates.is_empty() {
            return Err(Error::invalid("there is no bandwidth to plan for"));
        }
        Ok(Self { config, policy, rates: rates.into_iter().collect() })
    }

    /// The result of training one image.
    fn trained(&self, image: &ImageKnowledge) -> Trained {
        let model = image.model();
        Trained {
            groups: self.groups(image.block_table(), &model),
            dropped: model.dropped(),
            traces: model.traces(),
            summary: Summary::of(image.block_table(), &model),
        }
    }

    /// The plans of the largest groups, the largest first.
    fn groups(&self, block_table: &BlockTable, model: &ImageModel) -> Vec<GroupPlans> {
        let mut groups: Vec<&Group> = model.groups().iter().collect();
        groups.sort_by_key(|group| Reverse(group.statistics.traces));
        let least = model.traces().div_ceil(SHARE_MIN);
        groups.retain(|group| u64::from(group.statistics.traces) >= least);
        groups.truncate(GROUPS_MAX);
        let plan = |group: &&Group| {
            let mut kept = Vec::new();
            let training = group.training(block_table, &mut kept);
            self.group(group.category, &|_| training, &|_| None)
        };
        groups.iter().map(plan).collect()
    }

    /// The plans of one group; `training` is the input of learning for a bandwidth, `known` has weights that are
    /// reused at it.
    fn group<'t>(
        &self,
        category: usize,
        training: &dyn Fn(Bandwidth) -> Training<'t>,
        known: &dyn Fn(Bandwidth) -> Option<Weights>,
    ) -> GroupPlans {
        let mut plans: Vec<RatedPlan> = Vec::with_capacity(self.rates.len());
        for rate in &self.rates {
            let mut plan = self.plan(&training(*rate), *rate, known(*rate));
            // Orders of many policies do not depend on the bandwidth.
            if let Some(last) = plans.last().filter(|last| last.items == plan.items) {
                plan.items = Arc::clone(&last.items);
            }
            plans.push(plan);
        }
        let training = training(Bandwidth::new(u64::MAX));
        let number = |id: &u32| training.block_table.blocks()[*id as usize];
        let order = training.traces.first().map(|trace| trace.first_accesses().iter().map(number).collect());
        let first_read = |block: u64| {
            let stats = training.statistics.blocks.get(training.block_table.id(block)? as usize)?;
            Some(FirstRead { block, ms: stats.all.first_average_ms()? })
        };
        let first_reads = named(&plans).into_iter().filter_map(first_read).collect();
        GroupPlans {
            category: exact(category, "an image has fewer groups than boots, which are counted in 32 bits"),
            entrypoint: String::new(),
            traces: u64::from(training.statistics.traces),
            centroid: Centroid { order: order.unwrap_or_default() },
            plans,
            first_reads,
        }
    }

    fn plan(&self, training: &Training<'_>, bandwidth: Bandwidth, known: Option<Weights>) -> RatedPlan {
        let aim = Aim { objective: self.config.objective, bandwidth, seed: self.config.seed };
        let proposal = match known.filter(|_| self.policy.name() == "thinkahead") {
            Some(_) => ThinkAhead { weights: known, ..ThinkAhead::default() }.propose(training, &aim),
            None => self.policy.propose(training, &aim),
        };
        RatedPlan {
            rate: bandwidth.bytes(),
            policy: self.config.policy.clone(),
            weights: proposal.weights,
            score: score(&proposal, training, &aim),
            items: proposal.plan_items(training.block_table).into(),
        }
    }
}

/// The score of a proposal on some of the traces that it was made from: the average hit rate, or the average delay in
/// seconds, negative.
#[expect(clippy::cast_precision_loss, reason = "an average")]
fn score(proposal: &Proposal, training: &Training<'_>, aim: &Aim) -> f64 {
    let judged = Random::new(aim.seed).sample(JUDGED_MAX, training.traces.len());
    let judged = judged.into_iter().map(|at| training.traces[at]);
    match aim.objective {
        Objective::Hits => {
            let order: Vec<_> = proposal.items.iter().map(|(id, _)| *id).collect();
            let mut evaluator = Evaluator::new(training.block_table, aim.bandwidth);
            let count = judged.len().max(1) as f64;
            judged.map(|trace| evaluator.evaluate(&order, trace).hit_rate()).sum::<f64>() / count
        }
        Objective::Boot { round_trip, misses, .. } => {
            let link = BootLink { bandwidth: aim.bandwidth, round_trip, misses };
            -BootEvaluator::new(training.block_table, link).evaluate_all(&proposal.items, judged).delay_s()
        }
    }
}
