//! `headstart agent`: the daemon of a host, in the foreground.
//!
//! | module | content |
//! |---|---|
//! | [`arguments`] | the arguments |
//! | [`clone`] | `headstart disk clone`: a second disk with the same content |
//! | [`compact`] | `headstart disk compact`: a writable directory that is not attached |
//! | [`disk`], [`disk_line`] | `headstart disk ...`: its disks, in words |
//! | [`repair`] | `headstart disk repair`: a writable directory whose index is damaged |
//! | [`watch`] | `headstart disk watch`: the changes of its disks |

mod arguments;
mod clone;
mod compact;
mod disk;
mod disk_line;
mod repair;
mod watch;

pub(crate) use arguments::{AgentArgs, host_name};
pub(crate) use disk::{AgentSocket, DiskCommand, DiskReport, EXAMPLES as DISK_EXAMPLES};

use crate::daemon::{self, LOOK};
use headstart_agentd::daemon::{Agent, AgentSettings};
use headstart_block::{Error, Result};
use headstart_cache::{Cache, CacheSettings};
use headstart_command_line::report::Report;
use headstart_command_line::terminal::Terminal;
use headstart_image::progress::Progress;
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

pub(crate) const EXAMPLES: &str = "Examples:\n  \
    headstart agent --credentials /etc/headstart/swarm --join host1.lan:4647\n  \
    headstart agent --plain a --listen 127.0.0.1:4647 \\\n      \
    --dir /tmp/agent-a --cache /tmp/cache-a\n  \
    headstart agent --credentials /etc/headstart/swarm --topology roots \\\n      \
    --root --push 32 --tracker --allow-store oci://registry.lan/vm\n  \
    headstart agent --credentials /etc/headstart/swarm --join host1.lan:4647 \\\n      \
    --range-proxy 127.0.0.1:9731\n  \
    headstart agent --limit-rate 20MB/s\n  \
    headstart agent --credentials /etc/headstart/swarm \\\n      \
    --authority /etc/headstart/cluster\n\n\
    The agent manages the disks that `headstart attach IMAGE --agent DIR/agent.sock` hands to it, each in a process \
    of its own; other programs use HTTP at the same socket, as /openapi.json there describes. A disk that the agent \
    does not manage uses the swarm by `headstart attach IMAGE --swarm DIR/swarm.sock`. The agent ends at SIGTERM or \
    Ctrl-C; disks go on without it, and the next agent finds them. --limit-rate bounds the reads of the agent and its \
    disks from stores together; disks keep to it without the agent, too.";

/// The interval at which the cache is made durable and its size limit kept.
const SYNC_EVERY: Duration = Duration::from_secs(5);

/// Threads that talk to other hosts, verify and store.
const RUNTIME_THREADS: usize = 2;

impl AgentArgs {
    pub(crate) fn run(&self, terminal: &Terminal, json: bool) -> Result<Box<dyn Report>> {
        let farewell = "the agent has ended; its disks go on";
        daemon::run("agent", RUNTIME_THREADS, farewell, terminal, |runtime| {
            self.run_on(runtime, terminal, json)
        })
    }

    fn run_on(&self, runtime: &Runtime, terminal: &Terminal, json: bool) -> Result<()> {
        let cache = self.cache_dir();
        let size_limit = self.cache_size();
        let cache = Cache::open(&cache, CacheSettings { size_limit, ..CacheSettings::default() })?;
        let settings = AgentSettings {
            dir: self.dir(),
            state: self.state(),
            cache: Arc::clone(&cache),
            swarm: self.swarm()?,
            stores: self.store.settings_to_serve()?,
            allowed_stores: self.allow_store.clone(),
            require_tree: self.require_tree,
            cached_although_denied: self.cached_although_denied,
            scrub_rate: self.scrub_rate.map(|rate| rate.0),
            program: program()?,
            http: self.http(),
            range_proxy: self.range_proxy,
            access: self.access.access(),
        };
        let agent = runtime.block_on(Agent::start(settings, runtime.handle().clone()))?;
        announce(&agent, json)?;
        let mut synced = Instant::now();
        let mut joined = agent.swarm().filter(|_| !json);
        while !terminal.is_cancelled() {
            std::thread::sleep(LOOK);
            let hosts = joined.map(|swarm| swarm.taken_by()).unwrap_or_default();
            if let Some(swarm) = joined.take_if(|_| !hosts.is_empty()) {
                daemon::announce(&Joined { name: swarm.status().name, hosts }, json)?;
            }
            if synced.elapsed() > SYNC_EVERY {
                synced = Instant::now();
                if let Err(error) = cache.sync() {
                    tracing::warn!(%error, "the cache is not in order");
                }
            }
        }
        runtime.block_on(agent.stop());
        // Lost parts of a cache are fetched again.
        let _ = cache.sync();
        Ok(())
    }
}

/// The output once the agent can be used.
#[derive(Serialize)]
struct Ready<'a> {
    /// The host's name in the swarm.
    name: Option<String>,
    /// The address at which other hosts reach it.
    address: Option<String>,
    swarm: Option<&'a Path>,
    /// The path of its socket.
    agent: &'a Path,
    http: Option<String>,
    /// The URL at which other programs get blobs, before a name and the blob's URL.
    range_proxy: Option<String>,
}

/// This program, as it is on disk: after an upgrade that is the new one.
fn program() -> Result<PathBuf> {
    let path = std::env::current_exe().map_err(|e| Error::io("cannot find this program", e))?;
    // Linux adds this behind the name of a program that was replaced while it ran.
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

fn announce(agent: &Agent, json: bool) -> Result<()> {
    let status = agent.swarm().map(|swarm| swarm.status());
    let url = |address: SocketAddr| format!("http://{address}");
    let ready = Ready {
        address: status.as_ref().and_then(|status| Some(status.address?.to_string())),
        name: status.map(|status| status.name),
        swarm: agent.swarm_socket(),
        agent: agent.socket(),
        http: agent.http().map(url),
        range_proxy: agent.range_proxy().map(url),
    };
    daemon::announce(&ready, json)
}

impl fmt::Display for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, &self.address) {
            (Some(name), Some(address)) => write!(f, "{name} listens for other hosts at {address}")?,
            _ => write!(f, "the agent runs, in no swarm")?,
        }
        write!(f, "; disks: --agent {}", self.agent.display())?;
        if let Some(socket) = self.swarm {
            write!(f, " or --swarm {}", socket.display())?;
        }
        if let Some(http) = &self.http {
            write!(f, "\nmetrics: {http}/metrics")?;
        }
        if let Some(proxy) = &self.range_proxy {
            write!(f, "\nblobs for other programs: {proxy}/NAME/URL")?;
        }
        Ok(())
    }
}

/// The line that is printed to people once another host has accepted the agent.
#[derive(Serialize)]
struct Joined {
    name: String,
    /// The hosts that it is connected to.
    hosts: Vec<String>,
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is in the swarm: connected to {}", self.name, self.hosts.join(", "))
    }
}
