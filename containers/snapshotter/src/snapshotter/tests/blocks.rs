//! Layers of blocks for differs, and those that differs apply.

use super::*;
use crate::layer_form::{BlobContent, BlobFate, LowerLayer, fate_of_blob};
use std::io::Write;

/// A snapshotter with the committed layer `name` of an image that containerd knows by its blocks.
pub(crate) fn with_known_disk(dir: &Path) -> (Snapshotter, String) {
    let root = dir.join("root");
    let (snapshotter, _) = open_with(&root, Box::new(source_in(dir))).unwrap();
    let name = base();
    let target = SnapshotLabels::from([(TARGET_LABEL.to_owned(), name.clone())]);
    snapshotter.prepare("extract", "", target).unwrap_err();
    (snapshotter, name)
}

fn writable() -> SnapshotLabels {
    [("containerd.io/snapshot/overlaybd.writable".to_owned(), "dir".to_owned())].into()
}

fn place(mounts: &[SnapshotMount]) -> PathBuf {
    PathBuf::from(&mounts[0].source)
}

#[test]
fn what_differs_between_a_disk_and_its_parent_is_a_layer_of_blocks() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, disk) = with_known_disk(dir.path());
    let left = place(&snapshotter.view("left", &disk, no_labels()).unwrap());
    let right = place(&snapshotter.prepare("one", &disk, writable()).unwrap());
    fs::write(right.join("data"), "blocks of one").unwrap();
    let changed = |left: &Path, right: &Path, media_type: &str| {
        let found = snapshotter.changed_blocks(left, right, media_type).unwrap();
        found.map(|layer| (layer.digest, layer.size))
    };
    let one = Some((Digest::of(b"blocks of one"), 13));
    assert_eq!(changed(&left, &right, ""), one);
    assert_eq!(fs::read_dir(right.parent().unwrap()).unwrap().count(), 2, "nothing is left of it");
    // Callers that want a tar, and pairs that are no disk and its parent.
    assert_eq!(changed(&left, &right, "application/vnd.oci.image.layer.v1.tar+gzip"), None);
    assert_eq!(changed(&right, &left, ""), None);
    assert_eq!(changed(dir.path(), &right, ""), None);

    snapshotter.commit("layer", "one", no_labels()).unwrap();
    let sealed = place(&snapshotter.view("sealed", "layer", no_labels()).unwrap());
    assert_eq!(changed(&left, &sealed, ""), one);
    let two = place(&snapshotter.prepare("two", "layer", writable()).unwrap());
    fs::write(two.join("data"), "blocks of two").unwrap();
    assert_eq!(changed(&sealed, &two, ""), Some((Digest::of(b"blocks of two"), 13)));
    assert_eq!(changed(&left, &two, ""), None, "two layers are no layer");
    // Overlayfs on a disk is for another differ.
    let overlay = snapshotter.prepare("three", "layer", no_labels()).unwrap();
    let upper = dir.path().join("root/snapshots").join(overlay[0].options[1].rsplit('/').nth(1).unwrap());
    assert_eq!(changed(&sealed, &upper.join("fs"), ""), None);
}

#[test]
fn disks_that_cannot_be_looked_at_do_not_hinder_others() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, disk) = with_known_disk(dir.path());
    let left = place(&snapshotter.view("left", &disk, no_labels()).unwrap());
    let later = "disk of a later version";
    let target = SnapshotLabels::from([(TARGET_LABEL.to_owned(), later.to_owned())]);
    snapshotter.prepare("extract later", "", target).unwrap_err();
    let away = place(&snapshotter.prepare("a disk that is away", &disk, writable()).unwrap());
    fs::write(away.with_file_name("away"), "").unwrap();
    let right = place(&snapshotter.prepare("one", &disk, writable()).unwrap());
    fs::write(right.join("data"), "blocks of one").unwrap();
    assert!(snapshotter.changed_blocks(&left, &right, "").unwrap().is_some());
    assert_eq!(snapshotter.snapshot_at(&right).unwrap().unwrap().below, [LowerLayer::KnownDisk]);
    assert_eq!(snapshotter.snapshot_at(&away).unwrap(), None);
}

#[test]
fn layers_that_are_applied_at_once_do_not_share_a_file() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, disk) = with_known_disk(dir.path());
    let mounts = snapshotter.prepare("extract-1 x", &disk, no_labels()).unwrap();
    let upper = mounts[0].options.iter().find_map(|option| option.strip_prefix("upperdir=")).unwrap();
    let target = snapshotter.snapshot_at(Path::new(upper)).unwrap().unwrap();
    let digest = |content: &[u8]| Digest::of(content);
    let [long, short, other] = [&b"blocks of one"[..], b"blocks", b"blocks of another"];
    let mut files = Vec::new();
    for content in [long, short, short, other] {
        let file = snapshotter.new_layer_file(&target).unwrap();
        (&*file.file).write_all(content).unwrap();
        files.push((file, digest(content)));
    }
    // The first copy is one that ended half-way.
    files.remove(0);
    let kept: Vec<_> =
        files.iter().map(|(file, digest)| snapshotter.keep_layer(&target, file, digest)).collect();
    assert!(kept[0].is_ok() && kept[1].is_ok(), "the same layer twice is one: {kept:?}");
    assert_eq!(kept[2].as_ref().unwrap_err().kind, FaultKind::FailedPrecondition, "another one is none");
    drop(files);
    let block = Path::new(upper).with_file_name("block");
    let left: Vec<_> = fs::read_dir(&block).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["applied"], "copies that were not kept are gone");
    assert_eq!(fs::read(block.join("applied")).unwrap(), short);
}

