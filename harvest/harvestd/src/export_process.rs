//! A process of its own for those servers of a vSSD that trust its clients most: vhost-user-blk, which maps a
//! hypervisor's memory, and FUSE, whose mount can hang.
//!
//! ```text
//! DIR/exports/NAME.pid    locked by the export process of a vSSD as long as it lives
//! DIR/exports/NAME.log    its warnings; NAME.log.1 has earlier ones
//! ```
//!
//! The daemon keeps the listening socket, with its owner and mode, and gives the process a copy. When the process dies,
//! the socket stays, and clients wait in its queue until the next process accepts them. The process reaches the flash
//! by connections of its own to an NBD server without an address ([`PrivateServer`]) that serves only this vSSD. The
//! daemon itself serves NBD's own sockets: it maps no client's memory, and memory and time are bounded; one more
//! process on the way would make their clients a good deal slower.
//!
//! # Invariants
//!
//! * A vSSD has one export process at most, which holds the lock. If a process still holds the lock when the daemon
//!   starts, the daemon kills that process first.
//! * The next process is started only when no request of the previous one is in flight any more. A front end sends
//!   unanswered requests again, so a late write of the dead process would otherwise undo a newer one.
//! * A flush that the process answers was answered by the daemon before: neither the process nor the daemon delays
//!   writes past a flush.
//! * The daemon waits for the process only while the vSSD is made, changed or deleted, and only for a limited time.
//!
//! # Failures
//!
//! * The process dies: the daemon starts it again, after a pause that grows if it dies soon after each start. When a
//!   vSSD is made or changed, a process that dies before it has served is not started again: the call fails. When the
//!   daemon starts, and when it undoes a failed change, such a process is started again, too.
//! * The daemon dies: the process finds its connections closed and ends at once, without an answer to any client.
//! * The process does not end when it is told to: the daemon kills it.

mod channel;
mod process;
mod serving;

pub use serving::run_export_process;

use super::ways::Ways;
use channel::{Assignment, Channel, Fault, News, Order};
use headstart_block::{BlockDevice, Error, ErrorKind, Result, private};
use headstart_export::nbd::PrivateServer;
use headstart_export::socket::{self, SocketFile};
use headstart_export::{Export, Leftover, SocketAccess};
use parking_lot::{Condvar, Mutex, MutexGuard};
use process::{Running, end_leftover};
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// The directory of the processes' files, in the daemon's.
const DIRECTORY: &str = "exports";

/// Connections of a process to its disk, and the number of these that are for flushes.
const CONNECTIONS: usize = 10;
const FLUSHING: usize = 2;

/// Bytes of memory that the requests of one process may hold in the daemon.
const MEMORY: u64 = 48 << 20;

/// The time that a process may take until it serves: mounting may wait for a busy host.
const START: Duration = Duration::from_secs(30);

/// The time that a process may take to end in good order: requests in flight have some seconds for each server.
const STOP: Duration = Duration::from_secs(20);

/// The interval between two checks that the requests of a dead process have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// The export process of a vSSD, and the thread that looks after it.
pub(super) struct ExportProcess {
    shared: Arc<Shared>,
    device: Arc<dyn BlockDevice>,
    /// The name of the listening socket.
    socket: Option<SocketFile>,
    /// The cause, if there is no such socket although it was requested.
    unbound: Option<String>,
    thread: Option<JoinHandle<()>>,
}

/// The state of a vSSD's export process, which serves it by vhost-user or as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportProcessStatus {
    /// The process ID; null while the process does not run.
    pub pid: Option<u32>,
    /// `true` if the process serves the vSSD in at least one way.
    pub serving: bool,
    /// Number of times that the process ended unexpectedly and was started again.
    pub restarts: u64,
}

/// The state of an export process, for the daemon's other threads.
struct Shared {
    name: String,
    state: Mutex<State>,
    changed: Condvar,
    /// Becomes readable, for good, when the process is to end.
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    pid: Option<u32>,
    /// `true` if the process has reported that it serves.
    is_serving: bool,
    restarts: u64,
    /// The places where clients find the vSSD, also while the next process starts.
    uris: Vec<String>,
    /// The cause, if a way is missing.
    error: Option<Fault>,
    /// The daemon's end of the channel, while a process lives.
    channel: Option<Arc<Channel>>,
    /// The size that was reported to the process last, in bytes.
    reported_size: u64,
    /// `true` if the first process serves, or could not be started.
    is_decided: bool,
    is_stopping: bool,
    /// The error of the last flush.
    unflushed: Option<Fault>,
}

