//! Images in any store.

use crate::runtime::{FEW, with_runtime};
use crate::store_args::StoreArgs;
use headstart_block::Result;
use headstart_image::reference::Reference;
use headstart_image::remote::RemoteImage;

/// Opens an image in a remote store and runs `work` on it. The store is checked first, so a mistyped host or
/// a missing login fails at once.
///
/// # Errors
/// If the options of `stores` cannot be used, if the store or the image cannot be opened; the errors of
/// `work`.
pub fn on_remote<T>(
    image: &Reference,
    stores: &StoreArgs,
    work: impl FnOnce(&RemoteImage) -> Result<T>,
) -> Result<T> {
    let settings = stores.settings()?;
    let store = headstart_store::open(&image.location, &settings)?;
    with_runtime(FEW, |runtime| {
        // A mistyped host or a missing login is reported at once, not after the long deadline of a slow store.
        runtime.block_on(store.check())?;
        work(&RemoteImage::open(store, image, settings.retry, runtime.handle().clone())?)
    })
}
