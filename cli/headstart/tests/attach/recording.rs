//! Recordings of boots: each begins with its guest's first read, whenever that comes, and has a trace of its own.

use crate::attached::Attached;
use crate::images::{noisy, tool};
use crate::scene::{CommandRun, Scene};
use crate::tools::installed;
use headstart_trace::file::{ReadLimits, read_file};
use headstart_trace::{Trace, TraceDirectory};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The traces of a directory of a scene, oldest first.
fn traces(scene: &Scene, dir: &str) -> Vec<Trace> {
    let paths = TraceDirectory::list(&scene.path(dir)).unwrap();
    paths.iter().map(|path| read_file(path, &ReadLimits::default()).unwrap()).collect()
}

/// Runs a client that connects, runs a script and leaves; on return the server has seen that.
#[track_caller]
fn client(scene: &Scene, attached: &Attached, script: &str) {
    tool(scene, "nbdsh", &["-u", &attached.uri(), "-c", &format!("{script}\nh.shutdown()")]);
}

/// The reads of a boot: `pages` pages, the first one with the boot sector.
fn boot(pages: usize) -> String {
    format!("for page in range({pages}): h.pread(4096, page * 65536)")
}

#[test]
fn the_window_begins_with_the_first_read_and_not_with_the_attach() {
    let scene = noisy(4);
    if !installed(&["nbdsh"]) {
        return;
    }
    let attached =
        Attached::start(&scene, "file://~/store:v1 --nbd unix:~/d.sock --record ~/traces --record-time 5s");
    std::thread::sleep(Duration::from_secs(6));
    client(&scene, &attached, &boot(20));
    let recorded = &attached.detach()["recorded"];
    assert_eq!((&recorded["boots"], &recorded["traces"]), (&json!(1), &json!(1)), "{recorded}");
    assert_eq!((&recorded["requests"], &recorded["without_trace"]), (&json!(20), &json!([])), "{recorded}");
    let traces = traces(&scene, "traces");
    let [trace] = traces.as_slice() else { panic!("{} traces", traces.len()) };
    assert_eq!((trace.records.len(), trace.records[0].t_us), (20, 0));
    let waited: u64 = trace.creation.labels["attached-before-us"].parse().unwrap();
    assert!(waited >= 6_000_000, "{waited}");
}

#[test]
fn each_boot_of_a_disk_that_stays_attached_has_a_trace() {
    let scene = noisy(4);
    if !installed(&["nbdsh"]) {
        return;
    }
    let words =
        "file://~/store:v1 --nbd unix:~/d.sock --record ~/traces --label volume=vm --metrics 127.0.0.1:0";
    let attached = Attached::start(&scene, words);
    // A hypervisor is started, then another one; in the latter the guest starts again, as firmware does.
    client(&scene, &attached, &boot(20));
    client(
        &scene,
        &attached,
        &format!("{}\nimport time; time.sleep(1.3); h.pread(512, 0)\n{}", boot(30), boot(25)),
    );
    let metrics =
        attached.wait_for("boots", |metrics| metrics.sum("headstart_trace_boots_total", &[]) == 3.0);
    assert_eq!(metrics.sum("headstart_trace_records_total", &[]), 76.0);
    let recorded = attached.detach()["recorded"].clone();
    assert_eq!((&recorded["boots"], &recorded["traces"]), (&json!(3), &json!(3)), "{recorded}");
    let traces = traces(&scene, "traces");
    let told: Vec<_> = traces
        .iter()
        .map(|trace| (trace.creation.volume.as_str(), trace.records.len(), trace.records[0].t_us))
        .collect();
    assert_eq!(told, [("vm", 20, 0), ("vm-boot-2", 30, 0), ("vm-boot-3", 26, 0)]);
    // The traces can be learned from, and exported together.
    let learned = scene.json("train --traces traces -o plans");
    assert_eq!(learned["images"][0]["traces"], 3, "{learned}");
    scene.ok("trace export traces -o exported");
}

#[test]
fn boots_without_a_trace_are_said() {
    let scene = noisy(4);
    if !installed(&["nbdsh"]) {
        return;
    }
    let words = "file://~/store:v1 --nbd unix:~/d.sock --record ~/traces";
    let recorded = Attached::start(&scene, words).detach()["recorded"].clone();
    assert_eq!(recorded["without_trace"], json!([{ "boots": 0, "why": "nothing was read" }]));
    assert_eq!(traces(&scene, "traces").len(), 0);

    // A tool reads a little of the disk before its guest starts.
    let attached = Attached::start(&scene, words);
    client(&scene, &attached, &boot(3));
    client(&scene, &attached, &boot(20));
    let recorded = attached.detach()["recorded"].clone();
    let why = "little was read before the next boot";
    assert_eq!(recorded["without_trace"], json!([{ "boots": 1, "why": why }]), "{recorded}");
    assert_eq!((&recorded["requests"], &recorded["saved_requests"]), (&json!(20), &json!(20)));
    assert_eq!(traces(&scene, "traces").len(), 1);

    // The directory is gone.
    let attached = Attached::start(&scene, words);
    fs::rename(scene.path("traces"), scene.path("before")).unwrap();
    fs::write(scene.path("traces"), "").unwrap();
    client(&scene, &attached, &boot(20));
    let recorded = attached.detach()["recorded"].clone();
    let why = "the directory took no trace";
    assert_eq!(recorded["without_trace"], json!([{ "boots": 1, "why": why }]), "{recorded}");
    assert_eq!(recorded["traces"], Value::from(0));
}

