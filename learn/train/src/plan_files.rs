//! Plans that `headstart train` wrote to a file.

use crate::layer_map;
use headstart_block::{BlockDevice, ErrorKind, FileSource, PlanItem, Result};
use headstart_image::open_image::OpenImage;
use headstart_plan::knowledge::RecordedImage;
use headstart_plan::zero_shot::Metadata;
use headstart_plan::{ImagePlans, PlanFile, Plans};
use std::path::Path;

/// Opens a file of plans that `headstart train` wrote.
///
/// # Errors
/// If the file cannot be read or holds no plans.
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
/// As [`open_plans`].
pub fn read_plans(path: &Path) -> Result<Plans> {
    open_plans(path)?.read_all().map_err(|e| e.about(path.display()))
}

/// The plans of a file for an open image: those of its own boots, otherwise those of its layers.
///
/// # Errors
/// As [`open_plans`]; if the image has too many layers.
pub fn plans_for(path: &Path, image: &OpenImage) -> Result<ImagePlans> {
    let (mut key, map) = layer_map::of_open(image)?;
    key.image = image.manifest.known_as(image.digest).to_string();
    let chosen = open_plans(path)?.choose_layered(&key, &Metadata::default(), Some(&map));
    chosen.map_err(|e| e.about(path.display()))
}

/// The items of all plans of a file for an open image: those of its own boots, otherwise those of images like it.
///
/// # Errors
/// As [`open_plans`].
pub fn items_of_file(path: &Path, image: &OpenImage) -> Result<Vec<PlanItem>> {
    let known_as = image.manifest.known_as(image.digest).to_string();
    let key = RecordedImage { image: known_as, size: image.disk().size() };
    let plans = FileSource::open(path)
        .and_then(PlanFile::open)
        .and_then(|file| file.choose(&key, &Metadata::default()));
    plans.map(|plans| plans.items()).map_err(|e| e.about(path.display()))
}
