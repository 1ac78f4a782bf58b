//! The library's own coding of entries, which it shows to no caller: it turns them into bytes and back only where it
//! sends and receives datagrams itself. So a socket of the library and one of this host's exchange these datagrams over
//! the loopback interface, and the messages between hosts stay sealed, in datagrams that the library never sees.
//!
//! ```text
//!   library  -- entries -->  library's socket  -- loopback -->  own socket  -- bytes -->  seal, the other host
//!   library  <-- entries --  library's socket  <-- loopback --  own socket  <-- bytes --  the other host, seal
//! ```
//!
//! * A datagram here always is a message that asks, in version 1 of the library's messages, in which entries take the
//!   least room: those of two datagrams in version 0, which hosts exchange, have room in one.
//! * Each message has two sockets of its own, for the moment that it takes. So none is late or taken for another, and
//!   an empty socket of any size has room for it.
//! * The library unpacks a datagram before its sender can be compared. So that no other process of this host can have
//!   it unpack one, each socket has an address of its own in 127.0.0.0/8, drawn from 16 million: a stranger would have
//!   to guess address and port within the moment. What comes from any address but that of the other socket does not
//!   count.
//! * Changes need none of this, because the library shows their coding.

use super::blocks;
use super::inspection::{Kind, MAGIC, VERSION, count};
use super::seal::DATAGRAM;
use anyhow::{Context, Result, bail, ensure};
use chitchat::transport::{Socket, UdpSocket};
use chitchat::{ChitchatEnvelope, ChitchatMessage, Deserializable, ProtocolVersion, Serializable};
use rustix::io::Errno;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// An address of the loopback interface that no other process can guess, with a port that the kernel chooses.
fn drawn_address() -> Result<SocketAddr> {
    let mut drawn = [0; 3];
    aws_lc_rs::rand::fill(&mut drawn).context("cannot draw an address")?;
    // The first and the last address of a network are not for hosts.
    let [a, b, c] = drawn.map(|byte| byte.clamp(1, 254));
    Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, a, b, c)), 0))
}

/// Bytes of a datagram before its entries, and those after them: no name of a cluster.
const HEAD: usize = 4;
const NO_NAME: [u8; 2] = [0; 2];

/// Most bytes of entries in a datagram, as a stream of blocks.
const ENTRIES_ROOM: usize = DATAGRAM - HEAD - NO_NAME.len();

/// Most bytes of all entries that a host knows, packed. The library panics on messages that ask once its entries have
/// more than 65,403: its task is ended before, so that this host's run goes on. Entries do not grow by as much as the
/// rest of that at once, unless a host that has the gossip key names what is not there.
const ENTRIES_LEN_MAX: usize = 64_000;

/// No changes.
const UNCHANGED: &[u8] = &[0];

/// The time after which a datagram over loopback is lost. Even a host with very much to do takes far less.
const LOST_AFTER: Duration = Duration::from_secs(2);

const LOST: &str = "a datagram over the loopback interface is lost";

const NOT_CARRIED: &str =
    "the gossip library's messages go over this host's loopback interface, which does not carry them";

/// An operator's remedy for that.
pub(super) const REMEDY: &str = "see that `lo` is up and has 127.0.0.0/8, that no firewall rule drops UDP there, \
     and that no process holds all UDP ports (ss -ulnp)";

/// A message of this host, in its parts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    kind: Kind,
    /// The entries after their number, if the kind has some.
    entries: Vec<u8>,
    /// The bytes after the entries: the cluster's name, or changes.
    rest: Vec<u8>,
}

impl Outgoing {
    /// The first result of `fit` that is one: of the whole message, or of an answer without its changes. The other host
    /// gets these once this host has asked that one.
    pub(super) fn first<T>(&self, fit: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let whole = fit(&self.bytes(&self.rest));
        if self.kind.has_changes() { whole.or_else(|| fit(&self.bytes(UNCHANGED))) } else { whole }
    }

    fn bytes(&self, rest: &[u8]) -> Vec<u8> {
        [&MAGIC.to_le_bytes()[..], &[VERSION, self.kind.code()], &self.entries, rest].concat()
    }
}

