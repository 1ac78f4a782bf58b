//! The seam between snapshots and layers that are not unpacked.
//!
//! containerd's protocol of remote snapshots: before it fetches a layer, the unpacker prepares a snapshot with the
//! label [`TARGET_LABEL`], whose value is the name under which it will commit. A snapshotter that has the layer by
//! other means commits a snapshot of that name itself and answers "already exists"; the layer is then neither fetched
//! nor unpacked.
//!
//! [`Snapshotter`](crate::Snapshotter) does that for the layers that a [`RemoteLayerSource`] says it has. Everything
//! else, and everything that fails, is an ordinary snapshot: the first layer of an image that is not remote has
//! ordinary layers above it only, so the remote ones of a tree are the lowest, without gaps.

use crate::record::{RemoteLayer, SnapshotLabels, SnapshotUsage};
use headstart_block::Result;
use std::path::PathBuf;

/// The directory in the root of snapshots in which a source of layers keeps what it has made of them.
pub const TREES_DIRECTORY: &str = "trees";

/// The label whose value is the name of the snapshot that containerd wants.
pub const TARGET_LABEL: &str = "containerd.io/snapshot.ref";

/// The label that says why a layer is an ordinary one though it could have been remote.
pub const FALLBACK_LABEL: &str = "containerd.io/snapshot/headstart.fallback";

/// The answer to a search for a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteAnswer {
    /// The layer is there already.
    Present {
        /// Its description.
        layer: RemoteLayer,
        /// The space that it takes on this host now.
        usage: SnapshotUsage,
    },
    /// The layer is to be fetched and unpacked by containerd.
    NotMine,
}

/// A source of layers that need not be unpacked. Its calls may take time; no lock is held meanwhile.
pub trait RemoteLayerSource: Send + Sync {
    /// Looks for the layer that a snapshot is prepared for. `labels` are those of the request, with [`TARGET_LABEL`];
    /// `parents` are the layers below, the top one first, all of them remote.
    ///
    /// # Errors
    /// Any: the layer becomes an ordinary one, with the error's text in [`FALLBACK_LABEL`].
    fn find(&self, labels: &SnapshotLabels, parents: &[RemoteLayer]) -> Result<RemoteAnswer>;

    /// Makes the tree of `layers` (the top one first, never empty) readable and returns the directory that it is in,
    /// which goes into mounts as one lower directory. Called for each use: a tree that is there already is returned.
    ///
    /// # Errors
    /// The tree cannot be read now.
    fn attach(&self, layers: &[RemoteLayer]) -> Result<PathBuf>;

    /// Learns which layers the snapshots have, at the start and when a snapshot of a remote layer was removed: all
    /// others can go, unless `find` has returned them a moment ago.
    fn keep_only(&self, layers: &[RemoteLayer]);
}

/// No remote layers: every snapshot is an ordinary one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRemoteLayers;

impl RemoteLayerSource for NoRemoteLayers {
    fn find(&self, _labels: &SnapshotLabels, _parents: &[RemoteLayer]) -> Result<RemoteAnswer> {
        Ok(RemoteAnswer::NotMine)
    }

    fn attach(&self, layers: &[RemoteLayer]) -> Result<PathBuf> {
        let name = layers.first().map_or("", |layer| &layer.0).escape_debug().to_string();
        let error =
            headstart_block::Error::unsupported("is a remote layer, and no source of such layers is set up");
        Err(error
            .about(format_args!("layer {name}"))
            .remedy("start the snapshotter with the source that made it"))
    }

    fn keep_only(&self, _layers: &[RemoteLayer]) {}
}
