//! Layers with a target: a part of their bytes is in another file, as in the metadata of TurboOCI layers.

// `ReadAt` itself stays out of scope: its `len` would hide that of a vector behind an `Arc`.
use headstart_block::{self as block, BlockDevice, ByteRange, Error, ErrorKind};
use headstart_lsmt::format::{Flags, Page, UserTag};
use headstart_lsmt::{Layer, LayerMeta, LayerWriter, Segment, Stack, StackSource};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use uuid::Uuid;

const SECTORS: u64 = 400;

/// A run of a layer: the gap before it, its length, its place in the target if it is there.
type Run = (u64, u64, Option<u64>);

/// The bytes of a sector, told apart by the file that it is in.
fn sector(file: u8, number: u64) -> [u8; 512] {
    let mut bytes = [file; 512];
    bytes[..8].copy_from_slice(&(number + 1).to_le_bytes());
    bytes
}

fn target() -> Vec<u8> {
    (0..SECTORS).flat_map(|number| sector(0xb0, number)).collect()
}

fn page(flags: u32, index_offset: u64, index_size: u64) -> [u8; 4096] {
    let (uuid, parent_uuid, user_tag) = (Uuid::nil(), Uuid::nil(), UserTag::default());
    let virtual_size = SECTORS * 512;
    Page { flags: Flags(flags), index_offset, index_size, virtual_size, uuid, parent_uuid, user_tag }.encode()
}

/// The file of a layer with these records; its data are so many sectors.
fn file(data: u64, records: &[Segment]) -> Vec<u8> {
    let mut file = page(Flags::HEADER | Flags::DATA | Flags::SEALED, 0, 0).to_vec();
    file.extend((0..data).flat_map(|number| sector(0xa0, 8 + number)));
    let index_offset = file.len() as u64;
    // Like the reference: no padding, so the trailer is not aligned.
    file.extend(records.iter().flat_map(|record| record.to_record()));
    file.extend(page(Flags::DATA | Flags::SEALED, index_offset, records.len() as u64));
    file
}

/// The records of runs, the sectors of data that they need, and the disk.
fn layout(runs: &[Run]) -> (Vec<Segment>, u64, Vec<u8>) {
    let (mut records, mut data, mut at) = (Vec::new(), 0, 0);
    let mut disk = vec![0; (SECTORS * 512) as usize];
    for &(gap, len, place) in runs {
        let offset = at + gap;
        at = offset + len;
        if at > SECTORS {
            break;
        }
        let (tag, first) = match place {
            Some(place) => (1, place.min(SECTORS - len)),
            None => (0, 8 + data),
        };
        for number in 0..len {
            let bytes = sector(if tag == 1 { 0xb0 } else { 0xa0 }, first + number);
            disk[((offset + number) * 512) as usize..][..512].copy_from_slice(&bytes);
        }
        data += if tag == 0 { len } else { 0 };
        records.push(Segment::data(offset, len, first).with_layer(tag));
    }
    (records, data, disk)
}

fn open(data: u64, records: &[Segment]) -> block::Result<Layer> {
    Layer::open_with_target(Arc::new(file(data, records)), Arc::new(target()))
}

fn read(disk: &Stack) -> Vec<u8> {
    let mut bytes = vec![0xee; disk.size() as usize];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    vec((0..6_u64, 1..12_u64, proptest::option::of(0..SECTORS)), 0..50)
}

proptest! {
    #[test]
    fn each_sector_is_that_of_the_file_which_its_tag_names(runs in runs(), upper in runs(), at in 0..SECTORS * 512) {
        let (records, data, disk) = layout(&runs);
        let layer = open(data, &records).unwrap();
        let alone = Stack::new(vec![layer.clone()]).unwrap();
        prop_assert!(read(&alone) == disk);
        let mut part = vec![0; (disk.len() as u64 - at).min(7777) as usize];
        alone.read_at(&mut part, at).unwrap();
        prop_assert!(part[..] == disk[at as usize..][..part.len()]);

        // Above it a layer with a target, too: the upper one wins.
        let (records, data, top) = layout(&upper);
        let both = Stack::new(vec![layer, open(data, &records).unwrap()]).unwrap();
        let sectors = disk.chunks(512).zip(top.chunks(512));
        let merged: Vec<u8> =
            sectors.flat_map(|(low, top)| if top[511] == 0 { low } else { top }).copied().collect();
        prop_assert!(read(&both) == merged);
        both.stored_ranges(ByteRange::between(0, both.size()), &mut |source, range| {
            assert!(source < 4 && range.end() <= file(data, &records).len() as u64 + (SECTORS * 512));
        });
    }
}

