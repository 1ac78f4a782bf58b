//! All forms of a container's image: the disks that it was converted to, beside it.
//!
//! Stores have no dates of artifacts, and conversions write none, since the same image gives the same bytes. The order
//! is what there is: the forms are listed as a search looks at them ([`disk_form`](crate::disk_form)), so that of two
//! of a kind the newer one comes first.

use crate::disk_form::{FORMS, form_in, newest};
use crate::manifest::Manifest;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::{Selector, Store};

/// The place in which a form was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormPlace {
    /// The name leads to it, and not to the container's image.
    Named,
    /// In the index that the name leads to, beside the container's image.
    Index,
    /// Among the artifacts that belong to the container's image.
    Referrer,
}

/// A disk that a container's image was converted to.
#[derive(Debug)]
pub struct ImageForm {
    /// The digest of its manifest.
    pub digest: Digest,
    /// Its manifest, or the error for which it cannot be used: it is damaged, or gone.
    pub manifest: Result<Manifest>,
    /// The place in which it was found.
    pub place: FormPlace,
}

/// The forms of a container's image.
#[derive(Debug)]
pub struct ImageForms {
    /// The digest of the manifest of the container's image.
    pub original: Digest,
    /// The forms, in the order of a search.
    pub forms: Vec<ImageForm>,
}

impl ImageForms {
    /// Returns the form that hosts take for what is only read, and the one that they take for what is written to. A
    /// form that can only be read is none for writing, though `attach --writable` takes it with a warning where there
    /// is no other.
    #[must_use]
    pub fn taken(&self) -> [Option<Digest>; 2] {
        // The name of a form leads to no other.
        let is_named = self.forms.first().is_some_and(|form| form.place == FormPlace::Named);
        let looked_at = if is_named { &self.forms[..1] } else { &self.forms[..] };
        let mut usable =
            looked_at.iter().filter_map(|form| Some((form.digest, form.manifest.as_ref().ok()?)));
        let first = usable.clone().next();
        let writable = usable.find(|(_, manifest)| !manifest.is_only_read());
        [first, writable].map(|taken| taken.map(|(digest, _)| digest))
    }
}

/// Finds all forms of the container's image that `selector` leads to, or of which the disk that it leads to was made.
/// `None` if that disk was made of no container's image.
///
/// # Errors
/// Those of [`Store::manifest`], [`Store::document`] and [`Store::referrers`]. A form that is damaged or gone is no
/// error.
pub async fn forms(store: &dyn Store, selector: &Selector) -> Result<Option<ImageForms>> {
    let (named, bytes) = store.manifest(selector).await?;
    let manifest = Manifest::parse(&bytes)?;
    let origin = manifest.converted_from().map(|origin| origin.manifest);
    let mut forms = Vec::new();
    let original = match origin {
        Some(original) => {
            let is_in_index = store.document(selector).await?.0 != named;
            let place = if is_in_index { FormPlace::Index } else { FormPlace::Named };
            forms.push(ImageForm { digest: named, manifest: Ok(manifest), place });
            original
        }
        None if manifest.is_disk() => return Ok(None),
        None => named,
    };
    for listed in store.referrers_of_types(&original, &FORMS).await? {
        for digest in newest(&listed) {
            if forms.iter().any(|known| known.digest == digest) {
                continue;
            }
            let manifest = match store.manifest(&Selector::Digest(digest)).await {
                Ok((_, bytes)) => form_in(&bytes, &original)
                    .ok_or_else(|| Error::corrupt("is listed as a disk of this image, and is none")),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => Err(error),
                Err(error) => return Err(error),
            };
            forms.push(ImageForm { digest, manifest, place: FormPlace::Referrer });
        }
    }
    Ok(Some(ImageForms { original, forms }))
}
