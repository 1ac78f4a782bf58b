use super::*;
use crate::loop_device::{
    devices_at, is_taken, make_device, remove_devices, set_unless_equal, set_up_next_device,
};
use headstart_testkit::process::{installed, is_root, skipped};
use std::io::{self, Write};
use std::process::Command;
use std::thread::JoinHandle;
use tempfile::TempDir;

/// A time in which a write that waits for nothing is done.
const MOMENT: Duration = Duration::from_millis(300);

/// A file with an empty ext4, and directories beside it. `None` if disks cannot be mounted here.
struct Scene {
    dir: TempDir,
    disk: PathBuf,
}

impl Scene {
    fn new() -> Option<Self> {
        if !is_root() || !installed(&["mkfs.ext4"]) {
            return None;
        }
        if !Path::new("/dev/loop-control").exists() {
            skipped("this kernel has no loop devices");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().canonicalize().unwrap().join("disk");
        let scene = Self { dir, disk };
        scene.format(&[]);
        Some(scene)
    }

    fn format(&self, words: &[&str]) {
        File::create(&self.disk).unwrap().set_len(32 << 20).unwrap();
        let mut command = Command::new("mkfs.ext4");
        command.args(["-q", "-F", "-O", "^has_journal"]).args(words).arg(&self.disk);
        assert!(command.status().unwrap().success(), "{words:?}");
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.dir.path().canonicalize().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        path
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = devices_at(&self.disk).and_then(FrozenDisk::thaw);
        for entry in fs::read_dir(self.dir.path()).unwrap() {
            while unmount_disk(&entry.as_ref().unwrap().path()).unwrap_or(false) {}
        }
        let _ = remove_devices(&self.disk);
    }
}

/// Writes a file in a thread of its own.
fn write_beside(at: &Path) -> JoinHandle<()> {
    let file = at.join("late");
    thread::spawn(move || fs::write(file, "late").unwrap())
}

/// The kernel makes a device wait when its longest request changes, also to what it was.
#[test]
fn the_queue_of_a_device_is_set_and_not_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("max_sectors_kb");
    for (before, after) in [("1280\n", "256"), ("256\n", "256\n"), ("2560\n", "256")] {
        fs::write(&path, before).unwrap();
        set_unless_equal(&path, 256).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), after, "{before}");
    }
    // A device that another program has taken since is left alone.
    fs::create_dir_all(dir.path().join("loop5/loop")).unwrap();
    assert!(!is_taken(dir.path(), 5));
    fs::write(dir.path().join("loop5/loop/backing_file"), "/x\n").unwrap();
    assert!(is_taken(dir.path(), 5) && !is_taken(dir.path(), 6));
    let Some(scene) = Scene::new() else { return };
    set_up_next_device();
    let at = scene.directory("at");
    mount_disk(&scene.disk, &at).unwrap();
    let devices = devices_at(&scene.disk).unwrap();
    assert_eq!(devices.len(), 1);
    let device = devices[0].file_name().unwrap();
    let queue = Path::new("/sys/block").join(device).join("queue");
    for (setting, value) in [("max_sectors_kb", "256"), ("read_ahead_kb", "1024")] {
        assert_eq!(fs::read_to_string(queue.join(setting)).unwrap().trim_end(), value, "{setting}");
    }
}

#[test]
fn a_file_system_that_is_in_use_is_not_mounted_from_a_second_device() {
    let Some(scene) = Scene::new() else { return };
    let (first, second) = (scene.directory("first"), scene.directory("second"));
    assert!(!mount_again(&scene.disk, &first).unwrap());
    mount_writable(&scene.disk, &first).unwrap();
    let mut held = File::create(first.join("held")).unwrap();
    // Its users go on where no mount of it is to be seen.
    assert!(unmount_disk(&first).unwrap());
    mount_writable(&scene.disk, &second).unwrap();
    assert_eq!(devices_at(&scene.disk).unwrap().len(), 1);
    held.write_all(b"seen by both").unwrap();
    assert_eq!(fs::read_to_string(second.join("held")).unwrap(), "seen by both");
    let device = make_device(&scene.disk).unwrap();
    assert_eq!(devices_at(&scene.disk).unwrap(), [device]);
    assert!(mount_again(&scene.disk, &first).unwrap());
    assert!(is_mounted(&first).unwrap());
}

fn freeze(disk: &Path) -> FrozenDisk {
    MountedDisk::find(disk).unwrap().freeze()
}

