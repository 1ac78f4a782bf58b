use super::*;
use crate::broker::{Run, VssdKind};
use crate::flash::FlashBlock;
use crate::{GssdId, Time};
use proptest::prelude::*;

fn records() -> Vec<Record> {
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
        Record::Snapshot { vssd, map: vec![0; 300] },
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
fn a_file_keeps_what_was_synced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let records = records();
    let journal = Journal::create(&path, &records[..2]).unwrap();
    journal.append(&records[2]).unwrap();
    let lsn = journal.append(&records[3]).unwrap();
    assert!(journal.durable() < lsn);
    assert_eq!(Journal::open(&path).unwrap().1.records, records[..2]);
    journal.sync(lsn).unwrap();
    assert_eq!(journal.durable(), lsn);
    journal.write(&records[4]).unwrap();
    assert_eq!(journal.size(), std::fs::metadata(&path).unwrap().len());
    drop(journal);

    // A tail is cut off, and what is appended then follows what was right.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], &[7; 20]].concat()).unwrap();
    let (journal, decoded) = Journal::open(&path).unwrap();
    assert_eq!(decoded.records, records[..5]);
    assert_eq!(decoded.torn, Some(Torn { at: whole.len() as u64, bytes: 20 }));
    journal.write(&records[5]).unwrap();
    let (again, decoded) = Journal::open(&path).unwrap();
    assert_eq!((decoded.records, decoded.torn), (records.clone(), None));

    again.append(&records[0]).unwrap();
    again.rewrite(&records[4..]).unwrap();
    again.write(&records[1]).unwrap();
    let expected = [&records[4..], &records[1..2]].concat();
    assert_eq!(Journal::open(&path).unwrap().1.records, expected);
}

#[test]
fn what_a_rewritten_journal_begins_with_is_known_to_have_been_durable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    drop(Journal::create(&path, &records()).unwrap());
    let whole = std::fs::read(&path).unwrap();
    let last = whole.len() - FRAME - 1;
    for at in HEADER..last {
        let mut broken = whole.clone();
        broken[at] ^= 1;
        assert!(decode(&broken).is_err(), "{at}");
    }
    std::fs::write(&path, &whole[..last]).unwrap();
    assert_eq!(Journal::open(&path).unwrap().1.records, records());
    std::fs::write(&path, b"something else entirely").unwrap();
    let error = Journal::open(&path).unwrap_err();
    assert!(error.to_string().contains("journal: it is not a journal"), "{error}");
}

#[test]
fn who_syncs_at_the_same_time_shares_a_sync() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &[]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let journal = &journal;
            scope.spawn(move || {
                for change in 0..25 {
                    let lsn =
                        journal.append(&Record::Map { vssd: VssdId(thread), change: vec![change] }).unwrap();
                    journal.sync(lsn).unwrap();
                    assert!(journal.durable() >= lsn);
                }
            });
        }
    });
    let records = Journal::open(&path).unwrap().1.records;
    for thread in 0..8 {
        let changes = records.iter().filter_map(|record| match record {
            Record::Map { vssd, change } if vssd.0 == thread => Some(change[0]),
            _ => None,
        });
        assert_eq!(changes.collect::<Vec<_>>(), (0..25).collect::<Vec<_>>());
    }
}

#[test]
fn a_write_that_fails_is_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &[]).unwrap();
    journal.lock().file = std::sync::Arc::new(File::open(&path).unwrap());
    let error = journal.write(&records()[0]).unwrap_err();
    assert!(error.to_string().contains("a write to it failed"), "{error}");
    assert!(journal.append(&records()[0]).is_err() && journal.rewrite(&[]).is_err());
    assert_eq!(decode(&std::fs::read(&path).unwrap()).unwrap().records, []);
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
}
