//! Reading a trace of any writer.

use super::thrift::Value;
use super::{COLUMNS, Column, HEADER_MAX, Header, KEY, LINK, PAGE_MAX, Physical, READ, VERSION, WRITE};
use crate::record::{Op, Record};
use crate::trace::{Creation, LinkSample, Trace};
use headstart_block::{ByteRange, Error, Result, to_usize};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The limits on a trace file; a file beyond them is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// The maximum size of a file, in bytes.
    pub file_bytes_max: u64,
    /// The maximum number of records and link samples of a trace together. Each takes up to 48 bytes of memory in the
    /// trace, and more while the file is read.
    pub records_max: usize,
}

impl Default for ReadLimits {
    /// Limits of 256 MiB for a file, and of 2^22 records and link samples.
    fn default() -> Self {
        Self { file_bytes_max: 256 << 20, records_max: 4 << 20 }
    }
}

/// At both ends of a Parquet file.
const MAGIC: &[u8] = b"PAR1";
/// Most bytes of a footer: it takes up to 80 times its size in memory.
const FOOTER_MAX: usize = 4 * HEADER_MAX;
/// Numbers of Parquet's enumerations.
const ZSTD: i64 = 6;
const PLAIN: i64 = 0;
const RLE: i64 = 3;
const DATA_PAGE: i64 = 0;

/// Reads the trace in the Parquet file at `path`.
///
/// # Errors
/// Those of [`read`]; [`headstart_block::ErrorKind::Invalid`] if the file is larger than `limits` allow;
/// errors of the operating system. All of them name the file.
pub fn read_file(path: &Path, limits: &ReadLimits) -> Result<Trace> {
    let about = |e: Error| e.about(path.display());
    read_bounded(path, limits.file_bytes_max).and_then(|bytes| read(&bytes, limits)).map_err(about)
}

/// Reads a file of `max` bytes at most.
pub(crate) fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|e| Error::io("cannot be opened", e))?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Error::io("cannot be read", e))?;
    if bytes.len() as u64 > max {
        return Err(Error::invalid(format!("has more than {max} bytes")));
    }
    Ok(bytes)
}

/// Parses the trace in `bytes`, the content of a Parquet file.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the file is not Parquet, is damaged, or is not sorted by time;
/// [`headstart_block::ErrorKind::Unsupported`] if the file is Parquet but no trace, if its version is newer than the
/// newest that headstart knows, or if it has a form of Parquet that headstart does not write;
/// [`headstart_block::ErrorKind::Invalid`] if it has more records than `limits` allow.
pub fn read(bytes: &[u8], limits: &ReadLimits) -> Result<Trace> {
    let trace = read_any_order(bytes, limits)?;
    if !trace.records.is_sorted_by_key(|record| record.t_us)
        || !trace.link.is_sorted_by_key(|sample| sample.t_us)
    {
        return Err(Error::corrupt("its records are not in the order of time"));
    }
    Ok(trace)
}

/// As [`read`], but the records may be in any order.
pub(crate) fn read_any_order(bytes: &[u8], limits: &ReadLimits) -> Result<Trace> {
    let footer = footer(bytes)?;
    let (footer, _) = Value::parse(footer)?;
    let header = header(&footer)?;
    check_schema(&footer)?;
    let mut trace = Trace { creation: header.creation, dropped: header.dropped, ..Trace::default() };
    let groups = footer.list(4).ok_or_else(|| no("row groups"))?;
    let mut rows = Vec::with_capacity(groups.len());
    for group in groups {
        rows.push(group.size(3).ok_or_else(|| no("a row group's length"))?);
    }
    if rows.iter().fold(0_usize, |sum, rows| sum.saturating_add(*rows)) > limits.records_max {
        return Err(Error::invalid(format!("has more than {} records", limits.records_max)));
    }
    for (group, rows) in groups.iter().zip(rows) {
        read_group(bytes, group, rows, &mut trace)?;
    }
    Ok(trace)
}

