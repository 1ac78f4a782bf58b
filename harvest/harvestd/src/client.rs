//! The client of the daemon that lends spare flash.

use crate::host::{HostStatus, LeaseStatus, UserReport, Wish};
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

/// The default directory of a daemon.
#[must_use]
pub fn default_dir() -> PathBuf {
    state_dir().join("harvest")
}

/// A daemon of this host. All methods return its errors, and [`headstart_block::ErrorKind::Unavailable`] if it is not
/// there.
#[derive(Clone, Debug)]
pub struct HarvestClient(LocalClient);

impl HarvestClient {
    /// The daemon of a directory. It may not be there.
    ///
    /// # Errors
    /// If there are no resources for a client.
    pub fn new(dir: &Path) -> Result<Self> {
        LocalClient::new(dir.join(SOCKET), AWAY).map(Self)
    }

    /// The path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.0.socket()
    }

    /// All vSSDs.
    ///
    /// # Errors
    /// As all methods.
    pub async fn list(&self) -> Result<Vec<ServedVssd>> {
        self.ask(Method::GET, "/v1/vssds", None::<()>).await
    }

    /// Makes a vSSD.
    ///
    /// # Errors
    /// As all methods.
    pub async fn create(&self, new: &NewVssd) -> Result<ServedVssd> {
        self.ask(Method::POST, "/v1/vssds", Some(new)).await
    }

    /// Makes a vSSD larger or smaller.
    ///
    /// # Errors
    /// As all methods.
    pub async fn resize(&self, name: &str, size: u64, force: bool) -> Result<ServedVssd> {
        let path = of(name, if force { "?force=true" } else { "" })?;
        self.ask(Method::PATCH, &path, Some(NewSize { size })).await
    }

    /// Replaces the access rules of a vSSD.
    ///
    /// # Errors
    /// As all methods.
    pub async fn set_access(&self, name: &str, access: &NewAccess, force: bool) -> Result<ServedVssd> {
        let path = of(name, if force { "/access?force=true" } else { "/access" })?;
        self.ask(Method::PUT, &path, Some(access)).await
    }

    /// Deletes a vSSD.
    ///
    /// # Errors
    /// As all methods.
    pub async fn delete(&self, name: &str, force: bool) -> Result<ServedVssd> {
        let path = of(name, if force { "?force=true" } else { "" })?;
        self.ask(Method::DELETE, &path, None::<()>).await
    }

    /// Offers space of a vSSD.
    ///
    /// # Errors
    /// As all methods.
    pub async fn offer(&self, name: &str, offer: NewOffer) -> Result<ServedVssd> {
        self.ask(Method::POST, &of(name, "/offers")?, Some(offer)).await
    }

    /// Asks for spare flash for a vSSD.
    ///
    /// # Errors
    /// As all methods.
    pub async fn request(&self, name: &str, wish: &Wish) -> Result<Vec<LeaseStatus>> {
        self.ask(Method::POST, &of(name, "/requests")?, Some(wish)).await
    }

    /// Ends a lease of a vSSD, or all.
    ///
    /// # Errors
    /// As all methods.
    pub async fn release(&self, name: &str, lease: Option<u64>) -> Result<ServedVssd> {
        let which = lease.map_or_else(String::new, |lease| format!("/{lease}"));
        self.ask(Method::DELETE, &of(name, &format!("/leases{which}"))?, None::<()>).await
    }

    /// The state of the host.
    ///
    /// # Errors
    /// As all methods.
    pub async fn status(&self) -> Result<HostStatus> {
        self.ask(Method::GET, "/v1/status", None::<()>).await
    }

    /// The reports to users of harvest VMs, newest last.
    ///
    /// # Errors
    /// As all methods.
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
