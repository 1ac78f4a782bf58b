//! Files and directories that only their owner may access: 0600 and 0700 from the start, whatever the umask is.
//!
//! To *close* a file or a directory means here to remove the permissions of other users ([`close`]). Earlier versions
//! made files with the permissions that the umask left. The program that uses such a file closes it, and reports that
//! once. A directory must be closed only if headstart alone uses it: a user may have named a directory that also has
//! files for others.

use crate::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Permission bits of a private file: its owner may read and write it, and no one else may access it.
pub const FILE_MODE: u32 = 0o600;

/// Permission bits of a private directory: only its owner may list, change or enter it.
pub const DIRECTORY_MODE: u32 = 0o700;

/// The permissions that let others list a directory or change its entries. Passing through does no harm: the files
/// in it are closed.
const DIRECTORY_OPEN: u32 = 0o066;

/// The permissions that let others use a file.
const FILE_OPEN: u32 = 0o077;

/// The bit of a directory that all users may write to, where each user owns the files it made: never one of ours.
const STICKY: u32 = 0o1000;

/// Options for opening a file; if the file is created, only its owner may access it ([`FILE_MODE`]). The caller sets
/// the rest, such as `read` and `create`.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Creates a directory, and the missing ones above it, with access for this user only ([`DIRECTORY_MODE`]).
/// Existing directories keep their permissions.
///
/// # Errors
/// Errors of the operating system.
pub fn make_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Removes all permissions of other users on an open file or directory, and returns `true`. A file also loses its
/// owner's permission to execute it. Returns `false`, and changes nothing, if other users have no permission on the
/// file, or if they can neither list nor change the directory. A directory with the sticky bit, such as `/tmp`, is
/// never changed: the result is `false`.
///
/// # Errors
/// Errors of the operating system, for instance if the file or directory belongs to another user.
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

/// Removes the permissions of other users on the directory at `path`, as [`close`] does, and returns the same result.
/// Returns `false` if the directory is missing.
///
/// # Errors
/// Errors of the operating system, for instance if the directory belongs to another user, with the remedy of
/// [`not_closed`].
pub fn close_directory(path: &Path) -> Result<bool> {
    let closed = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        opened => opened.and_then(|open| close(&open)),
    };
    closed.map_err(|e| not_closed(path, e))
}

/// Makes the error for the file or directory at `path`, which other users can access and whose permissions could not
/// be changed. Its remedy is to change them as the owner, or to give another place.
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
    fn new_files_and_directories_are_for_their_owner_alone() {
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
    fn files_and_directories_are_closed_to_others_once() {
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
