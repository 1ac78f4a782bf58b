//! The snapshotter with real directories, and killed between any two of its steps.

use super::*;
use crate::remote::{LayerHold, NoRemoteLayers};
use crate::table::SnapshotChange;
use headstart_block::{Error, ErrorKind, Result};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use tempfile::TempDir;

fn clock() -> impl Fn() -> SnapshotTime + Send + Sync + 'static {
    let seconds = AtomicI64::new(0);
    move || SnapshotTime { seconds: seconds.fetch_add(1, Ordering::Relaxed), nanos: 0 }
}

fn open_with(root: &Path, remote: Box<dyn RemoteLayerSource>) -> Result<(Snapshotter, SnapshotterReport)> {
    let settings = SnapshotterSettings { are_commits_durable: false, ..SnapshotterSettings::new(root) };
    Snapshotter::open(settings, remote, clock())
}

fn open(root: &Path) -> (Snapshotter, SnapshotterReport) {
    open_with(root, Box::new(NoRemoteLayers)).unwrap()
}

fn no_labels() -> SnapshotLabels {
    SnapshotLabels::new()
}

/// The names of the directories of snapshots.
fn directories(root: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(root.join("snapshots")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_layer_is_prepared_committed_used_and_removed_over_restarts() {
    let dir = TempDir::new().unwrap();
    let root = dir.path();
    let (snapshotter, report) = open(root);
    assert_eq!(report, SnapshotterReport::default());
    let mounts = snapshotter.prepare("extract", "", no_labels()).unwrap();
    let upper = PathBuf::from(&mounts[0].source);
    fs::write(upper.join("file"), "content").unwrap();
    snapshotter.commit("layer", "extract", [("a".to_owned(), "b".to_owned())].into()).unwrap();
    drop(snapshotter);

    let (snapshotter, report) = open(root);
    assert_eq!((report.snapshots, report.missing.len()), (1, 0));
    assert_eq!(snapshotter.stat("extract").unwrap_err().kind, FaultKind::NotFound);
    assert_eq!(snapshotter.stat("layer").unwrap().labels["a"], "b");
    assert_eq!(snapshotter.usage("layer").unwrap().inodes, 2);
    snapshotter.view("view", "layer", no_labels()).unwrap();
    assert_eq!(snapshotter.usage("view").unwrap(), SnapshotUsage::default());
    assert_eq!(snapshotter.remove("layer").unwrap_err().kind, FaultKind::FailedPrecondition);
    assert_eq!(snapshotter.counts(), [0, 1, 1]);
    snapshotter.remove("view").unwrap();
    snapshotter.remove("layer").unwrap();
    assert_eq!(directories(root), BTreeSet::new());
}

#[test]
fn removed_directories_wait_for_a_cleanup_if_that_is_wanted() {
    let dir = TempDir::new().unwrap();
    let settings = SnapshotterSettings {
        keeps_removed: true,
        shows_upper: true,
        ..SnapshotterSettings::new(dir.path())
    };
    let (snapshotter, _) = Snapshotter::open(settings, Box::new(NoRemoteLayers), clock()).unwrap();
    snapshotter.prepare("a", "", no_labels()).unwrap();
    snapshotter.prepare("b", "", no_labels()).unwrap();
    assert!(snapshotter.stat("b").unwrap().labels[UPPER_LABEL].ends_with("/snapshots/2/fs"));
    snapshotter.remove("a").unwrap();
    assert_eq!(directories(dir.path()).len(), 2);
    snapshotter.cleanup().unwrap();
    assert_eq!(directories(dir.path()), ["2".to_owned()].into());
}

#[test]
fn a_root_directory_has_one_snapshotter() {
    let dir = TempDir::new().unwrap();
    let _first = open(dir.path());
    let error = open_with(dir.path(), Box::new(NoRemoteLayers)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[test]
fn nothing_begins_where_the_journal_is_gone_or_damaged() {
    let dir = TempDir::new().unwrap();
    let journal = dir.path().join("journal");
    let (snapshotter, _) = open(dir.path());
    for key in ["a", "b", "c"] {
        snapshotter.prepare(key, "", no_labels()).unwrap();
    }
    drop(snapshotter);
    let good = fs::read(&journal).unwrap();
    let mut damaged = good.clone();
    damaged[crate::journal::FRONT + 40] ^= 1;
    for bytes in [Some(damaged), None] {
        fs::remove_file(&journal).unwrap();
        if let Some(bytes) = bytes {
            fs::write(&journal, bytes).unwrap();
        }
        let error = open_with(dir.path(), Box::new(NoRemoteLayers)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("move the whole directory"), "{error}");
        assert_eq!(directories(dir.path()).len(), 3);
        fs::write(&journal, &good).unwrap();
    }
    fs::remove_dir_all(dir.path().join("snapshots/2")).unwrap();
    assert_eq!(open(dir.path()).1.missing, ["b"]);
}

#[test]
fn files_of_a_snapshot_that_an_older_journal_does_not_know_are_kept() {
    let dir = TempDir::new().unwrap();
    let journal = dir.path().join("journal");
    let (snapshotter, _) = open(dir.path());
    snapshotter.prepare("a", "", no_labels()).unwrap();
    let older = fs::read(&journal).unwrap();
    for key in ["empty", "written"] {
        snapshotter.prepare(key, "", no_labels()).unwrap();
    }
    drop(snapshotter);
    fs::write(dir.path().join("snapshots/3/fs/data"), "precious").unwrap();
    fs::write(&journal, older).unwrap();
    let (snapshotter, report) = open(dir.path());
    assert_eq!((report.unfinished, directories(dir.path())), (2, ["1".to_owned()].into()));
    assert_eq!(fs::read_to_string(dir.path().join("lost/3-0/fs/data")).unwrap(), "precious");
    snapshotter.prepare("b", "", no_labels()).unwrap();
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = open_with(dir.path(), Box::new(NoRemoteLayers)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("chmod 0700"), "{error}");
}

#[test]
fn what_cannot_be_made_is_taken_back() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, _) = open(dir.path());
    // The directory of the first snapshot.
    fs::create_dir(dir.path().join("snapshots/1")).unwrap();
    assert_eq!(snapshotter.prepare("a", "", no_labels()).unwrap_err().kind, FaultKind::Failed);
    assert_eq!(snapshotter.stat("a").unwrap_err().kind, FaultKind::NotFound);
    snapshotter.prepare("a", "", no_labels()).unwrap();
    assert_eq!(directories(dir.path()), ["2".to_owned()].into());
}

/// A source that has the layers whose names begin with `disk`, in directories of a place.
#[derive(Clone)]
struct Disks {
    place: PathBuf,
    kept: Arc<Mutex<Vec<Vec<String>>>>,
    /// The number of layers that are held.
    held: Arc<AtomicUsize>,
}

impl RemoteLayerSource for Disks {
    fn find(&self, labels: &SnapshotLabels) -> Result<RemoteAnswer> {
        let target = &labels[TARGET_LABEL];
        match target.get(..4) {
            Some("disk") => {
                self.held.fetch_add(1, Ordering::SeqCst);
                let held = Arc::clone(&self.held);
                let release = move || {
                    held.fetch_sub(1, Ordering::SeqCst);
                };
                Ok(RemoteAnswer::Present {
                    layer: RemoteLayer(target.clone()),
                    usage: SnapshotUsage { inodes: 1, size: 7 },
                    hold: LayerHold::new(release),
                })
            }
            Some("away") => {
                let error = Error::new(ErrorKind::Unavailable, "no agent answers").about("the disk");
                Ok(RemoteAnswer::Unavailable(error))
            }
            Some("fail") => Err(Error::new(ErrorKind::Unavailable, "cannot be asked").about("the registry")),
            _ => Ok(RemoteAnswer::NotMine),
        }
    }

    fn attach(&self, layer: &RemoteLayer) -> Result<PathBuf> {
        let directory = self.place.join(&layer.0);
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o751)).unwrap();
        Ok(directory)
    }

    fn keep_only(&self, used: &dyn Fn() -> Vec<RemoteLayer>) {
        assert_eq!(self.held.load(Ordering::SeqCst), 0, "what was recorded is not held");
        self.kept.lock().push(used().iter().map(|layer| layer.0.clone()).collect());
    }
}

