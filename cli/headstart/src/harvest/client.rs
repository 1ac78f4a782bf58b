//! The client of the daemon that lends spare flash.

use crate::agent::default_state;
use crate::local_client::{Away, LocalClient};
use clap::Args;
use headstart_block::{Error, Result};
use headstart_daemon::names::check_disk_name;
use headstart_harvest::host::{HostStatus, LeaseStatus, Report, Wish};
use headstart_harvestd::{NewAccess, NewOffer, NewSize, NewVssd, SOCKET, Vssd};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;

/// The error if there is none.
const AWAY: Away = Away {
    cause: "no daemon answers",
    remedy: "start one by `headstart harvest serve`, or name its directory with --dir",
    remedy_for_user: "run this as the daemon's user",
};

/// The default directory of a daemon.
pub(super) fn default_dir() -> PathBuf {
    default_state().join("harvest")
}

/// The daemon that is asked.
#[derive(Args)]
pub(crate) struct HarvestDir {
    /// The directory of `headstart harvest serve` [default: harvest in /var/lib/headstart, or in
    /// ~/.local/state/headstart]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl HarvestDir {
    /// The daemon of that directory.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub(super) fn client(&self) -> Result<HarvestClient> {
        let dir = self.dir.clone().unwrap_or_else(default_dir);
        LocalClient::new(dir.join(SOCKET), AWAY).map(HarvestClient)
    }
}

/// A daemon of this host. All methods return its errors, and [`headstart_block::ErrorKind::Unavailable`] if it is not
/// there.
pub(super) struct HarvestClient(LocalClient);

impl HarvestClient {
    pub(super) fn list(&self) -> Result<Vec<Vssd>> {
        self.ask(Method::GET, "/v1/vssds", None::<()>)
    }

    pub(super) fn create(&self, new: &NewVssd) -> Result<Vssd> {
        self.ask(Method::POST, "/v1/vssds", Some(new))
    }

    pub(super) fn resize(&self, name: &str, size: u64, force: bool) -> Result<Vssd> {
        let path = of(name, if force { "?force=true" } else { "" })?;
        self.ask(Method::PATCH, &path, Some(NewSize { size }))
    }

    pub(super) fn set_access(&self, name: &str, access: &NewAccess, force: bool) -> Result<Vssd> {
        let path = of(name, if force { "/access?force=true" } else { "/access" })?;
        self.ask(Method::PUT, &path, Some(access))
    }

    pub(super) fn delete(&self, name: &str, force: bool) -> Result<Vssd> {
        let path = of(name, if force { "?force=true" } else { "" })?;
        self.ask(Method::DELETE, &path, None::<()>)
    }

    pub(super) fn offer(&self, name: &str, offer: NewOffer) -> Result<Vssd> {
        self.ask(Method::POST, &of(name, "/offers")?, Some(offer))
    }

    pub(super) fn request(&self, name: &str, wish: &Wish) -> Result<Vec<LeaseStatus>> {
        self.ask(Method::POST, &of(name, "/requests")?, Some(wish))
    }

    pub(super) fn release(&self, name: &str, lease: Option<u64>) -> Result<Vssd> {
        let which = lease.map_or_else(String::new, |lease| format!("/{lease}"));
        self.ask(Method::DELETE, &of(name, &format!("/leases{which}"))?, None::<()>)
    }

    pub(super) fn status(&self) -> Result<HostStatus> {
        self.ask(Method::GET, "/v1/status", None::<()>)
    }

    pub(super) fn reports(&self) -> Result<Vec<Report>> {
        self.ask(Method::GET, "/v1/reports", None::<()>)
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<impl Serialize>,
    ) -> Result<T> {
        let body = body.map(|body| serde_json::to_string(&body)).transpose();
        let body = body.map_err(|e| Error::invalid("cannot be asked for").caused_by(e))?;
        let answer = self.0.ask(method, path, body)?;
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
