//! Tests of the reader and the writer of indexes.

use super::*;
use crate::index_writer::IndexWriter;
use crate::support::{data, golden};
use headstart_block::ErrorKind;
use proptest::prelude::*;
use serde_json::Value;
use std::fs;

fn open(bytes: impl ReadAt + 'static) -> Result<GzipIndex> {
    GzipIndex::open(Arc::new(bytes))
}

/// An index of three points, the last with a window that does not pack.
fn three() -> Vec<u8> {
    let mut writer = IndexWriter::new(1 << 20).unwrap();
    writer.push(0, 10, 0, &[0; WINDOW_SIZE]).unwrap();
    writer.push(1000, 400, 3, &[7; WINDOW_SIZE]).unwrap();
    writer.push(2000, 900, 0, &data(1, WINDOW_SIZE)).unwrap();
    writer.finish(1500, 3000).unwrap().as_slice().unwrap().to_vec()
}

#[test]
fn a_range_needs_the_pieces_that_it_touches() {
    let index = open(three()).unwrap();
    let needs = |from, to| {
        let range = index.compressed_range(ByteRange::between(from, to));
        (range.offset(), range.end())
    };
    assert_eq!((needs(0, 1), needs(999, 1000), needs(0, 1000)), ((10, 400), (10, 400), (10, 400)));
    assert_eq!((needs(1000, 1001), needs(999, 1001)), ((399, 900), (10, 900)));
    assert_eq!((needs(2999, 3000), needs(0, u64::MAX)), ((900, 1500), (10, 1500)));
    assert_eq!((needs(1500, 1500), needs(4000, 5000)), ((399, 399), (900, 900)));
}

#[test]
fn windows_come_back_as_they_went_in() {
    let index = open(three()).unwrap();
    assert!(index.window(0).unwrap().iter().all(|&byte| byte == 0));
    assert!(index.window(1).unwrap()[..] == [7; WINDOW_SIZE]);
    assert!(index.window(2).unwrap()[..] == data(1, WINDOW_SIZE));
}

#[test]
fn windows_of_zeros_are_stored_once() {
    let size = |points: u64| {
        let mut writer = IndexWriter::new(1 << 20).unwrap();
        (0..points).for_each(|n| writer.push(n * 100, n * 50 + 10, 0, &[0; WINDOW_SIZE]).unwrap());
        let bytes = writer.finish(points * 50 + 20, points * 100).unwrap().as_slice().unwrap().to_vec();
        open(bytes.clone()).unwrap();
        bytes.len()
    };
    assert!(size(500) < size(1) + 500 * 8, "{} {}", size(500), size(1));
}

#[test]
fn every_cut_and_every_changed_byte_is_an_error_or_changes_nothing() {
    let bytes = three();
    for len in 0..bytes.len() {
        assert_eq!(open(bytes[..len].to_vec()).err().unwrap().kind(), ErrorKind::Corrupt, "{len}");
    }
    let read = |bytes: Vec<u8>| {
        let index = open(bytes)?;
        let windows = (0..3).map(|number| index.window(number)).collect::<Result<Vec<_>>>()?;
        Ok::<_, Error>((index.points().to_vec(), windows))
    };
    let whole = read(bytes.clone()).unwrap();
    let mut unnoticed = 0;
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x11;
        // Deflate streams have a few unused bits, and the Adler-32 of a window misses a few changes. An image's digest
        // of the whole index misses none.
        if let Ok((points, _)) = read(changed) {
            assert!(points == whole.0 && at >= HEADER_SIZE, "{at}");
            unnoticed += 1;
        }
    }
    assert!(unnoticed < 5, "{unnoticed}");
}

