use super::LowerLayer::{Directory, KnownDisk, OtherDisk, Sealed};
use super::*;
use crate::record::{RemoteLayer, SnapshotId, SnapshotTime, SnapshotUsage};

/// Layers, the top one first, and whether they are a disk in the manifest that lists them.
const STACKS: [(&[LowerLayer], bool); 12] = [
    (&[], false),
    (&[Directory], false),
    (&[OtherDisk], false),
    (&[Sealed], false),
    (&[KnownDisk], true),
    (&[KnownDisk, KnownDisk], true),
    (&[Sealed, KnownDisk], true),
    (&[Sealed, Sealed, KnownDisk, KnownDisk], true),
    (&[Sealed, OtherDisk], false),
    (&[KnownDisk, OtherDisk], false),
    (&[Directory, KnownDisk], false),
    (&[Sealed, Sealed], false),
];

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const TAR: &str = "application/vnd.oci.image.layer.v1.tar";

#[test]
fn layers_of_blocks_are_for_disks_and_for_callers_that_leave_the_choice() {
    for (below, is_disk) in STACKS {
        let form = if is_disk { DiffForm::Blocks } else { DiffForm::Tar };
        assert_eq!(form_of_diff(below, ""), form, "{below:?}");
        for media_type in [GZIP, TAR, "application/vnd.docker.image.rootfs.diff.tar.gzip", "other"] {
            assert_eq!(form_of_diff(below, media_type), DiffForm::Tar, "{below:?} {media_type}");
        }
    }
}

#[test]
fn blobs_with_blocks_are_kept_on_disks_and_refused_elsewhere() {
    for (below, is_disk) in STACKS {
        assert_eq!(fate_of_blob(below, BlobContent::Other), BlobFate::Unpacked, "{below:?}");
        let kept = fate_of_blob(below, BlobContent::Blocks);
        assert_eq!(kept == BlobFate::Kept, is_disk, "{below:?}");
        assert!(
            is_disk || matches!(kept, BlobFate::Refused(why) if why.contains("layer of a disk")),
            "{kept:?}"
        );
        let turbo = fate_of_blob(below, BlobContent::Turbo);
        assert!(matches!(turbo, BlobFate::Refused(why) if why.contains("TurboOCI")), "{turbo:?}");
    }
}

#[test]
fn the_content_of_a_blob_is_known_by_annotations_or_by_its_beginning() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let turbo = "containerd.io/snapshot/overlaybd/turbo-oci/target-digest";
    let fastoci = "containerd.io/snapshot/overlaybd/fastoci/target-digest";
    for (annotations, begins, content) in [
        (names(&[]), false, BlobContent::Other),
        (names(&[]), true, BlobContent::Blocks),
        (names(&["other", BLOB_DIGEST]), false, BlobContent::Blocks),
        (names(&[BLOB_DIGEST, turbo]), false, BlobContent::Turbo),
        (names(&[fastoci, BLOB_DIGEST]), true, BlobContent::Turbo),
    ] {
        assert_eq!(content_of(annotations.iter(), || begins), content, "{annotations:?}");
    }
}

fn committed(content: SnapshotContent, labels: &[(&str, &str)]) -> SnapshotRecord {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    SnapshotRecord {
        id: SnapshotId(1),
        key: "layer".to_owned(),
        parent: None,
        state: SnapshotState::Committed { usage: SnapshotUsage::default(), content },
        labels,
        created: SnapshotTime::default(),
        updated: SnapshotTime::default(),
    }
}

#[test]
fn a_disks_layer_is_known_by_its_blocks_if_its_chain_id_is_made_of_them() {
    let remote = || SnapshotContent::Remote(RemoteLayer("image".to_owned()));
    let sealed = || SnapshotContent::Sealed(RemoteLayer("image".to_owned()));
    let (one, two, tar) =
        (Digest::of(b"1").to_string(), Digest::of(b"2").to_string(), Digest::of(b"t").to_string());
    let chain = Digest::of(format!("{one} {two}").as_bytes()).to_string();
    let first = committed(remote(), &[(TARGET_LABEL, &one), (BLOB_DIGEST, &one)]);
    let second = committed(remote(), &[(TARGET_LABEL, &chain), (BLOB_DIGEST, &two)]);
    let top = committed(sealed(), &[]);
    assert_eq!(lower_layers(&[&first, &second, &top]), [Sealed, KnownDisk, KnownDisk]);
    // The form of an original: containerd knows the layers by the digests of tars.
    let original = committed(remote(), &[(TARGET_LABEL, &tar)]);
    let liar = committed(remote(), &[(TARGET_LABEL, &tar), (BLOB_DIGEST, &one)]);
    assert_eq!(lower_layers(&[&original]), [OtherDisk]);
    assert_eq!(lower_layers(&[&liar]), [OtherDisk]);
    // The second layer of another chain.
    assert_eq!(lower_layers(&[&liar, &second]), [OtherDisk, OtherDisk]);
    assert_eq!(lower_layers(&[&committed(SnapshotContent::Directory, &[])]), [Directory]);
}
