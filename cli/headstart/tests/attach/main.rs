//! `headstart attach` as its users run it: the program, against other people's servers and other people's clients.
//!
//! | module | what it tests |
//! |---|---|
//! | [`stores`] | images in every kind of store become disks with the right bytes |
//! | [`nbd`] | NBD clients: libnbd's tools, fio, QEMU's tools; TLS |
//! | [`files`] | the disk as a file: loop devices, file systems, damage looked for after writes; vhost-user comes up |
//! | [`writable`] | what is written stays, grows, is refused to others, becomes an image |
//! | [`leases`], [`bucket_leases`] | disks keep their images, whatever becomes of tags and whoever prunes |
//! | [`keep_base`] | disks that need no store |
//! | [`others`] | links, pipes and locks of users who may write to a store or a writable directory |
//! | [`planted`] | what other users left in a cache, and where a disk writes |
//! | [`sharing`] | many disks and processes of one image fetch each byte once |
//! | [`away`] | stores that are gone, with and without everything in the cache |
//! | [`clients`] | clients that are connected when a disk is to go, or when its process dies |
//! | [`running`] | metrics, reports, signals, preloading, filling, limits |
//! | [`preloading`] | plans that are found and followed, are not, are wrong; links and stores that change meanwhile |
//! | [`recording`] | boots and their traces, also of a disk that stays attached |
//! | [`replay`] | recorded reads against this server and others |
//! | [`shortened`] | mapped files that are made shorter while they are used |
//! | [`sockets`] | what sockets replace, and which users can open them |
//! | [`lost_records`] | an index that lost its end is refused, or the loss is told of |
//! | [`space`] | what writable directories take, at most |
//! | [`refusals`] | what cannot work is refused at once, says why, and leaves nothing behind |
//!
//! [`attached`] is the program while it runs; [`images`] are what it attaches. A test that lacks another program says
//! so on standard error and passes. Faults and crashes are in `tests/faults`.

#![allow(clippy::cast_possible_truncation, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "../support/attached.rs"]
mod attached;
mod away;
mod bucket_leases;
mod clients;
#[path = "../e2e/disk.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod disk;
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
mod replay;
mod running;
#[path = "../e2e/scene.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod scene;
mod sharing;
mod shortened;
mod sockets;
mod space;
mod stores;
#[path = "../e2e/tools.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tools;
mod writable;
