//! The choice of the parts of a plan that go into one request.
//!
//! A window holds the next few missing ranges of a queue, by default two requests' worth. Ranges of one blob that
//! touch, or nearly do, become one, wherever in the window they are: the order of a plan bends by at most a window, and
//! the many small ranges of a block become few requests. A range that is taken out is checked again, because ranges
//! that were missing when they came in may be local or under way by now.

use crate::active::Active;
use crate::{BlobRange, BlobView};
use std::collections::VecDeque;

/// Ranges in a window, at most; a fragmented block may add as many more as its last range has.
const RANGES_MAX: usize = 64;

/// The most pages of a hash tree in one request: those of 64 MiB.
const TREE_MAX: u64 = 512 << 10;

/// The next ranges of a queue.
#[derive(Debug, Default)]
pub(crate) struct Window {
    ranges: VecDeque<BlobRange>,
    bytes: u64,
    /// `true` if the last added range continues the first one: that may become a long request.
    goes_on: bool,
}

/// The limits of a request's shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The largest gap between two ranges of one request.
    pub(crate) gap: u64,
    /// The largest request.
    pub(crate) max: u64,
    /// The number of requests' worth that the window holds; 0 for one item of its queue.
    pub(crate) look_ahead: u64,
    /// The largest request for ranges that come in one after the other and are stored so.
    pub(crate) long: u64,
    /// The length above which preloads are streamed. A run longer than `max` and shorter than this is not made one
    /// request.
    pub(crate) streamed: u64,
}

impl Shape {
    /// The shape without long requests.
    pub(crate) fn short(self) -> Self {
        Self { long: self.max, ..self }
    }

    /// The largest request that may begin a run of `len` bytes.
    fn most(self, len: u64) -> u64 {
        if len > self.max.max(self.streamed) { self.long.max(self.max) } else { self.max }
    }
}

impl Window {
    /// `true` if more ranges would not help to make better requests.
    pub(crate) fn is_full(&self, shape: Shape) -> bool {
        (self.is_enough(shape) && !self.grows(shape)) || self.ranges.len() >= RANGES_MAX
    }

    /// `true` if there is enough for the number of requests to look ahead for.
    pub(crate) fn is_enough(&self, shape: Shape) -> bool {
        self.bytes > 0 && self.bytes >= shape.max.saturating_mul(shape.look_ahead)
    }

    /// `true` if added ranges continue its only range, and that may become longer.
    pub(crate) fn grows(&self, shape: Shape) -> bool {
        self.goes_on && self.ranges.len() == 1 && shape.look_ahead > 0 && self.bytes < shape.long
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }

    /// Adds the next range of the queue; returns `true` if it joined another range. If that is not to be made longer in
    /// another order (`in_order`), it joins only the range that it continues.
    pub(crate) fn add_next(&mut self, range: BlobRange, gap: u64, in_order: bool) -> bool {
        let first = self.ranges.front().copied();
        self.goes_on = first
            .is_none_or(|first| first.range.offset() <= range.range.offset() && first.blob == range.blob);
        if self.goes_on || !in_order {
            return self.add(range, gap);
        }
        self.bytes += range.len();
        self.ranges.push_back(range);
        false
    }

    /// Adds a range; returns `true` if it joined another one.
    pub(crate) fn add(&mut self, range: BlobRange, gap: u64) -> bool {
        let near = self.ranges.iter_mut().find_map(|held| Some((hull(*held, range, gap)?, held)));
        if let Some((both, held)) = near {
            self.bytes += both.len() - held.len();
            *held = both;
            return true;
        }
        self.bytes += range.len();
        self.ranges.push_back(range);
        false
    }

    fn put_back(&mut self, range: BlobRange) {
        self.bytes += range.len();
        self.ranges.push_front(range);
    }

    fn pop(&mut self) -> Option<BlobRange> {
        let range = self.ranges.pop_front()?;
        self.bytes -= range.len();
        Some(range)
    }

    /// Takes out the next request: the part of the first range that is still missing and not under way. The pages
    /// of the hash tree that it needs come out before it.
    pub(crate) fn take(&mut self, shape: Shape, view: &dyn BlobView, active: &Active) -> Option<BlobRange> {
        let (mut trees, mut data) = (Vec::new(), Vec::new());
        while let Some(head) = self.pop() {
            view.missing(head, &mut |run| {
                active.free(run, None, if run.blob == head.blob { &mut data } else { &mut trees });
            });
            if trees.is_empty() && data.is_empty() {
                self.goes_on = true;
                continue;
            }
            let from_tree = !trees.is_empty();
            let pieces = if from_tree { &mut trees } else { &mut data };
            coalesce(pieces, shape.gap, active);
            let first = pieces[0];
            // The pages of a long run are asked for ahead of it, in equally few requests.
            let most = if from_tree {
                shape.most(head.len()).min(TREE_MAX).max(shape.max)
            } else {
                shape.most(first.len())
            };
            let taken = first_bytes(first, most);
            if from_tree {
                self.put_back(head);
            } else {
                let rest = BlobRange::between(head.blob, taken.range.end(), head.range.end());
                if rest.is_empty() {
                    self.goes_on = true;
                } else {
                    self.put_back(rest);
                }
            }
            return Some(taken);
        }
        None
    }
}

/// Appends the missing parts of `range`: the pages of its hash tree, and its own runs.
pub(crate) fn missing(
    range: BlobRange,
    view: &dyn BlobView,
    trees: &mut Vec<BlobRange>,
    data: &mut Vec<BlobRange>,
) {
    view.missing(range, &mut |run| if run.blob == range.blob { data.push(run) } else { trees.push(run) });
}

/// Sorts `ranges` and makes those one that overlap or have at most `gap` between them with nothing under way in it.
/// Returns the number that were joined to another.
pub(crate) fn coalesce(ranges: &mut Vec<BlobRange>, gap: u64, active: &Active) -> u64 {
    ranges.sort_unstable();
    let before = ranges.len();
    ranges.dedup_by(|next, last| {
        let Some(both) = hull(*last, *next, gap) else { return false };
        let between = BlobRange::between(last.blob, last.range.end(), next.range.offset());
        if !active.is_free(between) {
            return false;
        }
        *last = both;
        true
    });
    (before - ranges.len()) as u64
}

/// The range from the start of one to the end of the other, if there is at most `gap` between them.
fn hull(a: BlobRange, b: BlobRange, gap: u64) -> Option<BlobRange> {
    let near = a.blob == b.blob
        && a.range.offset() <= b.range.end().saturating_add(gap)
        && b.range.offset() <= a.range.end().saturating_add(gap);
    let (start, end) = (a.range.offset().min(b.range.offset()), a.range.end().max(b.range.end()));
    near.then(|| BlobRange::between(a.blob, start, end))
}

/// The first `max` bytes of `range`.
pub(crate) fn first_bytes(range: BlobRange, max: u64) -> BlobRange {
    let start = range.range.offset();
    BlobRange::between(range.blob, start, range.range.end().min(start.saturating_add(max)))
}
