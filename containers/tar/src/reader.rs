//! The stream of entries and their content.
//!
//! A reader is between blocks, at a place in an entry's content, or at its end. The next entry is behind the content
//! that was not read and the padding of the content to 512 bytes. Extended headers are read whole into a buffer, which
//! is used again; header blocks are parsed where they are; content goes from the input into the caller's buffer, by way
//! of the reader's own buffer for short reads only.

use crate::entry::{TarEntry, TarKind};
use crate::header::{BLOCK, HeaderFormat, TarHeader, format_of};
use crate::limits::{TarLimits, check, entry_name};
use crate::merge::{Extended, MapPlace, Merged};
use crate::number::{decimal, until_nul};
use crate::pax::PaxHeader;
use crate::sparse::SparseMap;
use headstart_block::{Error, Result, exact, to_usize};
use std::io::{self, BufRead as _, BufReader, Read};

/// The size of the buffer for headers and short reads, in bytes: a few dozen small entries of a layer.
const BUFFER: usize = 32 << 10;

/// The progress of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    Reading,
    /// The archive's end was read.
    Ended,
    /// An error was returned: the place in the stream is unknown.
    Failed,
}

/// A reader of the entries of a tar archive, from a stream; see the [crate] for the formats.
#[derive(Debug)]
pub struct TarReader<R> {
    input: BufReader<R>,
    limits: TarLimits,
    state: ReaderState,
    position: u64,
    content_left: u64,
    /// Bytes between the content and the next header: less than a block.
    padding: u64,
    /// The size that the last entry, a hard link, gives, rounded up to blocks; 0 for other entries.
    link_content: u64,
    entries: u64,
    total: u64,
    /// The path of the last entry, for messages.
    path: Vec<u8>,
    /// The extended header or the map that is being read.
    extended: Vec<u8>,
}

impl<R: Read> TarReader<R> {
    /// Makes a reader of the archive that `input` starts with. Reads nothing yet.
    pub fn new(input: R, limits: TarLimits) -> Self {
        Self {
            input: BufReader::with_capacity(BUFFER, input),
            limits,
            state: ReaderState::Reading,
            position: 0,
            content_left: 0,
            padding: 0,
            link_content: 0,
            entries: 0,
            total: 0,
            path: Vec::new(),
            extended: Vec::new(),
        }
    }

