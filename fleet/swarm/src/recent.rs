//! The recent requests of agents to a root, in their order, and a prediction of an agent's next requests.
//!
//! If an agent requests chunks in an order that the root knows from other agents, the root sends the next chunks of
//! that order without a request (DADI, USENIX ATC 2020, section 3.6). The list of requests has two orders at once. By
//! last *use* it is a segmented LRU: chunks that only one agent has ever requested are removed first, so that an agent
//! that scans a whole disk does not displace the chunks that boots need. By the order of *requests* it consists of
//! *chains*: a new chunk is put behind the chunk that the same agent requested before.
//!
//! The root keeps up to four *tracks* for each agent, which are positions in chains: an agent has several disks, and a
//! boot reads several layers. The next request of an agent is one of these:
//!
//! * For a chunk near a track, before or behind it (requests overtake each other): a step on a known path. The track
//!   moves forward, never back.
//! * For a chunk that is not in the list: the chunk is put behind the agent's main track, if no chunk is there yet.
//!   Otherwise the chunk begins a *side chain*.
//! * For a chunk elsewhere in the list: a jump. It begins a new track, which is the first to be dropped.
//!
//! A *claim* is noted at a chunk that begins a side chain or is jumped to: the place that the agent came from. If the
//! next agent comes from the same place, and afterwards goes back to that place instead of on from the chunk, the chunk
//! is moved to that place, and the chunk that followed it inherits a claim to follow it. If the agent goes on from the
//! chunk, the paths fork there, and no chunk is moved. So a single agent never puts a chunk between two that are known
//! to follow each other, and never moves a chunk: stray requests, however many, do no harm. And because the root sends
//! nothing for a track before the track's first step, unless it is the agent's only track, it does not send the chunks
//! behind a stray one.
//!
//! An agent that has the chunks that it reads requests nothing. But it also reports the reads of its disks to its root
//! ([`Message::Read`](crate::Message::Read)), which count here as if they were requests. So the root knows which chunks
//! are read together, and how far the agent is. Two counts of a chunk decide whether it is sent: the requests for it,
//! and the times that agents *passed* it, that is, went on to a later chunk without having read this one. Some chunks
//! are passed only because they are read, or reported, a little later; they are then requested once more than passed. A
//! chunk that is passed as often as it is requested is not sent, and in the end removed.
//!
//! Reports may be lost, or never sent. For an agent that has reported nothing yet, only the chunks that it lacks count
//! as passed. A chunk that the root sends to all such agents would then never be passed. So chunks of which little is
//! known are withheld from one such agent in sixteen, whose requests show whether the chunk is needed.
//!
//! Chunks that more than one agent has requested are sent first, because a chunk that only one requested may be a
//! stray.
//!
//! The more steps in order an agent makes, the further ahead the root sends, so that an agent that reads only a few
//! chunks gets few.

use crate::event::{BlobKey, Chunks, PeerKey};
use headstart_block::random;
use list::{List, NONE, Slot};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod list;
#[cfg(test)]
mod tests;

/// The distance from its track within which an agent's request is still on it, in chunks of the chain.
const REACH: usize = 64;
/// The number of agents whose tracks are kept.
const AGENTS_MAX: usize = 4096;
/// The number of chunks that are sent ahead at the first step; it doubles with each that follows.
const FIRST: usize = 8;
/// One in this number of agents that report nothing finds out about chunks of which little is known.
const FINDS_OUT: u64 = 16;
/// The most requests and passes up to which little is known of a chunk.
const LITTLE: u16 = 4;
/// The number of tracks of an agent.
const TRACKS: usize = 4;
/// The number of steps in order that count.
const STEPS: u8 = 8;
/// The number of agents, net of those that came another way, that moves a chunk.
const AGREED: u8 = 2;

/// The identity of a chunk, the same on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkKey {
    /// The hash of the digest of the chunk's blob.
    pub blob: BlobKey,
    /// The chunk's number in its blob, from 0.
    pub chunk: u32,
}

/// The list of chunks that agents have recently requested from a root, in the order of the requests. The root predicts
/// an agent's next requests by this list. In it, chunks that an agent requested one after the other form a *chain*. The
/// positions of at most 4,096 agents in the chains are kept.
#[derive(Clone, Debug)]
pub struct Recent {
    list: List,
    agents: BTreeMap<PeerKey, Agent>,
    /// The number of requests, to tell which agent was silent for longest.
    clock: u64,
}

