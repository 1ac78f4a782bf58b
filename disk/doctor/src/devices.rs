//! The ways to serve a disk, and their clients.

use crate::finding::{Availability, HostFinding};
use crate::trial::find;
use headstart_block::Error;
use headstart_export::attach_way::BestWay;
use headstart_export::fuse::too_old_to_keep;
use headstart_export::{kernel_nbd, ublk as ublk_server};
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Programs that are clients of these servers or that examples and tests use, with their purpose and their package.
const TOOLS: [(&str, &str, &str); 5] = [
    ("qemu-system", "runs guests", "qemu-system-x86"),
    ("qemu-img", "converts and compares disks", "qemu-utils"),
    ("nbdinfo", "asks an NBD server what it has", "libnbd-bin"),
    ("nbdcopy", "copies from and to NBD", "libnbd-bin"),
    ("nbdkit", "serves NBD too; for comparisons", "nbdkit"),
];

/// Tries to listen on sockets, as the NBD server does.
pub(crate) fn nbd() -> HostFinding {
    let served =
        tempfile::tempdir().and_then(|directory| UnixListener::bind(directory.path().join("socket")));
    let local = std::net::TcpListener::bind(("127.0.0.1", 0));
    match (served, local) {
        (Ok(_), Ok(_)) => HostFinding::new("nbd", Availability::Yes, "served on Unix sockets and TCP"),
        (Ok(_), Err(error)) => {
            HostFinding::new("nbd", Availability::Limited, format!("on Unix sockets only; TCP: {error}"))
        }
        (Err(error), _) => {
            HostFinding::new("nbd", Availability::No, format!("no Unix socket can be made: {error}"))
                .remedy("set TMPDIR to a directory on a local disk that this user may write to")
        }
    }
}

/// A finding for each tool, and one for the presence of any client.
pub(crate) fn clients() -> (Vec<HostFinding>, HostFinding) {
    let find_tool = |name: &str| match name {
        "qemu-system" => find(&format!("qemu-system-{}", std::env::consts::ARCH)),
        name => find(name),
    };
    let findings: Vec<HostFinding> = TOOLS
        .iter()
        .map(|(name, what, package)| match find_tool(name) {
            Some(path) => HostFinding::new(name, Availability::Yes, format!("{} ({what})", path.display())),
            None => HostFinding::new(name, Availability::No, format!("not installed ({what})"))
                .remedy(format!("apt-get install {package}")),
        })
        .collect();
    // The last tool, nbdkit, is no client.
    let found: Vec<&str> = findings[..TOOLS.len() - 1]
        .iter()
        .filter(|tool| tool.state == Availability::Yes)
        .map(|tool| tool.feature)
        .collect();
    let any = if found.is_empty() {
        HostFinding::new("client", Availability::No, "no program here can use a disk over NBD")
            .remedy("install one: apt-get install qemu-system-x86 qemu-utils")
    } else {
        HostFinding::new("client", Availability::Yes, found.join(", "))
    };
    (findings, any)
}

/// The finding about vhost-user, which needs shared memory. `kvm` is `true` if guests are known to run on the
/// processor.
pub(crate) fn vhost_user(kvm: bool) -> HostFinding {
    if rustix::fs::memfd_create("headstart-doctor", rustix::fs::MemfdFlags::CLOEXEC).is_err() {
        return HostFinding::new(
            "vhost-user",
            Availability::No,
            "this kernel has no memfd, which guests share memory by",
        )
        .remedy("use NBD, or a kernel from 3.17 on");
    }
    let pages = fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap_or_default();
    let detail = match pages.trim() {
        "" | "0" => "no huge pages are set aside (they are optional)".to_owned(),
        pages => format!("{pages} huge pages are set aside"),
    };
    let detail = format!(
        "memory is shared by memfd, preferably a sealed one (QEMU: memory-backend-memfd), which \
         cannot be shortened; {detail}"
    );
    if !kvm {
        // QEMU's emulation keeps code that it has translated, and does not see another process write to the guest's
        // memory: a boot sector that loads the next one over itself runs forever, with any vhost-user-blk server.
        let detail = format!("{detail}; without KVM, QEMU (TCG) does not boot from such a disk");
        return HostFinding::new("vhost-user", Availability::Limited, detail)
            .remedy("use NBD, or boot a kernel from a file: -kernel FILE -initrd FILE");
    }
    HostFinding::new("vhost-user", Availability::Yes, detail)
}