/// The creation in the file at `path`; reads only the footer.
///
/// # Errors
/// As [`read_file`].
pub fn read_creation(path: &Path) -> Result<Creation> {
    let read = || {
        let io = |e| Error::io("cannot be read", e);
        // Opening a pipe would wait for its writer.
        if !path.metadata().map_err(io)?.is_file() {
            return Err(Error::unsupported("is not a file"));
        }
        let file = File::open(path).map_err(|e| Error::io("cannot be opened", e))?;
        let len = file.metadata().map_err(io)?.len();
        let mut start = [0; MAGIC.len()];
        const END: usize = 4 + MAGIC.len();
        let mut end = [0; END];
        if len < (start.len() + END) as u64 {
            return Err(Error::corrupt("is not a Parquet file, or was cut short"));
        }
        file.read_exact_at(&mut start, 0).map_err(io)?;
        file.read_exact_at(&mut end, len - END as u64).map_err(io)?;
        // A file of nothing but both ends and the footer has that footer.
        let [a, b, c, d, ..] = end;
        let footer_len = u64::from(u32::from_le_bytes([a, b, c, d])).min(FOOTER_MAX as u64 + 1);
        let from = len.saturating_sub(END as u64 + footer_len).max(start.len() as u64);
        let mut bytes = start.to_vec();
        let rest = to_usize(len - from);
        bytes.resize(start.len() + rest, 0);
        file.read_exact_at(&mut bytes[start.len()..], from).map_err(io)?;
        let (footer, _) = Value::parse(footer(&bytes)?)?;
        Ok(header(&footer)?.creation)
    };
    read().map_err(|e: Error| e.about(path.display()))
}

fn no(what: &str) -> Error {
    Error::corrupt(format!("has no {what}"))
}

/// The footer's bytes: before its length and the magic at the end.
fn footer(bytes: &[u8]) -> Result<&[u8]> {
    let rest = bytes
        .strip_prefix(MAGIC)
        .and_then(|rest| rest.strip_suffix(MAGIC))
        .ok_or_else(|| Error::corrupt("is not a Parquet file, or was cut short"))?;
    let (rest, len) = rest.split_last_chunk::<4>().ok_or_else(|| no("footer"))?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > FOOTER_MAX {
        return Err(Error::unsupported(format!("has a footer of {len} bytes: not a trace of headstart's")));
    }
    let start = rest.len().checked_sub(len).ok_or_else(|| no("whole footer"))?;
    rest.get(start..).ok_or_else(|| no("footer"))
}

/// The metadata of the trace in the file.
fn header(footer: &Value<'_>) -> Result<Header<Creation>> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    let entries = footer.list(5).unwrap_or_default();
    let entry = entries.iter().find(|entry| entry.bytes(1) == Some(KEY.as_bytes()));
    let json =
        entry.and_then(|entry| entry.bytes(2)).filter(|json| json.len() <= HEADER_MAX).ok_or_else(|| {
            Error::unsupported(format!(
                "is a Parquet file without a valid `{KEY}`: not a trace of headstart's"
            ))
        })?;
    let malformed = |e| Error::corrupt(format!("its `{KEY}` is malformed")).caused_by(e);
    let Versioned { version } = serde_json::from_slice(json).map_err(malformed)?;
    if version > VERSION {
        return Err(Error::unsupported(format!(
            "is a trace of version {version}; {VERSION} is the newest known"
        ))
        .remedy("use a newer headstart"));
    }
    serde_json::from_slice(json).map_err(malformed)
}

fn check_schema(footer: &Value<'_>) -> Result<()> {
    let elements = footer.list(2).ok_or_else(|| no("schema"))?;
    let same = |(element, column): (&Value<'_>, &Column)| {
        let physical = match column.physical {
            Physical::Int32 => 1,
            Physical::Int64 => 2,
        };
        element.bytes(4) == Some(column.name.as_bytes())
            && element.int(1) == Some(physical)
            && element.int(3) == Some(i64::from(column.nullable))
    };
    let columns = elements.get(1..).unwrap_or_default();
    if columns.len() != COLUMNS.len() || !columns.iter().zip(&COLUMNS).all(same) {
        return Err(Error::unsupported("is a Parquet file with other columns than a trace has"));
    }
    Ok(())
}

