//! Pages that a collector could not read: lost, or readable later.
//!
//! One page that cannot be read is no reason to stop collecting, and a cable that is loose none to give up the data on
//! the flash. So the block of such a page is put off, others are collected meanwhile, and it is looked at again every
//! second. The page is lost when it failed [`TRIES`] times over [`TRIES_SPAN`], other flash
//! [answers](headstart_flash::device::Flash::answers) then, and it fails once more after that. If nothing answers,
//! nothing is lost, and a writer that needs room is told after [`LONG`] why there is none.

use headstart_flash::device::FlashBlock;
use std::collections::BTreeMap;
use std::time::Duration;

/// The least number of tries of a page.
const TRIES: u32 = 3;
/// The least time of the tries: longer than the reset of a device. Shorter than an evacuation waits.
const TRIES_SPAN: Duration = Duration::from_secs(3);
/// The time for which a block stays put off.
const PAUSE: Duration = Duration::from_secs(1);
/// A page that is not tried for this long was written, trimmed or read meanwhile.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// A page that is in doubt for this long keeps others from the room that they need.
const LONG: Duration = Duration::from_secs(30);

/// Pages in doubt, by their place on flash.
#[derive(Debug, Default)]
pub(crate) struct SuspectPages {
    pages: BTreeMap<(FlashBlock, u32), Doubt>,
    /// The time at which blocks that were put off are looked at again.
    again: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Doubt {
    first: Duration,
    last: Duration,
    tries: u32,
}

impl SuspectPages {
    /// Notes that a page cannot be read; `true` if it was tried often and long enough.
    pub(crate) fn failed(&mut self, at: (FlashBlock, u32), now: Duration) -> bool {
        let doubt = self.pages.entry(at).or_insert(Doubt { first: now, last: now, tries: 0 });
        (doubt.last, doubt.tries) = (now, doubt.tries + 1);
        self.again.get_or_insert(now + PAUSE);
        doubt.tries >= TRIES && now.saturating_sub(doubt.first) >= TRIES_SPAN
    }

    /// Forgets a page that was read, or is lost.
    pub(crate) fn forget(&mut self, at: (FlashBlock, u32)) {
        self.pages.remove(&at);
    }

    /// `true` if blocks that were put off are to be looked at again.
    pub(crate) fn are_due(&mut self, now: Duration) -> bool {
        let due = self.again.is_some_and(|again| again <= now);
        if due {
            self.again = None;
            self.pages.retain(|_, doubt| now.saturating_sub(doubt.last) < FORGOTTEN);
        }
        due
    }

    /// A page that has been in doubt for long.
    pub(crate) fn long(&self, now: Duration) -> Option<(FlashBlock, u32)> {
        let long = |doubt: &Doubt| {
            now.saturating_sub(doubt.first) >= LONG && now.saturating_sub(doubt.last) < FORGOTTEN
        };
        self.pages.iter().find(|(_, doubt)| long(doubt)).map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_tried_often_and_for_long() {
        let (mut suspect_pages, page) = (SuspectPages::default(), (FlashBlock(3), 7));
        let at = |millis: u64| Duration::from_millis(1_000_000 + millis);
        // Many tries at one moment are not enough, nor two tries over a long time.
        assert!((0..10).all(|_| !suspect_pages.failed(page, at(0))));
        assert!(
            !suspect_pages.are_due(at(999))
                && suspect_pages.are_due(at(1000))
                && !suspect_pages.are_due(at(1000))
        );
        assert!(!suspect_pages.failed(page, at(2999)) && suspect_pages.failed(page, at(3000)));
        let other = (FlashBlock(3), 8);
        assert!(
            !suspect_pages.failed(other, at(0))
                && !suspect_pages.failed(other, at(9000))
                && suspect_pages.failed(other, at(9001))
        );
        suspect_pages.forget(page);
        assert!(!suspect_pages.failed(page, at(9002)));
        // A page that is not tried any more is forgotten.
        assert!(suspect_pages.long(at(30_000)).is_none() && suspect_pages.are_due(at(20_000)));
        assert!(!suspect_pages.failed(page, at(20_000)) && !suspect_pages.failed(page, at(22_000)));
        // A page that is tried for long is named.
        assert!(!suspect_pages.failed(other, at(20_000)));
        assert!(!suspect_pages.failed(other, at(50_000)) && suspect_pages.long(at(50_000)) == Some(other));
    }
}
