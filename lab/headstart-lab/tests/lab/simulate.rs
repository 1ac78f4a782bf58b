//! Recorded boots, replayed on virtual time.

use headstart_block::ByteRange;
use headstart_testkit::data_sets::data_set;
use headstart_testkit::scene::Scene;
use headstart_trace::{Creation, Op, Record, Trace};
use serde_json::{Value, json};
use std::fs;

fn row<'a>(report: &'a Value, bandwidth: u64, policy: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|row| row["bandwidth"] == bandwidth && row["policy"] == policy).unwrap()
}

/// The small data set of real boots: seven of each of three images.
fn sample() -> String {
    format!("{}/../../tests/data/traces", env!("CARGO_MANIFEST_DIR"))
}

fn float(row: &Value, what: &str) -> f64 {
    row[what].as_f64().unwrap()
}

/// Two boots, five seconds after their creation: one reads a block, then that one and the next; the other reads one.
/// The link has a block a second.
#[test]
fn the_papers_model_counts_blocks_and_seconds() {
    let scene = Scene::new();
    data_set(&scene);
    let report = scene.json("simulate disk --traces set --bandwidth 2,4");
    assert_eq!(report["rows"].as_array().unwrap().len(), 10, "lazy, leap, sequential, history, oracle");
    let lazy = row(&report, 2, "lazy");
    assert_eq!((&lazy["boots"], &lazy["reads"], &lazy["hit_rate"]), (&json!(2), &json!(3), &json!(0.0)));
    assert_eq!((&lazy["wait_max"], &lazy["wait_total"]), (&json!(1.999993), &json!(1.9999965)));
    assert_eq!(lazy["slow"], json!({ "miss": 1, "queue": 0, "store": 0 }));
    assert_eq!(row(&report, 4, "lazy")["wait_max"], json!(0.999993));
    let history = row(&report, 2, "history");
    assert_eq!((&history["hit_rate"], &history["accuracy"]), (&json!(1.0), &json!(1.0)));
    assert_eq!((&history["wait_max"], &history["bytes"]), (&json!(0.0), &json!(1.5 * f64::from(2 << 20))));
    let sequential = row(&report, 2, "sequential");
    assert_eq!((&sequential["hit_rate"], &sequential["accuracy"]), (&json!(1.0), &json!(0.3)));
    // Recorded by a disk or imported, boots give the same.
    scene.ok("trace import set -o traces");
    assert_eq!(report, scene.json("simulate disk --traces traces --bandwidth 2,4 --policies all"));
}

#[test]
fn the_real_model_waits_for_less() {
    let scene = Scene::new();
    data_set(&scene);
    let lazy = |options: &str| {
        let words =
            format!("simulate disk --traces set --bandwidth 2 --policies lazy --model real {options}");
        scene.json(&words)["rows"][0]["wait_total"].as_f64().unwrap()
    };
    let (ranges, blocks) = (lazy(""), lazy("--misses blocks"));
    assert!(ranges < blocks / 5.0 && ranges > 0.02, "{ranges} {blocks}");
    assert!(lazy("--round-trip 500ms") > 0.5);
    assert!(lazy("--misses blocks --compressed 2") < blocks * 0.6);
}

#[test]
fn people_get_a_table() {
    let scene = Scene::new();
    data_set(&scene);
    let table =
        scene.ok("simulate disk --traces set --by image --bandwidth 2.5 --policies history,lazy").stdout;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, "p-a 4G: 2 boots, 3 reads"), "{table}");
    assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()), "{table}");
    assert!(scene.ok("simulate disk --traces set --by type").stdout.starts_with("public: 2 boots"));
    scene.fails("simulate disk --traces nothing", &["nothing", "cannot be read"]);
    fs::write(scene.path("bad.npy"), b"garbage").unwrap();
    scene.fails("simulate disk --traces bad.npy", &["no boot with reads", "is not a NumPy file"]);
    for wrong in ["--bandwidth 0", "--bandwidth x", "--policies none", "--compressed 0.5", "--faster 0"] {
        assert_eq!(scene.run(&format!("simulate disk --traces set {wrong}")).status, Some(2), "{wrong}");
    }
}

