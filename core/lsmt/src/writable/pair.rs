//! The two files of a writable pair: data appended to one, the log of records in the other.

use super::data_file::DataFile;
use super::files::{Directory, LogFile};
use super::left::Left;
use super::log::{self, Group, Log, LogEnd};
use super::pending::Pending;
use super::runs::RunMap;
use super::space::FileRange;
use super::state::{PairFiles, State};
use super::torn;
use crate::Segment;
use crate::format::{FIRST_DATA_SECTOR, Flags, PAGE_SIZE, Page, UserTag};
use crate::pair::check_headers;
use headstart_block::{Error, ErrorKind, ReadAt, Result, SECTOR_SIZE};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uuid::Uuid;

/// The user tag of pairs whose log has seals; other pairs are replayed record by record.
const SEALED_TAG: &str = "headstart-pair-1";
/// The stem of the tag, common to all versions.
const SEALED_TAG_STEM: &str = "headstart-pair-";

/// An open pair. Reading and appending data take no lock; the log is the flusher's.
pub(super) struct Pair {
    /// Its number in the directory.
    pub(super) number: u64,
    data: DataFile,
    /// Sectors of the data file that were given to writes, the header included.
    end: AtomicU64,
    /// Sectors among these that were punched.
    punched: AtomicU64,
    log: Mutex<PairLog>,
    /// Bytes of the log, as of the last group.
    log_bytes: AtomicU64,
    /// Bytes of the log of which `state.json` notes that they are durable.
    noted_bytes: AtomicU64,
    /// `true` while other directories have its files, too: nothing in them may change.
    shared: AtomicBool,
    uuid: Uuid,
}

/// The log, and the records that are on their way into it.
pub(super) struct PairLog {
    pub(super) file: Box<dyn LogFile>,
    pub(super) log: Log,
    pub(super) unwritten: Vec<Segment>,
}

/// The log of a pair that may be damaged.
pub(super) struct Salvaged {
    /// Its file.
    pub(super) file: Box<dyn LogFile>,
    /// Its whole groups.
    pub(super) log: Log,
    /// `true` if these reach the noted end.
    pub(super) reaches: bool,
}

impl Pair {
    /// Creates the files of pair `number` and syncs them; their names are the caller's to sync.
    pub(super) fn create(directory: &dyn Directory, state: &State, number: u64) -> Result<Self> {
        let files = PairFiles::of(number);
        let uuid = state.pair_uuid(number);
        let data = directory.create(&files.data)?;
        let index = directory.create(&files.index)?;
        let (data_header, index_header) = headers(uuid, state.virtual_size)?;
        data.write_at(&data_header.encode(), 0)?;
        index.write_at(&index_header.encode(), 0)?;
        // Only now, because file systems bring both into their journals by the first.
        data.sync()?;
        index.sync()?;
        let log = Log::new(uuid);
        Ok(Self::assemble(
            number,
            data,
            PairLog { file: index, log, unwritten: Vec::new() },
            FIRST_DATA_SECTOR,
            uuid,
        ))
    }

    fn assemble(number: u64, data: Box<dyn LogFile>, log: PairLog, end: u64, uuid: Uuid) -> Self {
        let (log_bytes, noted_bytes) = (AtomicU64::new(log.log.len()), AtomicU64::new(0));
        let (end, punched) = (AtomicU64::new(end), AtomicU64::new(0));
        let data = DataFile::new(data);
        let shared = AtomicBool::new(false);
        Self { number, data, end, punched, log: Mutex::new(log), log_bytes, noted_bytes, shared, uuid }
    }

