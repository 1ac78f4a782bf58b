//! One boot against all contenders over all links.

use super::arguments::{Disk, Part};
use super::contenders::{Contender, Way};
use headstart_block::{Result, saturating};
use headstart_command_line::megabytes::Megabytes;
use headstart_plan::policy::oracle::{Bound, Oracle};
use headstart_plan::policy::{Aim, Policy, Training, by_name};
use headstart_plan::zero_shot::ChoiceReason;
use headstart_plan::{BlockTable, CompactTrace, ImagePlans, Statistics};
use headstart_preload::Switches;
use headstart_pull::Plan;
use headstart_replay::{
    Boot, Following, Gatherer, ImageMap, LinkBandwidth, MissPolicy, Model, Nanos, Piloting, PreloadUnit,
    Simulator,
};
use headstart_trace::Trace;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// A link that boots are replayed over.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Its bandwidth, if that is constant, in MB of the model.
    pub(super) rate: Option<Megabytes>,
    pub(super) bandwidth: LinkBandwidth,
}

impl Route {
    /// Bytes a second at the creation.
    fn at_creation(&self) -> u64 {
        match &self.bandwidth {
            LinkBandwidth::Constant(rate) => *rate,
            LinkBandwidth::Series(steps) => steps.first().map_or(1, |(_, rate)| *rate),
        }
    }
}

/// The results of a contender over a link.
#[derive(Clone, Default)]
pub(super) struct Cell {
    pub(super) gatherer: Gatherer,
    pub(super) groups: u64,
    pub(super) bins: u64,
    /// For the oracle: the bound for any order, summed over boots.
    pub(super) bound: Option<f64>,
}

impl Cell {
    pub(super) fn merge(&mut self, other: &Self) {
        self.gatherer.merge(&other.gatherer);
        self.groups += other.groups;
        self.bins += other.bins;
        self.bound = match (self.bound, other.bound) {
            (Some(bound), Some(more)) => Some(bound + more),
            (bound, more) => bound.or(more),
        };
    }
}

/// The ways in which the plans of a contender were chosen.
#[derive(Clone, Default)]
pub(super) struct Chosen {
    pub(super) reasons: BTreeMap<String, u64>,
    pub(super) nanos: u64,
    pub(super) times: u64,
}

impl Chosen {
    pub(super) fn merge(&mut self, other: &Self) {
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
        self.nanos += other.nanos;
        self.times += other.times;
    }
}

/// The results of one boot, or of several.
#[derive(Clone, Default)]
pub(super) struct Results {
    /// The results link by link, contender by contender.
    pub(super) cells: Vec<Cell>,
    pub(super) chosen: Vec<Chosen>,
}

impl Results {
    pub(super) fn merge(&mut self, other: &Self) {
        self.cells.resize(other.cells.len(), Cell::default());
        self.chosen.resize(other.chosen.len(), Chosen::default());
        self.cells.iter_mut().zip(&other.cells).for_each(|(cell, other)| cell.merge(other));
        self.chosen.iter_mut().zip(&other.chosen).for_each(|(chosen, other)| chosen.merge(other));
    }
}

/// A contender, prepared for a boot.
enum Ready {
    Fixed(Plan),
    Oracle(Box<(CompactTrace, BlockTable)>),
    Online(&'static str),
    Planned(Arc<ImagePlans>),
}

impl Disk {
    /// Replays a boot, on the disk of `image` if one was given.
    pub(super) fn replay(
        &self,
        trace: &Trace,
        image: Option<Arc<ImageMap>>,
        contenders: &[Contender],
        links: &[Route],
    ) -> Result<Results> {
        let boot = Boot::faster(trace, self.faster);
        let boot = match self.grace {
            Some(grace) => boot.with_grace(Nanos::from_duration(grace)),
            None => boot,
        };
        let mut simulator = Simulator::new();
        simulator.set_image(image);
        let mut results = Results::default();
        let mut ready = Vec::with_capacity(contenders.len());
        // Reads that are not counted are not replayed either.
        let reads = self.model(LinkBandwidth::Constant(1)).reads_max;
        for contender in contenders {
            let (way, chosen) = match contender.way {
                Way::Oracle => (self.known(trace, &boot), Chosen::default()),
                _ => prepare(contender, trace, &boot, reads)?,
            };
            ready.push(way);
            results.chosen.push(chosen);
        }
        for link in links {
            let model = self.model(link.bandwidth.clone());
            for (contender, ready) in contenders.iter().zip(&ready) {
                results.cells.push(match ready {
                    Ready::Oracle(known) => self.foretell(&mut simulator, &boot, known, &model, link),
                    _ => run(&mut simulator, &boot, contender, ready, &model, link)?,
                });
            }
        }
        Ok(results)
    }

