//! The disk as a file: compared, put under loop devices, mounted, checked after writes. A test that vhost-user starts.

use crate::attached::Attached;
use crate::disk::{assert_same, noise, text};
use crate::images::{Web, layered, tool};
use crate::scene::Scene;
use crate::tools::{LoopDevice, find, installed, skipped};
use headstart_testkit::process::has_fuse;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_disk_is_a_file_with_all_its_bytes() {
    let scene = layered();
    if !has_fuse() || !installed(&["cmp", "qemu-img"]) {
        return;
    }
    let Some(web) = Web::before(&scene) else { return };
    // The file is in a directory, then over a file.
    fs::create_dir(scene.path("mnt")).unwrap();
    fs::write(scene.path("over"), "").unwrap();
    for (at, file) in [("mnt", "mnt/disk.raw"), ("over", "over")] {
        let words = format!("{} --cache ~/cache --fuse ~/{at}", web.image());
        let attached = Attached::start(&scene, &words);
        assert_eq!(attached.uri(), scene.path(file).display().to_string());
        let found = fs::metadata(scene.path(file)).unwrap();
        assert!(found.len() == 16 << 20 && found.permissions().readonly());
        tool(&scene, "cmp", &["disk.raw", file]);
        tool(&scene, "qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", file]);
        assert!(fs::File::options().write(true).open(scene.path(file)).is_err());
        attached.detach();
    }
    assert_eq!(scene.names("mnt"), [""; 0]);
    assert_eq!(fs::metadata(scene.path("over")).unwrap().len(), 0);
}

#[test]
fn a_data_set_of_any_size_is_a_file() {
    if !has_fuse() {
        return;
    }
    let scene = Scene::new();
    let bytes = text(5, 3_000_001);
    fs::write(scene.path("set.raw"), &bytes).unwrap();
    scene.ok("image import set.raw file://~/store:set --format raw");
    fs::write(scene.path("over"), "").unwrap();
    let attached = Attached::start(&scene, "file://~/store:set --fuse ~/over");
    assert_same(&scene, "set.raw", "over");
    attached.detach();
}

#[test]
fn the_users_of_a_file_make_the_disk_larger_only_where_they_may() {
    let scene = layered();
    if !has_fuse() {
        return;
    }
    let Some(web) = Web::before(&scene) else { return };
    fs::create_dir(scene.path("mnt")).unwrap();
    for (option, size) in [("", 16 << 20), ("--allow-resize", 20 << 20)] {
        let words = format!("{} --cache ~/cache --writable ~/w --fuse ~/mnt {option}", web.image());
        let attached = Attached::start(&scene, &words);
        let file = fs::File::options().write(true).open(scene.path("mnt/disk.raw")).unwrap();
        let grown = file.set_len(20 << 20);
        assert_eq!(grown.is_ok(), !option.is_empty(), "{grown:?}");
        if let Err(error) = grown {
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        }
        assert_eq!(file.metadata().unwrap().len(), size);
        drop(file);
        attached.detach();
        let state = fs::read_to_string(scene.path("w/state.json")).unwrap();
        assert!(state.contains(&format!("\"virtual_size\": {size}")), "{state}");
    }
}

/// A disk of 40 MiB with an ext4 file system at 1 MiB, full of files; its content is in `tree`.
fn with_file_system(scene: &Scene) {
    fs::create_dir_all(scene.path("tree/a/b c")).unwrap();
    for n in 0..150_u64 {
        let len = (n * n * 7) as usize % 90_000;
        let bytes = if n % 3 == 0 { noise(n, len) } else { text(n, len) };
        let dir = ["tree", "tree/a", "tree/a/b c"][n as usize % 3];
        fs::write(scene.path(dir).join(format!("file {n}")), bytes).unwrap();
    }
    symlink("file 0", scene.path("tree/link")).unwrap();
    fs::File::create(scene.path("fs.raw")).unwrap().set_len(39 << 20).unwrap();
    tool(scene, "mkfs.ext4", &["-q", "-F", "-d", "tree", "fs.raw"]);
    let file_system = fs::read(scene.path("fs.raw")).unwrap();
    crate::disk::DiskBuilder::create(scene.path("disk.raw"), 40 << 20)
        .write(0, &text(1, 512))
        .write(1 << 20, &file_system);
    scene.ok("image import disk.raw file://~/store:v1");
}

/// A loop device over the file system in the disk's file, gone when dropped.
fn loop_device(file: &Path, read_only: bool) -> Option<LoopDevice> {
    let mut command = Command::new(find("losetup")?);
    command.args(["--find", "--show", "--offset", "1048576"]).args(read_only.then_some("--read-only"));
    let output = command.arg(file).output().ok()?;
    if !output.status.success() {
        skipped("no loop device can be had here");
        return None;
    }
    Some(LoopDevice { path: String::from_utf8(output.stdout).unwrap().trim().to_owned() })
}

