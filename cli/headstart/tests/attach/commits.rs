//! A disk is committed while it is served, by its process: the image has what was there at one moment.

use crate::attached::{Attached, TIMEOUT};
use crate::clones::{check, write};
use crate::disk::{assert_same, text};
use crate::images::{can_check_bytes, layered, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_testkit::process::{has_fuse, is_root};
use headstart_testkit::registry::{Registry, RegistryAccess};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;

/// Checks the bytes of an image's disk.
#[track_caller]
fn check_image(scene: &Scene, image: &str, expected: &[u8]) {
    fs::write(scene.path("expected.raw"), expected).unwrap();
    scene.ok(&format!("image export {image} -o image.raw"));
    assert_same(scene, "expected.raw", "image.raw");
    scene.ok(&format!("image verify --deep {image}"));
}

fn attach(image: &str) -> String {
    format!("file://~/store:{image} --writable ~/vm --nbd unix:~/a.sock")
}

#[test]
fn an_attached_disk_is_committed_and_goes_on() {
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let mut ours = scene.bytes("disk.raw");
    let source = Attached::start(&scene, &attach("v1"));
    write(&scene, &source.uri(), 1, 1 << 20, &mut ours);
    let made = scene.json("image commit --writable vm file://~/store:v2");
    assert_eq!((&made["layers"], &made["stacked"]), (&3.into(), &Value::Null));
    let first = ours.clone();
    write(&scene, &source.uri(), 2, 2 << 20, &mut ours);
    check_image(&scene, "file://~/store:v2", &first);
    // The layer is that of the directory when no process has it.
    let second = scene.json("image commit --writable vm file://~/store:v3");
    check(&scene, &source, &ours);
    // Other packings and bases are as they are without a process; another base is refused by the disk's.
    scene.ok("image commit --writable vm file://~/store:plain --codec none");
    check_image(&scene, "file://~/store:plain", &ours);
    scene.fails(
        "image commit --writable vm file://~/store:no --base file://~/store:base",
        &["vm", "based on"],
    );
    source.detach();
    let same = scene.json("image commit --writable vm file://~/store:v4");
    assert_eq!(same["digest"], second["digest"]);
}

/// An image has what a file system that this host has mounted had not written to the disk yet.
#[test]
fn what_this_host_has_mounted_is_frozen_for_a_commit_and_of_guests_the_report_says_what_to_do() {
    let scene = Scene::new();
    if !is_root() || !has_fuse() || !installed(&["mkfs.ext4", "debugfs", "mount", "umount"]) {
        return;
    }
    fs::File::create(scene.path("fs.raw")).unwrap().set_len(40 << 20).unwrap();
    tool(&scene, "mkfs.ext4", &["-q", "-F", "fs.raw"]);
    scene.ok("image import fs.raw file://~/store:v1");
    fs::write(scene.path("over"), "").unwrap();
    fs::create_dir(scene.path("mnt")).unwrap();
    let disk = Attached::start(&scene, "file://~/store:v1 --writable ~/vm --fuse ~/over");
    let commit = |tag: &str| scene.json(&format!("image commit --writable vm file://~/store:{tag}"));
    let unmounted = commit("unmounted");
    assert_eq!((&unmounted["moment"], &unmounted["not_frozen"]), (&"in_use".into(), &Value::Null));
    let said = scene.ok("image commit --writable vm file://~/store:said").stdout;
    assert!(said.contains("as after a loss of power") && said.contains("guest-fsfreeze-freeze"), "{said}");
    tool(&scene, "mount", &["-o", "loop", "over", "mnt"]);
    let content = text(7, 3_000_000);
    fs::write(scene.path("mnt/late"), &content).unwrap();
    assert_eq!(commit("mounted")["moment"], "frozen");
    let said = scene.ok("image commit --writable vm file://~/store:said").stdout;
    assert!(said.contains("whole") && !said.contains("loss of power"), "{said}");
    fs::write(scene.path("mnt/later"), "its user goes on").unwrap();
    tool(&scene, "umount", &["mnt"]);
    disk.detach();
    scene.ok("image export file://~/store:mounted -o image.raw");
    tool(&scene, "debugfs", &["-R", "dump /late found", "image.raw"]);
    assert!(fs::read(scene.path("found")).unwrap() == content);
    // Of a disk that is not attached there is nothing to say.
    assert_eq!(commit("detached")["moment"], Value::Null);
}

#[test]
fn an_attached_disk_is_committed_into_a_registry() {
    let Some(registry) = Registry::start(RegistryAccess::Open) else { return };
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let plain = format!("--plain-http {}", registry.host());
    let base = format!("oci://{}/vm:1", registry.host());
    scene.ok(&format!("image push file://~/store:v1 {base} {plain}"));
    let mut ours = scene.bytes("disk.raw");
    let attach = format!("{base} --writable ~/vm --nbd unix:~/a.sock --cache ~/cache {plain}");
    let source = Attached::start(&scene, &attach);
    write(&scene, &source.uri(), 1, 1 << 20, &mut ours);
    let target = format!("oci://{}/vm:2", registry.host());
    let made = scene.json(&format!("image commit --push --writable vm {target} {plain}"));
    assert_eq!(made["pushed"]["present_blobs"], 4, "{made}");
    let committed = ours.clone();
    write(&scene, &source.uri(), 2, 1 << 20, &mut ours);
    scene.ok(&format!("image pull {target} file://~/pulled:x {plain}"));
    check_image(&scene, "file://~/pulled:x", &committed);
    check(&scene, &source, &ours);
    source.detach();
}

#[test]
fn a_disk_goes_on_with_its_image_as_its_base() {
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let mut ours = scene.bytes("disk.raw");
    let source = Attached::start(&scene, &attach("v1"));
    for step in 0..3usize {
        write(&scene, &source.uri(), step as u64, (step + 1) << 20, &mut ours);
        let made = scene.json(&format!("image commit --stack --writable vm file://~/store:s{step}"));
        assert_eq!((&made["layers"], &made["stacked"]), (&(3 + step).into(), &true.into()), "{made}");
        check_image(&scene, &format!("file://~/store:s{step}"), &ours);
        check(&scene, &source, &ours);
        // Only the new step is in the next layer, and in the directory.
        let stored = made["layer_data_bytes"].as_u64().unwrap();
        assert!(stored < 400_000, "{made}");
        let taken = fs::read_dir(scene.path("vm")).unwrap().map(|it| it.unwrap().metadata().unwrap().len());
        assert!(taken.sum::<u64>() < 400_000);
    }
    // The bases that the disk had are no longer needed; the one that it has is held.
    for tag in ["s0", "s1"] {
        scene.ok(&format!("image remove file://~/store:{tag}"));
    }
    scene.ok("image prune file://~/store --older-than 0s");
    check(&scene, &source, &ours);
    write(&scene, &source.uri(), 9, 9 << 20, &mut ours);
    // A process that dies leaves a directory that goes on with the new image.
    tool(&scene, "nbdsh", &["-u", &source.uri(), "-c", "h.flush()"]);
    source.detach();
    scene.fails("attach file://~/store:base --writable vm", &["is based on"]);
    // Without a process, the same is done by the command itself.
    let held = scene.json("lease list file://~/store");
    assert!(held.to_string().contains(scene.path("vm").to_str().unwrap()), "{held}");
    let digest = headstart_lsmt::writable::WritableDisk::inspect(scene.path("vm")).unwrap().parent;
    let base = format!("file://~/store@{digest}");
    let made = scene.json(&format!("image commit --stack --writable vm --base {base} file://~/store:last"));
    assert_eq!((&made["layers"], &made["stacked"]), (&6.into(), &true.into()));
    check_image(&scene, "file://~/store:last", &ours);
    let again = Attached::start(&scene, &attach("last"));
    check(&scene, &again, &ours);
    write(&scene, &again.uri(), 4, 4 << 20, &mut ours);
    check(&scene, &again, &ours);
    again.detach();
}

/// Waits until a layer is sealed ahead in the directory of the disk, and has more than so many bytes.
#[track_caller]
fn wait_until_sealed(scene: &Scene, bytes: u64) {
    let is_there = || {
        let files = fs::read_dir(scene.path("vm")).unwrap().flatten();
        let found = files.filter(|file| file.file_name().to_string_lossy().starts_with("sealed-ahead."));
        found.filter_map(|file| Some(file.metadata().ok()?.len())).any(|len| len > bytes)
    };
    let until = std::time::Instant::now() + TIMEOUT;
    while !is_there() {
        assert!(std::time::Instant::now() < until, "nothing is sealed");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_layer_that_was_sealed_ahead_is_the_disk() {
    let scene = layered();
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let mut ours = scene.bytes("disk.raw");
    let ahead = format!("{} --seal-ahead", attach("v1"));
    let mut source = Attached::start(&scene, &ahead);
    for step in 0..2usize {
        // Enough that more is in the file than packers hold back.
        for part in 0..12usize {
            write(&scene, &source.uri(), (20 * step + part) as u64, (part << 20) + (step << 19), &mut ours);
        }
        wait_until_sealed(&scene, 500_000);
        // A little of it is written over, and a little is new.
        let place = (step << 19) + 8192;
        ours[place..place + 4096].fill(7);
        let over = format!("h.pwrite(b'\\x07' * 4096, {place}); h.flush()");
        tool(&scene, "nbdsh", &["-u", &source.uri(), "-c", &over]);
        write(&scene, &source.uri(), 30 + step as u64, 13 << 20, &mut ours);
        // One of another form is made from the beginning, and has no waste.
        let plain = scene.json("image commit --writable vm file://~/store:plain --codec none");
        let made = scene.json(&format!("image commit --stack --writable vm file://~/store:s{step}"));
        let data = |made: &Value| made["layer_data_bytes"].as_u64().unwrap();
        assert_eq!(data(&made), data(&plain) + 4096, "{made} {plain}");
        check_image(&scene, "file://~/store:plain", &ours);
        check_image(&scene, &format!("file://~/store:s{step}"), &ours);
        check(&scene, &source, &ours);
    }
    // After one that is not stacked, sealing begins from the start.
    write(&scene, &source.uri(), 40, 1 << 20, &mut ours);
    scene.ok("image commit --writable vm file://~/store:zstd");
    check_image(&scene, "file://~/store:zstd", &ours);
    // A process that dies leaves a layer that is of no use; the next one removes it.
    for part in 0..12usize {
        write(&scene, &source.uri(), 50 + part as u64, part << 20, &mut ours);
    }
    wait_until_sealed(&scene, 500_000);
    source.process().signal(Signal::KILL);
    source.process().end(TIMEOUT);
    drop(source);
    let leftovers = || {
        let files = fs::read_dir(scene.path("vm")).unwrap().flatten();
        files.filter(|file| file.file_name().to_string_lossy().starts_with("sealed-ahead.")).count()
    };
    assert_eq!(leftovers(), 1);
    let source = Attached::start(&scene, &attach("s1"));
    assert_eq!(leftovers(), 0);
    check(&scene, &source, &ours);
    scene.ok("image commit --writable vm file://~/store:last");
    check_image(&scene, "file://~/store:last", &ours);
    source.detach();
}
