//! The marks of an axis, and their labels.

/// The units: the number from which on each is used, its size, and its letter. Thousands are read well without.
const UNITS: [(f64, f64, &str); 4] = [(1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")];

/// A mark of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) label: String,
}

/// Most marks of an axis.
const TICKS_MAX: usize = 60;

/// The steps between marks, as factors of powers of ten.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

/// Returns the smallest number of the form 1, 2 or 5 times a power of ten that is at least `least`; 1 if
/// `least` is not a positive number. A use is the width of a histogram's classes.
#[must_use]
pub fn round_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let exponent = least.log10().floor();
    // Nearly a step is a step: logarithms round.
    let found =
        STEPS.iter().map(|step| scientific(*step, exponent)).find(|step| *step >= least * (1.0 - 1e-9));
    let step = found.unwrap_or(scientific(1.0, exponent + 1.0));
    if step.is_finite() && step > 0.0 { step } else { 1.0 }
}

/// Returns a round number that is at least `number`, and above it by less than a third of its absolute value. `number`
/// is returned unchanged if it is not finite. A use is a common end for several axes.
#[must_use]
pub fn round_up(number: f64) -> f64 {
    let step = round_step(number.abs() / 8.0);
    let rounded = (number / step - 1e-9).ceil() * step;
    if rounded.is_finite() { rounded } else { number }
}

/// A digit times a power of ten, as exactly as it can be written: products are not.
pub(crate) fn scientific(digit: f64, exponent: f64) -> f64 {
    format!("{digit:.0}e{exponent:.0}").parse().unwrap_or(1.0)
}

/// Marks of evenly spaced numbers from `low` to `high`, `step` apart.
pub(crate) fn linear(low: f64, high: f64, step: f64) -> Vec<Tick> {
    let first = (low / step - 1e-6).ceil();
    let last = (high / step + 1e-6).floor();
    if !(first.is_finite() && last.is_finite() && last - first < 1e4) {
        return Vec::new();
    }
    let unit = unit(low.abs().max(high.abs()), step);
    let mut ticks = Vec::new();
    let mut index = first;
    while index <= last && ticks.len() < TICKS_MAX {
        let at = index * step;
        ticks.push(Tick { at, label: label(at, step, unit) });
        if index + 1.0 <= index {
            break;
        }
        index += 1.0;
    }
    ticks
}

