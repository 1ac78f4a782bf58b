//! A recorded link.

use headstart_block::small_file::read_small;
use headstart_block::{Error, Result};
use headstart_replay::{LinkBandwidth, Nanos};
use headstart_trace::file::{ReadLimits, read_file};
use std::path::Path;

/// The most bytes of a file of lines.
const BYTES_MAX: u64 = 64 << 20;
/// The latest accepted moment, in seconds: a year, later than any boot.
const SECONDS_MAX: f64 = 31_536_000.0;

/// Reads a file of lines `seconds,MBps`, in which a MB is `unit` bytes, or the samples of a trace's link.
pub(super) fn read(path: &Path, unit: f64) -> Result<LinkBandwidth> {
    let about = |e: Error| e.about(path.display());
    let is_trace = path.extension().is_some_and(|extension| extension == "parquet");
    if is_trace {
        let trace = read_file(path, &ReadLimits::default())?;
        let none = || about(Error::invalid("has no samples of its link's bandwidth"));
        return LinkBandwidth::measured(&trace.link).ok_or_else(none);
    }
    let text = read_small(path, BYTES_MAX)?;
    let text = String::from_utf8(text).map_err(|_| about(Error::invalid("is not text")))?;
    parse(&text, unit).map_err(|e| {
        about(e).remedy("give lines `seconds,MBps`, seconds from the creation on, such as `0,8` and `12.5,2`")
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "both are checked to be small")]
fn parse(text: &str, unit: f64) -> Result<LinkBandwidth> {
    let mut steps: Vec<(Nanos, u64)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        let mut fields = line.split(',').map(|field| field.trim().parse::<f64>().ok());
        let wrong = |what: &str| Error::invalid(format!("line {number} `{}`: {what}", line.escape_debug()));
        let (at, rate) = match [fields.next(), fields.next(), fields.next()] {
            [Some(Some(at)), Some(Some(rate)), None] => (at, rate),
            // A table may have a header.
            [Some(None), ..] if number == 1 && line.contains(',') => continue,
            [Some(None), None, _] if line.is_empty() => continue,
            _ => return Err(wrong("not two numbers")),
        };
        if !(0.0..=SECONDS_MAX).contains(&at) {
            return Err(wrong("not a number of seconds from 0 to a year"));
        }
        if !(0.0..=1e6).contains(&rate) {
            return Err(wrong("not a number of MB/s from 0 to 1000000"));
        }
        let at = Nanos((at * 1e9) as u64);
        if steps.last().is_some_and(|(before, _)| *before >= at) {
            return Err(wrong("is not later than the line before"));
        }
        steps.push((at, (rate * unit) as u64));
    }
    if steps.is_empty() {
        return Err(Error::invalid("has no bandwidth"));
    }
    Ok(LinkBandwidth::Series(steps.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_seconds_and_rates_make_a_series() {
        let steps = [(Nanos(0), 8_000_000), (Nanos(12_500_000_000), 250_000)];
        let wanted = LinkBandwidth::Series(steps.into());
        assert_eq!(parse("seconds,MBps\n0,8\n\n12.5, 0.25\n", 1e6).unwrap(), wanted);
    }

    #[test]
    fn a_malformed_series_is_refused_with_its_line() {
        let wrong =
            ["", "a\n", "0,8\nx,2", "0,8\n1", "0,8\n1,2,3", "0,-1", "-1,3", "0,NaN", "5,1\n5,2", "1e9,1"];
        for text in wrong {
            let error = parse(text, 1e6).unwrap_err().to_string();
            assert!(text.is_empty() || error.contains("line") || text == "a\n", "{text:?}: {error}");
        }
    }
}
