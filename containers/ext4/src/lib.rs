//! The ext4 file system: changes of files become changed blocks.
//!
//! A layer of a container image is a list of changes: files that are new, replaced or removed. A disk image has layers,
//! too, which are changed blocks. This crate turns the first into the second, without a kernel, a mount, root or the C
//! library of ext4:
//!
//! > (blocks of the parent, changes) -> changed blocks
//!
//! It is a function: the same parent and the same changes in the same order give the same blocks to the byte, on every
//! machine. [`NewFileSystem::make`] starts with nothing, [`FileSystem::open`] with a parent. The operations of
//! [`FileSystem`] are the changes. [`FileSystem::finish`] writes what is left to write.
//!
//! # One pass
//! The content of a file comes as a stream ([`FileContent`](headstart_file_blocks::FileContent)) and goes to the layer
//! at once ([`BlockSink`](headstart_file_blocks::BlockSink)): it is copied once and kept nowhere. Metadata is changed
//! in memory, block by block, as a kernel would change it; a temporary file takes what is too much. At the end, those
//! blocks that differ from the parent's are written, in ascending order. So a layer that adds one small file has seven
//! blocks, whatever program made the parent.
//!
//! # The parent
//! A parent may be in a registry, and is read like that: superblock and descriptors of groups when it is opened, after
//! that only what the changes touch. Nothing depends on how a parent came about; all that is known of it is in its
//! blocks. File systems of `mke2fs` and of kernels are as good as those of this crate, as long as their features are
//! supported. Directories are searched and changed by their indexes, which are kept as the kernel keeps them.
//!
//! A parent is not trusted. Numbers are checked when they are read; a damaged parent gives an error or a damaged layer,
//! never a panic, an endless loop or more memory than it has blocks.
//!
//! # Layout of new file systems
//! Groups of 128 MiB, of which 16 have their bitmaps and inode tables together; blocks of 4 KiB, inodes of 256 bytes,
//! one for each 16 KiB; no journal, no copies of the superblock, no checksums but those of descriptors, which allow
//! groups without bitmaps. The reasons are in the module `format`.
//!
//! # Order of allocation
//! Blocks and inodes are taken one after the other, from behind the last one that the parent uses. Content lies on the
//! disk in the order in which it came, mostly in one piece for each file. What a layer frees, it does not use itself,
//! and later layers use it only after they have come to the end of the disk: free blocks take no space in an image. The
//! details are in the module `allocation`.
//!
//! # Files that stay the same
//! A file that comes again with the content that it has in the parent keeps its blocks: a layer that changes modes or
//! owners is as small as these. See [`FileSystem::replace`].
//!
//! # Not supported
//! * Parents with `metadata_csum`, `bigalloc`, `inline_data`, `encrypt`, `casefold`, `large_dir`, `ea_inode`, `quota`
//!   or other features that are not in the list of the module `features`, with other blocks than those of 4 KiB or
//!   other inodes than those of 256 bytes; with a journal that has to be replayed, or with errors. They are refused by
//!   name.
//! * Moving files, changing a part of a file, growing or shrinking a file system.
//! * Files of more than 16 TiB; times before 1901 or after 2446; extended attributes that do not fit into the inode and
//!   one block.
//!
//! Changed blocks and streams of content are those of [`headstart_file_blocks`].
//!
//! # Modules
//! | module | content |
//! |---|---|
//! | `file_system` | files and names: the operations |
//! | `format` | a new file system |
//! | `finish` | opening a parent, and writing the changed metadata |
//! | `content` | the content of files, as it streams in |
//! | `remove` | removal of files and of directories with everything in them |
//! | `open_directory` | a directory of the file system as the blocks that `directory` works on |
//! | `state` | inodes, their extents and attributes |
//! | `allocation` | free blocks and inodes, and the order in which they are taken |
//! | `directory` | the entries of a directory |
//! | `htree` | the index of a large directory |
//! | `hash` | hashes of names in directories |
//! | `superblock` | the superblock, byte by byte; the file systems that are supported |
//! | `features` | feature bits and their names |
//! | `geometry` | places that follow from the superblock |
//! | `group` | descriptors of groups |
//! | `bitmap` | bitmaps of blocks and inodes |
//! | `inode` | inodes and times |
//! | `extents` | the places of a file's blocks |
//! | `xattr` | extended attributes, access control lists |
//! | `crc16`, `little_endian` | checksums, numbers in bytes |

#![forbid(unsafe_code)]

mod allocation;
mod bitmap;
mod content;
mod crc16;
mod directory;
mod extents;
mod features;
mod file_system;
mod finish;
mod format;
mod geometry;
mod group;
mod hash;
mod htree;
mod inode;
mod little_endian;
mod open_directory;
mod remove;
mod state;
mod superblock;
#[cfg(test)]
mod support;
mod xattr;

pub use file_system::{FileSystem, InodeAttributes, InodeNumber, InodeStatus};
pub use finish::FileSystemSummary;
pub use format::NewFileSystem;
pub use inode::InodeTime;
pub use xattr::ExtendedAttribute;

use headstart_file_blocks::{BLOCK_SIZE, Block};
