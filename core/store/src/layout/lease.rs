//! Leases: the images of a store that disks need, although no tag may name them any more.
//!
//! A disk reads its image as long as it is attached, and a writable directory needs its base image as long
//! as it exists. Each of them leaves a lease in the store, and a process that deletes blobs keeps those that a
//! lease names:
//!
//! ```text
//! <store>/.headstart/leases/<id>     a lease: JSON, as [`Lease`] describes it
//! ```
//!
//! A lease lists all blobs of its image, so that they are kept even where the manifest is gone. Leases are written and
//! judged under the layout's lock: a prune sees the lease of an attach, or the attach finds the image gone.
//!
//! # Leases that count
//!
//! | lease of | counts as long as | is known to be over |
//! |---|---|---|
//! | an attach | its process holds a lock on the file, or the record of its disk names the image | on its own host |
//! | a writable directory | the directory is there and has that image as its base | on its own host |
//!
//! "Its own host" is the running kernel whose boot id the lease has; where the store is on a file system that only one
//! host can have mounted, also an earlier boot of the machine with the same id and name. Every other lease
//! cannot be judged here, and counts until an operator releases it ([`Standing::Foreign`]). So does the lease of a
//! directory that is not to be seen because its file system is not mounted, or because it is in a container: where
//! another directory is `/`, this process cannot tell that a directory, or the record of a disk, is gone.
//!
//! An entry among the leases that cannot be read as one (a directory, a symbolic link, a pipe, too long a file, one
//! whose name is not UTF-8) is a *damaged* lease: its content is unknown, so it counts as a lease of every image until
//! an operator releases it. A lease also counts if it names a record or a directory that cannot be right: a user that
//! may write a lease may write any path into it.
//!
//! Version 0.1.0 neither writes nor reads leases.

use super::directory::{Creation, LEASES, temporary, tighten};
use super::{LayoutDir, LayoutLock};
use headstart_block::guarded::{FileAccess, GuardedDir, shell_word};
use headstart_block::{Digest, Error, ErrorKind, Result, sync_dir};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Deserializer, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The version of the form that is written. A lease of another version counts, and is not understood.
const VERSION: u32 = 1;

/// The largest lease that is read, in bytes. The lease of an image with 256 layers has about 45 kB.
pub const LEASE_MAX: u64 = 1 << 20;

/// The prefix of a lease's name if the lease is of an attached disk that is not to be started again after its
/// process ends.
pub const ATTACH: &str = "attach-";

/// The beginning of the ids of files among the leases whose names are not UTF-8.
const NOT_UTF8: &str = "not-utf-8/";

/// A lease: a record in a store that a disk needs an image, so that the image's blobs are not deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    version: u32,
    /// The disk that needs the image.
    pub holder: LeaseHolder,
    /// The digest of the image's manifest.
    #[serde(deserialize_with = "digest")]
    pub image: Digest,
    /// The digests of all blobs of the image except for its manifest.
    #[serde(deserialize_with = "digests")]
    pub blobs: Vec<Digest>,
    /// The reference by which the user named the image.
    pub reference: String,
    /// The host on which the holder of the lease is.
    pub host: HostId,
    /// The process id of the process that wrote the lease.
    pub pid: u32,
}

/// The holder of a lease: a disk that needs an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum LeaseHolder {
    /// A process that serves a disk of the image.
    Attach {
        /// The path of the disk's record, a file that exists as long as the disk is to be started again
        /// after its process ends. `None` for a disk that is not to be started again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        record: Option<PathBuf>,
    },
    /// A writable directory whose base is the image.
    Writable {
        /// The path of the writable directory, absolute and without symbolic links.
        dir: PathBuf,
        /// The UUID of the disk in the writable directory.
        uuid: String,
        /// The id of the file system that the directory is on, as text. The id only serves to be compared with another.
        filesystem: String,
    },
}

/// The identity of a host, of one boot of its kernel and of one container on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostId {
    /// The hostname.
    pub name: String,
    /// A hash of the machine id; `None` if the host has no machine id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The boot id of the kernel, which differs after each start.
    pub boot: String,
    /// The identity of the directory that the process sees as `/`. `None` if it is not known, or in a lease
    /// of a version that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Root>,
    /// The inode number of the process id namespace, outside of which process ids mean other processes.
    /// `None` if it is not known, or in a lease of a version that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