/// The place of an agent.
#[derive(Clone, Debug, Default)]
struct Agent {
    /// All tracks; the one of the last step comes first.
    tracks: Vec<Track>,
    /// `true` if the first track is a jump that others made from the same place.
    agreed: bool,
    /// `true` if the agent has reported its reads.
    reports: bool,
    /// The number of its last request.
    last_request: u64,
}

#[derive(Clone, Copy, Debug)]
struct Track {
    at: ChunkKey,
    /// Steps in order, up to [`STEPS`].
    steps: u8,
    /// `true` if only this agent has requested the chunk.
    new: bool,
}

impl Agent {
    /// The track that goes on when a new chunk comes: the one of the last step, if it has any.
    fn main(&self) -> Option<usize> {
        let stepped = self.tracks.iter().position(|track| track.steps > 0);
        stepped.or(self.tracks.len().checked_sub(1))
    }

    /// Makes a step on a track, which takes it to `at`.
    fn step(&mut self, track: usize, at: ChunkKey) {
        let steps = (self.tracks[track].steps + 1).min(STEPS);
        self.tracks[track] = Track { at, steps, ..self.tracks[track] };
        self.tracks[..=track].rotate_right(1);
    }

    /// Begins a track, and ends another if they are too many.
    fn jump(&mut self, at: ChunkKey, new: bool) {
        self.agreed = false;
        if self.tracks.len() >= TRACKS {
            let least = (0..self.tracks.len()).rev().min_by_key(|track| self.tracks[*track].steps);
            least.map(|track| self.tracks.remove(track));
            self.tracks.iter_mut().for_each(|track| track.steps = track.steps.saturating_sub(1));
        }
        self.tracks.insert(0, Track { at, steps: 0, new });
    }
}

/// The content of a [`Recent`] list as plain data, to be saved across a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The chains of the list: sequences of chunks that agents requested one after the other.
    pub chains: Vec<SavedChain>,
}

/// A chain: chunks that agents requested one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedChain {
    /// The chunks of the chain, in the order of the requests.
    pub items: Vec<SavedItem>,
}

/// A chunk of a chain, with the counts of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedItem {
    /// The identity of the chunk.
    pub piece: ChunkKey,
    /// The number of requests for the chunk. It is halved from time to time together with `passed`.
    pub asked: u16,
    /// The number of times that an agent went on to a later chunk of the chain without having read this one.
    pub passed: u16,
    /// `true` if more than one agent has requested it.
    pub proven: bool,
    /// The chunk's rank by last use among all chunks of the list: 0 is the least recently used.
    pub used: u32,
    /// A suggestion for moving this chunk in the list: the chunk after which agents requested this one, and the number
    /// of agents that did so, less the number that came from another chunk. `None` if no agent has jumped to this chunk
    /// from another place in the list.
    pub claim: Option<(ChunkKey, u8)>,
}

