//! Tests of views, by indexes that the reference made and by our own.

use super::*;
use crate::format::{DEFAULT_SPAN, MIN_SPAN};
use crate::indexer::{BuiltIndex, IndexingReader};
use crate::support::{data, golden, gzip, noise};
use flate2::read::MultiGzDecoder;
use headstart_block::ErrorKind;
use std::fs;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

fn built(blob: &[u8], span: u32) -> BuiltIndex {
    IndexingReader::new(blob, span).unwrap().finish().unwrap()
}

fn view_of(blob: Vec<u8>, index: &[u8], cache: usize) -> InflatedView<Vec<u8>> {
    let index = GzipIndex::open(Arc::new(index.to_vec())).unwrap();
    InflatedView::new(blob, Arc::new(index), InflatedCache::new(cache)).unwrap()
}

/// Reads ranges here and there, and everything from the start to the end.
fn check(view: &impl ReadAt, expected: &[u8]) {
    assert_eq!(view.len(), expected.len() as u64);
    let mut next = noise(view.len());
    for _ in 0..60 {
        let len = usize::try_from(next() % 200_000).unwrap().min(expected.len());
        let at = usize::try_from(next()).unwrap() % (expected.len() - len + 1);
        let mut buf = vec![0; len];
        view.read_at(&mut buf, at as u64).unwrap();
        assert!(buf == expected[at..at + len], "{len} bytes at {at}");
    }
    let mut all = Vec::new();
    headstart_block::copy_source(view, &mut all, &mut |_| Ok(())).unwrap();
    assert!(all == expected);
    assert!(view.read_at(&mut [0; 2], view.len() - 1).is_err());
    view.read_at(&mut [], view.len()).unwrap();
}

#[test]
fn views_by_indexes_of_the_reference_give_the_tar() {
    let Some(golden) = golden() else { return };
    for (image, layers) in [("img3", 3), ("quirks2", 2), ("xlink2", 2)] {
        for layer in 0..layers {
            let blob = fs::read(golden.join(format!("{image}/source/layer{layer}.tar.gz"))).unwrap();
            let index = fs::read(golden.join(format!("{image}/turbo/layer{layer}.gzip.meta"))).unwrap();
            let mut tar = Vec::new();
            MultiGzDecoder::new(&blob[..]).read_to_end(&mut tar).unwrap();
            check(&view_of(blob, &index, 1 << 20), &tar);
        }
    }
}

#[test]
fn any_range_is_readable_with_any_size_of_the_cache() {
    let bytes = data(3, 3_000_000);
    for (level, span, cache) in
        [(6, DEFAULT_SPAN, 64 << 20), (1, MIN_SPAN, 0), (9, MIN_SPAN, 600 << 10), (0, MIN_SPAN, 1 << 20)]
    {
        let blob = gzip(&bytes, level);
        let index = built(&blob, span);
        let view = view_of(blob, index.bytes.as_slice().unwrap(), cache);
        check(&view, &bytes);
        assert!(view.cache.bytes() <= cache);
    }
}

#[test]
fn members_are_read_as_one() {
    let parts = [data(1, 300_000), Vec::new(), data(2, 10), data(3, 200_000)];
    let blob: Vec<u8> = parts.iter().flat_map(|part| gzip(part, 6)).collect();
    let index = built(&blob, MIN_SPAN);
    assert_eq!((index.members, index.inflated_size), (4, 500_010));
    check(&view_of(blob, index.bytes.as_slice().unwrap(), 1 << 20), &parts.concat());
}

/// A blob that counts the bytes that are read, and knows the end of those farthest behind.
struct Counted(Vec<u8>, AtomicU64, AtomicU64);

impl ReadAt for Counted {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.2.fetch_max(offset + buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(buf, offset)
    }
}

#[test]
fn reading_on_inflates_nothing_twice_and_reads_only_what_the_range_needs() {
    let bytes = data(5, 4_000_000);
    let blob = gzip(&bytes, 6);
    let len = blob.len() as u64;
    let index = Arc::new(GzipIndex::open(Arc::new(built(&blob, 512 << 10).bytes)).unwrap());
    let counted = Counted(blob, AtomicU64::new(0), AtomicU64::new(0));
    let view = InflatedView::new(counted, Arc::clone(&index), InflatedCache::new(1 << 20)).unwrap();
    let mut buf = vec![0; 10_000];
    for at in (0..bytes.len() - buf.len()).step_by(buf.len()) {
        view.read_at(&mut buf, at as u64).unwrap();
    }
    let read = view.blob.1.swap(0, Ordering::Relaxed);
    // The input of an inflater that is stopped is read again.
    assert!(read < len * 4, "{read} of {len}");

    view.blob.2.store(0, Ordering::Relaxed);
    let cold = InflatedView::new(view.blob, Arc::clone(&index), InflatedCache::new(1 << 20)).unwrap();
    let range = ByteRange::between(1_000_000, 1_010_000);
    cold.read_at(&mut buf, range.offset()).unwrap();
    let needed = index.compressed_range(range);
    assert_eq!(cold.stored_range(range), needed);
    let read = cold.blob.1.load(Ordering::Relaxed);
    assert!(read <= needed.len() * 2, "{read} of {}", needed.len());
    assert!(cold.blob.2.load(Ordering::Relaxed) <= needed.end());
}

#[test]
fn many_readers_at_once_get_the_same_bytes() {
    let bytes = data(7, 2_000_000);
    let blob = gzip(&bytes, 6);
    let view = view_of(blob.clone(), built(&blob, MIN_SPAN).bytes.as_slice().unwrap(), 700 << 10);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check(&view, &bytes));
        }
    });
}

#[test]
fn damage_is_an_error_that_names_the_place() {
    let bytes = data(9, 400_000);
    let blob = gzip(&bytes, 6);
    let index = built(&blob, MIN_SPAN).bytes;
    let mut faults = 0;
    for at in (10..blob.len() - 8).step_by(997) {
        let mut changed = blob.clone();
        changed[at] ^= 0x55;
        let mut all = vec![0; bytes.len()];
        // A changed literal is not noticed: only the digest of the blob tells that.
        if let Err(e) = view_of(changed, index.as_slice().unwrap(), 1 << 20).read_at(&mut all, 0) {
            assert_eq!(e.kind(), ErrorKind::Corrupt);
            assert!(
                e.to_string().contains("of the uncompressed data: the deflate stream before byte "),
                "{e}"
            );
            faults += 1;
        }
    }
    assert!(faults > 20, "{faults}");
    let mut shorter = blob.clone();
    let end = shorter.len() - 4;
    shorter[end] ^= 1;
    let error = view_of(shorter, index.as_slice().unwrap(), 1 << 20)
        .read_at(&mut [0; 1], bytes.len() as u64 - 1)
        .unwrap_err();
    assert!(error.to_string().contains("is not that of the index"), "{error}");
    let other = GzipIndex::open(Arc::new(index)).unwrap();
    let refused = InflatedView::new(blob[1..].to_vec(), Arc::new(other), InflatedCache::new(0));
    assert_eq!(refused.err().unwrap().kind(), ErrorKind::Corrupt);
}
