//! [`ConvertRequest`]: a conversion from the name of a container's image to a published image of a disk.

use crate::image::{LayerOutcome, StagedConversion, stage_image};
use crate::known_layers::{KnownLayers, StoredLayers};
use crate::options::ConvertOptions;
use crate::repository_layers::RepositoryLayers;
use crate::sibling_index::{Sibling, index_with};
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_container_source::{ContainerImage, ImagePlatform, SourceName, open, open_in_store};
use headstart_image::image_site::{ImageSite, MadeImage, PublishedImage};
use headstart_image::manifest::{BlobRef, MANIFEST_OCI, NewImage};
use headstart_image::progress::Progress;
use headstart_image::reference::{Location, Reference, Selector, Tag};
use headstart_image::store_access::StoreAccess;
use headstart_image::transfer::PublishedAs;
use headstart_store::Store;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

/// The form in which a converted image is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertedForm {
    /// An image of its own, with this name.
    Image(Reference),
    /// An artifact that belongs to the original, in the original's store.
    Referrer,
    /// An entry of an index that lists the original, too, in the original's store under this tag.
    Index(Tag),
}

/// A conversion that was asked for.
#[derive(Clone, Copy)]
pub struct ConvertRequest<'a> {
    /// The image to convert.
    pub source: &'a SourceName,
    /// The platform, if the source has images for several; `None` for Linux on this host's architecture.
    pub platform: Option<&'a ImagePlatform>,
    /// The form in which the new image is published.
    pub form: &'a ConvertedForm,
    /// The store in which layers that were converted before are found and kept; `None` for the one in which the new
    /// image is published.
    pub layer_store: Option<&'a Location>,
    /// The options. That of a layer by itself is not heeded: [`crate::SingleLayers`] makes such disks.
    pub options: &'a ConvertOptions,
}

/// An image that was converted and published.
#[derive(Clone, Debug)]
pub struct ConvertReport {
    /// The store that it is in.
    pub location: Location,
    /// The digest of its manifest.
    pub digest: Digest,
    /// The digest of the manifest that its tag named before; `None` if the tag is new or named the same manifest, or if
    /// it has none.
    pub was: Option<Digest>,
    /// The image that it was converted from.
    pub original: BlobRef,
    /// The platform of the image, if its config states one.
    pub platform: Option<ImagePlatform>,
    /// The size of the disk in bytes.
    pub virtual_size: u64,
    /// The layers, lowest first.
    pub layers: Vec<LayerOutcome>,
}

/// The image that is converted, and the store of the new one, unless that is a directory, which is made later.
pub(crate) type OpenedSource = (ContainerImage, Option<Arc<dyn Store>>);

