//! The use of a vSSD, second by second, and its consequences: samples of three minutes, forecasts for the broker.

use headstart_block::Time;
use headstart_broker::BrokerEvent;
use headstart_flash::{VssdId, VssdKind};
use headstart_forecast::{Forecast, ForecastSettings, Forecaster, Sample, Side, Stat};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The I/O of a VM, since its vSSD was opened.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    read: AtomicU64,
    written: AtomicU64,
    operations: AtomicU64,
}

impl Meter {
    pub(crate) fn read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes read, bytes written, operations.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.read, &self.written, &self.operations].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A quantity over the part of a step that is over.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    max: f32,
    min: f32,
    /// The sum over time, in seconds.
    sum: f32,
    time: f32,
}

impl Seen {
    fn add(&mut self, value: f32, time: f32) {
        if self.time == 0.0 {
            (self.max, self.min) = (value, value);
        }
        (self.max, self.min) = (self.max.max(value), self.min.min(value));
        self.sum += value * time;
        self.time += time;
    }

    fn stat(&self) -> Stat {
        Stat { max: self.max, min: self.min, mean: self.sum / self.time.max(1e-6) }
    }
}

/// Samples one vSSD and forecasts it.
pub(crate) struct Sampler {
    forecaster: Forecaster,
    /// Bytes a second of one channel.
    rate: f32,
    begun: Time,
    last: Time,
    counts: [u64; 3],
    bandwidth: Seen,
    iops: Seen,
    used: Seen,
    forecast: Option<Forecast>,
}

impl Sampler {
    pub(crate) fn new(settings: ForecastSettings, rate: u64, now: Time) -> Self {
        Self {
            forecaster: Forecaster::new(settings),
            rate: float(rate.max(1)),
            begun: now,
            last: now,
            counts: [0; 3],
            bandwidth: Seen::default(),
            iops: Seen::default(),
            used: Seen::default(),
            forecast: None,
        }
    }

    /// Takes the I/O until now, and the used flash blocks. Returns a forecast if a step of this length is over.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        counts: [u64; 3],
        used: u64,
        kind: VssdKind,
        step: Duration,
    ) -> Option<Forecast> {
        let passed = now.since(self.last).as_secs_f32();
        if passed <= 0.0 {
            return None;
        }
        let [read, written, operations] = [0, 1, 2].map(|at| counts[at].saturating_sub(self.counts[at]));
        self.bandwidth.add(float(read + written) / passed / self.rate, passed);
        self.iops.add(float(operations) / passed, passed);
        self.used.add(float(used), passed);
        (self.last, self.counts) = (now, counts);
        if now.since(self.begun) < step {
            return None;
        }
        self.begun = now;
        let sample =
            Sample { bandwidth: self.bandwidth.stat(), iops: self.iops.stat(), used: self.used.stat() };
        (self.bandwidth, self.iops, self.used) = Default::default();
        self.forecaster.observe(&sample);
        let side = if kind == VssdKind::Harvest { Side::Demand } else { Side::Supply };
        self.forecast = Some(self.forecaster.forecast(side));
        self.forecast
    }

    /// The newest forecast.
    pub(crate) fn forecast(&self) -> Option<Forecast> {
        self.forecast
    }

    /// Replaces the forecast by one from elsewhere.
    pub(crate) fn set_forecast(&mut self, forecast: Forecast) {
        self.forecast = Some(forecast);
    }
}

/// A forecast as an event for the broker.
pub(crate) fn event(vssd: VssdId, forecast: Forecast) -> BrokerEvent {
    let Forecast { bandwidth, capacity, lasts } = forecast;
    BrokerEvent::Forecast { vssd, bandwidth, capacity, lasts }
}

#[expect(clippy::cast_precision_loss, reason = "samples are f32")]
fn float(number: u64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_sampled() {
        let settings = ForecastSettings {
            channels: 4,
            blocks: 100,
            unit: 10,
            horizon: 1,
            ..ForecastSettings::default()
        };
        let mut sampler = Sampler::new(settings, 100, Time(0));
        let (step, second) = (Duration::from_secs(3), |second: u64| Time(second * 1_000_000));
        assert_eq!(sampler.observe(second(1), [100, 50, 7], 20, VssdKind::Regular, step), None);
        assert_eq!(sampler.observe(second(1), [100, 50, 7], 20, VssdKind::Regular, step), None);
        assert_eq!(sampler.observe(second(2), [100, 50, 7], 30, VssdKind::Regular, step), None);
        let seen = sampler.bandwidth.stat();
        assert!(
            (seen.max - 1.5).abs() < 1e-3 && seen.min == 0.0 && (seen.mean - 0.75).abs() < 1e-3,
            "{seen:?}"
        );
        let forecast = sampler.observe(second(3), [100, 50, 7], 30, VssdKind::Regular, step).unwrap();
        assert!(forecast.bandwidth <= 3 && forecast.capacity <= 70, "{forecast:?}");
    }
}
