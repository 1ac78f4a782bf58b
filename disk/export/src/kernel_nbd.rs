//! `/dev/nbdN`: the kernel's own NBD client, joined to an NBD server in this process.
//!
//! The module is for programs that need a block device (a mount, LVM, a container runtime) on hosts without ublk. The
//! connections are pairs of sockets, which the driver is given by netlink after the handshake.
//!
//! # A device that outlives its process
//!
//! With [`KernelNbdSettings::kept`], the device stays when its process dies: the driver waits up to [`KEPT_FOR`] for
//! new connections, and the disk's next process finds the device by the text that the driver shows in `backend` and
//! gives it connections. No request fails. But requests that the dead process had taken are sent again only when
//! [`KernelNbdSettings::timeout`] is over: the driver has no other moment for that. So a keeper's file of FUSE, whose
//! requests are sent again at once, is better where the kernel has it (Linux 6.9).
//!
//! # Defaults, limits, dangers
//!
//! * Sectors are always 512 bytes: with 4096 the kernel would look for the partition table of an image made for
//!   512 in the wrong place. A size that is no multiple of 512 is refused, because the kernel would cut off the end.
//! * The kernel gives up a connection on which a request waits for longer than [`KernelNbdSettings::timeout`], and
//!   sends the request on another one. The timeout must be longer than a read may wait for its store. Lost
//!   connections are replaced within a second. If a device that is not kept loses all of them, its I/O fails.
//! * The device does not grow with its disk until it is attached again.
//! * Detaching a device that is mounted fails the I/O of the file system on it. Unmount first.
//! * Pages of the disk that a device had before may still be in the host's cache; the pages of a device are dropped
//!   when a disk is attached to it and when the disk is detached.

mod netlink;

use crate::kernel_release::{kernel_release, version_of};
use crate::nbd::PrivateServer;
use crate::nbd::client::choose_for_kernel;
use crate::{Export, STOP_TIMEOUT, Server, host_cache, tool};
use headstart_block::{Error, ErrorKind, Result, SECTOR_SIZE};
use netlink::{DiskFacts, DriverSocket};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The time for which a kept device waits for its disk's next process.
pub const KEPT_FOR: Duration = Duration::from_secs(3600);

/// The first release of Linux whose driver shows the text by which a device is found again.
const SHOWS_BACKEND: (u32, u32) = (5, 14);

/// The bytes that requests hold at most.
const MEMORY: u64 = 64 << 20;

/// The time between two looks for lost connections, at first and later, and the number of first looks: connections of a
/// dead process are lost one by one.
const LOOK_AT_FIRST: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(1);
const FIRST_LOOKS: u32 = 100;

/// The bytes that are read ahead of a reader that goes on in sequence, in KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// The settings for attaching a disk to the kernel's NBD driver as `/dev/nbdN`.
#[derive(Clone, Debug)]
pub struct KernelNbdSettings {
    /// The device to use, such as `/dev/nbd0`; `None` for a free one.
    pub device: Option<PathBuf>,
    /// The number of connections between the kernel and the NBD server, each of which carries many requests
    /// at a time. 4 by default.
    pub connections: u16,
    /// The duration after which the kernel sends an unanswered request again, and gives up its connection. Rounded down
    /// to whole seconds, but at least one second. It must be longer than a read may wait for its store. 10 minutes by
    /// default.
    pub timeout: Duration,
    /// The name under which the device waits for the next process of its disk when this one dies; `None`: it does not.
    pub kept: Option<KeptDevice>,
}

/// The name of a disk whose device outlives its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptDevice {
    /// The name of the disk, without blanks. No two disks of a host have the same.
    pub disk: String,
    /// The content of the disk, in words that differ if the content does, without blanks.
    pub identity: String,
}

impl KeptDevice {
    /// The text at the driver.
    fn backend(&self) -> String {
        format!("{}{}", beginning(&self.disk), self.identity)
    }
}

/// The beginning of the text at the driver, of a disk.
fn beginning(disk: &str) -> String {
    format!("headstart {disk} ")
}

impl Default for KernelNbdSettings {
    /// Any device, four connections, ten minutes, not kept.
    fn default() -> Self {
        Self { device: None, connections: 4, timeout: Duration::from_secs(600), kept: None }
    }
}

