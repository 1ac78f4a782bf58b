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
//!   server that is killed loses what its disk loses then: a writable layer nothing that was answered.
//!
//! # The end
//!
//! A server that stops fails requests that wait for remote bytes, lets the rest finish for [`STOP_TIMEOUT`],
//! and unmounts. If a program still has the file open, changes through memory maps are written, the connection is cut
//! (the program gets errors) and the mount point freed. Only root can cut a connection: without root, the threads of a
//! busy mount go on until the last user has closed the file, or the process ends.
//!
//! A server that is killed leaves a mount point that says "Transport endpoint is not connected"; the next start at the
//! same place clears it away (`mount`). With a keeper ([`FuseSettings::keep`]) and on a kernel of 6.9 or later, the
//! file system stays instead: its users wait, and the next server goes on with the same mount (`kept`). That server
//! must have the same disk, by the words of [`KeepSettings::identity`]. A server that leaves ([`Server::leave`]) does
//! so in good order.

mod face;
mod image;
mod image_writer;
mod kept;
mod mount;
mod mount_table;
mod place;
mod range_lock;
mod tree;

pub use self::kept::{KeepSettings, too_old_to_keep};

use self::face::Face;
use self::image::Image;
use self::kept::{Keeping, KeptState};
use self::mount::{Mount, Unmounted};
use self::place::Place;
use self::tree::Tree;
use crate::keeper::is_dead;
use crate::{ClientCounts, Export, STOP_TIMEOUT, Server, SocketAccess};
use fuser::{INodeNo, Notifier, Session, SessionACL};
use headstart_block::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
    /// The process that keeps the mount if this one dies. `None`, by default: the mount ends with this process.
    pub keep: Option<KeepSettings>,
}

impl Default for FuseSettings {
    /// `disk.raw`; a worker a core, four at most; 64 requests that wait; of a fixed size; without a keeper.
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let access = SocketAccess::default();
        let (workers, allow_resize) = (cores.min(4), false);
        Self { file_name: "disk.raw".into(), workers, waiting_max: 64, access, allow_resize, keep: None }
    }
}

/// A server of one disk that is mounted as a file by FUSE. Dropping it unmounts the disk.
pub struct FuseServer {
    /// The path of the file.
    path: PathBuf,
    inode: INodeNo,
    image: Arc<Image>,
    /// Holds the connection to the kernel open.
    notifier: Notifier,
    /// The descriptor of the connection, as long as `notifier` is there.
    fuse: RawFd,
    keeping: Arc<Keeping>,
    /// `true` if an earlier process has mounted it.
    is_taken_over: bool,
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
        if settings.file_name.as_encoded_bytes().contains(&b'/') || settings.file_name.is_empty() {
            return Err(
                Error::invalid("the path does not end in a file name").about(settings.file_name.display())
            );
        }
        if let Some(left) = kept_at(path, settings.keep.as_ref()) {
            return Self::take_over(export, left, settings);
        }
        let place = mount::repair(path)?;
        let (point, metadata) = place.open_point().map_err(|error| error.about(place.path().display()))?;
        let image = Arc::new(Image::new(export, settings.waiting_max));
        let face = Face::new(image.read_only, &metadata, settings);
        let identity = settings.keep.as_ref().map(|keep| keep.identity.clone()).unwrap_or_default();
        let mut state = KeptState::new(identity, metadata.is_dir(), face);
        let file = file_at(place.path(), &state, settings);
        let (fuse, mount) = Mount::new(place, (point, &metadata), image.read_only, &settings.access)?;
        state.mount = mount.entry().cloned();
        let (tree, keeping) = tree_of(&image, state, settings);
        let spare = fuse.try_clone().map_err(|error| Error::io("cannot duplicate a descriptor", error))?;
        let inode = tree.file();
        // The kernel decides which users may look, by the mount's options.
        let session = Session::from_fd(tree, fuse, SessionACL::All, config_of(settings));
        let session = session
            .map_err(|error| Error::io("the kernel does not talk to us", error).about(path.display()))?;
        let server = Self::run(session, (file, inode), image, keeping, false)?;
        *server.mount.lock() = Some(mount);
        server.keep(settings, spare);
        Ok(server)
    }

    /// Goes on with a mount of an earlier process.
    fn take_over(export: Export, Left { fuse, state, place }: Left, settings: &FuseSettings) -> Result<Self> {
        let image = Arc::new(Image::new(export, settings.waiting_max));
        {
            let mut clients = image.clients.lock();
            (clients.connected, clients.ever) = (state.opened, state.opened as u64);
        }
        // Something may have been written since the last look at the times.
        image.modified.store(!image.read_only, Ordering::Release);
        let file = file_at(place.path(), &state, settings);
        let mount = state.mount.clone().map(|entry| Mount::taken_over(place, entry));
        let (tree, keeping) = tree_of(&image, state.clone(), settings);
        let inode = tree.file();
        let taken = kept::greet(tree, &state, &fuse, config_of(settings))
            .and_then(|session| kept::send_again(&fuse).map(|()| session))
            .and_then(|session| Self::run(session, (file, inode), image, keeping, true));
        match (taken, mount) {
            (Ok(server), mount) => {
                *server.mount.lock() = mount;
                server.keep(settings, fuse);
                tracing::info!("{}: goes on with the mount of the process before", server.path.display());
                // The disk may have grown in a moment in which the kernel was not told.
                server.resized();
                Ok(server)
            }
            // The process after this one may have more luck.
            (Err(error), mount) => {
                if let Some(mount) = mount {
                    mount.leave();
                }
                Err(error)
            }
        }
    }

    /// Starts to answer the kernel.
    fn run(
        session: Session<Tree>,
        (path, inode): (PathBuf, INodeNo),
        image: Arc<Image>,
        keeping: Arc<Keeping>,
        is_taken_over: bool,
    ) -> Result<Self> {
        let (notifier, fuse) = (session.notifier(), session.as_fd().as_raw_fd());
        let (end, ended) = mpsc::channel();
        let run = move || {
            let _ = end.send(session.run());
        };
        thread::Builder::new()
            .name("fuse".to_owned())
            .spawn(run)
            .map_err(|error| Error::io("cannot start a thread", error))?;
        let (mount, ended) = (Mutex::new(None), Mutex::new(ended));
        Ok(Self { path, inode, image, notifier, fuse, keeping, is_taken_over, mount, ended })
    }

    /// Has the mount kept from now on.
    fn keep(&self, settings: &FuseSettings, fuse: OwnedFd) {
        if let Some(keep) = &settings.keep {
            self.keeping.keep(keep, fuse);
        }
    }

    /// The path of the mounted file that has the disk's bytes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `true` if it goes on with the mount of an earlier process, and with that one's clients.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.is_taken_over
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
        self.keeping.give_up();
        let flushed = if self.image.read_only { Ok(()) } else { self.image.make_durable() };
        unmounted.and(flushed).map_err(|error| error.about(self.path.display()))
    }

    /// Ends without unmounting. From the first step on, nothing that this process does reaches the kernel: requests
    /// that it has not answered are the next process's.
    fn leave_mount(&self) -> Result<()> {
        let Some(mount) = self.mount.lock().take() else { return Ok(()) };
        let failed = |error| Error::io("cannot leave the connection to the kernel", error);
        let nothing = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
        let cut = kept::replace(self.fuse, nothing.as_fd()).map_err(failed);
        mount.leave();
        self.image.give_up_waiting();
        self.image.wait_idle(STOP_TIMEOUT);
        self.keeping.leave();
        let flushed = if self.image.read_only { Ok(()) } else { self.image.make_durable() };
        cut.and(flushed).map_err(|error| error.about(self.path.display()))
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

    fn leave(self: Box<Self>) -> Result<()> {
        if self.keeping.is_kept() { self.leave_mount() } else { self.shut_down() }
    }
}

