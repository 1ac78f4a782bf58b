//! The JSON that commands print with `--json`: a schema of each report, generated from the type that is printed.
//!
//! The reports are listed by hand, each with the commands that print it. Generating fails if a type that commands print
//! (one that implements `Outcome`, of `headstart-command-line`) is missing in the list. A test fails if the list names
//! a command that does not exist.

mod schema;
mod types;

use crate::kind::kind;
use crate::markdown::{escaped, table};
use crate::source::{files, parsed};
use crate::{Result, SitePage};
use schema::Schemas;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use types::Types;

/// The crates whose commands print reports, with their folders of sources.
const CRATES: [&str; 2] = ["cli/headstart/src", "lab/headstart-lab/src"];

/// The folders with types that reports consist of.
const WINGS: [&str; 7] = ["core", "learn", "disk", "fleet", "harvest", "cli", "lab"];

/// A report: the file with its type, the type, the commands that print it, and the case in which they do.
struct Report {
    file: &'static str,
    name: &'static str,
    commands: &'static [&'static str],
    case: &'static str,
}

const fn report(
    file: &'static str,
    name: &'static str,
    commands: &'static [&'static str],
    case: &'static str,
) -> Report {
    Report { file, name, commands, case }
}

/// The reports, in the order of the page.
const REPORTS: [Report; 68] = [
    report("image/report.rs", "Made", &["image import", "image commit", "image flatten"], ""),
    report("image/report.rs", "Inspection", &["image inspect"], ""),
    report("image/forms.rs", "Forms", &["image inspect"], "with `--forms`"),
    report("image/report.rs", "Verified", &["image verify"], ""),
    report("image/report.rs", "Listing", &["image list"], ""),
    report("image/report.rs", "DiffReport", &["image diff"], ""),
    report("image/convert.rs", "Converted", &["image convert"], ""),
    report("image/layers.rs", "LayerDisks", &["image layers"], ""),
    report("image/copy.rs", "Copied", &["image push", "image pull", "image copy"], ""),
    report("image/optimize.rs", "Optimized", &["image optimize"], ""),
    report("image/prune.rs", "Removed", &["image remove"], ""),
    report("image/prune.rs", "Pruned", &["image prune"], ""),
    report("lease.rs", "Leases", &["lease list"], ""),
    report("lease.rs", "Released", &["lease release"], ""),
    report("layer.rs", "LayerReport", &["layer inspect"], ""),
    report("layer.rs", "VerifiedLayers", &["layer verify"], ""),
    report("layer.rs", "Exported", &["layer export"], ""),
    report("zfile.rs", "ZFileReport", &["zfile pack", "zfile unpack", "zfile inspect"], ""),
    report("attach.rs", "Ready", &["attach"], "when the disks can be used"),
    report("attach.rs", "Detached", &["attach"], "when the disks were detached"),
    report("cache.rs", "Listing", &["cache list"], ""),
    report("cache.rs", "UsageReport", &["cache usage"], ""),
    report("cache.rs", "VerifyReport", &["cache verify"], ""),
    report("cache.rs", "Removed", &["cache remove"], ""),
    report("cache.rs", "Pruned", &["cache prune"], ""),
    report("doctor.rs", "Findings", &["doctor"], ""),
    report("trace.rs", "ImportReport", &["trace import"], ""),
    report("trace.rs", "ExportReport", &["trace export"], ""),
    report("trace/stats.rs", "StatsReport", &["trace stats"], ""),
    report("trace/plot.rs", "PlotReport", &["trace plot"], ""),
    report("trace/synthesize.rs", "SynthesizeReport", &["trace synthesize"], ""),
    report("train.rs", "TrainReport", &["train"], ""),
    report("plan/show.rs", "Shown", &["plan show"], "of a plan"),
    report("plan/show.rs", "Listing", &["plan show"], "of a file of plans"),
    report("plan/diff.rs", "DiffReport", &["plan diff"], ""),
    report("plan/export.rs", "ExportReport", &["plan export"], ""),
    report("simulate/report.rs", "DiskReport", &["simulate disk"], ""),
    report("simulate/fleet/report.rs", "FleetReport", &["simulate fleet"], ""),
    report("simulate/harvest/report.rs", "HarvestReport", &["simulate harvest"], ""),
    report("replay/report.rs", "ReplayReport", &["replay"], ""),
    report("agent.rs", "Ready", &["agent"], "when it listens"),
    report("agent.rs", "Joined", &["agent"], "when it is in the swarm"),
    report("container.rs", "PulledImage", &["container pull"], ""),
    report("snapshotter.rs", "Ready", &["snapshotter"], "when containerd can connect"),
    report("agent/disk.rs", "Listed", &["disk list"], ""),
    report(
        "agent/disk.rs",
        "DiskReport",
        &["disk detach", "attach"],
        "with `--agent`: the disk, as the agent describes it",
    ),
    report("agent/clone.rs", "Cloned", &["disk clone"], ""),
    report("agent/compact.rs", "Compacted", &["disk compact"], ""),
    report("agent/repair.rs", "RepairReport", &["disk repair"], ""),
    report("swarm/init.rs", "Cluster", &["swarm init"], ""),
    report("swarm/add.rs", "Requested", &["swarm request"], ""),
    report("swarm/add.rs", "Added", &["swarm add"], ""),
    report("swarm/revoke.rs", "SentTrustList", &["swarm revoke", "swarm rekey", "swarm publish"], ""),
    report("swarm/status.rs", "Part", &["swarm status"], ""),
    report("swarm/warm.rs", "WarmReport", &["swarm warm"], ""),
    report("swarm/pin.rs", "PinReport", &["swarm pin"], ""),
    report("swarm/pin.rs", "Unpinned", &["swarm unpin"], ""),
    report("harvest/serve.rs", "Ready", &["harvest serve"], "when the vSSDs can be used"),
    report("daemon.rs", "Ended", &["agent", "snapshotter", "harvest serve"], "at the end"),
    report("harvest/vssd.rs", "Listed", &["harvest vssd list"], ""),
    report(
        "harvest/vssd.rs",
        "VssdReport",
        &["harvest vssd create", "harvest vssd resize", "harvest vssd access", "harvest release"],
        "",
    ),
    report("harvest/vssd.rs", "Deleted", &["harvest vssd delete"], ""),
    report("harvest/lease.rs", "Offered", &["harvest offer"], ""),
    report("harvest/lease.rs", "Leased", &["harvest request"], ""),
    report("harvest/status.rs", "StatusReport", &["harvest status"], ""),
    report("harvest/rescue.rs", "Checked", &["harvest check", "harvest rescue"], ""),
    report("attach/release.rs", "Released", &[], ""),
    report("harvest/export.rs", "Exported", &[], ""),
];

