//! Goal: packed content reads back, here and by any reader that keeps to the format, and its bytes depend on
//! content and options alone. Method: random contents, forms, threads and cuts; the plain reader takes apart
//! the writer's output; the golden set gives the bytes that the reference made of the same.

use crate::golden_zfile::{number, zfile};
use crate::plain::{PlainPart, PlainZFile, mixed, noise};
use headstart_block::{ReadAt, Result};
use headstart_testkit::golden_set::GoldenSet;
use headstart_zfile::{Codec, ZFileInfo, ZFileOptions, ZFileReader, ZFileWriter};
use proptest::prelude::*;
use std::io::Write;
use std::sync::Arc;

/// A source that is not in memory, as far as a reader can tell.
#[derive(Debug)]
struct Distant(Arc<[u8]>);

impl ReadAt for Distant {
    fn len(&self) -> u64 {
        <[u8]>::len(&self.0) as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }
}

/// Packs `content`, written in pieces of the sizes `cuts`, over and over.
fn pack(content: &[u8], options: &ZFileOptions, cuts: &[usize]) -> (Vec<u8>, ZFileInfo) {
    let mut writer = ZFileWriter::new(Vec::new(), options).unwrap();
    let mut rest = content;
    for (i, cut) in cuts.iter().cycle().enumerate() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*cut).min(rest.len()));
        writer.write_all(piece).unwrap();
        if i % 7 == 3 {
            writer.flush().unwrap();
        }
        rest = after;
    }
    writer.finish().unwrap()
}

fn options() -> impl Strategy<Value = ZFileOptions> {
    (prop_oneof![Just(Codec::Lz4), Just(Codec::Zstd)], 0u32..5, any::<bool>(), 1usize..5).prop_map(
        |(codec, size, crc, threads)| ZFileOptions {
            codec,
            frame_size: 4096 << size,
            crc,
            level: None,
            threads,
        },
    )
}

/// Lengths around the edges of frames and batches, and any others.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..10_000,
        0usize..900_000,
        (0usize..14, 0usize..3).prop_map(|(frames, more)| (frames * 65536 + more).saturating_sub(1)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn packed_bytes_read_back(
        options in options(), len in length(), seed: u64,
        cuts in proptest::collection::vec(prop_oneof![1usize..300, 1usize..600_000], 1..4),
        ranges in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..200_000), 30),
    ) {
        let cuts: Vec<_> = cuts.into_iter().map(|cut| cut.max(len / 2000)).collect();
        let content = mixed(seed, len);
        let (blob, info) = pack(&content, &options, &cuts);
        let whole = pack(&content, &ZFileOptions { threads: 1, ..options.clone() }, &[usize::MAX]);
        prop_assert!((&blob, &info) == (&whole.0, &whole.1), "threads and cuts show");

        let plain = PlainZFile::parse(&blob);
        prop_assert!(plain.content == content);
        prop_assert_eq!((plain.header.flags, plain.trailer.flags), (19, 22));

        let near = ZFileReader::open(blob.clone()).unwrap();
        let far = ZFileReader::open(Distant(blob.into())).unwrap();
        prop_assert_eq!((near.info(), far.info()), (&info, &info));
        near.verify().unwrap();
        far.verify().unwrap();
        let mut forward = 0;
        for (i, (at, want)) in ranges.into_iter().enumerate() {
            // Every other range goes on where the last one ended, in small steps.
            let start = if i % 2 == 0 { at.index(len + 1) } else { forward };
            let want = if i % 2 == 0 { want } else { want % 5000 };
            let end = (start + want).min(len);
            forward = end;
            let mut buf = [vec![1; end - start], vec![2; end - start]];
            near.read_at(&mut buf[0], start as u64).unwrap();
            far.read_at(&mut buf[1], start as u64).unwrap();
            prop_assert!(buf[0] == content[start..end] && buf[1] == content[start..end], "{start}..{end}");
            prop_assert!(near.read_at(&mut vec![0; len - start + 1], start as u64).is_err());
        }
    }
}

#[test]
fn frames_of_64k_that_do_not_compress_read_back() {
    let content = noise(1, 300_000);
    for codec in [Codec::Lz4, Codec::Zstd] {
        let options = ZFileOptions { codec, frame_size: 64 << 10, ..ZFileOptions::default() };
        let (blob, info) = pack(&content, &options, &[usize::MAX]);
        assert!(info.compressed_size > content.len() as u64, "{codec} grew");
        assert!(PlainZFile::parse(&blob).entries.iter().any(|entry| *entry > 65536));
        for reader in [
            ZFileReader::open(Box::new(Distant(blob.clone().into())) as Box<dyn ReadAt>).unwrap(),
            ZFileReader::open(Box::new(blob) as Box<dyn ReadAt>).unwrap(),
        ] {
            let mut buf = vec![0; content.len()];
            reader.read_at(&mut buf, 0).unwrap();
            assert!(buf == content, "{codec}");
            reader.read_at(&mut buf[..5000], 63_000).unwrap();
            assert!(buf[..5000] == content[63_000..68_000], "{codec}");
        }
    }
}

