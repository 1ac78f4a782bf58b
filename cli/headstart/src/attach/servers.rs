//! The requested servers, and the output about their use.

use super::arguments::Attach;
use super::lines::{Asked, file_line, nbd_line, vhost_user_line};
use super::own_directory::OwnDirectory;
use super::session::{NamedDisk, Session};
use headstart_block::{BlockDevice, Error, Result};
use headstart_export::fuse::{FuseServer, FuseSettings};
use headstart_export::kernel_nbd::{self, KernelNbd, KernelNbdSettings};
use headstart_export::nbd::{Address, NbdServer, NbdSettings, TlsSettings};
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{Export, Leftover, Server};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The time by which the kernel's nbd driver waits longer than a read of this process.
const KERNEL_MARGIN: Duration = Duration::from_secs(60);

/// One way to reach the disks.
#[derive(Serialize)]
pub(super) struct Way {
    /// The URI at which clients find it.
    pub(super) uri: String,
    /// A line to start QEMU with; `None` if it is not for QEMU.
    pub(super) qemu: Option<String>,
}

/// The servers of a session.
#[derive(Default)]
pub(super) struct Servers {
    running: Vec<Box<dyn Server>>,
    pub(super) ways: Vec<Way>,
    /// The warnings for the user.
    pub(super) warnings: Vec<String>,
    /// The directory made for a socket without a given path.
    made: Option<OwnDirectory>,
    /// The treatment of sockets that are there already.
    leftover: Leftover,
}

impl Servers {
    /// Starts all servers of `args`. `qemu` is for the line that is printed with vhost-user.
    pub(super) fn start(
        args: &Attach,
        leftover: Leftover,
        qemu: Option<Asked>,
        session: &Session,
    ) -> Result<Self> {
        let mut servers = Self { leftover, ..Self::default() };
        for address in servers.nbd_addresses(args)? {
            servers.start_nbd(args, session, address)?;
        }
        let Some(first) = session.disks.first() else { return Ok(servers) };
        if let Some(socket) = &args.vhost_user {
            let defaults = VhostUserSettings::default();
            let queues = args.queues.unwrap_or(defaults.queues);
            let settings = VhostUserSettings { queues, access: args.access.access(), leftover };
            let server = VhostUserServer::start(socket, &export(first), &settings);
            let server = server.map_err(|error| with_remedy(error, Some(socket)))?;
            let qemu = vhost_user_line(socket, qemu.map(Asked::answer).unwrap_or_default());
            servers.add(Box::new(server), Some(qemu));
        }
        if let Some(path) = &args.fuse {
            let (access, allow_resize) = (args.access.access(), args.allow_resize);
            let settings = FuseSettings { access, allow_resize, ..FuseSettings::default() };
            let server = FuseServer::start(export(first), path, &settings)?;
            let qemu = file_line(&server.path().display().to_string(), first.disk.is_read_only());
            servers.add(Box::new(server), Some(qemu));
        }
        servers.start_kernel_devices(args, first)?;
        Ok(servers)
    }

    fn add(&mut self, server: Box<dyn Server>, qemu: Option<String>) {
        self.ways.push(Way { uri: server.uri(), qemu });
        self.running.push(server);
    }

    /// The addresses of NBD: the requested ones, or a socket in a new directory if no server was requested.
    fn nbd_addresses(&mut self, args: &Attach) -> Result<Vec<Address>> {
        if !args.nbd.is_empty() || args.has_other_servers() {
            return Ok(args.nbd.clone());
        }
        Ok(vec![Address::Unix(self.own_socket(args)?)])
    }

    fn own_socket(&mut self, args: &Attach) -> Result<PathBuf> {
        let access = args.access.access();
        let made = match &args.pid_file {
            Some(file) => OwnDirectory::make_again(&file.with_extension("socket"), &access)?,
            None => OwnDirectory::make(&access)?,
        };
        let socket = made.socket();
        self.made = Some(made);
        Ok(socket)
    }

