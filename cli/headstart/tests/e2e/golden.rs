//! The reference's blobs through the command line: layer files, pairs, ZFiles, images.

use crate::golden_set::{check_disk, check_ranges, lay_out_layers};
use crate::scene::{Scene, sha256};
use crate::tools::{self, installed};
use headstart_testkit::golden_set::{GoldenSet, unhex};
use serde_json::{Value, json};
use std::fs::{self, File};

/// Exports layers and a pair; the disk is `out.raw`.
fn export(scene: &Scene, files: &[String], more: &str) {
    scene.ok(&format!("layer export {} {more} -o out.raw", files.join(" ")));
}

#[test]
fn every_stack_of_layers_gives_its_disk() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    let cases = set.cases("lsmt");
    assert!(cases.len() >= 16);
    for case in cases {
        let files = lay_out_layers(&scene, &set, case);
        export(&scene, &files, "");
        check_disk(&scene, "out.raw", &case["expected"]);
        scene.ok(&format!("layer verify {}", files.join(" ")));
    }
}

#[test]
fn every_pair_and_sparse_layer_gives_its_disk() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    for case in set.cases("lsmt-unsealed-pair") {
        let name = case["name"].as_str().unwrap();
        for part in ["data", "index"] {
            fs::write(scene.path(&format!("{name}.{part}")), set.raw(&case[part])).unwrap();
        }
        let on_stack = !case["lowers_low_to_high"].is_null();
        let files = if on_stack { lay_out_layers(&scene, &set, set.case("stack3_64m")) } else { Vec::new() };
        export(&scene, &files, &format!("--pair {name}.data,{name}.index"));
        check_disk(&scene, "out.raw", &case["expected"]);
    }
    for case in set.cases("lsmt-sparse-rw") {
        // Its holes are its index: only tar restores them.
        let archive = set.path(case["file"].as_str().unwrap());
        tools::run(&scene, "tar", &format!("-S -xzf {}", archive.display()));
        let member = case["member"].as_str().unwrap().to_owned();
        assert_eq!(sha256(&scene.bytes(&member)), case["raw_sha256"]);
        export(&scene, &[member], "");
        check_disk(&scene, "out.raw", &case["expected"]);
    }
}

#[test]
fn a_merged_layer_without_a_size_takes_a_given_one() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    let case = set.case("merge5_vsize0");
    let files = lay_out_layers(&scene, &set, case);
    export(&scene, &files, "--size 64G");
    let whole = File::open(scene.path("out.raw")).unwrap();
    assert_eq!(whole.metadata().unwrap().len(), 64 << 30);
    check_ranges(&whole, &case["expected"]);
    // Without a given size, the whole disk is exported.
    export(&scene, &files, "");
    let last = case["layers_low_to_high"][0]["index"].as_array().unwrap().last().unwrap();
    let end = (last[0].as_u64().unwrap() + last[1].as_u64().unwrap()) * 512;
    assert_eq!(fs::metadata(scene.path("out.raw")).unwrap().len(), end);
}

#[test]
fn layers_say_what_they_are() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    for case in set.cases("lsmt").into_iter().chain(set.cases("lsmt-quirk")) {
        let files = lay_out_layers(&scene, &set, case);
        for (file, entry) in files.iter().zip(case["layers_low_to_high"].as_array().unwrap()) {
            let said = scene.json(&format!("layer inspect {file} --segments"));
            let lower = |value: &Value| value.as_str().unwrap().to_lowercase();
            let page = if entry["trailer"].is_null() { &entry["lsmt"]["trailer"] } else { &entry["trailer"] };
            if !page.is_null() {
                for field in ["virtual_size", "user_tag"] {
                    assert_eq!(said[field], page[field], "{file}, {field}");
                }
                for field in ["uuid", "parent_uuid"] {
                    assert_eq!(lower(&said[field]), lower(&page[field]), "{file}, {field}");
                }
            }
            if let Some(index) = entry["index"].as_array() {
                let records = index.iter().map(|r| json!([r[0], r[1], r[2], r[3]]));
                assert_eq!(said["index"], Value::from_iter(records), "{file}");
            }
            if !entry["segments"].is_null() {
                assert_eq!(said["segments"], entry["segments"], "{file}");
            }
            assert_eq!(said["stored_size"], entry["raw_size"], "{file}");
            scene.ok(&format!("layer inspect {file}"));
        }
    }
}

