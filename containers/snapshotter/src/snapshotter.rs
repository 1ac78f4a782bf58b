//! The snapshotter: the table, its journal, and the directories and disks that its steps are about.
//!
//! # Locks
//!
//! `table` is locked for moments, without I/O. `journal` is locked by each change from its plan to its record: changes
//! come one after the other, as in containerd's own store, and the table that a plan was made for is the one that it is
//! applied to. Reads of the table never wait for a disk. What takes long is done without either lock: measuring and
//! syncing before a commit, removing directories after a removal, and everything about remote layers.
//!
//! # Start and end
//!
//! At the start the table is replayed from the journal. Directories that a crash has left of snapshots that were being
//! made are removed at once, since their numbers come again (if they have files, they are set aside, in `lost`; one
//! whose disk cannot be closed without the agent stays until the next start, and its number is passed over);
//! directories of removed snapshots by
//! [`Snapshotter::cleanup`], and remote layers without a snapshot by [`Snapshotter::keep_used`], once calls are
//! answered. A directory that is missing is reported, and its snapshot stays. If the journal is missing
//! and directories are there, nothing is begun: that is a journal that was lost. Nothing happens at the end.

mod blocks;
mod disks;
mod opening;
mod own_labels;

pub use blocks::{ApplyTarget, NewLayerFile};
pub use opening::SnapshotterReport;

use self::disks::{LAYER_LABEL, check_new_limit};
use self::own_labels::{updated, without_ours};
use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::filter::SnapshotFilter;
use crate::journal::SnapshotJournal;
use crate::layer_form::with_blob;
use crate::overlay::{OverlayRoot, SnapshotMount, usage_of};
use crate::project_quota::ProjectQuotas;
use crate::record::{
    DiskAccess, RemoteLayer, SnapshotId, SnapshotKind, SnapshotLabels, SnapshotRecord, SnapshotState,
    SnapshotTime, SnapshotUsage,
};
use crate::remote::{FALLBACK_LABEL, RemoteAnswer, RemoteLayerSource, StartPlace, TARGET_LABEL};
use crate::table::{SnapshotPlace, SnapshotStep, SnapshotTable, SnapshotTree, WantedTree};
use headstart_block::Complaints;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Once};

/// The label with the directory of the files by which a snapshot differs from its parent.
const UPPER_LABEL: &str = "containerd.io/snapshot/overlay.upperdir";

/// The settings of a [`Snapshotter`].
#[derive(Clone, Debug)]
pub struct SnapshotterSettings {
    /// The root directory: the journal and all snapshots.
    pub root: PathBuf,
    /// Options for every mount of overlayfs, beside those that are always there.
    pub mount_options: Vec<String>,
    /// `true` if the files of a snapshot are made durable before it is committed. Otherwise a power cut may leave a
    /// layer with files cut short, which containerd believes to be whole.
    pub are_commits_durable: bool,
    /// `true` if directories of removed snapshots are left until containerd asks for a cleanup.
    pub keeps_removed: bool,
    /// The form of the disks that active snapshots get if their parent is a disk, unless their labels ask for something
    /// else. `None`: overlayfs takes what is written to them.
    pub own_disks: Option<DiskAccess>,
    /// The most bytes that an active snapshot may take, unless its label says otherwise. Layers that are unpacked have
    /// no limit. Disks hold it, and directories where their file system has project quotas.
    pub quota: Option<u64>,
    /// `true` if each snapshot is shown with a label that names the directory of its files.
    pub shows_upper: bool,
}

impl SnapshotterSettings {
    /// The usual settings for a root directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            mount_options: Vec::new(),
            are_commits_durable: true,
            keeps_removed: false,
            own_disks: None,
            quota: None,
            shows_upper: false,
        }
    }
}

/// The snapshots of one root directory. All methods block until what they do is done.
pub struct Snapshotter {
    settings: SnapshotterSettings,
    overlay: OverlayRoot,
    table: RwLock<SnapshotTable>,
    journal: Mutex<SnapshotJournal>,
    remote: Box<dyn RemoteLayerSource>,
    /// The locks of snapshots' disks.
    locks: Mutex<HashMap<SnapshotId, Arc<Mutex<()>>>>,
    /// The limits of directories, or the reason why they are not held.
    quotas: headstart_block::Result<ProjectQuotas>,
    clock: Box<dyn Fn() -> SnapshotTime + Send + Sync>,
    /// For a warning that is given once.
    complaint: Once,
    /// For warnings of images that are unpacked: the image and the cause.
    fallbacks: Complaints<(String, String)>,
    /// Locked, so that no other process uses the directory.
    _lock: File,
}

