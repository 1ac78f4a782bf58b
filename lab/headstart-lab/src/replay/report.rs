//! The result of a replay, for people and programs.

use super::arguments::ClockName;
use super::player::Played;
use headstart_block::words::count;
use headstart_command_line::report::{Fields, Outcome};
use headstart_replay::Nanos;
use headstart_replay::outcome::SLOW;
use serde::Serialize;
use std::fmt;

/// The bars of the histogram, in columns.
const BAR: f64 = 40.0;

/// The end of the first bucket, in nanoseconds; the others are 2, 5, 10, 20 times as much, and so on.
const FIRST_BUCKET: u64 = 10_000;

/// The figures.
#[derive(Serialize)]
pub(super) struct ReplayReport {
    pub(super) trace: String,
    pub(super) uri: String,
    pub(super) clock: ClockName,
    pub(super) faster: u32,
    /// From the connection to the first read. All times are in seconds.
    pub(super) grace: f64,
    /// Reads that were sent and answered.
    pub(super) reads: u64,
    pub(super) reads_of_trace: u64,
    /// Reads that were not sent, because the guest had written all their bytes.
    pub(super) skipped_written: u64,
    /// Writes of the trace, none of which was sent.
    pub(super) writes: u64,
    pub(super) errors: u64,
    /// The error of the first failed read, or the cause of an early end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) first_error: Option<String>,
    pub(super) interrupted: bool,
    /// Bytes that were requested.
    pub(super) bytes: u64,
    pub(super) wait: WaitFigures,
    pub(super) hit_bound: f64,
    pub(super) hits: u64,
    pub(super) hit_rate: f64,
    /// Reads that waited longer than a second.
    pub(super) slow: u64,
    /// The times at which the first read was due, and the last answer came.
    pub(super) first_read: f64,
    pub(super) last_read: f64,
    pub(super) late: Late,
    pub(super) histogram: Vec<Bucket>,
    pub(super) plots: Vec<String>,
}

/// The waits of reads, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct WaitFigures {
    /// The sum of all waits.
    total: f64,
    /// The sum of the waits of reads that were no hits.
    missed: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// The delays of the replayer itself, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Late {
    mean: f64,
    max: f64,
}

/// The number of reads in a range of waits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Bucket {
    /// The longest wait of the range, in seconds; it begins after the one before.
    pub(super) to: f64,
    pub(super) reads: u64,
}

/// Figures of waits.
pub(super) struct Figures {
    pub(super) wait: WaitFigures,
    pub(super) hits: u64,
    pub(super) slow: u64,
    pub(super) late: Late,
    pub(super) first_read: f64,
    pub(super) last_read: f64,
    pub(super) histogram: Vec<Bucket>,
}

#[expect(clippy::cast_precision_loss, reason = "for people and statistics")]
fn per(sum: Nanos, reads: usize) -> f64 {
    sum.as_secs() / reads.max(1) as f64
}

impl Figures {
    pub(super) fn of(played: &Played, hit: Nanos) -> Self {
        let mut waits: Vec<_> = played.done.iter().map(|done| done.waited).collect();
        waits.sort_unstable();
        let sum = |waits: &[Nanos]| waits.iter().fold(Nanos(0), |sum, wait| sum.plus(*wait));
        let hits = waits.partition_point(|wait| *wait <= hit);
        let percentile = |percent: usize| {
            let place = (waits.len() * percent).div_ceil(100).max(1) - 1;
            waits.get(place).map_or(0.0, |wait| wait.as_secs())
        };
        let total = sum(&waits);
        let wait = WaitFigures {
            total: total.as_secs(),
            missed: sum(&waits[hits..]).as_secs(),
            mean: per(total, waits.len()),
            p50: percentile(50),
            p90: percentile(90),
            p99: percentile(99),
            max: percentile(100),
        };
        let first_read = played.done.iter().map(|done| done.due).min().unwrap_or_default();
        let last_read = played.done.iter().map(|done| done.due.plus(done.waited)).max().unwrap_or_default();
        Self {
            wait,
            hits: hits as u64,
            slow: (waits.len() - waits.partition_point(|wait| *wait <= SLOW)) as u64,
            late: Late { mean: per(played.late, waits.len()), max: played.latest.as_secs() },
            first_read: first_read.as_secs(),
            last_read: last_read.as_secs(),
            histogram: histogram(&waits),
        }
    }
}

/// The histogram of ascending waits.
fn histogram(waits: &[Nanos]) -> Vec<Bucket> {
    let ends = (0..)
        .map(|n: u32| FIRST_BUCKET.saturating_mul([1, 2, 5][n as usize % 3] * 10_u64.saturating_pow(n / 3)));
    let (mut buckets, mut before) = (Vec::new(), 0);
    for end in ends {
        if before == waits.len() {
            break;
        }
        let until = waits.partition_point(|wait| *wait <= Nanos(end));
        if until > before || !buckets.is_empty() {
            buckets.push(Bucket { to: Nanos(end).as_secs(), reads: (until - before) as u64 });
        }
        before = until;
    }
    buckets
}

