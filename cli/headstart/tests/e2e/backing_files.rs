//! Disk images that name other files: these are read if that is allowed, and refused if it would let an image's author
//! choose which of this host's files end up in a disk.

use crate::disk::{DiskBuilder, assert_same, mixed_disk, noise, text};
use crate::scene::Scene;
use crate::tools::{self, installed};
use std::fs;

fn qemu_img(scene: &Scene, words: &str) {
    tools::run(scene, "qemu-img", words);
}

/// A chain of three in the scene: `base.raw`, `mid.qcow2`, `top.qcow2`; `expected.raw` has its content.
fn chain(scene: &Scene) {
    mixed_disk(scene, "base.raw", 24);
    // The content of the upper ones comes from disks of their own, so that no tool is needed that writes inside.
    let step = |from: &str, file: &str, backing: &str, writes: &[(u64, Vec<u8>)]| {
        let changed = crate::disk::copy_of(scene, from, &format!("{file}.raw"));
        for (offset, bytes) in writes {
            changed.write(*offset, bytes);
        }
        // Clusters equal to the backing file's are left out.
        qemu_img(
            scene,
            &format!("convert -f raw -O qcow2 -B {backing} -F {} {file}.raw {file}", {
                if backing.ends_with("raw") { "raw" } else { "qcow2" }
            }),
        );
    };
    step("base.raw", "mid.qcow2", "base.raw", &[(1 << 20, noise(30, 70_000)), (9 << 20, text(31, 200_000))]);
    let zeros = vec![0; 128 << 10];
    step("mid.qcow2.raw", "top.qcow2", "mid.qcow2", &[(9 << 20, zeros), (10 << 20, noise(32, 5000))]);
    fs::rename(scene.path("top.qcow2.raw"), scene.path("expected.raw")).unwrap();
    fs::remove_file(scene.path("mid.qcow2.raw")).unwrap();
}

#[test]
fn a_backing_chain_is_one_disk() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    chain(&scene);
    let chained = scene.json("image import top.qcow2 file://~/store:chain --allow-dir ~");
    let expected = scene.json("image import expected.raw file://~/store:expected");
    assert_eq!(chained["digest"], expected["digest"]);
    scene.ok("image export file://~/store:chain -o out.raw");
    assert_same(&scene, "expected.raw", "out.raw");
    // Without the lowest file there is no disk.
    fs::remove_file(scene.path("base.raw")).unwrap();
    scene.fails("image import top.qcow2 file://~/store:no --allow-dir ~", &["top.qcow2", "base.raw"]);
}

#[test]
fn a_backing_file_of_a_format_that_only_qemu_img_reads() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "base.raw", 8);
    qemu_img(&scene, "convert -f raw -O vmdk base.raw base.vmdk");
    qemu_img(&scene, "create -q -f qcow2 -b base.vmdk -F vmdk top.qcow2");
    scene.ok("image import top.qcow2 file://~/store:top --allow-dir ~");
    scene.ok("image export file://~/store:top -o out.raw");
    assert_same(&scene, "base.raw", "out.raw");
}

#[test]
fn a_larger_disk_over_a_smaller_backing_file_ends_in_zeros() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    DiskBuilder::create(scene.path("base.raw"), 3 << 20).write((3 << 20) - 5000, &noise(1, 5000));
    qemu_img(&scene, "create -q -f qcow2 -b base.raw -F raw top.qcow2 8M");
    scene.ok("image import top.qcow2 file://~/store:a --allow-dir ~");
    scene.ok("image export file://~/store:a -o out.raw");
    DiskBuilder::create(scene.path("expected.raw"), 8 << 20).write((3 << 20) - 5000, &noise(1, 5000));
    assert_same(&scene, "expected.raw", "out.raw");
}

/// Images in `vm/` that name a file in `elsewhere/`, by each of the ways to read them.
const NAMING: [(&str, &str); 4] = [
    ("library.qcow2", "create -q -f qcow2 -b ../elsewhere/base.raw -F raw vm/library.qcow2"),
    (
        "tool.qcow2",
        "create -q -f qcow2 -o compression_type=zstd -b ../elsewhere/base.raw -F raw vm/tool.qcow2",
    ),
    ("tool.vmdk", "create -q -f vmdk -b ../elsewhere/base.vmdk -F vmdk vm/tool.vmdk"),
    (
        "data-file.qcow2",
        "convert -f raw -O qcow2 -o data_file=elsewhere/data.raw,data_file_raw=on elsewhere/base.raw \
         vm/data-file.qcow2",
    ),
];

