//! Boots that were recorded, replayed on virtual time.

use crate::scene::Scene;
use crate::trace::data_set;
use serde_json::{Value, json};

fn row<'a>(report: &'a Value, bandwidth: u64, policy: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|row| row["bandwidth"] == bandwidth && row["policy"] == policy).unwrap()
}

/// Two boots, five seconds after their creation: one reads a block, then that one and the next; the other reads one.
/// At a block a second.
#[test]
fn the_papers_model_counts_blocks_and_seconds() {
    let scene = Scene::new();
    data_set(&scene);
    let report = scene.json("simulate disk --traces set --bandwidth 2,4");
    assert_eq!(report["rows"].as_array().unwrap().len(), 6);
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
    // Recorded by a disk or imported: the same.
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
fn a_table_for_people() {
    let scene = Scene::new();
    data_set(&scene);
    let table =
        scene.ok("simulate disk --traces set --by image --bandwidth 2.5 --policies history,lazy").stdout;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, "p-a 4G: 2 boots, 3 reads"), "{table}");
    assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()), "{table}");
    assert!(scene.ok("simulate disk --traces set --by type").stdout.starts_with("public: 2 boots"));
    scene.fails("simulate disk --traces nothing", &["nothing", "cannot be read"]);
    std::fs::write(scene.path("bad.npy"), b"garbage").unwrap();
    scene.fails("simulate disk --traces bad.npy", &["no boot with reads", "is not a NumPy file"]);
    for wrong in ["--bandwidth 0", "--bandwidth x", "--policies none", "--compressed 0.5", "--faster 0"] {
        assert_eq!(scene.run(&format!("simulate disk --traces set {wrong}")).status, Some(2), "{wrong}");
    }
}
