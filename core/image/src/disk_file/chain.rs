//! The files that a disk image may name.

use headstart_block::{Error, ErrorKind, FileSource, Result};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// The directories in which files that a disk image names (backing files, data files, extents) may be opened.
#[derive(Clone, Debug)]
pub struct AllowedDirs(Vec<PathBuf>);

impl AllowedDirs {
    /// Allows the directories `dirs` and everything below them. Symbolic links in the names of the
    /// directories are resolved now. An empty list allows nothing.
    ///
    /// # Errors
    /// Errors if one of the directories does not exist or cannot be reached.
    pub fn new(dirs: &[PathBuf]) -> Result<Self> {
        let resolve =
            |dir: &PathBuf| dir.canonicalize().map_err(|e| Error::io("cannot find", e).about(dir.display()));
        Ok(Self(dirs.iter().map(resolve).collect::<Result<_>>()?))
    }

    /// Opens `named`, a file that a disk image names, if it is in one of the allowed directories or below. The caller
    /// must have joined a relative name to the disk image's directory: here it counts from the current directory. The
    /// check applies to the real path, after all symbolic links are followed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the file is outside of the allowed directories (the message names the
    /// command-line option that would allow it), or if it is neither a file nor a block device; errors of
    /// opening it.
    pub fn open(&self, named: &Path) -> Result<FileSource> {
        let error =
            |e| Error::io("the image names this file, which cannot be opened", e).about(named.display());
        let file = Checked::open(named).map_err(error)?;
        let place = file.place().map_err(error)?;
        if !self.0.iter().any(|dir| place.starts_with(dir)) {
            let dir = place.parent().unwrap_or(&place).display().to_string();
            return Err(Error::new(
                ErrorKind::Invalid,
                "the image names this file, in a directory that is not allowed",
            )
            .about(place.display())
            .remedy(format!("if you trust the image, allow it with --allow-dir {dir}")));
        }
        file.read(named)
    }
}

/// Opens `path`, the disk that is to be imported.
///
/// # Errors
/// Errors if it is neither a file nor a block device; errors of the operating system.
pub(super) fn open_disk(path: &Path) -> Result<FileSource> {
    let opened = Checked::open(path).map_err(|e| Error::io("cannot open", e).about(path.display()));
    opened.and_then(|file| file.read(path)).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::Io => e.remedy("check the path, and that this user may read it"),
        _ => e,
    })
}

/// A file that is found but not open for reading: the facts checked about it hold for the bytes that are read, also if
/// its name changes meanwhile. Opening a device or a pipe directly might wait, or have an effect on it.
struct Checked(File);

impl Checked {
    fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into()))
    }

    fn in_proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// The path of the file, every link followed.
    fn place(&self) -> std::io::Result<PathBuf> {
        std::fs::read_link(self.in_proc())
    }

    /// Opens it for reading. `path` is for messages, and is the base of the names in the file.
    fn read(&self, path: &Path) -> Result<FileSource> {
        let named = |e: Error| e.about(path.display());
        let stat = fstat(&self.0).map_err(|e| named(Error::io("cannot open", e.into())))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => {}
            FileType::Directory => return Err(named(Error::invalid("is a directory, not a disk"))),
            _ => return Err(named(Error::invalid("is neither a file nor a block device"))),
        }
        let file = File::open(self.in_proc()).map_err(|e| named(Error::io("cannot open", e)))?;
        FileSource::from_file(file, path)
    }
}

/// The file that `name` means in the image at `path`.
pub(super) fn beside(path: &Path, name: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_does_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("secret"), "x").unwrap();
        std::fs::write(inside.join("base"), "x").unwrap();
        std::os::unix::fs::symlink(outside.join("secret"), inside.join("link")).unwrap();
        AllowedDirs::new(&[]).unwrap().open(&inside.join("base")).unwrap_err();
        let allowed = AllowedDirs::new(std::slice::from_ref(&inside)).unwrap();
        allowed.open(&inside.join("base")).unwrap();
        for bad in [inside.join("link"), inside.join("../out/secret"), outside.join("secret")] {
            let error = allowed.open(&bad).unwrap_err();
            assert!(error.to_string().contains("--allow-dir"), "{error}");
        }
        AllowedDirs::new(&[inside, outside.clone()]).unwrap().open(&outside.join("secret")).unwrap();
    }
}
