//! `headstart harvest serve`: the daemon of a host that lends spare flash.

use crate::daemon::{self, LOOK};
use clap::Args;
use headstart_block::words::count;
use headstart_block::{ByteSize, Error, Result};
use headstart_command_line::report::Report;
use headstart_command_line::terminal::Terminal;
use headstart_daemon::http::HttpPort;
use headstart_export::nbd::{Address, TlsSettings};
use headstart_harvestd::client::default_dir;
use headstart_harvestd::host::{FlashPlace, HostSettings, Options};
use headstart_harvestd::{Harvest, HarvestSettings};
use headstart_image::progress::Progress;
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

pub(super) const EXAMPLES: &str = "Examples:\n  \
    headstart harvest serve --size 20G\n  \
    headstart harvest serve /var/lib/harvest --size 20G --nbd 127.0.0.1:10809 --http 127.0.0.1:9648\n  \
    headstart harvest serve /var/lib/harvest --flash /dev/nvme1n1p3\n\n\
    The first time, --size makes a sparse file of that size in DIR (or bounds the part of --flash that is used); DIR \
    records the size; --flash is given each time. Each vSSD is served by NBD at a socket of its own, \
    DIR/nbd/NAME.sock, as `headstart harvest vssd list` says; with --nbd all are exports of one server as well. Other \
    programs use HTTP at DIR/harvest.sock, as /openapi.json there describes. The daemon ends at SIGTERM or Ctrl-C: \
    all written data is durable then, and the next daemon finds it.";

/// Threads that answer requests. Disks have threads of their own.
const RUNTIME_THREADS: usize = 2;

#[derive(Args)]
pub(crate) struct Serve {
    /// The directory of all files of the daemon, made if it is not there [default: harvest in /var/lib/headstart, or
    /// in ~/.local/state/headstart]
    dir: Option<PathBuf>,
    /// The size of the flash, such as 20G [default: as before, or all of a device]
    #[arg(long)]
    size: Option<ByteSize>,
    /// The place of the flash: a file, or a partition or an NVMe namespace, whose content is lost [default: the file
    /// flash in DIR]
    #[arg(long, value_name = "PATH")]
    flash: Option<PathBuf>,
    /// Use --flash although it is not blank: its whole content is erased, the first time
    #[arg(long, requires = "flash", conflicts_with = "emulated")]
    erase: bool,
    /// Use memory that is as slow as flash in place of flash: for trials. All data is lost at the end
    #[arg(long, requires = "size", conflicts_with = "flash")]
    emulated: bool,
    /// Bytes a second that each channel may be read and written, such as 70M: the load of one vSSD then leaves the
    /// others' channels alone [default: as many as the flash can]
    #[arg(long, value_name = "RATE", conflicts_with = "emulated", value_parser = parse_rate)]
    channel_rate: Option<ByteSize>,
    /// Serve all vSSDs by one NBD server at unix:/PATH or HOST:PORT, too, beside the socket of each. Every client that
    /// reaches it can open all of them, unless clients show certificates: then each vSSD belongs to the names that
    /// `vssd create --tls-client` gives
    #[arg(long, value_name = "ADDR")]
    nbd: Option<Address>,
    /// Allow other hosts to reach --nbd although every client is admitted there
    #[arg(long, requires = "nbd")]
    insecure_network: bool,
    /// Serve metrics and the other read-only requests at this address, too, such as 127.0.0.1:9648
    #[arg(long, value_name = "IP:PORT")]
    http: Option<SocketAddr>,
    /// Answer requests at --http that give the host this name, beside its addresses, its own name and localhost (may
    /// be repeated)
    #[arg(long, value_name = "NAME", requires = "http")]
    http_name: Vec<String>,
    /// NBD over TLS: the server's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// NBD over TLS: the certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// NBD over TLS: take only clients with a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl Serve {
    pub(super) fn run(&self, terminal: &Terminal, json: bool) -> Result<Box<dyn Report>> {
        let farewell = "harvest has ended; what was written is kept";
        daemon::run("harvest", RUNTIME_THREADS, farewell, terminal, |runtime| {
            self.run_on(runtime, terminal, json)
        })
    }

    fn run_on(&self, runtime: &Runtime, terminal: &Terminal, json: bool) -> Result<()> {
        let warning = self.check_network()?;
        let harvest = runtime.block_on(Harvest::start(self.settings()?))?;
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        announce(&harvest, json)?;
        let served = loop {
            if terminal.is_cancelled() {
                break Ok(());
            }
            if let Some(error) = harvest.failed() {
                break Err(error);
            }
            std::thread::sleep(LOOK);
        };
        served.and(runtime.block_on(harvest.stop()))
    }

