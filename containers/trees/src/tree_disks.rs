//! Disks of trees, in the hands of the agent of this host, and their names there.

use crate::tree_name::{ID_DIGITS, TreeName};
use headstart_block::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The beginning of the names of the agent's disks that belong to images.
pub(crate) const DISK_PREFIX: &str = "tree-";
/// The file with the name of a disk. Trees of earlier versions have none: their disks are named by their ids.
pub(crate) const DISK_NAME: &str = "disk-name";
/// The socket at which the process of a disk is told of containers.
pub(crate) const STARTS_SOCKET: &str = "starts.sock";

/// The outcome of attaching a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachOutcome {
    /// The disk was not there before.
    New,
    /// The disk was there.
    Existing,
}

/// A disk that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedTree {
    /// The outcome of attaching it.
    pub outcome: AttachOutcome,
    /// The block device that it is; `None`: it is served over the file of the order. An earlier process of the
    /// snapshotter may have chosen another way than this one would.
    pub device: Option<PathBuf>,
}

/// A disk that is to be served.
#[derive(Clone, Copy, Debug)]
pub struct DiskOrder<'a> {
    /// Its content.
    pub tree: &'a TreeName,
    /// The name by which users know its image.
    pub image: &'a str,
    /// The file, which is there and empty, over which it is served.
    pub file: &'a Path,
    /// The directory that takes what is written to it; `None`: it is read-only.
    pub writable: Option<&'a Path>,
    /// The most bytes that this directory may take.
    pub most: Option<u64>,
    /// The socket at which its process is told of containers that start.
    pub starts: &'a Path,
    /// The name of the program in the image's config; empty if it is not known.
    pub entrypoint: &'a str,
}

/// The disks of trees: the agent of this host has them.
pub trait TreeDisks: Send + Sync {
    /// Serves a disk, and returns when it can be read. A disk of that name that is there already is left as it is. A
    /// disk that is written to is served over its file.
    ///
    /// # Errors
    /// Errors of the agent; those of attaching.
    fn attach(&self, name: &str, order: &DiskOrder<'_>) -> Result<AttachedTree>;

    /// Detaches a disk: all that was written to it is durable then. One that is not there is no error.
    ///
    /// # Errors
    /// Errors of the agent.
    fn detach(&self, name: &str) -> Result<()>;

    /// Tells the process of the disk with the socket `starts` that a container with this entrypoint starts. Returns
    /// `true` if its reads are recorded as those of such a start.
    ///
    /// # Errors
    /// Errors of the disk's process, and of the operating system.
    fn tell_start(&self, starts: &Path, entrypoint: &str) -> Result<bool>;

    /// Makes a second directory with what was written to a disk up to now, in the new directory `to`, without copying
    /// it. The disk may be served, and goes on.
    ///
    /// # Errors
    /// Errors of the disk.
    fn clone_written(&self, written: &Path, to: &Path) -> Result<()>;
}

/// A name for a disk that no other one has, not even of another snapshotter.
pub(crate) fn new_disk_name(prefix: &str) -> String {
    let random = Uuid::new_v4().simple().to_string();
    format!("{prefix}{}", &random[..ID_DIGITS])
}

/// The name at the agent of the disk in a directory. Without a name there, it is that of the tree with this id.
pub(crate) fn disk_name(directory: &Path, id: &str) -> Result<String> {
    match fs::read_to_string(directory.join(DISK_NAME)) {
        // An empty file is what a power cut may leave; the disk is gone with it.
        Ok(name) if !name.is_empty() => Ok(name),
        Ok(_) => Ok(format!("{DISK_PREFIX}{id}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(format!("{DISK_PREFIX}{id}")),
        Err(error) => Err(Error::io("cannot be read", error).about(directory.join(DISK_NAME).display())),
    }
}