#[test]
fn a_frozen_file_system_is_found_at_any_path_and_a_freeze_that_was_left_is_ended() {
    let Some(scene) = Scene::new() else { return };
    let at = scene.directory("a b\\c\td");
    assert!(freeze(&scene.disk).frozen_here().unwrap().is_none());
    mount_writable(&scene.disk, &at).unwrap();
    let device = devices_at(&scene.disk).unwrap().remove(0);
    assert_eq!(mounts_of(&device).unwrap(), [at.as_path()]);
    // The file system of another device on top of it is not frozen in its place.
    let over = scene.directory("over");
    mount_again(&scene.disk, &over).unwrap();
    mount("none", &at, c"tmpfs", MountFlags::empty(), None).unwrap();
    for ends in [
        |frozen, _: &Path| drop(frozen),
        |frozen, device: &Path| {
            std::mem::forget(frozen);
            assert_eq!(FrozenDisk::thaw(vec![device.to_owned()]).unwrap(), 1);
            assert_eq!(FrozenDisk::thaw(vec![device.to_owned()]).unwrap(), 0, "it is not frozen any more");
        },
    ] {
        let frozen = freeze(&scene.disk).frozen_here().unwrap().unwrap();
        fs::write(at.join("above"), "").unwrap();
        let writing = write_beside(&over);
        thread::park_timeout(MOMENT);
        assert!(!writing.is_finished());
        ends(frozen, &device);
        writing.join().unwrap();
    }
}

#[test]
fn all_file_systems_of_a_disk_are_frozen_at_once_and_one_that_others_froze_stays_frozen() {
    let Some(scene) = Scene::new() else { return };
    assert!(freeze(&scene.disk).is_empty());
    let at = scene.directory("at");
    mount_writable(&scene.disk, &at).unwrap();
    let device = devices_at(&scene.disk).unwrap().remove(0);
    for disk in [&scene.disk, &device] {
        let frozen = freeze(disk);
        assert!(!frozen.is_empty() && frozen.not_frozen().is_empty());
        let writing = write_beside(&at);
        thread::park_timeout(MOMENT);
        assert!(!writing.is_finished());
        // The second ends without a change.
        let second = freeze(disk);
        assert!(!second.is_empty() && second.not_frozen().is_empty());
        assert_eq!(second.frozen_here().unwrap_err().kind(), ErrorKind::Conflict);
        thread::park_timeout(MOMENT);
        assert!(!writing.is_finished());
        std::mem::forget(frozen);
        assert_eq!(FrozenDisk::thaw(vec![device.clone()]).unwrap(), 1);
        writing.join().unwrap();
    }
}

/// Cloud images have a vfat for their firmware beside their own file system; EROFS cannot be frozen either.
#[test]
fn a_file_system_that_cannot_be_frozen_leaves_no_other_one_unfrozen() {
    let Some(scene) = Scene::new().filter(|_| installed(&["mkfs.erofs", "losetup"])) else { return };
    let (files, boot, at) = (scene.directory("files"), scene.directory("boot"), scene.directory("at"));
    let erofs = scene.dir.path().join("erofs");
    let made = Command::new("mkfs.erofs").arg(&erofs).arg(&files).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let end = 32 << 20;
    let file = File::options().write(true).open(&scene.disk).unwrap();
    file.write_all_at(&fs::read(&erofs).unwrap(), end).unwrap();
    // The devices are listed by their numbers: the file system that cannot be frozen is first in one round.
    for offsets in [[end, 0], [0, end]] {
        for offset in offsets {
            let mut command = Command::new("losetup");
            command.args(["--find", "--show", "--offset", &offset.to_string()]).arg(&scene.disk);
            let made = command.output().unwrap();
            let device = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
            let (place, kind) = if offset == 0 { (&at, c"ext4") } else { (&boot, c"erofs") };
            let flags = if offset == 0 { MountFlags::empty() } else { MountFlags::RDONLY };
            mount(&device, place, kind, flags, None).unwrap();
        }
        let mounted = MountedDisk::find(&scene.disk).unwrap();
        assert_eq!(mounted.mounts.len(), 2);
        let frozen = mounted.freeze();
        assert!(frozen.not_frozen().is_empty(), "nothing is written to it: {:?}", frozen.not_frozen());
        let writing = write_beside(&at);
        thread::park_timeout(MOMENT);
        assert!(!writing.is_finished());
        drop(frozen);
        writing.join().unwrap();
        // One that may be written to is named.
        let mut mounted = MountedDisk::find(&scene.disk).unwrap();
        mounted.mounts.iter_mut().for_each(|mount| mount.listed.is_read_only = false);
        let frozen = mounted.freeze();
        let errors: Vec<_> = frozen.not_frozen().iter().map(Error::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains("boot: its erofs cannot be frozen"), "{errors:?}");
        assert_eq!(frozen.frozen.len(), 1);
        drop(frozen);
        assert!(unmount_disk(&at).unwrap() && unmount_disk(&boot).unwrap());
        remove_devices(&scene.disk).unwrap();
    }
}

