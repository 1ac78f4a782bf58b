//! The FUSE server, mounted for real and used by real programs. Needs root and `/dev/fuse`; prints what it skips.

#![expect(clippy::disallowed_methods, reason = "a test looks at the clock to see that nobody waits")]

mod kept;
mod loop_device;
mod sparse_disk;
mod used;

use headstart_block::{BlockDevice, ByteRange};
use headstart_export::fuse::{FuseServer, FuseSettings};
use headstart_export::{Export, Server};
use headstart_testkit::process::{has_fuse, installed, one_test};
use rustix::fs::OFlags;
use rustix::io::Errno;
use sparse_disk::SparseDisk;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// Runs a tool; returns its output. Panics with its messages if it fails.
fn run(tool: &str, args: &[&str]) -> String {
    let output = Command::new(tool).args(args).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {}\n{said}{complaint}", output.status);
    said
}

/// Bytes that do not repeat, with holes.
fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let hole = (bytes.len() / 65536) % 3 == 1;
        bytes.extend(if hole { [0; 8] } else { (state ^ (state >> 29)).to_le_bytes() });
    }
    bytes.truncate(len);
    bytes
}

/// A disk mounted in a directory of its own.
struct Mounted {
    server: Option<FuseServer>,
    disk: Arc<SparseDisk>,
    directory: tempfile::TempDir,
}

impl Mounted {
    fn new(disk: SparseDisk) -> Self {
        Self::with(disk, &FuseSettings::default())
    }

    fn with(disk: SparseDisk, settings: &FuseSettings) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let point = directory.path().join("mnt");
        fs::create_dir(&point).unwrap();
        let disk = Arc::new(disk);
        let export = Export::new("test", Arc::clone(&disk) as Arc<dyn BlockDevice>);
        let server = FuseServer::start(export, &point, settings).unwrap();
        Self { server: Some(server), disk, directory }
    }

    fn path(&self) -> PathBuf {
        self.server.as_ref().unwrap().path().to_owned()
    }

    fn text(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn stop(&mut self) {
        Box::new(self.server.take().unwrap()).stop().unwrap();
        assert!(!is_mount_point(&self.beside("mnt")));
    }
}

fn is_mount_point(path: &Path) -> bool {
    let here = fs::metadata(path).unwrap().dev();
    here != fs::metadata(path.parent().unwrap()).unwrap().dev()
}

#[test]
fn a_data_set_is_read_whole_with_its_exact_size() {
    if !has_fuse() {
        return;
    }
    for len in [1, 511, 513, 4095, 1_000_003] {
        let bytes = content(len, len as u64);
        let mut mounted = Mounted::new(SparseDisk::of(&bytes, true));
        let (plain, copy) = (mounted.beside("plain"), mounted.beside("copy"));
        fs::write(&plain, &bytes).unwrap();
        assert_eq!(fs::metadata(mounted.path()).unwrap().len(), len as u64);
        run("cp", &[&mounted.text(), copy.to_str().unwrap()]);
        run("cmp", &[plain.to_str().unwrap(), copy.to_str().unwrap()]);
        run("cmp", &[plain.to_str().unwrap(), &mounted.text()]);
        let direct = mounted.beside("direct");
        let to = format!("of={}", direct.display());
        run("dd", &[&format!("if={}", mounted.text()), &to, "iflag=direct", "bs=64k", "status=none"]);
        assert_eq!(fs::read(direct).unwrap(), bytes);
        let refused = OpenOptions::new().write(true).open(mounted.path()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
        let names: Vec<_> =
            fs::read_dir(mounted.beside("mnt")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["disk.raw"]);
        mounted.stop();
    }
}

#[test]
fn a_regular_file_becomes_the_disk() {
    if !has_fuse() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.img");
    fs::write(&path, b"what was there").unwrap();
    let bytes = content(300_000, 5);
    let export = Export::new("file", Arc::new(SparseDisk::of(&bytes, true)) as Arc<dyn BlockDevice>);
    let server = FuseServer::start(export.clone(), &path, &FuseSettings::default()).unwrap();
    assert_eq!((server.path(), server.uri()), (path.as_path(), path.display().to_string()));
    assert!(fs::metadata(&path).unwrap().is_file());
    assert_eq!(fs::read(&path).unwrap(), bytes);
    let again = FuseServer::start(export, &path, &FuseSettings::default());
    let Err(error) = again else { panic!("mounted twice") };
    assert_eq!(error.kind(), headstart_block::ErrorKind::Conflict, "{error}");
    Box::new(server).stop().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"what was there");
}