/// Reads one row group into `trace`.
fn read_group(file: &[u8], group: &Value<'_>, rows: usize, trace: &mut Trace) -> Result<()> {
    let chunks = group.list(1).filter(|chunks| chunks.len() == COLUMNS.len()).ok_or_else(|| no("columns"))?;
    let mut pages = Pages::new()?;
    let mut columns = Vec::with_capacity(COLUMNS.len());
    for (chunk, column) in chunks.iter().zip(&COLUMNS) {
        let values =
            pages.read(file, chunk, column, rows).map_err(|e| e.about(format!("column `{}`", column.name)));
        columns.push(values?);
    }
    let [times, ops, offsets, lengths, services, bandwidths, round_trips] = &columns[..] else {
        return Err(no("columns"));
    };
    for row in 0..rows {
        let t_us = times.value(row)?;
        match u32::try_from(ops.value(row)?) {
            Ok(LINK) => trace.link.push(LinkSample {
                t_us,
                bandwidth: bandwidths.get(row),
                round_trip_us: round_trips.get(row).and_then(|us| u32::try_from(us).ok()),
            }),
            Ok(op @ (READ | WRITE)) => {
                let range = ByteRange::new(offsets.value(row)?, lengths.value(row)?)
                    .ok_or_else(|| Error::corrupt("has a request past the end of all disks"))?;
                let op = if op == READ { Op::Read } else { Op::Write };
                let service_us = services.get(row).and_then(|us| u32::try_from(us).ok());
                trace.records.push(Record { t_us, op, range, service_us });
            }
            _ => return Err(Error::corrupt("has a request that is neither a read nor a write")),
        }
    }
    Ok(())
}

/// A column of a row group.
#[derive(Default)]
struct ColumnValues {
    /// The values, row by row; 0 where a row has none.
    values: Vec<u64>,
    /// The rows of a nullable column that have a value.
    present: Vec<bool>,
}

impl ColumnValues {
    fn get(&self, row: usize) -> Option<u64> {
        self.values.get(row).copied().filter(|_| self.present.get(row) != Some(&false))
    }

    fn value(&self, row: usize) -> Result<u64> {
        self.get(row).ok_or_else(|| Error::corrupt("has a row without a value"))
    }
}

/// Reads columns page by page.
struct Pages {
    zstd: zstd_safe::DCtx<'static>,
    page: Vec<u8>,
}

impl Pages {
    fn new() -> Result<Self> {
        let zstd = zstd_safe::DCtx::try_create()
            .ok_or_else(|| Error::new(headstart_block::ErrorKind::Io, "no memory for zstd"))?;
        Ok(Self { zstd, page: Vec::new() })
    }

    /// Reads a column of `rows` rows.
    fn read(&mut self, file: &[u8], chunk: &Value<'_>, column: &Column, rows: usize) -> Result<ColumnValues> {
        let meta = chunk.field(3).ok_or_else(|| no("description"))?;
        if meta.int(4) != Some(ZSTD) || meta.int(11).is_some() {
            return Err(foreign());
        }
        let (start, len) = meta.size(9).zip(meta.size(7)).ok_or_else(|| no("place in the file"))?;
        let end = start.checked_add(len).ok_or_else(|| no("place in the file"))?;
        let mut rest = file.get(start..end).ok_or_else(|| no("place in the file"))?;
        let mut read = ColumnValues::default();
        let mut left = rows;
        while left > 0 {
            let (header, header_len) = Value::parse(rest)?;
            let page = PageHeader::of(&header)?;
            rest = rest.get(header_len..).unwrap_or_default();
            let (stored, after) = rest.split_at_checked(page.stored_len).ok_or_else(|| no("whole page"))?;
            rest = after;
            left = left
                .checked_sub(page.rows)
                .filter(|_| page.rows > 0)
                .ok_or_else(|| Error::corrupt("has a page of another number of rows than there should be"))?;
            self.decompress(stored, page.len)?;
            read.append(&self.page, column, page.rows)?;
        }
        Ok(read)
    }

