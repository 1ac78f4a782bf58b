//! The same layers, unpacked by other programs: `umoci` and containerd's own overlayfs, beside the converted disk as
//! the kernel shows it. Every path is compared: kind, permissions, owner, time in nanoseconds, extended attributes,
//! device numbers, content, and the names that are links of one file.
//!
//! # Known deviations
//! Each has its reason in the module `apply` (under *Choices*) or in the documentation of the program:
//! * The root directory's attributes are set from `./`, which containerd ignores.
//! * The time of a directory counts only if the last layer that touches the directory has an entry of it: otherwise
//!   programs that unpack leave the time of unpacking.
//! * `umoci` sets times before 1970; containerd and the converter take 1970-01-01.
//! * `umoci` leaves out the attributes of hard links' entries; containerd and the converter give them to the file.
//! * `umoci` keeps the mode of unlisted directories to itself: theirs is not compared.

use super::support::{TestImage, options};
use crate::disk_trees::support::store_disk;
use crate::options::ConvertOptions;
use crate::parent_disk::disk_of;
use crate::raw_tar::{PLAIN, RawMeta, RawTar, net_raw};
use crate::test_layers::{gzip, noise};
use headstart_block::{Digest, FileSystemKind};
use headstart_image::open_image::OpenImage;
use headstart_testkit::containerd::{Containerd, ContainerdSettings};
use headstart_testkit::process::{installed, is_root};
use headstart_testkit::soak;
use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the image in containerd.
const NAME: &str = "example.test/applied:1";

/// A path of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    mode: u32,
    owner: (u32, u32),
    /// Seconds and nanoseconds.
    time: (i64, i64),
    device: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The digest of a file's content; a link's target.
    content: Vec<u8>,
    /// The first name of the same file.
    first: PathBuf,
}

type Tree = BTreeMap<PathBuf, Shown>;

/// The extended attributes of a path, itself if it is a link.
fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut list, mut value) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let len = rustix::fs::llistxattr(path, &mut list).unwrap_or(0);
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found = BTreeMap::new();
    // Attributes that overlayfs keeps for itself are none of the tree.
    for name in names.filter(|name| !name.starts_with(b"trusted.overlay.")) {
        let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
        found.insert(name.to_vec(), value[..len].to_vec());
    }
    found
}

/// All paths below a directory, without itself.
fn walk(root: &Path) -> Tree {
    let (mut paths, mut pending) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                pending.push(path.clone());
            }
            paths.insert(path);
        }
    }
    let (mut tree, mut firsts) = (Tree::new(), BTreeMap::new());
    for path in paths {
        let status = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_owned();
        let kind = status.file_type();
        let content = if kind.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else if kind.is_file() {
            Digest::of(&fs::read(&path).unwrap()).as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let is_device = kind.is_char_device() || kind.is_block_device();
        // A directory has one name, and overlayfs may give it any number.
        let key = if kind.is_dir() { (u64::MAX, firsts.len() as u64) } else { (status.dev(), status.ino()) };
        let shown = Shown {
            mode: status.mode(),
            owner: (status.uid(), status.gid()),
            time: (status.mtime(), status.mtime_nsec()),
            device: if is_device { status.rdev() } else { 0 },
            xattrs: xattrs(&path),
            content,
            first: firsts.entry(key).or_insert_with(|| name.clone()).clone(),
        };
        tree.insert(name, shown);
    }
    tree
}

/// A mounted file system.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.0).status().is_ok_and(|status| status.success());
        assert!(done || std::thread::panicking(), "cannot unmount {}", self.0.display());
    }
}

/// The tree of the converted image, as the kernel shows it; `None`, with a message, where it mounts no disks. It is the
/// same on all file systems.
fn converted(dir: &Path, image: &TestImage) -> Option<Tree> {
    let ext4 = converted_on(FileSystemKind::Ext4, &dir.join("ext4"), image)?;
    let erofs = converted_on(FileSystemKind::Erofs, &dir.join("erofs"), image)?;
    let found = differences(&erofs, &ext4, &|_| true);
    assert!(found.is_empty(), "EROFS beside ext4: {found:#?}");
    Some(erofs)
}

