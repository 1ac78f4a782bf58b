//! The keeper: a small process that keeps the FUSE connections of disks alive while their processes are started again.
//!
//! The kernel ends a FUSE connection when the last descriptor of its `/dev/fuse` is closed: every request fails from
//! then on, and so does the loop device on the file, and every program whose files lie there. The process that serves
//! a disk may be killed at any time, so a second process holds a duplicate of its descriptor, and does nothing else:
//! it has no disk, no threads and no network, and hardly ever a reason to end. While the duplicate is there, requests
//! wait. The next process of the disk takes a duplicate, and answers them (see [`fuse`](crate::fuse)).
//!
//! ```text
//! kernel <- /dev/fuse <- process of the disk ----- keeps, at its start -----+
//!                    <- keeper  <------------------------------------------ +
//!                       keeper  --------- takes, at its start ---> the disk's next process
//! ```
//!
//! * Both deaths at once lose the mount, and only they do. A keeper that was started again is empty: each process of a
//!   disk sees the end of its connection to the keeper, and has its descriptor kept anew.
//! * A descriptor is kept under the name of its disk, with a short text that only the processes of disks understand:
//!   what the next process has to know to go on. So a keeper serves processes of other versions. (Some builds before
//!   the first release with a keeper sent a second descriptor, of memory with writes that were not flushed. It is
//!   dropped: what a process of such a build had not flushed when it was killed is lost. One that is asked to end
//!   flushes first.)
//! * The keeper drops a descriptor when it is told that the disk is detached, and when the file system was unmounted.
//!
//! # Trust
//!
//! A descriptor is the right to answer for the disk. The socket is in a directory of mode 0700, and has mode 0600. The
//! keeper answers processes of its own user only. The process that lets a descriptor be kept, or takes it, must be the
//! one that has the lock of that disk. A client that does not read its answers loses its connection; it cannot hold up
//! the keeper. The numbers of descriptors, clients and bytes are bounded.
//!
//! | module | content |
//! |---|---|
//! | `wire` | the messages |
//! | `table` | the descriptors that are kept |
//! | `server` | the process |
//! | `client` | the processes of disks, and their agent |

mod client;
mod server;
mod table;
mod wire;

pub use client::{KeeperClient, Registration};
pub use server::Keeper;
pub(crate) use server::is_dead;
pub use wire::NAME_MAX;
