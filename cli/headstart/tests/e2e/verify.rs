//! Damage anywhere in a store is found, named by its blob, and shown by the exit status.

use crate::disk::{copy_of, mixed_disk, noise};
use crate::scene::Scene;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A store with an image of two layers, the lower of more than two MiB.
struct Stored {
    scene: Scene,
    manifest: PathBuf,
    config: PathBuf,
    lower: PathBuf,
    lower_tree: PathBuf,
}

impl Stored {
    fn new() -> Self {
        let scene = Scene::new();
        mixed_disk(&scene, "base.raw", 24);
        copy_of(&scene, "base.raw", "base.raw2").write(12 << 20, &noise(77, 3 << 20));
        copy_of(&scene, "base.raw2", "top.raw").write(3 << 20, &noise(78, 100_000));
        scene.ok("image import base.raw2 file://~/store:base");
        let made = scene.json("image import top.raw file://~/store:top --base file://~/store:base");
        let manifest = scene.manifest("store", &made["digest"]);
        let tree = &manifest["layers"][0]["annotations"]["dev.headstart.tree-digest"];
        let blob = |digest: &Value| scene.blob("store", digest);
        Self {
            manifest: blob(&made["digest"]),
            config: blob(&manifest["config"]["digest"]),
            lower: blob(&manifest["layers"][0]["digest"]),
            lower_tree: blob(tree),
            scene,
        }
    }

    /// Verifies quickly or deeply; the result must be `right`. If wrong, the status is 1 and the message has the blob's
    /// name.
    #[track_caller]
    fn check(&self, deep: bool, right: bool, blob: &Path) {
        let verify = if deep { "image verify --deep" } else { "image verify" };
        let run = self.scene.run(&format!("{verify} file://~/store:top"));
        assert_eq!(run.status, Some(i32::from(!right)), "{run}");
        if !right {
            let name = blob.file_name().unwrap().to_str().unwrap();
            assert!(format!("{}{}", run.stdout, run.stderr).contains(name), "no {name} in it\n{run}");
        }
        let run = self.scene.run(&format!("{verify} file://~/store:top --json"));
        assert_eq!(run.status, Some(i32::from(!right)), "{run}");
        if run.stderr.is_empty() {
            let json = run.json();
            assert_eq!((&json["right"], &json["deep"]), (&right.into(), &deep.into()));
            assert_eq!(json["problems"].as_array().unwrap().is_empty(), right);
        }
    }

    /// Changes a byte of `blob`: the deep check finds it, and the quick one if `quick_sees_it`.
    #[track_caller]
    fn flip(&self, blob: &Path, at: usize, quick_sees_it: bool) {
        let bytes = fs::read(blob).unwrap();
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(blob, &damaged).unwrap();
        self.check(true, false, blob);
        self.check(false, !quick_sees_it, blob);
        fs::write(blob, bytes).unwrap();
    }
}

#[test]
fn a_whole_image_is_right() {
    let stored = Stored::new();
    stored.check(false, true, Path::new(""));
    stored.check(true, true, Path::new(""));
    let said = stored.scene.ok("image verify --deep file://~/store:top").stdout;
    assert!(said.contains("every byte is right") && said.contains("hash tree"), "{said}");
    let verified = stored.scene.json("image verify file://~/store:top");
    assert_eq!(verified["layers"].as_array().unwrap().len(), 2);
    assert_eq!(verified["layers"][0]["coverage"], "hash tree");
}

