//! [`GuardedEntry`]: an entry of a directory, found without following symbolic links of other users.
//!
//! A path may lead through directories that other users can write to. Such a user may put a symbolic link there at
//! any moment. Therefore:
//!
//! * The path is walked once, from descriptor to descriptor. A symbolic link on it, also as its last part, is followed
//!   only if it belongs to root or to the user that this process acts as.
//! * From then on the place is an entry of the directory that was found, whatever becomes of the path.

use super::{GuardedDir, is_trusted, shell_word, with_obstacle};
use crate::{Error, ErrorKind, Result};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The number of symbolic links that a path may lead through, as in the kernel.
const LINKS_MAX: usize = 40;

/// The flags of every open: no link is followed, and the server of the opened file is not asked.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A name in an open directory. On the way to that directory, only symbolic links were followed that belong to root or
/// to the effective user of this process. An entry of that name may be missing.
#[derive(Debug)]
pub struct GuardedEntry {
    directory: File,
    name: OsString,
    path: PathBuf,
    is_there: bool,
}

impl GuardedEntry {
    /// Walks `path` from directory to directory to the entry that it names. The entry need not exist, but the
    /// directory that contains it must. A symbolic link on the way, also as the last component, is followed if it
    /// belongs to root or to the effective user of this process. A file system that is mounted on the entry is not
    /// accessed, because its server may hang or have ended.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if a symbolic link on the way belongs to neither; [`ErrorKind::Invalid`] if the path names
    /// no entry of a directory, as an empty path, `/`, `.` and `a/..` do; errors of the operating system, also for a
    /// path through more than 40 symbolic links. If a directory on the way is missing or may not be entered, the remedy
    /// in the error names it.
    pub fn find(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| Error::io("cannot be reached", e).about(path.display());
        let mut steps = steps(path);
        let mut way = Way::begin(if path.is_absolute() { "/" } else { "" }).map_err(failed)?;
        let mut links = 0;
        while let Some(step) = steps.pop() {
            let name = match step {
                Step::Root => {
                    way = Way::begin("/").map_err(failed)?;
                    continue;
                }
                Step::Up => {
                    way.up().map_err(failed)?;
                    continue;
                }
                Step::Into(name) => name,
            };
            let found = match look(way.directory(), &name) {
                Err(Errno::NOENT) if steps.is_empty() => return Ok(way.entry(name, false)),
                found => found.map_err(|e| with_obstacle(&way.path(), failed(e.into())))?,
            };
            let Some(target) = target_of(&found).map_err(failed)? else {
                way.below.push((name, found));
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(failed(Errno::LOOP.into()));
            }
            let place = way.path();
            refuse_link_of_others(
                &found.metadata().map_err(failed)?,
                &place.join(&name),
                &place.join(&target),
            )?;
            steps.extend(self::steps(&target));
        }
        match way.below.pop() {
            Some((name, _)) => Ok(way.entry(name, true)),
            None => Err(Error::invalid("names no entry of a directory").about(path.display())),
        }
    }

    /// `true` if an entry had this name when [`GuardedEntry::find`] walked the path.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.is_there
    }

    /// The path that [`GuardedEntry::find`] walked, with all symbolic links resolved. The path is for messages
    /// only, because it may lead elsewhere by now.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the entry in [`GuardedEntry::directory`].
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The directory that contains the entry, opened with `O_PATH`: system calls can use names relative to it, but
    /// it cannot be listed.
    #[must_use]
    pub fn directory(&self) -> &File {
        &self.directory
    }

    /// Returns a path of the entry under `/proc/self/fd`, which stays right if the directories above are
    /// renamed. It is valid in this process while this value exists, and only if `/proc` is mounted.
    #[must_use]
    pub fn anchored(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd())).join(&self.name)
    }

    /// Opens the entry, with `O_PATH` and for its metadata only. An entry that took the name since
    /// [`GuardedEntry::find`] is opened as well. A symbolic link is not followed: the link itself is opened.
    ///
    /// # Errors
    /// Errors of the operating system, [`io::ErrorKind::NotFound`] if there is no such entry.
    pub fn look(&self) -> io::Result<File> {
        Ok(look(&self.directory, &self.name)?)
    }

    /// Opens the directory that contains the entry ([`GuardedEntry::directory`]) for reading. The entry itself is not
    /// opened.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open_directory(&self) -> io::Result<GuardedDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = File::from(openat(&self.directory, ".", flags, Mode::empty())?);
        let path = self.path.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(GuardedDir { handle, path: path.to_owned() })
    }
}

