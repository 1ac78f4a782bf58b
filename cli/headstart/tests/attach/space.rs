//! A guest cannot fill the host: the space of a writable directory is bounded, at any moment, by the data that the
//! guest keeps.

use crate::attached::{Attached, TIMEOUT};
use crate::disk::mixed_disk;
use crate::images::{can_check_bytes, check_bytes, tool};
use crate::scene::Scene;
use crate::tools::installed;
use headstart_block::BlockDevice;
use headstart_block::random::Random;
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use headstart_testkit::soak;
use headstart_testkit::wait::wait_for_value;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

const MIB: u64 = 1 << 20;

/// The slack of a directory that has no limit of its own.
const SLACK: u64 = 128 * MIB;

/// An image of 16 MiB in a store.
fn small_image() -> Scene {
    let scene = Scene::new();
    mixed_disk(&scene, "disk.raw", 16);
    scene.ok("image import disk.raw file://~/store:v1");
    scene
}

/// Bytes that the files of a directory take, as `du` counts them.
fn taken(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * 512)).sum()
}

/// Runs a script in nbdsh; returns the most that the directory took meanwhile, sampled every 50 ms.
#[track_caller]
fn watched(scene: &Scene, uri: &str, script: &str) -> u64 {
    let (ended, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let dir = scene.path("vm");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                most.fetch_max(taken(&dir), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(50));
            }
        });
        tool(scene, "nbdsh", &["-u", uri, "-c", script]);
        ended.store(true, Ordering::Relaxed);
    });
    most.into_inner()
}

/// Waits until the directory takes no more than `most`.
#[track_caller]
fn settles(dir: &Path, most: u64) {
    let what = format!("it takes at most {most} bytes");
    wait_for_value(&what, TIMEOUT, || taken(dir), |taken| *taken <= most);
}

const WRITABLE: &str =
    "file://~/store:v1 --size 64M --writable ~/vm --nbd unix:~/d.sock --metrics 127.0.0.1:0";

/// 8 MiB that were rewritten a hundred times once left 800 MiB for ever.
#[test]
fn rewriting_takes_what_is_kept_and_survives_a_kill() {
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let scene = small_image();
    let mut attached = Attached::start(&scene, WRITABLE);
    let script = "\
        for round in range(40):\n  \
          for mib in range(8): h.pwrite(bytes([round + 1]) * 1048576, (mib + 20) << 20)\n\
        h.flush()";
    let most = watched(&scene, &attached.uri(), script);
    assert!(most <= 2 * 8 * MIB + SLACK, "{most}");
    settles(&scene.path("vm"), 8 * MIB + 4 * MIB);
    let metrics = attached.wait_for("little garbage", |metrics| {
        metrics.sum("headstart_writable_garbage_bytes", &[]) <= 4.0 * MIB as f64
    });
    let value = |name: &str| {
        let sample = metrics.samples.iter().find(|sample| sample.name == name);
        sample.unwrap_or_else(|| panic!("no {name}:\n{}", metrics.text)).value
    };
    assert!((value("headstart_writable_live_bytes") - 8.0 * MIB as f64).abs() < 1.0);
    assert!(value("headstart_writable_collected_bytes_total") >= 260.0 * MIB as f64);
    assert!(value("headstart_writable_garbage_bytes") <= 4.0 * MIB as f64);
    attached.process().signal(Signal::KILL);
    attached.process().end(TIMEOUT);
    drop(attached);
    let mut expected = scene.bytes("disk.raw");
    expected.resize(64 << 20, 0);
    expected[20 << 20..28 << 20].fill(40);
    fs::write(scene.path("expected.raw"), &expected).unwrap();
    let again = Attached::start(&scene, WRITABLE);
    check_bytes(&scene, "expected.raw", &again.uri());
    again.detach();
}

/// A sector of some blocks is kept, at random places, then all is discarded, and a part written again.
#[test]
fn scattered_sectors_and_discards_are_bounded_too() {
    if !installed(&["nbdsh"]) {
        return;
    }
    let scene = small_image();
    let attached = Attached::start(&scene, WRITABLE);
    let script = "\
        import random\n\
        random.seed(7)\n\
        for round in range(5):\n  \
          for mib in range(16, 64): h.pwrite(bytes([round + 1]) * 1048576, mib << 20)\n  \
          for n in range(4000): h.pwrite(b'x' * 512, (random.randrange(98304) + 32768) * 512)\n  \
          for block in range(4096, 16384, 8): h.trim(3584, block * 4096 + 512)\n  \
          h.trim(48 << 20, 16 << 20)\n\
        for block in range(4096, 16384, 4):\n  \
          h.pwrite(b'y' * 4096, block * 4096)\n  \
          h.trim(3584, block * 4096 + 512)\n\
        h.flush()";
    let most = watched(&scene, &attached.uri(), script);
    assert!(most <= 2 * 48 * MIB + SLACK, "{most}");
    // The guest keeps 1.5 MiB.
    settles(&scene.path("vm"), 3 * MIB + SLACK / 4);
    attached.detach();
}

