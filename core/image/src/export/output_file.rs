//! Output files that appear whole or not at all.

use super::kept_files::{refuse_input, refuse_own};
use headstart_block::guarded::{
    FileAccess, GuardedDir, GuardedEntry, directory_of, is_trusted, not_made_in, with_obstacle,
};
use headstart_block::lock::lock_within;
use headstart_block::{Error, Result};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, fchown, flock, getxattr, linkat, openat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::NamedTempFile;

/// The beginning of temporary names, and the number of characters that are drawn behind it.
const PREFIX: &str = ".headstart-";
const DRAWN: usize = 6;

/// The longest wait for the lock of a new file. Another export has it for a moment, while it looks for abandoned files;
/// any user with permission to read the file could hold it for ever.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The permissions of a file, as far as the umask lets it have them.
const MODE: u32 = 0o644;

/// The permissions, during its making, of a file that is not for all users.
const CLOSED: u32 = 0o600;

/// The permission of all users to read a file, those of its owner, and those of its owner and its group.
const READ_BY_ALL: u32 = 0o004;
const OWNERS: u32 = 0o700;
const OWNERS_AND_GROUPS: u32 = 0o770;

/// The place of an output, to which no symbolic link of another user leads.
#[derive(Debug)]
pub(super) struct Place {
    entry: GuardedEntry,
    /// The file or the block device that is there.
    found: Option<Metadata>,
    /// The path as it was given, for messages.
    given: PathBuf,
}

impl Place {
    /// Finds the place that `path` leads to. `inputs` are files that the output must not replace.
    ///
    /// # Errors
    /// [`Denied`](headstart_block::ErrorKind::Denied) for a symbolic link of another user;
    /// [`Invalid`](headstart_block::ErrorKind::Invalid) for the name of a directory, for one of the inputs and for a
    /// file of the program's own, and if there is something other than a file or a block device, because a rename would
    /// put a file in the place of `/dev/null` or a pipe; errors of the operating system.
    pub(super) fn find(path: &Path, inputs: &[&Path]) -> Result<Self> {
        // Before the walk, because the text of links such as `/dev/stdout` need not be a path. A path that cannot be
        // looked at cannot be created either, and that error gives the reason.
        path.metadata().map_or(Ok(()), |found| check_kind(&found, path))?;
        if is_name_of_directory(path) {
            return Err(Error::invalid("is the name of a directory")
                .about(path.display())
                .remedy("name a file"));
        }
        let entry = GuardedEntry::find(path).map_err(|error| with_obstacle(directory_of(path), error))?;
        let found = match entry.look().and_then(|file| file.metadata()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            found => Some(found.map_err(|e| Error::io("cannot look at it", e).about(path.display()))?),
        };
        found.as_ref().map_or(Ok(()), |found| check_kind(found, path))?;
        refuse_input(found.as_ref(), inputs)
            .and_then(|()| refuse_own(entry.path(), found.is_some()))
            .map_err(|e| e.about(path.display()))?;
        Ok(Self { entry, found, given: path.to_owned() })
    }

    /// `true` if it is a block device, to be written in place.
    pub(super) fn is_block_device(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.file_type().is_block_device())
    }

    /// The path without symbolic links.
    pub(super) fn path(&self) -> &Path {
        self.entry.path()
    }

    /// The permissions that a new file gets in the place of one that not all users could read. In the place of a file
    /// of another user, or of a file with another name, it is for its user alone: that user may have been first at this
    /// place.
    fn kept(&self) -> Option<Kept> {
        let found = self.found.as_ref().filter(|found| found.is_file() && found.mode() & READ_BY_ALL == 0)?;
        if !is_trusted(found) || found.nlink() > 1 {
            return Some(Kept { mode: CLOSED, group: found.gid() });
        }
        // In a file with a list of users, the group's permissions are the most that any of them has.
        let counting = if self.has_access_list() { OWNERS } else { OWNERS_AND_GROUPS };
        Some(Kept { mode: found.mode() & counting, group: found.gid() })
    }

    fn has_access_list(&self) -> bool {
        let mut list = [0; 1024];
        let found = self.entry.look().map(|file| {
            let way = format!("/proc/self/fd/{}", file.as_raw_fd());
            getxattr(way, "system.posix_acl_access", &mut list[..])
        });
        !matches!(found, Ok(Err(Errno::NODATA | Errno::OPNOTSUPP)))
    }
}

