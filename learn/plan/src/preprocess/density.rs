//! The density of some numbers, its peaks, and the cuts between the peaks (ThinkAhead paper, section 5.2).
//!
//! The paper does not say how it estimates the density. Here the density is the sum of a hump of the shape `(1 - u²)²`
//! for each number (a polynomial, so that every machine finds the same). The width of the humps follows Silverman's
//! rule with the interquartile range, and is at least a fiftieth of the middle number, because boots whose numbers of
//! blocks differ by less do not differ in kind.

/// Returns the cuts that divide `numbers` between the peaks of their density: one at the lowest density between each
/// two neighbouring peaks, in ascending order. A number below a cut belongs to a part before it; a number that is the
/// cut or above it, to a part after it. A cut need not be one of `numbers`. Empty if there is only one peak, or no
/// number. `numbers` must be in ascending order.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between the least number and the largest"
)]
pub fn cuts(numbers: &[usize]) -> Vec<usize> {
    /// Points at which the density is looked at.
    const POINTS: u32 = 1024;
    let (Some(least), Some(most)) = (numbers.first(), numbers.last()) else { return Vec::new() };
    let width = width(numbers);
    let (start, end) = (as_f64(*least) - width, as_f64(*most) + width);
    let step = (end - start) / f64::from(POINTS);
    let points: Vec<_> = (0..=POINTS).map(|point| start + f64::from(point) * step).collect();
    let densities: Vec<_> = points.iter().map(|point| density(numbers, *point, width)).collect();
    let mut cuts = Vec::new();
    // The lowest point since the last peak, as a plateau's first and last; and its direction, up or down.
    let (mut low, mut rising, mut has_peak) = ((0, 0), true, false);
    for at in 1..densities.len() {
        let (before, now) = (densities[at - 1], densities[at]);
        if now > before {
            if !rising && has_peak {
                let middle = f64::midpoint(points[low.0], points[low.1]);
                cuts.push(middle.ceil().max(0.0) as usize);
            }
            rising = true;
        } else if now < before {
            (rising, has_peak, low) = (false, true, (at, at));
        } else if !rising {
            low.1 = at;
        }
    }
    cuts
}

/// The width of the humps.
fn width(numbers: &[usize]) -> f64 {
    let at = |quarter: usize| as_f64(numbers[(numbers.len() - 1) * quarter / 4]);
    // Silverman: 0.9 min(σ, IQR / 1.34) n^(-1/5); this hump needs 2.78 of a Gaussian's width. The root by squares
    // only.
    let count = as_f64(numbers.len());
    let mean = numbers.iter().map(|number| as_f64(*number)).sum::<f64>() / count;
    let deviation = (numbers.iter().map(|n| (as_f64(*n) - mean).powi(2)).sum::<f64>() / count).sqrt();
    let spread = deviation.min((at(3) - at(1)) / 1.34);
    // A fifth root, by Newton's steps from above.
    let root = (0..100).fold(count.max(1.0), |x, _| x - (x - count / x.powi(4)) / 5.0);
    (2.78 * 0.9 * spread / root).max(at(2) / 50.0).max(1.0)
}

fn density(numbers: &[usize], point: f64, width: f64) -> f64 {
    let from = numbers.partition_point(|number| as_f64(*number) <= point - width);
    let near = numbers[from..].iter().map(|number| (as_f64(*number) - point) / width);
    near.take_while(|u| *u < 1.0).map(|u| (1.0 - u * u).powi(2)).sum()
}

#[expect(clippy::cast_precision_loss, reason = "numbers of blocks")]
fn as_f64(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peak_is_one_part() {
        assert!(cuts(&[]).is_empty());
        assert!(cuts(&[7]).is_empty());
        assert!(cuts(&[400; 50]).is_empty());
        let around: Vec<_> = (0..100).map(|i| 395 + i / 10).collect();
        assert!(cuts(&around).is_empty());
    }

    #[test]
    fn peaks_are_cut_at_the_lowest_point_between() {
        let mut numbers: Vec<_> = (0..40).map(|i| 400 + i % 4).chain((0..25).map(|i| 500 + i % 3)).collect();
        numbers.extend([800; 9]);
        numbers.sort_unstable();
        let cuts = cuts(&numbers);
        assert_eq!(cuts.len(), 2, "{cuts:?}");
        assert!((404..=500).contains(&cuts[0]) && (503..=800).contains(&cuts[1]), "{cuts:?}");
    }
}
