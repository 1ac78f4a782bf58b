//! `headstart doctor`: the features that work on this host, and the remedies for the others.

use clap::Args;
use headstart_command_line::report::{Outcome, Report};
use headstart_doctor::{Availability, HostFindings, examine};
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
        Box::new(Findings(examine(self.cache.as_deref())))
    }
}

/// The findings about this host.
#[derive(Serialize)]
#[serde(transparent)]
struct Findings(HostFindings);

impl Outcome for Findings {
    fn is_right(&self) -> bool {
        self.0.works
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostFindings { works, findings } = &self.0;
        let width = findings.iter().map(|finding| finding.feature.len()).max().unwrap_or(0);
        for finding in findings {
            let state = match finding.state {
                Availability::Yes => "yes",
                Availability::Limited => "limited",
                Availability::No => "no",
            };
            writeln!(f, "{:width$}  {state:7}  {}", finding.feature, finding.detail)?;
            if let Some(remedy) = &finding.remedy {
                writeln!(f, "{:width$}           -> {remedy}", "")?;
            }
        }
        if *works {
            f.write_str("\nThis host can attach images.")
        } else {
            f.write_str("\nThis host cannot attach images: see the first three lines.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_doctor::HostFinding;

    #[test]
    fn a_table_has_columns_and_remedies() {
        let findings = vec![
            HostFinding::new("nbd", Availability::Yes, "served"),
            HostFinding::new("vhost-user", Availability::No, "no memfd").remedy("get one"),
        ];
        let text = Findings(HostFindings { works: true, findings }).to_string();
        assert_eq!(
            text,
            "nbd         yes      served\nvhost-user  no       no memfd\n                     -> get one\n\
             \nThis host can attach images."
        );
    }
}