/// The identity of a directory that processes see as `/`. In a container or a chroot it differs from that of
/// the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The device number of the file system, which may change when the kernel starts again.
    pub device: u64,
    /// The inode number of the directory.
    pub inode: u64,
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Digest, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn digests<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<Digest>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse()).collect::<Result<_>>().map_err(serde::de::Error::custom)
}

impl HostId {
    /// Reads the identity of this host from `/proc` and the machine id.
    ///
    /// # Errors
    /// An error if `/proc` cannot be read.
    pub fn here() -> Result<Self> {
        let proc = |path: &str| {
            let failed = |e| Error::io("cannot read", e).about(path).remedy("mount /proc");
            fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(failed)
        };
        let ids = ["/etc/machine-id", "/var/lib/dbus/machine-id"].into_iter();
        let mut ids = ids.filter_map(|path| fs::read_to_string(path).ok()).map(|id| id.trim().to_owned());
        // Not the id itself, which is not for other hosts.
        let hash = |id: String| Digest::of(format!("headstart lease {id}").as_bytes()).hex()[..32].to_owned();
        Ok(Self {
            name: proc("/proc/sys/kernel/hostname")?,
            machine: ids.find(|id| id.len() >= 32).map(hash),
            boot: proc("/proc/sys/kernel/random/boot_id")?,
            root: fs::metadata("/").ok().map(|root| Root { device: root.dev(), inode: root.ino() }),
            pids: fs::metadata("/proc/self/ns/pid").ok().map(|namespace| namespace.ino()),
        })
    }

    /// `true` if a process id means the same to `other`, which is the same run of the same kernel.
    pub(crate) fn numbers_processes_as(&self, other: &Self) -> bool {
        self.boot == other.boot && self.pids.is_some() && self.pids == other.pids
    }

    /// `true` if a path means the same to `other`, as far as that is known.
    pub(crate) fn sees_what_is_seen_by(&self, other: &Self) -> bool {
        match (self.root, other.root) {
            (Some(own), Some(root)) if self.boot == other.boot => own == root,
            (Some(own), Some(root)) => own.inode == root.inode,
            _ => true,
        }
    }

    /// `true` if `self` is the same run of the same kernel as `other`, or an earlier one where `may_be_earlier`.
    fn is_same(&self, other: &Self, may_be_earlier: bool) -> bool {
        let same_machine = self.machine.is_some() && self.machine == other.machine && self.name == other.name;
        self.boot == other.boot || may_be_earlier && same_machine
    }
}

/// The facts about a lease that are known on one host, from which [`Lease::standing`] decides if the lease is
/// valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseFacts {
    /// `true` if a process holds the lock on the lease's file.
    pub is_locked: bool,
    /// `true` if the store is on a file system that only one host at a time can have mounted.
    pub is_on_local_filesystem: bool,
    /// The state of the disk's record file that the lease names.
    pub record: RecordSeen,
    /// `true` if the process that wrote the lease is known to have ended.
    pub process_is_gone: bool,
    /// The state of the writable directory that the lease names.
    pub directory: DirectorySeen,
}

/// The observed state of the record file of a disk. The file exists as long as the disk is to be started
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordSeen {
    /// The record file exists, can be trusted and names the image; or it is in a directory that this user
    /// cannot look into.
    Holds,
    /// The record file does not exist, or the lease names none.
    IsGone,
    /// The state cannot be told, for instance because the file is not a record or does not name the image.
    Unknown,
}

/// The observed state of a writable directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectorySeen {
    /// The directory holds the disk that the lease names, based on the image that the lease names.
    Holds,
    /// The directory does not exist, or it holds another disk or one that is based on another image.
    IsGone,
    /// The state cannot be told: the file system is not mounted, the directory cannot be read, or the lease
    /// is not of a writable directory.
    Unknown,
}

/// The state of a lease: valid, over, or not known on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Valid: the holder exists and needs the image.
    Held,
    /// Over: the holder is gone, and the lease may be removed.
    Over,
    /// Not known: only another host or container can tell, the facts that decide are not known, or the lease cannot be
    /// read. The lease is treated as valid.
    Foreign,
}

impl Lease {
    /// Makes a lease that this process writes, with its process id.
    #[must_use]
    pub fn new(
        holder: LeaseHolder,
        image: Digest,
        blobs: Vec<Digest>,
        reference: String,
        host: HostId,
    ) -> Self {
        Self { version: VERSION, holder, image, blobs, reference, host, pid: std::process::id() }
    }