    /// Opens a pair and replays its log, which must reach the `noted` end, and what a killed process has `left`, which
    /// is the caller's to [bring into the log](Self::log_left). The torn tail of an interrupted flush is
    /// cut off both files, which are the caller's to sync. Nothing is cut off the files of a pair that `may_be_shared`
    /// and has other names: they were whole when they got these.
    pub(super) fn recover(
        directory: &dyn Directory,
        files: &PairFiles,
        noted: Option<LogEnd>,
        may_be_shared: bool,
        left: &Left,
    ) -> Result<(Self, RunMap)> {
        let number = files.number().ok_or_else(|| Error::corrupt("no pair has such names"))?;
        let (data, index) = (open(directory, files, &files.data)?, open(directory, files, &files.index)?);
        let named = |name: &str| format!("{}/{name}", directory.name());
        let index_header = read_headers(directory, files, &*data, &*index)?;
        let uuid = index_header.uuid;
        let (mut runs, mut end) = (RunMap::default(), FIRST_DATA_SECTOR);
        let mut replay = |segment: Segment| {
            end = end.max(segment.mend());
            runs.insert(segment.into());
        };
        let data_len = data.len()?;
        let tag = index_header.user_tag.to_text();
        let log = if tag == SEALED_TAG {
            Log::recover(&*index, uuid, data_len / SECTOR_SIZE, noted, &mut replay)
        } else if tag.starts_with(SEALED_TAG_STEM) {
            Err(Error::unsupported(format!("its log is of the form {tag}"))
                .remedy("use the program that made it"))
        } else if noted.is_some() {
            Err(Error::corrupt("its header is not the one that it had"))
        } else {
            log::replay_plain(&*index, data_len / SECTOR_SIZE, &mut replay).map(|()| Log::new(uuid))
        };
        let log = log.map_err(|e| {
            let is_damaged = e.kind() == ErrorKind::Corrupt;
            let e = e.about(named(&files.index));
            if is_damaged { e.remedy(torn::remedy(files, &directory.name())) } else { e }
        })?;
        let is_shared = may_be_shared && data.links()? > 1;
        let mut unwritten = Vec::new();
        if tag == SEALED_TAG && !is_shared {
            for record in left.records(number, &*data, log.end())? {
                let zeroed = || Segment::zeroed(record.offset(), record.len(), end);
                unwritten.push(if record.is_zeroed() { zeroed() } else { record });
                end = end.max(record.mend());
                runs.insert(record.into());
            }
        }
        let data_len = data.len()?;
        if tag == SEALED_TAG && !is_shared {
            torn::cut_tail(directory, &*index, &files.index, &log)?;
            if end * SECTOR_SIZE < data_len {
                if noted != Some(log.end()) {
                    let bytes = data_len - end * SECTOR_SIZE;
                    torn::warn_of_data(&named(&files.data), bytes);
                }
                data.set_len(end * SECTOR_SIZE)?;
            }
        }
        let log = PairLog { file: index, log, unwritten };
        let taken = data.taken()?;
        let pair = Self::assemble(number, data, log, end, uuid);
        if is_shared {
            pair.shared.store(true, Ordering::Relaxed);
            // The directory that made the holes knows of them, and this one does not.
            pair.count_punched((end * SECTOR_SIZE).saturating_sub(taken) / SECTOR_SIZE);
        }
        pair.set_noted(noted.map_or(0, |noted| noted.bytes));
        Ok((pair, runs))
    }

    /// The log of a pair, whatever is behind its whole groups; `None` for a pair of another program.
    pub(super) fn salvage_log(
        directory: &dyn Directory,
        files: &PairFiles,
        noted: Option<LogEnd>,
    ) -> Result<Option<Salvaged>> {
        let (data, index) = (open(directory, files, &files.data)?, open(directory, files, &files.index)?);
        let named = |name: &str| format!("{}/{name}", directory.name());
        let header = read_headers(directory, files, &*data, &*index)?;
        if header.user_tag != UserTag::new(SEALED_TAG)? {
            return Ok(None);
        }
        let data_end = data.len()? / SECTOR_SIZE;
        let salvaged = Log::salvage(&*index, header.uuid, data_end, noted);
        let (log, reaches) = salvaged.map_err(|e| e.about(named(&files.index)))?;
        Ok(Some(Salvaged { file: index, log, reaches }))
    }

    /// `true` if a log with seals may be continued here: not behind a log that was made without them.
    pub(super) fn is_sealed(&self) -> Result<bool> {
        Ok(read_header(&*self.log().file)?.user_tag == UserTag::new(SEALED_TAG)?)
    }

