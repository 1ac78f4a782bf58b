//! `headstart plan export`: a plan as a trace file of `OverlayBD`, which its prefetcher replays.

use clap::{ArgGroup, Args};
use headstart_block::words::count;
use headstart_block::{ByteSize, Error, Result};
use headstart_command_line::megabytes::Megabytes;
use headstart_command_line::report::{Fields, Outcome};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::export::OutputFile;
use headstart_image::reference::{Reference, Selector};
use headstart_store::Tag;
use headstart_train::export::{PlanChoice, publish_trace, trace_of};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  headstart plan export file:///srv/images:debian -o trace
  headstart plan export oci://registry.lan/vm/debian:12 --plans plans --bandwidth 30 -o trace
  # The same image with the trace as its acceleration layer, for whoever attaches it with OverlayBD:
  headstart plan export file:///srv/images:debian --tag debian-accelerated";

/// The plan to write, and its target.
#[derive(Args)]
#[command(group = ArgGroup::new("result").args(["output", "tag"]).required(true).multiple(true))]
pub(crate) struct Export {
    /// The image
    image: Reference,
    /// The file to write
    #[arg(long, short, value_name = "TRACE")]
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
        let inputs: Vec<_> = self.plans.as_deref().into_iter().collect();
        let output = self.output.as_deref().map(|path| OutputFile::create(path, &inputs)).transpose()?;
        let choice = PlanChoice {
            plans: self.plans.as_deref(),
            group: self.group,
            bandwidth: self.bandwidth.times(1e6),
        };
        let (trace, digest) = self.stores.with_stores(|stores| {
            let trace = trace_of(&self.image, choice, stores)?;
            if let Some(file) = output {
                let failed = |e| Error::io("cannot be written", e);
                file.fill(|out| out.write_all(&trace.bytes).map_err(failed))?;
            }
            let publish = |tag| publish_trace(&self.image, &trace.bytes, tag, stores);
            let digest = self.tag.as_ref().map(publish).transpose()?;
            Ok((trace, digest))
        })?;
        let image = self.tag.clone().map(|tag| {
            let location = self.image.location.clone();
            Reference { location, selector: Selector::Tag(tag) }.to_string()
        });
        Ok(ExportReport {
            output: self.output.as_ref().map(|path| path.display().to_string()),
            bytes: trace.bytes.len() as u64,
            records: trace.records as u64,
            blocks: trace.blocks as u64,
            image,
            digest: digest.map(|digest| digest.to_string()),
        })
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
