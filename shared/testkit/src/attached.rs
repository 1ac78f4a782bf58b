//! A running `headstart attach`: its output when the disks were ready, and its end.

use crate::process::Process;
use crate::scene::Scene;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

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
        let until = Instant::now() + PATIENCE;
        loop {
            let metrics = self.metrics();
            if wanted(&metrics) {
                return metrics;
            }
            assert!(Instant::now() < until, "no {what}:\n{}", metrics.text);
            std::thread::sleep(Duration::from_millis(10));
        }
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

/// A page of metrics: every sample with its labels, as in the text.
pub struct Metrics {
    /// The page.
    pub text: String,
    /// The samples, in their order.
    pub samples: Vec<Sample>,
}

/// `name{label="value"} number`.
#[derive(Debug)]
pub struct Sample {
    /// The name of the metric.
    pub name: String,
    /// The labels, each with its value.
    pub labels: Vec<(String, String)>,
    /// The number.
    pub value: f64,
}

impl Sample {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

impl Metrics {
    /// Parses a page. Every line has to be a comment of a known form or a sample of a metric that was announced.
    #[track_caller]
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "{text}");
        let (mut samples, mut helped, mut kinds) = (Vec::new(), Vec::new(), Vec::<(&str, &str)>::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(!help.is_empty() && !helped.contains(&name), "{line}");
                helped.push(name);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert_eq!(helped.last(), Some(&name), "{line}");
                kinds.push((name, kind));
            } else {
                let sample = parse_sample(line).unwrap_or_else(|| panic!("no sample: {line}"));
                let (announced, kind) = *kinds.last().unwrap();
                let rest = sample.name.strip_prefix(announced);
                let allowed: &[_] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(rest.is_some_and(|rest| allowed.contains(&rest)), "{line} follows {announced}");
                samples.push(sample);
            }
        }
        Self { text: text.to_owned(), samples }
    }

    /// The sum over all samples of this name whose labels include these.
    #[track_caller]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted = |sample: &&Sample| {
            sample.name == name && labels.iter().all(|(label, value)| sample.label(label) == Some(value))
        };
        let mut found = self.samples.iter().filter(wanted).peekable();
        assert!(found.peek().is_some(), "no {name}{labels:?} in\n{}", self.text);
        found.map(|sample| sample.value).sum()
    }

    /// Requests of a kind (hit, miss, write, flush).
    #[track_caller]
    pub fn requests(&self, kind: &str) -> f64 {
        self.sum("headstart_request_seconds_count", &[("kind", kind)])
    }

    /// `true` if every byte of every image is on this host.
    pub fn all_is_local(&self) -> bool {
        self.sum("headstart_image_local_bytes", &[]) == self.sum("headstart_image_bytes", &[])
    }
}

fn parse_sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            // A quotation mark in a value has a backslash before it.
            let mut end = after.find('"')?;
            while after[..end].ends_with('\\') {
                end += 1 + after[end + 1..].find('"')?;
            }
            labels.push((label.to_owned(), after[..end].to_owned()));
            rest = after[end + 1..].trim_start_matches(',');
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    is_name.then(|| Sample { name: name.to_owned(), labels, value })
}
