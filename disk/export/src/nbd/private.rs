//! A server of one disk without an address: a connection is a pair of sockets, and one end of it is given away.
//!
//! Only a process that has been given such an end can use the disk, and it has access to nothing else of the server's
//! process. Limits and behaviour are those of any connection: see [the module](super).

use super::accept;
use super::budget::OWN_BYTES;
use super::connection_registry::{ConnectionRegistry, Limits};
use super::disk::ExportState;
use crate::Export;
use headstart_block::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::Arc;
use std::time::Duration;

/// The time that a client has until it has chosen the disk: its process may be starting on a busy host.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// The time that a client may leave its replies, as with any server.
const SEND: Duration = Duration::from_secs(60);

/// An NBD server of one disk without an address: each client receives one end of a socket pair. Dropping the
/// server disconnects its clients.
pub struct PrivateServer {
    registry: Arc<ConnectionRegistry>,
    name: String,
}

impl PrivateServer {
    /// Creates a server of `export` for at most `connections_max` connections. The requests of all connections together
    /// use at most `memory` bytes (256 KiB if `memory` is less), in addition to 256 KiB for each connection. Clients
    /// may enlarge the disk.
    #[must_use]
    pub fn new(export: Export, connections_max: usize, memory: u64) -> Self {
        let limits =
            Limits { connections_max, handshake_timeout: HANDSHAKE, send_timeout: SEND, allow_resize: true };
        let name = export.name.clone();
        let exports = vec![Arc::new(ExportState::new(export))];
        Self {
            registry: Arc::new(ConnectionRegistry::new(exports, None, limits, memory.max(OWN_BYTES))),
            name,
        }
    }

    /// Opens a connection and returns the client's end of its socket pair. If all places are taken, waits up to a few
    /// seconds until a connection that has to make room ([the module](super) says which do) has ended.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if the server has ended, or if `connections_max` connections are open
    /// and none of them has made room in time; errors of the operating system.
    pub fn connect(&self) -> Result<OwnedFd> {
        let failed = |e| Error::io("cannot make a connection to a disk", e).about(&self.name);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| failed(e.into()))?;
        let socket = Arc::new(ours);
        let full = || Error::new(headstart_block::ErrorKind::Conflict, "takes no more connections");
        let slot = self.registry.admit(&socket).ok_or_else(full).map_err(|e| e.about(&self.name))?;
        let (registry, peer) = (Arc::clone(&self.registry), format!("the export process of {}", self.name));
        let run = move || accept::receive_client(&registry, Arc::new(slot), socket, false, peer);
        std::thread::Builder::new().name("nbd-private".to_owned()).spawn(run).map_err(failed)?;
        Ok(theirs)
    }

    /// The number of connections that are open now.
    pub(crate) fn connections(&self) -> usize {
        self.registry.connections()
    }

    /// Accepts no more requests, gives those in flight `timeout` to finish, and disconnects the clients.
    /// Returns `true` if no thread works for a client any more, so that no client's request can change the disk after
    /// that. Returns `false` if a thread still works for one; the call may then be repeated.
    #[must_use]
    pub fn end(&self, timeout: Duration) -> bool {
        self.registry.drain(timeout)
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        let _ = self.registry.drain(Duration::ZERO);
    }
}
