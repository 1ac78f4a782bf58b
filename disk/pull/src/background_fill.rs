//! Filling the disk at a set rate, with progress and an estimate of the end.
//!
//! Filling goes by blobs, not by the disk: their used bytes in their stored order make the fewest and largest
//! requests, and each counts once however many places of the disk it serves. Filling goes through these phases, each in
//! small steps so that no event takes long:
//!
//! `Off` → `Count` (walk the disk, gather the union of its stored ranges) → `Measure` (find the missing part of it) →
//! `Fill` → `Measure` again once all is answered → `Full`, or, after a while, `Fill` again: some may have been given
//! up.
//!
//! The rate is kept by a debt: a request of `n` bytes moves the earliest time of the next one by `n / rate`. Time
//! that was lost to more urgent work is not made up for, except for [`CATCH_UP`], which evens out late wake-ups.

use crate::active::Active;
use crate::estimator::span;
use crate::window::{Shape, Window};
use crate::{BLOCK_SIZE, BlobRange, BlobView, DiskBlobId, FillProgress, Time};
use headstart_block::{ByteRange, saturating};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The most lost time that is made up for.
const CATCH_UP: Duration = Duration::from_millis(100);
/// Bytes of a blob looked at in one step.
const STEP: u64 = 4 << 20;
/// The time after which filling looks again, if it has come to its end and bytes are still missing.
const AGAIN: Duration = Duration::from_secs(60);
/// The number of seconds over which progress is averaged.
const METER_SECONDS: u64 = 10;
/// The shortest time that it is averaged over: with less, a single answer makes a rate that no link has.
const METER_LEAST: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Off,
    /// The next block to gather.
    Count(u64),
    /// The position from which on it is to be measured, and `true` for the last time.
    Measure(Position, bool),
    /// The position from which on it is to be filled.
    Fill(Position),
    Full,
}

type Position = (DiskBlobId, u64);

const START: Position = (DiskBlobId(0), 0);

/// The queue of the background fill.
#[derive(Debug)]
pub(crate) struct BackgroundFill {
    phase: Phase,
    rate: u64,
    next_at: Time,
    /// The used ranges of all blobs: disjoint, `start -> end`.
    used: BTreeMap<Position, u64>,
    total: u64,
    missing: u64,
    window: Window,
    meter: Meter,
}

impl BackgroundFill {
    pub(crate) fn new() -> Self {
        let (used, window, meter) = (BTreeMap::new(), Window::default(), Meter::default());
        Self { phase: Phase::Off, rate: 0, next_at: Time(0), used, total: 0, missing: 0, window, meter }
    }

    /// Fills at `rate` bytes a second from now on, or not at all.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Option<u64>) {
        self.rate = rate.unwrap_or(0);
        self.next_at = now;
        match self.phase {
            _ if self.rate == 0 => {
                self.phase = Phase::Off;
                self.window.clear();
                self.used.clear();
                self.meter = Meter::default();
            }
            Phase::Off => {
                (self.total, self.missing) = (0, 0);
                self.phase = Phase::Count(0);
            }
            _ => {}
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.phase == Phase::Off
    }

    /// The time at which the next request may be sent, if there is one.
    pub(crate) fn next_at(&self) -> Option<Time> {
        let more = matches!(self.phase, Phase::Fill(_)) || !self.window.is_empty();
        more.then_some(self.next_at)
    }

    /// Does up to `budget` steps of counting or measuring; returns `true` if there is more to do. `open` is `true` if
    /// fetches of this queue are unanswered: the last measure waits for them.
    pub(crate) fn survey(&mut self, now: Time, budget: &mut u32, open: bool, view: &dyn BlobView) -> bool {
        if let Phase::Fill(position) = self.phase
            && position != START
            && !open
            && self.window.is_empty()
            && self.used_from(position).is_none()
        {
            self.missing = 0;
            self.phase = Phase::Measure(START, true);
        }
        while *budget > 0 {
            *budget -= 1;
            match self.phase {
                Phase::Count(block) => self.count(block, view),
                Phase::Measure(position, last) => self.measure(now, position, last, view),
                Phase::Off | Phase::Fill(_) | Phase::Full => return false,
            }
        }
        matches!(self.phase, Phase::Count(_) | Phase::Measure(..))
    }

