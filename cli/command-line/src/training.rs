//! Learning on the command line: the objective of plans, progress, files of plans.

use crate::traces::cancelled;
use clap::ValueEnum;
use headstart_block::{ErrorKind, FileSource, Result, saturating};
use headstart_image::progress::Progress;
use headstart_plan::artifact::PlanFile;
use headstart_plan::evaluate::Misses;
use headstart_plan::knowledge;
use headstart_plan::policy::Objective;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// The objective of training: the measure by which plans (ordered lists of blocks to preload) are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ObjectiveName {
    /// The time that a guest waits for its reads, over a link with a round trip
    Boot,
    /// The number of reads that find their blocks, arriving as recorded whatever they wait for (the published measure)
    Hits,
}

impl ObjectiveName {
    /// Returns the objective of training for a link with this round trip; it is ignored if hits are counted.
    #[must_use]
    pub fn objective(self, round_trip: Duration) -> Objective {
        match self {
            Self::Hits => Objective::Hits,
            Self::Boot => Objective::Boot {
                round_trip: saturating::<u64>(round_trip.as_nanos()),
                misses: Misses::RangeThenRest,
                hot: true,
            },
        }
    }
}

/// Runs `work`, and shows its progress as a bar with the label `task`.
///
/// # Errors
/// The errors of `work`; [`headstart_block::ErrorKind::Cancelled`] if the user asks the command to stop.
pub fn with_bar<T>(
    progress: &dyn Progress,
    task: &'static str,
    work: impl FnOnce(knowledge::OnProgress<'_>) -> Result<T>,
) -> Result<T> {
    let mut shown = None;
    work(&mut |now| {
        let before = shown.unwrap_or_else(|| {
            progress.begin_items(task, now.all);
            0
        });
        progress.advance(now.done.saturating_sub(before));
        shown = Some(now.done);
        cancelled(progress)
    })
}

/// Opens a file of plans that `headstart train` wrote.
///
/// # Errors
/// If the file cannot be read or holds no plans.
pub fn open_plans(path: &Path) -> Result<PlanFile<FileSource>> {
    PlanFile::open(FileSource::open(path)?).map_err(|e| match e.kind() {
        ErrorKind::Corrupt => {
            e.about(path.display()).remedy("name a file of plans, such as `headstart train -o` writes")
        }
        _ => e.about(path.display()),
    })
}
