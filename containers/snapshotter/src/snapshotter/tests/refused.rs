//! Snapshots that would have wrong files, or none, and are refused or made in another way.

use super::*;

const WRITABLE: &str = "containerd.io/snapshot/overlaybd.writable";

fn labels(pairs: &[(&str, &str)]) -> SnapshotLabels {
    pairs.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect()
}

/// A snapshotter in `dir` whose containers get disks, with the remote layers `names`.
fn with_layers(dir: &Path, names: &[&str]) -> Snapshotter {
    let root = dir.join("root");
    let own_disks = Some(DiskAccess::Directory);
    let settings =
        SnapshotterSettings { are_commits_durable: false, own_disks, ..SnapshotterSettings::new(root) };
    let (snapshotter, _) = Snapshotter::open(settings, Box::new(source_in(dir)), clock()).unwrap();
    for name in names {
        snapshotter.prepare("extract-1 x", "", labels(&[(TARGET_LABEL, name)])).unwrap_err();
    }
    snapshotter
}

#[test]
fn a_disk_that_can_only_be_read_has_overlayfs_by_default_and_is_refused_to_those_that_ask_for_a_disk() {
    let dir = TempDir::new().unwrap();
    let snapshotter = with_layers(dir.path(), &["disk 1", "disk read-only"]);
    let kind = |mounts: Vec<SnapshotMount>| mounts[0].kind;
    assert_eq!(kind(snapshotter.prepare("own", "disk 1", no_labels()).unwrap()), "bind");
    assert_eq!(kind(snapshotter.prepare("over", "disk read-only", no_labels()).unwrap()), "overlay");
    let labels_of = |key: &str| snapshotter.stat(key).unwrap().labels;
    assert!(!labels_of("own").contains_key(FALLBACK_LABEL));
    let reason = labels_of("over")[FALLBACK_LABEL].clone();
    assert!(reason.contains("EROFS") && reason.contains("without --fs erofs"), "{reason}");
    for mode in ["dir", "dev"] {
        let asked = labels(&[(WRITABLE, mode)]);
        let fault = snapshotter.prepare(mode, "disk read-only", asked).unwrap_err();
        assert_eq!(fault.kind, FaultKind::FailedPrecondition);
        assert!(fault.text.contains("without --fs erofs") && fault.text.contains(mode), "{fault}");
        assert_eq!(snapshotter.stat(mode).unwrap_err().kind, FaultKind::NotFound);
    }
    let asked = labels(&[(WRITABLE, "overlayfs")]);
    assert_eq!(kind(snapshotter.prepare("asked", "disk read-only", asked).unwrap()), "overlay");
    assert!(!labels_of("asked").contains_key(FALLBACK_LABEL));
}

#[test]
fn a_layer_of_blocks_that_was_unpacked_as_files_is_no_layer() {
    let dir = TempDir::new().unwrap();
    let snapshotter = with_layers(dir.path(), &[]);
    let unpack = |number: usize, files: &[&str]| {
        let key = format!("k8s.io/{number}/extract-1 sha256:0");
        let mounts = snapshotter.prepare(&key, "", no_labels()).unwrap();
        for file in files {
            fs::write(Path::new(&mounts[0].source).join(file), "").unwrap();
        }
        snapshotter.commit(&format!("layer {number}"), &key, no_labels())
    };
    for (number, files) in
        [&["overlaybd.commit"][..], &[".turbo.ociv1", "ext4.fs.meta", "gzip.meta"]].into_iter().enumerate()
    {
        let fault = unpack(number, files).unwrap_err();
        assert_eq!(fault.kind, FaultKind::FailedPrecondition);
        assert!(fault.text.contains("overlaybd.commit") && fault.text.contains("oci-mediatypes"), "{fault}");
    }
    unpack(10, &["overlaybd.commit", "etc"]).unwrap();
    unpack(11, &[]).unwrap();
    // What a container writes is its own.
    let mounts = snapshotter.prepare("container", "layer 11", no_labels()).unwrap();
    let upper = mounts[0].options.iter().find_map(|option| option.strip_prefix("upperdir=")).unwrap();
    fs::write(Path::new(upper).join("overlaybd.commit"), "").unwrap();
    snapshotter.commit("written", "container", no_labels()).unwrap();
}

#[test]
fn a_build_on_layers_whose_data_is_in_another_image_is_refused() {
    let dir = TempDir::new().unwrap();
    let base = base();
    for (is_turbo, said) in [(false, None), (true, Some("--mode native"))] {
        let dir = dir.path().join(is_turbo.to_string());
        fs::create_dir(&dir).unwrap();
        let snapshotter = with_layers(&dir, &[]);
        let mut target = labels(&[(TARGET_LABEL, &base)]);
        target.extend(is_turbo.then(|| ("turbo".to_owned(), String::new())));
        snapshotter.prepare("extract-1 x", "", target).unwrap_err();
        snapshotter.prepare("step", &base, labels(&[(WRITABLE, "dir")])).unwrap();
        let built = snapshotter.commit("built", "step", no_labels());
        match said {
            None => built.unwrap(),
            Some(said) => {
                let fault = built.unwrap_err();
                assert!(fault.kind == FaultKind::FailedPrecondition && fault.text.contains(said), "{fault}");
            }
        }
        // Without the label nothing is published.
        snapshotter.prepare("plain", &base, no_labels()).unwrap();
        snapshotter.commit("kept", "plain", no_labels()).unwrap();
    }
}
