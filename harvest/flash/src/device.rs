//! Flash: channels that work at the same time, made of blocks that are erased whole and programmed page by page.
//!
//! | module | content |
//! |---|---|
//! | [`geometry`] | the build of flash, and the number of a block |
//! | [`timing`] | the duration of operations on a channel |
//! | [`emulator`] | flash in memory, which breaks when told to |
//! | [`mod@file`] | flash in a file, a partition, an NVMe namespace |
//! | [`blank`] | a check for data on a device that is to be made flash |
//! | [`claim`] | the mark of flash that is being made, so that it can be begun again |
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

/// The reason that an operation on flash failed.
#[derive(Debug)]
pub enum FlashError {
    /// The block cannot be programmed or erased any more: move its readable data elsewhere and never use it again. Its
    /// data is still there, also after a failed erase.
    Bad(FlashBlock),
    /// The page was not erased since it was last programmed, or the pages before it were passed: a fault of the
    /// caller.
    NotErased(FlashBlock, u32),
    /// This page of the block cannot be read, even after further tries. It is the page's own fault only if the flash
    /// [answers](Flash::answers) otherwise.
    Unreadable(FlashBlock, u32),
    /// Anything else: the file below cannot be read, power was lost.
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

/// Flash: the storage of vSSDs. All methods may be called from any thread; no two callers program or erase the same
/// block at once, which is the duty of their owner.
pub trait Flash: Send + Sync {
    /// The geometry.
    fn geometry(&self) -> Geometry;

    /// Fills `buf` with the bytes of `block` from `offset` on, which may span pages. Erased pages read as zeros.
    ///
    /// # Errors
    /// [`FlashError::Unreadable`] for the first page that cannot be read; [`FlashError::Failed`].
    fn read(&self, block: FlashBlock, offset: u32, buf: &mut [u8]) -> Result<(), FlashError>;

    /// Programs whole pages of `block`, from `page` on. Pages of a block are programmed in ascending order, each once
    /// between two erasures; some may be left out.
    ///
    /// # Errors
    /// [`FlashError::Bad`]; pages of this call may or may not hold their data then.
    fn program(&self, block: FlashBlock, page: u32, data: &[u8]) -> Result<(), FlashError>;

    /// Erases `block`: when it returns, every byte of it reads as zero, after a loss of power too.
    ///
    /// # Errors
    /// [`FlashError::Bad`]; the block's data may still be there. Any other error is no fault of the block: it is as if
    /// it had not been erased, and may be tried again.
    fn erase(&self, block: FlashBlock) -> Result<(), FlashError>;

    /// Erases `block` for its present holder: every byte of it reads as zero, but after a loss of power its old data
    /// may be back, until the next [`flush`](Self::flush). Returns `true` if the erasure outlasts a loss of power
    /// already.
    ///
    /// # Errors
    /// As [`Self::erase`].
    fn erase_soon(&self, block: FlashBlock) -> Result<bool, FlashError> {
        self.erase(block).map(|()| true)
    }

    /// Erases several blocks, which costs a file one wait for its disk instead of one a block. The first result is
    /// that of the first block, and so on.
    fn erase_many(&self, blocks: &[FlashBlock]) -> Vec<Result<(), FlashError>> {
        blocks.iter().map(|block| self.erase(*block)).collect()
    }

    /// Makes everything programmed before this call durable.
    ///
    /// # Errors
    /// [`FlashError::Failed`]; then nothing since the last flush may be relied on.
    fn flush(&self) -> Result<(), FlashError>;

    /// `true` if any page of other blocks than `apart` can be read now, from the flash itself and not from memory.
    /// Takes as long as a flush and a few reads.
    fn answers(&self, apart: FlashBlock) -> bool {
        let _ = apart;
        true
    }

    /// `true` if the block was found bad: as made, or since.
    fn is_bad(&self, block: FlashBlock) -> bool;

    /// The number of erasures of the block.
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
