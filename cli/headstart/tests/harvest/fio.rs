//! Load of other programs on a harvest disk while flash is lent, moved and taken back under it.

use crate::daemon::{Daemon, TIMEOUT, uri};
use crate::scene::{Scene, output_of};
use crate::tools::{self, LoopDevice, find, installed, is_root, skipped};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A host with three lenders, and a disk of which more than a half is borrowed.
fn lent<'s>(scene: &'s Scene, words: &str) -> (Daemon<'s>, String) {
    let daemon = Daemon::start(scene, "--size 2G");
    for shelf in ["shelf1", "shelf2", "shelf3"] {
        daemon.create_soon(&format!("{shelf} --kind unsold --channels 3"));
    }
    let batch = daemon.create(&format!("batch --kind harvest --channels 2 {words}"));
    daemon.request("batch --capacity 64M --for 2h");
    (daemon, batch)
}

/// Takes back a part of the disk's flash, which is available for the next lease at once. Returns the lender's name.
#[track_caller]
fn take_back(daemon: &Daemon<'_>) -> String {
    daemon.wait_for("where to move it to", || {
        let status = daemon.ask("status");
        status["pool"].as_array().unwrap().iter().any(|gssd| gssd["ready"] == true).then_some(())
    });
    let lender = daemon.vssd("batch")["leases"][0]["home"].as_str().unwrap().to_owned();
    daemon.ask(&format!("vssd delete {lender}"));
    lender
}

/// A file system that is mounted until it is dropped.
struct Mounted {
    dir: String,
}

impl Mounted {
    fn over(device: &LoopDevice, dir: String) -> Option<Self> {
        std::fs::create_dir_all(&dir).unwrap();
        let mut mount = Command::new("mount");
        mount.args([&device.path, &dir]).stderr(Stdio::null());
        if !output_of(&mut mount).is_ok_and(|output| output.status.success()) {
            skipped("ext4 cannot be mounted here");
            return None;
        }
        Some(Self { dir })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = output_of(Command::new("umount").arg(&self.dir).stderr(Stdio::null()));
    }
}

/// A program that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_system_stays_whole_while_its_flash_is_taken_back() {
    if !is_root() || !installed(&["fio", "mkfs.ext4", "e2fsck"]) {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return skipped("there is no FUSE here");
    }
    let scene = Scene::new();
    std::fs::create_dir(scene.path("mnt")).unwrap();
    // If the test fails and the daemon is killed, nothing stays mounted.
    let _fuse = Mounted { dir: scene.path("mnt").display().to_string() };
    let (mut daemon, _) = lent(&scene, "--fuse ~/mnt");
    // The disk is larger than the flash behind it.
    daemon.ask("vssd resize batch 420M");
    tools::run(&scene, "mkfs.ext4", "-q -F -b 4096 mnt/disk.raw 420M");
    let Some(device) = LoopDevice::over(&scene.path("mnt/disk.raw")) else { return };
    let Some(mounted) = Mounted::over(&device, scene.path("fs").display().to_string()) else { return };
    let fio = "--name=v --directory=fs --size=40m --numjobs=3 --rw=randwrite --bs=4k --ioengine=psync --direct=1 \
               --verify=crc32c --randseed=7 --group_reporting --minimal";
    let mut load = Command::new(find("fio").unwrap());
    load.args(fio.split_whitespace()).args(["--do_verify=0", "--rate=8m", "--fsync=500"]);
    let load = load.current_dir(scene.path("")).stdout(Stdio::null()).spawn().unwrap();
    let mut load = Running(load);
    let mut rounds = 0;
    // There are three rounds at least, even if the load ends earlier.
    while load.0.try_wait().unwrap().is_none() || rounds < 3 {
        let lender = take_back(&daemon);
        daemon.create_soon(&format!("{lender} --kind unsold --channels 3"));
        // One more lease for a while: writes meanwhile are spread over it, too.
        let more = daemon.request("batch --capacity 64M --for 1h")[0]["id"].as_u64().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        daemon.ask(&format!("release batch --lease {more}"));
        daemon.wait_until_gone("batch", Some(more));
        rounds += 1;
    }
    assert!(load.0.wait().unwrap().success());
    tools::run(&scene, "fio", &format!("{fio} --verify_only"));
    drop(mounted);
    drop(device);
    tools::run(&scene, "e2fsck", "-fn mnt/disk.raw");
    let status = daemon.ask("status");
    let broker = &status["broker"];
    assert!(broker["migrated"].as_u64().unwrap() >= rounds, "{rounds} rounds: {broker}");
    assert_eq!((&broker["evicted"], &status["reports"]), (&0.into(), &json!([])), "{status}");
    daemon.stop();
}

