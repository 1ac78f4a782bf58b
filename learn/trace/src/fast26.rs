//! The layout of the FAST'26 ThinkAhead data set.
//!
//! ```text
//! DIR/VD_creation_meta.csv                                                     one row a creation
//! DIR/trace/it{image_type}/{image_id}/{device_size}GB/{volume_id}.npy          its requests
//! ```
//!
//! A trace is a NumPy table of 64-bit numbers (n, 4), sorted by time: operation (1 read, 0 write), offset and length
//! in bytes, Unix time in microseconds. Zeroing and trimming, which the layout does not know, are writes. The sizes
//! in the paths are in GiB, rounded up.
//!
//! | column of the table of creations | here |
//! |---|---|
//! | `volume_id`, `image_id`, `device_size` | volume, image, size |
//! | `user_id`, `cluster_id`, `image_family` | user, cluster, family |
//! | `image_type` | the label `image_type`; `0` if the creation has no such label |
//! | `gmt_create`: UTC, whole seconds | the time of creation |
//! | `extra_info` | options |
//! | `meta_info` | the label `meta_info`; if the creation has no such label, the host and the other labels |
//!
//! An export loses the fields that the layout has no place for: service times, samples of the link, the count of
//! dropped requests, and the part of the time of creation below a second. If a trace was imported from such a data set,
//! and its file was sorted by time and written row by row, it is exported as the same bytes.
//!
//! Names of images and volumes are parts of paths. Bytes other than ASCII letters, digits and `-_.@+`, and a dot at the
//! start, are written as `%` and two hexadecimal digits, and an empty name as `%`; reading reverses this.

use crate::file::ReadLimits;
use crate::file::read_bounded;
use crate::npy::{self, NpyRow};
use crate::record::{Op, Record};
use crate::trace::{Creation, Trace};
use chrono::{DateTime, NaiveDateTime};
use headstart_block::guarded::{not_made_in, refuse_links};
use headstart_block::{ByteRange, Error, ErrorKind, Result, saturating};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The name of the table of creations in the directory of a data set.
pub const CREATIONS: &str = "VD_creation_meta.csv";
/// The directory of traces.
const TRACES: &str = "trace";
/// The format of `gmt_create`.
const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";
/// The time of creation of a disk whose own is not known.
const EPOCH: &str = "1970-01-01 00:00:00";
/// Labels that have a column of their own.
pub(crate) const IMAGE_TYPE: &str = "image_type";
pub(crate) const META_INFO: &str = "meta_info";
/// The exact text of `gmt_create` where the first request came before it.
const GMT_CREATE: &str = "gmt_create";
/// Longest table of creations.
const CSV_MAX: u64 = 256 << 20;
const GIB: u64 = 1 << 30;
const MICROS: i64 = 1_000_000;

/// A row of the table of creations; the order of fields is that of the columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreationRow {
    volume_id: String,
    image_type: String,
    image_id: String,
    device_size: u64,
    #[serde(default)]
    user_id: String,
    #[serde(default)]
    cluster_id: String,
    gmt_create: String,
    #[serde(default)]
    extra_info: String,
    #[serde(default)]
    meta_info: String,
    #[serde(default)]
    image_family: String,
}

