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
//! off there are copied to [`TORN`](super::torn::TORN), and reported.

use super::WritableDisk;
use super::files::Directory;
use super::pair::{Pair, Salvaged};
use super::pending::Pending;
use super::policy::Load;
use super::real_directory::RealDirectory;
use super::runs::RunMap;
use super::state::{NotedLog, PairFiles, State, remove_sealed_ahead};
use super::torn::{keep_tail, replace_by_beginning};
use crate::format::PAGE_SIZE;
use headstart_block::{Error, Result, SECTOR_SIZE};
use serde::Serialize;
use std::path::Path;

/// Bytes by which logs may grow before that is noted while clients write.
const NOTED_WITHIN: u64 = 256 << 10;

/// The repair of one damaged log (index file) by [`WritableDisk::repair`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// The name of the index file.
    pub index: String,
    /// Length of the index file after the repair, in bytes.
    pub kept_bytes: u64,
    /// Bytes that were removed from the end of the index file.
    pub cut_bytes: u64,
    /// Bytes of records that are lost although they were durable; 0 if no durable ones are known to be lost.
    pub lost_bytes: u64,
    /// The name of the file to which the removed bytes were copied; `None` if nothing but zeros was removed.
    pub copy: Option<String>,
}

impl WritableDisk {
    /// Stores the durable length of each log in the disk's description. Opening the disk later fails if a log has lost
    /// records up to that length. This does not flush: writes that were not flushed are not covered.
    ///
    /// # Errors
    /// Errors of writing the description of the disk; an error if a sync of the disk has failed before.
    pub fn note_logs(&self) -> Result<()> {
        self.check_usable()?;
        let mut state = self.state.lock();
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

    /// Repairs the damaged logs of the disk in the directory `path`, by giving up records: each log is cut
    /// after the last whole group of records before the damage, and the disk then has the content that it had when
    /// that group was written. Returns the logs that were changed; empty if none had to be. The disk must not be open.
    ///
    /// # Errors
    /// Those of [`WritableDisk::open`]; [`ErrorKind::Corrupt`](headstart_block::ErrorKind::Corrupt) if
    /// anything but logs is damaged, in which case no file is changed.
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
        remove_sealed_ahead(directory);
        let mut repaired = Vec::new();
        let salvage = |files: PairFiles| {
            let noted = state.noted(&files.index);
            Ok(Pair::salvage_log(directory, &files, noted)?.map(|salvaged| (files, noted, salvaged)))
        };
        // Nothing is cut off where the disk would be refused anyway.
        let salvaged: Vec<_> = state.pairs.iter().cloned().map(salvage).collect::<Result<_>>()?;
        if salvaged.iter().flatten().any(|(_, _, salvaged)| !salvaged.reaches) {
            // Later writes over a log that lacks those before them would be the content of no moment.
            Pending::remove(directory)?;
        }
        for (files, noted, salvaged) in salvaged.into_iter().flatten() {
            let Salvaged { file, log, reaches } = salvaged;
            let (kept_bytes, len) = (log.len(), file.len()?);
            if reaches && kept_bytes == len {
                continue;
            }
            let name = format!("{}.torn", files.index);
            let copy = keep_tail(directory, &*file, kept_bytes, &name)?.then_some(name);
            // The log of another directory must stay as it is.
            if state.may_be_shared(&files) && file.links()? > 1 {
                let unused = state.numbers().into_iter().max().unwrap_or(0) + 1;
                let new = PairFiles::of(unused).index;
                replace_by_beginning(directory, &*file, (&files.index, &new), kept_bytes)?;
            } else {
                file.set_len(kept_bytes)?;
                file.sync()?;
            }
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
