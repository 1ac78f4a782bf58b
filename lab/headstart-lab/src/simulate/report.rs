//! The figures of a simulation, for people and programs.

use super::Gathered;
use super::arguments::{Disk, MissName, ModelName, Part, PreloadName};
use super::contenders::{Contender, Contenders, Way};
use super::data::Data;
use super::replay::{Chosen, Route};
use headstart_block::words::count;
use headstart_command_line::megabytes::Megabytes;
use headstart_command_line::report::Outcome;
use headstart_command_line::training::ObjectiveName;
use headstart_replay::Summary;
use headstart_trace::data_set::Skipped;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The figures of each link and contender.
#[derive(Serialize)]
pub(super) struct DiskReport {
    model: ModelName,
    #[serde(flatten)]
    real: Option<Real>,
    faster: u32,
    compressed: f64,
    left: bool,
    /// The objective of plans.
    objective: ObjectiveName,
    /// The training; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    training: Option<Training>,
    rows: Vec<Row>,
    pub(super) skipped: Skipped,
    /// The files that were drawn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) plots: Vec<String>,
}

/// The settings of the real model only.
#[derive(Serialize)]
struct Real {
    round_trip_ms: f64,
    misses: MissName,
    preloads: PreloadName,
}

/// The training, and its cost.
#[derive(Serialize)]
struct Training {
    /// Boots that were given to learn from.
    #[serde(skip_serializing_if = "Option::is_none")]
    traces: Option<usize>,
    /// Boots of the training set that are replayed.
    left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    learning_s: Option<f64>,
    policies: Vec<Policy>,
}

/// The cost of making plans, and their choice.
#[derive(Serialize)]
struct Policy {
    policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    without: Option<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planning_s: Option<f64>,
    /// The mean time of choosing the plans for a boot, in microseconds.
    choosing_us: f64,
    /// Boots by the reason of their plans.
    reasons: BTreeMap<String, u64>,
}

#[derive(Serialize)]
pub(super) struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<String>,
    /// The bandwidth in MB/s; in the paper's model in MiB/s. Absent for a recorded link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth: Option<Megabytes>,
    pub(super) policy: String,
    /// The part that was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) without: Option<Part>,
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// Switches to another group's plan, of all boots.
    switches_group: u64,
    /// Switches to another bandwidth's plan, of all boots.
    switches_bin: u64,
    /// For the oracle: the bound for any order. For hits the mean hit rate is at most this, for the delay of boots the
    /// mean delay is at least this, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<f64>,
}

impl Row {
    /// Its policy, and the part that was left out of it.
    pub(super) fn name(&self) -> String {
        name(&self.policy, self.without)
    }
}

pub(super) fn name(policy: &str, without: Option<Part>) -> String {
    without.map_or_else(|| policy.to_owned(), |part| format!("{policy} -{part}"))
}

