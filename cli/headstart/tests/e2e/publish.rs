//! Plans of an image are published with it, found with it, and copied with it.

use crate::copies::run_on;
use crate::disk::{DiskBuilder, noise};
use crate::scene::{CommandRun, Scene};
use headstart_block::ByteRange;
use headstart_lsmt::{Layer, Stack};
use headstart_plan::overlaybd_trace::{LayerExtent, LayerRead, map, parse, plan};
use headstart_testkit::data_sets;
use headstart_testkit::golden_set::GoldenSet;
use headstart_testkit::registry::{Registry, RegistryAccess};
use headstart_testkit::s3::S3;
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;

const BLOCK: u64 = 2 << 20;

/// Five boots, from the `first` on, of an image that the data set calls `name`: they read `blocks` in this order.
fn boots(scene: &Scene, set: &str, name: &str, first: i64, blocks: &[i64]) {
    let places = blocks.iter().cycle().zip(0..12).map(|(block, n)| block * BLOCK as i64 + n * 4096);
    data_sets::boots(scene, set, (name, 4 * BLOCK), first, (&places.collect::<Vec<_>>(), 1));
}

/// An image of four blocks, and boots of it.
fn scene() -> Scene {
    let scene = Scene::new();
    DiskBuilder::create(scene.path("disk.raw"), 4 * BLOCK).write(0, &noise(1, 4 * BLOCK as usize));
    scene.ok("image import disk.raw file://~/store:v1");
    boots(&scene, "monday", "web", 0, &[3, 1, 0]);
    boots(&scene, "tuesday", "web", 5, &[1, 2, 0]);
    scene
}

fn blocks(plan: &Value) -> Vec<u64> {
    plan["order"].as_array().unwrap().iter().map(|item| item[0].as_u64().unwrap()).collect()
}

const TRAIN: &str = "train --policy vmt-min --bandwidth 5,10";

#[test]
fn training_twice_publishes_the_same_artifact() {
    let scene = scene();
    let digest = scene.json("image inspect file://~/store:v1")["digest"].clone();
    let words = format!("{TRAIN} --traces monday --publish web=file://~/store:v1");
    let first = scene.json(&words);
    assert_eq!(first["output"], Value::Null);
    let first = &first["published"][0];
    assert_eq!(
        (&first["generation"], &first["is_new"], &first["subject"]),
        (&json!(1), &json!(true), &digest)
    );
    let before = scene.fingerprint("store/blobs");
    let again = &scene.json(&words)["published"][0];
    assert_eq!((&again["digest"], &again["is_new"]), (&first["digest"], &json!(false)));
    assert_eq!(scene.fingerprint("store/blobs"), before, "nothing was written");
    assert!(scene.ok(&words).stdout.contains("published before, unchanged"));
    // The image is the same, and everything is found from it.
    assert_eq!(scene.json("image inspect file://~/store:v1")["digest"], digest);
    let plan = scene.json("plan show --reference file://~/store:v1 --bandwidth 5");
    assert_eq!((&plan["reason"], blocks(&plan)), (&json!("trained"), vec![3, 1, 0]));
    assert_eq!(plan["published"], json!({ "digest": first["digest"], "generation": 1, "traces": 5 }));
    let text = scene.ok("plan show --reference file://~/store:v1 --bandwidth 5").stdout;
    assert!(text.starts_with("published: generation 1, of 5 traces, sha256:"), "{text}");
    // What is there is shown without a bandwidth, too.
    let unasked = scene.json("plan show --reference file://~/store:v1");
    assert_eq!(unasked, scene.json("plan show --reference file://~/store:v1 --bandwidth 10"));
    assert!(unasked["rates"].as_array().unwrap().contains(&unasked["rate"]), "{unasked}");

    // More boots give a new generation; the earlier one can be pruned. Learning in steps gives the same as learning all
    // at once.
    scene.ok(&format!("{words} --learned learned"));
    let on = format!("{TRAIN} --traces tuesday --learned learned --publish web=file://~/store:v1");
    let second = &scene.json(&on)["published"][0];
    assert_eq!((&second["generation"], &second["is_new"]), (&json!(2), &json!(true)));
    assert_eq!(scene.json(&on)["published"][0]["is_new"], false);
    let listed = scene.json("image list file://~/store");
    assert_eq!(listed["images"].as_array().unwrap().len(), 1);
    assert_eq!(scene.json("image prune file://~/store")["blobs"], 3);
    let plan = scene.json("plan show --reference file://~/store:v1 --bandwidth 5");
    assert_eq!(plan["published"]["traces"], 10);
    // The plan is deleted with the image.
    scene.ok("image remove file://~/store:v1");
    scene.ok("image prune file://~/store --older-than 0s");
    assert_eq!(scene.names("store/blobs/sha256"), [""; 0]);
}