    /// Returns the next entry, after it skipped the content of the entry before that was not read. `None` at the end of
    /// the archive, and from then on.
    ///
    /// # Errors
    /// Corrupt if the archive is damaged or cut, Unsupported if it has what this reader or a limit refuses; errors of
    /// the input; Invalid after any error of this reader.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>> {
        match self.state {
            ReaderState::Ended => return Ok(None),
            ReaderState::Failed => return Err(after_error()),
            ReaderState::Reading => {}
        }
        let result = self.advance();
        self.state = match &result {
            Ok(Some(_)) => ReaderState::Reading,
            Ok(None) => ReaderState::Ended,
            Err(_) => ReaderState::Failed,
        };
        result
    }

    /// Reads stored bytes of the content of the last entry into `buf`, as many as the input has ready, and returns
    /// their number, which is 0 only at the end of the content (or for an empty `buf`). A sparse file's holes are
    /// not stored.
    ///
    /// # Errors
    /// Corrupt if the input ends inside the content; errors of the input; Invalid after any error of this reader.
    pub fn read_content(&mut self, buf: &mut [u8]) -> Result<usize> {
        if self.state == ReaderState::Failed {
            return Err(after_error());
        }
        let wanted = to_usize(self.content_left.min(buf.len() as u64));
        let Some(buf) = buf.get_mut(..wanted).filter(|buf| !buf.is_empty()) else { return Ok(0) };
        let result = uninterrupted(|| self.input.read(buf)).and_then(|n| match n {
            0 => Err(self.cut()),
            n => Ok(n),
        });
        match &result {
            Ok(n) => self.passed(*n as u64),
            Err(_) => self.state = ReaderState::Failed,
        }
        result
    }

    /// Reads the padding behind the last entry's content, all of which was read. `true` if the padding is there and has
    /// zeros only, as it should, or if there is none.
    ///
    /// # Errors
    /// Errors of the input; Invalid after any error of this reader.
    pub fn padding_is_zero(&mut self) -> Result<bool> {
        if self.state == ReaderState::Failed {
            return Err(after_error());
        }
        if self.content_left > 0 {
            return Ok(false);
        }
        let mut is_zero = true;
        while self.padding > 0 {
            let wanted = to_usize(self.padding);
            let ready = uninterrupted(|| {
                let ready = self.input.fill_buf()?;
                let ready = &ready[..ready.len().min(wanted)];
                is_zero &= ready.iter().all(|byte| *byte == 0);
                Ok(ready.len())
            });
            let ready = ready.inspect_err(|_| self.state = ReaderState::Failed)?;
            if ready == 0 {
                return Ok(false);
            }
            self.input.consume(ready);
            self.passed(ready as u64);
        }
        Ok(is_zero)
    }

    /// The number of stored bytes of the last entry's content that were not read yet.
    #[must_use]
    pub fn content_left(&self) -> u64 {
        self.content_left
    }

    /// The offset in the archive of the next byte.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads the entries that are left and the bytes behind the archive, and returns the input, which is then at its
    /// end: a digest of all that was read from it is that of the whole stream.
    ///
    /// # Errors
    /// As [`next_entry`](Self::next_entry); Unsupported if there are more than [`TarLimits::trailing_bytes`] behind the
    /// archive.
    pub fn finish(mut self) -> Result<R> {
        while self.next_entry()?.is_some() {}
        let mut trailing = 0;
        loop {
            let n = self.fill()?;
            if n == 0 {
                return Ok(self.input.into_inner());
            }
            trailing += n as u64;
            check(
                trailing,
                self.limits.trailing_bytes,
                "trailing_bytes",
                "or more bytes behind the archive",
            )?;
            self.input.consume(n);
        }
    }

    fn advance(&mut self) -> Result<Option<TarEntry>> {
        let mut extended = Extended::default();
        loop {
            let mut block = [0; BLOCK];
            let Some(format) = self.read_header(&mut block)? else { return Ok(None) };
            let offset = self.position - BLOCK as u64;
            let header = TarHeader::parse(&block, format)
                .map_err(|e| e.about(entry_name(until_nul(&block[..100]))))?;
            match header.typeflag {
                b'x' => extended.pax = self.read_pax(&header)?,
                b'g' => {
                    self.read_pax(&header)?;
                    extended = Extended::default();
                }
                b'L' => extended.long_path = until_nul(self.read_extended(&header)?).to_vec(),
                b'K' => extended.long_link = until_nul(self.read_extended(&header)?).to_vec(),
                _ => return self.entry(&block, &header, extended, offset).map(Some),
            }
        }
    }

    /// Reads the next header block, behind what is left of the last entry, and returns its format; `None` at the end of
    /// the archive.
    fn read_header(&mut self, block: &mut [u8; BLOCK]) -> Result<Option<HeaderFormat>> {
        if self.skip(self.content_left)? > 0 {
            return Err(self.cut());
        }
        let link_content = std::mem::take(&mut self.link_content);
        if self.skip(self.padding)? > 0 || !self.read_block_or_end(block)? {
            return Ok(None);
        }
        if block.iter().all(|byte| *byte == 0) {
            if !self.read_block_or_end(block)? || block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            return Err(self.bad_header("follows a single block of zeros"));
        }
        let mut format = format_of(block);
        if format.is_none() && link_content > 0 {
            // The link's content, of which this is the first block. Go would fail here.
            if self.skip(link_content - BLOCK as u64)? > 0 {
                return Err(self.cut());
            }
            if !self.read_block_or_end(block)? || block.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            format = format_of(block);
        }
        format.map(Some).ok_or_else(|| self.bad_header("is not a tar header: its checksum is wrong"))
    }

    /// Makes the last entry's content `size` bytes long, from the next byte on.
    fn start_content(&mut self, size: u64) {
        self.content_left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn read_pax(&mut self, header: &TarHeader<'_>) -> Result<PaxHeader> {
        let name = header.path();
        PaxHeader::parse(self.read_extended(header)?).map_err(|e| e.about(entry_name(&name)))
    }

    /// Reads the content of an extended header.
    fn read_extended(&mut self, header: &TarHeader<'_>) -> Result<&[u8]> {
        let named = |e: Error| e.about(entry_name(&header.path()));
        let size = u64::try_from(header.size).map_err(|_| named(Error::corrupt("has a negative size")))?;
        check(size, self.limits.extended_bytes, "extended_bytes", "bytes of extended header")
            .map_err(named)?;
        self.path = header.path();
        self.start_content(size);
        self.extended.clear();
        (&mut self.input).take(size).read_to_end(&mut self.extended)?;
        self.passed(self.extended.len() as u64);
        if self.content_left > 0 { Err(self.cut()) } else { Ok(&self.extended) }
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        header: &TarHeader<'_>,
        extended: Extended,
        offset: u64,
    ) -> Result<TarEntry> {
        let Merged { mut entry, declared, map } = Merged::new(block, header, extended, &self.limits)?;
        self.path.clone_from(&entry.path);
        entry.header_offset = offset;
        self.open(block, &mut entry, declared, map).map_err(|e| e.about(entry_name(&self.path)))?;
        Ok(entry)
    }

    /// Starts the content of `entry`: reads the map of a sparse file and applies the limits.
    fn open(
        &mut self,
        block: &[u8; BLOCK],
        entry: &mut TarEntry,
        declared: u64,
        map: Option<MapPlace>,
    ) -> Result<()> {
        self.entries += 1;
        check(self.entries, self.limits.entries, "entries", "or more entries up to it")?;
        check(entry.size, self.limits.file_bytes, "file_bytes", "bytes")?;
        self.total = self.total.saturating_add(entry.size);
        check(self.total, self.limits.total_bytes, "total_bytes", "bytes in all files up to it")?;
        if entry.kind == TarKind::HardLink {
            self.link_content = declared.next_multiple_of(BLOCK as u64);
        }
        let stored = if entry.kind.has_content() { declared } else { 0 };
        let mut extents = SparseMap::new(entry.size, self.limits.sparse_extents);
        match &map {
            None => self.start_content(stored),
            Some(MapPlace::Header) => {
                self.read_old_map(block, &mut extents)?;
                self.start_content(stored);
            }
            Some(MapPlace::Records(records)) => {
                records.read_map(&mut extents)?;
                self.start_content(stored);
            }
            Some(MapPlace::Content) => {
                self.start_content(stored);
                self.read_map_in_content(&mut extents)?;
            }
        }
        entry.content_offset = self.position;
        entry.stored_size = self.content_left;
        entry.sparse = map.map(|_| extents.finish(entry.stored_size)).transpose()?;
        Ok(())
    }

    /// Reads the old map of a sparse file: the end of the header and the blocks that follow.
    fn read_old_map(&mut self, header: &[u8; BLOCK], extents: &mut SparseMap) -> Result<()> {
        let (mut block, mut bytes) = ([0; BLOCK], 0);
        let mut has_more = extents.add_header(header)?;
        while has_more {
            bytes += BLOCK as u64;
            check(bytes, self.limits.extended_bytes, "extended_bytes", "or more bytes of sparse map")?;
            self.read_block(&mut block)?;
            has_more = extents.add_block(&block)?;
        }
        Ok(())
    }

    /// Reads the map of a sparse file at the start of its content.
    fn read_map_in_content(&mut self, extents: &mut SparseMap) -> Result<()> {
        let is_end = |byte: &u8| *byte == b'\n';
        let damaged = || Error::corrupt("the sparse map in its content is damaged");
        self.extended.clear();
        let (mut block, mut lines, mut lines_wanted) = ([0; BLOCK], 0, 1);
        let mut count = None;
        while lines < lines_wanted {
            let bytes = (self.extended.len() + BLOCK) as u64;
            check(bytes, self.limits.extended_bytes, "extended_bytes", "or more bytes of sparse map")?;
            if self.content_left < BLOCK as u64 {
                return Err(Error::corrupt("its sparse map does not end inside its content"));
            }
            self.read_block(&mut block)?;
            self.content_left -= BLOCK as u64;
            self.extended.extend_from_slice(&block);
            lines += block.iter().copied().filter(|byte| is_end(byte)).count() as u64;
            if lines > 0 && count.is_none() {
                let first = self.extended.split(is_end).next().and_then(decimal);
                let number = first.and_then(|number| u64::try_from(number).ok()).ok_or_else(damaged)?;
                check(number, self.limits.sparse_extents, "sparse_extents", "extents of a sparse file")?;
                lines_wanted = number.checked_mul(2).and_then(|n| n.checked_add(1)).ok_or_else(damaged)?;
                count = Some(number);
            }
        }
        let numbers = self.extended.split(is_end).skip(1);
        extents.add_numbers(numbers.take(exact(lines_wanted - 1, "the map has as many lines")))
    }

    /// Reads a block that has to be there.
    fn read_block(&mut self, block: &mut [u8; BLOCK]) -> Result<()> {
        if self.read_block_or_end(block)? { Ok(()) } else { Err(self.cut()) }
    }

    /// Reads a block; `false` if the input ends in front of it.
    fn read_block_or_end(&mut self, block: &mut [u8; BLOCK]) -> Result<bool> {
        let mut filled = 0;
        while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match uninterrupted(|| self.input.read(rest))? {
                0 if filled == 0 => return Ok(false),
                0 => {
                    let cause = format!("ends inside the block at offset {}", self.position);
                    return Err(Error::corrupt(cause).about(self.place()).remedy("fetch it again"));
                }
                n => filled += n,
            }
        }
        self.position += BLOCK as u64;
        Ok(true)
    }

    /// Passes over the next `left` bytes and returns how many of them the input does not have.
    fn skip(&mut self, mut left: u64) -> Result<u64> {
        while left > 0 {
            let ready = self.fill()? as u64;
            if ready == 0 {
                break;
            }
            let n = ready.min(left);
            self.input.consume(exact(n, "it is at most the length of the buffer"));
            self.passed(n);
            left -= n;
        }
        Ok(left)
    }

    /// Fills the buffer if it is empty, and returns the number of bytes in it, 0 at the end of the input.
    fn fill(&mut self) -> Result<usize> {
        uninterrupted(|| self.input.fill_buf().map(<[u8]>::len))
    }

    /// Counts bytes of the content, or of the padding behind it, as read.
    fn passed(&mut self, bytes: u64) {
        self.position += bytes;
        let of_content = bytes.min(self.content_left);
        self.content_left -= of_content;
        self.padding = self.padding.saturating_sub(bytes - of_content);
    }

    /// The error of an input that ends inside the last entry.
    fn cut(&self) -> Error {
        let name = entry_name(&self.path);
        Error::corrupt(format!("ends inside the {name}, at offset {}", self.position))
            .about("tar archive")
            .remedy("fetch it again")
    }

    /// The error of the block that was just read, where a header should be.
    fn bad_header(&self, cause: &str) -> Error {
        let offset = self.position - BLOCK as u64;
        Error::corrupt(format!("the block at offset {offset} {cause}")).about(self.place())
    }

    /// The place in the archive, for messages.
    fn place(&self) -> String {
        if self.path.is_empty() {
            "tar archive".to_owned()
        } else {
            format!("tar archive, after the {}", entry_name(&self.path))
        }
    }
}

fn after_error() -> Error {
    Error::invalid("the tar archive cannot be read on after an error")
}

/// Calls `read` until it is not interrupted by a signal.
fn uninterrupted<T>(mut read: impl FnMut() -> io::Result<T>) -> Result<T> {
    loop {
        match read() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return Ok(result?),
        }
    }
}
