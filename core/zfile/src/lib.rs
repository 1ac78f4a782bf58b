//! Seekable compression: the OverlayBD ZFile format.
//!
//! A ZFile cuts its content into frames of equal size (at most 64 KiB; the last may be shorter), compresses each on its
//! own, and ends with the list of their compressed lengths. So a read decompresses only the frames that its range
//! touches. A ZFile may itself be in the tar wrapper of a blob, and may contain an LSMT layer; this crate deals with
//! neither.
//!
//! ```text
//! header, 512 bytes | frame 0 | frame 1 | ... | index: a u32 per frame | trailer, 512 bytes
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`format`](mod@format) | header and trailer byte by byte; the checks |
//! | `codec` | lz4 and zstd contexts: the crate's only foreign calls |
//! | `checksum` | the format's form of CRC-32C |
//! | `decoded` | the content that reads were given |
//! | `index` | the place of each frame, in four bytes a frame |
//! | [`reader`] | [`ZFileReader`]: random access |
//! | `scratch` | the state that a thread keeps between reads, so that reading allocates nothing |
//! | [`writer`] | [`ZFileWriter`]: streaming, the same bytes on any number of threads |
//! | `pool` | the writer's threads |
//!
//! ```
//! use headstart_block::ReadAt;
//! use headstart_zfile::{ZFileOptions, ZFileReader, ZFileWriter};
//! use std::io::Write;
//!
//! # fn main() -> headstart_block::Result<()> {
//! let mut writer = ZFileWriter::new(Vec::new(), &ZFileOptions::default())?;
//! writer.write_all(&[7; 100_000])?;
//! let (blob, info) = writer.finish()?;
//! assert_eq!((info.original_size, info.frames), (100_000, 4));
//!
//! let reader = ZFileReader::open(blob)?;
//! let mut range = [0; 10];
//! reader.read_at(&mut range, 99_990)?;
//! assert_eq!(range, [7; 10]);
//! # Ok(())
//! # }
//! ```

mod checksum;
mod codec;
mod decoded;
pub mod format;
mod index;
mod pool;
pub mod reader;
mod scratch;
pub mod writer;

pub use codec::Codec;
pub use format::{ZFileInfo, is_zfile};
pub use reader::ZFileReader;
pub use scratch::forget_recent_frames;
pub use writer::{ZFileOptions, ZFileWriter};
