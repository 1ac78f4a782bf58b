//! Operations on snapshots, each as a plan of steps.

use super::{SnapshotChange, SnapshotTable};
use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::record::{
    DiskAccess, RemoteLayer, SnapshotContent, SnapshotId, SnapshotKind, SnapshotLabels, SnapshotState,
    SnapshotTime, SnapshotUsage,
};

/// Permission bits of the root of a tree that begins empty.
const ROOT_MODE: u32 = 0o755;
/// Permission bits of a directory that overlayfs works in, as containerd sets them.
const WORK_MODE: u32 = 0o711;
/// Permission bits of the directory of a snapshot's disk.
const BLOCK_MODE: u32 = 0o700;
/// Permission bits of a snapshot's directory: no user but root reaches the trees through it.
const SNAPSHOT_MODE: u32 = 0o700;

/// A place below the root directory of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotPlace {
    /// The directory of all snapshots' directories.
    All,
    /// A snapshot's directory while it is being made.
    New(SnapshotId),
    /// The tree in a directory that is being made.
    NewUpper(SnapshotId),
    /// The directory for overlayfs in a directory that is being made.
    NewWork(SnapshotId),
    /// A snapshot's directory.
    Of(SnapshotId),
    /// The files by which a snapshot differs from its parent.
    Upper(SnapshotId),
    /// The directory that overlayfs works in while an active snapshot is mounted.
    Work(SnapshotId),
    /// The places of an active snapshot's disk in a directory that is being made.
    NewBlock(SnapshotId),
    /// The places of an active snapshot's disk.
    Block(SnapshotId),
}

/// The tree that a new snapshot is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedTree {
    /// A view.
    View,
    /// An active snapshot, which overlayfs puts together.
    Overlay,
    /// An active snapshot with a disk of its own, if its parent is a disk; else as [`WantedTree::Overlay`].
    Disk {
        /// The form in which the disk is handed out.
        access: DiskAccess,
        /// The image of an empty disk, for a tree that begins empty. `None`: that is none of disks.
        blank: Option<RemoteLayer>,
    },
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    /// A directory is made, with exactly these permission bits. A directory that is there is a fault.
    MakeDirectory {
        /// Its place.
        place: SnapshotPlace,
        /// Its permission bits.
        mode: u32,
    },
    /// A directory gets the owner, the group and the permission bits of another: the root of a tree looks as its
    /// parent's does.
    CopyOwner {
        /// The directory that is looked at.
        from: SnapshotPlace,
        /// The directory that is changed.
        to: SnapshotPlace,
    },
    /// The entries of a directory, and what was changed of itself, become durable.
    Sync(SnapshotPlace),
    /// A directory is renamed.
    Rename {
        /// Its place before.
        from: SnapshotPlace,
        /// Its place after.
        to: SnapshotPlace,
    },
    /// A change becomes durable in the journal and is applied to the table.
    Record(SnapshotChange),
    /// The disk of a snapshot is taken from its users, and is served no more. If that fails, nothing that follows is
    /// done.
    CloseDisk(SnapshotId),
    /// The disk of a committed snapshot is served no more, and its places go, once nothing uses it: its users may go on
    /// without effect on the layer. If something uses it now, that is left to a cleanup.
    LeaveDisk(SnapshotId),
    /// A directory is removed with everything in it. The plan has succeeded before: what cannot be removed is left to
    /// the next cleanup.
    Remove(SnapshotPlace),
    /// The source of remote layers learns that a snapshot does not have this layer any more.
    Forget(RemoteLayer),
}

/// Labels as they are kept: those with an empty value are none.
fn kept(mut labels: SnapshotLabels) -> SnapshotLabels {
    labels.retain(|_, value| !value.is_empty());
    labels
}

