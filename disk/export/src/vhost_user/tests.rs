//! Chains and requests against plain models, with guest memory made here.

use super::blk::{Request, Status, Step, Target};
use super::chain::{Broken, Chain, Cursor, NoMemory, SEGMENTS_MAX, Segment, Table};
use super::memory::GuestMemory;
use headstart_block::{BlockDevice, ByteRange, Error, Extent, Result, SECTOR_SIZE};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::Arc;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const MEMORY: u64 = 1 << 20;
const TABLE: u64 = 0;
const ENTRIES: u16 = 64;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn memory() -> GuestMemory {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), usize::try_from(MEMORY).unwrap())]).unwrap().into()
}

/// A descriptor: address, length, flags, next.
type Entry = (u64, u32, u16, u16);

fn describe(memory: &GuestMemory, table: u64, index: u16, (addr, len, flags, next): Entry) {
    let bytes =
        [&addr.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
    memory.write_slice(&bytes, GuestAddress(table + 16 * u64::from(index))).unwrap();
}

fn table() -> Table {
    Table { addr: GuestAddress(TABLE), len: ENTRIES }
}

/// A disk in memory.
struct Disk(Mutex<Vec<u8>>);

impl BlockDevice for Disk {
    fn size(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let bytes = self.0.lock();
        let start = usize::try_from(offset).unwrap();
        let from = bytes.get(start..start + buf.len()).ok_or_else(|| Error::invalid("past the end"))?;
        buf.copy_from_slice(from);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { range: ByteRange::between(offset, self.size()), zero: false })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        assert!(offset.is_multiple_of(SECTOR_SIZE) && (data.len() as u64).is_multiple_of(SECTOR_SIZE));
        let start = usize::try_from(offset).unwrap();
        self.0.lock()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        let (start, end) = (usize::try_from(range.offset()).unwrap(), usize::try_from(range.end()).unwrap());
        self.0.lock()[start..end].fill(0);
        Ok(())
    }
}

/// A descriptor as a hostile driver may write it: mostly near a valid one.
fn entry() -> impl Strategy<Value = Entry> {
    let addr = prop_oneof![
        8 => 4096..MEMORY - 9000,
        1 => (0..u64::from(ENTRIES)).prop_map(|index| TABLE + 16 * index),
        1 => MEMORY - 64..MEMORY + 64,
        1 => any::<u64>(),
    ];
    let len = prop_oneof![4 => 16..9000_u32, 4 => (1..10_u32).prop_map(|n| n * 512), 1 => any::<u32>()];
    let flags = prop_oneof![4 => Just(NEXT | WRITE), 2 => Just(WRITE), 1 => 0..8_u16, 1 => any::<u16>()];
    let next = prop_oneof![8 => 1..ENTRIES, 1 => any::<u16>()];
    (addr, len, flags, next)
}

