//! The messages of `containerd.services.content.v1` and `containerd.services.leases.v1` that a differ sends to
//! containerd, which has the blobs of all images.
//!
//! Fields and their numbers are those of containerd's `.proto` files, which are in `proto/`.

use crate::messages::{FieldMaskMessage, TimestampMessage};
use std::collections::HashMap;

/// The full name of the service of content.
pub(crate) const CONTENT_SERVICE: &str = "containerd.services.content.v1.Content";
/// The full name of the service of leases.
pub(crate) const LEASES_SERVICE: &str = "containerd.services.leases.v1.Leases";

/// Asks for a part of a blob.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct ReadContentRequest {
    #[prost(string, tag = "1")]
    pub digest: String,
    #[prost(int64, tag = "2")]
    pub offset: i64,
    #[prost(int64, tag = "3")]
    pub size: i64,
}

/// The next bytes of a blob.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct ReadContentResponse {
    #[prost(int64, tag = "1")]
    pub offset: i64,
    #[prost(bytes = "vec", tag = "2")]
    pub data: Vec<u8>,
}

/// The kind of a message of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum WriteAction {
    Stat = 0,
    Write = 1,
    Commit = 2,
}

/// The next bytes of a blob in the making, or its end.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct WriteContentRequest {
    #[prost(enumeration = "WriteAction", tag = "1")]
    pub action: i32,
    #[prost(string, tag = "2")]
    pub r#ref: String,
    #[prost(int64, tag = "3")]
    pub total: i64,
    #[prost(string, tag = "4")]
    pub expected: String,
    #[prost(int64, tag = "5")]
    pub offset: i64,
    #[prost(bytes = "vec", tag = "6")]
    pub data: Vec<u8>,
    #[prost(map = "string, string", tag = "7")]
    pub labels: HashMap<String, String>,
}

/// The state of a blob in the making.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct WriteContentResponse {
    #[prost(enumeration = "WriteAction", tag = "1")]
    pub action: i32,
    #[prost(message, optional, tag = "2")]
    pub started_at: Option<TimestampMessage>,
    #[prost(message, optional, tag = "3")]
    pub updated_at: Option<TimestampMessage>,
    #[prost(int64, tag = "4")]
    pub offset: i64,
    #[prost(int64, tag = "5")]
    pub total: i64,
    #[prost(string, tag = "6")]
    pub digest: String,
}

/// Asks to give up a blob in the making.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AbortRequest {
    #[prost(string, tag = "1")]
    pub r#ref: String,
}

/// A blob, as `Info` of the service of content.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct ContentInfoMessage {
    #[prost(string, tag = "1")]
    pub digest: String,
    #[prost(int64, tag = "2")]
    pub size: i64,
    #[prost(message, optional, tag = "3")]
    pub created_at: Option<TimestampMessage>,
    #[prost(message, optional, tag = "4")]
    pub updated_at: Option<TimestampMessage>,
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
}

/// Asks for other labels of a blob.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct UpdateRequest {
    #[prost(message, optional, tag = "1")]
    pub info: Option<ContentInfoMessage>,
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<FieldMaskMessage>,
}

/// A blob with its new labels.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct UpdateResponse {
    #[prost(message, optional, tag = "1")]
    pub info: Option<ContentInfoMessage>,
}

/// A lease: what is made under it stays as long as it is there.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct LeaseMessage {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub created_at: Option<TimestampMessage>,
    #[prost(map = "string, string", tag = "3")]
    pub labels: HashMap<String, String>,
}

/// Asks for a lease.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct CreateRequest {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(map = "string, string", tag = "3")]
    pub labels: HashMap<String, String>,
}

/// The lease.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct CreateResponse {
    #[prost(message, optional, tag = "1")]
    pub lease: Option<LeaseMessage>,
}
