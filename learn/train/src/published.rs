//! Plans that are published with images: publishing and finding them.

use headstart_block::{Digest, Error, ErrorKind, PlanItem, Result};
use headstart_image::forms::{FormPlace, ImageForm, forms};
use headstart_image::manifest::Manifest;
use headstart_image::named_image::NamedImage;
use headstart_image::open_image::OpenImage;
use headstart_image::optimize::boot_order;
use headstart_image::plan_artifact::{self, About, FoundPlan, is_unsound};
use headstart_image::reference::{Reference, Selector};
use headstart_image::store::by_digest;
use headstart_image::store_access::{StoreAccess, StoredImage};
use headstart_plan::artifact::PlanFile;
use headstart_plan::knowledge::{Knowledge, RecordedImage};
use headstart_plan::train::Plans;
use headstart_store::Store;
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
/// The boots of an optimized image are those of the image that it was made from, because both have the same disk. So do
/// the forms of a container's image that differ only in the packing of their layers. A tag of a container's image means
/// all its forms: each gets the plans of its own boots, or those of another form with the same disk.
pub struct Publication<'a> {
    image: &'a Reference,
    /// The image, or the forms; the one that the reference stands for is the first.
    forms: Vec<TrainedForm>,
    /// The forms that cannot be used.
    unusable: Vec<LeftOut>,
}

/// A disk image to publish plans with.
struct TrainedForm {
    reference: Reference,
    digest: Digest,
    /// An optimized image learns from the boots of the one that it was made from.
    known_as: Digest,
    /// The names that boots with this disk have for it, its own first.
    names: Vec<String>,
    /// The images with the same disk that it has taken the place of.
    disk_of: Vec<Digest>,
    /// The size of its disk, if the manifest has it.
    size: Option<u64>,
    file_system: Option<String>,
    /// `true` if its data is in the container's layers.
    turbo: bool,
    /// The words on which its disk depends, if it was made of a container's image.
    disk: Option<String>,
}

impl TrainedForm {
    fn new(reference: Reference, digest: Digest, manifest: &Manifest, name: &str) -> Self {
        let known_as = manifest.known_as(digest);
        let name = if name.is_empty() { known_as.to_string() } else { name.to_owned() };
        let origin = manifest.converted_from();
        let disk = origin.map(|origin| format!("{} {}", origin.manifest, origin.disk().join(",")));
        let file_system = manifest.file_system().map(str::to_owned);
        Self {
            reference,
            digest,
            known_as,
            names: vec![name],
            disk_of: Vec::new(),
            size: manifest.virtual_size,
            file_system,
            turbo: manifest.turbo_targets().next().is_some(),
            disk,
        }
    }

    /// The key of its boots in `knowledge`, as [`key_of`] has it: of all boots with its disk, those under the name that
    /// has the most, so that one stray boot hides no others. A name that the user gave goes first.
    fn key(&self, knowledge: &Knowledge) -> Option<RecordedImage> {
        let is_given = self.names[0] != self.known_as.to_string();
        let is_own_size = |key: &RecordedImage| self.size.is_none_or(|size| size == key.size);
        let found = self.names.iter().enumerate().rev();
        let found = found.filter_map(|(at, name)| Some((at, key_of(name, self.size, knowledge)?)));
        // Another image with the same disk has one of the same size, whatever a plan states.
        let usable = found.filter(|(at, (key, _))| *at == 0 || is_own_size(key));
        let best = usable.max_by_key(|(at, (key, traces))| (*at == 0 && is_given, is_own_size(key), *traces));
        best.map(|(_, (key, _))| key)
    }

    /// Adds the names of images with the same disk that it has taken the place of, as its plan states them.
    async fn learn_names(&mut self, store: &dyn Store, manifest: &Manifest) -> Result<()> {
        let found = match plan_artifact::find_known(store, &self.digest, manifest).await {
            // The new plan takes the place of a damaged one.
            Err(error) if is_unsound(&error) => None,
            found => found?,
        };
        self.disk_of = found.map(|found| found.about.disk_of).unwrap_or_default();
        self.names.extend(self.disk_of.iter().map(Digest::to_string));
        Ok(())
    }

    fn left_out(&self, reason: String) -> LeftOut {
        let image = by_digest(&self.reference, self.digest).to_string();
        let (file_system, turbo) = (self.file_system.clone(), Some(self.turbo));
        LeftOut { image, file_system, turbo, reason }
    }
}

