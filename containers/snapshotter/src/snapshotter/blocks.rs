//! Layers of blocks for containerd's differs: those that snapshots have, and those that snapshots are to become.
//!
//! A layer that is applied lies in the place of its snapshot's disk, until the snapshot is committed:
//!
//! ```text
//!   snapshots/8/block/applied.1.new while it is copied; each copy has a number of its own
//!                     applied       once it is whole: the snapshot is recorded as one with a disk of its own then
//!                     changed       while the changes of a snapshot that is not committed are packed
//! ```

use super::Snapshotter;
use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::layer_form::{DiffForm, LowerLayer, form_of_diff, lower_layers};
use crate::record::{DiskAccess, SnapshotContent, SnapshotId, SnapshotKind, SnapshotRecord, SnapshotState};
use crate::remote::{DiskClosing, LayeredDisk, PackedLayer, SealedState};
use crate::table::SnapshotPlace;
use headstart_block::{Digest, Error, ErrorKind, private, sync_dir, sync_dir_of};
use headstart_hash_tree::sums::DigestWriter;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file of a layer that was applied.
pub(super) const APPLIED: &str = "applied";
/// The file of the changes of an active snapshot.
const CHANGED: &str = "changed";
/// The number of layers that this process has copied.
static COPIED: AtomicU64 = AtomicU64::new(0);

/// An active snapshot that a layer is to be applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyTarget {
    id: SnapshotId,
    key: String,
    /// The layers below it, the top one first.
    pub below: Vec<LowerLayer>,
}

/// A file that takes a layer, and is removed when this is dropped, unless the layer was kept.
#[derive(Debug)]
pub struct NewLayerFile {
    /// The file.
    pub file: Arc<File>,
    path: PathBuf,
}

impl Drop for NewLayerFile {
    fn drop(&mut self) {
        // One that was kept has another name.
        let _ = fs::remove_file(&self.path);
    }
}

/// The place of blocks that were changed.
enum Changed {
    /// A sealed layer.
    Sealed(SnapshotId),
    /// The disk of an active snapshot.
    Active { id: SnapshotId, key: String, access: DiskAccess },
}

fn failed(about: &Path) -> impl Fn(io::Error) -> SnapshotFault + '_ {
    move |error| Error::io("cannot be written", error).about(about.display()).into()
}

impl Snapshotter {
    /// The blocks that are different between the mounts of `left` and of `right`, each named by its place, as a layer
    /// for a caller that asks for `media_type`. `None` if that is no layer of blocks.
    ///
    /// # Errors
    /// [`FaultKind::Failed`].
    pub fn changed_blocks(
        &self,
        left: &Path,
        right: &Path,
        media_type: &str,
    ) -> FaultResult<Option<PackedLayer>> {
        let disks = self.disks_at(left);
        let is_fit = |name: &String| form_of_diff(&self.below(Some(name)), media_type) == DiffForm::Blocks;
        let parents: BTreeSet<_> = disks.into_iter().filter(is_fit).collect();
        if parents.is_empty() {
            return Ok(None);
        }
        match self.changed_at(right, &parents) {
            Some(Changed::Sealed(id)) => Ok(Some(self.remote.pack(&self.layer_file(id))?)),
            Some(Changed::Active { id, key, access }) => self.pack_active(id, &key, access).map(Some),
            None => Ok(None),
        }
    }

    /// The names of the committed disks that are mounted at a place.
    fn disks_at(&self, place: &Path) -> Vec<String> {
        let disks: Vec<_> = {
            let table = self.table.read();
            let committed = table.all().filter(|record| record.kind() == SnapshotKind::Committed);
            let disk = |record: &SnapshotRecord| Some((record.key.clone(), table.disk(&record.key)?));
            committed.filter_map(disk).collect()
        };
        let disks = disks.into_iter().map(|(name, parts)| (name, self.layered(parts)));
        disks.filter(|(_, disk)| self.is_mounted_at(place, disk)).map(|(name, _)| name).collect()
    }

    /// `true` if a committed disk is mounted at a place. Disks of another version's, whose names say nothing here, are
    /// not.
    fn is_mounted_at(&self, place: &Path, disk: &LayeredDisk) -> bool {
        self.remote.directory_of(disk).is_ok_and(|directory| directory == place)
    }

