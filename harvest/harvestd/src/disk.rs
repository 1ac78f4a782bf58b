//! A vSSD as a block device.
//!
//! A read looks up and pins its flash blocks under a shared lock, then waits for its turn on the flash and reads
//! straight into the caller's buffer. It handles up to 64 pieces (contiguous bytes of one flash block) at a time,
//! without allocating memory. A write of part of a page reads the rest of the page first. A write is durable with the
//! next flush, which flushes the flash first and the journal after that. All flushes of the same time share one wait.
//!
//! No written data is kept back in memory: a page is programmed before its write returns. So a write of 4 KiB costs a
//! page of 16 KiB. For each byte written by such writes, 5.4 bytes are programmed if they are in order on a full disk
//! (collection included), and 25 if they are at random. For writes of whole pages it is 1.0 to 1.1 bytes in order and
//! 5.6 at random, with 7% to spare (`host::tests::cost`). A buffer that gathers neighbouring small writes would help
//! only a guest that writes in pieces smaller than a page, in order, without a cache of its own and without a flush
//! after each; and every read would have to look in two places.
//!
//! Pages that were lost, with a lease or because flash cannot be read any more, give an I/O error until they are
//! written whole or trimmed.

use crate::host::Host;
use crate::host::log::from_flash;
use crate::host::program::{Page, foreign};
use crate::host::volume::Volume;
use headstart_block::{
    BlockDevice, ByteRange, Error, ErrorKind, Extent, Result, SECTOR_SIZE, exact, to_usize,
};
use headstart_flash::VssdKind;
use headstart_flash::device::FlashBlock;
use headstart_flash::queue::FlashAccess;
use headstart_flash::vssd::{Piece, ReadPin};
use std::sync::Arc;

/// Pieces of a read, or pages of a write, that are on their way together.
const TOGETHER: usize = 64;

/// The longest hole that one call looks for, in bytes.
const LOOK: u64 = 64 << 20;

/// A vSSD's disk, as a block device. After the vSSD is deleted, every read, write and flush returns an error that says
/// so.
pub struct VssdDisk {
    host: Arc<Host>,
    volume: Arc<Volume>,
}

impl Host {
    /// Returns the disk of the vSSD named `name`.
    ///
    /// # Errors
    /// NotFound if there is no such vSSD; Invalid for an unsold one, which has no user; Cancelled if the host is being
    /// closed.
    pub fn disk(&self, name: &str) -> Result<Arc<dyn BlockDevice>> {
        let volume = self.named(name)?;
        if volume.kind == VssdKind::Unsold {
            let error = Error::invalid("it is unsold, and has no owner").about(format_args!("vSSD {name}"));
            return Err(error.remedy("delete it and create a regular one in its place"));
        }
        let host =
            self.me.upgrade().ok_or_else(|| Error::new(ErrorKind::Cancelled, "the host is being closed"))?;
        Ok(Arc::new(VssdDisk::new(host, volume)))
    }

    /// Returns the number of bytes that a vSSD stores at offsets from `size` on: the data that a resize to `size` would
    /// discard. Bytes are counted by whole flash pages, and lost pages count as stored.
    ///
    /// # Errors
    /// The errors of [`Self::disk`]; an error if the vSSD is deleted meanwhile.
    pub fn stored_beyond(&self, name: &str, size: u64) -> Result<u64> {
        let disk = self.disk(name)?;
        let (mut at, mut stored) = (size, 0);
        while at < disk.size() {
            let Extent { range, zero } = disk.extent_at(at)?;
            // It became smaller meanwhile.
            if range.is_empty() {
                break;
            }
            stored += if zero { 0 } else { range.len() };
            at = range.end();
        }
        Ok(stored)
    }
}

impl VssdDisk {
    fn new(host: Arc<Host>, volume: Arc<Volume>) -> Self {
        Self { host, volume }
    }

