//! Small files of a daemon: its state between two starts, keys and certificates.

use headstart_block::guarded::{check_own, check_own_file, open_regular};
use headstart_block::{Error, Result, sync_dir_of};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The users that may read a file written by [`replace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Only the owner (mode 0600), because the content gives the right to read blobs or to belong to a
    /// cluster.
    Owner,
    /// All users (mode 0644), unless the umask of the process takes permissions away.
    All,
}

/// Reads a regular file of at most `most` bytes whose content is trusted, so it must belong to root or to the
/// effective user of this process. `None` if there is no such file.
///
/// # Errors
/// [`headstart_block::ErrorKind::Denied`] if the file, or a symbolic link in its place, belongs to neither root nor
/// this user; [`headstart_block::ErrorKind::Corrupt`] if the file is longer than `most` bytes; an error of the
/// operating system, also if the path leads to something other than a regular file.
pub fn read(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    check_own(path)?;
    let Some(file) = open(path)? else { return Ok(None) };
    check_own_file(&file, path)?;
    all_of(&file, path, most).map(Some)
}

/// Reads a regular file of at most `most` bytes that may belong to any user, so its content must not be
/// trusted. `None` if there is no such file.
///
/// # Errors
/// [`headstart_block::ErrorKind::Corrupt`] if the file is longer than `most` bytes; an error of the operating system,
/// also if the path leads to something other than a regular file.
pub fn read_of_anybody(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    open(path)?.map(|file| all_of(&file, path, most)).transpose()
}

/// Opens a regular file; `None` if there is none.
fn open(path: &Path) -> Result<Option<File>> {
    match open_regular(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(|e| Error::io("cannot read", e).about(path.display())),
    }
}

fn all_of(file: &File, path: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |e| Error::io("cannot read", e).about(path.display());
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(Error::corrupt("is longer than it can be").about(path.display()));
    }
    Ok(bytes)
}

/// Replaces the content of a file, or creates the file, atomically and durably: after a crash it has the old or the new
/// content. At no moment can users other than `readers` read the new content. The content is first written to a file in
/// the same directory, whose name is that of `path` with `.new` at its end.
///
/// # Errors
/// Errors of the operating system.
pub fn replace(path: &Path, bytes: &[u8], readers: Readers) -> Result<()> {
    let failed = |e| Error::io("cannot write", e).about(path.display());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // A file that an earlier run left half-written may be readable by others.
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let mode = match readers {
        Readers::Owner => 0o600,
        Readers::All => 0o644,
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new);
    let mut file = file.map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_data()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)?;
    // Without this, a power cut may bring the one before back, or neither.
    sync_dir_of(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    #[test]
    fn the_last_that_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(read(&path, 3).unwrap(), None);
        replace(&path, b"one", Readers::Owner).unwrap();
        replace(&path, b"two", Readers::Owner).unwrap();
        assert_eq!(read(&path, 3).unwrap().as_deref(), Some(&b"two"[..]));
        assert!(read(&path, 2).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_of_another_user_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let [path, link] = ["a.json", "link"].map(|name| dir.path().join(name));
        fs::write(&path, "one").unwrap();
        symlink("a.json", &link).unwrap();
        for path in [&path, &link] {
            assert_eq!(read(path, 3).unwrap().as_deref(), Some(&b"one"[..]));
        }
        if !rustix::process::geteuid().is_root() {
            let _ = std::io::stderr().write_all(b"SKIPPED in part: only root gives files away\n");
            return;
        }
        for theirs in [&link, &path] {
            lchown(theirs, Some(54_321), None).unwrap();
            assert_eq!(read(theirs, 3).unwrap_err().kind(), headstart_block::ErrorKind::Denied);
            assert_eq!(read_of_anybody(theirs, 3).unwrap().as_deref(), Some(&b"one"[..]));
        }
    }

    #[test]
    fn a_private_file_is_readable_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.key");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        replace(&path, b"one", Readers::All).unwrap();
        assert_eq!(mode() & 0o700, 0o600);
        // A killed agent has left this.
        fs::write(dir.path().join("a.key.new"), "half").unwrap();
        replace(&path, b"two", Readers::Owner).unwrap();
        assert_eq!((mode(), &fs::read(&path).unwrap()[..]), (0o600, &b"two"[..]));
    }
}
