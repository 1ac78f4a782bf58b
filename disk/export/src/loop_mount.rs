//! The file system on a disk, mounted read-only from the disk's file: for containers, whose kernel is the host's.
//!
//! A loop device makes a block device of the file that FUSE serves. Both the file system and FUSE could keep the same
//! bytes in memory: the loop device reads with direct I/O, so that only the file system's pages are there.
//!
//! ```text
//! file of FUSE <- loop device (direct I/O, reads ahead 1 MiB by requests of 256 KiB) <- ext4 or EROFS, read-only
//! ```
//!
//! A disk that is a block device already, such as one of the kernel's nbd driver, is mounted as it is.
//!
//! The loop device goes by itself when the file system is unmounted, or when mounting it fails. Its number goes to the
//! next program that wants one, with the read-ahead and the length of requests that were set here.
//!
//! A disk of its own that a container writes to is mounted for writing ([`mount_writable`]).
//!
//! If the server of the file ends for good, the file system stays, and fails ([`is_served`]).
//!
//! # Danger
//!
//! The kernel parses the file system. An image's publisher can give the kernel damaged structures; kernels guard
//! against these, but have had faults there. Mount no image of a publisher whose containers you would not run as root.

use crate::loop_device::{
    LoopUse, attach, backing_of, denied, device_over, devices_at, devices_over, identity, is_loss,
};
use headstart_block::file_system::SUPERBLOCK_AT;
use headstart_block::{Error, ErrorKind, FileSystemKind, Result};
use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, ioctl};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::{CStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The longest wait for a disk that answers.
const ANSWERS: Duration = Duration::from_secs(2);

/// The requests to freeze a file system and to end that: `FIFREEZE` and `FITHAW` of the kernel.
const FREEZE: Opcode = rustix::ioctl::opcode::read_write::<i32>(b'X', 119);
const THAW: Opcode = rustix::ioctl::opcode::read_write::<i32>(b'X', 120);

/// The directory of the kernel's block devices, with partitions.
const BLOCK_DEVICES: &str = "/sys/class/block";

/// The mounts that this process sees.
const MOUNTS: &str = "/proc/self/mountinfo";

/// The place of the superblock of a file system ext4, from the start of the disk, and its length, both in bytes.
const EXT4_SUPER_LEN: usize = 1024;
/// The first number of loop devices.
const LOOP_MAJOR: u32 = 7;
/// The bytes that are read to see whether a block device answers.
const DIRECT_LEN: usize = 4096;
/// The places in it of its features that a kernel must know, of the number of another device that has its journal, and
/// of its mount options.
const EXT4_FEATURES: usize = 0x60;
const EXT4_JOURNAL_DEVICE: usize = 0xe4;
const EXT4_OPTIONS: usize = 0x200;
/// The feature of a file system that hosts share by turns: the kernel writes to it even while no program does.
const EXT4_MMP: u32 = 0x100;

/// The options of file systems that are mounted for writing.
const WRITABLE_OPTIONS: &CStr = c"discard,errors=remount-ro";

/// Mounts the file system in the file `disk`, EROFS or ext4, on the directory `at`, read-only. Nothing is mounted if it
/// fails.
///
/// # Errors
/// [`ErrorKind::Denied`] if this process is not root, or an ext4 brings mount options of its own;
/// [`ErrorKind::Unsupported`] if this host has no loop devices or
/// no such file system; [`ErrorKind::Corrupt`] if the file has no file system of that kind, or a damaged one; errors of
/// the operating system.
pub fn mount_disk(disk: &Path, at: &Path) -> Result<()> {
    let kind = readable_kind(disk)?;
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
/// discarded. Nothing is mounted if it fails. If the file system is in use already, such as in another mount namespace,
/// this is one more mount of it: the kernel must not have it twice.
///
/// # Errors
/// As [`mount_disk`].
pub fn mount_writable(disk: &Path, at: &Path) -> Result<()> {
    check_writable_ext4(disk)?;
    let made = match device_over(disk)? {
        Some(made) => made,
        None => attach(disk, LoopUse::Write)?,
    };
    mount_device(made, at).map_err(|error| error.about(disk.display()))
}

/// Mounts the ext4 in the file `disk` on the directory `at` once more, if it has a loop device: `false` if it has none.
///
/// # Errors
/// As [`mount_disk`].
pub fn mount_again(disk: &Path, at: &Path) -> Result<bool> {
    let Some(made) = device_over(disk)? else { return Ok(false) };
    mount_device(made, at).map_err(|error| error.about(disk.display()))?;
    Ok(true)
}

/// Mounts the ext4 on a loop device, which stays open until then, for writing.
fn mount_device((path, device): (PathBuf, File), at: &Path) -> Result<()> {
    let mounted = mount(&path, at, c"ext4", MountFlags::NOATIME, Some(WRITABLE_OPTIONS));
    drop(device);
    mounted.map_err(|error| not_mounted(error, c"ext4"))
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

/// The kind of the file system on a disk. An ext4 that has mount options of its own in its superblock, which the kernel
/// would follow, is refused.
fn readable_kind(disk: &Path) -> Result<&'static CStr> {
    match super_block(disk)? {
        Some(block) if is_erofs(&block) => return Ok(c"erofs"),
        Some(block) => check_options(&block).map_err(|error| error.about(disk.display()))?,
        None => {}
    }
    // A disk with neither is taken for ext4: the kernel says what it lacks.
    Ok(c"ext4")
}

/// Refuses a disk that must not be mounted for writing: an EROFS, or an ext4 with mount options of its own, with a
/// journal on another device, or one that hosts share by turns.
///
/// # Errors
/// [`ErrorKind::Unsupported`] for an EROFS, [`ErrorKind::Denied`] for one of the others; errors of the disk.
pub fn check_writable_ext4(disk: &Path) -> Result<()> {
    let Some(block) = super_block(disk)? else { return Ok(()) };
    if is_erofs(&block) {
        return Err(Error::unsupported("its file system is EROFS, on which nothing can be written")
            .about(disk.display())
            .remedy("convert the image with --fs ext4, or let containers write to an overlayfs over it"));
    }
    check_options(&block).and_then(|()| check_places(&block)).map_err(|error| error.about(disk.display()))
}

type SuperBlock = [u8; EXT4_SUPER_LEN];

/// The superblock of a file system. `None` if the disk is too short for one: the kernel says what it is.
fn super_block(disk: &Path) -> Result<Option<SuperBlock>> {
    let mut block = [0; EXT4_SUPER_LEN];
    match File::open(disk).and_then(|file| file.read_exact_at(&mut block, SUPERBLOCK_AT)) {
        Ok(()) => Ok(Some(block)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(Error::io("cannot read", error).about(disk.display())),
    }
}

fn is_erofs(block: &SuperBlock) -> bool {
    FileSystemKind::of_superblock(block) == FileSystemKind::Erofs
}

fn check_options(block: &SuperBlock) -> Result<()> {
    if block[EXT4_OPTIONS] == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Denied, "its ext4 brings mount options of its own")
        .remedy("take them away (tune2fs -E mount_opts=), and make the image again"))
}

fn check_places(block: &SuperBlock) -> Result<()> {
    let word = |at: usize| block[at..].first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_le_bytes(*bytes));
    if word(EXT4_FEATURES) & EXT4_MMP != 0 {
        return Err(Error::new(ErrorKind::Denied, "its ext4 is one that hosts share by turns (mmp)")
            .remedy("take that away (tune2fs -O ^mmp), and make the image again"));
    }
    if word(EXT4_JOURNAL_DEVICE) != 0 {
        return Err(Error::new(ErrorKind::Denied, "its ext4 has its journal on another device")
            .remedy("take the journal away (tune2fs -O ^has_journal), and make the image again"));
    }
    Ok(())
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
///
/// # Errors
/// Errors of the operating system that say nothing of the disk.
pub fn is_served(disk: &Path, at: &Path) -> Result<bool> {
    let (answer, answered) = mpsc::channel();
    let (file, directory) = (disk.to_owned(), at.to_owned());
    // A disk that does not answer holds up the thread that asks it.
    let ask = move || _ = answer.send(has_its_disk(&file, &directory));
    let failed = |error| Error::io("cannot be looked at", error).about(disk.display());
    thread::Builder::new().name("loop-alive".to_owned()).spawn(ask).map_err(failed)?;
    served_by(answered.recv_timeout(ANSWERS).unwrap_or(Ok(true))).map_err(failed)
}

/// `false` if the answer of a disk says that it is lost; other errors say nothing of it.
fn served_by(answer: std::io::Result<bool>) -> std::io::Result<bool> {
    match answer {
        Err(error) if is_loss(&error) => Ok(false),
        answer => answer,
    }
}

/// `true` if the file system on the directory `at` still has the disk that it was mounted from. A disk that is a block
/// device by itself has to answer, and cannot become another one: the device is not free before it is unmounted.
fn has_its_disk(disk: &Path, at: &Path) -> std::io::Result<bool> {
    let number = fs::symlink_metadata(at)?.dev();
    let path = format!("/dev/block/{}:{}", major(number), minor(number));
    if major(number) == LOOP_MAJOR {
        let device = File::open(path).or_else(|_| File::open(format!("/dev/loop{}", minor(number))))?;
        return Ok(identity(disk)? == backing_of(&device)?);
    }
    let device = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
    let name = fs::read_link(device)?.file_name().map(PathBuf::from).unwrap_or_default();
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let device = File::from(rustix::fs::open(Path::new("/dev").join(name), flags, Mode::empty())?);
    let mut block = AlignedBlock([0; DIRECT_LEN]);
    device.read_exact_at(&mut block.0, 0)?;
    Ok(true)
}

/// Memory for reading without the kernel's cache.
#[repr(align(4096))]
struct AlignedBlock([u8; DIRECT_LEN]);

/// The places, among those that this process sees, on which the file system on a block device is mounted.
///
/// # Errors
/// Errors of the operating system.
pub fn mounts_of(device: &Path) -> Result<Vec<PathBuf>> {
    let Some(number) = number_of(device)? else { return Ok(Vec::new()) };
    let mounts = fs::read(MOUNTS).map_err(|error| Error::io("cannot read", error).about(MOUNTS))?;
    Ok(mounts_among(&mounts, number))
}

/// The number of a block device; `None` if it is gone.
fn number_of(device: &Path) -> Result<Option<u64>> {
    match fs::metadata(device) {
        Ok(found) => Ok(Some(found.rdev())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("cannot be looked at", error).about(device.display())),
    }
}

/// The places of a device in a list of mounts as the kernel writes it.
fn mounts_among(mounts: &[u8], device: u64) -> Vec<PathBuf> {
    let wanted = format!("{}:{}", major(device), minor(device));
    let of_device = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        (words.nth(2) == Some(wanted.as_bytes())).then(|| words.nth(1)).flatten()
    });
    of_device.map(|path| PathBuf::from(OsString::from_vec(unescaped(path)))).collect()
}

