//! The image store: an OCI image layout directory that several processes use at once.
//!
//! ```text
//! <store>/oci-layout               says that this is an OCI image layout
//! <store>/index.json               the images: manifests with their tags
//! <store>/blobs/sha256/<hex>       blobs by digest: manifests, configs, layers, hash trees
//! <store>/.headstart/lock          locked while the index or the set of blobs changes
//! <store>/.headstart/staging/<x>/  what one writer has not published yet; a living writer locks `lease` in it
//! <store>/.headstart/leases/<id>   an image that a disk needs, whatever becomes of its tags
//! <store>/.headstart/untagged/<hex> an image that lost its last name, and when
//! <store>/.headstart/converted/<hex> the layer that a conversion of a container's layer gave, by its key
//! ```
//!
//! Other tools (skopeo, oras) read and write the same directories: fields that they put in the index and that are
//! unknown here survive, `.headstart` means nothing to them.
//!
//! # Invariants
//!
//! 1. A blob in `blobs/` is complete and durable: it was staged and synced, then renamed.
//! 2. All that a manifest in the index refers to was there when it was put in the index, and stays as long as the
//!    manifest does: only [`ImageStore::prune`] deletes blobs, and only those that neither the index leads to nor a
//!    lease names ([`ImageStore::hold`]).
//! 3. `index.json` is replaced by rename, after the blobs' directory is synced. A crash at any moment leaves
//!    the old index or the new one, and at worst blobs and staging directories that the next prune removes.
//! 4. Putting a manifest in the index, deleting blobs and replacing the index are done under the store's lock, which is
//!    only ever held for short, bounded work. This lock and the lock on the file `lease` of a staging directory are
//!    `flock`s: the kernel drops them when their owner dies, so a dead process never holds a lock. (The leases of
//!    images are files that stay; [`Standing`](headstart_store::layout::Standing) says which of them count.)
//!
//! The blobs of a writer ([`Staging`]) are in its staging directory until it publishes them. A prune never touches the
//! staging directory of a writer that is alive, so a long import and a prune do not disturb each other. A blob that the
//! writer means to share (the layers of its base) may be gone when it publishes; this is found under the lock and
//! reported as a conflict, before anything is changed.
//!
//! Readers take no lock. If the image of a reader is removed and pruned, files that are open already stay readable, and
//! opening another one gives a clear "not found". Disks leave leases, so this does not happen to them.

mod conversions;
mod leases;
mod prune;
mod removal;
mod staging;
mod writeback;

#[cfg(test)]
mod tests;

pub use headstart_store::layout::UntaggedImage;
pub use leases::{HeldImage, HoldingDirectory, attach_id, by_digest, lease_of_directory, seen, unprotected};
pub use prune::{PruneOptions, PruneReport};
pub use removal::Removal;
pub use staging::{BlobWriter, CopyWriter, StagedBlob, Staging};
pub use writeback::Writeback;

use crate::disk_form::{FORMS, FormSearch, FormWish, TakenForm, form_in, may_have_disk_form, other_forms_of};
use crate::manifest::{Config, INDEX_DOCKER, INDEX_OCI, ImageLayer, MANIFEST_OCI, Manifest, Tree};
use crate::reference::{Location, Reference, Selector, Tag};
use headstart_block::guarded::shell_word;
use headstart_block::{Digest, Error, ErrorKind, FileSource, ReadAt, Result};
use headstart_store::layout::{LayoutDir, LayoutEntry, LayoutIndex, MAX_DEPTH, is_referrers_tag};
use std::path::{Path, PathBuf};

/// An image that was found in a store.
#[derive(Clone, Debug)]
pub struct Image {
    /// The digest of the image's manifest, which is the permanent name of the image.
    pub digest: Digest,
    /// The image's manifest, parsed.
    pub manifest: Manifest,
}

