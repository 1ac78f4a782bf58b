//! The virtio block device: its features, its configuration space, and the effect of each request.
//!
//! Nothing here knows rings or threads. A request is served in steps: as far as local bytes go, then perhaps a [`Work`]
//! that another thread waits for, then further. Guest memory is shared with a guest that writes to it at the same time,
//! so data always passes through a buffer of this process: a device stores the bytes that it checked, and copies the
//! bytes that it verified. (Decoding right into guest memory would need `unsafe` and save one copy, about a tenth of a
//! microsecond for 4 KiB.)
//!
//! Errors of single requests (outside the disk, unaligned, memory that is not there, a failing store) are answered
//! with a status. Only a request that cannot be answered breaks the queue.

use super::chain::{Broken, Chain, Cursor, NoMemory};
use super::memory::GuestMemory;
use crate::complaints::Complaints;
use crate::processors::decodes_much;
use headstart_block::{BlockDevice, ByteRange, Error, ErrorKind, SECTOR_SIZE, exact, saturating, to_usize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use virtio_bindings::bindings::virtio_blk as blk;
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::GuestAddress;

/// The number of bytes of the configuration space up to the last offered field.
pub(crate) const CONFIG_LEN: usize = 60;

/// The most data segments of one request: with header and status a queue of 128, QEMU's default, holds one request
/// without an indirect table.
const SEG_MAX: u32 = 126;

/// The most sectors of one discard or write-zeroes segment: 2 GiB.
const ZEROES_SECTORS_MAX: u32 = 1 << 22;

/// The most segments of one discard or write-zeroes request.
const ZEROES_SEGMENTS_MAX: u32 = 32;
const ZEROES_SEGMENT_LEN: usize = 16;

/// The bytes that a read takes from the disk at once. They stay in the second-level cache on their way to the guest.
const READ_PART: u64 = 128 << 10;

/// The bytes that a write gives to the disk at once: more than Linux sends, so that its writes stay whole.
const WRITE_PART: u64 = 1 << 20;

/// The bytes that a read waits for at once, kept in memory meanwhile.
const WAIT_PART: u64 = 1 << 20;

/// The least number of bytes whose copying is worth the way to another thread and back, some ten microseconds.
const COPYING_MIN: u64 = 256 << 10;

/// The bytes of a request's head: kind, priority, sector.
const HEADER_LEN: usize = 16;

/// The end of a request, as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// The work that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// To read remote bytes of the disk.
    Read(ByteRange),
    /// To sync the disk.
    Flush,
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Done: this many bytes of data were written to the guest.
    Done(Status, u32),
    /// This work has to be done first.
    Wait(Work),
}

/// A request's head, and its progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    kind: u32,
    sector: u64,
    /// The address of its status.
    pub(crate) status: GuestAddress,
    /// The bytes of data, without header and status.
    len: u64,
    /// The bytes of data that are done.
    done: u64,
    /// The place of the next byte of data: for reads in the parts that the device writes, otherwise in those that it
    /// reads.
    cursor: Cursor,
}

impl Request {
    /// Reads the head of the request that `chain` holds.
    pub(crate) fn read(memory: &GuestMemory, chain: &Chain) -> Result<Self, Broken> {
        let (mut cursor, mut header) = (Cursor::default(), [0; HEADER_LEN]);
        cursor
            .read(memory, &chain.readable, &mut header)
            .map_err(|NoMemory| Broken("a request has no header that can be read"))?;
        let last = chain.writable.iter().rfind(|segment| segment.len > 0);
        let status = last
            .and_then(|last| last.addr.0.checked_add(u64::from(last.len) - 1))
            .ok_or(Broken("a request has no room for its status"))?;
        let [kind, _, low, high] = words(&header);
        let total =
            |segments: &[super::chain::Segment]| segments.iter().map(|s| u64::from(s.len)).sum::<u64>();
        let (sector, status) = (u64::from(high) << 32 | u64::from(low), GuestAddress(status));
        let len = match kind {
            blk::VIRTIO_BLK_T_IN | blk::VIRTIO_BLK_T_GET_ID => {
                cursor = Cursor::default();
                total(&chain.writable) - 1
            }
            _ => total(&chain.readable) - HEADER_LEN as u64,
        };
        Ok(Self { kind, sector, status, len, done: 0, cursor })
    }

