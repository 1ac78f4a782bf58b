//! Spare flash for evictable VMs, given back in time: a host that does what a broker decides, and its daemon, which
//! serves the host's vSSDs as disks.
//!
//! A host's SSD is sold in *vSSDs*, which own whole channels and are half empty. Flash that a vSSD does not use for a
//! while is lent as a *gSSD*: free flash blocks that a harvest VM's vSSD may use until the owner needs them. The design
//! is that of BlockFlex (Reidys et al., OSDI 2022); where a module differs it says so. The flash and its translation
//! layer are in `headstart-flash`, the decisions in `headstart-broker`, the predictors in `headstart-forecast`;
//! threads, files and the order of locks are in this crate. `DIR` is the daemon's directory:
//!
//! ```text
//! DIR/lock, DIR/journal and so on   the host's own: see `host`
//! DIR/harvest.sock                  the socket at which programs find the daemon: HTTP
//! DIR/nbd/NAME.sock                 the socket at which clients find a vSSD, unless another place is named
//! DIR/exports/NAME.pid, NAME.log    the process that serves a vSSD by vhost-user or as a file
//! DIR/exports.json                  the vSSDs that are served in other ways, or to other users
//! ```
//!
//! A vSSD is served from the moment when it is made, or the daemon starts, until it is deleted, or the daemon ends. A
//! thread of its own calls the host's timers every second, so that no request waits for them. Another thread makes
//! writes durable that clients do not flush themselves.
//!
//! | module | content |
//! |---|---|
//! | [`host`] | all of one host put together: its bytes, threads and records |
//! | [`disk`] | a vSSD as a block device |
//! | [`client`] | the client of other programs |
//! | [`exports`] | each vSSD as a disk, by NBD and the other requested ways |
//! | [`export_process`] | the processes that serve them by vhost-user and FUSE |
//! | [`ways`] | the users that may open each vSSD, and the ways in which it is served: its stored settings |
//! | `vssd` | a vSSD as it is shown |
//! | `rest` | the interface for programs over HTTP |
//! | `metrics` | the page that Prometheus scrapes |

#![forbid(unsafe_code)]

pub mod client;
pub mod disk;
pub mod export_process;
pub mod exports;
pub mod host;
mod metrics;
mod rest;
mod vssd;
pub mod ways;

pub use export_process::ExportProcessStatus;
pub use rest::{NewAccess, NewOffer, NewSize, NewVssd};
pub use vssd::ServedVssd;

use exports::Exports;
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::http::{HttpPort, Rest};
use headstart_export::nbd::{Address, NbdSettings, TlsSettings};
use headstart_export::{Leftover, SocketAccess};
use host::{FlashPlace, Host, Options};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The file name of the daemon's control socket, in the daemon's directory.
pub const SOCKET: &str = "harvest.sock";

/// The interval of the host's timers.
const TICK: Duration = Duration::from_secs(1);

/// The longest time for which unflushed writes of clients may be in memory only: the same as for files on Linux.
const FLUSH: Duration = Duration::from_secs(30);

/// The most NBD clients at a time at the address that all vSSDs share.
const CONNECTIONS_MAX: usize = 1024;

/// The configuration with which a daemon is started.
pub struct HarvestSettings {
    /// The options of the host that the daemon runs.
    pub host: Options,
    /// The address of an NBD server for all vSSDs, in addition to the socket of each. `None`: no such server.
    pub nbd: Option<Address>,
    /// The certificates of the NBD server for all vSSDs. `None`: no TLS.
    pub tls: Option<TlsSettings>,
    /// The TCP address of the read-only part of the HTTP interface. `None`: not on TCP.
    pub http: Option<HttpPort>,
}

/// A running daemon: a host, the servers of its vSSDs, and its HTTP interface.
pub struct Harvest {
    host: Arc<Host>,
    exports: Arc<Exports>,
    ticker: Ticker,
    flusher: Ticker,
    rest: Rest,
    socket: PathBuf,
}

