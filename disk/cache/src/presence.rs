//! Bitmaps of units in memory that several processes share, and the order in which bits and bytes change.
//!
//! A bit is set only after the unit's bytes are in the data file (`Release`), and looked at before they are read
//! (`Acquire`): a thread that sees the bit sees the bytes. All functions take units as a half-open range and ignore
//! units past the bitmap's end.
//!
//! [`read`], [`insert`] and [`forget`] keep readers from bytes that are given back; the head of `blob` says why. They
//! do no I/O themselves: the same code runs in `interleavings`, which tries every order of their steps.

use headstart_block::AtomicWord;
use headstart_block::bits::{WORD_BITS as WORD, words_of as words};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// `true` if all of `units` are set.
pub(crate) fn all_set<W: AtomicWord>(bits: &[W], units: &Range<u64>) -> bool {
    words(units)
        .all(|(at, mask)| bits.get(at).is_some_and(|word| word.load(Ordering::Acquire) & mask == mask))
}

/// Sets `units`; returns the number that were not set before.
pub(crate) fn set<W: AtomicWord>(bits: &[W], units: &Range<u64>) -> u64 {
    let set = |(at, mask): (usize, u64)| {
        bits.get(at).map_or(0, |word| (mask & !word.fetch_or(mask, Ordering::Release)).count_ones())
    };
    words(units).map(set).map(u64::from).sum()
}

/// Clears `units`; returns the number that were set before.
pub(crate) fn clear<W: AtomicWord>(bits: &[W], units: &Range<u64>) -> u64 {
    let clear = |(at, mask): (usize, u64)| {
        bits.get(at).map_or(0, |word| (mask & word.fetch_and(!mask, Ordering::AcqRel)).count_ones())
    };
    words(units).map(clear).map(u64::from).sum()
}

/// The number of `units` that are set.
pub(crate) fn count<W: AtomicWord>(bits: &[W], units: &Range<u64>) -> u64 {
    let count = |(at, mask): (usize, u64)| {
        bits.get(at).map_or(0, |word| (word.load(Ordering::Acquire) & mask).count_ones())
    };
    words(units).map(count).map(u64::from).sum()
}

/// Names the runs of `units` whose bit is `wanted`, ascending.
pub(crate) fn runs<W: AtomicWord>(
    bits: &[W],
    units: &Range<u64>,
    wanted: bool,
    each: &mut dyn FnMut(Range<u64>),
) {
    let mut run: Option<Range<u64>> = None;
    let mut base = units.start - units.start % WORD;
    for (at, mask) in words(units) {
        let word = bits.get(at).map_or(0, |word| word.load(Ordering::Acquire));
        let mut left = if wanted { word } else { !word } & mask;
        while left != 0 {
            let start = u64::from(left.trailing_zeros());
            let len = u64::from((left >> start).trailing_ones());
            left &= if start + len == WORD { 0 } else { u64::MAX << (start + len) };
            let found = base + start..base + start + len;
            match &mut run {
                Some(run) if run.end == found.start => run.end = found.end,
                _ => {
                    if let Some(before) = run.replace(found) {
                        each(before);
                    }
                }
            }
        }
        base += WORD;
    }
    if let Some(last) = run {
        each(last);
    }
}

/// A copy of the first `units` bits; every set bit in it was set when it was looked at.
pub(crate) fn snapshot<W: AtomicWord>(bits: &[W], units: u64) -> Vec<u64> {
    words(&(0..units))
        .map(|(at, mask)| bits.get(at).map_or(0, |word| word.load(Ordering::Acquire) & mask))
        .collect()
}

/// The result of one [`read`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome<E> {
    /// All bytes were there.
    Read,
    /// Some units are not set.
    Absent,
    /// Units were forgotten meanwhile: a hole may have been read.
    Forgotten,
    /// The bytes could not be read.
    Failed(E),
}

/// Calls `read`, which reads the bytes of `units`, if they are set; says if these bytes can be used.
#[inline]
pub(crate) fn read<W: AtomicWord, E>(
    bits: &[W],
    generation: &W,
    units: &Range<u64>,
    read: impl FnOnce() -> Result<(), E>,
) -> Outcome<E> {
    let before = generation.load(Ordering::Acquire);
    if !all_set(bits, units) {
        return Outcome::Absent;
    }
    if let Err(error) = read() {
        return Outcome::Failed(error);
    }
    W::fence(Ordering::Acquire);
    if generation.load(Ordering::Relaxed) == before { Outcome::Read } else { Outcome::Forgotten }
}

/// Calls `write`, which writes the bytes of `units`, then sets them; returns the number that were not set before. The
/// caller keeps space from being given back meanwhile.
///
/// # Errors
/// The error of `write`; then nothing is set.
pub(crate) fn insert<W: AtomicWord, E>(
    bits: &[W],
    units: &Range<u64>,
    write: impl FnOnce() -> Result<(), E>,
) -> Result<u64, E> {
    write()?;
    Ok(set(bits, units))
}

/// Clears the units of `runs`, then raises the generation, so that reads under way notice; returns the number that
/// were set before. After this their bytes may be given back, where they are still not set.
pub(crate) fn forget<W: AtomicWord>(
    bits: &[W],
    generation: &W,
    runs: impl IntoIterator<Item = Range<u64>>,
) -> u64 {
    let cleared = runs.into_iter().map(|run| clear(bits, &run)).sum();
    generation.fetch_add(1, Ordering::AcqRel);
    cleared
}

#[cfg(test)]
mod interleavings;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_bitmap_reads_as_a_vector_of_booleans(
            units in 1u64..300, steps in prop::collection::vec((any::<bool>(), 0u64..300, 0u64..300), 1..20),
        ) {
            let bits: Vec<_> = (0..units.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
            let mut model = vec![false; units as usize];
            for (on, a, b) in steps {
                let range = a.min(b).min(units)..a.max(b).min(units);
                let part = &mut model[range.start as usize..range.end as usize];
                let changed = part.iter().filter(|&&bit| bit != on).count() as u64;
                part.fill(on);
                prop_assert_eq!(if on { set(&bits, &range) } else { clear(&bits, &range) }, changed);

                let part = &model[range.start as usize..range.end as usize];
                prop_assert_eq!(all_set(&bits, &range), part.iter().all(|&bit| bit));
                prop_assert_eq!(count(&bits, &range), part.iter().filter(|&&bit| bit).count() as u64);
                for wanted in [true, false] {
                    let mut found = vec![!wanted; part.len()];
                    let mut last_end = None;
                    runs(&bits, &range, wanted, &mut |run| {
                        assert!(last_end.is_none_or(|end| end < run.start) && run.start < run.end);
                        last_end = Some(run.end);
                        found[(run.start - range.start) as usize..(run.end - range.start) as usize].fill(wanted);
                    });
                    prop_assert_eq!(found.as_slice(), part);
                }
                let copy = snapshot(&bits, units);
                prop_assert!((0..units).all(|at| (copy[at as usize / 64] >> (at % 64) & 1 == 1) == model[at as usize]));
            }
        }
    }
}
