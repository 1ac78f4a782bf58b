//! The directory that a writable disk lives in, behind small traits.
//!
//! Everything that a crash can lose or tear goes through this module, so that the tests can put a simulated
//! directory in the place of the real one (`real_directory.rs`). The traits promise what POSIX does, no more: a write
//! is durable after [`LogFile::sync`], a created, renamed or removed name after [`Directory::sync`].

use super::BASE_DIR;
use crate::format::PAGE_SIZE;
use headstart_block::{Error, ErrorKind, Result};
use std::path::Path;

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

    /// The id of the run of the host, mixed with that of the file system, so that a snapshot of the latter does not
    /// have it; `None` if it is not known. As long as it is the same, all that was written to files is still there.
    fn boot_id(&self) -> Option<u128>;

    /// Prepares a new directory at `path`, into which files of this one can be linked.
    fn clone_target(&self, path: &Path) -> Result<Box<dyn CloneTarget>>;
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

    /// The number of names that the file has, in all directories.
    fn links(&self) -> Result<u64>;

    /// Bytes that the file takes on the file system.
    fn taken(&self) -> Result<u64>;
}

/// A directory in the making. If it is dropped before it is published, it is removed.
pub(super) trait CloneTarget {
    /// The directory, for files of its own.
    fn directory(&self) -> &dyn Directory;

    /// Gives the file `name` of the source the same name here, too.
    fn link(&self, name: &str) -> Result<()>;

    /// Gives the directory, whose names are durable, its own name, durably. It is the clone's from then on.
    fn publish(self: Box<Self>) -> Result<()>;
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
