//! Each vSSD as a disk: an export of one NBD server, and by vhost-user-blk or FUSE where that was asked for. An unsold
//! one is nobody's, and served to nobody.
//!
//! Sizes change by themselves, as leases come and go: whoever may have changed one calls [`Exports::refresh`], and
//! clients are told as far as their protocol can. NBD cannot tell: a client that connects anew sees the new size.

use crate::file::{self, Readers};
use headstart_block::{Error, ErrorKind, Result};
use headstart_export::fuse::{FuseServer, FuseSettings};
use headstart_export::nbd::{NbdServer, NbdSettings};
use headstart_export::vhost_user::{VhostUserServer, VhostUserSettings};
use headstart_export::{Export, Server};
use headstart_harvest::host::{Host, Kind, VssdStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Which vSSDs are served in other ways than by NBD, in the daemon's directory.
const FILE: &str = "exports.json";

/// The same of a host that forgets its vSSDs: it has the directory between times when another has it.
const FORGOTTEN: &str = "exports.emulated.json";

/// Largest such file, in bytes: what thousands of paths need.
const FILE_MAX: u64 = 16 << 20;

/// How a vSSD is served, beside NBD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ways {
    /// By vhost-user-blk, at this socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost_user: Option<PathBuf>,
    /// As a file: over this one, or as disk.raw in this directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuse: Option<PathBuf>,
}

impl Ways {
    /// Whether there is none.
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A vSSD that is served.
struct Served {
    export: Export,
    /// As clients were told last.
    size: u64,
    ways: Ways,
    others: Vec<Box<dyn Server>>,
    /// Why one of the other ways is not there.
    error: Option<String>,
}

/// All of them. Nobody waits for long for `served`: servers are started and stopped outside it.
pub struct Exports {
    /// None once it has been stopped.
    nbd: RwLock<Option<Box<NbdServer>>>,
    served: Mutex<BTreeMap<String, Served>>,
    file: PathBuf,
}

impl Exports {
    /// Serves all vSSDs that the host has. `forgets` says that it has none when it is opened.
    ///
    /// # Errors
    /// Where NBD cannot be served at all, or what was asked for before cannot be read.
    pub fn start(settings: &NbdSettings, dir: &Path, forgets: bool, host: &Host) -> Result<Self> {
        let file = dir.join(if forgets { FORGOTTEN } else { FILE });
        let ways = read(&file)?;
        let nbd = RwLock::new(Some(Box::new(NbdServer::start_empty(settings)?)));
        let exports = Self { nbd, served: Mutex::default(), file };
        let sold = host.list().into_iter().filter(|status| status.kind != Kind::Unsold);
        for VssdStatus { name, .. } in sold {
            let ways = ways.get(&name).cloned().unwrap_or_default();
            let mut served = exports.serve(host, &name)?;
            served.ways = ways;
            if let Err(error) = served.start_others() {
                tracing::warn!(vssd = name, %error, "a vSSD is served by NBD alone");
                served.error = Some(error.to_string());
            }
            exports.lock().insert(name, served);
        }
        Ok(exports)
    }

    /// Serves one more vSSD, which the host has.
    ///
    /// # Errors
    /// What starting a server reports; then it is not served at all.
    pub fn add(&self, host: &Host, name: &str, ways: Ways) -> Result<()> {
        let mut served = self.serve(host, name)?;
        let plain = ways.is_none();
        served.ways = ways;
        let started = served.start_others();
        self.lock().insert(name.to_owned(), served);
        let added = started.and_then(|()| if plain { Ok(()) } else { self.write() });
        if added.is_err()
            && let Err(error) = self.remove(name)
        {
            tracing::warn!(vssd = name, %error, "a new vSSD is not gone in good order");
        }
        added
    }

    /// Serves a vSSD no longer; its clients are cut off, and what they wrote is durable.
    ///
    /// # Errors
    /// Where a flush fails; it is not served any more all the same.
    pub fn remove(&self, name: &str) -> Result<()> {
        let Some(served) = self.lock().remove(name) else { return Ok(()) };
        let stopped: Vec<_> = served.others.into_iter().map(Server::stop).collect();
        let removed = self.with_nbd(|nbd| nbd.remove(name)).map(|_| ());
        let written = if served.ways.is_none() { Ok(()) } else { self.write() };
        stopped.into_iter().collect::<Result<()>>().and(removed).and(written)
    }

    /// How a vSSD is served, beside NBD.
    pub fn ways(&self, name: &str) -> Ways {
        self.lock().get(name).map(|served| served.ways.clone()).unwrap_or_default()
    }

