//! Mounting, unmounting, and clearing away what a killed server left.
//!
//! As root all of it is `mount(2)` and `umount2(2)`. Others have `fusermount3`, which is set-user-id root and
//! hands the open `/dev/fuse` back through a socket.

use super::mount_table::{MountEntry, topmost_at};
use crate::SocketAccess;
use headstart_block::{Error, ErrorKind, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The type under which our mounts stand in the mount table, and how we know them again.
const KIND: &str = "fuse.headstart";

/// How long a server that lives may take to say so.
const ALIVE: Duration = Duration::from_secs(2);

/// No more dead mounts on top of each other than this are cleared away at once.
const DEAD_MAX: usize = 16;

/// A file system that is mounted. Dropping it unmounts it at any price.
pub(super) struct Mount {
    /// Absolute, without symbolic links.
    path: PathBuf,
    /// The device number in the mount table, by which we know that what is mounted there is still ours.
    device: Option<String>,
    mounted: bool,
}

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmounted {
    /// It is gone; so is every request.
    Gone,
    /// Somebody has a file open.
    Busy,
}

impl Mount {
    /// Mounts a file system at `path`, a directory or a regular file; gives the end on which to serve it.
    /// `access` names who may open it.
    pub(super) fn new(path: PathBuf, read_only: bool, access: &SocketAccess) -> Result<(OwnedFd, Self)> {
        let fuse = if is_root() {
            mount_directly(&path, read_only)
        } else {
            ask_fusermount(&path, read_only, !access.is_default())
        };
        let fuse = fuse.map_err(|error| error.about(path.display()))?;
        let device = ours_at(&path).map(|entry| entry.device);
        Ok((fuse, Self { path, device, mounted: true }))
    }

    /// Unmounts unless the file system is busy.
    pub(super) fn unmount(&mut self) -> Result<Unmounted> {
        if !self.is_ours() {
            return Ok(self.gone());
        }
        if !is_root() {
            return Ok(if fusermount_unmounts(&self.path, false) { self.gone() } else { Unmounted::Busy });
        }
        match umount2(&self.path, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => Ok(self.gone()),
            Err(nix::Error::EBUSY) => Ok(Unmounted::Busy),
            Err(error) => Err(failed("cannot unmount", error).about(self.path.display())),
        }
    }

    /// Fails all requests under way, and takes the file system out of sight though files in it are open: their
    /// owners get errors from now on.
    pub(super) fn force(&mut self) {
        if !self.is_ours() {
            self.gone();
            return;
        }
        if is_root() {
            // Ends the connection, then fails with EBUSY, as was to be expected.
            let _ = umount2(&self.path, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
        }
        detach(&self.path);
        self.gone();
    }

    /// Somebody may have unmounted it by hand, and mounted something else.
    fn is_ours(&self) -> bool {
        self.mounted
            && (self.device.is_none() || ours_at(&self.path).map(|entry| entry.device) == self.device)
    }

    fn gone(&mut self) -> Unmounted {
        self.mounted = false;
        Unmounted::Gone
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            self.force();
        }
    }
}

/// Clears away the mounts that killed servers left at `path`, and gives `path` without symbolic links.
///
/// # Errors
/// [`ErrorKind::Conflict`] where a server lives there, [`ErrorKind::NotFound`] where there is nothing to mount on.
pub(super) fn repair(path: &Path) -> Result<PathBuf> {
    for _ in 0..DEAD_MAX {
        let real = match real_path(path) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::new(ErrorKind::NotFound, "there is nothing to mount on")
                    .remedy("make a directory, where the disk becomes a file, or an empty file, which becomes the disk")
                    .about(path.display()));
            }
            Err(error) => {
                return Err(Error::io("cannot look at the mount point", error).about(path.display()));
            }
        };
        let Some(entry) = entry_at(&real) else { return Ok(real) };
        if !entry.kind.starts_with("fuse") {
            return Ok(real);
        }
        match (is_alive(&real), entry.kind == KIND) {
            (Some(false), true) => {
                tracing::info!("{}: clearing away the mount of a server that is gone", real.display());
                detach(&real);
            }
            (Some(false), false) => {
                return Err(Error::new(ErrorKind::Conflict, "the server of what is mounted there is gone")
                    .remedy(format!("unmount it: umount -l {}", real.display()))
                    .about(real.display()));
            }
            (Some(true), false) => return Ok(real),
            (alive, true) => {
                let cause = if alive.is_some() {
                    "a disk is mounted there"
                } else {
                    "a disk is mounted there that does not answer"
                };
                return Err(Error::new(ErrorKind::Conflict, cause)
                    .remedy("detach it, or mount this one elsewhere")
                    .about(real.display()));
            }
            (None, false) => {
                return Err(Error::new(ErrorKind::Conflict, "what is mounted there does not answer")
                    .about(real.display()));
            }
        }
    }
    Err(Error::new(ErrorKind::Conflict, "too many dead mounts lie on top of each other")
        .about(path.display()))
}

