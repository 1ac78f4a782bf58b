//! The control socket of a disk that is served, from the side of its process; the requests are in
//! [`headstart_image::served_disk`].
//!
//! Each client has a thread, because a commit takes as long as its layer does. Commits that end in another base of the
//! disk come one after the other: the second would have the first one's data in its layer, too, and the first must not
//! drop pairs that the second froze.

use crate::freezing::Freezer;
use crate::sealer::{CompletedLayer, Sealer};
use crate::servers::Servers;
use crate::session::DiskSession;
use headstart_block::guarded::GuardedDir;
use headstart_block::{Digest, Error, ErrorKind, Result, private};
use headstart_image::new_layer::Packing;
use headstart_image::reference::Reference;
use headstart_image::served_disk::{
    CommitMoment, ControlAnswer, ControlRequest, PartSender, SOCKET, ServedCommitRequest, ServedDisk,
    receive_line, send_line,
};
use headstart_image::stacked::{CommittedLayer, stack_on};
use headstart_lsmt::writable::{BegunCommit, ClonedDisk, WritableDisk};
use headstart_lsmt::{LayerMeta, LayerSummary};
use headstart_store::layout::HeldLease;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::fs::{Permissions, set_permissions};
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use uuid::Uuid;

/// The time that a client has for its request, and for taking the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a client that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time that a client has for taking a part of a layer: it compresses what it got before.
const PART_TIMEOUT: Duration = Duration::from_secs(120);

/// Most clients at the same time.
const CLIENTS_MAX: usize = 16;

/// The control socket of one disk. It is removed when this is dropped.
pub struct DiskControl {
    dir: GuardedDir,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

/// The disk behind a control socket.
struct ControlledDisk {
    dir: PathBuf,
    disk: Arc<WritableDisk>,
    /// `true` if an agent starts its process again, with the image that it had.
    is_restarted: bool,
    /// Held by the commit whose changes are being set aside.
    freezer: Mutex<Freezer>,
    /// Held by the commit that is to change the base of the disk.
    stacking: Mutex<()>,
    /// Seals its data ahead of commits.
    sealer: Option<Sealer>,
    /// `true` once the disk is to be closed.
    stop: Arc<AtomicBool>,
    /// The lease of the base that it got last.
    lease: Mutex<Option<HeldLease>>,
}

/// The settings of control sockets.
#[derive(Clone, Debug, Default)]
pub struct ControlSettings {
    /// `true` if an agent starts this process again when it dies.
    pub is_restarted: bool,
    /// The packing of the layers that are sealed ahead of commits; `None`: nothing is sealed ahead.
    pub seal_ahead: Option<Packing>,
}

/// A client that is being served.
struct ControlClient {
    stream: UnixStream,
    thread: JoinHandle<()>,
}

/// Opens the control sockets of the writable disks of a session, which `servers` serve. One that cannot be opened is
/// reported in the log: the disk is served without.
#[must_use]
pub fn open_controls(
    session: &DiskSession,
    servers: &Servers,
    settings: &ControlSettings,
) -> Vec<DiskControl> {
    let disks = session.disks.iter().enumerate();
    let writable = disks
        .filter_map(|(n, disk)| disk.writable.as_deref().zip(disk.disk.writable()).map(|disk| (n, disk)));
    let opened = writable.filter_map(|(number, (dir, disk))| {
        let on_host = if number == 0 { servers.on_host.clone() } else { Vec::new() };
        let disk = ControlledDisk {
            dir: dir.to_owned(),
            disk: Arc::clone(disk),
            freezer: Mutex::new(Freezer::new(dir, on_host)),
            is_restarted: settings.is_restarted,
            stacking: Mutex::new(()),
            sealer: None,
            stop: Arc::default(),
            lease: Mutex::default(),
        };
        match DiskControl::open(disk, settings.seal_ahead.clone()) {
            Ok(control) => Some(control),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "a disk is served without a control socket: it cannot be cloned or committed meanwhile"
                );
                None
            }
        }
    });
    opened.collect()
}

