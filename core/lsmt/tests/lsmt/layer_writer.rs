//! Layers of the layer writer are read back the same by the crate and by the plain reader, and it refuses
//! input that would make no layer.

use crate::plain;
use crate::random_layers::wanted;
use headstart_block::{BlockDevice, ByteRange, ErrorKind};
use headstart_lsmt::{Layer, LayerMeta, LayerWriter, Segment, Stack, copy_segments};
use proptest::prelude::*;
use std::sync::Arc;

fn writer(virtual_size: u64) -> LayerWriter<Vec<u8>> {
    LayerWriter::new(Vec::new(), LayerMeta { virtual_size, ..LayerMeta::default() }).unwrap()
}

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange::new(offset, len).unwrap()
}

/// Finishes a layer and reads it back by both readers.
fn read_back(writer: LayerWriter<Vec<u8>>) -> (Layer, plain::PlainLayer) {
    let (file, summary) = writer.finish().unwrap();
    assert_eq!(summary.file_size, file.len() as u64);
    let plain = plain::sealed(&file).unwrap();
    assert_eq!(summary.segments, plain.records.len() as u64);
    assert_eq!(summary.data_bytes, plain.trailer.index_offset - 4096);
    (Layer::open(Arc::new(file)).unwrap(), plain)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_layers_are_read_back_by_both_readers(layer in wanted(30)) {
        let file = layer.file();
        let plain = plain::sealed(&file).unwrap();
        plain.disk.compare(&layer.model()).unwrap();
        prop_assert_eq!((plain.header.flags, plain.trailer.flags), (7, 6));
        prop_assert_eq!((plain.header.index_offset, plain.header.index_size), (0, 0));
        prop_assert!(plain.header.rest_is_zero && plain.trailer.rest_is_zero);
        prop_assert_eq!(plain.trailer.index_size % 256, 0);
        prop_assert_eq!(plain.trailer.index_offset + plain.trailer.index_size * 16 + 4096, file.len() as u64);

        let ours = Layer::open(Arc::new(file)).unwrap();
        prop_assert_eq!(ours.info().virtual_size, layer.virtual_size);
        let fields = |s: &Segment| [s.offset(), s.len(), s.moffset(), s.is_zeroed().into(), s.layer().into()];
        prop_assert!(ours.segments().iter().map(fields).eq(plain.records.iter().copied()));
        // Data is contiguous from sector 8 in the order of the disk; no two records could be one.
        let mut next = 8;
        for segment in ours.segments() {
            prop_assert_eq!(segment.moffset(), next);
            next = segment.mend();
        }
        let joined = |pair: &[Segment]| pair[0].is_continued_by(pair[1]);
        for pair in ours.segments().windows(2).filter(|pair| joined(pair)) {
            prop_assert!(pair[0].len() + pair[1].len().min(64) >= Segment::MAX_LEN);
        }
    }

    #[test]
    fn a_run_given_in_parts_gives_the_same_file(sectors in 1usize..400, cut in 0usize..7) {
        let bytes: Vec<u8> = (0..sectors * 512).map(|i| (i / 100) as u8).collect();
        let mut whole = writer(1 << 20);
        whole.data(512, &bytes).unwrap();
        let mut parts = writer(1 << 20);
        let cut = (cut * (32 << 10)).min(bytes.len());
        parts.data(512, &bytes[..cut]).unwrap();
        parts.data(512 + cut as u64, &bytes[cut..]).unwrap();
        prop_assert!(whole.finish().unwrap().0 == parts.finish().unwrap().0);
    }
}

#[test]
fn an_empty_layer_has_no_table() {
    let (layer, plain) = read_back(writer(1 << 30));
    assert!(layer.segments().is_empty());
    assert_eq!(plain.trailer.index_size, 0);
    assert_eq!(layer.info().file_size, 8192);
}

#[test]
fn long_runs_are_cut_below_the_longest_record() {
    // 16320 is the largest multiple of the piece (64 sectors) below 16383; zeroed runs are cut at 16383.
    let mut data = writer(1 << 30);
    data.data(0, &vec![1; 40_000 * 512]).unwrap();
    let lengths: Vec<_> = read_back(data).0.segments().iter().map(|segment| segment.len()).collect();
    assert_eq!(lengths, [16320, 16320, 7360]);

    let mut zeroed = writer(1 << 30);
    zeroed.zeroes(range(0, 40_000 * 512)).unwrap();
    let lengths: Vec<_> = read_back(zeroed).0.segments().iter().map(|segment| segment.len()).collect();
    assert_eq!(lengths, [16383, 16383, 7234]);
}

