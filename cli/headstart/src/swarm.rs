//! `headstart swarm`: hosts that help each other.
//!
//! | module | content |
//! |---|---|
//! | [`add`] | a host joins the cluster by a signing request: both sides of that |
//! | [`init`] | a cluster: its authority, hosts' certificates, the gossip key |
//! | [`pin`] | images that hosts keep together |
//! | [`revoke`] | hosts that are members no longer, another gossip key |
//! | [`status`] | the part of a host in the swarm, from its agent |
//! | [`warm`] | images that are fetched ahead of need |

mod add;
mod init;
mod pin;
mod revoke;
mod status;
mod warm;

pub(crate) use warm::{AfterPush, OnPush, PushWarming};

use crate::agent::AgentSocket;
use clap::Subcommand;
use headstart_block::Result;
use headstart_command_line::report::Report;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart swarm init cluster --host node1 --host node2\n  \
    headstart swarm status\n  \
    headstart swarm pin oci://registry.lan/vm/debian:12 --copies 2";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a cluster: its certificate authority, host certificates and gossip key
    #[command(after_help = init::EXAMPLES)]
    Init(init::Init),
    /// Make a host's own key, and a request for its certificate
    #[command(after_help = add::REQUEST_EXAMPLES)]
    Request(add::Request),
    /// Add a host to the cluster by the request that it made, or renew its certificate
    #[command(after_help = add::EXAMPLES)]
    Add(add::Add),
    /// Revoke hosts: no other host takes their certificates any more
    #[command(after_help = revoke::EXAMPLES)]
    Revoke(revoke::Revoke),
    /// Change the key by which gossip between hosts is sealed
    #[command(after_help = revoke::REKEY_EXAMPLES)]
    Rekey(revoke::Directory),
    /// Send the swarm the list of revoked hosts again, if `revoke` or `rekey` could not
    #[command(after_help = revoke::PUBLISH_EXAMPLES)]
    Publish(revoke::Directory),
    /// Show this host's part in the swarm: the other hosts, the blobs that it shares, the bytes that went over the
    /// network
    #[command(after_help = "Examples:\n  headstart swarm status\n  \
                      headstart swarm status --agent /run/headstart/agent.sock --json")]
    Status {
        #[command(flatten)]
        agent: AgentSocket,
    },
    /// Fetch an image to hosts ahead of need: the parts that boots read, or all
    #[command(after_help = warm::EXAMPLES)]
    Warm(Box<warm::Warm>),
    /// Have hosts keep an image together, each a part, so that disks of it work without its store
    #[command(after_help = pin::EXAMPLES)]
    Pin(Box<pin::PinImage>),
    /// End the pin of an image that hosts keep together
    #[command(after_help = "Examples:\n  headstart swarm unpin oci://registry.lan/vm/debian:12\n  \
                      headstart swarm unpin oci://registry.lan/vm/debian:12 --json\n\n\
                      Its content is evicted when the cache needs the space. Hosts that are away learn of it when \
                      they are back.")]
    Unpin {
        /// The image, as `headstart swarm status` shows it, or any reference with its digest
        image: String,
        #[command(flatten)]
        agent: AgentSocket,
    },
}

impl Command {
    pub(crate) fn run(&self) -> Result<Box<dyn Report>> {
        match self {
            Self::Init(init) => Ok(Box::new(init.run()?)),
            Self::Request(request) => Ok(Box::new(request.run()?)),
            Self::Add(add) => Ok(Box::new(add.run()?)),
            Self::Revoke(revoke) => Ok(Box::new(revoke.run()?)),
            Self::Rekey(directory) => Ok(Box::new(directory.rekey()?)),
            Self::Publish(directory) => Ok(Box::new(directory.publish()?)),
            Self::Warm(warm) => Ok(Box::new(warm.run()?)),
            Self::Pin(pin) => Ok(Box::new(pin.run()?)),
            Self::Unpin { image, agent } => Ok(Box::new(pin::unpin(image, agent)?)),
            Self::Status { agent } => {
                Ok(Box::new(status::Part(agent.ask(async |agent| agent.swarm().await)?)))
            }
        }
    }
}
