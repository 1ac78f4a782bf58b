//! Flash in a file, a partition or an NVMe namespace. A channel is an extent of it, and erased blocks always read as
//! zeros.
//!
//! **Erasure.** `fallocate` with `PUNCH_HOLE` frees an extent of a file, which reads as zeros from then on. On a block
//! device the kernel turns the same call into a write of zeros that the device does by itself (never into a discard,
//! which may leave the data readable). If that is not possible the call is made with `ZERO_RANGE`; if that is not
//! possible either, zeros are written. [`Flash::erase`] then syncs the file before it returns, because only a synced
//! erasure outlasts a loss of power. [`Flash::erase_many`] syncs once for all its blocks. [`Flash::erase_soon`] does
//! not sync: a sync writes out all programs since the last one, and a vSSD that erases its own blocks as it goes would
//! write no faster than the disk.
//!
//! **Rules.** A file does not enforce the rules of NAND. A program is refused if this process has programmed that page,
//! or a later page of the block, since the last erasure of the block. The state of blocks before the flash was opened
//! is not known: the caller must erase a block once before it programs the block.
//!
//! **Bad blocks.** A block is bad from the moment when a program or an erasure of it fails in the way of a broken
//! medium, and that is on disk before any caller is told. A full file system, a device that is gone, and the like are
//! no fault of the block: these are [`FlashError::Failed`]. The error of a sync does not name the data that could not
//! be written. So if the sync after an erasure fails, the block is erased and synced again on its own. The block counts
//! as bad if that second sync fails as well (in the way of a broken medium), and a third one, with nothing of the block
//! left to write, succeeds.
//!
//! **Unreadable pages.** The system reports the same error, EIO, for a lost sector and for a device that is gone. After
//! such an error the read is tried again, page by page; the first page that fails again is [`FlashError::Unreadable`].
//!
//! **The table** beside the file holds the state that has to outlast the process. It is replaced whole, by a new file
//! and a rename: when a block turns bad, after every 1,024 erasures, and at the end. A crash loses at most the counts
//! of erasures since the last replacement. Its format is in `table`.

use super::table::{self, BAD};
use super::{Flash, FlashBlock, FlashError, Geometry, outside, whole_pages, within};
use headstart_block::guarded::{check_own, check_own_file};
use headstart_block::{Error, ErrorKind, to_usize};
use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The number of reads of other blocks that check if the flash answers.
const PROBES: u32 = 8;

/// The content of a block is unknown.
const UNKNOWN: u32 = u32::MAX;

/// The number of erasures whose counts a crash may lose.
const UNSAVED: u32 = 1024;

/// Flash stored in a file or on a block device, with a table of wear and bad blocks in a file of its own.
pub struct FileFlash {
    file: File,
    path: PathBuf,
    geometry: Geometry,
    table: PathBuf,
    /// Erasures and [`BAD`], as in the table.
    blocks: Vec<AtomicU32>,
    /// The first page that can still be programmed, or [`UNKNOWN`].
    next: Vec<AtomicU32>,
    /// Erasures since the table was saved; locked while it is being saved.
    unsaved: Mutex<u32>,
    /// `true` if a sync failed that no flush has reported: the system reports it once.
    lost: AtomicBool,
}

impl FileFlash {
    /// Makes flash of the file or block device at `path`. A file is created if it is missing, and is sparse; a device
    /// must not be mounted. **All its data is erased.** `table` is the path of the file for wear and bad blocks. For
    /// flash in a file the usual path is that of [`table_beside`](Self::table_beside).
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the file or device is in use, [`ErrorKind::Invalid`] if a device is too small or the
    /// layout is impossible, [`ErrorKind::Denied`] if the file belongs to neither root nor this user, errors of the
    /// operating system.
    pub fn create(path: &Path, table: &Path, geometry: Geometry) -> Result<Self, Error> {
        Self::create_after(path, table, geometry, |_| Ok(()))
    }

