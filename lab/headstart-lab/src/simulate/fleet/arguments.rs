//! The arguments of `headstart-lab simulate fleet`, and the model that follows from them.

use crate::simulate::arguments::{Away, MOMENT_MAX, away, latency, moment, percent};
use clap::{Args, ValueEnum};
use headstart_block::{ByteRate, ByteSize, Error, Result};
use headstart_command_line::number::number;
use headstart_replay::Nanos;
use headstart_sim::fleet::{Death, FleetFaults, FleetModel, Links, Racks, Restart, SwarmModel, Warm, Way};
use headstart_store::Reference;
use headstart_swarm::{NodeSettings, Topology};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The region that all read, unless another one is given.
pub(super) const REGION: ByteSize = ByteSize(64 << 20);

/// The topology, unless another one is given.
pub(super) const TOPOLOGY: Topology = Topology::Random(4);

/// The time for which a restarted agent is away.
const RESTARTS: Duration = Duration::from_secs(1);

pub(super) const AFTER_HELP: &str = "\
Patterns: sync-same, all disks read the same region at once; shifted-same, each a while after the one before; \
sync-disjoint, each a region of its own; boot-disjoint, the same after a part that all share; boots, recorded ones.

Ways: independent, each host from the store; tree, the image is sent to all hosts first, down a tree; local, each host \
has it already; swarm, hosts help each other. A swarm is simulated once for each threshold: bytes that a host may have \
prefetched and not read, default or inf.

With --hints a way is simulated once more with an image that was never deployed (-hints) and with one that was \
deployed before (-known); with --push a swarm once more with roots that send ahead (-push), also with roots that \
learned from requests with random reads among them (-push-strays).

The figures: seconds from the first attachment to the last read's end; the times in which half, 99 of 100 and all \
disks were complete; MB/s of the slowest and the fastest, and Jain's index of all; MB that the store sent; mean MB of \
a host from the store, from peers on demand and ahead of need, and those never read; kB of messages. With boots also \
the delay of 99 of 100 disks against disks that have the image already, and the sum of a disk's waits.

Examples:
  headstart-lab simulate fleet
  headstart-lab simulate fleet --hosts 32 --patterns sync-same --thresholds 0,default,inf --json
  headstart-lab simulate fleet --hosts 1000 --disks 10 --patterns boots --traces boots \\
      --plan recorded
  headstart-lab simulate fleet --hosts 120 --patterns boots --traces boots --hints --jitter 1s
  headstart-lab simulate fleet --pinned 2 --thresholds 0,default --kill 10%@1s
  headstart-lab simulate fleet --ways swarm --racks 8@200MB/s --fabric 400MB/s
  headstart-lab simulate fleet --hosts 2 --patterns boots --traces boots --topology roots \\
      --roots 1 --roots-apart --warm roots --push 512 --strays 10% --uplink 3MB/s --host-link 3MB/s
  headstart-lab simulate fleet --restart 50%@1s --restart 50%@3s
  headstart-lab simulate fleet --kill 30%@1s --liars 2 --loss 1% --plot figures";

