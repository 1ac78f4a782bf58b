//! The host that is asked for a chunk, and the neighbours of each host: functions of the hosts' keys alone, so that all
//! hosts that know the same hosts decide alike without a message.
//!
//! *Designated fetchers* are drawn by rendezvous hashing: each host has a weight for each stripe, and the host with the
//! greatest weight is the stripe's fetcher. When one of n hosts comes or goes, one stripe in n gets another fetcher,
//! and the others keep theirs. Computing the weight of a host takes a few nanoseconds, so [`BlobFetchers`] keeps the
//! results of [`DesignatedFetchers`] for each stripe until a host comes or goes.
//!
//! *Drawn neighbours* are the hosts beside a host in several rings, each ring in an order of its own. So every host has
//! equally many neighbours, is a neighbour of equally many hosts, and can be reached from every other host. Independent
//! draws do not achieve that: of hosts that draw four neighbours each, one in fifty is drawn by no other, and would get
//! no advert. A host that comes or goes changes the neighbours only of the hosts beside it.

use crate::event::{BlobKey, Chunks, PeerKey};
use headstart_block::{exact, random};

#[cfg(test)]
mod tests;

/// The set of hosts that can be designated fetchers. For each stripe (a group of consecutive chunks) one of
/// them, the *designated fetcher*, fetches the chunks from the store for all hosts.
#[derive(Clone, Debug, Default)]
pub struct DesignatedFetchers {
    /// All keys, ascending.
    keys: Vec<PeerKey>,
    /// The hash of each key, by which it is weighed.
    hashes: Vec<u32>,
    generation: u64,
}

impl DesignatedFetchers {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a host to the set. Returns `false` if it was in the set already.
    pub fn insert(&mut self, key: PeerKey) -> bool {
        let Err(place) = self.keys.binary_search(&key) else { return false };
        self.keys.insert(place, key);
        self.hashes.insert(place, low(random::mix(key.0)));
        self.generation += 1;
        true
    }

    /// Removes a host from the set. Returns `false` if it was not in the set.
    pub fn remove(&mut self, key: PeerKey) -> bool {
        let Ok(place) = self.keys.binary_search(&key) else { return false };
        self.keys.remove(place);
        self.hashes.remove(place);
        self.generation += 1;
        true
    }

    /// The keys of all hosts in the set, ascending.
    #[must_use]
    pub fn keys(&self) -> &[PeerKey] {
        &self.keys
    }

    /// The designated fetcher of stripe number `stripe` of `blob`; `None` if the set is empty.
    #[must_use]
    pub fn fetcher(&self, blob: BlobKey, stripe: u32) -> Option<PeerKey> {
        self.place(blob, stripe).map(|place| self.keys[place])
    }

    /// The designated fetcher of a stripe, then the host that would be the fetcher without it, and so on: at
    /// most `count` different hosts, fewer if the set is smaller.
    #[must_use]
    pub(crate) fn successors(&self, blob: BlobKey, stripe: u32, count: usize) -> Vec<PeerKey> {
        let salt = salt(blob, stripe);
        let mut weighed: Vec<(u64, PeerKey)> = (0_u32..)
            .zip(&self.hashes)
            .zip(&self.keys)
            .map(|((n, h), k)| (weight(*h, salt, n), *k))
            .collect();
        weighed.sort_unstable_by(|a, b| b.cmp(a));
        weighed.into_iter().take(count).map(|(_, key)| key).collect()
    }

    fn place(&self, blob: BlobKey, stripe: u32) -> Option<usize> {
        let salt = salt(blob, stripe);
        let heaviest = (0_u32..).zip(&self.hashes).map(|(n, hash)| weight(*hash, salt, n)).max()?;
        Some(!low(heaviest) as usize)
    }
}

/// The part of a stripe in a weight.
fn salt(blob: BlobKey, stripe: u32) -> u32 {
    low(random::mix(blob.0.wrapping_add(u64::from(stripe).wrapping_mul(random::STEP))))
}