/// A table of such descriptors, in which requests begin at even indices.
fn entries() -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec(entry(), usize::from(ENTRIES)).prop_map(|mut entries| {
        entries.iter_mut().step_by(2).for_each(|entry| entry.2 = NEXT);
        entries
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any content of a table, a chain is read in bounded steps and is bounded itself; a request of it ends with a
    /// status, and writes only to the parts that it was given to write.
    #[test]
    fn any_chain_is_judged_or_served(
        entries in entries(),
        kind in prop_oneof![0..14_u32, any::<u32>()],
        sector in prop_oneof![0..300_u64, any::<u64>()],
        head in prop_oneof![8 => 0..ENTRIES, 1 => any::<u16>()],
    ) {
        let memory = memory();
        for (index, entry) in entries.iter().enumerate() {
            describe(&memory, TABLE, u16::try_from(index).unwrap(), *entry);
        }
        let mut chain = Chain::default();
        let Ok(()) = chain.read(&memory, table(), head) else { return Ok(()) };
        prop_assert!(chain.readable.len() + chain.writable.len() <= SEGMENTS_MAX);
        if let Some(first) = chain.readable.iter().find(|segment| segment.len >= 16) {
            // A header that may have a meaning, if it can be written.
            let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
            let _ = memory.write_slice(&header, first.addr);
        }
        let Ok(mut request) = Request::read(&memory, &chain) else { return Ok(()) };
        let before = content(&memory);
        let target = Target::new(Arc::new(Disk(Mutex::new(vec![7; 100_000]))), "disk", 1);
        let step = target.serve(&memory, &chain, &mut request, &mut Vec::new(), true);
        if let Step::Done(status, _) = step {
            prop_assert!(matches!(status, Status::Ok | Status::IoError | Status::Unsupported));
        }
        let after = content(&memory);
        let writable = |at: usize| {
            chain.writable.iter().any(|segment| {
                (segment.addr.0..segment.addr.0.saturating_add(u64::from(segment.len))).contains(&(at as u64))
            })
        };
        let changed = before.iter().zip(&after).enumerate().filter(|(_, (before, after))| before != after);
        for (at, _) in changed {
            prop_assert!(writable(at), "{at} was changed");
        }
    }

    /// A cursor copies as if the segments were one run of memory.
    #[test]
    fn a_cursor_copies_in_any_steps(
        lens in prop::collection::vec(0..300_u32, 1..20),
        steps in prop::collection::vec(1..500_usize, 1..40),
    ) {
        let memory = memory();
        let segments: Vec<_> = lens
            .iter()
            .zip(0_u64..)
            .map(|(len, index)| Segment { addr: GuestAddress(500_000 - index * 300), len: *len })
            .collect();
        let total = lens.iter().map(|len| *len as usize).sum::<usize>();
        let data: Vec<u8> = (0..total).map(|at| at.to_le_bytes()[0]).collect();
        let (mut writer, mut reader, mut left, mut got) = (Cursor::default(), Cursor::default(), &data[..], vec![]);
        for step in steps {
            let (part, rest) = left.split_at(step.min(left.len()));
            left = rest;
            prop_assert_eq!(writer.write(&memory, &segments, part), Ok(()));
            let mut back = vec![0; part.len()];
            prop_assert_eq!(reader.read(&memory, &segments, &mut back), Ok(()));
            got.extend(back);
        }
        prop_assert_eq!(&got[..], &data[..got.len()]);
        prop_assert_eq!(writer.write(&memory, &segments, &vec![0; left.len() + 1]), Err(NoMemory));
    }
}

fn content(memory: &GuestMemory) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(MEMORY).unwrap()];
    memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
    bytes
}

#[test]
fn a_long_chain_is_no_loop_and_a_loop_ends() {
    let memory = memory();
    for index in 0..ENTRIES {
        let last = index + 1 == ENTRIES;
        describe(&memory, TABLE, index, (1000, 8, if last { WRITE } else { NEXT }, index + 1));
    }
    let mut chain = Chain::default();
    assert_eq!(chain.read(&memory, table(), 0), Ok(()));
    assert_eq!((chain.readable.len(), chain.writable.len()), (63, 1));
    describe(&memory, TABLE, ENTRIES - 1, (1000, 8, NEXT, 0));
    assert_eq!(chain.read(&memory, table(), 0), Err(Broken("a descriptor chain is a loop")));
}

#[test]
fn an_indirect_table_may_follow_direct_descriptors_and_be_larger_than_the_ring() {
    let memory = memory();
    let far = 600_000;
    describe(&memory, TABLE, 0, (1000, 16, NEXT, 1));
    describe(&memory, TABLE, 1, (far, 16 * 1100, INDIRECT, 0));
    for index in 0..1100 {
        describe(&memory, far, index, (2000, 1, WRITE | if index == 1000 { 0 } else { NEXT }, index + 1));
    }
    let mut chain = Chain::default();
    assert_eq!(chain.read(&memory, table(), 0), Ok(()));
    assert_eq!((chain.readable.len(), chain.writable.len()), (1, 1001));
    describe(&memory, far, 1000, (2000, 1, WRITE | NEXT, 1001));
    assert_eq!(chain.read(&memory, table(), 0), Err(Broken("a request has more than 1024 parts")));
}
