//! A directory of traces: one Parquet file a boot.
//!
//! Any number of processes write into it at the same time. A file gets its name by being renamed, so a process that
//! lists the directory sees whole files only; a trace that is written again replaces itself. Names start with the
//! trace's time of creation ([`Creation::created_us`]), so that the order of names is that of time:
//!
//! ```text
//! 20261121T185743.000000Z-VOLUME.parquet
//! ```
//!
//! To keep the [`DirectoryLimits`], the oldest traces are removed first. Files of other names do not count towards the
//! limits and are left alone, except for unfinished files of this module that are older than an hour: these are
//! removed, too. Two processes that remove the same file at the same time do no harm.

use crate::fast26::escape;
use crate::file::encode;
use crate::trace::{Creation, Trace};
use chrono::{DateTime, NaiveDateTime};
use headstart_block::guarded::{not_made_in, refuse_links};
use headstart_block::{Error, Result, exact, sync_dir};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const EXTENSION: &str = ".parquet";
/// The prefix of files that do not have their final name yet.
const UNFINISHED: &str = ".unfinished-";
/// The age from which on a file without its final name counts as left behind by a killed process.
const ABANDONED: Duration = Duration::from_secs(3600);
/// The start of a name: the time, to the microsecond.
const TIME_FORMAT: &str = "%Y%m%dT%H%M%S%.6fZ";
const TIME_LEN: usize = "20261121T185743.000000Z".len();
/// Longest part of a name that is taken from the volume's.
const VOLUME_MAX: usize = 128;
/// The last microsecond of the year 9999: later ones have names that are not in order.
const LAST_US: u64 = 253_402_300_799_999_999;

/// The limits of a trace directory, kept by removing the oldest traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryLimits {
    /// The maximum total size of the traces, in bytes. `None`: no limit.
    pub bytes_max: Option<u64>,
    /// The time for which a trace is kept, from its time of creation ([`Creation::created_us`]) on. `None`: no limit.
    pub age_max: Option<Duration>,
}

/// A directory with a Parquet file for the trace of each boot.
#[derive(Debug)]
pub struct TraceDirectory {
    dir: PathBuf,
    limits: DirectoryLimits,
    evicted: AtomicU64,
}

impl TraceDirectory {
    /// Opens the directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`](headstart_block::ErrorKind::Denied) if the path leads through a symbolic link
    /// that belongs neither to root nor to this user; errors of the operating system.
    pub fn open(dir: &Path, limits: DirectoryLimits) -> Result<Self> {
        refuse_links(dir)?;
        fs::create_dir_all(dir).map_err(|e| not_made_in(dir, "cannot be made", e).about(dir.display()))?;
        Ok(Self { dir: dir.to_owned(), limits, evicted: AtomicU64::new(0) })
    }

