//! Compressed bytes leave the kernel's page cache when they are not needed there any more.
//!
//! A disk's reads pass two caches of pages: that of the cache files here, which are mostly compressed, and that of the
//! file system on the disk, in a guest or in this kernel, which has the decoded bytes. After a read, the second copy
//! serves those bytes, and the first only takes memory (DADI's journal version, section 3.3.1).
//!
//! ```text
//! ZFile: all of a frame was given out  -> PageUse: its pages are used up           -+
//! a read or an insert touches a chunk  -> PageUse: touched -> Queue: FIFO, limits  -+-> sweep: POSIX_FADV_DONTNEED
//! ```
//!
//! * Pages of which all frames were decoded go at the next sweep. A page that belongs to two frames waits for both.
//! * All other pages of chunks that were touched wait in a queue, first in, first out. They go when they were there for
//!   `LONGEVITY_MS`, or when there are more than `CHUNKS_MAX`: parts of frames that nothing asks for, bytes that
//!   were fetched ahead and not read, and with them what the kernel read ahead behind them.
//! * Each goes once. What a process uses again after that shows that nothing above keeps it, and stays. With
//!   [`PageCache::Auto`], so do chunks that any process of this host came back to, and blobs that another process has
//!   in use now, which may need what this one is done with.
//!
//! Threads that read set bits and do nothing else: no lock, no allocation, no call of the kernel. The thread that calls
//! [`Cache::sync`](crate::Cache::sync) sweeps, right after it made the blobs durable: the kernel only drops pages that
//! are on disk.

mod page_use;
mod queue;

pub(crate) use page_use::PageUse;
pub(crate) use queue::{Queue, QueuedChunk};

use headstart_block::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The treatment of the kernel's page cache, where cached blobs have a second copy of what their readers keep decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageCache {
    /// Pages of decoded bytes leave the page cache, unless another process uses the blob, or any came back to them.
    #[default]
    Auto,
    /// Pages of decoded bytes leave the page cache, whatever other processes do.
    Drop,
    /// The kernel decides.
    Keep,
}

impl FromStr for PageCache {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "drop" => Ok(Self::Drop),
            "keep" => Ok(Self::Keep),
            _ => Err(Error::invalid("is no way to treat the page cache")
                .about(text)
                .remedy("give auto, drop or keep")),
        }
    }
}

impl fmt::Display for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Drop => "drop",
            Self::Keep => "keep",
        })
    }
}
