//! `headstart doctor`: the features that work on this host, and the remedies for the others.
//!
//! Everything is tried for real if that is cheap and harmless, and no trial lasts longer than a few seconds: a machine
//! whose virtualization hangs must not hang this command.
//!
//! | module | subject |
//! |---|---|
//! | [`devices`] | the ways to serve a disk: NBD, vhost-user, FUSE, loop, the kernel's nbd, ublk |
//! | [`hypervisor`] | running a virtual machine |
//! | [`system`] | kernel, processor, limits, the cache's directory |
//! | [`trial`] | running programs for a limited time |

mod devices;
mod hypervisor;
mod system;
mod trial;

use crate::report::{Outcome, Report};
use clap::Args;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Arguments of `headstart doctor`.
#[derive(Args)]
#[command(after_help = "Examples:\n  headstart doctor\n  headstart doctor --json | jq '.findings[] | \
                        select(.state != \"yes\")'\n\nExit status: 0 if the default way works (a disk served over NBD \
                        to a client on this host, with a cache), 1 if it does not.")]
pub(crate) struct Doctor {
    /// The directory of the cache to check [default: that of attach]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn run(&self) -> Box<dyn Report> {
        let (clients, client) = devices::clients();
        let essential = [system::cache(self.cache.as_deref()), devices::nbd(), client];
        let works = essential.iter().all(|finding| finding.state != State::No);
        let mut findings = Vec::from(essential);
        let kvm = hypervisor::kvm();
        let vhost_user = devices::vhost_user(kvm.state != State::No);
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
        ]);
        findings.extend(clients);
        Box::new(Findings { works, findings })
    }
}

/// The availability of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Yes,
    Limited,
    No,
}

/// The finding about one feature.
#[derive(Debug, Serialize)]
struct Finding {
    /// The name of the feature.
    feature: &'static str,
    /// `yes`, `limited` or `no`.
    state: State,
    /// The details of the feature, or of the obstacle.
    detail: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn new(feature: &'static str, state: State, detail: impl Into<String>) -> Self {
        Self { feature, state, detail: detail.into(), remedy: None }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

#[derive(Serialize)]
struct Findings {
    /// `true` if the default way works.
    works: bool,
    /// The findings, one for each feature.
    findings: Vec<Finding>,
}

impl Outcome for Findings {
    fn is_right(&self) -> bool {
        self.works
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.feature.len()).max().unwrap_or(0);
        for finding in &self.findings {
            let state = match finding.state {
                State::Yes => "yes",
                State::Limited => "limited",
                State::No => "no",
            };
            writeln!(f, "{:width$}  {state:7}  {}", finding.feature, finding.detail)?;
            if let Some(remedy) = &finding.remedy {
                writeln!(f, "{:width$}           -> {remedy}", "")?;
            }
        }
        if self.works {
            f.write_str("\nThis host can attach images.")
        } else {
            f.write_str("\nThis host cannot attach images: see the first three lines.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_columns_and_remedies() {
        let findings = vec![
            Finding::new("nbd", State::Yes, "served"),
            Finding::new("vhost-user", State::No, "no memfd").remedy("get one"),
        ];
        let text = Findings { works: true, findings }.to_string();
        assert_eq!(
            text,
            "nbd         yes      served\nvhost-user  no       no memfd\n                     -> get one\n\
             \nThis host can attach images."
        );
    }
}
