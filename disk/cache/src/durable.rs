//! The units that survive a loss of power, and the way in which units are forgotten.
//!
//! The rule, in both directions: *a slot on disk that names a unit implies that the unit's bytes are on disk.*
//!
//! * Growing ([`sync`]): look at `local`; `fdatasync` the data file, which makes everything durable that was written
//!   before, hence all units seen; write them as a new slot over the older one; `fdatasync` the sidecar.
//! * Shrinking ([`forget`]): clear the bits in `local`, so that no new read begins on them; raise the generation, so
//!   that reads under way notice; write a new slot without them, sync it, and make the other slot invalid. Only then
//!   may the bytes be given back.
//!
//! Both hold [`Locks::DURABLE`], so that no slot is written from an old look at `local`. A failed `fdatasync` of the
//! data file may have dropped pages that are not durable; all units that are not in a slot are forgotten then.

use crate::blob_files::Files;
use crate::locks::{self, Mode};
use crate::presence;
use crate::sidecar::{Locks, SLOT_HEADER, to_words};
use headstart_block::{Digest, Error, ErrorKind, Result, sync_dir_of};
use parking_lot::MutexGuard;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The longest wait for another process that syncs: as long as a slow disk takes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The content of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    sequence: u64,
    pub(crate) units: Vec<u64>,
}

impl Slot {
    fn has(&self, unit: u64) -> bool {
        let word = usize::try_from(unit / 64).ok().and_then(|at| self.units.get(at));
        word.is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }
}

struct Writing<'a> {
    files: &'a Files,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        locks::unlock(&self.files.sidecar.file, &Locks::DURABLE);
    }
}

fn begin(files: &Files) -> Result<Writing<'_>> {
    let threads = files.durable.lock();
    if locks::lock_within(&files.sidecar.file, &Locks::DURABLE, Mode::Exclusive, LOCK_TIMEOUT)? {
        return Ok(Writing { files, _threads: threads });
    }
    Err(Error::new(ErrorKind::Conflict, "another process syncs this blob and does not end")
        .about(files.data_path.display()))
}

/// The sum of a slot: over the sidecar's fixed header, the sequence number and the bitmap.
fn sum(fixed: &[u8], sequence: &[u8], bitmap: &[u8]) -> Digest {
    Digest::of(&[fixed, sequence, bitmap].concat())
}

/// A slot as stored, or `None` if it was never written, is torn or damaged.
fn read_slot(files: &Files, slot: usize) -> Result<Option<Slot>> {
    let sidecar = &files.sidecar;
    let mut bytes = vec![0; sidecar.layout.slot_len()];
    sidecar.file.read_exact_at(&mut bytes, sidecar.layout.slot_offset(slot))?;
    let (header, bitmap) = bytes.split_at(SLOT_HEADER);
    let sequence = header.first_chunk().copied().unwrap_or_default();
    let right = sum(&sidecar.fixed, &sequence, bitmap).as_bytes()[..] == header[8..40];
    let slot = Slot { sequence: u64::from_ne_bytes(sequence), units: to_words(bitmap) };
    Ok(Some(slot).filter(|slot| right && slot.sequence > 0))
}

/// The valid slot with the highest sequence number and its place; an empty one if there is none.
fn newest(files: &Files) -> Result<(usize, Slot)> {
    let mut found = (1, Slot { sequence: 0, units: vec![0; files.sidecar.layout.words()] });
    for place in 0..2 {
        if let Some(slot) = read_slot(files, place)?.filter(|slot| slot.sequence > found.1.sequence) {
            found = (place, slot);
        }
    }
    Ok(found)
}

/// The durable units, as a bitmap.
pub(crate) fn durable_units(files: &Files) -> Result<Vec<u64>> {
    Ok(newest(files)?.1.units)
}

