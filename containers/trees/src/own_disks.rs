//! Disks of their own for active snapshots: each a process of the agent with a directory of what was written.
//!
//! ```text
//!   PLACE/              0700, one for each disk
//!     disk-name         the name of the disk at the agent
//!     starts.sock       the socket at which its process is told of the container
//!     disk              an empty file, over which the agent mounts the disk
//!     mountpoint/       the directory on which its file system is mounted, unless it is handed out as a device
//!     writable/         what was written
//!     reserved          the number of clusters that its file system keeps free, if its space is limited
//!     sealing/          there while it is sealed, and before the file system of a disk that is used is frozen
//!       written/        a clone of what was written, if the disk is used
//!       layer           the sealed layer until it is whole
//! ```
//!
//! A disk that is handed out as a device has a loop device that stays until the disk is closed. Its number is found by
//! the path of the file below it.
//!
//! # Death at any step
//!
//! [`open`] makes the places, attaches, mounts, notes the limit, sets it, and is only then done: a call that finds some
//! of that done does the rest, and the limit is set by every call, since the kernel alone has it. So a snapshotter that
//! dies between two of these steps leaves a disk that the next one completes before it hands it out.

use crate::tree_disks::{
    AttachOutcome, DISK_NAME, DiskOrder, STARTS_SOCKET, TreeDisks, disk_name, new_disk_name,
};
use crate::tree_name::TreeName;
use headstart_block::{Error, ErrorKind, Result, private, sync_dir, sync_dir_of};
use headstart_export::loop_device::{devices_at, make_device, remove_devices, sync_devices};
use headstart_export::loop_mount::{
    FrozenDisk, MountedDisk, check_writable_ext4, is_mounted, is_served, mount_again, mount_writable,
    mounts_of, unmount_disk, unmount_unused,
};
use headstart_image::store::ImageStore;
use headstart_lsmt::LayerMeta;
use headstart_lsmt::writable::WritableDisk;
use headstart_snapshotter::DiskAccess;
use headstart_snapshotter::remote::{DiskClosing, OwnDisk, SealedState, WRITTEN_DIRECTORY};
use headstart_store::Reference;
use rustix::fs::statvfs;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use uuid::Uuid;

/// The beginning of the names of the agent's disks that belong to snapshots.
const DISK_PREFIX: &str = "snapshot-";
/// The file of a disk.
const DISK: &str = "disk";
/// The directory that is there while a disk is sealed.
const SEALING: &str = "sealing";
/// The directory in it that has what was written, at one moment, and the file of a layer that is being written.
const CLONE: &str = "written";
const NEW_LAYER: &str = "layer";
/// The time between two looks at devices that are to go, and the number of looks.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: usize = 50;
/// The time between two attempts to clone what was written, and the number of attempts: the disk may be reclaiming
/// space for a moment.
const CLONE_PAUSE: Duration = Duration::from_millis(200);
const CLONE_ATTEMPTS: usize = 25;
/// The file with the number of clusters that its file system keeps free.
const RESERVED: &str = "reserved";
/// The directory on which it is mounted.
const MOUNTPOINT: &str = "mountpoint";

/// Opens the disk in `place` over `below`, unless it is open, and returns the directory or the device.
///
/// # Errors
/// Errors of the agent and of mounting.
pub(crate) fn open(disks: &dyn TreeDisks, below: &TreeName, own: &OwnDisk) -> Result<PathBuf> {
    let (place, access) = (&*own.place, own.access);
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    recover(place)?;
    if access == DiskAccess::Directory && is_mounted(&files)? {
        if is_served(&disk, &files)? {
            // The process that mounted it may have died before it had set the limit.
            hold_limit(own)?;
            return Ok(files);
        }
        tracing::warn!(directory = %files.display(), "the files of a snapshot are mounted anew: they failed");
        unmount_disk(&files)?;
    }
    let made = make_places(place);
    made.map_err(|error| Error::io("cannot make the places of a disk", error).about(place.display()))?;
    let name = disk_name(place, "")?;
    let writable = place.join(WRITTEN_DIRECTORY);
    // A mounted file system keeps the limit itself, and says before it writes that there is no space.
    let most = own.most.filter(|_| access == DiskAccess::Device);
    let order = DiskOrder {
        tree: below,
        image: &below.image.to_string(),
        file: &disk,
        writable: Some(&writable),
        most,
        starts: &place.join(STARTS_SOCKET),
        entrypoint: "",
    };
    let attached = disks.attach(&name, &order)?;
    let opened = match access {
        DiskAccess::Directory => {
            mount_writable(&disk, &files).and_then(|()| hold_limit(own)).map(|()| files.clone())
        }
        DiskAccess::Device => check_writable_ext4(&disk).and_then(|()| make_device(&disk)),
    };
    opened.inspect_err(|_| {
        // The next call repeats all of it. A mount without its limit must not be found then, and one without its disk
        // would fail its users.
        let undone = unmount_disk(&files).and_then(|_| match attached.outcome {
            AttachOutcome::New => disks.detach(&name),
            AttachOutcome::Existing => Ok(()),
        });
        if let Err(error) = undone {
            tracing::warn!(%error, "a disk without use stays attached");
        }
    })
}

