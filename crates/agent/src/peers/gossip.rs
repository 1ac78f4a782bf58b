//! Who is there: a gossip library over datagrams that only hosts of the cluster can make or read.
//!
//! What a host tells the others is its name and where its connections are accepted. None of that is believed any
//! further than that it is tried: who answers there has to prove that he has the name.
//!
//! # A datagram
//!
//! ```text
//! 0    1   version, 1
//! 1    12  nonce, drawn
//! 13   ..  sealed by AES-256-GCM-SIV under the cluster's gossip key, with the version as what is bound to it
//!          0  1  part, 0 of 1 (0x01), 0 of 2 (0x02) or 1 of 2 (0x12)
//!          1  8  which message it is a part of, drawn
//!          9  .. the message
//! ..   16  tag
//! ```
//!
//! The nonce is drawn, since hosts share the key and nothing else; the cipher is one that a nonce drawn twice does not
//! break. The library fills a datagram to the last byte, so what does not fit any more goes in two. Where security is
//! none, the sealed part is as it is and there is no tag.

use crate::peers::frame::NAME_MAX;
use anyhow::Context;
use async_trait::async_trait;
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use chitchat::transport::{Socket, Transport};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable, FailureDetectorConfig,
    NodeState, Serializable, spawn_chitchat,
};
use headstart_block::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::watch;

/// How often each host talks to a few others.
const EVERY: Duration = Duration::from_millis(500);

/// The pause after a datagram could not be received.
const AFTER_ERROR: Duration = Duration::from_millis(2);

/// Most bytes of a datagram.
const DATAGRAM: usize = 65_507;

const VERSION: u8 = 1;
const TAG: usize = 16;
const PART_HEAD: usize = 9;

/// Halves of messages whose other half has not come, at most.
const HALVES_MAX: usize = 64;

/// Addresses of hosts of other clusters that are remembered, at most.
const STRAYS_MAX: usize = 64;

/// Hosts that are looked at, at most.
const MEMBERS_MAX: usize = 65_536;

/// Hosts of this one's name that are looked at, at most.
const NAMESAKES_MAX: usize = 8;

/// What a host tells the others of itself.
const ADDRESS: &str = "swarm";

/// Another host, as it says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) address: SocketAddr,
}

/// The hosts that gossip names.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// All but this one, by name.
    pub(super) others: Vec<Member>,
    /// Hosts that say that they have this one's name, elsewhere: another host, or what is left of an earlier run.
    pub(super) namesakes: Vec<Member>,
}

/// Takes part in the gossip as long as it lives.
pub(super) struct Gossip {
    handle: ChitchatHandle,
    nodes: watch::Receiver<BTreeMap<ChitchatId, NodeState>>,
    own: Member,
}