#[test]
fn a_disk_that_containerd_knows_by_tars_gives_no_layer_of_blocks() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, _) = open_with(&dir.path().join("root"), Box::new(source_in(dir.path()))).unwrap();
    let target = SnapshotLabels::from([(TARGET_LABEL.to_owned(), "disk 1".to_owned())]);
    snapshotter.prepare("extract", "", target).unwrap_err();
    let left = place(&snapshotter.view("left", "disk 1", no_labels()).unwrap());
    let right = place(&snapshotter.prepare("one", "disk 1", writable()).unwrap());
    assert!(snapshotter.changed_blocks(&left, &right, "").unwrap().is_none());
    // Nor does an empty disk, which no image lists.
    let left = place(&snapshotter.view("nothing", "", no_labels()).unwrap());
    let right = place(&snapshotter.prepare("empty", "", writable()).unwrap());
    assert!(snapshotter.changed_blocks(&left, &right, "").unwrap().is_none());
}

#[test]
fn a_layer_that_is_applied_is_the_layer_of_its_snapshot_over_restarts() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, disk) = with_known_disk(dir.path());
    let content = b"blocks of a layer";
    let upper = |key: &str, snapshotter: &Snapshotter| {
        let mounts = snapshotter.mounts(key).unwrap();
        let upper = mounts[0].options.iter().find_map(|option| option.strip_prefix("upperdir="));
        upper.map_or_else(|| place(&mounts), PathBuf::from)
    };
    // As containerd unpacks it, and as clients prepare it without labels in both modes.
    for (key, labels) in [("extract-1 x", no_labels()), ("overlay", no_labels()), ("disk", writable())] {
        snapshotter.prepare(key, &disk, labels.clone()).unwrap();
        let target = snapshotter.snapshot_at(&upper(key, &snapshotter)).unwrap().unwrap();
        assert_eq!(target.below, [LowerLayer::KnownDisk]);
        assert_eq!(fate_of_blob(&target.below, BlobContent::Blocks), BlobFate::Kept);
        let file = snapshotter.new_layer_file(&target).unwrap();
        (&*file.file).write_all(content).unwrap();
        let fault = snapshotter.keep_layer(&target, &file, &Digest::of(b"other")).unwrap_err();
        assert!(fault.text.contains("has the digest"), "{fault}");
        snapshotter.keep_layer(&target, &file, &Digest::of(content)).unwrap();
        let fault = snapshotter.mounts(key).unwrap_err();
        assert_eq!(
            (fault.kind, fault.text.contains("is to be committed")),
            (FaultKind::FailedPrecondition, true)
        );
        assert!(snapshotter.usage(key).unwrap().size > 0);
    }
    // Something was written there.
    snapshotter.prepare("written", &disk, no_labels()).unwrap();
    let written = upper("written", &snapshotter);
    fs::write(written.join("file"), "x").unwrap();
    let target = snapshotter.snapshot_at(&written).unwrap().unwrap();
    let file = snapshotter.new_layer_file(&target).unwrap();
    let fault = snapshotter.keep_layer(&target, &file, &Digest::of(b"")).unwrap_err();
    assert_eq!(
        (fault.kind, fault.text.contains("is used")),
        (FaultKind::FailedPrecondition, true),
        "{fault}"
    );
    drop(snapshotter);

    let (snapshotter, report) = open_with(&dir.path().join("root"), Box::new(source_in(dir.path()))).unwrap();
    assert_eq!((report.snapshots, report.missing.len(), report.unfinished), (5, 0, 0));
    for key in ["extract-1 x", "overlay", "disk"] {
        let name = format!("layer of {key}");
        snapshotter.commit(&name, key, no_labels()).unwrap();
        let id = snapshotter.stat(&name).unwrap().id;
        let directory = dir.path().join(format!("root/snapshots/{id}"));
        assert_eq!(fs::read(directory.join("fs/overlaybd.sealed")).unwrap(), content);
        assert!(!directory.join("block").exists());
        // It is a disk of the image with the layer on top.
        assert_eq!(
            snapshotter.prepare(&format!("child of {key}"), &name, writable()).unwrap()[0].kind,
            "bind"
        );
    }
}
