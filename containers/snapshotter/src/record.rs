//! A snapshot, as the table and the journal have it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Labels of a snapshot. None has an empty value: containerd takes that for no label.
pub type SnapshotLabels = BTreeMap<String, String>;

/// The number of a snapshot, which names its directory. None is used twice, and a child's is larger than its parent's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SnapshotId(pub u64);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A moment, as the caller's clock gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SnapshotTime {
    /// Seconds since 1970, UTC.
    pub seconds: i64,
    /// Nanoseconds of the second, below 1,000,000,000.
    pub nanos: u32,
}

/// The space that a snapshot takes, without its parents'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotUsage {
    /// The number of inodes.
    pub inodes: u64,
    /// The size of the allocated blocks, in bytes.
    pub size: u64,
}

/// The kind of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotKind {
    /// A tree that can only be read.
    View,
    /// A tree that is written to.
    Active,
    /// A layer, which may have children.
    Committed,
}

impl SnapshotKind {
    /// The word for this kind in filters.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Active => "active",
            Self::Committed => "committed",
        }
    }
}

/// The state of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotState {
    /// A tree that can only be read.
    View,
    /// A tree that is written to, until it is committed or removed.
    Active,
    /// A layer that changes no more.
    Committed {
        /// The space that it took when it was committed.
        usage: SnapshotUsage,
        /// The place of its files.
        content: SnapshotContent,
    },
    /// A disk of its own that is written to, until it is committed or removed.
    ActiveDisk {
        /// The form in which it is handed out.
        access: DiskAccess,
        /// The image that the disk is made of: with the layers of its parents in between, if these are sealed.
        image: RemoteLayer,
    },
}

/// The form in which the disk of an active snapshot is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskAccess {
    /// The directory on which its file system is mounted.
    Directory,
    /// The block device, which the user mounts or gives to a virtual machine.
    Device,
}

/// The description of a remote layer, by which its maker finds it again after a restart without any store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RemoteLayer(pub String);

/// The place of a committed snapshot's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotContent {
    /// The directory of its number has the files that differ from its parent's.
    Directory,
    /// The files are in a disk that is attached when they are needed; there is no directory.
    Remote(RemoteLayer),
    /// The directory of its number has a layer of blocks: on the disk of its parent or, if that has none or is none, on
    /// this image.
    Sealed(RemoteLayer),
}

impl SnapshotContent {
    /// The image of the disk that the files are in. `None` if they are in a directory.
    #[must_use]
    pub fn disk_image(&self) -> Option<&RemoteLayer> {
        match self {
            Self::Directory => None,
            Self::Remote(image) | Self::Sealed(image) => Some(image),
        }
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Its number.
    pub id: SnapshotId,
    /// Its key, or its name if it is committed. Both share one space of names.
    pub key: String,
    /// The name of its parent, a committed snapshot. `None` for a tree that begins empty.
    pub parent: Option<String>,
    /// Its state.
    pub state: SnapshotState,
    /// Its labels.
    pub labels: SnapshotLabels,
    /// The time at which it was prepared or, if it is committed, committed.
    pub created: SnapshotTime,
    /// The time at which it or its labels last changed.
    pub updated: SnapshotTime,
}

impl SnapshotRecord {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> SnapshotKind {
        match self.state {
            SnapshotState::View => SnapshotKind::View,
            SnapshotState::Active | SnapshotState::ActiveDisk { .. } => SnapshotKind::Active,
            SnapshotState::Committed { .. } => SnapshotKind::Committed,
        }
    }

    /// `true` if the files of its directory are those of the tree, and not those of a disk.
    #[must_use]
    pub fn has_files(&self) -> bool {
        match &self.state {
            SnapshotState::View | SnapshotState::Active => true,
            SnapshotState::Committed { content, .. } => *content == SnapshotContent::Directory,
            SnapshotState::ActiveDisk { .. } => false,
        }
    }

    /// The image of the disk that it is, or that it is a layer of. `None` if its files are in a directory.
    #[must_use]
    pub fn disk_image(&self) -> Option<&RemoteLayer> {
        match &self.state {
            SnapshotState::ActiveDisk { image, .. } => Some(image),
            SnapshotState::Committed { content, .. } => content.disk_image(),
            SnapshotState::View | SnapshotState::Active => None,
        }
    }

    /// `true` if it has a directory of its own.
    #[must_use]
    pub fn has_directory(&self) -> bool {
        !matches!(self.state, SnapshotState::Committed { content: SnapshotContent::Remote(_), .. })
    }
}
