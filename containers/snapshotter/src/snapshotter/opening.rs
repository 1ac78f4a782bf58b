//! The start of a snapshotter: see [the module above](super).

use super::{Snapshotter, SnapshotterSettings};
use crate::journal::{JournalReport, SnapshotJournal};
use crate::overlay::{OverlayRoot, remove};
use crate::record::SnapshotTime;
use crate::remote::{RemoteLayerSource, TREES_DIRECTORY};
use crate::table::{SnapshotPlace, SnapshotTable};
use headstart_block::{Error, ErrorKind, Result, lock};
use parking_lot::{Mutex, RwLock};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// The name of the journal in the root directory.
const JOURNAL: &str = "journal";
/// The time that a snapshotter that is ending has for letting go of the directory.
const LOCK_TIME: Duration = Duration::from_secs(2);

/// The findings of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotterReport {
    /// The number of snapshots.
    pub snapshots: usize,
    /// The repairs of the journal.
    pub journal: JournalReport,
    /// The number of directories that were left of snapshots that were being made, and that were removed.
    pub unfinished: usize,
    /// The keys of snapshots whose directories are missing.
    pub missing: Vec<String>,
}

impl Snapshotter {
    /// Opens the snapshots of a root directory, or begins with none. `clock` gives the times of snapshots.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another process uses the directory; [`ErrorKind::Corrupt`] if the journal is damaged
    /// or missing; errors of the operating system.
    pub fn open(
        settings: SnapshotterSettings,
        remote: Box<dyn RemoteLayerSource>,
        clock: impl Fn() -> SnapshotTime + Send + Sync + 'static,
    ) -> Result<(Self, SnapshotterReport)> {
        let overlay = OverlayRoot::open(&settings.root, &settings.mount_options)?;
        let held = hold(&settings.root)?;
        let mut table = SnapshotTable::default();
        let path = settings.root.join(JOURNAL);
        if !path.exists() {
            check_unused(&overlay, &settings.root, &path)?;
        }
        let (journal, journal_report) = SnapshotJournal::open(&path, |change| table.apply(change))?;
        let mut report = SnapshotterReport {
            snapshots: table.count(),
            journal: journal_report.unwrap_or_default(),
            ..SnapshotterReport::default()
        };
        for orphan in overlay.orphans(|id| table.is_used(id))? {
            // The others have numbers that do not come again, and may be large.
            if orphan.id > table.last_id() {
                let failed = |error| Error::io("cannot be removed", error).about(orphan.path.display());
                remove(&orphan.path).map_err(failed)?;
                report.unfinished += 1;
            }
        }
        let with_directory = table.all().filter(|record| record.has_directory());
        let missing = with_directory.filter(|record| !overlay.path(SnapshotPlace::Upper(record.id)).is_dir());
        report.missing = missing.map(|record| record.key.clone()).collect();
        for key in &report.missing {
            tracing::error!(key, "the directory of this snapshot is missing");
        }
        let (table, journal) = (RwLock::new(table), Mutex::new(journal));
        let opened = Self { settings, overlay, table, journal, remote, clock: Box::new(clock), _lock: held };
        opened.keep_used();
        Ok((opened, report))
    }
}

/// Takes the directory for this process.
fn hold(root: &Path) -> Result<File> {
    let failed = |error| Error::io("cannot be locked", error).about(root.display());
    let directory = File::open(root).map_err(failed)?;
    if lock::lock_within(&directory, LOCK_TIME).map_err(failed)? {
        return Ok(directory);
    }
    let error = Error::new(ErrorKind::Conflict, "is used by another snapshotter");
    Err(error.about(root.display()).remedy("end that one, or give this one a directory of its own"))
}

/// Checks that a directory without a journal has no snapshots.
fn check_unused(overlay: &OverlayRoot, root: &Path, journal: &Path) -> Result<()> {
    let trees = std::fs::read_dir(root.join(TREES_DIRECTORY));
    if overlay.orphans(|_| false)?.is_empty() && trees.map_or(true, |mut trees| trees.next().is_none()) {
        return Ok(());
    }
    let error = Error::corrupt("is missing, and there are directories of snapshots or images")
        .about(journal.display());
    Err(error.remedy("restore it from a copy, or move the whole directory away and pull the images again"))
}