/// The remedy for a module that is not loaded.
pub const LOAD: &str = "load it: modprobe nbd nbds_max=16";

/// The places to look at on this host; other places in tests.
#[derive(Clone, Debug)]
struct Host {
    sys: PathBuf,
    dev: PathBuf,
    root: bool,
    module_file: bool,
}

impl Host {
    fn this() -> Self {
        Self {
            sys: "/sys".into(),
            dev: "/dev".into(),
            root: rustix::process::geteuid().is_root(),
            module_file: module_file_exists(),
        }
    }

    /// The devices that the kernel has, as numbers in order.
    fn devices(&self) -> Vec<u32> {
        let entries = fs::read_dir(self.sys.join("block")).into_iter().flatten().flatten();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok();
        let mut numbers: Vec<u32> = entries.filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// `true` if a device is free: one that has a disk has a size and, mostly, the process that serves it.
    fn is_free(&self, number: u32) -> bool {
        let directory = self.sys.join(format!("block/nbd{number}"));
        let size = fs::read_to_string(directory.join("size")).unwrap_or_default();
        !directory.join("pid").exists() && size.trim().parse() == Ok(0_u64)
    }

    fn device(&self, number: u32) -> PathBuf {
        self.dev.join(format!("nbd{number}"))
    }

    fn size(&self, number: u32) -> Option<u64> {
        let sectors = fs::read_to_string(self.sys.join(format!("block/nbd{number}/size"))).ok()?;
        sectors.trim().parse::<u64>().ok()?.checked_mul(SECTOR_SIZE)
    }

    /// The device of a disk with this text at the driver, or with this beginning of it.
    fn devices_of(&self, is_it: impl Fn(&str) -> bool) -> Vec<u32> {
        let has = |number: &u32| {
            let backend = fs::read_to_string(self.sys.join(format!("block/nbd{number}/backend")));
            backend.is_ok_and(|backend| is_it(backend.strip_suffix('\n').unwrap_or(&backend)))
        };
        self.devices().into_iter().filter(has).collect()
    }

    fn check(&self) -> Result<()> {
        let lacks = |cause: &'static str, remedy: &'static str| {
            Err(Error::new(ErrorKind::Unsupported, cause).remedy(remedy))
        };
        if self.devices().is_empty() {
            return if self.module_file {
                lacks("the kernel's nbd module is not loaded", LOAD)
            } else {
                lacks(
                    "this kernel has no nbd module",
                    "export the disk with --fuse and attach it with losetup, or with --nbd to a hypervisor",
                )
            };
        }
        if !self.root {
            return lacks(
                "only root may attach a disk to /dev/nbdN",
                "run it as root, or use --nbd or --fuse",
            );
        }
        Ok(())
    }

    /// The number of a device that is wanted, which must be free.
    fn number_of(&self, wanted: &Path) -> Result<u32> {
        let number = wanted.strip_prefix(&self.dev).ok().and_then(Path::to_str);
        let number: Option<u32> = number.and_then(|name| name.strip_prefix("nbd")?.parse().ok());
        let number = number.ok_or_else(|| {
            Error::invalid("this is not an nbd device")
                .remedy("give /dev/nbd0 or its like, or auto")
                .about(wanted.display())
        })?;
        if !self.devices().contains(&number) {
            return Err(Error::new(ErrorKind::NotFound, "the kernel has no such device")
                .remedy("load the module with a larger nbds_max")
                .about(wanted.display()));
        }
        if !self.is_free(number) {
            return Err(Error::new(ErrorKind::Conflict, "another disk is attached to it")
                .remedy("detach that one (nbd-client -d), or say auto")
                .about(wanted.display()));
        }
        Ok(number)
    }
}

/// `true` if the module for the running kernel is on disk.
fn module_file_exists() -> bool {
    tool::has_module(&Path::new("/lib/modules").join(kernel_release()), "nbd")
}

/// `true` if the kernel's nbd module is on this host and only not loaded: [`LOAD`] is the remedy then.
#[must_use]
pub fn is_only_unloaded() -> bool {
    let host = Host::this();
    host.module_file && host.devices().is_empty()
}

/// Checks that this host's kernel can have a disk as `/dev/nbdN`: the nbd driver and the rights are there. Attaches
/// nothing.
///
/// # Errors
/// [`ErrorKind::Unsupported`]; the error names the missing part and how to get it.
pub fn probe() -> Result<()> {
    Host::this().check()?;
    DriverSocket::open().map(|_| ())
}

/// As [`probe`], and that a device can outlive its process.
///
/// # Errors
/// As [`probe`].
pub fn probe_kept() -> Result<()> {
    probe()?;
    if version_of(&kernel_release()) < SHOWS_BACKEND {
        return Err(Error::unsupported("this kernel does not say which disk an nbd device has")
            .remedy("use a kernel from 5.14 on"));
    }
    Ok(())
}

/// Takes the devices of a disk, which has no process any more, from the kernel.
///
/// # Errors
/// Errors of the driver.
pub fn release(disk: &str) -> Result<()> {
    let (host, beginning) = (Host::this(), beginning(disk));
    for number in host.devices_of(|backend| backend.starts_with(&beginning)) {
        DriverSocket::open()?.disconnect(number)?;
    }
    Ok(())
}

/// The server of a device and its connections.
struct Link {
    server: PrivateServer,
    number: u32,
    /// The name of the export, and the text at the driver.
    export: String,
    backend: String,
    connections: usize,
    failure: Mutex<Option<Error>>,
}

impl Link {
    /// New connections, ready for requests, with the size and the flags of the disk.
    fn connections(&self, count: usize) -> Result<(Vec<OwnedFd>, u64, u16)> {
        let (mut sockets, mut facts) = (Vec::new(), (0, 0));
        for _ in 0..count {
            let (socket, size, flags) = choose_for_kernel(self.server.connect()?, &self.export)?;
            sockets.push(socket);
            facts = (size, flags);
        }
        Ok((sockets, facts.0, facts.1))
    }

