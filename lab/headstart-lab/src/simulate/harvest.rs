//! `headstart-lab simulate harvest`: the value of unused storage for harvest VMs, and its cost to others.
//!
//! | module | content |
//! |---|---|
//! | [`arguments`] | the arguments, and the models that follow from them |
//! | [`series`] | demand series as regular VMs |
//! | [`report`] | the figures, for people and programs |
//! | [`performance`] | the figures of single VMs |
//! | [`plots`] | the figures as pictures |

mod arguments;
mod performance;
mod plots;
mod report;
mod series;

pub(crate) use arguments::Harvest;
pub(super) const AFTER_HELP: &str = arguments::AFTER_HELP;

use arguments::{Figure, ForesightName};
use headstart_block::Result;
use headstart_image::progress::Progress;
use headstart_sim::harvest::accuracy::accuracy;
use headstart_sim::harvest::ceiling::Rules;
use headstart_sim::harvest::performance::{Length, measure};
use headstart_sim::harvest::planner::planned;
use headstart_sim::harvest::statistics::DemandStatistics;
use headstart_sim::harvest::{Fleet, Grain, StorageSource, availability, simulate};
use headstart_train::progress::cancelled;
use report::{Availability, HarvestReport, Ran, StatisticsRow};

/// VMs that predictors are tried on.
const ACCURACY_VMS: usize = 8;

impl Harvest {
    pub(super) fn run(&self, progress: &dyn Progress) -> Result<HarvestReport> {
        let plots = self.plot.as_deref().map(super::plots::open).transpose()?;
        let settings = self.settings();
        let fleet = match &self.series {
            Some(directory) => {
                let (bandwidth, capacity) = series::read(directory)?;
                Fleet::replay(&settings, &bandwidth, &capacity)
            }
            None => Fleet::generate(&settings),
        };
        let mut report = HarvestReport::new(&settings);
        let mut statistics = None;
        let runs = self.foresight.len() + self.unsold().len();
        let runs = runs * usize::from(self.shows(Figure::Utilisation));
        progress.begin("simulating", 3 + runs as u64);
        if self.shows(Figure::Statistics) {
            let found = DemandStatistics::of(&fleet);
            report.statistics = StatisticsRow::all(&found);
            statistics = Some(found);
        }
        progress.advance(1);
        if self.shows(Figure::Availability) {
            report.availability = Some(Availability {
                hours: availability::hours(&fleet),
                allocated: availability::allocated(&fleet),
                unallocated: availability::unallocated(&fleet),
                unsold_vms: availability::lots(&fleet),
            });
        }
        progress.advance(1);
        cancelled(progress)?;
        if self.shows(Figure::Accuracy) {
            report.accuracy = accuracy(&fleet, ACCURACY_VMS);
        }
        progress.advance(1);
        if self.shows(Figure::Utilisation) {
            let plan = self.plan.then(|| planned(&fleet, Rules::of(&Grain::default())));
            for foresight in &self.foresight {
                cancelled(progress)?;
                let outcome = simulate(&fleet, &self.model(StorageSource::Regular, *foresight));
                report.runs.push(Ran::regular(*foresight, outcome, plan));
                progress.advance(1);
            }
            for foresight in self.unsold() {
                cancelled(progress)?;
                let outcome = simulate(&fleet, &self.model(StorageSource::Unsold, foresight));
                report.runs.push(Ran::unsold(foresight, outcome));
                progress.advance(1);
            }
        }
        if self.shows(Figure::Performance) {
            let length = if self.short { Length::Short } else { Length::Full };
            report.performance = Some(measure(length, self.seed, || cancelled(progress))?);
        }
        if let Some(directory) = plots {
            report.plots = plots::draw(&report, statistics.as_ref(), &directory)?;
        }
        Ok(report)
    }

    /// The predictors for unsold storage: none of them forecasts it, so that one stands for all of them.
    fn unsold(&self) -> Vec<ForesightName> {
        let knows = |name: &ForesightName| *name == ForesightName::Clairvoyant;
        let predictor = self.foresight.iter().find(|name| !knows(name));
        predictor.into_iter().chain(self.foresight.iter().find(|name| knows(name))).copied().collect()
    }

    fn shows(&self, figure: Figure) -> bool {
        self.figures.contains(&figure)
    }
}
