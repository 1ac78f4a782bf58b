//! The stream: ends, cuts, skipped content, errors of the input.

use super::support::*;
use crate::{TarLimits, TarReader};
use headstart_block::{Error, ErrorKind};
use std::io::{self, Read};

/// An input that gives a few bytes at a time and is interrupted in between.
struct Slow<'a> {
    bytes: &'a [u8],
    calls: usize,
}

impl Read for Slow<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let n = buf.len().min(self.calls % 13 + 1);
        self.bytes.read(&mut buf[..n])
    }
}

fn two_files() -> Vec<u8> {
    archive(&[
        pax(&[("path", b"first")]),
        header(b"a", b'0', 100_000).with(&[1; 100_000]),
        header(b"second", b'0', 3).with(b"abc"),
    ])
}

#[test]
fn content_that_is_not_read_is_skipped() {
    let archive = two_files();
    for read in [0, 1, 511, 512, 40_000, 99_999, 100_000] {
        let mut reader = TarReader::new(Slow { bytes: &archive, calls: 0 }, TarLimits::default());
        let first = reader.next_entry().unwrap().unwrap();
        assert_eq!(
            (first.path.as_slice(), first.header_offset, first.content_offset),
            (&b"first"[..], 1024, 1536)
        );
        let mut left = vec![0; read];
        while !left.is_empty() {
            let n = reader.read_content(&mut left).unwrap();
            assert!(n > 0 && left[..n].iter().all(|byte| *byte == 1));
            left.drain(..n);
        }
        assert_eq!((reader.position(), reader.content_left()), (1536 + read as u64, 100_000 - read as u64));
        assert_eq!(reader.next_entry().unwrap().unwrap().path, b"second");
        let mut content = [0; 9];
        while reader.content_left() > 0 {
            reader.read_content(&mut content).unwrap();
        }
        assert_eq!(reader.read_content(&mut content).unwrap(), 0);
        assert!(reader.next_entry().unwrap().is_none());
        assert_eq!(reader.position(), archive.len() as u64);
    }
}

#[test]
fn long_reads_take_content_from_the_input_at_once() {
    let archive = two_files();
    let mut reader = TarReader::new(&archive[..], TarLimits::default());
    reader.next_entry().unwrap();
    let mut buf = vec![0; 200_000];
    let from_buffer = reader.read_content(&mut buf).unwrap();
    let from_input = reader.read_content(&mut buf).unwrap();
    assert!(from_buffer < 1 << 15);
    assert_eq!(from_buffer + from_input, 100_000);
}

#[test]
fn finish_reads_the_input_to_its_end() {
    let mut archive = two_files();
    archive.extend([5; 70_000]);
    for entries in 0..3 {
        let mut reader = TarReader::new(Slow { bytes: &archive, calls: 0 }, TarLimits::default());
        for _ in 0..entries {
            reader.next_entry().unwrap();
        }
        assert!(reader.finish().unwrap().bytes.is_empty());
    }
    let mut damaged = two_files();
    let end = damaged.len() - 1024 - 512 - 300;
    damaged[end] ^= 1;
    assert!(TarReader::new(&damaged[..], TarLimits::default()).finish().is_err());
}

#[test]
fn archives_end_as_those_of_go() {
    let file = header(b"a", b'0', 3).with(b"abc");
    let count = |parts: &[Vec<u8>]| list(&parts.concat()).map(|entries| entries.len());
    let zeros = |n: usize| vec![0; n];
    assert_eq!(count(&[]).unwrap(), 0);
    assert_eq!(count(&[zeros(1024)]).unwrap(), 0);
    assert_eq!(count(std::slice::from_ref(&file)).unwrap(), 1);
    assert_eq!(count(&[file.clone(), zeros(512)]).unwrap(), 1);
    assert_eq!(count(&[file.clone(), zeros(10_240), b"garbage".to_vec()]).unwrap(), 1);
    assert_eq!(count(&[file[..600].to_vec()]).unwrap(), 1, "the padding may be cut");
    assert_eq!(count(&[file[..515].to_vec()]).unwrap(), 1, "the padding may be absent");
    assert_eq!(count(&[file.clone(), pax(&[("path", b"b")])]).unwrap(), 1, "an extended header may be last");
    for (parts, place) in [
        (vec![file[..514].to_vec()], "ends inside the tar entry \"a\", at offset 514"),
        (vec![file.clone(), zeros(100)], "after the tar entry \"a\": ends inside the block at offset 1024"),
        (vec![file.clone(), zeros(700)], "ends inside the block at offset 1536"),
        (vec![file.clone(), zeros(512), file.clone()], "single block of zeros"),
        (
            vec![file.clone(), pax(&[("path", b"b")])[..515].to_vec()],
            "ends inside the tar entry \"PaxHeaders/1\"",
        ),
        (vec![file[..100].to_vec()], "ends inside the block at offset 0"),
    ] {
        let error = list(&parts.concat()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(place), "{place}: {error}");
    }
}

#[test]
fn a_reader_is_of_no_use_after_an_error() {
    let cut = &two_files()[..50_000];
    let mut reader = TarReader::new(cut, TarLimits::default());
    reader.next_entry().unwrap();
    assert!(reader.next_entry().is_err());
    assert_eq!(reader.next_entry().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(reader.read_content(&mut [0]).unwrap_err().kind(), ErrorKind::Invalid);
    assert!(reader.finish().is_err());
}

#[test]
fn errors_of_the_input_come_through_whole() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(Error::new(ErrorKind::Unavailable, "is away").into())
        }
    }
    let archive = two_files();
    let mut reader = TarReader::new(archive[..2000].chain(Failing), TarLimits::default());
    reader.next_entry().unwrap();
    let mut content = [0; 1000];
    assert_eq!(reader.read_content(&mut content).unwrap(), 464);
    assert_eq!(reader.read_content(&mut content).unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn padding_is_told_by_its_bytes_and_the_next_entry_follows_it() {
    let content = |bytes: &[u8], padding: u8| {
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(512), padding);
        [header(b"f", b'0', bytes.len()).block(), padded].concat()
    };
    let entries = [(3, 0, true), (512, 0, true), (700, 0, true), (700, 1, false), (0, 0, true)];
    let parts: Vec<_> = entries.iter().map(|(len, padding, _)| content(&vec![7; *len], *padding)).collect();
    let archive = archive(&parts);
    let mut reader = TarReader::new(Slow { bytes: &archive, calls: 0 }, TarLimits::default());
    for (len, _, is_zero) in entries {
        let entry = reader.next_entry().unwrap().unwrap();
        assert_eq!((entry.size, reader.padding_is_zero().unwrap()), (len as u64, len == 0));
        while reader.read_content(&mut [0; 100]).unwrap() > 0 {}
        assert_eq!(reader.padding_is_zero().unwrap(), is_zero, "{len}");
        assert_eq!(reader.position() % 512, 0);
    }
    assert!(reader.next_entry().unwrap().is_none());
    // An archive that ends inside the padding.
    let cut = content(&[7; 3], 0);
    let mut reader = TarReader::new(&cut[..600], TarLimits::default());
    reader.next_entry().unwrap();
    while reader.read_content(&mut [0; 100]).unwrap() > 0 {}
    assert!(!reader.padding_is_zero().unwrap());
}
