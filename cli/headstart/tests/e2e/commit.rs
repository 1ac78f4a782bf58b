//! Writable layers become images: the reference's pairs of files, and this project's directories.

use crate::disk::{assert_same, mixed_disk, noise};
use crate::golden_set::lay_out_layers;
use crate::scene::Scene;
use headstart_block::{BlockDevice, ByteRange};
use headstart_image::open_image::OpenImage;
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use headstart_testkit::golden_set::GoldenSet;
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use uuid::Uuid;

/// Puts a golden case's layers into the scene and makes an image of them, by exporting and importing.
fn commit_golden(scene: &Scene, set: &GoldenSet, pair: &str, lowers: Option<&str>) {
    let case = set.case(pair);
    for part in ["data", "index"] {
        fs::write(scene.path(&format!("{pair}.{part}")), set.raw(&case[part])).unwrap();
    }
    let base = lowers.map_or(String::new(), |lowers| {
        let files = lay_out_layers(scene, set, set.case(lowers)).join(" ");
        scene.ok(&format!("layer export {files} -o base.raw"));
        scene.ok("image import base.raw file://~/store:base");
        "--base file://~/store:base".to_owned()
    });
    let target = format!("file://~/store:{pair}");
    let made = scene.json(&format!("image commit {target} --pair {pair}.data,{pair}.index {base}"));
    assert_eq!(made["layers"], 1 + u64::from(lowers.is_some()));
    scene.ok(&format!("image export {target} -o out.raw"));
    assert_eq!(crate::scene::sha256(&scene.bytes("out.raw")), case["expected"]["sha256"], "{pair}");
    scene.ok(&format!("image verify --deep {target}"));
}

#[test]
fn pairs_of_the_reference_become_images() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    commit_golden(&scene, &set, "pair64m", None);
    commit_golden(&scene, &set, "pair_group", None);
    commit_golden(&scene, &set, "pair_on_stack", Some("stack3_64m"));
}

/// A directory written through the library as a running machine would, and its expected content.
struct Written {
    disk: WritableDisk,
    model: Vec<u8>,
}

impl Written {
    /// Makes the directory on the image `base` of the scene, whose disk has the bytes `model`.
    fn create(scene: &Scene, dir: &str, base: &str, model: Vec<u8>) -> Self {
        let reference = format!("file://{}", scene.path(base).display()).parse().unwrap();
        let image = OpenImage::open(&reference).unwrap();
        let new =
            NewDisk { size: model.len() as u64, parent: image.digest.to_string(), uuid: Uuid::from_u128(7) };
        let base: Arc<dyn BlockDevice> = Arc::new(image.into_disk());
        Self { disk: WritableDisk::create(scene.path(dir), Some(base), &new).unwrap(), model }
    }

    /// Writes, trims, freezes and collects, at random places.
    fn scribble(&mut self, seed: u64, times: u64) {
        for n in 0..times {
            let pick = noise(seed ^ (n << 20), 16);
            let [place, len] = [&pick[..8], &pick[8..]].map(|b| u64::from_le_bytes(b.try_into().unwrap()));
            let offset = place % (self.model.len() as u64 / 512 - 200) * 512;
            let len = (len % 199 + 1) * 512;
            let here = offset as usize..(offset + len) as usize;
            if n % 4 == 3 {
                self.disk.write_zeroes(ByteRange::between(offset, offset + len)).unwrap();
                self.model[here].fill(0);
            } else {
                let bytes = noise(seed + n, len as usize);
                self.disk.write_at(&bytes, offset).unwrap();
                self.model[here].copy_from_slice(&bytes);
            }
            if n % 50 == 49 {
                self.disk.flush().unwrap();
                self.disk.collect_garbage().unwrap();
            }
        }
        self.disk.flush().unwrap();
    }
}

fn scene_with_base() -> (Scene, Vec<u8>, Value) {
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 16);
    let made = scene.json("image import base.raw file://~/store:base");
    let bytes = scene.bytes("base.raw");
    (scene, bytes, made)
}

#[test]
fn a_written_directory_becomes_the_next_image() {
    let (scene, bytes, _) = scene_with_base();
    let mut written = Written::create(&scene, "dir", "store:base", bytes);
    written.scribble(1, 220);
    let commit = "image commit file://~/store:next --writable dir --base file://~/store:base";
    scene.fails(commit, &["dir", "in use"]);
    fs::write(scene.path("expected.raw"), &written.model).unwrap();
    drop(written);
    scene.wait_until_unlocked("dir");
    let before = scene.fingerprint("dir");
    let made = scene.json(commit);
    assert_eq!((&made["layers"], &made["virtual_size"]), (&2.into(), &(16 << 20).into()));
    scene.ok("image export file://~/store:next -o out.raw");
    assert_same(&scene, "expected.raw", "out.raw");
    scene.ok("image verify --deep file://~/store:next");
    // The directory is unchanged, and can be committed again, to the same image.
    assert_eq!(scene.fingerprint("dir"), before);
    let again =
        scene.json("image commit file://~/store:again --writable dir --base file://~/store:base --threads 1");
    assert_eq!(again["digest"], made["digest"]);
}