#[test]
fn the_last_sector_of_an_odd_disk_is_whole() {
    let mut odd = writer(1000);
    odd.data(512, &[7; 512]).unwrap();
    assert_eq!(odd.data(1024, &[7; 512]).unwrap_err().kind(), ErrorKind::Invalid);
    let stack = Stack::new(vec![read_back(odd).0]).unwrap();
    let mut end = [0; 10];
    stack.read_at(&mut end, 990).unwrap();
    assert_eq!((stack.size(), end), (1000, [7; 10]));
}

/// Zeroes may be past the end of a smaller disk, and hide data that would come back if it grew again.
#[test]
fn zeroes_past_the_end_hide_what_lies_below() {
    let mut lower = writer(1 << 20);
    lower.data(0, &vec![1; 1 << 20]).unwrap();
    let mut smaller = writer(1000);
    smaller.zeroes(range(1024, (1 << 20) - 1024)).unwrap();
    let grown = writer(1 << 20);
    let stack = Stack::new([lower, smaller, grown].map(|writer| read_back(writer).0).to_vec()).unwrap();
    let mut bytes = vec![9; 1 << 20];
    stack.read_at(&mut bytes, 0).unwrap();
    assert!(bytes[..1024].iter().all(|&byte| byte == 1) && bytes[1024..].iter().all(|&byte| byte == 0));
}

/// A layer of virtual size 0 takes its size from those below, so its runs may be anywhere.
#[test]
fn a_layer_without_a_size_may_hold_any_sector() {
    let mut writer = writer(0);
    writer.data(5 << 40, &[7; 1024]).unwrap();
    let (layer, plain) = read_back(writer);
    assert_eq!((plain.disk.size, layer.segments().len()), (0, 1));
    assert_eq!(layer.segments()[0].offset(), 5 << 31);
}

/// The virtual size of a layer to be committed may come from a hostile header.
#[test]
fn the_largest_virtual_size_is_no_panic() {
    for virtual_size in [u64::MAX, u64::MAX - 511, 1 << 63] {
        let mut writer = writer(virtual_size);
        writer.data(512, &[7; 512]).unwrap();
        // Past what a record can name, whatever the size says.
        assert_eq!(writer.zeroes(range((1 << 59) - 512, 512)).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(read_back(writer).0.info().virtual_size, virtual_size);
    }
}

#[test]
fn runs_that_make_no_layer_are_refused() {
    let mut writer = writer(1 << 20);
    writer.data(4096, &[1; 512]).unwrap();
    let refused = [
        ("behind the last run", writer.data(4096, &[1; 512])),
        ("not a whole sector", writer.data(8192, &[1; 100])),
        ("not at a sector", writer.data(8200, &[1; 512])),
        ("past the end", writer.data((1 << 20) - 512, &[1; 1024])),
        ("zeroes that no record can name", writer.zeroes(range((1 << 59) - 512, 512))),
        ("zeroes behind the last run", writer.zeroes(range(512, 512))),
        ("far past the end", writer.data(u64::MAX - 511, &[1; 512])),
    ];
    for (what, result) in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid, "{what}");
    }
    // Nothing of it is left in the layer.
    writer.data(4608, &[2; 512]).unwrap();
    let (layer, plain) = read_back(writer);
    assert_eq!(layer.segments(), [Segment::data(8, 2, 8)]);
    assert_eq!(plain.disk.read(4096, 1024), [[1; 512], [2; 512]].concat());
}

/// A disk may be smaller than its layers (a smaller layer on top): data past its end is no
/// part of it and cannot be copied.
#[test]
fn copying_stops_at_the_end_of_the_disk() {
    let mut wide = writer(1 << 20);
    wide.data(0, &[1; 8192]).unwrap();
    wide.zeroes(range(16384, 8192)).unwrap();
    wide.data(65536, &[2; 8192]).unwrap();
    let wide = read_back(wide).0;
    for size in [100, 512, 700, 4096, 8192, 17000, 20000, 65536, 66000, 1 << 20] {
        let narrow = read_back(writer(size)).0;
        let stack = Stack::new(vec![wide.clone(), narrow]).unwrap();
        let mut copy = writer(size);
        let mut copied = 0;
        let mut count = |bytes| {
            copied += bytes;
            Ok(())
        };
        copy_segments(&stack, stack.index().segments().iter().copied(), &mut copy, &mut count).unwrap();
        let copy = read_back(copy).0;
        let covered: u64 = copy.segments().iter().map(|segment| segment.len() * 512).sum();
        assert_eq!(copied, covered, "{size}");
        let copy = Stack::new(vec![copy]).unwrap();
        let [mut a, mut b] = [vec![9; size as usize], vec![8; size as usize]];
        stack.read_at(&mut a, 0).unwrap();
        copy.read_at(&mut b, 0).unwrap();
        assert!(a == b, "{size}");
    }
}