impl Harvest {
    /// Opens the host, serves its vSSDs, and listens for requests, on the caller's Tokio runtime.
    ///
    /// # Errors
    /// Errors of [`Host::open`], of `Exports::start`, and of listening. A vSSD that cannot be served in one of its ways
    /// is no error: its status names the cause.
    pub async fn start(settings: HarvestSettings) -> Result<Self> {
        let HarvestSettings { host: options, nbd, tls, http } = settings;
        let dir = options.dir.clone();
        let nbd = nbd.map(|address| {
            // Only this daemon makes sockets in its directory, because it has the lock of it.
            let is_ours = matches!(&address, Address::Unix(path) if path.parent() == Some(&dir));
            let leftover = if is_ours { Leftover::IsOurs } else { Leftover::IsUnknown };
            NbdSettings { tls, connections_max: CONNECTIONS_MAX, leftover, ..NbdSettings::new(address) }
        });
        let opened = tokio::task::spawn_blocking({
            let dir = dir.clone();
            move || -> Result<_> {
                let forgets = matches!(options.flash, FlashPlace::Emulated { .. });
                let host = Host::open(options, Arc::new(clock()))?;
                let exports = Exports::start(nbd.as_ref(), &dir, forgets, &host)?;
                Ok((host, Arc::new(exports)))
            }
        });
        let (host, exports) = opened.await.map_err(broke_off)??;
        let socket = dir.join(SOCKET);
        let served = rest::Served { host: Arc::clone(&host), exports: Arc::clone(&exports) };
        let rest = rest::start(&socket, &SocketAccess::default(), http, served).await?;
        let ticker = Ticker::start("harvest-timers", TICK, {
            let (host, exports) = (Arc::clone(&host), Arc::clone(&exports));
            move || {
                host.tick();
                exports.refresh();
            }
        })?;
        let flusher = Ticker::start("harvest-flush", FLUSH, {
            let exports = Arc::clone(&exports);
            move || exports.flush()
        })?;
        Ok(Self { host, exports, ticker, flusher, rest, socket })
    }

    /// Returns the path of the control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the URI of the NBD server for all vSSDs, which has each as an export; `None` if there is none.
    #[must_use]
    pub fn nbd(&self) -> Option<String> {
        self.exports.uri()
    }

    /// Returns the directory of the NBD sockets: each vSSD is served at a socket of its own there, unless another path
    /// was named for it.
    #[must_use]
    pub fn sockets(&self) -> PathBuf {
        self.exports.sockets()
    }

    /// Returns the TCP address of the read-only part of the HTTP interface; `None` if it is not on TCP.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.rest.address
    }

    /// Returns the number of vSSDs.
    #[must_use]
    pub fn vssds(&self) -> usize {
        self.host.list().len()
    }

    /// Returns the cause if the daemon can no longer work; `None` if it works. An error that ended the NBD server
    /// for all vSSDs is returned only once.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.exports.failed().or_else(|| {
            let ended = || Error::new(ErrorKind::Unavailable, "the thread of the host's timers has ended");
            (self.ticker.has_ended() || self.flusher.has_ended()).then(ended)
        })
    }

    /// Stops accepting requests, stops the servers and closes the host. Clients' writes are durable
    /// afterwards.
    ///
    /// # Errors
    /// A flush or the closing of the host fails; the rest is stopped anyway.
    pub async fn stop(self) -> Result<()> {
        let Self { host, exports, ticker, flusher, rest, .. } = self;
        drop(rest);
        let stopped = tokio::task::spawn_blocking(move || {
            drop((ticker, flusher));
            let stopped = exports.stop();
            stopped.and(host.close())
        });
        stopped.await.map_err(broke_off)?
    }
}

fn broke_off(e: tokio::task::JoinError) -> Error {
    Error::invalid("it broke off").caused_by(e)
}

/// A clock for a host: the time since the beginning of 1970, so that it goes on where the previous one ended; it does
/// not run backwards while the daemon lives, whatever happens to the host's clock.
#[expect(clippy::disallowed_methods, reason = "the daemon is where the time comes in")]
fn clock() -> impl Fn() -> Duration + Send + Sync {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let zero = Instant::now();
    move || since + zero.elapsed()
}

/// A thread that calls a function at intervals. It ends when this is dropped.
struct Ticker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    fn start(name: &str, every: Duration, work: impl Fn() + Send + 'static) -> Result<Self> {
        let (stop, stopped) = channel::<()>();
        let tick = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(every) {
                work();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(tick);
        let thread = thread.map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
