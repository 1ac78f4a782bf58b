//! The authority's list on this host: which hosts are members no longer, and the gossip key.
//!
//! Two hosts that connect tell each other the lists that they have, and whoever takes a later one tells all that it is
//! connected to. So a list is everywhere as soon as it is at one host of the swarm, and at hosts that were away once
//! they are connected again. It is kept on disk before it counts. Hosts that it revokes are disconnected, and refused
//! from then on. Of two gossip keys the earlier one is still opened for a while, and nothing is sealed by it.
//!
//! Hosts of protocol version 1 are told nothing: they find no other hosts once the key has changed.

use crate::credentials::{Credentials, HostCertificate, TRUST_LIST_MAX, TrustList};
use crate::file::{self, Readers};
use crate::peers::frame::{Kind, VERSION_1};
use crate::peers::gossip::Seal;
use crate::peers::host::Host;
use crate::peers::link::Link;
use headstart_block::{Error, ErrorKind, Result};
use rustls::pki_types::CertificateDer;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long gossip under an earlier key is still opened, in milliseconds.
const OVERLAP_MS: u64 = 60_000;

/// What this host knows of its authority's lists.
pub(super) struct Trust {
    authorities: Vec<CertificateDer<'static>>,
    own: Option<HostCertificate>,
    seal: Arc<Seal>,
    /// Where the list is kept.
    file: Option<PathBuf>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    list: Option<(TrustList, Arc<Vec<u8>>)>,
    /// When the gossip key changed, in milliseconds of the host's clock; 0 as long as it did not.
    rekeyed_ms: Option<u64>,
}

/// What a list is to a host that is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    /// It is later than what was known, and is known now.
    Taken,
    Known,
    Earlier,
}

impl Trust {
    /// The lists of a cluster, as far as they are known from `file` and from the credentials.
    ///
    /// # Errors
    /// What reading reports. A list that its authority has not signed is passed over with a warning.
    pub(super) fn open(credentials: &Credentials, file: Option<PathBuf>, seal: Arc<Seal>) -> Result<Self> {
        let kept = match &file {
            Some(file) => file::read(file, TRUST_LIST_MAX as u64)?,
            None => None,
        };
        let own = Some(credentials.identity.says());
        let trust =
            Self { authorities: credentials.authority.clone(), own, seal, file, held: Mutex::default() };
        for bytes in [kept, credentials.trust.clone()].into_iter().flatten() {
            if let Err(error) = trust.offer(&bytes, 0) {
                tracing::warn!(%error, "a list of revoked hosts is passed over");
            }
        }
        Ok(trust)
    }

    /// For hosts without certificates: nobody can be revoked.
    pub(super) fn none(seal: Arc<Seal>) -> Self {
        Self { authorities: Vec::new(), own: None, seal, file: None, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a list where it is later than what is known.
    fn offer(&self, bytes: &[u8], now_ms: u64) -> Result<Offered> {
        let list = TrustList::open(bytes, &self.authorities)?;
        let mut held = self.held();
        let known = held.list.as_ref().map_or(0, |(list, _)| list.number);
        if list.number <= known {
            return Ok(if list.number == known { Offered::Known } else { Offered::Earlier });
        }
        let kept = self.file.as_ref().map(|file| file::replace(file, bytes, Readers::Owner));
        if let Some(Err(error)) = kept {
            tracing::warn!(%error, "the list of revoked hosts will not be known after a restart");
        }
        if self.seal.rekey(list.gossip_key)? {
            held.rekeyed_ms = Some(now_ms);
        }
        held.list = Some((list, Arc::new(bytes.to_vec())));
        Ok(Offered::Taken)
    }

    /// The list as it is told to others.
    fn current(&self) -> Option<Arc<Vec<u8>>> {
        self.held().list.as_ref().map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Why a host with this certificate is refused, if it is.
    pub(super) fn refusal(&self, certificate: Option<&HostCertificate>) -> Option<Error> {
        let certificate = certificate?;
        let held = self.held();
        let revoked = held.list.as_ref()?.0.revocation(certificate)?;
        let error = Error::new(
            ErrorKind::Denied,
            format!("`{}` was revoked by the cluster's authority", revoked.name),
        );
        Some(error.remedy(format!(
            "to add it again, run `headstart swarm init DIR --host {}` where the authority is, and copy what it makes",
            revoked.name
        )))
    }

    /// Gives up the earlier gossip key once its time is over.
    pub(super) fn tick(&self, now_ms: u64) {
        let mut held = self.held();
        if held.rekeyed_ms.is_some_and(|since| now_ms.saturating_sub(since) >= OVERLAP_MS) {
            held.rekeyed_ms = None;
            self.seal.give_up_previous();
        }
    }
}

impl Host {
    /// Another host, or this host's user, tells a list of the authority's.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where the authority has not signed it, [`ErrorKind::Unsupported`] where it is of another
    /// version.
    pub(super) fn trust_told(self: &Arc<Self>, from: Option<&Link>, bytes: &[u8]) -> Result<()> {
        match tokio::task::block_in_place(|| self.trust.offer(bytes, self.now_ms()))? {
            Offered::Taken => self.trust_changed(from),
            Offered::Known if from.is_none() => {
                self.links().iter().for_each(|(link, _)| self.tell_trust(link));
            }
            Offered::Known => {}
            Offered::Earlier => match from {
                Some(link) => self.tell_trust(link),
                None => {
                    let error =
                        Error::new(ErrorKind::Conflict, "the swarm has a later list of its authority's");
                    return Err(error.remedy("sign the next one in the directory that has the latest"));
                }
            },
        }
        Ok(())
    }

    /// Disconnects whom the list revokes, and tells it to all others.
    fn trust_changed(self: &Arc<Self>, from: Option<&Link>) {
        if let Some(error) = self.trust.refusal(self.trust.own.as_ref()) {
            tracing::warn!(%error, "this host is no member of the swarm any more; its disks go on");
        }
        for (link, _) in self.links() {
            if let Some(error) = self.trust.refusal(link.certificate().as_ref()) {
                tracing::warn!(%error, host = %link.name, "a host of the swarm is disconnected");
                self.cannot_reach(link.key, &error);
                self.disconnected(link.peer);
            } else if from.is_none_or(|from| from.peer != link.peer) {
                self.tell_trust(&link);
            }
        }
    }

    /// Tells a host the list that is known here.
    pub(super) fn tell_trust(&self, link: &Link) {
        if let Some(bytes) = self.trust.current().filter(|_| link.protocol > VERSION_1)
            && link.outbox.control(Kind::Trust, 0, &bytes).is_err()
        {
            // It does not read.
            link.close();
        }
    }
}

impl super::Swarm {
    /// Tells this host and all others a list that the authority signed: hosts that are revoked, and a gossip key. The
    /// names of the hosts that it goes to at once; those tell others.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where the authority has not signed it, [`ErrorKind::Conflict`] where a later one is
    /// known.
    pub fn publish_trust(&self, list: &[u8]) -> Result<Vec<String>> {
        self.host.trust_told(None, list)?;
        let links = self.host.links();
        Ok(links
            .into_iter()
            .filter(|(link, _)| link.protocol > VERSION_1)
            .map(|(link, _)| link.name.clone())
            .collect())
    }
}
