//! The runs of a disk as of one moment, which a commit reads for as long as it likes.
//!
//! Runs are not copied for that: copying would hold a lock all the time, and there may be millions of runs. They are
//! *set aside* instead: in one step the runs of the active pair become frozen and the pair goes on with an empty
//! map above them. That is a matter of memory only; the pair, its files and `state.json` stay as they are, and
//! opening the disk again finds one map. So the frozen runs of a generation begin with those of the active pair that
//! were set aside, if any ([`Generation::set_aside`]), and go on with the frozen pairs.
//!
//! Without more, every commit would leave one more level for reads to ask. The next commit therefore joins the
//! levels that the ones before it have set aside, in a copy that no other thread waits for, so that a pair has no
//! more than two
//! levels between commits.

use super::WritableDisk;
use super::runs::{ExtentKind, RunMap};
use super::space::{self, FileRange};
use super::view::{Frozen, Generation, View};
use std::sync::Arc;

/// All that a disk has over its base as of one moment. While a snapshot exists, the data that it names is not punched.
pub(super) struct Snapshot<'a> {
    disk: &'a WritableDisk,
    /// Topmost first.
    pub(super) levels: Vec<Arc<Frozen>>,
    /// Size of the disk in bytes.
    pub(super) size: u64,
}

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        self.disk.commits.lock().count -= 1;
    }
}

impl WritableDisk {
    /// All that the disk has over its base as of one moment.
    pub(super) fn snapshot(&self) -> Snapshot<'_> {
        // One at a time; otherwise each would find the levels of another on top of those that it joins.
        let _one = self.snapshots.lock();
        let (mut levels, own, size) = {
            let mut commits = self.commits.lock();
            let mut view = self.view_mut();
            view.set_aside();
            let generation = &view.generation;
            commits.count += 1;
            commits.read = generation.pairs().map(|pair| (pair.number, pair.end())).collect();
            (generation.frozen.clone(), generation.set_aside().len(), view.size)
        };
        if let [above @ .., lowest] = &levels[..own]
            && !above.is_empty()
        {
            let mut dead = Vec::new();
            let joined = Arc::new(join(above, lowest, &mut dead));
            let replaced = {
                let mut view = self.view_mut();
                let replaced = view.replace(&levels[..own], &joined);
                if replaced.is_some() {
                    view.dying.append(&mut dead);
                }
                replaced
            };
            levels.splice(..own, [joined]);
            // Frees the old maps here, where no lock of the readers is held.
            drop(replaced);
        }
        Snapshot { disk: self, levels, size }
    }

    /// Joins the runs that commits have set aside with the runs above, once no commit goes on: from then on it is
    /// known again which sectors die. Copies the map, so that other threads wait only for the writes of that time
    /// to be joined.
    pub(super) fn reunite(&self) {
        let _one = self.snapshots.lock();
        if self.commits.lock().count > 0 {
            return;
        }
        let (pair, levels) = {
            let mut view = self.view_mut();
            view.set_aside();
            (Arc::clone(&view.generation.active), view.generation.set_aside().to_vec())
        };
        let [above @ .., lowest] = &levels[..] else { return };
        let mut dead = Vec::new();
        let mut runs = join(above, lowest, &mut dead).runs;
        let mut died =
            |start, len| space::push(&mut dead, FileRange { pair: pair.number, start, end: start + len });
        let old = {
            let mut view = self.view_mut();
            let found = view.generation.set_aside();
            let same =
                found.len() == levels.len() && found.iter().zip(&levels).all(|(a, b)| Arc::ptr_eq(a, b));
            if !same || !Arc::ptr_eq(&view.generation.active, &pair) {
                return;
            }
            lay_over(&mut runs, &view.runs, &mut died);
            let Generation { active, frozen, base, .. } = &*view.generation;
            let frozen = frozen[levels.len()..].to_vec();
            let new = view.generation.next(Arc::clone(active), frozen, base.clone());
            view.dying.append(&mut dead);
            (std::mem::replace(&mut view.runs, runs), std::mem::replace(&mut view.generation, Arc::new(new)))
        };
        // Freed here, where no lock of the readers is held.
        drop((old, levels));
    }
}

fn lay_over(runs: &mut RunMap, upper: &RunMap, died: &mut impl FnMut(u64, u64)) {
    let extents = upper.extents(0, upper.end()).filter(|extent| extent.kind != ExtentKind::Hole);
    extents.for_each(|extent| runs.insert_over(extent, died));
}

/// The runs of one pair as one map: `above`, topmost first, over `lowest`. Data that no run of it names any more is
/// added to `dead`.
fn join(above: &[Arc<Frozen>], lowest: &Frozen, dead: &mut Vec<FileRange>) -> Frozen {
    let (mut runs, number) = (lowest.runs.clone(), lowest.pair.number);
    let mut died = |start, len| space::push(dead, FileRange { pair: number, start, end: start + len });
    for Frozen { runs: upper, .. } in above.iter().rev().map(|level| &**level) {
        lay_over(&mut runs, upper, &mut died);
    }
    Frozen { pair: lowest.pair.clone(), runs }
}

impl View {
    /// Freezes the runs of the active pair, which goes on with none.
    pub(super) fn set_aside(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let Generation { active, frozen, base, .. } = &*self.generation;
        let runs = std::mem::take(&mut self.runs);
        let level = Arc::new(Frozen { pair: active.clone(), runs });
        let frozen = std::iter::once(level).chain(frozen.iter().cloned()).collect();
        self.generation = Arc::new(self.generation.next(active.clone(), frozen, base.clone()));
    }

    /// Puts `joined` in the place of `levels`, unless they are no longer there. Returns what the caller is
    /// has to drop after it has let the lock go.
    fn replace(&mut self, levels: &[Arc<Frozen>], joined: &Arc<Frozen>) -> Option<Arc<Generation>> {
        let Generation { active, frozen, base, .. } = &*self.generation;
        let same = |found: &[Arc<Frozen>]| found.iter().zip(levels).all(|(a, b)| Arc::ptr_eq(a, b));
        let at = frozen.windows(levels.len()).position(same)?;
        let mut frozen = frozen.clone();
        frozen.splice(at..at + levels.len(), [joined.clone()]);
        let new = self.generation.next(active.clone(), frozen, base.clone());
        Some(std::mem::replace(&mut self.generation, Arc::new(new)))
    }
}

impl Generation {
    /// The runs of the active pair that were set aside, topmost first.
    pub(super) fn set_aside(&self) -> &[Arc<Frozen>] {
        let count = self.frozen.iter().take_while(|level| Arc::ptr_eq(&level.pair, &self.active)).count();
        &self.frozen[..count]
    }
}