/// Permissions that a file keeps when another one takes its place.
#[derive(Clone, Copy, Debug)]
struct Kept {
    mode: u32,
    /// The group that its permissions are about.
    group: u32,
}

impl Kept {
    /// Gives them to a file of this user's; to the user alone if the file cannot be given to the group.
    fn apply(self, file: &File) -> io::Result<()> {
        let is_groups = file.metadata()?.gid() == self.group
            || fchown(file, None, Some(Gid::from_raw(self.group))).is_ok();
        let mode = if is_groups { self.mode } else { self.mode & OWNERS };
        file.set_permissions(Permissions::from_mode(mode))
    }
}

/// `true` if only a directory can have this name: the steps of a path do not distinguish `out/` from `out`.
fn is_name_of_directory(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/") || bytes.ends_with(b"/.")
}

fn check_kind(found: &Metadata, path: &Path) -> Result<()> {
    let cause = match found.file_type() {
        kind if kind.is_block_device() || kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "is a directory",
        _ => "is neither a file nor a block device",
    };
    Err(Error::invalid(cause).about(path.display()).remedy("name a file"))
}

/// A file that is being written and appears at its path only when it is complete.
///
/// Unless [`keep`](Self::keep) is called, the file is removed, also if the process is killed, because it has
/// no name until then. On file systems that cannot make files without a name, it has a temporary name in the
/// same directory; the next export into that directory removes such a file of a killed process.
#[derive(Debug)]
pub struct OutputFile {
    /// Dropped before the directory, through which a temporary name is removed.
    made: Made,
    directory: GuardedDir,
    name: OsString,
    /// The permissions that it gets in the end; `None` if those that it was made with are right.
    kept: Option<Kept>,
    /// The path as it was given, for messages.
    given: PathBuf,
}

#[derive(Debug)]
enum Made {
    /// A file without a name, and its path in `/proc`.
    Unnamed(File, PathBuf),
    Named(NamedTempFile),
}

impl Made {
    fn file(&self) -> &File {
        match self {
            Self::Unnamed(file, _) => file,
            Self::Named(temporary) => temporary.as_file(),
        }
    }
}

impl OutputFile {
    /// Starts a file that is to appear at `path`. If `path` is a symbolic link of this user or of root, the
    /// file is to appear at the link's target. `inputs` are the files that the command reads, which need not exist: the
    /// output must not take the place of any of them.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Denied`] if the path leads through a symbolic link that belongs to
    /// neither root nor this user; [`headstart_block::ErrorKind::Invalid`] if something other than a file is
    /// at the path, or one of the inputs, or a file of the program's own (of an image store, or beside a file `lock`);
    /// errors of creating a file in the directory.
    pub fn create(path: &Path, inputs: &[&Path]) -> Result<Self> {
        Self::at(Place::find(path, inputs)?)
    }

    /// Starts a file that will be at a place.
    ///
    /// # Errors
    /// Errors if there is a block device, or no file can be created.
    pub(super) fn at(place: Place) -> Result<Self> {
        let given = &place.given;
        if place.is_block_device() {
            return Err(Error::invalid("is a block device").about(given.display()).remedy("name a file"));
        }
        let kept = place.kept();
        let way = directory_of(place.entry.path());
        let failed = |e| not_made_in(way, "cannot create", e).about(given.display());
        let directory = place.entry.open_directory().map_err(failed)?;
        remove_abandoned(&directory);
        let mode = if kept.is_some() { CLOSED } else { MODE };
        let made = unnamed_in(&directory, mode);
        let made = made.map_or_else(|| named_in(&directory, mode).map(Made::Named), Ok).map_err(failed)?;
        let name = place.entry.name().to_owned();
        Ok(Self { made, directory, name, kept, given: place.given })
    }