    fn decompress(&mut self, stored: &[u8], len: usize) -> Result<()> {
        self.page.clear();
        self.page.reserve_exact(len);
        let result = self.zstd.decompress(&mut self.page, stored);
        result.map_err(|code| {
            Error::corrupt(format!("a page is not valid zstd: {}", zstd_safe::get_error_name(code)))
        })?;
        if self.page.len() != len {
            return Err(Error::corrupt("a page has another length than it says"));
        }
        Ok(())
    }
}

fn foreign() -> Error {
    Error::unsupported("is stored in another way than headstart's traces").remedy(
        "write it as the documentation of headstart's trace files says: zstd, plain pages of the first kind",
    )
}

struct PageHeader {
    stored_len: usize,
    len: usize,
    rows: usize,
}

impl PageHeader {
    fn of(header: &Value<'_>) -> Result<Self> {
        let data = header.field(5).filter(|_| header.int(1) == Some(DATA_PAGE)).ok_or_else(foreign)?;
        if data.int(2) != Some(PLAIN) || data.int(3) != Some(RLE) {
            return Err(foreign());
        }
        let (len, stored_len) = header.size(2).zip(header.size(3)).ok_or_else(|| no("length of a page"))?;
        if len > PAGE_MAX {
            return Err(foreign());
        }
        Ok(Self { stored_len, len, rows: data.size(1).ok_or_else(|| no("number of rows"))? })
    }
}

impl ColumnValues {
    /// Appends the values of a page.
    fn append(&mut self, mut page: &[u8], column: &Column, rows: usize) -> Result<()> {
        if column.nullable {
            let (len, rest) = page.split_first_chunk::<4>().ok_or_else(too_short)?;
            let len = u32::from_le_bytes(*len) as usize;
            let (levels, values) = rest.split_at_checked(len).ok_or_else(too_short)?;
            append_levels(&mut self.present, levels, rows)?;
            page = values;
        }
        for row in self.values.len()..self.values.len() + rows {
            if self.present.get(row) == Some(&false) {
                self.values.push(0);
                continue;
            }
            let (value, rest) = match column.physical {
                Physical::Int32 => {
                    let (value, rest) = page.split_first_chunk().ok_or_else(too_short)?;
                    (u64::from(u32::from_le_bytes(*value)), rest)
                }
                Physical::Int64 => {
                    let (value, rest) = page.split_first_chunk().ok_or_else(too_short)?;
                    (u64::from_le_bytes(*value), rest)
                }
            };
            self.values.push(value);
            page = rest;
        }
        Ok(())
    }
}

fn too_short() -> Error {
    Error::corrupt("a page has fewer values than it says")
}

/// Appends, for each of `rows` rows, `true` if it has a value.
///
/// Parquet's hybrid of runs, one bit wide: a number, whose lowest bit tells groups of eight single bits from a run of
/// equal ones, and then the bits, or one byte.
fn append_levels(present: &mut Vec<bool>, mut levels: &[u8], rows: usize) -> Result<()> {
    let mut byte = || {
        let (first, rest) = levels.split_first().ok_or_else(too_short)?;
        levels = rest;
        Ok::<_, Error>(*first)
    };
    let mut left = rows;
    while left > 0 {
        let mut number = 0_u64;
        for shift in (0..35).step_by(7) {
            let part = byte()?;
            number |= u64::from(part & 0x7f) << shift;
            if part & 0x80 == 0 {
                break;
            }
        }
        let len = to_usize(number >> 1);
        if len == 0 {
            return Err(too_short());
        }
        if number & 1 == 0 {
            let run = len.min(left);
            let has_value = byte()? & 1 == 1;
            present.extend((0..run).map(|_| has_value));
            left -= run;
        } else {
            for _ in 0..len.min(left.div_ceil(8)) {
                let bits = byte()?;
                let group = left.min(8);
                present.extend((0..group).map(|bit| bits >> bit & 1 == 1));
                left -= group;
            }
        }
    }
    Ok(())
}
