//! The figures of a harvested fleet, for people and programs.

use super::arguments::ForesightName;
use super::performance;
use headstart_block::words::count;
use headstart_command_line::report::Outcome;
use headstart_sim::harvest::accuracy::{PredictorAccuracy, RATIOS};
use headstart_sim::harvest::availability::Available;
use headstart_sim::harvest::performance::PerformanceReport as Performance;
use headstart_sim::harvest::statistics::{DemandStatistics, OrderedNumbers};
use headstart_sim::harvest::utilisation::Utilisation;
use headstart_sim::harvest::{FleetSettings, HarvestOutcome as Harvested};
use serde::Serialize;
use std::fmt;

/// All requested figures.
#[derive(Serialize)]
pub(crate) struct HarvestReport {
    vms: usize,
    servers: usize,
    requests: usize,
    days: u32,
    seed: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) statistics: Vec<StatisticsRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) availability: Option<Availability>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) accuracy: Vec<PredictorAccuracy>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) runs: Vec<Ran>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) performance: Option<Performance>,
    /// The files that were drawn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) plots: Vec<String>,
}

/// A figure of section 2.1, and the paper's value.
#[derive(Serialize)]
pub(super) struct StatisticsRow {
    what: &'static str,
    is: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    paper: Option<f64>,
}

impl StatisticsRow {
    pub(super) fn all(of: &DemandStatistics) -> Vec<Self> {
        let low = |most: f64| -> OrderedNumbers {
            of.vm_capacity.numbers().iter().copied().filter(|mean| *mean < most).collect()
        };
        [
            ("bandwidth used, mean of VMs", of.vm_bandwidth.mean(), Some(0.092)),
            ("bandwidth used, the most of a VM", of.vm_bandwidth.max(), Some(0.33)),
            ("bandwidth used, mean of servers", of.server_bandwidth.mean(), Some(0.086)),
            ("bandwidth used, the most of a server", of.server_bandwidth.max(), Some(0.31)),
            ("capacity used, mean of VMs", of.vm_capacity.mean(), Some(0.43)),
            ("capacity used, a fifth of VMs at most", of.vm_capacity.quantile(0.2), None),
            ("capacity used, half of VMs at most", of.vm_capacity.quantile(0.5), Some(0.264)),
            ("capacity used, a fifth of VMs at least", of.vm_capacity.quantile(0.8), Some(0.90)),
            ("capacity used, mean of VMs under 60%", low(0.6).mean(), Some(0.20)),
            ("capacity used, mean of maxima", of.vm_capacity_max.mean(), Some(0.49)),
            ("unsold, share of servers that have any", of.unsold.at_least(1e-6), Some(0.70)),
            ("unsold, mean of the half with most", of.unsold.mean_between(0.5, 1.0), Some(0.173)),
            ("unsold, a fifth of servers at least", of.unsold.quantile(0.8), Some(0.201)),
        ]
        .into_iter()
        .map(|(what, is, paper)| Self { what, is, paper })
        .collect()
    }
}

/// Figures 4 to 6.
#[derive(Serialize)]
pub(super) struct Availability {
    pub(super) hours: Vec<u32>,
    pub(super) allocated: Vec<Available>,
    pub(super) unallocated: Vec<Available>,
    pub(super) unsold_vms: Vec<Available>,
}

/// A fleet that was harvested.
#[derive(Serialize)]
pub(super) struct Ran {
    pub(super) source: &'static str,
    pub(super) foresight: String,
    /// The gain as a share of the upper bound for any allocator.
    of_ceiling: f64,
    /// The gain as a share of that of a plan that was made with everything known.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_plan: Option<f64>,
    /// The share of leases that were taken from a harvest VM before it was done.
    early: f64,
    /// The share of leases that were lost with their data.
    lost: f64,
    #[serde(flatten)]
    pub(super) outcome: Harvested,
}

impl Ran {
    /// A run on regular VMs, with the gain of a plan.
    pub(super) fn regular(foresight: ForesightName, outcome: Harvested, plan: Option<f64>) -> Self {
        let of_plan = plan.map(|plan| outcome.gain / plan.max(1e-9));
        Self { of_plan, ..Self::new("regular", foresight.name(), outcome) }
    }

    /// A run on unsold storage.
    pub(super) fn unsold(foresight: ForesightName, outcome: Harvested) -> Self {
        let clairvoyant = foresight == ForesightName::Clairvoyant;
        let name = if clairvoyant { foresight.name() } else { "histogram".to_owned() };
        Self::new("unsold", name, outcome)
    }

    fn new(source: &'static str, foresight: String, outcome: Harvested) -> Self {
        let (of_ceiling, early, lost) = (outcome.of_ceiling(), outcome.early(), outcome.lost());
        Self { source, foresight, of_ceiling, of_plan: None, early, lost, outcome }
    }

