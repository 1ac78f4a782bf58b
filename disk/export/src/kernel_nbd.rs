//! `/dev/nbdN`: the kernel's own NBD client, joined to this program's NBD server on the same host.
//!
//! The module is for programs that need a block device (a mount, LVM, a container runtime) on hosts without ublk. The
//! standard tool `nbd-client` connects to the server's Unix socket, and hands the connection to the kernel; this module
//! speaks nothing of the protocol.
//!
//! # Defaults, limits, dangers
//!
//! * Sectors are always 512 bytes: with 4096 the kernel would look for the partition table of an image made for
//!   512 in the wrong place. A size that is no multiple of 512 is refused, because the kernel would cut off the end.
//! * The kernel gives up a request after [`KernelNbdSettings::timeout`], and the connection with it. The timeout must
//!   be longer than a read may wait for its store. If the server dies, its sockets close, and I/O fails at once.
//! * The device does not grow with its disk until it is attached again.
//! * Detaching a device that is mounted fails the I/O of the file system on it. Unmount first.
//! * Pages of the disk that a device had before may still be in the host's cache; the pages of a device are dropped
//!   when a disk is attached to it and when the disk is detached.
//! * This module was not tried on a real kernel yet, because the machines of the tests have no nbd module. Tests cover
//!   the refusals and, with a stand-in for `nbd-client`, attaching and detaching a device.

use crate::{Export, STOP_TIMEOUT, Server, host_cache, tool};
use headstart_block::{Error, ErrorKind, Result, SECTOR_SIZE};
use parking_lot::Mutex;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time that `nbd-client` may take to connect or to disconnect.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(15);

/// The settings for attaching a disk to the kernel's NBD driver as `/dev/nbdN`.
#[derive(Clone, Debug)]
pub struct KernelNbdSettings {
    /// The device to use, such as `/dev/nbd0`; `None` for the first free one.
    pub device: Option<PathBuf>,
    /// The number of connections between the kernel and the NBD server, each of which carries many requests
    /// at a time. 4 by default.
    pub connections: u16,
    /// The duration after which the kernel gives up an unanswered request, and the connection with it. Rounded down to
    /// whole seconds, but at least one second. It must be longer than a read may wait for its store. 10 minutes by
    /// default.
    pub timeout: Duration,
}

impl Default for KernelNbdSettings {
    /// Any device, four connections, ten minutes.
    fn default() -> Self {
        Self { device: None, connections: 4, timeout: Duration::from_secs(600) }
    }
}

/// The places to look at on this host; other places in tests.
#[derive(Clone, Debug)]
struct Host {
    sys: PathBuf,
    dev: PathBuf,
    client: Option<PathBuf>,
    root: bool,
    module_file: bool,
}

impl Host {
    fn this() -> Self {
        Self {
            sys: "/sys".into(),
            dev: "/dev".into(),
            client: tool::find("nbd-client"),
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

    fn size(&self, number: u32) -> Option<u64> {
        let sectors = fs::read_to_string(self.sys.join(format!("block/nbd{number}/size"))).ok()?;
        sectors.trim().parse::<u64>().ok()?.checked_mul(SECTOR_SIZE)
    }

    fn check(&self) -> Result<&Path> {
        let lacks = |cause: &'static str, remedy: &'static str| {
            Err(Error::new(ErrorKind::Unsupported, cause).remedy(remedy))
        };
        if self.devices().is_empty() {
            return if self.module_file {
                lacks("the kernel's nbd module is not loaded", "load it: modprobe nbd nbds_max=16")
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
        let missing = || {
            let cause = "nbd-client, which attaches a disk to the kernel, is not installed";
            Error::new(ErrorKind::Unsupported, cause).remedy("install it: apt-get install nbd-client")
        };
        self.client.as_deref().ok_or_else(missing)
    }

    /// The devices to try: the wanted one, or all free ones.
    fn candidates(&self, wanted: Option<&Path>) -> Result<Vec<u32>> {
        let Some(wanted) = wanted else {
            let free: Vec<u32> = self.devices().into_iter().filter(|number| self.is_free(*number)).collect();
            if free.is_empty() {
                let cause = "all nbd devices are in use";
                let remedy =
                    "detach one (nbd-client -d /dev/nbdN), or load the module with a larger nbds_max";
                return Err(Error::new(ErrorKind::Conflict, cause).remedy(remedy));
            }
            return Ok(free);
        };
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
                .remedy(format!("detach that one (nbd-client -d {}), or say auto", wanted.display()))
                .about(wanted.display()));
        }
        Ok(vec![number])
    }
}

/// `true` if the module for the running kernel is on disk.
fn module_file_exists() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    tool::has_module(&Path::new("/lib/modules").join(release.trim()), "nbd")
}

/// Checks that this host's kernel can have a disk as `/dev/nbdN`: the nbd driver, the program `nbd-client`
/// and the rights are there. Attaches nothing.
///
/// # Errors
/// [`ErrorKind::Unsupported`]; the error names the missing part and how to get it.
pub fn probe() -> Result<()> {
    Host::this().check().map(|_| ())
}

/// A disk that the kernel's NBD driver has attached as `/dev/nbdN`, with the NBD server behind it. Stopping
/// or dropping it detaches the device.
pub struct KernelNbd {
    host: Host,
    client: PathBuf,
    number: u32,
    read_only: bool,
    /// The server; `None` once it has been stopped.
    server: Mutex<Option<Box<dyn Server>>>,
}

impl KernelNbd {
    /// Attaches `export`, which `server` serves on the Unix socket `socket`, to the kernel as `/dev/nbdN`.
    /// Stopping the result stops `server` too.
    ///
    /// # Errors
    /// Those of [`probe`]; [`ErrorKind::NotFound`] if the device does not exist, [`ErrorKind::Conflict`] if it (or
    /// every device) is in use, [`ErrorKind::Invalid`] if the disk is empty, its size is not a multiple of 512 bytes,
    /// or the device of `settings` is not a `/dev/nbdN`; [`ErrorKind::Io`] if `nbd-client` fails or takes longer than
    /// 15 seconds. `server` is stopped in each case.
    pub fn start(
        server: Box<dyn Server>,
        socket: &Path,
        export: &Export,
        settings: &KernelNbdSettings,
    ) -> Result<Self> {
        Self::start_on(Host::this(), server, socket, export, settings)
    }

