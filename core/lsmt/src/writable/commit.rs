//! Writing the content of the pairs as a sealed layer.

use super::ahead::{LayerAhead, SealedShare, data_of};
use super::pair::Pair;
use super::runs::{SectorExtent, visit_merged};
use super::snapshot::Snapshot;
use super::space::FileRange;
use super::view::Frozen;
use super::{Maintenance, WritableDisk};
use crate::layer_writer::{LayerMeta, LayerSummary, LayerWriter};
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Result, SECTOR_SIZE, to_usize};
use parking_lot::MutexGuard;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes copied at once: a multiple of the 32 KiB that a layer's runs are recorded in.
const COPY_CHUNK: u64 = 1 << 20;

/// A commit that was begun: all that a disk has over its base as of the moment at which it was begun, to be written as
/// a layer. Reads and writes of the disk go on and change nothing in it.
pub struct BegunCommit<'a> {
    /// Topmost first.
    levels: Vec<Arc<Frozen>>,
    size: u64,
    hold: CommitHold<'a>,
    stop: Arc<AtomicBool>,
}

/// The hold that keeps the data of a commit in its place.
enum CommitHold<'a> {
    /// The runs of the active pair were set aside.
    Snapshot { _snapshot: Snapshot<'a> },
    /// The pairs were frozen.
    Stack(MutexGuard<'a, Maintenance>),
}

impl BegunCommit<'_> {
    /// Makes the writing of the layer fail soon after `stop` became `true`.
    #[must_use]
    pub fn until(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }

    /// Size of the disk in bytes at the moment of the commit.
    #[must_use]
    pub fn virtual_size(&self) -> u64 {
        self.size
    }

    /// The share of the commit's data that is in `ahead` already.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for the layer of another disk.
    pub fn share_of<W: Write>(&self, disk: &WritableDisk, ahead: &LayerAhead<W>) -> Result<SealedShare> {
        disk.check_own(ahead)?;
        let mut share = SealedShare::default();
        self.visit(&mut |pair, extent| {
            let parts = data_of(pair, extent).into_iter().flat_map(|range| ahead.places.divide(range));
            for (part, at) in parts {
                let bytes = part.len() * SECTOR_SIZE;
                *(if at.is_some() { &mut share.sealed_bytes } else { &mut share.unsealed_bytes }) += bytes;
            }
            Ok(())
        })?;
        Ok(share)
    }

    /// Bytes of data in the commit.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let mut sectors = 0;
        // The visitor reads no file, so it cannot fail.
        let _ = self.visit(&mut |_, extent| {
            sectors += if extent.kind.is_data() { extent.len() } else { 0 };
            Ok(())
        });
        sectors * SECTOR_SIZE
    }

    /// Writes the layer. `meta.virtual_size` is ignored: the layer has the disk's size.
    ///
    /// # Errors
    /// Errors of reading the disk's files and of `out`.
    pub fn write<W: Write>(self, out: W, meta: LayerMeta) -> Result<(W, LayerSummary)> {
        let meta = LayerMeta { virtual_size: self.size, ..meta };
        let writer = LayerWriter::new(out, meta)?;
        self.write_to(writer, |range| std::iter::once((range, None)))
    }

    /// Completes a layer that was written ahead of this commit: the data that it has already stays in its place, the
    /// rest is appended. `meta.virtual_size` is ignored. The layer also keeps the data in it that does not show any
    /// more; [`share_of`](Self::share_of) tells how much of it does.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for the layer of another disk; errors of reading the disk's files and of the output.
    pub fn complete<W: Write>(
        self,
        disk: &WritableDisk,
        ahead: LayerAhead<W>,
        meta: LayerMeta,
    ) -> Result<(W, LayerSummary)> {
        disk.check_own(&ahead)?;
        let LayerAhead { writer, places, .. } = ahead;
        let writer = writer.with_meta(LayerMeta { virtual_size: self.size, ..meta });
        self.write_to(writer, |range| places.divide(range))
    }

    /// Writes the layer; `divide` tells the parts of a range of a data file that are in it already, and where.
    fn write_to<W: Write, I: Iterator<Item = (FileRange, Option<u64>)>>(
        mut self,
        mut writer: LayerWriter<W>,
        divide: impl Fn(FileRange) -> I,
    ) -> Result<(W, LayerSummary)> {
        let mut buffer = Vec::new();
        self.visit(&mut |pair, extent| {
            check_stop(&self.stop)?;
            let Some(whole) = data_of(pair, extent) else {
                let range = ByteRange::between(extent.start * SECTOR_SIZE, extent.end * SECTOR_SIZE);
                return writer.zeroes(range);
            };
            for (part, at) in divide(whole) {
                let offset = (extent.start + (part.start - whole.start)) * SECTOR_SIZE;
                match at {
                    Some(at) => {
                        let range = ByteRange::between(offset, offset + part.len() * SECTOR_SIZE);
                        writer.refer(range, at)?;
                    }
                    None => copy_data((pair, part), offset, &self.stop, &mut buffer, &mut writer)?,
                }
            }
            Ok(())
        })?;
        let written = writer.finish()?;
        if let CommitHold::Stack(maintenance) = &mut self.hold {
            maintenance.awaiting = Some(self.size);
        }
        Ok(written)
    }

    /// Calls `visit` with the merged extents, each with its pair, in the order of the disk.
    fn visit(&self, visit: &mut impl FnMut(&Pair, SectorExtent) -> Result<()>) -> Result<()> {
        let runs: Vec<_> = self.levels.iter().map(|level| &level.runs).collect();
        let end = runs.iter().map(|runs| runs.end()).max().unwrap_or(0);
        visit_merged(&runs, 0, end, &mut |level, extent| visit(&self.levels[level].pair, extent))
    }
}