/// Marks of powers of ten from `low` to `high`, at most `most` of them; and of 2 and 5 times such if powers alone
/// would be few.
pub(crate) fn log(low: f64, high: f64, most: usize) -> Vec<Tick> {
    let (first, last) = (low.log10(), high.log10());
    let decades = last - first;
    if !decades.is_finite() || decades <= 0.0 {
        return vec![Tick { at: low, label: short(low) }];
    }
    let factors: &[f64] = if decades <= 1.0 { &[1.0, 2.0, 3.0, 5.0, 7.0] } else { &STEPS };
    let all = if decades < 2.5 { between(low, high, factors, 1.0) } else { Vec::new() };
    if (2..=most.max(2)).contains(&all.len()) {
        return all;
    }
    if decades < 2.5 {
        let some = between(low, high, &STEPS, 1.0);
        if (2..=most.max(2)).contains(&some.len()) {
            return some;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let every = (decades / most.max(2) as f64).ceil().max(1.0);
    let powers = between(low, high, &[1.0], every);
    if powers.len() >= 2 { powers } else { between(low, high, &STEPS, 1.0) }
}

/// The places of the factors times powers of ten, every so many.
fn between(low: f64, high: f64, factors: &[f64], every: f64) -> Vec<Tick> {
    let mut ticks = Vec::new();
    let mut exponent = (low.log10().floor() / every).floor() * every;
    while exponent <= high.log10().ceil() && ticks.len() < TICKS_MAX {
        for factor in factors {
            let at = scientific(*factor, exponent);
            if at >= low * (1.0 - 1e-9) && at <= high * (1.0 + 1e-9) {
                ticks.push(Tick { at, label: short(at) });
            }
        }
        exponent += every;
    }
    ticks
}

/// The number that all labels of an axis are divided by, and its letter.
fn unit(largest: f64, step: f64) -> (f64, &'static str) {
    // Only if the step is not lost in the rounding.
    let fits = |from: f64, unit: f64| largest >= from && step >= unit / 100.0 && largest < 1e15;
    let found = UNITS.iter().find(|(from, unit, _)| fits(*from, *unit));
    found.map_or((1.0, ""), |(_, unit, letter)| (*unit, *letter))
}

/// A label with as many digits as the step needs.
fn label(at: f64, step: f64, (unit, letter): (f64, &str)) -> String {
    let (at, step) = (at / unit, step / unit);
    if at == 0.0 || (at / step).abs() < 1e-6 {
        return "0".to_owned();
    }
    if at.abs() >= 1e12 || step < 1e-4 {
        return exponential(at * unit, step * unit);
    }
    let digits = (0_i32..5).find(|digits| is_whole(step * 10_f64.powi(*digits))).unwrap_or(5);
    let digits = digits.unsigned_abs() as usize;
    format!("{at:.digits$}{letter}")
}

/// `2.5e-7`, with as many digits as tell neighbours apart.
fn exponential(at: f64, step: f64) -> String {
    let digits = (at.abs().log10().floor() - step.log10().floor()).clamp(0.0, 12.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 12")]
    let digits = digits as usize;
    format!("{at:.digits$e}")
}

fn is_whole(number: f64) -> bool {
    (number - number.round()).abs() < 1e-6
}

/// A number by itself, as short as it goes.
pub(crate) fn short(number: f64) -> String {
    let size = number.abs();
    if size >= 1e15 || (size < 1e-4 && size > 0.0) {
        return format!("{number:e}");
    }
    let found = UNITS.iter().find(|(from, ..)| size >= *from);
    let (unit, letter) = found.map_or((1.0, ""), |(_, unit, letter)| (*unit, *letter));
    let scaled = number / unit;
    let text = format!("{scaled:.4}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn steps_are_one_two_five() {
        let steps = [0.9, 1.0, 1.1, 2.3, 6.0, 0.03, 1e-9].map(round_step);
        assert_eq!(steps, [1.0, 1.0, 2.0, 5.0, 10.0, 0.05, 1e-9]);
        assert_eq!([0.0, -1.0, f64::NAN, f64::INFINITY].map(round_step), [1.0; 4]);
        assert!(round_step(1e300).is_finite() && round_step(1e-300) > 0.0);
        assert_eq!([97.0, 100.0, 2047.0, 0.0, -7.0].map(round_up), [100.0, 100.0, 2500.0, 0.0, -7.0]);
    }

    #[test]
    fn labels_have_the_digits_they_need() {
        assert_eq!(labels(&linear(0.0, 1.0, 0.2)), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&linear(-20.0, 40.0, 20.0)), ["-20", "0", "20", "40"]);
        assert_eq!(labels(&linear(0.0, 60_000.0, 20_000.0)), ["0", "20k", "40k", "60k"]);
        assert_eq!(labels(&linear(0.0, 2.5e6, 5e5)), ["0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"]);
        assert_eq!(labels(&linear(0.0, 3e-7, 1e-7)), ["0", "1e-7", "2e-7", "3e-7"]);
        assert_eq!(labels(&linear(0.0, 9000.0, 3000.0)), ["0", "3000", "6000", "9000"]);
        assert!(linear(0.0, 1e300, 1e-300).is_empty());
    }

    #[test]
    fn ticks_of_a_logarithm_are_round() {
        assert_eq!(labels(&log(1.0, 1e6, 8)), ["1", "10", "100", "1000", "10k", "100k", "1M"]);
        assert_eq!(labels(&log(2.0, 150.0, 8)), ["2", "5", "10", "20", "50", "100"]);
        assert_eq!(labels(&log(0.01, 1.0, 4)), ["0.01", "0.1", "1"]);
        assert_eq!(labels(&log(1e-200, 1e200, 6)).len(), 5);
        assert_eq!(labels(&log(3.0, 3.0, 6)), ["3"]);
    }
}
