//! Programs that a test starts, watches and ends: those of other projects, and the product itself.

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Prints that a test is skipped, and why. The text appears even if the test harness captures output.
pub fn skipped(why: &str) {
    let test = thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(io::stderr(), "SKIPPED: {test}: {why}");
}

/// Returns `true` if this process runs as root. If not, prints that a test that needs root is skipped.
#[must_use]
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped("takes root");
    }
    is_root
}

/// Returns `true` if disks can be mounted as files here: by root, where `/dev/fuse` can be opened. If not, prints that
/// a test is skipped.
#[must_use]
pub fn has_fuse() -> bool {
    let has = File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !has {
        skipped("/dev/fuse cannot be opened");
    }
    has && is_root()
}

/// Returns `true` if all of `programs` are installed. If not, prints that a test is skipped and which program
/// is missing.
pub fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program).is_none());
    if let Some(program) = missing {
        skipped(&format!("{program} is not installed"));
    }
    missing.is_none()
}

/// The path of an installed program; `None` if there is none. Looks in `PATH`, in the administrator's
/// directories, and in the directory where `scripts/setup` builds programs that have no package.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = ["/usr/sbin", "/sbin", concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin")];
    let dirs = std::env::split_paths(&path).chain(others.map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// A command that runs the test `name`, which includes its modules, by itself in another process of this program of
/// tests. A test that is ignored runs, too.
///
/// # Panics
/// If the program's file cannot be found.
#[must_use]
pub fn one_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--include-ignored", "--nocapture"]);
    command
}

/// Set in a process that runs one test alone.
const ALONE: &str = "HEADSTART_TEST_ALONE";

/// Gives the test `name`, which includes its modules, a process of its own, as its subject is the whole process: its
/// memory, its threads, its panics. Returns `true` in that process. In another one, has such a process run the test,
/// fails if that fails, and returns `false`.
#[track_caller]
#[must_use]
pub fn is_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = one_test(name).env(ALONE, "1").stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    false
}

/// A running program with its output so far. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    output: Arc<ProcessOutput>,
}

/// The lines of both its outputs. A line of standard output comes after everything that the program had written to
/// standard error before.
#[derive(Debug)]
struct ProcessOutput {
    pipes: [File; 2],
    text: Mutex<Text>,
    more: Condvar,
}

const OUTPUT: usize = 0;
const ERRORS: usize = 1;

#[derive(Debug)]
struct Text {
    lines: Vec<String>,
    unfinished: [Vec<u8>; 2],
    is_open: [bool; 2],
}