impl DiskControl {
    /// Opens the socket of `disk`, which this process has open.
    fn open(mut disk: ControlledDisk, seal_ahead: Option<Packing>) -> Result<Self> {
        let path = disk.dir.join(SOCKET);
        let failed = |e| Error::io("cannot open the control socket", e).about(path.display());
        let dir = GuardedDir::open(&disk.dir).map_err(failed)?;
        // The directory is locked: one that is there belongs to a process that has died.
        match dir.remove_file(SOCKET) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        // By the open directory, whose path may be too long for an address.
        let address = dir.anchored(SOCKET).map_err(failed)?;
        let listener = Arc::new(UnixListener::bind(&address).map_err(failed)?);
        // A directory with the sticky bit may be open to others.
        set_permissions(&address, Permissions::from_mode(private::FILE_MODE)).map_err(failed)?;
        let start = |packing| Sealer::start(disk.dir.clone(), Arc::clone(&disk.disk), packing);
        disk.sealer = seal_ahead.map(start);
        let accepting = Arc::clone(&listener);
        let serve = move || accept_clients(&accepting, &Arc::new(disk));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(serve);
        let thread = Some(thread.map_err(|e| Error::io("cannot start a thread", e))?);
        Ok(Self { dir, listener, thread })
    }
}

impl Drop for DiskControl {
    fn drop(&mut self) {
        let _ = self.dir.remove_file(SOCKET);
        // The thread waits for the next client, and gets an error in its place.
        if shutdown(&*self.listener, Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// `true` for an error that says nothing of the listener itself, such as that there are no file descriptors left.
fn passes(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::CONNABORTED | Errno::INTR)
    )
}

/// Serves clients until the listener is shut down, and ends those that are left.
fn accept_clients(listener: &UnixListener, disk: &Arc<ControlledDisk>) {
    let mut clients: Vec<ControlClient> = Vec::new();
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if passes(&error) => {
                tracing::warn!(%error, "the control socket of {} has lost a client", disk.dir.display());
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
            Err(_) => break,
        };
        clients.retain(|client| !client.thread.is_finished());
        if clients.len() >= CLIENTS_MAX {
            tracing::warn!("the control socket of {} has too many clients", disk.dir.display());
            continue;
        }
        let (disk, copy) = (Arc::clone(disk), stream.try_clone());
        let serve = move || {
            if let Err(error) = copy.and_then(|client| answer(&client, &disk)) {
                tracing::debug!(%error, "a client of the control socket got no answer");
            }
        };
        if let Ok(thread) = std::thread::Builder::new().name("control".to_owned()).spawn(serve) {
            clients.push(ControlClient { stream, thread });
        }
    }
    // A layer that is being completed is of no use any more.
    disk.stop.store(true, Ordering::Relaxed);
    for ControlClient { stream, thread } in clients {
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let _ = thread.join();
    }
}