/// Holds the limit of a disk that is mounted, if it has one.
fn hold_limit(own: &OwnDisk) -> Result<()> {
    own.most.map_or(Ok(()), |most| limit(&own.place, most))
}

/// Keeps the file system of the disk in `place`, which is mounted, from taking more than `most` bytes beyond what it
/// had when it was mounted first: the other free clusters are reserved, in the kernel alone, for no use.
fn limit(place: &Path, most: u64) -> Result<()> {
    let (disk, files, noted) = (place.join(DISK), place.join(MOUNTPOINT), place.join(RESERVED));
    let failed =
        |path: &Path, error| Error::io("cannot limit the space of a disk", error).about(path.display());
    let reserved = match fs::read_to_string(&noted).map(|text| text.trim().parse()) {
        Ok(Ok(clusters)) => clusters,
        _ => {
            let space = statvfs(&files).map_err(|error| failed(&files, error.into()))?;
            let clusters = space.f_bfree.saturating_sub(most.div_ceil(space.f_frsize.max(1)));
            let new = place.join("reserved.new");
            let written = fs::write(&new, clusters.to_string()).and_then(|()| File::open(&new)?.sync_all());
            written.and_then(|()| fs::rename(&new, &noted)).map_err(|error| failed(&noted, error))?;
            clusters
        }
    };
    for device in devices_at(&disk)? {
        let name = device.file_name().unwrap_or_default();
        let knob = Path::new("/sys/fs/ext4").join(name).join("reserved_clusters");
        fs::write(&knob, reserved.to_string()).map_err(|error| failed(&knob, error))?;
    }
    Ok(())
}

/// The directory or the device that the disk in `place` is handed out as. `None` if it is not open.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn handed_out(place: &Path, access: DiskAccess) -> Result<Option<PathBuf>> {
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    match access {
        DiskAccess::Directory => Ok(is_mounted(&files)?.then_some(files)),
        DiskAccess::Device => Ok(devices_at(&disk)?.into_iter().next()),
    }
}

/// Takes the disk in `place` from its users and ends it. One that is not open is no error.
///
/// # Errors
/// [`ErrorKind::Conflict`] if it is used and was to be closed only unused; errors of the agent and of the disk.
pub(crate) fn close(disks: &dyn TreeDisks, place: &Path, closing: DiskClosing) -> Result<()> {
    if !place.join(DISK_NAME).exists() {
        return Ok(());
    }
    recover(place)?;
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    let looks = match closing {
        DiskClosing::IfUnused => Some(LOOKS),
        DiskClosing::IfUnusedNow => Some(1),
        DiskClosing::Anyway => None,
    };
    if let Some(looks) = looks {
        let used = || Error::new(ErrorKind::Conflict, "the disk is still used").about(place.display());
        if is_mounted_elsewhere(&disk, &files)? || !unmount_unused(&files)? {
            return Err(used());
        }
        let synced = sync_devices(&disk);
        // A device whose disk has failed would keep every later call from this disk.
        remove_devices(&disk)?;
        synced?;
        if !are_gone(&disk, looks)? {
            return Err(used());
        }
    } else {
        while unmount_disk(&files)? {}
        remove_devices(&disk)?;
    }
    disks.detach(&disk_name(place, "")?)?;
    release_lease(&place.join(WRITTEN_DIRECTORY));
    Ok(())
}

/// Gives up the lease by which the directory of a closed disk keeps its image, if that is in a directory of this host:
/// such as the empty disk, which would get one more with each container. A disk that is opened again gets a new one.
fn release_lease(written: &Path) {
    let Ok(info) = WritableDisk::inspect(written) else { return };
    let Some(Ok(image)) = info.reference.as_deref().map(str::parse::<Reference>) else { return };
    if let Ok(directory) = image.directory()
        && let Ok(store) = ImageStore::open(directory)
        && let Err(error) = store.release_directory(info.uuid, written)
    {
        tracing::warn!(%error, "the lease of a disk that is closed stays");
    }
}

