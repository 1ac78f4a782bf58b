use super::*;
use headstart_block::ErrorKind;
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn record(layer: u32, offset: u64, len: u64) -> LayerRead {
    LayerRead { layer, offset, len }
}

/// A trace that the reference recorded, stored beside the repository; without it the test says so and passes.
fn golden(name: &str) -> Option<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/formats/golden/trace");
    let file = std::fs::read(dir.join(name)).ok();
    if file.is_none() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no golden traces at {}", dir.display());
    }
    file
}

#[test]
fn traces_of_the_reference_are_read_and_written() {
    for (name, count, last) in [
        ("trace_stack3.trace", 36, record(1, 15_872, 8704)),
        ("trace_img3.trace", 42, record(0, 7_213_056, 8192)),
    ] {
        let Some(file) = golden(name) else { return };
        let records = parse(&file).unwrap();
        assert_eq!((records.len(), records.last()), (count, Some(&last)), "{name}");
        assert_eq!(records[0], record(0, 0, 4096));
        // The same again, except for the padding, which is in the checksum.
        let again = encode(&records).unwrap();
        assert_eq!(again.len(), file.len());
        assert_eq!(parse(&again).unwrap(), records);
    }
}

#[test]
fn each_byte_of_a_file_is_as_specified() {
    let file = encode(&[record(2, 4096, 512)]).unwrap();
    let mut expected = vec![0x20, 0x18, 0xef, 0xc2, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0];
    let body = [&b"R\0\0\0\x02\0\0\0\0\x02\0\0\0\0\0\0"[..], b"\0\x10\0\0\0\0\0\0"].concat();
    // Bit by bit, from 0, nothing inverted.
    let mut crc = 0_u32;
    for byte in &body {
        crc ^= u32::from(*byte);
        (0..8).for_each(|_| crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 });
    }
    expected.extend(crc.to_le_bytes());
    expected.extend([0; 4]);
    expected.extend(body);
    assert_eq!(file, expected);
    assert_eq!(encode(&[]).unwrap().len(), HEADER_LEN);
}

