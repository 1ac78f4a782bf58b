//! The runs of a disk as of one moment, which a commit reads for as long as it likes.
//!
//! Runs are not copied for that: it would take a lock for as long as it lasts, and there may be millions. They are
//! *set aside* instead: in one step the runs of the active pair become frozen and the pair goes on with an empty
//! map above them. That is a matter of memory only; the pair, its files and `state.json` stay as they are, and
//! opening the disk again finds one map. So the frozen runs of a generation begin with those of the active pair that
//! were set aside, if any ([`Generation::set_aside`]), and go on with the frozen pairs.
//!
//! Were that all, every commit would leave one more level for reads to ask. The next commit joins what the
//! ones before it have set aside, in a copy that nobody waits for, so that a pair has no more than two
//! levels between commits.

use super::runs::What;
use super::view::{Frozen, Generation, View};
use super::{WritableDisk, lock};
use std::sync::Arc;

impl WritableDisk {
    /// All that the disk has over its base as of one moment, topmost first, and its size then.
    pub(super) fn snapshot(&self) -> (Vec<Arc<Frozen>>, u64) {
        // One at a time, or each would find the levels of another on top of those that it joins.
        let _one = lock(&self.snapshots);
        let (mut levels, own, size) = {
            let mut view = self.view_mut();
            view.set_aside();
            let generation = &view.generation;
            (generation.frozen.clone(), generation.set_aside().len(), view.size)
        };
        if let [above @ .., lowest] = &levels[..own]
            && !above.is_empty()
        {
            let joined = Arc::new(join(above, lowest));
            let replaced = self.view_mut().replace(&levels[..own], &joined);
            levels.splice(..own, [joined]);
            // Frees the old maps here, where no lock of the readers is held.
            drop(replaced);
        }
        (levels, size)
    }
}

/// The runs of one pair as one map: `above`, topmost first, over `lowest`.
fn join(above: &[Arc<Frozen>], lowest: &Frozen) -> Frozen {
    let mut runs = lowest.runs.clone();
    for Frozen { runs: upper, .. } in above.iter().rev().map(|level| &**level) {
        let pieces = upper.pieces(0, upper.end()).filter(|piece| piece.what != What::Hole);
        pieces.for_each(|piece| runs.insert(piece));
    }
    Frozen { pair: lowest.pair.clone(), runs }
}

impl View {
    /// Freezes the runs of the active pair, which goes on with none.
    pub(super) fn set_aside(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let Generation { active, frozen, base } = &*self.generation;
        let runs = std::mem::take(&mut self.runs);
        let level = Arc::new(Frozen { pair: active.clone(), runs });
        let frozen = std::iter::once(level).chain(frozen.iter().cloned()).collect();
        self.generation = Arc::new(Generation { active: active.clone(), frozen, base: base.clone() });
    }

    /// Puts `joined` in the place of `levels`, unless they are no longer there. Returns what the caller is
    /// to drop when he has let the lock go.
    fn replace(&mut self, levels: &[Arc<Frozen>], joined: &Arc<Frozen>) -> Option<Arc<Generation>> {
        let Generation { active, frozen, base } = &*self.generation;
        let same = |found: &[Arc<Frozen>]| found.iter().zip(levels).all(|(a, b)| Arc::ptr_eq(a, b));
        let at = frozen.windows(levels.len()).position(same)?;
        let mut frozen = frozen.clone();
        frozen.splice(at..at + levels.len(), [joined.clone()]);
        let new = Generation { active: active.clone(), frozen, base: base.clone() };
        Some(std::mem::replace(&mut self.generation, Arc::new(new)))
    }
}

impl Generation {
    /// What was set aside of the active pair's runs, topmost first.
    pub(super) fn set_aside(&self) -> &[Arc<Frozen>] {
        let count = self.frozen.iter().take_while(|level| Arc::ptr_eq(&level.pair, &self.active)).count();
        &self.frozen[..count]
    }
}
