//! Disks of snapshots: which get one, and when it is served, sealed and closed.
//!
//! A disk is opened, sealed and closed under the lock of its snapshot, which is taken before the journal's. So no disk
//! is opened again between its closing and the record of its commit or removal. No thread waits for two such locks.

use super::Snapshotter;
use super::blocks::APPLIED;
use super::opening::is_set_aside;
use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::layer_form::{is_disk_in_manifest, is_turbo};
use crate::overlay::{SnapshotMount, mounts_of_disk, remove, usage_of};
use crate::project_quota::{LimitState, ProjectQuotas, project_of};
use crate::record::{
    DiskAccess, SnapshotContent, SnapshotId, SnapshotLabels, SnapshotRecord, SnapshotState, SnapshotUsage,
};
use crate::remote::{
    DiskClosing, FALLBACK_LABEL, LayeredDisk, OwnDisk, SealedState, TARGET_LABEL, WRITTEN_DIRECTORY,
};
use crate::table::{DiskParts, SnapshotPlace, SnapshotTree, WantedTree};
use headstart_block::{ByteSize, Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The label that says how an active snapshot is to be written to: its name and values are those of OverlayBD's
/// snapshotter.
const WRITABLE_LABEL: &str = "containerd.io/snapshot/overlaybd.writable";
/// The label with the file of a sealed layer, as OverlayBD's snapshotter has it. `BuildKit` makes a blob of that file.
pub(super) const LAYER_LABEL: &str = "containerd.io/snapshot/overlaybd.localcommitpath";
/// The label with the most bytes that an active snapshot may take, as containerd has it since 2.4.
const MAX_SIZE_LABEL: &str = "containerd.io/snapshot/max-size";
/// The label that says that such a limit is not held, and why.
pub(super) const QUOTA_LABEL: &str = "containerd.io/snapshot/headstart.quota";
/// The file of a sealed layer in the directory of its snapshot. Tools of OverlayBD expect this name.
const LAYER: &str = "overlaybd.sealed";
/// The only file in the blob of a disk's layer that has a tar around it.
const COMMIT_FILE: &str = "overlaybd.commit";
/// The mark in the blob of a layer in TurboOCI's format.
const TURBO_MARK: &str = ".turbo.ociv1";
/// The beginning of the keys under which containerd unpacks layers.
const UNPACKING: &str = "extract-";

/// `true` if a snapshot is prepared for a layer to be unpacked. containerd puts a namespace and a number before a key.
fn is_for_unpacking(key: &str, labels: &SnapshotLabels) -> bool {
    let own = key.splitn(3, '/').nth(2).unwrap_or_default();
    labels.contains_key(TARGET_LABEL) || key.starts_with(UNPACKING) || own.starts_with(UNPACKING)
}

/// The form of its own disk that a label asks for; `None` for overlayfs.
fn access_of(word: &str) -> FaultResult<Option<DiskAccess>> {
    match word {
        "dir" => Ok(Some(DiskAccess::Directory)),
        "dev" => Ok(Some(DiskAccess::Device)),
        "overlayfs" => Ok(None),
        other => {
            let other = other.escape_debug();
            let text = format!("label {WRITABLE_LABEL}: `{other}` is none of overlayfs, dir and dev");
            Err(SnapshotFault::new(FaultKind::InvalidArgument, text))
        }
    }
}

/// The most bytes that labels let a snapshot take; `None` if they say nothing of it.
///
/// # Errors
/// [`FaultKind::InvalidArgument`] if the label is no size.
fn limit_in(labels: &SnapshotLabels) -> FaultResult<Option<u64>> {
    let Some(text) = labels.get(MAX_SIZE_LABEL).filter(|text| !text.is_empty()) else { return Ok(None) };
    match text.parse() {
        Ok(ByteSize(size)) if size > 0 => Ok(Some(size)),
        _ => {
            let text = text.escape_debug();
            let text = format!(
                "label {MAX_SIZE_LABEL}: `{text}` is no size; write it as 4096, 4k, 2M, 40G or 2T, or leave it out for \
                 the limit of --container-quota"
            );
            Err(SnapshotFault::new(FaultKind::InvalidArgument, text))
        }
    }
}

/// Refuses labels that would give a snapshot a limit that makes no sense, unless it has that label already.
///
/// # Errors
/// [`FaultKind::InvalidArgument`].
pub(super) fn check_new_limit(record: &SnapshotRecord, labels: &SnapshotLabels) -> FaultResult<()> {
    let is_new = record.labels.get(MAX_SIZE_LABEL) != labels.get(MAX_SIZE_LABEL);
    if is_new { limit_in(labels).map(drop) } else { Ok(()) }
}

impl Snapshotter {
    /// The tree that an active snapshot is to be. A label is added if it is not the one that the settings ask for.
    pub(super) fn wanted(
        &self,
        key: &str,
        parent: &str,
        labels: &mut SnapshotLabels,
    ) -> FaultResult<WantedTree> {
        if is_for_unpacking(key, labels) {
            return Ok(WantedTree::Overlay);
        }
        let asked = labels.get(WRITABLE_LABEL);
        let access = match asked {
            Some(word) => access_of(word)?,
            None => self.settings.own_disks,
        };
        let Some(access) = access else { return Ok(WantedTree::Overlay) };
        let below = self.table.read().disk(parent).map(|parts| self.layered(parts));
        if let Some(below) = below.filter(|_| !parent.is_empty())
            && !self.remote.can_be_written(&below)?
        {
            let image = self.remote.image_of(&below);
            let image = image.escape_debug();
            let cause = format!("{image}: its file system is EROFS, on which nothing can be written");
            let remedy = "convert the original to ext4 (`headstart image convert` without --fs erofs), remove the \
                          image from containerd and pull it again";
            if let Some(word) = asked {
                let text = format!(
                    "{cause}, and label {WRITABLE_LABEL}={word} asks for a disk: {remedy}, or take overlayfs \
                     ({WRITABLE_LABEL}=overlayfs)"
                );
                return Err(SnapshotFault::new(FaultKind::FailedPrecondition, text));
            }
            let text = format!("{cause}: overlayfs takes what is; for a disk, {remedy}");
            tracing::warn!(key, "{text}");
            labels.insert(FALLBACK_LABEL.to_owned(), text);
            return Ok(WantedTree::Overlay);
        }
        let blank = if parent.is_empty() { self.remote.blank()? } else { None };
        Ok(WantedTree::Disk { access, blank })
    }

    /// Checks that trees that begin empty can be disks, if they are to be.
    ///
    /// # Errors
    /// Those of [`RemoteLayerSource::blank`](crate::remote::RemoteLayerSource::blank).
    pub fn check_blank(&self) -> Result<()> {
        self.remote.blank().map(drop)
    }

    /// The most bytes that an active snapshot may take.
    ///
    /// # Errors
    /// [`FaultKind::InvalidArgument`] for a label that is no size.
    fn quota_of(&self, key: &str, labels: &SnapshotLabels) -> FaultResult<Option<u64>> {
        if is_for_unpacking(key, labels) {
            return Ok(None);
        }
        Ok(limit_in(labels)?.or(self.settings.quota))
    }

    /// Adds a label to those of a new snapshot if it has a limit that nothing holds: neither its disk nor the file
    /// system of its directory.
    ///
    /// # Errors
    /// [`FaultKind::InvalidArgument`] for a label that is no size.
    pub(super) fn note_quota(
        &self,
        wanted: &WantedTree,
        key: &str,
        parent: &str,
        labels: &mut SnapshotLabels,
    ) -> FaultResult<()> {
        labels.remove(QUOTA_LABEL);
        let quota = self.quota_of(key, labels)?;
        let is_disk = match wanted {
            WantedTree::Disk { blank, .. } if parent.is_empty() => blank.is_some(),
            WantedTree::Disk { .. } => self.table.read().disk(parent).is_some(),
            WantedTree::View | WantedTree::Overlay => false,
        };
        let Err(error) = &self.quotas else { return Ok(()) };
        if is_disk || quota.is_none() {
            return Ok(());
        }
        let text = format!("not held: {error}; or ask for a disk (dir, dev), which has limits anywhere");
        labels.insert(QUOTA_LABEL.to_owned(), text.clone());
        self.complaint.call_once(|| {
            tracing::warn!(
                "the limit of a container's space is {text}; the label {QUOTA_LABEL} says so for each container"
            );
        });
        Ok(())
    }

    /// Holds the limit of an active snapshot that is a directory, if it has one and its file system can. A label says
    /// so if it does not.
    pub(super) fn hold_limit(&self, key: &str, id: SnapshotId) -> FaultResult<()> {
        let Ok(quotas) = &self.quotas else { return Ok(()) };
        let lock = self.lock_of(id);
        let _locked = lock.lock();
        let record = self.table.read().get(key)?.clone();
        if record.id != id || record.state != SnapshotState::Active {
            return Err(SnapshotFault::missing(key));
        }
        let Some(most) = self.recorded_quota_of(key, &record.labels) else { return Ok(()) };
        let [outer, upper, work] = [SnapshotPlace::Of(id), SnapshotPlace::Upper(id), SnapshotPlace::Work(id)]
            .map(|place| self.overlay.path(place));
        let note = match quotas.hold(&outer, &[&upper, &work], most)? {
            LimitState::Held => None,
            LimitState::NotHeld(why) => Some(format!("not held: {why}")),
        };
        self.note_limit(key, id, note)
    }

    /// Records the label of a snapshot whose limit is not held, or takes it away. The caller has the lock of the
    /// snapshot.
    pub(super) fn note_limit(&self, key: &str, id: SnapshotId, note: Option<String>) -> FaultResult<()> {
        let mut journal = self.journal.lock();
        let record = self.table.read().get(key)?.clone();
        if record.id != id || record.labels.get(QUOTA_LABEL) == note.as_ref() {
            return Ok(());
        }
        let mut labels = record.labels;
        match note {
            Some(note) => {
                tracing::warn!(key, "the limit of a container's space is {note}");
                labels.insert(QUOTA_LABEL.to_owned(), note);
            }
            None => drop(labels.remove(QUOTA_LABEL)),
        }
        let steps = self.table.read().update(key, &labels, &[], self.now())?;
        self.carry_out(&mut journal, steps).map(drop)
    }

    /// The project by which the space of a snapshot's directory is limited, if it has one.
    pub(super) fn limit_of(&self, directory: &Path) -> Option<(&ProjectQuotas, u32)> {
        let quotas = self.quotas.as_ref().ok()?;
        Some((quotas, project_of(directory).ok()??))
    }

    /// The most bytes that a recorded snapshot may take. Earlier versions recorded labels that are no sizes, and their
    /// containers go on.
    fn recorded_quota_of(&self, key: &str, labels: &SnapshotLabels) -> Option<u64> {
        self.quota_of(key, labels).unwrap_or_else(|fault| {
            tracing::warn!(key, %fault, "a limit is passed over");
            self.settings.quota
        })
    }

    /// The lock of a snapshot's disk.
    pub(super) fn lock_of(&self, id: SnapshotId) -> Arc<Mutex<()>> {
        Arc::clone(self.locks.lock().entry(id).or_default())
    }

    /// The file of a sealed layer.
    pub(super) fn layer_file(&self, id: SnapshotId) -> PathBuf {
        self.overlay.path(SnapshotPlace::Upper(id)).join(LAYER)
    }

    /// A disk with the files of its layers.
    pub(super) fn layered(&self, parts: DiskParts) -> LayeredDisk {
        LayeredDisk { image: parts.image, above: parts.above.iter().map(|id| self.layer_file(*id)).collect() }
    }

    /// Opens the own disk of an active snapshot.
    pub(super) fn mounts_of_own(
        &self,
        key: &str,
        tree: &SnapshotTree,
        access: DiskAccess,
    ) -> FaultResult<Vec<SnapshotMount>> {
        let lock = self.lock_of(tree.id);
        let _locked = lock.lock();
        let parts = {
            let table = self.table.read();
            let is_same = table.tree(key).is_ok_and(|now| now == *tree);
            table.disk(key).filter(|_| is_same).ok_or_else(|| SnapshotFault::missing(key))?
        };
        let place = self.overlay.path(SnapshotPlace::Block(tree.id));
        self.refuse_applied(&place)?;
        let labels = self.table.read().get(key)?.labels.clone();
        let most = self.recorded_quota_of(key, &labels);
        let opened = self.remote.open_own(&OwnDisk { below: self.layered(parts), place, access, most })?;
        let source = opened.to_str().ok_or_else(|| {
            SnapshotFault::new(FaultKind::Failed, format!("{}: is not text", opened.display()))
        })?;
        Ok(mounts_of_disk(access, source.to_owned()))
    }

    /// Makes what was written to an active snapshot durable, as far as it is to be, and returns the space that it
    /// takes. A disk is closed if nothing uses it, and its layer is sealed. The caller has the lock of the snapshot.
    pub(super) fn settle(&self, record: &SnapshotRecord) -> FaultResult<SnapshotUsage> {
        if let SnapshotState::ActiveDisk { access, .. } = record.state {
            let place = self.overlay.path(SnapshotPlace::Block(record.id));
            if self.take_applied(&place, &self.layer_file(record.id))? {
                return Ok(usage_of(&self.overlay.path(SnapshotPlace::Upper(record.id)))?);
            }
            let state = match self.remote.close_own(&place, DiskClosing::IfUnused) {
                Ok(()) => SealedState::Closed,
                Err(error) if error.kind() == ErrorKind::Conflict => SealedState::Open(access),
                Err(error) => return Err(error.into()),
            };
            self.remote.seal(&place, &self.layer_file(record.id), state)?;
        } else if self.settings.are_commits_durable {
            self.overlay.sync_files()?;
        }
        Ok(usage_of(&self.overlay.path(SnapshotPlace::Upper(record.id)))?)
    }

    /// Takes the disk of a snapshot from its users.
    pub(super) fn close_disk(&self, id: SnapshotId) -> FaultResult<()> {
        let place = self.overlay.path(SnapshotPlace::Block(id));
        Ok(self.remote.close_own(&place, DiskClosing::Anyway)?)
    }

    /// Closes the disk of a committed snapshot and removes its places, if nothing uses it.
    pub(super) fn leave_disk(&self, id: SnapshotId) {
        let place = self.overlay.path(SnapshotPlace::Block(id));
        if !place.exists() {
            return;
        }
        let closed = self.remote.close_own(&place, DiskClosing::IfUnusedNow);
        let left = closed.and_then(|()| Ok(remove(&place)?));
        match left {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                tracing::info!(%error, "the disk of a committed snapshot goes at a later cleanup");
            }
            Err(error) => tracing::warn!(path = %place.display(), %error, "this directory cannot be removed"),
            Ok(()) => {}
        }
    }

    /// Ends what commits have left that were interrupted. A call that has the disk of a snapshot now does it itself.
    pub(crate) fn recover_disks(&self) {
        let ids: Vec<_> = {
            let table = self.table.read();
            let with_disk = table.all().filter(|record| record.has_directory() && !record.has_files());
            with_disk.map(|record| record.id).collect()
        };
        for id in ids {
            let lock = self.lock_of(id);
            if let Some(_locked) = lock.try_lock()
                && let Err(error) = self.remote.recover(&self.overlay.path(SnapshotPlace::Block(id)))
            {
                tracing::warn!(%error, %id, "an interrupted commit of a disk has left something");
            }
        }
    }

    /// The space that the disk of an active snapshot takes without what is below.
    pub(super) fn usage_of_disk(&self, id: SnapshotId) -> FaultResult<SnapshotUsage> {
        let place = self.overlay.path(SnapshotPlace::Block(id));
        if place.join(APPLIED).exists() {
            return Ok(usage_of(&place)?);
        }
        let written = place.join(WRITTEN_DIRECTORY);
        // It is made when the disk is used first.
        if written.is_dir() { Ok(usage_of(&written)?) } else { Ok(SnapshotUsage::default()) }
    }

    /// The disks that snapshots have, or are layers of.
    fn disks(&self) -> Vec<LayeredDisk> {
        let table = self.table.read();
        table.all().filter_map(|record| table.disk(&record.key)).map(|parts| self.layered(parts)).collect()
    }

    /// Lets the source of disks let go of what no snapshot has. May take time.
    pub fn keep_used(&self) {
        self.remote.keep_only(&|| self.disks());
    }

    /// Adds the label of a sealed layer to those of a commit, if the snapshot has asked for a disk by a label.
    /// `BuildKit` puts the file into the manifest, on top of the layers that it has there, so these have to be the
    /// disk's.
    ///
    /// # Errors
    /// [`FaultKind::FailedPrecondition`] if the data of these is in layers of another image: `BuildKit` leaves out the
    /// annotations that name it, so that no other host could read the image.
    pub(super) fn add_layer_label(
        &self,
        record: &SnapshotRecord,
        labels: &mut SnapshotLabels,
    ) -> FaultResult<()> {
        let is_disk = matches!(record.state, SnapshotState::ActiveDisk { .. });
        let is_asked = is_disk && record.labels.contains_key(WRITABLE_LABEL);
        let parent = record.parent.as_deref();
        if !is_asked {
            return Ok(());
        }
        if is_turbo(&self.table.read().chain(parent)) {
            let text = format!(
                "{}: its image is in TurboOCI's format, on which no image can be built: build on an \
                 image that was converted with --mode native",
                record.key.escape_debug()
            );
            return Err(SnapshotFault::new(FaultKind::FailedPrecondition, text));
        }
        if is_disk_in_manifest(&self.below(parent)) {
            labels.insert(LAYER_LABEL.to_owned(), self.layer_file(record.id).display().to_string());
        }
        Ok(())
    }

    /// Refuses a layer that was unpacked and has no files: the blob of a disk's layer, in a tar, in an image that has
    /// lost its annotations. A container on it would lack the files without a word.
    pub(super) fn refuse_blocks_as_files(&self, record: &SnapshotRecord) -> FaultResult<()> {
        if record.state != SnapshotState::Active || !is_for_unpacking(&record.key, &record.labels) {
            return Ok(());
        }
        let upper = self.overlay.path(SnapshotPlace::Upper(record.id));
        let failed = |error| Error::io("cannot be listed", error).about(upper.display());
        let names = std::fs::read_dir(&upper).map_err(failed)?.take(2);
        let names: Vec<_> = names.collect::<std::io::Result<_>>().map_err(failed)?;
        let is_commit = matches!(&*names, [only] if only.file_name() == COMMIT_FILE);
        // A link of the layer would lead to a file of the host.
        let has_turbo_mark =
            std::fs::symlink_metadata(upper.join(TURBO_MARK)).is_ok_and(|file| file.is_file());
        if !is_commit && !has_turbo_mark {
            return Ok(());
        }
        let text = format!(
            "{}: this layer has blocks of a disk and no files ({COMMIT_FILE} or {TURBO_MARK}): its image has lost the \
             annotations that say so. Push it again with them (BuildKit: oci-mediatypes=true)",
            record.key.escape_debug()
        );
        Err(SnapshotFault::new(FaultKind::FailedPrecondition, text))
    }

    /// The file of a sealed layer, if the snapshot is one.
    pub(super) fn sealed_layer(&self, record: &SnapshotRecord) -> Option<String> {
        let is_sealed =
            matches!(&record.state, SnapshotState::Committed { content: SnapshotContent::Sealed(_), .. });
        is_sealed.then(|| self.layer_file(record.id).display().to_string())
    }

    /// Removes the places of disks of committed snapshots, which were used, or whose commit was interrupted after its
    /// record.
    pub(super) fn remove_left_places(&self) {
        let sealed: Vec<_> = {
            let table = self.table.read();
            let sealed = table.all().filter(|record| self.sealed_layer(record).is_some());
            let has_place = |id: &SnapshotId| self.overlay.path(SnapshotPlace::Block(*id)).exists();
            sealed.map(|record| record.id).filter(has_place).collect()
        };
        for id in sealed {
            // Not waited for: the caller may have the lock of another snapshot.
            let lock = self.lock_of(id);
            let locked = lock.try_lock();
            if locked.is_some() {
                self.leave_disk(id);
            }
        }
    }

    /// Removes the directory of a snapshot that is gone. One whose disk cannot be closed stays, and so does one that no
    /// journal knew, until the next start.
    pub(super) fn remove_orphan(&self, path: &Path) {
        if is_set_aside(path) {
            return;
        }
        let project = self.limit_of(path);
        let closed = self.remote.close_own(&path.join("block"), DiskClosing::Anyway);
        let removed = closed.and_then(|()| Ok(remove(path)?));
        match (removed, project) {
            (Err(error), _) => {
                tracing::warn!(path = %path.display(), %error, "this directory cannot be removed");
            }
            (Ok(()), Some((quotas, project))) => quotas.release(project),
            (Ok(()), None) => {}
        }
    }
}