#[test]
fn a_limited_directory_refuses_with_enospc_and_loses_nothing() {
    if !installed(&["nbdsh"]) {
        return;
    }
    let scene = small_image();
    let run = scene.run("attach file://~/store:v1 --writable ~/vm --writable-max 1M");
    assert!(run.status == Some(2) && run.stderr.contains("1 MiB") && run.stderr.contains("16 MiB"), "{run}");
    let mut attached = Attached::start(&scene, &format!("{WRITABLE} --writable-max 24M"));
    let script = "\
        refused = None\n\
        for mib in range(16, 64):\n  \
          try: h.pwrite(b'a' * 1048576, mib << 20)\n  \
          except nbd.Error as e: refused = (mib, e.errno); break\n\
        assert refused[1] == 'ENOSPC', refused\n\
        assert refused[0] >= 28, refused\n\
        h.flush()\n\
        for n in range(200): h.pwrite(bytes([n]) * 1048576, (16 + n % 4) << 20)\n\
        h.flush()\n\
        assert h.pread(1048576, 16 << 20) == bytes([196]) * 1048576\n\
        assert h.pread(1048576, 22 << 20) == b'a' * 1048576\n\
        h.trim(4 << 20, 24 << 20)\n\
        h.pwrite(b'b' * 1048576, 60 << 20)\n\
        h.flush()\n\
        assert h.pread(512, 60 << 20) == b'b' * 512";
    let most = watched(&scene, &attached.uri(), script);
    assert!(most <= 24 * MIB, "{most}");
    // A single disk has no name, and the message has none.
    let said = attached.warning_with("a request failed");
    assert!(
        said.contains("a request failed") && said.contains("(peer ") && !said.contains("export ,"),
        "{said}"
    );
    let report = attached.detach();
    assert!(report["reads"].as_u64().is_some());
}

