//! Goal: a source hears of frames when all of their content was given out, and not before; of every page in the end.
//! Method: random reads against a model of the content that was given out, in blocks of 4 KiB.

use crate::plain::mixed;
use headstart_block::{ByteRange, ReadAt, Result, to_usize};
use headstart_zfile::{Codec, ZFileOptions, ZFileReader, ZFileWriter};
use proptest::prelude::*;
use std::io::Write;
use std::sync::Mutex;

const PAGE: u64 = 4096;
const BLOCK: u64 = 4096;

/// A source that notes what it is told.
struct Told {
    bytes: Vec<u8>,
    ranges: Mutex<Vec<ByteRange>>,
}

impl ReadAt for Told {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.bytes.read_at(buf, offset)
    }

    fn wants_decoded(&self) -> bool {
        true
    }

    fn note_decoded(&self, range: ByteRange) {
        self.ranges.lock().unwrap().push(range);
    }
}

impl Told {
    /// The pages that it was told of whole since the last call, the last page of the blob cut at its end.
    fn pages(&self) -> Vec<u64> {
        let ranges = std::mem::take(&mut *self.ranges.lock().unwrap());
        let end = |range: &ByteRange| {
            if range.end() == self.len() { self.len().div_ceil(PAGE) } else { range.end() / PAGE }
        };
        ranges.iter().flat_map(|range| range.offset().div_ceil(PAGE)..end(range)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn pages_are_told_when_all_of_their_frames_were_given_out(
        seed in any::<u64>(),
        len in 1usize..600_000,
        (zstd, size) in (any::<bool>(), 0u32..5),
        reads in prop::collection::vec((any::<prop::sample::Index>(), 1u64..70_000), 1..80),
    ) {
        let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
        let frame_size = 4096 << size;
        let options = ZFileOptions { codec, frame_size, threads: 1, ..ZFileOptions::default() };
        let content = mixed(seed, len);
        let len = len as u64;
        let mut writer = ZFileWriter::new(Vec::new(), &options).unwrap();
        writer.write_all(&content).unwrap();
        let (bytes, info) = writer.finish().unwrap();
        let source = Told { bytes, ranges: Mutex::default() };
        let reader = ZFileReader::open(source).unwrap();
        // Header, frames, and the index with the trailer, as places in the blob and in the content.
        let places: Vec<_> = (0..info.frames).map(|frame| {
            let start = frame * u64::from(frame_size);
            let content = ByteRange::between(start, (start + u64::from(frame_size)).min(len));
            (reader.stored_range(content), content)
        }).collect();
        let mut given = vec![false; to_usize(len.div_ceil(BLOCK))];
        let mut told = vec![false; to_usize(reader.source().len().div_ceil(PAGE))];
        let whole = (0, len);
        let reads = reads.into_iter().map(|(at, wanted)| {
            let at = at.index(to_usize(len)) as u64;
            (at, wanted.min(len - at))
        });
        for (at, wanted) in reads.chain([whole]) {
            let mut buf = vec![0; to_usize(wanted)];
            reader.read_at(&mut buf, at).unwrap();
            for block in at / BLOCK..(at + wanted).div_ceil(BLOCK) {
                given[to_usize(block)] = true;
            }
            let was_given = |content: &ByteRange| {
                (content.offset() / BLOCK..content.end().div_ceil(BLOCK)).all(|block| given[to_usize(block)])
            };
            for page in reader.source().pages() {
                told[to_usize(page)] = true;
                let bytes = ByteRange::between(page * PAGE, (page + 1) * PAGE);
                for (stored, content) in &places {
                    prop_assert!(
                        bytes.intersect(*stored).is_empty() || was_given(content),
                        "page {page} is still needed for {content}"
                    );
                }
            }
        }
        prop_assert!(told.iter().all(|told| *told), "all was given out: {told:?}");
    }
}