    /// Replaces lost connections.
    fn mend(&self) -> Result<()> {
        let lost = self.connections.saturating_sub(self.server.connections());
        if lost == 0 {
            return Ok(());
        }
        let (sockets, ..) = self.connections(lost)?;
        // Those that the driver does not take, because it has not seen yet which are lost, end with these ends.
        DriverSocket::open()?.reconnect(self.number, Some(&self.backend), &sockets)
    }

    /// Replaces lost connections until it is told to end.
    fn look_after(&self, end: &mpsc::Receiver<()>) {
        for look in 0_u64.. {
            let pause = if look < FIRST_LOOKS.into() { LOOK_AT_FIRST } else { LOOK };
            if end.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            match self.mend() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    *self.failure.lock() = Some(
                        Error::new(ErrorKind::Cancelled, "it was detached from outside").caused_by(error),
                    );
                    return;
                }
                Err(error) => tracing::warn!(%error, device = self.number, "a lost connection stays lost"),
            }
        }
    }
}

/// A disk that the kernel's NBD driver has attached as `/dev/nbdN`. Stopping or dropping it detaches the device; one
/// that was taken over from an earlier process, and is dropped before it is asked to stop, waits for the next process.
pub struct KernelNbd {
    host: Host,
    number: u32,
    export: Export,
    is_kept: bool,
    /// `true` if an earlier process had the device.
    is_left: bool,
    link: Arc<Link>,
    /// The thread that looks after the connections; `None` once the server has been stopped.
    caretaker: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl KernelNbd {
    /// Attaches `export` to the kernel as `/dev/nbdN`. A device that an earlier process of the same disk has left is
    /// taken over.
    ///
    /// # Errors
    /// Those of [`probe`]; [`ErrorKind::NotFound`] if the device does not exist, [`ErrorKind::Conflict`] if it is in
    /// use, [`ErrorKind::Invalid`] if the disk is empty, its size is not a multiple of 512 bytes, or the device of
    /// `settings` is not a `/dev/nbdN`; errors of the driver.
    pub fn start(export: Export, settings: &KernelNbdSettings) -> Result<Self> {
        let host = Host::this();
        host.check()?;
        let size = whole_sectors(&export)?;
        let connections = usize::from(settings.connections.max(1));
        let backend = match &settings.kept {
            Some(kept) => kept.backend(),
            None => format!("{}{}", beginning(&format!("process-{}", std::process::id())), export.name),
        };
        // Connections that are given up may still have work for a while.
        let server = PrivateServer::new(export.clone(), 2 * connections, MEMORY);
        let (name, failure) = (export.name.clone(), Mutex::default());
        let mut link = Link { server, number: 0, export: name, backend, connections, failure };
        let left = settings.kept.as_ref().map(|kept| left_device(&host, kept)).transpose()?.flatten();
        if let Some(number) = left {
            link.number = number;
        } else {
            let wanted = settings.device.as_deref().map(|wanted| host.number_of(wanted)).transpose()?;
            let (sockets, size, flags) = link.connections(connections)?;
            let dead = if settings.kept.is_some() { KEPT_FOR } else { Duration::ZERO };
            let (sector, timeout, backend) = (SECTOR_SIZE, settings.timeout, Some(link.backend.as_str()));
            let disk = DiskFacts { size, sector, flags, timeout, dead, backend };
            link.number = DriverSocket::open()?.connect(wanted, &disk, &sockets)?;
        }
        let (number, is_kept) = (link.number, settings.kept.is_some());
        let (link, caretaker) = (Arc::new(link), Mutex::default());
        let is_left = left.is_some();
        let attached = Self { host, number, export, is_kept, is_left, link, caretaker };
        attached.take_care()?;
        attached.check_attached(size, is_left)?;
        Ok(attached)
    }

    /// Starts the thread that replaces lost connections.
    fn take_care(&self) -> Result<()> {
        let (end, ended) = mpsc::channel();
        let link = Arc::clone(&self.link);
        let thread = thread::Builder::new().name("nbd-kernel".to_owned());
        let spawned = thread.spawn(move || link.look_after(&ended));
        let thread = spawned.map_err(|error| Error::io("cannot start a thread", error))?;
        *self.caretaker.lock() = Some((end, thread));
        Ok(())
    }

    /// The path of the block device, `/dev/nbdN`.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        self.host.device(self.number)
    }