    /// Writes `data`, whole sectors, at the end of the data file; returns the sector where it is stored. With `pending`
    /// it survives this process; the sector of its copy in that file comes along if it is not in the data file yet.
    ///
    /// # Errors
    /// Errors of the file, with the sectors that no write can use any more, if there are any.
    pub(super) fn append(
        &self,
        data: &[u8],
        pending: Option<&Arc<Pending>>,
    ) -> std::result::Result<(u64, Option<u32>), (Error, Option<FileRange>)> {
        let sectors = data.len() as u64 / SECTOR_SIZE;
        let start = self.end.fetch_add(sectors, Ordering::Relaxed);
        let written = if start + sectors > Segment::MAX_MOFFSET {
            Err(Error::new(ErrorKind::NoSpace, "the data file is at the format's limit")
                .remedy("collect its garbage, or commit it"))
        } else {
            self.data.write_at(data, start * SECTOR_SIZE, pending)
        };
        written.map(|copy| (start, copy)).map_err(|error| {
            // The place is free again, unless another writer already took the one behind it.
            let end = start + sectors;
            let freed = self.end.compare_exchange(end, start, Ordering::Relaxed, Ordering::Relaxed);
            (error, freed.err().map(|_| FileRange { pair: self.number, start, end }))
        })
    }

    /// Reads data from byte `offset` of the data file on.
    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.data.read_at(buf, offset)
    }

    /// Writes the data that waited in memory for holes to the data file.
    ///
    /// # Errors
    /// Errors of the file. Nothing is lost: the write can be tried again.
    pub(super) fn write_kept(&self) -> Result<()> {
        self.data.write_kept()
    }

    /// Makes the content of the data file durable.
    pub(super) fn sync_data(&self) -> Result<()> {
        self.data.sync()
    }

    /// One past the last sector of the data file that was given to a write.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    /// Sectors of data that take space in the data file, live or not.
    pub(super) fn data_sectors(&self) -> u64 {
        (self.end() - FIRST_DATA_SECTOR).saturating_sub(self.punched.load(Ordering::Relaxed))
    }

    /// Gives the space of the sectors `[start, end)` back, whole blocks of which nothing is needed; `false` where the
    /// file system cannot.
    pub(super) fn punch(&self, start: u64, end: u64) -> Result<bool> {
        self.data.punch(start * SECTOR_SIZE, (end - start) * SECTOR_SIZE)
    }

    /// Counts sectors that were punched, or are about to be.
    pub(super) fn count_punched(&self, sectors: u64) {
        self.punched.fetch_add(sectors, Ordering::Relaxed);
    }

    /// Takes such a count back.
    pub(super) fn count_unpunched(&self, sectors: u64) {
        self.punched.fetch_sub(sectors, Ordering::Relaxed);
    }

    /// `true` while other directories have its files, too: nothing in them may change.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// Notes that other directories are about to get its files.
    pub(super) fn set_shared(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// Looks for other names of its data file, and notes if there are none any more. Returns whether that is news.
    pub(super) fn became_own(&self) -> bool {
        // A count that cannot be read may be anything.
        let is_news = self.is_shared() && self.data.file().links().is_ok_and(|links| links <= 1);
        if is_news {
            self.shared.store(false, Ordering::Relaxed);
        }
        is_news
    }

    /// `true` if both its files have names in other directories as well.
    pub(super) fn has_other_names(&self) -> bool {
        let more = |file: &dyn LogFile| file.links().is_ok_and(|links| links > 1);
        more(self.data.file()) && more(&*self.log().file)
    }

    /// Its id.
    pub(super) fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// The log; only the holder of the disk's flush lock waits for a file while it has it.
    pub(super) fn log(&self) -> MutexGuard<'_, PairLog> {
        self.log.lock()
    }

    /// Writes the first unwritten records of `log`, which is this pair's, as a group; the caller syncs the file.
    /// `expect` is told the end of the log before, and the one that it gets.
    pub(super) fn write_group(
        &self,
        log: &PairLog,
        expect: impl FnOnce(LogEnd, LogEnd) -> Result<()>,
    ) -> Result<Group> {
        let group = log.log.group(&log.unwritten);
        expect(log.log.end(), group.end)?;
        log.log.write_group(&*log.file, &group)?;
        Ok(group)
    }

    /// Counts a group in, now that the file was synced: its records are no longer unwritten.
    pub(super) fn accept(&self, log: &mut PairLog, group: &Group) {
        log.log.accept(group);
        log.unwritten.drain(..group.records);
        self.log_bytes.store(log.log.len(), Ordering::Relaxed);
    }

    /// Brings the records that a killed process has left into the log, durably; the data is the caller's to sync first.
    pub(super) fn log_left(&self) -> Result<()> {
        let mut log = self.log();
        while !log.unwritten.is_empty() {
            let group = self.write_group(&log, |_, _| Ok(()))?;
            log.file.sync()?;
            self.accept(&mut log, &group);
        }
        Ok(())
    }

    /// Puts another file with another log, of the same records or more, in the place of the log.
    pub(super) fn replace_log(&self, log: &mut PairLog, file: Box<dyn LogFile>, new: Log) {
        self.log_bytes.store(new.len(), Ordering::Relaxed);
        self.set_noted(0);
        (log.file, log.log) = (file, new);
    }

    /// Bytes that the log has beyond its noted end, its header apart.
    pub(super) fn unnoted_bytes(&self) -> u64 {
        self.log_bytes().saturating_sub(self.noted_bytes.load(Ordering::Relaxed).max(PAGE_SIZE as u64))
    }

    /// Records that `bytes` bytes of the log are noted.
    pub(super) fn set_noted(&self, bytes: u64) {
        self.noted_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of the log's file up to the end of the log.
    pub(super) fn log_bytes(&self) -> u64 {
        self.log_bytes.load(Ordering::Relaxed)
    }

    /// Writes the size of the disk to both headers, for other programs; this one reads it from the state.
    pub(super) fn set_virtual_size(&self, size: u64) -> Result<()> {
        let (data, index) = headers(self.uuid, size)?;
        self.data.file().write_at(&data.encode(), 0)?;
        self.log().file.write_at(&index.encode(), 0)
    }

    /// Makes the headers durable.
    pub(super) fn sync_both(&self) -> Result<()> {
        self.data.sync()?;
        self.log().file.sync()
    }

    /// The size of the disk in the headers, if they agree.
    pub(super) fn virtual_size(&self) -> Result<Option<u64>> {
        let data = read_header(self.data.file())?.virtual_size;
        let index = read_header(&*self.log().file)?.virtual_size;
        Ok((data == index).then_some(data))
    }

    /// Bytes that both files take.
    pub(super) fn file_bytes(&self) -> u64 {
        (FIRST_DATA_SECTOR + self.data_sectors()) * SECTOR_SIZE + self.log_bytes()
    }
}

