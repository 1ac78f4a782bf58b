//! A level over time, such as the used share of the storage that a VM owns.

/// A moment in seconds since the beginning of a fleet, or a duration in seconds.
pub type Seconds = u32;

/// The interval at which predictors observe and brokers lend, in seconds: three minutes (BlockFlex, OSDI
/// 2022, section 4.3.2).
pub const STEP: Seconds = 180;

/// A level over time: a step function of levels, each held until the next, from second 0 on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    steps: Vec<(Seconds, f32)>,
}

/// Minimum, maximum and mean of a level over a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// The lowest level.
    pub min: f32,
    /// The highest level.
    pub max: f32,
    /// The mean level, weighted by duration.
    pub mean: f32,
}

impl Course {
    /// Returns a course with the same level for all time.
    #[must_use]
    pub fn constant(level: f32) -> Self {
        Self { steps: vec![(0, level)] }
    }

    /// Appends a step: the level is `level` from second `at` on. Calls must be in order of time; a second
    /// call for the same or an earlier second replaces the last level.
    pub fn push(&mut self, at: Seconds, level: f32) {
        match self.steps.last_mut() {
            Some((last, held)) if *last >= at => *held = level,
            #[expect(clippy::float_cmp, reason = "the same number again is no step")]
            Some((_, held)) if *held == level => {}
            _ => self.steps.push((at, level)),
        }
    }

    /// The steps in order: the second at which each begins, and its level.
    #[must_use]
    pub fn steps(&self) -> &[(Seconds, f32)] {
        &self.steps
    }

    /// Multiplies all levels by `times` and limits them to the range from 0 to `most`.
    #[must_use]
    pub fn scaled(mut self, times: f32, most: f32) -> Self {
        self.steps.iter_mut().for_each(|(_, level)| *level = (*level * times).clamp(0.0, most));
        self
    }

    /// Returns the level at second `moment`; 0 before the first step.
    #[must_use]
    pub fn at(&self, moment: Seconds) -> f32 {
        let after = self.steps.partition_point(|(at, _)| *at <= moment);
        after.checked_sub(1).and_then(|n| self.steps.get(n)).map_or(0.0, |(_, level)| *level)
    }

    /// The pieces of `[from, to)`, each with its length and level.
    fn pieces(&self, from: Seconds, to: Seconds) -> impl Iterator<Item = (Seconds, f32)> {
        let first = self.steps.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let steps = self.steps.get(first..).unwrap_or_default();
        steps.iter().enumerate().map_while(move |(n, (at, level))| {
            let end = steps.get(n + 1).map_or(to, |(next, _)| (*next).min(to));
            let start = (*at).max(from);
            (start < to).then(|| (end.saturating_sub(start), *level))
        })
    }

    /// Returns minimum, maximum and mean of the level in `[from, to)`; zeros if the span is empty.
    #[must_use]
    pub fn over(&self, from: Seconds, to: Seconds) -> Window {
        let (mut min, mut max, mut sum) = (f32::INFINITY, 0.0_f32, 0.0_f64);
        for (long, level) in self.pieces(from, to) {
            (min, max) = (min.min(level), max.max(level));
            sum += f64::from(level) * f64::from(long);
        }
        if to <= from || min > max {
            return Window { min: 0.0, max: 0.0, mean: 0.0 };
        }
        #[expect(clippy::cast_possible_truncation, reason = "a share")]
        let mean = (sum / f64::from(to - from)) as f32;
        Window { min, max, mean }
    }

    /// Returns the sum of several courses, each multiplied by its weight.
    #[must_use]
    pub fn sum<'a>(courses: impl IntoIterator<Item = (&'a Self, f32)>) -> Self {
        let mut changes: Vec<(Seconds, f64)> = Vec::new();
        for (course, weight) in courses {
            let mut before = 0.0;
            for (at, level) in &course.steps {
                let level = f64::from(*level) * f64::from(weight);
                changes.push((*at, level - before));
                before = level;
            }
        }
        changes.sort_by_key(|(at, _)| *at);
        let (mut sum, mut level) = (Self::default(), 0.0);
        for (at, change) in changes {
            level += change;
            // The rest of sums that cancel out is not a level.
            #[expect(clippy::cast_possible_truncation, reason = "a share")]
            sum.push(at, if level.abs() < 1e-7 { 0.0 } else { level as f32 });
        }
        sum
    }

    /// Returns the spans of `[0, end)` in which the level is at most `most`, as pairs of start and end in
    /// seconds.
    #[must_use]
    pub fn below(&self, most: f32, end: Seconds) -> Vec<(Seconds, Seconds)> {
        let mut whiles: Vec<(Seconds, Seconds)> = Vec::new();
        let mut at = 0;
        for (long, level) in self.pieces(0, end) {
            if level <= most {
                match whiles.last_mut() {
                    Some((_, until)) if *until == at => *until = at + long,
                    _ => whiles.push((at, at + long)),
                }
            }
            at += long;
        }
        whiles
    }
}

