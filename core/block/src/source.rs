//! Sources: immutable bytes that can be read at any offset, by many threads at once.

use crate::to_usize;
use crate::{ByteRange, Error, Result};
use rustix::io::{Errno, preadv};
use std::fs::File;
use std::io::{IoSliceMut, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Immutable bytes of a known length that can be read at any offset: a file, memory, or a decoder over
/// another source.
pub trait ReadAt: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Fills `buf` with the bytes of the source from byte `offset` on.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] if the source ends before the buffer is full, or if its bytes fail a check;
    /// otherwise errors of reading the medium that stores the bytes.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Fills `bufs`, one after the other, with the consecutive bytes from `offset` on.
    ///
    /// # Errors
    /// As [`read_at`](ReadAt::read_at).
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let mut offset = offset;
        for buf in bufs {
            self.read_at(buf, offset)?;
            offset = offset.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Returns the bytes of the stored blob that a read of `range` touches: `range` itself, if the source is the blob.
    /// A decoder, whose content is not the blob itself, maps the range through its index and asks the source below.
    /// Prefetching uses this to find the bytes to fetch. Empty if no bytes of a blob are needed, because the content is
    /// in memory for good.
    fn stored_range(&self, range: ByteRange) -> ByteRange {
        range
    }

    /// The least number of bytes that a read has to decode (decompress), however short it is; 0 if reads only
    /// copy bytes. A measure of the work of a read.
    fn decode_unit(&self) -> u64 {
        0
    }

    /// `true` if the source wants to be told of the bytes that are decoded ([`note_decoded`](ReadAt::note_decoded)).
    fn wants_decoded(&self) -> bool {
        false
    }

    /// Notes that a decoder over this source has given out, once at least, all that the bytes of `range` decode to. A
    /// cache can use this to keep no second copy of them in memory. Takes no lock, and does not wait.
    fn note_decoded(&self, _range: ByteRange) {}

    /// All the bytes, if they are in memory already, so that decoders need no copy; otherwise `None`.
    fn as_slice(&self) -> Option<&[u8]> {
        None
    }

    /// `true` if the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes that [`copy_source`] copies at once.
const COPY_PART: u64 = 1 << 20;

/// Writes all bytes of a source to `out`, in parts of at most 1 MiB. `copied` is called after each part with
/// its length in bytes; an error from it ends the copy.
///
/// # Errors
/// Errors of the source, `out` or `copied`.
pub fn copy_source(
    source: &(impl ReadAt + ?Sized),
    out: &mut dyn Write,
    copied: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let mut buf = Vec::new();
    for part in ByteRange::between(0, source.len()).parts(COPY_PART) {
        buf.resize(to_usize(part.len()), 0);
        source.read_at(&mut buf, part.offset())?;
        out.write_all(&buf)?;
        copied(part.len())?;
    }
    Ok(())
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

            fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
                (**self).read_vectored_at(bufs, offset)
            }

            fn stored_range(&self, range: ByteRange) -> ByteRange {
                (**self).stored_range(range)
            }

            fn decode_unit(&self) -> u64 {
                (**self).decode_unit()
            }

            fn wants_decoded(&self) -> bool {
                (**self).wants_decoded()
            }

            fn note_decoded(&self, range: ByteRange) {
                (**self).note_decoded(range);
            }

            fn as_slice(&self) -> Option<&[u8]> {
                (**self).as_slice()
            }
        }
    )*};
}
forward_read_at!(&T, Arc<T>, Box<T>);

/// A regular file or block device, opened for reading, with the length that it had when it was opened.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    path: PathBuf,
    len: u64,
}

impl FileSource {
    /// Opens the file or block device at `path` and determines its length.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] for a pipe, a socket or a character device; errors of the operating
    /// system. All these errors name the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // Opening a pipe would wait for its writer, perhaps for ever.
        let kind = path.metadata().map(|meta| meta.file_type());
        if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket() || kind.is_char_device()) {
            return Err(Error::invalid("is neither a file nor a block device").about(path.display()));
        }
        let file = File::open(path).map_err(|e| Error::io("cannot open", e).about(path.display()))?;
        Self::from_file(file, path)
    }

    /// Wraps an open file; `path` is for messages only.
    ///
    /// # Errors
    /// An error of the operating system if the length of the file cannot be determined, as for a directory or a pipe.
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

    /// The path that was given to [`FileSource::open`] or [`FileSource::from_file`], for messages only.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file that reads go to.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Refuses a read past the end: the kernel would call an offset past `i64::MAX` an invalid argument.
    fn check_inside(&self, wanted: usize, offset: u64) -> Result<()> {
        if offset.checked_add(wanted as u64).is_none_or(|end| end > self.len) {
            return Err(past_end(offset, wanted, self.len).about(self.path.display()));
        }
        Ok(())
    }

    #[cold]
    fn read_failed(&self, error: std::io::Error, wanted: usize, offset: u64) -> Error {
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => past_end(offset, wanted, self.len),
            _ => Error::io("cannot read", error),
        }
        .about(self.path.display())
    }
}

impl ReadAt for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check_inside(buf.len(), offset)?;
        self.file.read_exact_at(buf, offset).map_err(|e| self.read_failed(e, buf.len(), offset))
    }

    fn read_vectored_at(&self, mut bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let wanted = bufs.iter().map(|buf| buf.len()).sum();
        self.check_inside(wanted, offset)?;
        let mut done = 0;
        while done < wanted {
            match preadv(&self.file, bufs, offset + done as u64) {
                Ok(0) => return Err(past_end(offset, wanted, self.len).about(self.path.display())),
                Ok(read) => {
                    IoSliceMut::advance_slices(&mut bufs, read);
                    done += read;
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.read_failed(e.into(), wanted, offset)),
            }
        }
        Ok(())
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
    fn a_vectored_read_fills_its_buffers_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = FileSource::open(&path).unwrap();
        let sources: [&dyn ReadAt; 2] = [&file, &bytes];
        for source in sources {
            let [mut a, mut b, mut c] = [vec![0; 300], vec![], vec![0; 100]];
            let mut bufs = [&mut a, &mut b, &mut c].map(|buf| IoSliceMut::new(buf));
            source.read_vectored_at(&mut bufs, 600).unwrap();
            assert!([a, c].concat() == bytes[600..]);
            let [mut a, mut b] = [[0; 300], [0; 300]];
            let mut bufs = [&mut a, &mut b].map(|buf| IoSliceMut::new(buf));
            let error = source.read_vectored_at(&mut bufs, 401).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            source.read_vectored_at(&mut [], 1000).unwrap();
        }
    }

    #[test]
    fn a_copy_is_whole_and_can_be_ended() {
        let source: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
        let (mut copy, mut reported) = (Vec::new(), 0);
        copy_source(&source, &mut copy, &mut |bytes| {
            reported += bytes;
            Ok(())
        })
        .unwrap();
        assert!(copy == source && reported == 3_000_000);
        let stopped =
            copy_source(&source, &mut Vec::new(), &mut |_| Err(Error::new(ErrorKind::Cancelled, "stop")));
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn a_file_that_shrank_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7u8; 1000]).unwrap();
        let file = FileSource::open(&path).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(500).unwrap();
        let mut buf = [0; 100];
        assert_eq!(file.read_at(&mut buf, 450).unwrap_err().kind(), ErrorKind::Corrupt);
        let [mut a, mut b] = [[0; 30], [0; 30]];
        let mut bufs = [&mut a, &mut b].map(|buf| IoSliceMut::new(buf));
        assert_eq!(file.read_vectored_at(&mut bufs, 450).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(FileSource::open(dir.path()).is_err());
    }
}