/// Of each image's seven boots five are learned from, and two replayed.
#[test]
fn learned_plans_help_other_boots() {
    let scene = Scene::new();
    let common = format!("simulate disk --traces {} --split 0.8 --bandwidth 3,5", sample());
    let report = scene.json(&format!("{common} --policies all"));
    assert_eq!((&report["training"]["traces"], &report["objective"]), (&json!(15), &json!("hits")));
    assert_eq!(report["rows"].as_array().unwrap().len(), 2 * 14, "all policies");
    for rate in [3, 5] {
        let hits = |policy| float(row(&report, rate, policy), "hit_rate");
        assert_eq!(row(&report, rate, "lazy")["boots"], json!(6));
        assert!(hits("search") > hits("lazy") + 0.1, "{report}");
        let bound = float(row(&report, rate, "oracle"), "bound");
        assert!(bound >= hits("oracle") && hits("oracle") > hits("search"), "{report}");
        assert!(hits("search") >= hits("vmt-min") && hits("thinkahead") > hits("dadi"), "{report}");
    }
    for policy in report["training"]["policies"].as_array().unwrap() {
        let boots: u64 = policy["reasons"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert!(boots == 6 && policy["reasons"]["trained"].as_u64() >= Some(2), "{policy}");
        assert!(float(policy, "planning_s") > 0.0 && float(policy, "choosing_us") > 0.0);
    }
    // A guest that waits has another objective, and is not better served by whole blocks.
    let real = scene.json(&format!("{common} --model real --policies lazy,search --without hot-slices"));
    assert_eq!(real["objective"], json!("boot"));
    let waits = |at: usize| float(&real["rows"][at], "wait_total");
    assert!(waits(1) < 0.5 * waits(0) && waits(1) < waits(2), "{real}");
}

/// The figures do not depend on chance or threads; the times that steps took are no figures.
#[test]
fn the_same_seed_gives_the_same_figures() {
    let scene = Scene::new();
    let figures = |options: &str| {
        let words = format!(
            "simulate disk --traces {} --split 0.7 --bandwidth 4 --model real --by image --policies \
             leap,random,search,history --store-fails 2% --store-latency 30ms --store-away 2s@9s {options}",
            sample()
        );
        let mut report = scene.json(&words);
        report["rows"].take()
    };
    let once = figures("");
    assert_eq!(once, figures(""));
    assert_eq!(once, figures("--threads 1"));
    assert_ne!(once, figures("--seed 2"));
    assert!(once[0]["failures"].as_u64() > Some(0), "{once}");
}

/// A boot that is replayed is not learned from, even if both are requested.
#[test]
fn no_boot_is_learned_from_and_replayed() {
    let scene = Scene::new();
    let sample = sample();
    scene.ok(&format!("trace import {sample} -o all"));
    fs::create_dir(scene.path("some")).unwrap();
    let names = scene.names("all");
    let some: Vec<_> = names.iter().filter(|name| name.ends_with(".parquet")).step_by(7).collect();
    for name in &some {
        fs::copy(scene.path("all").join(name), scene.path("some").join(name)).unwrap();
    }
    let report = scene.json("simulate disk --traces some --train all --bandwidth 4 --policies vmt-min");
    let training = &report["training"];
    assert_eq!((&training["traces"], &training["left_out"]), (&json!(21 - some.len()), &json!(some.len())));
    scene.fails("simulate disk --traces all --train some", &["no boot to learn from"]);
    let few = format!("simulate disk --traces {sample} --split 0.8 --bandwidth 4 --policies vmt-min");
    let enough = scene.json(&format!("{few} --min-traces 4"));
    assert!(enough["rows"][0]["boots"].as_u64() < Some(6), "{enough}");
    scene.fails(&format!("{few} --min-traces 20"), &["no image has 20 boots"]);
    let hidden = scene.json(&format!("{few} --hide-own"));
    assert_eq!(hidden["training"]["policies"][0]["reasons"]["trained"], Value::Null, "{hidden}");
    assert!(float(&hidden["rows"][0], "hit_rate") > 0.3, "{hidden}");
}

#[test]
fn plans_that_were_written_are_replayed() {
    let scene = Scene::new();
    let sample = sample();
    scene.ok(&format!("train --traces {sample} --objective hits --policy iocnt -o plans"));
    let words = format!("simulate disk --traces {sample} --plans plans --bandwidth 4");
    let report = scene.json(&words);
    let policies: Vec<_> =
        report["rows"].as_array().unwrap().iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["lazy", "leap", "sequential", "iocnt", "history", "oracle"]);
    assert!(float(row(&report, 4, "iocnt"), "hit_rate") > float(row(&report, 4, "lazy"), "hit_rate"));
    scene.fails(&format!("{words} --policies search"), &["no plans of `search`", "iocnt", "--train"]);
    scene.is_wrong(&format!("{words} --min-traces 3"), &["--min-traces", "--split 0.8"]);
    fs::write(scene.path("bad"), b"0,8\n").unwrap();
    scene.fails(&format!("simulate disk --traces {sample} --plans bad"), &["bad"]);
    scene.fails(&format!("simulate disk --traces {sample} --plans {sample}"), &["traces"]);
}