fn converted_on(kind: FileSystemKind, dir: &Path, image: &TestImage) -> Option<Tree> {
    let (disk, mounted) = (dir.join("disk"), dir.join("mounted"));
    fs::create_dir_all(dir).unwrap();
    let options = ConvertOptions { file_system: kind, ..options(2) };
    image.convert(&dir.join("store"), "app", &options).unwrap();
    let open = OpenImage::open(&super::support::reference(&dir.join("store"), "app")).unwrap();
    store_disk(&disk_of(open.into_disk()), &disk);
    fs::create_dir_all(&mounted).unwrap();
    let name = if kind == FileSystemKind::Erofs { "erofs" } else { "ext4" };
    let output = Command::new("mount").args(["-t", name, "-o", "loop,ro"]).args([&disk, &mounted]).output();
    let output = output.unwrap();
    if !output.status.success() {
        let cause = String::from_utf8_lossy(&output.stderr);
        let _ = writeln!(std::io::stderr(), "SKIPPED: trees of other appliers: {}", cause.trim());
        return None;
    }
    let mount = Mount(mounted);
    let mut tree = walk(&mount.0);
    tree.retain(|path, _| path != Path::new("lost+found"));
    Some(tree)
}

/// Writes the image as an OCI layout with the tag `app`.
fn write_layout(dir: &Path, image: &TestImage) -> PathBuf {
    let layout = dir.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let manifest = image.manifest();
    let all = image.layers.iter().map(|layer| layer.bytes.as_slice());
    for bytes in all.chain([image.config.as_slice(), manifest.as_slice()]) {
        fs::write(blobs.join(Digest::of(bytes).hex()), bytes).unwrap();
    }
    let entry = json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": Digest::of(&manifest),
        "size": manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": "app", "io.containerd.image.name": NAME},
    });
    fs::write(layout.join("index.json"), json!({"schemaVersion": 2, "manifests": [entry]}).to_string())
        .unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    layout
}

/// The tree that `umoci` unpacks.
fn unpacked_by_umoci(dir: &Path, layout: &Path) -> Tree {
    let (image, root) = (format!("{}:app", layout.display()), dir.join("unpacked"));
    let output =
        Command::new("umoci").args(["raw", "unpack", "--image", &image]).arg(&root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    walk(&root)
}

/// The tree that containerd unpacks for overlayfs.
fn unpacked_by_containerd(dir: &Path, layout: &Path) -> Tree {
    let (archive, mounted) = (dir.join("image.tar"), dir.join("overlay"));
    let files = ["oci-layout", "index.json", "blobs"];
    let made =
        Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(layout).args(files).status().unwrap();
    assert!(made.success());
    let home = tempfile::tempdir().unwrap();
    let settings = ContainerdSettings { has_overlayfs: true, ..ContainerdSettings::default() };
    let containerd = Containerd::start(home.path(), &home.path().join("no-snapshotter.sock"), &settings);
    let archive = archive.display().to_string();
    containerd.ctr(&["images", "import", "--snapshotter", "overlayfs", &archive]);
    fs::create_dir_all(&mounted).unwrap();
    let shown = mounted.display().to_string();
    containerd.ctr(&["images", "mount", "--snapshotter", "overlayfs", NAME, &shown]);
    let mount = Mount(mounted);
    walk(&mount.0)
}

/// The differences of two trees, in words. Times of directories count if `is_timed`.
fn differences(ours: &Tree, theirs: &Tree, is_timed: &dyn Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for path in ours.keys().chain(theirs.keys()).collect::<BTreeSet<_>>() {
        let (Some(our), Some(their)) = (ours.get(path), theirs.get(path)) else {
            found.push(format!(
                "{}: ours {}, theirs {}",
                path.display(),
                ours.contains_key(path),
                theirs.contains_key(path)
            ));
            continue;
        };
        let mut their = their.clone();
        if !is_timed(path) {
            their.time = our.time;
        }
        if *our != their {
            found.push(format!("{}: ours {our:?}, theirs {their:?}", path.display()));
        }
    }
    found
}

/// `true` if the programs are there that unpack with all attributes.
fn can_compare() -> bool {
    is_root() && installed(&["umoci", "mount"])
}

/// An image of this host's platform.
fn image_of(tars: &[Vec<u8>]) -> TestImage {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let ids: Vec<_> = tars.iter().map(|tar| Digest::of(tar)).collect();
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": ids},
    });
    TestImage { config: config.to_string().into_bytes(), ..TestImage::new(tars, |tar| gzip(tar, 1)) }
}