#[test]
fn a_flipped_byte_is_found() {
    let stored = Stored::new();
    for blob in [&stored.manifest, &stored.config] {
        let len = fs::metadata(blob).unwrap().len() as usize;
        for at in [0, len / 3, len / 2, len - 2] {
            stored.flip(blob, at, true);
        }
    }
    let len = fs::metadata(&stored.lower).unwrap().len() as usize;
    assert!(len > 3 << 20, "{len} bytes are all looked at by the quick check");
    // The layer's header and the first frame, which every opening reads; the tail with the indices.
    for at in [0, 33, 600, len - 1, len - 513, len - 4000, len - 500_000] {
        stored.flip(&stored.lower, at, true);
    }
    // The data between them is read only by the deep check.
    for at in [len / 4, len / 3, len / 2] {
        stored.flip(&stored.lower, at, false);
    }
    let len = fs::metadata(&stored.lower_tree).unwrap().len() as usize;
    for at in [0, len / 2, len - 1] {
        stored.flip(&stored.lower_tree, at, true);
    }
    stored.check(true, true, Path::new(""));
}

#[test]
fn missing_and_cut_blobs_are_found() {
    let stored = Stored::new();
    for blob in [&stored.manifest, &stored.config, &stored.lower, &stored.lower_tree] {
        let bytes = fs::read(blob).unwrap();
        let mut longer = bytes.clone();
        longer.push(0);
        for damaged in [&bytes[..bytes.len() - 1], &bytes[..bytes.len() / 2], &[], &longer] {
            fs::write(blob, damaged).unwrap();
            stored.check(false, false, blob);
            stored.check(true, false, blob);
        }
        fs::remove_file(blob).unwrap();
        stored.check(false, false, blob);
        stored.check(true, false, blob);
        fs::write(blob, bytes).unwrap();
    }
    stored.check(true, true, Path::new(""));
}

