//! The servers that give clients access to a session's disks, and the addresses to show the user.

use crate::disk::NamedDisk;
use crate::lines::{VersionQuery, file_line, nbd_line, vhost_user_line};
use crate::own_directory::OwnDirectory;
use crate::session::DiskSession;
use headstart_block::{BlockDevice, Digest, Error, ErrorKind, Result};
use headstart_export::fuse::{FuseServer, FuseSettings, KeepSettings};
use headstart_export::keeper::KeeperClient;
use headstart_export::kernel_nbd::{KeptDevice, KernelNbd, KernelNbdSettings};
use headstart_export::nbd::{Address, NbdServer, NbdSettings, TlsSettings};
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{ClientCounts, Export, Leftover, Server, SocketAccess};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The time by which the kernel's nbd driver waits longer than a read of this process.
const KERNEL_MARGIN: Duration = Duration::from_secs(10);

/// The settings of the servers that give clients access to a session's disks.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// The addresses at which NBD is served. If this is empty and no other server is requested, NBD is served
    /// at a Unix socket in a new directory.
    pub nbd: Vec<Address>,
    /// The TLS certificates of the NBD servers; `None`: no TLS.
    pub tls: Option<TlsSettings>,
    /// The path of the socket at which the first disk is served by vhost-user-blk; `None`: it is not.
    pub vhost_user: Option<PathBuf>,
    /// The maximum number of request queues of vhost-user-blk; `None` for the default.
    pub queues: Option<u16>,
    /// The file or directory at which the first disk is mounted by FUSE; `None`: it is not.
    pub fuse: Option<PathBuf>,
    /// The socket of the keeper of that mount, if an agent starts this process again after its death.
    pub keeper: Option<PathBuf>,
    /// The name of the disk between two of its processes, if an agent starts this one again.
    pub kept: Option<KeptDisk>,
    /// `true` to serve the first disk as `/dev/ublkbN` of the kernel's ublk driver.
    pub ublk: bool,
    /// The device of the kernel's NBD driver for the first disk, `/dev/nbdN` or `auto` for a free one;
    /// `None`: no device.
    pub device: Option<String>,
    /// The maximum duration for which a read waits for a store. The kernel's NBD driver waits ten seconds longer for
    /// an answer.
    pub deadline: Duration,
    /// `true` if clients may enlarge the disk.
    pub allow_resize: bool,
    /// The owner and permissions of the sockets and of the mounted file.
    pub access: SocketAccess,
    /// The file in which the path of the NBD socket in a new directory is recorded, so that the next process
    /// of an agent's disk uses the same path. `None` if no agent starts the process again.
    pub socket_record: Option<PathBuf>,
    /// The treatment of socket files that already exist at the requested paths.
    pub leftover: Leftover,
}

/// The identity of a disk for the next process that serves it.
#[derive(Clone, Debug)]
pub struct KeptDisk {
    /// The name of the disk at its agent.
    pub disk: String,
    /// The name of the disk on this host, which may have several agents, without blanks.
    pub device: String,
    /// The number of layers that the disk is made of, if these are not all of its image.
    pub lowest: Option<usize>,
    /// The files of the layers on top of the image's.
    pub uppers: Vec<PathBuf>,
}

impl KeptDisk {
    /// The content of a disk in words: the image, the layers of it and the directory of its writes make its bytes.
    fn identity(&self, disk: &NamedDisk) -> String {
        let written = disk.disk.writable().map(|writable| writable.uuid());
        let mut identity = format!("{} {:?} {written:?}", disk.digest, self.lowest);
        // A disk without such layers has the identity that earlier versions gave it.
        if !self.uppers.is_empty() {
            identity.push_str(&format!(" {:?}", self.uppers));
        }
        identity
    }

    /// The settings of a mount that a keeper has.
    fn mount(&self, keeper: &Path, disk: &NamedDisk) -> KeepSettings {
        let (name, identity) = (self.disk.clone(), self.identity(disk));
        KeepSettings { keeper: KeeperClient::new(keeper), name, identity }
    }

    /// The name of a device that waits for the next process. It has no blanks and is short.
    fn device(&self, disk: &NamedDisk) -> KeptDevice {
        let identity = Digest::of(self.identity(disk).as_bytes()).hex();
        KeptDevice { disk: self.device.clone(), identity }
    }
}