impl<'a> Publication<'a> {
    /// Reads the manifest of the image, and those of its other forms. The caller should do this before learning, which
    /// may take an hour, so that a wrong reference is refused early.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn prepare(named: &'a NamedImage, stores: StoreAccess<'_>) -> Result<Self> {
        let image = &named.reference;
        let StoredImage { store, digest, manifest } = stores.stored(image)?;
        let mut this = Self { image, forms: Vec::new(), unusable: Vec::new() };
        let mut first = TrainedForm::new(image.clone(), digest, &manifest, &named.name);
        stores.runtime.block_on(first.learn_names(&*store, &manifest))?;
        this.forms.push(first);
        let has_forms = manifest.converted_from().is_some() && matches!(image.selector, Selector::Tag(_));
        let found = if has_forms { stores.runtime.block_on(forms(&*store, &image.selector))? } else { None };
        let others = found.map(|found| found.forms).unwrap_or_default();
        // A tag of its own names this image alone.
        if others.iter().any(|form| form.place == FormPlace::Named) {
            return Ok(this);
        }
        for ImageForm { digest: other, manifest, .. } in
            others.into_iter().filter(|form| form.digest != digest)
        {
            let reference = by_digest(image, other);
            match manifest {
                Ok(manifest) => {
                    let mut form = TrainedForm::new(reference, other, &manifest, "");
                    stores.runtime.block_on(form.learn_names(&*store, &manifest))?;
                    this.forms.push(form);
                }
                Err(error) => {
                    let (image, reason) = (reference.to_string(), error.to_string());
                    this.unusable.push(LeftOut { image, file_system: None, turbo: None, reason });
                }
            }
        }
        this.share_names();
        Ok(this)
    }

    /// Gives each form the names of the others with the same disk.
    fn share_names(&mut self) {
        let of_form = |form: &TrainedForm| -> Vec<_> {
            form.names.iter().map(|name| (form.disk.clone(), name.clone())).collect()
        };
        let own: Vec<_> = self.forms.iter().flat_map(of_form).collect();
        for form in &mut self.forms {
            let is_same = |(disk, name): &&(Option<String>, String)| {
                disk.is_some() && *disk == form.disk && !form.names.contains(name)
            };
            let same: Vec<_> = own.iter().filter(is_same).map(|(_, name)| name.clone()).collect();
            form.names.extend(same);
        }
    }

    /// Returns the images whose own boots can be learned from, with the name that boots have for each. An optimized one
    /// is left out: its plans are made from the boots of another.
    pub fn recorded(&self) -> impl Iterator<Item = (&str, &Reference)> {
        let own = self.forms.iter().filter(|form| form.known_as == form.digest);
        own.map(|form| (&*form.names[0], &form.reference))
    }

    /// Checks that there are boots for the image, or for one of its forms.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no boot in `knowledge` is.
    pub fn check(&self, knowledge: &Knowledge) -> Result<()> {
        if self.forms.iter().any(|form| form.key(knowledge).is_some()) {
            return Ok(());
        }
        let names: Vec<_> = self.forms.iter().map(|form| &*form.names[0]).collect();
        Err(no_boots_of(&names.join(" or "), self.image))
    }

    /// Publishes the plans of the image's boots as an artifact with the image, and with each of its forms. `plans` were
    /// made from `knowledge`. Returns them, and the forms without.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if `knowledge` has no boots of the image or `plans` no plan for them; errors of the
    /// store.
    pub fn publish(
        &self,
        plans: &Plans,
        knowledge: &Knowledge,
        stores: StoreAccess<'_>,
    ) -> Result<(Vec<PublishedPlans>, Vec<LeftOut>)> {
        self.check(knowledge)?;
        let (mut published, mut left_out, mut first) = (Vec::new(), self.unusable.clone(), None);
        for form in &self.forms {
            let Some(key) = form.key(knowledge) else {
                left_out.push(form.left_out(self.without_boots(form)));
                continue;
            };
            match self.publish_one(form, &key, (plans, knowledge), stores) {
                Ok(done) => published.push(done),
                Err(error) if error.kind() == ErrorKind::NotFound && self.forms.len() > 1 => {
                    left_out.push(form.left_out(error.to_string()));
                    first.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match first.filter(|_| published.is_empty()) {
            Some(error) => Err(error),
            None => Ok((published, left_out)),
        }
    }

    /// The reason why a form without boots got no plan.
    fn without_boots(&self, form: &TrainedForm) -> String {
        let image = by_digest(self.image, form.digest);
        // No host takes this form by itself while there is one with data of its own.
        let is_taken = !form.turbo || self.forms.iter().all(|other| other.turbo);
        let container =
            if is_taken { ", or a container on a host that takes this form, records" } else { " records" };
        format!(
            "no boot was recorded on it, or on a form with the same disk: `headstart attach {image}`{container} one; \
             then train again"
        )
    }

    fn publish_one(
        &self,
        form: &TrainedForm,
        key: &RecordedImage,
        (plans, knowledge): (&Plans, &Knowledge),
        stores: StoreAccess<'_>,
    ) -> Result<PublishedPlans> {
        let name = RecordedImage { image: form.known_as.to_string(), size: form.size.unwrap_or(key.size) };
        let only = plans.only(key, knowledge, &name);
        let only = only.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "there is no plan of it: its boots are too few or all outliers")
                .about(self.image)
                .remedy("record more boots")
        })?;
        let mut file = Vec::new();
        only.write(&mut file)?;
        let (bytes, provenance) = (file.len() as u64, only.provenance());
        let (traces, policy) = (provenance.traces, provenance.policy.clone());
        let about = About { traces, policy, disk_of: form.disk_of.clone() };
        // The artifact is for the image as it was found, even if its tag has moved on.
        let store = stores.store(&self.image.location)?;
        let publishing = plan_artifact::publish(&store, &form.digest, file.into(), &about);
        let done = stores.runtime.block_on(publishing)?;
        let is_form = self.forms.len() + self.unusable.len() > 1;
        Ok(PublishedPlans {
            image: self.image.to_string(),
            subject: form.digest.to_string(),
            form: form.file_system.clone().filter(|_| is_form),
            turbo: is_form.then_some(form.turbo),
            digest: done.digest.to_string(),
            generation: done.generation,
            is_new: done.is_new,
            bytes,
        })
    }
}

