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

use crate::loop_device::{LoopUse, attach, backing_of, denied, device_over, devices_over, identity, is_loss};
use headstart_block::file_system::SUPERBLOCK_AT;
use headstart_block::{Error, ErrorKind, FileSystemKind, Result};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, major, minor, statx};
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
    Ok(listed_mounts(device)?.into_iter().map(|mount| mount.at).collect())
}

/// The mounts of a block device that this process sees; none if the device is gone.
fn listed_mounts(device: &Path) -> Result<Vec<ListedMount>> {
    let Some(number) = number_of(device)? else { return Ok(Vec::new()) };
    let mounts = fs::read(MOUNTS).map_err(|error| Error::io("cannot read", error).about(MOUNTS))?;
    Ok(mounts_among(&mounts, device, number))
}

/// The number of a block device; `None` if it is gone.
fn number_of(device: &Path) -> Result<Option<u64>> {
    match fs::metadata(device) {
        Ok(found) => Ok(Some(found.rdev())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("cannot be looked at", error).about(device.display())),
    }
}

/// A mount, as the kernel lists it.
#[derive(Debug)]
struct ListedMount {
    id: u64,
    at: PathBuf,
    /// The name of the file system.
    kind: String,
    /// `true` if nothing can be written to the file system, by no mount of it.
    is_read_only: bool,
    /// `true` if the file system has its device's number.
    has_number: bool,
}

/// The mounts of a device in a list of mounts as the kernel writes it.
fn mounts_among(mounts: &[u8], device: &Path, number: u64) -> Vec<ListedMount> {
    let wanted = format!("{}:{}", major(number), minor(number));
    // A btrfs may have several devices, and has a number of its own. The users of FUSE choose their sources.
    let is_source = |kind: &str, source: &[u8]| {
        let source = PathBuf::from(OsString::from_vec(unescaped(source)));
        kind == "btrfs" && (source == device || number_of(&source).is_ok_and(|found| found == Some(number)))
    };
    let of_device = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let end = line.windows(3).position(|word| word == b" - ")?;
        let words: Vec<_> = line[..end].split(|byte| *byte == b' ').collect();
        let last: Vec<_> = line[end + 3..].split(|byte| *byte == b' ').collect();
        let (&[id, _, own, _, at, ..], &[kind, source, options, ..]) = (&words[..], &last[..]) else {
            return None;
        };
        let kind = String::from_utf8_lossy(kind).into_owned();
        let has_number = own == wanted.as_bytes();
        (has_number || is_source(&kind, source)).then(|| ListedMount {
            id: std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()).unwrap_or_default(),
            at: PathBuf::from(OsString::from_vec(unescaped(at))),
            kind,
            is_read_only: options.split(|byte| *byte == b',').next() == Some(b"ro"),
            has_number,
        })
    });
    of_device.collect()
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
fn open_mount(device: &Path) -> Result<Option<(File, ListedMount)>> {
    let Some(wanted) = number_of(device)? else { return Ok(None) };
    // A container decides what is at its paths: nothing but a directory is opened, and the device is compared.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = listed_mounts(device)?.into_iter().find_map(|mount| {
        let root = File::from(rustix::fs::open(&mount.at, flags, Mode::empty()).ok()?);
        let is_it = match mount.has_number {
            true => root.metadata().ok()?.dev() == wanted,
            false => statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?.stx_mnt_id == mount.id,
        };
        is_it.then_some((root, mount))
    });
    Ok(opened)
}

/// A file system that takes no writes, and whose disk has all that was written before, until this is dropped: programs
/// that write to it wait.
#[derive(Debug)]
struct FrozenFiles(File);

impl FrozenFiles {
    fn freeze(root: File) -> std::io::Result<Self> {
        // SAFETY: the request ignores its argument, so the kernel reads and writes no memory of this process.
        unsafe { ioctl(&root, NoArg::<FREEZE>::new()) }?;
        Ok(Self(root))
    }
}

impl Drop for FrozenFiles {
    fn drop(&mut self) {
        // An error says that it is not frozen.
        let _ = thaw_root(&self.0);
    }
}

/// Ends the freezing of the file system with the directory `root`.
fn thaw_root(root: &File) -> std::io::Result<()> {
    // SAFETY: the request ignores its argument, so the kernel reads and writes no memory of this process.
    unsafe { ioctl(root, NoArg::<THAW>::new()) }?;
    Ok(())
}

/// The file systems on a disk that this process sees mounted, on the whole disk, on its partitions and on volumes made
/// of these.
#[derive(Debug)]
pub struct MountedDisk {
    /// The block devices of the disk. One that this process may not open is not: what is below it is.
    devices: Vec<(PathBuf, Option<File>)>,
    mounts: Vec<DiskMount>,
}

#[derive(Debug)]
struct DiskMount {
    device: PathBuf,
    root: File,
    listed: ListedMount,
}

