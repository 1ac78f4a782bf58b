//! The arguments of `headstart-lab replay`.

use crate::plots::PlotFormat;
use clap::{Args, ValueEnum};
use headstart_block::{Error, Result};
use headstart_command_line::duration::duration;
use headstart_command_line::number::{at_least, number};
use headstart_export::nbd::NbdUri;
use headstart_image::export::OutputFile;
use headstart_replay::ReplayClock;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) const EXAMPLES: &str = "\
A trace is a Parquet file that `headstart attach --record` wrote, or a .npy file of the FAST'26 layout. Its reads are \
sent as the recorded guest sent them: each its recorded think time after the answers to the reads that it followed \
(--clock closed), or at its recorded time, without waiting (--clock open). Its writes are not sent, and data that the \
guest had written before is not read. The wait of a read is the time from sending it to its whole answer; waits are a \
server's, the replayer adds less than 0.1 ms to each.

Examples:
  headstart-lab replay boot.parquet 'nbd+unix:///?socket=/run/vm.sock'
  headstart-lab replay boot.parquet nbd://localhost:10809/disk --faster 5 --grace 3s \\
      --plot waits.svg
  headstart-lab replay traces/12.npy nbd://localhost:10809/disk --clock open --json

Exit status: 1 if reads failed or the command was interrupted; the report is printed anyway.";

/// The longest time before a boot's first read, and the longest wait that counts as a hit.
const HOUR: Duration = Duration::from_secs(3600);

/// The longest wait for an answer.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Sends the reads of a recorded boot to an NBD server, as the guest did, and prints how long they waited
#[derive(Args)]
pub(crate) struct Replay {
    /// The recorded boot: a Parquet trace, or a .npy file of the FAST'26 layout
    pub(super) trace: PathBuf,
    /// The server: nbd://host:port/export or nbd+unix:///export?socket=PATH
    #[arg(value_name = "NBD-URI")]
    pub(super) uri: NbdUri,
    /// The times at which reads are sent
    #[arg(long, value_enum, default_value_t = ClockName::Closed)]
    pub(super) clock: ClockName,
    /// Run the guest this many times as fast as it was recorded
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = number::<u32>(1..=1000))]
    pub(super) faster: u32,
    /// From the connection to the first read [default: as recorded, from the creation of the disk]
    #[arg(long, value_name = "TIME", value_parser = duration(Duration::ZERO..=HOUR))]
    pub(super) grace: Option<Duration>,
    /// Count a read that waits at most this long as a hit
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = duration(Duration::ZERO..=HOUR))]
    pub(super) hit: Duration,
    /// The longest wait for any answer of the server; then the replay fails
    #[arg(
        long,
        value_name = "TIME",
        default_value = "5m",
        value_parser = duration(Duration::from_millis(1)..=TIMEOUT_MAX)
    )]
    pub(super) timeout: Duration,
    /// Send only this many reads, the first ones
    #[arg(long, value_name = "N", value_parser = at_least::<usize>(1))]
    pub(super) reads: Option<usize>,
    /// Draw the waits into this file, in the format of its extension: .svg or .png
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
}

/// The times at which reads are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClockName {
    /// Each its think time after the answers to the reads that it followed
    Closed,
    /// Each at its recorded time
    Open,
}

impl ClockName {
    pub(super) fn clock(self) -> ReplayClock {
        match self {
            Self::Closed => ReplayClock::Closed,
            Self::Open => ReplayClock::Open,
        }
    }
}

impl Replay {
    /// Checks the rules between arguments that clap cannot express.
    pub(crate) fn check(&self) -> Result<()> {
        self.plot.as_deref().map_or(Ok(()), |path| format(path).map(drop))
    }

    /// The file of the picture, begun before the long work: a place that cannot be used is refused at once.
    pub(super) fn plot(&self) -> Result<Option<(&Path, PlotFormat, OutputFile)>> {
        let Some(path) = self.plot.as_deref() else { return Ok(None) };
        Ok(Some((path, format(path)?, OutputFile::create(path, &[&self.trace])?)))
    }
}

/// The format of the picture at `path`.
fn format(path: &Path) -> Result<PlotFormat> {
    PlotFormat::of(path).ok_or_else(|| {
        Error::invalid("its name ends neither in .svg nor in .png")
            .about(format!("--plot {}", path.display()))
            .remedy("name the picture waits.svg or waits.png")
    })
}
