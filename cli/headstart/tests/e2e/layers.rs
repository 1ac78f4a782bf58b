//! Images on top of images: the content of a layer, and the same disk for every stack.

use crate::disk::{DiskBuilder, assert_same, copy_of, mixed_disk, noise};
use crate::scene::Scene;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

/// Imports a disk on a base and checks that it comes back; returns the report.
#[track_caller]
fn layer(scene: &Scene, disk: &str, target: &str, base: &str, layers: u64) -> Value {
    let made = scene.json(&format!("image import {disk} {target} --base {base} --format raw"));
    assert_eq!(made["layers"], layers, "{made}");
    scene.ok(&format!("image export {target} -o out.raw"));
    assert_same(scene, disk, "out.raw");
    scene.ok(&format!("image verify --deep {target}"));
    let inspection = scene.json(&format!("image inspect {target}"));
    let listed = inspection["layers"].as_array().unwrap();
    assert_eq!(listed.len() as u64, layers);
    assert_eq!(listed.last().unwrap()["digest"], made["layer"]);
    // Each is based on the one below it.
    for pair in listed.windows(2) {
        assert_eq!(pair[0]["uuid"], pair[1]["parent_uuid"]);
    }
    made
}

#[test]
fn only_what_differs_is_stored() {
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 16);
    scene.ok("image import base.raw file://~/store:base");
    copy_of(&scene, "base.raw", "next.raw")
        .write((2 << 20) + 5000, b"one block")
        .write(9 << 20, &noise(10, 8192))
        .write((16 << 20) - 3, b"end");
    let made = layer(&scene, "next.raw", "file://~/store:next", "file://~/store:base", 2);
    assert_eq!(made["layer_data_bytes"], 4 * 4096);
    assert!(made["layer_size"].as_u64().unwrap() < 20_000, "{made}");
}

#[test]
fn a_disk_equal_to_its_base_stores_nothing() {
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 8);
    scene.ok("image import base.raw file://~/store:base");
    let made = layer(&scene, "base.raw", "file://~/store:same", "file://~/store:base", 2);
    assert_eq!((&made["layer_data_bytes"], &made["layer_segments"]), (&0.into(), &0.into()));
    scene.ok("image diff file://~/store:base file://~/store:same");
}

#[test]
fn zeros_hide_the_data_of_the_base() {
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 16);
    scene.ok("image import base.raw file://~/store:base");
    // Written zeros, holes with odd borders, and single sectors.
    let changed = copy_of(&scene, "base.raw", "next.raw");
    changed.write((2 << 20) + 700, &[0; 300_000]).write((4 << 20) - 512, &[0; 512]).write(0, &[0; 4096]);
    let made = layer(&scene, "next.raw", "file://~/store:zeros", "file://~/store:base", 2);
    assert!(made["layer_data_bytes"].as_u64().unwrap() <= 3 * 4096, "{made}");
    DiskBuilder::create(scene.path("empty.raw"), 16 << 20);
    let made = layer(&scene, "empty.raw", "file://~/store:empty", "file://~/store:zeros", 3);
    assert_eq!(made["layer_data_bytes"], 0);
    let flat = scene.json("image flatten file://~/store:empty file://~/store:nothing");
    assert_eq!((&flat["layer_data_bytes"], &flat["layer_segments"]), (&0.into(), &0.into()));
}

#[test]
fn data_past_a_smaller_size_does_not_come_back() {
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 16);
    scene.ok("image import base.raw file://~/store:0 --format raw");
    // The sizes are smaller, in the middle of data and of a sector; then larger again, with zeros; then with data
    // there.
    let sizes = [(2 << 20) + 50_000, (2 << 20) + 777, 20 << 20, 0, 18 << 20];
    for (n, size) in (1..).zip(sizes) {
        let disk = copy_of(&scene, "base.raw", "next.raw");
        if n > 2 {
            // Only the start of the base's data is left.
            DiskBuilder::create(scene.path("next.raw"), size);
        } else {
            drop(disk);
            fs::File::options().write(true).open(scene.path("next.raw")).unwrap().set_len(size).unwrap();
        }
        let (target, base) = (format!("file://~/store:{n}"), format!("file://~/store:{}", n - 1));
        let made = layer(&scene, "next.raw", &target, &base, n + 1);
        assert_eq!(made["virtual_size"], size);
    }
    DiskBuilder::create(scene.path("next.raw"), 20 << 20).write(19 << 20, &noise(1, 5000));
    layer(&scene, "next.raw", "file://~/store:last", "file://~/store:5", 7);
    scene.ok("image flatten file://~/store:last file://~/store:flat");
    scene.ok("image diff file://~/store:last file://~/store:flat");
}