impl ServerSettings {
    /// Returns `true` if a server other than NBD was requested: vhost-user-blk, FUSE, ublk or the kernel's
    /// NBD driver.
    #[must_use]
    pub fn has_other_than_nbd(&self) -> bool {
        self.vhost_user.is_some() || self.fuse.is_some() || self.ublk || self.device.is_some()
    }
}

/// An address at which clients reach the disks.
#[derive(Serialize)]
pub struct DiskAddress {
    /// The URI or path with which clients open the disk.
    pub uri: String,
    /// A QEMU command line that starts a guest with the disk; `None` for NBD with TLS and for a device of this host's
    /// kernel.
    pub qemu: Option<String>,
}

/// The running servers of a session.
#[derive(Default)]
pub struct Servers {
    running: Vec<Box<dyn Server>>,
    /// The addresses at which clients reach the disks, in the order in which the servers were started.
    pub addresses: Vec<DiskAddress>,
    /// Warnings to show the user; empty if there are none.
    pub warnings: Vec<String>,
    /// The file or the block devices by which this host can mount the first disk.
    pub(crate) on_host: Vec<PathBuf>,
    /// The directory made for a socket without a given path.
    made: Option<OwnDirectory>,
}

impl Servers {
    /// Starts all servers that `wanted` asks for. `qemu` is the running query for the installed version of QEMU. The
    /// version decides the options of QEMU's command line for vhost-user-blk. If `qemu` is `None`, the default version
    /// of `QemuVersion` is taken.
    ///
    /// # Errors
    /// The error of the first server that cannot be started.
    pub fn start(wanted: &ServerSettings, qemu: Option<VersionQuery>, session: &DiskSession) -> Result<Self> {
        let mut servers = Self::default();
        for address in servers.nbd_addresses(wanted)? {
            servers.start_nbd(wanted, session, address)?;
        }
        let Some(first) = session.disks.first() else { return Ok(servers) };
        if let Some(socket) = &wanted.vhost_user {
            let defaults = VhostUserSettings::default();
            let queues = wanted.queues.unwrap_or(defaults.queues);
            let settings =
                VhostUserSettings { queues, access: wanted.access.clone(), leftover: wanted.leftover };
            let server = VhostUserServer::start(socket, &export(first), &settings);
            let server = server.map_err(|error| with_remedy(error, Some(socket)))?;
            let qemu = vhost_user_line(socket, qemu.map(VersionQuery::answer).unwrap_or_default());
            servers.add(Box::new(server), Some(qemu));
        }
        if let Some(path) = &wanted.fuse {
            let (access, allow_resize) = (wanted.access.clone(), wanted.allow_resize);
            let keep = wanted
                .keeper
                .as_ref()
                .zip(wanted.kept.as_ref())
                .map(|(keeper, kept)| kept.mount(keeper, first));
            let settings = FuseSettings { access, allow_resize, keep, ..FuseSettings::default() };
            let server = FuseServer::start(export(first), path, &settings)?;
            note_takeover(first, server.is_taken_over());
            servers.on_host.push(server.path().to_owned());
            let qemu = file_line(&server.path().display().to_string(), first.disk.is_read_only());
            servers.add(Box::new(server), Some(qemu));
        }
        servers.start_kernel_devices(wanted, first)?;
        Ok(servers)
    }

    fn add(&mut self, server: Box<dyn Server>, qemu: Option<String>) {
        self.addresses.push(DiskAddress { uri: server.uri(), qemu });
        self.running.push(server);
    }

    /// The addresses of NBD: the requested ones, or a socket in a new directory if no server was requested.
    fn nbd_addresses(&mut self, wanted: &ServerSettings) -> Result<Vec<Address>> {
        if !wanted.nbd.is_empty() || wanted.has_other_than_nbd() {
            return Ok(wanted.nbd.clone());
        }
        Ok(vec![Address::Unix(self.own_socket(wanted)?)])
    }

    fn own_socket(&mut self, wanted: &ServerSettings) -> Result<PathBuf> {
        let made = match &wanted.socket_record {
            Some(record) => OwnDirectory::make_again(record, &wanted.access)?,
            None => OwnDirectory::make(&wanted.access)?,
        };
        let socket = made.socket();
        self.made = Some(made);
        Ok(socket)
    }

