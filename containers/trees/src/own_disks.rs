//! Disks of their own for active snapshots: each a process of the agent with a directory of what was written.
//!
//! ```text
//!   PLACE/              0700, one for each disk
//!     disk-name         the name of the disk at the agent
//!     disk              an empty file, over which the agent mounts the disk
//!     mountpoint/       the directory on which its file system is mounted, unless it is handed out as a device
//!     writable/         what was written
//!     sealing/          a clone of that, while it is sealed although the disk is used
//! ```
//!
//! A disk that is handed out as a device has a loop device that stays until the disk is closed. Its number is found by
//! the path of the file below it.

use crate::tree_disks::{AttachOutcome, DISK_NAME, DiskOrder, TreeDisks, disk_name, new_disk_name};
use crate::tree_name::TreeName;
use headstart_block::{Error, ErrorKind, Result, private};
use headstart_export::loop_device::{devices_at, make_device, remove_devices, sync_devices};
use headstart_export::loop_mount::{
    FrozenFiles, check_ext4, is_mounted, is_served, mount_writable, mounts_of, unmount_disk, unmount_unused,
};
use headstart_image::store::ImageStore;
use headstart_lsmt::LayerMeta;
use headstart_lsmt::writable::WritableDisk;
use headstart_snapshotter::DiskAccess;
use headstart_snapshotter::remote::{DiskClosing, WRITTEN_DIRECTORY};
use headstart_store::Reference;
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
/// The directory that has what was written, at one moment, while that is sealed.
const CLONE: &str = "sealing";
/// The time between two looks at devices that are to go, and the number of looks.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: usize = 50;
/// The directory on which it is mounted.
const MOUNTPOINT: &str = "mountpoint";

/// Opens the disk in `place` over `below`, unless it is open, and returns the directory or the device.
///
/// # Errors
/// Errors of the agent and of mounting.
pub(crate) fn open(
    disks: &dyn TreeDisks,
    below: &TreeName,
    place: &Path,
    access: DiskAccess,
) -> Result<PathBuf> {
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    if access == DiskAccess::Directory && is_mounted(&files)? {
        if is_served(&disk, &files) {
            return Ok(files);
        }
        tracing::warn!(directory = %files.display(), "the files of a snapshot are mounted anew: they failed");
        unmount_disk(&files)?;
    }
    let made = make_places(place);
    made.map_err(|error| Error::io("cannot make the places of a disk", error).about(place.display()))?;
    let name = disk_name(place, "")?;
    let writable = place.join(WRITTEN_DIRECTORY);
    let order =
        DiskOrder { tree: below, image: &below.image.to_string(), file: &disk, writable: Some(&writable) };
    let attached = disks.attach(&name, &order)?;
    let opened = match access {
        DiskAccess::Directory => mount_writable(&disk, &files).map(|()| files),
        DiskAccess::Device => check_ext4(&disk).and_then(|()| make_device(&disk)),
    };
    opened.inspect_err(|_| {
        // The next call attaches the disk anew: this one is of no use.
        if attached == AttachOutcome::New
            && let Err(error) = disks.detach(&name)
        {
            tracing::warn!(%error, "a disk without use stays attached");
        }
    })
}