#[test]
fn long_reads_of_distant_sources_come_in_bounded_pieces() {
    /// Notes the longest read.
    #[derive(Debug)]
    struct Watched(Vec<u8>, std::sync::atomic::AtomicUsize);
    impl ReadAt for Watched {
        fn len(&self) -> u64 {
            ReadAt::len(&self.0)
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.1.fetch_max(buf.len(), std::sync::atomic::Ordering::Relaxed);
            self.0.read_at(buf, offset)
        }
    }
    let content = noise(7, 5_000_000);
    let (blob, _) = pack(&content, &ZFileOptions { threads: 2, ..ZFileOptions::default() }, &[usize::MAX]);
    let reader = ZFileReader::open(Watched(blob, 0.into())).unwrap();
    let mut buf = vec![0; content.len() - 10];
    reader.read_at(&mut buf, 5).unwrap();
    assert!(buf == content[5..content.len() - 5]);
    let longest = reader.source().1.load(std::sync::atomic::Ordering::Relaxed) as u64;
    assert!((100_000..=headstart_zfile::reader::FETCH_MAX).contains(&longest), "{longest}");
}

#[test]
fn a_zfile_in_a_zfile_reads() {
    let content = mixed(3, 400_000);
    let lz4 = ZFileOptions { codec: Codec::Lz4, ..ZFileOptions::default() };
    let (inner, _) = pack(&content, &lz4, &[usize::MAX]);
    let (outer, _) = pack(&inner, &ZFileOptions::default(), &[usize::MAX]);
    let reader = ZFileReader::open(ZFileReader::open(Distant(outer.into())).unwrap()).unwrap();
    for (start, end) in [(0, 400_000), (10, 20), (20, 5000), (100_000, 100_001), (399_999, 400_000)] {
        let mut buf = vec![0; end - start];
        reader.read_at(&mut buf, start as u64).unwrap();
        assert!(buf == content[start..end], "{start}..{end}");
    }
}

/// Two readers over different contents, used in turn by the same threads: neither ever gets the other's frame.
#[test]
fn readers_do_not_see_each_others_frames() {
    let contents: Vec<_> = (0..3).map(|seed| mixed(seed, 200_000)).collect();
    let readers: Vec<_> = contents
        .iter()
        .zip([Codec::Lz4, Codec::Zstd, Codec::Lz4])
        .map(|(content, codec)| {
            let options = ZFileOptions { codec, ..ZFileOptions::default() };
            ZFileReader::open(Distant(pack(content, &options, &[usize::MAX]).0.into())).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (readers, contents) = (&readers, &contents);
            scope.spawn(move || {
                for step in 0..3000 {
                    let (which, start) = ((step + thread) % 3, step * 61 % 199_000);
                    let mut buf = [0; 1000];
                    readers[which].read_at(&mut buf, start as u64).unwrap();
                    assert!(buf == contents[which][start..start + 1000], "{which} {start}");
                }
            });
        }
    });
}

/// Repacks blobs of the reference, with the same options. Compressed bytes depend on the codec's version;
/// all the rest does not.
#[test]
fn our_bytes_are_the_references() {
    let Some(set) = GoldenSet::open() else { return };
    let mut same = 0;
    for case in set.cases("zfile") {
        let name = case["name"].as_str().unwrap();
        let theirs = zfile(&set, case);
        let their_plain = PlainZFile::parse(&theirs);
        let options = ZFileOptions {
            codec: case["parameters"]["algo"].as_str().unwrap().parse().unwrap(),
            frame_size: u32::try_from(number(&case["parameters"]["block_size"])).unwrap(),
            crc: case["parameters"]["verify"] == 1,
            ..ZFileOptions::default()
        };
        let (ours, _) = pack(&their_plain.content, &options, &[usize::MAX]);
        let our_plain = PlainZFile::parse(&ours);
        if !case["parameters"]["header_overwritten"].as_bool().unwrap() {
            assert!(ours[..512] == theirs[..512], "{name}: header");
        }
        let fixed = |part: &PlainPart| PlainPart { digest: 0, index_offset: 0, index_crc: 0, ..part.clone() };
        assert_eq!(fixed(&our_plain.trailer), fixed(&their_plain.trailer), "{name}: trailer");
        if our_plain.entries == their_plain.entries {
            assert!(ours[ours.len() - 512..] == theirs[theirs.len() - 512..], "{name}: trailer");
            same += usize::from(ours[512..] == theirs[512..]);
        }
    }
    assert!(same >= 5, "only {same} blobs are the same to the last byte");
}

/// A source whose bytes were found wrong and replaced.
#[derive(Debug)]
struct Replaced(std::sync::Mutex<Vec<u8>>);

impl ReadAt for Replaced {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.lock().unwrap().read_at(buf, offset)
    }
}

#[test]
fn the_remembered_frame_of_a_thread_can_be_forgotten() {
    let content = noise(1, 64 << 10);
    let options =
        ZFileOptions { codec: Codec::Lz4, frame_size: 16 << 10, crc: false, level: None, threads: 1 };
    let (blob, info) = pack(&content, &options, &[content.len()]);
    let reader = ZFileReader::open(Replaced(blob.into())).unwrap();
    let read = || {
        let mut part = vec![0; 100];
        reader.read_at(&mut part, 20_000).unwrap();
        part
    };
    assert!(read() == content[20_000..20_100]);
    // Noise is stored as it is, behind 66 bytes in each frame: any byte of it shows.
    let frame = (usize::try_from(info.index_offset).unwrap() - 512) / 4;
    let at = 512 + frame + 66 + (20_050 - (16 << 10));
    reader.source().0.lock().unwrap()[at] ^= 1;
    headstart_zfile::forget_recent_frames();
    let changed = read().iter().zip(&content[20_000..20_100]).filter(|(a, b)| a != b).count();
    assert_eq!(changed, 1);
}
