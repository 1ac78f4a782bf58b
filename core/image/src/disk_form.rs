//! The image of a disk that the tag of a container's image leads to.
//!
//! `headstart image convert --referrer` leaves a container's image and its tag as they are, and publishes the disk as
//! an artifact that belongs to the image. Users go on to say the name that they know. So where a tag leads to an image
//! whose layers are no disk's, the artifact is taken, if there is one; an image that has data of its own goes before
//! one in TurboOCI's format. A digest names its image and nothing else.
//!
//! The artifact is not bound to the tag by a digest: everyone that may write to the repository can publish one, just as
//! they can move the tag.
//!
//! # One rule for what is found
//!
//! Several artifacts may belong to one image. Every search looks at them by the same rule, [`FormSearch`]: the first
//! one that fits is taken; one that is damaged, or that a list names and the store has no more, hides no other; if none
//! fits and one was damaged, that is the error, since otherwise the image would seem to have no disk. Any other error,
//! such as that of a store which does not answer, ends the search: the next artifact might be an older one.

use crate::manifest::{BLOB_DIGEST, ImageLayer, Manifest, OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE};
use bytes::Bytes;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::{Referrer, Selector, Store};

/// Artifacts of one kind that are looked at for one image at most: there is one, unless writers raced.
const FORMS_MOST: usize = 4;

/// The kinds of artifacts that are a disk, the better ones first: reading one with data of its own takes less than
/// inflating the original's layers.
pub const FORMS: [&str; 2] = [OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE];

/// The state of a search among the artifacts of an image: see [the module](self).
#[derive(Debug, Default)]
pub struct FormSearch {
    /// The error of the first artifact that is damaged.
    damage: Option<Error>,
}

impl FormSearch {
    /// Takes the outcome of looking at one artifact; `None` in it: the artifact is something else. Returns it if it
    /// fits.
    ///
    /// # Errors
    /// An error that ends the search.
    pub fn look<T>(&mut self, looked: Result<Option<T>>) -> Result<Option<T>> {
        match looked {
            // A list may name what is not there any more.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.damage.get_or_insert(error);
                Ok(None)
            }
            looked => looked,
        }
    }

    /// Ends a search in which nothing fitted.
    ///
    /// # Errors
    /// That of the first artifact that was damaged, if there was one.
    pub fn end<T>(self) -> Result<Option<T>> {
        self.damage.map_or(Ok(None), Err)
    }
}

/// Returns the digest and the bytes of the manifest that `selector` selects, as [`Store::manifest`] does, or of the
/// disk that a container's image of this tag was converted to.
///
/// # Errors
/// Those of [`Store::manifest`] and [`Store::referrers`].
pub async fn disk_manifest(store: &dyn Store, selector: &Selector) -> Result<(Digest, Bytes)> {
    let named = store.manifest(selector).await?;
    Ok(disk_form(store, selector, &named).await?.unwrap_or(named))
}

/// Asks whether `selector` still leads to the manifest `known`, as [`Store::manifest_again`] does, with disks as
/// [`disk_manifest`] finds them. `None` if it does.
///
/// # Errors
/// Those of [`Store::manifest_again`] and [`Store::referrers`].
pub async fn disk_manifest_again(
    store: &dyn Store,
    selector: &Selector,
    known: &Digest,
) -> Result<Option<(Digest, Bytes)>> {
    let Some(named) = store.manifest_again(selector, known).await? else { return Ok(None) };
    let found = disk_form(store, selector, &named).await?.unwrap_or(named);
    Ok(Some(found).filter(|(digest, _)| digest != known))
}

/// Returns the disk that the container's image `named`, which `selector` selects, was converted to; `None` if `named`
/// is a disk itself, or there is none.
///
/// # Errors
/// Those of [`Store::referrers`] and [`Store::manifest`], by the rule of [the module](self).
pub async fn disk_form(
    store: &dyn Store,
    selector: &Selector,
    (original, bytes): &(Digest, Bytes),
) -> Result<Option<(Digest, Bytes)>> {
    if !may_have_disk_form(selector, Manifest::parse(bytes).ok().as_ref()) {
        return Ok(None);
    }
    let mut search = FormSearch::default();
    for listed in store.referrers_of_types(original, &FORMS).await? {
        for form in newest(&listed) {
            let found = store.manifest(&Selector::Digest(form)).await;
            // Anything may be published under any kind.
            let found =
                found.map(|(digest, bytes)| is_disk_form(&bytes, original).then_some((digest, bytes)));
            if let Some(found) = search.look(found)? {
                return Ok(Some(found));
            }
        }
    }
    search.end()
}

/// `true` if the image of `manifest` was selected by a tag, and its layers are no disk's.
pub(crate) fn may_have_disk_form(selector: &Selector, manifest: Option<&Manifest>) -> bool {
    let is_containers = |manifest: &Manifest| !manifest.layers.iter().any(is_of_disk);
    matches!(selector, Selector::Tag(_)) && manifest.is_some_and(is_containers)
}

/// `true` if a layer says that it is a disk's.
fn is_of_disk(layer: &ImageLayer) -> bool {
    layer.annotations.contains_key(BLOB_DIGEST)
}

/// `true` if this is the manifest of a disk that the image with the manifest `original` was converted to.
pub(crate) fn is_disk_form(bytes: &[u8], original: &Digest) -> bool {
    let Ok(manifest) = Manifest::parse(bytes) else { return false };
    let is_of_original = manifest.converted_from().is_some_and(|origin| origin.manifest == *original);
    is_of_original && manifest.layers.iter().all(is_of_disk)
}

/// Returns the manifests of the artifacts in a list that are worth looking at, newest first: stores add new ones at the
/// end.
pub fn newest(listed: &[Referrer]) -> impl Iterator<Item = Digest> {
    listed.iter().rev().take(FORMS_MOST).map(|referrer| referrer.digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(outcomes: &[Result<Option<u8>, ErrorKind>]) -> Result<Option<u8>, ErrorKind> {
        let mut search = FormSearch::default();
        for outcome in outcomes {
            let outcome = outcome.map_err(|kind| Error::new(kind, "wrong"));
            if let Some(found) = search.look(outcome).map_err(|error| error.kind())? {
                return Ok(Some(found));
            }
        }
        search.end().map_err(|error| error.kind())
    }

    #[test]
    fn what_is_damaged_or_gone_hides_no_other_and_damage_is_told_if_nothing_fits() {
        use ErrorKind::{Corrupt, NotFound, Unavailable};
        for (outcomes, found) in [
            (vec![], Ok(None)),
            (vec![Ok(None), Err(NotFound)], Ok(None)),
            (vec![Err(Corrupt), Err(NotFound), Ok(Some(3))], Ok(Some(3))),
            (vec![Err(NotFound), Err(Corrupt), Ok(None)], Err(Corrupt)),
            (vec![Err(Corrupt), Err(Unavailable), Ok(Some(3))], Err(Unavailable)),
            (vec![Ok(Some(1)), Err(Unavailable)], Ok(Some(1))),
        ] {
            assert_eq!(look(&outcomes), found, "{outcomes:?}");
        }
    }
}
