//! Real images as the disks of replayed boots.

use super::arguments::Disk;
use headstart_block::{Error, ErrorKind, Result};
use headstart_command_line::store_args::StoreArgs;
use headstart_image::named_image::NamedImage;
use headstart_image::open_image::OpenImage;
use headstart_replay::ImageMap;
use headstart_store::Reference;
use headstart_trace::Creation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The images by the names that their boots have for them; an empty name stands for all boots.
#[derive(Default)]
pub(super) struct Images(BTreeMap<String, Arc<ImageMap>>);

impl Images {
    /// The disk of a boot; `None` if no image was given at all.
    pub(super) fn of(&self, creation: &Creation) -> Result<Option<Arc<ImageMap>>> {
        let name = creation.image_id();
        match self.0.get("").or_else(|| self.0.get(name)) {
            Some(map) => Ok(Some(Arc::clone(map))),
            None if self.0.is_empty() => Ok(None),
            None => Err(Error::new(ErrorKind::NotFound, format!("no image was given for boots of `{name}`"))
                .remedy(format!("give --image {name}=IMAGE too"))),
        }
    }
}

impl Disk {
    /// Opens the given images.
    pub(super) fn images(&self) -> Result<Images> {
        let mut images = BTreeMap::new();
        for NamedImage { name, reference } in &self.image {
            images.insert(name.clone(), Arc::new(map(reference, &self.stores)?));
        }
        Ok(Images(images))
    }
}

/// The map of an image, in any store.
pub(super) fn map(reference: &Reference, stores: &StoreArgs) -> Result<ImageMap> {
    match reference.location.is_remote() {
        true => stores.with_stores(|stores| Ok(ImageMap::of(stores.open(reference)?))),
        false => Ok(ImageMap::of(OpenImage::open(reference)?)),
    }
}
