//! The directory that a writable disk lives in, behind two small traits.
//!
//! Everything that a crash can lose or tear goes through this module, so that the tests can put a simulated
//! directory in the place of the real one. The traits promise what POSIX does, no more: a write is durable after
//! [`LogFile::sync`], a created, renamed or removed name after [`Directory::sync`].

use super::BASE_DIR;
use crate::format::PAGE_SIZE;
use headstart_block::guarded::{FileAccess, GuardedDir, Like, not_made_in};
use headstart_block::{Error, ErrorKind, Result, private};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file whose lock says that a process uses the directory.
pub(super) const LOCK: &str = "lock";

/// The next `state.json`, until it gets that name.
pub(super) const STATE_NEW: &str = "state.json.new";

/// A flat directory of files.
pub(super) trait Directory: Send + Sync {
    /// The name of the directory in messages.
    fn name(&self) -> String;

    /// Creates an empty file, or empties the one of that name.
    fn create(&self, name: &str) -> Result<Box<dyn LogFile>>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> Result<Box<dyn LogFile>>;

    /// Renames a file over whatever has the other name. A failure of a kind other than
    /// [`ErrorKind::Io`] changed nothing.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a name; the file lives on for processes that have it open.
    fn remove(&self, name: &str) -> Result<()>;

    /// The names of all files.
    fn list(&self) -> Result<Vec<String>>;

    /// Makes all names durable.
    fn sync(&self) -> Result<()>;
}

/// A file that grows at its end; read and written by many threads at once.
pub(super) trait LogFile: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Fills `buf` from `offset` on; the end of the file before that is [`ErrorKind::Corrupt`].
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes all of `data` at `offset`; after a failure any part of it may be there.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;

    /// Cuts the file off, or makes it longer by zeros.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes the contents and the length durable.
    fn sync(&self) -> Result<()>;

    /// Gives the space of `[offset, offset + len)`, whole blocks of 4 KiB, back to the file system; the range reads as
    /// zeros afterwards and the length stays. Not durable by itself: after a crash, the range holds the old bytes or
    /// zeros, block by block. Returns `false` where the file system has no holes.
    fn punch(&self, offset: u64, len: u64) -> Result<bool>;
}

/// The owner and permissions of files that are made.
fn like() -> Like {
    Like::own(private::FILE_MODE)
}

/// A directory of the file system, locked for this process.
///
/// No other user can exchange its content: it belongs to this user or to root, and is closed to others. A symbolic
/// link that another user put there while it was open to all users is not followed.
pub(super) struct RealDirectory {
    dir: GuardedDir,
    /// The lock file; closing it gives the lock back. `None` if the directory is only looked at.
    lock: Option<File>,
}

impl RealDirectory {
    /// Creates the directory if need be, for its user alone, and locks it.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let failed = |e| Error::io("cannot create the directory", e).about(path.display());
        let is_new = !path.exists();
        private::make_directory(path)
            .map_err(|e| not_made_in(path, "cannot create the directory", e).about(path.display()))?;
        if is_new && let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            // Otherwise a power loss takes all of it away, with flushed data.
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
        }
        Self::lock(path)
    }

    /// Locks a directory that exists.
    pub(super) fn lock(path: &Path) -> Result<Self> {
        let failed = |what| move |e| Error::io(what, e).about(path.display());
        let unlocked = Self::unlocked(path)?;
        let lock_path = path.join(LOCK);
        unlocked.dir.check_owner()?;
        let lock = unlocked.dir.open_or_create(LOCK, like());
        let lock = lock.map_err(failed("cannot open its lock file"))?;
        private::close(&lock).map_err(|e| private::not_closed(path, e))?;
        let in_use = || {
            Error::new(ErrorKind::Conflict, "the writable directory is in use by another process")
                .remedy("detach it there first, by Ctrl-C or by `headstart disk detach NAME`")
                .about(path.display())
        };
        match lock.try_lock() {
            // A process that made the directory and failed has removed the lock file: the next lock is on another one.
            Ok(()) if !is_still(&lock, &lock_path).map_err(failed("cannot look at its lock file"))? => {
                Err(in_use())
            }
            Ok(()) => Ok(Self { lock: Some(lock), ..unlocked }),
            Err(TryLockError::WouldBlock) => Err(in_use()),
            Err(TryLockError::Error(e)) => Err(failed("cannot lock it")(e)),
        }
    }

    /// A directory that may be in use, to be looked at.
    pub(super) fn unlocked(path: &Path) -> Result<Self> {
        let dir = GuardedDir::open(path)
            .map_err(|e| Error::io("cannot open the directory", e).about(path.display()))
            .map_err(|e| e.remedy("check the path, and that this user may read it"))?;
        Ok(Self { dir, lock: None })
    }

    /// Removes other users' permissions on a directory that an earlier version made.
    pub(super) fn close_to_others(&self) -> Result<()> {
        let path = self.dir.path();
        if private::close(self.dir.handle()).map_err(|e| private::not_closed(path, e))? {
            tracing::warn!(dir = %path.display(), "other users could read a writable directory; now they cannot");
        }
        Ok(())
    }

    fn file(&self, name: &str, opened: std::io::Result<File>) -> Result<Box<dyn LogFile>> {
        let path = self.dir.path().join(name);
        let file = opened.map_err(|e| Error::io("cannot open", e).about(path.display()))?;
        if self.lock.is_some() {
            private::close(&file).map_err(|e| private::not_closed(&path, e))?;
        }
        Ok(Box::new(RealFile { file, path }))
    }
}