    /// Locks the file or device, calls `before` with it while nothing of it has changed, then does the same as
    /// [`Self::create`].
    ///
    /// # Errors
    /// As [`Self::create`]; errors of `before`, with nothing changed.
    pub fn create_after(
        path: &Path,
        table: &Path,
        geometry: Geometry,
        before: impl FnOnce(&File) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        geometry.check()?;
        let file = open_locked(path, true)?;
        before(&file)?;
        let about = |error: io::Error| Error::io("cannot be made flash", error).about(path.display());
        match std::fs::remove_file(table) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(about(error)),
            _ => {}
        }
        if is_device(&file) {
            check_length(&file, &geometry).map_err(|error| error.about(path.display()))?;
            for block in 0..geometry.total_blocks() {
                let size = u64::from(geometry.block_size());
                zero(&file, u64::from(block) * size, size).map_err(about)?;
            }
        } else {
            file.set_len(0).and_then(|()| file.set_len(geometry.size())).map_err(about)?;
        }
        file.sync_all().map_err(about)?;
        let total = geometry.total_blocks() as usize;
        let flash = Self::of((file, path), table, geometry, vec![0; total], 0);
        let saved = flash.save(&mut flash.unsaved.lock());
        saved.inspect_err(|_| flash.unmake())?;
        Ok(flash)
    }

    /// Undoes [`Self::create`] after a later failure: truncates the file to no bytes and removes the table, so that
    /// the next attempt can use the path. A device stays erased. Failures are only logged.
    pub fn unmake(&self) {
        let emptied = if is_device(&self.file) { Ok(()) } else { self.file.set_len(0) };
        let removed = std::fs::remove_file(&self.table);
        for error in [emptied, removed].into_iter().filter_map(Result::err) {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, path = %self.path.display(), "the file of a failed start is still there");
            }
        }
    }

    /// Opens flash that [`Self::create`] made, with its table at `table`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the flash or its table is missing, [`ErrorKind::Conflict`] if the flash is in use,
    /// [`ErrorKind::Corrupt`] if the table is damaged, [`ErrorKind::Unsupported`] if the table is of another version,
    /// [`ErrorKind::Invalid`] if the flash is smaller than the table says, [`ErrorKind::Denied`] if the flash belongs
    /// to neither root nor this user, errors of the operating system.
    pub fn open(path: &Path, table: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(table);
        let bytes = bytes.map_err(|error| Error::io("cannot be read", error).about(table.display()))?;
        let (geometry, blocks) = table::decode(&bytes).map_err(|error| error.about(table.display()))?;
        let file = open_locked(path, false)?;
        check_length(&file, &geometry).map_err(|error| error.about(path.display()))?;
        Ok(Self::of((file, path), table, geometry, blocks, UNKNOWN))
    }

    /// Returns the usual path of the table for flash in the file at `path`: the same path with `.flash`
    /// appended.
    #[must_use]
    pub fn table_beside(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".flash");
        PathBuf::from(name)
    }

    fn of(
        (file, path): (File, &Path),
        table: &Path,
        geometry: Geometry,
        blocks: Vec<u32>,
        next: u32,
    ) -> Self {
        Self {
            file,
            path: path.to_owned(),
            geometry,
            table: table.to_owned(),
            next: blocks.iter().map(|_| AtomicU32::new(next)).collect(),
            blocks: blocks.into_iter().map(AtomicU32::new).collect(),
            unsaved: Mutex::new(0),
            lost: AtomicBool::new(false),
        }
    }

    fn entry(&self, block: FlashBlock) -> Result<(&AtomicU32, &AtomicU32), FlashError> {
        let index = block.0 as usize;
        self.blocks.get(index).zip(self.next.get(index)).ok_or_else(|| outside(block))
    }

    fn position(&self, block: FlashBlock, offset: u32) -> u64 {
        u64::from(block.0) * u64::from(self.geometry.block_size()) + u64::from(offset)
    }

    /// An error that is no fault of the medium.
    fn failed(&self, cause: &'static str, error: io::Error) -> FlashError {
        FlashError::Failed(Error::io(cause, error).about(self.path.display()))
    }

    /// The error of a failed program or erasure; if it makes the block bad, that is on disk before this returns.
    fn spoilt(&self, block: FlashBlock, cause: &'static str, error: io::Error) -> FlashError {
        if !is_of_medium(&error) {
            return self.failed(cause, error);
        }
        if let Ok((entry, _)) = self.entry(block) {
            entry.fetch_or(BAD, Ordering::SeqCst);
        }
        match self.save(&mut self.unsaved.lock()) {
            Ok(()) => FlashError::Bad(block),
            Err(error) => FlashError::Failed(error),
        }
    }

    /// Makes written data durable; if that fails, the next flush will report it.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data().inspect_err(|_| self.lost.store(true, Ordering::SeqCst))
    }

    /// Zeros a block's bytes, not yet durably.
    fn clear(&self, block: FlashBlock) -> Result<(), FlashError> {
        let (entry, next) = self.entry(block)?;
        if entry.load(Ordering::SeqCst) & BAD != 0 {
            return Err(FlashError::Bad(block));
        }
        next.store(UNKNOWN, Ordering::SeqCst);
        let zeroed = zero(&self.file, self.position(block, 0), u64::from(self.geometry.block_size()));
        zeroed.map_err(|error| self.spoilt(block, "cannot be erased", error))
    }

    /// Repeats an erasure whose sync failed after the block's bytes were zeroed, and finds out if the block is to
    /// blame.
    fn erase_again(&self, block: FlashBlock) -> Result<(), FlashError> {
        self.clear(block)?;
        match self.sync() {
            Ok(()) => Ok(()),
            // There is no more data of it to write now.
            Err(error) if self.sync().is_ok() => Err(self.spoilt(block, "cannot be erased", error)),
            Err(error) => Err(self.failed("cannot be synced after an erasure", error)),
        }
    }

    /// Reads a page of the data in or after a block, if that is not in `apart`, from the medium; `true` if that worked.
    fn reads_after(&self, block: u32, apart: FlashBlock) -> bool {
        let size = u64::from(self.geometry.page_size);
        // Holes of a file are on no medium.
        let start = self.position(FlashBlock(block), 0);
        let at = match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(start)) {
            Ok(at) => at / size * size,
            // A device has no holes.
            Err(Errno::INVAL) => start,
            Err(_) => return false,
        };
        if at / u64::from(self.geometry.block_size()) == u64::from(apart.0) {
            return false;
        }
        let forgotten = fadvise(&self.file, at, NonZeroU64::new(size), Advice::DontNeed);
        let mut page = vec![0; to_usize(size)];
        forgotten.is_ok() && self.file.read_exact_at(&mut page, at).is_ok()
    }

    /// Counts an erasure.
    fn erased(&self, block: FlashBlock) -> Result<(), FlashError> {
        let (entry, next) = self.entry(block)?;
        next.store(0, Ordering::SeqCst);
        let more = |entry: u32| Some((entry & !BAD).saturating_add(1).min(BAD - 1) | entry & BAD);
        entry.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).unwrap_or_default();
        let mut unsaved = self.unsaved.lock();
        *unsaved += 1;
        if unsaved.is_multiple_of(UNSAVED)
            && let Err(error) = self.save(&mut unsaved)
        {
            // The failure costs counts of erasures, no data: after as many more erasures it is tried again.
            tracing::warn!(%error, "cannot save the wear of flash");
        }
        Ok(())
    }

    /// Replaces the table.
    fn save(&self, unsaved: &mut u32) -> Result<(), Error> {
        let entries = self.blocks.iter().map(|entry| entry.load(Ordering::SeqCst));
        table::write(&self.table, &table::encode(&self.geometry, entries))?;
        *unsaved = 0;
        Ok(())
    }
}

