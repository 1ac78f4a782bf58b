//! NBD: disks over a socket, in the fixed newstyle of the protocol.
//!
//! # Supported protocol
//!
//! * Options: `EXPORT_NAME`, `ABORT`, `LIST`, `STARTTLS`, `INFO`, `GO`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT`,
//!   `SET_META_CONTEXT` (`base:allocation`).
//! * Commands: `READ` (`DF`), `WRITE`, `FLUSH`, `TRIM`, `WRITE_ZEROES` (`NO_HOLE`, `FAST_ZERO`), `CACHE`,
//!   `BLOCK_STATUS` (`REQ_ONE`), `RESIZE` if that is allowed; `FUA` with all.
//! * Sizes: any alignment; 4,096 preferred; at most 32 MiB a read or write.
//! * Connections: several to one disk see the same (`CAN_MULTI_CONN`).
//! * TLS: by certificates, of the server and, if a CA is given, of clients; no pre-shared keys, because the TLS library
//!   has none.
//!
//! `NO_HOLE` is accepted and gives no guarantee: the disks here are logs, which take space for each write wherever it
//! goes. `RESIZE` is an extension that was never finished; here its offset field is the new size, and its length is 0.
//! A client cannot be told that a disk has become larger; one that connects again sees it, and requests beyond the old
//! end are served at once.
//!
//! # Structure
//!
//! [`proto`] (bytes and numbers), [`handshake`] and [`transmission`] (their meaning) are pure; the fuzzer drives them.
//! `accept` does the handshake's I/O. `receiver` and `connection` are the data path; `worker_pool` has the threads for
//! requests that may wait, and `disk` the operations that block these threads. `spin_policy` decides whether a receiver
//! polls before it sleeps. `budget` bounds the memory of requests, `standing` chooses the client that has to make room,
//! `connection_registry` counts connections, `address` listens, `tls` encrypts. `private` serves one disk without an
//! address, to a process that uses the disk as a [`RemoteDisk`].
//!
//! # Limits and dangers
//!
//! * A Unix socket is for the user of this process, unless [`NbdSettings::access`] says otherwise. A TCP port without
//!   TLS is open to every program that can reach it.
//! * If [`NbdSettings::connections_max`] clients are connected, a new client replaces one that has not finished its
//!   handshake, has sent no request, or takes no replies (`standing`). A new client waits a few seconds at most for
//!   such a place; if no client has to make room, the new one is disconnected at once.
//! * If a server has several exports, each may have the same share of the connections, and may also use those that the
//!   others leave free. A new client of an export that has less than its share replaces a client of the export that has
//!   most, preferably the one that has been idle for longest (`standing`).
//! * The memory that the requests of all clients hold is bounded (`budget`): a server of 64 clients that receive none
//!   of their replies stays below 256 MiB. A client that receives nothing of a reply for [`NbdSettings::send_timeout`]
//!   is disconnected.
//! * A client is told only the kind of an error. The log has the error itself, with paths and addresses.
//! * A handshake, TLS included, may take [`NbdSettings::handshake_timeout`] in all.

mod accept;
mod address;
mod budget;
pub mod client;
mod connection;
mod connection_registry;
mod disk;
pub mod handshake;
mod private;
pub mod proto;
mod receiver;
mod reply_buffer;
mod spin_policy;
mod standing;
mod tls;
pub mod transmission;
mod wire;
mod worker_pool;

pub use address::Address;
pub use client::{NbdUri, RemoteDisk};
pub use private::PrivateServer;
pub use tls::TlsSettings;

use crate::complaints::complain;
use crate::{ClientCounts, Export, Leftover, STOP_TIMEOUT, Server, SocketAccess};
use address::Listener;
use connection_registry::{ConnectionRegistry, Limits};
use disk::ExportState;
use headstart_block::{Error, Result};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The time that the server rests when it cannot accept: the process has no file or memory left.
const REST: Duration = Duration::from_millis(100);