#[test]
fn a_recorded_link_is_simulated_and_drawn() {
    let scene = Scene::new();
    fs::write(scene.path("series.csv"), "seconds,MBps\n0,8\n6.5,2\n20,30\n").unwrap();
    let words = format!("simulate disk --traces {} --split 0.8 --policies lazy,vmt-min,history", sample());
    let link = scene.json(&format!("{words} --link series.csv --plot link"));
    assert_eq!((&link["rows"][0]["bandwidth"], link["rows"].as_array().unwrap().len()), (&Value::Null, 3));
    assert!(link["rows"][1]["switches_bin"].as_u64() > Some(0), "{link}");
    assert!(float(&link["rows"][1], "hit_rate") > float(&link["rows"][0], "hit_rate"));
    assert_eq!(scene.names("link"), ["recorded-link.png", "recorded-link.svg"]);
    let parts = "preprocessing,switching,zero-shot,selection,switching";
    let report = scene.json(&format!("{words} --bandwidth 3,6 --by type --without {parts} --plot figures"));
    assert_eq!(report["rows"].as_array().unwrap().len(), 2 * 2 * 7);
    assert_eq!(report["plots"].as_array().unwrap().len(), 4);
    let files = ["ablation.png", "ablation.svg", "bandwidth.png", "bandwidth.svg"];
    assert_eq!(scene.names("figures"), files);
    assert!(
        scene.bytes("figures/bandwidth.svg").starts_with(b"<svg")
            || scene.bytes("figures/bandwidth.svg").starts_with(b"<?xml")
    );
    let table = scene.ok(&format!("{words} --bandwidth 3 --without switching")).stdout;
    assert!(table.contains("vmt-min -switching") && table.contains("learned from 15 boots"), "{table}");
}

#[test]
fn simulations_without_boots_or_sense_are_refused() {
    let scene = Scene::new();
    data_set(&scene);
    fs::create_dir(scene.path("empty")).unwrap();
    scene.fails("simulate disk --traces empty", &["empty", "has no traces"]);
    scene.fails("simulate disk --traces set --train empty", &["empty", "has no traces"]);
    scene.fails("simulate disk --traces set/trace/it1/p-a/4GB/7.npy --split 0.8", &["no boot to learn from"]);
    let unlearned = "simulate disk --traces set --policies lazy,search";
    scene.is_wrong(
        unlearned,
        &["`search` learns from boots", "--train DIR", "lazy, leap, sequential, history"],
    );
    for (series, part) in
        [("", "no bandwidth"), ("0,8\n1\n", "line 2"), ("0,8\n0,9\n", "line 2"), ("0,x\n", "line 1")]
    {
        fs::write(scene.path("series.csv"), series).unwrap();
        scene.fails("simulate disk --traces set --link series.csv", &["series.csv", part, "seconds,MBps"]);
    }
    scene.fails("simulate disk --traces set --link nothing.csv", &["nothing.csv", "cannot read"]);
    scene.fails("simulate disk --traces set --link /dev/zero", &["/dev/zero", "is longer than"]);
    for of_real in ["--store-fails 1%", "--store-away 1s@2s", "--store-latency 5ms"] {
        scene.is_wrong(&format!("simulate disk --traces set {of_real}"), &["paper's model", "--model real"]);
    }
    scene.is_wrong("simulate disk --traces set --hide-own", &["--hide-own", "none"]);
    // The advice can be followed.
    let with_plans = "simulate disk --traces set --min-traces 3 --plans x";
    scene.is_wrong(with_plans, &["--min-traces", "in the place of --plans"]);
    let itself = "simulate disk --traces set --train set --hide-own";
    scene.fails(itself, &["set: has no boot to learn from", "in the place of --train"]);
    scene.is_wrong("simulate harvest --margin 91", &["--margin", "from 0 to 90"]);
    scene.fails("simulate fleet --region 1E", &["too large to be simulated", "256.00 TiB"]);
    let wrong = [
        "--policies best",
        "--split 0",
        "--split 1",
        "--split 1.5",
        "--split x",
        "--split 0.5 --train set",
        "--without switching",
        "--without wheels",
        "--store-fails 1",
        "--store-fails 100%",
        "--store-away 5s",
        "--link a --bandwidth 3",
        "--hide-own --plans x",
        "--threads 0",
    ];
    for wrong in wrong {
        assert_eq!(scene.run(&format!("simulate disk --traces set {wrong}")).status, Some(2), "{wrong}");
    }
}

