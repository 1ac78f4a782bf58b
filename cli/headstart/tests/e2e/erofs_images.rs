//! Images that are made of images with an EROFS, and disks of single layers, which have one each.

use crate::convert::{image, layers, push, tar};
use crate::scene::{Scene, run_tool};
use headstart_block::BlockDevice;
use headstart_block::file_system::EROFS_NUMBER;
use headstart_image::open_image::OpenImage;
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use headstart_testkit::data_sets;
use headstart_testkit::faults::FaultProxy;
use headstart_testkit::process::installed;
use headstart_testkit::registry::{Registry, RegistryAccess};
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

const SIZE: u64 = 64 << 20;
/// The superblock of an EROFS, and of an ext4, on their disks.
const SUPERBLOCK: u64 = 1024;

/// `file://~/store:app`, a container's image as an EROFS.
fn scene() -> Scene {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    scene.ok(&format!("image convert file://~/layout:app file://~/store:app --fs erofs --size {SIZE}"));
    scene
}

/// The file system of an image as `image inspect` says it.
fn file_system(scene: &Scene, tag: &str) -> Value {
    scene.json(&format!("image inspect file://~/store:{tag}"))["file_system"].clone()
}

/// Makes the image `next` of a disk on the image `base`, to which `bytes` are written at `offset`.
fn commit(scene: &Scene, base: &str, next: &str, (bytes, offset): (&[u8], u64)) {
    let reference = format!("file://{}", scene.path(&format!("store:{base}")).display()).parse().unwrap();
    let open = OpenImage::open(&reference).unwrap();
    let new = NewDisk { size: SIZE, parent: open.digest.to_string(), uuid: Uuid::from_u128(7) };
    let below: Arc<dyn BlockDevice> = Arc::new(open.into_disk());
    let disk = WritableDisk::create(scene.path(next), Some(below), &new).unwrap();
    disk.write_at(bytes, offset).unwrap();
    disk.flush().unwrap();
    drop(disk);
    scene.wait_until_unlocked(next);
    let words =
        format!("image commit file://~/store:{next} --writable ~/{next} --base file://~/store:{base}");
    scene.ok(&words);
}

#[test]
fn an_image_laid_out_again_says_that_it_has_an_erofs() {
    let scene = scene();
    let digest = scene.json("image inspect file://~/store:app")["digest"].as_str().unwrap().to_owned();
    let places: Vec<i64> = (0..12).map(|page| page * 4096).collect();
    data_sets::boots(&scene, "set", (&digest, SIZE), 0, (&places, 1000));
    scene.ok("train --traces set -o set.plans");
    let optimize = "image optimize file://~/store:app --plans set.plans";
    for (tag, words) in [("fast", ""), ("whole", "--one-layer")] {
        scene.ok(&format!("{optimize} file://~/store:{tag} {words}"));
        assert_eq!(file_system(&scene, tag), "erofs", "{tag}");
    }
    scene.ok("image flatten file://~/store:app file://~/store:flat");
    assert_eq!(file_system(&scene, "flat"), "erofs");
    // The files are the same.
    for tag in ["fast", "whole", "flat"] {
        let diff = scene.json(&format!("image diff file://~/store:app file://~/store:{tag}"));
        assert_eq!(diff["ranges"], json!([]), "{tag}: {diff}");
    }
}

#[test]
fn an_image_committed_on_an_erofs_says_what_is_on_the_disk_then() {
    let scene = scene();
    commit(&scene, "app", "beside", (&[7; 4096], SIZE - 4096));
    assert_eq!(file_system(&scene, "beside"), "erofs");
    let mut ext4 = [0; 1024];
    ext4[56..58].copy_from_slice(&0xef53_u16.to_le_bytes());
    commit(&scene, "beside", "over", (&ext4, SUPERBLOCK));
    assert_eq!(file_system(&scene, "over"), Value::Null);
    let mut erofs = [0; 1024];
    erofs[..4].copy_from_slice(&EROFS_NUMBER.to_le_bytes());
    commit(&scene, "over", "again", (&erofs, SUPERBLOCK));
    assert_eq!(file_system(&scene, "again"), "erofs");
}

