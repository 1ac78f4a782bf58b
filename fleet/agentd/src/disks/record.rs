//! The record of a disk for the next agent.

use super::{DiskSpec, file};
use headstart_block::{Error, Result};
use headstart_daemon::file::{Readers, replace};
use headstart_daemon::names::check_disk_name;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The version that this release writes. Older ones are read as long as such files exist.
const VERSION: u32 = 1;

/// The largest accepted length of a record, in bytes.
const LEN_MAX: u64 = 1 << 20;

/// Options of `headstart attach` with a rate. Version 0.1 took it without a unit, too: in bytes a second.
const RATES: [&str; 2] = ["--limit-rate", "--fill"];

/// A disk that is attached, or is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    #[serde(flatten)]
    pub(super) spec: DiskSpec,
    /// `true` if it was ready once.
    pub(super) served: bool,
    /// The number of times that its process was started again.
    pub(super) restarts: u64,
    /// `true` if its process was asked to end.
    #[serde(default)]
    pub(super) detaching: bool,
    /// `true` if one of its processes has recorded its images: those of version 0.1.0 do not. From then on the disk is
    /// not served without that file.
    #[serde(default)]
    pub(super) has_images: bool,
}

impl Record {
    pub(super) fn new(spec: DiskSpec) -> Self {
        Self { version: VERSION, spec, served: false, restarts: 0, detaching: false, has_images: false }
    }

    /// Replaces the record before this one atomically.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let text =
            serde_json::to_vec_pretty(self).map_err(|e| Error::invalid("is not a record").caused_by(e))?;
        replace(&file(dir, &self.spec.name, "json"), &text, Readers::Owner)
    }

    /// Removes all files of a disk.
    pub(super) fn remove(&self, dir: &Path) {
        for ending in ["json", "pid", "images", "socket", "out", "log", "log.1", "space", "space.new"] {
            let _ = fs::remove_file(file(dir, &self.spec.name, ending));
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let about = |e: Error| e.about(path.display());
        let text =
            headstart_daemon::file::read(path, LEN_MAX)?.ok_or_else(|| about(Error::corrupt("is gone")))?;
        let mut record: Self = serde_json::from_slice(&text)
            .map_err(|e| about(Error::corrupt("is not a record of a disk").caused_by(e)))?;
        if record.version != VERSION {
            return Err(about(
                Error::unsupported(format!("is a record of version {}", record.version))
                    .remedy("start the agent of the release that wrote it"),
            ));
        }
        check_disk_name(&record.spec.name).map_err(about)?;
        if *path != *file(path.parent().unwrap_or(Path::new("")), &record.spec.name, "json") {
            return Err(about(Error::corrupt("is the record of another disk")));
        }
        add_units(&mut record.spec.arguments);
        Ok(record)
    }
}

/// The part of a disk's record that its process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Recorded {
    /// `true` if the disk was ready once.
    pub(super) served: bool,
    /// `true` if its images were recorded.
    #[serde(default)]
    pub(super) has_images: bool,
}

impl Recorded {
    /// Reads the record of a process's disk, if there is one.
    ///
    /// # Errors
    /// If the record cannot be read or understood.
    pub(super) fn of(pid_file: &Path) -> Result<Option<Self>> {
        let path = pid_file.with_extension("json");
        let Some(text) = headstart_daemon::file::read(&path, LEN_MAX)? else { return Ok(None) };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| Error::corrupt("is not a record of a disk").caused_by(e).about(path.display()))
    }
}

/// Returns `true` if the disk with this PID file must not be started again after its process ends, because it is being
/// detached or the agent has no record of it. A record that cannot be read does not count as missing: the result is
/// `false`.
#[must_use]
pub fn ends_for_good(pid_file: &Path) -> bool {
    match headstart_daemon::file::read(&pid_file.with_extension("json"), LEN_MAX) {
        Ok(None) => true,
        Ok(Some(text)) => serde_json::from_slice(&text).is_ok_and(|record: Record| record.detaching),
        Err(_) => false,
    }
}

/// Adds the unit to rates without one.
fn add_units(arguments: &mut [String]) {
    let mut is_rate = false;
    for word in arguments {
        let named = word.split_once('=').filter(|(option, _)| RATES.contains(option));
        let value = if is_rate { Some(word.as_str()) } else { named.map(|(_, value)| value) };
        let has_none = value
            .is_some_and(|value| !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit() || c == b'.'));
        is_rate = RATES.contains(&word.as_str());
        if has_none {
            word.push_str("B/s");
        }
    }
}

