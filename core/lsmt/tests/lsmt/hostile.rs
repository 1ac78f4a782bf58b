//! Damaged and hostile files: an error or bytes, never a panic, a hang or memory out of proportion.
//!
//! LSMT has no checksums. A flipped byte in a record, or in the position or length of the table, can make a
//! file that is as valid as any other and says something else, so wrong bytes cannot be excluded there: the
//! wrappers of a layer (the ZFile's checksums, the image's digests and hash tree) have to notice. The promises that
//! are possible are tested: a flip in a byte that no reader uses changes nothing, one in a magic number is an
//! error, and a file that opens is read in time and memory bounded by the file's own size. Time is bounded by
//! counting steps and bytes, not by a clock.

use crate::counted::peak_of;
// `ReadAt` itself stays out of scope: its `len` would hide that of a vector behind an `Arc`.
use crate::plain::{self, PlainDisk};
use headstart_block::{self as block, BlockDevice, ErrorKind, Result};
use headstart_lsmt::format::{Flags, Page, UserTag};
use headstart_lsmt::{Layer, LayerMeta, LayerWriter, Segment, Stack, open_pair};
use headstart_testkit::golden_set::GoldenSet;
use headstart_testkit::soak;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use uuid::Uuid;

/// Memory that a file of `size` bytes may take on top of itself, whatever it says: a table takes 16 bytes a
/// record in the file and a few times that while it is read, merged and made searchable.
fn memory_bound(size: usize) -> usize {
    6 * size + (1 << 20)
}

/// A file with one byte changed and its end cut off, without a copy.
#[derive(Clone)]
struct Damaged {
    file: Arc<Vec<u8>>,
    len: usize,
    at: usize,
    byte: u8,
}

impl Damaged {
    fn flipped(file: &Arc<Vec<u8>>, at: usize, mask: u8) -> Self {
        Self { file: Arc::clone(file), len: file.len(), at, byte: file[at] ^ mask }
    }

    fn cut(file: &Arc<Vec<u8>>, len: usize) -> Self {
        Self { file: Arc::clone(file), len, at: usize::MAX, byte: 0 }
    }
}

impl block::ReadAt for Damaged {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        block::ReadAt::read_at(&self.file[..self.len], buf, offset)?;
        let changed = (self.at as u64).checked_sub(offset).and_then(|at| buf.get_mut(at as usize));
        changed.into_iter().for_each(|byte| *byte = self.byte);
        Ok(())
    }
}

/// The content of a disk: offset and bytes of its extents of data.
type Content = Vec<(u64, Vec<u8>)>;

/// Opens a layer, stacks it and reads all its data, within bounds that follow from the size of its file.
fn open_and_read(size: usize, open: impl FnOnce() -> Result<Layer>) -> Result<(u64, Content)> {
    let (stack, peak) = peak_of(|| open().and_then(|layer| Stack::new(vec![layer])));
    assert!(peak <= memory_bound(size), "opening a file of {size} bytes took {peak} bytes");
    let stack = stack?;
    Ok((stack.size(), read_data(&stack, size)?))
}

fn read_data(stack: &Stack, size: usize) -> Result<Content> {
    let mut content = Vec::new();
    let (mut offset, mut bytes_read, mut steps) = (0, 0, 0);
    while offset < stack.size() {
        let extent = stack.extent_at(offset)?;
        assert!(extent.range.offset() == offset && !extent.range.is_empty(), "{extent:?}");
        offset = extent.range.end();
        steps += 1;
        assert!(steps <= 2 * stack.index().len() + 2, "more extents than segments and holes between them");
        if extent.zero {
            let mut edge = [1];
            stack.read_at(&mut edge, offset - 1)?;
            assert_eq!(edge, [0], "{extent:?}");
            continue;
        }
        bytes_read += extent.range.len() as usize;
        // Each record points into the file; one that was made longer may say some of it twice.
        assert!(bytes_read <= 3 * size + (64 << 10), "{bytes_read} bytes of data in a file of {size}");
        let mut bytes = vec![0; extent.range.len() as usize];
        stack.read_at(&mut bytes, extent.range.offset())?;
        content.push((extent.range.offset(), bytes));
    }
    Ok(content)
}

