//! Random access to the content of a ZFile.
//!
//! # The way of one read
//! The numbers of the frames of a range follow by division, and the index has their places. If the source is in memory,
//! the compressed bytes are used in place. From any other source, the compressed bytes of all frames of the range are
//! read together, at most [`FETCH_MAX`] at a time, into a buffer of the thread. Then each frame is decompressed and its
//! checksum is compared. A frame of which all bytes are wanted is decompressed into the caller's buffer. A frame of
//! which a part is wanted is decompressed into a second buffer of the thread, and the part is copied from there.
//!
//! # Small reads
//! Each thread remembers the last frame of which it wanted a part, so that small sequential reads decompress the frame
//! once. In lz4 files with checksums, the first small read decompresses only as far as it needs, which makes random
//! reads of 4 KiB 1.3 times as quick in 16 KiB frames and 1.55 times in 64 KiB frames. If the thread then reads more of
//! the same frame, all of it is decompressed. So reading a frame in small steps, one after the other, takes at most two
//! decompressions.
//!
//! # What is promised
//! If frames have checksums, a read gives the bytes that were packed, or an error that names the damaged frame. Without
//! checksums, a read only checks that each frame decompresses to exactly its length, so a damaged frame may give other
//! bytes. Reads take no lock. After the first frame that a thread reads, they allocate only when the thread's buffer
//! for compressed bytes has to grow.

use crate::checksum::{self, raw};
use crate::codec::Codec;
use crate::decoded::Decoded;
use crate::format::{ENTRY_SIZE, FRAME_CRC_SIZE, HEADER_SIZE, Part, Place, ZFileInfo, damaged};
use crate::index::{Index, frame_len_max};
use crate::scratch::{self, RecentFrame, Scratch};
use headstart_block::{ByteRange, Error, ReadAt, Result, to_usize};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of compressed bytes that one read of the source fetches: 256 KiB, more than any single frame
/// takes. Each thread that reads from a source not in memory keeps a buffer of up to that length. For sources in the
/// page cache, all values from 64 KiB to 1 MiB are equally fast (within 1 %).
pub const FETCH_MAX: u64 = 256 << 10;

/// About how many bytes [`ZFileReader::verify`] decompresses at a time.
const VERIFY_STEP: usize = 1 << 20;

/// The longest page of a source's memory, in bytes: frames that may share a page are reported together.
const PAGE_MAX: u64 = 4096;

/// Ids for readers, so that a thread's recent frame is never taken for another reader's.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A ZFile opened for reading. Its [`ReadAt`] methods read the uncompressed content.
#[derive(Debug)]
pub struct ZFileReader<S> {
    source: S,
    info: ZFileInfo,
    index: Index,
    /// Binary logarithm of the frame size, if it has one.
    frame_shift: Option<u32>,
    id: u64,
    /// The content that was given out, if the source wants to know.
    decoded: Option<Decoded>,
}

impl<S: ReadAt> ZFileReader<S> {
    /// Opens a ZFile that fills the whole of `source`: reads and checks the header, the index and, if it is
    /// needed, the trailer.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if header, index or trailer are damaged, contradict each other or are
    /// not those of a ZFile; [`headstart_block::ErrorKind::Unsupported`] for an unknown codec or frame size
    /// and for dictionaries; errors of the source.
    pub fn open(source: S) -> Result<Self> {
        let info = read_ends(&source)?;
        let index = read_index(&source, &info)?;
        let frame_shift = info.frame_size.is_power_of_two().then(|| info.frame_size.trailing_zeros());
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let decoded = source.wants_decoded().then(|| Decoded::new(info.original_size));
        if decoded.is_some() {
            // The index is in memory.
            source.note_decoded(ByteRange::between(info.index_offset, source.len()));
        }
        Ok(Self { source, info, index, frame_shift, id, decoded })
    }

    /// Describes the ZFile: codec, sizes and index.
    pub fn info(&self) -> &ZFileInfo {
        &self.info
    }

    /// The source of the compressed bytes: the whole ZFile as stored.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Decompresses every frame, and checks its length and, if it has one, its checksum.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] at the first damaged frame, which the message names; errors of
    /// the source.
    pub fn verify(&self) -> Result<()> {
        self.verify_with(&mut |_| Ok(()))
    }