impl Disk {
    pub(super) fn report(
        &self,
        data: &Data,
        list: &[Contender],
        contenders: &Contenders,
        routes: &[Route],
        gathered: &Gathered,
        skipped: Skipped,
    ) -> DiskReport {
        let real = (self.model == ModelName::Real).then_some(Real {
            round_trip_ms: self.round_trip().as_secs_f64() * 1e3,
            misses: self.misses(),
            preloads: self.preloads(),
        });
        let mut rows = Vec::new();
        for (group, results) in gathered {
            let pairs = routes.iter().flat_map(|route| list.iter().map(move |contender| (route, contender)));
            for ((route, contender), cell) in pairs.zip(&results.cells) {
                let summary = cell.gatherer.summary();
                #[expect(clippy::cast_precision_loss, reason = "a number of boots")]
                let bound = cell.bound.map(|sum| sum / summary.boots.max(1) as f64);
                rows.push(Row {
                    bound,
                    group: self.by.map(|_| group.clone()),
                    bandwidth: route.rate,
                    policy: contender.name.clone(),
                    without: contender.without,
                    summary,
                    switches_group: cell.groups,
                    switches_bin: cell.bins,
                });
            }
        }
        let training = self.training(data, list, contenders, gathered);
        let (faster, compressed, left, plots) = (self.faster, self.compressed, self.left, Vec::new());
        let objective = self.objective_name();
        DiskReport {
            model: self.model,
            real,
            faster,
            compressed,
            left,
            objective,
            training,
            rows,
            skipped,
            plots,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean time")]
    fn training(
        &self,
        data: &Data,
        list: &[Contender],
        contenders: &Contenders,
        gathered: &Gathered,
    ) -> Option<Training> {
        let mut chosen = vec![Chosen::default(); list.len()];
        for results in gathered.values() {
            chosen.iter_mut().zip(&results.chosen).for_each(|(sum, one)| sum.merge(one));
        }
        let planned = list.iter().zip(chosen).filter(|(one, _)| matches!(one.way, Way::Planned(_)));
        let policies: Vec<_> = planned
            .map(|(contender, chosen)| Policy {
                policy: contender.name.clone(),
                without: contender.without,
                planning_s: contender.planning_s,
                choosing_us: chosen.nanos as f64 / 1e3 / chosen.times.max(1) as f64,
                reasons: chosen.reasons,
            })
            .collect();
        let traces = data.train.as_ref().map(headstart_trace::DataSet::len);
        (!policies.is_empty() || traces.is_some()).then_some(Training {
            traces,
            left_out: data.left_out,
            learning_s: contenders.learning_s,
            policies,
        })
    }
}

impl DiskReport {
    /// `true` if nothing was replayed.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| row.summary.boots == 0)
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }
}

impl Outcome for DiskReport {}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(training) = &self.training {
            let objective = match self.objective {
                ObjectiveName::Boot => "the delay of boots",
                ObjectiveName::Hits => "hits",
            };
            writeln!(f, "plans for {objective}, {training}\n")?;
        }
        let width = self.rows.iter().map(|row| row.name().len()).max().unwrap_or(0).max(10);
        let mut group = None;
        for row in &self.rows {
            if group != Some(&row.group) {
                let start = if group.is_some() { "\n\n" } else { "" };
                let name = row.group.as_ref().map_or(String::new(), |name| format!("{name}: "));
                let (boots, reads) = (count(row.summary.boots, "boot"), count(row.summary.reads, "read"));
                write!(f, "{start}{name}{boots}, {reads}\n  MB/s {:<width$}{COLUMNS}", "policy")?;
                group = Some(&row.group);
            }
            row.write(f, width, self.objective)?;
        }
        for (start, file) in std::iter::once("\n\ndrawn: ").chain(std::iter::repeat(", ")).zip(&self.plots) {
            write!(f, "{start}{file}")?;
        }
        if !self.skipped.is_empty() {
            write!(f, "\n\n{}", self.skipped)?;
        }
        Ok(())
    }
}

/// Hits, both accuracies, waits, slow reads by cause, millions of bytes requested, and those before the last read, the
/// last read.
const COLUMNS: &str =
    "   hits  accur.  artif.   P50 s   P99 s   max s  sum/boot  miss queue store      MB  before   last s";

impl Row {
    fn write(&self, f: &mut fmt::Formatter<'_>, width: usize, objective: ObjectiveName) -> fmt::Result {
        let Summary { hit_rate, accuracy, accuracy_artifact, slow, .. } = &self.summary;
        let Summary { wait_p50, wait_p99, wait_max, wait_total, last_read, .. } = &self.summary;
        let (bytes, before) = (self.summary.bytes / 1e6, self.summary.bytes_before_last_read / 1e6);
        let bandwidth = self.bandwidth.map_or("link".to_owned(), |rate| rate.0.to_string());
        write!(f, "\n{bandwidth:>6} {:<width$}", self.name())?;
        write!(f, "{hit_rate:>7.4} {accuracy:>7.4} {accuracy_artifact:>7.4}")?;
        write!(f, " {wait_p50:>7.3} {wait_p99:>7.3} {wait_max:>7.3} {wait_total:>9.3}")?;
        write!(f, " {:>5} {:>5} {:>5}", slow.miss, slow.queue, slow.store)?;
        write!(f, " {bytes:>7.1} {before:>7.1} {last_read:>8.3}")?;
        match self.bound {
            Some(bound) if objective == ObjectiveName::Hits => write!(f, "  hits at most {bound:.4}"),
            Some(bound) => write!(f, "  delay at least {bound:.3} s"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Training {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.traces {
            Some(traces) => write!(f, "learned from {}", count(traces as u64, "boot"))?,
            None => f.write_str("learned before")?,
        }
        if self.left_out > 0 {
            write!(f, "; {} more are replayed", self.left_out)?;
        }
        if let Some(seconds) = self.learning_s {
            write!(f, "; {seconds:.2} s")?;
        }
        let named = |policy: &Policy| name(&policy.policy, policy.without);
        let width = self.policies.iter().map(|policy| named(policy).len()).max().unwrap_or(0).max(10);
        if !self.policies.is_empty() {
            write!(f, "\n  {:<width$} planning s  choosing us  boots by whose plans they had", "policy")?;
        }
        for policy in &self.policies {
            let planning = policy.planning_s.map_or("-".to_owned(), |seconds| format!("{seconds:.2}"));
            let reasons = policy.reasons.iter().map(|(reason, boots)| format!("{boots} {reason}"));
            let reasons = reasons.collect::<Vec<_>>().join(", ");
            write!(
                f,
                "\n  {:<width$} {planning:>10} {:>12.1}  {reasons}",
                named(policy),
                policy.choosing_us
            )?;
        }
        Ok(())
    }
}
