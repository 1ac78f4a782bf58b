//! Output files that appear whole or not at all.

use headstart_block::guarded::{Access, GuardedDir, follow_own_links, is_trusted};
use headstart_block::{Error, Result};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, linkat, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The beginning of temporary names, and the number of characters that are drawn behind it.
const PREFIX: &str = ".headstart-";
const DRAWN: usize = 6;

/// The permissions of a file, as far as the umask lets it have them.
const MODE: u32 = 0o644;

/// What is at the place where something is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing, or a file that is to be replaced.
    File,
    /// A block device, to be written in place.
    BlockDevice,
}

impl Place {
    /// Looks at `path`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] where neither can be there: a rename would put a file in the place
    /// of `/dev/null` or a pipe.
    pub(super) fn find(path: &Path) -> Result<Self> {
        // What cannot be looked at cannot be created either, which says why.
        let Ok(meta) = path.metadata() else { return Ok(Self::File) };
        match meta.file_type() {
            kind if kind.is_block_device() => Ok(Self::BlockDevice),
            kind if kind.is_file() => Ok(Self::File),
            kind if kind.is_dir() => Err(Error::invalid("is a directory").about(path.display())),
            _ => Err(Error::invalid("is neither a file nor a block device").about(path.display())),
        }
    }
}

/// A file in the making. It goes away if it is not kept, also where the process is killed: it has no name until it is
/// whole. On file systems that make no such files it has a temporary name beside its place; what a killed process left
/// there goes with the next one.
#[derive(Debug)]
pub struct OutputFile {
    made: Made,
    path: PathBuf,
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
    /// Starts a file that will be at `path`, or where that leads if it is a link of this user's or of root's.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Denied`] for a link of another user; where there is something else than a file, or
    /// none can be created.
    pub fn create(path: &Path) -> Result<Self> {
        let path = follow_own_links(path)?;
        if Place::find(&path)? == Place::BlockDevice {
            return Err(Error::invalid("is a block device").about(path.display()).remedy("name a file"));
        }
        let dir = directory_of(&path);
        remove_abandoned(dir);
        let made = unnamed_in(dir).map_or_else(|| named_in(dir).map(Made::Named), Ok).map_err(|e| {
            let error = Error::io("cannot create", e).about(path.display());
            if dir.exists() {
                return error;
            }
            error.remedy(format!("make the directory {} first", dir.display()))
        })?;
        Ok(Self { made, path })
    }

    /// Makes a file of what `content` writes; how many bytes it has.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`keep`](Self::keep), and what `content` reports.
    pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<u64> {
        let failed = |e| Error::io("cannot be written", e).about(path.display());
        let file = Self::create(path)?;
        let mut out = BufWriter::new(file.file());
        content(&mut out).map_err(|e| e.about(path.display()))?;
        out.flush().map_err(failed)?;
        drop(out);
        let written = file.file().metadata().map_err(failed)?.len();
        file.keep()?;
        Ok(written)
    }

    /// The file, to be written.
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

    /// Puts the whole file in its place, durably.
    ///
    /// # Errors
    /// What writing it out or renaming it reports; it is gone then, and what was at its place is still there.
    pub fn keep(self) -> Result<()> {
        let Self { made, path } = self;
        let failed = |e| Error::io("cannot create", e).about(path.display());
        // Before it has its name: a power cut must not leave an empty file where an older one was.
        made.file().sync_data().map_err(failed)?;
        match made {
            // Its lock is held until it has its name.
            Made::Unnamed(_file, unnamed) => link(&unnamed, &path).map_err(failed)?,
            Made::Named(temporary) => drop(temporary.persist(&path).map_err(|e| failed(e.error))?),
        }
        File::open(directory_of(&path)).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a file without a name; `None` where the file system makes none, or nothing could give it a name.
fn unnamed_in(dir: &Path) -> Option<Made> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, dir, flags, Mode::from_raw_mode(MODE)).ok()?);
    // While it gets its name, no other export takes it for abandoned.
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.exists().then(|| Made::Unnamed(file, path))
}

/// Makes a file with a temporary name, and locks it.
fn named_in(dir: &Path) -> io::Result<NamedTempFile> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(MODE);
    loop {
        // Not `tempfile_in`: its errors name the temporary file, which nobody asked for.
        let temporary = tempfile::Builder::new().prefix(PREFIX).make_in(dir, |path| options.open(path))?;
        // Where there are no locks, nobody takes it for abandoned either.
        let _ = flock(temporary.as_file(), FlockOperation::LockExclusive);
        // Another export may have had the lock for a moment, and removed it.
        if temporary.as_file().metadata()?.nlink() > 0 {
            return Ok(temporary);
        }
    }
}

/// Gives a file without a name that of `path`, in the place of whatever file has it.
fn link(unnamed: &Path, path: &Path) -> io::Result<()> {
    let link_as = |name: &Path| linkat(CWD, unnamed, CWD, name, AtFlags::SYMLINK_FOLLOW);
    match link_as(path) {
        Err(Errno::EXIST) => {}
        linked => return Ok(linked?),
    }
    // No call puts it in the place of another file, so it has a temporary name for a moment.
    let named =
        tempfile::Builder::new().prefix(PREFIX).make_in(directory_of(path), |name| Ok(link_as(name)?))?;
    named.persist(path).map_err(|e| e.error)
}

/// Removes what killed exports have left in a directory: whoever still writes one of these holds its lock.
fn remove_abandoned(dir: &Path) {
    let Ok(dir) = GuardedDir::open(dir) else { return };
    let is_temporary = |name: &String| {
        let drawn = name.strip_prefix(PREFIX);
        drawn.is_some_and(|drawn| drawn.len() == DRAWN && drawn.chars().all(|c| c.is_ascii_alphanumeric()))
    };
    for name in dir.names().unwrap_or_default().into_iter().filter(is_temporary) {
        let Ok(file) = dir.open_file(&name, Access::Read) else { continue };
        let is_ours = file.metadata().is_ok_and(|found| is_trusted(&found));
        if is_ours && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = dir.remove_file(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Both ways, whatever this file system offers.
    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let named = || Some(Made::Named(named_in(dir.path()).unwrap()));
        let unnamed = || unnamed_in(dir.path());
        for make in [&named as &dyn Fn() -> Option<Made>, &unnamed] {
            fs::write(&path, "old").unwrap();
            for wanted in ["first", "second"] {
                let Some(made) = make() else { continue };
                let dropped = OutputFile { made, path: path.clone() };
                dropped.file().write_all(b"half").unwrap();
                drop(dropped);
                let file = OutputFile { made: make().unwrap(), path: path.clone() };
                fs::write(file.temporary_path(), wanted).unwrap();
                assert_ne!(fs::read(&path).ok(), Some(wanted.into()));
                // Another one that is made meanwhile does not take it for abandoned.
                remove_abandoned(dir.path());
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
    fn what_a_killed_process_left_goes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in
            [".headstart-abCD12", ".headstart-abc", ".headstart-abc.12", ".headstart", "headstart-abCD12"]
        {
            fs::write(at(name), "x").unwrap();
        }
        fs::create_dir(at(".headstart-folder")).unwrap();
        std::os::unix::fs::symlink("headstart-abCD12", at(".headstart-linked")).unwrap();
        let held = named_in(dir.path()).unwrap();
        OutputFile::create(&at("out")).unwrap();
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
}
