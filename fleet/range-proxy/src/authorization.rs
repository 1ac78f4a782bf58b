//! The right of a client to a blob: the client's server gave some of its bytes.

use crate::request::ClientRequest;
use crate::{ProxyState, add, local};
use futures::future::{join_all, try_join_all};
use headstart_block::{ByteRange, Digest, Error, ErrorKind, Result};
use headstart_peer_net::SharedBlob;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The time for which a server's decision holds.
const FRESH: Duration = Duration::from_secs(60);

/// The time for which it holds while the server cannot be reached.
const STALE: Duration = Duration::from_secs(3600);

/// The time after a refusal in which a client's server is not asked again.
const REFUSED: Duration = Duration::from_secs(10);

/// The time for which no client is accepted for a blob after a server gave other bytes of it, or only some.
const DOUBT: Duration = Duration::from_secs(60);

/// The time for which a client without requests is remembered; its blob is in use meanwhile.
const UNUSED: Duration = Duration::from_secs(600);

/// The most remembered pairs of clients and blobs.
const REMEMBERED_MAX: usize = 4096;

/// The bytes of a part that a server has to give, and the number of parts. An attempt costs a minute unless no part at
/// all comes: a client that knows a tenth of a blob passes once in some three thousand minutes.
const PART: u64 = 16 << 10;
const PARTS: usize = 4;

/// The clients that may have blobs, and the blobs that are doubted.
#[derive(Default)]
pub(super) struct Authorizations {
    clients: Mutex<HashMap<[u8; 32], Arc<Client>>>,
    /// The doubted blobs, and the start of each doubt.
    doubted: Mutex<HashMap<Digest, Instant>>,
}

/// A client's requests for a blob: all requests with the same authorization.
struct Client {
    decision: tokio::sync::Mutex<Decision>,
    used: Mutex<Instant>,
}

/// The last decision of the client's server.
#[derive(Clone)]
enum Decision {
    Nothing,
    Refused(Instant),
    Accepted(Instant, Arc<SharedBlob>),
}

impl Authorizations {
    fn known(&self, key: &[u8; 32]) -> Option<Arc<Client>> {
        let client = self.clients.lock().get(key).map(Arc::clone)?;
        *client.used.lock() = Instant::now();
        Some(client)
    }

    fn add(&self, key: [u8; 32]) -> Arc<Client> {
        let now = Instant::now();
        let mut clients = self.clients.lock();
        if clients.len() >= REMEMBERED_MAX || clients.len().is_power_of_two() {
            clients.retain(|_, client| now.duration_since(*client.used.lock()) < UNUSED);
        }
        if clients.len() >= REMEMBERED_MAX {
            let oldest = clients.iter().min_by_key(|(_, client)| *client.used.lock()).map(|(key, _)| *key);
            oldest.and_then(|key| clients.remove(&key));
        }
        let new = || Arc::new(Client { decision: Decision::Nothing.into(), used: Mutex::new(now) });
        Arc::clone(clients.entry(key).or_insert_with(new))
    }

    /// Leaves the blobs of clients without requests.
    pub(super) fn forget_unused(&self) {
        let now = Instant::now();
        self.clients.lock().retain(|_, client| now.duration_since(*client.used.lock()) < UNUSED);
    }

    fn doubt(&self, digest: Digest) {
        let now = Instant::now();
        let mut doubted = self.doubted.lock();
        doubted.retain(|_, since| now.duration_since(*since) < DOUBT);
        doubted.insert(digest, now);
    }

    fn is_doubted(&self, digest: &Digest) -> bool {
        self.doubted.lock().get(digest).is_some_and(|since| since.elapsed() < DOUBT)
    }
}

