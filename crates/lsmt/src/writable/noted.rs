//! The lengths that the logs of a disk have at least, and the repair of logs that are shorter.
//!
//! A log tells by itself of damage in front of its last group (`log.rs`). A last group that is damaged looks like one
//! that a crash interrupted, and a log that lost whole groups at its end looks like a shorter one. So `state.json`
//! notes for each pair how many bytes of its log were durable, and the checksum of the seal there: when the disk is
//! closed, once no client has written for a while, and when logs have grown by [`NOTED_WITHIN`]. No flush waits for it.
//!
//! A note is a lower bound. A log only grows, so a longer one is right where it has that seal at that place, and one
//! that has not is refused before anything is cut off. Nothing has to be taken back before a write, and a version that
//! knows nothing of notes does no harm by appending. Only a log that takes the place of another one ends elsewhere: the
//! note is taken back before, and a pair that is gone takes its note along (`State::with_pairs`).
//!
//! Behind the noted place, a crash and damage are told apart as far as the log itself can tell. Bytes that are cut
//! off there are copied to [`TORN`], and reported.

use super::files::{Directory, LogFile, RealDirectory};
use super::log::Log;
use super::pair::{Pair, Salvaged};
use super::policy::Load;
use super::runs::RunMap;
use super::state::{NotedLog, PairFiles, State};
use super::{WritableDisk, lock};
use crate::format::PAGE_SIZE;
use headstart_block::{Error, Result, SECTOR_SIZE};
use serde::Serialize;
use std::path::Path;

/// Bytes by which logs may grow before that is noted while clients write.
const NOTED_WITHIN: u64 = 256 << 10;

/// The file with the bytes that were cut off a log last. Earlier ones have a number behind that, the latest of them 1.
pub(super) const TORN: &str = "index.torn";

/// The number of earlier files with cut-off bytes that are kept.
const EARLIER: u32 = 3;

/// Bytes copied at once.
const CHUNK: usize = 256 << 10;

/// The repair of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// The name of its file.
    pub index: String,
    /// Bytes of the file that were kept.
    pub kept_bytes: u64,
    /// Bytes that were cut off behind them.
    pub cut_bytes: u64,
    /// Bytes behind the kept ones that are known to have been durable.
    pub lost_bytes: u64,
    /// The name of the file with the bytes that were cut off, unless there were none but zeros.
    pub copy: Option<String>,
}

impl WritableDisk {
    /// Notes durably the ends of the logs, as far as they are durable: records that are missing from then on are
    /// noticed when the disk is opened. Flushes nothing.
    ///
    /// # Errors
    /// Errors of writing the state.
    pub fn note_logs(&self) -> Result<()> {
        self.check_usable()?;
        let mut state = lock(&self.state);
        let generation = self.generation();
        let ends: Vec<_> = generation.pairs().map(|pair| (pair, pair.log().log.end())).collect();
        let has_groups = ends.iter().filter(|(_, end)| end.bytes > PAGE_SIZE as u64);
        let note = |number, bytes, checksum| NotedLog { index: PairFiles::of(number).index, bytes, checksum };
        let logs: Vec<_> = has_groups.map(|(pair, end)| note(pair.number, end.bytes, end.checksum)).collect();
        if logs != state.logs {
            let noted = State { logs, ..state.clone() };
            self.store(&mut state, noted)?;
        }
        ends.iter().for_each(|(pair, end)| pair.set_noted(end.bytes));
        Ok(())
    }

    /// Notes the ends of the logs if they have grown much, or if no client writes.
    pub(super) fn note_grown_logs(&self, load: Load) -> Result<()> {
        let grown: u64 = self.generation().pairs().map(|pair| pair.unnoted_bytes()).sum();
        let enough = if load == Load::Quiet { 1 } else { NOTED_WITHIN };
        if grown < enough { Ok(()) } else { self.note_logs() }
    }

    /// Takes back durably the note that `state` has of the log of the active pair, which is about to be replaced.
    pub(super) fn withdraw_note(&self, state: &mut State) -> Result<()> {
        let active = self.generation().active.clone();
        let index = PairFiles::of(active.number).index;
        if state.noted(&index).is_some() {
            let without = state.without_log(&index);
            self.store(state, without)?;
        }
        active.set_noted(0);
        Ok(())
    }

    /// Gives up the damaged parts of the logs in `path`: each is cut off behind its last whole group before the
    /// damage, so that the disk opens with the content of that time. Returns the logs that were changed.
    ///
    /// # Errors
    /// As [`WritableDisk::open`]; [`ErrorKind::Corrupt`](headstart_block::ErrorKind::Corrupt) where more than logs is
    /// damaged: nothing is changed then.
    pub fn repair(path: impl AsRef<Path>) -> Result<Vec<Repaired>> {
        let path = path.as_ref();
        Self::inspect(path)?;
        let directory = RealDirectory::lock(path)?;
        directory.close_to_others()?;
        Self::repair_in(&directory).map_err(|e| e.about(path.display()))
    }