/// A guest decides when a boot begins: it cannot fill the directory by that.
#[test]
fn a_guest_that_boots_without_end_leaves_a_few_traces() {
    let scene = noisy(4);
    if !installed(&["nbdsh"]) {
        return;
    }
    let attached = Attached::start(
        &scene,
        "file://~/store:v1 --nbd unix:~/d.sock --record ~/traces --metrics 127.0.0.1:0",
    );
    let again =
        format!("import time\nfor boot in range(8):\n  h.pread(512, 0)\n  {}\n  time.sleep(1.2)", boot(20));
    client(&scene, &attached, &again);
    client(&scene, &attached, &boot(20));
    attached.wait_for("boots beyond the budget", |metrics| {
        metrics.sum("headstart_trace_beyond_budget_total", &[]) >= 2.0
    });
    let recorded = attached.detach()["recorded"].clone();
    let why = "more boots in an hour than leave traces";
    assert_eq!(recorded["without_trace"], json!([{ "boots": 3, "why": why }]), "{recorded}");
    assert_eq!((&recorded["boots"], &recorded["traces"]), (&json!(9), &json!(6)), "{recorded}");
    assert_eq!(recorded["requests"], recorded["saved_requests"], "{recorded}");
    assert_eq!(traces(&scene, "traces").len(), 6);
}

/// The report in the form for people.
#[test]
fn the_last_line_says_what_was_recorded() {
    let scene = noisy(4);
    if !installed(&["nbdinfo", "nbdsh"]) {
        return;
    }
    let said = |script: &str| {
        let mut command = scene.command("attach file://~/store:v1 --nbd unix:~/d.sock --record ~/traces");
        let mut process = headstart_testkit::process::Process::start(&mut command);
        process.line("ready", crate::attached::TIMEOUT, |line| line.contains("Ctrl-C detaches"));
        let uri = format!("nbd+unix:///?socket={}", scene.path("d.sock").display());
        tool(&scene, "nbdsh", &["-u", &uri, "-c", script]);
        assert_eq!(process.stop(crate::attached::TIMEOUT).code(), Some(0), "{process}");
        process.output()
    };
    let nothing = said("h.get_size()");
    assert!(nothing.contains("recorded nothing: nothing was read"), "{nothing}");
    let dir = scene.path("traces").display().to_string();
    let once = said(&boot(20));
    assert!(once.contains(&format!("recorded 20 requests into {dir}")), "{once}");
    let again = said(&format!("{}\nimport time; time.sleep(1.3); h.pread(512, 0)\n{}", boot(20), boot(20)));
    assert!(again.contains(&format!("recorded 41 requests of 2 boots into {dir}")), "{again}");
}

/// Over FUSE a client is a process that has the file open.
#[test]
fn a_file_that_is_opened_again_is_booted_again() {
    let scene = noisy(4);
    if !installed(&["dd"]) || fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return crate::tools::skipped("/dev/fuse cannot be opened");
    }
    fs::write(scene.path("vm.raw"), "").unwrap();
    let words = "file://~/store:v1 --fuse ~/vm.raw --writable ~/vm --record ~/traces";
    let attached = Attached::start(&scene, words);
    for _ in 0..2 {
        let file = format!("if={}", scene.path("vm.raw").display());
        let mut dd = Command::new("dd");
        let read = CommandRun::of("dd", dd.args([file.as_str(), "of=/dev/null", "bs=64k", "iflag=direct"]));
        assert_eq!(read.status, Some(0), "{read}");
    }
    let recorded = attached.detach()["recorded"].clone();
    assert_eq!((&recorded["boots"], &recorded["traces"]), (&json!(2), &json!(2)), "{recorded}");
}

/// A machine over vhost-user whose firmware finds nothing to boot. Killed when dropped.
struct Machine(Child);

impl Machine {
    fn start(scene: &Scene) -> Self {
        let socket = format!("socket,id=disk,path={}", scene.path("v.sock").display());
        let memory = "memory-backend-memfd,id=mem,size=64M,share=on";
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", "tcg", "-m", "64M", "-display", "none", "-monitor", "stdio", "-object", memory]);
        command.args(["-numa", "node,memdev=mem", "-chardev", &socket]);
        command.args(["-device", "vhost-user-blk-pci,chardev=disk", "-net", "none"]);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn reset(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"system_reset\n").unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A real hypervisor is started, reset, and started again.
#[test]
fn a_machine_that_is_reset_boots_again() {
    let scene = noisy(1);
    if !installed(&["qemu-system-x86_64"]) {
        return;
    }
    let words =
        "file://~/store:v1 --vhost-user ~/v.sock --writable ~/vm --record ~/traces --metrics 127.0.0.1:0";
    let attached = Attached::start(&scene, words);
    let wait_for_boots = |boots: f64| {
        attached.wait_for("boot", |metrics| metrics.sum("headstart_trace_boots_total", &[]) >= boots);
    };
    let mut machine = Machine::start(&scene);
    wait_for_boots(1.0);
    // Firmware reads several times.
    std::thread::sleep(Duration::from_secs(3));
    let before = attached.metrics().sum("headstart_trace_boots_total", &[]);
    machine.reset();
    wait_for_boots(before + 1.0);
    drop(machine);
    let before = attached.metrics().sum("headstart_trace_boots_total", &[]);
    let _machine = Machine::start(&scene);
    wait_for_boots(before + 1.0);
}
