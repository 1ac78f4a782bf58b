//! The agent as a whole: its directories, its membership in the swarm, and the sockets at which programs find it.
//!
//! ```text
//! DIR/lock            locked as long as an agent uses DIR
//! DIR/agent.sock      the socket at which programs find the agent: HTTP
//! DIR/swarm.sock      the socket at which disks' processes find the swarm
//! DIR/disks/          the records of the host's disks
//! DIR/keeper/         the keeper of the disks' mounts
//! DIR/rate            the rate at which the agent and its disks together may fetch from stores
//! STATE/pins          the images that hosts are to keep together
//! STATE/recent        the recent requests to this host, if it is a root
//! STATE/tracker       this host's counts, if it is a tracker
//! STATE/trust         the revoked hosts, and the gossip key
//! ```
//!
//! The files in DIR describe running processes, so they are of no use after a reboot of the host. The files in STATE
//! are still valid after a reboot. DIR and STATE may be the same directory.
//!
//! The agent takes no part in reads of local bytes, and no disk needs it: it can be killed, started again and replaced
//! by another release at any time.

use crate::disks::{Disks, DisksSettings};
use crate::local::LocalServer;
use crate::pin_manager::{CommandLoop, PINS, PinManager};
use crate::rest::{self, Served};
use crate::scrub::Scrub;
use crate::stores::Stores;
use headstart_block::guarded::{GuardedDir, open_own_file};
use headstart_block::lock::lock_within;
use headstart_block::{Error, ErrorKind, Result, private};
use headstart_cache::Cache;
use headstart_daemon::http::{HttpPort, Rest};
use headstart_export::SocketAccess;
use headstart_peer_net::{Swarm, SwarmSettings};
use headstart_range_proxy::Proxy;
use headstart_store::{RateLimit, set_shared_rate};
use headstart_swarm::Role;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;

/// The socket at which disks find the swarm, in an agent's directory.
const SWARM_SOCKET: &str = "swarm.sock";

/// The file of recent requests to a root, in an agent's state directory; it is written every [`REMEMBER_EVERY`].
const RECENT: &str = "recent";
const REMEMBER_EVERY: Duration = Duration::from_secs(60);

/// The rate of an agent and its disks, in an agent's directory.
const RATE: &str = "rate";

/// The agent's files in its state directory, in which there may be files of others.
const STATE_FILES: [&str; 4] = [PINS, RECENT, "tracker", "trust"];

/// The longest wait for the lock of a directory: if an agent was killed while it started a process, that process has
/// the lock until it is executed.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The file name of the agent's socket in its directory, at which programs send it requests over HTTP.
pub const SOCKET: &str = "agent.sock";

/// The settings of an agent: the process that looks after the disks of one host and takes part in the swarm.
pub struct AgentSettings {
    /// The agent's own directory, for its sockets and the records of its disks. It is created if it does not
    /// exist.
    pub dir: PathBuf,
    /// The directory for state that must survive a reboot of the host, such as pins. It is created if it does
    /// not exist.
    pub state: PathBuf,
    /// The cache that the agent and all disks of the host share.
    pub cache: Arc<Cache>,
    /// The settings of this host in the swarm. `None`: the agent takes part in no swarm and only manages
    /// disks.
    pub swarm: Option<SwarmSettings>,
    /// The settings for connections to stores, such as credentials and timeouts.
    pub stores: headstart_store::StoreSettings,
    /// Stores from which other hosts may order this agent to fetch, in addition to the stores of its attached
    /// disks and of images that were pinned at this host.
    pub allowed_stores: Vec<headstart_store::StorePrefix>,
    /// `true` if disks refuse to attach an image from a store unless hash trees prove its bytes.
    pub require_tree: bool,
    /// `true` if disks may attach an image that is completely in the cache even if its store refuses the
    /// credentials.
    pub cached_although_denied: bool,
    /// The rate, in bytes a second, at which the agent repeatedly verifies the whole cache against its hash
    /// trees. `None`: the cache is not verified in this way.
    pub scrub_rate: Option<u64>,
    /// The path of the program `headstart`, which serves a disk.
    pub program: PathBuf,
    /// The TCP address for the read-only part of the REST interface. `None`: the interface is only at the
    /// socket.
    pub http: Option<HttpPort>,
    /// The loopback address of the range proxy, an HTTP proxy by which other programs get blobs from the
    /// cache and the swarm. `None`: no range proxy.
    pub range_proxy: Option<SocketAddr>,
    /// The users that may connect to the agent's socket.
    pub access: SocketAccess,
}

