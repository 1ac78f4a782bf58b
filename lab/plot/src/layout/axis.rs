//! From numbers to places: the numbers that an axis shows, the place of each, and the marks.

use crate::chart::{Axis, Scale};
use crate::font;
use crate::ticks::{self, Tick};

/// The greatest size of a number: larger ones are taken for it, so that differences stay finite.
const HUGE: f64 = 1e300;
/// The least number that has a place on an axis of powers.
const TINY: f64 = 1e-300;
/// Height of the labels at the marks.
pub(super) const TICK_SIZE: f64 = 11.0;
/// Most characters of a category's name.
const NAME_MAX: usize = 28;

/// The numbers of an axis's series: the least, the greatest, and the least above zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Extent {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) positive: f64,
}

impl Default for Extent {
    fn default() -> Self {
        Self { low: f64::INFINITY, high: f64::NEG_INFINITY, positive: f64::INFINITY }
    }
}

impl Extent {
    /// Takes in a number, if it is one.
    pub(super) fn add(&mut self, number: f64) {
        if number.is_finite() {
            let number = number.clamp(-HUGE, HUGE);
            self.low = self.low.min(number);
            self.high = self.high.max(number);
            if number >= TINY {
                self.positive = self.positive.min(number);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.low > self.high
    }
}

/// The way in which an axis fits its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// From the least to the greatest, with a little room.
    Tight,
    /// From mark to mark, and from zero if that is near.
    Round,
    /// As `Round`, and from zero in any case, because bars stand on it.
    FromZero,
    /// From mark to mark, and from before the least number, if that is not zero, to behind the greatest: there a
    /// distribution is level.
    Before,
}

/// An axis whose ends and marks are known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    kind: Kind,
    low: f64,
    high: f64,
    pub(super) ticks: Vec<Tick>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Linear,
    Log,
    Slots(usize),
}

impl Frame {
    /// The frame of an axis that is `pixels` long, for these numbers; `across` if its labels stand beside each other.
    pub(super) fn new(axis: &Axis, extent: &Extent, fit: Fit, pixels: f64, across: bool) -> Self {
        match &axis.scale {
            Scale::Categories(names) => Self::of_names(names, extent),
            Scale::Linear => Self::linear(axis, extent, fit, pixels, across),
            Scale::Log => Self::log(axis, extent, fit, pixels, across),
        }
    }

    fn of_names(names: &[String], extent: &Extent) -> Self {
        let mut ticks = Vec::with_capacity(names.len());
        let mut at = 0.0;
        for name in names {
            ticks.push(Tick { at, label: shortened(name) });
            at += 1.0;
        }
        if ticks.is_empty() && !extent.is_empty() {
            // More bars than names: they still have places.
            at = (extent.high.min(1e6) + 1.0).floor().max(1.0);
        }
        let at = at.max(1.0);
        Self { kind: Kind::Slots(names.len().max(1)), low: -0.5, high: at - 0.5, ticks }
    }