    /// Checks every frame as [`ZFileReader::verify`] does. `checked` is called after each step of up to 1 MiB
    /// with the number of content bytes that were checked in it; an error from it ends the check.
    ///
    /// # Errors
    /// Those of [`ZFileReader::verify`], and the error of `checked`.
    pub fn verify_with(&self, checked: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        // Whole frames, so that each is read from the source and none remembered.
        let frame_size = self.info.frame_size as usize;
        let mut content = vec![0; VERIFY_STEP / frame_size * frame_size];
        let mut offset = 0;
        while offset < self.info.original_size {
            let rest = to_usize(self.info.original_size - offset);
            let filled = content.len().min(rest);
            self.read_at(&mut content[..filled], offset)?;
            offset += filled as u64;
            checked(filled as u64)?;
        }
        Ok(())
    }

    /// Fills `buf` from `offset` on; the range is within the content.
    fn read_range(&self, scratch: &mut Scratch, mut buf: &mut [u8], mut offset: u64) -> Result<()> {
        let frame_size = u64::from(self.info.frame_size);
        while !buf.is_empty() {
            let (frame, skip) = self.frame_at(offset);
            let recent = scratch.recent.valid(self.id, frame);
            let len = self.frame_len(frame);
            let wanted = (len - skip).min(buf.len());
            // A whole frame always comes from the source: `verify` relies on it.
            if skip + wanted <= recent && wanted < len {
                let (part, rest) = buf.split_at_mut(wanted);
                part.copy_from_slice(&scratch.recent.bytes()[skip..skip + wanted]);
                (buf, offset) = (rest, offset + wanted as u64);
                continue;
            }
            let (last, _) = self.frame_at(offset + buf.len() as u64 - 1);
            let run = match self.source.as_slice() {
                Some(blob) => {
                    let place = self.index.place(frame..last + 1);
                    let stored = slice(blob, &place)?;
                    self.read_run(scratch, frame..last + 1, stored, buf, skip)?;
                    return Ok(());
                }
                None => self.index.run(frame..last + 1, FETCH_MAX),
            };
            let end = (run.end as u64 * frame_size).min(self.info.original_size);
            let len = to_usize(end - offset).min(buf.len());
            let (part, rest) = buf.split_at_mut(len);
            self.fetch_run(scratch, run, part, skip)?;
            (buf, offset) = (rest, offset + len as u64);
        }
        Ok(())
    }

    /// Fetches the frames of `run` from a source that is not in memory, then goes on as [`Self::read_run`].
    fn fetch_run(&self, scratch: &mut Scratch, run: Range<usize>, buf: &mut [u8], skip: usize) -> Result<()> {
        let place = self.index.place(run.clone());
        // At most FETCH_MAX or one frame.
        let len = to_usize(place.end - place.start);
        let mut fetched = std::mem::take(&mut scratch.fetched);
        let stored = fetched.first(len);
        let result = self
            .source
            .read_at(stored, place.start)
            .and_then(|()| self.read_run(scratch, run, stored, buf, skip));
        scratch.fetched = fetched;
        result
    }

    /// Fills `buf` from the frames of `run`, leaving out the first `skip` bytes of the first. `stored` has
    /// the frames as the blob stores them.
    fn read_run(
        &self,
        scratch: &mut Scratch,
        run: Range<usize>,
        stored: &[u8],
        mut buf: &mut [u8],
        mut skip: usize,
    ) -> Result<()> {
        let start = self.index.start(run.start);
        for frame in run {
            let place = self.index.place(frame..frame + 1);
            let bytes = slice(stored, &(place.start - start..place.end - start))?;
            let len = self.frame_len(frame);
            let (part, rest) = buf.split_at_mut((len - skip).min(buf.len()));
            if part.len() == len {
                self.read_frame(scratch, frame, bytes, part)?;
            } else {
                self.read_part(scratch, frame, bytes, part, skip)?;
            }
            (buf, skip) = (rest, 0);
        }
        Ok(())
    }

    /// Decompresses a frame that is wanted whole.
    fn read_frame(&self, scratch: &mut Scratch, frame: usize, stored: &[u8], out: &mut [u8]) -> Result<()> {
        self.unpack(stored, |packed| scratch.decompressor.decompress(self.info.codec, packed, out))
            .map_err(|error| self.name_frame(frame, error))
    }

