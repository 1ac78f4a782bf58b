//! One blob, as this host knows it.

use crate::CHUNK_SIZE;
use crate::bits::Bits;
use crate::chain::Chain;
use crate::event::{BlobKey, Chunks, FetchId, PeerId, PeerKey, ReaderId, Urgency, WantId};
use crate::message::RequestId;
use crate::node::log::Log;
use crate::node::pinned::Pinned;
use crate::placement::{BlobHomes, Homes};
use crate::similarity::RecentReads;
use crate::throttle::Accounts;
use crate::{Settings, Time, Topology};
use std::collections::{BTreeMap, VecDeque};

/// Reads that a sketch tells of: 64 MiB.
const SKETCHED: u32 = 1024;

/// A chunk's state. The paper's `Written` is missing: a blob never changes; what a guest writes goes to a layer of its
/// own, which nobody is told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Not here.
    Remote,
    /// Asked for ahead of need, by this host's own decision.
    Prefetch,
    /// Here by such a decision, and not read yet: unmatched.
    Local,
    /// Here by another way, and not read as far as is known: a plan's, or for another host.
    Kept,
    /// Here, and read.
    Read,
}

impl State {
    pub(super) fn is_here(self) -> bool {
        matches!(self, Self::Local | Self::Kept | Self::Read)
    }
}

/// Where a chunk that is not here comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Not decided: only within one event.
    New,
    /// A peer was asked.
    Asked(RequestId),
    /// The agent fetches it from the store.
    Fetch(FetchId),
    /// A disk of this host fetches it from the store, or does not, until then.
    Disk(Time),
}

/// Why a chunk comes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    /// Somebody asked for it: a disk, or another host.
    Needed,
    /// Others read it.
    Prefetch,
    /// The agent was told to bring it.
    Warm,
}

/// Another host that waits for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) peer: PeerId,
    pub(super) request: RequestId,
    pub(super) urgency: Urgency,
    /// Whether another host sent it here.
    pub(super) sent_on: bool,
}

/// A chunk that is on its way here.
#[derive(Clone, Debug)]
pub(super) struct Coming {
    pub(super) how: How,
    /// The most urgent of those who wait.
    pub(super) urgency: Urgency,
    pub(super) aim: Aim,
    pub(super) wants: Vec<WantId>,
    pub(super) asks: Vec<Waiting>,
    /// Who did not send it.
    pub(super) tried: Vec<PeerId>,
    /// Who is said to have it, to be asked next.
    pub(super) named: Vec<PeerId>,
    /// The store may not give it: whoever may have it is asked.
    pub(super) resort: bool,
    /// Who has promised it, and when, and is asked again when all others were asked whether they have it; and how often
    /// they were.
    pub(super) back: Option<(PeerId, Time)>,
    pub(super) around: u8,
    /// Somebody was named: who is asked with hops now is to name no more.
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

/// What is known of a peer's chunks.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    /// What it has.
    pub(super) has: Bits,
    /// What was sent there unasked, or without hurry.
    pub(super) sent: Bits,
    /// What it asked for because somebody waited, or said that it was read: what it will read next is known by.
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
    /// Who takes part in it too, by key, ascending.
    pub(super) sharers: Vec<(PeerKey, PeerId)>,
    /// Who can be a home of it, this host included.
    pub(super) homes: Homes,
    pub(super) home_of: BlobHomes,
    /// Of those who advertised something, ascending.
    pub(super) maps: BTreeMap<PeerId, Map>,
    /// Who is told what is here.
    pub(super) neighbours: Vec<PeerId>,
    /// In a tree, whom to ask: the parent, its parent, and so on.
    pub(super) ancestors: Vec<PeerKey>,
    /// Whether sharers have changed since neighbours were chosen.
    pub(super) stale: bool,
    /// Whether they have since the ancestors were found.
    pub(super) moved: bool,
    /// What came here, in order.
    pub(super) log: Log,
    /// What disks read here and this host's root was not told, in order.
    pub(super) untold_reads: Vec<Chunks>,
    /// What was advertised and not asked for, in order.
    pub(super) recorded: VecDeque<Chunks>,
    /// What the agent wants here and was not asked for yet, in order.
    pub(super) warming: VecDeque<Chunks>,
    /// On whose account it is what is prefetched of it.
    pub(super) reader: Option<ReaderId>,
    pub(super) chains: BTreeMap<u32, Chain>,
    /// When old ones of these were looked for.
    pub(super) swept: Time,
    /// Who keeps it, where somebody does.
    pub(super) pinned: Option<Pinned>,
    /// What was read lately, where neighbours are chosen by it.
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

    /// A run, cut to what there is.
    pub(super) fn cut(&self, run: Chunks) -> Chunks {
        let first = run.first.min(self.chunks);
        Chunks { first, count: run.count.min(self.chunks - first) }
    }

    /// Bytes of a chunk.
    pub(super) fn bytes(&self, chunk: u32) -> u64 {
        Chunks::one(chunk).bytes(self.len).len()
    }

    /// Bytes of a run.
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

    /// Bytes that were prefetched and not read.
    pub(super) fn unread(&self) -> u64 {
        let unread = (0..self.chunks).filter(|chunk| self.state(*chunk) == State::Local);
        unread.map(|chunk| self.bytes(chunk)).sum()
    }

    pub(super) fn is_here(&self, chunk: u32) -> bool {
        self.state(chunk).is_here()
    }

    /// Whether a peer may read this blob.
    pub(super) fn is_shared_with(&self, key: PeerKey) -> bool {
        self.sharers.binary_search_by_key(&key, |(known, _)| *known).is_ok()
    }

    /// A sharer's number.
    pub(super) fn sharer(&self, key: PeerKey) -> Option<PeerId> {
        let at = self.sharers.binary_search_by_key(&key, |(known, _)| *known).ok()?;
        Some(self.sharers[at].1)
    }

    /// A disk read a chunk that is here, or that has just come because it waited. Whether that was the first time, and
    /// whether it had been prefetched.
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

/// Gathers chunks to runs.
pub(super) fn push(runs: &mut Vec<Chunks>, chunk: u32) {
    match runs.last_mut() {
        Some(last) if last.numbers().end == chunk => last.count += 1,
        _ => runs.push(Chunks::one(chunk)),
    }
}
