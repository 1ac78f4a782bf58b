//! The requests to a host and its answers: plain data. All types except [`VssdSpec`] have OpenAPI schemas, and the same
//! fields in memory, in JSON and over REST.
//!
//! Sizes are in bytes, bandwidths in channels, and durations in whole seconds. A moment is given by its distance from
//! now (`left_s`, `ago_s`), so that a client does not need the host's clock.

use headstart_broker::Counters;
use headstart_flash::{GssdId, VssdId, VssdKind};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// The properties of a vSSD that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VssdSpec {
    /// The kind of the vSSD.
    pub kind: VssdKind,
    /// Number of channels that it is to own. `None`: as many as its size needs, or one if no size is given.
    pub channels: Option<u16>,
    /// Size in bytes. `None`: all that its channels hold, except the spare flash that is needed for garbage
    /// collection.
    pub size: Option<u64>,
}

/// The present state of a vSSD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VssdStatus {
    /// The name of the vSSD.
    pub name: String,
    /// The number of the vSSD, which is never used again.
    #[schema(value_type = u32)]
    pub id: VssdId,
    /// The kind of the vSSD.
    pub kind: VssdKind,
    /// Size in bytes of the disk that its VM sees.
    pub size: u64,
    /// Number of channels that it owns.
    pub channels: u16,
    /// Bytes of flash that hold what its VM wrote.
    pub used: u64,
    /// Bytes of its own flash that it lends, leased or not.
    pub lent: u64,
    /// Bytes of its lent flash that are erased and can be requested.
    #[serde(default)]
    pub offered: u64,
    /// Bytes of its lent flash that are being erased, and can be requested afterwards.
    #[serde(default)]
    pub erasing: u64,
    /// Bytes of its lent flash that harvest VMs have on lease.
    #[serde(default)]
    pub leased: u64,
    /// Bytes of other vSSDs' flash that it has on lease.
    pub borrowed: u64,
    /// The leases by which it has other vSSDs' flash.
    pub leases: Vec<LeaseStatus>,
    /// Bytes that its VM has read since the host was opened.
    pub read_bytes: u64,
    /// Bytes that its VM has written since the host was opened.
    pub written_bytes: u64,
    /// Share of the erasures on its channels, since the flash was made, that were made for harvest VMs, 0 to
    /// 1.
    pub harvest_wear: f64,
    /// The newest forecast of the vSSD's need (harvest VM) or spare flash (others); null while too little is known.
    pub forecast: Option<ForecastStatus>,
}

/// A forecast for a vSSD: the flash that it will need (harvest VM) or can spare (others).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastStatus {
    /// Number of channels.
    pub bandwidth: u16,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Duration for which the forecast holds, in seconds.
    pub lasts_s: u64,
}

/// A lease: flash that one vSSD lends to another, in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseStatus {
    /// The number of the lease, which is never used again.
    #[schema(value_type = u64)]
    pub id: GssdId,
    /// The name of the vSSD that has the flash on lease.
    pub vssd: String,
    /// The name of the vSSD that owns the flash.
    pub home: String,
    /// Number of channels that the flash is on.
    pub bandwidth: u16,
    /// Size of the flash in bytes.
    pub capacity: u64,
    /// Seconds until the requested duration is over; 0 if it is over.
    pub left_s: u64,
    /// Seconds for which the lender is expected to spare the flash; 0 if that time is over.
    pub spare_s: u64,
    /// `true` if the flash is being taken back: its data is moved to other flash, or is lost.
    pub leaving: bool,
}

/// A request of a harvest VM for flash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Wish)]
pub struct HarvestRequest {
    /// Bytes, at least. More may be granted, because flash is lent in whole gSSDs.
    pub capacity: u64,
    /// Number of channels, at least.
    #[serde(default = "one")]
    pub bandwidth: u16,
    /// Duration of the request, in seconds.
    #[serde(rename = "duration_s", with = "seconds")]
    #[schema(value_type = u64)]
    pub duration: Duration,
    /// `true` to accept less than requested if there is not enough.
    #[serde(default)]
    pub partial: bool,
}

fn one() -> u16 {
    1
}