impl CreationRow {
    /// The path of its trace, below the data set's directory.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a name would lead elsewhere.
    fn path(&self) -> Result<PathBuf> {
        for name in [&self.volume_id, &self.image_type, &self.image_id] {
            if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) || name.len() > 250 {
                return Err(Error::corrupt(format!("`{}` cannot be part of a path", name.escape_debug())));
            }
        }
        let gib = self.device_size.div_ceil(GIB);
        let directory = Path::new(TRACES).join(format!("it{}", self.image_type));
        Ok(directory.join(&self.image_id).join(format!("{gib}GB")).join(format!("{}.npy", self.volume_id)))
    }

    fn of(creation: &Creation) -> Result<Self> {
        let label = |name| creation.labels.get(name).cloned();
        // The last time that the type has is no date either.
        let seconds = saturating::<i64>(creation.created_us) / MICROS;
        let time = DateTime::from_timestamp(seconds, 0)
            .ok_or_else(|| Error::invalid("was created at a time that has no date"))?;
        let meta_info = || {
            let host = Some(("host", creation.host.as_str())).filter(|(_, host)| !host.is_empty());
            let labels = creation.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let all = host.into_iter().chain(labels).filter(|(key, _)| *key != IMAGE_TYPE);
            all.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";")
        };
        Ok(Self {
            volume_id: escape(&creation.volume),
            image_type: escape(&label(IMAGE_TYPE).unwrap_or_else(|| "0".to_owned())),
            image_id: escape(&creation.image),
            device_size: creation.size,
            user_id: creation.user.clone(),
            cluster_id: creation.cluster.clone(),
            gmt_create: label(GMT_CREATE).unwrap_or_else(|| time.format(TIME_FORMAT).to_string()),
            extra_info: creation.options.clone(),
            meta_info: label(META_INFO).unwrap_or_else(meta_info),
            image_family: creation.family.clone(),
        })
    }

    /// The creation.
    fn creation(self) -> Result<Creation> {
        let time = NaiveDateTime::parse_from_str(&self.gmt_create, TIME_FORMAT);
        let seconds = time.map(|time| time.and_utc().timestamp()).ok();
        let created = seconds.and_then(|s| u64::try_from(s.checked_mul(MICROS)?).ok()).ok_or_else(|| {
            Error::corrupt(format!("`{}` is not a time of creation", self.gmt_create.escape_debug()))
        })?;
        let labels =
            [(IMAGE_TYPE.to_owned(), self.image_type), (META_INFO.to_owned(), self.meta_info)].into();
        Ok(Creation {
            volume: unescape(&self.volume_id),
            image: unescape(&self.image_id),
            family: self.image_family,
            user: self.user_id,
            cluster: self.cluster_id,
            host: String::new(),
            options: self.extra_info,
            size: self.device_size,
            created_us: created,
            labels,
        })
    }
}

/// Returns the creation that a row of the table of creations describes; `column` returns the value of the column with a
/// given name, or `None` if the row has none. Without a value, a text of the creation is empty, its size is 0, and its
/// time is the start of 1970. An empty size or time counts as no value.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the size is not a number of bytes, or the time is malformed or before 1970.
pub fn creation_of(mut column: impl FnMut(&str) -> Option<String>) -> Result<Creation> {
    let size = column("device_size").filter(|size| !size.is_empty()).map(|size| {
        let bad = || Error::corrupt(format!("`{}` is not a device_size in bytes", size.escape_debug()));
        size.trim().parse().map_err(|_| bad())
    });
    let device_size = size.transpose()?.unwrap_or(0);
    let mut text = |name| column(name).unwrap_or_default();
    let row = CreationRow {
        volume_id: text("volume_id"),
        image_type: text("image_type"),
        image_id: text("image_id"),
        device_size,
        user_id: text("user_id"),
        cluster_id: text("cluster_id"),
        gmt_create: Some(text("gmt_create")).filter(|t| !t.is_empty()).unwrap_or_else(|| EPOCH.to_owned()),
        extra_info: text("extra_info"),
        meta_info: text("meta_info"),
        image_family: text("image_family"),
    };
    row.creation()
}

/// Moves the time of a creation that is later than the first request back to that request, because times count from
/// the creation. `first` is the time of the first request, in microseconds of Unix time.
pub(crate) fn not_after(creation: &mut Creation, first: u64) {
    if first < creation.created_us {
        let seconds = saturating::<i64>(creation.created_us) / MICROS;
        let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        creation.labels.insert(GMT_CREATE.to_owned(), time.format(TIME_FORMAT).to_string());
        creation.created_us = first;
    }
}

/// The content of a table of creations.
#[derive(Default)]
pub(crate) struct Listing {
    /// The file of each creation, relative to the data set's directory, and the creation.
    pub(crate) creations: Vec<(PathBuf, Creation)>,
    /// Rows that make no sense.
    pub(crate) malformed: Vec<Error>,
    /// Files that an earlier row names.
    pub(crate) repeated: Vec<PathBuf>,
    /// Files that no row names.
    pub(crate) unlisted: Vec<PathBuf>,
}

