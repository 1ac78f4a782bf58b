//! Servers of which a part is unsold, for a while (figures 3, 5 and 6).
//!
//! A server has places of the common sizes. They become free at once, as when a large tenant leaves. Each is sold again
//! after a time whose distribution is figure 6's for its size, all places of one server sooner or later together; when
//! all are sold, it takes a memoryless time until they are free once more, so long that the server's mean unsold share
//! is one of figure 3's distribution. (If places were independent, servers with several would be good for 128 GB nearly
//! always, which contradicts figure 5's 32% for 12 hours.) A server that has sold everything for good has no such
//! place.
//!
//! Figure 3 says: 70% of the servers have unsold storage; half of them a mean of 17.3%; a fifth at least 20.1%. Figure
//! 17's fleet has 31% unsold, and 55% on the servers used below 60%: those of figure 3's servers that have at least a
//! fifth unsold; [`super::statistics`] compares figure 17 with these. The paper does not give the size of a server;
//! from figure 5 (half of all can lend 128 GB for an hour) follows that it is about 4 TB.

use super::course::Seconds;
use super::draw::{self, at_quantile};
use super::fleet::{CHANNEL_GB, FleetSettings, Lot};
use super::regular::seconds;
use headstart_block::random::Random;

/// GB of a server.
pub(super) const SERVER_GB: u32 = 4096;

/// Mean unsold shares by quantile (figure 3).
const UNSOLD: [(f64, f64); 9] = [
    (0.0, 0.0),
    (0.28, 0.0),
    (0.5, 0.05),
    (0.65, 0.08),
    (0.8, 0.201),
    (0.9, 0.25),
    (0.95, 0.36),
    (0.97, 0.45),
    (1.0, 0.75),
];

/// The size of a place in channels, its frequency, and the time that it stays unsold: the hazard of the first hour and
/// the exponent of a Weibull distribution through figure 6's points (94, 76 and 62% for 128 GB, 78, 43 and 25% for 512;
/// of 256 GB the geometric mean).
const SIZES: [((u16, f64, f64), f64); 3] =
    [((2, 0.0619, 0.82), 0.35), ((4, 0.139, 0.74), 0.3), ((8, 0.2485, 0.69), 0.35)];

/// The largest share of time that a place is unsold: storage that is always there belongs to no tenant.
const UNSOLD_MAX: f64 = 0.95;

/// The time for which places changed hands before the fleet is watched.
const BEFORE: f64 = 20.0 * 86_400.0;

const PURPOSE: u64 = 21;

pub(super) fn generate(settings: &FleetSettings) -> Vec<Lot> {
    let shares = draw::quantiles(&mut draw::of(settings.seed, PURPOSE, 0), settings.servers);
    let mut lots = Vec::new();
    for (server, quantile) in (0_u32..).zip(shares) {
        let mut random = draw::of(settings.seed, PURPOSE, server as usize + 1);
        let wanted = at_quantile(&UNSOLD, quantile) * f64::from(SERVER_GB);
        fill(&mut random, server, wanted, settings.span(), &mut lots);
    }
    lots.sort_by_key(|lot| (lot.from, lot.server, lot.channels));
    lots
}

/// A size of place: channels, hazard of the first hour, exponent.
type Size = (u16, f64, f64);

fn gigabytes(size: Size) -> f64 {
    f64::from(u32::from(size.0) * CHANNEL_GB)
}

/// A server's places, which are free and sold together; and the average time for which they are sold, for `wanted` GB
/// to be unsold.
fn places(random: &mut Random, wanted: f64) -> (Vec<Size>, f64) {
    let (mut places, mut total) = (Vec::new(), 0.0);
    // GB times hours of one time that they are free, and the time until all are sold again.
    let (mut area, mut longest) = (0.0, 0.0_f64);
    while wanted > 0.0 && area < wanted * longest / UNSOLD_MAX || places.is_empty() {
        // Little is unsold in small places.
        let small = wanted < gigabytes(SIZES[0].0);
        let size = draw::pick(random, &SIZES).filter(|_| !small).unwrap_or(SIZES[0].0);
        if total + gigabytes(size) > f64::from(SERVER_GB) {
            break;
        }
        total += gigabytes(size);
        area += gigabytes(size) * mean_hours(size);
        longest = longest.max(mean_hours(size));
        places.push(size);
    }
    let sold = if wanted > 0.0 { (area / wanted - longest).max(longest * 0.02) } else { f64::INFINITY };
    (places, sold * 3600.0)
}

/// One server's lots: all of them become free at once, and each is sold after a time of its size's distribution, those
/// of a server sooner or later together.
fn fill(random: &mut Random, server: u32, wanted: f64, span: Seconds, lots: &mut Vec<Lot>) {
    let (places, sold) = places(random, wanted);
    if !sold.is_finite() {
        return;
    }
    let mut at = -BEFORE - sold * random.unit();
    while at < f64::from(span) {
        let quantile = 1.0 - random.unit();
        let mut end = at;
        for (channels, hazard, exponent) in &places {
            let until = at + (-quantile.ln() / hazard).powf(1.0 / exponent) * 3600.0;
            end = end.max(until);
            if until >= 1.0 {
                let (from, until) = (seconds(at.max(0.0)), seconds(until));
                lots.extend((until > from).then_some(Lot { server, channels: *channels, from, until }));
            }
        }
        at = end.max(at + 1.0) + random.exponential(sold);
    }
}

/// The mean of the distribution, in hours: an integral over its survival function.
fn mean_hours((_, hazard, exponent): Size) -> f64 {
    const STEP: f64 = 0.5;
    let mut sum = 0.0;
    let mut at = STEP / 2.0;
    while at < 2000.0 {
        sum += STEP * (-hazard * at.powf(exponent)).exp();
        at += STEP;
    }
    sum
}
