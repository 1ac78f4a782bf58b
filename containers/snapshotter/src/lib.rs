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
//! | `project_quota` | limits of the space of ordinary snapshots, where the file system holds such |
//! | [`remote`] | the seam for layers that are not unpacked, because they are disks, and for disks of containers |
//! | [`layer_form`] | the rule by which layers are blocks or tars |
//! | [`snapshotter`] | [`Snapshotter`]: carries out the table's steps |
//! | [`messages`] | the messages of containerd's snapshot interface |
//! | [`service`] | the methods of that interface |
//! | [`diff_messages`] | the messages of containerd's interface for differs |
//! | [`diff_service`] | the methods of that interface |
//! | [`content_store`] | containerd's store of blobs, which differs read and write |
//! | [`server`] | the services on a Unix socket |
//! | [`image_proxy`] | that interface passed on to containerd, for the credentials of pulls |
//! | [`pull_secrets`] | these credentials, kept for disks |
//! | [`container_service`] | containerd's interface that tells which program a container has |
//! | [`image_service`] | containerd's interface for Kubernetes, by which images are pulled |
//!
//! # Why the messages are written by hand
//!
//! The interface has ten methods and some twenty small messages, which containerd does not change. tonic and prost
//! without their generators and without axum are a few new crates in the product (hyper, h2 and tower are there
//! anyway). The generators, `tonic-prost-build` and `protox`, would be some thirty more in every build. A
//! test compares [`messages`] with containerd's own `.proto` files, which are in `proto/`.

pub mod container_service;
mod content_messages;
pub mod content_store;
pub mod diff_messages;
pub mod diff_service;
pub mod fault;
pub mod filter;
pub mod image_proxy;
pub mod image_service;
pub mod journal;
pub mod layer_form;
pub mod messages;
pub mod overlay;
mod project_quota;
pub mod pull_secrets;
pub mod record;
pub mod remote;
pub mod server;
pub mod service;
pub mod snapshotter;
pub mod table;
mod wire;

pub use fault::{FaultKind, SnapshotFault};
pub use filter::SnapshotFilter;
pub use record::{DiskAccess, SnapshotId, SnapshotKind, SnapshotRecord, SnapshotTime, SnapshotUsage};
pub use snapshotter::{Snapshotter, SnapshotterReport, SnapshotterSettings};
pub use table::{SnapshotTable, WantedTree};
