//! What agents asked a root for lately, in which order, and what one of them will ask for next.
//!
//! The root sends an agent that goes a known way the next chunks of it unasked (DADI, section 3.6). The list of
//! requests is in two orders at once. In the order of *use* it is a segmented LRU: what only one agent ever asked
//! for makes room first, so that one that scans a whole disk cannot wash out what boots need. In the order of
//! *asking* it falls into chains: what was new was put behind what the same agent had asked for before.
//!
//! An agent is on up to four *tracks*, places in chains: it has several disks, and a boot reads several layers.
//! What it asks for next is one of these:
//!
//! * In reach of a track, ahead or behind (requests overtake each other): a step on a known way. The track moves on,
//!   never back.
//! * Not known: it is put behind the agent's main track, if nothing is there yet. Otherwise it begins a *side chain*.
//! * Known, but elsewhere: a jump. It begins a new track, which is the first to be dropped.
//!
//! Both latter leave a *claim* with the chunk: where the agent came from. If the next agent comes from there as
//! well, and goes back to where it came from instead of on from there, the chunk is moved there, and the one that
//! followed it inherits a claim to follow it. If it goes on, the ways fork there, and nothing has to be moved. So
//! nothing is put between what is known to follow, or torn from there, on the word of one agent: strays, however
//! many, do no harm. And since a track leads nowhere before its first step, the root does not send what follows a
//! stray.
//!
//! An agent that finds what it reads asks for nothing: it tells its root what its disks read all the same
//! ([`Message::Read`](crate::Message::Read)), which counts here as if it had asked. So the root knows what came with
//! something else, and how far the agent is. A chunk's worth is a comparison: how often it was asked for, and how often
//! agents *passed* it by: went on to what comes after it and had not read it. Some are passed by because they are read
//! a little later, or told of; but then they are asked for once more than they are passed. What is passed as often as
//! it is asked for is not sent, and in the end forgotten.
//!
//! What is told may be lost, or never said. Of an agent that has told nothing yet only what it lacks counts as passed
//! by; and since what is sent to all would never be passed then, chunks of which little is known are withheld from one
//! such agent in sixteen, which finds out.
//!
//! What more than one agent has asked for goes first: what only one did may be a stray.
//!
//! How far ahead the root sends grows with an agent's steps in order, so that an agent that only looks in gets
//! little.

use crate::event::{BlobKey, Chunks, PeerKey};
use headstart_block::random;
use list::{List, NONE, Slot};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod list;
#[cfg(test)]
mod tests;

/// How far from its track what an agent asks for is still on it, in chunks of the chain.
const REACH: usize = 64;
/// Of how many agents tracks are kept.
const AGENTS_MAX: usize = 4096;
/// What is sent ahead at the first step; it doubles with each that follows.
const FIRST: usize = 8;
/// One agent in so many that tell nothing finds out about chunks of which little is known.
const FINDS_OUT: u64 = 16;
/// Up to so many times asked for or passed by, little is known of a chunk.
const LITTLE: u16 = 4;
/// Tracks of an agent.
const TRACKS: usize = 4;
/// Steps in order that count.
const STEPS: u8 = 8;
/// Agents, net of those who came another way, whose word moves a chunk.
const AGREED: u8 = 2;

/// A chunk of a blob, by names that are the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Piece {
    /// The blob.
    pub blob: BlobKey,
    /// Its chunk.
    pub chunk: u32,
}

/// The list of recent requests.
#[derive(Clone, Debug)]
pub struct Recent {
    list: List,
    agents: BTreeMap<PeerKey, Agent>,
    /// Counts requests, to tell which agent was quiet for longest.
    clock: u64,
}

/// Where an agent is.
#[derive(Clone, Debug, Default)]
struct Agent {
    /// The one stepped on last comes first.
    tracks: Vec<Track>,
    /// The first is a jump that others made from the same place.
    agreed: bool,
    /// It has told what it reads.
    tells: bool,
    /// When it last asked.
    asked: u64,
}

#[derive(Clone, Copy, Debug)]
struct Track {
    at: Piece,
    /// Steps in order, as far as they count.
    steps: u8,
    /// Whether it is what nobody else has asked for yet.
    new: bool,
}

