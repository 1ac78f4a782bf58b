//! File systems that the kernel mounts: what it wrote is changed here, and what was changed here it reads.

use super::support::{
    Bytes, Disk, all_kinds, attributes, check, content, find, layer, long_name, new, put, put_dir, read_back,
};
use crate::file_system::{FileSystem, InodeNumber};
use crate::support::{Image, skip_without};
use headstart_file_blocks::FileKind;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted disk.
struct Mount {
    dir: PathBuf,
}

impl Mount {
    /// Mounts the disk in the file `image`; `None`, with a message, where that is not allowed.
    fn new(image: &Path, dir: &Path, options: &str) -> Option<Self> {
        fs::create_dir_all(dir).unwrap();
        let output = Command::new("mount").args(["-t", "ext4", "-o", options]).args([image, dir]).output();
        let cause = match &output {
            Ok(output) if output.status.success() => return Some(Self { dir: dir.to_owned() }),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(std::io::stderr(), "SKIPPED: file systems in the kernel: {cause}");
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(&self.dir).status().is_ok_and(|status| status.success());
        assert!(done || std::thread::panicking(), "cannot unmount {}", self.dir.display());
    }
}

/// Files of some kinds, in directories with an index, written by the kernel.
fn write_by_kernel(dir: &Path) {
    for number in 0..800_u64 {
        let path = dir.join("kernel").join(long_name(number));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(number, 3000)).unwrap();
    }
    for number in 0..20 {
        fs::create_dir_all(dir.join(format!("deep/{number}/a/b/c"))).unwrap();
    }
    let sparse = File::create(dir.join("sparse")).unwrap();
    for number in 0..20 {
        sparse.write_all_at(&content(number, 5000), number << 20).unwrap();
    }
    fs::write(dir.join("large"), content(1, 3_000_000)).unwrap();
    fs::hard_link(dir.join("large"), dir.join("other name")).unwrap();
    std::os::unix::fs::symlink("x".repeat(300), dir.join("long link")).unwrap();
    std::os::unix::fs::symlink("short", dir.join("link")).unwrap();
    fs::set_permissions(dir.join("large"), fs::Permissions::from_mode(0o4751)).unwrap();
}

/// Compares what the kernel shows of a directory with what is read here, with all that is below.
fn compare(fs: &mut FileSystem<Disk>, dir: InodeNumber, path: &Path) -> usize {
    let mut shown: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect();
    shown.sort();
    let entries = fs.all_entries(dir).unwrap();
    assert_eq!(entries.keys().cloned().collect::<Vec<_>>(), shown);
    let mut count = entries.len();
    for (name, file) in entries {
        let path = path.join(std::ffi::OsStr::from_bytes(&name));
        let (meta, status) = (fs::symlink_metadata(&path).unwrap(), fs.status(file).unwrap());
        assert_eq!(fs.lookup(dir, &name).unwrap(), Some(file));
        assert_eq!(meta.ino(), u64::from(file.0));
        assert_eq!(meta.mode(), u32::from(status.kind.mode_bits() | status.mode), "{}", path.display());
        assert_eq!((meta.uid(), meta.gid(), meta.nlink()), (status.uid, status.gid, u64::from(status.links)));
        assert_eq!(
            (meta.mtime(), meta.mtime_nsec()),
            (status.mtime.seconds(), i64::from(status.mtime.nanoseconds()))
        );
        match status.kind {
            FileKind::Directory => count += compare(fs, file, &path),
            FileKind::Regular => {
                assert!(fs::read(&path).unwrap() == read_back(fs, file), "{}", path.display());
            }
            FileKind::Symlink => {
                let target = fs::read_link(&path).unwrap();
                assert_eq!(target.into_os_string().into_vec(), fs.link_target(file).unwrap());
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = status.device;
                let [major, minor] = [major, minor].map(u64::from);
                let number = minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12;
                assert_eq!(meta.rdev(), number, "{}", path.display());
            }
            FileKind::Fifo | FileKind::Socket => {}
        }
    }
    count
}

fn change(fs: &mut FileSystem<Disk>) {
    let root = fs.root();
    let kernel = find(fs, root, b"kernel").unwrap();
    for number in 0..300 {
        assert!(fs.remove(kernel, long_name(number * 2).as_bytes()).unwrap());
    }
    for number in 1000..1500 {
        put(fs, kernel, long_name(number).as_bytes(), &content(number, 100)).unwrap();
    }
    let deep = find(fs, root, b"deep").unwrap();
    assert!(fs.remove(deep, b"7").unwrap() && fs.remove(root, b"long link").unwrap());
    assert!(fs.remove(root, b"other name").unwrap());
    fs.replace(root, b"large", &attributes(0o640), &mut Bytes::new(content(1, 3_000_000))).unwrap();
    fs.replace(root, b"sparse", &attributes(0o640), &mut Bytes::new(content(5, 70_000))).unwrap();
    put_dir(fs, root, b"new").unwrap();
}

/// A layer on what the kernel wrote, the kernel's look at the layer, and the kernel's changes of it.
fn back_and_forth(base: &Path, dir: &Path) -> bool {
    let [top, third, mount] = ["top", "third", "mount"].map(|name| dir.join(name));
    let Some(mounted) = Mount::new(base, &mount, "loop") else { return false };
    write_by_kernel(&mount);
    drop(mounted);
    check(base);
    let mut fs = layer(base, &top);
    change(&mut fs);
    fs.finish().unwrap();
    check(&top);
    let mut fs = layer(&top, &third);
    let root = fs.root();
    if find(&mut fs, root, b"usr").is_err() {
        all_kinds(&mut fs, 500).unwrap();
    }
    fs.finish().unwrap();
    check(&third);
    let mut look = layer(&third, &dir.join("look"));
    let Some(mounted) = Mount::new(&third, &mount, "loop,ro") else { return false };
    assert!(compare(&mut look, root, &mount) > 1500);
    drop(mounted);
    // The kernel goes on where a layer ended.
    let Some(mounted) = Mount::new(&third, &mount, "loop") else { return false };
    for number in 2000..2300 {
        fs::write(mount.join("kernel").join(long_name(number)), content(number, 100)).unwrap();
        fs::write(mount.join("usr/many").join(long_name(number)), content(number, 100)).unwrap();
    }
    fs::remove_dir_all(mount.join("deep")).unwrap();
    fs::remove_file(mount.join("large")).unwrap();
    drop(mounted);
    check(&third);
    true
}

#[test]
fn the_kernel_and_layers_read_and_change_each_others_file_systems() {
    let Some(programs) = skip_without("file systems in the kernel", &["mke2fs", "e2fsck"]) else { return };
    for options in ["^metadata_csum", "^metadata_csum,^has_journal,^64bit,uninit_bg"] {
        let base = Image::make(&programs[0], "200M", &["-O", options], &[]);
        let dir = tempfile::tempdir().unwrap();
        if !back_and_forth(&base.path(), dir.path()) {
            return;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    let mut fs = new(&base, 300 << 20);
    all_kinds(&mut fs, 500).unwrap();
    fs.finish().unwrap();
    back_and_forth(&base, dir.path());
}
