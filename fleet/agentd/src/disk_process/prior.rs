//! The images that the disks of an agent had before, and those that they have now.

use crate::disks::{Held, KeptImage};
use headstart_block::Result;
use headstart_disk::KnownImage;
use headstart_diskd::{DiskRequest, DiskSession, NamedDisk, PriorImage};
use headstart_image::named_image::NamedImage;

/// The images that the disks of this process had in an earlier process, before it died or was replaced.
pub enum PriorDisks {
    /// No earlier process is known: tags are resolved by their stores.
    Nothing,
    /// The disks were served by a process of an earlier version, which did not record the digests of tags.
    Served,
    /// The disks had these images, and must get the same ones now.
    Had(Vec<KeptImage>),
}

impl PriorDisks {
    /// Returns what is known of an earlier process. `held` is the result of
    /// [`hold_pid_file`](crate::disks::hold_pid_file), or `None` if no agent looks after this process; the result is
    /// then [`PriorDisks::Nothing`].
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

    /// Returns `true` if exactly `images` were recorded by an earlier process, so that they need not be recorded again;
    /// `false` if nothing was recorded.
    #[must_use]
    pub fn is_noted(&self, images: &[KeptImage]) -> bool {
        matches!(self, Self::Had(noted) if noted == images)
    }

    /// Returns the request to open a disk of `image`. If an earlier process recorded its images, the request has the
    /// digest and the manifest that `image` had then. Otherwise it has neither.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Conflict`] if images were recorded and `image` is not among them.
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

/// Converts a recorded image into the form in which a disk is opened with it.
#[must_use]
pub fn recorded(kept: &KeptImage) -> PriorImage {
    let image = KnownImage { digest: kept.digest, manifest: kept.manifest.clone().into_bytes() };
    PriorImage::Recorded { image, writable: kept.writable }
}

/// Returns the images that the disks of this process have now, in the form in which they are recorded for later
/// processes.
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
