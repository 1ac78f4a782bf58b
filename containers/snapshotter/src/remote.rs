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
//!
//! The same source makes disks of their own for active snapshots, and seals what was written to them as layers.

use crate::record::{DiskAccess, RemoteLayer, SnapshotLabels, SnapshotUsage};
use headstart_block::{Digest, Error, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory in the root of snapshots in which a source of layers keeps what it has made of them.
pub const TREES_DIRECTORY: &str = "trees";

/// The directory in the place of an own disk that has what was written to it.
pub const WRITTEN_DIRECTORY: &str = "writable";

/// The label whose value is the name of the snapshot that containerd wants.
pub const TARGET_LABEL: &str = "containerd.io/snapshot.ref";

/// The labels with the name of the image that a layer is of, in the order in which they count.
pub const IMAGE_LABELS: [&str; 2] =
    ["containerd.io/snapshot/cri.image-ref", "containerd.io/snapshot/image-ref"];

/// The label that says why a layer is an ordinary one though it could have been remote.
pub const FALLBACK_LABEL: &str = "containerd.io/snapshot/headstart.fallback";

/// A disk: the layers of an image, and sealed layers of snapshots on top of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayeredDisk {
    /// The image.
    pub image: RemoteLayer,
    /// The files of the sealed layers, the lowest one first.
    pub above: Vec<PathBuf>,
}

impl LayeredDisk {
    /// The disk of an image alone.
    #[must_use]
    pub fn of(image: RemoteLayer) -> Self {
        Self { image, above: Vec::new() }
    }
}

/// The disk of one active snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnDisk {
    /// The disk below, which does not change.
    pub below: LayeredDisk,
    /// The directory, of this disk alone, for everything that its source makes.
    pub place: PathBuf,
    /// The form in which it is handed out.
    pub access: DiskAccess,
    /// The most bytes that may be written to it; `None`: as many as its file system has room for.
    pub most: Option<u64>,
}

/// A layer of blocks as a blob for images.
#[derive(Clone, Debug)]
pub struct PackedLayer {
    /// The blob, from the beginning of the file on.
    pub file: Arc<File>,
    /// Its digest.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// The annotations by which readers know it.
    pub annotations: BTreeMap<String, String>,
}

/// The way of closing a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskClosing {
    /// Only if nothing uses it: what was written is to be kept.
    IfUnused,
    /// The same, without a moment's wait for users that are ending.
    IfUnusedNow,
    /// In any case: what was written is not needed.
    Anyway,
}

/// The state of a disk that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealedState {
    /// Closed: nothing changes it.
    Closed,
    /// In use, in the form in which it was handed out: programs may go on to write to it.
    Open(DiskAccess),
}

/// The blob of a disk's layer, as the manifest that containerd has lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedBlob {
    /// Its digest.
    pub digest: Digest,
    /// `true` if it is in TurboOCI's format: its data is in a layer of another image, which only annotations name.
    pub is_turbo: bool,
}

