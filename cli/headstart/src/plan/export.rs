//! `headstart plan export`: a plan as a trace file of `OverlayBD`, which its prefetcher replays.

use super::group;
use super::show::none_published;
use crate::megabytes::Megabytes;
use crate::published;
use crate::report::{Fields, Outcome, count};
use crate::store_args::StoreArgs;
use clap::Args;
use headstart_block::{BlockDevice, ByteSize, Error, PlanItem, Result};
use headstart_command_line::images::on_remote;
use headstart_command_line::training::open_plans;
use headstart_diskd::layer_map;
use headstart_image::acceleration;
use headstart_image::export::OutputFile;
use headstart_image::open_image::OpenImage;
use headstart_image::reference::{Reference, Selector};
use headstart_plan::ImagePlans;
use headstart_plan::overlaybd_trace;
use headstart_plan::zero_shot::Metadata;
use headstart_store::Tag;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart plan export file:///srv/images:debian -o trace
  headstart plan export oci://registry.lan/vm/debian:12 --plans plans --bandwidth 30 -o trace
  # The same image with the trace as its acceleration layer, for whoever attaches it with OverlayBD:
  headstart plan export file:///srv/images:debian --tag debian-accelerated";

/// The plan to write, and its target.
#[derive(Args)]
pub(crate) struct Export {
    /// The image
    image: Reference,
    /// The file to write
    #[arg(long, short, value_name = "TRACE", required_unless_present = "tag")]
    output: Option<PathBuf>,
    /// Publish the image in the same store once more under this tag, with the trace as its acceleration layer
    #[arg(long, value_name = "TAG")]
    tag: Option<Tag>,
    /// Plans that `headstart train` wrote [default: those that are published with the image]
    #[arg(long, value_name = "PLANS")]
    plans: Option<PathBuf>,
    /// The bandwidth of the plan, in MB/s
    #[arg(long, value_name = "MBPS", default_value = "10")]
    bandwidth: Megabytes,
    /// The group whose plan is written; 0 is the largest
    #[arg(long, value_name = "N", default_value_t = 0)]
    group: usize,
    #[command(flatten)]
    stores: StoreArgs,
}

impl Export {
    pub(super) fn run(&self) -> Result<ExportReport> {
        // This comes before the image is opened, which may take long.
        let output = self.output.as_deref().map(OutputFile::create).transpose()?;
        let work = |image: &OpenImage| self.trace(image);
        let (trace, records, items) = if self.image.location.is_remote() {
            on_remote(&self.image, &self.stores, |remote| work(&OpenImage::open_remote(remote)?))?
        } else {
            work(&OpenImage::open(&self.image)?)?
        };
        if let Some(file) = output {
            let failed = |e| Error::io("cannot be written", e);
            file.fill(|out| out.write_all(&trace).map_err(failed))?;
        }
        let digest = self.tag.as_ref().map(|tag| self.publish(&trace, tag)).transpose()?;
        let image = self.tag.clone().map(|tag| {
            let location = self.image.location.clone();
            Reference { location, selector: Selector::Tag(tag) }.to_string()
        });
        Ok(ExportReport {
            output: self.output.as_ref().map(|path| path.display().to_string()),
            bytes: trace.len() as u64,
            records: records as u64,
            blocks: items.len() as u64,
            image,
            digest,
        })
    }

    /// The file, its records, and the plan that it is made of.
    fn trace(&self, image: &OpenImage) -> Result<(Vec<u8>, usize, Arc<[PlanItem]>)> {
        let items = self.items(image)?;
        let disk = image.disk();
        let extents = layer_map::extents(disk);
        let records = overlaybd_trace::of_plan(&items, &extents, disk.size());
        let file = overlaybd_trace::encode(&records).map_err(|e| e.about(&self.image))?;
        Ok((file, records.len(), items))
    }

    fn items(&self, image: &OpenImage) -> Result<Arc<[PlanItem]>> {
        let plans: ImagePlans = match &self.plans {
            Some(path) => {
                let (mut key, map) = layer_map::of_open(image)?;
                key.image = image.manifest.known_as(image.digest).to_string();
                let chosen = open_plans(path)?.choose_layered(&key, &Metadata::default(), Some(&map));
                chosen.map_err(|e| e.about(path.display()))?
            }
            None => {
                let found = published::find(&self.image, &self.stores)?;
                let (_, plans) = found.ok_or_else(|| none_published(&self.image))?;
                plans.sole().map_or_else(ImagePlans::none, |(_, plans)| ImagePlans::clone(plans))
            }
        };
        let about = |e: Error| e.about(&self.image);
        let group = group(&plans, self.group).map_err(about)?;
        group
            .at(self.bandwidth.times(1e6))
            .map(|plan| Arc::clone(&plan.items))
            .ok_or_else(|| about(Error::invalid("has a group without a plan")))
    }

    fn publish(&self, trace: &[u8], tag: &Tag) -> Result<String> {
        let digest = published::on_stored(&self.image, &self.stores, async |stored| {
            acceleration::with_trace(&stored.store, &stored.digest, trace, tag).await
        });
        digest.map(|digest| digest.to_string())
    }
}

/// The result of an export.
#[derive(Serialize)]
pub(crate) struct ExportReport {
    /// The path of the file, if it was written.
    output: Option<String>,
    /// The length of the file.
    bytes: u64,
    /// Records of the trace.
    records: u64,
    /// Blocks of the plan.
    blocks: u64,
    /// The image with the trace, if there is one.
    image: Option<String>,
    /// The digest of that image's manifest.
    digest: Option<String>,
}

impl Outcome for ExportReport {}

impl fmt::Display for ExportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trace = format!("{} of {}", count(self.records, "record"), count(self.blocks, "block"));
        let mut fields = vec![("trace", format!("{trace}, {}", ByteSize(self.bytes)))];
        fields.extend(self.output.as_ref().map(|output| ("file", output.clone())));
        fields.extend(self.image.as_ref().map(|image| ("image", image.clone())));
        fields.extend(self.digest.as_ref().map(|digest| ("digest", digest.clone())));
        Fields(&fields).fmt(f)
    }
}
