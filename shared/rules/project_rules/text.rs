//! Names, lengths and words.

use crate::assert_none;
use crate::tree::{Source, sources};

/// Longest Rust file, in lines: what a reader can hold as one thing.
const MAX_LINES: usize = 700;
/// Longest line of Rust, in characters. rustfmt stops at 110 and leaves strings, tables and links alone.
const MAX_COLUMNS: usize = 120;

/// Names that say nothing, so that anything ends up in the file.
const HOLLOW_NAMES: [&str; 6] = ["util", "utils", "common", "misc", "helper", "helpers"];

/// Signs of unfinished work. In halves, so that this file does not offend.
const UNFINISHED: [&str; 5] = [
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("TO", "DO"),
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
];

/// Directories that exist on somebody's machine only.
const PRIVATE_DIRECTORIES: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

fn offences_by_line(
    of_kind: impl Fn(&Source) -> bool,
    offends: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut offences = Vec::new();
    for source in sources().iter().filter(|source| of_kind(source)) {
        for (number, line) in source.lines() {
            if let Some(why) = offends(line) {
                offences.push(format!("{}:{number}: {why}", source.path));
            }
        }
    }
    offences
}

#[test]
fn a_file_is_named_after_what_it_holds() {
    let hollow = sources().into_iter().filter(|source| HOLLOW_NAMES.contains(&source.stem()));
    let offences: Vec<_> = hollow.map(|source| source.path).collect();
    assert_none("name it after what is in it", &offences);
}

#[test]
fn a_file_can_be_read_in_one_sitting() {
    let long = sources().into_iter().filter(|source| source.is_rust() && source.lines().count() > MAX_LINES);
    let offences: Vec<_> =
        long.map(|source| format!("{}: {} lines", source.path, source.lines().count())).collect();
    assert_none("split it where it is two things", &offences);
}

#[test]
fn a_line_fits_a_screen() {
    let offences = offences_by_line(Source::is_rust, |line| {
        let columns = line.chars().count();
        (columns > MAX_COLUMNS).then(|| format!("{columns} columns"))
    });
    assert_none("break it", &offences);
}

#[test]
fn text_has_no_trailing_blanks_and_ends_with_its_line() {
    let mut offences = offences_by_line(
        |_| true,
        |line| line.ends_with([' ', '\t', '\r']).then(|| "trailing blank".to_owned()),
    );
    let unended =
        sources().into_iter().filter(|source| !source.text.is_empty() && !source.text.ends_with('\n'));
    offences.extend(unended.map(|source| format!("{}: the last line does not end", source.path)));
    assert_none("strip it", &offences);
}

#[test]
fn no_text_has_marks_of_unfinished_work() {
    let offences = offences_by_line(
        |source| source.is_rust() || source.path.ends_with(".md") || source.path.starts_with("scripts/"),
        |line| UNFINISHED.iter().find(|sign| line.contains(**sign)).map(|sign| (*sign).to_owned()),
    );
    assert_none("finish it, or open an issue", &offences);
}

#[test]
fn nothing_names_a_directory_of_one_machine() {
    let offences = offences_by_line(|_| true, |line| private_directory(line).map(str::to_owned));
    assert_none("take the path from the environment or make it relative", &offences);
}

/// The first directory of one machine that an absolute path in `line` starts with.
fn private_directory(line: &str) -> Option<&'static str> {
    let starts_a_path = |before: &str| {
        before.chars().next_back().is_none_or(|c| !(c.is_alphanumeric() || "/._-~}$*".contains(c)))
    };
    PRIVATE_DIRECTORIES
        .into_iter()
        .find(|directory| line.match_indices(directory).any(|(at, _)| starts_a_path(line.split_at(at).0)))
}

#[test]
fn private_directories_are_told_from_parts_of_paths() {
    let home = PRIVATE_DIRECTORIES[0];
    assert_eq!(private_directory(&format!("cd \"{home}me\"")), Some(home));
    assert_eq!(private_directory(&format!("{home}me")), Some(home));
    assert_eq!(private_directory(&format!("target{home}me and file://{home}")), None);
}
