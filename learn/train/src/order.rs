//! A new image with the data of another one, laid out in the order of the other's plans. The plans are then published
//! with the new image; if that fails, the image is complete without them.

use crate::layer_map;
use headstart_block::{
    BlockDevice, ByteSize, Digest, Error, ErrorKind, FileSource, PlanItem, ReadAt, Result,
};
use headstart_image::new_layer::Packing;
use headstart_image::optimize::{Form, OptimizeReport, OptimizeRequest, Source, optimize};
use headstart_image::plan_artifact::{self, About, FoundPlan};
use headstart_image::progress::Progress;
use headstart_image::reference::Reference;
use headstart_image::store_access::StoreAccess;
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::train::Provenance;
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{GroupPlans, ImagePlans, PlanFile, Plans};
use std::path::PathBuf;

/// The image to make, and the plans that determine its order.
#[derive(Clone, Debug)]
pub struct OrderRequest {
    /// The image to read.
    pub image: Reference,
    /// The reference of the image to make, with a tag.
    pub target: Reference,
    /// The file of plans; `None` for the plan that is published with the image, or with the one that it was optimized
    /// from.
    pub plans: Option<PathBuf>,
    /// The name that the plans have for the image; `None` for the image's digest, or that of the image that it was
    /// optimized from.
    pub known_as: Option<String>,
    /// The bandwidth of the plan whose order is used, in bytes a second. Between the bandwidths of two plans, the
    /// slower plan is used; below all of them, the slowest.
    pub bandwidth: u64,
    /// The number of the group of boots whose plan is used; 0 is the group with the most boots.
    pub group: usize,
    /// `true` to lay out, after the blocks of the plan, also the blocks of other plans of the image: those of the same
    /// group, and of each group that has at least two boots and a tenth of all boots.
    pub with_others: bool,
    /// The form in which the new layer's bytes are stored: compressed or not.
    pub packing: Packing,
    /// The form of the new image: one more layer, or a single one.
    pub form: Form,
}

/// The plans that determine the order of an image.
struct Chosen {
    plans: ImagePlans,
    /// A file with only these plans.
    file: Vec<u8>,
    about: About,
}

impl OrderRequest {
    /// Makes the new image, and publishes the plans with it. Returns the report about the image, and the digest of the
    /// manifest of the published plans. The digest is `None` if publishing the plans failed: that is only logged,
    /// because the image is as good without them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the target has no tag; [`ErrorKind::NotFound`] if there is no such plan; errors of
    /// reading the plans; those of [`optimize`].
    pub fn make(
        &self,
        stores: StoreAccess<'_>,
        progress: &dyn Progress,
    ) -> Result<(OptimizeReport, Option<Digest>)> {
        self.target.tag()?;
        let source = Source::open(&self.image, stores)?;
        let chosen = self.chosen(&source, stores)?;
        let lists = self.lists(&chosen.plans)?;
        let request =
            OptimizeRequest { target: &self.target, plans: &lists, packing: &self.packing, form: self.form };
        let made = optimize(&source, &request, stores, progress)?;
        let plan = match self.publish(&made, chosen, stores) {
            Ok(digest) => Some(digest),
            Err(error) => {
                tracing::warn!(%error, "the plan could not be published with the new image");
                None
            }
        };
        Ok((made, plan))
    }

    fn chosen(&self, source: &Source, stores: StoreAccess<'_>) -> Result<Chosen> {
        let Some(path) = &self.plans else {
            let found = self.published(source, stores)?;
            let about = |e: Error| e.about(format!("the published plan {}", found.digest));
            let (plans, _) = self.choose(source, &found.bytes[..]).map_err(about)?;
            return Ok(Chosen { plans, file: found.bytes.to_vec(), about: found.about });
        };
        let about = |e: Error| e.about(path.display());
        let (plans, of_all) =
            FileSource::open(path).and_then(|file| self.choose(source, file)).map_err(about)?;
        let name = RecordedImage { image: source.known_as().to_string(), size: source.image().disk().size() };
        let only = Plans::of_chosen(plans.clone(), &of_all, &name);
        let mut file = Vec::new();
        only.write(&mut file)?;
        let about = About { traces: only.provenance().traces, policy: of_all.policy, ..About::default() };
        Ok(Chosen { plans, file, about })
    }