impl Flash for FileFlash {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, block: FlashBlock, offset: u32, buf: &mut [u8]) -> Result<(), FlashError> {
        within(&self.geometry, block, offset, buf.len())?;
        let at = self.position(block, offset);
        let page = self.geometry.page_size as usize;
        let read = read_pages(buf, at, page, |part, at| self.file.read_exact_at(part, at));
        read.map_err(|(at, error)| {
            let within = (at - self.position(block, 0)) / u64::from(self.geometry.page_size);
            match u32::try_from(within) {
                Ok(page) if is_of_medium(&error) => FlashError::Unreadable(block, page),
                _ => self.failed("cannot be read", error),
            }
        })
    }

    fn program(&self, block: FlashBlock, page: u32, data: &[u8]) -> Result<(), FlashError> {
        let pages = whole_pages(&self.geometry, block, page, data.len())?;
        let (entry, next) = self.entry(block)?;
        if entry.load(Ordering::SeqCst) & BAD != 0 {
            return Err(FlashError::Bad(block));
        }
        let first = next.load(Ordering::SeqCst);
        if first != UNKNOWN && page < first {
            return Err(FlashError::NotErased(block, page));
        }
        next.store(page + pages, Ordering::SeqCst);
        let written = self.file.write_all_at(data, self.position(block, page * self.geometry.page_size));
        written.map_err(|error| self.spoilt(block, "cannot be programmed", error))
    }

    fn erase(&self, block: FlashBlock) -> Result<(), FlashError> {
        self.clear(block)?;
        if self.sync().is_err() {
            self.erase_again(block)?;
        }
        self.erased(block)
    }

    fn erase_soon(&self, block: FlashBlock) -> Result<bool, FlashError> {
        self.clear(block)?;
        self.erased(block)?;
        Ok(false)
    }

    fn erase_many(&self, blocks: &[FlashBlock]) -> Vec<Result<(), FlashError>> {
        let cleared: Vec<_> = blocks.iter().map(|block| self.clear(*block)).collect();
        let synced = self.sync().is_ok();
        let finish = |(block, cleared): (&FlashBlock, Result<(), FlashError>)| {
            cleared?;
            if !synced {
                self.erase_again(*block)?;
            }
            self.erased(*block)
        };
        blocks.iter().zip(cleared).map(finish).collect()
    }

    fn flush(&self) -> Result<(), FlashError> {
        let synced = self.sync();
        let lost = self.lost.swap(false, Ordering::SeqCst);
        let earlier = || lost.then(|| Err(io::Error::other("an earlier sync failed")));
        let synced = if synced.is_ok() { earlier().unwrap_or(synced) } else { synced };
        synced.map_err(|error| self.failed("cannot be flushed", error))
    }

    fn answers(&self, apart: FlashBlock) -> bool {
        let total = self.geometry.total_blocks().max(1);
        let other = |probe: u32| (apart.0 % total + (total / (PROBES + 1)).max(1) * probe) % total;
        // A page in memory that is not on the medium yet could be read from there.
        self.sync().is_ok() && (1..=PROBES).map(other).any(|block| self.reads_after(block, apart))
    }

    fn is_bad(&self, block: FlashBlock) -> bool {
        self.entry(block).map_or(true, |(entry, _)| entry.load(Ordering::SeqCst) & BAD != 0)
    }

    fn wear(&self, block: FlashBlock) -> u32 {
        self.entry(block).map_or(0, |(entry, _)| entry.load(Ordering::SeqCst) & !BAD)
    }
}

