//! Spare flash for evictable VMs, given back in time: pure decision makers, and the flash below them.
//!
//! A host's SSD is sold in *vSSDs*, which own whole channels and are half empty. Flash that one does not use for a
//! while is a *gSSD*: free flash blocks that a harvest VM's vSSD may use until the owner needs them. The design is that
//! of BlockFlex (Reidys et al., OSDI 2022); where a module differs it says so.
//!
//! | module | content |
//! |---|---|
//! | [`gssd`] | ghost vSSDs, and the pool of unused ones |
//! | [`broker`] | decisions on lending, and the correction of wrong ones: events in, actions out |
//! | [`host`] | all of one host put together: its bytes, threads and records |
//! | [`disk`] | a vSSD as a block device |

#![forbid(unsafe_code)]

pub mod broker;
pub mod disk;
pub mod gssd;
pub mod host;

#[doc(no_inline)]
pub use headstart_block::{Error, ErrorKind, Result, Time};
#[doc(no_inline)]
pub use headstart_flash::{GssdId, VssdId, VssdKind, journal};

/// A number of channels, in words.
pub(crate) fn counted(channels: u64) -> String {
    let plural = if channels == 1 { "" } else { "s" };
    format!("{channels} channel{plural}")
}
