//! The choices with which a vSSD is made.

use crate::device::Geometry;
use crate::{Error, Result};
use headstart_block::saturating;
use serde::{Deserialize, Serialize};

/// Flash blocks beyond the stored pages without which collecting makes no progress: two kept free for it, one open for
/// the user's writes and one for collected pages, and two that make sure that some block has a page to gain.
pub(super) const LEAST_SPARE: u32 = 6;

/// The most logical blocks that a long transfer is spread over: four for each of the 16 channels of BlockFlex's SSD,
/// one for each die.
const WIDEST: u32 = 64;
/// The widest interleave that may be set: the map is made for whole groups.
const MOST_INTERLEAVE: u32 = 4096;

/// The settings with which a vSSD is made. Only its size can change later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VssdSettings {
    /// The layout of the flash that the vSSD is on.
    pub geometry: Geometry,
    /// Size of the disk in bytes: a multiple of the page size, and at most 2^32 - 1 pages.
    pub size: u64,
    /// Spare flash beyond `size`, in percent of it; the vSSD gets at least six spare blocks. More spare flash
    /// makes garbage collection cheaper.
    pub spare: u32,
    /// Number of consecutive pages that are stored in one logical block before the next logical block takes
    /// over. Divides the number of pages in a block.
    pub unit: u32,
    /// Number of logical blocks that consecutive units are spread over, at most 4,096; 0 for an automatic choice: see
    /// [`VssdSettings::width`].
    pub interleave: u32,
    /// Number of pages that may be mapped one by one, outside of their logical block's flash block. If there are more,
    /// an idle vSSD copies logical blocks together again ("folds"). Each such page takes some 34 bytes of memory where
    /// few pages of a logical block are mapped in this way, and 12 to 20 bytes where many are.
    pub overlay_limit: u64,
    /// `true` if the size may exceed the capacity of the blocks, because a harvest VM's blocks come and go. A
    /// write can then fail for lack of space.
    pub thin: bool,
}

impl VssdSettings {
    /// Returns the settings for a vSSD of `size` bytes: 7% of spare flash, and folding when more than a
    /// sixteenth of the pages are mapped one by one.
    #[must_use]
    pub fn new(geometry: Geometry, size: u64) -> Self {
        let overlay_limit = size / u64::from(geometry.page_size.max(1)) / 16;
        Self { geometry, size, spare: 7, unit: 1, interleave: 0, overlay_limit, thin: false }
    }

    /// Returns the number of flash blocks that a vSSD of `size` bytes needs with these settings: those for its
    /// content, and the spare ones.
    #[must_use]
    pub fn blocks_needed(&self, size: u64) -> u64 {
        let stored = size.div_ceil(u64::from(self.geometry.block_size().max(1)));
        stored.saturating_add((stored.saturating_mul(self.spare.into()) / 100).max(LEAST_SPARE.into()))
    }

    /// Returns the largest size, in bytes, for which `blocks` flash blocks are enough: the inverse of
    /// [`Self::blocks_needed`]. 0 if they are enough for no size.
    #[must_use]
    pub fn size_of_blocks(&self, blocks: u64) -> u64 {
        let block = u64::from(self.geometry.block_size());
        let stored = (blocks.saturating_mul(100) / (100 + u64::from(self.spare)))
            .min(blocks.saturating_sub(LEAST_SPARE.into()));
        let fits = |stored: &u64| self.blocks_needed(stored * block) <= blocks;
        (stored.saturating_sub(1)..=stored + 1).rev().find(fits).unwrap_or(0) * block
    }

    /// Returns the number of logical blocks that consecutive units are spread over: `interleave` if that is
    /// not 0, otherwise as many as the spare blocks allow, a power of two up to 64.
    #[must_use]
    pub fn width(&self) -> u32 {
        if self.interleave > 0 {
            return self.interleave;
        }
        let stored = self.size / u64::from(self.geometry.block_size().max(1));
        let spare = self.blocks_needed(self.size).saturating_sub(stored);
        let most = saturating::<u32>((spare / 4).min(stored / 4)).clamp(1, WIDEST);
        1 << most.ilog2()
    }