/// Reads the table of creations of the data set in `dir`, and looks for the files; reads no trace.
///
/// # Errors
/// [`ErrorKind::NotFound`] and [`ErrorKind::Corrupt`] for what is no data set.
pub(crate) fn list(dir: &Path) -> Result<Listing> {
    let table = dir.join(CREATIONS);
    let bytes = read_bounded(&table, CSV_MAX).map_err(|e| e.about(table.display()))?;
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(&bytes[..]);
    let headers = reader.byte_headers().map_err(|e| Error::corrupt("is not a table").caused_by(e));
    let headers = headers.map_err(|e| e.about(table.display()))?.clone();
    let mut listing = Listing::default();
    let mut listed = BTreeSet::new();
    for (number, row) in reader.byte_records().enumerate() {
        let row = row
            .map_err(|e| Error::corrupt(format!("row {}", number + 1)).caused_by(e))
            .and_then(|row| {
                row.deserialize::<CreationRow>(Some(&headers))
                    .map_err(|e| Error::corrupt(format!("row {}", number + 1)).caused_by(e))
            })
            .and_then(|row| Ok((row.path()?, row.creation()?)));
        match row {
            Ok((path, _)) if listed.contains(&path) => listing.repeated.push(path),
            Ok((path, creation)) => {
                listed.insert(path.clone());
                listing.creations.push((path, creation));
            }
            Err(error) => listing.malformed.push(error.about(table.display())),
        }
    }
    listing.unlisted = find_traces(dir)?.difference(&listed).cloned().collect();
    Ok(listing)
}

/// The volume that a file's name tells.
pub(crate) fn volume_of(path: &Path) -> String {
    path.file_stem().map(|stem| unescape(&stem.to_string_lossy())).unwrap_or_default()
}

/// Returns `true` if `dir` is a data set in this layout, that is, if it contains a table of creations.
#[must_use]
pub fn is_data_set(dir: &Path) -> bool {
    dir.join(CREATIONS).is_file()
}

/// The result of an import: counts, and the traces that were left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The number of traces that were read.
    pub traces: u64,
    /// The number of requests in these traces.
    pub records: u64,
    /// Messages about the traces that could not be read, each with the reason.
    pub unreadable: Vec<String>,
    /// The trace files that were not read, because the table of creations does not name them; as paths below the
    /// directory of the data set.
    pub unlisted: Vec<String>,
}

/// Reads the data set in `dir` and passes its traces to `each`, in the order of the table of creations. A
/// trace that cannot be read, or that exceeds `limits`, is noted in the result, and the others are read.
///
/// # Errors
/// Errors of `each`; [`ErrorKind::NotFound`] if there is no table of creations, [`ErrorKind::Corrupt`] if a row of the
/// table is malformed or names no valid path, [`ErrorKind::Invalid`] if the table has more than 256 MiB; errors of the
/// operating system.
pub fn import(
    dir: &Path,
    limits: &ReadLimits,
    mut each: impl FnMut(Trace) -> Result<()>,
) -> Result<Imported> {
    let table = dir.join(CREATIONS);
    let about = |e: Error| e.about(table.display());
    let bytes = read_bounded(&table, CSV_MAX)
        .map_err(|e| about(e).remedy("name the directory that has the table of creations in it"))?;
    let mut imported = Imported::default();
    let mut listed = BTreeSet::new();
    for (number, row) in csv::Reader::from_reader(&bytes[..]).deserialize::<CreationRow>().enumerate() {
        let row = row.map_err(|e| about(Error::corrupt(format!("row {}", number + 1)).caused_by(e)))?;
        let path = row.path().map_err(about)?;
        let trace = read_trace(&dir.join(&path), row, limits);
        listed.insert(path);
        match trace {
            Ok(trace) => {
                imported.traces += 1;
                imported.records += trace.records.len() as u64;
                each(trace)?;
            }
            Err(error) => imported.unreadable.push(error.to_string()),
        }
    }
    let found = find_traces(dir)?;
    imported.unlisted = found.difference(&listed).map(|path| path.display().to_string()).collect();
    Ok(imported)
}

