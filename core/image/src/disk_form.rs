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
//!
//! For a disk that is to be written to ([`FormWish::Writable`]), one whose file system can only be read fits if there
//! is no other.

use crate::manifest::{BLOB_DIGEST, ImageLayer, Manifest, OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE};
use bytes::Bytes;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_store::{Reference, Referrer, Selector, Store};
use std::collections::VecDeque;

/// Artifacts of one kind that are looked at for one image at most: there is one, unless writers raced.
const FORMS_MOST: usize = 4;

/// The kinds of artifacts that are a disk, the better ones first: reading one with data of its own takes less than
/// inflating the original's layers.
pub const FORMS: [&str; 2] = [OVERLAYBD_IMAGE, OVERLAYBD_TURBO_IMAGE];

/// The form that is wanted of an image that has several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormWish {
    /// The newest.
    #[default]
    Newest,
    /// The newest of those whose file systems can be written to; if there is none, the newest.
    Writable,
}

/// The state of a search among the artifacts of an image: see [the module](self). Its caller lists artifacts, fetches
/// [the next one](Self::next_form) as long as there is one, and gives it to [`look`](Self::look).
#[derive(Debug)]
pub struct FormSearch<T> {
    wish: FormWish,
    /// The artifacts to look at, in this order.
    listed: VecDeque<Digest>,
    /// The one that fits.
    found: Option<T>,
    /// The error of the first artifact that is damaged.
    damage: Option<Error>,
    /// The first that would have been taken if nothing was to be written to it.
    only_read: Option<T>,
}

impl<T> FormSearch<T> {
    /// A search for the form that is wanted.
    #[must_use]
    pub fn new(wish: FormWish) -> Self {
        Self { wish, listed: VecDeque::new(), found: None, damage: None, only_read: None }
    }

    /// Adds the artifacts of one kind, as a store lists them, to those that are looked at.
    pub fn list(&mut self, listed: &[Referrer]) {
        self.listed.extend(newest(listed));
    }

    /// Returns the manifest of the artifact to look at next. `None` if there is no other, or one has been found.
    pub fn next_form(&mut self) -> Option<Digest> {
        if self.has_found() { None } else { self.listed.pop_front() }
    }

    /// `true` if one has been found that fits.
    #[must_use]
    pub fn has_found(&self) -> bool {
        self.found.is_some()
    }

    /// Takes the outcome of looking at one artifact, with `true` if its file system can only be read; `None` in it: the
    /// artifact is something else.
    ///
    /// # Errors
    /// An error that ends the search.
    pub fn look(&mut self, looked: Result<Option<(T, bool)>>) -> Result<()> {
        match looked {
            // A list may name what is not there any more.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.damage.get_or_insert(error);
            }
            Ok(Some((form, true))) if self.wish == FormWish::Writable => {
                self.only_read.get_or_insert(form);
            }
            looked => self.found = looked?.map(|(form, _)| form),
        }
        Ok(())
    }

    /// Ends the search, with the artifact that fits: one that can only be read, if there is no other.
    ///
    /// # Errors
    /// That of the first artifact that was damaged, if there is nothing else.
    pub fn end(self) -> Result<Option<TakenForm<T>>> {
        match (self.found, self.only_read) {
            (Some(form), passed_over) => Ok(Some(TakenForm { form, passed_over })),
            (None, Some(form)) => Ok(Some(TakenForm { form, passed_over: None })),
            (None, None) => self.damage.map_or(Ok(None), Err),
        }
    }
}

/// The artifact that a search has found.
#[derive(Debug, PartialEq, Eq)]
pub struct TakenForm<T> {
    /// The result of looking at it.
    pub form: T,
    /// The same of a newer one, which was passed over because its file system can only be read.
    pub passed_over: Option<T>,
}

/// The manifest of a disk that was found.
#[derive(Clone, Debug)]
pub struct FoundForm {
    /// Its digest.
    pub digest: Digest,
    /// Its bytes.
    pub bytes: Bytes,
    /// A newer form of the same image, which was passed over because its file system can only be read.
    pub passed_over: Option<Digest>,
}

impl FoundForm {
    fn named((digest, bytes): (Digest, Bytes)) -> Self {
        Self { digest, bytes, passed_over: None }
    }
}

/// Returns the warning that of the forms of the container's image `asked`, `taken` was taken for writing, and not the
/// newest, `newer`.
#[must_use]
pub fn took_writable(asked: &Reference, taken: &Digest, newer: &Digest) -> String {
    format!(
        "{asked}: its newest form, {newer}, has a file system that is only read: the newest one that can be written \
         to is taken, {taken}"
    )
}

