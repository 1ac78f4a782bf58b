//! [`RecordedImage`]: what plans are made for.

use headstart_trace::Creation;

/// The key of traces and plans: an image, and the size of the disk that was made from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordedImage {
    /// The id of the image, as [`Creation::image_id`] returns it.
    pub image: String,
    /// The size of the disk, in bytes; 0 if it is unknown.
    pub size: u64,
}

impl RecordedImage {
    /// Returns the image and the size of the disk of a creation.
    #[must_use]
    pub fn of(creation: &Creation) -> Self {
        Self { image: creation.image_id().to_owned(), size: creation.size }
    }
}
