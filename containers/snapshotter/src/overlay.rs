//! Ordinary snapshots: directories that overlayfs puts together, as containerd's own overlayfs snapshotter has them.
//!
//! ```text
//!   ROOT/journal            the table
//!   ROOT/snapshots/         0700
//!     7/                    0700, a snapshot's number
//!       fs/                 the files by which it differs from its parent; the owner and mode of the tree's root
//!       work/               0711, for overlayfs; active snapshots only
//!     8/                    0700, a snapshot with a disk of its own
//!       block/              0700, until it is committed: the places of the disk, which its source makes
//!       fs/overlaybd.sealed once it is committed: the blocks by which it differs from its parent
//!     new-9/                a directory that is being made
//! ```
//!
//! # Mounts
//!
//! | snapshot | mount |
//! |---|---|
//! | active, no parent | `bind` of its `fs`, `rw` |
//! | active | `overlay` with `workdir`, `upperdir` and a `lowerdir` for each layer, the top one first |
//! | view, no parent | `bind` of its `fs`, `ro` |
//! | view of one layer | `bind` of the layer's directory, `ro` |
//! | view | `overlay` with `lowerdir` only |
//! | active, with a disk of its own | `bind` of the directory that it is mounted on, `rw`; or the device, as `ext4` |
//!
//! Layers that are a disk, which are the lowest of a tree, are one directory. Mounts are made by containerd, not here.
//!
//! Differences from containerd's snapshotter, on purpose: the root of a tree has the permission bits of its parent's,
//! as it has the owner; directories are durable before the snapshot is; only directories with names as above are ever
//! removed.

mod usage;

pub use usage::usage_of;

use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::record::{DiskAccess, SnapshotId};
use crate::table::{SnapshotPlace, SnapshotStep, SnapshotTree};
use headstart_block::guarded::is_trusted;
use headstart_block::{Error, ErrorKind, Result, private, sync_dir};
use rustix::fs::CWD;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

/// The parameter of overlayfs that is there if the kernel knows the mount option `index`.
const INDEX: &str = "/sys/module/overlay/parameters/index";

/// A mount that containerd is told to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMount {
    /// `bind`, `overlay` or `ext4`.
    pub kind: &'static str,
    /// The directory that is bound, `overlay`, or the device.
    pub source: String,
    /// The options, in containerd's order.
    pub options: Vec<String>,
}

/// The root directory of snapshots.
#[derive(Clone, Debug)]
pub struct OverlayRoot {
    /// Its path, in the form in which mounts have it.
    root: String,
    options: Vec<String>,
}

/// A directory below `snapshots` that no snapshot has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanDirectory {
    /// Its path.
    pub path: PathBuf,
    /// The number in its name.
    pub id: SnapshotId,
}

impl OverlayRoot {
    /// Opens the root directory, or makes it. `options` go into every mount of overlayfs.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if overlayfs cannot be told the path; errors of the operating system.
    pub fn open(root: &Path, options: &[String]) -> Result<Self> {
        let failed = |error| Error::io("cannot make the directory", error).about(root.display());
        private::make_directory(root).map_err(failed)?;
        let root = fs::canonicalize(root).map_err(failed)?;
        let text = root.to_str().filter(|text| !text.contains([':', ',', '\\', '"']));
        let Some(text) = text else {
            let error = Error::invalid("has a character that mount options of overlayfs cannot have");
            return Err(error.about(root.display()).remedy("choose a path of plain letters"));
        };
        let opened = Self { root: text.to_owned(), options: with_defaults(options) };
        private::make_directory(&opened.path(SnapshotPlace::All)).map_err(failed)?;
        for path in [&root, &opened.path(SnapshotPlace::All)] {
            check_owner(path)?;
        }
        sync_dir(&root).map_err(failed)?;
        Ok(opened)
    }

    /// A place's path.
    #[must_use]
    pub fn path(&self, place: SnapshotPlace) -> PathBuf {
        PathBuf::from(self.text(place))
    }

    fn text(&self, place: SnapshotPlace) -> String {
        let all = format!("{}/snapshots", self.root);
        match place {
            SnapshotPlace::All => all,
            SnapshotPlace::New(id) => format!("{all}/new-{id}"),
            SnapshotPlace::NewUpper(id) => format!("{all}/new-{id}/fs"),
            SnapshotPlace::NewWork(id) => format!("{all}/new-{id}/work"),
            SnapshotPlace::Of(id) => format!("{all}/{id}"),
            SnapshotPlace::Upper(id) => format!("{all}/{id}/fs"),
            SnapshotPlace::Work(id) => format!("{all}/{id}/work"),
            SnapshotPlace::NewBlock(id) => format!("{all}/new-{id}/block"),
            SnapshotPlace::Block(id) => format!("{all}/{id}/block"),
        }
    }

    /// Carries out a step on directories. Steps that concern the table or remote layers are passed over.
    ///
    /// # Errors
    /// [`FaultKind::Failed`].
    pub fn carry_out(&self, step: &SnapshotStep) -> FaultResult<()> {
        let (place, done) = match step {
            SnapshotStep::MakeDirectory { place, mode } => {
                (*place, make_directory(&self.path(*place), *mode))
            }
            SnapshotStep::CopyOwner { from, to } => (*to, copy_owner(&self.path(*from), &self.path(*to))),
            SnapshotStep::Sync(place) => (*place, sync_dir(&self.path(*place))),
            SnapshotStep::Rename { from, to } => (*to, self.rename(*from, *to)),
            SnapshotStep::Remove(place) => (*place, remove(&self.path(*place))),
            SnapshotStep::Record(_)
            | SnapshotStep::Forget(_)
            | SnapshotStep::CloseDisk(_)
            | SnapshotStep::LeaveDisk(_) => return Ok(()),
        };
        done.map_err(|error| {
            let error = Error::io("cannot be made ready", error).about(self.text(place));
            SnapshotFault::new(FaultKind::Failed, error.to_string())
        })
    }