impl ProcessOutput {
    fn new(output: OwnedFd, errors: OwnedFd) -> Self {
        let text = Text { lines: Vec::new(), unfinished: [Vec::new(), Vec::new()], is_open: [true; 2] };
        Self { pipes: [output.into(), errors.into()], text: Mutex::new(text), more: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Text> {
        self.text.lock()
    }

    /// Takes output as it comes, until both outputs have ended.
    fn collect(&self) {
        loop {
            let is_open = self.lock().is_open;
            if is_open == [false; 2] {
                return;
            }
            self.readable(is_open, None);
            self.take_all(&mut self.lock());
            self.more.notify_all();
        }
    }

    /// Takes everything that was written before this was called.
    fn take_all(&self, text: &mut Text) {
        let mut is_readable = self.readable(text.is_open, Some(&Timespec::default()));
        while is_readable != [false; 2] {
            if is_readable[OUTPUT] {
                self.read(OUTPUT, text);
            }
            // Output that was written before the bytes just read is in the other pipe by now.
            while self.readable([false, text.is_open[ERRORS]], Some(&Timespec::default()))[ERRORS] {
                self.read(ERRORS, text);
            }
            for which in [ERRORS, OUTPUT] {
                text.finish_lines(which);
            }
            is_readable = self.readable(text.is_open, Some(&Timespec::default()));
        }
    }

    fn read(&self, which: usize, text: &mut Text) {
        let mut bytes = [0; 16 << 10];
        let len = (&self.pipes[which]).read(&mut bytes).unwrap_or_default();
        text.is_open[which] = len > 0;
        text.unfinished[which].extend(&bytes[..len]);
    }

    /// `true` for each of the open outputs that has something, or its end, to read, after waiting for one of them for
    /// at most `limit`.
    fn readable(&self, is_open: [bool; 2], limit: Option<&Timespec>) -> [bool; 2] {
        let open = [OUTPUT, ERRORS].into_iter().filter(|&which| is_open[which]);
        let mut polled: Vec<_> = open.map(|which| PollFd::new(&self.pipes[which], PollFlags::IN)).collect();
        if poll(&mut polled, limit).is_err() {
            return [false; 2];
        }
        let mut polled = polled.iter();
        is_open.map(|is_open| is_open && polled.next().is_some_and(|fd| !fd.revents().is_empty()))
    }
}

impl Text {
    /// Moves whole lines to the lines; at the end of the output, also the rest.
    fn finish_lines(&mut self, which: usize) {
        let unfinished = &mut self.unfinished[which];
        let end = match unfinished.iter().rposition(|&byte| byte == b'\n') {
            _ if !self.is_open[which] => unfinished.len(),
            Some(last) => last + 1,
            None => 0,
        };
        let whole: Vec<u8> = unfinished.drain(..end).collect();
        self.lines.extend(String::from_utf8_lossy(&whole).lines().map(str::to_owned));
    }

    fn has_ended(&self) -> bool {
        self.is_open == [false; 2]
    }
}

impl Process {
    /// Starts a program. Its standard output and standard error are collected; its standard input is empty.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both outputs are pipes");
        };
        let output = Arc::new(ProcessOutput::new(output.into(), errors.into()));
        let collected = Arc::clone(&output);
        thread::spawn(move || collected.collect());
        Self { name, child, output }
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the output has a line for which `wanted` returns `true`, and returns the first such line; lines from
    /// before the call count. Panics with `what` and all output if the program ends without such a line, or after
    /// `limit`.
    #[track_caller]
    pub fn line(&mut self, what: &str, limit: Duration, wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + limit;
        let mut text = self.output.lock();
        loop {
            if let Some(line) = text.lines.iter().find(|line| wanted(line)) {
                return line.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            if text.has_ended() || left.is_zero() {
                let why = if left.is_zero() { "did not say in time" } else { "ended before it said" };
                let lines = text.lines.join("\n");
                // A caller that catches the panic can still use it.
                drop(text);
                panic!("{} {why} {what}:\n{lines}", self.name);
            }
            self.output.more.wait_for(&mut text, left);
        }
    }

    /// The output up to now, both streams together.
    pub fn output(&self) -> String {
        let mut text = self.output.lock();
        self.output.take_all(&mut text);
        text.lines.join("\n")
    }

    /// Returns `true` if the program has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the program. Does nothing if the program has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.is_running() {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Waits until the program has ended, and returns its exit status. All output of the program is collected then.
    /// Output of children that the program left behind is collected for one second more, at most until `limit`. Panics
    /// if the program has not ended after `limit`.
    #[track_caller]
    pub fn end(&mut self, limit: Duration) -> ExitStatus {
        let until = Instant::now() + limit;
        let mut pause = Duration::from_micros(200);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.collect_rest(until.min(Instant::now() + Duration::from_secs(1)));
                    return status;
                }
                Ok(None) if Instant::now() < until => thread::sleep(pause),
                Ok(None) => panic!("{} does not end:\n{}", self.name, self.output()),
                Err(error) => panic!("{}: {error}", self.name),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Collects the rest of the output, which may be open for longer than the program lives, if that left children
    /// behind.
    fn collect_rest(&self, until: Instant) {
        let mut text = self.output.lock();
        while !text.has_ended() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.output.more.wait_for(&mut text, left);
        }
    }

    /// Sends SIGTERM to the program, and does the same as [`end`](Self::end).
    #[track_caller]
    pub fn stop(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.end(limit)
    }

    /// Sends SIGKILL to the program, and waits until it has ended, at most 30 seconds.
    pub fn kill(&mut self) {
        kill(&mut self.child);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})\n{}", self.name, self.id(), self.output())
    }
}

/// Ends a child and waits for it, but not for ever: a child that hangs in a system call of a dead server cannot be
/// killed, and must not take the whole run with it.
pub(crate) fn kill(child: &mut Child) {
    const TIME_LIMIT: Duration = Duration::from_secs(30);
    let _ = child.kill();
    let until = Instant::now() + TIME_LIMIT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a server that has to be told its port: on one that was free a moment ago, and on another if that was taken
/// meanwhile. `start` returns the process; `ready` returns `true` if it serves.
#[track_caller]
pub(crate) fn start_on_free_port(
    start: impl Fn(u16) -> Process,
    ready: impl Fn(u16) -> bool,
) -> (Process, u16) {
    const TRIES: usize = 5;
    const TIME_LIMIT: Duration = Duration::from_secs(20);
    let mut last_words = String::new();
    for _ in 0..TRIES {
        let port = free_port();
        let mut process = start(port);
        let until = Instant::now() + TIME_LIMIT;
        while process.is_running() && Instant::now() < until {
            if ready(port) && process.is_running() {
                return (process, port);
            }
            thread::sleep(Duration::from_millis(5));
        }
        last_words = process.to_string();
    }
    panic!("the server does not start: {last_words}");
}

/// A port of those that Linux gives to no program that asks for any free port, so that no listener gets it meanwhile.
/// Each call gives another one.
fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Programs that run at the same time begin at places of their own.
    let begin = std::process::id().wrapping_mul(101);
    let next = || FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
    let mut ports = (0..COUNT).filter_map(|_| u16::try_from(next()).ok());
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.find(is_free).expect("this machine has a free port")
}
