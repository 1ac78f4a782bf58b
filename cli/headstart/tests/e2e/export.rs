//! Images become files and devices again, whole or not at all.

use crate::disk::{DiskBuilder, assert_same, mixed_disk, noise};
use crate::scene::{CommandRun, Scene};
use crate::tools::{self, LoopDevice, installed, is_root, same_disk};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown, symlink};
use std::path::PathBuf;
use std::process::Command;

fn imported(mib: u64) -> Scene {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", mib);
    scene.ok("image import disk.raw file://~/store:a");
    scene
}

#[test]
fn qcow2_is_clean_and_the_same_disk() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = imported(48);
    let report = scene.json("image export file://~/store:a -o out.qcow2 --format qcow2");
    assert_eq!(report["virtual_size"], 48 << 20);
    tools::run(&scene, "qemu-img", "check -q -f qcow2 out.qcow2");
    same_disk(&scene, "disk.raw", "out.qcow2", "qcow2");
    // Clusters of zeros are not in it.
    assert!(fs::metadata(scene.path("out.qcow2")).unwrap().len() < 5 << 20);
    let again = scene.json("image import out.qcow2 file://~/store:again");
    assert_eq!(again["digest"], scene.json("image inspect file://~/store:a")["digest"]);
}

#[test]
fn qcow2_of_odd_and_empty_disks_has_their_bytes() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    for (len, whole) in [(0, 0), (1, 512), (512, 512), (100_001, 100_352), ((2 << 20) + 512, (2 << 20) + 512)]
    {
        fs::write(scene.path("disk.raw"), noise(len, len as usize)).unwrap();
        scene.ok("image import disk.raw file://~/store:odd --format raw");
        scene.ok("image export file://~/store:odd -o out.qcow2 --format qcow2");
        tools::run(&scene, "qemu-img", "check -q -f qcow2 out.qcow2");
        tools::run(&scene, "qemu-img", "convert -f qcow2 -O raw out.qcow2 out.raw");
        let mut expected = scene.bytes("disk.raw");
        expected.resize(whole, 0);
        assert!(scene.bytes("out.raw") == expected, "{len} bytes");
        if len > 0 {
            scene.ok("image import out.qcow2 file://~/store:back");
            scene.ok("image export file://~/store:back -o again.raw");
            assert_same(&scene, "out.raw", "again.raw");
        }
    }
}

#[test]
fn threads_make_no_difference() {
    let scene = imported(24);
    for threads in [1, 2, 7, 64] {
        scene.ok(&format!("image export file://~/store:a -o out.raw --threads {threads}"));
        assert_same(&scene, "disk.raw", "out.raw");
    }
}

#[test]
fn no_export_replaces_a_file_of_the_programs_own() {
    let scene = imported(8);
    let manifest = scene.manifest("store", &scene.json("image inspect file://~/store:a")["digest"]);
    let blob = scene.blob("store", &manifest["layers"][0]["digest"]);
    let blob = blob.to_str().unwrap();
    fs::create_dir(scene.path("vm")).unwrap();
    for file in ["vm/lock", "vm/data"] {
        fs::write(scene.path(file), "flushed").unwrap();
    }
    symlink(blob, scene.path("link")).unwrap();
    let before = (scene.fingerprint("store"), scene.fingerprint("vm"));
    for output in [blob, "link", "store/index.json", "store/oci-layout", "store/blobs/x"] {
        scene.fails(&format!("image export file://~/store:a -o {output}"), &["is a file of the image store"]);
    }
    scene
        .fails("image export file://~/store:a -o vm/data", &["is a file of a directory that headstart uses"]);
    scene.fails(&format!("layer export {blob} -o {blob}"), &["is an input, too"]);
    assert_eq!((scene.fingerprint("store"), scene.fingerprint("vm")), before);
}

