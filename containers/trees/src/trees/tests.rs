//! Trees whose disks are only counted, and that are not mounted.

use super::*;
use crate::tree_disks::AttachedTree;
use headstart_block::Digest;
use headstart_testkit::process::is_root;
use headstart_testkit::wait::wait_until;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The names of the disks that are attached.
#[derive(Clone, Default)]
struct CountedDisks(Arc<Mutex<BTreeSet<String>>>);

impl TreeDisks for CountedDisks {
    fn attach(&self, name: &str, _order: &DiskOrder<'_>) -> Result<AttachedTree> {
        let is_new = self.0.lock().insert(name.to_owned());
        let outcome = if is_new { AttachOutcome::New } else { AttachOutcome::Existing };
        Ok(AttachedTree { outcome, device: None })
    }

    fn detach(&self, name: &str) -> Result<()> {
        self.0.lock().remove(name);
        Ok(())
    }

    fn tell_start(&self, _starts: &Path, _entrypoint: &str) -> Result<bool> {
        Err(Error::unsupported("has no processes"))
    }

    fn clone_written(&self, _written: &Path, _to: &Path) -> Result<()> {
        Err(Error::unsupported("has no disks with files"))
    }
}

/// Trees of these disks, which ask registries for at most `search_timeout`.
fn trees_in(root: &Path, disks: CountedDisks, search_timeout: Duration, runtime: &Runtime) -> ImageTrees {
    let (stores, handle) = (StoreSettings::default(), runtime.handle().clone());
    ImageTrees::new(root, stores, Vec::new(), search_timeout, handle, Box::new(disks)).unwrap()
}

/// Trees in a directory, with a disk and the places of one.
struct Scene {
    disks: CountedDisks,
    trees: ImageTrees,
    root: TempDir,
    _runtime: Runtime,
}