    /// The path of the directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of traces that [`evict`](Self::evict) and [`evict_one`](Self::evict_one) removed through this
    /// value, to keep the limits or to make room.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Writes a trace to a file in the directory and returns the path of the file. An earlier trace of the same
    /// creation (time and volume) is replaced. No trace is removed to keep the limits; [`evict`](Self::evict) does
    /// that. If `durable` is `true`, the file survives a loss of power.
    ///
    /// # Errors
    /// Those of [`encode`], and errors of the operating system.
    pub fn save(&self, trace: &Trace, durable: bool) -> Result<PathBuf> {
        let path = self.dir.join(file_name(&trace.creation));
        let about = |e| not_made_in(&self.dir, "cannot be written", e).about(path.display());
        let bytes = encode(trace).map_err(|e| e.about(path.display()))?;
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.dir).map_err(about)?;
        file.write_all(&bytes).map_err(about)?;
        if durable {
            file.as_file().sync_all().map_err(about)?;
        }
        file.persist(&path).map_err(|e| about(e.error))?;
        if durable {
            sync_dir(&self.dir).map_err(about)?;
        }
        Ok(path)
    }

    /// Removes the trace of a creation; does nothing if there is none.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn remove(&self, creation: &Creation) -> Result<()> {
        let path = self.dir.join(file_name(creation));
        remove(&path).map(drop).map_err(|e| Error::io("cannot be removed", e).about(path.display()))
    }

    /// Removes the trace of a creation to make room for others, and counts it in [`evicted`](Self::evicted);
    /// does nothing if there is none.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn evict_one(&self, creation: &Creation) -> Result<()> {
        let path = self.dir.join(file_name(creation));
        let was_there = remove(&path).map_err(|e| Error::io("cannot be removed", e).about(path.display()))?;
        self.evicted.fetch_add(u64::from(was_there), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the paths of all files in `dir` whose names end in `.parquet` and do not begin with a dot, in the order
    /// of the names. Of the traces that headstart wrote, the oldest comes first.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn list(dir: &Path) -> Result<Vec<PathBuf>> {
        let about = |e| Error::io("cannot be listed", e).about(dir.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).map_err(about)? {
            let name = entry.map_err(about)?.file_name();
            // Other people's Parquet files may have any name.
            if name.to_str().is_some_and(|name| name.ends_with(EXTENSION) && !name.starts_with('.')) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names.into_iter().map(|name| dir.join(name)).collect())
    }

    /// Removes the oldest traces until the limits are kept, and also unfinished files that are older than an hour,
    /// because processes that were killed have left them behind.
    ///
    /// # Errors
    /// Errors of the operating system.
    #[expect(clippy::disallowed_methods, reason = "the age of files counts from now")]
    pub fn evict(&self) -> Result<()> {
        self.evict_at(SystemTime::now())
            .map_err(|e| Error::io("cannot be cleaned up", e).about(self.dir.display()))
    }

    fn evict_at(&self, now: SystemTime) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            // Another process may have removed it by now.
            let Ok(meta) = entry.metadata() else { continue };
            if name.starts_with(UNFINISHED) {
                let age = meta.modified().ok().and_then(|then| now.duration_since(then).ok());
                if age.is_some_and(|age| age > ABANDONED) {
                    remove(&entry.path())?;
                }
            } else if let Some(created) = created(&name) {
                files.push((name, created, meta.len()));
            }
        }
        files.sort_unstable();
        let mut bytes: u64 = files.iter().map(|(_, _, len)| len).sum();
        let oldest = self.limits.age_max.and_then(|age| now.checked_sub(age));
        for (name, created, len) in files {
            let too_old = oldest.is_some_and(|oldest| created < oldest);
            let too_many = self.limits.bytes_max.is_some_and(|max| bytes > max);
            if !too_old && !too_many {
                break;
            }
            if remove(&self.dir.join(name))? {
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
            bytes -= len;
        }
        Ok(())
    }
}

/// Removes a file; returns `true` if it was there.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// The name of a trace's file.
fn file_name(creation: &Creation) -> String {
    let micros = exact(creation.created_us.min(LAST_US), "LAST_US is a date");
    let time = DateTime::from_timestamp_micros(micros).unwrap_or_default().format(TIME_FORMAT);
    let mut volume = escape(&creation.volume);
    if volume.len() > VOLUME_MAX {
        volume = format!("{}-{:016x}", &volume[..VOLUME_MAX - 17], fnv(creation.volume.as_bytes()));
    }
    format!("{time}-{volume}{EXTENSION}")
}

/// The time at which the trace of this name was created; `None` if it is not one of ours.
fn created(name: &str) -> Option<SystemTime> {
    let (time, rest) = name.split_at_checked(TIME_LEN)?;
    let time = NaiveDateTime::parse_from_str(time, TIME_FORMAT).ok()?;
    let micros = u64::try_from(time.and_utc().timestamp_micros()).ok()?;
    (rest.starts_with('-') && rest.ends_with(EXTENSION))
        .then(|| SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
}

/// Fowler, Noll and Vo's hash (1a): it tells long names apart that begin alike.
fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, clippy::panic, reason = "the age of files counts from now; tests")]
mod tests {
    use super::*;
    use crate::file::{ReadLimits, read_file};

    const SECOND: u64 = 1_000_000;

