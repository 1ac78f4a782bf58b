//! Devices of a kernel that has them, in an emulated guest: the machines of the tests may have none.
//!
//! The guest is the Debian of `scripts/demo-disk`, which the kernel reads and does not change. Its first process is
//! `kernel_devices.sh`, on a second disk, with this build of headstart and an image.

use super::{Guest, repository};
use headstart_testkit::process::{Process, find, installed, skipped};
use headstart_testkit::scene::{Scene, program, run_tool};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest time for the guest.
const LIMIT: Duration = Duration::from_secs(240);
/// The guest has little to do, and `/dev/kvm` may be there without working.
const EMULATION: &str = "tcg,thread=multi";
/// The files of the image: their number, and the bytes of each.
const FILES: usize = 24;
const FILE: usize = 1 << 20;

#[test]
#[ignore = "an emulated guest: make test-platforms"]
fn a_disk_of_the_nbd_driver_outlives_its_process_under_reads() {
    let Some(scene) = guest_disk() else { return };
    let said = boot(&scene);
    let line = |mark: &str| said.lines().find_map(|line| line.trim().strip_prefix(mark)).map(str::to_owned);
    let outcome = line("GUEST ").unwrap_or_default();
    assert!(outcome.starts_with("done: "), "{outcome}\n{said}");
    let words: Vec<_> = outcome.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(u64::MAX);
    let (rounds, slowest, restarts, left) = (number(1), number(2), number(4), number(6));
    assert!((3..1000).contains(&rounds), "{outcome}");
    assert_eq!(restarts, 3, "{outcome}");
    assert_eq!(left, 0, "the device still has the disk: {outcome}");
    // A read whose process died waits for the deadline of 5 seconds and 10 more.
    assert!(slowest < 40_000, "{outcome}");
    assert!(outcome.contains("backend headstart "), "{outcome}");
    let doctor = line("GUEST-DOCTOR ").unwrap_or_default();
    assert!(doctor.contains("--attach-by nbd"), "the guest's kernel cannot keep files of FUSE: {doctor}");
    let _ = writeln!(std::io::stderr(), "a disk of nbd, its process killed 3 times: {outcome}");
}

/// A disk with the program, an image and the script; `None`, with a message, if there is no guest for it.
fn guest_disk() -> Option<Scene> {
    let debian = repository().join("target/demo/debian.raw");
    if !debian.is_file() {
        skipped(&format!("there is no {} (scripts/demo-disk makes it)", debian.display()));
        return None;
    }
    if !installed(&["qemu-system-x86_64", "mkfs.ext4", "strip", "md5sum"]) {
        return None;
    }
    let scene = Scene::new();
    fs::create_dir_all(scene.path("files")).unwrap();
    fs::create_dir_all(scene.path("guest")).unwrap();
    for file in 0..FILES {
        // No two blocks are equal.
        let bytes: Vec<u8> =
            (0..FILE / 8).flat_map(|at| ((file * FILE + at) as u64 * 0x9E37_79B9).to_le_bytes()).collect();
        fs::write(scene.path(&format!("files/file-{file}")), bytes).unwrap();
    }
    let sums = run_tool("sh", &["-c", "cd files && md5sum *"], &scene.path("")).stdout;
    fs::write(scene.path("guest/sums"), sums).unwrap();
    make_file_system(&scene, "files", "64M");
    scene.ok("image import --quiet ~/files.raw file://~/guest/store:v1 --codec lz4");
    // Debug information takes most of the program.
    let stripped = scene.path("guest/headstart");
    let headstart = program("headstart");
    run_tool("strip", &["-o", stripped.to_str().unwrap(), headstart.to_str().unwrap()], &scene.path(""));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boot/kernel_devices.sh");
    fs::copy(script, scene.path("guest/run")).unwrap();
    make_file_system(&scene, "guest", "512M");
    Some(scene)
}

fn make_file_system(scene: &Scene, directory: &str, size: &str) {
    let (from, to) = (scene.path(directory), scene.path(&format!("{directory}.raw")));
    let args = ["-q", "-F", "-L", directory, "-O", "^has_journal", "-d", from.to_str().unwrap()];
    let mkfs = find("mkfs.ext4").unwrap();
    run_tool(mkfs.to_str().unwrap(), &[&args[..], &[to.to_str().unwrap(), size]].concat(), &scene.path(""));
}

/// Boots the guest and returns all that it says on its serial port, until it ends.
fn boot(scene: &Scene) -> String {
    let debian = repository().join("target/demo/debian.raw");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args([
        "-m",
        "1024",
        "-smp",
        "2",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-accel",
        EMULATION,
    ]);
    qemu.arg("-kernel").arg(debian.with_extension("raw.kernel"));
    qemu.arg("-initrd").arg(debian.with_extension("raw.initrd"));
    let start = "mount -o ro /dev/vdb /mnt && exec /bin/bash /mnt/run";
    qemu.arg("-append")
        .arg(format!("root=LABEL=demo ro console=ttyS0 quiet init=/bin/bash -- -c \"{start}\""));
    for disk in [&debian, &scene.path("guest.raw")] {
        qemu.arg("-drive").arg(format!("file={},format=raw,if=virtio,snapshot=on", disk.display()));
    }
    let serial = scene.path("serial");
    qemu.arg("-serial").arg(format!("file:{}", serial.display()));
    let mut guest = Guest(Process::start(&mut qemu));
    let status = guest.0.end(LIMIT);
    let said = String::from_utf8_lossy(&fs::read(&serial).unwrap_or_default()).into_owned();
    assert!(status.success(), "{status}: {}\n{said}", guest.0.output());
    said
}
