//! Disks of terabytes: time and memory depend on their data, not on their size.

use crate::disk::{DiskBuilder, noise, text};
use crate::scene::{Scene, Started};
use crate::tools::{self, installed, skipped};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const SIZE: u64 = 2 << 40;
const PIECE: usize = 1 << 20;
/// 50 MB of data, of which half compresses.
const PIECES: u64 = 50;
const MIB: u64 = 1 << 20;

/// The places of the pieces: far apart, the last at the very end.
fn place(piece: u64) -> u64 {
    if piece == PIECES - 1 { SIZE - PIECE as u64 } else { piece * (SIZE / PIECES) / 4096 * 4096 }
}

fn piece(n: u64) -> Vec<u8> {
    if n.is_multiple_of(2) { noise(n, PIECE) } else { text(n, PIECE) }
}

/// Runs a command, which has to succeed; returns the most memory that it was seen to have, and the time that it took.
fn watched(scene: &Scene, words: &str) -> (u64, Duration) {
    let since = Instant::now();
    (peak(scene, words, "VmHWM:"), since.elapsed())
}

/// The pages of files that a command may have in memory: those of the program, of which a development build has up to
/// 32 MiB. A command that maps files with its data has more.
const MOST_OF_FILES: u64 = 40 * MIB;

/// The most memory of a command that does not come from a file: not the pages of the program, of which a development
/// build has 10 MiB more than the one that is installed.
///
/// The kernel keeps the highest sum of both, which no short peak escapes; but the pages of files at that moment may
/// have been fewer than at the end. A look at the memory itself, every few milliseconds, may miss a peak. Either is too
/// small at worst, so the larger one counts.
pub(crate) fn most_anonymous(scene: &Scene, words: &str) -> u64 {
    let [all, of_files, anonymous, shared] =
        peaks(scene, words, ["VmHWM:", "RssFile:", "RssAnon:", "RssShmem:"]);
    assert!(of_files <= MOST_OF_FILES, "{words}: {} MiB of mapped files", of_files / MIB);
    let most = (all - of_files).max(anonymous + shared);
    assert!(most > 0);
    most
}

/// The highest value, in bytes, that a field of the process's status has while a command runs.
fn peak(scene: &Scene, words: &str, field: &str) -> u64 {
    let [most] = peaks(scene, words, [field]);
    assert!(most > 0);
    most
}

/// The same of several fields.
fn peaks<const N: usize>(scene: &Scene, words: &str, fields: [&str; N]) -> [u64; N] {
    let mut started: Started = scene.start(words);
    let status = format!("/proc/{}/status", started.id());
    let mut most = [0; N];
    while started.is_running() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        for (most, field) in most.iter_mut().zip(fields) {
            let now = text
                .lines()
                .find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse::<u64>().ok());
            *most = now.map_or(*most, |kib| (*most).max(kib << 10));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    started.finish().succeeds();
    most
}

