use super::super::group::slot_at;
use super::super::room::{RESERVE, limit};
use super::super::tests::records;
use super::super::writer::beside;
use super::super::{Decoded, Torn, decode};
use super::*;
use crate::VssdId;
use headstart_testkit::soak;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

fn opened(path: &Path) -> (Journal, Decoded) {
    let mut records = Vec::new();
    let opened = Journal::open(path, |record| {
        records.push(record);
        Ok(())
    });
    let (journal, end) = opened.unwrap();
    (journal, Decoded { records, end })
}

fn rewrite(journal: &Journal, records: &[JournalRecord]) -> Result<()> {
    let mut new = journal.rewriting()?;
    records.iter().try_for_each(|record| new.write(record))?;
    new.finish(|| Ok(()))
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
    assert_eq!(opened(&path).1.records, records[..2]);
    journal.sync(lsn).unwrap();
    assert_eq!(journal.durable(), lsn);
    journal.write(&records[4]).unwrap();
    assert_eq!(journal.size(), std::fs::metadata(&path).unwrap().len());
    drop(journal);

    // A tail is cut off, and records that are appended then follow the right ones.
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], &[7; 20]].concat()).unwrap();
    let (journal, decoded) = opened(&path);
    assert_eq!(decoded.records, records[..5]);
    assert_eq!(decoded.end.torn, Some(Torn { at: whole.len() as u64, bytes: 20 }));
    journal.write(&records[5]).unwrap();
    let (again, decoded) = opened(&path);
    assert_eq!((decoded.records, decoded.end.torn), (records.clone(), None));

    again.append(&records[0]).unwrap();
    rewrite(&again, &records[4..]).unwrap();
    again.write(&records[1]).unwrap();
    let expected = [&records[4..], &records[1..2]].concat();
    assert_eq!(opened(&path).1.records, expected);
}

#[test]
fn damage_at_the_front_of_a_rewritten_journal_is_no_torn_tail() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    drop(Journal::create(&path, &records()).unwrap());
    let whole = std::fs::read(&path).unwrap();
    for at in FRONT..whole.len() {
        let mut broken = whole.clone();
        broken[at] ^= 1;
        assert!(decode(&broken).is_err(), "{at}");
        assert!(decode(&whole[..at]).is_err(), "{at}");
    }
    std::fs::write(&path, b"something else entirely").unwrap();
    let error = Journal::open(&path, |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("journal: it is not a journal"), "{error}");
}

#[test]
fn concurrent_syncs_share_one_sync() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &[]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let journal = &journal;
            scope.spawn(move || {
                for change in 0..25 {
                    let lsn = journal
                        .append(&JournalRecord::Map { vssd: VssdId(thread), change: vec![change] })
                        .unwrap();
                    journal.sync(lsn).unwrap();
                    assert!(journal.durable() >= lsn);
                }
            });
        }
    });
    let records = opened(&path).1.records;
    for thread in 0..8 {
        let changes = records.iter().filter_map(|record| match record {
            JournalRecord::Map { vssd, change } if vssd.0 == thread => Some(change[0]),
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
    journal.lock().written.file = Arc::new(Medium::of(File::open(&path).unwrap()));
    let error = journal.write(&records()[0]).unwrap_err();
    assert!(error.to_string().contains("a write to it failed"), "{error}");
    assert!(journal.append(&records()[0]).is_err() && rewrite(&journal, &[]).is_err());
    assert_eq!(decode(&std::fs::read(&path).unwrap()).unwrap().records, []);
}

#[test]
fn records_appended_during_a_rewrite_follow_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let records = records();
    let journal = Journal::create(&path, &records).unwrap();
    journal.append(&records[0]).unwrap();
    let mut new = journal.rewriting().unwrap();
    assert_eq!(journal.rewriting().unwrap_err().kind(), ErrorKind::Conflict);
    new.write(&records[5]).unwrap();
    journal.write(&records[1]).unwrap();
    journal.append(&records[2]).unwrap();
    new.write(&records[4]).unwrap();
    new.finish(|| {
        assert_eq!(journal.rewriting().unwrap_err().kind(), ErrorKind::Conflict);
        // A record that comes now was not taken along, and is not lost either.
        journal.append(&records[3]).map(drop)
    })
    .unwrap();
    let begin = [&records[5], &records[4], &records[1], &records[2]].map(Clone::clone);
    assert_eq!(opened(&path).1.records, begin);
    assert!(journal.durable() < journal.appended());
    journal.sync(journal.appended()).unwrap();
    let whole = [&begin[..], &records[3..4]].concat();
    assert_eq!(
        (opened(&path).1.records, journal.size()),
        (whole.clone(), std::fs::metadata(&path).unwrap().len())
    );
    // All of it is known to have been durable, and of the last group there is a copy.
    let bytes = std::fs::read(&path).unwrap();
    for at in FRONT..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 1;
        if let Ok(decoded) = decode(&broken) {
            assert_eq!((decoded.records, decoded.end.restored.len()), (whole.clone(), 1), "{at}");
        }
    }
}