#[test]
fn holes_are_found() {
    if !has_fuse() || !installed(&["qemu-img"]) {
        return;
    }
    use rustix::fs::{SeekFrom, seek};
    let bytes = content(1 << 20, 3);
    let mut mounted = Mounted::new(SparseDisk::of(&bytes, true));
    let file = File::open(mounted.path()).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 65536);
    assert_eq!(seek(&file, SeekFrom::Data(70_000)).unwrap(), 131_072);
    assert_eq!(seek(&file, SeekFrom::Hole((1 << 20) - 10)).unwrap(), 1 << 20);
    assert_eq!(seek(&file, SeekFrom::Data(1 << 20)), Err(Errno::NXIO));
    drop(file);
    let plain = mounted.beside("plain");
    fs::write(&plain, &bytes).unwrap();
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", plain.to_str().unwrap(), &mounted.text()]);
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &mounted.text()]);
    assert!(
        map.contains(r#""start": 65536, "length": 65536, "depth": 0, "present": true, "zero": true"#),
        "{map}"
    );
    mounted.stop();
}

#[test]
fn any_bytes_can_be_written() {
    if !has_fuse() {
        return;
    }
    use rustix::fs::{FallocateFlags, fallocate};
    let mut model = content(1 << 20, 9);
    let settings = FuseSettings { allow_resize: true, ..FuseSettings::default() };
    let mut mounted = Mounted::with(SparseDisk::of(&model, false), &settings);
    let file = OpenOptions::new().read(true).write(true).open(mounted.path()).unwrap();
    let mut state = 77_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for round in 0..300 {
        let offset = random(model.len());
        let len = random(if round % 5 == 0 { 200_000 } else { 3000 }).min(model.len() - offset);
        if round % 4 == 3 && len > 0 {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let flags = if round % 8 == 3 { flags } else { FallocateFlags::ZERO_RANGE };
            fallocate(&file, flags, offset as u64, len as u64).unwrap();
            model[offset..offset + len].fill(0);
        } else {
            let data = content(len, round);
            file.write_all_at(&data, offset as u64).unwrap();
            model[offset..offset + len].copy_from_slice(&data);
        }
    }
    assert!(mounted.disk.bytes() == model, "what was written is on the disk before any sync");
    // Other tests start programs, which close their inherited descriptors of this file: that is a flush too.
    let flushed = mounted.disk.flushes.load(Ordering::Relaxed);
    file.sync_data().unwrap();
    assert!(mounted.disk.flushes.load(Ordering::Relaxed) > flushed);
    // Past the end there is nothing; the file grows when it is asked to, by whole sectors, and never shrinks.
    let end = model.len() as u64;
    assert_eq!(file.write_at(&[1; 1024], end - 512).unwrap(), 512);
    assert_eq!(file.write_at(&[1; 10], end).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(file.set_len(end - 512).unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    file.set_len(end + 4096).unwrap();
    assert_eq!((mounted.disk.size(), file.metadata().unwrap().len()), (end + 4096, end + 4096));
    file.write_all_at(b"new", end + 100).unwrap();
    mounted.disk.fail_writes.store(true, Ordering::Relaxed);
    assert_eq!(file.write_at(b"x", 0).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    mounted.disk.fail_writes.store(false, Ordering::Relaxed);
    drop(file);
    mounted.stop();
    assert_eq!(&mounted.disk.bytes()[model.len() + 100..][..3], b"new");
}

#[test]
fn neighbours_in_one_sector_do_not_lose_each_others_writes() {
    if !has_fuse() {
        return;
    }
    const WRITERS: usize = 8;
    let mut mounted = Mounted::new(SparseDisk::new(64 << 10, false));
    let path = mounted.path();
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = &path;
            scope.spawn(move || {
                // Memory maps and O_DIRECT reach the server in parallel; the kernel serialises buffered writes.
                let flags = if writer % 2 == 0 { OFlags::DIRECT } else { OFlags::empty() };
                use std::os::unix::fs::OpenOptionsExt;
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags(flags.bits().cast_signed())
                    .open(path)
                    .unwrap();
                for round in 0..200_usize {
                    let at = (round % 16) * 512 + writer * 64;
                    file.write_all_at(&[(writer + 1) as u8; 64], at as u64).unwrap();
                }
            });
        }
    });
    let bytes = mounted.disk.bytes();
    for (at, byte) in bytes[..16 * 512].iter().enumerate() {
        assert_eq!(usize::from(*byte), at % 512 / 64 + 1, "at {at}");
    }
    mounted.stop();
}

