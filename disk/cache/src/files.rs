//! A blob's two files in the cache directory: opening, making, recovering and removing them.
//!
//! `STEM.data` is the blob itself, sparse, of its full length; `STEM.map` is its sidecar. Rules:
//!
//! * Files are made, recovered after a reboot and unlinked only under the directory's lock. A new sidecar is
//!   finished under another name and renamed, so that a sidecar that is found is whole.
//! * Nothing is ever truncated or made again in place: a wrong file is unlinked. Processes that still use it go on with
//!   inodes that no other process sees.
//! * A process that uses a pair holds a shared lock on its sidecar ([`Locks::USE`]); the pair is unlinked only by a
//!   process that could get that lock exclusively. After taking the lock, a process looks whether the name still means
//!   the same file.

use crate::blob_files::Files;
use crate::durable;
use crate::locks::{self, Mode};
use crate::shared_state::{MAGIC, NAME as STATE};
use crate::sidecar::{BootId, Header, Identity, Locks, Sidecar};
use headstart_block::guarded::{GuardedDir, check_own, check_own_file, open_own_file};
use headstart_block::{Error, ErrorKind, Result, private};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for a process that changes the directory: that takes milliseconds, unless the process was stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of the file whose lock a process holds while it changes the directory.
const LOCK: &str = "lock";
/// The name of the file whose lock an evictor holds.
pub(crate) const EVICT_LOCK: &str = "evict";

/// The name under which a sidecar is made before it gets its own.
const NEW_SIDECAR: &str = "new.tmp";

/// The files that a start leaves empty: the locks, and the first sidecar if the start was interrupted.
const EMPTY: [&str; 3] = [LOCK, EVICT_LOCK, NEW_SIDECAR];

/// Directories that a cache directory may have before it is a cache: recorded boots, plans, and what a file system puts
/// into its root.
const DIRECTORIES: [&str; 3] = ["traces", "plans", "lost+found"];

/// The permissions of other users and groups to make entries in a directory.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The directories in a cache that disks and agents read and trust.
const BELIEVED: [&str; 6] = ["grants", "images", "links", "pinned", "traces", "plans"];

/// The directories among these whose files are named by digests.
const BY_DIGEST: [&str; 4] = ["grants", "images", "links", "pinned"];

/// The number of hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 64;

/// The number of hexadecimal digits of the sum in the name of a blob's files.
const SUM_DIGITS: usize = 32;

/// The cache directory.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) boot: BootId,
    /// The lock file: byte 0 is for changes of the directory, those behind it for [slots](crate::slots).
    lock: Mutex<File>,
}

/// The directory, while no other thread or process changes it.
pub(crate) struct Changing<'a> {
    directory: &'a Directory,
    lock: MutexGuard<'a, File>,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        locks::unlock(&self.lock, &(0..1));
    }
}

/// Recovers a sidecar as after a reboot, whatever its data file holds, and returns the number of bytes that
/// it records as local. For the fuzzer.
#[doc(hidden)]
pub fn recover_sidecar(file: File, data: File) -> Result<u64> {
    let header = Header::read(&file)?;
    let sidecar = Sidecar::new(file, &header)?;
    let files = Files { header, sidecar, data, data_path: PathBuf::new(), durable: Mutex::default() };
    durable::recover(&files)?;
    durable::forget(&files, std::slice::from_ref(&(0..1)))?;
    durable::sync(&files)?;
    Ok(files.all_local_bytes())
}

/// The state of the files under a name.
enum Found {
    /// Files of this boot.
    Ready(Files),
    /// Files of an earlier boot: to be recovered under the directory's lock.
    Earlier(Files),
    /// No sidecar.
    Nothing,
    /// Something that is not trusted, and the reason.
    Wrong(Error),
    /// A process unlinks it just now.
    Leaving,
}

