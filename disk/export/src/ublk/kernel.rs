//! Facts about ublk in the running kernel: its own, and known faults.

use crate::tool;
use headstart_block::{Error, ErrorKind, Result};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;

/// The first kernel that reports its features; those before it had other commands.
const FIRST: (u32, u32) = (6, 5);

/// The remedy for a module that is not loaded.
pub const LOAD: &str = "load it: modprobe ublk_drv";

/// A kernel's release: `6.17.0-1015-azure`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Release {
    text: String,
    major: u32,
    minor: u32,
    patch: u32,
    /// The suffix of a distribution: `-1015-azure`.
    suffix: String,
}

/// The known facts about a kernel's ublk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    TooOld,
    Crashes(&'static str),
}

impl Release {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let numbers_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (numbers, suffix) = text.split_at(numbers_end);
        let mut numbers = numbers.split('.').map(str::parse);
        let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        let patch = numbers.next().and_then(std::result::Result::ok).unwrap_or(0);
        Some(Self { text: text.to_owned(), major, minor, patch, suffix: suffix.to_owned() })
    }

    /// The verdict on a release. Kernels that took the change "NUMA-aware memory allocation" (mainline 529d4d632788)
    /// without the one before it ("reorder `tag_set` initialization", 011af85ccd87) follow a null pointer when a device
    /// is made. Those are 6.18.4 and 6.18.5, and Ubuntu's 6.17 for clouds (reported: 1015-azure, 1017-aws, 1018-azure).
    /// No source names the build of those that has the repair, so all of Ubuntu's 6.17 are taken for broken.
    fn verdict(&self) -> Verdict {
        match (self.major, self.minor, self.patch) {
            version if (version.0, version.1) < FIRST => Verdict::TooOld,
            (6, 18, 4 | 5) => Verdict::Crashes("Linux 6.18.4 and 6.18.5 crash when a ublk device is made"),
            (6, 17, 0) if self.suffix.starts_with('-') => {
                Verdict::Crashes("Ubuntu's kernels 6.17 are reported to crash when a ublk device is made")
            }
            _ => Verdict::Fine,
        }
    }
}

/// The places to look at on this host; other places in tests.
#[derive(Clone, Debug)]
struct Host {
    control: PathBuf,
    proc: PathBuf,
    modules: PathBuf,
}

impl Host {
    fn this() -> Self {
        Self { control: "/dev/ublk-control".into(), proc: "/proc".into(), modules: "/lib/modules".into() }
    }

    fn check(&self, trust_kernel: bool) -> Result<String> {
        let release = fs::read_to_string(self.proc.join("sys/kernel/osrelease")).unwrap_or_default();
        let release = Release::parse(&release)
            .ok_or_else(|| lacks("the kernel's release is unreadable", "use --nbd or --fuse"))?;
        match release.verdict() {
            Verdict::TooOld => {
                let cause = format!("kernel {} is too old for ublk", release.text);
                return Err(lacks(cause, "use a kernel from 6.5 on, or --nbd, or --fuse"));
            }
            Verdict::Crashes(why) if !trust_kernel => {
                return Err(lacks(why, "use 6.18.6 or later, or --nbd, or --fuse"));
            }
            _ => {}
        }
        self.check_control(&release)?;
        self.check_ring()?;
        Ok(release.text)
    }

    /// Checks that the driver exists and can be opened.
    fn check_control(&self, release: &Release) -> Result<()> {
        match OpenOptions::new().read(true).write(true).open(&self.control) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.has_module(&release.text) {
                    Err(lacks("the kernel's module ublk_drv is not loaded", LOAD))
                } else {
                    let cause = "this kernel has no ublk";
                    Err(lacks(cause, "use one that was built with CONFIG_BLK_DEV_UBLK, or --nbd, or --fuse"))
                }
            }
            Err(error) => Err(Error::io("cannot open the ublk driver's control device", error)
                .about(self.control.display())
                .remedy("run it as root, or give the device to the container")),
        }
    }

    /// Checks `io_uring`, through which ublk speaks, and which administrators turn off.
    fn check_ring(&self) -> Result<()> {
        let disabled = fs::read_to_string(self.proc.join("sys/kernel/io_uring_disabled")).unwrap_or_default();
        if disabled.trim() == "2" {
            return Err(lacks(
                "io_uring, which ublk needs, is turned off",
                "sysctl kernel.io_uring_disabled=0",
            ));
        }
        Ok(())
    }

    /// `true` if the driver is not loaded, and could be.
    fn is_only_unloaded(&self) -> bool {
        let release = fs::read_to_string(self.proc.join("sys/kernel/osrelease")).unwrap_or_default();
        !self.control.exists() && self.has_module(release.trim())
    }

    fn has_module(&self, release: &str) -> bool {
        tool::has_module(&self.modules.join(release), "ublk_drv")
    }
}

