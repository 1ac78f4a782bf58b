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
//! If the server of the file ends for good, the file system stays, and fails ([`is_served`]).
//!
//! # Danger
//!
//! The kernel parses the file system. An image's publisher can give the kernel damaged structures; kernels guard
//! against these, but have had faults there. Mount no image of a publisher whose containers you would not run as root.

use headstart_block::{Error, ErrorKind, Result};
use linux_raw_sys::loop_device::{
    _bindgen_ty_1 as Flag, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, LOOP_GET_STATUS64, loop_config, loop_info64,
};
use rustix::fs::{major, minor, statfs};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, Opcode, Setter, ioctl};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::{CStr, c_void};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The longest wait for a disk that answers.
const ANSWERS: Duration = Duration::from_secs(2);

/// The device that gives numbers of free loop devices.
const CONTROL: &str = "/dev/loop-control";

/// Another program may take the same free device: so often another one is tried.
const TRIES: usize = 64;

/// The bytes that are read ahead of a reader that goes on in sequence, in KiB. With the kernel's 128, a scan takes
/// twice the time.
const READ_AHEAD_KIB: u32 = 1024;

/// The place of mount options in a file system ext4, from the start of the disk, and their length, both in bytes: at
/// 0x200 in the superblock.
const EXT4_OPTIONS_AT: u64 = 1024 + 0x200;
const EXT4_OPTIONS_LEN: usize = 64;

/// The sector of the loop device, in bytes: the smallest that file systems of images have.
const SECTOR: u32 = 512;

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
    let (path, device) = attach(disk)?;
    // Best effort: without it reads in sequence are slower.
    if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
        let _ = fs::write(format!("/sys/block/{name}/queue/read_ahead_kb"), READ_AHEAD_KIB.to_string());
    }
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

/// Refuses an ext4 that has mount options of its own in its superblock, which the kernel would follow.
fn check_ext4(disk: &Path) -> Result<()> {
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

fn denied() -> Error {
    Error::new(ErrorKind::Denied, "only root may mount file systems").remedy("run it as root")
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

/// The device and the inode of a file that its server, if it has one, vouches for.
fn identity(disk: &Path) -> std::io::Result<(u32, u32, u64)> {
    // Unlike attributes, this is never answered by the kernel alone.
    statfs(disk)?;
    let found = fs::metadata(disk)?;
    Ok((major(found.dev()), minor(found.dev()), found.ino()))
}

/// The device and the inode of the file behind the loop device of a file system.
fn backing(at: &Path) -> std::io::Result<(u32, u32, u64)> {
    let device = fs::symlink_metadata(at)?.dev();
    let device = File::open(format!("/dev/block/{}:{}", major(device), minor(device)))
        .or_else(|_| File::open(format!("/dev/loop{}", minor(device))))?;
    // SAFETY: LOOP_GET_STATUS64 writes a `loop_info64`, all of whose fields are integers or arrays of integers.
    let info = unsafe { ioctl(&device, Getter::<{ LOOP_GET_STATUS64 as Opcode }, loop_info64>::new()) }?;
    Ok((major(info.lo_device), minor(info.lo_device), info.lo_inode))
}

/// A new loop device over a file, and its path. The device goes when the last program closes it.
fn attach(disk: &Path) -> Result<(PathBuf, File)> {
    let file = File::open(disk).map_err(|error| Error::io("cannot open", error).about(disk.display()))?;
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    let control = control.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::unsupported("this kernel has no loop devices")
            .remedy("load them: modprobe loop")
            .about(CONTROL),
        std::io::ErrorKind::PermissionDenied => denied().about(CONTROL),
        _ => Error::io("cannot open", error).about(CONTROL),
    })?;
    for _ in 0..TRIES {
        // SAFETY: the request takes no argument, so the kernel reads and writes no memory of this process.
        let number = unsafe { ioctl(&control, FreeDevice) };
        let number = number.map_err(|error| failed("no loop device is free", error).about(CONTROL))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).open(&path);
        let device = device.map_err(|error| Error::io("cannot open", error).about(path.display()))?;
        match configure(&device, &file) {
            Ok(()) => return Ok((path, device)),
            Err(Errno::BUSY) => {}
            Err(error) => return Err(failed("cannot be set up", error).about(path.display())),
        }
    }
    Err(Error::new(ErrorKind::Conflict, "other programs took every loop device that was free").about(CONTROL))
}

fn failed(cause: &'static str, error: Errno) -> Error {
    Error::io(cause, error.into())
}

/// Puts a file behind a device, read-only and with direct I/O if the file can.
fn configure(device: &File, file: &File) -> std::result::Result<(), Errno> {
    match configure_with(device, file, Flag::LO_FLAGS_DIRECT_IO as u32) {
        // The file's file system has no direct I/O.
        Err(Errno::INVAL) => configure_with(device, file, 0),
        done => done,
    }
}

fn configure_with(device: &File, file: &File, flags: u32) -> std::result::Result<(), Errno> {
    let fd = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: all fields are integers, or arrays of integers, for which zero is a value.
    let mut config: loop_config = unsafe { std::mem::zeroed() };
    (config.fd, config.block_size) = (fd, SECTOR);
    config.info.lo_flags = Flag::LO_FLAGS_READ_ONLY as u32 | Flag::LO_FLAGS_AUTOCLEAR as u32 | flags;
    // SAFETY: LOOP_CONFIGURE reads a `loop_config`, which lives until the call returns, and writes nothing.
    unsafe { ioctl(device, Setter::<{ LOOP_CONFIGURE as Opcode }, loop_config>::new(config)) }
}

/// The request for the number of a free device, which the kernel makes if there is none.
struct FreeDevice;

// SAFETY: the opcode is that of a request without an argument, whose result is the returned number.
unsafe impl Ioctl for FreeDevice {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(output).map_err(|_| Errno::RANGE)
    }
}
