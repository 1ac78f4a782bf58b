//! Unix sockets that clients connect to. All servers of this crate create their sockets with this module.
//!
//! # Access
//!
//! A socket belongs to the user of this process and has mode 0600, whatever the process's umask is, unless
//! [`SocketAccess`] says otherwise. The mode is set on the socket before it gets its name, and no client can connect
//! before `listen`, which comes last: at no moment can other users connect.
//!
//! # Replacing a socket
//!
//! A server that was killed leaves its socket, and the next one at the same path has to replace it. It does so only if
//! all of this holds; otherwise it refuses, with a remedy:
//!
//! * the path names a socket: a regular file or a directory is never touched;
//! * no server answers there;
//! * this program made it, as a mark beside the socket proves: the file `.NAME.headstart` beside `NAME`, which belongs
//!   to this user and names the socket's device, inode and time of creation. Another socket at the same path has
//!   another inode or another time. The mark stays if the server is killed, and is removed with the socket if the
//!   server ends in order.
//!
//! Sockets of version 0.1 have no mark. Sockets without a mark are replaced as well if the caller knows by other means
//! that only this program makes sockets at the path ([`Leftover::IsOurs`]): the caller holds the lock of the directory,
//! for example, or an agent starts the disk again.
//!
//! A process that makes or removes a socket holds a lock on the mark meanwhile, for moments, so that two servers that
//! start at the same time do not remove each other's socket. A user that may open the mark could also lock it for any
//! time, so a server that does not get the lock within five seconds refuses, with an error that names the mark.

use crate::account_names;
use headstart_block::guarded::shell_word;
use headstart_block::lock::{try_lock, try_within};
use headstart_block::{Error, ErrorKind, Result};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen as start_listening,
    socket_with,
};
use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The number of connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;

/// The first word of a mark.
const MARK: &str = "headstart-socket-1";

/// The time for which a lock on a mark that another process holds is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest file that is taken for a mark, in bytes.
const MARK_MAX: u64 = 256;

/// The owner and permissions of a disk's socket or file, which decide the users that may open it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// The owner of the socket or file; `None` for this process's user and group.
    pub owner: Option<SocketOwner>,
    /// The permissions; `None` for 0660 if the owner names a group, otherwise 0600.
    pub mode: Option<SocketMode>,
}

impl SocketAccess {
    /// Returns `true` if neither owner nor mode is set: only this process's user can open the disk.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The permission bits, with the default if no mode is set.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let names_group = self.owner.as_ref().is_some_and(|owner| owner.gid.is_some());
        self.mode.map_or(if names_group { 0o660 } else { 0o600 }, |mode| mode.0)
    }

    /// The numeric user ID of the owner; `None` for this process's user.
    #[must_use]
    pub fn uid(&self) -> Option<u32> {
        self.owner.as_ref().and_then(|owner| owner.uid)
    }

    /// The numeric group ID of the owner; `None` for this process's group.
    #[must_use]
    pub fn gid(&self) -> Option<u32> {
        self.owner.as_ref().and_then(|owner| owner.gid)
    }

    /// Makes the directory `path` of this process traversable for the users that these settings allow to open a socket
    /// in it. These users can neither list nor change the directory. If the owner names a group, that group becomes the
    /// directory's group. Does nothing for the default access.
    ///
    /// # Errors
    /// The error of the operating system if this user may not change the directory.
    pub fn open_directory(&self, path: &Path) -> Result<()> {
        if self.is_default() {
            return Ok(());
        }
        let directory = File::open(path).map_err(|e| Error::io("cannot open", e).about(path.display()))?;
        // The owner of the sockets may pass, and not change the directory, which stays this process's.
        let gid = self.gid().map(Gid::from_raw);
        let reachable = self.mode() | if self.uid().is_some() { 0o006 } else { 0 };
        let mode = 0o700
            | if reachable & 0o060 != 0 { 0o010 } else { 0 }
            | if reachable & 0o006 != 0 { 0o001 } else { 0 };
        rustix::fs::fchown(&directory, None, gid)
            .map_err(io::Error::from)
            .and_then(|()| directory.set_permissions(Permissions::from_mode(mode)))
            .map_err(|e| may_not(e, self).about(path.display()))
    }
}

/// The user and group that a socket or file is given to, written as `USER`, `USER:GROUP` or `:GROUP`, by name
/// or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOwner {
    text: String,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl FromStr for SocketOwner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        if group == Some("") || (user.is_empty() && group.is_none()) {
            return Err(Error::invalid(format!("`{}` names no user", text.escape_debug()))
                .remedy("write it as USER, USER:GROUP or :GROUP"));
        }
        let uid = if user.is_empty() { None } else { Some(account_names::uid(user)?) };
        let gid = group.map(account_names::gid).transpose()?;
        Ok(Self { text: text.to_owned(), uid, gid })
    }
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The permissions of a disk's socket or file, written in octal: `0660`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(u32);

