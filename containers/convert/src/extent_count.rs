//! The number of extents of a layer in the making, and of the layers below.
//!
//! An extent is a piece of the disk that a layer stores in one place; the table of a layer has a record for each. The
//! tables of a layer in the making and of those below it are in memory, so their maker must not choose how many extents
//! there are. Files of a container's layer are stored one after the other and are few extents, whatever their number;
//! metadata that changes in many places, and small files whose data stays in the container's layer, are more.

use headstart_block::{Error, Result};

/// The count of a layer's extents.
#[derive(Debug)]
pub(crate) struct ExtentCount {
    /// The extents so far, with those of the layers below.
    count: u64,
    limit: u64,
    last: Option<LastExtent>,
}

/// The end of the extent that was counted last, which may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastExtent {
    /// The byte of the disk behind it.
    end: u64,
    /// The byte of the container's layer behind it, if its data is there.
    place: Option<u64>,
}

impl ExtentCount {
    /// Begins with the extents of the layers below; `limit` is the most of all.
    pub(crate) fn new(below: u64, limit: u64) -> Self {
        Self { count: below, limit, last: None }
    }

    /// Counts bytes from byte `start` of the disk on that the layer stores behind the last ones.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] if they are an extent beyond the limit.
    pub(crate) fn own(&mut self, start: u64, len: u64) -> Result<()> {
        self.add(start, len, None)
    }

    /// Counts bytes that are in the container's layer, from byte `place` of its tar on.
    ///
    /// # Errors
    /// As [`ExtentCount::own`].
    pub(crate) fn of_target(&mut self, start: u64, len: u64, place: u64) -> Result<()> {
        self.add(start, len, Some(place))
    }

    /// Counts a range that is recorded as zeros.
    ///
    /// # Errors
    /// As [`ExtentCount::own`].
    pub(crate) fn zeros(&mut self) -> Result<()> {
        self.last = None;
        self.one_more()
    }

    // An extent of more than 8 MiB takes several records. They are not counted: the limit on the bytes of a tar is that
    // on their number, some 16,000.
    fn add(&mut self, start: u64, len: u64, place: Option<u64>) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if self.last != Some(LastExtent { end: start, place }) {
            self.one_more()?;
        }
        self.last = Some(LastExtent { end: start + len, place: place.map(|place| place + len) });
        Ok(())
    }

    fn one_more(&mut self) -> Result<()> {
        self.count += 1;
        check_extents(self.count, self.limit)
    }
}

/// Refuses an image whose layers so far have more extents than the limit.
///
/// # Errors
/// [`headstart_block::ErrorKind::Unsupported`] if there are more.
pub(crate) fn check_extents(count: u64, limit: u64) -> Result<()> {
    if count <= limit {
        return Ok(());
    }
    let cause =
        format!("the disk is in {count} pieces or more, over the limit of {limit} extents for an image");
    let more = count.max(limit.saturating_mul(2));
    Err(Error::unsupported(cause).remedy(format!(
        "if the image is trusted, raise the limit `extents` (--limit extents={more}), at some 40 bytes of memory for \
         each"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::ErrorKind;

    #[test]
    fn extents_are_counted_where_the_disk_or_the_place_does_not_go_on() {
        let mut count = ExtentCount::new(10, 100);
        let mut so_far = |step: &dyn Fn(&mut ExtentCount) -> Result<()>| {
            step(&mut count).unwrap();
            count.count
        };
        assert_eq!(so_far(&|count| count.own(0, 4096)), 11);
        assert_eq!(so_far(&|count| count.own(4096, 512)), 11);
        assert_eq!(so_far(&|count| count.own(9000, 0)), 11, "nothing is no extent");
        assert_eq!(so_far(&|count| count.own(8192, 512)), 12);
        assert_eq!(so_far(&|count| count.of_target(8704, 512, 0)), 13);
        assert_eq!(so_far(&|count| count.of_target(9216, 512, 512)), 13);
        assert_eq!(so_far(&|count| count.of_target(9728, 512, 512)), 14);
        assert_eq!(so_far(&|count| count.own(10_240, 512)), 15);
        assert_eq!(so_far(&ExtentCount::zeros), 16);
        assert_eq!(so_far(&|count| count.own(10_752, 512)), 17, "zeros were between them");
    }

    #[test]
    fn one_extent_more_than_the_limit_is_refused() {
        let mut count = ExtentCount::new(1, 3);
        for start in [0, 4096, 16_384] {
            count.own(start, 4096).unwrap();
        }
        let error = count.own(65_536, 4096).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(text.contains("4 pieces") && text.contains("--limit extents=6"), "{text}");
    }
}