/// A path of a list of mounts, in which the kernel writes some bytes as a backslash and three octal digits.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let byte = match (first, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        path.push(byte.unwrap_or(*first));
        text = if byte.is_some() { &rest[3..] } else { rest };
    }
    path
}

/// A mount of the file system on a block device, open; `None` if this process sees none on a directory.
fn open_mount(device: &Path) -> Result<Option<(File, PathBuf)>> {
    let Some(wanted) = number_of(device)? else { return Ok(None) };
    // A container decides what is at its paths: nothing but a directory is opened, and the device is compared.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = mounts_of(device)?.into_iter().find_map(|at| {
        let root = File::from(rustix::fs::open(&at, flags, Mode::empty()).ok()?);
        (root.metadata().ok()?.dev() == wanted).then_some((root, at))
    });
    Ok(opened)
}

/// A file system that takes no writes, and whose disk has all that was written before, until this is dropped: programs
/// that write to it wait.
#[derive(Debug)]
pub struct FrozenFiles(File);

impl FrozenFiles {
    /// Freezes the file system that is mounted from the file `disk`, after most of what was written has reached it.
    /// `None` if this process sees no mount of it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn freeze(disk: &Path) -> Result<Option<Self>> {
        let Some((device, opened)) = device_over(disk)? else { return Ok(None) };
        let Some((root, at)) = open_mount(&device)? else { return Ok(None) };
        let failed = |error| Error::io("cannot be frozen", error).about(at.display());
        Self::of(root, &opened).map(Some).map_err(failed)
    }

    /// Freezes the file system with the directory `root`, which is on a device.
    fn of(root: File, device: &File) -> std::io::Result<Self> {
        rustix::fs::syncfs(&root)?;
        device.sync_all()?;
        // SAFETY: the request ignores its argument, so the kernel reads and writes no memory of this process.
        unsafe { ioctl(&root, NoArg::<FREEZE>::new()) }?;
        Ok(Self(root))
    }

    /// Ends the freezing of the file systems that are mounted from a file of the path `disk`, if a process that was
    /// killed has left them frozen.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn thaw(disk: &Path) -> Result<()> {
        for device in devices_at(disk)? {
            drop(open_mount(&device)?.map(|(root, _)| Self(root)));
        }
        Ok(())
    }
}