    fn linear(axis: &Axis, extent: &Extent, fit: Fit, pixels: f64, across: bool) -> Self {
        let (min, max) = ends(axis);
        let (mut low, mut high) = match (extent.is_empty(), min, max) {
            (false, ..) => (extent.low, extent.high),
            (true, Some(min), None) => (min, min + 1.0),
            (true, None, Some(max)) => (max - 1.0, max),
            (true, ..) => (0.0, 1.0),
        };
        if fit == Fit::FromZero || (matches!(fit, Fit::Round | Fit::Before) && low > 0.0 && low < 0.6 * high)
        {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        low = min.unwrap_or(low);
        high = max.unwrap_or(high);
        if low >= high {
            let room = (low.abs() / 2.0).max(0.5);
            (low, high) = match (min, max) {
                (Some(min), _) => (min, min + 2.0 * room),
                (None, Some(max)) => (max - 2.0 * room, max),
                (None, None) if low == 0.0 => (0.0, 1.0),
                (None, None) => (low - room, low + room),
            };
        }
        let mut wanted = (pixels / if across { 58.0 } else { 32.0 }).clamp(2.0, 12.0);
        loop {
            let step = ticks::round_step(high / wanted - low / wanted);
            let step = if axis.whole { step.max(1.0) } else { step };
            let (mut from, mut to) = (low, high);
            if fit == Fit::Tight {
                let room = (high / 100.0 - low / 100.0) * 2.0;
                // Zero is an end in itself.
                from = if low >= 0.0 && low <= (high - low) * 0.05 { 0.0 } else { low - room };
                to = high + room;
            } else {
                (from, to) = ((from / step + 1e-6).floor() * step, (to / step - 1e-6).ceil() * step);
                if fit == Fit::Before && extent.high >= to {
                    to += step;
                }
            }
            let (from, to) = (min.unwrap_or(from), max.unwrap_or(to));
            let frame =
                Self { kind: Kind::Linear, low: from, high: to, ticks: ticks::linear(from, to, step) };
            if !across || frame.labels_fit(pixels) {
                return frame;
            }
            if wanted <= 2.0 {
                return frame.with_labels_that_fit(pixels);
            }
            wanted *= 0.7;
            wanted = wanted.max(2.0);
        }
    }

    fn log(axis: &Axis, extent: &Extent, fit: Fit, pixels: f64, across: bool) -> Self {
        let (min, max) = ends(axis);
        let above = |number: &f64| *number >= TINY;
        let (min, max) = (min.filter(above), max.filter(above));
        let data = (extent.positive <= extent.high).then_some((extent.positive, extent.high));
        let (mut low, mut high) = match (data, min, max) {
            (Some(data), ..) => data,
            (None, Some(min), None) => (min, min * 10.0),
            (None, None, Some(max)) => (max / 10.0, max),
            (None, ..) => (1.0, 10.0),
        };
        if fit == Fit::Tight {
            let room = (high / low).powf(0.02);
            (low, high) = (low / room, high * room);
        } else {
            // To powers of ten where the axis spans some, and otherwise to the next round number.
            let wide = high.log10() - low.log10() > 2.0;
            let round = |number: f64, up: bool| round_log(number, wide, up);
            // A hair beyond a mark, the next one is the end.
            let least = if fit == Fit::Before { low * (1.0 - 1e-6) } else { low };
            let most = if fit == Fit::Before { high * (1.0 + 1e-6) } else { high };
            (low, high) = (round(least, false), round(most, true));
        }
        low = min.unwrap_or(low);
        high = max.unwrap_or(high);
        if low >= high {
            (low, high) = match (min, max) {
                (Some(min), _) => (min, min * 10.0),
                (None, Some(max)) => (max / 10.0, max),
                (None, None) => (low / 3.0, low * 3.0),
            };
        }
        let mut most = count(pixels / if across { 46.0 } else { 30.0 });
        loop {
            let ticks = ticks::log(low, high, most);
            let frame = Self { kind: Kind::Log, low, high, ticks };
            if most <= 2 || !across || frame.labels_fit(pixels) {
                return frame;
            }
            most -= 1;
        }
    }

    /// `true` if labels beside each other do not touch.
    fn labels_fit(&self, pixels: f64) -> bool {
        let half = |tick: &Tick| font::width(&tick.label, TICK_SIZE, false) / 2.0;
        self.ticks.windows(2).all(|pair| {
            let [a, b] = pair else { return true };
            let (left, right) = (self.part(a.at), self.part(b.at));
            let (Some(left), Some(right)) = (left, right) else { return true };
            (right - left) * pixels >= half(a) + half(b) + 8.0
        })
    }

    /// Removes the labels that would touch the one before.
    fn with_labels_that_fit(mut self, pixels: f64) -> Self {
        let mut free = f64::NEG_INFINITY;
        let mut kept = Vec::new();
        for tick in std::mem::take(&mut self.ticks) {
            let half = font::width(&tick.label, TICK_SIZE, false) / 2.0;
            let middle = self.part(tick.at).unwrap_or(0.0) * pixels;
            if middle - half >= free {
                free = middle + half + 8.0;
                kept.push(tick);
            }
        }
        Self { ticks: kept, ..self }
    }

    /// The place of a number: 0 at the low end, 1 at the high one, and beyond. `None` if it has no place.
    pub(super) fn part(&self, number: f64) -> Option<f64> {
        if !number.is_finite() {
            return None;
        }
        let number = number.clamp(-HUGE, HUGE);
        let part = match self.kind {
            Kind::Linear | Kind::Slots(_) => (number - self.low) / (self.high - self.low),
            Kind::Log if number < TINY => return None,
            Kind::Log => {
                let (low, high) = (self.low.ln(), self.high.ln());
                (number.ln() - low) / (high - low)
            }
        };
        // Far outside is outside: places stay small.
        part.is_finite().then(|| part.clamp(-1e3, 1e3))
    }

    /// As [`Self::part`], but a number that has no place because it is not above zero is at the low end.
    pub(super) fn part_or_low(&self, number: f64) -> Option<f64> {
        if self.kind == Kind::Log && number < TINY { Some(0.0) } else { self.part(number) }
    }

    /// The base of bars: zero, or the low end.
    pub(super) fn ground(&self) -> f64 {
        match self.kind {
            Kind::Log => 0.0,
            Kind::Linear | Kind::Slots(_) => self.part(0.0).unwrap_or(0.0).clamp(0.0, 1.0),
        }
    }

    /// The number of slots, on an axis of names.
    pub(super) fn slots(&self) -> Option<usize> {
        match self.kind {
            Kind::Slots(slots) => Some(slots),
            Kind::Linear | Kind::Log => None,
        }
    }

    /// The lesser marks of an axis of powers of ten: unlabelled.
    pub(super) fn minor(&self) -> Vec<f64> {
        if self.kind != Kind::Log || self.high.log10() - self.low.log10() > 7.0 {
            return Vec::new();
        }
        let mut minor = Vec::new();
        let mut exponent = self.low.log10().floor();
        while exponent <= self.high.log10() {
            let all = (1..10).map(|digit| ticks::scientific(f64::from(digit), exponent));
            minor.extend(all.filter(|at| *at > self.low && *at < self.high));
            exponent += 1.0;
        }
        minor
    }
}

/// The ends that were asked for, as far as they make sense.
fn ends(axis: &Axis) -> (Option<f64>, Option<f64>) {
    let usable = |end: Option<f64>| end.filter(|end| end.is_finite()).map(|end| end.clamp(-HUGE, HUGE));
    match (usable(axis.min), usable(axis.max)) {
        (Some(min), Some(max)) if min >= max => (None, None),
        ends => ends,
    }
}

/// The next power of ten, or the next of 1, 2, 5 times one.
fn round_log(number: f64, power: bool, up: bool) -> f64 {
    let exponent = number.log10();
    if power {
        let whole = exponent.round();
        let exact = (exponent - whole).abs() < 1e-9;
        let end = if exact {
            whole
        } else if up {
            exponent.ceil()
        } else {
            exponent.floor()
        };
        return ticks::scientific(1.0, end).clamp(TINY, HUGE);
    }
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| ticks::scientific(factor, exponent.floor()));
    let found = if up {
        steps.into_iter().find(|step| *step >= number * (1.0 - 1e-9))
    } else {
        steps.into_iter().rev().find(|step| *step <= number * (1.0 + 1e-9))
    };
    found.unwrap_or(number).clamp(TINY, HUGE)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of marks")]
fn count(number: f64) -> usize {
    number.clamp(2.0, 20.0) as usize
}

/// A name that is not too long for an axis.
fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    let mut short: String = name.chars().take(NAME_MAX - 1).collect();
    short.push('\u{2026}');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(numbers: &[f64]) -> Extent {
        let mut extent = Extent::default();
        numbers.iter().for_each(|number| extent.add(*number));
        extent
    }

