//! This program's vhost-user-blk server against qemu-storage-daemon's, both driven by one front end.
//!
//! Both serve the same file of 1 GiB, all of it in the page cache, in a process of their own, with one queue. The front
//! end is a guest's driver on rust-vmm: split ring, indirect descriptors, event indices; it sleeps until it is
//! interrupted, as a guest does. The contestants take turns at short runs of each job, so that other work of the
//! machine affects both; the median of the runs counts. The CPU time is only the server's, user and system.
//!
//! QEMU's daemon runs in two ways: as its manual starts it, and with an I/O thread and io_uring, if it has that. The
//! better of them is the peer.
//!
//! `cargo bench -p headstart-export --bench vhost_user [-- ROUNDS]`

#![expect(clippy::print_stdout, reason = "prints its results")]
#![allow(clippy::disallowed_methods, reason = "measures time, and waits for sockets to appear")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/export/vhost_frontend.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod vhost_frontend;

use headstart_block::{BlockDevice, ByteRange, Extent, FileSource, ReadAt, Result};
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{Export, Server};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vhost_frontend::{Guest, IN, OK, Shape};

const FILE_LEN: u64 = 1 << 30;
const RUN: Duration = Duration::from_millis(700);
const ROUNDS: usize = 7;

/// A way to read: bytes of a request, requests in flight, `true` if in sequence.
struct Job {
    name: &'static str,
    len: u32,
    depth: u16,
    in_sequence: bool,
}

const JOBS: [Job; 4] = [
    Job { name: "4 KiB random, depth 1", len: 4096, depth: 1, in_sequence: false },
    Job { name: "4 KiB random, depth 32", len: 4096, depth: 32, in_sequence: false },
    Job { name: "1 MiB in sequence, depth 1", len: 1 << 20, depth: 1, in_sequence: true },
    Job { name: "1 MiB in sequence, depth 4", len: 1 << 20, depth: 4, in_sequence: true },
];

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
        Ok(Extent { range: ByteRange::between(offset, self.size()), zero: false })
    }
}

/// A server in a process of its own.
struct Contestant {
    name: &'static str,
    child: Child,
    guest: Guest,
}

