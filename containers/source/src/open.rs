//! From a name to an image.

use crate::blob_place::{BlobPlace, StorePlace};
use crate::choose::{Wanted, follow};
use crate::docker_archive;
use crate::image::{ContainerImage, assemble};
use crate::name::{ArchiveChoice, SourceName};
use crate::oci_archive::OciArchive;
use crate::platform::ImagePlatform;
use crate::verified::named;
use headstart_block::{FileSource, ReadAt, Result};
use headstart_store::{RetrySettings, Selector, Store, StoreSettings};
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Finds the image `name`, and reads its manifest and its config. `platform` chooses one of several images, and then no
/// image for another platform will do; `None` prefers Linux on this host's architecture. Requests run on `runtime`, and
/// the caller must not be on one of its threads.
///
/// # Errors
/// [`headstart_block::ErrorKind::NotFound`] if there is no such image, or none for the platform;
/// [`headstart_block::ErrorKind::Corrupt`] if a document or an archive is damaged;
/// [`headstart_block::ErrorKind::Unsupported`] if it is something other than a container image, or exceeds a limit;
/// [`headstart_block::ErrorKind::Invalid`] if an archive has several images and none was named; errors of the store.
pub fn open(
    name: &SourceName,
    platform: Option<&ImagePlatform>,
    settings: &StoreSettings,
    runtime: &Handle,
) -> Result<ContainerImage> {
    match name {
        SourceName::Store(reference) => {
            let store = headstart_store::open(&reference.location, settings)?;
            // A mistyped host or a missing login is reported at once, not after the long deadline of a slow store.
            runtime.block_on(store.check())?;
            open_in_store(store, &reference.selector, platform, settings.retry, runtime)
        }
        SourceName::DockerArchive(image) => {
            open_docker_archive(file(&image.path)?, &name.to_string(), &image.choice, platform)
        }
        SourceName::OciArchive(image) => {
            open_oci_archive(file(&image.path)?, &name.to_string(), &image.choice, platform)
        }
    }
}

fn file(path: &Path) -> Result<Arc<dyn ReadAt>> {
    Ok(Arc::new(FileSource::open(path)?))
}

/// Works as [`open`], for an image of a store that is open already. Reads of layers are retried according to `retry`.
///
/// # Errors
/// As [`open`].
pub fn open_in_store(
    store: Arc<dyn Store>,
    selector: &Selector,
    platform: Option<&ImagePlatform>,
    retry: RetrySettings,
    runtime: &Handle,
) -> Result<ContainerImage> {
    let name = format!("image {}{selector}", store.name());
    let (digest, bytes) = runtime.block_on(store.document(selector))?;
    let place: Arc<dyn BlobPlace> = Arc::new(StorePlace { store, retry, runtime: runtime.clone() });
    let wanted = Wanted::new(platform);
    let found = follow(&*place, digest, bytes.into(), &wanted).map_err(|e| e.about(&name))?;
    assemble(&place, &name, found, &wanted).map_err(|e| e.about(&name))
}

/// Works as [`open`], for an archive of `docker save` in `source`; `name` is for messages.
///
/// # Errors
/// As [`open`].
pub fn open_docker_archive(
    source: Arc<dyn ReadAt>,
    name: &str,
    choice: &ArchiveChoice,
    platform: Option<&ImagePlatform>,
) -> Result<ContainerImage> {
    let find = || docker_archive::find(Arc::new(OciArchive::scan(source)?), choice);
    let (found, place) = find().map_err(|e| named(e, name))?;
    assemble(&place, name, found, &Wanted::new(platform)).map_err(|e| e.about(name))
}

/// Works as [`open`], for a tar archive of an OCI layout in `source`; `name` is for messages.
///
/// # Errors
/// As [`open`].
pub fn open_oci_archive(
    source: Arc<dyn ReadAt>,
    name: &str,
    choice: &ArchiveChoice,
    platform: Option<&ImagePlatform>,
) -> Result<ContainerImage> {
    let wanted = Wanted::new(platform);
    let find = || {
        let archive = Arc::new(OciArchive::scan(source)?);
        let found = archive.find(choice, &wanted)?;
        let place: Arc<dyn BlobPlace> = archive;
        Ok((found, place))
    };
    let (found, place) = find().map_err(|e| named(e, name))?;
    assemble(&place, name, found, &wanted).map_err(|e| e.about(name))
}