impl Gossip {
    /// Joins those that can be reached of `seeds` (`host:port`), and goes on trying the others.
    ///
    /// # Errors
    /// Where the library cannot be started.
    pub(super) async fn join(
        socket: UdpSocket,
        key: Option<[u8; 32]>,
        name: &str,
        address: SocketAddr,
        seeds: Vec<String>,
        refused: Arc<Strays>,
    ) -> Result<Self> {
        let failed = |e: anyhow::Error| {
            Error::new(ErrorKind::Io, "cannot gossip with other hosts").caused_by(e.into_boxed_dyn_error())
        };
        let listen_addr = socket.local_addr().map_err(|e| Error::io("has no address", e))?;
        let id = ChitchatId::new(name.to_owned(), generation(), address);
        let seed_addresses: Vec<SocketAddr> = seeds.iter().filter_map(|seed| seed.parse().ok()).collect();
        let config = ChitchatConfig {
            chitchat_id: id,
            cluster_id: "headstart swarm".into(),
            gossip_interval: EVERY,
            listen_addr,
            seed_nodes: seeds,
            failure_detector_config: FailureDetectorConfig {
                dead_node_grace_period: Duration::from_secs(3600),
                ..FailureDetectorConfig::default()
            },
            marked_for_deletion_grace_period: Duration::from_secs(3600),
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let transport = Sealed::new(socket, key, refused)?;
        let values = vec![(ADDRESS.to_owned(), address.to_string())];
        let handle = spawn_chitchat(config, values, &transport).await.map_err(failed)?;
        for seed in seed_addresses {
            handle.gossip(seed).map_err(failed)?;
        }
        let nodes = handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        Ok(Self { handle, nodes, own: Member { name: name.to_owned(), address } })
    }

    /// The other hosts, once they are not the same as before; `None` where there will be no more news.
    pub(super) async fn changed(&mut self) -> Option<Members> {
        self.nodes.changed().await.ok()?;
        let nodes = self.nodes.borrow_and_update();
        let members = nodes
            .iter()
            .filter(|(id, _)| id.node_id.len() <= NAME_MAX)
            .filter_map(|(id, state)| {
                Some(Member { name: id.node_id.to_string(), address: state.get(ADDRESS)?.parse().ok()? })
            })
            .filter(|member| *member != self.own)
            .take(MEMBERS_MAX);
        let (mut namesakes, mut others): (Vec<_>, Vec<_>) =
            members.partition(|member| member.name == self.own.name);
        others.sort_unstable();
        namesakes.truncate(NAMESAKES_MAX);
        Some(Members { others, namesakes })
    }

    pub(super) async fn leave(self) {
        if let Err(error) = self.handle.shutdown().await {
            tracing::debug!(%error, "the gossip ended with an error");
        }
    }
}

/// Greater each time that a host starts.
#[expect(clippy::disallowed_methods, reason = "the gossip library tells runs of a host apart by the time")]
fn generation() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Seals and opens datagrams.
pub(super) struct Seal {
    key: Option<LessSafeKey>,
}

/// A part of a message.
struct Part {
    /// Which, and of how many.
    index: u8,
    count: u8,
    message: u64,
    bytes: Vec<u8>,
}

impl Seal {
    pub(super) fn new(key: Option<[u8; 32]>) -> Result<Self> {
        let key = key.map(|key| UnboundKey::new(&AES_256_GCM_SIV, &key).map(LessSafeKey::new)).transpose();
        let key = key.map_err(|_| Error::new(ErrorKind::Invalid, "the gossip key cannot be used"))?;
        Ok(Self { key })
    }

    /// The datagrams that carry a message: one, or two where it does not fit.
    fn seal(&self, message: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut drawn = [0; 8];
        aws_lc_rs::rand::fill(&mut drawn).ok()?;
        let room = DATAGRAM - 1 - NONCE_LEN - PART_HEAD - TAG;
        if message.len() <= room {
            return Some(vec![self.seal_part(0x01, drawn, message)?]);
        }
        if message.len() > 2 * room {
            return None;
        }
        let (head, tail) = message.split_at(room);
        Some(vec![self.seal_part(0x02, drawn, head)?, self.seal_part(0x12, drawn, tail)?])
    }

    fn seal_part(&self, part: u8, message: [u8; 8], bytes: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = Vec::with_capacity(PART_HEAD + bytes.len() + TAG);
        sealed.push(part);
        sealed.extend_from_slice(&message);
        sealed.extend_from_slice(bytes);
        if let Some(key) = &self.key {
            let nonce = Nonce::assume_unique_for_key(nonce);
            key.seal_in_place_append_tag(nonce, Aad::from([VERSION]), &mut sealed).ok()?;
        }
        let mut datagram = Vec::with_capacity(1 + NONCE_LEN + sealed.len());
        datagram.push(VERSION);
        datagram.extend_from_slice(&nonce);
        datagram.append(&mut sealed);
        Some(datagram)
    }

    /// What is in a datagram, if it was made by a host of the cluster.
    fn open(&self, datagram: &mut [u8]) -> Option<Part> {
        let (head, sealed) = datagram.split_at_mut_checked(1 + NONCE_LEN)?;
        let (version, nonce) = head.split_first()?;
        if *version != VERSION {
            return None;
        }
        let opened = match &self.key {
            None => sealed,
            Some(key) => {
                let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
                key.open_in_place(nonce, Aad::from([VERSION]), sealed).ok()?
            }
        };
        let (head, bytes) = opened.split_at_checked(PART_HEAD)?;
        let (part, message) = head.split_first()?;
        let message = u64::from_le_bytes(message.try_into().ok()?);
        let (index, count) = (part >> 4, part & 0xf);
        let fits = (1..=2).contains(&count) && index < count;
        fits.then(|| Part { index, count, message, bytes: bytes.to_vec() })
    }
}

/// The sealed transport of the library.
struct Sealed {
    /// Bound already: taken when the library opens it, once.
    socket: Mutex<Option<UdpSocket>>,
    seal: Arc<Seal>,
    strays: Arc<Strays>,
}

impl Sealed {
    fn new(socket: UdpSocket, key: Option<[u8; 32]>, strays: Arc<Strays>) -> Result<Self> {
        Ok(Self { socket: Mutex::new(Some(socket)), seal: Arc::new(Seal::new(key)?), strays })
    }
}

/// Datagrams that no host of the cluster made.
#[derive(Default)]
pub(super) struct Strays {
    /// How many.
    pub(super) count: AtomicU64,
    /// Whence, so that each address is named once.
    from: Mutex<BTreeSet<IpAddr>>,
}

impl Strays {
    /// One came.
    fn add(&self, from: IpAddr) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut known = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < STRAYS_MAX && known.insert(from) {
            tracing::warn!(
                address = %from,
                remedy = "where that is a host of this cluster, copy what `headstart swarm init` made for it again",
                "datagrams come that are not sealed by this cluster's gossip key: a host of another cluster joins \
                 this one, or one whose key is not the same"
            );
        }
    }
}