#[test]
fn an_older_file_is_replaced() {
    let scene = imported(8);
    fs::write(scene.path("out.raw"), noise(1, 20 << 20)).unwrap();
    scene.ok("image export file://~/store:a -o out.raw");
    assert_same(&scene, "disk.raw", "out.raw");
    // Through a link, its target is written. The target keeps its permissions.
    fs::write(scene.path("real.raw"), "old").unwrap();
    symlink("real.raw", scene.path("link.raw")).unwrap();
    for mode in [0o600, 0o640] {
        fs::set_permissions(scene.path("real.raw"), fs::Permissions::from_mode(mode)).unwrap();
        scene.ok("image export file://~/store:a -o link.raw");
        assert!(fs::symlink_metadata(scene.path("link.raw")).unwrap().is_symlink());
        assert_same(&scene, "disk.raw", "real.raw");
        assert_eq!(fs::metadata(scene.path("real.raw")).unwrap().permissions().mode() & 0o777, mode);
    }
    let names = ["disk.raw", "link.raw", "out.raw", "real.raw", "store"];
    assert_eq!(scene.names(""), names);
}

/// A link of another user's does not lead root anywhere, for any kind of output.
#[test]
fn a_link_of_another_user_is_not_followed() {
    let scene = imported(2);
    scene.ok("zfile pack disk.raw -o packed.zf");
    if !is_root() {
        return;
    }
    fs::write(scene.path("precious"), "precious").unwrap();
    for (link, to) in [("link", "precious"), ("dangling", "nothing"), ("own", "link")] {
        symlink(to, scene.path(link)).unwrap();
    }
    for link in ["link", "dangling"] {
        lchown(scene.path(link), Some(54_321), None).unwrap();
    }
    // The same holds for a link before the last name.
    fs::create_dir(scene.path("theirs")).unwrap();
    symlink("theirs", scene.path("way")).unwrap();
    lchown(scene.path("way"), Some(54_321), None).unwrap();
    symlink("way/out", scene.path("led")).unwrap();
    for (named, at) in [
        ("link", "link"),
        ("dangling", "dangling"),
        ("own", "link"),
        ("way/out", "way"),
        ("way/none/out", "way"),
        ("led", "way"),
    ] {
        for command in [
            "image export file://~/store:a",
            "image export file://~/store:a --format qcow2",
            "zfile pack disk.raw",
            "zfile unpack packed.zf",
        ] {
            let parts = [at, "symbolic link of another user (id 54321)", "chown -h 0 "];
            scene.fails(&format!("{command} -o {named}"), &parts);
        }
    }
    assert_eq!(scene.bytes("precious"), b"precious");
    assert!(!scene.path("nothing").exists() && scene.names("theirs").is_empty());
    // The target of the link is relative to its place.
    let theirs = scene.path("theirs/out").display().to_string();
    scene.fails("image export file://~/store:a -o ~/way/out", &[theirs.trim_end_matches("/out")]);
    // A directory of another user's is no link, and a link of the user's own is not another's.
    lchown(scene.path("theirs"), Some(54_321), None).unwrap();
    symlink("theirs", scene.path("mine")).unwrap();
    scene.ok("image export file://~/store:a -o mine/out");
    assert_same(&scene, "disk.raw", "theirs/out");
}

/// Even `kill -9` leaves nothing, and the rest of an export on a file system without unnamed files is removed by the
/// next export.
#[test]
fn a_killed_export_leaves_nothing() {
    let scene = imported(128);
    fs::write(scene.path("out.raw"), "old").unwrap();
    let before = scene.names("");
    let here = scene.path("").canonicalize().unwrap();
    // A file beside the output, with a temporary name or none.
    let is_made = |target: PathBuf| {
        target.parent() == Some(here.as_path())
            && target.file_name().unwrap().to_str().unwrap().starts_with(['.', '#'])
    };
    let is_killed = |format: &str| {
        let mut export = scene.start(&format!("image export file://~/store:a -o out.raw --format {format}"));
        let process = format!("/proc/{}", export.id());
        let entries = |of: &str| fs::read_dir(format!("{process}/{of}")).into_iter().flatten().flatten();
        let is_still = || {
            let mut states =
                entries("task").filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
            states.all(|state| state.contains(") T") || state.contains(") Z"))
        };
        let mut is_begun = false;
        while !is_begun && export.is_running() {
            is_begun = entries("fd").filter_map(|entry| fs::read_link(entry.path()).ok()).any(is_made);
        }
        if is_begun {
            export.signal(Signal::STOP);
            while !is_still() {
                std::thread::yield_now();
            }
            // The kill must not come in the moment in which it has a temporary name.
            is_begun = scene.bytes("out.raw") == b"old"
                && !scene.names("").iter().any(|name| name.starts_with(".headstart-"));
            export.signal(Signal::KILL);
        }
        export.finish().status.is_none() && is_begun
    };
    for format in ["raw", "qcow2"] {
        // An export that has ended before it could be killed is begun again.
        let mut tries = 0;
        while !is_killed(format) {
            tries += 1;
            assert!(tries < 50, "it cannot be killed before it ends");
            fs::write(scene.path("out.raw"), "old").unwrap();
        }
        assert_eq!((scene.names(""), scene.bytes("out.raw")), (before.clone(), b"old".to_vec()), "{format}");
    }
    fs::write(scene.path(".headstart-left12"), "half").unwrap();
    scene.ok("image export file://~/store:a -o out.raw");
    assert_eq!(scene.names(""), before);
    assert_same(&scene, "disk.raw", "out.raw");
}