/// `true` if the file system of a disk is mounted on other directories than its own, `files`.
fn is_mounted_elsewhere(disk: &Path, files: &Path) -> Result<bool> {
    for device in devices_at(disk)? {
        if mounts_of(&device)?.iter().any(|at| at != files) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks so often whether the devices over the file of a disk are gone, for a moment. `false` if a program, such as a
/// virtual machine, has one open.
#[expect(clippy::disallowed_methods, reason = "the kernel sends no event that would be worth its code")]
fn are_gone(disk: &Path, looks: usize) -> Result<bool> {
    for look in 0..looks {
        if look > 0 {
            thread::sleep(LOOK);
        }
        if devices_at(disk)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes all changes of the disk in `place` into the file `layer`. Those of one that is used are those that its file
/// system holds at one moment, at which its users wait. For a disk that only a virtual machine has mounted, that
/// machine has to sync.
///
/// # Errors
/// [`ErrorKind::Conflict`] if its file system cannot be frozen; errors of the disk and of the files.
pub(crate) fn seal(disks: &dyn TreeDisks, place: &Path, layer: &Path, state: SealedState) -> Result<()> {
    recover(place)?;
    let sealing = place.join(SEALING);
    private::make_directory(&sealing)
        .map_err(|error| Error::io("cannot be made", error).about(sealing.display()))?;
    let sealed = match state {
        SealedState::Closed => write_layer(&place.join(WRITTEN_DIRECTORY), &sealing, layer),
        SealedState::Open(access) => clone_frozen(disks, place, access)
            .and_then(|()| write_layer(&sealing.join(CLONE), &sealing, layer)),
    };
    let removed = remove_directory(&sealing);
    sealed.and(removed)
}

/// Clones what was written to a disk that is used.
#[expect(clippy::disallowed_methods, reason = "a disk that reclaims space sends no event when it is done")]
fn clone_frozen(disks: &dyn TreeDisks, place: &Path, access: DiskAccess) -> Result<()> {
    let (disk, clone) = (place.join(DISK), place.join(SEALING).join(CLONE));
    let mut attempts = 1;
    loop {
        let frozen = freeze(place, access)?;
        let cloned =
            sync_devices(&disk).and_then(|()| disks.clone_written(&place.join(WRITTEN_DIRECTORY), &clone));
        drop(frozen);
        let is_busy = cloned.as_ref().is_err_and(|error| error.kind() == ErrorKind::Conflict);
        if !is_busy || attempts == CLONE_ATTEMPTS {
            return cloned;
        }
        attempts += 1;
        remove_directory(&clone)?;
        // Its users go on meanwhile.
        thread::sleep(CLONE_PAUSE);
    }
}

/// Freezes the file system of a disk. One that was handed out as a device may be mounted by a virtual machine alone:
/// `None`.
fn freeze(place: &Path, access: DiskAccess) -> Result<Option<FrozenDisk>> {
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    let frozen = MountedDisk::find(&disk)?.freeze().frozen_here()?;
    if frozen.is_some() || access == DiskAccess::Device {
        return Ok(frozen);
    }
    // Its users have it in another mount namespace.
    let is_found = mount_again(&disk, &files)?;
    let again = if is_found { MountedDisk::find(&disk)?.freeze().frozen_here()? } else { None };
    let lost = || {
        Error::new(ErrorKind::Conflict, "its file system is used, and cannot be found to be frozen")
            .about(place.display())
            .remedy("end the programs that use it, and commit it then")
    };
    again.map(Some).ok_or_else(lost)
}

/// Ends what an interrupted sealing of the disk in `place` has left. Nothing else may be done with the disk meanwhile.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn recover(place: &Path) -> Result<()> {
    let sealing = place.join(SEALING);
    if !sealing.exists() {
        return Ok(());
    }
    FrozenDisk::thaw(devices_at(&place.join(DISK))?)?;
    remove_directory(&sealing)
}

fn remove_directory(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("cannot be removed", error).about(path.display()))
        }
        _ => Ok(()),
    }
}

/// Writes all changes in the directory `written`, which nothing changes, into the file `layer` by way of `sealing`.
fn write_layer(written: &Path, sealing: &Path, layer: &Path) -> Result<()> {
    let failed = |error| Error::io("cannot be written", error).about(layer.display());
    let disk = WritableDisk::open_alone(written)?;
    let new = sealing.join(NEW_LAYER);
    let file = private::options().write(true).create(true).truncate(true).open(&new).map_err(failed)?;
    let meta = LayerMeta { uuid: Uuid::new_v4(), ..LayerMeta::default() };
    let (file, _) = disk.commit(file, meta).map_err(|error| error.about(layer.display()))?;
    file.sync_all().map_err(failed)?;
    fs::rename(&new, layer).map_err(failed)?;
    sync_dir_of(layer).map_err(failed)
}

/// Makes the places of a disk that are not there. Its name is durable before the agent learns it.
fn make_places(place: &Path) -> io::Result<()> {
    private::make_directory(place)?;
    private::make_directory(&place.join(MOUNTPOINT))?;
    if !place.join(DISK_NAME).exists() {
        let new = place.join("disk-name.new");
        fs::write(&new, new_disk_name(DISK_PREFIX))?;
        File::open(&new)?.sync_all()?;
        fs::rename(&new, place.join(DISK_NAME))?;
        sync_dir(place)?;
    }
    match OpenOptions::new().write(true).create_new(true).open(place.join(DISK)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
