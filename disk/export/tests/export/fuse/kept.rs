//! Mounts that outlive the processes that serve them: with real processes, which are killed.

#![expect(clippy::print_stdout, reason = "the processes of a test say how far they are")]

use super::{content, is_mount_point};
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Extent, Result, SECTOR_SIZE};
use headstart_export::fuse::{FuseServer, FuseSettings, KeepSettings, too_old_to_keep};
use headstart_export::keeper::{Keeper, KeeperClient, Registration};
use headstart_export::{Export, Server};
use headstart_testkit::process::{Process, has_fuse, one_test, skipped};
use headstart_testkit::wait::wait_until;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Names the directory of a test to the processes that it starts.
const DIRECTORY: &str = "HEADSTART_TEST_KEPT";

const LIMIT: Duration = Duration::from_secs(60);

/// From here on, reads are not answered while the file `stuck` is there.
const STUCK: u64 = 1 << 20;

const LEN: usize = 2 << 20;

/// A disk in a file: what was written survives the process.
struct FileDisk {
    file: File,
    stuck: PathBuf,
    read_only: bool,
}

impl BlockDevice for FileDisk {
    fn size(&self) -> u64 {
        LEN as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        while offset >= STUCK && self.stuck.exists() {
            thread::sleep(Duration::from_millis(5));
        }
        self.file.read_exact_at(buf, offset).map_err(|error| Error::io("cannot read", error))
    }

    fn read_local_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset >= STUCK && self.stuck.exists() {
            return Err(Error::new(ErrorKind::Absent, "elsewhere"));
        }
        self.read_at(buf, offset)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let range = ByteRange::between(offset, LEN as u64);
        Ok(Extent { range, zero: false })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        assert!(offset.is_multiple_of(SECTOR_SIZE));
        self.file.write_all_at(data, offset).map_err(|error| Error::io("cannot write", error))
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        self.write_at(&vec![0; range.len() as usize], range.offset())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::unsupported("of a fixed size"))
    }
}

