//! The forms of a container's image: listed, with the ones that hosts take, and all of them with plans.

use crate::convert::{image, layers};
use crate::scene::Scene;
use headstart_testkit::data_sets;
use serde_json::{Value, json};
use std::fs;

/// A container's image in a layout, and the function that converts it and returns the digest of the new form.
fn convert(scene: &Scene, words: &str) -> String {
    let made = scene.json(&format!("image convert file://~/layout:app --size 256M {words}"));
    made["digest"].as_str().unwrap().to_owned()
}

/// The fields of the listed forms.
fn listed(scene: &Scene, fields: &[&str]) -> Vec<Vec<Value>> {
    let listing = scene.json("image inspect file://~/layout:app --forms");
    let fields = |form: &Value| fields.iter().map(|field| form[field].clone()).collect();
    listing["forms"].as_array().unwrap().iter().map(fields).collect()
}

#[test]
fn the_forms_of_an_image_are_listed_with_the_ones_that_hosts_take() {
    let scene = Scene::new();
    let original = image(&scene, "layout", &layers(&scene))["digest"].clone();
    let said = scene.ok("image inspect file://~/layout:app --forms").stdout;
    assert!(said.contains("no forms yet") && said.contains(original.as_str().unwrap()), "{said}");
    let turbo = convert(&scene, "--referrer --mode turbo");
    let (ext4, erofs) = (convert(&scene, "--referrer"), convert(&scene, "--referrer --fs erofs"));
    let fields = ["digest", "file_system", "turbo", "place", "is_for_reading", "is_for_writing"];
    let all = [
        [json!(erofs), json!("erofs"), json!(false), json!("referrer"), json!(true), json!(false)],
        [json!(ext4), json!("ext4"), json!(false), json!("referrer"), json!(false), json!(true)],
        [json!(turbo), json!("ext4"), json!(true), json!("referrer"), json!(false), json!(false)],
    ];
    assert_eq!(listed(&scene, &fields), all);
    assert_eq!(scene.json("image inspect file://~/layout:app --forms")["converted_from"], original);
    assert_eq!(listed(&scene, &["options"])[1], [json!("zstd,frame=32768,crc")]);
    let said = scene.ok("image inspect file://~/layout:app --forms").stdout;
    let line = said.lines().find(|line| line.contains(&ext4)).unwrap();
    assert!(line.contains("ext4") && line.contains("writing") && !line.contains("reading"), "{said}");
    // What an index lists comes first.
    let indexed = convert(&scene, "--index --codec lz4");
    let fields = ["digest", "place", "is_for_reading", "is_for_writing"];
    assert_eq!(listed(&scene, &fields)[0], [json!(indexed), json!("index"), json!(true), json!(true)]);
    // A damaged form hides no other.
    let hex = erofs.strip_prefix("sha256:").unwrap();
    fs::write(scene.path("layout/blobs/sha256").join(hex), "{}").unwrap();
    let problems = listed(&scene, &["digest", "problem"]);
    assert!(problems[1][0] == erofs && problems[1][1].is_string(), "{problems:?}");
    assert_eq!(problems[2], [json!(ext4), Value::Null]);
    // One by its digest is listed as it is named.
    let named = scene.json(&format!("image inspect file://~/layout@{ext4} --forms"));
    assert_eq!((&named["forms"][0]["place"], &named["converted_from"]), (&json!("named"), &original));
    fs::write(scene.path("disk.raw"), [7; 4096]).unwrap();
    scene.ok("image import disk.raw file://~/store:vm");
    scene.fails("image inspect file://~/store:vm --forms", &["store:vm", "no container's image"]);
}
