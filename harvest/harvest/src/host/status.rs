//! The requests to a host and its answers: plain data, the same in memory, in JSON and over REST.
//!
//! Sizes are bytes, bandwidths channels, times whole seconds from now (`left_s`, `ago_s`), so that a client does not
//! need the host's clock. With the feature `schema` all of it describes itself to OpenAPI.

pub use crate::VssdKind as Kind;
use crate::{GssdId, VssdId};
use headstart_broker::Counters;
use serde::{Deserialize, Serialize};
use std::time::Duration;
#[cfg(feature = "schema")]
use utoipa::ToSchema;

/// A vSSD that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdSpec {
    /// Its kind.
    pub kind: Kind,
    /// Channels that it owns; `None`: as many as its size takes, one if no size is given.
    pub channels: Option<u16>,
    /// Its size in bytes; `None`: all that the channels hold, less the flash's own need.
    pub size: Option<u64>,
}

/// A vSSD as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct VssdStatus {
    /// Its name.
    pub name: String,
    /// Its number, used once.
    #[cfg_attr(feature = "schema", schema(value_type = u32))]
    pub id: VssdId,
    /// Its kind.
    pub kind: Kind,
    /// Bytes of the disk that its VM sees.
    pub size: u64,
    /// Channels that it owns.
    pub channels: u16,
    /// Bytes of flash that hold what its VM wrote.
    pub used: u64,
    /// Bytes of its flash that are gSSDs, in the pool or leased.
    pub lent: u64,
    /// Of those, bytes that are erased and can be requested.
    #[serde(default)]
    pub offered: u64,
    /// Of those, bytes that can be requested once they are erased.
    #[serde(default)]
    pub erasing: u64,
    /// Of those, bytes that harvest vSSDs have on lease.
    #[serde(default)]
    pub leased: u64,
    /// Bytes of flash that it has on lease.
    pub borrowed: u64,
    /// The gSSDs that it has on lease.
    pub leases: Vec<LeaseStatus>,
    /// Bytes that its VM read since the host was opened.
    pub read_bytes: u64,
    /// Bytes that its VM wrote since then.
    pub written_bytes: u64,
    /// Of all erasures of its channels since the flash was made, those for harvest VMs, 0 to 1.
    pub harvest_wear: f64,
    /// Its forecast need, or the amount that it is forecast to spare; none while too little is known.
    pub forecast: Option<ForecastStatus>,
}

/// The forecast of a vSSD: the amount that it will need (a harvest VM's) or can spare (another).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct ForecastStatus {
    /// Channels.
    pub bandwidth: u16,
    /// Bytes.
    pub capacity: u64,
    /// The seconds for which that holds.
    pub lasts_s: u64,
}

/// A gSSD in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct LeaseStatus {
    /// Its number, used once.
    #[cfg_attr(feature = "schema", schema(value_type = u64))]
    pub id: GssdId,
    /// The vSSD that has it.
    pub vssd: String,
    /// The vSSD that owns the flash.
    pub home: String,
    /// Channels.
    pub bandwidth: u16,
    /// Bytes.
    pub capacity: u64,
    /// Seconds until the requested time is over; 0 if it is over.
    pub left_s: u64,
    /// Seconds for which its lender can spare it, as far as is known; 0 if that time is over.
    pub spare_s: u64,
    /// `true` if it is being taken back: its data moves to other flash, or is lost.
    pub leaving: bool,
}

/// The request of a harvest VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Bytes, at least: gSSDs are lent whole.
    pub capacity: u64,
    /// Channels, at least.
    #[serde(default = "one")]
    pub bandwidth: u16,
    /// The time for which it is requested, in seconds.
    #[serde(rename = "duration_s", with = "seconds")]
    #[cfg_attr(feature = "schema", schema(value_type = u64))]
    pub duration: Duration,
    /// `true` if less is better than nothing.
    #[serde(default)]
    pub partial: bool,
}

fn one() -> u16 {
    1
}

