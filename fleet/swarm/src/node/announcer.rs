//! The announcements of a blob: neighbours are told which chunks become local, and a root what is read.

use super::arrival_log::ArrivalLog;
use crate::event::{Chunks, PeerId};

/// The number of runs in one message; more go into the next.
pub(super) const RUNS: usize = 1024;

/// The announcements of a blob.
#[derive(Debug)]
pub(super) struct Announcer {
    /// The chunks that became local, in order.
    pub(super) log: ArrivalLog,
    /// Peers that are told of local chunks.
    neighbours: Vec<PeerId>,
    choice: Choice,
    /// Chunks that disks of this host read and its root was not told of, in order.
    reads: Vec<Chunks>,
}

/// The choice of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// The neighbours are those of the hosts that share the blob now.
    Made,
    /// Hosts have come or gone since, or it is time: neighbours are to be chosen again.
    Due,
}

impl Announcer {
    /// No neighbours so far.
    pub(super) fn new() -> Self {
        Self { log: ArrivalLog::default(), neighbours: Vec::new(), choice: Choice::Due, reads: Vec::new() }
    }

    /// Peers that are told of local chunks.
    pub(super) fn neighbours(&self) -> &[PeerId] {
        &self.neighbours
    }

    /// Notes that neighbours are to be chosen again.
    pub(super) fn expire_choice(&mut self) {
        self.choice = Choice::Due;
    }

    /// `true` if neighbours are to be chosen again, by [`Self::choose`].
    pub(super) fn is_choice_due(&self) -> bool {
        self.choice == Choice::Due
    }

    /// Sets the neighbours. Returns those that are new.
    pub(super) fn choose(&mut self, chosen: Vec<PeerId>) -> Vec<PeerId> {
        self.choice = Choice::Made;
        let new = chosen.iter().copied().filter(|peer| !self.neighbours.contains(peer)).collect();
        self.neighbours = chosen;
        new
    }

    /// Removes a neighbour that is gone.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.neighbours.retain(|other| *other != peer);
    }

    /// Notes chunks that disks of this host read. The root misses some of very many, as it does when a message is lost.
    pub(super) fn add_read(&mut self, run: Chunks) {
        if self.reads.len() < RUNS {
            self.reads.push(run);
        }
    }

    /// Takes the chunks that disks of this host read.
    pub(super) fn take_reads(&mut self) -> Vec<Chunks> {
        std::mem::take(&mut self.reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_chosen_when_hosts_have_changed_and_the_new_ones_are_told() {
        let mut announcer = Announcer::new();
        assert!(announcer.is_choice_due());
        assert_eq!(announcer.choose(vec![PeerId(1), PeerId(2)]), [PeerId(1), PeerId(2)]);
        assert!(!announcer.is_choice_due());
        announcer.expire_choice();
        assert!(announcer.is_choice_due());
        assert_eq!(announcer.choose(vec![PeerId(2), PeerId(3)]), [PeerId(3)]);
        announcer.forget(PeerId(2));
        assert_eq!(announcer.neighbours(), [PeerId(3)]);
    }

    #[test]
    fn the_reads_are_taken_once_and_are_not_too_many() {
        let mut announcer = Announcer::new();
        (0..2000).for_each(|chunk| announcer.add_read(Chunks::one(chunk)));
        assert_eq!(announcer.take_reads().len(), RUNS);
        assert!(announcer.take_reads().is_empty());
    }
}
