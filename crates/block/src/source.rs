//! Sources: immutable bytes that can be read anywhere, by many threads at once.

use crate::{Error, Result};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Immutable bytes of a known length: a file, memory, a decoder over another source, later a remote range.
pub trait ReadAt: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] where the source ends before the buffer is full or fails a check;
    /// otherwise what its medium reports.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// All the bytes, where they lie in memory already: decoders then work without a copy.
    fn as_slice(&self) -> Option<&[u8]> {
        None
    }

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The error of a read past the end.
fn past_end(offset: u64, wanted: usize, len: u64) -> Error {
    Error::corrupt(format!("needs {wanted} bytes at offset {offset}, but there are only {len} in all"))
        .remedy("it is truncated: fetch or copy it again")
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(buf.len())?))
            .ok_or_else(|| past_end(offset, buf.len(), ReadAt::len(self)))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        ReadAt::len(self.as_slice())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.as_slice().read_at(buf, offset)
    }

    fn as_slice(&self) -> Option<&[u8]> {
        Some(self)
    }
}

macro_rules! forward_read_at {
    ($($pointer:ty),*) => {$(
        impl<T: ReadAt + ?Sized> ReadAt for $pointer {
            fn len(&self) -> u64 {
                (**self).len()
            }

            fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
                (**self).read_at(buf, offset)
            }

            fn as_slice(&self) -> Option<&[u8]> {
                (**self).as_slice()
            }
        }
    )*};
}
forward_read_at!(&T, Arc<T>, Box<T>);

/// A file or block device, opened for reading.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
}

impl FileSource {
    /// Opens `path` and takes its present length.
    ///
    /// # Errors
    /// What the operating system reports, about the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|e| Error::io("cannot open", e).about(path.display()))?;
        Self::from_file(file, path)
    }

    /// Wraps an open file; `path` is for messages.
    ///
    /// # Errors
    /// Where its length cannot be found.
    pub fn from_file(mut file: File, path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let end = file.metadata().and_then(|meta| {
            if meta.is_dir() {
                return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory));
            }
            // A block device has no length in its metadata.
            file.seek(SeekFrom::End(0))
        });
        let len = end.map_err(|e| Error::io("cannot find its length", e).about(path.display()))?;
        Ok(Self { file, path, len })
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        // The kernel would call an offset past i64::MAX an invalid argument.
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(past_end(offset, buf.len(), self.len).about(self.path.display()));
        }
        self.file.read_exact_at(buf, offset).map_err(|e| {
            match e.kind() {
                std::io::ErrorKind::UnexpectedEof => past_end(offset, buf.len(), self.len),
                _ => Error::io("cannot read", e),
            }
            .about(self.path.display())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_read_past_the_end_is_an_error_not_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7u8; 1000]).unwrap();
        let file = FileSource::open(&path).unwrap();
        let sources: [&dyn ReadAt; 2] = [&file, &vec![7u8; 1000]];
        for source in sources {
            let mut buf = [0; 100];
            source.read_at(&mut buf, 900).unwrap();
            assert_eq!(buf, [7; 100]);
            for offset in [901, 1000, u64::MAX] {
                assert_eq!(
                    source.read_at(&mut buf, offset).unwrap_err().kind(),
                    ErrorKind::Corrupt,
                    "{offset}"
                );
            }
        }
    }

    #[test]
    fn a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(FileSource::open(dir.path()).is_err());
    }
}
