//! `headstart-lab trace`: recorded I/O of disks, counted, drawn; and synthesized.

use clap::Subcommand;
use headstart_block::Result;
use headstart_command_line::report::Report;
use headstart_image::progress::Progress;
use std::path::PathBuf;

mod figures;
mod plot;
mod stats;
mod synthesize;

use stats::StatsReport;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the statistics of the reads in traces: amount, places, times; and those of the ThinkAhead paper
    #[command(after_help = "Examples:\n  headstart-lab trace stats /srv/traces\n  \
                      headstart-lab trace stats /srv/fast26 --json\n  \
                      headstart-lab trace stats boot.parquet boot.npy")]
    Stats {
        /// Traces, directories of them, data sets of the FAST'26 layout
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Draw the figures of the ThinkAhead paper for these traces, if they have the data that a figure needs
    #[command(after_help = plot::EXAMPLES)]
    Plot(plot::Arguments),
    /// Make a data set that looks like the published one, of any size
    #[command(after_help = "Examples:\n  headstart-lab trace synthesize -o small\n  \
                      headstart-lab trace synthesize --images 172 --traces 31000 -o large\n  \
                      headstart-lab trace synthesize --reordering 0.5 --loss 0.1 --seed 7 --format parquet -o rough")]
    Synthesize(synthesize::Arguments),
}

impl Command {
    /// Checks the rules between arguments that clap cannot express.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Synthesize(arguments) => arguments.check(),
            Self::Stats { .. } | Self::Plot(_) => Ok(()),
        }
    }

    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Stats { paths } => Ok(Box::new(StatsReport::of(paths, progress)?)),
            Self::Plot(arguments) => Ok(Box::new(arguments.run(progress)?)),
            Self::Synthesize(arguments) => Ok(Box::new(arguments.run(progress)?)),
        }
    }
}
