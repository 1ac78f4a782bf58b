//! An index made in passing, while a gzip stream is inflated once, for a conversion for instance.
//!
//! The reader gives the uncompressed bytes of its input, and notes restart points on the way. Memory is bounded: the
//! last 128 KiB of data, two or three points that are still open (a window and at most 128 KiB of input each), and the
//! packed windows, which are the index. With a thread of its own for the index, 16 points more wait for it.
//!
//! Compared with the reference:
//!
//! * Restart points are at the same places, except that the last block start is kept, too, if more than a span follows
//!   the point before it; and that one block start in thousands is not noticed, or its first bit cannot be told, so
//!   that the one before serves.
//! * Bytes of windows that are never used are zeros, which makes an index much smaller. Both are within the format.
//! * The checksum and the length of each member are checked.
//! * **Several members** (eStargz, files put together by `cat`) are read, each with a restart point of its own at its
//!   start. [`InflatedView`](crate::InflatedView) reads all of them. OverlayBD makes an index of the first member only
//!   and reports success; by an index of this crate it reads ranges within a member, and comes short at the member's
//!   end.
//! * Zeros behind the last member are padding, anything else there is an error.

use crate::format::{GzipCrc, MIN_SPAN, WINDOW_SIZE, low_half};
use crate::member::GzipInput;
use crate::recorder::{BlockStart, RING, Recorder, STEP};
use crate::spool::Spool;
use headstart_block::{Error, Result, to_usize};
use std::io::{self, Read};
use zlib_rs::{Inflate, InflateFlush, Status};

/// The size of a window as a power of 2.
const WINDOW_BITS: u8 = 15;

/// Reads the uncompressed bytes of a gzip stream, and makes an index of it. After an error, or after the end, reads
/// give no bytes.
pub struct IndexingReader<R> {
    input: GzipInput<R>,
    state: State,
    inflater: Inflate,
    /// The place after a block, where the next one begins unless the stream ends there.
    block: Option<BlockStart>,
    /// The compressed byte that was fed last.
    last: u8,
    /// The last bytes of the data, around.
    ring: Box<[u8]>,
    /// The place in the ring of the next byte.
    at: usize,
    /// Bytes before `at` that the caller has not read yet.
    unread: usize,
    inflated: u64,
    member_start: u64,
    members: u64,
    crc: GzipCrc,
    recorder: Recorder,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the header of a member.
    Header,
    Data,
    Ended,
    Failed,
}

/// An index that was made, and what the stream was like.
#[derive(Debug)]
pub struct BuiltIndex {
    /// The bytes of the index file (`gzip.meta`).
    pub bytes: Spool,
    /// Length of the gzip stream in bytes.
    pub gzip_size: u64,
    /// Length of the uncompressed data in bytes.
    pub inflated_size: u64,
    /// Number of members of the stream, at least 1.
    pub members: u64,
    /// Number of restart points, at least 1.
    pub points: usize,
}

impl<R: Read> IndexingReader<R> {
    /// Starts to read `input`, a whole gzip stream. Restart points will be about `span` uncompressed bytes apart; a
    /// good value is [`DEFAULT_SPAN`](crate::format::DEFAULT_SPAN).
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if the span is below 64 KiB or above what the format can say.
    pub fn new(input: R, span: u32) -> Result<Self> {
        if span < MIN_SPAN || i32::try_from(span).is_err() {
            return Err(Error::invalid(format!("a span of {span} bytes is not between 64 KiB and 2 GiB")));
        }
        Ok(Self {
            input: GzipInput::new(input),
            state: State::Header,
            inflater: Inflate::new(false, WINDOW_BITS),
            block: None,
            last: 0,
            ring: vec![0; RING].into(),
            at: 0,
            unread: 0,
            inflated: 0,
            member_start: 0,
            members: 0,
            crc: GzipCrc::new(),
            recorder: Recorder::new(span)?,
        })
    }

    /// Lets another thread make the index, which takes a fifth of the time. For a reader that has read nothing yet; the
    /// index is the same.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Io`] if no thread can be started.
    pub fn with_thread(self) -> Result<Self> {
        Ok(Self { recorder: self.recorder.with_thread()?, ..self })
    }

    /// Returns the input. Some bytes of it may have been taken that are not read yet.
    pub fn get_ref(&self) -> &R {
        self.input.get_ref()
    }

    /// Reads the rest of the stream, and returns the index.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the stream is damaged; [`headstart_block::ErrorKind::Invalid`] if an
    /// earlier read failed; errors of the input.
    pub fn finish(mut self) -> Result<BuiltIndex> {
        while self.state != State::Ended {
            self.unread = 0;
            self.advance()?;
        }
        let writer = self.recorder.into_writer()?;
        let (gzip_size, inflated_size, points) = (self.input.taken(), self.inflated, writer.len());
        let bytes = writer.finish(gzip_size, inflated_size)?;
        Ok(BuiltIndex { bytes, gzip_size, inflated_size, members: self.members, points })
    }

