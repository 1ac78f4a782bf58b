//! The two files of a writable pair: data appended to one, the log of records in the other.

use super::files::{Directory, LogFile};
use super::log::{self, Log};
use super::runs::RunMap;
use super::state::{PairFiles, State};
use crate::Segment;
use crate::format::{FIRST_DATA_SECTOR, Flags, PAGE_SIZE, Page, UserTag};
use crate::pair::check_headers;
use headstart_block::{Error, ErrorKind, ReadAt, Result, SECTOR_SIZE};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;

/// The user tag of pairs whose log has seals; other pairs are replayed record by record.
const SEALED_TAG: &str = "headstart-pair-1";
/// What every version of it begins with.
const SEALED_TAG_STEM: &str = "headstart-pair-";

/// An open pair. Reading and appending data take no lock; the log is the flusher's.
pub(super) struct Pair {
    /// Its number in the directory.
    pub(super) number: u64,
    data: Box<dyn LogFile>,
    index: Box<dyn LogFile>,
    /// Sectors of the data file that are taken, the header included.
    end: AtomicU64,
    log: Mutex<PairLog>,
    uuid: Uuid,
}

/// The log, and the records that are on their way into it.
pub(super) struct PairLog {
    pub(super) log: Log,
    pub(super) unwritten: Vec<Segment>,
}

impl Pair {
    /// Creates the files of pair `number` and syncs them; their names are the caller's to sync.
    pub(super) fn create(directory: &dyn Directory, state: &State, number: u64) -> Result<Self> {
        let files = PairFiles::of(number);
        let uuid = state.pair_uuid(number);
        let data = directory.create(&files.data)?;
        let index = directory.create(&files.index)?;
        let (data_header, index_header) = headers(uuid, state.virtual_size)?;
        for (file, header) in [(&data, data_header), (&index, index_header)] {
            file.write_at(&header.encode(), 0)?;
            file.sync()?;
        }
        let log = Mutex::new(PairLog { log: Log::new(uuid), unwritten: Vec::new() });
        Ok(Self { number, data, index, end: AtomicU64::new(FIRST_DATA_SECTOR), log, uuid })
    }

    /// Opens a pair and replays its log; the torn tail of an interrupted flush is cut off both files,
    /// which are the caller's to sync.
    pub(super) fn recover(directory: &dyn Directory, files: &PairFiles) -> Result<(Self, RunMap)> {
        let number = files.number().ok_or_else(|| Error::corrupt("no pair has such names"))?;
        let (data, index) = (directory.open(&files.data)?, directory.open(&files.index)?);
        let named = |name: &str| format!("{}/{name}", directory.name());
        let data_header = read_header(&*data).map_err(|e| e.about(named(&files.data)))?;
        let index_header = read_header(&*index).map_err(|e| e.about(named(&files.index)))?;
        check_headers(&data_header, &index_header).map_err(|e| e.about(directory.name()))?;
        let uuid = index_header.uuid;
        let (mut runs, mut end) = (RunMap::default(), FIRST_DATA_SECTOR);
        let mut replay = |segment: Segment| {
            end = end.max(segment.mend());
            runs.insert(segment.into());
        };
        let data_len = data.len()?;
        let tag = index_header.user_tag.to_text();
        let log = if tag == SEALED_TAG {
            Log::recover(&*index, uuid, data_len / SECTOR_SIZE, &mut replay)
        } else if tag.starts_with(SEALED_TAG_STEM) {
            Err(Error::unsupported(format!("its log is of the form {tag}"))
                .remedy("use the program that made it"))
        } else {
            log::replay_plain(&*index, data_len / SECTOR_SIZE, &mut replay).map(|()| Log::new(uuid))
        };
        let log = log.map_err(|e| e.about(named(&files.index)))?;
        if tag == SEALED_TAG && end * SECTOR_SIZE < data_len {
            data.set_len(end * SECTOR_SIZE)?;
        }
        let log = Mutex::new(PairLog { log, unwritten: Vec::new() });
        Ok((Self { number, data, index, end: AtomicU64::new(end), log, uuid }, runs))
    }

