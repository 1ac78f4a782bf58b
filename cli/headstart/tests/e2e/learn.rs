//! From recorded boots to plans: train, inspect the result, learn more.

use crate::disk::{DiskBuilder, copy_of, noise};
use crate::scene::Scene;
use headstart_testkit::data_sets;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Real boots of three images.
fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces").canonicalize().unwrap()
}

/// The part of the sample whose rows of metadata are `wanted`, as a data set of its own.
fn part(scene: &Scene, name: &str, wanted: impl Fn(usize, &str) -> bool) {
    let table = fs::read_to_string(sample().join("VD_creation_meta.csv")).unwrap();
    let mut rows = table.lines();
    let mut kept = format!("{}\n", rows.next().unwrap());
    for (_, row) in rows.enumerate().filter(|(at, row)| wanted(*at, row)) {
        kept += &format!("{row}\n");
        let fields: Vec<_> = row.split(',').collect();
        let gib = fields[3].parse::<u64>().unwrap() >> 30;
        let trace = format!("trace/it{}/{}/{gib}GB/{}.npy", fields[1], fields[2], fields[0]);
        let to = scene.path(name).join(&trace);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(sample().join(&trace), to).unwrap();
    }
    fs::write(scene.path(name).join("VD_creation_meta.csv"), kept).unwrap();
}

fn order(plan: &Value) -> Vec<(u64, u64)> {
    let pair = |item: &Value| (item[0].as_u64().unwrap(), item[1].as_u64().unwrap());
    plan["order"].as_array().unwrap().iter().map(pair).collect()
}

#[test]
fn a_plan_says_what_to_pull_and_why() {
    let scene = Scene::new();
    let words = format!("train --traces {} -o plans", sample().display());
    let report = scene.json(&words);
    assert_eq!(report["read"], 21);
    let first = scene.bytes("plans");
    assert!(scene.ok(&words).stdout.contains("m-redis"));
    fs::write(scene.path("ordinary"), "").unwrap();
    let mode = |name: &str| fs::metadata(scene.path(name)).unwrap().permissions().mode();
    assert_eq!(mode("plans"), mode("ordinary"), "other users of the host can read it as any file");
    assert!(first == scene.bytes("plans"), "the same boots give the same plans");

    let plan = scene.json("plan show --plans plans --image m-redis --bandwidth 5");
    assert_eq!(
        (&plan["reason"], &plan["bin"], &plan["group"]),
        (&json!("trained"), &json!("2-10"), &json!(0))
    );
    let order = order(&plan);
    let blocks: BTreeSet<_> = order.iter().map(|(block, _)| *block).collect();
    assert!(order.len() > 50 && blocks.len() == order.len(), "{}", order.len());
    assert!(order.iter().all(|(block, mask)| *block < 2048 && (1..1 << 32).contains(mask)));
    assert!(blocks.contains(&0), "every boot reads the first block");

    let shown = scene.ok("plan show --plans plans --image m-redis --bandwidth 5").stdout;
    assert!(shown.starts_with("reason:") && shown.contains("more: all with --json"), "{shown}");
    let listed = scene.ok("plan show --plans plans").stdout;
    assert!(["p-deb12min", "m-nginx", "m-redis"].iter().all(|image| listed.contains(image)), "{listed}");
    scene.fails("plan show --plans plans --image m-new --bandwidth 5", &["plans", "m-new", "m-redis"]);
    scene.fails("plan show --plans plans --image m-redis --bandwidth 5 --group 77", &["plans", "group 77"]);
}

