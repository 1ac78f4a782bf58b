//! Output files that appear whole or not at all.

use headstart_block::{Error, Result};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file in the making, under a temporary name beside its place. It goes away if it is not kept.
pub(crate) struct OutputFile {
    temporary: NamedTempFile,
    path: PathBuf,
}

impl OutputFile {
    /// Starts a file that will be at `path`.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = tempfile::Builder::new()
            .prefix(".headstart-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(dir)
            .map_err(|e| Error::io("cannot create", e).about(path.display()))?;
        Ok(Self { temporary, path: path.to_owned() })
    }

    /// The file, to be written.
    pub(crate) fn file(&self) -> &std::fs::File {
        self.temporary.as_file()
    }

    /// Puts the whole file in its place.
    pub(crate) fn keep(self) -> Result<()> {
        let Self { temporary, path } = self;
        temporary.persist(&path).map_err(|e| Error::io("cannot create", e.error).about(path.display()))?;
        Ok(())
    }
}
