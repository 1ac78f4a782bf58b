//! Labels that callers do not change, and those that say why a layer was unpacked.

use super::*;
use crate::layer_form::{LowerLayer, TURBO_LABEL};
use crate::remote::IMAGE_LABELS;

#[test]
fn an_update_of_all_labels_leaves_a_layer_what_it_is() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, disk) = blocks::with_known_disk(dir.path());
    let mine = SnapshotLabels::from([("mine".to_owned(), "1".to_owned())]);
    let forged = [
        (BLOB_DIGEST, "sha256:00"),
        (TARGET_LABEL, "another"),
        (FALLBACK_LABEL, "a lie"),
        (TURBO_LABEL, "yes"),
    ];
    let forged = forged.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let forged: SnapshotLabels = forged.into_iter().chain(mine.clone()).collect();
    let before = snapshotter.stat(&disk).unwrap().labels;
    for labels in [&mine, &forged] {
        for paths in
            [&[][..], &["labels".to_owned()], &[format!("labels.{BLOB_DIGEST}"), "labels.mine".to_owned()]]
        {
            let after = snapshotter.update(&disk, labels, paths).unwrap().labels;
            let wanted: SnapshotLabels = before.clone().into_iter().chain(mine.clone()).collect();
            assert_eq!(after, wanted, "{paths:?}");
            assert_eq!(snapshotter.below(Some(&disk)), [LowerLayer::KnownDisk]);
        }
    }
    // The labels of an ordinary snapshot are its caller's.
    snapshotter.prepare("plain", "", no_labels()).unwrap();
    let after = snapshotter.update("plain", &forged, &[]).unwrap().labels;
    assert_eq!(after.len(), 3, "all but the one that only the snapshotter gives: {after:?}");
}

#[test]
fn the_lowest_snapshot_that_is_unpacked_says_why() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, _) = open_with(&dir.path().join("root"), Box::new(source_in(dir.path()))).unwrap();
    let prepare = |target: &str, parent: &str, image: &str| {
        let labels = [(TARGET_LABEL, target), (IMAGE_LABELS[0], image)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let key = format!("extract {target}");
        snapshotter.prepare(&key, parent, labels).unwrap();
        snapshotter.commit(target, &key, no_labels()).unwrap();
        snapshotter.stat(target).unwrap().labels.get(FALLBACK_LABEL).cloned()
    };
    let lowest = prepare("fail 1", "", "reg.lan/a:1").unwrap();
    assert!(lowest.contains("cannot be asked"), "{lowest}");
    assert_eq!(prepare("fail 2", "fail 1", "reg.lan/a:1"), None);
    assert_eq!(prepare("fail 2b", "fail 2", "reg.lan/a:1"), None);
    // The next layer of another image, on one that was unpacked for no reason.
    prepare("plain", "", "reg.lan/b:1");
    assert_eq!(prepare("fail 3", "plain", "reg.lan/b:1"), Some(lowest));
}
