//! The arguments of `headstart agent`.

use crate::socket_args::AgentSocketArgs;
use clap::Args;
use headstart_block::{ByteRate, ByteSize, Error, Result};
use headstart_cache::Cache;
use headstart_command_line::number::at_least;
use headstart_command_line::store_args::StoreArgs;
use headstart_daemon::http::HttpPort;
use headstart_daemon::places::{run_dir, state_dir};
use headstart_peer_net::credentials::Credentials;
use headstart_peer_net::{Security, SwarmSettings};
use headstart_store::StorePrefix;
use headstart_swarm::{NodeSettings, Role, Topology};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The file of a tracker's counts, in its agent's state directory.
const TRACKER_FILE: &str = "tracker";

/// The file of the revoked hosts, there.
const TRUST_FILE: &str = "trust";

/// Arguments of `headstart agent`.
#[derive(Args)]
pub(crate) struct AgentArgs {
    /// The agent's directory, with its sockets and the records of its disks [default: /run/headstart, or headstart in
    /// $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The directory of the state that outlives a restart of the host: pinned images, a tracker's counts, requests to
    /// a root [default: --dir, if it is given; otherwise /var/lib/headstart, or ~/.local/state/headstart]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// The cache of this host's disks [default: /var/cache/headstart, or ~/.cache/headstart]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Most bytes in the cache [default: the space that its file system has for it]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<ByteSize>,
    /// Attach no image of a store unless hash trees prove all of its bytes as they arrive: for images that others
    /// choose
    #[arg(long)]
    pub(super) require_tree: bool,
    /// Attach an image that is whole in the cache although its store refuses it
    #[arg(long)]
    pub(super) cached_although_denied: bool,
    /// Compare the content of the cache with hash trees and digests, over and over, at this many bytes a second, such
    /// as 5MB/s: content that has changed on the disk is dropped, and fetched again when it is needed [default: not]
    #[arg(long, value_name = "RATE")]
    pub(super) scrub_rate: Option<ByteRate>,
    /// Take part in the swarm with the credentials that `headstart swarm init` made for this host
    #[arg(long, value_name = "DIR", conflicts_with = "plain", group = "swarm", help_heading = "Swarm")]
    credentials: Option<PathBuf>,
    /// This host's name in the swarm, which is in its certificate [default: the host's name]
    // clap drops `requires` where an argument that conflicts with the required one is given.
    #[arg(
        long,
        value_name = "NAME",
        requires = "credentials",
        conflicts_with = "plain",
        help_heading = "Swarm"
    )]
    name: Option<String>,
    /// Take part under this name without encryption, trusting every peer: only on loopback
    #[arg(long, value_name = "NAME", group = "swarm", help_heading = "Swarm")]
    plain: Option<String>,
    /// The address at which other hosts reach this one, with TCP and UDP
    #[arg(
        long,
        value_name = "IP:PORT",
        default_value = "0.0.0.0:4647",
        requires = "swarm",
        help_heading = "Swarm"
    )]
    listen: SocketAddr,
    /// The same address as other hosts see it, if it is different
    #[arg(long, value_name = "IP:PORT", requires = "swarm", help_heading = "Swarm")]
    advertise: Option<SocketAddr>,
    /// A host that is in the swarm already (may be repeated)
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port, requires = "swarm", help_heading = "Swarm")]
    join: Vec<String>,
    /// Be a root: fetch for others, and keep what they read
    #[arg(long, requires = "swarm", help_heading = "Swarm")]
    root: bool,
    /// For a root of the topology `roots`: most agents that it accepts; others are refused, and ask another root
    /// [default: twice its share of them]
    #[arg(long, value_name = "N", requires = "root", value_parser = at_least::<u32>(1),
        help_heading = "Swarm")]
    agents: Option<u32>,
    /// For a root of the topology `roots`: most chunks of 64K that are sent unasked to an agent that is likely to want
    /// them next, as earlier requests of others show; 0 for none
    #[arg(long, value_name = "N", requires = "root", help_heading = "Swarm", default_value_t = 0)]
    push: u32,
    /// Be a tracker, too: count the blocks that disks of all hosts read first, so that other disks of the same image
    /// preload them; counts are kept in --state
    #[arg(long, requires = "swarm", help_heading = "Swarm")]
    tracker: bool,
    /// Renew the certificates of other hosts, and its own, with the authority's key: the directory that `headstart
    /// swarm init` made, or another one with only its ca.pem and ca.key; this host's certificate must give it the role
    /// `authority`
    #[arg(
        long,
        value_name = "DIR",
        requires = "credentials",
        conflicts_with = "plain",
        help_heading = "Swarm"
    )]
    authority: Option<PathBuf>,
    /// The topology, by which hosts announce their chunks to each other: random:N, ring, similar:N, roots or tree:N
    #[arg(long, value_name = "KIND", default_value = "random:4", requires = "swarm", help_heading = "Swarm")]
    topology: TopologyArg,
    /// Let every host that lacks a chunk fetch it from the store itself, instead of one host for all
    #[arg(long, requires = "swarm", help_heading = "Swarm")]
    no_homes: bool,
    /// Most bytes that are prefetched for a disk and not read yet, such as 16M; 0 for nothing, none for no limit
    /// [default: the smaller of 16M and 512K and a hundredth of the bytes that the disk has read]
    #[arg(long, value_name = "SIZE", requires = "swarm", help_heading = "Swarm")]
    threshold: Option<Threshold>,
    /// Fetch content that other hosts order (`swarm warm`, `swarm pin`, `image push --warm`, agents of a root) from
    /// stores whose names begin like this, too: `oci://registry.lan/vm`, `https://store.lan/images`; path components
    /// are whole ones (may be repeated) [default: only stores that disks were attached from here, and those of images
    /// pinned here]
    #[arg(long, value_name = "PREFIX", requires = "swarm", help_heading = "Swarm")]
    pub(super) allow_store: Vec<StorePrefix>,
    /// Most hosts to be connected to
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least::<u16>(1),
        requires = "swarm", help_heading = "Swarm")]
    connections: u16,
    /// Serve metrics and the other read-only requests at this address, too, such as 127.0.0.1:9647
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// Answer requests at --http that give the host this name, beside its addresses, its own name and localhost (may
    /// be repeated)
    #[arg(long, value_name = "NAME", requires = "http")]
    http_name: Vec<String>,
    /// Serve blobs to other programs on this host that request them as OverlayBD's p2pConfig does: at
    /// http://IP:PORT/NAME/URL, with the authorization that the URL's server requires; such as 127.0.0.1:9731
    #[arg(long, value_name = "IP:PORT", help_heading = "Swarm")]
    pub(super) range_proxy: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) access: AgentSocketArgs,
    #[command(flatten)]
    pub(super) store: StoreArgs,
}