/// Options for opening a file in a directory of this user's: a symbolic link in its place is not followed, and a pipe
/// is not waited for.
fn options() -> fs::OpenOptions {
    let mut options = private::options();
    let carefully = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.read(true).write(true).custom_flags(carefully.bits().cast_signed());
    options
}

/// Takes from other users their permissions on a directory that is a cache or becomes one. A directory of root's that
/// another user uses stays as it is, and so does one where each user owns the entries that it made: files in it are
/// closed, each by itself.
fn close_to_others(own: &GuardedDir, was_there: bool) -> Result<()> {
    let found = own.handle().metadata();
    if private::close(own.handle()).is_ok_and(|closed| closed) {
        // Only one that its user made for this alone is closed without a warning.
        let is_used = was_there || own.names().is_ok_and(|names| !names.is_empty());
        if is_used || found.as_ref().is_ok_and(|found| found.mode() & WRITABLE_BY_OTHERS != 0) {
            tracing::warn!(dir = %own.path().display(), "other users could look into the cache; now they cannot");
        }
    }
    let is_roots = found.is_ok_and(|found| found.uid() != rustix::process::geteuid().as_raw());
    if is_roots { Ok(()) } else { own.check_names_stay() }
}

/// `true` for the name of a blob's files without their extension, as [`Identity::file_stem`] makes it.
fn is_stem(name: &str) -> bool {
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    };
    name.split_once('.').is_some_and(|(digest, sum)| is_hex(digest, DIGEST_DIGITS) && is_hex(sum, SUM_DIGITS))
}

/// `true` if a directory contains files, and the name of each begins with a digest, as those of a cache do.
fn has_digests_only(dir: &Path) -> bool {
    let begins_with_digest = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let digits = name.as_encoded_bytes().get(..DIGEST_DIGITS);
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        })
    };
    let mut entries = fs::read_dir(dir).into_iter().flatten().map(begins_with_digest).peekable();
    entries.peek().is_some() && entries.all(|is_named_so| is_named_so)
}

/// A file in memory, for a cache without a directory.
pub(crate) fn unnamed_file() -> Result<File> {
    let file = rustix::fs::memfd_create("headstart-cache", rustix::fs::MemfdFlags::CLOEXEC);
    Ok(File::from(file.map_err(|e| Error::io("cannot make a file in memory", e.into()))?))
}

/// Opens a file; `None` if it does not exist.
fn open_if_there(path: &Path) -> Result<Option<File>> {
    match options().open(path) {
        Ok(file) => check_own_file(&file, path).map(|()| Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("cannot open", e).about(path.display())),
    }
}

fn unlink(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("cannot remove", e).about(path.display()))
        }
        _ => Ok(()),
    }
}

/// The length of a regular file; `None` if it is something else, or not there.
fn is_regular(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len())
}

/// `true` for a file of shared numbers, also one that an interrupted start has not filled.
fn is_begun_state(path: &Path) -> bool {
    let mut magic = [0; 8];
    match is_regular(path) {
        Some(0) => true,
        Some(_) => {
            let read = File::open(path).and_then(|file| file.read_exact_at(&mut magic, 0));
            read.is_ok() && (magic == *MAGIC || magic == [0; 8])
        }
        None => false,
    }
}

impl Directory {
    /// Opens the directory and makes sure that it can be written and locked.
    pub(crate) fn open(path: &Path, boot: BootId) -> Result<Self> {
        let unusable = |e: Error| {
            e.about(path.display()).remedy("choose a cache directory that this user can write, with --cache")
        };
        let was_there = Self::is_there(path);
        let made = private::make_directory(path);
        made.map_err(|e| unusable(Error::io("cannot make the cache directory", e)))?;
        // The content of the directory is trusted: it was verified when it came.
        let own = GuardedDir::open_own(path).map_err(unusable)?;
        // Another user may have left these while that was possible, or may do so where each user owns the entries that
        // it made. Checked before anything is changed, and again once no other user can change it.
        Self::check_trusted(path)?;
        // If this cannot be told, opening the lock reports the reason.
        if matches!(was_there, Ok(false)) {
            Self::check_is_free(path)?;
        }
        close_to_others(&own, was_there.unwrap_or(false))?;
        Self::check_trusted(path)?;
        let lock = options().create(true).truncate(false).open(path.join(LOCK));
        let lock = lock.map_err(|e| unusable(Error::io("cannot write to the cache directory", e)))?;
        check_own_file(&lock, &path.join(LOCK))?;
        let directory = Self { path: path.to_owned(), boot, lock: Mutex::new(lock) };
        drop(directory.change().map_err(unusable)?);
        Ok(directory)
    }