#[test]
fn a_disk_is_lost_when_its_file_is_another_one_and_not_by_errors_of_this_process() {
    let Some(scene) = Scene::new() else { return };
    let at = scene.directory("at");
    mount_writable(&scene.disk, &at).unwrap();
    assert!(is_served(&scene.disk, &at).unwrap());
    let other = scene.dir.path().join("other");
    fs::rename(&scene.disk, &other).unwrap();
    assert!(!is_served(&scene.disk, &at).unwrap(), "it is gone");
    File::create(&scene.disk).unwrap();
    assert!(!is_served(&scene.disk, &at).unwrap(), "it is another one");
    fs::rename(&other, &scene.disk).unwrap();
    for (error, lost) in
        [(Errno::NXIO, true), (Errno::IO, true), (Errno::NOTCONN, true), (Errno::MFILE, false)]
    {
        let answer = served_by(Err(io::Error::from(error)));
        assert_eq!(answer.ok(), lost.then_some(false), "{error}");
    }
}

#[test]
fn devices_of_other_files_are_not_removed() {
    let Some(scene) = Scene::new() else { return };
    remove_devices(&scene.disk).unwrap();
    make_device(&scene.disk).unwrap();
    let other = scene.dir.path().join("disk2");
    fs::write(&other, vec![0; 1 << 20]).unwrap();
    remove_devices(&other).unwrap();
    assert_eq!(devices_at(&scene.disk).unwrap().len(), 1);
    remove_devices(&scene.disk).unwrap();
    assert_eq!(devices_at(&scene.disk).unwrap().len(), 0);
}

#[test]
fn an_ext4_that_asks_the_kernel_for_more_is_not_mounted_for_writing() {
    let Some(scene) = Scene::new() else { return };
    check_writable_ext4(&scene.disk).unwrap();
    scene.format(&["-O", "mmp"]);
    assert_eq!(readable_kind(&scene.disk).unwrap(), c"ext4");
    let error = check_writable_ext4(&scene.disk).unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("mmp"), "{error}");
    scene.format(&[]);
    let file = File::options().write(true).open(&scene.disk).unwrap();
    file.write_all_at(b"data=writeback", SUPERBLOCK_AT + EXT4_OPTIONS as u64).unwrap();
    assert_eq!(readable_kind(&scene.disk).unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(check_writable_ext4(&scene.disk).unwrap_err().kind(), ErrorKind::Denied);
    let mut block = [0; EXT4_SUPER_LEN];
    check_places(&block).unwrap();
    block[EXT4_JOURNAL_DEVICE + 1] = 7;
    let error = check_places(&block).unwrap_err();
    assert!(error.to_string().contains("another device"), "{error}");
}

#[test]
fn paths_in_a_list_of_mounts_are_read_as_they_are() {
    let list = b"22 1 7:3 / /a\\040b\\134c rw - ext4 /dev/loop3 rw\nnonsense\n25 1 - -\n\
        23 1 7:31 / /other rw - ext4 /dev/loop31 rw\n\
        24 1 7:3 / /t\\011n\\012\xff\\9 ro shared:1 - ext4 /dev/loop3 ro,noload\n\
        31 1 0:41 /sub /btrfs rw - btrfs /dev/loop3 rw,subvol=/sub\n\
        32 1 0:42 / /fuse rw - fuse.other /dev/loop3 rw\n33 1 0:43 / /btrfs2 rw - btrfs /dev/loop31 rw\n";
    let found = mounts_among(list, Path::new("/dev/loop3"), rustix::fs::makedev(7, 3));
    let found = found
        .into_iter()
        .map(|mount| (mount.id, mount.at.into_os_string().into_vec(), mount.is_read_only, mount.has_number));
    let at = |path: &[u8]| path.to_vec();
    let expected = [
        (22, at(b"/a b\\c"), false, true),
        (24, at(b"/t\tn\n\xff\\9"), true, true),
        (31, at(b"/btrfs"), false, false),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}

#[test]
fn an_erofs_is_mounted_for_reading_only() {
    let Some(scene) = Scene::new().filter(|_| installed(&["mkfs.erofs"])) else { return };
    let files = scene.directory("files");
    fs::write(files.join("name"), "content").unwrap();
    let made = Command::new("mkfs.erofs").arg(&scene.disk).arg(&files).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let at = scene.directory("at");
    mount_disk(&scene.disk, &at).unwrap();
    assert_eq!(fs::read(at.join("name")).unwrap(), b"content");
    assert!(fs::write(at.join("name"), "").is_err());
    assert!(unmount_disk(&at).unwrap());
    for refused in [check_writable_ext4(&scene.disk), mount_writable(&scene.disk, &at)] {
        let error = refused.unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("EROFS"), "{error}");
    }
    assert!(!is_mounted(&at).unwrap());
}
