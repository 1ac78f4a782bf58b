//! Programs that a test starts, watches and ends: other people's, and the product itself.

use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Says, past the test harness's capturing, that a test did not take place.
pub fn skipped(why: &str) {
    let test = thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(io::stderr(), "SKIPPED: {test}: {why}");
}

/// Whether all of `programs` are installed; says so where not.
pub fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program).is_none());
    if let Some(program) = missing {
        skipped(&format!("{program} is not installed"));
    }
    missing.is_none()
}

/// The file of a program: in the path, in the administrator's directories, or where `scripts/setup` builds what
/// no package has.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = ["/usr/sbin", "/sbin", concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin")];
    let dirs = std::env::split_paths(&path).chain(others.map(PathBuf::from));
    dirs.map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// A program that runs, with what it said so far. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    said: Arc<Said>,
}

/// The lines of both its outputs, in the order in which they came.
#[derive(Debug, Default)]
struct Said {
    text: Mutex<Text>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Text {
    lines: Vec<String>,
    /// Of two outputs.
    ended: usize,
}

impl Said {
    fn lock(&self) -> MutexGuard<'_, Text> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn collect(self: &Arc<Self>, output: impl Read + Send + 'static) {
        let said = Arc::clone(self);
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                let text = String::from_utf8_lossy(&line);
                said.lock().lines.push(text.trim_end_matches('\n').to_owned());
                said.more.notify_all();
                line.clear();
            }
            said.lock().ended += 1;
            said.more.notify_all();
        });
    }
}

impl Process {
    /// Starts it, with both outputs collected and nothing to read.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let said = Arc::new(Said::default());
        if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
            said.collect(out);
            said.collect(err);
        }
        Self { name, child, said }
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The first line it said that is `wanted`, waiting for it. Panics with all it said where it ends without, or
    /// `limit` passes.
    #[track_caller]
    pub fn line(&mut self, what: &str, limit: Duration, wanted: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + limit;
        let mut text = self.said.lock();
        loop {
            if let Some(line) = text.lines.iter().find(|line| wanted(line)) {
                return line.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            if text.ended == 2 || left.is_zero() {
                let why = if left.is_zero() { "did not say in time" } else { "ended before it said" };
                let lines = text.lines.join("\n");
                // Whoever catches the panic can still use it.
                drop(text);
                panic!("{} {why} {what}:\n{lines}", self.name);
            }
            text = self.said.more.wait_timeout(text, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// All it said so far.
    pub fn said(&self) -> String {
        self.said.lock().lines.join("\n")
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal. One that has ended already gets none.
    pub fn signal(&mut self, signal: Signal) {
        if self.is_running() {
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Waits until it has ended and what it said is collected. Panics where that takes longer than `limit`.
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
                Ok(None) => panic!("{} does not end:\n{}", self.name, self.said()),
                Err(error) => panic!("{}: {error}", self.name),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Its outputs may be open for longer than it lives, where it left children behind.
    fn collect_rest(&self, until: Instant) {
        let mut text = self.said.lock();
        while text.ended < 2 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            text = self.said.more.wait_timeout(text, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks it to end (SIGTERM) and waits.
    #[track_caller]
    pub fn stop(&mut self, limit: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.end(limit)
    }

    /// `kill -9`, and waits.
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
        write!(f, "{} ({})\n{}", self.name, self.id(), self.said())
    }
}

/// Ends a child and waits for it, but not for ever: one that hangs in a system call of a dead server cannot be killed,
/// and must not take the whole run with it.
pub(crate) fn kill(child: &mut Child) {
    const TIME_LIMIT: Duration = Duration::from_secs(30);
    let _ = child.kill();
    let until = Instant::now() + TIME_LIMIT;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a server that has to be told its port: on one that was free a moment ago, and on another where it was
/// taken meanwhile. `start` gives the process, `ready` says whether it serves.
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

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0));
    let addr = listener.and_then(|listener| listener.local_addr());
    addr.expect("this machine has a free port").port()
}