impl Drop for FrozenFiles {
    fn drop(&mut self) {
        // An error says that it is not frozen.
        // SAFETY: the request ignores its argument, so the kernel reads and writes no memory of this process.
        let _ = unsafe { ioctl(&self.0, NoArg::<THAW>::new()) };
    }
}

/// The file systems on a disk that this process sees mounted, on the whole disk, on its partitions and on volumes made
/// of these. All of them are frozen until this is dropped.
#[derive(Debug, Default)]
pub struct FrozenDisk {
    frozen: Vec<FrozenFiles>,
    /// Those that another program has frozen.
    by_others: usize,
}

impl FrozenDisk {
    /// Freezes them. `disk` is the disk's file, or its block device.
    ///
    /// # Errors
    /// Errors of the operating system. Nothing stays frozen then.
    pub fn freeze(disk: &Path) -> Result<Self> {
        let mut all = Self::default();
        let devices = devices_of(disk)?;
        for (device, opened) in &devices {
            let Some((root, at)) = open_mount(device)? else { continue };
            match FrozenFiles::of(root, opened) {
                Ok(frozen) => all.frozen.push(frozen),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => all.by_others += 1,
                Err(error) => return Err(Error::io("cannot be frozen", error).about(at.display())),
            }
        }
        // What a file system has written may be kept by its device.
        for (device, opened) in devices.iter().filter(|_| !all.is_empty()) {
            let failed = |error| Error::io("cannot be made durable", error).about(device.display());
            opened.sync_all().map_err(failed)?;
        }
        Ok(all)
    }