#[test]
fn an_image_that_is_new_learns_from_its_relatives() {
    let scene = Scene::new();
    part(&scene, "known", |_, row| !row.contains("m-nginx"));
    scene.ok("train --traces known -o plans");
    let plan = |row: &str| scene.json(&format!("plan show --plans plans --bandwidth 5 --creation {row}"));
    let known = |row: &Value| {
        let plan = plan(&row.to_string());
        (plan["reason"].as_str().unwrap().to_owned(), order(&plan).len())
    };
    // A row of the table without its time, because that contains a blank.
    let (reason, blocks) = known(&json!({
        "volume_id": 10_007_919, "image_type": 1, "image_id": "m-nginx", "device_size": 4_294_967_296_u64,
        "user_id": 1001, "cluster_id": 3, "extra_info": null, "meta_info": "base=p-deb12min",
        "image_family": "debian-12",
    }));
    assert!(reason.starts_with("zero-shot: family+user") && blocks > 50, "{reason} {blocks}");
    let (reason, blocks) = known(&json!({ "image_id": "m-new", "image_family": "debian-12" }));
    assert!(reason.starts_with("zero-shot: family") && blocks > 50, "{reason} {blocks}");
    assert_eq!(known(&json!({ "image_family": "plan-9" })), ("none".to_owned(), 0));
    assert_eq!(known(&json!({})), ("none".to_owned(), 0));
    let trained = json!({ "image_id": "m-redis", "device_size": "4294967296" });
    assert_eq!(known(&trained).0, "trained");
    let wrong = scene.run("plan show --plans plans --bandwidth 5 --creation [1]");
    assert_eq!(wrong.status, Some(2));
    let all = ["--image", "--creation", "--reference"];
    scene.is_wrong("plan show --plans plans --bandwidth 5", &all);
    scene.is_wrong("plan show --plans plans --group 1", &all);
    for disk in ["--creation {}", "--reference file://~/store:v1"] {
        let words = format!("plan show --plans plans --bandwidth 5 --size 4G {disk}");
        scene.is_wrong(&words, &["--size", disk.split(' ').next().unwrap()]);
    }
    scene.fails(
        "plan show --plans plans --bandwidth 5 --creation {\"device_size\":\"much\"}",
        &["--creation", "much"],
    );
}

#[test]
fn traces_are_learned_once() {
    let scene = Scene::new();
    part(&scene, "first", |at, _| at < 15);
    part(&scene, "second", |at, _| at >= 15);
    let first = scene.json("train --traces first --learned learned -o plans");
    assert_eq!(first["read"], 15);
    fs::remove_dir_all(scene.path("first")).unwrap();
    fs::copy(scene.path("plans"), scene.path("plans.first")).unwrap();
    let second = scene.json("train --traces second --learned learned -o plans");
    assert_eq!((&second["read"], &second["known"]), (&json!(6), &json!(0)));
    let boots = |report: &Value| {
        let all = |image: &Value| {
            let outliers = image["outliers"].as_object().unwrap().values().map(|n| n.as_u64().unwrap());
            image["traces"].as_u64().unwrap() + outliers.sum::<u64>()
        };
        report["images"].as_array().unwrap().iter().map(all).sum::<u64>()
    };
    assert_eq!((boots(&first), boots(&second)), (15, 21));
    let again = scene.json("train --traces second --learned learned -o plans.again");
    assert_eq!((&again["read"], &again["known"], boots(&again)), (&json!(0), &json!(6), 21));
    assert!(scene.bytes("plans") == scene.bytes("plans.again"));

    assert_eq!(scene.ok("plan diff plans plans.again").stdout.trim(), "the same plans");
    let changed = scene.run("plan diff plans.first plans");
    assert!(changed.status == Some(1) && changed.stdout.contains("blocks"), "{}", changed.stdout);
    let other = scene.run("plan diff plans.first plans --image m-nobody");
    assert_eq!((other.status, other.stdout.trim()), (Some(0), "the same plans"));
}

