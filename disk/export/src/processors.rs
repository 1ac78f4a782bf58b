//! The processors of this host, and the reads that are worth the help of another one.

use headstart_block::BlockDevice;
use std::num::NonZero;
use std::sync::LazyLock;
use std::thread::available_parallelism;

/// The least number of decoded bytes that are worth waking another thread.
const DECODING_MIN: u64 = 32 << 10;

/// The number of processors of this host that this process may use, at least one.
pub(crate) fn processors() -> usize {
    static PROCESSORS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, NonZero::get));
    *PROCESSORS
}

/// `true` if reading `len` bytes of `device` decodes so many bytes that it is worth another thread's help.
pub(crate) fn decodes_much(device: &dyn BlockDevice, len: u64) -> bool {
    let unit = device.decode_unit();
    unit > 0 && len.max(unit) >= DECODING_MIN
}