    fn start_nbd(&mut self, wanted: &ServerSettings, session: &DiskSession, address: Address) -> Result<()> {
        let socket = match &address {
            Address::Unix(path) => Some(path.clone()),
            _ => None,
        };
        let settings = NbdSettings::new(address);
        let connections_max = settings.connections_max.saturating_mul(session.disks.len().max(1));
        let settings = NbdSettings {
            tls: wanted.tls.clone(),
            connections_max,
            allow_resize: wanted.allow_resize,
            access: wanted.access.clone(),
            leftover: wanted.leftover,
            ..settings
        };
        let server = NbdServer::start(&settings, session.disks.iter().map(export).collect());
        let server = server.map_err(|error| with_remedy(error, socket.as_deref()))?;
        self.warn_of_open_port(&settings, session);
        if wanted.socket_record.is_some() && matches!(settings.address, Address::Tcp(_, 0)) {
            self.warnings.push(format!(
                "{}: the port is another one when the process of the disk is started again, and its guest does not \
                 find it; name a port",
                settings.address
            ));
        }
        let uri = server.uri();
        self.running.push(Box::new(server));
        for disk in &session.disks {
            // The URI of a server with one disk names it already.
            let uri = if session.disks.len() == 1 { uri.clone() } else { with_export(&uri, &disk.name) };
            let qemu = settings.tls.is_none().then(|| nbd_line(&uri, disk.disk.is_read_only()));
            self.addresses.push(DiskAddress { uri, qemu });
        }
        Ok(())
    }

    /// Warns of a port that every host can use that reaches it.
    fn warn_of_open_port(&mut self, settings: &NbdSettings, session: &DiskSession) {
        let is_checked = settings.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if settings.address.is_local() || is_checked {
            return;
        }
        let may = if session.disks.iter().any(|disk| !disk.disk.is_read_only()) {
            "read and write"
        } else {
            "read"
        };
        let lacks = if settings.tls.is_some() {
            "--tls-client-ca"
        } else {
            "--tls-cert, --tls-key and --tls-client-ca"
        };
        self.warnings.push(format!(
            "{}: every client that reaches this port can {may} the disk; serve it at 127.0.0.1 or a Unix socket, or \
             give {lacks}",
            settings.address
        ));
    }

    /// Gives the disk to this host's kernel.
    fn start_kernel_devices(&mut self, wanted: &ServerSettings, disk: &NamedDisk) -> Result<()> {
        if let Some(device) = &wanted.device {
            let settings = KernelNbdSettings {
                device: (device != "auto").then(|| device.into()),
                // The kernel must not give a request up before its read does.
                timeout: wanted.deadline.saturating_add(KERNEL_MARGIN),
                kept: wanted.kept.as_ref().map(|kept| kept.device(disk)),
                ..KernelNbdSettings::default()
            };
            let server = KernelNbd::start(export(disk), &settings)
                .map_err(|error| no_device(error, device == "auto"))?;
            note_takeover(disk, server.is_taken_over());
            self.on_host.push(server.device());
            self.add(Box::new(server), None);
        }
        if wanted.ublk {
            self.start_ublk(wanted, disk).map_err(|error| no_device(error, true))?;
        }
        Ok(())
    }

    #[cfg(feature = "ublk")]
    fn start_ublk(&mut self, wanted: &ServerSettings, disk: &NamedDisk) -> Result<()> {
        use headstart_export::ublk::{Ublk, UblkSettings};
        tracing::warn!("ublk is experimental: it has been tested on Linux 6.12 only");
        let kept = wanted.kept.as_ref().map(|kept| kept.device(disk));
        let server = Ublk::start(export(disk), &UblkSettings { kept, ..UblkSettings::default() })?;
        note_takeover(disk, server.is_taken_over());
        self.on_host.push(server.uri().into());
        self.add(Box::new(server), None);
        Ok(())
    }

