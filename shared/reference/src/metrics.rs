//! The tables of metrics, generated from pages of metrics that the daemons served and that were recorded.

use crate::markdown::{escaped, table};
use crate::source::read;
use crate::{Result, SitePage};
use std::collections::BTreeSet;
use std::path::Path;

/// The recorded pages: the files' names, the heading, and the place where the page is served.
const PAGES: [(&[&str], &str, &str); 3] = [
    (
        &["attach.txt"],
        "Disks",
        "A process of disks serves these at `attach --metrics ADDRESS`, path `/metrics`.",
    ),
    (
        &["agent.txt", "agent-member.txt"],
        "The agent",
        "An agent serves these at its Unix socket, and at `agent --http ADDRESS`, path `/metrics`. Those of the swarm \
         are there with `--credentials` or `--plain`, those of the range proxy with `--range-proxy`.",
    ),
    (
        &["harvest.txt"],
        "Spare flash",
        "`harvest serve` serves these at its Unix socket, and at `--http ADDRESS`, path `/metrics`.",
    ),
];

/// A metric of a page.
#[derive(Debug, PartialEq, Eq)]
struct Metric {
    name: String,
    help: String,
    kind: String,
    /// The names of labels, in the order of their first sample.
    labels: Vec<String>,
}

/// Generates the page of all metrics from the recorded output of the daemons, in files below `recorded`.
///
/// # Errors
///
/// A file cannot be read or contains no metrics.
pub fn page(recorded: &Path) -> Result<SitePage> {
    let mut body =
        "Names, kinds and labels of metrics stay as they are from version to version; tests compare them. \
                    Counters begin at zero with each process.\n\n"
            .to_owned();
    for (files, title, place) in PAGES {
        let mut metrics: Vec<Metric> = Vec::new();
        for file in files {
            let found = parsed(&read(&recorded.join(file))?);
            if found.is_empty() {
                return Err(format!("there are no metrics in {file}").into());
            }
            let is_new = |metric: &Metric| metrics.iter().all(|known| known.name != metric.name);
            let new: Vec<_> = found.into_iter().filter(is_new).collect();
            metrics.extend(new);
        }
        let rows: Vec<_> = metrics.iter().map(row).collect();
        let listed = table(["metric", "kind", "labels", "meaning"], &rows);
        body.push_str(&format!("## {title}\n\n{place}\n\n{listed}\n"));
    }
    Ok(SitePage::new("reference/metrics.md", "Metrics", &body))
}

fn row(metric: &Metric) -> [String; 4] {
    let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
    [format!("`{}`", metric.name), metric.kind.clone(), labels.join(", "), escaped(&metric.help)]
}

/// The metrics of a page in Prometheus' text format.
fn parsed(text: &str) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let (name, help) = (name.to_owned(), help.to_owned());
            metrics.push(Metric { name, help, kind: String::new(), labels: Vec::new() });
        } else if let (Some((_, kind)), Some(metric)) =
            (line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')), metrics.last_mut())
        {
            kind.clone_into(&mut metric.kind);
        } else if let Some(metric) = metrics.last_mut() {
            add_labels(metric, line);
        }
    }
    metrics
}

/// Adds the labels of a sample, except for the bounds of a histogram.
fn add_labels(metric: &mut Metric, sample: &str) {
    let Some((_, labels)) = sample.split_once('{') else { return };
    let known: BTreeSet<_> = metric.labels.iter().cloned().collect();
    let names =
        labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0.trim_matches(',').to_owned()));
    metric.labels.extend(names.filter(|name| name != "le" && !known.contains(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_names_kinds_and_labels() {
        let page = "# HELP a_total Things, of all kinds.\n# TYPE a_total counter\na_total{disk=\"x\",kind=\"y\"} 1\n\
                    a_total{disk=\"z\",kind=\"y\"} 2\n# HELP t Times.\n# TYPE t histogram\n\
                    t_bucket{disk=\"x\",le=\"1\"} 1\nt_sum{disk=\"x\"} 1\n# HELP g One.\n# TYPE g gauge\ng 7\n";
        let metrics = parsed(page);
        let names: Vec<_> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names, ["a_total", "t", "g"]);
        assert_eq!(metrics[0].labels, ["disk", "kind"]);
        assert_eq!(
            (metrics[1].kind.as_str(), &metrics[1].labels[..]),
            ("histogram", &["disk".to_owned()][..])
        );
        assert_eq!((metrics[2].help.as_str(), metrics[2].labels.len()), ("One.", 0));
    }
}