#[test]
fn synced_records_survive_any_flipped_bit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let records = records();
    for close in [false, true] {
        let journal = Journal::create(&path, &records[..1]).unwrap();
        for record in &records[1..] {
            journal.write(record).unwrap();
        }
        // One that is too long for a mark.
        let long = JournalRecord::Map { vssd: VssdId(1), change: vec![1; 40_000] };
        journal.write(&long).unwrap();
        if close {
            journal.close().unwrap();
        }
        drop(journal);
        let all = [&records[..], &[long]].concat();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(opened(&path).1.end.closed, close);
        // A part of the places, and all of a front in `make soak`.
        let (step, of_start, of_front) = if soak::is_on() { (29, 1, 1) } else { (601, 5, 37) };
        let front = (FRONT..FRONT + 1200).step_by(of_front);
        for at in (0..bytes.len()).step_by(step).chain((0..64).step_by(of_start)).chain(front) {
            let mut broken = bytes.clone();
            broken[at] ^= 1 << (at % 8);
            if let Ok(decoded) = decode(&broken) {
                assert!(decoded.records == all && decoded.end.torn.is_none(), "byte {at}");
                // The file is put right when it is opened.
                std::fs::write(&path, &broken).unwrap();
                drop(opened(&path));
                assert!(opened(&path).1.end.restored.is_empty());
            }
        }
        // Shorter than it was, it is no journal of a crash.
        for cut in (0..bytes.len()).step_by(101) {
            assert!(decode(&bytes[..cut]).map_or(true, |decoded| decoded.records == all), "{cut}");
        }
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(opened(&path).1.end.closed, close);
        assert!(!opened(&path).1.end.closed, "it was opened since, and perhaps used");
        let (journal, _) = opened(&path);
        journal.write(&records[0]).unwrap();
        let (_, decoded) = opened(&path);
        assert!(decoded.records.len() == all.len() + 1 && !decoded.end.closed);
    }
}

/// A journal that was opened has no mark that declares it closed, whichever marks did before.
#[test]
fn an_open_journal_does_not_say_that_it_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let records = records();
    for (closes, damaged) in [(1, None), (2, None), (1, Some(0)), (1, Some(1)), (2, Some(0)), (2, Some(1))] {
        let journal = Journal::create(&path, &records[..1]).unwrap();
        journal.write(&records[1]).unwrap();
        (0..closes).for_each(|_| journal.close().unwrap());
        drop(journal);
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(slot) = damaged {
            bytes[usize::try_from(slot_at(slot)).unwrap()] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
        }
        let was_closed = opened(&path).1.end.closed;
        assert!(was_closed || (closes == 1 && damaged.is_some()), "{closes} {damaged:?}");
        let after = opened(&path).1;
        assert!(!after.end.closed && after.records == records[..2], "{closes} {damaged:?}");
    }
}

#[test]
fn one_of_an_earlier_version_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let records = records();
    let (mut bytes, _) = old::written(&records, 4);
    bytes.extend([7; 30]);
    std::fs::write(&path, &bytes).unwrap();
    let (journal, decoded) = opened(&path);
    assert_eq!((decoded.records, decoded.end.version), (records.clone(), 2));
    assert!(decoded.end.torn.is_some_and(|torn| torn.bytes == 30));
    journal.write(&records[0]).unwrap();
    drop(journal);
    let (_, decoded) = opened(&path);
    assert_eq!((decoded.records, decoded.end.version), ([&records[..], &records[..1]].concat(), VERSION));
    // A damaged journal, or one with unknown records, stays as it is.
    bytes[40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(Journal::open(&path, |_| Ok(())).is_err());
    assert!(std::fs::read(&path).unwrap() == bytes && !beside(&path).exists());
    bytes[40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(Journal::open(&path, |_| Err(Error::invalid("unknown"))).is_err());
    assert!(std::fs::read(&path).unwrap() == bytes && !beside(&path).exists());
}

#[test]
fn a_rewriting_that_fails_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let records = records();
    let journal = Journal::create(&path, &records[..1]).unwrap();
    // Given up.
    let mut new = journal.rewriting().unwrap();
    new.write(&records[5]).unwrap();
    journal.append(&records[1]).unwrap();
    drop(new);
    assert!(!beside(&path).exists());
    // The new one cannot be written.
    let mut new = journal.rewriting().unwrap();
    new.new.written.file = Arc::new(Medium::of(File::open(&path).unwrap()));
    journal.append(&records[2]).unwrap();
    new.write(&records[5]).unwrap();
    assert!(new.finish(|| Ok(())).is_err() && !beside(&path).exists());
    // It cannot be written any more when all is settled.
    let mut new = journal.rewriting().unwrap();
    new.write(&records[5]).unwrap();
    new.new.sync().unwrap();
    new.new.written.file = Arc::new(Medium::of(File::open(&path).unwrap()));
    assert!(new.finish(|| journal.append(&records[3]).map(drop)).is_err());
    journal.sync(journal.appended()).unwrap();
    assert_eq!(opened(&path).1.records, records[..4]);
    rewrite(&journal, &records[4..]).unwrap();
    assert_eq!(opened(&path).1.records, records[4..]);
    // The data that the new one relies on cannot be made durable: its state is unknown.
    let new = journal.rewriting().unwrap();
    let error = new.finish(|| Err(Error::invalid("no flash"))).unwrap_err();
    assert!(error.to_string().contains("no flash"), "{error}");
    assert!(journal.append(&records[0]).unwrap_err().to_string().contains("no flash"));
    assert_eq!(opened(&path).1.records, records[4..]);
}