/// Serves one client.
fn answer(client: &UnixStream, disk: &ControlledDisk) -> std::io::Result<()> {
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut requests = BufReader::new(client.try_clone()?);
    let answer = match receive_line(&mut requests) {
        Ok(ControlRequest::Clone { dir, uuid }) => match disk.disk.clone_to(&dir, uuid) {
            Ok(cloned) => ControlAnswer::Cloned(cloned),
            Err(error) => ControlAnswer::failed(&error),
        },
        Ok(ControlRequest::Commit(request)) => return serve_commit((client, &mut requests), disk, &request),
        Ok(ControlRequest::Stack { .. }) => {
            ControlAnswer::failed(&Error::invalid("nothing was committed by this connection"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            let message = format!("the process of the disk does not understand the request ({error})");
            ControlAnswer::Failed { conflict: false, message }
        }
        Err(error) => return Err(error),
    };
    send_line(client, &answer)
}

/// Gives the changes of the disk as a layer, and makes the image that gets it the disk's base, if that is wanted.
fn serve_commit(
    (client, requests): (&UnixStream, &mut BufReader<UnixStream>),
    disk: &ControlledDisk,
    request: &ServedCommitRequest,
) -> std::io::Result<()> {
    client.set_write_timeout(Some(PART_TIMEOUT))?;
    // The client makes an image of the layer meanwhile; the end of the connection ends the wait.
    client.set_read_timeout(None)?;
    let stacking = request.stack.then(|| disk.stacking.try_lock());
    if let Some(None) = stacking {
        let error = Error::new(ErrorKind::Conflict, "another commit is to change the base of the disk")
            .remedy("try again when it has finished");
        return send_line(client, &ControlAnswer::failed(&error.about(disk.dir.display())));
    }
    let given = give_layer(client, disk, request);
    let stacked = match &given {
        Ok(Some(layer)) if request.stack => serve_stack((client, requests), disk, layer),
        // The files of the layer stay until the client has closed the connection.
        Ok(Some(GivenLayer::InFiles(_))) => std::io::copy(requests, &mut std::io::sink()).map(|_| false),
        _ => Ok(false),
    };
    if request.stack && !matches!(stacked, Ok(true)) {
        // Fails only while other work on the pairs goes on for long, and none does while a commit waits for its end.
        let _ = disk.disk.abandon_commit();
    }
    given.and(stacked).map(|_| ())
}

/// A layer that a client got.
enum GivenLayer {
    /// In parts, to be packed by the client.
    Sent(LayerSummary),
    /// In files, which exist as long as this does.
    InFiles(Box<CompletedLayer>),
}

impl GivenLayer {
    /// The topmost layer that an image must have.
    fn expected(&self) -> Result<CommittedLayer> {
        Ok(match self {
            Self::Sent(summary) => CommittedLayer::Written(*summary),
            Self::InFiles(completed) => CommittedLayer::Blob(completed.sealed.digest()?),
        })
    }
}

/// Gives a layer; `None` if the client got an error instead.
fn give_layer(
    client: &UnixStream,
    disk: &ControlledDisk,
    request: &ServedCommitRequest,
) -> std::io::Result<Option<GivenLayer>> {
    let meta = LayerMeta { parent_uuid: request.parent_uuid, ..LayerMeta::default() };
    let begun = begin(disk, request).and_then(|(begun, moment)| {
        let (virtual_size, data_bytes) = (begun.virtual_size(), begun.data_bytes());
        let Some(sealer) = &disk.sealer else { return Ok((virtual_size, data_bytes, Err(begun), moment)) };
        let completed = match sealer.complete(begun, &request.packing, meta.clone()) {
            Ok(Ok(completed)) => Ok(completed),
            Err(begun) => Err(begun),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the layer that was sealed ahead could not be completed");
                let (again, moment) = begin(disk, request)?;
                return Ok((again.virtual_size(), again.data_bytes(), Err(again), moment));
            }
        };
        Ok((virtual_size, data_bytes, completed, moment))
    });
    let (virtual_size, data_bytes, completed, moment) = match begun {
        Ok(begun) => begun,
        Err(error) => return send_line(client, &ControlAnswer::failed(&error)).map(|()| None),
    };
    let begun = match completed {
        Ok(completed) => {
            let sealed = Some(Box::new(completed.sealed.clone()));
            send_line(client, &ControlAnswer::Begun { virtual_size, data_bytes, sealed, moment })?;
            return Ok(Some(GivenLayer::InFiles(Box::new(completed))));
        }
        Err(begun) => begun,
    };
    send_line(client, &ControlAnswer::Begun { virtual_size, data_bytes, sealed: None, moment })?;
    let written = begun.write(PartSender(client), meta);
    PartSender(client).end()?;
    match written {
        Ok((_, summary)) => {
            send_line(client, &ControlAnswer::Written(summary)).map(|()| Some(GivenLayer::Sent(summary)))
        }
        Err(error) => send_line(client, &ControlAnswer::failed(&error)).map(|()| None),
    }
}

/// Sets the changes of the disk to the base that the client has aside.
fn begin<'a>(
    disk: &'a ControlledDisk,
    request: &ServedCommitRequest,
) -> Result<(BegunCommit<'a>, CommitMoment)> {
    if request.stack && disk.is_restarted {
        return Err(Error::unsupported("an agent starts this disk again with the image that it has now")
            .remedy("leave out --stack, or detach the disk, commit it with --stack, and attach the new image")
            .about(disk.dir.display()));
    }
    let freezer = disk.freezer.lock();
    let frozen = freezer.freeze();
    let begun = if request.stack { disk.disk.begin_stack() } else { disk.disk.begin_commit() };
    let moment = frozen.moment.clone();
    // Its users go on while the layer is made.
    drop(frozen);
    drop(freezer);
    let begun = begun?;
    // Only now: another commit may have changed the base just before.
    let parent = disk.disk.parent();
    if parent == request.parent {
        return Ok((begun.until(Arc::clone(&disk.stop)), moment));
    }
    let named = |parent: &str| if parent.is_empty() { "nothing".to_owned() } else { parent.to_owned() };
    let cause =
        format!("the writable layer is based on {}, not on {}", named(&parent), named(&request.parent));
    let error = Error::new(ErrorKind::Conflict, cause).about(disk.dir.display());
    Err(error.remedy("name the image that it is based on by --base"))
}

