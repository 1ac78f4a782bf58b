//! The boots of a disk: when each boot begins, and for how long it is recorded. A state machine, `RecordingPhase`,
//! decides this. It reads no clock; the caller passes the times in.
//!
//! ```text
//!            first read                      the window ends
//! Waiting ---------------> Recording(since) -----------------> Idle(since)
//!                             ^   |                                 |
//!                             +---+--- a read that starts again <---+
//! ```
//!
//! A disk may be attached long before its guest starts, and stay attached while the guest is started again. So a
//! recording begins with a read, not with the attach. After the first boot, a read begins a further one (*starts
//! again*) if it covers the boot sector and one of these conditions holds:
//!
//! * Nothing was read for [`PAUSE`]. A kernel takes less time, also under emulation, from the last read of its loader
//!   to its own look at the partitions.
//! * The read is of one sector only, and nothing was read for [`FIRMWARE_PAUSE`]. Firmware reads one sector first,
//!   after some time in which it reads nothing; kernels and tools read pages.
//! * The read is the first since a client connected to a disk that had no client: a hypervisor was started.
//!
//! A read counts from its arrival to its end. So the time for which a guest waits for the store is no pause. While a
//! read is in progress, only its arrival is known, so the time without reads before a further read counts from that
//! arrival.

use headstart_block::{ByteRange, SECTOR_SIZE};
use std::time::Duration;

/// The minimum time without reads after which a read of the boot sector begins a new boot.
pub const PAUSE: Duration = Duration::from_secs(30);

/// The minimum time without reads after which a read of the boot sector alone (512 bytes, as firmware sends it) begins
/// a new boot.
pub const FIRMWARE_PAUSE: Duration = Duration::from_secs(1);

/// The state of recording the boots of a disk. Times are microseconds since the disk was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordingPhase {
    /// Nothing was read yet.
    Waiting,
    /// A boot is recorded.
    Recording {
        /// The arrival of the boot's first read, in microseconds since the disk was attached.
        since_us: u64,
    },
    /// The time for which the last boot was recorded is over.
    Idle {
        /// The arrival of the last boot's first read, in microseconds since the disk was attached.
        since_us: u64,
    },
}

/// An arriving read, with the facts that decide if it begins a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The arrival of the read, in microseconds since the disk was attached.
    pub at_us: u64,
    /// The range of the disk that is read.
    pub range: ByteRange,
    /// The time without reads before this read: from the moment at which a read last arrived or ended.
    pub quiet: Duration,
    /// `true` for the first read after a client has connected to a disk that had no client.
    pub is_first_of_client: bool,
}

impl Arrival {
    fn starts_anew(&self) -> bool {
        if !covers_boot_sector(self.range) {
            return false;
        }
        let is_firmware = self.range.len() == SECTOR_SIZE && self.quiet >= FIRMWARE_PAUSE;
        is_firmware || self.quiet >= PAUSE || self.is_first_of_client
    }
}

/// Returns `true` if a read has bytes of the boot sector.
pub(crate) fn covers_boot_sector(range: ByteRange) -> bool {
    range.offset() < SECTOR_SIZE && !range.is_empty()
}

impl RecordingPhase {
    /// Returns the phase after the arrival of `read`. The read may begin a boot, which is then recorded; the time of
    /// that boot is at least a microsecond after the time of the boot before. A recording whose window has passed goes
    /// on here: only [`at`](Self::at) ends it.
    #[must_use]
    pub fn after(self, read: &Arrival) -> Self {
        match self {
            Self::Waiting => Self::Recording { since_us: read.at_us },
            // No two boots have the same time, by which their requests are told apart.
            Self::Recording { since_us } | Self::Idle { since_us } if read.starts_anew() => {
                Self::Recording { since_us: read.at_us.max(since_us.saturating_add(1)) }
            }
            same => same,
        }
    }

