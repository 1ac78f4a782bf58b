//! A tree of files, written by GNU tar in its formats.

use crate::support::{ListedFile, installed, output, whole};
use headstart_tar::{TarKind, TarTime};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, mknodat, setxattr, utimensat,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn set_mtime(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree; with `extremes`, of what only the newer formats can say. Returns whether a file has an extended attribute.
fn tree(root: &Path, extremes: bool) -> bool {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/file"), b"some text").unwrap();
    fs::set_permissions(root.join("dir/file"), Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(root.join("dir/file"), root.join("second name")).unwrap();
    symlink("dir//./file", root.join("symlink")).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    let holes = File::create(root.join("holes")).unwrap();
    for part in 0..40 {
        holes.write_all_at(&[b'd'; 5000], part * (64 << 10)).unwrap();
    }
    holes.set_len(3 << 20).unwrap();
    File::create(root.join("only holes")).unwrap().set_len(1 << 20).unwrap();
    let mut has_xattr = false;
    if extremes {
        let _ = mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0);
        let long = root.join("l".repeat(120)).join("m".repeat(200));
        fs::create_dir_all(&long).unwrap();
        fs::write(long.join("n"), b"deep").unwrap();
        symlink("t".repeat(300), root.join("long symlink")).unwrap();
        let xattr = setxattr(root.join("empty"), "user.test", b"\0value\n", XattrFlags::empty());
        has_xattr = xattr.is_ok();
        // Only root may.
        let _ = chown(root.join("dir"), Some(3_000_000_000), Some(70_000));
        set_mtime(&long.join("n"), -2, 500_000_000);
        set_mtime(&root.join("symlink"), (1 << 33) + 5, 123_456_789);
    } else {
        set_mtime(&root.join("symlink"), 1_000_000_000, 0);
    }
    has_xattr
}

/// Compares an entry with the file that it was made of.
fn compare(root: &Path, file: &ListedFile, has_fractions: bool) {
    let entry = &file.entry;
    let path = root.join(Path::new(OsStr::from_bytes(&entry.path)));
    let metadata = fs::symlink_metadata(&path).unwrap();
    assert_eq!((entry.uid, entry.gid), (metadata.uid(), metadata.gid()), "{path:?}");
    assert_eq!(entry.mode, metadata.mode() & 0o7777, "{path:?}");
    let nanoseconds = if has_fractions { u32::try_from(metadata.mtime_nsec()).unwrap() } else { 0 };
    assert_eq!(entry.mtime, TarTime { seconds: metadata.mtime(), nanoseconds }, "{path:?}");
    match entry.kind {
        TarKind::Regular => {
            assert!(file.content == fs::read(&path).unwrap() && metadata.is_file(), "{path:?}");
            assert_eq!(entry.size, metadata.len());
        }
        TarKind::HardLink => {
            let target = root.join(Path::new(OsStr::from_bytes(&entry.link_target)));
            assert_eq!(fs::symlink_metadata(target).unwrap().ino(), metadata.ino());
        }
        TarKind::Symlink => {
            assert_eq!(fs::read_link(&path).unwrap().as_os_str().as_bytes(), entry.link_target);
        }
        TarKind::Directory => assert!(metadata.is_dir()),
        TarKind::Fifo => assert_eq!(FileType::from_raw_mode(metadata.mode()), FileType::Fifo),
        TarKind::CharDevice | TarKind::BlockDevice => panic!("{path:?} is a device"),
    }
}

/// Writes a tree by `tar` with `options`, and compares it with the archive. Returns the entries by path.
fn check(options: &[&str], extremes: bool) -> BTreeMap<Vec<u8>, ListedFile> {
    let directory = TempDir::new().unwrap();
    let has_xattr = tree(directory.path(), extremes);
    let mut tar = Command::new("tar");
    tar.arg("--sort=name").args(options);
    let archive = output(tar.args(["-cf", "-", "-C"]).arg(directory.path()).arg("."));
    let is_pax = options.contains(&"--format=pax");
    let files = whole(&archive);
    for file in &files {
        compare(directory.path(), file, is_pax);
    }
    let by_path: BTreeMap<_, _> = files.into_iter().map(|file| (file.entry.path.clone(), file)).collect();
    let mut wanted = 8;
    if extremes {
        wanted += 4 + usize::from(directory.path().join("fifo").exists());
    }
    assert_eq!(by_path.len(), wanted, "{:?}", by_path.keys());
    assert_eq!(by_path[&b"./second name"[..]].entry.kind, TarKind::HardLink);
    let xattrs = &by_path[&b"./empty"[..]].entry.xattrs;
    if is_pax && has_xattr {
        assert_eq!(*xattrs, [(b"user.test".to_vec(), b"\0value\n".to_vec())]);
    } else {
        assert!(xattrs.is_empty());
    }
    by_path
}

fn is_sparse(files: &BTreeMap<Vec<u8>, ListedFile>) -> bool {
    let [holes, only_holes] = [&b"./holes"[..], b"./only holes"].map(|path| &files[path].entry);
    // More extents than the header and one block of an old sparse file have.
    let has_extents = holes.sparse.as_ref().is_some_and(|extents| extents.len() > 25);
    has_extents && holes.stored_size < 1 << 20 && only_holes.stored_size == 0
}

#[test]
fn trees_of_gnu_tar_are_read_in_all_formats() {
    if !installed("tar", "--version") {
        return;
    }
    for format in ["--format=v7", "--format=ustar"] {
        assert!(!is_sparse(&check(&[format], false)));
    }
    // Holes are found by the zeros in them, since not every file system tells where they are.
    let sparse = ["--sparse", "--hole-detection=raw"];
    for format in ["--format=gnu", "--format=oldgnu"] {
        assert!(!is_sparse(&check(&[format], true)));
        assert!(is_sparse(&check(&[&[format], &sparse[..]].concat(), true)));
    }
    assert!(!is_sparse(&check(&["--format=pax", "--xattrs"], true)));
    for version in ["--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"] {
        assert!(is_sparse(&check(&[&["--format=pax", "--xattrs", version], &sparse[..]].concat(), true)));
    }
}