impl Drop for FuseServer {
    fn drop(&mut self) {
        // A process that took the mount over, and fails before it is asked to stop, leaves it to the next one.
        let ended =
            if self.is_taken_over && self.keeping.is_kept() { self.leave_mount() } else { self.shut_down() };
        if let Err(error) = ended {
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

/// A mount that an earlier process has left with the keeper.
struct Left {
    fuse: OwnedFd,
    state: KeptState,
    place: Place,
}

/// The mount that an earlier process of the same disk has left with the keeper, if it is still at `path`. One that is
/// not, or that is another disk's, is given up.
fn kept_at(path: &Path, keep: Option<&KeepSettings>) -> Option<Left> {
    let keep = keep?;
    let taken = match keep.keeper.take(&keep.name) {
        Ok(taken) => taken?,
        Err(error) => {
            tracing::debug!("nothing is taken over: {error}");
            return None;
        }
    };
    let is_same = |state: &KeptState| state.identity == keep.identity && state.mount.is_some();
    let (fuse, state) = taken;
    let state = KeptState::parse(&state).filter(is_same);
    let place = Place::find(path).ok();
    let found = state.zip(place).filter(|(state, place)| place.mounted() == state.mount);
    match found {
        Some((state, place)) if !is_dead(fuse.as_fd()) => Some(Left { fuse, state, place }),
        _ => {
            tracing::info!("{}: the mount of the process before is gone, or another disk's", path.display());
            if let Err(error) = keep.keeper.give_up(&keep.name) {
                tracing::warn!("{error}");
            }
            None
        }
    }
}

/// The path of the file that has the disk's bytes, if the mount is at `place`.
fn file_at(place: &Path, state: &KeptState, settings: &FuseSettings) -> PathBuf {
    if state.is_directory { place.join(&settings.file_name) } else { place.to_owned() }
}

fn tree_of(image: &Arc<Image>, state: KeptState, settings: &FuseSettings) -> (Tree, Arc<Keeping>) {
    let name = state.is_directory.then(|| settings.file_name.clone());
    let face = state.face;
    let keeping = Arc::new(Keeping::new(state));
    let tree = Tree::new(Arc::clone(image), name, face, settings.allow_resize, Arc::clone(&keeping));
    (tree, keeping)
}

fn config_of(settings: &FuseSettings) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.n_threads = Some(settings.workers.max(1));
    // A clone of the descriptor ends the requests that it has received when it is closed: see `kept`.
    config.clone_fd = settings.keep.is_none();
    config
}
