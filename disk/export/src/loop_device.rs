//! Loop devices: a file as a block device.

use headstart_block::{Error, ErrorKind, Result};
use linux_raw_sys::loop_device::{
    _bindgen_ty_1 as Flag, LOOP_CLR_FD, LOOP_CONFIGURE, LOOP_CTL_GET_FREE, LOOP_GET_STATUS64, loop_config,
    loop_info64,
};
use rustix::fs::{major, minor, statfs};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};
use std::ffi::{OsStr, c_void};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The device that gives numbers of free loop devices.
const CONTROL: &str = "/dev/loop-control";

/// The directory of the kernel's block devices.
const DEVICES: &str = "/sys/block";

/// Another program may take the same free device: so often another one is tried.
const TRIES: usize = 64;

/// The bytes that are read ahead of a reader that goes on in sequence, in KiB. With the kernel's 128, a scan takes
/// twice the time.
const READ_AHEAD_KIB: u32 = 1024;

/// The longest request, in KiB. The bytes that are read ahead come as several of these, so that each processor decodes
/// one: a scan is up to 1.4 times as fast as with the kernel's 1280.
const REQUEST_KIB: u32 = 256;

/// The sector of the loop device, in bytes: the smallest that file systems of images have.
const SECTOR: u32 = 512;

/// The use that is made of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopUse {
    /// Only reading: the device goes with its last user.
    Read,
    /// Writing, too: the device goes with its last user.
    Write,
    /// Writing, too: the device stays until [`remove_devices`].
    WriteUntilRemoved,
}

/// The device and the inode of a file.
pub(crate) type FileIdentity = (u32, u32, u64);

/// The device and the inode of a file that its server, if it has one, vouches for.
pub(crate) fn identity(disk: &Path) -> std::io::Result<FileIdentity> {
    // Unlike attributes, this is never answered by the kernel alone.
    statfs(disk)?;
    let found = fs::metadata(disk)?;
    Ok((major(found.dev()), minor(found.dev()), found.ino()))
}

/// The device and the inode of the file behind a loop device.
pub(crate) fn backing_of(device: &File) -> std::io::Result<FileIdentity> {
    // SAFETY: LOOP_GET_STATUS64 writes a `loop_info64`, all of whose fields are integers or arrays of integers.
    let info = unsafe { ioctl(device, Getter::<{ LOOP_GET_STATUS64 as Opcode }, loop_info64>::new()) }?;
    Ok((major(info.lo_device), minor(info.lo_device), info.lo_inode))
}

/// The loop device over a file that is served, open, and its path; `None` if there is none. Devices over a file that
/// was served at the same path before do not count. The device does not go while it is open.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn device_over(disk: &Path) -> Result<Option<(PathBuf, File)>> {
    Ok(devices_over(disk)?.into_iter().next())
}

/// All loop devices over a file that is served, as [`device_over`] finds one.
///
/// # Errors
/// Errors of the operating system.
pub(crate) fn devices_over(disk: &Path) -> Result<Vec<(PathBuf, File)>> {
    let wanted =
        identity(disk).map_err(|error| Error::io("cannot be looked at", error).about(disk.display()))?;
    let mut devices = Vec::new();
    for path in devices_at(disk)? {
        let failed = |error| Error::io("cannot be looked at", error).about(path.display());
        let Some(device) = open_listed(&path)? else { continue };
        match backing_of(&device) {
            Ok(found) if found == wanted => devices.push((path, device)),
            Err(error) if !is_loss(&error) => return Err(failed(error)),
            _ => {}
        }
    }
    Ok(devices)
}

/// `true` if an error of a file or a device says that it has failed for good, or is gone.
pub(crate) fn is_loss(error: &std::io::Error) -> bool {
    // FUSE answers with the last two where its server has ended.
    let lost = [Errno::NXIO, Errno::IO, Errno::NOENT, Errno::NOTCONN, Errno::CONNABORTED];
    Errno::from_io_error(error).is_some_and(|error| lost.contains(&error))
}