    /// `true` if a directory is a cache: opening one leaves its lock files there, which are empty.
    ///
    /// # Errors
    /// Errors of the operating system if this user may not look or not write there.
    pub(crate) fn is_there(path: &Path) -> Result<bool> {
        let barred = |e| {
            let error = Error::io("cannot open the cache", e).about(path.display());
            error.remedy("run it as the user whose cache it is")
        };
        for name in [LOCK, EVICT_LOCK] {
            match fs::symlink_metadata(path.join(name)) {
                Ok(metadata) if metadata.is_file() && metadata.len() == 0 => {}
                Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    return Err(barred(e));
                }
                _ => return Ok(false),
            }
        }
        options().open(path.join(LOCK)).map_err(barred)?;
        Ok(true)
    }

    /// The first entry of a directory, by name, that no release puts into a cache.
    pub(crate) fn foreign_entry(path: &Path) -> Option<String> {
        let is_own = |name: &str| match name {
            name if BY_DIGEST.contains(&name) => has_digests_only(&path.join(name)),
            name if EMPTY.contains(&name) => is_regular(&path.join(name)).is_some_and(|len| len == 0),
            STATE => is_begun_state(&path.join(name)),
            name if DIRECTORIES.contains(&name) => path.join(name).is_dir(),
            name => name.strip_suffix(".map").or_else(|| name.strip_suffix(".data")).is_some_and(is_stem),
        };
        let names = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.map(|name| name.to_string_lossy().into_owned()).filter(|name| !is_own(name)).min()
    }

    /// Refuses a directory in which other users have the directories that disks and agents trust.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] there.
    pub(crate) fn check_trusted(path: &Path) -> Result<()> {
        BELIEVED.iter().try_for_each(|name| check_own(&path.join(name)))
    }

    /// Refuses a directory with entries that no release puts into a cache: their user may have others that need them.
    pub(crate) fn check_is_free(path: &Path) -> Result<()> {
        // In this order, because another process may make a cache of it meanwhile, and leaves its locks before anything
        // else.
        let Some(name) = Self::foreign_entry(path) else { return Ok(()) };
        if Self::is_there(path)? {
            return Ok(());
        }
        let cause = format!("is not a cache and holds something already: {}", name.escape_debug());
        let error = Error::new(ErrorKind::Invalid, cause).about(path.display());
        Err(error.remedy("give an empty directory, or one that is not there yet"))
    }

    /// A directory that cannot be used: nothing is looked up there.
    pub(crate) fn unusable(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), boot: BootId::default(), lock: Mutex::new(unnamed_file()?) })
    }

    /// Opens a file that exists only to be locked.
    pub(crate) fn open_lock(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        open_own_file(&path)
    }

    /// Opens the file whose byte 0 is locked for changes of the directory, for locks of other bytes.
    pub(crate) fn open_changes_lock(&self) -> Result<File> {
        self.open_lock(LOCK)
    }

    /// Waits until no other thread or process changes the directory.
    pub(crate) fn change(&self) -> Result<Changing<'_>> {
        let lock = self.lock.lock();
        if !locks::lock_within(&lock, &(0..1), Mode::Exclusive, LOCK_TIMEOUT)? {
            return Err(Error::new(
                ErrorKind::Conflict,
                "another process changes the cache directory and does not end",
            )
            .about(self.path.display())
            .remedy("find a stopped headstart process and end it"));
        }
        Ok(Changing { directory: self, lock })
    }

    fn paths(&self, stem: &str) -> (PathBuf, PathBuf) {
        (self.path.join(format!("{stem}.map")), self.path.join(format!("{stem}.data")))
    }

    /// The stems of all sidecars.
    pub(crate) fn stems(&self) -> Result<Vec<String>> {
        let failed = |e| Error::io("cannot list", e).about(self.path.display());
        let mut stems = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            // Other files of the user's may be there, and such names are not rare.
            let stem = name.to_str().and_then(|name| name.strip_suffix(".map")).filter(|stem| is_stem(stem));
            stems.extend(stem.map(str::to_owned));
        }
        stems.sort();
        Ok(stems)
    }

    /// The files under a name, if they exist and can be trusted. Files of an earlier boot are recovered first; files
    /// that cannot be trusted are left alone.
    pub(crate) fn open_stem(&self, stem: &str) -> Result<Option<Files>> {
        match self.find(stem, None)? {
            Found::Ready(files) => Ok(Some(files)),
            Found::Nothing | Found::Wrong(_) | Found::Leaving => Ok(None),
            Found::Earlier(_) => {
                let changing = self.change()?;
                match self.find(stem, None)? {
                    Found::Ready(files) => Ok(Some(files)),
                    Found::Earlier(files) => changing.recover(files).map(Some),
                    _ => Ok(None),
                }
            }
        }
    }

    /// The files of a blob. If there are none that can be trusted, they are made if `create`; otherwise the result is
    /// `None`.
    pub(crate) fn open_blob(&self, identity: &Identity, create: bool) -> Result<Option<Files>> {
        let stem = identity.file_stem();
        match self.find(&stem, Some(identity))? {
            Found::Ready(files) => return Ok(Some(files)),
            Found::Nothing if !create => return Ok(None),
            _ => {}
        }
        let changing = self.change()?;
        match self.find(&stem, Some(identity))? {
            Found::Ready(files) => Ok(Some(files)),
            Found::Earlier(files) => match changing.recover(files) {
                Ok(files) => Ok(Some(files)),
                // A full disk damages nothing.
                Err(why) if why.kind() == ErrorKind::NoSpace => Err(why),
                Err(why) => changing.begin_anew(identity, &stem, create, &why),
            },
            Found::Nothing if create => changing.create(identity, &stem).map(Some),
            Found::Nothing => Ok(None),
            Found::Leaving => Err(Error::new(ErrorKind::Conflict, "is being removed").about(identity.digest)),
            Found::Wrong(why) => changing.begin_anew(identity, &stem, create, &why),
        }
    }

    /// Looks at the files under a name, and takes them into use if they are right.
    fn find(&self, stem: &str, wanted: Option<&Identity>) -> Result<Found> {
        let (map_path, data_path) = self.paths(stem);
        let Some(map) = open_if_there(&map_path)? else { return Ok(Found::Nothing) };
        if !locks::try_lock(&map, &Locks::USE, Mode::Shared)? || !is_still(&map, &map_path)? {
            return Ok(Found::Leaving);
        }
        let believed = || {
            let header = Header::read(&map)?;
            if wanted.is_some_and(|wanted| *wanted != header.identity) || header.identity.file_stem() != stem
            {
                return Err(Error::corrupt("describes another blob"));
            }
            let data =
                open_if_there(&data_path)?.ok_or_else(|| Error::corrupt("its data file is not there"))?;
            let metadata = data.metadata()?;
            if (metadata.ino(), metadata.len()) != (header.data_inode, header.identity.len) {
                return Err(Error::corrupt("its data file is another one"));
            }
            let boot = Sidecar::boot(&map)?;
            Sidecar::read_through(&map, &header)?;
            Ok((header, data, boot))
        };
        let (header, data, boot) = match believed() {
            Ok(right) => right,
            Err(why) => return Ok(Found::Wrong(why.about(map_path.display()))),
        };
        let sidecar = Sidecar::new(map, &header)
            .map_err(|e| Error::io("cannot map a sidecar", e).about(map_path.display()))?;
        let files = Files { header, sidecar, data, data_path, durable: Mutex::default() };
        Ok(if boot == self.boot { Found::Ready(files) } else { Found::Earlier(files) })
    }
}

