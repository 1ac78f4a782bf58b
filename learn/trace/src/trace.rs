//! A whole trace: the creation of the disk, its requests, and samples of the link.

use crate::record::Record;
use headstart_block::saturating;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The name of the label that contains the digest of the image's manifest.
pub const DIGEST: &str = "digest";

/// The name of the label that contains the time from attaching the disk to its first read, in microseconds.
/// The trace of a disk's first boot has this label if the trace's times count from the first read.
pub const ATTACHED_BEFORE: &str = "attached-before-us";

/// The name of the label with the entrypoint of the container whose start was recorded: a short name of its program,
/// the same on all hosts. Boots of machines have none.
pub const ENTRYPOINT: &str = "entrypoint";

/// The name of the label that contains the time from the first read of the trace to the start of the container, in
/// microseconds. Before it, only the file system was mounted; the time in between says nothing of the start.
pub const ENTRYPOINT_AFTER: &str = "entrypoint-after-us";

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

    /// Returns the entrypoint of the container whose start this is; empty for the boot of a machine, and if it is not
    /// known.
    #[must_use]
    pub fn entrypoint(&self) -> &str {
        self.labels.get(ENTRYPOINT).map_or("", String::as_str)
    }

    /// The time from the attach to the moment that the times of records count from, in microseconds.
    pub(crate) fn attached_before_us(&self) -> u64 {
        self.labels.get(ATTACHED_BEFORE).and_then(|us| us.parse().ok()).unwrap_or(0)
    }

    /// `true` if plans are made for both together: they are of one image and one size of disk, and of containers with
    /// the same entrypoint.
    pub(crate) fn is_grouped_with(&self, other: &Self) -> bool {
        self.image_id() == other.image_id()
            && self.size == other.size
            && self.entrypoint() == other.entrypoint()
    }
}

impl Trace {
    /// Returns the requests without the wait for the container: those since its start come as if it had started when
    /// the last request before had ended. An image may be mounted hours before a container of it starts.
    #[must_use]
    pub fn records_without_wait(&self) -> Cow<'_, [Record]> {
        let after = self.creation.labels.get(ENTRYPOINT_AFTER).and_then(|us| us.parse::<u64>().ok());
        let Some(start_us) = after else { return Cow::Borrowed(&self.records) };
        let end_us = |record: &Record| record.t_us.saturating_add(record.service_us.map_or(0, saturating));
        let before = self.records.iter().filter(|record| record.t_us < start_us);
        let wait_us = start_us.saturating_sub(before.map(end_us).max().unwrap_or(0));
        if wait_us == 0 {
            return Cow::Borrowed(&self.records);
        }
        let shifted = self.records.iter().map(|record| {
            let wait_us = if record.t_us < start_us { 0 } else { wait_us };
            Record { t_us: record.t_us - wait_us, ..*record }
        });
        Cow::Owned(shifted.collect())
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
    use crate::record::Op;
    use headstart_block::ByteRange;

    #[test]
    fn the_wait_for_a_container_is_left_out() {
        let record = |t_us, service_us| Record {
            t_us,
            op: Op::Read,
            range: ByteRange::between(0, 512),
            service_us: Some(service_us),
        };
        let at = |start: Option<&str>, records: &[(u64, u32)]| -> Vec<u64> {
            let labels = start.map(|us| (ENTRYPOINT_AFTER.to_owned(), us.to_owned())).into_iter().collect();
            let creation = Creation { labels, ..Creation::default() };
            let records = records.iter().map(|(t_us, service_us)| record(*t_us, *service_us)).collect();
            let trace = Trace { creation, records, ..Trace::default() };
            trace.records_without_wait().iter().map(|record| record.t_us).collect()
        };
        let times = [(0, 5), (20, 30), (1000, 7), (1200, 0)];
        assert_eq!(at(None, &times), [0, 20, 1000, 1200]);
        assert_eq!(at(Some("900"), &times), [0, 20, 150, 350]);
        assert_eq!(at(Some("40"), &times), [0, 20, 1000, 1200]);
        assert_eq!(at(Some("0"), &times), [0, 20, 1000, 1200]);
        assert_eq!(at(Some("-1"), &times), [0, 20, 1000, 1200]);
        assert_eq!(at(Some("18446744073709551615"), &times), [0, 20, 1000, 1200]);
    }

    #[test]
    fn starts_of_other_containers_are_not_grouped() {
        let creation = |entrypoint: &str| Creation {
            image: "a".to_owned(),
            labels: [(ENTRYPOINT.to_owned(), entrypoint.to_owned())].into(),
            ..Creation::default()
        };
        assert!(creation("nginx").is_grouped_with(&creation("nginx")));
        assert!(!creation("nginx").is_grouped_with(&creation("sh")));
        assert!(
            !creation("nginx").is_grouped_with(&Creation { image: "a".to_owned(), ..Creation::default() })
        );
    }

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