#[test]
fn a_file_outside_is_refused_unless_its_directory_is_allowed() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    for dir in ["vm", "elsewhere"] {
        fs::create_dir(scene.path(dir)).unwrap();
    }
    mixed_disk(&scene, "elsewhere/base.raw", 12);
    qemu_img(&scene, "convert -f raw -O vmdk elsewhere/base.raw elsewhere/base.vmdk");
    let elsewhere = scene.path("elsewhere");
    let allow = format!("--allow-dir {}", elsewhere.canonicalize().unwrap().display());
    let expected = scene.json("image import elsewhere/base.raw file://~/store:expected");
    for (file, create) in NAMING {
        qemu_img(&scene, create);
        if file == "data-file.qcow2" {
            // qemu-img records the name as it was given; the image is one directory down.
            qemu_img(&scene, "amend -f qcow2 -o data_file=../elsewhere/data.raw vm/data-file.qcow2");
        }
        let import = format!("image import vm/{file} file://~/store:{file}");
        scene.fails(&import, &["in a directory that is not allowed", &allow]);
        let made = scene.json(&format!("{import} --allow-dir elsewhere"));
        assert_eq!(made["digest"], expected["digest"], "{file}");
        // The image's own directory is not allowed by itself either.
        scene.fails(&format!("{import} --allow-dir vm"), &["in a directory that is not allowed", &allow]);
    }
    fs::remove_file(scene.path("vm/library.qcow2")).unwrap();
    std::os::unix::fs::symlink("../elsewhere/base.raw", scene.path("vm/link.raw")).unwrap();
    qemu_img(&scene, "create -q -f qcow2 -b link.raw -F raw vm/linked.qcow2");
    // A link inside is followed to its target, and is no way out.
    let linked = "image import vm/linked.qcow2 file://~/store:linked --allow-dir vm";
    scene.fails(linked, &["in a directory that is not allowed"]);
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
    assert_eq!(scene.json("image list file://~/store")["images"].as_array().unwrap().len(), 5);
}

/// Two tenants' disks in one directory: neither gets the other's bytes by naming its file.
#[test]
fn a_file_beside_the_image_is_refused_too() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    mixed_disk(&scene, "other.raw", 4);
    qemu_img(&scene, "convert -f raw -O vmdk other.raw other.vmdk");
    qemu_img(&scene, "convert -f raw -O vmdk -o subformat=monolithicFlat other.raw mine-flat.vmdk");
    qemu_img(&scene, "convert -f raw -O vmdk -o subformat=twoGbMaxExtentSparse other.raw mine-split.vmdk");
    qemu_img(&scene, "create -q -f qcow2 -b other.raw -F raw mine-library.qcow2");
    qemu_img(&scene, "create -q -f qcow2 -o compression_type=zstd -b other.raw -F raw mine-tool.qcow2");
    qemu_img(&scene, "create -q -f qcow2 -b other.vmdk -F vmdk mine-other.qcow2");
    qemu_img(&scene, "create -q -f vmdk -b other.vmdk -F vmdk mine-parent.vmdk");
    qemu_img(
        &scene,
        "convert -f raw -O qcow2 -o data_file=data.raw,data_file_raw=on other.raw mine-data.qcow2",
    );
    let expected = scene.json("image import other.raw file://~/store:other");
    for file in scene.names("").iter().filter(|name| name.starts_with("mine-") && !name.contains("-flat-")) {
        if file.contains("-s0") {
            continue;
        }
        let import = format!("image import {file} file://~/store:mine");
        scene.fails(&import, &["in a directory that is not allowed", "--allow-dir"]);
        assert_eq!(scene.json(&format!("{import} --allow-dir ."))["digest"], expected["digest"], "{file}");
    }
    assert_eq!(scene.names("store/.headstart/staging"), [""; 0]);
}

#[test]
fn a_flat_vmdk_does_not_name_files_outside() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    fs::create_dir(scene.path("vm")).unwrap();
    mixed_disk(&scene, "disk.raw", 12);
    qemu_img(&scene, "convert -f raw -O vmdk -o subformat=monolithicFlat disk.raw vm/flat.vmdk");
    let descriptor = fs::read_to_string(scene.path("vm/flat.vmdk")).unwrap();
    fs::rename(scene.path("vm/flat-flat.vmdk"), scene.path("outside.raw")).unwrap();
    let expected = scene.json("image import disk.raw file://~/store:expected");
    for name in ["../outside.raw".to_owned(), scene.path("outside.raw").display().to_string()] {
        fs::write(scene.path("vm/flat.vmdk"), descriptor.replace("flat-flat.vmdk", &name)).unwrap();
        scene.fails(
            "image import vm/flat.vmdk file://~/store:no",
            &["in a directory that is not allowed", "--allow-dir"],
        );
        let made = scene.json("image import vm/flat.vmdk file://~/store:yes --allow-dir ~");
        assert_eq!(made["digest"], expected["digest"]);
    }
}

