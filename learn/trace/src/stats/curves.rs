//! The curves of the paper's figures: for plots; [`Figures`](super::Figures) has quantiles instead.

use super::ByKind;
use super::distribution::{LogHistogram, cumulative};
use serde::Serialize;

/// Points that a curve has at most.
const POINTS: usize = 200;

/// A cumulative distribution: numbers and the share of values up to each, both rising.
pub type Curve = Vec<(f64, f64)>;

/// Figures 8, 12, 13, 15, 18, 22 and 23; units as in [`Figures`](super::Figures).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curves {
    /// Figure 8.
    pub read_percent: ByKind<Curve>,
    /// Figure 12.
    pub cosine: ByKind<Curve>,
    /// Figure 13.
    pub access_percent: ByKind<Curve>,
    /// Figure 15.
    pub grace_s: ByKind<Curve>,
    /// Figure 18.
    pub interval_us: ByKind<Curve>,
    /// Figure 22: of reads, mean time, time of the first read.
    pub deviation: [Curve; 3],
    /// Figure 23: same family, same user, same metadata.
    pub jaccard: [Curve; 3],
}

/// Figures 3 to 6; units as in [`CreationFigures`](super::CreationFigures).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CreationCurves {
    /// Figure 3.
    pub size_gib: Curve,
    /// Figure 4.
    pub image_ratio: ByKind<Curve>,
    /// Figure 5.
    pub images_per_user: Curve,
    /// Figure 6.
    pub clusters_per_image: Curve,
}

pub(super) fn curve(numbers: &[f64]) -> Curve {
    cumulative(numbers, POINTS)
}

#[expect(clippy::cast_precision_loss, reason = "a plot")]
pub(super) fn curve_of(histogram: &LogHistogram) -> Curve {
    histogram.cumulative().into_iter().map(|(number, share)| (number as f64, share)).collect()
}
