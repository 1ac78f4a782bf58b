//! NBD: disks over a socket, in the fixed newstyle of the protocol.
//!
//! # What it speaks
//!
//! * Options: `EXPORT_NAME`, `ABORT`, `LIST`, `STARTTLS`, `INFO`, `GO`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT`,
//!   `SET_META_CONTEXT` (`base:allocation`).
//! * Commands: `READ` (`DF`), `WRITE`, `FLUSH`, `TRIM`, `WRITE_ZEROES` (`NO_HOLE`, `FAST_ZERO`), `CACHE`,
//!   `BLOCK_STATUS` (`REQ_ONE`), `RESIZE`; `FUA` with all.
//! * Sizes: any alignment; 4,096 preferred; at most 32 MiB a read or write.
//! * Connections: several to one disk see the same (`CAN_MULTI_CONN`).
//! * TLS: by certificates, of the server and, where a CA is given, of clients; no pre-shared keys, as the TLS library
//!   has none.
//!
//! `NO_HOLE` is accepted and gives no guarantee: the disks here are logs, which take space for each write wherever it
//! goes. `RESIZE` is an extension that was never finished; here its new size stands in the offset's place, and
//! its length is 0. A client cannot be told that a disk has become larger; one that connects anew sees it, and
//! requests beyond the old end are served at once.
//!
//! # How it is made
//!
//! [`proto`] (bytes and numbers), [`handshake`] and [`transmission`] (what they mean) are pure; they are what the
//! fuzzer drives. `welcome` does the handshake's I/O, `connection` is the data path, `lane` its slow lane, `disk` what
//! blocks there; `hall` counts connections, `address` listens, `tls` encrypts.
//!
//! # Limits and dangers
//!
//! * A Unix socket's file has mode 0600: who may open the disk is who may open the file. A TCP port without TLS is
//!   open to everybody who can reach it.
//! * Clients beyond [`NbdSettings::connections_max`] are closed at once.
//! * A handshake, TLS included, has [`NbdSettings::handshake_timeout`] in all.

mod address;
pub mod client;
mod connection;
mod disk;
mod hall;
pub mod handshake;
mod lane;
mod lookout;
pub mod proto;
mod reply_buffer;
mod tls;
pub mod transmission;
mod welcome;
mod wire;

pub use address::Address;
pub use client::NbdUri;
pub use tls::TlsSettings;

use crate::{Export, STOP_PATIENCE, Server};
use address::Listener;
use disk::ExportState;
use hall::Hall;
use headstart_block::{Error, Result};
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the server rests when it cannot accept: the process has no file or memory left.
const REST: Duration = Duration::from_millis(100);

/// How an NBD server is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdSettings {
    /// Where it listens.
    pub address: Address,
    /// Its certificates. With them it demands TLS, without them it has none.
    pub tls: Option<TlsSettings>,
    /// Most clients at a time; clients that are fast use several connections. 64 if not said otherwise.
    pub connections_max: usize,
    /// How long a client may take until it has chosen a disk. 10 seconds if not said otherwise.
    pub handshake_timeout: Duration,
    /// Permissions of a Unix socket's file. 0600 if not said otherwise.
    pub socket_mode: u32,
}

impl NbdSettings {
    /// The defaults, at `address`.
    #[must_use]
    pub fn new(address: Address) -> Self {
        let (connections_max, handshake_timeout, socket_mode) = (64, Duration::from_secs(10), 0o600);
        Self { address, tls: None, connections_max, handshake_timeout, socket_mode }
    }
}

/// An NBD server that runs. See [`Server`].
pub struct NbdServer {
    hall: Arc<Hall>,
    listener: Arc<Listener>,
    doorman: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<Error>>>,
}

impl NbdServer {
    /// Listens, and serves `exports` to whoever connects.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] where another server listens at the address or something that is no
    /// socket lies there, [`headstart_block::ErrorKind::Invalid`] for unfit certificates, names given twice or no
    /// export at all, otherwise what the operating system reports.
    pub fn start(settings: &NbdSettings, exports: Vec<Export>) -> Result<Self> {
        check(&exports)?;
        Self::listen(settings, exports)
    }

    /// Listens with nothing to serve yet: see [`NbdServer::add`].
    ///
    /// # Errors
    /// As [`NbdServer::start`].
    pub fn start_empty(settings: &NbdSettings) -> Result<Self> {
        Self::listen(settings, Vec::new())
    }