/// The directories on the way to a place.
struct Way {
    /// The directory in which it begins, and the path of that.
    base: (PathBuf, File),
    /// The directories below that, with their names.
    below: Vec<(OsString, File)>,
}

impl Way {
    /// Begins at the root directory, or where this process is.
    fn begin(base: &str) -> io::Result<Self> {
        let directory = look(CWD, if base.is_empty() { "." } else { base })?;
        Ok(Self { base: (PathBuf::from(base), directory), below: Vec::new() })
    }

    /// The directory that was reached.
    fn directory(&self) -> &File {
        self.below.last().map_or(&self.base.1, |(_, directory)| directory)
    }

    /// The path of the directory that was reached.
    fn path(&self) -> PathBuf {
        let names = self.below.iter().map(|(name, _)| Path::new(name));
        std::iter::once(self.base.0.as_path()).chain(names).collect()
    }

    /// Goes to the directory above.
    fn up(&mut self) -> io::Result<()> {
        if self.below.pop().is_none() {
            let above = look(&self.base.1, "..")?;
            let path = if self.base.0.has_root() { self.base.0.clone() } else { self.base.0.join("..") };
            self.base = (path, above);
        }
        Ok(())
    }

    fn entry(mut self, name: OsString, is_there: bool) -> GuardedEntry {
        let path = self.path().join(&name);
        let directory = self.below.pop().map_or(self.base.1, |(_, directory)| directory);
        GuardedEntry { directory, name, path, is_there }
    }
}

/// A step on the way to a place.
enum Step {
    Root,
    Up,
    Into(OsString),
}

/// The steps of a path, the last one first.
fn steps(path: &Path) -> Vec<Step> {
    let step = |component| match component {
        Component::RootDir | Component::Prefix(_) => Some(Step::Root),
        Component::CurDir => None,
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Into(name.to_owned())),
    };
    path.components().rev().filter_map(step).collect()
}

