//! Raw disks of every size, file systems, block devices; and the same digest every time.

use crate::disk::{DiskBuilder, assert_same, copy_of, mixed_disk, noise, text};
use crate::scene::Scene;
use crate::tools::{self, LoopDevice, installed};
use std::fs;
use std::os::unix::fs::MetadataExt;

#[test]
fn a_raw_disk_comes_back_with_its_holes() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 48);
    let made = scene.json("image import disk.raw file://~/store:one");
    assert_eq!((&made["format"], &made["virtual_size"]), (&"raw".into(), &(48 << 20).into()));
    assert_eq!(made["layers"], 1);
    scene.ok("image verify --deep file://~/store:one");
    scene.ok("image export file://~/store:one -o out.raw");
    assert_same(&scene, "disk.raw", "out.raw");
    let blocks = |name| fs::metadata(scene.path(name)).unwrap().blocks();
    assert!(
        blocks("out.raw") <= blocks("disk.raw"),
        "{} blocks, not {}",
        blocks("out.raw"),
        blocks("disk.raw")
    );
    // Holes and written zeros are not in the layer: about 1.5 MB of 48 MiB are.
    assert!(made["layer_data_bytes"].as_u64().unwrap() < 1_600_000, "{made}");
}

#[test]
fn a_disk_of_any_length_comes_back() {
    let scene = Scene::new();
    for len in [0, 1, 511, 512, 513, 4095, 4096, 4097, 5000, 32768, 1 << 20, (1 << 20) + 1, (3 << 20) - 77] {
        for (kind, bytes) in [("noise", noise(len, len as usize)), ("zeros", vec![0; len as usize])] {
            fs::write(scene.path("disk.raw"), bytes).unwrap();
            let made = scene.json("image import disk.raw file://~/store:odd --format raw");
            assert_eq!(made["virtual_size"], len, "{kind}");
            scene.ok("image export file://~/store:odd -o out.raw");
            assert_same(&scene, "disk.raw", "out.raw");
            scene.ok("image verify --deep file://~/store:odd");
            let inspection = scene.json("image inspect file://~/store:odd");
            assert_eq!(inspection["virtual_size"], len, "{kind}");
            scene.ok("image inspect file://~/store:odd");
        }
    }
}

#[test]
fn data_in_the_last_sector_alone() {
    let scene = Scene::new();
    for size in [5 << 30, (5 << 30) + 512, (5 << 30) + 13] {
        DiskBuilder::create(scene.path("disk.raw"), size).write(size - 5, b"there");
        let made = scene.json("image import disk.raw file://~/store:last --format raw");
        assert!(made["layer_data_bytes"].as_u64().unwrap() <= 4096, "{made}");
        scene.ok("image export file://~/store:last -o out.raw");
        let out = fs::File::open(scene.path("out.raw")).unwrap();
        assert_eq!(out.metadata().unwrap().len(), size);
        let mut end = [0; 600];
        std::os::unix::fs::FileExt::read_exact_at(&out, &mut end, size - 600).unwrap();
        assert_eq!(end.strip_suffix(b"there").unwrap(), &[0; 595]);
    }
}

#[test]
fn a_file_system_is_whole_after_the_round_trip() {
    if !installed(&["mkfs.ext4", "e2fsck", "qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    fs::create_dir_all(scene.path("files/deep/er")).unwrap();
    for n in 0..40 {
        fs::write(scene.path(&format!("files/deep/file{n}")), text(n, 997 * n as usize)).unwrap();
    }
    fs::write(scene.path("files/deep/er/noise"), noise(9, 3_000_000)).unwrap();
    tools::run(&scene, "mkfs.ext4", "-q -F -d files disk.raw 64M");
    scene.ok("image import disk.raw file://~/store:ext4 --codec lz4");
    scene.ok("image export file://~/store:ext4 -o out.raw");
    assert_same(&scene, "disk.raw", "out.raw");
    tools::run(&scene, "e2fsck", "-fn out.raw");
    scene.ok("image export file://~/store:ext4 -o out.qcow2 --format qcow2");
    tools::run(&scene, "qemu-img", "convert -f qcow2 -O raw out.qcow2 again.raw");
    assert_same(&scene, "disk.raw", "again.raw");
}

#[test]
fn the_same_input_gives_the_same_digest_on_any_number_of_threads() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 16);
    copy_of(&scene, "disk.raw", "next.raw").write(3 << 20, &noise(20, 700_000));
    let mut digests = Vec::new();
    for options in ["", "--codec lz4", "--codec lz4 --frame-size 4k --no-crc", "--level 9 --frame-size 64k"] {
        let import = |threads: u32| {
            let store = format!("file://~/store{threads}");
            let packing = format!("{options} --threads {threads}");
            let base = scene.json(&format!("image import disk.raw {store}:base {packing}"));
            let top = scene.json(&format!("image import next.raw {store}:top --base {store}:base {packing}"));
            let flat = scene.json(&format!("image flatten {store}:top {store}:flat {packing}"));
            [base, top, flat].map(|made| [made["digest"].clone(), made["layer"].clone()])
        };
        let first = import(1);
        for threads in [1, 2, 7] {
            assert_eq!(import(threads), first, "{options}, {threads} threads");
        }
        digests.push(first);
    }
    // Other options give another image; but flattened, it is the image of the same disk.
    digests.dedup();
    assert_eq!(digests.len(), 4);
    for made in digests {
        assert_ne!(made[0], made[2]);
    }
    let flat = scene.json("image import next.raw file://~/direct:flat --level 9 --frame-size 64k");
    scene.ok("image diff file://~/direct:flat file://~/store1:flat");
    assert_eq!(flat["virtual_size"], 16 << 20);
}

