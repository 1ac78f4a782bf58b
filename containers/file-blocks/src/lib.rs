//! Content and changed blocks, as the writers of file systems use them.
//!
//! The writers of ext4 and EROFS turn changes of files into changed blocks over a parent. They share what is not of a
//! file system: how blocks of a parent are read when they are needed ([`BlockReader`]), how changed blocks are kept and
//! compared with the parent's at the end ([`ChangedBlocks`]), and how the content of a file streams from its source
//! ([`FileContent`]) to the layer ([`BlockSink`]), or is compared with the old content first ([`ComparedContent`]).
//!
//! | module | content |
//! |---|---|
//! | `block_reader` | blocks of a parent, read when they are needed |
//! | `changed_blocks` | changed blocks of metadata, over the parent's |
//! | `moved` | places of changed blocks in the temporary file |
//! | `content` | the content of files, as it streams in |
//! | `places` | the sectors of content that the file it comes from has, too |
//! | `file_kind` | kinds of files, and their numbers |

#![forbid(unsafe_code)]

mod block_reader;
mod changed_blocks;
mod content;
mod file_kind;
mod moved;
mod places;

pub use block_reader::BlockReader;
pub use changed_blocks::ChangedBlocks;
pub use content::{BlockSink, ComparedContent, ContentSource, FileContent, PART, block_runs, blocks_for};
pub use file_kind::{FileKind, NewInode, check_name, check_target};
pub use places::FoundSectors;

/// Bytes of a block, the unit of all places on the disk.
pub const BLOCK_SIZE: usize = 4096;

/// The bytes of one block.
pub type Block = [u8; BLOCK_SIZE];