    /// Clients that have it open by NBD.
    pub fn clients(&self, name: &str) -> usize {
        self.with_nbd(|nbd| Ok(nbd.clients(name))).unwrap_or(0)
    }

    /// Where clients find it, and why one of the ways is not there.
    pub fn places(&self, name: &str) -> (Vec<String>, Option<String>) {
        let mut uris: Vec<_> = self.with_nbd(|nbd| Ok(nbd.uri_of(name))).into_iter().collect();
        let served = self.lock();
        let Some(served) = served.get(name) else { return (Vec::new(), None) };
        uris.extend(served.others.iter().map(|server| server.uri()));
        (uris, served.error.clone())
    }

    /// Where the NBD server is.
    pub fn uri(&self) -> String {
        self.with_nbd(|nbd| Ok(nbd.uri_of(""))).unwrap_or_default()
    }

    /// Tells clients of sizes that have changed, and looks whether a server has ended by itself.
    pub fn refresh(&self) {
        for (name, served) in self.lock().iter_mut() {
            let size = served.export.device.size();
            if size != served.size {
                served.size = size;
                served.others.iter().for_each(|server| server.resized());
            }
            served.others.retain(|server| {
                let failed = server.failed();
                if let Some(error) = &failed {
                    tracing::warn!(vssd = name, %error, "a vSSD is served in one way less");
                    served.error = Some(error.to_string());
                }
                failed.is_none()
            });
        }
    }

    /// Makes durable what clients wrote. They hear of failures from their own flushes.
    pub fn flush(&self) {
        let devices: Vec<_> = self.lock().values().map(|served| Arc::clone(&served.export.device)).collect();
        for device in devices {
            if let Err(error) = device.flush() {
                tracing::debug!(%error, "what was written is not durable yet");
            }
        }
    }

    /// The error that ended the NBD server, once.
    pub fn failed(&self) -> Option<Error> {
        self.with_nbd(|nbd| Ok(nbd.failed())).unwrap_or_default()
    }

    /// Ends all of them; what clients wrote is durable then.
    ///
    /// # Errors
    /// Where a flush fails; the others end all the same.
    pub fn stop(&self) -> Result<()> {
        let served = std::mem::take(&mut *self.lock());
        let others = served.into_values().flat_map(|served| served.others);
        let mut stopped: Vec<_> = others.map(Server::stop).collect();
        let nbd = self.nbd.write().unwrap_or_else(PoisonError::into_inner).take();
        stopped.extend(nbd.map(NbdServer::stop));
        stopped.into_iter().collect()
    }

    fn serve(&self, host: &Host, name: &str) -> Result<Served> {
        let export = Export::new(name, host.disk(name)?);
        let size = export.device.size();
        self.with_nbd(|nbd| nbd.add(export.clone()))?;
        Ok(Served { export, size, ways: Ways::default(), others: Vec::new(), error: None })
    }

    fn with_nbd<T>(&self, work: impl FnOnce(&NbdServer) -> Result<T>) -> Result<T> {
        let nbd = self.nbd.read().unwrap_or_else(PoisonError::into_inner);
        nbd.as_deref().map_or_else(|| Err(Error::new(ErrorKind::Unavailable, "the daemon ends")), work)
    }

    fn write(&self) -> Result<()> {
        let ways: BTreeMap<_, _> = self
            .lock()
            .iter()
            .filter(|(_, served)| !served.ways.is_none())
            .map(|(name, served)| (name.clone(), served.ways.clone()))
            .collect();
        let text = serde_json::to_vec(&ways).map_err(|e| {
            Error::invalid("cannot be written as JSON").caused_by(e).about(self.file.display())
        })?;
        file::replace(&self.file, &text, Readers::Owner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Served {
    fn start_others(&mut self) -> Result<()> {
        if let Some(socket) = &self.ways.vhost_user {
            let server = VhostUserServer::start(socket, &self.export, &VhostUserSettings::default())?;
            self.others.push(Box::new(server));
        }
        if let Some(path) = &self.ways.fuse {
            let server = FuseServer::start(self.export.clone(), path, &FuseSettings::default())?;
            self.others.push(Box::new(server));
        }
        Ok(())
    }
}

fn read(file: &Path) -> Result<BTreeMap<String, Ways>> {
    let Some(text) = file::read(file, FILE_MAX)? else { return Ok(BTreeMap::new()) };
    serde_json::from_slice(&text).map_err(|e| {
        Error::corrupt("makes no sense")
            .caused_by(e)
            .about(file.display())
            .remedy("remove it: vSSDs are served by NBD then, and keep their data")
    })
}
