//! The ext4 file system: changes of files become changed blocks.
//!
//! | module | content |
//! |---|---|
//! | [`superblock`] | the superblock, byte by byte; the file systems that are supported |
//! | [`features`] | feature bits and their names |
//! | [`geometry`] | places that follow from the superblock |
//! | [`group`] | descriptors of groups |
//! | [`inode`] | inodes, times, kinds of files |
//! | [`extents`] | the places of a file's blocks |
//! | [`xattr`] | extended attributes, access control lists |
//! | [`hash`] | hashes of names in directories |
//! | [`htree`] | the index of a large directory |
//! | [`directory`] | the entries of a directory |
//! | [`read`] | blocks of a parent, read when they are needed |
//! | [`crc16`], [`little_endian`] | checksums, numbers in bytes |

#![forbid(unsafe_code)]

mod allocation;
mod bitmap;
mod blocks;
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
mod read;
mod remove;
mod state;
mod superblock;
#[cfg(test)]
mod support;
mod xattr;

pub use content::{BlockSink, FileContent};
pub use file_system::{FileSystem, InodeAttributes, InodeNumber, InodeStatus, NewInode};
pub use finish::FileSystemSummary;
pub use format::NewFileSystem;
pub use inode::{FileKind, InodeTime};
pub use xattr::ExtendedAttribute;

/// Bytes of a block, the unit of all places on the disk.
pub const BLOCK_SIZE: usize = 4096;

/// The bytes of one block.
pub(crate) type Block = [u8; BLOCK_SIZE];
