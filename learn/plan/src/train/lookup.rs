//! The lookup of plans by the name of an image.

use super::Plans;
use crate::knowledge::RecordedImage;
use crate::plans::ImagePlans;
use crate::zero_shot::ChoiceReason;
use headstart_block::{ByteSize, Error, ErrorKind, Result};
use std::cmp::Reverse;
use std::sync::Arc;

/// The most names that an error lists.
const LISTED_MAX: usize = 20;

impl Plans {
    /// Returns the plans of all starts of the image that has the name `image` and, if `size` is given, a disk of `size`
    /// bytes. Of several sizes, plans from the image's own traces are preferred, and among these the plans from the
    /// most traces.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such image. The error lists names of images that have plans.
    pub fn named(&self, image: &str, size: Option<u64>) -> Result<Arc<ImagePlans>> {
        let traces = |plans: &ImagePlans| plans.groups.iter().map(|group| group.traces).sum::<u64>();
        let named = self.starts_of(image).map(|(key, _, plans)| (key, plans));
        let sized = named.filter(|(key, _)| size.is_none_or(|size| size == key.size));
        let rank = |key: &RecordedImage, plans: &ImagePlans| {
            (plans.reason == ChoiceReason::Trained, traces(plans), Reverse(key.size))
        };
        let chosen = sized.max_by_key(|(key, plans)| rank(key, plans));
        let key = chosen.map(|(key, _)| RecordedImage { image: image.to_owned(), size: key.size });
        key.and_then(|key| self.all_starts(&key)).ok_or_else(|| self.unknown(image, size))
    }

    fn unknown(&self, image: &str, size: Option<u64>) -> Error {
        let sized = size.map_or(String::new(), |size| format!(" of {}", ByteSize(size)));
        let mut known: Vec<_> = self.images().map(|(key, _)| key.image.escape_debug().to_string()).collect();
        known.dedup();
        let more = if known.len() > LISTED_MAX { ", ..." } else { "" };
        known.truncate(LISTED_MAX);
        Error::new(ErrorKind::NotFound, format!("has no plans for `{}`{sized}", image.escape_debug()))
            .remedy(format!("name one of {}{more}", known.join(", ")))
    }
}