    /// `true` if no file system was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frozen.is_empty() && self.by_others == 0
    }

    /// Ends the freezing that a process has left which was killed.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn thaw(disk: &Path) -> Result<()> {
        for (device, _) in devices_of(disk)? {
            drop(open_mount(&device)?.map(|(root, _)| FrozenFiles(root)));
        }
        Ok(())
    }
}

/// The block devices of a disk, open: its own or those over its file, their partitions, and the devices made of these.
fn devices_of(disk: &Path) -> Result<Vec<(PathBuf, File)>> {
    let looked = |error| Error::io("cannot be looked at", error).about(disk.display());
    let disk = disk.canonicalize().map_err(looked)?;
    let mut devices = match disk.metadata().map_err(looked)?.file_type().is_block_device() {
        true => vec![(disk.clone(), File::open(&disk).map_err(looked)?)],
        false => devices_over(&disk)?,
    };
    let mut at = 0;
    while let Some((device, _)) = devices.get(at) {
        for upper in made_of(device) {
            // One that is gone since, or that several lower ones share, is left out.
            let is_known = devices.iter().any(|(known, _)| *known == upper);
            devices
                .extend((!is_known).then(|| File::open(&upper).ok()).flatten().map(|opened| (upper, opened)));
        }
        at += 1;
    }
    Ok(devices)
}

/// The partitions of a block device, and the devices that use it, such as volumes of LVM.
fn made_of(device: &Path) -> Vec<PathBuf> {
    let Some(name) = device.file_name() else { return Vec::new() };
    let place = Path::new(BLOCK_DEVICES).join(name);
    let names = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let partitions = names(&place).filter(|name| place.join(name).join("partition").exists());
    partitions.chain(names(&place.join("holders"))).map(|name| Path::new("/dev").join(name)).collect()
}

#[cfg(test)]
mod tests;