fn write_slot(files: &Files, place: usize, slot: &Slot) -> io::Result<()> {
    let sidecar = &files.sidecar;
    let sequence = slot.sequence.to_ne_bytes();
    let bitmap: Vec<u8> = slot.units.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut bytes = [&sequence, &sum(&sidecar.fixed, &sequence, &bitmap).as_bytes()[..]].concat();
    bytes.resize(SLOT_HEADER, 0);
    bytes.extend(bitmap);
    sidecar.file.write_all_at(&bytes, sidecar.layout.slot_offset(place))?;
    sidecar.file.sync_data()
}

/// Copies the durable units to `local` in a new boot. Called under the directory's lock, before any process uses the
/// files.
pub(crate) fn recover(files: &Files) -> Result<()> {
    let sidecar = &files.sidecar;
    for place in 0..2 {
        // A slot that is not trusted now must not be trusted later either, when bytes that it names may be gone: a disk
        // that fails to read may read right the next time.
        if read_slot(files, place)?.is_none() {
            sidecar.file.write_all_at(&[0; SLOT_HEADER], sidecar.layout.slot_offset(place))?;
        }
    }
    let slot = newest(files)?.1;
    let units = sidecar.layout.units();
    for (word, durable) in sidecar.local().iter().zip(&slot.units) {
        word.store(*durable, Ordering::Release);
    }
    let generation = sidecar.generation().fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    let is_whole = presence::all_set(sidecar.local(), &(0..units));
    let was_right = sidecar.whole_at().load(Ordering::Acquire) == generation;
    let whole_at = if is_whole && was_right { generation.wrapping_add(1) } else { 0 };
    sidecar.whole_at().store(whole_at, Ordering::Release);
    Ok(())
}

/// Makes the local units durable; `true` if that took a write.
///
/// # Errors
/// Errors of the disk. Units that may not have reached it are forgotten.
pub(crate) fn sync(files: &Files) -> Result<bool> {
    let _writing = begin(files)?;
    let sidecar = &files.sidecar;
    let (place, before) = newest(files)?;
    let units = presence::snapshot(sidecar.local(), sidecar.layout.units());
    if units == before.units {
        return Ok(false);
    }
    if let Err(e) = files.data.sync_data() {
        let lost: Vec<_> = (0..sidecar.layout.units()).filter(|&unit| !before.has(unit)).collect();
        presence::forget(sidecar.local(), sidecar.generation(), lost.into_iter().map(|unit| unit..unit + 1));
        return Err(Error::io("cannot sync", e).about(files.data_path.display()));
    }
    let is_first = before.sequence == 0;
    let after = Slot { sequence: before.sequence.saturating_add(1), units };
    write_slot(files, 1 - place, &after)
        // The names of the two files.
        .and_then(|()| if is_first { sync_dir_of(&files.data_path) } else { Ok(()) })
        .map_err(|e| Error::io("cannot sync a sidecar", e).about(files.data_path.display()))?;
    Ok(true)
}

/// Forgets units; returns the number that were local. When it returns without an error, no slot names them either, and
/// their bytes may be given back.
///
/// # Errors
/// Errors of writing a slot; then the bytes must stay, although nothing reads them any more in this boot.
pub(crate) fn forget(files: &Files, runs: &[Range<u64>]) -> Result<u64> {
    let _writing = begin(files)?;
    let sidecar = &files.sidecar;
    let cleared = presence::forget(sidecar.local(), sidecar.generation(), runs.iter().cloned());
    let (place, before) = newest(files)?;
    if !runs.iter().cloned().flatten().any(|unit| before.has(unit)) {
        return Ok(cleared);
    }
    let mut after = Slot { sequence: before.sequence.saturating_add(1), units: before.units };
    for unit in runs.iter().cloned().flatten() {
        if let Some(word) = usize::try_from(unit / 64).ok().and_then(|at| after.units.get_mut(at)) {
            *word &= !(1 << (unit % 64));
        }
    }
    let failed = |e| Error::io("cannot write a sidecar", e).about(files.data_path.display());
    write_slot(files, 1 - place, &after).map_err(failed)?;
    // If the new slot is damaged one day, the one before must not be trusted in its place.
    sidecar.file.write_all_at(&[0; SLOT_HEADER], sidecar.layout.slot_offset(place)).map_err(failed)?;
    Ok(cleared)
}