pub(crate) fn fuse() -> HostFinding {
    let device = Path::new("/dev/fuse");
    if let Err(error) = OpenOptions::new().read(true).write(true).open(device) {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => {
                "run it as root, or let this user open it, as most systems do: chmod 666 /dev/fuse"
            }
            _ => "modprobe fuse; in a container, give it the device /dev/fuse and the capability SYS_ADMIN",
        };
        let cause = format!("/dev/fuse cannot be opened: {error}");
        return HostFinding::new("fuse", Availability::No, cause).remedy(remedy);
    }
    if rustix::process::geteuid().is_root() {
        let can = "disks can be mounted as files, open to all users";
        return match too_old_to_keep() {
            None => {
                let can =
                    format!("{can}; the mounts of an agent's disks outlive the processes that serve them");
                HostFinding::new("fuse", Availability::Yes, can)
            }
            Some(release) => {
                let cannot = format!("{can}; on kernel {release} a mount ends with its disk's process");
                HostFinding::new("fuse", Availability::Limited, cannot)
                    .remedy("run Linux 6.9 or later where containers shall outlive the death of that process")
            }
        };
    }
    match find("fusermount3") {
        Some(_) => HostFinding::new(
            "fuse",
            Availability::Limited,
            "disks can be mounted as files, open to this user only",
        )
        .remedy("run it as root where a hypervisor of another user shall open them"),
        None => HostFinding::new("fuse", Availability::No, "fusermount3 is not installed")
            .remedy("apt-get install fuse3"),
    }
}

pub(crate) fn loop_devices() -> HostFinding {
    if find("losetup").is_none() {
        return HostFinding::new("loop", Availability::No, "losetup is not installed")
            .remedy("apt-get install mount");
    }
    match OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
        Ok(_) => HostFinding::new(
            "loop",
            Availability::Yes,
            "a disk that is mounted as a file can become a block device",
        ),
        Err(error) => {
            HostFinding::new("loop", Availability::No, format!("/dev/loop-control cannot be opened: {error}"))
                .remedy("run as root; modprobe loop")
        }
    }
}

pub(crate) fn kernel_nbd() -> HostFinding {
    match kernel_nbd::probe() {
        Ok(()) => HostFinding::new("kernel nbd", Availability::Yes, "disks can become /dev/nbdN"),
        Err(error) => refused("kernel nbd", &error),
    }
}

pub(crate) fn ublk() -> HostFinding {
    match ublk_server::probe() {
        Ok(kernel) => HostFinding::new(
            "ublk",
            Availability::Limited,
            format!("kernel {kernel} has it; EXPERIMENTAL here, and only in builds with that feature"),
        ),
        Err(error) => refused("ublk", &error),
    }
}

/// The way in which the snapshotter attaches the disks of images on this host.
pub(crate) fn attach_way() -> HostFinding {
    let best = BestWay::of_this_host();
    let state = if best.outlives { Availability::Yes } else { Availability::Limited };
    let finding = HostFinding::new("containers", state, format!("--attach-by {}: {}", best.way, best.why));
    if best.outlives {
        return finding;
    }
    finding.remedy("run Linux 6.9 or later, or load nbd on 5.14 or later: modprobe nbd")
}

/// The finding for an error of this project, which ends with its remedy, after a semicolon.
fn refused(feature: &'static str, error: &Error) -> HostFinding {
    let text = error.to_string();
    match text.split_once("; ") {
        Some((cause, remedy)) => HostFinding::new(feature, Availability::No, cause).remedy(remedy),
        None => HostFinding::new(feature, Availability::No, text),
    }
}
