//! One blob, as this host knows it.

use crate::CHUNK_SIZE;
use crate::bits::Bits;
use crate::event::{BlobKey, Chunks, FetchId, PeerId, PeerKey, ReaderId, Urgency, WantId};
use crate::message::RequestId;
use crate::node::log::Log;
use crate::node::pinned::Pinned;
use crate::placement::{BlobHomes, Homes};
use crate::redirect_tree::Chain;
use crate::similarity::RecentReads;
use crate::throttle::Accounts;
use crate::{Settings, Time, Topology};
use std::collections::{BTreeMap, VecDeque};

/// The number of reads that a sketch describes: 64 MiB.
const SKETCHED: u32 = 1024;

/// The state of a chunk. The paper's `Written` is missing: a blob never changes, and a guest's writes go to a layer of
/// their own, of which no host is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Not local.
    Remote,
    /// Requested ahead of need, by this host's own decision.
    Prefetch,
    /// Local by such a decision, and not read yet: unmatched.
    Local,
    /// Local for another reason (a plan, or another host's request), and not read as far as is known.
    Kept,
    /// Local, and read.
    Read,
}

impl State {
    pub(super) fn is_here(self) -> bool {
        matches!(self, Self::Local | Self::Kept | Self::Read)
    }
}

/// The source of a chunk that is not local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Undecided: only within one event.
    New,
    /// Requested from a peer.
    Asked(RequestId),
    /// Fetched from the store by the agent.
    Fetch(FetchId),
    /// Left to a disk of this host, which fetches it from the store, or does not, until this time.
    Disk(Time),
}

/// The reason why a chunk is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// A disk or another host requested it.
    Needed,
    /// Other hosts read it.
    Prefetch,
    /// The agent was told to fetch it.
    Warm,
}

/// Another host that waits for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) peer: PeerId,
    pub(super) request: RequestId,
    pub(super) urgency: Urgency,
    /// `true` if another host sent it here.
    pub(super) sent_on: bool,
}

/// A chunk that is on its way here.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    pub(super) how: How,
    /// The greatest urgency among the waiting wants and hosts.
    pub(super) urgency: Urgency,
    pub(super) aim: Aim,
    pub(super) wants: Vec<WantId>,
    pub(super) asks: Vec<Waiting>,
    /// Peers that did not send it.
    pub(super) tried: Vec<PeerId>,
    /// Peers that are said to have it, to be asked next.
    pub(super) named: Vec<PeerId>,
    /// `true` if the store may fail to deliver it: then any host that may have it is asked.
    pub(super) resort: bool,
    /// The peer that has promised it, and the time of the promise: it is asked again after all others were asked
    /// whether they have it. `around` is the number of times that they were asked.
    pub(super) back: Option<(PeerId, Time)>,
    pub(super) around: u8,
    /// `true` if a peer named others: the next peer that is asked with hops is to name no more.
    pub(super) insist: bool,
    pub(super) tries: u8,
    pub(super) hops: u8,
}

impl Coming {
    pub(super) fn new(aim: Aim, urgency: Urgency, hops: u8) -> Self {
        Self {
            how: How::New,
            urgency,
            aim,
            wants: Vec::new(),
            asks: Vec::new(),
            tried: Vec::new(),
            named: Vec::new(),
            resort: false,
            back: None,
            around: 0,
            insist: false,
            tries: 0,
            hops,
        }
    }
}

/// The knowledge of a peer's chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    /// Chunks that it has.
    pub(super) has: Bits,
    /// Chunks that were sent there without a request, or for a request without urgency.
    pub(super) sent: Bits,
    /// Chunks that it requested because a read waited, or reported as read: its next reads are predicted from them.
    pub(super) read: Bits,
}

/// A blob.
#[derive(Debug)]
pub(super) struct Blob {
    pub(super) key: BlobKey,
    pub(super) len: u64,
    pub(super) chunks: u32,
    pub(super) fetchable: bool,
    pub(super) planned: bool,
    pub(super) states: Vec<State>,
    pub(super) coming: BTreeMap<u32, Coming>,
    /// Peers that take part in it too, by key, ascending.
    pub(super) sharers: Vec<(PeerKey, PeerId)>,
    /// Hosts that can be a home of it, this host included.
    pub(super) homes: Homes,
    pub(super) home_of: BlobHomes,
    /// The chunks of the peers that advertised any, ascending.
    pub(super) maps: BTreeMap<PeerId, Map>,
    /// Peers that are told of local chunks.
    pub(super) neighbours: Vec<PeerId>,
    /// In a tree, the hosts to ask: the parent, its parent, and so on.
    pub(super) ancestors: Vec<PeerKey>,
    /// `true` if sharers have changed since neighbours were chosen.
    pub(super) stale: bool,
    /// `true` if sharers have changed since the ancestors were found.
    pub(super) moved: bool,
    /// The chunks that became local, in order.
    pub(super) log: Log,
    /// Chunks that disks of this host read and its root was not told of, in order.
    pub(super) untold_reads: Vec<Chunks>,
    /// Chunks that were advertised and not requested, in order.
    pub(super) recorded: VecDeque<Chunks>,
    /// Chunks that the agent wants to be warm and that were not requested yet, in order.
    pub(super) warming: VecDeque<Chunks>,
    /// The reader on whose account its prefetches are.
    pub(super) reader: Option<ReaderId>,
    pub(super) chains: BTreeMap<u32, Chain>,
    /// The time at which old chains were last looked for.
    pub(super) swept: Time,
    /// The hosts that keep it, if it is pinned.
    pub(super) pinned: Option<Pinned>,
    /// The recent reads, if neighbours are chosen by them.
    pub(super) reads: Option<Box<RecentReads>>,
}

