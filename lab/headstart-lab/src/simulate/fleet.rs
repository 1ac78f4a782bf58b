//! `headstart-lab simulate fleet`: the value of a swarm for many hosts that read the same image.
//!
//! | module | content |
//! |---|---|
//! | [`arguments`] | the arguments, and the model that follows from them |
//! | [`rules`] | the rules between the arguments |
//! | [`workload`] | the reads of the disks |
//! | [`report`] | the figures, for people and programs |
//! | [`plots`] | the figures as pictures |

mod arguments;
mod plots;
mod report;
mod rules;
mod workload;

pub(crate) use arguments::Fleet;
pub(super) const AFTER_HELP: &str = arguments::AFTER_HELP;

use headstart_block::{Plan, Result};
use headstart_image::progress::Progress;
use headstart_sim::fleet::{FleetModel, FleetOutcome, HintsModel, SwarmModel, Way, Workload, simulate};
use headstart_swarm::NodeSettings;
use headstart_train::progress::cancelled;
use report::{FleetReport, Row};
use std::time::Instant;
use workload::Reads;

/// A way, with the options that it is combined with.
struct Contestant {
    way: String,
    model: FleetModel,
    /// `true` if disks follow the workload's plan.
    planned: bool,
}

/// The result of a way.
struct Ran {
    way: String,
    outcome: FleetOutcome,
}

impl Fleet {
    pub(super) fn run(&self, progress: &dyn Progress) -> Result<FleetReport> {
        let plots = self.plot.as_deref().map(super::plots::open).transpose()?;
        let mut report = FleetReport::new(self);
        let ways = self.ways();
        for pattern in &self.patterns {
            let reads = self.workload(*pattern, progress)?;
            let warm = reads.before.as_ref().map(|_| simulate(&self.model(Way::Local), &reads.workload));
            let contestants = self.models(&ways, &reads);
            let lazily = Workload { plan: Plan::Lazy, ..reads.workload.clone() };
            progress.begin("simulating", contestants.len() as u64);
            let mut ran = Vec::new();
            for Contestant { way, model, planned } in contestants {
                let started = Instant::now();
                let outcome = simulate(&model, if planned { &reads.workload } else { &lazily });
                let took = started.elapsed();
                report.rows.push(Row::new(*pattern, &way, &outcome, warm.as_ref(), &reads, took));
                ran.push(Ran { way, outcome });
                progress.advance(1);
                cancelled(progress)?;
            }
            if let Some(directory) = &plots {
                report.plots.extend(plots::draw(*pattern, &ran, warm.as_ref(), directory)?);
            }
        }
        Ok(report)
    }

    /// The models of all ways, and of each also with hints: of a new tracker, and of one that counted the reads of
    /// another deployment; and with roots that send ahead.
    fn models(&self, ways: &[(String, Way)], reads: &Reads) -> Vec<Contestant> {
        let mut models = Vec::new();
        for (name, way) in ways {
            let model = self.model(way.clone());
            let both = self.hints && reads.workload.plan != Plan::Lazy;
            let add = |models: &mut Vec<_>, kind: &str, model: &FleetModel, planned: bool| {
                models.push(Contestant { way: format!("{name}{kind}"), model: model.clone(), planned });
            };
            add(&mut models, "", &model, !both);
            if matches!(way, Way::Broadcast(_) | Way::Local) {
                continue;
            }
            if both {
                add(&mut models, "-plan", &model, true);
            }
            if let (true, Some(before)) = (self.hints, &reads.before) {
                let with = |known| FleetModel {
                    hints: Some(HintsModel { known, ..HintsModel::default() }),
                    ..model.clone()
                };
                add(&mut models, "-hints", &with(None), false);
                add(&mut models, "-known", &with(simulate(&with(None), before).counts), false);
            }
            if let Way::Swarm(swarm) = way {
                let strayed = [("-push", &reads.before), ("-push-strays", &reads.strayed)];
                let deployed = strayed.into_iter().filter(|_| self.push > 0);
                for (kind, before) in deployed.filter_map(|(kind, before)| Some((kind, before.as_ref()?))) {
                    let with = |recent| {
                        let settings = NodeSettings { push: self.push, ..swarm.settings.clone() };
                        self.model(Way::Swarm(Box::new(SwarmModel { settings, recent, ..(**swarm).clone() })))
                    };
                    add(&mut models, kind, &with(simulate(&with(Vec::new()), before).recent), true);
                }
            }
        }
        models
    }
}
