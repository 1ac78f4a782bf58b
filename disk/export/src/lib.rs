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
//! # Promises of all servers
//!
//! * A read whose bytes are on this host ([`BlockDevice::read_local_at`]) is served by the thread that received it,
//!   and never queues behind one that waits for remote bytes, which a store or another host has to send.
//! * A write is durable before the flush after it is answered: a server calls [`BlockDevice::flush`] and holds no
//!   writes back itself.
//! * A client that breaks its protocol, vanishes or stalls harms only itself.
//! * Stopping is bounded: no new work is taken, requests in flight get [`STOP_PATIENCE`] to finish, the device is
//!   flushed, and the sockets, files and devices that the server made are gone.

mod account_names;
mod blocking_pool;
mod complaints;
pub mod fuse;
mod host_cache;
pub mod kernel_nbd;
pub mod nbd;
mod processors;
pub mod socket;
mod tool;
pub mod ublk;
pub mod vhost_user;

pub use socket::{Leftover, SocketAccess, SocketMode, SocketOwner};

use headstart_block::{BlockDevice, Error, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The time that a server that stops waits for requests in flight: long enough for a local disk to finish all that a
/// client may have in flight. A read that waits for a store which is away is given up.
pub const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A disk as clients see it.
#[derive(Clone)]
pub struct Export {
    /// The name that clients ask for. Empty for the disk that a client gets if it names none.
    pub name: String,
    /// A description for people that list a server's exports; may be empty.
    pub description: String,
    /// The disk. Servers share it: it may be exported by several at once.
    pub device: Arc<dyn BlockDevice>,
    /// The names of certificates with which clients get this disk over a network: an NBD server tells other clients
    /// nothing of it. `None`: every client that the server takes may have it. Servers without certificates give a disk
    /// with names to no client.
    pub certificates: Option<Vec<String>>,
}

impl Export {
    /// The disk `device` under `name`, without a description.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.into(), description: String::new(), device, certificates: None }
    }

    /// The same export for clients whose certificate has one of these names, and no others.
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

/// A server that runs in threads of its own. Dropping it stops it, as [`stop`](Server::stop) does, but the outcome is
/// only logged.
pub trait Server: Send + Sync {
    /// The place where clients find it: `nbd+unix:///?socket=/run/d.sock`, the path of a socket, file or device.
    fn uri(&self) -> String;

    /// Tells clients that a device's size has changed, as far as the protocol can. Call it after
    /// [`BlockDevice::resize`].
    fn resized(&self);

    /// The number of clients that use a disk at present, as far as the server can tell; 0 if it cannot.
    fn clients(&self) -> usize {
        0
    }

    /// The error that ended the server before it was stopped, once; `None` while it serves. Faults of single
    /// clients and requests are not failures of the server: they are answered and logged.
    fn failed(&self) -> Option<Error>;

    /// Takes no new work, finishes requests in flight (for at most [`STOP_PATIENCE`]), flushes the devices, closes and
    /// removes what it made.
    ///
    /// # Errors
    /// The error of a flush: writes of clients since the last flush may be lost.
    fn stop(self: Box<Self>) -> Result<()>;
}