    /// Decides on the state of the lease, from the facts `seen` on the host `here`.
    #[must_use]
    pub fn standing(&self, here: &HostId, seen: &LeaseFacts) -> Standing {
        if seen.is_locked {
            return Standing::Held;
        }
        if !self.host.is_same(here, seen.is_on_local_filesystem) {
            return Standing::Foreign;
        }
        // A path that is missing here may exist in the container that wrote this.
        let sees_all = here.sees_what_is_seen_by(&self.host);
        match &self.holder {
            LeaseHolder::Attach { record: None } => Standing::Over,
            LeaseHolder::Attach { record: Some(_) } => match seen.record {
                RecordSeen::Holds => Standing::Held,
                RecordSeen::IsGone if sees_all => Standing::Over,
                RecordSeen::IsGone | RecordSeen::Unknown => Standing::Foreign,
            },
            LeaseHolder::Writable { .. } => match seen.directory {
                DirectorySeen::Holds => Standing::Held,
                DirectorySeen::IsGone if !sees_all => Standing::Foreign,
                DirectorySeen::IsGone => Standing::Over,
                DirectorySeen::Unknown => Standing::Foreign,
            },
        }
    }

    /// `true` if the process that wrote the lease ran under the same kernel and process id namespace as this
    /// one, and has ended. `false` if it runs or nothing is known.
    #[must_use]
    pub fn process_is_gone(&self) -> bool {
        let is_here = HostId::here().is_ok_and(|here| here.numbers_processes_as(&self.host));
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).filter(|_| is_here);
        // Unlike /proc, this knows processes of other users even if these are hidden.
        pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }

    /// Parses the JSON text of a lease.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Corrupt`] if `bytes` is not a lease; [`headstart_block::ErrorKind::Unsupported`]
    /// if it is of another version.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |e| Error::corrupt("is not a lease").caused_by(e);
        let Versioned { version } = serde_json::from_slice(bytes).map_err(damaged)?;
        if version != VERSION {
            let cause = format!("is a lease of version {version}, this program knows version {VERSION}");
            return Err(Error::unsupported(cause));
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }

    /// Returns the JSON text of the lease.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if a path in the lease is not valid UTF-8.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::invalid("cannot make a lease").caused_by(e))
    }
}

/// The holder, as a text for people.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Other hosts write leases, and this goes to terminals.
        let clean = |text: &str| text.replace(char::is_control, "?");
        let host = clean(&self.host.name);
        match &self.holder {
            LeaseHolder::Attach { record: None } => {
                write!(f, "`headstart attach` (process {} on {host})", self.pid)
            }
            LeaseHolder::Attach { record: Some(record) } => {
                let disk = clean(&record.file_stem().unwrap_or_default().to_string_lossy());
                write!(f, "the disk {disk} of the agent on {host}")
            }
            LeaseHolder::Writable { dir, .. } => {
                write!(f, "the writable directory {} on {host}", clean(&dir.to_string_lossy()))
            }
        }
    }
}

/// A lease that was found in a store, valid or not.
#[derive(Debug)]
pub struct FoundLease {
    /// The name of the lease in the store; for a file whose name is not UTF-8, `not-utf-8/` and its escaped name, which
    /// no file can have as its name.
    pub id: String,
    /// The lease, or the error that explains why it cannot be read or understood.
    pub lease: Result<Lease>,
    /// `true` if a process holds the lock on the lease's file. Always `false` in object stores, which have no
    /// locks.
    pub is_locked: bool,
    /// The time at which the lease was last written or renewed, by the clock of the store.
    pub written: SystemTime,
}

impl FoundLease {
    /// `true` if the lease is damaged, is not locked, and by its name is of a disk that is not to be started again. A
    /// power failure then interrupted its writing, and also ended the process that wrote it, so the lease is over.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        let is_none = self.lease.as_ref().is_err_and(|e| e.kind() == ErrorKind::Corrupt);
        is_none && !self.is_locked && self.id.starts_with(ATTACH)
    }
}

/// A lease from a store, together with its state as judged on this host.
#[derive(Debug)]
pub struct JudgedLease {
    /// The lease as it was found in the store.
    pub found: FoundLease,
    /// The state of the lease.
    pub standing: Standing,
}

