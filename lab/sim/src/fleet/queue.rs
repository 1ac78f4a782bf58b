//! The events that are still to happen, the earliest first; of one moment in the order of entry.

use headstart_replay::time::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event, with the number of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happening {
    /// A parcel has come through the wire to its next port, or to its end.
    Arrive(u32),
    /// A port can send the next one.
    Free(u32),
    /// The store begins to answer a request.
    Answer(u32),
    /// The store does not answer a request.
    TimeOut(u32),
    /// A host's node asked to be woken.
    Wake(u32),
    /// A host's disks report their reads to the node.
    ReportReads(u32),
    /// An agent reports what its disks read.
    Report(u32),
    /// A report has come to the tracker, or its answer back.
    Hint(u32),
    /// A disk's engine asked to be woken.
    Tick(u32),
    /// A disk's guest reads.
    Read(u32),
    /// A disk is attached.
    Attach(u32),
    /// A host has proved to the others that it may read the image.
    Proved(u32),
    /// A host is gone, or comes back.
    Fault(u32),
}

/// The agenda.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(Nanos, u64, Happening)>>,
    entered: u64,
}

impl Agenda {
    pub(super) fn enter(&mut self, at: Nanos, happening: Happening) {
        if at < Nanos::NEVER {
            self.entered += 1;
            self.heap.push(Reverse((at, self.entered, happening)));
        }
    }

    pub(super) fn next(&mut self) -> Option<(Nanos, Happening)> {
        self.heap.pop().map(|Reverse((at, _, happening))| (at, happening))
    }

    /// The number of events that were entered so far.
    pub(super) fn entered(&self) -> u64 {
        self.entered
    }
}