/// A disk that was cut short by mistake is not taken for a new version in silence.
#[test]
fn a_disk_smaller_than_its_base_is_said_to_be_cut() {
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 16);
    scene.ok("image import base.raw file://~/store:base");
    DiskBuilder::create(scene.path("next.raw"), 12 << 20);
    let import = "image import next.raw file://~/store:next --base file://~/store:base";
    let said = scene.ok(import).stdout;
    assert!(said.contains("the last 4 MiB of the base"), "{said}");
    assert_eq!(scene.json(import)["cut_bytes"], 4 << 20);
    let as_large = scene.json("image import base.raw file://~/store:next --base file://~/store:base");
    assert_eq!(as_large.get("cut_bytes"), None, "{as_large}");
}

#[test]
fn a_base_may_lie_in_another_store_and_be_named_by_digest() {
    let scene = Scene::new();
    mixed_disk(&scene, "0.raw", 8);
    let base = scene.json("image import 0.raw file://~/first:base");
    for n in 1..4 {
        let disk = copy_of(&scene, &format!("{}.raw", n - 1), &format!("{n}.raw"));
        disk.write(n << 20, &noise(40 + n, 10_000));
    }
    let base = base["digest"].as_str().unwrap();
    layer(&scene, "1.raw", "file://~/second:1", &format!("file://~/first@{base}"), 2);
    layer(&scene, "2.raw", "file://~/third:2", "file://~/second:1", 3);
    // The other stores may be removed: all blobs were copied.
    fs::remove_dir_all(scene.path("first")).unwrap();
    fs::remove_dir_all(scene.path("second")).unwrap();
    let made = layer(&scene, "3.raw", "file://~/third:2", "file://~/third:2", 4);
    assert!(made["layer_data_bytes"].as_u64().unwrap() < 20_000);
    scene.ok("image export file://~/third:2 -o out.raw");
    assert_same(&scene, "3.raw", "out.raw");
}

#[test]
fn a_damaged_base_in_another_store_is_not_copied() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    let base = scene.json("image import disk.raw file://~/first:base");
    let blob = scene.blob("first", &base["layer"]);
    let mut bytes = fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let digest = base["layer"].as_str().unwrap();
    scene.fails("image import disk.raw file://~/second:a --base file://~/first:base", &[digest, "digest"]);
    assert_eq!(scene.json("image list file://~/second")["images"], serde_json::json!([]));
    assert_eq!(scene.names("second/blobs/sha256"), [""; 0]);
}

#[test]
fn flattening_keeps_the_disk_and_leaves_one_layer() {
    let scene = Scene::new();
    mixed_disk(&scene, "0.raw", 16);
    scene.ok("image import 0.raw file://~/store:0 --codec lz4");
    for n in 1..4u64 {
        copy_of(&scene, &format!("{}.raw", n - 1), &format!("{n}.raw"))
            .write(n << 20, &noise(n, 50_000))
            .write((n << 20) + 200_000, &[0; 30_000]);
        let base = format!("file://~/store:{}", n - 1);
        layer(&scene, &format!("{n}.raw"), &format!("file://~/store:{n}"), &base, n + 1);
    }
    let flat = scene.json("image flatten file://~/store:3 file://~/other:flat");
    assert_eq!(flat["layers"], 1);
    scene.ok("image export file://~/other:flat -o out.raw");
    assert_same(&scene, "3.raw", "out.raw");
    scene.ok("image diff file://~/store:3 file://~/other:flat");
    scene.ok("image verify --deep file://~/other:flat");
    assert_eq!(scene.json("image inspect file://~/other:flat")["layers"].as_array().unwrap().len(), 1);
    // The target may be the image's own name, too.
    scene.ok("image flatten file://~/store:3 file://~/store:3");
    assert_eq!(scene.json("image inspect file://~/store:3")["layers"].as_array().unwrap().len(), 1);
}

