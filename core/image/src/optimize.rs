//! Laying an image out again, so that the data that boots read comes first, in the order of a plan.
//!
//! Preloading a boot from an image as it was imported takes hundreds of requests: the data that boots read is scattered
//! over its blobs. Here that data is written once more, into one layer, in the order in which it is to be preloaded.
//! Following the plan then reads one blob from its start on, without a gap: a single request, if the reader wants.
//!
//! # The two forms
//!
//! | form | parts of the image | cost in a store |
//! |---|---|---|
//! | [`Form::BootLayer`] | the layers of the source, and one more on top with a copy of what boots read | that copy |
//! | [`Form::OneLayer`] | one layer: first what boots read, then the rest | a copy of all |
//!
//! The boot layer hides only equal data below it, so it can be left out again. When an image is optimized a second
//! time, its old boot layer is dropped, and other images that share the layers below still share them.
//!
//! # The layer
//!
//! The new layer, with the default packing (another one may have other frames, or no compression):
//!
//! ```text
//! LSMT:   header | data of the first plan, in its order | data that only others name | (the rest) | table | trailer
//! ZFile:  header | frames of 32 KiB, one after another ...                                     | index | trailer
//! blob:   [0, dev.headstart.boot-layer) = all that the first plan names
//! ```
//!
//! The result is an ordinary layer of the format: as everywhere, the table is sorted by the disk's sectors. Only the
//! data is in another order, as it is in a sealed writable layer. The data of items that follow each other in the plan
//! may share a frame, so preloading a part of the plan reads more than it needs only in its first and last frame. Of
//! each slice only the sectors with data are stored: holes and zeroed sectors stay as they are in the layers below.
//!
//! # Verification
//!
//! Before the image is published, its disk is compared with the disk of the source, in all ranges that the two read
//! from different places ([`OptimizeReport::compared`]). The same source, plans and packing give the same digest.

mod cost;
mod layout;
mod order;
mod same;
mod site;
mod source;
#[cfg(test)]
mod tests;
mod view;
mod write;

pub use cost::Cost;
pub use order::boot_order;
pub use source::Source;

use crate::blob::open_layer_source;
use crate::disk_size::check_size;
use crate::manifest::{ImageLayer, Manifest, NewImage};
use crate::new_layer::{Packing, describe, stage_layer};
use crate::progress::{Progress, step};
use crate::reference::Reference;
use crate::store_access::StoreAccess;
use cost::cost;
use headstart_block::{BlockDevice, Digest, Error, FileSystemKind, PlanItem, ReadAt, Result, SECTOR_SIZE};
use headstart_lsmt::{LayerMeta, Stack};
use layout::Layout;
use same::check_same;
use site::{Below, Site};
use std::sync::Arc;
use view::View;
use write::{DataBytes, write_layer};

/// The form in which an optimization stores the disk in the new image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The source's layers (without its own boot layer, if it has one), and on top of them a layer with a second copy
    /// of the data that boots read.
    #[default]
    BootLayer,
    /// A single layer with all data; the data that boots read comes first.
    OneLayer,
}

/// Describes the image that [`optimize`] is to make.
#[derive(Clone, Copy)]
pub struct OptimizeRequest<'a> {
    /// The store and the tag under which the new image is published.
    pub target: &'a Reference,
    /// The preload plans, each of which lists the blocks that boots read. The new layer stores the data of
    /// the first plan in that plan's order, then the data that only the other plans list.
    pub plans: &'a [&'a [PlanItem]],
    /// The form in which the new layer's bytes are stored: compressed or not.
    pub packing: &'a Packing,
    /// The form of the new image: one more layer, or a single one.
    pub form: Form,
}

/// Describes the new image that [`optimize`] published, and what reading it costs.
#[derive(Clone, Debug)]
pub struct OptimizeReport {
    /// The store and the tag under which the new image was published.
    pub reference: Reference,
    /// The digest of the new image's manifest.
    pub digest: Digest,
    /// The digest of the manifest of the image that was optimized. If that image was itself made by an optimization:
    /// the digest of the image from which it was made.
    pub optimized_from: Digest,
    /// The size of the disk in bytes.
    pub virtual_size: u64,
    /// The number of layers of the image, including the new one.
    pub layers: usize,
    /// The digest of the new layer's blob.
    pub layer: Digest,
    /// The length of the new layer's blob in bytes.
    pub layer_size: u64,
    /// The length in bytes of the first part of the new layer's blob, which holds the data of the first plan.
    pub boot_bytes: u64,
    /// The number of bytes of the disk that the first plan lists and for which the image has data.
    pub hot_data: u64,
    /// The number of bytes of the disk that only the other plans list and for which the image has data.
    pub beyond_data: u64,
    /// The total length, in bytes, of the source's blobs and of the new image's blobs, in this order.
    pub stored: [u64; 2],
    /// The total length, in bytes, of the new image's blobs that the source does not have. This is what the
    /// new image adds to a store that has the source already.
    pub added: u64,
    /// The estimated cost of fetching the data of the first plan from the source and from the new image, in
    /// this order.
    pub cost: [Cost; 2],
    /// The number of bytes of the disk that the new image reads from another location than the source does.
    /// All of them were compared and found equal.
    pub compared: u64,
    /// The digest of the manifest that the tag named before. `None` if the tag is new or named the same
    /// manifest.
    pub was: Option<Digest>,
}