/// All records in a directory, by name.
pub(super) fn all(dir: &Path) -> Result<Vec<Result<Record>>> {
    let about = |e| Error::io("cannot list", e).about(dir.display());
    let mut paths = Vec::<PathBuf>::new();
    for entry in fs::read_dir(dir).map_err(about)? {
        let path = entry.map_err(about)?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths.iter().map(|path| Record::read(path)).collect())
}

/// A line of a file that is JSON and has this field.
pub(super) fn line_with(path: &Path, field: &str) -> Option<serde_json::Value> {
    let text = match fs::read_to_string(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return None,
        read => read.ok()?,
    };
    // The last line may not be whole yet.
    let whole = &text[..text.rfind('\n')?];
    whole
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|value| value.get(field).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> DiskSpec {
        DiskSpec {
            name: name.to_owned(),
            arguments: vec!["file:///x:y".to_owned()],
            directory: None,
            holder: None,
        }
    }

    #[test]
    fn records_round_trip_and_damaged_ones_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record { served: true, restarts: 3, ..Record::new(spec("a")) };
        record.write(dir.path()).unwrap();
        Record::new(spec("b")).write(dir.path()).unwrap();
        fs::write(dir.path().join("c.json"), "{").unwrap();
        fs::rename(dir.path().join("b.json"), dir.path().join("d.json")).unwrap();
        let text = fs::read_to_string(dir.path().join("a.json")).unwrap();
        fs::write(dir.path().join("e.json"), text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        fs::write(dir.path().join("f.json"), text.replace("\"a\"", "\"../a\"")).unwrap();
        let read = all(dir.path()).unwrap();
        assert_eq!(read.len(), 5);
        assert_eq!(*read[0].as_ref().unwrap(), record);
        assert!(read[1..].iter().all(Result::is_err), "{read:?}");
        record.remove(dir.path());
        assert!(!dir.path().join("a.json").exists());
    }

    #[test]
    fn a_disk_ends_for_good_where_it_is_detached_or_nobody_has_a_record() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("a.pid");
        assert!(ends_for_good(&pid_file));
        let mut record = Record { served: true, ..Record::new(spec("a")) };
        for detaching in [false, true] {
            record.detaching = detaching;
            record.write(dir.path()).unwrap();
            assert_eq!(ends_for_good(&pid_file), detaching);
        }
        fs::write(dir.path().join("a.json"), "{").unwrap();
        assert!(!ends_for_good(&pid_file));
        record.remove(dir.path());
        assert!(ends_for_good(&pid_file));
    }

    /// A record that the first release wrote.
    #[test]
    fn a_record_of_the_first_version_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"version":1,"name":"vm1","arguments":["oci://r/vm:1","--nbd","unix:/run/vm1.sock"],
                       "directory":"/","served":true,"restarts":2}"#;
        fs::write(dir.path().join("vm1.json"), text).unwrap();
        let read = all(dir.path()).unwrap();
        let record = read[0].as_ref().unwrap();
        assert_eq!((record.spec.arguments.len(), record.served, record.restarts), (3, true, 2));
        let words = r#""--limit-rate","5000000","--fill=200","--fill","2MB/s","--cache-size","7""#;
        fs::write(dir.path().join("vm1.json"), text.replace(r#""--nbd""#, &format!(r#"{words},"--nbd""#)))
            .unwrap();
        let read = all(dir.path()).unwrap();
        let words = ["--limit-rate", "5000000B/s", "--fill=200B/s", "--fill", "2MB/s", "--cache-size", "7"];
        assert_eq!(read[0].as_ref().unwrap().spec.arguments[1..8], words);
    }

    #[test]
    fn lines_are_found_by_what_they_have() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        assert_eq!(line_with(&path, "disks"), None);
        fs::write(&path, "{\"disks\":[]").unwrap();
        assert_eq!(line_with(&path, "disks"), None, "not whole yet");
        fs::write(&path, "nonsense\n{\"disks\":[]}\n{\"reads\":3}\n").unwrap();
        assert_eq!(line_with(&path, "reads").unwrap()["reads"], 3);
        assert!(line_with(&path, "disks").is_some());
    }
}
