//! Plans that `headstart train` wrote to a file.

use crate::layer_map;
use headstart_block::{BlockDevice, ErrorKind, FileSource, PlanItem, Result};
use headstart_image::open_image::OpenImage;
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{ImagePlans, PlanFile, Plans};
use std::path::Path;

/// Opens a file of plans that `headstart train` wrote, and reads its index.
///
/// # Errors
/// Those of [`PlanFile::open`], and errors of opening the file. All of them name the file.
pub fn open_plans(path: &Path) -> Result<PlanFile<FileSource>> {
    PlanFile::open(FileSource::open(path)?).map_err(|e| match e.kind() {
        ErrorKind::Corrupt => {
            e.about(path.display()).remedy("name a file of plans, such as `headstart train -o` writes")
        }
        _ => e.about(path.display()),
    })
}

/// Reads a file of plans as a whole.
///
/// # Errors
/// As [`open_plans`]; [`ErrorKind::Corrupt`] if plans in the file are damaged.
pub fn read_plans(path: &Path) -> Result<Plans> {
    open_plans(path)?.read_all().map_err(|e| e.about(path.display()))
}

/// Returns the plans of a file for an open image: those of the image's own boots; otherwise plans made from its layers,
/// if layers that the file knows have at least half of the disk's data; otherwise those of the same image on disks of
/// other sizes; last plans made from layers that have less of it. [`ImagePlans::none`] if the file has none of these.
///
/// # Errors
/// As [`open_plans`]; [`ErrorKind::Corrupt`] if the chosen plans are damaged; those of
/// [`layer_map::of_open`].
pub fn plans_for(path: &Path, image: &OpenImage) -> Result<ImagePlans> {
    let (mut key, map) = layer_map::of_open(image)?;
    key.image = image.manifest.known_as(image.digest).to_string();
    let chosen = open_plans(path)?.choose_layered(&key, &Metadata::default(), Some(&map));
    chosen.map_err(|e| e.about(path.display()))
}

/// Returns the items of all plans that a file has for an open image, one plan after another, so that a block may occur
/// several times. These are the plans of the image's own boots, otherwise those of the same image on disks of other
/// sizes; empty if the file has neither.
///
/// # Errors
/// As [`open_plans`]; [`ErrorKind::Corrupt`] if the plans of the image are damaged.
pub fn items_of_file(path: &Path, image: &OpenImage) -> Result<Vec<PlanItem>> {
    let known_as = image.manifest.known_as(image.digest).to_string();
    let key = RecordedImage { image: known_as, size: image.disk().size() };
    let plans = FileSource::open(path)
        .and_then(PlanFile::open)
        .and_then(|file| file.choose(&key, &Metadata::default()));
    plans.map(|plans| plans.items()).map_err(|e| e.about(path.display()))
}
