//! Output files that appear whole or not at all.

use headstart_block::{Error, Result};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

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

/// A file in the making, under a temporary name beside its place. It goes away if it is not kept.
#[derive(Debug)]
pub struct OutputFile {
    temporary: NamedTempFile,
    path: PathBuf,
}

impl OutputFile {
    /// Starts a file that will be at `path`, or where that leads if it is a link.
    ///
    /// # Errors
    /// Where there is something else than a file, or none can be created.
    pub fn create(path: &Path) -> Result<Self> {
        if Place::find(path)? == Place::BlockDevice {
            return Err(Error::invalid("is a block device").about(path.display()).remedy("name a file"));
        }
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o644);
        let temporary = tempfile::Builder::new()
            .prefix(".headstart-")
            // Not `tempfile_in`: its errors name the temporary file, which nobody asked for.
            .make_in(dir, |path| options.open(path))
            .map_err(|e| {
                let error = Error::io("cannot create", e).about(path.display());
                if dir.exists() {
                    return error;
                }
                error.remedy(format!("make the directory {} first", dir.display()))
            })?;
        Ok(Self { temporary, path })
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
        self.temporary.as_file()
    }

    /// Its temporary name.
    pub(super) fn temporary_path(&self) -> &Path {
        self.temporary.path()
    }

    /// Puts the whole file in its place, durably.
    ///
    /// # Errors
    /// What writing it out or renaming it reports; it is gone then, and what was at its place is still there.
    pub fn keep(self) -> Result<()> {
        let Self { temporary, path } = self;
        let failed = |e| Error::io("cannot create", e).about(path.display());
        // Before the rename: a power cut must not leave an empty file where an older one was.
        temporary.as_file().sync_data().map_err(failed)?;
        temporary.persist(&path).map_err(|e| failed(e.error))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}