/// Has the library write a message; `None` if its entries are more than a host holds.
///
/// # Errors
/// If the loopback interface does not carry it.
pub(super) async fn write(message: ChitchatMessage) -> Result<Option<Outgoing>> {
    let mut rest = Vec::new();
    let (kind, digest) = match message {
        ChitchatMessage::Syn { cluster_id, digest } => {
            cluster_id.serialize(&mut rest);
            (Kind::Syn, digest)
        }
        ChitchatMessage::SynAck { digest, delta } => {
            delta.serialize(&mut rest);
            (Kind::SynAck, digest)
        }
        ChitchatMessage::Ack { delta } => {
            delta.serialize(&mut rest);
            return Ok(Some(Outgoing { kind: Kind::Ack, entries: Vec::new(), rest }));
        }
        ChitchatMessage::BadCluster => {
            return Ok(Some(Outgoing { kind: Kind::BadCluster, entries: Vec::new(), rest }));
        }
    };
    let asking = ChitchatMessage::Syn { cluster_id: String::new(), digest };
    let Some(datagram) = written(asking).await? else { return Ok(None) };
    let stream = datagram.get(HEAD..).and_then(|stream| stream.strip_suffix(&NO_NAME));
    let Some(stream) = stream.filter(|stream| stream.len() <= ENTRIES_LEN_MAX) else { return Ok(None) };
    let entries = blocks::split(stream).and_then(|blocks| blocks::unpack(&blocks));
    let entries = entries.context("the library's entries do not unpack")?;
    let Some(count) = count(&entries) else { return Ok(None) };
    let entries = [&count.to_le_bytes()[..], &entries].concat();
    Ok(Some(Outgoing { kind, entries, rest }))
}

/// The datagram in which the library sends a message; `None` if a datagram has no room for it.
async fn written(message: ChitchatMessage) -> Result<Option<Vec<u8>>> {
    let mut library = UdpSocket::open(drawn_address()?).await?;
    let own = tokio::net::UdpSocket::bind(drawn_address()?).await?;
    let envelope = ChitchatEnvelope { version: ProtocolVersion::V1, message };
    match library.send(own.local_addr()?, envelope).await {
        Err(error) if is_too_long(&error) => return Ok(None),
        sent => sent?,
    };
    let (mut datagram, from) = (vec![0; DATAGRAM], library.local_addr()?);
    let lost_at = Instant::now() + LOST_AFTER;
    loop {
        let (len, sender) = timeout_at(lost_at, own.recv_from(&mut datagram)).await.context(LOST)??;
        if sender == from {
            datagram.truncate(len);
            return Ok(Some(datagram));
        }
    }
}

fn is_too_long(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    code == Some(Errno::MSGSIZE.raw_os_error())
}

/// A message on its way to the library.
pub(super) struct Passing {
    /// The message without its entries: one that asks, with the cluster's name; one with the changes; or a refusal.
    rest: ChitchatMessage,
    /// The datagram with its entries; `None` if the message has none.
    datagram: Option<Vec<u8>>,
    /// The sockets, once the datagram is sent.
    sent: Option<Pair>,
}

/// Two sockets: the library receives what this host's one sends.
struct Pair {
    library: UdpSocket,
    own: std::net::UdpSocket,
    lost_at: Instant,
}

impl Passing {
    /// A message of that kind, with these entries and the bytes after them; `None` if it is none that a host sends.
    pub(super) fn of(kind: Kind, entries: Option<&[u8]>, mut rest: &[u8]) -> Option<Self> {
        let rest = match kind {
            Kind::Syn => {
                let cluster_id = Deserializable::deserialize(&mut rest).ok()?;
                ChitchatMessage::Syn { cluster_id, digest: Default::default() }
            }
            Kind::SynAck | Kind::Ack => {
                ChitchatMessage::Ack { delta: Deserializable::deserialize(&mut rest).ok()? }
            }
            Kind::BadCluster => ChitchatMessage::BadCluster,
        };
        let datagram = match entries.map(|entries| blocks::pack(entries, ENTRIES_ROOM)) {
            Some(stream) if stream.len() > ENTRIES_ROOM => return None,
            stream => stream.map(|stream| {
                let head = [ProtocolVersion::V1.to_code(), Kind::Syn.code()];
                [&MAGIC.to_le_bytes()[..], &head, &stream, &NO_NAME].concat()
            }),
        };
        Some(Self { rest, datagram, sent: None })
    }

