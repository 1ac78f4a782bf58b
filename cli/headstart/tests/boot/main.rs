//! A real Debian boots in QEMU from `headstart attach`, until its web server answers.
//!
//! The disk is the one that `scripts/demo-disk` makes, and `scripts/boot-vm` boots it. If there is none, or no QEMU,
//! the tests print that on standard error and pass. Every boot takes both cores of a small machine for minutes, so
//! `make test` boots once, over NBD from a web server and an empty cache; `make test-platforms` boots over
//! vhost-user-blk and from a FUSE file, too. These guests boot one after the other on one [`Host`], and the first one,
//! over NBD, fills the cache for all others. A guest of a container's image is in [`converted`].

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

mod converted;
mod kernel_devices;
#[path = "../e2e/tools.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tools;

use headstart_testkit::{attached, scene};

use attached::Attached;
use headstart_testkit::nginx::Nginx;
use headstart_testkit::process::{Process, has_fuse};
use rustix::process::Signal;
use scene::{Scene, run_tool};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tools::{find, installed, skipped};

/// Seconds within which a guest has to be up, and off again.
const TIME_LIMIT: u64 = 180;
/// The offset of the disk's partition, in bytes.
const PARTITION: u64 = 1 << 20;

#[test]
fn a_debian_disk_boots_over_nbd_and_keeps_its_writes() {
    let Some(host) = Host::new() else { return };
    let boot = host.boot_over_nbd("over NBD with an empty cache");
    check_first_boot(&host, &boot);
    if !has_fuse() {
        return;
    }
    let attached = host.attach_as_file("nbd");
    check_file_system(&host.scene, &attached.uri());
    attached.detach();
}

#[test]
#[ignore = "four boots: make test-platforms"]
fn a_debian_disk_boots_over_nbd_vhost_user_and_fuse_and_keeps_its_writes() {
    let Some(host) = Host::new() else { return };
    let first = host.boot_over_nbd("over NBD with an empty cache");
    check_first_boot(&host, &first);
    boot_again_over_nbd(&host, &first);
    boot_over_vhost_user_from_the_cache(&host, &first);
    if has_fuse() {
        boot_from_a_file_and_the_cache(&host, &first);
    }
}

fn check_first_boot(host: &Host, boot: &Boot) {
    assert_eq!(boot.number, 1);
    assert!(boot.fetched > 1 << 20, "{boot:?} is not over the web server");
    // It reads 70 MB of 375, and whole blocks are fetched for it, which have 55 % of the image's bytes.
    assert!(boot.fetched < host.stored / 3 * 2, "{boot:?} of {} bytes", host.stored);
}

fn boot_again_over_nbd(host: &Host, first: &Boot) {
    let second = host.boot_over_nbd("the same over NBD again");
    assert_eq!(second.number, 2, "what the guest wrote is gone");
    assert!(second.fetched < first.fetched / 10, "{second:?} after {first:?}");
}

fn boot_over_vhost_user_from_the_cache(host: &Host, first: &Boot) {
    let disk = format!("vhost-user:{}", host.scene.path("vhost.sock").display());
    let boot = |dir: &str| {
        let attached = host.attach(&format!("--writable ~/{dir} --vhost-user ~/vhost.sock"));
        host.try_boot("over vhost-user-blk", attached, &disk, |_| ())
    };
    let boot = boot("vhost").or_else(|failed| {
        if !goes_round_in_circles(&failed) {
            return Err(failed);
        }
        let _ = writeln!(std::io::stderr(), "once more, in QEMU's own emulation: {failed}");
        boot("again")
    });
    let boot = boot.unwrap_or_else(|failed| panic!("{failed}"));
    assert_eq!(boot.number, 1);
    assert!(boot.fetched < first.fetched / 10, "{boot:?} after {first:?}");
}

/// `true` if a guest that did not come up was not waiting for its disk, but busy, in QEMU's own emulation: that keeps
/// code that it has translated, and does not see that a vhost-user server overwrites it (see `scripts/boot-vm`).
fn goes_round_in_circles(failed: &str) -> bool {
    let accelerator = fs::read_to_string(repository().join("target/accelerator")).unwrap_or_default();
    let percent = failed.split_once("QEMU took ").and_then(|(_, rest)| rest.split_once(" %"));
    let is_busy = percent.and_then(|(percent, _)| percent.parse::<u32>().ok()).is_some_and(|it| it >= 50);
    is_busy && accelerator.trim_end().ends_with(" tcg")
}

fn boot_from_a_file_and_the_cache(host: &Host, first: &Boot) {
    let attached = host.attach_as_file("fuse");
    let file = attached.uri();
    let boot = host.boot("from a FUSE file", attached, &file, |off| {
        check_file_system(&host.scene, &off.uri());
    });
    assert_eq!(boot.number, 1);
    assert!(boot.fetched < first.fetched / 10, "{boot:?} after {first:?}");
}

/// Checks that the guest's file system has no faults, and has the guest's writes.
fn check_file_system(scene: &Scene, disk: &str) {
    if !installed(&["e2fsck", "debugfs"]) {
        return;
    }
    let partition = format!("{disk}?offset={PARTITION}");
    let tool = |program, args: &[&str]| {
        run_tool(find(program).unwrap().to_str().unwrap(), args, &scene.path("")).stdout
    };
    tool("e2fsck", &["-f", "-n", &partition]);
    assert_eq!(tool("debugfs", &["-R", "cat /var/lib/boots", &partition]), b"1\n");
}

