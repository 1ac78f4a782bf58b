//! The way in which disks of images become block devices, as the command line says it.

use headstart_block::{Error, Result};
use headstart_export::attach_way::{AttachWay, BestWay};
use headstart_export::{kernel_nbd, ublk};
use std::fmt;

/// The remedy where a way is not there.
const REMEDY: &str = "start the snapshotter with --attach-by auto, which takes what this host has";

/// Words of errors of the kernel's nbd driver and its devices, as they are after the names of disks and images.
const WORDS_OF_NBD: [&str; 5] =
    ["nbd driver", "nbd module", "nbd device", "another disk is attached to it", "that is not whole sectors"];

/// The way in which the disks of images become block devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum AttachBy {
    /// The best way on this host.
    Auto,
    /// The kernel's ublk driver; experimental, and files fail when the process of their disk dies.
    Ublk,
    /// The kernel's nbd driver.
    Nbd,
    /// A loop device over a file of FUSE.
    Loop,
}

impl fmt::Display for AttachBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::Loop => "loop",
        })
    }
}

/// The reaction where a disk cannot be attached in the way that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// An error: the way was asked for.
    None,
    /// A loop device, if the way is what failed.
    Loop,
}

impl AttachBy {
    pub(super) fn way(self) -> (AttachWay, Fallback) {
        match self {
            Self::Auto => (BestWay::of_this_host().way, Fallback::Loop),
            Self::Ublk => (AttachWay::Ublk, Fallback::None),
            Self::Nbd => (AttachWay::Nbd, Fallback::None),
            Self::Loop => (AttachWay::Loop, Fallback::None),
        }
    }

    /// Checks that this host has the driver that was asked for.
    ///
    /// # Errors
    /// [`headstart_block::ErrorKind::Unsupported`] with the missing part.
    pub(super) fn check(self) -> Result<()> {
        match self {
            Self::Auto | Self::Loop => Ok(()),
            Self::Nbd => self.unless_lacking(kernel_nbd::probe_kept()),
            Self::Ublk if cfg!(feature = "ublk") => self.unless_lacking(ublk::probe().map(drop)),
            Self::Ublk => self.unless_lacking(Err(Error::unsupported("this build of headstart has no ublk"))),
        }
    }

    fn unless_lacking(self, probed: Result<()>) -> Result<()> {
        probed.map_err(|error| {
            // The driver's own remedies are for single disks, apart from that of a module that is only not loaded.
            let text = error.to_string();
            let (cause, own) = text.split_once("; ").unwrap_or((&text, ""));
            let remedy =
                if own.starts_with("load it") { format!("{own}, or {REMEDY}") } else { REMEDY.to_owned() };
            Error::unsupported(cause.to_owned()).about(format_args!("--attach-by {self}")).remedy(remedy)
        })
    }
}

/// The way to try next for a disk that could not be attached in one way; `None` if no other way would do better.
/// `error` is what the agent has said: only errors of the way itself have another way as a remedy.
pub(super) fn next_way((way, fallback): (AttachWay, Fallback), error: &str) -> Option<AttachWay> {
    let is_of_nbd = error.split_whitespace().any(|word| word.starts_with("/dev/nbd"))
        || WORDS_OF_NBD.iter().any(|words| error.contains(words));
    (way == AttachWay::Nbd && fallback == Fallback::Loop && is_of_nbd).then_some(AttachWay::Loop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_way_itself_lead_to_another_one() {
        let auto = (AttachWay::Nbd, Fallback::Loop);
        for (error, is_of_way) in [
            ("the kernel's nbd module is not loaded; load it: modprobe nbd nbds_max=16", true),
            ("this kernel has no nbd module", true),
            ("/dev/nbd3: another disk is attached to it; detach that one, or say auto", true),
            ("only root may attach a disk to /dev/nbdN; run it as root", true),
            ("the kernel's nbd driver refuses: Invalid argument (os error 22)", true),
            ("cannot speak to the kernel's nbd driver: Operation not permitted (os error 1)", true),
            ("another disk is attached to it; detach that one, or say auto", true),
            ("this kernel does not say which disk an nbd device has; use a kernel from 5.14 on", true),
            ("the kernel would cut off the end of a disk that is not whole sectors", true),
            ("oci://reg.lan/app@sha256:00: the registry answered 401 Unauthorized", false),
            ("oci://reg.lan/dev/nbd-tools:1: is not there", false),
            ("the agent has not answered for 150 s", false),
            ("/run/headstart/agent.sock: no agent answers: Connection refused", false),
            ("blob sha256:00: is damaged", false),
            ("/var/cache/headstart: no space left", false),
            ("no space is left on the device", false),
        ] {
            assert_eq!(next_way(auto, error).is_some(), is_of_way, "{error}");
            for other in [(AttachWay::Nbd, Fallback::None), (AttachWay::Loop, Fallback::Loop)] {
                assert_eq!(next_way(other, error), None, "{other:?}");
            }
        }
    }

    #[test]
    fn a_way_that_this_host_has_not_is_named_with_what_helps() {
        let lacks = |cause: &'static str, remedy: &'static str| Err(Error::unsupported(cause).remedy(remedy));
        let text = |lacking: Result<()>| AttachBy::Nbd.unless_lacking(lacking).unwrap_err().to_string();
        assert_eq!(
            text(lacks("the kernel's nbd module is not loaded", "load it: modprobe nbd nbds_max=16")),
            format!(
                "--attach-by nbd: the kernel's nbd module is not loaded; load it: modprobe nbd nbds_max=16, or {REMEDY}"
            )
        );
        assert_eq!(
            text(lacks("this kernel has no nbd module", "export the disk with --fuse")),
            format!("--attach-by nbd: this kernel has no nbd module; {REMEDY}")
        );
        assert!(AttachBy::Nbd.unless_lacking(Ok(())).is_ok() && AttachBy::Auto.check().is_ok());
    }
}
