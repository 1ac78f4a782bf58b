//! A comparison of NBD servers by the nbd engine of fio: the rate of each server and its CPU time for one I/O
//! operation, compared with the product's targets.
//!
//! Measurements are noisy, and a disturbance lasts for seconds. So each job is run in rounds: in a round every
//! contestant (a server that is compared) does the job once, for a short time, and each round begins with another
//! contestant. The figures of a contestant are the medians over the rounds. Two contestants are compared by the ratio
//! of their figures in each round, because these runs were close in time, and by the median of these ratios. CPU time
//! is that of the server's process, in user and in system mode.

use crate::process::{Process, find, kill, skipped};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The time limit of a run, which only a hanging server reaches.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// The least ratio of the product's rate to a peer's at which the product counts as equally fast. It is below 1,
/// because single runs of the same server differ by as much.
pub const NOISE: f64 = 0.95;

/// A workload for the benchmark program fio.
#[derive(Debug)]
pub struct Job {
    /// The name of the workload, for tables.
    pub name: &'static str,
    pattern: &'static str,
    block_kib: u32,
    depth: &'static str,
    /// The minimum ratio of the product's rate to that of the fastest peer (a server of another project).
    pub target: f64,
    unit: &'static str,
    /// The number of I/Os for one of the unit.
    divisor: f64,
}

/// The workloads for which the product has performance targets.
pub const JOBS: [Job; 3] = [
    Job {
        name: "4 KiB random, depth 1",
        pattern: "--rw=randread",
        block_kib: 4,
        depth: "--iodepth=1",
        target: NOISE,
        unit: "kIOPS",
        divisor: 1e3,
    },
    Job {
        name: "4 KiB random, depth 32",
        pattern: "--rw=randread",
        block_kib: 4,
        depth: "--iodepth=32",
        target: 1.3,
        unit: "kIOPS",
        divisor: 1e3,
    },
    Job {
        name: "1 MiB sequential, depth 4",
        pattern: "--rw=read",
        block_kib: 1024,
        depth: "--iodepth=4",
        target: NOISE,
        unit: "MiB/s",
        divisor: 1.0,
    },
];

/// The role of a server in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RacerRole {
    /// A server of the product, which is measured against the others.
    Ours,
    /// A server of another project, whose results are the basis of the targets.
    Peer,
    /// A server without data to read, whose results show the limit of the client.
    Ceiling,
}

/// A server that takes part in a comparison: it serves one disk over NBD at a Unix socket, in a process of
/// its own. The process is killed when this value is dropped.
#[derive(Debug)]
pub struct Contestant {
    /// The name of the server, for tables.
    pub name: &'static str,
    /// The role of the server in the comparison.
    pub role: RacerRole,
    child: Child,
    socket: PathBuf,
}

impl Drop for Contestant {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

impl Contestant {
    /// Runs `command`, which must serve a disk at the socket path `socket`. If the command cannot be started, or
    /// nothing answers at that socket within five seconds, prints a message and returns `None`.
    pub fn start(name: &'static str, role: RacerRole, command: &mut Command, socket: &Path) -> Option<Self> {
        let _ = fs::remove_file(socket);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().ok();
        let started = child.and_then(|child| {
            let mut contestant = Self { name, role, child, socket: socket.to_owned() };
            contestant.is_ready().then_some(contestant)
        });
        if started.is_none() {
            skipped(&format!("{name} does not start here"));
        }
        started
    }

