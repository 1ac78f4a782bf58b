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

/// The plan to write.
#[derive(Clone, Copy, Debug)]
pub struct PlanChoice<'a> {
    /// The file of plans; `None` for those that are published with the image.
    pub plans: Option<&'a Path>,
    /// The number of the group; 0 is the largest.
    pub group: usize,
    /// The bandwidth, in bytes a second.
    pub bandwidth: u64,
}

/// A plan as a trace file.
pub struct TraceFile {
    /// The file.
    pub bytes: Vec<u8>,
    /// The number of its records.
    pub records: usize,
    /// The number of blocks of the plan.
    pub blocks: usize,
}

/// Makes the trace file of an image's plan.
///
/// # Errors
/// If there is no such plan; errors of opening the image.
pub fn trace_of(image: &Reference, choice: PlanChoice<'_>, stores: StoreAccess<'_>) -> Result<TraceFile> {
    let open = stores.open(image)?;
    let plans = match choice.plans {
        Some(path) => plans_for(path, &open)?,
        None => {
            let (_, plans) = published::expect(image, stores)?;
            plans.sole().map_or_else(ImagePlans::none, |(_, plans)| ImagePlans::clone(plans))
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

/// Publishes the image once more in its store under `tag`, with a trace as its acceleration layer; returns the digest
/// of that image's manifest.
///
/// # Errors
/// Errors of the store.
pub fn publish_trace(image: &Reference, trace: &[u8], tag: &Tag, stores: StoreAccess<'_>) -> Result<Digest> {
    let stored = stores.stored(image)?;
    stores.runtime.block_on(acceleration::with_trace(&stored.store, &stored.digest, trace, tag))
}