/// A running agent: the disks of this host, its membership in the swarm, and the REST interface.
pub struct Agent {
    swarm: Option<Arc<Swarm>>,
    swarm_socket: PathBuf,
    local: Option<LocalServer>,
    command_loop: Option<CommandLoop>,
    socket: PathBuf,
    rest: Rest,
    proxy: Option<Arc<Proxy>>,
    /// The file of a root's recent requests.
    recent: Option<PathBuf>,
    _scrub: Option<Scrub>,
    /// The locks of its directory and of its state directory; dropped last.
    _locks: [File; 2],
}

impl Agent {
    /// Starts the agent. The tasks of the swarm run on the runtime of the handle `runtime`, all others on the Tokio
    /// runtime of the caller.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another agent uses one of the directories; [`ErrorKind::Denied`] if a directory or a
    /// file in it belongs to neither root nor this user, or if others may write to it; [`ErrorKind::Invalid`] if the
    /// settings have a range proxy and no swarm; errors of the operating system, of the stores' settings, and of
    /// starting the swarm.
    pub async fn start(settings: AgentSettings, runtime: Handle) -> Result<Self> {
        let AgentSettings { dir, state, cache, swarm, stores, program, http, range_proxy, access, .. } =
            settings;
        let lock = take(&dir)?;
        access.open_directory(&dir)?;
        let state_lock = take_state(&state)?;
        let rate = dir.join(RATE);
        let stores = within_shared_rate(stores, &rate)?;
        let reaching = stores.clone();
        let stores = Arc::new(Stores::new(stores, settings.allowed_stores));
        let swarm_socket = dir.join(SWARM_SOCKET);
        let swarm = match swarm {
            Some(swarm) => Some(Swarm::start(swarm, Arc::clone(&cache), runtime).await?),
            None => None,
        };
        let proxy = proxy(range_proxy, swarm.as_ref(), &reaching).await?;
        let recent = swarm.as_ref().filter(|swarm| swarm.role() == Role::Root).map(|_| state.join(RECENT));
        if let (Some(swarm), Some(path)) = (&swarm, &recent) {
            if let Err(error) = swarm.remember(path) {
                tracing::warn!(%error, "earlier requests are not known");
            }
            tokio::spawn(remember(Arc::downgrade(swarm), path.clone()));
        }
        let local = match &swarm {
            Some(swarm) => {
                Some(LocalServer::start(&swarm_socket, Arc::clone(swarm), cache.dir(), Arc::clone(&stores))?)
            }
            None => None,
        };
        let pin_manager =
            swarm.as_ref().map(|swarm| PinManager::new(Arc::clone(swarm), stores, &state, cache.dir()));
        let command_loop = pin_manager.as_ref().map(PinManager::follow_commands);
        // Relative paths mean something else to disks, whose working directories are their own.
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let disks = Disks::open(DisksSettings {
            dir: absolute(&dir).join("disks"),
            keeper: absolute(&dir).join("keeper"),
            program,
            cache: absolute(cache.dir()),
            swarm: local.as_ref().map(|_| absolute(&swarm_socket)),
            rate: absolute(&rate),
            require_tree: settings.require_tree,
            cached_although_denied: settings.cached_although_denied,
        })?;
        let socket = dir.join(SOCKET);
        let scrub = settings.scrub_rate.map(|rate| Scrub::start(Arc::clone(&cache), rate)).transpose()?;
        let counts = scrub.as_ref().map(|scrub| Arc::clone(&scrub.counts));
        let served =
            Served { disks, swarm: swarm.clone(), pin_manager, proxy: proxy.clone(), cache, scrub: counts };
        let rest = rest::start(&socket, &access, http, served).await?;
        Ok(Self {
            swarm,
            swarm_socket,
            local,
            command_loop,
            socket,
            rest,
            recent,
            proxy,
            _scrub: scrub,
            _locks: [lock, state_lock],
        })
    }

    /// The path of the agent's socket, at which programs send it requests.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The TCP address of the read-only part of the REST interface; `None` if there is none.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.rest.address
    }

    /// The address of the range proxy, by which other programs get blobs over HTTP; `None` if there is none.
    #[must_use]
    pub fn range_proxy(&self) -> Option<SocketAddr> {
        self.proxy.as_ref().map(|proxy| proxy.address())
    }

    /// This host's membership in the swarm; `None` if the agent takes part in no swarm.
    #[must_use]
    pub fn swarm(&self) -> Option<&Arc<Swarm>> {
        self.swarm.as_ref()
    }

    /// The path of the socket at which disks' processes reach the swarm; `None` if the agent takes part in no
    /// swarm.
    #[must_use]
    pub fn swarm_socket(&self) -> Option<&Path> {
        self.local.as_ref().map(|_| self.swarm_socket.as_path())
    }

    /// Leaves the swarm and ends the agent. The processes of disks keep running.
    pub async fn stop(self) {
        drop(self.rest);
        drop(self.command_loop);
        drop(self.local);
        if let Some(swarm) = &self.swarm {
            if let Some(path) = &self.recent {
                write_recent(swarm, path);
            }
            swarm.stop().await;
        }
    }
}