    pub(super) fn repair_in(directory: &dyn Directory) -> Result<Vec<Repaired>> {
        let mut state = State::load(directory)?;
        directory.sync()?;
        let mut repaired = Vec::new();
        let salvage = |files: PairFiles| {
            let noted = state.noted(&files.index);
            Ok(Pair::salvage_log(directory, &files, noted)?.map(|salvaged| (files, noted, salvaged)))
        };
        // Nothing is cut off where the disk would be refused anyway.
        let salvaged: Vec<_> = state.pairs.iter().cloned().map(salvage).collect::<Result<_>>()?;
        for (files, noted, salvaged) in salvaged.into_iter().flatten() {
            let Salvaged { file, log, reaches } = salvaged;
            let (kept_bytes, len) = (log.len(), file.len()?);
            if reaches && kept_bytes == len {
                continue;
            }
            let name = format!("{}.torn", files.index);
            let copy = keep_tail(directory, &*file, kept_bytes, &name)?.then_some(name);
            file.set_len(kept_bytes)?;
            file.sync()?;
            if !reaches {
                state = state.without_log(&files.index);
                state.store(directory).map_err(|e| e.error)?;
            }
            repaired.push(Repaired {
                index: files.index,
                kept_bytes,
                cut_bytes: len - kept_bytes,
                lost_bytes: noted.map_or(0, |noted| noted.bytes.saturating_sub(kept_bytes)),
                copy,
            });
        }
        Ok(repaired)
    }
}

/// The remedy for a pair without its headers.
pub(super) fn remedy_without_header(files: &PairFiles) -> String {
    let PairFiles { data, index } = files;
    format!("restore {data} and {index} from a copy of one moment: `headstart disk repair` cannot mend this")
}

/// The remedy for a damaged pair in `directory`.
pub(super) fn remedy(files: &PairFiles, directory: &str) -> String {
    let PairFiles { data, index } = files;
    format!(
        "restore {data} and {index} from a copy of one moment; or copy the directory, and give up what is lost by \
         `headstart disk repair {directory}`"
    )
}

/// Cuts off the bytes behind the whole groups of a log, and keeps a copy of them.
pub(super) fn cut_tail(directory: &dyn Directory, file: &dyn LogFile, name: &str, log: &Log) -> Result<()> {
    let (position, len) = (log.len(), file.len()?);
    if position >= len {
        return Ok(());
    }
    let (index, bytes) = (format!("{}/{name}", directory.name()), len - position);
    match keep_tail(directory, file, position, TORN) {
        // A crash has made the file longer, and that is all.
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            index,
            position,
            bytes,
            copy = TORN,
            "the last records of a writable layer are not whole, after a crash or by damage: they were cut off"
        ),
        Err(error) => tracing::warn!(
            index, position, bytes, %error,
            "the last records of a writable layer are not whole, after a crash or by damage: they were cut off, and \
             could not be copied"
        ),
    }
    file.set_len(position)
}

/// Warns of data that no record names.
pub(super) fn warn_of_data(data: &str, bytes: u64) {
    tracing::warn!(
        data,
        bytes,
        "data behind the last record of a writable layer is dropped: it was not flushed, or the index was shortened"
    );
}

/// Gives the file `name`, and each of the earlier ones, the next number. Removes the last one.
fn keep_earlier(directory: &dyn Directory, name: &str) -> Result<()> {
    let numbered = |number: u32| if number == 0 { name.to_owned() } else { format!("{name}.{number}") };
    let names = directory.list()?;
    for number in (0..EARLIER).rev().filter(|number| names.contains(&numbered(*number))) {
        directory.rename(&numbered(number), &numbered(number + 1))?;
    }
    directory.sync()
}

/// Copies the bytes behind byte `from` of a file to the file `name`, durably; `false` if there are none but zeros.
/// Earlier copies move on only for a copy that is whole: a full disk removes none of them.
fn keep_tail(directory: &dyn Directory, file: &dyn LogFile, from: u64, name: &str) -> Result<bool> {
    let new = format!("{name}.new");
    let copied = copy_tail(directory, file, from, &new).and_then(|is_copied| {
        if is_copied {
            keep_earlier(directory, name)?;
            directory.rename(&new, name)?;
            directory.sync()?;
        }
        Ok(is_copied)
    });
    if copied.is_err() {
        // Best effort: a copy that there was no room for is not kept in part.
        let _ = directory.remove(&new);
    }
    copied
}

/// Copies the bytes behind byte `from` of a file to a new file, durably; makes no file if there are none but zeros.
fn copy_tail(directory: &dyn Directory, file: &dyn LogFile, from: u64, new: &str) -> Result<bool> {
    let (mut at, len) = (from, file.len()?);
    let mut copy: Option<Box<dyn LogFile>> = None;
    let mut bytes = Vec::new();
    while at < len {
        bytes.resize(usize::try_from(len - at).map_or(CHUNK, |left| left.min(CHUNK)), 0);
        file.read_at(&mut bytes, at)?;
        if copy.is_none() && bytes.iter().any(|byte| *byte != 0) {
            copy = Some(directory.create(new)?);
        }
        if let Some(copy) = &copy {
            copy.write_at(&bytes, at - from)?;
        }
        at += bytes.len() as u64;
    }
    copy.as_ref().map_or(Ok(()), |copy| copy.sync())?;
    Ok(copy.is_some())
}

/// Checks that a log names no sectors behind the disk's end.
pub(super) fn check_inside(runs: &RunMap, size: u64) -> Result<()> {
    if runs.end() > size / SECTOR_SIZE {
        return Err(Error::corrupt(format!(
            "it has records up to sector {}, but the disk has {} sectors",
            runs.end(),
            size / SECTOR_SIZE
        ))
        .remedy("state.json is not the one that belongs to it: restore the directory from a copy"));
    }
    Ok(())
}
