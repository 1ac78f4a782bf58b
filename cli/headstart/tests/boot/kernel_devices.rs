//! Devices of a kernel that has them, in an emulated guest: the machines of the tests may have none.
//!
//! The guest is the Debian of `scripts/demo-disk`, which the kernel reads and does not change; for ublk it has a later
//! kernel and a build of headstart with that feature (`scripts/ublk-guest`). Its first process is a
//! script on a second disk, with the program and an image: `kernel_devices.sh` or `container_quota.sh`.

use super::{Guest, repository};
use headstart_testkit::process::{Process, find, installed, skipped};
use headstart_testkit::scene::{Scene, program, run_tool};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
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
    let Some(guest) = KernelGuest::nbd() else { return };
    let said = guest.run();
    check_reads(&said);
    let outcome = said_after(&said, "GUEST ");
    assert!(outcome.contains("backend headstart "), "{outcome}");
    // A read whose process died waits for the deadline of 5 seconds and 10 more.
    assert!(number_after(&outcome, "slowest") < 40_000, "{outcome}");
    let doctor = said_after(&said, "GUEST-DOCTOR containers");
    assert!(doctor.contains("--attach-by nbd"), "the guest's kernel cannot keep files of FUSE: {doctor}");
    let _ = writeln!(std::io::stderr(), "a disk of nbd, its process killed 3 times: {outcome}");
}

#[test]
#[ignore = "an emulated guest: make test-platforms"]
fn a_disk_of_the_ublk_driver_outlives_its_process_under_reads_and_writes() {
    let Some(guest) = KernelGuest::ublk() else { return };
    let said = guest.run();
    check_reads(&said);
    let outcome = said_after(&said, "GUEST ");
    // A read waits for the next process only, which a slow machine takes seconds to start.
    assert!(number_after(&outcome, "slowest") < 30_000, "{outcome}");
    // Each was written, made durable and compared, while the process was killed twice.
    assert!((3..10_000).contains(&number_after(&outcome, "written")), "{outcome}");
    let _ = writeln!(std::io::stderr(), "a disk of ublk, its process killed 5 times: {outcome}");
}

#[test]
#[ignore = "an emulated guest: make test-platforms"]
fn a_container_on_overlayfs_is_held_to_its_limit_by_a_project_quota() {
    let Some(guest) = KernelGuest::quota() else { return };
    let said = guest.run();
    let outcome = said_after(&said, "GUEST ");
    let part = |word: &str| outcome.split(&format!("{word} ")).nth(1).and_then(|rest| rest.split(';').next());
    let check = |word: &str, is_right: &dyn Fn(u64, &str) -> bool| {
        let (kib, what) = part(word).and_then(|part| part.split_once(' ')).unwrap_or_default();
        let kib = kib.parse().unwrap_or(u64::MAX);
        assert!(is_right(kib, what), "{word}: {outcome}\n{said}");
    };
    let is_limited = |kib, what: &str| (3000..=4096).contains(&kib) && what == "Disk quota exceeded";
    let is_done = |kib, what: &str| (3072..7000).contains(&kib) && what == "done";
    // Layers have no limit, and each container has one of its own, also once another has reached its.
    for word in ["unpacked", "two", "freed"] {
        check(word, &is_done);
    }
    for word in ["one", "three"] {
        check(word, &is_limited);
    }
    // Without the snapshotter, and with another container's space.
    check("again", &|kib, what| kib < 1024 && what == "Disk quota exceeded");
    check("left", &|kib, what| kib <= 1024 && what == "Disk quota exceeded");
    assert_eq!(part("sizes").map(str::trim), Some("4096 4096"), "of df: {outcome}");
    assert_eq!(part("label"), Some("0"), "it says that the limit is not held: {outcome}");
    // Files are limited, too: the directories of the snapshot are counted with them.
    check("files", &|files, what| (4000..4096).contains(&files) && what == "Disk quota exceeded");
    assert_eq!(part("held"), Some("4096 4096"), "{outcome}");
    assert_eq!(part("released"), Some("0 0"), "the limit of a removed snapshot: {outcome}");
    let apart: i64 = part("apart").and_then(|apart| apart.parse().ok()).unwrap_or_default();
    assert!(apart.abs() > 64, "the numbers of projects follow each other: {outcome}");
    // If the kernel refuses it one day, the docs are to say that limits hold attackers (docs/how-to/containerd.md).
    assert_eq!((part("taken"), part("escaped")), (Some("done"), Some("8388608 8388608")), "{outcome}");
    let refused = Some("Invalid argument chattr: Invalid argument");
    assert_eq!(part("mapped"), refused, "in a user namespace of its own: {outcome}");
    let _ = writeln!(std::io::stderr(), "containers with a limit of 4 MiB: {outcome}");
}