    /// Creates the file at `path` from all bytes that `content` writes; returns the length of the file in
    /// bytes.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`fill`](Self::fill).
    pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<u64> {
        Self::create(path, &[])?.fill(content)
    }

    /// Writes all bytes that `content` produces to the file, then makes the file appear at its path as
    /// [`keep`](Self::keep) does. Returns the length of the file in bytes.
    ///
    /// # Errors
    /// As [`keep`](Self::keep), and errors of `content`.
    pub fn fill(self, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<u64> {
        let about = |e: Error| e.about(self.given.display());
        let failed = |e| about(Error::io("cannot be written", e));
        let mut out = BufWriter::new(self.file());
        content(&mut out).map_err(about)?;
        out.flush().map_err(failed)?;
        drop(out);
        let written = self.file().metadata().map_err(failed)?.len();
        self.keep()?;
        Ok(written)
    }

    /// Returns the open file, for writing its content.
    #[must_use]
    pub fn file(&self) -> &File {
        self.made.file()
    }

    /// A path by which this process opens it once more.
    pub(super) fn temporary_path(&self) -> &Path {
        match &self.made {
            Made::Unnamed(_, path) => path,
            Made::Named(temporary) => temporary.path(),
        }
    }

    /// Makes the complete file appear at its path, in place of an older file. The file and its name survive a
    /// power failure afterwards.
    ///
    /// # Errors
    /// Errors of writing the data out, of renaming, or of syncing the directory. After the first two, the new
    /// file is removed and an older file is still at the path. After the third, the new file is at the path,
    /// but a power failure may bring the older one back.
    pub fn keep(self) -> Result<()> {
        let failed = |e| Error::io("cannot create", e).about(self.given.display());
        let file = self.made.file();
        if let Some(kept) = self.kept {
            kept.apply(file).map_err(failed)?;
        }
        // Before it has its name: a power cut must not leave an empty file in the place of an older one.
        file.sync_data().map_err(failed)?;
        match self.made {
            // Its lock is held until it has its name.
            Made::Unnamed(_file, unnamed) => link(&unnamed, &self.directory, &self.name).map_err(failed)?,
            Made::Named(temporary) => {
                let kept = temporary.persist(way_into(&self.directory).join(&self.name));
                drop(kept.map_err(|e| failed(e.error))?);
            }
        }
        self.directory.sync().map_err(failed)
    }
}

/// A path that leads to an open directory even if those above it change, if there is `/proc`.
fn way_into(directory: &GuardedDir) -> PathBuf {
    let way = PathBuf::from(format!("/proc/self/fd/{}", directory.handle().as_raw_fd()));
    if way.exists() { way } else { directory.path().to_owned() }
}

/// Makes a file without a name; `None` if the file system makes none, or nothing could give it a name.
fn unnamed_in(directory: &GuardedDir, mode: u32) -> Option<Made> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(openat(directory.handle(), ".", flags, Mode::from_raw_mode(mode)).ok()?);
    // While it gets its name, no other export takes it for abandoned.
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.exists().then(|| Made::Unnamed(file, path))
}

/// Makes a file with a temporary name, and locks it.
fn named_in(directory: &GuardedDir, mode: u32) -> io::Result<NamedTempFile> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(mode);
    loop {
        // Not `tempfile_in`: its errors name the temporary file, which means nothing to the user.
        let temporary = tempfile::Builder::new()
            .prefix(PREFIX)
            .make_in(way_into(directory), |path| options.open(path))?;
        lock_named(&temporary, LOCK_TIMEOUT)?;
        // Another export may have had the lock for a moment, and removed the file.
        if temporary.as_file().metadata()?.nlink() > 0 {
            return Ok(temporary);
        }
    }
}

