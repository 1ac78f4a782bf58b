//! The table of snapshots: every decision about them, without I/O, clock or threads.
//!
//! # States
//!
//! ```text
//!   prepare > Active or ActiveDisk > commit > Committed > remove
//!                 \                               ^
//!                  remove                         adopt (a remote layer: never active)
//!   view    > View > remove
//! ```
//!
//! # Directories and disks
//!
//! The files of a snapshot are in a directory, from which overlayfs makes the tree, or in a disk. A disk begins with an
//! image: that of a remote layer, or an empty one. An active snapshot can have a disk of its own if its parent is a
//! disk; committed, it is a *sealed* layer, the blocks that it has changed. A snapshot on that is a disk again, of the
//! image and all sealed layers in between, or is made by overlayfs over the files of that disk. Above a directory there
//! is no disk.
//!
//! A snapshot has a key; `commit` gives it a name in place of the key. Keys and names share one space. The parent of a
//! snapshot is a committed one, which cannot be removed as long as it has children. So the parents of any snapshot are
//! a chain that does not change, and each has a smaller number than its child.
//!
//! # Plans
//!
//! An operation changes nothing but the last number: it returns a plan, a list of [`SnapshotStep`]s, or a fault. The
//! caller carries the steps out in their order. One of them is [`SnapshotStep::Record`]: the change is made durable in
//! the journal, then [applied](SnapshotTable::apply) to the table. Steps before it make what the change promises:
//! directories are there, durably, before a record names them. Steps after it take away what no record names any more.
//! So a crash between any two steps leaves at most directories that no record names, which [`SnapshotTable::is_used`]
//! tells apart, and which are removed after the restart. A disk is served only once its snapshot is recorded, and is
//! served again whenever its mounts are asked for: no record says whether it is.
//!
//! A number is used up by the plan that got it, whether or not the plan was carried out.
//!
//! Replaying the journal is applying its changes to an empty table: one that does not fit is damage.
//!
//! # The rules are containerd's
//!
//! Checks are made in the order in which containerd's own metadata store makes them, so that a request with two faults
//! gets the same error. A committed snapshot does not inherit labels of the active one. Labels with an empty value are
//! no labels. Differences: an empty key or name is an invalid argument (there: an unknown error); listing before the
//! first snapshot was prepared gives an empty list (there: not found).

mod change;
mod plan;

pub use change::SnapshotChange;
pub use plan::{SnapshotPlace, SnapshotStep, WantedTree};

use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::record::{
    DiskAccess, RemoteLayer, SnapshotContent, SnapshotId, SnapshotKind, SnapshotRecord, SnapshotState,
};
use std::collections::BTreeMap;

/// Bytes of a key or a name at most, as in containerd's store.
pub const KEY_MOST: usize = 32 << 10;

/// All snapshots of one root directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotTable {
    by_key: BTreeMap<String, SnapshotRecord>,
    keys: BTreeMap<SnapshotId, String>,
    children: BTreeMap<SnapshotId, u64>,
    last: SnapshotId,
}

/// The tree of files of an active snapshot or a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotTree {
    /// The snapshot's number.
    pub id: SnapshotId,
    /// `true` if it is active.
    pub is_writable: bool,
    /// The form in which its own disk is handed out; `None` if it has none.
    pub disk: Option<DiskAccess>,
    /// The layers below, the top one first.
    pub layers: Vec<(SnapshotId, SnapshotContent)>,
}

/// The parts of a disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskParts {
    /// The image.
    pub image: RemoteLayer,
    /// The snapshots with the layers on top of it, the lowest one first.
    pub above: Vec<SnapshotId>,
}

/// The sealed layers at the top of layers, the lowest one first.
fn sealed(layers: &[(SnapshotId, SnapshotContent)]) -> Vec<SnapshotId> {
    let sealed = layers.iter().take_while(|(_, content)| matches!(content, SnapshotContent::Sealed(_)));
    let mut sealed: Vec<_> = sealed.map(|(id, _)| *id).collect();
    sealed.reverse();
    sealed
}

impl SnapshotTree {
    /// The topmost disk among the layers, with the number of directories above it. The tree has that disk's files,
    /// whatever is below.
    #[must_use]
    pub fn top_disk(&self) -> Option<(usize, DiskParts)> {
        self.layers.iter().enumerate().find_map(|(above, (_, content))| {
            let image = content.disk_image()?.clone();
            Some((above, DiskParts { image, above: sealed(&self.layers[above..]) }))
        })
    }
}

impl SnapshotTable {
    /// The snapshot with a key or name.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`].
    pub fn get(&self, key: &str) -> FaultResult<&SnapshotRecord> {
        self.by_key.get(key).ok_or_else(|| SnapshotFault::missing(key))
    }

