//! Several processes on one cache, killed and short of space.
//!
//! Method: this program starts itself, with one ignored test chosen that acts as the other process, as the environment
//! tells it, and talks to it through its standard streams.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a failed step is a failed test"
)]
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a child speaks so, and waits between looks"
)]

use headstart_block::{ByteRange, ReadAt};
use headstart_cache::{BlobSpec, Cache, CacheSettings, CachedBlob, WaitHint};
use headstart_testkit::wait::{wait_for, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const UNIT: u64 = 16384;
const LEN: u64 = 4 << 20;
const ROLE: &str = "HEADSTART_CACHE_TEST_ROLE";
const DIR: &str = "HEADSTART_CACHE_TEST_DIR";
/// The longest time of a test: one that hangs fails.
const DEADLINE: Duration = Duration::from_secs(60);

struct Sample {
    bytes: Vec<u8>,
    outboard: Vec<u8>,
    spec: BlobSpec,
}

fn sample() -> Sample {
    let bytes: Vec<u8> =
        (0..LEN).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1).collect();
    let (spec, outboard) = BlobSpec::of(&bytes).unwrap();
    Sample { bytes, outboard, spec }
}

impl Sample {
    fn open(&self, dir: &Path, size_limit: Option<u64>) -> (Arc<Cache>, Arc<CachedBlob>) {
        let cache = Cache::open(dir, CacheSettings { size_limit, ..CacheSettings::default() }).unwrap();
        let blob = cache.blob(&self.spec).unwrap();
        (cache, blob)
    }

    fn part(&self, range: ByteRange) -> &[u8] {
        &self.bytes[range.offset() as usize..range.end() as usize]
    }

    fn fill(&self, blob: &CachedBlob, range: ByteRange) {
        let mut pages = Vec::new();
        blob.tree_missing(range, &mut |run| pages.push(run));
        for run in pages {
            let page = &self.outboard[run.offset() as usize..run.end() as usize];
            blob.tree().unwrap().insert(run.offset(), page).unwrap();
        }
        blob.insert(range.offset(), self.part(range)).unwrap();
    }

    /// Reads all local units; returns their number.
    fn check(&self, blob: &CachedBlob) -> u64 {
        let all = ByteRange::between(0, LEN).parts(UNIT);
        let mut buf = vec![0; UNIT as usize];
        let mut right = |unit: ByteRange| {
            let read = blob.read_at(&mut buf, unit.offset()).is_ok();
            assert!(!read || buf == self.part(unit), "wrong bytes in {unit}");
            read
        };
        all.filter(|unit| right(*unit)).count() as u64
    }

    /// Pulls a range as a disk does; returns the number of bytes fetched.
    fn pull(&self, blob: &Arc<CachedBlob>, range: ByteRange) -> u64 {
        let started = Instant::now();
        let mut fetched = 0;
        while !blob.is_local(range) {
            assert!(started.elapsed() < DEADLINE, "waits for ever");
            let claim = blob.claim(range).unwrap();
            for run in claim.owned() {
                fetched += run.len();
                self.fill(blob, *run);
            }
            if let WaitHint::Poll(pause) = claim.wait_hint() {
                drop(claim);
                std::thread::sleep(pause);
            }
        }
        fetched
    }
}

