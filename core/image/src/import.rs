//! Importing a disk: the data that its base does not have becomes a new layer on the base's layers.

use crate::difference::write_difference;
use crate::disk_file::{DiskFile, DiskFormat};
use crate::new_image::{Builder, NewImageReport};
use crate::new_layer::Packing;
use crate::open_image::OpenImage;
use crate::progress::Progress;
use crate::reference::Reference;
use headstart_block::{BlockDevice, Result};
use headstart_lsmt::LayerWriter;

/// Imports the disk image `file`, and publishes it as a new image under the tag `target`. Without `base`, the new layer
/// holds all data of the disk. With `base`, the new layer holds only the data that differs from that image, and is
/// placed on top of the base's layers. `target` and `base` must be in local directories. Also returns the format that
/// the file was found to have.
///
/// The same disk, base and packing give the same digest, whatever the number of threads.
///
/// # Errors
/// `Unsupported` if `target` or `base` is in a remote store; `Invalid` if `target` has a digest in place of a tag, or
/// if `base` has the most layers that an image can have; errors of reading the disk, opening the base or writing to the
/// store. No image is published then, unless only the last step failed, the syncing of the store's directory.
pub fn import_disk(
    file: &DiskFile,
    base: Option<&Reference>,
    target: &Reference,
    packing: &Packing,
    progress: &dyn Progress,
) -> Result<(NewImageReport, DiskFormat)> {
    let base = base.map(OpenImage::open).transpose()?;
    let builder = Builder::new(target, packing)?.on(base.as_ref(), progress)?;
    let disk = file.open(builder.scratch(), progress)?;
    let device = disk.device();
    let size = device.size();
    // The whole base, also past its own end: data in the base's layers there would otherwise show through.
    let base = base.map(|base| {
        let disk = base.into_disk();
        let end = disk.end().max(size);
        disk.with_size(end)
    });
    progress.begin("import", size);
    let report = builder.publish(None, size, |output, meta| {
        let base = base.as_ref().map(|base| base as &dyn BlockDevice);
        let mut layer = LayerWriter::new(output, meta)?;
        write_difference(device, base, &mut layer, progress).map_err(|e| e.about(file.path.display()))?;
        layer.finish()
    })?;
    Ok((report, disk.format))
}
