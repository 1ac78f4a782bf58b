//! The arguments of `headstart-lab simulate harvest`.

use clap::{Args, ValueEnum};
use headstart_block::{Error, Result};
use headstart_command_line::duration::duration;
use headstart_command_line::number::number;
use headstart_sim::harvest::{
    FleetSettings, ForecastSettings, Foresight, HarvestModel, PredictorKind, StorageSource,
};
use std::path::PathBuf;
use std::time::Duration;

/// The longest request at once: more than any harvest VM's of the paper, which are 8.5 days long at most.
const ASK_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The predictors that are simulated unless others are named.
const FORESIGHT: [ForesightName; 3] =
    [ForesightName::Default, ForesightName::Steps, ForesightName::Clairvoyant];

pub(super) const AFTER_HELP: &str = "\
A fleet is drawn from a seed with the statistics of BlockFlex's section 2 (OSDI 2022): regular VMs that use a part of \
the storage that they own, servers with unsold storage, requests of harvest VMs. With --series regular VMs follow \
demand series instead: a directory with bandwidth/ and capacity/, whose files have a summary in the first line and \
then lines `duration_s level`; the highest level is the storage that a VM owns.

Figures: statistics, the storage that is used and sold (the paper's figures 1 to 3); availability, the storage that \
could be harvested and for how long (4 to 6); accuracy, the share of forecasts that cover the actual use, by \
provisioning ratio (14); utilisation, without and with harvesting, of capacity (15), bandwidth (16) and unsold storage \
(17); performance, the product's translation layer and scheduler on emulated flash: what a harvest VM gains (18, 19) \
and a regular VM loses (20), reclaiming, wear.

Utilisation is the use by owners and the actual use by harvest VMs of borrowed storage, over the owned storage, for \
each item and then averaged. Regular VMs' storage is harvested once by each foresight: default lends storage that was \
free for weeks; steps, plain and paper lend storage that predictors expect to be free in 15 minutes; clairvoyant knows \
the future. Unsold storage lasts as long as storage of its size did before (histogram), or as long as the clairvoyant \
knows. `of ceiling` is the gain as a share of the bound for an allocator that knows everything and moves data in no \
time; `of plan`, as a share of the gain of a plan that is made with everything known (--plan). Leases are `early` if \
they were taken from a harvest VM that was not done (its data was moved, or it was evicted), `lost` if it was evicted.

Examples:
  headstart-lab simulate harvest
  headstart-lab simulate harvest --vms 4000 --days 29 --figures utilisation --plot figures
  headstart-lab simulate harvest --figures availability --json
  headstart-lab simulate harvest --figures performance --short
  headstart-lab simulate harvest --series data/harvest --figures accuracy,utilisation
  headstart-lab simulate harvest --figures utilisation --foresight default,clairvoyant --plan";

/// The servers to simulate.
#[derive(Args)]
pub(crate) struct Harvest {
    /// Regular VMs; the numbers of servers with unsold storage and of requests are in the paper's proportion, 4000 to
    /// 1400 to 60000 [default: 400]
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=100_000))]
    vms: Option<u32>,
    /// Days that are simulated [default: 8]
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=400))]
    days: Option<u32>,
    /// Days before these, from which predictors learn [default: 7]
    #[arg(long, value_name = "N", value_parser = number::<u32>(0..=100))]
    history: Option<u32>,
    /// Servers with unsold storage [default: in proportion]
    #[arg(long, value_name = "N", value_parser = number::<u32>(0..=1_000_000))]
    servers: Option<u32>,
    /// Requests of harvest VMs in all [default: in proportion]
    #[arg(long, value_name = "N", value_parser = number::<u32>(0..=10_000_000))]
    requests: Option<u32>,
    /// The mean share of its bandwidth that a regular VM uses, in percent: 9.2 in the paper's figure 1, 22 in figure 16
    /// [default: 9.2]
    #[arg(long, value_name = "PERCENT", conflicts_with = "series", value_parser = bandwidth)]
    bandwidth: Option<f64>,
    /// The seed of all random draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// Take the use of regular VMs from the demand series of this directory
    #[arg(long, value_name = "DIR")]
    pub(super) series: Option<PathBuf>,
    /// The figures to show, separated by commas
    #[arg(
        long,
        value_name = "FIGURES",
        value_enum,
        value_delimiter = ',',
        default_value = "statistics,availability,accuracy,utilisation"
    )]
    pub(super) figures: Vec<Figure>,
    /// The predictors of the storage that regular VMs can spare, separated by commas
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        value_delimiter = ',',
        default_value = "default,steps,clairvoyant"
    )]
    pub(super) foresight: Vec<ForesightName>,
    /// The share of storage that was free for weeks and is still not lent, in percent, with --foresight default
    /// [default: 20]
    #[arg(long, value_name = "PERCENT", value_parser = margin)]
    margin: Option<f32>,
    /// The longest time that a harvest VM requests at once; it keeps its lease while the lender allows it
    /// [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = duration(Duration::from_secs(1)..=ASK_MAX))]
    ask: Option<Duration>,
    /// The number of forecasts in a row that a lender needs its storage back, before a lease is ended [default:
    /// forecasts end none]
    #[arg(long, value_name = "FORECASTS")]
    patience: Option<u32>,
    /// Compare with a plan for regular VMs' storage that is made with full knowledge of the future: minutes in large
    /// fleets
    #[arg(long)]
    pub(super) plan: bool,
    /// Seconds of virtual time instead of minutes, and few cases, with --figures performance
    #[arg(long)]
    pub(super) short: bool,
    /// Draw the figures into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR")]
    pub(super) plot: Option<PathBuf>,
}

