//! vhost-user-blk: a disk for a hypervisor on this host, through shared memory.
//!
//! The hypervisor (the front end) connects to a Unix socket and passes on its guest's memory as files, and the rings of
//! a virtio block device as addresses in it. From then on requests go through memory: no copy through a socket, and one
//! notification a batch each way.
//!
//! | module | task |
//! |---|---|
//! | `session` | a front end's connection: the vhost-user messages |
//! | `ring` | a queue's thread: from the avail ring to the used ring |
//! | `chain` | descriptor chains, as a hostile guest may make them |
//! | `blk` | the virtio block device: features, configuration space, requests |
//! | `memory` | the guest's memory |
//! | `inflight` | the record of requests in flight, which outlives this process |
//! | `owner` | one front end at a time for a disk that can be written |
//!
//! # Waiting
//!
//! A queue's thread does local work: reads of local bytes, writes, zeroing. If another process serves the disk's data,
//! small reads are sent to that process together, as many as the ring holds. Reads of remote bytes and flushes go to
//! pools of threads started on demand, and are answered when they are done, in any order. A flush covers all writes
//! that were answered before the flush was submitted, because a write is answered only after the disk has taken it.
//!
//! # Failures
//!
//! * If the front end ends, its rings are abandoned, and the next front end can use the disk. A writable disk serves
//!   one front end at a time; a read-only disk serves several at once.
//! * If the guest's driver writes nonsense into a ring, that queue is given up, and the front end is notified by the
//!   error descriptor.
//! * If this server ends, a front end that reconnects (QEMU: `reconnect=1` on the socket) continues with the next
//!   server process. The front end keeps a record of the requests in flight for the server, from which the next process
//!   takes them up.
//!
//! Not supported: packed rings, live migration's dirty log, postcopy, switching the write cache.

mod blk;
mod chain;
mod inflight;
mod memory;
mod owner;
mod ring;
mod session;
#[cfg(test)]
mod tests;

use crate::complaints::complain;
use crate::socket::{self, Leftover, SocketAccess, SocketFile};
use crate::{ClientCounts, Export, STOP_TIMEOUT, Server};
use blk::Target;
use headstart_block::{Error, Result, exact};
use owner::Owner;
use parking_lot::{Condvar, Mutex, MutexGuard};
use ring::WorkerPools;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use session::Link;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// The maximum number of request queues of a disk. Each queue has a thread while a guest uses it.
pub const QUEUES_MAX: u16 = 64;

/// The most connections at a time. Only those that use the disk cost more than a thread.
const SESSIONS_MAX: usize = 64;

/// The settings of a vhost-user-blk server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostUserSettings {
    /// The maximum number of queues that a front end (a hypervisor) may use, 1 to [`QUEUES_MAX`]. By default
    /// one for each processor, at most 4.
    pub queues: u16,
    /// The users that may connect; this process's user by default.
    pub access: SocketAccess,
    /// The treatment of a socket file that already exists at the path.
    pub leftover: Leftover,
}

impl Default for VhostUserSettings {
    /// A queue for each processor, at most 4.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (access, leftover) = Default::default();
        Self { queues: exact(cores.min(4), "it is at most 4"), access, leftover }
    }
}

impl VhostUserSettings {
    fn check(&self) -> Result<()> {
        if (1..=QUEUES_MAX).contains(&self.queues) {
            return Ok(());
        }
        let error = format!("cannot serve a disk with {} queues", self.queues);
        Err(Error::invalid(error).remedy(format!("give 1 to {QUEUES_MAX}")))
    }
}

/// A running vhost-user-blk server for one disk.
pub struct VhostUserServer {
    path: PathBuf,
    /// The socket's file; `None` once it was stopped, and if another process keeps it.
    socket: Option<SocketFile>,
    shared: Arc<Shared>,
    /// The thread that accepts connections; `None` once it was stopped.
    accepting: Option<JoinHandle<()>>,
}

