//! Optimized images: the same disk, with the blocks of boots first.

use crate::copies::run_on;
use crate::disk::{DiskBuilder, assert_same, noise, text};
use crate::scene::Scene;
use headstart_testkit::data_sets;
use headstart_testkit::registry::{Registry, RegistryAccess};
use headstart_testkit::s3::S3;
use serde_json::{Value, json};
use std::fs;

const BLOCK: u64 = 2 << 20;

/// An image of two layers with a disk of five blocks, `file://~/store:v1`, its disk `disk.raw`, and plans of boots that
/// read parts of the blocks 3, 1 and 0, in this order.
fn scene() -> Scene {
    let scene = Scene::new();
    let size = 4 * BLOCK + 70_000;
    DiskBuilder::create(scene.path("base.raw"), size)
        .write(0, &text(1, 3_000_000))
        .write(3 * BLOCK, &noise(2, 1_000_000))
        .write(size - 512, &noise(3, 512));
    scene.ok("image import base.raw file://~/store:base --format raw");
    crate::disk::copy_of(&scene, "base.raw", "disk.raw")
        .write(3 * BLOCK + 100_000, &noise(4, 300_000))
        .write(0, &[0; 65536]);
    let made = scene.json("image import disk.raw file://~/store:v1 --base file://~/store:base --format raw");
    for (set, image) in [("named", "web"), ("set", made["digest"].as_str().unwrap())] {
        boots(&scene, set, image, size.next_multiple_of(512));
        scene.ok(&format!("train --traces {set} -o {set}.plans"));
    }
    scene
}

fn boots(scene: &Scene, set: &str, image: &str, size: u64) {
    let slices = |block: i64| (0..5).map(move |n| block * BLOCK as i64 + n * 65536);
    let places: Vec<_> = [3, 1, 0].into_iter().flat_map(slices).collect();
    data_sets::boots(scene, set, (image, size), 0, (&places, 1000));
}

fn check(scene: &Scene, image: &str) {
    scene.ok(&format!("image verify --deep {image}"));
    scene.ok(&format!("image export {image} -o back.raw"));
    assert_same(scene, "disk.raw", "back.raw");
    fs::remove_file(scene.path("back.raw")).unwrap();
}

#[test]
fn a_boot_layer_on_top_is_preloaded_by_one_request() {
    let scene = scene();
    let before = scene.fingerprint("store");
    scene.fails(
        "image optimize file://~/store:v1 file://~/store:fast",
        &["store:v1", "train --publish", "--plans"],
    );
    scene.fails(
        "image optimize file://~/store:v1 file://~/store:fast --plans named.plans",
        &["named.plans", "no plans for sha256:", "--known-as"],
    );
    scene.fails("image optimize file://~/store:v1 file://~/store:fast --plans disk.raw", &["disk.raw"]);
    let digest = format!("sha256:{}", "0".repeat(64));
    for store in ["file://~/store", "oci://127.0.0.1:9/r"] {
        let words = format!("image optimize file://~/store:v1 {store}@{digest}");
        scene.is_wrong(&words, &["by a tag, not by a digest"]);
    }
    scene.fails(
        "image optimize file://~/store:v1 file://~/store:fast --plans set.plans --group 3",
        &["group 3"],
    );
    assert_eq!(scene.fingerprint("store"), before);

    let words = "image optimize file://~/store:v1 file://~/store:fast --plans set.plans";
    let made = scene.json(words);
    let source = scene.json("image inspect file://~/store:v1");
    assert_eq!((&made["optimized_from"], &made["layers"]), (&source["digest"], &json!(3)));
    let number = |value: &Value| value.as_u64().unwrap();
    // One of fifteen slices is zeros, which are not stored.
    assert_eq!((number(&made["hot_data_bytes"]), &made["other_data_bytes"]), (14 * 65536, &json!(0)));
    assert!(number(&made["preloading_before"]["requests"]) >= 3);
    assert_eq!(made["preloading"]["requests"], 1);
    assert!(number(&made["boot_bytes"]) < number(&made["layer_size"]));
    check(&scene, "file://~/store:fast");
    scene.ok("image diff file://~/store:v1 file://~/store:fast");

    let inspected = scene.json("image inspect file://~/store:fast");
    assert_eq!((&inspected["optimized_from"], &inspected["digest"]), (&source["digest"], &made["digest"]));
    assert_eq!(inspected["layers"][2]["boot_bytes"], made["boot_bytes"]);
    assert!(inspected["layers"][0]["boot_bytes"].is_null());
    let shown = scene.ok("image inspect file://~/store:fast").stdout;
    assert!(shown.contains("a boot layer") && shown.contains("reordered from"), "{shown}");
    // The data is stored in the order of the boots: blocks 3, 1, 0.
    let layer = scene.blob("store", &made["layer"]);
    let segments = scene.json(&format!("layer inspect --segments {}", layer.display()));
    let segment = |segment: &Value| (number(&segment[2]), number(&segment[0]) * 512 / BLOCK);
    let mut places: Vec<_> = segments["index"].as_array().unwrap().iter().map(segment).collect();
    places.sort_unstable();
    let mut blocks: Vec<u64> = places.iter().map(|place| place.1).collect();
    blocks.dedup();
    assert_eq!(blocks, [3, 1, 0]);

    // A second run gives the same, from either image and on any number of threads; with another name of the plans as
    // well.
    let table = scene.ok(&format!("{words} --threads 1")).stdout;
    assert!(table.contains("1 request") && table.contains(made["digest"].as_str().unwrap()), "{table}");
    let again =
        scene.json("image optimize file://~/store:fast file://~/other:x --plans named.plans --known-as web");
    assert_eq!(again["digest"], made["digest"]);
    check(&scene, "file://~/other:x");
    assert_eq!(scene.json("image prune file://~/other")["blobs"], 0);

    let whole = scene.json("image optimize file://~/store:v1 file://~/whole:x --plans set.plans --one-layer");
    assert_eq!((&whole["layers"], &whole["preloading"]["requests"]), (&json!(1), &json!(1)));
    check(&scene, "file://~/whole:x");
}