    /// Returns the phase at `now_us` (microseconds since the disk was attached) if no read arrives. A recording has
    /// ended if more than `window` has passed since the first read of its boot.
    #[must_use]
    pub fn at(self, now_us: u64, window: Duration) -> Self {
        match self {
            Self::Recording { since_us } if is_over(since_us, now_us, window) => Self::Idle { since_us },
            same => same,
        }
    }

    /// The time of the first read of the last boot, in microseconds since the disk was attached; 0 before the first.
    pub(crate) fn began_us(self) -> u64 {
        match self {
            Self::Waiting => 0,
            Self::Recording { since_us } | Self::Idle { since_us } => since_us,
        }
    }

    /// The phase as one number.
    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::Waiting => 0,
            Self::Recording { since_us } | Self::Idle { since_us } => since_us.saturating_add(1),
        }
    }

    /// The phase that a number stands for; only the clock tells that a boot is idle.
    pub(crate) fn of_word(word: u64) -> Self {
        word.checked_sub(1).map_or(Self::Waiting, |since_us| Self::Recording { since_us })
    }
}

/// Returns `true` if the window of a boot has ended.
pub(crate) fn is_over(since_us: u64, now_us: u64, window: Duration) -> bool {
    u128::from(now_us.saturating_sub(since_us)) > window.as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Duration = Duration::from_secs(360);
    const SECOND: u64 = 1_000_000;

    fn read(at_us: u64, range: (u64, u64), quiet_s: u64, is_first_of_client: bool) -> Arrival {
        let range = ByteRange::between(range.0, range.1);
        Arrival { at_us, range, quiet: Duration::from_secs(quiet_s), is_first_of_client }
    }

    #[test]
    fn the_window_begins_with_the_first_read() {
        let phase = RecordingPhase::Waiting.at(3600 * SECOND, WINDOW);
        assert_eq!(phase, RecordingPhase::Waiting);
        let phase = phase.after(&read(3600 * SECOND, (1 << 20, 2 << 20), 3600, false));
        assert_eq!(phase, RecordingPhase::Recording { since_us: 3600 * SECOND });
        assert_eq!(phase.at(3960 * SECOND, WINDOW), phase);
        assert_eq!(phase.at(3960 * SECOND + 1, WINDOW), RecordingPhase::Idle { since_us: 3600 * SECOND });
    }

    #[test]
    fn a_boot_starts_anew_at_the_boot_sector_after_a_pause() {
        let (page, sector, other) = ((0, 4096), (0, 512), (512, 4096));
        for (range, quiet_s, first, anew) in [
            (page, 29, false, false),
            (page, 30, false, true),
            (page, 0, true, true),
            (sector, 0, false, false),
            (sector, 1, false, true),
            (other, 3600, true, false),
            ((0, 0), 3600, true, false),
        ] {
            for before in [RecordingPhase::Recording { since_us: 5 }, RecordingPhase::Idle { since_us: 5 }] {
                let after = before.after(&read(900, range, quiet_s, first));
                let wanted = if anew { RecordingPhase::Recording { since_us: 900 } } else { before };
                assert_eq!(after, wanted, "{range:?}, {quiet_s} s, {first}");
            }
        }
    }

    proptest! {
        #[test]
        fn boots_have_times_of_their_own_and_words(
            reads in proptest::collection::vec((0..9_u64, 0..3_u64, 0..90_u64, any::<bool>()), 1..60)
        ) {
            let (mut phase, mut last) = (RecordingPhase::Waiting, None);
            for (at_us, sector, quiet_s, first) in reads {
                let range = (sector * 512, sector * 512 + 512);
                let next = phase.after(&read(at_us, range, quiet_s, first));
                prop_assert_eq!(RecordingPhase::of_word(next.to_word()), next);
                let RecordingPhase::Recording { since_us } = next else { return Err(TestCaseError::fail("no boot")) };
                if next != phase {
                    prop_assert!(last.is_none_or(|last| since_us > last));
                    prop_assert!(last.is_none() || sector == 0);
                }
                (phase, last) = (next, Some(since_us));
            }
        }
    }
}
