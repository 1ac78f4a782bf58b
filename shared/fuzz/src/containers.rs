//! Container images of other tools: their documents, and archives of `docker save` and of OCI layouts.

use crate::READ_BUDGET;
use headstart_block::{ReadAt, Result};
use headstart_container_source::{
    ArchiveChoice, ContainerImage, ImageDocument, open_docker_archive, open_oci_archive,
};
use std::io::{self, Read};
use std::sync::Arc;

/// An archive of images, as one of `docker save` and as one of an OCI layout. The layers are read to their ends.
///
/// # Errors
/// Fails if the input is neither of the two.
pub fn image_archive(input: &[u8]) -> Result<()> {
    let source: Arc<dyn ReadAt> = Arc::new(input.to_vec());
    let first = ArchiveChoice::Number(0);
    let oci = open_oci_archive(Arc::clone(&source), "archive", &first, None).and_then(|image| read(&image));
    let docker = open_docker_archive(source, "archive", &first, None).and_then(|image| read(&image));
    oci.or(docker)
}

fn read(image: &ContainerImage) -> Result<()> {
    for layer in image.layers.iter().take(16) {
        io::copy(&mut layer.open()?.take(READ_BUDGET), &mut io::sink())?;
    }
    Ok(())
}

/// A manifest or an index of images.
///
/// # Errors
/// Fails if the input is neither of the two.
pub fn image_document(input: &[u8]) -> Result<()> {
    match ImageDocument::parse(input)? {
        ImageDocument::Manifest(manifest) => {
            let _ = (manifest.layers.len(), manifest.annotations.len());
        }
        ImageDocument::Index(index) => {
            let _ = index.entries().filter_map(|entry| entry.platform("os")).count();
        }
    }
    Ok(())
}
