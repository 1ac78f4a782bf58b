//! The segment tree of an image's access counts: a binary tree over the disk's slices, in which only the paths to
//! slices that were read exist. It grows at its root when a slice is beyond it.

use super::members::{COMMONS, Charges};
use super::{Hint, SliceAccess};
use headstart_block::{exact, saturating};

const NONE: u32 = u32::MAX;

/// The bit of a slice's owner that is set if another member has read it, too.
const IS_SHARED: u32 = 1 << 31;

/// A slice, or all slices below.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// Accesses.
    count: u64,
    /// The sum of their times, in milliseconds.
    time_ms: u64,
    /// The greatest count of a slice below.
    most: u32,
    /// The version in which a slice below was told last; 0: none was.
    announced_in: u64,
    /// The halves below. Of a slice: in `below[0]` the count that was told last, and in `below[1]` the slot of the
    /// member that read it first, with [`IS_SHARED`].
    below: [u32; 2],
}

/// The tree.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    root: u32,
    /// Levels above the slices: the root covers `1 << height` slices.
    height: u32,
    slices: usize,
}

impl Tree {
    /// Counts a read of a slice by a disk of the member in `slot`; `true` if the slice is to be told, in version
    /// `announced_in`. The slice's first reader owns it.
    pub(super) fn read(&mut self, access: SliceAccess, threshold: u32, announced_in: u64, slot: u32) -> bool {
        let is_new = self.missing(access.slice) > 0;
        let path = self.path(access.slice);
        let leaf = &mut self.nodes[path[0] as usize];
        if is_new {
            leaf.below[1] = slot;
        } else if leaf.owner() != slot {
            leaf.below[1] |= IS_SHARED;
        }
        leaf.count += 1;
        leaf.time_ms = leaf.time_ms.saturating_add(u64::from(access.at_ms));
        leaf.most = leaf.most.saturating_add(1);
        let (count, last) = (leaf.most, leaf.below[0]);
        // An agent that had not heard of it when the threshold rose above it has passed it over.
        let anew = last == 0 || count == threshold;
        let tell = count >= threshold && (anew || count >= last.saturating_mul(2));
        if tell {
            (leaf.announced_in, leaf.below[0]) = (announced_in, count);
        }
        for above in &path[1..] {
            let node = &mut self.nodes[*above as usize];
            node.count += 1;
            node.time_ms = node.time_ms.saturating_add(u64::from(access.at_ms));
            node.most = node.most.max(count);
            if tell {
                node.announced_in = announced_in;
            }
        }
        tell
    }

    /// Adds a slice of the commons that is not there yet, told in that version, if any.
    pub(super) fn set(&mut self, hint: Hint, announced_in: u64) {
        self.set_of(hint, announced_in, COMMONS);
    }

    fn set_of(&mut self, hint: Hint, announced_in: u64, owner: u32) {
        if hint.disks == 0 || self.missing(hint.slice) == 0 {
            return;
        }
        let path = self.path(hint.slice);
        self.nodes[path[0] as usize].below[1] = owner;
        if announced_in > 0 {
            self.nodes[path[0] as usize].below[0] = hint.disks;
        }
        let time_ms = u64::from(hint.mean_ms) * u64::from(hint.disks);
        for node in path {
            let node = &mut self.nodes[node as usize];
            node.count += u64::from(hint.disks);
            node.time_ms = node.time_ms.saturating_add(time_ms);
            node.most = node.most.max(hint.disks);
            node.announced_in = node.announced_in.max(announced_in);
        }
    }

    /// The number of nodes that are made when a slice is read; none if it was read before.
    pub(super) fn missing(&self, slice: u32) -> usize {
        let height = u32::BITS - slice.leading_zeros();
        if self.nodes.is_empty() {
            return height as usize + 1;
        }
        if height > self.height {
            return (height - self.height + height) as usize;
        }
        let mut at = self.root;
        for level in (0..self.height).rev() {
            at = self.nodes[at as usize].below[(slice >> level & 1) as usize];
            if at == NONE {
                return level as usize + 1;
            }
        }
        0
    }

    /// The nodes from a slice up to the root, which are made if they do not exist.
    fn path(&mut self, slice: u32) -> Vec<u32> {
        if self.missing(slice) > 0 {
            self.slices += 1;
        }
        if self.nodes.is_empty() {
            self.height = u32::BITS - slice.leading_zeros();
            self.root = self.new_node(self.height);
        }
        while u64::from(slice) >> self.height > 0 {
            let old = self.nodes[self.root as usize];
            let root = self.new_node(1);
            self.nodes[root as usize] = Node { below: [self.root, NONE], ..old };
            (self.root, self.height) = (root, self.height + 1);
        }
        let mut path = vec![self.root];
        let mut at = self.root;
        for level in (0..self.height).rev() {
            let half = (slice >> level & 1) as usize;
            if self.nodes[at as usize].below[half] == NONE {
                let new = self.new_node(level);
                self.nodes[at as usize].below[half] = new;
            }
            at = self.nodes[at as usize].below[half];
            path.push(at);
        }
        path.reverse();
        path
    }

