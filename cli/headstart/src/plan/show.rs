//! `headstart plan show`.

use super::mega;
use clap::{ArgGroup, Args};
use headstart_block::words::count;
use headstart_block::{ByteSize, Error, PlanItem, Result};
use headstart_command_line::megabytes::Megabytes;
use headstart_command_line::report::{Fields, Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::store_access::StoreAccess;
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::train::Plans;
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{Bandwidth, Bin, ImagePlans, RatedPlan};
use headstart_store::Reference;
use headstart_trace::fast26;
use headstart_train::plan_files::{open_plans, read_plans};
use headstart_train::{layer_map, published};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart plan show --plans plans
  headstart plan show --plans plans --image m-nginx --bandwidth 10
  headstart plan show --reference oci://registry.lan/vm/debian:12
  headstart plan show --plans plans --bandwidth 5 --json \\
      --creation '{\"image_id\":\"new\",\"image_family\":\"debian-12\",\"user_id\":\"1001\"}'";

/// The bandwidth of the plan that is shown if none is asked for, in MB/s.
const BANDWIDTH: f64 = 10.0;

/// The most blocks that are listed for people.
const SHOWN: usize = 20;

/// The plan to show.
#[derive(Args)]
#[command(group = ArgGroup::new("source").args(["plans", "reference"]).required(true).multiple(true))]
#[command(group = ArgGroup::new("disk").args(["image", "creation", "reference"]).multiple(true))]
pub(crate) struct Show {
    /// The plans that `headstart train` wrote; not needed with --reference [default: those that are published with it]
    #[arg(long, value_name = "PLANS")]
    plans: Option<PathBuf>,
    /// An image that was trained on: its name, or its digest
    #[arg(long, value_name = "KEY", conflicts_with = "creation")]
    image: Option<String>,
    /// The size of its disk, if there are several [default: the one with the most traces of its own]
    // clap drops `requires` where an argument that conflicts with the required one is given.
    #[arg(long, requires = "image", conflicts_with_all = ["creation", "reference"])]
    size: Option<ByteSize>,
    /// A disk that is created: a row of the data set's metadata as a JSON object, by the names of its columns
    #[arg(long, value_name = "JSON", value_parser = parse_row)]
    creation: Option<Map<String, Value>>,
    /// An image as it would be attached: the plan of its own boots, or otherwise of its layers; without --plans the
    /// one that is published with it
    #[arg(long, value_name = "IMAGE", conflicts_with = "image")]
    reference: Option<Reference>,
    /// The bandwidth in MB/s of the plan to show, with --image, --creation or --reference [default: 10]
    #[arg(long, value_name = "MBPS", requires = "disk")]
    bandwidth: Option<Megabytes>,
    /// The group whose plan is shown; 0 is the largest
    #[arg(long, value_name = "N", default_value_t = 0, requires = "disk")]
    group: usize,
    #[command(flatten)]
    stores: StoreArgs,
}

fn parse_row(text: &str) -> std::result::Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("no JSON object: {e}"))
}

impl Show {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        let bandwidth = self.bandwidth.unwrap_or(Megabytes(BANDWIDTH));
        let Some(path) = &self.plans else {
            return Ok(Box::new(self.of_published(bandwidth)?));
        };
        let about = |e: Error| e.about(path.display());
        let plans = match &self.image {
            Some(image) => {
                let size = self.size.map(|ByteSize(size)| size);
                read_plans(path)?.named(image, size).map_err(about)?
            }
            None if self.creation.is_none() && self.reference.is_none() => {
                return Ok(Box::new(Listing::of(&read_plans(path)?)));
            }
            None => self.of_creation(path)?,
        };
        Ok(Box::new(self.shown(&plans, bandwidth).map_err(about)?))
    }

    fn of_published(&self, bandwidth: Megabytes) -> Result<Shown> {
        let Some(image) = &self.reference else {
            return Err(Error::invalid("there are no plans to show").remedy("give --plans or --reference"));
        };
        let (found, plans) = self.stores.with_stores(|stores| published::expect(image, stores))?;
        let plans = plans.sole().map_or_else(|| Arc::new(ImagePlans::none()), |(_, plans)| plans);
        let mut shown = self.shown(&plans, bandwidth).map_err(|e| e.about(image))?;
        let (digest, generation) = (found.digest.to_string(), found.generation);
        shown.published = Some(Published { digest, generation, traces: found.about.traces });
        Ok(shown)
    }

    fn of_creation(&self, path: &Path) -> Result<Arc<ImagePlans>> {
        let column = |column: &str| self.creation.as_ref().and_then(|row| row.get(column)).and_then(text);
        let creation = fast26::creation_of(column).map_err(|e| e.about("--creation"))?;
        let (key, map) = match &self.reference {
            Some(reference) => {
                let of = |stores: StoreAccess<'_>| layer_map::of_open(&stores.open(reference)?);
                self.stores.with_stores(of).map(|(key, map)| (key, Some(map)))?
            }
            None => (RecordedImage::of(&creation), None),
        };
        let plans = open_plans(path)?.choose_layered(&key, &Metadata::of(&creation), map.as_ref());
        plans.map(Arc::new).map_err(|e| e.about(path.display()))
    }

    fn shown(&self, plans: &ImagePlans, bandwidth: Megabytes) -> Result<Shown> {
        let bytes = bandwidth.times(1e6);
        let bin = Bin::of(Bandwidth::new(bytes)).name();
        let (reason, published) = (plans.reason.to_string(), None);
        if plans.groups.is_empty() {
            let policy = "lazy".to_owned();
            let (group, plan, rates) = (None, None, Vec::new());
            return Ok(Shown { reason, published, group, policy, bin, plan, rates, traces: 0 });
        }
        let group = plans.group(self.group)?;
        let plan = group.at(bytes).cloned();
        let policy = plan.as_ref().map_or_else(|| "lazy".to_owned(), |plan| plan.policy.clone());
        let rates = group.plans.iter().map(|plan| plan.rate).collect();
        let (group, traces) = (Some(self.group), group.traces);
        Ok(Shown { reason, published, group, policy, bin, plan, rates, traces })
    }
}

