//! The directories and files that a program keeps for itself, and therefore believes: they are this user's or root's.
//!
//! Where another user was first at such a place, it decided what the program reads there: the records of an agent's
//! disks name the commands that are run. A place of another user's is refused by name, with a remedy.

use super::{GuardedDir, Like, shell_word};
use crate::private::FILE_MODE;
use crate::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The number of symbolic links that a path may end in, as in the kernel.
const LINKS_MAX: usize = 40;

/// The permissions of others, and of the group, to write to a directory.
const WRITABLE_BY_OTHERS: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;

/// The bit of a directory that all users may write to, where each user owns the files it made.
const STICKY: u32 = 0o1000;

impl GuardedDir {
    /// Opens a directory that this program keeps for itself, and whose contents it therefore trusts. The directory,
    /// and each symbolic link that `path` ends in, must belong to root or to the effective user of this process.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the directory or such a link belongs to neither; errors of the operating system.
    pub fn open_own(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| Error::io("cannot open", e).about(path.display());
        let found = find_own(path).map_err(failed)??;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = openat(&found, ".", flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        Ok(Self { handle: File::from(handle), path: path.to_owned() })
    }

    /// Checks that the directory belongs to root or to the effective user of this process.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it belongs to neither; errors of the operating system.
    pub fn check_owner(&self) -> Result<()> {
        let found = self.look()?;
        refuse_others(found.uid(), FileType::Directory, &self.path)
    }

    /// Checks that no other user may write to the directory. The directory's group may have the permission to write
    /// only if that group is the effective group of this process.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if others may write to it; errors of the operating system.
    pub fn check_closed(&self) -> Result<()> {
        refuse_more(OthersMay::WriteNothing, &self.look()?, &self.path)
    }

    /// Checks that other users cannot rename or replace entries of this user in the directory. A directory
    /// with the sticky bit, such as `/tmp`, passes, because each user can rename only its own entries in it.
    /// Any other directory must pass [`GuardedDir::check_closed`].
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if others may write to it and it has no sticky bit; errors of the operating
    /// system.
    pub fn check_names_stay(&self) -> Result<()> {
        refuse_more(OthersMay::MakeEntries, &self.look()?, &self.path)
    }

    /// Checks that the entry `name` belongs to root or to the effective user of this process. For a symbolic
    /// link, the owner of the link itself counts. A missing entry passes, and so do sockets and mount points (such
    /// as the file of an exported disk), because these are given to other users on purpose. `name` must be the name of
    /// a single entry; this is not checked.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if the entry belongs to neither; errors of the operating system.
    pub fn check_entry(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            // The server of a file system that is mounted there may be gone.
            Err(Errno::NOENT | Errno::NOTCONN) => Ok(()),
            Err(e) => Err(Error::io("cannot look at it", e.into()).about(path.display())),
            Ok(found) if found.st_dev != self.look()?.dev() => Ok(()),
            Ok(found) => match FileType::from_raw_mode(found.st_mode) {
                FileType::Socket => Ok(()),
                kind => refuse_others(found.st_uid, kind, &path),
            },
        }
    }

    /// Checks every entry of the directory as [`GuardedDir::check_entry`] does, except entries whose names are not
    /// UTF-8. This is for a directory that other users could write to until now: they may have created entries in it.
    ///
    /// # Errors
    /// Those of [`GuardedDir::check_entry`], for the first entry that fails; errors of listing the directory.
    pub fn check_entries(&self) -> Result<()> {
        let names = self.names().map_err(|e| Error::io("cannot list", e).about(self.path.display()))?;
        names.iter().try_for_each(|name| self.check_entry(name))
    }

    fn look(&self) -> Result<Metadata> {
        self.handle.metadata().map_err(|e| Error::io("cannot look at it", e).about(self.path.display()))
    }
}

/// Opens a regular file that this program keeps for itself, for reading and writing. The file must belong to root or
/// to the effective user of this process. A missing file is created with permissions for this user only. A symbolic
/// link in its place is not followed, and a pipe is not waited for.
///
/// # Errors
/// [`ErrorKind::Denied`] if the file belongs to neither; [`ErrorKind::Io`] if the entry is no regular file, with a
/// message that says what it is; errors of the operating system.
pub fn open_own_file(path: &Path) -> Result<File> {
    let failed = |e: io::Error| {
        let is_other = e.kind() == io::ErrorKind::InvalidInput;
        let error = Error::io("cannot open", e).about(path.display());
        if is_other { error.remedy("remove it, or name another place") } else { error }
    };
    let (dir, name) = GuardedDir::around(path).map_err(failed)?;
    let file = dir.open_or_create(name, Like::own(FILE_MODE)).map_err(failed)?;
    check_own_file(&file, path)?;
    Ok(file)
}

