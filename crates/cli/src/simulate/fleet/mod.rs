//! `headstart simulate fleet`: what a swarm is worth to many hosts that read the same image.
//!
//! | module | what it does |
//! |---|---|
//! | [`arguments`] | what it is told, and the model that follows from it |
//! | [`workload`] | what the disks read |
//! | [`report`] | the figures, for people and programs |
//! | [`plots`] | the figures as pictures |

mod arguments;
mod plots;
mod report;
mod workload;

pub(crate) use arguments::Fleet;
pub(super) const AFTER_HELP: &str = arguments::AFTER_HELP;

use crate::trace::cancelled;
use headstart_block::Result;
use headstart_image::progress::Progress;
use headstart_sim::fleet::{FleetModel, FleetOutcome, HintsModel, Way, Workload, simulate};
use report::{FleetReport, Row};
use std::time::Instant;

/// What came of a way.
struct Ran {
    way: String,
    outcome: FleetOutcome,
}

impl Fleet {
    pub(super) fn run(&self, progress: &dyn Progress) -> Result<FleetReport> {
        self.check()?;
        let plots = self.plot.as_deref().map(super::plots::open).transpose()?;
        let mut report = FleetReport::new(self);
        let ways = self.ways();
        for pattern in &self.patterns {
            let workload = self.workload(*pattern, progress)?;
            let warm = workload.is_boots.then(|| simulate(&self.model(Way::Local), &workload.workload));
            let ways = self.with_hints(&ways, &workload.workload);
            progress.begin("simulating", ways.len() as u64);
            let mut ran = Vec::new();
            for (way, model) in &ways {
                let started = Instant::now();
                let outcome = simulate(model, &workload.workload);
                let took = started.elapsed();
                report.rows.push(Row::new(*pattern, way, &outcome, warm.as_ref(), &workload, took));
                ran.push(Ran { way: way.clone(), outcome });
                progress.advance(1);
                cancelled(progress)?;
            }
            if let Some(directory) = &plots {
                report.plots.extend(plots::draw(*pattern, &ran, warm.as_ref(), directory)?);
            }
        }
        Ok(report)
    }

    /// The models of all ways, and of each also with hints: of a tracker that knows nothing, and of one that counted
    /// what another deployment read.
    fn with_hints(&self, ways: &[(String, Way)], workload: &Workload) -> Vec<(String, FleetModel)> {
        let mut models = Vec::new();
        for (name, way) in ways {
            let model = self.model(way.clone());
            models.push((name.clone(), model.clone()));
            if self.hints && !matches!(way, Way::Broadcast(_) | Way::Local) {
                let with = |known| FleetModel {
                    hints: Some(HintsModel { known, ..HintsModel::default() }),
                    ..model.clone()
                };
                let before = simulate(&with(None), &self.deployed_before(workload));
                models.push((format!("{name}-hints"), with(None)));
                models.push((format!("{name}-known"), with(before.counts)));
            }
        }
        models
    }
}