/// A mounted file system, unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    #[track_caller]
    fn new(scene: &Scene, device: &LoopDevice, options: &str) -> Self {
        let at = scene.path("mounted");
        fs::create_dir_all(&at).unwrap();
        tool(scene, "mount", &["-o", options, &device.path, "mounted"]);
        Self(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A program that another test starts meanwhile holds open files of this process until it is executed.
        for _ in 0..100 {
            if Command::new("umount").arg(&self.0).status().is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        // A busy mount must not keep the device.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn can_mount() -> bool {
    has_fuse() && installed(&["losetup", "mkfs.ext4", "fsck.ext4", "diff", "mount", "umount"])
}

#[test]
fn a_file_system_on_it_is_read_through_a_loop_device() {
    if !can_mount() {
        return;
    }
    let scene = Scene::new();
    with_file_system(&scene);
    let Some(web) = Web::before(&scene) else { return };
    fs::create_dir(scene.path("mnt")).unwrap();
    let attached = Attached::start(&scene, &format!("{} --cache ~/cache --fuse ~/mnt", web.image()));
    {
        let Some(device) = loop_device(&scene.path("mnt/disk.raw"), true) else { return };
        let _mounted = Mounted::new(&scene, &device, "ro,noload");
        tool(&scene, "diff", &["-r", "--no-dereference", "--exclude=lost+found", "tree", "mounted"]);
    }
    attached.detach();
    assert_eq!(scene.names("mnt"), [""; 0]);
}

/// Files come, change and go at random by `seed`; `tree` becomes the expected content of the file system.
fn write_at_random(scene: &Scene, seed: u64) {
    let choices = noise(seed, 400 * 4);
    for (n, choice) in choices.chunks(4).enumerate() {
        let name = format!("a/new {}", choice[0] % 60);
        let len = usize::from(choice[1]) * 300;
        for top in ["tree", "mounted"] {
            let path = scene.path(top).join(&name);
            match choice[2] % 4 {
                0 => drop(fs::remove_file(&path)),
                1 => {
                    let mut bytes = fs::read(&path).unwrap_or_default();
                    bytes.truncate(len / 2);
                    bytes.extend(noise(n as u64, len));
                    fs::write(&path, bytes).unwrap();
                }
                _ => fs::write(&path, text(n as u64, len)).unwrap(),
            }
            if choice[3] % 16 == 0 && path.exists() {
                fs::File::open(&path).unwrap().sync_all().unwrap();
            }
        }
    }
}

#[test]
fn a_file_system_is_sound_after_random_writes() {
    if !can_mount() {
        return;
    }
    let scene = Scene::new();
    with_file_system(&scene);
    let Some(web) = Web::before(&scene) else { return };
    fs::create_dir(scene.path("mnt")).unwrap();
    for round in 0..2 {
        let words = format!("{} --cache ~/cache --fuse ~/mnt --writable ~/vm", web.image());
        let attached = Attached::start(&scene, &words);
        let Some(device) = loop_device(&scene.path("mnt/disk.raw"), false) else { return };
        {
            let _mounted = Mounted::new(&scene, &device, "discard");
            tool(&scene, "diff", &["-r", "--no-dereference", "--exclude=lost+found", "tree", "mounted"]);
            write_at_random(&scene, round);
            tool(&scene, "diff", &["-r", "--no-dereference", "--exclude=lost+found", "tree", "mounted"]);
        }
        tool(&scene, "fsck.ext4", &["-f", "-n", &device.path]);
        {
            let _mounted = Mounted::new(&scene, &device, "ro");
            tool(&scene, "diff", &["-r", "--no-dereference", "--exclude=lost+found", "tree", "mounted"]);
        }
        drop(device);
        attached.detach();
    }
    // The image made of it has a sound file system, too.
    scene.ok("image commit --writable ~/vm --base file://~/store:v1 file://~/store:v2");
    scene.ok("image export file://~/store:v2 -o v2.raw");
    let Some(device) = loop_device(&scene.path("v2.raw"), false) else { return };
    tool(&scene, "fsck.ext4", &["-f", "-n", &device.path]);
    let _mounted = Mounted::new(&scene, &device, "ro");
    tool(&scene, "diff", &["-r", "--no-dereference", "--exclude=lost+found", "tree", "mounted"]);
}

#[test]
fn nbd_fuse_and_vhost_user_serve_one_disk_at_once() {
    let scene = layered();
    if !has_fuse() || !installed(&["cmp", "nbdcopy", "qemu-io"]) {
        return;
    }
    fs::write(scene.path("over"), "").unwrap();
    let attached = Attached::start(
        &scene,
        "file://~/store:v1 --writable ~/vm --nbd unix:~/d.sock --fuse ~/over --vhost-user ~/v.sock --queues 2",
    );
    assert_eq!(attached.uris().len(), 3);
    assert!(fs::metadata(scene.path("v.sock")).unwrap().file_type().is_socket());
    for way in attached.ready["ways"].as_array().unwrap() {
        assert!(way["qemu"].as_str().unwrap().starts_with("qemu-system-x86_64 "), "{way}");
    }
    // One client reads the writes of another.
    tool(&scene, "qemu-io", &["-f", "raw", "-c", "write -P 9 1M 1M", "-c", "flush", &attached.uri()]);
    tool(&scene, "nbdcopy", &[&attached.uri(), "out.raw"]);
    tool(&scene, "cmp", &["out.raw", "over"]);
    assert!(scene.bytes("over")[1 << 20..2 << 20].iter().all(|byte| *byte == 9));
    attached.detach();
    assert!(!scene.path("d.sock").exists() && !scene.path("v.sock").exists());
}

/// A link of another user's does not lead root anywhere, and in a directory for all users none gets a disk by being
/// there first. A link of the user's own, and a file below another user's directory, is mounted on as before.
#[test]
fn no_disk_is_mounted_through_links_of_another_user() {
    const OTHER: u32 = 65_534;
    if !has_fuse() {
        return;
    }
    let scene = layered();
    for file in ["etc/precious", "theirs/file", "shared/file", "shared/own"] {
        fs::create_dir_all(scene.path(file).parent().unwrap()).unwrap();
        fs::write(scene.path(file), "precious").unwrap();
    }
    symlink(scene.path("etc/precious"), scene.path("theirs/link")).unwrap();
    symlink(scene.path("etc"), scene.path("theirs/dir")).unwrap();
    symlink("theirs/file", scene.path("own")).unwrap();
    for theirs in ["theirs", "theirs/file", "theirs/link", "theirs/dir", "shared/file"] {
        lchown(scene.path(theirs), Some(OTHER), None).unwrap();
    }
    chown(scene.path("shared"), Some(0), None).unwrap();
    fs::set_permissions(scene.path("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    for (place, parts) in [
        ("theirs/link", &["theirs/link", "symbolic link of another user", "etc/precious"][..]),
        ("theirs/dir/precious", &["theirs/dir", "symbolic link of another user"]),
        ("theirs/dir", &["theirs/dir", "symbolic link of another user"]),
        ("shared/file", &["shared/file", "another user", "remove it"]),
        ("theirs/none", &["theirs/none", "make a directory"]),
    ] {
        scene.fails(&format!("attach file://~/store:v1 --fuse ~/{place}"), parts);
        assert_eq!(fs::read(scene.path("etc/precious")).unwrap(), b"precious", "{place}");
    }
    for place in ["theirs/file", "own", "shared/own"] {
        let attached = Attached::start(&scene, &format!("file://~/store:v1 --fuse ~/{place}"));
        assert_eq!(fs::metadata(scene.path(place)).unwrap().len(), 16 << 20, "{place}");
        attached.detach();
        assert_eq!(fs::read(scene.path(place)).unwrap(), b"precious", "{place}");
    }
}

/// The user of the directory replaces it by another one while a disk is mounted there: only the disk is unmounted at
/// the end.
#[test]
fn the_end_of_a_disk_unmounts_the_disk_wherever_its_directory_is() {
    if !has_fuse() || !installed(&["mount", "umount"]) {
        return;
    }
    let scene = layered();
    for file in ["home/mnt/x", "system/mnt/x"] {
        fs::create_dir_all(scene.path(file).parent().unwrap()).unwrap();
    }
    let attached = Attached::start(&scene, "file://~/store:v1 --fuse ~/home/mnt");
    tool(&scene, "mount", &["-t", "tmpfs", "none", "system/mnt"]);
    let system = Mounted(scene.path("system/mnt"));
    fs::write(scene.path("system/mnt/precious"), "precious").unwrap();
    fs::rename(scene.path("home"), scene.path("moved")).unwrap();
    symlink("system", scene.path("home")).unwrap();
    attached.detach();
    assert_eq!(fs::read(scene.path("system/mnt/precious")).unwrap(), b"precious");
    assert_eq!(scene.names("moved/mnt"), [""; 0]);
    drop(system);
}
