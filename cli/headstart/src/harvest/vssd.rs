//! `headstart harvest vssd ...`: disks made of the host's flash.

use super::HarvestDir;
use super::lease_line::LeaseLine;
use super::serve::absolute;
use crate::socket_args::SocketArgs;
use clap::{Args, Subcommand};
use headstart_block::words::count;
use headstart_block::{ByteSize, Result};
use headstart_command_line::number::at_least;
use headstart_command_line::report::{Outcome, Report};
use headstart_flash::VssdKind;
use headstart_harvestd::client::HarvestClient;
use headstart_harvestd::host::VssdStatus;
use headstart_harvestd::{NewAccess, NewVssd, ServedVssd};
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "Examples:\n  \
    headstart harvest vssd create db --channels 4\n  \
    headstart harvest vssd create batch --kind harvest\n  \
    headstart harvest vssd list";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a vSSD; it is served at once, unless it is unsold
    #[command(after_help = "Examples:\n  \
        headstart harvest vssd create db --channels 4 --size 4G\n  \
        headstart harvest vssd create batch --kind harvest\n  \
        headstart harvest vssd create vm1 --channels 2 --vhost-user /run/vm1.sock --socket-owner libvirt-qemu:kvm\n  \
        headstart harvest vssd create vm2 --tls-client node2.lan\n\n\
        A regular vSSD's flash is lent while it is not used. An unsold one has no owner: all of it is lent, and it is \
        not served. A harvest one borrows, by `headstart harvest request`, and may lose what it borrowed.")]
    Create(Create),
    /// List the vSSDs: their kinds, the flash that they use, lend and borrow, and the addresses at which they are
    /// served
    #[command(after_help = "Examples:\n  headstart harvest vssd list\n  headstart harvest vssd list --json")]
    List {
        #[command(flatten)]
        harvest: HarvestDir,
    },
    /// Make a vSSD larger or smaller while it is used
    #[command(after_help = "Examples:\n  headstart harvest vssd resize db 8G\n  \
        headstart harvest vssd resize db 2G --force\n\n\
        Clients by vhost-user and FUSE are told; a client by NBD sees the new size when it connects again. Data \
        beyond a smaller size is lost: make the file system on it smaller first. If clients may have it open, or data \
        is written there, shrinking takes --force.")]
    Resize {
        /// The vSSD
        name: String,
        /// Its new size
        size: ByteSize,
        /// Make it smaller although clients may have it open, or something is written beyond the new size
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        harvest: HarvestDir,
    },
    /// Replace the access rules of a vSSD: options that are left out get their defaults. Its clients are cut off
    #[command(after_help = "Examples:\n  \
        headstart harvest vssd access db --socket-owner libvirt-qemu:kvm\n  \
        headstart harvest vssd access db --tls-client node2.lan --tls-client node3.lan\n  \
        headstart harvest vssd access db --force                 # the daemon's user alone again")]
    Access {
        /// The vSSD
        name: String,
        #[command(flatten)]
        access: AccessArgs,
        /// Cut off clients that have it open
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        harvest: HarvestDir,
    },
    /// Delete a vSSD with all its data; its flash is erased before another vSSD gets it
    #[command(after_help = "Example:\n  headstart harvest vssd delete db")]
    Delete {
        /// The vSSD
        name: String,
        /// Cut off clients that have it open, or may have it open by vhost-user or FUSE
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        harvest: HarvestDir,
    },
}

#[derive(Args)]
pub(crate) struct Create {
    /// Its name: letters, digits, `-`, `_` and `.`
    name: String,
    /// Its kind: regular, unsold or harvest
    #[arg(long, value_name = "KIND", default_value = "regular")]
    kind: VssdKind,
    /// Channels that it owns [default: as many as its size takes; one if no size is given]
    #[arg(long, value_name = "N", value_parser = at_least::<u16>(1))]
    channels: Option<u16>,
    /// Its size [default: the capacity of its channels, less the flash's own need]
    #[arg(long)]
    size: Option<ByteSize>,
    /// Serve it by NBD at this socket [default: NAME.sock in the directory nbd of the daemon's]
    #[arg(long, value_name = "SOCK")]
    nbd: Option<PathBuf>,
    /// Serve it by vhost-user-blk at this socket, too
    #[arg(long, value_name = "SOCK")]
    vhost_user: Option<PathBuf>,
    /// Mount it as a file of the daemon's user, too, with mode 0600: over this file, or as disk.raw in this directory
    #[arg(long, value_name = "PATH")]
    fuse: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    harvest: HarvestDir,
}

/// The users that may open a vSSD.
#[derive(Args)]
pub(crate) struct AccessArgs {
    #[command(flatten)]
    sockets: SocketArgs,
    /// Let clients whose certificate has this name open it at the address of `harvest serve --nbd` (may be repeated)
    /// [default: none, if clients show certificates there]
    #[arg(long = "tls-client", value_name = "NAME", help_heading = "Ways to serve the disk")]
    tls_clients: Vec<String>,
}

