//! An argument of commands that train plans: the measure by which plans are compared.

use clap::ValueEnum;
use headstart_block::saturating;
use headstart_plan::evaluate::Misses;
use headstart_plan::policy::Objective;
use serde::Serialize;
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
    /// Returns the objective of training for a link with this round trip. For `Hits` the round trip is ignored.
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
