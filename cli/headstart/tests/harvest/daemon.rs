//! A running daemon.

use crate::http;
use crate::scene::{Scene, run_tool};
use crate::tools::find;
use headstart_testkit::process::Process;
use headstart_testkit::wait::wait_for;
use serde_json::Value;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

/// The longest time until it is ready, and until it has ended: much longer than either takes, even on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon in the directory `h` of a scene. Killed when dropped.
pub(crate) struct Daemon<'s> {
    pub(crate) scene: &'s Scene,
    words: String,
    process: Process,
    /// Its output when it could be used.
    pub(crate) ready: Value,
}

impl<'s> Daemon<'s> {
    /// Starts one; `words` follow `headstart harvest serve DIR`.
    #[track_caller]
    pub(crate) fn start(scene: &'s Scene, words: &str) -> Self {
        let words = format!("harvest serve --json ~/h {words}");
        let (process, ready) = Self::run(scene, &words);
        Self { scene, words, process, ready }
    }

    /// Starts one with the command changed by `dress`.
    #[track_caller]
    pub(crate) fn start_with(
        scene: &'s Scene,
        words: &str,
        dress: impl FnOnce(&Command) -> Option<Command>,
    ) -> Option<Self> {
        let words = format!("harvest serve --json ~/h {words}");
        let (process, ready) = Self::run_command(&mut dress(&scene.command(&words))?);
        Some(Self { scene, words, process, ready })
    }

    #[track_caller]
    fn run(scene: &Scene, words: &str) -> (Process, Value) {
        Self::run_command(&mut scene.command(words))
    }

    #[track_caller]
    fn run_command(command: &mut Command) -> (Process, Value) {
        let mut process = Process::start(command);
        let line = process.line("that it is ready", TIMEOUT, |line| line.starts_with("{\"harvest\""));
        (process, serde_json::from_str(&line).unwrap())
    }

    /// Ends it in good order, and starts the next.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    /// Kills it, and starts the next.
    #[track_caller]
    pub(crate) fn kill_and_start(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts the next, when one has ended.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        (self.process, self.ready) = Self::run(self.scene, &self.words);
    }

    #[track_caller]
    pub(crate) fn stop(&mut self) {
        assert_eq!(self.process.stop(TIMEOUT).code(), Some(0), "{}", self.process);
    }

    /// The first line of its output with `part` in it. Standard error may come later than the line that it is ready.
    #[track_caller]
    pub(crate) fn says(&mut self, part: &str) -> String {
        self.process.line(part, TIMEOUT, |line| line.contains(part))
    }

    /// Runs a command against it; returns the JSON report.
    #[track_caller]
    pub(crate) fn ask(&self, words: &str) -> Value {
        self.scene.json(&format!("harvest {words} --dir ~/h"))
    }

    /// Runs a command against it; returns the output for people.
    #[track_caller]
    pub(crate) fn say(&self, words: &str) -> String {
        self.scene.ok(&format!("harvest {words} --dir ~/h")).stdout
    }

    /// Runs a command against it, which has to fail.
    #[track_caller]
    pub(crate) fn refuses(&self, words: &str, parts: &[&str]) {
        self.scene.fails(&format!("harvest {words} --dir ~/h"), parts);
    }

    /// Makes a vSSD, and returns its URI.
    #[track_caller]
    pub(crate) fn create(&self, words: &str) -> String {
        uri(&self.ask(&format!("vssd create {words}")))
    }

    /// Makes a vSSD, which may have to wait until the flash of an earlier one of its name or channels is erased.
    #[track_caller]
    pub(crate) fn create_soon(&self, words: &str) -> Value {
        self.wait_for("there is room for it", || {
            let run = self.scene.run(&format!("harvest vssd create {words} --dir ~/h --json"));
            (run.status == Some(0)).then(|| run.json())
        })
    }

    /// Waits until `there` returns a value.
    #[track_caller]
    pub(crate) fn wait_for<T>(&self, what: &str, mut there: impl FnMut() -> Option<T>) -> T {
        wait_for(what, TIMEOUT, || there().ok_or_else(|| self.ask("vssd list")))
    }

    /// Waits until no client has a vSSD open: the daemon notices a moment later that one has ended.
    #[track_caller]
    pub(crate) fn wait_until_unused(&self, name: &str) {
        self.wait_for("without clients", || (self.vssd(name)["clients"] == 0).then_some(()));
    }

    /// One vSSD as it is now.
    #[track_caller]
    pub(crate) fn vssd(&self, name: &str) -> Value {
        let listed = self.ask("vssd list");
        let found = listed["vssds"].as_array().unwrap().iter().find(|vssd| vssd["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {listed}")).clone()
    }

    /// Requests spare flash until there is some: unsold flash is erased before it is lent.
    #[track_caller]
    pub(crate) fn request(&self, words: &str) -> Value {
        self.wait_for("to spare", || {
            let run = self.scene.run(&format!("harvest request {words} --dir ~/h --json"));
            (run.status == Some(0)).then(|| run.json()["leases"].clone())
        })
    }

    /// Waits until a vSSD does not have this lease any more; without a number, none at all.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self, name: &str, lease: Option<u64>) {
        self.wait_for("gone", || {
            let held = self.vssd(name)["leases"].as_array().unwrap().clone();
            held.iter().all(|held| lease.is_some_and(|lease| held["id"] != lease)).then_some(())
        });
    }

    /// Sends a request over the Unix socket as any program does; returns the answer's status and body.
    #[track_caller]
    pub(crate) fn http(&self, request: &str) -> (u16, String) {
        let stream = UnixStream::connect(self.ready["harvest"].as_str().unwrap()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        http::ask(stream, request)
    }

    /// The same over TCP.
    #[track_caller]
    pub(crate) fn tcp(&self, request: &str) -> (u16, String) {
        let address = self.ready["http"].as_str().unwrap().strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        http::ask(stream, request)
    }
}

/// The NBD URI of a vSSD.
#[track_caller]
pub(crate) fn uri(vssd: &Value) -> String {
    vssd["uris"][0].as_str().unwrap_or_else(|| panic!("{vssd}")).to_owned()
}

/// Runs commands of qemu-io, one after the other; all have to succeed, with the expected bytes.
#[track_caller]
pub(crate) fn qemu_io(scene: &Scene, uri: &str, commands: &[&str]) {
    let mut args = vec!["-f", "raw"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    args.push(uri);
    let output = run_tool(find("qemu-io").unwrap().to_str().unwrap(), &args, &scene.path(""));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!said.contains("failed") && !said.contains("rror"), "{commands:?}: {said}");
}