    /// Refuses an address that other hosts reach and that admits every client, unless that is wanted; otherwise returns
    /// the warning of the vSSDs that every client can open there, if it admits every client.
    fn check_network(&self) -> Result<Option<String>> {
        let Some(address) = &self.nbd else { return Ok(None) };
        if self.tls_client_ca.is_some() {
            return Ok(None);
        }
        if self.tls_cert.is_none() && !address.is_local() && !self.insecure_network {
            return Err(Error::invalid("every client that reaches this port can read and write all vSSDs")
                .about(address)
                .remedy(
                    "serve them at 127.0.0.1 or at their own sockets, give --tls-cert, --tls-key and \
                     --tls-client-ca, or allow it by --insecure-network",
                ));
        }
        let (who, what) = match address {
            Address::Unix(_) => {
                ("every client that may open this socket", "opens all vSSDs; each has a socket of its own")
            }
            Address::Tcp(..) => {
                ("every client that reaches this port", "opens all vSSDs; give --tls-client-ca")
            }
        };
        Ok(Some(format!("{address}: {who} {what}")))
    }

    fn settings(&self) -> Result<HarvestSettings> {
        // Clients may run in other directories than this process.
        let dir = absolute(&self.dir.clone().unwrap_or_else(default_dir))?;
        let nbd = match &self.nbd {
            Some(Address::Unix(path)) => Some(Address::Unix(absolute(path)?)),
            other => other.clone(),
        };
        let size = self.size.map(|ByteSize(bytes)| bytes);
        let flash = FlashPlace::of(&dir, self.flash.as_deref(), size, self.emulated)?;
        let tls = self.tls_cert.as_ref().zip(self.tls_key.as_ref()).map(|(certificate, key)| TlsSettings {
            certificate: certificate.clone(),
            key: key.clone(),
            client_ca: self.tls_client_ca.clone(),
        });
        let mut settings = HostSettings::default();
        if let Some(ByteSize(rate)) = self.channel_rate {
            // A vSSD that takes a channel's rate is forecast to need a channel.
            (settings.channel_rate, settings.channel_worth) = (Some(rate), rate);
        }
        let host = Options { dir, flash, size, erase: self.erase, settings };
        let http = self.http.map(|address| HttpPort { address, names: self.http_name.clone() });
        Ok(HarvestSettings { host, nbd, tls, http })
    }
}

/// A rate of a channel, in powers of 1024 as flash is measured.
fn parse_rate(text: &str) -> Result<ByteSize> {
    let amount = text.trim().trim_end_matches("/s");
    if !amount.is_empty() && amount.bytes().all(|c| c.is_ascii_digit()) {
        return Err(Error::invalid(format!("`{amount}` has no unit"))
            .remedy(format!("write {amount}M for so many MiB a second")));
    }
    amount.parse().map_err(|_| {
        Error::invalid(format!("`{}` is not a rate", text.escape_debug())).remedy("write it as 70M or 1G")
    })
}

/// A path for programs in any directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io("cannot be found", e).about(path.display()))
}

/// The output once the daemon can be used.
#[derive(Serialize)]
struct Ready<'a> {
    /// The path of its socket.
    harvest: &'a Path,
    /// The URI at which clients find all vSSDs, with --nbd.
    nbd: Option<String>,
    /// The directory of the vSSDs' sockets.
    sockets: PathBuf,
    http: Option<String>,
    vssds: usize,
}

fn announce(harvest: &Harvest, json: bool) -> Result<()> {
    let ready = Ready {
        harvest: harvest.socket(),
        nbd: harvest.nbd(),
        sockets: harvest.sockets(),
        http: harvest.http().map(|address| format!("http://{address}")),
        vssds: harvest.vssds(),
    };
    daemon::announce(&ready, json)
}

impl fmt::Display for Ready<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vssds = count(self.vssds as u64, "vSSD");
        write!(f, "{vssds}, at sockets in {}", self.sockets.display())?;
        self.nbd.as_ref().map_or(Ok(()), |nbd| write!(f, " and at {nbd}"))?;
        write!(f, "; programs: {}", self.harvest.display())?;
        self.http.as_ref().map_or(Ok(()), |http| write!(f, "; metrics: {http}/metrics"))
    }
}
