//! `headstart swarm warm`: an image is fetched to hosts before it is needed.

use crate::agent::{AgentClient, AgentSocket};
use crate::report::Outcome;
use crate::store_args::StoreArgs;
use clap::Args;
use headstart_agentd::pin_manager::WarmSpec;
use headstart_block::words::count;
use headstart_block::{BlockDevice, ByteRange, ByteSize, Error, ErrorKind, FileSource, PlanItem, Result};
use headstart_image::manifest::{Layer, Manifest};
use headstart_image::open_image::{OpenImage, opening_ranges};
use headstart_image::optimize::boot_order;
use headstart_image::reference::Reference;
use headstart_peer_net::order::Order;
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{ImagePlans, PlanFile};
use headstart_train::published;
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

/// The unit that parts are rounded to, in bytes: the chunk that hosts exchange.
const CHUNK: u64 = headstart_swarm::CHUNK_SIZE;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart swarm warm oci://registry.lan/vm/debian:12
  headstart swarm warm oci://registry.lan/vm/debian:12 --whole --roots
  headstart swarm warm oci://registry.lan/vm/debian:12 --plans plans --on node2 --on node3

The command ends when the bytes are there. The hosts ask each other first, so that the store is asked once for all of \
them; hosts that may not use the store (`headstart agent --allow-store`) get everything from the others, and report \
bytes that these lack. Other hosts obey only an operator: a host whose certificate has that role. Warm content can be \
evicted when the cache is full, like any other.";

#[derive(Args)]
pub(crate) struct Warm {
    /// The image
    image: Reference,
    /// All of it, not only the parts that boots read
    #[arg(long, conflicts_with = "plans")]
    whole: bool,
    /// The plans, as `headstart train` wrote them [default: the plan that is published with the image, or its boot
    /// layer]
    #[arg(long, value_name = "PLANS")]
    plans: Option<PathBuf>,
    /// A host that is to have it, by its name (may be repeated) [default: this one]
    #[arg(long = "on", value_name = "HOST")]
    hosts: Vec<String>,
    /// All roots are to have it
    #[arg(long)]
    roots: bool,
    #[command(flatten)]
    agent: AgentSocket,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Warm {
    pub(super) fn run(&self) -> Result<WarmReport> {
        let agent = self.agent.client()?;
        // A missing agent is reported before anything is looked up.
        agent.swarm()?;
        let (blobs, left_out) = on_open(&self.image, &self.stores, |image| {
            let orders = if self.whole { whole(&self.image, &image.manifest) } else { self.hot(image)? };
            let all = image.manifest.disk_layers().count();
            let known = image.manifest.disk_layers().filter(|layer| layer.tree.is_some()).count();
            Ok((orders, all - known))
        })?;
        if blobs.is_empty() {
            return Err(treeless(&self.image));
        }
        let spec = WarmSpec { blobs, hosts: self.hosts.clone(), roots: self.roots };
        let hosts = HostReports(agent.warm(&spec)?);
        Ok(WarmReport { image: self.image.to_string(), layers_left_out: left_out as u64, hosts })
    }

    /// The parts that boots read, in their order, and those that opening the image reads.
    fn hot(&self, image: &OpenImage) -> Result<Vec<Order>> {
        let items = match &self.plans {
            Some(path) => {
                let known_as = image.manifest.known_as(image.digest).to_string();
                let key = RecordedImage { image: known_as, size: image.disk().size() };
                let file = FileSource::open(path).and_then(PlanFile::open);
                let plans = file.and_then(|file| file.choose(&key, &Metadata::default()));
                items_of(&plans.map_err(|e| e.about(path.display()))?)
            }
            None => known_items(&self.image, image, &self.stores)?,
        };
        if items.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "the blocks that its boots read are not known")
                .about(&self.image)
                .remedy(
                    "publish a plan with `headstart train --publish`, name one by --plans, or say --whole",
                ));
        }
        Ok(hot(image, &items))
    }
}

/// The blocks that boots of an image read, by the plan that is published with it or by its boot layer; empty if they
/// are not known.
fn known_items(image: &Reference, open: &OpenImage, stores: &StoreArgs) -> Result<Vec<PlanItem>> {
    Ok(match stores.with_stores(|stores| published::find(image, stores))? {
        Some((_, plans)) => plans.sole().map(|(_, plans)| items_of(plans)).unwrap_or_default(),
        None => boot_order(open.disk(), &open.manifest),
    })
}

