//! Flash that virtual disks share: the flash itself, the order of operations on it, the translation layer, and the
//! records that survive a crash.
//!
//! A host's SSD is sold in *vSSDs*, which own whole channels. The design is that of BlockFlex (Reidys et al., OSDI
//! 2022); where a module differs it says so. Nothing here decides on lending: that is `headstart-broker`, whose steps
//! are recorded here because they move flash blocks from holder to holder.
//!
//! | module | content |
//! |---|---|
//! | [`device`] | the one trait for flash, its geometry, an emulator and a file behind it |
//! | [`scheduler`] | the scheduler of a channel: regular VMs first |
//! | [`queue`] | the place at which threads wait for their turn on channels |
//! | [`vssd`] | the flash translation layer, which knows the flash page of each page of a disk |
//! | [`step`] | the steps by which flash blocks are lent and given back |
//! | [`custody`] | the vSSD that may use each flash block: no block changes hands unerased |
//! | [`journal`] | the state that survives a crash: each step is in it before it is carried out |
//! | [`replace`] | files that are replaced whole |
//! | [`micros`] | the form of a point in time in records |
//!
//! The feature `testing` is for tests of crates that use this one: file systems that get full, programs that are
//! started beside open flash, copies of emulated flash.

#![forbid(unsafe_code)]

pub mod custody;
pub mod device;
pub mod journal;
mod kind;
pub mod micros;
pub mod queue;
pub mod replace;
pub mod scheduler;
pub mod step;
pub mod vssd;
mod wrong_bit;

#[doc(no_inline)]
pub use headstart_block::{Error, ErrorKind, Result, Time};
pub use kind::VssdKind;

use serde::{Deserialize, Serialize};

/// The number of a vSSD (virtual SSD: a disk on flash that VMs share). A number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VssdId(pub u32);

/// The number of a gSSD (ghost vSSD: flash that one vSSD lends to another). A number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GssdId(pub u64);
