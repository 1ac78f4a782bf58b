//! The memory of a host beside its cache: small files, one for each thing, named by the SHA-256 of the thing's name.
//!
//! A file is replaced as a whole. A file proves nothing: its reader checks it. Files and directories are their user's
//! alone: manifests have the roots of hash trees. A file of another user is not read, because a tag would mean another
//! image, and nothing is written to a directory of another user.

use headstart_block::guarded::{FileAccess, GuardedDir, Like, check_own_file};
use headstart_block::{Digest, Error, ErrorKind, Result, private};
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// A directory of such files.
#[derive(Clone)]
pub(crate) struct KnownFiles {
    pub(crate) dir: PathBuf,
    /// The subject of each file, for a message.
    pub(crate) about: &'static str,
    /// The most bytes that are read of a file.
    pub(crate) length_max: u64,
}

impl KnownFiles {
    /// The name of the file about the thing of this name.
    fn file_name(name: &str) -> String {
        Digest::of(name.as_bytes()).hex()
    }

    /// The file about the thing of this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(Self::file_name(name))
    }

    /// Replaces the content that is remembered about a thing.
    ///
    /// # Errors
    /// The file cannot be written; [`ErrorKind::Denied`] if the directory belongs to another user.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let failed = |e: io::Error| {
            Error::io(format!("cannot remember {}", self.about), e).about(self.path(name).display())
        };
        private::make_directory(&self.dir).map_err(failed)?;
        let dir = GuardedDir::open_own(&self.dir)?;
        private::close(dir.handle()).map_err(failed)?;
        dir.check_closed()?;
        let file = Self::file_name(name);
        // Two processes may do this at once; the name of the process keeps their files apart.
        let part = format!("{file}.{}.part", std::process::id());
        let written = dir
            .recreate_file(&part, Like::own(private::FILE_MODE))
            .and_then(|mut made| made.write_all(content))
            .and_then(|()| dir.rename(&part, &dir, &file));
        written.map_err(|e| {
            let _ = dir.remove_file(&part);
            failed(e)
        })
    }

    /// Forgets a thing. One that is not known is no error.
    ///
    /// # Errors
    /// The file cannot be removed; [`ErrorKind::Denied`] if the directory belongs to another user.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        let dir = match GuardedDir::open_own(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            dir => dir?,
        };
        match dir.remove_file(Self::file_name(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("cannot forget {}", self.about), e).about(path.display()))
            }
            _ => Ok(()),
        }
    }

    /// The last content that was remembered about a thing; `None` if there is none, or if it cannot be read, which is
    /// logged.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        match self.read_own(name) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("{error}: {} is not known", self.about);
                None
            }
        }
    }

    fn read_own(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name);
        let failed = |e| Error::io("cannot read", e).about(path.display());
        let dir = GuardedDir::open_own(&self.dir)?;
        // Other users could exchange the names of the files. A directory of root's is closed by root.
        let _ = private::close(dir.handle());
        dir.check_closed()?;
        let file = dir.open_file(&Self::file_name(name), FileAccess::Read).map_err(failed)?;
        check_own_file(&file, &path)?;
        let mut content = Vec::new();
        file.take(self.length_max).read_to_end(&mut content).map_err(failed)?;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

    #[test]
    fn files_of_another_user_are_neither_read_nor_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let known = KnownFiles { dir: scratch.path().join("known"), about: "the thing", length_max: 64 };
        known.write("a", b"mine").unwrap();
        // A directory in which others could exchange files is closed first.
        fs::set_permissions(&known.dir, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(known.read("a").as_deref(), Some(&b"mine"[..]));
        assert_eq!(fs::metadata(&known.dir).unwrap().mode() & 0o777, 0o700);
        // No link is followed, and nothing is written through one.
        let (victim, path) = (scratch.path().join("victim"), known.path("a"));
        fs::write(&victim, "precious").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        symlink(&victim, path.with_extension(format!("{}.part", std::process::id()))).unwrap();
        assert_eq!(known.read("a"), None);
        known.write("a", b"mine").unwrap();
        assert_eq!((known.read("a"), fs::read(&victim).unwrap()), (Some(b"mine".into()), b"precious".into()));
        if !rustix::process::geteuid().is_root() {
            let _ = io::stderr().write_all(b"SKIPPED in part: only root gives files away\n");
            return;
        }
        for theirs in [&path, &known.dir] {
            lchown(theirs, Some(54_321), None).unwrap();
            assert_eq!(known.read("a"), None, "{}", theirs.display());
            let written = known.write("b", b"x").map_err(|e| e.kind());
            let wanted = if *theirs == known.dir { Err(ErrorKind::Denied) } else { Ok(()) };
            assert_eq!(written, wanted, "{}", theirs.display());
            lchown(theirs, Some(0), None).unwrap();
        }
        assert_eq!(known.read("a").as_deref(), Some(&b"mine"[..]));
    }
}
