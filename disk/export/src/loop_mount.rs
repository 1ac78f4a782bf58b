//! The file system on a disk, mounted read-only from the disk's file: for containers, whose kernel is the host's.
//!
//! A loop device makes a block device of the file that FUSE serves. Both the file system and FUSE could keep the same
//! bytes in memory: the loop device reads with direct I/O, so that only the file system's pages are there.
//!
//! ```text
//! file of FUSE <- loop device (direct I/O, reads ahead 1 MiB) <- ext4, read-only
//! ```
//!
//! The loop device goes by itself when the file system is unmounted, or when mounting it fails. Its number goes to the
//! next program that wants one, with the read-ahead that was set here.
//!
//! A disk of its own that a container writes to is mounted for writing ([`mount_writable`]).
//!
//! If the server of the file ends for good, the file system stays, and fails ([`is_served`]).
//!
//! # Danger
//!
//! The kernel parses the file system. An image's publisher can give the kernel damaged structures; kernels guard
//! against these, but have had faults there. Mount no image of a publisher whose containers you would not run as root.

use crate::loop_device::{FileIdentity, LoopUse, attach, backing_of, denied, identity};
use headstart_block::{Error, ErrorKind, Result};
use rustix::fs::{major, minor};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, ioctl};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The longest wait for a disk that answers.
const ANSWERS: Duration = Duration::from_secs(2);

/// The requests to freeze a file system and to end that: `FIFREEZE` and `FITHAW` of the kernel.
const FREEZE: Opcode = rustix::ioctl::opcode::read_write::<i32>(b'X', 119);
const THAW: Opcode = rustix::ioctl::opcode::read_write::<i32>(b'X', 120);

/// The mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The place of mount options in a file system ext4, from the start of the disk, and their length, both in bytes: at
/// 0x200 in the superblock.
const EXT4_OPTIONS_AT: u64 = 1024 + 0x200;
const EXT4_OPTIONS_LEN: usize = 64;

/// Mounts the file system of `kind` (`ext4`, `erofs`) in the file `disk` on the directory `at`, read-only. Nothing is
/// mounted if it fails.
///
/// # Errors
/// [`ErrorKind::Denied`] if this process is not root, or an ext4 brings mount options of its own;
/// [`ErrorKind::Unsupported`] if this host has no loop devices or
/// no such file system; [`ErrorKind::Corrupt`] if the file has no file system of that kind, or a damaged one; errors of
/// the operating system.
pub fn mount_disk(disk: &Path, kind: &CStr, at: &Path) -> Result<()> {
    if kind == c"ext4" {
        check_ext4(disk)?;
    }
    let (path, device) = attach(disk, LoopUse::Read)?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOATIME;
    // A converted image has no journal. One that another tool made may have one, which must not be replayed: the disk
    // is read-only.
    // Its superblock may also ask the kernel to panic at the first error.
    let options = (kind == c"ext4").then_some(c"noload,errors=continue");
    let mounted = mount(&path, at, kind, flags, options);
    // The device goes with its last user, which is the file system from now on.
    drop(device);
    mounted.map_err(|error| not_mounted(error, kind).about(disk.display()))
}

/// Mounts the ext4 in the file `disk` on the directory `at`, for reading and writing. Blocks that become free are
/// discarded. Nothing is mounted if it fails.
///
/// # Errors
/// As [`mount_disk`].
pub fn mount_writable(disk: &Path, at: &Path) -> Result<()> {
    check_ext4(disk)?;
    let (path, device) = attach(disk, LoopUse::Write)?;
    let mounted = mount(&path, at, c"ext4", MountFlags::NOATIME, Some(c"discard,errors=remount-ro"));
    drop(device);
    mounted.map_err(|error| not_mounted(error, c"ext4").about(disk.display()))
}

/// Makes what was written to the file system on `at` durable and unmounts it, unless programs use it there: `false`.
/// Also `true` if nothing is mounted there.
///
/// # Errors
/// Errors of the operating system.
pub fn unmount_unused(at: &Path) -> Result<bool> {
    if !is_mounted(at)? {
        return Ok(true);
    }
    let failed = |error| Error::io("cannot be made durable", error).about(at.display());
    File::open(at).and_then(|root| Ok(rustix::fs::syncfs(&root)?)).map_err(failed)?;
    match unmount(at, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(error) => Err(Error::io("cannot unmount", error.into()).about(at.display())),
    }
}

/// Refuses an ext4 that has mount options of its own in its superblock, which the kernel would follow.
///
/// # Errors
/// [`ErrorKind::Denied`] if it has some; errors of the disk.
pub fn check_ext4(disk: &Path) -> Result<()> {
    let mut options = [0; EXT4_OPTIONS_LEN];
    let read = File::open(disk).and_then(|file| file.read_exact_at(&mut options, EXT4_OPTIONS_AT));
    match read {
        // Too short for a superblock: the kernel says what it is.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(Error::io("cannot read", error).about(disk.display())),
        Ok(()) if options[0] == 0 => Ok(()),
        Ok(()) => Err(Error::new(ErrorKind::Denied, "its ext4 brings mount options of its own")
            .about(disk.display())
            .remedy("take them away (tune2fs -E mount_opts=), and make the image again")),
    }
}