#[test]
fn plans_that_cannot_be_published_are_named() {
    let scene = scene();
    let plan = "plan show --reference file://~/store:v1 --bandwidth 5";
    scene.fails(plan, &["store:v1", "no plan is published", "--publish"]);
    scene.fails(&format!("{TRAIN} --traces monday --publish file://~/store:no"), &["store:no"]);
    scene.fails(&format!("{TRAIN} --traces monday --publish oci://127.0.0.1:9/a:b"), &["127.0.0.1:9"]);
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    scene.fails(
        &format!("{TRAIN} --traces monday --publish file://~/store:v1"),
        &["store:v1", &digest, "NAME=IMAGE"],
    );
    assert_eq!(scene.run(&format!("{TRAIN} --traces monday")).status, Some(2));
    assert_eq!(scene.run("plan show").status, Some(2));
    scene.fails("plan export file://~/store:v1 -o trace", &["no plan is published"]);
    // A file of plans need not have one for the image.
    scene.ok(&format!("{TRAIN} --traces monday -o plans"));
    let run = scene.fails(
        "plan export file://~/store:v1 --plans plans -o trace",
        &["store:v1: there is no plan for this image", "train with boots of it"],
    );
    assert!(!run.stderr.contains("group"), "{run}");
    assert!(!scene.path("trace").exists());
}

/// Publishes by `run`, which adds the options for the store, and checks the result there.
fn there(scene: &Scene, image: &str, run: impl Fn(&str) -> CommandRun) {
    let here = scene.json(&format!("{TRAIN} --traces monday --publish web=file://~/store:v1"));
    let pushed = run(&format!("image push file://~/store:v1 {image} --json")).succeeds().json();
    assert_eq!(pushed["plan"], here["published"][0]["digest"]);
    let train = format!("{TRAIN} --traces monday --publish web={image} --json");
    let same = &run(&train).succeeds().json()["published"][0];
    assert_eq!((&same["digest"], &same["is_new"]), (&here["published"][0]["digest"], &json!(false)));
    let on = format!("{TRAIN} --traces tuesday --publish web={image} --json");
    let newer = run(&on).succeeds().json()["published"][0].clone();
    assert_eq!((&newer["generation"], &newer["is_new"]), (&json!(2), &json!(true)));
    let plan = run(&format!("plan show --reference {image} --bandwidth 5 --json")).succeeds().json();
    assert_eq!((blocks(&plan), &plan["published"]["digest"]), (vec![1, 2, 0], &newer["digest"]));
    // The plan comes back, where an older one is.
    let pulled = run(&format!("image pull {image} file://~/store:v1 --json")).succeeds().json();
    assert_eq!((&pulled["plan"], &pulled["digest"]), (&newer["digest"], &pushed["digest"]));
    assert_eq!(blocks(&scene.json("plan show --reference file://~/store:v1 --bandwidth 5")), [1, 2, 0]);
    let again = run(&format!("image pull {image} file://~/store:v1 --json")).succeeds().json();
    assert_eq!((&again["plan"], &again["lost_plan"]), (&Value::Null, &json!(false)));
}

#[test]
fn plans_are_published_through_a_registry() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let scene = scene();
    let (host, plain) = (registry.host(), format!("--plain-http {}", registry.host()));
    there(&scene, &format!("oci://{host}/vm/web:v1"), |words| scene.run(&format!("{words} {plain}")));
    let listed = scene.json(&format!("image list oci://{host}/vm/web {plain}"));
    assert_eq!(listed["images"].as_array().unwrap().len(), 1);
}

#[test]
fn plans_are_published_through_an_object_store() {
    if !S3::is_installed() {
        return;
    }
    let scene = scene();
    let server = S3::with_bucket("images");
    there(&scene, "s3://images/web:v1", |words| run_on(&server, &scene, words));
}

/// The places of a disk's data in its layers.
fn extents(stack: &Stack) -> Vec<LayerExtent> {
    let extent = |segment: &headstart_lsmt::Segment| LayerExtent {
        disk: segment.offset() * 512,
        len: segment.len() * 512,
        layer: segment.layer().into(),
        offset: segment.moffset() * 512,
    };
    stack.index().segments().iter().filter(|segment| !segment.is_zeroed()).map(extent).collect()
}