#[test]
fn a_journal_is_rewritten_while_it_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &[]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u32)
            .map(|thread| {
                let journal = &journal;
                scope.spawn(move || {
                    for change in 0..100 {
                        let record = JournalRecord::Map { vssd: VssdId(thread), change: vec![change] };
                        let lsn = journal.append(&record).unwrap();
                        if change % 3 == 0 {
                            journal.sync(lsn).unwrap();
                        }
                    }
                })
            })
            .collect();
        let (journal, done) = (&journal, &done);
        scope.spawn(move || {
            while !done.load(Ordering::SeqCst) {
                // All present records, and then those that come.
                let mut new = journal.rewriting().unwrap();
                let state = journal.lock();
                let upto = state.appended;
                let before = state.tail.as_ref().map_or(0, Vec::len);
                drop(state);
                assert!(before as u64 <= upto.0);
                let marker = JournalRecord::Host { meta: upto.0.to_le_bytes().to_vec() };
                new.write(&marker).unwrap();
                new.finish(|| Ok(())).unwrap();
            }
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::SeqCst);
    });
    journal.sync(journal.appended()).unwrap();
    // The records of each thread are its last changes, in order, without gaps.
    let records = opened(&path).1.records;
    for thread in 0..4 {
        let changes: Vec<u8> = records
            .iter()
            .filter_map(|record| match record {
                JournalRecord::Map { vssd, change } if vssd.0 == thread => Some(change[0]),
                _ => None,
            })
            .collect();
        assert!(changes.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{changes:?}");
        assert!(changes.is_empty() || changes.last() == Some(&99), "{changes:?}");
    }
}

/// Appends records until the disk is full and `others` bytes are left; returns the records.
fn filled(journal: &Journal, others: u64) -> Vec<JournalRecord> {
    let mut all = Vec::new();
    let error = loop {
        if let Err(error) = journal.check_room(5100, others) {
            break error;
        }
        all.push(JournalRecord::Map {
            vssd: VssdId(1),
            change: vec![u8::try_from(all.len() % 251).unwrap(); 5000],
        });
        journal.write(all.last().unwrap()).unwrap();
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let text = error.to_string();
    assert!(text.contains("/journal: its file system is full") && text.contains("make room there"), "{text}");
    assert_eq!(text.matches(';').count(), 2, "{text}");
    all
}

#[test]
fn reserved_room_does_not_lengthen_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &records()).unwrap();
    let taken =
        || std::fs::metadata(&path).map(|file| (file.len() == journal.size(), file.blocks() * 512)).unwrap();
    assert!(taken().0 && taken().1 >= 2 * RESERVE, "{:?}", taken());
    assert_eq!(opened(&path).1.end.torn, None);
    // Room is taken again when it is used up, and for the next journal.
    let large = JournalRecord::Map { vssd: VssdId(1), change: vec![1; 5 << 20] };
    journal.write(&large).unwrap();
    journal.write(&records()[0]).unwrap();
    assert!(taken().0 && taken().1 >= (5 << 20) + 2 * RESERVE, "{:?}", taken());
    rewrite(&journal, &records()).unwrap();
    assert!(taken().0 && taken().1 >= 2 * RESERVE, "{:?}", taken());
    assert_eq!(opened(&path).1.end.torn, None);
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &[]).unwrap();
    limit::here().fill(true);
    let mut all = filled(&journal, RESERVE);
    assert!(journal.check_room(0, RESERVE / 2).is_ok());
    all.extend(filled(&journal, RESERVE / 2));
    all.extend(filled(&journal, 0).into_iter().inspect(|_| assert!(journal.look_for_room().is_some())));
    // All is used up. A refused record is written when it is tried again.
    let mut written = all.clone();
    for part in 0..3 {
        written.push(JournalRecord::Map { vssd: VssdId(2), change: vec![part; 9000] });
        let lsn = journal.append(written.last().unwrap()).unwrap();
        let error = journal.sync(lsn).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(journal.durable() < lsn);
        // A crash now: the content is right up to some record.
        let decoded = decode(&std::fs::read(&path).unwrap()).unwrap();
        assert!(
            decoded.records.len() >= all.len() && decoded.records[..] == written[..decoded.records.len()]
        );
    }
    assert!(rewrite(&journal, &[]).is_err() && !beside(&path).exists(), "there is no room for another");
    limit::here().fill(false);
    assert!(journal.check_room(1, 0).is_err(), "nobody has looked");
    assert!(journal.look_for_room().is_none() && journal.check_room(0, RESERVE).is_ok());
    journal.sync(journal.appended()).unwrap();
    written.push(records()[0].clone());
    journal.write(&records()[0]).unwrap();
    assert_eq!(journal.size(), std::fs::metadata(&path).unwrap().len());
    let (journal, decoded) = opened(&path);
    assert!(decoded.records == written && decoded.end.torn.is_none());
    rewrite(&journal, &records()).unwrap();
    assert_eq!(opened(&path).1.records, records());
}