impl AgentArgs {
    /// The TCP address of the read-only part of the interface.
    pub(super) fn http(&self) -> Option<HttpPort> {
        self.http.map(|address| HttpPort { address, names: self.http_name.clone() })
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(run_dir)
    }

    pub(super) fn state(&self) -> PathBuf {
        self.state.clone().or_else(|| self.dir.clone()).unwrap_or_else(state_dir)
    }

    pub(super) fn cache_dir(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(Cache::default_dir)
    }

    pub(super) fn cache_size(&self) -> Option<u64> {
        self.cache_size.map(|ByteSize(bytes)| bytes)
    }

    /// Checks the rules between arguments that clap cannot express.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Invalid`] if they do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        let is_roots = self.topology.0 == Topology::Roots;
        for (option, is_given) in [("--push", self.push > 0), ("--agents", self.agents.is_some())] {
            if is_given && !is_roots {
                let error = Error::invalid("has a meaning in the topology `roots` only").about(option);
                return Err(error.remedy("add --topology roots, here and on the other hosts"));
            }
        }
        Ok(())
    }

    /// The part of the host in a swarm; `None` without options for that.
    ///
    /// # Errors
    /// If the credentials cannot be read.
    pub(super) fn swarm(&self) -> Result<Option<SwarmSettings>> {
        let security = match (&self.credentials, &self.plain) {
            (Some(dir), _) => {
                let name = self.name.clone().map_or_else(host_name, Ok)?;
                Security::Tls(Credentials::load(dir, &name)?)
            }
            (None, Some(name)) => Security::PlainOnLoopback { name: name.clone() },
            (None, None) => return Ok(None),
        };
        let defaults = NodeSettings::default();
        Ok(Some(SwarmSettings {
            security,
            listen: self.listen,
            advertise: self.advertise,
            join: self.join.clone(),
            role: if self.root { Role::Root } else { Role::Agent },
            node: NodeSettings {
                topology: self.topology.0,
                designated_fetchers: !self.no_homes,
                push: self.push,
                agents_max: self.agents,
                threshold: self.threshold.map(|Threshold(bytes)| bytes).or(defaults.threshold),
                ..defaults
            },
            connections_max: self.connections.into(),
            tracker: self.tracker.then(|| self.state().join(TRACKER_FILE)),
            trust: Some(self.state().join(TRUST_FILE)),
            authority: self.authority.clone(),
        }))
    }
}