/// The fleet to simulate.
#[derive(Args)]
pub(crate) struct Fleet {
    /// Hosts
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = number::<u32>(1..=100_000))]
    pub(super) hosts: u32,
    /// Disks on each host, where boots are replayed
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "traces",
        value_parser = number::<u32>(1..=1000)
    )]
    pub(super) disks: u32,
    /// The patterns of the disks' reads, separated by commas
    #[arg(
        long,
        value_name = "PATTERNS",
        value_enum,
        value_delimiter = ',',
        default_value = "sync-same,shifted-same,sync-disjoint"
    )]
    pub(super) patterns: Vec<PatternName>,
    /// The ways in which disks get their bytes, separated by commas
    #[arg(
        long,
        value_name = "WAYS",
        value_enum,
        value_delimiter = ',',
        default_value = "independent,tree,swarm"
    )]
    pub(super) ways: Vec<WayName>,
    /// The swarm's thresholds, separated by commas: default, inf or a size
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "default")]
    pub(super) thresholds: Vec<Threshold>,
    /// The region that all read, a quarter of the image; if each reads its own, the image is divided among them
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    pub(super) region: ByteSize,
    /// The boots to replay: a directory of traces, a data set of the FAST'26 layout, or one trace
    #[arg(long, value_name = "TRACES")]
    pub(super) traces: Option<PathBuf>,
    /// Replay those of this image; of several, separated by commas, the disks of a host take one after the other
    /// [default: of the image with the most]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "traces")]
    pub(super) boots_of: Vec<String>,
    /// The image that the boots are of, whose index and compressed frames are the simulated disk
    #[arg(long, value_name = "IMAGE", requires = "traces")]
    pub(super) image: Option<Reference>,
    /// The compression ratio of the image, if no image is given
    #[arg(
        long,
        value_name = "TIMES",
        default_value = "1",
        requires = "traces",
        conflicts_with = "image",
        value_parser = ratio
    )]
    pub(super) ratio: f64,
    /// Run the guests this many times as fast as they were recorded
    #[arg(
        long,
        value_name = "TIMES",
        default_value_t = 1,
        requires = "traces",
        value_parser = number::<u32>(1..=1000)
    )]
    pub(super) faster: u32,
    /// From a disk's creation to its first read [default: as recorded]
    #[arg(long, value_name = "TIME", requires = "traces", value_parser = latency)]
    pub(super) grace: Option<Duration>,
    /// Boots begin within this time, at random
    #[arg(long, value_name = "TIME", default_value = "0s", requires = "traces", value_parser = latency)]
    pub(super) jitter: Duration,
    /// The content that disks preload: nothing, or the reads of another boot of the image. With --hints, each way is
    /// simulated also with this instead
    #[arg(long, value_enum, default_value_t = PlanName::None, requires = "traces")]
    pub(super) plan: PlanName,
    /// Simulate each way also with hints: for an image that was never deployed, and for one that was deployed once
    /// before
    #[arg(long, requires = "traces")]
    pub(super) hints: bool,
    /// From the store to all hosts together
    #[arg(long, value_name = "RATE", default_value = "12MB/s")]
    uplink: ByteRate,
    /// From each host, and to it
    #[arg(long, value_name = "RATE", default_value = "50MB/s")]
    host_link: ByteRate,
    /// Between hosts
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = latency)]
    round_trip: Duration,
    /// To the store
    #[arg(long, value_name = "TIME", default_value = "500us", value_parser = latency)]
    store_round_trip: Duration,
    /// The most that the store adds to the round trip, drawn for each request
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = latency)]
    store_latency: Duration,
    /// Hosts of a rack and the rate of its link to the others, such as 40@1GB/s [default: one rack]
    #[arg(long, value_name = "HOSTS@RATE", value_parser = racks)]
    racks: Option<Racks>,
    /// The rate at which all hosts together can send to each other, such as an oversubscribed core, or the processors
    /// if hosts are namespaces of one machine [default: the rate of their links]
    #[arg(long, value_name = "RATE")]
    pub(super) fabric: Option<ByteRate>,
    /// The topology, by which hosts announce their chunks to each other: ring, random:N, similar:N, roots or tree:N
    #[arg(long, value_name = "TOPOLOGY", default_value = "random:4", value_parser = topology)]
    pub(super) topology: Topology,
    /// The number of hosts that are roots
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) roots: u32,
    /// Ask the store for chunks that no neighbour has, as the paper's hosts do, and not one host for each part
    #[arg(long)]
    pub(super) no_homes: bool,
    /// Hosts know only the others of their cell of this size, and one root [default: all]
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) cell: u32,
    /// Roots have no disks
    #[arg(long, requires = "roots", requires = "traces")]
    pub(super) roots_apart: bool,
    /// Simulate each swarm also with roots that send up to this many chunks ahead, and remember the requests from when
    /// the image was deployed once before
    #[arg(long, value_name = "CHUNKS", default_value_t = 0, requires = "traces")]
    pub(super) push: u32,
    /// And with reads from random places among those of that deployment, this share of them, such as 10%
    #[arg(long, value_name = "PERCENT", requires = "push", value_parser = percent)]
    pub(super) strays: Option<u32>,
    /// Hosts that have the image beforehand
    #[arg(long, value_enum, default_value_t = WarmName::None)]
    pub(super) warm: WarmName,
    /// The hosts are the repository: they keep the image in this many copies, stripe by stripe in turn, and a swarm
    /// has no store
    #[arg(long, value_name = "COPIES", default_value_t = 0)]
    pub(super) pinned: u32,
    /// The share of the hosts that die, and the time, such as 30%@2s; may be given again
    #[arg(long, value_name = "PERCENT@TIME", value_parser = kill)]
    kill: Vec<Death>,
    /// The share of the hosts whose agents are restarted, and the time, such as 50%@2s: their disks have no agent for
    /// a second; may be given again
    #[arg(long, value_name = "PERCENT@TIME", value_parser = restart)]
    pub(super) restart: Vec<Restart>,
    /// The time at which all roots die
    #[arg(long, value_name = "TIME", requires = "roots", value_parser = moment)]
    pub(super) kill_roots: Option<Duration>,
    /// Half of the hosts do not reach the others for this long from a moment on, such as 10s@2s
    #[arg(long, value_name = "TIME@TIME", value_parser = away)]
    partition: Vec<Away>,
    /// The store answers nothing for this long from a moment on
    #[arg(long, value_name = "TIME@TIME", value_parser = away)]
    store_away: Vec<Away>,
    /// Messages that are lost, such as 1%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    loss: Option<u32>,
    /// Hosts that send wrong bytes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) corrupt: u32,
    /// Hosts that say that they have everything, and send nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) liars: u32,
    /// Hosts whose links are a hundred times slower
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) slow: u32,
    /// Hosts that send the requested chunks, and go on sending them without end
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) endless: u32,
    /// Hosts that promise everything, and send nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) promisers: u32,
    /// Hosts that do not answer
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) mutes: u32,
    /// The tracker is lost for this long from a moment on
    #[arg(long, value_name = "TIME@TIME", value_parser = away, requires = "hints")]
    tracker_away: Vec<Away>,
    /// Draw the figures into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR")]
    pub(super) plot: Option<PathBuf>,
    /// The seed of all random draws: the same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) stores: headstart_command_line::store_args::StoreArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PatternName {
    /// The same region, at once
    SyncSame,
    /// The same region, one after the other
    ShiftedSame,
    /// Regions of their own
    SyncDisjoint,
    /// Regions of their own, after one that all share
    BootDisjoint,
    /// Recorded boots
    Boots,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum WayName {
    /// Each from the store
    Independent,
    /// The whole image first, down a tree
    Tree,
    /// All of it is on each host already
    Local,
    /// From each other
    Swarm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum WarmName {
    /// None
    None,
    /// The roots
    Roots,
    /// All
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PlanName {
    /// Nothing
    None,
    /// The reads of the first boot, in their order
    Recorded,
}

/// Bytes that may be prefetched and unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Threshold(Option<u64>);

impl Threshold {
    /// The product's.
    pub(super) const DEFAULT: Self = Self(None);
}

impl std::str::FromStr for Threshold {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "default" => Ok(Self(None)),
            "inf" => Ok(Self(Some(u64::MAX))),
            size => Ok(Self(Some(size.parse::<ByteSize>()?.0))),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("swarm"),
            Some(u64::MAX) => f.write_str("swarm-inf"),
            Some(0) => f.write_str("swarm-0"),
            Some(bytes) => write!(f, "swarm-{}k", bytes >> 10),
        }
    }
}

