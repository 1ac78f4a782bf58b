//! The figures of a simulated fleet, for people and programs.

use super::Fleet;
use super::arguments::PatternName;
use super::workload::Reads;
use clap::ValueEnum;
use headstart_command_line::report::Outcome;
use headstart_sim::fleet::{FleetOutcome, FleetSummary};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The figures of each pattern and way.
#[derive(Serialize)]
pub(crate) struct FleetReport {
    hosts: u32,
    seed: u64,
    pub(super) rows: Vec<Row>,
    /// The files that were drawn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) plots: Vec<String>,
}

impl FleetReport {
    pub(super) fn new(fleet: &Fleet) -> Self {
        Self { hosts: fleet.hosts, seed: fleet.seed, rows: Vec::new(), plots: Vec::new() }
    }
}

#[derive(Serialize)]
pub(super) struct Row {
    pattern: PatternName,
    way: String,
    #[serde(flatten)]
    summary: FleetSummary,
    /// The completion, in multiples of the time for the least bytes that the store has to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    over_least: Option<f64>,
    /// The bytes that the store sent, in multiples of the least that it has to send.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_over_least: Option<f64>,
    /// The time after which 99 of 100 disks are complete, less the time with everything there beforehand, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    later_p99: Option<f64>,
    /// The counts of all nodes together.
    timeouts: u64,
    duplicates: u64,
    withheld: u64,
    resets: u64,
    /// The time of the simulation, in seconds.
    simulated_s: f64,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub(super) fn new(
        pattern: PatternName,
        way: &str,
        outcome: &FleetOutcome,
        warm: Option<&FleetOutcome>,
        reads: &Reads,
        took: Duration,
    ) -> Self {
        let summary = outcome.summary();
        let least = reads.region.map(|region| region as f64);
        let seconds = least.map(|least| least / reads.uplink.max(1) as f64);
        Self {
            pattern,
            way: way.to_owned(),
            over_least: seconds.map(|seconds| summary.completion / seconds),
            store_over_least: least.map(|least| summary.store_bytes as f64 / least),
            later_p99: warm.map(|warm| outcome.later_than(warm, 99)),
            timeouts: outcome.counters.timeouts,
            duplicates: outcome.counters.duplicate,
            withheld: outcome.counters.withheld,
            resets: outcome.counters.resets,
            simulated_s: took.as_secs_f64(),
            summary,
        }
    }
}

impl Outcome for FleetReport {
    /// `true` if all disks read everything.
    fn is_right(&self) -> bool {
        self.rows
            .iter()
            .map(|row| &row.summary)
            .all(|row| row.incomplete == 0 && row.failed == 0 && row.wrong_answers == 0)
    }
}

const COLUMNS: &str = " complete x least  took 50%  took 99%  took max  slowest  fastest   fair  store MB x least \
     store demand  ahead unread   said kB";

impl fmt::Display for FleetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.way.len()).max().unwrap_or(0).max(11);
        let mut pattern = None;
        for row in &self.rows {
            if pattern != Some(row.pattern) {
                let start = if pattern.is_some() { "\n\n" } else { "" };
                let name =
                    row.pattern.to_possible_value().map_or(String::new(), |name| name.get_name().to_owned());
                write!(f, "{start}{name}, {} hosts\n{:width$}{COLUMNS}", self.hosts, "")?;
                pattern = Some(row.pattern);
            }
            row.write(f, width)?;
        }
        for (start, file) in std::iter::once("\n\ndrawn: ").chain(std::iter::repeat(", ")).zip(&self.plots) {
            write!(f, "{start}{file}")?;
        }
        Ok(())
    }
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn write(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let FleetSummary { completion, took_p50, took_p99, took_max, fairness, .. } = self.summary;
        let times = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let mb = |bytes: f64| bytes / 1e6;
        write!(f, "\n{:width$} {completion:>8.2} {:>7}", self.way, times(self.over_least))?;
        write!(f, " {took_p50:>9.3} {took_p99:>9.3} {took_max:>9.3}")?;
        write!(f, " {:>8.2} {:>8.2} {fairness:>6.4}", mb(self.summary.slowest), mb(self.summary.fastest))?;
        write!(f, " {:>9.1} {:>7}", mb(self.summary.store_bytes as f64), times(self.store_over_least))?;
        write!(f, " {:>9.2} {:>6.1}", mb(self.summary.from_store), mb(self.summary.on_demand))?;
        write!(f, " {:>6.1} {:>6.2}", mb(self.summary.prefetched), mb(self.summary.unread))?;
        write!(f, " {:>9.1}", self.summary.talk / 1e3)?;
        if let Some(later) = self.later_p99 {
            write!(f, "  99% at most {later:.3} s later than warm, waited {:.2} s", self.summary.waited)?;
        }
        if self.summary.failed > 0 {
            write!(f, "  {} reads failed", self.summary.failed)?;
        }
        if self.summary.incomplete > 0 {
            write!(f, "  {} of {} disks not complete", self.summary.incomplete, self.summary.disks)?;
        }
        Ok(())
    }
}
