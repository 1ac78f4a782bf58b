//! ublk: a disk as `/dev/ublkbN`, served to the kernel through `io_uring`.
//!
//! **EXPERIMENTAL.** The server is tested on Debian's Linux 6.12, in an emulated guest, and on no other kernel. It is
//! built only with the feature `ublk`, which needs `libclang` at build time.
//!
//! # A device that outlives its process
//!
//! With [`UblkSettings::kept`], the device stays when its process dies, and the driver keeps all requests. The disk's
//! next process finds the device by a word that the driver keeps (the module `recovery`), takes it over, and gets the
//! requests again that the dead one had not answered. Writes that the dead one had begun are then done twice, with the
//! same bytes, before they are answered. No request fails, and none waits for longer than the next process takes to
//! start. Devices that another user has made, or one without privileges, are passed over, whatever their word is. A
//! device whose disk has no next process keeps requests for ever: the agent of the disk releases it
//! (`release`, with the feature `ublk`).
//!
//! # Safety precautions
//!
//! Some kernels ([`probe`] knows them) crash when a ublk device is made; the process that made it can then not even be
//! killed. So the kernel's release is checked first, the device is made by a separate thread, and no other thread waits
//! for that thread longer than [`CREATION_TIMEOUT`].
//!
//! # Dangers
//!
//! * The mount namespace in which the device is mounted must not end together with this process: otherwise the last
//!   write-back waits for a server that is gone. The device must be unmounted before it is detached.
//! * The host's cache may still have pages of the disk that a device number was used for before. So these pages are
//!   dropped when a disk is attached and when it is detached.
//! * A disk must have a whole number of sectors, and cannot grow while it is attached.

#[cfg(feature = "ublk")]
mod device;
#[cfg(feature = "ublk")]
mod driver;
mod kernel;
#[cfg(any(feature = "ublk", test))]
mod recovery;

pub use self::kernel::{LOAD, is_only_unloaded, probe};

#[cfg(feature = "ublk")]
pub use self::device::Ublk;
#[cfg(feature = "ublk")]
pub use self::driver::release;

use crate::kernel_nbd::KeptDevice;
use headstart_block::exact;
use std::time::Duration;

/// The maximum duration for which a server waits until the kernel has created a device; after it, starting fails.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(15);

/// As [`CREATION_TIMEOUT`], for a device that an earlier process may have: that one may still be taken apart.
pub const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(45);

/// The settings for serving a disk as a block device of the kernel's ublk driver.
#[derive(Clone, Debug)]
pub struct UblkSettings {
    /// The number of request queues, each served by a thread. By default one for each processor, at most 4.
    pub queues: u16,
    /// The maximum number of requests in flight in each queue. 64 by default.
    pub depth: u16,
    /// `true` to use ublk even if this kernel is known, or likely, to crash. `false` by default.
    pub trust_kernel: bool,
    /// The name under which the device waits for the next process of its disk when this one dies; `None`: it does not.
    pub kept: Option<KeptDevice>,
}

impl Default for UblkSettings {
    /// A queue a core, four at most; 64 requests each; no trust; not kept.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { queues: exact(cores.min(4), "it is at most 4"), depth: 64, trust_kernel: false, kept: None }
    }
}