impl FromStr for SocketMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!("`{}` are no permissions", text.escape_debug()))
                .remedy("write them in octal, such as 0600 or 0660")
        };
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let mode = u32::from_str_radix(digits, 8).map_err(|_| bad())?;
        if mode & !0o666 != 0 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        Ok(Self(mode))
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The treatment of an existing socket on which no server answers and which this program has not marked as
/// its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// Leave the existing socket and return an error, because the socket may belong to another program.
    #[default]
    IsUnknown,
    /// Replace the socket: the caller knows that only this program creates sockets there.
    IsOurs,
}

/// The file of a listening socket. Dropping this removes the file, unless another server has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// The numbers by which a socket is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// The time at which it was made: seconds and nanoseconds.
    made: (i64, i64),
}

impl Identity {
    fn of(meta: &Metadata) -> Self {
        Self { device: meta.dev(), inode: meta.ino(), made: (meta.mtime(), meta.mtime_nsec()) }
    }

    fn to_mark(self) -> String {
        let Self { device, inode, made: (seconds, nanoseconds) } = self;
        format!("{MARK} {device} {inode} {seconds} {nanoseconds}\n")
    }
}

/// Listens on a Unix socket at `path` with the permissions of `access`. A socket that a killed server left
/// there is replaced as `leftover` allows.
///
/// # Errors
/// [`ErrorKind::Conflict`] if a server listens there or the existing file must not be replaced (see the
/// module's documentation); otherwise the error of the operating system.
pub fn listen(path: &Path, access: &SocketAccess, leftover: Leftover) -> Result<(UnixListener, SocketFile)> {
    listen_at(path, access, leftover).map_err(|error| error.about(path.display()))
}

fn listen_at(path: &Path, access: &SocketAccess, leftover: Leftover) -> Result<(UnixListener, SocketFile)> {
    let address = SocketAddrUnix::new(path).map_err(|e| {
        Error::io("cannot be a socket's path", e.into())
            .remedy("paths of sockets have at most 107 bytes: name a shorter directory")
    })?;
    // Before the mark is made, so that nothing is left beside a file of another program.
    refuse_other_kinds(path)?;
    let mut mark = Mark::lock(path)?;
    let made =
        mark.remove_stale(path, &address, leftover).and_then(|()| make(path, &address, access, &mut mark));
    if made.is_err() {
        mark.remove_unless_needed(path);
    }
    made
}

fn make(
    path: &Path,
    address: &SocketAddrUnix,
    access: &SocketAccess,
    mark: &mut Mark,
) -> Result<(UnixListener, SocketFile)> {
    let cannot = |e: io::Error| Error::io("cannot listen there", e);
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| cannot(e.into()))?;
    // The name inherits the socket's own mode.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(|e| cannot(e.into()))?;
    bind(&socket, address).map_err(|e| cannot(e.into()))?;
    match finish(path, &socket, access, mark) {
        Ok(identity) => {
            let file = SocketFile { path: path.to_owned(), identity };
            Ok((socket.into(), file))
        }
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

/// Gives a bound socket its owner and permissions, marks it, and lets clients in.
fn finish(path: &Path, socket: &OwnedFd, access: &SocketAccess, mark: &mut Mark) -> Result<Identity> {
    let cannot = |e: io::Error| Error::io("cannot listen there", e);
    // A handle on the file itself, so that only its owner is changed, whatever other processes do to the path
    // meanwhile.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| cannot(e.into()))?;
    let file = File::from(file);
    let meta = file.metadata().map_err(cannot)?;
    if !meta.file_type().is_socket() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::new(ErrorKind::Conflict, "another program has just replaced it")
            .remedy("choose a directory that only this user can write to"));
    }
    mark.write(Identity::of(&meta)).map_err(|e| Error::io("cannot mark it as made by this program", e))?;
    let owner = (access.uid().map(Uid::from_raw), access.gid().map(Gid::from_raw));
    if owner != (None, None) {
        rustix::fs::chownat(&file, "", owner.0, owner.1, AtFlags::EMPTY_PATH)
            .map_err(|e| may_not(e.into(), access))?;
    }
    // There is no `fchmod` for such a handle, but the handle has a name of its own.
    let handle = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    fs::set_permissions(&handle, Permissions::from_mode(access.mode())).map_err(cannot)?;
    start_listening(socket, BACKLOG).map_err(|e| cannot(e.into()))?;
    Ok(Identity::of(&meta))
}