#[test]
fn tables_that_do_not_ascend_are_refused() {
    let index = |points: &[(u64, u64, u8)]| {
        let mut writer = IndexWriter::new(1 << 20).unwrap();
        points.iter().for_each(|&(inflated, compressed, bits)| {
            writer.push(inflated, compressed, bits, &[0; WINDOW_SIZE]).unwrap();
        });
        open(writer.finish(1000, 1000).unwrap())
    };
    assert!(index(&[(0, 10, 0), (0, 12, 0), (1000, 999, 7)]).is_ok());
    for wrong in [
        &[(1, 10, 0)][..],
        &[(0, 0, 1)],
        &[(0, 10, 0), (5, 10, 3)],
        &[(0, 10, 0), (5, 20, 0), (4, 30, 0)],
        &[(0, 10, 0), (1001, 20, 0)],
        &[(0, 1000, 0)],
    ] {
        assert_eq!(index(wrong).err().unwrap().kind(), ErrorKind::Corrupt, "{wrong:?}");
    }
}

#[test]
fn indexes_of_the_reference_are_read() {
    let Some(golden) = golden() else { return };
    let json: Value = serde_json::from_slice(&fs::read(golden.join("golden.json")).unwrap()).unwrap();
    let cases = json["cases"].as_array().unwrap();
    let layers = cases.iter().flat_map(|case| case["turbo"]["layers"].as_array().unwrap());
    let mut seen = 0;
    for meta in layers.map(|layer| &layer["gzip_meta"]).filter(|meta| !meta.is_null()) {
        let bytes = fs::read(golden.join(meta["file"].as_str().unwrap())).unwrap();
        let index = open(bytes.clone()).unwrap();
        let header = index.header();
        assert_eq!(header.inflated_size, meta["header"]["uncompress_file_size"].as_u64().unwrap());
        assert_eq!(header.encode().unwrap(), bytes[..HEADER_SIZE], "written again, the header is the same");
        let entries: Vec<_> = index
            .points()
            .iter()
            .map(|p| serde_json::json!([p.inflated, p.compressed, p.window_offset, p.bits, p.window_len]))
            .collect();
        assert_eq!(&Value::Array(entries), &meta["entries"]);
        for number in 0..index.points().len() {
            index.window(number).unwrap();
        }
        seen += 1;
    }
    assert_eq!(seen, 7);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        steps in proptest::collection::vec((0..5000_u64, 1..5000_u64, 0..8_u8, 0..4_u8), 0..40), tail in 1..100_u64,
    ) {
        let mut writer = IndexWriter::new(1 << 20).unwrap();
        let (mut inflated, mut compressed) = (0, 10);
        let mut written = vec![(inflated, compressed, 0, 0)];
        for (more, stored, bits, fill) in steps {
            (inflated, compressed) = (inflated + more, compressed + stored);
            written.push((inflated, compressed, bits, fill));
        }
        for &(inflated, compressed, bits, fill) in &written {
            writer.push(inflated, compressed, bits, &[fill; WINDOW_SIZE]).unwrap();
        }
        let index = open(writer.finish(compressed + tail, inflated + tail).unwrap()).unwrap();
        for (number, &(inflated, compressed, bits, fill)) in written.iter().enumerate() {
            let point = index.points()[number];
            prop_assert_eq!((point.inflated, point.compressed, point.bits), (inflated, compressed, bits));
            prop_assert!(index.window(number).unwrap()[..] == [fill; WINDOW_SIZE]);
        }
        // The pieces tile the data, and a byte's range is the piece's.
        for offset in [0, inflated / 3, inflated, inflated + tail - 1] {
            let piece = index.piece(index.piece_at(offset));
            prop_assert!(piece.inflated.offset() <= offset && offset < piece.inflated.end());
            prop_assert_eq!(index.compressed_range(ByteRange::between(offset, offset + 1)), piece.compressed);
        }
    }

    #[test]
    fn any_bytes_are_an_index_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let magic = b"ddgzidx\0\x01\0\x01";
        let len = bytes.len().min(magic.len());
        bytes[..len].copy_from_slice(&magic[..len]);
        prop_assert!(open(bytes).is_err());
    }
}
