//! Disks in plain files, whose file systems the kernel has mounted.

use super::*;
use crate::tree_disks::AttachedTree;
use headstart_export::loop_mount::mount_writable;
use headstart_lsmt::writable::NewDisk;
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
        assert!(FrozenFiles::freeze(&disk).is_err(), "it is frozen already");
        if self.0.load(Ordering::SeqCst) == 0 {
            return WritableDisk::open_alone(written)?.clone_to(to, Uuid::new_v4()).map(|_| ());
        }
        self.0.fetch_sub(1, Ordering::SeqCst);
        fs::create_dir(to).unwrap();
        Err(Error::new(ErrorKind::Conflict, "another garbage collection or commit is going on"))
    }
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
    let forget = || std::mem::forget(FrozenFiles::freeze(&disk).unwrap().unwrap());
    forget();
    // Nothing was begun here: another program has frozen it.
    recover(&place).unwrap();
    assert!(FrozenFiles::freeze(&disk).is_err());
    fs::create_dir_all(place.join(SEALING).join(CLONE)).unwrap();
    recover(&place).unwrap();
    assert!(!place.join(SEALING).exists());
    drop(FrozenFiles::freeze(&disk).unwrap());

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
