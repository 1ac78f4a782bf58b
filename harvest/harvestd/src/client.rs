//! The client of the daemon that lends spare flash.

use crate::host::{HarvestRequest, HostStatus, LeaseStatus, UserReport};
use crate::{NewAccess, NewOffer, NewSize, NewVssd, SOCKET, ServedVssd};
use headstart_block::{Error, Result};
use headstart_daemon::client::{Away, LocalClient, Method};
use headstart_daemon::names::check_disk_name;
use headstart_daemon::places::state_dir;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The error if there is none.
const AWAY: Away = Away {
    cause: "no daemon answers",
    remedy: "start one by `headstart harvest serve`, or name its directory with --dir",
    remedy_for_user: "run this as the daemon's user",
};

/// Returns the default directory of a harvest daemon, which exists only if a daemon was started there.
#[must_use]
pub fn default_dir() -> PathBuf {
    state_dir().join("harvest")
}

/// The client of a harvest daemon on this host. The asynchronous methods send a request to the daemon and wait for the
/// answer. Each returns the daemon's errors; [`headstart_block::ErrorKind::Unavailable`] if no daemon answers;
/// [`headstart_block::ErrorKind::Denied`] if this user may not use the socket; [`headstart_block::ErrorKind::Invalid`]
/// if no vSSD can have the name; and [`headstart_block::ErrorKind::Corrupt`] if the answer cannot be understood.
#[derive(Clone, Debug)]
pub struct HarvestClient(LocalClient);

impl HarvestClient {
    /// Returns the client of the daemon whose directory is `dir`. No connection is made yet, so the daemon need not
    /// run.
    ///
    /// # Errors
    /// The system lacks the resources for a client.
    pub fn new(dir: &Path) -> Result<Self> {
        LocalClient::new(dir.join(SOCKET), AWAY).map(Self)
    }

    /// Returns the path of the daemon's control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.0.socket()
    }

    /// Returns all vSSDs of the host, unsold ones included.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn list(&self) -> Result<Vec<ServedVssd>> {
        self.ask(Method::GET, "/v1/vssds", None::<()>).await
    }

    /// Makes a vSSD, waits until it is served (an unsold one is not served), and returns its state.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn create(&self, new: &NewVssd) -> Result<ServedVssd> {
        self.ask(Method::POST, "/v1/vssds", Some(new)).await
    }

    /// Changes the size of a vSSD to `size` bytes, and returns its new state. Data beyond `size` is discarded. Without
    /// `force` the daemon refuses to make the vSSD smaller if clients may have it open, or if it stores data beyond
    /// `size`.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn resize(&self, name: &str, size: u64, force: bool) -> Result<ServedVssd> {
        let path = of(name, if force { "?force=true" } else { "" })?;
        self.ask(Method::PATCH, &path, Some(NewSize { size })).await
    }

    /// Replaces the access rules of a vSSD, and returns its new state. Its clients are disconnected: without `force`
    /// the daemon refuses while any may have the vSSD open.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn set_access(&self, name: &str, access: &NewAccess, force: bool) -> Result<ServedVssd> {
        let path = of(name, if force { "/access?force=true" } else { "/access" })?;
        self.ask(Method::PUT, &path, Some(access)).await
    }

    /// Deletes a vSSD with its data, and returns its last state. Without `force` the daemon refuses while clients may
    /// have the vSSD open.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn delete(&self, name: &str, force: bool) -> Result<ServedVssd> {
        let path = of(name, if force { "?force=true" } else { "" })?;
        self.ask(Method::DELETE, &path, None::<()>).await
    }

    /// Offers flash of a vSSD for lending, in place of its forecast, and returns its new state.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn offer(&self, name: &str, offer: NewOffer) -> Result<ServedVssd> {
        self.ask(Method::POST, &of(name, "/offers")?, Some(offer)).await
    }

    /// Requests spare flash for a harvest VM's vSSD. Returns the granted leases, which can be used at once.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn request(&self, name: &str, request: &HarvestRequest) -> Result<Vec<LeaseStatus>> {
        self.ask(Method::POST, &of(name, "/requests")?, Some(request)).await
    }

    /// Gives the lease number `lease` of a vSSD back. The data on the leased flash moves to the vSSD's other flash; if
    /// it does not fit there, the lease is kept, and a report says so. `None`: gives all leases of the vSSD back, and
    /// all its data is lost. Returns the state of the vSSD; giving back may take longer.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn release(&self, name: &str, lease: Option<u64>) -> Result<ServedVssd> {
        let which = lease.map_or_else(String::new, |lease| format!("/{lease}"));
        self.ask(Method::DELETE, &of(name, &format!("/leases{which}"))?, None::<()>).await
    }

    /// Returns the state of the whole host: flash, pool, leases, counts and journal.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn status(&self) -> Result<HostStatus> {
        self.ask(Method::GET, "/v1/status", None::<()>).await
    }

    /// Returns the messages to users of VMs: the last 256, newest last.
    ///
    /// # Errors
    /// Those of all requests: see [`HarvestClient`].
    pub async fn reports(&self) -> Result<Vec<UserReport>> {
        self.ask(Method::GET, "/v1/reports", None::<()>).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<impl Serialize>,
    ) -> Result<T> {
        let body = body.map(|body| serde_json::to_string(&body)).transpose();
        let body = body.map_err(|e| Error::invalid("cannot be asked for").caused_by(e))?;
        let answer = self.0.ask(method, path, body).await?;
        serde_json::from_value(answer).map_err(|e| {
            Error::corrupt("the daemon's answer makes no sense")
                .caused_by(e)
                .about(self.0.socket().display())
                .remedy("run the daemon and this command from the same release")
        })
    }
}

/// The path of a vSSD's resource. A valid name contains no character with a meaning in a path.
fn of(name: &str, rest: &str) -> Result<String> {
    check_disk_name(name)?;
    Ok(format!("/v1/vssds/{name}{rest}"))
}