impl ProxyState {
    /// The requested blob, if this host takes part in it and the client may have it.
    pub(super) async fn authorized(
        &self,
        client_request: &ClientRequest,
        digest: &Digest,
    ) -> Option<Arc<SharedBlob>> {
        let key = client_request.key();
        let client = match self.authorizations.known(&key) {
            Some(client) => client,
            None => {
                // Nothing is remembered of blobs that this host has no part in.
                self.swarm.find(digest)?;
                self.authorizations.add(key)
            }
        };
        // Other requests of the client wait for the same answer.
        let mut decision = client.decision.lock().await;
        let (blob, before) = match &*decision {
            Decision::Accepted(at, blob) if at.elapsed() < FRESH => return Some(Arc::clone(blob)),
            Decision::Accepted(at, blob) => (Arc::clone(blob), Some(*at)),
            Decision::Refused(at) if at.elapsed() < REFUSED => return None,
            Decision::Refused(_) | Decision::Nothing => (Arc::new(self.swarm.find(digest)?), None),
        };
        if self.authorizations.is_doubted(digest) {
            return None;
        }
        add(&self.counts.checks, 1);
        let now = Instant::now();
        match self.check(client_request, &blob).await {
            Ok(()) => *decision = Decision::Accepted(now, Arc::clone(&blob)),
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tracing::debug!(%error, blob = %digest, "it cannot be said whether a client may have a blob");
                // The earlier decision holds for a while.
                if before.is_none_or(|at| at.elapsed() >= STALE) {
                    *decision = Decision::Refused(now);
                }
            }
            Err(error) => {
                tracing::debug!(%error, blob = %digest, "a client may not have a blob");
                *decision = Decision::Refused(now);
            }
        }
        matches!(*decision, Decision::Accepted(..)).then_some(blob)
    }

    /// Checks that the client's server gives it bytes of this very blob.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server cannot be asked; [`ErrorKind::Denied`] if it refuses;
    /// [`ErrorKind::Corrupt`] if the bytes are others, or only some come.
    async fn check(&self, client_request: &ClientRequest, blob: &SharedBlob) -> Result<()> {
        let len = blob.blob().spec().len;
        let parts = draw(len)?;
        // A refused client causes no fetch.
        let theirs = join_all(parts.iter().map(|part| self.upstream.read(client_request, *part, len))).await;
        if theirs.iter().any(Result::is_ok) && theirs.iter().any(Result::is_err) {
            return Err(self.is_doubtful(
                client_request,
                blob,
                "a client's server has a part of this blob's bytes",
            ));
        }
        let theirs = theirs.into_iter().collect::<Result<Vec<_>>>()?;
        let away = |e: Error| Error::new(ErrorKind::Unavailable, "the blob cannot be read").caused_by(e);
        let ours = try_join_all(parts.iter().map(|part| local(blob, *part))).await.map_err(away)?;
        if theirs == ours {
            return Ok(());
        }
        Err(self.is_doubtful(client_request, blob, "a client's server has other bytes than this blob's"))
    }

    /// Accepts no client for a blob for a while.
    fn is_doubtful(&self, client_request: &ClientRequest, blob: &SharedBlob, cause: &'static str) -> Error {
        add(&self.counts.impostors, 1);
        let digest = blob.blob().spec().digest;
        self.authorizations.doubt(digest);
        let host = client_request.url.host_str().unwrap_or_default();
        tracing::warn!(blob = %digest, host, "{cause}");
        Error::corrupt(cause)
    }
}

/// Random parts of a blob of that length; all of a short one.
fn draw(len: u64) -> Result<Vec<ByteRange>> {
    if len <= PART * PARTS as u64 {
        return Ok(vec![ByteRange::between(0, len)]);
    }
    let mut lots = [[0; 8]; PARTS];
    let drawn = aws_lc_rs::rand::fill(lots.as_flattened_mut());
    drawn.map_err(|_| Error::new(ErrorKind::Unavailable, "this host has no random numbers"))?;
    let part = |lot: [u8; 8]| {
        // The bias is at most one in 2^40.
        let start = u64::from_le_bytes(lot) % (len - PART + 1);
        ByteRange::between(start, start + PART)
    };
    Ok(lots.into_iter().map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_the_blob() {
        for len in [1, PART, PART * PARTS as u64] {
            assert_eq!(draw(len).unwrap(), [ByteRange::between(0, len)]);
        }
        for len in [PART * PARTS as u64 + 1, 1 << 20, u64::MAX] {
            for part in draw(len).unwrap() {
                assert!(part.len() == PART && part.end() <= len, "{part:?} of {len}");
            }
        }
        assert_ne!(draw(1 << 40).unwrap(), draw(1 << 40).unwrap());
    }
}
