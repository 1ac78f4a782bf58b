//! ublk: a disk as `/dev/ublkbN`, served to the kernel through `io_uring`.
//!
//! **EXPERIMENTAL.** The server has not run on a kernel with ublk yet (the machines of our tests have none); what is
//! tested is what it refuses. So it is not built unless the feature `ublk` is asked for, which needs `libclang` at
//! build time.
//!
//! # Why it is so careful
//!
//! Some kernels crash when a ublk device is made ([`probe`] knows which), and the process that asked for it can then
//! not even be killed. So the kernel is looked at first, the device is made by a thread of its own, and nobody
//! waits for that thread longer than [`CREATION_PATIENCE`].
//!
//! # Dangers
//!
//! * Whoever mounts the device must not share its mount namespace's end with this process: if both end at once, the
//!   last write-back waits for a server that is gone. Unmount before you detach.
//! * A device number that is used again may still have pages of its last disk in the host's cache: they are dropped
//!   when the disk comes and when it goes.
//! * Whole sectors only, and no growing.

#[cfg(feature = "ublk")]
mod device;
mod kernel;

pub use self::kernel::probe;

#[cfg(feature = "ublk")]
pub use self::device::Ublk;

use std::time::Duration;

/// How long the kernel may take to make a device.
pub const CREATION_PATIENCE: Duration = Duration::from_secs(15);

/// How to serve a disk to the kernel.
#[derive(Clone, Debug)]
pub struct UblkSettings {
    /// Queues, each with a thread.
    pub queues: u16,
    /// Requests that a queue may have in flight.
    pub depth: u16,
    /// Go on though this kernel is known, or likely, to crash.
    pub trust_kernel: bool,
}

impl Default for UblkSettings {
    /// A queue a core, four at most; 64 requests each; no trust.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { queues: u16::try_from(cores.min(4)).unwrap_or(1), depth: 64, trust_kernel: false }
    }
}
