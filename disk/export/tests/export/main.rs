//! The servers of a block device, driven through their sockets and mounts.
//!
//! | module | subject |
//! |---|---|
//! | [`nbd`] | the NBD server: real clients, single bytes, hostile clients |
//! | [`nbd_idle`], [`nbd_memory`] | the memory and threads that it takes |
//! | [`nbd_remote`] | a disk that another process serves |
//! | [`vhost_user`], [`vhost_remote`] | the vhost-user-blk server, over disks here and in another process |
//! | [`vhost_user_qemu`] | QEMU boots from it |
//! | [`fuse`] | the FUSE server, mounted |
//!
//! [`memory_disk`] is a disk whose faults are set by the test, and [`vhost_frontend`] a guest's driver.

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod fuse;
mod memory_disk;
mod nbd;
mod nbd_idle;
mod nbd_memory;
mod nbd_remote;
mod vhost_frontend;
mod vhost_remote;
mod vhost_user;
mod vhost_user_qemu;
