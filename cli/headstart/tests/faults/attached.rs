//! `headstart attach` as a process, with its disk and its metrics.

use crate::image::Image;
use crate::nbd::Client;
use crate::scene::Scene;
use headstart_testkit::process::Process;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The longest time for an attach, unless it hangs.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// The longest time for a detach; one that waited for the reads' store would take five minutes.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

/// A running attach, killed when dropped.
pub(crate) struct Attached {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
    metrics: String,
}

impl Attached {
    /// Attaches `reference` with a cache at `cache`; `words` are more arguments, where `~` is the scene's directory.
    #[track_caller]
    pub(crate) fn start(scene: &Scene, reference: &str, cache: &str, words: &str) -> Self {
        let (mut command, socket) = command(scene, reference, cache, words);
        Self::ready(Process::start(&mut command), socket)
    }

    /// Waits until it reports that it is ready.
    #[track_caller]
    pub(crate) fn ready(mut process: Process, socket: PathBuf) -> Self {
        let line =
            process.line("where its metrics are", READY_LIMIT, |line| line.contains("metrics: http://"));
        let metrics = line.split_once("http://").unwrap().1.trim_end_matches("/metrics").to_owned();
        process.line("that it is ready", READY_LIMIT, |line| line.starts_with("Ctrl-C"));
        Self { process, socket, metrics }
    }

    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }

    /// All metrics, as text.
    pub(crate) fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.metrics).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The sum of a metric's samples whose labels contain `label`.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str, label: &str) -> u64 {
        let text = self.metrics();
        let samples = text.lines().filter_map(|line| {
            let (sample, value) = line.rsplit_once(' ')?;
            let labels = sample.strip_prefix(name)?;
            ((labels.is_empty() || labels.starts_with('{')) && labels.contains(label)).then_some(value)
        });
        let values: Vec<f64> = samples.map(|value| value.parse().unwrap()).collect();
        assert!(!values.is_empty(), "no {name} with {label}:\n{text}");
        values.iter().sum::<f64>() as u64
    }

    /// The warnings so far.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let said = self.process.output();
        said.lines().filter(|line| line.starts_with("headstart: ")).map(str::to_owned).collect()
    }

    /// Waits until it has given a warning with all of `parts`.
    #[track_caller]
    pub(crate) fn warns(&mut self, parts: &[&str]) {
        let is_it =
            |line: &str| line.starts_with("headstart: ") && parts.iter().all(|part| line.contains(part));
        self.process.line(&format!("{parts:?}"), READY_LIMIT, is_it);
    }

    /// Reads all of the disk in pieces of `piece` bytes over one connection, and compares.
    #[track_caller]
    pub(crate) fn read_all(&self, image: &Image, piece: usize) {
        let mut client = self.client();
        for offset in (0..image.len()).step_by(piece) {
            let len = piece.min((image.len() - offset) as usize);
            let answer = client.send_read(offset, len).and_then(|_| client.receive());
            let bytes = answer.map(|(_, answer)| answer);
            let Ok(Ok(bytes)) = bytes else {
                panic!("no bytes at {offset}, but {bytes:?}:\n{}\n{}", self.process.output(), self.metrics());
            };
            image.check(offset, &bytes);
        }
    }

    /// Threads and open files of the process.
    pub(crate) fn threads_and_files(&self) -> (usize, usize) {
        let count = |what: &str| fs::read_dir(format!("/proc/{}/{what}", self.process.id())).unwrap().count();
        (count("task"), count("fd"))
    }

    /// Detaches; that has to succeed, and waits for nothing.
    #[track_caller]
    pub(crate) fn detach(&mut self) {
        let status = self.process.stop(DETACH_LIMIT);
        assert!(status.success(), "{status}: {}", self.process.output());
    }
}

/// The command line of an attach, and the socket that it will serve.
pub(crate) fn command(scene: &Scene, reference: &str, cache: &str, words: &str) -> (Command, PathBuf) {
    static SOCKETS: AtomicU32 = AtomicU32::new(0);
    let socket = scene.path(&format!("{}.sock", SOCKETS.fetch_add(1, Ordering::Relaxed)));
    let words = format!(
        "attach {reference} --nbd unix:{} --metrics 127.0.0.1:0 --cache {cache} {words}",
        socket.display()
    );
    (scene.command(&words), socket)
}
