//! `headstart attach` as its users run it: the program, against servers and clients of other projects.
//!
//! | module | subject |
//! |---|---|
//! | [`stores`] | images in every kind of store become disks with the right bytes |
//! | [`nbd`] | NBD clients: libnbd's tools, fio, QEMU's tools; TLS |
//! | [`files`] | the disk as a file: loop devices, file systems, checks for damage after writes; vhost-user starts |
//! | [`writable`] | writes stay, grow, are refused to others, become an image |
//! | [`leases`], [`bucket_leases`] | disks keep their images, whatever happens to tags, and during prunes |
//! | [`keep_base`] | disks that need no store |
//! | [`others`] | links, pipes and locks of users that may write to a store or a writable directory |
//! | [`planted`] | files that other users left in a cache, and in a disk's place |
//! | [`sharing`] | many disks and processes of one image fetch each byte once |
//! | [`away`] | stores that are gone, with and without everything in the cache |
//! | [`clients`] | clients that are connected when a disk is to be detached, or when its process dies |
//! | [`running`] | metrics, reports, signals, preloading, filling, limits |
//! | [`preloading`] | plans that are found and followed, not found, or wrong; links and stores that change meanwhile |
//! | [`recording`] | boots and their traces, even of a disk that stays attached |
//! | [`shortened`] | mapped files that are made shorter while they are used |
//! | [`sockets`] | the files that sockets replace, and the users that can open them |
//! | [`lost_records`] | an index that lost its end is refused, or the loss is reported |
//! | [`clones`], [`commits`] | disks that are served are cloned, and become images |
//! | [`space`] | the most space that writable directories take |
//! | [`refusals`] | impossible requests are refused at once, with the cause, and leave nothing behind |
//!
//! [`attached`] is the program while it runs; [`images`] are the attached images. A test that lacks another program
//! prints that on standard error and passes. Faults and crashes are in `tests/faults`.

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod away;
mod bucket_leases;
mod clients;
mod clones;
mod commits;
mod files;
mod images;
mod keep_base;
mod leases;
mod lost_records;
mod nbd;
mod others;
mod planted;
mod preloading;
mod recording;
mod refusals;
#[path = "../support/refused.rs"]
mod refused;
mod running;
mod sharing;
mod shortened;
mod sockets;
mod space;
mod stores;
#[path = "../e2e/tools.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tools;
mod writable;

use headstart_testkit::{attached, disk, scene};