    fn start_on(
        host: Host,
        server: Box<dyn Server>,
        socket: &Path,
        export: &Export,
        settings: &KernelNbdSettings,
    ) -> Result<Self> {
        let client = host.check()?.to_owned();
        let size = export.device.size();
        if size == 0 || !size.is_multiple_of(SECTOR_SIZE) {
            return Err(Error::invalid(
                "the kernel would cut off the end of a disk that is not whole sectors",
            )
            .remedy("export it with --fuse, which has its exact size"));
        }
        let mut refused = None;
        for number in host.candidates(settings.device.as_deref())? {
            let device = host.dev.join(format!("nbd{number}"));
            match tool::run(&client, &connect_line(socket, &device, export, settings), CLIENT_TIMEOUT) {
                Ok(()) => {
                    let read_only = export.device.is_read_only();
                    let server = Mutex::new(Some(server));
                    let attached = Self { host, client, number, read_only, server };
                    attached.check_attached(size)?;
                    return Ok(attached);
                }
                // Another program may have taken it meanwhile.
                Err(error) if !host.is_free(number) => refused = Some(error.about(device.display())),
                Err(error) => return Err(error.about(device.display())),
            }
        }
        Err(refused.unwrap_or_else(|| Error::new(ErrorKind::Conflict, "all nbd devices are in use")))
    }

    /// The path of the block device, `/dev/nbdN`.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        self.host.dev.join(format!("nbd{}", self.number))
    }

    /// Checks that the kernel has the disk, and no pages of another.
    fn check_attached(&self, size: u64) -> Result<()> {
        let device = self.device();
        if let Err(error) = host_cache::drop_pages(&device, STOP_TIMEOUT) {
            return Err(Error::io("cannot drop what the host still has of another disk", error)
                .about(device.display()));
        }
        match self.host.size(self.number) {
            Some(found) if found == size => Ok(()),
            found => {
                let cause = format!("the kernel gives it {} bytes, the disk has {size}", found.unwrap_or(0));
                Err(Error::new(ErrorKind::Io, cause).about(device.display()))
            }
        }
    }

    fn shut_down(&self) -> Result<()> {
        let server = self.server.lock().take();
        let Some(server) = server else { return Ok(()) };
        let device = self.device();
        let dropped = host_cache::drop_pages(&device, STOP_TIMEOUT).map_err(|error| {
            Error::io("cannot write back what the host holds of it", error).about(device.display())
        });
        let args = ["-d".to_owned(), device.display().to_string()];
        let detached = tool::run(&self.client, &args, CLIENT_TIMEOUT);
        let stopped = server.stop();
        // Nothing of a read-only disk can be lost.
        let dropped = if self.read_only { Ok(()) } else { dropped };
        stopped.and(dropped).and(detached)
    }
}

/// The arguments for `nbd-client`.
fn connect_line(socket: &Path, device: &Path, export: &Export, settings: &KernelNbdSettings) -> Vec<String> {
    let mut args = vec!["-unix".to_owned(), socket.display().to_string(), device.display().to_string()];
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("-name", export.name.clone());
    option("-connections", settings.connections.max(1).to_string());
    option("-timeout", settings.timeout.as_secs().max(1).to_string());
    option("-block-size", SECTOR_SIZE.to_string());
    if export.device.is_read_only() {
        args.push("-readonly".to_owned());
    }
    args
}

