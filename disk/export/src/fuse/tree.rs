//! The file system: one directory with one file, or the file alone.

use super::face::{Face, now};
use super::image::{Image, errno};
use super::kept::Keeping;
use super::{BACKGROUND, TRANSFER};
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use headstart_block::{SECTOR_SIZE, to_usize};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FallocateFlags, OFlags};
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// The mounted tree: the file's name in the directory, or `None` for the file alone.
pub(super) struct Tree {
    image: Arc<Image>,
    name: Option<OsString>,
    /// The attributes that are not the disk's own.
    face: Mutex<Face>,
    /// The time for which the kernel may keep names and attributes.
    keep: Duration,
    /// `true` if the file's users may make it larger.
    allow_resize: bool,
    /// The state for the next process.
    keeping: Arc<Keeping>,
}

/// The inode of the directory or, if there is none, of the file.
const ROOT: INodeNo = INodeNo::ROOT;
/// The inode of the file in the directory.
const IN_DIRECTORY: INodeNo = INodeNo(2);

/// The numbers that `lseek(2)` has for the next data and the next hole, which rustix has only in its own `SeekFrom`.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The time for which attributes of a read-only disk are kept: it never changes.
const KEEP_READ_ONLY: Duration = Duration::from_secs(3600);
/// The time for which attributes of a writable disk are kept: it may grow without its users being told
/// (`Server::resized` tells them at once).
const KEEP_WRITABLE: Duration = Duration::from_secs(1);

impl Tree {
    /// Shows `image` with the attributes of `face`.
    pub(super) fn new(
        image: Arc<Image>,
        name: Option<OsString>,
        face: Face,
        allow_resize: bool,
        keeping: Arc<Keeping>,
    ) -> Self {
        let keep = if image.read_only { KEEP_READ_ONLY } else { KEEP_WRITABLE };
        Self { image, name, face: Mutex::new(face), keep, allow_resize, keeping }
    }

    pub(super) fn file(&self) -> INodeNo {
        if self.name.is_some() { IN_DIRECTORY } else { ROOT }
    }

    fn face(&self) -> MutexGuard<'_, Face> {
        self.face.lock()
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let mut face = self.face();
        if self.image.modified.swap(false, Ordering::AcqRel) {
            face.modified = now();
        }
        let (kind, mode, size, nlink) = if ino == self.file() {
            (FileType::RegularFile, face.mode, self.image.device.size(), 1)
        } else if ino == ROOT {
            (FileType::Directory, face.directory_mode, 0, 2)
        } else {
            return None;
        };
        let time = face.modified;
        Some(FileAttr {
            ino,
            size,
            blocks: size.div_ceil(SECTOR_SIZE),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: (mode & 0o777) as u16,
            nlink,
            uid: face.uid,
            gid: face.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn answer(&self, ino: INodeNo, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&self.keep, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Sets the size: a disk grows if its users may make it larger, and never shrinks.
    fn truncate(&self, size: u64) -> Result<(), Errno> {
        let device = &self.image.device;
        match size.cmp(&device.size()) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater if self.allow_resize => {
                device.resize(size).map_err(|error| self.image.fault("grow", size, &error))
            }
            _ => Err(Errno::EPERM),
        }
    }
}

impl Filesystem for Tree {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_write(TRANSFER);
        // The kernel's own limit is the largest that it takes, and what it said.
        let most = config.set_max_readahead(u32::MAX).err().unwrap_or(u32::MAX);
        let _ = config.set_max_readahead(most.min(TRANSFER));
        self.keeping.greeted(config, most);
        let _ = config.set_max_background(BACKGROUND);
        let _ = config.set_congestion_threshold(BACKGROUND / 4 * 3);
        // Requests of programs with many O_DIRECT requests under way (QEMU) are served side by side.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        // The next process asks for requests that this one leaves unanswered.
        let _ = config.add_capabilities(InitFlags::FUSE_HAS_RESEND);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let known = parent == ROOT && self.name.as_deref() == Some(name);
        match known.then(|| self.attributes(IN_DIRECTORY)).flatten() {
            Some(attributes) => reply.entry(&self.keep, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(ino, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if ino != self.file() {
            return reply.error(Errno::EPERM);
        }
        if let Some(Err(errno)) = size.map(|size| self.truncate(size)) {
            return reply.error(errno);
        }
        {
            let mut face = self.face();
            face.mode = mode.map_or(face.mode, |mode| mode & 0o777);
            face.uid = uid.unwrap_or(face.uid);
            face.gid = gid.unwrap_or(face.gid);
            let face = *face;
            self.keeping.change(|state| state.face = face);
        }
        self.answer(ino, reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ino != self.file() {
            return reply.error(Errno::EISDIR);
        }
        let writes = OFlags::from_bits_retain(flags.0.cast_unsigned()).intersects(OFlags::RWMODE);
        if self.image.read_only && writes {
            return reply.error(Errno::EROFS);
        }
        let mut clients = self.image.clients.lock();
        clients.connected += 1;
        clients.ever += 1;
        self.keeping.change(|state| state.opened = clients.connected);
        drop(clients);
        self.image.device.client_came();
        if !self.image.read_only {
            // Another server may have written to the disk: a program that opens the file again sees that.
            return reply.opened(FileHandle(0), FopenFlags::empty());
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let mut clients = self.image.clients.lock();
        clients.connected = clients.connected.saturating_sub(1);
        self.keeping.change(|state| state.opened = clients.connected);
        drop(clients);
        self.image.device.client_left();
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino != self.file() {
            return reply.error(Errno::EISDIR);
        }
        self.image.read(offset, size, reply);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if ino != self.file() {
            return reply.error(Errno::EISDIR);
        }
        self.image.write(offset, data, flags.0, reply);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.image.flush(true, reply);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.image.flush(false, reply);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(name) = self.name.as_deref().filter(|_| ino == ROOT) else {
            return reply.error(Errno::ENOTDIR);
        };
        let entries = [
            (ROOT, FileType::Directory, OsStr::new(".")),
            (ROOT, FileType::Directory, OsStr::new("..")),
            (IN_DIRECTORY, FileType::RegularFile, name),
        ];
        for (next, (ino, kind, name)) in (1..).zip(entries).skip(to_usize(offset)) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = self.image.device.size().div_ceil(4096);
        reply.statfs(blocks, 0, 0, 1, 0, 4096, 255, 4096);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself (`default_permissions`); it does not ask again after this.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if ino != self.file() {
            return reply.error(Errno::EISDIR);
        }
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let zeroing = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        // Space cannot be reserved for a disk that grows as it is written.
        if !mode.intersects(zeroing) || !(zeroing | FallocateFlags::KEEP_SIZE).contains(mode) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let grown = offset.saturating_add(length);
        if !mode.contains(FallocateFlags::KEEP_SIZE)
            && grown > self.image.device.size()
            && let Err(errno) = self.truncate(grown)
        {
            return reply.error(errno);
        }
        self.image.write_zeroes(offset, length, reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Some(offset) = u64::try_from(offset).ok().filter(|_| ino == self.file()) else {
            return reply.error(Errno::EINVAL);
        };
        match self.image.seek(offset, hole).map(|found| found.and_then(|at| i64::try_from(at).ok())) {
            Ok(Some(at)) => reply.offset(at),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(errno(&error)),
        }
    }
}
