//! The host's own records in the journal: its flash, and the names of vSSDs.

use super::job::Owned;
use headstart_block::{Error, Result};
use headstart_flash::device::Geometry;
use headstart_flash::journal::JournalRecord;
use headstart_flash::{VssdId, VssdKind};
use serde::{Deserialize, Serialize};

/// A record of the host's. New kinds are added at the end: the number of a kind is its form on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Meta {
    /// The flash that the journal is about.
    Flash(Geometry),
    /// No vSSD below this number is made any more.
    Next(u32),
    /// The name of a vSSD, and its user's choices.
    Made { vssd: VssdId, name: String, kind: u8, channels: Vec<u16>, grows: bool },
    /// The time since which an unsold vSSD is there, on the host's clock, in microseconds.
    Since { vssd: VssdId, at_us: u64 },
    /// Unsold vSSDs were sold, the latest last.
    Sold(Vec<Sold>),
    /// The wear of channels was looked at.
    Looked(Looked),
    /// Erasures for harvest VMs by channel, since the flash was made.
    HarvestWear(Vec<u64>),
    /// The blocks that are erased, one bit each, the first in the lowest bit of the first byte. It counts only as the
    /// last record of a journal that was closed in good order.
    Clean(Vec<u8>),
}

impl Meta {
    pub(crate) fn made(about: About) -> Self {
        let About { id, name, kind, channels, grows } = about;
        Self::Made { vssd: id, name, kind: kind as u8, channels, grows }
    }

    pub(crate) fn record(&self) -> Result<JournalRecord> {
        Ok(JournalRecord::Host { meta: encoded(self)? })
    }

    pub(crate) fn of(bytes: &[u8]) -> Result<Self> {
        decoded(bytes, "a record of the host")
    }
}

/// The facts about a volume beside its FTL.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) id: VssdId,
    pub(crate) name: String,
    pub(crate) kind: VssdKind,
    pub(crate) channels: Vec<u16>,
    pub(crate) grows: bool,
}

/// An unsold vSSD that was sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sold {
    /// Bytes of its channels.
    pub(crate) size: u64,
    /// The time for which it was unsold, in seconds.
    pub(crate) lasted_s: u64,
}

/// The results of the last look at channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Looked {
    /// The time, in microseconds.
    pub(crate) at_us: u64,
    /// Erasures of each channel until then.
    pub(crate) totals: Vec<u64>,
    /// The swap that is planned since.
    pub(crate) swap: Option<(Owned, Owned)>,
}

/// A record in the form that the journal keeps.
pub(crate) fn encoded<T: Serialize>(what: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(what).map_err(|error| Error::invalid("cannot be encoded").caused_by(error))
}

/// A record from the form that the journal keeps.
pub(crate) fn decoded<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &'static str) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| {
        let cause = format!("{what} in it is not one that this version knows");
        Error::unsupported(cause).caused_by(error).remedy("use the version that wrote it")
    })
}

/// The kind of this number; unknown ones are unsold, which no VM can use.
pub(crate) fn kind_of(number: u8) -> VssdKind {
    VssdKind::ALL.into_iter().find(|kind| *kind as u8 == number).unwrap_or(VssdKind::Unsold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_keep_their_numbers() {
        assert_eq!(VssdKind::ALL.map(|kind| kind as u8), [0, 1, 2]);
        assert_eq!(VssdKind::ALL.map(|kind| kind_of(kind as u8)), VssdKind::ALL);
    }
}
