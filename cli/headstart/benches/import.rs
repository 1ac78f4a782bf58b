//! Importing and exporting a real disk, beside `qemu-img` doing the same in the same run.
//!
//! ```text
//! cargo bench -p headstart --bench import
//! ```
//!
//! The disk has 4 GiB and an ext4 file system with 1.5 GB of this machine's own files. Whole processes are timed, this
//! program's and the peer's in turn, and the median of the ratios of neighbours is printed, because machines are noisy.
//! All files are in the page cache. This program makes digests and hash trees and syncs them to the disk in the
//! measured time; the peer does neither.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark: it prints, and a failed step ends it"
)]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const DISK_SIZE: u64 = 4 << 30;
const CONTENT: u64 = 1_500_000_000;
const ROUNDS: usize = 5;

fn main() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let bench = Bench { dir: dir.path().to_owned() };
    if Command::new("qemu-img").arg("--version").output().is_err() {
        println!("SKIPPED: qemu-img is not installed (make setup)");
        return;
    }
    let disk = bench.make_disk();
    println!("{:34} {:>12} {:>12} {:>8}  target", "", "qemu-img", "headstart", "ratio");
    bench.import(&disk);
    bench.export();
    bench.huge_disk(&disk);
    let memory = memory_of_children();
    println!(
        "{:34} {:>12} {:>12} {:>8}  < 256 {}",
        "peak memory of any process, MiB",
        "",
        memory >> 10,
        "",
        verdict(memory < 256 << 10)
    );
}

struct Bench {
    dir: PathBuf,
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn image(&self, tag: &str) -> String {
        format!("file://{}/store:{tag}", self.dir.display())
    }

    fn import(&self, disk: &Path) {
        let qcow2 = self.path("peer.qcow2");
        let peer = || {
            let options = ["convert", "-c", "-m", "2", "-O", "qcow2", "-o", "compression_type=zstd"];
            time(Command::new("qemu-img").args(options).args([disk, &qcow2]))
        };
        let ours = |codec: &str, extra: &[&str]| {
            let _ = fs::remove_dir_all(self.path("store"));
            time(
                headstart(&["image", "import"])
                    .arg(disk)
                    .arg(self.image(codec))
                    .args(["--codec", codec])
                    .args(extra),
            )
        };
        // lz4 first, so that the zstd image stays for the export.
        let (peer_s, ours_s, ratio) = in_turn(&peer, &|| ours("lz4", &[]));
        report("import lz4, s", &peer_s, &seconds(ours_s), ratio, 0.5);
        let (peer_s, ours_s, ratio) = in_turn(&peer, &|| ours("zstd", &[]));
        report("import zstd, s", &peer_s, &seconds(ours_s), ratio, 1.0);
        let sizes = [fs::metadata(&qcow2).expect("its size").len(), tree_size(&self.path("store"))];
        let [peer_mb, ours_mb] = sizes.map(|bytes| format!("{:.1}", as_f64(bytes) / 1e6));
        let ratio = as_f64(sizes[1]) / as_f64(sizes[0]);
        report("stored, hash tree included, MB", &peer_mb, &ours_mb, ratio, 1.04);
    }

    fn export(&self) {
        let (qcow2, raws) = (self.path("peer.qcow2"), [self.path("peer.raw"), self.path("ours.raw")]);
        let peer = || time(Command::new("qemu-img").args(["convert", "-O", "raw"]).args([&qcow2, &raws[0]]));
        let ours = || time(headstart(&["image", "export"]).arg(self.image("zstd")).arg("-o").arg(&raws[1]));
        let (peer_s, ours_s, ratio) = in_turn(&peer, &ours);
        report("export zstd to raw, s", &peer_s, &seconds(ours_s), ratio, 1.3);
        let same = Command::new("cmp").args(&raws).status().expect("cmp").success();
        assert!(same, "the exported disks differ");
        raws.iter().for_each(|raw| fs::remove_file(raw).expect("remove"));
    }

