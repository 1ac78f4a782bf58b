//! The layout of flash: channels consist of dies, dies of planes, planes of blocks, and blocks of pages.

use headstart_block::{Error, SECTOR_SIZE, exact, saturating};
use serde::{Deserialize, Serialize};

/// An erase block, by its number from 0. The blocks of the first channel come first, then those of the
/// second, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlashBlock(pub u32);

/// The layout of flash: channels consist of dies, dies of planes, planes of blocks, and blocks of pages. The default is
/// the SSD of the BlockFlex paper (section 4.6): 1 TiB in 16 channels of 64 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Number of channels, which work independently of each other: 1 to 65,535.
    pub channels: u16,
    /// Number of dies in each channel, which share the channel's bus: at least 1.
    pub dies: u16,
    /// Number of planes in each die: at least 1.
    pub planes: u16,
    /// Number of blocks in each plane: at least 1.
    pub blocks: u32,
    /// Number of pages in each block: 1 to 65,535.
    pub pages: u32,
    /// Size of a page, in bytes: a multiple of a sector.
    pub page_size: u32,
}

impl Default for Geometry {
    fn default() -> Self {
        Self { channels: 16, dies: 4, planes: 4, blocks: 1024, pages: 256, page_size: 16 << 10 }
    }
}

/// Fewest blocks that a channel of [`Geometry::of_size`] has while its blocks or channels can still become fewer.
const FEW_BLOCKS: u64 = 64;

impl Geometry {
    /// Returns a layout for at most `bytes` bytes: 16 channels of 4 dies, with blocks of 4 MiB. Below 4 GiB
    /// the blocks are smaller, down to 256 KiB; below 256 MiB there are fewer channels. `None` below 1 MiB,
    /// and if there would be more blocks than block numbers (beyond 16 PiB).
    #[must_use]
    pub fn of_size(bytes: u64) -> Option<Self> {
        let mut flash = Self { planes: 1, blocks: 1, ..Self::default() };
        let fits =
            |flash: &Self| bytes / u64::from(flash.block_size()) / u64::from(flash.channels) >= FEW_BLOCKS;
        while flash.pages > 16 && !fits(&flash) {
            flash.pages /= 2;
        }
        while flash.channels > 1 && !fits(&flash) {
            flash.channels /= 2;
        }
        let blocks =
            bytes / u64::from(flash.block_size()) / u64::from(flash.channels) / u64::from(flash.dies);
        flash.blocks = u32::try_from(blocks).ok().filter(|blocks| *blocks > 0)?;
        let total = u64::from(flash.blocks) * u64::from(flash.dies) * u64::from(flash.channels);
        (total <= u64::from(u32::MAX)).then_some(flash)
    }

    /// Checks that no field is 0, that pages and their number are within the fields' ranges, and that the size of a
    /// block and the number of all blocks fit 32 bits.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if one of these does not hold.
    pub fn check(&self) -> Result<(), Error> {
        let channel = u64::from(self.dies) * u64::from(self.planes);
        let total =
            channel.checked_mul(u64::from(self.blocks)).map(|it| it.saturating_mul(u64::from(self.channels)));
        let counts = total.is_some_and(|total| (1..=u64::from(u32::MAX)).contains(&total));
        let pages = (1..=65_535).contains(&self.pages) && self.page_size > 0;
        let sectors = u64::from(self.page_size).is_multiple_of(SECTOR_SIZE);
        let block = u64::from(self.pages) * u64::from(self.page_size) <= u64::from(u32::MAX);
        if counts && pages && sectors && block {
            return Ok(());
        }
        Err(Error::invalid(format!("flash cannot be built like this: {self:?}")))
    }

    /// Returns the size of a block, in bytes.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.pages * self.page_size
    }

    /// Returns the number of blocks in each channel.
    #[must_use]
    pub fn channel_blocks(&self) -> u32 {
        u32::from(self.dies) * u32::from(self.planes) * self.blocks
    }

    /// Returns the number of blocks of the whole flash.
    #[must_use]
    pub fn total_blocks(&self) -> u32 {
        u32::from(self.channels) * self.channel_blocks()
    }

    /// Returns the size of the whole flash, in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.total_blocks()) * u64::from(self.block_size())
    }

    /// Returns the number of the channel that `block` is in, from 0. For a block that the flash does not have, the
    /// result is a channel number that the flash does not have either.
    #[must_use]
    pub fn channel(&self, block: FlashBlock) -> u16 {
        saturating(block.0 / self.channel_blocks())
    }

    /// Returns the number of the die that `block` is in, from 0 within its channel. Consecutive blocks are on
    /// different dies.
    #[must_use]
    pub fn die(&self, block: FlashBlock) -> u16 {
        exact(block.0 % self.channel_blocks() % u32::from(self.dies), "it is less than the number of dies")
    }

    /// The number of dies of a channel between one and the next that is taken in turn: 0 for the following die.
    #[must_use]
    pub(crate) fn dies_after(&self, last: u16, die: u16) -> u16 {
        let dies = self.dies.max(1);
        (die % dies + dies - last % dies + dies - 1) % dies
    }

    /// Returns the range of block numbers of `channel`, which must be less than the number of channels; otherwise the
    /// result is a range of blocks that the flash does not have.
    #[must_use]
    pub fn blocks_of(&self, channel: u16) -> std::ops::Range<u32> {
        let first = u32::from(channel) * self.channel_blocks();
        first..first + self.channel_blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_the_papers_ssd() {
        let ssd = Geometry::default();
        assert_eq!(ssd.size(), 1 << 40);
        assert_eq!((ssd.block_size(), ssd.channel_blocks()), (4 << 20, 16_384));
        assert_eq!(ssd.channel(FlashBlock(16_383)), 0);
        assert_eq!(ssd.channel(FlashBlock(16_384)), 1);
        assert_eq!(ssd.blocks_of(1), 16_384..32_768);
        assert_eq!([0, 1, 4].map(|block| ssd.die(FlashBlock(block))), [0, 1, 0]);
    }

    #[test]
    fn a_geometry_has_at_least_the_requested_size() {
        for (size, channels, block, blocks) in [
            (1 << 40, 16, 4 << 20, 16_384),
            (4 << 30, 16, 4 << 20, 64),
            (1 << 30, 16, 1 << 20, 64),
            (256 << 20, 16, 256 << 10, 64),
            (64 << 20, 4, 256 << 10, 64),
            (1 << 20, 1, 256 << 10, 4),
        ] {
            let flash = Geometry::of_size(size).unwrap();
            assert_eq!(
                (flash.channels, flash.block_size(), flash.channel_blocks()),
                (channels, block, blocks)
            );
            flash.check().unwrap();
        }
        assert_eq!(Geometry::of_size((1 << 20) - 1), None);
        assert_eq!(Geometry::of_size(u64::MAX), None);
        assert!(Geometry { pages: 0, ..Geometry::default() }.check().is_err());
        assert!(Geometry { blocks: u32::MAX, ..Geometry::default() }.check().is_err());
        assert!(Geometry { page_size: 100, ..Geometry::default() }.check().is_err());
    }
}
