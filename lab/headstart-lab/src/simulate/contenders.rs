//! The contenders: policies, each with its plans; and those that learn, also without a part.

use super::arguments::{Disk, Part, PolicyName};
use super::data::Data;
use headstart_block::{Error, FileSource, Result};
use headstart_image::progress::Progress;
use headstart_plan::artifact::PlanFile;
use headstart_plan::knowledge::{self, Knowledge, RecordedImage};
use headstart_plan::preprocess;
use headstart_plan::train::{self, Plans, TrainConfig};
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{Bandwidth, Bin, ImagePlans};
use headstart_trace::Creation;
use headstart_trace::data_set::{DataSet, Skipped};
use headstart_train::plan_files::open_plans;
use headstart_train::progress::reported;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// One way to preload.
pub(super) struct Contender {
    pub(super) name: String,
    /// The part that is left out of it.
    pub(super) without: Option<Part>,
    pub(super) way: Way,
    /// The time of making its plans, in seconds; `None` if it needs none.
    pub(super) planning_s: Option<f64>,
}

pub(super) enum Way {
    Online(&'static str),
    Sequential,
    History,
    Oracle,
    Planned(Arc<Source>),
}

/// The source of plans.
pub(super) enum Source {
    Trained(Plans),
    /// By image: plans that were made without its boots.
    Hidden(BTreeMap<String, Plans>),
    File(PlanFile<FileSource>),
}

impl Source {
    /// The plans for a disk.
    pub(super) fn choose(&self, creation: &Creation) -> Result<Arc<ImagePlans>> {
        let (key, metadata) = (RecordedImage::of(creation), Metadata::of(creation));
        let hidden = |plans: &BTreeMap<String, Plans>| {
            plans.get(&key.image).map(|plans| plans.choose(&key, &metadata))
        };
        let none = || Arc::new(ImagePlans::none());
        Ok(match self {
            Self::Trained(plans) => plans.choose(&key, &metadata),
            Self::Hidden(plans) => hidden(plans).unwrap_or_else(none),
            Self::File(file) => Arc::new(file.choose(&key, &metadata)?),
        })
    }
}

/// All contenders, and the results of learning.
#[derive(Default)]
pub(super) struct Contenders {
    pub(super) list: Vec<Contender>,
    pub(super) learning_s: Option<f64>,
    pub(super) skipped: Skipped,
}

impl Disk {
    /// The requested policies, each once, in the order of their names.
    fn wanted(&self, learned: &[&'static str]) -> Result<Vec<PolicyName>> {
        let possible = PolicyName::possible(learned.iter().map(|name| PolicyName::Learned(name)));
        if self.policies.contains(&PolicyName::All) {
            return Ok(possible);
        }
        let missing = self.policies.iter().find(|policy| !possible.contains(policy));
        if let (Some(policy), Some(plans)) = (missing, &self.plans) {
            let names = possible.iter().map(|policy| policy.name()).collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(format!("has no plans of `{}`", policy.name()))
                .about(plans.display())
                .remedy(format!("name some of {names}; or give --train DIR instead of --plans")));
        }
        Ok(possible.into_iter().filter(|policy| self.policies.contains(policy)).collect())
    }

    /// Reads or makes the plans of all requested policies.
    pub(super) fn contenders(&self, data: &Data, progress: &dyn Progress) -> Result<Contenders> {
        let file = self.plans.as_deref().map(open_plans).transpose()?;
        let of_file = file.as_ref().map(|file| file.provenance().policy.as_str());
        let known = headstart_plan::policy::NAMES.into_iter().map(PolicyName::named);
        let learned = known.filter(|policy| match policy {
            PolicyName::Learned(name) => of_file.map_or(data.train.is_some(), |of_file| of_file == *name),
            _ => false,
        });
        let wanted = self.wanted(&learned.map(PolicyName::name).collect::<Vec<_>>())?;
        let mut all = Contenders::default();
        let mut classroom = Classroom { disk: self, data, whole: None, raw: None };
        let file = file.map(|file| Arc::new(Source::File(file)));
        for policy in wanted {
            let way = match policy {
                PolicyName::Online(name) => Way::Online(name),
                PolicyName::Sequential => Way::Sequential,
                PolicyName::History => Way::History,
                PolicyName::Oracle => Way::Oracle,
                PolicyName::Learned(name) => {
                    self.add_learned(name, file.as_ref(), &mut classroom, &mut all, progress)?;
                    continue;
                }
                PolicyName::All => continue,
            };
            let name = policy.name().to_owned();
            all.list.push(Contender { name, without: None, way, planning_s: None });
        }
        Ok(all)
    }