/// The thread that looks after the process.
struct Supervisor {
    shared: Arc<Shared>,
    pid_file: PathBuf,
    export: Export,
    assignment: Assignment,
    listener: Option<UnixListener>,
    /// `true` if a process that never served is tried again, too.
    is_tried_again: bool,
}

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Death, or an end that the daemon did not ask for, after the process had served.
    Served,
    /// An end before the process served.
    Unserved,
}

impl ExportProcess {
    /// Starts a process that serves a vSSD in those of `ways` that are vhost-user or FUSE. `dir` is the daemon's
    /// directory. The error names the missing way; without a process none of these ways is served. If `is_tried_again`,
    /// a process that never serves is started again and again, because the vSSD was served in these ways before.
    pub(super) fn start(
        dir: &Path,
        export: &Export,
        ways: &Ways,
        access: &SocketAccess,
        is_tried_again: bool,
    ) -> (Option<Self>, Result<()>) {
        match Self::try_start(dir, export, ways, access, is_tried_again) {
            Ok((process, started)) => (process, started),
            Err(error) => (None, Err(error)),
        }
    }

    fn try_start(
        dir: &Path,
        export: &Export,
        ways: &Ways,
        access: &SocketAccess,
        is_tried_again: bool,
    ) -> Result<(Option<Self>, Result<()>)> {
        if !ways.need_process() {
            return Ok((None, Ok(())));
        }
        let dir = dir.join(DIRECTORY);
        private::make_directory(&dir).map_err(|e| {
            Error::io("cannot make the directory of export processes", e).about(dir.display())
        })?;
        let pid_file = dir.join(format!("{}.pid", export.name));
        // This comes before the socket is checked: a daemon that was killed may have left a process that listens there.
        end_leftover(&pid_file)?;
        let (mut listener, mut socket, mut bound) = (None, None, Ok(()));
        if let Some(path) = &ways.vhost_user {
            match socket::listen(path, access, Leftover::IsUnknown) {
                Ok((socket_listener, file)) => (listener, socket) = (Some(socket_listener), Some(file)),
                Err(error) if ways.fuse.is_none() => return Err(error),
                Err(error) => bound = Err(error),
            }
        }
        let assignment = Assignment {
            name: export.name.clone(),
            vhost_user: ways.vhost_user.clone().filter(|_| listener.is_some()),
            fuse: ways.fuse.clone(),
            owner: ways.socket_owner.clone(),
            mode: ways.socket_mode.clone(),
        };
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Error::io("cannot make an event", e.into()))?;
        let shared =
            Shared { name: export.name.clone(), state: Mutex::default(), changed: Condvar::new(), wake };
        let shared = Arc::new(shared);
        let supervisor = Supervisor {
            shared: Arc::clone(&shared),
            pid_file,
            export: export.clone(),
            assignment,
            listener,
            is_tried_again,
        };
        let thread = std::thread::Builder::new()
            .name("harvest-export".to_owned())
            .spawn(move || supervisor.run())
            .map_err(|e| Error::io("cannot start a thread", e))?;
        let device = Arc::clone(&export.device);
        let unbound = bound.as_ref().err().map(ToString::to_string);
        let process = Self { shared, device, socket, unbound, thread: Some(thread) };
        let started = process.shared.started();
        Ok((Some(process), bound.and(started)))
    }

    /// The places where clients find the vSSD.
    pub(super) fn uris(&self) -> Vec<String> {
        self.shared.lock().uris.clone()
    }

    /// The cause, if the process or one of its ways is missing.
    pub(super) fn error(&self) -> Option<String> {
        let of_process = || self.shared.lock().error.clone().map(|fault| Error::from(fault).to_string());
        self.unbound.clone().or_else(of_process)
    }

    pub(super) fn status(&self) -> ExportProcessStatus {
        let state = self.shared.lock();
        let State { pid, is_serving, restarts, .. } = *state;
        ExportProcessStatus { pid, serving: is_serving && !state.uris.is_empty(), restarts }
    }

    /// Sends the vSSD's size to the process, unless it has it. A process that takes no messages gets it another time.
    pub(super) fn notify_of_size(&self, size: u64) {
        let mut state = self.shared.lock();
        if state.reported_size != size
            && let Some(channel) = &state.channel
            && matches!(channel.try_send(&Order::Resized(size), &[]), Ok(true))
        {
            state.reported_size = size;
        }
    }

    /// Ends the process; its clients' writes are durable then.
    ///
    /// # Errors
    /// If a flush fails.
    pub(super) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.socket = None;
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_all();
        // This would fail only if the count overflowed, which is far away.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        if thread.join().is_err() {
            tracing::error!(
                vssd = self.shared.name,
                "the thread that looks after an export process panicked"
            );
        }
        let unflushed = self.shared.lock().unflushed.take().map_or(Ok(()), |fault| Err(fault.into()));
        unflushed.and(self.device.flush())
    }
}

