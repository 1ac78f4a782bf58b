//! fio's nbd engine against several NBD servers in turn: rates, CPU for an I/O, and a comparison with the targets.
//!
//! Machines are noisy, and a noise lasts for seconds. So every contestant does every job in short runs, one after the
//! other, round by round, each round beginning with another; figures are medians of the rounds, and contestants are
//! compared by the median of the rounds' ratios, of runs that were neighbours. CPU is what the server's process uses,
//! user and system.

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

/// The ratio from which on two figures count as the same.
pub const NOISE: f64 = 0.95;

/// A job for fio.
#[derive(Debug)]
pub struct Job {
    /// The name, for people.
    pub name: &'static str,
    pattern: &'static str,
    block_kib: u32,
    depth: &'static str,
    /// The ratio to the better peer that it has to reach.
    pub target: f64,
    unit: &'static str,
    /// The number of I/Os for one of the unit.
    divisor: f64,
}

/// The jobs that the product has targets for.
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

/// The part of a contestant in the race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RacerRole {
    /// The contestant is measured.
    Ours,
    /// The contestant sets the target.
    Peer,
    /// The contestant has no data to read: as fast as the client can be.
    Ceiling,
}

/// A server of one disk at a Unix socket, in a process of its own, which ends with this.
#[derive(Debug)]
pub struct Contestant {
    /// The name, for people.
    pub name: &'static str,
    /// The part in the race.
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
    /// Starts `command`, which serves at `socket`; if it does not, prints that and returns `None`.
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

    /// Has the whole disk read once, so that nothing is read or checked for the first time later.
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
    let said = fio.said();
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

/// The servers of other projects that serve the raw disk `file`, set up as is best for them, and the client's ceiling:
/// nbdkit's file plugin with its 16 threads; qemu-nbd read-only, with its default cache (writeback), for several
/// clients, once with threads and once with `io_uring`; nbdkit's null plugin. `None` if a program is missing.
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

/// The figures of one run of a job.
#[derive(Clone, Copy, Debug)]
pub struct FioFigures {
    /// I/Os a second.
    pub rate: f64,
    /// CPU of the server for one I/O, in µs.
    pub cpu_us: f64,
}

/// The figures of a race for one job.
#[derive(Debug)]
pub struct Race<'a> {
    job: &'a Job,
    contestants: &'a [Contestant],
    /// The figures of each contestant, round by round.
    figures: Vec<Vec<FioFigures>>,
}

impl<'a> Race<'a> {
    /// Has all contestants do `job` for `seconds`, in turn, for `rounds` rounds.
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

    /// The job.
    pub fn job(&self) -> &Job {
        self.job
    }

    /// The medians of a contestant.
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

    /// As `Race::ratio`, of rates.
    pub fn rate_ratio(&self, of: usize, to: usize) -> f64 {
        self.ratio(of, to, |figures| figures.rate)
    }

    /// As `Race::ratio`, of CPU for an I/O.
    pub fn cpu_ratio(&self, of: usize, to: usize) -> f64 {
        self.ratio(of, to, |figures| figures.cpu_us)
    }

    /// The contestants of a role.
    pub fn with(&self, role: RacerRole) -> impl Iterator<Item = usize> {
        (0..self.contestants.len()).filter(move |which| self.contestants[*which].role == role)
    }

    /// The peer with the best rate, and the one that uses least CPU.
    pub fn best_peers(&self) -> Option<(usize, usize)> {
        let fastest =
            self.with(RacerRole::Peer).max_by(|a, b| self.figures(*a).rate.total_cmp(&self.figures(*b).rate));
        let thriftiest = self
            .with(RacerRole::Peer)
            .min_by(|a, b| self.figures(*a).cpu_us.total_cmp(&self.figures(*b).cpu_us));
        fastest.zip(thriftiest)
    }

    /// All figures as a table.
    pub fn table(&self) -> String {
        let mut text = format!("\n{:30} {:>10} {:>12}\n", self.job.name, self.job.unit, "CPU µs/IO");
        for (which, contestant) in self.contestants.iter().enumerate() {
            let FioFigures { rate, cpu_us } = self.figures(which);
            let _ =
                writeln!(text, "  {:28} {:>10.2} {cpu_us:>12.2}", contestant.name, rate / self.job.divisor);
        }
        text
    }

    /// Compares `which` with the peers, and says whether the targets are met: the job's rate, or 0.9 of the client's
    /// ceiling if that is less; no more CPU than the thriftiest peer.
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

/// The median of figures; not a number if there are none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The word for a target that is met or not.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