    /// The message as the library has read it. The future can be dropped, and this be called again.
    ///
    /// # Errors
    /// If the loopback interface does not carry it.
    pub(super) async fn finish(&mut self) -> Result<ChitchatMessage> {
        let read = match &self.datagram {
            None => None,
            Some(datagram) => {
                let pair = match &mut self.sent {
                    Some(pair) => pair,
                    none => {
                        let pair = Pair::open().await?;
                        pair.own.send_to(datagram, pair.library.local_addr()?)?;
                        none.insert(pair)
                    }
                };
                Some(pair.read().await?)
            }
        };
        let rest = std::mem::replace(&mut self.rest, ChitchatMessage::BadCluster);
        Ok(match (read, rest) {
            (None, message) => message,
            (Some(ChitchatMessage::Syn { digest, .. }), ChitchatMessage::Syn { cluster_id, .. }) => {
                ChitchatMessage::Syn { cluster_id, digest }
            }
            (Some(ChitchatMessage::Syn { digest, .. }), ChitchatMessage::Ack { delta }) => {
                ChitchatMessage::SynAck { digest, delta }
            }
            _ => bail!("a message passes twice"),
        })
    }
}

impl Pair {
    async fn open() -> Result<Self> {
        let library = UdpSocket::open(drawn_address()?).await?;
        let own = std::net::UdpSocket::bind(drawn_address()?)?;
        // An empty socket has room at once.
        own.set_nonblocking(true)?;
        Ok(Self { library, own, lost_at: Instant::now() + LOST_AFTER })
    }

    /// The message that the library has received. The future can be dropped, and this be called again.
    async fn read(&mut self) -> Result<ChitchatMessage> {
        let own = self.own.local_addr()?;
        loop {
            let came = timeout_at(self.lost_at, self.library.recv()).await.context(LOST)??;
            if came.from_addr == own {
                return Ok(came.envelope.message);
            }
        }
    }
}

