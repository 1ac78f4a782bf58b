//! The way in which disks of images become block devices, as the command line says it.

use headstart_block::{Error, ErrorKind, Result};
use headstart_export::attach_way::{AttachWay, BestWay};
use headstart_export::{kernel_nbd, ublk};
use std::fmt;

/// The remedy where a way is not there.
const REMEDY: &str = "start the snapshotter with --attach-by auto, which takes what this host has";

/// The way in which the disks of images become block devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum AttachBy {
    /// The best way on this host.
    Auto,
    /// The kernel's ublk driver; experimental.
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
            Self::Nbd => self.unless_lacking(kernel_nbd::probe_kept(), self.loading()),
            Self::Ublk if cfg!(feature = "ublk") => {
                self.unless_lacking(ublk::probe().map(drop), self.loading())
            }
            Self::Ublk => {
                self.unless_lacking(Err(Error::unsupported("this build of headstart has no ublk")), None)
            }
        }
    }

    /// The remedy for a driver that is on this host and only not loaded.
    fn loading(self) -> Option<&'static str> {
        match self {
            Self::Nbd if kernel_nbd::is_only_unloaded() => Some(kernel_nbd::LOAD),
            Self::Ublk if cfg!(feature = "ublk") && ublk::is_only_unloaded() => Some(ublk::LOAD),
            _ => None,
        }
    }

    /// The remedies of drivers are for single disks, apart from `loading` a module.
    fn unless_lacking(self, probed: Result<()>, loading: Option<&str>) -> Result<()> {
        probed.map_err(|error| {
            let remedy =
                loading.map_or_else(|| REMEDY.to_owned(), |loading| format!("{loading}, or {REMEDY}"));
            let error = error.with_kind(ErrorKind::Unsupported).with_remedy(remedy);
            error.about(format_args!("--attach-by {self}"))
        })
    }
}

/// The way to try next for a disk that could not be attached in one way; `None` if no other way would do better: only
/// errors of the way itself have another way as a remedy.
pub(super) fn next_way((way, fallback): (AttachWay, Fallback), error: ErrorKind) -> Option<AttachWay> {
    let has_other = way != AttachWay::Loop && fallback == Fallback::Loop;
    (has_other && error == ErrorKind::NoDevice).then_some(AttachWay::Loop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_way_itself_lead_to_another_one() {
        use ErrorKind::{Conflict, Denied, Invalid, NoDevice, NoSpace, NotFound, Unavailable, Unsupported};
        for way in [AttachWay::Nbd, AttachWay::Ublk] {
            assert_eq!(next_way((way, Fallback::Loop), NoDevice), Some(AttachWay::Loop));
            assert_eq!(next_way((way, Fallback::None), NoDevice), None);
            for other in [Conflict, Denied, Invalid, NoSpace, NotFound, Unavailable, Unsupported] {
                assert_eq!(next_way((way, Fallback::Loop), other), None, "{other:?}");
            }
        }
        assert_eq!(next_way((AttachWay::Loop, Fallback::Loop), NoDevice), None);
    }

    #[test]
    fn a_way_that_this_host_has_not_is_named_with_what_helps() {
        // The driver's own remedy is for a single disk, whatever it begins with.
        let lacks =
            || Err(Error::unsupported("this kernel has no nbd; module").remedy("load it: into another"));
        let text = |loading| AttachBy::Nbd.unless_lacking(lacks(), loading).unwrap_err().to_string();
        let cause = "--attach-by nbd: this kernel has no nbd; module";
        assert_eq!(text(Some(kernel_nbd::LOAD)), format!("{cause}; {}, or {REMEDY}", kernel_nbd::LOAD));
        assert_eq!(text(None), format!("{cause}; {REMEDY}"));
        assert!(AttachBy::Nbd.unless_lacking(Ok(()), None).is_ok() && AttachBy::Auto.check().is_ok());
    }
}
