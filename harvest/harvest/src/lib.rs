//! Spare flash for evictable VMs, given back in time: a host that does what a broker decides.
//!
//! A host's SSD is sold in *vSSDs*, which own whole channels and are half empty. Flash that one does not use for a
//! while is a *gSSD*: free flash blocks that a harvest VM's vSSD may use until the owner needs them. The design is that
//! of BlockFlex (Reidys et al., OSDI 2022); where a module differs it says so.
//!
//! This crate has the threads, the files and the order of locks. The flash and its translation layer are in
//! `headstart-flash`, the decisions in `headstart-broker`, the predictors in `headstart-forecast`.
//!
//! | module | content |
//! |---|---|
//! | [`host`] | all of one host put together: its bytes, threads and records |
//! | [`disk`] | a vSSD as a block device |

#![forbid(unsafe_code)]

pub mod disk;
pub mod host;

#[doc(no_inline)]
pub use headstart_block::{Error, ErrorKind, Result, Time};
#[doc(no_inline)]
pub use headstart_broker as broker;
#[doc(no_inline)]
pub use headstart_flash::{GssdId, VssdId, VssdKind, journal};