    /// Goes on by a step, after which there may be bytes to read.
    fn advance(&mut self) -> Result<()> {
        let state = std::mem::replace(&mut self.state, State::Failed);
        self.state = match state {
            State::Header => self.start_member()?,
            State::Data => self.inflate()?,
            State::Ended => State::Ended,
            State::Failed => return Err(Error::invalid("the gzip stream has failed before")),
        };
        Ok(())
    }

    fn start_member(&mut self) -> Result<State> {
        self.input.member_header()?;
        self.members += 1;
        self.inflater.reset(false);
        // A stream that refers to bytes before its start gets zeros here, as by its restart point.
        let zeros = self.inflater.set_dictionary(&[0; WINDOW_SIZE]);
        zeros.map_err(|_| Error::invalid("cannot start to inflate"))?;
        self.crc = GzipCrc::new();
        self.member_start = self.inflated;
        self.recorder.member_starts(self.inflated, self.input.taken());
        self.recorder.hand_on(&self.ring, self.at, self.inflated)?;
        self.ring[self.at.saturating_sub(WINDOW_SIZE)..self.at].fill(0);
        self.ring[RING - WINDOW_SIZE.saturating_sub(self.at)..].fill(0);
        Ok(State::Data)
    }

    fn inflate(&mut self) -> Result<State> {
        self.recorder.before_step(&self.ring, self.at, self.inflated);
        let offset = self.input.taken();
        let input = self.input.peek()?;
        if input.is_empty() {
            return Err(Error::corrupt(format!("ends at byte {offset}, inside its deflate stream"))
                .remedy("it is truncated: fetch it again"));
        }
        let room = STEP.min(RING - self.at);
        let (before_in, before_out) = (self.inflater.total_in(), self.inflater.total_out());
        let out = &mut self.ring[self.at..self.at + room];
        let status = self.inflater.decompress(input, out, InflateFlush::Block);
        let fed = to_usize(self.inflater.total_in() - before_in);
        let written = to_usize(self.inflater.total_out() - before_out);
        self.crc.update(&self.ring[self.at..self.at + written]);
        // Behind the last block there is none, which only shows now.
        let has_ended = matches!(status, Ok(Status::StreamEnd));
        if let Some(block) = self.block.take().filter(|_| !has_ended || written > 0) {
            self.recorder.block_starts(block);
        }
        self.inflated += written as u64;
        self.recorder.after_step(&input[..fed], self.inflated);
        self.last = input[..fed].last().copied().unwrap_or(self.last);
        // With input and room left, it stopped after a block. A block that ends with one of them is not noticed: the
        // same ones, whatever the pieces in which the input comes.
        let is_between = fed < input.len() && written < room && !has_ended;
        self.at = (self.at + written) % RING;
        self.unread = written;
        self.input.take(fed);
        self.recorder.hand_on(&self.ring, self.at, self.inflated)?;
        match status {
            Ok(Status::StreamEnd) => return self.end_member(),
            Ok(Status::Ok | Status::BufError) if fed + written > 0 || is_between => {}
            _ => {
                return Err(Error::corrupt(format!(
                    "its deflate stream is damaged between bytes {offset} and {}",
                    self.input.taken()
                ))
                .remedy("fetch it again"));
            }
        }
        if is_between {
            let (inflated, compressed) = (self.inflated, self.input.taken());
            self.block = Some(BlockStart { inflated, compressed, before: self.last });
        }
        Ok(State::Data)
    }

    fn end_member(&mut self) -> Result<State> {
        self.block = None;
        let offset = self.input.taken();
        let trailer: [u8; 8] = self.input.array()?;
        let len = low_half(self.inflated - self.member_start);
        if trailer[..4] != self.crc.value().to_le_bytes() || trailer[4..] != len {
            return Err(Error::corrupt(format!(
                "the checksum or the length at byte {offset} is not that of the data"
            ))
            .remedy("it is damaged: fetch it again"));
        }
        if self.input.has_another_member()? {
            return Ok(State::Header);
        }
        self.recorder.end(&self.ring, self.at, self.inflated)?;
        Ok(State::Ended)
    }
}

impl<R: Read> Read for IndexingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        while self.unread == 0 && self.state != State::Ended {
            self.advance()?;
        }
        let len = self.unread.min(buf.len());
        // Steps end with the ring at the latest, so what is unread is in one piece.
        let end = if self.at == 0 { RING } else { self.at };
        let start = end - self.unread;
        buf[..len].copy_from_slice(self.ring.get(start..start + len).unwrap_or_default());
        self.unread -= len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests;