/// The weight of a host, and, so that no two are equal, its place: the first of equals is heavier.
fn weight(hash: u32, salt: u32, place: u32) -> u64 {
    let mut bits = hash ^ salt;
    bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
    u64::from(bits ^ bits >> 16) << 32 | u64::from(!place)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
fn low(bits: u64) -> u32 {
    bits as u32
}

/// A cache of one blob's designated fetchers. It takes four bytes for each stripe, and is cleared when the
/// set of hosts changes.
#[derive(Clone, Debug)]
pub struct BlobFetchers {
    blob: BlobKey,
    generation: u64,
    /// The place of each stripe's fetcher, or [`UNKNOWN`].
    places: Vec<u32>,
}

const UNKNOWN: u32 = u32::MAX;

impl BlobFetchers {
    /// Creates an empty cache for `blob`. It grows as stripes are requested.
    #[must_use]
    pub fn new(blob: BlobKey) -> Self {
        Self { blob, generation: 0, places: Vec::new() }
    }

    /// Returns the same as [`DesignatedFetchers::fetcher`] for this blob, from the cache if possible. The caller must
    /// not pass a stripe beyond the blob's end: the cache grows to an entry for each stripe up to that one.
    pub fn fetcher(&mut self, fetchers: &DesignatedFetchers, stripe: u32) -> Option<PeerKey> {
        if self.generation != fetchers.generation {
            self.generation = fetchers.generation;
            self.places.clear();
        }
        let at = stripe as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, UNKNOWN);
        }
        if self.places[at] == UNKNOWN {
            self.places[at] =
                exact(fetchers.place(self.blob, stripe)?, "there are fewer hosts than 32 bits count");
        }
        fetchers.keys.get(self.places[at] as usize).copied()
    }
}

/// The number of the stripe that contains `chunk`, if each stripe has `stripe` chunks; a `stripe` of 0 counts as 1.
#[must_use]
pub(crate) fn stripe_of(chunk: u32, stripe: u32) -> u32 {
    chunk / stripe.max(1)
}

/// The chunks of stripe `number` in a blob of `chunks` chunks, if each stripe has `stripe` chunks (0 counts as 1). The
/// last stripe may be shorter; a stripe beyond the end is empty.
#[must_use]
pub fn chunks_of(number: u32, stripe: u32, chunks: u32) -> Chunks {
    let first = number.saturating_mul(stripe.max(1)).min(chunks);
    Chunks { first, count: stripe.max(1).min(chunks - first) }
}

/// The hosts that keep stripe `number` of a pinned blob, a blob that hosts keep together: the `copies` consecutive
/// hosts of `all` from place `number` (modulo the number of hosts) on. If `copies` is 0, that is one host; if it is
/// above the number of hosts, all hosts. Empty if `all` is empty.
pub fn holders(all: &[PeerKey], copies: u32, number: u32) -> impl Iterator<Item = PeerKey> + '_ {
    let first = (number as usize).checked_rem(all.len()).unwrap_or(0);
    all.iter().cycle().skip(first).take((copies.max(1) as usize).min(all.len())).copied()
}

/// Returns `true` if a host keeps stripe `number` of a pinned blob. `place` is the index of the host in the list of the
/// blob's holders, which has `hosts` entries; `copies` is as for [`holders`]. `false` if `place` is not in the list.
#[must_use]
pub fn holds(place: usize, hosts: usize, copies: u32, number: u32) -> bool {
    let Some(first) = (number as usize).checked_rem(hosts) else { return false };
    place < hosts && (place + hosts - first) % hosts < copies.max(1) as usize
}

/// The chunks of a pinned blob that one host keeps: one run for each stripe that it [`holds`], ascending. The
/// blob has `chunks` chunks, and each stripe has `stripe` of them.
pub fn held(
    place: usize,
    hosts: usize,
    copies: u32,
    stripe: u32,
    chunks: u32,
) -> impl Iterator<Item = Chunks> {
    let stripes = chunks.div_ceil(stripe.max(1));
    let mine = move |number: &u32| holds(place, hosts, copies, *number);
    (0..stripes).filter(mine).map(move |number| chunks_of(number, stripe, chunks))
}

/// The neighbours of `me` in a ring of all hosts in the order of their keys: the host after `me`, then the host before
/// `me`. Only one if both are the same host, none if there is no other host. `all` must ascend; it need not contain
/// `me`.
#[must_use]
pub(crate) fn ring(me: PeerKey, all: &[PeerKey]) -> Vec<PeerKey> {
    let others: Vec<_> = all.iter().copied().filter(|key| *key != me).collect();
    let after = others.partition_point(|key| *key < me);
    let at = |place: usize| others.get(place % others.len().max(1)).copied();
    let mut neighbours: Vec<_> = at(after).into_iter().collect();
    neighbours.extend(at(after + others.len().saturating_sub(1)).filter(|before| Some(*before) != at(after)));
    neighbours
}

