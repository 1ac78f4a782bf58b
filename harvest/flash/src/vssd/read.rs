//! The pieces of a range of the disk.

use super::Vssd;
use crate::device::FlashBlock;
use crate::{Error, Result};
use headstart_block::exact;

/// A part of a range of the disk: contiguous bytes in one flash block, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The length in bytes.
    pub length: u64,
    /// The flash block, and the offset of the first byte within the block. `None` if the bytes are zeros that are
    /// not stored on flash.
    pub from: Option<(FlashBlock, u32)>,
}

/// An iterator over the pieces of a range, in the disk's order. Pieces that are contiguous on flash are
/// merged. It does not allocate.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    vssd: &'a Vssd,
    offset: u64,
    end: u64,
    next: Option<Piece>,
}

impl Vssd {
    /// Looks up the `length` bytes of the disk from `offset` on. The caller must [pin](super::Pins) each flash block
    /// before it releases the lock that protects this vSSD; otherwise the block may be erased before it is read. Lost
    /// pages appear as zeros here: [`Vssd::is_lost`] tells whether a page is lost.
    ///
    /// # Errors
    /// Invalid if a byte is beyond the disk.
    pub fn read(&self, offset: u64, length: u64) -> Result<Pieces<'_>> {
        let end = offset.checked_add(length).filter(|&end| end <= self.size()).ok_or_else(|| {
            Error::invalid(format!("{length} bytes from {offset} on are beyond the disk's {}", self.size()))
        })?;
        Ok(Pieces { vssd: self, offset, end, next: None })
    }

    /// Looks up one page of the disk. Returns its flash block, and the number of the page within that block;
    /// `None` if the page is not stored: it reads as zeros, or was lost ([`Vssd::is_lost`]).
    ///
    /// # Errors
    /// Invalid if the page is beyond the disk.
    pub fn locate(&self, page: u32) -> Result<Option<(FlashBlock, u32)>> {
        self.check(page, 1)?;
        let (block, at) = self.stripe.locate(page);
        Ok(self.map.lookup(block, at).map(|spot| (self.space.block(spot.entry), spot.page.into())))
    }
}

impl Pieces<'_> {
    /// The next bytes, within one page.
    fn within_page(&mut self) -> Option<Piece> {
        if self.offset >= self.end {
            return None;
        }
        let size = self.vssd.settings.geometry.page_size;
        let within = self.offset % u64::from(size);
        let page = exact(self.offset / u64::from(size), "the disk's pages have numbers of 32 bits");
        let length = (u64::from(size) - within).min(self.end - self.offset);
        self.offset += length;
        let (block, at) = self.vssd.stripe.locate(page);
        let from = self.vssd.map.lookup(block, at).map(|spot| {
            let within: u32 = exact(within, "it is less than a page");
            (self.vssd.space.block(spot.entry), u32::from(spot.page) * size + within)
        });
        Some(Piece { length, from })
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let mut piece = self.next.take().or_else(|| self.within_page())?;
        while let Some(more) = self.within_page() {
            let together = match (piece.from, more.from) {
                (None, None) => true,
                (Some((block, at)), Some((other, next))) => {
                    block == other && u64::from(at) + piece.length == u64::from(next)
                }
                _ => false,
            };
            if !together {
                self.next = Some(more);
                break;
            }
            piece.length += more.length;
        }
        Some(piece)
    }
}