    fn count(&mut self, block: u64, view: &dyn BlobView) {
        let (start, size) = (block.saturating_mul(BLOCK_SIZE), view.disk_size());
        if start >= size {
            self.total = self.used.iter().map(|((_, start), end)| end - start).sum();
            self.phase = Phase::Measure(START, false);
            return;
        }
        let part = ByteRange::between(start, start.saturating_add(BLOCK_SIZE).min(size));
        let used = &mut self.used;
        view.ranges(part, &mut |range| unite(used, range));
        self.phase = Phase::Count(block + 1);
    }

    fn measure(&mut self, now: Time, position: Position, last: bool, view: &dyn BlobView) {
        let Some(step) = self.used_from(position) else {
            if last {
                self.next_at = now + AGAIN;
            }
            self.phase = if self.missing == 0 { Phase::Full } else { Phase::Fill(START) };
            self.meter.begin(now);
            return;
        };
        let mut missing = 0;
        view.missing(step, &mut |run| {
            if run.blob == step.blob {
                missing += run.range.intersect(step.range).len();
            }
        });
        self.missing = self.missing.saturating_add(missing);
        self.phase = Phase::Measure((step.blob, step.range.end()), last);
    }

    /// The used bytes from `position` on, at most a step of one blob.
    fn used_from(&self, position: Position) -> Option<BlobRange> {
        let inside = self.used.range(..position).next_back();
        let inside = inside.filter(|((blob, _), end)| *blob == position.0 && **end > position.1);
        let (blob, start, end) = match inside {
            Some((_, end)) => (position.0, position.1, *end),
            None => self.used.range(position..).next().map(|((blob, start), end)| (*blob, *start, *end))?,
        };
        Some(BlobRange::between(blob, start, end.min(start.saturating_add(STEP))))
    }

    /// Takes the next request, if the rate allows one at `now`. `None` with budget left: there is none.
    pub(crate) fn take(
        &mut self,
        now: Time,
        shape: Shape,
        budget: &mut u32,
        view: &dyn BlobView,
        active: &Active,
    ) -> Option<BlobRange> {
        if self.rate == 0 || now < self.next_at {
            return None;
        }
        loop {
            while let Phase::Fill(position) = self.phase
                && !self.window.is_full(shape)
                && *budget > 0
            {
                let Some(step) = self.used_from(position) else { break };
                *budget -= 1;
                self.phase = Phase::Fill((step.blob, step.range.end()));
                let window = &mut self.window;
                view.missing(step, &mut |run| {
                    if run.blob == step.blob {
                        window.add(run, shape.gap);
                    }
                });
            }
            if let Some(range) = self.window.take(shape, view, active) {
                let debt_from = self.next_at.max(Time(now.0.saturating_sub(micros(CATCH_UP))));
                self.next_at = debt_from + span(range.len(), self.rate);
                return Some(range);
            }
            let Phase::Fill(position) = self.phase else { return None };
            if *budget == 0 || self.used_from(position).is_none() {
                return None;
            }
        }
    }

    /// Notes that bytes became local at `now`.
    pub(crate) fn became_local(&mut self, now: Time, range: BlobRange) {
        let bytes = self.used_within(range);
        let counted =
            match self.phase {
                Phase::Measure((blob, offset), _) if range.blob == blob => self.used_within(
                    BlobRange::between(blob, range.range.offset(), range.range.end().min(offset)),
                ),
                Phase::Measure((blob, _), _) if range.blob > blob => 0,
                _ => bytes,
            };
        self.missing = self.missing.saturating_sub(counted);
        self.meter.add(now, bytes);
    }

    /// The number of used bytes of `range`.
    fn used_within(&self, range: BlobRange) -> u64 {
        let BlobRange { blob, range } = range;
        let before = self.used.range(..(blob, range.offset())).next_back();
        let from = before.filter(|((b, _), _)| *b == blob).map_or(range.offset(), |((_, start), _)| *start);
        let held = self.used.range((blob, from)..(blob, range.end().max(from)));
        held.map(|((_, start), end)| ByteRange::between(*start, *end).intersect(range).len()).sum()
    }

    pub(crate) fn progress(&self, now: Time) -> FillProgress {
        let total = match self.phase {
            Phase::Off | Phase::Count(_) | Phase::Measure(_, false) => None,
            Phase::Fill(_) | Phase::Measure(_, true) | Phase::Full => Some(self.total),
        };
        let rate = self.meter.rate(now);
        let eta = total.and_then(|_| match self.missing {
            0 => Some(Duration::ZERO),
            missing => (rate > 0).then(|| span(missing, rate)),
        });
        FillProgress { total, local: total.map_or(0, |total| total.saturating_sub(self.missing)), rate, eta }
    }
}

