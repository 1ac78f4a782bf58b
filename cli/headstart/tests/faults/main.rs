//! `headstart attach` under faults: each test starts the binary, with real servers behind proxies that damage the
//! traffic, and reads over NBD as a guest would.
//!
//! All of them test two promises: a client never sees a wrong byte, and bytes that can still be served are served.
//!
//! | module | fault |
//! |---|---|
//! | [`away`] | the store is away: for a while, for too long, at attach |
//! | [`answers`] | the store is slow, breaks off, sends other bytes than asked for |
//! | [`credentials`] | tokens and signed addresses run out in the middle |
//! | [`full_disk`] | the cache's disk takes nothing, or fails |
//! | [`treeless`] | wrong bytes of images without hash trees, as other tools make them |
//! | [`rot`] | bits flip in the cache |
//! | [`kill`] | `kill -9` of attach, under writes and under reads |
//! | [`neighbours`] | another process with the same cache is stuck, stopped or killed |
//! | [`clients`] | clients that vanish, stall, or come in crowds |
//! | [`link`] | none; but the link is slow, and that must not show more than necessary |
//!
//! [`attached`] is the program with its disk, [`nbd`] a client, [`image`] makes images. With `HEADSTART_SOAK=1` the
//! tests take longer and do more: see [`headstart_testkit::soak`].

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]
#![allow(clippy::disallowed_methods, reason = "tests of time read the clock")]
#![allow(clippy::print_stdout, reason = "what was measured, for those who look")]

mod answers;
mod attached;
mod away;
mod clients;
mod credentials;
#[path = "../support/flipped.rs"]
mod flipped;
mod full_disk;
mod image;
mod kill;
mod link;
mod nbd;
mod neighbours;
mod rot;
#[path = "../e2e/tools.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tools;
mod treeless;

use headstart_testkit::{disk, scene};