#[test]
fn every_zfile_is_unpacked() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    let cases = set.cases("zfile");
    assert!(cases.len() >= 29);
    for case in cases {
        fs::write(scene.path("in.zf"), set.raw(case)).unwrap();
        scene.ok("zfile unpack in.zf -o out");
        let (out, expected) = (scene.bytes("out"), &case["expected"]);
        assert_eq!(out.len() as u64, expected["size"], "{}", case["name"]);
        assert_eq!(sha256(&out), expected["sha256"], "{}", case["name"]);
        let said = scene.json("zfile inspect in.zf");
        let (page, parameters) = (&case["trailer"], &case["parameters"]);
        let codec = if page["algo"] == 1 { "lz4" } else { "zstd" };
        for (field, value) in [
            ("codec", json!(codec)),
            ("frame_size", page["block_size"].clone()),
            ("frames", case["blocks"].clone()),
            ("frame_checksums", json!(page["verify"] == 1)),
            ("metadata_checksums", json!(true)),
            ("header_complete", json!(parameters["header_overwritten"] == true)),
            ("original_size", page["original_file_size"].clone()),
            ("index_offset", page["index_offset"].clone()),
            ("index_crc", page["index_crc"].clone()),
        ] {
            assert_eq!(said[field], value, "{}, {field}", case["name"]);
        }
    }
}

/// Puts blobs into a store as another tool would, with a manifest of them.
fn lay_out_store(scene: &Scene, dir: &str, manifest: &[u8], blobs: &[Vec<u8>]) {
    fs::create_dir_all(scene.path(dir).join("blobs/sha256")).unwrap();
    let digest = sha256(manifest);
    for blob in blobs.iter().map(Vec::as_slice).chain([manifest]) {
        fs::write(scene.path(dir).join("blobs/sha256").join(sha256(blob)), blob).unwrap();
    }
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": format!("sha256:{digest}"),
        "size": manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": "golden"},
    }]});
    fs::write(scene.path(dir).join("index.json"), index.to_string()).unwrap();
    fs::write(scene.path(dir).join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
}

#[test]
fn an_image_of_the_reference_gives_its_disk() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    let case = set.case("img3");
    let entries = case["layers_low_to_high"].as_array().unwrap();
    let mut blobs: Vec<_> = entries.iter().map(|entry| set.raw(&entry["blob"])).collect();
    for (n, blob) in blobs.iter().enumerate() {
        fs::write(scene.path(&format!("layer{n}")), blob).unwrap();
    }
    blobs.push(set.bytes("config.example.json"));
    lay_out_store(&scene, "store", &set.bytes("manifest.example.json"), &blobs);
    let top = &entries[2]["merged_after_this_layer"];

    let said = scene.json("image inspect file://~/store:golden");
    assert_eq!((&said["virtual_size"], &said["made_by"]), (&top["virtual_size"], &Value::Null));
    for (layer, entry) in said["layers"].as_array().unwrap().iter().zip(entries) {
        assert_eq!(layer["uuid"], entry["uuid"]);
        assert_eq!(layer["segments"], entry["lsmt_segments"]);
        let zfile = &entry["zfile"];
        let codec = if zfile["algo"] == 1 { "lz4" } else { "zstd" };
        let frames = format!("{codec} in frames of {}k", zfile["block_size"].as_u64().unwrap() / 1024);
        assert_eq!(layer["wrappers"], json!(["tar", frames]));
    }
    scene.ok("image verify file://~/store:golden");
    scene.ok("image verify --deep file://~/store:golden");
    scene.ok("image list file://~/store");
    scene.ok("image export file://~/store:golden -o out.raw");
    check_disk(&scene, "out.raw", top);
    if installed(&["e2fsck"]) {
        tools::run(&scene, "e2fsck", "-fn out.raw");
    }
    // The same through the files alone, and each stack below it.
    for (n, entry) in entries.iter().enumerate() {
        let files: Vec<_> = (0..=n).map(|n| format!("layer{n}")).collect();
        export(&scene, &files, "");
        check_disk(&scene, "out.raw", &entry["merged_after_this_layer"]);
    }
    // An image of this project on top of it.
    scene.ok("image import out.raw file://~/store:ours --base file://~/store:golden");
    scene.ok("image diff file://~/store:ours file://~/store:golden");
    scene.ok("image flatten file://~/store:golden file://~/flat:golden");
    scene.ok("image export file://~/flat:golden -o out.raw");
    check_disk(&scene, "out.raw", top);
}