/// The settings of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdSettings {
    /// The address at which the server listens.
    pub address: Address,
    /// The server's TLS certificates. If they are set, every client must use TLS; `None`: no client can.
    pub tls: Option<TlsSettings>,
    /// The maximum number of connections at a time, over all exports; 64 by default. If there are several exports,
    /// clients that have not chosen one yet do not count; there may be as many more of them, at most 64. Fast clients
    /// use several connections. When exports share the server, the server keeps one export's connections from shutting
    /// out another's clients.
    pub connections_max: usize,
    /// The maximum duration from a client's connection until it has chosen an export; then it is
    /// disconnected. 10 seconds by default.
    pub handshake_timeout: Duration,
    /// The duration after which a client that receives nothing of its pending replies is disconnected. One
    /// minute by default; shorter while the server is short of memory.
    pub send_timeout: Duration,
    /// The maximum memory for the requests of all clients together, in bytes, in addition to 256 KiB for each
    /// client. 96 MiB by default.
    pub memory: u64,
    /// `true` if clients that may write may also enlarge the disk. `false` by default.
    pub allow_resize: bool,
    /// The owner and permissions of a Unix socket, which decide the users that may connect; by default only
    /// this process's user. No effect on TCP.
    pub access: SocketAccess,
    /// The treatment of a socket file that already exists at the address; by default it is refused unless
    /// this program made it.
    pub leftover: Leftover,
}

impl NbdSettings {
    /// The default settings for a server that listens at `address`.
    #[must_use]
    pub fn new(address: Address) -> Self {
        let (connections_max, handshake_timeout) = (64, Duration::from_secs(10));
        let (access, leftover) = Default::default();
        let (send_timeout, allow_resize) = (Duration::from_secs(60), false);
        Self {
            address,
            tls: None,
            connections_max,
            handshake_timeout,
            send_timeout,
            memory: budget::SERVER_BYTES,
            allow_resize,
            access,
            leftover,
        }
    }
}

/// A running NBD server for any number of exports. See [`Server`].
pub struct NbdServer {
    registry: Arc<ConnectionRegistry>,
    listener: Arc<Listener>,
    doorman: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl NbdServer {
    /// Starts a server that listens at the address of `settings` and serves `exports`.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if another server listens at the address or something that is not a
    /// socket is there, [`headstart_block::ErrorKind::Invalid`] if the certificates cannot be used, two exports have
    /// the same name, a name is too long for the protocol or `exports` is empty, otherwise the error of the operating
    /// system.
    pub fn start(settings: &NbdSettings, exports: Vec<Export>) -> Result<Self> {
        check(&exports)?;
        Self::listen(settings, exports)
    }

    /// Starts a server without exports; [`NbdServer::add`] adds them.
    ///
    /// # Errors
    /// Those of [`NbdServer::start`], except that an empty server is allowed.
    pub fn start_empty(settings: &NbdSettings) -> Result<Self> {
        Self::listen(settings, Vec::new())
    }

    fn listen(settings: &NbdSettings, exports: Vec<Export>) -> Result<Self> {
        let tls = settings.tls.as_ref().map(tls::configure).transpose()?;
        let listener = Arc::new(Listener::open(&settings.address, &settings.access, settings.leftover)?);
        let exports = exports.into_iter().map(|export| Arc::new(ExportState::new(export))).collect();
        let limits = Limits {
            connections_max: settings.connections_max,
            handshake_timeout: settings.handshake_timeout,
            send_timeout: settings.send_timeout,
            allow_resize: settings.allow_resize,
        };
        let registry = Arc::new(ConnectionRegistry::new(exports, tls, limits, settings.memory));
        let failure = Arc::default();
        let doorman = std::thread::Builder::new().name("nbd-accept".to_owned()).spawn({
            let (registry, listener, failure) =
                (Arc::clone(&registry), Arc::clone(&listener), Arc::clone(&failure));
            move || accept_clients(&registry, &listener, &failure)
        });
        let doorman = doorman.map_err(|e| Error::io("cannot start a thread", e).about(&settings.address))?;
        Ok(Self { registry, listener, doorman: Some(doorman), failure })
    }

    /// The number of connections that are open now, over all exports.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.registry.connections()
    }

    /// Adds an export, which clients that connect from now on can choose.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if its name is too long for the protocol or another export has
    /// it.
    pub fn add(&self, export: Export) -> Result<()> {
        self.registry.change(|exports| {
            let mut all: Vec<_> = exports.iter().map(|state| state.export.clone()).collect();
            all.push(export.clone());
            check(&all)?;
            exports.push(Arc::new(ExportState::new(export)));
            Ok(())
        })
    }

