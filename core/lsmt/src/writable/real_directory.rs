//! The directory of a writable disk on the file system, and that of a clone while it is made: a temporary one beside
//! its place, which gets its name when it is whole.

use super::BASE_DIR;
use super::files::{CloneTarget, Directory, LOCK, LogFile};
use headstart_block::guarded::{FileAccess, GuardedDir, Like, not_made_in};
use headstart_block::{Error, ErrorKind, Result, private, sync_dir_of};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// The remedy where files cannot be shared.
const COPY_INSTEAD: &str = "name a directory on the same file system; or copy the directory with \
                            `cp -a --sparse=always` while the disk is not attached";

/// The file with the id of the run of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The owner and permissions of files that are made.
fn like() -> Like {
    Like::own(private::FILE_MODE)
}

/// A directory of the file system, locked for this process.
///
/// No other user can exchange its content: it belongs to this user or to root, and is closed to others. A symbolic
/// link that another user put there while it was open to all users is not followed.
pub(super) struct RealDirectory {
    dir: Arc<GuardedDir>,
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
        if is_new {
            // Otherwise a power loss takes all of it away, with flushed data.
            sync_dir_of(path).map_err(failed)?;
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
        Ok(Self { dir: Arc::new(dir), lock: None })
    }

    /// Removes other users' permissions on a directory that an earlier version made.
    pub(super) fn close_to_others(&self) -> Result<()> {
        let path = self.dir.path();
        if private::close(self.dir.handle()).map_err(|e| private::not_closed(path, e))? {
            tracing::warn!(dir = %path.display(), "other users could read a writable directory; now they cannot");
        }
        Ok(())
    }

    /// The directory itself.
    pub(super) fn guarded(&self) -> &GuardedDir {
        &self.dir
    }

    fn file(&self, name: &str, opened: io::Result<File>) -> Result<Box<dyn LogFile>> {
        let path = self.dir.path().join(name);
        let file = opened.map_err(|e| Error::io("cannot open", e).about(path.display()))?;
        if self.lock.is_some() {
            private::close(&file).map_err(|e| private::not_closed(&path, e))?;
        }
        Ok(Box::new(RealFile { file, path }))
    }
}

/// `true` if a name still means an open file.
fn is_still(file: &File, path: &Path) -> io::Result<bool> {
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

    fn boot_id(&self) -> Option<u128> {
        let id = std::fs::read_to_string(BOOT_ID).ok()?;
        let device = self.dir.handle().metadata().ok()?.dev();
        Some(Uuid::parse_str(id.trim()).ok()?.as_u128() ^ u128::from(device))
    }

    fn clone_target(&self, path: &Path) -> Result<Box<dyn CloneTarget>> {
        Ok(Box::new(RealTarget::new(Arc::clone(&self.dir), path)?))
    }
}

struct RealFile {
    file: File,
    path: PathBuf,
}

impl RealFile {
    fn failed(&self, what: &'static str) -> impl Fn(io::Error) -> Error {
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
            io::ErrorKind::UnexpectedEof => {
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

    fn links(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(self.failed("cannot count its names"))?.nlink())
    }

    fn taken(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(self.failed("cannot find its size"))?.blocks() * 512)
    }
}

/// The new directory on the file system.
pub(super) struct RealTarget {
    source: Arc<GuardedDir>,
    parent: GuardedDir,
    /// The name that it is to get.
    name: String,
    /// The path by that name, for messages.
    path: PathBuf,
    /// The directory under its temporary name, locked.
    new: RealDirectory,
    temporary: String,
    is_published: bool,
}