/// The present state of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostStatus {
    /// The state of the flash.
    pub flash: FlashStatus,
    /// Lent flash that no harvest VM has on lease.
    pub pool: Vec<PooledStatus>,
    /// Leases: lent flash that harvest VMs use.
    pub leases: Vec<LeaseStatus>,
    /// Counts of the decisions on lending since the host was opened.
    pub broker: Counters,
    /// The state of the journal.
    pub journal: JournalStatus,
    /// The cause for which the host has stopped: nothing is decided or becomes durable until the host is opened
    /// again. Null while the host works.
    pub stopped: Option<String>,
}

/// Flash that a vSSD lends and that no harvest VM has on lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PooledStatus {
    /// The number of the gSSD (lent flash), which is never used again; the number of its lease when it is
    /// leased.
    #[schema(value_type = u64)]
    pub id: GssdId,
    /// The name of the vSSD that owns the flash.
    pub home: String,
    /// Number of channels that the flash is on.
    pub bandwidth: u16,
    /// Size of the flash in bytes.
    pub capacity: u64,
    /// Seconds for which the lender is expected to spare the flash; 0 if that time is over.
    pub spare_s: u64,
    /// `true` if the flash is erased and can be requested; otherwise it is being made ready, or is on its way
    /// back to its lender.
    pub ready: bool,
    /// `true` if the flash is being erased, and can be requested afterwards.
    #[serde(default)]
    pub erasing: bool,
}

/// The state of a host's flash. Erasures are counted from when the flash was made, all else from when the
/// host was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlashStatus {
    /// The path of the flash, or `emulated`.
    pub place: String,
    /// Size of the flash in bytes.
    pub size: u64,
    /// Number of channels of the flash.
    pub channels: u16,
    /// Number of channels that belong to no vSSD.
    pub free_channels: u16,
    /// Size of a flash block in bytes.
    pub block_size: u64,
    /// Number of bad flash blocks, which are no longer used.
    pub bad_blocks: u64,
    /// Number of flash pages that could not be read any more, and are lost.
    pub unreadable_pages: u64,
    /// Number of erasures of flash blocks.
    pub erasures: u64,
    /// Number of erasures that were made for harvest VMs: of flash that they wrote, or that was lent to them
    /// or came back.
    pub harvest_erasures: u64,
    /// Bytes read from flash.
    pub read_bytes: u64,
    /// Bytes programmed to flash.
    pub programmed_bytes: u64,
    /// Bytes that VMs wrote. More bytes are programmed: by garbage collection, and by writes of parts of
    /// pages.
    pub written_bytes: u64,
    /// Number of program operations that failed for a reason other than the flash, such as a full file
    /// system.
    #[serde(default)]
    pub failed_programs: u64,
    /// The cause of the last failed program operation, if none has succeeded since.
    #[serde(default)]
    pub failing: Option<String>,
}

/// The state of a host's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JournalStatus {
    /// Size of the journal on disk, in bytes.
    pub bytes: u64,
    /// Number of records written since the host was opened.
    pub records: u64,
    /// Number of syncs to disk since the host was opened.
    pub syncs: u64,
    /// Number of times since the host was opened that a snapshot replaced older records.
    pub snapshots: u64,
    /// The reason for which nothing is written, made or lent, while the journal's file system is full; null
    /// otherwise. Work resumes by itself when there is room.
    pub full: Option<String>,
}

/// A message to the user of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Report)]
pub struct UserReport {
    /// The number of the message: counted from 1 since the host was opened.
    pub number: u64,
    /// Seconds since the event.
    pub ago_s: u64,
    /// The name of the vSSD that is concerned.
    pub vssd: String,
    /// The kind of the event.
    pub what: ReportKind,
    /// A description of the event, its cause and possible actions, for people.
    pub text: String,
}

/// The kind of event that a user of a VM is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReportKind {
    /// The VM lost data, because a lease was taken back before its data was moved.
    Evicted,
    /// The VM needs more flash than is offered. It keeps its leases.
    UnderHarvest,
    /// A lease was to be given back, but its data does not fit on other flash. The VM keeps the lease.
    Kept,
    /// A lease ended, and its data was moved to other flash.
    Expired,
    /// Pages of flash cannot be read any more, and are lost. This concerns vSSDs of any kind.
    Unreadable,
}

impl ReportKind {
    /// Returns the kind's name, as in JSON.
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