#[async_trait]
impl Transport for Sealed {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Box::new(SealedSocket {
            socket: socket.context("the socket is in use")?,
            seal: Arc::clone(&self.seal),
            strays: Arc::clone(&self.strays),
            datagram: vec![0; DATAGRAM],
            halves: VecDeque::new(),
        }))
    }
}

struct SealedSocket {
    socket: UdpSocket,
    seal: Arc<Seal>,
    strays: Arc<Strays>,
    datagram: Vec<u8>,
    halves: VecDeque<(SocketAddr, Part)>,
}

/// The message that a part completes. A half waits for the other one.
fn whole(halves: &mut VecDeque<(SocketAddr, Part)>, from: SocketAddr, part: Part) -> Option<Vec<u8>> {
    if part.count == 1 {
        return Some(part.bytes);
    }
    let is_other = |(sender, half): &(SocketAddr, Part)| {
        *sender == from && half.message == part.message && half.index != part.index
    };
    let Some((_, other)) = halves.iter().position(is_other).and_then(|at| halves.remove(at)) else {
        if halves.len() >= HALVES_MAX {
            halves.pop_front();
        }
        halves.push_back((from, part));
        return None;
    };
    let (mut head, tail) =
        if part.index == 0 { (part.bytes, other.bytes) } else { (other.bytes, part.bytes) };
    head.extend_from_slice(&tail);
    Some(head)
}

#[async_trait]
impl Socket for SealedSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        message.serialize(&mut bytes);
        for datagram in self.seal.seal(&bytes).context("a message cannot be sealed")? {
            self.socket.send_to(&datagram, to).await?;
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            // An error is about a datagram that was sent before, to somebody who is not there. Where it is not, and
            // stays, that is no reason to try as fast as a processor can.
            let Ok((len, from)) = self.socket.recv_from(&mut self.datagram).await else {
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            };
            let part = self.datagram.get_mut(..len).and_then(|datagram| self.seal.open(datagram));
            let Some(part) = part else {
                self.strays.add(from.ip());
                continue;
            };
            let Some(bytes) = whole(&mut self.halves, from, part) else { continue };
            match ChitchatMessage::deserialize(&mut &bytes[..]) {
                Ok(message) => return Ok((from, message)),
                Err(_) => self.strays.add(from.ip()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_key_opens() {
        let seal = Seal::new(Some([1; 32])).unwrap();
        for len in [0, 1, 1000, 65_000, 65_507, 100_000] {
            let message: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let datagrams = seal.seal(&message).unwrap();
            assert!(datagrams.iter().all(|datagram| datagram.len() <= DATAGRAM));
            let from = SocketAddr::from(([127, 0, 0, 1], 1));
            let mut halves = VecDeque::new();
            let mut came = None;
            // In the wrong order, too.
            for mut datagram in datagrams.into_iter().rev() {
                let mut wrong = datagram.clone();
                assert!(Seal::new(Some([2; 32])).unwrap().open(&mut wrong).is_none());
                let mut flipped = datagram.clone();
                if let Some(last) = flipped.last_mut() {
                    *last ^= 1;
                }
                assert!(seal.open(&mut flipped).is_none());
                came = whole(&mut halves, from, seal.open(&mut datagram).unwrap());
            }
            assert_eq!(came.as_deref(), Some(&message[..]));
        }
        assert!(seal.open(&mut []).is_none());
        assert!(seal.open(&mut [1; 40]).is_none());
    }
}
