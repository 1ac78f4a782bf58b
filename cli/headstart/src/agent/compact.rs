//! `headstart disk compact`: the garbage of a writable directory that is not attached.

use crate::report::Outcome;
use crate::terminal::Terminal;
use headstart_block::{BlockDevice, ByteSize, Error, ErrorKind, Result};
use headstart_image::progress::Progress;
use headstart_lsmt::writable::{Load, WritableDisk};
use serde::Serialize;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The outcome of a compaction.
#[derive(Serialize)]
pub(super) struct Compacted {
    /// Bytes that the directory took before.
    before_bytes: u64,
    /// Bytes that it takes now.
    after_bytes: u64,
    /// Bytes of data that are live.
    live_bytes: u64,
    /// Bytes that were written again.
    copied_bytes: u64,
}

impl Outcome for Compacted {}

impl fmt::Display for Compacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before_bytes, after_bytes, live_bytes, copied_bytes } = *self;
        let freed = ByteSize(before_bytes.saturating_sub(after_bytes));
        let (after, live, copied) = (ByteSize(after_bytes), ByteSize(live_bytes), ByteSize(copied_bytes));
        write!(f, "freed {freed}: the directory takes {after} for {live} of data; {copied} were copied")
    }
}

pub(super) fn compact(dir: &Path, terminal: &Terminal) -> Result<Compacted> {
    let before_bytes = taken(dir)?;
    let disk = WritableDisk::open_alone(dir)?;
    let about = |e: Error| e.about(dir.display());
    while disk.collect(Load::Offline).map_err(about)? {
        if terminal.is_cancelled() {
            // After each step the disk is whole.
            return Err(Error::new(
                ErrorKind::Cancelled,
                "stopped; the space that was freed until now stays free",
            ));
        }
    }
    disk.flush().map_err(about)?;
    disk.note_logs().map_err(about)?;
    let space = disk.space();
    drop(disk);
    Ok(Compacted {
        before_bytes,
        after_bytes: taken(dir)?,
        live_bytes: space.live_bytes,
        copied_bytes: space.copied_bytes,
    })
}

/// Bytes that the files of a directory take on their file system.
fn taken(dir: &Path) -> Result<u64> {
    let failed = |e| Error::io("cannot list the directory", e).about(dir.display());
    let mut taken = 0;
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        taken += entry.and_then(|entry| entry.metadata()).map_err(failed)?.blocks() * 512;
    }
    Ok(taken)
}
