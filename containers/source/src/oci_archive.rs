//! OCI layouts as tar archives: `oci-layout`, `index.json` and `blobs/sha256/HEX`.

use crate::archive::ArchiveFile;
use crate::blob_place::{BlobPlace, check_document, missing};
use crate::choose::{FoundManifest, Wanted, best, follow, is_image};
use crate::docker_name::is_same_name;
use crate::name::ArchiveChoice;
use headstart_block::{Digest, Error, ErrorKind, ReadAt, Result};
use headstart_store::MAX_MANIFEST_SIZE;
use headstart_store::layout::{
    INDEX_FILE, LAYOUT_FILE, LayoutEntry, LayoutIndex, blob_name, check_layout, is_referrers_tag,
};
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

/// The annotation in which Docker and containerd keep the whole name of an image.
const WHOLE_NAME: &str = "io.containerd.image.name";

/// The most names that a message lists.
const LISTED: usize = 16;

/// An OCI layout in an archive.
pub(crate) struct OciArchive {
    archive: ArchiveFile,
}

impl OciArchive {
    /// Finds the members of an archive. Nothing is checked.
    pub(crate) fn scan(source: Arc<dyn ReadAt>) -> Result<Self> {
        Ok(Self { archive: ArchiveFile::scan(source)? })
    }

    /// The archive.
    pub(crate) fn archive(&self) -> &ArchiveFile {
        &self.archive
    }

    /// `true` if the archive claims to be an OCI layout.
    pub(crate) fn is_layout(&self) -> bool {
        self.archive.has(LAYOUT_FILE) && self.archive.has(INDEX_FILE)
    }

    /// The index of the layout.
    pub(crate) fn index(&self) -> Result<LayoutIndex> {
        let layout = self.archive.small_file(LAYOUT_FILE, 4096).map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                e.remedy("it is no OCI layout; an archive of `docker save` is named docker-archive:PATH")
            }
            _ => e,
        })?;
        check_layout(&layout)?;
        LayoutIndex::parse(&self.archive.small_file(INDEX_FILE, MAX_MANIFEST_SIZE)?)
    }

    /// The manifest of the image that `choice` and `wanted` select.
    pub(crate) fn find(&self, choice: &ArchiveChoice, wanted: &Wanted) -> Result<FoundManifest> {
        let index = self.index()?;
        let images: Vec<_> = index.entries().filter(is_named_image).collect();
        let chosen = match choice {
            ArchiveChoice::Only => only(images)?,
            ArchiveChoice::Number(number) => match images.get(*number) {
                Some(entry) => vec![*entry],
                None => return Err(no_number(*number, images.len())),
            },
            ArchiveChoice::Name(name) => {
                let names = names(&images);
                let named: Vec<_> = images.into_iter().filter(|entry| has_name(entry, name)).collect();
                if named.is_empty() {
                    return Err(no_name(name, &names));
                }
                named
            }
        };
        // The entry was chosen already; its index below may have more platforms.
        let digest = match chosen.as_slice() {
            [only] => {
                only.digest.ok_or_else(|| Error::unsupported("has an image without a sha256 digest"))?
            }
            _ => best(&chosen, wanted)?,
        };
        follow(self, digest, self.document(&digest)?, wanted)
    }
}

impl BlobPlace for OciArchive {
    fn document(&self, digest: &Digest) -> Result<Vec<u8>> {
        let read = self.archive.small_file(&blob_name(digest), MAX_MANIFEST_SIZE);
        let bytes = read.map_err(|e| absent(e, digest))?;
        check_document(digest, &bytes)?;
        Ok(bytes)
    }

    fn stream(&self, digest: &Digest, size: u64) -> Result<Box<dyn Read + Send>> {
        let content = self.archive.file(&blob_name(digest)).map_err(|e| absent(e, digest))?;
        if content.len() != size {
            let cause = format!("has {} bytes, not {size}", content.len());
            return Err(Error::corrupt(cause).about(format!("blob {digest}")));
        }
        Ok(Box::new(self.archive.reader(content)))
    }
}

fn absent(error: Error, digest: &Digest) -> Error {
    if error.kind() == ErrorKind::NotFound { missing(digest) } else { error }
}

/// `true` if an entry of the top index is an image, and not the list of an image's artifacts.
fn is_named_image(entry: &LayoutEntry<'_>) -> bool {
    is_image(entry) && !entry.tag.is_some_and(is_referrers_tag)
}

fn has_name(entry: &LayoutEntry<'_>, name: &str) -> bool {
    let whole = entry.annotation(WHOLE_NAME);
    entry.tag == Some(name) || [entry.tag, whole].into_iter().flatten().any(|own| is_same_name(own, name))
}

/// The names of images as a message lists them.
fn names(images: &[LayoutEntry<'_>]) -> String {
    let name = |entry: &LayoutEntry<'_>| entry.annotation(WHOLE_NAME).or(entry.tag).map(str::to_owned);
    listed(images.iter().filter_map(name))
}

/// Names as a message lists them; empty if there are none.
pub(crate) fn listed(names: impl Iterator<Item = String>) -> String {
    let names: BTreeSet<_> = names.collect();
    let shown = |name: &String| name.chars().take(100).collect::<String>().escape_debug().to_string();
    let mut list: Vec<_> = names.iter().take(LISTED).map(shown).collect();
    if names.len() > LISTED {
        list.push(format!("{} more", names.len() - LISTED));
    }
    list.join(", ")
}

/// The entries of the only image: several if they are for several platforms.
fn only<'a>(images: Vec<LayoutEntry<'a>>) -> Result<Vec<LayoutEntry<'a>>> {
    let distinct: BTreeSet<_> =
        images.iter().map(|entry| (entry.annotation(WHOLE_NAME), entry.tag)).collect();
    let of_platforms = images.iter().all(|entry| entry.platform("architecture").is_some());
    match (images.len(), distinct.len()) {
        (0, _) => Err(Error::new(ErrorKind::NotFound, "has no image")),
        (1, _) => Ok(images),
        (_, 1) if of_platforms => Ok(images),
        (count, _) => Err(several(count, &names(&images))),
    }
}

/// The error of an archive of several images, of which none was named.
pub(crate) fn several(count: usize, names: &str) -> Error {
    let names = if names.is_empty() { String::new() } else { format!(": {names}") };
    Error::invalid(format!("has {count} images{names}"))
        .remedy("name one of them: PATH:NAME, or PATH:@0 for the first")
}

/// The error of an archive without an image of this number.
pub(crate) fn no_number(number: usize, count: usize) -> Error {
    let cause = format!("has no image @{number}: there are {count}, counted from @0");
    Error::new(ErrorKind::NotFound, cause)
}

/// The error of an archive without an image of this name.
pub(crate) fn no_name(name: &str, names: &str) -> Error {
    let names =
        if names.is_empty() { "its images have no names".to_owned() } else { format!("there are {names}") };
    Error::new(ErrorKind::NotFound, format!("has no image `{}`: {names}", name.escape_debug()))
}

#[cfg(test)]
mod tests;
