//! A file of sections, each with a checksum, and a head with their places.
//!
//! ```text
//! magic        8 bytes: the kind of the file
//! sections     one after another
//! head         its length and checksum are in the trailer; begins with the length and checksum of each section
//! trailer      32 bytes: length of the head, checksum of the head, length of the sections (each 8 bytes), version
//!              (4 bytes), checksum of the trailer's other bytes (4 bytes); all little endian
//! ```
//!
//! The head comes last, so that a file is written from front to back without knowing its content beforehand; one
//! read of its end mostly brings trailer and head. Nothing overlaps and nothing is left over: any other length is a
//! damaged file. Checksums are CRC-64/NVME and CRC-32C: they find accidents, not forgers.

use crate::encoding::{Reader, Writer};
use crc_fast::{CrcAlgorithm, checksum};
use headstart_block::{Error, ReadAt, Result};
use std::io::Write;

const MAGIC_LEN: usize = 8;
const TRAILER_LEN: usize = 32;

/// Bytes that the first read of a file's end brings.
const TAIL: u64 = 64 << 10;

/// Longest head.
const HEAD_MAX: u64 = 256 << 20;

/// The kind of a file: its first bytes, the version that is written, and the oldest that is still read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) magic: [u8; MAGIC_LEN],
    pub(crate) version: u32,
    pub(crate) oldest: u32,
    /// The content in words, for messages.
    pub(crate) content: &'static str,
}

/// The place of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    offset: u64,
    len: u64,
    checksum: u64,
}

fn sum64(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "a CRC-32 is the low half of the library's u64")]
fn sum32(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The writer of a file.
pub(crate) struct Sections<'a> {
    out: &'a mut dyn Write,
    kind: Kind,
    places: Vec<Place>,
    end: u64,
}

fn failed(error: std::io::Error) -> Error {
    Error::io("cannot be written", error)
}

impl<'a> Sections<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, kind: Kind) -> Result<Self> {
        out.write_all(&kind.magic).map_err(failed)?;
        Ok(Self { out, kind, places: Vec::new(), end: MAGIC_LEN as u64 })
    }

    /// Writes a section; they are numbered in this order.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(failed)?;
        self.places.push(Place { offset: self.end, len: bytes.len() as u64, checksum: sum64(bytes) });
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes the head and the trailer.
    pub(crate) fn finish(self, head: &Writer) -> Result<()> {
        let mut whole = Writer::default();
        whole.len(self.places.len());
        for place in &self.places {
            whole.number(place.len);
            whole.bytes.extend(place.checksum.to_le_bytes());
        }
        whole.bytes.extend(&head.bytes);
        let mut trailer = Vec::with_capacity(TRAILER_LEN);
        for number in [whole.bytes.len() as u64, sum64(&whole.bytes), self.end - MAGIC_LEN as u64] {
            trailer.extend(number.to_le_bytes());
        }
        trailer.extend(self.kind.version.to_le_bytes());
        trailer.extend(sum32(&trailer).to_le_bytes());
        self.out.write_all(&whole.bytes).and_then(|()| self.out.write_all(&trailer)).map_err(failed)?;
        self.out.flush().map_err(failed)
    }
}

/// A file whose head was read.
#[derive(Debug)]
pub(crate) struct Container<S> {
    source: S,
    version: u32,
    places: Vec<Place>,
}

impl<S: ReadAt> Container<S> {
    /// Reads the head; returns its content beside the sections, too.
    pub(crate) fn open(source: S, kind: Kind) -> Result<(Self, Vec<u8>)> {
        let all = source.len();
        let least = (MAGIC_LEN + TRAILER_LEN) as u64;
        let mut magic = [0; MAGIC_LEN];
        if all < least {
            return Err(Error::corrupt(format!("has {all} bytes: it was cut short")));
        }
        source.read_at(&mut magic, 0)?;
        if magic != kind.magic {
            return Err(Error::corrupt(format!("is not a file of {}, or is damaged", kind.content)));
        }
        let mut tail = read(&source, all - TAIL.min(all - MAGIC_LEN as u64), all)?;
        let trailer = tail.split_off(tail.len() - TRAILER_LEN);
        let Trailer { head_len, head_sum, sections_len, version } = Trailer::read(&trailer, kind)?;
        if head_len > HEAD_MAX || Some(all - least) != sections_len.checked_add(head_len) {
            return Err(Error::corrupt("has another length than it says: it was cut short, or damaged"));
        }
        let start = MAGIC_LEN as u64 + sections_len;
        let head = match usize::try_from(head_len) {
            Ok(len) if len <= tail.len() => tail.split_off(tail.len() - len),
            _ => read(&source, start, start + head_len)?,
        };
        if sum64(&head) != head_sum {
            return Err(Error::corrupt("has a damaged head"));
        }
        let mut reader = Reader::new(&head);
        // A length and a checksum.
        let count = reader.count(9)?;
        let (mut places, mut offset) = (Vec::with_capacity(count), MAGIC_LEN as u64);
        for _ in 0..count {
            let len = reader.u64()?;
            let checksum = reader.take(8)?.try_into().map(u64::from_le_bytes);
            let checksum = checksum.map_err(|_| Error::corrupt("has a damaged head"))?;
            places.push(Place { offset, len, checksum });
            offset = offset.checked_add(len).ok_or_else(|| Error::corrupt("has a damaged head"))?;
        }
        if offset != start {
            return Err(Error::corrupt("has sections of other lengths than its head says"));
        }
        let rest = reader.rest();
        Ok((Self { source, version, places }, rest.to_vec()))
    }

