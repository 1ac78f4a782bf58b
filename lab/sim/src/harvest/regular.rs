//! Regular VMs: the storage that they own, and their use of it.
//!
//! *Bandwidth* (figures 1, 4 and 16). Each VM has a mean, below 33% and 9.2% over all. Around it levels change every
//! half an hour, as in `data/harvest`, with noise that has a memory and a tide of a day. A quarter of the servers is
//! bursty: all its VMs together use everything for some minutes, on average every 28 hours. That quarter is what makes
//! figure 4: 91% of the servers can spare half their bandwidth for 12 hours, 76% for three days.
//!
//! *Capacity* (figures 2 and 15). Each VM has a mean from figure 2's distribution, read so: a fifth of the VMs uses
//! next to nothing; half of them use, averaged over time, at most 26.4%; a fifth uses 90% and more. Read so it also has
//! the means that figure 15 begins with, 43% over all VMs and 20% of those that use less than 60%; the other reading,
//! that the lower half's mean is 26.4%, has not. Around the mean levels change every 87 minutes; some VMs have spurts,
//! temporary files for 40 minutes, so that the mean of maxima is about 6 points above the mean, figure 15's 49%.

use super::course::{Course, Seconds};
use super::draw::{self, at_quantile};
use super::fleet::{BANDWIDTH, DAY, FleetSettings, RegularVm, SERVER_CHANNELS};
use headstart_block::random::Random;
use headstart_predictors::series::DemandSeries;
use std::sync::Arc;

/// Channels of a VM, by how common they are: 128, 256 and 512 GB are the common sizes (section 4.4.1).
const CHANNELS: [(u16, f64); 3] = [(2, 0.5), (4, 0.3), (8, 0.2)];

/// The means of bandwidth, for [`BANDWIDTH`] over all, by quantile.
const BANDWIDTH_MEANS: [(f64, f64); 6] =
    [(0.0, 0.005), (0.25, 0.035), (0.5, 0.07), (0.75, 0.12), (0.95, 0.24), (1.0, 0.325)];
/// The average time for which a level of bandwidth is held: as in `data/harvest`.
const BANDWIDTH_HOLD: f64 = 1800.0;
/// The deviation of a level's logarithm.
const BANDWIDTH_NOISE: f64 = 0.5;
/// The share of a level's deviation that the next inherits.
const BANDWIDTH_MEMORY: f64 = 0.6;
/// The tide's share of the mean.
const TIDE: f64 = 0.3;
/// The most outside of bursts.
const QUIET_MAX: f64 = 0.45;

/// The share of bursty servers.
const BURSTY: f64 = 0.26;
/// From one burst to the next, on average.
const BURST_EVERY: f64 = 28.2 * 3600.0;
/// The average length of a burst, and the least.
const BURST_LASTS: (f64, f64) = (15.0 * 60.0, 3.0 * 60.0);
/// Bursts that leave less than a tenth.
const BURST_FULL: f64 = 0.85;

/// The means of capacity by quantile (figure 2).
const CAPACITY_MEANS: [(f64, f64); 8] = [
    (0.0, 0.0),
    (0.2, 0.03),
    (0.3, 0.21),
    (0.5, 0.264),
    (0.58, 0.49),
    (0.64, 0.60),
    (0.8, 0.90),
    (1.0, 0.975),
];
/// The average time for which a level of capacity is held: as in `data/harvest`.
const CAPACITY_HOLD: f64 = 5200.0;
/// The deviation of a level, as a share of used or free capacity, the lesser of the two.
const CAPACITY_NOISE: f64 = 0.06;
/// The share of a level's deviation that the next inherits.
const CAPACITY_MEMORY: f64 = 0.9;
/// The share of VMs with spurts.
const SPURTING: f64 = 0.2;
/// From one spurt to the next, on average.
const SPURT_EVERY: f64 = 3.0 * 86_400.0;
/// The average length of a spurt.
const SPURT_LASTS: f64 = 40.0 * 60.0;

/// The purposes for which numbers are drawn.
mod purpose {
    pub(super) const SIZE: u64 = 11;
    pub(super) const MEAN: u64 = 12;
    pub(super) const SERVER: u64 = 13;
    pub(super) const BANDWIDTH: u64 = 14;
    pub(super) const CAPACITY: u64 = 15;
    pub(super) const SERIES: u64 = 16;
}