/// The JSON schema of a report (the output of a command with `--json`), and the commands that print it.
pub struct Described {
    /// The commands that print this report, without the name of the program: `image import`.
    pub commands: Vec<String>,
    /// The case in which the commands print this report and not another one, such as "at the end"; empty if
    /// they print no other.
    pub case: String,
    /// `true` if the command can print this report with exit status 1, because the report tells of something
    /// wrong.
    pub is_judged: bool,
    /// The JSON schema of the report, draft 2020-12.
    pub schema: Value,
}

/// Generates the schemas of all reports from the sources in the repository at `root`. Reports of internal
/// commands, which only other processes start, are left out.
///
/// # Errors
///
/// A type is not in the file that the list of reports names; the type of a field is found in several places; a type
/// that commands print is not in the list; a source file cannot be read.
pub fn reports(root: &Path) -> Result<Vec<Described>> {
    let types = Types::of(root, &WINGS)?;
    let judged = judged(root)?;
    let mut described = Vec::new();
    for report in REPORTS.iter().filter(|report| !report.commands.is_empty()) {
        let file = CRATES.iter().map(|folder| format!("{folder}/{}", report.file));
        let file = file.into_iter().find(|file| types.has(file, report.name));
        let file = file.ok_or_else(|| format!("{}: {} is not there", report.file, report.name))?;
        let mut schemas = Schemas::of(&types);
        let body = schemas.of_item(&file, report.name)?;
        let mut schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": report.commands.join(", "),
        });
        merge(&mut schema, body);
        merge(&mut schema, json!({ "$defs": schemas.definitions() }));
        let commands = report.commands.iter().map(|&command| command.to_owned()).collect();
        let is_judged = judged.contains(&(report.file.to_owned(), report.name.to_owned()));
        described.push(Described { commands, case: report.case.to_owned(), is_judged, schema });
    }
    Ok(described)
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