    /// `true` if it goes on with the device of an earlier process, and with that one's users.
    #[must_use]
    pub fn is_taken_over(&self) -> bool {
        self.is_left
    }

    /// Checks that the kernel has the disk, and no pages of another.
    fn check_attached(&self, size: u64, is_left: bool) -> Result<()> {
        let device = self.device();
        if !is_left {
            if let Err(error) = host_cache::drop_pages(&device, STOP_TIMEOUT) {
                return Err(Error::io("cannot drop what the host still has of another disk", error)
                    .about(device.display()));
            }
            // Best effort: without it reads in sequence are slower.
            let ahead = self.host.sys.join(format!("block/nbd{}/queue/read_ahead_kb", self.number));
            let _ = fs::write(ahead, READ_AHEAD_KIB.to_string());
        }
        match self.host.size(self.number) {
            Some(found) if found == size => Ok(()),
            found => {
                let cause = format!("the kernel gives it {} bytes, the disk has {size}", found.unwrap_or(0));
                Err(Error::new(ErrorKind::Io, cause).about(device.display()))
            }
        }
    }

    /// Ends the thread that looks after the connections: `false` if that was done already.
    fn end_care(&self) -> bool {
        let Some((end, thread)) = self.caretaker.lock().take() else { return false };
        drop(end);
        // A look does not last.
        let _ = thread.join();
        true
    }

    fn shut_down(&self) -> Result<()> {
        if !self.end_care() {
            return Ok(());
        }
        let device = self.device();
        let dropped = host_cache::drop_pages(&device, STOP_TIMEOUT).map_err(|error| {
            Error::io("cannot write back what the host holds of it", error).about(device.display())
        });
        let detached = DriverSocket::open().and_then(|driver| driver.disconnect(self.number));
        let flushed = self.end_server();
        // Nothing of a read-only disk can be lost.
        let dropped = if self.export.device.is_read_only() { Ok(()) } else { dropped };
        flushed.and(dropped).and(detached)
    }

    fn end_server(&self) -> Result<()> {
        if !self.link.server.end(STOP_TIMEOUT) {
            tracing::warn!("{}: requests in flight were given up", self.device().display());
        }
        if self.export.device.is_read_only() { Ok(()) } else { self.export.device.flush() }
    }
}

/// The size of a disk that is whole sectors.
fn whole_sectors(export: &Export) -> Result<u64> {
    let size = export.device.size();
    if size == 0 || !size.is_multiple_of(SECTOR_SIZE) {
        return Err(Error::invalid("the kernel would cut off the end of a disk that is not whole sectors")
            .remedy("export it with --fuse, which has its exact size"));
    }
    Ok(size)
}