/// Opens a device that was listed a moment ago; `None` if it is gone since.
fn open_listed(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(device) => Ok(Some(device)),
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NXIO | Errno::NOENT)) => Ok(None),
        Err(error) => Err(Error::io("cannot be opened", error).about(path.display())),
    }
}

/// `true` if the loop device of this name in the kernel's directory is over a file of the path `disk`.
fn is_at(name: &OsStr, disk: &Path) -> bool {
    let backing = Path::new(DEVICES).join(name).join("loop/backing_file");
    let Ok(backing) = fs::read(backing) else { return false };
    let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
    // The kernel marks files that were removed.
    let backing = backing.strip_suffix(b" (deleted)").unwrap_or(backing);
    backing == disk.as_os_str().as_bytes()
}

/// The loop devices over a file of this path, whether or not it is still the same file.
///
/// # Errors
/// Errors of the operating system.
pub fn devices_at(disk: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("cannot be listed", error).about(DEVICES);
    let mut devices = Vec::new();
    for entry in fs::read_dir(DEVICES).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_at(&entry.file_name(), disk) {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(devices)
}

/// Makes a loop device over a file, for writing, that stays until [`remove_devices`]; one that is there already is
/// taken.
///
/// # Errors
/// [`ErrorKind::Denied`] if this process is not root; [`ErrorKind::Unsupported`] if this host has no loop devices;
/// errors of the operating system.
pub fn make_device(disk: &Path) -> Result<PathBuf> {
    let made = match device_over(disk)? {
        Some(made) => made,
        None => attach(disk, LoopUse::WriteUntilRemoved)?,
    };
    Ok(made.0)
}

/// Makes what was written to the loop devices over files of a path durable in these files.
///
/// # Errors
/// Errors of the operating system.
pub fn sync_devices(disk: &Path) -> Result<()> {
    devices_at(disk)?.iter().try_for_each(|path| {
        let failed = |error| Error::io("cannot be made durable", error).about(path.display());
        open_listed(path)?.map_or(Ok(()), |device| device.sync_all().map_err(failed))
    })
}

/// Removes the loop devices over files of a path. Each goes once its last user has closed it.
///
/// # Errors
/// Errors of the operating system.
pub fn remove_devices(disk: &Path) -> Result<()> {
    for path in devices_at(disk)? {
        let failed = |error| Error::io("cannot be removed", error).about(path.display());
        let Some(device) = open_listed(&path)? else { continue };
        // Another program may have got its number before it was opened.
        if !path.file_name().is_some_and(|name| is_at(name, disk)) {
            continue;
        }
        // SAFETY: the request takes no argument, so the kernel reads and writes no memory of this process.
        match unsafe { ioctl(&device, NoArg::<{ LOOP_CLR_FD as Opcode }>::new()) } {
            // It is gone.
            Ok(()) | Err(Errno::NXIO) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    Ok(())
}

pub(crate) fn denied() -> Error {
    Error::new(ErrorKind::Denied, "only root may mount file systems").remedy("run it as root")
}

/// Sets up the loop device that is the next free one, so that a disk that is mounted soon need not wait for that: a
/// change of a device's longest request takes the kernel 10 ms and more. It keeps that setting when the device gets a
/// file. Best effort: `attach` does what is left to do.
///
/// Another program may take the number first. Its device is left alone if it has its file by then; one that gets its
/// file within the next few system calls waits once for the change, and keeps the setting, as every later user of the
/// number does.
pub fn set_up_next_device() {
    if let Ok(number) = open_control().and_then(|control| free_device(&control))
        && !is_taken(Path::new(DEVICES), number)
    {
        set_queue(number);
    }
}

/// `true` if a loop device in the kernel's directory has a file.
pub(crate) fn is_taken(devices: &Path, number: u32) -> bool {
    devices.join(format!("loop{number}/loop/backing_file")).exists()
}

/// Opens the device that gives numbers.
fn open_control() -> Result<File> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    control.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::unsupported("this kernel has no loop devices")
            .remedy("load them: modprobe loop")
            .about(CONTROL),
        std::io::ErrorKind::PermissionDenied => denied().about(CONTROL),
        _ => Error::io("cannot open", error).about(CONTROL),
    })
}

