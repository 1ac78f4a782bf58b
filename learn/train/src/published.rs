//! Plans that are published with images: publishing and finding them.

use headstart_block::{Digest, Error, ErrorKind, PlanItem, Result};
use headstart_image::named_image::NamedImage;
use headstart_image::open_image::OpenImage;
use headstart_image::optimize::boot_order;
use headstart_image::plan_artifact::{self, About, FoundPlan};
use headstart_image::reference::Reference;
use headstart_image::store_access::{StoreAccess, StoredImage};
use headstart_plan::artifact::PlanFile;
use headstart_plan::knowledge::{Knowledge, RecordedImage};
use headstart_plan::train::Plans;
use serde::Serialize;

/// The plan that is published with an image, otherwise with the one that it was made from.
///
/// # Errors
/// Errors of the store; if the plan is damaged, or is not of one image.
pub fn find(image: &Reference, stores: StoreAccess<'_>) -> Result<Option<(FoundPlan, Plans)>> {
    let stored = stores.stored(image)?;
    let finding = plan_artifact::find_known(&*stored.store, &stored.digest, &stored.manifest);
    let found = stores.runtime.block_on(finding)?;
    found.map(|found| opened(found).map_err(|e| e.about(image))).transpose()
}

/// The same, where there has to be one.
///
/// # Errors
/// As [`find`]; [`ErrorKind::NotFound`] if there is none.
pub fn expect(image: &Reference, stores: StoreAccess<'_>) -> Result<(FoundPlan, Plans)> {
    find(image, stores)?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no plan is published with it")
            .about(image)
            .remedy("publish one with `headstart train --publish`, or give a file of plans by --plans")
    })
}

/// The blocks that boots of an open image read, by the plan that is published with it or by its boot layer; empty if
/// they are not known.
///
/// # Errors
/// As [`find`].
pub fn known_items(image: &OpenImage, stores: StoreAccess<'_>) -> Result<Vec<PlanItem>> {
    Ok(match find(&image.reference, stores)? {
        Some((_, plans)) => plans.sole().map(|(_, plans)| plans.items()).unwrap_or_default(),
        None => boot_order(image.disk(), &image.manifest),
    })
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
pub struct Publication<'a> {
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
    ///
    /// # Errors
    /// Errors of the store.
    pub fn prepare(named: &'a NamedImage, stores: StoreAccess<'_>) -> Result<Self> {
        let image = &named.reference;
        let StoredImage { digest, manifest, .. } = stores.stored(image)?;
        let known_as = manifest.known_as(digest);
        let name = if named.name.is_empty() { known_as.to_string() } else { named.name.clone() };
        Ok(Self { image, digest, known_as, name, size: manifest.virtual_size })
    }

    /// `true` if it was made from the image of its boots.
    #[must_use]
    pub fn is_optimized(&self) -> bool {
        self.known_as != self.digest
    }

    /// The key of its boots: of a disk of its size, otherwise of the size with the most boots.
    ///
    /// # Errors
    /// If none of the boots is of it.
    pub fn key(&self, knowledge: &Knowledge) -> Result<RecordedImage> {
        let named = knowledge.images().filter(|(key, image)| key.image == self.name && image.traces() > 0);
        let best = named.max_by_key(|(key, image)| {
            (Some(key.size) == self.size, image.traces(), std::cmp::Reverse(key.size))
        });
        best.map(|(key, _)| key.clone()).ok_or_else(|| no_boots_of(&self.name, self.image))
    }

    /// Publishes the plans of its boots.
    ///
    /// # Errors
    /// If it has no plans; errors of the store.
    pub fn publish(
        &self,
        plans: &Plans,
        knowledge: &Knowledge,
        stores: StoreAccess<'_>,
    ) -> Result<PublishedPlans> {
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
        let store = stores.store(&self.image.location)?;
        let publishing = plan_artifact::publish(&store, &self.digest, file.into(), &about);
        let done = stores.runtime.block_on(publishing)?;
        Ok(PublishedPlans {
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
#[derive(Clone, Debug, Serialize)]
pub struct PublishedPlans {
    /// The reference of the image.
    pub image: String,
    /// The digest of the image's manifest.
    pub subject: String,
    /// The digest of the artifact's manifest.
    pub digest: String,
    /// The number of the publication, from 1.
    pub generation: u64,
    /// `true` if it was not there already.
    pub is_new: bool,
    /// The length of the file of plans.
    pub bytes: u64,
}