    /// Gives the guest the bytes that its read waited for.
    pub(crate) fn got(&mut self, memory: &GuestMemory, chain: &Chain, bytes: &[u8]) -> Result<(), NoMemory> {
        self.done += bytes.len() as u64;
        self.cursor.write(memory, &chain.writable, bytes)
    }

    /// The bytes of its data.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

/// The little-endian words of 16 bytes.
fn words(bytes: &[u8; 16]) -> [u32; 4] {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4), word(8), word(12)]
}

/// A disk as a virtio block device.
pub(crate) struct Target {
    pub(crate) device: Arc<dyn BlockDevice>,
    /// The name for messages.
    pub(crate) name: String,
    /// The answer to GET_ID; Linux shows it as the disk's serial number.
    id: [u8; 20],
    queues: u16,
    /// The number of requests that the disk failed.
    failures: AtomicU64,
    /// The number of small reads that are sent to the disk together.
    pub(crate) reads_together: usize,
    /// The lines of the log about front ends and guests.
    pub(crate) complaints: Complaints,
}

impl Target {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, name: &str, queues: u16) -> Self {
        let mut id = [0; 20];
        id.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        let reads_together = device.reads_together();
        let (name, failures, complaints) = (name.to_owned(), AtomicU64::new(0), Complaints::default());
        Self { device, name, id, queues, failures, reads_together, complaints }
    }

    pub(crate) fn queues(&self) -> u16 {
        self.queues
    }

    /// The offered virtio feature bits, except those of the transport.
    pub(crate) fn features(&self) -> u64 {
        let mut bits = vec![
            blk::VIRTIO_BLK_F_SEG_MAX,
            blk::VIRTIO_BLK_F_BLK_SIZE,
            blk::VIRTIO_BLK_F_TOPOLOGY,
            blk::VIRTIO_BLK_F_FLUSH,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_F_VERSION_1,
        ];
        if self.queues > 1 {
            bits.push(blk::VIRTIO_BLK_F_MQ);
        }
        if self.device.is_read_only() {
            bits.push(blk::VIRTIO_BLK_F_RO);
        } else {
            bits.extend([blk::VIRTIO_BLK_F_DISCARD, blk::VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        bits.into_iter().fold(0, |features, bit| features | 1 << bit)
    }

    /// `true` if a driver that accepted these features flushes itself. For one that does not, every write is durable
    /// when it is answered.
    pub(crate) fn driver_flushes(features: u64) -> bool {
        features & 1 << blk::VIRTIO_BLK_F_FLUSH != 0
    }

    /// The configuration space as it is now.
    pub(crate) fn config(&self) -> [u8; CONFIG_LEN] {
        let mut config = [0; CONFIG_LEN];
        let mut put = |at: usize, value: &[u8]| config[at..at + value.len()].copy_from_slice(value);
        put(0, &self.sectors().to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &512_u32.to_le_bytes()); // blk_size
        put(24, &[3]); // physical_block_exp: 4 KiB
        put(26, &8_u16.to_le_bytes()); // min_io_size, in blocks
        put(32, &[1]); // writeback
        put(34, &self.queues.to_le_bytes());
        if !self.device.is_read_only() {
            put(36, &ZEROES_SECTORS_MAX.to_le_bytes());
            put(40, &ZEROES_SEGMENTS_MAX.to_le_bytes());
            put(44, &8_u32.to_le_bytes()); // discard_sector_alignment: 4 KiB
            put(48, &ZEROES_SECTORS_MAX.to_le_bytes());
            put(52, &ZEROES_SEGMENTS_MAX.to_le_bytes());
            put(56, &[1]); // write_zeroes_may_unmap
        }
        config
    }

    /// The number of sectors of the disk. A plain file may end within the last one, which then reads as zeros after it.
    fn sectors(&self) -> u64 {
        self.device.size().div_ceil(SECTOR_SIZE)
    }

    /// Serves `request` as far as it goes without waiting. `bounce` is for its data.
    pub(crate) fn serve(
        &self,
        memory: &GuestMemory,
        chain: &Chain,
        request: &mut Request,
        bounce: &mut Vec<u8>,
        driver_flushes: bool,
    ) -> Step {
        let step = match request.kind {
            blk::VIRTIO_BLK_T_IN => self.read(memory, chain, request, bounce),
            blk::VIRTIO_BLK_T_OUT => self.write(memory, chain, request, bounce, driver_flushes),
            blk::VIRTIO_BLK_T_FLUSH => Ok(Step::Wait(Work::Flush)),
            blk::VIRTIO_BLK_T_GET_ID => self.write_id(memory, chain, request),
            blk::VIRTIO_BLK_T_DISCARD | blk::VIRTIO_BLK_T_WRITE_ZEROES => {
                self.zero(memory, chain, request, driver_flushes)
            }
            _ => Err(Status::Unsupported),
        };
        step.unwrap_or_else(|status| Step::Done(status, 0))
    }

    /// The bytes of the disk that a request is about.
    fn range(&self, sector: u64, len: u64) -> Result<ByteRange, Status> {
        let start = sector.checked_mul(SECTOR_SIZE).ok_or(Status::IoError)?;
        let range = ByteRange::new(start, len).ok_or(Status::IoError)?;
        let inside = range.end().div_ceil(SECTOR_SIZE) <= self.sectors();
        if inside && range.is_aligned(SECTOR_SIZE) { Ok(range) } else { Err(Status::IoError) }
    }

    fn read(
        &self,
        memory: &GuestMemory,
        chain: &Chain,
        request: &mut Request,
        bounce: &mut Vec<u8>,
    ) -> Result<Step, Status> {
        let range = self.range(request.sector, request.len)?;
        while request.done < request.len {
            let offset = range.offset() + request.done;
            let part = part(bounce, (range.end() - offset).min(READ_PART));
            match self.device.read_local_at(self.before_end(part, offset), offset) {
                Ok(()) => request.got(memory, chain, part).map_err(|NoMemory| Status::IoError)?,
                Err(error) if error.kind() == ErrorKind::Absent => {
                    let end = range.end().min(offset + WAIT_PART);
                    return Ok(Step::Wait(Work::Read(ByteRange::between(offset, end))));
                }
                Err(error) => return Err(self.failed("read", error)),
            }
        }
        // The used ring has 32 bits for it, however long the chain of a guest is.
        Ok(Step::Done(Status::Ok, saturating(request.len)))
    }

    /// `true` if a request is a read that the disk serves at once.
    pub(crate) fn is_small_read(&self, request: &Request) -> bool {
        request.kind == blk::VIRTIO_BLK_T_IN
            && (1..=READ_PART).contains(&request.len)
            && self.range(request.sector, request.len).is_ok()
    }

    /// Reads the bytes of several small reads, each into its buffer.
    pub(crate) fn read_together(&self, reads: Vec<(&Request, &mut Vec<u8>)>) -> Vec<Result<(), Error>> {
        let parts = reads.into_iter().map(|(request, bounce)| {
            let offset = request.sector.saturating_mul(SECTOR_SIZE);
            (self.before_end(part(bounce, request.len), offset), offset)
        });
        let mut parts: Vec<_> = parts.collect();
        match parts.is_empty() {
            true => Vec::new(),
            false => self.device.read_local_parts(&mut parts),
        }
    }

    /// The step of a small read whose bytes are in `bounce`, or that failed.
    pub(crate) fn after_read(
        &self,
        memory: &GuestMemory,
        chain: &Chain,
        request: &mut Request,
        bounce: &[u8],
        result: Result<(), Error>,
    ) -> Step {
        let len = to_usize(request.len);
        let read = match result {
            Ok(()) => request.got(memory, chain, &bounce[..len]).map_err(|NoMemory| Status::IoError),
            Err(error) if error.kind() == ErrorKind::Absent => {
                let start = request.sector.saturating_mul(SECTOR_SIZE);
                return Step::Wait(Work::Read(ByteRange::between(start, start + request.len)));
            }
            Err(error) => Err(self.failed("read", error)),
        };
        match read {
            Ok(()) => Step::Done(Status::Ok, saturating(request.len)),
            Err(status) => Step::Done(status, 0),
        }
    }

    /// `true` if a request is so much work for a processor that another one should do it beside the next request.
    pub(crate) fn is_work(&self, request: &Request) -> bool {
        request.kind == blk::VIRTIO_BLK_T_IN
            && (request.len >= COPYING_MIN || decodes_much(&*self.device, request.len))
    }

    /// Reads the range of a [`Work::Read`], however long it takes.
    pub(crate) fn read_waiting(&self, range: ByteRange) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; to_usize(range.len())];
        self.device.read_at(self.before_end(&mut bytes, range.offset()), range.offset())?;
        Ok(bytes)
    }

    /// The part of `buf` that the disk has bytes for; the rest becomes zeros.
    fn before_end<'a>(&self, buf: &'a mut [u8], offset: u64) -> &'a mut [u8] {
        let inside = to_usize(self.device.size().saturating_sub(offset));
        let (inside, after) = buf.split_at_mut(inside.min(buf.len()));
        after.fill(0);
        inside
    }

    fn write(
        &self,
        memory: &GuestMemory,
        chain: &Chain,
        request: &mut Request,
        bounce: &mut Vec<u8>,
        driver_flushes: bool,
    ) -> Result<Step, Status> {
        let range = self.writable_range(request.sector, request.len)?;
        while request.done < request.len {
            let offset = range.offset() + request.done;
            let part = part(bounce, (range.end() - offset).min(WRITE_PART));
            request.cursor.read(memory, &chain.readable, part).map_err(|NoMemory| Status::IoError)?;
            self.device.write_at(part, offset).map_err(|error| self.failed("write", error))?;
            request.done += part.len() as u64;
        }
        Ok(written(driver_flushes))
    }

    fn writable_range(&self, sector: u64, len: u64) -> Result<ByteRange, Status> {
        if self.device.is_read_only() {
            return Err(Status::IoError);
        }
        self.range(sector, len)
    }

    fn write_id(&self, memory: &GuestMemory, chain: &Chain, request: &mut Request) -> Result<Step, Status> {
        let len = self.id.len().min(to_usize(request.len));
        request.got(memory, chain, &self.id[..len]).map_err(|NoMemory| Status::IoError)?;
        Ok(Step::Done(Status::Ok, exact(len, "an id has 20 bytes")))
    }

    /// Serves discard and write-zeroes: for the disks here both give the space back, and the range reads as zeros
    /// after.
    fn zero(
        &self,
        memory: &GuestMemory,
        chain: &Chain,
        request: &mut Request,
        driver_flushes: bool,
    ) -> Result<Step, Status> {
        let mut buf = [0; ZEROES_SEGMENTS_MAX as usize * ZEROES_SEGMENT_LEN];
        let len = usize::try_from(request.len).map_err(|_| Status::IoError)?;
        let segments = buf.get_mut(..len).ok_or(Status::IoError)?;
        request.cursor.read(memory, &chain.readable, segments).map_err(|NoMemory| Status::IoError)?;
        let (segments, []) = segments.as_chunks() else { return Err(Status::IoError) };
        // Everything is checked before anything is done.
        let ranges = segments.iter().map(|segment| self.zero_range(request.kind, segment));
        for range in ranges.collect::<Result<Vec<_>, _>>()? {
            self.device.write_zeroes(range).map_err(|error| self.failed("write zeros", error))?;
        }
        Ok(written(driver_flushes))
    }

    fn zero_range(&self, kind: u32, segment: &[u8; ZEROES_SEGMENT_LEN]) -> Result<ByteRange, Status> {
        let [low, high, sectors, flags] = words(segment);
        let may_unmap = kind == blk::VIRTIO_BLK_T_WRITE_ZEROES;
        if flags & !u32::from(may_unmap) != 0 {
            return Err(Status::Unsupported);
        }
        if sectors > ZEROES_SECTORS_MAX {
            return Err(Status::IoError);
        }
        self.writable_range(u64::from(high) << 32 | u64::from(low), u64::from(sectors) * SECTOR_SIZE)
    }

    /// Logs that the disk failed a request; not each time, because a failing disk fails many.
    pub(crate) fn failed(&self, doing: &str, error: Error) -> Status {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures.is_power_of_two() {
            let error = error.about(&self.name);
            tracing::warn!(failures, "cannot {doing}, the guest gets an I/O error: {error}");
        }
        Status::IoError
    }
}

/// The step after a write that the disk has taken.
fn written(driver_flushes: bool) -> Step {
    if driver_flushes { Step::Done(Status::Ok, 0) } else { Step::Wait(Work::Flush) }
}

/// The first `len` bytes of a buffer that is kept.
fn part(bounce: &mut Vec<u8>, len: u64) -> &mut [u8] {
    let len = to_usize(len);
    if bounce.len() < len {
        bounce.resize(len, 0);
    }
    &mut bounce[..len]
}
