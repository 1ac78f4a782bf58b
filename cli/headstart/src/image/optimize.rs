//! `headstart image optimize`: the blocks that boots read are stored first, in the order of a plan.

use super::parse_new_image_anywhere;
use crate::zfile::LayerPacking;
use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::megabytes::Megabytes;
use headstart_command_line::report::{Fields, Outcome, Report};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::optimize::{Cost, Form, OptimizeReport};
use headstart_image::progress::Progress;
use headstart_image::reference::Reference;
use headstart_train::order::OrderRequest;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart image optimize file:///srv/images:debian file:///srv/images:debian-fast
  headstart image optimize file:///srv/images:debian file:///srv/images:debian-fast --plans plans
  headstart image optimize oci://registry.lan/vm/debian:12 oci://registry.lan/vm/debian:12-fast

The new image has the same disk. It has one more layer on top of the old ones, with a copy of the
blocks that boots read: other images that share the old layers still share them, and preloading
reads the new layer from its start on. Without --level, zstd takes 16 for it. An image that was
optimized before loses its old layer of this kind.";

/// Level of zstd for boot layers: all boots wait for them, so they are worth some seconds once. From the 75 MB of a
/// Debian image it made 40.2 MB in 6.5 s on two cores (level 3: 43.3 MB in 0.4 s; 12: 42.2 MB in 2.4 s; 19: 40.1 MB in
/// 22 s).
const LEVEL: i32 = 16;

