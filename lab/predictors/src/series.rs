//! Demand over time, as traces give it: levels and the time for which each was held.
//!
//! A file of a series is text. The first line is a summary, which is skipped. Every other line is `duration_s level`:
//! the level (in flash channels' worth of bandwidth, or in units of capacity) was held for that number of seconds. Both
//! numbers may have a fraction. They are separated by commas, semicolons, spaces or tabs. Empty lines and lines that
//! begin with `#` are skipped. If the first line consists of two such numbers, it is no summary and counts.
//!
//! Predictors work on steps of one length ([`STEP`](headstart_forecast::STEP)). [`DemandSeries::steps`] divides a
//! series into steps, each with the highest, the lowest, the mean (over time) and the last level in it. A rest at the
//! end that is shorter than a step is left out.

use headstart_block::{Error, Result};
use headstart_forecast::{Reading, Stat};
use std::str::FromStr;
use std::time::Duration;

/// The longest series that is accepted, about a century: no trace is nearly as long, and sums of longer ones
/// could overflow.
pub const MAX_LENGTH: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// The highest level that is accepted, in the unit of the series (channels or units of capacity).
pub const MAX_LEVEL: f32 = 65_535.0;

/// A level and the duration for which it was held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelRun {
    /// The duration for which the level was held; never zero in a series.
    pub length: Duration,
    /// The level in the unit of the series (channels or units of capacity), 0 to [`MAX_LEVEL`]; it may have a
    /// fraction.
    pub level: f32,
}

/// Statistics of the level during one step, in the unit of the series (channels or units of capacity).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesStep {
    /// The highest level during the step.
    pub max: f32,
    /// The lowest level during the step.
    pub min: f32,
    /// The mean level during the step, weighted by duration.
    pub mean: f32,
    /// The level at the end of the step.
    pub last: f32,
}

impl From<SeriesStep> for Reading {
    fn from(step: SeriesStep) -> Self {
        Self { level: Stat { max: step.max, min: step.min, mean: step.mean }, iops: Stat::default() }
    }
}

/// Demand over time: a sequence of levels, each held for some duration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DemandSeries {
    runs: Vec<LevelRun>,
}

impl DemandSeries {
    /// Creates a series of runs; runs of zero duration are left out.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](headstart_block::ErrorKind::Corrupt) if a level is negative, not a number or
    /// above [`MAX_LEVEL`], or if the runs together are longer than [`MAX_LENGTH`].
    pub fn new(runs: impl IntoIterator<Item = LevelRun>) -> Result<Self> {
        let mut series = Self::default();
        let mut length = Duration::ZERO;
        for run in runs {
            series.push(run, &mut length)?;
        }
        Ok(series)
    }

    /// Takes one more run, `length` being that of all so far.
    fn push(&mut self, run: LevelRun, length: &mut Duration) -> Result<()> {
        if !(0.0..=MAX_LEVEL).contains(&run.level) {
            return Err(Error::corrupt(format!("level {} is not within 0 and {MAX_LEVEL}", run.level)));
        }
        *length = length.saturating_add(run.length);
        if *length > MAX_LENGTH {
            return Err(Error::corrupt("the series is longer than a century"));
        }
        if !run.length.is_zero() {
            self.runs.push(run);
        }
        Ok(())
    }

    /// The runs in order, as they were given; consecutive runs may have the same level.
    #[must_use]
    pub fn runs(&self) -> &[LevelRun] {
        &self.runs
    }

    /// Returns the duration of the whole series.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.runs.iter().map(|run| run.length).sum()
    }

    /// Returns the highest level; 0 if there are no runs.
    #[must_use]
    pub fn highest(&self) -> f32 {
        self.runs.iter().map(|run| run.level).fold(0.0, f32::max)
    }

    /// Divides the series into steps of duration `step`, in order. A rest at the end that is shorter than a step is
    /// left out; there are no steps if `step` is zero.
    pub fn steps(&self, step: Duration) -> impl Iterator<Item = SeriesStep> + '_ {
        Steps { runs: &self.runs, left: self.runs.first().map_or(Duration::ZERO, |run| run.length), step }
    }
}

/// `text` is a whole file; errors name the line.
impl FromStr for DemandSeries {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut series = Self::default();
        let mut length = Duration::ZERO;
        for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let taken = match parse(line) {
                Ok(run) => series.push(run, &mut length),
                Err(_) if number == 0 => Ok(()),
                Err(error) => Err(error),
            };
            taken.map_err(|error| Error::corrupt(format!("line {}: {error}", number + 1)))?;
        }
        if series.runs.is_empty() {
            return Err(
                Error::corrupt("no level in it").remedy("each line but the first is `duration_s level`")
            );
        }
        Ok(series)
    }
}

/// One line: a duration in seconds and a level.
fn parse(line: &str) -> Result<LevelRun> {
    let mut fields = line.split([',', ';', ' ', '\t']).filter(|field| !field.is_empty());
    let (Some(seconds), Some(level), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(Error::corrupt("is not `duration_s level`"));
    };
    let seconds: f64 =
        seconds.parse().map_err(|_| Error::corrupt(format!("{seconds:?} is not a duration")))?;
    let level: f32 = level.parse().map_err(|_| Error::corrupt(format!("{level:?} is not a level")))?;
    let length = Duration::try_from_secs_f64(seconds)
        .map_err(|_| Error::corrupt(format!("no time lasts {seconds} seconds")))?;
    Ok(LevelRun { length, level })
}

