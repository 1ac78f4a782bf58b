//! The curves of the figures of the ThinkAhead paper, for plots. [`Figures`](super::Figures) has percentiles of the
//! same numbers instead.

use super::ByKind;
use super::distribution::{LogHistogram, cumulative};
use serde::Serialize;

/// Points that a curve has at most.
const POINTS: usize = 200;

/// A cumulative distribution: pairs of a value and the share (0 to 1) of values that are not greater, both ascending;
/// empty without values.
pub type Curve = Vec<(f64, f64)>;

/// The curves of figures 8, 12, 13, 15, 18, 22 and 23 of the ThinkAhead paper; [`Figures`](super::Figures)
/// has percentiles of the same numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curves {
    /// The percentage of reads among a trace's requests in its first three minutes (figure 8 of the
    /// ThinkAhead paper).
    pub read_percent: ByKind<Curve>,
    /// The cosine of the read counts of two traces of an image, 0 to 1 (figure 12 of the ThinkAhead paper).
    pub cosine: ByKind<Curve>,
    /// The percentage of a disk's blocks that a trace reads in six minutes (figure 13 of the ThinkAhead
    /// paper).
    pub access_percent: ByKind<Curve>,
    /// The time from the creation of a disk to its first read, in seconds (figure 15 of the ThinkAhead
    /// paper).
    pub grace_s: ByKind<Curve>,
    /// The time from a read to the next, in microseconds (figure 18 of the ThinkAhead paper).
    pub interval_us: ByKind<Curve>,
    /// Standard deviations between the traces of an image (figure 22 of the ThinkAhead paper), in this order: of the
    /// number of reads of a block, of the mean time of these reads, and of the time of the first read. Each is divided
    /// as in [`Deviations`](super::figures::Deviations).
    pub deviation: [Curve; 3],
    /// Jaccard's index (common blocks divided by all, 0 to 1) of the blocks of two images (figure 23 of the
    /// ThinkAhead paper), in this order: images with the same family but not the same user, with the same
    /// family and user but not the same configuration, and with all three equal.
    pub jaccard: [Curve; 3],
}

/// The curves of figures 3 to 6 of the ThinkAhead paper; [`CreationFigures`](super::CreationFigures) has
/// percentiles of the same numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CreationCurves {
    /// The size of a disk in GiB (figure 3 of the ThinkAhead paper).
    pub size_gib: Curve,
    /// The size of the image divided by the size of the disk (figure 4 of the ThinkAhead paper).
    pub image_ratio: ByKind<Curve>,
    /// The number of distinct images that a user creates disks from (figure 5 of the ThinkAhead paper).
    pub images_per_user: Curve,
    /// The number of clusters in which an image is used (figure 6 of the ThinkAhead paper).
    pub clusters_per_image: Curve,
}

pub(super) fn curve(numbers: &[f64]) -> Curve {
    cumulative(numbers, POINTS)
}

#[expect(clippy::cast_precision_loss, reason = "a plot")]
pub(super) fn curve_of(histogram: &LogHistogram) -> Curve {
    histogram.cumulative().into_iter().map(|(number, share)| (number as f64, share)).collect()
}
