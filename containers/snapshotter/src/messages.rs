//! The messages of `containerd.services.snapshots.v1`, and those of other packages that they have in them.
//!
//! Fields and their numbers are those of containerd's `.proto` files (API version 1.7.19, in `proto/` beside this
//! crate's sources; 1.6 has the same, but no `Cleanup`). A name of a message that other crates could use for something
//! else has `Message` at its end here.

#![expect(missing_docs, reason = "the fields are documented in proto/snapshots.proto")]

use std::collections::HashMap;

/// The service's full name: the first part of its methods' paths.
pub const SERVICE: &str = "containerd.services.snapshots.v1.Snapshots";

/// A moment, as `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct TimestampMessage {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// Names of fields, as `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FieldMaskMessage {
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

/// A mount, as `containerd.types.Mount`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MountMessage {
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(string, tag = "2")]
    pub source: String,
    #[prost(string, tag = "3")]
    pub target: String,
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// The kind of a snapshot, as `Kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum KindMessage {
    Unknown = 0,
    View = 1,
    Active = 2,
    Committed = 3,
}

/// A snapshot, as `Info`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct InfoMessage {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub parent: String,
    #[prost(enumeration = "KindMessage", tag = "3")]
    pub kind: i32,
    #[prost(message, optional, tag = "4")]
    pub created_at: Option<TimestampMessage>,
    #[prost(message, optional, tag = "5")]
    pub updated_at: Option<TimestampMessage>,
    #[prost(map = "string, string", tag = "6")]
    pub labels: HashMap<String, String>,
}

/// Asks for an active snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PrepareSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, tag = "2")]
    pub key: String,
    #[prost(string, tag = "3")]
    pub parent: String,
    #[prost(map = "string, string", tag = "4")]
    pub labels: HashMap<String, String>,
}

/// The mounts of a new active snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PrepareSnapshotResponse {
    #[prost(message, repeated, tag = "1")]
    pub mounts: Vec<MountMessage>,
}

/// Asks for a view.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ViewSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, tag = "2")]
    pub key: String,
    #[prost(string, tag = "3")]
    pub parent: String,
    #[prost(map = "string, string", tag = "4")]
    pub labels: HashMap<String, String>,
}

/// The mounts of a new view.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ViewSnapshotResponse {
    #[prost(message, repeated, tag = "1")]
    pub mounts: Vec<MountMessage>,
}

/// Asks for the mounts of a snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MountsRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, tag = "2")]
    pub key: String,
}

/// The mounts of a snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MountsResponse {
    #[prost(message, repeated, tag = "1")]
    pub mounts: Vec<MountMessage>,
}

/// Asks to remove a snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RemoveSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, tag = "2")]
    pub key: String,
}

/// Asks to commit an active snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CommitSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub key: String,
    #[prost(map = "string, string", tag = "4")]
    pub labels: HashMap<String, String>,
}

/// Asks for a snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StatSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, tag = "2")]
    pub key: String,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StatSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub info: Option<InfoMessage>,
}

/// Asks for other labels of a snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UpdateSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(message, optional, tag = "2")]
    pub info: Option<InfoMessage>,
    #[prost(message, optional, tag = "3")]
    pub update_mask: Option<FieldMaskMessage>,
}

/// A snapshot with its new labels.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UpdateSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub info: Option<InfoMessage>,
}

/// Asks for snapshots.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListSnapshotsRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, repeated, tag = "2")]
    pub filters: Vec<String>,
}

/// A part of a list of snapshots.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ListSnapshotsResponse {
    #[prost(message, repeated, tag = "1")]
    pub info: Vec<InfoMessage>,
}

/// Asks for the space that a snapshot takes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UsageRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
    #[prost(string, tag = "2")]
    pub key: String,
}

/// The space that a snapshot takes, in bytes and inodes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UsageResponse {
    #[prost(int64, tag = "1")]
    pub size: i64,
    #[prost(int64, tag = "2")]
    pub inodes: i64,
}

/// Asks to remove what belongs to no snapshot.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CleanupRequest {
    #[prost(string, tag = "1")]
    pub snapshotter: String,
}

#[cfg(test)]
mod tests;
