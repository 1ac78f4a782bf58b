//! The authority's list on this host: the revoked hosts, and the gossip key.
//!
//! Two hosts that connect send each other the lists that they have, and a host that accepts a later one sends it to all
//! hosts that it is connected to. So a list is everywhere as soon as it is at one host of the swarm, and at hosts that
//! were away once they are connected again. It is stored on disk before it is in force. Hosts that it revokes are
//! disconnected, and refused from then on. Of two gossip keys the earlier one still opens datagrams for a while, and
//! seals none.
//!
//! Hosts of protocol version 1 get no list: they find no other hosts once the key has changed.

use crate::credentials::{Credentials, HostCertificate, TRUST_LIST_MAX, TrustList};
use crate::frame::{FrameKind, VERSION_1};
use crate::gossip::Seal;
use crate::host::Host;
use crate::host::link::Link;
use headstart_block::{Error, ErrorKind, Result};
use headstart_daemon::file::{self, Readers};
use parking_lot::{Mutex, MutexGuard};
use rustls::pki_types::CertificateDer;
use std::path::PathBuf;
use std::sync::Arc;

/// The time for which gossip under an earlier key is still opened, in milliseconds.
const OVERLAP_MS: u64 = 60_000;

/// The time after which a list that could not be stored is written again, in milliseconds.
const AGAIN_MS: u64 = 10_000;

/// This host's state of its authority's lists.
pub(crate) struct Trust {
    authorities: Vec<CertificateDer<'static>>,
    own: Option<HostCertificate>,
    seal: Arc<Seal>,
    /// The file of the list.
    file: Option<PathBuf>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    list: Option<(TrustList, Arc<Vec<u8>>)>,
    /// The time at which the gossip key changed, in milliseconds of the host's clock; `None` as long as it did not.
    rekeyed_ms: Option<u64>,
    /// The number of the list for which a conflict with another host's list was logged.
    said_conflict: Option<u64>,
    /// The time at which the list is written again, in milliseconds of the host's clock, because it is not in its file.
    unkept: Option<u64>,
}

/// The error of two lists of the authority with one number.
fn conflict(number: u64) -> Error {
    let error =
        Error::new(ErrorKind::Conflict, format!("the swarm has another list {number} of its authority's"));
    error.remedy(
        "two copies of the cluster's directory sign lists: keep one, repeat what the other one revoked there, and run \
         `headstart swarm rekey` until its list has a higher number",
    )
}

/// The result of receiving a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offered {
    /// The list is later than the known one, and replaces it.
    Taken,
    Known,
    Earlier,
}