    #[cfg(not(feature = "ublk"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn start_ublk(&self, _: &ServerSettings, _: &NamedDisk) -> Result<()> {
        let release = headstart_export::ublk::probe()?;
        Err(Error::unsupported(format!(
            "this kernel ({release}) could serve ublk, but this headstart was built without it"
        ))
        .remedy("build it with --features ublk (experimental), or use --nbd, --vhost-user or --fuse"))
    }

    /// The clients that use a disk now, and those that did before, over all servers.
    #[must_use]
    pub fn clients(&self) -> ClientCounts {
        self.running.iter().map(|server| server.clients()).sum()
    }

    /// Returns the error of a server that ended before it was stopped; each error is returned once. `None` if there is
    /// none that was not returned yet.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        self.running.iter().find_map(|server| server.failed())
    }

    /// Notifies all clients that the size of a disk has changed.
    pub fn resized(&self) {
        self.running.iter().for_each(|server| server.resized());
    }

    /// Stops all servers, the last started first.
    ///
    /// # Errors
    /// The first error of a server; the others are stopped anyway.
    pub fn stop(&mut self) -> Result<()> {
        // A later server may use an earlier one.
        let stopped: Vec<_> = self.running.drain(..).rev().map(Server::stop).collect();
        stopped.into_iter().collect()
    }

    /// Ends all servers in favour of the next process, which serves the same disks at the same places: see
    /// [`Server::leave`].
    ///
    /// # Errors
    /// The first error of a server; the others end anyway.
    pub fn leave(&mut self) -> Result<()> {
        let left: Vec<_> = self.running.drain(..).rev().map(Server::leave).collect();
        left.into_iter().collect()
    }
}

/// Adds the remedy for a missing directory of a socket.
fn with_remedy(error: Error, socket: Option<&Path>) -> Error {
    let dir = socket.and_then(Path::parent).filter(|dir| !dir.as_os_str().is_empty() && !dir.exists());
    match dir {
        Some(dir) => {
            error.remedy(format!("make the directory {} first, or choose another path", dir.display()))
        }
        None => error,
    }
}

/// The error of a kernel that makes a disk no block device: another way may do. Only the servers of such devices fail
/// with it, so that a store's error never leads to another way. If the user named the device, rather than `is_any`, its
/// own errors are about that one, such as a conflict with another disk.
fn no_device(error: Error, is_any: bool) -> Error {
    let is_of_the_kernel = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Io);
    if is_any || is_of_the_kernel { error.with_kind(ErrorKind::NoDevice) } else { error }
}

/// Tells the recorder of a disk if clients of an earlier process go on with it.
fn note_takeover(disk: &NamedDisk, is_taken_over: bool) {
    if let Some(recorder) = disk.recorder.as_ref().filter(|_| is_taken_over) {
        recorder.took_over();
    }
}

fn export(disk: &NamedDisk) -> Export {
    let device = Arc::clone(&disk.disk) as Arc<dyn BlockDevice>;
    Export { description: disk.image.clone(), ..Export::new(disk.name.clone(), device) }
}

/// The URI of one export of a server: the path before the query names it.
fn with_export(uri: &str, name: &str) -> String {
    let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
    let path = path.strip_suffix('/').unwrap_or(path);
    query.map_or_else(|| format!("{path}/{name}"), |query| format!("{path}/{name}?{query}"))
}

#[cfg(test)]
mod tests {
    use super::{no_device, with_export};
    use headstart_block::{Error, ErrorKind};

    #[test]
    fn an_error_of_a_device_that_was_named_keeps_its_kind_unless_the_kernel_is_what_lacks() {
        use ErrorKind::{Conflict, Denied, Invalid, Io, NoDevice, NotFound, Unsupported};
        let kind = |kind, is_any| no_device(Error::new(kind, "x"), is_any).kind();
        for own in [Conflict, Denied, Invalid, NotFound] {
            assert_eq!((kind(own, false), kind(own, true)), (own, NoDevice), "{own:?}");
        }
        for lacking in [Unsupported, Io] {
            assert_eq!((kind(lacking, false), kind(lacking, true)), (NoDevice, NoDevice), "{lacking:?}");
        }
    }

    #[test]
    fn an_export_is_named_in_the_path() {
        assert_eq!(with_export("nbd://127.0.0.1:10809", "a"), "nbd://127.0.0.1:10809/a");
        assert_eq!(with_export("nbd+unix:///?socket=/run/d.sock", "a"), "nbd+unix:///a?socket=/run/d.sock");
    }
}
