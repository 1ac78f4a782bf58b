//! `headstart-lab simulate`: the value that plans would have had for recorded boots, and the value of a swarm.
//!
//! | module | content |
//! |---|---|
//! | [`arguments`] | the arguments, and the model that follows from them |
//! | [`rules`] | the rules between the arguments |
//! | [`data`] | the boots to replay, and those to learn from |
//! | [`contenders`] | policies and their plans; parts left out |
//! | [`images`] | real images as the disks |
//! | [`series`] | recorded links |
//! | [`replay`] | one boot against all contenders over all links |
//! | [`report`] | the figures, for people and programs |
//! | [`plots`] | the figures as pictures |
//! | [`fleet`] | many hosts at once |
//! | [`harvest`] | regular VMs, and harvest VMs that borrow their unused storage |

use clap::Subcommand;
use headstart_block::Result;
use headstart_command_line::report::Report;
use headstart_image::progress::Progress;
use headstart_replay::LinkBandwidth;
use headstart_trace::Trace;
use headstart_train::traces::{nothing, read_all};
use std::collections::BTreeMap;

mod arguments;
mod contenders;
mod data;
mod fleet;
mod harvest;
mod images;
mod plots;
mod replay;
mod report;
mod rules;
mod series;

use arguments::Disk;
use replay::{Results, Route};
use report::DiskReport;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Replay recorded boots against one disk: hit rate, accuracy, waits, bytes
    #[command(after_help = arguments::AFTER_HELP)]
    Disk(Box<Disk>),
    /// Let many hosts read the same image: completion, bytes from the store, fairness
    #[command(after_help = fleet::AFTER_HELP)]
    Fleet(Box<fleet::Fleet>),
    /// Let harvest VMs borrow flash that regular VMs leave unused: utilisation, early reclamations, predictors
    #[command(after_help = harvest::AFTER_HELP)]
    Harvest(Box<harvest::Harvest>),
}

impl Command {
    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if they do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Disk(disk) => disk.check(),
            Self::Fleet(fleet) => fleet.check(),
            Self::Harvest(harvest) => harvest.check(),
        }
    }

    pub(crate) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        match self {
            Self::Disk(disk) => Ok(Box::new(disk.run(progress)?)),
            Self::Fleet(fleet) => Ok(Box::new(fleet.run(progress)?)),
            Self::Harvest(harvest) => Ok(Box::new(harvest.run(progress)?)),
        }
    }
}

/// The results of each group.
type Gathered = BTreeMap<String, Results>;

impl Disk {
    fn run(&self, progress: &dyn Progress) -> Result<DiskReport> {
        let routes = self.routes()?;
        let plots = self.plot.as_deref().map(plots::open).transpose()?;
        let data = self.data()?;
        let images = self.images()?;
        let mut skipped = data.skipped.clone();
        let mut contenders = self.contenders(&data, progress)?;
        skipped.add(&contenders.skipped);
        let mut gathered = Gathered::new();
        let work = |trace: Trace| {
            let group = self.by.map(|by| by.group(&trace.creation)).unwrap_or_default();
            let image = images.of(&trace.creation)?;
            self.replay(&trace, image, &contenders.list, &routes).map(|results| (group, results))
        };
        let task = ("simulating", self.threads());
        skipped.add(&read_all(&data.test, task, progress, work, |_, results| {
            let (group, results) = results?;
            gathered.entry(group).or_default().merge(&results);
            Ok(())
        })?);
        let list = std::mem::take(&mut contenders.list);
        let mut report = self.report(&data, &list, &contenders, &routes, &gathered, skipped);
        if report.is_empty() {
            return Err(nothing(
                &self.traces,
                "has no boot with reads that could be replayed",
                &report.skipped,
            ));
        }
        if let Some(directory) = plots {
            report.plots = plots::draw(self, &report, &list, &routes, &gathered, &directory)?;
        }
        Ok(report)
    }

    /// The links to replay over.
    fn routes(&self) -> Result<Vec<Route>> {
        if let Some(path) = &self.link {
            return Ok(vec![Route { rate: None, bandwidth: series::read(path, self.unit())? }]);
        }
        let route = |rate: &headstart_command_line::megabytes::Megabytes| Route {
            rate: Some(*rate),
            bandwidth: LinkBandwidth::Constant(rate.times(self.unit())),
        };
        Ok(self.bandwidth.iter().map(route).collect())
    }
}