    fn trace(volume: &str, created_us: u64) -> Trace {
        let creation = Creation { volume: volume.to_owned(), created_us, ..Creation::default() };
        Trace { creation, ..Trace::default() }
    }

    fn names(dir: &Path) -> Vec<String> {
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        TraceDirectory::list(dir).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn names_are_in_the_order_of_time_and_safe() {
        let name = |volume: &str, us| file_name(&trace(volume, us).creation);
        assert_eq!(name("10000000", 1_795_287_463 * SECOND + 7), "20261121T185743.000007Z-10000000.parquet");
        assert_eq!(name("../a b", 0), "19700101T000000.000000Z-%2E.%2Fa%20b.parquet");
        let long = name(&"x".repeat(1000), u64::MAX);
        assert!(long.starts_with("99991231T235959.999999Z-xxx") && long.len() < 200, "{long}");
        assert_ne!(long, name(&format!("{}y", "x".repeat(999)), u64::MAX));
        assert_eq!(created(&long).unwrap(), SystemTime::UNIX_EPOCH + Duration::from_micros(LAST_US));
        for foreign in
            ["a.parquet", "20261121T185743.000007Z-a.txt", "é", "20261321T185743.000007Z-a.parquet"]
        {
            assert_eq!(created(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_trace_replaces_itself() {
        let dir = tempfile::tempdir().unwrap();
        let directory = TraceDirectory::open(&dir.path().join("a/b"), DirectoryLimits::default()).unwrap();
        let mut trace = trace("v", 5);
        let first = directory.save(&trace, false).unwrap();
        trace.dropped = 3;
        assert_eq!(directory.save(&trace, true).unwrap(), first);
        assert_eq!(names(directory.dir()).len(), 1);
        assert_eq!(read_file(&first, &ReadLimits::default()).unwrap(), trace);
    }

    #[test]
    fn the_oldest_go_first_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let one = encode(&trace("v", 0)).unwrap().len() as u64;
        let limits =
            DirectoryLimits { bytes_max: Some(3 * one + 50), age_max: Some(Duration::from_secs(100)) };
        let directory = TraceDirectory::open(dir.path(), limits).unwrap();
        for file in ["foreign.parquet", "README", ".unfinished-x"] {
            fs::write(dir.path().join(file), vec![0; 4096]).unwrap();
        }
        for seconds in [500, 100, 300, 400, 200] {
            directory.save(&trace("v", seconds * SECOND), false).unwrap();
        }
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        directory.evict_at(at(500)).unwrap();
        assert_eq!(directory.evicted(), 3);
        assert_eq!(names(dir.path()).len(), 3);
        directory.evict_at(at(550)).unwrap();
        assert_eq!(names(dir.path()).len(), 2);
        assert!(dir.path().join(".unfinished-x").exists());
        directory.evict_at(SystemTime::now() + 2 * ABANDONED).unwrap();
        assert_eq!(names(dir.path()), ["foreign.parquet"]);
        assert!(!dir.path().join(".unfinished-x").exists() && dir.path().join("README").exists());
        assert_eq!(directory.evicted(), 5);
    }

    #[test]
    fn many_threads_write_traces_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let limits = DirectoryLimits { bytes_max: Some(8 << 10), age_max: None };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let directory = TraceDirectory::open(dir.path(), limits).unwrap();
                scope.spawn(move || {
                    for n in 0..50 {
                        directory.save(&trace(&format!("{thread}"), n * SECOND), false).unwrap();
                        directory.evict().unwrap();
                        for path in TraceDirectory::list(directory.dir()).unwrap() {
                            match read_file(&path, &ReadLimits::default()) {
                                Err(e) if e.kind() != headstart_block::ErrorKind::NotFound => panic!("{e}"),
                                _ => {}
                            }
                        }
                    }
                });
            }
        });
        let bytes: u64 =
            TraceDirectory::list(dir.path()).unwrap().iter().map(|p| p.metadata().unwrap().len()).sum();
        assert!(bytes <= 8 << 10, "{bytes}");
    }
}