    /// Stops serving the export `name`: no client can choose it any more, requests in flight have
    /// [`STOP_TIMEOUT`] to finish, then its clients are disconnected and the disk is flushed. Returns
    /// `false` if there is no such export.
    ///
    /// # Errors
    /// The error of the flush: writes of clients since the last flush may be lost.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let taken = self.registry.change(|exports| {
            let at = exports.iter().position(|state| state.export.name == name)?;
            Some(exports.remove(at))
        });
        let Some(state) = taken else { return Ok(false) };
        if !self.registry.disconnect(&state, STOP_TIMEOUT) {
            tracing::warn!(export = name, "requests in flight were given up");
        }
        flush(&state)?;
        Ok(true)
    }

    /// The number of connections that have the export `name` open now; 0 if there is no such export.
    #[must_use]
    pub fn clients(&self, name: &str) -> usize {
        let exports = self.registry.exports();
        let state = exports.iter().find(|state| state.export.name == name);
        state.map_or(0, |state| self.registry.connections_to(state))
    }

    /// The NBD URI with which clients connect to the export `name`. The export need not exist.
    #[must_use]
    pub fn uri_of(&self, name: &str) -> String {
        self.listener.uri(self.registry.tls.is_some(), name)
    }

    fn end(&mut self) -> Result<()> {
        let Some(doorman) = self.doorman.take() else {
            return Ok(());
        };
        self.listener.close();
        let finished = self.registry.drain(STOP_TIMEOUT);
        if !finished {
            tracing::warn!(uri = self.uri(), "requests in flight were given up");
        }
        // The thread does nothing that lasts: the socket it waits on is closed.
        let _ = doorman.join();
        // Every disk is flushed, even if others fail; the first error counts.
        let results: Vec<_> = self.registry.exports().iter().map(flush).collect();
        results.into_iter().collect()
    }
}

impl Server for NbdServer {
    fn uri(&self) -> String {
        let exports = self.registry.exports();
        let export = match exports.as_slice() {
            [only] => only.export.name.as_str(),
            _ => "",
        };
        self.listener.uri(self.registry.tls.is_some(), export)
    }

    fn clients(&self) -> ClientCounts {
        self.registry.connections_to_any()
    }

    fn resized(&self) {
        // The protocol has no message for it: see the module's documentation.
    }

    fn failed(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    fn stop(mut self: Box<Self>) -> Result<()> {
        self.end()
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "a disk could not be flushed when its server stopped");
        }
    }
}

fn flush(state: &Arc<ExportState>) -> Result<()> {
    let device = &state.export.device;
    if device.is_read_only() { Ok(()) } else { device.flush() }
}

fn check(exports: &[Export]) -> Result<()> {
    if exports.is_empty() {
        return Err(Error::invalid("there is nothing to export"));
    }
    for (at, export) in exports.iter().enumerate() {
        if export.name.len() > proto::STRING_MAX {
            return Err(Error::invalid(format!(
                "the name of an export has more than {} bytes",
                proto::STRING_MAX
            )));
        }
        if exports.iter().take(at).any(|earlier| earlier.name == export.name) {
            return Err(Error::invalid(format!("two exports are called `{}`", export.name.escape_debug())));
        }
    }
    Ok(())
}

/// The thread that accepts clients until the server stops.
fn accept_clients(registry: &Arc<ConnectionRegistry>, listener: &Listener, failure: &Mutex<Option<Error>>) {
    while !registry.is_stopping() {
        let client = match listener.accept() {
            Ok(client) => client,
            Err(_) if registry.is_stopping() => return,
            // The listening socket itself is gone or was closed by `NbdServer::end`, which stops this thread in a
            // moment.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                registry.pause(REST);
                if !registry.is_stopping() {
                    *failure.lock() = Some(Error::io("cannot accept clients any more", error));
                }
                return;
            }
            Err(error) => {
                complain!(registry.complaints, NotAccepted, %error, "cannot accept an NBD client");
                registry.pause(REST);
                continue;
            }
        };
        let socket = Arc::new(client.socket);
        let Some(slot) = registry.admit(&socket) else {
            complain!(
                registry.complaints,
                TurnedAway,
                peer = client.name,
                "too many NBD clients: this one is turned away"
            );
            continue;
        };
        let server = Arc::clone(registry);
        let run = move || accept::receive_client(&server, Arc::new(slot), socket, client.is_tcp, client.name);
        if let Err(error) = std::thread::Builder::new().name("nbd-client".to_owned()).spawn(run) {
            complain!(registry.complaints, NoThread, %error, "cannot start a thread for an NBD client");
        }
    }
}