impl ConvertRequest<'_> {
    /// Converts the image, and publishes the result. Blocks until it is there.
    ///
    /// # Errors
    /// As [`open()`] for the source and [`stage_image`]; [`ErrorKind::Invalid`] if the form needs a source in a store
    /// and the source is an archive; [`ErrorKind::Conflict`] if the source's tag moved meanwhile; errors of the stores.
    /// Nothing is published then, but a store that is not a directory may keep blobs of new layers, and notes by which
    /// the next conversion finds these.
    pub fn make(self, stores: StoreAccess<'_>, progress: &dyn Progress) -> Result<ConvertReport> {
        let (opened, site) = self.open_with_site(&self.location()?, stores)?;
        let options = ConvertOptions { alone: false, ..self.options.clone() };
        ConvertRequest { options: &options, ..self }.publish(opened, site, stores, progress)
    }

    /// Converts an image that is open.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub(crate) fn publish(
        self,
        (image, opened): OpenedSource,
        site: ImageSite,
        stores: StoreAccess<'_>,
        progress: &dyn Progress,
    ) -> Result<ConvertReport> {
        let location = self.location()?;
        let known = self.known(&site, &location, opened, stores)?;
        let staged = stage_image(&image, site.staging(), self.options, &*known.layers, progress)?;
        let StagedConversion { image: mut made, layers } = staged;
        let original = BlobRef {
            media_type: image.manifest_media_type.clone(),
            digest: image.manifest_digest,
            size: image.manifest.len() as u64,
        };
        made.belongs_to = (!matches!(self.form, ConvertedForm::Image(_))).then(|| original.clone());
        let index = self.index(&image, &original, &made, stores)?.map(Into::into);
        let publication = match (self.form, &index) {
            (ConvertedForm::Image(target), _) => PublishedAs::Tag(target.tag()?),
            (ConvertedForm::Index(tag), Some(index)) => PublishedAs::Index { tag, index },
            (ConvertedForm::Referrer | ConvertedForm::Index(_), _) => PublishedAs::Referrer(&original.digest),
        };
        let new = layers.iter().filter(|outcome| outcome.converted.is_some());
        let new: Vec<_> = new.map(|outcome| (outcome.key, outcome.layer.clone())).collect();
        let mut publishing = MadeImage::new(&made, publication);
        if !new.is_empty() {
            publishing.noted = known.layers.remember(&new);
        }
        let (to, rest) = (|| Ok(known.target), || Ok(known.store));
        let PublishedImage { image: published, was, .. } =
            site.publish(publishing, to, rest, stores, progress)?;
        Ok(ConvertReport {
            location,
            digest: published.digest,
            was,
            original,
            platform: image.platform,
            virtual_size: made.virtual_size,
            layers,
        })
    }

    /// The store in which the new image is published.
    fn location(&self) -> Result<Location> {
        if let ConvertedForm::Image(target) = self.form {
            return Ok(target.location.clone());
        }
        let (_, location) = self.stored_source()?;
        Ok(location.clone())
    }

    /// The source, if it is in a store.
    fn stored_source(&self) -> Result<(&Selector, &Location)> {
        match self.source {
            SourceName::Store(Reference { selector, location }) => Ok((selector, location)),
            archive => Err(Error::invalid("is an archive, beside which nothing can be published")
                .about(archive)
                .remedy("name the image to make instead")),
        }
    }

    /// Opens the image and the store as [`open_both`] does, and makes the place of the new blobs. Where that is
    /// no directory that stays, both are done at once: one waits for the network, the other for the disk.
    fn open_with_site(
        &self,
        location: &Location,
        stores: StoreAccess<'_>,
    ) -> Result<(OpenedSource, ImageSite)> {
        if !location.is_remote() {
            return Ok((open_both(self.source, self.platform, location, stores)?, ImageSite::new(location)?));
        }
        thread::scope(|scope| {
            let site = scope.spawn(|| ImageSite::new(location));
            let opened = open_both(self.source, self.platform, location, stores)?;
            Ok((opened, site.join().unwrap_or_else(|panic| resume_unwind(panic))?))
        })
    }

    /// The layers that were converted before. `opened` is the target if it is open.
    fn known(
        &self,
        site: &ImageSite,
        location: &Location,
        opened: Option<Arc<dyn Store>>,
        stores: StoreAccess<'_>,
    ) -> Result<Known> {
        let target = opened.map_or_else(|| stores.target(location), Ok)?;
        if let Some(directory) = site.directory() {
            if let Some(other) = self.layer_store {
                return Err(Error::invalid("keeps no layers for an image in a directory")
                    .about(other)
                    .remedy("leave it out: a directory knows the layers that were converted into it"));
            }
            let layers = Box::new(StoredLayers::new(directory.clone()));
            return Ok(Known { layers, store: Arc::clone(&target), target });
        }
        let of = self.layer_store.filter(|of| *of != location);
        let store = match of {
            Some(of) => stores.store(of)?,
            None => Arc::clone(&target),
        };
        let (retry, runtime) = (stores.settings.retry, stores.runtime.clone());
        let other = of.is_some().then(|| Arc::clone(&target));
        let layers = RepositoryLayers::new(Arc::clone(&store), other, retry, runtime);
        Ok(Known { layers: Box::new(layers), store, target })
    }

    /// The index that lists the original and the new image. `None` if it is published in another form.
    fn index(
        &self,
        image: &ContainerImage,
        original: &BlobRef,
        made: &NewImage,
        stores: StoreAccess<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let ConvertedForm::Index(_) = self.form else { return Ok(None) };
        let (selector, location) = self.stored_source()?;
        let store = stores.store(location)?;
        let (digest, document) = stores.runtime.block_on(store.document(selector))?;
        let is_manifest = Digest::of(&image.manifest) == digest;
        let lists_it = || String::from_utf8_lossy(&document).contains(&original.digest.to_string());
        if !is_manifest && !lists_it() {
            let moved = Error::new(ErrorKind::Conflict, "its tag was moved while it was converted");
            return Err(moved.about(self.source).remedy("run it again"));
        }
        let manifest = made.documents()?.manifest;
        let converted = BlobRef {
            media_type: MANIFEST_OCI.to_owned(),
            digest: Digest::of(&manifest),
            size: manifest.len() as u64,
        };
        let sibling = Sibling { manifest: &converted, artifact_type: made.artifact_type() };
        index_with(&document, original, &sibling, image.platform.as_ref()).map(Some)
    }
}

/// Opens the image `source`, and the store at `location`, in which the new image is published. The store is left for
/// later if it is a directory, which is made first.
pub(crate) fn open_both(
    source: &SourceName,
    platform: Option<&ImagePlatform>,
    location: &Location,
    stores: StoreAccess<'_>,
) -> Result<OpenedSource> {
    let StoreAccess { settings, runtime } = stores;
    let open = || open(source, platform, settings, runtime);
    if !location.is_remote() {
        return Ok((open()?, None));
    }
    match source {
        // Its connections and tokens serve for both.
        SourceName::Store(source) if source.location == *location && settings.mirrors.is_empty() => {
            let store = headstart_store::open(location, settings)?;
            let (selector, of_source) = (&source.selector, Arc::clone(&store));
            let image = open_in_store(of_source, selector, platform, settings.retry, runtime)?;
            Ok((image, Some(store)))
        }
        _ => thread::scope(|scope| {
            let target = scope.spawn(|| stores.target(location));
            let image = open()?;
            let target = target.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            Ok((image, Some(target)))
        }),
    }
}

/// Layers that were converted before.
struct Known {
    layers: Box<dyn KnownLayers>,
    /// The store that has their blobs.
    store: Arc<dyn Store>,
    /// The store that the new image is published in.
    target: Arc<dyn Store>,
}