/// Removes the files that the export process of a vSSD has left in the daemon's directory, unless it lives.
pub(super) fn forget(dir: &Path, name: &str) {
    let pid_file = dir.join(DIRECTORY).join(format!("{name}.pid"));
    if headstart_daemon::pid_file::holder(&pid_file).is_none() {
        let log = pid_file.with_extension("log");
        for file in [&pid_file, &headstart_daemon::pid_file::earlier(&log), &log] {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Drop for ExportProcess {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(vssd = self.shared.name, %error, "a vSSD was not flushed when its export process ended");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until the first process serves, or cannot be started.
    fn started(&self) -> Result<()> {
        let mut state = self.lock();
        let waited = self.changed.wait_while_for(&mut state, |state| !state.is_decided, START + DRAIN);
        if waited.timed_out() {
            return Err(Error::new(ErrorKind::Unavailable, "its export process does not start"));
        }
        state.error.clone().map_or(Ok(()), |fault| Err(fault.into()))
    }

    /// Changes the state, and wakes the threads that wait for that.
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits for `pause`; `true` if the process is to end.
    fn rests(&self, pause: Duration) -> bool {
        let mut state = self.lock();
        self.changed.wait_while_for(&mut state, |state| !state.is_stopping, pause);
        state.is_stopping
    }
}

#[expect(clippy::disallowed_methods, reason = "processes have deadlines")]
fn now() -> Instant {
    Instant::now()
}

impl Supervisor {
    /// Starts one process after the other until the vSSD is no longer to be served.
    fn run(self) {
        let mut pauses = process::Pauses::new();
        let mut has_served = false;
        loop {
            let begun = now();
            let ended = self.live();
            has_served |= matches!(ended, Ok(Ended::Served));
            let error = ended.err().map(|error| Fault::from(&error));
            self.shared.set(|state| {
                (state.pid, state.channel, state.is_serving) = (None, None, false);
                state.error = error.or(state.error.take());
                // A caller that waits for the first process waits for no second one.
                state.is_decided |= self.is_tried_again;
            });
            if self.shared.lock().is_stopping || !(has_served || self.is_tried_again) {
                break;
            }
            let pause = pauses.after(begun.elapsed());
            self.notify_of_end(pause);
            if self.shared.rests(pause) {
                break;
            }
            self.shared.set(|state| state.restarts += 1);
        }
        // A process that did not end in good order left its mount point behind.
        if let Some(path) = &self.assignment.fuse
            && let Err(error) = headstart_export::fuse::clear(path)
        {
            tracing::debug!(%error, "the place of a file is left as it is");
        }
        self.shared.set(|state| {
            state.uris.clear();
            state.is_decided = true;
        });
    }

    fn notify_of_end(&self, pause: Duration) {
        let why = headstart_daemon::pid_file::last_words(&self.pid_file.with_extension("log"));
        let why = why.as_deref().unwrap_or("not said");
        let vssd = &self.shared.name;
        let pause_ms = pause.as_millis();
        tracing::warn!(vssd, why, pause_ms, "the export process of a vSSD has ended, and is started again");
    }

    /// Starts a process, and follows it to its end and that of its requests.
    fn live(&self) -> Result<Ended> {
        end_leftover(&self.pid_file)?;
        let disk = PrivateServer::new(self.export.clone(), CONNECTIONS, MEMORY);
        let ended = self.live_on(&disk);
        let mut is_said = false;
        while !disk.end(DRAIN) {
            if !is_said {
                tracing::warn!(
                    vssd = self.shared.name,
                    "requests of an export process that has ended take long"
                );
            }
            is_said = true;
            if self.shared.lock().is_stopping {
                break;
            }
        }
        ended
    }

    fn live_on(&self, disk: &PrivateServer) -> Result<Ended> {
        let (channel, theirs) = Channel::pair()?;
        let channel = Arc::new(channel);
        let mut running = Running::start(&self.pid_file, &self.shared.name, theirs)?;
        let connections = (0..CONNECTIONS).map(|_| disk.connect()).collect::<Result<Vec<_>>>()?;
        let mut descriptors: Vec<_> = self.listener.iter().map(AsFd::as_fd).collect();
        descriptors.extend(connections.iter().map(AsFd::as_fd));
        let size = self.export.device.size();
        if !channel.try_send(&Order::Serve(self.assignment.clone()), &descriptors)? {
            return Err(Error::new(ErrorKind::Unavailable, "an export process takes no work"));
        }
        drop(connections);
        self.shared.set(|state| {
            (state.pid, state.reported_size) = (Some(running.pid()), size);
            state.channel = Some(Arc::clone(&channel));
        });
        let ended = self.follow(&channel, &mut running);
        self.shared.set(|state| state.channel = None);
        running.end();
        ended
    }

    /// Handles the messages of a process until it ends, or has to be ended.
    fn follow(&self, channel: &Channel, running: &mut Running) -> Result<Ended> {
        let mut ended = Ended::Unserved;
        let mut deadline = Some(now() + START);
        let mut wake = Some(self.shared.wake.as_fd());
        loop {
            if wake.is_some() && self.shared.lock().is_stopping {
                // A process that does not take the message is killed when its time is over.
                let _ = channel.try_send(&Order::Stop, &[]);
                (deadline, wake) = (Some(now() + STOP), None);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now()));
            if left.is_some_and(|left| left.is_zero()) {
                tracing::warn!(vssd = self.shared.name, "an export process does not answer, and is killed");
                let late = || Error::new(ErrorKind::Unavailable, "its export process does not start in time");
                return if ended == Ended::Served { Ok(ended) } else { Err(late()) };
            }
            let others: Vec<_> = wake.into_iter().chain(running.watched()).collect();
            if !channel.wait(&others, left) {
                if running.has_ended() && !channel.wait(&[], Some(Duration::ZERO)) {
                    return if ended == Ended::Served { Ok(ended) } else { Err(self.why_not()) };
                }
                continue;
            }
            match channel.receive::<News>() {
                Ok(Some((News::Serving { uris, error }, _))) => {
                    let serves = !uris.is_empty();
                    self.serves(uris, error);
                    if !serves {
                        return Ok(ended);
                    }
                    (deadline, ended) = (deadline.filter(|_| wake.is_none()), Ended::Served);
                }
                Ok(Some((News::Lost { uri, error }, _))) => self.loses(&uri, error),
                Ok(Some((News::Stopped { error }, _))) => {
                    self.shared.set(|state| state.unflushed = error);
                    running.ends_by_itself();
                    return Ok(ended);
                }
                _ if ended == Ended::Served => return Ok(ended),
                _ => return Err(self.why_not()),
            }
        }
    }

    fn serves(&self, uris: Vec<String>, error: Option<Fault>) {
        self.shared.set(|state| {
            (state.uris, state.error) = (uris, error);
            (state.is_serving, state.is_decided) = (true, true);
        });
    }

    fn loses(&self, uri: &str, error: Fault) {
        let cause = Error::from(error.clone());
        tracing::warn!(vssd = self.shared.name, error = %cause, "a vSSD is served in one way less");
        self.shared.set(|state| {
            state.uris.retain(|known| known != uri);
            state.error = Some(error);
        });
    }

    /// The error of a process that ended before it served.
    fn why_not(&self) -> Error {
        let log = self.pid_file.with_extension("log");
        let said = headstart_daemon::pid_file::last_words(&log).unwrap_or_else(|| "it has ended".to_owned());
        Error::new(ErrorKind::Unavailable, format!("its export process does not start: {said}"))
            .remedy(format!("look at {}", log.display()))
    }
}
