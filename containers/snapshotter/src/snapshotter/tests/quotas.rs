//! Limits of the space that snapshots take.

use super::*;

const MAX_SIZE: &str = "containerd.io/snapshot/max-size";
const NOT_HELD: &str = "containerd.io/snapshot/headstart.quota";

#[test]
fn disks_get_their_limits_and_other_snapshots_a_label() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    let settings = SnapshotterSettings {
        are_commits_durable: false,
        own_disks: Some(DiskAccess::Directory),
        quota: Some(5000),
        ..SnapshotterSettings::new(&root)
    };
    let (mut snapshotter, _) = Snapshotter::open(settings, Box::new(source_in(dir.path())), clock()).unwrap();
    // The file system of the tests may have project quotas; that of the kernel's own files has none.
    snapshotter.quotas = ProjectQuotas::open(Path::new("/proc"));
    let target = SnapshotLabels::from([(TARGET_LABEL.to_owned(), "disk 1".to_owned())]);
    snapshotter.prepare("unpack", "", target).unwrap_err();
    let wants = |size: &str, mode: &str| {
        let mode = ("containerd.io/snapshot/overlaybd.writable".to_owned(), mode.to_owned());
        let mut labels = SnapshotLabels::from([mode]);
        labels.extend((!size.is_empty()).then(|| (MAX_SIZE.to_owned(), size.to_owned())));
        labels
    };
    for (key, size, mode, parent, most) in [
        ("own", "7000", "dir", "disk 1", Some("7000")),
        ("device", "7000", "dev", "disk 1", Some("7000")),
        ("default", "", "dir", "disk 1", Some("5000")),
        ("unit", "7k", "dir", "disk 1", Some("7168")),
        ("empty", "7000", "dir", "", Some("7000")),
        ("overlay", "7000", "overlayfs", "disk 1", None),
        ("k8s.io/7/extract-1 x", "", "dir", "disk 1", Some("")),
    ] {
        snapshotter.prepare(key, parent, wants(size, mode)).unwrap();
        let record = snapshotter.stat(key).unwrap();
        let note = record.labels.get(NOT_HELD);
        let given = fs::read_to_string(root.join(format!("snapshots/{}/block/most", record.id)));
        match most {
            Some("") => assert_eq!((note, given.is_err()), (None, true), "{key} is unpacked"),
            Some(most) => assert_eq!((note, given.unwrap().as_str()), (None, most), "{key}"),
            None => {
                let note = note.unwrap();
                assert!(
                    note.starts_with("not held: ") && note.contains("prjquota") && given.is_err(),
                    "{note}"
                );
            }
        }
    }
}

#[test]
fn a_limit_that_is_no_size_is_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, _) = open_with(&dir.path().join("root"), Box::new(source_in(dir.path()))).unwrap();
    let limited = |size: &str| SnapshotLabels::from([(MAX_SIZE.to_owned(), size.to_owned())]);
    for wrong in ["0", "lots", "-1", "7 G G", "7Gi/s", "99999999999999999999"] {
        let fault = snapshotter.prepare("a", "", limited(wrong)).unwrap_err();
        assert_eq!(fault.kind, FaultKind::InvalidArgument, "{wrong}");
        let text = fault.text;
        assert!(text.contains(MAX_SIZE) && text.contains(wrong) && text.contains("write it as"), "{text}");
    }
    assert_eq!(snapshotter.stat("a").unwrap_err().kind, FaultKind::NotFound);
    snapshotter.prepare("a", "", limited("2M")).unwrap();
    let fault = snapshotter.update("a", &limited("lots"), &[]).unwrap_err();
    assert_eq!(fault.kind, FaultKind::InvalidArgument);
    // Layers that are unpacked have no limit, whatever is said of one.
    snapshotter.prepare("k8s.io/7/extract-1 x", "", limited("lots")).unwrap();
}

#[test]
fn a_label_says_why_a_limit_is_not_held_until_it_is() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, _) = open(dir.path());
    let labels = SnapshotLabels::from([(MAX_SIZE.to_owned(), "2M".to_owned())]);
    snapshotter.prepare("a", "", labels).unwrap();
    let id = snapshotter.stat("a").unwrap().id;
    let note = |key: &str| snapshotter.stat(key).unwrap().labels.get(NOT_HELD).cloned();
    for wanted in [Some("not held: no number"), Some("not held: it has files"), None] {
        let wanted = wanted.map(str::to_owned);
        snapshotter.note_limit("a", id, wanted.clone()).unwrap();
        assert_eq!(note("a"), wanted);
        assert_eq!(snapshotter.stat("a").unwrap().labels[MAX_SIZE], "2M");
    }
    // A snapshot that has taken its key meanwhile is another one.
    snapshotter.remove("a").unwrap();
    snapshotter.prepare("a", "", no_labels()).unwrap();
    snapshotter.note_limit("a", id, Some("not held: late".to_owned())).unwrap();
    assert_eq!(note("a"), None);
}

#[test]
fn a_disk_with_a_limit_of_an_earlier_version_that_is_no_size_goes_on() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, place) = with_disk(dir.path());
    let labels = snapshotter.stat("one").unwrap().labels;
    let steps = {
        let wrong = labels.into_iter().chain([(MAX_SIZE.to_owned(), "lots".to_owned())]).collect();
        snapshotter.table.read().update("one", &wrong, &[], snapshotter.now()).unwrap()
    };
    snapshotter.carry_out(&mut snapshotter.journal.lock(), steps).unwrap();
    assert_eq!(place.join("writable"), PathBuf::from(&snapshotter.mounts("one").unwrap()[0].source));
    let labels = snapshotter.stat("one").unwrap().labels;
    snapshotter.update("one", &labels, &[]).unwrap();
}
