//! Each vSSD as a disk: at an NBD socket of its own, and on request by vhost-user-blk or FUSE, in a process of its own
//! ([`super::export_process`]). An unsold vSSD has no owner, and is not served.
//!
//! # Access
//!
//! A vSSD's own socket serves only that vSSD, to the users that its owner and mode admit. If the daemon serves NBD at
//! an address of the operator's as well, all vSSDs are exports of that one server:
//!
//! * With TLS and client certificates, a vSSD is served to the clients whose certificates have the names that are set
//!   for it; without names, to no client.
//! * Otherwise clients cannot be told apart. A client that reaches the address may open all vSSDs, except those with
//!   names of certificates, which are not served there.
//!
//! # Sizes
//!
//! The sizes of vSSDs change without a request, as leases come and go. Code that may have changed a size calls
//! [`Exports::refresh`], which notifies clients as far as their protocol allows that. NBD does not: a client sees the
//! new size when it connects again.

use super::export_process::{self, ExportProcess, ExportProcessStatus};
use super::ways::{self, Ways};
use crate::host::{Host, VssdStatus};
use headstart_block::{Error, ErrorKind, Result, private};
use headstart_export::nbd::{Address, NbdServer, NbdSettings};
use headstart_export::{Export, Leftover, Server};
use headstart_flash::VssdKind;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of the vSSDs' own sockets, in the daemon's.
pub(super) const SOCKETS: &str = "nbd";

/// The most memory that the requests of one vSSD's clients may hold, in bytes: enough for the largest request.
const MEMORY: u64 = 48 << 20;

/// A vSSD that is served.
struct Served {
    export: Export,
    ways: Ways,
    /// The server at its own socket; `None` if that failed.
    nbd: Option<Box<NbdServer>>,
    /// The process of the other ways; `None` if there are none, or none could be served.
    process: Option<ExportProcess>,
    /// The cause, if one of the ways is missing.
    error: Option<String>,
}

/// A vSSD that is served, and the error of the way that is missing.
type Started = (Served, Result<()>);

/// The server of all vSSDs, at an address of the operator's.
struct Shared {
    server: Box<NbdServer>,
    authentication: Authentication,
}

/// The identity of clients that a server can verify.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Authentication {
    /// None.
    None,
    /// The names in the clients' certificates.
    Certificates,
}

/// The servers through which clients use the vSSDs: NBD servers and export processes. Servers are started and stopped
/// without the lock of their list, so a call that only reads the list never waits for that.
pub struct Exports {
    /// `None` without such an address, and after the server was stopped.
    shared: RwLock<Option<Shared>>,
    served: Mutex<BTreeMap<String, Served>>,
    /// The daemon's directory.
    dir: PathBuf,
    file: PathBuf,
    /// The ways in the file, for vSSDs that are not served by default only.
    kept: Mutex<BTreeMap<String, Ways>>,
}

/// The occasion on which a vSSD begins to be served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Since {
    /// For the first time: an export process that does not start is an error.
    Now,
    /// A vSSD that was served before: an export process that does not start is tried again.
    Before,
}

impl Exports {
    /// Serves all vSSDs of the host except unsold ones: each at a socket of its own below `dir`, and all by one NBD
    /// server at the address in `shared`, if that is given. `forgets` is `true` if the host keeps no vSSDs when it is
    /// closed (emulated flash): the ways of its vSSDs are then stored in a file of their own. An existing vSSD that
    /// cannot be served in one of its ways is logged, and is no error.
    ///
    /// # Errors
    /// The shared server cannot be started, the file of the stored ways cannot be read, or the directory of the sockets
    /// cannot be made.
    pub fn start(shared: Option<&NbdSettings>, dir: &Path, forgets: bool, host: &Host) -> Result<Self> {
        let file = ways::file(dir, forgets);
        let mut ways = ways::read(&file)?;
        make_socket_directory(dir)?;
        let shared = shared.map(Shared::start).transpose()?;
        let sold = host.list().into_iter().filter(|status| status.kind != VssdKind::Unsold);
        let sold: Vec<_> = sold
            .map(|VssdStatus { name, .. }| {
                let ways = ways.remove(&name).unwrap_or_default();
                (name, ways)
            })
            .collect();
        let kept = sold.iter().filter(|(_, ways)| !ways.is_none()).cloned().collect();
        let (served, dir) = (Mutex::default(), dir.to_owned());
        let exports = Self { shared: RwLock::new(shared), served, dir, file, kept: Mutex::new(kept) };
        for (name, (served, failed)) in exports.serve_all(host, sold)? {
            if let Err(error) = failed {
                tracing::warn!(vssd = name, %error, "a vSSD is not served in all ways");
            }
            exports.lock().insert(name, served);
        }
        Ok(exports)
    }

