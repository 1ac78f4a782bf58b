//! An inflater that starts in the middle of a deflate stream, at any bit.
//!
//! zlib-rs inflates fastest, and takes a window, but cannot be told to start inside a byte. So the byte with the first
//! bits gets a beginning of its own: deflate blocks without content, which end at exactly the bit at which the real
//! block starts. An empty block with the fixed code has 10 bits, so a few of them end at every even bit of a byte; one
//! with a code of its own, written here with 93 bits, makes the rest odd.

use headstart_block::{Error, ReadAt, Result, to_usize};
use zlib_rs::{Inflate, InflateFlush, Status};

/// Most compressed bytes that are read at once: what a part of uncompressed data mostly needs, since the rest is read
/// again when the inflater goes on.
const INPUT: u64 = 32 << 10;

/// An inflater that has come to some place of a raw deflate stream.
pub(crate) struct RawInflater {
    state: Inflate,
    /// Offset in the blob of the next byte to feed.
    next: u64,
    has_ended: bool,
}

impl RawInflater {
    /// An inflater that starts at byte `position` of a blob, and before it with the highest `bits` bits, 0 to 7, of the
    /// byte `before`. `window` is the data before that.
    pub(crate) fn restart(window: &[u8], position: u64, bits: u8, before: u8) -> Result<Self> {
        let failed = || Error::corrupt(format!("cannot start inflating at byte {position}"));
        let mut state = Inflate::new(false, 15);
        state.set_dictionary(window).map_err(|_| failed())?;
        if bits > 0 {
            let mut lead = Bits::up_to(8 - u32::from(bits));
            if let Some(last) = lead.bytes.last_mut() {
                *last |= before >> (8 - bits) << (8 - bits);
            }
            // The blocks give no bytes, but the last bits may be the real block's, which could.
            let status = state.decompress(&lead.bytes, &mut [], InflateFlush::NoFlush);
            let fed = state.total_in() == lead.bytes.len() as u64;
            if !matches!(status, Ok(Status::Ok | Status::BufError)) || !fed {
                return Err(failed());
            }
        }
        Ok(Self { state, next: position, has_ended: false })
    }

    /// Offset in the blob of the next byte that is needed.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Fills `out` with the data that comes next. Reads `blob` before byte `end` only; `input` is a buffer.
    pub(crate) fn fill(
        &mut self,
        blob: &dyn ReadAt,
        end: u64,
        input: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            if self.has_ended {
                return Err(self.damaged(format!("ends {} bytes too early", out.len() - done)));
            }
            input.resize(to_usize(end.saturating_sub(self.next).min(INPUT)), 0);
            blob.read_at(input, self.next)?;
            let mut fed = 0;
            while done < out.len() && !self.has_ended {
                let (read, written) = self.step(&input[fed..], &mut out[done..])?;
                fed += read;
                done += written;
                if fed == input.len() && (fed > 0 || written > 0) {
                    // There may be more input, or more output without any.
                    break;
                }
                if (read, written) == (0, 0) && !self.has_ended {
                    return Err(self.damaged("needs bytes behind the next restart point"));
                }
            }
        }
        Ok(())
    }

    /// Checks that the stream ends here, without another byte of data. `end` is the end of the blob.
    pub(crate) fn expect_end(&mut self, blob: &dyn ReadAt, end: u64, input: &mut Vec<u8>) -> Result<()> {
        while !self.has_ended {
            input.resize(to_usize(end.saturating_sub(self.next).min(INPUT)), 0);
            blob.read_at(input, self.next)?;
            let (read, written) = self.step(input, &mut [0])?;
            if written > 0 {
                return Err(self.damaged("goes on behind the end of the data"));
            }
            if read == 0 && !self.has_ended {
                return Err(self.damaged("has no end"));
            }
        }
        Ok(())
    }

    /// Feeds `input` and takes `out`; returns the bytes of both that were used.
    fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize)> {
        let (before_in, before_out) = (self.state.total_in(), self.state.total_out());
        let status = self.state.decompress(input, out, InflateFlush::NoFlush);
        let read = self.state.total_in() - before_in;
        self.next += read;
        match status {
            Ok(Status::Ok | Status::BufError) => {}
            Ok(Status::StreamEnd) => self.has_ended = true,
            Err(_) => {
                let cause = self.state.error_message().unwrap_or("is not valid");
                return Err(self.damaged(format!("is damaged ({cause})")));
            }
        }
        Ok((to_usize(read), to_usize(self.state.total_out() - before_out)))
    }

    #[cold]
    fn damaged(&self, fault: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("the deflate stream before byte {} of the compressed blob {fault}", self.next))
            .remedy("the blob is damaged, or the index belongs to another one: fetch both again")
    }
}