/// `true` if a name still means an open file.
fn is_still(file: &File, path: &Path) -> std::io::Result<bool> {
    let (open, named) = (file.metadata()?, std::fs::symlink_metadata(path));
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())))
}

impl Directory for RealDirectory {
    fn name(&self) -> String {
        self.dir.path().display().to_string()
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
        self.file(name, self.dir.recreate_file(name, like()))
    }

    fn open(&self, name: &str) -> Result<Box<dyn LogFile>> {
        self.file(name, self.dir.open_file(name, FileAccess::ReadWrite))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.dir
            .rename(from, &self.dir, to)
            .map_err(|e| Error::io(format!("cannot rename {from} to {to}"), e).about(self.name()))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.dir
            .remove_file(name)
            .map_err(|e| Error::io(format!("cannot remove {name}"), e).about(self.name()))
    }

    fn list(&self) -> Result<Vec<String>> {
        let failed = |e| Error::io("cannot list the directory", e).about(self.name());
        // A name that is not UTF-8 is none of ours.
        self.dir.names().map_err(failed)
    }

    fn sync(&self) -> Result<()> {
        self.dir.sync().map_err(|e| Error::io("cannot sync the directory", e).about(self.name()))
    }
}

/// Refuses to create a disk over one that exists. Files that an interrupted creation left behind hold no data.
pub(super) fn refuse_content(directory: &dyn Directory) -> Result<()> {
    let conflict = |name: &str| {
        let is_disk = matches!(name, "state.json" | "data" | "index");
        let (cause, remedy) = if is_disk {
            ("holds a disk already", "open the disk that is there, or give an empty directory")
        } else {
            ("is not a writable directory, and not empty", "give a new or an empty directory")
        };
        Err(Error::new(ErrorKind::Conflict, format!("{cause} ({name})")).remedy(remedy))
    };
    for name in directory.list()? {
        let expected = match &*name {
            // The copy of the base is there first.
            STATE_NEW | LOCK | BASE_DIR => true,
            "data" | "index" => directory.open(&name)?.len()? <= PAGE_SIZE as u64,
            _ => false,
        };
        if !expected {
            return conflict(&name);
        }
    }
    Ok(())
}

struct RealFile {
    file: File,
    path: PathBuf,
}

impl RealFile {
    fn failed(&self, what: &'static str) -> impl Fn(std::io::Error) -> Error {
        let path = self.path.display().to_string();
        move |e| Error::io(what, e).about(&path)
    }
}

impl LogFile for RealFile {
    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(self.failed("cannot find its length"))?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::corrupt(format!("it ends before byte {offset} + {}", buf.len()))
                    .about(self.path.display())
                    .remedy("the file was cut off behind our back: restore it")
            }
            _ => self.failed("cannot read")(e),
        })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(data, offset).map_err(|e| self.failed("cannot write")(e))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(self.failed("cannot set its length"))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(self.failed("cannot sync"))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<bool> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, offset, len) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(e) => Err(self.failed("cannot punch a hole")(e.into())),
        }
    }
}
