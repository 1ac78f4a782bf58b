//! The snapshotter with real directories, and killed between any two of its steps.

use super::*;
use crate::layer_form::BLOB_DIGEST;
use crate::remote::{
    DiskClosing, LayerHold, LayeredDisk, ListedBlob, NoRemoteLayers, OwnDisk, PackedLayer, SealedState,
    WRITTEN_DIRECTORY,
};
use crate::table::SnapshotChange;
use headstart_block::{Digest, Error, ErrorKind, Result};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use tempfile::TempDir;

pub(crate) mod blocks;
mod own_labels;
mod quotas;
mod refused;

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

pub(crate) fn no_labels() -> SnapshotLabels {
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
        // A layer that containerd knows by its blob, and others.
        let listed = |digest| ListedBlob { digest, is_turbo: labels.contains_key("turbo") };
        let blob = target.parse().ok().map(listed);
        match target.get(..4) {
            Some("disk" | "sha2") => {
                self.held.fetch_add(1, Ordering::SeqCst);
                let held = Arc::clone(&self.held);
                let release = move || {
                    held.fetch_sub(1, Ordering::SeqCst);
                };
                Ok(RemoteAnswer::Present {
                    layer: RemoteLayer(target.clone()),
                    blob,
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

    fn attach(&self, disk: &LayeredDisk) -> Result<PathBuf> {
        assert!(disk.above.iter().all(|layer| layer.is_file()), "{disk:?}");
        let directory = self.directory_of(disk)?;
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o751)).unwrap();
        Ok(directory)
    }

    fn keep_only(&self, used: &dyn Fn() -> Vec<LayeredDisk>) {
        assert_eq!(self.held.load(Ordering::SeqCst), 0, "what was recorded is not held");
        self.kept.lock().push(used().iter().map(|disk| disk.image.0.clone()).collect());
    }

    fn blank(&self) -> Result<Option<RemoteLayer>> {
        Ok(Some(RemoteLayer("blank".to_owned())))
    }

    fn can_be_written(&self, disk: &LayeredDisk) -> Result<bool> {
        Ok(!disk.image.0.ends_with("read-only"))
    }

    /// Its disks are directories: `open` marks those that are served, and `used` those that are used.
    fn open_own(&self, disk: &OwnDisk) -> Result<PathBuf> {
        let written = disk.place.join(WRITTEN_DIRECTORY);
        fs::create_dir_all(&written).unwrap();
        fs::write(disk.place.join("open"), format!("{:?}", disk.below)).unwrap();
        if let Some(most) = disk.most {
            fs::write(disk.place.join("most"), most.to_string()).unwrap();
        }
        Ok(written)
    }

    fn close_own(&self, place: &Path, closing: DiskClosing) -> Result<()> {
        if place.join("away").exists() {
            return Err(Error::new(ErrorKind::Unavailable, "no agent answers"));
        }
        if closing != DiskClosing::Anyway && place.join("used").exists() {
            return Err(Error::new(ErrorKind::Conflict, "is mounted"));
        }
        let _ = fs::remove_file(place.join("open"));
        Ok(())
    }

    fn seal(&self, place: &Path, layer: &Path, state: SealedState) -> Result<()> {
        assert_eq!(place.join("open").exists(), state != SealedState::Closed);
        let written = fs::read(place.join(WRITTEN_DIRECTORY).join("data")).unwrap_or_default();
        fs::write(layer, written).unwrap();
        Ok(())
    }

    fn directory_of(&self, disk: &LayeredDisk) -> Result<PathBuf> {
        if disk.image.0.starts_with("disk of a later version") {
            return Err(Error::unsupported("is no name that this version knows"));
        }
        let above: String = disk.above.iter().map(|layer| layer.display().to_string()).collect();
        Ok(self.place.join((disk.image.0.clone() + &above).replace(['/', ':'], "_")))
    }

    fn handed_out(&self, place: &Path, _access: DiskAccess) -> Result<Option<PathBuf>> {
        if place.join("away").exists() {
            return Err(Error::new(ErrorKind::Io, "cannot be looked at"));
        }
        Ok(place.join("open").exists().then(|| place.join(WRITTEN_DIRECTORY)))
    }

    fn pack(&self, layer: &Path) -> Result<PackedLayer> {
        let content = fs::read(layer).unwrap();
        let file = Arc::new(File::open(layer).unwrap());
        let (digest, size) = (Digest::of(&content), content.len() as u64);
        Ok(PackedLayer { file, digest, size, annotations: BTreeMap::new() })
    }

    fn is_layer(&self, beginning: &[u8]) -> bool {
        beginning.starts_with(b"blocks")
    }

    fn is_turbo_layer(&self, beginning: &[u8]) -> bool {
        beginning.starts_with(b"turbo")
    }

    fn recover(&self, place: &Path) -> Result<()> {
        fs::write(place.join("recovered"), "").unwrap();
        Ok(())
    }
}

/// The chain id of a layer that is a disk's in the manifest that containerd has.
fn base() -> String {
    Digest::of(b"a layer of blocks").to_string()
}

/// A source of disks in a directory.
fn source_in(dir: &Path) -> Disks {
    Disks { place: dir.join("disks"), kept: Arc::default(), held: Arc::default() }
}

#[test]
fn what_is_written_to_a_disk_is_a_layer_of_the_disks_above_over_restarts() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    let open = || open_with(&root, Box::new(source_in(dir.path()))).unwrap().0;
    let label = |mode: &str| {
        SnapshotLabels::from([("containerd.io/snapshot/overlaybd.writable".to_owned(), mode.to_owned())])
    };
    let base = &*base();
    let target = SnapshotLabels::from([(TARGET_LABEL.to_owned(), base.to_owned())]);
    let snapshotter = open();
    snapshotter.prepare("extract", "", target).unwrap_err();
    let shown = |mounts: Vec<SnapshotMount>| {
        let mount = &mounts[0];
        (mount.kind, PathBuf::from(&mount.source), mount.options.join(" "))
    };
    let (kind, source, options) = shown(snapshotter.prepare("one", base, label("dir")).unwrap());
    assert_eq!((kind, options.as_str()), ("bind", "rw rbind"));
    assert!(source.ends_with("snapshots/2/block/writable"), "{}", source.display());
    fs::write(source.join("data"), "written").unwrap();
    assert_eq!(snapshotter.usage("one").unwrap().inodes, 2);
    drop(snapshotter);

    // Its disk is not closed at the end, and is not lost.
    let snapshotter = open();
    assert_eq!(shown(snapshotter.mounts("one").unwrap()).1, source);
    let place = source.parent().unwrap();
    // A disk that is used goes on, and goes once nothing uses it.
    fs::write(place.join("used"), "").unwrap();
    snapshotter.commit("layer", "one", no_labels()).unwrap();
    snapshotter.cleanup().unwrap();
    assert!(place.join("open").exists());
    fs::remove_file(place.join("used")).unwrap();
    snapshotter.cleanup().unwrap();
    assert!(!place.exists());
    let file = PathBuf::from(&snapshotter.stat("layer").unwrap().labels[LAYER_LABEL]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "written");
    assert!(
        file.ends_with("snapshots/2/fs/overlaybd.sealed") && snapshotter.usage("layer").unwrap().size > 0
    );
    drop(snapshotter);

    let snapshotter = open();
    let (kind, source, options) = shown(snapshotter.prepare("two", "layer", label("dev")).unwrap());
    assert_eq!((kind, options.as_str()), ("ext4", "rw discard errors=remount-ro"));
    let below = fs::read_to_string(source.parent().unwrap().join("open")).unwrap();
    assert!(below.contains(base) && below.contains(file.to_str().unwrap()), "{below}");
    // Without the label, overlayfs is over the files of the disk.
    let (kind, ..) = shown(snapshotter.prepare("three", "layer", no_labels()).unwrap());
    assert_eq!(kind, "overlay");
    assert_eq!(shown(snapshotter.view("view", "layer", label("dev")).unwrap()).0, "bind");
    let fault = snapshotter.prepare("four", "layer", label("rw")).unwrap_err();
    assert!(fault.kind == FaultKind::InvalidArgument && fault.text.contains("dir and dev"), "{fault}");
    // Layers that containerd unpacks are directories.
    for key in ["extract-1 sha256:0", "k8s.io/7/extract-1 sha256:0"] {
        assert_eq!(shown(snapshotter.prepare(key, "layer", label("dir")).unwrap()).0, "overlay");
        snapshotter.remove(key).unwrap();
    }
    for key in ["two", "three", "view", "layer", base] {
        snapshotter.remove(key).unwrap();
    }
    assert_eq!(directories(&root), BTreeSet::new());
}

/// A snapshotter on which the snapshot `one` has a disk of its own, and the place of that disk.
fn with_disk(dir: &Path) -> (Snapshotter, PathBuf) {
    let snapshotter = open_with(&dir.join("root"), Box::new(source_in(dir))).unwrap().0;
    let target = SnapshotLabels::from([(TARGET_LABEL.to_owned(), base())]);
    snapshotter.prepare("extract", "", target).unwrap_err();
    let writable =
        SnapshotLabels::from([("containerd.io/snapshot/overlaybd.writable".to_owned(), "dir".to_owned())]);
    let mounts = snapshotter.prepare("one", &base(), writable).unwrap();
    let place = Path::new(&mounts[0].source).parent().unwrap().to_owned();
    (snapshotter, place)
}

#[test]
fn a_disk_is_recovered_unless_a_call_has_it() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, place) = with_disk(dir.path());
    let lock = snapshotter.lock_of(snapshotter.stat("one").unwrap().id);
    let locked = lock.lock();
    snapshotter.recover_disks();
    assert!(!place.join("recovered").exists());
    drop(locked);
    snapshotter.recover_disks();
    assert!(place.join("recovered").exists());
}