#[test]
fn images_are_optimized_between_registries() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let scene = scene();
    let (host, plain) = (registry.host(), format!("--plain-http {}", registry.host()));
    scene.ok(&format!("image push file://~/store:v1 oci://{host}/vm/a {plain}"));
    let here = scene.json("image optimize file://~/store:v1 file://~/store:fast --plans set.plans");
    let there =
        |from: &str, to: &str| scene.json(&format!("image optimize {from} {to} --plans set.plans {plain}"));
    // Within the repository, into another, out of it, into it: the same image.
    let repository = format!("oci://{host}/vm/a");
    for (from, to) in [
        (format!("{repository}:v1"), format!("{repository}:fast")),
        (format!("{repository}:fast"), format!("oci://{host}/vm/b:fast")),
        (format!("{repository}:v1"), "file://~/pulled:fast".to_owned()),
        ("file://~/store:v1".to_owned(), format!("oci://{host}/vm/c:fast")),
    ] {
        let made = there(&from, &to);
        assert_eq!(made["digest"], here["digest"], "{from} {to}");
        scene.ok(&format!("image verify {to} {plain}"));
        let inspected = scene.json(&format!("image inspect {to} {plain}"));
        assert_eq!(inspected["layers"][2]["boot_bytes"], here["boot_bytes"]);
    }
    check(&scene, "file://~/pulled:fast");
    scene.ok(&format!("image pull {repository}:fast file://~/back:x {plain}"));
    check(&scene, "file://~/back:x");
    scene.fails(
        &format!("image optimize {repository}:none {repository}:x --plans set.plans {plain}"),
        &["vm/a", "none", "404"],
    );
}

#[test]
fn images_are_optimized_in_an_object_store() {
    if !S3::is_installed() {
        return;
    }
    let scene = scene();
    let server = S3::with_bucket("images");
    let run = |words: &str| run_on(&server, &scene, words).succeeds();
    run("image push file://~/store:v1 s3://images/a");
    let made = run("image optimize s3://images/a:v1 s3://images/a:fast --plans set.plans --json").json();
    let here = scene.json("image optimize file://~/store:v1 file://~/store:fast --plans set.plans");
    assert_eq!(made["digest"], here["digest"]);
    run("image pull s3://images/a:fast file://~/back:x");
    check(&scene, "file://~/back:x");
}

#[test]
fn plans_travel_on() {
    let scene = scene();
    let digest = scene.json("image inspect file://~/store:v1")["digest"].clone();
    scene.ok("train --traces set -o trained --publish file://~/store:v1");
    let by_file = scene.json("image optimize file://~/store:v1 file://~/other:fast --plans set.plans");
    let made = scene.json("image optimize file://~/store:v1 file://~/store:fast");
    assert_eq!((&made["digest"], &made["optimized_from"]), (&by_file["digest"], &digest));
    // Each of the new images has its plans: the second, which has the same digest, too.
    assert!(made["plan"].is_string() && by_file["plan"].is_string());
    let again = scene.json("image optimize file://~/store:fast file://~/store:faster");
    assert_eq!((&again["digest"], &again["plan"]), (&made["digest"], &made["plan"]));
    let next = scene.json("image optimize file://~/other:fast file://~/other:faster");
    assert_eq!((&next["digest"], &next["optimized_from"]), (&made["digest"], &digest));
    // Training on the new image is training on the old one: both have the same name.
    scene.ok("train --traces set -o trained --publish file://~/store:fast");
    assert_eq!(scene.json("image prune file://~/other")["blobs"], 0);
}

/// An image that another one was optimized from is kept for a week like any other; later its manifest stays, and a
/// prune reports why.
#[test]
fn a_prune_says_which_images_others_were_made_from() {
    let scene = scene();
    let words = "image optimize file://~/store:v1 file://~/store:fast --plans set.plans";
    let made = scene.json(words);
    let source = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    scene.ok("image remove file://~/store:v1");
    let kept = scene.json("image prune file://~/store");
    assert_eq!(
        (&kept["blobs"], &kept["untagged"][0]["digest"]),
        (&0.into(), &source.as_str().into()),
        "{kept}"
    );
    scene.ok(&format!("image verify --deep file://~/store@{source}"));
    let pruned = scene.json("image prune file://~/store --older-than 0s");
    let image = &pruned["untagged"][0];
    assert_eq!(
        (&image["digest"], &image["optimized"][0]),
        (&source.as_str().into(), &made["digest"]),
        "{pruned}"
    );
    let said = scene.ok("image prune file://~/store --older-than 0s").stdout;
    assert!(said.contains("was optimized from it"), "{said}");
    check(&scene, "file://~/store:fast");
}