/// Returns the probability, 0 to 1, that a span of `lasts` seconds lies within one of `whiles` (pairs of start and end,
/// in `[0, end]`) if the span begins at a random second. Only seconds count from which the span ends by `end`; 0 if
/// `lasts` is greater than `end`.
#[must_use]
pub fn share_of_starts(whiles: &[(Seconds, Seconds)], lasts: Seconds, end: Seconds) -> f64 {
    if lasts > end {
        return 0.0;
    }
    // Moments are whole seconds: one more than their distance.
    let starts = |long: Seconds| if long >= lasts { f64::from(long - lasts) + 1.0 } else { 0.0 };
    whiles.iter().map(|(from, to)| starts(to - from)).sum::<f64>() / starts(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn course(steps: &[(Seconds, f32)]) -> Course {
        let mut course = Course::default();
        steps.iter().for_each(|(at, level)| course.push(*at, *level));
        course
    }

    #[test]
    fn levels_hold_until_the_next() {
        let course = course(&[(0, 0.5), (10, 0.5), (20, 1.0), (20, 0.25)]);
        assert_eq!(course.steps(), [(0, 0.5), (20, 0.25)]);
        assert_eq!([0, 19, 20, 99].map(|at| course.at(at)), [0.5, 0.5, 0.25, 0.25]);
        assert_eq!(course.over(10, 30), Window { min: 0.25, max: 0.5, mean: 0.375 });
        assert_eq!(course.over(5, 5).mean, 0.0);
        assert_eq!(course.below(0.3, 40), [(20, 40)]);
    }

    #[test]
    fn a_while_of_three_has_two_starts_of_two() {
        assert_eq!(share_of_starts(&[(0, 3), (5, 6)], 2, 5), 0.5);
        assert_eq!(share_of_starts(&[(0, 10)], 10, 10), 1.0);
        assert_eq!(share_of_starts(&[(0, 10)], 11, 10), 0.0);
    }

    proptest! {
        #[test]
        fn a_course_reads_as_a_list_of_seconds(
            steps in vec((0_u32..60, 0_u8..5), 1..12),
            other in vec((0_u32..60, 0_u8..5), 1..12),
            from in 0_u32..70,
            long in 1_u32..30,
            most in 0_u8..6,
        ) {
            let make = |steps: &[(u32, u8)]| {
                let mut steps = steps.to_vec();
                steps.sort_by_key(|(at, _)| *at);
                steps[0].0 = 0;
                let mut list = vec![0.0_f32; 100];
                for (at, level) in &steps {
                    list[*at as usize..].fill(f32::from(*level));
                }
                let steps: Vec<_> = steps.iter().map(|(at, level)| (*at, f32::from(*level))).collect();
                (course(&steps), list)
            };
            let ((one, list), (two, list_two)) = (make(&steps), make(&other));
            let part = &list[from as usize..(from + long) as usize];
            let window = one.over(from, from + long);
            prop_assert_eq!(window.min, part.iter().copied().fold(f32::INFINITY, f32::min));
            prop_assert_eq!(window.max, part.iter().copied().fold(0.0, f32::max));
            prop_assert!((window.mean - part.iter().sum::<f32>() / long as f32).abs() < 1e-4);
            let sum = Course::sum([(&one, 2.0), (&two, 1.0)]);
            for at in 0..100 {
                prop_assert_eq!(sum.at(at), 2.0 * list[at as usize] + list_two[at as usize]);
            }
            let whiles = one.below(f32::from(most), 100);
            let inside = |at: u32| whiles.iter().any(|(from, to)| (*from..*to).contains(&at));
            prop_assert!((0..100).all(|at| inside(at) == (list[at as usize] <= f32::from(most))));
            let fits = |at: u32| (at..at + long).all(|at| list[at as usize] <= f32::from(most));
            let count = (0..=100 - long).filter(|at| fits(*at)).count() as f64;
            prop_assert!((share_of_starts(&whiles, long, 100) - count / f64::from(101 - long)).abs() < 1e-9);
        }
    }
}
