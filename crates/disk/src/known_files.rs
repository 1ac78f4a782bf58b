//! What a host remembers beside its cache: small files, one for each thing, named by the SHA-256 of the thing's name.
//!
//! A file is replaced as a whole. What is read is no more than what was promised: who reads a file checks it. Files and
//! directories are their user's alone: manifests have the roots of hash trees.

use headstart_block::{Digest, Error, Result, private};
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

/// A directory of such files.
#[derive(Clone)]
pub(crate) struct KnownFiles {
    pub(crate) dir: PathBuf,
    /// What each of them is about, for a message.
    pub(crate) about: &'static str,
    /// So many bytes of one are read.
    pub(crate) length_max: u64,
}

impl KnownFiles {
    /// The file about the thing of this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(Digest::of(name.as_bytes()).hex())
    }

    /// Writes what is known of a thing from now on.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.path(name);
        // Two processes may do this at once; the name of the process keeps their files apart.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let written = private::make_directory(&self.dir)
            .and_then(|()| private::close(&fs::File::open(&self.dir)?))
            .and_then(|_| private::options().write(true).create(true).truncate(true).open(&part))
            .and_then(|mut part| part.write_all(content))
            .and_then(|()| fs::rename(&part, &path));
        written.map_err(|e| {
            let _ = fs::remove_file(&part);
            Error::io(format!("cannot remember {}", self.about), e).about(path.display())
        })
    }

    /// What was known of a thing last; `None` where that is nothing, or cannot be read.
    pub(crate) fn read(&self, name: &str) -> Option<Vec<u8>> {
        let file = fs::File::open(self.path(name)).ok()?;
        let mut content = Vec::new();
        file.take(self.length_max).read_to_end(&mut content).ok()?;
        Some(content)
    }
}
