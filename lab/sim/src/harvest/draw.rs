//! Numbers drawn from the distributions that fleets are made of.

use headstart_block::random::{Random, mix};

/// A separate generator for each purpose and thing, so that one more of these changes nothing of the others.
pub(super) fn of(seed: u64, purpose: u64, thing: usize) -> Random {
    Random::new(mix(mix(seed ^ purpose.wrapping_mul(0x9e37_79b9)).wrapping_add(thing as u64)))
}

/// The value at a quantile of a distribution that is linear between points `(quantile, value)`, which go from 0 to 1.
pub(super) fn at_quantile(points: &[(f64, f64)], quantile: f64) -> f64 {
    let after = points.partition_point(|(at, _)| *at <= quantile).clamp(1, points.len().max(2) - 1);
    match (points.get(after - 1), points.get(after)) {
        (Some((x0, y0)), Some((x1, y1))) if x1 > x0 => y0 + (y1 - y0) * (quantile - x0) / (x1 - x0),
        (Some((_, y)), _) => *y,
        _ => 0.0,
    }
}

/// Each of `count` things gets a quantile of its own, in an order that is drawn: a small fleet has the statistics of a
/// large one.
#[expect(clippy::cast_precision_loss, reason = "a number of things")]
pub(super) fn quantiles(random: &mut Random, count: usize) -> Vec<f64> {
    let mut all: Vec<_> = (0..count).map(|n| (n as f64 + random.unit()) / count as f64).collect();
    for n in (1..count).rev() {
        all.swap(n, random.below(n + 1));
    }
    all
}

/// One of the items, by weight.
pub(super) fn pick<T: Copy>(random: &mut Random, weighted: &[(T, f64)]) -> Option<T> {
    let mut left = random.unit() * weighted.iter().map(|(_, weight)| weight).sum::<f64>();
    for (one, weight) in weighted {
        left -= weight;
        if left < 0.0 {
            return Some(*one);
        }
    }
    weighted.last().map(|(one, _)| *one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_all_different_parts() {
        let mut drawn = quantiles(&mut Random::new(3), 50);
        assert!(drawn.windows(2).any(|two| two[0] > two[1]), "shuffled");
        drawn.sort_by(f64::total_cmp);
        assert!(drawn.iter().enumerate().all(|(n, at)| (*at * 50.0).floor() as usize == n));
        let points = [(0.0, 1.0), (0.5, 2.0), (1.0, 10.0)];
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 1.0].map(|at| at_quantile(&points, at)),
            [1.0, 1.5, 2.0, 6.0, 10.0]
        );
    }

    #[test]
    fn an_entry_without_weight_is_not_picked() {
        assert_eq!(pick(&mut Random::new(1), &[(1, 0.0), (2, 1.0), (3, 0.0)]), Some(2));
    }
}