/// Checks that an open file belongs to root or to the effective user of this process. `path` is for messages.
///
/// # Errors
/// [`ErrorKind::Denied`] if it belongs to neither; errors of the operating system.
pub fn check_own_file(file: &File, path: &Path) -> Result<()> {
    let found = file.metadata().map_err(|e| Error::io("cannot look at it", e).about(path.display()))?;
    refuse_others(found.uid(), FileType::from_raw_mode(found.mode()), path)
}

/// Checks that the file or directory at `path`, and each symbolic link that `path` ends in, belongs to root
/// or to the effective user of this process. A target that is missing or cannot be examined passes, because
/// opening it reports the reason.
///
/// # Errors
/// [`ErrorKind::Denied`] if one of them belongs to neither.
pub fn check_own(path: &Path) -> Result<()> {
    find_own(path).map_or(Ok(()), |found| found.map(drop))
}

/// The rights that other users may have in a directory that this program keeps for itself. Members of the directory's
/// group are not counted as other users if that group is the effective group of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OthersMay {
    /// Other users may not write to the directory.
    WriteNothing,
    /// Other users may create entries of their own, but cannot rename those of this user, as in `/tmp`.
    MakeEntries,
}

/// Checks a directory as [`check_own`] does, and also that other users have no more rights in it than `most`.
/// A path that is missing, cannot be examined or is not a directory passes the second check.
///
/// # Errors
/// [`ErrorKind::Denied`] if a check fails.
pub fn check_own_directory(path: &Path, most: OthersMay) -> Result<()> {
    let Ok(found) = find_own(path) else { return Ok(()) };
    match found?.metadata() {
        Ok(found) if found.is_dir() => refuse_more(most, &found, path),
        _ => Ok(()),
    }
}

/// Follows the symbolic links that a path ends in, as far as they belong to root or to the user that this process acts
/// as. What cannot be looked at ends the way.
///
/// # Errors
/// [`ErrorKind::Denied`] for a link of another user.
fn follow_own_links(path: &Path) -> Result<PathBuf> {
    let mut way = path.to_owned();
    for _ in 0..LINKS_MAX {
        if way.as_os_str().is_empty() {
            way.push(".");
        }
        // Without a slash at its end, behind which a link is followed.
        way = way.components().collect();
        let Ok(found) = look_at(&way) else { return Ok(way) };
        let Ok(metadata) = found.metadata() else { return Ok(way) };
        if !metadata.is_symlink() {
            return Ok(way);
        }
        refuse_others(metadata.uid(), FileType::Symlink, &way)?;
        let Ok(target) = readlinkat(&found, "", Vec::new()) else { return Ok(way) };
        way = way.parent().unwrap_or(Path::new(".")).join(OsStr::from_bytes(target.as_bytes()));
    }
    Ok(way)
}

/// The file or directory that a path leads to, to be looked at. The inner error says that it, or a symbolic link in its
/// place, belongs to another user.
fn find_own(path: &Path) -> io::Result<Result<File>> {
    let way = match follow_own_links(path) {
        Ok(way) => way,
        Err(refused) => return Ok(Err(refused)),
    };
    let found = look_at(&way)?;
    let metadata = found.metadata()?;
    let kind = FileType::from_raw_mode(metadata.mode());
    Ok(refuse_others(metadata.uid(), kind, path).map(|()| found))
}

/// Opens whatever has a name, to be looked at.
fn look_at(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(CWD, path, flags, Mode::empty())?))
}

/// The error about a directory in which other users may do more than `most`: those of a group do not count where it is
/// this process's.
fn refuse_more(most: OthersMay, found: &Metadata, path: &Path) -> Result<()> {
    if most == OthersMay::MakeEntries && found.mode() & STICKY != 0 {
        return Ok(());
    }
    let is_group_other = found.gid() != rustix::process::getegid().as_raw();
    let unwanted = WRITABLE_BY_OTHERS | if is_group_other { WRITABLE_BY_GROUP } else { 0 };
    if found.mode() & unwanted == 0 {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Denied, "other users may write to it, and exchange what is in it");
    let word = shell_word(&path.to_string_lossy());
    Err(error.about(path.display()).remedy(match found.mode() & STICKY {
        0 => format!("keep them out: `chmod go-w {word}`, or name another directory"),
        _ => "name a directory of your own in it, or another one".to_owned(),
    }))
}