    /// All snapshots, in the order of their keys.
    pub fn all(&self) -> impl Iterator<Item = &SnapshotRecord> {
        self.by_key.values()
    }

    /// The number of snapshots.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_key.len()
    }

    /// `true` if a snapshot has this number.
    #[must_use]
    pub fn is_used(&self, id: SnapshotId) -> bool {
        self.keys.contains_key(&id)
    }

    /// The largest number that a plan or a change has had.
    #[must_use]
    pub fn last_id(&self) -> SnapshotId {
        self.last
    }

    /// Uses a number up that no record has, and all below it.
    pub fn use_up(&mut self, id: SnapshotId) {
        self.last = self.last.max(id);
    }

    /// The tree of files of an active snapshot or a view.
    ///
    /// # Errors
    /// [`FaultKind::NotFound`]; [`FaultKind::FailedPrecondition`] if the snapshot is committed.
    pub fn tree(&self, key: &str) -> FaultResult<SnapshotTree> {
        let record = self.get(key)?;
        if record.kind() == SnapshotKind::Committed {
            let text = format!("snapshot {} is committed, and neither active nor a view", key.escape_debug());
            return Err(SnapshotFault::new(FaultKind::FailedPrecondition, text));
        }
        let layers = self.layers(record.parent.as_deref());
        let disk = match &record.state {
            SnapshotState::ActiveDisk { access, .. } => Some(*access),
            _ => None,
        };
        Ok(SnapshotTree { id: record.id, is_writable: record.kind() == SnapshotKind::Active, disk, layers })
    }

    /// The disk that the snapshot `key` is, or is a layer of; that which an active one's own disk is made on. `None` if
    /// there is none of that key, or its files are in a directory.
    #[must_use]
    pub fn disk(&self, key: &str) -> Option<DiskParts> {
        let record = self.by_key.get(key)?;
        let image = record.disk_image()?.clone();
        let is_active = record.kind() == SnapshotKind::Active;
        let layers = self.layers(if is_active { record.parent.as_deref() } else { Some(key) });
        Some(DiskParts { image, above: sealed(&layers) })
    }

    /// The snapshot of a name and all below it, the lowest one first.
    #[must_use]
    pub(crate) fn chain(&self, name: Option<&str>) -> Vec<&SnapshotRecord> {
        let next = |record: &&SnapshotRecord| self.by_key.get(record.parent.as_deref()?);
        let mut records: Vec<_> =
            std::iter::successors(name.and_then(|name| self.by_key.get(name)), next).collect();
        records.reverse();
        records
    }

    /// A committed snapshot, if `name` is one, and the layers below it, the top one first.
    #[must_use]
    pub fn layers(&self, name: Option<&str>) -> Vec<(SnapshotId, SnapshotContent)> {
        let mut layers = Vec::new();
        let mut next = name;
        while let Some(record) = next.and_then(|name| self.by_key.get(name)) {
            let SnapshotState::Committed { content, .. } = &record.state else { break };
            layers.push((record.id, content.clone()));
            next = record.parent.as_deref();
        }
        layers
    }

    /// The parent with a name.
    fn parent(&self, name: &str) -> FaultResult<&SnapshotRecord> {
        let missing = || {
            SnapshotFault::new(FaultKind::NotFound, format!("parent {} does not exist", name.escape_debug()))
        };
        let parent = self.by_key.get(name).ok_or_else(missing)?;
        if parent.kind() != SnapshotKind::Committed {
            let text = format!("parent {} is not a committed snapshot", name.escape_debug());
            return Err(SnapshotFault::new(FaultKind::InvalidArgument, text));
        }
        Ok(parent)
    }

    /// Checks that a key or name can be given to a snapshot.
    fn check_new(&self, key: &str) -> FaultResult<()> {
        if key.is_empty() || key.len() > KEY_MOST {
            let text = format!("a key or name of {} bytes: it has 1 to {KEY_MOST}", key.len());
            return Err(SnapshotFault::new(FaultKind::InvalidArgument, text));
        }
        if self.by_key.contains_key(key) { Err(SnapshotFault::exists(key)) } else { Ok(()) }
    }

    /// A number that no snapshot has had.
    fn next_id(&mut self) -> FaultResult<SnapshotId> {
        let none = || SnapshotFault::new(FaultKind::Unavailable, "there are no numbers left for snapshots");
        self.last = SnapshotId(self.last.0.checked_add(1).ok_or_else(none)?);
        Ok(self.last)
    }

    /// `true` if a snapshot has children.
    fn has_children(&self, id: SnapshotId) -> bool {
        self.children.contains_key(&id)
    }
}

#[cfg(test)]
mod tests;