    /// The same content in 2 TiB takes the time of its content.
    fn huge_disk(&self, disk: &Path) {
        let huge = self.path("huge.raw");
        run(Command::new("cp").arg("--sparse=always").args([disk, &huge]));
        fs::OpenOptions::new().write(true).open(&huge).and_then(|file| file.set_len(2 << 40)).expect("2 TiB");
        let import = |disk: &Path| {
            let _ = fs::remove_dir_all(self.path("store"));
            time(headstart(&["image", "import"]).arg(disk).arg(self.image("huge")))
        };
        let (small, large, ratio) = in_turn(&|| import(disk), &|| import(&huge));
        println!("{:34} {:>12} {:>12}", "", "4 GiB", "2 TiB");
        report("import of the same content, s", &small, &seconds(large), ratio, 1.1);
    }

    /// Makes the disk of this machine's files.
    fn make_disk(&self) -> PathBuf {
        let (tree, disk) = (self.path("tree"), self.path("disk.raw"));
        let mut left = CONTENT;
        for source in ["/usr/bin", "/usr/share", "/usr/lib"] {
            copy_tree(Path::new(source), &tree.join(&source[1..]), &mut left);
        }
        assert!(
            left == 0,
            "this machine has fewer than {CONTENT} bytes of files in /usr: {left} are missing"
        );
        let file = fs::File::create(&disk).expect("the disk");
        file.set_len(DISK_SIZE).expect("its size");
        file.write_all_at(&[0; 512], 0).expect("its first sector");
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-d"]).args([&tree, &disk]));
        fs::remove_dir_all(&tree).expect("remove the tree");
        // The disk goes into the page cache, for all programs.
        run(Command::new("cat").arg(&disk));
        disk
    }
}

/// The most memory that any process had that ended, in KiB. rustix lacks `getrusage`.
fn memory_of_children() -> libc::c_long {
    // SAFETY: a `rusage` of zeros is one, and the kernel fills it in during the call.
    let (got, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), usage)
    };
    assert_eq!(got, 0, "no usage of ended processes");
    usage.ru_maxrss
}

/// Copies files of a tree until `left` bytes are used up.
fn copy_tree(from: &Path, to: &Path, left: &mut u64) {
    fs::create_dir_all(to).expect("a directory");
    let mut entries: Vec<_> = fs::read_dir(from).map(|dir| dir.flatten().collect()).unwrap_or_default();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let Ok(meta) = entry.metadata() else { continue };
        let target = to.join(entry.file_name());
        if meta.is_dir() {
            copy_tree(&entry.path(), &target, left);
        } else if meta.is_file() && *left > 0 && fs::copy(entry.path(), &target).is_ok() {
            *left = left.saturating_sub(meta.len());
        }
    }
}

fn headstart(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headstart"));
    command.args(args).arg("--quiet");
    command
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).status().expect("a command that starts");
    assert!(output.success(), "{command:?} failed");
}

fn time(command: &mut Command) -> Duration {
    // Unwritten data of the last command must not be written in this one's time.
    run(&mut Command::new("sync"));
    let start = Instant::now();
    run(command);
    start.elapsed()
}

/// Times both in turn; returns the medians of their times, and of the ratios of this program's to the peer's.
fn in_turn(peer: &dyn Fn() -> Duration, ours: &dyn Fn() -> Duration) -> (String, Duration, f64) {
    let (mut peers, mut own, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (peer, ours) = (peer(), ours());
        peers.push(peer);
        own.push(ours);
        ratios.push(ours.as_secs_f64() / peer.as_secs_f64());
    }
    peers.sort();
    own.sort();
    ratios.sort_by(f64::total_cmp);
    (seconds(peers[ROUNDS / 2]), own[ROUNDS / 2], ratios[ROUNDS / 2])
}

fn seconds(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64())
}

/// Bytes of all files below `dir`.
fn tree_size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).expect("the store").flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => tree_size(&entry.path()),
        Ok(meta) => meta.size(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

fn report(what: &str, peer: &str, ours: &str, ratio: f64, limit: f64) {
    println!("{what:34} {peer:>12} {ours:>12} {ratio:>8.2}  <= {limit} {}", verdict(ratio <= limit));
}

fn verdict(met: bool) -> &'static str {
    if met { "ok" } else { "MISSED" }
}
