//! One immutable layer: the place of its bytes and the sectors of the disk that they hold.
//!
//! A layer may have three forms. Each is read as a sorted table of segments, and a source with the bytes that the
//! segments name:
//!
//! * **sealed**: header, data, table, trailer. Committed and merged layers have this form, and writable ones that were
//!   closed. Only the trailer, the last 4096 bytes, tells where the table is.
//! * **unsealed pair**: a data file, and beside it a log of records; see [`crate::pair`].
//! * **sparse**: sector `s` is stored at byte `4096 + 512 s`, and the holes of the file take the place of a table. This
//!   form cannot record that a sector was discarded, so data of a lower layer shows through it. Headstart reads such
//!   layers and never writes them.
//!
//! # Layers with a target
//!
//! The metadata of a TurboOCI layer is a sealed layer of which only a part of the bytes is in its own file: the content
//! of files stays where it is, in the tar that the layer was made of, its *target*. Nothing in such a file says so,
//! only the image does. The tag of each record on disk says where the bytes are:
//!
//! * 0: in this file, as in any layer;
//! * 1: in the target, uncompressed; `moffset` counts sectors from its start.
//!
//! The target may begin with data, so places in it start with sector 0. Its segments are kept apart from the layer's
//! own: in a [stack](crate::Stack), both are tables of their own, which do not overlap, so that reading needs nothing
//! that a layer without a target would pay for.
//!
//! The checks of a sealed layer are those of OverlayBD, the reference implementation (records in order, without
//! overlap, inside the data). In addition, sizes are checked against the length of the file, whatever a header claims.

use crate::Segment;
use crate::format::{FIRST_DATA_SECTOR, Flags, PAGE_SIZE, Page};
use headstart_block::{Error, FileSource, ReadAt, Result, SECTOR_SIZE, to_usize};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::sync::Arc;
use uuid::Uuid;

/// Bytes of the table that are read at once.
const TABLE_CHUNK: usize = 256 << 10;
/// Most records that a table or a log may have, padding included; the reference's limit for a merged view.
pub(crate) const MAX_RECORDS: u64 = 128_000_000;
/// The tag of records whose bytes are in the layer's own file, in a layer with a target.
const OWN_TAG: u8 = 0;
/// The tag of records whose bytes are in the target.
pub(crate) const TARGET_TAG: u8 = 1;
const NEEDS_TARGET: &str = "the layer is damaged; or it is the metadata of a TurboOCI layer, whose data is in a tar: \
                            open the image instead";

/// The form of the file or files that hold a layer; see the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerForm {
    /// A complete file: header, data, table of segments, trailer.
    Sealed,
    /// An unsealed data file, and the index file with the log of its segments.
    Pair,
    /// An unsealed sparse file, whose holes take the place of a table.
    Sparse,
}

/// Describes a layer, from its header or trailer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerInfo {
    /// The form of the file or files that hold the layer.
    pub form: LayerForm,
    /// Size of the disk in bytes; 0 if the disk has the size that the layers below give it.
    pub virtual_size: u64,
    /// The id of the layer; the nil UUID if it has none.
    pub uuid: Uuid,
    /// The id of the layer below; the nil UUID if the layer names none.
    pub parent_uuid: Uuid,
    /// Free text that the creator of the layer chose.
    pub user_tag: String,
    /// Number of records in the stored index, padding included. Of a sparse layer, the number of its
    /// segments; of a pair, the number of records in its log without padding and empty ones.
    pub records: u64,
    /// Length in bytes of the layer (of a pair: of its data file), without a tar archive or compression
    /// around it.
    pub file_size: u64,
}

/// An immutable layer of a disk, opened for reading. Clones share the segments and the source.
#[derive(Clone)]
pub struct Layer {
    source: Arc<dyn ReadAt>,
    /// Shared by clones: an image may have the same layer many times.
    segments: Arc<[Segment]>,
    target: Option<LayerTarget>,
    info: LayerInfo,
}

/// The file beside a layer's own that has a part of the layer's bytes, and the segments of that part.
#[derive(Clone)]
pub struct LayerTarget {
    source: Arc<dyn ReadAt>,
    segments: Arc<[Segment]>,
}

