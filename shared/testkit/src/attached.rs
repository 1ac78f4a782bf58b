//! A running `headstart attach`: its output when the disks were ready, and its end.

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

/// The longest time until the disks are ready, and until it has ended: much longer than either takes, even on a busy
/// machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An attached disk, or several. Killed when dropped.
pub struct Attached {
    process: Process,
    /// Its JSON output when the disks were ready.
    pub ready: Value,
}

impl Attached {
    /// Attaches; `words` follow `headstart attach`. Panics with all its output if that fails.
    #[track_caller]
    pub fn start(scene: &Scene, words: &str) -> Self {
        Self::of(&mut scene.command(&format!("attach --json {words}")))
    }

    /// Attaches by a command that has `--json` in it.
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        let mut process = Process::start(command);
        let line = process.line("that it is ready", PATIENCE, |line| line.starts_with("{\"disks\""));
        Self { process, ready: serde_json::from_str(&line).unwrap() }
    }

    /// The URIs of the disks, one way after the other.
    pub fn uris(&self) -> Vec<String> {
        let ways = self.ready["ways"].as_array().unwrap();
        ways.iter().map(|way| way["uri"].as_str().unwrap().to_owned()).collect()
    }

    /// The first URI.
    pub fn uri(&self) -> String {
        self.uris().swap_remove(0)
    }

    /// The process, to be signalled or killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// All its output so far, warnings included.
    pub fn said(&self) -> String {
        self.process.said()
    }

    /// Waits for the first warning.
    #[track_caller]
    pub fn warning(&mut self) -> String {
        self.process.line("a warning", PATIENCE, |line| line.starts_with("headstart: warning: "))
    }

    /// Waits for the first warning with `part` in it.
    #[track_caller]
    pub fn warning_with(&mut self, part: &str) -> String {
        let is_it = |line: &str| line.starts_with("headstart: warning: ") && line.contains(part);
        self.process.line(part, PATIENCE, is_it)
    }

    /// Asks it to detach, by SIGTERM, which has to succeed; returns its report.
    #[track_caller]
    pub fn detach(self) -> Value {
        self.detach_by(Signal::TERM)
    }

    /// Asks it to detach by a signal, as [`Attached::detach`].
    #[track_caller]
    pub fn detach_by(mut self, signal: Signal) -> Value {
        self.process.signal(signal);
        let status = self.process.end(PATIENCE);
        assert_eq!(status.code(), Some(0), "{}", self.process);
        let said = self.process.said();
        assert!(!said.contains("panicked"), "{said}");
        let report = said.lines().find(|line| line.starts_with("{\"reads\"")).unwrap_or_default();
        serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}:\n{said}"))
    }

    /// The metrics that Prometheus would scrape; it has to be started with `--metrics 127.0.0.1:0`.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let url = self.ready["metrics"].as_str().unwrap();
        Metrics::parse(&get(url))
    }

    /// Waits until `wanted` is true of its metrics.
    #[track_caller]
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
        wait_for(what, PATIENCE, || {
            let metrics = self.metrics();
            if wanted(&metrics) { Ok(metrics) } else { Err(Shown(metrics.text)) }
        })
    }
}

/// The disk of a printed line that starts QEMU, in the form of `--image-opts` of QEMU's tools.
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
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}
