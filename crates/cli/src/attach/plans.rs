//! Where an attach looks for plans.

use super::recording::RecordArgs;
use crate::layer_map;
use crate::report::count;
use headstart_block::{Error, FileSource, Result};
use headstart_disk::preloading::{Answer, Opened, of_items};
use headstart_disk::{Found, Origin, PlanSource, Search, Sought};
use headstart_image::optimize::boot_order;
use headstart_image::plan_artifact;
use headstart_plan::knowledge::ImageKey;
use headstart_plan::layers::LayerMap;
use headstart_plan::zero_shot::{Metadata, Reason};
use headstart_plan::{ImagePlans, PlanFile};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinError;

/// Files of plans in a directory that are looked into; the first by name.
const FILES_MAX: usize = 64;

/// What an attach with `--policy auto`, or with a file of plans, looks at.
pub(super) struct Places {
    /// A file of plans, or a directory of such.
    files: PathBuf,
    /// Whether it must be there.
    named: bool,
    /// Whether the image's own store and layers are looked at, too.
    everywhere: bool,
    /// What the user says of the disks.
    said: RecordArgs,
}

impl Places {
    /// All: what comes with the image, and the files at `plans`, or else at `usual`.
    pub(super) fn all(plans: Option<&Path>, usual: PathBuf, said: &RecordArgs) -> Self {
        let files = plans.map_or(usual, Path::to_owned);
        Self { files, named: plans.is_some(), everywhere: true, said: said.clone() }
    }

    /// Nothing but one file of plans.
    pub(super) fn only(file: &Path, said: &RecordArgs) -> Self {
        Self { files: file.to_owned(), named: true, everywhere: false, said: said.clone() }
    }
}

impl PlanSource for Places {
    fn searches(&self, sought: &Arc<Sought>) -> Vec<Search> {
        let metadata = self.said.metadata(&sought.manifest);
        let files = Files { files: self.files.clone(), named: self.named, metadata: metadata.clone() };
        let given = !self.everywhere;
        let here = Arc::clone(sought);
        let mut searches = vec![Search {
            place: "a file of plans",
            answer: Box::pin(async move {
                let Some(opened) = here.opened().await else { return Answer::default() };
                let looked = tokio::task::spawn_blocking(move || files.answer(&here, &opened, given)).await;
                broken_off(looked)
            }),
        }];
        if self.everywhere {
            let there = Arc::clone(sought);
            searches.push(Search {
                place: "the plan beside the image",
                answer: Box::pin(async move {
                    // A thread of its own, for this future cannot go from one to another.
                    let runtime = Handle::current();
                    let asked =
                        tokio::task::spawn_blocking(move || runtime.block_on(artifact(&there, &metadata)));
                    broken_off(asked.await.map(Answer::from))
                }),
            });
            let within = Arc::clone(sought);
            searches.push(Search {
                place: "the image's boot layer",
                answer: Box::pin(async move { boot_layer(&within).await.into() }),
            });
        }
        searches
    }
}

fn broken_off(answer: std::result::Result<Answer, JoinError>) -> Answer {
    answer.unwrap_or_else(|e| Err(Error::invalid("looking for plans broke off").caused_by(e)).into())
}

/// What boots of a disk are known by.
fn key(sought: &Sought, opened: &Opened) -> ImageKey {
    ImageKey { image: sought.image().to_string(), size: opened.size }
}

/// The plan that was published with the image, or with the one that it was made from.
async fn artifact(sought: &Sought, metadata: &Metadata) -> Result<Option<Found>> {
    let mut found = plan_artifact::find(&*sought.store, &sought.digest).await?;
    if found.is_none() && sought.image() != sought.digest {
        found = plan_artifact::find(&*sought.store, &sought.image()).await?;
    }
    let Some(found) = found else { return Ok(None) };
    let Some(opened) = sought.opened().await else { return Ok(None) };
    let about = |e: Error| e.about(format!("artifact {}", found.digest));
    let file = PlanFile::open(found.bytes.to_vec()).map_err(about)?;
    let mut plans = file.choose(&key(sought, &opened), metadata).map_err(about)?;
    if plans.reason != Reason::Trained {
        // It is of this image alone, whatever its boots were called, and however large their disks were.
        let all = file.read_all().map_err(about)?;
        if let Some((_, own)) = all.images().max_by_key(|(_, plans)| traces(plans)) {
            plans = ImagePlans::clone(own);
        }
    }
    if plans.groups.is_empty() {
        return Err(about(Error::invalid("has no plan for this image")));
    }
    Ok(Some(Found { origin: Origin::Artifact, why: why(&plans), plans: Arc::new(plans) }))
}

