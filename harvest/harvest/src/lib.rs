//! Spare flash for evictable VMs, given back in time: pure decision makers, and the flash below them.
//!
//! A host's SSD is sold in *vSSDs*, which own whole channels and are half empty. Flash that one does not use for a
//! while is a *gSSD*: free flash blocks that a harvest VM's vSSD may use until the owner needs them. The design is that
//! of BlockFlex (Reidys et al., OSDI 2022); where a module differs it says so.
//!
//! | module | content |
//! |---|---|
//! | [`flash`] | the one trait for flash, its geometry, an emulator and a file behind it |
//! | [`lane`] | the scheduler of a channel: regular VMs first |
//! | [`gate`] | the place at which threads wait for their turn on channels |
//! | [`vssd`] | the flash translation layer: the flash page of each page of a disk; pure |
//! | [`gssd`] | ghost vSSDs, and the pool of unused ones |
//! | [`custody`] | access to flash blocks: none changes hands unerased |
//! | [`broker`] | decisions on lending, and the correction of wrong ones: events in, actions out |
//! | [`journal`] | the state that survives a crash: each step before it is acted on |
//! | [`host`] | all of one host put together: its bytes, threads and records |
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
