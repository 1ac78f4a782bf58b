//! Flash: channels that work at the same time, made of blocks that are erased whole and programmed page by page.
//!
//! | module | content |
//! |---|---|
//! | [`geometry`] | the layout of flash, and the numbers of blocks |
//! | [`timing`] | the duration of operations on a channel |
//! | [`emulator`] | flash in memory, which fails on request |
//! | [`mod@file`] | flash in a file, a partition, an NVMe namespace |
//! | [`blank`] | a check for data on a device that is to be made flash |
//! | [`claim`] | the mark of flash that is being made, so that an interrupted start can be repeated |
//! | [`table`] | the file that keeps the wear and the bad blocks of flash |

pub mod blank;
pub mod claim;
pub mod emulator;
pub mod file;
#[cfg(any(test, feature = "testing"))]
pub mod forks;
pub mod geometry;
pub mod table;
pub mod timing;

pub use emulator::Emulator;
pub use file::FileFlash;
pub use geometry::{FlashBlock, Geometry};

use std::fmt;

/// The error of an operation on flash.
#[derive(Debug)]
pub enum FlashError {
    /// The block is bad: it cannot be programmed or erased any more. Its data may still be there, also after a failed
    /// erasure. The caller copies the readable data elsewhere and never uses the block again.
    Bad(FlashBlock),
    /// The page was not erased since it was last programmed, or a later page of the block has been programmed
    /// already: a mistake of the caller.
    NotErased(FlashBlock, u32),
    /// The page of the block could not be read; flash in a file is read twice before this is returned. If the flash
    /// still [answers](Flash::answers), that page is damaged; if it does not, the whole flash cannot be reached.
    Unreadable(FlashBlock, u32),
    /// Any other failure, such as a file that cannot be read, a loss of power, or bytes that the flash does not have.
    Failed(headstart_block::Error),
}

impl fmt::Display for FlashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(block) => write!(f, "flash block {} is bad", block.0),
            Self::NotErased(block, page) => write!(f, "page {page} of flash block {} is not erased", block.0),
            Self::Unreadable(block, page) => {
                write!(f, "page {page} of flash block {} cannot be read", block.0)
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FlashError {}

/// A flash device, which stores the data of vSSDs. All methods may be called from any thread. The callers must
/// make sure that no two threads program or erase the same block at the same time.
pub trait Flash: Send + Sync {
    /// Returns the layout of the flash.
    fn geometry(&self) -> Geometry;

    /// Reads the bytes of `block` from `offset` on into `buf`; the range may span pages. Erased pages read as
    /// zeros.
    ///
    /// # Errors
    /// [`FlashError::Unreadable`] for the first page that cannot be read; [`FlashError::Failed`] for all
    /// other causes.
    fn read(&self, block: FlashBlock, offset: u32, buf: &mut [u8]) -> Result<(), FlashError>;

    /// Programs whole pages of `block`, from number `page` on. The caller must program the pages of a block in
    /// ascending order, each at most once between two erasures; pages may be left out.
    ///
    /// # Errors
    /// [`FlashError::Bad`] if the block is bad: each page of this call may or may not hold its data then.
    /// [`FlashError::NotErased`] if a page is not erased; [`FlashError::Failed`] for all other causes.
    fn program(&self, block: FlashBlock, page: u32, data: &[u8]) -> Result<(), FlashError>;

    /// Erases `block`. Afterwards every byte of it reads as zero, also after a loss of power.
    ///
    /// # Errors
    /// [`FlashError::Bad`] if the block is bad: its data may still be there. After any other error the block
    /// counts as not erased, and the call may be repeated.
    fn erase(&self, block: FlashBlock) -> Result<(), FlashError>;

    /// Erases `block` for its present user. Afterwards every byte of it reads as zero, but until the next
    /// [`flush`](Self::flush) a loss of power may bring the old data back. Returns `true` if the erasure is
    /// durable already.
    ///
    /// # Errors
    /// As [`Self::erase`].
    fn erase_soon(&self, block: FlashBlock) -> Result<bool, FlashError> {
        self.erase(block).map(|()| true)
    }

    /// Erases several blocks as [`Self::erase`] does, and returns one result for each, in the same order. Flash in a
    /// file is synced once, not once for each block; only if that sync fails, each block is erased and synced on its
    /// own.
    fn erase_many(&self, blocks: &[FlashBlock]) -> Vec<Result<(), FlashError>> {
        blocks.iter().map(|block| self.erase(*block)).collect()
    }

    /// Makes everything durable that was programmed before this call.
    ///
    /// # Errors
    /// [`FlashError::Failed`]: nothing that was programmed since the last successful flush may be relied on.
    fn flush(&self) -> Result<(), FlashError>;

    /// Tries to read a few pages of blocks other than `apart`, from the flash itself and not from a cache. Returns
    /// `true` if at least one can be read. `false` if the whole flash cannot be reached at present, or if flash in a
    /// file has data in no other block. Takes as long as a flush and a few reads. The default implementation reads
    /// nothing and returns `true`.
    fn answers(&self, apart: FlashBlock) -> bool {
        let _ = apart;
        true
    }

    /// Returns `true` if the block is bad: from the start, or since an operation on the block failed. Also `true` if
    /// the flash has no such block.
    fn is_bad(&self, block: FlashBlock) -> bool;

    /// Returns the number of times that the block was erased; 0 if the flash has no such block.
    fn wear(&self, block: FlashBlock) -> u32;
}

/// Checks that bytes are within a block.
fn within(geometry: &Geometry, block: FlashBlock, offset: u32, len: usize) -> Result<(), FlashError> {
    let end = u64::from(offset).saturating_add(len as u64);
    if block.0 >= geometry.total_blocks() || end > u64::from(geometry.block_size()) {
        return Err(outside(block));
    }
    Ok(())
}

/// The number of pages of a program: whole ones, within the block.
fn whole_pages(geometry: &Geometry, block: FlashBlock, page: u32, len: usize) -> Result<u32, FlashError> {
    let size = u64::from(geometry.page_size);
    let pages = len as u64 / size;
    let inside = u64::from(page) + pages <= u64::from(geometry.pages) && block.0 < geometry.total_blocks();
    match u32::try_from(pages) {
        Ok(pages) if inside && (len as u64).is_multiple_of(size) => Ok(pages),
        _ => Err(outside(block)),
    }
}

fn outside(block: FlashBlock) -> FlashError {
    let cause = format!("flash block {} does not have the pages that were asked for", block.0);
    FlashError::Failed(headstart_block::Error::invalid(cause))
}

fn failed(cause: &'static str, error: std::io::Error) -> FlashError {
    FlashError::Failed(headstart_block::Error::io(cause, error))
}

#[cfg(test)]
mod conformance;