#[test]
fn sources_are_numbered_layer_by_layer_and_count_towards_the_limit() {
    let layer = || open(1, &[Segment::data(0, 1, 8), Segment::data(1, 1, 0).with_layer(1)]).unwrap();
    let plain = Layer::open(Arc::new(file(1, &[Segment::data(9, 1, 8)]))).unwrap();
    let stack = Stack::new(vec![layer(), plain, layer()]).unwrap();
    let source = |layer, is_target| StackSource { layer, is_target };
    let expected = [source(0, false), source(0, true), source(1, false), source(2, false), source(2, true)];
    assert_eq!((stack.sources(), stack.layers()), (&expected[..], 3));
    assert!(Stack::new(vec![layer(); 127]).is_ok());
    assert_eq!(Stack::new(vec![layer(); 128]).err().unwrap().kind(), ErrorKind::Invalid);
}

#[test]
fn records_that_point_nowhere_are_refused() {
    let refused = |records: &[Segment]| {
        let error: Error = open(4, records).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        error.to_string()
    };
    let at = |offset, len, place, tag| Segment::data(offset, len, place).with_layer(tag);
    assert!(open(4, &[at(0, 4, 8, 0), at(4, 4, 396, 1), at(9, 1, 0, 1)]).is_ok());
    assert!(refused(&[at(0, 4, 397, 1)]).contains("points outside the target (400 sectors)"));
    assert!(refused(&[at(0, 5, 8, 0)]).contains("points outside the layer's data"));
    assert!(refused(&[at(0, 4, 8, 2)]).contains("neither of the layer nor of its target"));
    assert!(refused(&[at(0, 4, 8, 0), at(3, 1, 0, 1)]).contains("out of order"));
    assert!(refused(&[Segment::zeroed(0, 4, 8).with_layer(1)]).contains("neither"));
}

#[test]
fn metadata_without_its_target_is_refused_with_the_reason() {
    let records = [Segment::data(0, 1, 8), Segment::data(1, 1, 0).with_layer(1)];
    let error = Layer::open(Arc::new(file(1, &records))).err().unwrap();
    assert!(error.to_string().contains("TurboOCI"), "{error}");
}

proptest! {
    #[test]
    fn written_layers_have_their_runs_in_either_file(runs in runs(), flip in 0..50_usize) {
        let (records, _, disk) = layout(&runs);
        let meta = LayerMeta { virtual_size: disk.len() as u64, ..LayerMeta::default() };
        let mut writer = LayerWriter::new(Vec::new(), meta).unwrap().in_any_order().with_target();
        let cut = flip.min(records.len());
        for record in records[cut..].iter().chain(&records[..cut]) {
            let bytes = &disk[(record.offset() * 512) as usize..(record.end() * 512) as usize];
            match record.layer() {
                0 => writer.data(record.offset() * 512, bytes).unwrap(),
                _ => {
                    let range = ByteRange::between(record.offset() * 512, record.end() * 512);
                    writer.target(range, record.moffset() * 512).unwrap();
                }
            }
        }
        let (file, summary) = writer.finish().unwrap();
        // As the reference's metadata: no padding records, and so a trailer at any multiple of 16 bytes.
        prop_assert_eq!(file.len() as u64, summary.index_offset() + summary.segments * 16 + 4096);
        let layer = Layer::open_with_target(Arc::new(file), Arc::new(target())).unwrap();
        prop_assert_eq!(layer.info().records, summary.segments);
        prop_assert!(read(&Stack::new(vec![layer]).unwrap()) == disk);
    }
}

#[test]
fn long_runs_in_the_target_are_cut_and_short_ones_joined() {
    let mut writer = LayerWriter::new(Vec::new(), LayerMeta::default()).unwrap().with_target();
    let range = |first: u64, len: u64| ByteRange::between(first * 512, (first + len) * 512);
    writer.target(range(0, 40_000), 512).unwrap();
    writer.target(range(40_000, 2), 40_001 * 512).unwrap();
    writer.target(range(40_002, 2), 512).unwrap();
    let summary = writer.finish().unwrap().1;
    assert_eq!((summary.segments, summary.data_bytes), (4, 0));
}

#[test]
fn targets_that_cannot_be_named_are_refused() {
    let refused = |writer: LayerWriter<Vec<u8>>, offset: u64, place: u64| {
        let mut writer = writer;
        let error = writer.target(ByteRange::new(offset, 512).unwrap(), place).unwrap_err();
        error.kind() == ErrorKind::Invalid
    };
    let meta = LayerMeta { virtual_size: 4096, ..LayerMeta::default() };
    let new = || LayerWriter::new(Vec::new(), meta.clone()).unwrap();
    assert!(refused(new(), 0, 0), "it has no target");
    for (offset, place) in [(0, 100), (100, 0), (4096, 0), (0, u64::MAX - 511)] {
        assert!(refused(new().with_target(), offset, place), "{offset}, {place}");
    }
}
