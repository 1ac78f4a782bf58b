//! Container images become images of disks: from layouts, archives and registries, in each form of publication.

use crate::scene::{Scene, run_tool, sha256};
use flate2::Compression;
use flate2::write::GzEncoder;
use headstart_testkit::faults::{Fault, FaultProxy, FaultRule, Log};
use headstart_testkit::process::installed;
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::time::Duration;

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

/// Writes a blob into the layout `layout`, and returns its descriptor.
fn blob(scene: &Scene, layout: &str, media_type: &str, bytes: &[u8]) -> Value {
    let dir = scene.path(layout).join("blobs/sha256");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(sha256(bytes)), bytes).unwrap();
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

/// The tar of a directory, which is made with the files `files`.
pub(crate) fn tar(scene: &Scene, name: &str, files: &[(&str, &str)]) -> Vec<u8> {
    let root = scene.path(name);
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let fixed = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--format=pax"];
    let root = root.display().to_string();
    run_tool(
        "tar",
        &[&fixed[..], &["--pax-option=delete=atime,delete=ctime", "-C", &root, "-cf", "-", "."]].concat(),
        &scene.path("."),
    )
    .stdout
}

/// Makes the image `app` of `tars` in the layout `layout`, for Linux on amd64.
pub(crate) fn image(scene: &Scene, layout: &str, tars: &[Vec<u8>]) -> Value {
    let config = json!({
        "os": "linux", "architecture": "amd64", "config": { "Cmd": ["/bin/app"] },
        "rootfs": { "type": "layers", "diff_ids": tars.iter().map(|tar| digest(tar)).collect::<Vec<_>>() },
    });
    let config =
        blob(scene, layout, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let layer = |tar: &Vec<u8>| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(tar).unwrap();
        blob(scene, layout, "application/vnd.oci.image.layer.v1.tar+gzip", &gzip.finish().unwrap())
    };
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media_type, "config": config,
        "layers": tars.iter().map(layer).collect::<Vec<_>>(),
    });
    let manifest = blob(scene, layout, media_type, manifest.to_string().as_bytes());
    let mut entry = manifest.clone();
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "app" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] });
    fs::write(scene.path(layout).join("index.json"), index.to_string()).unwrap();
    fs::write(scene.path(layout).join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    manifest
}

/// The layers of an image: a base, and a layer on top that removes a file and adds one.
pub(crate) fn layers(scene: &Scene) -> Vec<Vec<u8>> {
    let base =
        tar(scene, "base", &[("etc/name", "base\n"), ("etc/gone", "x"), ("srv/data", &"data ".repeat(9000))]);
    let top = tar(scene, "top", &[("etc/.wh.gone", ""), ("etc/motd", "hello\n")]);
    vec![base, top]
}

