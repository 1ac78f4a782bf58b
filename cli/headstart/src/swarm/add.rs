//! `headstart swarm request` and `swarm add`: a host that makes its own key, and the authority that signs for it.

use super::init::Host;
use crate::agent::host_name;
use clap::Args;
use headstart_block::Result;
use headstart_command_line::date::date_of_second;
use headstart_command_line::number::number;
use headstart_command_line::report::Outcome;
use headstart_peer_net::credentials::{self, AddSettings, DAYS, DAYS_MAX, Made, Roles};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) const REQUEST_EXAMPLES: &str = "Examples:\n  \
    headstart swarm request /etc/headstart/swarm\n  \
    headstart swarm request /etc/headstart/swarm --name node4.example.com\n\n\
    Run it on the host, in the directory that is its `agent --credentials`. The key never leaves it; the request is \
    for `headstart swarm add`, where the authority is. Run it again to renew a certificate that has ended: the key \
    stays the same.\n\n\
    The command makes DIR/host.key, which stays there, and DIR/request.pem, which is not secret. \
    Before the authority signs it, \
    be sure that it came from this host: compare `sha256sum request.pem` on both, for example.";

pub(super) const EXAMPLES: &str = "Examples:\n  \
    scp node4:/etc/headstart/swarm/request.pem node4.pem\n  \
    headstart swarm add cluster node4 --request node4.pem\n  \
    scp cluster/hosts/node4/* node4:/etc/headstart/swarm/\n  \
    headstart swarm add cluster node5 --request node5.pem --root --tracker --days 30\n\n\
    Run it where the authority's key is, and copy the content of DIR/hosts/NAME back into the directory of the \
    request. Certificates in it are public. The files gossip.key and trust are secret: copy them as you would copy a \
    password, by ssh for example.\n\n\
    The host gets the roles of the options, beside those that it has; roles in the request are ignored. A host of \
    that name that has another key has to be revoked first.";

#[derive(Args)]
pub(crate) struct Request {
    /// The host's own directory, which must be empty or hold its credentials
    dir: PathBuf,
    /// The host's name, as in DNS [default: the host's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Args)]
pub(crate) struct Add {
    /// The cluster's directory, as `headstart swarm init` made it
    dir: PathBuf,
    /// The host's name, which is in its request
    name: String,
    /// The request that `headstart swarm request` made on the host
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    /// Let it be a root (`agent --root`)
    #[arg(long)]
    root: bool,
    /// Let it be a tracker (`agent --tracker`)
    #[arg(long)]
    tracker: bool,
    /// Let it give orders to others: to warm, pin and unpin images
    #[arg(long)]
    operator: bool,
    /// Let it renew the certificates of others (`agent --authority`)
    #[arg(long)]
    authority: bool,
    /// Days for which the certificate is valid; it is renewed for the same number
    #[arg(long, value_name = "N", default_value_t = DAYS,
        value_parser = number::<u32>(1..=DAYS_MAX))]
    days: u32,
}

impl Request {
    pub(super) fn run(&self) -> Result<Requested> {
        let name = self.name.clone().map_or_else(host_name, Ok)?;
        let made = credentials::request(&self.dir, &name)?;
        Ok(Requested { name: made.name, request: made.request, key: made.key, directory: self.dir.clone() })
    }
}

impl Add {
    pub(super) fn run(&self) -> Result<Added> {
        let roles = Roles {
            root: self.root,
            tracker: self.tracker,
            operator: self.operator,
            authority: self.authority,
        };
        let settings = AddSettings {
            name: self.name.clone(),
            request: self.request.clone(),
            roles,
            days: Some(self.days),
        };
        let added = credentials::add(&self.dir, &settings)?;
        let until = date_of_second(added.not_after);
        Ok(Added { roles: added.roles, until, host: Host::of(added) })
    }
}

/// A request that was made.
#[derive(Serialize)]
pub(super) struct Requested {
    name: String,
    /// The file that is to be copied to the authority.
    request: PathBuf,
    /// The fate of the host's key.
    key: Made,
    directory: PathBuf,
}

impl Outcome for Requested {}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, request, directory, .. } = self;
        let (key, there) = (if self.key == Made::Kept { "kept" } else { "made" }, directory.display());
        let request = request.display();
        write!(
            f,
            "{name}: its key is in {there}, {key}; copy {request} to where the authority is, run `headstart swarm add \
             DIR {name} --request FILE` there, and copy the content of DIR/hosts/{name} into {there}"
        )
    }
}

/// A host that was added.
#[derive(Serialize)]
pub(super) struct Added {
    #[serde(flatten)]
    host: Host,
    #[serde(skip)]
    roles: Roles,
    #[serde(skip)]
    until: String,
}

impl Outcome for Added {}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, roles, directory) = (&self.host.name, self.roles, self.host.directory.display());
        let done = if self.host.certificate == Made::Renewed { "renewed" } else { "added" };
        let day = self.until.split('T').next().unwrap_or_default();
        write!(
            f,
            "{name} ({roles}): {done}, until {day}: copy the content of {directory} into the directory of its request; \
             gossip.key and trust are secret, so copy them by ssh or the like"
        )
    }
}