#[test]
fn a_full_disk_is_no_worse_where_nothing_can_be_taken_ahead() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    limit::here().is_blind.store(true, Ordering::SeqCst);
    let journal = Journal::create(&path, &[]).unwrap();
    journal.check_room(1 << 40, RESERVE).unwrap();
    journal.write(&records()[0]).unwrap();
    limit::here().fill(true);
    let large = JournalRecord::Map { vssd: VssdId(1), change: vec![1; 50_000] };
    assert_eq!(journal.write(&large).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(journal.check_room(1, 0).is_err() && journal.look_for_room().is_some());
    limit::here().fill(false);
    assert!(journal.look_for_room().is_some(), "that is seen when it is written");
    journal.sync(journal.appended()).unwrap();
    assert!(journal.look_for_room().is_none() && journal.check_room(1 << 40, RESERVE).is_ok());
    assert_eq!(opened(&path).1.records, [records()[0].clone(), large]);
}

#[test]
fn reserved_room_survives_a_restart_on_a_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &[]).unwrap();
    limit::here().fill(true);
    let all = filled(&journal, RESERVE);
    drop(journal);
    let (journal, decoded) = opened(&path);
    assert!(decoded.records == all && journal.check_room(5100, RESERVE).is_err());
    journal.write(&records()[0]).unwrap();
    assert_eq!(opened(&path).1.records.len(), all.len() + 1);
}

#[test]
fn a_request_for_more_room_is_tried_again_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let journal = Journal::create(&path, &[]).unwrap();
    limit::here().fill(true);
    assert_eq!(journal.check_room(10 << 20, RESERVE).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(journal.look_for_room().is_none(), "what others need is there");
    assert!(journal.check_room(10 << 20, RESERVE).is_err() && journal.check_room(0, RESERVE).is_ok());
    limit::here().fill(false);
    assert!(journal.look_for_room().is_none() && journal.check_room(10 << 20, RESERVE).is_ok());
    // Opened when less room can be taken ahead than should be.
    let journal = Journal::create(&path, &[]).unwrap();
    journal.write(&JournalRecord::Map { vssd: VssdId(1), change: vec![1; 20_000] }).unwrap();
    limit::here().fill(true);
    let journal = {
        drop(journal);
        opened(&path).0
    };
    assert!(journal.look_for_room().is_some() && journal.check_room(0, RESERVE).is_ok());
    limit::here().fill(false);
    assert!(journal.look_for_room().is_none());
}

#[test]
fn room_that_was_promised_and_is_not_there_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    limit::here().is_hollow.store(true, Ordering::SeqCst);
    let journal = Journal::create(&path, &[]).unwrap();
    limit::here().fill(true);
    journal.check_room(0, RESERVE).unwrap();
    assert_eq!(journal.write(&records()[0]).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(journal.check_room(0, RESERVE).is_err() && journal.look_for_room().is_some());
    limit::here().fill(false);
    journal.sync(journal.appended()).unwrap();
    assert!(journal.look_for_room().is_none() && journal.check_room(0, RESERVE).is_ok());
    assert_eq!(opened(&path).1.records, [records()[0].clone()]);
}

#[test]
fn a_journal_is_its_owners_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
    let journal = Journal::create(&path, &[]).unwrap();
    assert_eq!(mode(), 0o600);
    std::fs::write(beside(&path), "left behind").unwrap();
    std::fs::set_permissions(beside(&path), Permissions::from_mode(0o644)).unwrap();
    rewrite(&journal, &records()).unwrap();
    assert_eq!((mode(), opened(&path).1.records), (0o600, records()));
}