/// The reports that decide on the exit status, by their files and types.
///
/// # Errors
///
/// A type that is printed is not in the list.
fn judged(root: &Path) -> Result<BTreeSet<(String, String)>> {
    let listed: BTreeSet<_> = REPORTS.iter().map(|report| (report.file, report.name)).collect();
    let mut judged = BTreeSet::new();
    for folder in CRATES {
        for path in files(&root.join(folder))? {
            let file = path.strip_prefix(root.join(folder))?.to_string_lossy().into_owned();
            for outcome in types::outcomes(&parsed(&path)?) {
                if !listed.contains(&(file.as_str(), outcome.name.as_str())) {
                    return Err(
                        format!("{folder}/{file}: {} is printed, and not in REPORTS", outcome.name).into()
                    );
                }
                if outcome.is_judged {
                    judged.insert((file.clone(), outcome.name));
                }
            }
        }
    }
    Ok(judged)
}

/// The page of all reports, and a file for the schema of each.
pub(crate) fn pages(root: &Path) -> Result<Vec<SitePage>> {
    let mut body =
        "The JSON that commands print with `--json`. The schemas (draft 2020-12) are made of the types in \
                    the code.\n\n"
            .to_owned();
    let mut pages: Vec<SitePage> = Vec::new();
    for report in reports(root)? {
        let name = report.commands[0].replace(' ', "-");
        let of_the_command = pages.iter().filter(|page| page.title == name).count();
        let number = if of_the_command == 0 { String::new() } else { format!("-{}", of_the_command + 1) };
        let file = format!("json/{name}{number}.schema.json");
        body.push_str(&section(&report, &file));
        let text = serde_json::to_string_pretty(&report.schema)? + "\n";
        pages.push(SitePage { path: format!("reference/{file}"), title: name, text });
    }
    pages.insert(0, SitePage::new("reference/json-schemas.md", "Reports in JSON", &body));
    Ok(pages)
}

/// The section of a report: its fields, and those of the values in it.
fn section(report: &Described, file: &str) -> String {
    let commands: Vec<_> = report.commands.iter().map(|command| format!("`{command}`")).collect();
    let case = if report.case.is_empty() { String::new() } else { format!(", {}", report.case) };
    let mut text = format!("## {}{}\n\n", commands.join(", "), escaped(&case));
    text.push_str(&value(&report.schema));
    for (name, schema) in report.schema["$defs"].as_object().into_iter().flatten() {
        text.push_str(&format!("**{name}**: {}", value(schema)));
    }
    if report.is_judged {
        text.push_str("The exit status is 1 if the report tells of something wrong.\n\n");
    }
    text.push_str(&format!("[Schema]({file})\n\n"));
    text
}

/// The description of a value, and a table of its fields where it has some.
fn value(schema: &Value) -> String {
    let about = escaped(schema["description"].as_str().unwrap_or_default());
    let named: &dyn Fn(&str) -> String = &|name| format!("`{name}`");
    let Some(fields) = schema["properties"].as_object() else {
        return format!("{about} ({})\n\n", kind(schema, named));
    };
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = fields.iter().map(|(name, field)| {
        let needed = if required.iter().any(|one| one == name) { "" } else { ", may be absent" };
        let meaning = escaped(field["description"].as_str().unwrap_or_default());
        [format!("`{name}`"), format!("{}{needed}", kind(field, named)), meaning]
    });
    let mut text = format!("{about}\n\n{}\n", table(["field", "type", "meaning"], &rows.collect::<Vec<_>>()));
    for part in schema["allOf"].as_array().into_iter().flatten() {
        text.push_str(&format!("With the fields of {}.\n\n", kind(part, named)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::PROGRAMS;

    /// The commands of the list are those of the command line.
    #[test]
    fn every_report_is_of_a_command() {
        let programs = PROGRAMS.map(|program| (program.command)());
        let has = |program: &clap::Command, command: &str| {
            let found = command.split(' ').try_fold(program, |at, word| at.find_subcommand(word));
            found.is_some_and(|command| !command.is_hide_set())
        };
        for command in REPORTS.iter().flat_map(|report| report.commands) {
            assert!(programs.iter().any(|program| has(program, command)), "there is no command {command}");
        }
    }
}