#[test]
fn diff_tells_where_two_disks_differ() {
    let scene = Scene::new();
    mixed_disk(&scene, "a.raw", 16);
    copy_of(&scene, "a.raw", "b.raw").write(4095, b"x").write(9 << 20, &noise(8, 10_000));
    copy_of(&scene, "a.raw", "longer.raw").write(17 << 20, b"end");
    for disk in ["a", "b", "longer"] {
        scene.ok(&format!("image import {disk}.raw file://~/store:{disk} --format raw"));
    }
    let same = scene.ok("image diff file://~/store:a file://~/store:a");
    assert_eq!(same.stdout, "the disks are the same\n");
    assert_eq!(scene.json("image diff file://~/store:a file://~/store:a")["same"], true);

    let differ = |left: &str, right: &str| {
        let run = scene.run(&format!("image diff file://~/store:{left} file://~/store:{right} --json"));
        assert_eq!((run.status, run.stderr.as_str()), (Some(1), ""), "{run}");
        run.json()
    };
    let diff = differ("a", "b");
    assert_eq!(diff["same"], false);
    let blocks = 10_000u64.next_multiple_of(4096);
    assert_eq!(diff["ranges"], serde_json::json!([[0, 4096], [9 << 20, blocks]]));
    assert_eq!(diff["differing_bytes"], 4096 + blocks);
    assert_eq!(differ("b", "a")["ranges"], diff["ranges"]);
    let diff = differ("a", "longer");
    assert_eq!(diff["virtual_sizes"], serde_json::json!([16 << 20, (17 << 20) + 3]));
    let ranges = diff["ranges"].as_array().unwrap();
    assert_eq!(ranges.len(), 1);
    assert_eq!(ranges[0][0], 17 << 20);
    let run = scene.run("image diff file://~/store:a file://~/store:longer");
    assert_eq!(run.status, Some(1));
    assert!(run.stdout.contains("differ, in 1 range"), "{run}");
}

#[test]
fn an_image_may_have_many_layers_but_not_too_many() {
    let scene = Scene::new();
    let disk = DiskBuilder::create(scene.path("disk.raw"), 1 << 20);
    disk.write(0, b"0");
    scene.ok("image import disk.raw file://~/store:a");
    for n in 1..255u64 {
        disk.write(n * 4096, format!("layer {n}").as_bytes());
        scene.ok("image import disk.raw file://~/store:a --base file://~/store:a");
    }
    scene.ok("image export file://~/store:a -o out.raw");
    assert_same(&scene, "disk.raw", "out.raw");
    scene.ok("image verify --deep file://~/store:a");
    let too_many = "image import disk.raw file://~/store:b --base file://~/store:a";
    scene.fails(too_many, &["255 layers", "flatten"]);
    scene.ok("image flatten file://~/store:a file://~/store:a");
    scene.ok(too_many);
}

#[test]
fn a_sealed_layer_becomes_a_blob_as_buildkit_asks_for_it() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    let made = scene.json("image import disk.raw file://~/store:disk --codec none");
    let digest = made["layer"].as_str().unwrap().replace(':', "/");
    fs::copy(scene.path(&format!("store/blobs/{digest}")), scene.path("overlaybd.sealed")).unwrap();
    symlink(scene.command("").get_program(), scene.path("overlaybd-commit")).unwrap();
    let commit = |words: &str| {
        let words = words.split_whitespace();
        Command::new(scene.path("overlaybd-commit"))
            .args(words)
            .current_dir(scene.path("."))
            .output()
            .unwrap()
    };
    // The words are BuildKit's.
    let made = commit("--commit_sealed overlaybd.sealed overlaybd.commit -t -z -f");
    assert!(made.status.success() && made.stdout.is_empty() && made.stderr.is_empty(), "{made:?}");
    let listed = Command::new("tar").arg("-tf").arg(scene.path("overlaybd.commit")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "overlaybd.commit\n");
    for (blob, words) in [("overlaybd.commit", "-t -z -f"), ("plain", "-z")] {
        let made = commit(&format!("--commit_sealed overlaybd.sealed {blob} {words}"));
        assert!(made.status.success(), "{made:?}");
        scene.ok(&format!("layer verify {blob}"));
        scene.ok(&format!("layer export {blob} -o out.raw"));
        assert_same(&scene, "disk.raw", "out.raw");
    }
    let itself = commit("--commit_sealed overlaybd.sealed overlaybd.sealed -z -f");
    assert!(String::from_utf8_lossy(&itself.stderr).contains("is the layer itself"), "{itself:?}");
    // Nothing is written over unasked, and nothing is left of what is no layer.
    let again = commit("--commit_sealed overlaybd.sealed plain -z");
    assert!(String::from_utf8_lossy(&again.stderr).contains("give -f to write over it"), "{again:?}");
    assert!(!commit("--commit_sealed disk.raw none -z -t").status.success());
    assert!(!scene.path("none").exists());
}