fn topology(text: &str) -> std::result::Result<Topology, String> {
    let wrong = || "there is no such topology: give ring, random:N, similar:N, roots or tree:N".to_owned();
    let (name, count) = text.split_once(':').unwrap_or((text, "4"));
    let count = count.parse().ok().filter(|count| (1..=64).contains(count)).ok_or_else(wrong)?;
    match name.trim() {
        "ring" => Ok(Topology::Ring),
        "random" => Ok(Topology::Random(count)),
        "similar" => Ok(Topology::Similar(count)),
        "roots" => Ok(Topology::Roots),
        "tree" => Ok(Topology::Tree(count)),
        _ => Err(wrong()),
    }
}

fn ratio(text: &str) -> std::result::Result<f64, String> {
    let number = text.trim().parse().ok().filter(|ratio| (1.0..=100.0).contains(ratio));
    number.ok_or_else(|| "not a number of times from 1 to 100, such as 2.2".to_owned())
}

fn racks(text: &str) -> std::result::Result<Racks, String> {
    let wrong = || "not hosts of a rack, `@` and the rate of its link, such as 40@1GB/s".to_owned();
    let (hosts, rate) = text.split_once('@').ok_or_else(wrong)?;
    let hosts = hosts.trim().parse().ok().filter(|hosts| *hosts > 0).ok_or_else(wrong)?;
    let rate = rate.parse::<ByteRate>().map_err(|_| wrong())?.0;
    Ok(Racks { hosts, rate })
}

/// A share, as a part of a million, and a moment.
fn share_at(text: &str) -> std::result::Result<(u32, Nanos), String> {
    let wrong = || {
        let most = humantime::format_duration(MOMENT_MAX);
        format!("give a percentage, `@` and a moment up to {most}, such as 30%@2s")
    };
    let (share, at) = text.split_once('@').ok_or_else(wrong)?;
    let at = moment(at).map_err(|_| wrong())?;
    Ok((percent(share)?, Nanos::from_duration(at)))
}

