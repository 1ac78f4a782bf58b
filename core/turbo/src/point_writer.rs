//! Restart points on their way into an index: the first bit of each is found, its window cleared and packed.
//!
//! That takes a fifth of the time of inflating, so it can be done by another thread. The index is the same.

use crate::first_bit::first_bit;
use crate::index_writer::IndexWriter;
use crate::window_use::clear_unused;
use headstart_block::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// Points that wait for the other thread: some 100 KiB each.
const WAITING: usize = 16;

/// A restart point, with what is needed to find the rest of it.
pub(crate) struct FoundPoint {
    pub(crate) inflated: u64,
    pub(crate) compressed: u64,
    pub(crate) window: Box<[u8]>,
    /// The block's beginning; `None` for the start of a member, which needs no window.
    pub(crate) block: Option<BlockBegin>,
}

/// The beginning of a block, by which its first bit is found.
pub(crate) struct BlockBegin {
    /// The byte before the block's first whole byte.
    pub(crate) before: u8,
    /// The compressed bytes from there on.
    pub(crate) input: Vec<u8>,
    /// The data that they give.
    pub(crate) data: Box<[u8]>,
}

impl FoundPoint {
    fn write(self, index: &mut IndexWriter) -> Result<()> {
        let Self { inflated, compressed, mut window, block } = self;
        let Some(BlockBegin { before, input, data }) = block else {
            return index.push(inflated, compressed, 0, &window);
        };
        // Without its first bit, the piece before goes on.
        let Some(found) = first_bit(&window, before, &input, &data) else { return Ok(()) };
        clear_unused(&mut window, found, &input);
        index.push(inflated, compressed, found.bits, &window)
    }
}

/// A writer of restart points.
pub(crate) enum PointWriter {
    Here(IndexWriter),
    Thread {
        points: SyncSender<FoundPoint>,
        index: JoinHandle<Result<IndexWriter>>,
    },
    /// An error was returned.
    Failed,
}

impl PointWriter {
    /// A writer in the caller's thread.
    ///
    /// # Errors
    /// As [`IndexWriter::new`].
    pub(crate) fn new(span: u32) -> Result<Self> {
        IndexWriter::new(span).map(Self::Here)
    }

    /// A writer with a thread of its own, which ends with it.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Io`] if no thread can be started.
    pub(crate) fn with_thread(span: u32) -> Result<Self> {
        let (points, received) = sync_channel(WAITING);
        let index = IndexWriter::new(span)?;
        let write = move || write_all(&received, index);
        let index = thread::Builder::new().name("gzip-index".to_owned()).spawn(write);
        let index = index.map_err(|e| Error::io("cannot start a thread that makes an index", e))?;
        Ok(Self::Thread { points, index })
    }

    pub(crate) fn push(&mut self, point: FoundPoint) -> Result<()> {
        let is_taken = match self {
            Self::Here(index) => return point.write(index),
            Self::Thread { points, .. } => points.send(point).is_ok(),
            Self::Failed => false,
        };
        // The other thread ends early after an error only.
        if is_taken { Ok(()) } else { std::mem::replace(self, Self::Failed).finish().map(drop) }
    }

    /// Waits until all points are written.
    pub(crate) fn finish(self) -> Result<IndexWriter> {
        let failed = || Error::invalid("the index has failed before");
        match self {
            Self::Here(index) => Ok(index),
            Self::Thread { points, index } => {
                drop(points);
                index.join().map_err(|_| failed())?
            }
            Self::Failed => Err(failed()),
        }
    }
}

fn write_all(points: &Receiver<FoundPoint>, mut index: IndexWriter) -> Result<IndexWriter> {
    while let Ok(point) = points.recv() {
        point.write(&mut index)?;
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::WINDOW_SIZE;

    fn point(inflated: u64, window: usize) -> FoundPoint {
        FoundPoint { inflated, compressed: 10 + inflated, window: vec![1; window].into(), block: None }
    }

    #[test]
    fn both_kinds_of_writers_give_the_same_index_and_the_same_errors() {
        for mut writer in [PointWriter::new(1 << 20).unwrap(), PointWriter::with_thread(1 << 20).unwrap()] {
            for number in 0..100 {
                writer.push(point(number, WINDOW_SIZE)).unwrap();
            }
            assert_eq!(writer.finish().unwrap().len(), 100);
        }
        for mut writer in [PointWriter::new(1 << 20).unwrap(), PointWriter::with_thread(1 << 20).unwrap()] {
            let mut pushed = Ok(());
            while pushed.is_ok() {
                pushed = writer.push(point(0, 5));
            }
            assert!(pushed.unwrap_err().to_string().contains("window of 32 KiB"));
        }
    }
}