/// Takes the disk in `place` from its users and ends it. One that is not open is no error.
///
/// # Errors
/// [`ErrorKind::Conflict`] if it is used and was to be closed only unused; errors of the agent and of the disk.
pub(crate) fn close(disks: &dyn TreeDisks, place: &Path, closing: DiskClosing) -> Result<()> {
    if !place.join(DISK_NAME).exists() {
        return Ok(());
    }
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    match closing {
        DiskClosing::IfUnused => {
            let used = || Error::new(ErrorKind::Conflict, "the disk is still used").about(place.display());
            if !mounted_elsewhere(&disk, &files)?.is_empty() || !unmount_unused(&files)? {
                return Err(used());
            }
            sync_devices(&disk)?;
            remove_devices(&disk)?;
            if !are_gone(&disk)? {
                return Err(used());
            }
        }
        DiskClosing::Anyway => {
            while unmount_disk(&files)? {}
            remove_devices(&disk)?;
        }
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

/// The directories, other than its own, `files`, on which the file system of a disk is mounted.
fn mounted_elsewhere(disk: &Path, files: &Path) -> Result<Vec<PathBuf>> {
    let mut mounts = Vec::new();
    for device in devices_at(disk)? {
        mounts.extend(mounts_of(&device)?.into_iter().filter(|at| at != files));
    }
    Ok(mounts)
}

/// Waits a moment until the devices over the file of a disk are gone. `false` if a program, such as a virtual machine,
/// has one open.
#[expect(clippy::disallowed_methods, reason = "the kernel sends no event that would be worth its code")]
fn are_gone(disk: &Path) -> Result<bool> {
    for _ in 0..LOOKS {
        if devices_at(disk)?.is_empty() {
            return Ok(true);
        }
        thread::sleep(LOOK);
    }
    Ok(false)
}

/// Writes all changes of the disk in `place`, which is used, into the file `layer`: those that its file system holds at
/// one moment, at which its users wait. For a disk that only a virtual machine has mounted, that machine has to sync.
///
/// # Errors
/// Errors of the disk and of the files.
pub(crate) fn seal_open(disks: &dyn TreeDisks, place: &Path, layer: &Path) -> Result<()> {
    let (disk, files, clone) = (place.join(DISK), place.join(MOUNTPOINT), place.join(CLONE));
    remove_clone(&clone)?;
    let elsewhere = mounted_elsewhere(&disk, &files)?;
    let at = if is_mounted(&files)? { Some(&files) } else { elsewhere.first() };
    let frozen = at.map(|at| FrozenFiles::freeze(at)).transpose()?;
    let cloned =
        sync_devices(&disk).and_then(|()| disks.clone_written(&place.join(WRITTEN_DIRECTORY), &clone));
    drop(frozen);
    cloned.and_then(|()| seal(&clone, layer)).and_then(|()| remove_clone(&clone))
}

/// Ends what an interrupted sealing of the disk in `place` has left.
pub(crate) fn recover(place: &Path) {
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    let elsewhere = mounted_elsewhere(&disk, &files).unwrap_or_default();
    elsewhere
        .iter()
        .chain(is_mounted(&files).unwrap_or(false).then_some(&files))
        .for_each(|at| FrozenFiles::thaw(at));
    if let Err(error) = remove_clone(&place.join(CLONE)) {
        tracing::warn!(%error, "a copy of what was written to a disk stays");
    }
}

fn remove_clone(clone: &Path) -> Result<()> {
    match fs::remove_dir_all(clone) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("cannot be removed", error).about(clone.display()))
        }
        _ => Ok(()),
    }
}

/// Writes all changes in the directory `written` of a disk that is closed into the file `layer`.
///
/// # Errors
/// Errors of the files.
pub(crate) fn seal(written: &Path, layer: &Path) -> Result<()> {
    let failed = |error| Error::io("cannot be written", error).about(layer.display());
    let disk = WritableDisk::open_alone(written)?;
    let new = layer.with_extension("new");
    let file = private::options().write(true).create(true).truncate(true).open(&new).map_err(failed)?;
    let meta = LayerMeta { uuid: Uuid::new_v4(), ..LayerMeta::default() };
    let (file, _) = disk.commit(file, meta).map_err(|error| error.about(layer.display()))?;
    file.sync_all().map_err(failed)?;
    fs::rename(&new, layer).map_err(failed)?;
    sync_directory(layer.parent().unwrap_or(layer)).map_err(failed)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
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
        sync_directory(place)?;
    }
    match OpenOptions::new().write(true).create_new(true).open(place.join(DISK)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
