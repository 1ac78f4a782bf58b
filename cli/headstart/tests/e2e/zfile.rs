//! Single compressed files.

use crate::disk::{DiskBuilder, assert_same, noise, text};
use crate::scene::Scene;
use headstart_testkit::soak;
use std::fs;
use std::os::unix::fs::symlink;

#[test]
fn packed_files_are_unpacked() {
    let scene = Scene::new();
    let mut mixed = text(1, 300_000);
    mixed.extend(noise(2, 300_000));
    mixed.extend(vec![0; 200_001]);
    let contents = [Vec::new(), vec![7], noise(3, 4096), text(4, 65_536), noise(5, 65_537), mixed];
    // Each content with some of the options, and the last one with all.
    let last = contents.len() - 1;
    for (number, bytes) in contents.into_iter().enumerate() {
        fs::write(scene.path("in"), &bytes).unwrap();
        let mut turn = number;
        for codec in ["lz4", "zstd"] {
            for frame in ["4k", "8k", "16k", "32k", "64k"] {
                for crc in ["", "--no-crc"] {
                    turn += 1;
                    if turn % 5 != 0 && number != last && !soak::is_on() {
                        continue;
                    }
                    let options = format!("--codec {codec} --frame-size {frame} {crc}");
                    let made = scene.json(&format!("zfile pack in -o packed {options} --threads 2"));
                    assert_eq!(made["original_size"], bytes.len(), "{options}");
                    assert_eq!(made["frame_checksums"], crc.is_empty(), "{options}");
                    scene.ok("zfile unpack packed -o out");
                    assert_same(&scene, "in", "out");
                    let mut said = scene.json("zfile inspect packed");
                    assert_eq!(
                        (&said["codec"], &said["original_size"]),
                        (&codec.into(), &bytes.len().into())
                    );
                    said["path"] = made["path"].clone();
                    assert_eq!(said, made, "{options}");
                    scene.ok("zfile inspect packed");
                }
            }
        }
    }
}

#[test]
fn an_output_never_replaces_the_input() {
    let scene = Scene::new();
    fs::write(scene.path("in"), text(1, 100_000)).unwrap();
    scene.ok("zfile pack in -o packed");
    symlink("packed", scene.path("link")).unwrap();
    symlink("in", scene.path("raw")).unwrap();
    let (raw, packed) = (scene.bytes("in"), scene.bytes("packed"));
    for command in [
        "zfile pack in -o in",
        "zfile pack raw -o in",
        "zfile pack in -o ./raw",
        "zfile unpack packed -o packed",
        "zfile unpack packed -o link",
        "zfile unpack link -o packed",
    ] {
        scene.fails(command, &["is an input, too", "name another file"]);
    }
    assert!(scene.bytes("in") == raw && scene.bytes("packed") == packed);
}

#[test]
fn threads_make_no_difference() {
    let scene = Scene::new();
    fs::write(scene.path("in"), text(1, 3_000_000)).unwrap();
    for codec in ["lz4", "zstd"] {
        for threads in [1, 2, 7] {
            scene.ok(&format!("zfile pack in -o packed{threads} --codec {codec} --threads {threads}"));
            assert_same(&scene, "packed1", &format!("packed{threads}"));
        }
    }
    scene.ok("zfile pack in -o best --level 19");
    scene.ok("zfile pack in -o quick --level 1");
    assert!(scene.bytes("best").len() < scene.bytes("quick").len());
}

#[test]
fn an_older_file_is_replaced_whole_or_not_at_all() {
    let scene = Scene::new();
    fs::write(scene.path("in"), text(1, 100_000)).unwrap();
    fs::write(scene.path("out"), noise(1, 500_000)).unwrap();
    scene.ok("zfile pack in -o packed");
    scene.ok("zfile unpack packed -o out");
    assert_same(&scene, "in", "out");
    // Damage half-way: the older file stays.
    let mut bytes = scene.bytes("packed");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(scene.path("packed"), bytes).unwrap();
    fs::write(scene.path("out"), "old").unwrap();
    scene.fails("zfile unpack packed -o out", &["packed: ", "checksum"]);
    scene.fails("zfile pack none -o out", &["none", "cannot open"]);
    scene.fails("zfile pack in -o none/out", &["none/out"]);
    scene.is_wrong("zfile pack in -o out --codec lz4 --level 3", &["lz4 has no levels"]);
    let run = scene.run("zfile pack in -o out --frame-size 3k");
    assert!(run.status == Some(2) && run.stderr.contains("3072 bytes is not a frame size"), "{run}");
    assert_eq!(scene.bytes("out"), b"old");
    assert_eq!(scene.names(""), ["in", "out", "packed"]);
}

/// A packed layer is a layer.
#[test]
fn a_layer_is_read_through_its_wrapper() {
    let scene = Scene::new();
    DiskBuilder::create(scene.path("disk.raw"), 4 << 20).write(1 << 20, &noise(1, 70_000));
    let made = scene.json("image import disk.raw file://~/store:a --codec lz4");
    fs::copy(scene.blob("store", &made["layer"]), scene.path("layer.zf")).unwrap();
    scene.ok("zfile unpack layer.zf -o layer.lsmt");
    scene.ok("zfile pack layer.lsmt -o again.zf --codec lz4");
    assert_same(&scene, "layer.zf", "again.zf");
    for file in ["layer.zf", "layer.lsmt"] {
        scene.ok(&format!("layer export {file} -o out.raw"));
        assert_same(&scene, "disk.raw", "out.raw");
        let said = scene.json(&format!("layer verify {file}"));
        assert_eq!(said["layers"][0]["checksums"], file == "layer.zf");
    }
    scene.ok("layer export layer.lsmt -o out.qcow2 --format qcow2");
}
