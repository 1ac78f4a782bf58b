//! No space left: the store, the older file and the writable layer are unchanged, and the error says so.

use crate::disk::{DiskBuilder, mixed_disk, noise};
use crate::scene::Scene;
use crate::tools::{self, SmallDisk, installed};
use headstart_block::BlockDevice;
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use std::fs;
use uuid::Uuid;

const SAID: [&str; 2] = ["No space left on device", "free space there"];

/// A scene whose `small` is a disk of 8 MiB with a store in it, and `disk.raw` has 12 MB that do not compress.
fn cramped() -> Option<(Scene, SmallDisk)> {
    let small = SmallDisk::mount(8 << 20)?;
    let scene = Scene::new();
    std::os::unix::fs::symlink(small.path(), scene.path("small")).unwrap();
    mixed_disk(&scene, "tiny.raw", 4);
    DiskBuilder::create(scene.path("disk.raw"), 64 << 20).write(1 << 20, &noise(1, 12_000_000));
    scene.ok("image import tiny.raw file://~/small/store:tiny");
    Some((scene, small))
}

#[test]
fn an_import_that_does_not_fit() {
    let Some((scene, _small)) = cramped() else { return };
    let before = scene.fingerprint("small");
    for more in ["", "--base file://~/small/store:tiny", "--codec lz4 --threads 2"] {
        scene.fails(&format!("image import disk.raw file://~/small/store:big {more}"), &SAID);
        assert_eq!(scene.fingerprint("small"), before, "{more}");
    }
    assert_eq!(scene.names("small/store/.headstart/staging"), [""; 0]);
    scene.ok("image verify --deep file://~/small/store:tiny");
    // The base is in another store, and its blobs do not fit either.
    scene.ok("image import disk.raw file://~/store:big");
    let import = "image import disk.raw file://~/small/store:big --base file://~/store:big";
    scene.fails(import, &SAID);
    scene.fails("image flatten file://~/store:big file://~/small/store:big", &SAID);
    assert_eq!(scene.fingerprint("small"), before);
    // A smaller image still works.
    scene.ok("image import tiny.raw file://~/small/store:again --codec lz4");
    scene.ok("image verify --deep file://~/small/store:again");
}

#[test]
fn a_conversion_that_does_not_fit() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let Some((scene, _small)) = cramped() else { return };
    tools::run(&scene, "qemu-img", "convert -O vhdx disk.raw disk.vhdx");
    let before = scene.fingerprint("small");
    scene.fails("image import disk.vhdx file://~/small/store:big", &["No space left", "free space there"]);
    assert_eq!(scene.fingerprint("small"), before);
}

#[test]
fn a_commit_that_does_not_fit() {
    let Some((scene, _small)) = cramped() else { return };
    let new = NewDisk { size: 64 << 20, parent: String::new(), uuid: Uuid::from_u128(1) };
    let written = WritableDisk::create(scene.path("dir"), None, &new).unwrap();
    for (n, bytes) in noise(1, 12 << 20).chunks(1 << 20).enumerate() {
        written.write_at(bytes, (n as u64) << 20).unwrap();
    }
    written.flush().unwrap();
    drop(written);
    scene.wait_until_unlocked("dir");
    let before = [scene.fingerprint("small"), scene.fingerprint("dir")];
    scene.fails("image commit file://~/small/store:big --writable dir", &SAID);
    scene.fails("image commit file://~/small/store:big --pair dir/data,dir/index", &SAID);
    assert_eq!([scene.fingerprint("small"), scene.fingerprint("dir")], before);
    scene.ok("image commit file://~/store:big --writable dir");
    scene.ok("image verify --deep file://~/store:big");
}

#[test]
fn an_export_that_does_not_fit() {
    let Some((scene, _small)) = cramped() else { return };
    scene.ok("image import disk.raw file://~/store:big");
    scene.ok("zfile pack disk.raw -o disk.zf");
    fs::write(scene.path("small/out"), "old").unwrap();
    let before = scene.fingerprint("small");
    for words in [
        "image export file://~/store:big -o small/out",
        "image export file://~/store:big -o small/out --threads 4",
        "image export file://~/store:big -o small/out --format qcow2",
        "zfile pack disk.raw -o small/out",
        "zfile unpack disk.zf -o small/out",
    ] {
        scene.fails(words, &["small/out", SAID[0], SAID[1]]);
        assert_eq!(scene.fingerprint("small"), before, "{words}");
    }
}

/// At every amount of free space around the need of an import, it fails and changes nothing, or succeeds.
#[test]
fn an_import_that_nearly_fits_succeeds_or_changes_nothing() {
    let Some((scene, _small)) = cramped() else { return };
    DiskBuilder::create(scene.path("next.raw"), 8 << 20).write(0, &noise(2, 1_500_000));
    let (mut failed, mut succeeded) = (0, 0);
    for left in (100..1900).step_by(75).map(|kib| kib << 10) {
        // Fills the disk except for `left`.
        let space = rustix::fs::statvfs(scene.path("small")).unwrap();
        let free = space.f_bavail * space.f_frsize;
        fs::write(scene.path("small/filler"), noise(3, (free - left) as usize)).unwrap();
        let before = scene.fingerprint("small");
        let run = scene.run("image import next.raw file://~/small/store:next");
        if run.status == Some(0) {
            succeeded += 1;
            scene.ok("image verify --deep file://~/small/store:next");
            scene.ok("image remove file://~/small/store:next");
            scene.ok("image prune file://~/small/store --older-than 0s");
        } else {
            failed += 1;
            run.fails(&SAID);
            assert_eq!(scene.fingerprint("small"), before, "{left} bytes left");
        }
        fs::remove_file(scene.path("small/filler")).unwrap();
        scene.ok("image verify --deep file://~/small/store:tiny");
    }
    assert!(failed > 2 && succeeded > 2, "{failed} failed, {succeeded} succeeded");
}

/// Not a byte is left: reading, checking, exporting elsewhere and making room still work.
#[test]
fn a_full_store_can_be_read_and_pruned() {
    let Some((scene, _small)) = cramped() else { return };
    scene.ok("image import tiny.raw file://~/small/store:other --codec lz4");
    let _ = fs::write(scene.path("small/filler"), noise(3, 9 << 20));
    scene.fails("image import tiny.raw file://~/small/store:third --level 5", &SAID);
    scene.ok("image list file://~/small/store");
    scene.ok("image inspect file://~/small/store:tiny");
    scene.ok("image verify --deep file://~/small/store:tiny");
    scene.ok("image export file://~/small/store:tiny -o out.raw");
    // An entry can only be removed from the index by writing a new one: the error says that; then there is room again.
    let run = scene.run("image remove file://~/small/store:other");
    if run.status != Some(0) {
        run.fails(&SAID);
    }
    fs::remove_file(scene.path("small/filler")).unwrap();
    let _ = scene.run("image remove file://~/small/store:other");
    scene.ok("image prune file://~/small/store --older-than 0s");
    scene.ok("image verify --deep file://~/small/store:tiny");
}
