//! [`GuardedDir`]: a directory that other users may write to, used without following the links that they put there.
//!
//! The process that uses a store or a writable directory often runs as root, and the directory may belong to another
//! user. That user can put a symbolic link, a pipe or a device under any name in it, at any moment. Therefore:
//!
//! * The path that the user gave is followed once, to open the directory. Names are then looked up relative to the open
//!   directory, and are names of single entries: a later change of the path has no effect.
//! * No symbolic link is followed below that directory, and opening never waits for the other end of a pipe.
//! * What is opened has to be a regular file or a directory; anything else is an error that says what it is.
//! * A file is made only where nothing has its name.
//!
//! A path that may lead through directories of other users, such as the path of an output, is resolved by
//! [`GuardedEntry::find`].
//!
//! The files that a program keeps for itself (in the directories of an agent, a cache, a cluster) are different: the
//! program trusts their contents. [`GuardedDir::open_own`] and [`open_own_file`] therefore refuse a directory or file
//! that belongs to neither root nor the effective user of the process.

mod entry;
mod not_made;
mod own;

pub use entry::{GuardedEntry, refuse_links};
pub use not_made::{directory_of, not_made_in, with_obstacle};
pub use own::{OthersMay, check_own, check_own_directory, check_own_file, open_own_file};

use crate::saturating;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, linkat, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The flags of every open: no symbolic link, no waiting, no terminal.
const CAREFULLY: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The number of tries to open a file that others make and remove meanwhile.
const RACES: usize = 16;

/// The operations for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// The permissions and the owner that a new file or directory gets. The umask has no effect on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Like {
    /// Permission bits, as in `chmod`, for example `0o600`.
    pub mode: u32,
    /// Ids of the user and of the group that become the owner. If this process may not set one of these ids, that id
    /// stays the one of this process, without an error. `None` changes neither.
    pub owner: Option<(u32, u32)>,
}

impl Like {
    /// Permissions `mode`, owned by the user of this process.
    #[must_use]
    pub fn own(mode: u32) -> Self {
        Self { mode, owner: None }
    }

    /// Gives a new file these permissions and this owner, as far as that is needed and possible. Never one that was
    /// there: another user may have put a file of ours from elsewhere there.
    fn apply(self, file: &File) -> io::Result<()> {
        let found = file.metadata()?;
        if let Some((user, group)) = self.owner {
            // Best effort: only root gives things away, and only a member gives files to a group.
            if found.uid() != user
                && fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group))).is_err()
                || found.gid() != group
            {
                let _ = fchown(file, None, Some(Gid::from_raw(group)));
            }
        }
        if file.metadata()?.mode() & 0o7777 == self.mode & 0o7777 {
            return Ok(());
        }
        // Last, because giving a file away takes bits of its mode.
        Ok(fchmod(file, Mode::from_raw_mode(self.mode))?)
    }
}

/// An open directory whose entries are opened without following symbolic links; see the [module](self).
/// Methods that take the name of an entry fail with [`io::ErrorKind::InvalidInput`] if it is empty, `.` or
/// `..`, or has a slash or a NUL. Only `check_entry` does not check the name.
#[derive(Debug)]
pub struct GuardedDir {
    handle: File,
    path: PathBuf,
}