/// Bits in the order of a deflate stream.
struct Bits {
    bytes: Vec<u8>,
    len: u32,
}

impl Bits {
    /// Empty deflate blocks that end `bits` bits, 1 to 7, inside their last byte.
    fn up_to(bits: u32) -> Self {
        let mut lead = Self { bytes: Vec::with_capacity(20), len: 0 };
        if bits % 2 == 1 {
            lead.push_odd_block();
        }
        while lead.len % 8 != bits {
            // Not the last block, the fixed code, and the end of the block: seven zeros.
            lead.push(0b010, 10);
        }
        lead
    }

    /// An empty block with a code of its own, of 93 bits.
    fn push_odd_block(&mut self) {
        // Not the last block, a code of its own; 257 literals, 1 distance, 18 lengths of lengths.
        self.push(0b100, 3);
        self.push(0, 5);
        self.push(0, 5);
        self.push(14, 4);
        // In the order 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1: the lengths 18 and 0 get two
        // bits, the length 1 gets one.
        for len in [0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1] {
            self.push(len, 3);
        }
        // 138 and 118 literals without a code; the end of the block has one bit, the distance no code.
        for zeros in [138, 118] {
            self.push(0b11, 2);
            self.push(zeros - 11, 7);
        }
        self.push(0, 1);
        self.push(0b01, 2);
        // The end of the block.
        self.push(0, 1);
    }

    fn push(&mut self, value: u32, bits: u32) {
        for bit in 0..bits {
            if self.len.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if let Some(last) = self.bytes.last_mut() {
                *last |= u8::from(value >> bit & 1 == 1) << (self.len % 8);
            }
            self.len += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use std::io::Write;

    /// A stream that is moved up by `shift` bits, with ones before.
    fn shifted(stream: &[u8], shift: u32) -> Vec<u8> {
        let mut bits = Bits { bytes: Vec::new(), len: 0 };
        bits.push(0x7f, shift);
        for byte in stream {
            bits.push(u32::from(*byte), 8);
        }
        bits.bytes
    }

    #[test]
    fn a_stream_is_inflated_from_every_bit_of_a_byte() {
        let data: Vec<u8> = (0..40_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 27) as u8).collect();
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&data).unwrap();
        let stream = encoder.finish().unwrap();
        for shift in 0..8 {
            let blob = shifted(&stream, shift);
            let (position, bits, before) =
                if shift == 0 { (0, 0, 0) } else { (1, u8::try_from(8 - shift).unwrap(), blob[0]) };
            let mut inflater = RawInflater::restart(&[0; 32 << 10], position, bits, before).unwrap();
            let (mut input, mut out) = (Vec::new(), vec![0; data.len()]);
            let (first, second) = out.split_at_mut(12_345);
            inflater.fill(&blob, blob.len() as u64, &mut input, first).unwrap();
            inflater.fill(&blob, blob.len() as u64, &mut input, second).unwrap();
            inflater.expect_end(&blob, blob.len() as u64, &mut input).unwrap();
            assert!(out == data, "{shift}");
        }
    }

    #[test]
    fn a_stream_that_is_cut_or_too_long_is_refused() {
        let data = vec![7; 100_000];
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&data).unwrap();
        let stream = encoder.finish().unwrap();
        let mut input = Vec::new();
        let start = || RawInflater::restart(&[0; 32 << 10], 0, 0, 0).unwrap();
        for end in 0..stream.len() as u64 {
            let mut inflater = start();
            let filled = inflater.fill(&stream, end, &mut input, &mut vec![0; data.len()]);
            let ended = filled.and_then(|()| inflater.expect_end(&stream, end, &mut input));
            assert_eq!(ended.unwrap_err().kind(), headstart_block::ErrorKind::Corrupt, "{end}");
        }
        let end = stream.len() as u64;
        assert!(start().fill(&stream, end, &mut input, &mut vec![0; data.len() + 1]).is_err());
        let mut inflater = start();
        inflater.fill(&stream, end, &mut input, &mut vec![0; data.len() - 1]).unwrap();
        assert!(inflater.expect_end(&stream, end, &mut input).is_err());
    }
}