impl Maintenance {
    /// Refuses work on the frozen pairs while a committed layer is to take their place.
    pub(super) fn check_not_awaiting(&self) -> Result<()> {
        if self.awaiting.is_none() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "a committed layer waits to take the place of its pairs")
            .remedy("finish or abandon the commit first"))
    }
}

impl WritableDisk {
    /// Begins a commit of the changes that the disk made to its base, in the state of this moment, while reads and
    /// writes go on. Nothing in the directory changes. Several commits may go on at once, also during garbage
    /// collection.
    ///
    /// # Errors
    /// Errors of flushing the disk.
    pub fn begin_commit(&self) -> Result<BegunCommit<'_>> {
        self.flush()?;
        // The data files keep their content in place as long as the snapshot exists.
        let snapshot = self.snapshot();
        let (levels, size) = (snapshot.levels.clone(), snapshot.size);
        Ok(BegunCommit {
            levels,
            size,
            hold: CommitHold::Snapshot { _snapshot: snapshot },
            stop: Arc::default(),
        })
    }

    /// Writes the changes that the disk made to its base as a sealed layer, in the state of one moment, while
    /// reads and writes go on. The disk stays as it is. Reads and writes do not wait for a commit, and
    /// several commits may run at once, also during garbage collection. `meta.virtual_size` is ignored: the
    /// layer has the disk's size.
    ///
    /// # Errors
    /// Errors of flushing the disk, of reading its files and of `out`.
    pub fn commit<W: Write>(&self, out: W, meta: LayerMeta) -> Result<(W, LayerSummary)> {
        self.begin_commit()?.write(out, meta)
    }

    /// Starts a new pair of files for further writes, and begins a commit of the content of the pairs below it, while
    /// reads and writes go on. Once the layer is written and the caller has made it part of its image, it must call
    /// [`replace_frozen`](Self::replace_frozen). Until that call, or
    /// [`abandon_commit`](Self::abandon_commit), [`collect_garbage`](Self::collect_garbage) fails, and
    /// [`collect`](Self::collect) moves no data out of these pairs. A second call starts over, and its
    /// layer has the writes since the first call too.
    ///
    /// The layer has the disk's size. If the disk has grown past its base, the layer does not hide data that
    /// the layers of the base may have past the base's own size; see
    /// [`replace_frozen`](Self::replace_frozen).
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while a collection or another commit is in progress, or if the disk has the most pairs
    /// that it can have; errors of the files.
    pub fn begin_stack(&self) -> Result<BegunCommit<'_>> {
        let mut maintenance = self.maintain()?;
        maintenance.awaiting = None;
        self.freeze()?;
        let view = self.view();
        // What another commit set aside of the new pair stays above.
        let levels = view.generation.frozen[view.generation.set_aside().len()..].to_vec();
        Ok(BegunCommit {
            levels,
            size: view.size,
            hold: CommitHold::Stack(maintenance),
            stop: Arc::default(),
        })
    }

    /// Begins a commit as [`begin_stack`](Self::begin_stack) does, and writes its layer.
    ///
    /// # Errors
    /// Those of [`begin_stack`](Self::begin_stack); errors of `out`.
    pub fn stack_and_commit<W: Write>(&self, out: W, meta: LayerMeta) -> Result<(W, LayerSummary)> {
        self.begin_stack()?.write(out, meta)
    }

    /// Ends a [`stack_and_commit`](Self::stack_and_commit), once its layer is part of the caller's image.
    /// `base` is the old base with the committed layer on top; it takes the place of the old base and of the
    /// pairs of files that were committed. `parent` is the name of the new base from now on. A crash leaves
    /// either the old state or the new one, so the caller must keep the old base and the new one until this returns.
    ///
    /// If the disk has grown past its base, the caller must add a layer that hides old data. A stack has the size of
    /// its topmost layer, and lower layers may have data beyond that size, up to the stack's
    /// [`end`](crate::Stack::end). Such data of the old base does not show on this disk, which reads as zeros past the
    /// old base's size. It would show in the new base, because the committed layer gives the new base the disk's size.
    /// So put a layer between the old layers and the committed one, in `base` and in the image, that has zeroed
    /// segments from the old base's size to the old base's `end`. If that `end` does not exceed the old base's size, no
    /// such layer is needed.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if there is no committed layer, or while a collection or another commit is in
    /// progress; [`ErrorKind::Invalid`] if `base` does not have the size of the disk at the time of that
    /// commit; errors of the files.
    pub fn replace_frozen(&self, base: Arc<dyn BlockDevice>, parent: String) -> Result<()> {
        self.check_usable()?;
        let mut maintenance = self.maintain_patiently()?;
        let Some(size) = maintenance.awaiting else {
            return Err(Error::new(ErrorKind::Conflict, "no committed layer waits to be put below")
                .remedy("commit one with stack_and_commit first"));
        };
        if base.size() != size {
            return Err(Error::invalid(format!(
                "the new base has {} bytes, but the committed layer is of a disk of {size}",
                base.size()
            ))
            .remedy("give the old layers with the committed one on top"));
        }
        self.replace_lower(Vec::new(), Some((base, parent)))?;
        maintenance.awaiting = None;
        Ok(())
    }

    /// Cancels a [`stack_and_commit`](Self::stack_and_commit) whose layer is not needed any more. The content
    /// of the disk stays as it is, and garbage collection may use all pairs again. Does nothing if no committed layer
    /// waits for [`replace_frozen`](Self::replace_frozen).
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] while a collection or another commit is in progress.
    pub fn abandon_commit(&self) -> Result<()> {
        self.maintain_patiently()?.awaiting = None;
        Ok(())
    }
}

fn check_stop(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        Err(Error::new(ErrorKind::Cancelled, "the commit was stopped"))
    } else {
        Ok(())
    }
}

/// Copies the data at `from`, which is that of the disk from byte `offset` on.
fn copy_data<W: Write>(
    (pair, from): (&Pair, FileRange),
    offset: u64,
    stop: &AtomicBool,
    buffer: &mut Vec<u8>,
    writer: &mut LayerWriter<W>,
) -> Result<()> {
    let len = from.len() * SECTOR_SIZE;
    let mut done = 0;
    while done < len {
        check_stop(stop)?;
        let part = (len - done).min(COPY_CHUNK);
        buffer.resize(to_usize(part), 0);
        pair.read_at(buffer, from.start * SECTOR_SIZE + done)?;
        writer.data(offset + done, buffer)?;
        done += part;
    }
    Ok(())
}
