//! Servers that give a block device to hypervisors and kernels: NBD, vhost-user-blk, FUSE, ublk.
//!
//! Every server takes [`Export`]s, which are no more than named [`BlockDevice`]s, and returns a running [`Server`]: the
//! program that attaches a disk holds a list of them and need not know which protocol each speaks.
//!
//! | module | programs that can open the disk |
//! |---|---|
//! | [`nbd`] | any NBD client: QEMU, nbdcopy, the kernel's nbd driver on another host |
//! | [`vhost_user`] | a hypervisor on this host, through shared memory |
//! | [`fuse`] | anything that opens a file: loop devices, any hypervisor |
//! | [`ublk`] | the kernel, as `/dev/ublkbN` |
//! | [`kernel_nbd`] | the kernel, as `/dev/nbdN`: its nbd driver joined to the NBD server of this crate |
//!
//! The module [`socket`] makes the Unix sockets of these servers. [`loop_mount`] mounts the file system on a disk that
//! FUSE serves, for containers; [`attach_way`] says which way is the best for that. [`keeper`] is the process by which
//! mounts of FUSE outlive the processes that serve them.
//!
//! # Promises of all servers
//!
//! * A read whose bytes are on this host ([`BlockDevice::read_local_at`]) is served by the thread that received it, or
//!   by another one if the read is much work. It never queues behind a read that waits for remote bytes, which a store
//!   or another host has to send.
//! * A flush is answered only when all writes that were answered before it are durable: a server calls
//!   [`BlockDevice::flush`], and holds no writes back itself.
//! * A client that breaks its protocol, vanishes or stalls harms only itself.
//! * Stopping is bounded: no new work is taken, requests in flight get [`STOP_TIMEOUT`] to finish, the device is
//!   flushed, and the sockets, files and devices that the server made are removed. (If a program still has a mounted
//!   file or a device of the kernel open, the kernel may keep it longer; a warning is logged then.)

mod account_names;
pub mod attach_way;
mod blocking_pool;
mod complaints;
pub mod fuse;
mod host_cache;
pub mod keeper;
pub mod kernel_nbd;
mod kernel_release;
pub mod loop_device;
pub mod loop_mount;
pub mod nbd;
mod processors;
pub mod socket;
mod tool;
pub mod ublk;
pub mod vhost_user;

pub use socket::{Leftover, SocketAccess, SocketMode, SocketOwner};

use headstart_block::{BlockDevice, Error, Result};
use std::fmt;
use std::iter::Sum;
use std::sync::Arc;
use std::time::Duration;

/// The maximum duration for which a server that stops waits for requests in flight. It is long enough for a
/// local disk to finish all requests of a client. A read that waits for an unreachable store is abandoned.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A disk that a server offers to clients, with its name and the clients that may use it.
#[derive(Clone)]
pub struct Export {
    /// The name by which clients request the disk. Empty for the disk that a client gets if it names none. An NBD
    /// client that names none also gets the only disk that it may use, whatever the name.
    pub name: String,
    /// A description that a server shows to people who list its exports; may be empty.
    pub description: String,
    /// The disk's data. Several servers may share it and serve it at the same time.
    pub device: Arc<dyn BlockDevice>,
    /// The certificate names that give access over a network: a client whose certificate has one of them may use this
    /// disk, and an NBD server hides the disk from all others. The names of a certificate are its DNS names, URIs and
    /// e-mail addresses, or its common name if it has no subject alternative names. `None`: every client that the
    /// server accepts may use the disk. A server without TLS certificates gives a disk with such names to no client.
    pub certificates: Option<Vec<String>>,
}

impl Export {
    /// Returns an export of `device` under `name`, without a description and for all clients.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.into(), description: String::new(), device, certificates: None }
    }

    /// Returns the same export, restricted to clients whose certificate has one of these names.
    #[must_use]
    pub fn only_for(self, certificates: Vec<String>) -> Self {
        Self { certificates: Some(certificates), ..self }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, size) = (&self.name, self.device.size());
        f.debug_struct("Export").field("name", name).field("size", &size).finish_non_exhaustive()
    }
}

/// The clients of a server, or of several, at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// The number of clients that use a disk.
    pub connected: usize,
    /// The number of clients that use a disk or did before. As long as it is the same, no client has come: those that
    /// use a disk did so all along.
    pub ever: u64,
}

impl Sum for ClientCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            connected: sum.connected + one.connected,
            ever: sum.ever + one.ever,
        })
    }
}

/// A running server with threads of its own. Dropping it stops it, as [`stop`](Server::stop) does, but an
/// error is only logged.
pub trait Server: Send + Sync {
    /// The URI or path with which clients open the disk: `nbd+unix:///?socket=/run/d.sock`, or the path of a
    /// socket, file or device.
    fn uri(&self) -> String;

    /// Notifies clients that a device's size has changed, if the protocol has a message for it. Must be
    /// called after [`BlockDevice::resize`].
    fn resized(&self);

    /// The clients that use a disk now, and those that did before; none also if the server cannot tell.
    fn clients(&self) -> ClientCounts {
        ClientCounts::default()
    }

    /// The error that ended the server before it was stopped. It is returned once; `None` afterwards, and while the
    /// server serves. Errors of single clients and requests do not count: they are answered and logged.
    fn failed(&self) -> Option<Error>;

    /// Stops the server: accepts no new requests, gives those in flight at most [`STOP_TIMEOUT`] to finish,
    /// flushes the devices, and removes the sockets, mounts or devices that it created.
    ///
    /// # Errors
    /// The error of a flush: writes of clients since the last flush may be lost.
    fn stop(self: Box<Self>) -> Result<()>;

    /// Ends the server in favour of the next process, which serves the same device at the same place: what clients can
    /// use without a server for a moment is left as it is. All others stop.
    ///
    /// # Errors
    /// Those of [`stop`](Server::stop).
    fn leave(self: Box<Self>) -> Result<()> {
        self.stop()
    }
}
