//! The place of a test: a directory of its own, the programs run in it, and their output.

use crate::files::names;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest time for a test's command, unless it hangs.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The directory that programs of this build are in: above the one of this test's own.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// A program of the workspace, as it was built beside this test.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let program = built().join(name);
    assert!(
        program.exists(),
        "{name} is not built: run `cargo build -p {name}` first, or test the workspace"
    );
    program
}

/// The commands of `headstart-lab` that are not commands of `headstart`, too.
const LAB: [&[&str]; 5] =
    [&["simulate"], &["replay"], &["trace", "plot"], &["trace", "stats"], &["trace", "synthesize"]];

/// The name of the program that has the command of `words`.
#[must_use]
pub fn program_of(words: &str) -> &'static str {
    let words: Vec<_> = words.split_whitespace().collect();
    if LAB.iter().any(|command| words.starts_with(command)) { "headstart-lab" } else { "headstart" }
}

/// A directory that is removed with the test.
pub struct Scene {
    dir: TempDir,
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Scene {
    /// A scene in the directory of builds.
    #[must_use]
    pub fn new() -> Self {
        // The system's temporary directory is not used: it may be in memory, and without room or holes.
        let target = built().parent().unwrap().join("tmp");
        fs::create_dir_all(&target).unwrap();
        Self::within(&target)
    }

    /// A scene on another file system.
    pub fn within(dir: &Path) -> Self {
        Self { dir: TempDir::with_prefix_in("e2e-", dir).unwrap() }
    }

    /// The path of a file in the scene.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command of `words`, separated by blanks, to be run in the scene's directory by the program that has it
    /// ([`program_of`]). `~` in a word stands for that directory: `file://~/store:tag`.
    pub fn command(&self, words: &str) -> Command {
        self.command_of(program_of(words), words)
    }

    /// The command of `words` as [`Scene::command`] makes it, to be run by the program of this name.
    #[must_use]
    pub fn command_of(&self, name: &str, words: &str) -> Command {
        let mut command = Command::new(program(name));
        let dir = self.dir.path().to_str().unwrap();
        command.args(words.split_whitespace().map(|word| word.replace('~', dir)));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, words: &str) -> CommandRun {
        CommandRun::of(words, &mut self.command(words))
    }

    /// Runs a command, which has to succeed.
    pub fn ok(&self, words: &str) -> CommandRun {
        self.run(words).succeeds()
    }

    /// Runs a command with `--json`, which has to succeed; returns its output.
    pub fn json(&self, words: &str) -> Value {
        self.ok(&format!("{words} --json")).json()
    }

    /// Runs a command, which has to fail with status 1 and all of `parts` in its message.
    pub fn fails(&self, words: &str, parts: &[&str]) -> CommandRun {
        self.run(words).fails(parts)
    }

    /// Starts a command, to be watched or disturbed.
    pub fn start(&self, words: &str) -> Started {
        Started::new(words, &mut self.command(words))
    }

    /// The content of a file of the scene.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// The names in a directory, hidden ones included, sorted.
    #[track_caller]
    pub fn names(&self, dir: &str) -> Vec<String> {
        names(&self.path(dir))
    }

    /// Every file under a directory with a hash of its content; and empty directories.
    pub fn fingerprint(&self, dir: &str) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![self.path(dir)];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    found.insert(path.clone(), "directory".to_owned());
                    dirs.push(path);
                } else {
                    let sum = sha256(&fs::read(&path).unwrap());
                    found.insert(path, sum);
                }
            }
        }
        found
    }

    /// Waits until no process holds a lock on the files of a directory that this test itself has used: a program that
    /// another test is about to start has all open files of this process for a moment.
    pub fn wait_until_unlocked(&self, dir: &str) {
        let until = Instant::now() + TIME_LIMIT;
        let files =
            || self.names(dir).into_iter().filter_map(|name| self.path(dir).join(name).metadata().ok());
        let is_locked = || {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            files().any(|file| locks.contains(&format!(":{} ", file.ino())))
        };
        while is_locked() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The file of a blob.
    pub fn blob(&self, store: &str, digest: &Value) -> PathBuf {
        let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        self.path(store).join("blobs/sha256").join(digest)
    }

    /// The manifest of an image, read without the program's help.
    pub fn manifest(&self, store: &str, digest: &Value) -> Value {
        serde_json::from_slice(&fs::read(self.blob(store, digest)).unwrap()).unwrap()
    }
}

/// The sha256 of bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The end of a command.
pub struct CommandRun {
    /// The command.
    pub words: String,
    /// The exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// The text on standard output.
    pub stdout: String,
    /// The text on standard error.
    pub stderr: String,
}