#[test]
fn a_grown_directory_becomes_an_image_of_its_size() {
    let (scene, mut bytes, _) = scene_with_base();
    bytes.truncate(16 << 20);
    let mut written = Written::create(&scene, "dir", "store:base", bytes);
    written.disk.grow(24 << 20).unwrap();
    written.model.resize(24 << 20, 0);
    written.scribble(2, 60);
    fs::write(scene.path("expected.raw"), &written.model).unwrap();
    drop(written);
    scene.wait_until_unlocked("dir");
    let made = scene.json("image commit file://~/other:next --writable dir --base file://~/store:base");
    assert_eq!(made["virtual_size"], 24 << 20);
    scene.ok("image export file://~/other:next -o out.raw");
    assert_same(&scene, "expected.raw", "out.raw");
}

#[test]
fn a_pair_smaller_than_its_base_is_said_to_be_cut() {
    let (scene, bytes, _) = scene_with_base();
    let new = NewDisk { size: 12 << 20, parent: String::new(), uuid: Uuid::from_u128(1) };
    let written = WritableDisk::create(scene.path("dir"), None, &new).unwrap();
    written.write_at(&[7; 4096], 0).unwrap();
    written.flush().unwrap();
    drop(written);
    scene.wait_until_unlocked("dir");
    let commit = "image commit file://~/store:cut --pair dir/data,dir/index --base file://~/store:base";
    let made = scene.json(commit);
    assert_eq!((&made["virtual_size"], &made["cut_bytes"]), (&(12 << 20).into(), &(4 << 20).into()));
    scene.ok("image export file://~/store:cut -o out.raw");
    let out = scene.bytes("out.raw");
    assert!(out.len() == 12 << 20 && out[..4096] == [7; 4096] && out[4096..] == bytes[4096..12 << 20]);
}

#[test]
fn a_directory_of_another_image_is_refused() {
    let (scene, bytes, base) = scene_with_base();
    let mut written = Written::create(&scene, "dir", "store:base", bytes);
    written.scribble(3, 20);
    drop(written);
    scene.wait_until_unlocked("dir");
    crate::disk::copy_of(&scene, "base.raw", "other.raw").write(0, b"other");
    scene.ok("image import other.raw file://~/store:other");
    let before = [scene.fingerprint("dir"), scene.fingerprint("store")];
    let digest = base["digest"].as_str().unwrap();
    scene.fails(
        "image commit file://~/store:no --writable dir --base file://~/store:other",
        &["dir", digest, "attach the image it belongs to"],
    );
    scene.fails("image commit file://~/store:no --writable dir", &["dir", digest]);
    scene.fails("image commit file://~/store:no --writable none", &["none"]);
    scene.fails("image commit file://~/store:no --writable store", &["store"]);
    for pair in ["a", "a,b,c", "a,", ",b"] {
        scene.is_wrong(&format!("image commit file://~/store:no --pair {pair}"), &["--pair DATA,INDEX"]);
    }
    scene.fails("image commit file://~/store:no --pair none,none", &["none"]);
    scene.fails("image commit file://~/store:no --pair base.raw,other.raw", &["base.raw"]);
    assert_eq!([scene.fingerprint("dir"), scene.fingerprint("store")], before);
}

#[test]
fn a_chain_of_commits_is_the_disk_that_was_written() {
    let (scene, mut bytes, _) = scene_with_base();
    for n in 0..3u64 {
        let base = if n == 0 { "base".to_owned() } else { format!("vm{}", n - 1) };
        let mut written = Written::create(&scene, &format!("dir{n}"), &format!("store:{base}"), bytes);
        written.scribble(100 + n, 40);
        bytes = std::mem::take(&mut written.model);
        drop(written);
        scene.wait_until_unlocked(&format!("dir{n}"));
        scene
            .ok(&format!("image commit file://~/store:vm{n} --writable dir{n} --base file://~/store:{base}"));
    }
    fs::write(scene.path("expected.raw"), &bytes).unwrap();
    scene.ok("image export file://~/store:vm2 -o out.raw");
    assert_same(&scene, "expected.raw", "out.raw");
    let imported = scene.json("image import expected.raw file://~/store:imported");
    let flat = scene.json("image flatten file://~/store:vm2 file://~/store:flat");
    assert_eq!(flat["virtual_size"], imported["virtual_size"]);
    scene.ok("image diff file://~/store:imported file://~/store:flat");
}