/// Makes and publishes a new image with the same disk as `source`, in which the data that boots read is
/// stored in the order of a preload plan, so that it can be preloaded with few requests.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the first plan lists nothing for which the image has data, if there is no
/// plan, or if the target has a digest in place of a tag;
/// [`headstart_block::ErrorKind::Cancelled`] if the user wants to stop; errors of the stores. No image is
/// published then, but a store that is not a directory may keep some unused blobs.
pub fn optimize(
    source: &Source,
    request: &OptimizeRequest<'_>,
    stores: StoreAccess<'_>,
    progress: &dyn Progress,
) -> Result<OptimizeReport> {
    let virtual_size = source.open.disk().size();
    check_size(virtual_size)?;
    let mut layout = Layout::new(virtual_size, request.plans);
    let data = DataBytes::of(source.open.disk(), &layout);
    if data.hot == 0 {
        let error = Error::invalid("the plan names nothing that the image has");
        return Err(error.about(&source.open.reference).remedy("make one of boots of this image"));
    }
    let site = Site::new(request.target)?;
    if request.form == Form::BootLayer {
        site.adopt(source, &source.layers(), progress)?;
    }
    let below = site.open_layers(source)?;
    match request.form {
        Form::BootLayer => site.bring(source, &below, &layout, progress)?,
        Form::OneLayer => layout = layout.with_rest(&below.disk),
    }
    let is_only_read = source.open.manifest.is_only_read();
    let new = NewDisk::write(&site, below, &layout, data, (request, is_only_read), progress)?;
    let view = View { disk: &new.disk, layers: &new.layers };
    let source_layers: Vec<ImageLayer> = source.open.manifest.disk_layers().cloned().collect();
    // Data of a source without a boot layer that is already here need not be fetched once more to be compared.
    let has_boot_layer = source_layers.len() > new.below.layers.len();
    let original = if has_boot_layer { source.open.disk() } else { &new.below.disk };
    let original = View { disk: original, layers: &source_layers };
    let compared = check_same(&original, &view, progress)?;
    let cost = [cost(&original, &layout.hot), cost(&view, &layout.hot)];

    step(progress, 0)?;
    let image = NewImage {
        layers: new.layers,
        virtual_size,
        options: describe(request.packing),
        config: source.config()?,
        optimized_from: Some(source.known_as()),
        converted_from: None,
        belongs_to: None,
    };
    let (made, was) = site.publish(source, &image, request.target, stores, progress)?;
    Ok(OptimizeReport {
        reference: request.target.clone(),
        digest: made.digest,
        optimized_from: source.known_as(),
        virtual_size,
        layers: image.layers.len(),
        layer: new.layer.blob.digest,
        layer_size: new.layer.blob.size,
        boot_bytes: new.boot_bytes,
        hot_data: data.hot,
        beyond_data: data.beyond,
        stored: [source.open.manifest.stored_size(), made.manifest.stored_size()],
        added: added(&source.open.manifest, &made.manifest),
        cost,
        compared,
        was,
    })
}

/// The disk laid out again, not published yet.
struct NewDisk {
    /// The layer that was made.
    layer: ImageLayer,
    boot_bytes: u64,
    /// All layers, lowest first.
    layers: Vec<ImageLayer>,
    disk: Stack,
    /// The layers that it was made of.
    below: Below,
}

impl NewDisk {
    fn write(
        site: &Site,
        below: Below,
        layout: &Layout,
        data: DataBytes,
        (request, is_only_read): (&OptimizeRequest<'_>, bool),
        progress: &dyn Progress,
    ) -> Result<Self> {
        let (parent_uuid, mut layers, mut open) = match request.form {
            Form::BootLayer => (below.top_uuid(), below.layers.clone(), below.open.clone()),
            Form::OneLayer => (uuid::Uuid::nil(), Vec::new(), Vec::new()),
        };
        let virtual_size = below.disk.size().next_multiple_of(SECTOR_SIZE);
        let meta = LayerMeta { virtual_size, parent_uuid, ..LayerMeta::default() };
        let write = |output| write_layer(&below.disk, layout, output, meta, progress);
        let (layer, _) = stage_layer(site.staging(), request.packing, write)?;
        let blob: Arc<dyn ReadAt> = Arc::new(site.staged(&layer.blob.digest)?);
        let content = open_layer_source(blob)?.source;
        let boot_bytes = content.stored_range(data.hot_range()).end();
        let layer = layer.with_boot_bytes(boot_bytes);
        // OverlayBD's snapshotter mounts what the topmost layer says.
        let layer = if is_only_read { layer.with_file_system(FileSystemKind::Erofs) } else { layer };
        layers.push(layer.clone());
        open.push(headstart_lsmt::Layer::open(content)?);
        let disk = Stack::new(open)?.with_size(below.disk.size());
        Ok(Self { layer, boot_bytes, layers, disk, below })
    }
}

/// The number of bytes of the blobs that `new` has and `old` has not.
fn added(old: &Manifest, new: &Manifest) -> u64 {
    let mut blobs: Vec<_> =
        new.blobs().filter(|(digest, _)| !old.blobs().any(|known| known.0 == *digest)).collect();
    blobs.sort_unstable();
    blobs.dedup();
    blobs.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
}
