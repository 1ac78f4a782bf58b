//! Prometheus' text format, version 0.0.4, as far as it is used here.

use crate::histogram::{BUCKETS, Distribution};
use std::fmt::{Display, Write};

/// The media type of a page.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a metric.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// The numbers of values in ranges of size.
    Histogram,
}

/// A number without labels: its metric's name without the page's prefix and `_total`, its help text, the number.
pub type Number = (&'static str, &'static str, u64);

/// A page of metrics.
#[derive(Default)]
pub struct Page(String);

impl Page {
    /// A page whose names begin with `prefix`, with the version as its first metric.
    #[must_use]
    pub fn of(prefix: &str) -> Self {
        let (mut page, name) = (Self::default(), format!("{prefix}_info"));
        page.metric(&name, Kind::Gauge, "The version of headstart.");
        page.sample(&name, &[("version", env!("CARGO_PKG_VERSION"))], 1);
        page
    }

    /// Adds a metric with a sample of each thing that has it: its labels and the value.
    pub fn each<'a, const LABELS: usize, V: Display>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        values: impl Iterator<Item = ([(&'a str, &'a str); LABELS], Option<V>)>,
    ) {
        self.metric(name, kind, help);
        for (labels, value) in values {
            value.iter().for_each(|value| self.sample(name, &labels, value));
        }
    }

    /// Begins a metric; its samples follow.
    pub fn metric(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a sample to the metric that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = writeln!(self.0, "{name}{} {value}", Labels(labels, None));
    }

    /// Adds numbers without labels, each a metric of its own: `prefix`, its name, and `_total` for a counter.
    pub fn numbers(&mut self, prefix: &str, kind: Kind, numbers: &[Number]) {
        let ending = if matches!(kind, Kind::Counter) { "_total" } else { "" };
        for (name, help, value) in numbers {
            let metric = format!("{prefix}_{name}{ending}");
            self.metric(&metric, kind, help);
            self.sample(&metric, &[], value);
        }
    }

    /// Adds a distribution as the sample of a histogram, in seconds.
    pub fn distribution(&mut self, name: &str, labels: &[(&str, &str)], values: &Distribution) {
        let mut sum = 0;
        for bucket in 0..BUCKETS {
            sum += values.counts[bucket];
            let bound = Distribution::bound_s(bucket).map_or("+Inf".to_owned(), |bound| bound.to_string());
            let _ = writeln!(self.0, "{name}_bucket{} {sum}", Labels(labels, Some(&bound)));
        }
        let _ = writeln!(self.0, "{name}_sum{} {}", Labels(labels, None), values.sum.as_secs_f64());
        let _ = writeln!(self.0, "{name}_count{} {sum}", Labels(labels, None));
    }

    /// The text of the page.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }
}

/// Labels in braces; the bound of a bucket is one of them.
struct Labels<'a>(&'a [(&'a str, &'a str)], Option<&'a str>);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bound = self.1.map(|bound| ("le", bound));
        for (i, (name, value)) in self.0.iter().copied().chain(bound).enumerate() {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            write!(f, "{}{name}=\"{value}\"", if i == 0 { '{' } else { ',' })?;
        }
        if self.0.is_empty() && self.1.is_none() { Ok(()) } else { f.write_char('}') }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;
    use std::time::Duration;

    #[test]
    fn prints_samples_with_their_labels() {
        let mut page = Page::default();
        page.metric("a_total", Kind::Counter, "Things.");
        page.sample("a_total", &[("disk", "a\"b\\\n")], 7);
        page.sample("a_total", &[], 1.5);
        let expected = "# HELP a_total Things.\n# TYPE a_total counter\n\
                        a_total{disk=\"a\\\"b\\\\\\n\"} 7\na_total 1.5\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn numbers_are_metrics_of_their_own() {
        let mut page = Page::default();
        page.numbers("a", Kind::Counter, &[("x", "Xs.", 1), ("y", "Ys.", 2)]);
        page.numbers("a", Kind::Gauge, &[("z", "Zs.", 3)]);
        let expected = "# HELP a_x_total Xs.\n# TYPE a_x_total counter\na_x_total 1\n\
                        # HELP a_y_total Ys.\n# TYPE a_y_total counter\na_y_total 2\n\
                        # HELP a_z Zs.\n# TYPE a_z gauge\na_z 3\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn a_distribution_is_cumulative_and_ends_with_all() {
        let histogram = Histogram::default();
        for micros in [1, 3, 100] {
            histogram.record(Duration::from_micros(micros));
        }
        let mut page = Page::default();
        page.distribution("t", &[("disk", "")], &histogram.snapshot());
        let page = page.finish();
        for line in [
            "t_bucket{disk=\"\",le=\"0.000001\"} 1",
            "t_bucket{disk=\"\",le=\"0.000004\"} 2",
            "t_bucket{disk=\"\",le=\"+Inf\"} 3",
            "t_sum{disk=\"\"} 0.000104",
            "t_count{disk=\"\"} 3",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
        }
    }
}
