//! The arguments about recordings of boots.

use clap::Args;
use headstart_block::{ByteSize, Error, Result};
use headstart_diskd::{DiskLabel, RecordSettings};
use std::path::PathBuf;
use std::time::Duration;

/// The longest recording: times in a trace are 32 bits of microseconds.
const RECORD_TIME_MAX: Duration = Duration::from_secs(71 * 60);

/// The options of recording.
#[derive(Clone, Args)]
pub(crate) struct RecordArgs {
    /// Record each boot's first minutes of reads and writes into this directory [default: traces in the cache's
    /// directory]
    #[arg(long, value_name = "DIR", help_heading = "Recording")]
    record: Option<PathBuf>,
    /// Record nothing
    #[arg(long, conflicts_with = "record", help_heading = "Recording")]
    no_record: bool,
    /// Time for which each boot is recorded, from its first read on; 71 minutes at most
    #[arg(long, default_value = "6m", value_parser = parse_record_time, value_name = "TIME",
          help_heading = "Recording")]
    record_time: Duration,
    /// Most bytes of all traces in the directory: the oldest are removed first
    #[arg(long, default_value = "1G", value_name = "SIZE", help_heading = "Recording")]
    record_size: ByteSize,
    /// The time for which traces are kept
    #[arg(long, default_value = "90d", value_parser = humantime::parse_duration, value_name = "TIME",
          help_heading = "Recording")]
    record_age: Duration,
    /// A label of the disk in the trace; volume, family, user and cluster have fields of their own, other keys are
    /// kept beside them (may be repeated)
    #[arg(long = "label", value_name = "KEY=VALUE", help_heading = "Recording")]
    labels: Vec<DiskLabel>,
    /// At this socket, take the entrypoints of containers that start on the disk
    #[arg(long, value_name = "SOCK", hide = true)]
    pub(super) starts: Option<PathBuf>,
    /// The entrypoint of the container that is to start on the disk
    #[arg(long, value_name = "NAME", hide = true, default_value = "")]
    expected_entrypoint: String,
}

fn parse_record_time(text: &str) -> Result<Duration> {
    let time = super::times::parse_time(text)?;
    if time > RECORD_TIME_MAX {
        return Err(Error::invalid(format!("{text} is too long")).remedy("record 71 minutes at most: 71m"));
    }
    Ok(time)
}

impl RecordArgs {
    /// The settings of these arguments, for a disk whose boots may be recorded or may not.
    pub(super) fn settings(&self, may_record: bool) -> RecordSettings {
        RecordSettings {
            enabled: may_record && !self.no_record,
            directory: self.record.clone(),
            time: self.record_time,
            size: self.record_size,
            age: self.record_age,
            labels: self.labels.clone(),
            expected_entrypoint: self.expected_entrypoint.clone(),
        }
    }
}