/// The state that the server's threads share.
struct Shared {
    target: Arc<Target>,
    pools: Arc<WorkerPools>,
    owner: Arc<Owner>,
    sessions: Mutex<Sessions>,
    /// Notified when a session has ended.
    ended: Condvar,
    stopping: AtomicBool,
    wake: OwnedFd,
}

#[derive(Default)]
struct Sessions {
    next: u64,
    links: BTreeMap<u64, Arc<Link>>,
    /// The number of sessions that have ended and whose guest had used the disk.
    gone: u64,
    failure: Option<Error>,
}

impl VhostUserServer {
    /// Serves `export` to front ends that connect to a socket at `path`. The socket that a killed server left there
    /// is replaced as [`VhostUserSettings::leftover`] allows.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for a number of queues out of range,
    /// [`headstart_block::ErrorKind::Conflict`] if another server listens at `path` or something is there that this
    /// program did not make, otherwise the error of the operating system.
    pub fn start(path: &Path, export: &Export, settings: &VhostUserSettings) -> Result<Self> {
        settings.check()?;
        let (listener, socket) = socket::listen(path, &settings.access, settings.leftover)?;
        Self::serve(listener, Some(socket), path, export, settings)
    }

    /// Serves `export` to front ends that connect to `listener`, a socket at `path` that another process made and
    /// keeps. When this server stops, the socket's file stays, and clients that connect then wait for the next server.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for a number of queues out of range, otherwise the error of the
    /// operating system.
    pub fn start_at(
        listener: UnixListener,
        path: &Path,
        export: &Export,
        settings: &VhostUserSettings,
    ) -> Result<Self> {
        settings.check()?;
        Self::serve(listener, None, path, export, settings)
    }

    fn serve(
        listener: UnixListener,
        socket: Option<SocketFile>,
        path: &Path,
        export: &Export,
        settings: &VhostUserSettings,
    ) -> Result<Self> {
        let about = |cause, e: io::Error| Error::io(cause, e).about(path.display());
        listener.set_nonblocking(true).map_err(|e| about("cannot listen", e))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| about("cannot make an event", e.into()))?;
        let name = if export.name.is_empty() { "headstart" } else { &export.name };
        let shared = Arc::new(Shared {
            target: Arc::new(Target::new(Arc::clone(&export.device), name, settings.queues)),
            pools: Arc::new(WorkerPools::new()),
            owner: Arc::default(),
            sessions: Mutex::default(),
            ended: Condvar::new(),
            stopping: AtomicBool::new(false),
            wake,
        });
        let accepting = Arc::clone(&shared);
        let accepting = std::thread::Builder::new()
            .name("vhost-accept".to_owned())
            .spawn(move || accepting.accept(&listener))
            .map_err(|e| about("cannot start a thread", e))?;
        Ok(Self { path: path.to_owned(), socket, shared, accepting: Some(accepting) })
    }

    fn shut_down(&mut self) -> Result<()> {
        let Some(accepting) = self.accepting.take() else { return Ok(()) };
        self.socket = None;
        self.shared.stop();
        if accepting.join().is_err() {
            tracing::error!("the thread that accepts connections at {} panicked", self.path.display());
        }
        let device = &self.shared.target.device;
        if device.is_read_only() {
            Ok(())
        } else {
            device.flush().map_err(|e| e.about(&self.shared.target.name))
        }
    }
}

impl Server for VhostUserServer {
    fn uri(&self) -> String {
        self.path.display().to_string()
    }

    fn resized(&self) {
        let links: Vec<_> = self.shared.lock().links.values().cloned().collect();
        for link in links {
            if !link.notify_config_change() {
                tracing::warn!(
                    "{}: a front end cannot be told the disk's new size; its guest sees it after a restart",
                    self.path.display()
                );
            }
        }
    }