/// Steps of a series, one after the other.
struct Steps<'a> {
    /// The rest of it; the first may be used in part.
    runs: &'a [LevelRun],
    /// The rest of the first run.
    left: Duration,
    step: Duration,
}

impl Iterator for Steps<'_> {
    type Item = SeriesStep;

    fn next(&mut self) -> Option<SeriesStep> {
        if self.step.is_zero() {
            return None;
        }
        let mut missing = self.step;
        let (mut sum, mut max, mut min, mut last) = (0.0_f64, 0.0_f32, f32::INFINITY, 0.0);
        while !missing.is_zero() {
            let level = self.runs.first()?.level;
            let part = missing.min(self.left);
            sum += f64::from(level) * part.as_secs_f64();
            (max, min, last) = (max.max(level), min.min(level), level);
            missing -= part;
            self.left -= part;
            if self.left.is_zero() {
                self.runs = self.runs.get(1..).unwrap_or_default();
                self.left = self.runs.first().map_or(Duration::ZERO, |run| run.length);
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "a mean of f32")]
        let mean = (sum / self.step.as_secs_f64()) as f32;
        Some(SeriesStep { max, min, mean: mean.clamp(min, max), last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headstart_forecast::STEP;
    use proptest::prelude::*;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    #[test]
    fn a_file_is_read_and_cut() {
        let text = "total_obs: 3 diff:0 avg_duration: 1811.8\n120.0 2.0\n180 5\n\n1000.0 0.0\r\n";
        let series: DemandSeries = text.parse().unwrap();
        assert_eq!(
            (series.runs().len(), series.length(), series.highest()),
            (3, Duration::from_secs(1300), 5.0)
        );
        let steps: Vec<_> = series.steps(STEP).collect();
        assert_eq!(steps.len(), 7);
        assert_eq!(steps[0], SeriesStep { max: 5.0, min: 2.0, mean: 3.0, last: 5.0 });
        assert_eq!(steps[1].last, 0.0);
        assert_eq!(steps[2], SeriesStep { max: 0.0, min: 0.0, mean: 0.0, last: 0.0 });
        assert_eq!(series.steps(Duration::ZERO).count(), 0);
    }

    #[test]
    fn series_of_other_programs_are_read() {
        let runs = |text: &str| text.parse::<DemandSeries>().unwrap().runs().to_vec();
        let expected =
            [LevelRun { length: minutes(1), level: 2.5 }, LevelRun { length: minutes(2), level: 0.0 }];
        assert_eq!(runs("\u{feff}60,2.5\n# a word\n\t120 ; 0"), expected);
        assert_eq!(runs("60 2.5\n0 7\n120 0"), expected);
    }

    #[test]
    fn malformed_series_are_refused_with_their_line() {
        for (text, word) in [
            ("", "no level"),
            ("summary\n", "no level"),
            ("summary\n60 1\nsummary\n", "line 3"),
            ("s\n60\n", "line 2"),
            ("s\n60 1 2\n", "line 2"),
            ("s\n-60 1\n", "line 2"),
            ("s\nNaN 1\n", "line 2"),
            ("s\n1e300 1\n", "line 2"),
            ("s\n3e9 1\n3e9 1", "line 3"),
            ("s\n60 NaN\n", "line 2"),
            ("s\n60 -1\n", "line 2"),
            ("s\n60 1e9\n", "line 2"),
        ] {
            let error = text.parse::<DemandSeries>().unwrap_err().to_string();
            assert!(error.contains(word), "{text:?}: {error}");
        }
    }

    proptest! {
        /// Compares with a model of seconds.
        #[test]
        fn steps_are_what_the_seconds_say(
            runs in prop::collection::vec((0_u64..50, 0_u8..20), 0..40), step in 1_u64..40,
        ) {
            let seconds: Vec<f32> = runs
                .iter()
                .flat_map(|&(length, level)| (0..length).map(move |_| f32::from(level)))
                .collect();
            let run = |&(length, level): &(u64, u8)| LevelRun {
                length: Duration::from_secs(length),
                level: level.into(),
            };
            let series = DemandSeries::new(runs.iter().map(run)).unwrap();
            let steps: Vec<_> = series.steps(Duration::from_secs(step)).collect();
            let chunks: Vec<_> = seconds.chunks_exact(usize::try_from(step).unwrap()).collect();
            prop_assert_eq!(steps.len(), chunks.len());
            for (step, chunk) in steps.iter().zip(chunks) {
                prop_assert_eq!(step.max, chunk.iter().copied().fold(0.0, f32::max));
                prop_assert_eq!(step.min, chunk.iter().copied().fold(f32::INFINITY, f32::min));
                prop_assert_eq!(step.last, chunk[chunk.len() - 1]);
                #[expect(clippy::cast_precision_loss, reason = "few")]
                let mean = chunk.iter().sum::<f32>() / chunk.len() as f32;
                prop_assert!((step.mean - mean).abs() < 1e-4);
            }
        }

        /// No text makes it panic.
        #[test]
        fn any_text_is_read_or_refused(text in "(\\PC|[0-9. ,\n#eE+-]){0,80}") {
            if let Ok(series) = text.parse::<DemandSeries>() {
                prop_assert!(series.length() <= MAX_LENGTH);
                let _ = series.steps(MAX_LENGTH / 100).count();
            }
        }
    }
}
