//! Files of an image on a loop device over a disk's file, as containers have them, while the disk's process is killed:
//! no read fails, and none takes long.

#![expect(clippy::print_stdout, reason = "the longest wait is a figure that people look at")]

use crate::agent::Agent;
use crate::attached::TIMEOUT;
use crate::disk::noise;
use crate::scene::{Scene, run_tool};
use crate::tools::installed;
use headstart_export::fuse::too_old_to_keep;
use headstart_export::loop_mount::{mount_disk, unmount_disk};
use headstart_testkit::process::{Process, has_fuse, skipped};
use headstart_testkit::wait::wait_until;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The bytes of the file in the image, and of one read.
const LEN: usize = 16 << 20;
const READ: usize = 16 << 10;

/// The longest that a read may take on a machine that is busy with other tests. One with nothing else to do takes less
/// than a twentieth of that.
const STALL: Duration = Duration::from_secs(4);

/// From this age on, the death of a process is no sign of a disk that cannot be served, and the next one starts at
/// once.
const LASTED: Duration = Duration::from_millis(1100);

/// `false`, with a message, if nothing can be kept here.
fn can_keep() -> bool {
    if let Some(release) = too_old_to_keep() {
        skipped(&format!("kernel {release} sends no requests of FUSE again: that takes 6.9"));
        return false;
    }
    if OpenOptions::new().read(true).write(true).open("/dev/loop-control").is_err() {
        skipped("this kernel has no loop devices");
        return false;
    }
    has_fuse() && installed(&["mkfs.ext4"])
}

/// A scene with an image of an ext4 with one file, and that file's bytes.
fn scene() -> (Scene, Vec<u8>) {
    let scene = Scene::new();
    let bytes = noise(3, LEN);
    fs::create_dir(scene.path("tree")).unwrap();
    fs::write(scene.path("tree/file"), &bytes).unwrap();
    File::create(scene.path("disk.raw")).unwrap().set_len(4 * LEN as u64).unwrap();
    run_tool("mkfs.ext4", &["-q", "-F", "-d", "tree", "disk.raw"], &scene.path(""));
    scene.ok("image import disk.raw file://~/store:v1");
    for (name, is_directory) in [("file", false), ("mounted", true)] {
        let path = scene.path(name);
        if is_directory { fs::create_dir(path).unwrap() } else { fs::write(path, "").unwrap() }
    }
    (scene, bytes)
}

/// The file system of the disk, mounted.
struct Files(PathBuf);

impl Files {
    fn mount(scene: &Scene) -> Self {
        mount_disk(&scene.path("file"), &scene.path("mounted")).unwrap();
        Self(scene.path("mounted"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = unmount_disk(&self.0);
    }
}

/// Readers that compare every byte that they read.
struct Readers<'s> {
    path: PathBuf,
    bytes: &'s [u8],
    is_over: AtomicBool,
    reads: AtomicU64,
    longest: Mutex<Duration>,
}

impl<'s> Readers<'s> {
    fn of(files: &Files, bytes: &'s [u8]) -> Self {
        let (is_over, reads, longest) = Default::default();
        Self { path: files.0.join("file"), bytes, is_over, reads, longest }
    }

    /// Reads until it is over, past the kernel's cache.
    fn run(&self, seed: u64) {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path).unwrap();
        let (mut state, mut space) = (seed, vec![0; READ + 4096]);
        let start = space.as_ptr().align_offset(4096);
        let buffer = &mut space[start..start + READ];
        while !self.is_over.load(Ordering::Relaxed) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % (LEN / READ) * READ;
            let begun = Instant::now();
            file.read_exact_at(buffer, at as u64).unwrap();
            let took = begun.elapsed();
            assert!(*buffer == self.bytes[at..at + READ], "wrong bytes at {at}");
            let mut longest = self.longest.lock().unwrap();
            *longest = longest.max(took);
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until there were some more.
    fn go_on(&self) {
        let before = self.reads.load(Ordering::Relaxed);
        wait_until("there are reads", TIMEOUT, || self.reads.load(Ordering::Relaxed) > before + 20);
    }

    fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }

    /// Runs three of them beside `work`.
    fn beside(&self, work: impl FnOnce()) {
        thread::scope(|scope| {
            for seed in 0..3 {
                scope.spawn(move || self.run(seed));
            }
            work();
            self.is_over.store(true, Ordering::Relaxed);
        });
    }
}

/// The process with this file, once there is one other than `before`.
fn process_at(path: &Path, before: Option<Pid>) -> Pid {
    let found = || {
        Pid::from_raw(fs::read_to_string(path).ok()?.trim().parse().ok()?).filter(|pid| Some(*pid) != before)
    };
    wait_until("there is another process", TIMEOUT, || found().is_some());
    found().unwrap()
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

fn is_mounted(path: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!(" {} ", path.display()))
}

