//! Plans that are published with images: publishing and finding them.

use crate::runtime::{FEW, with_runtime};
use crate::store_args::StoreArgs;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_diskd::NamedImage;
use headstart_image::manifest::Manifest;
use headstart_image::plan_artifact::{self, About, FoundPlan};
use headstart_image::reference::{Location, Reference};
use headstart_plan::artifact::PlanFile;
use headstart_plan::knowledge::{Knowledge, RecordedImage};
use headstart_plan::train::Plans;
use headstart_store::Store;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// An image in its store.
pub(crate) struct Stored {
    pub(crate) store: Arc<dyn Store>,
    /// The digest of its manifest.
    pub(crate) digest: Digest,
    pub(crate) manifest: Manifest,
}

/// Runs `work` on an image in any store.
pub(crate) fn on_stored<T>(
    image: &Reference,
    stores: &StoreArgs,
    work: impl AsyncFnOnce(Stored) -> Result<T>,
) -> Result<T> {
    on_store(&image.location, stores, async |store: Arc<dyn Store>| {
        let (digest, bytes) = store.manifest(&image.selector).await?;
        let manifest = Manifest::parse(&bytes).map_err(|e| e.about(image))?;
        work(Stored { store, digest, manifest }).await
    })
}

/// Runs `work` on any store. Mirrors are not used: a blob of theirs need not be in the store itself, which is written
/// to, and they may lack its artifacts.
fn on_store<T>(
    location: &Location,
    stores: &StoreArgs,
    work: impl AsyncFnOnce(Arc<dyn Store>) -> Result<T>,
) -> Result<T> {
    let store = headstart_store::open(location, &stores.settings()?.without_mirrors())?;
    let done = async {
        // A mistyped host or a missing login is reported at once, not after the long deadline of a slow store.
        store.check().await?;
        work(store).await
    };
    with_runtime(FEW, |runtime| runtime.block_on(done))
}

/// The plan that is published with an image, otherwise with the one that it was made from.
pub(crate) fn find(image: &Reference, stores: &StoreArgs) -> Result<Option<(FoundPlan, Plans)>> {
    let found = on_stored(image, stores, async |stored: Stored| {
        plan_artifact::find_known(&*stored.store, &stored.digest, &stored.manifest).await
    })?;
    found.map(|found| opened(found).map_err(|e| e.about(image))).transpose()
}

fn opened(found: FoundPlan) -> Result<(FoundPlan, Plans)> {
    let about = |e: Error| e.about(format!("the published plan {}", found.digest));
    let plans = PlanFile::open(&found.bytes[..]).and_then(|file| file.read_all()).map_err(about)?;
    if plans.sole().is_none() {
        return Err(about(Error::unsupported("is not of one image")));
    }
    Ok((found, plans))
}

/// An image that is to get the plans of its boots.
pub(crate) struct Publication<'a> {
    image: &'a Reference,
    digest: Digest,
    /// An optimized image learns from the boots of the one that it was made from.
    known_as: Digest,
    /// The name that the boots have for it.
    name: String,
    /// The size of its disk, if the manifest has it.
    size: Option<u64>,
}

impl<'a> Publication<'a> {
    /// Finds the image, before an hour of learning.
    pub(crate) fn prepare(named: &'a NamedImage, stores: &StoreArgs) -> Result<Self> {
        let image = &named.reference;
        let stored = on_stored(image, stores, async |stored: Stored| Ok(stored))?;
        let known_as = stored.manifest.known_as(stored.digest);
        let name = if named.name.is_empty() { known_as.to_string() } else { named.name.clone() };
        let Stored { digest, manifest, .. } = stored;
        Ok(Self { image, digest, known_as, name, size: manifest.virtual_size })
    }

    /// `true` if it was made from the image of its boots.
    pub(crate) fn is_optimized(&self) -> bool {
        self.known_as != self.digest
    }

    /// The key of its boots: of a disk of its size, otherwise of the size with the most boots.
    pub(crate) fn key(&self, knowledge: &Knowledge) -> Result<RecordedImage> {
        let named = knowledge.images().filter(|(key, image)| key.image == self.name && image.traces() > 0);
        let best = named.max_by_key(|(key, image)| {
            (Some(key.size) == self.size, image.traces(), std::cmp::Reverse(key.size))
        });
        best.map(|(key, _)| key.clone()).ok_or_else(|| no_boots_of(&self.name, self.image))
    }

    /// Publishes the plans of its boots.
    pub(crate) fn publish(
        &self,
        plans: &Plans,
        knowledge: &Knowledge,
        stores: &StoreArgs,
    ) -> Result<PublishedReport> {
        let key = self.key(knowledge)?;
        let name = RecordedImage { image: self.known_as.to_string(), size: self.size.unwrap_or(key.size) };
        let only = knowledge.image(&key).and_then(|image| plans.only(&key, image, name));
        let only = only.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "there is no plan of it: its boots are too few or all outliers")
                .about(self.image)
                .remedy("record more boots")
        })?;
        let mut file = Vec::new();
        only.write(&mut file)?;
        let (bytes, provenance) = (file.len() as u64, only.provenance());
        let about = About { traces: provenance.traces, policy: provenance.policy.clone() };
        // The artifact is for the image as it was found, even if its tag has moved on.
        let done = on_store(&self.image.location, stores, async |store: Arc<dyn Store>| {
            plan_artifact::publish(&store, &self.digest, file.into(), &about).await
        })?;
        Ok(PublishedReport {
            image: self.image.to_string(),
            subject: self.digest.to_string(),
            digest: done.digest.to_string(),
            generation: done.generation,
            is_new: done.is_new,
            bytes,
        })
    }
}

/// The error for an image of which there is no boot under this name.
pub(crate) fn no_boots_of(name: &str, image: &Reference) -> Error {
    Error::new(ErrorKind::NotFound, format!("none of the boots is of {}", name.escape_debug()))
        .about(image)
        .remedy("write NAME=IMAGE if they have another name for it; `headstart-lab trace stats` lists them")
}

/// The result of a publication.
#[derive(Serialize)]
pub(crate) struct PublishedReport {
    image: String,
    /// The digest of the image's manifest.
    subject: String,
    /// The digest of the artifact's manifest.
    digest: String,
    generation: u64,
    /// `true` if it was not there already.
    is_new: bool,
    bytes: u64,
}

impl fmt::Display for PublishedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_new { "published" } else { "published before, unchanged" };
        write!(f, "{}: {what}, generation {}, {}", self.image, self.generation, self.digest)
    }
}