fn look(directory: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<File> {
    Ok(File::from(openat(directory, name, LOOK, Mode::empty())?))
}

/// The text of a symbolic link; `None` for anything else.
fn target_of(found: &File) -> io::Result<Option<PathBuf>> {
    match readlinkat(found, "", Vec::new()) {
        Ok(target) => Ok(Some(PathBuf::from(OsStr::from_bytes(target.as_bytes())))),
        // A file system whose server is gone is no link either.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOTCONN | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Checks that each symbolic link on `path`, also as its last component, belongs to root or to the effective user of
/// this process, as [`GuardedEntry::find`] does. All other errors of that walk are ignored, because the use of the
/// path reports them.
///
/// # Errors
/// [`ErrorKind::Denied`] if a link belongs to neither.
pub fn refuse_links(path: &Path) -> Result<()> {
    match GuardedEntry::find(path) {
        Err(refused) if refused.kind() == ErrorKind::Denied => Err(refused),
        _ => Ok(()),
    }
}

fn refuse_link_of_others(link: &Metadata, path: &Path, target: &Path) -> Result<()> {
    if is_trusted(link) {
        return Ok(());
    }
    let cause = format!("is a symbolic link of another user (id {}), and is not followed", link.uid());
    let me = rustix::process::geteuid().as_raw();
    let [word, target] = [path, target].map(|path| shell_word(&path.to_string_lossy()));
    let remedy = format!(
        "if {target} is the place that is wanted, name that instead; or take the link over: `chown -h {me} {word}`"
    );
    Err(Error::new(ErrorKind::Denied, cause).about(path.display()).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn a_path_leads_to_an_entry_of_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        fs::create_dir_all(at.join("d/e")).unwrap();
        fs::write(at.join("d/f"), "here").unwrap();
        for (link, target) in [("own", "d/f"), ("up", "d/../own"), ("d/e/dir", "../../d"), ("new", "d/none")]
        {
            symlink(target, at.join(link)).unwrap();
        }
        symlink(at.join("d"), at.join("d/round")).unwrap();
        symlink("loop", at.join("loop")).unwrap();
        for path in ["d/f", "own", "up", "d/e/dir/f", "d/./round/../d/f", "d/round/round/f", "d/e/../f"] {
            let entry = GuardedEntry::find(&at.join(path)).unwrap();
            assert_eq!((entry.path(), entry.is_there()), (at.join("d/f").as_path(), true), "{path}");
        }
        for path in ["d/none", "new", "d/round/none"] {
            let entry = GuardedEntry::find(&at.join(path)).unwrap();
            assert_eq!((entry.path(), entry.is_there()), (at.join("d/none").as_path(), false), "{path}");
            assert_eq!(entry.look().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        for path in ["none/x", "none/..", "d/f/x", "loop"] {
            let error = GuardedEntry::find(&at.join(path)).map(|_| ()).unwrap_err();
            assert_eq!(error.kind() == ErrorKind::NotFound, path.starts_with("none"), "{path}: {error}");
        }
        for path in ["/", "/..", "", ".", ".."] {
            assert_eq!(
                GuardedEntry::find(Path::new(path)).map(|_| ()).unwrap_err().kind(),
                ErrorKind::Invalid
            );
        }
        // The entry is found whatever the path means by now.
        let entry = GuardedEntry::find(&at.join("d/f")).unwrap();
        fs::rename(at.join("d"), at.join("moved")).unwrap();
        assert_eq!(fs::read(entry.anchored()).unwrap(), b"here");
        assert!(entry.open_directory().unwrap().names().unwrap().contains(&"f".to_owned()));
    }

    #[test]
    fn a_relative_path_begins_where_the_process_is() {
        let here = std::env::current_dir().unwrap();
        let mut above = here.components();
        above.next_back();
        let name = here.file_name().unwrap();
        let entry = GuardedEntry::find(Path::new("src")).unwrap();
        assert_eq!((entry.path(), entry.is_there()), (Path::new("src"), true));
        assert!(entry.open_directory().unwrap().names().unwrap().contains(&"Cargo.toml".to_owned()));
        let entry = GuardedEntry::find(&Path::new("..").join(name).join("src/../../none")).unwrap();
        assert_eq!((entry.path(), entry.is_there()), (Path::new("../none"), false));
        let [found, wanted] = [entry.directory().metadata().unwrap(), above.as_path().metadata().unwrap()];
        assert_eq!((found.dev(), found.ino()), (wanted.dev(), wanted.ino()));
    }

    #[test]
    fn a_link_of_another_user_is_named_together_with_the_place_that_it_leads_to() {
        if !rustix::process::geteuid().is_root() {
            let _ = io::Write::write_all(&mut io::stderr(), b"SKIPPED: only root gives files away\n");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        fs::create_dir_all(at.join("a/b")).unwrap();
        symlink("b", at.join("a/link")).unwrap();
        symlink("a/link", at.join("own")).unwrap();
        lchown(at.join("a/link"), Some(54_321), None).unwrap();
        for path in ["a/link", "a/link/x", "own", "own/x", "a/link/x/y"] {
            let error = GuardedEntry::find(&at.join(path)).map(|_| ()).unwrap_err();
            let message = error.to_string();
            let parts = [
                "a/link: is a symbolic link of another user (id 54321)",
                &format!("{} is the place", at.join("a/b").display()),
                &format!("chown -h 0 {}", at.join("a/link").display()),
            ];
            assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
        // A directory of another user's is no link.
        lchown(at.join("a/b"), Some(54_321), None).unwrap();
        assert!(!GuardedEntry::find(&at.join("a/b/x")).unwrap().is_there());
    }
}