/// Bytes of a single write.
const UNIT: u64 = 64 << 10;

/// The number of written units: the space beyond them is fio's.
const UNITS: u64 = (256 << 20) / UNIT;

/// The expected content of a disk.
#[derive(Default)]
struct Known {
    /// Units with the content that was written to them before an answered flush.
    flushed: BTreeMap<u64, u8>,
    /// Units written since, by a client that then was cut off.
    unknown: BTreeSet<u64>,
    batches: u64,
    cut_off: u64,
    /// The number of completed batches, for the thread that waits for them.
    done: Arc<AtomicU64>,
}

impl Known {
    /// Writes units at scattered places, and flushes: each time with a client of its own, until it is told to stop.
    fn write(&mut self, uri: &str, stop: &AtomicBool) {
        let until = Instant::now() + TIMEOUT;
        while !stop.load(Ordering::Relaxed) && Instant::now() < until {
            self.batches += 1;
            // The steps are odd, so that the units differ; no pattern is that of unwritten data.
            let unit = |step: u64| (self.batches * 7919 + step * 2741) % UNITS;
            let pattern = u8::try_from(self.batches % 255 + 1).unwrap();
            let units: BTreeSet<u64> = (0..48).map(unit).collect();
            let mut commands: Vec<String> =
                units.iter().map(|unit| format!("write -P {pattern} {} {UNIT}", unit * UNIT)).collect();
            commands.push("flush".to_owned());
            if qemu_io(uri, &commands) {
                self.done.fetch_add(1, Ordering::Relaxed);
                self.unknown.retain(|unit| !units.contains(unit));
                self.flushed.extend(units.into_iter().map(|unit| (unit, pattern)));
            } else {
                self.cut_off += 1;
                self.unknown.extend(units);
            }
        }
    }

    #[track_caller]
    fn check(&self, uri: &str) {
        let known = self.flushed.iter().filter(|(unit, _)| !self.unknown.contains(unit));
        let read = |(unit, pattern): (&u64, &u8)| format!("read -P {pattern} {} {UNIT}", unit * UNIT);
        let commands: Vec<String> = known.map(read).collect();
        for commands in commands.chunks(512) {
            assert!(qemu_io(uri, commands), "what was flushed is not there: {commands:?}");
        }
    }
}

/// `true` if all commands worked, with the expected bytes.
fn qemu_io(uri: &str, commands: &[String]) -> bool {
    let mut command = Command::new(find("qemu-io").unwrap());
    command.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command])).arg(uri);
    let output = output_of(command.stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    output.status.success() && !said.contains("failed") && !said.contains("rror")
}

#[test]
fn flushed_writes_survive_kills_while_flash_moves() {
    if !installed(&["qemu-io", "fio"]) {
        return;
    }
    let scene = Scene::new();
    let (mut daemon, batch) = lent(&scene, "");
    let mut known = Known::default();
    for round in 0..3_u64 {
        let uri = uri(&daemon.vssd("batch"));
        let mut fio = Command::new(find("fio").unwrap());
        fio.args(["--name=load", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=4", "--fsync=64"]);
        fio.args(["--offset=256M", "--size=64M", "--time_based", "--runtime=60", "--uri", &uri]);
        // If its engine is missing, there is the other load.
        let fio =
            fio.stdout(Stdio::null()).stderr(Stdio::null()).current_dir(scene.path("")).spawn().unwrap();
        let fio = Running(fio);
        let stop = AtomicBool::new(false);
        let done = Arc::clone(&known.done);
        let before = done.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| known.write(&uri, &stop));
            std::thread::sleep(Duration::from_millis(800));
            while done.load(Ordering::Relaxed) < before + 3 && !writer.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let lender = take_back(&daemon);
            daemon.create_soon(&format!("{lender} --kind unsold --channels 3"));
            // The daemon is killed while the next move is at a different place each time.
            let lender = take_back(&daemon);
            std::thread::sleep(Duration::from_millis(60 * round));
            daemon.kill_and_start();
            stop.store(true, Ordering::Relaxed);
            daemon.create_soon(&format!("{lender} --kind unsold --channels 3"));
        });
        drop(fio);
        known.check(&uri);
        let reports = daemon.ask("status")["reports"].clone();
        assert_eq!(reports, json!([]));
    }
    assert!(known.batches > known.cut_off + 6, "{} batches, {} cut off", known.batches, known.cut_off);
    // The data is not only in memory either.
    daemon.restart();
    known.check(&batch);
    daemon.stop();
}