/// The order in which the image's boot layer lies.
async fn boot_layer(sought: &Sought) -> Result<Option<Found>> {
    if !sought.manifest.layers.iter().any(|layer| layer.boot_bytes().is_some()) {
        return Ok(None);
    }
    let Some(opened) = sought.opened().await else { return Ok(None) };
    let items = boot_order(&opened.stack, &sought.manifest);
    if items.is_empty() {
        return Ok(None);
    }
    let why = "the order of the image's boot layer".to_owned();
    Ok(Some(Found { origin: Origin::BootLayer, plans: Arc::new(of_items(&items)), why }))
}

fn traces(plans: &ImagePlans) -> u64 {
    plans.groups.iter().fold(0, |sum, group| sum.saturating_add(group.traces))
}

/// What plans were made from, for people.
fn why(plans: &ImagePlans) -> String {
    let boots = count(traces(plans), "boot");
    match plans.reason {
        Reason::Trained => format!("{boots} of this image"),
        Reason::Layers { known, all } => format!("{boots} of images with {known} of its {all} layers"),
        Reason::Image => format!("{boots} of this image on disks of other sizes"),
        Reason::FamilyUserMeta => format!("{boots} of images of the same family, user and configuration"),
        Reason::FamilyUser => format!("{boots} of images of the same family and user"),
        Reason::FamilyMeta => format!("{boots} of images of the same family and configuration"),
        Reason::Family => format!("{boots} of images of the same family"),
        Reason::None => "nothing".to_owned(),
    }
}

/// Files of plans on this host.
struct Files {
    files: PathBuf,
    named: bool,
    metadata: Metadata,
}

impl Files {
    fn answer(&self, sought: &Sought, opened: &Opened, given: bool) -> Answer {
        let paths = match self.paths() {
            Ok(paths) => paths,
            Err(error) => return Err(error).into(),
        };
        if paths.is_empty() {
            return Answer::default();
        }
        let key = key(sought, opened);
        let layers = layer_map::of_disk(&opened.stack, &sought.manifest);
        let (map, mut failures) = match layers {
            Ok(map) => (Some(map), Vec::new()),
            Err(error) => (None, vec![error]),
        };
        let mut best: Option<(u32, ImagePlans)> = None;
        for path in &paths {
            match look_into(path, &key, &self.metadata, map.as_ref()) {
                Ok(plans) if plans.groups.is_empty() => {}
                Ok(plans) => {
                    let rank = rank(plans.reason);
                    if best.as_ref().is_none_or(|(before, _)| rank < *before) {
                        best = Some((rank, plans));
                    }
                }
                Err(error) => failures.push(error.about(path.display())),
            }
        }
        let found = best.map(|(rank, plans)| {
            let origin = match rank {
                _ if given => Origin::Given,
                0 => Origin::File,
                _ => Origin::ZeroShot,
            };
            Found { origin, why: why(&plans), plans: Arc::new(plans) }
        });
        if found.is_none() && failures.is_empty() && given {
            failures.push(Error::invalid("has no plan for this image").about(self.files.display()));
        }
        Answer { found, failures }
    }

    /// The files, by name.
    fn paths(&self) -> Result<Vec<PathBuf>> {
        let about = |e| Error::io("cannot be read", e).about(self.files.display());
        match fs::metadata(&self.files) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Ok(vec![self.files.clone()]),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !self.named => return Ok(Vec::new()),
            Err(e) => return Err(about(e)),
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.files).map_err(about)? {
            let path = entry.map_err(about)?.path();
            // What somebody is writing has a name with a point before it.
            let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !is_hidden && path.is_file() {
                paths.push(path);
            }
        }
        paths.sort();
        paths.truncate(FILES_MAX);
        Ok(paths)
    }
}

fn look_into(path: &Path, key: &ImageKey, metadata: &Metadata, map: Option<&LayerMap>) -> Result<ImagePlans> {
    PlanFile::open(FileSource::open(path)?)?.choose_layered(key, metadata, map)
}

/// Which plans are better: 0 for those of the image itself, the more the farther.
fn rank(reason: Reason) -> u32 {
    match reason {
        Reason::Trained => 0,
        Reason::Image => 1,
        Reason::Layers { known, all } if known >= all => 2,
        Reason::Layers { .. } => 3,
        Reason::FamilyUserMeta => 4,
        Reason::FamilyUser => 5,
        Reason::FamilyMeta => 6,
        Reason::Family => 7,
        Reason::None => 8,
    }
}
