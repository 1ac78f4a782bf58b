//! Labels that the snapshotter gives or relies on, and that callers do not change.

use super::disks::{LAYER_LABEL, QUOTA_LABEL};
use crate::layer_form::{BLOB_DIGEST, TURBO_LABEL};
use crate::record::{SnapshotContent, SnapshotLabels, SnapshotRecord, SnapshotState};
use crate::remote::{FALLBACK_LABEL, IMAGE_LABELS, TARGET_LABEL};
use crate::snapshotter::Snapshotter;
use headstart_block::ComplaintLevel;

/// Labels that only the snapshotter gives.
const GIVEN: [&str; 4] = [LAYER_LABEL, QUOTA_LABEL, FALLBACK_LABEL, TURBO_LABEL];
/// Labels of remote layers by which it is known whether containerd's manifest lists them as disks.
const OF_REMOTE: [&str; 2] = [BLOB_DIGEST, TARGET_LABEL];
/// Bytes of a label's value at most: containerd allows 4096 for both parts of a label.
const REASON_MOST: usize = 1024;
/// The image in a log line, if containerd has not named it.
const NO_NAME: &str = "an image without a name";

/// A caller's labels, without those that only the snapshotter gives: tools believe the file that one of them names, and
/// containerd hands on the annotations of an image's layers as labels.
pub(super) fn without_ours(mut labels: SnapshotLabels) -> SnapshotLabels {
    for name in GIVEN {
        labels.remove(name);
    }
    labels
}

/// The labels for an update of a snapshot: those that a caller gives, and our own as they are.
pub(super) fn updated(record: &SnapshotRecord, mut given: SnapshotLabels) -> SnapshotLabels {
    let is_remote =
        matches!(&record.state, SnapshotState::Committed { content: SnapshotContent::Remote(_), .. });
    let of_remote = OF_REMOTE.iter().filter(|_| is_remote);
    for name in GIVEN.iter().chain(of_remote) {
        match record.labels.get(*name) {
            Some(own) => given.insert((*name).to_owned(), own.clone()),
            None => given.remove(*name),
        };
    }
    given
}

impl Snapshotter {
    /// Notes why a layer is unpacked that could have been a disk's: in the log, once for an image and a cause, and in
    /// the labels of the lowest snapshot that is unpacked for this cause.
    pub(super) fn note_fallback(&self, target: &str, parent: &str, labels: &mut SnapshotLabels, why: &str) {
        let image = IMAGE_LABELS.iter().find_map(|label| labels.get(*label));
        let image = image.map_or(NO_NAME, String::as_str);
        let line = "an image is unpacked, as it cannot be had as a disk; once the cause is gone, remove the image and \
                    pull it again";
        match self.fallbacks.next((image.to_owned(), why.to_owned())) {
            ComplaintLevel::Warning { .. } => tracing::warn!(image, layer = target, why, "{line}"),
            ComplaintLevel::Debug => tracing::debug!(image, layer = target, why, "{line}"),
        }
        let reason = &why[..why.floor_char_boundary(REASON_MOST)];
        let table = self.table.read();
        let is_noted =
            |below: &&SnapshotRecord| below.labels.get(FALLBACK_LABEL).is_some_and(|noted| noted == reason);
        if !table.chain(Some(parent)).iter().any(is_noted) {
            labels.insert(FALLBACK_LABEL.to_owned(), reason.to_owned());
        }
    }
}
