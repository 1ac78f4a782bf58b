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
    assert_eq!(scene.json("image inspect file://~/layout:app --forms")["original"], original);
    assert_eq!(listed(&scene, &["options"])[1], [json!("zstd,frame=32768,crc")]);
    let said = scene.ok("image inspect file://~/layout:app --forms").stdout;
    let line = said.lines().find(|line| line.contains(&ext4)).unwrap();
    assert!(line.contains("ext4") && line.contains("writing") && !line.contains("reading"), "{said}");
    // Containers take them by the digest of the original, too; one by its own digest is the only one.
    let of =
        |name: &str| scene.json(&format!("image inspect file://~/layout@{name} --forms"))["forms"].clone();
    let uses = |forms: &Value| -> Vec<[bool; 2]> {
        let of_form =
            |form: &Value| ["is_for_reading", "is_for_writing"].map(|use_| form[use_] == json!(true));
        forms.as_array().unwrap().iter().map(of_form).collect()
    };
    assert_eq!(uses(&of(original.as_str().unwrap())), [[true, false], [false, true], [false, false]]);
    let said =
        scene.ok(&format!("image inspect file://~/layout@{} --forms", original.as_str().unwrap())).stdout;
    assert!(said.contains("`attach` takes a tag, or the digest of a form"), "{said}");
    assert_eq!(uses(&of(&erofs)), [[true, false], [false, false], [false, false]]);
    assert_eq!(uses(&of(&turbo)), [[true, true], [false, false], [false, false]]);
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
    // One that was deleted is named as that.
    let hex = turbo.strip_prefix("sha256:").unwrap();
    fs::remove_file(scene.path("layout/blobs/sha256").join(hex)).unwrap();
    let problems = listed(&scene, &["digest", "problem"]);
    assert!(problems[3][0] == turbo && problems[3][1].as_str().unwrap().starts_with("gone"), "{problems:?}");
    // One by its digest is listed as it is named.
    let named = scene.json(&format!("image inspect file://~/layout@{ext4} --forms"));
    assert_eq!((&named["forms"][0]["place"], &named["original"]), (&json!("named"), &original));
    fs::write(scene.path("disk.raw"), [7; 4096]).unwrap();
    scene.ok("image import disk.raw file://~/store:vm");
    scene.fails("image inspect file://~/store:vm --forms", &["store:vm", "no container's image"]);
}

#[test]
fn plans_are_published_with_all_forms_whose_disk_the_boots_have_read_and_others_are_named() {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    let (ext4, erofs) = (convert(&scene, "--referrer"), convert(&scene, "--referrer --fs erofs"));
    let boots = |set: &str, name: &str, first: i64, at: i64| {
        let places: Vec<_> = (0..12).map(|n| (at << 21) + n * 4096).collect();
        data_sets::boots(&scene, set, (name, 256 << 20), first, (&places, 1));
    };
    let train = |set: &str| {
        let words = "train --policy vmt-min --learned ~/learned --publish file://~/layout:app";
        format!("{words} --traces {set}")
    };
    boots("monday", &ext4, 0, 3);
    // The newest form is the EROFS, of which there is no boot.
    let said = scene.ok(&train("monday")).stdout;
    assert!(said.contains(&format!("(its ext4 form {ext4}): published, generation 1")), "{said}");
    let left = said.lines().find(|line| line.contains("NOT published")).unwrap();
    assert!(left.contains(&format!("layout@{erofs} (erofs)")) && left.contains("train again"), "{said}");
    // Another packing has the same disk, another mode has not.
    let (lz4, turbo) = (convert(&scene, "--index --codec lz4"), convert(&scene, "--referrer --mode turbo"));
    let made = scene.json(&train("monday"));
    let subjects = |made: &Value| -> Vec<Value> {
        let published = made["published"].as_array().unwrap();
        published.iter().map(|one| json!([one["subject"], one["is_new"]])).collect()
    };
    assert_eq!(subjects(&made), [json!([lz4, true]), json!([ext4, false])]);
    let left: Vec<_> =
        made["left_out"].as_array().unwrap().iter().map(|left| left["turbo"].clone()).collect();
    assert_eq!(left, [false, true], "{made}");
    let said = scene.ok(&train("monday")).stdout;
    let line = said.lines().find(|line| line.contains(&turbo)).unwrap();
    assert!(line.contains("(ext4, turbo)") && !line.contains("container"), "{said}");
    let plan = scene.json("plan show --reference file://~/layout:app");
    assert_eq!(plan["order"][0][0], 3, "{plan}");
    let plans: Vec<_> =
        listed(&scene, &["digest", "plan"]).into_iter().filter(|form| form[1].is_object()).collect();
    assert_eq!(plans.len(), 2, "{plans:?}");
    // Boots of its own are learned beside these.
    boots("tuesday", &erofs, 5, 2);
    let made = scene.json(&train("tuesday"));
    assert_eq!(subjects(&made), [json!([lz4, false]), json!([erofs, true]), json!([ext4, false])]);
    let left = &made["left_out"][0]["image"];
    assert!(left.as_str().unwrap().ends_with(&turbo), "{made}");
    let plan = scene.json(&format!("plan show --reference file://~/layout@{erofs}"));
    assert_eq!(plan["order"][0][0], 2, "{plan}");
    // None has boots.
    boots("other", "web", 0, 1);
    let all = "train --traces other --publish file://~/layout:app";
    scene.fails(all, &["layout:app", &ext4, &erofs, "none of the boots"]);
}

