//! The content of tar entries, as trees take it.

use crate::file_tree::LayerContent;
use headstart_block::{ByteRange, Result};
use headstart_tar::{TarEntry, TarReader};
use std::io::Read;

/// The content of the entry that a [`TarReader`] returned last.
#[derive(Debug)]
pub struct EntryContent<'a, R: Read> {
    /// The bytes before those that the reader gives next.
    start: &'a [u8],
    entry: &'a TarEntry,
    reader: &'a mut TarReader<R>,
}

impl<'a, R: Read> EntryContent<'a, R> {
    /// The content of `entry`, the last one of `reader`.
    pub fn new(entry: &'a TarEntry, reader: &'a mut TarReader<R>) -> Self {
        Self::after(&[], entry, reader)
    }

    /// The content of `entry`, the last one of `reader`, of which `start` was read already.
    pub fn after(start: &'a [u8], entry: &'a TarEntry, reader: &'a mut TarReader<R>) -> Self {
        Self { start, entry, reader }
    }
}

impl<R: Read> LayerContent for EntryContent<'_, R> {
    fn size(&self) -> u64 {
        self.entry.size
    }

    fn extents(&self) -> Option<&[ByteRange]> {
        self.entry.sparse.as_deref()
    }

    fn tar_offset(&self) -> u64 {
        self.entry.content_offset
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        if self.start.is_empty() {
            return self.reader.read_content(buf);
        }
        let (now, later) = self.start.split_at(buf.len().min(self.start.len()));
        buf[..now.len()].copy_from_slice(now);
        self.start = later;
        Ok(now.len())
    }

    fn ends_in_zeros(&mut self) -> Result<bool> {
        self.reader.padding_is_zero()
    }
}