/// The descriptors of FUSE that the keeper has.
fn kept(scene: &Scene) -> usize {
    let keeper = process_at(&scene.path("a/keeper/keeper.pid"), None);
    let open = fs::read_dir(format!("/proc/{}/fd", keeper.as_raw_nonzero())).unwrap();
    let open = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    open.filter(|target| target == Path::new("/dev/fuse")).count()
}

#[test]
fn no_read_fails_though_the_disks_process_is_killed_twenty_times() {
    if !can_keep() {
        return;
    }
    let (scene, bytes) = scene();
    let agent = Agent::start(&scene, "a", "");
    agent.attach("file://~/store:v1 --as vm --fuse ~/file");
    let (files, process) = (Files::mount(&scene), scene.path("a/disks/vm.pid"));
    let readers = Readers::of(&files, &bytes);
    readers.beside(|| {
        let mut pid = process_at(&process, None);
        for _ in 0..20 {
            thread::sleep(LASTED);
            readers.go_on();
            kill(pid);
            pid = process_at(&process, Some(pid));
        }
        readers.go_on();
    });
    let longest = readers.longest();
    println!("{} reads, the longest took {longest:?}", readers.reads.load(Ordering::Relaxed));
    assert!(longest < STALL, "{longest:?}");
    agent.disk_that("served on", |disk| disk["restarts"] == 20 && disk["state"] == "serving");
    assert_eq!(kept(&scene), 1);
    drop(files);
    // A disk that is detached is gone, from the keeper as well.
    assert_eq!(agent.detach("vm")["state"], "detached");
    assert!(!is_mounted(&scene.path("file")) && kept(&scene) == 0);
}

#[test]
fn reads_wait_for_an_agent_that_is_dead_as_well_and_for_a_keeper_that_is_started_again() {
    if !can_keep() {
        return;
    }
    let (scene, bytes) = scene();
    let mut agent = Agent::start(&scene, "a", "");
    agent.attach("file://~/store:v1 --as vm --fuse ~/file");
    let (files, process) = (Files::mount(&scene), scene.path("a/disks/vm.pid"));
    let keeper = scene.path("a/keeper/keeper.pid");
    let readers = Readers::of(&files, &bytes);
    readers.beside(|| {
        readers.go_on();
        let pid = process_at(&process, None);
        agent.kill();
        kill(pid);
        // Nothing serves the disk now.
        thread::sleep(Duration::from_millis(500));
        let before = readers.reads.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(500));
        assert_eq!(readers.reads.load(Ordering::Relaxed), before);
        agent.again();
        readers.go_on();
        // The next keeper has the mount from the disk's process.
        let pid = process_at(&process, Some(pid));
        let before = process_at(&keeper, None);
        kill(before);
        process_at(&keeper, Some(before));
        wait_until("the mount is kept again", TIMEOUT, || kept(&scene) == 1);
        kill(pid);
        readers.go_on();
        // A signal that ends it in good order leaves the mount as well: only the agent detaches.
        let pid = process_at(&process, Some(pid));
        wait_until("it serves", TIMEOUT, || agent.disks()[0]["state"] == "serving");
        kill_process(pid, Signal::TERM).unwrap();
        process_at(&process, Some(pid));
        readers.go_on();
    });
    // A disk whose process is down, and cannot be started again, is detached: its users get errors then.
    fs::rename(scene.path("store"), scene.path("away")).unwrap();
    kill(process_at(&process, None));
    let file = File::open(scene.path("mounted/file"));
    let waiting = thread::spawn(move || file.and_then(|file| file.read_at(&mut [0; 4096], 8 << 20)));
    thread::sleep(Duration::from_millis(200));
    agent.detach("vm");
    assert!(!is_mounted(&scene.path("file")) && kept(&scene) == 0);
    // It may have been in the cache of the file system.
    let _ = waiting.join().unwrap();
}

#[test]
fn no_write_is_lost_though_the_disks_process_is_killed_between_flushes() {
    if !can_keep() || !installed(&["fio"]) {
        return;
    }
    let (scene, _) = scene();
    let agent = Agent::start(&scene, "a", "");
    agent.attach("file://~/store:v1 --as vm --fuse ~/file --writable ~/vm");
    let process = scene.path("a/disks/vm.pid");
    let mut fio = std::process::Command::new("fio");
    fio.args(["--name=kept", "--rw=randwrite", "--bs=4k", "--size=8M", "--direct=1", "--fsync=4"]);
    fio.args([
        "--ioengine=psync",
        "--verify=crc32c",
        "--verify_state_save=0",
        "--loops=2",
        "--thread",
        "--filename",
    ])
    .arg(scene.path("file"));
    let mut fio = Process::start(&mut fio);
    let mut kills = 0;
    let mut pid = process_at(&process, None);
    while kills < 5 && fio.is_running() {
        thread::sleep(LASTED);
        kill(pid);
        kills += 1;
        pid = process_at(&process, Some(pid));
    }
    assert!(fio.end(TIMEOUT * 4).success(), "{fio}");
    println!("{kills} processes were killed");
    assert!(kills > 0);
    assert_eq!(agent.detach("vm")["state"], "detached");
}