    /// Adds a policy that learns, whole and without parts.
    fn add_learned(
        &self,
        name: &str,
        file: Option<&Arc<Source>>,
        classroom: &mut Classroom<'_>,
        all: &mut Contenders,
        progress: &dyn Progress,
    ) -> Result<()> {
        let (whole, planning_s) = match file {
            Some(file) => (Arc::clone(file), None),
            None => classroom.plans(name, true, all, progress)?,
        };
        let mut add = |without, source: &Arc<Source>, planning_s| {
            let (name, way) = (name.to_owned(), Way::Planned(Arc::clone(source)));
            all.list.push(Contender { name, without, way, planning_s });
        };
        add(None, &whole, planning_s);
        let mut parts: Vec<Part> = Vec::new();
        for part in &self.without {
            if !parts.contains(part) {
                parts.push(*part);
            }
        }
        for part in parts.iter().filter(|part| **part != Part::Preprocessing) {
            add(Some(*part), &whole, None);
        }
        if parts.contains(&Part::Preprocessing) {
            let (source, planning_s) = classroom.plans(name, false, all, progress)?;
            let (name, way) = (name.to_owned(), Way::Planned(source));
            all.list.push(Contender { name, without: Some(Part::Preprocessing), way, planning_s });
        }
        Ok(())
    }

    fn config(&self, policy: &str) -> TrainConfig {
        let exact =
            |rate: &headstart_command_line::megabytes::Megabytes| Bandwidth::new(rate.times(self.unit()));
        let mut rates: Vec<_> = match self.link {
            None => self.bandwidth.iter().map(exact).collect(),
            Some(_) => {
                let rates = Bin::ALL.iter().flat_map(|bin| bin.representatives());
                #[expect(clippy::cast_precision_loss, reason = "150 at most")]
                rates.map(|rate| exact(&headstart_command_line::megabytes::Megabytes(*rate as f64))).collect()
            }
        };
        rates.sort_unstable();
        rates.dedup();
        let (objective, seed, threads) = (self.objective(), self.seed, self.threads());
        TrainConfig { policy: policy.to_owned(), objective, rates, seed, threads }
    }
}

/// The knowledge from a set of boots: of all, or by image of the others.
enum Learned {
    All(Knowledge),
    Hidden(BTreeMap<String, Knowledge>),
}

/// Learns, once with preprocessing and once without, when it is needed first.
struct Classroom<'a> {
    disk: &'a Disk,
    data: &'a Data,
    whole: Option<Learned>,
    raw: Option<Learned>,
}

impl Classroom<'_> {
    /// The plans of a policy, and the time of making them.
    fn plans(
        &mut self,
        policy: &str,
        preprocessed: bool,
        all: &mut Contenders,
        progress: &dyn Progress,
    ) -> Result<(Arc<Source>, Option<f64>)> {
        let place = if preprocessed { &self.whole } else { &self.raw };
        if place.is_none() {
            let started = Instant::now();
            let learned = learn(self.disk, self.data, preprocessed, &mut all.skipped, progress)?;
            if preprocessed {
                all.learning_s = Some(started.elapsed().as_secs_f64());
                self.whole = Some(learned);
            } else {
                self.raw = Some(learned);
            }
        }
        let learned = if preprocessed { &self.whole } else { &self.raw };
        let config = self.disk.config(policy);
        let started = Instant::now();
        let make = |knowledge: &Knowledge| {
            reported(progress, "making plans", |each| train::all(knowledge, &config, each))
        };
        let source = match learned {
            Some(Learned::All(knowledge)) => Source::Trained(make(knowledge)?),
            Some(Learned::Hidden(images)) => {
                let plans = |(image, knowledge): (&String, &Knowledge)| Ok((image.clone(), make(knowledge)?));
                Source::Hidden(images.iter().map(plans).collect::<Result<_>>()?)
            }
            None => Source::Hidden(BTreeMap::new()),
        };
        Ok((Arc::new(source), Some(started.elapsed().as_secs_f64())))
    }
}

fn learn(
    disk: &Disk,
    data: &Data,
    preprocessed: bool,
    skipped: &mut Skipped,
    progress: &dyn Progress,
) -> Result<Learned> {
    let mut settings =
        knowledge::KnowledgeSettings { faster: disk.faster, ..knowledge::KnowledgeSettings::default() };
    if !preprocessed {
        settings.model = preprocess::ModelSettings::none();
    }
    let Some(train) = &data.train else { return Ok(Learned::Hidden(BTreeMap::new())) };
    let mut learn = |set: &DataSet, count: bool| {
        let mut knowledge = Knowledge::new(settings);
        let learned = reported(progress, "learning", |each| knowledge.learn(set, disk.threads(), each))?;
        if count {
            skipped.add(&learned.skipped);
        }
        Ok::<_, Error>(knowledge)
    };
    if !disk.hide_own {
        return Ok(Learned::All(learn(train, preprocessed)?));
    }
    let images: BTreeSet<_> = data.test.creations().iter().map(Creation::image_id).collect();
    let without = |image: &&str| {
        let others = train.filter(|_, creation| creation.image_id() != *image);
        Ok(((*image).to_owned(), learn(&others, false)?))
    };
    Ok(Learned::Hidden(images.iter().map(without).collect::<Result<_>>()?))
}