impl Layer {
    /// Opens a sealed layer. `source` is the layer itself, without a tar archive or compression around it.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if header, trailer or table are damaged;
    /// [`headstart_block::ErrorKind::Unsupported`] if the layer was never sealed; errors of the source.
    pub fn open(source: Arc<dyn ReadAt>) -> Result<Self> {
        Self::open_sealed(source, None)
    }

    /// Opens a sealed layer that has a part of its bytes in `target`, as the metadata of TurboOCI layers has; see the
    /// [module](self). `target` is the uncompressed tar.
    ///
    /// # Errors
    /// As [`Layer::open`]; [`headstart_block::ErrorKind::Corrupt`] also if a record names bytes that the target does
    /// not have.
    pub fn open_with_target(source: Arc<dyn ReadAt>, target: Arc<dyn ReadAt>) -> Result<Self> {
        Self::open_sealed(source, Some(target))
    }

    fn open_sealed(source: Arc<dyn ReadAt>, target: Option<Arc<dyn ReadAt>>) -> Result<Self> {
        let header = Page::read_header(&source)?;
        if !header.flags.has(Flags::DATA) {
            return Err(Error::corrupt("it is the index file of a writable layer, not a layer")
                .remedy("give the data file and this one together as a pair"));
        }
        if is_unsealed_sparse(&header, source.len()) {
            return Err(Error::unsupported(
                "it is a sparse layer that was never sealed: its index is its holes",
            )
            .remedy("open it as a file, or commit it"));
        }
        let trailer = read_trailer(&source, header.flags)?;
        let (segments, elsewhere) = read_table(&source, &trailer, target.as_ref().map(ReadAt::len))?;
        let info = LayerInfo::from_page(LayerForm::Sealed, &trailer, trailer.index_size, source.len());
        let target = target.map(|source| LayerTarget { source, segments: elsewhere.into() });
        Ok(Self { source, segments: segments.into(), target, info })
    }

    /// Opens a file that holds a sealed layer or an unsealed sparse one. The header, the file's length and the trailer
    /// tell which.
    ///
    /// # Errors
    /// Those of [`Layer::open`] and [`Layer::open_sparse`], with the path of the file.
    pub fn open_file(file: FileSource) -> Result<Self> {
        let name = file.path().display().to_string();
        let sparse = Page::read_header(&file).is_ok_and(|page| {
            page.flags.has(Flags::SPARSE)
                && (is_unsealed_sparse(&page, file.len()) || read_trailer(&file, page.flags).is_err())
        });
        if sparse { Self::open_sparse(file) } else { Self::open(Arc::new(file)) }.map_err(|e| e.about(name))
    }

    /// Opens an unsealed sparse layer: the holes of the file are the sectors that the layer does not have.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the header is not that of a sparse layer, or the file is
    /// shorter than the disk it holds; errors of the file.
    pub fn open_sparse(file: FileSource) -> Result<Self> {
        let header = Page::read_header(&file)?;
        let end = header.virtual_size.checked_add(PAGE_SIZE as u64).filter(|end| *end <= file.len());
        let Some(end) = end.filter(|_| header.flags.has(Flags::DATA | Flags::SPARSE)) else {
            return Err(Error::corrupt("it is not a whole sparse layer")
                .remedy("copy it again with its holes (cp --sparse, tar -S)"));
        };
        let segments = segments_of_holes(&file, end)?;
        let info = LayerInfo::from_page(LayerForm::Sparse, &header, segments.len() as u64, file.len());
        Ok(Self { source: Arc::new(file), segments: segments.into(), target: None, info })
    }

    /// A layer whose table was made elsewhere; the caller vouches for it.
    pub(crate) fn from_parts(source: Arc<dyn ReadAt>, segments: Vec<Segment>, info: LayerInfo) -> Self {
        Self { source, segments: segments.into(), target: None, info }
    }

    /// Describes the layer, from its header or trailer.
    #[must_use]
    pub fn info(&self) -> &LayerInfo {
        &self.info
    }

    /// The segments of the layer, ascending by their offset on the disk, without padding and overwritten
    /// ones. Those of a target are not among them.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The bytes of the layer, in which [`Segment::moffset`] counts sectors.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }

    /// The file beside the layer's own that has a part of its bytes; `None` unless the layer was opened with one.
    #[must_use]
    pub fn target(&self) -> Option<&LayerTarget> {
        self.target.as_ref()
    }
}

impl LayerTarget {
    /// The bytes of the target, in which [`Segment::moffset`] of its segments counts sectors.
    #[must_use]
    pub fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }

    /// The segments whose bytes are in the target, ascending by their offset on the disk. None of them overlaps one of
    /// the layer's own.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl LayerInfo {
    pub(crate) fn from_page(form: LayerForm, page: &Page, records: u64, file_size: u64) -> Self {
        Self {
            form,
            virtual_size: page.virtual_size,
            uuid: page.uuid,
            parent_uuid: page.parent_uuid,
            user_tag: page.user_tag.to_text(),
            records,
            file_size,
        }
    }
}

/// `true` if a file of `len` bytes with this header ends with the last byte of its disk. Bytes that look like a
/// trailer in a sparse file of that length are the disk's own: the guest keeps a layer there.
fn is_unsealed_sparse(header: &Page, len: u64) -> bool {
    header.flags.has(Flags::SPARSE) && header.virtual_size.checked_add(PAGE_SIZE as u64) == Some(len)
}

fn read_trailer(source: &(impl ReadAt + ?Sized), header: Flags) -> Result<Page> {
    let unsealed = || {
        Error::unsupported("it has no trailer: it was never sealed, or its end is missing").remedy(
            "commit it, or give it with its index file as a pair; if it was sealed once, fetch it again",
        )
    };
    // A file of one page has no room for a trailer that is not its header.
    let offset = source.len().checked_sub(PAGE_SIZE as u64).filter(|offset| *offset >= PAGE_SIZE as u64);
    let trailer = Page::read(source, offset.ok_or_else(unsealed)?, "trailer")
        .map_err(|e| if header.has(Flags::SEALED) { e } else { unsealed() })?;
    if trailer.flags.has(Flags::HEADER) || !trailer.flags.has(Flags::DATA | Flags::SEALED) {
        return Err(Error::corrupt(format!(
            "its trailer's flags are {:#x}, not those of a sealed layer",
            trailer.flags.0
        )));
    }
    Ok(trailer)
}

/// Reads and checks the table of a sealed layer. Memory is bounded by the file (a record takes 16 bytes in
/// both) and grows with what is really read: the length of a compressed file is a claim, too. `target` is the length of
/// the layer's target, if it has one; the second list is that of the segments there.
fn read_table(
    source: &(impl ReadAt + ?Sized),
    trailer: &Page,
    target: Option<u64>,
) -> Result<(Vec<Segment>, Vec<Segment>)> {
    let trailer_offset = source.len() - PAGE_SIZE as u64;
    let room = trailer_offset.checked_sub(trailer.index_offset);
    let bytes = trailer.index_size.checked_mul(Segment::RECORD_SIZE as u64);
    let (Some(room), Some(bytes)) = (room, bytes) else { return Err(bad_table(trailer, trailer_offset)) };
    if bytes > room || trailer.index_offset < PAGE_SIZE as u64 || trailer.index_size > MAX_RECORDS {
        return Err(bad_table(trailer, trailer_offset));
    }
    let data_end = trailer.index_offset / SECTOR_SIZE;
    let (mut segments, mut elsewhere) = (Vec::new(), Vec::new());
    let mut end = 0;
    for_each_record(source, trailer.index_offset, bytes, |record| {
        let segment = record.with_layer(0);
        let (place, list) = match target {
            Some(len) if record.layer() != OWN_TAG => (check_target(record, len), &mut elsewhere),
            _ => (check_place(segment, data_end), &mut segments),
        };
        check_order(segment, end).and(place).map_err(|e| match record.layer() {
            TARGET_TAG if target.is_none() => e.remedy(NEEDS_TARGET),
            _ => e.remedy("the layer is damaged: fetch it again"),
        })?;
        end = segment.end();
        // A record of length 0 is accepted by the reference, and holds nothing.
        if segment.len() > 0 {
            list.push(segment);
        }
        Ok(())
    })?;
    Ok((segments, elsewhere))
}