/// Writes an image in a new order.
#[derive(Args)]
pub(crate) struct Optimize {
    /// The image
    image: Reference,
    /// The image to make; a tag that exists is moved to it
    #[arg(value_parser = parse_new_image_anywhere)]
    target: Reference,
    /// The plans, as `headstart train` wrote them [default: the plan that was published with the image]
    #[arg(long, value_name = "FILE")]
    plans: Option<PathBuf>,
    /// The image's name in the plans [default: its digest]
    #[arg(long, value_name = "NAME", requires = "plans")]
    known_as: Option<String>,
    /// Take the order of the plan for this bandwidth, in MB/s
    #[arg(long, value_name = "MBPS", default_value = "10")]
    bandwidth: Megabytes,
    /// Take the order of this group of boots; 0 is the largest
    #[arg(long, value_name = "N", default_value_t = 0)]
    group: usize,
    /// Order only the blocks that this plan names. Without it, blocks that only the plans for other bandwidths and
    /// groups name come after; of groups, those of at least two boots and a tenth of all
    #[arg(long)]
    no_others: bool,
    /// Write the whole image again, as one layer: nothing is stored twice in it, and nothing is shared with other
    /// images
    #[arg(long)]
    one_layer: bool,
    #[command(flatten)]
    packing: LayerPacking,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Optimize {
    /// Checks that the options of packing fit together.
    ///
    /// # Errors
    /// As [`LayerPacking::check`].
    pub(super) fn check(&self) -> Result<()> {
        self.packing.check()
    }

    pub(super) fn run(&self, progress: &dyn Progress) -> Result<Box<dyn Report>> {
        let (form, packing) = if self.one_layer {
            (Form::OneLayer, self.packing.options())
        } else {
            (Form::BootLayer, self.packing.options_at(LEVEL))
        };
        let request = OrderRequest {
            image: self.image.clone(),
            target: self.target.clone(),
            plans: self.plans.clone(),
            known_as: self.known_as.clone(),
            bandwidth: self.bandwidth.times(1e6),
            group: self.group,
            with_others: !self.no_others,
            packing,
            form,
        };
        let (made, plan) = self.stores.with_stores(|stores| request.make(stores, progress))?;
        Ok(Box::new(Optimized::new(&made, plan.map(|digest| digest.to_string()))))
    }
}

/// The cost of preloading.
#[derive(Serialize)]
struct Takes {
    /// Bytes of the requests.
    bytes: u64,
    /// The number of requests.
    requests: u64,
}

impl From<Cost> for Takes {
    fn from(cost: Cost) -> Self {
        Self { bytes: cost.bytes, requests: cost.requests }
    }
}

/// An image that was optimized.
#[derive(Serialize)]
struct Optimized {
    /// The reference of the new image.
    image: String,
    /// The digest of its manifest.
    digest: String,
    /// The digest of the image that it was made from.
    optimized_from: String,
    /// The size of the disk in bytes.
    virtual_size: u64,
    /// The number of its layers.
    layers: usize,
    /// The digest of the new layer.
    layer: String,
    /// Bytes of the new layer as stored.
    layer_size: u64,
    /// Bytes of the layer, from its start on, that the plan needs.
    boot_bytes: u64,
    /// Bytes of the disk in the layer that boots read.
    hot_data_bytes: u64,
    /// Bytes of the disk in the layer that only other plans name.
    other_data_bytes: u64,
    /// Bytes of all blobs of the old image.
    stored_bytes_before: u64,
    /// Bytes of all blobs of the new image.
    stored_bytes: u64,
    /// Bytes that the new image adds where the old one is stored.
    added_bytes: u64,
    /// Bytes of the disk whose place changed, and that were compared.
    compared_bytes: u64,
    /// The cost of preloading the old image by its plan.
    preloading_before: Takes,
    /// The cost of preloading the new image by its plan.
    preloading: Takes,
    /// The digest of the plan that was published with the new image.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    /// The digest that the tag named before, if it was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    was: Option<String>,
}

impl Optimized {
    fn new(made: &OptimizeReport, plan: Option<String>) -> Self {
        let [stored_bytes_before, stored_bytes] = made.stored;
        let [preloading_before, preloading] = made.cost.map(Takes::from);
        Self {
            image: made.reference.to_string(),
            digest: made.digest.to_string(),
            optimized_from: made.optimized_from.to_string(),
            virtual_size: made.virtual_size,
            layers: made.layers,
            layer: made.layer.to_string(),
            layer_size: made.layer_size,
            boot_bytes: made.boot_bytes,
            hot_data_bytes: made.hot_data,
            other_data_bytes: made.beyond_data,
            stored_bytes_before,
            stored_bytes,
            added_bytes: made.added,
            compared_bytes: made.compared,
            preloading_before,
            preloading,
            plan,
            was: made.was.map(|was| was.to_string()),
        }
    }
}

impl Outcome for Optimized {}

impl fmt::Display for Optimized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takes =
            |takes: &Takes| format!("{} in {}", ByteSize(takes.bytes), count(takes.requests, "request"));
        let beyond = match self.other_data_bytes {
            0 => String::new(),
            bytes => format!(", and {} that only other plans name", ByteSize(bytes)),
        };
        let mut fields = vec![
            ("image", self.image.clone()),
            ("digest", self.digest.clone()),
            ("made from", self.optimized_from.clone()),
            ("layers", self.layers.to_string()),
            ("new layer", self.layer.clone()),
            (
                "it has",
                format!(
                    "{} of data that boots read, in its first {}{beyond}; {} in all",
                    ByteSize(self.hot_data_bytes),
                    ByteSize(self.boot_bytes),
                    ByteSize(self.layer_size)
                ),
            ),
            (
                "it costs",
                format!(
                    "{} more where the old image is stored, {} in all",
                    ByteSize(self.added_bytes),
                    ByteSize(self.stored_bytes)
                ),
            ),
            (
                "preloading",
                format!("{}; before: {}", takes(&self.preloading), takes(&self.preloading_before)),
            ),
            ("same disk", format!("{} that lie elsewhere now were compared", ByteSize(self.compared_bytes))),
        ];
        if let Some(plan) = &self.plan {
            fields.push(("plan", format!("{plan}, published with it")));
        }
        fields.extend(self.was.clone().map(|was| ("was", was)));
        Fields(&fields).fmt(f)
    }
}
