//! Input of a gzip stream, and the header of a member.
//!
//! | bytes | field |
//! |---|---|
//! | 0, 1 | 0x1f, 0x8b |
//! | 2 | 8: deflate |
//! | 3 | flags: 1 text, 2 header checksum, 4 extra field, 8 name, 16 comment |
//! | 4..10 | time, extra flags, operating system |
//! | then | extra field: u16 length and so many bytes; name and comment, each up to a NUL; u16 header checksum |
//!
//! The deflate stream follows, and behind it the CRC-32 of the uncompressed bytes and their length modulo 2^32. A file
//! may have several members one after the other (RFC 1952).

use headstart_block::{Error, Result};
use std::io::{ErrorKind, Read};

/// Compressed bytes that are read at once: a prime number, so that no block of a round size ends with them.
const INPUT: usize = 65_521;
const CHECKSUM: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// Compressed bytes as they come, counted.
pub(crate) struct GzipInput<R> {
    inner: R,
    buf: Box<[u8]>,
    at: usize,
    filled: usize,
    /// Bytes that were taken.
    taken: u64,
}

impl<R: Read> GzipInput<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, buf: vec![0; INPUT].into(), at: 0, filled: 0, taken: 0 }
    }

    pub(crate) fn get_ref(&self) -> &R {
        &self.inner
    }

    /// Bytes that were taken so far: the offset of the next one.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// The bytes that come next; none at the end of the input. They end at the same places of the input however it is
    /// read.
    pub(crate) fn peek(&mut self) -> Result<&[u8]> {
        if self.at == self.filled {
            (self.at, self.filled) = (0, 0);
            while self.filled < self.buf.len() {
                match self.inner.read(&mut self.buf[self.filled..]) {
                    Ok(0) => break,
                    Ok(read) => self.filled += read,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(&self.buf[self.at..self.filled])
    }

    /// Takes `len` bytes of those that [`GzipInput::peek`] showed.
    pub(crate) fn take(&mut self, len: usize) {
        self.at += len;
        self.taken += len as u64;
    }

    fn byte(&mut self) -> Result<u8> {
        let Some(&byte) = self.peek()?.first() else {
            return Err(Error::corrupt(format!(
                "ends at byte {}, inside a gzip header or trailer",
                self.taken
            )));
        };
        self.take(1);
        Ok(byte)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// Takes the header of a member.
    pub(crate) fn member_header(&mut self) -> Result<()> {
        let start = self.taken;
        let fixed: [u8; 10] = self.array()?;
        if fixed[..2] != [0x1f, 0x8b] {
            return Err(Error::corrupt(format!("has no gzip header at byte {start}")));
        }
        let flags = fixed[3];
        if fixed[2] != 8 || flags & RESERVED != 0 {
            return Err(Error::unsupported(format!(
                "the gzip header at byte {start} has the method {} and the flags {flags:#x}",
                fixed[2]
            )));
        }
        if flags & EXTRA != 0 {
            for _ in 0..u16::from_le_bytes(self.array()?) {
                self.byte()?;
            }
        }
        for text in [NAME, COMMENT] {
            while flags & text != 0 && self.byte()? != 0 {}
        }
        if flags & CHECKSUM != 0 {
            self.array::<2>()?;
        }
        Ok(())
    }

    /// `true` if another member follows; `false` at the end of the input. Zeros at the end are padding.
    pub(crate) fn has_another_member(&mut self) -> Result<bool> {
        let mut has_zeros = false;
        loop {
            let bytes = self.peek()?;
            let (len, zeros) = (bytes.len(), bytes.iter().take_while(|&&byte| byte == 0).count());
            if len == 0 {
                return Ok(false);
            }
            has_zeros |= zeros > 0;
            self.take(zeros);
            if zeros < len {
                break;
            }
        }
        if has_zeros {
            return Err(Error::corrupt(format!("has something else than zeros at byte {}", self.taken)));
        }
        Ok(true)
    }
}