fn may_not(error: io::Error, access: &SocketAccess) -> Error {
    let owner = access.owner.as_ref().map(ToString::to_string).unwrap_or_default();
    let failed = Error::io(format!("cannot be given to {owner}"), error);
    if rustix::process::geteuid().is_root() {
        failed
    } else {
        failed.remedy("run it as root, or name a group that this user is in, as :GROUP")
    }
}

/// Refuses a path with an entry that is not a socket.
fn refuse_other_kinds(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(Error::new(ErrorKind::Conflict, "is there already, and is not a socket")
                .remedy("remove it or choose another path"))
        }
        _ => Ok(()),
    }
}

impl SocketFile {
    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let Ok(mark) = Mark::lock(&self.path) else { return };
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| Identity::of(&meta) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
        mark.remove_unless_needed(&self.path);
    }
}

/// The mark of a socket, locked.
struct Mark {
    path: PathBuf,
    file: File,
    /// The socket that the mark names.
    named: Option<String>,
}

impl Mark {
    /// Opens the mark for the socket at `path`, and makes it if it does not exist, once no other process holds it.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another process holds it for longer than [`LOCK_TIMEOUT`], otherwise the error of
    /// the operating system.
    fn lock(path: &Path) -> Result<Self> {
        let name = path.file_name().ok_or_else(|| Error::invalid("cannot be a socket's path"))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".headstart");
        let mark = path.with_file_name(hidden);
        let locked = try_within(LOCK_TIMEOUT, || Self::try_lock(&mark));
        let locked = locked.map_err(|e| Error::io("cannot make a socket there", e))?;
        locked.ok_or_else(|| is_held(&mark))
    }

    /// Opens the mark at `path`, and makes it if it does not exist; `None` if another process holds it or has just
    /// removed it.
    fn try_lock(path: &Path) -> io::Result<Option<Self>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let mut file = options.open(path)?;
        if !try_lock(&file)? {
            return Ok(None);
        }
        let meta = file.metadata()?;
        // The former holder of the lock may have removed it.
        let is_there = fs::symlink_metadata(path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (meta.dev(), meta.ino()));
        if !is_there {
            return Ok(None);
        }
        // A mark that another user wrote is not trusted.
        let trusted = meta.is_file() && [0, rustix::process::geteuid().as_raw()].contains(&meta.uid());
        let mut text = String::new();
        if trusted {
            // A file that is not text is no mark.
            let _ = io::Read::by_ref(&mut file).take(MARK_MAX).read_to_string(&mut text);
        }
        let named = text.starts_with(MARK).then_some(text);
        Ok(Some(Self { path: path.to_owned(), file, named }))
    }

    /// Removes the socket at `path` that a server left that did not end in order.
    fn remove_stale(&self, path: &Path, address: &SocketAddrUnix, leftover: Leftover) -> Result<()> {
        refuse_other_kinds(path)?;
        let Ok(meta) = fs::symlink_metadata(path) else {
            return Ok(());
        };
        if answers(address) {
            return Err(Error::new(ErrorKind::Conflict, "another server listens there")
                .remedy("stop it or choose another path"));
        }
        let is_ours = self.named.as_deref() == Some(&Identity::of(&meta).to_mark());
        if !is_ours && leftover == Leftover::IsUnknown {
            return Err(Error::new(
                ErrorKind::Conflict,
                "is a socket on which no process answers, and there is no mark that this program made it",
            )
            .remedy(format!("if no other program needs it: rm {}", path.display())));
        }
        fs::remove_file(path).map_err(|e| Error::io("cannot replace the socket of a server that is gone", e))
    }

    fn write(&mut self, identity: Identity) -> io::Result<()> {
        let text = identity.to_mark();
        self.file.set_len(0)?;
        std::os::unix::fs::FileExt::write_all_at(&self.file, text.as_bytes(), 0)?;
        self.file.flush()?;
        self.named = Some(text);
        Ok(())
    }

    /// Removes the mark, unless it names the socket that is at `path`.
    fn remove_unless_needed(&self, path: &Path) {
        let there = fs::symlink_metadata(path).ok().map(|meta| Identity::of(&meta).to_mark());
        if there.is_none() || there != self.named {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The error of a mark whose lock another process does not give back.
fn is_held(mark: &Path) -> Error {
    let cause = format!(
        "another process holds the lock of {}, the mark of that socket, for more than {} s",
        mark.display(),
        LOCK_TIMEOUT.as_secs()
    );
    let word = shell_word(&mark.to_string_lossy());
    Error::new(ErrorKind::Conflict, cause).remedy(format!(
        "end that process (`fuser {word}` names it), or choose a socket in a directory that only this user can write to"
    ))
}

/// `true` unless it is certain that no server listens at `address`.
fn answers(address: &SocketAddrUnix) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return true };
    !matches!(connect(&socket, address), Err(Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen_with(path: &Path, leftover: Leftover) -> Result<(UnixListener, SocketFile)> {
        listen(path, &SocketAccess::default(), leftover)
    }

    /// Ends as a server that is killed does.
    fn abandon((listener, file): (UnixListener, SocketFile)) {
        let path = file.path().to_owned();
        std::mem::forget(file);
        close(listener, &path);
    }

    /// Returns once no process listens at `path`: a program that another test starts meanwhile holds the listener too,
    /// from its fork until it is executed.
    fn close(listener: UnixListener, path: &Path) {
        drop(listener);
        let address = SocketAddrUnix::new(path).unwrap();
        while answers(&address) {
            std::thread::yield_now();
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn the_socket_of_a_killed_server_is_replaced_and_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s p");
        abandon(listen_with(&path, Leftover::IsUnknown).unwrap());
        assert_eq!(mode(&path), 0o600);
        let (listener, file) = listen_with(&path, Leftover::IsUnknown).unwrap();
        let refused = listen_with(&path, Leftover::IsOurs).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "somebody listens there");
        drop(listener);
        drop(file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something is left behind");
    }

    #[test]
    fn files_and_sockets_of_other_programs_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let refused = |leftover| listen_with(&path, leftover).unwrap_err();
        fs::write(&path, "precious").unwrap();
        assert_eq!(refused(Leftover::IsOurs).kind(), ErrorKind::Conflict);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(refused(Leftover::IsOurs).kind(), ErrorKind::Conflict);
        fs::remove_dir(&path).unwrap();
        // A socket on which no server answers, but that has no mark; or the mark of the one before it.
        for earlier in [false, true] {
            if earlier {
                abandon(listen_with(&path, Leftover::IsUnknown).unwrap());
                fs::remove_file(&path).unwrap();
            }
            close(UnixListener::bind(&path).unwrap(), &path);
            let said = refused(Leftover::IsUnknown).to_string();
            assert!(said.contains(&format!("rm {}", path.display())), "{said}");
            assert!(path.exists());
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a mark was left beside it");
            fs::remove_file(&path).unwrap();
        }
        close(UnixListener::bind(&path).unwrap(), &path);
        drop(listen_with(&path, Leftover::IsOurs).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_server_that_ends_leaves_its_successors_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, first) = listen_with(&path, Leftover::IsUnknown).unwrap();
        close(listener, &path);
        let (listener, second) = listen_with(&path, Leftover::IsUnknown).unwrap();
        drop(first);
        assert!(path.exists(), "the first took the second's socket");
        abandon((listener, second));
        drop(listen_with(&path, Leftover::IsUnknown).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_mark_that_another_holds_is_waited_for_and_then_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("s"), dir.path().join(".s.headstart"));
        let holder = File::create(&mark).unwrap();
        holder.lock().unwrap();
        let said = listen_with(&path, Leftover::IsUnknown).unwrap_err();
        assert_eq!(said.kind(), ErrorKind::Conflict);
        let said = said.to_string();
        assert!(said.contains(".s.headstart") && said.contains("fuser"), "{said}");
        assert!(!path.exists() && mark.exists());
        // A lock that is given back in time is waited for.
        let waiting = std::thread::spawn(move || listen_with(&path, Leftover::IsUnknown).map(|_| ()));
        drop(holder);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn owners_and_modes_are_read_and_refused() {
        let owner = |text: &str| text.parse::<SocketOwner>().map(|owner| (owner.uid, owner.gid));
        assert_eq!(owner("root").unwrap(), (Some(0), None));
        assert_eq!(owner("65534:0").unwrap(), (Some(65534), Some(0)));
        assert_eq!(owner(":root").unwrap(), (None, Some(0)));
        for bad in ["", ":", "root:", "no such user", "root:no-such-group", "-1"] {
            assert!(owner(bad).is_err(), "{bad}");
        }
        let mode = |text: &str| text.parse::<SocketMode>().map(|mode| mode.to_string());
        assert_eq!(mode("660").unwrap(), "0660");
        assert_eq!(mode("0o600").unwrap(), "0600");
        for bad in ["", "rw", "0777", "1600", "8", "+60", "-1"] {
            assert!(mode(bad).is_err(), "{bad}");
        }
        let access = |owner: &str| SocketAccess { owner: Some(owner.parse().unwrap()), mode: None };
        assert_eq!((access("root").mode(), access(":root").mode()), (0o600, 0o660));
    }

    #[test]
    fn a_socket_has_the_owner_and_mode_that_were_asked_for() {
        if !headstart_testkit::process::is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let access =
            SocketAccess { owner: Some("65534:65533".parse().unwrap()), mode: Some("0620".parse().unwrap()) };
        let _listening = listen(&path, &access, Leftover::IsUnknown).unwrap();
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid(), mode(&path)), (65534, 65533, 0o620));
    }
}