/// Checks that reads of the guest went on while the process of their disk was killed three times, and that the device
/// is gone at the end.
fn check_reads(said: &str) {
    let outcome = said_after(said, "GUEST ");
    assert!(outcome.starts_with("done: "), "{outcome}\n{said}");
    assert!((3..1000).contains(&number_after(&outcome, "rounds")), "{outcome}");
    assert_eq!(number_after(&outcome, "restarts"), 3, "{outcome}");
    assert_eq!(number_after(&outcome, "left"), 0, "the device still has the disk: {outcome}");
}

/// The rest of the guest's line that begins with `mark`.
fn said_after(said: &str, mark: &str) -> String {
    said.lines().find_map(|line| line.trim().strip_prefix(mark)).unwrap_or_default().to_owned()
}

/// The number after a word; the largest if there is none.
fn number_after(outcome: &str, word: &str) -> u64 {
    let after = outcome.split_whitespace().skip_while(|found| *found != word).nth(1);
    after.and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}

/// A guest with a kernel that has a driver.
struct KernelGuest {
    scene: Scene,
    /// The command line of QEMU, but for the second disk.
    qemu: Command,
    /// The disk with the program, an image and the script, as an argument of QEMU.
    second: &'static str,
}

impl KernelGuest {
    /// Debian's own kernel, whose driver is nbd.
    fn nbd() -> Option<Self> {
        let scene = guest_scene()?;
        make_image(&scene);
        fs::write(scene.path("guest/driver"), "nbd").unwrap();
        make_guest_disk(&scene, &program("headstart"), "kernel_devices.sh", &[]);
        Some(Self::of_debian(scene))
    }

    /// Debian's own kernel, a file system with project quotas, and this machine's containerd.
    fn quota() -> Option<Self> {
        let scene = guest_scene()?;
        if !installed(&["containerd", "ctr"]) {
            return None;
        }
        let mkfs = find("mkfs.ext4").unwrap();
        let args = ["-q", "-O", "project,quota", "guest/quota.raw", "64M"];
        run_tool(mkfs.to_str().unwrap(), &args, &scene.path(""));
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boot/project.pl");
        let tools = [find("containerd").unwrap(), find("ctr").unwrap(), project];
        make_guest_disk(&scene, &program("headstart"), "container_quota.sh", &tools);
        Some(Self::of_debian(scene))
    }

    fn of_debian(scene: Scene) -> Self {
        let debian = debian();
        let mut qemu = qemu();
        qemu.arg("-kernel").arg(debian.with_extension("raw.kernel"));
        qemu.arg("-initrd").arg(debian.with_extension("raw.initrd"));
        qemu.args(["-append", &append("LABEL=demo", "mount -o ro /dev/vdb /mnt")]);
        qemu.arg("-drive").arg(format!("file={},format=raw,if=virtio,snapshot=on", debian.display()));
        Self { scene, qemu, second: "if=virtio" }
    }

    /// A kernel that `scripts/ublk-guest` has fetched. Its disks are NVMe, for which it needs no initial RAM disk.
    fn ublk() -> Option<Self> {
        let made = repository().join("target/ublk");
        let [kernel, driver, headstart] =
            ["kernel", "ublk_drv.ko.xz", "headstart"].map(|name| made.join(name));
        if let Some(absent) = [&kernel, &driver, &headstart].into_iter().find(|file| !file.is_file()) {
            skipped(&format!("there is no {} (scripts/ublk-guest makes it)", absent.display()));
            return None;
        }
        let scene = guest_scene()?;
        make_image(&scene);
        fs::write(scene.path("guest/driver"), "ublk").unwrap();
        make_guest_disk(&scene, &headstart, "kernel_devices.sh", &[driver]);
        let mut qemu = qemu();
        qemu.arg("-kernel").arg(kernel);
        let mount = "mount -t devtmpfs dev /dev; mount -o ro /dev/nvme1n1 /mnt";
        qemu.args(["-append", &append("/dev/nvme0n1p1", mount)]);
        let drive = format!("id=first,if=none,file={},format=raw,snapshot=on", debian().display());
        qemu.args(["-drive", &drive, "-device", "nvme,drive=first,serial=first"]);
        qemu.args(["-device", "nvme,drive=second,serial=second"]);
        Some(Self { scene, qemu, second: "id=second,if=none" })
    }