/// The key of the boots of that name in `knowledge`, without an entrypoint, and their number. If there are boots on
/// disks of several sizes, the key has the image's own size, if there are boots of that size, and otherwise the size
/// with the most boots.
fn key_of(name: &str, own: Option<u64>, knowledge: &Knowledge) -> Option<(RecordedImage, u64)> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for (key, image) in knowledge.images() {
        if key.entrypoint_of(name).is_some() && image.traces() > 0 {
            *sizes.entry(key.size).or_default() += image.traces();
        }
    }
    let rank = |(size, traces): &(u64, u64)| (Some(*size) == own, *traces, Reverse(*size));
    let best = sizes.into_iter().max_by_key(rank);
    best.map(|(size, traces)| (RecordedImage { image: name.to_owned(), size }, traces))
}

/// The error for an image of which there is no boot under this name.
pub(crate) fn no_boots_of(name: &str, image: &Reference) -> Error {
    Error::new(ErrorKind::NotFound, format!("none of the boots is of {}", name.escape_debug()))
        .about(image)
        .remedy(
            "write NAME=IMAGE if they have a name of their own for it (`headstart-lab trace stats` lists them); boots \
             of another digest are no boots of it: attach it to record one",
        )
}

/// The result of publishing the plans of one image.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedPlans {
    /// The reference of the image.
    pub image: String,
    /// The digest of the image's manifest.
    pub subject: String,
    /// The file system of this form, if the image has several forms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
    /// `true` if the data of this form is in the container's layers, if the image has several forms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turbo: Option<bool>,
    /// The digest of the manifest of the artifact that has the plans.
    pub digest: String,
    /// The number of times that plans were published for the image, from 1.
    pub generation: u64,
    /// `true` if the artifact is new, `false` if an equal one was published before.
    pub is_new: bool,
    /// The length of the published file of plans, in bytes.
    pub bytes: u64,
}

/// A form of an image without a plan.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Its reference, by its digest.
    pub image: String,
    /// Its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// `true` if its data is in the container's layers (`--mode turbo`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turbo: Option<bool>,
    /// The reason, with what to do for a plan.
    pub reason: String,
}
