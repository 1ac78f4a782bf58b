//! Writing the content of the pairs as a sealed layer.

use super::WritableDisk;
use super::pair::Pair;
use super::runs::{ExtentKind, SectorExtent, visit_merged};
use super::view::Frozen;
use crate::layer_writer::{LayerMeta, LayerSummary, LayerWriter};
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, Result, SECTOR_SIZE};
use std::io::Write;
use std::sync::Arc;

/// Bytes copied at once: a multiple of the 32 KiB that a layer's runs are recorded in.
const COPY_CHUNK: u64 = 1 << 20;

impl WritableDisk {
    /// Writes the changes that the disk made to its base as a sealed layer, in the state of one moment, while
    /// reads and writes go on. The disk stays as it is. Reads and writes do not wait for a commit, and
    /// several commits may run at once, also during garbage collection. `meta.virtual_size` is ignored: the
    /// layer has the disk's size.
    ///
    /// # Errors
    /// Errors of flushing the disk, of reading its files and of `out`.
    pub fn commit<W: Write>(&self, out: W, meta: LayerMeta) -> Result<(W, LayerSummary)> {
        self.flush()?;
        // The data files keep their content in place as long as the snapshot exists.
        let snapshot = self.snapshot();
        write_layer(&snapshot.levels, out, LayerMeta { virtual_size: snapshot.size, ..meta })
    }

    /// Starts a new pair of files for further writes, and writes the content of the pairs below it as a sealed layer,
    /// while reads and writes go on. Once the caller has made that layer part of its image, it must call
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
    /// that it can have; errors of the files and of `out`.
    pub fn stack_and_commit<W: Write>(&self, out: W, meta: LayerMeta) -> Result<(W, LayerSummary)> {
        let mut maintenance = self.maintain()?;
        maintenance.awaiting = None;
        self.freeze()?;
        let (frozen, size) = {
            let view = self.view();
            // What another commit set aside of the new pair stays above.
            (view.generation.frozen[view.generation.set_aside().len()..].to_vec(), view.size)
        };
        let written = write_layer(&frozen, out, LayerMeta { virtual_size: size, ..meta })?;
        maintenance.awaiting = Some(size);
        Ok(written)
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
        let mut maintenance = self.maintain()?;
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
        self.maintain()?.awaiting = None;
        Ok(())
    }
}

/// Writes the merged content of `levels`, topmost first, as a layer.
fn write_layer<W: Write>(levels: &[Arc<Frozen>], out: W, meta: LayerMeta) -> Result<(W, LayerSummary)> {
    let runs: Vec<_> = levels.iter().map(|level| &level.runs).collect();
    let end = runs.iter().map(|runs| runs.end()).max().unwrap_or(0);
    let mut writer = LayerWriter::new(out, meta)?;
    let mut buffer = Vec::new();
    visit_merged(&runs, 0, end, &mut |level, extent| match extent.kind {
        ExtentKind::Data(moffset) => {
            copy_data(&levels[level].pair, moffset, extent, &mut buffer, &mut writer)
        }
        _ => writer.zeroes(ByteRange::between(extent.start * SECTOR_SIZE, extent.end * SECTOR_SIZE)),
    })?;
    writer.finish()
}

fn copy_data<W: Write>(
    from: &Pair,
    moffset: u64,
    extent: SectorExtent,
    buffer: &mut Vec<u8>,
    writer: &mut LayerWriter<W>,
) -> Result<()> {
    let (offset, len) = (extent.start * SECTOR_SIZE, extent.len() * SECTOR_SIZE);
    let mut done = 0;
    while done < len {
        let part = (len - done).min(COPY_CHUNK);
        buffer.resize(part as usize, 0);
        from.read_at(buffer, moffset * SECTOR_SIZE + done)?;
        writer.data(offset + done, buffer)?;
        done += part;
    }
    Ok(())
}
