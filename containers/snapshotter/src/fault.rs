//! The errors of snapshots, by what containerd does about them.

use headstart_block::Error;
use std::fmt;

/// The kind of a [`SnapshotFault`]: the errors that containerd distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// There is no snapshot of that name.
    NotFound,
    /// There is a snapshot of that name.
    AlreadyExists,
    /// The snapshot is not in a state in which this can be done to it.
    FailedPrecondition,
    /// The request makes no sense.
    InvalidArgument,
    /// The snapshotter cannot change anything until it is started again.
    Unavailable,
    /// A file, a mount or a disk failed.
    Failed,
}

/// An error of an operation on snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFault {
    /// The kind, on which containerd acts.
    pub kind: FaultKind,
    /// The text, which its log shows.
    pub text: String,
}

/// A value, or a [`SnapshotFault`].
pub type FaultResult<T> = Result<T, SnapshotFault>;

impl SnapshotFault {
    /// Makes an error of a kind.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// There is no snapshot with the key or name `key`.
    pub(crate) fn missing(key: &str) -> Self {
        Self::new(FaultKind::NotFound, format!("snapshot {} does not exist", key.escape_debug()))
    }

    /// There is a snapshot with the key or name `key`.
    pub(crate) fn exists(key: &str) -> Self {
        Self::new(FaultKind::AlreadyExists, format!("snapshot {} already exists", key.escape_debug()))
    }
}

impl fmt::Display for SnapshotFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for SnapshotFault {}

impl From<Error> for SnapshotFault {
    fn from(error: Error) -> Self {
        Self::new(FaultKind::Failed, error.to_string())
    }
}
