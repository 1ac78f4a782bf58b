//! The layers of an image that may be in any store.

use crate::store_args::StoreArgs;
use headstart_block::Result;
use headstart_command_line::images::on_remote;
use headstart_diskd::layer_map::of_open;
use headstart_image::open_image::OpenImage;
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::layers::LayerMap;
use headstart_store::Reference;

/// The key of recordings of the image's disks, and its layers.
///
/// # Errors
/// Errors of opening the image.
pub(crate) fn of_image(image: &Reference, stores: &StoreArgs) -> Result<(RecordedImage, LayerMap)> {
    if image.location.is_remote() {
        on_remote(image, stores, |remote| of_open(&OpenImage::open_remote(remote)?))
    } else {
        of_open(&OpenImage::open(image)?)
    }
}