#[test]
fn copying_ends_where_its_observer_says_so() {
    let mut source = writer(1 << 20);
    source.data(0, &[1; 8192]).unwrap();
    let stack = Stack::new(vec![read_back(source).0]).unwrap();
    let mut stop = |_| Err(headstart_block::Error::new(ErrorKind::Cancelled, "stopped"));
    let result =
        copy_segments(&stack, stack.index().segments().iter().copied(), &mut writer(1 << 20), &mut stop);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Cancelled);
}

/// Data of `len` sectors that tells which sector of the disk each byte is of.
fn telling(sector: u64, len: u64) -> Vec<u8> {
    (sector..sector + len).flat_map(|sector| [(sector * 7 + 1) as u8; 512]).collect()
}

proptest! {
    #[test]
    fn runs_in_any_order_lie_as_given(
        runs in prop::collection::vec((1u64..200, any::<bool>(), any::<u32>()), 1..60),
        gaps in prop::collection::vec(0u64..3, 60),
    ) {
        // Runs with their places; then in another order.
        let mut at = 0;
        let mut placed: Vec<_> = runs.iter().zip(gaps).map(|(&(len, zeroed, rank), gap)| {
            at += gap + len;
            (rank, at - len, len, zeroed)
        }).collect();
        let (size, mut expected) = (at * 512, vec![0u8; (at * 512) as usize]);
        placed.sort_unstable();
        let mut writer = writer(size).in_any_order();
        for &(_, start, len, zeroed) in &placed {
            if zeroed {
                writer.zeroes(range(start * 512, len * 512)).unwrap();
            } else {
                writer.data(start * 512, &telling(start, len)).unwrap();
                expected[(start * 512) as usize..((start + len) * 512) as usize].copy_from_slice(&telling(start, len));
            }
        }
        let (layer, plain) = read_back(writer);
        let mut segments: Vec<_> = layer.segments().iter().filter(|segment| !segment.is_zeroed()).copied().collect();
        prop_assert!(plain.records.windows(2).all(|pair| pair[0][0] + pair[0][1] <= pair[1][0]));
        let zeroed: u64 = placed.iter().filter(|run| run.3).map(|run| run.2).sum();
        let found = layer.segments().iter().filter(|segment| segment.is_zeroed());
        prop_assert_eq!(found.map(|segment| segment.len()).sum::<u64>(), zeroed);
        // The data is contiguous, in the order in which it was given.
        segments.sort_unstable_by_key(|segment| segment.moffset());
        let sectors = |(start, len): (u64, u64)| start..start + len;
        let given = placed.iter().filter(|run| !run.3).flat_map(|run| sectors((run.1, run.2)));
        prop_assert!(segments.iter().flat_map(|segment| sectors((segment.offset(), segment.len()))).eq(given));
        prop_assert!(segments.first().is_none_or(|first| first.moffset() == 8));
        prop_assert!(segments.windows(2).all(|pair| pair[0].mend() == pair[1].moffset()));
        let disk = Stack::new(vec![layer]).unwrap();
        let mut read = vec![1; expected.len()];
        disk.read_at(&mut read, 0).unwrap();
        prop_assert!(read == expected);
    }
}

#[test]
fn overlapping_runs_are_refused_in_any_order() {
    let given = |runs: &[(u64, u64)]| {
        let mut writer = writer(1 << 20).in_any_order();
        runs.iter().for_each(|&(start, len)| writer.data(start * 512, &telling(start, len)).unwrap());
        writer.finish().map(|_| ())
    };
    given(&[(100, 10), (0, 100), (110, 1)]).unwrap();
    for runs in [&[(100, 10), (0, 101)][..], &[(0, 10), (0, 10)], &[(5, 1), (0, 300)], &[(0, 300), (299, 1)]]
    {
        assert_eq!(given(runs).unwrap_err().kind(), ErrorKind::Invalid, "{runs:?}");
    }
    // In the disk's order it is told at once, and any order that is the disk's gives the same file.
    let mut ascending = writer(1 << 20);
    assert!(ascending.data(512, &[1; 512]).and_then(|()| ascending.data(0, &[1; 512])).is_err());
    let files = [writer(1 << 20), writer(1 << 20).in_any_order()].map(|mut writer| {
        writer.data(512, &telling(1, 100)).unwrap();
        writer.zeroes(range(101 * 512, 512)).unwrap();
        writer.data(200 * 512, &telling(200, 70)).unwrap();
        writer.finish().unwrap().0
    });
    assert!(files[0] == files[1]);
}
