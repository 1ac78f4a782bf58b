//! Images through the interface of the crate, in stores of every kind.
//!
//! | module | subject |
//! |---|---|
//! | [`cut_short`] | qcow2 files that lack their end |
//! | [`guards`] | accidents that must not happen to the bytes of an image |
//! | [`golden_store`] | an image made by the reference implementation |
//! | [`turbo`] | TurboOCI images made by the reference implementation |
//! | [`transfer`] | copies between stores |
//! | [`remote`] | images read in place |
//! | [`plan_artifact`] | plans that travel with images |
//! | [`forms`] | the disks that a container's image was converted to |

#![allow(clippy::cast_possible_truncation, clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod cut_short;
mod forms;
mod golden_store;
#[path = "../support/golden_turbo.rs"]
mod golden_turbo;
mod guards;
mod plan_artifact;
mod remote;
mod transfer;
mod turbo;