/// Returns advice for a user whose command ended without deleting anything, because the lease `id` of `store` could not
/// be read or understood. `error` is the error of reading or parsing the lease, which is treated as valid.
#[must_use]
pub fn undecided(error: &Error, store: &str, id: &str) -> String {
    if error.kind() == ErrorKind::Denied {
        let user = "a user who may read it, such as the owner of the store";
        return format!("it counts, whatever it holds, and nothing was deleted: run it as {user}");
    }
    let (store, id) = (shell_word(store), shell_word(id));
    format!(
        "nothing was deleted: use the release that wrote it, or take it away by `headstart lease release {store} \
         --id {id}`"
    )
}

/// Makes the error of a removal that was refused because disks need the image. Its kind is
/// [`headstart_block::ErrorKind::Conflict`]. `holders` has a description of each disk, such as "the writable directory
/// DIR on HOST"; `store` is the name of the store, for the advice in the error.
#[must_use]
pub fn in_use(holders: &[String], store: &str) -> Error {
    let list = format!("`headstart lease list {}` shows its holders", shell_word(store));
    Error::new(ErrorKind::Conflict, format!("is in use by {}", holders.join(", "))).remedy(format!(
        "detach it first, or delete the writable directory if its content is not needed any more ({list}); --force \
         removes the tag anyway"
    ))
}

/// A lease in a directory store, whose file this process has locked. Dropping this value ends the lease, unless the
/// lease names a record file that still exists, because the disk is then to be started again.
#[derive(Debug)]
pub struct HeldLease {
    dir: GuardedDir,
    id: String,
    /// As long as this is there, the lease outlives the process.
    record: Option<PathBuf>,
    _file: File,
}

impl HeldLease {
    /// Ends the lease, even if the disk's record file still exists. The caller uses this if the disk is not to be
    /// started again.
    pub fn release(mut self) {
        self.record = None;
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if !self.record.as_deref().is_some_and(Path::exists) {
            // Best effort: without its lock it is over anyway.
            let _ = self.dir.remove_file(&self.id);
        }
    }
}

impl LayoutDir {
    /// Returns the path of the directory that holds the leases.
    #[must_use]
    pub fn leases_dir(&self) -> PathBuf {
        self.private_dir().join(LEASES)
    }

    /// Writes and locks the lease of an attached disk, with the name `id`. The lease is valid at least as long
    /// as the returned value exists. It is synced only if the disk is to be started again. Otherwise a power
    /// failure may tear it, which does no harm: the power failure also ends the process that holds the lease
    /// ([`FoundLease::is_torn`]).
    ///
    /// # Errors
    /// Errors of writing or locking a file.
    pub fn hold(&self, _lock: &LayoutLock, id: &str, lease: &Lease) -> Result<HeldLease> {
        let record = match &lease.holder {
            LeaseHolder::Attach { record } => record.clone(),
            LeaseHolder::Writable { .. } => None,
        };
        let (dir, file) = self.write_lease(id, lease, record.is_some())?;
        Ok(HeldLease { dir, id: id.to_owned(), record, _file: file })
    }

    /// Writes the lease of a writable directory, unless the same lease is there already. It survives a power
    /// failure.
    ///
    /// # Errors
    /// Errors of writing a file.
    pub fn keep_lease(&self, _lock: &LayoutLock, id: &str, lease: &Lease) -> Result<()> {
        let dir = self.private_part(LEASES).ok().flatten();
        let there = dir.and_then(|dir| read_lease(&dir.open_file(id, FileAccess::Read).ok()?).ok()?.ok());
        // The process that wrote it does not matter.
        if there.is_some_and(|there| Lease { pid: lease.pid, ..there } == *lease) {
            return Ok(());
        }
        self.write_lease(id, lease, true).map(drop)
    }

    /// Removes the lease `id`. A lease that is not there is not an error.
    ///
    /// # Errors
    /// Errors of deleting a file.
    pub fn remove_lease(&self, id: &str) -> Result<()> {
        let failed = |e| Error::io("cannot remove a lease", e).about(self.leases_dir().join(id).display());
        let Some(dir) = self.private_part(LEASES).map_err(failed)? else { return Ok(()) };
        let name = if id.starts_with(NOT_UTF8) {
            dir.all_names().map_err(failed)?.into_iter().find(|name| id_of(name) == id)
        } else {
            Some(OsString::from(id))
        };
        let Some(name) = name else { return Ok(()) };
        match dir.remove_file(&name) {
            // Not a lease, but in the way of one.
            Err(e) if e.kind() == io::ErrorKind::IsADirectory => dir.remove_dir(&name).map_err(|e| {
                failed(e).remedy(
                    "look at what is in it, and delete it: no release of headstart makes directories there",
                )
            }),
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
            _ => Ok(()),
        }
    }

