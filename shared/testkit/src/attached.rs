//! A running `headstart attach`: a test reads its output, sends it signals, and ends it.

use crate::process::Process;
use crate::scene::Scene;
use crate::wait::{Shown, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

pub use crate::metrics::Metrics;

/// The time limit for disks to become ready, and for the process to end. It is much longer than either takes,
/// even on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A process of `headstart attach` that serves one or more disks. It is killed when this value is dropped.
pub struct Attached {
    process: Process,
    /// The line of JSON that the process printed when the disks were ready.
    pub ready: Value,
}

impl Attached {
    /// Runs `headstart attach --json` with the arguments `words` and waits until the disks are ready. Panics
    /// with all output of the process if they do not become ready.
    #[track_caller]
    pub fn start(scene: &Scene, words: &str) -> Self {
        Self::of(&mut scene.command(&format!("attach --json {words}")))
    }

    /// Runs a command that attaches disks and waits until they are ready. The command must contain `--json`.
    /// Panics with all output of the process if they do not become ready.
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        let mut process = Process::start(command);
        let line = process.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"disks\""));
        Self { process, ready: serde_json::from_str(&line).unwrap() }
    }

    /// The URIs at which the process serves its disks, in the order of the `ways` in its JSON.
    pub fn uris(&self) -> Vec<String> {
        let ways = self.ready["ways"].as_array().unwrap();
        ways.iter().map(|way| way["uri"].as_str().unwrap().to_owned()).collect()
    }

    /// The first of the [`uris`](Self::uris). Panics if there is none.
    pub fn uri(&self) -> String {
        self.uris().swap_remove(0)
    }

    /// The process, for example to send it a signal.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// All output of the process so far, on standard output and standard error.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Waits until the process has printed a warning, and returns the first one. Panics after [`TIMEOUT`] or
    /// if the process ends.
    #[track_caller]
    pub fn warning(&mut self) -> String {
        self.process.line("a warning", TIMEOUT, |line| line.starts_with("headstart: warning: "))
    }

    /// Waits until the process has printed a warning that contains `part`, and returns the first one. Panics
    /// after [`TIMEOUT`] or if the process ends.
    #[track_caller]
    pub fn warning_with(&mut self, part: &str) -> String {
        let is_it = |line: &str| line.starts_with("headstart: warning: ") && line.contains(part);
        self.process.line(part, TIMEOUT, is_it)
    }

    /// Sends SIGTERM, waits for the end of the process, and returns the report that it printed. Panics if the process
    /// does not end within [`TIMEOUT`], fails, or prints no report.
    #[track_caller]
    pub fn detach(self) -> Value {
        self.detach_by(Signal::TERM)
    }

    /// Sends `signal`, then does the same as [`Attached::detach`].
    #[track_caller]
    pub fn detach_by(mut self, signal: Signal) -> Value {
        self.process.signal(signal);
        let status = self.process.end(TIMEOUT);
        assert_eq!(status.code(), Some(0), "{}", self.process);
        let said = self.process.output();
        assert!(!said.contains("panicked"), "{said}");
        let report = said.lines().find(|line| line.starts_with("{\"reads\"")).unwrap_or_default();
        serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}:\n{said}"))
    }

    /// Requests the page of metrics and parses it. The process must have been started with `--metrics
    /// 127.0.0.1:0`.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let url = self.ready["metrics"].as_str().unwrap();
        Metrics::parse(&get(url))
    }

    /// Requests the metrics repeatedly until `wanted` returns `true` for them, and returns them. After
    /// [`TIMEOUT`], panics with the text `what`, which names the condition, and the last page.
    #[track_caller]
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
        wait_for(what, TIMEOUT, || {
            let metrics = self.metrics();
            if wanted(&metrics) { Ok(metrics) } else { Err(Shown(metrics.text)) }
        })
    }
}

/// Converts `line`, QEMU's arguments for an NBD disk, which the attached process printed as a JSON string, to the form
/// that the option `--image-opts` of QEMU's tools takes. Panics if `line` is not a string, or if it has no
/// `?socket=` (the path of the server's socket) or no `file.reconnect-delay=`.
#[track_caller]
pub fn image_options(line: &Value) -> String {
    let line = line.as_str().unwrap();
    let option = |name: &str| {
        let value = line.split_once(name).unwrap_or_else(|| panic!("no {name} in {line}")).1;
        value.split([',', '\'']).next().unwrap()
    };
    let (socket, delay) = (option("?socket="), option("file.reconnect-delay="));
    let server = format!("file.server.type=unix,file.server.path={socket}");
    format!("driver=raw,file.driver=nbd,{server},file.reconnect-delay={delay}")
}

/// The body of the answer to a plain GET.
#[track_caller]
fn get(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}
