//! One disk in every format that `qemu-img` writes: the same image from each of them.

use crate::disk::{DiskBuilder, assert_same, mixed_disk, noise};
use crate::scene::{CommandRun, Scene};
use crate::tools::{self, installed};
use headstart_testkit::soak;
use std::fs;

/// The formats of the disk: the name of the file, arguments of `qemu-img convert`, this program's name of the format.
const FORMATS: [(&str, &str, &str); 18] = [
    ("v3.qcow2", "-O qcow2", "qcow2"),
    ("v2.qcow2", "-O qcow2 -o compat=0.10", "qcow2"),
    ("small-clusters.qcow2", "-O qcow2 -o cluster_size=512", "qcow2"),
    ("large-clusters.qcow2", "-O qcow2 -o cluster_size=2M", "qcow2"),
    ("subclusters.qcow2", "-O qcow2 -o extended_l2=on,cluster_size=128k", "qcow2"),
    ("zlib.qcow2", "-c -O qcow2", "qcow2"),
    ("zstd.qcow2", "-c -O qcow2 -o compression_type=zstd", "qcow2"),
    ("allocated.qcow2", "-O qcow2 -o preallocation=full -S 0", "qcow2"),
    ("data-file.qcow2", "-O qcow2 -o data_file=data-file.raw,data_file_raw=on", "qcow2"),
    ("dynamic.vhd", "-O vpc -o subformat=dynamic,force_size=on", "vhd"),
    ("fixed.vhd", "-O vpc -o subformat=fixed,force_size=on", "vhd"),
    ("dynamic.vhdx", "-O vhdx -o subformat=dynamic", "vhdx"),
    ("fixed.vhdx", "-O vhdx -o subformat=fixed", "vhdx"),
    ("sparse.vmdk", "-O vmdk -o subformat=monolithicSparse", "vmdk"),
    ("flat.vmdk", "-O vmdk -o subformat=monolithicFlat", "vmdk"),
    ("split-flat.vmdk", "-O vmdk -o subformat=twoGbMaxExtentFlat", "vmdk"),
    ("split-sparse.vmdk", "-O vmdk -o subformat=twoGbMaxExtentSparse", "vmdk"),
    ("stream.vmdk", "-O vmdk -o subformat=streamOptimized", "vmdk"),
];

#[test]
fn the_same_disk_in_any_format_is_the_same_image() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    let raw = scene.json("image import disk.raw file://~/store:raw");
    for (file, convert, format) in FORMATS {
        tools::run(&scene, "qemu-img", &format!("convert -f raw {convert} disk.raw {file}"));
        let made = scene.json(&format!("image import {file} file://~/store:{file} --allow-dir ~"));
        assert_eq!(made["format"], format, "{file}");
        assert_eq!(made["virtual_size"], raw["virtual_size"], "{file}");
        assert_eq!(made["digest"], raw["digest"], "{file}");
        scene.ok(&format!("image export file://~/store:{file} -o out.raw"));
        assert_same(&scene, "disk.raw", "out.raw");
    }
    // Scratch files of conversions are removed.
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
}

#[test]
fn the_format_can_be_told() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    let raw = scene.json("image import disk.raw file://~/store:raw");
    // Only the name of a fixed vhd distinguishes it from a raw disk.
    tools::run(&scene, "qemu-img", "convert -O vpc -o subformat=fixed,force_size=on disk.raw nameless");
    let as_found = scene.json("image import nameless file://~/store:found");
    assert_eq!((&as_found["format"], &as_found["virtual_size"]), (&"raw".into(), &((8 << 20) + 512).into()));
    let as_told = scene.json("image import nameless file://~/store:told --format vhd");
    assert_eq!(as_told["digest"], raw["digest"]);
    // A container that is declared raw is imported byte for byte.
    tools::run(&scene, "qemu-img", "convert -O qcow2 disk.raw disk.qcow2");
    scene.ok("image import disk.qcow2 file://~/store:container --format raw");
    let exported = scene.run("image export file://~/store:container -o container.qcow2");
    assert!(exported.status == Some(0) && exported.stderr.contains("becomes a raw disk"), "{exported}");
    assert_same(&scene, "disk.qcow2", "container.qcow2");
    // An explicit format gives no warning.
    let exported = scene.ok("image export file://~/store:container -o container.qcow2 --format raw");
    assert!(!exported.stderr.contains("warning"), "{exported}");
}

fn without_qemu_img(scene: &Scene, words: &str) -> CommandRun {
    CommandRun::of(words, scene.command(words).env("PATH", scene.path("no-programs")))
}

#[test]
fn a_missing_qemu_img_is_said_with_its_remedy() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    for (file, convert, format) in FORMATS {
        if !["dynamic.vhd", "dynamic.vhdx", "sparse.vmdk", "stream.vmdk", "zstd.qcow2"].contains(&file) {
            continue;
        }
        tools::run(&scene, "qemu-img", &format!("convert -f raw {convert} disk.raw {file}"));
        let said = [file, format, "qemu-img, which is not installed", "install qemu-utils"];
        without_qemu_img(&scene, &format!("image import {file} file://~/store:a")).fails(&said);
    }
    // A format that needs no help works without.
    tools::run(&scene, "qemu-img", "convert -f raw -O qcow2 disk.raw disk.qcow2");
    without_qemu_img(&scene, "image import disk.qcow2 file://~/store:b").succeeds();
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
}

