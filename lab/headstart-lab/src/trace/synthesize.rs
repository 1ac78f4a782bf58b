//! `headstart-lab trace synthesize`: data sets like the published one.

use clap::{Args, ValueEnum};
use headstart_block::words::count;
use headstart_block::{Error, Result};
use headstart_command_line::number::number;
use headstart_command_line::report::Outcome;
use headstart_image::progress::Progress;
use headstart_trace::synthesize::{Layout, SynthesisSettings, Synthesized, Synthesizer};
use headstart_train::progress::cancelled;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory to write the data set to; it must be empty or missing
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// The number of images
    #[arg(
        long,
        default_value_t = SynthesisSettings::default().images,
        value_name = "N",
        value_parser = number(1..=NUMBER_MAX)
    )]
    images: usize,
    /// The approximate number of traces; at least one of each image
    #[arg(
        long,
        default_value_t = SynthesisSettings::default().traces,
        value_name = "N",
        value_parser = number(1..=NUMBER_MAX)
    )]
    traces: usize,
    /// The seed: the same one gives the same bytes
    #[arg(long, default_value_t = SynthesisSettings::default().seed, value_name = "N")]
    seed: u64,
    /// The format of the traces
    #[arg(long, value_enum, default_value_t = Format::Fast26)]
    format: Format,
    /// Share of the boots whose services start in another order, if an image has several
    #[arg(long, default_value_t = SynthesisSettings::default().reordering, value_name = "SHARE", value_parser = share)]
    reordering: f64,
    /// Share of the requests that are lost
    #[arg(long, default_value_t = SynthesisSettings::default().loss, value_name = "SHARE", value_parser = share)]
    loss: f64,
    /// Share of the boots that are cut off or scan the disk
    #[arg(long, default_value_t = SynthesisSettings::default().outliers, value_name = "SHARE", value_parser = share)]
    outliers: f64,
}

/// The most images, and the most traces: all are planned in memory.
const NUMBER_MAX: usize = 1_000_000;

fn share(text: &str) -> Result<f64> {
    let share = text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| Error::invalid("give a share from 0 to 1, such as 0.1"))
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The layout of the FAST'26 data set
    Fast26,
    /// One Parquet file a trace
    Parquet,
}

/// The result of a synthesis.
#[derive(Serialize)]
pub(super) struct SynthesizeReport {
    #[serde(flatten)]
    made: Synthesized,
    output: String,
}

impl Arguments {
    /// Checks that there is a trace of each image.
    pub(super) fn check(&self) -> Result<()> {
        let Self { images, traces, .. } = self;
        if traces >= images {
            return Ok(());
        }
        Err(Error::invalid(format!("--traces {traces} cannot be made of --images {images}"))
            .remedy("give as many traces as images, or more"))
    }

    pub(super) fn run(&self, progress: &dyn Progress) -> Result<SynthesizeReport> {
        let Self { images, traces, seed, reordering, loss, outliers, .. } = *self;
        let settings = SynthesisSettings { seed, images, traces, reordering, loss, outliers };
        let synthesizer = Synthesizer::new(settings)?;
        let layout = match self.format {
            Format::Fast26 => Layout::Fast26,
            Format::Parquet => Layout::Parquet,
        };
        progress.begin("making traces", synthesizer.len() as u64);
        let made = synthesizer.write(&self.output, layout, || {
            progress.advance(1);
            cancelled(progress)
        })?;
        Ok(SynthesizeReport { made, output: self.output.display().to_string() })
    }
}

impl Outcome for SynthesizeReport {}

impl fmt::Display for SynthesizeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Synthesized { images, traces, records } = self.made;
        let (images, traces) = (count(images, "image"), count(traces, "trace"));
        write!(f, "{traces} of {images} with {} into {}", count(records, "request"), self.output)
    }
}