    /// Boots the guest and returns all that it says on its serial port, until it ends.
    fn run(mut self) -> String {
        let drive =
            format!("{},format=raw,snapshot=on,file={}", self.second, self.scene.path("guest.raw").display());
        let serial = self.scene.path("serial");
        self.qemu.args(["-drive", &drive]).arg("-serial").arg(format!("file:{}", serial.display()));
        let mut guest = Guest(Process::start(&mut self.qemu));
        let status = guest.0.end(LIMIT);
        let said = String::from_utf8_lossy(&fs::read(&serial).unwrap_or_default()).into_owned();
        assert!(status.success(), "{status}: {}\n{said}", guest.0.output());
        said
    }
}

fn debian() -> PathBuf {
    repository().join("target/demo/debian.raw")
}

fn qemu() -> Command {
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
    qemu
}

/// The words for a kernel whose first process is the script, once `mount` has mounted the second disk.
fn append(root: &str, mount: &str) -> String {
    format!("root={root} ro console=ttyS0 quiet init=/bin/bash -- -c \"{mount} && exec /bin/bash /mnt/run\"")
}

/// A place for what a guest takes; `None`, with a message, if there is no guest for it.
fn guest_scene() -> Option<Scene> {
    if !debian().is_file() {
        skipped(&format!("there is no {} (scripts/demo-disk makes it)", debian().display()));
        return None;
    }
    if !installed(&["qemu-system-x86_64", "mkfs.ext4", "strip", "md5sum"]) {
        return None;
    }
    let scene = Scene::new();
    fs::create_dir_all(scene.path("guest")).unwrap();
    Some(scene)
}

/// Makes an image of some files, and the list of their sums.
fn make_image(scene: &Scene) {
    fs::create_dir_all(scene.path("files")).unwrap();
    for file in 0..FILES {
        // No two blocks are equal.
        let bytes: Vec<u8> =
            (0..FILE / 8).flat_map(|at| ((file * FILE + at) as u64 * 0x9E37_79B9).to_le_bytes()).collect();
        fs::write(scene.path(&format!("files/file-{file}")), bytes).unwrap();
    }
    let sums = run_tool("sh", &["-c", "cd files && md5sum *"], &scene.path("")).stdout;
    fs::write(scene.path("guest/sums"), sums).unwrap();
    make_file_system(scene, "files", "64M");
    scene.ok("image import --quiet ~/files.raw file://~/guest/store:v1 --codec lz4");
}

/// Makes the disk with the program, the script and `files`, and what is there already.
fn make_guest_disk(scene: &Scene, headstart: &Path, script: &str, files: &[PathBuf]) {
    for file in files {
        fs::copy(file, scene.path("guest").join(file.file_name().unwrap())).unwrap();
    }
    // Debug information takes most of the program.
    let stripped = scene.path("guest/headstart");
    run_tool("strip", &["-o", stripped.to_str().unwrap(), headstart.to_str().unwrap()], &scene.path(""));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boot").join(script);
    fs::copy(script, scene.path("guest/run")).unwrap();
    make_file_system(scene, "guest", "512M");
}

fn make_file_system(scene: &Scene, directory: &str, size: &str) {
    let (from, to) = (scene.path(directory), scene.path(&format!("{directory}.raw")));
    let args = ["-q", "-F", "-L", directory, "-O", "^has_journal", "-d", from.to_str().unwrap()];
    let mkfs = find("mkfs.ext4").unwrap();
    run_tool(mkfs.to_str().unwrap(), &[&args[..], &[to.to_str().unwrap(), size]].concat(), &scene.path(""));
}
