//! `headstart swarm`: hosts that help each other.
//!
//! | module | what it does |
//! |---|---|
//! | [`pin`] | images that hosts keep together |
//! | [`status`] | what a host's agent says of its part |
//! | [`warm`] | images are brought ahead of need |

mod pin;
mod status;
mod warm;

pub(crate) use warm::{AfterPush, OnPush, PushWarming};

use crate::agent::AgentSocket;
use crate::report::{Outcome, Report};
use clap::{Args, Subcommand};
use headstart_agent::credentials;
use headstart_block::Result;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make what the hosts of a cluster know each other by: an authority, certificates, a key for gossip
    ///
    /// Run it where the authority's key is to stay, and copy DIR/hosts/NAME to each host, for `agent --credentials`.
    /// Run it again to add hosts; what is there stays as it is.
    #[command(after_help = "Examples:\n  headstart swarm init cluster --host node1 --host node2\n  \
                      headstart swarm init cluster --host node3.example.com")]
    Init(Init),
    /// Show this host's part in the swarm: the other hosts, the blobs that it shares, what went over the network
    #[command(after_help = "Examples:\n  headstart swarm status\n  \
                      headstart swarm status --agent /run/headstart/agent.sock --json")]
    Status {
        #[command(flatten)]
        agent: AgentSocket,
    },
    /// Bring an image to hosts ahead of need: what boots read of it, or all
    #[command(after_help = warm::EXAMPLES)]
    Warm(Box<warm::Warm>),
    /// Have hosts keep an image together, each a part, so that disks of it do without its store
    #[command(after_help = pin::EXAMPLES)]
    Pin(Box<pin::PinImage>),
    /// Let an image go that hosts keep together
    #[command(after_help = "Examples:\n  headstart swarm unpin oci://registry.lan/vm/debian:12\n  \
                      headstart swarm unpin oci://registry.lan/vm/debian:12 --json\n\n\
                      What is there of it goes when the cache needs the room. Hosts that are away hear of it when \
                      they are back.")]
    Unpin {
        /// The image, as `headstart swarm status` shows it, or any reference with its digest
        image: String,
        #[command(flatten)]
        agent: AgentSocket,
    },
}

#[derive(Args)]
pub(crate) struct Init {
    /// Where to make it
    dir: PathBuf,
    /// A host's name, as in DNS; it need not be in DNS, but must be the one that its agent says
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
}

impl Command {
    pub(crate) fn run(&self) -> Result<Box<dyn Report>> {
        match self {
            Self::Init(Init { dir, hosts }) => {
                let directories = credentials::init(dir, hosts)?;
                let hosts = hosts.iter().cloned().zip(directories);
                let hosts = hosts.map(|(name, directory)| Host { name, directory }).collect();
                Ok(Box::new(Made { directory: dir.clone(), hosts }))
            }
            Self::Warm(warm) => Ok(Box::new(warm.run()?)),
            Self::Pin(pin) => Ok(Box::new(pin.run()?)),
            Self::Unpin { image, agent } => Ok(Box::new(pin::unpin(image, agent)?)),
            Self::Status { agent } => Ok(Box::new(status::Part(agent.client()?.swarm()?))),
        }
    }
}

/// A host that can take part.
#[derive(Serialize)]
struct Host {
    name: String,
    directory: PathBuf,
}

/// A cluster's authority, and hosts that it vouches for.
#[derive(Serialize)]
struct Made {
    directory: PathBuf,
    hosts: Vec<Host>,
}

impl Outcome for Made {}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the cluster's authority is in {}; keep ca.key there", self.directory.display())?;
        for Host { name, directory } in &self.hosts {
            write!(f, "\n{name}: copy {} there", directory.display())?;
        }
        Ok(())
    }
}
