//! The chunks that became local, in the order in which they came: each new neighbour is told of them from the
//! beginning.

use crate::event::Chunks;

/// The number of runs that are remembered in order. Beyond it, the older part is told in the order of the blob.
const RUNS_MAX: usize = 8192;

/// Runs in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct ArrivalLog {
    runs: Vec<Chunks>,
    /// The number of runs that all neighbours were told.
    announced: usize,
}

impl ArrivalLog {
    /// Adds a run that came.
    pub(super) fn push(&mut self, run: Chunks) {
        let grows = self.announced < self.runs.len();
        match self.runs.last_mut() {
            Some(last) if grows && last.numbers().end == run.first => last.count += run.count,
            _ => self.runs.push(run),
        }
        if self.runs.len() > RUNS_MAX {
            self.compact();
        }
    }

    /// Takes the runs that were not told yet.
    pub(super) fn take_unannounced(&mut self) -> Vec<Chunks> {
        let unannounced = self.runs.get(self.announced..).unwrap_or_default().to_vec();
        self.announced = self.runs.len();
        unannounced
    }

    pub(super) fn is_announced(&self) -> bool {
        self.announced == self.runs.len()
    }

    /// All runs, in order, with those that are not local any more.
    pub(super) fn all(&self) -> &[Chunks] {
        &self.runs
    }

    /// Sorts the older part and joins runs that touch.
    fn compact(&mut self) {
        let half = RUNS_MAX * 3 / 4;
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
        joined.truncate(RUNS_MAX / 2);
        let announced_of_older = self.announced.min(half);
        self.announced = if announced_of_older == half { joined.len() + self.announced - half } else { 0 };
        joined.extend_from_slice(&self.runs[half..]);
        self.runs = joined;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, count: u32) -> Chunks {
        Chunks { first, count }
    }

    #[test]
    fn adjacent_arrivals_join_until_they_are_announced() {
        let mut log = ArrivalLog::default();
        log.push(run(4, 2));
        log.push(run(6, 1));
        log.push(run(1, 1));
        assert_eq!(log.take_unannounced(), [run(4, 3), run(1, 1)]);
        assert!(log.is_announced());
        log.push(run(2, 1));
        assert_eq!(log.take_unannounced(), [run(2, 1)]);
        assert_eq!(log.all(), [run(4, 3), run(1, 1), run(2, 1)]);
    }

    #[test]
    fn an_arrival_log_is_bounded() {
        let mut log = ArrivalLog::default();
        for n in 0..100_000 {
            log.push(run(n * 7919 % 100_003, 1));
            if n % 10 == 0 {
                log.take_unannounced();
            }
        }
        assert!(log.all().len() <= RUNS_MAX);
        assert!(log.announced <= log.all().len());
    }
}