#[test]
fn a_failed_export_leaves_the_older_file() {
    let scene = imported(8);
    fs::write(scene.path("out.raw"), "old").unwrap();
    scene.fails("image export file://~/store:none -o out.raw", &["store:none", "image list"]);
    scene.fails("image export file://~/store:a -o out.raw --format vmdk", &["vmdk", "qemu-img"]);
    // A layer that turns out to be damaged half-way.
    let layer = scene.json("image inspect file://~/store:a")["layers"][0]["digest"].clone();
    let blob = scene.blob("store", &layer);
    let mut bytes = fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let said = ["do not match the hash tree", layer.as_str().unwrap().strip_prefix("sha256:").unwrap()];
    scene.fails("image export file://~/store:a -o out.raw", &said);
    scene.fails("image export file://~/store:a -o out.raw --format qcow2", &said);
    assert_eq!(scene.bytes("out.raw"), b"old");
    assert_eq!(scene.names(""), ["disk.raw", "out.raw", "store"]);
}

#[test]
fn outputs_that_cannot_be_written_are_named() {
    let scene = imported(2);
    fs::create_dir(scene.path("dir")).unwrap();
    let run = scene.fails(
        "image export file://~/store:a -o none/out.raw",
        &["none/out.raw", "No such file", "make the directory none first"],
    );
    assert!(!run.stderr.contains(".headstart-"), "{run}");
    scene.fails("image export file://~/store:a -o dir", &["dir", "directory"]);
    let no_directory = format!("{} is not a directory: name another place", scene.path("disk.raw").display());
    scene.fails("image export file://~/store:a -o disk.raw/out.raw", &["disk.raw/out.raw", &no_directory]);
    assert_eq!(scene.names("dir"), [""; 0]);
}

/// `-o /dev/null` must not replace the device by a file, nor `-o pipe` a pipe.
#[test]
fn special_files_are_neither_replaced_nor_written() {
    let scene = imported(2);
    tools::run(&scene, "mkfifo", "special");
    scene.ok("zfile pack disk.raw -o packed.zf");
    let refused = || {
        for command in [
            "image export file://~/store:a -o special",
            "image export file://~/store:a -o special --format qcow2",
            "zfile pack disk.raw -o special",
            "zfile unpack packed.zf -o special",
        ] {
            scene.fails(command, &["special", "neither a file nor a block device"]);
        }
    };
    refused();
    assert!(fs::metadata(scene.path("special")).unwrap().file_type().is_fifo());
    // Its target is a pipe here.
    let parts = ["/dev/stdout", "neither a file nor a block device", "name a file"];
    scene.fails("image export file://~/store:a -o /dev/stdout", &parts);
    if !is_root() {
        return;
    }
    fs::remove_file(scene.path("special")).unwrap();
    // The device is like /dev/null, which no test should risk.
    tools::run(&scene, "mknod", "special c 1 3");
    refused();
    assert!(fs::metadata(scene.path("special")).unwrap().file_type().is_char_device());
}

#[test]
fn a_block_device_is_overwritten_zeros_included() {
    let scene = imported(8);
    fs::write(scene.path("medium"), noise(3, 9 << 20)).unwrap();
    let Some(device) = LoopDevice::over(&scene.path("medium")) else { return };
    scene.ok(&format!("image export file://~/store:a -o {}", device.path));
    let read = fs::read(&device.path).unwrap();
    assert!(read[..8 << 20] == scene.bytes("disk.raw"));
    assert!(read[8 << 20..] == noise(3, 9 << 20)[8 << 20..], "past the disk's end it is as it was");
}