#[test]
fn unknown_policies_and_unusable_paths_are_refused() {
    let scene = Scene::new();
    let traces = sample();
    let traces = traces.display();
    scene.is_wrong(&format!("train --traces {traces} -o plans --policy magic"), &["magic", "vmt-min"]);
    scene.fails("train --traces nothing -o plans", &["nothing", "cannot be read"]);
    // An unusable place for an output is reported before anything else.
    mknodat(CWD, scene.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for words in [
        "train --traces nothing -o pipe",
        "train --traces nothing --learned pipe -o plans",
        "plan export file://~/nothing:v1 -o pipe",
    ] {
        scene.fails(words, &["pipe: is neither a file nor a block device", "name a file"]);
    }
    assert!(!scene.path("plans").exists());
    fs::write(scene.path("bad.npy"), b"garbage").unwrap();
    scene.fails("train --traces bad.npy --learned same -o same", &["same", "a file each"]);
    scene.fails("train --traces bad.npy -o plans", &["no boot that could be learned from", "NumPy"]);
    data_sets::data_set(&scene);
    scene.fails(
        "train --traces set -o plans",
        &[
            "set: ",
            "no boot that could be learned from",
            "2 boots with fewer than 10 reads",
            "record whole boots",
        ],
    );
    scene.fails(&format!("train --traces {traces} -o nowhere/plans"), &["nowhere/plans"]);
    for wrong in ["--bandwidth 0", "--bandwidth x", "--objective none", "--faster 0"] {
        let run = scene.run(&format!("train --traces {traces} -o plans {wrong}"));
        assert_eq!(run.status, Some(2), "{wrong}");
    }
    assert!(!scene.path("plans").exists());

    scene
        .ok(&format!("train --traces {traces} -o plans --learned learned --bandwidth 2,10 --policy vmt-min"));
    for (file, command) in [
        ("plans", "plan show --plans bad --image m-redis --bandwidth 5".to_owned()),
        ("learned", format!("train --traces {traces} -o other --learned bad")),
    ] {
        let whole = scene.bytes(file);
        for damaged in [&whole[..0], &whole[..7], &whole[..whole.len() / 2], &whole[..whole.len() - 1]] {
            fs::write(scene.path("bad"), damaged).unwrap();
            scene.fails(&command, &["bad"]);
        }
        fs::write(scene.path("bad"), vec![0x5a; 100_000]).unwrap();
        scene.fails(&command, &["bad"]);
    }
    scene.fails(
        &format!("train --traces {traces} -o other --learned learned --faster 5"),
        &["learned", "--faster 1"],
    );
}

const BLOCK: u64 = 2 << 20;

/// Boots that read the start of each of the blocks 0 to 3, of an image that the data set calls `old`.
fn boots_of_old(scene: &Scene) {
    let places: Vec<_> = (0..12).map(|n| n % 4 * BLOCK as i64 + n * 4096).collect();
    data_sets::boots(scene, "set", ("old", 4 * BLOCK), 0, (&places, 1));
}

#[test]
fn an_image_starts_with_what_is_known_of_its_layers() {
    let scene = Scene::new();
    DiskBuilder::create(scene.path("old.raw"), 4 * BLOCK).write(0, &noise(1, 4 * BLOCK as usize));
    scene.ok("image import old.raw file://~/store:old");
    copy_of(&scene, "old.raw", "new.raw").write(2 * BLOCK, &noise(2, BLOCK as usize));
    scene.ok("image import new.raw file://~/store:new --base file://~/store:old");
    DiskBuilder::create(scene.path("other.raw"), BLOCK).write(0, &noise(3, 5000));
    scene.ok("image import other.raw file://~/store:other");
    boots_of_old(&scene);
    scene.ok("train --traces set -o plans --image old=file://~/store:old");
    let plan = |image: &str| {
        scene.json(&format!("plan show --plans plans --reference file://~/store:{image} --bandwidth 5"))
    };
    let new = plan("new");
    assert_eq!(new["reason"], "layers: 1 of 2");
    let blocks: Vec<_> = order(&new).iter().map(|(block, _)| *block).collect();
    assert_eq!(blocks, [0, 1, 3], "what the new layer covers, nobody knows");
    assert_eq!(plan("other")["reason"], "none");
    scene.ok("train --traces set -o plans --publish old=file://~/store:old");
    assert_eq!(plan("new")["reason"], "layers: 1 of 2", "whose plans are published, its layers are learned");
    // Boots that were recorded of the image itself know it by its digest; these do not.
    scene.fails(
        "train --traces set -o other --image file://~/store:old",
        &["store:old", "none of the boots is of sha256:", "NAME=IMAGE"],
    );
    scene.fails("train --traces set -o other --image old=file://~/store:no", &["store:no"]);
}
