//! A whole trace: the creation of the disk, its requests, and samples of the link.

use crate::record::Record;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The label that has the digest of the image's manifest.
pub const DIGEST: &str = "digest";

/// The label that has the time from the attach to the first read, in microseconds: of the first boot of a disk whose
/// times count from its first read.
pub const ATTACHED_BEFORE: &str = "attached-before-us";

/// The first minutes of one disk's I/O.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The creation of the disk.
    pub creation: Creation,
    /// The requests, in the order of their arrival.
    pub records: Vec<Record>,
    /// Samples of the link to the store, once a second; empty if there was no link.
    pub link: Vec<LinkSample>,
    /// Requests that were left out because the recorder was full.
    pub dropped: u64,
}

/// The metadata of a disk, known from the moment at which it was attached. Unknown fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Creation {
    /// The unique name of the disk.
    pub volume: String,
    /// The image that the disk was made of.
    pub image: String,
    /// The family of the image, such as an operating system's release.
    pub family: String,
    /// The user of the disk.
    pub user: String,
    /// The cluster of the host.
    pub cluster: String,
    /// The host.
    pub host: String,
    /// The options of the attach: `key=value`, separated by `;`.
    pub options: String,
    /// Size of the disk in bytes.
    pub size: u64,
    /// The time at which this boot first read it, or it was attached, in microseconds of Unix time: the times of
    /// records count from here.
    pub created_us: u64,
    /// Other properties that a user wanted to keep.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Creation {
    /// The id of its image: the digest of the image's manifest if it was recorded, because an image may be
    /// attached under several names, and another one later under the same; otherwise the name.
    #[must_use]
    pub fn image_id(&self) -> &str {
        self.labels.get(DIGEST).map_or(&self.image, |digest| digest)
    }

    /// The time from the attach to the moment that the times of records count from, in microseconds.
    pub(crate) fn attached_before_us(&self) -> u64 {
        self.labels.get(ATTACHED_BEFORE).and_then(|us| us.parse().ok()).unwrap_or(0)
    }

    /// `true` if plans are made for both together: they are of one image and one size of disk.
    pub(crate) fn is_grouped_with(&self, other: &Self) -> bool {
        self.image_id() == other.image_id() && self.size == other.size
    }
}

/// The pull engine's estimate of the link at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSample {
    /// The moment, in microseconds since the time of [`Creation::created_us`].
    pub t_us: u64,
    /// Bytes a second.
    pub bandwidth: Option<u64>,
    /// Round trip in microseconds.
    pub round_trip_us: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_its_digest_where_that_is_known() {
        let creation = |image: &str, digest: Option<&str>| Creation {
            image: image.to_owned(),
            labels: digest.map(|digest| (DIGEST.to_owned(), digest.to_owned())).into_iter().collect(),
            ..Creation::default()
        };
        let here = creation("http://a/store:v1", Some("sha256:1"));
        assert!(here.is_grouped_with(&creation("http://b/store:v1", Some("sha256:1"))));
        assert!(!here.is_grouped_with(&creation("http://a/store:v1", Some("sha256:2"))));
        assert!(!here.is_grouped_with(&creation("http://a/store:v1", None)));
        assert!(creation("p-a", None).is_grouped_with(&creation("p-a", None)));
    }
}