impl Contestant {
    fn start(name: &'static str, command: &mut Command, socket: &Path) -> Option<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.ok()?;
        for _ in 0..500 {
            if socket.exists() {
                let shape = Shape { data: 64 << 20, record: false, ..Shape::default() };
                return Some(Self { name, child, guest: Guest::connect(socket, &shape) });
            }
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Does a job for a while; returns requests a second, and CPU time a request in microseconds.
    fn run(&mut self, job: &Job, random: &mut u64) -> (f64, f64) {
        let (data, queue) = (self.guest.data, &mut self.guest.queues[0]);
        let blocks = FILE_LEN / u64::from(job.len);
        let mut next = 0;
        let mut sector = || {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            next += 1;
            let block = if job.in_sequence { next } else { *random >> 33 };
            block % blocks * u64::from(job.len / 512)
        };
        let part = |slot: u16| [(data + u64::from(slot) * u64::from(job.len), job.len)];
        let (before, start) = (cpu_time(&self.child), Instant::now());
        for slot in 0..job.depth {
            queue.submit(slot, IN, sector(), &part(slot));
        }
        queue.kick();
        let (mut done, mut in_flight) = (0_u64, job.depth);
        while in_flight > 0 {
            let mut answer = queue.wait(Duration::from_secs(10));
            assert!(answer.is_some(), "{}: no answer to {}: {}", self.name, job.name, queue.state());
            let more = start.elapsed() < RUN;
            while let Some((slot, _)) = answer {
                assert_eq!(queue.status(slot), OK);
                done += 1;
                if more {
                    queue.submit(slot, IN, sector(), &part(slot));
                } else {
                    in_flight -= 1;
                }
                answer = queue.poll();
            }
            queue.kick();
        }
        let rate = done as f64 / start.elapsed().as_secs_f64();
        (rate, (cpu_time(&self.child) - before).as_secs_f64() * 1e6 / done as f64)
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPU time of a process so far.
fn cpu_time(process: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    // The fields after the name, which is in parentheses and may hold spaces: user and system time are the 12th and
    // 13th.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Serves the file, when the benchmark starts itself with `--serve SOCKET FILE`. Ends with its standard input.
fn serve(socket: &str, file: &str) {
    let disk = FileDisk(FileSource::open(file).unwrap());
    let export = Export::new("bench", Arc::new(disk));
    let server = VhostUserServer::start(
        Path::new(socket),
        &export,
        &VhostUserSettings { queues: 1, ..VhostUserSettings::default() },
    )
    .unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    Box::new(server).stop().unwrap();
}

fn main() {
    let args: Vec<_> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [serve_it, socket, file] = &args[..]
        && serve_it == "--serve"
    {
        return serve(socket, file);
    }
    let rounds = args.first().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    fill(&file);
    let mut contestants = contestants(dir.path(), &file);
    if contestants.len() < 2 {
        println!("no qemu-storage-daemon here: ours alone");
    }
    let mut random = 1;
    println!("{:<28} {:<18} {:>10} {:>10} {:>14}", "job", "server", "IO/s", "MB/s", "CPU us per IO");
    for job in &JOBS {
        let mut runs = vec![Vec::new(); contestants.len()];
        for _ in 0..rounds {
            for (contestant, runs) in contestants.iter_mut().zip(&mut runs) {
                runs.push(contestant.run(job, &mut random));
            }
        }
        let results: Vec<_> = runs.iter().map(|runs| medians(runs)).collect();
        for (contestant, (rate, cpu)) in contestants.iter().zip(&results) {
            let megabytes = rate * f64::from(job.len) / 1e6;
            println!("{:<28} {:<18} {rate:>10.0} {megabytes:>10.0} {cpu:>14.2}", job.name, contestant.name);
        }
        let peers = results[1..].iter();
        if let Some(peer) = peers.copied().max_by(|a, b| a.0.total_cmp(&b.0)) {
            let (speed, cpu) = (results[0].0 / peer.0, results[0].1 / peer.1);
            let verdict = if speed >= 1.0 && cpu <= 1.0 { "ok" } else { "MISSED" };
            println!(
                "{:<28} {speed:.2} times the peer's speed at {cpu:.2} times its CPU: {verdict}",
                job.name
            );
        }
    }
}

fn contestants(dir: &Path, file: &Path) -> Vec<Contestant> {
    let socket = |name: &str| -> PathBuf { dir.join(name) };
    let ours = socket("ours");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--serve").args([&ours, file]);
    let mut contestants =
        vec![Contestant::start("headstart", &mut command, &ours).expect("our server starts")];
    for (name, aio, in_thread) in [("qemu", "threads", false), ("qemu, io_uring", "io_uring", true)] {
        let path = socket(name);
        let mut command = Command::new("qemu-storage-daemon");
        let blockdev = format!("driver=file,node-name=f,filename={},read-only=on,aio={aio}", file.display());
        let mut export =
            format!("type=vhost-user-blk,id=e,node-name=f,addr.type=unix,addr.path={}", path.display());
        command.args(["--blockdev", &blockdev]);
        if in_thread {
            command.args(["--object", "iothread,id=t"]);
            export += ",iothread=t";
        }
        command.args(["--export", &export]);
        contestants.extend(Contestant::start(name, &mut command, &path));
    }
    contestants
}

/// Writes a file that is not zeros, so that its pages are its own.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let part: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    for _ in 0..FILE_LEN >> 20 {
        file.write_all(&part).unwrap();
    }
}

/// The median of each number.
fn medians(runs: &[(f64, f64)]) -> (f64, f64) {
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<_> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (median(|run| run.0), median(|run| run.1))
}
