use super::*;
use crate::record::{SnapshotLabels, SnapshotState, SnapshotTime};
use crate::{SnapshotId, SnapshotTable};
use headstart_block::ErrorKind;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

fn created(id: u64, label: usize) -> SnapshotChange {
    SnapshotChange::Created {
        id: SnapshotId(id),
        key: format!("key {id}"),
        parent: None,
        state: SnapshotState::Active,
        labels: [("label".to_owned(), "x".repeat(label))].into(),
        at: SnapshotTime { seconds: 1, nanos: 2 },
    }
}

fn read(bytes: &[u8]) -> Result<(Vec<SnapshotChange>, JournalEnd)> {
    let mut changes = Vec::new();
    let end = replay(bytes, |change| {
        changes.push(change);
        Ok(())
    })?;
    Ok((changes, end))
}

fn open(path: &Path) -> Result<(SnapshotJournal, Vec<SnapshotChange>, Option<JournalReport>)> {
    let mut changes = Vec::new();
    let (journal, report) = SnapshotJournal::open(path, |change| {
        changes.push(change);
        Ok(())
    })?;
    Ok((journal, changes, report))
}

/// The bytes of a journal before and after each of `changes`.
fn states(changes: &[SnapshotChange]) -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, _, report) = open(&path).unwrap();
    assert_eq!(report, None);
    let mut states = vec![fs::read(&path).unwrap()];
    for change in changes {
        journal.append(change).unwrap();
        states.push(fs::read(&path).unwrap());
    }
    states
}

/// Small records, and one that fits no slot.
fn examples() -> Vec<SnapshotChange> {
    vec![created(1, 3), created(2, 40), SnapshotChange::Removed { key: "key 1".to_owned() }, created(3, 9)]
}

#[test]
fn what_was_appended_is_read_again() {
    let changes = [examples(), vec![created(4, SLOT), created(5, 2 * SLOT), created(6, 0)]].concat();
    for (count, state) in states(&changes).iter().enumerate() {
        let (read, end) = read(state).unwrap();
        assert_eq!(read, changes[..count]);
        assert_eq!((end.torn, end.restored.len()), (0, 0));
    }
}