    /// Copies the part `[skip, skip + out.len())` of a frame, which becomes the thread's recent frame.
    fn read_part(
        &self,
        scratch: &mut Scratch,
        frame: usize,
        stored: &[u8],
        out: &mut [u8],
        skip: usize,
    ) -> Result<()> {
        let Scratch { decompressor, recent, .. } = scratch;
        let len = self.part_len(recent, frame, skip + out.len());
        let fill = |bytes: &mut [u8]| {
            self.unpack(stored, |packed| {
                if bytes.len() < self.frame_len(frame) {
                    decompressor.decompress_lz4_start(packed, bytes)
                } else {
                    decompressor.decompress(self.info.codec, packed, bytes)
                }
            })
        };
        let bytes =
            recent.replace(self.id, frame, len, fill).map_err(|error| self.name_frame(frame, error))?;
        out.copy_from_slice(&bytes[skip..skip + out.len()]);
        Ok(())
    }

    /// Decompresses a frame as stored and compares its checksum.
    ///
    /// The checksum comes second: decompressing brings the bytes into the cache while it works on them, and
    /// is safe on any bytes.
    fn unpack(&self, stored: &[u8], decompress: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        if !self.info.crc {
            return decompress(stored);
        }
        let wrong = || Error::corrupt("fails its checksum");
        let (packed, crc) = stored.split_last_chunk::<FRAME_CRC_SIZE>().ok_or_else(wrong)?;
        let result = decompress(packed);
        if u32::from_le_bytes(*crc) != checksum::of_frame(packed) {
            return Err(wrong());
        }
        result
    }

    /// The number of bytes of a frame to decompress when its first `wanted` bytes are needed.
    fn part_len(&self, recent: &RecentFrame, frame: usize, wanted: usize) -> usize {
        let again = recent.valid(self.id, frame) > 0;
        // Without a checksum only the whole frame shows whether it is sound.
        if self.info.codec == Codec::Lz4 && self.info.crc && !again { wanted } else { self.frame_len(frame) }
    }

    /// Marks content as given out, and tells the source of the frames of which now all was.
    fn note_read(&self, decoded: &Decoded, content: Range<u64>) {
        if content.is_empty() || !decoded.mark(content.clone()) {
            return;
        }
        let (first, last) = (self.frame_at(content.start).0, self.frame_at(content.end - 1).0);
        let mut start = first;
        for frame in first..=last + 1 {
            if frame <= last && self.is_decoded(decoded, frame) {
                continue;
            }
            if start < frame {
                self.tell_decoded(decoded, start..frame);
            }
            start = frame + 1;
        }
    }

    fn is_decoded(&self, decoded: &Decoded, frame: usize) -> bool {
        let start = frame as u64 * u64::from(self.info.frame_size);
        decoded.has(start..start + self.frame_len(frame) as u64)
    }

    /// Tells the source of frames that are decoded, together with decoded ones beside them that may share a page.
    fn tell_decoded(&self, decoded: &Decoded, run: Range<usize>) {
        let place = self.index.place(run.clone());
        let (mut first, mut end) = (run.start, run.end);
        while first > 0
            && place.start - self.index.start(first) < PAGE_MAX
            && self.is_decoded(decoded, first - 1)
        {
            first -= 1;
        }
        let frames = self.index.frames();
        while end < frames && self.index.start(end) - place.end < PAGE_MAX && self.is_decoded(decoded, end) {
            end += 1;
        }
        // Header and trailer, at the two ends, were needed once.
        let start = if first == 0 { 0 } else { self.index.start(first) };
        let end = if end == frames { self.source.len() } else { self.index.start(end) };
        self.source.note_decoded(ByteRange::between(start, end));
    }

    #[cold]
    fn name_frame(&self, frame: usize, error: Error) -> Error {
        let place = self.index.place(frame..frame + 1);
        let cause = format!("frame {frame} ({} bytes at offset {})", place.end - place.start, place.start);
        Error::new(error.kind(), cause).caused_by(error).remedy("it is damaged: fetch or copy it again")
    }

    /// The frame that holds byte `offset`, and the byte's place in it.
    fn frame_at(&self, offset: u64) -> (usize, usize) {
        let frame_size = u64::from(self.info.frame_size);
        let frame = match self.frame_shift {
            Some(shift) => offset >> shift,
            None => offset / frame_size,
        };
        // Frame numbers are below FRAMES_MAX, remainders below FRAME_SIZE_MAX.
        #[expect(clippy::cast_possible_truncation, reason = "both fit 32 bits")]
        (frame as usize, (offset - frame * frame_size) as usize)
    }

    /// Bytes of content in a frame.
    fn frame_len(&self, frame: usize) -> usize {
        let frame_size = u64::from(self.info.frame_size);
        let rest = self.info.original_size - frame as u64 * frame_size;
        #[expect(clippy::cast_possible_truncation, reason = "at most FRAME_SIZE_MAX")]
        (rest.min(frame_size) as usize)
    }
}