/// The effect that a flip of one byte may have.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Effect {
    /// The byte says nothing about the disk.
    None,
    /// The file is refused.
    Error,
    /// The file is refused, or says the same.
    ErrorOrNone,
    /// The file says something else, or is refused.
    Any,
}

/// The effect that a flip at `at` of a page may have; a header's numbers mean nothing, those of a trailer everything.
fn effect_in_page(at: usize, trailer: bool) -> Effect {
    match at {
        0..24 => Effect::Error,
        28..32 => Effect::ErrorOrNone,
        32..56 if trailer => Effect::Any,
        _ => Effect::None,
    }
}

fn judge(effect: Effect, result: Result<(u64, Content)>, expected: &(u64, Content), what: &str) {
    match (effect, result) {
        (Effect::None | Effect::ErrorOrNone, Ok(seen)) => assert!(seen == *expected, "{what}: other bytes"),
        (Effect::Error, Ok(_)) => panic!("{what}: accepted"),
        (Effect::None, Err(e)) => panic!("{what}: {e}"),
        (Effect::Any, Ok(_)) | (_, Err(_)) => {}
    }
}

/// The lowest bit, the highest, and all: one of these for each byte, in turn, and in `make soak` each of them.
fn masks(at: usize) -> &'static [u8] {
    static MASKS: [u8; 3] = [0x01, 0x80, 0xff];
    if soak::is_on() { &MASKS } else { std::slice::from_ref(&MASKS[at % 3]) }
}

#[test]
fn flipped_metadata_of_sealed_layers_has_no_other_effect_than_its_own() {
    let Some(set) = GoldenSet::open() else { return };
    for name in ["basic64m", "sealed64m", "onlyzero", "big4t", "empty"] {
        let entry = &set.case(name)["layers_low_to_high"][0];
        let file = Arc::new(set.raw(entry));
        let expected = open_and_read(file.len(), || Layer::open(Arc::clone(&file) as _)).unwrap();
        let table = entry["trailer"]["index_offset"].as_u64().unwrap() as usize;
        let table_end = table + entry["trailer"]["index_size"].as_u64().unwrap() as usize * 16;
        let trailer = file.len() - 4096;
        for at in (0..4096).chain(table..file.len()) {
            let effect = match at {
                _ if at < 4096 => effect_in_page(at, false),
                _ if at >= trailer => effect_in_page(at - trailer, true),
                // Behind the table of a sealed layer there is what its writer had in memory.
                _ if at >= table_end => Effect::None,
                // The tag is the last byte of a record; a padding record says nothing else either.
                _ if (at - table) % 16 == 15 => Effect::None,
                _ => Effect::Any,
            };
            for &mask in masks(at) {
                let damaged = Damaged::flipped(&file, at, mask);
                let result = open_and_read(file.len(), || Layer::open(Arc::new(damaged)));
                judge(effect, result, &expected, &format!("{name}: byte {at} ^ {mask:#x}"));
            }
        }
    }
}

#[test]
fn flipped_metadata_of_pairs_has_no_other_effect_than_its_own() {
    let Some(set) = GoldenSet::open() else { return };
    for name in ["pair64m", "pair_group"] {
        let case = set.case(name);
        let data = Arc::new(set.raw(&case["data"]));
        let index = Arc::new(set.raw(&case["index"]));
        let size = data.len() + index.len();
        let expected = open_and_read(size, || open_pair(Arc::clone(&data) as _, &index)).unwrap();
        for (at, &mask) in (0..4096).flat_map(|at| masks(at).iter().map(move |mask| (at, mask))) {
            let what = format!("{name}: data byte {at} ^ {mask:#x}");
            let damaged = Damaged::flipped(&data, at, mask);
            let result = open_and_read(size, || open_pair(Arc::new(damaged), &index));
            let effect = match at {
                // Here the header has the only word on the size; of the id both files must agree.
                48..56 => Effect::Any,
                56..92 => Effect::ErrorOrNone,
                _ => effect_in_page(at, false),
            };
            judge(effect, result, &expected, &what);
        }
        for (at, &mask) in (0..index.len()).flat_map(|at| masks(at).iter().map(move |mask| (at, mask))) {
            let what = format!("{name}: index byte {at} ^ {mask:#x}");
            let damaged = Damaged::flipped(&index, at, mask);
            let result = open_and_read(size, || open_pair(Arc::clone(&data) as _, &damaged));
            let effect = match at {
                56..92 => Effect::ErrorOrNone,
                _ if at < 4096 => effect_in_page(at, false),
                _ if at % 16 == 15 => Effect::None,
                _ => Effect::Any,
            };
            judge(effect, result, &expected, &what);
        }
    }
}

