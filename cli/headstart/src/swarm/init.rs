//! `headstart swarm init`: a cluster's directory, made or added to.

use crate::agent::host_name;
use clap::Args;
use headstart_block::Result;
use headstart_command_line::date::date_of_second;
use headstart_command_line::number::number;
use headstart_command_line::report::Outcome;
use headstart_peer_net::credentials::{self, DAYS, DAYS_MAX, InitSettings, Made, MadeHost, Roles};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "Examples:\n  \
    headstart swarm init cluster --host node1 --host node2\n  \
    headstart swarm init cluster --host node3.example.com\n  \
    headstart swarm init cluster --root node1 --tracker node2 --operator admin\n\n\
    Run it where the authority's key is to stay, and copy DIR/hosts/NAME to each host, for `agent --credentials`. Run \
    it again to add hosts and roles; existing files stay as they are, except certificates that end soon or that an \
    earlier version made.\n\n\
    A role is in the host's certificate, and other hosts trust only that: a root fetches from the store for others, a \
    tracker counts the blocks that boots read, an operator orders others to warm and pin images, an authority renews \
    certificates. The first operator and authority is this host, if it is among the named ones, otherwise the first \
    named host.\n\n\
    Agents renew certificates by themselves after two thirds of their lifetime, once an agent of a host with the role \
    authority has the authority's key: `headstart agent --authority DIR`. To keep the keys of hosts where they are, \
    add hosts by `headstart swarm request` and `headstart swarm add` instead.";

#[derive(Args)]
pub(crate) struct Init {
    /// The cluster's directory, which must be empty or hold a cluster
    dir: PathBuf,
    /// A host's name, as in DNS; it need not be in DNS, but must be the one that its agent uses
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// A host that may be a root (`agent --root`)
    #[arg(long = "root", value_name = "NAME")]
    roots: Vec<String>,
    /// A host that may be a tracker (`agent --tracker`)
    #[arg(long = "tracker", value_name = "NAME")]
    trackers: Vec<String>,
    /// A host from which others take orders: to warm, pin and unpin images
    #[arg(long = "operator", value_name = "NAME")]
    operators: Vec<String>,
    /// A host that renews the certificates of others (`agent --authority`)
    #[arg(long = "authority", value_name = "NAME")]
    authorities: Vec<String>,
    /// Days for which certificates are valid
    #[arg(long, value_name = "N", default_value_t = DAYS,
        value_parser = number::<u32>(1..=DAYS_MAX))]
    days: u32,
}

impl Init {
    pub(super) fn run(&self) -> Result<Cluster> {
        let settings = InitSettings {
            hosts: self.hosts.clone(),
            roots: self.roots.clone(),
            trackers: self.trackers.clone(),
            operators: self.operators.clone(),
            authorities: self.authorities.clone(),
            default_operator: host_name().ok(),
            days: Some(self.days),
        };
        let made = credentials::init(&self.dir, &settings)?;
        let is_named = |name: &String| self.hosts.contains(name);
        // In a cluster without --host, all hosts are named by their roles.
        let hosts = made.hosts.into_iter().map(|made| {
            let by_role_only = made.made == Made::New && !self.hosts.is_empty() && !is_named(&made.name);
            Host { by_role_only, ..Host::of(made) }
        });
        let hosts = hosts.collect();
        Ok(Cluster { directory: self.dir.clone(), authority: made.authority, hosts })
    }
}

/// A host that can take part.
#[derive(Serialize)]
pub(super) struct Host {
    /// The name of the host.
    pub(super) name: String,
    /// The directory with its key and certificate.
    pub(super) directory: PathBuf,
    /// The fate of its certificate.
    pub(super) certificate: Made,
    /// The roles in the certificate.
    roles: Vec<&'static str>,
    /// `true` if it is new, and named only by an option that gives a role, although --host is used.
    by_role_only: bool,
    /// The last second in which the certificate is valid.
    valid_until: String,
    #[serde(skip)]
    words: Roles,
}

impl Host {
    pub(super) fn of(made: MadeHost) -> Self {
        let MadeHost { name, directory, roles, made, not_after } = made;
        let certificate = made;
        let (words, roles) = (roles, roles.names().collect());
        Self {
            name,
            directory,
            certificate,
            roles,
            by_role_only: false,
            valid_until: date_of_second(not_after),
            words,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, directory, valid_until, words, .. } = self;
        let day = valid_until.split('T').next().unwrap_or_default();
        match self.certificate {
            Made::New => {
                write!(f, "{name} ({words}): made, until {day}: copy {} there", directory.display())?;
                if self.by_role_only {
                    f.write_str("; it is new, and named by its role only: if that is a slip, revoke it")?;
                }
                Ok(())
            }
            Made::Renewed => {
                write!(
                    f,
                    "{name} ({words}): made again for its key, until {day}: copy {} there",
                    directory.display()
                )
            }
            Made::Kept => write!(f, "{name} ({words}): kept as it was, until {day}"),
        }
    }
}

/// A cluster's authority, and its hosts.
#[derive(Serialize)]
pub(super) struct Cluster {
    /// The directory of the cluster.
    directory: PathBuf,
    /// The fate of the authority's certificate.
    authority: Made,
    /// The hosts of the cluster.
    hosts: Vec<Host>,
}

impl Outcome for Cluster {}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = if self.authority == Made::New { "made" } else { "kept as it was" };
        write!(f, "the cluster's authority is in {}, {made}; keep ca.key there", self.directory.display())?;
        self.hosts.iter().try_for_each(|host| write!(f, "\n{host}"))
    }
}