/// Returns the total size of the trace files in a data set, in bytes. Files and directories that cannot be opened, or
/// do not exist, count as 0.
///
/// # Errors
/// Errors of the operating system.
pub fn stored_bytes(dir: &Path) -> Result<u64> {
    let len = |path: PathBuf| dir.join(path).metadata().map_or(0, |meta| meta.len());
    Ok(find_traces(dir)?.into_iter().map(len).sum())
}

/// The rows of a file, and the time of the first request, in microseconds of Unix time.
fn read_rows(path: &Path, limits: &ReadLimits) -> Result<(Vec<NpyRow>, Option<u64>)> {
    let read = || {
        let rows = npy::decode(&read_bounded(path, limits.file_bytes_max)?)?;
        if rows.len() > limits.records_max {
            return Err(Error::invalid(format!("has more than {} records", limits.records_max)));
        }
        let first = rows.iter().map(|row| row[3]).min().map(u64::try_from).transpose();
        Ok((rows, first.map_err(|_| Error::corrupt("has a time before 1970"))?))
    };
    read().map_err(|e: Error| e.about(path.display()))
}

fn read_trace(path: &Path, row: CreationRow, limits: &ReadLimits) -> Result<Trace> {
    let about = |e: Error| e.about(path.display());
    let (rows, first) = read_rows(path, limits)?;
    let mut creation = row.creation().map_err(about)?;
    if let Some(first) = first {
        not_after(&mut creation, first);
    }
    let records = records(&rows, creation.created_us).map_err(about)?;
    Ok(Trace { creation, records, ..Trace::default() })
}

/// Converts the rows of a trace file to requests, sorted by time. `created_us` is the time of creation in
/// microseconds of Unix time, from which the times of the requests count.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if a row is not a read or write with a valid range, or is earlier than
/// `created_us`.
pub fn records(rows: &[NpyRow], created_us: u64) -> Result<Vec<Record>> {
    let mut records = unsorted_records(rows, created_us)?;
    records.sort_by_key(|record| record.t_us);
    Ok(records)
}

/// As [`records`], in the order of the table.
pub(crate) fn unsorted_records(rows: &[NpyRow], created_us: u64) -> Result<Vec<Record>> {
    let record = |(number, row): (usize, &NpyRow)| {
        let wrong = || Error::corrupt(format!("row {number} is not a request: {row:?}"));
        let [op, offset, len, time] = row.map(|number| u64::try_from(number).ok());
        let op = match op {
            Some(0) => Op::Write,
            Some(1) => Op::Read,
            _ => return Err(wrong()),
        };
        let range =
            offset.zip(len).and_then(|(offset, len)| ByteRange::new(offset, len)).ok_or_else(wrong)?;
        let t_us = time.and_then(|time| time.checked_sub(created_us)).ok_or_else(wrong)?;
        Ok(Record { t_us, op, range, service_us: None })
    };
    rows.iter().enumerate().map(record).collect()
}

/// Converts the requests of a trace to the rows of a trace file.
///
/// # Errors
/// [`ErrorKind::Invalid`] if an offset, a length or a time needs more than 63 bits.
pub fn rows(trace: &Trace) -> Result<Vec<NpyRow>> {
    let row = |record: &Record| {
        let number = |number: u64| i64::try_from(number).ok();
        let time = trace.creation.created_us.checked_add(record.t_us).and_then(number);
        let range = number(record.range.offset()).zip(number(record.range.len()));
        let op = i64::from(record.op == Op::Read);
        range.zip(time).map(|((offset, len), time)| [op, offset, len, time])
    };
    let rows = trace.records.iter().map(|record| {
        row(record).ok_or_else(|| Error::invalid(format!("{record:?} does not fit into 63 bits")))
    });
    rows.collect()
}

/// The files of traces below `dir`, relative to it.
fn find_traces(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut level = vec![PathBuf::from(TRACES)];
    for _ in 0..4 {
        let mut below = Vec::new();
        for parent in &level {
            // What is not a directory holds no traces.
            let Ok(entries) = fs::read_dir(dir.join(parent)) else { continue };
            for entry in entries {
                let entry = entry.map_err(|e| Error::io("cannot be listed", e).about(parent.display()))?;
                below.push(parent.join(entry.file_name()));
            }
        }
        level = below;
    }
    Ok(level
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "npy"))
        .collect())
}

