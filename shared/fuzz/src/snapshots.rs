//! Snapshots for containerd: the journal that a start reads, and filters of clients.

use crate::scratch_directory;
use headstart_block::{Error, Result};
use headstart_snapshotter::filter::SnapshotFilter;
use headstart_snapshotter::journal::{JournalReport, SnapshotJournal};
use headstart_snapshotter::record::{
    SnapshotId, SnapshotLabels, SnapshotRecord, SnapshotState, SnapshotTime,
};
use headstart_snapshotter::table::SnapshotTable;
use std::fs;
use std::path::Path;

/// The journal of snapshots, as a crash or an enemy may have left it. Mended, it is opened again, and must then give
/// the same table without another repair.
///
/// # Errors
/// Fails if the input is not one, or there is no place for a file.
///
/// # Panics
/// Panics if it gives another table.
pub fn snapshot_journal(input: &[u8]) -> Result<()> {
    let directory = scratch_directory()?;
    let path = directory.path().join("journal");
    fs::write(&path, input)?;
    let (table, _) = open(&path)?;
    let (again, report) = open(&path)?;
    assert!(table == again, "opened again, it gives another table");
    assert!(report == Some(JournalReport::default()), "mended, it is mended again");
    let mut rebuilt = SnapshotTable::default();
    table.changes().try_for_each(|change| rebuilt.apply(change))?;
    assert!(table == rebuilt, "its changes give another table");
    Ok(())
}

fn open(path: &Path) -> Result<(SnapshotTable, Option<JournalReport>)> {
    let mut table = SnapshotTable::default();
    let (_, report) = SnapshotJournal::open(path, |change| table.apply(change))?;
    Ok((table, report))
}

/// A filter of snapshots, with which one is looked at.
///
/// # Errors
/// Fails if the input is not one.
pub fn snapshot_filter(input: &[u8]) -> Result<()> {
    let text = str::from_utf8(input).map_err(|_| Error::invalid("it is not text"))?;
    let filter = SnapshotFilter::parse(&[text]).map_err(|fault| Error::invalid(fault.to_string()))?;
    let record = SnapshotRecord {
        id: SnapshotId(1),
        key: "sha256:0123".to_owned(),
        parent: None,
        state: SnapshotState::Active,
        labels: SnapshotLabels::from([("a.b".to_owned(), "x".to_owned())]),
        created: SnapshotTime::default(),
        updated: SnapshotTime::default(),
    };
    let _ = filter.selects(&record);
    Ok(())
}