/// The device that an earlier process of a disk has left. One with other content is taken from the kernel.
fn left_device(host: &Host, kept: &KeptDevice) -> Result<Option<u32>> {
    let (backend, beginning) = (kept.backend(), beginning(&kept.disk));
    for number in host.devices_of(|found| found.starts_with(&beginning) && found != backend) {
        tracing::warn!("{}: the disk has other content now", host.device(number).display());
        DriverSocket::open()?.disconnect(number)?;
    }
    Ok(host.devices_of(|found| found == backend).first().copied())
}

impl Server for KernelNbd {
    fn uri(&self) -> String {
        self.device().display().to_string()
    }

    fn resized(&self) {
        tracing::warn!("{}: it keeps its size until the disk is attached again", self.uri());
    }

    fn failed(&self) -> Option<Error> {
        self.link.failure.lock().take().map(|error| error.about(self.uri()))
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.shut_down()
    }

    fn leave(self: Box<Self>) -> Result<()> {
        if !self.is_kept {
            return self.shut_down();
        }
        self.end_care();
        self.end_server()
    }
}

impl Drop for KernelNbd {
    fn drop(&mut self) {
        // Programs may have it mounted that this process has never served.
        let ended = if self.is_left && self.end_care() { self.end_server() } else { self.shut_down() };
        if let Err(error) = ended {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::{BlockDevice, Extent};

    struct Sized(u64);

    impl BlockDevice for Sized {
        fn size(&self) -> u64 {
            self.0
        }

        fn read_at(&self, _: &mut [u8], _: u64) -> Result<()> {
            Ok(())
        }

        fn extent_at(&self, _: u64) -> Result<Extent> {
            Err(Error::invalid("not asked for"))
        }
    }

    fn export(size: u64) -> Export {
        Export::new("vm-1", Arc::new(Sized(size)) as Arc<dyn BlockDevice>)
    }

    /// A host with three devices, the first and the last of which are taken.
    fn host(root: &Path) -> Host {
        for (name, size) in [("nbd0", "2048"), ("nbd1", "0"), ("nbd2", "0"), ("loop0", "0")] {
            fs::create_dir_all(root.join("sys/block").join(name)).unwrap();
            fs::write(root.join("sys/block").join(name).join("size"), format!("{size}\n")).unwrap();
        }
        fs::write(root.join("sys/block/nbd2/pid"), "7\n").unwrap();
        fs::write(root.join("sys/block/nbd2/backend"), "headstart vm-1 abc\n").unwrap();
        Host { sys: root.join("sys"), dev: root.join("dev"), root: true, module_file: true }
    }

    #[test]
    fn missing_parts_of_the_host_are_named_with_their_remedy() {
        let root = tempfile::tempdir().unwrap();
        let whole = host(root.path());
        whole.check().unwrap();
        let refusal = |host: Host| host.check().unwrap_err().to_string();
        assert!(refusal(Host { root: false, ..whole.clone() }).contains("as root"));
        let empty = Host { sys: root.path().join("nothing"), ..whole };
        assert!(refusal(empty.clone()).contains("modprobe nbd"));
        assert!(refusal(Host { module_file: false, ..empty }).contains("--fuse"));
    }

    #[test]
    fn a_free_device_may_be_wanted_and_a_taken_one_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let wanted = |name: &str| host.number_of(&host.dev.join(name));
        assert_eq!(wanted("nbd1").unwrap(), 1);
        assert_eq!(wanted("nbd0").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(wanted("nbd2").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(wanted("nbd7").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(wanted("sda").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn the_device_that_a_process_left_is_found_by_its_disk_and_content() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let kept = |disk: &str, identity: &str| {
            let kept = KeptDevice { disk: disk.to_owned(), identity: identity.to_owned() };
            left_device(&host, &kept)
        };
        assert_eq!(kept("vm-1", "abc").unwrap(), Some(2));
        assert_eq!(kept("vm", "abc").unwrap(), None);
        assert_eq!(kept("vm-1-abc", "").unwrap(), None);
    }

    #[test]
    fn a_disk_that_is_not_whole_sectors_is_refused() {
        assert_eq!(whole_sectors(&export(4096)).unwrap(), 4096);
        for size in [0, 1000] {
            assert_eq!(whole_sectors(&export(size)).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
