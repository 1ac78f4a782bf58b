//! [`SingleLayers`]: disks of the layers of an image, each by itself. The image and the store of the disks are opened
//! once for all of them.

use crate::options::ConvertOptions;
use crate::request::{ConvertReport, ConvertRequest, ConvertedForm, open_both};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_container_source::{ContainerImage, ImagePlatform, SourceName};
use headstart_image::image_site::ImageSite;
use headstart_image::progress::Progress;
use headstart_image::reference::{Location, Reference, Selector, Tag};
use headstart_image::store_access::StoreAccess;
use headstart_store::Store;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A container's image that is open, and the store in which disks of its layers become images.
pub struct SingleLayers<'a> {
    source: &'a SourceName,
    image: ContainerImage,
    location: &'a Location,
    /// The store, unless it is a directory, which is made with the first image.
    store: Option<Arc<dyn Store>>,
    stores: StoreAccess<'a>,
}

impl<'a> SingleLayers<'a> {
    /// Opens the image `source` and the store at `location`. `platform` chooses one of several images.
    ///
    /// # Errors
    /// As [`headstart_container_source::open()`]; errors of the store.
    pub fn open(
        source: &'a SourceName,
        platform: Option<&ImagePlatform>,
        location: &'a Location,
        stores: StoreAccess<'a>,
    ) -> Result<Self> {
        let (image, store) = open_both(source, platform, location, stores)?;
        Ok(Self { source, image, location, store, stores })
    }

    /// Returns the digests of the layers' contents, lowest first, each once.
    #[must_use]
    pub fn diff_ids(&self) -> Vec<Digest> {
        let mut seen = BTreeSet::new();
        self.image.layers.iter().map(|layer| layer.diff_id).filter(|diff_id| seen.insert(*diff_id)).collect()
    }

    /// Makes an image with the name `tag` of the layer whose content has the digest `diff_id`, and publishes it. Blocks
    /// until it is there.
    ///
    /// # Errors
    /// As [`ConvertRequest::make`]; [`ErrorKind::NotFound`] if the image has no such layer.
    pub fn make(
        &self,
        diff_id: &Digest,
        tag: Tag,
        options: &ConvertOptions,
        progress: &dyn Progress,
    ) -> Result<ConvertReport> {
        let mut image = self.image.clone();
        image.layers.retain(|layer| layer.diff_id == *diff_id);
        image.layers.truncate(1);
        if image.layers.is_empty() {
            let cause = format!("has no layer whose content has the digest {diff_id}");
            return Err(Error::new(ErrorKind::NotFound, cause).about(&image.name));
        }
        let target = Reference { location: self.location.clone(), selector: Selector::Tag(tag) };
        let request = ConvertRequest {
            source: self.source,
            platform: None,
            form: &ConvertedForm::Image(target),
            layer_store: None,
            options: &ConvertOptions { alone: true, ..options.clone() },
        };
        let site = ImageSite::new(self.location)?;
        request.publish((image, self.store.clone()), site, self.stores, progress)
    }
}