/// The parts of an image's blobs that opening it and these items read.
fn hot(image: &OpenImage, items: &[PlanItem]) -> Vec<Order> {
    let layers: Vec<&Layer> = image.manifest.disk_layers().collect();
    let mut parts: Vec<Parts> = layers.iter().map(|layer| Parts::opening(layer)).collect();
    let disk = image.disk();
    for part in items.iter().flat_map(|item| item.parts(disk.size())) {
        disk.stored_ranges(part, &mut |layer, range| {
            if let Some(parts) = parts.get_mut(layer) {
                parts.add(range);
            }
        });
    }
    let store = image.reference.location.to_string();
    let orders = layers
        .into_iter()
        .zip(parts)
        .filter_map(|(layer, parts)| Some(Order { parts: parts.list, ..order(layer, &store)? }));
    together(orders.collect())
}

fn treeless(image: &Reference) -> Error {
    Error::unsupported("has no hash trees, without which hosts do not exchange it")
        .about(image)
        .remedy("make them with `headstart image flatten`")
}

/// Runs `work` on an image in any store.
pub(super) fn on_open<T>(
    image: &Reference,
    stores: &StoreArgs,
    work: impl Fn(&OpenImage) -> Result<T>,
) -> Result<T> {
    match image.location.is_remote() {
        true => stores.with_stores(|stores| work(&stores.open(image)?)),
        false => work(&OpenImage::open(image)?),
    }
}

/// All of an image's blobs that have hash trees, each once.
pub(super) fn whole(image: &Reference, manifest: &Manifest) -> Vec<Order> {
    let store = image.location.to_string();
    together(manifest.disk_layers().filter_map(|layer| order(layer, &store)).collect())
}

fn order(layer: &Layer, store: &str) -> Option<Order> {
    Some(Order::of(layer.blob.digest, layer.blob.size, layer.tree.as_ref()?, store.to_owned()))
}

/// Joins orders for the same blob: an image may have a blob several times.
fn together(orders: Vec<Order>) -> Vec<Order> {
    let mut places = HashMap::new();
    let mut all: Vec<Order> = Vec::new();
    for order in orders {
        match places.get(&order.digest).and_then(|place: &usize| all.get_mut(*place)) {
            Some(known) => known.parts.extend(order.parts),
            None => {
                places.insert(order.digest.clone(), all.len());
                all.push(order);
            }
        }
    }
    all
}

fn items_of(plans: &ImagePlans) -> Vec<PlanItem> {
    let plans = plans.groups.iter().flat_map(|group| &group.plans);
    plans.flat_map(|plan| plan.items.iter().copied()).collect()
}

/// Parts of a blob in the order in which they were named, each chunk once.
struct Parts {
    len: u64,
    known: HashSet<u64>,
    list: Vec<(u64, u64)>,
}

impl Parts {
    /// The parts that opening a layer reads.
    fn opening(layer: &Layer) -> Self {
        let len = layer.blob.size;
        let mut parts = Self { len, known: HashSet::new(), list: Vec::new() };
        opening_ranges(len, layer.index_offset()).into_iter().for_each(|range| parts.add(range));
        parts
    }

    fn add(&mut self, range: ByteRange) {
        for chunk in range.offset() / CHUNK..range.end().min(self.len).div_ceil(CHUNK) {
            if !self.known.insert(chunk) {
                continue;
            }
            let start = chunk * CHUNK;
            let len = CHUNK.min(self.len - start);
            match self.list.last_mut() {
                Some((first, before)) if *first + *before == start => *before += len,
                _ => self.list.push((start, len)),
            }
        }
    }
}

/// The result of warming.
#[derive(Serialize)]
pub(crate) struct WarmReport {
    image: String,
    /// Layers without a hash tree, which hosts do not exchange.
    layers_left_out: u64,
    /// The results on each host.
    hosts: HostReports,
}

impl Outcome for WarmReport {
    fn is_right(&self) -> bool {
        self.hosts.are_right()
    }
}

impl fmt::Display for WarmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.image)?;
        if self.layers_left_out > 0 {
            write!(f, ", without {} that has no hash tree", count(self.layers_left_out, "layer"))?;
        }
        write!(f, "{}", self.hosts)
    }
}

/// The results on each host, from the agent.
#[derive(Serialize)]
pub(crate) struct HostReports(pub(crate) Value);

