//! Plans that are published with images: putting one there, and looking at what is there.

use crate::attach::NamedImage;
use crate::runtime::{FEW, with_runtime};
use crate::store_args::StoreArgs;
use headstart_block::{Digest, Error, ErrorKind, Result};
use headstart_image::manifest::Manifest;
use headstart_image::plan_artifact::{self, About, FoundPlan};
use headstart_image::reference::{Location, Reference};
use headstart_plan::artifact::PlanFile;
use headstart_plan::knowledge::{ImageKey, Knowledge};
use headstart_plan::train::Plans;
use headstart_store::Store;
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// An image in its store.
pub(crate) struct Stored {
    pub(crate) store: Arc<dyn Store>,
    /// Of its manifest.
    pub(crate) digest: Digest,
    pub(crate) manifest: Manifest,
}

/// Does `work` on an image in any store.
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

/// Does `work` on any store. Mirrors are left out: what they have need not be in the store itself, which is written to,
/// nor need they have its artifacts.
fn on_store<T>(
    location: &Location,
    stores: &StoreArgs,
    work: impl AsyncFnOnce(Arc<dyn Store>) -> Result<T>,
) -> Result<T> {
    let store = headstart_store::open(location, &stores.settings()?.without_mirrors())?;
    let done = async {
        // A mistyped host or a missing login is told at once, not after all the patience that a slow store deserves.
        store.check().await?;
        work(store).await
    };
    with_runtime(FEW, |runtime| runtime.block_on(done))
}

/// The plan that is published with an image, or else with the one that it was made from.
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
    /// What the boots call it.
    name: String,
    /// Of its disk, where the manifest tells.
    size: Option<u64>,
}

impl<'a> Publication<'a> {
    /// Finds the image: before an hour of learning.
    pub(crate) fn prepare(named: &'a NamedImage, stores: &StoreArgs) -> Result<Self> {
        let image = &named.reference;
        let stored = on_stored(image, stores, async |stored: Stored| Ok(stored))?;
        let known_as = stored.manifest.known_as(stored.digest);
        let name = if named.name.is_empty() { known_as.to_string() } else { named.name.clone() };
        let Stored { digest, manifest, .. } = stored;
        Ok(Self { image, digest, known_as, name, size: manifest.virtual_size })
    }

    /// Whether it was made from the image that its boots are of.
    pub(crate) fn is_optimized(&self) -> bool {
        self.known_as != self.digest
    }

    /// What its boots are kept under: those of a disk of its size, or else those that there are most of.
    pub(crate) fn key(&self, knowledge: &Knowledge) -> Result<ImageKey> {
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
        let name = ImageKey { image: self.known_as.to_string(), size: self.size.unwrap_or(key.size) };
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
        // With the image as it was found, though its tag may have moved on.
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

/// The error for an image that none of the boots is of, by this name.
pub(crate) fn no_boots_of(name: &str, image: &Reference) -> Error {
    Error::new(ErrorKind::NotFound, format!("none of the boots is of {}", name.escape_debug()))
        .about(image)
        .remedy("write NAME=IMAGE where they call it otherwise; `headstart trace stats` lists them")
}

/// What became of a publication.
#[derive(Serialize)]
pub(crate) struct PublishedReport {
    image: String,
    /// The image's manifest.
    subject: String,
    /// The artifact's.
    digest: String,
    generation: u64,
    /// Whether it was not there already.
    is_new: bool,
    bytes: u64,
}

impl fmt::Display for PublishedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_new { "published" } else { "published before, unchanged" };
        write!(f, "{}: {what}, generation {}, {}", self.image, self.generation, self.digest)
    }
}