#[test]
fn a_read_from_elsewhere_holds_up_nobody() {
    if !has_fuse() {
        return;
    }
    let bytes = content(8 << 20, 11);
    let mut mounted = Mounted::new(SparseDisk::of(&bytes, true));
    mounted.disk.leave(ByteRange::between(4 << 20, 8 << 20));
    let path = mounted.path();
    let (bytes, path, disk) = (&bytes, &path, &mounted.disk);
    thread::scope(|scope| {
        let stuck: Vec<_> = (0..32)
            .map(|number: u64| {
                scope.spawn(move || {
                    let mut buf = [0; 4096];
                    let at = (4 << 20) + number * 100_000;
                    File::open(path).unwrap().read_exact_at(&mut buf, at).unwrap();
                    assert_eq!(buf[..], bytes[at as usize..at as usize + 4096]);
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        let mut local = vec![0; 3 << 20];
        File::open(path).unwrap().read_exact(&mut local).unwrap();
        assert!(local == bytes[..3 << 20]);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert!(stuck.iter().all(|thread| !thread.is_finished()));
        disk.arrive();
    });
    mounted.stop();
}

/// The store is away, more reads wait than there are threads for, and another program makes its writes durable.
#[test]
fn a_flush_does_not_wait_for_reads() {
    if !has_fuse() {
        return;
    }
    let mut mounted = Mounted::new(SparseDisk::of(&content(16 << 20, 17), false));
    mounted.disk.leave(ByteRange::between(4 << 20, 16 << 20));
    // Opened before: the kernel drops the file's pages at each open, which waits for pages that are being read.
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    let (file, disk) = (&file, &mounted.disk);
    thread::scope(|scope| {
        for number in 0..80 {
            scope.spawn(move || {
                let mut buf = [0; 4096];
                file.read_exact_at(&mut buf, (4 << 20) + number * 140_000).unwrap();
            });
        }
        thread::sleep(Duration::from_millis(300));
        let (done, flushed) = std::sync::mpsc::channel();
        scope.spawn(move || {
            file.write_all_at(&[1; 4096], 0).unwrap();
            file.sync_all().unwrap();
            done.send(()).unwrap();
        });
        let flushed = flushed.recv_timeout(Duration::from_secs(60));
        disk.arrive();
        flushed.unwrap();
    });
    mounted.stop();
}

#[test]
fn a_stop_is_bounded_though_reads_wait_and_files_are_open() {
    if !has_fuse() {
        return;
    }
    let bytes = content(1 << 20, 13);
    let mut mounted = Mounted::new(SparseDisk::of(&bytes, true));
    mounted.disk.leave(ByteRange::between(1 << 19, 1 << 20));
    let path = mounted.path();
    let open = File::open(&path).unwrap();
    let stuck = thread::spawn(move || File::open(path).unwrap().read_at(&mut [0; 512], 1 << 19));
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    mounted.stop();
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert!(stuck.join().unwrap().is_err());
    assert!(open.read_at(&mut [0; 512], 4096).is_err());
    mounted.disk.arrive();
}

#[test]
fn a_killed_server_leaves_nothing_that_the_next_cannot_clear_away() {
    if !has_fuse() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for over_file in [false, true] {
        let point = directory.path().join(if over_file { "file" } else { "directory" });
        if over_file {
            fs::write(&point, b"").unwrap();
        } else {
            fs::create_dir(&point).unwrap();
        }
        for _ in 0..2 {
            let mut child = one_test("fuse::serve_until_killed")
                .env("HEADSTART_TEST_MOUNT_POINT", &point)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = [0; 1];
            let mut output = child.stdout.take().unwrap();
            while said != *b"!" {
                output.read_exact(&mut said).unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let file = if over_file { point.clone() } else { point.join("disk.raw") };
            let dead = File::open(file).unwrap_err();
            assert_eq!(dead.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
        }
        let bytes = content(100_000, 17);
        let export = Export::new("again", Arc::new(SparseDisk::of(&bytes, true)) as Arc<dyn BlockDevice>);
        let server = FuseServer::start(export, &point, &FuseSettings::default()).unwrap();
        assert_eq!(fs::read(server.path()).unwrap(), bytes);
        assert!(server.failed().is_none());
        drop(server);
        assert!(!is_mount_point(&point));
    }
}

#[test]
#[ignore = "the child of the test above"]
fn serve_until_killed() {
    let Some(point) = std::env::var_os("HEADSTART_TEST_MOUNT_POINT") else { return };
    let disk = Arc::new(SparseDisk::of(&content(100_000, 19), true)) as Arc<dyn BlockDevice>;
    let server =
        FuseServer::start(Export::new("killed", disk), Path::new(&point), &FuseSettings::default()).unwrap();
    fs::read(server.path()).unwrap();
    let mut output = std::io::stdout();
    output.write_all(b"!").unwrap();
    output.flush().unwrap();
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn an_unmount_by_hand_is_noticed() {
    if !has_fuse() {
        return;
    }
    let mut mounted = Mounted::new(SparseDisk::new(4096, true));
    run("umount", &[mounted.beside("mnt").to_str().unwrap()]);
    let mut failure = None;
    for _ in 0..3000 {
        failure = mounted.server.as_ref().unwrap().failed();
        if failure.is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!(failure.unwrap().to_string().contains("it was unmounted from outside"));
    mounted.stop();
}

#[test]
fn a_missing_mount_point_is_named_with_its_remedy() {
    let export = Export::new("none", Arc::new(SparseDisk::new(4096, true)) as Arc<dyn BlockDevice>);
    let Err(error) = FuseServer::start(export, Path::new("/nonexistent/x"), &FuseSettings::default()) else {
        panic!("mounted on nothing")
    };
    assert!(error.to_string().contains("make a directory"), "{error}");
}