    /// Begins to serve an existing vSSD in the given ways.
    ///
    /// # Errors
    /// Errors of starting a server; [`ErrorKind::Invalid`] for an invalid owner or mode, and for names of certificates
    /// if the shared server does not check certificates; an error if the file of the stored ways cannot be written, or
    /// if there is no such vSSD. After any error the vSSD is not served at all.
    pub fn add(&self, host: &Host, name: &str, ways: Ways) -> Result<()> {
        self.check(&ways).map_err(|e| e.about(name))?;
        let added = self.begin(host, name, ways.clone()).and_then(|()| self.keep(name, Some(ways)));
        if added.is_err()
            && let Err(error) = self.remove(name)
        {
            tracing::warn!(vssd = name, %error, "a new vSSD is not gone in good order");
        }
        added
    }

    /// Begins to serve a vSSD. If one of the ways fails, the others are served.
    fn begin(&self, host: &Host, name: &str, ways: Ways) -> Result<()> {
        let (served, started) = self.serve(host, name, ways, Since::Now)?;
        self.lock().insert(name.to_owned(), served);
        started
    }

    /// Stops serving a vSSD. Its clients are disconnected, and their writes are durable on return. Does nothing
    /// for a vSSD that is not served.
    ///
    /// # Errors
    /// A flush fails, or the file of the stored ways cannot be written; the servers are stopped anyway.
    pub fn remove(&self, name: &str) -> Result<()> {
        let kept = self.keep(name, None);
        self.end(name).and(kept)
    }

    /// Ends the servers of a vSSD, if it has any. Its stored ways stay.
    fn end(&self, name: &str) -> Result<()> {
        let Some(served) = self.lock().remove(name) else { return Ok(()) };
        let removed = self.with_shared(|shared| shared.server.remove(name)).transpose().map(drop);
        let stopped = served.stop();
        export_process::forget(&self.dir, name);
        stopped.and(removed)
    }

    /// Serves a vSSD in other ways than before. Its clients are disconnected.
    ///
    /// # Errors
    /// As [`Exports::add`]; a flush fails. After an error the vSSD is served as before, as far as possible,
    /// and ways that are missing are tried again when the daemon starts.
    pub fn change(&self, host: &Host, name: &str, ways: Ways) -> Result<()> {
        self.check(&ways).map_err(|e| e.about(name))?;
        let before = self.ways(name);
        // This comes before anything ends: a daemon that dies meanwhile serves it in these ways when it is back.
        self.keep(name, Some(ways.clone()))?;
        let ended = self.end(name);
        let changed = ended.and_then(|()| self.begin(host, name, ways));
        if changed.is_err()
            && let Err(error) = self.go_back(host, name, before)
        {
            tracing::warn!(vssd = name, %error, "a vSSD is not served in all ways any more");
        }
        changed
    }

    /// Serves a vSSD as before a change that failed.
    fn go_back(&self, host: &Host, name: &str, before: Ways) -> Result<()> {
        let kept = self.keep(name, Some(before.clone()));
        if let Err(error) = self.end(name) {
            tracing::warn!(vssd = name, %error, "a vSSD was not flushed when its new servers ended");
        }
        let (served, started) = self.serve(host, name, before, Since::Before)?;
        self.lock().insert(name.to_owned(), served);
        started.and(kept)
    }

    /// Returns the ways in which a vSSD is served; the defaults if the vSSD is not served.
    pub fn ways(&self, name: &str) -> Ways {
        self.lock().get(name).map(|served| served.ways.clone()).unwrap_or_default()
    }

    /// Returns the number of clients that are connected to a vSSD by NBD; 0 if the vSSD is not served.
    pub fn clients(&self, name: &str) -> usize {
        let shared = self.with_shared(|shared| shared.server.clients(name)).unwrap_or(0);
        let own = self.lock().get(name).and_then(|served| Some(served.nbd.as_ref()?.clients(name)));
        shared + own.unwrap_or(0)
    }