    /// The blocks that the mounts at a place have on top of their parent, which is one of `parents`.
    fn changed_at(&self, place: &Path, parents: &BTreeSet<String>) -> Option<Changed> {
        let children: Vec<_> = {
            let table = self.table.read();
            let is_child =
                |record: &&SnapshotRecord| record.parent.as_ref().is_some_and(|name| parents.contains(name));
            let disk = |record: &SnapshotRecord| Some((record.clone(), table.disk(&record.key)?));
            table.all().filter(is_child).filter_map(disk).collect()
        };
        children.into_iter().find_map(|(record, parts)| match record.state {
            SnapshotState::ActiveDisk { access, .. } if self.is_handed_out_as(place, record.id, access) => {
                Some(Changed::Active { id: record.id, key: record.key, access })
            }
            SnapshotState::Committed { content: SnapshotContent::Sealed(_), .. } => {
                self.is_mounted_at(place, &self.layered(parts)).then_some(Changed::Sealed(record.id))
            }
            _ => None,
        })
    }

    /// `true` if the disk of an active snapshot is handed out as `place`. One that cannot be looked at is another one.
    fn is_handed_out_as(&self, place: &Path, id: SnapshotId, access: DiskAccess) -> bool {
        match self.remote.handed_out(&self.overlay.path(SnapshotPlace::Block(id)), access) {
            Ok(found) => found.as_deref() == Some(place),
            Err(error) => {
                tracing::debug!(%error, %id, "a disk is passed over in a search for mounts");
                false
            }
        }
    }

    /// A committed snapshot and all below, the top one first, for the rule of layers' forms.
    pub(super) fn below(&self, name: Option<&str>) -> Vec<LowerLayer> {
        lower_layers(&self.table.read().chain(name))
    }

    /// The changes of a disk that may be used: as of one moment, at which its users wait.
    fn pack_active(&self, id: SnapshotId, key: &str, access: DiskAccess) -> FaultResult<PackedLayer> {
        let lock = self.lock_of(id);
        let _locked = lock.lock();
        if self.table.read().get(key)?.id != id {
            return Err(SnapshotFault::missing(key));
        }
        let place = self.overlay.path(SnapshotPlace::Block(id));
        self.refuse_applied(&place)?;
        let file = place.join(CHANGED);
        let sealed = self.remote.seal(&place, &file, SealedState::Open(access));
        let packed = sealed.and_then(|()| self.remote.pack(&file));
        // Left by a crash, it goes with its snapshot or is written anew.
        let removed = fs::remove_file(&file);
        let packed = packed?;
        removed.map_err(failed(&file))?;
        Ok(packed)
    }

    /// The active snapshot that has the mounts at a place, if it is on a parent.
    ///
    /// # Errors
    /// [`FaultKind::Failed`].
    pub fn snapshot_at(&self, place: &Path) -> FaultResult<Option<ApplyTarget>> {
        let active: Vec<_> = {
            let table = self.table.read();
            let active = table.all().filter(|record| {
                matches!(record.state, SnapshotState::Active | SnapshotState::ActiveDisk { .. })
            });
            active.cloned().collect()
        };
        for record in active {
            let is_there = match record.state {
                SnapshotState::ActiveDisk { access, .. } => self.is_handed_out_as(place, record.id, access),
                _ => self.overlay.path(SnapshotPlace::Upper(record.id)) == place,
            };
            if is_there {
                let below = self.below(record.parent.as_deref());
                return Ok(Some(ApplyTarget { id: record.id, key: record.key, below }));
            }
        }
        Ok(None)
    }

    /// `true` if a blob with this beginning is a layer of blocks.
    #[must_use]
    pub fn is_layer(&self, beginning: &[u8]) -> bool {
        self.remote.is_layer(beginning)
    }

    /// `true` if a blob with this beginning is a layer in TurboOCI's format.
    #[must_use]
    pub fn is_turbo_layer(&self, beginning: &[u8]) -> bool {
        self.remote.is_turbo_layer(beginning)
    }

