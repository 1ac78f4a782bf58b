//! This host's certificate, renewed when it is due: by an authority that it is connected to, or by its own key of one.

use crate::credentials::{Identity, Schedule, unix_now};
use crate::frame::{FrameKind, VERSION_1};
use crate::members::Door;
use headstart_block::Result;
use headstart_swarm::PeerId;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The interval of checks whether the certificate is due.
const LOOK: Duration = Duration::from_secs(1);

/// An authority that can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// This host itself.
    Own,
    Peer(PeerId),
}

impl Door {
    /// Has this host's certificate renewed whenever it is due, until the swarm ends.
    pub(super) async fn renew(self: Arc<Self>) {
        let Some(identity) = self.host.renewals.identity.clone() else { return };
        let mut schedule = Schedule::new(self.key.0);
        let mut stopping = self.stopping.clone();
        loop {
            let stops = tokio::time::timeout(LOOK, stopping.wait_for(|stopping| *stopping));
            if stops.await.is_ok() {
                return;
            }
            tokio::task::block_in_place(|| identity.keep());
            let says = identity.says();
            if says.is_of_earlier_version() {
                // The log has had a line about this since the host started.
                continue;
            }
            let (calendar, now_ms) = (unix_now(), self.host.now_ms());
            let authorities = self.authorities();
            if authorities.is_empty() && calendar >= schedule.due_at(says.validity) {
                self.host.renewals.note(Some(
                    "this host is connected to no host whose certificate has the role `authority`".to_owned(),
                ));
            }
            let Some(source) = schedule.next(says.validity, calendar, now_ms, &authorities) else { continue };
            match self.renew_by(&identity, source).await {
                Ok(()) => {
                    self.host.renewals.note(None);
                    self.host.counts.renewed_certificates.fetch_add(1, Ordering::Relaxed);
                    let seconds = identity.says().validity.not_after.saturating_sub(unix_now());
                    tracing::info!(seconds, "this host's certificate was renewed");
                }
                Err(error) => {
                    if self.host.renewals.note(Some(error.to_string())) {
                        tracing::warn!(%error, "this host's certificate is due and was not renewed; it is tried again");
                    }
                }
            }
        }
    }

    /// The authorities that can be asked now: this host itself before all others.
    fn authorities(&self) -> Vec<Source> {
        if self.host.renewals.signer.is_some() {
            return vec![Source::Own];
        }
        let links = self.host.links().into_iter().map(|(link, _)| link);
        let authorities = links.filter(|link| link.is_authority() && link.protocol > VERSION_1);
        authorities.map(|link| Source::Peer(link.peer)).collect()
    }

    async fn renew_by(&self, identity: &Identity, source: Source) -> Result<()> {
        let request = identity.request()?;
        let der = match source {
            Source::Own => self.host.renewals.sign(Some(&identity.says()), &request, self.host.now_ms())?,
            Source::Peer(peer) => self.host.ask_authority(peer, &request).await?,
        };
        tokio::task::block_in_place(|| identity.renew(&der, unix_now()))?;
        for (link, _) in self.host.links().iter().filter(|(link, _)| link.protocol > VERSION_1) {
            if link.outbox.control(FrameKind::Renewed, 0, &der).is_err() {
                link.close();
            }
        }
        Ok(())
    }
}