    /// Returns the URIs at which clients reach a vSSD, NBD first, and the cause if one of the requested ways of serving
    /// it does not work. If the vSSD is not served, there are no URIs and the cause is `None`.
    pub fn places(&self, name: &str) -> (Vec<String>, Option<String>) {
        let served = self.lock();
        let Some(served) = served.get(name) else { return (Vec::new(), None) };
        let shared =
            self.with_shared(|shared| shared.export(served).map(|export| shared.server.uri_of(&export.name)));
        let mut uris: Vec<_> = shared.flatten().into_iter().collect();
        uris.extend(served.nbd.as_ref().map(|nbd| nbd.uri()));
        let process = served.process.as_ref();
        uris.extend(process.map(ExportProcess::uris).unwrap_or_default());
        (uris, served.error.clone().or_else(|| process?.error()))
    }

    /// Returns the state of a vSSD's export process. `None` if the vSSD is served neither by vhost-user nor as a file,
    /// or if its process could not be started at all: [`Self::places`] has the cause.
    pub fn process(&self, name: &str) -> Option<ExportProcessStatus> {
        self.lock().get(name)?.process.as_ref().map(ExportProcess::status)
    }

    /// Returns the URI of the NBD server for all vSSDs; `None` if there is none.
    pub fn uri(&self) -> Option<String> {
        self.with_shared(|shared| shared.server.uri_of(""))
    }

    /// Returns the directory of the NBD sockets: each vSSD is served at a socket of its own there, unless its ways name
    /// another path.
    pub fn sockets(&self) -> PathBuf {
        self.dir.join(SOCKETS)
    }

    /// Notifies clients of changed sizes, and drops servers that have ended by themselves. To be called every
    /// second.
    pub fn refresh(&self) {
        for (name, served) in self.lock().iter_mut() {
            served.notify_of_size();
            served.drop_failed(name);
        }
    }

    /// Makes all clients' writes durable. A failure is only logged, because clients learn of it from their
    /// own flushes.
    pub fn flush(&self) {
        let devices: Vec<_> = self.lock().values().map(|served| Arc::clone(&served.export.device)).collect();
        for device in devices {
            if let Err(error) = device.flush() {
                tracing::debug!(%error, "what was written is not durable yet");
            }
        }
    }

    /// Returns the error that ended the NBD server for all vSSDs: once, and `None` on later calls.
    pub fn failed(&self) -> Option<Error> {
        self.with_shared(|shared| shared.server.failed()).flatten()
    }

    /// Stops all servers. Clients' writes are durable afterwards.
    ///
    /// # Errors
    /// A flush fails; the other servers are stopped anyway.
    pub fn stop(&self) -> Result<()> {
        let served = std::mem::take(&mut *self.lock());
        let shared = self.shared.write().take();
        // All at once: each waits for requests in flight.
        std::thread::scope(|scope| {
            let stopping: Vec<_> =
                served.into_values().map(|served| scope.spawn(move || served.stop())).collect();
            let stopped = shared.map_or(Ok(()), |shared| shared.server.stop());
            let broken = |_| Err(Error::new(ErrorKind::Io, "a thread that ends a server has ended itself"));
            stopping.into_iter().map(|thread| thread.join().unwrap_or_else(broken)).fold(stopped, Result::and)
        })
    }

    /// Starts the servers of several vSSDs. One whose process is slow to start does not delay the others.
    fn serve_all(&self, host: &Host, sold: Vec<(String, Ways)>) -> Result<Vec<(String, Started)>> {
        let (slow, quick): (Vec<_>, Vec<_>) = sold.into_iter().partition(|(_, ways)| ways.need_process());
        let serve = &|(name, ways): (String, Ways)| {
            let started = self.serve(host, &name, ways, Since::Before)?;
            Ok((name, started))
        };
        std::thread::scope(|scope| {
            let starting: Vec<_> = slow.into_iter().map(|vssd| scope.spawn(move || serve(vssd))).collect();
            let mut all = quick.into_iter().map(serve).collect::<Result<Vec<_>>>()?;
            for thread in starting {
                let broken = |_| Err(Error::new(ErrorKind::Io, "a thread that starts a server has ended"));
                all.push(thread.join().unwrap_or_else(broken)?);
            }
            Ok(all)
        })
    }

