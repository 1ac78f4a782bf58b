//! Goal: reads allocate nothing once a thread has met its first frames, and opening never allocates more
//! than in proportion to the blob. Method: an allocator that counts what the test's own thread asks of it.

use crate::plain::mixed;
use headstart_block::{FileSource, ReadAt};
use headstart_zfile::{Codec, ZFileOptions, ZFileReader, ZFileWriter};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

fn count(size: usize) {
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + size as u64));
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as our caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as our caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as our caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as our caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn pack(content: &[u8], codec: Codec) -> Vec<u8> {
    let options = ZFileOptions { codec, frame_size: 16 << 10, ..ZFileOptions::default() };
    let mut writer = ZFileWriter::new(Vec::new(), &options).unwrap();
    writer.write_all(content).unwrap();
    writer.finish().unwrap().0
}

#[test]
fn reads_allocate_nothing() {
    let content = mixed(1, 3 << 20);
    let dir = tempfile::tempdir().unwrap();
    for codec in [Codec::Lz4, Codec::Zstd] {
        let blob = pack(&content, codec);
        let path = dir.path().join(codec.to_string());
        std::fs::write(&path, &blob).unwrap();
        let near = ZFileReader::open(blob).unwrap();
        let far = ZFileReader::open(FileSource::open(&path).unwrap()).unwrap();
        let readers: [&dyn ReadAt; 2] = [&near, &far];
        let mut buf = vec![0; 1 << 20];
        for reader in readers {
            // The thread's buffer for compressed bytes grows to the largest piece that is fetched.
            for start in [0, 5, 1 << 20, 2 << 20] {
                reader.read_at(&mut buf, start).unwrap();
            }
            let before = CALLS.get();
            for step in 0..500 {
                let (start, len) = (step * 4099 % (2 << 20), [4096, 100, 70_000, 300_000][step % 4]);
                reader.read_at(&mut buf[..len], start as u64).unwrap();
                assert!(buf[..len] == content[start..start + len]);
            }
            assert_eq!(CALLS.get() - before, 0, "{codec}");
        }
    }
}

#[test]
fn opening_allocates_no_more_than_the_index() {
    let blob = pack(&mixed(2, 1 << 20), Codec::Lz4);
    let before = BYTES.get();
    let reader = ZFileReader::open(blob).unwrap();
    let allocated = BYTES.get() - before;
    let index = reader.info().index_size();
    // The index in memory and the piece of it that is read at a time.
    assert!(allocated <= 2 * index + 64, "{allocated} for an index of {index}");

    // Claims that the blob cannot hold.
    let mut blob = pack(&[], Codec::Lz4);
    blob[32] = 0b1011;
    blob[40..48].copy_from_slice(&512u64.to_le_bytes());
    blob[48..56].copy_from_slice(&1_000_000_000u64.to_le_bytes());
    blob[56..64].copy_from_slice(&(16_384 * 1_000_000_000u64).to_le_bytes());
    let before = BYTES.get();
    assert!(ZFileReader::open(blob).is_err());
    assert!(BYTES.get() - before < 4096);
}