/// A server that an image names is not contacted, not even to inspect the image.
#[test]
fn servers_that_an_image_names_are_not_contacted() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    // The name of a socket must be short.
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let server = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    server.set_nonblocking(true).unwrap();
    let address = format!("nbd:unix:{}", socket.display());
    mixed_disk(&scene, "disk.raw", 4);
    qemu_img(&scene, &format!("create -q -f qcow2 -u -b {address} -F raw library.qcow2 1M"));
    let zstd = "-o compression_type=zstd";
    qemu_img(&scene, &format!("create -q -f qcow2 {zstd} -u -b {address} -F raw tool.qcow2 1M"));
    qemu_img(&scene, &format!("create -q -f qcow2 {zstd} -u -b tool.qcow2 -F qcow2 deeper.qcow2 1M"));
    let descriptor = |extent: &str| {
        format!(
            "# DiskBuilder DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"custom\"\n{extent}\n"
        )
    };
    for (file, extent) in [
        ("flat.vmdk", format!("RW 2048 FLAT \"{address}\" 0")),
        ("sparse.vmdk", format!("RW 2048 SPARSE \"{address}\"")),
        ("indented.vmdk", format!("  RW   2048  SPARSE   \"{address}\"")),
    ] {
        fs::write(scene.path(file), descriptor(&extent)).unwrap();
    }
    // A sparse file without a capacity is a descriptor, too.
    let mut hosted = vec![0; 512];
    hosted[..8].copy_from_slice(b"KDMV\x01\0\0\0");
    hosted[28..36].copy_from_slice(&1u64.to_le_bytes());
    hosted[36..44].copy_from_slice(&2u64.to_le_bytes());
    hosted.extend(descriptor(&format!("RW 2048 SPARSE \"{address}\"")).bytes());
    hosted.resize(4096, 0);
    fs::write(scene.path("hosted.vmdk"), hosted).unwrap();
    for file in scene.names("").iter().filter(|name| name.contains(".qcow2") || name.contains(".vmdk")) {
        scene.fails(&format!("image import {file} file://~/store:no --allow-dir ~"), &[]);
        assert!(server.accept().is_err(), "{file}: it was asked");
    }
}

/// Backing "files" that are no files: nothing is opened, connected to or run.
#[test]
fn protocols_and_descriptions_are_not_followed() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    DiskBuilder::create(scene.path("secret.raw"), 1 << 20).write(0, &text(1, 5000));
    let secret = scene.path("secret.raw");
    fs::create_dir(scene.path("vm")).unwrap();
    for (n, backing) in [
        "nbd://127.0.0.1:1/x".to_owned(),
        "nbd:unix:/nonexistent".to_owned(),
        format!("file:{}", secret.display()),
        format!(r#"json:{{"driver":"raw","file":{{"driver":"file","filename":"{}"}}}}"#, secret.display()),
        "/proc/self/environ".to_owned(),
        "/dev/zero".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        for options in ["", "-o compression_type=zstd"] {
            qemu_img(&scene, &format!("create -q -f qcow2 {options} -u -b {backing} -F raw vm/{n}.qcow2 1M"));
            // The import is refused; or the text is read as the name of a file in the allowed directory, which is not
            // there.
            let run = scene.run(&format!("image import vm/{n}.qcow2 file://~/store:no --allow-dir ~/vm"));
            run.fails(&[&format!("{n}.qcow2")[..0]]);
        }
    }
    assert_eq!(scene.json("image list file://~/store")["images"], serde_json::json!([]));
}

#[test]
fn a_chain_that_leads_back_to_itself_ends() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    for options in ["", "-o compression_type=zstd"] {
        for (file, backing) in [("one.qcow2", "two.qcow2"), ("two.qcow2", "one.qcow2")] {
            qemu_img(&scene, &format!("create -q -f qcow2 {options} -u -b {backing} -F qcow2 {file} 1M"));
        }
        scene.fails("image import one.qcow2 file://~/store:no --allow-dir ~", &["one.qcow2"]);
    }
    // A chain that is merely long is read.
    let base = DiskBuilder::create(scene.path("0.raw"), 1 << 20);
    base.write(5000, &noise(1, 5000));
    qemu_img(&scene, "create -q -f qcow2 -b 0.raw -F raw 0.qcow2");
    for n in 1..60 {
        qemu_img(&scene, &format!("create -q -f qcow2 -u -b {}.qcow2 -F qcow2 {n}.qcow2 1M", n - 1));
    }
    let chain = scene.json("image import 59.qcow2 file://~/store:chain --allow-dir ~");
    let disk = scene.json("image import 0.raw file://~/store:base");
    assert_eq!(chain["digest"], disk["digest"]);
}
