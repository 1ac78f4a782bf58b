//! Tests of the indexer: the data, the restart points, and damaged streams.

use super::*;
use crate::format::DEFAULT_SPAN;
use crate::index::GzipIndex;
use crate::support::{data, golden, gzip};
use crate::{InflatedCache, InflatedView};
use headstart_block::{ErrorKind, ReadAt};
use proptest::prelude::*;
use std::fs;
use std::sync::Arc;

fn index_of(built: &BuiltIndex) -> GzipIndex {
    GzipIndex::open(Arc::new(built.bytes.as_slice().unwrap().to_vec())).unwrap()
}

/// Input in small pieces.
struct Slow<'a>(&'a [u8], usize);

impl Read for Slow<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.1.min(buf.len());
        self.0.read(&mut buf[..len])
    }
}

#[test]
fn restart_points_are_those_of_the_reference() {
    let Some(golden) = golden() else { return };
    let mut smaller = 0;
    for (image, layers) in [("img3", 3), ("quirks2", 2), ("xlink2", 2)] {
        for layer in 0..layers {
            let blob = fs::read(golden.join(format!("{image}/source/layer{layer}.tar.gz"))).unwrap();
            let theirs = fs::read(golden.join(format!("{image}/turbo/layer{layer}.gzip.meta"))).unwrap();
            let built = IndexingReader::new(&blob[..], DEFAULT_SPAN).unwrap().finish().unwrap();
            let (ours, theirs) = (index_of(&built), GzipIndex::open(Arc::new(theirs)).unwrap());
            let places = |index: &GzipIndex| -> Vec<_> {
                index.points().iter().map(|point| (point.inflated, point.compressed, point.bits)).collect()
            };
            assert_eq!(places(&ours), places(&theirs));
            for number in 0..ours.points().len() {
                let (ours, theirs) = (ours.window(number).unwrap(), theirs.window(number).unwrap());
                assert!(ours.iter().zip(&theirs[..]).all(|(ours, theirs)| ours == theirs || *ours == 0));
            }
            smaller += theirs.header().index_size.saturating_sub(ours.header().index_size);
        }
    }
    assert!(smaller > 1000, "{smaller}");
}

#[test]
fn restart_points_are_about_a_span_apart() {
    let bytes = data(11, 5_000_000);
    let blob = gzip(&bytes, 6);
    let built = IndexingReader::new(&blob[..], 256 << 10).unwrap().finish().unwrap();
    let index = index_of(&built);
    assert!(built.points == index.points().len() && built.points >= 15, "{}", built.points);
    let longest = (0..built.points).map(|piece| index.piece(piece).inflated.len()).max();
    assert!(longest.unwrap() < 3 * (256 << 10), "{longest:?}");
}

#[test]
fn bytes_of_windows_that_are_not_used_are_zeros() {
    // Noise refers to nothing.
    let mut next = crate::support::noise(4);
    let bytes: Vec<u8> = (0..1_000_000).map(|_| next().to_le_bytes()[3]).collect();
    let built = IndexingReader::new(&gzip(&bytes, 6)[..], 64 << 10).unwrap().finish().unwrap();
    assert!(built.points > 8 && built.bytes.memory() < 20_000, "{} {}", built.points, built.bytes.memory());
}

#[test]
fn a_second_member_cannot_refer_to_the_first() {
    // A stored block of the first member, then one whose only match is 5 bytes back.
    let first = gzip(b"secret words", 0);
    let mut second = gzip(b"", 6);
    // The fixed code: length 3 (code 1), distance 5 (code 4, one more bit), and the end.
    let mut bits = 0_u64;
    let mut len = 0;
    let mut push = |value: u64, count: u32| {
        bits |= value << len;
        len += count;
    };
    push(0b011, 3);
    push(0b100_0000, 7);
    push(0b00100, 5);
    push(0, 1);
    push(0, 7);
    second.truncate(10);
    second.extend_from_slice(&bits.to_le_bytes()[..3]);
    let mut crc = GzipCrc::new();
    crc.update(&[0; 3]);
    second.extend_from_slice(&crc.value().to_le_bytes());
    second.extend_from_slice(&3_u32.to_le_bytes());
    let blob = [first, second].concat();
    let mut read = Vec::new();
    IndexingReader::new(&blob[..], 64 << 10).unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read, b"secret words\0\0\0");
    let built = IndexingReader::new(&blob[..], 64 << 10).unwrap().finish().unwrap();
    let view = InflatedView::new(blob, Arc::new(index_of(&built)), InflatedCache::new(0)).unwrap();
    let mut viewed = vec![0; read.len()];
    view.read_at(&mut viewed, 0).unwrap();
    assert_eq!(viewed, read);
}