/// A boot sector: writes 127 sectors at a time from 16 MiB on until one write fails, or up to 64 MiB, then the first
/// ones again. The machine's status is 2 if one has failed and the last has not.
fn boot_sector() -> [u8; 512] {
    let code = [
        0x31, 0xc0, // xor ax, ax
        0x8e, 0xd8, // mov ds, ax
        0xbe, 0x44, 0x7c, // next: mov si, packet
        0xb8, 0x00, 0x43, // mov ax, 0x4300: extended write
        0xcd, 0x13, // int 0x13
        0x72, 0x17, // jc full
        0x81, 0x06, 0x4c, 0x7c, 0x80, 0x00, // add word [packet + 8], 128
        0x83, 0x16, 0x4e, 0x7c, 0x00, // adc word [packet + 10], 0
        0x81, 0x3e, 0x4e, 0x7c, 0x02, 0x00, // cmp word [packet + 10], 2: 64 MiB
        0x72, 0xe3, // jb next
        0xb0, 0x01, // mov al, 1
        0xeb, 0x1a, // jmp end
        0xc7, 0x06, 0x4c, 0x7c, 0x00, 0x80, // full: mov word [packet + 8], 0x8000: 16 MiB
        0xc7, 0x06, 0x4e, 0x7c, 0x00, 0x00, // mov word [packet + 10], 0
        0xbe, 0x44, 0x7c, // mov si, packet
        0xb8, 0x00, 0x43, // mov ax, 0x4300
        0xcd, 0x13, // int 0x13
        0xb0, 0x02, // mov al, 2
        0x73, 0x02, // jnc end
        0xb0, 0x03, // mov al, 3
        0xe6, 0xf4, // end: out 0xf4, al: isa-debug-exit
        0xf4, // hlt
        0xeb, 0xfd, // jmp hlt
        // packet: 16 bytes, 127 sectors, from 0x1000:0, to sector 0x8000
        16, 0, 127, 0, 0x00, 0x00, 0x00, 0x10, 0x00, 0x80, 0, 0, 0, 0, 0, 0,
    ];
    let mut sector = [0; 512];
    sector[..code.len()].copy_from_slice(&code);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// Over vhost-user a write that has no room fails, alone, and the machine goes on.
#[test]
fn a_machine_on_a_limited_directory_gets_an_error_and_goes_on() {
    if !installed(&["qemu-system-x86_64", "nbdsh"]) {
        return;
    }
    let scene = Scene::new();
    let mut disk = vec![0; 16 << 20];
    disk[..512].copy_from_slice(&boot_sector());
    fs::write(scene.path("disk.raw"), &disk).unwrap();
    scene.ok("image import disk.raw file://~/store:v1");
    let words = "file://~/store:v1 --size 64M --writable ~/vm --writable-max 16M";
    let attached = Attached::start(&scene, &format!("{words} --nbd unix:~/d.sock --vhost-user ~/v.sock"));
    let status = std::process::Command::new("timeout")
        .args(["120", "qemu-system-x86_64", "-accel", "tcg", "-M", "pc,memory-backend=memory", "-m", "64M"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-object", "memory-backend-memfd,id=memory,share=on,size=64M"])
        .args(["-chardev", &format!("socket,id=disk,path={}", scene.path("v.sock").display())])
        .args(["-device", "vhost-user-blk-pci,chardev=disk,bootindex=1"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
        .status()
        .unwrap();
    // QEMU's status is the one of the boot sector, doubled, plus one.
    assert_eq!(status.code(), Some(5), "{}", attached.output());
    let taken = taken(&scene.path("vm"));
    assert!((8 * MIB..=16 * MIB).contains(&taken), "{taken}");
    let script = "\
        refused = None\n\
        try: h.pwrite(b'a' * 1048576, 60 << 20)\n\
        except nbd.Error as e: refused = e.errno\n\
        assert refused == 'ENOSPC', refused\n\
        h.trim(4 << 20, 16 << 20)\n\
        h.pwrite(b'a' * 1048576, 60 << 20)\n\
        h.flush()";
    tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", script]);
    attached.detach();
}

#[test]
fn a_file_of_a_limited_directory_is_full() {
    if !installed(&["fusermount3", "dd"]) {
        return;
    }
    let scene = small_image();
    fs::create_dir(scene.path("mnt")).unwrap();
    let words = "file://~/store:v1 --size 64M --writable ~/vm --fuse ~/mnt --writable-max 16M";
    let attached = Attached::start(&scene, words);
    let file = scene.path("mnt/disk.raw");
    let mut command = std::process::Command::new("dd");
    let output = command
        .args(["if=/dev/urandom", "bs=1M", "count=40", "seek=16", "conv=notrunc,fsync"])
        .arg(format!("of={}", file.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("No space left on device"), "{said}");
    assert!(taken(&scene.path("vm")) <= 16 * MIB);
    attached.detach();
}

#[test]
fn a_directory_that_is_not_attached_is_compacted() {
    if !can_check_bytes() || !installed(&["nbdsh"]) {
        return;
    }
    let scene = small_image();
    let mut attached = Attached::start(&scene, WRITABLE);
    let script = "\
        for mib in range(20, 60): h.pwrite(b'z' * 1048576, mib << 20)\n\
        h.flush()\n\
        for block in range(5120, 15360): h.trim(2048, block * 4096)\n\
        h.flush()";
    tool(&scene, "nbdsh", &["-u", &attached.uri(), "-c", script]);
    scene.fails("disk compact ~/vm", &["vm", "in use by another process"]);
    attached.process().signal(Signal::KILL);
    attached.process().end(TIMEOUT);
    drop(attached);
    // Compacting needs no image.
    fs::rename(scene.path("store"), scene.path("away")).unwrap();
    let report = scene.json("disk compact ~/vm");
    assert_eq!(report["live_bytes"], 20 * MIB);
    assert!(taken(&scene.path("vm")) <= 21 * MIB, "{report}");
    assert!(report["before_bytes"].as_u64() >= report["after_bytes"].as_u64());
    assert_eq!(scene.json("disk compact ~/vm")["copied_bytes"], 0);
    scene.fails("disk compact ~/nothing", &["nothing"]);
    fs::rename(scene.path("away"), scene.path("store")).unwrap();
    let mut expected = scene.bytes("disk.raw");
    expected.resize(64 << 20, 0);
    for block in expected[20 << 20..60 << 20].chunks_mut(4096) {
        block[2048..].fill(b'z');
    }
    fs::write(scene.path("expected.raw"), &expected).unwrap();
    let again = Attached::start(&scene, WRITABLE);
    check_bytes(&scene, "expected.raw", &again.uri());
    again.detach();
}

/// A disk of so few sectors that there are always some dead ones beside those that live: compacting it ends.
#[test]
fn compacting_a_tiny_directory_ends() {
    let scene = Scene::new();
    let seeds = if soak::is_on() { 100 } else { 25 };
    for seed in 0..seeds {
        let dir = scene.path("tiny");
        let new = NewDisk { size: 64 << 10, parent: String::new(), uuid: Uuid::from_u128(1) };
        let disk = WritableDisk::create(&dir, None, &new).unwrap();
        let mut random = Random::new(seed);
        for write in 0..=random.below(20) {
            let (start, sectors) = (random.below(120), 1 + random.below(7));
            disk.write_at(&vec![write as u8 + 1; sectors * 512], start as u64 * 512).unwrap();
            if random.below(2) == 0 {
                disk.flush().unwrap();
            }
        }
        disk.flush().unwrap();
        let mut before = vec![0; 64 << 10];
        disk.read_at(&mut before, 0).unwrap();
        drop(disk);
        scene.wait_until_unlocked("tiny");
        scene.ok("disk compact ~/tiny");
        let disk = WritableDisk::open(&dir, None, "").unwrap();
        let mut after = vec![0; 64 << 10];
        disk.read_at(&mut after, 0).unwrap();
        assert!(before == after, "{seed}");
        drop(disk);
        fs::remove_dir_all(&dir).unwrap();
    }
}