#[test]
fn encrypted_and_broken_containers_are_refused() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 8);
    tools::run(&scene, "qemu-img", "convert -f raw -O qcow2 disk.raw luks.qcow2");
    // The method of encryption is LUKS. It is not made by qemu-img itself, which measures the machine's speed to choose
    // its key's cost, and fails if the machine is too busy for that.
    let mut encrypted = scene.bytes("luks.qcow2");
    encrypted[32..36].copy_from_slice(&2u32.to_be_bytes());
    fs::write(scene.path("luks.qcow2"), encrypted).unwrap();
    tools::run(&scene, "qemu-img", "create -q -f qcow2 -u -b luks.qcow2 -F qcow2 over-luks.qcow2 8M");
    for file in ["luks.qcow2", "over-luks.qcow2"] {
        let import = format!("image import {file} file://~/store:a --allow-dir ~");
        scene.fails(&import, &["luks.qcow2", "is encrypted"]);
    }
    for (file, convert, _) in FORMATS {
        tools::run(&scene, "qemu-img", &format!("convert -f raw {convert} disk.raw {file}"));
        let whole = scene.bytes(file);
        // Noise over everything except the magic number, and a file cut short.
        let mut noisy = whole.clone();
        noisy[8..whole.len().min(4096)].copy_from_slice(&noise(1, whole.len().min(4096) - 8));
        for damaged in [&noisy, &whole[..whole.len().min(600)]] {
            fs::write(scene.path(file), damaged).unwrap();
            // A flat image is only a description, a fixed vhd starts with the disk itself: they may be read.
            let run = scene.run(&format!("image import {file} file://~/store:a --allow-dir ~"));
            if run.status != Some(0) {
                run.fails(&[file]);
            }
        }
    }
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
}

/// Half a disk is not a disk: the part past the end of a file that was cut short is not zeros.
#[test]
fn truncated_containers_are_refused() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    // The data goes to the end, so that every missing part is detected.
    DiskBuilder::create(scene.path("disk.raw"), 2 << 20).write(0, &noise(1, 2 << 20));
    let raw = scene.json("image import disk.raw file://~/store:raw");
    for (file, convert, _) in FORMATS {
        tools::run(&scene, "qemu-img", &format!("convert -f raw {convert} disk.raw {file}"));
        let data = match file {
            "flat.vmdk" => "flat-flat.vmdk",
            "split-flat.vmdk" => "split-flat-f001.vmdk",
            "split-sparse.vmdk" => "split-sparse-s001.vmdk",
            "data-file.qcow2" => "data-file.raw",
            _ => file,
        };
        let whole = scene.bytes(data);
        let near_the_end = [1, 512, 513, 100_000, 1 << 20].map(|less| whole.len() - less);
        let few = if soak::is_on() { 1 } else { 2 };
        let anywhere = (0..5).step_by(few).map(|n| whole.len() * n / 5 + n * 97).chain([600]);
        for len in near_the_end.into_iter().chain(anywhere) {
            fs::write(scene.path(data), &whole[..len]).unwrap();
            let run = scene.run(&format!("image import {file} file://~/store:a --allow-dir ~ --json"));
            if run.status == Some(0) {
                // The missing part may have been padding.
                assert_eq!(run.json()["digest"], raw["digest"], "{file}, {len} of {}", whole.len());
            } else {
                run.fails(&[file]);
            }
        }
    }
}

/// The tables of a sparse disk are behind its data, or are its only content.
#[test]
fn a_truncated_table_is_not_a_disk_of_zeros() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    DiskBuilder::create(scene.path("disk.raw"), 32 << 20).write(5 << 20, &noise(1, 1 << 20));
    tools::run(&scene, "qemu-img", "convert -f raw -O qcow2 disk.raw disk.qcow2");
    let whole = scene.bytes("disk.qcow2");
    // The table of tables is at byte 196608.
    fs::write(scene.path("cut.qcow2"), &whole[..30_000]).unwrap();
    scene.fails("image import cut.qcow2 file://~/store:a", &["cut.qcow2", "truncated", "copy it again"]);
    tools::run(&scene, "qemu-img", "create -q -f qcow2 -b cut.qcow2 -F qcow2 over.qcow2 32M");
    scene.fails("image import over.qcow2 file://~/store:a --allow-dir ~", &["cut.qcow2", "truncated"]);
}

/// Bytes all over the metadata of a small qcow2 are changed, one at a time: the result is an image, or an error.
#[test]
fn damaged_qcow2_metadata_is_survived() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    DiskBuilder::create(scene.path("disk.raw"), 300 << 10).write(70_000, &noise(1, 100_000));
    tools::run(&scene, "qemu-img", "convert -O qcow2 -o cluster_size=4k -c disk.raw disk.qcow2");
    let whole = scene.bytes("disk.qcow2");
    // The header and its extensions, then the tables, which begin at the second cluster.
    let (of_header, of_tables) = if soak::is_on() { (1, 149) } else { (3, 449) };
    let tables = (4096..whole.len().min(24 << 10)).step_by(of_tables);
    let places = (0..112).step_by(of_header).chain(tables);
    for (n, at) in places.enumerate() {
        let mut damaged = whole.clone();
        damaged[at] ^= [1, 0x80, 0xff, 0x10][n % 4];
        fs::write(scene.path("damaged.qcow2"), damaged).unwrap();
        let run = scene.run("image import damaged.qcow2 file://~/store:a");
        assert!(matches!(run.status, Some(0 | 1)), "byte {at}\n{run}");
    }
}