/// The content of a file of a disk, as the tools of ext4 read it.
fn file(scene: &Scene, disk: &str, path: &str) -> String {
    let output = run_tool("debugfs", &["-R", &format!("cat {path}"), disk], &scene.path("."));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks the disk of a converted image.
fn check(scene: &Scene, image: &str) {
    scene.ok(&format!("image verify --deep {image}"));
    if !installed(&["debugfs", "e2fsck"]) {
        return;
    }
    scene.ok(&format!("image export {image} -o back.raw"));
    run_tool("e2fsck", &["-fn", "back.raw"], &scene.path("."));
    assert_eq!(file(scene, "back.raw", "/etc/name"), "base\n");
    assert_eq!(file(scene, "back.raw", "/etc/motd"), "hello\n");
    assert_eq!(file(scene, "back.raw", "/etc/gone"), "");
    fs::remove_file(scene.path("back.raw")).unwrap();
}

#[test]
fn a_container_image_becomes_a_disk_and_is_not_converted_twice() {
    let scene = Scene::new();
    let original = image(&scene, "layout", &layers(&scene));
    let made = scene.json("image convert file://~/layout:app file://~/store:app --size 256M");
    assert_eq!((&made["converted_from"], &made["platform"]), (&original["digest"], &"linux/amd64".into()));
    assert_eq!(made["layers"][1]["counts"]["whiteouts"], 1);
    check(&scene, "file://~/store:app");

    let again = scene.json("image convert file://~/layout:app file://~/store:again --size 256M --threads 1");
    assert_eq!((&again["digest"], &again["added_bytes"]), (&made["digest"], &0.into()));
    assert_eq!((&again["layers"][0]["known"], &again["layers"][1]["known"]), (&true.into(), &true.into()));
    // Other options give other layers.
    let other = scene.json("image convert file://~/layout:app file://~/store:lz4 --size 256M --codec lz4");
    assert_eq!(other["layers"][0]["known"], false);
    // The original is as it was.
    let source = scene.bytes("layout/index.json");
    assert!(String::from_utf8(source).unwrap().contains(original["digest"].as_str().unwrap()));
    scene.fails("image convert file://~/store:app file://~/store:twice", &["converted already"]);
    scene.fails("image convert file://~/layout:none file://~/store:none", &["layout:none"]);
}

#[test]
fn a_container_image_becomes_an_erofs() {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    let convert = |words: &str| scene.json(&format!("image convert file://~/layout:app {words} --size 256M"));
    convert("file://~/store:ext4");
    let made = convert("file://~/store:app --fs erofs");
    // Layers of another file system are not taken for these.
    assert_eq!(made["layers"][0]["known"], false);
    let again = convert("file://~/store:again --fs erofs --threads 1");
    assert_eq!((&again["digest"], &again["added_bytes"]), (&made["digest"], &0.into()));
    let manifest = scene.manifest("store", &made["digest"]);
    let kind = &manifest["layers"][0]["annotations"]["containerd.io/snapshot/overlaybd/blob-fs-type"];
    assert_eq!(kind, "erofs");
    for (tag, kind) in [("app", "erofs"), ("ext4", "ext4")] {
        let inspected = scene.json(&format!("image inspect file://~/store:{tag}"));
        assert_eq!(inspected["file_system"], kind);
    }
    scene.is_wrong("image convert file://~/layout:app file://~/store:x --fs xfs", &["choose ext4 or erofs"]);
    scene.ok("image verify --deep file://~/store:app");
    if !installed(&["fsck.erofs", "dump.erofs"]) {
        return;
    }
    scene.ok("image export file://~/store:app -o back.raw");
    run_tool("fsck.erofs", &["--extract", "back.raw"], &scene.path("."));
    let dumped = run_tool("dump.erofs", &["-s", "back.raw"], &scene.path("."));
    let dumped = String::from_utf8(dumped.stdout).unwrap();
    assert!(dumped.contains("inode count"), "{dumped}");
}

#[test]
fn an_archive_gives_the_same_image_as_its_layout() {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    run_tool("tar", &["-C", "layout", "-cf", "app.tar", "."], &scene.path("."));
    let made = scene.json("image convert file://~/layout:app file://~/store:app --size 256M");
    let archived = scene.json("image convert oci-archive:~/app.tar file://~/other:app --size 256M");
    assert_eq!(archived["digest"], made["digest"]);
    for form in ["--referrer", "--index"] {
        scene
            .is_wrong(&format!("image convert oci-archive:~/app.tar {form}"), &["archive", "name the image"]);
    }
}

#[test]
fn an_image_is_published_beside_its_original_as_a_referrer_and_in_an_index() {
    let scene = Scene::new();
    let original = image(&scene, "layout", &layers(&scene));
    let referrer = scene.json("image convert file://~/layout:app --referrer --size 256M");
    let named = referrer["image"].as_str().unwrap().to_owned();
    assert!(named.contains("@sha256:"), "{named}");
    check(&scene, &named);
    let manifest = scene.manifest("layout", &referrer["digest"]);
    assert_eq!(manifest["subject"]["digest"], original["digest"]);
    // The tag still names the original, and leads from there to its disk.
    scene.fails(
        &format!("image inspect file://~/layout@{}", original["digest"].as_str().unwrap()),
        &["convert"],
    );
    let inspected = scene.json("image inspect file://~/layout:app");
    assert_eq!(inspected["digest"], referrer["digest"]);
    assert_eq!(inspected["converted_from"], original["digest"]);
    let listed = scene.json("image list file://~/layout");
    let entry = listed["images"].as_array().unwrap().iter().find(|image| image["tag"] == "app").unwrap();
    assert_eq!((&entry["digest"], &entry["beside"]), (&referrer["digest"], &original["digest"]), "{listed}");

    let index = scene.json("image convert file://~/layout:app --index --size 256M");
    assert_eq!(index["added_bytes"], 0);
    check(&scene, "file://~/layout:app");
    // The original can still be converted by its name: into the same layers, in place of the older sibling.
    let again = scene.json("image convert file://~/layout:app --index --size 256M --codec lz4");
    assert_eq!(again["converted_from"], original["digest"]);
    assert_eq!(scene.json("image inspect file://~/layout:app")["digest"], again["digest"]);
    scene.is_wrong("image convert file://~/layout:app file://~/store:app --index", &["its own store"]);
    scene.is_wrong("image convert file://~/layout:app", &["TARGET"]);
}

/// Makes the manifest in a layout something else.
fn damage(scene: &Scene, layout: &str, digest: &Value) {
    let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
    fs::write(scene.path(layout).join("blobs/sha256").join(hex), "{}").unwrap();
}

#[test]
fn a_damaged_sibling_hides_no_other_and_is_named_where_there_is_no_other() {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    let convert = |words: &str| {
        scene.json(&format!("image convert file://~/layout:app --referrer --size 256M {words}"))["digest"]
            .clone()
    };
    // One that can be written to and one that is only read stand beside each other.
    let (older, newer) = (convert(""), convert("--fs erofs"));
    let inspected = || scene.json("image inspect file://~/layout:app")["digest"].clone();
    assert_eq!(inspected(), newer);
    damage(&scene, "layout", &newer);
    assert_eq!(inspected(), older);
    damage(&scene, "layout", &older);
    let digest = newer.as_str().unwrap().strip_prefix("sha256:").unwrap();
    scene.fails("image inspect file://~/layout:app", &["layout", digest]);
}

#[test]
fn in_turbo_mode_the_data_stays_in_the_layers_of_the_original() {
    let scene = Scene::new();
    let original = image(&scene, "layout", &layers(&scene));
    run_tool("tar", &["-C", "layout", "-cf", "app.tar", "."], &scene.path("."));
    let made = scene.json("image convert file://~/layout:app file://~/store:app --mode turbo --size 256M");
    assert_eq!((&made["layers"][0]["turbo"], &made["layers"][1]["turbo"]), (&true.into(), &true.into()));
    check(&scene, "file://~/store:app");
    let again = scene.json("image convert file://~/layout:app file://~/store:b --mode turbo --size 256M");
    assert_eq!((&again["digest"], &again["added_bytes"]), (&made["digest"], &0.into()));
    // The layers are the original's, and stay with the image.
    scene.ok("image prune file://~/store --older-than 0s");
    check(&scene, "file://~/store:b");
    let data = made["layers"][0]["converted_from"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let blobs = |layout: &str| scene.bytes(&format!("{layout}/blobs/sha256/{data}"));
    assert_eq!(blobs("store"), blobs("layout"));
    let inspected = scene.json("image inspect file://~/store:app");
    assert_eq!(inspected["layers"].as_array().unwrap().len(), 2);

    let referrer = scene.json("image convert file://~/layout:app --referrer --mode turbo --size 256M");
    check(&scene, referrer["image"].as_str().unwrap());
    let manifest = scene.manifest("layout", &referrer["digest"]);
    assert_eq!(manifest["artifactType"], "application/vnd.containerd.overlaybd.turbo.v1+json");
    assert_eq!(manifest["subject"]["digest"], original["digest"]);
    // One of each kind can belong to an image; an index lists the last one.
    let native = scene.json("image convert file://~/layout:app --referrer --size 256M");
    check(&scene, native["image"].as_str().unwrap());
    check(&scene, referrer["image"].as_str().unwrap());
    scene.ok("image convert file://~/layout:app --index --size 256M");
    let index = scene.json("image convert file://~/layout:app --index --mode turbo --size 256M");
    check(&scene, "file://~/layout:app");
    assert_eq!(scene.json("image inspect file://~/layout:app")["digest"], index["digest"]);

    let from = "oci-archive:~/app.tar";
    let archived = scene.json(&format!("image convert {from} file://~/other:app --mode turbo --size 256M"));
    check(&scene, "file://~/other:app");
    assert_eq!(archived["digest"], made["digest"]);
    scene.is_wrong(
        "image convert file://~/layout:app file://~/store:c --mode turbo --codec none",
        &["always compressed"],
    );
    scene.is_wrong("image convert file://~/layout:app file://~/store:c --mode fast", &["native or turbo"]);
}

/// Copies the image `app` of a layout into a registry.
pub(crate) fn push(scene: &Scene, layout: &str, name: &str) {
    let (from, to) = (format!("oci:{layout}:app"), format!("docker://{name}"));
    let fixed = ["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"];
    run_tool("skopeo", &[&fixed[..], &[&from, &to]].concat(), &scene.path("."));
}

/// Pushes two images, `one:app` and `two:app`, with the same lowest layer.
fn push_two(scene: &Scene, host: &str) {
    let layers = layers(scene);
    image(scene, "layout", &layers);
    let other = tar(scene, "other-top", &[("etc/motd", "other\n")]);
    image(scene, "second", &[layers[0].clone(), other]);
    for (layout, name) in [("layout", "one"), ("second", "two")] {
        push(scene, layout, &format!("{host}/{name}:app"));
    }
}

#[test]
fn images_of_a_registry_share_the_layers_that_were_converted_before() {
    if !installed(&["skopeo"]) {
        return;
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let (scene, host) = (Scene::new(), registry.host());
    push_two(&scene, &host);
    let convert = |name: &str, rest: &str| {
        scene.json(&format!("image convert oci://{host}/{name}:app {rest} --size 256M --plain-http {host}"))
    };
    let shared = format!("--layer-store oci://{host}/converted");
    let one = convert("one", &format!("oci://{host}/one:disk {shared}"));
    assert_eq!(one["layers"][0]["known"], false);
    scene.ok(&format!("image verify oci://{host}/one:disk --plain-http {host}"));
    let two = convert("two", &format!("oci://{host}/two:disk {shared}"));
    assert_eq!((&two["layers"][0]["known"], &two["layers"][1]["known"]), (&true.into(), &false.into()));
    assert_eq!(two["layers"][0]["digest"], one["layers"][0]["digest"]);
    scene.ok(&format!("image verify oci://{host}/two:disk --plain-http {host}"));

    // Beside the original, whose repository keeps the layers itself.
    let referrer = convert("one", "--referrer");
    assert_eq!(referrer["layers"][0]["known"], false, "the repository has the blob, but no record of it");
    let again = convert("one", "--referrer");
    assert_eq!((&again["layers"][0]["known"], &again["digest"]), (&true.into(), &referrer["digest"]));
    convert("one", "--index");
    let found = scene.json(&format!("image inspect oci://{host}/one:app --plain-http {host}"));
    assert_eq!(found["layers"].as_array().unwrap().len(), 2);
}

#[test]
fn the_tag_of_a_converted_image_leads_to_its_disk_and_its_digest_to_itself() {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    let check_at = |place: &str, options: &str| {
        scene.fails(&format!("image inspect {place}:app {options}"), &["image convert"]);
        let turbo =
            scene.json(&format!("image convert {place}:app --referrer --mode turbo --size 256M {options}"));
        let inspect = |selector: &str| scene.json(&format!("image inspect {place}{selector} {options}"));
        assert_eq!(inspect(":app")["digest"], turbo["digest"]);
        // One with data of its own goes first.
        let made = scene.json(&format!("image convert {place}:app --referrer --size 256M {options}"));
        assert_eq!(inspect(":app")["digest"], made["digest"]);
        scene.ok(&format!("image verify {place}:app {options}"));
        let original = made["converted_from"].as_str().unwrap();
        scene.fails(&format!("image inspect {place}@{original} {options}"), &["image convert"]);
    };
    check_at("file://~/layout", "");
    if !installed(&["skopeo"]) {
        return;
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    image(&scene, "second", &layers(&scene));
    let host = registry.host();
    push(&scene, "second", &format!("{host}/app:app"));
    check_at(&format!("oci://{host}/app"), &format!("--plain-http {host}"));
}

#[test]
fn turbo_images_of_a_registry_take_their_data_along() {
    if !installed(&["skopeo"]) {
        return;
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let (scene, host) = (Scene::new(), registry.host());
    push_two(&scene, &host);
    let convert = |name: &str, rest: &str| {
        let turbo = format!("--mode turbo --size 256M --plain-http {host}");
        scene.json(&format!("image convert oci://{host}/{name}:app {rest} {turbo}"))
    };
    let verified = |name: &str| {
        scene.ok(&format!("image verify oci://{host}/{name} --plain-http {host}"));
        scene.ok(&format!("image pull oci://{host}/{name} file://~/pulled:app --plain-http {host}"));
        scene.ok("image verify --deep file://~/pulled:app");
    };
    // Beside the original, and in another repository, to which the layers are copied.
    let beside = convert("one", &format!("oci://{host}/one:turbo"));
    check(&scene, &{
        verified("one:turbo");
        "file://~/pulled:app".to_owned()
    });
    assert!(beside["stored_bytes"].as_u64().unwrap() < 24 << 10, "{beside}");
    let shared = format!("--layer-store oci://{host}/converted");
    let elsewhere = convert("one", &format!("oci://{host}/apart:turbo {shared}"));
    assert_eq!(elsewhere["digest"], beside["digest"]);
    verified("apart:turbo");
    // A base that another image brought: known, and its data comes along.
    let two = convert("two", &format!("oci://{host}/more:turbo {shared}"));
    assert_eq!((&two["layers"][0]["known"], &two["layers"][1]["known"]), (&true.into(), &false.into()));
    verified("more:turbo");
    convert("one", "--referrer");
    convert("one", "--index");
    verified("one:app");
}

/// The most requests of the conversion of a layer of one file, on a base of one layer that is converted already.
const MOST_REQUESTS: usize = 46;
/// The most of them that wait for each other.
const MOST_IN_SEQUENCE: usize = 22;

/// Checks the order of requests that others see: blobs, then the manifests that name them, then the tag.
fn check_order(log: &Log, tag: &str) {
    let written = |part: &str| log.to(part).only(|request| request.asked.method == "PUT");
    let (blobs, manifests, tags) = (written("/blobs/"), written("/manifests/"), written(tag));
    let end = |log: &Log| log.iter().filter_map(|request| request.finished).max();
    let start = |log: &Log| log.iter().map(|request| request.started).min();
    assert!(blobs.len() >= 3 && end(&blobs) <= start(&manifests), "{log}");
    let (image, trees) = (&manifests[0], log.to("/manifests/sha256-").only(|r| r.asked.method == "GET"));
    assert!(image.asked.path.contains("sha256:") && !trees.is_empty(), "{log}");
    assert!(tags.len() == 1 && image.finished <= start(&tags), "{log}");
}

#[test]
fn a_small_layer_on_a_base_in_a_registry_takes_few_round_trips() {
    if !installed(&["skopeo"]) {
        return;
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let (scene, direct) = (Scene::new(), registry.host());
    let layers = layers(&scene);
    image(&scene, "layout", &layers[..1]);
    image(&scene, "second", &layers);
    push(&scene, "layout", &format!("{direct}/app:base"));
    push(&scene, "second", &format!("{direct}/app:top"));
    let convert = |host: &str, tag: &str| {
        let (from, to) = (format!("oci://{host}/app:{tag}"), format!("oci://{host}/app:{tag}-disk"));
        scene.json(&format!("image convert {from} {to} --size 256M --plain-http {host}"))
    };
    convert(&direct, "base");
    let proxy = FaultProxy::start(registry.address());
    // Longer than requests that are made at once are apart.
    proxy.add(FaultRule::new(Fault::Late(Duration::from_millis(100))));
    let made = convert(&proxy.addr().to_string(), "top");
    let log = proxy.log();
    assert_eq!((&made["layers"][0]["known"], &made["layers"][1]["known"]), (&true.into(), &false.into()));
    assert!(made["added_bytes"].as_u64().unwrap() <= 16 << 10, "{made}");
    assert!(log.sent() <= 1 << 20 && log.sent_again() <= 64 << 10, "{log}");
    assert!(log.len() <= MOST_REQUESTS, "{} requests:\n{log}", log.len());
    assert!(log.in_sequence() <= MOST_IN_SEQUENCE, "{} in sequence:\n{log}", log.in_sequence());
    check_order(&log, "/manifests/top-disk");
    scene.ok(&format!("image verify oci://{direct}/app:top-disk --plain-http {direct}"));
    // The next conversion finds the new layer, too.
    let again = convert(&direct, "top");
    assert_eq!((&again["added_bytes"], &again["digest"]), (&0.into(), &made["digest"]));
}