#[test]
fn holes_and_written_zeros_are_the_same() {
    let scene = Scene::new();
    let data = noise(1, 10_000);
    DiskBuilder::create(scene.path("holes.raw"), 8 << 20).write(5_000_000, &data);
    let mut bytes = vec![0; 8 << 20];
    bytes[5_000_000..5_010_000].copy_from_slice(&data);
    fs::write(scene.path("zeros.raw"), bytes).unwrap();
    let holes = scene.json("image import holes.raw file://~/store:holes");
    let zeros = scene.json("image import zeros.raw file://~/store:zeros");
    assert_eq!(holes["digest"], zeros["digest"]);
}

#[test]
fn a_block_device_is_a_disk() {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 16);
    let Some(device) = LoopDevice::over(&scene.path("disk.raw")) else { return };
    let file = scene.json("image import disk.raw file://~/store:file");
    let made = scene.json(&format!("image import {} file://~/store:device", device.path));
    assert_eq!(made["digest"], file["digest"]);
}

#[test]
fn inputs_that_cannot_be_imported_are_named() {
    let scene = Scene::new();
    fs::create_dir(scene.path("dir")).unwrap();
    tools::run(&scene, "mkfifo", "pipe");
    fs::write(scene.path("disk.raw"), [1; 512]).unwrap();
    scene.fails("image import missing.raw file://~/store:a", &["missing.raw", "cannot open"]);
    scene.fails("image import dir file://~/store:a", &["dir", "directory"]);
    scene.fails("image import pipe file://~/store:a", &["pipe", "neither a file nor a block device"]);
    scene.fails("image import /dev/zero file://~/store:a", &["neither a file nor a block device"]);
    scene.fails("image import disk.raw file://~/dir/../disk.raw/store:a", &["disk.raw/store"]);
    scene.fails("image import disk.raw file://~/store:a --base file://~/none:a", &["none"]);
    scene.fails("image import disk.raw file://~/store:a --base file://~/store:none", &["store:none"]);
    for (option, parts) in [
        ("--frame-size 5k", ["5120", "4k"]),
        ("--frame-size 128k", ["131072", "64k"]),
        ("--codec gzip", ["`gzip`", "lz4, zstd or none"]),
        ("--level 25", ["25", "a level from 1 to 19"]),
        ("--threads 0", ["0", "a whole number from 1 to 256"]),
        ("--threads 1.5", ["1.5", "a whole number from 1 to 256"]),
    ] {
        let run = scene.run(&format!("image import disk.raw file://~/store:a {option}"));
        assert!(run.status == Some(2) && parts.iter().all(|part| run.stderr.contains(part)), "{run}");
    }
    scene.fails("image import disk.raw file://~/store:a --format qcow2", &["disk.raw"]);
    scene.fails("image import disk.raw file://~/store:a --format vmdk", &["disk.raw"]);
    fs::write(scene.path("dir/something"), "else").unwrap();
    scene.fails("image import disk.raw file://~/dir:a", &["dir", "something", "new or an empty directory"]);
    assert_eq!(scene.names("dir"), ["something"]);
    scene.fails("image list file://~/nowhere", &["nowhere"]);
    let digest = format!("sha256:{}", "0".repeat(64));
    scene.is_wrong(&format!("image import disk.raw file://~/store@{digest}"), &["by a tag, not by a digest"]);
}

/// A file without a disk in it, or not at its beginning, is not made into a disk that nothing can boot.
#[test]
fn archives_and_sizes_that_no_disk_has_are_refused() {
    let scene = Scene::new();
    DiskBuilder::create(scene.path("disk.raw"), 1 << 20).write(0, &text(1, 5000));
    let mut disks = vec![("empty", "", "copy it again"), ("odd", "", "truncate -s %512")];
    fs::write(scene.path("empty"), "").unwrap();
    fs::write(scene.path("odd"), noise(1, 1000)).unwrap();
    for (name, program, words, remedy) in [
        ("disk.raw.gz", "gzip", "-k disk.raw", "gunzip"),
        ("disk.raw.xz", "xz", "-k disk.raw", "unxz"),
        ("disk.raw.bz2", "bzip2", "-k disk.raw", "bunzip2"),
        ("disk.raw.zst", "zstd", "-q disk.raw", "unzstd"),
        ("disk.tar", "tar", "-cf disk.tar disk.raw", "tar -xf"),
        ("disk.zip", "zip", "-q disk.zip disk.raw", "unzip"),
        ("disk.vdi", "qemu-img", "convert -f raw -O vdi disk.raw disk.vdi", "qemu-img convert -f vdi"),
    ] {
        if installed(&[program]) {
            tools::run(&scene, program, words);
            disks.push((name, program, remedy));
        }
    }
    for (name, kind, remedy) in disks {
        let said = scene.fails(&format!("image import {name} file://~/store:a"), &[name, remedy]).stderr;
        assert!(kind.is_empty() || said.contains("--format raw takes it as it is"), "{said}");
        // An explicit format is accepted.
        scene.ok(&format!("image import {name} file://~/store:meant --format raw"));
        scene.ok("image export file://~/store:meant -o out.raw");
        assert_same(&scene, name, "out.raw");
    }
}