impl Agent {
    /// The one that goes on when something new comes: stepped on last, and more than once.
    fn main(&self) -> Option<usize> {
        let stepped = self.tracks.iter().position(|track| track.steps > 0);
        stepped.or(self.tracks.len().checked_sub(1))
    }

    /// A step on a track, which takes it to `at`.
    fn step(&mut self, track: usize, at: Piece) {
        let steps = (self.tracks[track].steps + 1).min(STEPS);
        self.tracks[track] = Track { at, steps, ..self.tracks[track] };
        self.tracks[..=track].rotate_right(1);
    }

    /// A track begins, and another ends if they are too many.
    fn jump(&mut self, at: Piece, new: bool) {
        self.agreed = false;
        if self.tracks.len() >= TRACKS {
            let least = (0..self.tracks.len()).rev().min_by_key(|track| self.tracks[*track].steps);
            least.map(|track| self.tracks.remove(track));
            self.tracks.iter_mut().for_each(|track| track.steps = track.steps.saturating_sub(1));
        }
        self.tracks.insert(0, Track { at, steps: 0, new });
    }
}

/// The list as plain data, to be kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The chains.
    pub chains: Vec<SavedChain>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedChain {
    /// In the order of asking.
    pub items: Vec<SavedItem>,
}

/// A chunk that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedItem {
    /// Which.
    pub piece: Piece,
    /// How often it was asked for, of late.
    pub asked: u16,
    /// How often it was passed by.
    pub passed: u16,
    /// Whether more than one agent has asked for it.
    pub proven: bool,
    /// Its place in the order of use: the least is the oldest.
    pub used: u32,
    /// Where agents came from who found it elsewhere, and how many, net of those who came another way.
    pub claim: Option<(Piece, u8)>,
}

