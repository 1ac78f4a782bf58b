//! The NBD server beside nbdkit and qemu-nbd, all serving the same file from the page cache to the same client.
//!
//! ```text
//! cargo bench -p headstart-export --bench nbd
//! ```
//!
//! fio's nbd engine (one connection of libnbd over a Unix socket) reads at random in 4 KiB at queue depths 1 and 32,
//! and in sequence in 1 MiB at depth 4. Every server is a process of its own and serves one job after the other in
//! turn with the others, round by round; the median of the rounds is told, since machines are noisy. The peers are
//! set up as is best for them: nbdkit's file plugin with its 16 threads, and as the client's ceiling nbdkit's null
//! plugin, which has no data to read; qemu-nbd read-only, with its default cache (writeback), for several clients,
//! once with threads and once with `io_uring`, of which the better counts. CPU is what the server's process uses,
//! user and system.
//!
//! Targets: at depth 32, 1.3 times the better peer or 0.9 of the ceiling if that is lower; at depth 1 and in sequence,
//! no worse than the better peer, where 5% is noise; CPU for an I/O no more than that of the peer that uses least.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a benchmark: it prints, reads the clock, and a failed step ends it"
)]

use headstart_block::{BlockDevice, ByteRange, Error, Extent, FileSource, ReadAt, Result};
use headstart_export::nbd::{Address, NbdServer, NbdSettings};
use headstart_export::{Export, Server as _};
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const FILE_SIZE: usize = 512 << 20;
const ROUNDS: usize = 5;
const SECONDS: &str = "2";
/// Two figures are as good as the same within this.
const NOISE: f64 = 0.95;
/// Set for the process that serves: the file.
const SERVE: &str = "HEADSTART_BENCH_SERVE";