    fn start_nbd(&mut self, args: &Attach, session: &Session, address: Address) -> Result<()> {
        let tls = args.tls_cert.as_ref().zip(args.tls_key.as_ref()).map(|(certificate, key)| TlsSettings {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: args.tls_client_ca.clone(),
        });
        let socket = match &address {
            Address::Unix(path) => Some(path.clone()),
            _ => None,
        };
        let settings = NbdSettings::new(address);
        let connections_max = settings.connections_max.saturating_mul(session.disks.len().max(1));
        let (access, leftover) = (args.access.access(), self.leftover);
        let allow_resize = args.allow_resize;
        let settings = NbdSettings { tls, connections_max, allow_resize, access, leftover, ..settings };
        let server = NbdServer::start(&settings, session.disks.iter().map(export).collect());
        let server = server.map_err(|error| with_remedy(error, socket.as_deref()))?;
        self.warn_of_open_port(&settings, session);
        if args.pid_file.is_some() && matches!(settings.address, Address::Tcp(_, 0)) {
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
            self.ways.push(Way { uri, qemu });
        }
        Ok(())
    }

    /// Warns of a port that every host can use that reaches it.
    fn warn_of_open_port(&mut self, settings: &NbdSettings, session: &Session) {
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
            "{}: everybody who reaches this port can {may} the disk; serve it at 127.0.0.1 or a Unix socket, or \
             give {lacks}",
            settings.address
        ));
    }

    /// Gives the disk to this host's kernel.
    fn start_kernel_devices(&mut self, args: &Attach, disk: &NamedDisk) -> Result<()> {
        if let Some(device) = &args.device {
            kernel_nbd::probe()?;
            let settings = KernelNbdSettings {
                device: (device != "auto").then(|| device.into()),
                // The kernel must not give a request up before its read does.
                timeout: args.pull_settings().deadline.saturating_add(KERNEL_MARGIN),
                ..KernelNbdSettings::default()
            };
            let socket = self.own_socket(args)?;
            let export = export(disk);
            let nbd = NbdSettings::new(Address::Unix(socket.clone()));
            let server = NbdServer::start(&nbd, vec![export.clone()])?;
            self.add(Box::new(KernelNbd::start(Box::new(server), &socket, &export, &settings)?), None);
        }
        if args.ublk {
            self.start_ublk(disk)?;
        }
        Ok(())
    }

    #[cfg(feature = "ublk")]
    fn start_ublk(&mut self, disk: &NamedDisk) -> Result<()> {
        tracing::warn!("ublk is experimental: it has not been tested on any kernel yet");
        let server = headstart_export::ublk::Ublk::start(
            export(disk),
            &headstart_export::ublk::UblkSettings::default(),
        )?;
        self.add(Box::new(server), None);
        Ok(())
    }

    #[cfg(not(feature = "ublk"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    fn start_ublk(&self, _: &NamedDisk) -> Result<()> {
        let release = headstart_export::ublk::probe()?;
        Err(Error::unsupported(format!(
            "this kernel ({release}) could serve ublk, but this headstart was built without it"
        ))
        .remedy("build it with --features ublk (experimental), or use --nbd, --vhost-user or --fuse"))
    }

    /// The number of clients of all servers.
    pub(super) fn clients(&self) -> usize {
        self.running.iter().map(|server| server.clients()).sum()
    }

    /// The error of the first server that ended by itself.
    pub(super) fn failed(&self) -> Option<Error> {
        self.running.iter().find_map(|server| server.failed())
    }

    /// Notifies all clients of a new size.
    pub(super) fn resized(&self) {
        self.running.iter().for_each(|server| server.resized());
    }

    /// Stops all servers; returns the first error.
    pub(super) fn stop(&mut self) -> Result<()> {
        // A later server may use an earlier one.
        let stopped: Vec<_> = self.running.drain(..).rev().map(Server::stop).collect();
        stopped.into_iter().collect()
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
    use super::with_export;

    #[test]
    fn an_export_is_named_in_the_path() {
        assert_eq!(with_export("nbd://127.0.0.1:10809", "a"), "nbd://127.0.0.1:10809/a");
        assert_eq!(with_export("nbd+unix:///?socket=/run/d.sock", "a"), "nbd+unix:///a?socket=/run/d.sock");
    }
}