impl Drop for FileFlash {
    fn drop(&mut self) {
        let mut unsaved = self.unsaved.lock();
        if *unsaved > 0
            && let Err(error) = self.save(&mut unsaved)
        {
            tracing::warn!(%error, "cannot save the wear of flash");
        }
    }
}

/// `true` if an error is one that a broken medium gives (a device that is gone may give it too).
fn is_of_medium(error: &io::Error) -> bool {
    let medium = [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG];
    error.raw_os_error().is_some_and(|code| medium.iter().any(|errno| errno.raw_os_error() == code))
}

/// Reads; if that fails as a broken medium does, again and page by page. The error is that of the first page that fails
/// then.
fn read_pages(
    buf: &mut [u8],
    at: u64,
    page: usize,
    read: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> Result<(), (u64, io::Error)> {
    match read(buf, at) {
        Err(error) if is_of_medium(&error) => {}
        read => return read.map_err(|error| (at, error)),
    }
    let (mut rest, mut at) = (buf, at);
    while !rest.is_empty() {
        let within = to_usize(at % page as u64);
        let len = rest.len().min(page - within);
        let (part, more) = rest.split_at_mut(len);
        read(part, at).map_err(|error| (at, error))?;
        (rest, at) = (more, at + len as u64);
    }
    Ok(())
}

/// Makes bytes of a file or block device read as zeros, and gives back their space if that is possible. They stay zeros
/// through a loss of power once the file is synced.
pub(super) fn zero(file: &File, at: u64, len: u64) -> io::Result<()> {
    for how in [FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE] {
        if fallocate(file, how | FallocateFlags::KEEP_SIZE, at, len).is_ok() {
            return Ok(());
        }
    }
    write_zeros(file, at, len)
}

fn write_zeros(file: &File, at: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; 64 << 10];
    let mut done = 0;
    while done < len {
        let part = to_usize(len - done).min(zeros.len());
        file.write_all_at(&zeros[..part], at + done)?;
        done += part as u64;
    }
    Ok(())
}

