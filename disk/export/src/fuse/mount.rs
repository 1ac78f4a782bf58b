//! Mounting, unmounting, and clearing away the mounts of killed servers.
//!
//! As root all of it is `mount(2)` and `umount2(2)`. Other users have `fusermount3`, which is set-user-id root and
//! hands the open `/dev/fuse` back through a socket. It takes a path, and checks for itself that the user may mount
//! there.
//!
//! As root nothing is looked up by a path twice: see [`Place`].

use super::mount_table::MountEntry;
use super::place::Place;
use crate::SocketAccess;
use headstart_block::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The type of these mounts in the mount table, by which they are recognized.
const KIND: &str = "fuse.headstart";

/// The longest time that a server that lives takes to answer.
const ALIVE: Duration = Duration::from_secs(2);

/// The most dead mounts on top of each other that are cleared away at once.
const DEAD_MAX: usize = 16;

/// A file system that is mounted. Dropping it unmounts it in any case.
pub(super) struct Mount {
    place: Place,
    /// The entry in the mount table, by which another program's mount is not taken for this one.
    entry: Option<MountEntry>,
    mounted: bool,
}

/// The outcome of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmounted {
    /// The file system is gone, and so is every request.
    Gone,
    /// A program has a file open.
    Busy,
}

impl Mount {
    /// Mounts a file system on `point`, the directory or regular file that was found at `place`; returns the end on
    /// which to serve it. `access` names the users that may open it.
    pub(super) fn new(
        place: Place,
        point: (File, &Metadata),
        read_only: bool,
        access: &SocketAccess,
    ) -> Result<(OwnedFd, Self)> {
        let fuse = if is_root() {
            mount_directly(point, read_only)
        } else {
            ask_fusermount(place.path(), read_only, !access.is_default())
        };
        let fuse = fuse.map_err(|error| error.about(place.path().display()))?;
        let entry = place.mounted().filter(|entry| entry.kind == KIND);
        Ok((fuse, Self { place, entry, mounted: true }))
    }

    /// The mount of an earlier process, which is at `place` and has this entry.
    pub(super) fn taken_over(place: Place, entry: MountEntry) -> Self {
        Self { place, entry: Some(entry), mounted: true }
    }

    /// The entry in the mount table, if it is known.
    pub(super) fn entry(&self) -> Option<&MountEntry> {
        self.entry.as_ref()
    }

    /// Leaves the file system mounted.
    pub(super) fn leave(mut self) {
        self.mounted = false;
    }

    /// Unmounts unless the file system is busy.
    pub(super) fn unmount(&mut self) -> Result<Unmounted> {
        if !self.is_ours() {
            return Ok(self.gone());
        }
        if !is_root() {
            let unmounted = fusermount_unmounts(self.place.path(), false);
            return Ok(if unmounted { self.gone() } else { Unmounted::Busy });
        }
        match unmount(self.place.anchored(), UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(self.gone()),
            Err(Errno::BUSY) => Ok(Unmounted::Busy),
            Err(error) => Err(failed("cannot unmount", error).about(self.place.path().display())),
        }
    }

