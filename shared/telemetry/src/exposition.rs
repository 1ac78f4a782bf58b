//! Pages of metrics, written by `prometheus-client` in the format that a scraper asks for.
//!
//! This module keeps no numbers: a program keeps its own counts, and passes a function that encodes them at each
//! scrape. `prometheus-client` implements both formats, with their escapes and their names: a counter `reads` is the
//! family `reads_total` in Prometheus' text format, and in OpenMetrics the family `reads` with a sample `reads_total`.
//!
//! Only the bounds of histograms are changed afterwards. `prometheus-client` writes bounds below 0.0001 with an
//! exponent: `1e-06`, and `1e-6` in OpenMetrics. Earlier versions of headstart wrote `0.000001`. Prometheus 2 takes
//! another text for another series, so that after an update of headstart a rate would lack these buckets. Therefore the
//! bounds are written without an exponent here.

use crate::histogram::{BUCKETS, LatencyDistribution};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, prometheus_text,
    text,
};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::fmt;

pub use prometheus_client::metrics::MetricType;

/// The media type of OpenMetrics, and the only version of it that is served.
const OPEN_METRICS: (&str, &str) = ("application/openmetrics-text", "version=1.0.0");

/// The text format of a page of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// Prometheus' text format, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl PageFormat {
    /// Chooses the format for the `Accept` header of a scrape: OpenMetrics if the header lists its version
    /// 1.0.0, otherwise (and without a header) Prometheus' format, as Prometheus' own libraries choose.
    /// Weights are ignored, because a scraper lists only formats that it understands.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let is_open = |range: &str| {
            let mut words = range.split(';').map(str::trim);
            words.next() == Some(OPEN_METRICS.0) && words.any(|word| word == OPEN_METRICS.1)
        };
        let listed = accept.is_some_and(|accept| accept.split(',').any(is_open));
        if listed { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The media type of a page in this format, for the `Content-Type` header.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A type of number that a metric can have: `u64` or `f64`.
pub trait MetricValue: EncodeCounterValue + EncodeGaugeValue {}

impl MetricValue for u64 {}

impl MetricValue for f64 {}

/// A metric that is one number without labels: its name, its help text, and its value. The name lacks the prefix of the
/// page, the prefix that `PageEncoder::numbers` gets, and `_total`.
pub type Number = (&'static str, &'static str, u64);

/// Returns a page of metrics in `format`. The first metric is the version of headstart; the others are those
/// that `encode` adds. All names begin with `prefix` and an underscore.
pub fn page(
    prefix: &str,
    format: PageFormat,
    encode: impl Fn(&mut PageEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
) -> String {
    let mut registry = Registry::default();
    // The registry ends a help text with a full stop.
    registry.register(
        prefix,
        "The version of headstart",
        Info::new([("version", env!("CARGO_PKG_VERSION"))]),
    );
    registry.sub_registry_with_prefix(prefix).register_collector(Box::new(Numbers(encode)));
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = match format {
        PageFormat::Prometheus => prometheus_text::encode(&mut page, &registry),
        PageFormat::OpenMetrics => text::encode(&mut page, &registry),
    };
    plain_bounds(page)
}

/// The numbers that a function encodes.
struct Numbers<F>(F);

impl<F> fmt::Debug for Numbers<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbers")
    }
}

impl<F: Fn(&mut PageEncoder<'_>) -> fmt::Result + Send + Sync + 'static> Collector for Numbers<F> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut PageEncoder(encoder))
    }
}

/// Adds metrics to a page. Callers give names without the page's prefix, without the `_total` of a counter
/// and without the `_info` of an info metric; all three are added here.
pub struct PageEncoder<'a>(DescriptorEncoder<'a>);

