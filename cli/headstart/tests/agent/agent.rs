//! A running agent, and its disks.

use crate::attached::TIMEOUT;
use crate::http::ask;
use crate::scene::{Scene, run_tool};
use headstart_testkit::process::Process;
use headstart_testkit::wait::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An agent in the directory `NAME` of a scene, with the cache `NAME-cache`. Killed when dropped; its disks and their
/// keeper, too.
pub(crate) struct Agent<'s> {
    scene: &'s Scene,
    name: &'static str,
    words: String,
    process: Process,
    /// Its output when it could be used.
    pub(crate) ready: Value,
}

impl<'s> Agent<'s> {
    /// Starts one; `words` follow `headstart agent`.
    #[track_caller]
    pub(crate) fn start(scene: &'s Scene, name: &'static str, words: &str) -> Self {
        let words = format!("agent --json --dir ~/{name} --cache ~/{name}-cache {words}");
        let (process, ready) = Self::run(&mut scene.command(&words));
        Self { scene, name, words, process, ready }
    }

    #[track_caller]
    fn run(command: &mut Command) -> (Process, Value) {
        let mut process = Process::start(command);
        let line = process.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"name\""));
        (process, serde_json::from_str(&line).unwrap())
    }

    /// Starts the next agent in its place, from this program.
    #[track_caller]
    pub(crate) fn again(&mut self) {
        (self.process, self.ready) = Self::run(&mut self.scene.command(&self.words));
    }

    /// Starts the next agent in its place, with other words; its disks go on.
    #[track_caller]
    pub(crate) fn with(mut self, words: &str) -> Self {
        self.words = format!("agent --json --dir ~/{0} --cache ~/{0}-cache {words}", self.name);
        self.again();
        self
    }

    /// Starts it again, in place of one that was killed, and has it and its disks log at these levels.
    #[track_caller]
    pub(crate) fn again_with_log(&mut self, levels: &str) {
        let mut command = self.scene.command(&self.words);
        (self.process, self.ready) = Self::run(command.env("HEADSTART_LOG", levels));
    }

    /// Starts the next agent in its place, from another file: an upgrade.
    #[track_caller]
    pub(crate) fn again_as(&mut self, program: &Path) {
        let same = self.scene.command(&self.words);
        let mut command = Command::new(program);
        command.args(same.get_args()).current_dir(self.scene.path(""));
        (self.process, self.ready) = Self::run(&mut command);
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a line of its output.
    #[track_caller]
    pub(crate) fn line(&mut self, part: &str) -> String {
        self.process.line(part, TIMEOUT, |line| line.contains(part))
    }

    /// All its output so far.
    pub(crate) fn output(&self) -> String {
        self.process.output()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    #[track_caller]
    pub(crate) fn stop(&mut self) {
        assert_eq!(self.process.stop(TIMEOUT).code(), Some(0), "{}", self.process);
    }

    /// Waits until it has ended by the signal that it got. A second signal would end it at once.
    #[track_caller]
    pub(crate) fn ends(&mut self) {
        assert_eq!(self.process.end(TIMEOUT).code(), Some(0), "{}", self.process);
    }

    /// `--agent` with its socket.
    pub(crate) fn option(&self) -> String {
        format!("--agent ~/{}/agent.sock", self.name)
    }

    /// Attaches a disk; returns the agent's answer.
    #[track_caller]
    pub(crate) fn attach(&self, words: &str) -> Value {
        self.scene.ok(&format!("attach --json {words} {}", self.option())).json()
    }

    #[track_caller]
    pub(crate) fn detach(&self, name: &str) -> Value {
        self.scene.ok(&format!("disk detach {name} --json {}", self.option())).json()
    }

    #[track_caller]
    pub(crate) fn disks(&self) -> Vec<Value> {
        let listed = self.scene.json(&format!("disk list {}", self.option()));
        listed["disks"].as_array().unwrap().clone()
    }

    /// The only disk, once it is as `wanted`.
    #[track_caller]
    pub(crate) fn disk_that(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, TIMEOUT, || match self.disks().as_slice() {
            [disk] if wanted(disk) => Ok(disk.clone()),
            disks => Err(disks.to_vec()),
        })
    }

    /// `true` if a process serves this disk.
    pub(crate) fn is_served(&self, disk: &str) -> bool {
        is_locked(&self.scene.path(&format!("{}/disks/{disk}.pid", self.name)))
    }

    /// Sends a request as any program does; returns the answer's status and body.
    #[track_caller]
    pub(crate) fn http(&self, request: &str) -> (u16, String) {
        let stream = UnixStream::connect(self.scene.path(&format!("{}/agent.sock", self.name))).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        ask(stream, request)
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        self.process.kill();
        // Its disks live on; those of a test must not. Without their keeper their mounts end with them.
        for (directory, signal) in [("keeper", Signal::KILL), ("disks", Signal::TERM)] {
            let files = std::fs::read_dir(self.scene.path(&format!("{}/{directory}", self.name)));
            for path in files.into_iter().flatten().flatten().map(|entry| entry.path()) {
                if path.extension().is_some_and(|ending| ending == "pid") && is_locked(&path) {
                    let pid = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
                    let _ = pid.and_then(Pid::from_raw).map(|pid| kill_process(pid, signal));
                }
            }
        }
        unmount_below(&self.scene.path(self.name).join(".."));
    }
}

/// Unmounts what disks that were killed left in a scene, whose directory could not be removed otherwise.
fn unmount_below(scene: &Path) {
    let Ok(scene) = scene.canonicalize() else { return };
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table
        .lines()
        .filter(|line| line.contains(" - fuse.headstart "))
        .filter_map(|line| line.split(' ').nth(4));
    for point in points.map(Path::new).filter(|point| point.starts_with(&scene)) {
        let _ = Command::new("umount").arg("-l").arg(point).output();
    }
}

/// A copy of the program. Another process makes it: a file that is open for writing, even only in a process that
/// another test is about to start, cannot be executed.
#[track_caller]
pub(crate) fn copy_of_program(scene: &Scene, name: &str) -> PathBuf {
    run_tool("cp", &["--preserve=mode", env!("CARGO_BIN_EXE_headstart"), name], &scene.path(""));
    scene.path(name)
}

/// `true` if a process that serves a disk has this file.
fn is_locked(path: &Path) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_err()
}