/// The same settings, with the rate in a file that disks open as well: running disks see a change at once.
fn within_shared_rate(
    stores: headstart_store::StoreSettings,
    path: &Path,
) -> Result<headstart_store::StoreSettings> {
    set_shared_rate(path, stores.limit_rate.as_ref().and_then(RateLimit::rate))?;
    let shared_rate = Some(RateLimit::shared(path)?);
    Ok(headstart_store::StoreSettings { limit_rate: None, shared_rate, ..stores })
}

/// Starts the range proxy for other programs, if it is configured.
async fn proxy(
    address: Option<SocketAddr>,
    swarm: Option<&Arc<Swarm>>,
    stores: &headstart_store::StoreSettings,
) -> Result<Option<Arc<Proxy>>> {
    let Some(address) = address else { return Ok(None) };
    let swarm = swarm.ok_or_else(|| {
        Error::invalid("a range proxy needs a swarm")
            .about(address)
            .remedy("start the agent with --credentials, or with --plain on loopback")
    })?;
    Proxy::start(address, Arc::clone(swarm), stores).await.map(|proxy| Some(Arc::new(proxy)))
}

/// Writes a root's recent requests to its file from time to time.
async fn remember(swarm: Weak<Swarm>, path: PathBuf) {
    loop {
        tokio::time::sleep(REMEMBER_EVERY).await;
        let Some(swarm) = swarm.upgrade() else { return };
        tokio::task::block_in_place(|| write_recent(&swarm, &path));
    }
}

fn write_recent(swarm: &Swarm, path: &Path) {
    if let Err(error) = swarm.write_recent(path) {
        tracing::warn!(%error, "requests will not be known after a restart");
    }
}

/// Makes a directory that only this user can open. A directory that was used before, as the entry `mark` in it shows,
/// or that is empty is closed to others; one that belongs to another user, or that others may write to, is refused.
fn make(dir: &Path, mark: &str) -> Result<GuardedDir> {
    private::make_directory(dir)
        .map_err(|e| Error::io("cannot make the directory", e).about(dir.display()))?;
    let own = GuardedDir::open_own(dir)?;
    let names = own.names().map_err(|e| Error::io("cannot list", e).about(dir.display()))?;
    let is_ours = names.is_empty() || names.iter().any(|name| name == mark);
    if is_ours && private::close(own.handle()).map_err(|e| private::not_closed(dir, e))? && !names.is_empty()
    {
        tracing::warn!(dir = %dir.display(), "other users could look into the agent's directory; now they cannot");
    }
    own.check_closed()?;
    Ok(own)
}

/// Makes an agent's directory and takes its lock.
fn take(dir: &Path) -> Result<File> {
    make(dir, "lock")?.check_entries()?;
    lock_for(open_own_file(&dir.join("lock"))?, dir)
}

/// Makes an agent's state directory, and locks it: two agents would overwrite each other's files there.
fn take_state(state: &Path) -> Result<File> {
    let own = make(state, PINS)?;
    STATE_FILES.iter().try_for_each(|name| own.check_entry(name))?;
    // This is the checked directory, even if another one has its name by now.
    let directory = own.handle().try_clone();
    lock_for(directory.map_err(|e| Error::io("cannot open", e).about(state.display()))?, state)
}

/// Locks an open file for this agent, so that no other one works in `dir`.
fn lock_for(file: File, dir: &Path) -> Result<File> {
    match lock_within(&file, LOCK_TIMEOUT) {
        Ok(true) => Ok(file),
        Ok(false) => Err(Error::new(ErrorKind::Conflict, "another agent runs there")
            .about(dir.display())
            .remedy("end it first, or give this one a --dir, a --state and a --cache of its own")),
        Err(e) => Err(Error::io("cannot lock", e).about(dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_an_agent_that_was_killed_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = File::create(&path).unwrap();
        assert!(lock_within(&held, Duration::ZERO).unwrap());
        let error = lock_for(File::open(&path).unwrap(), dir.path()).unwrap_err();
        assert!(error.to_string().contains("another agent runs there"), "{error}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::park_timeout(Duration::from_millis(50));
                drop(held);
            });
            lock_for(File::open(&path).unwrap(), dir.path()).unwrap();
        });
    }
}