#[test]
fn the_file_of_a_layer_is_named_for_sealed_snapshots_only_whatever_callers_say() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, _) = with_disk(dir.path());
    let foreign = || SnapshotLabels::from([(LAYER_LABEL.to_owned(), "/etc/shadow".to_owned())]);
    let label = |key: &str| snapshotter.stat(key).unwrap().labels.get(LAYER_LABEL).cloned();
    let update = |key: &str, paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
        snapshotter.update(key, &foreign(), &paths).unwrap();
    };
    let field = format!("labels.{LAYER_LABEL}");
    let mut target = foreign();
    target.insert(TARGET_LABEL.to_owned(), "disk 2".to_owned());
    snapshotter.prepare("extract", "", target).unwrap_err();
    snapshotter.prepare("plain", "", foreign()).unwrap();
    snapshotter.view("view", &base(), foreign()).unwrap();
    for key in ["disk 2", "plain", "view"] {
        update(key, &[]);
        update(key, &[&field]);
        assert_eq!(label(key), None, "{key}");
    }
    snapshotter.commit("plain layer", "plain", foreign()).unwrap();
    assert_eq!(label("plain layer"), None);
    snapshotter.commit("layer", "one", foreign()).unwrap();
    for paths in [vec![], vec![field.as_str()], vec!["labels"]] {
        update("layer", &paths);
        assert!(label("layer").unwrap().ends_with("/fs/overlaybd.sealed"), "{paths:?}");
    }
}