/// A field of a row, in any JSON type.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// The source of a published plan.
#[derive(Clone, Serialize)]
struct Published {
    /// The digest of the artifact's manifest.
    digest: String,
    /// The number of the publication, from 1.
    generation: u64,
    /// The traces of all groups.
    traces: u64,
}

/// The plan that was chosen.
struct Shown {
    reason: String,
    published: Option<Published>,
    group: Option<usize>,
    policy: String,
    bin: &'static str,
    /// The plan; `None` if there is nothing to preload.
    plan: Option<RatedPlan>,
    /// The bandwidths for which there are plans, in bytes a second.
    rates: Vec<u64>,
    traces: u64,
}

impl Shown {
    fn items(&self) -> &[PlanItem] {
        self.plan.as_ref().map_or(&[], |plan| &plan.items)
    }
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            reason: &'a str,
            published: Option<&'a Published>,
            group: Option<usize>,
            policy: &'a str,
            bin: &'a str,
            rate: Option<u64>,
            rates: &'a [u64],
            traces: u64,
            order: Vec<(u64, u32)>,
        }
        Fields {
            reason: &self.reason,
            published: self.published.as_ref(),
            group: self.group,
            policy: &self.policy,
            bin: self.bin,
            rate: self.plan.as_ref().map(|plan| plan.rate),
            rates: &self.rates,
            traces: self.traces,
            order: self.items().iter().map(|item| (item.block, item.mask)).collect(),
        }
        .serialize(serializer)
    }
}

impl Outcome for Shown {
    /// Thousands of numbers, one a line, would help no reader.
    fn is_line(&self) -> bool {
        true
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(plan) = &self.plan else {
            return write!(f, "reason: {}; nothing is preloaded", self.reason);
        };
        let group = self.group.unwrap_or_default();
        if let Some(Published { digest, generation, traces }) = &self.published {
            let traces = count(*traces, "trace");
            let published = format!("generation {generation}, of {traces}, {digest}");
            writeln!(f, "{}", Fields(&[("published", published)]))?;
        }
        let others = self.rates.iter().filter(|rate| **rate != plan.rate);
        let others: Vec<_> = others.map(|rate| mega(*rate).to_string()).collect();
        let mut fields = vec![
            ("reason", self.reason.clone()),
            ("group", format!("{group}, of {}", count(self.traces, "trace"))),
            ("policy", self.policy.clone()),
            ("bandwidth", format!("{} MB/s, of the bin {}", Megabytes(mega(plan.rate)).0, self.bin)),
            ("blocks", plan.items.len().to_string()),
            ("hot slices", ByteSize(plan.hot_bytes()).to_string()),
        ];
        if !others.is_empty() {
            fields.insert(4, ("others", format!("{} MB/s (--bandwidth)", others.join(", "))));
        }
        write!(f, "{}", Fields(&fields))?;
        write!(f, "\n\n{:>8} {:>8}  hot slices of 64 KiB, the first on the left", "order", "block")?;
        for (place, item) in plan.items.iter().enumerate().take(SHOWN) {
            let slice = |bit: u32| if item.mask >> bit & 1 == 1 { '#' } else { '.' };
            let slices: String = (0..32).map(slice).collect();
            write!(f, "\n{:>8} {:>8}  {slices}", place + 1, item.block)?;
        }
        match plan.items.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n... and {more} more: all with --json"),
        }
    }
}

/// The images that have plans.
#[derive(Serialize)]
struct Listing {
    /// The images that the file has plans of.
    images: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    /// The key of the image.
    image: String,
    /// The size of the disk in bytes.
    size: u64,
    /// The origin of the plans, such as `trained`.
    reason: String,
    /// The traces of all groups.
    traces: u64,
    /// The number of groups.
    groups: usize,
    /// The policy that made the plans.
    policy: String,
    /// The bandwidths, in bytes a second.
    rates: Vec<u64>,
}

impl Listing {
    fn of(plans: &Plans) -> Self {
        let listed = |(key, plans): (&RecordedImage, &Arc<ImagePlans>)| {
            let largest = plans.groups.first().map_or(&[][..], |group| &group.plans);
            Listed {
                image: key.image.clone(),
                size: key.size,
                reason: plans.reason.to_string(),
                traces: plans.groups.iter().map(|group| group.traces).sum(),
                groups: plans.groups.len(),
                policy: largest.first().map(|plan| plan.policy.clone()).unwrap_or_default(),
                rates: largest.iter().map(|plan| plan.rate).collect(),
            }
        };
        Self { images: plans.images().map(listed).collect() }
    }
}

impl Outcome for Listing {}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.images.iter().map(|image| image.image.len()).max().unwrap_or(0).max("image".len());
        write!(f, "{:width$} {:>8} {:>7} {:>7}  {:12}", "image", "size", "traces", "groups", "policy")?;
        write!(f, " MB/s")?;
        for image in &self.images {
            let size = ByteSize(image.size).to_string();
            let rates: Vec<_> = image.rates.iter().map(|rate| mega(*rate).to_string()).collect();
            write!(f, "\n{:width$} {size:>8}", image.image.escape_debug().to_string())?;
            write!(f, " {:>7} {:>7}  {:12} {}", image.traces, image.groups, image.policy, rates.join(","))?;
        }
        Ok(())
    }
}