struct Job {
    name: &'static str,
    args: [&'static str; 3],
    /// How much better than the better peer it has to be.
    target: f64,
    unit: &'static str,
    /// I/Os or bytes for one of the unit.
    divisor: f64,
}

const JOBS: [Job; 3] = [
    Job {
        name: "4 KiB random, depth 1",
        args: ["--rw=randread", "--bs=4k", "--iodepth=1"],
        target: NOISE,
        unit: "kIOPS",
        divisor: 1e3,
    },
    Job {
        name: "4 KiB random, depth 32",
        args: ["--rw=randread", "--bs=4k", "--iodepth=32"],
        target: 1.3,
        unit: "kIOPS",
        divisor: 1e3,
    },
    Job {
        name: "1 MiB sequential, depth 4",
        args: ["--rw=read", "--bs=1m", "--iodepth=4"],
        target: NOISE,
        unit: "IO/s",
        divisor: 1.0,
    },
];

const OURS: usize = 0;
const CEILING: usize = 4;
const SERVERS: [&str; 5] =
    ["headstart", "nbdkit file", "qemu-nbd threads", "qemu-nbd io_uring", "nbdkit null"];

/// A file as a disk.
struct FileDisk(FileSource);

impl BlockDevice for FileDisk {
    fn size(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        if offset >= self.0.len() {
            return Err(Error::invalid("past the end"));
        }
        Ok(Extent { range: ByteRange::between(offset, self.0.len()), zero: false })
    }
}

/// The process that serves: until its input ends.
fn serve(arguments: &str) {
    let (file, socket) = arguments.split_once('|').expect("file and socket");
    let disk = FileDisk(FileSource::open(file).expect("the file"));
    let settings = NbdSettings::new(Address::Unix(socket.into()));
    let server =
        Box::new(NbdServer::start(&settings, vec![Export::new("", Arc::new(disk))]).expect("serves"));
    let _ = std::io::stdin().read(&mut [0]);
    server.stop().expect("stops");
}

struct Served {
    child: Child,
    socket: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(which: usize, file: &Path, dir: &Path) -> Option<Served> {
    let socket = dir.join(format!("{which}.sock"));
    let (file, at) = (file.to_str().expect("UTF-8"), socket.to_str().expect("UTF-8"));
    let size = FILE_SIZE.to_string();
    let mut command = match which {
        OURS => {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.env(SERVE, format!("{file}|{at}"));
            command
        }
        1 => peer("nbdkit", &["-f", "-r", "-U", at, "file", file]),
        2 => peer("qemu-nbd", &["-r", "-t", "-e", "16", "-f", "raw", "--aio=threads", "-k", at, file]),
        3 => peer("qemu-nbd", &["-r", "-t", "-e", "16", "-f", "raw", "--aio=io_uring", "-k", at, file]),
        _ => peer("nbdkit", &["-f", "-r", "-U", at, "null", &size]),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut served = Served { child: command.spawn().ok()?, socket };
    for _ in 0..100 {
        if served.child.try_wait().ok()?.is_some() {
            return None;
        }
        if std::os::unix::net::UnixStream::connect(&served.socket).is_ok() {
            return Some(served);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

fn peer(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Seconds of CPU that a process has used.
fn cpu_s(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    // The kernel tells hundredths of a second.
    [fields[11], fields[12]].iter().map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0).sum()
}

/// I/Os a second, and CPU µs for one.
fn measure(served: &Served, job: &Job) -> (f64, f64) {
    let before = cpu_s(served.child.id());
    let uri = format!("--uri=nbd+unix:///?socket={}", served.socket.display());
    let output = Command::new("fio")
        .args(["--name=job", "--ioengine=nbd", &uri, "--time_based", "--runtime", SECONDS])
        .args(["--output-format=terse", "--terse-version=3"])
        .args(job.args)
        .output()
        .expect("fio runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("3;")).expect("fio's figures");
    let number =
        |at: usize| line.split(';').nth(at).and_then(|field| field.parse::<f64>().ok()).expect("a figure");
    // KiB read, IOPS.
    let (kib, iops) = (number(5), number(7));
    let size_kib = if job.args[1].ends_with('m') { 1024.0 } else { 4.0 };
    let cpu = cpu_s(served.child.id()) - before;
    (iops.max(kib / size_kib / number(8) * 1e3), cpu / (kib / size_kib) * 1e6)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    if let Ok(arguments) = std::env::var(SERVE) {
        serve(&arguments);
        return;
    }
    for program in ["fio", "nbdkit", "qemu-nbd"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("SKIPPED: {program} is not installed (make setup)");
            return;
        }
    }
    let dir = tempfile::tempdir().expect("a scratch directory");
    let file = dir.path().join("disk");
    write_file(&file);
    let servers: Vec<Option<Served>> =
        (0..SERVERS.len()).map(|which| start(which, &file, dir.path())).collect();
    for (name, served) in SERVERS.iter().zip(&servers) {
        if served.is_none() {
            println!("SKIPPED: {name} does not start here");
        }
    }
    for job in &JOBS {
        let mut figures = vec![(Vec::new(), Vec::new()); SERVERS.len()];
        for round in 0..ROUNDS {
            for turn in 0..SERVERS.len() {
                let which = (turn + round) % SERVERS.len();
                if let Some(served) = &servers[which] {
                    let (rate, cpu) = measure(served, job);
                    figures[which].0.push(rate);
                    figures[which].1.push(cpu);
                }
            }
        }
        tell(job, &figures.into_iter().map(|(rate, cpu)| (median(rate), median(cpu))).collect::<Vec<_>>());
    }
}

fn tell(job: &Job, figures: &[(f64, f64)]) {
    println!("\n{:28} {:>10} {:>12}", job.name, job.unit, "CPU µs/IO");
    for (name, (rate, cpu)) in SERVERS.iter().zip(figures) {
        if !rate.is_nan() {
            println!("  {name:26} {:>10.2} {cpu:>12.2}", rate / job.divisor);
        }
    }
    let peers = &figures[OURS + 1..CEILING];
    let best = peers.iter().map(|peer| peer.0).fold(0.0, f64::max);
    let (ours, least) = (figures[OURS], peers.iter().map(|peer| peer.1).fold(f64::INFINITY, f64::min));
    let ceiling = figures[CEILING].0;
    let wanted = if job.target > 1.0 { (best * job.target).min(ceiling * 0.9) } else { best * job.target };
    println!(
        "  {:.2} times the better peer, {:.2} of the ceiling; wanted {:.2} {}: {}",
        ours.0 / best,
        ours.0 / ceiling,
        wanted / job.divisor,
        job.unit,
        verdict(ours.0 >= wanted)
    );
    println!(
        "  {:.2} of the CPU of the thriftiest peer; wanted 1: {}",
        ours.1 / least,
        verdict(ours.1 <= least)
    );
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Bytes without holes, in the page cache.
fn write_file(path: &Path) {
    let mut file = fs::File::create(path).expect("a file");
    let mut state = 1u64;
    let mut part = vec![0; 1 << 20];
    for _ in 0..FILE_SIZE >> 20 {
        for word in part.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&part).expect("space for the file");
    }
    file.sync_all().expect("a file on disk");
}
