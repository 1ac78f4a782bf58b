//! The seam between snapshots and layers that are not unpacked.
//!
//! containerd's protocol of remote snapshots: before it fetches a layer, the unpacker prepares a snapshot with the
//! label [`TARGET_LABEL`], whose value is the name under which it will commit. A snapshotter that has the layer by
//! other means commits a snapshot of that name itself and answers "already exists"; the layer is then neither fetched
//! nor unpacked.
//!
//! [`Snapshotter`](crate::Snapshotter) does that for the layers that a [`RemoteLayerSource`] says it has. Everything
//! else, and everything that fails, is an ordinary snapshot. Remote and ordinary layers may be mixed: the tree of a
//! remote layer has the files of all layers below it.

use crate::record::{RemoteLayer, SnapshotLabels, SnapshotUsage};
use headstart_block::{Error, Result};
use std::fmt;
use std::path::PathBuf;

/// The directory in the root of snapshots in which a source of layers keeps what it has made of them.
pub const TREES_DIRECTORY: &str = "trees";

/// The label whose value is the name of the snapshot that containerd wants.
pub const TARGET_LABEL: &str = "containerd.io/snapshot.ref";

/// The label that says why a layer is an ordinary one though it could have been remote.
pub const FALLBACK_LABEL: &str = "containerd.io/snapshot/headstart.fallback";

/// The answer to a search for a layer.
#[derive(Debug)]
pub enum RemoteAnswer {
    /// The layer is there already.
    Present {
        /// Its description.
        layer: RemoteLayer,
        /// The space that it takes on this host now.
        usage: SnapshotUsage,
        /// Keeps it until its snapshot is recorded.
        hold: LayerHold,
    },
    /// The layer is to be fetched and unpacked by containerd.
    NotMine,
    /// The layer is one that containerd cannot unpack, and it cannot be had now.
    Unavailable(Error),
}

/// Keeps a layer that was found and that no snapshot has yet: dropped, it calls a function of the layer's source.
pub struct LayerHold(Option<Box<dyn FnOnce() + Send>>);

impl LayerHold {
    /// Calls `release` when it is dropped.
    pub fn new(release: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(release)))
    }

    /// Keeps nothing: for layers that do not go away.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }
}

impl fmt::Debug for LayerHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LayerHold")
    }
}

impl Drop for LayerHold {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

/// A source of layers that need not be unpacked. Its calls may take time; no lock is held meanwhile.
pub trait RemoteLayerSource: Send + Sync {
    /// Looks for the layer that a snapshot is prepared for. `labels` are those of the request, with [`TARGET_LABEL`].
    ///
    /// # Errors
    /// Any: the layer becomes an ordinary one, with the error's text in [`FALLBACK_LABEL`].
    fn find(&self, labels: &SnapshotLabels) -> Result<RemoteAnswer>;

    /// Makes the tree of a layer, with the files of all layers below it, readable and returns the directory that it is
    /// in, which goes into mounts as one lower directory. Called for each use: a tree that is there already is
    /// returned.
    ///
    /// # Errors
    /// The tree cannot be read now.
    fn attach(&self, layer: &RemoteLayer) -> Result<PathBuf>;

    /// Lets go of the layers that no snapshot has, and that no hold keeps. Called after the start and when a snapshot
    /// of a remote layer was removed; may take time. `used` gives the layers that snapshots have at the moment, and is
    /// to be asked again before each layer goes: another one may have been recorded meanwhile.
    fn keep_only(&self, used: &dyn Fn() -> Vec<RemoteLayer>);
}

/// No remote layers: every snapshot is an ordinary one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRemoteLayers;

impl RemoteLayerSource for NoRemoteLayers {
    fn find(&self, _labels: &SnapshotLabels) -> Result<RemoteAnswer> {
        Ok(RemoteAnswer::NotMine)
    }

    fn attach(&self, layer: &RemoteLayer) -> Result<PathBuf> {
        let name = layer.0.escape_debug();
        let error = Error::unsupported("is a remote layer, and no source of such layers is set up");
        Err(error
            .about(format_args!("layer {name}"))
            .remedy("start the snapshotter with the source that made it"))
    }

    fn keep_only(&self, _used: &dyn Fn() -> Vec<RemoteLayer>) {}
}
