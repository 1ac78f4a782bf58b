//! The start of a snapshotter: see [the module above](super).

use super::{Snapshotter, SnapshotterSettings};
use crate::fault::SnapshotFault;
use crate::journal::{JournalReport, SnapshotJournal};
use crate::overlay::{OrphanDirectory, OverlayRoot, remove};
use crate::project_quota::ProjectQuotas;
use crate::record::SnapshotTime;
use crate::remote::{DiskClosing, RemoteLayerSource, TREES_DIRECTORY, WRITTEN_DIRECTORY};
use crate::table::{SnapshotPlace, SnapshotTable};
use headstart_block::{Complaints, Error, ErrorKind, Result, lock, private};
use parking_lot::{Mutex, RwLock};
use std::fs::File;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

/// The name of the journal in the root directory.
const JOURNAL: &str = "journal";
/// The directory for files of snapshots that the journal does not know, in the root directory.
const LOST_DIRECTORY: &str = "lost";
/// The file that marks the directory of a snapshot that the journal does not know, and whose disk could not be closed.
const ASIDE: &str = "unknown";
/// The time that a snapshotter that is ending has for letting go of the directory.
const LOCK_TIME: Duration = Duration::from_secs(2);

/// The findings of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotterReport {
    /// The number of snapshots.
    pub snapshots: usize,
    /// The repairs of the journal.
    pub journal: JournalReport,
    /// The number of directories that the journal does not know, and that were removed or, with files, set aside.
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
        let (mut journal, journal_report) = SnapshotJournal::open(&path, |change| table.apply(change))?;
        if journal.is_of_earlier_version() {
            let changes: Vec<_> = table.changes().collect();
            let failed = |fault: SnapshotFault| Error::new(ErrorKind::Io, fault.text);
            journal.rewrite(changes.into_iter()).map_err(failed)?;
        }
        let repairs = journal_report.unwrap_or_default();
        if repairs.restored > 0 || repairs.is_front_restored {
            let (path, records) = (path.display(), repairs.restored);
            tracing::warn!(%path, records, "the journal was damaged, and was restored from its copies");
        }
        let mut report =
            SnapshotterReport { snapshots: table.count(), journal: repairs, ..SnapshotterReport::default() };
        let last = table.last_id();
        for orphan in overlay.orphans(|id| table.is_used(id))? {
            // The others have numbers that do not come again, and may be large.
            if orphan.id > last || is_set_aside(&orphan.path) {
                if let Err(error) = remote.close_own(&orphan.path.join("block"), DiskClosing::Anyway) {
                    set_aside(&orphan, &error)?;
                    table.use_up(orphan.id);
                    continue;
                }
                take_away(&settings.root, &orphan)?;
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
        let (locks, clock) = (Mutex::default(), Box::new(clock));
        let quotas = ProjectQuotas::open(&overlay.path(SnapshotPlace::All));
        Ok((
            Self {
                settings,
                overlay,
                table,
                journal,
                remote,
                locks,
                quotas,
                clock,
                complaint: Once::new(),
                fallbacks: Complaints::default(),
                _lock: held,
            },
            report,
        ))
    }
}

/// Leaves a directory that no journal knows to the next start, because its disk cannot be closed now.
fn set_aside(orphan: &OrphanDirectory, error: &Error) -> Result<()> {
    let mark = orphan.path.join(ASIDE);
    File::create(&mark).map_err(|error| Error::io("cannot be made", error).about(mark.display()))?;
    let directory = orphan.path.display();
    tracing::warn!(%directory, %error, "a directory that the journal does not know stays until the next start");
    Ok(())
}

/// `true` if a directory is left to the next start.
pub(super) fn is_set_aside(directory: &Path) -> bool {
    directory.join(ASIDE).exists()
}

/// Removes a directory whose number comes again. One that has files was a snapshot's: an earlier journal has taken the
/// place of the one that knew it. Its files are kept aside.
fn take_away(root: &Path, orphan: &OrphanDirectory) -> Result<()> {
    let failed = |error| Error::io("cannot be removed", error).about(orphan.path.display());
    let has_some =
        |path: &str| std::fs::read_dir(orphan.path.join(path)).is_ok_and(|mut files| files.next().is_some());
    let has_files = has_some("fs") || has_some(&format!("block/{WRITTEN_DIRECTORY}"));
    if !has_files {
        return remove(&orphan.path).map_err(failed);
    }
    let lost = root.join(LOST_DIRECTORY);
    private::make_directory(&lost).map_err(failed)?;
    let kept = (0_u32..).map(|number| lost.join(format!("{}-{number}", orphan.id)));
    let kept = kept.into_iter().find(|path| !path.exists()).unwrap_or(lost);
    std::fs::rename(&orphan.path, &kept).map_err(failed)?;
    tracing::error!(directory = %kept.display(), "the journal does not know a snapshot, whose files are kept here");
    Ok(())
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
    Err(error.remedy(
        "move the whole directory away, on the same file system, and pull the images again: containers that run go on",
    ))
}
