//! A vSSD as the interface and the metrics show it.

use super::export_process::ExportProcessStatus;
use headstart_harvest::host::VssdStatus;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A vSSD, and where clients find it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Vssd {
    /// The state of the vSSD.
    #[serde(flatten)]
    pub status: VssdStatus,
    /// The addresses at which it is served, NBD first.
    pub uris: Vec<String>,
    /// Clients that have it open by NBD.
    pub clients: usize,
    /// The reason why one of the requested ways to serve it is missing.
    pub error: Option<String>,
    /// The process that serves it by vhost-user or as a file; null if it is not served in these ways.
    #[serde(default)]
    pub process: Option<ExportProcessStatus>,
    /// The owner of its sockets and its file; null for the daemon's user.
    #[serde(default)]
    pub socket_owner: Option<String>,
    /// Their permissions, in octal; null for 0600, or 0660 if the owner names a group.
    #[serde(default)]
    pub socket_mode: Option<String>,
    /// Names of certificates that may open it at the daemon's NBD address.
    #[serde(default)]
    pub tls_clients: Vec<String>,
}
