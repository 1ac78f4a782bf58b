//! [`LayoutDir`]: the files of an OCI layout directory, and the lock under which they change.
//!
//! The invariants that all writers keep (a blob in `blobs/` is complete and durable; the index is replaced by
//! rename, after the blobs' directory is synced) are written down where images are published: in the image store of
//! `headstart-image`, and in this crate's `directory` for single blobs.

use super::{
    INDEX_FILE, Index, LAYOUT, LAYOUT_FILE, MAX_INDEX_SIZE, blob_name, check_document, check_layout,
};
use crate::MAX_MANIFEST_SIZE;
use headstart_block::{Digest, Error, ErrorKind, FileSource, ReadAt, Result, SHA256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What is ours alone in the directory; it means nothing to other tools.
const PRIVATE_DIR: &str = ".headstart";

/// An OCI image layout directory.
#[derive(Clone, Debug)]
pub struct LayoutDir {
    root: PathBuf,
}

/// Held while the index or the set of blobs changes; given back when dropped.
pub struct LayoutLock {
    _file: File,
}

impl LayoutDir {
    /// The layout at `root`, whether it is there or not.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Opens the layout at `root`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where there is none, [`ErrorKind::Unsupported`] where it is of a later version.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let layout = Self::at(root);
        let mut text = Vec::new();
        let read =
            File::open(layout.root.join(LAYOUT_FILE)).and_then(|f| f.take(4096).read_to_end(&mut text));
        read.map_err(|e| {
            let error = Error::io("is not an OCI image layout: cannot read its oci-layout file", e);
            layout.about(error).remedy("check the directory, or import an image to make the store")
        })?;
        check_layout(&text).map_err(|e| layout.about(e))?;
        Ok(layout)
    }

    /// Opens the layout at `root`, or makes one there: in a new or empty directory only.
    ///
    /// # Errors
    /// As [`LayoutDir::open`]; [`ErrorKind::Invalid`] where the directory holds something else.
    pub fn create_or_open(root: impl Into<PathBuf>) -> Result<Self> {
        let layout = Self::at(root);
        if layout.root.join(LAYOUT_FILE).exists() {
            return Self::open(layout.root);
        }
        let made = |e| layout.about(Error::io("cannot make an image store", e));
        fs::create_dir_all(&layout.root).map_err(made)?;
        for entry in fs::read_dir(&layout.root).map_err(made)? {
            let name = entry.map_err(made)?.file_name();
            // All but the last may be there from a crash in the code below, or from a neighbour who is in it.
            if ![LAYOUT_FILE, PRIVATE_DIR, "blobs", INDEX_FILE, "lost+found"]
                .iter()
                .any(|known| name == *known)
            {
                let name = name.display();
                return Err(layout
                    .about(Error::invalid(format!(
                        "is not an image store, but holds something else (`{name}`)"
                    )))
                    .remedy("name a new or an empty directory"));
            }
        }
        let _lock = layout.lock()?;
        fs::create_dir_all(layout.blobs_dir()).map_err(made)?;
        // What is published later is only as durable as the directories above it.
        sync_dir(&layout.root.join("blobs")).and_then(|()| sync_dir(&layout.root)).map_err(made)?;
        // This one may be somebody else's, and not to be opened.
        let _ = layout.root.parent().map(sync_dir);
        if !layout.index_path().exists() {
            layout.replace(&layout.index_path(), &Index::empty().to_bytes()?)?;
        }
        layout.replace(&layout.root.join(LAYOUT_FILE), LAYOUT.as_bytes())?;
        Ok(layout)
    }

    /// The directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the index.
    ///
    /// # Errors
    /// About its path: where it cannot be read or is none.
    pub fn index(&self) -> Result<Index> {
        let path = self.index_path();
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_INDEX_SIZE + 1).read_to_end(&mut bytes))
            .map_err(|e| Error::io("cannot read", e))
            .and_then(|_| Index::parse(&bytes))
            .map_err(|e| e.about(path.display()))
    }

    /// Opens a blob. Its content is not checked.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where it is not there.
    pub fn open_blob(&self, digest: &Digest) -> Result<FileSource> {
        let path = self.blob_path(digest);
        let missing = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "is not in the store")
                .remedy("the image is incomplete: copy or import it again"),
            _ => Error::io("cannot open", e),
        };
        let file = File::open(&path).map_err(missing).map_err(|e| self.about_blob(e, digest))?;
        FileSource::from_file(file, path)
    }

    /// The bytes of a manifest, an index or a config, checked against their digest.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where it is not there, [`ErrorKind::Corrupt`] where it is not what its name says,
    /// [`ErrorKind::Unsupported`] where it is larger than such documents are.
    pub fn read_document(&self, digest: &Digest) -> Result<Vec<u8>> {
        let source = self.open_blob(digest)?;
        let len = usize::try_from(source.len()).ok().filter(|len| *len as u64 <= MAX_MANIFEST_SIZE);
        let Some(len) = len else {
            let error = format!("has {} bytes, a manifest has at most {MAX_MANIFEST_SIZE}", source.len());
            return Err(self.about_blob(Error::unsupported(error), digest));
        };
        let mut bytes = vec![0; len];
        source.read_at(&mut bytes, 0)?;
        check_document(digest, &bytes).map_err(|e| self.about_blob(e, digest))?;
        Ok(bytes)
    }

    /// Says which store an error is about.
    #[must_use]
    pub fn about(&self, error: Error) -> Error {
        error.about(format!("image store {}", self.root.display()))
    }

    /// Says which blob an error is about.
    #[must_use]
    pub fn about_blob(&self, error: Error, digest: &Digest) -> Error {
        error.about(format!("blob {digest} of {}", self.root.display()))
    }

    /// Where blobs lie.
    #[must_use]
    pub fn blobs_dir(&self) -> PathBuf {
        self.root.join("blobs").join(SHA256)
    }

    /// Where a blob lies.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join(blob_name(digest))
    }

    /// Where the index lies.
    #[must_use]
    pub fn index_path(&self) -> PathBuf {
        self.root.join(INDEX_FILE)
    }

    /// The directory of files that mean nothing to other tools.
    pub(super) fn private_dir(&self) -> PathBuf {
        self.root.join(PRIVATE_DIR)
    }

    /// Where writers keep what is not published yet.
    #[must_use]
    pub fn staging_dir(&self) -> PathBuf {
        self.root.join(PRIVATE_DIR).join("staging")
    }

    /// Where beginnings of blobs are that broken copies left.
    #[must_use]
    pub fn partial_dir(&self) -> PathBuf {
        self.root.join(PRIVATE_DIR).join("partial")
    }

    /// Gives a staged and synced file its name as a blob, durably.
    ///
    /// # Errors
    /// What renaming or syncing reports; the staged file is then gone.
    pub fn put_in_place(&self, staged: &Path, digest: &Digest) -> Result<()> {
        let dir = self.blobs_dir();
        fs::create_dir_all(&dir)
            .and_then(|()| fs::rename(staged, self.blob_path(digest)))
            .and_then(|()| sync_dir(&dir))
            .map_err(|e| {
                let _ = fs::remove_file(staged);
                self.about(Error::io("cannot publish a blob", e))
            })
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// What making or locking a file reports.
    pub fn lock(&self) -> Result<LayoutLock> {
        let failed = |e| self.about(Error::io("cannot lock it", e));
        let dir = self.root.join(PRIVATE_DIR);
        fs::create_dir_all(&dir).map_err(failed)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join("lock"))
            .map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(LayoutLock { _file: file })
    }

    /// Prepares new content of a file, durable beside it; under the lock, which makes the name unique.
    ///
    /// # Errors
    /// What writing a file reports; nothing is then left.
    pub fn prepare(&self, bytes: &[u8]) -> Result<PathBuf> {
        let path = self.root.join(PRIVATE_DIR).join("prepared");
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map(|()| path.clone()).map_err(|e| {
            // A full disk must not be made fuller by what is of no use to anybody.
            let _ = fs::remove_file(&path);
            self.about(Error::io("cannot write", e))
        })
    }

    /// Replaces a file by new content, under the lock: a crash leaves the old or the new.
    ///
    /// # Errors
    /// What writing, renaming or syncing reports.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let prepared = self.prepare(bytes)?;
        settle(&prepared, path)?;
        self.sync_root()
    }

    /// Makes the names in the layout's top durable.
    ///
    /// # Errors
    /// What syncing reports.
    pub fn sync_root(&self) -> Result<()> {
        sync_dir(&self.root).map_err(|e| self.about(Error::io("cannot make its index durable", e)))
    }
}

/// Puts prepared content in its place, or removes it.
///
/// # Errors
/// What renaming reports.
pub fn settle(prepared: &Path, path: &Path) -> Result<()> {
    fs::rename(prepared, path).map_err(|e| {
        let _ = fs::remove_file(prepared);
        Error::io("cannot replace", e).about(path.display())
    })
}

/// Makes the names in a directory durable.
///
/// # Errors
/// What the operating system reports.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