    /// Starts all servers of a vSSD. Those that could be started serve, whether the others start or not.
    fn serve(&self, host: &Host, name: &str, ways: Ways, since: Since) -> Result<Started> {
        let export = Export::new(name, host.disk(name)?);
        let mut served = Served { export, ways, nbd: None, process: None, error: None };
        let started = self.start_servers(&mut served, since);
        // A process reports its own error, as long as it lasts.
        if let Err(error) = &started
            && served.process.is_none()
        {
            served.error = Some(error.to_string());
        }
        Ok((served, started))
    }

    fn start_servers(&self, served: &mut Served, since: Since) -> Result<()> {
        let shared = self.with_shared(|shared| match shared.export(served) {
            Some(export) => shared.server.add(export),
            None => Ok(()),
        });
        shared.transpose()?;
        let access = served.ways.access()?;
        let (path, leftover) = match &served.ways.nbd {
            Some(path) => (path.clone(), Leftover::IsUnknown),
            // Only this daemon makes sockets there.
            None => (self.sockets().join(format!("{}.sock", served.export.name)), Leftover::IsOurs),
        };
        if leftover == Leftover::IsOurs && !access.is_default() {
            self.let_others_pass()?;
        }
        let settings = NbdSettings::new(Address::Unix(path));
        let settings = NbdSettings { access: access.clone(), leftover, memory: MEMORY, ..settings };
        served.nbd = Some(Box::new(NbdServer::start(&settings, vec![served.export.clone()])?));
        let is_tried_again = since == Since::Before;
        let Served { export, ways, .. } = &*served;
        let (process, started) = ExportProcess::start(&self.dir, export, ways, &access, is_tried_again);
        served.process = process;
        started
    }

    /// Checks that the daemon can serve a vSSD in these ways.
    fn check(&self, ways: &Ways) -> Result<()> {
        ways.access()?;
        let sees = self.with_shared(|shared| shared.authentication == Authentication::Certificates);
        if ways.tls_clients.is_empty() || sees == Some(true) {
            return Ok(());
        }
        Err(Error::invalid("this daemon sees no certificates of clients").remedy(
            "start `headstart harvest serve` with --nbd HOST:PORT, --tls-cert, --tls-key and --tls-client-ca",
        ))
    }

    /// Lets other users reach the sockets in the directory, and see no other entry of it.
    fn let_others_pass(&self) -> Result<()> {
        for dir in [self.dir.clone(), self.sockets()] {
            let mode = fs::metadata(&dir).map(|metadata| (metadata.permissions().mode() & 0o777) | 0o011);
            let passed = mode.and_then(|mode| fs::set_permissions(&dir, Permissions::from_mode(mode)));
            passed.map_err(|e| Error::io("cannot let other users pass", e).about(dir.display()))?;
        }
        Ok(())
    }

    fn with_shared<T>(&self, work: impl FnOnce(&Shared) -> T) -> Option<T> {
        self.shared.read().as_ref().map(work)
    }

    /// Stores the ways of a vSSD for the next daemon, or removes them.
    fn keep(&self, name: &str, ways: Option<Ways>) -> Result<()> {
        let mut kept = self.kept.lock();
        let mut changed = kept.clone();
        match ways.filter(|ways| !ways.is_none()) {
            Some(ways) => changed.insert(name.to_owned(), ways),
            None => changed.remove(name),
        };
        if changed != *kept {
            ways::write(&self.file, &changed)?;
            *kept = changed;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.served.lock()
    }
}

impl Shared {
    fn start(settings: &NbdSettings) -> Result<Self> {
        let sees = settings.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let authentication = if sees { Authentication::Certificates } else { Authentication::None };
        Ok(Self { server: Box::new(NbdServer::start_empty(settings)?), authentication })
    }

    /// The export of a vSSD on this server; `None` if it is not served here.
    fn export(&self, served: &Served) -> Option<Export> {
        let names = &served.ways.tls_clients;
        match self.authentication {
            Authentication::None => names.is_empty().then(|| served.export.clone()),
            Authentication::Certificates if names.is_empty() => None,
            Authentication::Certificates => Some(served.export.clone().only_for(names.clone())),
        }
    }
}

impl Served {
    /// Notifies clients of a size that has changed, as far as their protocol can do that.
    fn notify_of_size(&self) {
        if let Some(process) = &self.process {
            process.notify_of_size(self.export.device.size());
        }
    }