/// The trailer is the last page and nothing may follow it, so no shorter or longer file is a layer.
#[test]
fn truncated_and_lengthened_layers_are_refused() {
    let Some(set) = GoldenSet::open() else { return };
    for (name, step) in [("empty", 1), ("big4t", 7), ("basic64m", 61), ("sealed64m", 61)] {
        let file = Arc::new(set.raw(&set.case(name)["layers_low_to_high"][0]));
        let around_the_ends =
            (0..64).chain(4090..4100).chain(8180..8200).chain(file.len() - 5000..file.len());
        for len in (0..file.len()).step_by(step).chain(around_the_ends).filter(|len| *len < file.len()) {
            let result = open_and_read(len, || Layer::open(Arc::new(Damaged::cut(&file, len))));
            assert!(result.is_err(), "{name}: cut to {len} bytes");
        }
        for more in [1, 16, 512, 4096, 8192] {
            let longer =
                Damaged::cut(&Arc::new([file.as_slice(), &vec![0; more]].concat()), file.len() + more);
            assert!(
                open_and_read(longer.len, || Layer::open(Arc::new(longer))).is_err(),
                "{name}: {more} more"
            );
        }
    }
}

/// A log that was cut anywhere is a shorter log; data that was cut is missed by the record that needs it.
#[test]
fn truncated_pairs_are_shorter_logs() {
    let Some(set) = GoldenSet::open() else { return };
    let case = set.case("pair64m");
    let (data, index) = (Arc::new(set.raw(&case["data"])), Arc::new(set.raw(&case["index"])));
    let size = data.len() + index.len();
    for len in 0..index.len() {
        let cut = Damaged::cut(&index, len);
        let result = open_and_read(size, || open_pair(Arc::clone(&data) as _, &cut));
        if len < 4096 {
            assert!(result.is_err(), "index cut to {len}");
        } else if len % 16 < 2 {
            let whole_records = &index[..len - len % 16];
            assert_holds(&result.unwrap().1, &plain::pair(&data, whole_records).unwrap());
        }
    }
    for len in (0..data.len()).step_by(509) {
        let result = open_and_read(size, || open_pair(Arc::new(Damaged::cut(&data, len)), &index));
        assert!(result.is_err(), "data cut to {len}");
    }
}

fn assert_holds(content: &Content, disk: &PlainDisk) {
    let sectors: usize = content.iter().map(|(_, bytes)| bytes.len() / 512).sum();
    let expected = disk.sectors.range(..disk.size.div_ceil(512)).filter(|(_, bytes)| bytes.is_some()).count();
    assert_eq!(sectors, expected);
    for (offset, bytes) in content {
        assert!(disk.read(*offset, bytes.len()) == *bytes, "at {offset}");
    }
}

fn page(flags: u32, index_offset: u64, index_size: u64, virtual_size: u64) -> [u8; 4096] {
    let (uuid, parent_uuid, user_tag) = (Uuid::nil(), Uuid::nil(), UserTag::default());
    let flags = Flags(flags);
    Page { flags, index_offset, index_size, virtual_size, uuid, parent_uuid, user_tag }.encode()
}

const DATA_SECTORS: u64 = 40;
const SIZE: u64 = 300 * 512;