/// The content of a file in the PAX format 1.0: the map of its data, and the data.
fn mapped(map: &str, data: &[u8]) -> Vec<u8> {
    let mut content = map.as_bytes().to_vec();
    content.resize(content.len().next_multiple_of(512), 0);
    content.extend_from_slice(data);
    content
}

/// A layer with everything that a tar can say in more than one way, behind the entries of `tar`.
fn odd_forms(tar: RawTar) -> RawTar {
    let far = RawMeta { mtime: 1 << 32, uid: 3_000_000, gid: 4_000_000_000, ..PLAIN };
    let long = format!("long/{}/{}", "d".repeat(200), "f".repeat(255));
    let data = noise(1, 6000);
    tar.dir("long")
        .dir("etc")
        .pax(&[("path", long.as_bytes()), ("mtime", b"1700000000.000000001")])
        .file("short", b"by a PAX record")
        .gnu_long(b'L', format!("long/{}", "g".repeat(180)).as_bytes())
        .file("short", b"by a GNU entry")
        .gnu_long(b'K', "far/".repeat(60).as_bytes())
        .symlink("short", "long/link")
        .entry(b'0', b"far", b"", far, b"base 256")
        .entry(b'0', b"caf\xe9", b"", PLAIN, b"not UTF-8")
        .entry(b'0', b"set-id", b"", RawMeta { mode: 0o6755, uid: 7, gid: 8, mtime: 1_600_000_000 }, b"x")
        .entry(b'6', b"pipe", b"", PLAIN, b"")
        .device(b'3', "null", (1, 3))
        .device(b'4', "disk", (259, 70_000))
        .pax(&[("SCHILY.xattr.security.capability", &net_raw()), ("SCHILY.xattr.user.binary", b"\0\n=")])
        .file("capable", b"x")
        .pax(&[("SCHILY.xattr.user.dir", b"of a directory")])
        .dir("etc/attributes")
        .pax(&[
            ("GNU.sparse.size", b"40000"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.offset", b"4096"),
            ("GNU.sparse.numbytes", b"5000"),
            ("GNU.sparse.offset", b"39000"),
            ("GNU.sparse.numbytes", b"1000"),
        ])
        .file("sparse-0.0", &data)
        .pax(&[
            ("GNU.sparse.size", b"40000"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.map", b"4096,5000,39000,1000"),
            ("GNU.sparse.name", b"sparse-0.1"),
        ])
        .file("other name", &data)
        .pax(&[
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.realsize", b"40000"),
            ("GNU.sparse.name", b"sparse-1.0"),
        ])
        .file("other name", &mapped("2\n4096\n5000\n39000\n1000\n", &data))
}

/// Links, and names that the next layer changes, behind those entries.
fn odd_names(tar: RawTar) -> RawTar {
    tar.symlink("set-id", "alias")
        .link("alias", "second-name-of-the-link")
        .entry(
            b'1',
            b"second-name",
            b"set-id",
            RawMeta { mode: 0o6755, uid: 7, gid: 8, mtime: 1_600_000_000 },
            b"",
        )
        .symlink("../usr/./lib", "etc/through")
        .dir("usr")
        .dir("usr/lib")
        .file("etc/through/in", b"behind a link with ..")
        .dir("opaque")
        .file("opaque/old", b"old")
        .dir("opaque/dir")
        .file("opaque/dir/old", b"old")
        .file("again", b"first")
        .dir("to-link")
        .file("to-link/in", b"x")
        .symlink("usr", "to-dir")
        .file("to-other", b"x")
        .dir("gone")
        .file("gone/in", b"x")
}

/// A layer on top, which both kinds of containerd's appliers take.
fn odd_changes() -> RawTar {
    RawTar::default()
        .dir("opaque")
        .file("opaque/before", b"before the marker")
        .file("opaque/.wh..wh..opq", b"")
        .file("opaque/after", b"after the marker")
        .file(".wh.again", b"")
        .file("again", b"second")
        .symlink("usr", "to-link")
        .dir("to-dir")
        .file("to-dir/in", b"in a directory")
        .entry(b'6', b"to-other", b"", PLAIN, b"")
        .file(".wh.gone", b"")
        .file(".wh.never-there", b"")
        .dir("etc/attributes")
}

/// A layer that only appliers into a whole tree take: hard links across layers, and a marker behind its file.
fn cross_changes() -> RawTar {
    RawTar::default()
        .link("capable", "linked-across")
        .link("alias", "link-linked-across")
        .dir("usr")
        .file("usr/new", b"new")
        .file("usr/.wh.new", b"")
        .dir("usr/lib")
        .file("usr/lib/deep", b"x")
        .file("usr/lib/.wh..wh..opq", b"")
}

/// `true` for paths whose time programs set: not for directories that an entry in them touched later.
fn is_listed_last(path: &Path) -> bool {
    let touched = ["etc", "usr", "usr/lib", "opaque", "long", "to-dir", "gone"];
    !touched.iter().any(|dir| path == Path::new(dir)) && path.parent() != Some(Path::new("long"))
}

#[test]
fn odd_layers_are_what_umoci_and_containerd_make_of_them() {
    if !can_compare() {
        return;
    }
    let layers = [odd_names(odd_forms(RawTar::default())), odd_changes(), cross_changes()].map(RawTar::done);
    let dir = tempfile::tempdir().unwrap();
    let image = image_of(&layers);
    let Some(ours) = converted(dir.path(), &image) else { return };
    assert!(ours.len() > 30, "{:?}", ours.keys());
    let theirs = unpacked_by_umoci(dir.path(), &write_layout(dir.path(), &image));
    let found = differences(&ours, &theirs, &is_listed_last);
    assert!(found.is_empty(), "umoci: {found:#?}");

    if !Containerd::can_run() {
        return;
    }
    // `umoci` refuses a global header. Nothing in it counts, as with Go's reader of tars.
    let global = RawTar::default().global(&[("comment", b"of all"), ("mtime", b"77")]);
    let layers = [odd_names(odd_forms(global)), odd_changes()].map(RawTar::done);
    let dir = tempfile::tempdir().unwrap();
    let image = image_of(&layers);
    let Some(ours) = converted(dir.path(), &image) else { return };
    let theirs = unpacked_by_containerd(dir.path(), &write_layout(dir.path(), &image));
    let found = differences(&ours, &theirs, &is_listed_last);
    assert!(found.is_empty(), "containerd: {found:#?}");
}

/// A step of a random layer: a path, a kind, and a number for the rest.
type Step = (u8, u8, u8, u8);

/// A layer of random steps in the making. No path is named twice, and a directory is listed before its files: programs
/// differ in everything else.
struct RandomLayer {
    tar: RawTar,
    /// The paths below this layer, `true` for directories.
    old: BTreeMap<String, bool>,
    /// The paths of this layer: `Some(true)` for directories, `None` for whiteouts.
    own: BTreeMap<String, Option<bool>>,
    /// The files of this layer, and their attributes.
    files: Vec<(String, RawMeta)>,
}

impl RandomLayer {
    /// Adds a step, unless it makes no sense on the paths that are there.
    fn step(&mut self, (place, name, kind, number): Step) {
        let dirs: &[&str] = [&[][..], &["a"], &["b"], &["a", "a/c"]][usize::from(place % 4)];
        let name = ["a", "b", "c", "d", "e"][usize::from(name % 5)];
        let path = dirs.last().map_or(name.to_owned(), |dir| format!("{dir}/{name}"));
        let is_none = |dir: &&str| self.own.get(*dir).is_some_and(|kind| *kind != Some(true));
        if self.own.contains_key(&path) || dirs.iter().any(is_none) {
            return;
        }
        for dir in dirs {
            if self.own.insert((*dir).to_owned(), Some(true)).is_none() {
                self.add(|tar| tar.dir(dir));
            }
        }
        let meta = RawMeta {
            mode: 0o600 | u32::from(number),
            uid: i64::from(number),
            gid: 5,
            mtime: 1_500_000_000 + i64::from(number),
        };
        let is_dir = kind % 8 == 0 || kind % 8 == 6;
        let brings_below = self.own.keys().any(|known| known.starts_with(&format!("{path}/")));
        if is_dir || !brings_below {
            self.put(path, kind % 8, number, meta);
        }
    }

    fn put(&mut self, path: String, kind: u8, number: u8, meta: RawMeta) {
        let name = path.as_bytes();
        let made = match kind {
            0 => {
                let attribute = [("SCHILY.xattr.user.number", &[number][..])];
                self.add(|tar| tar.pax(&attribute).entry(b'5', name, b"", meta, b""));
                Some(true)
            }
            1 | 2 => {
                let content = noise(number.into(), usize::from(number) * 40);
                self.add(|tar| tar.entry(b'0', name, b"", meta, &content));
                self.files.push((path.clone(), meta));
                Some(false)
            }
            3 => {
                let meta = RawMeta { mode: 0o777, ..meta };
                self.add(|tar| tar.entry(b'2', name, b"target", meta, b""));
                Some(false)
            }
            4 => {
                // A link's entry has the attributes of its file: programs differ where it has others.
                let place = usize::from(number) % self.files.len().max(1);
                let Some((target, meta)) = self.files.get(place).cloned() else { return };
                self.add(|tar| tar.entry(b'1', name, target.as_bytes(), meta, b""));
                Some(false)
            }
            5 if self.old.contains_key(&path) => {
                let (dir, name) = path.rsplit_once('/').unwrap_or(("", &path));
                self.add(|tar| tar.file(format!("{dir}/.wh.{name}").trim_start_matches('/'), b""));
                None
            }
            6 if self.old.get(&path) == Some(&true) => {
                self.add(|tar| tar.dir(&path).file(&format!("{path}/.wh..wh..opq"), b""));
                Some(true)
            }
            _ => return,
        };
        self.own.insert(path, made);
    }

    fn add(&mut self, entry: impl FnOnce(RawTar) -> RawTar) {
        self.tar = entry(std::mem::take(&mut self.tar));
    }
}

/// Makes a layer of random steps on the paths `lower`, and adds its own to them.
fn random_layer(lower: &mut BTreeMap<String, bool>, steps: &[Step]) -> Vec<u8> {
    let mut layer =
        RandomLayer { tar: RawTar::default(), old: lower.clone(), own: BTreeMap::new(), files: Vec::new() };
    steps.iter().for_each(|step| layer.step(*step));
    for (path, made) in layer.own {
        if made != Some(true) {
            lower.retain(|known, _| !known.starts_with(&format!("{path}/")));
        }
        match made {
            Some(is_dir) => drop(lower.insert(path, is_dir)),
            None => drop(lower.remove(&path)),
        }
    }
    layer.tar.done()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if soak::is_on() { 400 } else { 12 },
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_layers_are_what_umoci_makes_of_them(
        layers in prop::collection::vec(prop::collection::vec(any::<Step>(), 1..25), 1..5),
    ) {
        if !can_compare() {
            return Ok(());
        }
        let mut lower = BTreeMap::new();
        let tars: Vec<_> = layers.iter().map(|steps| random_layer(&mut lower, steps)).collect();
        let (dir, image) = (tempfile::tempdir().unwrap(), image_of(&tars));
        let Some(ours) = converted(dir.path(), &image) else { return Ok(()) };
        let theirs = unpacked_by_umoci(dir.path(), &write_layout(dir.path(), &image));
        let is_timed = |path: &Path| ours.get(path).is_none_or(|shown| shown.mode & 0o170_000 != 0o040_000);
        let found = differences(&ours, &theirs, &is_timed);
        prop_assert!(found.is_empty(), "{:#?}", found);
    }
}