/// The blobs of a registry's storage, with their lengths.
fn blobs_of(registry: &Registry) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut left = vec![registry.blobs()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(it) if it.is_dir() => left.push(entry.path()),
                Ok(it) => _ = found.insert(entry.path().display().to_string(), it.len()),
                Err(_) => {}
            }
        }
    }
    found
}

#[test]
fn a_directory_is_committed_into_a_registry_and_only_its_layer_is_sent() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let (scene, bytes, _) = scene_with_base();
    let (host, plain) = (registry.host(), format!("--plain-http {}", registry.host()));
    let base = format!("oci://{host}/vm/base:1");
    let pushed = scene.json(&format!("image push file://~/store:base {base} {plain}"));
    let mut written = Written::create(&scene, "dir", "store:base", bytes);
    written.scribble(4, 60);
    let digest = pushed["digest"].as_str().unwrap();
    written.disk.note_reference(&base).unwrap();
    fs::write(scene.path("expected.raw"), &written.model).unwrap();
    drop(written);
    scene.wait_until_unlocked("dir");
    // The image is nowhere on this host.
    fs::rename(scene.path("store"), scene.path("away")).unwrap();
    let before = blobs_of(&registry);
    let target = format!("oci://{host}/team/vm1:1");
    scene.is_wrong(&format!("image commit {target} --writable dir"), &["--push"]);
    scene.is_wrong("image commit --push file://~/store:x --writable dir", &["leave out --push"]);
    let made = scene.json(&format!("image commit --push {target} --writable dir {plain}"));
    let sent = made["pushed"].clone();
    let layer = made["layer_size"].as_u64().unwrap();
    assert_eq!(sent["mounted_blobs"], 2, "the base's layer and its hash tree: {sent}");
    let copied = sent["copied_bytes"].as_u64().unwrap();
    assert!(copied >= layer && copied < layer + (64 << 10), "{sent} {layer}");
    // So the registry's own storage says.
    let grown: u64 =
        blobs_of(&registry).iter().filter(|(name, _)| !before.contains_key(*name)).map(|it| it.1).sum();
    assert!(grown >= layer && grown < layer + (64 << 10), "{grown} {layer}");
    scene.ok(&format!("image verify {target} {plain}"));
    scene.ok(&format!("image pull {target} file://~/pulled:x {plain}"));
    scene.ok("image export file://~/pulled:x -o out.raw");
    assert_same(&scene, "expected.raw", "out.raw");
    // In the base's own repository nothing has to be taken over.
    let beside = scene.json(&format!(
        "image commit --push oci://{host}/vm/base:2 --writable dir --base oci://{host}/vm/base@{digest} {plain}"
    ));
    assert_eq!((&beside["digest"], &beside["pushed"]["mounted_blobs"]), (&made["digest"], &0.into()));
    assert_eq!(beside["pushed"]["present_blobs"], 2);
    // A base that is only in a directory of this host is sent.
    fs::rename(scene.path("away"), scene.path("store")).unwrap();
    let sent = scene.json(&format!(
        "image commit --push oci://{host}/third:1 --writable dir --base file://~/store:base {plain}"
    ));
    assert_eq!((&sent["digest"], &sent["pushed"]["mounted_blobs"]), (&made["digest"], &0.into()));
    assert!(sent["pushed"]["copied_bytes"].as_u64().unwrap() > copied, "{sent}");
}

#[test]
fn a_clone_is_committed_as_its_source_is() {
    let (scene, bytes, _) = scene_with_base();
    let mut written = Written::create(&scene, "dir", "store:base", bytes);
    written.scribble(5, 60);
    fs::write(scene.path("before.raw"), &written.model).unwrap();
    written.disk.note_reference(&format!("file://{}", scene.path("store:base").display())).unwrap();
    drop(written);
    scene.wait_until_unlocked("dir");
    let cloned = scene.json("disk clone dir clone");
    assert_eq!(cloned["virtual_size"], 16 << 20);
    assert!(cloned["shared_bytes"].as_u64() > Some(1 << 20), "{cloned}");
    scene.fails("disk clone dir clone", &["clone", "holds a disk already"]);
    scene.fails("disk clone none other", &["none"]);
    // The image is kept for the clone, too.
    let leases = scene.json("lease list file://~/store");
    assert!(leases.to_string().contains(scene.path("clone").to_str().unwrap()), "{leases}");
    let commit = |dir: &str| scene.json(&format!("image commit file://~/store:{dir} --writable {dir}"));
    assert_eq!(commit("dir")["digest"], commit("clone")["digest"]);
    fs::remove_dir_all(scene.path("dir")).unwrap();
    scene.ok("image export file://~/store:clone -o out.raw");
    assert_same(&scene, "before.raw", "out.raw");
    assert_eq!(commit("clone")["layers"], 2);
}