/// Returns the digest and the bytes of the manifest that `selector` selects, as [`Store::manifest`] does, or of the
/// disk that a container's image of this tag was converted to.
///
/// # Errors
/// Those of [`Store::manifest`] and [`Store::referrers`].
pub async fn disk_manifest(store: &dyn Store, selector: &Selector) -> Result<(Digest, Bytes)> {
    let found = wanted_form(store, selector, FormWish::Newest).await?;
    Ok((found.digest, found.bytes))
}

/// Finds the manifest as [`disk_manifest`] does; of several forms of an image, the one that is wanted.
///
/// # Errors
/// Those of [`disk_manifest`].
pub async fn wanted_form(store: &dyn Store, selector: &Selector, wish: FormWish) -> Result<FoundForm> {
    let named = store.manifest(selector).await?;
    Ok(form_of(store, selector, wish, &named).await?.unwrap_or_else(|| FoundForm::named(named)))
}

/// Asks whether `selector` still leads to the manifest `known`, as [`Store::manifest_again`] does, with disks as
/// [`wanted_form`] finds them. `None` if it does, and no newer form was passed over.
///
/// # Errors
/// Those of [`Store::manifest_again`] and [`Store::referrers`].
pub async fn wanted_form_again(
    store: &dyn Store,
    selector: &Selector,
    wish: FormWish,
    known: &Digest,
) -> Result<Option<FoundForm>> {
    let Some(named) = store.manifest_again(selector, known).await? else { return Ok(None) };
    let found = form_of(store, selector, wish, &named).await?.unwrap_or_else(|| FoundForm::named(named));
    Ok(Some(found).filter(|found| found.digest != *known || found.passed_over.is_some()))
}

/// Returns the disk that the container's image `named`, which `selector` selects, was converted to; `None` if `named`
/// is a disk itself, or there is none.
///
/// # Errors
/// Those of [`Store::referrers`] and [`Store::manifest`], by the rule of [the module](self).
pub async fn disk_form(
    store: &dyn Store,
    selector: &Selector,
    named: &(Digest, Bytes),
) -> Result<Option<(Digest, Bytes)>> {
    let found = form_of(store, selector, FormWish::Newest, named).await?;
    Ok(found.map(|found| (found.digest, found.bytes)))
}

async fn form_of(
    store: &dyn Store,
    selector: &Selector,
    wish: FormWish,
    named: &(Digest, Bytes),
) -> Result<Option<FoundForm>> {
    let manifest = Manifest::parse(&named.1).ok();
    let mut search = FormSearch::new(wish);
    let original = if may_have_disk_form(selector, manifest.as_ref()) {
        named.0
    } else if let Some(original) = other_forms_of(selector, wish, manifest.as_ref())
        && store.document(selector).await?.0 != named.0
    {
        // The tag leads to an index: what is in there is one form of several.
        search.look(Ok(Some((named.clone(), true))))?;
        original
    } else {
        return Ok(None);
    };
    store.referrers_of_types(&original, &FORMS).await?.iter().for_each(|listed| search.list(listed));
    while let Some(form) = search.next_form() {
        let found = store.manifest(&Selector::Digest(form)).await;
        // Anything may be published under any kind.
        search.look(found.map(|(digest, bytes)| {
            form_in(&bytes, &original).map(|manifest| ((digest, bytes), manifest.is_only_read()))
        }))?;
    }
    Ok(search.end()?.map(|TakenForm { form: (digest, bytes), passed_over }| FoundForm {
        digest,
        bytes,
        passed_over: passed_over.map(|(digest, _)| digest),
    }))
}

/// The container's image whose other forms are to be looked at: `manifest`, which a tag selected, is one that can only
/// be read, and another is wanted.
pub(crate) fn other_forms_of(
    selector: &Selector,
    wish: FormWish,
    manifest: Option<&Manifest>,
) -> Option<Digest> {
    let is_wanted = wish == FormWish::Writable && matches!(selector, Selector::Tag(_));
    let manifest = manifest.filter(|manifest| is_wanted && manifest.is_only_read())?;
    manifest.converted_from().map(|origin| origin.manifest)
}

/// `true` if the image of `manifest` was selected by a tag, and its layers are no disk's.
pub(crate) fn may_have_disk_form(selector: &Selector, manifest: Option<&Manifest>) -> bool {
    matches!(selector, Selector::Tag(_)) && manifest.is_some_and(|manifest| !manifest.is_disk())
}