impl MountedDisk {
    /// Finds them. `disk` is the disk's file, or its block device.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn find(disk: &Path) -> Result<Self> {
        let devices = devices_of(disk)?;
        let mut mounts = Vec::new();
        for (device, _) in &devices {
            if let Some((root, listed)) = open_mount(device)? {
                mounts.push(DiskMount { device: device.clone(), root, listed });
            }
        }
        Ok(Self { devices, mounts })
    }

    /// The devices that have them.
    pub fn devices(&self) -> impl Iterator<Item = &Path> {
        self.mounts.iter().map(|mount| mount.device.as_path())
    }

    /// Freezes them, after most of what was written has reached the disk. One that cannot be frozen holds up no other:
    /// [`FrozenDisk::not_frozen`].
    #[must_use]
    pub fn freeze(self) -> FrozenDisk {
        let mut all = FrozenDisk::default();
        if self.mounts.is_empty() {
            return all;
        }
        for DiskMount { root, listed, .. } in &self.mounts {
            if let Err(error) = rustix::fs::syncfs(root) {
                let error = Error::io(format!("its {} cannot be written", listed.kind), error.into());
                all.not_frozen.push(error.about(listed.at.display()));
            }
        }
        // The same is done once more below, and takes less time there, while programs wait.
        let _ = sync(&self.devices);
        for DiskMount { root, listed, .. } in self.mounts {
            let error = match FrozenFiles::freeze(root) {
                Ok(frozen) => {
                    all.frozen.push(frozen);
                    continue;
                }
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::BUSY) => all.by_others.push(listed.at),
                // Some cannot be frozen: nothing is written to this one.
                Some(Errno::OPNOTSUPP) if listed.is_read_only => all.read_only += 1,
                _ => {
                    let error = Error::io(format!("its {} cannot be frozen", listed.kind), error);
                    all.not_frozen.push(error.about(listed.at.display()));
                }
            }
        }
        // What a file system has written may be kept by its device.
        all.not_frozen.extend(sync(&self.devices));
        all
    }
}

/// File systems on a disk that are frozen until this is dropped.
#[derive(Debug, Default)]
pub struct FrozenDisk {
    frozen: Vec<FrozenFiles>,
    /// The places of those that another program has frozen.
    by_others: Vec<PathBuf>,
    /// The number of those that cannot be frozen and need not be.
    read_only: usize,
    not_frozen: Vec<Error>,
}

/// Makes what the devices have taken durable in the disk. Returns their errors.
fn sync(devices: &[(PathBuf, Option<File>)]) -> Vec<Error> {
    let failed = devices.iter().filter_map(|(device, opened)| {
        let error = opened.as_ref()?.sync_all().err()?;
        Some(Error::io("cannot be made durable", error).about(device.display()))
    });
    failed.collect()
}

impl FrozenDisk {
    /// `true` if no file system was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frozen.is_empty()
            && self.by_others.is_empty()
            && self.read_only == 0
            && self.not_frozen.is_empty()
    }

    /// The errors of those that could not be frozen.
    #[must_use]
    pub fn not_frozen(&self) -> &[Error] {
        &self.not_frozen
    }

    /// The same, if all that was found was frozen here. `None` if nothing was found.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another program has frozen one, and may end that at any time; the first error of one
    /// that could not be frozen.
    pub fn frozen_here(mut self) -> Result<Option<Self>> {
        if !self.not_frozen.is_empty() {
            return Err(self.not_frozen.swap_remove(0));
        }
        if let Some(at) = self.by_others.first() {
            return Err(Error::new(ErrorKind::Conflict, "another program has frozen it").about(at.display()));
        }
        Ok((!self.is_empty()).then_some(self))
    }

    /// Ends the freezing of the file systems on these devices and on those made of them, if a process that was killed
    /// has left them frozen. Returns their number.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn thaw(devices: Vec<PathBuf>) -> Result<usize> {
        let mut thawed = 0;
        for device in with_made_of(devices) {
            // The kernel refuses it for one that is not frozen.
            thawed += usize::from(open_mount(&device)?.is_some_and(|(root, _)| thaw_root(&root).is_ok()));
        }
        Ok(thawed)
    }
}

/// The block devices of a disk, open: its own or those over its file, their partitions, and the devices made of these.
fn devices_of(disk: &Path) -> Result<Vec<(PathBuf, Option<File>)>> {
    let looked = |error| Error::io("cannot be looked at", error).about(disk.display());
    let disk = disk.canonicalize().map_err(looked)?;
    let lower: Vec<_> = match disk.metadata().map_err(looked)?.file_type().is_block_device() {
        true => vec![(disk.clone(), File::open(&disk).ok())],
        false => devices_over(&disk)?.into_iter().map(|(path, opened)| (path, Some(opened))).collect(),
    };
    let all = with_made_of(lower.iter().map(|(path, _)| path.clone()).collect());
    // A file system writes all that it has when it is frozen, also to a device that this process may not open.
    let upper = all.into_iter().skip(lower.len()).map(|path| (path.clone(), File::open(path).ok()));
    Ok(lower.into_iter().chain(upper.collect::<Vec<_>>()).collect())
}

/// Block devices, and after them their partitions and the devices made of these.
fn with_made_of(mut devices: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut at = 0;
    while let Some(device) = devices.get(at) {
        for upper in made_of(device) {
            // Several lower ones may share one.
            if !devices.contains(&upper) {
                devices.push(upper);
            }
        }
        at += 1;
    }
    devices
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