/// The answer to a search for a layer.
#[derive(Debug)]
pub enum RemoteAnswer {
    /// The layer is there already.
    Present {
        /// Its description.
        layer: RemoteLayer,
        /// The blob of its blocks, if the manifest that containerd has lists that blob. `None` for a form of an
        /// original whose layers containerd knows.
        blob: Option<ListedBlob>,
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

/// A disk on which a container may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPlace<'a> {
    /// The disk of its image, which all containers of the image share.
    Image(&'a LayeredDisk),
    /// The disk of its own in this directory.
    Own(&'a Path),
}

/// A source of layers that need not be unpacked. Its calls may take time; no lock is held meanwhile.
pub trait RemoteLayerSource: Send + Sync {
    /// Looks for the layer that a snapshot is prepared for. `labels` are those of the request, with [`TARGET_LABEL`].
    ///
    /// # Errors
    /// Any: the layer becomes an ordinary one, with the error's text in [`FALLBACK_LABEL`], unless the layer below has
    /// the same.
    fn find(&self, labels: &SnapshotLabels) -> Result<RemoteAnswer>;

    /// Makes the tree of a disk readable and returns the directory that it is in, which goes into mounts as one lower
    /// directory. Called for each use: a tree that is there already is returned.
    ///
    /// # Errors
    /// The tree cannot be read now.
    fn attach(&self, disk: &LayeredDisk) -> Result<PathBuf>;

    /// Lets go of the disks that no snapshot has, and that no hold keeps. Called after the start and when a snapshot
    /// of a disk was removed; may take time. `used` gives the disks that snapshots have at the moment, and is
    /// to be asked again before each disk goes: another one may have been recorded meanwhile.
    fn keep_only(&self, used: &dyn Fn() -> Vec<LayeredDisk>);

    /// The image of an empty disk, which is made if it is not there. `None` if trees that begin empty are none of
    /// disks.
    ///
    /// # Errors
    /// If it cannot be made.
    fn blank(&self) -> Result<Option<RemoteLayer>>;

    /// `false` if the file system of a disk is one that can only be read. Nothing is attached to find that out, unless
    /// the image of the disk was attached by an earlier version.
    ///
    /// # Errors
    /// If it cannot be found out now.
    fn can_be_written(&self, disk: &LayeredDisk) -> Result<bool>;

    /// The name of the image of a disk, for people.
    fn image_of(&self, disk: &LayeredDisk) -> String {
        disk.image.0.clone()
    }

    /// Makes the disk of an active snapshot usable and returns the directory or the device that it is handed out as.
    /// Called for each use: one that is open already stays as it is, with all that was written to it.
    ///
    /// # Errors
    /// The disk cannot be used now.
    fn open_own(&self, disk: &OwnDisk) -> Result<PathBuf>;

    /// Notes that containerd has asked for the mounts of the active snapshot `key`, which it does before it starts a
    /// container on it, and seldom otherwise. Called after the mounts were made; must not take time.
    fn may_start(&self, _key: &str, _place: StartPlace<'_>) {}

    /// Takes the disk in the directory `place` from its users and ends it. What was written is durable then, unless it
    /// is closed anyway. One that is not open is no error.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if it is used and was to be closed only unused; errors of the disk.
    fn close_own(&self, place: &Path, closing: DiskClosing) -> Result<()>;

    /// Writes all changes of the disk in the directory `place` into the file `layer`, durably. A file that is there is
    /// replaced. If the disk is open, its users go on, and the layer has what its file system holds at one moment.
    ///
    /// # Errors
    /// Errors of reading and writing.
    fn seal(&self, place: &Path, layer: &Path, state: SealedState) -> Result<()>;

    /// The directory that [`RemoteLayerSource::attach`] returns for a disk, which need not be attached.
    ///
    /// # Errors
    /// The disk is none of this source.
    fn directory_of(&self, disk: &LayeredDisk) -> Result<PathBuf>;

    /// The directory or device that [`RemoteLayerSource::open_own`] has returned for the disk in the directory `place`.
    /// `None` if it is not open.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn handed_out(&self, place: &Path, access: DiskAccess) -> Result<Option<PathBuf>>;

    /// Makes a blob for images of the sealed layer in a file. The same layer gives the same blob.
    ///
    /// # Errors
    /// Errors of reading and writing.
    fn pack(&self, layer: &Path) -> Result<PackedLayer>;

    /// `true` if a blob with this beginning is a sealed layer that was packed.
    fn is_layer(&self, beginning: &[u8]) -> bool;

    /// `true` if a blob with this beginning is a layer in TurboOCI's format.
    fn is_turbo_layer(&self, beginning: &[u8]) -> bool;

    /// Called at the start for each disk that may be open: ends what a sealing has left that was interrupted. No other
    /// call for this disk is going on.
    ///
    /// # Errors
    /// Errors of the operating system.
    fn recover(&self, place: &Path) -> Result<()>;
}

/// No remote layers: every snapshot is an ordinary one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRemoteLayers;

impl RemoteLayerSource for NoRemoteLayers {
    fn find(&self, _labels: &SnapshotLabels) -> Result<RemoteAnswer> {
        Ok(RemoteAnswer::NotMine)
    }

    fn attach(&self, disk: &LayeredDisk) -> Result<PathBuf> {
        Err(without_source(&disk.image))
    }

    fn keep_only(&self, _used: &dyn Fn() -> Vec<LayeredDisk>) {}

    fn blank(&self) -> Result<Option<RemoteLayer>> {
        Ok(None)
    }

    fn can_be_written(&self, _disk: &LayeredDisk) -> Result<bool> {
        Ok(true)
    }

    fn open_own(&self, disk: &OwnDisk) -> Result<PathBuf> {
        Err(without_source(&disk.below.image))
    }

    fn close_own(&self, _place: &Path, _closing: DiskClosing) -> Result<()> {
        Ok(())
    }

    fn seal(&self, place: &Path, _layer: &Path, _state: SealedState) -> Result<()> {
        let error = Error::unsupported("is a disk, and no source of disks is set up");
        Err(error.about(place.display()).remedy("start the snapshotter with the source that made it"))
    }

    fn directory_of(&self, disk: &LayeredDisk) -> Result<PathBuf> {
        Err(without_source(&disk.image))
    }

    fn handed_out(&self, _place: &Path, _access: DiskAccess) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    fn pack(&self, layer: &Path) -> Result<PackedLayer> {
        let error = Error::unsupported("is a layer of a disk, and no source of disks is set up");
        Err(error.about(layer.display()).remedy("start the snapshotter with the source that made it"))
    }

    fn is_turbo_layer(&self, _beginning: &[u8]) -> bool {
        false
    }

    fn is_layer(&self, _beginning: &[u8]) -> bool {
        false
    }

    fn recover(&self, _place: &Path) -> Result<()> {
        Ok(())
    }
}

/// The error of a disk that only its source could open.
fn without_source(image: &RemoteLayer) -> Error {
    let name = image.0.escape_debug();
    let error = Error::unsupported("is a remote layer, and no source of such layers is set up");
    error.about(format_args!("layer {name}")).remedy("start the snapshotter with the source that made it")
}