    /// Whether a log with seals may be continued here: not behind a log that was made without.
    pub(super) fn is_sealed(&self) -> Result<bool> {
        Ok(read_header(&*self.index)?.user_tag == UserTag::new(SEALED_TAG)?)
    }

    /// Writes `data`, whole sectors, at the end of the data file; returns the sector where it lies.
    pub(super) fn append(&self, data: &[u8]) -> Result<u64> {
        let sectors = data.len() as u64 / SECTOR_SIZE;
        let start = self.end.fetch_add(sectors, Ordering::Relaxed);
        if start + sectors > Segment::MAX_MOFFSET {
            return Err(Error::new(ErrorKind::NoSpace, "the data file is at the format's limit")
                .remedy("collect its garbage, or commit it"));
        }
        self.data.write_at(data, start * SECTOR_SIZE).inspect_err(|_| {
            // The place is free again, unless another writer already took the one behind it.
            let _ = self.end.compare_exchange(start + sectors, start, Ordering::Relaxed, Ordering::Relaxed);
        })?;
        Ok(start)
    }

    /// Reads data from byte `offset` of the data file on.
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.data.read_at(buf, offset)
    }

    /// Makes the data durable.
    pub(super) fn sync_data(&self) -> Result<()> {
        self.data.sync()
    }

    /// Sectors of data in the data file, live or not.
    pub(super) fn data_sectors(&self) -> u64 {
        self.end.load(Ordering::Relaxed) - FIRST_DATA_SECTOR
    }

    /// The log; only who holds the disk's flush lock waits for a file while it has it.
    pub(super) fn log(&self) -> std::sync::MutexGuard<'_, PairLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file of the log.
    pub(super) fn index(&self) -> &dyn LogFile {
        &*self.index
    }

    /// Tells both headers the size of the disk, for other programs; ours take the state's word.
    pub(super) fn set_virtual_size(&self, size: u64) -> Result<()> {
        let (data, index) = headers(self.uuid, size)?;
        self.data.write_at(&data.encode(), 0)?;
        self.index.write_at(&index.encode(), 0)
    }

    /// Makes the headers durable.
    pub(super) fn sync_both(&self) -> Result<()> {
        self.data.sync()?;
        self.index.sync()
    }

    /// The size of the disk as the headers have it, where they agree.
    pub(super) fn virtual_size(&self) -> Result<Option<u64>> {
        let data = read_header(&*self.data)?.virtual_size;
        let index = read_header(&*self.index)?.virtual_size;
        Ok((data == index).then_some(data))
    }

    /// Bytes of both files.
    pub(super) fn file_bytes(&self) -> u64 {
        self.end.load(Ordering::Relaxed) * SECTOR_SIZE + self.log().log.len()
    }
}

/// Removes the files of a pair that is no longer, or not yet, part of the disk. Best effort: the next open
/// removes what stays.
pub(super) fn remove_files(directory: &dyn Directory, number: u64) {
    let files = PairFiles::of(number);
    let _ = directory.remove(&files.data);
    let _ = directory.remove(&files.index);
}

fn headers(uuid: Uuid, virtual_size: u64) -> Result<(Page, Page)> {
    let data = Page {
        flags: Flags(Flags::HEADER | Flags::DATA),
        index_offset: 0,
        index_size: 0,
        virtual_size,
        uuid,
        parent_uuid: Uuid::nil(),
        user_tag: UserTag::new(SEALED_TAG)?,
    };
    let index = Page { flags: Flags(Flags::HEADER), index_offset: PAGE_SIZE as u64, ..data.clone() };
    Ok((data, index))
}

fn read_header(file: &dyn LogFile) -> Result<Page> {
    Page::read_header(&Whole { file, len: file.len()? })
}

/// A log file as a source of bytes.
struct Whole<'a> {
    file: &'a dyn LogFile,
    len: u64,
}

impl ReadAt for Whole<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_at(buf, offset)
    }
}
