use super::*;
use crate::broker::{Run, VssdKind};
use crate::flash::FlashBlock;
use crate::{GssdId, Time};
use proptest::prelude::*;

pub(super) fn records() -> Vec<Record> {
    let (vssd, gssd) = (VssdId(3), GssdId(9));
    let blocks = vec![Run { first: FlashBlock(70_000), count: 4096 }];
    vec![
        Record::Broker(Step::Created {
            vssd,
            kind: VssdKind::Regular,
            bandwidth: 4,
            capacity: 9,
            channels: vec![1],
        }),
        Record::Broker(Step::Carved {
            gssd,
            home: vssd,
            bandwidth: 1,
            capacity: 4096,
            expire: Time(77),
            blocks,
        }),
        Record::Map { vssd, change: vec![1, 2, 3] },
        Record::Broker(Step::Erased { gssd, bad: vec![FlashBlock(70_001)] }),
        Record::Broker(Step::Leased {
            gssd,
            vm: "vm".to_owned(),
            ghost: VssdId(4),
            slot: 2,
            until: Time(99),
        }),
        Record::Snapshot { vssd, part: 0, last: true, map: vec![0; 300] },
    ]
}

/// The records as a journal that was synced after `durable` of them, and where each begins.
fn bytes(records: &[Record], durable: usize) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut begins) = (header().to_vec(), vec![]);
    let mut synced = bytes.len() as u64;
    for (number, record) in records.iter().enumerate() {
        if number == durable {
            synced = bytes.len() as u64;
        }
        begins.push(bytes.len());
        encode(record, synced, &mut bytes).unwrap();
    }
    (bytes, begins)
}

#[test]
fn a_journal_that_is_cut_anywhere_says_what_was_before() {
    let records = records();
    let (bytes, begins) = bytes(&records, 0);
    for cut in HEADER..=bytes.len() {
        let decoded = decode(&bytes[..cut]).unwrap();
        let whole =
            begins.iter().skip(1).filter(|begin| **begin <= cut).count() + usize::from(cut == bytes.len());
        assert_eq!(decoded.records, records[..whole], "{cut}");
        let end = if whole == records.len() { bytes.len() } else { begins[whole] };
        assert_eq!(decoded.end, end as u64);
        let torn = Torn { at: end as u64, bytes: (cut - end) as u64 };
        assert_eq!(decoded.torn, (cut > end).then_some(torn));
    }
    for cut in 0..HEADER {
        assert!(decode(&bytes[..cut]).is_err());
    }
}

#[test]
fn a_bit_that_changes_ends_it_or_is_damage_if_it_was_durable() {
    let records = records();
    let (bytes, begins) = bytes(&records, 3);
    for at in HEADER..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 0x10;
        let number = begins.iter().filter(|begin| **begin <= at).count() - 1;
        match decode(&broken) {
            Ok(decoded) => {
                assert!(number >= 3, "{at}: durable records are given up as a torn tail");
                assert_eq!(decoded.records, records[..number], "{at}");
            }
            Err(error) => {
                assert!(number < 3, "{at}: {error}");
                assert_eq!(error.kind(), ErrorKind::Corrupt);
            }
        }
    }
    for at in 0..HEADER {
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        assert!(decode(&broken).is_err(), "{at}");
    }
}

#[test]
fn zeros_after_the_end_are_a_tail() {
    let (mut bytes, _) = bytes(&records(), 6);
    let end = bytes.len() as u64;
    bytes.resize(bytes.len() + 5000, 0);
    let decoded = decode(&bytes).unwrap();
    assert_eq!((decoded.records.len(), decoded.torn), (6, Some(Torn { at: end, bytes: 5000 })));
}

#[test]
fn a_journal_is_read_record_by_record() {
    let (bytes, _) = bytes(&records(), 6);
    let mut seen = Vec::new();
    let result = replay(&bytes[..], |record| {
        seen.push(record);
        if seen.len() < 4 { Ok(()) } else { Err(Error::invalid("enough")) }
    });
    assert!(result.is_err() && seen == records()[..4]);
}