#[test]
fn each_layer_of_an_image_becomes_a_disk_once() {
    let scene = Scene::new();
    let tars = layers(&scene);
    image(&scene, "layout", &tars);
    let words = format!("image layers file://~/layout:app file://~/disks --size {SIZE}");
    let made = scene.json(&words);
    let found = made["layers"].as_array().unwrap();
    let hex: Vec<_> = tars.iter().map(|tar| crate::scene::sha256(tar)).collect();
    for (layer, hex) in found.iter().zip(&hex) {
        assert_eq!(layer["file"], format!("sha256/{}/{hex}.erofs", &hex[..2]));
        assert_eq!(layer["known"], false);
        let image = layer["image"].as_str().unwrap();
        assert!(image.ends_with(&format!(":layer-sha256-{hex}")), "{image}");
    }
    assert_eq!(found.len(), tars.len());
    scene.ok("image prune --older-than 0s file://~/disks");
    let listed = scene.ok("image list file://~/disks").stdout;
    for layer in found {
        let image = layer["image"].as_str().unwrap();
        scene.ok(&format!("image verify --deep {image}"));
        assert!(listed.contains(image.rsplit_once(':').unwrap().1), "{listed}");
    }
    // Another image with the second layer shares its disk, whatever is below.
    image(&scene, "other", &tars[1..]);
    let other = scene.json(&format!("image layers file://~/other:app file://~/disks --size {SIZE}"));
    assert_eq!(
        (&other["layers"][0]["known"], &other["layers"][0]["digest"]),
        (&json!(true), &found[1]["digest"])
    );
    let said = scene.ok(&words).stdout;
    assert_eq!(said.lines().count(), tars.len(), "{said}");
    if !installed(&["fsck.erofs", "dump.erofs"]) {
        return;
    }
    scene.ok(&format!("image export {} -o top.raw", found[1]["image"].as_str().unwrap()));
    run_tool("fsck.erofs", &["top.raw"], &scene.path("."));
    // The mark for overlayfs of the file that the layer removes.
    let mark = run_tool("dump.erofs", &["--path=/etc/gone", "top.raw"], &scene.path("."));
    let mark = String::from_utf8_lossy(&mark.stdout).into_owned();
    assert!(mark.contains("char dev"), "{mark}");
}

#[test]
fn the_image_is_opened_once_for_all_of_its_layers() {
    if !installed(&["skopeo"]) {
        return;
    }
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let scene = Scene::new();
    let tars = layers(&scene);
    image(&scene, "layout", &tars);
    push(&scene, "layout", &format!("{}/app:1", registry.host()));
    let proxy = FaultProxy::start(registry.address());
    let host = proxy.addr().to_string();
    for to in ["file://~/disks".to_owned(), format!("oci://{host}/layers")] {
        proxy.clear_log();
        let words = format!("image layers oci://{host}/app:1 {to} --size {SIZE} --plain-http {host}");
        assert_eq!(scene.json(&words)["layers"].as_array().unwrap().len(), tars.len());
        let log = proxy.log().to("/app/");
        let read = |part| log.to(part).only(|request| request.asked.method == "GET").len();
        assert_eq!(read("/manifests/"), 1, "{log}");
        // A config and the layers.
        assert_eq!(read("/blobs/"), 1 + tars.len(), "{log}");
    }
}

#[test]
fn layers_that_cannot_be_disks_are_refused() {
    let scene = Scene::new();
    image(&scene, "layout", &layers(&scene));
    scene.is_wrong("image layers file://~/layout:app file://~/disks --size 100", &["is not possible"]);
    scene.fails("image layers file://~/layout:nothing file://~/disks", &["nothing"]);
    // As for `image convert`.
    scene.is_wrong("image layers app:1 file://~/disks", &["write it as oci://docker.io/library/app:1"]);
    // One that overlayfs cannot have keeps the others from nothing.
    let all_gone = tar(&scene, "gone", &[(".wh..wh..opq", "")]);
    image(&scene, "other", &[layers(&scene)[0].clone(), all_gone]);
    let run = scene.run(&format!("image layers file://~/other:app file://~/disks --size {SIZE}"));
    assert_eq!((run.status, run.stdout.lines().count()), (Some(1), 1), "{}", run.stdout);
    assert!(run.stderr.contains("removes all files of the layers below"), "{}", run.stderr);
}