    fn drop_failed(&mut self, name: &str) {
        if let Some(error) = self.nbd.as_ref().and_then(|nbd| nbd.failed()) {
            tracing::warn!(vssd = name, %error, "a vSSD is served in one way less");
            self.error = Some(error.to_string());
            self.nbd = None;
        }
    }

    fn stop(self) -> Result<()> {
        let own = self.nbd.map_or(Ok(()), Server::stop);
        self.process.map_or(Ok(()), ExportProcess::stop).and(own)
    }
}

/// Makes the directory of the vSSDs' own sockets. Other users cannot open it, whatever the umask is.
fn make_socket_directory(dir: &Path) -> Result<()> {
    let sockets = dir.join(SOCKETS);
    private::make_directory(&sockets)
        .map_err(|e| Error::io("cannot make the directory of sockets", e).about(sockets.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{FlashPlace, HostSettings, Options, VssdSpec};
    use headstart_block::{BlockDevice, Extent};

    /// A vSSD that cannot be flushed, and the content of the file of ways at each attempt.
    struct Unflushed {
        disk: Arc<dyn BlockDevice>,
        file: PathBuf,
        kept: Mutex<Vec<BTreeMap<String, Ways>>>,
    }

    impl BlockDevice for Unflushed {
        fn size(&self) -> u64 {
            self.disk.size()
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            self.disk.read_at(buf, offset)
        }

        fn is_read_only(&self) -> bool {
            false
        }

        fn extent_at(&self, offset: u64) -> Result<Extent> {
            self.disk.extent_at(offset)
        }

        fn flush(&self) -> Result<()> {
            self.kept.lock().push(ways::read(&self.file).unwrap());
            Err(Error::new(ErrorKind::Io, "its flash is gone"))
        }
    }

    fn at(socket: &Path) -> Ways {
        Ways { nbd: Some(socket.to_owned()), ..Ways::default() }
    }

    #[test]
    fn a_change_that_fails_leaves_a_vssd_served_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let [before, after, nowhere] = ["before", "after", "nothing/a"].map(|name| dir.path().join(name));
        let flash = FlashPlace::File { path: dir.path().join("flash"), size: Some(1 << 30) };
        let (size, settings) = (Some(1 << 30), HostSettings::default());
        let options = Options { dir: dir.path().to_owned(), flash, size, erase: false, settings };
        let host = Host::open(options, Arc::new(super::super::clock())).unwrap();
        let exports = Exports::start(None, dir.path(), false, &host).unwrap();
        host.create("a", VssdSpec { kind: VssdKind::Regular, channels: Some(1), size: None }).unwrap();
        exports.add(&host, "a", at(&before)).unwrap();
        let is_served_at = |socket: &Path| {
            assert_eq!(exports.ways("a"), at(socket));
            assert_eq!(ways::read(&exports.file).unwrap(), BTreeMap::from([("a".to_owned(), at(socket))]));
            assert_eq!([&before, &after].map(|socket| socket.exists()), [socket == before, socket == after]);
        };
        let device = Arc::new(Unflushed {
            disk: host.disk("a").unwrap(),
            file: exports.file.clone(),
            kept: Mutex::default(),
        });
        let export = Export::new("a", Arc::<Unflushed>::clone(&device));
        let settings = NbdSettings::new(Address::Unix(dir.path().join("unflushed")));
        let unflushed = Box::new(NbdServer::start(&settings, vec![export]).unwrap());
        let flushed = exports.lock().get_mut("a").unwrap().nbd.replace(unflushed).unwrap();
        flushed.stop().unwrap();
        let error = exports.change(&host, "a", at(&after)).unwrap_err();
        assert!(error.to_string().contains("its flash is gone"), "{error}");
        is_served_at(&before);
        // If the daemon had died just then, the next one would have served it in the new ways.
        let kept = std::mem::take(&mut *device.kept.lock());
        let new = BTreeMap::from([("a".to_owned(), at(&after))]);
        assert!(!kept.is_empty() && kept.iter().all(|kept| *kept == new), "{kept:?}");
        exports.change(&host, "a", at(&nowhere)).unwrap_err();
        is_served_at(&before);
        exports.change(&host, "a", at(&after)).unwrap();
        is_served_at(&after);
        exports.change(&host, "a", Ways::default()).unwrap();
        assert_eq!(ways::read(&exports.file).unwrap(), BTreeMap::new());
        exports.stop().unwrap();
    }
}