impl Scene {
    fn new() -> Self {
        let (root, disks) = (TempDir::new().unwrap(), CountedDisks::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let trees = trees_in(root.path(), disks.clone(), Duration::from_secs(3), &runtime);
        Self { disks, trees, root, _runtime: runtime }
    }

    /// Makes the places of a tree and attaches its disk.
    fn attach(&self, tree: &TreeName) -> String {
        let directory = self.root.path().join(tree.id());
        make_places(&directory, tree).unwrap();
        let name = disk_name(&directory, &tree.id()).unwrap();
        let order = DiskOrder {
            tree,
            image: "h/app:1",
            file: &directory.join("disk"),
            writable: None,
            most: None,
            starts: &directory.join(STARTS_SOCKET),
            entrypoint: "nginx",
        };
        self.disks.attach(&name, &order).unwrap();
        name
    }

    fn attached(&self) -> Vec<String> {
        self.disks.0.lock().iter().cloned().collect()
    }
}

fn tree(content: &[u8], lowest: Option<usize>) -> TreeName {
    let image = format!("oci://h/app@{}", Digest::of(content)).parse().unwrap();
    TreeName { image, lowest, above: Vec::new() }
}

fn disk_of(tree: &TreeName) -> LayeredDisk {
    LayeredDisk { image: tree.layer(), above: tree.above.clone() }
}

#[test]
fn two_roots_have_disks_of_their_own_for_one_image() {
    let (one, other) = (Scene::new(), Scene::new());
    let tree = tree(b"a", None);
    let name = one.attach(&tree);
    assert_ne!(name, other.attach(&tree));
    assert_eq!(name, one.attach(&tree), "the name stays");
}

#[test]
fn a_tree_of_an_earlier_version_has_its_disk_by_its_id() {
    let scene = Scene::new();
    let tree = tree(b"a", None);
    let directory = scene.root.path().join(tree.id());
    fs::create_dir_all(directory.join("fs")).unwrap();
    fs::write(directory.join("name"), tree.to_string()).unwrap();
    fs::write(directory.join("disk"), "").unwrap();
    assert_eq!(scene.attach(&tree), format!("tree-{}", tree.id()));
}

#[test]
fn a_tree_goes_when_no_snapshot_and_no_pull_has_it() {
    // Only root may unmount.
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let (whole, lowest, other) = (tree(b"a", None), tree(b"a", Some(1)), tree(b"b", None));
    let names = [&whole, &lowest, &other].map(|tree| scene.attach(tree));
    // The whole image stays for a snapshot of its first layer.
    let hold = scene.trees.hold(other.id());
    let second = scene.trees.hold(other.id());
    scene.trees.keep_only(&|| vec![disk_of(&tree(b"a", Some(2)))]);
    assert_eq!(scene.attached(), sorted(&[&names[0], &names[2]]));
    drop(hold);
    scene.trees.keep_only(&|| vec![disk_of(&whole)]);
    assert_eq!(scene.attached(), sorted(&[&names[0], &names[2]]), "another pull has it");
    drop(second);
    scene.trees.keep_only(&|| vec![disk_of(&whole)]);
    assert_eq!(scene.attached(), sorted(&[&names[0]]));
    scene.trees.keep_only(&Vec::new);
    assert_eq!(scene.attached(), Vec::<String>::new());
    assert_eq!(fs::read_dir(scene.root.path()).unwrap().count(), 0);
}

#[test]
fn a_tree_that_is_recorded_meanwhile_stays() {
    let scene = Scene::new();
    let tree = tree(b"a", None);
    let name = scene.attach(&tree);
    let asked = Mutex::new(0);
    scene.trees.keep_only(&|| {
        *asked.lock() += 1;
        if *asked.lock() == 1 { Vec::new() } else { vec![disk_of(&tree)] }
    });
    assert_eq!((*asked.lock(), scene.attached()), (2, vec![name]));
}

#[test]
fn a_tree_with_layers_on_top_goes_when_no_snapshot_has_these() {
    // Only root may unmount.
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let image = tree(b"a", None);
    let above = |count: usize| {
        let files = (0..count).map(|number| PathBuf::from(format!("/snapshots/{number}/layer")));
        TreeName { above: files.collect(), ..image.clone() }
    };
    let names = [&image, &above(1), &above(2)].map(|tree| scene.attach(tree));
    // The image stays with the layers on it, and these only themselves.
    scene.trees.keep_only(&|| vec![disk_of(&above(2))]);
    assert_eq!(scene.attached(), sorted(&[&names[0], &names[2]]));
    scene.trees.keep_only(&|| vec![disk_of(&image)]);
    assert_eq!(scene.attached(), sorted(&[&names[0]]));
}

#[test]
fn nothing_goes_as_long_as_a_layer_is_not_understood() {
    let scene = Scene::new();
    let name = scene.attach(&tree(b"a", None));
    scene.trees.keep_only(&|| vec![LayeredDisk::of(RemoteLayer("of a later version".to_owned()))]);
    assert_eq!(scene.attached(), [name]);
}

#[test]
fn users_know_an_image_by_the_name_that_was_pulled_last() {
    let scene = Scene::new();
    let file = scene.root.path().join(IMAGE_NAME);
    // A tree of an earlier version has its digest only.
    assert_eq!(noted(&file, None), None);
    assert_eq!(noted(&file, Some("oci://h/app:1")).unwrap(), "oci://h/app:1");
    assert_eq!(noted(&file, Some("oci://h/app:2")).unwrap(), "oci://h/app:2");
    assert_eq!(noted(&file, None).unwrap(), "oci://h/app:2");
}

/// A registry that takes connections and answers nothing holds a pull up once, for the given time.
#[test]
fn a_registry_that_does_not_answer_is_asked_once_and_for_a_bounded_time() {
    let (root, timeout) = (TempDir::new().unwrap(), Duration::from_millis(300));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let runtime = Runtime::new().unwrap();
    let trees = trees_in(root.path(), CountedDisks::default(), timeout, &runtime);
    let image = format!("{}/app:1", silent.local_addr().unwrap());
    let layer = |number: u8| {
        let chain = Digest::of(&[number]).to_string();
        let manifest = Digest::of(b"manifest").to_string();
        SnapshotLabels::from([
            ("containerd.io/snapshot.ref".to_owned(), chain),
            ("containerd.io/snapshot/cri.image-ref".to_owned(), image.clone()),
            ("containerd.io/snapshot/cri.manifest-digest".to_owned(), manifest),
        ])
    };
    let begun = Instant::now();
    let error = trees.find(&layer(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("within 300ms") && text.contains("--search-timeout"), "{text}");
    let first = begun.elapsed();
    for number in 1..20 {
        assert!(matches!(trees.find(&layer(number)), Ok(RemoteAnswer::NotMine)));
    }
    // Were each of them to wait, they would take twenty times as long as the first must.
    assert!(first >= timeout && begun.elapsed() < timeout * 20, "{first:?} {:?}", begun.elapsed());
    // Threads that still wait for it must not hold the test up.
    drop(silent);
    runtime.shutdown_background();
}

/// The labels with which containerd asks for a layer of an image.
fn labels_of(image: &str, number: u8) -> SnapshotLabels {
    SnapshotLabels::from([
        ("containerd.io/snapshot.ref".to_owned(), Digest::of(&[number]).to_string()),
        ("containerd.io/snapshot/cri.image-ref".to_owned(), image.to_owned()),
        ("containerd.io/snapshot/cri.manifest-digest".to_owned(), Digest::of(b"manifest").to_string()),
    ])
}

/// All searches end in time, with their requests: a registry that does not answer fills the host with neither threads
/// nor connections.
#[test]
fn many_pulls_from_a_registry_that_does_not_answer_end_in_time_and_leave_nothing() {
    const PULLS: usize = 48;
    let (root, timeout) = (TempDir::new().unwrap(), Duration::from_millis(300));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = silent.local_addr().unwrap();
    let runtime = Runtime::new().unwrap();
    let trees = &trees_in(root.path(), CountedDisks::default(), timeout, &runtime);
    // Takes connections, and sees when they end.
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = Arc::clone(&counts);
    std::thread::spawn(move || {
        while let Ok((mut connection, _)) = silent.accept() {
            seen[0].fetch_add(1, Ordering::Relaxed);
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut connection, &mut std::io::sink());
                seen[1].fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    let ends = std::thread::scope(|scope| {
        let pull = |number: usize| {
            move || {
                let found = trees.find(&labels_of(&format!("{host}/app{number}:1"), 0));
                found.unwrap_err().to_string().contains("has not answered within 300ms")
            }
        };
        let pulls: Vec<_> = (0..PULLS).map(|number| scope.spawn(pull(number))).collect();
        pulls.into_iter().map(|pull| pull.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(ends, [true; PULLS], "each ends by its own limit");
    let count = || [0, 1].map(|at| counts[at].load(Ordering::Relaxed));
    wait_until("all connections have ended", Duration::from_secs(60), || {
        let [begun, ended] = count();
        begun >= PULLS && begun == ended
    });
    let [begun, _] = count();
    assert!(begun <= 3 * PULLS, "{begun} connections for {PULLS} questions");
    runtime.shutdown_background();
}

#[test]
fn a_disk_is_known_to_be_read_only_by_a_note_beside_the_tree_of_its_image() {
    let scene = Scene::new();
    let (whole, lowest) = (tree(b"a", None), tree(b"a", Some(2)));
    scene.attach(&whole);
    let directory = scene.root.path().join(whole.id());
    for (kind, is_writable) in [("erofs", false), ("ext4", true)] {
        fs::write(directory.join(FILE_SYSTEM), kind).unwrap();
        let above = TreeName { above: vec!["/snapshots/1/layer".into()], ..whole.clone() };
        for tree in [&whole, &lowest, &above] {
            assert_eq!(scene.trees.can_be_written(&disk_of(tree)).unwrap(), is_writable, "{tree}");
            assert_eq!(scene.trees.image_of(&disk_of(tree)), whole.image.to_string());
        }
    }
    // A tree that is mounted by an earlier version has none: what is mounted tells.
    fs::remove_file(directory.join(FILE_SYSTEM)).unwrap();
    assert!(note_file_system(&directory, &directory).unwrap());
    assert!(scene.trees.can_be_written(&disk_of(&whole)).unwrap());
    let empty = format!("file:///blank@{}#all", Digest::of(b"x"));
    assert!(scene.trees.can_be_written(&LayeredDisk::of(RemoteLayer(empty))).unwrap());
}

fn sorted(names: &[&String]) -> Vec<String> {
    names.iter().map(|name| (*name).clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn credentials_of_pulls_are_shown_to_no_registry_that_nothing_is_pulled_from() {
    let (scene, dir) = (Scene::new(), TempDir::new().unwrap());
    let file = dir.path().join("pull-credentials");
    let pulls = Arc::new(PullSecrets::new(&file, Duration::from_secs(60)));
    let stores = StoreSettings { pull_credentials: Some(file.clone()), ..StoreSettings::default() };
    let location: Location = "oci://reg.lan/apps/web".parse().unwrap();
    let trees = ImageTrees { stores, ..scene.trees };
    assert_eq!(trees.stores_for(&location).0.pull_credentials, Some(file));
    let trees = trees.with_pulls(Some(pulls));
    let (stores, pull) = trees.stores_for(&location);
    assert_eq!((stores.pull_credentials, stores.offered_alone, pull), (None, true, None));
}

/// An image that names the image of another pull in its annotations is not answered by what that pull has brought.
#[test]
fn what_a_pull_has_brought_answers_no_question_without_its_credentials() {
    let (root, runtime) = (TempDir::new().unwrap(), Runtime::new().unwrap());
    let file = root.path().join("pull-credentials");
    let pulls = Arc::new(PullSecrets::new(&file, Duration::from_secs(60)));
    let trees = trees_in(root.path(), CountedDisks::default(), Duration::from_millis(300), &runtime);
    let stores = StoreSettings { pull_credentials: Some(file), ..StoreSettings::default() };
    let trees = ImageTrees { stores, ..trees }.with_pulls(Some(pulls));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/app:1", silent.local_addr().unwrap());
    let wanted = WantedLayer::of(&labels_of(&image, 0)).unwrap().unwrap();
    let remember = |pull| {
        let meant = wanted.manifest.unwrap();
        let question = (wanted.location.clone(), wanted.selector.clone(), meant, pull);
        trees.remember(question, Instant::now(), None);
    };
    remember(Some(1));
    assert_eq!(trees.image(&wanted).unwrap_err().kind(), ErrorKind::Unavailable, "it is asked for");
    remember(None);
    assert_eq!(trees.image(&wanted).unwrap(), None);
    drop(silent);
    runtime.shutdown_background();
}

/// `BuildKit` leaves out the name where it unpacks a layer that it has as another image's, with any configuration.
#[test]
fn labels_without_a_name_are_complained_of_unless_an_image_was_named_before() {
    let nameless =
        SnapshotLabels::from([("containerd.io/snapshot.ref".to_owned(), Digest::of(b"x").to_string())]);
    let scene = Scene::new();
    assert!(scene.trees.complain_of_labels() && !scene.trees.complain_of_labels(), "once");
    let (root, runtime) = (TempDir::new().unwrap(), Runtime::new().unwrap());
    let trees = trees_in(root.path(), CountedDisks::default(), Duration::from_millis(300), &runtime);
    trees.find(&labels_of("127.0.0.1:9/app:1", 0)).unwrap_err();
    assert!(matches!(trees.find(&nameless), Ok(RemoteAnswer::NotMine)));
    assert!(!trees.complain_of_labels());
}