fn lacks(cause: impl Into<std::borrow::Cow<'static, str>>, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, cause).remedy(remedy)
}

/// `true` if the kernel's ublk module is on this host and only not loaded: [`LOAD`] is the remedy then.
#[must_use]
pub fn is_only_unloaded() -> bool {
    Host::this().is_only_unloaded()
}

/// Returns the release of this host's kernel if its ublk driver can be used and is not known to crash.
/// Creates no device.
///
/// # Errors
/// [`ErrorKind::Unsupported`]; the error names the missing or broken part and the remedy.
pub fn probe() -> Result<String> {
    Host::this().check(false)
}

/// As [`probe`], but a kernel that is known to crash passes.
#[cfg(feature = "ublk")]
pub(super) fn probe_trusting(trust_kernel: bool) -> Result<String> {
    Host::this().check(trust_kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn verdict(release: &str) -> Verdict {
        Release::parse(release).unwrap().verdict()
    }

    #[test]
    fn kernels_that_crash_are_known() {
        for release in ["6.18.4", "6.18.5", "6.18.4-arch1-1", "6.17.0-1015-azure", "6.17.0-1017-aws"] {
            assert!(matches!(verdict(release), Verdict::Crashes(_)), "{release}");
        }
        for release in
            ["6.5.0", "6.8.0-1052-azure", "6.17.3", "6.18.3", "6.18.6", "6.18.44-x", "7.0.0-1008-aws"]
        {
            assert_eq!(verdict(release), Verdict::Fine, "{release}");
        }
        for release in ["5.15.0-91-generic", "6.1.0-18-amd64", "6.4.9\n"] {
            assert_eq!(verdict(release), Verdict::TooOld, "{release}");
        }
        assert_eq!(Release::parse("nonsense"), None);
    }

    /// A host with everything.
    fn host(root: &Path, release: &str) -> Host {
        let kernel = root.join("proc/sys/kernel");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("osrelease"), format!("{release}\n")).unwrap();
        fs::write(kernel.join("io_uring_disabled"), "0\n").unwrap();
        fs::write(root.join("ublk-control"), "").unwrap();
        Host { control: root.join("ublk-control"), proc: root.join("proc"), modules: root.join("modules") }
    }

    #[test]
    fn missing_parts_of_the_kernel_are_named_with_their_remedy() {
        let root = tempfile::tempdir().unwrap();
        let whole = host(root.path(), "6.18.44");
        assert_eq!(whole.check(false).unwrap(), "6.18.44");
        let refusal = |host: &Host| host.check(false).unwrap_err().to_string();
        fs::write(whole.proc.join("sys/kernel/io_uring_disabled"), "2\n").unwrap();
        assert!(refusal(&whole).contains("sysctl"));
        fs::write(whole.proc.join("sys/kernel/io_uring_disabled"), "0\n").unwrap();
        fs::remove_file(&whole.control).unwrap();
        assert!(refusal(&whole).contains("CONFIG_BLK_DEV_UBLK"));
        fs::create_dir_all(root.path().join("modules/6.18.44")).unwrap();
        let list = "kernel/drivers/block/loop.ko.xz:\nkernel/drivers/block/ublk_drv.ko.xz: kernel/x.ko\n";
        fs::write(root.path().join("modules/6.18.44/modules.dep"), list).unwrap();
        assert!(refusal(&whole).contains("modprobe ublk_drv"));
    }

    #[test]
    fn a_kernel_that_crashes_is_refused_unless_trusted() {
        let root = tempfile::tempdir().unwrap();
        let host = host(root.path(), "6.18.5");
        assert_eq!(host.check(false).unwrap_err().kind(), ErrorKind::Unsupported);
        host.check(true).unwrap();
    }
}