/// The oracle would search for half a minute.
#[test]
fn ctrl_c_ends_it() {
    let scene = Scene::new();
    let words = format!("simulate disk --traces {} --policies oracle --threads 1 --plot figures", sample());
    let mut started = scene.start(&words);
    // The directory is made before the work begins.
    started.wait_until("it could be stopped", || scene.path("figures").exists());
    std::thread::sleep(std::time::Duration::from_millis(200));
    started.signal(rustix::process::Signal::INT);
    started.finish().fails(&["interrupted"]);
    assert_eq!(scene.names("figures"), [""; 0]);
}

/// The disk of a real image: its zeros are local, its stored data comes in the image's own compressed frames, and the
/// parts that opening the image read are not fetched again.
#[test]
fn the_disk_may_be_a_real_image() {
    let scene = Scene::new();
    headstart_testkit::disk::mixed_disk(&scene, "disk.raw", 8);
    let image = scene.json("image import disk.raw file://~/s:a");
    let records = |reads: &[(u64, u64)]| {
        let record = |(n, (start, len)): (u64, &(u64, u64))| Record {
            t_us: 1_000_000 + n * 100_000,
            op: Op::Read,
            range: ByteRange::between(*start, start + len),
            service_us: Some(0),
        };
        (0..).zip(reads).map(record).collect::<Vec<_>>()
    };
    let trace = |name: &str, reads: &[(u64, u64)]| {
        let creation = Creation { image: "vm".to_owned(), size: 8 << 20, ..Creation::default() };
        let trace = Trace { creation, records: records(reads), ..Trace::default() };
        fs::write(scene.path(name), headstart_trace::file::encode(&trace).unwrap()).unwrap();
    };
    let simulate = |name: &str, options: &str| {
        let words = format!(
            "simulate disk --traces {name} --model real --bandwidth 1 --misses own --policies lazy {options}"
        );
        scene.json(&words)["rows"][0].clone()
    };
    // Text, noise, a hole.
    trace("boot.parquet", &[(2 << 20, 1_000_000), (1 << 20, 262_144), (7 << 20, 65_536)]);
    let real = simulate("boot.parquet", "--image file://~/s:a");
    let plain = simulate("boot.parquet", "");
    assert_eq!(
        (&plain["hit_rate"], float(&plain, "bytes") as u64),
        (&json!(0.0), 1_000_000_u64.div_ceil(16384) * 16384 + 262_144 + 65_536)
    );
    assert!((float(&real, "hit_rate") - 1.0 / 3.0).abs() < 1e-9, "{real}");
    let bytes = float(&real, "bytes");
    assert!(bytes > 262_144.0 && bytes < 900_000.0, "{bytes} of {image}");
    assert!(float(&real, "wait_total") < float(&plain, "wait_total"), "{real} {plain}");
    // A hit takes its time too, and the first read comes at the given time.
    let slow = simulate("boot.parquet", "--image vm=file://~/s:a --local-read 10ms --grace 5s");
    assert!((float(&slow, "wait_total") - float(&real, "wait_total") - 0.03).abs() < 1e-6, "{slow} {real}");
    assert!((float(&slow, "last_read") - float(&real, "last_read") - 4.03).abs() < 1e-6, "{slow} {real}");
    let wrong = "simulate disk --traces boot.parquet --model real --image";
    scene.fails(&format!("{wrong} other=file://~/s:a"), &["boots of `vm`", "--image vm=IMAGE"]);
    scene.fails(&format!("{wrong} vm=file://~/s:b"), &["s:b"]);
    scene.is_wrong("simulate disk --traces boot.parquet --image file://~/s:a", &["--image", "--model real"]);
}
