//! The decision whether a warning about a cache that goes on without its disk is due.

/// The time for which a warning is not repeated, in milliseconds.
const QUIET_MS: u64 = 60_000;

/// The reason why the disk is left alone for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BypassReason {
    /// Bytes were evicted before the read that wanted them could use them.
    ReadTooLarge,
    /// The disk or the limit of the size refused a write.
    Refused,
}

/// The warnings that were given. Each reason is logged once until the disk takes a write again, and not each time if
/// the disk takes and refuses by turns: a disk that is nearly full takes small writes and refuses large ones. A
/// warning of one reason holds back none of the other, whose remedy is another.
#[derive(Debug, Default)]
pub(crate) struct BypassLog {
    /// By reason: `true` if it was logged since the disk took a write.
    is_logged: [bool; 2],
    /// By reason: the time until which its warning is not repeated, in milliseconds since the cache was opened.
    quiet_until: [u64; 2],
}

impl BypassLog {
    /// Notes that the disk is left alone at `now_ms`, in milliseconds since the cache was opened. `true` if the
    /// warning is due.
    pub(crate) fn began(&mut self, reason: BypassReason, now_ms: u64) -> bool {
        let at = reason as usize;
        let (Some(is_logged), Some(quiet_until)) = (self.is_logged.get_mut(at), self.quiet_until.get_mut(at))
        else {
            return false;
        };
        if std::mem::replace(is_logged, true) || now_ms < *quiet_until {
            return false;
        }
        *quiet_until = now_ms.saturating_add(QUIET_MS);
        true
    }

    /// Notes that the disk took a write.
    pub(crate) fn ended(&mut self) {
        self.is_logged = [false; 2];
    }
}

#[cfg(test)]
mod tests {
    use super::{BypassLog, BypassReason};

    #[test]
    fn a_disk_that_refuses_by_turns_is_not_spoken_of_each_time() {
        let mut log = BypassLog::default();
        let mut is_due = |now: &u64| {
            let due = log.began(BypassReason::Refused, *now);
            log.ended();
            due
        };
        let logged: Vec<u64> = (0..200_000).step_by(1000).filter(|now| is_due(now)).collect();
        assert_eq!(logged, [0, 60_000, 120_000, 180_000]);
    }

    #[test]
    fn a_disk_that_goes_on_refusing_is_spoken_of_once() {
        let mut log = BypassLog::default();
        let logged = (0..200_000).step_by(1000).filter(|now| log.began(BypassReason::Refused, *now)).count();
        assert_eq!(logged, 1);
    }

    #[test]
    fn a_warning_about_large_reads_holds_back_none_about_the_disk() {
        let mut log = BypassLog::default();
        assert!(log.began(BypassReason::ReadTooLarge, 0));
        assert!(log.began(BypassReason::Refused, 1000));
        assert!(!log.began(BypassReason::ReadTooLarge, 2000) && !log.began(BypassReason::Refused, 3000));
    }
}