fn is_device(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Opens it exclusively: a device also against being mounted.
fn open_locked(path: &Path, make: bool) -> Result<File, Error> {
    #[cfg(any(test, feature = "testing"))]
    let _between = super::forks::between_forks();
    check_own(path)?;
    let device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    let mut options = OpenOptions::new();
    // Only the owner may read the data of VMs.
    options.read(true).write(true).create(make && !device).truncate(false).mode(0o600);
    // A pipe is not waited for.
    let flags = OFlags::NONBLOCK | if device { OFlags::EXCL } else { OFlags::empty() };
    options.custom_flags(flags.bits().cast_signed());
    let file = options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => busy(path),
        _ => Error::io("cannot be opened", error).about(path.display()),
    })?;
    check_own_file(&file, path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(busy(path)),
        Err(TryLockError::Error(error)) => Err(Error::io("cannot be locked", error).about(path.display())),
    }
}

pub(super) fn busy(path: &Path) -> Error {
    Error::new(ErrorKind::Conflict, "is in use").about(path.display()).remedy("end the process that uses it")
}

pub(super) fn check_length(mut file: &File, geometry: &Geometry) -> Result<(), Error> {
    let len = file.seek(SeekFrom::End(0)).map_err(|error| Error::io("has no size", error))?;
    if len < geometry.size() {
        return Err(Error::invalid(format!("has {len} bytes, not the {} of its flash", geometry.size())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const SMALL: Geometry =
        Geometry { channels: 2, dies: 1, planes: 1, blocks: 4, pages: 4, page_size: 4096 };

    fn made() -> (TempDir, PathBuf, PathBuf, FileFlash) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("flash");
        let table = FileFlash::table_beside(&path);
        let flash = FileFlash::create(&path, &table, SMALL).unwrap();
        (folder, path, table, flash)
    }

    #[test]
    fn a_bad_block_is_bad_for_ever() {
        let (_folder, path, table, flash) = made();
        flash.program(FlashBlock(3), 0, &[1; 4096]).unwrap();
        let error = flash.spoilt(FlashBlock(3), "cannot be erased", broken());
        assert!(matches!(error, FlashError::Bad(FlashBlock(3))));
        // As after a kill: nothing is saved at the end.
        *flash.unsaved.lock() = 0;
        drop(flash);
        let flash = FileFlash::open(&path, &table).unwrap();
        assert!(flash.is_bad(FlashBlock(3)) && !flash.is_bad(FlashBlock(2)));
        assert!(matches!(flash.erase(FlashBlock(3)), Err(FlashError::Bad(_))));
        assert!(matches!(flash.program(FlashBlock(3), 1, &[1; 4096]), Err(FlashError::Bad(_))));
        let mut byte = [0];
        flash.read(FlashBlock(3), 0, &mut byte).unwrap();
        assert_eq!(byte, [1]);
    }

    fn broken() -> io::Error {
        io::Error::from_raw_os_error(Errno::IO.raw_os_error())
    }

    #[test]
    fn passing_errors_mark_no_block_bad() {
        let (_folder, path, _, flash) = made();
        let error = flash.spoilt(FlashBlock(3), "cannot be programmed", io::ErrorKind::StorageFull.into());
        let FlashError::Failed(error) = error else { unreachable!() };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()) && text.ends_with("free space there"));
        for passing in [Errno::NXIO, Errno::NODEV, Errno::ROFS, Errno::AGAIN, Errno::TIMEDOUT] {
            let error = io::Error::from_raw_os_error(passing.raw_os_error());
            assert!(matches!(flash.spoilt(FlashBlock(3), "cannot be erased", error), FlashError::Failed(_)));
        }
        assert!(!flash.is_bad(FlashBlock(3)));
    }

    #[test]
    fn failed_writes_of_a_read_only_file_mark_no_block_bad() {
        let (_folder, path, _, mut flash) = made();
        let blocks = [FlashBlock(3), FlashBlock(4)];
        let writable = std::mem::replace(&mut flash.file, File::open(&path).unwrap());
        assert!(matches!(flash.erase(blocks[0]), Err(FlashError::Failed(_))));
        assert!(flash.erase_many(&blocks).iter().all(|it| matches!(it, Err(FlashError::Failed(_)))));
        assert!(matches!(flash.program(blocks[1], 0, &[1; 4096]), Err(FlashError::Failed(_))));
        flash.file = writable;
        assert!(flash.erase_many(&blocks).iter().all(Result::is_ok));
        assert!(blocks.iter().all(|block| !flash.is_bad(*block) && flash.wear(*block) == 1));
    }

    #[test]
    fn a_read_that_fails_is_tried_again_page_by_page() {
        let reads = std::cell::RefCell::new(Vec::new());
        let read = |fails: &dyn Fn(usize, u64) -> bool, at: u64, len: usize| {
            reads.borrow_mut().clear();
            read_pages(&mut vec![0; len], at, 4096, |part, at| {
                reads.borrow_mut().push((at, part.len()));
                let fails = fails(reads.borrow().len(), at);
                if fails { Err(broken()) } else { Ok(()) }
            })
        };
        assert!(read(&|_, _| false, 4096, 8192).is_ok() && reads.borrow().len() == 1);
        assert!(read(&|count, _| count == 1, 5120, 8192).is_ok());
        assert_eq!(*reads.borrow(), [(5120, 8192), (5120, 3072), (8192, 4096), (12288, 1024)]);
        let (at, error) = read(&|count, at| count == 1 || at == 8192, 4096, 12288).unwrap_err();
        assert!(at == 8192 && is_of_medium(&error) && reads.borrow().len() == 3);
        let gone = |_: &mut [u8], _| Err(io::ErrorKind::UnexpectedEof.into());
        let (at, error) = read_pages(&mut [0; 8192], 4096, 4096, gone).unwrap_err();
        assert!(at == 4096 && !is_of_medium(&error));
    }

    #[test]
    fn flash_answers_where_something_of_it_can_be_read() {
        let (_folder, path, _, flash) = made();
        flash.program(FlashBlock(3), 1, &[1; 4096]).unwrap();
        assert!(flash.answers(FlashBlock(5)), "there is something in block 3");
        assert!(!flash.answers(FlashBlock(3)), "there is nothing but what is in doubt");
        flash.program(FlashBlock(6), 0, &[1; 4096]).unwrap();
        assert!(flash.answers(FlashBlock(3)));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert!(!flash.answers(FlashBlock(3)));
    }

    #[test]
    fn a_failed_sync_is_told_by_the_next_flush() {
        let (_folder, _, _, flash) = made();
        flash.lost.store(true, Ordering::SeqCst);
        assert!(matches!(flash.flush(), Err(FlashError::Failed(_))));
        flash.flush().unwrap();
    }

    #[test]
    fn a_flash_file_has_one_user_at_a_time() {
        let (_folder, path, table, flash) = made();
        assert_eq!(FileFlash::open(&path, &table).err().unwrap().kind(), ErrorKind::Conflict);
        drop(flash);
        assert!(FileFlash::open(&path, &table).is_ok());
    }

    #[test]
    fn flash_that_is_made_again_is_empty() {
        let (_folder, path, table, flash) = made();
        flash.program(FlashBlock(3), 0, &[1; 4096]).unwrap();
        drop(flash);
        let flash = FileFlash::create(&path, &table, SMALL).unwrap();
        let mut bytes = [1; 4096];
        flash.read(FlashBlock(3), 0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 4096]);
    }

    #[test]
    fn a_file_too_short_or_absent_is_refused() {
        let (_folder, path, table, flash) = made();
        drop(flash);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert_eq!(FileFlash::open(&path, &table).err().unwrap().kind(), ErrorKind::Invalid);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(FileFlash::open(&path, &table).err().unwrap().kind(), ErrorKind::NotFound);
        std::fs::remove_file(&table).unwrap();
        assert_eq!(FileFlash::open(&path, &table).err().unwrap().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn zeros_are_written_where_no_call_gives_them() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 300_000], 0).unwrap();
        write_zeros(&file, 1000, 200_000).unwrap();
        let mut bytes = vec![0; 300_000];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[1000..201_000].iter().all(|byte| *byte == 0));
        assert!(bytes[..1000].iter().chain(&bytes[201_000..]).all(|byte| *byte == 1));
    }

    #[test]
    fn an_erasure_gives_space_back() {
        use std::os::unix::fs::MetadataExt;
        let (_folder, _, _, flash) = made();
        flash.program(FlashBlock(1), 0, &[1; 16384]).unwrap();
        flash.flush().unwrap();
        let before = flash.file.metadata().unwrap().blocks();
        flash.erase(FlashBlock(1)).unwrap();
        assert!(flash.file.metadata().unwrap().blocks() < before, "the file system cannot punch holes");
    }
}