impl Recent {
    /// Creates an empty list. It holds at most `capacity` chunks (0 counts as 1), at about 150 bytes of
    /// memory each.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { list: List::new(capacity), agents: BTreeMap::new(), clock: 0 }
    }

    /// The number of chunks in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// `true` if no chunk is in the list.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.len() == 0
    }

    /// Records that `agent` requested these chunks because a read waits for them, or reported that it has
    /// read them. `unread` is called for each chunk that the agent passed over in a chain, and must return `true`
    /// if the agent had the chance to read that chunk and has not.
    pub fn on_request(
        &mut self,
        agent: PeerKey,
        blob: BlobKey,
        chunks: Chunks,
        mut unread: impl FnMut(ChunkKey) -> bool,
    ) {
        self.clock += 1;
        let mut state = self.agents.remove(&agent).unwrap_or_default();
        state.last_request = self.clock;
        for chunk in chunks.numbers() {
            self.step(agent, &mut state, ChunkKey { blob, chunk }, &mut unread);
        }
        self.keep(agent, state);
    }

    /// Records that `agent` reports its reads: `is_reported_by` returns `true` from now on. For such an agent, the
    /// caller of `on_request` should take a chunk that the agent has but has not reported as unread.
    pub fn on_report(&mut self, agent: PeerKey) {
        let state = self.agents.remove(&agent).unwrap_or_default();
        self.keep(agent, Agent { reports: true, ..state });
    }

    /// Returns `true` if `agent` has reported its reads at least once.
    #[must_use]
    pub fn is_reported_by(&self, agent: PeerKey) -> bool {
        self.agents.get(&agent).is_some_and(|state| state.reports)
    }

    fn keep(&mut self, agent: PeerKey, state: Agent) {
        self.agents.insert(agent, state);
        if self.agents.len() > AGENTS_MAX {
            let quiet = self.agents.iter().min_by_key(|(_, state)| state.last_request).map(|(key, _)| *key);
            quiet.map(|key| self.agents.remove(&key));
        }
    }

    /// Predicts the next requests of `agent`, and appends at most `room` chunks to `next`; none for an agent that has
    /// requested nothing. The candidates are the next chunks after each of the agent's current positions in the chains:
    /// at most `limit` for each position, fewer if the agent has made few steps in order there. Only chunks for which
    /// `lacks` returns `true` are taken. Chunks that only one agent has ever requested come last. A position to which
    /// the agent has just jumped yields nothing, unless it is the only one.
    pub fn next(
        &mut self,
        agent: PeerKey,
        (limit, room): (usize, usize),
        mut lacks: impl FnMut(ChunkKey) -> bool,
        next: &mut Vec<ChunkKey>,
    ) {
        let Some(state) = self.agents.get(&agent) else { return };
        let follows = |track: &&Track| track.steps > 0 || state.tracks.len() == 1;
        let begin = |track: &Track| Some((self.list.find(track.at)?, limit.min(FIRST << track.steps)));
        let mut tracks: Vec<_> = state.tracks.iter().filter(follows).filter_map(begin).collect();
        let (reports, mut seen, mut found) = (state.reports, BTreeSet::new(), [Vec::new(), Vec::new()]);
        while !tracks.is_empty() && found[1].len() < room {
            tracks.retain_mut(|(slot, left)| {
                *slot = self.list.after(*slot);
                if *slot == NONE || *left == 0 {
                    return false;
                }
                *left -= 1;
                if self.is_worth_sending(*slot, agent, reports)
                    && lacks(self.list.piece(*slot))
                    && seen.insert(*slot)
                {
                    found[usize::from(self.list.is_proven(*slot))].push(*slot);
                }
                true
            });
        }
        let [unproven, proven] = found;
        for slot in proven.into_iter().chain(unproven).take(room) {
            self.list.touch(slot);
            next.push(self.list.piece(slot));
        }
    }

    /// Removes the positions of an agent that has left; its requests stay in the list.
    pub fn forget(&mut self, agent: PeerKey) {
        self.agents.remove(&agent);
    }

    /// Removes all chunks of a blob that this host no longer keeps.
    pub fn forget_blob(&mut self, blob: BlobKey) {
        self.list.remove_blob(blob);
    }

    /// Returns the content of the list as plain data; the positions of agents are not part of it.
    #[must_use]
    pub fn save(&self) -> Saved {
        Saved { chains: self.list.save() }
    }

    /// Creates a list of at most `capacity` chunks from saved data. If there are more, the most recently used
    /// are taken. Invalid entries are ignored.
    #[must_use]
    pub fn load(saved: &Saved, capacity: usize) -> Self {
        Self { list: List::load(&saved.chains, capacity), ..Self::new(capacity) }
    }

    /// `true` if a chunk is to be sent ahead to this agent.
    fn is_worth_sending(&self, slot: Slot, agent: PeerKey, reports: bool) -> bool {
        let (asked, passed) = self.list.counts(slot);
        let piece = self.list.piece(slot);
        let salt = piece.blob.0.wrapping_add(u64::from(piece.chunk).wrapping_mul(random::STEP));
        let draw = random::mix(random::mix(agent.0) ^ random::mix(salt));
        let little = !reports && asked.saturating_add(passed) <= LITTLE;
        asked > passed && !(little && draw.is_multiple_of(FINDS_OUT))
    }

    /// Notes a request for one chunk.
    fn step(
        &mut self,
        key: PeerKey,
        agent: &mut Agent,
        piece: ChunkKey,
        unread: &mut impl FnMut(ChunkKey) -> bool,
    ) {
        agent.tracks.retain(|track| self.list.find(track.at).is_some());
        let slot = self.list.find(piece);
        if agent.agreed && !slot.is_some_and(|slot| self.is_ahead(agent, slot)) {
            self.confirm_track(agent);
        }
        agent.agreed = false;
        let Some(slot) = slot else { return self.unknown(key, agent, piece) };
        self.list.on_request(slot, key);
        for track in 0..agent.tracks.len() {
            let Some(at) = self.list.find(agent.tracks[track].at) else { continue };
            if let Some(way) = self.way(at, slot, unread) {
                self.list.on_met(slot);
                agent.step(track, if way == Way::Ahead { piece } else { agent.tracks[track].at });
                return;
            }
        }
        let main = agent.main().and_then(|main| self.list.find(agent.tracks[main].at));
        let agreed = main.is_some_and(|main| self.claimed(slot, main));
        agent.jump(piece, false);
        agent.agreed = agreed;
    }

    /// `true` if a chunk is in reach ahead of an agent's last jump.
    fn is_ahead(&self, agent: &Agent, slot: Slot) -> bool {
        let at = agent.tracks.first().and_then(|track| self.list.find(track.at));
        at.is_some_and(|at| slot != at && self.is_behind(at, slot))
    }

    /// Moves the chunk to which an agent jumped behind the place that it came from: like others before, it did not go
    /// on from there.
    fn confirm_track(&mut self, agent: &mut Agent) {
        if agent.tracks.len() < 2 {
            return;
        }
        let jump = agent.tracks.remove(0);
        let main = agent.main().and_then(|main| Some((main, self.list.find(agent.tracks[main].at)?)));
        if let (Some((main, behind)), Some(slot)) = (main, self.list.find(jump.at)) {
            self.list.move_behind(slot, behind);
            agent.tracks[main].at = jump.at;
        }
    }

    /// Notes a request for a chunk that is not in the list.
    fn unknown(&mut self, key: PeerKey, agent: &mut Agent, piece: ChunkKey) {
        let going_on = agent.tracks.first().is_some_and(|track| track.new).then_some(0);
        let Some(track) = going_on.or(agent.main()) else {
            self.list.insert(piece, key, NONE, None);
            return agent.jump(piece, true);
        };
        let from = agent.tracks[track].at;
        let slot = self.list.find(from).unwrap_or(NONE);
        if slot != NONE && self.list.after(slot) == NONE {
            self.list.insert(piece, key, slot, None);
            agent.tracks[track].new = true;
            agent.step(track, piece);
        } else {
            let main = agent.main().map(|main| (agent.tracks[main].at, 1));
            self.list.insert(piece, key, NONE, main);
            agent.jump(piece, true);
        }
    }

    /// Notes that an agent jumps to a chunk from another place; `true` if enough agents agree that the chunk belongs
    /// there.
    fn claimed(&mut self, slot: Slot, from: Slot) -> bool {
        let claim = self.list.claim(slot);
        let agrees = claim.and_then(|(at, _)| self.list.find(at)).is_some_and(|at| self.is_behind(at, from));
        let votes = match claim {
            Some((_, votes)) if agrees => votes + u8::from(self.list.by_others(slot)),
            Some((_, votes)) if votes > 1 => votes - 1,
            _ => 1,
        };
        let stays = claim.filter(|_| agrees || votes > 1).map(|(at, _)| at);
        self.list.set_claim(slot, Some((stays.unwrap_or_else(|| self.list.piece(from)), votes)));
        votes >= AGREED && agrees
    }

    /// The way from `from` to `to`, if there is one; chunks that are passed by on it are counted.
    fn way(&mut self, from: Slot, to: Slot, unread: &mut impl FnMut(ChunkKey) -> bool) -> Option<Way> {
        let ahead = |slot: &Slot| Some(self.list.after(*slot)).filter(|slot| *slot != NONE);
        let found = std::iter::successors(Some(from), ahead).take(REACH + 1).position(|slot| slot == to);
        match found {
            None => self.is_behind(to, from).then_some(Way::Behind),
            Some(0) => Some(Way::Behind),
            Some(_) => {
                let mut slot = self.list.after(from);
                while slot != to {
                    let next = self.list.after(slot);
                    if unread(self.list.piece(slot)) {
                        self.list.passed(slot);
                    }
                    slot = next;
                }
                Some(Way::Ahead)
            }
        }
    }

    /// `true` if `slot` is `from`, or in reach behind it.
    fn is_behind(&self, slot: Slot, from: Slot) -> bool {
        let behind = |slot: &Slot| Some(self.list.before(*slot)).filter(|slot| *slot != NONE);
        std::iter::successors(Some(from), behind).take(REACH + 1).any(|passed| passed == slot)
    }
}

/// The direction of a chunk from a track in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ahead,
    Behind,
}