#[test]
fn no_record_is_longer_than_the_buffer_of_a_reader() {
    let file = encode(&[record(1, 100, 2 * RECORD_MAX + 7), record(0, 5, 0)]).unwrap();
    let parts = [record(1, 100, MIB), record(1, 100 + MIB, MIB), record(1, 100 + 2 * MIB, 7)];
    assert_eq!(parse(&file).unwrap(), parts);
    assert_eq!(encode(&[record(0, 0, u64::MAX)]).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// A file with the right checksum, so that the checks behind it are reached.
fn signed(body: &[u8]) -> Vec<u8> {
    let mut file = encode(&[]).unwrap();
    file[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    file[16..20].copy_from_slice(&raw_crc32c(body));
    file.extend(body);
    file
}

#[test]
fn damaged_traces_are_refused() {
    let good = encode(&[record(0, 0, 4096)]).unwrap();
    let body = good[HEADER_LEN..].to_vec();
    for at in (0..good.len()).filter(|at| !(4..8).contains(at) && !(20..24).contains(at)) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(parse(&bad).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
    }
    for cut in 0..good.len() {
        assert!(parse(&good[..cut]).is_err());
    }
    assert_eq!(parse(&signed(&body)).unwrap(), [record(0, 0, 4096)]);
    let edits: [(usize, &[u8]); 3] = [(0, b"W"), (16, &[0xff; 8]), (8, &i64::MAX.to_le_bytes())];
    for (n, (at, bytes)) in edits.into_iter().enumerate() {
        let mut bad = body.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        if n == 2 {
            bad[16] = 1;
        }
        assert_eq!(parse(&signed(&bad)).unwrap_err().kind(), ErrorKind::Corrupt, "edit {n}");
    }
    assert!(parse(&signed(&body[..23])).is_err());
}

/// Three layers: the disk's first MiB is in layer 1 backwards, the next in layer 0, then a hole, then layer 2.
fn extents() -> Vec<LayerExtent> {
    let half = MIB / 2;
    [(0, half, 1, half), (half, half, 1, 0), (MIB, MIB, 0, 4096), (3 * MIB, MIB, 2, 8192)]
        .map(|(disk, len, layer, offset)| LayerExtent { disk, len, layer, offset })
        .to_vec()
}

#[test]
fn plans_become_records_and_records_plans() {
    let items =
        [PlanItem { block: 1, mask: 1 << 16 }, PlanItem { block: 0, mask: 0b11 << 7 | 1 << 15 | 1 << 16 }];
    let (slice, half) = (SLICE_SIZE, MIB / 2);
    let records = of_plan(&items, &extents(), 4 * MIB);
    let expected = [
        record(2, 8192, slice),
        record(1, half + 7 * slice, slice),
        record(1, 0, slice),
        record(1, 7 * slice, slice),
        record(0, 4096, slice),
    ];
    assert_eq!(records, expected);
    assert_eq!(plan(&records, &extents(), 4 * MIB), items);
    // Records of data that is on no disk, past its end, or of no layer are left out.
    let odd = [record(2, 0, 4096), record(0, 0, 4096), record(9, 0, 1 << 40), record(2, 8192 + MIB, 4096)];
    assert_eq!(plan(&odd, &extents(), 4 * MIB), []);
    assert_eq!(plan(&expected, &extents(), 3 * MIB), items[1..]);
    assert_eq!(of_plan(&[PlanItem::whole(1)], &extents(), 3 * MIB), []);
    // A byte is enough for its slice; a layer's neighbours are one record.
    assert_eq!(plan(&[record(0, 4095, 2)], &extents(), 4 * MIB), [PlanItem { block: 0, mask: 1 << 16 }]);
    let whole = of_plan(&[PlanItem::whole(0)], &extents(), 4 * MIB);
    assert_eq!(whole, [record(1, half, half), record(1, 0, half), record(0, 4096, MIB)]);
    assert_eq!(of_plan(&[], &extents(), 0), []);
    assert_eq!(plan(&[record(0, 0, 1 << 62)], &[], 1 << 40), []);
}

/// Millions of records that each name everything take no longer than their number.
#[test]
fn records_that_name_everything_cost_what_others_cost() {
    let extents: Vec<LayerExtent> = (0..50_000)
        .map(|n| LayerExtent { disk: n * 8192, len: 4096, layer: 0, offset: 4096 + n * 4096 })
        .collect();
    let records = vec![record(0, 0, i64::MAX as u64); 200_000];
    let items = plan(&records, &extents, 1 << 40);
    assert_eq!(items.len(), 50_000 * 8192 / BLOCK_SIZE as usize + 1);
}

/// The slices of a plan, sorted, regardless of blocks.
fn slices(items: &[PlanItem]) -> Vec<u64> {
    let mut all: Vec<u64> = items
        .iter()
        .flat_map(|item| (0..32).filter(|bit| item.mask >> bit & 1 == 1).map(|bit| item.block * 32 + bit))
        .collect();
    all.sort_unstable();
    all
}

/// A disk of up to 8 MiB that consists of three layers' files, in pieces of whole sectors.
fn some_extents() -> impl Strategy<Value = Vec<LayerExtent>> {
    prop::collection::vec((1_u64..400, 0_u64..300, 0_u32..3), 1..40).prop_map(|pieces| {
        let (mut disk, mut ends) = (0, [4096_u64; 3]);
        let mut extents = Vec::new();
        for (len, gap, layer) in pieces {
            let (len, end) = (len * 512, &mut ends[layer as usize]);
            extents.push(LayerExtent { disk, len, layer, offset: *end });
            *end += len;
            disk += len + gap * 512;
        }
        extents
    })
}

proptest! {
    #[test]
    fn an_overlaybd_trace_round_trips(
        records in prop::collection::vec((0_u32..300, 0_u64..1 << 50, 1..=RECORD_MAX), 0..50),
    ) {
        let records: Vec<_> = records.into_iter().map(|(layer, offset, len)| record(layer, offset, len)).collect();
        prop_assert_eq!(parse(&encode(&records).unwrap()).unwrap(), records);
    }

    #[test]
    fn a_plan_survives_the_way_through_layers(
        extents in some_extents(),
        items in prop::collection::btree_map(0_u64..5, any::<u32>(), 0..5),
    ) {
        let size = 8 * MIB;
        let items: Vec<_> = items.into_iter().map(|(block, mask)| PlanItem { block, mask }).collect();
        let records = of_plan(&items, &extents, size);
        let back = plan(&parse(&encode(&records).unwrap()).unwrap(), &extents, size);
        // Except for slices that are holes.
        let has_data = |slice: &u64| {
            let (from, to) = (slice * SLICE_SIZE, (slice + 1) * SLICE_SIZE);
            extents.iter().any(|e| e.disk < to && e.disk + e.len > from)
        };
        let wanted: Vec<u64> = slices(&items).into_iter().filter(has_data).collect();
        prop_assert_eq!(slices(&back), wanted);
        let order = |items: &[PlanItem]| items.iter().map(|item| item.block).collect::<Vec<_>>();
        let kept: Vec<u64> = order(&items).into_iter().filter(|block| order(&back).contains(block)).collect();
        prop_assert_eq!(order(&back), kept);
    }

    #[test]
    fn hostile_traces_never_panic(
        extents in some_extents(),
        body in prop::collection::vec(any::<[u8; 24]>(), 0..20),
        cut in 0_usize..500,
    ) {
        let mut body = body.concat();
        body.chunks_exact_mut(24).for_each(|bytes| {
            bytes[0] = b'R';
            bytes[5..8].fill(0);
            bytes[11..16].fill(0);
            bytes[20..24].fill(0);
        });
        if let Ok(records) = parse(&signed(&body)) {
            let items = plan(&records, &extents, 8 * MIB);
            let _ = of_plan(&items, &extents, 8 * MIB);
        }
        let _ = parse(&body[..cut.min(body.len())]);
    }
}
