//! `state.json`: the description of a writable directory, and the list of its files that count.
//!
//! It is replaced as a whole: written under another name, synced, renamed over the old one, and the
//! directory synced. The files it names were synced before, so whichever of the two a crash leaves behind
//! describes a whole disk. Files it does not name are leftovers of an interrupted step.

use super::files::{Directory, STATE_NEW};
use super::log::LogEnd;
use crate::Segment;
use headstart_block::{Error, ErrorKind, Result, SECTOR_SIZE, to_usize};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(super) const STATE: &str = "state.json";
/// The beginning of the names of files in a writable disk's directory that hold a layer which the process that has the
/// disk open writes ahead of a commit. Another process that opens the disk removes them.
pub const SEALED_AHEAD: &str = "sealed-ahead.";
/// The version of a directory whose files are its own.
const VERSION: u32 = 1;
/// The version of a directory that may share files with others ([`State::shared`]). A program that does not know it
/// would give back space in these files that the other directories need, so that it must refuse the directory.
const VERSION_SHARED: u32 = 2;
/// Most pairs that a disk can have before they must be collected; a read may have to ask them all.
pub(super) const PAIRS_MAX: usize = 64;
/// A state is a few hundred bytes; anything larger is none.
const STATE_MAX: u64 = 1 << 20;

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// Version of the directory's form.
    pub(super) version: u32,
    /// Id of the disk; pair number n has this plus n.
    pub(super) uuid: Uuid,
    /// The name of the base: the digest of a manifest, or any name that its user gives it; empty = none.
    pub(super) parent: String,
    /// The image of the base, as the disk's user named it when the disk was attached last. A hint: `parent`
    /// decides. Version 0.1.0 passes over it, and drops it when it changes the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reference: Option<String>,
    /// Bytes that merging runs has copied up from the base, approximately. Version 0.1.0 passes over it, too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) copied_up_bytes: u64,
    /// Size of the disk in bytes.
    pub(super) virtual_size: u64,
    /// The pairs, lowest first; the last one takes the writes.
    pub(super) pairs: Vec<PairFiles>,
    /// The lengths that logs of pairs have at least. Version 0.1.0 passes over them, and drops them when it changes the
    /// state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) logs: Vec<NotedLog>,
    /// The data files of frozen pairs that other directories may have as well, by hard links. One of these that has no
    /// other name is not shared any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) shared: Vec<String>,
}

/// The length that the log of a pair has at least: the part that was durable at some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NotedLog {
    /// The name of its file.
    pub(super) index: String,
    /// Bytes of the file.
    pub(super) bytes: u64,
    /// The checksum in the last seal of these.
    pub(super) checksum: u32,
}

/// The names of a pair's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PairFiles {
    pub(super) data: String,
    pub(super) index: String,
}

impl PairFiles {
    /// The names of pair `number`: `data` and `index`, then `data.1` and `index.1`, and so on.
    pub(super) fn of(number: u64) -> Self {
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        Self { data: format!("data{suffix}"), index: format!("index{suffix}") }
    }

    /// The pair's number, where both names are as [`PairFiles::of`] makes them.
    pub(super) fn number(&self) -> Option<u64> {
        number_of(&self.data).filter(|number| *self == Self::of(*number))
    }
}

/// The number of the pair that a file belongs to, by its name.
fn number_of(name: &str) -> Option<u64> {
    let suffix = name.strip_prefix("data").or_else(|| name.strip_prefix("index"))?;
    // No disk sees so many collections that 32 bits would not do.
    if suffix.is_empty() { Some(0) } else { suffix.strip_prefix('.')?.parse::<u32>().ok().map(u64::from) }
}

impl State {
    pub(super) fn new(uuid: Uuid, parent: String, virtual_size: u64, pairs: &[u64]) -> Self {
        let pairs = pairs.iter().copied().map(PairFiles::of).collect();
        let (reference, copied_up_bytes, logs, shared) = (None, 0, Vec::new(), Vec::new());
        Self { version: VERSION, uuid, parent, reference, copied_up_bytes, virtual_size, pairs, logs, shared }
    }

    /// The same state with other pairs.
    pub(super) fn with_pairs(&self, pairs: &[u64]) -> Self {
        let pairs: Vec<_> = pairs.iter().copied().map(PairFiles::of).collect();
        // The number of a pair that is gone may be given to another one.
        let stays = |log: &&NotedLog| pairs.iter().any(|files| files.index == log.index);
        let logs = self.logs.iter().filter(stays).cloned().collect();
        let is_named = |data: &&String| pairs.iter().any(|files| files.data == **data);
        let shared = self.shared.iter().filter(is_named).cloned().collect();
        Self { pairs, logs, shared, ..self.clone() }
    }

    /// Notes that all pairs but the last may be shared with other directories.
    pub(super) fn share_lower(&mut self) {
        let lower = self.pairs.len().saturating_sub(1);
        self.shared = self.pairs[..lower].iter().map(|files| files.data.clone()).collect();
    }

    /// `true` if the pair with these files may be shared with other directories.
    pub(super) fn may_be_shared(&self, files: &PairFiles) -> bool {
        self.shared.contains(&files.data)
    }

    /// The same state without a note of the log in the file `index`.
    pub(super) fn without_log(&self, index: &str) -> Self {
        let logs = self.logs.iter().filter(|log| log.index != index).cloned().collect();
        Self { logs, ..self.clone() }
    }

