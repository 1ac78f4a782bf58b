//! The messages of `containerd.services.diff.v1`, and those of other packages that they have in them.
//!
//! Fields and their numbers are those of containerd's `.proto` files (API version 1.12, in `proto/` beside this crate's
//! sources; proxied differs came with containerd 1.7, whose messages are the same apart from fields that are empty).

#![expect(missing_docs, reason = "the fields are documented in proto/diff.proto")]

use crate::messages::{MountMessage, TimestampMessage};
use std::collections::HashMap;

/// The service's full name: the first part of its methods' paths.
pub const DIFF_SERVICE: &str = "containerd.services.diff.v1.Diff";

/// A message of any type, as `google.protobuf.Any`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AnyMessage {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// A blob in the store of content, as `containerd.types.Descriptor`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DescriptorMessage {
    #[prost(string, tag = "1")]
    pub media_type: String,
    #[prost(string, tag = "2")]
    pub digest: String,
    #[prost(int64, tag = "3")]
    pub size: i64,
    #[prost(map = "string, string", tag = "5")]
    pub annotations: HashMap<String, String>,
}

/// Asks to put a blob's content into mounts.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ApplyRequest {
    #[prost(message, optional, tag = "1")]
    pub diff: Option<DescriptorMessage>,
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<MountMessage>,
    #[prost(map = "string, message", tag = "3")]
    pub payloads: HashMap<String, AnyMessage>,
    #[prost(bool, tag = "4")]
    pub sync_fs: bool,
}

/// The content, uncompressed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ApplyResponse {
    #[prost(message, optional, tag = "1")]
    pub applied: Option<DescriptorMessage>,
}

/// Asks for a blob with what is different in the mounts `right`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DiffRequest {
    #[prost(message, repeated, tag = "1")]
    pub left: Vec<MountMessage>,
    #[prost(message, repeated, tag = "2")]
    pub right: Vec<MountMessage>,
    #[prost(string, tag = "3")]
    pub media_type: String,
    #[prost(string, tag = "4")]
    pub r#ref: String,
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
    #[prost(message, optional, tag = "6")]
    pub source_date_epoch: Option<TimestampMessage>,
}

/// The blob.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DiffResponse {
    #[prost(message, optional, tag = "3")]
    pub diff: Option<DescriptorMessage>,
}
