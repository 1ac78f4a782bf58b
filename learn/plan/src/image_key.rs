//! [`RecordedImage`]: what plans are made for.

use headstart_trace::Creation;

/// The subject of plans: an image at a size of disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordedImage {
    /// The id of the image ([`Creation::image_id`]).
    pub image: String,
    /// Bytes of the disk; 0 if that is not known.
    pub size: u64,
}

impl RecordedImage {
    /// The key of a creation.
    #[must_use]
    pub fn of(creation: &Creation) -> Self {
        Self { image: creation.image_id().to_owned(), size: creation.size }
    }
}