/// `true` if a name still means an open file.
fn is_still(file: &File, path: &Path) -> Result<bool> {
    let (open, named) = (file.metadata()?, fs::metadata(path));
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino())))
}

impl Changing<'_> {
    /// Recovers files of an earlier boot: only durable units are trusted.
    fn recover(&self, files: Files) -> Result<Files> {
        durable::recover(&files).map_err(|e| e.about(files.data_path.display()))?;
        let written = files.sidecar.write_boot(&self.directory.boot);
        written.map_err(|e| Error::io("cannot write a sidecar", e).about(files.data_path.display()))?;
        Ok(files)
    }

    /// Removes files that cannot be trusted or read, and makes them again if `create`.
    fn begin_anew(
        &self,
        identity: &Identity,
        stem: &str,
        create: bool,
        why: &Error,
    ) -> Result<Option<Files>> {
        tracing::warn!(blob = %identity.digest, %why, "a cached blob cannot be believed and starts empty");
        self.unlink(stem)?;
        if create { self.create(identity, stem).map(Some) } else { Ok(None) }
    }

    fn create(&self, identity: &Identity, stem: &str) -> Result<Files> {
        let (map_path, data_path) = self.directory.paths(stem);
        let new_path = self.directory.path.join(NEW_SIDECAR);
        let make = || {
            unlink(&data_path)?;
            unlink(&new_path)?;
            let data = options().create_new(true).open(&data_path)?;
            data.set_len(identity.len)?;
            let header = Header { identity: identity.clone(), data_inode: data.metadata()?.ino() };
            let map = options().create_new(true).open(&new_path)?;
            Sidecar::write_new(&map, &header, &self.directory.boot)?;
            if !locks::try_lock(&map, &Locks::USE, Mode::Shared)? {
                return Err(Error::new(ErrorKind::Conflict, "another process locked a new file"));
            }
            let sidecar = Sidecar::new(map, &header)?;
            fs::rename(&new_path, &map_path)?;
            Ok(Files { header, sidecar, data, data_path: data_path.clone(), durable: Mutex::default() })
        };
        make().map_err(|e| {
            // Left-over files only take space on the disk.
            let _ = (unlink(&new_path), unlink(&data_path));
            e.about(data_path.display())
        })
    }

    /// Unlinks a pair.
    fn unlink(&self, stem: &str) -> Result<()> {
        let (map_path, data_path) = self.directory.paths(stem);
        unlink(&map_path).and_then(|()| unlink(&data_path))
    }

    /// Unlinks a pair that no process uses, `files` being the caller's own; `false` if another handle has it open.
    pub(crate) fn unlink_if_unused(&self, stem: &str, files: &Files) -> Result<bool> {
        let (map_path, _) = self.directory.paths(stem);
        let file = &files.sidecar.file;
        if !is_still(file, &map_path)? || !locks::try_lock(file, &Locks::USE, Mode::Exclusive)? {
            return Ok(false);
        }
        self.unlink(stem).map(|()| true)
    }

    /// Unlinks a pair that cannot be trusted or is of another version, unless a process uses it.
    pub(crate) fn unlink_if_wrong(&self, stem: &str) -> Result<bool> {
        let Found::Wrong(_) = self.directory.find(stem, None)? else { return Ok(false) };
        let (map_path, _) = self.directory.paths(stem);
        let Some(map) = open_if_there(&map_path)? else { return Ok(false) };
        if !locks::try_lock(&map, &Locks::USE, Mode::Exclusive)? {
            return Ok(false);
        }
        self.unlink(stem).map(|()| true)
    }
}
