//! Garbage wherever a file is read: a clear message and status 1, never a panic, a hang, or unbounded memory.

use crate::disk::{DiskBuilder, mixed_disk, noise, text};
use crate::scene::{Scene, sha256};
use serde_json::{Value, json};
use std::fs;

/// Files of all sorts that this program does not make.
fn garbage() -> Vec<(&'static str, Vec<u8>)> {
    let with_start = |start: &[u8], len: usize| [start, &noise(9, len)].concat();
    vec![
        ("empty", Vec::new()),
        ("one", vec![0]),
        ("zeros", vec![0; 100_000]),
        ("ones", vec![0xff; 100_000]),
        ("noise", noise(1, 100_000)),
        ("text", text(1, 100_000)),
        ("lsmt", with_start(b"LSMT\0\x01\x02\0", 100_000)),
        ("lsmt-only", b"LSMT\0\x01\x02\0".to_vec()),
        ("zfile", with_start(b"ZFile\0\x01\0", 100_000)),
        ("zfile-only", b"ZFile\0\x01\0".to_vec()),
        ("qcow2", with_start(b"QFI\xfb\0\0\0\x03", 100_000)),
        ("vmdk", with_start(b"KDMV", 100_000)),
        ("descriptor", b"# DiskBuilder DescriptorFile\nversion=1\nRW 99999999999999 FLAT \"x\" 0\n".to_vec()),
        ("vhdx", with_start(b"vhdxfile", 100_000)),
        ("vhd", with_start(b"conectix", 100_000)),
        ("gzip", with_start(b"\x1f\x8b\x08", 1000)),
        ("tar", tar_of_nothing()),
        ("json", b"{\"schemaVersion\": 2}".to_vec()),
    ]
}

/// A tar header whose size goes far past the end.
fn tar_of_nothing() -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"file");
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(b"77777777777\0");
    header[148..156].fill(b' ');
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[test]
fn garbage_is_no_layer_and_no_zfile() {
    let scene = Scene::new();
    for (name, bytes) in garbage() {
        fs::write(scene.path(name), bytes).unwrap();
        for words in
            ["layer inspect", "layer verify", "layer export -o out", "zfile inspect", "zfile unpack -o out"]
        {
            scene.fails(&format!("{words} {name}"), &[name]);
        }
        scene.fails(&format!("layer export --pair {name},{name} -o out"), &[name]);
        assert!(!scene.path("out").exists(), "{name}");
    }
}

#[test]
fn garbage_is_refused_as_a_disk_unless_it_is_to_be_raw() {
    let scene = Scene::new();
    for (name, bytes) in garbage() {
        fs::write(scene.path(name), bytes).unwrap();
        for format in ["qcow2", "vmdk", "vhd", "vhdx"] {
            let import = format!("image import {name} file://~/store:{name} --format {format}");
            // A description of a disk is refused because of the file that it names.
            let description = name == "descriptor" && format == "vmdk";
            scene.fails(&import, &[if description { "names this file" } else { name }]);
        }
        // Without a format they are refused: none of them has whole sectors. An explicit raw format is accepted.
        scene.fails(&format!("image import {name} file://~/store:{name}"), &[name]);
        scene.ok(&format!("image import {name} file://~/store:{name} --format raw"));
    }
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
}

#[test]
fn garbage_in_a_writable_directory_is_refused() {
    let scene = Scene::new();
    for (name, bytes) in garbage() {
        fs::create_dir(scene.path(name)).unwrap();
        for file in ["data", "index", "state.json", "lock"] {
            fs::write(scene.path(name).join(file), &bytes).unwrap();
        }
        scene.fails(&format!("image commit file://~/store:a --writable {name}"), &[name]);
    }
}