#[test]
fn a_block_device_that_is_too_small_is_left_alone() {
    let scene = imported(8);
    DiskBuilder::create(scene.path("medium"), 4 << 20).write(0, &noise(3, 4 << 20));
    let Some(device) = LoopDevice::over(&scene.path("medium")) else { return };
    let export = format!("image export file://~/store:a -o {}", device.path);
    scene.fails(&export, &[&device.path, "4194304", "8388608"]);
    scene.fails(&format!("{export} --format qcow2"), &[&device.path, "raw"]);
    assert!(fs::read(&device.path).unwrap() == noise(3, 4 << 20));
}

/// A name with the ending of a directory's is not one of a file.
#[test]
fn an_output_that_is_named_as_a_directory_is_refused() {
    let scene = imported(2);
    fs::create_dir(scene.path("dir")).unwrap();
    for (output, cause) in [
        ("new/", "is the name of a directory"),
        ("new/.", "is the name of a directory"),
        ("disk.raw/", "is the name of a directory"),
        ("none/new/", "is the name of a directory"),
        ("dir/", "is a directory"),
    ] {
        for words in [
            "image export file://~/store:a",
            "zfile pack disk.raw",
            "train --traces nothing",
            "plan export file://~/store:a",
        ] {
            scene.fails(&format!("{words} -o {output}"), &[output, cause, "name a file"]);
        }
    }
    assert_eq!(scene.names(""), ["dir", "disk.raw", "store"]);
    assert_eq!(scene.names("dir"), [""; 0]);
}

/// Traces and figures become directories, which no pipe and no file can be.
#[test]
fn a_place_that_is_no_directory_is_named() {
    let scene = imported(2);
    scene.ok("trace synthesize --images 2 --traces 2 --format parquet -o traces");
    let file = format!("{} is not a directory: name another place", scene.path("disk.raw").display());
    for (words, remedy) in [
        ("trace export traces -o disk.raw", file.as_str()),
        ("trace export traces -o disk.raw/set", &file),
        ("trace plot traces -o disk.raw", &file),
        ("trace synthesize --images 2 --traces 2 --format parquet -o disk.raw", &file),
        ("trace export traces -o /dev/stdout", "/dev/stdout is not a directory: name another place"),
    ] {
        scene.fails(words, &[remedy]);
    }
}

/// The command in a mount namespace of its own, where `fixed` is read-only; `None` if there can be none.
fn with_fixed(scene: &Scene, words: &str) -> Option<CommandRun> {
    const FIX: &str = "mount --bind fixed fixed && mount -o remount,bind,ro fixed || exit 3; exec \"$@\"";
    let unshare = |program: &Command| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", FIX, "sh"]);
        command.arg(program.get_program()).args(program.get_args()).current_dir(scene.path(""));
        command
    };
    let trial = unshare(&Command::new("true")).output();
    if !trial.is_ok_and(|trial| trial.status.success()) {
        tools::skipped("nothing can be mounted read-only here");
        return None;
    }
    Some(CommandRun::of(words, &mut unshare(&scene.command(words))))
}

#[test]
fn a_read_only_file_system_is_named() {
    let scene = imported(2);
    scene.ok("trace synthesize --images 2 --traces 2 --format parquet -o traces");
    fs::create_dir(scene.path("fixed")).unwrap();
    fs::create_dir(scene.path("fixed/made")).unwrap();
    for (words, at) in [
        ("image export file://~/store:a -o fixed/out.raw", "fixed"),
        ("zfile pack disk.raw -o fixed/made/out.zf", "fixed/made"),
        ("trace export traces -o fixed/new/set", "fixed"),
        ("trace export traces -o fixed/made", "fixed/made"),
        ("trace synthesize --images 2 --traces 2 --format parquet -o fixed/made", "fixed/made"),
        ("trace plot traces -o fixed/made", "fixed/made"),
    ] {
        let Some(run) = with_fixed(&scene, words) else { return };
        let at = scene.path(at);
        let remedy = format!("the file system that {} is on is read-only: name a place on", at.display());
        run.fails(&[words.rsplit(" ").next().unwrap(), &remedy]);
    }
}

/// Runs a command as another user in the scene's directory `own`.
fn run_as_other(scene: &Scene, words: &str) -> CommandRun {
    let plain = scene.command(words);
    let mut command = Command::new("setpriv");
    command.args(["--clear-groups", "--reuid", "54321", "--regid", "54321"]);
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(scene.path("own"));
    CommandRun::of(words, &mut command)
}