    /// The boot in the form for the oracle.
    fn known(&self, trace: &Trace, boot: &Boot) -> Ready {
        let mut block_table = BlockTable::new(boot.disk_size());
        let known = CompactTrace::of(trace, &mut block_table).faster(self.faster, &block_table);
        Ready::Oracle(Box::new((known, block_table)))
    }

    /// Lets the oracle search for this very boot and link.
    fn foretell(
        &self,
        simulator: &mut Simulator,
        boot: &Boot,
        (known, block_table): &(CompactTrace, BlockTable),
        model: &Model,
        link: &Route,
    ) -> Cell {
        let bandwidth = headstart_plan::Bandwidth::new(link.at_creation());
        let aim = Aim { objective: self.objective(), bandwidth, seed: self.seed };
        let (statistics, traces) = (Statistics::of([known]), [known]);
        let training = Training { block_table, statistics: &statistics, traces: &traces };
        let oracle = Oracle::new(known);
        let plan = oracle.propose(&training, &aim).plan_items(block_table);
        let mut cell = Cell::default();
        cell.gatherer.add(&simulator.run(boot, &Plan::List(plan.into()), model), simulator.waits());
        if link.rate.is_some() && !boot.reads().is_empty() {
            let (Bound::HitRate(bound) | Bound::Delay(bound)) = oracle.bound(block_table, &aim);
            cell.bound = Some(bound);
        }
        cell
    }
}

fn prepare(contender: &Contender, trace: &Trace, boot: &Boot, reads: usize) -> Result<(Ready, Chosen)> {
    let mut chosen = Chosen::default();
    let ready = match &contender.way {
        Way::Online(name) => Ready::Online(name),
        // The oracle runs for each link.
        Way::Sequential | Way::Oracle => Ready::Fixed(Plan::Sequential),
        Way::History => Ready::Fixed(Plan::List(boot.recorded_order(reads).into())),
        Way::Planned(source) => {
            let started = Instant::now();
            let mut plans = source.choose(&trace.creation)?;
            chosen.nanos = saturating::<u64>(started.elapsed().as_nanos());
            chosen.times = 1;
            if contender.without == Some(Part::ZeroShot) && plans.reason != ChoiceReason::Trained {
                plans = Arc::new(ImagePlans::none());
            }
            chosen.reasons.insert(plans.reason.to_string(), 1);
            Ready::Planned(plans)
        }
    };
    Ok((ready, chosen))
}

fn run(
    simulator: &mut Simulator,
    boot: &Boot,
    contender: &Contender,
    ready: &Ready,
    model: &Model,
    link: &Route,
) -> Result<Cell> {
    let mut cell = Cell::default();
    let outcome = match (ready, contender.without) {
        (Ready::Fixed(plan), _) => simulator.run(boot, plan, model),
        (Ready::Oracle(_), _) => return Ok(cell),
        (Ready::Online(name), _) => match by_name(name)?.online() {
            Some(mut online) => simulator.run_guided(boot, &mut Following(&mut *online), model),
            None => simulator.run(boot, &Plan::Lazy, model),
        },
        (Ready::Planned(_), Some(Part::Selection)) => simulator.run(boot, &Plan::Lazy, model),
        (Ready::Planned(plans), Some(Part::Switching)) => {
            let first = plans.groups.first().and_then(|group| group.at(link.at_creation()));
            let plan = first.map_or(Plan::Lazy, |plan| Plan::List(Arc::clone(&plan.items)));
            simulator.run(boot, &plan, model)
        }
        (Ready::Planned(plans), without) => {
            let model = match without {
                Some(Part::HotSlices) => Model { preloads: PreloadUnit::Blocks, ..model.clone() },
                Some(Part::CriticalRange) => Model { misses: MissPolicy::Blocks, ..model.clone() },
                _ => model.clone(),
            };
            let mut guide = Piloting::new(Arc::clone(plans), Some(link.at_creation()));
            let outcome = simulator.run_guided(boot, &mut guide, &model);
            let Switches { groups, bins } = guide.report().switches;
            (cell.groups, cell.bins) = (u64::from(groups), u64::from(bins));
            outcome
        }
    };
    cell.gatherer.add(&outcome, simulator.waits());
    Ok(cell)
}