/// The number of a loop device that is free now.
fn free_device(control: &File) -> Result<u32> {
    // SAFETY: the request takes no argument, so the kernel reads and writes no memory of this process.
    let number = unsafe { ioctl(control, FreeDevice) };
    number.map_err(|error| failed("no loop device is free", error).about(CONTROL))
}

/// Sets the read-ahead and the longest request of a loop device. Best effort: without it reads in sequence are slower.
fn set_queue(number: u32) {
    let queue = Path::new(DEVICES).join(format!("loop{number}/queue"));
    for (setting, kib) in [("max_sectors_kb", REQUEST_KIB), ("read_ahead_kb", READ_AHEAD_KIB)] {
        let _ = set_unless_equal(&queue.join(setting), kib);
    }
}

/// Writes a setting of the kernel's, unless it has that value: for some, the kernel stops all requests of a device.
pub(crate) fn set_unless_equal(path: &Path, value: u32) -> std::io::Result<()> {
    let value = value.to_string();
    if fs::read_to_string(path)?.trim_end() == value { Ok(()) } else { fs::write(path, value) }
}

/// A new loop device over a file, and its path. A disk that is a block device already needs none.
pub(crate) fn attach(disk: &Path, usage: LoopUse) -> Result<(PathBuf, File)> {
    let is_written = usage != LoopUse::Read;
    let file = OpenOptions::new().read(true).write(is_written).open(disk);
    let opened = file.and_then(|file| Ok((file.metadata()?.file_type().is_block_device(), file)));
    let (is_device, file) = opened.map_err(|error| Error::io("cannot open", error).about(disk.display()))?;
    if is_device {
        return Ok((disk.to_owned(), file));
    }
    let control = open_control()?;
    for _ in 0..TRIES {
        let number = free_device(&control)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(is_written).open(&path);
        let device = device.map_err(|error| Error::io("cannot open", error).about(path.display()))?;
        match configure(&device, &file, usage) {
            Ok(()) => {
                set_queue(number);
                return Ok((path, device));
            }
            Err(Errno::BUSY) => {}
            Err(error) => return Err(failed("cannot be set up", error).about(path.display())),
        }
    }
    Err(Error::new(ErrorKind::Conflict, "other programs took every loop device that was free").about(CONTROL))
}

fn failed(cause: &'static str, error: Errno) -> Error {
    Error::io(cause, error.into())
}

/// Puts a file behind a device, with direct I/O if the file can.
fn configure(device: &File, file: &File, usage: LoopUse) -> std::result::Result<(), Errno> {
    let flags = match usage {
        LoopUse::Read => Flag::LO_FLAGS_READ_ONLY as u32 | Flag::LO_FLAGS_AUTOCLEAR as u32,
        LoopUse::Write => Flag::LO_FLAGS_AUTOCLEAR as u32,
        LoopUse::WriteUntilRemoved => 0,
    };
    match configure_with(device, file, flags | Flag::LO_FLAGS_DIRECT_IO as u32) {
        // The file's file system has no direct I/O.
        Err(Errno::INVAL) => configure_with(device, file, flags),
        done => done,
    }
}

fn configure_with(device: &File, file: &File, flags: u32) -> std::result::Result<(), Errno> {
    let fd = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: all fields are integers, or arrays of integers, for which zero is a value.
    let mut config: loop_config = unsafe { std::mem::zeroed() };
    (config.fd, config.block_size) = (fd, SECTOR);
    config.info.lo_flags = flags;
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
