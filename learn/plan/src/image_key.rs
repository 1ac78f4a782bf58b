//! [`RecordedImage`]: what plans are made for.

use headstart_trace::Creation;

/// The sign between an image and an entrypoint in [`RecordedImage::image`].
const ENTRYPOINT_SIGN: char = '#';

/// The key of traces and plans: an image, and the size of the disk that was made from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordedImage {
    /// The id of the image, as [`Creation::image_id`] returns it. For starts of containers with a known entrypoint,
    /// `#` and the entrypoint follow: starts of other programs of an image read other blocks.
    pub image: String,
    /// The size of the disk, in bytes; 0 if it is unknown.
    pub size: u64,
}

impl RecordedImage {
    /// Returns the key of the boot with a creation: its image with its entrypoint, and the size of its disk.
    #[must_use]
    pub fn of(creation: &Creation) -> Self {
        Self::of_start(creation.image_id(), creation.entrypoint(), creation.size)
    }

    /// Returns the key of starts with an entrypoint of an image; empty for boots of machines, and for starts whose
    /// entrypoint is not known.
    #[must_use]
    pub fn of_start(image: &str, entrypoint: &str, size: u64) -> Self {
        let image = match entrypoint {
            "" => image.to_owned(),
            _ => format!("{image}{ENTRYPOINT_SIGN}{entrypoint}"),
        };
        Self { image, size }
    }

    /// Returns the key of the image without an entrypoint.
    #[must_use]
    pub fn without_entrypoint(&self) -> Self {
        let image = self.image.split_once(ENTRYPOINT_SIGN).map_or(&*self.image, |(image, _)| image);
        Self { image: image.to_owned(), size: self.size }
    }

    /// Returns the entrypoint of a key of `image`, which is empty for one without; `None` if the key is of another
    /// image.
    #[must_use]
    pub fn entrypoint_of(&self, image: &str) -> Option<&str> {
        match self.image.strip_prefix(image)? {
            "" => Some(""),
            rest => rest.strip_prefix(ENTRYPOINT_SIGN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_image_and_its_entrypoint() {
        let key = RecordedImage::of_start("sha256:1", "python app.py#2", 5);
        assert_eq!(key.entrypoint_of("sha256:1"), Some("python app.py#2"));
        assert_eq!(key.entrypoint_of("sha256:"), None);
        assert_eq!(key.without_entrypoint(), RecordedImage { image: "sha256:1".to_owned(), size: 5 });
        assert_eq!(RecordedImage::of_start("a", "", 5).entrypoint_of("a"), Some(""));
        assert_eq!(RecordedImage::of_start("ab", "", 5).entrypoint_of("a"), None);
    }
}