impl CommandRun {
    /// Runs a command; one that hangs or panics fails the test in any case.
    pub fn of(words: &str, command: &mut Command) -> Self {
        Started::new(words, command).finish()
    }

    /// The same, which has to have succeeded without a message.
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.status, Some(0), "{self}");
        assert_eq!(self.stderr, "", "{self}");
        self
    }

    /// The same, which has to have failed with status 1 and all of `parts` in its only message.
    #[track_caller]
    pub fn fails(self, parts: &[&str]) -> Self {
        assert_eq!(self.status, Some(1), "{self}");
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in it\n{self}");
        }
        let program = program_of(&self.words);
        assert!(self.stderr.starts_with(&format!("{program}: ")) && self.stderr.ends_with('\n'), "{self}");
        assert_eq!(self.stderr.lines().count(), 1, "{self}");
        self
    }

    /// Its report, which is JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}\n{self}"))
    }
}

impl std::fmt::Display for CommandRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { words, status, stdout, stderr } = self;
        let program = program_of(words);
        write!(f, "{program} {words}\nstatus {status:?}\n--- stdout\n{stdout}--- stderr\n{stderr}---")
    }
}

/// A running command.
pub struct Started {
    words: String,
    child: Child,
    since: Instant,
}

impl Started {
    /// Starts a command, whose words a failure names.
    pub fn new(words: &str, command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self { words: words.to_owned(), child: child.unwrap(), since: Instant::now() }
    }

    /// The process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until `happened`, which must be before the command ends.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut happened: impl FnMut() -> bool) {
        while !happened() {
            assert!(self.is_running(), "`{}` ended before {what}", self.words);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// `true` if it still runs. One that runs for too long is killed, and the test fails.
    pub fn is_running(&mut self) -> bool {
        let running = self.child.try_wait().unwrap().is_none();
        if running && self.since.elapsed() > TIME_LIMIT {
            self.child.kill().unwrap();
            panic!("`{}` hangs", self.words);
        }
        running
    }

    /// Waits for the end.
    pub fn finish(mut self) -> CommandRun {
        let outputs = Outputs::of(&mut self.child);
        let mut pause = Duration::from_micros(200);
        while self.is_running() {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        let status = self.child.wait().unwrap().code();
        let [stdout, stderr] = outputs.all(&self.words).map(|bytes| String::from_utf8(bytes).unwrap());
        let run = CommandRun { words: std::mem::take(&mut self.words), status, stdout, stderr };
        assert!(run.status != Some(101) && !run.stderr.contains("panicked"), "{run}");
        run
    }
}

/// A test that fails leaves no running process behind.
impl Drop for Started {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let until = Instant::now() + Duration::from_secs(10);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Both outputs of a child, emptied while it runs, so that it never waits for this process.
struct Outputs([mpsc::Receiver<Vec<u8>>; 2]);

impl Outputs {
    fn of(child: &mut Child) -> Self {
        fn collect(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
            let (send, receive) = mpsc::channel();
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                from.map(|mut from| from.read_to_end(&mut bytes).unwrap());
                // The test may have failed by then.
                let _ = send.send(bytes);
            });
            receive
        }
        Self([collect(child.stdout.take()), collect(child.stderr.take())])
    }

    /// All the output of a child that has ended. Its own children may hold the outputs open, but not for ever.
    #[track_caller]
    fn all(self, name: &str) -> [Vec<u8>; 2] {
        self.0.map(|output| {
            let bytes = output.recv_timeout(TIME_LIMIT);
            bytes.unwrap_or_else(|_| panic!("`{name}` ended, but its output does not"))
        })
    }
}

/// Runs a command to its end, which has to come in time.
#[track_caller]
pub fn output_of(command: &mut Command) -> io::Result<Output> {
    let name = command.get_program().display().to_string();
    let mut child = command.spawn()?;
    let outputs = Outputs::of(&mut child);
    let until = Instant::now() + TIME_LIMIT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            None => {
                child.kill()?;
                panic!("`{name}` hangs");
            }
        }
    };
    let [stdout, stderr] = outputs.all(&name);
    Ok(Output { status, stdout, stderr })
}

/// Runs another program, which has to succeed.
#[track_caller]
pub fn run_tool(program: &str, args: &[&str], dir: &Path) -> Output {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let mut command = Command::new(program);
    command.args(&args).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = output_of(&mut command);
    let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{program} {args:?}: {}\n{text}", output.status);
    output
}
