//! Messages of commits: an imperative subject that fits a line, and a body that says why.
//!
//! The rule holds for the commits after [`BASE`]. Where git or that commit is not there, as in an archive of the
//! sources or a shallow clone, the test is skipped.

use crate::tree::root;
use crate::{assert_none, skipped};
use std::process::Command;

/// The last commit that the rule does not hold for.
const BASE: &str = "7b72497c6369";

/// The most characters of a subject.
const SUBJECT_MAX: usize = 72;

/// Imperatives whose last letters look like those of another form.
const IMPERATIVES: [&str; 16] = [
    "access", "address", "bring", "bypass", "compress", "discuss", "embed", "feed", "focus", "need", "pass",
    "press", "process", "ring", "seed", "string",
];

/// Runs git in the root of the checkout, and returns its output where it succeeded.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root()).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The fault of a commit's message, if it has one.
fn fault(message: &str) -> Option<&'static str> {
    let mut lines = message.trim_end().lines();
    let subject = lines.next().unwrap_or_default();
    if subject.chars().count() > SUBJECT_MAX {
        return Some("the subject has more than 72 characters");
    }
    if subject.ends_with('.') {
        return Some("a subject ends without a full stop");
    }
    // What stands before a colon is the part of the project, not the verb.
    let predicate = subject.split_once(": ").map_or(subject, |(_, predicate)| predicate);
    let verb = predicate.split([' ', ',']).next().unwrap_or_default().to_lowercase();
    let is_another_form = verb.ends_with("ed") || verb.ends_with("ing") || verb.ends_with('s');
    if verb.is_empty() || (is_another_form && !IMPERATIVES.contains(&verb.as_str())) {
        return Some(
            "the subject says what the commit does, as an imperative: \"Add\", not \"Added\" or \"Adds\"",
        );
    }
    if lines.next().is_some_and(|line| !line.is_empty()) {
        return Some("an empty line parts the subject from the body");
    }
    lines.all(|line| line.trim().is_empty()).then_some("a body says why")
}

#[test]
fn commits_say_in_a_line_what_they_do_and_below_it_why() {
    let range = format!("{BASE}..HEAD");
    let Some(log) = git(&["log", "--no-merges", "--format=%h%x01%B%x02", &range]) else {
        skipped(&format!("the history since {BASE} is not here"));
        return;
    };
    let commits = log.split('\u{2}').filter_map(|commit| commit.trim_start().split_once('\u{1}'));
    let offences: Vec<_> = commits
        .filter_map(|(hash, message)| {
            let subject = message.lines().next().unwrap_or_default();
            fault(message).map(|fault| format!("{hash} {subject:?}: {fault}"))
        })
        .collect();
    assert_none("reword the commit", &offences);
}

#[test]
fn a_message_in_another_form_is_found() {
    for good in [
        "Add a rule\n\nBecause reviewers repeat it.",
        "Docs: bring pages together, and pass links on\n\nWhy.\nMore.\n",
        "Process a list\n\nWhy.",
    ] {
        assert_eq!(fault(good), None, "{good:?}");
    }
    let long = format!("Add {}\n\nWhy.", "x".repeat(SUBJECT_MAX));
    for bad in [
        "",
        "Add a rule",
        "Add a rule\n\n \n",
        "Add a rule\nat once",
        "Added a rule\n\nWhy.",
        "Docs: adds a page\n\nWhy.",
        "Docs: adding a page\n\nWhy.",
        "Add a rule.\n\nWhy.",
        &long,
    ] {
        assert!(fault(bad).is_some(), "{bad:?}");
    }
}