    fn is_ready(&mut self) -> bool {
        for _ in 0..500 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            if UnixStream::connect(&self.socket).is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Reads the whole disk once. Later measurements then contain no first reads or first checks of data.
    pub fn warm_up(&self) {
        run_fio(&self.socket, &["--rw=read", "--bs=1m", "--iodepth=4"]);
    }

    /// Runs a job once.
    fn run(&self, job: &Job, seconds: &str) -> FioFigures {
        let before = cpu_s(self.child.id());
        let size = format!("--bs={}k", job.block_kib);
        let args = [job.pattern, &size, job.depth, "--time_based", "--runtime", seconds];
        let line = run_fio(&self.socket, &args);
        let number = |at: usize| {
            line.split(';').nth(at).and_then(|field| field.parse::<f64>().ok()).expect("a figure")
        };
        // KiB read, and the milliseconds that it took.
        let done = number(5) / f64::from(job.block_kib);
        let cpu_s = cpu_s(self.child.id()) - before;
        FioFigures { rate: done / number(8) * 1e3, cpu_us: cpu_s / done * 1e6 }
    }
}

/// Runs fio, and returns the line of its figures.
fn run_fio(socket: &Path, args: &[&str]) -> String {
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    let mut command = Command::new("fio");
    command
        .args(["--name=job", "--ioengine=nbd", &uri, "--output-format=terse", "--terse-version=3"])
        .args(args);
    let mut fio = Process::start(&mut command);
    fio.end(RUN_LIMIT);
    let said = fio.output();
    let line = said.lines().find(|line| line.starts_with("3;"));
    line.unwrap_or_else(|| panic!("fio has no figures: {said}")).to_owned()
}

/// The seconds of CPU that a process has used.
fn cpu_s(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    // The kernel counts hundredths of a second.
    [fields[11], fields[12]].iter().map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0).sum()
}

/// Starts the servers to compare with, in their best configuration for the raw disk `file`; their sockets are
/// in `dir`. Peers: nbdkit's file plugin with its 16 threads, and qemu-nbd, read-only with its default cache
/// and for several clients, once with threads and once with `io_uring`. Ceiling: nbdkit's null plugin, which
/// has no data to read and so shows the client's own limit. Servers that do not start are left out. `None` if
/// fio, nbdkit or qemu-nbd is not installed.
pub fn peers(file: &Path, dir: &Path) -> Option<Vec<Contestant>> {
    let missing = ["fio", "nbdkit", "qemu-nbd"].into_iter().find(|program| find(program).is_none());
    if let Some(program) = missing {
        skipped(&format!("{program} is not installed (make setup)"));
        return None;
    }
    let size = fs::metadata(file).expect("the disk").len().to_string();
    let disk = file.to_str().expect("UTF-8");
    let qemu = ["-r", "-t", "-e", "16", "-f", "raw"];
    let start = |name: &'static str, role, program, args: &[&str], socket_option: &str, last: &[&str]| {
        let socket = dir.join(format!("{}.sock", name.replace(' ', "-")));
        let mut command = Command::new(program);
        command.args(args).arg(socket_option).arg(&socket).args(last);
        Contestant::start(name, role, &mut command, &socket)
    };
    let nbdkit = ["-f", "-r"];
    let started = [
        start("nbdkit file", RacerRole::Peer, "nbdkit", &nbdkit, "-U", &["file", disk]),
        start(
            "qemu-nbd threads",
            RacerRole::Peer,
            "qemu-nbd",
            &[&qemu[..], &["--aio=threads"]].concat(),
            "-k",
            &[disk],
        ),
        start(
            "qemu-nbd io_uring",
            RacerRole::Peer,
            "qemu-nbd",
            &[&qemu[..], &["--aio=io_uring"]].concat(),
            "-k",
            &[disk],
        ),
        start("nbdkit null", RacerRole::Ceiling, "nbdkit", &nbdkit, "-U", &["null", &size]),
    ];
    Some(started.into_iter().flatten().collect())
}

/// The results of one run of a workload.
#[derive(Clone, Copy, Debug)]
pub struct FioFigures {
    /// I/O operations a second.
    pub rate: f64,
    /// CPU time that the server used for one I/O operation, in microseconds.
    pub cpu_us: f64,
}

/// A comparison of several servers under one workload, with the results of all rounds.
#[derive(Debug)]
pub struct Race<'a> {
    job: &'a Job,
    contestants: &'a [Contestant],
    /// The figures of each contestant, round by round.
    figures: Vec<Vec<FioFigures>>,
}

impl<'a> Race<'a> {
    /// Runs `job` against each of `contestants` in turn, for `seconds` each time (a number as text, for fio),
    /// and repeats that for `rounds` rounds.
    pub fn run(job: &'a Job, contestants: &'a [Contestant], rounds: usize, seconds: &str) -> Self {
        let mut figures = vec![Vec::with_capacity(rounds); contestants.len()];
        for round in 0..rounds {
            for turn in 0..contestants.len() {
                let which = (turn + round) % contestants.len();
                figures[which].push(contestants[which].run(job, seconds));
            }
        }
        Self { job, contestants, figures }
    }

    /// The workload of the comparison.
    pub fn job(&self) -> &Job {
        self.job
    }

