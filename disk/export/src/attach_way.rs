//! The way in which the disk of a container's image becomes a block device of this host.
//!
//! The ways differ in the death of the process that serves the disk, under programs that read from it:
//!
//! | way | requests at that moment |
//! |---|---|
//! | a loop device over a file of FUSE that a keeper keeps (Linux 6.9) | go on at once with the next process |
//! | the kernel's ublk driver (Linux 6.5) | go on at once with the next process |
//! | the kernel's nbd driver (Linux 5.14) | are sent again when their time is over; others go on at once |
//! | a loop device over a file of FUSE | fail, and so do all after them |
//!
//! ublk does what the first does, with less work for each read. But its server is not in every build, and is tested in
//! an emulated guest with Linux 6.12 only: it is taken only if it is asked for.

use crate::fuse::too_old_to_keep;
use crate::kernel_nbd::probe_kept;
use headstart_block::Result;
use std::fmt;

/// A way in which the disk of an image becomes a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachWay {
    /// By the kernel's ublk driver.
    Ublk,
    /// By the kernel's nbd driver.
    Nbd,
    /// By a loop device over a file of FUSE.
    Loop,
}

impl fmt::Display for AttachWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::Loop => "loop",
        })
    }
}

/// The best way on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestWay {
    /// The way.
    pub way: AttachWay,
    /// The reason, in words.
    pub why: String,
    /// `true` if a disk outlives the process that serves it.
    pub outlives: bool,
}

impl BestWay {
    /// The best way on this host.
    #[must_use]
    pub fn of_this_host() -> Self {
        Self::of(too_old_to_keep(), &probe_kept())
    }

    /// The best way on a host whose kernel is of the release `too_old`, unless that is new enough to keep files of
    /// FUSE, and whose nbd driver can keep a device or lacks something.
    fn of(too_old: Option<String>, nbd: &Result<()>) -> Self {
        let Some(release) = too_old else {
            let why = "a disk outlives its process, and reads wait for the next one a moment only";
            return Self { way: AttachWay::Loop, why: why.to_owned(), outlives: true };
        };
        match nbd {
            Ok(()) => {
                let why = format!(
                    "a disk outlives its process, which a file of FUSE does not on kernel {release}; reads at the \
                     moment of its death wait until their time is over"
                );
                Self { way: AttachWay::Nbd, why, outlives: true }
            }
            Err(error) => {
                let why =
                    format!("on kernel {release} a disk ends with its process; nbd would keep it: {error}");
                Self { way: AttachWay::Loop, why, outlives: false }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::Error;

    #[test]
    fn a_disk_that_outlives_its_process_at_once_comes_first() {
        let lacks = || Err(Error::unsupported("the kernel's nbd module is not loaded"));
        for nbd in [Ok(()), lacks()] {
            let best = BestWay::of(None, &nbd);
            assert_eq!((best.way, best.outlives), (AttachWay::Loop, true));
        }
        let old = || Some("6.1.0-50-cloud-amd64".to_owned());
        let best = BestWay::of(old(), &Ok(()));
        assert_eq!((best.way, best.outlives), (AttachWay::Nbd, true));
        assert!(best.why.contains("6.1.0-50"), "{best:?}");
        let best = BestWay::of(old(), &lacks());
        assert_eq!((best.way, best.outlives), (AttachWay::Loop, false));
        assert!(best.why.contains("not loaded"), "{best:?}");
    }
}
