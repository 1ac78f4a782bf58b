//! A strict parser of pages of metrics, in Prometheus' text format 0.0.4 or in OpenMetrics. A page counts as
//! OpenMetrics if it ends with `# EOF`.
//!
//! A page in OpenMetrics gives the same result as one in Prometheus' format: the names, kinds and samples are those of
//! the text format 0.0.4.

use std::collections::BTreeSet;

/// A parsed page of metrics in the text format of Prometheus or OpenMetrics.
pub struct Metrics {
    /// The text of the page.
    pub text: String,
    /// The metrics that the page declares, in its order.
    pub families: Vec<MetricFamily>,
    /// The samples on the page, in its order.
    pub samples: Vec<MetricSample>,
}

/// The declaration of a metric: its name, kind and help text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricFamily {
    /// The name of the metric, including the `_total` at the end of a counter's name.
    pub name: String,
    /// The kind of the metric: `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// The help text of the metric.
    pub help: String,
}

/// A sample: one line of the page, `name{label="value"} number`.
#[derive(Debug)]
pub struct MetricSample {
    /// The name of the sample: that of its metric, with `_bucket`, `_sum` or `_count` for a histogram.
    pub name: String,
    /// The labels in the order of the line, each as name and value.
    pub labels: Vec<(String, String)>,
    /// The number of the sample.
    pub value: f64,
}

impl MetricSample {
    /// The value of the label `name`; `None` if the sample does not have it.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }

    /// The name of the sample, then the names of its labels in alphabetical order, separated by blanks.
    pub fn signature(&self) -> String {
        let labels: BTreeSet<_> = self.labels.iter().map(|(label, _)| label.as_str()).collect();
        std::iter::once(self.name.as_str()).chain(labels).collect::<Vec<_>>().join(" ")
    }

    /// The sample with its labels in alphabetical order: the same for the same sample of either format.
    fn sorted(&self) -> String {
        let labels: BTreeSet<_> = self.labels.iter().collect();
        format!("{} {labels:?} {}", self.name, self.value)
    }
}

impl Metrics {
    /// Parses a page. Panics if a line is neither a known kind of comment nor a sample of the metric declared
    /// last.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "{text}");
        let body = text.strip_suffix("# EOF\n");
        let is_open = body.is_some();
        let (mut families, mut samples) = (Vec::<MetricFamily>::new(), Vec::new());
        let mut lines = body.unwrap_or(text).lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                let family = lines.next().and_then(|next| next.strip_prefix("# TYPE ")?.strip_prefix(name));
                let kind = family
                    .and_then(|rest| rest.strip_prefix(' '))
                    .unwrap_or_else(|| panic!("no kind: {line}"));
                let family = MetricFamily::new(name, kind, help, is_open);
                assert!(!help.is_empty() && families.iter().all(|known| known.name != family.name), "{line}");
                families.push(family);
            } else {
                let sample = parse_sample(line).unwrap_or_else(|| panic!("no sample: {line}"));
                let announced = families.last().unwrap();
                let rest = sample.name.strip_prefix(&announced.name);
                let is_histogram = announced.kind == "histogram";
                let allowed: &[_] = if is_histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(rest.is_some_and(|rest| allowed.contains(&rest)), "{line} follows {announced:?}");
                samples.push(sample);
            }
        }
        Self { text: text.to_owned(), families, samples }
    }

    /// The content of the page independent of its order: each metric with its kind and help text, and each
    /// sample with its sorted labels and its value.
    pub fn facts(&self) -> BTreeSet<String> {
        let families = self.families.iter().map(|family| format!("{family:?}"));
        families.chain(self.samples.iter().map(MetricSample::sorted)).collect()
    }

    /// The sum over all samples with this name that have all of `labels`. Panics if there is none.
    #[track_caller]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted = |sample: &&MetricSample| {
            sample.name == name && labels.iter().all(|(label, value)| sample.label(label) == Some(value))
        };
        let mut found = self.samples.iter().filter(wanted).peekable();
        assert!(found.peek().is_some(), "no {name}{labels:?} in\n{}", self.text);
        found.map(|sample| sample.value).sum()
    }

    /// The number of requests of the kind `kind` (`hit`, `miss`, `write` or `flush`) to all disks of the page. Panics
    /// if the page has no sample for that kind.
    #[track_caller]
    pub fn requests(&self, kind: &str) -> f64 {
        self.sum("headstart_request_seconds_count", &[("kind", kind)])
    }

    /// Returns `true` if all bytes of the images of all disks on the page are in the cache of this host. Panics if the
    /// page lacks these numbers.
    pub fn all_is_local(&self) -> bool {
        self.sum("headstart_image_local_bytes", &[]) == self.sum("headstart_image_bytes", &[])
    }
}

impl MetricFamily {
    /// A family as it is announced. OpenMetrics leaves out the end of a counter's name, and knows one more kind.
    #[track_caller]
    fn new(name: &str, kind: &str, help: &str, is_open: bool) -> Self {
        let (name, kind) = match kind {
            "counter" if is_open => (format!("{name}_total"), kind),
            "info" if is_open => (format!("{name}_info"), "gauge"),
            _ => (name.to_owned(), kind),
        };
        assert!(["counter", "gauge", "histogram"].contains(&kind), "{name}: {kind}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: {kind}");
        Self { name, kind: kind.to_owned(), help: help.to_owned() }
    }
}

fn parse_sample(line: &str) -> Option<MetricSample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            // A quotation mark in a value has a backslash before it.
            let mut end = after.find('"')?;
            while after[..end].ends_with('\\') {
                end += 1 + after[end + 1..].find('"')?;
            }
            labels.push((label.to_owned(), after[..end].to_owned()));
            rest = after[end + 1..].trim_start_matches(',');
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ')?.parse().ok()?;
    is_name.then(|| MetricSample { name: name.to_owned(), labels, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_of_a_page_say_the_same() {
        let text = "# HELP a_total As.\n# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\n\
                    # HELP b_info B.\n# TYPE b_info gauge\nb_info{v=\"\\\"\"} 1\n\
                    # HELP t Times.\n# TYPE t histogram\nt_bucket{x=\"1\",le=\"+Inf\"} 1\nt_sum 2\nt_count 1\n";
        let open = "# HELP a As.\n# TYPE a counter\na_total{y=\"2\",x=\"1\"} 3.0\n\
                    # HELP b B.\n# TYPE b info\nb_info{v=\"\\\"\"} 1\n\
                    # HELP t Times.\n# TYPE t histogram\nt_sum 2.0\nt_count 1\n\
                    t_bucket{le=\"+Inf\",x=\"1\"} 1\n# EOF\n";
        let [text, open] = [text, open].map(Metrics::parse);
        assert_eq!(text.facts(), open.facts());
        assert_eq!((text.facts().len(), text.samples[0].signature()), (8, "a_total x y".to_owned()));
    }
}