/// The server and the number of channels of each VM: each server is filled before the next.
fn placed(settings: &FleetSettings) -> Vec<(u32, u16)> {
    let mut random = draw::of(settings.seed, purpose::SIZE, 0);
    let (mut server, mut free) = (0, SERVER_CHANNELS);
    let place = |_| {
        let channels = draw::pick(&mut random, &CHANNELS).unwrap_or(2);
        if channels > free {
            (server, free) = (server + 1, SERVER_CHANNELS);
        }
        free -= channels;
        (server, channels)
    };
    (0..settings.vms).map(place).collect()
}

pub(super) fn generate(settings: &FleetSettings) -> Vec<RegularVm> {
    let placed = placed(settings);
    let servers = placed.last().map_or(0, |(server, _)| *server as usize + 1);
    let bursts = bursts(settings, servers);
    let mut random = draw::of(settings.seed, purpose::MEAN, 0);
    let bandwidths = draw::quantiles(&mut random, settings.vms);
    let capacities = draw::quantiles(&mut random, settings.vms);
    let vms = placed.into_iter().zip(bandwidths.into_iter().zip(capacities));
    vms.enumerate()
        .map(|(n, ((server, channels), (bandwidth, capacity)))| {
            let mean = at_quantile(&BANDWIDTH_MEANS, bandwidth) * settings.bandwidth / BANDWIDTH;
            let bursts = bursts.get(server as usize).map_or(&[][..], Vec::as_slice);
            let mut random = draw::of(settings.seed, purpose::BANDWIDTH, n);
            let bandwidth = bandwidth_course(&mut random, mean, bursts, settings.span());
            let mut random = draw::of(settings.seed, purpose::CAPACITY, n);
            let capacity =
                capacity_course(&mut random, at_quantile(&CAPACITY_MEANS, capacity), settings.span());
            RegularVm { server, channels, bandwidth, capacity }
        })
        .collect()
}

/// A while in which more is used.
#[derive(Clone, Copy)]
struct Burst {
    from: Seconds,
    until: Seconds,
    level: f64,
}

/// The bursts of each server.
fn bursts(settings: &FleetSettings, servers: usize) -> Vec<Vec<Burst>> {
    let bursty = draw::quantiles(&mut draw::of(settings.seed, purpose::SERVER, 0), servers);
    let of = |(server, quantile): (usize, f64)| {
        let mut random = draw::of(settings.seed, purpose::SERVER, server + 1);
        let mut list = Vec::new();
        let mut at = random.exponential(BURST_EVERY);
        while quantile < BURSTY && at < f64::from(settings.span()) {
            let lasts = random.exponential(BURST_LASTS.0).max(BURST_LASTS.1);
            let full = random.unit() < BURST_FULL;
            let level = if full { 0.92 + 0.08 * random.unit() } else { 0.55 + 0.3 * random.unit() };
            list.push(Burst { from: seconds(at), until: seconds(at + lasts), level });
            at += lasts + random.exponential(BURST_EVERY);
        }
        list
    };
    bursty.into_iter().enumerate().map(of).collect()
}

/// Noise with a memory, held for a while each.
pub(super) struct Noise {
    pub(super) hold: f64,
    pub(super) memory: f64,
    pub(super) state: f64,
}

impl Noise {
    /// The next deviation, in units of the standard one, and the time for which it is held: at least ten seconds.
    pub(super) fn next(&mut self, random: &mut Random) -> (f64, Seconds) {
        let fresh = (1.0 - self.memory * self.memory).sqrt();
        self.state = self.memory * self.state + fresh * random.normal();
        (self.state, seconds(random.exponential(self.hold)).max(10))
    }
}

fn bandwidth_course(random: &mut Random, mean: f64, bursts: &[Burst], span: Seconds) -> Course {
    let mut noise = Noise { hold: BANDWIDTH_HOLD, memory: BANDWIDTH_MEMORY, state: random.normal() };
    let phase = random.unit();
    let mut quiet = Course::default();
    let mut at = 0;
    while at < span {
        let (deviation, long) = noise.next(random);
        let tide = (std::f64::consts::TAU * (f64::from(at) / f64::from(DAY) + phase)).sin();
        let level = (BANDWIDTH_NOISE * deviation).exp() * (1.0 + TIDE * tide);
        quiet.push(at, single(level));
        at += long;
    }
    let burst: f64 = bursts.iter().map(|one| one.level * f64::from(one.until - one.from)).sum();
    let rest = (mean - burst / f64::from(span)).max(0.002);
    let times = rest / f64::from(quiet.over(0, span).mean).max(1e-9);
    with_bursts(&quiet.scaled(single(times), single(QUIET_MAX)), bursts, |_, burst| burst)
}

