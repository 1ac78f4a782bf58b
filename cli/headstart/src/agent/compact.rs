//! `headstart disk compact`: the garbage of a writable directory that is not attached.

use headstart_block::ByteSize;
use headstart_command_line::report::Outcome;
use headstart_lsmt::writable::Compaction;
use serde::Serialize;
use std::fmt;

/// The outcome of a compaction.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Compacted(pub(super) Compaction);

impl Outcome for Compacted {}

impl fmt::Display for Compacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compaction { before_bytes, after_bytes, live_bytes, copied_bytes } = self.0;
        let freed = ByteSize(before_bytes.saturating_sub(after_bytes));
        let (after, live, copied) = (ByteSize(after_bytes), ByteSize(live_bytes), ByteSize(copied_bytes));
        write!(f, "freed {freed}: the directory takes {after} for {live} of data; {copied} were copied")
    }
}