    /// Pages of the disk.
    ///
    /// # Errors
    /// Invalid if the settings make no sense.
    pub(super) fn check(&self) -> Result<u32> {
        let Geometry { channels, dies, planes, blocks, pages, page_size } = self.geometry;
        let total = [u32::from(dies), planes.into(), blocks, channels.into()];
        let total = total.into_iter().try_fold(1_u32, u32::checked_mul);
        if total.is_none_or(|total| total == 0) || pages.checked_mul(page_size).is_none() {
            return Err(Error::invalid("flash needs 1 to 2^32 - 1 blocks, of less than 4 GiB"));
        }
        if pages == 0 || pages > u32::from(u16::MAX) || page_size == 0 || page_size % 512 != 0 {
            return Err(Error::invalid("flash needs 1 to 65,535 pages a block, of whole sectors"));
        }
        if self.unit == 0 || !pages.is_multiple_of(self.unit) {
            return Err(Error::invalid("the unit must divide the pages of a block").remedy("take 1"));
        }
        if self.width() > MOST_INTERLEAVE {
            return Err(Error::invalid(format!(
                "an interleave over {MOST_INTERLEAVE} logical blocks is too wide"
            )));
        }
        self.pages_of(self.size)
    }

    /// Pages of another size in bytes, if nothing else changes.
    ///
    /// # Errors
    /// Invalid if a vSSD cannot have it.
    pub(super) fn pages_of(&self, size: u64) -> Result<u32> {
        let pages = pages_of(size, self.geometry.page_size)?;
        let (width, block_pages) = (u64::from(self.width()), u64::from(self.geometry.pages));
        if u64::from(pages).div_ceil(width * block_pages) * width > u64::from(u32::MAX) {
            return Err(Error::invalid(format!("{size} bytes are more than 2^32 - 1 logical blocks"))
                .remedy("choose a smaller size, or flash with more pages a block"));
        }
        Ok(pages)
    }
}

/// Pages of a size in bytes.
fn pages_of(size: u64, page_size: u32) -> Result<u32> {
    let whole = size > 0 && size.is_multiple_of(page_size.into());
    let pages = size / u64::from(page_size);
    u32::try_from(pages).ok().filter(|&pages| whole && pages < u32::MAX).ok_or_else(|| {
        let page = u64::from(page_size).max(1);
        let most = page * u64::from(u32::MAX - 1);
        let cause =
            format!("{size} bytes are no size of a vSSD, which has whole flash pages of {page} bytes");
        let near = size.checked_next_multiple_of(page).unwrap_or(most).clamp(page, most);
        Error::invalid(cause)
            .remedy(format!("give {near} bytes, or another multiple of {page}; the least is {page}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_settings_are_the_papers_disk() {
        let settings = VssdSettings::new(Geometry::default(), 128 << 30);
        assert_eq!((settings.check().unwrap(), settings.width()), (8 << 20, 64));
        assert_eq!(settings.blocks_needed(settings.size), 32_768 + 2293);
    }

    #[test]
    fn a_size_of_too_many_logical_blocks_is_refused() {
        let geometry = Geometry { pages: 1, page_size: 512, ..Geometry::default() };
        let of = |pages: u64| {
            VssdSettings { interleave: 4096, ..VssdSettings::new(geometry, pages * 512) }.check()
        };
        let most = u64::from(u32::MAX) / 4096 * 4096;
        assert_eq!(of(most).unwrap(), u32::try_from(most).unwrap());
        assert!(of(most + 1).unwrap_err().to_string().contains("logical blocks"));
        let stripe = super::super::stripe::Stripe::new(4096, 1, 1);
        let last = u32::try_from(most).unwrap() - 1;
        assert_eq!((stripe.blocks(last + 1), stripe.locate(last)), (last + 1, (last, 0)));
        let two = Geometry { pages: 2, ..geometry };
        let large =
            VssdSettings { interleave: 4096, ..VssdSettings::new(two, u64::from(u32::MAX - 1) * 512) };
        assert_eq!(large.check().unwrap(), u32::MAX - 1);
    }

    #[test]
    fn small_disks_are_striped_over_fewer_channels() {
        let width = |blocks: u64| VssdSettings::new(Geometry::default(), blocks << 22).width();
        assert_eq!([1, 8, 64, 256, 2048, 65_536].map(width), [1, 1, 1, 4, 32, 64]);
    }

    #[test]
    fn sizes_and_units_without_sense_are_refused() {
        let good = VssdSettings::new(Geometry::default(), 1 << 30);
        let odd = VssdSettings { size: (1 << 30) + 1, ..good.clone() };
        let none = VssdSettings { size: 0, ..good.clone() };
        let unit = VssdSettings { unit: 3, ..good.clone() };
        assert!(good.check().is_ok());
        assert!([odd, none, unit].iter().all(|settings| settings.check().is_err()));
    }
}