#[test]
fn a_remote_layer_is_there_at_once_and_others_are_unpacked_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let place = dir.path().join("disks");
    let source = Disks { place: place.clone(), kept: Arc::default(), held: Arc::default() };
    let disks = || Box::new(source.clone());
    let root = dir.path().join("root");
    let (snapshotter, _) = open_with(&root, disks()).unwrap();
    let prepare = |snapshotter: &Snapshotter, target: &str, parent: &str| {
        let labels = [(TARGET_LABEL.to_owned(), target.to_owned())].into();
        snapshotter.prepare(&format!("extract {target}"), parent, labels)
    };
    for (target, parent) in [("disk 1", ""), ("disk 2", "disk 1")] {
        let fault = prepare(&snapshotter, target, parent).unwrap_err();
        assert_eq!(
            (fault.kind, snapshotter.stat(target).unwrap().kind()),
            (FaultKind::AlreadyExists, SnapshotKind::Committed)
        );
    }
    assert_eq!(snapshotter.usage("disk 2").unwrap().size, 7);
    assert_eq!(directories(&root), BTreeSet::new());
    drop(snapshotter);

    let (snapshotter, report) = open_with(&root, disks()).unwrap();
    assert_eq!((report.snapshots, report.missing.len()), (2, 0));
    let options = prepare(&snapshotter, "plain", "disk 2").unwrap().remove(0).options;
    assert_eq!(*options.last().unwrap(), format!("lowerdir={}/disk 2", place.display()));
    let id = directories(&root).pop_first().unwrap();
    let mode = fs::metadata(root.join("snapshots").join(id).join("fs")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o751, "the root of the tree looks as the disk's does");
    snapshotter.commit("plain", "extract plain", no_labels()).unwrap();
    // The files of a remote layer on an ordinary one are those of its own tree.
    prepare(&snapshotter, "disk 3", "plain").unwrap_err();
    let options = prepare(&snapshotter, "above", "disk 3").unwrap().remove(0).options;
    assert_eq!(*options.last().unwrap(), format!("lowerdir={}/disk 3", place.display()));
    prepare(&snapshotter, "fail", "").unwrap();
    snapshotter.commit("fail", "extract fail", no_labels()).unwrap();
    let reason = &snapshotter.stat("fail").unwrap().labels[FALLBACK_LABEL];
    assert!(reason.contains("the registry") && reason.contains("cannot be asked"), "{reason}");
    // What containerd cannot unpack is not unpacked.
    let fault = prepare(&snapshotter, "away", "").unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unavailable);
    assert!(fault.text.contains("no agent answers"), "{fault}");
    // Found, and there already.
    assert_eq!(prepare(&snapshotter, "disk 2", "disk 1").unwrap_err().kind, FaultKind::AlreadyExists);
    for key in ["extract above", "disk 3", "plain", "disk 2", "disk 1"] {
        snapshotter.remove(key).unwrap();
    }
    let both = vec!["disk 1".to_owned(), "disk 2".to_owned()];
    let all = [&both[..], &["disk 3".to_owned()]].concat();
    assert_eq!(*source.kept.lock(), [all, both.clone(), both[..1].to_vec(), vec![]]);
}

