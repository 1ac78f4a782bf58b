//! The bytes of the base that merging runs needs and that are not on this host. The collector notes them, and the
//! owner of the disk brings them.

use super::WritableDisk;
use headstart_block::{ByteRange, ByteSize, Error, ErrorKind};

/// Ranges that are noted at the same time, a window of the disk each: 16 MiB at most.
const RANGES_MAX: usize = 64;

/// The ranges of the disk whose bytes of the base are wanted, on their way, or have come.
#[derive(Default)]
pub(super) struct Lack {
    wanted: Vec<ByteRange>,
    underway: Vec<ByteRange>,
    /// Ranges that have come and were not merged yet.
    arrived: Vec<ByteRange>,
    /// The reason for which the last ones did not come; no range is wanted until the failure is forgotten.
    failure: Option<String>,
}

impl Lack {
    /// Notes a range that is not on this host; `false` if such ranges cannot be brought at present.
    pub(super) fn note(&mut self, range: ByteRange) -> bool {
        if self.failure.is_some() {
            return false;
        }
        if !self.is_full() && !self.wanted.contains(&range) && !self.underway.contains(&range) {
            self.wanted.push(range);
        }
        true
    }

    /// `true` if no more ranges can be noted before some have come.
    pub(super) fn is_full(&self) -> bool {
        self.wanted.len() + self.underway.len() >= RANGES_MAX
    }

    /// `true` while ranges are wanted or on their way.
    pub(super) fn is_waiting(&self) -> bool {
        !self.wanted.is_empty() || !self.underway.is_empty()
    }

    /// `true` if a range has come that was not merged yet.
    pub(super) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Takes a range that has come.
    pub(super) fn next_arrived(&mut self) -> Option<ByteRange> {
        self.arrived.pop()
    }

    /// The reason for which no range comes.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Takes the wanted parts of a base that has the bytes `below`.
    fn take(&mut self, below: ByteRange) -> Vec<ByteRange> {
        self.wanted.retain(|range| !range.intersect(below).is_empty());
        let taken = self.wanted.iter().map(|range| range.intersect(below)).collect();
        self.underway.append(&mut self.wanted);
        taken
    }

    fn ended(&mut self, result: Result<(), &Error>) {
        let came = std::mem::take(&mut self.underway);
        match result {
            Ok(()) => self.arrived.extend(came),
            Err(error) => {
                self.wanted.clear();
                self.failure = Some(error.to_string());
            }
        }
    }
}

impl WritableDisk {
    /// Returns the byte ranges of the base that [`collect`](Self::collect) needs to merge runs and that are not on
    /// this host; empty if there are none. The caller must fetch them and report the result with
    /// [`absent_came`](Self::absent_came). Until that report, none of these ranges is returned again.
    #[must_use]
    pub fn take_absent(&self) -> Vec<ByteRange> {
        let size = self.generation().base.as_ref().map_or(0, |base| base.size());
        self.collector.lock().pass.lack.take(ByteRange::between(0, size))
    }

    /// Reports the result of fetching the ranges that [`take_absent`](Self::take_absent) returned. After an
    /// error, `take_absent` returns no ranges until [`retry_absent`](Self::retry_absent) is called.
    pub fn absent_came(&self, result: Result<(), &Error>) {
        self.collector.lock().pass.lack.ended(result);
        self.gate.notify_all();
    }

    /// Forgets that a fetch reported to [`absent_came`](Self::absent_came) failed, so that
    /// [`take_absent`](Self::take_absent) returns ranges again. Returns `true` if a fetch had failed.
    pub fn retry_absent(&self) -> bool {
        let mut collector = self.collector.lock();
        let had_failed = collector.pass.lack.failure.take().is_some();
        if had_failed {
            collector.policy.may_merge_again();
        }
        had_failed
    }

    /// The error of a write that finds too many runs, none of which can be merged.
    pub(super) fn too_many_runs(&self, why: Option<Unmerged>) -> Error {
        let text = "the disk is in too many small pieces";
        let (cause, remedy) = match why {
            Some(Unmerged::Unreadable(cause)) => (
                format!("{text}, and what lies between them cannot be read: {cause}"),
                "they are merged as soon as the image below can be read",
            ),
            Some(Unmerged::CopiedUp) => (
                format!(
                    "{text}, and merging them has copied {} of the image already",
                    ByteSize(self.space().copied_up_bytes)
                ),
                "discard data that the disk does not need (fstrim), or write in larger pieces",
            ),
            Some(Unmerged::Full) | None => (
                format!("{text}, and there is no room to merge them"),
                "discard data that the disk does not need (fstrim), or attach it with a larger --writable-max",
            ),
        };
        Error::new(ErrorKind::NoSpace, cause).remedy(remedy)
    }
}

/// The reason for which a window stays in pieces.
#[derive(Clone, Debug)]
pub(super) enum Unmerged {
    /// The base below it cannot be read.
    Unreadable(String),
    /// The bytes that were copied up have reached their bound.
    CopiedUp,
    /// The directory has no room for a copy.
    Full,
}

impl Unmerged {
    /// The reason if bytes of the base are asked for, and do not come.
    pub(super) fn late() -> Self {
        Self::Unreadable("its bytes did not come in time".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_block::SECTOR_SIZE;

    fn range(number: u64) -> ByteRange {
        ByteRange::between(number * SECTOR_SIZE, (number + 1) * SECTOR_SIZE)
    }

    #[test]
    fn a_noted_range_is_taken_once() {
        let mut lack = Lack::default();
        assert!(lack.note(range(1)) && lack.note(range(1)) && lack.is_waiting());
        let below = ByteRange::between(0, 1 << 20);
        assert_eq!(lack.take(below), [range(1)]);
        // It is on its way, and not asked for again.
        assert!(lack.note(range(1)) && lack.note(range(2)));
        assert_eq!(lack.take(below), [range(2)]);
        assert!(lack.is_waiting() && !lack.has_arrived());
        lack.ended(Ok(()));
        assert!(!lack.is_waiting() && lack.has_arrived());
        assert_eq!((lack.next_arrived(), lack.next_arrived()), (Some(range(2)), Some(range(1))));
        for number in 0..100 {
            assert!(lack.note(range(number)));
        }
        assert!(lack.is_full() && lack.take(below).len() == RANGES_MAX && lack.is_full());
        lack.ended(Err(&Error::new(ErrorKind::Unavailable, "the store is away")));
        assert!(!lack.is_waiting() && !lack.is_full() && !lack.has_arrived());
        assert!(!lack.note(range(1)) && lack.failure().is_some_and(|why| why.contains("the store is away")));
        // Ranges past the end of the base cannot come.
        let mut lack = Lack::default();
        assert!(lack.note(range(0)) && lack.note(range(9)));
        assert_eq!(lack.take(ByteRange::between(0, 100)), [ByteRange::between(0, 100)]);
        lack.ended(Ok(()));
        assert!(!lack.is_waiting() && lack.next_arrived() == Some(range(0)) && !lack.has_arrived());
    }
}