    fn new_node(&mut self, level: u32) -> u32 {
        let below = if level == 0 { [0; 2] } else { [NONE; 2] };
        if self.nodes.len() == self.nodes.capacity() {
            // By an eighth: memory that is reserved and not used is charged to no member.
            self.nodes.reserve_exact((self.nodes.len() / 8).max(16));
        }
        self.nodes.push(Node { below, ..Node::default() });
        exact(self.nodes.len() - 1, "slices have numbers of 32 bits, and half as many nodes fit the memory")
    }

    /// The slices with a count of at least `threshold` that were told after version `since`, each with the version in
    /// which it was told, in the order of the disk. Returns the number of nodes that were visited.
    pub(super) fn hints_since(&self, threshold: u32, since: u64, found: &mut Vec<(u64, Hint)>) -> usize {
        let mut visited = 0;
        let mut ways = if self.nodes.is_empty() { vec![] } else { vec![(self.root, self.height, 0_u32)] };
        while let Some((at, level, first)) = ways.pop() {
            visited += 1;
            let node = &self.nodes[at as usize];
            if node.most < threshold || node.announced_in <= since {
                continue;
            }
            if level == 0 {
                found.push((node.announced_in, node.hint(first)));
                continue;
            }
            let right = first | 1 << (level - 1);
            let below = [(node.below[1], right), (node.below[0], first)];
            ways.extend(
                below.into_iter().filter(|(at, _)| *at != NONE).map(|(at, first)| (at, level - 1, first)),
            );
        }
        visited
    }

    /// The number of slices that were read.
    pub(super) fn len(&self) -> usize {
        self.slices
    }

    /// All slices that were read, ascending.
    pub(super) fn slices(&self) -> Vec<Hint> {
        self.leaves().into_iter().map(|(first, leaf)| leaf.hint(first)).collect()
    }

    fn leaves(&self) -> Vec<(u32, Node)> {
        let mut leaves = Vec::with_capacity(self.slices);
        let mut ways = if self.nodes.is_empty() { vec![] } else { vec![(self.root, self.height, 0_u32)] };
        while let Some((at, level, first)) = ways.pop() {
            let node = self.nodes[at as usize];
            if level == 0 {
                leaves.push((first, node));
                continue;
            }
            let right = first | 1 << (level - 1);
            let below = [(node.below[1], right), (node.below[0], first)];
            ways.extend(
                below.into_iter().filter(|(at, _)| *at != NONE).map(|(at, first)| (at, level - 1, first)),
            );
        }
        leaves
    }

    /// Halves all counts, and forgets slices that only one disk has read.
    pub(super) fn halve(&mut self) -> Charges {
        self.rebuild(|slice, leaf| {
            let half = leaf.hint(slice);
            Some((Hint { disks: half.disks / 2, ..half }, leaf.below[1]))
        })
    }

    /// Makes the member in `slot` give up what it owns: slices that others have read as well become part of the
    /// commons, all others are forgotten. The commons forget theirs.
    pub(super) fn give_up(&mut self, slot: u32) -> Charges {
        self.rebuild(|slice, leaf| {
            if leaf.owner() != slot {
                return Some((leaf.hint(slice), leaf.below[1]));
            }
            let is_shared = leaf.below[1] & IS_SHARED > 0;
            (is_shared && slot != COMMONS).then(|| (leaf.hint(slice), COMMONS))
        })
    }

    /// Rebuilds the tree from the results of `becomes` for its slices.
    fn rebuild(&mut self, becomes: impl Fn(u32, &Node) -> Option<(Hint, u32)>) -> Charges {
        let leaves = self.leaves();
        *self = Self::default();
        let mut charges = Charges::new();
        for (slice, leaf) in leaves {
            let Some((hint, owner)) = becomes(slice, &leaf) else { continue };
            let before = self.nodes.len();
            self.set_of(hint, leaf.announced_in, owner);
            let made = self.nodes.len() - before;
            if made > 0 {
                *charges.entry(owner & !IS_SHARED).or_default() += made;
            }
        }
        charges
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    /// The number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    #[cfg(test)]
    pub(super) fn node(&self, first: u32, level: u32) -> Option<(u64, u64)> {
        if self.nodes.is_empty() || u64::from(first) >> self.height > 0 {
            return None;
        }
        let way = (level..self.height).rev().try_fold(self.root, |at, level| {
            let below = self.nodes[at as usize].below[(first >> level & 1) as usize];
            (below != NONE).then_some(below)
        });
        way.map(|at| (self.nodes[at as usize].count, self.nodes[at as usize].time_ms))
    }
}

impl Node {
    /// The slot of a slice's owner.
    fn owner(&self) -> u32 {
        self.below[1] & !IS_SHARED
    }

    fn hint(&self, slice: u32) -> Hint {
        let mean = self.time_ms.checked_div(self.count).unwrap_or(0);
        Hint { slice, disks: self.most, mean_ms: saturating(mean) }
    }
}
