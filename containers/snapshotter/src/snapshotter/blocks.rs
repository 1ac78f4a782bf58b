//! Layers of blocks for containerd's differs: those that snapshots have, and those that snapshots are to become.
//!
//! A layer that is applied lies in the place of its snapshot's disk, until the snapshot is committed:
//!
//! ```text
//!   snapshots/8/block/applied.new   while it is copied
//!                     applied       once it is whole: the snapshot is recorded as one with a disk of its own then
//!                     changed       while the changes of a snapshot that is not committed are packed
//! ```

use super::Snapshotter;
use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::layer_form::{DiffForm, LowerLayer, form_of_diff, lower_layers};
use crate::record::{DiskAccess, SnapshotContent, SnapshotId, SnapshotRecord, SnapshotState};
use crate::remote::{DiskClosing, PackedLayer, SealedState};
use crate::table::SnapshotPlace;
use headstart_block::{Digest, Error, ErrorKind, Result, private};
use headstart_hash_tree::sums::DigestWriter;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};

/// The file of a layer that was applied.
pub(super) const APPLIED: &str = "applied";
/// The file of one that is being copied.
const NEW_APPLIED: &str = "applied.new";
/// The file of the changes of an active snapshot.
const CHANGED: &str = "changed";

/// An active snapshot that a layer is to be applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyTarget {
    id: SnapshotId,
    key: String,
    /// The layers below it, the top one first.
    pub below: Vec<LowerLayer>,
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
        let Some((changed, parent)) = self.changed_at(right)? else { return Ok(None) };
        let below = self.below(parent.as_deref());
        if form_of_diff(&below, media_type) != DiffForm::Blocks {
            return Ok(None);
        }
        let parts = parent.and_then(|parent| self.table.read().disk(&parent));
        let Some(parts) = parts else { return Ok(None) };
        if self.remote.directory_of(&self.layered(parts))? != left {
            return Ok(None);
        }
        match changed {
            Changed::Sealed(id) => Ok(Some(self.remote.pack(&self.layer_file(id))?)),
            Changed::Active { id, key, access } => self.pack_active(id, &key, access).map(Some),
        }
    }

    /// The blocks that the mounts at a place have on top of their parent's, and the name of that parent.
    fn changed_at(&self, place: &Path) -> Result<Option<(Changed, Option<String>)>> {
        let disks = {
            let table = self.table.read();
            let parts = |record: &SnapshotRecord| Some(self.layered(table.disk(&record.key)?));
            table.all().filter_map(|record| Some((record.clone(), parts(record)?))).collect::<Vec<_>>()
        };
        for (record, disk) in disks {
            let (id, key) = (record.id, record.key);
            let changed = match record.state {
                SnapshotState::ActiveDisk { access, .. }
                    if self.handed_out(id, access)?.as_deref() == Some(place) =>
                {
                    Changed::Active { id, key, access }
                }
                SnapshotState::Committed { content: SnapshotContent::Sealed(_), .. }
                    if self.remote.directory_of(&disk)? == place =>
                {
                    Changed::Sealed(id)
                }
                _ => continue,
            };
            return Ok(Some((changed, record.parent)));
        }
        Ok(None)
    }

    fn handed_out(&self, id: SnapshotId, access: DiskAccess) -> Result<Option<PathBuf>> {
        self.remote.handed_out(&self.overlay.path(SnapshotPlace::Block(id)), access)
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
                SnapshotState::ActiveDisk { access, .. } => {
                    self.handed_out(record.id, access)?.as_deref() == Some(place)
                }
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

    /// A new file for a layer that is applied.
    ///
    /// # Errors
    /// [`FaultKind::Failed`].
    pub fn new_layer_file(&self, target: &ApplyTarget) -> FaultResult<File> {
        let place = self.overlay.path(SnapshotPlace::Block(target.id));
        private::make_directory(&place).map_err(failed(&place))?;
        let path = place.join(NEW_APPLIED);
        private::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(failed(&path))
    }

    /// Makes an active snapshot, which must be as it was prepared, one that is committed as the layer in `file`.
    ///
    /// # Errors
    /// [`FaultKind::FailedPrecondition`] if something was written to the snapshot, or it is used;
    /// [`FaultKind::Failed`] if the file has another digest; the journal's errors.
    pub fn keep_layer(&self, target: &ApplyTarget, file: &File, digest: &Digest) -> FaultResult<()> {
        let (id, key) = (target.id, &*target.key);
        let lock = self.lock_of(id);
        let _locked = lock.lock();
        let record = self.table.read().get(key)?.clone();
        if record.id != id {
            return Err(SnapshotFault::missing(key));
        }
        let place = self.overlay.path(SnapshotPlace::Block(id));
        check_digest(file, digest).map_err(failed(&place))?;
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
        let applied = place.join(APPLIED);
        let kept = file.sync_all().and_then(|()| fs::rename(place.join(NEW_APPLIED), &applied));
        kept.and_then(|()| File::open(&place)?.sync_all()).map_err(failed(&applied))?;
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
        let directory = layer.parent().unwrap_or(layer);
        linked.and_then(|()| File::open(directory)?.sync_all()).map_err(failed(layer))?;
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
