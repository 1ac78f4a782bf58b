//! The writes and discards of clients.

use super::WritableDisk;
use super::pair::Pair;
use super::pending::{self, Place, Stored, Ticket};
use super::runs::{ExtentKind, SectorExtent};
use super::space::FileRange;
use headstart_block::{BlockDevice, ErrorKind, Result, SECTOR_SIZE};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The outcome of entering an extent into the view.
enum Entered {
    /// Readers see it. If a ticket came along, the entry of it is to be written before the write is answered.
    Done(Option<Ticket>),
    /// The pair takes nothing more.
    Frozen,
    /// There is no place for its entry before a flush.
    Full,
}

impl WritableDisk {
    /// Writes `data`, a step at most, at sector `start` of the disk.
    pub(super) fn write_step(&self, data: &[u8], start: u64) -> Result<()> {
        let sectors = data.len() as u64 / SECTOR_SIZE;
        let end = start + sectors;
        self.bound_pending()?;
        let _admitted = self.admit_write(start, end)?;
        self.pending.make_room(|| self.limits().pending())?;
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        let checksum = pending::checksum(data);
        loop {
            let pair = self.generation().active.clone();
            let (moffset, aside) = self.append_pending(&pair, data)?;
            let extent = SectorExtent { start, end, kind: ExtentKind::Data(moffset) };
            // A pair that was frozen in the meantime takes nothing more: write it again to the next one.
            if self.enter(&pair, extent, Some(Stored { moffset, aside, checksum }))? {
                return Ok(());
            }
            self.ready.lock().push(FileRange { pair: pair.number, start: moffset, end: moffset + sectors });
        }
    }

    /// Makes the sectors `[start, end)`, a step at most, read as zeros.
    pub(super) fn zero_step(&self, start: u64, end: u64) -> Result<()> {
        self.bound_pending()?;
        let _admitted = self.admit_zeroes(start, end)?;
        // A file system without any room must not keep clients from giving some back: a discard without an entry is
        // durable before it is answered.
        let has_entry = match self.pending.make_room(|| self.limits().pending()) {
            Err(error) if error.kind() == ErrorKind::NoSpace => false,
            made => made.map(|()| true)?,
        };
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        let extent = SectorExtent { start, end, kind: ExtentKind::Zero };
        if has_entry {
            while !self.enter(&self.generation().active, extent, None)? {}
            return Ok(());
        }
        while matches!(self.enter_view(&self.generation().active, extent, false), Entered::Frozen) {}
        self.flush()
    }

    /// Takes the space that the first writes and discards of clients need beside their data. Returns whether writes
    /// that are answered and not flushed will survive the death of this process.
    ///
    /// # Errors
    /// Errors of the files, as [`ErrorKind::NoSpace`]. The disk is usable nevertheless.
    pub fn make_ready(&self) -> Result<bool> {
        self.pending.make_room(|| self.limits().pending())?;
        Ok(self.pending.is_on())
    }

    /// Enters `extent` of `pair`, so that the death of this process alone does not lose it; `false` if that pair no
    /// longer is the active one.
    fn enter(&self, pair: &Arc<Pair>, extent: SectorExtent, stored: Option<Stored>) -> Result<bool> {
        loop {
            match self.enter_view(pair, extent, true) {
                Entered::Frozen => return Ok(false),
                Entered::Done(None) => return Ok(true),
                Entered::Done(Some(ticket)) => {
                    let sectors = (extent.start, extent.end);
                    return self.pending.enter(ticket, pair.number, sectors, stored).map(|()| true);
                }
                Entered::Full => self.flush()?,
            }
        }
    }

    fn enter_view(&self, pair: &Arc<Pair>, extent: SectorExtent, has_entry: bool) -> Entered {
        let mut view = self.view_mut();
        if !Arc::ptr_eq(&view.generation.active, pair) {
            return Entered::Frozen;
        }
        let place = if has_entry { self.pending.place() } else { Place::Off };
        let ticket = match place {
            Place::Full => return Entered::Full,
            Place::Off => None,
            Place::Ticket(ticket) => Some(ticket),
        };
        view.copied_up.remove(extent.start, extent.end);
        let records = view.write(extent);
        self.unlogged.fetch_add(records as u64, Ordering::Relaxed);
        Entered::Done(ticket)
    }
}