/// Started by the other tests: the process that serves the disk in a directory, until it is killed or finds the file
/// `leave` or `stop`.
#[test]
#[ignore = "the other tests start this"]
fn serve() {
    let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let writable = dir.join("writable").exists();
    let file = File::options().read(true).write(writable).open(dir.join("disk")).unwrap();
    let disk = FileDisk { file, stuck: dir.join("stuck"), read_only: !writable };
    let export = Export::new("test", Arc::new(disk) as Arc<dyn BlockDevice>);
    let identity = fs::read_to_string(dir.join("identity")).unwrap_or_default();
    let keeper = KeeperClient::new(dir.join("keeper"));
    let keep = Some(KeepSettings { keeper, name: "vm".to_owned(), identity });
    let settings = FuseSettings { keep, ..FuseSettings::default() };
    let server = FuseServer::start(export, &dir.join("mnt"), &settings).unwrap();
    println!("serving, {} open", server.clients().connected);
    loop {
        if fs::remove_file(dir.join("leave")).is_ok() {
            return Box::new(server).leave().unwrap();
        }
        if fs::remove_file(dir.join("stop")).is_ok() {
            return Box::new(server).stop().unwrap();
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Started by the other tests: the keeper.
#[test]
#[ignore = "the other tests start this"]
fn keep() {
    let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let keeper = Keeper::listen(&dir.join("keeper"), |_, _| true).unwrap();
    println!("keeping");
    let Err(error) = keeper.serve();
    assert_eq!(error.to_string(), "", "it keeps until it is killed");
}

/// A directory with a disk, its keeper and its server.
struct Scene {
    keeper: Process,
    server: Process,
    dir: tempfile::TempDir,
    bytes: Vec<u8>,
}

impl Scene {
    /// `None` if nothing can be mounted here, or if this kernel sends no requests again.
    fn start(writable: bool) -> Option<Self> {
        if !has_fuse() {
            return None;
        }
        if let Some(release) = too_old_to_keep() {
            skipped(&format!("kernel {release} sends no requests of FUSE again: that takes 6.9"));
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let bytes = content(LEN, 11);
        fs::write(dir.path().join("disk"), &bytes).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        if writable {
            fs::write(dir.path().join("writable"), "").unwrap();
        }
        let keeper = Self::keeper(dir.path());
        let server = Self::server(dir.path());
        Some(Self { keeper, server, dir, bytes })
    }

    fn keeper(dir: &Path) -> Process {
        let mut keeper = Process::start(one_test("fuse::kept::keep").env(DIRECTORY, dir));
        keeper.line("that it keeps", LIMIT, |line| line == "keeping");
        keeper
    }

    fn server(dir: &Path) -> Process {
        let mut server = Process::start(one_test("fuse::kept::serve").env(DIRECTORY, dir));
        server.line("that it serves", LIMIT, |line| line.starts_with("serving"));
        server
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn client(&self) -> KeeperClient {
        KeeperClient::new(self.at("keeper"))
    }

    fn file(&self) -> PathBuf {
        self.at("mnt/disk.raw")
    }

    fn open(&self) -> File {
        open(&self.file(), false)
    }

    fn mount(&self) -> u64 {
        fs::metadata(self.at("mnt")).unwrap().dev()
    }

    fn kill(&mut self) {
        self.server.kill();
        self.server = Self::server(self.dir.path());
    }

    /// Ends the server as the file `how` says.
    fn end(&mut self, how: &str) {
        fs::write(self.at(how), "").unwrap();
        assert!(self.server.end(LIMIT).success(), "{}", self.server.output());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.server.kill();
        self.keeper.kill();
        let _ = std::process::Command::new("umount").arg("-l").arg(self.at("mnt")).output();
    }
}

/// Opens a file so that no read is answered by the kernel.
fn open(path: &Path, writable: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(writable).custom_flags(OFlags::DIRECT.bits() as i32).open(path).unwrap()
}

/// A page for direct I/O, in memory that is aligned to its length.
fn aligned(space: &mut [u8]) -> &mut [u8] {
    let start = space.as_ptr().align_offset(4096);
    &mut space[start..start + 4096]
}

#[test]
fn no_read_fails_while_the_server_is_killed_again_and_again() {
    let Some(mut scene) = Scene::start(false) else { return };
    let (files, bytes) = ([scene.open(), scene.open()], scene.bytes.clone());
    let (is_over, reads, longest) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(Duration::ZERO));
    let mount = scene.mount();
    thread::scope(|scope| {
        for (seed, file) in (0_u64..).zip(&files) {
            let (bytes, is_over, reads, longest) = (&bytes, &is_over, &reads, &longest);
            scope.spawn(move || {
                let (mut state, mut space) = (seed, vec![0; 8192]);
                while !is_over.load(Ordering::Relaxed) {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let offset = (state >> 33) % (LEN as u64 / 4096) * 4096;
                    let (page, begun) = (aligned(&mut space), Instant::now());
                    file.read_exact_at(page, offset).unwrap();
                    assert!(*page == bytes[offset as usize..][..4096], "wrong bytes at {offset}");
                    let mut longest = longest.lock().unwrap();
                    *longest = longest.max(begun.elapsed());
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..10 {
            let before = reads.load(Ordering::Relaxed);
            wait_until("there are reads", LIMIT, || reads.load(Ordering::Relaxed) > before + 20);
            scene.kill();
        }
        let before = reads.load(Ordering::Relaxed);
        wait_until("there are reads", LIMIT, || reads.load(Ordering::Relaxed) > before + 20);
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{} reads, the longest took {:?}", reads.into_inner(), longest.into_inner().unwrap());
    assert_eq!(scene.mount(), mount);
    // The next process knows that the file is open twice.
    assert!(scene.server.output().contains("serving, 2 open"), "{}", scene.server.output());
    drop(files);
    scene.end("stop");
    assert!(!is_mount_point(&scene.at("mnt")));
    assert!(!scene.client().give_up("vm").unwrap());
}

/// The kernel has given the request away: only sending it again brings it back.
#[test]
fn a_read_that_the_dead_process_had_received_is_answered_by_the_next() {
    let Some(mut scene) = Scene::start(false) else { return };
    let file = scene.open();
    fs::write(scene.at("stuck"), "").unwrap();
    let reading = thread::spawn(move || {
        let mut space = vec![0; 8192];
        let page = aligned(&mut space);
        file.read_exact_at(page, STUCK).map(|()| page.to_vec())
    });
    // Long enough for the request to be received.
    thread::sleep(Duration::from_millis(200));
    assert!(!reading.is_finished());
    scene.server.kill();
    fs::remove_file(scene.at("stuck")).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(!reading.is_finished(), "it fails or is answered without a server");
    scene.server = Scene::server(scene.dir.path());
    assert_eq!(reading.join().unwrap().unwrap(), scene.bytes[STUCK as usize..][..4096]);
}

/// Started by another test: writes numbers, some of which it makes durable, and says how far it is in the file `done`.
/// The process of a test must not have the file open for writing itself: a program that it starts closes its copy of
/// the descriptor, which waits for the server that may be that very program.
#[test]
#[ignore = "another test starts this"]
fn write() {
    let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let done = File::create(dir.join("done")).unwrap();
    let file = open(&dir.join("mnt/disk.raw"), true);
    let mut space = vec![0; 8192];
    for number in 1_u64.. {
        let page = aligned(&mut space);
        page[..8].copy_from_slice(&number.to_le_bytes());
        let offset = number % (LEN as u64 / 4096) * 4096;
        file.write_all_at(page, offset).unwrap();
        if number % 7 == 0 {
            file.sync_data().unwrap();
        }
        done.write_all_at(&number.to_le_bytes(), 0).unwrap();
        if dir.join("over").exists() {
            return file.sync_data().unwrap();
        }
    }
}

#[test]
fn no_write_that_was_answered_is_lost_though_most_were_not_flushed() {
    let Some(mut scene) = Scene::start(true) else { return };
    let mut writer = Process::start(one_test("fuse::kept::write").env(DIRECTORY, scene.dir.path()));
    let said = scene.at("done");
    let done = || match fs::read(&said).ok().and_then(|bytes| bytes.try_into().ok()) {
        Some(bytes) => u64::from_le_bytes(bytes),
        None => 0,
    };
    for _ in 0..10 {
        let before = done();
        wait_until("there are writes", LIMIT, || done() > before + 5);
        scene.server.kill();
        scene.server = Scene::server(scene.dir.path());
    }
    fs::write(scene.at("over"), "").unwrap();
    assert!(writer.end(LIMIT).success(), "{}", writer.output());
    let last = done();
    assert!(last > 50, "{last}");
    let disk = fs::read(scene.at("disk")).unwrap();
    for number in last.saturating_sub(LEN as u64 / 4096 - 1).max(1)..=last {
        let offset = (number % (LEN as u64 / 4096) * 4096) as usize;
        assert_eq!(disk[offset..offset + 8], number.to_le_bytes(), "write {number} of {last}");
    }
    // The permissions that a user gave the file stay.
    fs::set_permissions(scene.file(), fs::Permissions::from_mode(0o640)).unwrap();
    // The keeper is told a moment later.
    thread::sleep(Duration::from_millis(200));
    scene.kill();
    // The kernel forgets attributes of a writable disk after a second.
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(fs::metadata(scene.file()).unwrap().mode() & 0o777, 0o640);
}

#[test]
fn a_server_that_leaves_lets_its_users_wait_for_the_next_one() {
    let Some(mut scene) = Scene::start(true) else { return };
    let mount = scene.mount();
    fs::write(scene.at("sevens"), [7; 4096]).unwrap();
    scene.end("leave");
    let (from, to) = (scene.at("sevens"), scene.file());
    let mut dd = std::process::Command::new("dd");
    dd.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    let mut writing = Process::start(dd.args(["bs=4096", "seek=1", "conv=notrunc,fsync"]));
    thread::sleep(Duration::from_millis(100));
    assert!(writing.is_running(), "{writing}");
    scene.server = Scene::server(scene.dir.path());
    assert!(writing.end(LIMIT).success(), "{writing}");
    assert_eq!(scene.mount(), mount);
    assert_eq!(fs::read(scene.at("disk")).unwrap()[4096..8192], [7; 4096]);
}

#[test]
fn a_keeper_that_was_killed_is_filled_again_and_both_deaths_at_once_are_an_error() {
    let Some(mut scene) = Scene::start(false) else { return };
    let (file, mount) = (scene.open(), scene.mount());
    scene.keeper.kill();
    scene.keeper = Scene::keeper(scene.dir.path());
    let client = scene.client();
    wait_until("the mount is kept again", LIMIT, || client.take("vm").unwrap().is_some());
    scene.kill();
    let mut space = vec![0; 8192];
    let page = aligned(&mut space);
    file.read_exact_at(page, 0).unwrap();
    assert_eq!((&*page, scene.mount()), (&scene.bytes[..4096], mount));
    scene.keeper.kill();
    scene.server.kill();
    let error = file.read_exact_at(page, 0).unwrap_err();
    assert!([Some(103), Some(107)].contains(&error.raw_os_error()), "{error}");
    // The next ones mount anew.
    scene.keeper = Scene::keeper(scene.dir.path());
    scene.server = Scene::server(scene.dir.path());
    assert_eq!(fs::read(scene.file()).unwrap(), scene.bytes);
}

#[test]
fn a_mount_of_another_disk_or_that_was_unmounted_is_not_taken_over() {
    let Some(mut scene) = Scene::start(false) else { return };
    let mount = scene.mount();
    let old = scene.open();
    fs::write(scene.at("identity"), "another").unwrap();
    scene.kill();
    assert_ne!(scene.mount(), mount);
    assert_eq!(fs::read(scene.file()).unwrap(), scene.bytes);
    let mut space = vec![0; 8192];
    assert!(old.read_exact_at(aligned(&mut space), 0).is_err());
    // By hand, while no process serves it.
    scene.server.kill();
    let unmounted = std::process::Command::new("umount").arg("-l").arg(scene.at("mnt")).status().unwrap();
    assert!(unmounted.success());
    scene.server = Scene::server(scene.dir.path());
    assert_eq!(fs::read(scene.file()).unwrap(), scene.bytes);
}

/// A descriptor of a FUSE file system that is mounted.
fn fuse_descriptor(at: &Path) -> OwnedFd {
    let fuse = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&fuse);
    let options = std::ffi::CString::new(format!("fd={number},rootmode=40000,user_id=0,group_id=0")).unwrap();
    let flags = rustix::mount::MountFlags::NODEV;
    rustix::mount::mount("test", at, "fuse.headstart-test", flags, options.as_c_str()).unwrap();
    fuse.into()
}

#[test]
fn the_keeper_obeys_the_process_of_the_disk_only_and_waits_for_no_client() {
    if !has_fuse() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("keeper");
    let own = std::process::id();
    let keeper = Keeper::listen(&socket, move |name, pid| match name {
        "mine" => pid == Some(own),
        "over" => pid.is_none(),
        _ => false,
    });
    let keeper = keeper.unwrap();
    thread::spawn(move || keeper.serve());
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let client = KeeperClient::new(&socket);
    let register = |name: &str, descriptor: OwnedFd| {
        Registration::start(client.clone(), name, descriptor, b"state".to_vec())
    };
    // Clients that say nothing, or nonsense, or do not read.
    let address = SocketAddrUnix::new(&socket).unwrap();
    let silent: Vec<OwnedFd> = (0..100)
        .map(|number| {
            let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let client = client.unwrap();
            connect(&client, &address).unwrap();
            for _ in 0..number {
                let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
                let _ = rustix::net::send(&client, b"nonsense", flags);
            }
            client
        })
        .collect();
    fs::create_dir(dir.path().join("mnt")).unwrap();
    let fuse = fuse_descriptor(&dir.path().join("mnt"));
    let kept = register("mine", fuse.try_clone().unwrap()).unwrap();
    assert!(kept.is_kept() && client.take("mine").unwrap().is_some());
    assert_eq!(client.take("other").unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(client.take("over").unwrap_err().kind(), ErrorKind::Denied);
    let denied = register("other", fuse.try_clone().unwrap()).map(drop).unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert_eq!(client.give_up("other").unwrap_err().kind(), ErrorKind::Denied);
    // No process serves that one, so an agent may end it.
    assert!(!client.give_up("over").unwrap());
    assert!(client.take("../etc").is_err());
    let plain = register("mine", File::open("/dev/null").unwrap().into()).map(drop).unwrap_err();
    assert!(plain.to_string().contains("not that of a mounted FUSE"), "{plain}");
    drop(silent);
    // An unmounted one is dropped by itself.
    rustix::mount::unmount(dir.path().join("mnt"), rustix::mount::UnmountFlags::DETACH).unwrap();
    wait_until("it is dropped", LIMIT, || client.take("mine").unwrap().is_none());
    drop(kept);
    // Nothing else than a socket is removed for it.
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    assert!(Keeper::listen(&file, |_, _| true).is_err() && file.exists());
    let _ = rustix::fs::chmod(&file, Mode::from_raw_mode(0o600));
}
