//! Freezing what this host has mounted from a disk, for the moment of a commit.
//!
//! A file system in use holds much that it has not written yet. One that this host has mounted from the disk's file or
//! device is frozen while the disk's changes are set aside. Of others, such as those of a virtual machine, this process
//! knows nothing.
//!
//! A file named `freezing` in the writable directory says that something may be frozen. If the process is killed just
//! then, the next one finds it, and ends the freezing: programs would wait for ever.

use headstart_block::guarded::{GuardedDir, Like};
use headstart_block::{Error, Result, private};
use headstart_export::loop_mount::FrozenDisk;
use headstart_image::served_disk::CommitMoment;
use std::path::{Path, PathBuf};

/// The name of the file.
const FREEZING: &str = "freezing";

/// The ways by which this host may have mounted a disk.
#[derive(Debug, Default)]
pub(crate) struct Freezer {
    /// The writable directory.
    dir: PathBuf,
    /// The disk's file or block devices.
    disks: Vec<PathBuf>,
}

/// File systems that are frozen until this is dropped.
pub(crate) struct Frozen<'a> {
    disks: Vec<FrozenDisk>,
    freezer: &'a Freezer,
    pub(crate) moment: CommitMoment,
}

impl Freezer {
    /// Ends what a process that was killed has left frozen.
    pub(crate) fn new(dir: &Path, disks: Vec<PathBuf>) -> Self {
        let freezer = Self { dir: dir.to_owned(), disks };
        if let Err(error) = freezer.recover() {
            tracing::warn!(%error, "what a killed process has frozen may still wait: end it by `fsfreeze --unfreeze`");
        }
        freezer
    }

    fn recover(&self) -> Result<()> {
        let open = GuardedDir::open(&self.dir);
        let dir = open.map_err(|error| Error::io("cannot be opened", error).about(self.dir.display()))?;
        if dir.names().is_ok_and(|names| names.iter().any(|name| name == FREEZING)) {
            self.disks.iter().try_for_each(|disk| FrozenDisk::thaw(disk))?;
            self.done();
        }
        Ok(())
    }

    /// Freezes what is mounted. An error is a part of the answer: the commit is as good as one of a virtual machine.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        let mut frozen = Frozen { disks: Vec::new(), freezer: self, moment: CommitMoment::default() };
        if self.disks.is_empty() {
            return frozen;
        }
        match self.freeze_all() {
            Ok(disks) if disks.iter().all(FrozenDisk::is_empty) => {}
            Ok(disks) => (frozen.disks, frozen.moment) = (disks, CommitMoment::Frozen),
            Err(error) => {
                tracing::warn!(%error, "a disk is committed without freezing what is mounted from it");
                frozen.moment = CommitMoment::InUse { error: Some(error.to_string()) };
            }
        }
        frozen
    }

    fn freeze_all(&self) -> Result<Vec<FrozenDisk>> {
        let failed = |error| Error::io("cannot be written to", error).about(self.dir.display());
        let dir = GuardedDir::open(&self.dir).map_err(failed)?;
        dir.recreate_file(FREEZING, Like::own(private::FILE_MODE)).map_err(failed)?;
        self.disks.iter().map(|disk| FrozenDisk::freeze(disk)).collect()
    }

    /// Notes that nothing is frozen.
    fn done(&self) {
        let removed = GuardedDir::open(&self.dir).and_then(|dir| dir.remove_file(FREEZING));
        if let Err(error) = removed.as_ref()
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "a file stays in {}", self.dir.display());
        }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.disks.clear();
        if !self.freezer.disks.is_empty() {
            self.freezer.done();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_export::loop_mount::{mount_writable, unmount_disk};
    use headstart_testkit::process::{installed, is_root};
    use std::fs;
    use std::path::Path;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    /// A time in which a write that waits for nothing is done.
    const MOMENT: Duration = Duration::from_millis(300);

    #[test]
    fn what_a_killed_process_left_frozen_goes_on_with_the_next() {
        if !is_root() || !installed(&["mkfs.ext4"]) || !Path::new("/dev/loop-control").exists() {
            return;
        }
        let scene = tempfile::tempdir().unwrap();
        let scene = scene.path().canonicalize().unwrap();
        let [disk, dir, at] = ["disk", "dir", "at"].map(|name| scene.join(name));
        fs::File::create(&disk).unwrap().set_len(32 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).status().unwrap();
        assert!(made.success());
        fs::create_dir(&dir).unwrap();
        let freezer = Freezer::new(&dir, vec![disk.clone()]);
        let not_mounted = freezer.freeze();
        assert_eq!(not_mounted.moment, CommitMoment::InUse { error: None });
        drop(not_mounted);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::create_dir(&at).unwrap();
        mount_writable(&disk, &at).unwrap();
        let late = at.join("late");
        let ends: [&dyn Fn(Frozen<'_>); 2] = [&|frozen| drop(frozen), &|frozen| {
            std::mem::forget(frozen);
            drop(Freezer::new(&dir, vec![disk.clone()]));
        }];
        for end in ends {
            let frozen = freezer.freeze();
            assert_eq!(frozen.moment, CommitMoment::Frozen);
            let late = late.clone();
            let writing = thread::spawn(move || fs::write(late, "late").unwrap());
            thread::park_timeout(MOMENT);
            assert!(!writing.is_finished());
            end(frozen);
            writing.join().unwrap();
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "no note stays");
        }
        assert!(unmount_disk(&at).unwrap());
    }
}
