//! The features of this host that disks need, and the remedies for those that it lacks.
//!
//! Everything is tried for real if that is cheap and harmless, and no trial lasts longer than a few seconds: a machine
//! whose virtualization hangs must not hang its examiner.
//!
//! | module | subject |
//! |---|---|
//! | [`finding`] | the finding about one feature |
//! | `devices` | the ways to serve a disk: NBD, vhost-user, FUSE, loop, the kernel's nbd, ublk |
//! | `hypervisor` | running a virtual machine |
//! | `system` | kernel, processor, limits, the cache's directory |
//! | `trial` | running programs for a limited time |

#![forbid(unsafe_code)]

mod devices;
pub mod finding;
mod hypervisor;
mod system;
mod trial;

pub use finding::{Availability, HostFinding};

use serde::Serialize;
use std::path::Path;

/// The findings about a host.
#[derive(Clone, Debug, Serialize)]
pub struct HostFindings {
    /// `true` if a disk can be served in the default way: over NBD to a client on this host, with a cache.
    pub works: bool,
    /// The findings, one for each feature. The first three are those that the default way needs.
    pub findings: Vec<HostFinding>,
}

/// Examines this host, with the cache in the directory `cache`; `None` for the default directory. May take several
/// seconds, because features are tried for real.
#[must_use]
pub fn examine(cache: Option<&Path>) -> HostFindings {
    let (clients, client) = devices::clients();
    let essential = [system::cache(cache), devices::nbd(), client];
    let works = essential.iter().all(|finding| finding.state != Availability::No);
    let mut findings = Vec::from(essential);
    let kvm = hypervisor::kvm();
    let vhost_user = devices::vhost_user(kvm.state != Availability::No);
    findings.extend([
        system::kernel(),
        system::processor(),
        system::limits(),
        system::io_uring(),
        kvm,
        vhost_user,
        devices::fuse(),
        devices::loop_devices(),
        devices::kernel_nbd(),
        devices::ublk(),
        devices::attach_way(),
    ]);
    findings.extend(clients);
    HostFindings { works, findings }
}
