use super::*;
use crate::VssdKind;
use crate::device::FlashBlock;
use crate::step::BlockRun;
use crate::{GssdId, Time};
use proptest::prelude::*;

pub(super) fn records() -> Vec<JournalRecord> {
    let (vssd, gssd) = (VssdId(3), GssdId(9));
    let blocks = vec![BlockRun { first: FlashBlock(70_000), count: 4096 }];
    vec![
        JournalRecord::Broker(BrokerStep::Created {
            vssd,
            kind: VssdKind::Regular,
            bandwidth: 4,
            capacity: 9,
            channels: vec![1],
        }),
        JournalRecord::Broker(BrokerStep::Carved {
            gssd,
            lender: vssd,
            bandwidth: 1,
            capacity: 4096,
            expire: Time(77),
            blocks,
        }),
        JournalRecord::Map { vssd, change: vec![1, 2, 3] },
        JournalRecord::Broker(BrokerStep::Erased { gssd, bad: vec![FlashBlock(70_001)] }),
        JournalRecord::Broker(BrokerStep::Leased {
            gssd,
            vm: "vm".to_owned(),
            borrower: VssdId(4),
            slot: 2,
            until: Time(99),
        }),
        JournalRecord::Snapshot { vssd, part: 0, last: true, map: vec![0; 300] },
    ]
}

/// The records as a journal with one group for each, and the offset of each.
fn bytes(records: &[JournalRecord]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut chain, mut begins) = (front(7), Chain::begin(7), vec![]);
    for record in records {
        let mut encoded = Vec::new();
        encode(record, &mut encoded).unwrap();
        begins.push(bytes.len());
        chain.append(&encoded, &mut bytes);
    }
    (bytes, begins)
}

/// The same records in version 2's form.
#[test]
fn an_earlier_version_is_read() {
    let records = records();
    let (bytes, begins) = old::written(&records, 3);
    let decoded = decode(&bytes).unwrap();
    assert_eq!((decoded.records, decoded.end.version), (records.clone(), 2));
    for at in 16..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 0x10;
        let number = begins.iter().filter(|begin| **begin <= at).count() - 1;
        match decode(&broken) {
            Ok(decoded) => assert!(number >= 3 && decoded.records == records[..number], "{at}"),
            Err(error) => assert!(number < 3 && error.kind() == ErrorKind::Corrupt, "{at}: {error}"),
        }
        let examined = repair::examine(&broken).unwrap();
        assert_eq!((examined.is_whole(), &examined.records[..]), (number >= 3, &records[..number]));
    }
}

#[test]
fn a_journal_that_is_cut_anywhere_says_what_was_before() {
    let records = records();
    let (bytes, begins) = bytes(&records);
    for cut in FRONT..=bytes.len() {
        let decoded = decode(&bytes[..cut]).unwrap();
        let whole =
            begins.iter().skip(1).filter(|begin| **begin <= cut).count() + usize::from(cut == bytes.len());
        assert_eq!(decoded.records, records[..whole], "{cut}");
        let end = if whole == records.len() { bytes.len() } else { begins[whole] };
        assert_eq!(decoded.end.end, end as u64);
        let torn = Torn { at: end as u64, bytes: (cut - end) as u64 };
        assert_eq!(decoded.end.torn, (cut > end).then_some(torn));
    }
    for cut in 0..FRONT {
        assert!(decode(&bytes[..cut]).is_err());
    }
}

#[test]
fn zeros_after_the_end_are_a_tail() {
    let (mut bytes, _) = bytes(&records());
    let end = bytes.len() as u64;
    bytes.resize(bytes.len() + 5000, 0);
    let decoded = decode(&bytes).unwrap();
    assert_eq!((decoded.records.len(), decoded.end.torn), (6, Some(Torn { at: end, bytes: 5000 })));
}

#[test]
fn a_group_of_another_journal_or_another_place_does_not_follow() {
    let records = records();
    let (bytes, begins) = bytes(&records);
    // One is left out; two change places.
    let without = [&bytes[..begins[1]], &bytes[begins[2]..]].concat();
    assert_eq!(decode(&without).unwrap().records, records[..1]);
    let mut other = bytes.clone();
    other[..FRONT].copy_from_slice(&front(8));
    assert_eq!(decode(&other).unwrap().records, []);
}

#[test]
fn programs_of_version_2_refuse_it_by_name() {
    // As they read it: the version after the magic, and a checksum of both.
    let front = front(1);
    assert_eq!((number(&front, 8), number(&front, 12)), (VERSION, group::crc32(&front[..12])));
    let mut later = front.clone();
    later[8] = 4;
    let crc = group::crc32(&later[..12]);
    later[12..16].copy_from_slice(&crc.to_le_bytes());
    later[2048] = 0;
    let error = decode(&later).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.to_string().contains("its version is 4"),
        "{error}"
    );
}

#[test]
fn a_journal_is_read_record_by_record() {
    let (bytes, _) = bytes(&records());
    let mut seen = Vec::new();
    let result = replay(&bytes[..], |record| {
        seen.push(record);
        if seen.len() < 4 { Ok(()) } else { Err(Error::invalid("enough")) }
    });
    assert!(result.is_err() && seen == records()[..4]);
}

#[test]
fn a_long_map_is_in_parts_that_count_together() {
    let (vssd, other) = (VssdId(1), VssdId(2));
    let byte = |at: usize| u8::try_from(at * at % 251).unwrap();
    let map = |length: usize| (0..length).map(byte).collect::<Vec<_>>();
    for length in [0, 1, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 7] {
        let (mut bytes, mut encoded) = (front(1), Vec::new());
        parts(vssd, &map(length)).for_each(|part| encode(&part, &mut encoded).unwrap());
        Chain::begin(1).append(&encoded, &mut bytes);
        let (mut snapshots, mut whole) = (Snapshots::default(), Vec::new());
        for record in decode(&bytes).unwrap().records {
            let JournalRecord::Snapshot { vssd, part, last, map } = record else { unreachable!() };
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
    // The map begins again: earlier parts do not count.
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
        let _ = decode(&[&front(1)[..], &tail].concat());
        let _ = repair::examine(&[&front(1)[..], &tail].concat());
        // With checksums that are right.
        let (mut framed, mut chain) = (front(1), Chain::begin(1));
        for part in tail.chunks(40) {
            let len = u32::try_from(part.len()).unwrap().to_le_bytes();
            chain.append(&[&len[..], part].concat(), &mut framed);
        }
        let _ = decode(&framed);
    }

    /// Parts in any order: they give the whole map that was cut up, or nothing, or are refused.
    #[test]
    fn parts_are_whole_maps_or_nothing(
        steps in prop::collection::vec((0_u32..3, 0_u32..4, any::<bool>()), 0..60),
    ) {
        let mut snapshots = Snapshots::default();
        // The result that a reader of all may give: for each vSSD the parts since the last number 0.
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
