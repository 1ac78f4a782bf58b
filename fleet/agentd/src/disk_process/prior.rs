//! The images that the disks of an agent had before, and those that they have now.

use crate::disks::{Held, KeptImage};
use headstart_block::Result;
use headstart_disk::KnownImage;
use headstart_diskd::{DiskRequest, DiskSession, NamedDisk, PriorImage};
use headstart_image::named_image::NamedImage;

/// The earlier state of the disks, if an agent looks after this process.
pub enum PriorDisks {
    /// No earlier process is known: tags are resolved by their stores.
    Nothing,
    /// A process of an earlier version served them, which did not record the digests of tags.
    Served,
    /// The disks had these images, and still have them.
    Had(Vec<KeptImage>),
}

impl PriorDisks {
    /// The state that a process found.
    #[must_use]
    pub fn of(held: Option<Held>) -> Self {
        match held {
            Some(Held { images: Some(images), .. }) => Self::Had(images),
            Some(Held { has_served: true, .. }) => Self::Served,
            _ => Self::Nothing,
        }
    }

    /// `true` if no earlier process is known.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    /// `true` if these are the images that the disks had, so that nothing has to be recorded.
    #[must_use]
    pub fn is_noted(&self, images: &[KeptImage]) -> bool {
        matches!(self, Self::Had(noted) if noted == images)
    }

    /// The request for the disk of an image.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if the disks had other images.
    pub fn request(&self, image: &NamedImage) -> Result<DiskRequest> {
        let prior = match self {
            Self::Nothing => PriorImage::None,
            Self::Served => PriorImage::Unrecorded,
            Self::Had(images) => {
                recorded(KeptImage::find(images, &image.name, &image.reference.to_string())?)
            }
        };
        Ok(DiskRequest { image: image.clone(), prior })
    }
}

/// The image of a disk as it was recorded.
#[must_use]
pub fn recorded(kept: &KeptImage) -> PriorImage {
    let image = KnownImage { digest: kept.digest, manifest: kept.manifest.clone().into_bytes() };
    PriorImage::Recorded { image, writable: kept.writable }
}

/// The images of the disks, to be held while they are attached.
#[must_use]
pub fn kept_images(session: &DiskSession) -> Vec<KeptImage> {
    let kept = |disk: &NamedDisk| KeptImage {
        name: disk.name.clone(),
        image: disk.asked.clone(),
        digest: disk.digest,
        // A manifest is JSON, and so it is text.
        manifest: String::from_utf8_lossy(&disk.manifest_bytes).into_owned(),
        writable: disk.disk.writable().map(|writable| writable.uuid()),
    };
    session.disks.iter().map(kept).collect()
}
