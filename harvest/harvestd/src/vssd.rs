//! A vSSD as the interface and the metrics show it.

use super::export_process::ExportProcessStatus;
use crate::host::VssdStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A vSSD, with the addresses and the users that it is served to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Vssd)]
pub struct ServedVssd {
    /// The state of the vSSD.
    #[serde(flatten)]
    pub status: VssdStatus,
    /// The URIs at which clients reach the vSSD, NBD first.
    pub uris: Vec<String>,
    /// Number of clients that are connected by NBD.
    pub clients: usize,
    /// The cause if one of the requested ways of serving the vSSD is missing; null if none is.
    pub error: Option<String>,
    /// The process that serves it by vhost-user or as a file; null if it is not served in these ways.
    #[serde(default)]
    pub process: Option<ExportProcessStatus>,
    /// The owner of the vSSD's sockets and file; null for the daemon's user.
    #[serde(default)]
    pub socket_owner: Option<String>,
    /// Permissions of the vSSD's sockets and file, in octal; null for 0600, or 0660 if the owner names a
    /// group.
    #[serde(default)]
    pub socket_mode: Option<String>,
    /// Names of the certificates whose clients may open the vSSD at the daemon's NBD address. Empty: no
    /// client may if the daemon checks certificates, otherwise any client may.
    #[serde(default)]
    pub tls_clients: Vec<String>,
}