/// The host as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct HostStatus {
    /// The flash.
    pub flash: FlashStatus,
    /// gSSDs that are not on lease.
    pub pool: Vec<PooledStatus>,
    /// Those in use.
    pub leases: Vec<LeaseStatus>,
    /// The counts of the broker.
    pub broker: Counters,
    /// The journal.
    pub journal: JournalStatus,
    /// The reason why no decisions are made and nothing becomes durable any more, until the host is opened again.
    pub stopped: Option<String>,
}

/// A gSSD that is not on lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct PooledStatus {
    /// Its number, used once.
    #[cfg_attr(feature = "schema", schema(value_type = u64))]
    pub id: GssdId,
    /// The vSSD whose flash it is.
    pub home: String,
    /// The vSSD that owns the flash.
    pub bandwidth: u16,
    /// Bytes.
    pub capacity: u64,
    /// Seconds for which its lender can spare it, as far as is known.
    pub spare_s: u64,
    /// `true` if it is erased and can be requested; otherwise it is on its way into the pool or back to its lender.
    pub ready: bool,
    /// `true` if it is being erased, and can be requested afterwards.
    #[serde(default)]
    pub erasing: bool,
}

/// The flash of a host. Counts start when the host was opened, erasures when the flash was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct FlashStatus {
    /// The place of the flash: a path, or `emulated`.
    pub place: String,
    /// Bytes in all.
    pub size: u64,
    /// Channels.
    pub channels: u16,
    /// Of those, channels that belong to no vSSD.
    pub free_channels: u16,
    /// Bytes of a flash block.
    pub block_size: u64,
    /// Flash blocks that are not used any more.
    pub bad_blocks: u64,
    /// Flash pages that could not be read any more, and are lost.
    pub unreadable_pages: u64,
    /// Erasures of flash blocks.
    pub erasures: u64,
    /// Of those, erasures for harvest VMs: of flash that they wrote, or that was lent to them or came back.
    pub harvest_erasures: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes programmed.
    pub programmed_bytes: u64,
    /// Bytes that VMs wrote: bytes programmed beyond these were collected, or read, changed and written again.
    pub written_bytes: u64,
    /// Programs that failed although the flash is not worn, such as on a full file system.
    #[serde(default)]
    pub failed_programs: u64,
    /// The cause of the last of these, if none has succeeded since.
    #[serde(default)]
    pub failing: Option<String>,
}

/// The journal of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct JournalStatus {
    /// Bytes that it has on disk.
    pub bytes: u64,
    /// Records written since the host was opened.
    pub records: u64,
    /// Times that it was made durable since then.
    pub syncs: u64,
    /// Snapshots that replaced older records since then.
    pub snapshots: u64,
    /// The reason why nothing is written, made or lent while the journal's disk is full; work resumes by itself.
    pub full: Option<String>,
}

/// Something that a VM's user has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
pub struct Report {
    /// Its number: 1 is the first since the host was opened.
    pub number: u64,
    /// The age of the report, in seconds.
    pub ago_s: u64,
    /// The vSSD.
    pub vssd: String,
    /// The kind of the event.
    pub what: ReportKind,
    /// In words: the event, its cause, and what can be done.
    pub text: String,
}

/// The kinds of events of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ReportKind {
    /// The VM lost data with a lease.
    Evicted,
    /// The VM needs more than there is. It keeps its leases.
    UnderHarvest,
    /// A lease was to be given back and holds data that fits nowhere else. The VM keeps it.
    Kept,
    /// A lease ended and its data was moved to other flash.
    Expired,
    /// Flash pages cannot be read any more, and are lost: of any vSSD.
    Unreadable,
}

impl ReportKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::UnderHarvest => "under-harvest",
            Self::Kept => "kept",
            Self::Expired => "expired",
            Self::Unreadable => "unreadable",
        }
    }
}

/// [`Duration`] as whole seconds.
mod seconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(time.as_secs())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_secs)
    }
}