#[test]
fn a_crash_while_a_record_is_written_leaves_the_state_before_or_after() {
    let changes = [examples(), vec![created(4, 5)]].concat();
    for (count, pair) in states(&changes).windows(2).enumerate() {
        let [before, after] = pair else { unreachable!() };
        let parts = [SLOTS..SLOTS + SLOT, SLOTS + SLOT..FRONT];
        let slot = parts.into_iter().find(|part| before[part.clone()] != after[part.clone()]).unwrap();
        for written in (before.len()..=after.len()).rev() {
            for of_mark in [0, 8, 39, 40, 60, 90, SLOT] {
                for is_filled in [false, true] {
                    let mut torn = after[..written].to_vec();
                    if is_filled {
                        // The length was durable, and not all of the bytes.
                        torn.resize(after.len(), 0);
                    }
                    let kept = slot.start + of_mark.min(SLOT)..slot.end;
                    torn[kept.clone()].copy_from_slice(&before[kept]);
                    let (read, end) = read(&torn).expect("a torn record ends the journal");
                    let is_after = read.len() == count + 1;
                    assert_eq!(read, changes[..count + usize::from(is_after)], "{count} {written} {of_mark}");
                    let is_whole = written == after.len() || of_mark == SLOT;
                    assert!(is_after || !is_whole, "{count} {written} {of_mark}");
                    assert_eq!(
                        end.torn > 0,
                        !is_after && torn.len() > before.len(),
                        "{count} {written} {of_mark}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_byte_that_changed_is_mended_or_an_error_that_names_the_place() {
    let changes = examples();
    let state = states(&changes).pop().unwrap();
    let places = (0..IDENTITY).chain(COPY..COPY + IDENTITY);
    let places = places
        .chain(slot_at(0)..slot_at(0) + 200)
        .chain(slot_at(1)..slot_at(1) + 200)
        .chain(FRONT..state.len());
    let (mut mended, mut refused) = (0, 0);
    for at in places {
        let mut damaged = state.clone();
        damaged[at] ^= 0x20;
        match read(&damaged) {
            Ok((read, end)) => {
                assert_eq!(read, changes, "byte {at}");
                mended += usize::from(!end.restored.is_empty());
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                let text = error.to_string();
                assert!(
                    at >= FRONT && text.contains("damaged at byte") && text.contains("move the whole"),
                    "{at}: {text}"
                );
                refused += 1;
            }
        }
    }
    // The last two records have copies.
    assert!(mended > 90 && refused > 90, "{mended} {refused}");
}

#[test]
fn a_journal_that_lost_its_end_is_mended_or_an_error() {
    let changes = examples();
    let states = states(&changes);
    let state = states.last().unwrap();
    // The last two records have copies.
    let copied = states[states.len() - 3].len();
    for len in 0..state.len() {
        match read(&state[..len]) {
            Ok((read, _)) => assert!(len >= copied && read == changes, "{len} bytes"),
            Err(error) => assert!(len < copied, "{len} bytes: {error}"),
        }
    }
}

#[test]
fn an_opened_journal_is_mended_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let states = states(&examples());
    let mut torn = states[3].clone();
    torn.extend([7; 50]);
    torn[3] ^= 1;
    // The last record: its copy is in a mark.
    let last = states[2].len() + HEAD;
    torn[last] ^= 1;
    fs::write(&path, torn).unwrap();
    let (mut journal, changes, report) = open(&path).unwrap();
    assert_eq!(report, Some(JournalReport { torn: 50, restored: 1, is_front_restored: true }));
    assert_eq!(changes, examples()[..3]);
    journal.append(&examples()[3]).unwrap();
    drop(journal);
    let (_, changes, report) = open(&path).unwrap();
    assert_eq!((changes, report), (examples(), Some(JournalReport::default())));
    assert_eq!(fs::read(&path).unwrap(), states[4]);
}

#[test]
fn a_journal_of_another_version_or_kind_is_refused() {
    let mut other = states(&[]).pop().unwrap();
    other[8] = 3;
    let sum = sum(&[&other[..24]]);
    other[24..32].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(read(&other).unwrap_err().kind(), ErrorKind::Unsupported);
    for bytes in [&b""[..], b"HSsnapsh", &[0; 100_000]] {
        assert_eq!(read(bytes).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_rewritten_journal_leads_to_the_same_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut table = SnapshotTable::default();
    let (mut journal, ..) = open(&path).unwrap();
    let append = |journal: &mut SnapshotJournal, table: &mut SnapshotTable, change: SnapshotChange| {
        journal.append(&change).unwrap();
        table.apply(change).unwrap();
    };
    append(&mut journal, &mut table, created(1, 5));
    append(&mut journal, &mut table, created(2, 5));
    let mut count = 0;
    while !journal.has_grown() {
        let labels: SnapshotLabels = [("label".to_owned(), format!("{count}{}", "x".repeat(4000)))].into();
        let change = SnapshotChange::Updated { key: "key 1".to_owned(), labels, at: SnapshotTime::default() };
        append(&mut journal, &mut table, change);
        count += 1;
    }
    append(&mut journal, &mut table, SnapshotChange::Removed { key: "key 2".to_owned() });
    let before = fs::metadata(&path).unwrap().len();
    journal.rewrite(table.changes()).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < before / 10 && !journal.has_grown());
    append(&mut journal, &mut table, created(3, 1));
    drop(journal);
    // A crash in the next rewriting.
    fs::write(dir.path().join("journal.new"), "half").unwrap();
    let (_, changes, report) = open(&path).unwrap();
    let mut read = SnapshotTable::default();
    changes.into_iter().for_each(|change| read.apply(change).unwrap());
    assert_eq!((read, report), (table, Some(JournalReport::default())));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A journal of version 1, as the version before disks for active snapshots wrote it.
const EARLIER: &[u8] = include_bytes!("fixtures/version-1");

#[test]
fn a_journal_of_the_version_before_is_read_and_rewritten_as_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    fs::write(&path, EARLIER).unwrap();
    let mut table = SnapshotTable::default();
    let (mut journal, report) = SnapshotJournal::open(&path, |change| table.apply(change)).unwrap();
    assert_eq!(report, Some(JournalReport::default()));
    assert!(journal.is_of_earlier_version());
    assert_eq!(
        table.all().map(|record| record.key.as_str()).collect::<Vec<_>>(),
        ["active", "disk", "layer", "view"]
    );
    assert_eq!(table.get("disk").unwrap().disk_image().unwrap().0, "oci://h/app@sha256:00#all");
    assert_eq!(table.get("layer").unwrap().labels["a"], "b");
    // Its front is mended as it was written.
    let mut damaged = EARLIER.to_vec();
    damaged[0] ^= 1;
    fs::write(dir.path().join("damaged"), damaged).unwrap();
    SnapshotJournal::open(&dir.path().join("damaged"), |_| Ok(())).unwrap();
    assert!(fs::read(dir.path().join("damaged")).unwrap() == EARLIER);
    journal.rewrite(table.changes()).unwrap();
    let image = crate::record::RemoteLayer("oci://h/app@sha256:00#all".to_owned());
    let state = SnapshotState::ActiveDisk { access: crate::DiskAccess::Device, image };
    let change = SnapshotChange::Created {
        id: SnapshotId(9),
        key: "own".to_owned(),
        parent: Some("disk".to_owned()),
        state,
        labels: SnapshotLabels::new(),
        at: SnapshotTime::default(),
    };
    journal.append(&change).unwrap();
    table.apply(change).unwrap();
    drop(journal);
    let mut again = SnapshotTable::default();
    let (journal, _) = SnapshotJournal::open(&path, |change| again.apply(change)).unwrap();
    assert!(!journal.is_of_earlier_version());
    assert_eq!(again, table);
}

#[test]
fn a_record_that_is_too_long_is_refused_and_the_journal_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, ..) = open(&path).unwrap();
    assert_eq!(journal.append(&created(1, RECORD_MOST)).unwrap_err().kind, crate::FaultKind::InvalidArgument);
    journal.append(&created(1, 1)).unwrap();
    assert_eq!(open(&path).unwrap().1, [created(1, 1)]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_journal_or_an_error(
        count in 0usize..5,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        more in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = states(&examples())[count].clone();
        bytes.extend(more);
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read(&bytes);
    }
}