fn kill(text: &str) -> std::result::Result<Death, String> {
    share_at(text).map(|(per_million, at)| Death { at, per_million, roots: false })
}

fn restart(text: &str) -> std::result::Result<Restart, String> {
    share_at(text).map(|(per_million, at)| Restart { at, per_million, away: RESTARTS })
}

impl Fleet {
    /// All ways to simulate, by name.
    pub(super) fn ways(&self) -> Vec<(String, Way)> {
        let mut ways = Vec::new();
        for way in &self.ways {
            match way {
                WayName::Independent => ways.push(("independent".to_owned(), Way::Independent)),
                WayName::Tree => ways.push(("tree".to_owned(), Way::Broadcast(2))),
                WayName::Local => ways.push(("local".to_owned(), Way::Local)),
                WayName::Swarm => {
                    let swarm = |threshold: &Threshold| {
                        (threshold.to_string(), Way::Swarm(Box::new(self.swarm(threshold.0))))
                    };
                    ways.extend(self.thresholds.iter().map(swarm));
                }
            }
        }
        ways
    }

    fn swarm(&self, threshold: Option<u64>) -> SwarmModel {
        let settings = NodeSettings {
            topology: self.topology,
            designated_fetchers: !self.no_homes,
            threshold,
            ..NodeSettings::default()
        };
        let warm = match self.warm {
            WarmName::None => Warm::None,
            WarmName::Roots => Warm::Roots,
            WarmName::All => Warm::All,
        };
        let (roots, cell, pinned) = (self.roots, self.cell, self.pinned);
        SwarmModel { settings, roots, cell, warm, pinned, ..SwarmModel::default() }
    }

    /// Bytes a second from the store.
    pub(super) fn uplink(&self) -> u64 {
        self.uplink.0
    }

    /// The model of one way.
    pub(super) fn model(&self, way: Way) -> FleetModel {
        let links = Links {
            up: self.host_link.0,
            down: self.host_link.0,
            round_trip: self.round_trip,
            store: self.uplink.0,
            store_round_trip: self.store_round_trip,
            store_latency: self.store_latency,
            racks: self.racks,
        };
        let mut deaths = self.kill.clone();
        let roots =
            self.kill_roots.map(|at| Death { at: Nanos::from_duration(at), per_million: 0, roots: true });
        deaths.extend(roots);
        let faults = FleetFaults {
            loss_per_million: self.loss.unwrap_or(0),
            deaths,
            restarts: self.restart.clone(),
            partitions: self.partition.iter().map(Away::span).collect(),
            store_away: self.store_away.iter().map(Away::span).collect(),
            corrupt: self.corrupt,
            liars: self.liars,
            slow: self.slow,
            endless: self.endless,
            promisers: self.promisers,
            mutes: self.mutes,
            tracker_away: self.tracker_away.iter().map(Away::span).collect(),
        };
        let fabric = self.fabric.map(|rate| rate.0);
        FleetModel { fabric, faults, seed: self.seed, ..FleetModel::new(self.hosts, links, way) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_several_parts_are_parsed() {
        assert_eq!(topology("similar:6"), Ok(Topology::Similar(6)));
        assert!(["star", "random:0", "random:x"].iter().all(|wrong| topology(wrong).is_err()));
        assert_eq!(racks("40@1GB/s"), Ok(Racks { hosts: 40, rate: 1_000_000_000 }));
        assert_eq!(ratio("2.2"), Ok(2.2));
        assert!(["0.5", "x", "1e9", "nan"].iter().all(|wrong| ratio(wrong).is_err()));
        assert!(["40", "0@1M", "x@1M"].iter().all(|wrong| racks(wrong).is_err()));
        let death = kill("30%@2s").unwrap();
        assert_eq!((death.at, death.per_million), (Nanos(2_000_000_000), 300_000));
        let restarted = restart("5%@1s").unwrap();
        assert_eq!((restarted.at, restarted.per_million), (Nanos(1_000_000_000), 50_000));
        assert!(["5", "5%", "x@1s", "200%@1s"].iter().all(|wrong| restart(wrong).is_err()));
        let thresholds =
            ["default", "inf", "0", "16M"].map(|text| text.parse::<Threshold>().unwrap().to_string());
        assert_eq!(thresholds, ["swarm", "swarm-inf", "swarm-0", "swarm-16384k"]);
    }
}
