//! Files and directories that are one user's alone: 0600 and 0700 from the start, whatever the umask is.
//!
//! What earlier versions made was as open as the umask let it be. Whoever uses such a thing closes it, and says so
//! once: from then on it is closed. A directory is closed only where it is ours: a user may have named one that holds
//! other things as well, and whose files others need.

use crate::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What a file's owner may.
pub const FILE_MODE: u32 = 0o600;

/// What a directory's owner may.
pub const DIRECTORY_MODE: u32 = 0o700;

/// What lets others list a directory or change what is in it. Passing through is no harm: files in it are closed.
const DIRECTORY_OPEN: u32 = 0o066;

/// What lets others use a file.
const FILE_OPEN: u32 = 0o077;

/// A directory that everybody may write to, where each owns what he made: never one of ours.
const STICKY: u32 = 0o1000;

/// Options for opening a file that, where it is made, is its owner's alone.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Makes a directory, and those above it that are not there, for this user alone. One that is there stays as it is.
///
/// # Errors
/// What the operating system reports.
pub fn make_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Takes from other users what they may do with a directory of ours, or a file. Says whether there was anything to
/// take.
///
/// # Errors
/// What the operating system reports, where it is another user's for instance.
pub fn close(open: &File) -> std::io::Result<bool> {
    let metadata = open.metadata()?;
    let mode = metadata.permissions().mode();
    let (unwanted, wanted) = match metadata.is_dir() {
        true => (DIRECTORY_OPEN, DIRECTORY_MODE),
        false => (FILE_OPEN, FILE_MODE),
    };
    let is_open = mode & unwanted != 0 && !(metadata.is_dir() && mode & STICKY != 0);
    if is_open {
        open.set_permissions(Permissions::from_mode(mode & wanted))?;
    }
    Ok(is_open)
}

/// The same for a directory by its name; where it is not there, nothing is open.
///
/// # Errors
/// [`crate::ErrorKind::Denied`] or [`crate::ErrorKind::Io`], with what its owner can do.
pub fn close_directory(path: &Path) -> Result<bool> {
    let closed = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        opened => opened.and_then(|open| close(&open)),
    };
    closed.map_err(|e| not_closed(path, e))
}

/// The error of a thing that others can use and that cannot be closed.
#[must_use]
pub fn not_closed(path: &Path, error: std::io::Error) -> Error {
    Error::io("other users can read it, and that cannot be changed", error)
        .about(path.display())
        .remedy("run `chmod -R go-rwx` there as its owner, or give another place")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_made_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/b");
        make_directory(&inner).unwrap();
        options().write(true).create(true).open(inner.join("f")).unwrap();
        assert_eq!(
            [mode(&dir.path().join("a")), mode(&inner), mode(&inner.join("f"))],
            [0o700, 0o700, 0o600]
        );
    }

    #[test]
    fn what_is_open_is_closed_once() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, file) = (dir.path().join("d"), dir.path().join("f"));
        make_directory(&inner).unwrap();
        fs::write(&file, "x").unwrap();
        for (is, becomes) in
            [(0o755, 0o700), (0o750, 0o700), (0o711, 0o711), (0o1777, 0o1777), (0o500, 0o500)]
        {
            set(&inner, is);
            assert_eq!(close_directory(&inner).unwrap(), is != becomes);
            assert_eq!(mode(&inner), becomes);
            assert!(!close_directory(&inner).unwrap());
        }
        for (is, becomes) in [(0o644, 0o600), (0o640, 0o600), (0o400, 0o400)] {
            set(&file, is);
            assert_eq!(close(&File::open(&file).unwrap()).unwrap(), is != becomes);
            assert_eq!(mode(&file), becomes);
        }
        assert!(!close_directory(&dir.path().join("none")).unwrap());
    }
}