impl AccessArgs {
    fn access(&self) -> NewAccess {
        NewAccess {
            socket_owner: self.sockets.socket_owner.as_ref().map(ToString::to_string),
            socket_mode: self.sockets.socket_mode.as_ref().map(ToString::to_string),
            tls_clients: self.tls_clients.clone(),
        }
    }
}

impl Command {
    pub(super) fn run(&self) -> Result<Box<dyn Report>> {
        Ok(match self {
            Self::Create(create) => Box::new(create.run()?),
            Self::List { harvest } => {
                Box::new(Listed { vssds: harvest.ask(async |client| client.list().await)? })
            }
            Self::Resize { name, size, force, harvest } => {
                let resize = async |client: &HarvestClient| client.resize(name, size.0, *force).await;
                Box::new(VssdReport(harvest.ask(resize)?))
            }
            Self::Access { name, access, force, harvest } => {
                let access = access.access();
                let set = async |client: &HarvestClient| client.set_access(name, &access, *force).await;
                Box::new(VssdReport(harvest.ask(set)?))
            }
            Self::Delete { name, force, harvest } => {
                let gone = harvest.ask(async |client| client.delete(name, *force).await)?;
                Box::new(Deleted { name: gone.status.name, size: gone.status.size })
            }
        })
    }
}

impl Create {
    fn run(&self) -> Result<VssdReport> {
        // The daemon's working directory is another than this process's.
        let absolute = |path: &Option<PathBuf>| path.as_deref().map(absolute).transpose();
        let NewAccess { socket_owner, socket_mode, tls_clients } = self.access.access();
        let new = NewVssd {
            name: self.name.clone(),
            kind: self.kind,
            channels: self.channels,
            size: self.size.map(|ByteSize(bytes)| bytes),
            nbd: absolute(&self.nbd)?,
            vhost_user: absolute(&self.vhost_user)?,
            fuse: absolute(&self.fuse)?,
            socket_owner,
            socket_mode,
            tls_clients,
        };
        self.harvest.ask(async |client| client.create(&new).await).map(VssdReport)
    }
}

#[derive(Serialize)]
struct Listed {
    vssds: Vec<ServedVssd>,
}

impl Outcome for Listed {}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", count(self.vssds.len() as u64, "vSSD"))?;
        self.vssds.iter().try_for_each(|vssd| write!(f, "\n{}", Line(vssd)))
    }
}

/// One vSSD, as the daemon sees it.
#[derive(Serialize)]
pub(super) struct VssdReport(pub(super) ServedVssd);

impl Outcome for VssdReport {}

impl fmt::Display for VssdReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Line(&self.0))
    }
}

/// A vSSD that was deleted.
#[derive(Serialize)]
struct Deleted {
    name: String,
    size: u64,
}

impl Outcome for Deleted {}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} is deleted", self.name, ByteSize(self.size))
    }
}

/// A vSSD in words.
struct Line<'a>(&'a ServedVssd);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServedVssd { status, uris, clients, error, process, socket_owner, tls_clients, .. } = self.0;
        let VssdStatus { name, kind, size, channels, used, lent, offered, erasing, leased, .. } = status;
        let VssdStatus { borrowed, leases, .. } = status;
        let channels = count(u64::from(*channels), "channel");
        write!(f, "{name}: {kind}, {} on {channels}, {} used", ByteSize(*size), ByteSize(*used))?;
        // A daemon of an earlier version has one number for all three.
        let undivided = lent.saturating_sub(offered + erasing + leased);
        let lent = leased + undivided;
        let words = [
            (offered, "offered"),
            (erasing, "being erased to be offered"),
            (&lent, "lent"),
            (borrowed, "borrowed"),
        ];
        for (bytes, word) in words {
            if *bytes > 0 {
                write!(f, ", {} {word}", ByteSize(*bytes))?;
            }
        }
        if *clients > 0 {
            write!(f, ", {}", count(*clients as u64, "client"))?;
        }
        if let Some(owner) = socket_owner {
            write!(f, ", its sockets belong to `{owner}`")?;
        }
        if !tls_clients.is_empty() {
            write!(f, ", for the certificates of {}", tls_clients.join(", "))?;
        }
        match process {
            Some(process) if !process.serving => write!(f, ", without its export process")?,
            Some(process) if process.restarts > 0 => {
                write!(f, ", {} of its export process", count(process.restarts, "restart"))?;
            }
            _ => {}
        }
        leases.iter().try_for_each(|lease| write!(f, "\n  {}", LeaseLine(lease)))?;
        uris.iter().try_for_each(|uri| write!(f, "\n  {uri}"))?;
        error.as_ref().map_or(Ok(()), |error| write!(f, "\n  {error}"))
    }
}
