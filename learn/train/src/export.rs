//! A plan of an image as a trace file of `OverlayBD`, which its prefetcher replays.

use crate::layer_map;
use crate::plan_files::plans_for;
use crate::published;
use headstart_block::{BlockDevice, Digest, Error, Result};
use headstart_image::acceleration;
use headstart_image::store_access::StoreAccess;
use headstart_plan::{ImagePlans, overlaybd_trace};
use headstart_store::{Reference, Tag};
use std::path::Path;

/// The plan that [`trace_of`] writes as a trace file: its source, its group and its bandwidth.
#[derive(Clone, Copy, Debug)]
pub struct PlanChoice<'a> {
    /// The file of plans; `None` for the plans that are published with the image.
    pub plans: Option<&'a Path>,
    /// The number of the group of boots whose plan is taken; 0 is the group with the most boots.
    pub group: usize,
    /// The bandwidth of the plan, in bytes a second. Between the bandwidths of two plans, the slower plan is taken;
    /// below all of them, the slowest.
    pub bandwidth: u64,
}

/// A plan as a trace file of `OverlayBD`'s prefetcher.
pub struct TraceFile {
    /// The content of the file.
    pub bytes: Vec<u8>,
    /// The number of records (reads of layers) in the file.
    pub records: usize,
    /// The number of blocks of the plan.
    pub blocks: usize,
}

/// Makes a trace file of a plan of an image.
///
/// # Errors
/// [`ErrorKind::NotFound`](headstart_block::ErrorKind) if there are no plans of the image or no such group, `Invalid`
/// if the group has no plan, `Unsupported` if the trace file would be too long; errors of opening the image and of
/// reading its plans.
pub fn trace_of(image: &Reference, choice: PlanChoice<'_>, stores: StoreAccess<'_>) -> Result<TraceFile> {
    let open = stores.open(image)?;
    let plans = match choice.plans {
        Some(path) => plans_for(path, &open)?,
        None => {
            let (_, plans) = published::expect(image, stores)?;
            plans.sole().map_or_else(ImagePlans::none, |(_, plans)| ImagePlans::clone(&plans))
        }
    };
    let about = |e: Error| e.about(image);
    let plan = plans.group(choice.group).map_err(about)?.at(choice.bandwidth);
    let plan = plan.ok_or_else(|| about(Error::invalid("has a group without a plan")))?;
    let disk = open.disk();
    let records = overlaybd_trace::of_plan(&plan.items, &layer_map::extents(disk), disk.size());
    let bytes = overlaybd_trace::encode(&records).map_err(about)?;
    Ok(TraceFile { bytes, records: records.len(), blocks: plan.items.len() })
}

/// Publishes a copy of an image in the same store, under `tag`, with `trace`, the content of a trace file, as its
/// acceleration layer (a layer that only holds a trace). Returns the digest of the copy's manifest.
///
/// # Errors
/// Errors of the store.
pub fn publish_trace(image: &Reference, trace: &[u8], tag: &Tag, stores: StoreAccess<'_>) -> Result<Digest> {
    let stored = stores.stored(image)?;
    stores.runtime.block_on(acceleration::with_trace(&stored.store, &stored.digest, trace, tag))
}
