//! Certificates renewed over connections: a host sends a request to one that has the authority's role and key, and gets
//! an answer.
//!
//! The facts about both ends were proved in the handshake: the name, the roles and the key. The requesting host checks
//! the answer as if it came from any host, uses it for the connections that it makes from then on, and sends it to the
//! hosts that it is connected to, so that these connections do not end with the earlier certificate.
//!
//! Hosts of protocol version 1 take no part in this: their connections end with their certificate.

use crate::credentials::{HostCertificate, Identity, Signer, unix_now};
use crate::frame::{FrameKind, REFUSED_REQUEST, decode_refusal, refusal};
use crate::host::Host;
use crate::host::link::Link;
use headstart_block::{Error, ErrorKind, Result};
use headstart_swarm::PeerId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// The time that an authority has to answer.
const ANSWERING: Duration = Duration::from_secs(30);

/// The most requests over one connection in an hour that are answered at all: a refused host asks a dozen times.
const REQUESTS_MAX: u32 = 100;

/// A host's part in renewing certificates.
#[derive(Default)]
pub(crate) struct Renewals {
    /// This host's certificate; `None` without security.
    pub(crate) identity: Option<Arc<Identity>>,
    /// The authority's key, if this host has it.
    pub(crate) signer: Option<Signer>,
    waiting: Mutex<Option<Waiting>>,
    last: AtomicU32,
    /// The reason why the certificate was not renewed at the last attempt.
    failure: Mutex<Option<String>>,
}

/// An open request of this host.
struct Waiting {
    peer: PeerId,
    number: u32,
    answer: oneshot::Sender<Result<Vec<u8>>>,
}

impl Renewals {
    /// The part of a host with a certificate.
    pub(crate) fn of(identity: Arc<Identity>, signer: Option<Signer>) -> Self {
        Self { identity: Some(identity), signer, ..Self::default() }
    }

    /// The reason why the certificate, which is due, was not renewed at the last attempt.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Records the outcome of an attempt. Returns `true` if it differs from the one before.
    pub(crate) fn note(&self, failure: Option<String>) -> bool {
        let mut noted = self.failure.lock();
        let is_news = *noted != failure;
        *noted = failure;
        is_news
    }

    /// Ends the request to a host that is not connected any more.
    pub(crate) fn gone(&self, peer: PeerId) {
        let mut waiting = self.waiting.lock();
        waiting.take_if(|waiting| waiting.peer == peer);
    }

    /// Passes on the answer of a host, if a task waits for it.
    fn answered(&self, peer: PeerId, number: u32, answer: Result<Vec<u8>>) {
        let mut waiting = self.waiting.lock();
        if let Some(waiting) = waiting.take_if(|waiting| waiting.peer == peer && waiting.number == number) {
            // A task that has stopped waiting needs no answer.
            let _ = waiting.answer.send(answer);
        }
    }

    /// Signs for a host whose connection has proved this certificate.
    pub(crate) fn sign(
        &self,
        proved: Option<&HostCertificate>,
        request: &[u8],
        now_ms: u64,
    ) -> Result<Vec<u8>> {
        let signer = self.signer.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "this host has no authority's key")
                .remedy("start its agent with --authority DIR")
        })?;
        let proved = proved.ok_or_else(|| Error::invalid("a connection without certificates"))?;
        signer.renew(proved, request, unix_now(), now_ms)
    }
}

impl Host {
    /// Handles a request of another host to renew its certificate.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it sends too many requests.
    pub(crate) fn certificate_requested(&self, link: &Link, number: u32, request: &[u8]) -> Result<()> {
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
                link.outbox.control(FrameKind::Certificate, number, &der)
            }
            Err(error) => {
                let refused = self.counts.refused_requests.fetch_add(1, Ordering::Relaxed);
                if refused == 0 {
                    tracing::warn!(%error, host = %link.name, "a host's certificate is not renewed");
                } else {
                    tracing::debug!(%error, host = %link.name, "a host's certificate is not renewed");
                }
                let why = error.to_string();
                link.outbox.control_with(FrameKind::Refused, number, REFUSED_REQUEST, refusal(&why))
            }
        };
        if sent.is_err() {
            // The host sends requests and does not read.
            link.close();
        }
        Ok(())
    }

    /// Handles the answer of an authority.
    pub(crate) fn certificate_came(&self, link: &Link, number: u32, der: &[u8]) {
        self.renewals.answered(link.peer, number, Ok(der.to_vec()));
    }

    /// Handles the refusal of an authority.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the reason is not text.
    pub(crate) fn request_refused(&self, link: &Link, number: u32, body: &[u8]) -> Result<()> {
        let why = decode_refusal(body)?;
        self.renewals.answered(link.peer, number, Err(Error::new(ErrorKind::Denied, why)));
        Ok(())
    }

    /// Handles the new certificate of another host.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not one of the authority's that can replace the one before.
    pub(crate) fn certificate_renewed(&self, link: &Link, der: &[u8]) -> Result<()> {
        let (Some(identity), Some(before)) = (&self.renewals.identity, link.certificate()) else {
            return Ok(());
        };
        // This comes before the signature is verified, which costs more.
        match HostCertificate::parse(&der.into())?.check_renews(&before) {
            Err(error) if error.kind() == ErrorKind::Conflict => return Ok(()),
            checked => checked?,
        }
        link.set_certificate(identity.verified(der, unix_now())?);
        Ok(())
    }

    /// Sends a request to an authority over its connection, and waits for the answer.
    pub(crate) async fn ask_authority(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>> {
        let away = || Error::new(ErrorKind::Unavailable, "the connection to the authority broke off");
        let link = self.links().into_iter().map(|(link, _)| link).find(|link| link.peer == peer);
        let link = link.ok_or_else(away)?;
        let number = self.renewals.last.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        *self.renewals.waiting.lock() = Some(Waiting { peer, number, answer });
        // The connection may have been closed before the waiting request was registered.
        if link.outbox.control(FrameKind::Request, number, request).is_err() || link.is_closed() {
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
