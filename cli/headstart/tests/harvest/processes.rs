//! The processes that serve vSSDs by vhost-user and as files: each vSSD has its own, and a fault of one does not affect
//! another.

use crate::daemon::{Daemon, qemu_io, uri};
use crate::guest::{Machine, check_rounds, make_bootable, make_bootable_for};
use crate::restricted::restricted;
use crate::scene::{Scene, output_of, run_tool};
use crate::tools::{find, installed, is_root, skipped};
use headstart_testkit::wait::wait_until;
use rustix::fs::{Uid, chown};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A user that no other program has files of.
const OTHER: u32 = 51_004;

/// A mount point of a scene: nothing stays mounted there, whatever the result of the test.
struct MountPoint(String);

impl MountPoint {
    /// A directory; `None` if there is no FUSE.
    fn make(scene: &Scene, name: &str) -> Option<Self> {
        if !is_root() || !Path::new("/dev/fuse").exists() {
            skipped("there is no FUSE here");
            return None;
        }
        fs::create_dir(scene.path(name)).unwrap();
        Some(Self(scene.path(name).display().to_string()))
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let _ = output_of(Command::new("umount").args(["-l", &self.0]).stderr(Stdio::null()));
    }
}

fn signal(pid: u64, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn is_alive(pid: u64) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).exists() && fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// The number of the process of a vSSD that serves.
#[track_caller]
fn process(daemon: &Daemon<'_>, name: &str) -> u64 {
    daemon.wait_for("served by a process", || {
        let process = daemon.vssd(name)["process"].clone();
        process["pid"].as_u64().filter(|_| process["serving"] == true)
    })
}

/// Kills the process of a vSSD, and waits for the next one.
#[track_caller]
fn kill(daemon: &Daemon<'_>, name: &str) -> u64 {
    let before = process(daemon, name);
    signal(before, Signal::KILL);
    daemon.wait_for("served by another process", || {
        let process = daemon.vssd(name)["process"].clone();
        process["pid"].as_u64().filter(|pid| *pid != before && process["serving"] == true)
    })
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn read(path: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    open(path).read_exact_at(&mut bytes, at).unwrap();
    bytes
}

#[track_caller]
fn write_durably(path: &Path, byte: u8, at: u64, len: usize) {
    let file = open(path);
    file.write_all_at(&vec![byte; len], at).unwrap();
    file.sync_all().unwrap();
}

fn identity(path: &Path) -> (u64, u64, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.ino(), meta.dev(), meta.mode())
}

/// The vSSDs `a` and `b` with a socket of vhost-user and a file each, and the guards of the mount points.
fn two<'s>(scene: &'s Scene) -> Option<(Daemon<'s>, [MountPoint; 2])> {
    let points = [MountPoint::make(scene, "a")?, MountPoint::make(scene, "b")?];
    let daemon = Daemon::start(scene, "--size 2G");
    for name in ["a", "b"] {
        let made = daemon.ask(&format!("vssd create {name} --vhost-user ~/{name}.sock --fuse ~/{name}"));
        assert_eq!((made["uris"].as_array().unwrap().len(), &made["error"]), (3, &Value::Null), "{made}");
    }
    Some((daemon, points))
}