    /// The end that is noted of the log in the file `index`.
    pub(super) fn noted(&self, index: &str) -> Option<LogEnd> {
        let log = self.logs.iter().find(|log| log.index == index)?;
        Some(LogEnd { bytes: log.bytes, checksum: log.checksum })
    }

    /// The numbers of its pairs, lowest pair first.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.pairs.iter().filter_map(PairFiles::number).collect()
    }

    /// The id of pair `number`: unique, as the disk's own is, and without asking for randomness.
    pub(super) fn pair_uuid(&self, number: u64) -> Uuid {
        Uuid::from_u128(self.uuid.as_u128().wrapping_add(u128::from(number)))
    }

    /// Reads and checks the state of `directory`.
    pub(super) fn load(directory: &dyn Directory) -> Result<Self> {
        let about = || format!("{}/{STATE}", directory.name());
        let file = directory.open(STATE).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::new(
                ErrorKind::NotFound,
                "it is not a writable directory: it has no state.json",
            )
            .remedy(
                "name the directory of `--writable`; that of several disks has one for each of them in it",
            )
            .about(directory.name()),
            _ => e,
        })?;
        let len = file.len()?;
        let mut text = vec![0; to_usize(len.min(STATE_MAX))];
        file.read_at(&mut text, 0)?;
        Self::parse(&text).map_err(|e| e.about(about()))
    }

    fn parse(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |cause: String| {
            Error::corrupt(cause).remedy(
                "restore it from a copy, or delete the directory and create it again; \
                 `headstart layer export --pair DATA,INDEX` still reads its pairs",
            )
        };
        let unreadable = |e: serde_json::Error| damaged(format!("it is damaged ({e})"));
        let Versioned { version } = serde_json::from_slice(text).map_err(unreadable)?;
        if !(VERSION..=VERSION_SHARED).contains(&version) {
            return Err(Error::unsupported(format!(
                "the writable directory is of version {version}, this program knows versions {VERSION} and \
                 {VERSION_SHARED}"
            ))
            .remedy("use the program that made it"));
        }
        let state: Self = serde_json::from_slice(text).map_err(unreadable)?;
        check_size(state.virtual_size).map_err(|e| damaged(e.to_string()))?;
        let mut numbers = state.numbers();
        numbers.sort_unstable();
        numbers.dedup();
        if numbers.is_empty() || numbers.len() != state.pairs.len() || numbers.len() > PAIRS_MAX {
            return Err(damaged("it does not name its pairs properly".to_owned()));
        }
        // Writes would go to files of other directories, too.
        let frozen = &state.pairs[..state.pairs.len() - 1];
        if !state.shared.iter().all(|data| frozen.iter().any(|files| files.data == *data)) {
            return Err(damaged("it does not name the files that it shares properly".to_owned()));
        }
        Ok(state)
    }

    /// Replaces the state of `directory`.
    pub(super) fn store(&self, directory: &dyn Directory) -> Result<(), StoreError> {
        let prepared = self.prepare(directory);
        if let Err(error) = prepared {
            // Best effort: it is a leftover otherwise, which the next open removes.
            let _ = directory.remove(STATE_NEW);
            return Err(StoreError { error, in_doubt: false });
        }
        directory
            .rename(STATE_NEW, STATE)
            .map_err(|error| StoreError { in_doubt: error.kind() == ErrorKind::Io, error })?;
        directory.sync().map_err(|error| StoreError { error, in_doubt: true })
    }

    fn prepare(&self, directory: &dyn Directory) -> Result<()> {
        let version = if self.shared.is_empty() { VERSION } else { VERSION_SHARED };
        let text = serde_json::to_vec_pretty(&Self { version, ..self.clone() })
            .map_err(|e| Error::invalid(format!("cannot describe the writable layer ({e})")))?;
        let file = directory.create(STATE_NEW)?;
        file.write_at(&text, 0)?;
        file.sync()
    }

    /// Removes the files of pairs that the state does not name, an unfinished state, and layers that were sealed ahead.
    /// Best effort: what stays is not used, and is removed the next time.
    pub(super) fn remove_leftovers(&self, directory: &dyn Directory) {
        let used = self.numbers();
        remove_sealed_ahead(directory);
        for name in directory.list().unwrap_or_default() {
            if name == STATE_NEW || number_of(&name).is_some_and(|number| !used.contains(&number)) {
                let _ = directory.remove(&name);
            }
        }
    }
}

/// Removes the layers that a process has left which sealed them ahead: they are of no use to another one. Best effort.
pub(super) fn remove_sealed_ahead(directory: &dyn Directory) {
    for name in directory.list().unwrap_or_default() {
        if name.starts_with(SEALED_AHEAD) {
            let _ = directory.remove(&name);
        }
    }
}

/// The error of a state that was not replaced.
pub(super) struct StoreError {
    pub(super) error: Error,
    /// `true` if the new state may be the one that counts after a crash.
    pub(super) in_doubt: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Checks that a disk can have `size` bytes.
pub(super) fn check_size(size: u64) -> Result<()> {
    if !size.is_multiple_of(SECTOR_SIZE) {
        return Err(Error::invalid(format!("a disk of {size} bytes does not end with a whole sector"))
            .remedy(format!("make it a multiple of {SECTOR_SIZE}")));
    }
    let max = Segment::PADDING_OFFSET * SECTOR_SIZE;
    if size > max {
        return Err(Error::invalid(format!("a disk of {size} bytes is larger than the format's {max}")));
    }
    Ok(())
}