impl SnapshotTable {
    /// Plans an active snapshot or a view on `parent`, the empty tree if that is empty.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`] for the parent, [`FaultKind::InvalidArgument`] if that is not committed or `key` cannot
    /// be one, [`FaultKind::AlreadyExists`].
    pub fn create(
        &mut self,
        wanted: WantedTree,
        key: &str,
        parent: &str,
        labels: SnapshotLabels,
        now: SnapshotTime,
    ) -> FaultResult<(SnapshotId, Vec<SnapshotStep>)> {
        let below = if parent.is_empty() { None } else { Some(self.parent(parent)?) };
        let owner = below.filter(|below| below.has_files()).map(|below| SnapshotPlace::Upper(below.id));
        let state = match wanted {
            WantedTree::View => SnapshotState::View,
            WantedTree::Overlay => SnapshotState::Active,
            WantedTree::Disk { access, blank } => {
                let image = below.map_or(blank, |below| below.disk_image().cloned());
                image.map_or(SnapshotState::Active, |image| SnapshotState::ActiveDisk { access, image })
            }
        };
        self.check_new(key)?;
        let id = self.next_id()?;
        let mut steps = vec![
            SnapshotStep::MakeDirectory { place: SnapshotPlace::New(id), mode: SNAPSHOT_MODE },
            SnapshotStep::MakeDirectory { place: SnapshotPlace::NewUpper(id), mode: ROOT_MODE },
        ];
        let own = match &state {
            SnapshotState::Active => Some((SnapshotPlace::NewWork(id), WORK_MODE)),
            SnapshotState::ActiveDisk { .. } => Some((SnapshotPlace::NewBlock(id), BLOCK_MODE)),
            SnapshotState::View | SnapshotState::Committed { .. } => None,
        };
        steps.extend(own.map(|(place, mode)| SnapshotStep::MakeDirectory { place, mode }));
        steps.extend(owner.map(|from| SnapshotStep::CopyOwner { from, to: SnapshotPlace::NewUpper(id) }));
        let parent = Some(parent).filter(|parent| !parent.is_empty()).map(str::to_owned);
        steps.extend([
            SnapshotStep::Sync(SnapshotPlace::NewUpper(id)),
            SnapshotStep::Sync(SnapshotPlace::New(id)),
            SnapshotStep::Rename { from: SnapshotPlace::New(id), to: SnapshotPlace::Of(id) },
            SnapshotStep::Sync(SnapshotPlace::All),
            SnapshotStep::Record(SnapshotChange::Created {
                id,
                key: key.to_owned(),
                parent,
                state,
                labels: kept(labels),
                at: now,
            }),
        ]);
        Ok((id, steps))
    }

    /// The steps that take back what was carried out of a plan to create the snapshot `id`, whose change was not
    /// recorded.
    #[must_use]
    pub fn undo_create(id: SnapshotId) -> [SnapshotStep; 2] {
        [SnapshotPlace::New(id), SnapshotPlace::Of(id)].map(SnapshotStep::Remove)
    }

    /// Plans a committed snapshot that was never active: a remote layer, which has no directory.
    ///
    /// # Errors
    /// As [`SnapshotTable::create`].
    pub fn adopt(
        &mut self,
        name: &str,
        parent: &str,
        labels: SnapshotLabels,
        (layer, usage): (RemoteLayer, SnapshotUsage),
        now: SnapshotTime,
    ) -> FaultResult<Vec<SnapshotStep>> {
        if !parent.is_empty() {
            self.parent(parent)?;
        }
        self.check_new(name)?;
        let content = SnapshotContent::Remote(layer);
        Ok(vec![SnapshotStep::Record(SnapshotChange::Created {
            id: self.next_id()?,
            key: name.to_owned(),
            parent: Some(parent).filter(|parent| !parent.is_empty()).map(str::to_owned),
            state: SnapshotState::Committed { usage, content },
            labels: kept(labels),
            at: now,
        })])
    }

    /// Checks that the active snapshot `key` can be committed as `name` and returns its number, so that its space can
    /// be measured before [`SnapshotTable::commit`].
    ///
    /// # Errors
    /// As [`SnapshotTable::commit`].
    pub fn check_commit(&self, name: &str, key: &str) -> FaultResult<SnapshotId> {
        let record = self.get(key)?;
        self.check_new(name)?;
        if record.kind() != SnapshotKind::Active {
            let text = format!("snapshot {} is not active", key.escape_debug());
            return Err(SnapshotFault::new(FaultKind::FailedPrecondition, text));
        }
        Ok(record.id)
    }