/// Any 16 bytes, mostly such that could be a record of a small disk.
fn any_record() -> impl Strategy<Value = [u8; 16]> {
    let number = prop_oneof![20 => 0u64..200, 1 => any::<u64>(), 1 => (1u64 << 50) - 20..1 << 50];
    let plausible = (number, 0u64..12, 6u64..50, any::<bool>(), any::<u8>());
    let plausible = plausible.prop_map(|(offset, len, moffset, zeroed, tag)| {
        let lo = offset & ((1 << 50) - 1) | len << 50;
        let hi = moffset | u64::from(zeroed) << 55 | u64::from(tag) << 56;
        (u128::from(lo) | u128::from(hi) << 64).to_le_bytes()
    });
    prop_oneof![30 => plausible, 1 => any::<[u8; 16]>(), 1 => Just(Segment::PADDING.to_record())]
}

fn data_bytes() -> Vec<u8> {
    (0..DATA_SECTORS * 512).map(|i| (i / 512 + i % 251) as u8 | 1).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Both readers take and refuse the same tables, and read the same from them.
    #[test]
    fn random_tables_are_judged_as_by_the_plain_reader(mut table in vec(any_record(), 0..12), sorted: bool) {
        if sorted {
            table.sort_by_key(|record| Segment::from_record(*record).offset());
        }
        let index_offset = 4096 + DATA_SECTORS * 512;
        let trailer = page(6, index_offset, table.len() as u64, SIZE);
        let file = [page(7, 0, 0, SIZE).to_vec(), data_bytes(), table.concat(), trailer.to_vec()].concat();
        // The plain reader takes sectors that no record can name; ours would mistake them in a merge.
        let nameable = |layer: &plain::PlainLayer| layer.records.iter().all(|record| record[0] + record[1] < 1 << 50);
        let by_plain_reader = plain::sealed(&file).ok().filter(nameable).ok_or("refused");
        let ours = open_and_read(file.len() * 4, || Layer::open(Arc::new(file)));
        prop_assert_eq!(ours.is_ok(), by_plain_reader.is_ok(), "{:?}", ours.err());
        if let (Ok(ours), Ok(plain)) = (ours, by_plain_reader) {
            assert_holds(&ours.1, &plain.disk);
        }
    }

    #[test]
    fn random_logs_read_as_by_the_plain_reader(log in vec(any_record(), 0..30), partial in 0usize..16) {
        let data = [page(3, 0, 0, SIZE).to_vec(), data_bytes()].concat();
        let whole = [page(1, 4096, 0, SIZE).to_vec(), log.concat()].concat();
        let cut = whole.len() - if log.is_empty() { 0 } else { partial };
        let inside = |segment: &Segment| {
            segment.is_padding() || segment.len() == 0
                || segment.moffset() >= 8 && segment.mend() <= 8 + DATA_SECTORS && segment.end() < 1 << 50
        };
        let kept = (cut - 4096) / 16;
        let fine = log[..kept].iter().all(|record| inside(&Segment::from_record(*record)));
        let ours = open_and_read(data.len() * 4, || open_pair(Arc::new(data.clone()), &whole[..cut].to_vec()));
        prop_assert_eq!(ours.is_ok(), fine, "{:?}", ours.err());
        if let Ok(ours) = ours {
            assert_holds(&ours.1, &plain::pair(&data, &whole[..4096 + kept * 16]).unwrap());
        }
    }

    #[test]
    fn garbage_is_no_layer(
        mut bytes in vec(any::<u8>(), 0..20_000), header: bool, trailer: bool,
        numbers in any::<[u64; 3]>(), small: bool,
    ) {
        let [offset, size, virtual_size] = if small { numbers.map(|n| n % 20_000) } else { numbers };
        if let Some(start) = bytes.first_chunk_mut().filter(|_| header) {
            *start = page(7, 0, 0, virtual_size);
        }
        if let Some(end) = bytes.last_chunk_mut().filter(|_| trailer) {
            *end = page(6, offset, size, virtual_size);
        }
        let len = bytes.len();
        // Random bytes hold no record in order; what may open is an empty table.
        if let Ok((_, content)) = open_and_read(len, || Layer::open(Arc::new(bytes.clone()))) {
            prop_assert!(header && trailer && (content.is_empty() || small));
        }
        let bytes = Arc::new(bytes);
        prop_assert!(open_and_read(len * 2, || open_pair(Arc::clone(&bytes) as _, &bytes)).is_err());
    }
}