    /// The plan that was published with the image, or with the one that it was optimized from.
    fn published(&self, source: &Source, stores: StoreAccess<'_>) -> Result<FoundPlan> {
        let store = headstart_store::open(&self.image.location, stores.settings)?;
        let image = source.image();
        let finding = plan_artifact::find_known(&*store, &image.digest, &image.manifest);
        stores.runtime.block_on(finding)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "no plan was published with it").about(&self.image).remedy(
                "make one of recorded boots (`headstart train --publish`), or name a file of plans (--plans)",
            )
        })
    }

    /// Publishes the plans with the new image, too, because the disk is the same.
    fn publish(&self, made: &OptimizeReport, chosen: Chosen, stores: StoreAccess<'_>) -> Result<Digest> {
        let store = headstart_store::open(&self.target.location, &stores.settings.without_mirrors())?;
        let publishing = plan_artifact::publish(&store, &made.digest, chosen.file.into(), &chosen.about);
        Ok(stores.runtime.block_on(publishing)?.digest)
    }

    fn choose(&self, source: &Source, file: impl ReadAt) -> Result<(ImagePlans, Provenance)> {
        let (mut key, map) = layer_map::of_open(source.image())?;
        key.image = self.known_as.clone().unwrap_or_else(|| source.known_as().to_string());
        let file = PlanFile::open(file)?;
        let mut plans = file.choose_layered(&key, &Metadata::default(), Some(&map))?;
        if plans.groups.is_empty() && self.plans.is_none() {
            // Plans that are published with an image are only for that image, whatever name its boots had.
            plans = file.read_all()?.sole().map_or(plans, |(_, sole)| ImagePlans::clone(&sole));
        }
        if plans.groups.is_empty() {
            let image = key.image.escape_debug();
            let cause = format!("has no plans for {image} of {}", ByteSize(key.size));
            return Err(Error::new(ErrorKind::NotFound, cause)
                .remedy("`headstart plan show` lists what it has; --known-as says what it calls the image"));
        }
        Ok((plans, file.provenance().clone()))
    }

    /// The plans, the one with the requested order first.
    fn lists<'a>(&self, plans: &'a ImagePlans) -> Result<Vec<&'a [PlanItem]>> {
        let first = plans.group(self.group)?;
        let mut lists: Vec<&[PlanItem]> =
            first.at(self.bandwidth).map(|plan| &*plan.items).into_iter().collect();
        if self.with_others {
            let groups = std::iter::once(first).chain(likely(&plans.groups));
            lists.extend(groups.flat_map(|group| group.plans.iter().map(|plan| &*plan.items)));
        }
        Ok(lists)
    }
}

/// The groups that boots will most likely be of again. A single boot, of a crash or an upgrade perhaps, may read
/// several times as much as all others did.
fn likely(groups: &[GroupPlans]) -> impl Iterator<Item = &GroupPlans> {
    let all = groups.iter().fold(0, |all: u64, group| all.saturating_add(group.traces));
    groups.iter().filter(move |group| group.traces >= 2 && group.traces >= all.div_ceil(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_hardly_any_boots_are_left_out() {
        let group = |traces| GroupPlans {
            category: 0,
            entrypoint: String::new(),
            traces,
            centroid: headstart_plan::Centroid::default(),
            plans: Vec::new(),
            first_reads: Vec::new().into(),
        };
        let of = |traces: &[u64]| {
            let groups: Vec<_> = traces.iter().map(|traces| group(*traces)).collect();
            likely(&groups).map(|group| group.traces).collect::<Vec<_>>()
        };
        assert_eq!(of(&[5, 1, 1]), [5]);
        assert_eq!(of(&[50, 40, 10, 9]), [50, 40]);
        assert_eq!(of(&[9, 2]), [9, 2]);
        assert!(of(&[1]).is_empty());
    }
}