/// A scene that another user can reach, with a directory `own` of that user's, and these in it; `None` if this user
/// cannot make one.
fn others_scene(dirs: &[&str]) -> Option<Scene> {
    let scene = Scene::within(&std::env::temp_dir());
    if !is_root() || !installed(&["setpriv"]) {
        return None;
    }
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    for dir in std::iter::once(&"own").chain(dirs) {
        fs::create_dir(scene.path(dir)).unwrap();
        lchown(scene.path(dir), Some(54_321), Some(54_321)).unwrap();
    }
    mixed_disk(&scene, "disk.raw", 4);
    Some(scene)
}

/// Another user's directory, and this user's own one, that may not even be entered.
#[test]
fn the_directory_that_cannot_be_entered_is_named() {
    let Some(scene) = others_scene(&["own/shut"]) else { return };
    let as_other = |words: &str| run_as_other(&scene, words);
    as_other("image import ~/disk.raw file://~/own/store:a").succeeds();
    as_other("trace synthesize --images 2 --traces 2 --format parquet -o ~/own/traces").succeeds();
    let trace = scene.names("own/traces").into_iter().find(|name| name.ends_with(".parquet")).unwrap();
    fs::create_dir(scene.path("shut")).unwrap();
    fs::set_permissions(scene.path("shut"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(scene.path("own/shut"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink(scene.path("").canonicalize().unwrap().join("shut/out"), scene.path("own/link")).unwrap();
    lchown(scene.path("own/link"), Some(54_321), Some(54_321)).unwrap();
    let top = scene.path("").canonicalize().unwrap();
    let others = format!("{} belongs to another user (id 0)", top.join("shut").display());
    let own = format!("chmod u+rwx {}", top.join("own/shut").display());
    for (place, remedy) in
        [("~/shut/out", &others), ("~/shut/deep/er/out", &others), ("link", &others), ("shut/out", &own)]
    {
        for words in [
            "image export file://~/own/store:a -o",
            "train --traces nothing -o",
            "plan export file://~/own/store:a -o",
            "zfile pack ~/disk.raw -o",
        ] {
            as_other(&format!("{words} {place}")).fails(&["cannot be reached: Permission denied", remedy]);
        }
        if place != "link" {
            let replay = format!("replay ~/own/traces/{trace} nbd://127.0.0.1:9 --plot {place}.svg");
            as_other(&replay).fails(&["cannot be reached: Permission denied", remedy]);
        }
    }
}

#[test]
fn the_directory_in_which_no_output_can_be_made_is_named() {
    let Some(scene) = others_scene(&["own/closed"]) else { return };
    let as_other = |words: &str| run_as_other(&scene, words);
    as_other("image import ~/disk.raw file://~/own/store:a").succeeds();
    as_other("trace synthesize --images 4 --traces 20 --seed 3 -o ~/own/set").succeeds();
    as_other("trace synthesize --images 2 --traces 2 --format parquet -o ~/own/traces").succeeds();
    let top = scene.path("").canonicalize().unwrap();
    let others = format!("{} belongs to another user (id 0)", top.display());
    for words in [
        "image export file://~/own/store:a -o ~/out.raw",
        "image export file://~/own/store:a -o ~/out.qcow2 --format qcow2",
        "trace export ~/own/traces -o ~/new/set",
        "trace synthesize --images 2 --traces 2 -o ~/set",
        "trace synthesize --images 2 --traces 2 --format parquet -o ~/set",
        "trace plot ~/own/set -o ~/plots --figures 3 --format svg",
    ] {
        as_other(words).fails(&["Permission denied", &others, "name a place in a directory of your own"]);
    }
    assert_eq!(scene.names(""), ["disk.raw", "own"]);
    // The user's own directory may be closed, too.
    fs::set_permissions(scene.path("own/closed"), fs::Permissions::from_mode(0o555)).unwrap();
    let remedy = format!("chmod u+rwx {}", top.join("own/closed").display());
    for words in [
        "image export file://~/own/store:a -o ~/own/closed/out.raw",
        "trace plot ~/own/set -o ~/own/closed --figures 3 --format svg",
    ] {
        as_other(words).fails(&["own/closed", &remedy]);
    }
}
