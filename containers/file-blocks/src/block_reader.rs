//! Blocks of a parent disk, read when they are asked for.
//!
//! A parent may be far away: its blocks come from a registry as they are read. So nothing is read ahead, and a block
//! of metadata is read once, as long as there are not more than [`BLOCKS_IN_MEMORY`] of them: then the one whose last
//! use is longest ago is dropped. Content of files passes by ([`BlockReader::read`]), because it is read once.

use crate::{BLOCK_SIZE, Block};
use headstart_block::{Error, ReadAt, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks that stay in memory: 6 MiB.
const BLOCKS_IN_MEMORY: usize = 3 << 9;

/// A block in memory.
struct Cached {
    number: u64,
    /// The number of the last use.
    used: u64,
    content: Box<Block>,
}

/// A reader of a disk's blocks of 4096 bytes.
pub struct BlockReader {
    source: Arc<dyn ReadAt>,
    capacity: usize,
    cached: Vec<Cached>,
    /// For each block in memory, its index in `cached`.
    places: BTreeMap<u64, usize>,
    /// For each last use, the index in `cached` of its block: the first is the next to be dropped.
    uses: BTreeMap<u64, usize>,
    /// Number of uses so far.
    clock: u64,
    /// The buffer of the next read: a read that fails changes nothing else.
    spare: Box<Block>,
}

impl BlockReader {
    /// Reads the blocks of `source`.
    pub fn new(source: Arc<dyn ReadAt>) -> Self {
        Self::with_capacity(source, BLOCKS_IN_MEMORY)
    }

    /// Reads the blocks of `source`, of which at most `capacity`, at least 1, stay in memory.
    fn with_capacity(source: Arc<dyn ReadAt>, capacity: usize) -> Self {
        Self {
            source,
            capacity: capacity.max(1),
            cached: Vec::new(),
            places: BTreeMap::new(),
            uses: BTreeMap::new(),
            clock: 0,
            spare: Box::new([0; BLOCK_SIZE]),
        }
    }

    /// Returns the content of a block.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the disk ends before it; errors of the disk.
    pub fn block(&mut self, number: u64) -> Result<&Block> {
        self.clock += 1;
        let place = match self.places.get(&number) {
            Some(&place) => {
                self.uses.remove(&self.cached[place].used);
                place
            }
            None => self.load(number)?,
        };
        self.uses.insert(self.clock, place);
        let cached = &mut self.cached[place];
        cached.used = self.clock;
        Ok(&cached.content)
    }

    /// Fills `buf` with the bytes from byte `offset` of the disk on, in one read. They do not stay in memory.
    ///
    /// # Errors
    /// As [`BlockReader::block`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.source.read_at(buf, offset)
    }

    /// Reads a block, and puts it in the place of the one whose last use is longest ago; returns that place.
    fn load(&mut self, number: u64) -> Result<usize> {
        self.source.read_at(&mut *self.spare, offset_of(number)?)?;
        let place = if self.cached.len() < self.capacity {
            self.cached.push(Cached { number, used: 0, content: Box::new(*self.spare) });
            self.cached.len() - 1
        } else {
            let (_, place) =
                self.uses.pop_first().ok_or_else(|| Error::corrupt("no block can be dropped"))?;
            let cached = &mut self.cached[place];
            self.places.remove(&cached.number);
            cached.number = number;
            std::mem::swap(&mut cached.content, &mut self.spare);
            place
        };
        self.places.insert(number, place);
        Ok(place)
    }
}

/// The first byte of a block.
fn offset_of(block: u64) -> Result<u64> {
    block
        .checked_mul(BLOCK_SIZE as u64)
        .ok_or_else(|| Error::corrupt(format!("its file system refers to block {block}, which no disk has")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    /// A disk that notes which blocks are read.
    struct Noted {
        bytes: Vec<u8>,
        reads: Mutex<Vec<(u64, usize)>>,
    }

    impl Noted {
        fn with_blocks(count: usize) -> Arc<Self> {
            let bytes = (0..count).flat_map(|block| [u8::try_from(block).unwrap(); BLOCK_SIZE]).collect();
            Arc::new(Self { bytes, reads: Mutex::default() })
        }

        fn reads(&self) -> Vec<(u64, usize)> {
            std::mem::take(&mut self.reads.lock().unwrap())
        }
    }

    impl ReadAt for Noted {
        fn len(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.reads.lock().unwrap().push((offset / BLOCK_SIZE as u64, buf.len() / BLOCK_SIZE));
            self.bytes.read_at(buf, offset)
        }
    }

    #[test]
    fn a_block_is_read_once_and_content_passes_by() {
        let disk = Noted::with_blocks(9);
        let mut reader = BlockReader::new(disk.clone());
        for number in [3, 5, 3, 5, 5] {
            assert_eq!(u64::from(reader.block(number).unwrap()[77]), number);
        }
        assert_eq!(disk.reads(), [(3, 1), (5, 1)]);
        let mut buf = vec![0; 3 * BLOCK_SIZE];
        reader.read(4 * BLOCK_SIZE as u64, &mut buf).unwrap();
        assert_eq!((buf[0], buf[BLOCK_SIZE], buf[3 * BLOCK_SIZE - 1]), (4, 5, 6));
        reader.block(4).unwrap();
        assert_eq!(disk.reads(), [(4, 3), (4, 1)]);
    }

    #[test]
    fn a_read_that_fails_changes_nothing() {
        let disk = Noted::with_blocks(3);
        let mut reader = BlockReader::with_capacity(disk.clone(), 2);
        for number in [0, 1] {
            reader.block(number).unwrap();
        }
        for number in [3, u64::MAX, u64::MAX / 4096] {
            assert_eq!(reader.block(number).unwrap_err().kind(), ErrorKind::Corrupt);
            assert_eq!(reader.read(number.max(4 << 12), &mut [0]).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        disk.reads();
        assert_eq!([0, 1].map(|number| reader.block(number).unwrap()[9]), [0, 1]);
        assert_eq!(disk.reads(), []);
    }

    proptest! {
        #[test]
        fn reads_are_those_of_a_list_in_order_of_use(
            capacity in 1_usize..6,
            numbers in proptest::collection::vec(0_u64..10, 0..200),
        ) {
            let disk = Noted::with_blocks(10);
            let mut reader = BlockReader::with_capacity(disk.clone(), capacity);
            let mut model: VecDeque<u64> = VecDeque::new();
            for number in numbers {
                let is_there = model.contains(&number);
                model.retain(|&other| other != number);
                model.push_back(number);
                if model.len() > capacity {
                    model.pop_front();
                }
                let content = reader.block(number).unwrap();
                prop_assert!(content.iter().all(|&byte| u64::from(byte) == number));
                prop_assert_eq!(disk.reads(), if is_there { vec![] } else { vec![(number, 1)] });
            }
        }
    }
}