/// The course with bursts, each at the level that `of` makes of the course's level and the burst's.
fn with_bursts(course: &Course, bursts: &[Burst], of: impl Fn(f64, f64) -> f64) -> Course {
    let mut list = bursts.iter().peekable();
    let mut with = Course::default();
    let mut steps = course.steps().iter().peekable();
    let mut until = 0;
    loop {
        let step = steps.peek().map_or(Seconds::MAX, |(at, _)| *at);
        match list.peek() {
            Some(burst) if burst.from < step => {
                with.push(burst.from, single(of(f64::from(course.at(burst.from)), burst.level)));
                until = burst.until;
                // The level before comes back where the burst ends, if no step does.
                while steps.next_if(|(at, _)| *at <= until).is_some() {}
                with.push(until, course.at(until));
                list.next();
            }
            _ => match steps.next() {
                Some((at, level)) if *at >= until => with.push(*at, *level),
                Some(_) => {}
                None => return with,
            },
        }
    }
}

fn capacity_course(random: &mut Random, mean: f64, span: Seconds) -> Course {
    let room = mean.min(1.0 - mean);
    let mut noise = Noise { hold: CAPACITY_HOLD, memory: CAPACITY_MEMORY, state: random.normal() };
    let mut course = Course::default();
    let mut at = 0;
    while at < span {
        let (deviation, long) = noise.next(random);
        course.push(at, single((mean + CAPACITY_NOISE * room * deviation).clamp(0.0, 1.0)));
        at += long;
    }
    let mut spurts = Vec::new();
    let spurting = random.unit() < SPURTING;
    let mut at = random.exponential(SPURT_EVERY);
    while spurting && at < f64::from(span) {
        let lasts = random.exponential(SPURT_LASTS).max(180.0);
        let level = 0.2 + 0.4 * random.unit();
        spurts.push(Burst { from: seconds(at), until: seconds(at + lasts), level });
        at += lasts + random.exponential(SPURT_EVERY);
    }
    with_bursts(&course, &spurts, |below, share| below + share * (1.0 - below))
}

pub(super) fn replay(
    settings: &FleetSettings,
    bandwidth: &[Arc<DemandSeries>],
    capacity: &[Arc<DemandSeries>],
) -> Vec<RegularVm> {
    let vms = placed(settings).into_iter().enumerate();
    vms.map(|(n, (server, channels))| {
        let mut random = draw::of(settings.seed, purpose::SERIES, n);
        let mut course = |list: &[Arc<DemandSeries>]| {
            let series = list.get(random.below(list.len()));
            let start = random.unit();
            series.map_or(Course::constant(0.0), |series| replayed(series, start, settings.span()))
        };
        RegularVm { server, channels, bandwidth: course(bandwidth), capacity: course(capacity) }
    })
    .collect()
}

/// A series from a moment on, a share of its length, over and over.
fn replayed(series: &DemandSeries, start: f64, span: Seconds) -> Course {
    let highest = series.highest().max(f32::MIN_POSITIVE);
    let skip = series.length().mul_f64(start);
    let mut course = Course::default();
    let (mut passed, mut at) = (std::time::Duration::ZERO, 0.0);
    for run in series.runs().iter().cycle() {
        let before = passed;
        passed += run.length;
        if passed > skip {
            course.push(seconds(at), run.level / highest);
            at += (passed - skip.max(before)).as_secs_f64();
        }
        if at >= f64::from(span) {
            break;
        }
    }
    course
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates: a number of seconds")]
pub(super) fn seconds(number: f64) -> Seconds {
    number as Seconds
}

#[expect(clippy::cast_possible_truncation, reason = "a share")]
pub(super) fn single(share: f64) -> f32 {
    share as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_predictors::series::LevelRun;
    use std::time::Duration;

    #[test]
    fn a_level_comes_back_after_a_burst() {
        let mut course = Course::constant(0.1);
        course.push(100, 0.2);
        let bursts = [Burst { from: 50, until: 60, level: 1.0 }, Burst { from: 90, until: 110, level: 0.9 }];
        let with = with_bursts(&course, &bursts, |_, burst| burst);
        let expected = [(0, 0.1), (50, 1.0), (60, 0.1), (90, 0.9), (110, 0.2)];
        assert_eq!(with.steps(), expected);
    }

    #[test]
    fn a_series_is_replayed_over_and_over() {
        let run = |length, level| LevelRun { length: Duration::from_secs(length), level };
        let series = DemandSeries::new([run(10, 1.0), run(30, 4.0)]).unwrap();
        let expected = [(0, 1.0), (20, 0.25), (30, 1.0), (60, 0.25), (70, 1.0)];
        assert_eq!(replayed(&series, 0.5, 80).steps(), expected);
    }
}
