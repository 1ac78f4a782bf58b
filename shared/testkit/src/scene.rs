//! The place of a test: a temporary directory, in which the test runs the programs of the workspace and reads their
//! output. The time limit of commands is 120 seconds.

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

/// The path of a program of this workspace in the build directory of the running test. Panics if the program
/// was not built.
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

/// The name of the program for a command line: `headstart-lab` if `words` begin with a command that only that
/// program has, otherwise `headstart`.
#[must_use]
pub fn program_of(words: &str) -> &'static str {
    let words: Vec<_> = words.split_whitespace().collect();
    if LAB.iter().any(|command| words.starts_with(command)) { "headstart-lab" } else { "headstart" }
}

/// A temporary directory for one test, in which the test runs commands. It is removed when this value is
/// dropped.
pub struct Scene {
    dir: TempDir,
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Scene {
    /// Creates a scene in the build directory. The system's temporary directory may be in memory, and too
    /// small.
    #[must_use]
    pub fn new() -> Self {
        // The system's temporary directory is not used: it may be in memory, and without room or holes.
        let target = built().parent().unwrap().join("tmp");
        fs::create_dir_all(&target).unwrap();
        Self::within(&target)
    }

    /// Creates a scene in a new directory within `dir`, such as on another file system.
    pub fn within(dir: &Path) -> Self {
        Self { dir: TempDir::with_prefix_in("e2e-", dir).unwrap() }
    }

    /// The path of the file or directory `name` in the scene.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Prepares a command with the arguments `words`, separated by blanks, to be run in the scene's directory
    /// by the program that [`program_of`] names. A `~` in a word is replaced by that directory:
    /// `file://~/store:tag`.
    pub fn command(&self, words: &str) -> Command {
        self.command_of(program_of(words), words)
    }

    /// Prepares a command as [`Scene::command`] does, for the program `name` of the workspace.
    #[must_use]
    pub fn command_of(&self, name: &str, words: &str) -> Command {
        let mut command = Command::new(program(name));
        let dir = self.dir.path().to_str().unwrap();
        command.args(words.split_whitespace().map(|word| word.replace('~', dir)));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs a command and waits for its end. Any exit status is accepted. Panics if the command panicked, or exceeds
    /// the time limit of commands (120 seconds).
    pub fn run(&self, words: &str) -> CommandRun {
        CommandRun::of(words, &mut self.command(words))
    }

    /// Runs a command and waits for its end. Panics unless its exit status is 0 and it prints nothing on
    /// standard error.
    pub fn ok(&self, words: &str) -> CommandRun {
        self.run(words).succeeds()
    }

    /// Runs a command with `--json` added, and returns its parsed output. Panics unless the command succeeds
    /// as in [`Scene::ok`].
    pub fn json(&self, words: &str) -> Value {
        self.ok(&format!("{words} --json")).json()
    }

    /// Runs a command and waits for its end. Panics unless its exit status is 1 and it prints one line on standard
    /// error, which begins with the program's name and `: ` and contains all of `parts`.
    pub fn fails(&self, words: &str, parts: &[&str]) -> CommandRun {
        self.run(words).fails(parts)
    }

    /// Runs a command line that is wrong. Panics unless its exit status is 2, it prints nothing on standard output, and
    /// what it prints on standard error contains all of `parts`.
    #[track_caller]
    pub fn is_wrong(&self, words: &str, parts: &[&str]) -> CommandRun {
        self.run(words).is_wrong(parts)
    }

    /// Starts a command and returns while it runs.
    pub fn start(&self, words: &str) -> Started {
        Started::new(words, &mut self.command(words))
    }

    /// The content of the file `name` in the scene. Panics if it cannot be read.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// The names of the entries in a directory of the scene, hidden ones included, sorted.
    #[track_caller]
    pub fn names(&self, dir: &str) -> Vec<String> {
        names(&self.path(dir))
    }

    /// All files and directories below a directory of the scene, by their full paths: for a file, the SHA-256 of its
    /// content in hexadecimal; for a directory, the word `directory`.
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

    /// Waits until no process holds a lock on a file of this directory of the scene. After 120 seconds, returns even
    /// if a file is still locked. A lock that this test has released may last a moment longer, in a child process that
    /// another test is just starting.
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

    /// The path of the blob with this digest (a JSON string, `sha256:...`) in `store`, a store that is a
    /// directory of the scene.
    pub fn blob(&self, store: &str, digest: &Value) -> PathBuf {
        let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        self.path(store).join("blobs/sha256").join(digest)
    }

    /// The parsed manifest with this digest in `store`, a store that is a directory of the scene. It is read
    /// directly from the file.
    pub fn manifest(&self, store: &str, digest: &Value) -> Value {
        serde_json::from_slice(&fs::read(self.blob(store, digest)).unwrap()).unwrap()
    }
}

/// The SHA-256 of `bytes`, as 64 lower-case hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The outcome of a command that has ended.
pub struct CommandRun {
    /// The arguments of the command, separated by blanks.
    pub words: String,
    /// The exit status; `None` if the command was ended by a signal.
    pub status: Option<i32>,
    /// All that the command printed on standard output.
    pub stdout: String,
    /// All that the command printed on standard error.
    pub stderr: String,
}

impl CommandRun {
    /// Runs a command and waits for its end. `words` name the command in messages. Panics if the command panicked, or
    /// exceeds the time limit of commands (120 seconds).
    pub fn of(words: &str, command: &mut Command) -> Self {
        Started::new(words, command).finish()
    }

    /// Returns this value. Panics unless the exit status is 0 and nothing is on standard error.
    #[track_caller]
    pub fn succeeds(self) -> Self {
        assert_eq!(self.status, Some(0), "{self}");
        assert_eq!(self.stderr, "", "{self}");
        self
    }

    /// Returns this value. Panics unless the exit status is 1 and standard error is one line that begins with the
    /// program's name and `: ` and contains all of `parts`.
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

    /// Returns this value. Panics unless the exit status is 2, standard output is empty, and standard error contains
    /// all of `parts`.
    #[track_caller]
    pub fn is_wrong(self, parts: &[&str]) -> Self {
        assert_eq!((self.status, self.stdout.as_str()), (Some(2), ""), "{self}");
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in it\n{self}");
        }
        self
    }

    /// The standard output, parsed as JSON. Panics if it is not JSON.
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

/// A command that was started and may still run. It is killed when this value is dropped. The time limit of a command
/// is 120 seconds from its start.
pub struct Started {
    words: String,
    child: Child,
    since: Instant,
}

impl Started {
    /// Starts a command. `words` name it in messages.
    pub fn new(words: &str, command: &mut Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self { words: words.to_owned(), child: child.unwrap(), since: Instant::now() }
    }

    /// The id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process. Panics if this value has noticed before that the process has ended.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until `happened` returns `true`. Panics with `what` if the command ends before that, and panics if the
    /// command exceeds the time limit of 120 seconds.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut happened: impl FnMut() -> bool) {
        while !happened() {
            assert!(self.is_running(), "`{}` ended before {what}", self.words);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns `true` if the command has not ended yet. Kills the command and panics if it exceeds the time limit of
    /// 120 seconds.
    pub fn is_running(&mut self) -> bool {
        let running = self.child.try_wait().unwrap().is_none();
        if running && self.since.elapsed() > TIME_LIMIT {
            self.child.kill().unwrap();
            panic!("`{}` hangs", self.words);
        }
        running
    }

    /// Waits until the command ends, and returns its outcome. Panics if the command panicked, or exceeds the time limit
    /// of 120 seconds. Also panics if children that the command left behind keep its output open for 120 seconds more.
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

/// Runs a command and waits for its end. Kills the command and panics if it exceeds the time limit of 120 seconds.
/// An output that the caller has not set to a pipe is empty in the result. Returns an error if the command cannot be
/// started.
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

/// Runs a program with the working directory `dir`, and returns its output. Panics unless the program succeeds within
/// 120 seconds.
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
