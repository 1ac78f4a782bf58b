//! The errors of things that could not be made in a directory: the obstacle and the remedy.

use super::shell_word;
use crate::Error;
use rustix::process::geteuid;
use std::error::Error as _;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The permissions of its owner without which nothing is made in a directory. It is read, too: what an earlier run left
/// is removed, and a new entry is synced.
const MAKE: u32 = 0o700;

/// Returns the path of the directory that contains `path`; `.` if `path` is a single name, empty or `/`.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the error for a file or directory that could not be created in `dir`, with the remedy that
/// [`with_obstacle`] adds. `cause` is the text of the error, such as `cannot create`.
#[must_use]
pub fn not_made_in(dir: &Path, cause: &'static str, error: io::Error) -> Error {
    with_obstacle(dir, Error::io(cause, error))
}

/// Adds a remedy to `error`, which says that an entry of `dir` could not be created or reached. If `dir` is missing,
/// the remedy is to create it. Otherwise the remedy names the obstacle at `dir`, or at the nearest existing
/// directory above it: a directory that this user may not write to (with its owner), a read-only file system,
/// or a file that is not a directory. If none of these is the cause, the error stays as it is. So does an error that
/// has a remedy already.
#[must_use]
pub fn with_obstacle(dir: &Path, error: Error) -> Error {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match source.and_then(|source| remedy_for(dir, source.kind())) {
        Some(remedy) => error.remedy(remedy),
        None => error,
    }
}

fn remedy_for(dir: &Path, kind: io::ErrorKind) -> Option<String> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    if kind == io::ErrorKind::NotFound {
        // A link that leads nowhere is there, too.
        return dir
            .symlink_metadata()
            .is_err()
            .then(|| format!("make the directory {} first", dir.display()));
    }
    let above = dir.ancestors().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    let (dir, found) = above.filter_map(|dir| Some((dir, dir.metadata().ok()?))).next()?;
    // `.` says little to a reader.
    let shown = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    match kind {
        io::ErrorKind::PermissionDenied => remedy_for_closed(&shown, &found),
        io::ErrorKind::ReadOnlyFilesystem => Some(format!(
            "the file system that {} is on is read-only: name a place on another one, or mount it writable",
            shown.display()
        )),
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory if !found.is_dir() => {
            Some(format!("{} is not a directory: name another place", shown.display()))
        }
        _ => None,
    }
}

fn remedy_for_closed(dir: &Path, found: &Metadata) -> Option<String> {
    let (owner, me) = (found.uid(), geteuid().as_raw());
    if owner != me {
        return Some(format!(
            "the directory {} belongs to another user (id {owner}): name a place in a directory of your own, or have \
             that user run it",
            dir.display()
        ));
    }
    (found.mode() & MAKE != MAKE).then(|| {
        let word = shell_word(&dir.to_string_lossy());
        format!("the directory is closed also to its owner: `chmod u+rwx {word}`, or name another place")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, lchown};

    fn message(dir: &Path, kind: io::ErrorKind) -> String {
        not_made_in(dir, "cannot create", kind.into()).about("x").to_string()
    }

    #[test]
    fn the_directory_that_stands_in_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("d");
        fs::create_dir(&at).unwrap();
        let below = at.join("a/b");
        let missing = message(&below, io::ErrorKind::NotFound);
        assert!(missing.ends_with(&format!("; make the directory {} first", below.display())), "{missing}");
        // What else may be missing is not a directory.
        assert!(!message(Path::new(""), io::ErrorKind::NotFound).contains("first"));
        assert!(!message(&at, io::ErrorKind::NotFound).contains("first"));
        assert!(!message(&at, io::ErrorKind::PermissionDenied).contains("directory"), "{at:?} is open");
        fs::set_permissions(&at, Permissions::from_mode(0o555)).unwrap();
        for denied in [&at, &below] {
            let closed = message(denied, io::ErrorKind::PermissionDenied);
            assert!(closed.contains(&format!("`chmod u+rwx {}`", at.display())), "{closed}");
        }
        let file = dir.path().join("f");
        fs::write(&file, "").unwrap();
        for (inside, kind) in
            [(&file, io::ErrorKind::AlreadyExists), (&file.join("a/b"), io::ErrorKind::NotADirectory)]
        {
            let other = message(inside, kind);
            assert!(other.ends_with(&format!("; {} is not a directory: name another place", file.display())));
        }
        assert!(!message(dir.path(), io::ErrorKind::AlreadyExists).contains(';'));
        let fixed = message(&below, io::ErrorKind::ReadOnlyFilesystem);
        assert!(
            fixed.contains(&format!("the file system that {} is on is read-only", at.display())),
            "{fixed}"
        );
        assert_eq!(directory_of(Path::new("x")), Path::new("."));
        if !geteuid().is_root() {
            let _ = io::Write::write_all(&mut io::stderr(), b"SKIPPED: only root gives files away\n");
            return;
        }
        lchown(&at, Some(54_321), None).unwrap();
        let others = message(&below, io::ErrorKind::PermissionDenied);
        let parts = format!("{} belongs to another user (id 54321)", at.display());
        assert!(others.contains(&parts) && !others.contains("chmod"), "{others}");
    }
}