/// Removes the files of a pair that is no longer, or not yet, part of the disk. Best effort: the next open
/// removes what stays.
pub(super) fn remove_files(directory: &dyn Directory, number: u64) {
    let files = PairFiles::of(number);
    let _ = directory.remove(&files.data);
    let _ = directory.remove(&files.index);
}

/// The header of an index file.
pub(super) fn index_header(uuid: Uuid, virtual_size: u64) -> Result<Page> {
    Ok(headers(uuid, virtual_size)?.1)
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

/// Opens one of the files of a pair. One that is gone is damage, not a directory without a disk.
fn open(directory: &dyn Directory, files: &PairFiles, name: &str) -> Result<Box<dyn LogFile>> {
    directory.open(name).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::corrupt("the file is missing, and state.json names it")
            .about(format!("{}/{name}", directory.name()))
            .remedy(torn::remedy_without_header(files)),
        _ => e,
    })
}

/// Reads the headers of both files of a pair, which belong together; returns that of the index.
fn read_headers(
    directory: &dyn Directory,
    files: &PairFiles,
    data: &dyn LogFile,
    index: &dyn LogFile,
) -> Result<Page> {
    let read = |file: &dyn LogFile, name: &str| {
        let header = read_header(file).map_err(|e| match e.kind() {
            ErrorKind::Corrupt => {
                Error::corrupt("its header is cut off or damaged").remedy(torn::remedy_without_header(files))
            }
            _ => e,
        });
        header.map_err(|e| e.about(format!("{}/{name}", directory.name())))
    };
    let (data, index) = (read(data, &files.data)?, read(index, &files.index)?);
    check_headers(&data, &index).map_err(|e| e.about(directory.name()))?;
    Ok(index)
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