impl std::fmt::Debug for Snapshotter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshotter").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Snapshotter {
    /// The snapshot with a key or name.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`].
    pub fn stat(&self, key: &str) -> FaultResult<SnapshotRecord> {
        Ok(self.shown(self.table.read().get(key)?.clone()))
    }

    /// All snapshots that a filter selects, in the order of their keys.
    pub fn list(&self, filter: &SnapshotFilter) -> Vec<SnapshotRecord> {
        let table = self.table.read();
        table.all().filter(|record| filter.selects(record)).map(|record| self.shown(record.clone())).collect()
    }

    /// Changes labels of a snapshot and returns it: see [`SnapshotTable::update`]. Labels that the snapshotter itself
    /// gives, or relies on, stay as they are.
    ///
    /// # Errors
    /// The errors of [`SnapshotTable::update`]; the journal's.
    pub fn update(
        &self,
        key: &str,
        labels: &SnapshotLabels,
        paths: &[String],
    ) -> FaultResult<SnapshotRecord> {
        let mut journal = self.journal.lock();
        let labels = {
            let table = self.table.read();
            let record = table.get(key)?;
            check_new_limit(record, labels)?;
            updated(record, labels.clone())
        };
        let steps = self.table.read().update(key, &labels, paths, self.now())?;
        self.carry_out(&mut journal, steps)?;
        drop(journal);
        self.stat(key)
    }

    /// The space that a snapshot takes without its parents: measured now for an active one, at the commit for a
    /// committed one, none for a view.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`]; [`FaultKind::Failed`] if it cannot be measured.
    pub fn usage(&self, key: &str) -> FaultResult<SnapshotUsage> {
        let record = self.table.read().get(key)?.clone();
        match record.state {
            SnapshotState::Active => Ok(usage_of(&self.overlay.path(SnapshotPlace::Upper(record.id)))?),
            SnapshotState::ActiveDisk { .. } => self.usage_of_disk(record.id),
            SnapshotState::Committed { usage, .. } => Ok(usage),
            SnapshotState::View => Ok(SnapshotUsage::default()),
        }
    }

    /// The mounts of an active snapshot or a view.
    ///
    /// # Errors
    /// The errors of [`SnapshotTable::tree`]; those of [`RemoteLayerSource::attach`].
    pub fn mounts(&self, key: &str) -> FaultResult<Vec<SnapshotMount>> {
        let tree = self.table.read().tree(key)?;
        let mounts = self.mounts_of(key, &tree, false)?;
        let is_active = self.table.read().get(key).is_ok_and(|record| record.kind() == SnapshotKind::Active);
        if is_active && tree.disk.is_some() {
            let place = self.overlay.path(SnapshotPlace::Block(tree.id));
            self.remote.may_start(key, StartPlace::Own(&place));
        } else if is_active && let Some((_, parts)) = tree.top_disk() {
            self.remote.may_start(key, StartPlace::Image(&self.layered(parts)));
        }
        Ok(mounts)
    }

    /// Prepares an active snapshot and returns its mounts.
    ///
    /// # Errors
    /// The errors of [`SnapshotTable::create`]; [`FaultKind::AlreadyExists`] also if the labels ask for a layer that
    /// was found among the remote ones: the snapshot of that name is committed then; [`FaultKind::InvalidArgument`]
    /// also for labels with values that make no sense.
    pub fn prepare(
        &self,
        key: &str,
        parent: &str,
        labels: SnapshotLabels,
    ) -> FaultResult<Vec<SnapshotMount>> {
        let mut labels = without_ours(labels);
        if let Some(target) = labels.get(TARGET_LABEL).cloned() {
            match self.find_remote(&target, parent, &labels) {
                Ok(true) => return Err(SnapshotFault::exists(&target)),
                Ok(false) => {}
                Err(fault) if fault.kind == FaultKind::Failed => {
                    self.note_fallback(&target, parent, &mut labels, &fault.text);
                }
                Err(fault) => return Err(fault),
            }
        }
        let wanted = self.wanted(key, parent, &mut labels)?;
        self.note_quota(&wanted, key, parent, &mut labels)?;
        self.create(wanted, key, parent, labels)
    }

    /// Makes a view and returns its mounts.
    ///
    /// # Errors
    /// The errors of [`SnapshotTable::create`].
    pub fn view(&self, key: &str, parent: &str, labels: SnapshotLabels) -> FaultResult<Vec<SnapshotMount>> {
        self.create(WantedTree::View, key, parent, without_ours(labels))
    }

    /// Commits an active snapshot under a name.
    ///
    /// # Errors
    /// The errors of [`SnapshotTable::commit`]; [`FaultKind::Failed`] if it cannot be measured, sealed or made durable.
    pub fn commit(&self, name: &str, key: &str, labels: SnapshotLabels) -> FaultResult<()> {
        let id = self.table.read().check_commit(name, key)?;
        let lock = self.lock_of(id);
        let _locked = lock.lock();
        let record = self.table.read().get(key)?.clone();
        if record.id != id {
            return Err(SnapshotFault::missing(key));
        }
        let mut labels = without_ours(labels);
        // Other labels are not inherited; this one says why the layer takes space.
        if let Some(reason) = record.labels.get(FALLBACK_LABEL) {
            labels.insert(FALLBACK_LABEL.to_owned(), reason.clone());
        }
        self.refuse_blocks_as_files(&record)?;
        self.add_layer_label(&record, &mut labels)?;
        let usage = self.settle(&record)?;
        let mut journal = self.journal.lock();
        let steps = self.table.read().commit(name, (key, id), labels, usage, self.now())?;
        let rest = self.carry_out(&mut journal, steps)?;
        drop(journal);
        for step in &rest {
            if let SnapshotStep::LeaveDisk(id) = step {
                self.leave_disk(*id);
            }
        }
        Ok(())
    }

    /// Removes a snapshot without children, and its files.
    ///
    /// # Errors
    /// The errors of [`SnapshotTable::remove`]. Files that cannot be removed are left to the next cleanup, without an
    /// error.
    pub fn remove(&self, key: &str) -> FaultResult<()> {
        let id = self.table.read().get(key)?.id;
        let lock = self.lock_of(id);
        let _locked = lock.lock();
        let mut journal = self.journal.lock();
        if self.table.read().get(key)?.id != id {
            // It was removed, and another one was made, in this moment.
            return Err(SnapshotFault::missing(key));
        }
        let steps = self.table.read().remove(key, self.settings.keeps_removed)?;
        let rest = self.carry_out(&mut journal, steps)?;
        drop(journal);
        self.locks.lock().remove(&id);
        for step in &rest {
            match step {
                SnapshotStep::Forget(_) => self.keep_used(),
                SnapshotStep::CloseDisk(id) => {
                    if let Err(fault) = self.close_disk(*id) {
                        tracing::warn!(%fault, "the disk of a removed snapshot is left to the next cleanup");
                        break;
                    }
                }
                step => self.carry_out_anyway(step),
            }
        }
        // containerd 1.6 asks for no cleanups.
        self.remove_left_places();
        Ok(())
    }

    /// Removes the directories of snapshots that are gone.
    ///
    /// # Errors
    /// [`FaultKind::Failed`] if the directories cannot be listed; [`FaultKind::Unavailable`] if it is not known which
    /// of them are needed. One that cannot be removed is reported in the log only.
    pub fn cleanup(&self) -> FaultResult<()> {
        let journal = self.journal.lock();
        if let Some(text) = journal.broken() {
            return Err(SnapshotFault::new(FaultKind::Unavailable, text));
        }
        let orphans = self.overlay.orphans(|id| self.table.read().is_used(id))?;
        drop(journal);
        orphans.iter().for_each(|orphan| self.remove_orphan(&orphan.path));
        self.remove_left_places();
        Ok(())
    }

    /// The time, by the clock of the snapshots.
    pub(crate) fn now(&self) -> SnapshotTime {
        (self.clock)()
    }

    /// A snapshot with the labels that are made for each answer.
    fn shown(&self, mut record: SnapshotRecord) -> SnapshotRecord {
        if self.settings.shows_upper && record.has_directory() {
            let upper = self.overlay.path(SnapshotPlace::Upper(record.id));
            record.labels.insert(UPPER_LABEL.to_owned(), upper.display().to_string());
        }
        // The root may have been moved since, and earlier versions took the label from callers.
        if record.labels.remove(LAYER_LABEL).is_some()
            && let Some(file) = self.sealed_layer(&record)
        {
            record.labels.insert(LAYER_LABEL.to_owned(), file);
        }
        record
    }

    fn create(
        &self,
        wanted: WantedTree,
        key: &str,
        parent: &str,
        labels: SnapshotLabels,
    ) -> FaultResult<Vec<SnapshotMount>> {
        let mut journal = self.journal.lock();
        let (id, steps) = self.table.write().create(wanted, key, parent, labels, self.now())?;
        if let Err(fault) = self.carry_out(&mut journal, steps) {
            // A change that may be recorded is left as it is: the next start decides by the record.
            if journal.broken().is_none() {
                SnapshotTable::undo_create(id).iter().for_each(|step| self.carry_out_anyway(step));
            }
            return Err(fault);
        }
        let tree = self.table.read().tree(key)?;
        drop(journal);
        self.mounts_of(key, &tree, true).inspect_err(|_| self.take_back(key, id))
    }

    /// Removes a snapshot that was made a moment ago and whose caller is not told of it.
    fn take_back(&self, key: &str, id: SnapshotId) {
        let is_same = self.table.read().get(key).is_ok_and(|record| record.id == id);
        if is_same && let Err(fault) = self.remove(key) {
            tracing::warn!(key, %fault, "this snapshot was made in vain, and stays");
        }
    }

    /// Carries out steps up to the record of the change, and returns those after it.
    fn carry_out(
        &self,
        journal: &mut MutexGuard<'_, SnapshotJournal>,
        steps: Vec<SnapshotStep>,
    ) -> FaultResult<Vec<SnapshotStep>> {
        let mut steps = steps.into_iter();
        for step in steps.by_ref() {
            let SnapshotStep::Record(change) = step else {
                self.overlay.carry_out(&step)?;
                continue;
            };
            journal.append(&change)?;
            self.table.write().apply(change)?;
            break;
        }
        if journal.has_grown() {
            let changes: Vec<_> = self.table.read().changes().collect();
            if let Err(fault) = journal.rewrite(changes.into_iter()) {
                tracing::warn!(%fault, "the journal of snapshots could not be made shorter");
            }
        }
        Ok(steps.collect())
    }

    fn carry_out_anyway(&self, step: &SnapshotStep) {
        let project = match step {
            SnapshotStep::Remove(place) => self.limit_of(&self.overlay.path(*place)),
            _ => None,
        };
        match (self.overlay.carry_out(step), project) {
            (Err(fault), _) => tracing::warn!(%fault, "a directory is left to the next cleanup"),
            (Ok(()), Some((quotas, project))) => quotas.release(project),
            (Ok(()), None) => {}
        }
    }

    /// The mounts of a tree. The root of a new one on a disk gets the owner and the mode of that disk's root.
    fn mounts_of(&self, key: &str, tree: &SnapshotTree, is_new: bool) -> FaultResult<Vec<SnapshotMount>> {
        if let Some(access) = tree.disk {
            return self.mounts_of_own(key, tree, access);
        }
        if tree.is_writable {
            self.hold_limit(key, tree.id)?;
        }
        let Some((own, parts)) = tree.top_disk() else {
            return Ok(self.overlay.mounts(tree, None));
        };
        let directory = self.remote.attach(&self.layered(parts))?;
        if is_new && own == 0 {
            self.overlay.copy_owner_of(&directory, tree.id)?;
        }
        let text = directory.to_str().filter(|text| !text.contains([':', ',', '\\', '"']));
        let unfit = || format!("{}: overlayfs cannot be told this path", directory.display());
        let text = text.ok_or_else(|| SnapshotFault::new(FaultKind::Failed, unfit()))?;
        Ok(self.overlay.mounts(tree, Some(text)))
    }

    /// Commits the remote layer that `labels` describe as `target`, if there is one: `true`. Faults of the search are
    /// of kind [`FaultKind::Failed`], or [`FaultKind::Unavailable`] if containerd could not unpack the layer.
    fn find_remote(&self, target: &str, parent: &str, labels: &SnapshotLabels) -> FaultResult<bool> {
        let (labels, found, hold) = match self.remote.find(labels)? {
            RemoteAnswer::Present { layer, blob, usage, hold } => {
                (with_blob(labels.clone(), blob), (layer, usage), hold)
            }
            RemoteAnswer::NotMine => return Ok(false),
            RemoteAnswer::Unavailable(error) => {
                return Err(SnapshotFault::new(FaultKind::Unavailable, error.to_string()));
            }
        };
        let adopted = self.adopt(target, parent, labels, found);
        drop(hold);
        if adopted.is_err() {
            // Found in vain, unless another call has recorded it.
            self.keep_used();
        }
        adopted.map(|()| true)
    }

    /// Records a remote layer as a snapshot.
    fn adopt(
        &self,
        target: &str,
        parent: &str,
        labels: SnapshotLabels,
        found: (RemoteLayer, SnapshotUsage),
    ) -> FaultResult<()> {
        let mut journal = self.journal.lock();
        let steps = self.table.write().adopt(target, parent, labels, found, self.now())?;
        self.carry_out(&mut journal, steps).map(drop)
    }

    /// The number of active snapshots, of views and of committed ones.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        let table = self.table.read();
        let count = |kind| table.all().filter(|record| record.kind() == kind).count();
        [SnapshotKind::Active, SnapshotKind::View, SnapshotKind::Committed].map(count)
    }
}

#[cfg(test)]
pub(crate) mod tests;