#[test]
fn what_a_frame_says_of_syncs_can_be_said_anew() {
    let (mut bytes, begins) = bytes(&records(), 3);
    reframe(&mut bytes[HEADER..], |at| (HEADER + at) as u64);
    assert_eq!(decode(&bytes).unwrap().records, records());
    for at in begins[..5].iter().map(|begin| begin + FRAME) {
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        assert!(decode(&broken).is_err(), "what is before the last is known to be durable");
    }
    reframe(&mut [0; 9], |_| 0);
    reframe(&mut [0xff; 40], |_| 0);
}

#[test]
fn a_long_map_is_in_parts_that_count_together() {
    let (vssd, other) = (VssdId(1), VssdId(2));
    let byte = |at: usize| u8::try_from(at * at % 251).unwrap();
    let map = |length: usize| (0..length).map(byte).collect::<Vec<_>>();
    for length in [0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7] {
        let mut bytes = header().to_vec();
        for part in parts(vssd, &map(length)) {
            encode(&part, 0, &mut bytes).unwrap();
        }
        let (mut snapshots, mut whole) = (Snapshots::default(), Vec::new());
        for record in decode(&bytes).unwrap().records {
            let Record::Snapshot { vssd, part, last, map } = record else { unreachable!() };
            assert!(map.len() <= PART);
            whole.extend(snapshots.add(vssd, part, last, map).unwrap());
        }
        assert_eq!((whole.len(), snapshots.0.len()), (1, 0), "{length}");
        assert!(whole[0] == map(length));
    }
    let mut snapshots = Snapshots::default();
    let mut add = |vssd, part, last| snapshots.add(vssd, part, last, vec![u8::try_from(part).unwrap()]);
    assert_eq!(add(vssd, 0, false).unwrap(), None);
    assert_eq!(add(other, 0, false).unwrap(), None);
    assert_eq!(add(vssd, 1, false).unwrap(), None);
    // It is begun anew: what was there does not count.
    assert_eq!(add(vssd, 0, false).unwrap(), None);
    assert_eq!(add(vssd, 1, true).unwrap(), Some(vec![0, 1]));
    assert_eq!(add(other, 1, true).unwrap(), Some(vec![0, 1]));
    assert!(add(vssd, 1, false).is_err() && add(other, 2, true).is_err());
    assert_eq!(add(vssd, 0, false).unwrap(), None);
    assert!(add(vssd, 2, true).is_err() && add(vssd, 0, true).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(tail in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = decode(&tail);
        let _ = decode(&[&header()[..], &tail].concat());
        // With checksums that are right.
        let mut framed = header().to_vec();
        for part in tail.chunks(40) {
            let begin = framed.len();
            framed.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
            framed.extend([0; 4]);
            framed.extend(16_u64.to_le_bytes());
            framed.extend(part);
            let crc = crc(&framed[begin + 8..]);
            framed[begin + 4..begin + 8].copy_from_slice(&crc.to_le_bytes());
        }
        let _ = decode(&framed);
    }

    /// Parts in any order: they give what was cut up, all of it or nothing, or are refused.
    #[test]
    fn parts_are_whole_maps_or_nothing(
        steps in prop::collection::vec((0_u32..3, 0_u32..4, any::<bool>()), 0..60),
    ) {
        let mut snapshots = Snapshots::default();
        // What a reader of all may make of it: for each vSSD the parts since the last number 0.
        let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (vssd, part, last) in steps {
            let byte = u8::try_from(vssd * 16 + part).unwrap();
            let added = snapshots.add(VssdId(vssd), part, last, vec![byte]);
            if part == 0 {
                model.remove(&vssd);
            }
            let there = model.entry(vssd).or_default();
            if there.len() != part as usize {
                prop_assert_eq!(added.unwrap_err().kind(), ErrorKind::Corrupt);
                break;
            }
            there.push(byte);
            let whole = if last { model.remove(&vssd) } else { None };
            prop_assert_eq!(added.unwrap(), whole);
        }
    }
}