/// Checks a record of a layer with a target that is not of the layer's own file. `len` is the target's length.
fn check_target(record: Segment, len: u64) -> Result<()> {
    if record.layer() != TARGET_TAG || record.is_zeroed() {
        return Err(Error::corrupt(format!(
            "index record {record:?} is neither of the layer nor of its target"
        )));
    }
    if record.end() > Segment::PADDING_OFFSET || record.mend() > len / SECTOR_SIZE {
        return Err(Error::corrupt(format!(
            "index record {record:?} points outside the target ({} sectors)",
            len / SECTOR_SIZE
        ))
        .remedy("the layer belongs to another target, or the target is truncated: fetch both again"));
    }
    Ok(())
}

/// Reads `bytes` bytes of records at `offset` and hands on those that are no padding, with the tags that they have.
pub(crate) fn for_each_record(
    source: &(impl ReadAt + ?Sized),
    offset: u64,
    bytes: u64,
    mut each: impl FnMut(Segment) -> Result<()>,
) -> Result<()> {
    let mut chunk = vec![0; TABLE_CHUNK.min(to_usize(bytes))];
    let end = offset.saturating_add(bytes);
    let mut offset = offset;
    while offset < end {
        let len = chunk.len().min(to_usize(end - offset));
        source.read_at(&mut chunk[..len], offset)?;
        for record in chunk[..len].as_chunks::<{ Segment::RECORD_SIZE }>().0 {
            let segment = Segment::from_record(*record);
            if !segment.is_padding() {
                each(segment)?;
            }
        }
        offset += len as u64;
    }
    Ok(())
}

fn bad_table(trailer: &Page, trailer_offset: u64) -> Error {
    let (offset, size) = (trailer.index_offset, trailer.index_size);
    Error::corrupt(format!(
        "its index of {size} records at byte {offset} does not fit before its trailer at {trailer_offset}"
    ))
    .remedy("the layer is damaged: fetch it again")
}

fn check_order(segment: Segment, end: u64) -> Result<()> {
    if segment.offset() < end {
        return Err(Error::corrupt(format!(
            "index record {segment:?} is out of order or overlaps the one before"
        )));
    }
    Ok(())
}

/// Checks that a record names sectors that a disk can have and data before sector `data_end`.
pub(crate) fn check_place(segment: Segment, data_end: u64) -> Result<()> {
    if segment.end() > Segment::PADDING_OFFSET {
        return Err(Error::corrupt(format!(
            "index record {segment:?} reaches past the largest disk there is"
        )));
    }
    if segment.moffset() < FIRST_DATA_SECTOR || segment.mend() > data_end {
        return Err(Error::corrupt(format!(
            "index record {segment:?} points outside the layer's data (sectors 8 to {data_end})"
        )));
    }
    Ok(())
}

/// The data extents of a sparse layer up to byte `end`, as segments; runs are cut to what a segment can name.
fn segments_of_holes(file: &FileSource, end: u64) -> Result<Vec<Segment>> {
    let failed = |e: Errno| Error::io("cannot find its holes", e.into()).about(file.path().display());
    let mut segments = Vec::new();
    let mut cursor = PAGE_SIZE as u64;
    while cursor < end {
        let data = match seek(file.file(), SeekFrom::Data(cursor)) {
            Ok(data) if data < end => data,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(e) => return Err(failed(e)),
        };
        let hole = seek(file.file(), SeekFrom::Hole(data)).map_err(failed)?.min(end);
        let first = (data - PAGE_SIZE as u64) / SECTOR_SIZE;
        let last = (hole - PAGE_SIZE as u64).div_ceil(SECTOR_SIZE);
        if last >= Segment::PADDING_OFFSET {
            return Err(Error::corrupt("it is larger than a segment can address"));
        }
        let mut offset = first;
        while offset < last {
            let len = (last - offset).min(Segment::MAX_LEN);
            segments.push(Segment::data(offset, len, offset + FIRST_DATA_SECTOR));
            offset += len;
        }
        cursor = hole;
    }
    Ok(segments)
}