fn not_mounted(error: Errno, kind: &CStr) -> Error {
    let kind = kind.to_string_lossy();
    match error {
        Errno::NODEV => Error::unsupported(format!("this kernel has no file system {kind}"))
            .remedy(format!("load it: modprobe {kind}")),
        Errno::PERM | Errno::ACCESS => denied(),
        Errno::INVAL => Error::corrupt(format!("has no {kind} that this kernel mounts")).caused_by(error),
        _ => Error::io(format!("cannot mount its {kind}"), error.into()),
    }
}

/// Unmounts the file system on `at`. Programs that use it go on, and it ends with the last of them. `false` if nothing
/// is mounted there.
///
/// # Errors
/// Errors of the operating system.
pub fn unmount_disk(at: &Path) -> Result<bool> {
    match unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOENT) => Ok(false),
        Err(error) => Err(Error::io("cannot unmount", error.into()).about(at.display())),
    }
}

/// `true` if a file system is mounted on the directory `at`.
///
/// # Errors
/// Errors of the operating system, those of a file system that fails included.
pub fn is_mounted(at: &Path) -> Result<bool> {
    let failed = |error| Error::io("cannot be looked at", error).about(at.display());
    let Some(above) = at.parent() else { return Ok(true) };
    match fs::symlink_metadata(at) {
        Ok(found) => Ok(found.dev() != above.metadata().map_err(failed)?.dev()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// `false` if the file system that is mounted on the directory `at` has lost its disk: the file `disk` fails, or is
/// another one than the file system was mounted from. `true` also for a disk that does not answer in time: its process
/// is being started again, and its users wait.
#[must_use]
pub fn is_served(disk: &Path, at: &Path) -> bool {
    let (answer, answered) = mpsc::channel();
    let (disk, at) = (disk.to_owned(), at.to_owned());
    // A disk that does not answer holds up the thread that asks it.
    let asking = thread::Builder::new().name("loop-alive".to_owned()).spawn(move || {
        let _ = answer.send(backing(&at).is_ok_and(|backing| identity(&disk).ok() == Some(backing)));
    });
    asking.is_err() || answered.recv_timeout(ANSWERS).unwrap_or(true)
}

/// The device and the inode of the file behind the loop device of a file system.
fn backing(at: &Path) -> std::io::Result<FileIdentity> {
    let device = fs::symlink_metadata(at)?.dev();
    let device = File::open(format!("/dev/block/{}:{}", major(device), minor(device)))
        .or_else(|_| File::open(format!("/dev/loop{}", minor(device))))?;
    backing_of(&device)
}

/// The directories, among those that this process sees, on which the file system on a block device is mounted. Those
/// whose names have blanks or the like are as the kernel writes them.
///
/// # Errors
/// Errors of the operating system.
pub fn mounts_of(device: &Path) -> Result<Vec<PathBuf>> {
    let found = fs::metadata(device);
    let found = found.map_err(|error| Error::io("cannot be looked at", error).about(device.display()))?;
    let mounts = fs::read_to_string(MOUNTS);
    let mounts = mounts.map_err(|error| Error::io("cannot read", error).about(MOUNTS))?;
    let wanted = format!("{}:{}", major(found.rdev()), minor(found.rdev()));
    let of_device = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        (words.nth(2) == Some(&wanted)).then(|| words.nth(1)).flatten().map(PathBuf::from)
    });
    Ok(of_device.collect())
}

/// A file system that takes no writes, and whose disk has all that was written before, until this is dropped: programs
/// that write to it wait.
#[derive(Debug)]
pub struct FrozenFiles(File);

impl FrozenFiles {
    /// Freezes the file system that is mounted on `at`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn freeze(at: &Path) -> Result<Self> {
        let failed = |error| Error::io("cannot be frozen", error).about(at.display());
        let root = File::open(at).map_err(failed)?;
        // SAFETY: the request ignores its argument, so the kernel reads and writes no memory of this process.
        unsafe { ioctl(&root, NoArg::<FREEZE>::new()) }.map_err(|error| failed(error.into()))?;
        Ok(Self(root))
    }

    /// Ends the freezing of the file system on `at`, if a process that was killed has left it frozen.
    pub fn thaw(at: &Path) {
        if let Ok(root) = File::open(at) {
            drop(Self(root));
        }
    }
}

impl Drop for FrozenFiles {
    fn drop(&mut self) {
        // An error says that it is not frozen.
        // SAFETY: the request ignores its argument, so the kernel reads and writes no memory of this process.
        let _ = unsafe { ioctl(&self.0, NoArg::<THAW>::new()) };
    }
}