impl PageEncoder<'_> {
    /// Adds a metric of `kind`, which must be a counter or a gauge, with one sample for each item of `samples`: the
    /// labels that tell the samples apart, and the value.
    ///
    /// # Errors
    /// Never fails, because the page is a string in memory; the result serves the `?` of callers.
    pub fn each<L: EncodeLabelSet, V: MetricValue>(
        &mut self,
        name: &str,
        kind: MetricType,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in samples {
            let mut sample = metric.encode_family(&labels)?;
            match kind {
                MetricType::Counter => sample.encode_counter::<NoLabelSet, V, f64>(&value, None)?,
                _ => sample.encode_gauge(&value)?,
            }
        }
        Ok(())
    }

    /// Adds each of `numbers` as a metric of `kind`, a counter or a gauge, without labels. The name of the metric is
    /// `prefix` directly followed by the name in the `Number`, without an underscore in between.
    ///
    /// # Errors
    /// Never fails, because the page is a string in memory.
    pub fn numbers(&mut self, prefix: &str, kind: MetricType, numbers: &[Number]) -> fmt::Result {
        for (name, help, value) in numbers {
            let none: [(&str, &str); 0] = [];
            self.each(&format!("{prefix}{name}"), kind, help, [(none, *value)])?;
        }
        Ok(())
    }

    /// Adds an info metric: each sample has the value 1, and its labels hold the information as text.
    ///
    /// # Errors
    /// Never fails, because the page is a string in memory.
    pub fn info(
        &mut self,
        name: &str,
        help: &str,
        labels: impl IntoIterator<Item = impl EncodeLabelSet>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        labels.into_iter().try_for_each(|labels| metric.encode_info(&labels))
    }

    /// Adds a histogram with bounds in seconds, one for each item of `samples`: the labels that tell them
    /// apart, and the distribution.
    ///
    /// # Errors
    /// Never fails, because the page is a string in memory.
    pub fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, LatencyDistribution)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, values) in samples {
            let bound = |bucket| LatencyDistribution::bound_s(bucket).unwrap_or(f64::INFINITY);
            let buckets: [_; BUCKETS] = std::array::from_fn(|i| (bound(i), values.counts[i]));
            let (sum, count) = (values.sum.as_secs_f64(), values.count());
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Writes the bounds of histograms without an exponent.
///
/// Only a label can match: a quotation mark in a label's value has a backslash before it.
fn plain_bounds(page: String) -> String {
    const LABEL: &str = "le=\"";
    if !page.contains(LABEL) {
        return page;
    }
    let (mut plain, mut rest) = (String::with_capacity(page.len() + page.len() / 16), page.as_str());
    while let Some(at) = rest.find(LABEL) {
        let (before, bound) = rest.split_at(at + LABEL.len());
        plain.push_str(before);
        let end = bound.find('"').unwrap_or(bound.len());
        let is_bound = before.ends_with("{le=\"") || before.ends_with(",le=\"");
        match bound[..end].parse::<f64>() {
            Ok(number) if is_bound && bound[..end].contains('e') => {
                let _ = fmt::Write::write_fmt(&mut plain, format_args!("{number}"));
            }
            _ => plain.push_str(&bound[..end]),
        }
        rest = &bound[end..];
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Histogram;
    use std::time::Duration;

    fn of(format: PageFormat, encode: fn(&mut PageEncoder<'_>) -> fmt::Result) -> String {
        page("a", format, encode)
    }

    #[test]
    fn a_page_has_the_version_and_each_metric_with_its_samples() {
        let encode = |page: &mut PageEncoder<'_>| {
            page.each("b", MetricType::Counter, "Bs.", [([("disk", "a\"b\\\n"), ("le", "1e-6")], 7_u64)])?;
            page.numbers("c_", MetricType::Gauge, &[("x", "Xs.", 1), ("y", "Ys.", 2)])?;
            page.each("d", MetricType::Gauge, "Ds, and \\.", [([("file", "1e-6")], 0.25_f64)])?;
            page.info("e", "E.", [[("le", "1e-6,le=\"")]])
        };
        let text = of(PageFormat::Prometheus, encode);
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "# HELP a_info The version of headstart.\n# TYPE a_info gauge\na_info{{version=\"{version}\"}} 1\n\
             # HELP a_b_total Bs.\n# TYPE a_b_total counter\n\
             a_b_total{{disk=\"a\\\"b\\\\\\n\",le=\"0.000001\"}} 7\n\
             # HELP a_c_x Xs.\n# TYPE a_c_x gauge\na_c_x 1\n# HELP a_c_y Ys.\n# TYPE a_c_y gauge\na_c_y 2\n\
             # HELP a_d Ds, and \\\\.\n# TYPE a_d gauge\na_d{{file=\"1e-6\"}} 0.25\n\
             # HELP a_e_info E.\n# TYPE a_e_info gauge\na_e_info{{le=\"1e-6,le=\\\"\"}} 1\n"
        );
        assert_eq!(text, expected);
        let open = of(PageFormat::OpenMetrics, encode);
        for line in ["# TYPE a info", "# TYPE a_b counter", "# TYPE a_c_x gauge", "# TYPE a_e info"] {
            assert!(open.lines().any(|found| found == line), "{line} is not in {open}");
        }
        assert!(open.contains("\na_b_total{") && open.ends_with("# EOF\n"), "{open}");
    }

    #[test]
    fn a_histogram_is_cumulative_and_its_bounds_have_no_exponent() {
        let encode = |page: &mut PageEncoder<'_>| {
            let histogram = Histogram::default();
            for micros in [1, 3, 100] {
                histogram.record(Duration::from_micros(micros));
            }
            page.histograms("t_seconds", "Times.", [([("disk", "")], histogram.snapshot())])
        };
        let text = of(PageFormat::Prometheus, encode);
        for line in [
            "# TYPE a_t_seconds histogram",
            "a_t_seconds_bucket{disk=\"\",le=\"0.000001\"} 1",
            "a_t_seconds_bucket{disk=\"\",le=\"0.000004\"} 2",
            "a_t_seconds_bucket{disk=\"\",le=\"67.108864\"} 3",
            "a_t_seconds_bucket{disk=\"\",le=\"+Inf\"} 3",
            "a_t_seconds_sum{disk=\"\"} 0.000104",
            "a_t_seconds_count{disk=\"\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        let open = of(PageFormat::OpenMetrics, encode);
        let bounds = |page: &str| -> Vec<String> {
            let bounds = page.split("le=\"").skip(1).filter_map(|rest| rest.split_once('"'));
            bounds.map(|(bound, _)| bound.to_owned()).collect()
        };
        let expected: Vec<_> = (0..BUCKETS)
            .map(|i| LatencyDistribution::bound_s(i).map_or("+Inf".to_owned(), |bound| bound.to_string()))
            .collect();
        assert_eq!((bounds(&text), bounds(&open)), (expected.clone(), expected));
    }

    #[test]
    fn a_scraper_gets_open_metrics_if_it_lists_this_version() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                          application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in [prometheus, "application/openmetrics-text; version=1.0.0; charset=utf-8"] {
            assert_eq!(PageFormat::accepted(Some(accept)), PageFormat::OpenMetrics, "{accept}");
        }
        let earlier = "application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for accept in [None, Some(earlier), Some("*/*"), Some("text/plain"), Some("")] {
            assert_eq!(PageFormat::accepted(accept), PageFormat::Prometheus, "{accept:?}");
        }
        assert_eq!(PageFormat::Prometheus.media_type(), "text/plain; version=0.0.4; charset=utf-8");
    }
}
