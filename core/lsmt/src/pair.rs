//! Reading an unsealed writable layer: a data file and the log of records beside it.
//!
//! The index file is a header page, and then records in the order in which they were written; a later record hides an
//! earlier one. The length of the file gives the number of records; a partial last record is ignored, and padding
//! records may be anywhere. This code reads pairs that any tool made. [`crate::writable`] opens its own pairs by
//! itself: it also detects the end of the last complete group of records.

use crate::Segment;
use crate::format::{Flags, PAGE_SIZE, Page};
use crate::index::overlay;
use crate::layer::{Layer, LayerForm, LayerInfo, MAX_RECORDS, check_place, for_each_record};
use headstart_block::{Error, ReadAt, Result, SECTOR_SIZE};
use std::sync::Arc;

/// Opens an unsealed writable layer for reading: `data` is its data file, and `index` the file with the log
/// of its segments.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if a file is damaged, the two are of different layers, or a record
/// points outside the data; [`headstart_block::ErrorKind::Unsupported`] for a log of more than 128 million
/// records; errors of reading the files.
pub fn open_pair(data: Arc<dyn ReadAt>, index: &dyn ReadAt) -> Result<Layer> {
    let data_header = Page::read_header(&data).map_err(|e| e.about("data file"))?;
    let index_header = Page::read_header(index).map_err(|e| e.about("index file"))?;
    check_headers(&data_header, &index_header)?;
    let log = read_log(index, data.len() / SECTOR_SIZE)?;
    let info = LayerInfo::from_page(LayerForm::Pair, &data_header, log.len() as u64, data.len());
    let segments = replay(&log);
    Ok(Layer::from_parts(data, segments, info))
}

/// Checks that two headers are those of one pair.
pub(crate) fn check_headers(data: &Page, index: &Page) -> Result<()> {
    if !data.flags.has(Flags::DATA) || data.flags.has(Flags::SPARSE) || index.flags.has(Flags::DATA) {
        return Err(Error::corrupt("these are not the data file and the index file of a writable layer")
            .remedy("give them in this order: DATA,INDEX"));
    }
    if data.uuid != index.uuid {
        let (data, index) = (data.uuid, index.uuid);
        return Err(Error::corrupt(format!(
            "the data file is of layer {data}, but the index file of {index}"
        ))
        .remedy("give two files of the same layer"));
    }
    Ok(())
}

/// Reads the records of a log, without those of length 0 and padding. Memory grows with the records that are kept:
/// a hostile index file may be all holes.
fn read_log(index: &dyn ReadAt, data_end: u64) -> Result<Vec<Segment>> {
    let records = index.len().saturating_sub(PAGE_SIZE as u64) / Segment::RECORD_SIZE as u64;
    if records > MAX_RECORDS {
        return Err(Error::unsupported(format!(
            "its index file has room for {records} records, more than the {MAX_RECORDS} that a log may have"
        )));
    }
    let mut log = Vec::new();
    for_each_record(index, PAGE_SIZE as u64, records * Segment::RECORD_SIZE as u64, |record| {
        let segment = record.with_layer(0);
        if segment.len() > 0 {
            check_place(segment, data_end)
                .map_err(|e| e.remedy("the pair is damaged, or its files are not of the same moment"))?;
            log.push(segment);
        }
        Ok(())
    })?;
    Ok(log)
}

/// The live segments of a log: each record is a layer of its own over those before, and overlaying is
/// associative, so halves are replayed apart and then overlaid (O(n log n)).
pub(crate) fn replay(log: &[Segment]) -> Vec<Segment> {
    match log {
        [] => Vec::new(),
        [one] => vec![*one],
        _ => {
            let (earlier, later) = log.split_at(log.len() / 2);
            overlay(&replay(later), &replay(earlier))
        }
    }
}
