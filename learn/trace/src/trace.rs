//! A whole trace: the creation of the disk, its requests, and samples of the link.

use crate::record::Record;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the label that contains the digest of the image's manifest.
pub const DIGEST: &str = "digest";

/// The name of the label that contains the time from attaching the disk to its first read, in microseconds.
/// The trace of a disk's first boot has this label if the trace's times count from the first read.
pub const ATTACHED_BEFORE: &str = "attached-before-us";

/// The first minutes of a boot: the requests to its disk, with the metadata of the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The metadata of the disk.
    pub creation: Creation,
    /// The requests, in the order of their arrival.
    pub records: Vec<Record>,
    /// Samples of the link to the store, in the order of time; empty if there was no link.
    pub link: Vec<LinkSample>,
    /// The number of requests that are missing in the trace because the recorder had no room for them.
    pub dropped: u64,
}

/// The metadata of a disk at its creation, that is, when it was attached. Unknown texts are empty, and
/// unknown numbers 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Creation {
    /// The unique name of the disk.
    pub volume: String,
    /// The name of the image that the disk was made from.
    pub image: String,
    /// The family of the image, such as an operating system's release.
    pub family: String,
    /// The user that the disk belongs to.
    pub user: String,
    /// The name of the cluster that the host belongs to.
    pub cluster: String,
    /// The name of the host that the disk was attached to.
    pub host: String,
    /// The options of the attach: `key=value`, separated by `;`.
    pub options: String,
    /// The size of the disk, in bytes; 0 if it is unknown.
    pub size: u64,
    /// The time of the boot's first read, or of attaching the disk, in microseconds of Unix time. The times
    /// of records count from this time. Traces that headstart records have the first read.
    pub created_us: u64,
    /// Further properties by name, such as [`DIGEST`], or labels that a user gave.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Creation {
    /// Returns the id of the image: the digest of its manifest if that was recorded, otherwise its name. The
    /// digest is preferred because an image may be attached under several names, and later another image
    /// under the same name.
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

/// The estimate that the pull engine (the fetcher of blocks) had of the link to the store at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSample {
    /// The time of the sample, in microseconds since [`Creation::created_us`].
    pub t_us: u64,
    /// The bandwidth of the link, in bytes a second; `None` if it was not known.
    pub bandwidth: Option<u64>,
    /// The round-trip time of the link, in microseconds; `None` if it was not known.
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
