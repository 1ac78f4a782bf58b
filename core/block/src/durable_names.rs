//! Names that survive a loss of power: a file that was synced can still lose its name, which is its directory's.

use std::fs::File;
use std::io;
use std::path::Path;

/// Syncs the directory `path`, so that files that were created, renamed or removed in it are so for good.
///
/// # Errors
/// Errors of opening or syncing the directory.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Syncs the directory that `path` is an entry of. That of a name alone is the working directory, and the root's is the
/// root itself.
///
/// # Errors
/// As [`sync_dir`].
pub fn sync_dir_of(path: &Path) -> io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    sync_dir(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_directory_that_is_synced() {
        let dir = tempfile::tempdir().unwrap();
        sync_dir_of(&dir.path().join("not there yet")).unwrap();
        for path in ["name", "/", "/name", ".", ""] {
            sync_dir_of(Path::new(path)).unwrap();
        }
        let gone = sync_dir_of(&dir.path().join("gone/name")).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
