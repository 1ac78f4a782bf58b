//! Writing the log of the active pair again, without the records that others cover.
//!
//! The new log is a file of an unused pair, so that an interrupted one is a leftover like any other. It is written from
//! the map in memory, a thousand runs under one lock, while clients go on; then the records that came meanwhile
//! follow. The first part may be any mixture of earlier and later runs: the records behind it lead to the same
//! map as the old log, which gets them, too. Then the file is renamed over the old log. So a crash leaves either of two
//! logs with the same meaning, and a failure leaves the old one. The note of the old one's end (`noted.rs`) is not
//! true of the new one, so it is taken back first.
//!
//! Flushes wait for all of this; it takes as long as writing 16 bytes a run.

use super::WritableDisk;
use super::files::LogFile;
use super::log::{GROUP_MAX, Log};
use super::pair::{self, Pair};
use super::runs::{ExtentKind, RunMap, SectorExtent};
use super::state::{PairFiles, State};
use super::view::Generation;
use crate::Segment;
use crate::format::FIRST_DATA_SECTOR;
use headstart_block::{ErrorKind, Result};
use std::sync::atomic::Ordering;

/// Runs copied under one lock.
const RUNS_AT_ONCE: usize = 1024;

/// A log in the making.
struct NewLog {
    file: Box<dyn LogFile>,
    log: Log,
    /// Records that are not in the file yet.
    records: Vec<Segment>,
    /// One past the last sector of data that a record names: the value that a zeroed record carries.
    data_mark: u64,
}

impl NewLog {
    fn push(&mut self, extent: SectorExtent) -> Result<()> {
        for record in extent.segments(self.data_mark) {
            self.record(record)?;
        }
        Ok(())
    }

    fn record(&mut self, record: Segment) -> Result<()> {
        self.data_mark = self.data_mark.max(record.mend());
        self.records.push(record);
        if self.records.len() == GROUP_MAX { self.write_out() } else { Ok(()) }
    }

    fn write_out(&mut self) -> Result<()> {
        if !self.records.is_empty() {
            let group = self.log.group(&self.records);
            self.log.write_group(&*self.file, &group)?;
            self.log.accept(&group);
            self.records.clear();
        }
        Ok(())
    }
}

impl WritableDisk {
    /// Replaces the log of the active pair by one without covered records.
    pub(super) fn compact_log(&self) -> Result<()> {
        // No other thread sets runs aside or puts another pair on top.
        let _one = self.snapshots.lock();
        let mut state = self.state.lock();
        self.withdraw_note(&mut state)?;
        let mut flusher = self.flusher.lock();
        self.flush_with(&mut flusher)?;
        let generation = self.generation();
        let pair = &generation.active;
        let name = PairFiles::of(self.take_number()).index;
        let old_bytes = pair.log_bytes();
        let written = self.write_log(&generation, &state, &name).and_then(|mut new| {
            let mut since = Vec::new();
            self.flush_listing(&mut flusher, Some((pair, &mut since)))?;
            for record in since {
                new.record(record)?;
            }
            new.write_out()?;
            new.file.sync()?;
            Ok(new)
        });
        let new = written.inspect_err(|_| _ = self.directory.remove(&name))?;
        self.pending.expect_end(pair.number, pair.log().log.end(), new.log.end(), None)?;
        let index = PairFiles::of(pair.number).index;
        if let Err(error) = self.directory.rename(&name, &index) {
            // An error of another kind has changed nothing.
            if error.kind() == ErrorKind::Io {
                return self.sticky(Err(error));
            }
            let _ = self.directory.remove(&name);
            return Err(error);
        }
        self.sticky(self.directory.sync())?;
        let reclaimed = old_bytes.saturating_sub(new.log.len());
        pair.replace_log(&mut pair.log(), new.file, new.log);
        self.counters.collected.fetch_add(reclaimed, Ordering::Relaxed);
        self.gate.notify_all();
        Ok(())
    }

    /// Writes the runs of the active pair, those set aside first, as a log.
    fn write_log(&self, generation: &Generation, state: &State, name: &str) -> Result<NewLog> {
        let pair: &Pair = &generation.active;
        let file = self.directory.create(name)?;
        file.write_at(&pair::index_header(pair.uuid(), state.virtual_size)?.encode(), 0)?;
        let (log, data_mark) = (Log::new(pair.uuid()), FIRST_DATA_SECTOR);
        let mut new = NewLog { file, log, records: Vec::new(), data_mark };
        for level in generation.set_aside().iter().rev() {
            level.runs.extents(0, level.runs.end()).try_for_each(|extent| new.push(extent))?;
        }
        let (mut some, mut position) = (Vec::new(), Some(0));
        while let Some(from) = position {
            position = self.next_of(&mut some, from);
            some.drain(..).try_for_each(|extent| new.push(extent))?;
        }
        Ok(new)
    }

    fn next_of(&self, some: &mut Vec<SectorExtent>, from: u64) -> Option<u64> {
        let view = self.view();
        let runs: &RunMap = &view.runs;
        let extents = runs.extents(from, runs.end()).filter(|extent| extent.kind != ExtentKind::Hole);
        some.extend(extents.take(RUNS_AT_ONCE));
        (some.len() == RUNS_AT_ONCE).then(|| some.last().map_or(0, |last| last.end))
    }
}