impl GuardedDir {
    /// Opens the directory at `path`; an empty path is the current directory. The path itself is trusted, because the
    /// user named it: symbolic links in it are followed.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::DIRECTORY.bits().cast_signed();
        let handle = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        Ok(Self { handle, path: path.to_owned() })
    }

    /// Opens the directory that contains `path`, and returns it with the last component of `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if the last component is missing or is not UTF-8; errors of the
    /// operating system.
    pub fn around(path: &Path) -> io::Result<(Self, &str)> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "its name is not text"))?;
        Ok((Self::open(path.parent().unwrap_or(Path::new(".")))?, name))
    }

    /// The path by which the directory was opened, for messages only: the directory may have been renamed since.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path of the entry `name` under `/proc/self/fd`, which leads to this open directory even
    /// after it was renamed. It is valid in this process while the directory is open, and only if `/proc` is
    /// mounted.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if `name` is empty, `.` or `..`, or has a slash or a NUL.
    pub fn anchored(&self, name: &str) -> io::Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).join(single(name)?))
    }

    /// The open directory as a file descriptor.
    #[must_use]
    pub fn handle(&self) -> &File {
        &self.handle
    }

    /// Opens the directory `name` in this directory.
    ///
    /// # Errors
    /// Errors of the operating system; if the entry is not a directory, an error that names its kind.
    pub fn open_dir(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | CAREFULLY;
        let opened = openat(&self.handle, single(name)?, flags, Mode::empty());
        let handle = File::from(opened.map_err(|e| self.explain(name, e))?);
        Ok(Self { handle, path: self.path.join(name) })
    }

    /// Opens the directory `name` in this directory, and creates it first if it is missing. `like` applies to
    /// a new directory only.
    ///
    /// # Errors
    /// Those of [`GuardedDir::open_dir`], and errors of creating the directory.
    pub fn make_dir(&self, name: &str, like: Like) -> io::Result<Self> {
        let made = match mkdirat(&self.handle, single(name)?, Mode::RWXU) {
            Err(Errno::EXIST) => false,
            made => made.map(|()| true)?,
        };
        let dir = self.open_dir(name)?;
        // The directory may have been exchanged since; an empty one gives nothing away.
        if made && dir.all_names()?.is_empty() {
            like.apply(&dir.handle)?;
        }
        Ok(dir)
    }

    /// Opens the existing regular file `name` in this directory.
    ///
    /// # Errors
    /// Errors of the operating system; if the entry is not a regular file, an error that names its kind.
    pub fn open_file(&self, name: &str, access: FileAccess) -> io::Result<File> {
        let access = match access {
            FileAccess::Read => OFlags::RDONLY,
            FileAccess::ReadWrite => OFlags::RDWR,
        };
        let opened = openat(&self.handle, single(name)?, access | CAREFULLY, Mode::empty());
        let file = File::from(opened.map_err(|e| self.explain(name, e))?);
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok(file) } else { Err(unexpected(FileType::from_raw_mode(metadata.mode()))) }
    }

    /// Creates the file `name` in this directory, and opens it for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if an entry of any kind has that name; errors of the operating
    /// system.
    pub fn create_file(&self, name: &str, like: Like) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
        let file = File::from(openat(&self.handle, single(name)?, flags, Mode::RUSR | Mode::WUSR)?);
        like.apply(&file)?;
        Ok(file)
    }

    /// Creates the file `name` in this directory with the permission bits `most` minus those of the umask,
    /// and opens it for reading and writing.
    ///
    /// # Errors
    /// Those of [`GuardedDir::create_file`].
    pub fn create_file_by_umask(&self, name: &str, most: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | CAREFULLY;
        Ok(File::from(openat(&self.handle, single(name)?, flags, Mode::from_raw_mode(most))?))
    }

    /// Opens the regular file `name` for reading and writing, and creates it first if it is missing. `like`
    /// applies to a new file only.
    ///
    /// # Errors
    /// Those of [`GuardedDir::open_file`]; [`io::ErrorKind::AlreadyExists`] if other processes create and
    /// remove the file again and again meanwhile.
    pub fn open_or_create(&self, name: &str, like: Like) -> io::Result<File> {
        let mut tries = 0;
        loop {
            match self.open_file(name, FileAccess::ReadWrite) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
            match self.create_file(name, like) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < RACES => tries += 1,
                created => return created,
            }
        }
    }

    /// Creates an empty file `name`, opened for reading and writing, and removes any file of that name first.
    /// Processes that have the old file open keep it.
    ///
    /// # Errors
    /// Errors of the operating system, for instance if a directory has that name, because directories are not removed;
    /// [`io::ErrorKind::AlreadyExists`] if other processes create the file again and again meanwhile.
    pub fn recreate_file(&self, name: &str, like: Like) -> io::Result<File> {
        let mut tries = 0;
        loop {
            match self.create_file(name, like) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < RACES => tries += 1,
                created => return created,
            }
            match self.remove_file(name) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }

    /// Renames the entry `from` of this directory to `name` in the directory `to`, and replaces a file of
    /// that name.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn rename(&self, from: &str, to: &Self, name: &str) -> io::Result<()> {
        Ok(renameat(&self.handle, single(from)?, &to.handle, single(name)?)?)
    }

    /// Gives the file `from` of this directory the name `name` in the directory `to` as well (a hard link). A symbolic
    /// link is not followed: the link itself gets the other name, and is refused when it is opened.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if an entry has that name; [`io::ErrorKind::CrossesDevices`] if the directories
    /// are on different file systems; other errors of the operating system.
    pub fn link(&self, from: &str, to: &Self, name: &str) -> io::Result<()> {
        Ok(linkat(&self.handle, single(from)?, &to.handle, single(name)?, AtFlags::empty())?)
    }

    /// Removes the entry `name`, which may be of any kind but a directory; a symbolic link itself is removed.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.handle, single(name.as_ref())?, AtFlags::empty())?)
    }

    /// Removes the empty directory `name`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.handle, single(name.as_ref())?, AtFlags::REMOVEDIR)?)
    }

    /// Lists the names of entries, in no particular order, without `.` and `..`. Names that are not UTF-8 are left out:
    /// where every entry counts, [`all_names`](Self::all_names) has them.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.all_names()?.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// Lists the names of all entries, in no particular order, without `.` and `..`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn all_names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.handle)? {
            names.push(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned());
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// Returns the modification time of the entry `name` in seconds since 1970; 0 for an earlier time. The time of a
    /// symbolic link is that of the link itself.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn modified(&self, name: impl AsRef<OsStr>) -> io::Result<u64> {
        let found = rustix::fs::statat(&self.handle, single(name.as_ref())?, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(saturating(i128::from(found.st_mtime)))
    }

    /// Makes the creation, renaming and removal of entries durable (`fsync` of the directory).
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn sync(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    /// The error of an entry that could not be opened, which may be because of its kind.
    fn explain(&self, name: &str, error: Errno) -> io::Error {
        if !matches!(error, Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::ISDIR) {
            return error.into();
        }
        match rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => unexpected(FileType::from_raw_mode(found.st_mode)),
            Err(_) => error.into(),
        }
    }
}