    /// Returns all leases of the store, ordered by their names. Damaged ones are included, with their errors.
    ///
    /// # Errors
    /// Errors of reading the directory.
    pub fn leases(&self) -> Result<Vec<FoundLease>> {
        let failed = |e| Error::io("cannot read the leases", e).about(self.leases_dir().display());
        let Some(dir) = self.private_part(LEASES).map_err(failed)? else { return Ok(Vec::new()) };
        let allowed = self.modes().map_err(failed)?.file.mode;
        let names = dir.all_names().map_err(failed)?;
        let found = names.into_iter().filter_map(|name| match name.into_string() {
            Ok(id) if id.starts_with('.') => None,
            Ok(id) => found_lease(&dir, id, allowed),
            Err(name) => Some(misnamed_lease(&dir, &name)),
        });
        let mut found: Vec<_> = found.collect();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// Gives a file its name as a lease only once it is whole and locked. Under the layout's lock.
    fn write_lease(&self, id: &str, lease: &Lease, is_durable: bool) -> Result<(GuardedDir, File)> {
        let bytes = lease.to_bytes()?;
        let write = || {
            let dir = self.make_private_part(LEASES)?;
            let (new, mut file) = temporary(&dir, Creation::Like(self.modes()?.file))?;
            let written = file
                .lock()
                .and_then(|()| file.write_all(&bytes))
                .and_then(|()| if is_durable { file.sync_all() } else { Ok(()) })
                .and_then(|()| dir.rename(&new, &dir, id));
            if written.is_err() {
                let _ = dir.remove_file(&new);
            }
            written?;
            if is_durable {
                dir.sync()?;
                self.make_private()?.sync()?;
                sync_dir(self.root())?;
            }
            Ok((dir, file))
        };
        write().map_err(|e| cannot_write(e, &self.leases_dir().join(id)))
    }
}

/// The id of the lease in the file `name`.
fn id_of(name: &OsStr) -> String {
    name.to_str().map_or_else(|| format!("{NOT_UTF8}{}", name.as_bytes().escape_ascii()), str::to_owned)
}

/// A file whose name no lease has, whatever it holds.
fn misnamed_lease(dir: &GuardedDir, name: &OsStr) -> FoundLease {
    let id = id_of(name);
    let lease = Err(Error::invalid("its name is not UTF-8: no lease").about(format!("lease {id}")));
    FoundLease { id, lease, is_locked: false, written: written(dir, name) }
}

/// The time at which an entry was written, as far as that can be told.
fn written(dir: &GuardedDir, name: impl AsRef<OsStr>) -> SystemTime {
    let seconds = dir.modified(name).unwrap_or(0);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Reads a lease, or finds out why it cannot be read; `None` if it has just gone. A readable lease is closed to users
/// beyond `allowed`.
fn found_lease(dir: &GuardedDir, id: String, allowed: u32) -> Option<FoundLease> {
    let about = |e: Error| e.about(format!("lease {}", id.escape_debug()));
    let look = || -> io::Result<_> {
        let file = dir.open_file(&id, FileAccess::Read)?;
        tighten(&file, allowed);
        let is_locked = match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(e)) => return Err(e),
        };
        Ok((is_locked, file.metadata()?.modified()?, read_lease(&file)?))
    };
    let (is_locked, written, lease) = match look() {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) => (false, written(dir, &id), Err(unreadable(e))),
    };
    let lease = lease.map_err(about);
    Some(FoundLease { id, lease, is_locked, written })
}

/// The error of an entry that is not a file, or of one that cannot be read.
fn unreadable(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => Error::invalid(format!("{error}: no lease")),
        io::ErrorKind::PermissionDenied => Error::new(ErrorKind::Denied, "cannot be read by this user"),
        _ => Error::io("cannot be read", error),
    }
}

/// Reads the lease in a file; the inner error is that of a file that is not a lease.
fn read_lease(file: &File) -> io::Result<Result<Lease>> {
    let mut bytes = Vec::new();
    file.take(LEASE_MAX + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > LEASE_MAX { Err(too_long()) } else { Lease::parse(&bytes) })
}

/// The error of a lease that is longer than leases are.
pub(crate) fn too_long() -> Error {
    Error::invalid(format!("is longer than the {LEASE_MAX} bytes that a lease may have"))
}

fn cannot_write(error: io::Error, path: &Path) -> Error {
    Error::io("cannot write a lease", error).about(path.display())
}

#[cfg(test)]
mod tests;
