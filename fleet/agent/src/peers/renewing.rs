//! Certificates renewed over connections: a host asks one that has the authority's role and key, and is answered.
//!
//! Of both ends all that counts was proved in the handshake: the name, the roles and the key. The one that asks checks
//! the answer as if anybody had made it, uses it for the connections that it makes from then on, and tells it to the
//! hosts that it is connected to, so that these connections do not end with the earlier certificate.
//!
//! Hosts of protocol version 1 neither ask nor are asked or told: their connections end with their certificate.

use crate::credentials::{HostCertificate, Identity, Schedule, Signer, unix_now};
use crate::peers::frame::{Kind, REFUSED_REQUEST, VERSION_1, decode_refusal, refusal};
use crate::peers::host::Host;
use crate::peers::link::Link;
use crate::peers::members::Door;
use headstart_block::{Error, ErrorKind, Result};
use headstart_swarm::PeerId;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The time between two looks at whether the certificate is due.
const LOOK: Duration = Duration::from_secs(1);

/// The time that an authority has to answer.
const ANSWERING: Duration = Duration::from_secs(30);

/// Requests over one connection in an hour that are answered at all: a host that is refused asks a dozen times.
const REQUESTS_MAX: u32 = 100;

/// A host's part in renewing certificates.
#[derive(Default)]
pub(super) struct Renewals {
    /// This host's certificate; nothing where security is none.
    pub(super) identity: Option<Arc<Identity>>,
    /// The authority's key, where this host has it.
    signer: Option<Signer>,
    waiting: Mutex<Option<Waiting>>,
    last: AtomicU32,
    /// The reason for which the certificate was not renewed at the last try.
    failure: Mutex<Option<String>>,
}

/// The request of this host that is not answered.
struct Waiting {
    peer: PeerId,
    number: u32,
    answer: oneshot::Sender<Result<Vec<u8>>>,
}

/// An authority that can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// This host itself.
    Own,
    Peer(PeerId),
}

impl Renewals {
    /// Those of a host with a certificate.
    pub(super) fn of(identity: Arc<Identity>, signer: Option<Signer>) -> Self {
        Self { identity: Some(identity), signer, ..Self::default() }
    }

    /// The reason for which the certificate, which is due, was not renewed at the last try.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes note of what a try came to. Returns `true` where that is not the same as before.
    fn note(&self, failure: Option<String>) -> bool {
        let mut noted = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *noted != failure;
        *noted = failure;
        is_news
    }

    /// A host is not connected any more: it does not answer.
    pub(super) fn gone(&self, peer: PeerId) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.take_if(|waiting| waiting.peer == peer);
    }

    /// Passes on the answer of a host, where it is waited for.
    fn answered(&self, peer: PeerId, number: u32, answer: Result<Vec<u8>>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = waiting.take_if(|waiting| waiting.peer == peer && waiting.number == number) {
            // The one that does not wait any more does not want to know.
            let _ = waiting.answer.send(answer);
        }
    }

    /// Signs for a host whose connection has proved this certificate.
    fn sign(&self, proved: Option<&HostCertificate>, request: &[u8], now_ms: u64) -> Result<Vec<u8>> {
        let signer = self.signer.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "this host has no authority's key")
                .remedy("start its agent with --authority DIR")
        })?;
        let proved = proved.ok_or_else(|| Error::invalid("a connection without certificates"))?;
        signer.renew(proved, request, unix_now(), now_ms)
    }
}

impl Host {
    /// Another host asks for its certificate to be renewed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where it asks without end.
    pub(super) fn certificate_requested(&self, link: &Link, number: u32, request: &[u8]) -> Result<()> {
        if link.count_certificate_request(self.now_ms()) > REQUESTS_MAX {
            return Err(Error::corrupt("it asks for certificates without end"));
        }
        let certificate = link.certificate();
        let signed = tokio::task::block_in_place(|| match self.trust.refusal(certificate.as_ref()) {
            Some(error) => Err(error),
            None => self.renewals.sign(certificate.as_ref(), request, self.now_ms()),
        });
        let sent = match signed {
            Ok(der) => {
                self.counts.signed_certificates.fetch_add(1, Ordering::Relaxed);
                tracing::info!(host = %link.name, "the certificate of a host was renewed");
                link.outbox.control(Kind::Certificate, number, &der)
            }
            Err(error) => {
                let refused = self.counts.refused_requests.fetch_add(1, Ordering::Relaxed);
                if refused == 0 {
                    tracing::warn!(%error, host = %link.name, "a host's certificate is not renewed");
                } else {
                    tracing::debug!(%error, host = %link.name, "a host's certificate is not renewed");
                }
                let why = error.to_string();
                link.outbox.control_with(Kind::Refused, number, REFUSED_REQUEST, refusal(&why))
            }
        };
        if sent.is_err() {
            // It asks and does not read.
            link.close();
        }
        Ok(())
    }

    /// An authority answers.
    pub(super) fn certificate_came(&self, link: &Link, number: u32, der: &[u8]) {
        self.renewals.answered(link.peer, number, Ok(der.to_vec()));
    }

    /// An authority refuses.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where the reason is no text.
    pub(super) fn request_refused(&self, link: &Link, number: u32, body: &[u8]) -> Result<()> {
        let why = decode_refusal(body)?;
        self.renewals.answered(link.peer, number, Err(Error::new(ErrorKind::Denied, why)));
        Ok(())
    }

    /// Another host has another certificate.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where it is none of the authority's that takes the place of the one that it had.
    pub(super) fn certificate_renewed(&self, link: &Link, der: &[u8]) -> Result<()> {
        let (Some(identity), Some(before)) = (&self.renewals.identity, link.certificate()) else {
            return Ok(());
        };
        // Before the signature is looked at, which costs more.
        match HostCertificate::parse(&der.into())?.check_renews(&before) {
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(()),
            checked => checked?,
        }
        link.set_certificate(identity.verified(der, unix_now())?);
        Ok(())
    }

    /// Asks an authority over its connection, and waits for the answer.
    async fn ask_authority(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>> {
        let away = || Error::new(ErrorKind::Unavailable, "the connection to the authority broke off");
        let link = self.links().into_iter().map(|(link, _)| link).find(|link| link.peer == peer);
        let link = link.ok_or_else(away)?;
        let number = self.renewals.last.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        *self.renewals.waiting.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Waiting { peer, number, answer });
        // It may have been closed before it was known that somebody waits.
        if link.outbox.control(Kind::Request, number, request).is_err() || link.is_closed() {
            self.renewals.gone(peer);
        }
        let late = |_| {
            self.renewals.gone(peer);
            Err(Error::new(ErrorKind::Unavailable, "the authority does not answer"))
        };
        let answered = async { answered.await.unwrap_or_else(|_| Err(away())) };
        let answer = tokio::time::timeout(ANSWERING, answered).await.unwrap_or_else(late);
        answer.map_err(|e| e.about(&link.name))
    }
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
                // The operator was told when the host started.
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
            if link.outbox.control(Kind::Renewed, 0, &der).is_err() {
                link.close();
            }
        }
        Ok(())
    }
}