/// Opens a regular file for reading. Symbolic links in `path` are followed, and a pipe is refused instead of
/// waited for.
///
/// # Errors
/// Errors of the operating system; if `path` is not a regular file, an error that names its kind.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(file) } else { Err(unexpected(FileType::from_raw_mode(metadata.mode()))) }
}

/// The error of an entry that is something else than it has to be.
fn unexpected(kind: FileType) -> io::Error {
    let kind = match kind {
        FileType::Symlink => "is a symbolic link, and is not followed",
        FileType::Directory => "is a directory",
        FileType::Fifo => "is a pipe",
        FileType::Socket => "is a socket",
        FileType::RegularFile => "is a file, and no directory",
        _ => "is neither a file nor a directory",
    };
    io::Error::new(io::ErrorKind::InvalidInput, kind)
}

/// A name, where it is that of a single entry.
fn single<N: AsRef<OsStr> + ?Sized>(name: &N) -> io::Result<&N> {
    let bytes = name.as_ref().as_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not the name of a single file"));
    }
    Ok(name)
}

/// `true` if the owner of a file or directory is root or the effective user of this process.
#[must_use]
pub fn is_trusted(found: &Metadata) -> bool {
    found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw()
}

/// Returns `text` as one word of a shell's command line. It is quoted if necessary, and control characters, which a
/// terminal would interpret, are escaped (`$'...'`, as bash, zsh and ksh read it).
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,~".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('~') {
        return text.to_owned();
    }
    if !text.contains(char::is_control) {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    // As bash, zsh and ksh read it.
    let escape = |c: char| match c {
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("$'{}'", text.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    pub(super) fn scene() -> (tempfile::TempDir, GuardedDir) {
        let dir = tempfile::tempdir().unwrap();
        let guarded = GuardedDir::open(dir.path()).unwrap();
        (dir, guarded)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn links_pipes_and_sockets_in_the_place_of_files_are_refused_at_once() {
        let (dir, guarded) = scene();
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, dir.path().join("link")).unwrap();
        symlink(outside.path(), dir.path().join("dirlink")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::create_dir(dir.path().join("dir")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let like = Like::own(0o600);
        for (name, what) in [
            ("link", "a symbolic link"),
            ("loop", "a symbolic link"),
            ("dirlink", "a symbolic link"),
            ("pipe", "a pipe"),
            ("socket", "a socket"),
            ("dir", "a directory"),
        ] {
            for access in [FileAccess::Read, FileAccess::ReadWrite] {
                let error = guarded.open_file(name, access).unwrap_err();
                assert!(error.to_string().contains(what), "{name}: {error}");
            }
            assert!(guarded.open_or_create(name, like).is_err());
            assert_eq!(guarded.create_file(name, like).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            if name != "dir" {
                let error = guarded.make_dir(name, like).unwrap_err();
                assert!(error.to_string().contains(what), "{name}: {error}");
            }
        }
        // A new file takes the place of a link, and the link's target does not change.
        guarded.recreate_file("link", like).unwrap().write_all(b"x").unwrap();
        assert_eq!(
            (fs::read(&victim).unwrap(), mode(&dir.path().join("link"))),
            (b"precious".to_vec(), 0o600)
        );
        assert!(guarded.recreate_file("dir", like).is_err());
        for name in ["", ".", "..", "a/b", "../link", "/etc/passwd"] {
            assert!(guarded.open_file(name, FileAccess::Read).is_err() && guarded.remove_file(name).is_err());
        }
    }

    #[test]
    fn names_are_looked_up_in_the_directory_that_was_opened() {
        let (dir, guarded) = scene();
        let inner = guarded.make_dir("inner", Like::own(0o750)).unwrap();
        assert_eq!(mode(&dir.path().join("inner")), 0o750);
        fs::rename(dir.path().join("inner"), dir.path().join("moved")).unwrap();
        symlink("/nowhere", dir.path().join("inner")).unwrap();
        inner.create_file("f", Like::own(0o640)).unwrap();
        inner.rename("f", &guarded, "g").unwrap();
        assert_eq!(mode(&dir.path().join("g")), 0o640);
        let mut names = guarded.names().unwrap();
        names.sort();
        assert_eq!(names, ["g", "inner", "moved"]);
        guarded.link("g", &inner, "g2").unwrap();
        guarded.link("inner", &inner, "link").unwrap();
        assert!(inner.open_file("link", FileAccess::Read).is_err(), "a link to nowhere was followed");
        let taken = guarded.link("g", &inner, "g2").unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        inner.remove_file("g2").unwrap();
        inner.remove_file("link").unwrap();
        let bytes = OsStr::from_bytes(b"\xff");
        fs::write(dir.path().join(bytes), "").unwrap();
        assert_eq!((guarded.names().unwrap().len(), guarded.all_names().unwrap().len()), (3, 4));
        guarded.remove_file(bytes).unwrap();
        inner.open_or_create("h", Like::own(0o600)).unwrap();
        assert!(fs::read(inner.anchored("h").unwrap()).unwrap().is_empty());
        assert!(guarded.modified("g").unwrap() > 1_600_000_000);
        guarded.remove_file("inner").unwrap();
        inner.remove_file("h").unwrap();
        guarded.remove_dir("moved").unwrap();
    }

    #[test]
    fn words_survive_a_shell() {
        for word in ["plain-1.2_/x", "", "two words", "it's", "$(id)", "a\nb\u{1b}[2J'\\", "~", "`x`", "ä"] {
            let quoted = shell_word(word);
            assert!(!quoted.contains(char::is_control), "{quoted}");
            let output =
                std::process::Command::new("bash").arg("-c").arg(format!("printf %s {quoted}")).output();
            if let Ok(output) = output {
                assert_eq!(String::from_utf8_lossy(&output.stdout), word, "{quoted}");
            }
        }
    }
}
