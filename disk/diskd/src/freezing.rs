//! Freezing what this host has mounted from a disk, for the moment of a commit.
//!
//! A file system in use holds much that it has not written yet. One that this host has mounted from the disk's file or
//! device is frozen while the disk's changes are set aside. Of others, such as those of a virtual machine, this process
//! knows nothing.
//!
//! While something is frozen, a file named `freezing` in the writable directory has the paths of the block devices, one
//! a line. If the process is killed just then, the next one finds it, and ends the freezing: programs would wait for
//! ever. The disk's own file does not lead there: it is another one with each process, and the kernel does not know the
//! path of an earlier one any more.

use headstart_block::guarded::{FileAccess, GuardedDir, Like, is_trusted};
use headstart_block::{Error, Result, private};
use headstart_export::loop_mount::{FrozenDisk, MountedDisk};
use headstart_image::served_disk::CommitMoment;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes: thousands of devices.
const NOTE_MAX: u64 = 64 << 10;

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
        let remedy = "what a killed process has frozen may still wait: end it by `fsfreeze --unfreeze`";
        match freezer.recover() {
            Ok(Recovery::Nothing | Recovery::Thawed) => {}
            Ok(Recovery::NotFound) => tracing::warn!("{}: {remedy}", dir.display()),
            Err(error) => tracing::warn!(%error, "{remedy}"),
        }
        freezer
    }

    fn recover(&self) -> Result<Recovery> {
        let open = GuardedDir::open(&self.dir);
        let dir = open.map_err(|error| Error::io("cannot be opened", error).about(self.dir.display()))?;
        let Some(devices) = noted_devices(&dir)? else { return Ok(Recovery::Nothing) };
        let thawed = FrozenDisk::thaw(devices)?;
        self.done();
        Ok(if thawed > 0 { Recovery::Thawed } else { Recovery::NotFound })
    }

    /// Freezes what is mounted. An error is a part of the answer: the commit is as good as one of a virtual machine.
    pub(crate) fn freeze(&self) -> Frozen<'_> {
        let mut frozen = Frozen { disks: Vec::new(), freezer: self, moment: CommitMoment::default() };
        let errors: Vec<String> = match self.freeze_all() {
            Ok(disks) => {
                frozen.disks = disks;
                frozen.disks.iter().flat_map(FrozenDisk::not_frozen).map(Error::to_string).collect()
            }
            Err(error) => vec![error.to_string()],
        };
        if !errors.is_empty() {
            let error = errors.join(", ");
            tracing::warn!(%error, "a disk is committed without freezing all that is mounted from it");
            frozen.moment = CommitMoment::InUse { error: Some(error) };
        } else if !frozen.disks.is_empty() {
            frozen.moment = CommitMoment::Frozen;
        }
        frozen
    }

    /// Freezes what is mounted; nothing if that cannot be noted.
    fn freeze_all(&self) -> Result<Vec<FrozenDisk>> {
        let found: Result<Vec<_>> = self.disks.iter().map(|disk| MountedDisk::find(disk)).collect();
        let mut found = found?;
        found.retain(|disk| disk.devices().next().is_some());
        if !found.is_empty() {
            let failed = |error| Error::io("cannot be written to", error).about(self.dir.display());
            self.note(found.iter().flat_map(MountedDisk::devices)).map_err(failed)?;
        }
        Ok(found.into_iter().map(MountedDisk::freeze).collect())
    }

    /// Notes the devices whose file systems are frozen from now on.
    fn note<'a>(&self, devices: impl Iterator<Item = &'a Path>) -> std::io::Result<()> {
        let mut note = Vec::new();
        for device in devices {
            note.extend_from_slice(device.as_os_str().as_bytes());
            note.push(b'\n');
        }
        let dir = GuardedDir::open(&self.dir)?;
        dir.recreate_file(FREEZING, Like::own(private::FILE_MODE))?.write_all(&note)
    }

    /// Notes that nothing is frozen.
    fn done(&self) {
        let removed = GuardedDir::open(&self.dir).and_then(|dir| dir.remove_file(FREEZING));
        if let Err(error) = removed.as_ref()
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "a file stays in {}", self.dir.display());
        }
    }
}

/// The end of what a killed process may have left.
#[derive(Debug, PartialEq, Eq)]
enum Recovery {
    /// There is no note of it.
    Nothing,
    /// Something was thawed.
    Thawed,
    /// Something was noted, and none of it was found frozen.
    NotFound,
}

/// The devices that are noted as frozen; `None` if there is no note. None are taken from a note that another user may
/// have written.
fn noted_devices(dir: &GuardedDir) -> Result<Option<Vec<PathBuf>>> {
    let failed = |error| Error::io("cannot be read", error).about(dir.path().join(FREEZING).display());
    let file = match dir.open_file(FREEZING, FileAccess::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut note = Vec::new();
    if is_trusted(&file.metadata().map_err(failed)?) {
        file.take(NOTE_MAX).read_to_end(&mut note).map_err(failed)?;
    }
    let lines = note.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"/dev/"));
    Ok(Some(lines.map(|line| OsString::from_vec(line.to_vec()).into()).collect()))
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !self.disks.is_empty() {
            self.disks.clear();
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
        if !is_root() || !installed(&["mkfs.ext4", "fsfreeze"]) || !Path::new("/dev/loop-control").exists() {
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
        let other = scene.join("other");
        let ends: [&dyn Fn(Frozen<'_>); 2] = [&|frozen| drop(frozen), &|frozen| {
            std::mem::forget(frozen);
            // The file of the next process is another one, and the earlier one has no path any more.
            fs::rename(&disk, &other).unwrap();
            fs::File::create(&disk).unwrap();
            let next = Freezer { dir: dir.clone(), disks: vec![disk.clone()] };
            assert_eq!(next.recover().unwrap(), Recovery::Thawed);
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
        // A note of what is frozen no more, or that another user has written, ends nothing, and that is said.
        let device = fs::read_to_string("/proc/self/mounts").unwrap();
        let device = device.lines().find(|line| line.contains(at.to_str().unwrap())).unwrap();
        let device = device.split(' ').next().unwrap();
        let next = Freezer { dir: dir.clone(), disks: Vec::new() };
        assert_eq!(next.recover().unwrap(), Recovery::Nothing);
        next.note([Path::new(device), Path::new("/dev/loop-gone")].into_iter()).unwrap();
        assert_eq!(next.recover().unwrap(), Recovery::NotFound);
        let frozen = Command::new("fsfreeze").arg("--freeze").arg(&at).status().unwrap();
        assert!(frozen.success());
        next.note([Path::new(device)].into_iter()).unwrap();
        std::os::unix::fs::chown(dir.join(FREEZING), Some(1), None).unwrap();
        assert_eq!(next.recover().unwrap(), Recovery::NotFound);
        next.note([Path::new(device)].into_iter()).unwrap();
        assert_eq!(next.recover().unwrap(), Recovery::Thawed);
        assert!(unmount_disk(&at).unwrap());
    }
}