    fn ends_of(axis: &Axis, numbers: &[f64], fit: Fit) -> (f64, f64) {
        let frame = Frame::new(axis, &extent(numbers), fit, 300.0, false);
        (frame.low, frame.high)
    }

    #[test]
    fn ends_are_round() {
        let axis = Axis::linear("");
        assert_eq!(ends_of(&axis, &[3.0, 97.0], Fit::Round), (0.0, 100.0));
        assert_eq!(ends_of(&axis, &[90.2, 97.1], Fit::Round), (90.0, 98.0));
        assert_eq!(ends_of(&axis, &[90.2, 97.1], Fit::FromZero), (0.0, 100.0));
        assert_eq!(ends_of(&axis, &[-3.0, 4.0], Fit::Round), (-3.0, 4.0));
        assert_eq!(ends_of(&axis, &[], Fit::Round), (0.0, 1.0));
        assert_eq!(ends_of(&axis, &[f64::NAN, 4.0], Fit::FromZero), (0.0, 4.0));
        assert_eq!(ends_of(&Axis::share(""), &[0.4], Fit::Tight), (0.0, 1.0));
        assert_eq!(ends_of(&axis.clone().from(5.0).to(1.0), &[2.0, 4.0], Fit::Round).1, 4.0);
        let log = Axis::log("");
        assert_eq!(ends_of(&log, &[3.0, 970.0], Fit::Round), (1.0, 1000.0));
        assert_eq!(ends_of(&log, &[3.0, 17.0], Fit::Round), (2.0, 20.0));
        assert_eq!(ends_of(&log, &[0.0, -5.0], Fit::Round), (1.0, 10.0));
        assert_eq!(ends_of(&log, &[20.0, 1024.0], Fit::Before), (10.0, 2000.0));
        assert_eq!(ends_of(&log, &[2.0, 100.0], Fit::Before), (1.0, 200.0));
        assert_eq!(ends_of(&axis.clone().whole(), &[1.0, 3.0], Fit::Before), (0.0, 4.0));
        assert_eq!(ends_of(&log, &[0.0, 100.0, 10_000.0], Fit::Round), (100.0, 10_000.0));
    }

    #[test]
    fn every_number_has_a_place_or_none() {
        let frame = Frame::new(&Axis::log(""), &extent(&[1.0, 100.0]), Fit::Round, 300.0, true);
        assert_eq!(frame.part(10.0).map(|part| (part * 1e6).round()), Some(500_000.0));
        assert_eq!((frame.part(0.0), frame.part(f64::NAN), frame.part_or_low(-1.0)), (None, None, Some(0.0)));
        let frame = Frame::new(&Axis::linear(""), &extent(&[-1e308, 1e308]), Fit::Round, 300.0, true);
        assert!(frame.part(0.0).is_some_and(|part| (part - 0.5).abs() < 0.01));
        let frame = Frame::new(&Axis::categories("", ["a", "b"]), &extent(&[]), Fit::Round, 300.0, true);
        assert_eq!((frame.part(0.0), frame.part(1.0), frame.slots()), (Some(0.25), Some(0.75), Some(2)));
    }
}