/// Draws `count` neighbours of `me`, or returns all other hosts if there are fewer. They come from several
/// pseudo-random rings of all hosts, which depend on `seed`: the host after `me` and the host before it in
/// the first ring, then those in the second, and so on. Because every host has its successor in the first
/// ring as a neighbour, every host can be reached from every other. The order of the result means nothing.
/// The cost is some nanoseconds for each host and ring.
#[must_use]
pub(crate) fn drawn(me: PeerKey, all: &[PeerKey], count: usize, seed: u64) -> Vec<PeerKey> {
    let others = || all.iter().copied().filter(|key| *key != me);
    let mut neighbours: Vec<PeerKey> = Vec::with_capacity(count.min(all.len()));
    if others().count() <= count {
        neighbours.extend(others());
        return neighbours;
    }
    let mut ring = 0_u64;
    while neighbours.len() < count {
        let salt = random::mix(seed.wrapping_add(ring));
        let place = |key: PeerKey| random::mix(random::mix(key.0) ^ salt);
        let mine = place(me);
        let (mut after, mut before) = ((u64::MAX, None), (u64::MAX, None));
        for key in others() {
            let ahead = place(key).wrapping_sub(mine);
            after = after.min((ahead, Some(key)));
            before = before.min((ahead.wrapping_neg(), Some(key)));
        }
        for found in [after.1, before.1].into_iter().flatten() {
            if neighbours.len() < count && !neighbours.contains(&found) {
                neighbours.push(found);
            }
        }
        ring += 1;
        if ring > 4 * count as u64 {
            break; // small crowds meet the same few again and again: the rest is filled in order
        }
    }
    let missing = count - neighbours.len();
    let rest: Vec<_> = others().filter(|key| !neighbours.contains(key)).take(missing).collect();
    neighbours.extend(rest);
    neighbours
}

/// The place of a host in the tree of all: `roots`, then `agents`, each ascending; `None` if it is neither.
fn standing(key: PeerKey, roots: &[PeerKey], agents: &[PeerKey]) -> Option<usize> {
    let among = |agents: &[PeerKey]| agents.binary_search(&key).ok();
    among(roots).or_else(|| among(agents).map(|place| roots.len() + place))
}

fn at(place: usize, roots: &[PeerKey], agents: &[PeerKey]) -> Option<PeerKey> {
    roots.get(place).or_else(|| agents.get(place.checked_sub(roots.len())?)).copied()
}

/// The parent of `key` in a tree in which each host has `arity` children (0 counts as 1). The tree is filled
/// level by level, with the roots first and then the agents; both lists must ascend. `None` for the host at
/// the top, which fetches from the store, and for a host in neither list.
#[must_use]
pub(crate) fn parent(key: PeerKey, roots: &[PeerKey], agents: &[PeerKey], arity: u32) -> Option<PeerKey> {
    let place = standing(key, roots, agents)?.checked_sub(1)?;
    at(place / arity.max(1) as usize, roots, agents)
}

/// The children of `key` in the tree that [`parent`] describes; none for a host in neither list.
#[must_use]
pub(crate) fn children(key: PeerKey, roots: &[PeerKey], agents: &[PeerKey], arity: u32) -> Vec<PeerKey> {
    let arity = arity.max(1) as usize;
    let first = standing(key, roots, agents).and_then(|place| place.checked_mul(arity)?.checked_add(1));
    let Some(first) = first else { return Vec::new() };
    (first..first.saturating_add(arity)).map_while(|place| at(place, roots, agents)).collect()
}

/// The order in which the agent `me` tries to join the roots. It is pseudo-random, differs from host to host,
/// and depends only on `me`, `seed` and the roots. Adding or removing a root does not change the order of the
/// others.
#[must_use]
pub(crate) fn roots_for(me: PeerKey, roots: &[PeerKey], seed: u64) -> Vec<PeerKey> {
    let salt = random::mix(random::mix(me.0).wrapping_add(seed));
    let mut order: Vec<_> = roots.iter().copied().filter(|root| *root != me).collect();
    order.sort_by_cached_key(|root| (random::mix(random::mix(root.0) ^ salt), *root));
    order
}

/// The largest number of agents that one root accepts, at least 1: `set` if given, otherwise twice the mean
/// number of agents for each root.
#[must_use]
pub(crate) fn agents_max(agents: usize, roots: usize, set: Option<u32>) -> usize {
    let share = agents.div_ceil(roots.max(1));
    set.map_or(share.saturating_mul(2), |set| set as usize).max(1)
}