#[test]
fn a_sparse_disk_of_two_tebibytes_costs_what_its_data_costs() {
    let scene = Scene::new();
    let Ok(file) = File::create(scene.path("disk.raw")) else { return };
    if file.set_len(SIZE).is_err() {
        return skipped("the file system has no files of 2 TiB");
    }
    let disk = DiskBuilder::create(scene.path("disk.raw"), SIZE);
    for n in 0..PIECES {
        disk.write(place(n), &piece(n));
    }
    // The same data in a disk of its own size gives the expected cost.
    let dense = DiskBuilder::create(scene.path("dense.raw"), PIECES * PIECE as u64);
    for n in 0..PIECES {
        dense.write(n * PIECE as u64, &piece(n));
    }
    let (_, dense_time) = watched(&scene, "image import dense.raw file://~/store:dense");
    // A walk of all holes would take hours; half a minute is for a machine that is busy.
    let allowed = dense_time * 3 + Duration::from_secs(30);

    let (memory, time) = watched(&scene, "image import disk.raw file://~/store:large");
    assert!(memory < 256 * MIB, "{} MiB to import", memory / MIB);
    assert!(time < allowed, "{time:?} to import, {dense_time:?} dense");
    let (memory, time) = watched(&scene, "image export file://~/store:large -o out.raw");
    assert!(memory < 256 * MIB, "{} MiB to export", memory / MIB);
    assert!(time < allowed, "{time:?} to export, {dense_time:?} to import it dense");
    let out = File::open(scene.path("out.raw")).unwrap();
    assert_eq!(out.metadata().unwrap().len(), SIZE);
    let mut bytes = vec![0; PIECE];
    for n in 0..PIECES {
        out.read_exact_at(&mut bytes, place(n)).unwrap();
        assert!(bytes == piece(n), "piece {n}");
    }
    // Every other command works on it, too. A layer on top of it has only the changes.
    disk.write(SIZE / 2 + 12345, b"changed");
    for words in [
        "image import disk.raw file://~/store:next --base file://~/store:large",
        "image verify --deep file://~/store:next",
        "image flatten file://~/store:next file://~/store:flat",
        "image export file://~/store:large -o out.qcow2 --format qcow2",
    ] {
        let (memory, time) = watched(&scene, words);
        assert!(memory < 256 * MIB, "{words}: {} MiB", memory / MIB);
        assert!(time < allowed, "{words}: {time:?}");
    }
    let run = scene.run("image diff file://~/store:large file://~/store:flat --json");
    assert_eq!(run.json()["ranges"], serde_json::json!([[(SIZE / 2 + 12345) / 4096 * 4096, 4096]]));
}

/// Sizes at the limit of the format, and past it.
#[test]
fn disks_up_to_the_limit_of_the_format_are_imported() {
    if !installed(&["qemu-img"]) {
        return;
    }
    let scene = Scene::new();
    let create = |size: &str| {
        tools::run(&scene, "qemu-img", &format!("create -q -f qcow2 -o cluster_size=2M disk.qcow2 {size}"));
    };
    create("500P");
    let made = scene.json("image import disk.qcow2 file://~/store:a");
    assert_eq!(made["virtual_size"], 500u64 << 50);
    for words in [
        "image verify --deep file://~/store:a",
        "image inspect file://~/store:a",
        "image flatten file://~/store:a file://~/store:flat",
        "image diff file://~/store:a file://~/store:flat",
        "image import disk.qcow2 file://~/store:next --base file://~/store:a",
    ] {
        scene.ok(words);
    }
    // No file can be so large: the error names the requested file.
    let run = scene.fails("image export file://~/store:a -o out.raw", &["out.raw", "size"]);
    assert!(!run.stderr.contains(".headstart-"), "{run}");
    for size in ["513P", "1000P"] {
        create(size);
        scene.fails("image import disk.qcow2 file://~/store:b", &["a disk cannot have"]);
    }
    fs::copy(scene.blob("store", &made["layer"]), scene.path("layer")).unwrap();
    scene.fails("layer export layer -o out.raw --size 15E", &["a disk cannot have"]);
    assert!(!scene.path("out.raw").exists());
}

/// Memory does not depend on the amount of data either.
#[test]
fn memory_is_bounded_whatever_the_data() {
    let scene = Scene::new();
    let disk = DiskBuilder::create(scene.path("disk.raw"), 1 << 30);
    let bytes = noise(1, 16 << 20);
    // A little more than the memory that is allowed.
    for n in 0..17u64 {
        disk.write(n * (40 << 20), &bytes);
    }
    for words in [
        "image import disk.raw file://~/store:a --codec lz4 --threads 4 --frame-size 64k",
        "image export file://~/store:a -o out.raw --threads 4",
        "image verify --deep file://~/store:a",
        "zfile pack disk.raw -o out.zf --codec lz4",
        "zfile unpack out.zf -o out.raw",
    ] {
        let (memory, _) = watched(&scene, words);
        assert!(memory < 256 * MIB, "{words}: {} MiB", memory / MIB);
    }
}