    fn page_size(&self) -> u64 {
        self.host.media.geometry().page_size.into()
    }

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        self.volume.check()?;
        let size = self.volume.size();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            let cause = format!("{len} bytes from {offset} on are beyond its {size}");
            return Err(Error::invalid(cause).about(format_args!("vSSD {}", self.volume.name)));
        }
        Ok(())
    }

    fn check_aligned(&self, offset: u64, len: u64) -> Result<()> {
        if !offset.is_multiple_of(SECTOR_SIZE) || !len.is_multiple_of(SECTOR_SIZE) {
            let error = Error::invalid("a write is not of whole sectors");
            return Err(error.about(format_args!("vSSD {}", self.volume.name)));
        }
        self.check(offset, len)
    }

    /// The pages that contain the given bytes.
    fn pages(&self, offset: u64, len: u64) -> (u32, u32) {
        let page =
            |at: u64| exact::<u32>(at, "the bytes are within the disk, whose pages have numbers of 32 bits");
        (page(offset / self.page_size()), page((offset + len).div_ceil(self.page_size())))
    }

    fn lost(&self) -> Error {
        let cause = "what was here was lost, with a lease that was taken back or because flash cannot be read any more";
        Error::new(ErrorKind::Io, cause)
            .about(format_args!("vSSD {}", self.volume.name))
            .remedy("trim the disk or write whole flash pages again, then restore the lost data")
    }

    /// Reads the first bytes of a range; returns their number.
    fn read_some(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let (volume, host) = (&self.volume, &self.host);
        let (first, end) = self.pages(offset, buf.len() as u64);
        let mut spans = [(0, None); TOGETHER];
        let mut bundle = [(FlashBlock(0), FlashAccess::Erase); TOGETHER];
        let mut pins: [Option<ReadPin<'_>>; TOGETHER] = [const { None }; TOGETHER];
        let (mut count, mut reads) = (0, 0);
        {
            let inner = volume.read();
            volume.check()?;
            if inner.vssd.is_lost(first, end - first) {
                return Err(self.lost());
            }
            let pieces = inner.vssd.read(offset, buf.len() as u64)?;
            for Piece { length, from } in pieces.take(TOGETHER) {
                spans[count] = (to_usize(length), from);
                count += 1;
                if let Some((block, at)) = from {
                    let len = exact(length, "a piece is within a page");
                    pins[reads] = Some(volume.pins().pin(block));
                    bundle[reads] = (block, FlashAccess::Read { offset: at, len });
                    reads += 1;
                }
            }
        }
        let bundle = &bundle[..reads];
        if !bundle.iter().all(|(block, _)| host.custody.may_touch(volume.id, *block)) {
            return Err(foreign(volume));
        }
        let together = host.media.is_emulated() || !volume.class().is_harvest();
        let permit = together.then(|| host.media.queue().enter(volume.class(), bundle));
        let (mut done, mut read) = (0, 0);
        for (length, from) in &spans[..count] {
            let part = &mut buf[done..done + length];
            match from {
                Some((block, at)) => {
                    let one = &bundle[read..=read];
                    let _permit = (!together).then(|| host.media.queue().enter(volume.class(), one));
                    host.media
                        .read(*block, *at, part)
                        .map_err(|error| from_flash(error, "flash cannot be read"))?;
                    read += 1;
                }
                None => part.fill(0),
            }
            done += length;
        }
        drop(permit);
        Ok(done)
    }

    fn read_all(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            done += self.read_some(&mut buf[done..], offset + done as u64)?;
        }
        Ok(())
    }

    /// Writes at most [`TOGETHER`] pages.
    fn write_some(&self, data: &[u8], offset: u64) -> Result<()> {
        let size = self.page_size();
        let (first, end) = self.pages(offset, data.len() as u64);
        self.host.help_evacuate(&self.volume);
        let _held = self.volume.ranges.enter(first..end);
        self.volume.check()?;
        // The parts of pages at both ends.
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        let mut pages: Vec<Page<'_>> = Vec::with_capacity(TOGETHER);
        let mut rest = data;
        let mut whole = first;
        if !offset.is_multiple_of(size) || (data.len() as u64) < size {
            let within = offset % size;
            let len = to_usize(size - within).min(rest.len());
            let (part, more) = rest.split_at(len);
            head = self.page_with(first, within, part)?;
            (rest, whole) = (more, first + 1);
        }
        let page_bytes = to_usize(size);
        let mut chunks = rest.chunks_exact(page_bytes);
        let middle: Vec<Page<'_>> = (whole..).zip(chunks.by_ref()).collect();
        let last = whole + exact::<u32>(middle.len(), "the bytes are within the disk");
        if !chunks.remainder().is_empty() {
            tail = self.page_with(last, 0, chunks.remainder())?;
        }
        if !head.is_empty() {
            pages.push((first, &head));
        }
        pages.extend(middle);
        if !tail.is_empty() {
            pages.push((last, &tail));
        }
        self.host.write_pages(&self.volume, &pages)
    }

    /// The present content of a page, with these bytes in it.
    fn page_with(&self, page: u32, within: u64, bytes: &[u8]) -> Result<Vec<u8>> {
        let size = self.page_size();
        let mut buf = vec![0; to_usize(size)];
        self.read_all(&mut buf, u64::from(page) * size)?;
        let at = to_usize(within);
        buf[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(buf)
    }

    /// Makes part of a page zeros.
    fn zero_part(&self, range: ByteRange) -> Result<()> {
        let (page, _) = self.pages(range.offset(), range.len());
        let _held = self.volume.ranges.enter(page..page + 1);
        let located = self.volume.read().vssd.locate(page)?;
        if located.is_none() && !self.volume.read().vssd.is_lost(page, 1) {
            return Ok(());
        }
        let zeros = vec![0; to_usize(range.len())];
        let bytes = self.page_with(page, range.offset() % self.page_size(), &zeros)?;
        self.host.write_pages(&self.volume, &[(page, &bytes)])
    }

    fn trim(&self, first: u32, end: u32) -> Result<()> {
        let _held = self.volume.ranges.enter(first..end);
        self.host.log.may_tidy()?;
        let mut inner = self.volume.write();
        self.volume.check()?;
        match inner.vssd.trim(first, end - first)? {
            Some(change) => self.host.log.change(self.volume.id, &mut inner, &change),
            None => Ok(()),
        }
    }
}