impl Outcome for ReplayReport {
    fn is_right(&self) -> bool {
        self.errors == 0 && self.first_error.is_none() && !self.interrupted
    }
}

/// A time in the form that people read.
struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            time if time >= 10.0 => write!(f, "{time:.1} s"),
            time if time >= 1.0 => write!(f, "{time:.3} s"),
            time if time >= 1e-3 => write!(f, "{:.2} ms", time * 1e3),
            time => write!(f, "{:.0} µs", time * 1e6),
        }
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WaitFigures { total, missed, mean, p50, p90, p99, max } = self.wait;
        let mut reads = format!("{} of {}", self.reads, self.reads_of_trace);
        if self.skipped_written > 0 {
            reads += &format!("; {} of what was written before were not sent", self.skipped_written);
        }
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let megabytes = format!("{:.1} MB asked for", self.bytes as f64 / 1e6);
        let mut fields = vec![
            ("reads", reads),
            ("bytes", megabytes),
            ("wait", format!("{} in all, {} of it in reads that missed", Time(total), Time(missed))),
            (
                "one read",
                format!(
                    "mean {}, P50 {}, P90 {}, P99 {}, longest {}",
                    Time(mean),
                    Time(p50),
                    Time(p90),
                    Time(p99),
                    Time(max)
                ),
            ),
            (
                "hits",
                format!("{} ({:.1} %) within {}", self.hits, self.hit_rate * 100.0, Time(self.hit_bound)),
            ),
            ("slow", format!("{} longer than 1 s", count(self.slow, "read"))),
            ("first read", format!("{} after the connection", Time(self.first_read))),
            ("last answer", format!("{} after the connection", Time(self.last_read))),
            (
                "replayer",
                format!("late by {} in the mean, {} at most", Time(self.late.mean), Time(self.late.max)),
            ),
        ];
        if self.writes > 0 {
            fields.insert(1, ("writes", format!("{} of the trace were not sent", self.writes)));
        }
        if self.errors > 0 {
            fields.push(("failed", count(self.errors, "read")));
        }
        if let Some(error) = &self.first_error {
            fields.push(("error", error.clone()));
        }
        if self.interrupted {
            fields.push(("interrupted", "the other reads were not sent".to_owned()));
        }
        Fields(&fields).fmt(f)?;
        let most = self.histogram.iter().map(|bucket| bucket.reads).max().unwrap_or(0);
        for Bucket { to, reads } in &self.histogram {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a bar of at most 40 columns"
            )]
            let bar = (*reads as f64 / most.max(1) as f64 * BAR).ceil() as usize;
            let line = format!("  up to {:>8} {reads:>8} {}", Time(*to).to_string(), "#".repeat(bar));
            write!(f, "\n{}", line.trim_end())?;
        }
        for (start, file) in std::iter::once("\ndrawn: ").chain(std::iter::repeat(", ")).zip(&self.plots) {
            write!(f, "{start}{file}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::player::Done;
    use super::*;

    fn played(waits: &[u64]) -> Played {
        let due = |n: usize| Nanos::from_micros(n as u64 * 1000);
        let done =
            waits.iter().enumerate().map(|(n, us)| Done { due: due(n), waited: Nanos::from_micros(*us) });
        Played { done: done.collect(), ..Played::default() }
    }

    #[test]
    fn waits_are_counted_and_summed_up() {
        let figures = Figures::of(&played(&[100, 2_500_000, 2000, 2001]), Nanos::from_micros(2000));
        assert_eq!((figures.hits, figures.slow), (2, 1));
        assert!(
            (figures.wait.total - 2.504_101).abs() < 1e-9 && (figures.wait.missed - 2.502_001).abs() < 1e-9
        );
        assert_eq!((figures.wait.p50, figures.wait.p90, figures.wait.max), (0.002, 2.5, 2.5));
        assert_eq!((figures.first_read, figures.last_read), (0.0, 2.501));
        let reads: Vec<_> = figures.histogram.iter().map(|bucket| bucket.reads).collect();
        assert_eq!((figures.histogram[0], reads.iter().sum::<u64>()), (Bucket { to: 1e-4, reads: 1 }, 4));
        assert_eq!(figures.histogram.last(), Some(&Bucket { to: 5.0, reads: 1 }));
    }

    #[test]
    fn a_replay_without_reads_has_zero_waits() {
        let figures = Figures::of(&played(&[]), Nanos(0));
        assert_eq!((figures.hits, figures.wait.mean, figures.wait.max), (0, 0.0, 0.0));
        assert!(figures.histogram.is_empty());
    }
}