impl Blob {
    pub(super) fn new(key: BlobKey, len: u64, fetchable: bool, settings: &Settings) -> Self {
        let chunks = u32::try_from(len.div_ceil(CHUNK_SIZE)).unwrap_or(u32::MAX);
        let similar = matches!(settings.topology, Topology::Similar(_));
        Self {
            key,
            len,
            chunks,
            fetchable,
            planned: false,
            states: vec![State::Remote; chunks as usize],
            coming: BTreeMap::new(),
            sharers: Vec::new(),
            homes: Homes::new(),
            home_of: BlobHomes::new(key),
            maps: BTreeMap::new(),
            untold_reads: Vec::new(),
            neighbours: Vec::new(),
            ancestors: Vec::new(),
            stale: true,
            moved: true,
            log: Log::default(),
            recorded: VecDeque::new(),
            warming: VecDeque::new(),
            reader: None,
            chains: BTreeMap::new(),
            swept: Time(0),
            pinned: None,
            reads: similar.then(|| Box::new(RecentReads::new(SKETCHED))),
        }
    }

    /// The part of a run that is within the blob.
    pub(super) fn cut(&self, run: Chunks) -> Chunks {
        let first = run.first.min(self.chunks);
        Chunks { first, count: run.count.min(self.chunks - first) }
    }

    /// The number of bytes of a chunk.
    pub(super) fn bytes(&self, chunk: u32) -> u64 {
        Chunks::one(chunk).bytes(self.len).len()
    }

    /// The number of bytes of a run.
    pub(super) fn bytes_of(&self, run: Chunks) -> u64 {
        run.bytes(self.len).len()
    }

    pub(super) fn state(&self, chunk: u32) -> State {
        self.states.get(chunk as usize).copied().unwrap_or(State::Remote)
    }

    pub(super) fn set_state(&mut self, chunk: u32, state: State) {
        if let Some(known) = self.states.get_mut(chunk as usize) {
            *known = state;
        }
    }

    /// The number of bytes that were prefetched and not read.
    pub(super) fn unread(&self) -> u64 {
        let unread = (0..self.chunks).filter(|chunk| self.state(*chunk) == State::Local);
        unread.map(|chunk| self.bytes(chunk)).sum()
    }

    pub(super) fn is_here(&self, chunk: u32) -> bool {
        self.state(chunk).is_here()
    }

    /// `true` if a peer may read this blob.
    pub(super) fn is_shared_with(&self, key: PeerKey) -> bool {
        self.sharers.binary_search_by_key(&key, |(known, _)| *known).is_ok()
    }

    /// The number of a sharer.
    pub(super) fn sharer(&self, key: PeerKey) -> Option<PeerId> {
        let at = self.sharers.binary_search_by_key(&key, |(known, _)| *known).ok()?;
        Some(self.sharers[at].1)
    }

    /// Notes that a disk read a chunk that is local, or that has just come because the disk waited. Returns whether it
    /// was the first read, and whether the chunk had been prefetched.
    pub(super) fn read(&mut self, chunk: u32, accounts: &mut Accounts) -> (bool, bool) {
        let state = self.state(chunk);
        if state == State::Read {
            return (false, false);
        }
        let bytes = self.bytes(chunk);
        if let Some(throttle) = accounts.of(self.reader) {
            throttle.matched(if state == State::Local { bytes } else { 0 });
            throttle.read(bytes);
        }
        self.set_state(chunk, State::Read);
        if let Some(reads) = &mut self.reads {
            reads.read(chunk);
        }
        (true, state == State::Local)
    }
}

/// Adds a chunk to a list of runs.
pub(super) fn push(runs: &mut Vec<Chunks>, chunk: u32) {
    match runs.last_mut() {
        Some(last) if last.numbers().end == chunk => last.count += 1,
        _ => runs.push(Chunks::one(chunk)),
    }
}