    /// Gives the root of a snapshot's own files the owner, the group and the permission bits of the directory `from`.
    ///
    /// # Errors
    /// [`FaultKind::Failed`].
    pub fn copy_owner_of(&self, from: &Path, id: SnapshotId) -> FaultResult<()> {
        let failed = |error| Error::io("cannot be looked at", error).about(from.display());
        Ok(copy_owner(from, &self.path(SnapshotPlace::Upper(id))).map_err(failed)?)
    }

    /// A directory that is in the way is a fault: renaming would replace an empty one.
    fn rename(&self, from: SnapshotPlace, to: SnapshotPlace) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        Ok(rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags)?)
    }

    /// Makes everything durable that was written to the file system of the snapshots so far.
    ///
    /// # Errors
    /// [`FaultKind::Failed`].
    pub fn sync_files(&self) -> FaultResult<()> {
        let path = self.path(SnapshotPlace::All);
        let synced = File::open(&path).and_then(|root| Ok(rustix::fs::syncfs(&root)?));
        synced.map_err(|error| Error::io("cannot be made durable", error).about(path.display()).into())
    }

    /// The directories that are none of a snapshot's, by a function that says which numbers are used.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn orphans(&self, is_used: impl Fn(SnapshotId) -> bool) -> Result<Vec<OrphanDirectory>> {
        let all = self.path(SnapshotPlace::All);
        let failed = |error| Error::io("cannot be listed", error).about(all.display());
        let mut orphans = Vec::new();
        for entry in fs::read_dir(&all).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let (number, is_new) = name.strip_prefix("new-").map_or((name, false), |number| (number, true));
            match number.parse().map(SnapshotId) {
                Ok(id) if id.to_string() == number && (is_new || !is_used(id)) => {
                    orphans.push(OrphanDirectory { path, id });
                }
                Ok(_) => {}
                Err(_) => {
                    tracing::warn!(path = %path.display(), "this is no directory of a snapshot, and stays");
                }
            }
        }
        Ok(orphans)
    }

    /// The mounts of a tree, whose layers that are a disk, if it has any, are in the directory `remote`.
    #[must_use]
    pub fn mounts(&self, tree: &SnapshotTree, remote: Option<&str>) -> Vec<SnapshotMount> {
        use crate::record::SnapshotContent::Directory;
        let own = tree.layers.iter().take_while(|(_, content)| *content == Directory);
        let mut lower: Vec<_> = own.map(|(id, _)| self.text(SnapshotPlace::Upper(*id))).collect();
        lower.extend(remote.map(str::to_owned));
        let bind = |source: String, access: &str| {
            vec![SnapshotMount { kind: "bind", source, options: vec![access.to_owned(), "rbind".to_owned()] }]
        };
        let upper = self.text(SnapshotPlace::Upper(tree.id));
        match (lower.as_slice(), tree.is_writable) {
            ([], true) => return bind(upper, "rw"),
            ([], false) => return bind(upper, "ro"),
            ([only], false) => return bind(only.clone(), "ro"),
            _ => {}
        }
        let mut options = self.options.clone();
        if tree.is_writable {
            options.push(format!("workdir={}", self.text(SnapshotPlace::Work(tree.id))));
            options.push(format!("upperdir={upper}"));
        }
        options.push(format!("lowerdir={}", lower.join(":")));
        vec![SnapshotMount { kind: "overlay", source: "overlay".to_owned(), options }]
    }
}

/// The mounts of an active snapshot whose own disk is at `source`.
#[must_use]
pub(crate) fn mounts_of_disk(access: DiskAccess, source: String) -> Vec<SnapshotMount> {
    let (kind, options): (_, &[&str]) = match access {
        DiskAccess::Directory => ("bind", &["rw", "rbind"]),
        // The superblock may ask the kernel to panic at the first error.
        DiskAccess::Device => ("ext4", &["rw", "discard", "errors=remount-ro"]),
    };
    let options = options.iter().map(|&option| option.to_owned()).collect();
    vec![SnapshotMount { kind, source, options }]
}

/// Refuses a directory that another user could change: what is in it is mounted, renamed and removed as root.
fn check_owner(path: &Path) -> Result<()> {
    let found =
        fs::metadata(path).map_err(|error| Error::io("cannot be looked at", error).about(path.display()))?;
    if is_trusted(&found) && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Denied, "can be changed by other users").about(path.display());
    Err(error.remedy("give it to this user alone: chown and chmod 0700"))
}

/// The options of mounts, with those that containerd adds: without an index, trees can be mounted twice; in a user
/// namespace, overlayfs may write only attributes of users.
fn with_defaults(options: &[String]) -> Vec<String> {
    let mut options = options.to_vec();
    if is_in_user_namespace() && !options.iter().any(|option| option == "userxattr") {
        options.push("userxattr".to_owned());
    }
    let has_index = options.iter().any(|option| option == "index" || option.starts_with("index="));
    if !has_index && Path::new(INDEX).exists() {
        options.push("index=off".to_owned());
    }
    options
}

/// `true` if this process is in a user namespace other than the first, whose map has all numbers.
fn is_in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.is_empty() && map.split_whitespace().ne(["0", "0", "4294967295"])
}

fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(mode).create(path)?;
    // The process's mask has taken bits away.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn copy_owner(from: &Path, to: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(from)?;
    lchown(to, Some(found.uid()), Some(found.gid()))?;
    // Changing the owner may take bits away, so the mode comes last.
    fs::set_permissions(to, Permissions::from_mode(found.mode() & 0o7777))
}

/// Removes a directory, unless there is none.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests;