/// Locks a new file, so that no other export takes it for abandoned.
fn lock_named(temporary: &NamedTempFile, timeout: Duration) -> io::Result<()> {
    // On a file system without locks, no export takes it for abandoned either.
    if lock_within(temporary.as_file(), timeout).unwrap_or(true) {
        return Ok(());
    }
    let why = format!("another process holds the lock of a new file there for {} s", timeout.as_secs());
    Err(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// Gives a file without a name the name of an entry, in the place of any file that has it.
fn link(unnamed: &Path, directory: &GuardedDir, name: &OsString) -> io::Result<()> {
    match linkat(CWD, unnamed, directory.handle(), name, AtFlags::SYMLINK_FOLLOW) {
        Err(Errno::EXIST) => {}
        linked => return Ok(linked?),
    }
    // No call puts it in the place of another file, so it has a temporary name for a moment.
    let way = way_into(directory);
    let named = tempfile::Builder::new()
        .prefix(PREFIX)
        .make_in(&way, |name| Ok(linkat(CWD, unnamed, CWD, name, AtFlags::SYMLINK_FOLLOW)?))?;
    named.persist(way.join(name)).map_err(|e| e.error)
}

/// Removes the files that killed exports have left in a directory: an export that still writes one of these holds its
/// lock.
fn remove_abandoned(dir: &GuardedDir) {
    let is_temporary = |name: &String| {
        let drawn = name.strip_prefix(PREFIX);
        drawn.is_some_and(|drawn| drawn.len() == DRAWN && drawn.chars().all(|c| c.is_ascii_alphanumeric()))
    };
    for name in dir.names().unwrap_or_default().into_iter().filter(is_temporary) {
        let Ok(file) = dir.open_file(&name, FileAccess::Read) else { continue };
        let is_ours = file.metadata().is_ok_and(|found| is_trusted(&found));
        if is_ours && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = dir.remove_file(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_testkit::files::names;
    use std::fs;

    /// Goal: a file appears whole or not at all. Method: in both ways, on any file system.
    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let open = || GuardedDir::open(dir.path()).unwrap();
        let directory = open();
        let named = || Some(Made::Named(named_in(&directory, MODE).unwrap()));
        let unnamed = || unnamed_in(&directory, MODE);
        let output = |made| OutputFile {
            made,
            directory: open(),
            name: "out".into(),
            kept: None,
            given: path.clone(),
        };
        for make in [&named as &dyn Fn() -> Option<Made>, &unnamed] {
            fs::write(&path, "old").unwrap();
            for wanted in ["first", "second"] {
                let Some(made) = make() else { continue };
                let dropped = output(made);
                dropped.file().write_all(b"half").unwrap();
                drop(dropped);
                let file = output(make().unwrap());
                fs::write(file.temporary_path(), wanted).unwrap();
                assert_ne!(fs::read(&path).ok(), Some(wanted.into()));
                // Another one that is made meanwhile does not take it for abandoned.
                remove_abandoned(&directory);
                file.keep().unwrap();
                assert_eq!(
                    (fs::read(&path).unwrap(), names(dir.path())),
                    (wanted.into(), vec!["out".to_owned()])
                );
                fs::remove_file(&path).unwrap();
            }
        }
    }

    #[test]
    fn the_lock_of_a_new_file_is_waited_for_with_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let temporary = tempfile::Builder::new().prefix(PREFIX).tempfile_in(dir.path()).unwrap();
        let other = File::open(temporary.path()).unwrap();
        other.lock().unwrap();
        let error = lock_named(&temporary, Duration::from_millis(40)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("another process holds the lock"), "{error}");
        // The lock is acquired once the other holder releases it.
        let waiting = std::thread::spawn(move || lock_named(&temporary, Duration::MAX).map(|()| temporary));
        drop(other);
        assert!(File::open(waiting.join().unwrap().unwrap().path()).unwrap().try_lock().is_err());
    }

    #[test]
    fn leftovers_of_killed_processes_are_removed_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in
            [".headstart-abCD12", ".headstart-abc", ".headstart-abc.12", ".headstart", "headstart-abCD12"]
        {
            fs::write(at(name), "x").unwrap();
        }
        fs::create_dir(at(".headstart-folder")).unwrap();
        std::os::unix::fs::symlink("headstart-abCD12", at(".headstart-linked")).unwrap();
        let directory = GuardedDir::open(dir.path()).unwrap();
        let held = named_in(&directory, MODE).unwrap();
        OutputFile::create(&at("out"), &[]).unwrap();
        let mut left: Vec<String> = [
            ".headstart",
            ".headstart-abc",
            ".headstart-abc.12",
            ".headstart-folder",
            ".headstart-linked",
            "headstart-abCD12",
        ]
        .map(str::to_owned)
        .into();
        left.push(held.path().file_name().unwrap().to_str().unwrap().to_owned());
        left.sort();
        assert_eq!(names(dir.path()), left);
    }

    #[test]
    fn a_file_in_the_place_of_one_that_not_everybody_could_read_is_no_more_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        let set_mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let write = || OutputFile::write(&path, |out| Ok(out.write_all(b"x")?)).unwrap();
        write();
        let new = mode();
        let stay = [(0o600, 0o600), (0o640, 0o640), (0o660, 0o660), (0o400, 0o400), (0o4750, 0o750)];
        for (is, stays) in stay.into_iter().chain([0o644, 0o666, 0o755].map(|is| (is, new))) {
            set_mode(is);
            let begun = OutputFile::create(&path, &[]).unwrap();
            let while_made = begun.file().metadata().unwrap().mode() & 0o777;
            assert_eq!(while_made & !(stays | 0o600), 0, "{while_made:o} for {stays:o}");
            drop(begun);
            write();
            assert_eq!(mode(), stays, "{is:o}");
        }
        // A file that has another name, too, may be there because of another user.
        set_mode(0o660);
        fs::hard_link(&path, dir.path().join("other")).unwrap();
        write();
        assert_eq!(mode(), 0o600);
        if !rustix::process::geteuid().is_root() {
            let _ = io::stderr().write_all(b"SKIPPED in part: only root gives files away\n");
            return;
        }
        let chown = |owner, group| std::os::unix::fs::chown(&path, owner, group).unwrap();
        // Permissions of a group are given to that group.
        set_mode(0o660);
        chown(None, Some(54_321));
        write();
        assert_eq!((mode(), fs::metadata(&path).unwrap().gid()), (0o660, 54_321));
        // Another user that was there first does not open it.
        set_mode(0o660);
        chown(Some(54_321), None);
        write();
        assert_eq!((mode(), fs::metadata(&path).unwrap().uid()), (0o600, 0));
    }

    #[test]
    fn a_list_of_users_opens_a_file_to_no_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        // Version 2: the owner rw, user 7777 rw, the group nothing, all of them rw at most, others nothing.
        let list =
            [(1_u16, 6_u16, u32::MAX), (2, 6, 7777), (4, 0, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)];
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in list {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        let name = "system.posix_acl_access";
        if rustix::fs::setxattr(&path, name, &bytes, rustix::fs::XattrFlags::empty()).is_err() {
            let _ = io::stderr().write_all(b"SKIPPED: the file system keeps no lists of users\n");
            return;
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        OutputFile::write(&path, |out| Ok(out.write_all(b"x")?)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_output_goes_to_the_directory_that_was_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["a", "other"] {
            fs::create_dir(at(name)).unwrap();
        }
        for old in [None, Some("old")] {
            old.map_or(Ok(()), |old| fs::write(at("a/out"), old)).unwrap();
            let file = OutputFile::create(&at("a/out"), &[]).unwrap();
            fs::rename(at("a"), at("moved")).unwrap();
            std::os::unix::fs::symlink("other", at("a")).unwrap();
            file.file().write_all(b"new").unwrap();
            file.keep().unwrap();
            assert_eq!(
                (fs::read(at("moved/out")).unwrap(), names(&at("other"))),
                (b"new".to_vec(), Vec::new())
            );
            fs::remove_file(at("a")).unwrap();
            fs::rename(at("moved"), at("a")).unwrap();
        }
    }
}
