//! Statistics of data sets, and data sets that are made up.

use headstart_testkit::data_sets::data_set;
use headstart_testkit::scene::Scene;
use serde_json::json;

#[test]
fn statistics_of_every_form_agree() {
    let scene = Scene::new();
    data_set(&scene);
    scene.ok("trace import set -o traces");
    let stats = scene.json("trace stats set");
    assert_eq!(stats, scene.json("trace stats traces"));
    let total = json!({
        "reads": 3, "writes": 1, "read_bytes": 77824, "written_bytes": 512, "cross_block_reads": 1,
        "distinct_bytes": [77824, 4 * 65536, 3 << 21], "first_us": 10_000_000, "duration_us": 1_000_000,
        "sizes": [0, 1, 1, 0, 0, 1, 0, 0, 0, 0],
    });
    assert_eq!(stats["total"], total);
    let trace = &stats["traces"][0];
    let told = [("volume", "7"), ("image", "p-a"), ("created", "2026-11-21T18:57:43Z")];
    told.iter().for_each(|(key, value)| assert_eq!(trace[key], *value));
    assert_eq!((&stats["images"][0]["traces"], &stats["images"][0]["reads"]), (&json!(2), &json!(2)));
    let bare = scene.json("trace stats set/trace/it1/p-a/4GB/7.npy");
    assert_eq!((&bare["total"]["reads"], &bare["total"]["first_us"]), (&json!(2), &json!(0)));
    // The paper's figures: a public image on one disk size, both within one day.
    let (creations, figures) = (&stats["creations"], &stats["figures"]);
    assert_eq!(
        (&creations["size_gib"]["max"], &creations["top_images"]["public"]),
        (&json!(4.0), &json!([2]))
    );
    assert_eq!(
        (&figures["traces"]["public"], &figures["grace_s"]["public"]["p50"]),
        (&json!(2), &json!(5.0))
    );
    assert_eq!(figures["cross_percent"]["public"][5]["block"], 2 << 20);
    let table = scene.ok("trace stats traces").stdout;
    for line in ["s to the first read, public", "disk size, GiB", "microseconds between reads", "cosine"] {
        assert!(table.contains(line), "no {line}: {table}");
    }
    assert!(table.contains("median by image") && table.contains("2 traces") && table.contains("up to 4 KiB"));
}

#[test]
fn a_data_set_is_made_up() {
    let scene = Scene::new();
    let words = "trace synthesize --images 3 --traces 12 --seed 5";
    let made = scene.json(&format!("{words} -o made"));
    let traces = made["traces"].as_u64().unwrap();
    assert!((10..=14).contains(&traces), "{made}");
    assert_eq!(scene.json(&format!("{words} --format parquet -o parquet"))["records"], made["records"]);
    let stats = scene.json("trace stats made");
    assert_eq!((stats["traces"].as_array().unwrap().len() as u64, &stats["skipped"]), (traces, &json!({})));
    assert_eq!(stats, scene.json("trace stats parquet"));
    scene.fails(&format!("{words} -o made"), &["made", "is not empty"]);
}
