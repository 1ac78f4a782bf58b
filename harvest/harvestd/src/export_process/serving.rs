//! The export process itself: from standard input to servers of one vSSD.

use super::FLUSHING;
use super::channel::{Assignment, Channel, Fault, News, Order};
use headstart_block::{BlockDevice, Error, Result};
use headstart_daemon::pid_file;
use headstart_export::fuse::{FuseServer, FuseSettings};
use headstart_export::nbd::RemoteDisk;
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{Export, Server, SocketAccess};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The interval between two checks whether a server has ended by itself.
const LOOK: Duration = Duration::from_secs(1);

/// The exit status of a process whose daemon is gone.
const STATUS_ALONE: i32 = 1;

/// Runs an export process: serves the vSSD that the daemon names over standard input, until the daemon asks it to stop
/// or `is_cancelled` returns `true`. If the connection to the daemon breaks, the process ends at once without answering
/// further requests; clients send these again when a daemon runs again. `pid_file` is locked as long as the process
/// runs.
///
/// # Errors
/// [`headstart_block::ErrorKind::Invalid`] if the process was not started by a daemon, or if a message is invalid;
/// [`headstart_block::ErrorKind::Conflict`] if another process has the lock; errors of the operating system, and of
/// stopping the servers.
pub fn run_export_process(pid_file: &Path, is_cancelled: impl Fn() -> bool) -> Result<()> {
    let channel = Channel::inherited()?;
    let mut lock = pid_file::lock(pid_file, "another process serves this vSSD")?;
    pid_file::leave_parent();
    pid_file::write(pid_file, &mut lock)?;
    let Some((Order::Serve(assignment), descriptors)) = channel.receive()? else {
        return Err(Error::invalid("the daemon is gone, or gives no work"));
    };
    let mut serving = Serving::start(&assignment, descriptors)?;
    serving.announce(&channel)?;
    while !is_cancelled() {
        if channel.wait(&[], Some(LOOK)) {
            match channel.receive()? {
                Some((Order::Resized(size), _)) => serving.resized(size),
                Some((Order::Stop, _)) => break,
                Some((Order::Serve(_), _)) => return Err(Error::invalid("the daemon gives work twice")),
                None => end_at_once("the daemon is gone"),
            }
        }
        serving.look(&channel)?;
    }
    let stopped = serving.stop();
    let error = stopped.as_ref().err().map(Fault::from);
    // A daemon that does not receive it finds that the process has ended.
    let _ = channel.send(&News::Stopped { error });
    drop(lock);
    stopped
}

/// Ends the process without an answer to any client.
fn end_at_once(why: &str) -> ! {
    tracing::warn!("{why}: this export process ends");
    std::process::exit(STATUS_ALONE)
}

/// The servers of the vSSD.
struct Serving {
    disk: Arc<RemoteDisk>,
    servers: Vec<Box<dyn Server>>,
    /// The first error of starting them.
    error: Option<Fault>,
}

impl Serving {
    /// Starts the servers; a server that cannot be started does not prevent the others.
    fn start(assignment: &Assignment, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let listener = match &assignment.vhost_user {
            Some(path) if !descriptors.is_empty() => Some((path, UnixListener::from(descriptors.remove(0)))),
            _ => None,
        };
        let on_loss = |error: &Error| end_at_once(&error.to_string());
        let disk = Arc::new(RemoteDisk::new(descriptors, FLUSHING, &assignment.name, on_loss)?);
        let export = Export::new(assignment.name.clone(), Arc::clone(&disk) as Arc<dyn BlockDevice>);
        let mut started = Vec::<Result<Box<dyn Server>>>::new();
        if let Some((path, listener)) = listener {
            let server = VhostUserServer::start_at(listener, path, &export, &VhostUserSettings::default());
            started.push(server.map(|server| Box::new(server) as _));
        }
        if let Some(path) = &assignment.fuse {
            let server = access(assignment).and_then(|access| {
                FuseServer::start(export, path, &FuseSettings { access, ..FuseSettings::default() })
            });
            started.push(server.map(|server| Box::new(server) as _));
        }
        let (mut servers, mut error) = (Vec::new(), None);
        for server in started {
            match server {
                Ok(server) => servers.push(server),
                Err(failed) => error = error.or(Some(Fault::from(&failed))),
            }
        }
        Ok(Self { disk, servers, error })
    }

    fn announce(&mut self, channel: &Channel) -> Result<()> {
        let uris = self.servers.iter().map(|server| server.uri()).collect();
        channel.send(&News::Serving { uris, error: self.error.take() })
    }

    fn resized(&self, size: u64) {
        self.disk.set_size(size);
        self.servers.iter().for_each(|server| server.resized());
    }

    /// Reports servers that have ended by themselves.
    fn look(&mut self, channel: &Channel) -> Result<()> {
        let mut ended = Vec::new();
        self.servers.retain(|server| {
            let failed = server.failed();
            ended.extend(failed.as_ref().map(|error| (server.uri(), Fault::from(error))));
            failed.is_none()
        });
        ended.into_iter().try_for_each(|(uri, error)| channel.send(&News::Lost { uri, error }))
    }

    fn stop(&mut self) -> Result<()> {
        self.servers.drain(..).rev().map(Server::stop).fold(Ok(()), Result::and)
    }
}

fn access(assignment: &Assignment) -> Result<SocketAccess> {
    let owner = assignment.owner.as_deref().map(str::parse).transpose()?;
    let mode = assignment.mode.as_deref().map(str::parse).transpose()?;
    Ok(SocketAccess { owner, mode })
}