/// Writes a data set in this layout, one trace after another.
pub struct Exporter {
    dir: PathBuf,
    rows: Vec<CreationRow>,
}

impl Exporter {
    /// Makes an exporter that writes into `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if `dir` is a data set already, [`ErrorKind::Denied`] if the path leads
    /// through a symbolic link that belongs neither to root nor to this user; errors of the operating system.
    pub fn new(dir: &Path) -> Result<Self> {
        refuse_links(dir)?;
        if is_data_set(dir) {
            return Err(Error::new(ErrorKind::Conflict, "has a data set in it")
                .about(dir.display())
                .remedy("name another directory, or remove its content"));
        }
        fs::create_dir_all(dir).map_err(|e| not_made_in(dir, "cannot be made", e).about(dir.display()))?;
        Ok(Self { dir: dir.to_owned(), rows: Vec::new() })
    }

    /// Writes the file of a trace, and notes its creation for the table.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a number of the trace does not fit the layout, [`ErrorKind::Corrupt`] if a name is too
    /// long for a path, [`ErrorKind::Conflict`] if there is a file of the same image, size of disk (in GiB) and volume
    /// already; errors of the operating system.
    pub fn add(&mut self, trace: &Trace) -> Result<()> {
        let row = self.write(trace)?;
        self.rows.push(row);
        Ok(())
    }

    /// Writes the requests of a trace, and returns its row of the table. Any number of threads may do so.
    pub(crate) fn write(&self, trace: &Trace) -> Result<CreationRow> {
        let named = |e: Error| e.about(format!("volume `{}`", trace.creation.volume.escape_debug()));
        let row = CreationRow::of(&trace.creation).map_err(named)?;
        let path = self.dir.join(row.path().map_err(named)?);
        let file = npy::encode(&rows(trace).map_err(named)?);
        let about = |e| not_made_in(&self.dir, "cannot be written", e).about(path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(about)?;
        }
        // Nothing is followed that has the name already.
        let made = File::options().write(true).create_new(true).open(&path);
        if made.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AlreadyExists) {
            return Err(Error::new(ErrorKind::Conflict, "is there already: a volume comes twice")
                .about(path.display()));
        }
        made.and_then(|mut made| made.write_all(&file)).map_err(about)?;
        Ok(row)
    }

    /// As [`Exporter::finish`], with rows that [`Exporter::write`] returned.
    pub(crate) fn finish_with(mut self, rows: Vec<CreationRow>) -> Result<()> {
        self.rows.extend(rows);
        self.finish()
    }

    /// Writes the table of creations, sorted by volume. Until this is called, the directory is not a data set.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn finish(mut self) -> Result<()> {
        self.rows.sort_by(|a, b| (&a.volume_id, &a.image_id).cmp(&(&b.volume_id, &b.image_id)));
        let path = self.dir.join(CREATIONS);
        let about = |e| not_made_in(&self.dir, "cannot be written", e).about(path.display());
        let file = tempfile::NamedTempFile::new_in(&self.dir).map_err(about)?;
        let mut table = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(file);
        for row in &self.rows {
            table.serialize(row).map_err(|e| about(e.into()))?;
        }
        let file = table.into_inner().map_err(|e| about(e.into_error()))?;
        file.persist(&path).map_err(|e| about(e.error))?;
        Ok(())
    }
}

/// `true` if a byte of a name can stand in a path as it is.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@' | b'+')
}

/// A name as a part of a path; never empty.
pub(crate) fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        if is_plain(byte) && !(at == 0 && byte == b'.') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    if escaped.is_empty() { "%".to_owned() } else { escaped }
}

/// The name that [`escape`] made this of; anything else is left as it is.
fn unescape(escaped: &str) -> String {
    if escaped == "%" {
        return String::new();
    }
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok().filter(|name| escape(name) == escaped).unwrap_or_else(|| escaped.to_owned())
}

#[cfg(test)]
mod tests;
