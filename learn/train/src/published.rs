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
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Finds the plan that is published with an image. If there is none and the image was optimized from another one, finds
/// the plan of that other image, because both have the same disk. Returns the plan as found, and its content; `None` if
/// there is no plan.
///
/// # Errors
/// Errors of the store; [`ErrorKind::Corrupt`] if the plan is damaged, [`ErrorKind::Unsupported`] if it has not the
/// plans of exactly one image.
pub fn find(image: &Reference, stores: StoreAccess<'_>) -> Result<Option<(FoundPlan, Plans)>> {
    let stored = stores.stored(image)?;
    let finding = plan_artifact::find_known(&*stored.store, &stored.digest, &stored.manifest);
    let found = stores.runtime.block_on(finding)?;
    found.map(|found| opened(found).map_err(|e| e.about(image))).transpose()
}

/// Finds the published plan of an image as [`find`] does, but fails if there is none.
///
/// # Errors
/// As [`find`]; [`ErrorKind::NotFound`] if no plan is published with the image.
pub fn expect(image: &Reference, stores: StoreAccess<'_>) -> Result<(FoundPlan, Plans)> {
    find(image, stores)?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no plan is published with it")
            .about(image)
            .remedy("publish one with `headstart train --publish`, or give a file of plans by --plans")
    })
}

/// Returns the blocks, with their slices, that boots of an open image read. The source is the plan that is published
/// with the image, whose items may name a block several times. Without such a plan, it is the image's boot layer, in
/// which an optimized image stores the data that boots read. Empty if there is neither.
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

/// An image to publish plans with. The plans are those that are made from the boots of the image.
///
/// The boots of an optimized image are those of the image that it was made from, because both have the same disk.
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
    /// Reads the manifest of the image. The caller should do this before learning, which may take an hour, so that a
    /// wrong reference is refused early.
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

    /// Returns `true` if the image was optimized from another one. Its plans are then made from the boots of the other.
    #[must_use]
    pub fn is_optimized(&self) -> bool {
        self.known_as != self.digest
    }

    /// Returns the key of the image's boots in `knowledge`, without an entrypoint. If there are boots on disks of
    /// several sizes, the key has the image's own size, if there are boots of that size, and otherwise the size with
    /// the most boots.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no boot in `knowledge` is of the image.
    pub fn key(&self, knowledge: &Knowledge) -> Result<RecordedImage> {
        let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
        for (key, image) in knowledge.images() {
            if key.entrypoint_of(&self.name).is_some() && image.traces() > 0 {
                *sizes.entry(key.size).or_default() += image.traces();
            }
        }
        let rank = |(size, traces): &(u64, u64)| (Some(*size) == self.size, *traces, Reverse(*size));
        let best = sizes.into_iter().max_by_key(rank);
        best.map(|(size, _)| RecordedImage { image: self.name.clone(), size })
            .ok_or_else(|| no_boots_of(&self.name, self.image))
    }

    /// Publishes the plans of the image's boots as an artifact with the image. `plans` were made from `knowledge`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if `knowledge` has no boots of the image or `plans` no plan for them; errors of the
    /// store.
    pub fn publish(
        &self,
        plans: &Plans,
        knowledge: &Knowledge,
        stores: StoreAccess<'_>,
    ) -> Result<PublishedPlans> {
        let key = self.key(knowledge)?;
        let name = RecordedImage { image: self.known_as.to_string(), size: self.size.unwrap_or(key.size) };
        let only = plans.only(&key, knowledge, &name);
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

/// The result of publishing the plans of one image.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedPlans {
    /// The reference of the image.
    pub image: String,
    /// The digest of the image's manifest.
    pub subject: String,
    /// The digest of the manifest of the artifact that has the plans.
    pub digest: String,
    /// The number of times that plans were published for the image, from 1.
    pub generation: u64,
    /// `true` if the artifact is new, `false` if an equal one was published before.
    pub is_new: bool,
    /// The length of the published file of plans, in bytes.
    pub bytes: u64,
}