/// Stacks whose top layers have no size, layers over 2 TiB, special cases of merges: as images.
#[test]
fn stacks_become_images_with_their_bytes() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    for name in ["stack5_64g", "stack2_shadow", "merge3_tool", "big4t", "sealed64m", "merge5_vsize0", "empty"]
    {
        let case = set.case(name);
        let entries = case["layers_low_to_high"].as_array().unwrap();
        let mut blobs: Vec<_> = entries.iter().map(|entry| set.raw(entry)).collect();
        let layer = |blob: &Vec<u8>| {
            json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{}", sha256(blob)), "size": blob.len(),
            })
        };
        let layers: Vec<_> = blobs.iter().map(layer).collect();
        let config = set.bytes("config.example.json");
        let manifest = json!({"schemaVersion": 2, "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": format!("sha256:{}", sha256(&config)), "size": config.len(),
        }, "layers": layers});
        blobs.push(config);
        lay_out_store(&scene, name, manifest.to_string().as_bytes(), &blobs);
        let image = format!("file://~/{name}:golden");
        scene.ok(&format!("image verify --deep {image}"));
        scene.ok(&format!("image export {image} -o out.raw"));
        if case["expected"]["vsize"] == 0 {
            let file = File::options().write(true).read(true).open(scene.path("out.raw")).unwrap();
            file.set_len(64 << 30).unwrap();
            check_ranges(&file, &case["expected"]);
        } else {
            check_disk(&scene, "out.raw", &case["expected"]);
        }
    }
}

/// Byte patches of good blobs: the right bytes, the reference's result, or a clear error.
#[test]
fn patched_blobs_give_the_right_bytes_or_an_error() {
    let Some(set) = GoldenSet::open() else { return };
    let scene = Scene::new();
    for case in set.cases("mutations") {
        let good = set.bytes(case["base"].as_str().unwrap());
        let mutations = case["mutations"].as_array().unwrap();
        let right = &mutations[0]["peer"]["sha256"];
        for mutation in mutations {
            let mut blob = good.clone();
            for patch in mutation["patches"].as_array().unwrap() {
                let (at, bytes) = (patch[0].as_u64().unwrap() as usize, unhex(patch[1].as_str().unwrap()));
                blob[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            if let Some(resize) = mutation["resize_bytes"].as_i64() {
                blob.resize(usize::try_from(good.len() as i64 + resize).unwrap_or(resize as usize), 0);
            }
            fs::write(scene.path("blob"), &blob).unwrap();
            // Two patches change the disk's size, which is trusted: they get the right one as an option.
            let patches_size = mutation["mutation"].as_str().unwrap().starts_with("trailer: virtual_size");
            let size = if patches_size { "--size 64M" } else { "" };
            let command = if case["format"] == "lsmt" { "layer export" } else { "zfile unpack" };
            let run = scene.run(&format!("{command} blob -o out {size}"));
            if run.status == Some(0) {
                let sum = sha256(&scene.bytes("out"));
                let peers = &mutation["peer"]["sha256"];
                assert!(*right == sum || *peers == sum, "{mutation}");
            } else {
                run.fails(&["blob: "]);
            }
        }
    }
}
