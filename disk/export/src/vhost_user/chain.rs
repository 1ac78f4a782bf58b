//! Descriptor chains: a request's memory, as the guest describes it.
//!
//! The tables are in memory that a hostile guest writes at any time, so every descriptor is read once, into this
//! process's memory, and judged there. A chain that no driver may make (a loop, an index or a table outside, tables
//! within tables, parts that the device writes before parts that it reads) is [`Broken`]: the queue is given up,
//! because nothing that follows can be trusted. Addresses are judged not here, but when they are used.
//!
//! The walker of `virtio-queue` is not used: it ends a bad chain silently, as if it were a short one, and cannot start
//! at a given head, as is necessary to take up requests after a restart.

use super::memory::GuestMemory;
use headstart_block::saturating;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

/// The most parts of one request: as many as QEMU allows a queue to have entries.
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// The bytes of a descriptor in a table.
const DESCRIPTOR_LEN: u32 = 16;

/// The reason why a queue cannot be served any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// The reason if the front end took memory away that it had given.
pub(crate) const MEMORY_LOST: Broken = Broken("the front end has shortened its memory file");

/// A run of guest memory, which may have any address, also one that is not memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) addr: GuestAddress,
    pub(crate) len: u32,
}

/// A table of descriptors: the queue's, or one that a descriptor points to.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) addr: GuestAddress,
    /// The number of entries.
    pub(crate) len: u16,
}

/// The memory of one request. It is kept and refilled: the data path allocates nothing.
#[derive(Default, Debug)]
pub(crate) struct Chain {
    /// The parts that the device reads, in order.
    pub(crate) readable: Vec<Segment>,
    /// The parts that the device writes, in order.
    pub(crate) writable: Vec<Segment>,
}

impl Chain {
    /// Reads the chain that begins at `head`.
    pub(crate) fn read(&mut self, memory: &GuestMemory, queue: Table, head: u16) -> Result<(), Broken> {
        self.readable.clear();
        self.writable.clear();
        let (mut table, mut indirect) = (queue, false);
        let (mut index, mut left) = (head, queue.len);
        let mut bytes = 0_u32;
        loop {
            // As many steps as the table has entries, and one more, visit one of them twice.
            left = left.checked_sub(1).ok_or(Broken("a descriptor chain is a loop"))?;
            let descriptor = table.get(memory, index)?;
            if descriptor.refers_to_indirect_table() {
                if indirect || descriptor.has_next() {
                    return Err(Broken("an indirect table is not the end of its chain"));
                }
                table = Table::indirect(&descriptor)?;
                (indirect, index, left) = (true, 0, table.len);
                continue;
            }
            bytes = bytes.checked_add(descriptor.len()).ok_or(Broken("a request has 4 GiB or more"))?;
            self.push(&descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn push(&mut self, descriptor: &Descriptor) -> Result<(), Broken> {
        if self.readable.len() + self.writable.len() == SEGMENTS_MAX {
            return Err(Broken("a request has more than 1024 parts"));
        }
        let segment = Segment { addr: descriptor.addr(), len: descriptor.len() };
        if descriptor.is_write_only() {
            self.writable.push(segment);
        } else if self.writable.is_empty() {
            self.readable.push(segment);
        } else {
            return Err(Broken("a request has parts to read after parts to write"));
        }
        Ok(())
    }
}

impl Table {
    fn get(self, memory: &GuestMemory, index: u16) -> Result<Descriptor, Broken> {
        let outside = Broken("a descriptor lies outside of its table or of the guest's memory");
        if index >= self.len {
            return Err(outside);
        }
        let offset = u64::from(index) * u64::from(DESCRIPTOR_LEN);
        let addr = self.addr.0.checked_add(offset).ok_or(outside)?;
        let descriptor = memory.read_obj(GuestAddress(addr)).map_err(|_| outside)?;
        if memory.is_lost() { Err(MEMORY_LOST) } else { Ok(descriptor) }
    }

    fn indirect(descriptor: &Descriptor) -> Result<Self, Broken> {
        let (entries, rest) = (descriptor.len() / DESCRIPTOR_LEN, descriptor.len() % DESCRIPTOR_LEN);
        match u16::try_from(entries) {
            Ok(len) if len > 0 && rest == 0 => Ok(Self { addr: descriptor.addr(), len }),
            _ => Err(Broken("an indirect table is empty, too long or has a part of a descriptor")),
        }
    }
}

/// A place in a list of segments, which moves as bytes are copied from or to the segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    segment: usize,
    /// The bytes of that segment that are done.
    done: u32,
}

/// An address that is not memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoMemory;

impl Cursor {
    /// Copies `data` to the segments from here on.
    pub(crate) fn write(
        &mut self,
        memory: &GuestMemory,
        segments: &[Segment],
        mut data: &[u8],
    ) -> Result<(), NoMemory> {
        while !data.is_empty() {
            let (addr, len) = self.run(segments, data.len())?;
            let (head, tail) = data.split_at(len);
            memory.write_slice(head, addr).map_err(|_| NoMemory)?;
            data = tail;
        }
        Ok(())
    }

    /// Fills `data` from the segments from here on.
    pub(crate) fn read(
        &mut self,
        memory: &GuestMemory,
        segments: &[Segment],
        mut data: &mut [u8],
    ) -> Result<(), NoMemory> {
        while !data.is_empty() {
            let (addr, len) = self.run(segments, data.len())?;
            let (head, tail) = data.split_at_mut(len);
            memory.read_slice(head, addr).map_err(|_| NoMemory)?;
            data = tail;
        }
        // Zeros in the place of lost bytes must not be written to the disk.
        if memory.is_lost() { Err(NoMemory) } else { Ok(()) }
    }

    /// Passes the next run of at most `wanted` bytes: its address and length, which is not 0.
    fn run(&mut self, segments: &[Segment], wanted: usize) -> Result<(GuestAddress, usize), NoMemory> {
        loop {
            let segment = segments.get(self.segment).ok_or(NoMemory)?;
            let left = segment.len.saturating_sub(self.done);
            if left == 0 {
                *self = Self { segment: self.segment + 1, done: 0 };
                continue;
            }
            let addr = segment.addr.0.checked_add(u64::from(self.done)).ok_or(NoMemory)?;
            let len = left.min(saturating(wanted));
            self.done += len;
            return Ok((GuestAddress(addr), len as usize));
        }
    }
}
