//! A streaming reader of tar archives, the form in which container images keep their layers.
//!
//! [`TarReader`] reads an archive once, from front to back, without seeking: [`TarReader::next_entry`] returns the
//! metadata of the next entry, [`TarReader::read_content`] its content. An entry tells where in the archive its
//! content is ([`TarEntry::content_offset`], a multiple of 512), so that a disk can refer to the archive instead of
//! copying it.
//!
//! ```
//! # use headstart_tar::{TarKind, TarLimits, TarReader};
//! # fn list(input: impl std::io::Read) -> headstart_block::Result<u64> {
//! let mut reader = TarReader::new(input, TarLimits::default());
//! let (mut bytes, mut buf) = (0, vec![0; 64 << 10]);
//! while let Some(entry) = reader.next_entry()? {
//!     if entry.kind == TarKind::Regular {
//!         while let n @ 1.. = reader.read_content(&mut buf)? {
//!             bytes += n as u64;
//!         }
//!     }
//! }
//! reader.finish()?;
//! # Ok(bytes)
//! # }
//! ```
//!
//! | module | subject |
//! |---|---|
//! | [`reader`] | [`TarReader`]: the stream of entries and their content |
//! | [`entry`] | [`TarEntry`]: the metadata of an entry |
//! | [`limits`] | [`TarLimits`]: bounds on what an archive can ask for |
//! | `header` | the 512-byte header block: v7, ustar, star, GNU |
//! | `merge` | a header block and the extended headers in front of it become one entry |
//! | `number` | numbers and times: octal, base 256, decimal |
//! | `pax` | extended headers: records of key and value |
//! | `sparse` | maps of sparse files: old GNU, PAX 0.0, 0.1, 1.0 |
//! | `xattr` | extended attributes in PAX records |
//!
//! # Formats
//!
//! v7, ustar (with the prefix), star (its prefix of 131 bytes), GNU (long names `L` and `K`, base 256, old sparse files
//! `S`) and PAX (`x`, with GNU's sparse files) are read; entries of all formats may alternate.
//!
//! # Meaning
//!
//! An image is what containerd makes of its layers, and containerd reads them with the package archive/tar of Go, so
//! this reader takes what that one takes and gives it the same meaning, strange cases included:
//!
//! * An invalid number in a header is an error even if a PAX record replaces it. In a version 7 header, only the fields
//!   of version 7 count.
//! * Of several `x` headers in front of an entry only the last counts; the last `L` wins over a PAX path, and
//!   `GNU.sparse.name` wins over both. An empty PAX value leaves the header's field as it is, except for an extended
//!   attribute, which becomes empty.
//! * Global headers (`g`) are checked for their syntax and have no effect; one that stands between an `x` header and
//!   its entry cancels that header.
//! * Links, devices, fifos and directories have no content whatever size their headers give: the next block is a
//!   header.
//! * A trailing slash makes a directory of an entry of typeflag NUL only.
//! * One block of zeros and the end of the input end an archive, and so does the end of the input where a header, or
//!   the padding in front of one, would be. Extended headers with no entry behind them are dropped. After one block of
//!   zeros, anything but another is an error.
//! * Checksums may be sums of signed or unsigned bytes.
//!
//! The reader differs from archive/tar and containerd in these points:
//!
//! * Contiguous files (typeflag `7`) and old sparse files (`S`) are regular files; containerd refuses them.
//! * All other typeflags are refused by containerd and here: those of GNU for the volume label (`V`), the continuation
//!   of a file from another volume (`M`), old long names (`N`) and dumped directories (`D`), and unknown ones.
//! * If the block behind a hard link is no header although the link has a size, the link's content is there (PAX allows
//!   that), and is skipped; archive/tar fails.
//! * `LIBARCHIVE.xattr.` records are read; a `SCHILY.xattr.` record for the same name wins.
//! * Ids and device numbers that do not fit in 32 bits are refused, for devices as in containerd. Unknown versions of
//!   GNU's sparse format are refused; archive/tar takes the map for content.
//! * A sparse file whose extents are not as long as its content is refused at once, not when it is read.
//! * [`TarLimits`] bounds everything.

#![forbid(unsafe_code)]

pub mod entry;
mod header;
pub mod limits;
mod merge;
mod number;
mod pax;
pub mod reader;
mod sparse;
#[cfg(test)]
mod tests;
mod xattr;

pub use entry::{TarEntry, TarKind, TarTime};
pub use limits::TarLimits;
pub use reader::TarReader;