    /// The version of the file.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// The number of sections.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Reads a section.
    pub(crate) fn section(&self, number: usize) -> Result<Vec<u8>> {
        let place = self.places.get(number).ok_or_else(|| Error::corrupt("names a section that it lacks"))?;
        let bytes = read(&self.source, place.offset, place.offset + place.len)?;
        if sum64(&bytes) != place.checksum {
            return Err(Error::corrupt("has a damaged section"));
        }
        Ok(bytes)
    }
}

/// Reads bytes that are known to be within the source, which bounds the allocation.
fn read(source: &impl ReadAt, start: u64, end: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(end - start).map_err(|_| Error::corrupt("is too large for this machine"))?;
    let mut bytes = vec![0; len];
    source.read_at(&mut bytes, start)?;
    Ok(bytes)
}

/// The end of a file.
struct Trailer {
    head_len: u64,
    head_sum: u64,
    sections_len: u64,
    version: u32,
}

impl Trailer {
    fn read(trailer: &[u8], kind: Kind) -> Result<Self> {
        let damaged = || Error::corrupt("has a damaged trailer: it was cut short, or is not of this kind");
        let (numbers, sum) = trailer.split_at_checked(TRAILER_LEN - 4).ok_or_else(damaged)?;
        if sum != sum32(numbers).to_le_bytes() {
            return Err(damaged());
        }
        let number = |at: usize| {
            let bytes = numbers.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u64::from_le_bytes).ok_or_else(damaged)
        };
        let version = numbers.get(24..).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let version = version.ok_or_else(damaged)?;
        if !(kind.oldest..=kind.version).contains(&version) {
            let known = match kind.oldest {
                oldest if oldest < kind.version => format!("versions {oldest} to {}", kind.version),
                only => format!("version {only}"),
            };
            let cause = format!("is of version {version}; this program reads {known}");
            return Err(Error::unsupported(cause).remedy("train again, or use the program that made it"));
        }
        Ok(Self { head_len: number(0)?, head_sum: number(8)?, sections_len: number(16)?, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIND: Kind = Kind { magic: *b"HSTEST\r\n", version: 3, oldest: 2, content: "tests" };

    fn file(sections: &[Vec<u8>], head: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut file = Sections::new(&mut out, KIND).unwrap();
        sections.iter().for_each(|section| file.write(section).unwrap());
        file.finish(&Writer { bytes: head.to_vec() }).unwrap();
        out
    }

    fn contents(bytes: Vec<u8>) -> Result<(Vec<Vec<u8>>, Vec<u8>)> {
        let (file, head) = Container::open(bytes, KIND)?;
        let sections: Result<_> = (0..file.len()).map(|number| file.section(number)).collect();
        Ok((sections?, head))
    }

    #[test]
    fn a_head_that_is_longer_than_the_tail() {
        let head = vec![7; (TAIL + 999) as usize];
        assert_eq!(contents(file(&[vec![1, 2, 3]], &head)).unwrap(), (vec![vec![1, 2, 3]], head));
        assert!(contents(Vec::new()).is_err());
        let newer = Kind { version: 5, oldest: 4, ..KIND };
        let error = Container::open(file(&[], &[]), newer).unwrap_err();
        assert!(error.to_string().contains("version 3; this program reads versions 4 to 5"), "{error}");
        let newer = Kind { version: 4, oldest: 3, ..KIND };
        assert_eq!(Container::open(file(&[], &[]), newer).unwrap().0.version(), 3);
        let (opened, _) = Container::open(file(&[], &[]), KIND).unwrap();
        assert!(opened.section(0).is_err());
    }

    proptest! {
        #[test]
        fn a_container_round_trips(sections: Vec<Vec<u8>>, head: Vec<u8>) {
            prop_assert_eq!(contents(file(&sections, &head)).unwrap(), (sections, head));
        }

        #[test]
        fn no_damage_passes(sections: Vec<Vec<u8>>, head: Vec<u8>, at: prop::sample::Index, bits in 1_u8..) {
            let bytes = file(&sections, &head);
            let at = at.index(bytes.len());
            let mut changed = bytes.clone();
            changed[at] ^= bits;
            prop_assert!(contents(changed).is_err(), "{at} of {}", bytes.len());
            prop_assert!(contents(bytes[..at].to_vec()).is_err());
            let longer: Vec<u8> = bytes.iter().copied().chain([bits]).collect();
            prop_assert!(contents(longer).is_err());
        }
    }
}
