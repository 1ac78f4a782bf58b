//! [`OwnDirectory`]: a directory for a socket without a given path, in the system's temporary directory.
//!
//! It is removed with the process that made it, even if that is killed: the process holds a lock on a file in it, and
//! the process that makes the next directory removes those of this user whose lock is free. Only files that such a
//! directory contains are removed, so that another directory with a similar name loses nothing.
//!
//! The path of an agent's disk is the same for all processes of the disk, because a guest connects again to the same
//! path. The first process records the path, and the later ones make the directory there.

use headstart_block::{Error, Result, private};
use headstart_export::SocketAccess;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The prefix of the names of such directories.
const PREFIX: &str = "headstart-";

/// The file that is locked.
const LOCK: &str = "lock";

/// The socket.
const SOCKET: &str = "nbd.sock";

/// The content of such a directory; the lock comes last, because a directory without it is not taken for one.
const CONTENT: [&str; 3] = [SOCKET, ".nbd.sock.headstart", LOCK];

/// The directory; see the module's documentation. It is removed when this is dropped.
pub(crate) struct OwnDirectory {
    dir: tempfile::TempDir,
    /// The lock, held while the directory is used.
    _lock: File,
}

impl OwnDirectory {
    /// Makes a directory that the users of `access` can pass, and removes the directories of killed processes.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn make(access: &SocketAccess) -> Result<Self> {
        Self::make_in(&std::env::temp_dir(), None, access)
    }

    /// Makes the directory for a disk of an agent, with the file that records its path. If the path is taken by another
    /// file, the directory gets another path, with a warning: a guest does not find it there.
    ///
    /// # Errors
    /// If it cannot be made, or its path cannot be recorded.
    pub(crate) fn make_again(record: &Path, access: &SocketAccess) -> Result<Self> {
        if let Some(path) = recorded(record) {
            let (parent, name) = (path.parent().unwrap_or(&path), path.file_name().and_then(OsStr::to_str));
            match Self::make_in(parent, name, access) {
                Ok(made) => return Ok(made),
                Err(error) => tracing::warn!(%error, "the disk is served at another socket than before"),
            }
        }
        let made = Self::make(access)?;
        let written = private::options().create(true).truncate(true).write(true).open(record);
        written
            .and_then(|mut file| writeln!(file, "{}", made.dir.path().display()))
            .map_err(|e| Error::io("cannot write", e).about(record.display()))?;
        Ok(made)
    }

    fn make_in(parent: &Path, name: Option<&str>, access: &SocketAccess) -> Result<Self> {
        remove_abandoned(parent);
        let made = Self::locked_in(parent, name).map_err(|e| {
            let thing = name.map_or_else(|| parent.to_owned(), |name| parent.join(name));
            Error::io("cannot make a directory for the socket", e)
                .about(thing.display())
                .remedy("name a socket by --nbd unix:/PATH, or another temporary directory by TMPDIR")
        })?;
        access.open_directory(made.dir.path())?;
        Ok(made)
    }

    fn locked_in(parent: &Path, name: Option<&str>) -> io::Result<Self> {
        loop {
            let mut builder = tempfile::Builder::new();
            match name {
                Some(name) => builder.prefix(name).rand_bytes(0),
                None => builder.prefix(PREFIX),
            };
            let dir = builder.tempdir_in(parent)?;
            let lock = open(&dir.path().join(LOCK), true)?;
            // Another process that looks for abandoned directories may have the lock for a moment, and take this one
            // for abandoned.
            flock(&lock, FlockOperation::LockExclusive)?;
            if lock.metadata()?.nlink() > 0 {
                return Ok(Self { dir, _lock: lock });
            }
        }
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }
}

/// The path that an earlier process recorded.
fn recorded(record: &Path) -> Option<PathBuf> {
    let path = PathBuf::from(fs::read_to_string(record).ok()?.trim_end());
    let name = path.file_name().and_then(OsStr::to_str)?;
    (path.is_absolute() && name.starts_with(PREFIX)).then_some(path)
}

fn open(path: &Path, make: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    OpenOptions::new().write(true).create_new(make).mode(0o600).custom_flags(flags).open(path)
}

/// Removes the directories in `parent` whose process was killed.
fn remove_abandoned(parent: &Path) {
    let me = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_one = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && fs::symlink_metadata(entry.path()).is_ok_and(|found| found.is_dir() && found.uid() == me);
        if !is_one {
            continue;
        }
        let dir = entry.path();
        let Ok(lock) = open(&dir.join(LOCK), false) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            CONTENT.iter().for_each(|name| drop(fs::remove_file(dir.join(name))));
            // The directory stays if there are other files in it.
            let _ = fs::remove_dir(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_killed_processes_are_removed_and_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        let make = || OwnDirectory::make_in(parent.path(), None, &SocketAccess::default()).unwrap();
        let names = || {
            let entries = fs::read_dir(parent.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let living = make();
        // As for a killed process: its files stay, and its lock does not.
        let killed = make();
        fs::write(killed.socket(), "").unwrap();
        drop(killed._lock);
        let killed = killed.dir.keep();
        // Other directories with a similar name: one without a lock, and one with another file in it.
        let foreign = parent.path().join("headstart-foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("nbd.sock"), "precious").unwrap();
        let mixed = parent.path().join("headstart-mixed");
        fs::create_dir(&mixed).unwrap();
        fs::write(mixed.join("lock"), "").unwrap();
        fs::write(mixed.join("precious"), "").unwrap();
        let next = make();
        assert!(!killed.exists() && living.dir.path().exists());
        assert!(foreign.join("nbd.sock").exists() && mixed.join("precious").exists());
        drop((living, next));
        assert_eq!(names(), ["headstart-foreign", "headstart-mixed"]);
    }

    #[test]
    fn the_next_process_of_a_disk_has_the_same_path() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join("vm.socket");
        let make = || OwnDirectory::make_again(&record, &SocketAccess::default()).unwrap();
        let killed = make();
        let socket = killed.socket();
        fs::write(&socket, "").unwrap();
        drop(killed._lock);
        let killed = killed.dir.keep();
        let next = make();
        assert_eq!(next.socket(), socket);
        assert!(!socket.exists(), "what the killed one left is still there");
        drop(next);
        // Another directory is there now; the path that is used instead stays the path from then on.
        fs::create_dir(&killed).unwrap();
        let other = make();
        let path = other.socket();
        assert_ne!(path, socket);
        drop(other);
        assert_eq!(make().socket(), path);
        fs::remove_dir(&killed).unwrap();
        for damaged in ["", "/etc\n", "headstart-x"] {
            fs::write(&record, damaged).unwrap();
            let made = make().socket();
            assert!(made.starts_with(std::env::temp_dir()) && made != path, "{made:?}");
        }
    }
}