impl<S: ReadAt> ReadAt for ZFileReader<S> {
    fn len(&self) -> u64 {
        self.info.original_size
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.info.original_size) {
            let (wanted, size) = (buf.len(), self.info.original_size);
            return Err(Error::corrupt(format!(
                "needs {wanted} bytes at offset {offset}, but the ZFile's content has only {size} in all"
            )));
        }
        scratch::with(|scratch| self.read_range(scratch, buf, offset))?;
        if let Some(decoded) = &self.decoded {
            self.note_read(decoded, offset..offset + buf.len() as u64);
        }
        Ok(())
    }

    fn decode_unit(&self) -> u64 {
        self.info.frame_size.into()
    }

    fn stored_range(&self, range: ByteRange) -> ByteRange {
        let end = range.end().min(self.info.original_size);
        let frames = if range.offset() < end {
            self.frame_at(range.offset()).0..self.frame_at(end - 1).0 + 1
        } else {
            0..0
        };
        let place = self.index.place(frames);
        self.source.stored_range(ByteRange::between(place.start, place.end))
    }
}

/// Reads header and, where it is needed or there, trailer; checks all their fields.
fn read_ends(source: &impl ReadAt) -> Result<ZFileInfo> {
    let size = source.len();
    let header_size = HEADER_SIZE as u64;
    if size < header_size {
        return Err(Error::corrupt(format!("has only {size} bytes, too few for a ZFile header"))
            .remedy("it is truncated: fetch or copy it again"));
    }
    let mut bytes = [0; HEADER_SIZE];
    source.read_at(&mut bytes, 0)?;
    let header = Part::parse(&bytes, Place::Header)?;
    if header.is_index_valid() {
        return header.check(size, size, true);
    }
    if size < 2 * header_size {
        return Err(Error::corrupt(format!("has only {size} bytes, too few for a ZFile header and trailer"))
            .remedy("it is truncated: fetch or copy it again"));
    }
    source.read_at(&mut bytes, size - header_size)?;
    let trailer = Part::parse(&bytes, Place::Trailer)?;
    if header.frame_form() != trailer.frame_form() {
        return Err(damaged("header and trailer do not agree on codec, frame size or checksums".to_owned()));
    }
    trailer.check(size, size - header_size, false)
}

/// Reads the index; checks its checksum, each entry, and that the frames end where the index starts.
fn read_index(source: &impl ReadAt, info: &ZFileInfo) -> Result<Index> {
    const READ_MAX: usize = 64 << 10;
    // `info` was checked: the index is within the source.
    let frames = usize::try_from(info.frames).map_err(|_| Error::unsupported("has too many frames"))?;
    let len_max = frame_len_max(info.frame_size);
    // At least one byte, and the checksum.
    let len_min = if info.crc { 5 } else { 1 };
    let mut index = Index::with_capacity(frames, HEADER_SIZE as u64);
    let mut crc = 0;
    let mut bytes = vec![0; READ_MAX.min(frames * ENTRY_SIZE)];
    let mut offset = info.index_offset;
    while index.frames() < frames {
        let read_len = bytes.len().min((frames - index.frames()) * ENTRY_SIZE);
        let entries = &mut bytes[..read_len];
        source.read_at(entries, offset)?;
        offset += entries.len() as u64;
        crc = raw(crc, entries);
        for entry in entries.chunks_exact(ENTRY_SIZE) {
            let len = u32::from_le_bytes(std::array::from_fn(|i| entry[i]));
            if !(len_min..=len_max).contains(&len) {
                return Err(damaged(format!(
                    "index says that frame {} of {} bytes takes {len} compressed",
                    index.frames(),
                    info.frame_size
                )));
            }
            index.push(len)?;
        }
    }
    if info.digest && crc != info.index_crc {
        return Err(damaged("index fails its checksum".to_owned()));
    }
    if index.end() != info.index_offset {
        return Err(damaged(format!(
            "frames end at offset {} by the index, but the index starts at {}",
            index.end(),
            info.index_offset
        )));
    }
    Ok(index)
}

/// The bytes `place` of `bytes`.
fn slice<'a>(bytes: &'a [u8], place: &Range<u64>) -> Result<&'a [u8]> {
    let range = usize::try_from(place.start).ok().zip(usize::try_from(place.end).ok());
    range
        .and_then(|(start, end)| bytes.get(start..end))
        .ok_or_else(|| damaged(format!("ends before offset {}", place.end)))
}
