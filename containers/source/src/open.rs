//! From a name to an image.

use crate::blob_place::{BlobPlace, StorePlace};
use crate::choose::{Wanted, follow};
use crate::docker_archive;
use crate::image::{ContainerImage, assemble};
use crate::name::{ArchiveChoice, SourceName};
use crate::oci_archive::OciArchive;
use crate::platform::ImagePlatform;
use crate::verified::named;
use headstart_block::{Digest, FileSource, ReadAt, Result};
use headstart_store::{RetrySettings, Selector, Store, StoreSettings};
use std::path::Path;
use std::pin::pin;
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

/// The document that a name leads to. The store is checked beside it: a mistyped host or a missing login is reported at
/// once, not after the long deadline of a slow store.
async fn checked_document(store: &Arc<dyn Store>, selector: &Selector) -> Result<(Digest, Vec<u8>)> {
    let checked = Arc::clone(store);
    // A task, which goes on when the document has come: the store learns from the answers.
    let task = tokio::spawn(async move { checked.check().await });
    let mut check = pin!(async { task.await.unwrap_or(Ok(())) });
    let mut document = pin!(store.document(selector));
    let mut is_checked = false;
    let found = loop {
        tokio::select! {
            biased;
            found = &mut document => break found,
            checked = &mut check, if !is_checked => {
                checked?;
                is_checked = true;
            }
        }
    };
    match found {
        // The reason, perhaps.
        Err(error) if !is_checked => check.await.and(Err(error)),
        found => found.map(|(digest, bytes)| (digest, bytes.into())),
    }
}

/// Works as [`open`], for an image of a store that is open already, which is checked. Reads of layers are retried
/// according to `retry`.
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
    let document = runtime.block_on(checked_document(&store, selector))?;
    open_known(store, selector, document, platform, retry, runtime)
}

/// Works as [`open_in_store`], for an image whose document is known: the manifest or the index that `selector` leads
/// to, with its digest.
///
/// # Errors
/// As [`open`].
pub fn open_known(
    store: Arc<dyn Store>,
    selector: &Selector,
    (digest, bytes): (Digest, Vec<u8>),
    platform: Option<&ImagePlatform>,
    retry: RetrySettings,
    runtime: &Handle,
) -> Result<ContainerImage> {
    let name = format!("image {}{selector}", store.name());
    let place: Arc<dyn BlobPlace> = Arc::new(StorePlace { store, retry, runtime: runtime.clone() });
    let wanted = Wanted::new(platform);
    let found = follow(&*place, digest, bytes, &wanted).map_err(|e| e.about(&name))?;
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