fn micros(span: Duration) -> u64 {
    saturating::<u64>(span.as_micros())
}

/// Adds `range` to a union of ranges.
fn unite(used: &mut BTreeMap<Position, u64>, range: BlobRange) {
    let (blob, mut start, mut end) = (range.blob, range.range.offset(), range.range.end());
    if start == end {
        return;
    }
    while let Some((key, held_end)) = used.range(..=(blob, end)).next_back().map(|(key, end)| (*key, *end)) {
        if key.0 != blob || held_end < start {
            break;
        }
        (start, end) = (start.min(key.1), end.max(held_end));
        used.remove(&key);
    }
    used.insert((blob, start), end);
}

/// A meter of bytes by second, over the last few seconds.
#[derive(Debug, Default)]
struct Meter {
    seconds: VecDeque<(u64, u64)>,
    /// The time at which it began to count: the time of the first request, not of the first bytes.
    began: Option<Time>,
}

impl Meter {
    /// Notes that bytes are requested from now on, unless they were before.
    fn begin(&mut self, now: Time) {
        self.began.get_or_insert(now);
    }

    fn add(&mut self, now: Time, bytes: u64) {
        if self.began.is_none() {
            return;
        }
        let second = now.0 / 1_000_000;
        match self.seconds.back_mut().filter(|(last, _)| *last == second) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => self.seconds.push_back((second, bytes)),
        }
        while self.seconds.front().is_some_and(|(first, _)| *first + METER_SECONDS <= second) {
            self.seconds.pop_front();
        }
    }

    /// Bytes a second over the last seconds, or since the meter began if that is less.
    fn rate(&self, now: Time) -> u64 {
        let (second, Some(began)) = (now.0 / 1_000_000, self.began) else { return 0 };
        let from = (second + 1).saturating_sub(METER_SECONDS);
        let recent = self.seconds.iter().filter(|(at, _)| *at >= from).map(|(_, bytes)| *bytes);
        let bytes = recent.fold(0_u64, u64::saturating_add);
        let spent = now.since(began.max(Time(from * 1_000_000))).max(METER_LEAST);
        saturating::<u64>(u128::from(bytes) * 1_000_000 / spent.as_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_queue_holds_the_union_of_its_ranges(
            ranges in prop::collection::vec((0_u32..2, 0_u64..60, 0_u64..20), 0..30),
        ) {
            let mut fill = BackgroundFill::new();
            let mut plain = [[false; 80]; 2];
            for (blob, start, len) in ranges {
                unite(&mut fill.used, BlobRange::between(DiskBlobId(blob), start, start + len));
                plain[blob as usize][start as usize..(start + len) as usize].fill(true);
            }
            for (blob, bytes) in (0..).zip(plain) {
                let all = bytes.iter().filter(|byte| **byte).count() as u64;
                prop_assert_eq!(fill.used_within(BlobRange::between(DiskBlobId(blob), 0, 80)), all);
                let middle = bytes[13..47].iter().filter(|byte| **byte).count() as u64;
                prop_assert_eq!(fill.used_within(BlobRange::between(DiskBlobId(blob), 13, 47)), middle);
            }
        }
    }

    #[test]
    fn the_meter_forgets() {
        let mut meter = Meter::default();
        meter.begin(Time(0));
        for second in 0..20 {
            meter.add(Time(second * 1_000_000), 5_000_000);
        }
        let rate = meter.rate(Time(20_000_000));
        assert!((4_000_000..=5_500_000).contains(&rate), "{rate}");
        assert_eq!(meter.rate(Time(60_000_000)), 0);
    }

    /// The estimate of the end is as good in the first second as later.
    #[test]
    fn the_meter_knows_the_rate_from_the_start() {
        let mut meter = Meter::default();
        let began = 7_300_000;
        meter.add(Time(1_000_000), 1 << 30);
        assert_eq!(meter.rate(Time(began)), 0, "nothing was asked for");
        meter.begin(Time(began));
        // 10 MB/s, in answers that take 50 ms.
        for answer in 1..=400 {
            let now = began + answer * 50_000;
            meter.add(Time(now), 500_000);
            let rate = meter.rate(Time(now));
            let wanted = if answer == 1 { 4_000_000..=10_000_000 } else { 9_000_000..=11_000_000 };
            assert!(wanted.contains(&rate), "{rate} after {answer}");
        }
    }
}