#[test]
fn a_form_that_is_packed_anew_keeps_its_plan_and_the_boots_of_those_before() {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    let first = convert(&scene, "--referrer");
    let boots = |set: &str, name: &str, first: i64, at: i64| {
        let places: Vec<_> = (0..12).map(|n| (at << 21) + n * 4096).collect();
        data_sets::boots(&scene, set, (name, 256 << 20), first, (&places, 1));
    };
    let train = |set: &str| {
        let words = "train --policy vmt-min --learned ~/learned --publish file://~/layout:app";
        let made = scene.json(&format!("{words} --traces {set}"));
        let published = made["published"].as_array().unwrap();
        published.iter().map(|one| json!([one["subject"], one["is_new"]])).collect::<Vec<_>>()
    };
    boots("monday", &first, 0, 3);
    assert_eq!(train("monday"), [json!([first, true])]);
    let second = convert(&scene, "--referrer --codec lz4");
    let generation = |number: u64| json!({ "generation": number, "traces": 5 });
    assert_eq!(listed(&scene, &["digest", "plan"]), [[json!(second), generation(1)]]);
    // The plan has the name of the form before. A disk of the new form follows it.
    let plan = scene.json("plan show --reference file://~/layout:app");
    assert_eq!(plan["order"][0][0], 3, "{plan}");
    assert_eq!(train("monday"), [json!([second, true])]);
    assert_eq!(train("monday"), [json!([second, false])]);
    let third = convert(&scene, "--referrer --codec none");
    assert_eq!(listed(&scene, &["digest", "plan"]), [[json!(third), generation(2)]]);
    boots("tuesday", &first, 5, 3);
    assert_eq!(train("tuesday"), [json!([third, true])]);
    // Fewer boots of its own hide no others of the disk.
    boots("stray", &third, 10, 1);
    assert_eq!(train("stray"), [json!([third, false])]);
    let plan = scene.json("plan show --reference file://~/layout:app");
    assert_eq!(plan["order"][0][0], 3, "{plan}");
    // Another disk inherits nothing.
    let made = scene.json("image convert file://~/layout:app --size 512M --referrer");
    let other = made["digest"].as_str().unwrap();
    assert_eq!(listed(&scene, &["digest", "plan"]), [[json!(other), Value::Null]]);
    let refused = "train --traces monday --publish file://~/layout:app";
    scene.fails(refused, &["layout:app", other, "none of the boots", "record"]);
}