/// The other process, killed when dropped.
struct Other {
    child: Child,
    to: ChildStdin,
    /// The lines that it writes, in order.
    lines: Receiver<String>,
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

impl Other {
    fn start(role: &str, dir: &Path, wrapper: &[&str]) -> Self {
        let me = std::env::current_exe().unwrap();
        let mut command = match wrapper {
            [] => Command::new(&me),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&me);
                command
            }
        };
        command
            .args(["--exact", "the_other_process", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(DIR, dir);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (line, lines) = channel();
        std::thread::spawn(move || from.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
        Self { child, to, lines }
    }

    /// The next line that it writes.
    fn says(&mut self) -> String {
        let until = Instant::now() + DEADLINE;
        loop {
            let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|why| panic!("it says nothing: {why}"));
            if let Some((_, text)) = line.split_once("SAYS ") {
                return text.trim().to_owned();
            }
        }
    }

    /// Waits until the process ends by itself, with success.
    fn ends(mut self) {
        let status = wait_for("the other process has ended", DEADLINE, || {
            self.child.try_wait().unwrap().ok_or("it runs")
        });
        assert!(status.success(), "{status}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn say(text: impl std::fmt::Display) {
    println!("SAYS {text}");
    std::io::stdout().flush().unwrap();
}

/// Waits until the parent writes a line or is gone.
fn wait_for_parent() {
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

#[test]
#[ignore = "the child of other tests"]
fn the_other_process() {
    let (Ok(role), Some(dir)) = (std::env::var(ROLE), std::env::var_os(DIR)) else { return };
    let dir = Path::new(&dir);
    let sample = sample();
    match role.as_str() {
        "claims and pins" => {
            let (_cache, blob) = sample.open(dir, None);
            sample.fill(&blob, ByteRange::between(0, 16 * UNIT));
            let claim = blob.claim(ByteRange::between(0, 32 * UNIT)).unwrap();
            let _pin = blob.pin(ByteRange::between(0, 4 * UNIT)).unwrap();
            say(claim.owned().len());
            wait_for_parent();
        }
        "inserts without end" => {
            let (cache, blob) = sample.open(dir, None);
            say("begins");
            for round in 0.. {
                for unit in ByteRange::between(0, LEN).parts(UNIT) {
                    sample.fill(&blob, unit);
                }
                cache.sync().unwrap();
                if round % 2 == 0 {
                    let _ = cache.prune(LEN / 4);
                } else {
                    blob.discard(ByteRange::between(0, LEN / 2)).unwrap();
                }
            }
        }
        "pulls" => {
            let (_cache, blob) = sample.open(dir, None);
            say("ready");
            wait_for_parent();
            let parts = ByteRange::between(0, LEN).parts(5 * UNIT);
            let fetched: u64 = parts.map(|part| sample.pull(&blob, part)).sum();
            say(fetched);
        }
        "runs out of space" => {
            let (cache, blob) = sample.open(dir, None);
            let half = ByteRange::between(0, LEN / 2);
            for part in half.parts(4 * UNIT) {
                sample.fill(&blob, part);
                assert!(blob.is_local(part));
            }
            assert!(sample.check(&blob) >= half.len() / UNIT);
            say(cache.counters().bypassed_bytes);
            say(blob.local_bytes());
            wait_for_parent();
            wait_until("the disk is tried again", DEADLINE, || !blob.is_bypassed());
            sample.fill(&blob, ByteRange::between(LEN / 2, LEN / 2 + UNIT));
            say(blob.local_bytes());
        }
        role => panic!("{role}?"),
    }
}

#[test]
fn claims_and_pins_of_a_killed_process_are_free() {
    let dir = tempfile::tempdir().unwrap();
    let sample = sample();
    let mut other = Other::start("claims and pins", dir.path(), &[]);
    assert_eq!(other.says(), "1");
    let (cache, blob) = sample.open(dir.path(), None);
    let wanted = ByteRange::between(0, 40 * UNIT);
    let claim = blob.claim(wanted).unwrap();
    assert_eq!(claim.owned(), [ByteRange::between(32 * UNIT, 40 * UNIT)]);
    assert!(matches!(claim.wait_hint(), WaitHint::Poll(_)));
    drop(claim);
    cache.prune(0).unwrap();
    assert_eq!(blob.local_bytes(), 4 * UNIT, "what it has pinned stays");
    other.kill();
    let claim = blob.claim(wanted).unwrap();
    assert_eq!(claim.owned(), [ByteRange::between(4 * UNIT, 40 * UNIT)]);
    assert_eq!(claim.wait_hint(), WaitHint::Nothing);
    cache.prune(0).unwrap();
    assert_eq!(blob.local_bytes(), 0);
}

#[test]
fn a_process_killed_at_any_moment_leaves_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let sample = sample();
    let (cache, blob) = sample.open(dir.path(), None);
    // Files that another process makes are found by the first claim.
    drop(blob.claim(ByteRange::between(0, LEN)).unwrap());
    let mut seen = 0;
    for round in 0..12 {
        let mut other = Other::start("inserts without end", dir.path(), &[]);
        other.says();
        std::thread::sleep(Duration::from_millis(7 * round));
        seen += sample.check(&blob);
        other.kill();
        seen += sample.check(&blob);
        // A handle that opens the cache now sees the same.
        let (_, anew) = sample.open(dir.path(), None);
        assert_eq!(anew.local_bytes(), blob.local_bytes());
        assert_eq!(sample.check(&anew), sample.check(&blob));
    }
    assert!(seen > 0);
    cache.prune(0).unwrap();
    assert_eq!(sample.pull(&blob, ByteRange::between(0, LEN)), LEN);
}

#[test]
fn processes_fetch_each_range_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut others: Vec<_> = (0..3).map(|_| Other::start("pulls", dir.path(), &[])).collect();
    for other in &mut others {
        assert_eq!(other.says(), "ready");
    }
    for other in &mut others {
        other.to.write_all(b"go\n").unwrap();
    }
    let fetched: u64 = others.iter_mut().map(|other| other.says().parse::<u64>().unwrap()).sum();
    assert_eq!(fetched, LEN);
    others.into_iter().for_each(Other::ends);
}

#[test]
fn a_limit_on_file_sizes_is_bypassed() {
    let dir = tempfile::tempdir().unwrap();
    // dash counts in 512 bytes: files of up to 1 MiB. The signal would end the process.
    let wrapper = ["sh", "-c", "trap '' XFSZ; ulimit -f 2048; exec \"$@\"", "sh"];
    let mut other = Other::start("runs out of space", dir.path(), &wrapper);
    // Not even an empty data file of the full length can be made: all of it goes through memory.
    assert_eq!((other.says().parse(), other.says().parse()), (Ok(LEN / 2), Ok(0)));
    other.to.write_all(b"go\n").unwrap();
    assert_eq!(other.says(), "0");
    other.ends();
}

/// A file system of 2 MiB, while it lives.
struct Mount(std::path::PathBuf);

impl Mount {
    fn new(path: &Path) -> Option<Self> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(path).output();
        mount.is_ok_and(|output| output.status.success()).then(|| Self(path.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_bypassed_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::new(dir.path()) else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no small file system can be mounted (root only)");
        return;
    };
    let ballast = dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let mut other = Other::start("runs out of space", &dir.path().join("cache"), &[]);
    let (bypassed, local): (u64, u64) = (other.says().parse().unwrap(), other.says().parse().unwrap());
    assert!(local > 0 && bypassed > 0 && local + bypassed >= LEN / 2, "{local} local, {bypassed} bypassed");
    std::fs::remove_file(&ballast).unwrap();
    other.to.write_all(b"go\n").unwrap();
    let after: u64 = other.says().parse().unwrap();
    assert_eq!(after, local + UNIT);
    other.ends();
}