/// The error about a thing of this program's own that belongs to another user.
fn refuse_others(owner: u32, kind: FileType, path: &Path) -> Result<()> {
    let me = rustix::process::geteuid().as_raw();
    if owner == 0 || owner == me {
        return Ok(());
    }
    let word = shell_word(&path.to_string_lossy());
    let (cause, remedy) = match kind {
        FileType::Symlink => (
            format!("is a symbolic link of another user (id {owner}), and is not followed"),
            format!("remove it, or name where it leads to; or take it over: `chown -h {me} {word}`"),
        ),
        FileType::Directory => (
            format!("belongs to another user (id {owner}), who could exchange what is in it"),
            format!("run this as that user, name another directory, or take it over: `chown -R {me} {word}`"),
        ),
        _ => (
            format!("belongs to another user (id {owner}), who could change what is in it"),
            format!("run this as that user, remove it, or take it over: `chown {me} {word}`"),
        ),
    };
    Err(Error::new(ErrorKind::Denied, cause).about(path.display()).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarded::tests::scene;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    /// A user that is not the one of the tests.
    const OTHER: u32 = 54_321;

    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            let _ = io::Write::write_all(&mut io::stderr(), b"SKIPPED in part: only root gives files away\n");
        }
        is_root
    }

    #[track_caller]
    fn refused<T>(result: Result<T>, parts: &[&str]) {
        let error = result.err().expect("it was taken");
        let message = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Denied, "{message}");
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }

    #[test]
    fn directories_and_links_of_another_user_are_refused() {
        let (dir, guarded) = scene();
        let at = |name: &str| dir.path().join(name);
        for name in ["mine", "theirs"] {
            fs::create_dir(at(name)).unwrap();
        }
        symlink("mine", at("link")).unwrap();
        symlink("link", at("long")).unwrap();
        symlink("mine", at("led")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for name in ["mine", "link", "long", "mine/", "link/", "long/."] {
            GuardedDir::open_own(&at(name)).unwrap().create_file("x", Like::own(0o600)).unwrap();
            check_own(&at(name)).unwrap();
            fs::remove_file(at("mine/x")).unwrap();
        }
        assert!(GuardedDir::open_own(&at("loop")).is_err() && GuardedDir::open_own(&at("none")).is_err());
        check_own(&at("none")).unwrap();
        open_own_file(&at("mine/lock")).unwrap();
        assert_eq!(fs::metadata(at("mine/lock")).unwrap().mode() & 0o777, 0o600);
        guarded.check_entries().unwrap();
        if !is_root() {
            return;
        }
        chown(at("theirs"), Some(OTHER), None).unwrap();
        lchown(at("led"), Some(OTHER), None).unwrap();
        symlink("led", at("leads")).unwrap();
        for name in ["led", "led/", "leads"] {
            let parts = ["led: is a symbolic link of another user (id 54321)", "chown -h"];
            refused(GuardedDir::open_own(&at(name)), &parts);
            refused(check_own(&at(name)), &parts);
            refused(follow_own_links(&at(name)), &parts);
        }
        symlink("nothing", at("dangling")).unwrap();
        for (name, to) in [("long", "mine"), ("dangling", "nothing"), ("none", "none"), ("theirs", "theirs")]
        {
            assert_eq!(follow_own_links(&at(name)).unwrap(), at(to));
        }
        let parts = ["theirs", "belongs to another user (id 54321)", "chown -R 0 "];
        refused(GuardedDir::open_own(&at("theirs")), &parts);
        refused(guarded.check_entry("theirs"), &parts);
        refused(guarded.check_entries(), &["another user"]);
        chown(at("mine/lock"), Some(OTHER), None).unwrap();
        refused(open_own_file(&at("mine/lock")), &["mine/lock", "belongs to another user", "chown 0 "]);
        guarded.check_entry("none").unwrap();
    }

    #[test]
    fn a_directory_is_closed_if_no_other_user_may_write_to_it() {
        let (dir, guarded) = scene();
        let set = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        for (mode, remedy) in [(0o777, "chmod go-w"), (0o702, "chmod go-w"), (0o1777, "of your own in it")] {
            set(mode);
            refused(guarded.check_closed(), &["other users may write to it", remedy]);
        }
        for mode in [0o700, 0o755, 0o770, 0o711] {
            set(mode);
            guarded.check_closed().unwrap();
            check_own_directory(dir.path(), OthersMay::WriteNothing).unwrap();
        }
        for mode in [0o700, 0o1777] {
            set(mode);
            guarded.check_names_stay().unwrap();
            check_own_directory(dir.path(), OthersMay::MakeEntries).unwrap();
        }
        set(0o777);
        refused(guarded.check_names_stay(), &["other users may write to it", "chmod go-w"]);
        for most in [OthersMay::WriteNothing, OthersMay::MakeEntries] {
            refused(check_own_directory(dir.path(), most), &["other users may write to it", "chmod go-w"]);
        }
        check_own_directory(&dir.path().join("none"), OthersMay::WriteNothing).unwrap();
        if is_root() {
            chown(dir.path(), None, Some(OTHER)).unwrap();
            set(0o770);
            refused(guarded.check_closed(), &["chmod go-w"]);
            chown(dir.path(), Some(OTHER), None).unwrap();
            set(0o700);
            for most in [OthersMay::WriteNothing, OthersMay::MakeEntries] {
                let parts = ["belongs to another user (id 54321)", "chown -R 0 "];
                refused(check_own_directory(dir.path(), most), &parts);
            }
        }
    }
}
