//! FUSE: a disk as a file, which loop devices, hypervisors and plain programs open.
//!
//! # The mounted file
//!
//! On a mount point that is a directory, the mounted file system is a directory with one file, which has the disk's
//! exact size in bytes. On a regular file, the mounted file system is that one file alone (its root is a file). The
//! file belongs to the user of this process, with mode 0600, or 0400 if the disk is read-only, unless
//! [`FuseSettings::access`] says otherwise; the mount point's owner and permissions do not matter. A symbolic link in
//! the path of the mount point is followed only if it belongs to root or to this user (`place`).
//!
//! # The path of a request
//!
//! ```text
//! kernel -> worker: local read, write of whole sectors ---------------> answer
//!              \-> blocking pool: remote bytes, part sector, flush -> answer
//! ```
//!
//! A worker (`image`) never waits for anything but the local disk. A request that might wait goes to a blocking pool
//! (`BlockingPool`; flushes have one of their own), and is answered from there.
//!
//! # Caching in the kernel
//!
//! * The kernel caches pages that were read, so that memory maps, `exec` and loop devices work. A program that wants no
//!   caching opens the file with `O_DIRECT`. The cached pages of a read-only disk stay when the file is closed and
//!   opened again; those of a writable disk are dropped at each open, because another server may have written to the
//!   disk.
//! * The kernel caches no writes, except through writable memory maps. When a `write` has returned, its bytes have
//!   reached the disk; when an `fsync` has returned, they are durable. So a program that is killed loses nothing, and a
//!   server that is killed loses only bytes that were not flushed.
//!
//! # The end
//!
//! A server that stops fails requests that wait for remote bytes, lets the rest finish for [`STOP_TIMEOUT`],
//! and unmounts. If a program still has the file open, changes through memory maps are written, the connection is cut
//! (the program gets errors) and the mount point freed. A server that is killed leaves a mount point that says
//! "Transport endpoint is not connected"; the next start at the same place clears it away (`mount`). Only root can cut
//! a connection: without root, the threads of a busy mount go on until the last user has closed the file, or the
//! process ends.

mod image;
mod image_writer;
mod mount;
mod mount_table;
mod place;
mod range_lock;
mod tree;

use self::image::Image;
use self::mount::{Mount, Unmounted};
use self::tree::Tree;
use crate::{ClientCounts, Export, STOP_TIMEOUT, Server, SocketAccess};
use fuser::{INodeNo, Notifier, Session, SessionACL};
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

/// The largest read or write: 256 pages, the most that kernels allow.
const TRANSFER: u32 = 1 << 20;

/// Requests in the background (readahead, asynchronous direct I/O) that may be under way at once. The kernel's own
/// default of 12 would let a dozen slow reads stop all others.
const BACKGROUND: u16 = 512;

/// The time that the workers get to notice that the file system is gone.
const WORKERS_END: Duration = Duration::from_secs(2);

/// The settings for serving a disk as a file that FUSE mounts.
#[derive(Clone, Debug)]
pub struct FuseSettings {
    /// The name of the disk's file if the mount point is a directory; not empty and without `/`. If the mount point is
    /// a regular file, the name is checked, but not used.
    pub file_name: OsString,
    /// The number of threads that receive requests from the kernel; 0 counts as 1. By default one for each
    /// processor, at most 4.
    pub workers: usize,
    /// The maximum number of threads for requests that may wait, such as reads of bytes that are not on this
    /// host. The threads are started when they are needed. 64 by default.
    pub waiting_max: usize,
    /// The owner and permissions of the file, which decide the users that may open it. By default only this
    /// process's user may, even if others may open the mount point.
    pub access: SocketAccess,
    /// `true` if a user that may write the file may also enlarge it, which enlarges the disk. `false` by
    /// default.
    pub allow_resize: bool,
}

impl Default for FuseSettings {
    /// `disk.raw`; a worker a core, four at most; 64 requests that wait; of a fixed size.
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let access = SocketAccess::default();
        let (workers, allow_resize) = (cores.min(4), false);
        Self { file_name: "disk.raw".into(), workers, waiting_max: 64, access, allow_resize }
    }
}

/// A server of one disk that is mounted as a file by FUSE. Dropping it unmounts the disk.
pub struct FuseServer {
    /// The path of the file.
    path: PathBuf,
    inode: INodeNo,
    image: Arc<Image>,
    notifier: Notifier,
    /// `None` once it has been stopped.
    mount: Mutex<Option<Mount>>,
    /// Receives the outcome of the workers.
    ended: Mutex<Receiver<io::Result<()>>>,
}

