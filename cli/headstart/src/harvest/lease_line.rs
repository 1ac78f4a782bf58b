//! A lease in words.

use headstart_block::ByteSize;
use headstart_block::words::count;
use headstart_harvestd::host::LeaseStatus;
use std::fmt;
use std::time::Duration;

/// A lease in words, without the vSSD that has it.
pub(super) struct LeaseLine<'a>(pub(super) &'a LeaseStatus);

impl fmt::Display for LeaseLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaseStatus { id, home, bandwidth, capacity, left_s, leaving, .. } = self.0;
        let channels = count(u64::from(*bandwidth), "channel");
        write!(f, "lease {}: {} on {channels} of {home}", id.0, ByteSize(*capacity))?;
        match (leaving, left_s) {
            (true, _) => write!(f, ", being taken back"),
            (false, 0) => write!(f, ", for as long as {home} does without it"),
            (false, left) => write!(f, ", for {}", span(*left)),
        }
    }
}

/// Seconds in the form that people write; long spans are rounded to minutes.
pub(super) fn span(seconds: u64) -> String {
    let rounded = if seconds > 3600 { seconds - seconds % 60 } else { seconds };
    humantime::format_duration(Duration::from_secs(rounded)).to_string()
}