    /// The medians over all rounds for one server; `which` is its index in the list of contestants. An index
    /// that is out of range panics.
    pub fn figures(&self, which: usize) -> FioFigures {
        let of = |figure: fn(&FioFigures) -> f64| median(self.figures[which].iter().map(figure).collect());
        FioFigures { rate: of(|figures| figures.rate), cpu_us: of(|figures| figures.cpu_us) }
    }

    /// The median ratio of two contestants in the same round.
    fn ratio(&self, of: usize, to: usize, figure: fn(&FioFigures) -> f64) -> f64 {
        median(
            self.figures[of].iter().zip(&self.figures[to]).map(|(of, to)| figure(of) / figure(to)).collect(),
        )
    }

    /// The median over all rounds of the rate of server `of`, divided by that of server `to`. Both are
    /// indexes in the list of contestants.
    pub fn rate_ratio(&self, of: usize, to: usize) -> f64 {
        self.ratio(of, to, |figures| figures.rate)
    }

    /// The median over all rounds of the CPU time for each operation of server `of`, divided by that of
    /// server `to`. Both are indexes in the list of contestants.
    pub fn cpu_ratio(&self, of: usize, to: usize) -> f64 {
        self.ratio(of, to, |figures| figures.cpu_us)
    }

    /// The indexes of the servers that have this role.
    pub fn with(&self, role: RacerRole) -> impl Iterator<Item = usize> {
        (0..self.contestants.len()).filter(move |which| self.contestants[*which].role == role)
    }

    /// The index of the peer with the highest rate, and that of the peer with the least CPU time for each
    /// operation; `None` if there is no peer.
    pub fn best_peers(&self) -> Option<(usize, usize)> {
        let fastest =
            self.with(RacerRole::Peer).max_by(|a, b| self.figures(*a).rate.total_cmp(&self.figures(*b).rate));
        let thriftiest = self
            .with(RacerRole::Peer)
            .min_by(|a, b| self.figures(*a).cpu_us.total_cmp(&self.figures(*b).cpu_us));
        fastest.zip(thriftiest)
    }

    /// A text table with the median results of all servers.
    pub fn table(&self) -> String {
        let mut text = format!("\n{:30} {:>10} {:>12}\n", self.job.name, self.job.unit, "CPU µs/IO");
        for (which, contestant) in self.contestants.iter().enumerate() {
            let FioFigures { rate, cpu_us } = self.figures(which);
            let _ =
                writeln!(text, "  {:28} {:>10.2} {cpu_us:>12.2}", contestant.name, rate / self.job.divisor);
        }
        text
    }

    /// Text that compares server `which` (an index) with the peers, and says if it meets two targets. For the first
    /// one, the server's rate, divided by that of the fastest peer, must be at least the `target` of the workload. If
    /// the `target` is above 1, a rate of 0.9 of the ceiling's is enough, too. For the second one, the CPU time for one
    /// operation must not exceed that of the peer with the least. Without peers, the text says only that there is none.
    pub fn verdict(&self, which: usize) -> String {
        let Some((fastest, thriftiest)) = self.best_peers() else {
            return "  no peer to compare with\n".to_owned();
        };
        let name = |which: usize| self.contestants[which].name;
        let to_peer = self.rate_ratio(which, fastest);
        let mut text = format!("  {}: {to_peer:.2} of {}", name(which), name(fastest));
        let mut met = to_peer >= self.job.target;
        if let Some(ceiling) = self.with(RacerRole::Ceiling).next() {
            let to_ceiling = self.rate_ratio(which, ceiling);
            let _ = write!(text, ", {to_ceiling:.2} of {}", name(ceiling));
            met |= self.job.target > 1.0 && to_ceiling >= 0.9;
        }
        let or = if self.job.target > 1.0 { " of the peer, or 0.9 of the ceiling" } else { "" };
        let _ = writeln!(text, " (wanted {:.2}{or}): {}", self.job.target, verdict(met));
        let cpu = self.cpu_ratio(which, thriftiest);
        let _ = writeln!(
            text,
            "  {}: {cpu:.2} of the CPU of {}, the thriftiest peer (wanted 1): {}",
            name(which),
            name(thriftiest),
            verdict(cpu <= 1.0)
        );
        text
    }
}

/// The median of numbers; of an even count, the greater of the two numbers in the middle. NaN if there are none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The word for a target in a table: `met`, or `MISSED` if it is not met.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
