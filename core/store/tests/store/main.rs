//! Stores of every kind through the interface of the crate, in front of real servers and of servers that do wrong.
//!
//! | module | subject |
//! |---|---|
//! | [`blob_reader`] | blobs as streams that break |
//! | [`directory`] | stores in directories |
//! | [`registry`] | a real registry |
//! | [`offers`] | credentials of pulls, beside others |
//! | [`hostile_registry`] | registries that misbehave, request by request |
//! | [`web`] | web servers and their faults |
//! | [`referrers`] | artifacts of a manifest, in every kind of store |
//! | [`round_trips`] | the number of requests, and of those that wait for others |

#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests"
)]

mod blob_reader;
mod directory;
mod hostile_registry;
mod offers;
mod referrers;
mod registry;
mod round_trips;
mod web;