impl BlockDevice for VssdDisk {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.volume.meter.read(buf.len() as u64);
        self.read_all(buf, offset)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn resize(&self, size: u64) -> Result<()> {
        if size < self.volume.size() {
            let error = Error::invalid("a disk in use is not made smaller from here");
            return Err(error.about(format_args!("vSSD {}", self.volume.name)));
        }
        self.host.resize_volume(&self.volume, size)
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        self.check(offset, 1)?;
        let inner = self.volume.read();
        let len = self.volume.size().saturating_sub(offset).min(LOOK);
        let Some(Piece { length, from }) = inner.vssd.read(offset, len)?.next() else {
            return Ok(Extent { range: ByteRange::between(offset, offset), zero: false });
        };
        let (first, end) = self.pages(offset, length);
        let zero = from.is_none() && !inner.vssd.is_lost(first, end - first);
        Ok(Extent { range: ByteRange::between(offset, offset + length), zero })
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.check_aligned(offset, data.len() as u64)?;
        self.volume.meter.written(data.len() as u64);
        let (mut rest, mut at) = (data, offset);
        let most = self.page_size() * TOGETHER as u64;
        while !rest.is_empty() {
            let len = to_usize(most - at % self.page_size()).min(rest.len());
            let (part, more) = rest.split_at(len);
            self.write_some(part, at)?;
            (rest, at) = (more, at + len as u64);
        }
        self.host.collect_if_short(&self.volume);
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange) -> Result<()> {
        self.check_aligned(range.offset(), range.len())?;
        if range.is_empty() {
            return Ok(());
        }
        let size = self.page_size();
        let (start, end) = (range.offset().next_multiple_of(size), range.end() / size * size);
        if start >= end {
            for part in range.parts(size) {
                if part.is_aligned(size) { self.trim_bytes(part)? } else { self.zero_part(part)? }
            }
            return Ok(());
        }
        for part in [ByteRange::between(range.offset(), start), ByteRange::between(end, range.end())] {
            if !part.is_empty() {
                self.zero_part(part)?;
            }
        }
        self.trim_bytes(ByteRange::between(start, end))
    }

    fn flush(&self) -> Result<()> {
        self.volume.check()?;
        self.volume.flush(&self.host.log, &self.host.media)
    }
}

impl VssdDisk {
    fn trim_bytes(&self, range: ByteRange) -> Result<()> {
        let (first, end) = self.pages(range.offset(), range.len());
        self.trim(first, end)
    }
}