/// Has the library read a message, and write it again.
///
/// # Errors
/// If the loopback interface does not carry it.
pub(super) async fn check() -> Result<()> {
    let checked = async {
        let name = "check".to_owned().serialize_to_vec();
        let mut passing = Passing::of(Kind::Syn, Some(&[]), &name).context("a message cannot be read")?;
        let written = write(passing.finish().await?).await?;
        let same = Outgoing { kind: Kind::Syn, entries: vec![0; 2], rest: name };
        ensure!(written == Some(same), "a message changes on its way");
        Ok::<(), anyhow::Error>(())
    };
    checked.await.map_err(|e| anyhow::anyhow!("{NOT_CARRIED}: {e:#}: {REMEDY}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gossip::inspection::Inspection;
    use crate::gossip::inspection::tests::host;
    use crate::tests::earlier::gossip_messages;
    use crate::tests::gossip::{fleet, naming};

    fn passing(message: &[u8]) -> Passing {
        let found = Inspection::of(message, &host(0)).unwrap();
        Passing::of(found.kind, found.entries, found.rest).unwrap()
    }

    /// A message as the library reads it.
    pub(in super::super) async fn read(message: &[u8]) -> ChitchatMessage {
        passing(message).finish().await.unwrap()
    }

    /// The same message as the library writes it.
    async fn written_again(message: ChitchatMessage) -> Vec<u8> {
        write(message).await.unwrap().unwrap().first(|bytes| Some(bytes.to_vec())).unwrap()
    }

    #[tokio::test]
    async fn the_loopback_interface_carries_messages() {
        check().await.unwrap();
    }

    #[tokio::test]
    async fn messages_of_earlier_versions_are_read_and_their_entries_written_byte_by_byte() {
        for (version, messages) in gossip_messages() {
            for message in messages {
                let (expected, again) = match read(&message).await {
                    // How changes are packed is the compressor's choice.
                    ChitchatMessage::SynAck { digest, .. } => {
                        let found = Inspection::of(&message, &host(0)).unwrap();
                        let expected = [&message[..message.len() - found.rest.len()], UNCHANGED].concat();
                        (expected, ChitchatMessage::SynAck { digest, delta: Default::default() })
                    }
                    ChitchatMessage::Ack { .. } => continue,
                    other => (message.clone(), other),
                };
                assert_eq!(written_again(again).await, expected, "{version:?}");
            }
        }
    }

    #[tokio::test]
    async fn messages_of_one_datagram_and_of_two_pass() {
        for hosts in [0, 1, 1282, 1283, 1284, 1285, 2500] {
            let message = fleet(0..hosts);
            assert_eq!(written_again(read(&message).await).await, message, "{hosts}");
        }
    }

    #[test]
    fn entries_that_have_no_room_even_packed_are_no_message() {
        // With drawn names of 64 letters, which take some 35 bytes each even if they are packed.
        let long = |hosts: u32| {
            let names = (0..hosts).map(|host| blake3::hash(&host.to_le_bytes()).to_string());
            let run = [7u8, 7, 7, 7, 7, 7, 7, 7, 4, 127, 0, 0, 1, 9, 0];
            let entries = names.map(|name| [&name.serialize_to_vec()[..], &run, &[0; 24]].concat());
            entries.collect::<Vec<_>>().concat()
        };
        let name = "check".to_owned().serialize_to_vec();
        assert!(Passing::of(Kind::Syn, Some(&long(1000)), &name).is_some());
        assert!(Passing::of(Kind::Syn, Some(&long(3000)), &name).is_none());
    }

    #[tokio::test]
    async fn datagrams_of_other_processes_do_not_count() {
        let message = naming(0..9);
        let datagram = passing(&message).datagram.unwrap();
        let mut pair = Pair::open().await.unwrap();
        let stranger = std::net::UdpSocket::bind(drawn_address().unwrap()).unwrap();
        let at = pair.library.local_addr().unwrap();
        stranger.send_to(&passing(&naming(0..3)).datagram.unwrap(), at).unwrap();
        stranger.send_to(b"no message", at).unwrap();
        pair.own.send_to(&datagram, at).unwrap();
        let digest = match pair.read().await.unwrap() {
            ChitchatMessage::Syn { digest, .. } => digest,
            other => unreachable!("{other:?}"),
        };
        let again = ChitchatMessage::Syn { cluster_id: "headstart swarm".to_owned(), digest };
        assert_eq!(written_again(again).await, message);
    }

    #[tokio::test]
    async fn a_message_passes_even_if_the_wait_for_it_is_interrupted() {
        let message = fleet(0..2000);
        let mut passing = passing(&message);
        let read = loop {
            if let Ok(read) = tokio::time::timeout(Duration::ZERO, passing.finish()).await {
                break read.unwrap();
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(written_again(read).await, message);
    }

    #[test]
    fn an_answer_whose_changes_have_no_room_goes_without_them() {
        let entries = fleet(0..500)[4..].to_vec();
        let answer = Outgoing { kind: Kind::SynAck, entries: entries.clone(), rest: vec![2; 1000] };
        let len =
            |message: &Outgoing, room| message.first(|bytes| (bytes.len() <= room).then_some(bytes.len()));
        let whole = HEAD + entries.len() + 1000;
        assert_eq!(len(&answer, whole), Some(whole));
        assert_eq!(len(&answer, whole - 1), Some(whole - 1000 + UNCHANGED.len()));
        assert_eq!(len(&answer, entries.len()), None);
        let asking = Outgoing { kind: Kind::Syn, ..answer };
        assert_eq!(len(&asking, whole - 1), None, "no host reads a message that asks without a name");
    }
}