#[test]
fn a_plan_becomes_a_trace_for_other_readers() {
    let scene = scene();
    scene.ok(&format!("{TRAIN} --traces monday -o plans --publish web=file://~/store:v1"));
    let report = scene.json("plan export file://~/store:v1 -o trace");
    assert_eq!((&report["blocks"], &report["image"]), (&json!(3), &Value::Null));
    let trace = scene.bytes("trace");
    assert_eq!(report["bytes"], trace.len());
    let records = parse(&trace).unwrap();
    assert_eq!(report["records"], records.len());
    assert!(records.iter().all(|record| record.layer == 0 && record.len <= 1 << 20), "{records:?}");

    // The same image with the trace in it: the same disk, known by the same name.
    let made = scene.json("plan export file://~/store:v1 --tag fast");
    assert!(made["image"].as_str().unwrap().ends_with("store:fast"));
    let fast = scene.json("image inspect file://~/store:fast");
    assert_eq!(fast["digest"], made["digest"]);
    let manifest = scene.manifest("store", &made["digest"]);
    let layer = manifest["layers"].as_array().unwrap().last().unwrap();
    assert_eq!(layer["annotations"]["containerd.io/snapshot/overlaybd/acceleration-layer"], "yes");
    let tar = fs::read(scene.blob("store", &layer["digest"])).unwrap();
    assert_eq!((&tar[..6], &tar[512..512 + trace.len()]), (&b"trace\0"[..], &trace[..]));
    scene.ok("image verify --deep file://~/store:fast");
    scene.ok("image export file://~/store:fast -o back.raw");
    assert!(scene.bytes("back.raw") == scene.bytes("disk.raw"));
    assert_eq!(scene.json("image prune file://~/store")["blobs"], 0);
    // Training on the first image is training on this one.
    let digest = scene.json("image inspect file://~/store:v1")["digest"].as_str().unwrap().to_owned();
    boots(&scene, "own", &digest, 0, &[2, 0]);
    let published = scene.json(&format!("{TRAIN} --traces own --publish file://~/store:fast"));
    assert_eq!(published["published"][0]["is_new"], true);
    let plan = scene.json("plan show --reference file://~/store:fast --bandwidth 5");
    assert_eq!(blocks(&plan), [2, 0]);
}

/// The reference's layers, the reads that it was given, and the trace that it recorded.
#[test]
fn traces_of_the_reference_have_the_reads_that_it_was_given() {
    let Some(golden) = GoldenSet::open() else { return };
    for (case, base) in [("trace_stack3", Some("stack3_64m")), ("trace_img3", None)] {
        let case = golden.case(case);
        let source = |n: usize| -> Vec<u8> {
            match base {
                Some(base) => golden.raw(&golden.case(base)["layers_low_to_high"][n]),
                None => golden.bytes(&format!("oci/img3.layer{n}.overlaybd.commit")),
            }
        };
        let layers = (0..3).map(|n| {
            let blob = headstart_image::blob::open_layer_source(Arc::new(source(n))).unwrap();
            Layer::open(blob.source).unwrap()
        });
        let stack = Stack::new(layers.collect()).unwrap();
        let extents = extents(&stack);
        let recorded = parse(&golden.bytes(case["file"].as_str().unwrap())).unwrap();
        let opening = case["records_made_while_opening"].as_u64().unwrap() as usize;

        // Each record is the reference's own report of a read of a layer.
        let reads = golden.bytes(case["reads"].as_str().unwrap());
        let mut expected: Vec<LayerRead> = Vec::new();
        let mut slices = std::collections::BTreeSet::new();
        for line in std::str::from_utf8(&reads).unwrap().lines() {
            let numbers: Vec<u64> = line.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
            let range = ByteRange::new(numbers[0], numbers[1]).unwrap();
            map(&extents, range, &mut |record| expected.push(record));
            for slice in range.offset() >> 16..range.end().div_ceil(1 << 16) {
                let part = ByteRange::between(slice << 16, (slice + 1) << 16).intersect(range);
                map(&extents, part, &mut |_| slices.extend([slice]));
            }
        }
        assert_eq!(recorded[opening..], expected);
        // The trace converts back to the slices of the disk that were read, except holes.
        let items = plan(&recorded[opening..], &extents, 1 << 30);
        let planned: std::collections::BTreeSet<u64> = items
            .iter()
            .flat_map(|item| (0..32).filter(|bit| item.mask >> bit & 1 == 1).map(|bit| item.block * 32 + bit))
            .collect();
        assert_eq!(planned, slices);
    }
}