    /// A new file for a layer that is applied.
    ///
    /// # Errors
    /// [`FaultKind::Failed`].
    pub fn new_layer_file(&self, target: &ApplyTarget) -> FaultResult<NewLayerFile> {
        let place = self.overlay.path(SnapshotPlace::Block(target.id));
        private::make_directory(&place).map_err(failed(&place))?;
        let number = COPIED.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("{APPLIED}.{number}.new"));
        // An earlier process may have left one of that name.
        let opened = private::options().read(true).write(true).create(true).truncate(true).open(&path);
        Ok(NewLayerFile { file: Arc::new(opened.map_err(failed(&path))?), path })
    }

    /// Makes an active snapshot, which must be as it was prepared, one that is committed as the layer `new`. One that
    /// has this layer already stays as it is.
    ///
    /// # Errors
    /// [`FaultKind::FailedPrecondition`] if something was written to the snapshot, or it is used;
    /// [`FaultKind::Failed`] if the file has another digest; the journal's errors.
    pub fn keep_layer(&self, target: &ApplyTarget, new: &NewLayerFile, digest: &Digest) -> FaultResult<()> {
        let (id, key) = (target.id, &*target.key);
        let lock = self.lock_of(id);
        let _locked = lock.lock();
        let record = self.table.read().get(key)?.clone();
        if record.id != id {
            return Err(SnapshotFault::missing(key));
        }
        let place = self.overlay.path(SnapshotPlace::Block(id));
        check_digest(&new.file, digest).map_err(failed(&place))?;
        let applied = place.join(APPLIED);
        if record.state != SnapshotState::Active && applied.exists() {
            let is_same = File::open(&applied).and_then(|file| check_digest(&file, digest)).is_ok();
            return if is_same { Ok(()) } else { self.refuse_applied(&place) };
        }
        let used = || {
            let text =
                format!("snapshot {} is used, and a layer cannot be applied to it", key.escape_debug());
            SnapshotFault::new(FaultKind::FailedPrecondition, text)
        };
        match record.state {
            SnapshotState::Active => {
                let upper = self.overlay.path(SnapshotPlace::Upper(id));
                if fs::read_dir(&upper).map_err(failed(&upper))?.next().is_some() {
                    return Err(used());
                }
            }
            SnapshotState::ActiveDisk { .. } => match self.remote.close_own(&place, DiskClosing::IfUnused) {
                Err(error) if error.kind() == ErrorKind::Conflict => return Err(used()),
                closed => closed?,
            },
            _ => return Err(SnapshotFault::missing(key)),
        }
        let kept = new.file.sync_all().and_then(|()| fs::rename(&new.path, &applied));
        kept.and_then(|()| sync_dir(&place)).map_err(failed(&applied))?;
        if record.state == SnapshotState::Active {
            let mut journal = self.journal.lock();
            let steps = self.table.read().become_disk(key)?;
            // The snapshot is gone if a crash comes between the two, and containerd prepares it anew.
            for step in steps {
                self.carry_out(&mut journal, vec![step])?;
            }
        }
        Ok(())
    }

    /// Refuses the use of a disk in whose place a layer was applied: it would not have the layer's content.
    pub(super) fn refuse_applied(&self, place: &Path) -> FaultResult<()> {
        if !place.join(APPLIED).exists() {
            return Ok(());
        }
        let text =
            format!("{}: a layer was applied to this snapshot, which is to be committed", place.display());
        Err(SnapshotFault::new(FaultKind::FailedPrecondition, text))
    }

    /// Makes a layer that was applied the layer of its snapshot. `false` if there is none.
    pub(super) fn take_applied(&self, place: &Path, layer: &Path) -> FaultResult<bool> {
        let applied = place.join(APPLIED);
        if !applied.exists() {
            return Ok(false);
        }
        let linked = remove_file(layer).and_then(|()| fs::hard_link(&applied, layer));
        linked.and_then(|()| sync_dir_of(layer)).map_err(failed(layer))?;
        Ok(true)
    }
}

/// Checks the digest of a whole file.
fn check_digest(mut file: &File, digest: &Digest) -> io::Result<()> {
    file.rewind()?;
    let mut writer = DigestWriter::new(io::sink());
    io::copy(&mut file, &mut writer)?;
    let (_, found, _) = writer.finish();
    if found == *digest {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the layer has the digest {found}, and not {digest}"),
    ))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