/// A trailer may claim anything of its table.
#[test]
fn claims_of_a_trailer_take_no_memory() {
    let mut claims: Vec<u64> = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]).collect();
    claims.extend([u64::MAX, u64::MAX - 4095, u64::MAX / 16, u64::MAX / 16 + 1, 4096, 8192, 128_000_001]);
    for (&index_offset, &index_size) in claims.iter().flat_map(|a| claims.iter().map(move |b| (a, b))) {
        let file = [page(7, 0, 0, SIZE), page(6, index_offset, index_size, u64::MAX)].concat();
        let fits = index_offset == 4096 && index_size == 0;
        let result = open_and_read(file.len(), || Layer::open(Arc::new(file)));
        assert_eq!(result.is_ok(), fits, "{index_size} records at {index_offset}");
    }
}

const ENDLESS: u64 = 1 << 60;

/// A source whose length is a claim, as that of a compressed file is: an exabyte of the same record.
struct Endless {
    trailer: [u8; 4096],
    record: [u8; 16],
}

impl block::ReadAt for Endless {
    fn len(&self) -> u64 {
        ENDLESS
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        for (byte, at) in buf.iter_mut().zip(offset..) {
            *byte = match at {
                0..4096 => page(7, 0, 0, SIZE)[at as usize],
                _ if at >= ENDLESS - 4096 => self.trailer[(at - (ENDLESS - 4096)) as usize],
                _ => self.record[(at % 16) as usize],
            };
        }
        Ok(())
    }
}

#[test]
fn an_endless_table_is_refused_before_it_is_read() {
    for record in [Segment::data(5, 0, 8), Segment::PADDING, Segment::data(5, 1, 8)] {
        let trailer = page(6, 1 << 40, 1 << 50, SIZE);
        let source = Endless { trailer, record: record.to_record() };
        let error = open_and_read(0, || Layer::open(Arc::new(source))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

/// Records that hold nothing are allowed, and must not be kept while the table is read.
#[test]
fn empty_records_take_no_memory() {
    let records = 3_000_000;
    let trailer = page(6, 1 << 40, records, SIZE);
    let source = Arc::new(Endless { trailer, record: Segment::data(5, 0, 8).to_record() });
    let (size, content) = open_and_read(0, || Layer::open(source)).unwrap();
    assert_eq!((size, content), (SIZE, Vec::new()));
}

/// A record near the last nameable sector must not spill into the bits of its length when it is cut.
#[test]
fn a_record_past_the_largest_disk_is_refused() {
    let reaching = Segment::data((1 << 50) - 2, 10, 8);
    let index_offset = 4096 + DATA_SECTORS * 512;
    let trailer = page(6, index_offset, 1, 1 << 59);
    let file =
        [page(7, 0, 0, 1 << 59).to_vec(), data_bytes(), reaching.to_record().to_vec(), trailer.to_vec()]
            .concat();
    assert_eq!(Layer::open(Arc::new(file)).err().unwrap().kind(), ErrorKind::Corrupt);

    let data = [page(3, 0, 0, SIZE).to_vec(), data_bytes()].concat();
    let log = [Segment::data((1 << 50) - 4, 2, 8).to_record(), reaching.to_record()].concat();
    let index = [page(1, 4096, 0, SIZE).to_vec(), log].concat();
    assert_eq!(open_pair(Arc::new(data), &index).err().unwrap().kind(), ErrorKind::Corrupt);
}

/// The writer refuses a mapped offset that a record cannot hold long before any process could write that much;
/// a layer that it can write, the last sector included, opens.
#[test]
fn the_last_nameable_sector_is_written_and_read() {
    let mut writer = LayerWriter::new(Vec::new(), LayerMeta::default()).unwrap();
    let last = ((1 << 50) - 2) * 512;
    writer.data(last, &[7; 512]).unwrap();
    assert_eq!(writer.data(last + 512, &[7; 512]).unwrap_err().kind(), ErrorKind::Invalid);
    let layer = Layer::open(Arc::new(writer.finish().unwrap().0)).unwrap();
    let stack = Stack::new(vec![layer]).unwrap();
    assert_eq!(stack.size(), last + 512);
    let mut sector = [0; 512];
    stack.read_at(&mut sector, last).unwrap();
    assert_eq!(sector, [7; 512]);
}