    /// Fails all requests under way, and takes the file system out of sight although files in it are open: programs
    /// that have them open get errors from now on.
    pub(super) fn force(&mut self) {
        if !self.is_ours() {
            self.gone();
            return;
        }
        if is_root() {
            // This ends the connection, then fails with EBUSY, as expected.
            let _ = unmount(self.place.anchored(), UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
        }
        detach(&self.place);
        self.gone();
    }

    /// `true` if the mount is still this one: it may have been unmounted by hand, and another file system mounted
    /// there.
    fn is_ours(&self) -> bool {
        self.mounted && (self.entry.is_none() || self.place.mounted() == self.entry)
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

/// Finds the place of a mount, and clears away the mounts that killed servers left there.
///
/// # Errors
/// [`ErrorKind::Conflict`] if a server lives there, [`ErrorKind::NotFound`] if there is nothing to mount on,
/// [`ErrorKind::Denied`] if a symbolic link of another user's leads there.
pub(super) fn repair(path: &Path) -> Result<Place> {
    let place = Place::find(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "there is nothing to mount on")
            .remedy(
                "make a directory, where the disk becomes a file, or an empty file, which becomes the disk",
            )
            .about(path.display()),
        _ => error,
    })?;
    for _ in 0..DEAD_MAX {
        let Some(entry) = place.mounted().filter(|entry| entry.kind.starts_with("fuse")) else {
            return Ok(place);
        };
        let conflict = |cause: &'static str| Error::new(ErrorKind::Conflict, cause);
        let error = match (is_alive(&place), entry.kind == KIND) {
            (Some(false), true) => {
                let path = place.path().display();
                tracing::info!("{path}: clearing away the mount of a server that is gone");
                detach(&place);
                continue;
            }
            (Some(true), false) => return Ok(place),
            (Some(false), false) => conflict("the server of what is mounted there is gone")
                .remedy(format!("unmount it: umount -l {}", place.path().display())),
            (Some(true), true) => {
                conflict("a disk is mounted there").remedy("detach it, or mount this one elsewhere")
            }
            (None, true) => conflict("a disk is mounted there that does not answer")
                .remedy("detach it, or mount this one elsewhere"),
            (None, false) => conflict("what is mounted there does not answer"),
        };
        return Err(error.about(place.path().display()));
    }
    Err(Error::new(ErrorKind::Conflict, "too many dead mounts lie on top of each other")
        .about(path.display()))
}

/// The errors of a file system whose server is gone.
const DEAD: [Errno; 2] = [Errno::NOTCONN, Errno::CONNABORTED];

/// `true` if the server of the file system mounted at a place lives; `None` if it does not answer.
///
/// Asks for facts that the kernel never answers from its cache, and in a thread of its own, because a server that hangs
/// also hangs the thread that asks it.
fn is_alive(place: &Place) -> Option<bool> {
    let (answer, answered) = mpsc::channel();
    let path = place.anchored();
    let asking = thread::Builder::new().name("fuse-alive".to_owned()).spawn(move || {
        let alive = match rustix::fs::statfs(&path) {
            Err(error) => !DEAD.contains(&error),
            Ok(_) => true,
        };
        let _ = answer.send(alive);
    });
    asking.ok()?;
    answered.recv_timeout(ALIVE).ok()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn failed(what: &'static str, error: Errno) -> Error {
    Error::io(what, error.into())
}

fn detach(place: &Place) {
    let detached = unmount(place.anchored(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    if detached.is_err() && !fusermount_unmounts(place.path(), true) {
        tracing::warn!("{}: cannot unmount; try `umount -l`", place.path().display());
    }
}

/// Opens `/dev/fuse` and mounts it on the opened mount point: no path is looked up again. The file system is open to
/// all users, as far as the permissions of the file allow: hypervisors often run as a user of their own.
fn mount_directly((point, found): (File, &Metadata), read_only: bool) -> Result<OwnedFd> {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(no_fuse)?;
    let mode = found.mode();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let options = format!(
        "fd={},rootmode={mode:o},user_id={uid},group_id={gid},default_permissions,allow_other",
        fuse.as_raw_fd()
    );
    // No number has a byte of zero.
    let options = CString::new(options).map_err(|error| Error::io("cannot mount", error.into()))?;
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, read_only);
    let target = format!("/proc/self/fd/{}", point.as_raw_fd());
    let mounted = mount("headstart", target, KIND, flags, options.as_c_str());
    mounted.map_err(|error| match error {
        Errno::PERM => failed("this container may not mount", error)
            .remedy("run it with the capability SYS_ADMIN, or export the disk over NBD"),
        Errno::NODEV => failed("this kernel has no FUSE", error).remedy("load it: modprobe fuse"),
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
    // Only if /etc/fuse.conf has `user_allow_other`; otherwise fusermount3 reports that.
    let others = if for_others { ",allow_other" } else { "" };
    let options = format!(
        "{access},nodev,nosuid,noatime,fsname=headstart,subtype=headstart,default_permissions{others}"
    );
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options).arg("--").arg(path);
    // The program is told the number of the socket: that of its standard input.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| {
        Error::io("cannot run fusermount3, which mounts for users other than root", error)
            .remedy("install the package fuse3, or run it as root")
    })?;
    // The command holds the other end of the socket.
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

fn fusermount_unmounts(path: &Path, lazily: bool) -> bool {
    let mut command = Command::new("fusermount3");
    command.arg(if lazily { "-uz" } else { "-u" }).arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Writes what programs have changed through memory maps to the server. This takes as long as the server does: call it
/// where waiting is no harm.
pub(super) fn sync_file(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
