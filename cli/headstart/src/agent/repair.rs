//! `headstart disk repair`: a writable directory whose index is damaged.

use headstart_command_line::report::Outcome;
use headstart_lsmt::writable::Repaired;
use serde::Serialize;
use std::fmt;

/// The outcome of a repair.
#[derive(Serialize)]
pub(super) struct RepairReport {
    /// The indexes that were cut off.
    pub(super) repaired: Vec<Repaired>,
}

impl Outcome for RepairReport {}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.repaired.is_empty() {
            return write!(f, "nothing is damaged; nothing was changed");
        }
        for (number, repaired) in self.repaired.iter().enumerate() {
            let Repaired { index, kept_bytes, cut_bytes, lost_bytes, copy } = repaired;
            let line = if number > 0 { "\n" } else { "" };
            write!(f, "{line}{index}: {kept_bytes} bytes are whole, {cut_bytes} were cut off")?;
            if let Some(copy) = copy {
                write!(f, " and are in {copy}")?;
            }
            if *lost_bytes > 0 {
                write!(f, "; what was flushed by the last {lost_bytes} is lost")?;
            }
        }
        Ok(())
    }
}