/// One entry of the index of a store, which lists the images and their tags.
#[derive(Debug)]
pub struct ListEntry {
    /// The tag of the entry; `None` if the image has no tag.
    pub tag: Option<String>,
    /// The digest of the image's manifest, or of an index of manifests for several platforms. `None` for an
    /// entry of a remote store that is not an image that headstart can use.
    pub digest: Option<Digest>,
    /// The image, or the error that explains why it cannot be used.
    pub image: Result<Image>,
    /// The container's image to which the tag leads, if `image` is the disk that was made of it and is beside it.
    pub beside: Option<Digest>,
}

/// An image store in a local directory, in the OCI image layout. Several processes may use it at once.
#[derive(Clone, Debug)]
pub struct ImageStore {
    layout: LayoutDir,
}

impl ImageStore {
    /// Opens the store in the directory `root`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the directory is not a store; [`ErrorKind::Unsupported`] if its layout is of another
    /// version; [`ErrorKind::Corrupt`] if its `oci-layout` file is damaged.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self { layout: LayoutDir::open(root)? })
    }

    /// Opens the store in the directory `root`, or creates one if the directory does not exist or is empty.
    ///
    /// # Errors
    /// As [`ImageStore::open`]; [`ErrorKind::Invalid`] if the directory holds something else.
    pub fn create_or_open(root: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self { layout: LayoutDir::create_or_open(root)? })
    }

    /// Opens the store that `reference` names, which must be a local directory, and finds the image in it.
    ///
    /// # Errors
    /// As [`ImageStore::open`] and [`ImageStore::resolve`]; [`ErrorKind::Unsupported`] if the store is remote.
    pub fn open_image(reference: &Reference) -> Result<(Self, Image)> {
        let store = Self::open(reference.directory()?)?;
        let image = store.resolve(&reference.selector)?;
        Ok((store, image))
    }

    /// Returns the path of the store's directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.layout.root()
    }

    /// The name of the store, for commands.
    fn location(&self) -> String {
        Location::Directory(self.root().to_owned()).to_string()
    }

    /// The remedy of a tag that is not there.
    fn lists(&self) -> String {
        format!("`headstart image list {}` shows those that there are", shell_word(&self.location()))
    }

    /// Finds an image by its tag or digest. If the entry is an index of several platforms' images, the one
    /// for Linux on amd64 is returned.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such image; [`ErrorKind::Corrupt`] if its manifest is damaged;
    /// [`ErrorKind::Unsupported`] if the entry is not an image, or is an index without one for Linux on amd64.
    pub fn resolve(&self, selector: &Selector) -> Result<Image> {
        self.wanted_form(selector, FormWish::Newest).map(|(image, _)| image)
    }

    /// Finds an image as [`ImageStore::resolve`] does; of several forms of a container's image, the one that is wanted.
    /// With it comes the digest of a newer form that was passed over, if there is one.
    ///
    /// # Errors
    /// As [`ImageStore::resolve`].
    pub fn wanted_form(&self, selector: &Selector, wish: FormWish) -> Result<(Image, Option<Digest>)> {
        let name = || format!("image {}", self.name(selector));
        let image = match selector {
            Selector::Digest(digest) => self.image(*digest, 0).map(|image| (image, None)),
            Selector::Tag(tag) => {
                let index = self.layout.index()?;
                let entry = index.find(tag).ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, "there is no image of this tag")
                        .remedy(self.lists())
                        .about(name())
                })?;
                entry
                    .digest
                    .ok_or_else(|| Error::unsupported("its digest is not a sha256"))
                    .and_then(|digest| self.disk_form((selector, digest), wish, self.image(digest, 0)?))
            }
        };
        image.map_err(|e| e.about(name()))
    }

    /// Returns the digest that `selector` stands for, which is that of a manifest or of an index of manifests.
    /// A digest is returned without looking it up. The document itself is not read, and may be damaged or
    /// missing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no image has the tag, or if the digest of its entry is not a sha256 digest; errors of
    /// reading the index.
    pub fn digest(&self, selector: &Selector) -> Result<Digest> {
        match selector {
            Selector::Digest(digest) => Ok(*digest),
            Selector::Tag(tag) => {
                let index = self.layout.index()?;
                let digest = index.find(tag).and_then(|entry| entry.digest);
                digest.ok_or_else(|| {
                    Error::new(ErrorKind::NotFound, "there is no image of this tag")
                        .remedy(self.lists())
                        .about(format!("image {}", self.name(selector)))
                })
            }
        }
    }

    /// The entry of the disk that a container's image was converted to, if there is one; otherwise the entry itself.
    fn with_disk(&self, named: ListEntry) -> ListEntry {
        let (Ok(image), Some(tag)) = (&named.image, named.tag.as_deref().and_then(|tag| tag.parse().ok()))
        else {
            return named;
        };
        let selector = Selector::Tag(tag);
        match self.disk_form((&selector, image.digest), FormWish::Newest, image.clone()) {
            Ok((disk, _)) if disk.digest != image.digest => {
                ListEntry { digest: Some(disk.digest), beside: Some(image.digest), image: Ok(disk), ..named }
            }
            _ => named,
        }
    }

    /// The disk that a container's image was converted to, if there is one; otherwise the image itself. `named` is the
    /// document that the selector leads to, the manifest of `image` or an index that has it. With the image comes the
    /// digest of a newer form that was passed over.
    fn disk_form(
        &self,
        (selector, named): (&Selector, Digest),
        wish: FormWish,
        image: Image,
    ) -> Result<(Image, Option<Digest>)> {
        let mut search = FormSearch::new(wish);
        let original = if may_have_disk_form(selector, Some(&image.manifest)) {
            image.digest
        } else if let Some(original) = other_forms_of(selector, wish, Some(&image.manifest))
            && named != image.digest
        {
            search.look(Ok(Some((image.clone(), true))))?;
            original
        } else {
            return Ok((image, None));
        };
        for kind in FORMS {
            search.list(&self.layout.referrers(&original, kind)?);
        }
        while let Some(form) = search.next_form() {
            search.look(self.read_document(&form).map(|bytes| {
                let manifest = form_in(&bytes, &original)?;
                let is_only_read = manifest.is_only_read();
                Some((Image { digest: form, manifest }, is_only_read))
            }))?;
        }
        Ok(match search.end()? {
            Some(TakenForm { form, passed_over }) => (form, passed_over.map(|image| image.digest)),
            None => (image, None),
        })
    }

    /// The image whose manifest, or index of manifests, is `digest`.
    fn image(&self, digest: Digest, depth: usize) -> Result<Image> {
        let bytes = self.read_document(&digest)?;
        let index = LayoutIndex::parse(&bytes).ok().filter(LayoutIndex::is_index);
        let Some(index) = index else {
            return Ok(Image { digest, manifest: Manifest::parse(&bytes)? });
        };
        let ours = index.for_this_platform().and_then(|entry| entry.digest);
        let ours =
            ours.ok_or_else(|| Error::unsupported("is an index without an image for Linux on amd64"))?;
        if depth == MAX_DEPTH {
            return Err(Error::corrupt("is an index of indexes without end"));
        }
        self.image(ours, depth + 1)
    }

    /// Returns the entries of the store's index in their order. Left out are the lists of artifacts that belong to
    /// images, and entries of other tools whose digests are not sha256 digests.
    ///
    /// # Errors
    /// Errors of reading the index; [`ErrorKind::Corrupt`] if an entry is damaged. An image that cannot be used is not
    /// an error of this call; its entry holds the error.
    pub fn list(&self) -> Result<Vec<ListEntry>> {
        let index = self.layout.whole_index()?;
        let listed = |entry: LayoutEntry<'_>| {
            let digest = entry.digest?;
            let image = match entry.media_type {
                None | Some(MANIFEST_OCI | crate::manifest::MANIFEST_DOCKER | INDEX_OCI | INDEX_DOCKER) => {
                    self.image(digest, 0)
                }
                Some(other) => {
                    Err(Error::unsupported(format!("is not an image but `{}`", other.escape_debug())))
                }
            };
            let image = image.map_err(|e| e.about(format!("image {}", self.name(&Selector::Digest(digest)))));
            let named =
                ListEntry { tag: entry.tag.map(str::to_owned), digest: Some(digest), image, beside: None };
            Some(self.with_disk(named))
        };
        let images = index.entries().filter(|entry| !entry.tag.is_some_and(is_referrers_tag));
        Ok(images.filter_map(listed).collect())
    }

    /// Reads the config of an image, and checks it against its digest.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if its blob is gone, [`ErrorKind::Corrupt`] if it is damaged.
    pub fn config(&self, manifest: &Manifest) -> Result<Config> {
        let digest = manifest.config.digest;
        Config::parse(&self.read_document(&digest)?).map_err(|e| self.layout.about_blob(e, &digest))
    }

    /// Opens the file of the blob `digest`. Its content is not checked against the digest.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the store does not have the blob; other errors of opening its file.
    pub fn open_blob(&self, digest: &Digest) -> Result<FileSource> {
        self.layout.open_blob(digest)
    }

    /// Opens the file of a layer's blob, and checks that it has the length that the manifest states.
    ///
    /// # Errors
    /// As [`ImageStore::open_blob`]; [`ErrorKind::Corrupt`] if the file is shorter or longer.
    pub fn open_layer(&self, layer: &ImageLayer) -> Result<FileSource> {
        self.open_sized(&layer.blob.digest, layer.blob.size)
    }

    /// Opens the blob with the outboard (inner nodes) of a hash tree, and checks that it has the length in
    /// the manifest.
    ///
    /// # Errors
    /// As [`ImageStore::open_layer`].
    pub fn open_tree(&self, tree: &Tree) -> Result<FileSource> {
        self.open_sized(&tree.digest, tree.size)
    }

    fn open_sized(&self, digest: &Digest, size: u64) -> Result<FileSource> {
        let source = self.open_blob(digest)?;
        if source.len() == size {
            return Ok(source);
        }
        let error = Error::corrupt(format!("has {} bytes, its manifest says {size}", source.len()))
            .remedy("copy or import it again");
        Err(self.layout.about_blob(error, digest))
    }

    /// Reads a manifest, an index or a config, and checks its bytes against `digest`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the blob is not there, [`ErrorKind::Corrupt`] if it does not match its
    /// digest, [`ErrorKind::Unsupported`] if it is larger than [`headstart_store::MAX_MANIFEST_SIZE`].
    pub fn read_document(&self, digest: &Digest) -> Result<Vec<u8>> {
        self.layout.read_document(digest)
    }

    /// Points `tag` at the image whose manifest, or index of manifests, is `digest`. Another image that had
    /// the tag loses it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such image; [`ErrorKind::Conflict`] if another process holds the store's
    /// lock for too long; errors of reading the document and of writing the index.
    pub fn tag(&self, digest: &Digest, tag: &Tag) -> Result<()> {
        let _lock = self.layout.lock()?;
        let bytes = self.read_document(digest)?;
        let document = LayoutIndex::parse(&bytes).map_err(|e| self.layout.about_blob(e, digest))?;
        let default = if document.is_index() { INDEX_OCI } else { MANIFEST_OCI };
        let before = self.layout.index()?;
        let mut index = before.clone();
        index.set(tag, document.media_type().unwrap_or(default), digest, bytes.len() as u64);
        self.layout.replace_index(&before, &index)
    }

    /// Starts a new image, whose files are written out of sight until it is published.
    ///
    /// # Errors
    /// Errors of creating a directory in the store.
    pub fn stage(&self) -> Result<Staging> {
        Staging::new(self.clone())
    }

    fn name(&self, selector: &Selector) -> Reference {
        let location = Location::Directory(self.layout.root().to_owned());
        Reference { location, selector: selector.clone() }
    }
}