    fn clients(&self) -> ClientCounts {
        let sessions = self.shared.lock();
        let links = || sessions.links.values();
        let connected = links().filter(|link| link.has_rings()).count();
        let here = links().filter(|link| link.had_rings()).count() as u64;
        ClientCounts { connected, ever: sessions.gone + here }
    }

    fn failed(&self) -> Option<Error> {
        self.shared.lock().failure.take()
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.shut_down()
    }
}

impl Drop for VhostUserServer {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!("a disk was not flushed at the end of its server: {error}");
        }
    }
}

impl Shared {
    /// Locks the list of sessions.
    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock()
    }

    /// Takes connections until the server stops.
    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        while !self.stopping.load(Ordering::Acquire) {
            match listener.accept() {
                Ok((socket, _)) => self.begin(socket),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.wait(Some(listener), None),
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                Err(e) => {
                    // Descriptors or memory have run out: they may come back.
                    complain!(
                        self.target.complaints,
                        NotAccepted,
                        "{}: cannot take a connection for now: {e}",
                        self.target.name
                    );
                    self.wait(None, Some(Timespec { tv_sec: 1, tv_nsec: 0 }));
                }
            }
        }
    }

    /// Waits for a connection, the server's stop or the end of `time`.
    fn wait(&self, listener: Option<&UnixListener>, time: Option<Timespec>) {
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        // An error is an interruption by a signal: then the caller looks once more.
        let _ = poll(&mut fds, time.as_ref());
    }

    /// Begins a session in a thread of its own.
    fn begin(self: &Arc<Self>, socket: UnixStream) {
        let mut sessions = self.lock();
        if sessions.links.len() >= SESSIONS_MAX {
            drop(sessions);
            complain!(
                self.target.complaints,
                TurnedAway,
                "{}: a connection is refused, there are {SESSIONS_MAX} already",
                self.target.name
            );
            return;
        }
        let id = sessions.next;
        sessions.next += 1;
        let link = Arc::new(Link::new(socket));
        sessions.links.insert(id, Arc::clone(&link));
        drop(sessions);
        let present = Present { shared: Arc::clone(self), id };
        let thread = std::thread::Builder::new().name("vhost-session".to_owned());
        let spawned = thread.spawn(move || {
            let shared = &present.shared;
            let (target, pools) = (Arc::clone(&shared.target), Arc::clone(&shared.pools));
            if let Err(error) = session::run(&link, target, pools, Arc::clone(&shared.owner)) {
                complain!(
                    shared.target.complaints,
                    Protocol,
                    "{}: a front end broke the protocol: {error}",
                    shared.target.name
                );
            }
            link.hang_up();
        });
        if let Err(error) = spawned {
            complain!(
                self.target.complaints,
                NoThread,
                "{}: no thread for a connection: {error}",
                self.target.name
            );
        }
    }

    /// Ends all sessions, within [`STOP_TIMEOUT`] for requests in flight and as long again for stuck ones.
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // This would fail only at the end of the count, which is far.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        let links: Vec<_> = self.lock().links.values().cloned().collect();
        links.iter().for_each(|link| link.close());
        #[expect(clippy::disallowed_methods, reason = "a real wait for real threads")]
        let since = Instant::now();
        for link in &links {
            link.wait_closed(&|| link.is_gone() || since.elapsed() >= STOP_TIMEOUT);
        }
        links.iter().for_each(|link| link.hang_up());
        let busy = |sessions: &mut Sessions| !sessions.links.is_empty();
        if self.ended.wait_while_for(&mut self.lock(), busy, STOP_TIMEOUT).timed_out() {
            tracing::warn!("{}: a request is stuck in the disk; it is left behind", self.target.name);
        }
    }
}

/// A session in the server's list.
struct Present {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut sessions = self.shared.lock();
        let used = sessions.links.remove(&self.id).is_some_and(|link| link.had_rings());
        sessions.gone += u64::from(used);
        drop(sessions);
        self.shared.ended.notify_all();
    }
}