/// The image in a store behind a web server, and a cache.
struct Host {
    scene: Scene,
    server: Nginx,
    /// Bytes of the image in its store.
    stored: u64,
}

/// A guest that was up, and is off.
#[derive(Debug)]
struct Boot {
    /// The number of boots that this disk had seen.
    number: u32,
    /// Bytes the store sent.
    fetched: u64,
}

impl Host {
    /// The host; `None`, with a message, if nothing can be booted.
    fn new() -> Option<Self> {
        let disk = repository().join("target/demo/debian.raw");
        if !disk.is_file() {
            skipped(&format!("there is no {} (scripts/demo-disk makes it)", disk.display()));
            return None;
        }
        if !installed(&["bash", "qemu-system-x86_64", "nginx"]) {
            return None;
        }
        let scene = Scene::new();
        scene.ok(&format!("image import --quiet {} file://~/store:v1 --codec lz4", disk.display()));
        let stored = scene.json("image inspect file://~/store:v1")["stored_bytes"].as_u64().unwrap();
        let server = Nginx::serve(&scene.path("store"));
        Some(Self { scene, server, stored })
    }

    fn boot_over_nbd(&self, what: &str) -> Boot {
        let attached = self.attach("--writable ~/nbd");
        let uri = attached.uri();
        self.boot(what, attached, &uri, |_| ())
    }

    fn attach(&self, options: &str) -> Attached {
        let words = format!("{}/:v1 --cache ~/cache --metrics 127.0.0.1:0 {options}", self.server.url());
        Attached::start(&self.scene, &words)
    }

    /// Attaches the disk of a writable directory as a file.
    fn attach_as_file(&self, directory: &str) -> Attached {
        fs::create_dir(self.scene.path("mnt")).unwrap();
        self.attach(&format!("--writable ~/{directory} --fuse ~/mnt"))
    }

    /// Boots an attached disk, which QEMU calls `disk`, until the guest has powered off; checks its state by `look`;
    /// and detaches it.
    #[track_caller]
    fn boot(&self, what: &str, attached: Attached, disk: &str, look: impl FnOnce(&Attached)) -> Boot {
        self.try_boot(what, attached, disk, look).unwrap_or_else(|failed| panic!("{failed}"))
    }

    /// As [`boot`](Self::boot), but returns everything that is known of a guest that does not come up.
    #[track_caller]
    fn try_boot(
        &self,
        what: &str,
        attached: Attached,
        disk: &str,
        look: impl FnOnce(&Attached),
    ) -> Result<Boot, String> {
        let sent_before = self.sent();
        let (seconds, number) = self.run_guest(what, &attached, disk)?;
        let (fetched, metrics) = (self.sent() - sent_before, attached.metrics());
        assert_eq!(metrics.sum("headstart_request_errors_total", &[]), 0.0, "{}", metrics.text);
        assert!(metrics.requests("write") > 0.0 && metrics.requests("flush") > 0.0, "{}", metrics.text);
        look(&attached);
        attached.detach();
        let reads = metrics.requests("hit") + metrics.requests("miss");
        // The line goes past the harness's capturing, because it is worth reading.
        let _ = writeln!(
            std::io::stderr(),
            "boot {number} {what}: up after {seconds} s; {:.1} of {:.1} MB fetched; \
             {:.1} % of {reads} reads did not wait",
            fetched as f64 / 1e6,
            self.stored as f64 / 1e6,
            100.0 * metrics.requests("hit") / reads,
        );
        Ok(Boot { number, fetched })
    }

    /// The output of `scripts/boot-vm`: the seconds that it took, and the number of the boot.
    #[track_caller]
    fn run_guest(&self, what: &str, attached: &Attached, disk: &str) -> Result<(String, u32), String> {
        let serial = self.scene.path("serial");
        let _ = fs::remove_file(&serial);
        let mut command = Command::new(repository().join("scripts/boot-vm"));
        command.args(["--poweroff", "--timeout", &TIME_LIMIT.to_string(), "--serial"]).arg(&serial).arg(disk);
        let mut guest = Guest(Process::start(&mut command));
        let status = guest.0.end(Duration::from_secs(TIME_LIMIT + 30));
        let said = guest.0.output();
        if !status.success() {
            let serial = String::from_utf8_lossy(&fs::read(&serial).unwrap_or_default()).into_owned();
            let lines: Vec<_> = serial.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            let (attach, metrics) = (attached.output(), attached.metrics().text);
            let requests: Vec<_> =
                metrics.lines().filter(|line| line.starts_with("headstart_request")).collect();
            return Err(format!(
                "{what}: {status}\n{said}\n--- attach said\n{attach}\n{}\n--- end of the serial output\n{tail}",
                requests.join("\n")
            ));
        }
        let words: Vec<_> = said.split_whitespace().collect();
        let [seconds, _since_kernel, "boot", number] = words[..] else { panic!("{what}: {said}") };
        Ok((seconds.to_owned(), number.parse().unwrap()))
    }

    /// Bytes that the web server sent so far.
    fn sent(&self) -> u64 {
        let log = self.server.log();
        log.lines().map(|line| line.split(' ').nth(3).unwrap().parse::<u64>().unwrap()).sum()
    }
}

/// Runs `scripts/boot-vm`, which ends its QEMU when it is asked to end, and could not if it were killed at once.
struct Guest(Process);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.signal(Signal::TERM);
        let until = Instant::now() + Duration::from_secs(10);
        while self.0.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
