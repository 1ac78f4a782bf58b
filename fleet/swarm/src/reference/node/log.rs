//! The chunks that became local, in the order in which they came: each new neighbour is told of them from the
//! beginning.

use crate::event::Chunks;

/// The number of runs that are remembered in order. Beyond it, the older part is told in the order of the blob.
const MOST: usize = 8192;

/// Runs in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    runs: Vec<Chunks>,
    /// The number of runs that all neighbours were told.
    told: usize,
}

impl Log {
    /// Adds a run that came.
    pub(super) fn push(&mut self, run: Chunks) {
        let grows = self.told < self.runs.len();
        match self.runs.last_mut() {
            Some(last) if grows && last.numbers().end == run.first => last.count += run.count,
            _ => self.runs.push(run),
        }
        if self.runs.len() > MOST {
            self.shorten();
        }
    }

    /// Takes the runs that were not told yet.
    pub(super) fn untold(&mut self) -> Vec<Chunks> {
        let untold = self.runs.get(self.told..).unwrap_or_default().to_vec();
        self.told = self.runs.len();
        untold
    }

    pub(super) fn is_told(&self) -> bool {
        self.told == self.runs.len()
    }

    /// All runs, in order, with those that are not local any more.
    pub(super) fn all(&self) -> &[Chunks] {
        &self.runs
    }

    /// Sorts the older part and joins runs that touch.
    fn shorten(&mut self) {
        let half = MOST * 3 / 4;
        let mut older: Vec<Chunks> = self.runs[..half].to_vec();
        older.sort_unstable();
        let mut joined: Vec<Chunks> = Vec::with_capacity(half);
        for run in older {
            match joined.last_mut() {
                Some(last) if last.numbers().end >= run.first => {
                    let end = last.numbers().end.max(run.numbers().end);
                    last.count = end - last.first;
                }
                _ => joined.push(run),
            }
        }
        // A blob of nothing but holes: the oldest runs are never told to later neighbours.
        joined.truncate(MOST / 2);
        let told_of_older = self.told.min(half);
        self.told = if told_of_older == half { joined.len() + self.told - half } else { 0 };
        joined.extend_from_slice(&self.runs[half..]);
        self.runs = joined;
    }
}