/// Waits for the image with the layer, and makes it the disk's base; `false` if the client gives up, or gets an error.
fn serve_stack(
    (client, requests): (&UnixStream, &mut BufReader<UnixStream>),
    disk: &ControlledDisk,
    layer: &GivenLayer,
) -> std::io::Result<bool> {
    let ControlRequest::Stack { image, digest } = receive_line(requests)? else { return Ok(false) };
    let stack = || {
        let (image, digest): (Reference, Digest) = (image.parse()?, digest.parse()?);
        stack_on(&disk.disk, &disk.dir, &image, (digest, layer.expected()?), Uuid::new_v4())
    };
    match stack() {
        Ok(stacked) => {
            stacked.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            *disk.lease.lock() = stacked.lease;
            tracing::info!(%image, "the disk goes on with the image that was made of it as its base");
            send_line(client, &ControlAnswer::Stacked {}).map(|()| true)
        }
        Err(error) => send_line(client, &ControlAnswer::failed(&error)).map(|()| false),
    }
}

/// Makes a clone of the disk in the directory `dir` in the new directory `target`, as [`WritableDisk::clone_to`] does:
/// by the process that has it open, if there is one, otherwise here.
///
/// # Errors
/// Those of [`WritableDisk::open_alone`] and [`WritableDisk::clone_to`]; [`ErrorKind::Conflict`] if a process has the
/// disk open and no control socket.
pub fn clone_disk(dir: &Path, target: &Path, uuid: Uuid) -> Result<ClonedDisk> {
    let in_use = match WritableDisk::open_alone(dir) {
        Ok(disk) => return disk.clone_to(target, uuid),
        Err(error) if error.kind() == ErrorKind::Conflict => error,
        Err(error) => return Err(error),
    };
    // Processes of earlier versions have no socket.
    let mut served = ServedDisk::connect(dir).ok_or(in_use)?;
    let target = std::path::absolute(target)
        .map_err(|e| Error::io("has no absolute path", e).about(target.display()))?;
    match served.ask(&ControlRequest::Clone { dir: target, uuid })? {
        ControlAnswer::Cloned(cloned) => Ok(cloned),
        _ => Err(Error::corrupt("the answer of the disk's process makes no sense")),
    }
}
