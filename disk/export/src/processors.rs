//! The processors of this host, and which reads are worth the help of another.

use headstart_block::BlockDevice;
use std::num::NonZero;
use std::sync::LazyLock;
use std::thread::available_parallelism;

/// Decoding so many bytes is worth waking another thread.
const DECODING_MIN: u64 = 32 << 10;

/// Processors of this host that we may use, at least one.
pub(crate) fn processors() -> usize {
    static PROCESSORS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    *PROCESSORS
}

/// Whether reading `len` bytes of `device` means to decode so much that it is worth another thread's help.
pub(crate) fn decodes_much(device: &dyn BlockDevice, len: u64) -> bool {
    let unit = device.decode_unit();
    unit > 0 && len.max(unit) >= DECODING_MIN
}