/// All problems are reported, not only the first.
#[test]
fn every_damaged_layer_is_named() {
    let stored = Stored::new();
    let image = stored.scene.json("image inspect file://~/store:top");
    let layers = image["layers"].as_array().unwrap();
    for layer in layers {
        let blob = stored.scene.blob("store", &layer["digest"]);
        let mut bytes = fs::read(&blob).unwrap();
        bytes[40] ^= 1;
        fs::write(&blob, bytes).unwrap();
    }
    let run = stored.scene.run("image verify file://~/store:top --json");
    assert_eq!(run.status, Some(1), "{run}");
    assert_eq!(run.json()["problems"].as_array().unwrap().len(), 2, "{run}");
    for layer in layers {
        assert!(run.stdout.matches(layer["digest"].as_str().unwrap()).count() > 1, "{run}");
    }
    // Commands that read the image report it, too.
    let lowest = layers[0]["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    stored.scene.fails("image inspect file://~/store:top", &["/store", lowest]);
    stored.scene.fails("image export file://~/store:top -o out.raw", &["/store", lowest]);
    let listed = stored.scene.json("image list file://~/store");
    assert_eq!(listed["images"].as_array().unwrap().len(), 2);
}

/// A config or layer that replaces another, with right digests, does not fit the manifest.
#[test]
fn blobs_changed_places_are_found() {
    let stored = Stored::new();
    let image = stored.scene.json("image inspect file://~/store:top");
    let [lower, upper] = [0, 1].map(|n| stored.scene.blob("store", &image["layers"][n]["digest"]));
    let bytes = fs::read(&lower).unwrap();
    fs::copy(&upper, &lower).unwrap();
    stored.check(false, false, &lower);
    stored.check(true, false, &lower);
    fs::write(&lower, bytes).unwrap();
    stored.check(true, true, &lower);
}

#[test]
fn a_missing_image_is_said() {
    let stored = Stored::new();
    let scene = &stored.scene;
    scene.fails("image verify file://~/store:none", &["store:none", "no image of this tag", "image list"]);
    scene.fails("image verify file://~/none:top", &["none", "not an OCI image layout"]);
    fs::write(scene.path("store/index.json"), "{").unwrap();
    scene.fails("image verify file://~/store:top", &["index.json"]);
}

/// Damaged and lost blobs come back from a copy: by `verify --repair-from`, and by copying again with `--check`.
#[test]
fn damaged_blobs_are_repaired_from_a_copy() {
    let stored = Stored::new();
    let scene = &stored.scene;
    scene.ok("image pull file://~/store:top file://~/copy");
    let whole = scene.fingerprint("store/blobs");
    let damage = || {
        for blob in [&stored.manifest, &stored.config, &stored.lower, &stored.lower_tree] {
            let mut bytes = fs::read(blob).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            fs::write(blob, bytes).unwrap();
        }
    };
    damage();
    // Without an option, present blobs are trusted by their length.
    stored.check(true, false, &stored.manifest);
    let repaired = scene.json("image verify file://~/store:top --repair-from file://~/copy:top");
    assert_eq!((&repaired["right"], &repaired["deep"]), (&true.into(), &true.into()), "{repaired}");
    assert_eq!(repaired["repaired_blobs"], 4, "the manifest is one, too");
    assert_eq!(scene.fingerprint("store/blobs"), whole);
    assert_eq!(scene.json("image list file://~/store")["images"].as_array().unwrap().len(), 2);

    damage();
    fs::remove_file(&stored.lower).unwrap();
    scene.ok("image copy file://~/copy:top file://~/store");
    let left = fs::metadata(&stored.lower).is_ok() && scene.fingerprint("store/blobs") != whole;
    assert!(left, "a lost blob comes back, damaged ones stay");
    let copied = scene.json("image pull file://~/copy:top file://~/store --check");
    assert_eq!((&copied["repaired_blobs"], &copied["copied_blobs"]), (&2.into(), &2.into()), "{copied}");
    assert_eq!(scene.fingerprint("store/blobs"), whole);

    // The message of a check has the command that helps.
    fs::write(&stored.lower, vec![7; fs::metadata(&stored.lower).unwrap().len() as usize]).unwrap();
    let said = scene.run("image verify --deep file://~/store:top");
    assert!(said.stdout.contains("--repair-from") || said.stderr.contains("--repair-from"), "{said}");
    fs::remove_file(&stored.lower).unwrap();
    let lost = ["is not in the store", "image verify IMAGE --repair-from COPY"];
    for words in ["image verify", "image export -o out.raw"] {
        let said = scene.run(&format!("{words} file://~/store:top"));
        let text = format!("{}{}", said.stdout, said.stderr);
        assert!(lost.iter().all(|part| text.contains(part)), "{said}");
    }
    // A copy of another image has none of its blobs.
    mixed_disk(scene, "other.raw", 4);
    scene.ok("image import other.raw file://~/other:x");
    let words = "image verify file://~/store:top --repair-from file://~/other:x";
    let other = scene.json("image inspect file://~/other:x")["digest"].as_str().unwrap().to_owned();
    scene.fails(words, &["other:x is not a copy of this image", &other, "the same digest"]);
    let words = "image verify file://~/store:top --repair-from file://~/other:none";
    scene.fails(words, &["other:none is not a copy of this image", "image list"]);
    // A lost manifest counts.
    fs::remove_file(&stored.manifest).unwrap();
    let repaired = scene.json("image verify file://~/store:top --repair-from file://~/copy:top");
    assert_eq!(repaired["repaired_blobs"], 2, "it and the damaged layer");
}

/// A damaged index of a store is reported, with a remedy that works.
#[test]
fn images_of_a_store_whose_index_is_damaged_can_be_copied() {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 4);
    let digest = scene.json("image import a.raw file://~/store:a")["digest"].as_str().unwrap().to_owned();
    let index = scene.path("store/index.json");
    let half = fs::metadata(&index).unwrap().len() / 2;
    fs::OpenOptions::new().write(true).open(&index).unwrap().set_len(half).unwrap();
    for words in ["image list file://~/store", "image inspect file://~/store:a", "image prune file://~/store"]
    {
        scene.fails(words, &["index.json", "bring back a copy", "@DIGEST"]);
    }
    // The copy reports that it could not look for a plan.
    let copied = scene.run(&format!("image copy file://~/store@{digest} file://~/new:a"));
    assert_eq!(copied.status, Some(0), "{copied}");
    scene.ok("image verify --deep file://~/new:a");
}