    /// The groups of figures: their names and values.
    pub(super) fn groups(&self) -> Vec<(&'static str, Utilisation)> {
        let of = &self.outcome;
        if self.source == "regular" {
            vec![
                ("capacity, all VMs", of.capacity),
                ("capacity, VMs under 60%", of.capacity_low),
                ("bandwidth, all VMs", of.bandwidth),
            ]
        } else {
            vec![
                ("all servers", of.capacity),
                ("a fifth or more unsold", of.capacity_fifth),
                ("servers under 60%", of.capacity_low),
            ]
        }
    }
}

impl HarvestReport {
    pub(super) fn new(settings: &FleetSettings) -> Self {
        Self {
            vms: settings.vms,
            servers: settings.servers,
            requests: settings.requests,
            days: settings.days,
            seed: settings.seed,
            statistics: Vec::new(),
            availability: None,
            accuracy: Vec::new(),
            runs: Vec::new(),
            performance: None,
            plots: Vec::new(),
        }
    }
}

impl Outcome for HarvestReport {}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

impl fmt::Display for HarvestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            count(self.vms as u64, "VM"),
            count(self.servers as u64, "server") + " with unsold storage",
            count(self.requests as u64, "request"),
            count(self.days.into(), "day"),
        ];
        write!(f, "{}", parts.join(", "))?;
        self.statistics(f)?;
        if let Some(availability) = &self.availability {
            availability.write(f)?;
        }
        self.accuracy(f)?;
        self.runs(f)?;
        if let Some(measured) = &self.performance {
            performance::write(measured, f)?;
        }
        for (start, file) in std::iter::once("\n\ndrawn: ").chain(std::iter::repeat(", ")).zip(&self.plots) {
            write!(f, "{start}{file}")?;
        }
        Ok(())
    }
}

impl HarvestReport {
    fn statistics(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.statistics.is_empty() {
            write!(f, "\n\n{:40}    fleet    paper", "used and sold (figures 1 to 3)")?;
        }
        for row in &self.statistics {
            let paper = row.paper.map_or("-".to_owned(), percent);
            write!(f, "\n{:40} {:>8} {paper:>8}", row.what, percent(row.is))?;
        }
        Ok(())
    }

    fn accuracy(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.accuracy.is_empty() {
            write!(f, "\n\n{:40}", "covered, by provisioning ratio (14)")?;
            RATIOS.iter().try_for_each(|ratio| write!(f, " {:>8}", percent(f64::from(*ratio))))?;
        }
        for line in &self.accuracy {
            let ahead = if line.minutes > 0 { format!(", {} min", line.minutes) } else { String::new() };
            write!(f, "\n{:40}", format!("{}, {}{ahead}", line.what, line.predictor))?;
            line.covered.iter().try_for_each(|share| write!(f, " {:>8}", percent(*share)))?;
        }
        Ok(())
    }

    fn runs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for source in ["regular", "unsold"] {
            let mut runs = self.runs.iter().filter(|ran| ran.source == source).peekable();
            if runs.peek().is_none() {
                continue;
            }
            let title = if source == "regular" {
                "regular VMs (figures 15, 16)"
            } else {
                "unsold storage (figure 17)"
            };
            write!(f, "\n\n{title:40}  without     with  times  max with  times")?;
            for ran in runs {
                let counters = &ran.outcome.counters;
                write!(f, "\n{}: {} of ceiling", ran.foresight, percent(ran.of_ceiling))?;
                if let Some(of_plan) = ran.of_plan {
                    write!(f, ", {} of plan", percent(of_plan))?;
                }
                write!(f, ", {} leases, {} early", counters.leases, percent(ran.early))?;
                write!(f, ", {} lost", percent(ran.lost))?;
                for (name, group) in ran.groups() {
                    if group.count == 0 {
                        write!(f, "\n  {name:38} {:>8}", "none")?;
                        continue;
                    }
                    write!(f, "\n  {name:38} {:>8} {:>8}", percent(group.base), percent(group.with))?;
                    write!(f, " {:>6.2} {:>9}", group.times(), percent(group.with_max))?;
                    write!(f, " {:>6.2}", group.times_max())?;
                }
            }
        }
        Ok(())
    }
}

impl Availability {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, lines) in [
            ("servers that can spare (figure 4)", &self.allocated),
            ("servers with so much unsold (5)", &self.unallocated),
            ("unsold VMs that stay so (6)", &self.unsold_vms),
        ] {
            write!(f, "\n\n{title:40}")?;
            self.hours.iter().try_for_each(|hours| write!(f, " {:>8}", format!("{hours} h")))?;
            for line in lines {
                write!(f, "\n{:40}", line.request)?;
                if line.share.is_empty() {
                    write!(f, " {:>8}", "-")?;
                }
                line.share.iter().try_for_each(|share| write!(f, " {:>8}", percent(*share)))?;
            }
        }
        Ok(())
    }
}
