//! The results of a VM: requests, bytes, waits.

use headstart_replay::waits::percentile;
use serde::Serialize;
use std::time::Duration;

/// A finished request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub(super) at: Duration,
    pub(super) took: Duration,
    pub(super) bytes: u32,
    pub(super) write: bool,
}

/// The requests that finished since it was last cleared.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    from: Duration,
    list: Vec<Finished>,
}

/// Performance of a VM. Durations of requests are in milliseconds of virtual time, rates per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct VmFigures {
    /// Duration of the measurement, in virtual seconds.
    pub seconds: f64,
    /// The number of requests that were completed.
    pub requests: u64,
    /// Completed requests a second.
    pub rate: f64,
    /// Read bandwidth in MB/s (10^6 bytes).
    pub read: f64,
    /// Write bandwidth in MB/s (10^6 bytes).
    pub written: f64,
    /// Mean latency of requests, in ms; 0 if there were none.
    pub mean: f64,
    /// Median latency of requests, in ms; 0 if there were none.
    pub p50: f64,
    /// 95th percentile of the latency of requests, in ms; 0 if there were none.
    pub p95: f64,
    /// 99th percentile of the latency of requests, in ms; 0 if there were none.
    pub p99: f64,
    /// 95th percentile of the latency of reads, in ms; 0 if there were none.
    pub read_p95: f64,
    /// 95th percentile of the latency of writes, in ms; 0 if there were none.
    pub write_p95: f64,
}

impl VmFigures {
    /// Returns the sum of read and write bandwidth, in MB/s (10^6 bytes).
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.read + self.written
    }
}

impl Tally {
    /// Forgets the past, and measures from now on.
    pub(super) fn clear(&mut self, now: Duration) {
        *self = Self { from: now, list: Vec::new() };
    }

    pub(super) fn add(&mut self, finished: Finished) {
        self.list.push(finished);
    }

    /// The figures up to now.
    pub(super) fn figures(&self, now: Duration) -> VmFigures {
        let seconds = now.saturating_sub(self.from).as_secs_f64().max(1e-9);
        let bytes = |write: bool| {
            let sizes = self.list.iter().filter(|one| one.write == write).map(|one| u64::from(one.bytes));
            ratio(sizes.sum::<u64>(), 1_000_000) / seconds
        };
        let waits = |wanted: &dyn Fn(&Finished) -> bool| {
            let mut list: Vec<_> =
                self.list.iter().filter(|one| wanted(one)).map(|one| one.took.as_secs_f64() * 1e3).collect();
            list.sort_unstable_by(f64::total_cmp);
            list
        };
        let all = waits(&|_| true);
        let requests = all.len() as u64;
        VmFigures {
            seconds,
            requests,
            rate: ratio(requests, 1) / seconds,
            read: bytes(false),
            written: bytes(true),
            mean: all.iter().sum::<f64>() / ratio(requests.max(1), 1),
            p50: percentile(&all, 50),
            p95: percentile(&all, 95),
            p99: percentile(&all, 99),
            read_p95: percentile(&waits(&|one| !one.write), 95),
            write_p95: percentile(&waits(&|one| one.write), 95),
        }
    }

    /// MB a second read in each span of time since it was cleared: the span's middle in seconds, and the rate.
    pub(super) fn course(&self, now: Duration, span: Duration, write: bool) -> Vec<(f64, f64)> {
        let (mut course, mut begin) = (Vec::new(), self.from);
        let mut rest = self.list.as_slice();
        while begin + span <= now {
            let count = rest.partition_point(|one| one.at < begin + span);
            let (part, later) = rest.split_at(count);
            let bytes: u64 =
                part.iter().filter(|one| one.write == write).map(|one| u64::from(one.bytes)).sum();
            let middle = (begin + span / 2).saturating_sub(self.from).as_secs_f64();
            course.push((middle, ratio(bytes, 1_000_000) / span.as_secs_f64()));
            (rest, begin) = (later, begin + span);
        }
        course
    }
}

/// A quotient.
#[expect(clippy::cast_precision_loss, reason = "counts for people")]
pub(super) fn ratio(of: u64, to: u64) -> f64 {
    of as f64 / to.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_course_are_of_what_finished() {
        let mut tally = Tally::default();
        tally.clear(Duration::from_secs(1));
        for number in 1..=100_u64 {
            let at = Duration::from_secs(1) + Duration::from_millis(number * 20 - 1);
            let took = Duration::from_millis(number);
            tally.add(Finished { at, took, bytes: 1_000_000, write: number % 2 == 0 });
        }
        let figures = tally.figures(Duration::from_secs(3));
        assert_eq!((figures.requests, figures.read, figures.written), (100, 25.0, 25.0));
        assert_eq!((figures.p50, figures.p95, figures.p99), (50.0, 95.0, 99.0));
        assert_eq!((figures.read_p95, figures.write_p95), (95.0, 96.0));
        let course = tally.course(Duration::from_secs(3), Duration::from_secs(1), false);
        assert_eq!(course, [(0.5, 25.0), (1.5, 25.0)]);
        assert_eq!(Tally::default().figures(Duration::ZERO).p95, 0.0);
    }
}