/// The figures to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Figure {
    /// The storage that is used and sold
    Statistics,
    /// The storage that could be harvested, and for how long
    Availability,
    /// The share of forecasts that cover the actual use
    Accuracy,
    /// Without and with harvesting
    Utilisation,
    /// The gain of one harvest VM and the loss of one regular VM
    Performance,
}

/// The predictors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ForesightName {
    /// The highest use of four weeks (the default)
    Default,
    /// The best of the predictors that look 15 minutes ahead
    Steps,
    /// The paper's: LSTMs, with 5% of margin
    Paper,
    /// The predictors that do not learn
    Plain,
    /// A predictor that knows the future
    Clairvoyant,
}

impl ForesightName {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |name| name.get_name().to_owned())
    }
}

fn bandwidth(text: &str) -> Result<f64> {
    let percent = text.trim().parse().ok().filter(|percent| (0.1..=33.0).contains(percent));
    percent.ok_or_else(|| Error::invalid("give percents from 0.1 to 33, such as 9.2"))
}

fn margin(text: &str) -> Result<f32> {
    let percent = text.trim().parse().ok().filter(|percent| (0.0..=90.0).contains(percent));
    percent.ok_or_else(|| Error::invalid("give percents from 0 to 90, such as 20"))
}

impl Harvest {
    /// Checks that the options go together: none does nothing.
    pub(in crate::simulate) fn check(&self) -> Result<()> {
        let refused = |options: &[(&str, bool)], needed: &str| {
            let Some((option, _)) = options.iter().find(|(_, given)| *given) else { return Ok(()) };
            Err(Error::invalid(format!("{option} does nothing without {needed}"))
                .remedy("give that, too, or leave it out"))
        };
        let shows = |figure| self.figures.contains(&figure);
        if !shows(Figure::Performance) {
            refused(&[("--short", self.short)], "--figures performance")?;
        }
        if self.figures.iter().all(|figure| *figure == Figure::Performance) {
            let of_fleets = [
                ("--vms", self.vms.is_some()),
                ("--days", self.days.is_some()),
                ("--history", self.history.is_some()),
                ("--servers", self.servers.is_some()),
                ("--bandwidth", self.bandwidth.is_some()),
                ("--series", self.series.is_some()),
            ];
            refused(&of_fleets, "one of --figures statistics, availability, accuracy and utilisation")?;
        }
        if !shows(Figure::Utilisation) {
            let of_harvesting = [
                ("--requests", self.requests.is_some()),
                ("--foresight", self.foresight != FORESIGHT),
                ("--margin", self.margin.is_some()),
                ("--ask", self.ask.is_some()),
                ("--patience", self.patience.is_some()),
                ("--plan", self.plan),
            ];
            refused(&of_harvesting, "--figures utilisation")?;
        }
        let is_default = |name: &ForesightName| *name == ForesightName::Default;
        if !self.foresight.iter().any(is_default) {
            refused(&[("--margin", self.margin.is_some())], "--foresight default")?;
        }
        if self.foresight.iter().all(|name| *name == ForesightName::Clairvoyant) {
            let needed = "a predictor that does not know the future, such as --foresight default";
            refused(&[("--patience", self.patience.is_some())], needed)?;
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> FleetSettings {
        let part = FleetSettings::part(self.vms.unwrap_or(400) as usize, self.days.unwrap_or(8));
        FleetSettings {
            servers: self.servers.map_or(part.servers, |servers| servers as usize),
            requests: self.requests.map_or(part.requests, |requests| requests as usize),
            history: self.history.unwrap_or(part.history),
            bandwidth: self.bandwidth.unwrap_or(9.2) / 100.0,
            seed: self.seed,
            ..part
        }
    }

    pub(super) fn model(&self, source: StorageSource, foresight: ForesightName) -> HarvestModel {
        let shipped = ForecastSettings::default();
        let kept_back = self.margin.map_or(shipped.kept_back, |percent| percent / 100.0);
        let shipped = ForecastSettings { kept_back, ..shipped };
        let product = |kind| Foresight::Product(ForecastSettings { kind, ..shipped });
        let foresight = match foresight {
            ForesightName::Default => product(PredictorKind::Default),
            ForesightName::Paper => Foresight::Paper(shipped),
            ForesightName::Plain => product(PredictorKind::Plain),
            ForesightName::Steps => product(PredictorKind::Steps),
            ForesightName::Clairvoyant => Foresight::Clairvoyant,
        };
        let mut model = HarvestModel::new(source, foresight);
        model.ask = self.ask.unwrap_or(model.ask);
        if let (Some(forecasts), Foresight::Product(_) | Foresight::Paper(_)) = (self.patience, foresight) {
            model.broker.forecasts_to_reclaim = forecasts;
        }
        model
    }
}