impl Trust {
    /// The lists of a cluster, from `file` and from the credentials.
    ///
    /// # Errors
    /// Errors of reading. A list that its authority has not signed is ignored with a warning.
    pub(crate) fn open(credentials: &Credentials, file: Option<PathBuf>, seal: Arc<Seal>) -> Result<Self> {
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

    /// The state of hosts without certificates: no host can be revoked.
    pub(crate) fn none(seal: Arc<Seal>) -> Self {
        Self { authorities: Vec::new(), own: None, seal, file: None, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Accepts a list if it is later than the known one.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if it is another list of the same number; as [`TrustList::open`].
    fn offer(&self, bytes: &[u8], now_ms: u64) -> Result<Offered> {
        let list = TrustList::open(bytes, &self.authorities)?;
        let mut held = self.held();
        match &held.list {
            Some((known, _)) if list.number < known.number => return Ok(Offered::Earlier),
            Some((known, _)) if list == *known => {
                if held.unkept.is_some() {
                    self.keep(&mut held, now_ms);
                }
                return Ok(Offered::Known);
            }
            Some((known, _)) if list.number == known.number => return Err(conflict(list.number)),
            _ => {}
        }
        if self.seal.rekey(list.gossip_key)? {
            held.rekeyed_ms = Some(now_ms);
        }
        held.list = Some((list, Arc::new(bytes.to_vec())));
        held.unkept = None;
        self.keep(&mut held, now_ms);
        Ok(Offered::Taken)
    }

    /// Writes the list to its file, or sets the time of the next attempt.
    fn keep(&self, held: &mut Held, now_ms: u64) {
        let (Some(file), Some((_, bytes))) = (&self.file, &held.list) else { return };
        let was_said = held.unkept.is_some();
        held.unkept = match file::replace(file, bytes, Readers::Owner) {
            Ok(()) => None,
            Err(error) => {
                if was_said {
                    tracing::debug!(%error, "the list of revoked hosts cannot be kept yet");
                } else {
                    tracing::warn!(%error, "the list of revoked hosts is not kept, and written again until it is");
                }
                Some(now_ms.saturating_add(AGAIN_MS))
            }
        };
    }

    /// Returns `true` if the conflict of two lists with the known number was not logged yet.
    fn is_news_of_conflict(&self) -> bool {
        let mut held = self.held();
        let number = held.list.as_ref().map(|(list, _)| list.number);
        std::mem::replace(&mut held.said_conflict, number) != number
    }

    /// The list in the form that others receive.
    pub(crate) fn current(&self) -> Option<Arc<Vec<u8>>> {
        self.held().list.as_ref().map(|(_, bytes)| Arc::clone(bytes))
    }

    /// The error that refuses a host with this certificate, if it is revoked.
    pub(crate) fn refusal(&self, certificate: Option<&HostCertificate>) -> Option<Error> {
        let certificate = certificate?;
        let held = self.held();
        let revoked = held.list.as_ref()?.0.revocation(certificate)?;
        let error = Error::new(
            ErrorKind::Denied,
            format!("`{}` was revoked by the cluster's authority", revoked.name),
        );
        Some(error.remedy(format!(
            "to add it again, run `headstart swarm init DIR --host {}` where the authority is, and copy the files \
             that it makes",
            revoked.name
        )))
    }

    /// Drops the earlier gossip key once its time is over, and stores a list that could not be stored.
    pub(crate) fn tick(&self, now_ms: u64) {
        let mut held = self.held();
        if held.unkept.is_some_and(|at| now_ms >= at) {
            self.keep(&mut held, now_ms);
        }
        if held.rekeyed_ms.is_some_and(|since| now_ms.saturating_sub(since) >= OVERLAP_MS) {
            held.rekeyed_ms = None;
            self.seal.give_up_previous();
        }
    }
}

impl Host {
    /// Handles a list of the authority from another host, or from this host's user.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the authority has not signed it, [`ErrorKind::Unsupported`] if it is of another
    /// version; [`ErrorKind::Conflict`] if this host's user sends one that is not later than the known one.
    pub(crate) fn on_trust_list(self: &Arc<Self>, from: Option<&Link>, bytes: &[u8]) -> Result<()> {
        let offered = match tokio::task::block_in_place(|| self.trust.offer(bytes, self.now_ms())) {
            // The other host broke no rule. Both go on with their lists until there is a later one.
            Err(error) if error.kind() == ErrorKind::Conflict && from.is_some() => {
                if self.trust.is_news_of_conflict() {
                    let host = from.map(|link| link.name.as_str()).unwrap_or_default();
                    tracing::warn!(%error, host, "a list of revoked hosts is not taken");
                }
                return Ok(());
            }
            offered => offered?,
        };
        match offered {
            Offered::Taken => self.trust_changed(from),
            Offered::Known if from.is_none() => {
                self.links().iter().for_each(|(link, _)| self.send_trust_list(link));
            }
            Offered::Known => {}
            Offered::Earlier => match from {
                Some(link) => self.send_trust_list(link),
                None => {
                    let error =
                        Error::new(ErrorKind::Conflict, "the swarm has a later list of its authority's");
                    return Err(error.remedy("sign the next one in the directory that has the latest"));
                }
            },
        }
        Ok(())
    }

    /// Disconnects the hosts that the list revokes, and sends it to all others.
    fn trust_changed(self: &Arc<Self>, from: Option<&Link>) {
        if let Some(error) = self.trust.refusal(self.trust.own.as_ref()) {
            tracing::warn!(%error, "this host is not a member of the swarm any more; its disks go on");
        }
        for (link, _) in self.links() {
            if let Some(error) = self.trust.refusal(link.certificate().as_ref()) {
                tracing::warn!(%error, host = %link.name, "a host of the swarm is disconnected");
                self.cannot_reach(link.key, &error);
                self.disconnected(link.peer);
            } else if from.is_none_or(|from| from.peer != link.peer) {
                self.send_trust_list(&link);
            }
        }
    }

    /// Sends a host the list that is known here.
    pub(crate) fn send_trust_list(&self, link: &Link) {
        if let Some(bytes) = self.trust.current().filter(|_| link.protocol > VERSION_1)
            && link.outbox.control(FrameKind::Trust, 0, &bytes).is_err()
        {
            // The host does not read.
            link.close();
        }
    }
}

impl crate::Swarm {
    /// Applies a trust list that the authority signed (revoked hosts, and a gossip key) on this host, and sends it to
    /// the connected hosts that understand it (version 2 of the connection format), which pass it on. Returns the names
    /// of the connected hosts that it is sent to.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the authority has not signed the list, [`ErrorKind::Unsupported`] if the list is of
    /// another version, [`ErrorKind::Conflict`] if this host has a list with a higher number, or a different one with
    /// the same number.
    pub fn publish_trust(&self, list: &[u8]) -> Result<Vec<String>> {
        self.host.on_trust_list(None, list)?;
        let links = self.host.links();
        Ok(links
            .into_iter()
            .filter(|(link, _)| link.protocol > VERSION_1)
            .map(|(link, _)| link.name.clone())
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair};

    fn list(number: u64, key: u8) -> TrustList {
        TrustList { number, signed_at: 5, revoked: Vec::new(), gossip_key: [key; 32] }
    }

    #[test]
    fn a_list_that_could_not_be_kept_is_kept_as_soon_as_that_works() {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let seal = Arc::new(Seal::new(Some([9; 32])).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trust");
        let authorities = vec![certificate.der().clone()];
        let trust = Trust { authorities, file: Some(file.clone()), ..Trust::none(seal) };
        // A directory that is not empty is in the way of the new file.
        let in_the_way = dir.path().join("trust.new");
        std::fs::create_dir_all(in_the_way.join("x")).unwrap();
        let (first, second) = (list(1, 1).sign(&key).unwrap(), list(2, 2).sign(&key).unwrap());
        assert_eq!(trust.offer(&first, 0).unwrap(), Offered::Taken);
        trust.tick(AGAIN_MS);
        assert!(!file.exists());
        std::fs::remove_dir_all(&in_the_way).unwrap();
        trust.tick(2 * AGAIN_MS - 1);
        assert!(!file.exists());
        trust.tick(2 * AGAIN_MS);
        assert_eq!(std::fs::read(&file).unwrap(), first);
        // The same holds when it is received again.
        std::fs::create_dir_all(in_the_way.join("x")).unwrap();
        assert_eq!(trust.offer(&second, 0).unwrap(), Offered::Taken);
        std::fs::remove_dir_all(&in_the_way).unwrap();
        assert_eq!(trust.offer(&second, 1).unwrap(), Offered::Known);
        assert_eq!(std::fs::read(&file).unwrap(), second);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn of_all_lists_the_first_of_the_highest_number_counts_and_another_of_it_is_a_conflict(
            offers in prop::collection::vec((1u64..4, 0u8..3), 1..12),
        ) {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::default().self_signed(&key).unwrap();
            let seal = Arc::new(Seal::new(Some([9; 32])).unwrap());
            let trust = Trust { authorities: vec![certificate.der().clone()], ..Trust::none(seal) };
            let mut known: Option<(u64, u8)> = None;
            for (number, gossip_key) in offers {
                // It is signed again each time: another signature makes it no other list.
                let offered = trust.offer(&list(number, gossip_key).sign(&key).unwrap(), 0);
                let expected = match known {
                    Some((before, _)) if number < before => Ok(Offered::Earlier),
                    Some(before) if before == (number, gossip_key) => Ok(Offered::Known),
                    Some((before, _)) if number == before => Err(ErrorKind::Conflict),
                    _ => Ok(Offered::Taken),
                };
                if expected == Ok(Offered::Taken) {
                    known = Some((number, gossip_key));
                }
                prop_assert_eq!(offered.map_err(|error| error.kind()), expected);
            }
            let current = TrustList::open(&trust.current().unwrap(), &trust.authorities).unwrap();
            prop_assert_eq!(Some(current), known.map(|(number, key)| list(number, key)));
        }
    }
}