#[test]
fn a_process_that_dies_is_started_again_and_the_others_notice_nothing() {
    let scene = Scene::new();
    let Some((mut daemon, _points)) = two(&scene) else { return };
    let (a, b) = (process(&daemon, "a"), process(&daemon, "b"));
    assert_ne!(a, b);
    for pid in [a, b] {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(words.starts_with("headstart\0harvest\0export"), "{words}");
    }
    let sockets = [scene.path("a.sock"), scene.path("b.sock"), scene.path("h/nbd/a.sock")];
    let before = sockets.each_ref().map(|path| identity(path));
    let (of_a, of_b) = (scene.path("a/disk.raw"), scene.path("b/disk.raw"));
    write_durably(&of_a, 1, 4096, 8192);
    let opened = open(&of_b);
    for restarts in 1..=3 {
        kill(&daemon, "a");
        assert_eq!(daemon.vssd("a")["process"]["restarts"], restarts);
        assert_eq!(read(&of_a, 4096, 8192), [1; 8192]);
        // An open file stays open.
        opened.write_all_at(&[restarts; 512], 512).unwrap();
        opened.sync_all().unwrap();
    }
    assert_eq!(process(&daemon, "b"), b);
    assert_eq!(sockets.each_ref().map(|path| identity(path)), before, "a socket was replaced");
    let (_, page) = daemon.http("GET /metrics");
    for line in [
        "headstart_harvest_vssd_process_up{vssd=\"a\",kind=\"regular\"} 1",
        "headstart_harvest_vssd_process_restarts_total{vssd=\"a\",kind=\"regular\"} 3",
        "headstart_harvest_vssd_process_restarts_total{vssd=\"b\",kind=\"regular\"} 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    let listed = daemon.say("vssd list");
    assert!(listed.contains("3 restarts of its export process"), "{listed}");
    daemon.says("is started again");
    let (a, b) = (process(&daemon, "a"), process(&daemon, "b"));
    drop(opened);
    daemon.stop();
    assert!(!is_alive(a) && !is_alive(b), "a process is left");
    assert!(!sockets.iter().any(|socket| socket.exists()) && !of_a.exists(), "a way is left");
}

#[test]
fn the_processes_end_with_a_killed_daemon_and_come_back_with_the_next() {
    let scene = Scene::new();
    let Some((mut daemon, _points)) = two(&scene) else { return };
    let of_a = scene.path("a/disk.raw");
    let syncs = |daemon: &Daemon<'_>| daemon.ask("status")["journal"]["syncs"].as_u64().unwrap();
    let before = syncs(&daemon);
    write_durably(&of_a, 7, 1 << 20, 3 << 20);
    assert!(syncs(&daemon) > before, "a flush was answered that the daemon did not do");
    let pids = [process(&daemon, "a"), process(&daemon, "b")];
    // One of them cannot notice anything: the next daemon ends it.
    signal(pids[1], Signal::STOP);
    daemon.kill();
    wait_until("it has ended without a daemon", crate::daemon::TIMEOUT, || !is_alive(pids[0]));
    assert!(is_alive(pids[1]));
    daemon.start_again();
    for name in ["a", "b"] {
        let vssd = daemon.vssd(name);
        assert_eq!((vssd["uris"].as_array().unwrap().len(), &vssd["error"]), (3, &Value::Null), "{vssd}");
        assert!(!pids.contains(&process(&daemon, name)));
    }
    assert!(!is_alive(pids[1]));
    assert_eq!(read(&of_a, 1 << 20, 3 << 20), vec![7; 3 << 20]);
    write_durably(&scene.path("b/disk.raw"), 8, 0, 4096);
    daemon.stop();
}

/// A stuck process holds up neither the daemon nor another vSSD, and can be removed.
#[test]
fn a_stuck_process_costs_the_others_nothing() {
    if !installed(&["qemu-io"]) {
        return;
    }
    let scene = Scene::new();
    let Some((mut daemon, _points)) = two(&scene) else { return };
    let stuck = process(&daemon, "a");
    signal(stuck, Signal::STOP);
    let begun = Instant::now();
    write_durably(&scene.path("b/disk.raw"), 3, 0, 1 << 20);
    // Its NBD socket is the daemon's.
    qemu_io(&scene, &uri(&daemon.vssd("a")), &["write -P 5 0 1M", "flush", "read -P 5 0 1M"]);
    for size in ["24M", "32M", "40M"] {
        daemon.ask(&format!("vssd resize b {size} --force"));
        daemon.ask(&format!("vssd resize a {size} --force"));
    }
    let of_b = scene.path("b/disk.raw");
    daemon.wait_for("40 MiB long", || {
        fs::metadata(&of_b).is_ok_and(|meta| meta.len() == 40 << 20).then_some(())
    });
    daemon.ask("vssd create c");
    let took = begun.elapsed();
    // A process has 20 seconds to end, and 30 to begin.
    assert!(took < std::time::Duration::from_secs(18), "the others waited for {took:?}");
    daemon.ask("vssd delete a --force");
    assert!(!is_alive(stuck) && !scene.path("a.sock").exists() && !scene.path("a/disk.raw").exists());
    assert_eq!(daemon.ask("vssd list")["vssds"].as_array().unwrap().len(), 2);
    daemon.stop();
}

#[test]
fn sizes_access_and_deletion_reach_the_process() {
    let scene = Scene::new();
    let Some((mut daemon, _points)) = two(&scene) else { return };
    let of_a = scene.path("a/disk.raw");
    let pid = process(&daemon, "a");
    daemon.ask("vssd resize a 20M --force");
    let is = |len: u64| fs::metadata(&of_a).is_ok_and(|meta| meta.len() == len).then_some(());
    daemon.wait_for("20 MiB long", || is(20 << 20));
    daemon.ask("vssd resize a 28M");
    daemon.wait_for("28 MiB long", || is(28 << 20));
    write_durably(&of_a, 9, (28 << 20) - 4096, 4096);
    assert_eq!(process(&daemon, "a"), pid, "it was started again for that");
    daemon.refuses("vssd access a --socket-mode 0660", &["a", "--force"]);
    let changed = daemon.ask("vssd access a --socket-mode 0660 --force");
    assert_eq!(changed["error"], Value::Null, "{changed}");
    assert_ne!(process(&daemon, "a"), pid);
    assert!(!is_alive(pid));
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
    assert_eq!([mode(&scene.path("a.sock")), mode(&of_a)], [0o660; 2]);
    let pid = kill(&daemon, "a");
    assert_eq!([mode(&scene.path("a.sock")), mode(&of_a)], [0o660; 2], "after a kill");
    assert_eq!(read(&of_a, (28 << 20) - 4096, 4096), [9; 4096]);
    daemon.ask("vssd delete a --force");
    assert!(!is_alive(pid) && !scene.path("a.sock").exists() && !of_a.exists());
    let left = scene.names("h/exports");
    assert!(left.iter().all(|name| name.starts_with("b.")), "{left:?}");
    daemon.stop();
}

/// The disk's errors reach its clients, and discarded bytes are given back.
#[test]
fn errors_and_discards_come_through() {
    if !installed(&["fallocate"]) {
        return;
    }
    let scene = Scene::new();
    let Some(_point) = MountPoint::make(&scene, "batch") else { return };
    let daemon = Daemon::start(&scene, "--size 1G");
    daemon.create_soon("shelf --kind unsold --channels 2");
    daemon.ask("vssd create batch --kind harvest --fuse ~/batch");
    let of_own = daemon.vssd("batch")["size"].as_u64().unwrap();
    let lease = daemon.request("batch --capacity 32M --for 1h")[0]["id"].as_u64().unwrap();
    let file = scene.path("batch/disk.raw");
    daemon.wait_for("larger", || fs::metadata(&file).is_ok_and(|meta| meta.len() > of_own).then_some(()));
    write_durably(&file, 1, 0, 8 << 20);
    let used = || daemon.vssd("batch")["used"].as_u64().unwrap();
    assert!(used() >= 8 << 20);
    let words = ["-p", "-o", "0", "-l", "4194304", file.to_str().unwrap()];
    assert!(run_tool(find("fallocate").unwrap().to_str().unwrap(), &words, &scene.path("")).status.success());
    assert!(used() <= 4 << 20, "{}", used());
    assert_eq!(read(&file, (4 << 20) - 512, 1024), [[0; 512], [1; 512]].concat());
    daemon.ask(&format!("release batch --lease {lease}"));
    daemon.wait_until_gone("batch", Some(lease));
    // The disk is larger than its flash now.
    let opened = open(&file);
    let full = (0..64).find_map(|part| opened.write_all_at(&vec![2; 1 << 20], part << 20).err());
    assert_eq!(full.expect("there is room for all of it").raw_os_error(), Some(28));
    drop(opened);
    let beyond = open(&file).write_all_at(&[0; 512], 1 << 50).unwrap_err();
    assert!(beyond.raw_os_error().is_some(), "{beyond}");
}

/// An obstacle to the first process of a daemon may end by itself.
#[test]
fn a_process_that_does_not_start_with_its_daemon_is_tried_again() {
    let scene = Scene::new();
    let mut daemon = Daemon::start(&scene, "--size 1G");
    let made = daemon.ask("vssd create a --vhost-user ~/a.sock");
    daemon.stop();
    let log = scene.path("h/exports/a.log");
    let _ = fs::remove_file(&log);
    fs::create_dir(&log).unwrap();
    daemon.start_again();
    let failed = daemon.vssd("a");
    assert!(failed["process"]["serving"] == false && failed["error"].is_string(), "{failed}");
    fs::remove_dir(&log).unwrap();
    process(&daemon, "a");
    let vssd = daemon.vssd("a");
    assert_eq!((&vssd["error"], &vssd["uris"]), (&Value::Null, &made["uris"]), "{vssd}");
    daemon.stop();
}

#[test]
fn exports_that_cannot_be_served_are_refused_and_leave_nothing() {
    let scene = Scene::new();
    let daemon = Daemon::start(&scene, "--size 1G");
    fs::write(scene.path("precious"), "precious").unwrap();
    daemon.refuses("vssd create a --vhost-user ~/precious", &["precious", "not a socket"]);
    assert_eq!(fs::read(scene.path("precious")).unwrap(), b"precious");
    daemon.refuses("vssd create a --fuse ~/nothing", &["nothing", "make a directory"]);
    daemon.refuses("vssd create a --vhost-user ~/a.sock --fuse ~/nothing", &["nothing"]);
    if is_root() {
        symlink(scene.path("precious"), scene.path("link")).unwrap();
        lchown(scene.path("link"), Some(65_534), None).unwrap();
        daemon.refuses("vssd create a --fuse ~/link", &["link", "symbolic link of another user"]);
        assert_eq!(fs::read(scene.path("precious")).unwrap(), b"precious");
    }
    assert!(!scene.path("a.sock").exists());
    assert_eq!(daemon.ask("vssd list")["vssds"], serde_json::json!([]));
    assert!(scene.names("h").iter().all(|name| name != "exports") || scene.names("h/exports").is_empty());
    let made = daemon.ask("vssd create plain");
    assert_eq!(made["process"], Value::Null, "it needs none: {made}");
    // Only the daemon starts it.
    scene.fails("harvest export a --pid-file ~/a.pid", &["harvest serve"]);
    assert!(!scene.path("a.pid").exists());
}

/// A daemon with the restrictions of its unit has its processes, and they have less protection than the daemon.
#[test]
fn a_daemon_with_the_restrictions_of_its_unit_has_processes() {
    if !is_root() || !installed(&["unshare", "setpriv"]) {
        return;
    }
    let scene = Scene::new();
    fs::create_dir(scene.path("theirs")).unwrap();
    chown(scene.path("theirs").as_path(), Some(Uid::from_raw(OTHER)), None).unwrap();
    fs::set_permissions(scene.path("theirs"), fs::Permissions::from_mode(0o700)).unwrap();
    let unit = "headstart-harvest.service";
    let Some(mut daemon) = Daemon::start_with(&scene, "--size 1G", |command| restricted(unit, command))
    else {
        return;
    };
    daemon.ask(&format!("vssd create a --vhost-user ~/theirs/a.sock --socket-owner {OTHER}"));
    let before = process(&daemon, "a");
    let after = kill(&daemon, "a");
    assert_ne!(before, after);
    assert_eq!(fs::symlink_metadata(scene.path("theirs/a.sock")).unwrap().uid(), OTHER);
    let score = fs::read_to_string(format!("/proc/{after}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "0", "it has the daemon's protection from the out-of-memory killer");
    daemon.stop();
}

fn can_run_machines() -> bool {
    installed(&["qemu-system-x86_64", "nbdcopy"])
}

/// A vSSD with the boot disk of a machine.
fn bootable(daemon: &Daemon<'_>, name: &str) -> String {
    let nbd = daemon.create(&format!("{name} --channels 2 --vhost-user ~/{name}.sock"));
    let copied = run_tool(
        find("nbdcopy").unwrap().to_str().unwrap(),
        &["--flush", "disk.raw", &nbd],
        &daemon.scene.path(""),
    );
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    nbd
}

/// The process dies in the middle, then the daemon. The guest's requests are in its record of requests in flight, and
/// the next process takes them up.
#[test]
fn a_guest_goes_on_when_the_process_or_the_daemon_is_killed() {
    if !can_run_machines() {
        return;
    }
    let scene = Scene::new();
    // The time is long enough for four restarts on a busy machine.
    make_bootable_for(&scene, 20);
    let mut daemon = Daemon::start(&scene, "--size 2G");
    let nbd = bootable(&daemon, "vm");
    let mut machine = Machine::boot(&scene, "vm.sock");
    for round in 1..=4 {
        let rounds = machine.rounds();
        machine.wait_for_rounds(rounds + 10);
        if round == 3 {
            daemon.kill_and_start();
            process(&daemon, "vm");
        } else {
            kill(&daemon, "vm");
        }
    }
    let (rounds, _) = machine.end();
    check_rounds(&scene, &nbd, rounds);
    daemon.stop();
}

/// A hypervisor takes its memory away from under the process: this affects only this vSSD, and even its own process
/// goes on or is there again.
#[test]
fn memory_that_is_taken_away_harms_no_other_vssd() {
    if !can_run_machines() {
        return;
    }
    let scene = Scene::new();
    make_bootable(&scene);
    let mut daemon = Daemon::start(&scene, "--size 2G");
    let (bad, good) = (bootable(&daemon, "bad"), bootable(&daemon, "good"));
    let served = process(&daemon, "good");
    let neighbour = Machine::boot(&scene, "good.sock");
    for _ in 0..3 {
        let memory = scene.path("memory");
        let mut machine = Machine::boot_in(&scene, "bad.sock", &memory);
        machine.wait_for_rounds(2);
        File::options().write(true).open(&memory).unwrap().set_len(0).unwrap();
        // The hypervisor itself fails on its missing memory.
        wait_until("the hypervisor has ended", crate::daemon::TIMEOUT, || !machine.is_running());
        drop(machine);
        fs::remove_file(&memory).unwrap();
        process(&daemon, "bad");
    }
    let (rounds, _) = neighbour.end();
    assert_eq!(process(&daemon, "good"), served, "the neighbour's process was started again");
    check_rounds(&scene, &good, rounds);
    let mut again = Machine::boot(&scene, "bad.sock");
    again.wait_for_rounds(2);
    let (rounds, _) = again.end();
    check_rounds(&scene, &bad, rounds);
    daemon.stop();
}

/// Lines of an earlier process are not taken for the cause of a later one's end.
#[test]
fn the_cause_of_an_end_is_what_that_process_said() {
    let scene = Scene::new();
    let Some((mut daemon, _points)) = two(&scene) else { return };
    let mut log = OpenOptions::new().append(true).open(scene.path("h/exports/a.log")).unwrap();
    log.write_all(b"headstart: warning: words of the first\n").unwrap();
    kill(&daemon, "a");
    let first = daemon.says("pause_ms 50");
    assert!(first.contains("words of the first") && first.contains("vssd a"), "{first}");
    kill(&daemon, "a");
    let second = daemon.says("pause_ms 100");
    assert!(second.contains("not said") && !second.contains("words of the first"), "{second}");
}