#[test]
fn no_file_is_named_where_it_would_lie_on_layers_that_are_tars() {
    let dir = TempDir::new().unwrap();
    let snapshotter = open_with(&dir.path().join("root"), Box::new(source_in(dir.path()))).unwrap().0;
    let writable =
        || SnapshotLabels::from([("containerd.io/snapshot/overlaybd.writable".to_owned(), "dev".to_owned())]);
    // The disk of an original, whose manifest lists tars; what its maker says of its layers is no proof.
    for (name, says) in [("disk 1", None), ("disk 2", Some(base()))] {
        let target = [(TARGET_LABEL, Some(name.to_owned())), (BLOB_DIGEST, says)];
        let target = target.into_iter().filter_map(|(label, value)| Some((label.to_owned(), value?)));
        snapshotter.prepare("extract", "", target.collect()).unwrap_err();
        snapshotter.prepare("step", name, writable()).unwrap();
        snapshotter.commit("done", "step", no_labels()).unwrap();
        assert_eq!(snapshotter.stat("done").unwrap().labels.get(LAYER_LABEL), None, "{name}");
        snapshotter.remove("done").unwrap();
    }
}

#[test]
fn a_directory_that_no_journal_knows_waits_for_an_agent_that_is_away() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    let (snapshotter, place) = with_disk(dir.path());
    fs::write(place.join("writable/data"), "precious").unwrap();
    drop(snapshotter);
    // The journal of a moment ago, which does not know the last snapshot.
    fs::remove_file(root.join("journal")).unwrap();
    let moved = root.join("snapshots");
    fs::rename(&moved, root.join("away")).unwrap();
    drop(open_with(&root, Box::new(source_in(dir.path()))).unwrap());
    fs::remove_dir(&moved).unwrap();
    fs::rename(root.join("away"), &moved).unwrap();

    fs::write(place.join("away"), "").unwrap();
    let (snapshotter, report) = open_with(&root, Box::new(source_in(dir.path()))).unwrap();
    assert_eq!(report.unfinished, 0);
    snapshotter.prepare("new", "", no_labels()).unwrap();
    assert_eq!(directories(&root), ["2".to_owned(), "3".to_owned()].into());
    fs::remove_file(place.join("away")).unwrap();
    snapshotter.cleanup().unwrap();
    assert!(place.join("writable/data").exists(), "it waits for the next start");
    drop(snapshotter);
    let (_, report) = open_with(&root, Box::new(source_in(dir.path()))).unwrap();
    assert_eq!((report.unfinished, directories(&root)), (1, ["3".to_owned()].into()));
    assert_eq!(fs::read_to_string(root.join("lost/2-0/block/writable/data")).unwrap(), "precious");
}