/// As `canonicalize`, but the last part may be the root of a file system whose server is gone.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    let dead = |error: &io::Error| matches!(error.raw_os_error(), Some(code) if DEAD.contains(&code));
    match path.canonicalize() {
        Err(error) if dead(&error) => {}
        other => return other,
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(parent.canonicalize()?.join(name))
}

/// What a file system says whose server is gone.
const DEAD: [i32; 2] = [nix::libc::ENOTCONN, nix::libc::ECONNABORTED];

/// Whether the server of what is mounted at `path` lives; `None` if it does not answer.
///
/// Asks for what the kernel never answers from its cache, and in a thread of its own: a server that hangs hangs
/// who asks it.
fn is_alive(path: &Path) -> Option<bool> {
    let (answer, answered) = mpsc::channel();
    let path = path.to_owned();
    let asking = thread::Builder::new().name("fuse-alive".to_owned()).spawn(move || {
        let alive = match rustix::fs::statfs(&path) {
            Err(error) => !DEAD.contains(&error.raw_os_error()),
            Ok(_) => true,
        };
        let _ = answer.send(alive);
    });
    asking.ok()?;
    answered.recv_timeout(ALIVE).ok()
}

/// `None` as well where the table cannot be read: then a plain unmount is tried.
fn entry_at(path: &Path) -> Option<MountEntry> {
    topmost_at(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, path)
}

fn ours_at(path: &Path) -> Option<MountEntry> {
    entry_at(path).filter(|entry| entry.kind == KIND)
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn failed(what: &'static str, error: nix::Error) -> Error {
    Error::io(what, error.into())
}

fn detach(path: &Path) {
    let detached = umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    if detached.is_err() && !fusermount_unmounts(path, true) {
        tracing::warn!("{}: cannot unmount; try `umount -l`", path.display());
    }
}

/// Opens `/dev/fuse` and mounts it. The file system is open to all users, as far as the permissions of the file
/// go: hypervisors often run as a user of their own.
fn mount_directly(path: &Path, read_only: bool) -> Result<OwnedFd> {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(no_fuse)?;
    let mode = path.metadata().map_err(|error| Error::io("cannot look at the mount point", error))?.mode();
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    let options = format!(
        "fd={},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions,allow_other",
        fuse.as_raw_fd()
    );
    let mut flags = MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_NOATIME;
    flags.set(MsFlags::MS_RDONLY, read_only);
    let mounted = mount(Some("headstart"), path, Some(KIND), flags, Some(options.as_str()));
    mounted.map_err(|error| match error {
        nix::Error::EPERM => failed("this container may not mount", error)
            .remedy("run it with the capability SYS_ADMIN, or export the disk over NBD"),
        nix::Error::ENODEV => failed("this kernel has no FUSE", error).remedy("load it: modprobe fuse"),
        _ => failed("cannot mount", error),
    })?;
    Ok(fuse.into())
}

fn no_fuse(error: io::Error) -> Error {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => "let this user open it, or give the device to the container",
        _ => "load the module: modprobe fuse; in a container, give it the device /dev/fuse",
    };
    Error::io("cannot open /dev/fuse", error).remedy(remedy)
}

/// Has `fusermount3` open `/dev/fuse`, mount it, and send it back.
fn ask_fusermount(path: &Path, read_only: bool, for_others: bool) -> Result<OwnedFd> {
    let sockets = UnixStream::pair().map_err(|error| Error::io("cannot make a socket pair", error))?;
    let (ours, theirs) = sockets;
    let access = if read_only { "ro" } else { "rw" };
    // Only where /etc/fuse.conf has `user_allow_other`; fusermount3 says so.
    let others = if for_others { ",allow_other" } else { "" };
    let options = format!(
        "{access},nodev,nosuid,noatime,fsname=headstart,subtype=headstart,default_permissions{others}"
    );
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options).arg("--").arg(path);
    // It is told the number of the socket: that of its standard input.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| {
        Error::io("cannot run fusermount3, which mounts for users other than root", error)
            .remedy("install the package fuse3, or run it as root")
    })?;
    // It holds the other end of the socket.
    drop(command);
    let received = receive(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(|error| Error::io("cannot wait for fusermount3", error))?;
    received.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Error::new(ErrorKind::Io, format!("fusermount3 does not mount: {said}"))
    })
}

fn receive(socket: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(nix::Error::EINTR) => {}
            other => break other.ok()?,
        }
    };
    message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::ScmRights(fds) => fds.first().map(|fd| {
            // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
            unsafe { OwnedFd::from_raw_fd(*fd) }
        }),
        _ => None,
    })
}

fn fusermount_unmounts(path: &Path, lazily: bool) -> bool {
    let mut command = Command::new("fusermount3");
    command.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Writes what programs have changed through memory maps to the server. It takes as long as it takes: call it
/// where waiting is no harm.
pub(super) fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
