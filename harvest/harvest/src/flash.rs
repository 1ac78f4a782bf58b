//! Flash: channels that work at the same time, made of blocks that are erased whole and programmed page by page.
//!
//! | module | what it is |
//! |---|---|
//! | [`geometry`] | how many of what, and the number of a block |
//! | [`timing`] | how long operations take on a channel |
//! | [`emulator`] | flash in memory, which breaks when told to |
//! | [`mod@file`] | flash in a file, a partition, an NVMe namespace |
//! | `blank` | whether there is something on what is to be made flash |

pub(crate) mod blank;
pub(crate) mod claim;
pub mod emulator;
pub mod file;
pub mod geometry;
pub(crate) mod table;
pub mod timing;

pub use emulator::Emulator;
pub use file::FileFlash;
pub use geometry::{FlashBlock, Geometry};

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why an operation on flash failed.
#[derive(Debug)]
pub enum FlashError {
    /// The block cannot be programmed or erased any more: keep what is readable elsewhere and never use it again. What
    /// it held is still there, also where an erase failed.
    Bad(FlashBlock),
    /// The page was not erased since it was last programmed, or the pages before it were passed: a fault of the
    /// caller.
    NotErased(FlashBlock, u32),
    /// What this page of the block holds cannot be read, though it was tried again. It is the page's own fault only
    /// where the flash [answers](Flash::answers) otherwise.
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

/// Flash: what vSSDs are made of. All methods may be called from any thread; no two callers program or erase the same
/// block at once, which their owner sees to.
pub trait Flash: Send + Sync {
    /// How it is built.
    fn geometry(&self) -> Geometry;

    /// Fills `buf` with the bytes of `block` from `offset` on, which may span pages. What was erased reads as zeros.
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
    /// [`FlashError::Bad`]; what the block held may still be there. Any other error is none of the block's fault: it is
    /// as if it had not been erased, and may be tried again.
    fn erase(&self, block: FlashBlock) -> Result<(), FlashError>;

    /// Erases `block` for who has it already: every byte of it reads as zero, but after a loss of power it may hold
    /// what it held, until the next [`flush`](Self::flush). Whether it outlasts one already.
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

    /// Whether something of other blocks than `apart` can be read now, from the flash itself and not from memory. Takes
    /// as long as a flush and a few reads.
    fn answers(&self, apart: FlashBlock) -> bool {
        let _ = apart;
        true
    }

    /// Whether the block was found bad: as made, or since.
    fn is_bad(&self, block: FlashBlock) -> bool;

    /// How often the block was erased.
    fn wear(&self, block: FlashBlock) -> u32;
}

/// Checks that bytes lie within a block.
fn within(geometry: &Geometry, block: FlashBlock, offset: u32, len: usize) -> Result<(), FlashError> {
    let end = u64::from(offset).saturating_add(len as u64);
    if block.0 >= geometry.total_blocks() || end > u64::from(geometry.block_size()) {
        return Err(outside(block));
    }
    Ok(())
}

/// How many pages a program is for: whole ones, within the block.
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

/// A thread that panicked left nothing half done that others rely on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod conformance;