/// This host's name, as the system has it.
///
/// # Errors
/// If it is not text.
pub(crate) fn host_name() -> Result<String> {
    let name = rustix::system::uname().nodename().to_str().map(str::to_owned);
    name.map_err(|e| Error::invalid("this host's name is not text").caused_by(e).remedy("give one by --name"))
}

/// A host that is in the swarm, by name or address.
fn host_and_port(text: &str) -> Result<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(Error::invalid(format!("`{}` is not a host with a port", text.escape_debug()))
            .remedy("write HOST:PORT, such as node1:4647"));
    }
    Ok(text.to_owned())
}

/// Bytes that may be prefetched and unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Threshold(u64);

impl FromStr for Threshold {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" => Ok(Self(u64::MAX)),
            _ => text.parse().map(|ByteSize(bytes)| Self(bytes)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TopologyArg(Topology);

impl FromStr for TopologyArg {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!("`{}` is not a topology", text.escape_debug()))
                .remedy("write random:4, ring, similar:4, roots or tree:2")
        };
        let (kind, number) = match text.split_once(':') {
            Some((kind, number)) => {
                let number = number.parse().ok().filter(|number| (1..=64).contains(number));
                (kind, Some(number.ok_or_else(bad)?))
            }
            None => (text, None),
        };
        Ok(Self(match (kind, number) {
            ("ring", None) => Topology::Ring,
            ("roots", None) => Topology::Roots,
            ("random", number) => Topology::Random(number.unwrap_or(4)),
            ("similar", number) => Topology::Similar(number.unwrap_or(4)),
            ("tree", number) => Topology::Tree(number.unwrap_or(2)),
            _ => return Err(bad()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_have_names() {
        let topology = |text: &str| text.parse::<TopologyArg>().map(|TopologyArg(topology)| topology).ok();
        assert_eq!(topology("ring"), Some(Topology::Ring));
        assert_eq!(topology("random:7"), Some(Topology::Random(7)));
        assert_eq!(topology("tree"), Some(Topology::Tree(2)));
        for text in ["ring:2", "tree:0", "tree:65", "tree:x", "star", ""] {
            assert_eq!(topology(text), None, "{text}");
        }
    }

    #[test]
    fn hosts_have_ports() {
        assert_eq!(host_and_port("node1:4647").ok().as_deref(), Some("node1:4647"));
        assert!(host_and_port("[::1]:4647").is_ok());
        for text in ["node1", "node1:", ":4647", "node1:0", "node1:x", "node1:65536", ""] {
            assert!(host_and_port(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_threshold_is_a_size_or_none() {
        assert_eq!("none".parse::<Threshold>().unwrap(), Threshold(u64::MAX));
        assert_eq!("0".parse::<Threshold>().unwrap(), Threshold(0));
        assert_eq!("16M".parse::<Threshold>().unwrap(), Threshold(16 << 20));
        assert!("much".parse::<Threshold>().is_err());
    }
}
