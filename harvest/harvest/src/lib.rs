//! Spare flash for evictable VMs, given back in time: pure decision makers, and the flash below them.
//!
//! A host's SSD is sold in *vSSDs*, which own whole channels and stand half empty. What one does not use for a while
//! is a *gSSD*: free flash blocks that a harvest VM's vSSD may use until its owner misses them. The design is that of
//! BlockFlex (Reidys et al., OSDI 2022); where a module differs it says so.
//!
//! | module | what it is |
//! |---|---|
//! | [`flash`] | the one trait for flash, its geometry, an emulator and a file behind it |
//! | [`lane`] | who is next on a channel: regular VMs first |
//! | [`gate`] | where threads wait for their turn on channels |
//! | [`vssd`] | the flash translation layer: which flash page holds which page of a disk; pure |
//! | [`gssd`] | ghost vSSDs, and the pool of those that nobody uses |
//! | [`custody`] | who may touch which flash block: none changes hands unerased |
//! | [`broker`] | who lends what to whom, and what is done when that was wrong: events in, actions out |
//! | [`journal`] | what survives a crash: each step before it is acted on |
//! | [`predict`] | what a vSSD will need, and for how long: levels, durations, predictors |
//! | [`host`] | all of one host put together: the bytes, the threads, the words it speaks |
//! | [`disk`] | a vSSD as a block device |

#![forbid(unsafe_code)]

pub mod broker;
pub mod custody;
pub mod disk;
pub mod flash;
pub mod gate;
pub mod gssd;
pub mod host;
pub mod journal;
mod kind;
pub mod lane;
pub mod predict;
mod replace;
pub mod vssd;
mod wrong_bit;

#[doc(no_inline)]
pub use headstart_block::{Error, ErrorKind, Result, Time};
pub use kind::VssdKind;

use serde::{Deserialize, Serialize};

/// A number of channels, in words.
pub(crate) fn counted(channels: u64) -> String {
    let plural = if channels == 1 { "" } else { "s" };
    format!("{channels} channel{plural}")
}

/// A virtual SSD, by a number that is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VssdId(pub u32);

/// A ghost vSSD, by a number that is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GssdId(pub u64);