#[test]
fn zeros_behind_the_stream_are_padding_and_other_bytes_are_not() {
    let blob = gzip(b"bytes", 6);
    let padded = [&blob[..], &[0; 700]].concat();
    let built = IndexingReader::new(&padded[..], 1 << 20).unwrap().finish().unwrap();
    assert_eq!((built.gzip_size, built.inflated_size, built.members), (padded.len() as u64, 5, 1));
    for tail in [&b"x"[..], b"\0x", b"\x1f\x8b\x08"] {
        let wrong = [&blob[..], tail].concat();
        let error = IndexingReader::new(&wrong[..], 1 << 20).unwrap().finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{tail:?}");
    }
}

#[test]
fn headers_with_all_fields_are_passed_over() {
    let plain = gzip(b"bytes", 6);
    let mut blob = plain[..10].to_vec();
    blob[3] = 2 | 4 | 8 | 16;
    blob.extend_from_slice(b"\x03\0abcname\0comment\0hc");
    let header = blob.len() as u64;
    blob.extend_from_slice(&plain[10..]);
    let built = IndexingReader::new(&blob[..], 1 << 20).unwrap().finish().unwrap();
    assert_eq!(index_of(&built).points()[0].compressed, header);
}

#[test]
fn damaged_streams_are_refused() {
    let bytes = data(13, 150_000);
    let blob = gzip(&bytes, 6);
    for len in (0..blob.len()).step_by(1009) {
        let error = IndexingReader::new(&blob[..len], 1 << 20).unwrap().finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
    }
    for at in (10..blob.len()).step_by(501) {
        let mut changed = blob.clone();
        changed[at] ^= 0x24;
        let mut reader = IndexingReader::new(&changed[..], 1 << 20).unwrap();
        assert!(reader.read_to_end(&mut Vec::new()).is_err(), "{at}");
        assert!(reader.finish().is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_data_passes_through_and_any_restart_gives_it(
        seed: u64, len in 0..400_000_usize, cut in 0..400_000_usize, level in 0..10_u32, step in 1..5000_usize,
    ) {
        let bytes = data(seed, len);
        let (first, second) = bytes.split_at(cut.min(len));
        let blob = [gzip(first, level), gzip(second, level)].concat();
        let mut reader = IndexingReader::new(Slow(&blob, step), 64 << 10).unwrap();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        prop_assert!(read == bytes);
        let built = reader.finish().unwrap();
        prop_assert_eq!((built.members, built.gzip_size, built.inflated_size), (2, blob.len() as u64, len as u64));
        let whole = IndexingReader::new(&blob[..], 64 << 10).unwrap().with_thread().unwrap().finish().unwrap();
        prop_assert!(
            whole.bytes.as_slice() == built.bytes.as_slice(),
            "the index does not depend on pieces and threads"
        );
        let view = InflatedView::new(blob, Arc::new(index_of(&built)), InflatedCache::new(1 << 20)).unwrap();
        // From the end, so that each piece is restarted.
        let mut at = len;
        while at > 0 {
            let start = at.saturating_sub(50_001);
            let mut buf = vec![0; at - start];
            view.read_at(&mut buf, start as u64).unwrap();
            prop_assert!(buf == bytes[start..at]);
            at = start;
        }
    }
}
