//! Servers that give a block device to hypervisors and kernels: NBD, vhost-user-blk, FUSE, ublk.
//!
//! Every server takes [`Export`]s, which are no more than named [`BlockDevice`]s, and gives back a running
//! [`Server`]: who attaches a disk holds a list of them and need not know which protocol each speaks.
//!
//! | module | who can open the disk |
//! |---|---|
//! | [`nbd`] | any NBD client: QEMU, nbdcopy, the kernel's nbd driver on another host |
//! | [`vhost_user`] | a hypervisor on this host, through shared memory |
//! | [`fuse`] | anything that opens a file: loop devices, any hypervisor |
//! | [`ublk`] | the kernel, as `/dev/ublkbN` |
//! | [`kernel_nbd`] | the kernel, as `/dev/nbdN`: its nbd driver joined to our NBD server |
//!
//! # What all servers promise
//!
//! * A read whose bytes are on this host ([`BlockDevice::read_local_at`]) is served by the thread that received it,
//!   and never queues behind one that waits for bytes from elsewhere.
//! * What a guest flushed is durable before its flush is answered: a server calls [`BlockDevice::flush`] and
//!   holds no writes back itself.
//! * A client that breaks its protocol, vanishes or stalls harms itself alone.
//! * Stopping is bounded: no new work is taken, what is in flight gets [`STOP_PATIENCE`] to finish, the device is
//!   flushed, and the sockets, files and devices that the server made are gone.

mod complaints;
pub mod fuse;
mod host_cache;
pub mod kernel_nbd;
pub mod nbd;
mod processors;
mod slow_lane;
pub mod socket;
mod tool;
pub mod ublk;
pub mod vhost_user;

pub use socket::{Leftover, SocketAccess, SocketMode, SocketOwner};

use headstart_block::{BlockDevice, Error, Result};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a server that stops waits for requests in flight. Long enough for a local disk to finish all that a
/// client may have in flight; a read that waits for a store which is away is given up.
pub const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// A disk as clients see it.
#[derive(Clone)]
pub struct Export {
    /// What clients ask for. Empty for the disk that a client gets which names none.
    pub name: String,
    /// For people who list a server's exports; may be empty.
    pub description: String,
    /// The disk. Servers share it: it may be exported by several at once.
    pub device: Arc<dyn BlockDevice>,
    /// The names of certificates that give this disk over a network: an NBD server tells others nothing of it. `None`:
    /// every client that the server takes may have it. Servers without certificates give a disk with names to nobody.
    pub certificates: Option<Vec<String>>,
}

impl Export {
    /// The disk `device` under `name`, without a description.
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Self {
        Self { name: name.into(), description: String::new(), device, certificates: None }
    }

    /// The same for clients whose certificate has one of these names, and no others.
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

/// A server that runs in threads of its own. Dropping it stops it, as [`stop`](Server::stop) does, but nobody
/// hears how that went.
pub trait Server: Send + Sync {
    /// Where clients find it: `nbd+unix:///?socket=/run/d.sock`, the path of a socket, file or device.
    fn uri(&self) -> String;

    /// Tells clients that a device's size has changed, as far as the protocol can. Call it after
    /// [`BlockDevice::resize`].
    fn resized(&self);

    /// Clients that use a disk at present, as far as the server can tell; 0 where it cannot.
    fn clients(&self) -> usize {
        0
    }

    /// The error that ended the server before anybody stopped it, once; `None` while it serves. Faults of single
    /// clients and requests are not failures of the server: they are answered and logged.
    fn failed(&self) -> Option<Error>;

    /// Takes no new work, finishes what is in flight (at most [`STOP_PATIENCE`]), flushes the devices, closes and
    /// removes what it made.
    ///
    /// # Errors
    /// Where a flush fails: what clients wrote since the last flush may be lost.
    fn stop(self: Box<Self>) -> Result<()>;
}
