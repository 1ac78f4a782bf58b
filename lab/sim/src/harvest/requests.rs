//! Harvest VMs: their requests and their real use (section 5.2).
//!
//! They ask for 32 to 512 GB, small requests being more common, for 30 minutes to 8.5 days, 2.1 days on average, and
//! for bandwidth in proportion, a channel for 64 GB. They do not use all of a request, which the paper does not mention
//! and matters for utilisation, because only real use counts: capacity grows over the first fifth of the time to 85 to
//! 95% of the request, bandwidth has a mean of 30 to 70% of it.

use super::course::{Course, STEP, Seconds};
use super::draw;
use super::fleet::{CHANNEL_GB, DAY, Demand, FleetSettings, HarvestVm};
use super::regular::{Noise, seconds, single};
use headstart_block::random::Random;
use headstart_block::{exact, saturating};

/// Requested GB: least, most, and the unit of which they are a multiple (section 4.3.2).
const GIGABYTES: (f64, f64, f64) = (32.0, 512.0, 16.0);
/// Logarithms of sizes are the square of even ones: small sizes are common.
const SIZE_EXPONENT: f64 = 2.0;
/// Requested seconds: least and most.
const LASTS: (f64, f64) = (1800.0, 8.5 * 86_400.0);
/// The exponent that makes the mean 2.1 days.
const LASTS_EXPONENT: f64 = 0.585;

const PURPOSE: u64 = 31;

/// Between two numbers, even in their logarithm where the exponent is 1.
fn between((least, most): (f64, f64), exponent: f64, unit: f64) -> f64 {
    least * (most / least).powf(unit.powf(exponent))
}

pub(super) fn generate(settings: &FleetSettings) -> Vec<HarvestVm> {
    let mut random = draw::of(settings.seed, PURPOSE, 0);
    let sizes = draw::quantiles(&mut random, settings.requests);
    let times = draw::quantiles(&mut random, settings.requests);
    let (begins, span) = (settings.begins(), f64::from(settings.span() - settings.begins()));
    let make = |(size, time): (f64, f64)| {
        let (least, most, unit) = GIGABYTES;
        let wanted = (between((least, most), SIZE_EXPONENT, size) / unit).round() * unit;
        let gigabytes = seconds(wanted);
        let channels = saturating(gigabytes.div_ceil(CHANNEL_GB));
        // They come and go between two steps.
        let whole = |at: Seconds| at / STEP * STEP;
        let lasts = whole(seconds(between(LASTS, LASTS_EXPONENT, time)).max(1800));
        HarvestVm {
            at: begins + seconds(span * random.unit()),
            lasts,
            gigabytes,
            channels,
            seed: random.bits(),
        }
    };
    let mut requests: Vec<_> = sizes.into_iter().zip(times).map(make).collect();
    requests.sort_by_key(|request| (request.at, request.seed));
    requests
}

impl HarvestVm {
    /// Draws the storage that the harvest VM really uses over time, from its seed: always the same for the
    /// same VM.
    #[must_use]
    pub fn demand(&self) -> Demand {
        let mut random = Random::new(self.seed);
        let peak = 0.85 + 0.10 * random.unit();
        let first = 0.1 + 0.3 * random.unit();
        let (stairs, mut capacity) = (8_u32, Course::default());
        for stair in 0..=stairs {
            let at = u64::from(self.lasts) * u64::from(stair) / u64::from(stairs * 5);
            let share = first + (peak - first) * f64::from(stair) / f64::from(stairs);
            capacity.push(exact(at, "it is within the lease, whose seconds have 32 bits"), single(share));
        }
        let mean = 0.3 + 0.4 * random.unit();
        let mut noise = Noise { hold: 1800.0, memory: 0.6, state: random.normal() };
        let (mut bandwidth, mut at) = (Course::default(), 0);
        while at < self.lasts.min(30 * DAY) {
            let (deviation, long) = noise.next(&mut random);
            bandwidth.push(at, single((mean + 0.15 * deviation).clamp(0.02, 1.0)));
            at += long;
        }
        Demand { bandwidth, capacity }
    }
}