    fn listen(settings: &NbdSettings, exports: Vec<Export>) -> Result<Self> {
        let tls = settings.tls.as_ref().map(tls::configure).transpose()?;
        let listener = Arc::new(Listener::open(&settings.address, settings.socket_mode)?);
        let exports = exports.into_iter().map(|export| Arc::new(ExportState::new(export))).collect();
        let hall = Arc::new(Hall::new(exports, tls, settings.handshake_timeout, settings.connections_max));
        let failure = Arc::default();
        let doorman = std::thread::Builder::new().name("nbd-accept".to_owned()).spawn({
            let (hall, listener, failure) = (Arc::clone(&hall), Arc::clone(&listener), Arc::clone(&failure));
            move || accept_clients(&hall, &listener, &failure)
        });
        let doorman = doorman.map_err(|e| Error::io("cannot start a thread", e).about(&settings.address))?;
        Ok(Self { hall, listener, doorman: Some(doorman), failure })
    }

    /// Clients that are connected at present.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.hall.connections()
    }

    /// Serves one more export, to whoever connects from now on.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] for a name that is too long or has been given.
    pub fn add(&self, export: Export) -> Result<()> {
        self.hall.change(|exports| {
            let mut all: Vec<_> = exports.iter().map(|state| state.export.clone()).collect();
            all.push(export.clone());
            check(&all)?;
            exports.push(Arc::new(ExportState::new(export)));
            Ok(())
        })
    }

    /// Serves an export no longer: nobody can choose it any more, requests in flight have [`STOP_PATIENCE`] to finish,
    /// its clients are cut off, and it is flushed. Whether there was one of that name.
    ///
    /// # Errors
    /// Where the flush fails: what clients wrote since the last flush may be lost.
    pub fn remove(&self, name: &str) -> Result<bool> {
        let taken = self.hall.change(|exports| {
            let at = exports.iter().position(|state| state.export.name == name)?;
            Some(exports.remove(at))
        });
        let Some(state) = taken else { return Ok(false) };
        if !self.hall.part(&state, STOP_PATIENCE) {
            tracing::warn!(export = name, "requests in flight were given up");
        }
        flush(&state)?;
        Ok(true)
    }

    /// Clients that have an export open at present.
    #[must_use]
    pub fn clients(&self, name: &str) -> usize {
        let exports = self.hall.exports();
        let state = exports.iter().find(|state| state.export.name == name);
        state.map_or(0, |state| self.hall.connections_to(state))
    }

    /// Where clients find an export of this name.
    #[must_use]
    pub fn uri_of(&self, name: &str) -> String {
        self.listener.uri(self.hall.tls.is_some(), name)
    }

    fn end(&mut self) -> Result<()> {
        let Some(doorman) = self.doorman.take() else {
            return Ok(());
        };
        self.listener.close();
        let finished = self.hall.empty(STOP_PATIENCE);
        if !finished {
            tracing::warn!(uri = self.uri(), "requests in flight were given up");
        }
        // It does nothing that lasts: the socket it waits on is closed.
        let _ = doorman.join();
        // Every disk is flushed, whatever becomes of the others; the first error counts.
        let results: Vec<_> = self.hall.exports().iter().map(flush).collect();
        results.into_iter().collect()
    }
}

impl Server for NbdServer {
    fn uri(&self) -> String {
        let exports = self.hall.exports();
        let export = match exports.as_slice() {
            [only] => only.export.name.as_str(),
            _ => "",
        };
        self.listener.uri(self.hall.tls.is_some(), export)
    }

    fn resized(&self) {
        // The protocol has no word for it: see the module's documentation.
    }

    fn failed(&self) -> Option<Error> {
        wire::lock(&self.failure).take()
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
fn accept_clients(hall: &Arc<Hall>, listener: &Listener, failure: &Mutex<Option<Error>>) {
    let mut full = false;
    while !hall.is_stopping() {
        let guest = match listener.accept() {
            Ok(guest) => guest,
            Err(_) if hall.is_stopping() => return,
            // The listening socket itself is gone or was closed by `NbdServer::end`, which stops us in a moment.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                hall.pause(REST);
                if !hall.is_stopping() {
                    *wire::lock(failure) = Some(Error::io("cannot accept clients any more", error));
                }
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an NBD client");
                hall.pause(REST);
                continue;
            }
        };
        let socket = Arc::new(guest.socket);
        let Some(slot) = hall.admit(&socket) else {
            if !full {
                tracing::warn!(peer = guest.name, "too many NBD clients: this one is turned away");
            }
            full = true;
            continue;
        };
        full = false;
        let hall = Arc::clone(hall);
        let run = move || welcome::receive_client(&hall, Arc::new(slot), socket, guest.is_tcp, guest.name);
        if let Err(error) = std::thread::Builder::new().name("nbd-client".to_owned()).spawn(run) {
            tracing::warn!(%error, "cannot start a thread for an NBD client");
        }
    }
}