impl Server for KernelNbd {
    fn uri(&self) -> String {
        self.device().display().to_string()
    }

    fn resized(&self) {
        tracing::warn!("{}: it keeps its size until the disk is attached again", self.uri());
    }

    fn failed(&self) -> Option<Error> {
        let server = self.server.lock();
        let server = server.as_ref()?;
        server.failed().or_else(|| {
            self.host.is_free(self.number).then(|| {
                Error::new(ErrorKind::Cancelled, "it was detached from outside")
                    .about(self.device().display())
            })
        })
    }

    fn stop(self: Box<Self>) -> Result<()> {
        self.shut_down()
    }
}

impl Drop for KernelNbd {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::{BlockDevice, Extent};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

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

    struct Stoppable(Arc<AtomicBool>);

    impl Server for Stoppable {
        fn uri(&self) -> String {
            String::new()
        }

        fn resized(&self) {}

        fn failed(&self) -> Option<Error> {
            None
        }

        fn stop(self: Box<Self>) -> Result<()> {
            self.0.store(true, Ordering::Relaxed);
            Ok(())
        }
    }

    fn export(size: u64) -> Export {
        Export::new("vm-1", Arc::new(Sized(size)) as Arc<dyn BlockDevice>)
    }

    /// A host with two devices, the first of which is taken, and a tool that notes how it is called.
    fn host(root: &Path) -> Host {
        for (name, size) in [("nbd0", "2048"), ("nbd1", "0"), ("loop0", "0")] {
            fs::create_dir_all(root.join("sys/block").join(name)).unwrap();
            fs::write(root.join("sys/block").join(name).join("size"), format!("{size}\n")).unwrap();
        }
        fs::create_dir_all(root.join("dev")).unwrap();
        let (script, client) = (root.join("script"), root.join("nbd-client"));
        fs::write(&script, format!("#!/bin/sh\necho \"$@\" >> {}/calls\n", root.display())).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        // By another process: a program that another test starts meanwhile inherits the files that this one has open
        // for writing, and a file that is open for writing is not run.
        let copied = std::process::Command::new("cp").arg(&script).arg(&client).status();
        assert!(copied.unwrap().success());
        let (sys, dev) = (root.join("sys"), root.join("dev"));
        Host { sys, dev, client: Some(client), root: true, module_file: true }
    }

    #[test]
    fn missing_parts_of_the_host_are_named_with_their_remedy() {
        let root = tempfile::tempdir().unwrap();
        let whole = host(root.path());
        whole.check().unwrap();
        let refusal = |host: Host| host.check().unwrap_err().to_string();
        assert!(refusal(Host { root: false, ..whole.clone() }).contains("as root"));
        assert!(refusal(Host { client: None, ..whole.clone() }).contains("apt-get install nbd-client"));
        let empty = Host { sys: root.path().join("nothing"), ..whole };
        assert!(refusal(empty.clone()).contains("modprobe nbd"));
        assert!(refusal(Host { module_file: false, ..empty }).contains("--fuse"));
    }

    #[test]
    fn a_free_device_is_found_and_a_taken_one_refused() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        assert_eq!(host.candidates(None).unwrap(), [1]);
        let wanted = |name: &str| host.candidates(Some(&host.dev.join(name)));
        assert_eq!(wanted("nbd1").unwrap(), [1]);
        assert_eq!(wanted("nbd0").unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(wanted("nbd7").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(wanted("sda").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn the_tool_is_called_right_and_the_server_stopped() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path());
        let stopped = Arc::new(AtomicBool::new(false));
        let server = || Box::new(Stoppable(Arc::clone(&stopped)));
        let socket = Path::new("/run/d.sock");
        let settings = KernelNbdSettings::default();
        let odd = KernelNbd::start_on(host.clone(), server(), socket, &export(1000), &settings);
        assert_eq!(odd.err().map(|error| error.kind()), Some(ErrorKind::Invalid));
        // The stand-in makes no block device, so its cache cannot be dropped: an error, and all is undone.
        let error = KernelNbd::start_on(host, server(), socket, &export(4096), &settings).err().unwrap();
        assert!(error.to_string().contains("another disk"), "{error}");
        assert!(stopped.load(Ordering::Relaxed));
        let device = root.path().join("dev/nbd1");
        let calls = fs::read_to_string(root.path().join("calls")).unwrap();
        let expected = format!(
            "-unix /run/d.sock {device} -name vm-1 -connections 4 -timeout 600 -block-size 512 -readonly\n\
             -d {device}\n",
            device = device.display()
        );
        assert_eq!(calls, expected);
    }
}