#[derive(Clone, Debug)]
enum Operation {
    Create { is_writable: bool, key: u8, parent: Option<u8> },
    Commit { name: u8, key: u8 },
    Update { key: u8 },
    Remove { key: u8 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = 0..4u8;
    prop_oneof![
        4 => (any::<bool>(), key.clone(), prop::option::of(key.clone())).prop_map(|(is_writable, key, parent)| {
            Operation::Create { is_writable, key, parent }
        }),
        3 => (key.clone(), key.clone()).prop_map(|(name, key)| Operation::Commit { name, key }),
        1 => key.clone().prop_map(|key| Operation::Update { key }),
        2 => key.prop_map(|key| Operation::Remove { key }),
    ]
}

fn plan(snapshotter: &Snapshotter, operation: &Operation) -> FaultResult<Vec<SnapshotStep>> {
    let key = |key: &u8| format!("k{key}");
    let mut table = snapshotter.table.write();
    match operation {
        Operation::Create { is_writable, key: k, parent } => {
            let parent = parent.as_ref().map(key).unwrap_or_default();
            Ok(table.create(*is_writable, &key(k), &parent, no_labels(), snapshotter.now())?.1)
        }
        Operation::Commit { name, key: k } => {
            let id = table.check_commit(&key(name), &key(k))?;
            table.commit(&key(name), (&key(k), id), no_labels(), SnapshotUsage::default(), snapshotter.now())
        }
        Operation::Update { key: k } => {
            let labels = [("a".to_owned(), snapshotter.now().seconds.to_string())].into();
            table.update(&key(k), &labels, &[], snapshotter.now())
        }
        Operation::Remove { key: k } => table.remove(&key(k), false),
    }
}

/// Carries out the first steps of a plan, and none of what would follow: the process was killed.
fn carry_out_first(
    snapshotter: &Snapshotter,
    steps: &[SnapshotStep],
    count: usize,
) -> Option<SnapshotChange> {
    let mut recorded = None;
    for step in &steps[..count] {
        if let SnapshotStep::Record(change) = step {
            snapshotter.journal.lock().append(change).unwrap();
            recorded = Some(change.clone());
        }
        snapshotter.overlay.carry_out(step).unwrap();
    }
    recorded
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_snapshotter_that_is_killed_after_any_step_is_as_before_or_after(
        operations in prop::collection::vec((operation(), any::<prop::sample::Index>()), 1..24),
    ) {
        let dir = TempDir::new().unwrap();
        let mut snapshotter = open(dir.path()).0;
        for (operation, index) in &operations {
            let Ok(steps) = plan(&snapshotter, operation) else { continue };
            let mut expected = SnapshotTable::default();
            let before: Vec<_> = snapshotter.table.read().all().cloned().collect();
            let recorded = carry_out_first(&snapshotter, &steps, index.index(steps.len() + 1));
            for change in snapshotter.table.read().changes().chain(recorded) {
                expected.apply(change).unwrap();
            }
            drop(snapshotter);
            let opened = open(dir.path());
            snapshotter = opened.0;
            prop_assert_eq!(opened.1.missing, Vec::<String>::new());
            let after: Vec<_> = snapshotter.table.read().all().cloned().collect();
            prop_assert_eq!(&after, &expected.all().cloned().collect::<Vec<_>>(), "{:?} {:?}", before, steps);
            snapshotter.cleanup().unwrap();
            let used: BTreeSet<_> = after.iter().map(|record| record.id.to_string()).collect();
            prop_assert_eq!(directories(dir.path()), used);
            for record in &after {
                let work = snapshotter.overlay.path(SnapshotPlace::Work(record.id));
                prop_assert_eq!(work.is_dir(), record.kind() != SnapshotKind::View);
            }
        }
    }
}
