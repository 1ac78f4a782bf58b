//! Bytes that are written once and then read anywhere: in memory while they are few, in a temporary file otherwise.

use headstart_block::{ByteRange, Error, ReadAt, Result, to_usize};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Bytes that are gathered before they go to the file.
const PART: usize = 256 << 10;

/// Bytes in memory, or in a temporary file without a name.
#[derive(Debug, Default)]
pub struct Spool {
    /// All bytes while there is no file; afterwards those that the file lacks.
    memory: Vec<u8>,
    /// The most bytes in memory without a file.
    most: usize,
    file: Option<File>,
    /// Bytes in the file.
    stored: u64,
}

impl Spool {
    /// Starts with no bytes, and keeps up to `most` in memory.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Bytes of memory that are taken.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.memory.len()
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.stored + self.memory.len() as u64
    }

    /// `true` if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Errors of the temporary file.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.memory.extend_from_slice(bytes);
        let most = if self.file.is_some() { PART } else { self.most };
        if self.memory.len() > most { self.store() } else { Ok(()) }
    }

    /// Replaces the first bytes.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if there are not so many; errors of the temporary file.
    pub fn set_start(&mut self, bytes: &[u8]) -> Result<()> {
        if self.stored == 0 {
            let start = self.memory.get_mut(..bytes.len());
            start.ok_or_else(|| Error::invalid("the start is not there yet"))?.copy_from_slice(bytes);
            return Ok(());
        }
        match &self.file {
            Some(file) if bytes.len() as u64 <= self.stored => {
                file.write_all_at(bytes, 0).map_err(cannot_write)
            }
            _ => Err(Error::invalid("the start is not there yet")),
        }
    }

    /// Cuts bytes off at the end.
    pub(crate) fn truncate(&mut self, len: u64) {
        if len < self.stored {
            self.stored = len;
            self.memory.clear();
        }
        self.memory.truncate(to_usize(len - self.stored));
    }

    fn store(&mut self) -> Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile().map_err(cannot_write)?),
        };
        file.write_all_at(&self.memory, self.stored).map_err(cannot_write)?;
        self.stored += self.memory.len() as u64;
        self.memory = Vec::new();
        Ok(())
    }
}

impl Write for Spool {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.push(buf)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ReadAt for Spool {
    fn len(&self) -> u64 {
        Self::len(self)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let inside = self.stored.saturating_sub(offset).min(buf.len() as u64);
        let (stored, rest) = buf.split_at_mut(to_usize(inside));
        if let (Some(file), false) = (&self.file, stored.is_empty()) {
            let failed = |error| Error::io("cannot read a temporary file", error);
            file.read_exact_at(stored, offset).map_err(failed)?;
        }
        if rest.is_empty() { Ok(()) } else { self.memory.read_at(rest, offset + inside - self.stored) }
    }

    /// None: no range of another blob is needed to read it.
    fn stored_range(&self, _range: ByteRange) -> ByteRange {
        ByteRange::between(0, 0)
    }

    fn as_slice(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(&self.memory)
    }
}

fn cannot_write(error: io::Error) -> Error {
    Error::io("cannot write a temporary file", error)
        .remedy("free space in TMPDIR, or name another directory by it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::data;

    #[test]
    fn bytes_are_the_same_in_memory_and_in_a_file() {
        let whole = data(3, 700_000);
        for most in [0, 1000, 300_000, 1 << 20] {
            let mut spool = Spool::new(most);
            assert!(spool.is_empty());
            for part in whole.chunks(90_001) {
                spool.push(part).unwrap();
            }
            assert!(spool.memory() <= most.max(PART));
            assert_eq!((Spool::len(&spool), spool.as_slice().is_some()), (700_000, most == 1 << 20));
            for range in [0..10, 0..700_000, 699_990..700_000, 250_000..600_000, 700_000..700_000] {
                let mut found = vec![0; range.len()];
                spool.read_at(&mut found, range.start as u64).unwrap();
                assert!(found == whole[range]);
            }
            assert!(spool.read_at(&mut [0; 2], 699_999).is_err());
            spool.set_start(b"start").unwrap();
            spool.truncate(123_456);
            let mut found = vec![0; 123_456];
            spool.read_at(&mut found, 0).unwrap();
            assert!(found.starts_with(b"start") && found[5..] == whole[5..123_456]);
            assert_eq!(Spool::len(&spool), 123_456);
        }
        assert!(Spool::new(10).set_start(b"start").is_err());
    }
}
