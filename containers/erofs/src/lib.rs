//! The EROFS file system: changes of files become changed blocks.
//!
//! EROFS is a file system that is only read. That suits images of containers, which do not change: its
//! directories are searched by halving, inodes have the size that they need, and a kernel mounts it without repairing
//! or replaying anything. This crate does for EROFS what `headstart-ext4` does for ext4, by the same rules:
//!
//! > (blocks of the parent, changes) -> changed blocks
//!
//! The same parent and the same changes in the same order give the same blocks to the byte. [`NewErofs::make`] starts
//! with nothing, [`ErofsFileSystem::open`] with a parent, which is read block by block as far as the changes touch it.
//! [`ErofsFileSystem::finish`] writes what is left to write.
//!
//! # Layers
//! EROFS knows no changes. They are possible because the layers of a disk are changed blocks, and any block may change:
//!
//! ```text
//!  0            superblock, root inode                             written anew by every layer that changes something
//!  1 ..         content of files of layer 1, inodes, directories   changed in place by later layers, or given up
//!  .. blocks    content of files of layer 2, inodes, directories
//!  blocks ..    free: the next layer begins here
//! ```
//!
//! * Content of files is written once, behind everything that the parent has, in the order in which it comes. Inodes of
//!   upper layers refer to content of lower ones; it is never copied.
//! * An inode that changes stays in its place if it still fits there. One that has grown moves behind the content, and
//!   the names that lead to it get its new number.
//! * A name that is new or gone changes one block of its directory, as long as its place in the order of names has
//!   room. Otherwise the directory is written anew. Directories of more than one block are written with an eighth of
//!   each block free for that.
//! * What a layer gives up stays unused: free space takes none in an image, and blocks that no file refers to are in
//!   lower layers only.
//!
//! # Form
//! Blocks of 4 KiB, no compression (layers are compressed as a whole), inodes of the extended form of 64 bytes with
//! attributes behind them, no shared attributes. Content is in consecutive blocks; a file with holes has a table of
//! chunks, of which there are at most 16,384. Targets of symbolic links are in their inodes if these do not leave a
//! block. Directories have whole blocks. Inode number and place are the same thing, so the numbers of inodes have gaps.
//!
//! # The parent
//! A parent is not trusted: a damaged one gives an error or a damaged layer, never a panic, an endless loop or more
//! memory than is stated here. File systems that another program made are refused, and those with features that are not
//! in the list of the module `superblock`, by name.
//!
//! # Memory
//! Changes are in a table of which 12 MiB stay in memory, blocks that are made of it at the end in another 12 MiB;
//! what is more goes to temporary files. 6 MiB of blocks of the parent are kept.
//!
//! # Modules
//! | module | content |
//! |---|---|
//! | `file_system` | files and names: the operations |
//! | `finish` | opening a parent, and writing the changed metadata |
//! | `removal` | removal of files and of directories with everything in them |
//! | `content` | the content of files, as it streams in |
//! | `directory_blocks` | directories written at the end: in place, or anew |
//! | `inode_places` | places of inodes, and the names of those that moved |
//! | `directory_walk` | the names of a directory: the parent's and the changes |
//! | `state` | inodes and names, over the parent's |
//! | `table` | changes in order of their keys |
//! | `superblock`, `inode`, `xattr`, `dirents` | the structures, byte by byte |

#![forbid(unsafe_code)]

mod content;
mod directory_blocks;
mod directory_walk;
mod dirents;
mod file_system;
mod finish;
mod inode;
mod inode_places;
mod removal;
mod state;
mod superblock;
mod table;
mod xattr;

pub use file_system::{ErofsAttributes, ErofsFileSystem, ErofsNode, ErofsStatus};
pub use finish::{ErofsSummary, NewErofs};