impl FuseServer {
    /// Mounts the disk at `path`, a directory or a regular file, and serves it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is nothing at `path`, [`ErrorKind::Invalid`] if `path` is neither a directory
    /// nor a regular file, or if the file name of `settings` is not valid, [`ErrorKind::Conflict`] if a disk is mounted
    /// there already. [`ErrorKind::Denied`] if the way to `path` goes through a symbolic link that belongs to neither
    /// root nor this user, or if `path` belongs to another user in a directory that all users may write to.
    /// [`ErrorKind::Io`] with a remedy if this host cannot mount.
    pub fn start(export: Export, path: &Path, settings: &FuseSettings) -> Result<Self> {
        let place = mount::repair(path)?;
        let (point, metadata) = place.open_point().map_err(|error| error.about(place.path().display()))?;
        if settings.file_name.as_encoded_bytes().contains(&b'/') || settings.file_name.is_empty() {
            return Err(
                Error::invalid("the path does not end in a file name").about(settings.file_name.display())
            );
        }
        let name = metadata.is_dir().then(|| settings.file_name.clone());
        let file = name.as_ref().map_or_else(|| place.path().to_owned(), |name| place.path().join(name));
        let image = Arc::new(Image::new(export, settings.waiting_max));
        let tree = Tree::new(Arc::clone(&image), name, &metadata, settings);
        let inode = tree.file();
        let (fuse, mount) = Mount::new(place, (point, &metadata), image.read_only, &settings.access)?;
        let mut config = fuser::Config::default();
        config.n_threads = Some(settings.workers.max(1));
        config.clone_fd = true;
        // The kernel decides which users may look, by the mount's options.
        let session = Session::from_fd(tree, fuse, SessionACL::All, config);
        let session = session
            .map_err(|error| Error::io("the kernel does not talk to us", error).about(path.display()))?;
        let notifier = session.notifier();
        let (end, ended) = mpsc::channel();
        let run = move || {
            let _ = end.send(session.run());
        };
        thread::Builder::new()
            .name("fuse".to_owned())
            .spawn(run)
            .map_err(|error| Error::io("cannot start a thread", error))?;
        let (mount, ended) = (Mutex::new(Some(mount)), Mutex::new(ended));
        Ok(Self { path: file, inode, image, notifier, mount, ended })
    }

    /// The path of the mounted file that has the disk's bytes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn shut_down(&self) -> Result<()> {
        let Some(mut mount) = self.mount.lock().take() else { return Ok(()) };
        self.image.give_up_waiting();
        let idle = self.image.wait_idle(STOP_TIMEOUT);
        // With a request that does not end, an unmount could wait for ever.
        let unmounted = if idle { mount.unmount() } else { Ok(Unmounted::Busy) };
        let unmounted = match unmounted {
            Ok(Unmounted::Busy) => {
                if idle {
                    self.write_back_maps();
                }
                tracing::warn!("{}: it is in use; its users get errors from now on", self.path.display());
                mount.force();
                Ok(())
            }
            other => other.map(|_| ()),
        };
        if let Err(RecvTimeoutError::Timeout) = self.ended.lock().recv_timeout(WORKERS_END) {
            tracing::warn!("{}: its threads go on until no process has it open", self.path.display());
        }
        let flushed = if self.image.read_only { Ok(()) } else { self.image.make_durable() };
        unmounted.and(flushed).map_err(|error| error.about(self.path.display()))
    }

    fn write_back_maps(&self) {
        let (done, synced) = mpsc::channel();
        let path = self.path.clone();
        let sync = move || {
            let _ = done.send(mount::sync_file(&path));
        };
        let started = thread::Builder::new().name("fuse-sync".to_owned()).spawn(sync).is_ok();
        if started && !matches!(synced.recv_timeout(STOP_TIMEOUT), Ok(Ok(()))) {
            let path = self.path.display();
            tracing::warn!("{path}: changes that its users made through memory maps may be lost");
        }
    }
}

impl Server for FuseServer {
    fn uri(&self) -> String {
        self.path.display().to_string()
    }

    fn resized(&self) {
        // A negative offset asks for new attributes and leaves the pages.
        if let Err(error) = self.notifier.inval_inode(self.inode, -1, 0) {
            tracing::debug!("{}: the kernel sees the new size a little later: {error}", self.path.display());
        }
    }

    fn clients(&self) -> ClientCounts {
        *self.image.clients.lock()
    }

    fn failed(&self) -> Option<Error> {
        if self.mount.lock().is_none() {
            return None;
        }
        let cause = match self.ended.lock().try_recv() {
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            Ok(Ok(())) => Error::new(ErrorKind::Cancelled, "it was unmounted from outside"),
            Ok(Err(error)) => Error::io("the connection to the kernel failed", error),
        };
        Some(cause.about(self.path.display()))
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.shut_down()
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!("{error}");
        }
    }
}

/// Removes the mount that a server left at `path` when it was killed. Does nothing if nothing is mounted
/// there.
///
/// # Errors
/// Those of [`FuseServer::start`] for a path at which it cannot mount, such as one at which a running server
/// has mounted a disk.
pub fn clear(path: &Path) -> Result<()> {
    mount::repair(path).map(drop)
}