/// `BuildKit` makes a blob of a build step by these calls (`cache/manager.go`, `cache/blobs.go`): an active snapshot
/// with the label, its mounts, a commit, and the file that the label of the committed one names.
#[test]
fn buildkits_calls_lead_to_the_file_of_the_layer() {
    let dir = TempDir::new().unwrap();
    let (snapshotter, _) = open_with(&dir.path().join("root"), Box::new(source_in(dir.path()))).unwrap();
    let writable =
        || SnapshotLabels::from([("containerd.io/snapshot/overlaybd.writable".to_owned(), "dev".to_owned())]);
    let ids =
        |step: u32| [format!("buildkit/{step}/step-{step}"), format!("buildkit/{step}/step-{step}-done")];
    let target = SnapshotLabels::from([(TARGET_LABEL.to_owned(), base())]);
    snapshotter.prepare("buildkit/1/extract-x sha256:base", "", target).unwrap_err();
    let mut parent = base();
    for step in 2..5 {
        let [active, done] = ids(step);
        snapshotter.prepare(&active, &parent, writable()).unwrap();
        let mounts = snapshotter.mounts(&active).unwrap();
        assert_eq!(
            (mounts[0].kind, &mounts[0].options[..2]),
            ("ext4", &["rw", "discard"].map(str::to_owned)[..])
        );
        fs::write(Path::new(&mounts[0].source).join("data"), format!("step {step}")).unwrap();
        snapshotter.commit(&done, &active, no_labels()).unwrap();
        // The lower and the upper tree, as views; then the blob.
        for (view, of) in [("lower", &parent), ("upper", &done)] {
            snapshotter.view(view, of, writable()).unwrap();
            snapshotter.mounts(view).unwrap();
            snapshotter.remove(view).unwrap();
        }
        let sealed = PathBuf::from(&snapshotter.stat(&done).unwrap().labels[LAYER_LABEL]);
        assert_eq!(fs::read_to_string(&sealed).unwrap(), format!("step {step}"));
        assert_eq!(sealed.file_name().unwrap(), "overlaybd.sealed");
        // overlaybd-commit writes its output beside it, which goes with the snapshot.
        fs::write(sealed.with_file_name("overlaybd.commit"), "blob").unwrap();
        parent = done;
    }
    for step in (2..5).rev() {
        snapshotter.remove(&ids(step)[1]).unwrap();
    }
    assert_eq!(directories(&dir.path().join("root")), BTreeSet::new());
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
    Create { wanted: WantedTree, key: u8, parent: Option<u8> },
    Commit { name: u8, key: u8 },
    Update { key: u8 },
    Remove { key: u8 },
}

fn wanted() -> impl Strategy<Value = WantedTree> {
    let blank = Some(RemoteLayer("blank".to_owned()));
    prop_oneof![
        Just(WantedTree::View),
        Just(WantedTree::Overlay),
        Just(WantedTree::Disk { access: DiskAccess::Directory, blank }),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = 0..4u8;
    prop_oneof![
        4 => (wanted(), key.clone(), prop::option::of(key.clone())).prop_map(|(wanted, key, parent)| {
            Operation::Create { wanted, key, parent }
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
        Operation::Create { wanted, key: k, parent } => {
            let parent = parent.as_ref().map(key).unwrap_or_default();
            Ok(table.create(wanted.clone(), &key(k), &parent, no_labels(), snapshotter.now())?.1)
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
        let open = |path: &Path| open_with(path, Box::new(source_in(path))).unwrap();
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
                let is_there = |place| snapshotter.overlay.path(place).is_dir();
                let is_open = matches!(record.state, SnapshotState::ActiveDisk { .. });
                let is_sealed = !record.has_files() && !is_open;
                let is_view = record.kind() == SnapshotKind::View;
                prop_assert_eq!(is_there(SnapshotPlace::Work(record.id)), record.has_files() && !is_view);
                prop_assert_eq!(is_there(SnapshotPlace::Block(record.id)), is_open);
                prop_assert!(is_there(SnapshotPlace::Upper(record.id)) || is_sealed);
            }
        }
    }
}