impl RealTarget {
    /// Makes the directory.
    pub(super) fn new(source: Arc<GuardedDir>, path: &Path) -> Result<Self> {
        let failed = |what: &'static str| move |e: io::Error| Error::io(what, e).about(path.display());
        let (parent, name) =
            GuardedDir::around(path).map_err(failed("cannot make the directory of the clone"))?;
        let name = name.to_owned();
        refuse_existing(&parent, &name).map_err(|e| e.about(path.display()))?;
        let device = |dir: &GuardedDir| dir.handle().metadata().map(|metadata| metadata.dev());
        let devices = device(&source).and_then(|ours| Ok((ours, device(&parent)?)));
        let (ours, theirs) = devices.map_err(failed("cannot find its file system"))?;
        if ours != theirs {
            return Err(elsewhere().about(path.display()));
        }
        let temporary = format!(".{name}.cloning");
        let place = parent.path().join(&temporary);
        parent
            .make_dir(&temporary, Like::own(private::DIRECTORY_MODE))
            .map_err(|e| not_made_in(&place, "cannot create the directory", e).about(place.display()))?;
        let new = RealDirectory::lock(&place).map_err(|e| match e.kind() {
            ErrorKind::Conflict => {
                Error::new(ErrorKind::Conflict, "another clone is being made there").about(path.display())
            }
            _ => e,
        })?;
        let target =
            Self { source, parent, name, path: path.to_owned(), new, temporary, is_published: false };
        target.clear().map_err(failed("cannot remove what an interrupted clone has left"))?;
        target.link_base().map_err(failed("cannot share the copy of the image with it"))?;
        Ok(target)
    }

    /// Removes what a clone that was interrupted has left in the temporary directory.
    fn clear(&self) -> io::Result<()> {
        let dir = self.new.guarded();
        for name in dir.all_names()? {
            if name == LOCK {
                continue;
            }
            let Some(name) = name.to_str() else { continue };
            if dir.open_dir(name).is_ok() {
                std::fs::remove_dir_all(dir.anchored(name)?)?;
            } else {
                dir.remove_file(name)?;
            }
        }
        Ok(())
    }

    /// Shares the copy of the image that the source may have. Its files are never changed, only replaced. What is
    /// private to its users, such as locks and leases, stays behind.
    fn link_base(&self) -> io::Result<()> {
        match self.source.open_dir(BASE_DIR) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(from) => {
                let to = self.new.guarded().make_dir(BASE_DIR, Like::own(private::DIRECTORY_MODE))?;
                link_all(&from, &to)
            }
        }
    }
}

/// Links all files of a directory into another one, and those of the directories below it. Hidden entries are left out.
fn link_all(from: &GuardedDir, to: &GuardedDir) -> io::Result<()> {
    for name in from.names()?.into_iter().filter(|name| !name.starts_with('.')) {
        match from.open_dir(&name) {
            Ok(inner) => link_all(&inner, &to.make_dir(&name, Like::own(private::DIRECTORY_MODE))?)?,
            Err(_) => from.link(&name, to, &name)?,
        }
    }
    to.sync()
}

/// Refuses a place where there is something.
fn refuse_existing(parent: &GuardedDir, name: &str) -> Result<()> {
    let taken = |cause: &str| {
        Err(Error::new(ErrorKind::Conflict, cause.to_owned()).remedy("name a directory that does not exist"))
    };
    match parent.open_dir(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => taken("exists already, and is not an empty directory"),
        Ok(dir) => match dir.all_names() {
            Ok(names) if names.is_empty() => Ok(()),
            Ok(names) if names.iter().any(|name| name == "state.json") => taken("holds a disk already"),
            Ok(_) => taken("exists already, and is not empty"),
            Err(e) => Err(Error::io("cannot list the directory", e)),
        },
    }
}

/// The error of a place on another file system.
fn elsewhere() -> Error {
    Error::unsupported("a clone shares the files of the disk, and this is another file system")
        .remedy(COPY_INSTEAD)
}

impl CloneTarget for RealTarget {
    fn directory(&self) -> &dyn Directory {
        &self.new
    }

    fn link(&self, name: &str) -> Result<()> {
        self.source.link(name, self.new.guarded(), name).map_err(|e| match e.kind() {
            // Two mounts of one file system are two.
            io::ErrorKind::CrossesDevices => elsewhere().about(self.path.display()),
            _ => Error::io(format!("cannot share {name} with the clone"), e)
                .about(self.path.display())
                .remedy(COPY_INSTEAD),
        })
    }

    fn publish(mut self: Box<Self>) -> Result<()> {
        self.parent
            .rename(&self.temporary, &self.parent, &self.name)
            .map_err(|e| Error::io("cannot give the clone its name", e).about(self.path.display()))?;
        self.is_published = true;
        self.parent
            .sync()
            .map_err(|e| Error::io("cannot sync the directory above", e).about(self.path.display()))
    }
}

impl Drop for RealTarget {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        // Best effort: the next clone to this place removes what stays.
        if let Ok(place) = self.parent.anchored(&self.temporary) {
            let _ = std::fs::remove_dir_all(place);
        }
    }
}