/// `true` if a layer says that it is a disk's.
fn is_of_disk(layer: &ImageLayer) -> bool {
    layer.annotations.contains_key(BLOB_DIGEST)
}

impl Manifest {
    /// `true` if layers of it say that they are a disk's, and not those of a container's image.
    pub(crate) fn is_disk(&self) -> bool {
        self.layers.iter().any(is_of_disk)
    }
}

/// The manifest in `bytes`, if it is that of a disk that the image with the manifest `original` was converted to.
pub(crate) fn form_in(bytes: &[u8], original: &Digest) -> Option<Manifest> {
    let manifest = Manifest::parse(bytes).ok()?;
    let is_of_original = manifest.converted_from().is_some_and(|origin| origin.manifest == *original);
    (is_of_original && manifest.layers.iter().all(is_of_disk)).then_some(manifest)
}

/// Returns the manifests of the artifacts in a list that are worth looking at, newest first: stores add new ones at the
/// end.
pub(crate) fn newest(listed: &[Referrer]) -> impl Iterator<Item = Digest> {
    listed.iter().rev().take(FORMS_MOST).map(|referrer| referrer.digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type Outcome<T> = std::result::Result<Option<T>, ErrorKind>;

    fn look(wish: FormWish, outcomes: &[Outcome<(u8, bool)>]) -> Outcome<u8> {
        Ok(taken(wish, outcomes)?.map(|taken| taken.form))
    }

    /// Looks at artifacts with these outcomes, the first of which is listed last.
    fn taken(wish: FormWish, outcomes: &[Outcome<(u8, bool)>]) -> Outcome<TakenForm<u8>> {
        let mut search = FormSearch::new(wish);
        let artifact = |number: usize| Digest::of(&number.to_ne_bytes());
        let listed = (0..outcomes.len()).rev().map(|number| Referrer {
            digest: artifact(number),
            media_type: String::new(),
            artifact_type: String::new(),
            size: 0,
            annotations: BTreeMap::new(),
        });
        search.list(&listed.collect::<Vec<_>>());
        for (number, outcome) in outcomes.iter().enumerate() {
            let Some(form) = search.next_form() else { break };
            assert_eq!(form, artifact(number));
            let outcome = outcome.map_err(|kind| Error::new(kind, "wrong"));
            search.look(outcome).map_err(|error| error.kind())?;
        }
        search.end().map_err(|error| error.kind())
    }

    #[test]
    fn what_is_damaged_or_gone_hides_no_other_and_damage_is_told_if_nothing_fits() {
        use ErrorKind::{Corrupt, NotFound, Unavailable};
        let form = |number| Ok(Some((number, false)));
        for (outcomes, found) in [
            (vec![], Ok(None)),
            (vec![Ok(None), Err(NotFound)], Ok(None)),
            (vec![Err(Corrupt), Err(NotFound), form(3)], Ok(Some(3))),
            (vec![Err(NotFound), Err(Corrupt), Ok(None)], Err(Corrupt)),
            (vec![Err(Corrupt), Err(Unavailable), form(3)], Err(Unavailable)),
            (vec![form(1), Err(Unavailable)], Ok(Some(1))),
        ] {
            for wish in [FormWish::Newest, FormWish::Writable] {
                assert_eq!(look(wish, &outcomes), found, "{outcomes:?}");
            }
        }
    }

    #[test]
    fn what_can_only_be_read_is_written_to_if_there_is_nothing_else() {
        use ErrorKind::{Corrupt, Unavailable};
        let (only_read, other) = (|number| Ok(Some((number, true))), |number| Ok(Some((number, false))));
        for (outcomes, newest, writable) in [
            (vec![only_read(1), Ok(None), only_read(2), other(3)], Ok(Some(1)), Ok(Some(3))),
            (vec![Err(Corrupt), only_read(1), only_read(2)], Ok(Some(1)), Ok(Some(1))),
            (vec![only_read(1), Err(Unavailable)], Ok(Some(1)), Err(Unavailable)),
            (vec![other(1), only_read(2)], Ok(Some(1)), Ok(Some(1))),
        ] {
            assert_eq!(look(FormWish::Newest, &outcomes), newest, "{outcomes:?}");
            assert_eq!(look(FormWish::Writable, &outcomes), writable, "{outcomes:?}");
        }
        let outcomes = [only_read(1), only_read(2), other(3)];
        for (wish, form, passed_over) in [(FormWish::Newest, 1, None), (FormWish::Writable, 3, Some(1))] {
            assert_eq!(taken(wish, &outcomes), Ok(Some(TakenForm { form, passed_over })));
        }
    }
}