impl Recent {
    /// Of at most `capacity` chunks (at least one): about 150 bytes each.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { list: List::new(capacity), agents: BTreeMap::new(), clock: 0 }
    }

    /// How many chunks are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.len() == 0
    }

    /// An agent asked for these chunks because something there waits for them, or told that it read them. `unread` says
    /// of a chunk that it went past whether it could have read it and has not.
    pub fn asked(
        &mut self,
        agent: PeerKey,
        blob: BlobKey,
        chunks: Chunks,
        mut unread: impl FnMut(Piece) -> bool,
    ) {
        self.clock += 1;
        let mut state = self.agents.remove(&agent).unwrap_or_default();
        state.asked = self.clock;
        for chunk in chunks.numbers() {
            self.step(agent, &mut state, Piece { blob, chunk }, &mut unread);
        }
        self.keep(agent, state);
    }

    /// An agent tells what it reads: what it has and does not tell of it has not read.
    pub fn tells(&mut self, agent: PeerKey) {
        let state = self.agents.remove(&agent).unwrap_or_default();
        self.keep(agent, Agent { tells: true, ..state });
    }

    /// Whether it does.
    #[must_use]
    pub fn is_told_by(&self, agent: PeerKey) -> bool {
        self.agents.get(&agent).is_some_and(|state| state.tells)
    }

    fn keep(&mut self, agent: PeerKey, state: Agent) {
        self.agents.insert(agent, state);
        if self.agents.len() > AGENTS_MAX {
            let quiet = self.agents.iter().min_by_key(|(_, state)| state.asked).map(|(key, _)| *key);
            quiet.map(|key| self.agents.remove(&key));
        }
    }

    /// What that agent will ask for next, as far as is known: chunks that it `lacks`, of the next `limit` in order
    /// (32, say, which are 2 MiB) on each of its tracks, in turn; at most `room`, appended to `next`. What only one
    /// agent has asked for comes last. None of where an agent has just jumped to.
    pub fn next(
        &mut self,
        agent: PeerKey,
        (limit, room): (usize, usize),
        mut lacks: impl FnMut(Piece) -> bool,
        next: &mut Vec<Piece>,
    ) {
        let Some(state) = self.agents.get(&agent) else { return };
        let follows = |track: &&Track| track.steps > 0 || state.tracks.len() == 1;
        let begin = |track: &Track| Some((self.list.find(track.at)?, limit.min(FIRST << track.steps)));
        let mut tracks: Vec<_> = state.tracks.iter().filter(follows).filter_map(begin).collect();
        let (tells, mut seen, mut found) = (state.tells, BTreeSet::new(), [Vec::new(), Vec::new()]);
        while !tracks.is_empty() && found[1].len() < room {
            tracks.retain_mut(|(slot, left)| {
                *slot = self.list.after(*slot);
                if *slot == NONE || *left == 0 {
                    return false;
                }
                *left -= 1;
                if self.is_worth(*slot, agent, tells) && lacks(self.list.piece(*slot)) && seen.insert(*slot) {
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

    /// An agent is gone.
    pub fn forget(&mut self, agent: PeerKey) {
        self.agents.remove(&agent);
    }

    /// A blob is not kept here any more: what was known of it is forgotten.
    pub fn forget_blob(&mut self, blob: BlobKey) {
        self.list.remove_blob(blob);
    }

    /// As plain data.
    #[must_use]
    pub fn save(&self) -> Saved {
        Saved { chains: self.list.save() }
    }

    /// From plain data, of which what was used last is taken, as much as there is room for. What makes no sense in it
    /// is left out.
    #[must_use]
    pub fn load(saved: &Saved, capacity: usize) -> Self {
        Self { list: List::load(&saved.chains, capacity), ..Self::new(capacity) }
    }

    /// Whether a chunk is to be sent ahead to this agent.
    fn is_worth(&self, slot: Slot, agent: PeerKey, tells: bool) -> bool {
        let (asked, passed) = self.list.worth(slot);
        let piece = self.list.piece(slot);
        let salt = piece.blob.0.wrapping_add(u64::from(piece.chunk).wrapping_mul(random::STEP));
        let draw = random::mix(random::mix(agent.0) ^ random::mix(salt));
        let little = !tells && asked.saturating_add(passed) <= LITTLE;
        asked > passed && !(little && draw.is_multiple_of(FINDS_OUT))
    }

    /// One chunk is asked for.
    fn step(
        &mut self,
        key: PeerKey,
        agent: &mut Agent,
        piece: Piece,
        unread: &mut impl FnMut(Piece) -> bool,
    ) {
        agent.tracks.retain(|track| self.list.find(track.at).is_some());
        let known = self.list.find(piece);
        if agent.agreed && !known.is_some_and(|slot| self.is_ahead(agent, slot)) {
            self.settle(agent);
        }
        agent.agreed = false;
        let Some(slot) = known else { return self.unknown(key, agent, piece) };
        self.list.asked(slot, key);
        for track in 0..agent.tracks.len() {
            let Some(at) = self.list.find(agent.tracks[track].at) else { continue };
            if let Some(way) = self.way(at, slot, unread) {
                self.list.met(slot);
                agent.step(track, if way == Way::Ahead { piece } else { agent.tracks[track].at });
                return;
            }
        }
        let main = agent.main().and_then(|main| self.list.find(agent.tracks[main].at));
        let agreed = main.is_some_and(|main| self.claimed(slot, main));
        agent.jump(piece, false);
        agent.agreed = agreed;
    }

    /// Whether a chunk is in reach ahead of an agent's last jump.
    fn is_ahead(&self, agent: &Agent, slot: Slot) -> bool {
        let at = agent.tracks.first().and_then(|track| self.list.find(track.at));
        at.is_some_and(|at| slot != at && self.is_behind(at, slot))
    }

    /// An agent did not go on from where it jumped to, as others before it: that chunk belongs to where it came from.
    fn settle(&mut self, agent: &mut Agent) {
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

    /// A chunk is asked for that is not in the list.
    fn unknown(&mut self, key: PeerKey, agent: &mut Agent, piece: Piece) {
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

    /// An agent comes to a chunk from elsewhere: whether enough agree that it belongs there.
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

    /// Whether `from` leads to `to`; what is passed by on the way is counted.
    fn way(&mut self, from: Slot, to: Slot, unread: &mut impl FnMut(Piece) -> bool) -> Option<Way> {
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

    /// Whether `slot` is `from`, or in reach behind it.
    fn is_behind(&self, slot: Slot, from: Slot) -> bool {
        let behind = |slot: &Slot| Some(self.list.before(*slot)).filter(|slot| *slot != NONE);
        std::iter::successors(Some(from), behind).take(REACH + 1).any(|passed| passed == slot)
    }
}

/// Where in a chain something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ahead,
    Behind,
}
