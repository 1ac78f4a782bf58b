//! Disks in plain files, whose file systems the kernel has mounted.

use super::*;
use crate::tree_disks::AttachedTree;
use headstart_export::loop_mount::mount_writable;
use headstart_lsmt::writable::NewDisk;
use headstart_snapshotter::record::RemoteLayer;
use headstart_snapshotter::remote::LayeredDisk;
use headstart_testkit::process::{installed, is_root};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

const SIZE: u64 = 32 << 20;

/// Disks that no process serves: the file is the disk. Cloning is refused so many times first.
struct PlainFiles(AtomicUsize);

impl TreeDisks for PlainFiles {
    fn attach(&self, _name: &str, _order: &DiskOrder<'_>) -> Result<AttachedTree> {
        Ok(AttachedTree { outcome: AttachOutcome::Existing, device: None })
    }

    fn detach(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    fn tell_start(&self, _starts: &Path, _entrypoint: &str) -> Result<bool> {
        Err(Error::unsupported("has no processes"))
    }

    fn clone_written(&self, written: &Path, to: &Path) -> Result<()> {
        let disk = written.with_file_name(DISK);
        assert!(freeze_here(&disk).is_err(), "it is frozen already");
        if self.0.load(Ordering::SeqCst) == 0 {
            return WritableDisk::open_alone(written)?.clone_to(to, Uuid::new_v4()).map(|_| ());
        }
        self.0.fetch_sub(1, Ordering::SeqCst);
        fs::create_dir(to).unwrap();
        Err(Error::new(ErrorKind::Conflict, "another garbage collection or commit is going on"))
    }
}

fn freeze_here(disk: &Path) -> Result<Option<FrozenDisk>> {
    MountedDisk::find(disk)?.freeze().frozen_here()
}

/// The place of a disk that is mounted, and the file of its layer. `None` if this is not root.
fn mounted() -> Option<(TempDir, PathBuf, PathBuf)> {
    if !is_root() || !installed(&["mkfs.ext4"]) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap().join("block");
    make_places(&place).unwrap();
    let disk = place.join(DISK);
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let mut command = Command::new("mkfs.ext4");
    assert!(command.args(["-q", "-F", "-O", "^has_journal"]).arg(&disk).status().unwrap().success());
    let new = NewDisk { size: SIZE, parent: String::new(), uuid: Uuid::new_v4() };
    drop(WritableDisk::create(place.join(WRITTEN_DIRECTORY), None, &new).unwrap());
    mount_writable(&disk, &place.join(MOUNTPOINT)).unwrap();
    let layer = dir.path().join("layer");
    Some((dir, place, layer))
}

#[test]
fn a_disk_whose_mounts_are_elsewhere_is_frozen_and_sealed_once_it_can_be_cloned() {
    let Some((_dir, place, layer)) = mounted() else { return };
    let (files, state) = (place.join(MOUNTPOINT), SealedState::Open(DiskAccess::Directory));
    let held = File::create(files.join("held")).unwrap();
    unmount_disk(&files).unwrap();
    let disks = PlainFiles(AtomicUsize::new(2));
    let used = close(&disks, &place, DiskClosing::IfUnusedNow).unwrap_err();
    assert_eq!(used.kind(), ErrorKind::Conflict);
    seal(&disks, &place, &layer, state).unwrap();
    assert!(layer.is_file() && !place.join(SEALING).exists());
    assert!(is_mounted(&files).unwrap());
    drop(held);
    // Its directory is given back.
    close(&disks, &place, DiskClosing::IfUnused).unwrap();
    let lost = seal(&disks, &place, &layer, state).unwrap_err();
    assert!(lost.kind() == ErrorKind::Conflict && lost.to_string().contains("commit it then"), "{lost}");
    assert!(!place.join(SEALING).exists());
}

#[test]
fn what_an_interrupted_sealing_has_left_is_ended_and_a_failed_one_leaves_nothing() {
    let Some((_dir, place, layer)) = mounted() else { return };
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    let forget = || std::mem::forget(freeze_here(&disk).unwrap().unwrap());
    forget();
    // Nothing was begun here: another program has frozen it.
    recover(&place).unwrap();
    assert!(freeze_here(&disk).is_err());
    fs::create_dir_all(place.join(SEALING).join(CLONE)).unwrap();
    recover(&place).unwrap();
    assert!(!place.join(SEALING).exists());
    drop(freeze_here(&disk).unwrap());

    let disks = PlainFiles(AtomicUsize::new(0));
    let state = SealedState::Open(DiskAccess::Directory);
    fs::create_dir(&layer).unwrap();
    seal(&disks, &place, &layer, state).unwrap_err();
    assert!(!place.join(SEALING).exists() && is_mounted(&files).unwrap());
    fs::remove_dir(&layer).unwrap();
    forget();
    fs::create_dir(place.join(SEALING)).unwrap();
    seal(&disks, &place, &layer, state).unwrap();
    close(&disks, &place, DiskClosing::Anyway).unwrap();
    assert!(!is_mounted(&files).unwrap());
}

/// The order of a disk in `place` with a limit.
fn limited(place: &Path, access: DiskAccess, most: u64) -> (TreeName, OwnDisk) {
    let image = format!("oci://h/app@{}#all", headstart_block::Digest::of(b"x"));
    let below = LayeredDisk::of(RemoteLayer(image.clone()));
    (image.parse().unwrap(), OwnDisk { below, place: place.to_owned(), access, most: Some(most) })
}

/// The clusters that the file system of a disk keeps free.
fn reserved(disk: &Path) -> u64 {
    let device = devices_at(disk).unwrap().remove(0);
    let knob = Path::new("/sys/fs/ext4").join(device.file_name().unwrap()).join("reserved_clusters");
    fs::read_to_string(knob).unwrap().trim().parse().unwrap()
}

/// A snapshotter that dies between two steps of opening a disk leaves what each round begins with.
#[test]
fn a_limit_is_set_whichever_step_of_opening_the_disk_was_the_last() {
    let Some((_dir, place, _)) = mounted() else { return };
    let (disk, files) = (place.join(DISK), place.join(MOUNTPOINT));
    let disks = PlainFiles(AtomicUsize::new(0));
    let (tree, own) = limited(&place, DiskAccess::Directory, 4 << 20);
    for step in ["mounted", "with a note of the limit", "limited", "not mounted"] {
        if step == "not mounted" {
            unmount_disk(&files).unwrap();
        }
        // The kernel alone has it: it is the first thing that is lost.
        if !devices_at(&disk).unwrap().is_empty() && step != "limited" {
            let device = devices_at(&disk).unwrap().remove(0);
            let knob = Path::new("/sys/fs/ext4").join(device.file_name().unwrap());
            fs::write(knob.join("reserved_clusters"), "0").unwrap();
        }
        assert_eq!(open(&disks, &tree, &own).unwrap(), files, "{step}");
        assert!(reserved(&disk) > 0, "{step}");
        let full = fs::write(files.join("big"), vec![7; 8 << 20]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{step}");
        fs::remove_file(files.join("big")).unwrap();
    }
    close(&disks, &place, DiskClosing::Anyway).unwrap();
}

#[test]
fn a_disk_whose_limit_cannot_be_set_is_not_left_mounted() {
    let Some((_dir, place, _)) = mounted() else { return };
    let files = place.join(MOUNTPOINT);
    unmount_disk(&files).unwrap();
    let disks = PlainFiles(AtomicUsize::new(0));
    let (tree, own) = limited(&place, DiskAccess::Directory, 4 << 20);
    // The note cannot be written.
    fs::create_dir_all(place.join("reserved.new")).unwrap();
    let error = open(&disks, &tree, &own).unwrap_err();
    assert!(error.to_string().contains("cannot limit the space"), "{error}");
    assert!(!is_mounted(&files).unwrap());
    fs::remove_dir(place.join("reserved.new")).unwrap();
    open(&disks, &tree, &own).unwrap();
    assert!(reserved(&place.join(DISK)) > 0);
    close(&disks, &place, DiskClosing::Anyway).unwrap();
}

/// Unmounts a directory at the end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        while unmount_disk(&self.0).unwrap_or(false) {}
    }
}

/// A file system in memory without room stands for a disk that has failed.
#[test]
fn a_device_that_cannot_be_made_durable_does_not_stay() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap().join("full");
    fs::create_dir(&root).unwrap();
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", "size=1M", "tmpfs"]).arg(&root);
    assert!(command.status().unwrap().success());
    let _mounted = Mounted(root.clone());
    let place = root.join("block");
    make_places(&place).unwrap();
    let disk = place.join(DISK);
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let (tree, own) = limited(&place, DiskAccess::Device, 4 << 20);
    let disks = PlainFiles(AtomicUsize::new(0));
    let device = open(&disks, &tree, &own).unwrap();
    let written = OpenOptions::new().write(true).open(&device).unwrap();
    // In the kernel's memory, for now.
    std::os::unix::fs::FileExt::write_all_at(&written, &vec![7; 8 << 20], 0).unwrap();
    drop(written);
    let error = close(&disks, &place, DiskClosing::IfUnused).unwrap_err();
    assert!(error.to_string().contains("cannot be made durable"), "{error}");
    assert!(are_gone(&disk, LOOKS).unwrap(), "{:?}", devices_at(&disk));
}