    /// Plans the commit of the active snapshot `key`, which has the number `id` and takes the space `usage`, as `name`.
    /// The layer of a disk must have been sealed.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`], also if `key` has another number by now; [`FaultKind::AlreadyExists`] for `name`;
    /// [`FaultKind::InvalidArgument`] if `name` cannot be one; [`FaultKind::FailedPrecondition`] if the snapshot is not
    /// active.
    pub fn commit(
        &self,
        name: &str,
        (key, id): (&str, SnapshotId),
        labels: SnapshotLabels,
        usage: SnapshotUsage,
        now: SnapshotTime,
    ) -> FaultResult<Vec<SnapshotStep>> {
        if self.check_commit(name, key)? != id {
            return Err(SnapshotFault::missing(key));
        }
        let mut steps = vec![SnapshotStep::Record(SnapshotChange::Committed {
            key: key.to_owned(),
            name: name.to_owned(),
            labels: kept(labels),
            usage,
            at: now,
        })];
        steps.extend(self.get(key)?.disk_image().map(|_| SnapshotStep::LeaveDisk(id)));
        Ok(steps)
    }

    /// Plans that an active snapshot, to which a layer of blocks was applied, becomes one with a disk of its own: it is
    /// removed and made again, under its number.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`]; [`FaultKind::FailedPrecondition`] if it is not active, or its parent is no disk.
    pub fn become_disk(&self, key: &str) -> FaultResult<[SnapshotStep; 2]> {
        let record = self.get(key)?;
        let below = record.parent.as_deref().map(|parent| self.parent(parent)).transpose()?;
        let image =
            below.and_then(|below| below.disk_image()).filter(|_| record.state == SnapshotState::Active);
        let Some(image) = image.cloned() else {
            let text = format!("snapshot {} cannot become a disk", key.escape_debug());
            return Err(SnapshotFault::new(FaultKind::FailedPrecondition, text));
        };
        let state = SnapshotState::ActiveDisk { access: DiskAccess::Directory, image };
        let removed = SnapshotChange::Removed { key: key.to_owned() };
        let made = SnapshotChange::Created {
            id: record.id,
            key: key.to_owned(),
            parent: record.parent.clone(),
            state,
            labels: record.labels.clone(),
            at: record.created,
        };
        Ok([removed, made].map(SnapshotStep::Record))
    }

    /// Plans new labels of a snapshot. `paths` are the fields to change: `labels` replaces all labels by `labels`,
    /// `labels.NAME` sets that one, or removes it if `labels` does not have it; no paths are the same as `labels`.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`]; [`FaultKind::InvalidArgument`] for a field that does not change.
    pub fn update(
        &self,
        key: &str,
        labels: &SnapshotLabels,
        paths: &[String],
        now: SnapshotTime,
    ) -> FaultResult<Vec<SnapshotStep>> {
        let record = self.get(key)?;
        let mut updated = if paths.is_empty() { labels.clone() } else { record.labels.clone() };
        for path in paths {
            if let Some(name) = path.strip_prefix("labels.") {
                updated.insert(name.to_owned(), labels.get(name).cloned().unwrap_or_default());
            } else if path == "labels" {
                updated.clone_from(labels);
            } else {
                let (path, key) = (path.escape_debug(), key.escape_debug());
                let text = format!("cannot update field {path} of snapshot {key}");
                return Err(SnapshotFault::new(FaultKind::InvalidArgument, text));
            }
        }
        let change = SnapshotChange::Updated { key: key.to_owned(), labels: kept(updated), at: now };
        Ok(vec![SnapshotStep::Record(change)])
    }

    /// Plans the removal of a snapshot. If `keep_files` is `true`, its directory is left to the next cleanup.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`]; [`FaultKind::FailedPrecondition`] if it has children.
    pub fn remove(&self, key: &str, keep_files: bool) -> FaultResult<Vec<SnapshotStep>> {
        let record = self.get(key)?;
        if self.has_children(record.id) {
            let text = format!("cannot remove snapshot {}, which has children", key.escape_debug());
            return Err(SnapshotFault::new(FaultKind::FailedPrecondition, text));
        }
        let mut steps = vec![SnapshotStep::Record(SnapshotChange::Removed { key: key.to_owned() })];
        // A disk must be closed before its files are removed, and let go of before the files of its layers are.
        if record.has_directory() && !record.has_files() {
            steps.push(SnapshotStep::CloseDisk(record.id));
        }
        steps.extend(record.disk_image().map(|image| SnapshotStep::Forget(image.clone())));
        if record.has_directory() && !keep_files {
            steps.push(SnapshotStep::Remove(SnapshotPlace::Of(record.id)));
        }
        Ok(steps)
    }
}
