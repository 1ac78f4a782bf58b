//! Changes of the table, which are also the records of the journal.

use super::{KEY_MOST, SnapshotTable};
use crate::record::{
    SnapshotContent, SnapshotId, SnapshotKind, SnapshotLabels, SnapshotRecord, SnapshotState, SnapshotTime,
    SnapshotUsage,
};
use headstart_block::{Error, Result};
use serde::{Deserialize, Serialize};

/// A change of the table of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotChange {
    /// A snapshot begins.
    Created {
        /// Its number, larger than any before.
        id: SnapshotId,
        /// Its key or name.
        key: String,
        /// Its parent's name; `None` for an empty tree.
        parent: Option<String>,
        /// Its state.
        state: SnapshotState,
        /// Its labels.
        labels: SnapshotLabels,
        /// The time of its creation.
        at: SnapshotTime,
    },
    /// An active snapshot is committed.
    Committed {
        /// Its key before.
        key: String,
        /// Its name from now on.
        name: String,
        /// Its labels, in place of those before.
        labels: SnapshotLabels,
        /// The space that it takes.
        usage: SnapshotUsage,
        /// The time of the commit.
        at: SnapshotTime,
    },
    /// A snapshot gets other labels.
    Updated {
        /// Its key or name.
        key: String,
        /// All of its labels from now on.
        labels: SnapshotLabels,
        /// The time of the change.
        at: SnapshotTime,
    },
    /// A snapshot ends.
    Removed {
        /// Its key or name.
        key: String,
    },
    /// A snapshot as it was when the journal was rewritten.
    Kept(SnapshotRecord),
    /// The largest number that was used when the journal was rewritten.
    Numbered(SnapshotId),
}

/// The error of a change that does not fit the table.
fn misfit(cause: impl Into<String>) -> Error {
    Error::corrupt(cause.into())
}

impl SnapshotTable {
    /// Applies a change. One that a plan of this table had, and no other plan after it, always fits. The table does not
    /// change if there is an error.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if the change does not fit the table.
    pub fn apply(&mut self, change: SnapshotChange) -> Result<()> {
        match change {
            SnapshotChange::Created { id, key, parent, state, labels, at } => {
                self.insert(SnapshotRecord { id, key, parent, state, labels, created: at, updated: at })
            }
            SnapshotChange::Kept(record) => self.insert(record),
            SnapshotChange::Committed { key, name, labels, usage, at } => {
                self.check_name(&name)?;
                let record = self.known(&key)?;
                let content = match &record.state {
                    SnapshotState::Active => SnapshotContent::Directory,
                    SnapshotState::ActiveDisk { image, .. } => SnapshotContent::Sealed(image.clone()),
                    SnapshotState::View | SnapshotState::Committed { .. } => {
                        let key = key.escape_debug();
                        return Err(misfit(format!("it commits {key}, which is not active")));
                    }
                };
                let mut record = record.clone();
                self.by_key.remove(&key);
                self.keys.insert(record.id, name.clone());
                record.key.clone_from(&name);
                record.state = SnapshotState::Committed { usage, content };
                (record.labels, record.created, record.updated) = (labels, at, at);
                self.by_key.insert(name, record);
                Ok(())
            }
            SnapshotChange::Updated { key, labels, at } => {
                self.known(&key)?;
                if let Some(record) = self.by_key.get_mut(&key) {
                    (record.labels, record.updated) = (labels, at);
                }
                Ok(())
            }
            SnapshotChange::Removed { key } => self.take(&key),
            SnapshotChange::Numbered(id) => {
                self.last = self.last.max(id);
                Ok(())
            }
        }
    }

    /// The changes that lead from an empty table to this one, parents before their children.
    pub fn changes(&self) -> impl Iterator<Item = SnapshotChange> {
        let records = self.keys.values().filter_map(|key| self.by_key.get(key)).cloned();
        records.map(SnapshotChange::Kept).chain([SnapshotChange::Numbered(self.last)])
    }

    fn known(&self, key: &str) -> Result<&SnapshotRecord> {
        let missing = || misfit(format!("it changes {}, which does not exist", key.escape_debug()));
        self.by_key.get(key).ok_or_else(missing)
    }

    fn check_name(&self, key: &str) -> Result<()> {
        if key.is_empty() || key.len() > KEY_MOST || self.by_key.contains_key(key) {
            return Err(misfit(format!("it gives the name {} a second time", key.escape_debug())));
        }
        Ok(())
    }

    fn insert(&mut self, record: SnapshotRecord) -> Result<()> {
        self.check_name(&record.key)?;
        if self.is_used(record.id) {
            return Err(misfit(format!("it gives the number {} a second time", record.id)));
        }
        let parent = record.parent.as_deref().map(|parent| self.known(parent)).transpose()?;
        if parent.is_some_and(|parent| parent.kind() != SnapshotKind::Committed || parent.id >= record.id) {
            return Err(misfit(format!("{} has a parent that cannot be one", record.key.escape_debug())));
        }
        // The blocks of a snapshot are changes of the disk below.
        let is_block = !record.has_files() && record.has_directory();
        if is_block && parent.is_some_and(|parent| parent.disk_image() != record.disk_image()) {
            return Err(misfit(format!("{} is a disk on something else", record.key.escape_debug())));
        }
        let parent = parent.map(|parent| parent.id);
        if let Some(parent) = parent {
            *self.children.entry(parent).or_default() += 1;
        }
        self.last = self.last.max(record.id);
        self.keys.insert(record.id, record.key.clone());
        self.by_key.insert(record.key.clone(), record);
        Ok(())
    }

    fn take(&mut self, key: &str) -> Result<()> {
        let record = self.known(key)?;
        if self.has_children(record.id) {
            return Err(misfit(format!("it removes {}, which has children", key.escape_debug())));
        }
        let (id, parent) = (record.id, record.parent.clone());
        let parent = parent.map(|parent| self.known(&parent).map(|parent| parent.id)).transpose()?;
        if let Some(parent) = parent {
            let left = self.children.remove(&parent).map_or(0, |count| count.saturating_sub(1));
            if left > 0 {
                self.children.insert(parent, left);
            }
        }
        self.keys.remove(&id);
        self.by_key.remove(key);
        Ok(())
    }
}