impl HostReports {
    fn list(&self) -> &[Value] {
        self.0.as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// `true` if all of it is on all of them.
    pub(crate) fn are_right(&self) -> bool {
        self.list().iter().all(|host| host["error"].is_null() && host["lacking_bytes"].as_u64() == Some(0))
    }
}

impl fmt::Display for HostReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for host in self.list() {
            let number = |name: &str| host[name].as_u64().unwrap_or_default();
            write!(f, "\n{}: ", host["host"].as_str().unwrap_or_default())?;
            let (error, lacking) = (host["error"].as_str(), number("lacking_bytes"));
            match (error, lacking) {
                (Some(error), 0) => write!(f, "{error}")?,
                (None, 0) => write!(f, "{} are there", ByteSize(number("bytes")))?,
                (error, lacking) => {
                    write!(f, "of {} {} could not be had", ByteSize(number("bytes")), ByteSize(lacking))?;
                    error.map_or(Ok(()), |error| write!(f, ": {error}"))?;
                }
            }
        }
        Ok(())
    }
}

/// The option to warm a pushed image on the roots.
#[derive(Args)]
pub(crate) struct PushWarming {
    /// Have this host's agent fetch it to the swarm's roots: the parts that boots read, if they are known, otherwise
    /// all of it. With $HEADSTART_WARM_ON_PUSH set to 1, every push does that
    #[arg(long)]
    warm: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

/// The variable that makes every push do that.
const ON_PUSH: &str = "HEADSTART_WARM_ON_PUSH";

/// The warming after a push.
pub(crate) struct OnPush {
    agent: AgentClient,
    /// `true` if it was requested this time.
    pub(crate) said: bool,
}

/// The result of that.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum AfterPush {
    /// The results on each root.
    Warm(HostReports),
    /// The reason why it was not done.
    Not {
        /// The error in words.
        error: String,
    },
}

impl PushWarming {
    /// The warming after this push, if it is wanted and possible.
    ///
    /// # Errors
    /// If it was requested and there is no agent, or it is in no swarm.
    pub(crate) fn of_push(&self) -> Result<Option<OnPush>> {
        let always = std::env::var_os(ON_PUSH).is_some_and(|value| !value.is_empty() && value != "0");
        if !self.warm && !always {
            return Ok(None);
        }
        let agent = self.agent.client()?;
        if self.warm {
            // A missing agent is reported before anything is copied.
            agent.swarm()?;
        }
        Ok(Some(OnPush { agent, said: self.warm }))
    }
}

impl OnPush {
    /// Has the roots fetch a pushed image. A failure does not undo the push.
    pub(crate) fn warm(&self, image: &Reference, stores: &StoreArgs) -> AfterPush {
        let orders = on_open(image, stores, |open| {
            let items = known_items(image, open, stores)?;
            Ok(if items.is_empty() { whole(image, &open.manifest) } else { hot(open, &items) })
        });
        let warmed = orders.and_then(|blobs| {
            if blobs.is_empty() {
                return Err(treeless(image));
            }
            self.agent.warm(&WarmSpec { blobs, hosts: Vec::new(), roots: true })
        });
        match warmed {
            Ok(hosts) => AfterPush::Warm(HostReports(hosts)),
            Err(error) => AfterPush::Not { error: error.to_string() },
        }
    }

    /// `true` if warming succeeded or was not requested this time.
    pub(crate) fn is_right(&self, after: &AfterPush) -> bool {
        let is_warm = match after {
            AfterPush::Warm(hosts) => hosts.are_right(),
            AfterPush::Not { .. } => false,
        };
        is_warm || !self.said
    }
}

impl fmt::Display for AfterPush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warm(hosts) => write!(f, "{hosts}"),
            Self::Not { error } => write!(f, "\nnot warm on the roots: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_named_once_in_order() {
        let mut parts = Parts { len: CHUNK * 10 + 5, known: HashSet::new(), list: Vec::new() };
        for (offset, len) in [(CHUNK * 3 + 7, 10), (CHUNK * 4, CHUNK + 1), (CHUNK * 3, 1), (CHUNK * 10, 5)] {
            parts.add(ByteRange::new(offset, len).unwrap());
        }
        assert_eq!(parts.list, [(CHUNK * 3, CHUNK * 3), (CHUNK * 10, 5)]);
    }
}