#[test]
fn garbage_in_a_store_is_refused() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 4);
    scene.ok("image import disk.raw file://~/store:a");
    let whole = [scene.bytes("store/oci-layout"), scene.bytes("store/index.json")];
    for (name, bytes) in garbage() {
        for (file, whole) in ["store/oci-layout", "store/index.json"].iter().zip(&whole) {
            fs::write(scene.path(file), &bytes).unwrap();
            for words in ["image inspect file://~/store:a", "image verify file://~/store:a"] {
                scene.fails(words, &["store"]);
            }
            if !(name == "json" && file.ends_with("index.json")) {
                scene.fails("image list file://~/store", &["store"]);
                scene.fails("image prune file://~/store", &["store"]);
                scene.fails("image import disk.raw file://~/store:b", &["store"]);
            }
            fs::write(scene.path(file), whole).unwrap();
        }
    }
    scene.ok("image verify --deep file://~/store:a");
}

/// A store whose index leads to `manifest`, whatever its bytes are.
fn store_of(scene: &Scene, manifest: &[u8]) {
    let _ = fs::remove_dir_all(scene.path("store"));
    fs::create_dir_all(scene.path("store/blobs/sha256")).unwrap();
    let digest = sha256(manifest);
    fs::write(scene.path("store/blobs/sha256").join(&digest), manifest).unwrap();
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "size": manifest.len(),
        "digest": format!("sha256:{digest}"),
        "annotations": {"org.opencontainers.image.ref.name": "a"},
    }]});
    fs::write(scene.path("store/index.json"), index.to_string()).unwrap();
    fs::write(scene.path("store/oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
}

#[test]
fn garbage_as_a_manifest_is_refused() {
    let scene = Scene::new();
    let mut manifests: Vec<_> = garbage().into_iter().map(|(_, bytes)| bytes).collect();
    let digest = format!("sha256:{}", "0".repeat(64));
    let media_type = "application/vnd.oci.image.config.v1+json";
    let blob = |size: Value, digest: &str| json!({"mediaType": media_type, "digest": digest, "size": size});
    let manifest =
        |config: Value, layers: Value| json!({"schemaVersion": 2, "config": config, "layers": layers});
    let good = blob(json!(2), &digest);
    let layer = |annotations: Value| {
        let mut layer = good.clone();
        layer["mediaType"] = json!("application/vnd.oci.image.layer.v1.tar");
        layer["annotations"] = annotations;
        layer
    };
    let hostile = [
        manifest(good.clone(), json!([])),
        manifest(good.clone(), json!({})),
        manifest(json!(null), json!([good])),
        manifest(good.clone(), json!(vec![good.clone(); 300])),
        manifest(good.clone(), json!([layer(json!({}))])),
        manifest(good.clone(), json!([blob(json!(-1), &digest)])),
        manifest(good.clone(), json!([blob(json!(1e300), &digest)])),
        manifest(good.clone(), json!([blob(json!(u64::MAX), &digest)])),
        manifest(good.clone(), json!([blob(json!(2), "sha256:../../../../etc/passwd")])),
        manifest(good.clone(), json!([blob(json!(2), "md5:00")])),
        manifest(good.clone(), json!([layer(json!({"dev.headstart.tree-size": "-5"}))])),
        manifest(good.clone(), json!([layer(json!({"dev.headstart.tree-size": u64::MAX.to_string()}))])),
        manifest(good.clone(), json!([layer(json!({"containerd.io/snapshot/overlaybd/blob-size": "9"}))])),
        json!({"schemaVersion": 1}),
        json!({"schemaVersion": 2, "manifests": []}),
        json!([[[[]]]]),
    ];
    manifests.extend(hostile.iter().map(|value| value.to_string().into_bytes()));
    manifests.push("[".repeat(100_000).into_bytes());
    for manifest in manifests {
        store_of(&scene, &manifest);
        let run = scene.run("image list file://~/store");
        assert!(run.status == Some(0) && !run.stdout.is_empty(), "{run}");
        for words in ["inspect", "verify", "verify --deep"] {
            let run = scene.run(&format!("image {words} file://~/store:a"));
            assert_eq!(run.status, Some(1), "{}\n{run}", String::from_utf8_lossy(&manifest));
        }
        scene.fails("image export file://~/store:a -o out", &[]);
        scene.fails("image flatten file://~/store:a file://~/other:a", &[]);
    }
}

/// A virtual size or a level of compression that no disk can have, in an image whose digests are all right.
#[test]
fn right_digests_of_wrong_things_are_refused() {
    let scene = Scene::new();
    DiskBuilder::create(scene.path("disk.raw"), 1 << 20).write(0, &noise(1, 5000));
    let made = scene.json("image import disk.raw file://~/made:a");
    let manifest = scene.manifest("made", &made["digest"]);
    for (pointer, value) in [
        ("/annotations/dev.headstart.virtual-size", u64::MAX.to_string()),
        ("/annotations/dev.headstart.virtual-size", (1u64 << 62).to_string()),
        ("/annotations/dev.headstart.virtual-size", "lots".to_owned()),
        ("/layers/0/annotations/dev.headstart.tree-root", "0".repeat(64)),
        ("/layers/0/annotations/dev.headstart.tree-digest", made["layer"].as_str().unwrap().to_owned()),
        ("/layers/0/digest", manifest["config"]["digest"].as_str().unwrap().to_owned()),
    ] {
        let mut changed = manifest.clone();
        *changed.pointer_mut(pointer).unwrap() = json!(value);
        store_of(&scene, changed.to_string().as_bytes());
        for name in scene.names("made/blobs/sha256") {
            let _ = fs::copy(
                scene.path("made/blobs/sha256").join(&name),
                scene.path("store/blobs/sha256").join(&name),
            );
        }
        let verified = scene.run("image verify --deep file://~/store:a");
        let exported = scene.run("image export file://~/store:a -o out");
        let flattened = scene.run("image flatten file://~/store:a file://~/store:flat");
        let diffed = scene.run("image diff file://~/store:a file://~/made:a");
        assert_eq!(verified.status, Some(1), "{pointer} = {value}\n{verified}");
        if pointer.contains("virtual-size") {
            for run in [exported, flattened, diffed] {
                assert_eq!(run.status, Some(1), "{pointer} = {value}\n{run}");
            }
        }
        assert!(!scene.path("out").exists() || fs::metadata(scene.path("out")).unwrap().len() == 1 << 20);
    }
}

/// Characters that a terminal would obey: the escape, an override of the direction, the beginning of a sequence in
/// eight bits.
const HOSTILE: &str = "x\u{1b}[2J\u{202e}\u{9b}y";

/// The same as it is printed.
const SHOWN: &str = r"x\u{1b}[2J\u{202e}\u{9b}y";

#[test]
fn texts_of_stores_files_and_arguments_control_no_terminal() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 4);
    scene.ok("image import disk.raw file://~/store:a");
    let mut index: Value = serde_json::from_slice(&scene.bytes("store/index.json")).unwrap();
    let tag = format!("{HOSTILE}\nforged");
    index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] = json!(tag);
    fs::write(scene.path("store/index.json"), index.to_string()).unwrap();
    assert_eq!(scene.json("image list file://~/store")["images"][0]["tag"], json!(tag));
    let digest = index["manifests"][0]["digest"].as_str().unwrap();
    let image = format!("file://~/store@{digest}");
    let listed = scene.ok("image list file://~/store").stdout;
    assert!(listed.contains(&format!(r"{SHOWN}\nforged")) && listed.lines().count() == 2, "{listed}");
    let exported = scene.ok(&format!("image export {image} -o {HOSTILE}.raw")).stdout;
    assert!(exported.contains(SHOWN), "{exported}");
    let runs = [
        scene.fails(&format!("layer inspect {HOSTILE}"), &[SHOWN]),
        scene.run(&format!("image inspect file://~/{HOSTILE}:a")),
        scene.is_wrong(&format!("image {HOSTILE}"), &[SHOWN]),
        scene.is_wrong(&format!("image inspect {HOSTILE}"), &[]),
        scene.run(&format!("trace export {HOSTILE} -o out")),
    ];
    let printed = runs.iter().map(|run| format!("{}{}", run.stdout, run.stderr)).chain([listed, exported]);
    for printed in printed {
        let is_obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!printed.is_empty() && !printed.contains(is_obeyed), "{printed:?}");
    }
}
