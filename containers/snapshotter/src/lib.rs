//! Snapshots for containerd: the service behind a proxy plugin of type `snapshot`.
//!
//! containerd asks a snapshotter for the trees of files of images and containers: it prepares a snapshot on a parent,
//! mounts it as the answer says, unpacks a layer or runs a container in it, and commits or removes it.
//!
//! | module | subject |
//! |---|---|
//! | [`record`] | a snapshot: its key, its number, its parent, its state, its labels and times |
//! | [`fault`] | the errors that containerd distinguishes |
//! | [`table`] | [`SnapshotTable`]: every decision, without I/O (pure state machine); read its head first |
//! | [`filter`] | containerd's language for selecting snapshots |
//! | [`journal`] | the file that the table is read from after a restart, byte by byte |
//! | [`overlay`] | directories and mounts of ordinary snapshots, as containerd's own overlayfs snapshotter has them |
//! | [`remote`] | the seam for layers that are not unpacked, because they are disks |
//! | [`snapshotter`] | [`Snapshotter`]: carries out the table's steps |

#![forbid(unsafe_code)]

pub mod fault;
pub mod filter;
pub mod journal;
pub mod overlay;
pub mod record;
pub mod remote;
pub mod snapshotter;
pub mod table;

pub use fault::{FaultKind, SnapshotFault};
pub use filter::SnapshotFilter;
pub use record::{SnapshotId, SnapshotKind, SnapshotRecord, SnapshotTime, SnapshotUsage};
pub use snapshotter::{Snapshotter, SnapshotterSettings};
pub use table::SnapshotTable;
