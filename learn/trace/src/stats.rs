//! Statistics of the reads of traces, for one trace and for all traces of a data set: those of sections 3 and 4 of the
//! ThinkAhead paper.
//!
//! | module | counts |
//! |---|---|
//! | [`requests`] | sums of one trace: reads, bytes, distinct units |
//! | [`boot`] | the numbers that the paper's figures take from one trace; figures 9 and 16 |
//! | [`creations`] | the numbers that the figures take from the table of creations alone: figures 3 to 7 and 14 |
//! | [`figures`] | the numbers that the figures take from all traces: figures 2, 8, 12, 13, 15, 18, 20, 22, 23 |
//! | [`curves`] | the curves of these figures, for plots |
//! | `group` | the common properties of the traces of one image |
//! | [`similarity`] | the similarity of two traces: of the read counts, the sets, and the order of their blocks |
//! | [`distribution`] | quantiles |
//!
//! One pass over the traces is enough; the traces of an image must come one after another. Reducing a trace to its
//! numbers takes one sort of its reads, and no look-up in a map for each read. Memory grows with the number of
//! creations (some numbers for each) and with the distinct blocks of one image.

pub mod boot;
pub mod creations;
pub mod curves;
pub mod distribution;
pub mod figures;
mod group;
pub mod requests;
pub mod similarity;

pub use boot::BootCounts;
pub use creations::CreationFigures;
pub use curves::{CreationCurves, Curves};
pub use distribution::{Distribution, LogHistogram};
pub use figures::{Collector, Figures};
pub use requests::{RequestStats, SIZES, UNITS, median, size_class};

use crate::fast26::META_INFO;
use crate::trace::Creation;
use serde::Serialize;

/// The size of a block, in bytes; the ThinkAhead paper counts in this unit.
pub const BLOCK: u64 = 2 << 20;

/// The kind of an image by its maker: the provider or a user. In the published data set the id of an image
/// shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MakerKind {
    /// Ids that start with `p-`: images of the provider.
    Public,
    /// Ids that start with `m-`: images of users.
    User,
    /// Any other ids.
    Other,
}

impl MakerKind {
    /// Returns the kind of the image with this id.
    #[must_use]
    pub fn of(image: &str) -> Self {
        match image.as_bytes() {
            [b'p', b'-', ..] => Self::Public,
            [b'm', b'-', ..] => Self::User,
            _ => Self::Other,
        }
    }
}

/// A value for each kind of image.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ByKind<T> {
    /// The value for images of the provider.
    pub public: T,
    /// The value for images of users.
    pub user: T,
    /// The value for images whose id does not show their maker.
    pub other: T,
}

impl<T> ByKind<T> {
    /// Returns a mutable reference to the value for `kind`.
    pub fn of(&mut self, kind: MakerKind) -> &mut T {
        match kind {
            MakerKind::Public => &mut self.public,
            MakerKind::User => &mut self.user,
            MakerKind::Other => &mut self.other,
        }
    }

    /// Returns the results of applying `map` to each value.
    pub fn map<U>(&self, map: impl Fn(&T) -> U) -> ByKind<U> {
        ByKind { public: map(&self.public), user: map(&self.user), other: map(&self.other) }
    }

    /// Returns the three values, each with the name of its kind: `public`, `user` and `other`, in this order.
    pub fn each(&self) -> [(&'static str, &T); 3] {
        [("public", &self.public), ("user", &self.user), ("other", &self.other)]
    }
}

/// Returns the value of the property `key` of a creation: the label `key` if there is one, otherwise the value in an
/// entry `key=value` of the label `meta_info`, otherwise the value in such an entry of the options. Entries are
/// separated by `;`. `None` if none of the three has the property.
#[must_use]
pub fn property<'a>(creation: &'a Creation, key: &str) -> Option<&'a str> {
    let within = |text: &'a str| {
        text.split(';').filter_map(|part| part.split_once('=')).find(|(name, _)| *name == key).map(|(_, v)| v)
    };
    let label = |name| creation.labels.get(name).map(String::as_str);
    label(key).or_else(|| label(META_INFO).and_then(within)).or_else(|| within(&creation.options))
}

/// Returns the size of the image that a disk was made from, in bytes: the [`property`] `image_size` of the creation.
/// `None` if there is no such property, or its value is 0 or no number.
#[must_use]
pub fn image_size(creation: &Creation) -> Option<u64> {
    property(creation, "image_size").and_then(|text| text.parse().ok()).filter(|size| *size > 0)
}
